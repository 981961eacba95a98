//! OTLP/gRPC export: a connection and an exporter for each exported signal.

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

/// Exporters of the exported signals.
#[derive(Default)]
pub(super) struct Exporters {
    pub traces: Option<Again<SpanExporter>>,
    pub logs: Option<Again<LogExporter>>,
    pub metrics: Option<Again<MetricExporter>>,
    /// Targets for the log: `traces to http://...`.
    pub targets: Vec<String>,
    /// Warnings about environment variables, for the log.
    pub warnings: Vec<String>,
}

impl Exporters {
    /// Creates the exporters that the environment and the configured `endpoint` specify. Sends nothing yet. Must be called
    /// within a Tokio runtime.
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

/// Returns the exported signals and their endpoints.
fn wanted(env: &Env, endpoint: Option<&Uri>) -> Result<Vec<(Signal, String)>, Error> {
    let mut wanted = Vec::new();
    for signal in Signal::ALL {
        if let Some(endpoint) = env.endpoint(signal, endpoint)? {
            wanted.push((signal, endpoint));
        }
    }
    Ok(wanted)
}

/// Export target of a signal.
pub(crate) struct Way {
    pub signal: String,
    pub address: String,
    /// The connection, not yet established.
    pub connection: Connection,
}

/// Returns the target of each exported signal, by the rules of [`Exporters::new`].
///
/// # Errors
/// The errors of [`Exporters::new`].
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

/// Sets options that the SDK would otherwise read from the environment by its own rules.
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
            // The existing metadata are the SDK's name and the headers that it read itself: at most a part of ours.
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
