//! `fairlead_lab._core`: what computes, for the Python package `fairlead_lab`.
//!
//! Three things are kept at this boundary, each in a file of its own: a panic becomes an exception
//! and an error an exception that says what to do (`errors.rs`); long work runs without Python's
//! lock and hears of Ctrl-C (`attend.rs`); columns go over without a copy (`column.rs`).

mod accesses;
mod attend;
mod column;
mod content;
mod control;
mod errors;
mod protocol;
mod reports;
mod requests;
mod simulate;
mod tasks;

use pyo3::prelude::*;

/// The compiled part of `fairlead_lab`. Use the package, not this.
#[pymodule]
mod _core {
    #[pymodule_export]
    use super::{accesses::PyAccesses, column::Column, requests::PyRequests, tasks::PyTaskStream};

    #[pymodule_export]
    use super::reports::{advice, cli, own_scheme, paper_report, registered, statistics};

    #[pymodule_export]
    use super::content::{content_advise, content_paper, content_run};

    #[pymodule_export]
    use super::protocol::{protocol_caches, protocol_layers, protocol_sweep};

    #[pymodule_export]
    use super::simulate::{fully_associative, simulate};

    #[pymodule_export]
    use super::tasks::{plan_tasks, stream_of_task};

    #[pymodule_export]
    use super::{panic_for_tests, version, wait_for_tests};
}

/// The version of what computes, which is a part of every task's key.
#[pyfunction]
fn version() -> &'static str {
    env!("CARGO_PKG_VERSION")
}

/// Panics, so that the tests can see what becomes of it.
#[pyfunction]
#[pyo3(name = "_panic_for_tests")]
fn panic_for_tests(py: Python<'_>) -> PyResult<()> {
    attend::attend(py, None, |_| panic!("asked to"))?.finished(py)
}

/// Works for the given milliseconds, or until it is stopped unless it is deaf; returns how long it
/// did.
#[pyfunction]
#[pyo3(name = "_wait_for_tests", signature = (milliseconds, progress=None, deaf=false))]
fn wait_for_tests(
    py: Python<'_>,
    milliseconds: u64,
    progress: Option<Py<PyAny>>,
    deaf: bool,
) -> PyResult<u64> {
    let attended = attend::attend(py, progress, move |watch| {
        let mut waited = 0;
        while waited < milliseconds && (deaf || !watch.stopped()) {
            std::thread::sleep(std::time::Duration::from_millis(10));
            waited += 10;
            watch.at(waited, milliseconds);
        }
        waited
    })?;
    attended.finished(py)
}
