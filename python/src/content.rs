//! The study of content caches: runs, advice, the paper.

use std::path::PathBuf;
use std::sync::Arc;

use fairlead_content::{BlockSize, Policy};
use fairlead_lab::content::advise::{AdviseSpec, advise};
use fairlead_lab::content::{Cell, Responses, Row, SIZES, Split, Unit, paper, simulate};
use fairlead_lab::{LabError, Size};
use pyo3::prelude::*;
use serde::Deserialize;

use crate::control::{finish, written};
use crate::requests::PyRequests;

/// What a run is asked, as JSON. Lists that are empty have their defaults.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Asked {
    sizes: Vec<u64>,
    policies: Vec<String>,
    caches: u32,
    split: Split,
    unit: Unit,
    block: u64,
}

impl Asked {
    fn read(text: &str) -> Result<Self, LabError> {
        serde_json::from_str(text)
            .map_err(|error| LabError::option("content", "", error.to_string()))
    }

    fn block(&self) -> Result<BlockSize, LabError> {
        BlockSize::new(self.block).ok_or_else(|| {
            let problem = "write a power of two from 512 to 1 MiB";
            LabError::option("block", self.block.to_string(), problem)
        })
    }

    fn cells(&self) -> Result<Vec<Cell>, LabError> {
        let sizes: Vec<Size> = match &self.sizes[..] {
            [] => SIZES.to_vec(),
            sizes => sizes.iter().copied().map(Size).collect(),
        };
        let block = self.block()?;
        let mut cells = Vec::new();
        for name in &self.policies {
            let policy: Policy = name
                .parse()
                .map_err(|problem: String| LabError::option("policy", name, problem))?;
            cells.extend(sizes.iter().map(|size| Cell {
                size: *size,
                caches: self.caches,
                split: self.split,
                unit: self.unit,
                block,
                policy,
            }));
        }
        Ok(cells)
    }
}

/// Simulates content caches; rows as JSON.
#[pyfunction]
#[pyo3(signature = (requests, asked, threads=0, progress=None))]
pub(crate) fn content_run(
    py: Python<'_>,
    requests: &PyRequests,
    asked: &str,
    threads: usize,
    progress: Option<Py<PyAny>>,
) -> PyResult<String> {
    let log = Arc::clone(&requests.inner);
    let asked = asked.to_owned();
    let rows = finish(py, progress, move |control| {
        let cells = Asked::read(&asked)?.cells()?;
        let responses = Responses::of(&log, "requests")?;
        let results = simulate(&responses, &cells, threads, control)?;
        let rows = results.iter().map(|result| Row::new(&responses, result));
        Ok(rows.collect::<Vec<Row>>())
    })?;
    written(py, &rows)
}

/// Recommends a size and a policy, as JSON.
#[pyfunction]
#[pyo3(signature = (requests, sizes, target, margin, caches=1, threads=0, progress=None))]
#[expect(clippy::too_many_arguments, reason = "what Python's function takes")]
pub(crate) fn content_advise(
    py: Python<'_>,
    requests: &PyRequests,
    sizes: (u64, u64),
    target: f64,
    margin: f64,
    caches: u32,
    threads: usize,
    progress: Option<Py<PyAny>>,
) -> PyResult<String> {
    let log = Arc::clone(&requests.inner);
    let asked = AdviseSpec {
        sizes: [Size(sizes.0), Size(sizes.1)],
        caches,
        target,
        margin,
        ..AdviseSpec::default()
    };
    let advice = finish(py, progress, move |control| {
        let responses = Responses::of(&log, "requests")?;
        advise(&responses, &asked, threads, control)
    })?;
    written(py, &advice)
}

/// The paper's figures over these logs, as JSON.
#[pyfunction]
#[pyo3(signature = (paths, threads=0, max_bad=0.01, progress=None))]
pub(crate) fn content_paper(
    py: Python<'_>,
    paths: Vec<PathBuf>,
    threads: usize,
    max_bad: f64,
    progress: Option<Py<PyAny>>,
) -> PyResult<String> {
    let report = finish(py, progress, move |control| {
        let (logs, left_out) = paper::logs::read(&paths, max_bad, control)?;
        paper::paper(logs, left_out, threads, control)
    })?;
    written(py, &report)
}
