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

#[cfg(target_os = "linux")]
use socket2::SockRef;

use super::*;
#[cfg(target_os = "linux")]
use crate::testing::fixtures::unsent;
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
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let exporters = exporters(Protocol::Grpc, listener.local_addr().unwrap(), LIMIT);
    let collector = async {
        let (mut first, _) = listener.accept().await.unwrap();
        let _ = timeout(LIMIT / 2, copy(&mut first, &mut sink())).await;
        drop(first);
        let (second, _) = listener.accept().await.unwrap();
        std::future::pending::<()>().await;
        drop(second);
    };
    let (sent, took) = tokio::select! {
        ended = export(exporters) => ended,
        () = collector => unreachable!(),
    };
    assert!(took < LIMIT * 2, "{took:?}");
    let text = sent.unwrap_err().to_string();
    assert!(text.contains("not accepted in 2s"), "{text}");
}

/// A batch is sent on a new connection each time that its connection breaks.
#[tokio::test]
async fn several_broken_connections_are_replaced() {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let exporters = exporters(Protocol::Grpc, listener.local_addr().unwrap(), LIMIT * 5);
    let collector = async {
        for _ in 0..4 {
            let (mut stream, _) = listener.accept().await.unwrap();
            stream.read_u8().await.unwrap();
        }
    };
    tokio::select! {
        biased;
        () = collector => {}
        (sent, _) = export(exporters) => unreachable!("{sent:?}"),
    }
}

/// A ping detects a dead connection so early that time remains for another connection, with a short limit as well.
#[tokio::test]
async fn a_dead_connection_is_replaced_before_the_deadline() {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let exporters = exporters(Protocol::Grpc, listener.local_addr().unwrap(), LIMIT * 2);
    let collector = async {
        let (mut dead, _) = listener.accept().await.unwrap();
        copy(&mut dead, &mut sink()).await.unwrap();
        listener.accept().await.unwrap();
    };
    tokio::select! {
        biased;
        () = collector => {}
        (sent, _) = export(exporters) => unreachable!("{sent:?}"),
    }
}

/// A collector that accepts connections and reads nothing gets no more and more connections: the kernel gives up the requests.
#[cfg(target_os = "linux")]
#[tokio::test]
async fn requests_that_are_not_read_are_given_up() {
    for protocol in [Protocol::Grpc, Protocol::Http] {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        SockRef::from(&listener).set_recv_buffer_size(1).unwrap();
        let server = listener.local_addr().unwrap();
        let traces = exporters(protocol, server, LIMIT).traces.unwrap();
        let mut span = new_test_export_span_data();
        // More than the buffers of both kernels.
        span.name = "a".repeat(16 << 20).into();
        let (sent, accepted) = tokio::join!(traces.export(vec![span]), listener.accept());
        sent.unwrap_err();
        let (_stream, client) = accepted.unwrap();
        let given_up = async {
            while unsent([client, server]).is_some() {
                sleep(Duration::from_millis(50)).await;
            }
        };
        timeout(LIMIT * 10, given_up).await.unwrap();
    }
}

/// The cause of an attempt is reported if the deadline ends a later one.
#[tokio::test]
async fn the_deadline_has_a_cause() {
    let exporters = exporters(Protocol::Grpc, ([127, 0, 0, 1], 1).into(), LIMIT);
    let traces = exporters.traces.unwrap();
    let sent = traces.sent(|| {
        traces.breaks.set_cause("refused".to_owned());
        std::future::pending()
    });
    let sent = timeout(LIMIT * 5, sent).await;
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
        let exporters = exporters(protocol, socket.local_addr().unwrap(), LIMIT * 2);
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
