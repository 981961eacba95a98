//! Standard error: a bounded queue and a thread that writes it.
//!
//! A write to a pipe blocks while its reader does not read, for example a pager or a log driver that hangs. Only the thread
//! blocks. Lines are dropped and counted if the queue is full, if the reader has closed the pipe, or if the disk is full.

use std::{
    fs::File,
    io::{self, ErrorKind, Write},
    mem,
    os::fd::AsFd as _,
    thread,
    time::Duration,
};

use parking_lot::{Condvar, Mutex};
use tracing::warn;

/// Size of the queue in bytes: some thousand lines.
const LIMIT: usize = 1 << 20;

/// Delay before the next write to a full pipe that another process has made non-blocking.
const FULL_PIPE: Duration = Duration::from_millis(10);

static STDERR: Output = Output::new();

/// Starts the thread, unless it is running. Before that, each caller writes its own lines.
///
/// # Errors
/// The thread cannot be started.
pub(crate) fn start() -> io::Result<()> {
    let mut state = STDERR.state.lock();
    if state.started {
        return Ok(());
    }
    // A separate descriptor: a blocked write must not hold the lock of `io::stderr`.
    let stderr: File = io::stderr().as_fd().try_clone_to_owned()?.into();
    let lost = |lines| {
        warn!(
            lines,
            "lines of this log were lost: standard error did not take them"
        );
    };
    thread::Builder::new()
        .name("stderr".to_owned())
        .spawn(move || STDERR.run(stderr, lost))?;
    state.started = true;
    Ok(())
}

/// Returns the number of lost lines.
pub(crate) fn lost() -> u64 {
    STDERR.state.lock().lost
}

/// Writes one line that is not part of the log.
pub(crate) fn line(text: &str) {
    let _ = Lines.write_all(format!("{text}\n").as_bytes());
}

/// Waits until all lines are written, at most `limit`.
pub(crate) fn flush(limit: Duration) {
    STDERR.flush(limit);
}

/// Writer for whole lines. It never blocks once the thread runs, and never fails.
pub(crate) struct Lines;

