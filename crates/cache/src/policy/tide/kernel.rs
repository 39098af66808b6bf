//! Blocks under `tide`, for 2 banks of 4 ways: the four sets of an access and, at a miss, the four
//! of each line that could move are looked at whole.

use core::hint::select_unpredictable;

use fearless_simd::prelude::*;
use fearless_simd::{Level, Simd, mask8x64, u8x64, u16x16, u32x4};

use super::age::{ByAge, CLOSED, Hours, REUSED};
use super::{LOOKS, LOOKS_MAX, Tide};
use crate::cache::Cache;
use crate::lifetime::{Clock, STAMP_FIRST};
use crate::lines::{Homes, Lines};
use crate::policy::Block;
use crate::simulate::BLOCK;
use crate::statistics::Statistics;
use crate::vector::{Kernel, QUAD, quads_mut};

/// Lines in four sets.
const LANES: usize = 4 * QUAD;

/// Whether the kernel is for this shape.
pub(super) const fn fits(banks: usize, ways: usize) -> bool {
    banks == 2 && ways == QUAD
}

/// The first and the second sets of an access, or of a line.
type Four = [u32; 4];

#[inline(always)]
fn four<const B: usize>(first: &[u32; B], second: &[u32; B]) -> Four {
    [first[0], first[B - 1], second[0], second[B - 1]]
}

/// What ranks lowest in four sets: its rank, and which of their lines it is; the first of equals.
#[inline(always)]
fn lowest<S: Simd>(simd: S, ranks: &ByAge, bytes: &[[u8; QUAD]], sets: &Four) -> (u32, usize) {
    let mut row = [[0; QUAD]; 4];
    for (quad, set) in row.iter_mut().zip(sets) {
        *quad = bytes[*set as usize];
    }
    let row: &[u8; LANES] = row.as_flattened().try_into().expect("four times four");
    let ranks = ranks_of(simd, ranks, row).map(u16::from);
    let ranks = u16x16::simd_from(simd, ranks);
    let lanes = u16x16::simd_from(simd, core::array::from_fn(|lane| lane as u16));
    let least = u32::from(((ranks << 4) | lanes).reduce_min());
    (least >> 4, least as usize % LANES)
}

/// The ranks of bytes. With AVX-512 the whole table is in registers.
#[inline(always)]
fn ranks_of<S: Simd>(simd: S, ranks: &ByAge, bytes: &[u8; LANES]) -> [u8; LANES] {
    #[cfg(any(target_arch = "x86", target_arch = "x86_64"))]
    if matches!(simd.level(), Level::Avx512(_)) {
        let quarter = |at: usize| u8x64::from_slice(simd, &ranks.table()[64 * at..64 * at + 64]);
        let mut wide = [0; 64];
        wide[..LANES].copy_from_slice(bytes);
        let wide = u8x64::simd_from(simd, wide);
        let within = wide & !REUSED;
        let once = quarter(0).concat_swizzle_dyn(quarter(1), within);
        let reused = quarter(2).concat_swizzle_dyn(quarter(3), within);
        let is_reused: mask8x64<S> = wide.simd_ge(u8x64::splat(simd, REUSED));
        let found: [u8; 64] = is_reused.select(reused, once).into();
        return core::array::from_fn(|lane| found[lane]);
    }
    bytes.map(|byte| ranks.of(byte))
}

/// One bit for each line of four sets that has the tag.
#[inline(always)]
fn with_tag<S: Simd>(simd: S, tags: &[[u32; QUAD]], sets: &Four, tag: u32) -> u32 {
    let quad = |at: usize| u32x4::simd_from(simd, tags[sets[at] as usize]);
    let row = quad(0).combine(quad(1)).combine(quad(2).combine(quad(3)));
    row.simd_eq(tag).to_bitmask() as u32
}

/// A line: a set, and which of its lines.
#[derive(Clone, Copy)]
struct At {
    set: u32,
    way: u32,
}

impl At {
    #[inline(always)]
    fn of(sets: &Four, lane: usize) -> Self {
        Self {
            set: sets[lane / QUAD % 4],
            way: (lane % QUAD) as u32,
        }
    }

    #[inline(always)]
    fn or(self, other: Self, when: bool) -> Self {
        Self {
            set: select_unpredictable(when, other.set, self.set),
            way: select_unpredictable(when, other.way, self.way),
        }
    }
}

