//! Last check of the fence: in the connection, right before the bytes of a write are handed to the kernel.
//!
//! The bytes may have been delayed since the previous check, by hyper, TLS, a full socket or a freeze of the process. Delayed
//! bytes are not sent.

use std::{
    io::{self, IoSlice},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use http::{Extensions, Response};
use hyper::rt::{Read, ReadBufCursor, Write};
use hyper_util::client::legacy::connect::{CaptureConnection, Connected, Connection};
use parking_lot::Mutex;
use tokio::sync::OwnedSemaphorePermit;

use super::permit::{Permit, Refused};

/// Permit of the write that a connection sends, until its response. HTTP/1 has one request at a time on a connection.
#[derive(Clone, Default)]
struct Sending(Arc<Mutex<Option<Permit>>>);

/// Connection beneath TLS. While it sends a write, it sends only with a valid permit.
pub(crate) struct Fenced<C> {
    connection: C,
    sending: Sending,
    /// Held while the connection is open, to limit the number of connections.
    _open: OwnedSemaphorePermit,
}

/// Wraps a new connection. Every connector must call this.
pub(crate) fn fenced<C>(connection: C, open: OwnedSemaphorePermit) -> Fenced<C> {
    let sending = Sending::default();
    Fenced {
        connection,
        sending,
        _open: open,
    }
}

/// Attaches `permit` to the connection of a request, which then sends only while the permit is valid.
pub(super) fn begin(connection: &CaptureConnection, permit: Permit) {
    let mut extras = Extensions::new();
    if let Some(connected) = &*connection.connection_metadata() {
        connected.get_extras(&mut extras);
    }
    if let Some(Sending(sending)) = extras.get() {
        *sending.lock() = Some(permit);
    }
}

/// Detaches the permit after the response. The next request on the connection may be a read.
pub(crate) fn answered<B>(response: &Response<B>) {
    if let Some(Sending(sending)) = response.extensions().get() {
        *sending.lock() = None;
    }
}

impl<C> Fenced<C> {
    fn check(&self) -> io::Result<()> {
        let sending = self.sending.0.lock();
        let may_send = sending.as_ref().is_none_or(Permit::is_valid);
        may_send
            .then_some(())
            .ok_or_else(|| io::Error::other(Refused))
    }
}

impl<C: Connection> Connection for Fenced<C> {
    fn connected(&self) -> Connected {
        self.connection.connected().extra(self.sending.clone())
    }
}

impl<C: Read + Unpin> Read for Fenced<C> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.connection).poll_read(cx, buffer)
    }
}

impl<C: Write + Unpin> Write for Fenced<C> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.check()?;
        Pin::new(&mut self.connection).poll_write(cx, bytes)
    }

    fn is_write_vectored(&self) -> bool {
        self.connection.is_write_vectored()
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.check()?;
        Pin::new(&mut self.connection).poll_write_vectored(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.connection).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.connection).poll_shutdown(cx)
    }
}
