//! Validation rules (`x-kubernetes-validations`), with the messages of `structural-schema/cel`.

use serde_json::Value;

use super::{
    super::{Release, request::Unknown, status::Cause},
    cel::{Expression, Fault, Scope, bind_at, old_element, optional},
    go,
    node::{Additional, Node},
    ratchet::Pair,
};

/// A rule.
#[derive(Debug)]
pub struct Rule {
    expression: Expression,
    message: String,
    message_expression: Option<Expression>,
    reason: Reason,
    /// Path of the field in the value, for the error.
    field: String,
    /// Whether the rule is evaluated without an old value, too.
    optional_old_self: bool,
}

#[derive(Clone, Copy, Debug)]
enum Reason {
    Invalid,
    Forbidden,
    Required,
    Duplicate,
}

impl Rule {
    /// Parses a rule of this node.
    pub fn parse(rule: &Value, node: &Node) -> Result<Self, String> {
        let text = |name: &str| rule[name].as_str().unwrap_or_default().trim().to_owned();
        let message_expression = text("messageExpression");
        let field = text("fieldPath");
        Ok(Self {
            expression: Expression::parse(&text("rule"))?,
            message: text("message"),
            message_expression: (!message_expression.is_empty())
                .then(|| Expression::parse(&message_expression))
                .transpose()?,
            reason: match text("reason").as_str() {
                "FieldValueForbidden" => Reason::Forbidden,
                "FieldValueRequired" => Reason::Required,
                "FieldValueDuplicate" => Reason::Duplicate,
                _ => Reason::Invalid,
            },
            field: field_path(&field, node)
                .ok_or_else(|| format!("the fieldPath {field} of a rule"))?,
            optional_old_self: rule["optionalOldSelf"] == true,
        })
    }

    /// Returns the part of the rule that errors show.
    fn shown(&self) -> &str {
        if self.message.is_empty() {
            &self.expression.text
        } else {
            &self.message
        }
    }
}

/// Parses a path such as `.spec.map['key']`, and returns it as errors have it. Returns nothing for a path without a schema.
pub fn field_path(path: &str, node: &Node) -> Option<String> {
    let (mut rest, mut node, mut out) = (path, node, String::new());
    while !rest.is_empty() {
        let name;
        if let Some(after) = rest.strip_prefix("['") {
            let end = after.find("']")?;
            name = after[..end].replace("\\'", "'").replace("\\\\", "\\");
            rest = &after[end + 2..];
        } else {
            let after = rest.strip_prefix('.')?;
            let end = after.find(['.', '[']).unwrap_or(after.len());
            name = after[..end].to_owned();
            rest = &after[end..];
        }
        (node, out) = match (node.properties.get(&name), &node.additional) {
            (Some(node), _) => (node, go::child(&out, &name)),
            (None, Additional::Schema(node)) => (&**node, format!("{out}[{name}]")),
            _ => return None,
        };
    }
    Some(out)
}

/// Errors of rules, and warnings for errors at unchanged values.
#[derive(Debug, Default)]
pub struct Broken {
    pub causes: Vec<Cause>,
    pub warnings: Vec<String>,
}

/// The pair of values that decides whether an error counts.
#[derive(Clone, Copy, Default)]
struct Ratchet<'a> {
    current: Option<Pair<'a>>,
    parent: Option<Pair<'a>>,
}

impl Ratchet<'_> {
    fn is_unchanged(self) -> bool {
        self.current.or(self.parent).is_some_and(Pair::is_unchanged)
    }

    fn field(self, name: &str) -> Self {
        match (self.current, self.parent) {
            (None, _) => self,
            (Some(_), None) if matches!(name, "apiVersion" | "kind") => Self::default(),
            (Some(pair), _) => Self {
                current: pair.field(name),
                parent: Some(pair),
            },
        }
    }

    fn element(self, at: usize) -> Self {
        self.current.map_or(self, |pair| Self {
            current: pair.element(at),
            parent: Some(pair),
        })
    }
}

/// Evaluates all rules of an object.
pub fn check(new: &Value, old: Option<&Value>, node: &Node) -> Result<Broken, Unknown> {
    let mut broken = Broken::default();
    let current = old.map(|old| Pair { new, old, node });
    let ratchet = Ratchet {
        current,
        parent: None,
    };
    walk(new, old, node, true, "", ratchet, &mut broken)?;
    Ok(broken)
}