impl Write for Lines {
    fn write(&mut self, lines: &[u8]) -> io::Result<usize> {
        if !STDERR.put(lines) {
            let _ = io::stderr().write_all(lines);
        }
        Ok(lines.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

struct Output {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    started: bool,
    waiting: Vec<u8>,
    writing: bool,
    /// Whether the last write failed. A report of lost lines would then be lost as well.
    failing: bool,
    /// Number of lines lost so far.
    lost: u64,
    /// Number of lost lines that the log has reported.
    reported: u64,
}

impl State {
    fn is_done(&self) -> bool {
        self.waiting.is_empty() && (self.failing || self.lost == self.reported)
    }
}

impl Output {
    const fn new() -> Self {
        Self {
            state: Mutex::new(State {
                started: false,
                waiting: Vec::new(),
                writing: false,
                failing: false,
                lost: 0,
                reported: 0,
            }),
            changed: Condvar::new(),
        }
    }

    /// Queues the lines, or drops them if the queue is full. Returns false if the thread has not started.
    fn put(&self, lines: &[u8]) -> bool {
        let mut state = self.state.lock();
        if !state.started {
            return false;
        }
        if state.waiting.is_empty() || state.waiting.len() + lines.len() <= LIMIT {
            state.waiting.extend_from_slice(lines);
            self.changed.notify_all();
        } else {
            state.lost += count(lines);
        }
        true
    }

    fn flush(&self, limit: Duration) {
        let is_busy = |state: &mut State| state.writing || !state.is_done();
        let mut state = self.state.lock();
        self.changed.wait_while_for(&mut state, is_busy, limit);
    }

    /// Writes lines to `sink` until the process ends. `report` logs the number of lost lines, after the last line before them.
    fn run(&self, mut sink: impl Write, report: impl Fn(u64)) {
        let mut torn = false;
        loop {
            let mut state = self.state.lock();
            state.writing = false;
            self.changed.notify_all();
            self.changed.wait_while(&mut state, |state| state.is_done());
            state.writing = true;
            let lines = mem::take(&mut state.waiting);
            let mut lost = 0;
            if !state.failing {
                lost = state.lost - state.reported;
                state.reported = state.lost;
            }
            drop(state);

            if lost > 0 {
                report(lost);
            }
            // The rest of a torn line is lost. The next line must not continue it.
            torn = torn && write(&mut sink, b"\n") == 0;
            let (written, rest) = lines.split_at(write(&mut sink, &lines));
            torn = written.last().map_or(torn, |last| *last != b'\n');
            let mut state = self.state.lock();
            state.lost += count(rest);
            state.failing = !rest.is_empty();
        }
    }
}

fn count(lines: &[u8]) -> u64 {
    // Each line ends with a newline.
    lines.split_inclusive(|byte| *byte == b'\n').count() as u64
}

/// Returns the number of bytes written before an error, if there was one.
fn write(sink: &mut impl Write, bytes: &[u8]) -> usize {
    let mut written = 0;
    while written < bytes.len() {
        match sink.write(&bytes[written..]) {
            Ok(0) => break,
            Ok(some) => written += some,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => thread::sleep(FULL_PIPE),
            Err(_) => break,
        }
    }
    written
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use std::sync::mpsc::{Receiver, Sender, channel};

    use super::*;

    const SOON: Duration = Duration::from_secs(10);

    /// A sink whose writes end as the test decides. It sends the written text to the test.
    struct Decided {
        writes: Receiver<io::Result<usize>>,
        written: Sender<String>,
    }

    impl Write for Decided {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let written = self
                .writes
                .recv()
                .unwrap_or(Err(io::Error::other("the test is over")))?;
            let written = written.min(bytes.len());
            let text = String::from_utf8(bytes[..written].to_vec()).unwrap();
            self.written.send(text).unwrap();
            Ok(written)
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    struct Scene {
        output: &'static Output,
        writes: Sender<io::Result<usize>>,
        written: Receiver<String>,
    }

    impl Scene {
        fn new() -> Self {
            let output: &'static Output = Box::leak(Box::new(Output::new()));
            output.state.lock().started = true;
            let ((writes, decided), (sender, written)) = (channel(), channel());
            let sink = Decided {
                writes: decided,
                written: sender,
            };
            let report = |lines| _ = output.put(format!("{lines} lost\n").as_bytes());
            thread::spawn(move || output.run(sink, report));
            Self {
                output,
                writes,
                written,
            }
        }

        fn put(&self, line: &str) {
            assert!(self.output.put(line.as_bytes()));
        }

        /// Lets the sink write everything that it is given.
        fn next(&self) -> String {
            self.writes.send(Ok(usize::MAX)).unwrap();
            self.written.recv_timeout(SOON).unwrap()
        }

        fn fails(&self, error: ErrorKind) {
            self.writes.send(Err(error.into())).unwrap();
        }

        fn lost(&self) -> u64 {
            self.output.state.lock().lost
        }

        /// Waits until the thread has taken all queued lines.
        fn taken(&self) {
            let mut state = self.output.state.lock();
            while !state.waiting.is_empty() {
                self.output
                    .changed
                    .wait_for(&mut state, Duration::from_millis(1));
            }
        }
    }

    /// Callers do not wait while a write blocks. The queue is bounded, further lines are counted, and their number is reported
    /// where they are missing.
    #[test]
    fn a_blocked_sink_does_not_block_callers() {
        let scene = Scene::new();
        scene.put("first\n");
        scene.taken();
        let line = "x".repeat(1023) + "\n";
        for _ in 0..LIMIT / line.len() + 3 {
            scene.put(&line);
        }
        assert_eq!(scene.lost(), 3);
        scene.output.flush(Duration::from_millis(10));
        assert_eq!(scene.next(), "first\n");
        assert_eq!(scene.next().len(), LIMIT);
        assert_eq!(scene.next(), "3 lost\n");
        scene.put("last\n");
        assert_eq!(scene.next(), "last\n");
        scene.output.flush(SOON);
        assert_eq!(scene.lost(), 3);
    }

    /// With a full disk or a closed pipe, lines are lost and counted without a busy loop. The next line does not continue a
    /// torn one.
    #[test]
    fn a_sink_that_fails_loses_lines() {
        let scene = Scene::new();
        scene.put("torn\nsecond\n");
        scene.writes.send(Ok(2)).unwrap();
        assert_eq!(scene.written.recv_timeout(SOON).unwrap(), "to");
        scene.fails(ErrorKind::StorageFull);
        scene.output.flush(SOON);
        assert_eq!(scene.lost(), 2);
        scene.fails(ErrorKind::BrokenPipe);
        scene.fails(ErrorKind::BrokenPipe);
        scene.put("third\n");
        scene.output.flush(SOON);
        assert_eq!(scene.lost(), 3);
        scene.put("fourth\n");
        assert_eq!(scene.next(), "\n");
        assert_eq!(scene.next(), "fourth\n");
        assert_eq!(scene.next(), "3 lost\n");
        scene.output.flush(SOON);
        assert_eq!(scene.lost(), 3);
    }

    /// No line is lost to a pipe that another process made non-blocking, or to a signal during a write.
    #[test]
    fn a_sink_that_is_not_ready_is_retried() {
        let scene = Scene::new();
        scene.fails(ErrorKind::WouldBlock);
        scene.fails(ErrorKind::Interrupted);
        scene.put("line\n");
        assert_eq!(scene.next(), "line\n");
        assert_eq!(scene.lost(), 0);
    }
}
