//! Columns of `kubectl get`: of the built-in kinds as in `pkg/printers/internalversion/printers.go`, of custom kinds as in
//! their CRD
//! (`apiextensions-apiserver/pkg/registry/customresource/tableconvertor`).

use std::fmt::Write as _;

use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};

use super::json_path::JsonPath;

/// A column, and its cell for an object at a time.
pub struct Column {
    pub name: String,
    pub r#type: String,
    pub format: &'static str,
    /// 0 in each table, 1 with `-o wide`.
    pub priority: u64,
    cell: Cell,
}

enum Cell {
    BuiltIn(fn(&Value, Timestamp) -> Value),
    Path(JsonPath),
}

impl Column {
    fn new(name: &str, priority: u64, cell: fn(&Value, Timestamp) -> Value) -> Self {
        Self {
            name: name.to_owned(),
            r#type: "string".to_owned(),
            format: if name == "Name" { "name" } else { "" },
            priority,
            cell: Cell::BuiltIn(cell),
        }
    }

    fn counted(name: &str, cell: fn(&Value, Timestamp) -> Value) -> Self {
        Self {
            r#type: "integer".to_owned(),
            ..Self::new(name, 0, cell)
        }
    }

    pub fn cell(&self, object: &Value, now: Timestamp) -> Value {
        match &self.cell {
            Cell::BuiltIn(cell) => cell(object, now),
            Cell::Path(path) => {
                let value = path.first(object).unwrap_or(&Value::Null);
                custom_cell(&self.r#type, value, now)
            }
        }
    }
}

/// Returns the columns of a kind that is built in, or `None` if they are not modelled.
pub fn built_in(kind: &str) -> Option<Vec<Column>> {
    let mut columns = vec![Column::new("Name", 0, name)];
    let age = || Column::new("Age", 0, age);
    match kind {
        "Namespace" => columns.extend([
            Column::new("Status", 0, |it, _| it["status"]["phase"].clone()),
            age(),
        ]),
        "ServiceAccount" => columns.push(age()),
        "Deployment" => columns.extend([
            Column::new("Ready", 0, |it, _| {
                let ready = count(&it["status"]["readyReplicas"]);
                json!(format!("{ready}/{}", count(&it["spec"]["replicas"])))
            }),
            Column::new("Up-to-date", 0, |it, _| {
                json!(count(&it["status"]["updatedReplicas"]))
            }),
            Column::new("Available", 0, |it, _| {
                json!(count(&it["status"]["availableReplicas"]))
            }),
            age(),
            Column::new("Containers", 1, |it, _| containers(it, "name")),
            Column::new("Images", 1, |it, _| containers(it, "image")),
            Column::new("Selector", 1, |it, _| {
                labels(&it["spec"]["selector"]["matchLabels"])
            }),
        ]),
        "Service" => columns.extend([
            Column::new("Type", 0, |it, _| it["spec"]["type"].clone()),
            Column::new("Cluster-IP", 0, |it, _| {
                or_none(it["spec"]["clusterIP"].as_str().unwrap_or_default())
            }),
            Column::new("External-IP", 0, |_, _| json!("<none>")),
            Column::new("Port(s)", 0, |it, _| ports(it)),
            age(),
            Column::new("Selector", 1, |it, _| labels(&it["spec"]["selector"])),
        ]),
        "ConfigMap" => columns.extend([Column::new("Data", 0, |it, _| json!(entries(it))), age()]),
        "Secret" => columns.extend([
            Column::new("Type", 0, |it, _| it["type"].clone()),
            Column::new("Data", 0, |it, _| json!(entries(it))),
            age(),
        ]),
        "Lease" => columns.extend([
            Column::new("Holder", 0, |it, _| {
                json!(it["spec"]["holderIdentity"].as_str().unwrap_or_default())
            }),
            age(),
        ]),
        "Event" => columns = events(),
        "CustomResourceDefinition" => {
            let created = Column::new("Created At", 0, |it, _| {
                it["metadata"]["creationTimestamp"].clone()
            });
            columns.push(Column {
                r#type: "date".to_owned(),
                ..created
            });
        }
        "Job" => columns.push(Column::counted("Succeeded", |it, _| {
            json!(count(&it["status"]["succeeded"]))
        })),
        _ => return None,
    }
    Some(columns)
}

/// Returns the columns of a version of a CRD.
///
/// # Errors
/// The path of a column is not modelled.
pub fn custom(version: &Value) -> Result<Vec<Column>, String> {
    let mut columns = vec![Column::new("Name", 0, name)];
    let Some(printed) = version["additionalPrinterColumns"].as_array() else {
        columns.push(Column {
            r#type: "date".to_owned(),
            ..Column::new("Age", 0, age)
        });
        return Ok(columns);
    };
    for printed in printed {
        let text = |field: &str| printed[field].as_str().unwrap_or_default();
        let path = text("jsonPath");
        columns.push(Column {
            name: text("name").to_owned(),
            r#type: text("type").to_owned(),
            format: "",
            priority: printed["priority"].as_u64().unwrap_or_default(),
            cell: Cell::Path(
                JsonPath::parse(path).ok_or_else(|| format!("the jsonPath {path} of a column"))?,
            ),
        });
    }
    Ok(columns)
}

fn custom_cell(r#type: &str, value: &Value, now: Timestamp) -> Value {
    match (r#type, value) {
        ("integer", Value::Number(number)) => number.as_i64().map_or(Value::Null, Into::into),
        ("number", Value::Number(number)) => number.as_f64().map_or(Value::Null, Into::into),
        ("boolean", Value::Bool(_)) | ("string", Value::String(_)) => value.clone(),
        ("date", Value::String(text)) => since(text, now).into(),
        ("string", Value::Number(_) | Value::Bool(_)) => value.to_string().into(),
        _ => Value::Null,
    }
}

fn name(object: &Value, _: Timestamp) -> Value {
    object["metadata"]["name"].clone()
}

fn age(object: &Value, now: Timestamp) -> Value {
    ago(object["metadata"]["creationTimestamp"].as_str(), now)
}

/// Returns the columns of an Event of either API.
fn events() -> Vec<Column> {
    vec![
        Column::new("Last Seen", 0, |it, now| {
            let series = it["series"]["lastObservedTime"].as_str();
            let last = field(it, "deprecatedLastTimestamp", "lastTimestamp").as_str();
            let seen = series.or(last).or_else(|| first_seen(it));
            ago(seen, now)
        }),
        Column::new("Type", 0, |it, _| it["type"].clone()),
        Column::new("Reason", 0, |it, _| it["reason"].clone()),
        Column::new("Object", 0, |it, _| {
            let of = field(it, "regarding", "involvedObject");
            let kind = of["kind"].as_str().unwrap_or_default().to_lowercase();
            match of["name"].as_str() {
                Some(name) => json!(format!("{kind}/{name}")),
                None => json!(kind),
            }
        }),
        Column::new("Subobject", 1, |it, _| {
            let of = field(it, "regarding", "involvedObject");
            json!(of["fieldPath"].as_str().unwrap_or_default())
        }),
        Column::new("Source", 1, |it, _| {
            let source = field(it, "deprecatedSource", "source");
            let component = source["component"].as_str();
            let controller = field(it, "reportingController", "reportingComponent").as_str();
            let instance = source["host"].as_str().or(it["reportingInstance"].as_str());
            let parts = [
                component.or(controller),
                instance.filter(|it| !it.is_empty()),
            ];
            json!(parts.into_iter().flatten().collect::<Vec<_>>().join(", "))
        }),
        Column::new("Message", 0, |it, _| {
            let message = field(it, "note", "message").as_str();
            json!(message.unwrap_or_default().trim())
        }),
        Column::new("First Seen", 1, |it, now| ago(first_seen(it), now)),
        Column::new("Count", 1, |it, _| {
            let count = it["series"]["count"].as_i64();
            let count = count.or(field(it, "deprecatedCount", "count").as_i64());
            json!(count.unwrap_or(1))
        }),
        Column {
            format: "name",
            ..Column::new("Name", 1, name)
        },
    ]
}

/// Returns a field of an Event, which has different names in `events.k8s.io/v1` and in `v1`.
fn field<'a>(event: &'a Value, name: &str, core: &str) -> &'a Value {
    event.get(name).unwrap_or(&event[core])
}

