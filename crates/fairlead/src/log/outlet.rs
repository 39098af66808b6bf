//! Bounded buffer for log lines, written by its own thread.
//!
//! The reader of standard error may stall. Lines are then dropped and counted; the logging thread
//! never waits for the reader.

use std::fmt;
use std::fs::File;
use std::io::{self, Write};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Maximum bytes buffered: a third of a second at 10,000 connections per second. The writing thread
/// may hold the same amount again.
pub(super) const WAITING_BYTES_MAX: usize = 1 << 20;

/// Pause before retrying a write that would block (another process may have made the descriptor
/// non-blocking).
const PAUSE: Duration = Duration::from_millis(10);

/// A bounded buffer of lines and the thread that writes them, shared by all logging threads.
#[derive(Debug)]
pub(super) struct Outlet {
    bytes_max: usize,
    state: Mutex<State>,
    /// Signalled when the buffer becomes non-empty or has been written.
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    waiting: Vec<u8>,
    is_writing: bool,
    lost: u64,
    /// Opens what the next lines are written to.
    next: Option<Opener>,
}

/// Opens a file; `None` if that fails.
struct Opener(Box<dyn FnOnce() -> Option<File> + Send>);

impl fmt::Debug for Opener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Opener")
    }
}

impl Outlet {
    /// An outlet to `reader`, which may block indefinitely, for at most `bytes_max` waiting bytes.
    /// When lines can be written again after a loss, `on_loss` is called with the number of lost
    /// lines, on the outlet's thread.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub(super) fn start(
        reader: impl Write + Send + 'static,
        bytes_max: usize,
        on_loss: fn(u64),
    ) -> io::Result<Arc<Self>> {
        let reader: Box<dyn Write + Send> = Box::new(reader);
        let outlet = Arc::new(Self {
            bytes_max,
            state: Mutex::default(),
            changed: Condvar::new(),
        });
        let own = Arc::clone(&outlet);
        std::thread::Builder::new()
            .name("fairlead-log".into())
            .spawn(move || own.write_for_ever(reader, on_loss))?;
        Ok(outlet)
    }

    /// Lines lost so far because the buffer was full or the reader gone.
    pub(super) fn lost(&self) -> u64 {
        self.lock().lost
    }

    /// Waits until everything is written, at most `patience`. Returns true if it is.
    pub(super) fn flush(&self, patience: Duration) -> bool {
        let until = Instant::now() + patience;
        let mut state = self.lock();
        while state.is_writing || !state.waiting.is_empty() {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            state = match self.changed.wait_timeout(state, left) {
                Ok((state, _)) => state,
                Err(poisoned) => poisoned.into_inner().0,
            };
        }
        true
    }

    /// Writes to the file that `open` opens from now on; if it opens none, nothing changes. It is
    /// called on the outlet's thread, because a file system may be slow.
    pub(super) fn change_to(&self, open: impl FnOnce() -> Option<File> + Send + 'static) {
        self.lock().next = Some(Opener(Box::new(open)));
        self.changed.notify_all();
    }

    /// Adds one line, or counts it as lost.
    pub(super) fn add(&self, line: &[u8]) {
        let mut state = self.lock();
        if state.waiting.len() + line.len() > self.bytes_max {
            state.lost += 1;
            return;
        }
        let is_first = state.waiting.is_empty();
        state.waiting.extend_from_slice(line);
        drop(state);
        if is_first {
            self.changed.notify_all(); // a system call, needed only for the first line
        }
    }

    fn write_for_ever(&self, mut reader: Box<dyn Write + Send>, on_loss: fn(u64)) {
        let mut lines = Vec::new();
        let mut told = 0;
        let mut is_torn = false;
        loop {
            let mut state = self.lock();
            while state.waiting.is_empty() && state.next.is_none() {
                let waited = self.changed.wait(state);
                state = waited.unwrap_or_else(PoisonError::into_inner);
            }
            std::mem::swap(&mut state.waiting, &mut lines);
            let next = state.next.take();
            state.is_writing = true;
            drop(state);

            if let Some(file) = next.and_then(|next| next.0()) {
                reader = Box::new(file);
                is_torn = false;
            }
            if is_torn {
                // So that the next line is one of its own.
                lines.insert(0, b'\n');
            }
            let rest = write_all(&mut reader, &lines);
            let written = lines.len() - rest.len();
            let breaks = rest.iter().filter(|&&byte| byte == b'\n').count() as u64;
            let unwritten = breaks - u64::from(is_torn && written == 0);
            is_torn = match written.checked_sub(1) {
                Some(last) => lines[last] != b'\n',
                None => is_torn,
            };
            lines.clear();
            let mut state = self.lock();
            state.lost += unwritten;
            let lost = state.lost;
            drop(state);
            if unwritten == 0 && lost > told {
                on_loss(lost - told);
                told = lost;
            }
            self.lock().is_writing = false;
            self.changed.notify_all();
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // The state is consistent at every point under the lock.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Every line arrives in one call.
impl Write for &Outlet {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.add(line);
        Ok(line.len())
    }

    /// Does not wait; use [`Outlet::flush`].
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Writes `lines`, however long it takes; returns what could not be written.
fn write_all<'l>(reader: &mut impl Write, mut lines: &'l [u8]) -> &'l [u8] {
    while !lines.is_empty() {
        match reader.write(lines) {
            Ok(written @ 1..) => lines = &lines[written.min(lines.len())..],
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => std::thread::sleep(PAUSE),
            Ok(0) | Err(_) => break,
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(10);

    fn say(outlet: &Outlet, line: &str) {
        let mut outlet = outlet;
        outlet.write_all(line.as_bytes()).unwrap();
    }

    #[test]
    fn lines_arrive_whole_and_in_order() {
        let (mut reader, writer) = io::pipe().unwrap();
        let outlet = Outlet::start(writer, WAITING_BYTES_MAX, |_| {}).unwrap();
        let expected: String = (0..5_000).map(|n| format!("line {n}\n")).collect();
        let length = expected.len();
        let reading = std::thread::spawn(move || {
            let mut text = vec![0; length];
            reader.read_exact(&mut text).unwrap();
            String::from_utf8(text).unwrap()
        });
        expected
            .split_inclusive('\n')
            .for_each(|line| say(&outlet, line));
        assert!(outlet.flush(PATIENCE));
        assert_eq!(reading.join().unwrap(), expected);
        assert_eq!(outlet.lost(), 0);
    }

    #[test]
    fn a_stalled_reader_blocks_nothing_and_losses_are_reported() {
        static TOLD: AtomicU64 = AtomicU64::new(0);
        let (mut reader, writer) = io::pipe().unwrap();
        let outlet = Outlet::start(writer, WAITING_BYTES_MAX, |lost| {
            TOLD.fetch_add(lost, Ordering::Relaxed);
        })
        .unwrap();
        let line = format!("{}\n", "x".repeat(999));
        let lines = 4 * WAITING_BYTES_MAX / line.len();
        (0..lines).for_each(|_| say(&outlet, &line));
        assert!(!outlet.flush(Duration::from_millis(20)), "nobody reads");
        let lost = outlet.lost();
        // What waits, what is on its way, and what the pipe holds.
        let kept = lines as u64 - lost;
        let room = (WAITING_BYTES_MAX / line.len()) as u64;
        assert!((room..=3 * room).contains(&kept), "{kept} of {lines} kept");

        let expected = kept * line.len() as u64;
        let reading = std::thread::spawn(move || {
            let mut rest = vec![0; expected as usize];
            reader.read_exact(&mut rest).unwrap();
            (reader, rest)
        });
        assert!(outlet.flush(PATIENCE));
        let (_reader, rest) = reading.join().unwrap();
        assert!(rest.chunks(line.len()).all(|one| one == line.as_bytes()));
        say(&outlet, "again\n");
        assert!(outlet.flush(PATIENCE));
        assert_eq!((outlet.lost(), TOLD.load(Ordering::Relaxed)), (lost, lost));
    }

    #[test]
    fn lines_for_a_closed_reader_are_counted() {
        let (reader, writer) = io::pipe().unwrap();
        drop(reader);
        let outlet = Outlet::start(writer, WAITING_BYTES_MAX, |_| {}).unwrap();
        say(&outlet, "one\n");
        assert!(outlet.flush(PATIENCE));
        say(&outlet, "two\n");
        assert!(outlet.flush(PATIENCE));
        assert_eq!(outlet.lost(), 2);
    }

    #[test]
    fn short_writes_are_completed() {
        struct Slow {
            text: Arc<Mutex<Vec<u8>>>,
            turn: u32,
        }
        impl Write for Slow {
            fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
                self.turn += 1;
                match self.turn % 3 {
                    0 => Err(io::ErrorKind::WouldBlock.into()),
                    1 => Err(io::ErrorKind::Interrupted.into()),
                    _ => {
                        self.text.lock().unwrap().push(bytes[0]);
                        Ok(1)
                    }
                }
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let text = Arc::new(Mutex::new(Vec::new()));
        let slow = Slow {
            text: Arc::clone(&text),
            turn: 0,
        };
        let outlet = Outlet::start(slow, WAITING_BYTES_MAX, |_| {}).unwrap();
        say(&outlet, "a line\n");
        assert!(outlet.flush(PATIENCE));
        assert_eq!(*text.lock().unwrap(), b"a line\n");
    }

    #[test]
    fn a_line_that_was_torn_does_not_tear_the_next() {
        /// Takes a few bytes, then nothing more for one time.
        struct Full {
            text: Arc<Mutex<Vec<u8>>>,
            room: usize,
        }
        impl Write for Full {
            fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
                let count = std::mem::take(&mut self.room).min(bytes.len());
                if count == 0 {
                    self.room = 1_000;
                    return Err(io::ErrorKind::StorageFull.into());
                }
                self.text.lock().unwrap().extend_from_slice(&bytes[..count]);
                Ok(count)
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let text = Arc::new(Mutex::new(Vec::new()));
        let full = Full {
            text: Arc::clone(&text),
            room: 4,
        };
        let outlet = Outlet::start(full, WAITING_BYTES_MAX, |_| {}).unwrap();
        say(&outlet, "torn line\n");
        assert!(outlet.flush(PATIENCE));
        say(&outlet, "whole\n");
        assert!(outlet.flush(PATIENCE));
        assert_eq!(*text.lock().unwrap(), b"torn\nwhole\n");
        assert_eq!(outlet.lost(), 1);
        let (mut reader, writer) = io::pipe().unwrap();
        outlet.change_to(|| None);
        let writer = std::os::fd::OwnedFd::from(writer);
        outlet.change_to(|| Some(writer.into()));
        say(&outlet, "elsewhere\n");
        assert!(outlet.flush(PATIENCE));
        let mut line = [0; 10];
        reader.read_exact(&mut line).unwrap();
        assert_eq!(&line, b"elsewhere\n");
    }
}
