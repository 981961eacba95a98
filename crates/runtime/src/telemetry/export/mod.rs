//! The export by OTLP/gRPC: a connection for each exported signal, and its exporter.

pub(crate) mod again;
mod connection;
pub(crate) mod env;
pub(crate) mod outage;
pub(crate) mod resource;
mod trust;

use std::mem;

use http::Uri;
use opentelemetry_otlp::{
    Compression, LogExporter, MetricExporter, SpanExporter, WithExportConfig, WithTonicConfig,
};
use tonic::{Request, metadata::MetadataMap, transport::Channel};

use super::{
    error::Error,
    export::{
        again::Again,
        connection::Connection,
        env::{Env, Signal},
        trust::Trust,
    },
};

/// An exporter for each signal that goes anywhere.
#[derive(Default)]
pub(super) struct Exporters {
    pub traces: Option<Again<SpanExporter>>,
    pub logs: Option<Again<LogExporter>>,
    pub metrics: Option<Again<MetricExporter>>,
    /// Where they go, for the log: `traces to http://...`.
    pub targets: Vec<String>,
    /// What is wrong with the environment, for the log.
    pub warnings: Vec<String>,
}

impl Exporters {
    /// What the environment and `endpoint`, from the configuration, ask for. Nothing is sent yet. Must be
    /// called within a Tokio runtime.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn new(env: &Env, endpoint: Option<&Uri>) -> Result<Self, Error> {
        let wanted = wanted(env, endpoint)?;
        let mut exporters = Self::default();
        if wanted.is_empty() {
            return Ok(exporters);
        }
        let signals: Vec<_> = wanted.iter().map(|(signal, _)| *signal).collect();
        exporters.warnings = env.warnings(&signals)?;
        for (signal, endpoint) in wanted {
            exporters.targets.push(format!("{signal} to {endpoint}"));
            let connection = connection(env, signal, endpoint)?;
            let (channel, breaks) = (connection.channel(), connection.breaks());
            match signal {
                Signal::Traces => {
                    let exporter = set(env, signal, channel, SpanExporter::builder().with_tonic());
                    exporters.traces = Some(Again::new(exporter.build()?, breaks));
                }
                Signal::Logs => {
                    let exporter = set(env, signal, channel, LogExporter::builder().with_tonic());
                    exporters.logs = Some(Again::new(exporter.build()?, breaks));
                }
                Signal::Metrics => {
                    let exporter = MetricExporter::builder().with_temporality(env.temporality());
                    let exporter = set(env, signal, channel, exporter.with_tonic());
                    exporters.metrics = Some(Again::new(exporter.build()?, breaks));
                }
            }
        }
        Ok(exporters)
    }
}

/// The signals that go anywhere, and where.
fn wanted(env: &Env, endpoint: Option<&Uri>) -> Result<Vec<(Signal, String)>, Error> {
    let mut wanted = Vec::new();
    for signal in Signal::ALL {
        if let Some(endpoint) = env.endpoint(signal, endpoint)? {
            wanted.push((signal, endpoint));
        }
    }
    Ok(wanted)
}

/// The way that a signal would go.
pub(crate) struct Way {
    pub signal: String,
    /// Where it leads.
    pub address: String,
    /// The connection, not made yet.
    pub connection: Connection,
}

/// The way of each signal that goes anywhere, by what [`Exporters::new`] goes by.
///
/// # Errors
/// Those of that.
pub(super) fn ways(env: &Env, endpoint: Option<&Uri>) -> Result<Vec<Way>, Error> {
    let wanted = wanted(env, endpoint)?;
    let signals: Vec<_> = wanted.iter().map(|(signal, _)| *signal).collect();
    env.warnings(&signals)?;
    let ways = wanted.into_iter().map(|(signal, address)| {
        Ok(Way {
            signal: signal.to_string(),
            connection: connection(env, signal, address.clone())?,
            address,
        })
    });
    ways.collect()
}

/// What the SDK would read from the environment by rules of its own.
fn set<E: WithTonicConfig + WithExportConfig>(
    env: &Env,
    signal: Signal,
    channel: Channel,
    exporter: E,
) -> E {
    let headers = env.headers(signal);
    let exporter = exporter
        .with_channel(channel)
        .with_timeout(env.timeout(signal))
        .with_interceptor(move |mut request: Request<()>| {
            // What there is already is the SDK's name, and what it read by itself: a part of ours at most.
            let metadata = request.metadata_mut();
            let mut all = mem::take(metadata).into_headers();
            all.extend(headers.clone());
            *metadata = MetadataMap::from_headers(all);
            Ok(request)
        });
    if env.compresses(signal) {
        exporter.with_compression(Compression::Gzip)
    } else {
        exporter
    }
}

fn connection(env: &Env, signal: Signal, endpoint: String) -> Result<Connection, Error> {
    let tls = endpoint.starts_with("https://");
    let trust = tls.then(|| Trust::new(env, signal)).transpose()?;
    let connection = Connection::new(endpoint, trust, env.timeout(signal));
    connection.map_err(|error| Error::Connection {
        signal: signal.to_string(),
        error,
    })
}
