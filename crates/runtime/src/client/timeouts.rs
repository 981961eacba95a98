//! Connections that end with [`TimedOut`](io::ErrorKind::TimedOut) if they are silent for too long.
//!
//! This does the work of hyper-timeout, with fewer system calls. After each read, hyper-timeout moves its timer to the present.
//! tokio then writes to the eventfd that interrupts its poll, and polls once more.

use std::{
    io::{self, IoSlice},
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use http::Uri;
use hyper::rt::{Read, ReadBufCursor, Write};
use hyper_util::client::legacy::connect::{Connected, Connection};
use tokio::time::{Instant, Sleep, sleep_until, timeout};
use tower::{BoxError, Service, ServiceExt as _};

/// Limits of a connection. `None` is no limit.
#[derive(Clone, Copy)]
pub(super) struct Timeouts {
    /// Time to open the connection.
    pub connect: Option<Duration>,
    /// Time that a read may wait for the next bytes. A write begins this time again: a connection may be idle before a request.
    pub read: Option<Duration>,
    /// Time that a write may wait until the next bytes are accepted.
    pub write: Option<Duration>,
}

impl Timeouts {
    /// Opens a connection with these limits.
    pub(super) async fn connect<C>(
        self,
        to: C,
        address: Uri,
    ) -> Result<Timed<C::Response>, BoxError>
    where
        C: Service<Uri, Error: Into<BoxError>>,
    {
        let opened = to.oneshot(address);
        let connection = match self.connect {
            Some(limit) => timeout(limit, opened).await.map_err(|_| {
                let late = format!("not connected within {limit:?}");
                io::Error::new(io::ErrorKind::TimedOut, late)
            })?,
            None => opened.await,
        };
        Ok(Timed {
            connection: connection.map_err(Into::into)?,
            read: Wait::new(self.read),
            write: Wait::new(self.write),
        })
    }
}

/// Connection with limits.
pub(super) struct Timed<C> {
    connection: C,
    read: Wait,
    write: Wait,
}

/// A wait for the other side. The timer is moved only when it fires, and not at each wait.
struct Wait {
    limit: Option<Duration>,
    /// End of the current wait.
    end: Option<Instant>,
    timer: Option<Pin<Box<Sleep>>>,
}

impl Wait {
    fn new(limit: Option<Duration>) -> Self {
        Self {
            limit,
            end: None,
            timer: None,
        }
    }

    /// Lets a current wait begin now.
    fn restart(&mut self) {
        if let Some((end, limit)) = self.end.as_mut().zip(self.limit) {
            *end = Instant::now() + limit;
        }
    }

    /// Passes on the result of an attempt. Replaces it with an error if attempts have been pending for as long as the limit.
    fn limit<T>(
        &mut self,
        attempt: Poll<io::Result<T>>,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<T>> {
        let Some(limit) = self.limit else {
            return attempt;
        };
        if attempt.is_ready() {
            self.end = None;
            return attempt;
        }
        let end = *self.end.get_or_insert_with(|| Instant::now() + limit);
        let timer = self.timer.get_or_insert_with(|| Box::pin(sleep_until(end)));
        while timer.as_mut().poll(cx).is_ready() {
            if timer.deadline() >= end {
                return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
            }
            timer.as_mut().reset(end);
        }
        Poll::Pending
    }
}

impl<C> Timed<C> {
    fn written(
        &mut self,
        attempt: Poll<io::Result<usize>>,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<usize>> {
        if matches!(attempt, Poll::Ready(Ok(1..))) {
            self.read.restart();
        }
        self.write.limit(attempt, cx)
    }
}

impl<C: Connection> Connection for Timed<C> {
    fn connected(&self) -> Connected {
        self.connection.connected()
    }
}

impl<C: Read + Unpin> Read for Timed<C> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        let read = Pin::new(&mut self.connection).poll_read(cx, buffer);
        self.read.limit(read, cx)
    }
}

impl<C: Write + Unpin> Write for Timed<C> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.connection).poll_write(cx, bytes);
        self.written(written, cx)
    }

    fn is_write_vectored(&self) -> bool {
        self.connection.is_write_vectored()
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.connection).poll_write_vectored(cx, bytes);
        self.written(written, cx)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.connection).poll_flush(cx);
        self.write.limit(flushed, cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let shut = Pin::new(&mut self.connection).poll_shutdown(cx);
        self.write.limit(shut, cx)
    }
}

#[cfg(test)]
mod tests;
