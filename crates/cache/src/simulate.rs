//! Simulation: a stream of dense session numbers through a cache, in blocks.

use std::sync::Arc;

use thiserror::Error;

use crate::cache::Cache;
use crate::geometry::Geometry;
use crate::place::Places;
use crate::policy::{Block, Policy, Setup};
use crate::registry::{Visit, with_policy};
use crate::scheme::{Scheme, SchemeError};
use crate::statistics::Statistics;

/// Accesses with places read together.
pub(crate) const BLOCK: usize = 1024;

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
        /// Hints; may be empty.
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
    /// Places without the second sets that the policy needs.
    #[error("the policy moves lines, but the places have no second sets: make them with both")]
    FirstOnly,
}

impl RunError {
    /// Whether the places are for the geometry and every number has one.
    pub(crate) fn check(
        geometry: &Geometry,
        moves: bool,
        ids: &[u32],
        places: &Places,
    ) -> Result<(), Self> {
        if moves && !places.has_second() {
            return Err(Self::FirstOnly);
        }
        if (places.banks(), places.sets()) != (geometry.banks(), geometry.sets()) {
            return Err(Self::OtherGeometry {
                given_banks: places.banks(),
                given_sets: places.sets(),
                banks: geometry.banks(),
                sets: geometry.sets(),
            });
        }
        Self::check_ids(ids, places)
    }

    /// Whether every number has a place.
    pub(crate) fn check_ids(ids: &[u32], places: &Places) -> Result<(), Self> {
        // The largest number marks an empty line and is never a session.
        let end = places.len().min(u32::MAX as usize) as u32;
        // All of them, without a way out, are compared in vectors.
        let beyond = ids.iter().fold(false, |beyond, id| beyond | (*id >= end));
        if beyond && let Some(at) = ids.iter().position(|id| *id >= end) {
            return Err(Self::NoPlace {
                id: ids[at],
                at,
                places: places.len(),
            });
        }
        Ok(())
    }
}

/// A simulated cache.
///
/// Many configurations over one stream: see [`run_all`].
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

    /// From now on first accesses are not counted: [`Statistics::cold_misses`] stays 0. For running
    /// many configurations over one stream, where the number is the same for all
    /// ([`crate::bounds::compulsory`]).
    fn forget_seen(&mut self);

    /// The shape.
    fn geometry(&self) -> Geometry;

    /// Lines in use, by set, bank after bank.
    fn occupancy(&self) -> Vec<u32>;

    /// ON lines at the tick of the last access, by set, bank after bank.
    fn on_lines(&self) -> Vec<u32>;

    /// The session number in each line, by line number.
    fn contents(&self) -> Vec<Option<u32>>;

    /// For [`run_all`].
    #[doc(hidden)]
    fn simulation(&mut self) -> &mut Simulation;
}

/// A cache of any policy and shape, as simulations drive it.
trait Machine: Send {
    fn block(&mut self, block: &Gathered<'_>);
    fn statistics(&self) -> Statistics;
    fn reset_statistics(&mut self);
    fn occupancy(&self) -> Vec<u32>;
    fn on_lines(&self) -> Vec<u32>;
    fn contents(&self) -> Vec<Option<u32>>;
}

/// At most [`BLOCK`] accesses, checked, with their places read.
struct Gathered<'a> {
    ids: &'a [u32],
    ticks: &'a [u32],
    hints: &'a [u8],
    /// First sets, those of all banks after each other.
    first: &'a [u32],
    /// Second sets; empty if the policy does not need them.
    second: &'a [u32],
    places: &'a Places,
}

impl<P: Policy<B, W>, const B: usize, const W: usize> Machine for Cache<u32, P, B, W> {
    fn block(&mut self, block: &Gathered<'_>) {
        self.make_room();
        let block = Block {
            ids: block.ids,
            ticks: block.ticks,
            hints: block.hints,
            first: block.first.as_chunks::<B>().0,
            second: block.second.as_chunks::<B>().0,
            places: block.places,
        };
        P::run(self, &block);
    }

    fn statistics(&self) -> Statistics {
        Self::statistics(self)
    }

    fn reset_statistics(&mut self) {
        Self::reset_statistics(self);
    }

    fn occupancy(&self) -> Vec<u32> {
        Self::occupancy(self)
    }

    fn on_lines(&self) -> Vec<u32> {
        Self::on_lines(self)
    }

    fn contents(&self) -> Vec<Option<u32>> {
        let lines = 0..self.geometry().lines();
        lines.map(|line| self.tag(line)).collect()
    }
}

