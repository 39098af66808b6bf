//! How many sessions are there at the same time.

use serde::Serialize;

/// Concurrency over the time of a stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Concurrency {
    /// The most sessions between their first and their last access at one time.
    pub peak_open: u64,
    /// When that was first reached, s from the beginning.
    pub peak_open_at_s: f64,
    /// Sessions open, averaged over time.
    pub mean_open: f64,
    /// The most sessions that were accessed within one period of `on_s`.
    pub peak_on: u64,
    /// The period, s.
    pub on_s: f64,
}

/// Measures. `ids` are dense below `distinct`; `times_us` never steps back.
pub fn measure(ids: &[u32], times_us: &[u64], distinct: usize, on_us: u64) -> Concurrency {
    let mut last = vec![0usize; distinct];
    for (row, &id) in ids.iter().enumerate() {
        last[id as usize] = row;
    }
    let mut seen = vec![false; distinct];
    let mut result = Concurrency {
        on_s: on_us as f64 / 1e6,
        ..Concurrency::default()
    };
    let (mut open, mut area) = (0u64, 0f64);
    // Sessions that are ON: those whose latest access is at most `on_us` old.
    let mut latest = vec![usize::MAX; distinct];
    let (mut oldest, mut on) = (0usize, 0u64);
    for (row, (&id, &at)) in ids.iter().zip(times_us).enumerate() {
        let id = id as usize;
        if row > 0 {
            area += open as f64 * (at - times_us[row - 1]) as f64;
        }
        if !std::mem::replace(&mut seen[id], true) {
            open += 1;
        }
        if open > result.peak_open {
            result.peak_open = open;
            result.peak_open_at_s = at as f64 / 1e6;
        }
        if last[id] == row {
            open -= 1;
        }
        while at - times_us[oldest] > on_us {
            on -= u64::from(latest[ids[oldest] as usize] == oldest);
            oldest += 1;
        }
        let before = std::mem::replace(&mut latest[id], row);
        on += u64::from(before == usize::MAX || before < oldest);
        result.peak_on = result.peak_on.max(on);
    }
    let span = times_us.last().copied().unwrap_or(0);
    if span > 0 {
        result.mean_open = area / span as f64;
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: u64 = 1_000_000;

    #[test]
    fn sessions_are_open_from_first_to_last_access() {
        // 0: 0..10, 1: 2..4, 2: 3 only, 3: 11 only.
        let ids = [0, 1, 2, 1, 0, 3];
        let times = [0, 2 * S, 3 * S, 4 * S, 10 * S, 11 * S];
        let measured = measure(&ids, &times, 4, S);
        assert_eq!(measured.peak_open, 3);
        assert_eq!(measured.peak_open_at_s, 3.0);
        // 1 for 2 s, 2 for 2 s, 1 for 6 s, 0 for 1 s.
        assert!((measured.mean_open - 12.0 / 11.0).abs() < 1e-12);
    }

    #[test]
    fn a_session_is_open_from_its_first_access_to_its_last() {
        // 0 to 10, 10 to 40, and the instant 20.
        let open = measure(&[0, 1, 0, 2, 1], &[0, 10, 10, 20, 40], 3, S);
        assert_eq!(open.peak_open, 2);
        assert!((open.mean_open - 1.0).abs() < 1e-9);
    }

    #[test]
    fn times_may_be_as_late_as_a_number_can_be() {
        let measured = measure(&[0, 1], &[u64::MAX - 20, u64::MAX], 2, S);
        assert_eq!((measured.peak_open, measured.peak_on), (1, 2));
    }

    #[test]
    fn sessions_are_on_while_their_last_access_is_fresh() {
        let ids = [0, 1, 0, 0, 2, 1];
        let times = [0, 0, S / 2, S, S, 3 * S];
        // At 1 s: 0, 1 (exactly a second old) and 2.
        assert_eq!(measure(&ids, &times, 3, S).peak_on, 3);
        assert_eq!(measure(&ids, &times, 3, S - 1).peak_on, 2);
        assert_eq!(
            measure(&[], &[], 0, S),
            Concurrency {
                on_s: 1.0,
                ..Default::default()
            }
        );
    }
}
