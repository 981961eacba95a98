//! The OpenTelemetry Collector: whether each endpoint accepts connections, and speaks the protocol. Sends no telemetry.

use std::time::Duration;

use futures::future::join_all;
use tokio::time::timeout;

use super::verdict::{Verdict, ok, skipped, warning};
use crate::{api::failure::root_cause, telemetry::export::Way};

/// Time limit to open a connection, with its TLS handshake, and for the first response of HTTP/2.
const PATIENCE: Duration = Duration::from_secs(5);

pub(super) async fn examine(ways: Vec<Way>) -> Verdict {
    if ways.is_empty() {
        return skipped("telemetry.endpoint is not set, nor an OTEL_EXPORTER_OTLP_*ENDPOINT");
    }
    let tried = ways.into_iter().map(async |way| {
        let connected = match timeout(PATIENCE, way.connection.connect()).await {
            Ok(connected) => connected.map(drop).map_err(|e| root_cause(&*e)),
            Err(_) => Err(format!("no answer in {PATIENCE:?}")),
        };
        (way.signal, way.address, connected)
    });
    judge(join_all(tried).await)
}

fn judge(tried: Vec<(String, String, Result<(), String>)>) -> Verdict {
    let mut found: Vec<(Vec<String>, String, Result<(), String>)> = Vec::new();
    for (signal, address, trouble) in tried {
        let mut same = found.iter_mut();
        match same.find(|(_, at, other)| (at, other) == (&address, &trouble)) {
            Some((signals, ..)) => signals.push(signal),
            None => found.push((vec![signal], address, trouble)),
        }
    }
    let texts = found.iter().map(|(signals, address, trouble)| {
        let signals = signals.join(", ");
        match trouble {
            Ok(()) => format!("{signals}: connected to {address}"),
            Err(why) => format!("{signals}: cannot connect to {address}: {why}"),
        }
    });
    let text = texts.collect::<Vec<_>>().join("; ");
    if found.iter().all(|(_, _, trouble)| trouble.is_ok()) {
        ok(text)
    } else {
        warning(format!(
            "{text}; exported data is lost until then, and reconciling continues: check telemetry.endpoint, telemetry.protocol and the collector"
        ))
    }
}
