//! Counts in bins, with cumulative counts.

use serde::Serialize;

/// Counts by upper end. The last bin is open.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Histogram {
    /// Upper ends, included, rising.
    pub upper: Vec<f64>,
    /// Counts, one more than upper ends: the last is for all above.
    pub counts: Vec<u64>,
    /// All of them.
    pub count: u64,
    /// Their mean; 0 without any.
    pub mean: f64,
    /// The largest; 0 without any.
    pub largest: f64,
}

impl Histogram {
    /// With these upper ends.
    pub fn new(upper: &[f64]) -> Self {
        Self {
            upper: upper.to_vec(),
            counts: vec![0; upper.len() + 1],
            count: 0,
            mean: 0.0,
            largest: 0.0,
        }
    }

    /// Counts a value.
    pub fn add(&mut self, value: f64) {
        let bin = self.upper.partition_point(|&upper| upper < value);
        self.counts[bin] += 1;
        self.count += 1;
        self.mean += (value - self.mean) / self.count as f64;
        self.largest = self.largest.max(value);
    }

    /// Shares by bin.
    pub fn shares(&self) -> Vec<f64> {
        self.counts
            .iter()
            .map(|&count| super::share(count, self.count))
            .collect()
    }

    /// The bin's name: `≤ 4`, `> 1024`.
    pub fn name(&self, bin: usize) -> String {
        match (self.upper.get(bin), self.upper.last()) {
            (Some(upper), _) => format!("≤ {upper}"),
            (None, Some(last)) => format!("> {last}"),
            (None, None) => "all".to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_fall_into_the_bin_that_ends_with_them() {
        let mut histogram = Histogram::new(&[0.0, 1.0, 2.0]);
        for value in [0.0, 0.5, 1.0, 2.0, 3.0] {
            histogram.add(value);
        }
        assert_eq!(histogram.counts, [1, 2, 1, 1]);
        assert_eq!((histogram.mean, histogram.largest), (1.3, 3.0));
        assert_eq!(histogram.shares()[1], 0.4);
        assert_eq!(histogram.name(1), "≤ 1");
        assert_eq!(histogram.name(3), "> 2");
    }
}
