//! Objects that are read live, without a watch.
//!
//! The cache contains the last result for each object, or that the object is missing. All controllers share it. It has at most
//! [`CAPACITY`] results of each resource type; the oldest makes room for another. If the plans need more of them, each plan reads
//! them again, so the first removal is logged.

use std::{
    collections::HashMap,
    sync::{Arc, Once},
    time::Duration,
};

use futures::{
    FutureExt as _,
    future::{BoxFuture, Shared},
};
use kube::{Error, Resource as _, api::GetParams, core::Request};
use opentelemetry::{KeyValue, metrics::BoundCounter};
use parking_lot::Mutex;
use tokio::time::{Instant, timeout};
use tracing::warn;

use crate::{
    api::{
        failure::{brief, root_cause},
        key::Key,
        object::{Cached, Incoming, Object},
        status::{is_not_installed, retry_after},
    },
    cache::store::{Owners, Snapshot},
    client::context::ClientContext,
    telemetry::metrics::{Metrics, table},
};

/// Maximum number of results of one resource type.
const CAPACITY: usize = 10_000;

/// Timeout of a read.
pub(crate) const READ_TIMEOUT: Duration = Duration::from_secs(10);

/// Results of live reads of one resource type.
pub(crate) struct LiveReads<V> {
    shared: Arc<ClientContext>,
    owners: Owners,
    results: Mutex<HashMap<Key, Known<V>>>,
    is_full: Once,
    running: Mutex<HashMap<Key, Running<V>>>,
    counts: Counts,
}

/// A result, and when its request was sent.
struct Known<V> {
    sent: Instant,
    object: Found<V>,
}

/// `None`: the object is missing.
type Found<V> = Option<Snapshot<V>>;

/// A read that other reconciles join.
struct Running<V> {
    begun: Instant,
    reading: Reading<V>,
}

/// A read in progress.
pub(crate) type Reading<V> = Shared<BoxFuture<'static, Result<Found<V>, ReadError>>>;

/// Error of a read.
#[derive(Clone, Debug)]
pub(crate) enum ReadError {
    /// The permission is missing. With the message of the API server.
    Forbidden(String),
    /// No response, or another error. The duration is the delay that the API server requests, or zero.
    Failed(String, Duration),
}

struct Counts {
    found: BoundCounter<u64>,
    missing: BoundCounter<u64>,
    forbidden: BoundCounter<u64>,
    failed: BoundCounter<u64>,
}

impl<V: Cached> LiveReads<V> {
    pub(crate) fn new(shared: &Arc<ClientContext>, owners: &Owners, metrics: &Metrics) -> Self {
        let count = |result| {
            let labels = [
                KeyValue::new("kind", V::KIND.kind),
                KeyValue::new("result", result),
            ];
            metrics.counter(&table::LIVE_READS, &labels)
        };
        Self {
            shared: Arc::clone(shared),
            owners: owners.clone(),
            results: Mutex::default(),
            is_full: Once::new(),
            running: Mutex::default(),
            counts: Counts {
                found: count("found"),
                missing: count("missing"),
                forbidden: count("forbidden"),
                failed: count("failed"),
            },
        }
    }

    /// Returns the last result, unless its request was sent longer than `max_age` ago.
    pub(crate) fn get(&self, key: &Key, max_age: Duration) -> Option<Found<V>> {
        let results = self.results.lock();
        let known = results.get(key).filter(|it| it.sent.elapsed() <= max_age);
        known.map(|it| it.object.clone())
    }

    /// Reads an object. Concurrent reads of it are one request.
    pub(crate) fn read(self: &Arc<Self>, key: &Key) -> Reading<V> {
        let mut running = self.running.lock();
        // A read that no reconcile awaits any more makes no progress.
        running.retain(|_, it| it.begun.elapsed() < READ_TIMEOUT);
        let begin = || {
            let (this, key) = (Arc::clone(self), key.clone());
            let reading = async move {
                let result = this.request(&key).await;
                this.running.lock().remove(&key);
                result
            };
            Running {
                begun: Instant::now(),
                reading: reading.boxed().shared(),
            }
        };
        let running = running.entry(key.clone()).or_insert_with(begin);
        running.reading.clone()
    }

    async fn request(&self, key: &Key) -> Result<Found<V>, ReadError> {
        let sent = Instant::now();
        let namespace = key.namespace_if_any();
        let result = if is_possible(key.name()) && namespace.is_none_or(is_possible) {
            self.send(key).await
        } else {
            Ok(None)
        };
        let count = match &result {
            Ok(Some(_)) => &self.counts.found,
            Ok(None) => &self.counts.missing,
            Err(ReadError::Forbidden(_)) => &self.counts.forbidden,
            Err(ReadError::Failed(..)) => &self.counts.failed,
        };
        count.add(1);
        let object = result?;
        self.keep(key, sent, object.clone());
        Ok(object)
    }

