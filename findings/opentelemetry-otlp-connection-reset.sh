#!/usr/bin/env bash
# opentelemetry-otlp 0.33.1 with tonic 0.14.9: the retries of an export when the collector's connection is reset.
# Expected: the export is sent again, as it is when the collector answers UNAVAILABLE, since a lost connection is what gRPC
# calls unavailable.
# Seen: tonic reports the reset as Unknown, which is not among OTLP's retryable codes. The exporter makes one attempt of the
# four that its default policy allows, and the batch is lost. A load balancer that forgets an idle connection, and resets it
# at the next request, costs a batch each time.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
mkdir src
cat >Cargo.toml <<'TOML'
[package]
name = "finding"
version = "0.0.0"
edition = "2024"
[dependencies]
h2 = "=0.4.20"
http = "1"
opentelemetry-otlp = { version = "=0.33.1", default-features = false, features = ["grpc-tonic", "trace"] }
opentelemetry_sdk = { version = "=0.33.1", default-features = false, features = ["trace"] }
tokio = { version = "1", features = ["rt", "macros", "net"] }
tonic = { version = "=0.14.9", default-features = false }
[profile.dev]
debug = false
[workspace]
TOML
cat >src/main.rs <<'RUST'
use std::{cell::Cell, rc::Rc};

use http::Response;
use opentelemetry_otlp::{SpanExporter, WithExportConfig as _};
use opentelemetry_sdk::trace::SpanExporter as _;
use tokio::{net::TcpListener, task::LocalSet};

#[derive(Clone, Copy, Debug)]
enum Collector {
    AnswersUnavailable,
    ResetsConnection,
}

async fn serve(listener: TcpListener, collector: Collector, requests: Rc<Cell<u32>>) {
    while let Ok((stream, _)) = listener.accept().await {
        stream.set_zero_linger().unwrap(); // closed by a reset
        let mut connection = h2::server::handshake(stream).await.unwrap();
        while let Some(Ok((_request, mut respond))) = connection.accept().await {
            requests.set(requests.get() + 1);
            if let Collector::ResetsConnection = collector {
                break;
            }
            let response = Response::builder().header("content-type", "application/grpc").header("grpc-status", "14");
            respond.send_response(response.body(()).unwrap(), true).unwrap();
        }
    }
}

async fn export(collector: Collector) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    let requests = Rc::new(Cell::new(0));
    let server = tokio::task::spawn_local(serve(listener, collector, requests.clone()));
    let exporter = SpanExporter::builder().with_tonic().with_endpoint(endpoint).build().unwrap();
    let error = exporter.export(Vec::new()).await.unwrap_err();
    let error = error.to_string();
    let code = error.split("gRPC code: ").nth(1).unwrap().split(':').next().unwrap();
    println!("{collector:?}: {} attempts, {code}", requests.get());
    server.abort();
}

#[tokio::main(flavor = "current_thread")]
async fn main() {
    LocalSet::new()
        .run_until(async {
            export(Collector::AnswersUnavailable).await;
            export(Collector::ResetsConnection).await;
        })
        .await;
}
RUST
cargo run --quiet | tee seen
diff seen - <<'TEXT' || { echo 'changed'; exit 1; }
AnswersUnavailable: 4 attempts, Unavailable
ResetsConnection: 1 attempts, Unknown
TEXT
echo 'as described: a connection that is reset costs the batch'
