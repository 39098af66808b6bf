//! Sessions open at once: from the first access to the last, both included, where these are known.

/// Open sessions over a stretch of time.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Open {
    /// Mean over the time.
    pub(crate) mean: f64,
    /// The most at any instant.
    pub(crate) peak: u64,
    /// When that was first so: since the first beginning, or since the circle's.
    pub(crate) peak_at: u64,
}

/// Concurrency of intervals `(begin, end)`, from the first beginning to the last end.
pub(crate) fn line(stretches: &mut [(u64, u64)]) -> Open {
    stretches.sort_unstable();
    let mut ends: Vec<u64> = stretches.iter().map(|(_, end)| *end).collect();
    ends.sort_unstable();
    let (Some((first, _)), Some(last)) = (stretches.first(), ends.last()) else {
        return Open::default();
    };
    let open: u128 = stretches
        .iter()
        .map(|(begin, end)| u128::from(end - begin))
        .sum();
    let (mut peak, mut peak_at) = (0, 0);
    let mut closed = 0;
    for (opened, (begin, _)) in stretches.iter().enumerate() {
        // What ends at this instant is still open in it.
        while ends[closed] < *begin {
            closed += 1;
        }
        if opened + 1 - closed > peak {
            (peak, peak_at) = (opened + 1 - closed, begin - first);
        }
    }
    Open {
        mean: open as f64 / (last - first).max(1) as f64,
        peak: peak as u64,
        peak_at,
    }
}

/// Concurrency of intervals `(begin, length)` that repeat every `period`; beginnings are below it.
pub(crate) fn circle(stretches: &[(u64, u64)], period: u64) -> Open {
    let mut events = Vec::with_capacity(stretches.len() * 2);
    let mut open = 0u64;
    let mut total = 0u128;
    for (begin, len) in stretches {
        total += u128::from(*len);
        open += len / period;
        let end = begin + len % period;
        if end >= period {
            // Open at the beginning of the period already.
            open += 1;
        }
        // Beginnings come before ends of the same instant.
        events.push((*begin, false));
        events.push((end % period, true));
    }
    events.sort_unstable();
    let (mut peak, mut peak_at) = (open, 0);
    for (at, is_end) in events {
        if is_end {
            open -= 1;
        } else {
            open += 1;
            if open > peak {
                (peak, peak_at) = (open, at);
            }
        }
    }
    Open {
        mean: total as f64 / period.max(1) as f64,
        peak,
        peak_at,
    }
}

#[cfg(test)]
mod tests {
    use fairlead_base::Rng;

    use super::*;

    #[test]
    fn a_circle_is_a_line_that_repeats() {
        let mut rng = Rng::new(9);
        const PERIOD: u64 = 500;
        let stretches: Vec<(u64, u64)> = (0..40)
            .map(|_| (u64::from(rng.below(500)), u64::from(rng.below(1_700))))
            .collect();
        let open = circle(&stretches, PERIOD);
        // The same, instant by instant, far from the beginning.
        let at = |instant: u64| {
            let covers = |(begin, len): &&(u64, u64)| {
                (0..10)
                    .map(|copy| begin + copy * PERIOD)
                    .filter(|from| (*from..=from + len).contains(&instant))
                    .count()
            };
            stretches
                .iter()
                .map(|stretch| covers(&stretch))
                .sum::<usize>()
        };
        let counts: Vec<usize> = (4 * PERIOD..5 * PERIOD).map(at).collect();
        let most = *counts.iter().max().unwrap();
        assert_eq!(open.peak, most as u64);
        let first = counts.iter().position(|count| *count == most);
        assert_eq!(Some(open.peak_at as usize), first);
        let total: u64 = stretches.iter().map(|(_, len)| len).sum();
        assert!((open.mean - total as f64 / PERIOD as f64).abs() < 1e-9);
    }
}
