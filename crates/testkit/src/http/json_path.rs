//! The JSON paths of printer columns: fields, positions, `[*]`, and filters that compare with a text, such as
//! `.status.conditions[?(@.type=="Ready")].status`. Source: `k8s.io/client-go/util/jsonpath`.

use serde_json::Value;

/// A parsed path.
#[derive(Debug, PartialEq)]
pub struct JsonPath(Vec<Step>);

#[derive(Debug, PartialEq)]
enum Step {
    Field(String),
    Position(usize),
    All,
    /// The elements whose value at the path is the text.
    Equal(JsonPath, String),
}

impl JsonPath {
    /// Parses a path. Returns `None` for a form that is not modelled.
    pub fn parse(text: &str) -> Option<Self> {
        let mut steps = Vec::new();
        let mut rest = text.trim();
        while !rest.is_empty() {
            if let Some(after) = rest.strip_prefix('.') {
                let end = after.find(['.', '[']).unwrap_or(after.len());
                let (field, after) = after.split_at(end);
                // `.['name']`
                if !field.is_empty() {
                    steps.push(Step::Field(field.replace('\\', "")));
                }
                rest = after;
            } else {
                let (inner, after) = bracket(rest)?;
                steps.push(Self::step(inner)?);
                rest = after;
            }
        }
        Some(Self(steps))
    }

    fn step(inner: &str) -> Option<Step> {
        if inner == "*" {
            return Some(Step::All);
        }
        if let Some(name) = quoted(inner) {
            return Some(Step::Field(name.to_owned()));
        }
        if let Some(filter) = inner.strip_prefix("?(").and_then(|it| it.strip_suffix(')')) {
            let (path, text) = filter.split_once("==")?;
            let path = Self::parse(path.trim().strip_prefix('@')?)?;
            return Some(Step::Equal(path, quoted(text.trim())?.to_owned()));
        }
        inner.parse().ok().map(Step::Position)
    }

    /// Returns the first value at the path.
    pub fn first<'a>(&self, value: &'a Value) -> Option<&'a Value> {
        let mut found = vec![value];
        for step in &self.0 {
            found = found.into_iter().flat_map(|value| step.of(value)).collect();
        }
        found.into_iter().next()
    }
}

impl Step {
    fn of<'a>(&self, value: &'a Value) -> Vec<&'a Value> {
        let elements = || value.as_array().into_iter().flatten();
        match self {
            Self::Field(name) => value.get(name).into_iter().collect(),
            Self::Position(at) => value.get(at).into_iter().collect(),
            Self::All => elements().collect(),
            Self::Equal(path, text) => {
                let fits = |value: &&Value| path.first(value).is_some_and(|it| it == text);
                elements().filter(fits).collect()
            }
        }
    }
}

/// Splits `[inner]after`.
fn bracket(text: &str) -> Option<(&str, &str)> {
    let after = text.strip_prefix('[')?;
    let mut quote = None;
    for (at, c) in after.char_indices() {
        match (quote, c) {
            (None, ']') => return Some((&after[..at], &after[at + 1..])),
            (None, '\'' | '"') => quote = Some(c),
            (Some(open), c) if c == open => quote = None,
            _ => {}
        }
    }
    None
}

fn quoted(text: &str) -> Option<&str> {
    let inner = |quote| text.strip_prefix(quote)?.strip_suffix(quote);
    inner('\'').or_else(|| inner('"'))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn paths_of_printer_columns_are_evaluated() {
        let object = json!({
            "spec": { "replicas": 2, "a.b": "dot" },
            "status": { "conditions": [{ "type": "A", "status": "x" }, { "type": "Ready", "status": "True" }] },
        });
        for (path, expected) in [
            (".spec.replicas", json!(2)),
            (".spec['a.b']", json!("dot")),
            (r".spec.a\.b", json!(null)),
            (
                r#".status.conditions[?(@.type=="Ready")].status"#,
                json!("True"),
            ),
            (".status.conditions[0].status", json!("x")),
            (".status.conditions[*].type", json!("A")),
            (".status.missing", json!(null)),
        ] {
            let parsed = JsonPath::parse(path);
            let found = parsed.as_ref().and_then(|path| path.first(&object));
            assert_eq!(found.unwrap_or(&Value::Null), &expected, "{path}");
        }
        for path in [".a[", ".a[?(@.b>1)]", ".a[1:2]"] {
            assert_eq!(JsonPath::parse(path), None, "{path}");
        }
    }
}
