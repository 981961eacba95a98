//! Expressions in CEL. The crate `kube-cel` supplies the parser and the functions of Kubernetes. The interpreter is our own:
//! the interpreter of `cel` 0.13 has no optional fields, no macros with two variables, and returns `false` for the field of a
//! scalar.

mod eval;
mod functions;
mod values;

use std::sync::Arc;

use kube_cel::cel::{Value, common::ast::IdedExpr, parser::Parser};

pub use eval::{Fault, Scope};
pub use values::{bind_at, old_element, optional};

/// A parsed expression.
#[derive(Clone, Debug)]
pub struct Expression {
    pub text: String,
    parsed: Arc<IdedExpr>,
    /// Whether it uses `oldSelf`.
    pub uses_old_self: bool,
}

impl Expression {
    /// Parses an expression.
    ///
    /// # Errors
    /// The parser does not accept it, or it calls a function that is not modelled.
    pub fn parse(text: &str) -> Result<Self, String> {
        let parser = Parser::new().enable_optional_syntax(true);
        let parsed = parser.parse(text);
        let parsed = parsed.map_err(|errors| format!("the CEL rule `{text}`: {errors}"))?;
        functions::check(&parsed)
            .map_err(|name| format!("the function {name} in the CEL rule `{text}`"))?;
        Ok(Self {
            text: text.to_owned(),
            uses_old_self: parsed.references().has_variable("oldSelf"),
            parsed: Arc::new(parsed),
        })
    }

    /// Evaluates the expression.
    pub fn evaluate(&self, scope: &Scope<'_>) -> Result<Value, Fault> {
        eval::evaluate(&self.parsed, scope)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value as Json, json};

    use super::{super::node::Node, values::bind, *};
    use crate::api_server::Release;

    fn evaluated(rule: &str, object: &Json) -> Result<Value, String> {
        let schema = json!({
            "type": "object",
            "properties": {
                "a": { "type": "integer" }, "s": { "type": "string" }, "f": { "type": "number" },
                "n": { "type": "string", "nullable": true },
                "when": { "type": "string", "format": "date-time" },
                "d": { "type": "string", "format": "duration" },
                "io": { "x-kubernetes-int-or-string": true },
                "set": { "type": "array", "items": { "type": "string" }, "x-kubernetes-list-type": "set" },
                "list": { "type": "array", "items": { "type": "integer" } },
                "map": { "type": "object", "additionalProperties": { "type": "integer" } },
                "in": { "type": "string" },
            },
        });
        let node = Node::parse(&schema, Release::default())?;
        let value = bind(object, &node);
        let scope = Scope::empty();
        let scope = scope.with("self", value);
        let expression = Expression::parse(rule)?;
        expression
            .evaluate(&scope)
            .map_err(|fault| fault.to_string())
    }

    #[test]
    fn rules_are_evaluated_like_those_of_cel_go() {
        let object = json!({
            "a": 3, "s": "añb", "f": 2, "n": null, "when": "2024-01-01T00:00:00Z", "d": "90s", "io": "5%",
            "set": ["b", "a"], "list": [3, 1, 2], "map": { "x": 1, "y": 2 }, "in": "reserved",
        });
        for rule in [
            "self.a > 2 && self.a + 1 == 4",
            "self.s.size() == 3 && size(self.s) == 3",
            "self.f == 2.0 && type(self.f) == double",
            "!has(self.n)",
            "has(self.a) && !has(self.missing)",
            "self.?missing.orValue(7) == 7",
            "self.?a.orValue(7) == 3",
            "self.?a.hasValue() && self.?a.value() == 3",
            "optional.of(1).optMap(x, x + 1).value() == 2",
            "self.when < timestamp('2025-01-01T00:00:00Z') && self.when.getFullYear() == 2024",
            "self.d == duration('1m30s') && self.d.getSeconds() == 90",
            "type(self.io) == string && self.io.matches(r'^\\d+%$')",
            "self.set == ['a', 'b'] && self.set + ['a', 'c'] == ['a', 'b', 'c']",
            "self.list.all(x, x > 0) && self.list.exists(x, x == 3) && self.list.exists_one(x, x == 1)",
            "self.list.map(x, x * 2) == [6, 2, 4] && self.list.filter(x, x > 1).size() == 2",
            "self.list.all(i, v, i >= 0 && v > 0) && self.list.transformList(i, v, i + v) == [3, 2, 4]",
            "self.list.sortBy(x, -x) == [3, 2, 1] && self.list.sum() == 6 && self.list.max() == 3",
            "self.map.all(k, self.map[k] > 0) && 'x' in self.map && self.map.size() == 2",
            "self.map.transformMap(k, v, v + 1) == {'x': 2, 'y': 3}",
            "self.__in__ == 'reserved'",
            "'abc'.find('[b-z]+') == 'bc' && 'a1b2'.findAll('[0-9]') == ['1', '2']",
            "'a,b'.split(',') == ['a', 'b'] && ['a', 'b'].join('-') == 'a-b' && 'Ab'.lowerAscii() == 'ab'",
            "quantity('1Gi').isGreaterThan(quantity('500Mi')) && isQuantity('1') && !isQuantity('x')",
            "ip('10.0.0.1').family() == 4 && cidr('10.0.0.0/8').containsIP(ip('10.1.0.0'))",
            "url('https://a.b/c').getHost() == 'a.b' && isURL('http://x')",
            "semver('1.2.3').isLessThan(semver('2.0.0'))",
            "!format.dns1123Label().validate('a-b').hasValue()",
            "sets.contains([1, 2], [1]) && '%s is %d'.format(['x', 1]) == 'x is 1'",
            "string(1) == '1' && int('5') == 5 && double(1) == 1.0 && string(1.5) == '1.5' && dyn(1) == 1",
            "false || (true || 1 / 0 > 0)",
            "1 / 0 > 0 || true",
            "self.a > 5 ? false : true",
            "[1, 2] + [3] == [1, 2, 3] && [1, 2][1] == 2 && 2 in [1, 2] && -self.a == -3 && 7 % 4 == 3",
        ] {
            assert_eq!(evaluated(rule, &object), Ok(Value::Bool(true)), "{rule}");
        }
        for (rule, error) in [
            ("self.missing > 1", "no such key: missing"),
            ("self.list[5] == 1", "index out of bounds: 5"),
            ("self.map['z'] == 1", "no such key: z"),
            ("1 / (self.a - 3) == 1", "division by zero"),
        ] {
            assert_eq!(evaluated(rule, &object), Err(error.to_owned()), "{rule}");
        }
        for rule in [
            "self.a.unheardOf()",
            "cel.bind(x, 1, x == 1)",
            "math.abs(1) == 1",
        ] {
            assert!(Expression::parse(rule).is_err(), "{rule}");
        }
    }
}
