//! URLs whose responses turned out not to be for the cache of their route. Connections that begin
//! with one of them are spliced at once: to take them to the front would gain nothing.
//!
//! A table of fixed size, each URL with one place in it: a new one takes the place of an old one.

use core::time::Duration;

use fairlead_base::Instant;

use super::Switch;
use crate::backends::Backends;

/// How many are remembered at most; a power of two. 24 bytes each.
const PLACES: usize = 16_384;
/// For how long: the server may come to think otherwise.
const LASTS: Duration = Duration::from_secs(120);

/// A request whose response was not for the cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Uncached {
    /// Index of the service.
    pub service: u16,
    /// Index of the route.
    pub route: u16,
    /// What `Host` says.
    pub host: String,
    /// The target.
    pub target: Vec<u8>,
}

/// The table; without memory until something is remembered.
#[derive(Debug, Default)]
pub(super) struct Uncacheable {
    now: Instant,
    places: Vec<Option<(u64, Instant)>>,
}

impl Uncacheable {
    pub(super) fn has(&self, key: u64) -> bool {
        let place = self.places.get(key as usize % PLACES);
        matches!(place, Some(Some((one, until))) if *one == key && *until > self.now)
    }

    fn note(&mut self, key: u64) {
        self.places.resize(PLACES, None);
        self.places[key as usize % PLACES] = Some((key, self.now + LASTS));
    }
}

/// What stands for a URL on a route. Keyed, so that nobody can choose which URLs meet.
pub(super) fn key(backends: &Backends, service: u16, route: u16, host: &str, target: &[u8]) -> u64 {
    let mut bytes = Vec::with_capacity(8 + host.len() + target.len());
    bytes.extend_from_slice(&service.to_le_bytes());
    bytes.extend_from_slice(&route.to_le_bytes());
    bytes.extend_from_slice(&(host.len() as u32).to_le_bytes());
    bytes.extend_from_slice(host.as_bytes());
    bytes.extend_from_slice(target);
    backends.affinity_hash(&bytes)
}

impl Switch {
    /// Responses to these were not for the cache. To be called a few times a second, with none
    /// too: entries age by it.
    pub fn note_uncached(&mut self, now: Instant, all: &[Uncached]) {
        self.uncacheable.now = now;
        for one in all {
            let key = key(
                &self.backends,
                one.service,
                one.route,
                &one.host,
                &one.target,
            );
            self.uncacheable.note(key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_age_and_give_way() {
        let mut table = Uncacheable::default();
        assert!(!table.has(7) && table.places.is_empty());
        table.note(7);
        assert!(table.has(7) && !table.has(8));
        table.now = table.now + (LASTS - Duration::from_secs(1));
        assert!(table.has(7));
        table.note(7 + PLACES as u64);
        assert!(table.has(7 + PLACES as u64) && !table.has(7), "one place");
        table.now = table.now + LASTS;
        assert!(!table.has(7 + PLACES as u64));
        (0..100_000u64).for_each(|key| table.note(key * 31));
        assert_eq!(table.places.len(), PLACES);
    }
}
