//! Blocks under `tide`, for 2 banks of 4 ways: the four sets of an access and, at a miss, the four
//! of each line that could move are looked at whole.

use core::hint::select_unpredictable;

use fearless_simd::prelude::*;
#[cfg(any(target_arch = "x86", target_arch = "x86_64"))]
use fearless_simd::{Level, mask8x64};
use fearless_simd::{Simd, u8x16, u8x64, u16x8, u32x4};

use super::age::{ByAge, CLOSED, Hours, REUSED};
use super::chart::{Chart, Some64};
use super::log::LogBook;
use super::{LOOKS, LOOKS_MAX, Tide, paid};
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

/// Bits for the number of a line in four sets.
const LANE_BITS: u32 = 4;

/// The line that ranks lowest in four sets, of which these are the bytes: its rank above
/// [`LANE_BITS`] bits, in which there is its number; the first of equals.
#[inline(always)]
fn lowest_of<S: Simd>(simd: S, ranks: &ByAge, sets: [u32; 4]) -> u32 {
    let bytes: u8x16<S> = u32x4::simd_from(simd, sets).bitcast();
    let ranks = looked_up(simd, ranks.table(), bytes);
    let (low, high) = ranks.widen();
    let lanes = u16x8::simd_from(simd, [0, 1, 2, 3, 4, 5, 6, 7]);
    let low = (low << LANE_BITS) | lanes;
    let high = (high << LANE_BITS) | lanes | u16x8::splat(simd, 8);
    low.min(high).reduce_min().into()
}

/// What a table says of bytes. With AVX-512 the whole table is in registers.
#[inline(always)]
fn looked_up<S: Simd>(simd: S, table: &[u8; 256], bytes: u8x16<S>) -> u8x16<S> {
    #[cfg(any(target_arch = "x86", target_arch = "x86_64"))]
    if matches!(simd.level(), Level::Avx512(_)) {
        let zeros = u8x16::splat(simd, 0);
        let wide = bytes.combine(zeros).combine(zeros.combine(zeros));
        return all_looked_up(simd, table, wide).split().0.split().0;
    }
    let bytes: [u8; 16] = bytes.into();
    u8x16::simd_from(simd, bytes.map(|byte| table[usize::from(byte)]))
}

/// As `looked_up`, of a widest vector.
#[inline(always)]
fn all_looked_up<S: Simd>(simd: S, table: &[u8; 256], bytes: u8x64<S>) -> u8x64<S> {
    #[cfg(any(target_arch = "x86", target_arch = "x86_64"))]
    if matches!(simd.level(), Level::Avx512(_)) {
        let quarter = |at: usize| u8x64::from_slice(simd, &table[64 * at..64 * at + 64]);
        let within = bytes & !REUSED;
        let once = quarter(0).concat_swizzle_dyn(quarter(1), within);
        let reused = quarter(2).concat_swizzle_dyn(quarter(3), within);
        let is_reused: mask8x64<S> = bytes.simd_ge(u8x64::splat(simd, REUSED));
        return is_reused.select(reused, once);
    }
    let bytes: Some64 = bytes.into();
    u8x64::simd_from(simd, bytes.map(|byte| table[usize::from(byte)]))
}

/// One bit for each line of four sets that has the tag.
#[inline(always)]
fn with_tag<S: Simd>(simd: S, tags: &[[u32; QUAD]], sets: &Four, tag: u32) -> u32 {
    let quad = |at: usize| u32x4::simd_from(simd, tags[sets[at] as usize]);
    let row = quad(0).combine(quad(1)).combine(quad(2).combine(quad(3)));
    row.simd_eq(tag).to_bitmask() as u32
}

/// Where an access may stand, and how many lines there are, for some of the sets may be the same.
#[derive(Clone, Copy)]
struct Placed<'a, const B: usize> {
    first: &'a [u32; B],
    second: &'a [u32; B],
    looked: i32,
}

impl<const B: usize> Placed<'_, B> {
    #[inline(always)]
    fn sets(&self) -> Four {
        four(self.first, self.second)
    }

    /// The line with this number among those of the sets.
    #[inline(always)]
    fn at(&self, lane: usize) -> At {
        let half = if lane < LANES / 2 {
            self.first
        } else {
            self.second
        };
        At {
            set: half[lane / QUAD % B],
            way: (lane % QUAD) as u32,
        }
    }

    #[inline(always)]
    fn homes(&self) -> Homes<B> {
        Homes {
            first: *self.first,
            second: *self.second,
        }
    }
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
}

/// Where a newcomer goes.
#[derive(Clone, Copy)]
struct Way {
    /// A line moves.
    moves: bool,
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
    looks: i32,
    /// Lines that hold nothing.
    free: u32,
    enough: u32,
    fresh: u8,
    /// The rank of a line that is touched now.
    of_fresh: u32,
    counts: Statistics,
}

