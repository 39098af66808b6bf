//! The laboratory's longer works: the paper, advice, statistics, the map; and its command line.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use fairlead_cache::policy::Parameters;
use fairlead_cache::{Geometry, Scheme, index, registry};
use fairlead_lab::advise::{AdviseSpec, advise};
use fairlead_lab::cost::Constants;
use fairlead_lab::paper::{self, Given, PaperSpec, published};
use fairlead_lab::stat::{self as measure, StatSpec};
use fairlead_lab::{LabError, Size};
use pyo3::prelude::*;

use crate::accesses::PyAccesses;
use crate::attend::Attended;
use crate::control::{Passed, finish, raised, run, written};
use crate::errors;

/// Traces by path: folders are looked through for files that are known by name, files are taken as
/// they are.
fn given(paths: &[PathBuf], seed: u64) -> Result<Vec<Given>, LabError> {
    let mut all = Vec::new();
    for path in paths {
        if path.is_dir() {
            all.extend(paper::traces::in_folder(path, seed)?);
            continue;
        }
        if let Err(error) = path.metadata() {
            return Err(LabError::file(path, error));
        }
        let known = paper::traces::recognise(path, seed);
        all.push(known.unwrap_or_else(|| paper::traces::unknown(path, seed)));
    }
    Ok(all)
}

/// Seconds of the synthetic workload, and in a hurry.
const SECONDS: (f64, f64) = (60.0, 10.0);
/// Universal functions drawn in a hurry.
const DRAWS_QUICK: u32 = 50;
/// How many seeds are averaged over.
const SEEDS: u64 = 3;

fn paper_spec(
    paths: &[PathBuf],
    seed: u64,
    quick: bool,
    max_bad: f64,
) -> Result<PaperSpec, LabError> {
    if !(0.0..=1.0).contains(&max_bad) {
        let problem = "write a share from 0 to 1";
        return Err(LabError::option("max_bad", max_bad.to_string(), problem));
    }
    let mut traces = given(paths, seed)?;
    for one in &mut traces {
        one.made.max_bad = max_bad;
    }
    if quick {
        // The paper's own traces, and what was named as a file.
        let named = |one: &Given| {
            one.made
                .path
                .as_ref()
                .is_some_and(|path| paths.contains(path))
        };
        traces.retain(|one| one.paper_trace.is_some() || named(one));
    }
    let seconds = if quick { SECONDS.1 } else { SECONDS.0 };
    for trace in published::TRACES {
        if traces.iter().all(|one| one.paper_trace != Some(trace.name)) {
            traces.push(paper::traces::stand_in(trace.name, seconds, seed));
        }
    }
    let seeds = if quick { 1 } else { SEEDS };
    Ok(PaperSpec {
        traces,
        seeds: (seed..seed.saturating_add(seeds)).collect(),
        concurrency: paper::CONCURRENCY,
        hash_draws: if quick {
            DRAWS_QUICK
        } else {
            published::HASH_DRAWS
        },
        variants: !quick,
        constants: Constants::default(),
    })
}

/// The paper's figures and tables over these traces, as JSON. After Ctrl-C `Interrupted.finished`
/// has those of the traces that are finished.
#[pyfunction]
#[pyo3(
    name = "paper",
    signature = (paths, seed=1, threads=0, quick=false, progress=None, max_bad=0.01)
)]
pub(crate) fn paper_report(
    py: Python<'_>,
    paths: Vec<PathBuf>,
    seed: u64,
    threads: usize,
    quick: bool,
    progress: Option<Py<PyAny>>,
    max_bad: f64,
) -> PyResult<String> {
    let Attended { value, stopped } = run(py, progress, move |control| {
        paper::paper(paper_spec(&paths, seed, quick, max_bad)?, threads, control)
    })?;
    let text = match &value {
        Some(Ok(report)) => Some(written(py, report)?),
        _ => None,
    };
    match (stopped, value, text) {
        (Some(reason), _, finished) => Err(errors::stopped(py, reason, finished)),
        (None, Some(Err(error)), _) => Err(raised(py, &error)),
        (None, _, text) => Ok(text.unwrap_or_default()),
    }
}