/// Where a newcomer goes.
#[derive(Clone, Copy)]
struct Way {
    /// The rank of the line that is given up; that of the newcomer where nobody goes.
    rank: u32,
    /// The line that is given up.
    to: At,
    /// The newcomer's line, whose tag moves to `to` when that is another one.
    into: At,
}

/// The cache between two steps, set by set.
struct Stretch<'a, const B: usize> {
    tags: &'a mut [[u32; QUAD]],
    stamps: &'a mut [[i32; QUAD]],
    bytes: &'a mut [[u8; QUAD]],
    homes: &'a mut [[Homes<B>; QUAD]],
    seen: &'a mut [u32],
    ranks: &'a ByAge,
    hours: &'a Hours,
    clock: &'a mut Clock,
    seen_now: u32,
    looks: u32,
    /// Lines that hold nothing.
    free: u32,
    enough: u32,
    fresh: u8,
    counts: Statistics,
}

impl<const B: usize> Stretch<'_, B> {
    /// Looks at four sets: the lowest rank and where it is. Counts lines not looked at before.
    #[inline(always)]
    fn look<S: Simd>(&mut self, simd: S, sets: &Four, looked: &mut u32) -> (u32, At) {
        for set in sets {
            let seen = core::mem::replace(&mut self.seen[*set as usize], self.seen_now);
            *looked += u32::from(seen != self.seen_now) * QUAD as u32;
        }
        let (rank, lane) = lowest(simd, self.ranks, self.bytes, sets);
        (rank, At::of(sets, lane))
    }

    /// As [`Tide::search`].
    #[inline(always)]
    fn search<S: Simd>(&mut self, simd: S, sets: &Four) -> Option<Way> {
        self.seen_now += 1;
        let enough = if self.free > 0 { 0 } else { self.enough };
        let of_fresh = u32::from(self.ranks.of(self.fresh));
        let mut looked = 0;
        let (rank, to) = self.look(simd, sets, &mut looked);
        let rank = rank.min(of_fresh);
        let mut best = Way { rank, to, into: to };
        if rank > enough {
            let limit = self.looks.max(looked);
            for parent in 0..LANES {
                if looked >= limit {
                    break;
                }
                let from = At::of(sets, parent);
                let homes = &self.homes[from.set as usize][parent % QUAD];
                let sets = four(&homes.first, &homes.second);
                let (rank, to) = self.look(simd, &sets, &mut looked);
                let better = rank < best.rank;
                best = Way {
                    rank: best.rank.min(rank),
                    to: best.to.or(to, better),
                    into: best.into.or(from, better),
                };
                if best.rank <= enough {
                    break;
                }
            }
        }
        self.looks = self.looks.saturating_sub(looked);
        (best.rank < of_fresh).then_some(best)
    }

    /// A hit: the byte that the line had.
    #[inline(always)]
    fn touch(&mut self, sets: &Four, found: u32, hint: u8) -> u8 {
        let lane = found.trailing_zeros() as usize % LANES;
        let At { set, way } = At::of(sets, lane);
        let (set, way) = (set as usize, way as usize % QUAD);
        let byte = self.bytes[set][way];
        let closed = hint == 1 || byte == CLOSED && hint != 2;
        let fresh = self.fresh | REUSED;
        self.bytes[set][way] = if closed { CLOSED } else { fresh };
        self.stamps[set][way] = self.clock.take();
        self.counts.second_lookup_hits += u64::from(lane >= LANES / 2);
        byte
    }

    /// A miss.
    #[inline(always)]
    fn admit<S: Simd>(&mut self, simd: S, sets: &Four, (id, hint): (u32, u8), homes: Homes<B>) {
        self.counts.misses += 1;
        let byte = if hint == 1 { CLOSED } else { self.fresh };
        match self.search(simd, sets) {
            Some(way) => self.enter(way, (id, byte), homes),
            None => self.counts.bypasses += 1,
        }
    }

    /// Gives a newcomer its line. Whether a line moves is not branched on: one that stays is
    /// copied onto itself.
    #[inline(always)]
    fn enter(&mut self, way: Way, (id, byte): (u32, u8), homes: Homes<B>) {
        let (to, to_way) = (way.to.set as usize, way.to.way as usize % QUAD);
        let (into, into_way) = (way.into.set as usize, way.into.way as usize % QUAD);
        let given_up = self.stamps[to][to_way];
        let evicted = given_up >= STAMP_FIRST;
        let moves = (to, to_way) != (into, into_way);
        self.counts.evictions += u64::from(evicted);
        self.counts.evicted_on += u64::from(given_up >= self.clock.on_since());
        self.counts.migrations += u64::from(moves);
        self.free -= u32::from(!evicted);
        self.tags[to][to_way] = self.tags[into][into_way];
        self.stamps[to][to_way] = self.stamps[into][into_way];
        self.bytes[to][to_way] = self.hours.aged(self.bytes[into][into_way]);
        self.homes[to][to_way] = self.homes[into][into_way];
        self.tags[into][into_way] = id;
        self.stamps[into][into_way] = self.clock.take();
        self.bytes[into][into_way] = byte;
        self.homes[into][into_way] = homes;
    }
}

