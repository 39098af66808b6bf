//! Where does ON/OFF speculation pay? The standard workload over a grid of (open sessions / lines)
//! × (accesses in an ON burst) × port model; every scheme and bound at each cell.
//!
//! Everything here is synthetic.

use fairlead_workload::{PortModel, Standard, WorkloadError};
use serde::Serialize;

use crate::bounds::Wanted;
use crate::control::Control;
use crate::error::LabError;
use crate::load::{Loader, StreamSpec};
use crate::plan::given_twice;
use crate::run::run_many;
use crate::size::Size;
use crate::spec::RunSpec;

/// The grid and its runs.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct MapSpec {
    /// Open sessions for each line of the cache.
    pub loads: Vec<f64>,
    /// Mean accesses of an ON burst.
    pub bursts: Vec<f64>,
    /// Port models.
    pub ports: Vec<PortModel>,
    /// Seeds; ratios are means over them.
    pub seeds: Vec<u64>,
    /// What is not varied.
    pub standard: Standard,
    /// Schemes.
    pub schemes: Vec<String>,
    /// Bytes of all lines.
    pub capacity: Size,
    /// Bytes of a line.
    pub line: Size,
    /// Ways of a set.
    pub ways: u32,
}

impl Default for MapSpec {
    fn default() -> Self {
        let mut schemes: Vec<String> = ["mod", TWO_HASH, "2-lru", "no-migrate", SPEC]
            .map(str::to_owned)
            .to_vec();
        schemes.extend(crate::schemes::own().map(str::to_owned));
        let paper = RunSpec::paper(SPEC);
        Self {
            loads: vec![1.0, 2.0, 4.0, 6.0, 8.0, 12.0, 16.0, 24.0],
            bursts: vec![2.0, 6.0, 16.0],
            ports: vec![PortModel::SEQUENTIAL, PortModel::RANDOM],
            seeds: vec![1],
            standard: Standard::default(),
            schemes,
            capacity: paper.capacity,
            line: paper.line,
            ways: paper.ways,
        }
    }
}

/// The paper's cache with two universal functions and ENRU.
pub const TWO_HASH: &str = "2-universal";
/// The paper's speculative policy.
pub const SPEC: &str = "spec";

/// One cell of the grid: means over the seeds.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Cell {
    /// Open sessions for each line.
    pub load: f64,
    /// Open sessions.
    pub sessions: u32,
    /// Mean accesses of an ON burst.
    pub burst_mean: f64,
    /// The port model.
    pub ports: PortModel,
    /// Accesses counted, all seeds together.
    pub accesses: u64,
    /// Miss ratio by scheme, in the order of [`MapSpec::schemes`].
    pub miss_ratios: Vec<f64>,
    /// Fully associative LRU.
    pub lru: f64,
    /// Belady's MIN.
    pub min: f64,
}

impl Cell {
    /// The share of `of`'s misses that `scheme` saves; negative when it misses more.
    pub fn gain(scheme: f64, of: f64) -> f64 {
        if of > 0.0 { 1.0 - scheme / of } else { 0.0 }
    }
}

/// The whole map.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Map {
    /// Always true: the workload is synthetic.
    pub synthetic: bool,
    /// The request.
    pub asked: MapSpec,
    /// The cells that were finished.
    pub cells: Vec<Cell>,
    /// True when it was stopped before the end.
    pub stopped: bool,
}

impl Map {
    /// The miss ratio of a scheme in a cell.
    pub fn ratio(&self, cell: &Cell, scheme: &str) -> Option<f64> {
        let at = self.asked.schemes.iter().position(|name| name == scheme)?;
        cell.miss_ratios.get(at).copied()
    }
}

