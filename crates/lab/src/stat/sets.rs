//! How evenly sessions fall on sets (tcb-cache-2010, section 3.1, figure 5): the distribution of
//! |X − E X|, where X is the number of sessions of a set.
//!
//! With one function a session belongs to the set that it gives. With several the paper does not
//! say which of its sets a session counts for; here it is the one that has the fewest so far, the
//! left one at a tie, which is how its policy balances lines. They come in the order of their first
//! accesses, however they are numbered.

use fairlead_base::Endpoint;
use serde::Serialize;

use crate::error::LabError;
use crate::run::Configuration;
use crate::spec::RunSpec;

/// Bins of the distribution: shares of E X, so that traces of all sizes compare.
pub const BINS: [f64; 8] = [0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0, 2.0];

/// Sessions by set under one scheme.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Spread {
    /// The scheme.
    pub scheme: String,
    /// Sets, all banks together.
    pub sets: u32,
    /// E X: sessions for each set.
    pub expected: f64,
    /// Mean of |X − E X|.
    pub mean_deviation: f64,
    /// Root mean square of X − E X.
    pub standard_deviation: f64,
    /// The most sessions of a set.
    pub most: u64,
    /// Distribution of |X − E X| / E X over sets.
    pub deviation: super::histogram::Histogram,
    /// Distribution of |X − E X| in sessions: each value that occurs, rounded, with its share.
    pub pdf: Vec<(u64, f64)>,
}

/// Session identifiers in the order of their first accesses.
pub fn by_first_access(ids: &[u32], keys: &[Endpoint]) -> Vec<Endpoint> {
    let mut seen = vec![false; keys.len()];
    ids.iter()
        .map(|id| *id as usize)
        .filter(|id| !std::mem::replace(&mut seen[*id], true))
        .map(|id| keys[id])
        .collect()
}

/// Measures one scheme, with sessions in the order of `keys`.
///
/// # Errors
/// A scheme or a geometry that is not sound.
pub fn measure(keys: &[Endpoint], run: &RunSpec) -> Result<Spread, LabError> {
    let configuration = Configuration::new(run)?;
    let indexer = configuration.indexer()?;
    let geometry = &configuration.geometry;
    let (banks, sets) = (geometry.banks() as usize, geometry.sets() as usize);
    let mut counts = vec![0u64; banks * sets];
    for key in keys {
        let place = indexer.place(key);
        let homes = (0..banks).map(|bank| bank * sets + place.first[bank] as usize);
        if let Some(home) = homes.min_by_key(|&home| counts[home]) {
            counts[home] += 1;
        }
    }
    let expected = keys.len() as f64 / counts.len() as f64;
    let mut deviation = super::histogram::Histogram::new(&BINS);
    let mut pdf = std::collections::BTreeMap::new();
    let (mut sum, mut squares) = (0.0, 0.0);
    for &count in &counts {
        let off = (count as f64 - expected).abs();
        sum += off;
        squares += off * off;
        deviation.add(if expected > 0.0 { off / expected } else { 0.0 });
        *pdf.entry(off.round() as u64).or_insert(0u64) += 1;
    }
    let all = counts.len() as f64;
    Ok(Spread {
        scheme: run.scheme.clone(),
        sets: counts.len() as u32,
        expected,
        mean_deviation: sum / all,
        standard_deviation: (squares / all).sqrt(),
        most: counts.iter().copied().max().unwrap_or(0),
        deviation,
        pdf: pdf
            .into_iter()
            .map(|(off, sets)| (off, sets as f64 / all))
            .collect(),
    })
}

#[cfg(test)]
mod tests {
    use fairlead_base::{Address, Rng};

    use super::*;

    #[test]
    fn two_functions_are_more_even_than_one() {
        let mut rng = Rng::new(3);
        let keys: Vec<Endpoint> = (0..20_000)
            .map(|_| Endpoint {
                addr: Address::v4((rng.next_u64() as u32).to_be_bytes()),
                port: 1024 + rng.below(256) as u16,
            })
            .collect();
        let one = measure(&keys, &RunSpec::paper("universal")).unwrap();
        let two = measure(&keys, &RunSpec::paper("2-universal")).unwrap();
        assert_eq!((one.sets, two.sets), (128, 128));
        assert_eq!(one.expected, two.expected);
        assert!(two.mean_deviation < one.mean_deviation / 2.0);
        let total: f64 = one.pdf.iter().map(|(_, share)| share).sum();
        assert!((total - 1.0).abs() < 1e-9);
    }

    #[test]
    fn the_numbering_of_sessions_does_not_matter() {
        let mut rng = Rng::new(4);
        let keys: Vec<Endpoint> = (0..3_000)
            .map(|_| Endpoint {
                addr: Address::v4((rng.next_u64() as u32).to_be_bytes()),
                port: 1024 + rng.below(256) as u16,
            })
            .collect();
        let ids: Vec<u32> = (0..60_000).map(|_| rng.below(3_000)).collect();
        let backwards: Vec<Endpoint> = keys.iter().rev().copied().collect();
        let other: Vec<u32> = ids.iter().map(|id| 2_999 - id).collect();
        let run = RunSpec::paper("2-xor");
        let measured = |ids: &[u32], keys: &[Endpoint]| {
            let arriving = by_first_access(ids, keys);
            assert_eq!(arriving[0], keys[ids[0] as usize]);
            measure(&arriving, &run).unwrap()
        };
        assert_eq!(measured(&ids, &keys), measured(&other, &backwards));
        let numbered = |keys: &[Endpoint]| measure(keys, &run).unwrap();
        assert_ne!(numbered(&keys), numbered(&backwards));
    }

    #[test]
    fn no_session_is_no_deviation() {
        let none = measure(&[], &RunSpec::paper("mod")).unwrap();
        assert_eq!(
            (none.expected, none.mean_deviation, none.most),
            (0.0, 0.0, 0)
        );
    }
}
