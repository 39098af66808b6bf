//! A sample of the last hour's requests, from which the laboratory says what another size or
//! policy would give.
//!
//! Which URLs are in it is decided by their hashes, so each URL has all of its requests or none,
//! and a cache of a part of the size shows what the whole one would do (C. Waldspurger et al.,
//! *Efficient MRC Construction with SHARDS*, FAST 2015).

use std::collections::{BTreeMap, VecDeque};

use fairlead_base::Instant;

/// Most requests of a sample.
const REQUESTS_MAX: u32 = 65_536;
/// Memory of a request, in bytes.
pub(crate) const REQUEST_BYTES: u64 = size_of::<Entry>() as u64;
/// How long a request stays.
const SPAN_S: u32 = 3_600;
/// One URL in 2²⁰ at least.
const HALVINGS_MAX: u32 = 20;

/// The last hour's requests that a cache answered, or could have answered.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sample {
    /// One URL in this many is in the sample.
    pub one_in: u64,
    /// Seconds from the first request to the last.
    pub span_s: u32,
    /// Each request: a number for its URL, and the bytes of the body.
    pub requests: Vec<(u32, u64)>,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    hash: u64,
    /// In units of 256 bytes.
    units: u32,
    at_s: u32,
}

const UNIT_BYTES: u64 = 256;

#[derive(Clone, Debug)]
pub(crate) struct Requests {
    entries: VecDeque<Entry>,
    most: usize,
    /// How often the share of URLs was halved.
    halvings: u32,
}

impl Requests {
    pub(crate) fn new(objects: u32) -> Self {
        let most = Self::requests(objects) as usize;
        Self {
            entries: VecDeque::with_capacity(most),
            most,
            halvings: 0,
        }
    }

    pub(crate) fn requests(objects: u32) -> u32 {
        objects.clamp(64, REQUESTS_MAX)
    }

    /// Notes a request for a URL.
    pub(crate) fn note(&mut self, hash: u64, bytes: u64, now: Instant) {
        let at_s = u32::try_from(now.as_millis() / 1_000).unwrap_or(u32::MAX);
        self.forget(at_s);
        if !is_in(hash, self.halvings) {
            return;
        }
        while self.entries.len() >= self.most && self.halvings < HALVINGS_MAX {
            self.halvings += 1;
            let halvings = self.halvings;
            self.entries.retain(|one| is_in(one.hash, halvings));
        }
        if self.entries.len() >= self.most {
            // A single URL.
            self.entries.pop_front();
        }
        if is_in(hash, self.halvings) {
            let units = u32::try_from(bytes.div_ceil(UNIT_BYTES)).unwrap_or(u32::MAX);
            self.entries.push_back(Entry { hash, units, at_s });
        }
    }

    fn forget(&mut self, now_s: u32) {
        let is_old = |one: &Entry| one.at_s.saturating_add(SPAN_S) < now_s;
        while self.entries.front().is_some_and(is_old) {
            self.entries.pop_front();
        }
        if self.entries.is_empty() {
            self.halvings = 0;
        }
    }

    pub(crate) fn sample(&self) -> Sample {
        let mut numbers = BTreeMap::new();
        let number = |one: &Entry| {
            let next = numbers.len() as u32;
            let number = *numbers.entry(one.hash).or_insert(next);
            (number, u64::from(one.units) * UNIT_BYTES)
        };
        let [first, last] =
            [self.entries.front(), self.entries.back()].map(|one| one.map(|one| one.at_s));
        Sample {
            one_in: 1 << self.halvings,
            span_s: last.unwrap_or(0) - first.unwrap_or(0),
            requests: self.entries.iter().map(number).collect(),
        }
    }
}

/// Whether a URL is in the sample. The hash has a secret, so its bits are as good as random.
fn is_in(hash: u64, halvings: u32) -> bool {
    hash.trailing_zeros() >= halvings
}

#[cfg(test)]
mod tests {
    use fairlead_base::Rng;

    use super::*;

    #[test]
    fn a_sample_has_all_requests_of_a_part_of_the_urls() {
        let mut requests = Requests::new(1_000);
        let mut rng = Rng::new(7);
        let urls: Vec<u64> = (0..5_000).map(|_| rng.next_u64()).collect();
        let mut counts = BTreeMap::new();
        for round in 0..40_000u64 {
            let url = urls[rng.below(5_000) as usize];
            *counts.entry(url).or_insert(0) += 1;
            requests.note(url, 700, Instant::from_millis(round));
        }
        let sample = requests.sample();
        assert!(sample.requests.len() <= 1_000 && sample.requests.len() > 300);
        let kept: Vec<_> = counts
            .iter()
            .filter(|(url, _)| is_in(**url, requests.halvings))
            .collect();
        let of_kept: usize = kept.iter().map(|(_, count)| **count).sum();
        assert_eq!(sample.requests.len(), of_kept);
        assert_eq!(sample.one_in, 64, "40,000 of which 625 are left");
        assert!(
            sample
                .requests
                .iter()
                .all(|one| one.1 == 768 && (one.0 as usize) < kept.len())
        );
        assert!((37..=39).contains(&sample.span_s), "{}", sample.span_s);
    }

    #[test]
    fn an_hour_is_kept_and_one_url_does_not_grow() {
        let mut requests = Requests::new(64);
        for second in 0..10_000 {
            requests.note(8, 1, Instant::from_millis(second * 1_000));
            assert!(requests.entries.len() <= 64);
        }
        requests.note(1, 1, Instant::from_millis(50_000_000));
        assert_eq!(requests.sample().requests, [(0, 256)]);
        assert_eq!(requests.sample().one_in, 1);
    }
}