/// Places of a block, read; room for [`BLOCK`] accesses.
#[derive(Default)]
struct Scratch {
    first: Vec<u32>,
    second: Vec<u32>,
}

impl Scratch {
    fn gather<'a>(
        &'a mut self,
        block: &Slices<'a>,
        places: &'a Places,
        moves: bool,
    ) -> Gathered<'a> {
        let cells = block.ids.len() * places.banks() as usize;
        self.first.resize(cells.max(self.first.len()), 0);
        let seconds = if moves { cells } else { 0 };
        self.second.resize(seconds.max(self.second.len()), 0);
        let (first, second) = (&mut self.first[..cells], &mut self.second[..seconds]);
        places.gather(block.ids, first, second);
        Gathered {
            ids: block.ids,
            ticks: block.ticks,
            hints: block.hints,
            first: &self.first[..cells],
            second: &self.second[..seconds],
            places,
        }
    }
}

/// Accesses as they come.
struct Slices<'a> {
    ids: &'a [u32],
    ticks: &'a [u32],
    hints: &'a [u8],
}

impl<'a> Slices<'a> {
    /// Checked, all but the numbers.
    fn new(ids: &'a [u32], ticks: &'a [u32], hints: &'a [u8]) -> Result<Self, RunError> {
        if ticks.len() != ids.len() || !hints.is_empty() && hints.len() != ids.len() {
            return Err(RunError::Lengths {
                ids: ids.len(),
                ticks: ticks.len(),
                hints: hints.len(),
            });
        }
        Ok(Self { ids, ticks, hints })
    }

    fn blocks(&self) -> impl Iterator<Item = Self> {
        (0..self.ids.len()).step_by(BLOCK).map(|from| {
            let part = from..(from + BLOCK).min(self.ids.len());
            Self {
                ids: &self.ids[part.clone()],
                ticks: &self.ticks[part.clone()],
                hints: self.hints.get(part).unwrap_or(&[]),
            }
        })
    }
}

/// Which sessions were seen, a bit each: it is read and written at random, so it had better be
/// small.
#[derive(Clone, Default)]
struct Seen(Vec<u64>);

impl Seen {
    fn make_room(&mut self, sessions: usize) {
        let words = sessions.div_ceil(64);
        if self.0.len() < words {
            self.0.resize(words, 0);
        }
    }

    #[inline]
    fn mark(&mut self, ids: &[u32]) {
        for id in ids {
            self.0[*id as usize / 64] |= 1 << (id % 64);
        }
    }

    fn count(&self) -> u64 {
        self.0.iter().map(|word| u64::from(word.count_ones())).sum()
    }
}

/// The result of [`build`].
pub struct Simulation {
    machine: Box<dyn Machine>,
    geometry: Geometry,
    moves: bool,
    /// Shared by simulations that have always been run together.
    seen: Option<Arc<Seen>>,
    seen_before: u64,
    scratch: Scratch,
}

impl core::fmt::Debug for Simulation {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "Simulation({:?})", self.geometry)
    }
}

impl Simulation {
    fn seen_count(&self) -> u64 {
        self.seen.as_ref().map_or(0, |seen| seen.count())
    }
}

impl Simulate for Simulation {
    fn run(
        &mut self,
        ids: &[u32],
        ticks: &[u32],
        hints: &[u8],
        places: &Places,
    ) -> Result<(), RunError> {
        let accesses = Slices::new(ids, ticks, hints)?;
        RunError::check(&self.geometry, self.moves, ids, places)?;
        let mut seen = self.seen.as_mut().map(Arc::make_mut);
        if let Some(seen) = &mut seen {
            seen.make_room(places.len());
        }
        for block in accesses.blocks() {
            if let Some(seen) = &mut seen {
                seen.mark(block.ids);
            }
            let block = self.scratch.gather(&block, places, self.moves);
            self.machine.block(&block);
        }
        Ok(())
    }

    fn statistics(&self) -> Statistics {
        Statistics {
            cold_misses: self.seen_count() - self.seen_before,
            ..self.machine.statistics()
        }
    }

    fn reset_statistics(&mut self) {
        self.machine.reset_statistics();
        self.seen_before = self.seen_count();
    }

    fn forget_seen(&mut self) {
        (self.seen, self.seen_before) = (None, 0);
    }

    fn geometry(&self) -> Geometry {
        self.geometry
    }