pub(super) struct ByVectors<'a, const B: usize, const W: usize> {
    pub(super) cache: &'a mut Cache<u32, Tide, B, W>,
    pub(super) block: &'a Block<'a, B>,
}

impl<const B: usize, const W: usize> Kernel for ByVectors<'_, B, W> {
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Self { cache, block } = self;
        let mut marks = [0u16; BLOCK];
        let sets = block.first.iter().zip(block.second);
        for (mark, (first, second)) in marks.iter_mut().zip(sets) {
            *mark = super::log::mark(first, second);
        }
        let (mut at, end) = (0, block.ids.len().min(BLOCK));
        // A step comes before the access that completes it.
        let mut until_step = cache.policy.step - 1 - cache.policy.accesses;
        while at < end {
            if until_step == 0 {
                cache.policy.take_step(&mut cache.lines);
                until_step = cache.policy.step;
            }
            let to = end.min(at + until_step as usize);
            until_step -= (to - at) as u32;
            stretch(simd, cache, block, &marks, at..to);
            at = to;
        }
        cache.policy.accesses = cache.policy.step - 1 - until_step;
    }
}

/// Accesses between two steps.
#[inline(always)]
fn stretch<S: Simd, const B: usize, const W: usize>(
    simd: S,
    cache: &mut Cache<u32, Tide, B, W>,
    block: &Block<'_, B>,
    marks: &[u16; BLOCK],
    part: core::ops::Range<usize>,
) {
    let tide = &mut cache.policy;
    if tide.seen_now > u32::MAX - BLOCK as u32 {
        tide.seen.fill(0);
        tide.seen_now = 0;
    }
    let Lines {
        stamps,
        bytes,
        homes,
        clock,
        ..
    } = &mut cache.lines;
    let sets = tide.seen.len();
    let mut now = Stretch {
        tags: &mut quads_mut(&mut cache.tags)[..sets],
        stamps: &mut quads_mut(stamps)[..sets],
        bytes: &mut quads_mut(bytes)[..sets],
        homes: &mut quads_mut(homes)[..sets],
        seen: &mut tide.seen[..sets],
        ranks: &tide.ranks,
        hours: &tide.hours,
        clock,
        seen_now: tide.seen_now,
        looks: tide.looks,
        free: tide.lines - tide.held,
        enough: u32::from(tide.enough),
        fresh: tide.hours.fresh(),
        counts: Statistics::default(),
    };
    now.counts.accesses = part.len() as u64;
    for at in part {
        let id = block.ids[at];
        now.clock.advance(block.ticks[at]);
        now.looks = (now.looks + LOOKS).min(LOOKS_MAX);
        let sets = four(&block.first[at], &block.second[at]);
        let found = with_tag(simd, now.tags, &sets, id);
        let hint = block.hints.get(at).copied().unwrap_or(0);
        let byte = if found != 0 {
            let byte = now.touch(&sets, found, hint);
            tide.chart.hit(tide.classes.of(byte));
            now.fresh | REUSED
        } else {
            let homes = Homes {
                first: block.first[at],
                second: block.second[at],
            };
            now.admit(simd, &sets, (id, hint), homes);
            now.fresh
        };
        if let Some(watched) = tide.log.note(sets[0], marks[at % BLOCK], byte) {
            tide.chart.hit(tide.classes.of(watched));
        }
    }
    (tide.seen_now, tide.looks) = (now.seen_now, now.looks);
    tide.held = tide.lines - now.free;
    now.counts.fills = now.counts.misses - now.counts.bypasses;
    let counts = now.counts;
    cache.statistics.add(&counts);
}
