//! Runs over one trace: fit the concurrency, then run every figure's plan at it.

use super::variants::{self, Variant};
use super::{Given, PaperSpec, TraceNote, published};
use crate::bounds::Wanted;
use crate::calibrate::{CalibrateSpec, at, calibrate};
use crate::control::Control;
use crate::error::LabError;
use crate::load::{Loader, Stream, StreamSpec};
use crate::plan::runs_of;
use crate::run::run_many;
use crate::spec::RunSpec;
use crate::stat::{self, StatSpec, StreamStat};

/// A figure's plan and the name it has in tables.
pub(super) struct FigurePlan {
    /// `figure-12`.
    pub(super) id: &'static str,
    /// Its text.
    pub(super) text: &'static str,
}

/// A figure's name and the file of its plan.
macro_rules! plan {
    ($id:literal, $file:literal) => {
        FigurePlan {
            id: $id,
            text: include_str!(concat!("plans/", $file)),
        }
    };
}

/// Plans that are run over every trace and seed.
pub(super) const PLANS: [FigurePlan; 7] = [
    plan!("figure-4", "figure-04.toml"),
    plan!("figure-12", "figure-12.toml"),
    plan!("figure-13", "figure-13.toml"),
    plan!("figure-14", "figure-14.toml"),
    plan!("figure-15", "figure-15.toml"),
    plan!("figure-16", "figure-16.toml"),
    plan!("section-3.4", "stamps.toml"),
];

/// Section 4.1's thousand functions.
pub(super) const HASH_DRAWS: &str = include_str!("plans/hash-draws.toml");

/// The most sessions that fitting tries.
const SESSIONS_MAX: u32 = 1 << 17;

/// Miss ratios of one configuration, one for each seed.
#[derive(Clone, Debug)]
pub(super) struct Ratios {
    pub(super) run: RunSpec,
    pub(super) by_seed: Vec<f64>,
}

impl Ratios {
    pub(super) fn mean(&self) -> f64 {
        self.by_seed.iter().sum::<f64>() / self.by_seed.len().max(1) as f64
    }

    /// Half of largest less smallest; of a single one it is not known.
    pub(super) fn spread(&self) -> Option<f64> {
        let largest = self.by_seed.iter().copied().reduce(f64::max)?;
        let smallest = self.by_seed.iter().copied().reduce(f64::min)?;
        (self.by_seed.len() > 1).then_some((largest - smallest) / 2.0)
    }
}

/// Everything that was measured on a trace.
#[derive(Clone, Debug)]
pub(super) struct Measured {
    pub(super) note: TraceNote,
    /// By plan, in the order of [`PLANS`].
    pub(super) plans: Vec<Vec<Ratios>>,
    /// Reference values for figure 12: our own scheme (if any), fully associative LRU, MIN.
    pub(super) beside: Vec<(String, Vec<f64>)>,
    /// Figure 12 under other assumptions.
    pub(super) variants: Vec<Variant>,
    /// Miss ratios under many universal functions.
    pub(super) draws: Vec<f64>,
    /// What the stream is like.
    pub(super) stat: StreamStat,
    /// ON and OFF times of the log itself, if there is one.
    pub(super) gaps: stat::gaps::Gaps,
}

fn runs(text: &str) -> Result<Vec<RunSpec>, LabError> {
    runs_of(text, "built-in plan")
}

pub(super) fn measure(
    given: &Given,
    asked: &PaperSpec,
    loader: &mut Loader,
    threads: usize,
    control: &dyn Control,
) -> Result<Measured, LabError> {
    let (made, sessions) = fitted(given, asked, loader, threads, control)?;
    let (stream, lengths, all, bounds) = seeded(given, &made, asked, loader, threads, control)?;
    let variants = match given.fitted_to.filter(|_| asked.variants) {
        Some(target) => {
            let seed = asked.seeds[0];
            let most = SESSIONS_MAX;
            variants::measure(given, target, seed, most, loader, threads, control)?
        }
        None => Vec::new(),
    };
    let draws = draws(asked, &stream, threads, control)?;
    let spec = StatSpec::seeded(asked.seeds[0]);
    let stat = stat::accesses(&stream, &spec)?;
    let gaps = match &given.made.path {
        Some(path) if stream.note.expanded.is_some() => {
            stat::log(&*loader.log(path, &given.made, control)?, &spec).gaps
        }
        _ => stat.gaps.clone(),
    };
    let mut all = all.into_iter();
    let plans: Vec<Vec<Ratios>> = lengths
        .iter()
        .map(|length| all.by_ref().take(*length).collect())
        .collect();
    let mut beside: Vec<(String, Vec<f64>)> = all
        .map(|ratios| (ratios.run.scheme.clone(), ratios.by_seed))
        .collect();
    beside.extend(bounds);
    let mod_miss_ratio = plans[1]
        .first()
        .and_then(|mod_| mod_.by_seed.first().copied());
    Ok(Measured {
        note: TraceNote {
            given: given.clone(),
            sessions,
            mod_miss_ratio: mod_miss_ratio.unwrap_or(0.0),
            stream: stream.note,
        },
        plans,
        beside,
        variants,
        draws,
        stat,
        gaps,
    })
}

