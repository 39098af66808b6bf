//! Many configurations over one stream, spread over threads.

use std::sync::{Arc, Mutex, PoisonError};

use fairlead_base::Endpoint;
use fairlead_cache::{
    BATCH, Geometry, Indexer, Lifetime, Member, Places, Scheme, Simulate, Statistics, build,
    run_all,
};

use crate::bounds::{self, Known, Wanted};
use crate::control::Control;
use crate::error::LabError;
use crate::load::Stream;
use crate::pool::{Meter, spread, threads};
use crate::spec::{RunResult, RunSpec};

/// Configurations that share one pass over the stream at most: their caches stay in a processor's
/// second cache together.
const MEMBERS_MAX: usize = 8;

/// A configuration that is done.
#[derive(Clone, Debug)]
pub struct Finished {
    /// Its place among those that were asked for.
    pub index: usize,
    /// What it counted.
    pub result: RunResult,
}

/// A configuration, checked.
#[derive(Clone, Debug)]
pub struct Configuration {
    /// Index, banks, policy and parameters.
    pub scheme: Scheme,
    /// The shape.
    pub geometry: Geometry,
    /// What index functions and chance are drawn from.
    pub seed: u64,
}

impl Configuration {
    /// Checks what a plan or an option said.
    ///
    /// # Errors
    /// What is wrong, with what to write instead.
    pub fn new(spec: &RunSpec) -> Result<Self, LabError> {
        let mut scheme = Scheme::parse(&spec.scheme)
            .map_err(|error| LabError::option("scheme", &spec.scheme, error.to_string()))?;
        if let Some(bits) = &spec.index_bits {
            let wrong = |error| LabError::option("index bits", bits, format!("{error}"));
            scheme.mask = bits.parse().map_err(wrong)?;
        }
        if let Some(threshold) = spec.threshold {
            if threshold > THRESHOLD_MAX {
                let problem = "the counter has 3 bits: write 0 (always ON) to 8 (never)";
                return Err(LabError::option(
                    "threshold",
                    threshold.to_string(),
                    problem,
                ));
            }
            scheme.parameters.lifetime = Lifetime::from_counter(threshold.into());
        }
        let line_bytes = u32::try_from(spec.line.0)
            .map_err(|_| LabError::option("line", spec.line.to_string(), "write at most 2G"))?;
        let geometry = scheme
            .geometry(spec.capacity.0, line_bytes, spec.ways)
            .map_err(|error| {
                let Size {
                    capacity,
                    line,
                    ways,
                } = Size::of(spec);
                LabError::Geometry(format!(
                    "--capacity {capacity} --line {line} --ways {ways} for scheme {}: {error}",
                    spec.scheme
                ))
            })?;
        Ok(Self {
            scheme,
            geometry,
            seed: spec.seed,
        })
    }

    /// The index functions.
    ///
    /// # Errors
    /// When there are none of that name.
    pub fn indexer(&self) -> Result<Indexer, LabError> {
        self.scheme
            .indexer(&self.geometry, self.seed)
            .map_err(|error| LabError::Geometry(error.to_string()))
    }

    /// Two configurations with equal keys have the same places.
    pub(crate) fn place_key(&self) -> PlaceKey {
        (
            self.scheme.index.clone(),
            self.scheme.mask.to_string(),
            self.geometry.banks(),
            self.geometry.sets(),
            self.seed,
        )
    }
}

/// Index, mask, banks, sets, seed.
pub(crate) type PlaceKey = (String, String, u32, u32, u64);

struct Size {
    capacity: String,
    line: String,
    ways: u32,
}

impl Size {
    fn of(spec: &RunSpec) -> Self {
        Self {
            capacity: spec.capacity.0.to_string(),
            line: spec.line.0.to_string(),
            ways: spec.ways,
        }
    }
}

/// The counter's largest threshold: never ON.
const THRESHOLD_MAX: u8 = 8;

/// Is the configuration sound?
///
/// # Errors
/// As [`Configuration::new`].
pub fn check(spec: &RunSpec) -> Result<(), LabError> {
    Configuration::new(spec).map(|_| ())
}

/// Places that several jobs share, made by the first that needs them and dropped by the last.
struct Shared {
    configuration: Configuration,
    jobs: usize,
    places: Option<Arc<Places>>,
}

impl Shared {
    fn take(&mut self, keys: &[Endpoint]) -> Option<Arc<Places>> {
        if self.places.is_none() {
            let indexer = self.configuration.indexer().ok()?;
            self.places = Some(Arc::new(indexer.places(keys)));
        }
        self.jobs -= 1;
        if self.jobs == 0 {
            return self.places.take();
        }
        self.places.clone()
    }
}

/// Configurations that run together: the same places for all.
struct Job {
    shared: usize,
    members: Vec<usize>,
}

/// Runs every configuration; results in the order of `specs`.
///
/// # Errors
/// A configuration that is not sound (nothing was run then); a stop. [`run_each`] keeps what is
/// finished at a stop.
pub fn run_many(
    stream: &Stream,
    specs: &[RunSpec],
    wanted: Wanted,
    threads: usize,
    control: &dyn Control,
) -> Result<Vec<RunResult>, LabError> {
    let mut results = vec![RunResult::default(); specs.len()];
    let what = stream.note.trace.clone();
    let keep = &mut |finished: Finished| results[finished.index] = finished.result;
    run_each(stream, specs, wanted, threads, &what, control, keep)?;
    Ok(results)
}

