//! The fence's last look: in the connection, when it hands the bytes of a write to the kernel. Whatever held them up in the
//! process since the fence looked before, hyper, TLS, a full socket or a freeze, they are not sent late.

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

/// The permit of the write that a connection sends, until it is answered. HTTP/1 has one request at a time on a connection.
#[derive(Clone, Default)]
struct Sending(Arc<Mutex<Option<Permit>>>);

/// A connection, beneath TLS, that sends nothing without a permit where one is needed.
pub struct Fenced<C> {
    connection: C,
    sending: Sending,
    /// Its share of the connections that may be open.
    _open: OwnedSemaphorePermit,
}

/// What connects is to have this put around each connection.
pub fn fenced<C>(connection: C, open: OwnedSemaphorePermit) -> Fenced<C> {
    let sending = Sending::default();
    Fenced {
        connection,
        sending,
        _open: open,
    }
}

/// From now on, until the answer, the connection of this request sends only under this permit.
pub(super) fn begin(connection: &CaptureConnection, permit: Permit) {
    let mut extras = Extensions::new();
    if let Some(connected) = &*connection.connection_metadata() {
        connected.get_extras(&mut extras);
    }
    if let Some(Sending(sending)) = extras.get() {
        *sending.lock() = Some(permit);
    }
}

/// The write is answered: what the connection sends next may be a read.
pub fn answered<B>(response: &Response<B>) {
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