impl<const B: usize> Stretch<'_, B> {
    /// See [`lowest_of`].
    #[inline(always)]
    fn lowest_in<S: Simd>(&self, simd: S, sets: &Four) -> u32 {
        let bytes = sets.map(|set| u32::from_le_bytes(self.bytes[set as usize]));
        lowest_of(simd, self.ranks, bytes)
    }

    /// Notes that four sets are looked at; gives how many lines were not looked at before.
    #[inline(always)]
    fn mark(&mut self, sets: &Four) -> i32 {
        let mut fresh = 0;
        for set in sets {
            let seen = core::mem::replace(&mut self.seen[*set as usize], self.seen_now);
            fresh += i32::from(seen != self.seen_now);
        }
        fresh * QUAD as i32
    }

    /// Whether a miss searches beyond the newcomer's own sets, given their lowest line and number
    /// of lines.
    #[inline(always)]
    fn looks_further(&self, lowest: u32, looked: i32) -> bool {
        (self.rank_of(lowest) > self.enough_now()) & (looked < self.looks)
    }

    /// As [`Tide::enough_now`].
    #[inline(always)]
    fn enough_now(&self) -> u32 {
        if self.free > 0 { 0 } else { self.enough }
    }

    /// The rank of a newcomer's lowest line, or of itself where that is less.
    #[inline(always)]
    fn rank_of(&self, lowest: u32) -> u32 {
        (lowest >> LANE_BITS).min(self.of_fresh)
    }

    /// As [`Tide::search`], where the newcomer's own sets are not enough.
    #[inline(always)]
    fn search_further<S: Simd>(
        &mut self,
        simd: S,
        place: Placed<'_, B>,
        lowest: u32,
    ) -> Option<Way> {
        let sets = &place.sets();
        let enough = self.enough_now();
        let mut best = lowest;
        let mut parent = best as usize % LANES;
        let mut rank = self.rank_of(lowest);
        let mut moves = false;
        let mut looked = place.looked;
        self.seen_now += 1;
        self.mark(sets);
        for from in 0..LANES {
            let homes = self.homes[sets[from / QUAD] as usize][from % QUAD];
            let sets = four(&homes.first, &homes.second);
            let lowest = self.lowest_in(simd, &sets);
            looked += self.mark(&sets);
            let better = lowest >> LANE_BITS < rank;
            moves |= better;
            rank = rank.min(lowest >> LANE_BITS);
            best = select_unpredictable(better, lowest, best);
            parent = select_unpredictable(better, from, parent);
            if (rank <= enough) | (looked >= self.looks) {
                break;
            }
        }
        self.looks = paid(self.looks, looked);
        let into = At::of(sets, parent);
        let mut to = into;
        if moves {
            let homes = self.homes[into.set as usize][into.way as usize % QUAD];
            to = At::of(&four(&homes.first, &homes.second), best as usize % LANES);
        }
        (rank < self.of_fresh).then_some(Way { moves, to, into })
    }

    /// Gives a line this byte. Sets are read and written whole, as in `vector.rs`.
    #[inline(always)]
    fn set_byte(&mut self, (set, way): (usize, usize), byte: u8) {
        let shift = way % QUAD * 8;
        let others = u32::from_le_bytes(self.bytes[set]) & !(0xFF << shift);
        self.bytes[set] = (others | u32::from(byte) << shift).to_le_bytes();
    }

    /// The byte of a line.
    #[inline(always)]
    fn byte(&self, (set, way): (usize, usize)) -> u8 {
        (u32::from_le_bytes(self.bytes[set]) >> (way % QUAD * 8)) as u8
    }

    /// A hit: the byte that the line had.
    #[inline(always)]
    fn touch(&mut self, place: Placed<'_, B>, found: u32, hint: u8) -> u8 {
        let lane = found.trailing_zeros() as usize % LANES;
        let At { set, way } = place.at(lane);
        let (set, way) = (set as usize, way as usize % QUAD);
        let byte = self.byte((set, way));
        let closed = hint == 1 || byte == CLOSED && hint != 2;
        let fresh = self.fresh | REUSED;
        self.set_byte((set, way), if closed { CLOSED } else { fresh });
        self.stamps[set][way] = self.clock.take();
        self.counts.second_lookup_hits += u64::from(lane >= LANES / 2);
        byte
    }

    /// A miss that looks no further: the tag that was in the newcomer's line.
    #[inline(always)]
    fn replace(&mut self, place: Placed<'_, B>, lowest: u32, (id, hint): (u32, u8)) -> u32 {
        self.counts.misses += 1;
        self.looks = paid(self.looks, place.looked);
        if lowest >> LANE_BITS >= self.of_fresh {
            self.counts.bypasses += 1;
            return id;
        }
        let into = place.at(lowest as usize % LANES);
        let left = self.tags[into.set as usize][into.way as usize % QUAD];
        let byte = if hint == 1 { CLOSED } else { self.fresh };
        let way = Way {
            moves: false,
            to: into,
            into,
        };
        self.enter(way, (id, byte), place.homes());
        left
    }

    /// A miss that looks further.
    #[inline(always)]
    fn admit<S: Simd>(
        &mut self,
        simd: S,
        place: Placed<'_, B>,
        lowest: u32,
        (id, hint): (u32, u8),
    ) {
        self.counts.misses += 1;
        let byte = if hint == 1 { CLOSED } else { self.fresh };
        match self.search_further(simd, place, lowest) {
            Some(way) => self.enter(way, (id, byte), place.homes()),
            None => self.counts.bypasses += 1,
        }
    }

    /// Gives a newcomer its line.
    #[inline(always)]
    fn enter(&mut self, way: Way, (id, byte): (u32, u8), homes: Homes<B>) {
        let (to, to_way) = (way.to.set as usize, way.to.way as usize % QUAD);
        let (into, into_way) = (way.into.set as usize, way.into.way as usize % QUAD);
        let given_up = self.stamps[to][to_way];
        self.counts.evicted_on += u64::from(given_up >= self.clock.on_since());
        self.free -= u32::from(given_up < STAMP_FIRST);
        if way.moves {
            self.counts.migrations += 1;
            self.tags[to][to_way] = self.tags[into][into_way];
            self.stamps[to][to_way] = self.stamps[into][into_way];
            let moved = self.hours.aged(self.byte((into, into_way)));
            self.set_byte((to, to_way), moved);
            self.homes[to][to_way] = self.homes[into][into_way];
        }
        self.tags[into][into_way] = id;
        self.stamps[into][into_way] = self.clock.take();
        self.set_byte((into, into_way), byte);
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
        let mut ahead = Ahead {
            marks: [0; BLOCK],
            looked: [0; BLOCK],
        };
        let sets = block.first.iter().zip(block.second);
        let to = ahead.marks.iter_mut().zip(&mut ahead.looked);
        for ((mark, looked), (first, second)) in to.zip(sets) {
            *mark = super::log::mark(first, second);
            let twice = i32::from(first[0] == second[0]) + i32::from(first[B - 1] == second[B - 1]);
            *looked = LANES as i32 - twice * QUAD as i32;
        }
        let (mut at, end) = (0, block.ids.len().min(BLOCK));
        // A step comes before the access that completes it.
        let mut until_step = cache.policy.step - 1 - cache.policy.accesses;
        while at < end {
            if until_step == 0 {
                cache.policy.step_with(
                    &mut cache.lines,
                    #[inline(always)]
                    |classes, hours, bytes| {
                        let seen = u8x64::simd_from(simd, *bytes);
                        let classes = all_looked_up(simd, classes.table(), seen);
                        *bytes = all_looked_up(simd, hours.table(), seen).into();
                        classes.into()
                    },
                );
                until_step = cache.policy.step;
            }
            let to = end.min(at + until_step as usize);
            until_step -= (to - at) as u32;
            stretch(simd, cache, block, &ahead, at..to);
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
    ahead: &Ahead,
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
    let free = tide.lines - tide.held;
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
        free,
        enough: u32::from(tide.enough),
        fresh: tide.hours.fresh(),
        of_fresh: u32::from(tide.ranks.of(tide.hours.fresh())),
        counts: Statistics::default(),
    };
    now.counts.accesses = part.len() as u64;
    let mut learner = Learner {
        chart: &mut tide.chart,
        classes: &tide.classes,
        log: &mut tide.log,
    };
    each(simd, &mut now, &mut learner, block, ahead, part);
    (tide.seen_now, tide.looks) = (now.seen_now, now.looks);
    tide.held = tide.lines - now.free;
    now.counts.fills = now.counts.misses - now.counts.bypasses;
    now.counts.evictions = now.counts.fills - u64::from(free - now.free);
    let counts = now.counts;
    cache.statistics.add(&counts);
}