    async fn send(&self, key: &Key) -> Result<Found<V>, ReadError> {
        let request = Request::new(Object::<V>::url_path(&(), key.namespace_if_any()));
        let params = GetParams::default();
        let request = if V::METADATA_ONLY {
            request.get_metadata(key.name(), &params)
        } else {
            request.get(key.name(), &params)
        };
        let failed = |text: String| ReadError::Failed(text, Duration::ZERO);
        let request = request.map_err(|error| failed(error.to_string()))?;
        let answer = timeout(READ_TIMEOUT, self.shared.client.request(request)).await;
        let late = |_| failed(format!("no answer in {READ_TIMEOUT:?}"));
        match answer.map_err(late)? {
            Ok(Incoming::<V>(read)) => {
                let object = read.map_err(|(_, panicked)| failed(panicked.to_string()))?;
                Ok(Some(self.owners.snapshot(object).1))
            }
            Err(Error::Api(status)) if is_not_installed(&status) => {
                Err(failed(format!("the {} are not installed", V::KIND.plural)))
            }
            Err(Error::Api(status)) if status.code == 404 => Ok(None),
            Err(Error::Api(status)) if status.code == 403 => {
                Err(ReadError::Forbidden(brief(&status.message)))
            }
            Err(error) => {
                let asked = retry_after(&error).unwrap_or_default();
                Err(ReadError::Failed(root_cause(&error), asked))
            }
        }
    }

    pub(crate) fn keep(&self, key: &Key, sent: Instant, object: Found<V>) {
        let mut results = self.results.lock();
        if results.len() >= CAPACITY && !results.contains_key(key) {
            self.is_full.call_once(|| {
                warn!(
                    "over {CAPACITY} {} are read live: results are removed and read again; watch them instead, if most of \
                     them are read",
                    V::KIND.plural
                );
            });
            let oldest = results.iter().min_by_key(|(_, known)| known.sent);
            let oldest = oldest.map(|(key, _)| key.clone());
            oldest.map(|key| results.remove(&key));
        }
        results.insert(key.clone(), Known { sent, object });
    }
}

/// Whether an object may have this name or namespace, which a user may have written: it is a part of the URL. See `ValidatePathSegmentName` in
/// `k8s.io/apimachinery`.
fn is_possible(name: &str) -> bool {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-._~:@!$&'()*+,;=".contains(c);
    !matches!(name, "" | "." | "..") && name.chars().all(is_plain)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use std::convert::Infallible;

    use http::{Request as Sent, Response};
    use k8s_openapi::api::storage::v1::StorageClass;
    use kube::{Client, client::Body};
    use opentelemetry_sdk::Resource;
    use serde_json::json;

    use super::*;
    use crate::{
        api::exists::Exists,
        config::{app::tests::APP, environment::Host},
    };

    /// Each read is counted by its result.
    #[tokio::test]
    async fn reads_are_counted_by_their_results() {
        let service = tower::service_fn(|request: Sent<Body>| async move {
            let name = request.uri().path().rsplit('/').next().unwrap().to_owned();
            // The name of each object begins with the status code of the response.
            let code: u16 = name[..3].parse().unwrap();
            let object = json!({
                "metadata": { "name": name, "uid": "u", "resourceVersion": "1" },
                "code": code, "details": { "name": name },
            });
            let answer = Response::builder().status(code);
            let answer = answer.body(Body::from(object.to_string().into_bytes()));
            Ok::<_, Infallible>(answer.unwrap())
        });
        let (metrics, _provider) = Metrics::new(&APP, Resource::builder_empty().build(), None);
        let shared = Arc::new(ClientContext {
            app: &APP,
            host: Host::of_this_process(),
            client: Client::new(service, "default"),
        });
        let reads = LiveReads::<Exists<StorageClass>>::new(&shared, &Owners::default(), &metrics);
        let reads = Arc::new(reads);
        for name in [
            "200", "404-a", "404-b", "403-a", "403-b", "403-c", "500", "500-a", "503", "400",
        ] {
            let _ = reads.read(&Key::cluster(name)).await;
        }
        let (_, text) = metrics.scrape(None);
        let count = |result: &str| {
            let mut lines = text.lines().filter(|line| {
                line.contains("_live_reads_total{") && line.contains(r#"kind="StorageClass""#)
            });
            let line = lines.find(|line| line.contains(&format!("result=\"{result}\"")));
            line.unwrap().rsplit_once(' ').unwrap().1.to_owned()
        };
        let counts = ["found", "missing", "forbidden", "failed"].map(count);
        assert_eq!(counts, ["1", "2", "3", "4"], "{text}");
    }

    #[test]
    fn a_name_is_one_segment_of_the_path() {
        for name in ["a", "a.b-c", "system:node:a"] {
            assert!(is_possible(name), "{name}");
        }
        for name in [
            "", ".", "..", "a/status", "../b", "a%2fb", "a?b", "a#b", "a b", "é",
        ] {
            assert!(!is_possible(name), "{name}");
        }
    }
}
