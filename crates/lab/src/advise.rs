//! Recommends for a trace: the smallest sufficient cache, its policy and cost, and the effect of
//! more memory.

use serde::Serialize;

use crate::bounds::Wanted;
use crate::control::Control;
use crate::cost::Constants;
use crate::cost::hardware::{Hardware, hardware};
use crate::cost::toe::{self, ToeTime};
use crate::error::LabError;
use crate::load::{Provenance, Stream};
use crate::run::{Configuration, run_many};
use crate::size::Size;
use crate::spec::{RunResult, RunSpec};
use crate::stat::open::Concurrency;

/// What is tried.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct AdviseSpec {
    /// Schemes, the simplest first: of equals the first is named.
    pub schemes: Vec<String>,
    /// Ways of a set.
    pub ways: Vec<u32>,
    /// Capacities, rising; made from the trace when empty.
    pub capacities: Vec<Size>,
    /// Bytes of a line.
    pub line: Size,
    /// How much worse than the best the advised one may be, as a share of the best.
    pub tolerance: f64,
    /// What index functions are drawn from.
    pub seed: u64,
}

impl Default for AdviseSpec {
    fn default() -> Self {
        Self {
            schemes: crate::schemes::ADVISED
                .iter()
                .copied()
                .chain(crate::schemes::own())
                .map(str::to_owned)
                .collect(),
            ways: vec![2, 4, 8],
            capacities: Vec::new(),
            line: Size(crate::paper::published::LINE_BYTES),
            tolerance: 0.01,
            seed: 1,
        }
    }
}

/// The smallest capacity that is tried.
const CAPACITY_MIN: u64 = 4 << 10;
/// The largest capacity tried by default.
const CAPACITY_MAX: u64 = 64 << 20;

/// One geometry and policy, with results.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Choice {
    /// The configuration.
    pub run: RunSpec,
    /// Misses of each access.
    pub miss_ratio: f64,
    /// What it costs to build.
    pub hardware: Hardware,
    /// Average time of a packet in an offload engine.
    pub toe: ToeTime,
}

/// The best at one capacity.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Step {
    /// Bytes of all lines.
    pub capacity: Size,
    /// The best configuration of this capacity, of equal ones the cheapest in bits.
    pub best: Choice,
    /// Miss ratio of the conventional cache (modulo, LRU, one bank of 4 ways) of this capacity.
    pub conventional_miss_ratio: Option<f64>,
    /// Fully associative LRU of this capacity.
    pub lru_miss_ratio: f64,
    /// No policy of this capacity misses less.
    pub min_miss_ratio: f64,
}

/// Advice for a trace.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Advice {
    /// The trace.
    pub stream: Provenance,
    /// How many sessions there are at a time; nothing when the stream has no times.
    pub concurrency: Option<Concurrency>,
    /// What was tried.
    pub asked: AdviseSpec,
    /// First accesses: no cache avoids them.
    pub compulsory_miss_ratio: f64,
    /// The best of everything that was tried.
    pub best: Choice,
    /// The smallest that is within the tolerance of the best.
    pub advised: Choice,
    /// The best at each capacity, rising.
    pub steps: Vec<Step>,
}

/// Powers of two from 4 KiB to where every session has a line.
fn capacities(spec: &AdviseSpec, stream: &Stream) -> Vec<Size> {
    if !spec.capacities.is_empty() {
        let mut rising = spec.capacities.clone();
        rising.sort();
        rising.dedup();
        return rising;
    }
    let all = (stream.keys.len() as u64).saturating_mul(spec.line.0);
    let top = all.clamp(CAPACITY_MIN, CAPACITY_MAX).next_power_of_two();
    std::iter::successors(Some(CAPACITY_MIN), |size| Some(size * 2))
        .take_while(|size| *size <= top)
        .map(Size)
        .collect()
}

/// Tries all configurations and recommends one.
///
/// # Errors
/// A scheme or a geometry that is not sound; a stop.
pub fn advise(
    stream: &Stream,
    spec: &AdviseSpec,
    constants: &Constants,
    threads: usize,
    control: &dyn Control,
) -> Result<Advice, LabError> {
    for scheme in &spec.schemes {
        crate::run::check(&RunSpec::paper(scheme.clone()))?;
    }
    check_powers(spec)?;
    let (runs, is_asked): (Vec<RunSpec>, Vec<bool>) = tried(stream, spec).into_iter().unzip();
    let for_themselves = runs.iter().zip(&is_asked).filter(|(_, asked)| **asked);
    check_asked(
        spec,
        &for_themselves.map(|(run, _)| run).collect::<Vec<_>>(),
    )?;
    let results = run_many(stream, &runs, Wanted::Associative, threads, control)?;
    let accesses = results.first().map_or(0, |result| result.accesses);
    if accesses == 0 {
        return Err(LabError::Trace(format!(
            "{}: nothing to recommend: no access is left after the warm-up, or no geometry of \
             --capacities, --ways and --line is possible",
            stream.note.trace
        )));
    }
    let all = runs
        .iter()
        .zip(&results)
        .map(|(run, result)| choice(run, result.miss_ratio, constants))
        .collect::<Result<Vec<_>, _>>()?;
    let steps = steps(&all, &is_asked, &results);
    let asked = || all.iter().zip(&is_asked).filter(|(_, asked)| **asked);
    let lowest = asked()
        .map(|(choice, _)| choice.miss_ratio)
        .fold(f64::INFINITY, f64::min);
    let within = |choice: &&Choice, share: f64| choice.miss_ratio <= lowest * (1.0 + share);
    // The cheapest in bits: capacity first, then policy state.
    let cheapest = |share: f64| {
        asked()
            .map(|(choice, _)| choice)
            .filter(|choice| within(choice, share))
            .min_by_key(|choice| choice.hardware.bits)
            .cloned()
    };
    let (Some(best), Some(advised)) = (cheapest(0.0), cheapest(spec.tolerance)) else {
        return Err(LabError::Trace(format!(
            "{}: nothing was tried",
            stream.note.trace
        )));
    };
    let compulsory = results.first().and_then(|result| result.bounds.as_ref());
    let concurrency = (!stream.time_us.is_empty()).then(|| crate::stat::concurrency(stream));
    Ok(Advice {
        stream: stream.note.clone(),
        concurrency,
        asked: spec.clone(),
        compulsory_miss_ratio: crate::stat::share(
            compulsory.map_or(0, |bounds| bounds.compulsory),
            accesses,
        ),
        best,
        advised,
        steps,
    })
}