fn walk(
    new: &Value,
    old: Option<&Value>,
    node: &Node,
    is_root: bool,
    path: &str,
    ratchet: Ratchet<'_>,
    broken: &mut Broken,
) -> Result<(), Unknown> {
    if !node.has_rules || new.is_null() || !node.is_exposed() {
        return Ok(());
    }
    let old = old.filter(|old| !old.is_null());
    evaluate(
        new,
        old,
        node,
        is_root || node.embedded,
        path,
        ratchet,
        broken,
    )?;
    match new {
        Value::Object(fields) => {
            for (name, value) in fields {
                let (child, path) = match (node.properties.get(name), &node.additional) {
                    (Some(child), _) => (child, go::child(path, name)),
                    (None, Additional::Schema(child)) => (&**child, format!("{path}[{name}]")),
                    _ => continue,
                };
                let old = old.and_then(|old| old.get(name));
                walk(value, old, child, false, &path, ratchet.field(name), broken)?;
            }
        }
        Value::Array(all) => {
            let Some(items) = &node.items else {
                return Ok(());
            };
            for (at, value) in all.iter().enumerate() {
                let old = old_element(node, old, value);
                let path = format!("{path}[{at}]");
                walk(value, old, items, false, &path, ratchet.element(at), broken)?;
            }
        }
        _ => {}
    }
    Ok(())
}

fn evaluate(
    new: &Value,
    old: Option<&Value>,
    node: &Node,
    is_resource: bool,
    path: &str,
    ratchet: Ratchet<'_>,
    broken: &mut Broken,
) -> Result<(), Unknown> {
    if node.rules.is_empty() {
        return Ok(());
    }
    let uses_old = node.rules.iter().any(|rule| rule.expression.uses_old_self);
    let old = old.filter(|_| uses_old);
    let root = Scope::empty();
    let with_self = root.with("self", bind_at(new, node, is_resource));
    let bound_old = old.map(|old| bind_at(old, node, is_resource));
    let with_old = bound_old.clone().map(|old| with_self.with("oldSelf", old));
    let plain = with_old.as_ref().unwrap_or(&with_self);
    for rule in &node.rules {
        if rule.expression.uses_old_self && old.is_none() && !rule.optional_old_self {
            continue;
        }
        let optional = rule
            .optional_old_self
            .then(|| with_self.with("oldSelf", optional(bound_old.clone())));
        let scope = optional.as_ref().unwrap_or(plain);
        let field = go::path(path);
        let kind = || go::quoted(&node.kind);
        match rule.expression.evaluate(scope) {
            Ok(kube_cel::cel::Value::Bool(true)) => continue,
            Ok(_) => {}
            Err(Fault::Unknown(words)) => {
                return Err(Unknown(format!(
                    "the rule `{}`: {words}",
                    rule.expression.text
                )));
            }
            Err(Fault::Known(words)) => {
                let words = if words.starts_with("no such overload") {
                    format!(
                        "'{words}': call arguments did not match a supported operator, function or macro signature for rule: {}",
                        rule.shown()
                    )
                } else {
                    format!("{words} evaluating rule: {}", rule.shown())
                };
                broken.causes.push(Cause::invalid(&field, kind(), &words));
                continue;
            }
        }
        let field = if rule.field.is_empty() {
            field
        } else {
            go::child(path, &rule.field)
        };
        let detail = match &rule.message_expression {
            Some(expression) => match expression.evaluate(plain) {
                Err(Fault::Unknown(words)) => {
                    return Err(Unknown(format!(
                        "the message `{}`: {words}",
                        expression.text
                    )));
                }
                Ok(kube_cel::cel::Value::String(text)) => usable(&text),
                _ => None,
            },
            None => None,
        };
        let detail = detail.unwrap_or_else(|| {
            if rule.message.is_empty() {
                format!("failed rule: {}", rule.expression.text)
            } else {
                rule.message.clone()
            }
        });
        let value = match node.kind.as_str() {
            kind if node.release < Release::V1_35 => format!(": {}", go::quoted(kind)),
            "object" | "array" => String::new(),
            _ => format!(": {}", go::shown(new, node.release)),
        };
        let (reason, message) = match rule.reason {
            Reason::Invalid => (
                "FieldValueInvalid",
                format!("Invalid value{value}: {detail}"),
            ),
            Reason::Forbidden => ("FieldValueForbidden", format!("Forbidden: {detail}")),
            Reason::Required => ("FieldValueRequired", format!("Required value: {detail}")),
            Reason::Duplicate => ("FieldValueDuplicate", format!("Duplicate value{value}")),
        };
        if !rule.expression.uses_old_self && ratchet.is_unchanged() {
            broken.warnings.push(format!("{field}: {message}"));
        } else {
            broken.causes.push(Cause {
                field,
                reason,
                message,
            });
        }
    }
    Ok(())
}

/// Returns a message that the API server accepts: one line of limited length.
fn usable(message: &str) -> Option<String> {
    let message = message.trim();
    let is_usable = !message.is_empty() && message.len() <= 5 * 1024 && !message.contains('\n');
    is_usable.then(|| message.to_owned())
}
