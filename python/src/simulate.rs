//! Simulations over a stream, many configurations at once.

use std::sync::{Arc, Mutex, PoisonError};

use fairlead_cache::bounds;
use fairlead_lab::run::Finished;
use fairlead_lab::{Control, LabError, RunResult, RunSpec, Stream, Wanted, run_each};
use pyo3::prelude::*;
use serde::Serialize;

use crate::accesses::PyAccesses;
use crate::attend::Attended;
use crate::control::{finish, raised, run, understood, written};
use crate::errors;

/// Runs that are finished: their index, and what they counted.
type Done = Vec<(usize, RunResult)>;

/// Runs configurations over a stream beside an attentive Python; `each` is called with those that
/// are finished, also when it was stopped.
pub(crate) fn run_all<T>(
    py: Python<'_>,
    stream: &Arc<Stream>,
    specs: Vec<RunSpec>,
    wanted: Wanted,
    threads: usize,
    progress: Option<Py<PyAny>>,
    each: impl Fn(usize, &RunResult) -> PyResult<T>,
) -> PyResult<Vec<T>>
where
    Vec<T>: for<'py> IntoPyObject<'py>,
{
    let stream = Arc::clone(stream);
    let shared = Arc::new(Mutex::new(Done::new()));
    let kept = Arc::clone(&shared);
    let Attended { value, stopped } = run(py, progress, move |control| {
        let what = stream.note.trace.clone();
        let keep = &mut |finished: Finished| {
            let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
            kept.push((finished.index, finished.result));
        };
        run_each(&stream, &specs, wanted, threads, &what, control, keep)
    })?;
    let mut done = std::mem::take(&mut *shared.lock().unwrap_or_else(PoisonError::into_inner));
    done.sort_by_key(|(index, _)| *index);
    let mut results = Vec::with_capacity(done.len());
    for (index, result) in &done {
        results.push(each(*index, result)?);
    }
    match (stopped, value) {
        (Some(reason), _) => Err(errors::stopped(py, reason, results)),
        (None, Some(Err(error))) => Err(raised(py, &error)),
        (None, _) => Ok(results),
    }
}

/// A configuration, whole, and what it counted.
#[derive(Serialize)]
struct Row<'a> {
    #[serde(flatten)]
    run: &'a RunSpec,
    #[serde(flatten)]
    result: &'a RunResult,
}

/// Runs every configuration (a JSON object each) over the accesses; one without a seed takes the
/// stream's. Gives index and row (the
/// configuration, whole, and what it counted), as JSON, in their order. After Ctrl-C
/// `Interrupted.finished` has those that are finished. `bounds` is 0 for none, 1 for the fully
/// associative ones, 2 for those under each index too.
#[pyfunction]
#[pyo3(signature = (accesses, configurations, bounds=0, threads=0, progress=None))]
pub(crate) fn simulate(
    py: Python<'_>,
    accesses: &PyAccesses,
    configurations: Vec<String>,
    bounds: u8,
    threads: usize,
    progress: Option<Py<PyAny>>,
) -> PyResult<Vec<(usize, String)>> {
    let mut specs = Vec::with_capacity(configurations.len());
    for (at, text) in configurations.iter().enumerate() {
        let spec = RunSpec::from_json(text, accesses.stream.note.made.seed);
        specs.push(understood(py, &format!("configuration {}", at + 1), spec)?);
    }
    let asked = specs.clone();
    let wanted = match bounds {
        0 => Wanted::Nothing,
        1 => Wanted::Associative,
        _ => Wanted::All,
    };
    run_all(
        py,
        &accesses.stream,
        specs,
        wanted,
        threads,
        progress,
        |index, result| {
            let run = &asked[index];
            Ok((index, written(py, &Row { run, result })?))
        },
    )
}

/// A policy of a fully associative cache: misses by lines.
type Associative = fn(&bounds::Stream<'_>, u32) -> u64;

const ASSOCIATIVE: [(&str, Associative); 6] = [
    ("lru", bounds::lru),
    ("fifo", bounds::fifo),
    ("clock", bounds::clock),
    ("sieve", bounds::sieve),
    ("s3-fifo", bounds::s3_fifo),
    ("min", bounds::min),
];

/// Misses of fully associative caches with this number of lines, by policy; of all known ones when
/// none is named.
#[pyfunction]
pub(crate) fn fully_associative(
    py: Python<'_>,
    accesses: &PyAccesses,
    lines: u32,
    policies: Vec<String>,
) -> PyResult<Vec<(&'static str, u64)>> {
    let stream = Arc::clone(&accesses.stream);
    finish(py, None, move |control| {
        let failed = |error: bounds::StreamError| LabError::Trace(error.to_string());
        let counted = bounds::Stream::new(&stream.ids, stream.keys.len(), stream.counted_from);
        let goes_on = |_| !control.stopped();
        let counted = counted.map_err(failed)?.watched(&goes_on);
        if let Some(unknown) = policies
            .iter()
            .find(|name| ASSOCIATIVE.iter().all(|(known, _)| known != name))
        {
            let known: Vec<&str> = ASSOCIATIVE.iter().map(|(name, _)| *name).collect();
            let problem = format!("write one of: {}", known.join(" "));
            return Err(LabError::option("policy", unknown, problem));
        }
        let asked = |name: &str| policies.is_empty() || policies.iter().any(|one| one == name);
        let chosen = ASSOCIATIVE.iter().filter(|(name, _)| asked(name));
        Ok(chosen
            .map(|(name, misses)| (*name, misses(&counted, lines)))
            .collect())
    })
}
