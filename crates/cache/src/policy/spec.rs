//! `no-migrate` and `spec`: replacement by ON and OFF (paper, section 3.4).

use core::hint::select_unpredictable;

use fairlead_base::Rng;
use fearless_simd::Simd;

use super::{Block, Choice, Parameters, Policy, Setup, StateBits, counter_bits, rank_bits};
use crate::cache::Cache;
use crate::geometry::{Geometry, WAYS_MAX};
use crate::lifetime::STAMP_FIRST;
use crate::lines::{Access, Lines, Spot};
use crate::vector::{Kernel, Lanes, QUAD, fits, lane_bits, on_vectors, quads_mut};

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

/// Recency within the sets, and the counter that determines ON.
fn on_and_rank_bits(geometry: &Geometry, parameters: &Parameters) -> StateBits {
    StateBits {
        line: rank_bits(geometry) + counter_bits(parameters.lifetime),
        ..StateBits::default()
    }
}

/// `no-migrate`: the least recent line in the bank with fewer ON lines in its set.
#[derive(Clone, Copy, Debug)]
pub struct NoMigrate;

impl<const B: usize, const W: usize> Policy<B, W> for NoMigrate {
    /// Recency within the sets, and the counter.
    fn state_bits(geometry: &Geometry, parameters: &Parameters) -> StateBits {
        on_and_rank_bits(geometry, parameters)
    }

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
    bounds: Bounds,
}

/// Stamps below which nothing is, by set: so most sets that have no OFF line, and most from which
/// no line can move, are known as such without a look at them. Time only raises what is bounded, so
/// bounds hold until lines are emptied, and are made exact where they no longer tell.
#[derive(Clone, Debug)]
struct Bounds {
    /// Of the lines of the set.
    lines: Vec<i32>,
    /// Of the lines of all second sets of the lines of the set.
    beyond: Vec<i32>,
    /// Lines were emptied.
    broken: bool,
}

impl Bounds {
    fn new(setup: &Setup) -> Self {
        let sets = (setup.geometry.banks() * setup.geometry.sets()) as usize;
        Self {
            lines: vec![0; sets],
            beyond: vec![0; sets],
            broken: false,
        }
    }

    fn mend(&mut self) {
        self.lines.fill(0);
        self.beyond.fill(0);
        self.broken = false;
    }

    /// A line of `set` has these second sets from now on.
    #[inline(always)]
    fn add(&mut self, set: u32, second: &[u32]) {
        self.beyond[set as usize] = bound(&self.lines, self.beyond[set as usize], second);
    }

    /// The least recent line of the sets to which a line may move, the earlier set on a tie.
    #[inline]
    fn oldest<const B: usize, const W: usize>(
        &mut self,
        lines: &Lines<B, W>,
        second: &[u32],
    ) -> Spot {
        let mut found = lines.oldest(second[0]);
        self.lines[second[0] as usize] = lines.stamp(found);
        for set in &second[1..] {
            let spot = lines.oldest(*set);
            self.lines[*set as usize] = lines.stamp(spot);
            if lines.stamp(spot) < lines.stamp(found) {
                found = spot;
            }
        }
        found
    }
}

/// The bound `beyond` of a set, of which a line with these second sets is one from now on.
#[inline(always)]
fn bound(lines: &[i32], beyond: i32, second: &[u32]) -> i32 {
    let bounds = second.iter().map(|other| lines[*other as usize]);
    bounds.fold(beyond, i32::min)
}

impl<const B: usize, const W: usize> Policy<B, W> for Spec {
    const MOVES: bool = true;

    /// As `no-migrate`: where a line may move follows from its tag.
    fn state_bits(geometry: &Geometry, parameters: &Parameters) -> StateBits {
        on_and_rank_bits(geometry, parameters)
    }

