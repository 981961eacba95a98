//! A small stand-in for the collector, where that is not built: it writes traces and logs like `collector.yaml`, and drops metrics.

use std::{
    fs::{File, OpenOptions},
    io::{self, Write as _},
    path::Path,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use opentelemetry_proto::tonic::collector::{
    logs::v1::ExportLogsServiceRequest as Logs, trace::v1::ExportTraceServiceRequest as Traces,
};
use prost::Message;
use serde::Serialize;

use super::mock::{Behaviour, Mock};

/// Receives OTLP without compression, by gRPC and by HTTP, on a free port of loopback. It stops on drop.
pub struct Receiver(Mock);

impl Receiver {
    /// Starts a receiver that appends to `traces.json` and `logs.json` in `folder`, for [`Received::read`](super::Received::read).
    ///
    /// # Errors
    /// The files cannot be created.
    pub async fn start(folder: &Path) -> io::Result<Self> {
        let open = |file: &str| -> io::Result<Mutex<File>> {
            let file = folder.join(file);
            Ok(OpenOptions::new()
                .create(true)
                .append(true)
                .open(file)?
                .into())
        };
        let (traces, logs) = (open("traces.json")?, open("logs.json")?);
        let write = move |path: &str, body: &[u8]| {
            // Before the message, gRPC has a byte for its compression, and four for its length.
            let message = if path.ends_with("/Export") {
                body.get(5..).unwrap_or_default()
            } else {
                body
            };
            let (file, export) = if path.contains("TraceService") || path.ends_with("/v1/traces") {
                (&traces, json::<Traces>(message))
            } else if path.contains("LogsService") || path.ends_with("/v1/logs") {
                (&logs, json::<Logs>(message))
            } else {
                return;
            };
            let written = export.and_then(|export| {
                let mut file = file.lock().unwrap_or_else(PoisonError::into_inner);
                writeln!(file, "{export}")
            });
            if let Err(error) = written {
                eprintln!("{path}: {error}");
            }
        };
        let answer = Behaviour::Answer(Duration::ZERO, 0);
        Ok(Self(Mock::start_with(answer, write).await))
    }

    /// Returns its address, `127.0.0.1:PORT`.
    pub fn address(&self) -> std::net::SocketAddr {
        self.0.address()
    }
}

/// Returns an export as the JSON of the collector's file exporter.
fn json<T: Message + Default + Serialize>(export: &[u8]) -> io::Result<String> {
    let export = T::decode(export).map_err(io::Error::other)?;
    Ok(serde_json::to_string(&export)?)
}
