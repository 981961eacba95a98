//! Telemetry that a collector has received, read from the OTLP/JSON of its file exporter. Fields have OTLP's names, and only
//! fields that tests need are read. Times are nanoseconds since 1970, ids are hex digits. Attributes keep their type:
//! `span.attributes["http.response.status_code"] == 409` distinguishes a number from a string.
#![allow(dead_code, reason = "each test file uses its part of this")]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(clippy::struct_field_names, reason = "OTLP's names")]

use std::{collections::BTreeMap, fs, path::Path, sync::Arc, time::Duration};

use serde::{Deserialize, Deserializer, de::DeserializeOwned};
use serde_json::Value;

/// Attributes by name.
pub type Attributes = BTreeMap<String, Value>;

/// All received telemetry, in order of arrival.
#[derive(Debug, Default)]
pub struct Received {
    pub spans: Vec<Span>,
    pub logs: Vec<LogRecord>,
    /// One entry for each export, so a cumulative metric occurs repeatedly.
    pub metrics: Vec<Metric>,
}

/// Sender of an item.
#[derive(Clone, Debug, Default)]
pub struct Origin {
    /// Resource attributes, such as `service.name`.
    pub resource: Arc<Attributes>,
    /// Name of the instrumentation scope.
    pub scope: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Span {
    pub trace_id: String,
    pub span_id: String,
    /// Empty for a root.
    pub parent_span_id: String,
    pub name: String,
    pub kind: Kind,
    #[serde(deserialize_with = "integer")]
    pub start_time_unix_nano: u64,
    #[serde(deserialize_with = "integer")]
    pub end_time_unix_nano: u64,
    #[serde(deserialize_with = "attributes")]
    pub attributes: Attributes,
    pub events: Vec<Event>,
    pub links: Vec<Link>,
    pub status: Status,
    #[serde(skip)]
    pub origin: Origin,
}

/// Span kind: the side of a call.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq)]
#[serde(from = "usize")]
pub enum Kind {
    #[default]
    Unspecified,
    Internal,
    Server,
    Client,
    Producer,
    Consumer,
}

impl From<usize> for Kind {
    fn from(number: usize) -> Self {
        use Kind::{Client, Consumer, Internal, Producer, Server, Unspecified};
        [Unspecified, Internal, Server, Client, Producer, Consumer][number]
    }
}

/// Result of a span.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Status {
    /// 0 unset, 1 ok, 2 error.
    pub code: u8,
    pub message: String,
}

/// Event during a span.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Event {
    pub name: String,
    #[serde(deserialize_with = "attributes")]
    pub attributes: Attributes,
}

/// Reference to a related span, possibly of another trace.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Link {
    pub trace_id: String,
    pub span_id: String,
    #[serde(deserialize_with = "attributes")]
    pub attributes: Attributes,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct LogRecord {
    /// Empty outside a span.
    pub trace_id: String,
    pub span_id: String,
    #[serde(deserialize_with = "integer")]
    pub observed_time_unix_nano: u64,
    /// For example `INFO`.
    pub severity_text: String,
    #[serde(deserialize_with = "any_value")]
    pub body: Value,
    #[serde(deserialize_with = "attributes")]
    pub attributes: Attributes,
    #[serde(skip)]
    pub origin: Origin,
}

/// A metric as of one export.
#[derive(Debug, Deserialize)]
pub struct Metric {
    pub name: String,
    #[serde(default)]
    pub description: String,
    #[serde(default)]
    pub unit: String,
    #[serde(flatten)]
    pub data: Data,
    #[serde(skip)]
    pub origin: Origin,
}

/// Type of a metric, with its data points.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Data {
    Sum(Points),
    Gauge(Points),
    Histogram(Points),
}

/// The data points of a metric.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Points {
    #[serde(default)]
    pub data_points: Vec<Point>,
    /// 1 delta, 2 cumulative; 0 for a gauge.
    #[serde(default)]
    pub aggregation_temporality: u8,
    /// Whether a sum never decreases.
    #[serde(default)]
    pub is_monotonic: bool,
}

/// The value of one set of attributes.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Point {
    #[serde(deserialize_with = "attributes")]
    pub attributes: Attributes,
    /// A sum's or gauge's number, or a histogram's sum.
    #[serde(alias = "asInt", alias = "asDouble", alias = "sum")]
    #[serde(deserialize_with = "float")]
    pub value: f64,
    /// Number of values in a histogram.
    #[serde(deserialize_with = "integer")]
    pub count: u64,
    /// Number of values in each bucket, up to the bound with the same index. The last bucket has no bound.
    #[serde(deserialize_with = "integers")]
    pub bucket_counts: Vec<u64>,
    pub explicit_bounds: Vec<f64>,
    pub exemplars: Vec<Exemplar>,
}

/// Trace of one recorded value.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Exemplar {
    pub trace_id: String,
    pub span_id: String,
}

impl Received {
    /// Reads the files in `folder`. Ignores a last line that is incomplete.
    pub fn read(folder: &Path) -> Self {
        Self {
            spans: read(&folder.join("traces.json"), |span: &mut Span, origin| {
                span.origin = origin;
            }),
            logs: read(&folder.join("logs.json"), |log: &mut LogRecord, origin| {
                log.origin = origin;
            }),
            metrics: read(
                &folder.join("metrics.json"),
                |metric: &mut Metric, origin| {
                    metric.origin = origin;
                },
            ),
        }
    }

    /// Appends telemetry that arrived later.
    pub fn extend(&mut self, later: Self) {
        self.spans.extend(later.spans);
        self.logs.extend(later.logs);
        self.metrics.extend(later.metrics);
    }

