//! A target under inputs changed by chance, for a while: the front end for the stable toolchain.

use std::io;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use crate::corpus;
use crate::find::{self, Panic};
use crate::mutate::Mutator;
use crate::novelty::Seen;
use crate::targets::Target;
use crate::watch::Watch;

/// Inputs kept in memory for further changes, at most; then the oldest found ones make room.
const POOL_MAX: usize = 8_192;

/// Time to make an input smaller that broke a promise.
const SHRINK_TIME: Duration = Duration::from_secs(10);

/// Interval of progress reports.
const TELL_EVERY: Duration = Duration::from_millis(250);

/// What to do.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Feeds every choice.
    pub seed: u64,
    /// How long.
    pub time: Duration,
    /// Where inputs to begin with are.
    pub corpus: PathBuf,
    /// Where an input is written that breaks a promise.
    pub artifacts: PathBuf,
    /// Where inputs are written that show something new; nowhere if `None`.
    pub keep: Option<PathBuf>,
}

/// How far it is.
#[derive(Clone, Copy, Debug, Default)]
pub struct Progress {
    /// Inputs run.
    pub runs: u64,
    /// Inputs to begin with.
    pub seeds: usize,
    /// Inputs found that showed something new.
    pub kept: usize,
    /// Different things that targets noted.
    pub notes: usize,
    /// Time taken.
    pub elapsed: Duration,
}

/// An input that broke a promise.
#[derive(Clone, Debug)]
pub struct Find {
    /// What was said.
    pub panic: Panic,
    /// The input, made as small as it could be made.
    pub path: PathBuf,
    /// Its length.
    pub bytes: usize,
}

/// What came out.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// At the end.
    pub progress: Progress,
    /// The first broken promise, which ends the session.
    pub find: Option<Find>,
}

/// Runs a target over its corpus, then over changes of it, until the time is over or a promise is
/// broken. `tell` is called now and then.
///
/// # Errors
/// When the corpus cannot be read, or a find not be written.
pub fn run(target: &Target, plan: &Plan, mut tell: impl FnMut(&Progress)) -> io::Result<Outcome> {
    let began = Instant::now();
    let _ = Seen::default().absorb();
    let watch = Watch::new(target.name, plan.artifacts.clone());
    let mut session = Session {
        target,
        plan,
        watch,
        seen: Seen::default(),
        pool: Vec::new(),
        progress: Progress::default(),
    };
    let mut told = began;
    let mut seeds: Vec<Vec<u8>> = corpus::load(&plan.corpus)?
        .into_iter()
        .map(|(_, bytes)| bytes)
        .collect();
    seeds.push(Vec::new());
    for input in seeds {
        session.progress.seeds += 1;
        if let Some(find) = session.step(&input)? {
            return Ok(session.end(began, Some(find)));
        }
        session.seen.absorb();
        session.pool.push(input);
    }
    let mut mutator = Mutator::new(plan.seed, target.tokens, target.bytes_max);
    while began.elapsed() < plan.time {
        let pool = &session.pool;
        // Every other time one of the newest, which lead on to what has not been seen.
        let newest = pool.len().div_ceil(8);
        let at = match mutator.below(2) {
            0 => pool.len() - 1 - mutator.below(newest),
            _ => mutator.below(pool.len()),
        };
        let mut input = pool[at].clone();
        let other = &pool[mutator.below(pool.len())];
        mutator.mutate(&mut input, other);
        if let Some(find) = session.step(&input)? {
            return Ok(session.end(began, Some(find)));
        }
        if session.seen.absorb() > 0 {
            session.keep(input)?;
        }
        if told.elapsed() >= TELL_EVERY {
            told = Instant::now();
            session.progress.elapsed = began.elapsed();
            session.progress.notes = session.seen.len();
            tell(&session.progress);
        }
    }
    Ok(session.end(began, None))
}

struct Session<'a> {
    target: &'a Target,
    plan: &'a Plan,
    watch: Watch,
    seen: Seen,
    pool: Vec<Vec<u8>>,
    progress: Progress,
}

impl Session<'_> {
    fn step(&mut self, input: &[u8]) -> io::Result<Option<Find>> {
        self.progress.runs += 1;
        self.watch.begin(input);
        let outcome = find::attempt(self.target, input);
        self.watch.end();
        let Err(panic) = outcome else {
            return Ok(None);
        };
        let input = find::shrink(self.target, input, &panic.place, SHRINK_TIME);
        let prefix = format!("{}-", self.target.name);
        let path = corpus::store(&self.plan.artifacts, &prefix, &input)?;
        Ok(Some(Find {
            panic,
            path,
            bytes: input.len(),
        }))
    }

    fn keep(&mut self, input: Vec<u8>) -> io::Result<()> {
        self.progress.kept += 1;
        if let Some(folder) = &self.plan.keep {
            corpus::store(folder, "", &input)?;
        }
        if self.pool.len() >= POOL_MAX.max(self.progress.seeds + 1) {
            self.pool.remove(self.progress.seeds);
        }
        self.pool.push(input);
        Ok(())
    }

    fn end(mut self, began: Instant, find: Option<Find>) -> Outcome {
        self.seen.absorb();
        self.progress.elapsed = began.elapsed();
        self.progress.notes = self.seen.len();
        Outcome {
            progress: self.progress,
            find,
        }
    }
}

/// The inputs of a folder that show nothing which smaller ones do not show.
///
/// # Errors
/// When the folder cannot be read.
pub fn superfluous(target: &Target, folder: &std::path::Path) -> io::Result<Vec<PathBuf>> {
    // Notes that an earlier run left behind are nobody's.
    let _ = Seen::default().absorb();
    let mut seen = Seen::default();
    let mut superfluous = Vec::new();
    for (path, bytes) in corpus::load(folder)? {
        let broke = find::attempt(target, &bytes).is_err();
        if seen.absorb() == 0 && !broke {
            superfluous.push(path);
        }
    }
    Ok(superfluous)
}
