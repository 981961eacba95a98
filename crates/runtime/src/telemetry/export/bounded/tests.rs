//! Deadlines, and the runtime of an export. The collector accepts connections and sends nothing.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{
    net,
    pin::pin,
    sync::mpsc,
    task::{Context, Wake},
    thread::{self, Thread},
};

use opentelemetry_sdk::{testing::trace::new_test_export_span_data, trace::SpanExporter as _};
use tokio::{
    io::{AsyncReadExt as _, copy, sink},
    net::{TcpListener, TcpSocket},
    runtime::Builder,
    sync::oneshot,
};

use super::*;
use crate::{
    config::{protocol::Protocol, settings::Telemetry},
    telemetry::export::{Exporters, env::Env},
};

const LIMIT: Duration = Duration::from_secs(2);

/// Returns exporters to `address`.
fn exporters(protocol: Protocol, address: net::SocketAddr, limit: Duration) -> Exporters {
    let limit = limit.as_millis().to_string();
    let env = Env::new([("OTEL_EXPORTER_OTLP_TIMEOUT".into(), limit.into())]);
    let configured = Telemetry {
        endpoint: Some(format!("http://{address}").parse().unwrap()),
        protocol: Some(protocol),
    };
    Exporters::new(&env, &configured).unwrap()
}

/// Runs `future` on this thread, without a runtime.
fn block_on<T>(future: impl Future<Output = T>) -> T {
    struct Unpark(Thread);

    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }

    let waker = Arc::new(Unpark(thread::current())).into();
    let mut future = pin!(future);
    loop {
        if let Poll::Ready(ended) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return ended;
        }
        thread::park();
    }
}

/// Exports one span from a thread without a runtime, as the SDK does. Returns the result and the duration.
async fn export(exporters: Exporters) -> (OTelSdkResult, Duration) {
    let (report, ended) = oneshot::channel();
    thread::spawn(move || {
        let started = Instant::now();
        let traces = exporters.traces.unwrap();
        let sent = block_on(traces.export(vec![new_test_export_span_data()]));
        report.send((sent, started.elapsed()))
    });
    timeout(LIMIT * 5, ended).await.unwrap().unwrap()
}

/// The deadline ends an export in its second attempt as well, after a broken connection.
#[tokio::test]
async fn a_second_attempt_has_the_same_deadline() {
    for protocol in [Protocol::Grpc, Protocol::Http] {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let exporters = exporters(protocol, listener.local_addr().unwrap(), LIMIT);
        let collector = async {
            let (mut first, _) = listener.accept().await.unwrap();
            let silence = match protocol {
                Protocol::Grpc => LIMIT * 4 / 5,
                Protocol::Http => LIMIT * 2 / 5,
            };
            let _ = tokio::time::timeout(silence, copy(&mut first, &mut sink())).await;
            drop(first);
            let (second, _) = listener.accept().await.unwrap();
            std::future::pending::<()>().await;
            drop(second);
        };
        let (sent, took) = tokio::select! {
            ended = export(exporters) => ended,
            () = collector => unreachable!(),
        };
        assert!(took < LIMIT * 2, "{protocol:?}: {took:?}");
        let text = sent.unwrap_err().to_string();
        // By HTTP, the SDK may end the export at its own limit of an attempt, right before the deadline.
        let is_deadline = protocol == Protocol::Http || text.contains("not accepted in 2s");
        assert!(is_deadline, "{protocol:?}: {text}");
    }
}

/// A ping detects a dead connection before the deadline of a short limit as well.
#[tokio::test]
async fn a_dead_connection_ends_before_the_deadline() {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let exporters = exporters(Protocol::Grpc, listener.local_addr().unwrap(), LIMIT);
    let traces = exporters.traces.unwrap();
    let exported = traces.export(vec![new_test_export_span_data()]);
    let collector = async {
        let (mut stream, _) = listener.accept().await.unwrap();
        timeout(LIMIT * 2, copy(&mut stream, &mut sink())).await
    };
    let (sent, ended) = tokio::join!(exported, collector);
    sent.unwrap_err();
    ended.unwrap().unwrap();
}

/// The cause of an attempt is reported if the deadline ends a later one.
#[tokio::test]
async fn the_deadline_has_a_cause() {
    let exporters = exporters(Protocol::Grpc, ([127, 0, 0, 1], 1).into(), LIMIT);
    let traces = exporters.traces.unwrap();
    let first = async {
        traces.breaks.set_cause("refused".to_owned());
        std::future::pending().await
    };
    let sent = timeout(LIMIT * 5, traces.sent(first, async { Ok(()) })).await;
    let text = sent.unwrap().unwrap_err().to_string();
    assert!(text.ends_with("not accepted in 2s: refused"), "{text}");
}

/// A refused connection is retried until the deadline, with pauses that grow: the SDK's own policy ends after 0.7 s to 1 s.
#[tokio::test]
async fn a_refused_connection_is_retried_until_the_deadline() {
    for protocol in [Protocol::Grpc, Protocol::Http] {
        // The bound socket reserves the port.
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind(([127, 0, 0, 1], 0).into()).unwrap();
        let exporters = exporters(protocol, socket.local_addr().unwrap(), LIMIT);
        let (sent, took) = export(exporters).await;
        sent.unwrap_err();
        assert!(took > LIMIT * 7 / 10, "{protocol:?}: {took:?}");
    }
}

/// An export that is still running does not use the timers of a runtime that ends.
#[test]
fn a_closed_runtime_is_not_used() {
    for protocol in [Protocol::Grpc, Protocol::Http] {
        let listener = net::TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let address = listener.local_addr().unwrap();
        let runtime = Builder::new_current_thread().enable_all().build().unwrap();
        let mut exporters = runtime.block_on(async { exporters(protocol, address, LIMIT) });
        let (exported, traces) = (exporters.runtime.clone(), exporters.traces.take().unwrap());
        let (report, ended) = mpsc::channel();
        thread::spawn(move || {
            report.send(block_on(traces.export(vec![new_test_export_span_data()])))
        });
        let connected = async {
            listener.set_nonblocking(true).unwrap();
            let listener = TcpListener::from_std(listener).unwrap();
            let (mut stream, _) = listener.accept().await.unwrap();
            // The request is on its way.
            stream.read_u8().await.unwrap();
            stream
        };
        let _stream = runtime.block_on(connected).into_std();
        exported.close();
        runtime.shutdown_background();
        let ended = ended.recv_timeout(LIMIT * 10).unwrap();
        assert!(
            matches!(ended, Err(OTelSdkError::AlreadyShutdown)),
            "{protocol:?}: {ended:?}"
        );
    }
}
