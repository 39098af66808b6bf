//! ON and OFF times: gaps between the accesses of one session (tcb-cache-2010, section 2.2 and
//! figure 3).
//!
//! The paper distinguishes the two kinds by the objects that a page embeds. A log does not contain
//! that, so a gap up to a limit, reported with the result, is ON, and a longer one within a session
//! is OFF.

use serde::Serialize;

use super::histogram::Histogram;

/// Default limit of ON gaps: the end of the paper's figure 3a.
pub const ON_GAP_MAX_S: f64 = 5.0;

/// Upper ends of the bins of figure 3b, s.
pub const OFF_BINS_S: [f64; 12] = [
    0.0, 2.0, 4.0, 6.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0,
];

/// Upper ends of the bins of figure 3a, s.
pub const ON_BINS_S: [f64; 11] = [0.0, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0];

/// ON and OFF times of all sessions.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Gaps {
    /// Gaps up to this are ON, s.
    pub on_gap_max_s: f64,
    /// Gaps between two accesses of an ON burst.
    pub on: Histogram,
    /// Gaps between two bursts.
    pub off: Histogram,
    /// Share of ON gaps of no more than a second.
    pub on_within_a_second: f64,
    /// Accesses in a burst, on average.
    pub accesses_per_burst: f64,
    /// Bursts.
    pub bursts: u64,
    /// From the first access to the last, s. A gap is seen where both of its ends are within: the
    /// shorter this is, the more of the long ones are missing, and the mean falls short with them.
    pub within_s: f64,
}

/// What is measured.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Gaps up to this are ON, s.
    pub on_gap_max_s: f64,
    /// Longer gaps end a session and are not counted.
    pub end_us: Option<i64>,
    /// Rows before are warm-up: a gap counts where it ends, so that behind a warm-up that is as
    /// long as any gap none is cut off.
    pub counted_from: usize,
}

/// Measures gaps. `keys` tells whose an access is (dense numbers below `distinct`), `times_us` when
/// it was, in order.
pub fn measure(keys: &[u32], times_us: &[i64], distinct: usize, limits: Limits) -> Gaps {
    let Limits {
        on_gap_max_s,
        end_us,
        counted_from,
    } = limits;
    let mut last = vec![i64::MIN; distinct];
    let mut on = Histogram::new(&ON_BINS_S);
    let mut off = Histogram::new(&OFF_BINS_S);
    let mut bursts = 0u64;
    let mut within = 0u64;
    for (row, (&key, &at)) in keys.iter().zip(times_us).enumerate() {
        let before = std::mem::replace(&mut last[key as usize], at);
        if row < counted_from {
            continue;
        }
        if before == i64::MIN {
            bursts += 1;
            continue;
        }
        let gap_us = at.saturating_sub(before).max(0);
        if end_us.is_some_and(|end| gap_us > end) {
            bursts += 1;
            continue;
        }
        let gap_s = gap_us as f64 / 1e6;
        if gap_s <= on_gap_max_s {
            within += u64::from(gap_s <= 1.0);
            on.add(gap_s);
        } else {
            bursts += 1;
            off.add(gap_s);
        }
    }
    Gaps {
        on_gap_max_s,
        on_within_a_second: super::share(within, on.count),
        accesses_per_burst: super::share(keys.len().saturating_sub(counted_from) as u64, bursts),
        on,
        off,
        bursts,
        within_s: match times_us {
            [first, .., last] => last.saturating_sub(*first) as f64 / 1e6,
            _ => 0.0,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limits(on_gap_max_s: f64, end_us: Option<i64>) -> Limits {
        Limits {
            on_gap_max_s,
            end_us,
            counted_from: 0,
        }
    }

    #[test]
    fn a_gap_counts_where_it_ends() {
        const S: i64 = 1_000_000;
        let (keys, times) = ([0, 1, 0, 0, 1], [0, 1, 2, 12, 31].map(|at| at * S));
        let counted_from = 3;
        let all = measure(&keys, &times, 2, limits(5.0, None));
        assert_eq!((all.on.count, all.off.count, all.bursts), (1, 2, 4));
        assert_eq!(all.within_s, 31.0);
        let behind = Limits {
            counted_from,
            ..limits(5.0, None)
        };
        let part = measure(&keys, &times, 2, behind);
        assert_eq!((part.on.count, part.off.count, part.bursts), (0, 2, 2));
        assert_eq!((part.off.mean, part.accesses_per_burst), (20.0, 1.0));
    }

    #[test]
    fn gaps_are_told_apart_by_the_limit_and_end_with_the_session() {
        const S: i64 = 1_000_000;
        // Session 0: 0, 0.5, 10 (OFF 9.5), 5000 (another session); session 1: once.
        let keys = [0, 0, 1, 0, 0];
        let times = [0, S / 2, S, 10 * S, 5_000 * S];
        let gaps = measure(&keys, &times, 2, limits(5.0, Some(1_800 * S)));
        assert_eq!((gaps.on.count, gaps.off.count), (1, 1));
        assert_eq!(gaps.bursts, 4);
        assert_eq!(gaps.on_within_a_second, 1.0);
        assert_eq!(gaps.accesses_per_burst, 1.25);
        assert_eq!(gaps.off.mean, 9.5);
    }

    #[test]
    fn pauses_are_told_apart_by_their_length() {
        const S: i64 = 1_000_000;
        let times = [0, S / 2, S, 2 * S, 12 * S, 3_000 * S];
        // Session 0 pauses .5, 1.5 and 10 s; session 1 pauses 2,999 s.
        let found = measure(&[0, 0, 1, 0, 0, 1], &times, 2, limits(1.0, None));
        assert_eq!(found.on.counts, [0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(found.off.counts, [0, 1, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 1]);
        assert!((found.on.mean - 0.5).abs() < 1e-9);
        assert_eq!(found.accesses_per_burst, 6.0 / 5.0);
        assert_eq!(found.on.shares()[2], 1.0);
    }

    #[test]
    fn a_trace_of_one_access_has_no_gaps() {
        let gaps = measure(&[0], &[0], 1, limits(5.0, None));
        assert_eq!((gaps.on.count, gaps.off.count, gaps.bursts), (0, 0, 1));
        assert_eq!((gaps.on_within_a_second, gaps.within_s), (0.0, 0.0));
    }
}
