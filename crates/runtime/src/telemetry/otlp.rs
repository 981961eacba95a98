//! The way out by OTLP/gRPC: a connection for each signal that goes anywhere, and its exporter.
//!
//! The connections are ours, since the SDK's own have no limit for being made: a collector that is a black
//! hole would hold a flush for two minutes.

use std::{fs, mem, time::Duration};

use http::Uri;
use opentelemetry_otlp::{
    Compression, LogExporter, MetricExporter, SpanExporter, WithExportConfig, WithTonicConfig,
};
use tonic::{
    Request,
    metadata::MetadataMap,
    transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity},
};

use super::{
    env::{Env, Signal},
    error::Error,
};

/// How long a connection may take to be made.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);

/// A collector that is silent for [`KEEPALIVE`] in the middle of an export, and then answers no ping, is gone:
/// found out within one export, and looked for anew. Between exports no ping is sent, which gRPC servers take
/// for abuse.
const KEEPALIVE: Duration = Duration::from_secs(5);
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(4);

/// An exporter for each signal that goes anywhere.
#[derive(Default)]
pub(super) struct Exporters {
    pub traces: Option<SpanExporter>,
    pub logs: Option<LogExporter>,
    pub metrics: Option<MetricExporter>,
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
            let channel = connection(env, signal, endpoint)?.connect_lazy();
            match signal {
                Signal::Traces => {
                    let exporter = set(env, signal, channel, SpanExporter::builder().with_tonic());
                    exporters.traces = Some(exporter.build()?);
                }
                Signal::Logs => {
                    let exporter = set(env, signal, channel, LogExporter::builder().with_tonic());
                    exporters.logs = Some(exporter.build()?);
                }
                Signal::Metrics => {
                    let exporter = MetricExporter::builder().with_temporality(env.temporality());
                    let exporter = set(env, signal, channel, exporter.with_tonic());
                    exporters.metrics = Some(exporter.build()?);
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
    pub connection: Endpoint,
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

fn connection(env: &Env, signal: Signal, endpoint: String) -> Result<Endpoint, Error> {
    let tls = endpoint.starts_with("https://");
    let failed = |error| Error::Connection {
        signal: signal.to_string(),
        error,
    };
    let mut connection = Endpoint::from_shared(endpoint)
        .map_err(failed)?
        .connect_timeout(CONNECT_TIMEOUT)
        .timeout(env.timeout(signal))
        .http2_keep_alive_interval(KEEPALIVE)
        .keep_alive_timeout(KEEPALIVE_TIMEOUT);
    if tls {
        connection = connection.tls_config(trust(env, signal)?).map_err(failed)?;
    }
    Ok(connection)
}

/// Whom to trust, and who we are.
fn trust(env: &Env, signal: Signal) -> Result<ClientTlsConfig, Error> {
    let tls = ClientTlsConfig::new();
    let tls = match file(env, signal, "CERTIFICATE")? {
        Some(authorities) => tls.ca_certificate(Certificate::from_pem(authorities)),
        None => tls.with_native_roots(),
    };
    let certificate = file(env, signal, "CLIENT_CERTIFICATE")?;
    let key = file(env, signal, "CLIENT_KEY")?;
    match (certificate, key) {
        (Some(certificate), Some(key)) => Ok(tls.identity(Identity::from_pem(certificate, key))),
        (None, None) => Ok(tls),
        _ => Err(Error::Variable(format!(
            "OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE and OTEL_EXPORTER_OTLP_CLIENT_KEY (environment variables): \
             one without the other, for {signal}"
        ))),
    }
}

/// The PEM file that a variable names.
fn file(env: &Env, signal: Signal, what: &str) -> Result<Option<String>, Error> {
    let Some((name, path)) = env.strict_for(signal, what)? else {
        return Ok(None);
    };
    let wrong = |wrong: &dyn std::fmt::Display| {
        Error::Variable(format!("{name} = {path:?} (environment variable): {wrong}"))
    };
    let text =
        fs::read_to_string(path).map_err(|error| wrong(&format!("cannot be read: {error}")))?;
    if text.contains("-----BEGIN ") {
        Ok(Some(text))
    } else {
        Err(wrong(&"holds nothing in PEM format"))
    }
}