/// What to build for a stream, as JSON. Lists that are empty have their defaults.
#[pyfunction]
#[pyo3(
    name = "advise",
    signature = (
        accesses, schemes, ways, capacities, tolerance, threads=0, progress=None, seed=None
    )
)]
#[expect(clippy::too_many_arguments, reason = "what Python's function takes")]
pub(crate) fn advice(
    py: Python<'_>,
    accesses: &PyAccesses,
    schemes: Vec<String>,
    ways: Vec<u32>,
    capacities: Vec<u64>,
    tolerance: f64,
    threads: usize,
    progress: Option<Py<PyAny>>,
    seed: Option<u64>,
) -> PyResult<String> {
    let usual = AdviseSpec::default();
    let spec = AdviseSpec {
        schemes: if schemes.is_empty() {
            usual.schemes
        } else {
            schemes
        },
        ways: if ways.is_empty() { usual.ways } else { ways },
        capacities: capacities.into_iter().map(Size).collect(),
        tolerance,
        // Index functions and chance are drawn from what the stream was drawn from, as everywhere.
        seed: seed.unwrap_or(accesses.stream.note.made.seed),
        ..AdviseSpec::default()
    };
    let stream = Arc::clone(&accesses.stream);
    let advice = finish(py, progress, move |control| {
        advise(&stream, &spec, &Constants::default(), threads, control)
    })?;
    written(py, &advice)
}

/// What a stream is like, as JSON.
#[pyfunction]
#[pyo3(name = "stat")]
pub(crate) fn statistics(py: Python<'_>, accesses: &PyAccesses) -> PyResult<String> {
    let stream = Arc::clone(&accesses.stream);
    let measured = finish(py, None, move |_| {
        measure::accesses(&stream, &StatSpec::seeded(stream.note.made.seed))
    })?;
    written(py, &measured)
}

/// Schemes, indexes and policies: kind, name, bits a line (policies, in the paper's two banks of
/// four ways), what it is.
#[pyfunction]
pub(crate) fn registered() -> Vec<(&'static str, &'static str, Option<u32>, &'static str)> {
    let schemes = Scheme::all().map(|(name, help)| ("scheme", name, None, help));
    let indexes = index::INDEXES
        .iter()
        .map(|entry| ("index", entry.name, None, entry.help));
    let policies = registry::POLICIES.iter().map(|entry| {
        let state = (entry.state)(&Geometry::paper(), &Parameters::default());
        ("policy", entry.name, Some(state.line), entry.help)
    });
    schemes.chain(indexes).chain(policies).collect()
}

/// The project's own scheme, where there is one.
#[pyfunction]
pub(crate) fn own_scheme() -> Option<&'static str> {
    fairlead_lab::schemes::own()
}

/// The command line that `fairlead lab` has too; gives the code to exit with.
#[pyfunction]
pub(crate) fn cli(py: Python<'_>, words: Vec<OsString>) -> PyResult<u8> {
    let Attended { value, stopped } = run(py, None, |control: &Passed<'_>| {
        Ok(fairlead_lab::cli::main(words.into_iter(), control))
    })?;
    match value {
        // Stopped, it has said so and kept what is finished: its code says the rest.
        Some(Ok(code)) => Ok((0..=u8::MAX)
            .find(|number| ExitCode::from(*number) == code)
            .unwrap_or(1)),
        Some(Err(error)) => Err(raised(py, &error)),
        // Left behind in the middle of something that cannot be stopped.
        None => stopped.map_or(Ok(INTERRUPTED), Err),
    }
}

/// What a shell expects of what Ctrl-C ended.
const INTERRUPTED: u8 = 130;
