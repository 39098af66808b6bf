//! The byte of a line: when it was last seen, in 7 bits at two scales, and whether it was ever
//! seen twice.
//!
//! Ages are counted in accesses to the whole cache, so that they mean the same at any load: in
//! steps of an eighth of the lines ("fine", 64 of them) and, once a line is older than
//! [`FINE_STEPS`] of these, in steps of twice the lines ("coarse", 63 of them). A line that is
//! older than that is [`EBBED`], like an empty one.

use super::chart::{CLASSES, REUSED_FROM, class_of};

/// Never filled, or so old that its age is no longer told: the first to go.
pub(super) const EBBED: u8 = 0;
/// Its connection was seen to close: as good as empty, until it is asked for as a new one.
pub(super) const CLOSED: u8 = 0x80;
/// Seen again since it was filled.
pub(super) const REUSED: u8 = 0x80;
const FINE: u8 = 0x40;
const STAMP: u8 = 0x3F;
/// Fine steps in one coarse step.
pub(super) const COARSE: u32 = 16;
/// Fine age from which a line is given a coarse stamp; the rest of the 64 is for the time that may
/// pass until that is done.
const FINE_STEPS: u32 = 52;
/// Coarse age from which a line is ebbed.
const COARSE_STEPS: u32 = 60;
const FINE_CYCLE: u32 = 64;
const COARSE_CYCLE: u32 = 63;

/// The time of a cache, in fine and coarse steps.
#[derive(Clone, Debug)]
pub(super) struct Hours {
    fine: u32,
    coarse: u32,
    since_coarse: u32,
    /// By byte, the one that a line should have instead in this hour.
    aged: [u8; 256],
}

impl Hours {
    pub(super) fn new() -> Self {
        let mut hours = Self {
            fine: 0,
            coarse: 0,
            since_coarse: 0,
            aged: [0; 256],
        };
        for byte in 0..=255 {
            hours.aged[usize::from(byte)] = hours.aged_by_definition(byte);
        }
        hours
    }

    /// One fine step further.
    pub(super) fn step(&mut self) {
        self.fine = (self.fine + 1) % FINE_CYCLE;
        self.since_coarse += 1;
        if self.since_coarse == COARSE {
            self.since_coarse = 0;
            self.coarse = (self.coarse + 1) % COARSE_CYCLE;
            for age in COARSE_STEPS - 1..=COARSE_CYCLE {
                let stamp = (self.coarse + COARSE_CYCLE - age % COARSE_CYCLE) % COARSE_CYCLE + 1;
                self.find_aged(stamp as u8);
            }
        }
        // What a fine stamp becomes does not change from the age at which it is old until it is
        // given out again.
        for age in [FINE_STEPS, FINE_CYCLE] {
            let stamp = (self.fine + FINE_CYCLE - age) % FINE_CYCLE;
            self.find_aged(FINE | stamp as u8);
        }
    }

    fn find_aged(&mut self, byte: u8) {
        let aged = self.aged_by_definition(byte);
        self.aged[usize::from(byte)] = aged;
        self.aged[usize::from(byte | REUSED)] = match aged {
            EBBED => EBBED,
            aged => aged | REUSED,
        };
    }

    /// The byte that a line should have instead, now that it is looked at: a coarse stamp for an
    /// old fine one, none for one that is past telling.
    #[inline(always)]
    pub(super) fn aged(&self, byte: u8) -> u8 {
        self.aged[usize::from(byte)]
    }

    /// The byte of a line that is touched now, for the first time.
    #[inline]
    pub(super) fn fresh(&self) -> u8 {
        FINE | self.fine as u8
    }

    /// [`Hours::aged`] of all bytes.
    #[inline(always)]
    pub(super) fn table(&self) -> &[u8; 256] {
        &self.aged
    }

    fn aged_by_definition(&self, byte: u8) -> u8 {
        if is_untold(byte) {
            return byte;
        }
        let stamp = u32::from(byte & STAMP);
        if byte & FINE == 0 {
            let age = (self.coarse + 1 + COARSE_CYCLE - stamp) % COARSE_CYCLE;
            return if age >= COARSE_STEPS { EBBED } else { byte };
        }
        let age = (self.fine + FINE_CYCLE - stamp) % FINE_CYCLE;
        if age < FINE_STEPS {
            return byte;
        }
        let coarse_age = age.saturating_sub(self.since_coarse).div_ceil(COARSE);
        let stamp = (self.coarse + COARSE_CYCLE - coarse_age) % COARSE_CYCLE + 1;
        byte & REUSED | stamp as u8
    }
}

/// True for bytes that tell no age.
#[inline]
pub(super) fn is_untold(byte: u8) -> bool {
    byte & !REUSED == 0
}

/// Something by byte that depends on age and reuse alone, kept in both orders: by age, as it is
/// found out, and by the bytes of this hour, as it is used.
#[derive(Clone, Debug)]
pub(super) struct ByAge {
    now: [u8; 256],
    /// By reuse: by fine age from the oldest to the youngest, twice over.
    fine: [[u8; 2 * FINE_CYCLE as usize]; 2],
    coarse: [[u8; 2 * COARSE_CYCLE as usize]; 2],
}

