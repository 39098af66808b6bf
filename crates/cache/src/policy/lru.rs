//! `lru`: the least recent of all lines that the newcomer may have, in all banks.

use super::{Block, Choice, Policy, Setup};
use crate::cache::Cache;
use crate::lifetime::STAMP_FIRST;
use crate::lines::{Access, Lines};
use crate::vector::{LANES, Row};

/// Exact recency over `B × W` lines.
#[derive(Clone, Copy, Debug)]
pub struct Lru;

impl<const B: usize, const W: usize> Policy<B, W> for Lru {
    fn new(_: &Setup) -> Self {
        Self
    }

    #[inline]
    fn choose(&mut self, lines: &mut Lines<B, W>, access: &Access<B>) -> Choice {
        Choice::Replace(lines.oldest_of(&access.first))
    }
    #[inline]
    fn run(cache: &mut Cache<u32, Self, B, W>, block: &Block<'_, B>) {
        if W.is_multiple_of(LANES) {
            run_by_vectors(cache, block);
        } else {
            cache.run_plainly(block);
        }
    }
}

/// Hit or miss, one line gets the tag and the stamp: the one with the tag, else the oldest. So a
/// hit scores 0, all others their stamps, and the least score is written to; nothing branches on
/// what is found.
fn run_by_vectors<const B: usize, const W: usize>(
    cache: &mut Cache<u32, Lru, B, W>,
    block: &Block<'_, B>,
) {
    let (mut misses, mut evictions, mut evicted_on) = (0u64, 0u64, 0u64);
    let clock = &mut cache.lines.clock;
    let (mut stamp, mut tick, mut on_since) = (clock.stamp(), clock.tick(), clock.on_since());
    for ((id, now), sets) in block.ids.iter().zip(block.ticks).zip(block.first) {
        if *now != tick {
            let clock = &mut cache.lines.clock;
            clock.set_stamp(stamp);
            clock.advance(*now);
            (tick, on_since) = (clock.tick(), clock.on_since());
        }
        stamp += 1;
        let wanted = Row::splat(*id as i32);
        let tags: [Row; B] =
            core::array::from_fn(|bank| Row::load_tags(&cache.tags[sets[bank] as usize]));
        let stamps: [Row; B] =
            core::array::from_fn(|bank| Row::load(&cache.lines.stamps[sets[bank] as usize]));
        let scores: [Row; B] = core::array::from_fn(|bank| {
            stamps[bank].without::<W>(&tags[bank].equals::<W>(&wanted))
        });
        let mut least = scores[0];
        for other in &scores[1..] {
            least = least.least::<W>(other);
        }
        let least = least.minimum::<W>();
        let (chosen, newest) = (Row::splat(least), Row::splat(stamp));
        for bank in 0..B {
            let set = sets[bank] as usize;
            let mask = scores[bank].equals::<W>(&chosen);
            tags[bank]
                .replaced::<W>(&mask, &wanted)
                .store_tags(&mut cache.tags[set]);
            stamps[bank]
                .replaced::<W>(&mask, &newest)
                .store(&mut cache.lines.stamps[set]);
        }
        misses += u64::from(least != 0);
        evictions += u64::from(least >= STAMP_FIRST);
        evicted_on += u64::from(least >= on_since);
    }
    cache.lines.clock.set_stamp(stamp);
    let statistics = &mut cache.statistics;
    statistics.add_block(block.ids.len() as u64, misses, evictions, evicted_on);
}