/// The recipe with the fitted or given concurrency.
fn fitted(
    given: &Given,
    asked: &PaperSpec,
    loader: &mut Loader,
    threads: usize,
    control: &dyn Control,
) -> Result<(StreamSpec, u32), LabError> {
    let first = asked.seeds[0];
    let mut made = given.made.clone();
    made.seed = first;
    let sessions = match given.fitted_to {
        None => asked.concurrency,
        Some(target) => {
            let fit = CalibrateSpec {
                made: made.clone(),
                fitted: RunSpec {
                    seed: first,
                    ..RunSpec::paper(published::FIGURE_12_SCHEMES[0])
                },
                target,
                predicted: Vec::new(),
                sessions_max: SESSIONS_MAX,
            };
            calibrate(&fit, loader, threads, control)?.sessions
        }
    };
    Ok((at(&made, sessions), sessions))
}

/// The first seed's stream; how many configurations each plan has; their ratios, our own scheme's
/// behind them; the bounds.
type Seeded = (Stream, Vec<usize>, Vec<Ratios>, [(String, Vec<f64>); 2]);

/// Every plan under every seed.
fn seeded(
    given: &Given,
    made: &StreamSpec,
    asked: &PaperSpec,
    loader: &mut Loader,
    threads: usize,
    control: &dyn Control,
) -> Result<Seeded, LabError> {
    let mut all: Vec<RunSpec> = Vec::new();
    let mut lengths = Vec::new();
    for plan in &PLANS {
        let runs = runs(plan.text)?;
        lengths.push(runs.len());
        all.extend(runs);
    }
    let own = crate::schemes::own();
    all.extend(own.map(RunSpec::paper));
    let mut by_seed: Vec<Vec<f64>> = vec![Vec::new(); all.len()];
    let (mut lru, mut min) = (Vec::new(), Vec::new());
    let mut kept = None;
    for &seed in &asked.seeds {
        let made = StreamSpec {
            seed,
            ..made.clone()
        };
        let mut stream = loader.stream(&made, control)?;
        stream.note.check_concurrency()?;
        stream.note.trace.clone_from(&given.name);
        let seeded: Vec<RunSpec> = all
            .iter()
            .map(|run| RunSpec {
                seed,
                ..run.clone()
            })
            .collect();
        // Bounds of one capacity suffice: the conventional cache's run alone asks for them.
        let bounded = RunSpec {
            seed,
            ..RunSpec::paper(published::FIGURE_12_SCHEMES[0])
        };
        let bounds = run_many(&stream, &[bounded], Wanted::Associative, threads, control)?;
        let bounds = bounds[0].bounds.clone().unwrap_or_default();
        lru.push(bounds.lru_miss_ratio);
        min.push(bounds.min_miss_ratio);
        let results = run_many(&stream, &seeded, Wanted::Nothing, threads, control)?;
        for (ratios, result) in by_seed.iter_mut().zip(&results) {
            ratios.push(result.miss_ratio);
        }
        kept.get_or_insert(stream);
    }
    let all = all
        .into_iter()
        .zip(by_seed)
        .map(|(run, by_seed)| Ratios { run, by_seed })
        .collect();
    let bounds = [
        ("LRU, fully associative".to_owned(), lru),
        ("MIN, fully associative".to_owned(), min),
    ];
    match kept {
        Some(stream) => Ok((stream, lengths, all, bounds)),
        None => Err(LabError::Stopped),
    }
}

fn draws(
    asked: &PaperSpec,
    stream: &Stream,
    threads: usize,
    control: &dyn Control,
) -> Result<Vec<f64>, LabError> {
    let runs: Vec<RunSpec> = runs(HASH_DRAWS)?
        .into_iter()
        .take(asked.hash_draws as usize)
        .collect();
    let results = run_many(stream, &runs, Wanted::Nothing, threads, control)?;
    Ok(results.iter().map(|result| result.miss_ratio).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_seed_has_no_spread() {
        let of = |by_seed: &[f64]| Ratios {
            run: RunSpec::paper("mod"),
            by_seed: by_seed.to_vec(),
        };
        assert_eq!(of(&[0.5]).spread(), None);
        assert_eq!(of(&[]).spread(), None);
        assert_eq!(of(&[0.5, 1.0, 0.75]).spread(), Some(0.25));
        assert_eq!(of(&[0.5, 0.5]).spread(), Some(0.0));
    }
}
