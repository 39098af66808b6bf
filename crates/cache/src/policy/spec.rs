//! `no-migrate` and `spec`: replacement by ON and OFF (paper, section 3.4).

use fairlead_base::Rng;
use fearless_simd::Simd;

use super::{Block, Choice, Policy, Setup};
use crate::cache::Cache;
use crate::geometry::WAYS_MAX;
use crate::lifetime::STAMP_FIRST;
use crate::lines::{Access, Homes, Lines, Spot};
use crate::vector::{Kernel, Lanes, fits, lane_bits, on_vectors, quads, quads_mut};

/// The set with fewer ON lines, the left one on a tie.
#[inline]
fn calmest<const B: usize, const W: usize>(lines: &Lines<B, W>, access: &Access<B>) -> u32 {
    let mut set = access.first[0];
    let mut least = lines.on_count(set);
    for other in &access.first[1..] {
        let on = lines.on_count(*other);
        if on < least {
            (set, least) = (*other, on);
        }
    }
    set
}

/// `no-migrate`: the bank whose set has fewer ON lines, there the least recent line.
#[derive(Clone, Copy, Debug)]
pub struct NoMigrate;

impl<const B: usize, const W: usize> Policy<B, W> for NoMigrate {
    fn new(_: &Setup) -> Self {
        Self
    }

    #[inline]
    fn choose(&mut self, lines: &mut Lines<B, W>, access: &Access<B>) -> Choice {
        Choice::Replace(lines.oldest(calmest(lines, access)))
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

/// `spec`: as `no-migrate`; but where all lines of the set are ON, one that has an OFF or empty
/// line in its second sets is drawn from the seed and moved there, over the least recent of them.
#[derive(Clone, Debug)]
pub struct Spec {
    rng: Rng,
}

impl<const B: usize, const W: usize> Policy<B, W> for Spec {
    const MOVES: bool = true;

    fn new(setup: &Setup) -> Self {
        Self {
            rng: Rng::new(setup.seed),
        }
    }

    #[inline]
    fn choose(&mut self, lines: &mut Lines<B, W>, access: &Access<B>) -> Choice {
        let oldest = lines.oldest(calmest(lines, access));
        if !lines.is_on(oldest) {
            return Choice::Replace(oldest);
        }
        let set = oldest.set;
        let mut targets = [None; WAYS_MAX];
        let mut count = 0;
        for way in 0..lines.ways() as u32 {
            let homes = lines.homes(Spot { set, way });
            let target = lines.oldest_of(&homes.second);
            if !lines.is_on(target) {
                targets[count] = Some((way, target));
                count += 1;
            }
        }
        if count == 0 {
            return Choice::Replace(oldest);
        }
        match targets[self.rng.below(count as u32) as usize] {
            Some((way, to)) => Choice::Relocate {
                from: Spot { set, way },
                to,
            },
            None => Choice::Replace(oldest),
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

struct ByVectors<'a, P, const B: usize, const W: usize> {
    cache: &'a mut Cache<u32, P, B, W>,
    block: &'a Block<'a, B>,
}

#[inline(always)]
fn count<const W: usize>(bits: u32, bank: u32) -> u32 {
    (bits >> (bank * W as u32) & lane_bits(W)).count_ones()
}

/// The bank with the fewest bits, the left one on a tie, and how many it has.
#[inline(always)]
fn fewest<const B: usize, const W: usize>(bits: u32) -> (u32, u32) {
    let (mut least, mut fewest) = (0, count::<W>(bits, 0));
    for bank in 1..B as u32 {
        let on = count::<W>(bits, bank);
        least = if on < fewest { bank } else { least };
        fewest = fewest.min(on);
    }
    (least, fewest)
}

impl<P: Policy<B, W>, const B: usize, const W: usize> Kernel for ByVectors<'_, P, B, W> {
    /// As in `lru.rs`, but that all lanes outside the calmest set score worse than all within. What
    /// takes more, a hit in a second set and a full set of ON lines, goes the plain way.
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Self { cache, block } = self;
        let (mut misses, mut evictions, mut evicted_on) = (0u64, 0u64, 0u64);
        let clock = &mut cache.lines.clock;
        let (mut stamp, mut tick, mut on_since) = (clock.stamp(), clock.tick(), clock.on_since());
        let banks = Lanes::<S, B, W>::by_bank(simd);
        let accesses = block.ids.iter().zip(block.ticks).zip(block.first);
        for (at, ((id, now), sets)) in accesses.enumerate() {
            if *now != tick {
                let clock = &mut cache.lines.clock;
                clock.set_stamp(stamp);
                clock.advance(*now);
                (tick, on_since) = (clock.tick(), clock.on_since());
            }
            let wanted = Lanes::<S, B, W>::splat(simd, *id as i32);
            let tags = Lanes::tags(simd, quads(&cache.tags), sets);
            let stamps = Lanes::stamps(simd, quads(&cache.lines.stamps), sets);
            let found = tags.equals(&wanted);
            let on = !stamps.less(&Lanes::splat(simd, on_since)).bits() & lane_bits(B * W);
            let (calmest, count) = fewest::<B, W>(on);
            if P::MOVES {
                // All is looked at before the one branch, which is seldom taken.
                let second = Lanes::<S, B, W>::tags(simd, quads(&cache.tags), &block.second[at]);
                let beyond = second.equals(&wanted).bits() | u32::from(count == W as u32) << 31;
                // All ones where nothing was found. Comparisons joined by `and` would be made two
                // branches, one of them hard to foretell.
                let missed = (found.bits().wrapping_sub(1) as i32 >> 31) as u32;
                if beyond & missed != 0 {
                    cache.lines.clock.set_stamp(stamp);
                    cache.access_plainly(*id, &block.access(at));
                    stamp = cache.lines.clock.stamp();
                    continue;
                }
            }
            stamp += 1;
            let within = banks.equals(&Lanes::splat(simd, calmest as i32));
            let scores = within.pick(&stamps, &Lanes::splat(simd, i32::MAX));
            let scores = found.pick(&Lanes::splat(simd, 0), &scores);
            let least = scores.least();
            let chosen = scores.equals(&Lanes::splat(simd, least));
            chosen
                .pick(&wanted, &tags)
                .store_tags(quads_mut(&mut cache.tags), sets);
            let stamps = chosen.pick(&Lanes::splat(simd, stamp), &stamps);
            stamps.store_stamps(quads_mut(&mut cache.lines.stamps), sets);
            if P::MOVES {
                // Where it may stand is the same at every access.
                let lane = (chosen.bits() & lane_bits(B * W)).trailing_zeros() as usize;
                let set = sets[lane / W % B] as usize;
                cache.lines.homes[set * W + lane % W] = Homes {
                    first: *sets,
                    second: block.second[at],
                };
            }
            misses += u64::from(least != 0);
            evictions += u64::from(least >= STAMP_FIRST);
            evicted_on += u64::from(least >= on_since);
        }
        cache.lines.clock.set_stamp(stamp);
        let statistics = &mut cache.statistics;
        statistics.add_block(block.ids.len() as u64, misses, evictions, evicted_on);
    }
}
