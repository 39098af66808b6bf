//! Popularity of files: Zipf's law fitted to a log, and requests drawn from it.

use fairlead_base::Rng;
use serde::Serialize;

use super::responses::Responses;

/// An exponent fitted to the number of requests by rank.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Fit {
    /// Of maximum likelihood: the share of rank *R* is proportional to *R*^−exponent.
    pub exponent: f64,
    /// The 95 % interval of the exponent, for independent requests.
    pub low: f64,
    /// See `low`.
    pub high: f64,
    /// Ranks.
    pub files: u64,
    /// Share of the requests to the first tenth of the files.
    pub top_tenth: f64,
}

/// Steps of the bisection: more than a double can tell apart.
const STEPS: u32 = 60;
/// The largest exponent that is tried.
const EXPONENT_MAX: f64 = 8.0;

/// Fits an exponent to counts in any order; `None` for fewer than two files.
///
/// The likelihood of a sequence of ranks depends on the mean of ln *R* only, and is greatest where
/// the law's own mean is the same.
pub fn fit(counts: &[u64]) -> Option<Fit> {
    let mut counts: Vec<u64> = counts.iter().copied().filter(|count| *count > 0).collect();
    counts.sort_unstable_by(|left, right| right.cmp(left));
    if counts.len() < 2 {
        return None;
    }
    let logs: Vec<f64> = (1..=counts.len()).map(|rank| (rank as f64).ln()).collect();
    let requests = counts.iter().map(|count| *count as f64).sum::<f64>();
    let of_logs = counts.iter().zip(&logs);
    let mean = of_logs.map(|(count, log)| *count as f64 * log).sum::<f64>() / requests;
    let (mut low, mut high) = (0.0, EXPONENT_MAX);
    for _ in 0..STEPS {
        let middle = (low + high) / 2.0;
        // The mean falls with the exponent.
        if moments(&logs, middle).0 > mean {
            low = middle;
        } else {
            high = middle;
        }
    }
    let exponent = (low + high) / 2.0;
    // The information of one request is the variance of ln R.
    let error = 1.96 / (requests * moments(&logs, exponent).1).sqrt();
    let tenth = counts.len().div_ceil(10);
    let top: u64 = counts[..tenth].iter().sum();
    Some(Fit {
        exponent,
        low: exponent - error,
        high: exponent + error,
        files: counts.len() as u64,
        top_tenth: top as f64 / requests,
    })
}

/// Mean and variance of ln *R* under the law.
fn moments(logs: &[f64], exponent: f64) -> (f64, f64) {
    let (mut sum, mut first, mut second) = (0.0, 0.0, 0.0);
    for log in logs {
        let weight = (-exponent * log).exp();
        sum += weight;
        first += weight * log;
        second += weight * log * log;
    }
    let mean = first / sum;
    (mean, second / sum - mean * mean)
}

/// As many independent requests as a log has, to its files in their order of popularity, with
/// another exponent. Each file is sent whole.
pub fn drawn(log: &Responses, exponent: f64, seed: u64) -> Responses {
    let mut files: Vec<u32> = (0..log.file_bytes.len() as u32).collect();
    files.sort_by_key(|file| std::cmp::Reverse(log.file_requests[*file as usize]));
    let mut sum = 0.0;
    let sums: Vec<f64> = (1..=files.len())
        .map(|rank| {
            sum += (rank as f64).powf(-exponent);
            sum
        })
        .collect();
    let mut rng = Rng::new(seed);
    Responses::from_pairs((0..log.len()).map(|_| {
        let point = (rng.next_u64() >> 11) as f64 / (1u64 << 53) as f64 * sum;
        let rank = sums.partition_point(|sum| *sum <= point);
        let file = files[rank.min(files.len() - 1)];
        (file, log.file_bytes[file as usize])
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_exponent_of_drawn_requests_is_found() {
        let log = Responses::from_pairs((0..200_000u32).map(|at| (at % 1_000, 10)));
        for exponent in [0.7, 0.9, 1.3] {
            let drawn = drawn(&log, exponent, 3);
            // By the true ranks: sorting counts makes a law look steeper.
            let fit = fit(&drawn.file_requests).unwrap();
            assert!((fit.exponent - exponent).abs() < 0.02, "{fit:?}");
            assert!(fit.low < fit.exponent && fit.exponent < fit.high);
            assert_eq!(drawn.len(), 200_000);
        }
    }

    #[test]
    fn equal_counts_have_exponent_0_and_one_file_has_none() {
        let fit_equal = fit(&[5; 100]).unwrap();
        assert!(fit_equal.exponent.abs() < 1e-6, "{fit_equal:?}");
        assert!((fit_equal.top_tenth - 0.1).abs() < 1e-9);
        assert_eq!(fit(&[9, 0]), None);
    }
}
