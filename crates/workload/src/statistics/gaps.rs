//! Pauses within ON periods and between them (tcb-cache-2010, Fig. 3).

use fairlead_trace::Accesses;
use serde::{Deserialize, Serialize};

/// Upper edges of Fig. 3a, seconds, with finer ones below the first.
pub const ON_EDGES_S: [f64; 8] = [0.1, 0.25, 0.5, 1.0, 2.0, 3.0, 4.0, 5.0];
/// Upper edges of Fig. 3b, seconds.
pub const OFF_EDGES_S: [f64; 11] = [
    2.0, 4.0, 6.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1_024.0,
];

/// How many values are up to each edge and above the one before; the last count is of those above
/// all edges.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Histogram {
    /// Upper edges, seconds, each included.
    pub edges_s: Vec<f64>,
    /// One more than there are edges.
    pub counts: Vec<u64>,
    /// The mean of the values, seconds; 0 without any.
    pub mean_s: f64,
    sum_us: u128,
}

impl Histogram {
    fn new(edges_s: &[f64]) -> Self {
        Self {
            edges_s: edges_s.to_vec(),
            counts: vec![0; edges_s.len() + 1],
            mean_s: 0.0,
            sum_us: 0,
        }
    }

    fn add(&mut self, us: u64) {
        let seconds = us as f64 / 1e6;
        let at = self.edges_s.partition_point(|edge| *edge < seconds);
        self.counts[at] += 1;
        self.sum_us += u128::from(us);
        self.mean_s = self.sum_us as f64 / 1e6 / self.values() as f64;
    }

    /// How many values there are.
    pub fn values(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// The share of each count.
    pub fn shares(&self) -> Vec<f64> {
        let values = self.values().max(1) as f64;
        self.counts
            .iter()
            .map(|count| *count as f64 / values)
            .collect()
    }
}

/// Pauses of sessions.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Gaps {
    /// Up to the longest pause of an ON period.
    pub on: Histogram,
    /// Longer ones.
    pub off: Histogram,
    /// Accesses of an ON period, mean.
    pub burst_mean: f64,
}

/// Pauses between accesses of the same session; those up to `on_gap_max_s` are of an ON period.
pub fn gaps(accesses: &Accesses, on_gap_max_s: f64) -> Gaps {
    const NONE: u64 = u64::MAX;
    let on_max_us = (on_gap_max_s * 1e6) as u64;
    let mut last = vec![NONE; accesses.keys.len()];
    let (mut on, mut off) = (Histogram::new(&ON_EDGES_S), Histogram::new(&OFF_EDGES_S));
    let mut sessions = 0u64;
    for (time, id) in accesses.time_us.iter().zip(&accesses.id) {
        let Some(last) = last.get_mut(*id as usize) else {
            continue;
        };
        match std::mem::replace(last, *time) {
            NONE => sessions += 1,
            before if time - before <= on_max_us => on.add(time - before),
            before => off.add(time - before),
        }
    }
    let bursts = sessions + off.values();
    Gaps {
        burst_mean: accesses.len() as f64 / bursts.max(1) as f64,
        on,
        off,
    }
}

#[cfg(test)]
mod tests {
    use fairlead_base::Endpoint;

    use super::*;

    #[test]
    fn pauses_are_told_apart_by_their_length() {
        let second = 1_000_000;
        let accesses = Accesses {
            time_us: vec![
                0,
                second / 2,
                second,
                2 * second,
                12 * second,
                3_000 * second,
            ],
            id: vec![0, 0, 1, 0, 0, 1],
            keys: vec![Endpoint::default(); 2],
            hint: Vec::new(),
        };
        // Session 0 pauses .5, 1.5 and 10 s; session 1 pauses 2,999 s.
        let found = gaps(&accesses, 1.0);
        assert_eq!(found.on.counts, [0, 0, 1, 0, 0, 0, 0, 0, 0]);
        assert_eq!(found.off.counts, [1, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 1]);
        assert!((found.on.mean_s - 0.5).abs() < 1e-9);
        assert_eq!(found.burst_mean, 6.0 / 5.0);
        assert_eq!(found.on.shares()[2], 1.0);
    }
}
