#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{
    fmt::Debug,
    future::poll_fn,
    io::ErrorKind,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::Wake,
};

use futures::{FutureExt as _, TryFutureExt as _};
use hyper::rt::ReadBuf;
use hyper_util::rt::TokioIo;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, duplex},
    time::{advance, sleep},
};
use tower::service_fn;

use super::*;

const LIMIT: Duration = Duration::from_secs(10);
const TICK: Duration = Duration::from_millis(1);
/// Within the limit.
const LATE: Duration = Duration::from_secs(9);

/// Returns the two ends of a connection that holds 16 bytes.
fn pair() -> (Timed<TokioIo<DuplexStream>>, DuplexStream) {
    let (ours, theirs) = duplex(16);
    let timed = Timed {
        connection: TokioIo::new(ours),
        read: Wait::new(Some(LIMIT)),
        write: Wait::new(Some(LIMIT)),
    };
    (timed, theirs)
}

fn poll_read(
    connection: &mut Timed<TokioIo<DuplexStream>>,
    cx: &mut Context<'_>,
) -> Poll<io::Result<()>> {
    let mut bytes = [0; 1];
    let mut buffer = ReadBuf::new(&mut bytes);
    Pin::new(connection).poll_read(cx, buffer.unfilled())
}

async fn read(connection: &mut Timed<TokioIo<DuplexStream>>) -> io::Result<()> {
    poll_fn(|cx| poll_read(connection, cx)).await
}

async fn write(connection: &mut Timed<TokioIo<DuplexStream>>) -> io::Result<usize> {
    poll_fn(|cx| Pin::new(&mut *connection).poll_write(cx, &[0; 16])).await
}

/// Checks that this wait fails after its whole limit.
async fn times_out<T: Debug, E: Into<BoxError>>(wait: impl Future<Output = Result<T, E>>) {
    let begun = Instant::now();
    let ended = timeout(LIMIT * 2, wait).await.unwrap();
    let error: BoxError = ended.map_err(Into::into).unwrap_err();
    let kind = error.downcast::<io::Error>().unwrap().kind();
    assert_eq!((kind, begun.elapsed()), (ErrorKind::TimedOut, LIMIT));
}

#[tokio::test(start_paused = true)]
async fn a_silent_read_ends_after_its_limit() {
    let (mut ours, mut theirs) = pair();
    // The timer of the first wait fires during the second, and is moved to the end of that.
    for _ in 0..3 {
        let late = async {
            sleep(LATE).await;
            theirs.write_all(b"x").await.unwrap();
        };
        tokio::join!(read(&mut ours), late).0.unwrap();
    }
    times_out(read(&mut ours)).await;
}

/// Time between reads, when nothing waits for the other side, does not count.
#[tokio::test(start_paused = true)]
async fn a_pause_between_reads_does_not_count() {
    let (mut ours, mut theirs) = pair();
    assert!(read(&mut ours).now_or_never().is_none());
    theirs.write_all(b"x").await.unwrap();
    read(&mut ours).await.unwrap();
    advance(LIMIT * 2).await;
    times_out(read(&mut ours)).await;
}

#[tokio::test(start_paused = true)]
async fn a_blocked_write_ends_after_its_limit() {
    let (mut ours, mut theirs) = pair();
    write(&mut ours).await.unwrap();
    let late = async {
        sleep(LATE).await;
        theirs.read_exact(&mut [0; 16]).await.unwrap();
    };
    tokio::join!(write(&mut ours), late).0.unwrap();
    times_out(write(&mut ours)).await;
}

/// An idle connection has the whole limit for the response to its next request.
#[tokio::test(start_paused = true)]
async fn a_write_begins_the_wait_for_the_response() {
    let (mut ours, _theirs) = pair();
    assert!(read(&mut ours).now_or_never().is_none());
    advance(LATE).await;
    write(&mut ours).await.unwrap();
    times_out(read(&mut ours)).await;
}

/// Connection that accepts all bytes, and delivers none of them.
struct Stuck;

impl Write for Stuck {
    fn poll_write(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Pending
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Pending
    }
}

#[tokio::test(start_paused = true)]
async fn a_flush_and_a_shutdown_end_after_the_limit() {
    for shuts_down in [false, true] {
        let mut stuck = Timed {
            connection: Stuck,
            read: Wait::new(Some(LIMIT)),
            write: Wait::new(Some(LIMIT)),
        };
        let ended = poll_fn(|cx| {
            let stuck = Pin::new(&mut stuck);
            if shuts_down {
                stuck.poll_shutdown(cx)
            } else {
                stuck.poll_flush(cx)
            }
        });
        times_out(ended).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_connection_that_does_not_open_ends_after_its_limit() {
    let timeouts = Timeouts {
        connect: Some(LIMIT),
        read: None,
        write: None,
    };
    let never = service_fn(|_| std::future::pending::<Result<(), BoxError>>());
    let opened = timeouts.connect(never, Uri::from_static("https://host"));
    times_out(opened.map_ok(|_| ())).await;
}

struct Wakes(AtomicUsize);

impl Wake for Wakes {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// A read that delivers bytes leaves no timer that fires soon. Such a timer interrupts the event loop.
#[tokio::test(start_paused = true)]
async fn a_read_wakes_nothing() {
    let (mut ours, mut theirs) = pair();
    let counted = Arc::new(Wakes(AtomicUsize::new(0)));
    let waker = Arc::clone(&counted).into();
    let mut cx = Context::from_waker(&waker);
    for arrived in 1..=3 {
        assert!(poll_read(&mut ours, &mut cx).is_pending());
        theirs.write_all(b"x").await.unwrap();
        assert!(poll_read(&mut ours, &mut cx).is_ready());
        advance(TICK).await;
        assert_eq!(counted.0.load(Ordering::Relaxed), arrived);
    }
}