fn first_seen(event: &Value) -> Option<&str> {
    let first = field(event, "deprecatedFirstTimestamp", "firstTimestamp").as_str();
    first.or(event["eventTime"].as_str())
}

fn ago(time: Option<&str>, now: Timestamp) -> Value {
    time.map_or("<unknown>".to_owned(), |text| since(text, now))
        .into()
}

/// Returns the time since a timestamp.
fn since(text: &str, now: Timestamp) -> String {
    match text.parse::<Timestamp>() {
        Ok(at) => human(now.as_second() - at.as_second()),
        Err(_) => "<invalid>".to_owned(),
    }
}

/// Formats a duration like `k8s.io/apimachinery/pkg/util/duration`, `HumanDuration`.
fn human(seconds: i64) -> String {
    let (minutes, hours, days) = (seconds / 60, seconds / 3_600, seconds / 86_400);
    let both = |a: i64, a_unit: &str, b: i64, b_unit: &str| match b {
        0 => format!("{a}{a_unit}"),
        b => format!("{a}{a_unit}{b}{b_unit}"),
    };
    match seconds {
        ..-1 => "<invalid>".to_owned(),
        -1 => "0s".to_owned(),
        0..120 => format!("{seconds}s"),
        _ if minutes < 10 => both(minutes, "m", seconds % 60, "s"),
        _ if minutes < 180 => format!("{minutes}m"),
        _ if hours < 8 => both(hours, "h", minutes % 60, "m"),
        _ if hours < 48 => format!("{hours}h"),
        _ if days < 8 => both(days, "d", hours % 24, "h"),
        _ if days < 730 => format!("{days}d"),
        _ if days < 2_920 => both(days / 365, "y", days % 365, "d"),
        _ => format!("{}y", days / 365),
    }
}

