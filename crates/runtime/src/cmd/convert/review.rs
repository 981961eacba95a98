//! `ConversionReview` of `apiextensions.k8s.io/v1`.

use std::{borrow::Cow, collections::HashMap, time::Duration};

use opentelemetry::{KeyValue, metrics::BoundCounter};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use tokio::{task::yield_now, time::Instant};
use tracing::warn;

use crate::{
    api::conversion::Definition,
    telemetry::{
        log::log_once::OutageLog,
        metrics::{Metrics, Timer, table},
    },
};

const API_VERSION: &str = "apiextensions.k8s.io/v1";
const KIND: &str = "ConversionReview";

/// A failure after this time without one is logged again.
const QUIET: Duration = Duration::from_mins(1);

/// Converts the objects of reviews, and counts them.
pub struct Reviews {
    definitions: Vec<Definition>,
    /// By kind and desired `apiVersion`.
    counts: HashMap<(String, String), Counts>,
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
    objects: Option<Vec<&'a RawValue>>,
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
    pub fn new(definitions: Vec<Definition>, metrics: &Metrics) -> Self {
        let mut counts = HashMap::new();
        for definition in definitions.iter().filter(|it| it.is_converted()) {
            let spec = &definition.crd().spec;
            for version in &spec.versions {
                let count = |result| {
                    let labels = [
                        KeyValue::new("kind", spec.names.kind.clone()),
                        KeyValue::new("result", result),
                        KeyValue::new("version", version.name.clone()),
                    ];
                    metrics.counter(&table::CONVERSIONS, &labels)
                };
                let of_version = Counts {
                    converted: count("converted"),
                    failed: count("failed"),
                };
                let version = format!("{}/{}", spec.group, version.name);
                counts.insert((spec.names.kind.clone(), version), of_version);
            }
        }
        Self {
            definitions,
            counts,
            time: metrics.timer(&table::CONVERSION_TIME, &[]),
            failures: Mutex::new(OutageLog::new(QUIET)),
        }
    }

    /// Returns the review with its response.
    ///
    /// # Errors
    /// The body is not a review of this version.
    pub async fn answer(&self, body: &[u8]) -> Result<Vec<u8>, String> {
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
        for object in request.objects.unwrap_or_default() {
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
                if let Some(lasting) = self.failures.lock().is_due(&message) {
                    warn!("{message}{lasting}");
                }
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

    fn convert(&self, object: &RawValue, api_version: &str) -> Result<Box<RawValue>, String> {
        let kind: TypeMeta = serde_json::from_str(object.get())
            .map_err(|error| format!("an object of the review has no kind: {error}"))?;
        let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
        let definition = self.definitions.iter().find(|it| {
            let spec = &it.crd().spec;
            spec.group == group && spec.names.kind == *kind.kind
        });
        let definition = definition
            .ok_or_else(|| format!("this program has no CRD of {} in {api_version}", kind.kind))?;
        let converted = definition.convert_text(object, version);
        let key = (
            definition.crd().spec.names.kind.clone(),
            api_version.to_owned(),
        );
        if let Some(counts) = self.counts.get(&key) {
            match converted {
                Ok(_) => counts.converted.add(1),
                Err(_) => counts.failed.add(1),
            }
        }
        converted
    }
}
