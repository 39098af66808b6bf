//! Simulation: a stream of dense session numbers through a cache, in blocks.

use thiserror::Error;

use crate::cache::Cache;
use crate::geometry::Geometry;
use crate::place::{Places, Sets};
use crate::policy::{Block, Policy, Setup};
use crate::registry::{Visit, with_policy};
use crate::scheme::{Scheme, SchemeError};
use crate::statistics::Statistics;

/// Accesses whose places are read together.
const BLOCK: usize = 1024;

/// A stream that does not fit together.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum RunError {
    /// Columns of different lengths.
    #[error("{ids} accesses have {ticks} ticks and {hints} hints: columns must be equally long")]
    Lengths {
        /// Accesses.
        ids: usize,
        /// Ticks.
        ticks: usize,
        /// Hints; none at all is right too.
        hints: usize,
    },
    /// A session number that has no place.
    #[error("session number {id} at access {at}, but there are places for {places} sessions")]
    NoPlace {
        /// The number.
        id: u32,
        /// Which access of this call, from 0.
        at: usize,
        /// How many places there are.
        places: usize,
    },
    /// Places made for another geometry.
    #[error(
        "places were made for {given_banks} banks of {given_sets} sets, the cache has {banks} of \
         {sets}: make them with the indexer of this scheme and geometry"
    )]
    OtherGeometry {
        /// Banks that the places are for.
        given_banks: u32,
        /// Sets that they are for.
        given_sets: u32,
        /// Banks of the cache.
        banks: u32,
        /// Sets of the cache.
        sets: u32,
    },
}

/// A simulated cache.
///
/// Many configurations over one stream: call `run` of each in turn on the same few thousand
/// accesses; these and their places then stay in the processor's first caches. [`run_all`] does so.
pub trait Simulate: Send {
    /// Accesses one after the other: session numbers, the tick of each, the hint of each (or an
    /// empty slice), and the places by session number. Can be called again with what follows.
    ///
    /// # Errors
    /// Columns of different lengths, numbers without a place, places of another geometry. Nothing
    /// was simulated then.
    fn run(
        &mut self,
        ids: &[u32],
        ticks: &[u32],
        hints: &[u8],
        places: &Places,
    ) -> Result<(), RunError>;

    /// What was counted.
    fn statistics(&self) -> Statistics;

    /// Counts from zero again and keeps the contents: the end of a warm-up. Sessions seen before
    /// stay seen.
    fn reset_statistics(&mut self);

    /// The shape.
    fn geometry(&self) -> Geometry;

    /// Lines in use, by set, bank after bank.
    fn occupancy(&self) -> Vec<u32>;

    /// ON lines at the tick of the last access, by set, bank after bank.
    fn on_lines(&self) -> Vec<u32>;

    /// The session number in each line, by line number.
    fn contents(&self) -> Vec<Option<u32>>;
}

struct Simulation<P, const B: usize, const W: usize> {
    cache: Cache<u32, P, B, W>,
    /// One byte a session: 1 when it was seen. Bytes, because a store of a byte waits for nothing.
    seen: Vec<u8>,
    seen_before: u64,
    first: Box<[Sets<B>; BLOCK]>,
    second: Box<[Sets<B>]>,
}

impl<P: Policy<B, W>, const B: usize, const W: usize> Simulation<P, B, W> {
    fn new(cache: Cache<u32, P, B, W>) -> Self {
        let second = if P::MOVES { BLOCK } else { 0 };
        Self {
            cache,
            seen: Vec::new(),
            seen_before: 0,
            first: Box::new([[0; B]; BLOCK]),
            second: vec![[0; B]; second].into(),
        }
    }

    fn seen_count(&self) -> u64 {
        self.seen.iter().map(|seen| u64::from(*seen)).sum()
    }

    fn check(
        &self,
        ids: &[u32],
        ticks: &[u32],
        hints: &[u8],
        places: &Places,
    ) -> Result<(), RunError> {
        let geometry = self.cache.geometry();
        if ticks.len() != ids.len() || !hints.is_empty() && hints.len() != ids.len() {
            return Err(RunError::Lengths {
                ids: ids.len(),
                ticks: ticks.len(),
                hints: hints.len(),
            });
        }
        if (places.banks(), places.sets()) != (geometry.banks(), geometry.sets()) {
            return Err(RunError::OtherGeometry {
                given_banks: places.banks(),
                given_sets: places.sets(),
                banks: geometry.banks(),
                sets: geometry.sets(),
            });
        }
        // The largest number stands for an empty line and never is a session.
        let end = places.len().min(u32::MAX as usize);
        let largest = ids.iter().copied().max().unwrap_or(0);
        if largest as usize >= end
            && let Some(at) = ids.iter().position(|id| *id as usize >= end)
        {
            return Err(RunError::NoPlace {
                id: ids[at],
                at,
                places: places.len(),
            });
        }
        Ok(())
    }
}