fn count(value: &Value) -> i64 {
    value.as_i64().unwrap_or_default()
}

fn entries(object: &Value) -> usize {
    let fields = ["data", "binaryData"].into_iter();
    let fields = fields.filter_map(|field| object[field].as_object());
    fields.map(serde_json::Map::len).sum()
}

fn containers(object: &Value, field: &str) -> Value {
    let containers = object["spec"]["template"]["spec"]["containers"].as_array();
    let names = containers.into_iter().flatten();
    let names: Vec<_> = names.filter_map(|it| it[field].as_str()).collect();
    names.join(",").into()
}

/// Formats labels like `k8s.io/apimachinery/pkg/labels`, `FormatLabels`.
fn labels(labels: &Value) -> Value {
    let mut text = String::new();
    for (key, value) in labels.as_object().into_iter().flatten() {
        let comma = if text.is_empty() { "" } else { "," };
        let _ = write!(text, "{comma}{key}={}", value.as_str().unwrap_or_default());
    }
    or_none(&text)
}

fn ports(service: &Value) -> Value {
    let ports = service["spec"]["ports"].as_array().into_iter().flatten();
    let ports = ports.map(|port| {
        let protocol = port["protocol"].as_str().unwrap_or("TCP");
        match count(&port["nodePort"]) {
            0 => format!("{}/{protocol}", port["port"]),
            node => format!("{}:{node}/{protocol}", port["port"]),
        }
    });
    or_none(&ports.collect::<Vec<_>>().join(","))
}

fn or_none(text: &str) -> Value {
    if text.is_empty() { "<none>" } else { text }.into()
}

#[cfg(test)]
mod tests {
    use super::human;

    /// Values of `HumanDuration`.
    #[test]
    fn durations_are_those_of_kubectl() {
        for (seconds, text) in [
            (-2, "<invalid>"),
            (-1, "0s"),
            (119, "119s"),
            (120, "2m"),
            (121, "2m1s"),
            (600, "10m"),
            (3 * 3_600 - 1, "179m"),
            (3 * 3_600 + 60, "3h1m"),
            (8 * 3_600, "8h"),
            (48 * 3_600, "2d"),
            (49 * 3_600, "2d1h"),
            (8 * 86_400, "8d"),
            (730 * 86_400, "2y"),
            (731 * 86_400, "2y1d"),
            (2_920 * 86_400, "8y"),
        ] {
            assert_eq!(human(seconds), text, "{seconds}");
        }
    }
}