/// Recipients of hits.
struct Learner<'a> {
    chart: &'a mut Chart,
    classes: &'a ByAge,
    log: &'a mut LogBook,
}

impl Learner<'_> {
    /// A line with this byte was asked for.
    #[inline(always)]
    fn hit(&mut self, byte: u8) {
        self.chart.hit(self.classes.of(byte));
    }
}

static NO_HINTS: [u8; BLOCK] = [0; BLOCK];

/// What is worked out for a block at once.
struct Ahead {
    /// For the log-book.
    marks: [u16; BLOCK],
    /// See [`Placed`].
    looked: [i32; BLOCK],
}

/// One access after the other.
#[inline(always)]
fn each<S: Simd, const B: usize>(
    simd: S,
    now: &mut Stretch<'_, B>,
    learner: &mut Learner<'_>,
    block: &Block<'_, B>,
    ahead: &Ahead,
    part: core::ops::Range<usize>,
) {
    let hints = block.hints.get(part.clone()).unwrap_or(&NO_HINTS);
    let (ids, ticks) = (&block.ids[part.clone()], &block.ticks[part.clone()]);
    let (first, second) = (&block.first[part.clone()], &block.second[part.clone()]);
    let ahead = ahead.marks[part.clone()].iter().zip(&ahead.looked[part]);
    let places_of = |at: usize| four(&first[at], &second[at]);
    let mut found = with_tag(simd, now.tags, &places_of(0), ids[0]);
    let rest = ticks.iter().zip(hints).zip(ahead);
    let accesses = ids.iter().zip(first).zip(second).zip(rest);
    for (at, (((id, first), second), ((tick, hint), (mark, looked)))) in accesses.enumerate() {
        let place = Placed {
            first,
            second,
            looked: *looked,
        };
        // The next one is looked for before it is known what this one changes.
        let next = (at + 1).min(ids.len() - 1);
        let mut next_found = with_tag(simd, now.tags, &places_of(next), ids[next]);
        now.clock.advance(*tick);
        now.looks = (now.looks + LOOKS).min(LOOKS_MAX);
        let byte = if found != 0 {
            let byte = now.touch(place, found, *hint);
            learner.hit(byte);
            now.fresh | REUSED
        } else {
            let lowest = now.lowest_in(simd, &place.sets());
            let changed = if now.looks_further(lowest, place.looked) {
                now.admit(simd, place, lowest, (*id, *hint));
                true
            } else {
                let left = now.replace(place, lowest, (*id, *hint));
                (ids[next] == *id) | (ids[next] == left)
            };
            if changed {
                next_found = with_tag(simd, now.tags, &places_of(next), ids[next]);
            }
            now.fresh
        };
        found = next_found;
        if let Some(watched) = learner.log.note(place.first[0], *mark, byte) {
            learner.hit(watched);
        }
    }
}

