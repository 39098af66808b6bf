//! The protocol study: caches over traces of references.

use std::fs::File;
use std::path::{Path, PathBuf};

use fairlead_cache::memory::{Geometry, Hierarchy};
use fairlead_lab::protocol::caches::count;
use fairlead_lab::protocol::layers::{Patterns, layers};
use fairlead_lab::protocol::machine::Machine;
use fairlead_lab::protocol::sweep::{SweepSpec, WARM_UP, sweep};
use fairlead_lab::{LabError, Size};
use fairlead_trace::references::Reader;
use pyo3::prelude::*;

use crate::control::{finish, parsed, written};

/// What is swept; lists that are empty have their defaults.
#[derive(Debug, serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Asked {
    #[serde(default)]
    sizes: Vec<Size>,
    #[serde(default)]
    ways: Vec<u32>,
    #[serde(default)]
    lines: Vec<u32>,
    #[serde(default)]
    machines: Vec<String>,
    policy: Option<String>,
    warm_up: Option<u64>,
}

impl Asked {
    fn spec(self) -> Result<SweepSpec, LabError> {
        fn or<T>(given: Vec<T>, usual: Vec<T>) -> Vec<T> {
            if given.is_empty() { usual } else { given }
        }
        let usual = SweepSpec::default();
        let machines = match &self.machines[..] {
            [] => Machine::known()?,
            names => {
                let found = names.iter().map(|name| Machine::find(name));
                found.collect::<Result<_, _>>()?
            }
        };
        Ok(SweepSpec {
            sizes: or(self.sizes, usual.sizes),
            ways: or(self.ways, usual.ways),
            lines: or(self.lines, usual.lines),
            policy: self.policy.unwrap_or(usual.policy),
            machines,
            clocks: usual.clocks,
            warm_up: self.warm_up.unwrap_or(WARM_UP),
        })
    }
}

fn open(path: &Path) -> Result<Reader<File>, LabError> {
    let file = File::open(path).map_err(|error| LabError::file(path, error))?;
    Reader::new(path.display().to_string(), file)
        .map_err(|error| LabError::Protocol(error.to_string()))
}

/// Misses of many caches and machines over a trace, as JSON.
#[pyfunction]
#[pyo3(signature = (trace, spec, threads=0, progress=None))]
pub(crate) fn protocol_sweep(
    py: Python<'_>,
    trace: PathBuf,
    spec: &str,
    threads: usize,
    progress: Option<Py<PyAny>>,
) -> PyResult<String> {
    let asked: Asked = parsed(py, "sweep", spec)?;
    let report = finish(py, progress, move |control| {
        sweep(&mut open(&trace)?, &asked.spec()?, threads, control)
    })?;
    written(py, &report)
}

/// Instructions of packets by layer, as JSON.
#[pyfunction]
#[pyo3(signature = (trace, patterns=None, progress=None))]
pub(crate) fn protocol_layers(
    py: Python<'_>,
    trace: PathBuf,
    patterns: Option<PathBuf>,
    progress: Option<Py<PyAny>>,
) -> PyResult<String> {
    let report = finish(py, progress, move |control| {
        let patterns = match &patterns {
            Some(path) => Patterns::read(path)?,
            None => Patterns::known()?,
        };
        layers(&mut open(&trace)?, &patterns, control)
    })?;
    written(py, &report)
}

/// A cache as Python writes it: size, ways, line.
type Shape = (u64, u32, u32);

/// The counts of two levels over a whole trace, as JSON.
#[pyfunction]
#[pyo3(signature = (trace, i1, d1, ll, progress=None))]
pub(crate) fn protocol_caches(
    py: Python<'_>,
    trace: PathBuf,
    i1: Shape,
    d1: Shape,
    ll: Shape,
    progress: Option<Py<PyAny>>,
) -> PyResult<String> {
    let counts = finish(py, progress, move |control| {
        let geometry = |(size, ways, line): Shape| {
            Geometry::new(size, ways, line).map_err(|error| LabError::Geometry(error.to_string()))
        };
        let mut caches = Hierarchy::new(geometry(i1)?, geometry(d1)?, geometry(ll)?);
        count(&mut open(&trace)?, &mut caches, control)
    })?;
    written(py, &counts)
}
