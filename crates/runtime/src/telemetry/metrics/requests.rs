//! Metrics of the requests to the API server.

use std::{sync::Arc, time::Duration};

use http::Method;
use opentelemetry::{KeyValue, metrics::Counter};

use super::{Metrics, table, timer::Timer};

/// The HTTP methods in use, each with its status code on success.
const METHODS: [(Method, u16); 5] = [
    (Method::GET, 200),
    (Method::POST, 201),
    (Method::PUT, 200),
    (Method::PATCH, 200),
    (Method::DELETE, 200),
];

/// Instruments for the requests to one API server; clones share them.
#[derive(Clone, Debug)]
pub(crate) struct Requests(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    total: Counter<u64>,
    host: KeyValue,
    timers: [(Method, Timer); METHODS.len()],
}

impl Requests {
    /// Creates the instruments for the API server at `host`.
    pub(crate) fn new(metrics: &Metrics, host: &str) -> Self {
        let host = KeyValue::new("host", host.to_owned());
        let timers = METHODS.map(|(method, code)| {
            let verb = KeyValue::new("verb", method.to_string());
            let timer = metrics.timer(&table::REQUEST_TIME, &[host.clone(), verb]);
            (method, code, timer)
        });
        let requests = Self(Arc::new(Shared {
            total: metrics.labelled(&table::REQUESTS),
            host,
            timers: timers.clone().map(|(method, _, timer)| (method, timer)),
        }));
        for (method, code, _) in timers {
            for code in [Some(code), None] {
                requests.count(&method, code, 0);
            }
        }
        requests
    }

    /// Counts a request that ended after `elapsed` with the status `code`, or without a response (`None`).
    pub(crate) fn ended(&self, method: &Method, code: Option<u16>, elapsed: Duration) {
        self.count(method, code, 1);
        if let Some((_, timer)) = self.0.timers.iter().find(|(name, _)| name == method) {
            timer.record(elapsed);
        }
    }

    fn count(&self, method: &Method, code: Option<u16>, times: u64) {
        // As client-go writes it.
        let code = code.map_or_else(|| "<error>".to_owned(), |code| code.to_string());
        let labels = [
            KeyValue::new("code", code),
            self.0.host.clone(),
            KeyValue::new("method", method.to_string()),
        ];
        self.0.total.add(times, &labels);
    }
}