impl ByAge {
    /// Nothing but zeros yet, and `untold` for bytes that tell no age.
    pub(super) fn new(untold: u8) -> Self {
        Self {
            now: [untold; 256],
            fine: [[0; 2 * FINE_CYCLE as usize]; 2],
            coarse: [[0; 2 * COARSE_CYCLE as usize]; 2],
        }
    }

    /// Sets the value of the state with this number ([`state`]).
    pub(super) fn set(&mut self, state: usize, value: u8) {
        let (reuse, at) = (state / STATES_EACH, state % STATES_EACH);
        let (row, cycle, age) = if at < FINE_CYCLE as usize {
            (&mut self.fine[reuse][..], FINE_CYCLE as usize, at)
        } else {
            let age = at - FINE_CYCLE as usize;
            (&mut self.coarse[reuse][..], COARSE_CYCLE as usize, age)
        };
        row[cycle - 1 - age] = value;
        row[2 * cycle - 1 - age] = value;
    }

    /// Turns the table to this hour. After `set`, or when a coarse step has passed, all of it.
    pub(super) fn turn(&mut self, hours: &Hours, all: bool) {
        let (fine, coarse) = (FINE_CYCLE as usize, COARSE_CYCLE as usize);
        for reuse in 0..2 {
            let base = reuse << 7;
            let from = fine - 1 - hours.fine as usize;
            self.now[base + fine..base + 2 * fine]
                .copy_from_slice(&self.fine[reuse][from..from + fine]);
            if all || hours.since_coarse == 0 {
                let from = coarse - 1 - hours.coarse as usize;
                self.now[base + 1..=base + coarse]
                    .copy_from_slice(&self.coarse[reuse][from..from + coarse]);
            }
        }
    }

    /// The values of all bytes of this hour.
    #[inline(always)]
    pub(super) fn table(&self) -> &[u8; 256] {
        &self.now
    }

    /// The value of a byte of this hour.
    #[inline]
    pub(super) fn of(&self, byte: u8) -> u8 {
        self.now[usize::from(byte)]
    }
}

const STATES_EACH: usize = (FINE_CYCLE + COARSE_CYCLE) as usize;
/// How many states of age and reuse there are.
pub(super) const STATES: usize = 2 * STATES_EACH;

/// The age of a state in fine steps, the mean where it is a coarse one, and the class it is
/// counted in.
pub(super) fn state(number: usize) -> (u32, usize) {
    let (reuse, at) = (number / STATES_EACH, (number % STATES_EACH) as u32);
    let age = if at < FINE_CYCLE {
        at
    } else {
        // A stamp of this step may be up to one step older or younger.
        (at - FINE_CYCLE) * COARSE
    };
    let class = class_of(age) + if reuse == 1 { REUSED_FROM } else { 0 };
    debug_assert!(class < CLASSES);
    (age, class)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every line that the hand passes in time keeps an age that is right to within a step.
    #[test]
    fn stamps_tell_ages_across_both_scales() {
        let mut ages = ByAge::new(255);
        for number in 0..STATES {
            ages.set(number, (number % STATES_EACH) as u8);
        }
        for start in [0, 5, 63, 64, 1000, 4031] {
            let mut hours = Hours::new();
            (0..start).for_each(|_| hours.step());
            for reused in [0, REUSED] {
                let (mut byte, mut hours) = (hours.fresh() | reused, hours.clone());
                for age in 0..900u32 {
                    ages.turn(&hours, true);
                    let told = u32::from(ages.of(byte));
                    if told < FINE_CYCLE {
                        assert_eq!(told, age);
                    } else {
                        let coarse = told - FINE_CYCLE;
                        assert!((coarse * COARSE).abs_diff(age) < COARSE, "{age} {coarse}");
                        assert_eq!(byte & REUSED, reused);
                    }
                    // The hand comes by at every eighth step.
                    if age % 8 == 7 {
                        byte = hours.aged(byte);
                    }
                    hours.step();
                }
                for _ in 0..200 {
                    byte = hours.aged(byte);
                    hours.step();
                }
                assert_eq!(byte, EBBED);
                assert_eq!(hours.aged(CLOSED), CLOSED);
            }
        }
    }

    #[test]
    fn a_turn_within_a_coarse_step_is_a_whole_turn() {
        let mut ages = ByAge::new(0);
        (0..STATES).for_each(|number| ages.set(number, number as u8));
        let (mut hours, mut whole) = (Hours::new(), ages.clone());
        ages.turn(&hours, true);
        for _ in 0..5000 {
            hours.step();
            ages.turn(&hours, false);
            whole.turn(&hours, true);
            assert_eq!(ages.now, whole.now);
            for byte in 0..=255 {
                assert_eq!(hours.aged(byte), hours.aged_by_definition(byte));
            }
        }
    }
}
