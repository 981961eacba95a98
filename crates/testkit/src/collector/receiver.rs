//! A small stand-in for the collector, where that is not built: it writes traces and logs like `collector.yaml`, and drops metrics.

use std::{
    fs::{File, OpenOptions},
    io::{self, Write as _},
    path::Path,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use super::{
    mock::{Behaviour, Mock},
    otlp,
};

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
                (&traces, otlp::traces(message))
            } else if path.contains("LogsService") || path.ends_with("/v1/logs") {
                (&logs, otlp::logs(message))
            } else {
                return;
            };
            let Some(export) = export else {
                eprintln!("{path}: the export is no OTLP without compression");
                return;
            };
            let mut file = file.lock().unwrap_or_else(PoisonError::into_inner);
            if let Err(error) = writeln!(file, "{export}") {
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
