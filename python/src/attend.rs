//! Long work beside an attentive Python: the lock is released, Ctrl-C is heard, progress is told,
//! and a panic is an exception.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use pyo3::prelude::*;

use crate::errors;

/// How often Ctrl-C is looked for and progress told.
const INTERVAL: Duration = Duration::from_millis(50);

/// What the worker is watched by: it says how far it is, and asks whether to stop.
#[derive(Debug, Default)]
pub(crate) struct Watch {
    stop: AtomicBool,
    done: AtomicU64,
    total: AtomicU64,
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

    fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

/// What work came to.
#[derive(Debug)]
pub(crate) struct Attended<T> {
    /// What it returned; when it was stopped, what it had by then.
    pub(crate) value: T,
    /// Why it was stopped: Ctrl-C, or what the progress function raised.
    pub(crate) stopped: Option<PyErr>,
}

impl<T> Attended<T> {
    /// The value of work of which a part is worth nothing.
    pub(crate) fn finished(self) -> PyResult<T> {
        match self.stopped {
            Some(error) => Err(error),
            None => Ok(self.value),
        }
    }
}

/// Runs `work` on a thread of its own, without Python's lock, while this one attends to signals and
/// calls `progress(done, total)`.
///
/// # Errors
/// `InternalError` when the work panics. That it was stopped is told in the result.
pub(crate) fn attend<T: Send>(
    py: Python<'_>,
    progress: Option<Py<PyAny>>,
    work: impl FnOnce(&Watch) -> T + Send,
) -> PyResult<Attended<T>> {
    let watch = Watch::default();
    let (outcome, stopped) = py.detach(|| {
        let attendant = thread::current();
        thread::scope(|scope| {
            let worker = scope.spawn(|| {
                let outcome = catch_unwind(AssertUnwindSafe(|| work(&watch)));
                attendant.unpark();
                outcome
            });
            let mut stopped = None;
            while !worker.is_finished() {
                thread::park_timeout(INTERVAL);
                if let Err(error) = look_up(&watch, progress.as_ref()) {
                    watch.stop();
                    // The first reason counts: impatience does not replace it.
                    stopped.get_or_insert(error);
                }
            }
            (worker.join(), stopped)
        })
    });
    match outcome {
        Ok(Ok(value)) => Ok(Attended { value, stopped }),
        Ok(Err(payload)) | Err(payload) => Err(errors::of_panic(py, payload.as_ref())),
    }
}

/// Lets Python handle its signals, and tells how far the work is.
fn look_up(watch: &Watch, progress: Option<&Py<PyAny>>) -> PyResult<()> {
    Python::attach(|py| {
        py.check_signals()?;
        let total = watch.total.load(Ordering::Relaxed);
        if let Some(progress) = progress.filter(|_| total > 0 && !watch.stopped()) {
            progress.call1(py, (watch.done.load(Ordering::Relaxed), total))?;
        }
        Ok(())
    })
}
