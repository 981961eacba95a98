//! Standard error: a queue with a limit, and a thread that writes it.
//!
//! A write to a pipe blocks while its reader does not read, as with a pager, or a log driver that hangs. Only the thread
//! blocks. Lines that the queue has no room for are dropped and counted; so are lines that cannot be written because the
//! reader is gone or the disk is full.

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

/// Bytes that can wait: some thousand lines.
const LIMIT: usize = 1 << 20;

/// Pause before the next attempt at a pipe that is full and that another process made non-blocking.
const FULL_PIPE: Duration = Duration::from_millis(10);

static STDERR: Output = Output::new();

/// Starts the thread, unless it runs already. Until then, lines are written by their own threads.
///
/// # Errors
/// No thread can be started.
pub fn start() -> io::Result<()> {
    let mut state = STDERR.state.lock();
    if state.started {
        return Ok(());
    }
    // A descriptor of its own: the lock of `io::stderr` is left to others while a write blocks.
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

/// Returns how many lines were lost.
pub fn lost() -> u64 {
    STDERR.state.lock().lost
}

/// Writes one line beside the log.
pub fn line(text: &str) {
    let _ = Lines.write_all(format!("{text}\n").as_bytes());
}

/// Waits until all lines are written, for this long at most.
pub fn flush(limit: Duration) {
    STDERR.flush(limit);
}

/// Takes whole lines. Writing to it never blocks and never fails.
pub struct Lines;

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
    /// Whether the last write failed. The report of lost lines would fail as well, and be lost.
    failing: bool,
    /// Lines lost so far.
    lost: u64,
    /// The part of them that the log reports.
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

    /// Queues lines, or drops them. Returns false if there is no thread yet that writes them.
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

    /// Writes lines to `sink` until the process ends. `report` logs the number of lost lines, behind the last line
    /// before them.
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
            // The rest of a torn line is lost. The next line does not continue it.
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
    // All end with a line end.
    lines.split_inclusive(|byte| *byte == b'\n').count() as u64
}

/// Returns how many bytes were written before an error, if there was one.
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

    /// A sink whose writes end as the test decides, and the written text.
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

        /// Lets all be written that there is.
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

        /// Waits until the thread has taken all that waits.
        fn taken(&self) {
            let mut state = self.output.state.lock();
            while !state.waiting.is_empty() {
                self.output
                    .changed
                    .wait_for(&mut state, Duration::from_millis(1));
            }
        }
    }

    /// While a write blocks, no caller waits: the queue has a limit, lines beyond it are counted, and their number is reported
    /// where they are missing.
    #[test]
    fn a_sink_that_blocks_stops_nobody() {
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

    /// A full disk, a reader that is gone: lines are lost and counted, nothing spins, and a line that was torn is none of
    /// the next one's.
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

    /// A pipe that another process made non-blocking, and a signal in the middle of a write, lose nothing.
    #[test]
    fn a_sink_that_is_not_ready_is_tried_again() {
        let scene = Scene::new();
        scene.fails(ErrorKind::WouldBlock);
        scene.fails(ErrorKind::Interrupted);
        scene.put("line\n");
        assert_eq!(scene.next(), "line\n");
        assert_eq!(scene.lost(), 0);
    }
}
