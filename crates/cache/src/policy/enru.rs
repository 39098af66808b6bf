//! `enru`: enhanced not-recently-used, for several banks (paper, sections 2.3 and 4.1).

use super::{Block, Choice, Policy, Setup, empty};
use crate::cache::Cache;
use crate::lifetime::STAMP_FIRST;
use crate::lines::{Access, Lines};
use crate::vector::{LANES, Row};

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

impl Enru {
    /// The place from which the access with this stamp counts.
    #[inline]
    fn turn(&self, stamp: i32) -> i32 {
        ((stamp as u32 ^ self.seed).wrapping_mul(0x9E37_79B1) >> 16) as i32
    }
}

/// The score of a line without its bit, first in turn, and what the bit adds.
const UNMARKED: i32 = 128;
const MARKED: i32 = 256;

impl<const B: usize, const W: usize> Policy<B, W> for Enru {
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
        let turn = self.turn(stamp);
        let mut least = (i32::MAX, lines.oldest_of(&access.first));
        for (lane, spot) in lines.spots(&access.first).enumerate() {
            let order = (lane as i32 - turn) & (B * W - 1) as i32;
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
        if W.is_multiple_of(LANES) {
            run_by_vectors(cache, block);
        } else {
            cache.run_plainly(block);
        }
    }
}

/// As in `lru.rs`: every line has a score, 0 the one that is wanted, and the least is written to.
fn run_by_vectors<const B: usize, const W: usize>(
    cache: &mut Cache<u32, Enru, B, W>,
    block: &Block<'_, B>,
) {
    let (mut misses, mut evictions, mut evicted_on) = (0u64, 0u64, 0u64);
    let clock = &mut cache.lines.clock;
    let (mut stamp, mut tick, mut on_since) = (clock.stamp(), clock.tick(), clock.on_since());
    let lanes: [Row; B] = core::array::from_fn(|bank| {
        let lanes: [i32; W] = core::array::from_fn(|way| (bank * W + way) as i32);
        Row::load(&lanes)
    });
    let (last_lane, bit) = (
        Row::splat((B * W - 1) as i32),
        Row::splat(MARKED - UNMARKED),
    );
    let (first_used, base) = (Row::splat(STAMP_FIRST), Row::splat(UNMARKED));
    for ((id, now), sets) in block.ids.iter().zip(block.ticks).zip(block.first) {
        if *now != tick {
            let clock = &mut cache.lines.clock;
            clock.set_stamp(stamp);
            clock.advance(*now);
            (tick, on_since) = (clock.tick(), clock.on_since());
        }
        stamp += 1;
        let wanted = Row::splat(*id as i32);
        let turned = Row::splat(cache.policy.turn(stamp).wrapping_neg());
        let tags: [Row; B] =
            core::array::from_fn(|bank| Row::load_tags(&cache.tags[sets[bank] as usize]));
        let stamps: [Row; B] =
            core::array::from_fn(|bank| Row::load(&cache.lines.stamps[sets[bank] as usize]));
        let scores: [Row; B] = core::array::from_fn(|bank| {
            let order = lanes[bank].plus::<W>(&turned).only::<W>(&last_lane);
            let taken = Row::splat(cache.policy.taken[sets[bank] as usize]);
            let bits = bit.without::<W>(&stamps[bank].less::<W>(&taken));
            let used = order.plus::<W>(&base).plus::<W>(&bits);
            let empty = stamps[bank].less::<W>(&first_used);
            used.replaced::<W>(&empty, &stamps[bank])
                .without::<W>(&tags[bank].equals::<W>(&wanted))
        });
        let mut least = scores[0];
        for other in &scores[1..] {
            least = least.least::<W>(other);
        }
        let least = least.minimum::<W>();
        let (chosen, newest) = (Row::splat(least), Row::splat(stamp));
        let all_marked = -i32::from(least >= MARKED);
        let mut old = Row::splat(0);
        for bank in 0..B {
            let set = sets[bank] as usize;
            let mask = scores[bank].equals::<W>(&chosen);
            old = old.or::<W>(&stamps[bank].only::<W>(&mask));
            tags[bank]
                .replaced::<W>(&mask, &wanted)
                .store_tags(&mut cache.tags[set]);
            stamps[bank]
                .replaced::<W>(&mask, &newest)
                .store(&mut cache.lines.stamps[set]);
            let taken = &mut cache.policy.taken[set];
            *taken = (*taken & !all_marked) | (stamp & all_marked);
        }
        let old = old.joined::<W>();
        let missed = least != 0;
        misses += u64::from(missed);
        evictions += u64::from(missed & (old >= STAMP_FIRST));
        evicted_on += u64::from(missed & (old >= on_since));
    }
    cache.lines.clock.set_stamp(stamp);
    let statistics = &mut cache.statistics;
    statistics.add_block(block.ids.len() as u64, misses, evictions, evicted_on);
}