#[cfg(test)]
mod tests {
    use fairlead_base::Rng;

    use super::*;
    use crate::geometry::Geometry;
    use crate::place::{Place, Places};
    use crate::policy::{Parameters, Policy, Setup};

    type Tested = Cache<u32, Tide, 2, 4>;

    fn run(cache: &mut Tested, ids: &[u32], places: &Places, plainly: bool) {
        let mut cells = vec![0; 4 * ids.len()];
        let (first, second) = cells.split_at_mut(2 * ids.len());
        places.gather(ids, first, second);
        let block = Block {
            ids,
            ticks: &vec![0; ids.len()],
            hints: &[],
            first: first.as_chunks().0,
            second: second.as_chunks().0,
            places,
        };
        if plainly {
            cache.run_plainly(&block);
        } else {
            Tide::run(cache, &block);
        }
    }

    #[test]
    fn blocks_between_single_accesses_and_removals_are_those_one_by_one() {
        let geometry = Geometry::new(256 * 64, 64, 2, 4).unwrap();
        let setup = Setup {
            geometry,
            parameters: Parameters::default(),
            seed: 1,
        };
        let mut rng = Rng::new(9);
        let mut places = Places::new(2, geometry.sets(), 2000);
        for _ in 0..2000 {
            let mut sets = || core::array::from_fn(|_| rng.below(geometry.sets()));
            places.push(&Place {
                first: sets(),
                second: sets(),
            });
        }
        let (mut cache, mut model) = (Tested::new(&setup), Tested::new(&setup));
        for round in 0..400 {
            let mut draw = |_| {
                let bound = rng.below(500) + 1;
                rng.below(bound)
            };
            let ids: Vec<u32> = (0..1 + round % 90).map(&mut draw).collect();
            run(&mut cache, &ids, &places, false);
            run(&mut model, &ids, &places, true);
            for id in (0..3).map(&mut draw) {
                let place = places.at(id as usize).unwrap();
                for cache in [&mut cache, &mut model] {
                    if round % 3 == 0 {
                        cache.remove(id, &place);
                    } else if round % 3 == 1 {
                        cache.access(id, &place, 0, 0);
                    }
                }
            }
            assert_eq!(cache.tags, model.tags, "round {round}");
            assert_eq!(cache.lines.bytes, model.lines.bytes);
            assert_eq!(cache.statistics(), model.statistics());
        }
        let counts = model.statistics();
        assert!(counts.migrations > 100 && counts.second_lookup_hits > 100);
        assert!(counts.misses > 1000);
    }
}
