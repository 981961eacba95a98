//! `ConversionReview` of `apiextensions.k8s.io/v1`.

use std::{borrow::Cow, collections::HashMap, fmt, time::Duration};

use opentelemetry::{KeyValue, metrics::BoundCounter};
use parking_lot::Mutex;
use serde::{
    Deserialize, Deserializer, Serialize,
    de::{Error as _, SeqAccess, Visitor},
};
use serde_json::value::RawValue;
use tokio::{task::yield_now, time::Instant};
use tracing::warn;

use crate::{
    api::conversion::Definition,
    telemetry::{
        log_once::OutageLog,
        metrics::{Metrics, Timer, table},
    },
};

const API_VERSION: &str = "apiextensions.k8s.io/v1";
const KIND: &str = "ConversionReview";

/// A failure after this time without one is logged again.
const QUIET: Duration = Duration::from_mins(1);

/// Maximum number of objects of a review: a reference to one takes more memory than the text of a small one.
const MAX_OBJECTS: usize = 1000;

/// The label of versions and kinds that this program does not have. The names in a review are the client's: as labels, they
/// would have no limit.
const OTHER: &str = "other";

/// Converts the objects of reviews, and counts them.
pub(super) struct Reviews {
    definitions: Vec<Definition>,
    /// By kind and desired `apiVersion`.
    counts: HashMap<(String, String), Counts>,
    /// Failures for other versions, by kind.
    other_versions: HashMap<String, BoundCounter<u64>>,
    /// Failures for other kinds.
    other: BoundCounter<u64>,
    refused: BoundCounter<u64>,
    time: Timer,
    failures: Mutex<OutageLog>,
}

struct Counts {
    converted: BoundCounter<u64>,
    failed: BoundCounter<u64>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Review<'a> {
    api_version: Option<String>,
    kind: Option<String>,
    #[serde(borrow)]
    request: Option<Request<'a>>,
}

#[derive(Deserialize)]
struct Request<'a> {
    uid: String,
    #[serde(rename = "desiredAPIVersion")]
    version: String,
    #[serde(borrow)]
    objects: Option<Objects<'a>>,
}

struct Objects<'a>(Vec<&'a RawValue>);

impl<'de: 'a, 'a> Deserialize<'de> for Objects<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Limited;

        impl<'de> Visitor<'de> for Limited {
            type Value = Vec<&'de RawValue>;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(formatter, "at most {MAX_OBJECTS} objects")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut all: A) -> Result<Self::Value, A::Error> {
                let mut objects = Vec::new();
                while let Some(object) = all.next_element()? {
                    if objects.len() == MAX_OBJECTS {
                        let text = format!("more than {MAX_OBJECTS} objects");
                        return Err(A::Error::custom(text));
                    }
                    objects.push(object);
                }
                Ok(objects)
            }
        }

        deserializer.deserialize_seq(Limited).map(Self)
    }
}

#[derive(Deserialize)]
struct TypeMeta<'a> {
    #[serde(borrow)]
    kind: Cow<'a, str>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Answer {
    api_version: &'static str,
    kind: &'static str,
    response: Response,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Response {
    uid: String,
    converted_objects: Vec<Box<RawValue>>,
    result: Status,
}

#[derive(Serialize)]
struct Status {
    status: &'static str,
    #[serde(skip_serializing_if = "String::is_empty")]
    message: String,
}

