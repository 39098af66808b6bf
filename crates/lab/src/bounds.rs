//! Bounds beside results, worked out once for all configurations that share them.

use std::collections::BTreeMap;

use fairlead_cache::bounds::{self, Stream as Counted};
use serde::Serialize;

use crate::control::Control;
use crate::error::LabError;
use crate::load::Stream;
use crate::pool::{Meter, spread};
use crate::run::Configuration;
use crate::spec::Bounds;

/// Which bounds stand beside results.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub enum Wanted {
    /// None.
    #[default]
    Nothing,
    /// Compulsory misses, fully associative LRU and MIN.
    Associative,
    /// Those, and the value of knowing the future under each index.
    All,
}

/// One bound to work out.
#[derive(Clone, Debug)]
enum Job {
    Compulsory,
    Lru(u32),
    Min(u32),
    /// MIN in each set, or greedy-furthest: by the configuration whose places and ways it is for.
    InSets(usize),
}

/// Bounds by configuration.
#[derive(Debug, Default)]
pub(crate) struct Known {
    by_configuration: Vec<Bounds>,
}

impl Known {
    /// The bounds of a configuration.
    pub(crate) fn of(&self, index: usize) -> Bounds {
        self.by_configuration
            .get(index)
            .cloned()
            .unwrap_or_default()
    }
}

/// Which configurations share a bound under their index.
type InSetsKey = (crate::run::PlaceKey, u32);

/// Computes the bounds that `configurations` need. A stopped bound has no result.
pub(crate) fn work_out(
    stream: &Stream,
    configurations: &[Configuration],
    wanted: Wanted,
    threads: usize,
    control: &dyn Control,
) -> Result<Known, LabError> {
    let failed =
        |error: bounds::StreamError| LabError::Trace(format!("{}: {error}", stream.note.trace));
    let counted =
        Counted::new(&stream.ids, stream.keys.len(), stream.counted_from).map_err(failed)?;
    let (jobs, in_sets) = jobs(configurations, wanted);
    let rows = stream.ids.len() as u64;
    control.begin(
        &format!("{}: bounds", stream.note.trace),
        rows * jobs.len() as u64,
    );
    let work = |job: &Job, meter: &Meter| {
        let watch = |accesses| meter.step(accesses as u64);
        let misses = one(&counted.watched(&watch), stream, configurations, job);
        meter.step(0).then_some(misses)
    };
    let mut misses: Vec<u64> = vec![0; jobs.len()];
    let mut first_error = None;
    let ended = spread(
        &jobs,
        threads,
        control,
        &work,
        &mut |job, result| match result {
            Ok(count) => misses[job] = count,
            Err(error) => first_error = Some(error),
        },
    );
    control.end();
    if let Some(error) = first_error {
        return Err(error);
    }
    ended?;
    let find = |wanted: &dyn Fn(&Job) -> bool| {
        let at = jobs.iter().position(wanted);
        at.map_or(0, |at| misses[at])
    };
    let accesses = stream.counted();
    let of = |configuration: &Configuration| {
        let own = configuration.geometry.lines();
        let lru = find(&|job| matches!(job, Job::Lru(lines) if *lines == own));
        let min = find(&|job| matches!(job, Job::Min(lines) if *lines == own));
        let within = in_sets
            .get(&in_sets_key(configuration))
            .filter(|_| !configuration.moves())
            .map(|at| find(&|job| matches!(job, Job::InSets(index) if index == at)));
        let single = configuration.geometry.banks() == 1;
        Bounds {
            compulsory: find(&|job| matches!(job, Job::Compulsory)),
            lru,
            min,
            set_min: within.filter(|_| single),
            greedy: within.filter(|_| !single),
            lru_miss_ratio: crate::stat::share(lru, accesses),
            min_miss_ratio: crate::stat::share(min, accesses),
        }
    };
    Ok(Known {
        by_configuration: configurations.iter().map(of).collect(),
    })
}

fn in_sets_key(configuration: &Configuration) -> InSetsKey {
    (configuration.place_key(), configuration.geometry.ways())
}

/// Every bound once, the slow ones first; and which configuration's sets stand for which key.
fn jobs(
    configurations: &[Configuration],
    wanted: Wanted,
) -> (Vec<Job>, BTreeMap<InSetsKey, usize>) {
    let mut lines: Vec<u32> = Vec::new();
    let mut in_sets: BTreeMap<InSetsKey, usize> = BTreeMap::new();
    for (index, configuration) in configurations.iter().enumerate() {
        lines.push(configuration.geometry.lines());
        // Who moves lines has more places than the first functions give: nothing is worked out for
        // those.
        if wanted == Wanted::All && !configuration.moves() {
            in_sets.entry(in_sets_key(configuration)).or_insert(index);
        }
    }
    lines.sort_unstable();
    lines.dedup();
    let mut jobs: Vec<Job> = lines.iter().map(|lines| Job::Min(*lines)).collect();
    jobs.extend(in_sets.values().map(|index| Job::InSets(*index)));
    jobs.extend(lines.iter().map(|lines| Job::Lru(*lines)));
    jobs.push(Job::Compulsory);
    (jobs, in_sets)
}

fn one(
    counted: &Counted<'_>,
    stream: &Stream,
    configurations: &[Configuration],
    job: &Job,
) -> Result<u64, LabError> {
    match job {
        Job::Compulsory => Ok(bounds::compulsory(counted)),
        Job::Lru(lines) => Ok(bounds::lru(counted, *lines)),
        Job::Min(lines) => Ok(bounds::min(counted, *lines)),
        Job::InSets(index) => {
            let configuration = &configurations[*index];
            let places = configuration.indexer()?.places(&stream.keys);
            let ways = configuration.geometry.ways();
            bounds::greedy_furthest(counted, &places, ways, false)
                .map_err(|error| LabError::Trace(format!("{}: {error}", stream.note.trace)))
        }
    }
}