    /// Counts the items by name, for error messages.
    pub fn overview(&self) -> String {
        let spans = self.spans.iter().map(|it| it.name.clone());
        let logs = self.logs.iter().map(|it| it.body.to_string());
        let metrics = self.metrics.iter().map(|it| it.name.clone());
        let count = |names: &mut dyn Iterator<Item = String>| {
            let mut counts = BTreeMap::<String, usize>::new();
            names.for_each(|name| *counts.entry(name).or_default() += 1);
            counts
        };
        format!(
            "spans {:?}, logs {:?}, metrics {:?}",
            count(&mut { spans }),
            count(&mut { logs }),
            count(&mut { metrics })
        )
    }

    /// Returns the last export of a metric.
    pub fn metric(&self, name: &str) -> Option<&Metric> {
        self.metrics.iter().rfind(|metric| metric.name == name)
    }
}

impl Span {
    pub fn duration(&self) -> Duration {
        Duration::from_nanos(self.end_time_unix_nano - self.start_time_unix_nano)
    }

    /// The status message, if it ended in an error.
    pub fn error(&self) -> Option<&str> {
        (self.status.code == 2).then_some(&self.status.message)
    }
}

impl Metric {
    pub fn points(&self) -> &[Point] {
        let (Data::Sum(points) | Data::Gauge(points) | Data::Histogram(points)) = &self.data;
        &points.data_points
    }

    /// Returns the data point that has all these attributes.
    pub fn point(&self, attributes: &[(&str, &str)]) -> Option<&Point> {
        self.points().iter().find(|point| {
            let has = |(name, value): &(&str, &str)| {
                point.attributes.get(*name).is_some_and(|it| it == *value)
            };
            attributes.iter().all(has)
        })
    }
}

/// Export of any of the three signals.
#[derive(Deserialize)]
struct Export<T> {
    #[serde(alias = "resourceSpans", alias = "resourceLogs")]
    #[serde(alias = "resourceMetrics")]
    resources: Vec<OfResource<T>>,
}

#[derive(Deserialize)]
struct OfResource<T> {
    #[serde(default)]
    resource: Resource,
    #[serde(alias = "scopeSpans", alias = "scopeLogs", alias = "scopeMetrics")]
    scopes: Vec<OfScope<T>>,
}

#[derive(Default, Deserialize)]
struct Resource {
    #[serde(default, deserialize_with = "attributes")]
    attributes: Attributes,
}

#[derive(Deserialize)]
struct OfScope<T> {
    #[serde(default)]
    scope: Scope,
    #[serde(alias = "spans", alias = "logRecords", alias = "metrics")]
    items: Vec<T>,
}

#[derive(Default, Deserialize)]
struct Scope {
    #[serde(default)]
    name: String,
}

fn read<T: DeserializeOwned>(file: &Path, set: impl Fn(&mut T, Origin)) -> Vec<T> {
    let text = fs::read_to_string(file).unwrap_or_default();
    let lines = text.split_inclusive('\n').filter(|it| it.ends_with('\n'));
    let mut all = Vec::new();
    for line in lines {
        let export: Export<T> = serde_json::from_str(line).unwrap();
        for of in export.resources {
            let resource = Arc::new(of.resource.attributes);
            for of in of.scopes {
                let origin = Origin {
                    resource: Arc::clone(&resource),
                    scope: of.scope.name,
                };
                all.extend(of.items.into_iter().map(|mut item| {
                    set(&mut item, origin.clone());
                    item
                }));
            }
        }
    }
    all
}

#[derive(Deserialize)]
struct KeyValue {
    key: String,
    #[serde(default, deserialize_with = "any_value")]
    value: Value,
}

fn attributes<'de, D: Deserializer<'de>>(from: D) -> Result<Attributes, D::Error> {
    let all = Vec::<KeyValue>::deserialize(from)?;
    Ok(all.into_iter().map(|it| (it.key, it.value)).collect())
}

fn any_value<'de, D: Deserializer<'de>>(from: D) -> Result<Value, D::Error> {
    Ok(plain(&Value::deserialize(from)?))
}

/// Returns the value within OTLP's `{"intValue": "3"}`.
fn plain(value: &Value) -> Value {
    let Some((kind, value)) = value.as_object().and_then(|it| it.iter().next()) else {
        return Value::Null;
    };
    let values = || value["values"].as_array().into_iter().flatten();
    match kind.as_str() {
        "intValue" => serde_json::from_str(value.as_str().unwrap()).unwrap(),
        "arrayValue" => values().map(plain).collect(),
        "kvlistValue" => values()
            .map(|it| (it["key"].as_str().unwrap().to_owned(), plain(&it["value"])))
            .collect(),
        _ => value.clone(),
    }
}

/// Number in OTLP/JSON, which encodes 64-bit integers as strings.
#[derive(Deserialize)]
#[serde(untagged)]
enum Number {
    Text(String),
    Float(f64),
}

fn parse<T: std::str::FromStr, E: serde::de::Error>(number: &Number) -> Result<T, E> {
    match number {
        Number::Text(text) => text.parse(),
        Number::Float(float) => float.to_string().parse(),
    }
    .map_err(|_| E::custom("not such a number"))
}

fn integer<'de, D: Deserializer<'de>>(from: D) -> Result<u64, D::Error> {
    parse(&Number::deserialize(from)?)
}

fn integers<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<u64>, D::Error> {
    let all = Vec::<Number>::deserialize(from)?;
    all.iter().map(parse).collect()
}

fn float<'de, D: Deserializer<'de>>(from: D) -> Result<f64, D::Error> {
    parse(&Number::deserialize(from)?)
}
