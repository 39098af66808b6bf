//! What a cache of connection state sees: one row an access.

use fairlead_base::Endpoint;

/// In [`Accesses::hint`]: an access like any other.
pub const HINT_NONE: u8 = 0;
/// In [`Accesses::hint`]: the connection is closing; a FIN or RST is on this packet.
pub const HINT_CLOSING: u8 = 1;
/// In [`Accesses::hint`]: the connection opens; its SYN is on this packet.
pub const HINT_OPENING: u8 = 2;

/// Maximum distance of a row's time from the origin, before or after it, microseconds; other times
/// are unreadable. So the difference of two times, plus what a model adds, fits 64 bits. 2⁶¹:
/// 73,000 years.
pub const TIME_MAX_US: i64 = 1 << 61;

/// Accesses by time, in columns. `time_us`, `id` and (unless empty) `hint` have one value per row.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Accesses {
    /// Microseconds since the first access; never steps back.
    pub time_us: Vec<u64>,
    /// Number of the session: an index into `keys`.
    pub id: Vec<u32>,
    /// Session identifiers by number; no two are equal.
    pub keys: Vec<Endpoint>,
    /// [`HINT_NONE`], [`HINT_CLOSING`] or [`HINT_OPENING`]; empty if no hints are known.
    pub hint: Vec<u8>,
}

/// The longest leap of ticks from one access to the next.
const LEAP_MAX: i64 = 1 << 30;

impl Accesses {
    /// Rows.
    pub fn len(&self) -> usize {
        self.time_us.len()
    }

    /// True without a row.
    pub fn is_empty(&self) -> bool {
        self.time_us.is_empty()
    }

    /// The ticks of `tick_us` microseconds in which the accesses are, counted from the first. The
    /// count wraps, and no leap is longer than 2³⁰: for a cache's clock that is for ever, and a
    /// leap of half the numbers would be a step backwards.
    pub fn ticks(&self, tick_us: u64) -> Vec<u32> {
        let tick_us = tick_us.max(1);
        // Most accesses are in the tick of the one before: no division.
        let (mut begin, mut number, mut tick) = (0u64, 0u64, 0u32);
        let tick = |at: &u64| {
            if at.wrapping_sub(begin) >= tick_us {
                let before = std::mem::replace(&mut number, at / tick_us);
                begin = number * tick_us;
                let leap = number.wrapping_sub(before) as i64;
                tick = tick.wrapping_add(leap.min(LEAP_MAX) as u32);
            }
            tick
        };
        self.time_us.iter().map(tick).collect()
    }

    /// Sorts rows by `times`, which become `time_us` counted from the earliest; rows of equal time
    /// keep their order. `times` has as many values as there are rows. Gives the earliest and the
    /// latest time.
    pub fn set_times(&mut self, times: Vec<i64>) -> (i64, i64) {
        debug_assert_eq!(times.len(), self.id.len());
        let since = |first: i64, at: i64| at.wrapping_sub(first) as u64;
        if times.is_sorted() {
            let (first, last) = (times.first().copied(), times.last().copied());
            let first = first.unwrap_or(0);
            // In place: a column of a hundred million rows is not there twice.
            self.time_us = times.into_iter().map(|at| since(first, at)).collect();
            return (first, last.unwrap_or(0));
        }
        let mut order: Vec<usize> = (0..times.len()).collect();
        order.sort_by_key(|row| times[*row]);
        let end = |row: Option<&usize>| row.map_or(0, |row| times[*row]);
        let (first, last) = (end(order.first()), end(order.last()));
        self.time_us = order.iter().map(|row| since(first, times[*row])).collect();
        self.id = order.iter().map(|row| self.id[*row]).collect();
        if !self.hint.is_empty() {
            self.hint = order.iter().map(|row| self.hint[*row]).collect();
        }
        (first, last)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_sorted_by_time_and_ties_keep_their_order() {
        let mut accesses = Accesses {
            id: vec![0, 1, 2, 3],
            hint: vec![2, 0, 1, 0],
            ..Accesses::default()
        };
        assert_eq!(accesses.set_times(vec![-5, 10, -5, -6]), (-6, 10));
        assert_eq!(accesses.time_us, [0, 1, 1, 16]);
        assert_eq!(accesses.id, [3, 0, 2, 1]);
        assert_eq!(accesses.hint, [0, 2, 1, 0]);
    }

    #[test]
    fn ticks_count_from_the_first_access() {
        let at = |time_us: Vec<u64>| Accesses {
            time_us,
            ..Accesses::default()
        };
        let accesses = at(vec![0, 249_999, 250_000]);
        assert_eq!(accesses.ticks(250_000), [0, 0, 1]);
        assert_eq!(accesses.ticks(0)[1], 249_999);
        let back = at(vec![900_000, 10, 600_000]);
        assert_eq!(back.ticks(250_000), [3, 0, 2]);
    }

    #[test]
    fn ticks_go_forward_across_any_gap() {
        let years = 2 * TIME_MAX_US as u64;
        let accesses = Accesses {
            time_us: vec![
                0,
                1 << 30,
                3 << 30,
                (3 << 30) + 7,
                1 << 33,
                years,
                years + 1,
            ],
            ..Accesses::default()
        };
        let ticks = accesses.ticks(1);
        fn leap(pair: &[u32]) -> u32 {
            pair[1].wrapping_sub(pair[0])
        }
        let leaps: Vec<u32> = ticks.windows(2).map(leap).collect();
        assert_eq!(leaps, [1 << 30, 1 << 30, 7, 1 << 30, 1 << 30, 1]);
        // Past all numbers of 32 bits in small steps.
        let month = 30 * 24 * 3_600_000_000;
        let months: Vec<u64> = (0..6).map(|at| at * month).collect();
        let accesses = Accesses {
            time_us: months.iter().flat_map(|at| [*at, at + 2_000]).collect(),
            ..Accesses::default()
        };
        for pair in accesses.ticks(1_000).chunks(2) {
            assert_eq!(leap(pair), 2);
        }
    }
}
