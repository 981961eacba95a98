//! Connections of the export, for both protocols.
//!
//! They are not left to the SDK for three reasons:
//! - The SDK has no connect timeout. A collector that drops packets would block a flush for two minutes.
//! - Certificates are reloaded for each connection ([`Trust`]).
//! - Broken connections are counted ([`Breaks`]).

use std::{
    io,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    task::{Context, Poll, ready},
    time::Duration,
};

use futures::{FutureExt as _, future::BoxFuture};
use http::Uri;
use http_body_util::Full;
use hyper::body::Bytes;
use hyper_util::{
    client::legacy::{
        Client,
        connect::{self, Connected, HttpConnector},
    },
    rt::{TokioExecutor, TokioIo, TokioTimer},
};
use parking_lot::Mutex;
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, ReadBuf},
    net::TcpStream,
    time::timeout,
};
use tonic::transport::{Channel, Endpoint};
use tower::{BoxError, Service, service_fn, util::BoxCloneSyncService};

use super::trust::Trust;
use crate::{api::failure::root_cause, config::protocol::Protocol};

/// Time limit for establishing a connection, including TLS.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);

/// Longest silence of the collector during an export, before a ping and before the kernel gives up bytes that are not acknowledged.
/// No pings are sent between exports: gRPC servers treat them as abuse.
const SILENCE: Duration = Duration::from_secs(5);

/// Time for an HTTP/1.1 server to reject a client certificate. A server of another protocol would send its first bytes.
const REJECTION: Duration = Duration::from_secs(1);

/// First bytes of an HTTP/2 client: the preface, and an empty `SETTINGS` frame (RFC 9113, 3.4).
const HTTP2_PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";

/// Type of a `SETTINGS` frame, which is the first frame of an HTTP/2 server.
const SETTINGS: u8 = 4;

/// TCP keepalives between exports. They prevent load balancers from forgetting or resetting an idle connection, which the next
/// export would need.
const KEEPALIVE: Duration = Duration::from_secs(30);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(10);
const KEEPALIVE_RETRIES: u32 = 3;

/// Number of connections of one signal that ended without being closed by this process, and the cause of the last failure to
/// connect.
#[derive(Clone, Debug, Default)]
pub struct Breaks {
    count: Arc<AtomicU64>,
    cause: Arc<Mutex<String>>,
}

impl Breaks {
    pub fn count(&self) -> u64 {
        self.count.load(Relaxed)
    }

    /// Returns the cause since the last established connection. The SDK does not return the cause of an attempt that is repeated.
    pub fn cause(&self) -> String {
        self.cause.lock().clone()
    }

    pub(super) fn set_cause(&self, cause: String) {
        *self.cause.lock() = cause;
    }

    fn add(&self) {
        self.count.fetch_add(1, Relaxed);
    }
}

/// Idle time after which an OTLP/HTTP connection is closed. The pool looks for such connections only at this interval, so the
/// longest idle time is twice this time. That is below the idle limits of collectors and load balancers, which are 60 s and more:
/// a request on a connection that is being closed would fail. The metrics are exported every 60 s, so they would often meet such
/// a connection.
pub(super) const MAX_IDLE: Duration = Duration::from_secs(25);

/// Pool of HTTP/1.1 connections to one collector.
pub(super) type Pool = Client<BoxCloneSyncService<Uri, TokioIo<Watched>, BoxError>, Full<Bytes>>;

/// Connection settings of one signal.
pub(crate) struct Connection {
    protocol: Protocol,
    endpoint: Endpoint,
    address: Uri,
    trust: Option<Arc<Trust>>,
    breaks: Breaks,
}

impl Connection {
    /// Creates settings for `address`, with TLS if `trust` is given. `limit` is the time limit of one export.
    pub(crate) fn new(
        protocol: Protocol,
        address: Uri,
        trust: Option<Trust>,
        limit: Duration,
    ) -> Self {
        // A dead connection is detected in three quarters of the time. The rest is for another connection. The placeholder address
        // keeps tonic from adding its own TLS.
        let endpoint = Endpoint::from_static("http://collector")
            .origin(address.clone())
            .http2_keep_alive_interval(SILENCE.min(limit / 2))
            .keep_alive_timeout(SILENCE.min(limit / 4));
        Self {
            protocol,
            endpoint,
            address,
            trust: trust.map(Arc::new),
            breaks: Breaks::default(),
        }
    }

    pub(crate) fn breaks(&self) -> Breaks {
        self.breaks.clone()
    }

