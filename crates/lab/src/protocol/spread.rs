//! Median, least and most of a number per packet, in bounded memory.

use std::collections::BTreeMap;

use serde::Serialize;

/// Distinct values that are kept; beyond, values are rounded down to ever coarser steps, least and
/// most stay exact.
const DISTINCT_MAX: usize = 1 << 14;

/// Collects values.
#[derive(Clone, Debug, Default)]
pub struct Values {
    counts: BTreeMap<u64, u64>,
    /// Values are kept in units of 2 to this power.
    shift: u32,
    least: u64,
    most: u64,
    sum: u128,
    number: u64,
}

/// What they are like.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Spread {
    /// Half of the packets have at most this.
    pub median: u64,
    /// The smallest.
    pub least: u64,
    /// The largest.
    pub most: u64,
    /// The sum by the number of packets.
    pub mean: f64,
}

impl Values {
    /// Adds a value.
    pub fn add(&mut self, value: u64) {
        self.least = if self.number == 0 {
            value
        } else {
            self.least.min(value)
        };
        self.most = self.most.max(value);
        self.sum += u128::from(value);
        self.number += 1;
        *self.counts.entry(value >> self.shift).or_default() += 1;
        while self.counts.len() > DISTINCT_MAX {
            self.shift += 1;
            let finer = std::mem::take(&mut self.counts);
            for (value, count) in finer {
                *self.counts.entry(value >> 1).or_default() += count;
            }
        }
    }

    /// Number of values.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Summary; all zero without values.
    pub fn spread(&self) -> Spread {
        let mut below = 0;
        let middle = self.counts.iter().find(|(_, count)| {
            below += **count;
            2 * below >= self.number
        });
        let median = middle.map_or(0, |(value, _)| value << self.shift);
        Spread {
            median: median.clamp(self.least, self.most),
            least: self.least,
            most: self.most,
            mean: self.sum as f64 / self.number.max(1) as f64,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_the_middle_and_memory_is_bounded() {
        let mut values = Values::default();
        assert_eq!(values.spread(), Spread::default());
        for value in [7, 5, 5, 9, 100] {
            values.add(value);
        }
        let spread = values.spread();
        assert_eq!((spread.median, spread.least, spread.most), (7, 5, 100));
        assert!((spread.mean - 25.2).abs() < 1e-9);
        let mut many = Values::default();
        for value in 0..1u64 << 16 {
            many.add(value * 3 + 1);
        }
        assert!(many.counts.len() <= DISTINCT_MAX);
        let spread = many.spread();
        assert_eq!((spread.least, spread.most), (1, 3 * ((1 << 16) - 1) + 1));
        assert!(spread.median.abs_diff(3 << 15) < 32, "{spread:?}");
    }
}