impl Reviews {
    pub(super) fn new(definitions: Vec<Definition>, metrics: &Metrics) -> Self {
        let count = |kind: &str, version: &str, result| {
            let labels = [
                KeyValue::new("kind", kind.to_owned()),
                KeyValue::new("result", result),
                KeyValue::new("version", version.to_owned()),
            ];
            metrics.counter(&table::CONVERSIONS, &labels)
        };
        let (mut counts, mut other_versions) = (HashMap::new(), HashMap::new());
        for definition in definitions.iter().filter(|it| it.is_converted()) {
            let spec = &definition.crd().spec;
            let kind = &spec.names.kind;
            for version in &spec.versions {
                let of_version = Counts {
                    converted: count(kind, &version.name, "converted"),
                    failed: count(kind, &version.name, "failed"),
                };
                let version = format!("{}/{}", spec.group, version.name);
                counts.insert((kind.clone(), version), of_version);
            }
            other_versions.insert(kind.clone(), count(kind, OTHER, "failed"));
        }
        Self {
            definitions,
            counts,
            other_versions,
            other: count(OTHER, OTHER, "failed"),
            refused: count(OTHER, OTHER, "refused"),
            time: metrics.timer(&table::CONVERSION_TIME, &[]),
            failures: Mutex::new(OutageLog::new(QUIET)),
        }
    }

    /// Returns the review with its response.
    ///
    /// # Errors
    /// The body is not a review of this version.
    pub(super) async fn answer(&self, body: &[u8]) -> Result<Vec<u8>, String> {
        let review: Review =
            serde_json::from_slice(body).map_err(|error| format!("not a {KIND}: {error}"))?;
        let is_review = review.api_version.as_deref() == Some(API_VERSION);
        if !is_review || review.kind.as_deref() != Some(KIND) {
            return Err(format!("not a {KIND} of {API_VERSION}"));
        }
        let request = review
            .request
            .ok_or_else(|| format!("a {KIND} without request"))?;
        let began = Instant::now();
        let mut converted = Vec::new();
        let mut failure = None;
        for object in request.objects.map_or_else(Vec::new, |it| it.0) {
            match self.convert(object, &request.version) {
                Ok(object) => converted.push(object),
                Err(error) => {
                    failure = Some(error);
                    break;
                }
            }
            // Probes and other reviews need not wait for the end of a long list.
            yield_now().await;
        }
        self.time.record(began.elapsed());
        let result = match failure {
            None => Status {
                status: "Success",
                message: String::new(),
            },
            Some(message) => {
                self.warn(&message);
                converted.clear();
                Status {
                    status: "Failure",
                    message,
                }
            }
        };
        let response = Response {
            uid: request.uid,
            converted_objects: converted,
            result,
        };
        serde_json::to_vec(&Answer {
            api_version: API_VERSION,
            kind: KIND,
            response,
        })
        .map_err(|error| error.to_string())
    }

    /// Counts a review that is not answered, and logs why.
    pub(super) fn refused(&self, why: &str) {
        self.refused.add(1);
        self.warn(&format!("refused a review: {why}"));
    }

    fn warn(&self, message: &str) {
        if let Some(lasting) = self.failures.lock().is_due(message) {
            warn!("{message}{lasting}");
        }
    }

    fn convert(&self, object: &RawValue, api_version: &str) -> Result<Box<RawValue>, String> {
        let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
        let found = self.definition(object, api_version, group);
        let definition = found.inspect_err(|_| self.other.add(1))?;
        let converted = definition.convert_text(object, version);
        let kind = &definition.crd().spec.names.kind;
        let counts = self.counts.get(&(kind.clone(), api_version.to_owned()));
        match (counts, &converted) {
            (Some(counts), Ok(_)) => counts.converted.add(1),
            (Some(counts), Err(_)) => counts.failed.add(1),
            (None, _) => self.other_versions.get(kind).unwrap_or(&self.other).add(1),
        }
        converted
    }

    fn definition(
        &self,
        object: &RawValue,
        api_version: &str,
        group: &str,
    ) -> Result<&Definition, String> {
        let kind: TypeMeta = serde_json::from_str(object.get())
            .map_err(|error| format!("an object of the review has no kind: {error}"))?;
        let definition = self.definitions.iter().find(|it| {
            let spec = &it.crd().spec;
            spec.group == group && spec.names.kind == *kind.kind
        });
        definition
            .ok_or_else(|| format!("this program has no CRD of {} in {api_version}", kind.kind))
    }
}