    pub(super) fn address(&self) -> &Uri {
        &self.address
    }

    /// Returns a gRPC channel that connects on first use, and reconnects when a connection has ended.
    pub(crate) fn channel(&self) -> Channel {
        self.endpoint.connect_with_connector_lazy(self.connector())
    }

    /// Returns a pool of HTTP/1.1 connections. It must be used within a Tokio runtime.
    pub(super) fn pool(&self) -> Pool {
        let mut pool = Client::builder(TokioExecutor::new());
        pool.pool_timer(TokioTimer::new())
            .pool_idle_timeout(MAX_IDLE);
        pool.build(BoxCloneSyncService::new(self.connector()))
    }

    /// Connects once. Sends no request, but checks that the server may accept one: that it has the protocol, and does not reject
    /// the client certificate. With TLS 1.3, the server checks this certificate after the client's handshake.
    ///
    /// # Errors
    /// The connection cannot be established, or the server cannot be a collector of this protocol.
    pub(crate) async fn connect(&self) -> Result<(), BoxError> {
        let connected = self.connector().call(self.address.clone()).await?;
        let mut io = connected.into_inner().io;
        match self.protocol {
            Protocol::Grpc => {
                io.write_all(HTTP2_PREFACE).await?;
                io.flush().await?;
                // The length, the type, the flags, and the stream.
                let mut frame = [0; 9];
                io.read_exact(&mut frame).await?;
                if frame[3] != SETTINGS {
                    return Err("the server does not speak HTTP/2, which grpc needs".into());
                }
            }
            Protocol::Http => {
                if let Ok(read) = timeout(REJECTION, io.read(&mut [0])).await {
                    return Err(match read? {
                        0 => "the server closed the connection".into(),
                        _ => "the server does not speak HTTP/1.1, which http/protobuf needs".into(),
                    });
                }
            }
        }
        Ok(())
    }

    fn connector(&self) -> impl Connector {
        self.connector_by(HttpConnector::new())
    }

    /// Like [`connector`](Self::connector), with another name resolver.
    fn connector_by<R>(&self, mut tcp: HttpConnector<R>) -> impl Connector
    where
        R: Clone + Send + Sync + 'static,
        HttpConnector<R>:
            Service<Uri, Response = TokioIo<TcpStream>, Error: Into<BoxError>, Future: Send>,
    {
        tcp.enforce_http(false);
        // hyper divides this time among the addresses of a name. The rest is for DNS and TLS.
        tcp.set_connect_timeout(Some(CONNECT_TIMEOUT / 5 * 4));
        tcp.set_nodelay(true);
        tcp.set_keepalive(Some(KEEPALIVE));
        tcp.set_keepalive_interval(Some(KEEPALIVE_INTERVAL));
        tcp.set_keepalive_retries(Some(KEEPALIVE_RETRIES));
        // hyper keeps a connection whose request was given up until its bytes are sent. A collector that reads nothing would get more
        // and more of them.
        #[cfg(target_os = "linux")]
        tcp.set_tcp_user_timeout(Some(SILENCE));
        let (address, trust, breaks) = (
            self.address.clone(),
            self.trust.clone(),
            self.breaks.clone(),
        );
        service_fn(move |_| {
            let connect = connect(tcp.clone(), address.clone(), trust.clone());
            let breaks = breaks.clone();
            async move {
                let connected = timeout(CONNECT_TIMEOUT, connect).await;
                let connected = connected.unwrap_or_else(|_| {
                    Err(format!("not connected in {CONNECT_TIMEOUT:?}").into())
                });
                let cause = connected.as_ref().err().map(|error| root_cause(&**error));
                breaks.set_cause(cause.unwrap_or_default());
                let io = connected?;
                Ok(TokioIo::new(Watched { io, breaks }))
            }
            .boxed()
        })
    }
}

async fn connect(
    mut tcp: impl Service<Uri, Response = TokioIo<TcpStream>, Error: Into<BoxError>>,
    address: Uri,
    trust: Option<Arc<Trust>>,
) -> Result<Box<dyn Io>, BoxError> {
    let host = address.host().unwrap_or_default().to_owned();
    let stream = tcp.call(address).await.map_err(Into::into)?.into_inner();
    Ok(match trust {
        None => Box::new(stream),
        Some(trust) => Box::new(trust.handshake(&host, stream).await?),
    })
}

/// A connection with or without TLS.
trait Io: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Io for T {}

