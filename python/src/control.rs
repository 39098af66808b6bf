//! The laboratory's [`Control`], answered by whoever attends to Python.

use std::sync::atomic::{AtomicU64, Ordering};

use fairlead_lab::{Control, LabError};
use pyo3::prelude::*;

use crate::attend::{Attended, Watch, attend};
use crate::errors::Class;

/// Passes progress on and asks whether to stop. Lives on the worker's thread.
#[derive(Debug)]
pub(crate) struct Passed<'a> {
    watch: &'a Watch,
    steps: AtomicU64,
}

impl<'a> Passed<'a> {
    pub(crate) fn new(watch: &'a Watch) -> Self {
        Self {
            watch,
            steps: AtomicU64::new(0),
        }
    }
}

impl Control for Passed<'_> {
    fn stopped(&self) -> bool {
        self.watch.stopped()
    }

    fn begin(&self, what: &str, steps: u64) {
        self.steps.store(steps, Ordering::Relaxed);
        self.watch.name(what);
        self.watch.at(0, steps);
    }

    fn reached(&self, step: u64) {
        self.watch.at(step, self.steps.load(Ordering::Relaxed));
    }
}

/// What an error of the laboratory is in Python.
pub(crate) fn raised(py: Python<'_>, error: &LabError) -> PyErr {
    let class = match error {
        LabError::Option { .. } | LabError::Empty(_) => Class::Argument,
        LabError::Geometry(_) => Class::Geometry,
        LabError::Plan { .. } => Class::Plan,
        LabError::Trace(_)
        | LabError::Protocol(_)
        | LabError::Budget(_)
        | LabError::File { .. } => Class::Trace,
        // Nobody but Python stops the laboratory here, and then that is what is raised.
        // Python has no command that measures a machine.
        LabError::Stopped | LabError::Machine(_) => Class::Internal,
    };
    class.error(py, error)
}

/// Runs the laboratory while Python handles signals. The result shows if it was stopped, which then
/// may hold an error that says no more than that.
pub(crate) fn run<T: Send + 'static>(
    py: Python<'_>,
    progress: Option<Py<PyAny>>,
    work: impl FnOnce(&Passed<'_>) -> Result<T, LabError> + Send + 'static,
) -> PyResult<Attended<Result<T, LabError>>> {
    attend(py, progress, |watch| work(&Passed::new(watch)))
}

/// As [`run`], for work of which a part is worth nothing.
pub(crate) fn finish<T: Send + 'static>(
    py: Python<'_>,
    progress: Option<Py<PyAny>>,
    work: impl FnOnce(&Passed<'_>) -> Result<T, LabError> + Send + 'static,
) -> PyResult<T> {
    let value = run(py, progress, work)?.finished(py)?;
    value.map_err(|error| raised(py, &error))
}

/// From JSON that Python wrote; `what` is put before complaints.
pub(crate) fn parsed<T: serde::de::DeserializeOwned>(
    py: Python<'_>,
    what: &str,
    text: &str,
) -> PyResult<T> {
    understood(py, what, serde_json::from_str(text))
}

/// What was parsed from JSON that Python wrote; `what` is put before complaints.
pub(crate) fn understood<T>(
    py: Python<'_>,
    what: &str,
    parsed: Result<T, serde_json::Error>,
) -> PyResult<T> {
    parsed.map_err(|error| {
        // Where in a JSON text nobody wrote is of no help.
        let said = error.to_string();
        let said = said.split(" at line ").next().unwrap_or_default();
        Class::Argument.error(py, format!("{what}: {}", fairlead_lab::in_words(said)))
    })
}

/// To JSON, for Python to read.
pub(crate) fn written(py: Python<'_>, value: &impl serde::Serialize) -> PyResult<String> {
    serde_json::to_string(value).map_err(|error| Class::Internal.error(py, error))
}
