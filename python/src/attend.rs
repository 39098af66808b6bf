//! Runs long work while Python stays responsive: the GIL is released, Ctrl-C is handled, progress
//! is reported, and a panic is an exception.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use pyo3::prelude::*;

use crate::errors::{self, Class};

/// How often Ctrl-C is looked for and progress told.
const INTERVAL: Duration = Duration::from_millis(50);
/// How long to wait for stopped work: Ctrl-C must take effect within a second.
const PATIENCE: Duration = Duration::from_millis(700);

/// What the worker is watched by: it says how far it is, and asks whether to stop.
#[derive(Debug, Default)]
pub(crate) struct Watch {
    stop: AtomicBool,
    done: AtomicU64,
    total: AtomicU64,
    /// What is being done, until it was told.
    name: Mutex<Option<String>>,
    /// The work has ended. Its thread lives on for a moment, for which nobody should sleep.
    ended: AtomicBool,
}

impl Watch {
    /// True when the work is to end soon, with what it has.
    pub(crate) fn stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// So much is done, of so much.
    pub(crate) fn at(&self, done: u64, total: u64) {
        self.done.store(done, Ordering::Relaxed);
        self.total.store(total, Ordering::Relaxed);
    }

    /// Another part of the work begins.
    pub(crate) fn name(&self, name: &str) {
        if let Ok(mut place) = self.name.lock() {
            *place = Some(name.to_owned());
        }
    }

    fn take_name(&self) -> Option<String> {
        self.name.lock().ok().and_then(|mut name| name.take())
    }

    fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

/// What work came to.
#[derive(Debug)]
pub(crate) struct Attended<T> {
    /// What it returned; when it was stopped, what it had by then. Nothing when it did not stop in
    /// time and was left behind.
    pub(crate) value: Option<T>,
    /// Why it was stopped: Ctrl-C, or what the progress function raised.
    pub(crate) stopped: Option<PyErr>,
}

impl<T> Attended<T> {
    /// The value of work of which a part is worth nothing.
    pub(crate) fn finished(self, py: Python<'_>) -> PyResult<T> {
        match (self.stopped, self.value) {
            (Some(reason), _) => Err(errors::stopped(py, reason, py.None())),
            (None, Some(value)) => Ok(value),
            (None, None) => Err(Class::Internal.error(py, "work ended without a result")),
        }
    }
}

/// Runs `work` on a thread of its own, without Python's lock, while this one attends to signals and
/// calls `progress(done, total)`.
///
/// Work that does not look at its [`Watch`] within [`PATIENCE`] of being told to stop is left
/// behind: it owns what it works on, ends when it is done, and its result is dropped.
///
/// # Errors
/// `InternalError` if the work panics. The result shows if it was stopped.
pub(crate) fn attend<T: Send + 'static>(
    py: Python<'_>,
    progress: Option<Py<PyAny>>,
    work: impl FnOnce(&Watch) -> T + Send + 'static,
) -> PyResult<Attended<T>> {
    let watch = Arc::new(Watch::default());
    let (outcome, stopped) = py.detach(|| {
        let attendant = thread::current();
        let watched = Arc::clone(&watch);
        let worker = thread::spawn(move || {
            let outcome = catch_unwind(AssertUnwindSafe(|| work(&watched)));
            watched.ended.store(true, Ordering::Release);
            attendant.unpark();
            outcome
        });
        let mut stopped: Option<PyErr> = None;
        let mut told_at = None;
        let ended = || watch.ended.load(Ordering::Acquire);
        while !ended() {
            thread::park_timeout(INTERVAL);
            if let Err(error) = look_up(&watch, progress.as_ref()) {
                watch.stop();
                // The first reason counts: impatience does not replace it.
                stopped.get_or_insert(error);
                told_at.get_or_insert_with(Instant::now);
            }
            if told_at.is_some_and(|at| at.elapsed() > PATIENCE) && !ended() {
                return (None, stopped);
            }
        }
        (Some(worker.join()), stopped)
    });
    let value = match outcome {
        None => None,
        Some(Ok(Ok(value))) => Some(value),
        Some(Ok(Err(payload)) | Err(payload)) => {
            return Err(errors::of_panic(py, payload.as_ref()));
        }
    };
    Ok(Attended { value, stopped })
}

/// Lets Python handle its signals, and tells how far the work is.
fn look_up(watch: &Watch, progress: Option<&Py<PyAny>>) -> PyResult<()> {
    Python::attach(|py| {
        py.check_signals()?;
        let total = watch.total.load(Ordering::Relaxed);
        if let Some(progress) = progress.filter(|_| total > 0 && !watch.stopped()) {
            // A progress bar of ours says what is being done; a function has no place for it.
            if let Some(name) = watch.take_name()
                && progress.bind(py).hasattr("what")?
            {
                progress.setattr(py, "what", name)?;
            }
            progress.call1(py, (watch.done.load(Ordering::Relaxed), total))?;
        }
        Ok(())
    })
}
