//! What goes wrong here, as exceptions of the package's own: `fairlead_lab.errors` defines them in
//! Python, where one can inherit from several.

use std::any::Any;

use fairlead_lab::table::visible;
use pyo3::exceptions::{PyKeyboardInterrupt, PyRuntimeError};
use pyo3::prelude::*;
use pyo3::types::PyType;

/// Which class of `fairlead_lab.errors` it becomes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Class {
    /// A trace that cannot be read.
    Trace,
    /// A cache that cannot be built.
    Geometry,
    /// A plan that cannot be carried out.
    Plan,
    /// An argument that means nothing.
    Argument,
    /// A fault of ours.
    Internal,
}

impl Class {
    const fn name(self) -> &'static str {
        match self {
            Self::Trace => "TraceError",
            Self::Geometry => "GeometryError",
            Self::Plan => "PlanError",
            Self::Argument => "ArgumentError",
            Self::Internal => "InternalError",
        }
    }

    /// The exception, to be raised.
    pub(crate) fn error(self, py: Python<'_>, message: impl std::fmt::Display) -> PyErr {
        // Names of files are in it, and a terminal is where it ends.
        let message = visible(&message.to_string()).into_owned();
        let class = py
            .import("fairlead_lab.errors")
            .and_then(|module| module.getattr(self.name()))
            .and_then(|class| Ok(class.cast_into::<PyType>()?));
        match class {
            Ok(class) => PyErr::from_type(class, message),
            // Only when the package was taken apart: the message still arrives.
            Err(_) => PyRuntimeError::new_err(message),
        }
    }
}

/// Ctrl-C, or what a progress function raised. With Ctrl-C what is finished goes along, as
/// `Interrupted.finished`.
pub(crate) fn stopped<'py>(
    py: Python<'py>,
    reason: PyErr,
    finished: impl IntoPyObject<'py>,
) -> PyErr {
    if !reason.is_instance_of::<PyKeyboardInterrupt>(py) {
        return reason;
    }
    let made = py
        .import("fairlead_lab.errors")
        .and_then(|module| module.getattr("Interrupted"))
        .and_then(|class| class.call1((finished,)));
    match made {
        Ok(interrupted) => PyErr::from_value(interrupted),
        Err(error) => error,
    }
}

/// What a panic said, as an exception.
pub(crate) fn of_panic(py: Python<'_>, payload: &(dyn Any + Send)) -> PyErr {
    let said = payload
        .downcast_ref::<&str>()
        .map(|text| (*text).to_owned())
        .or_else(|| payload.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "a panic without a message".into());
    let message = format!("a fault of fairlead-lab, please report it: {said}");
    Class::Internal.error(py, message)
}
