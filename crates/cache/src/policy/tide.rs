//! `tide`: evicts lines by their value, which the cache learns from its accesses.
//!
//! ON and OFF are two points of a curve: how likely a line is to be asked for again, by the time
//! since it last was. Where that curve falls, least recent first is the best order that anybody who
//! does not know the future can have; where it has a hollow (bursts that end, pauses that end) or
//! rises (rounds, polls), or differs for those that came back before, another order is better. So
//! `tide` counts, for each age class, hits ([`chart::Chart::hit`]) and how long lines were of that
//! age ([`chart::Chart::see`]), also for a few sessions that are not in the cache
//! ([`log::LogBook`]), and ranks lines by hits per time they would yet take up.
//! Until the counts say otherwise beyond doubt, the order is recency.
//!
//! * Room is looked for in all sets of the newcomer and then, line after line, in those to which
//!   one of their lines could move, until one is found that is among the last of the whole cache;
//!   so sets do not matter much, and most misses look no further than the first sets.
//! * A newcomer that is worth less than all of them is not let in.
//! * Looking is paid for by accesses, and a miss costs something whether it looks further or not:
//!   so nearly all the looking is done where misses are few.
//! * The line of a closing connection is free and counts for no age.
//!
//! In hardware: 8 bits a line (6 and 1 for the age, 1 for reuse); for the cache 82 pairs of
//! counters of 13 and 21 bits, a table of 256 × 8 bits for ranks and one for classes, and a
//! log-book of one entry of 24 bits to 16 lines. The order is made anew every 4 × lines accesses.
//! How it does, and what was tried before it, is in `research/policy-study.md`.

mod age;
mod chart;
mod kernel;
mod log;

use age::{ByAge, CLOSED, Hours, REUSED};
use chart::{Chart, Some64};
use log::LogBook;

use super::{Block, Choice, Parameters, Policy, Setup, StateBits};
use crate::cache::{Cache, HitsByVectors};
use crate::geometry::Geometry;
use crate::lines::{Access, Lines, Spot};
use crate::vector::{fits, on_vectors, on_widest_vectors};

/// Fine steps of age for as many accesses as there are lines.
const STEPS: u32 = 8;
/// Fine steps after which the order is made anew.
const STEPS_AN_ORDER: u32 = 32;
/// A line within the lowest of this many is evicted without further search.
const LAST_OF: u32 = 64;
/// Lines that an access pays for to be looked at by misses; what a miss costs besides those that it
/// looks at, for where most accesses miss, a better line is worth little; and how many may be saved
/// up or owed.
const LOOKS: i32 = 14;
const LOOKS_A_MISS: i32 = 16;
const LOOKS_MAX: i32 = 2048;

/// See the [module](self).
#[derive(Clone, Debug)]
pub struct Tide {
    lines: u32,
    /// Lines that hold something.
    held: u32,
    /// Accesses to a fine step, and those of this one.
    step: u32,
    accesses: u32,
    hours: Hours,
    steps: u32,
    /// The set that is looked at next, and how many are at a step.
    hand: u32,
    hand_sets: u32,
    /// Steps between two looks at a set.
    hand_steps: u32,
    chart: Chart,
    log: LogBook,
    ranks: ByAge,
    classes: ByAge,
    enough: u8,
    /// Lines that are paid for; fewer than none when they are owed.
    looks: i32,
    seen: Vec<u32>,
    seen_now: u32,
}

/// What is left to look at after a miss.
#[inline(always)]
fn paid(looks: i32, looked: i32) -> i32 {
    (looks - looked - LOOKS_A_MISS).max(-LOOKS_MAX)
}

/// The best line found so far.
struct Best {
    rank: u8,
    choice: Choice,
}

impl Tide {
    /// One access more.
    #[inline]
    fn advance<const B: usize, const W: usize>(&mut self, lines: &mut Lines<B, W>) {
        self.looks = (self.looks + LOOKS).min(LOOKS_MAX);
        self.accesses += 1;
        if self.accesses == self.step {
            self.accesses = 0;
            self.take_step(lines);
        }
    }

    #[cold]
    #[inline(never)]
    fn take_step<const B: usize, const W: usize>(&mut self, lines: &mut Lines<B, W>) {
        self.step_with(lines, |classes, hours, bytes| {
            let classes = bytes.map(|byte| classes.of(byte));
            *bytes = bytes.map(|byte| hours.aged(byte));
            classes
        });
    }

