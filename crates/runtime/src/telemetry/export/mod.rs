//! OTLP export: a connection and an exporter for each exported signal. Both protocols have the same connections, limits and TLS.

pub(crate) mod bounded;
mod connection;
pub(crate) mod env;
mod http;
pub(crate) mod outage;
pub(crate) mod resource;
mod trust;

use std::mem;

use ::http::{Uri, uri::Scheme};
use opentelemetry_otlp::{
    Compression, LogExporter, MetricExporter, Protocol as SdkProtocol, RetryPolicy, SpanExporter,
    WithExportConfig, WithHttpConfig, WithTonicConfig,
};
use tonic::{Request, metadata::MetadataMap};

use super::{
    error::Error,
    export::{
        bounded::{Bounded, Pause, Runtime},
        connection::{Breaks, Connection},
        env::{Env, Signal},
        trust::Trust,
    },
};
use crate::config::{protocol::Protocol, settings::Telemetry};

/// Exporters of the exported signals.
pub(super) struct Exporters {
    pub traces: Option<Bounded<SpanExporter>>,
    pub logs: Option<Bounded<LogExporter>>,
    pub metrics: Option<Bounded<MetricExporter>>,
    /// The runtime of all exports, to be closed before it ends.
    pub runtime: Runtime,
    /// Targets for the log: `traces to http://...`.
    pub targets: Vec<String>,
    /// Warnings about environment variables, for the log.
    pub warnings: Vec<String>,
}

impl Exporters {
    /// Creates the exporters that the environment and the `configured` settings specify. Sends nothing yet. Must be called
    /// within a Tokio runtime.
    ///
    /// # Errors
    /// See [`Error`].
    pub(super) fn new(env: &Env, configured: &Telemetry) -> Result<Self, Error> {
        let mut exporters = Self {
            traces: None,
            logs: None,
            metrics: None,
            runtime: Runtime::current(),
            targets: Vec::new(),
            warnings: Vec::new(),
        };
        let targets = targets(env, configured)?;
        if targets.is_empty() {
            return Ok(exporters);
        }
        let signals: Vec<_> = targets.iter().map(|target| target.signal).collect();
        exporters.warnings = env.warnings(&signals)?;
        for target in targets {
            let Target {
                signal,
                protocol,
                address,
            } = &target;
            exporters
                .targets
                .push(format!("{signal} to {address} by {protocol}"));
            let connection = connection(env, &target)?;
            let breaks = match protocol {
                Protocol::Grpc => connection.breaks(),
                // The SDK itself repeats a request whose connection broke. With the count, a 400 would be repeated as well if its
                // response closed the connection.
                Protocol::Http => Breaks::default(),
            };
            let (pause, runtime) = (Pause::default(), exporters.runtime.clone());
            // The builders of the three signals have no trait in common.
            macro_rules! exporter {
                ($builder:expr) => {{
                    let exporter = match protocol {
                        Protocol::Grpc => {
                            grpc(env, *signal, &connection, $builder.with_tonic()).build()
                        }
                        Protocol::Http => {
                            http(env, *signal, &connection, &pause, $builder.with_http()).build()
                        }
                    };
                    Some(Bounded {
                        exporter: exporter?,
                        limit: env.timeout(*signal),
                        breaks,
                        pause,
                        runtime,
                    })
                }};
            }
            match signal {
                Signal::Traces => exporters.traces = exporter!(SpanExporter::builder()),
                Signal::Logs => exporters.logs = exporter!(LogExporter::builder()),
                Signal::Metrics => {
                    let builder = MetricExporter::builder().with_temporality(env.temporality());
                    exporters.metrics = exporter!(builder);
                }
            }
        }
        Ok(exporters)
    }
}

/// Export target of a signal.
struct Target {
    signal: Signal,
    protocol: Protocol,
    address: String,
}

/// Returns the targets of the exported signals.
fn targets(env: &Env, configured: &Telemetry) -> Result<Vec<Target>, Error> {
    let mut targets = Vec::new();
    for signal in Signal::ALL {
        if let Some((protocol, address)) = env.target(signal, configured)? {
            targets.push(Target {
                signal,
                protocol,
                address,
            });
        }
    }
    Ok(targets)
}

/// Export target of a signal, with its connection.
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
pub(super) fn ways(env: &Env, configured: &Telemetry) -> Result<Vec<Way>, Error> {
    let targets = targets(env, configured)?;
    let signals: Vec<_> = targets.iter().map(|target| target.signal).collect();
    env.warnings(&signals)?;
    let ways = targets.into_iter().map(|target| {
        Ok(Way {
            signal: target.signal.to_string(),
            connection: connection(env, &target)?,
            address: target.address,
        })
    });
    ways.collect()
}

