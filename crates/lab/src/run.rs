//! Many configurations over one stream, spread over threads.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use fairlead_base::Endpoint;
use fairlead_cache::{
    BATCH, Geometry, Indexer, LINES_MAX, Lifetime, LruFamily, Member, Places, RunError, Scheme,
    Simulate, Statistics, build, registry, run_all,
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
/// LRU caches that differ in their ways alone, from which one pass for all ways is the faster.
const FAMILY_MIN: usize = 2;

/// A configuration that is done.
#[derive(Clone, Debug)]
pub struct Finished {
    /// Its index among the requested ones.
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
    /// Checks a plan's or option's values.
    ///
    /// # Errors
    /// The problem, with what to write instead.
    pub fn new(spec: &RunSpec) -> Result<Self, LabError> {
        let mut scheme = Scheme::parse(&spec.scheme)
            .map_err(|error| LabError::option("scheme", &spec.scheme, error.to_string()))?;
        if let Some(bits) = &spec.index_bits {
            let wrong = |error| LabError::option("index bits", bits, format!("{error}"));
            let own = std::mem::replace(&mut scheme.mask, bits.parse().map_err(wrong)?);
            if says(spec, "bits") && own != scheme.mask {
                return Err(contradicts(spec, "index bits", bits, "bits"));
            }
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
            let asked = Lifetime::from_counter(threshold.into());
            let own = std::mem::replace(&mut scheme.parameters.lifetime, asked);
            if says(spec, "on_ticks") && own != asked {
                let threshold = threshold.to_string();
                return Err(contradicts(spec, "threshold", &threshold, "on_ticks"));
            }
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
    /// No scheme has that name.
    pub fn indexer(&self) -> Result<Indexer, LabError> {
        self.scheme
            .indexer(&self.geometry, self.seed)
            .map_err(|error| LabError::Geometry(error.to_string()))
    }

    /// Whether the policy moves lines, and so asks for second sets.
    pub(crate) fn moves(&self) -> bool {
        registry::entry(&self.scheme.policy).is_none_or(|entry| entry.moves)
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

/// Does the scheme itself say this?
fn says(spec: &RunSpec, setting: &str) -> bool {
    let mut said = spec.scheme.split(',');
    said.any(|part| matches!(part.split_once('='), Some((name, _)) if name.trim() == setting))
}

/// That a scheme says one thing and the configuration another: which is meant is not known.
fn contradicts(spec: &RunSpec, what: &str, asked: &str, setting: &str) -> LabError {
    let scheme = &spec.scheme;
    let problem =
        format!("scheme {scheme} sets another value; give only one of {setting}= and {what}");
    LabError::option(what, asked, problem)
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

/// Places that several share, made by the first that needs them and dropped by the last.
struct Shared {
    configuration: Configuration,
    /// Someone asks for second sets.
    second: bool,
    users: usize,
    places: Option<Arc<Places>>,
    /// Which of the widest places these are a part of.
    widest: Option<usize>,
}

impl Shared {
    fn new(
        configuration: Configuration,
        second: bool,
        users: usize,
        widest: Option<usize>,
    ) -> Self {
        Self {
            configuration,
            second,
            users,
            places: None,
            widest,
        }
    }

    fn take(&mut self, keys: &[Endpoint], widest: &[Mutex<Self>]) -> Result<Arc<Places>, LabError> {
        let places = match self.places.take() {
            Some(places) => places,
            None => Arc::new(self.make(keys, widest)?),
        };
        self.users -= 1;
        if self.users > 0 {
            self.places = Some(Arc::clone(&places));
        }
        Ok(places)
    }

    fn make(&self, keys: &[Endpoint], widest: &[Mutex<Self>]) -> Result<Places, LabError> {
        if let Some(at) = self.widest {
            let whole = lock(&widest[at]).take(keys, &[])?;
            let geometry = &self.configuration.geometry;
            let places = whole.narrowed(geometry.banks(), geometry.sets(), self.second);
            if let Some(places) = places {
                return Ok(places);
            }
        }
        let indexer = self.configuration.indexer()?;
        Ok(if self.second {
            indexer.places(keys)
        } else {
            indexer.first_places(keys)
        })
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Configurations that run together: the same places for all.
struct Job {
    places: Which,
    members: Vec<usize>,
    /// LRU of one bank for all ways at once.
    family: bool,
}

/// Which places a job reads.
#[derive(Clone, Copy)]
enum Which {
    /// Those of its members.
    Own(usize),
    /// The widest of its members, for all of them.
    Widest(usize),
}

/// Configurations, cut into jobs.
struct Batches {
    jobs: Vec<Job>,
    shared: Vec<Mutex<Shared>>,
    /// Hashed once for all sizes of caches, where the index allows it.
    widest: Vec<Mutex<Shared>>,
}

/// Runs every configuration; results in the order of `specs`.
///
/// # Errors
/// An invalid configuration (then nothing was run); a stop. [`run_each`] keeps finished results at
/// a stop.
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

/// Runs every configuration and passes on each result when it is finished, on this thread.
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
    let batches = Batches::new(&configurations, threads)?;
    let cold_misses = stream.cold_misses()?;
    let rows = stream.ids.len() as u64;
    control.begin(what, rows.saturating_mul(specs.len() as u64));
    let work = |job: &Job, meter: &Meter| run_job(stream, &configurations, &batches, job, meter);
    let mut first_error = None;
    let mut take = |job: usize, counted: Result<Vec<Statistics>, LabError>| match counted {
        Ok(counted) => {
            for (&index, counted) in batches.jobs[job].members.iter().zip(&counted) {
                let bounds = known.as_ref().map(|known: &Known| known.of(index));
                let result = RunResult {
                    cold_misses,
                    ..result(counted, bounds)
                };
                finished(Finished { index, result });
            }
        }
        Err(error) => first_error = Some(error),
    };
    let ended = spread(&batches.jobs, threads, control, &work, &mut take);
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

/// True if the single-pass LRU for all ways covers this configuration.
fn in_family(configuration: &Configuration) -> bool {
    let geometry = &configuration.geometry;
    let whole = u64::from(geometry.sets()) * LruFamily::WAYS as u64;
    configuration.scheme.policy == "lru" && geometry.banks() == 1 && whole <= LINES_MAX
}

impl Batches {
    /// Groups configurations with the same places and cuts the groups, so that every thread has
    /// something to do.
    fn new(configurations: &[Configuration], threads: usize) -> Result<Self, LabError> {
        let mut groups: Vec<(&Configuration, Vec<usize>)> = Vec::new();
        let mut by_key = BTreeMap::new();
        for (index, configuration) in configurations.iter().enumerate() {
            let group = *by_key.entry(configuration.place_key()).or_insert_with(|| {
                groups.push((configuration, Vec::new()));
                groups.len() - 1
            });
            groups[group].1.push(index);
        }
        let members_max = configurations
            .len()
            .div_ceil(threads.max(1))
            .clamp(1, MEMBERS_MAX);
        let firsts: Vec<(&Configuration, bool)> = groups
            .iter()
            .map(|(first, members)| {
                let second = members.iter().any(|index| configurations[*index].moves());
                (*first, second)
            })
            .collect();
        let (mut widest, parts_of) = widest(&firsts)?;
        let (mut jobs, mut shared) = (Vec::new(), Vec::new());
        let mut wide: Vec<Vec<Vec<usize>>> = vec![Vec::new(); widest.len()];
        let seconds = firsts.iter().map(|(_, second)| *second);
        let groups = groups.into_iter().zip(seconds).zip(parts_of);
        for (((configuration, members), second), part_of) in groups {
            let mut parts = Vec::new();
            let rest = families(configurations, members, &mut parts);
            if let Some(at) = part_of
                && widest[at].configuration.geometry.banks() == 1
            {
                wide[at].append(&mut parts);
            }
            let chunks = rest.chunks(members_max);
            let rest = chunks.map(|part| (part.to_vec(), false));
            let parts: Vec<_> = parts
                .into_iter()
                .map(|part| (part, true))
                .chain(rest)
                .collect();
            if let Some(at) = part_of {
                widest[at].users += usize::from(!parts.is_empty());
            }
            let users = parts.len();
            jobs.extend(parts.into_iter().map(|(members, family)| Job {
                places: Which::Own(shared.len()),
                members,
                family,
            }));
            shared.push(Shared::new(configuration.clone(), second, users, part_of));
        }
        for (at, families) in wide.iter().enumerate() {
            let wide = together(at, families, threads);
            widest[at].users += wide.len();
            jobs.extend(wide);
        }
        let shared = shared.into_iter().map(Mutex::new).collect();
        let widest = widest.into_iter().map(Mutex::new).collect();
        // The longest first, so that the last to end is short.
        jobs.sort_by_key(|job| std::cmp::Reverse(job.members.len()));
        Ok(Self {
            jobs,
            shared,
            widest,
        })
    }
}

/// Families that read the same widest places, cut so that every thread has some.
fn together(widest: usize, families: &[Vec<usize>], threads: usize) -> Vec<Job> {
    let count = families.len().div_ceil(threads.max(1));
    let parts = families.chunks(count.clamp(1, MEMBERS_MAX));
    let job = |part: &[Vec<usize>]| Job {
        places: Which::Widest(widest),
        members: part.concat(),
        family: true,
    };
    parts.map(job).collect()
}

/// Groups those of `members` that a single-pass LRU for all ways covers, if there are several;
/// returns the others.
fn families(
    configurations: &[Configuration],
    members: Vec<usize>,
    parts: &mut Vec<Vec<usize>>,
) -> Vec<usize> {
    let (mut family, mut rest): (Vec<usize>, Vec<usize>) = members
        .into_iter()
        .partition(|index| in_family(&configurations[*index]));
    while let Some(first) = family.first() {
        let lifetime = |index: usize| configurations[index].scheme.parameters.lifetime;
        let of = lifetime(*first);
        let (alike, others): (Vec<usize>, Vec<usize>) =
            family.into_iter().partition(|index| lifetime(*index) == of);
        family = others;
        if alike.len() >= FAMILY_MIN {
            parts.push(alike);
        } else {
            rest.extend(alike);
        }
    }
    rest.sort_unstable();
    rest
}

/// Places, and for each group which of them it is a part of.
type Widest = (Vec<Shared>, Vec<Option<usize>>);

/// Places to hash once for several of these: for the most banks and sets, by index, mask and seed;
/// and which of them each is a part of. With each, whether someone asks for second sets.
fn widest(firsts: &[(&Configuration, bool)]) -> Result<Widest, LabError> {
    let mut by_key: BTreeMap<_, Vec<usize>> = BTreeMap::new();
    for (at, (configuration, _)) in firsts.iter().enumerate() {
        if configuration.indexer()?.nests() {
            let (index, mask, _, _, seed) = configuration.place_key();
            by_key.entry((index, mask, seed)).or_default().push(at);
        }
    }
    let (mut widest, mut parts_of) = (Vec::new(), vec![None; firsts.len()]);
    for parts in by_key.into_values().filter(|parts| parts.len() > 1) {
        let geometries = || parts.iter().map(|at| &firsts[*at].0.geometry);
        let second = parts.iter().any(|at| firsts[*at].1);
        let banks = geometries().map(|geometry| geometry.banks()).max();
        let sets = geometries().map(|geometry| geometry.sets()).max();
        let (banks, sets) = (banks.unwrap_or(1), sets.unwrap_or(1));
        let lines = u64::from(banks) * u64::from(sets);
        let Ok(geometry) = Geometry::new(lines, 1, banks, 1) else {
            // More than one cache may have; each is hashed by itself.
            continue;
        };
        for at in &parts {
            parts_of[*at] = Some(widest.len());
        }
        let mut configuration = firsts[parts[0]].0.clone();
        configuration.geometry = geometry;
        configuration.scheme.banks = banks;
        widest.push(Shared::new(configuration, second, 0, None));
    }
    Ok((widest, parts_of))
}

fn run_job(
    stream: &Stream,
    configurations: &[Configuration],
    batches: &Batches,
    job: &Job,
    meter: &Meter,
) -> Option<Result<Vec<Statistics>, LabError>> {
    let places = match job.places {
        Which::Own(at) => lock(&batches.shared[at]).take(&stream.keys, &batches.widest),
        Which::Widest(at) => lock(&batches.widest[at]).take(&stream.keys, &[]),
    };
    let places = match places {
        Ok(places) => places,
        Err(error) => return Some(Err(error)),
    };
    if job.family {
        return run_family(stream, configurations, &places, job, meter);
    }
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
    for cache in &mut caches {
        cache.forget_seen();
    }
    let ended = in_batches(stream, caches.len(), meter, &mut |step| match step {
        Step::Counts => {
            for cache in &mut caches {
                cache.reset_statistics();
            }
            Ok(())
        }
        Step::Accesses(part) => {
            let hints = stream.hints.get(part.clone()).unwrap_or(&[]);
            let mut members: Vec<Member<'_>> = caches
                .iter_mut()
                .map(|cache| (cache.as_mut() as &mut dyn Simulate, &*places))
                .collect();
            let (ids, ticks) = (&stream.ids[part.clone()], &stream.ticks[part]);
            run_all(&mut members, ids, ticks, hints)
        }
    })?;
    Some(ended.map(|()| caches.iter().map(|cache| cache.statistics()).collect()))
}

/// LRU of one bank: one pass for all ways, and for all numbers of sets.
fn run_family(
    stream: &Stream,
    configurations: &[Configuration],
    places: &Places,
    job: &Job,
    meter: &Meter,
) -> Option<Result<Vec<Statistics>, LabError>> {
    let key = |index: &usize| {
        let Configuration {
            scheme, geometry, ..
        } = &configurations[*index];
        (geometry.sets(), scheme.parameters.lifetime)
    };
    let mut keys: Vec<(u32, Lifetime)> = Vec::new();
    for index in &job.members {
        if !keys.contains(&key(index)) {
            keys.push(key(index));
        }
    }
    let families = keys
        .iter()
        .map(|(sets, lifetime)| LruFamily::new(*sets, *lifetime));
    let mut families: Vec<LruFamily> = match families.collect() {
        Ok(families) => families,
        Err(error) => return Some(Err(LabError::Geometry(error.to_string()))),
    };
    let ended = in_batches(stream, job.members.len(), meter, &mut |step| match step {
        Step::Counts => {
            families.iter_mut().for_each(LruFamily::reset_statistics);
            Ok(())
        }
        Step::Accesses(part) => {
            let (ids, ticks) = (&stream.ids[part.clone()], &stream.ticks[part]);
            LruFamily::run_all(&mut families, ids, ticks, places)
        }
    })?;
    let counted = |index: &usize| {
        let at = keys.iter().position(|known| *known == key(index));
        let ways = configurations[*index].geometry.ways() as usize;
        at.map_or_else(Statistics::default, |at| families[at].statistics(ways))
    };
    Some(ended.map(|()| job.members.iter().map(counted).collect()))
}

/// What is next in a stream.
enum Step {
    /// Some accesses.
    Accesses(std::ops::Range<usize>),
    /// The warm-up is over.
    Counts,
}

/// Takes a stream in batches of accesses, of which one ends where the warm-up does; nothing when
/// the meter says stop.
fn in_batches(
    stream: &Stream,
    configurations: usize,
    meter: &Meter,
    take: &mut dyn FnMut(Step) -> Result<(), RunError>,
) -> Option<Result<(), LabError>> {
    let rows = stream.ids.len();
    let mut take = |step| {
        take(step).map_err(|error| LabError::Trace(format!("{}: {error}", stream.note.trace)))
    };
    let mut from = 0;
    while from < rows {
        let mut to = (from + BATCH).min(rows);
        if from < stream.counted_from {
            to = to.min(stream.counted_from);
        }
        if let Err(error) = take(Step::Accesses(from..to)) {
            return Some(Err(error));
        }
        if to == stream.counted_from
            && let Err(error) = take(Step::Counts)
        {
            return Some(Err(error));
        }
        if !meter.step(((to - from) * configurations) as u64) {
            return None;
        }
        from = to;
    }
    Some(Ok(()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_schemes_settings_are_not_overridden_silently() {
        let said = |scheme: &str, bits: Option<&str>, threshold: Option<u8>| {
            let spec = RunSpec {
                index_bits: bits.map(str::to_owned),
                threshold,
                ..RunSpec::paper(scheme)
            };
            check(&spec).map_err(|error| error.to_string())
        };
        for (scheme, bits, threshold) in [
            ("spec", Some("16"), Some(2)),
            ("spec,bits=16", Some("16"), None),
            ("spec,on_ticks=4", None, Some(4)),
            ("spec,on_ticks=always", Some("8"), Some(0)),
        ] {
            assert_eq!(said(scheme, bits, threshold), Ok(()), "{scheme}");
        }
        let two = said("spec,on_ticks=8", None, Some(4)).unwrap_err();
        assert!(
            two.contains("threshold 4") && two.contains("on_ticks= and"),
            "{two}"
        );
        let two = said("spec, bits=8", Some("16"), None).unwrap_err();
        assert!(
            two.contains("index bits 16") && two.contains("bits= and"),
            "{two}"
        );
    }
}
