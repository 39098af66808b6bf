//! Blocks under `tide`, for 2 banks of 4 ways: the four sets of an access and, at a miss, the four
//! of each line that could move are looked at whole.

use core::hint::select_unpredictable;

use fearless_simd::prelude::*;
use fearless_simd::{Level, Simd, mask8x64, u8x64, u16x16, u32x4};

use super::Tide;
use super::age::{ByAge, CLOSED, REUSED};
use crate::cache::Cache;
use crate::policy::Block;
use crate::simulate::BLOCK;
use crate::vector::{Kernel, QUAD, quads};

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

/// Where a newcomer goes.
#[derive(Clone, Copy)]
struct Way {
    /// The rank of the line that is given up.
    rank: u32,
    /// The line that is given up.
    to: u32,
    /// The newcomer's line, whose tag moves to `to` when that is another one.
    into: u32,
}

/// Nobody goes.
const NOWHERE: u32 = u32::MAX;

/// What is counted on the way.
#[derive(Default)]
struct Counts {
    misses: u64,
    second: u64,
    migrations: u64,
    bypasses: u64,
    evictions: u64,
    evicted_on: u64,
}

pub(super) struct ByVectors<'a, const B: usize, const W: usize> {
    pub(super) cache: &'a mut Cache<u32, Tide, B, W>,
    pub(super) block: &'a Block<'a, B>,
}

impl<const B: usize, const W: usize> Kernel for ByVectors<'_, B, W> {
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Self { cache, block } = self;
        let mut counts = Counts::default();
        let mut marks = [0u16; BLOCK];
        let sets = block.first.iter().zip(block.second);
        for (mark, (first, second)) in marks.iter_mut().zip(sets) {
            *mark = super::log::mark(first, second);
        }
        for (at, id) in block.ids.iter().enumerate() {
            cache.lines.clock.advance(block.ticks[at]);
            cache.policy.advance(&mut cache.lines);
            let sets = four(&block.first[at], &block.second[at]);
            let found = with_tag(simd, quads(&cache.tags), &sets, *id);
            let hint = block.hints.get(at).copied().unwrap_or(0);
            let tide = &mut cache.policy;
            let fresh = tide.hours.fresh();
            if found != 0 {
                let lane = found.trailing_zeros() as usize % LANES;
                let line = sets[lane / QUAD] as usize * QUAD + lane % QUAD;
                let byte = cache.lines.bytes[line];
                tide.chart.hit(tide.classes.of(byte));
                tide.note(sets[0], marks[at % BLOCK], fresh | REUSED);
                let closed = hint == 1 || byte == CLOSED && hint != 2;
                cache.lines.bytes[line] = if closed { CLOSED } else { fresh | REUSED };
                cache.lines.stamps[line] = cache.lines.clock.take();
                counts.second += u64::from(lane >= LANES / 2);
                continue;
            }
            counts.misses += 1;
            tide.note(sets[0], marks[at % BLOCK], fresh);
            let way = search(simd, cache, &sets);
            if way.to == NOWHERE {
                counts.bypasses += 1;
                continue;
            }
            let closed = hint == 1;
            let byte = if closed { CLOSED } else { fresh };
            enter(cache, &mut counts, way, (*id, byte));
            let homes = &mut cache.lines.homes[way.into as usize];
            (homes.first, homes.second) = (block.first[at], block.second[at]);
        }
        let Counts {
            misses,
            second,
            migrations,
            bypasses,
            evictions,
            evicted_on,
        } = counts;
        let statistics = &mut cache.statistics;
        statistics.add_block(block.ids.len() as u64, misses, evictions, evicted_on);
        statistics.fills -= bypasses;
        statistics.bypasses += bypasses;
        statistics.second_lookup_hits += second;
        statistics.migrations += migrations;
    }
}

/// As [`Tide::search`].
#[inline(always)]
fn search<S: Simd, const B: usize, const W: usize>(
    simd: S,
    cache: &mut Cache<u32, Tide, B, W>,
    sets: &Four,
) -> Way {
    let (tide, lines) = (&mut cache.policy, &cache.lines);
    let enough = u32::from(tide.enough_now());
    tide.look_anew();
    let bytes = quads(&lines.bytes);
    let of_fresh = u32::from(tide.ranks.of(tide.hours.fresh()));
    let mut looked = 0;
    for set in sets {
        looked += tide.first_look(*set) * QUAD as u32;
    }
    let (rank, lane) = lowest(simd, &tide.ranks, bytes, sets);
    let line = sets[lane / QUAD] * QUAD as u32 + (lane % QUAD) as u32;
    let better = rank < of_fresh;
    let to = select_unpredictable(better, line, NOWHERE);
    let mut best = Way {
        rank: rank.min(of_fresh),
        to,
        into: to,
    };
    let limit = tide.looks.max(looked);
    let mut parent = 0;
    while best.rank > enough && looked < limit && parent < LANES {
        let from = sets[parent / QUAD] * QUAD as u32 + (parent % QUAD) as u32;
        let homes = &lines.homes[from as usize];
        let sets = four(&homes.first, &homes.second);
        for set in &sets {
            looked += tide.first_look(*set) * QUAD as u32;
        }
        let (rank, lane) = lowest(simd, &tide.ranks, bytes, &sets);
        let line = sets[lane / QUAD] * QUAD as u32 + (lane % QUAD) as u32;
        let better = rank < best.rank;
        best = Way {
            rank: rank.min(best.rank),
            to: select_unpredictable(better, line, best.to),
            into: select_unpredictable(better, from, best.into),
        };
        parent += 1;
    }
    tide.looks = tide.looks.saturating_sub(looked);
    best
}

/// Gives a newcomer its line. Whether a line moves is not branched on: one that stays is copied
/// onto itself.
#[inline(always)]
fn enter<const B: usize, const W: usize>(
    cache: &mut Cache<u32, Tide, B, W>,
    counts: &mut Counts,
    way: Way,
    (id, byte): (u32, u8),
) {
    let (to, into) = (way.to as usize, way.into as usize);
    let lines = &mut cache.lines;
    let given_up = lines.stamps[to];
    let evicted = given_up >= crate::lifetime::STAMP_FIRST;
    counts.evictions += u64::from(evicted);
    counts.evicted_on += u64::from(given_up >= lines.clock.on_since());
    counts.migrations += u64::from(to != into);
    cache.policy.held += u32::from(!evicted);
    cache.tags[to] = cache.tags[into];
    lines.stamps[to] = lines.stamps[into];
    lines.bytes[to] = cache.policy.hours.aged(lines.bytes[into]);
    lines.homes[to] = lines.homes[into];
    cache.tags[into] = id;
    lines.stamps[into] = lines.clock.take();
    lines.bytes[into] = byte;
}
