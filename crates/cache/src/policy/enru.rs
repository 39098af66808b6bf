//! `enru`: enhanced not-recently-used, for several banks (paper, sections 2.3 and 4.1).

use core::hint::select_unpredictable;

use fearless_simd::Simd;

use super::{Block, Choice, Parameters, Policy, Setup, StateBits, empty};
use crate::cache::Cache;
use crate::geometry::Geometry;
use crate::lifetime::STAMP_FIRST;
use crate::lines::{Access, Lines};
use crate::vector::{CANDIDATES_MAX, Kernel, Lanes, QUAD, fits, lane_bits, on_vectors, quads_mut};

/// One bit a line, set at every access. The newcomer takes an empty line, else the first line
/// without the bit, counted from a place drawn from the seed; when all have it, it is taken from
/// all candidates first. The paper names the policy without describing it; this is
/// not-recently-used over the candidate lines of all banks.
///
/// The bits are not stored: a line has its bit when it was touched after the bits of its set were
/// last taken.
#[derive(Clone, Debug)]
pub struct Enru {
    /// By set: lines touched from this stamp on have their bit.
    taken: Vec<i32>,
    seed: u32,
}

/// The place from which the access with this stamp counts.
#[inline]
fn turn_of(stamp: i32, seed: u32) -> i32 {
    ((stamp as u32 ^ seed).wrapping_mul(0x9E37_79B1) >> 16) as i32
}

/// The score of a line without its bit, first in turn, and what the bit adds.
const UNMARKED: i32 = 128;
const MARKED: i32 = 256;

impl<const B: usize, const W: usize> Policy<B, W> for Enru {
    /// The one bit.
    fn state_bits(_: &Geometry, _: &Parameters) -> StateBits {
        StateBits {
            line: 1,
            ..StateBits::default()
        }
    }

    fn new(setup: &Setup) -> Self {
        let geometry = setup.geometry;
        Self {
            taken: vec![0; (geometry.banks() * geometry.sets()) as usize],
            seed: (setup.seed ^ (setup.seed >> 32)) as u32,
        }
    }

    fn choose(&mut self, lines: &mut Lines<B, W>, access: &Access<B>) -> Choice {
        if let Some(spot) = empty(lines, access) {
            return Choice::Replace(spot);
        }
        let stamp = lines.clock().stamp() + 1;
        let turn = turn_of(stamp, self.seed);
        let mut least = (i32::MAX, lines.oldest_of(&access.first));
        for (lane, spot) in lines.spots(&access.first).enumerate() {
            let order = (lane as i32 - turn) & (lines.candidates() - 1) as i32;
            let marked = lines.stamp(spot) >= self.taken[spot.set as usize];
            let score = order + if marked { MARKED } else { UNMARKED };
            if score < least.0 {
                least = (score, spot);
            }
        }
        if least.0 >= MARKED {
            for set in &access.first {
                self.taken[*set as usize] = stamp;
            }
        }
        Choice::Replace(least.1)
    }

    fn on_compress(&mut self, renumbered: &dyn Fn(i32) -> i32) {
        for taken in &mut self.taken {
            *taken = renumbered(*taken);
        }
    }

    #[inline]
    fn run(cache: &mut Cache<u32, Self, B, W>, block: &Block<'_, B>) {
        if fits(B, W) {
            on_vectors(ByVectors { cache, block });
        } else {
            cache.run_plainly(block);
        }
    }
}

struct ByVectors<'a, const B: usize, const W: usize> {
    cache: &'a mut Cache<u32, Enru, B, W>,
    block: &'a Block<'a, B>,
}

impl<const B: usize, const W: usize> Kernel for ByVectors<'_, B, W> {
    /// As in `lru.rs`: every line has a score, 0 the one that is wanted, and the least is written
    /// to.
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Self { cache, block } = self;
        let (mut misses, mut evictions, mut evicted_on) = (0u64, 0u64, 0u64);
        let Lines { stamps, clock, .. } = &mut cache.lines;
        // All of a length, so that what is within the one is known to be within the others.
        let tags_of = quads_mut(&mut cache.tags);
        let stamps_of = &mut quads_mut(stamps)[..tags_of.len()];
        let taken_of = &mut cache.policy.taken[..tags_of.len() / (W / QUAD)];
        let seed = cache.policy.seed;
        let (mut stamp, mut tick, mut on_since) = (clock.stamp(), clock.tick(), clock.on_since());
        // By turn, the scores of lines that have their bit.
        let mut turns = [Lanes::<S, B, W>::splat(simd, 0); CANDIDATES_MAX];
        let mut turn = 0;
        while turn < B * W {
            let lanes = Lanes::<S, B, W>::numbers(simd);
            turns[turn] = lanes.map(
                #[inline(always)]
                |lane| ((lane - turn as i32) & (B * W - 1) as i32) | MARKED,
            );
            turn += 1;
        }
        for ((id, now), sets) in block.ids.iter().zip(block.ticks).zip(block.first) {
            // Copied: for all the compiler knows, what is written below may be these.
            let sets = &{ *sets };
            if *now != tick {
                clock.set_stamp(stamp);
                clock.advance(*now);
                (tick, on_since) = (clock.tick(), clock.on_since());
            }
            stamp += 1;
            let wanted = Lanes::<S, B, W>::splat(simd, *id as i32);
            let tags = Lanes::tags(simd, tags_of, sets);
            let stamps = Lanes::stamps(simd, stamps_of, sets);
            let taken = Lanes::by_set(simd, taken_of, sets);
            let turn = turn_of(stamp, seed) as usize % (B * W);
            let marked = turns[turn % CANDIDATES_MAX];
            let unmarked = marked.map(
                #[inline(always)]
                |score| score - (MARKED - UNMARKED),
            );
            let used = stamps.less(&taken).pick(&unmarked, &marked);
            let scores = stamps
                .less(&Lanes::splat(simd, STAMP_FIRST))
                .pick(&stamps, &used);
            let scores = tags.equals(&wanted).pick(&Lanes::splat(simd, 0), &scores);
            let least = scores.least();
            let chosen = scores.equals(&Lanes::splat(simd, least));
            let off = stamps.less(&Lanes::splat(simd, on_since));
            chosen.pick(&wanted, &tags).store_tags(tags_of, sets);
            let stamps = chosen.pick(&Lanes::splat(simd, stamp), &stamps);
            stamps.store_stamps(stamps_of, sets);
            for set in sets {
                let taken = &mut taken_of[*set as usize];
                *taken = select_unpredictable(least >= MARKED, stamp, *taken);
            }
            let missed = least != 0;
            misses += u64::from(missed);
            evictions += u64::from(least >= UNMARKED);
            let on = chosen.without(&off).bits() & lane_bits(B * W);
            evicted_on += u64::from(missed & (on != 0));
        }
        clock.set_stamp(stamp);
        let statistics = &mut cache.statistics;
        statistics.add_block(block.ids.len() as u64, misses, evictions, evicted_on);
    }
}