/// Connector to the collector, whose argument is ignored.
trait Connector:
    Service<
        Uri,
        Response = TokioIo<Watched>,
        Error = BoxError,
        Future = BoxFuture<'static, Result<TokioIo<Watched>, BoxError>>,
    > + Clone
    + Send
    + Sync
    + 'static
{
}
impl<T> Connector for T where
    T: Service<
            Uri,
            Response = TokioIo<Watched>,
            Error = BoxError,
            Future = BoxFuture<'static, Result<TokioIo<Watched>, BoxError>>,
        > + Clone
        + Send
        + Sync
        + 'static
{
}

/// A connection that counts its end as a break.
pub(super) struct Watched {
    io: Box<dyn Io>,
    breaks: Breaks,
}

impl AsyncRead for Watched {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let read = ready!(Pin::new(&mut self.io).poll_read(cx, buffer));
        if read.is_err() || buffer.filled().len() == before {
            self.breaks.add();
        }
        Poll::Ready(read)
    }
}

impl AsyncWrite for Watched {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = ready!(Pin::new(&mut self.io).poll_write(cx, bytes));
        if written.is_err() {
            self.breaks.add();
        }
        Poll::Ready(written)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}

impl connect::Connection for Watched {
    fn connected(&self) -> Connected {
        Connected::new()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use std::convert::Infallible;

    use tokio::net::TcpListener;
    use tower::ServiceExt as _;

    use super::*;
    use crate::testing::fixtures::silent;

    /// A name has two addresses, and the first address drops each packet. The connector uses the second address.
    #[tokio::test(start_paused = true)]
    async fn a_host_with_one_silent_address_is_reached() {
        let server = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let address = server.local_addr().unwrap();
        let (silent, _backlog) = silent(address.port());
        let resolve =
            service_fn(move |_| async move { Ok::<_, Infallible>([silent, address].into_iter()) });
        let url = format!("http://two:{}", address.port()).parse().unwrap();
        let connection = Connection::new(Protocol::Grpc, url, None, Duration::from_secs(10));
        let connector = connection.connector_by(HttpConnector::new_with_resolver(resolve));
        let connected = connector.oneshot(Uri::from_static("http://collector"));
        let accepted = async { server.accept().await.map_err(BoxError::from) };
        tokio::try_join!(accepted, connected).map(drop).unwrap();
    }

    /// Connects to a server that sends `bytes`, or closes the connection if there are none. `None`: it is silent.
    async fn checked(protocol: Protocol, bytes: Option<&'static [u8]>) -> Result<(), String> {
        let server = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let url = format!("http://{}", server.local_addr().unwrap());
        let limit = Duration::from_secs(10);
        let connection = Connection::new(protocol, url.parse().unwrap(), None, limit);
        let serve = async {
            let (mut stream, _) = server.accept().await.unwrap();
            if protocol == Protocol::Grpc {
                let mut preface = [0; HTTP2_PREFACE.len()];
                stream.read_exact(&mut preface).await.unwrap();
                assert_eq!(preface, *HTTP2_PREFACE);
            }
            if let Some(bytes) = bytes {
                stream.write_all(bytes).await.unwrap();
            }
            bytes
                .is_none_or(|bytes| !bytes.is_empty())
                .then_some(stream)
        };
        let (connected, _stream) = tokio::join!(connection.connect(), serve);
        connected.map_err(|error| root_cause(&*error))
    }

    /// Servers of the other protocol, and servers that close the connection, are no collectors.
    #[tokio::test]
    async fn a_server_of_another_protocol_is_an_error() {
        use Protocol::{Grpc, Http};
        const FRAME: &[u8] = b"\0\0\x06\x04\0\0\0\0\0\0\x03\0\0\0\x64";
        const PAGE: &[u8] = b"HTTP/1.1 400 Bad Request\r\n\r\n";
        for (protocol, bytes, expected) in [
            (Grpc, Some(FRAME), Ok(())),
            (Grpc, Some(PAGE), Err("HTTP/2")),
            (Grpc, Some(b"".as_slice()), Err("early eof")),
            (Http, None, Ok(())),
            (Http, Some(FRAME), Err("HTTP/1.1")),
            (Http, Some(b""), Err("closed")),
        ] {
            let found = checked(protocol, bytes).await;
            let fits = match (&found, expected) {
                (Ok(()), Ok(())) => true,
                (Err(text), Err(part)) => text.contains(part),
                _ => false,
            };
            assert!(fits, "{protocol:?}, {bytes:?}: {found:?}");
        }
    }
}