    /// One step more; `look` as of [`Chart::see_all`].
    #[inline(always)]
    fn step_with<const B: usize, const W: usize>(
        &mut self,
        lines: &mut Lines<B, W>,
        look: impl Fn(&ByAge, &Hours, &mut Some64) -> Some64,
    ) {
        self.hours.step();
        self.ranks.turn(&self.hours, false);
        self.classes.turn(&self.hours, false);
        let ways = lines.ways();
        let from = self.hand as usize * ways;
        let passed = &mut lines.bytes[from..][..self.hand_sets as usize * ways];
        let (chart, classes, hours) = (&mut self.chart, &self.classes, &self.hours);
        chart.see_all(
            passed,
            self.hand_steps,
            #[inline(always)]
            |bytes| look(classes, hours, bytes),
        );
        self.hand += self.hand_sets;
        if self.hand == B as u32 * lines.sets() {
            self.hand = 0;
        }
        self.log.pass(|byte| {
            chart.see(classes.of(byte), 8);
            hours.aged(byte)
        });
        self.steps += 1;
        if self.steps == STEPS_AN_ORDER {
            self.steps = 0;
            self.make_order(lines);
        }
    }

    #[cold]
    #[inline(never)]
    fn make_order<const B: usize, const W: usize>(&mut self, lines: &Lines<B, W>) {
        self.chart.rank(&mut self.ranks);
        self.chart.fade();
        self.ranks.turn(&self.hours, true);
        let mut counts = [0u32; 256];
        for set in 0..B as u32 * lines.sets() {
            for byte in lines.bytes(set) {
                counts[usize::from(self.ranks.of(*byte))] += 1;
            }
        }
        let mut sum = 0;
        let enough = counts.iter().position(|count| {
            sum += count;
            sum >= self.lines / LAST_OF
        });
        self.enough = enough.unwrap_or(255) as u8;
    }

    /// The byte of the accessed line, and its entry in the log book.
    #[inline(always)]
    fn note(&mut self, first: u32, mark: u16, byte: u8) {
        if let Some(watched) = self.log.note(first, mark, byte) {
            self.chart.hit(self.classes.of(watched));
        }
    }

    /// The rank up to which a line is evicted without further search.
    #[inline(always)]
    fn enough_now(&self) -> u8 {
        if self.held < self.lines {
            0
        } else {
            self.enough
        }
    }

    /// No set has been looked at.
    #[inline(always)]
    fn look_anew(&mut self) {
        self.seen_now = self.seen_now.wrapping_add(1);
        if self.seen_now == 0 {
            self.seen.fill(0);
            self.seen_now = 1;
        }
    }

    /// Notes that a set is looked at: 1 for the first time, 0 later.
    #[inline(always)]
    fn first_look(&mut self, set: u32) -> u32 {
        let seen = core::mem::replace(&mut self.seen[set as usize], self.seen_now);
        u32::from(seen != self.seen_now)
    }

    /// Looks at a set for a line that ranks below `best`.
    #[inline]
    fn look<const B: usize, const W: usize>(
        &mut self,
        lines: &Lines<B, W>,
        set: u32,
        best: &mut Best,
        choice: impl Fn(Spot) -> Choice,
    ) -> bool {
        if self.first_look(set) == 0 {
            return false;
        }
        for (way, byte) in lines.bytes(set).iter().enumerate() {
            let rank = self.ranks.of(*byte);
            if rank < best.rank {
                let way = way as u32;
                *best = Best {
                    rank,
                    choice: choice(Spot { set, way }),
                };
            }
        }
        true
    }