impl<P: Policy<B, W>, const B: usize, const W: usize> Simulate for Simulation<P, B, W> {
    fn run(
        &mut self,
        ids: &[u32],
        ticks: &[u32],
        hints: &[u8],
        places: &Places,
    ) -> Result<(), RunError> {
        self.check(ids, ticks, hints, places)?;
        if self.seen.len() < places.len() {
            self.seen.resize(places.len(), 0);
        }
        let mut from = 0;
        for ids in ids.chunks(BLOCK) {
            let part = from..from + ids.len();
            from = part.end;
            places.gather_first(ids, &mut self.first[..ids.len()]);
            if P::MOVES {
                places.gather_second(ids, &mut self.second[..ids.len()]);
            }
            for id in ids {
                self.seen[*id as usize] = 1;
            }
            self.cache.make_room();
            let block = Block {
                ids,
                ticks: &ticks[part.clone()],
                hints: hints.get(part).unwrap_or(&[]),
                first: &self.first[..ids.len()],
                second: &self.second[..ids.len().min(self.second.len())],
            };
            P::run(&mut self.cache, &block);
        }
        Ok(())
    }

    fn statistics(&self) -> Statistics {
        Statistics {
            cold_misses: self.seen_count() - self.seen_before,
            ..self.cache.statistics()
        }
    }

    fn reset_statistics(&mut self) {
        self.cache.reset_statistics();
        self.seen_before = self.seen_count();
    }

    fn geometry(&self) -> Geometry {
        self.cache.geometry()
    }

    fn occupancy(&self) -> Vec<u32> {
        self.cache.occupancy()
    }

    fn on_lines(&self) -> Vec<u32> {
        self.cache.on_lines()
    }

    fn contents(&self) -> Vec<Option<u32>> {
        let lines = 0..self.cache.geometry().lines();
        lines.map(|line| self.cache.tag(line)).collect()
    }
}

struct Build;

impl Visit for Build {
    type Tag = u32;
    type Output = Box<dyn Simulate>;

    fn visit<P: Policy<B, W>, const B: usize, const W: usize>(
        self,
        cache: Cache<u32, P, B, W>,
    ) -> Self::Output {
        Box::new(Simulation::new(cache))
    }
}

/// The simulation of a scheme. The geometry's banks must be the scheme's ([`Scheme::geometry`]).
///
/// # Errors
/// When they are not, or scheme and policy do not exist.
pub fn build(
    scheme: &Scheme,
    geometry: &Geometry,
    seed: u64,
) -> Result<Box<dyn Simulate>, SchemeError> {
    scheme.check()?;
    scheme.check_banks(geometry)?;
    let setup = Setup {
        geometry: *geometry,
        parameters: scheme.parameters,
        seed,
    };
    Ok(with_policy(&scheme.policy, &setup, Build)?)
}

/// One configuration of a batch: a cache and the places that its index functions give.
pub type Member<'a> = (&'a mut dyn Simulate, &'a Places);

/// Accesses that all members of a batch see before the next ones are touched: with their ticks and
/// places some 100 KiB, which a processor's second cache holds.
pub const BATCH: usize = 8 * BLOCK;

/// Runs many configurations over one stream, block by block.
///
/// # Errors
/// As [`Simulate::run`]; members before the wrong one have then seen the block already.
pub fn run_all(
    members: &mut [Member<'_>],
    ids: &[u32],
    ticks: &[u32],
    hints: &[u8],
) -> Result<(), RunError> {
    if ticks.len() != ids.len() || !hints.is_empty() && hints.len() != ids.len() {
        return Err(RunError::Lengths {
            ids: ids.len(),
            ticks: ticks.len(),
            hints: hints.len(),
        });
    }
    for from in (0..ids.len()).step_by(BATCH) {
        let part = from..(from + BATCH).min(ids.len());
        let hints = hints.get(part.clone()).unwrap_or(&[]);
        for (cache, places) in members.iter_mut() {
            cache.run(&ids[part.clone()], &ticks[part.clone()], hints, places)?;
        }
    }
    Ok(())
}