/// Sets options of OTLP/gRPC that the SDK would otherwise read from the environment by its own rules.
fn grpc<E: WithTonicConfig + WithExportConfig>(
    env: &Env,
    signal: Signal,
    connection: &Connection,
    exporter: E,
) -> E {
    let headers = env.headers(signal);
    let exporter = exporter
        .with_channel(connection.channel())
        .with_timeout(env.timeout(signal));
    let exporter = WithTonicConfig::with_retry_policy(exporter, retries()).with_interceptor(
        move |mut request: Request<()>| {
            // The existing metadata are the SDK's name and the headers that it read itself: at most a part of ours.
            let metadata = request.metadata_mut();
            let mut all = mem::take(metadata).into_headers();
            all.extend(headers.clone());
            *metadata = MetadataMap::from_headers(all);
            Ok(request)
        },
    );
    if env.compresses(signal) {
        WithTonicConfig::with_compression(exporter, Compression::Gzip)
    } else {
        exporter
    }
}

/// Sets options of OTLP/HTTP that the SDK would otherwise read from the environment by its own rules.
fn http<E: WithHttpConfig + WithExportConfig>(
    env: &Env,
    signal: Signal,
    connection: &Connection,
    pause: &Pause,
    exporter: E,
) -> E {
    let limit = env.timeout(signal);
    let headers = env.headers(signal);
    let client = http::Client::new(signal, connection, headers, limit, pause.clone());
    let exporter = exporter
        .with_http_client(client)
        .with_protocol(SdkProtocol::HttpBinary)
        .with_endpoint(connection.address().to_string())
        .with_timeout(limit);
    let exporter = WithHttpConfig::with_retry_policy(exporter, retries());
    if env.compresses(signal) {
        WithHttpConfig::with_compression(exporter, Compression::Gzip)
    } else {
        exporter
    }
}

/// Returns the SDK's policy, with pauses of 0.1 s to 1.6 s, but until the deadline of the export: a collector that restarts
/// refuses connections for several seconds.
fn retries() -> RetryPolicy {
    RetryPolicy::default().with_max_retries(usize::MAX)
}

fn connection(env: &Env, target: &Target) -> Result<Connection, Error> {
    let Target {
        signal,
        protocol,
        address,
    } = target;
    let invalid = |error| Error::Connection {
        signal: signal.to_string(),
        error,
    };
    let address: Uri = address.parse().map_err(invalid)?;
    // The text of the address may have the scheme in upper case. The headers must not be sent unencrypted.
    let tls = address.scheme() == Some(&Scheme::HTTPS);
    let trust = tls
        .then(|| Trust::new(env, *signal, *protocol))
        .transpose()?;
    let limit = env.timeout(*signal);
    Ok(Connection::new(*protocol, address, trust, limit))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    /// A scheme in upper case is `https`. Exports by it need the certificates, which are an error here.
    #[tokio::test]
    async fn every_https_address_uses_tls() {
        for protocol in ["grpc", "http/protobuf"] {
            for address in ["https://127.0.0.1:1", "HTTPS://127.0.0.1:1", "127.0.0.1:1"] {
                for variable in [
                    "OTEL_EXPORTER_OTLP_ENDPOINT",
                    "OTEL_EXPORTER_OTLP_LOGS_ENDPOINT",
                ] {
                    let variables = [
                        (variable, address),
                        ("OTEL_EXPORTER_OTLP_PROTOCOL", protocol),
                        ("OTEL_EXPORTER_OTLP_CERTIFICATE", "/nowhere"),
                    ];
                    let env = Env::new(variables.map(|(name, value)| (name.into(), value.into())));
                    let error = Exporters::new(
                        &env,
                        &Telemetry {
                            endpoint: None,
                            protocol: None,
                        },
                    )
                    .err();
                    let error = error.map(|error| error.to_string()).unwrap_or_default();
                    assert!(
                        error.contains("/nowhere"),
                        "{protocol} {variable}={address}: {error:?}"
                    );
                }
            }
        }
    }

    /// The scheme of the address alone decides, in any case.
    #[tokio::test]
    async fn the_scheme_decides_about_tls() {
        let env = Env::new([("OTEL_EXPORTER_OTLP_CERTIFICATE".into(), "/nowhere".into())]);
        for (address, tls) in [
            ("HTTPS://h", true),
            ("httpS://h", true),
            ("https://h", true),
            ("HTTP://h", false),
        ] {
            let target = Target {
                signal: Signal::Logs,
                protocol: Protocol::Grpc,
                address: address.to_owned(),
            };
            assert_eq!(connection(&env, &target).is_err(), tls, "{address}");
        }
    }
}