/// Runs the map. A stop keeps the cells that are finished.
///
/// # Errors
/// A grid or a scheme that is not sound.
pub fn map(asked: MapSpec, threads: usize, control: &dyn Control) -> Result<Map, LabError> {
    check(&asked)?;
    let mut made = Map {
        synthetic: true,
        asked,
        cells: Vec::new(),
        stopped: false,
    };
    let MapSpec {
        loads,
        bursts,
        ports,
        ..
    } = made.asked.clone();
    let cells = loads.len() * bursts.len() * ports.len();
    for ports in &ports {
        for &burst_mean in &bursts {
            for &load in &loads {
                let what = format!("map: cell {} of {cells}", made.cells.len() + 1);
                let workload = workload(&made.asked, load, burst_mean, *ports);
                match cell(&made.asked, load, &workload, &what, threads, control) {
                    Ok(cell) => made.cells.push(cell),
                    Err(LabError::Stopped) => {
                        made.stopped = true;
                        return Ok(made);
                    }
                    Err(error) => return Err(error),
                }
            }
        }
    }
    Ok(made)
}

fn check(asked: &MapSpec) -> Result<(), LabError> {
    let positive = |option: &str, values: &[f64], least: f64| {
        let wrong = values
            .iter()
            .find(|value| !(**value >= least && value.is_finite()));
        match wrong {
            Some(value) => {
                let problem = format!("write numbers from {least} on");
                Err(LabError::option(option, value.to_string(), problem))
            }
            None if values.is_empty() => {
                Err(LabError::option(option, "", "write at least one number"))
            }
            None => Ok(()),
        }
    };
    positive("--loads", &asked.loads, 0.001)?;
    positive("--bursts", &asked.bursts, 1.0)?;
    if let Some(seed) = given_twice(&asked.seeds) {
        return Err(LabError::option(
            "--seeds",
            seed.to_string(),
            "is a duplicate",
        ));
    }
    for scheme in &asked.schemes {
        crate::run::check(&run(asked, scheme, 1))?;
    }
    // The last cell is not to cost all that were finished before it.
    for ports in &asked.ports {
        for burst_mean in &asked.bursts {
            for load in &asked.loads {
                let workload = workload(asked, *load, *burst_mean, *ports);
                let failed = |error: WorkloadError| {
                    let name = StreamSpec::standard(workload.clone(), 1).name();
                    LabError::option(name, "", error.to_string())
                };
                workload.check().map_err(failed)?;
            }
        }
    }
    Ok(())
}

/// What runs in a cell.
fn workload(asked: &MapSpec, load: f64, burst_mean: f64, ports: PortModel) -> Standard {
    let lines = (asked.capacity.0 / asked.line.0.max(1)) as f64;
    Standard {
        sessions: (load * lines).round().max(1.0) as u32,
        burst_mean,
        ports,
        ..asked.standard.clone()
    }
}

fn run(asked: &MapSpec, scheme: &str, seed: u64) -> RunSpec {
    RunSpec {
        capacity: asked.capacity,
        line: asked.line,
        ways: asked.ways,
        seed,
        ..RunSpec::paper(scheme)
    }
}

fn cell(
    asked: &MapSpec,
    load: f64,
    workload: &Standard,
    what: &str,
    threads: usize,
    control: &dyn Control,
) -> Result<Cell, LabError> {
    let mut cell = Cell {
        load,
        sessions: workload.sessions,
        burst_mean: workload.burst_mean,
        ports: workload.ports,
        accesses: 0,
        miss_ratios: vec![0.0; asked.schemes.len()],
        lru: 0.0,
        min: 0.0,
    };
    let share = 1.0 / asked.seeds.len().max(1) as f64;
    for &seed in &asked.seeds {
        let made = StreamSpec::standard(workload.clone(), seed);
        let mut stream = Loader::default().stream(&made, control)?;
        stream.note.trace = what.to_owned();
        let runs: Vec<RunSpec> = asked
            .schemes
            .iter()
            .map(|scheme| run(asked, scheme, seed))
            .collect();
        let results = run_many(&stream, &runs, Wanted::Associative, threads, control)?;
        for (sum, result) in cell.miss_ratios.iter_mut().zip(&results) {
            *sum += result.miss_ratio * share;
        }
        if let Some(result) = results.first() {
            let bounds = result.bounds.clone().unwrap_or_default();
            cell.accesses += result.accesses;
            cell.lru += bounds.lru_miss_ratio * share;
            cell.min += bounds.min_miss_ratio * share;
        }
    }
    Ok(cell)
}
