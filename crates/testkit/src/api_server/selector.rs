//! Label and field selectors of lists and watches.

use serde_json::Value;

use super::{
    Key, Kind, event,
    request::{Request, Unknown},
    status::{Refusal, Result},
};

/// Requirements of a list or a watch. An object must meet all of them.
#[derive(Clone, Debug, Default)]
pub struct Selector {
    labels: Vec<Requirement>,
    fields: Vec<(Requirement, Field)>,
}

/// A field of a selector.
#[derive(Clone, Copy, Debug)]
enum Field {
    Name,
    Namespace,
    /// At its path.
    Content,
    /// Of a stored Event.
    OfEvent(fn(&Value) -> &str),
}

impl Field {
    fn of(kind: Kind, field: &str) -> Result<Self> {
        if kind.stored() == Kind::Event
            && let Some(value) = event::selectable(kind, field)
        {
            return Ok(Self::OfEvent(value));
        }
        match field {
            _ if !has_field(kind, field) => match kind {
                Kind::Custom(it) if it.selectable => {
                    Err(Unknown(format!("selectableFields of {}", it.plural)).into())
                }
                _ => Err(not_supported(kind, field)),
            },
            "metadata.name" => Ok(Self::Name),
            "metadata.namespace" => Ok(Self::Namespace),
            _ => Ok(Self::Content),
        }
    }

    fn value(self, key: &Key, object: &Value, field: &str) -> String {
        match self {
            Self::Name => key.name.clone(),
            Self::Namespace => key.namespace.clone(),
            Self::Content => field_value(object, field),
            Self::OfEvent(value) => value(object).to_owned(),
        }
    }
}

/// A label or field, and its values.
#[derive(Clone, Debug)]
struct Requirement {
    key: String,
    /// `None`: the label exists, with any value.
    values: Option<Vec<String>>,
    /// Whether the requirement is met if the label or field has none of the values, or does not exist.
    negated: bool,
}

impl Requirement {
    fn is_met(&self, value: Option<&str>) -> bool {
        let has = value.is_some_and(|value| {
            let values = self.values.as_ref();
            values.is_none_or(|values| values.iter().any(|it| it == value))
        });
        has != self.negated
    }

    /// Parses a requirement with an operator for equality.
    fn equality(text: &str) -> Option<Self> {
        let unequal = text.split_once("!=");
        let (key, value) = unequal.or_else(|| text.split_once('='))?;
        let negated = unequal.is_some();
        let value = value.trim_start_matches('=');
        Some(Self {
            key: key.trim().to_owned(),
            values: Some(vec![value.trim().to_owned()]),
            negated,
        })
    }

    /// Parses any requirement for labels.
    fn of_label(text: &str) -> Option<Self> {
        if let Some(set) = text.strip_suffix(')') {
            let (key, values) = set.split_once('(')?;
            let (key, operator) = key.trim().split_once(' ')?;
            let values = values.split(',').map(|value| value.trim().to_owned());
            return Some(Self {
                key: key.to_owned(),
                values: Some(values.collect()),
                negated: match operator.trim() {
                    "in" => false,
                    "notin" => true,
                    _ => return None,
                },
            });
        }
        if text.contains('=') {
            return Self::equality(text);
        }
        let key = text.strip_prefix('!');
        Some(Self {
            negated: key.is_some(),
            key: key.unwrap_or(text).trim().to_owned(),
            values: None,
        })
    }
}

impl Selector {
    /// Parses the selectors of a request for objects of this kind.
    pub fn of(request: &Request<'_>, kind: Kind) -> Result<Self> {
        let parsed = |name, parse: fn(&str) -> Option<Requirement>| {
            let text = request.text(name);
            let all: Option<Vec<_>> = parts(text).into_iter().map(parse).collect();
            all.ok_or_else(|| Unknown(format!("{name}={text}")))
        };
        let fields = parsed("fieldSelector", Requirement::equality)?.into_iter();
        let fields = fields.map(|it| {
            let field = Field::of(kind, &it.key)?;
            Ok((it, field))
        });
        Ok(Self {
            labels: parsed("labelSelector", Requirement::of_label)?,
            fields: fields.collect::<Result<_>>()?,
        })
    }

    pub fn is_empty(&self) -> bool {
        self.labels.is_empty() && self.fields.is_empty()
    }

    /// Returns whether this state of the object meets all requirements.
    pub fn selects(&self, key: &Key, object: &Value) -> bool {
        let labels = &object["metadata"]["labels"];
        let mut of_labels = self.labels.iter();
        let mut of_fields = self.fields.iter();
        of_labels.all(|it| it.is_met(labels[&it.key].as_str()))
            && of_fields.all(|(it, field)| it.is_met(Some(&field.value(key, object, &it.key))))
    }
}

/// Returns whether a selector for this kind may contain this field (`AddFieldLabelConversionFunc` in `k8s.io/kubernetes/pkg/apis`).
fn has_field(kind: Kind, field: &str) -> bool {
    match field {
        "metadata.name" => true,
        "metadata.namespace" => {
            kind != Kind::Namespace && (kind.is_namespaced() || !kind.is_custom())
        }
        "type" => kind == Kind::Secret,
        "status.phase" => kind == Kind::Namespace,
        "status.successful" => kind == Kind::Job,
        "spec.clusterIP" | "spec.type" => kind == Kind::Service,
        _ => false,
    }
}

/// Returns the error for a field that a selector may not contain.
fn not_supported(kind: Kind, field: &str) -> Refusal {
    match kind {
        Kind::Event
        | Kind::CoreEvent
        | Kind::Namespace
        | Kind::Secret
        | Kind::Service
        | Kind::Custom(_) => Refusal::bad_request(format!("field label not supported: {field}")),
        Kind::Job => Refusal::bad_request(format!("field label {field:?} not supported for Job")),
        _ => Refusal::bad_request(format!(
            "{field:?} is not a known field selector: only \"metadata.name\", \"metadata.namespace\""
        )),
    }
}

/// Returns the value of a field for selectors. A missing field is empty, or 0.
fn field_value(object: &Value, field: &str) -> String {
    let field = match field {
        "status.successful" => "status.succeeded",
        field => field,
    };
    let value = field.split('.').fold(object, |value, name| &value[name]);
    match value {
        Value::String(text) => text.clone(),
        Value::Null if field == "status.succeeded" => "0".to_owned(),
        Value::Null => String::new(),
        value => value.to_string(),
    }
}

/// Splits a selector at the commas outside parentheses.
fn parts(text: &str) -> Vec<&str> {
    let mut depth = 0;
    let is_end = move |c: char| {
        depth += i32::from(c == '(') - i32::from(c == ')');
        c == ',' && depth == 0
    };
    text.split(is_end)
        .map(str::trim)
        .filter(|part| !part.is_empty())
        .collect()
}
