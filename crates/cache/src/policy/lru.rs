//! `lru`: the least recent of all lines that the newcomer may have, in all banks.

use fearless_simd::Simd;

use super::{Block, Choice, Parameters, Policy, Setup, StateBits, order_bits};
use crate::cache::Cache;
use crate::geometry::Geometry;
use crate::lifetime::STAMP_FIRST;
use crate::lines::{Access, Lines};
use crate::vector::{Kernel, Lanes, fits, on_vectors, quads_mut};

/// Exact recency over `B × W` lines.
#[derive(Clone, Copy, Debug)]
pub struct Lru;

impl<const B: usize, const W: usize> Policy<B, W> for Lru {
    /// Recency of the candidates.
    fn state_bits(geometry: &Geometry, _: &Parameters) -> StateBits {
        StateBits {
            line: order_bits(geometry),
            ..StateBits::default()
        }
    }

    fn new(_: &Setup) -> Self {
        Self
    }

    #[inline]
    fn choose(&mut self, lines: &mut Lines<B, W>, access: &Access<B>) -> Choice {
        Choice::Replace(lines.oldest_of(&access.first))
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
    cache: &'a mut Cache<u32, Lru, B, W>,
    block: &'a Block<'a, B>,
}

impl<const B: usize, const W: usize> Kernel for ByVectors<'_, B, W> {
    /// Hit or miss, one line gets the tag and the stamp: the one with the tag, else the oldest. So
    /// a hit scores 0, all others their stamps, and the least score is written to; nothing branches
    /// on what is found.
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Self { cache, block } = self;
        let (mut misses, mut evictions, mut evicted_on) = (0u64, 0u64, 0u64);
        let Lines { stamps, clock, .. } = &mut cache.lines;
        let tags_of = quads_mut(&mut cache.tags);
        // As long, so that what is within the one is known to be within the other.
        let stamps_of = &mut quads_mut(stamps)[..tags_of.len()];
        let (mut stamp, mut tick, mut on_since) = (clock.stamp(), clock.tick(), clock.on_since());
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
            let scores = tags.equals(&wanted).pick(&Lanes::splat(simd, 0), &stamps);
            let least = scores.least();
            let chosen = scores.equals(&Lanes::splat(simd, least));
            let tags = chosen.pick(&wanted, &tags);
            tags.store_tags(tags_of, sets);
            let stamps = chosen.pick(&Lanes::splat(simd, stamp), &stamps);
            stamps.store_stamps(stamps_of, sets);
            misses += u64::from(least != 0);
            evictions += u64::from(least >= STAMP_FIRST);
            evicted_on += u64::from(least >= on_since);
        }
        clock.set_stamp(stamp);
        let statistics = &mut cache.statistics;
        statistics.add_block(block.ids.len() as u64, misses, evictions, evicted_on);
    }
}