    fn occupancy(&self) -> Vec<u32> {
        self.machine.occupancy()
    }

    fn on_lines(&self) -> Vec<u32> {
        self.machine.on_lines()
    }

    fn contents(&self) -> Vec<Option<u32>> {
        self.machine.contents()
    }

    fn simulation(&mut self) -> &mut Self {
        self
    }
}

struct Build;

impl Visit for Build {
    type Tag = u32;
    type Output = Simulation;

    fn visit<P: Policy<B, W>, const B: usize, const W: usize>(
        self,
        cache: Cache<u32, P, B, W>,
    ) -> Self::Output {
        Simulation {
            geometry: cache.geometry(),
            moves: P::MOVES,
            machine: Box::new(cache),
            seen: Some(Arc::default()),
            seen_before: 0,
            scratch: Scratch::default(),
        }
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
    Ok(Box::new(with_policy(&scheme.policy, &setup, Build)?))
}

/// One configuration of a batch: a cache and the places that its index functions give.
pub type Member<'a> = (&'a mut dyn Simulate, &'a Places);

/// Minimum number of accesses for [`run_all`] at which its set-up cost is negligible.
pub const BATCH: usize = 64 * BLOCK;

/// Members with something in common.
struct Group<T> {
    of: T,
    members: Vec<usize>,
}

/// Runs many configurations over one stream, block by block. The places of a block are read once
/// for all members that are given the same [`Places`], and which sessions were seen is noted once
/// for all that have seen the same: so share `Places`, and run together what began together.
///
/// # Errors
/// As [`Simulate::run`]; nothing was simulated then.
pub fn run_all(
    members: &mut [Member<'_>],
    ids: &[u32],
    ticks: &[u32],
    hints: &[u8],
) -> Result<(), RunError> {
    let accesses = Slices::new(ids, ticks, hints)?;
    let mut by_places = group_by_places(members, ids)?;
    let mut by_seen = group_by_seen(members);
    if !by_seen.is_empty() {
        let sessions = ids.iter().max().map_or(0, |id| *id as usize + 1);
        for group in &mut by_seen {
            Arc::make_mut(&mut group.of).make_room(sessions);
        }
    }
    for block in accesses.blocks() {
        for group in &mut by_seen {
            Arc::make_mut(&mut group.of).mark(block.ids);
        }
        for Group { of, members: part } in &mut by_places {
            let block = of.scratch.gather(&block, of.places, of.moves);
            for at in part {
                members[*at].0.simulation().machine.block(&block);
            }
        }
    }
    for group in by_seen {
        for at in group.members {
            members[at].0.simulation().seen = Some(Arc::clone(&group.of));
        }
    }
    Ok(())
}

/// Places that members share.
struct Shared<'a> {
    places: &'a Places,
    /// One of them wants second sets.
    moves: bool,
    scratch: Scratch,
}

/// Checks all members, too.
fn group_by_places<'a>(
    members: &mut [Member<'a>],
    ids: &[u32],
) -> Result<Vec<Group<Shared<'a>>>, RunError> {
    let mut groups: Vec<Group<Shared<'a>>> = Vec::new();
    for (at, (cache, places)) in members.iter_mut().enumerate() {
        let cache = cache.simulation();
        RunError::check(&cache.geometry, cache.moves, &[], places)?;
        let known = groups
            .iter_mut()
            .find(|group| core::ptr::eq(group.of.places, *places));
        if let Some(group) = known {
            group.of.moves |= cache.moves;
            group.members.push(at);
            continue;
        }
        RunError::check(&cache.geometry, cache.moves, ids, places)?;
        groups.push(Group {
            of: Shared {
                places,
                moves: cache.moves,
                scratch: Scratch::default(),
            },
            members: vec![at],
        });
    }
    Ok(groups)
}

/// Takes the members' record of seen sessions.
fn group_by_seen(members: &mut [Member<'_>]) -> Vec<Group<Arc<Seen>>> {
    let mut groups: Vec<Group<Arc<Seen>>> = Vec::new();
    for (at, (cache, _)) in members.iter_mut().enumerate() {
        let Some(seen) = cache.simulation().seen.take() else {
            continue;
        };
        let known = groups.iter_mut().find(|group| {
            Arc::ptr_eq(&group.of, &seen) || group.of.0.is_empty() && seen.0.is_empty()
        });
        match known {
            Some(group) => group.members.push(at),
            None => groups.push(Group {
                of: seen,
                members: vec![at],
            }),
        }
    }
    groups
}