/// Sizes that no cache can have are refused, not left out.
fn check_powers(spec: &AdviseSpec) -> Result<(), LabError> {
    let ways = spec.ways.iter().map(|ways| ("--ways", u64::from(*ways)));
    let capacities = spec.capacities.iter().map(|size| ("--capacities", size.0));
    let line = std::iter::once(("--line", spec.line.0));
    for (option, value) in line.chain(ways).chain(capacities) {
        if !value.is_power_of_two() {
            let problem = "write a power of two";
            return Err(LabError::option(option, value.to_string(), problem));
        }
    }
    Ok(())
}

/// Checks that every requested number was tried in some configuration.
fn check_asked(spec: &AdviseSpec, runs: &[&RunSpec]) -> Result<(), LabError> {
    let refused = |option: &str, value: String, like: RunSpec| {
        let why = Configuration::new(&like).err();
        let why = why.map_or_else(|| "nothing can be built".to_owned(), |why| why.to_string());
        Err(LabError::option(option, value, why))
    };
    let scheme = spec.schemes.first().map_or(CONVENTIONAL, String::as_str);
    let like = |capacity: Size, ways: u32| RunSpec {
        capacity,
        line: spec.line,
        ways,
        ..RunSpec::paper(scheme)
    };
    let largest = spec.capacities.iter().max().copied();
    let largest = largest.unwrap_or(Size(CAPACITY_MAX));
    for ways in &spec.ways {
        if runs.iter().all(|run| run.ways != *ways) {
            return refused("--ways", ways.to_string(), like(largest, *ways));
        }
    }
    let fewest = spec.ways.iter().min().copied().unwrap_or(CONVENTIONAL_WAYS);
    for capacity in &spec.capacities {
        if runs.iter().all(|run| run.capacity != *capacity) {
            return refused(
                "--capacities",
                capacity.to_string(),
                like(*capacity, fewest),
            );
        }
    }
    Ok(())
}

/// Every configuration to try, by increasing capacity, and whether it was requested: the
/// conventional cache comes first for comparison, and is recommended only if it was requested.
fn tried(stream: &Stream, spec: &AdviseSpec) -> Vec<(RunSpec, bool)> {
    let mut runs = Vec::new();
    for capacity in capacities(spec, stream) {
        let mut add = |scheme: &str, ways: u32, is_asked: bool| {
            let run = RunSpec {
                scheme: scheme.to_owned(),
                capacity,
                line: spec.line,
                ways,
                seed: spec.seed,
                ..RunSpec::paper(scheme)
            };
            // A small capacity cannot hold a set of many ways; that geometry is skipped.
            if Configuration::new(&run).is_ok() {
                runs.push((run, is_asked));
            }
        };
        add(CONVENTIONAL, CONVENTIONAL_WAYS, false);
        for &ways in &spec.ways {
            for scheme in &spec.schemes {
                add(scheme, ways, true);
            }
        }
    }
    runs
}

/// The best requested configuration at each capacity.
fn steps(all: &[Choice], is_asked: &[bool], results: &[RunResult]) -> Vec<Step> {
    let mut steps: Vec<Step> = Vec::new();
    let mut conventional = None;
    for ((choice, is_asked), result) in all.iter().zip(is_asked).zip(results) {
        let run = &choice.run;
        if !is_asked {
            conventional = Some((run.capacity, result.miss_ratio));
            continue;
        }
        if steps
            .last()
            .is_none_or(|step| step.capacity != run.capacity)
        {
            let bounds = result.bounds.clone().unwrap_or_default();
            steps.push(Step {
                capacity: run.capacity,
                conventional_miss_ratio: conventional
                    .filter(|(capacity, _)| *capacity == run.capacity)
                    .map(|(_, miss_ratio)| miss_ratio),
                lru_miss_ratio: bounds.lru_miss_ratio,
                min_miss_ratio: bounds.min_miss_ratio,
                best: choice.clone(),
            });
        }
        if let Some(step) = steps.last_mut() {
            // Of equal ones the cheapest, as in all of the advice.
            let cost = |choice: &Choice| (choice.miss_ratio, choice.hardware.bits);
            if cost(choice) < cost(&step.best) {
                step.best = choice.clone();
            }
        }
    }
    steps
}

/// What a TOE has without all this (section 2.1.1).
const CONVENTIONAL: &str = "mod";
const CONVENTIONAL_WAYS: u32 = 4;

fn choice(run: &RunSpec, miss_ratio: f64, constants: &Constants) -> Result<Choice, LabError> {
    Ok(Choice {
        run: run.clone(),
        miss_ratio,
        hardware: hardware(constants, &Configuration::new(run)?),
        toe: toe::receive(&constants.toe, miss_ratio),
    })
}
