//! One parameter is fitted, on one column: how many sessions are open at once, so that the
//! conventional cache misses as often as published. All other columns are predictions then.

use serde::Serialize;

use crate::bounds::Wanted;
use crate::control::Control;
use crate::error::LabError;
use crate::load::{Loader, StreamSpec};
use crate::run::run_many;
use crate::spec::RunSpec;

/// The fit: stream, configuration and target.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CalibrateSpec {
    /// The stream, with its concurrency to be fitted.
    pub made: StreamSpec,
    /// The configuration with the known miss ratio; the others use its geometry.
    pub fitted: RunSpec,
    /// Its miss ratio.
    pub target: f64,
    /// Configurations to predict.
    pub predicted: Vec<RunSpec>,
    /// The largest concurrency that is tried.
    pub sessions_max: u32,
}

/// Sessions that are tried first.
const SESSIONS_FIRST: u32 = 256;
/// The search ends when the interval is this fraction of its upper end.
const WIDTH: f64 = 0.002;

/// Maximum error of a fit.
const NEAR: f64 = 0.02;

/// What came out.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Calibration {
    /// Open sessions with the closest result of the fitted scheme.
    pub sessions: u32,
    /// The fitted scheme's miss ratio there.
    pub reached: f64,
    /// The published one.
    pub target: f64,
    /// Every concurrency that was tried, with the fitted scheme's miss ratio.
    pub tried: Vec<(u32, f64)>,
    /// The stream at that concurrency.
    pub stream: crate::load::Provenance,
    /// The fitted scheme, then the predicted ones.
    pub runs: Vec<RunSpec>,
    /// Miss ratios of `runs`.
    pub miss_ratios: Vec<f64>,
    /// Fully associative LRU there.
    pub lru_miss_ratio: f64,
    /// Belady's MIN there.
    pub min_miss_ratio: f64,
}

/// Fits by bisection.
///
/// # Errors
/// A target that no concurrency up to the largest reaches; rows that are accesses as they are; a
/// trace or a configuration that is not sound; a stop.
pub fn calibrate(
    asked: &CalibrateSpec,
    loader: &mut Loader,
    threads: usize,
    control: &dyn Control,
) -> Result<Calibration, LabError> {
    let mut tried: Vec<(u32, f64)> = Vec::new();
    let mut ratio = |sessions: u32, loader: &mut Loader| -> Result<f64, LabError> {
        let stream = match loader.stream(&at(&asked.made, sessions), control) {
            // Without accesses there are no misses, but that is not a valid load.
            Err(LabError::Empty(_)) => return Ok(0.0),
            made => made?,
        };
        stream.note.check_concurrency()?;
        let fitted = std::slice::from_ref(&asked.fitted);
        let results = run_many(&stream, fitted, Wanted::Nothing, threads, control)?;
        tried.push((sessions, results[0].miss_ratio));
        Ok(results[0].miss_ratio)
    };
    let (mut low, mut high) = (1u32, SESSIONS_FIRST.min(asked.sessions_max));
    while ratio(high, loader)? < asked.target {
        low = high;
        if high >= asked.sessions_max {
            let problem = format!(
                "{} misses {:.3} of its accesses even with {high} open sessions; write a target \
                 below that, or more --sessions-max",
                asked.fitted.scheme,
                tried.last().map_or(0.0, |(_, ratio)| *ratio)
            );
            return Err(LabError::option(
                "--target",
                asked.target.to_string(),
                problem,
            ));
        }
        high = high.saturating_mul(2).min(asked.sessions_max);
    }
    while f64::from(high - low) > f64::from(high) * WIDTH && high - low > 1 {
        let middle = low + (high - low) / 2;
        if ratio(middle, loader)? < asked.target {
            low = middle;
        } else {
            high = middle;
        }
    }
    let distance = |(_, ratio): &&(u32, f64)| (ratio - asked.target).abs();
    let nearest = tried
        .iter()
        .min_by(|a, b| distance(a).total_cmp(&distance(b)));
    let sessions = nearest.map_or(high, |(sessions, _)| *sessions);
    let stream = loader.stream(&at(&asked.made, sessions), control)?;
    let mut runs = vec![asked.fitted.clone()];
    runs.extend(asked.predicted.iter().cloned());
    let results = run_many(&stream, &runs, Wanted::Associative, threads, control)?;
    let bounds = results[0].bounds.clone().unwrap_or_default();
    near(asked, sessions, results[0].miss_ratio)?;
    tried.sort_by_key(|(sessions, _)| *sessions);
    Ok(Calibration {
        sessions,
        reached: results[0].miss_ratio,
        target: asked.target,
        tried,
        stream: stream.note,
        miss_ratios: results.iter().map(|result| result.miss_ratio).collect(),
        runs,
        lru_miss_ratio: bounds.lru_miss_ratio,
        min_miss_ratio: bounds.min_miss_ratio,
    })
}

/// Was the target reached?
fn near(asked: &CalibrateSpec, sessions: u32, reached: f64) -> Result<(), LabError> {
    if (reached - asked.target).abs() <= NEAR {
        return Ok(());
    }
    let problem = format!(
        "the closest miss ratio of {} is {reached:.3}, with {sessions} open sessions; give a \
         target that this trace can reach",
        asked.fitted.scheme
    );
    Err(LabError::option(
        "--target",
        asked.target.to_string(),
        problem,
    ))
}

/// The stream with this number of sessions open at once.
pub fn at(made: &StreamSpec, sessions: u32) -> StreamSpec {
    let mut made = made.clone();
    match &mut made.standard {
        Some(standard) => standard.sessions = sessions,
        None => made.expansion.concurrent_sessions = Some(f64::from(sessions)),
    }
    made
}