    /// The line to give up, among those of the newcomer's sets and those of the sets to which one
    /// of these could move.
    #[inline]
    fn search<const B: usize, const W: usize>(
        &mut self,
        lines: &Lines<B, W>,
        access: &Access<B>,
    ) -> Choice {
        let enough = self.enough_now();
        self.look_anew();
        let mut best = Best {
            rank: self.ranks.of(self.hours.fresh()),
            choice: Choice::Bypass,
        };
        let mut looked = 0i32;
        for set in access.first.iter().chain(&access.second) {
            looked +=
                i32::from(self.look(lines, *set, &mut best, Choice::Replace)) * lines.ways() as i32;
        }
        if best.rank > enough {
            let limit = self.looks.max(looked);
            'found: for set in access.first.iter().chain(&access.second) {
                for way in 0..lines.ways() as u32 {
                    if looked >= limit {
                        break 'found;
                    }
                    let from = Spot { set: *set, way };
                    let homes = *lines.homes(from);
                    for set in homes.first.iter().chain(&homes.second) {
                        let to = |to| Choice::Relocate { from, to };
                        looked +=
                            i32::from(self.look(lines, *set, &mut best, to)) * lines.ways() as i32;
                    }
                    if best.rank <= enough {
                        break 'found;
                    }
                }
            }
        }
        self.looks = paid(self.looks, looked);
        best.choice
    }
}

impl<const B: usize, const W: usize> Policy<B, W> for Tide {
    const MOVES: bool = true;

    /// See the end of the [module](self)'s documentation.
    fn state_bits(geometry: &Geometry, _: &Parameters) -> StateBits {
        let pair = 13 + 21;
        let tables = 2 * 256 * 8;
        let entries = u64::from(geometry.lines().div_ceil(16));
        StateBits {
            line: 8,
            set: 0,
            cache: chart::CLASSES as u64 * pair + tables + entries * 24,
        }
    }

    fn new(setup: &Setup) -> Self {
        let lines = setup.geometry.lines();
        let sets = setup.geometry.banks() * setup.geometry.sets();
        let hand_sets = (sets / STEPS).max(1);
        let hours = Hours::new();
        let mut ranks = ByAge::new(0);
        chart::rank_by_age(&mut ranks);
        ranks.turn(&hours, true);
        let mut classes = chart::classes();
        classes.turn(&hours, true);
        Self {
            lines,
            held: 0,
            step: (lines / STEPS).max(1),
            accesses: 0,
            hours,
            steps: 0,
            hand: 0,
            hand_sets,
            hand_steps: sets / hand_sets,
            chart: Chart::new(),
            log: LogBook::new(lines),
            ranks,
            classes,
            enough: 0,
            looks: 0,
            seen: vec![0; sets as usize],
            seen_now: 0,
        }
    }

    #[inline]
    fn on_hit(&mut self, lines: &mut Lines<B, W>, spot: Spot, access: &Access<B>) {
        self.advance(lines);
        let byte = lines.byte(spot);
        self.chart.hit(self.classes.of(byte));
        let closed = access.hint == 1 || byte == CLOSED && access.hint != 2;
        let fresh = self.hours.fresh() | REUSED;
        let mark = log::mark(&access.first, &access.second);
        self.note(access.first[0], mark, fresh);
        lines.set_byte(spot, if closed { CLOSED } else { fresh });
    }

    #[inline]
    fn choose(&mut self, lines: &mut Lines<B, W>, access: &Access<B>) -> Choice {
        self.advance(lines);
        let mark = log::mark(&access.first, &access.second);
        self.note(access.first[0], mark, self.hours.fresh());
        self.search(lines, access)
    }

    #[inline]
    fn on_evict(&mut self, _: &mut Lines<B, W>, _: Spot, _: u32) {
        self.held -= 1;
    }

    /// A line that moves away from the hand again and again would keep its fine stamp until that
    /// means another age.
    #[inline]
    fn on_move(&mut self, lines: &mut Lines<B, W>, _: Spot, to: Spot) {
        lines.set_byte(to, self.hours.aged(lines.byte(to)));
    }

    #[inline]
    fn on_fill(&mut self, lines: &mut Lines<B, W>, spot: Spot, access: &Access<B>) {
        self.held += 1;
        let closed = access.hint == 1;
        lines.set_byte(spot, if closed { CLOSED } else { self.hours.fresh() });
    }

    #[inline]
    fn on_remove(&mut self, _: &mut Lines<B, W>, _: Spot) {
        self.held -= 1;
    }

    #[inline]
    fn run(cache: &mut Cache<u32, Self, B, W>, block: &Block<'_, B>) {
        if kernel::fits(B, W) {
            on_widest_vectors(kernel::ByVectors { cache, block });
        } else if fits(B, W) {
            on_vectors(HitsByVectors { cache, block });
        } else {
            cache.run_plainly(block);
        }
    }
}
