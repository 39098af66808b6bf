//! A second thread that looks after the first: inputs that take too long, or too much memory.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use crate::corpus;

/// One input may take this long. Far longer than any does, for the machine may be busy.
const INPUT_TIME_MAX: Duration = Duration::from_secs(30);

/// The process may take this much memory.
const RESIDENT_BYTES_MAX: u64 = 2 << 30;

const LOOK_EVERY: Duration = Duration::from_millis(200);

#[derive(Default)]
struct Work {
    input: Vec<u8>,
    since: Option<Instant>,
}

/// Watches over a session until it is dropped. A find ends the process with status 1: there is no
/// other way out of an endless loop.
pub(crate) struct Watch {
    work: Arc<Mutex<Work>>,
}

impl Watch {
    pub(crate) fn new(target: &'static str, artifacts: PathBuf) -> Self {
        let work = Arc::new(Mutex::new(Work::default()));
        let watched = Arc::downgrade(&work);
        thread::spawn(move || {
            loop {
                thread::sleep(LOOK_EVERY);
                let Some(work) = watched.upgrade() else {
                    return;
                };
                let work = work.lock().unwrap_or_else(PoisonError::into_inner);
                let Some(since) = work.since else { continue };
                let complaint = if since.elapsed() > INPUT_TIME_MAX {
                    format!("an input takes longer than {INPUT_TIME_MAX:?}")
                } else if resident_bytes().is_some_and(|bytes| bytes > RESIDENT_BYTES_MAX) {
                    format!("more than {} MiB are in use", RESIDENT_BYTES_MAX >> 20)
                } else {
                    continue;
                };
                eprintln!("{target}: {complaint}");
                match corpus::store(&artifacts, &format!("{target}-"), &work.input) {
                    Ok(path) => eprintln!("{target}: the input is in {}", path.display()),
                    Err(error) => eprintln!("{target}: the input cannot be written: {error}"),
                }
                std::process::exit(1);
            }
        });
        Self { work }
    }

    /// An input begins.
    pub(crate) fn begin(&self, input: &[u8]) {
        let mut work = self.work.lock().unwrap_or_else(PoisonError::into_inner);
        work.input.clear();
        work.input.extend_from_slice(input);
        work.since = Some(Instant::now());
    }

    /// It is over.
    pub(crate) fn end(&self) {
        let mut work = self.work.lock().unwrap_or_else(PoisonError::into_inner);
        work.since = None;
    }
}

/// Memory of this process that is in use, where the system tells.
fn resident_bytes() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/self/statm").ok()?;
    let pages: u64 = text.split(' ').nth(1)?.parse().ok()?;
    Some(pages * 4_096)
}