    fn new(setup: &Setup) -> Self {
        Self {
            rng: Rng::new(setup.seed),
            bounds: Bounds::new(setup),
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
        let (mut count, mut bound) = (0, i32::MAX);
        for way in 0..lines.ways() as u32 {
            let homes = lines.homes(Spot { set, way });
            let target = self.bounds.oldest(lines, &homes.second);
            bound = bound.min(lines.stamp(target));
            if !lines.is_on(target) {
                targets[count] = Some((way, target));
                count += 1;
            }
        }
        self.bounds.beyond[set as usize] = bound;
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
    fn on_move(&mut self, lines: &mut Lines<B, W>, _: Spot, to: Spot) {
        self.bounds.add(to.set, &lines.homes(to).second);
    }

    #[inline]
    fn on_fill(&mut self, _: &mut Lines<B, W>, spot: Spot, access: &Access<B>) {
        self.bounds.add(spot.set, &access.second);
    }

    #[inline]
    fn on_remove(&mut self, _: &mut Lines<B, W>, _: Spot) {
        self.bounds.broken = true;
    }

    fn on_compress(&mut self, _: &dyn Fn(i32) -> i32) {
        self.bounds.broken = true;
    }

    #[inline]
    fn run(cache: &mut Cache<u32, Self, B, W>, block: &Block<'_, B>) {
        if cache.policy.bounds.broken {
            cache.policy.bounds.mend();
        }
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

/// The bank with the fewest bits, the left one on a tie.
#[inline(always)]
fn calmest_bank<const B: usize, const W: usize>(bits: u32) -> u32 {
    let (mut least, mut fewest) = (0, count::<W>(bits, 0));
    for bank in 1..B as u32 {
        let on = count::<W>(bits, bank);
        least = if on < fewest { bank } else { least };
        fewest = fewest.min(on);
    }
    least
}

/// The policies of this kernel.
trait Balanced {
    /// Bounds on where the lines of each set may move to ([`Bounds::lines`] and
    /// [`Bounds::beyond`]); empty without moves.
    fn bounds(&mut self, sets: usize) -> Option<(&[i32], &mut [i32])>;
}

impl Balanced for NoMigrate {
    #[inline(always)]
    fn bounds(&mut self, _: usize) -> Option<(&[i32], &mut [i32])> {
        None
    }
}

impl Balanced for Spec {
    #[inline(always)]
    fn bounds(&mut self, sets: usize) -> Option<(&[i32], &mut [i32])> {
        let Bounds { lines, beyond, .. } = &mut self.bounds;
        Some((&lines[..sets], &mut beyond[..sets]))
    }
}

impl<P, const B: usize, const W: usize> Kernel for ByVectors<'_, P, B, W>
where
    P: Policy<B, W> + Balanced,
{
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Self { cache, block } = self;
        let (mut at, end) = (0, block.ids.len());
        loop {
            at = stretch(simd, cache, block, at);
            if at == end {
                break;
            }
            cache.find_homes(&block.first[at], block.places);
            cache.access_plainly(block.ids[at], &block.access(at));
            at += 1;
        }
        cache.statistics.accesses += end as u64;
    }
}

/// Handles the accesses from `from` up to the first that needs the slow path: a miss in a full set
/// of ON lines, one of which may be able to move. Returns the index of that access, or the end.
/// Homes are needed only for that access; they are not stored here, because they would exceed the
/// L1 cache.
///
/// As in `lru.rs`, but that all lanes outside the calmest set score worse than all within.
#[inline(always)]
fn stretch<S: Simd, P: Policy<B, W> + Balanced, const B: usize, const W: usize>(
    simd: S,
    cache: &mut Cache<u32, P, B, W>,
    block: &Block<'_, B>,
    from: usize,
) -> usize {
    let (mut misses, mut evictions, mut evicted_on, mut second_hits) = (0u64, 0u64, 0u64, 0u64);
    let Lines { stamps, clock, .. } = &mut cache.lines;
    // All of a length, so that what is within the one is known to be within the others.
    let tags_of = quads_mut(&mut cache.tags);
    let stamps_of = &mut quads_mut(stamps)[..tags_of.len()];
    let mut bounds = cache.policy.bounds(tags_of.len() / (W / QUAD));
    let (mut stamp, mut tick, mut on_since) = (clock.stamp(), clock.tick(), clock.on_since());
    let before = stamp;
    let accesses = block.ids[from..].iter().zip(&block.ticks[from..]);
    let second = if P::MOVES { block.second } else { block.first };
    let sets = block.first[from..].iter().zip(&second[from..]);
    for ((id, now), (sets, second)) in accesses.zip(sets) {
        // Copied: for all the compiler knows, what is written below may be these.
        let (sets, second) = (&{ *sets }, &{ *second });
        if *now != tick {
            clock.set_stamp(stamp);
            clock.advance(*now);
            (tick, on_since) = (clock.tick(), clock.on_since());
        }
        let wanted = Lanes::<S, B, W>::splat(simd, *id as i32);
        let newest = Lanes::splat(simd, stamp + 1);
        let tags = Lanes::tags(simd, tags_of, sets);
        let found = tags.equals(&wanted);
        let stamps = Lanes::stamps(simd, stamps_of, sets);
        let on = !stamps.less(&Lanes::splat(simd, on_since)).bits() & lane_bits(B * W);
        let calmest = calmest_bank::<B, W>(on);
        let within = Lanes::by_bank(simd).equals(&Lanes::splat(simd, calmest as i32));
        let scores = within.pick(&stamps, &Lanes::splat(simd, i32::MAX));
        let scores = found.pick(&Lanes::splat(simd, 0), &scores);
        let mut least = scores.least();
        if let Some((lines, beyond)) = &mut bounds {
            let elsewhere = Lanes::<S, B, W>::tags(simd, tags_of, second).equals(&wanted);
            let is_elsewhere = elsewhere.bits() & lane_bits(B * W) != 0;
            // Should the set be one of the first ones as well, it was found there.
            second_hits += u64::from(is_elsewhere & (least != 0));
            least = select_unpredictable(is_elsewhere, 0, least);
            let set = sets[calmest as usize % B] as usize;
            // What was found scores 0, so a full set of ON lines matters to a miss alone. In one
            // condition: whether an access hits is guessed wrong too often to branch on it.
            let bound_now = bound(lines, beyond[set], second);
            if ((beyond[set] - on_since) & !(least - on_since)) < 0 {
                break;
            }
            beyond[set] = select_unpredictable(least == 0, beyond[set], bound_now);
            // Before the first sets are written: where one of these is among them, that counts.
            let touched = elsewhere.pick(&newest, &Lanes::stamps(simd, stamps_of, second));
            touched.store_stamps(stamps_of, second);
        }
        let chosen = scores.equals(&Lanes::splat(simd, least));
        stamp += 1;
        chosen.pick(&wanted, &tags).store_tags(tags_of, sets);
        chosen.pick(&newest, &stamps).store_stamps(stamps_of, sets);
        misses += u64::from(least != 0);
        evictions += u64::from(least >= STAMP_FIRST);
        evicted_on += u64::from(least >= on_since);
    }
    clock.set_stamp(stamp);
    cache.statistics.add_block(0, misses, evictions, evicted_on);
    cache.statistics.second_lookup_hits += second_hits;
    from + (stamp - before) as usize
}
