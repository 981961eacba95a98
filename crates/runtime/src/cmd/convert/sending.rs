//! The time limit for a client to read.

use std::{
    io::{self, IoSlice},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use parking_lot::Mutex;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    time::Instant,
};

/// A connection that notes since when it has data that the client does not take. A response's body is gone before that: hyper
/// drops it when it has queued the last part.
pub(super) struct Sending<S> {
    stream: S,
    unsent: Unsent,
}

/// Time of the first write that had to wait since the last complete flush.
#[derive(Clone, Default)]
pub(super) struct Unsent(Arc<Mutex<Option<Instant>>>);

impl Unsent {
    pub(super) fn since(&self) -> Option<Instant> {
        *self.0.lock()
    }

    fn note<T>(&self, polled: Poll<T>) -> Poll<T> {
        if polled.is_pending() {
            self.0.lock().get_or_insert_with(Instant::now);
        }
        polled
    }
}

impl<S> Sending<S> {
    pub(super) fn new(stream: S, unsent: Unsent) -> Self {
        Self { stream, unsent }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Sending<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Sending<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        data: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, data);
        self.unsent.note(written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        data: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, data);
        self.unsent.note(written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    /// The connection calls it when it has written all its data.
    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(cx);
        if flushed.is_ready() {
            *self.unsent.0.lock() = None;
        }
        self.unsent.note(flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let closed = Pin::new(&mut self.stream).poll_shutdown(cx);
        self.unsent.note(closed)
    }
}