/// Runs every configuration and hands over each result as it is finished, on this thread.
///
/// # Errors
/// As [`run_many`].
pub fn run_each(
    stream: &Stream,
    specs: &[RunSpec],
    wanted: Wanted,
    asked_threads: usize,
    what: &str,
    control: &dyn Control,
    finished: &mut dyn FnMut(Finished),
) -> Result<(), LabError> {
    let configurations = specs
        .iter()
        .map(Configuration::new)
        .collect::<Result<Vec<_>, _>>()?;
    let threads = threads(asked_threads, specs.len().max(2));
    let known = match wanted {
        Wanted::Nothing => None,
        wanted => Some(bounds::work_out(
            stream,
            &configurations,
            wanted,
            threads,
            control,
        )?),
    };
    let (jobs, shared) = batches(&configurations, threads);
    let rows = stream.ids.len() as u64;
    control.begin(what, rows.saturating_mul(specs.len() as u64));
    let work = |job: &Job, meter: &Meter| run_job(stream, &configurations, &shared, job, meter);
    let mut first_error = None;
    let mut take = |job: usize, counted: Result<Vec<Statistics>, LabError>| match counted {
        Ok(counted) => {
            for (&index, counted) in jobs[job].members.iter().zip(&counted) {
                let bounds = known.as_ref().map(|known: &Known| known.of(index));
                let result = result(counted, bounds);
                finished(Finished { index, result });
            }
        }
        Err(error) => first_error = Some(error),
    };
    let ended = spread(&jobs, threads, control, &work, &mut take);
    control.end();
    match first_error {
        Some(error) => Err(error),
        None => ended,
    }
}

fn result(counted: &Statistics, bounds: Option<crate::spec::Bounds>) -> RunResult {
    RunResult {
        accesses: counted.accesses,
        misses: counted.misses,
        miss_ratio: crate::stat::share(counted.misses, counted.accesses),
        cold_misses: counted.cold_misses,
        migrations: counted.migrations,
        second_lookup_hits: counted.second_lookup_hits,
        bypasses: counted.bypasses,
        evicted_on: counted.evicted_on,
        bounds,
    }
}

/// Groups configurations with the same places and cuts the groups, so that every thread has
/// something to do.
fn batches(configurations: &[Configuration], threads: usize) -> (Vec<Job>, Vec<Mutex<Shared>>) {
    let mut groups: Vec<(_, Vec<usize>)> = Vec::new();
    let mut by_key = std::collections::BTreeMap::new();
    for (index, configuration) in configurations.iter().enumerate() {
        let key = configuration.place_key();
        let group = *by_key.entry(key).or_insert_with(|| {
            groups.push((configuration.clone(), Vec::new()));
            groups.len() - 1
        });
        groups[group].1.push(index);
    }
    let members_max = configurations
        .len()
        .div_ceil(threads.max(1))
        .clamp(1, MEMBERS_MAX);
    let mut jobs = Vec::new();
    let mut shared = Vec::new();
    for (configuration, members) in groups {
        let parts = members.chunks(members_max);
        let count = parts.len();
        jobs.extend(parts.map(|part| Job {
            shared: shared.len(),
            members: part.to_vec(),
        }));
        shared.push(Mutex::new(Shared {
            configuration,
            jobs: count,
            places: None,
        }));
    }
    // The longest first, so that the last to end is short.
    jobs.sort_by_key(|job| std::cmp::Reverse(job.members.len()));
    (jobs, shared)
}

fn run_job(
    stream: &Stream,
    configurations: &[Configuration],
    shared: &[Mutex<Shared>],
    job: &Job,
    meter: &Meter,
) -> Option<Result<Vec<Statistics>, LabError>> {
    let places = {
        let lock = shared[job.shared].lock();
        lock.unwrap_or_else(PoisonError::into_inner)
            .take(&stream.keys)?
    };
    let caches: Result<Vec<_>, _> = job
        .members
        .iter()
        .map(|&index| {
            let Configuration {
                scheme,
                geometry,
                seed,
            } = &configurations[index];
            build(scheme, geometry, *seed)
        })
        .collect();
    let mut caches: Vec<Box<dyn Simulate>> = match caches {
        Ok(caches) => caches,
        Err(error) => return Some(Err(LabError::Geometry(error.to_string()))),
    };
    let rows = stream.ids.len();
    let mut from = 0;
    while from < rows {
        // A batch ends where the warm-up does.
        let mut to = (from + BATCH).min(rows);
        if from < stream.counted_from {
            to = to.min(stream.counted_from);
        }
        if from == stream.counted_from && from > 0 {
            for cache in &mut caches {
                cache.reset_statistics();
            }
        }
        let hints = stream.hints.get(from..to).unwrap_or(&[]);
        let mut members: Vec<Member<'_>> = caches
            .iter_mut()
            .map(|cache| (cache.as_mut() as &mut dyn Simulate, &*places))
            .collect();
        let (ids, ticks) = (&stream.ids[from..to], &stream.ticks[from..to]);
        if let Err(error) = run_all(&mut members, ids, ticks, hints) {
            return Some(Err(LabError::Trace(format!(
                "{}: {error}",
                stream.note.trace
            ))));
        }
        if !meter.step(((to - from) * caches.len()) as u64) {
            return None;
        }
        from = to;
    }
    if rows == stream.counted_from {
        for cache in &mut caches {
            cache.reset_statistics();
        }
    }
    Some(Ok(caches.iter().map(|cache| cache.statistics()).collect()))
}
