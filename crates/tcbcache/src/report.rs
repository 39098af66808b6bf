//! What is counted, and what the cache holds.

use core::ops::Deref;

use crate::Settings;

fairlead_base::counters! {
    /// Counters since the start, and what is in the cache now.
    ///
    /// `accesses`, `hits`, `misses`, `migrations` and the like are what the lab counts on the same
    /// packets: those of connections that are on record. A line is ON while less than `on_time` has
    /// passed since its last packet.
    pub struct TcbCacheCounters {
        Counter accesses: "tcb_cache_accesses", "Lookups for existing connections";
        Counter hits: "tcb_cache_hits", "Accesses that found a session identifier in the cache";
        Counter misses: "tcb_cache_misses",
            "Accesses that found no session identifier in the cache, only in the table behind it";
        Counter strangers: "tcb_cache_strangers",
            "Lookups for unknown connections, which do not count as accesses";
        Counter mismatches: "tcb_cache_mismatches",
            "Hits on a line of another connection of the same client; the table was consulted";
        Counter migrations: "tcb_cache_migrations", "Lines moved into another of their sets";
        Counter second_lookup_hits: "tcb_cache_second_lookup_hits",
            "Hits in the set of the second index function";
        Counter bypasses: "tcb_cache_bypasses", "Misses for which no line was allocated";
        Counter evictions: "tcb_cache_evictions", "Lines evicted";
        Counter evicted_on: "tcb_cache_evicted_on", "Lines evicted while they were ON";
        Gauge capacity_bytes: "tcb_cache_capacity_bytes", "Size of all lines, 64 bytes each";
        Gauge lines: "tcb_cache_lines", "Lines of the cache";
        Gauge sets: "", "Sets of the cache, in all banks";
        Gauge ways: "", "Lines of each set";
        Gauge occupied: "tcb_cache_occupied_lines", "Lines in use now";
        Gauge on_lines: "tcb_cache_on_lines", "Lines that are ON now";
        Gauge occupancy_min: "tcb_cache_set_occupancy_min",
            "Lines in use in the emptiest set now";
        Gauge occupancy_max: "tcb_cache_set_occupancy_max",
            "Lines in use in the fullest set now";
    }
}

/// What the cache has counted, and what it holds.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Report {
    /// Its scheme: name, and what differs from what the name stands for.
    pub scheme: String,
    /// The plain numbers.
    pub counters: TcbCacheCounters,
    /// Hits of all accesses, 0 to 1; 0 before the first.
    pub hit_ratio: f64,
    /// Now: lines in use in the mean of all sets.
    pub occupancy_mean: f64,
    /// Now: how many sets have none, one, … all of their lines in use.
    pub sets_by_occupancy: Vec<u64>,
}

impl Deref for Report {
    type Target = TcbCacheCounters;

    fn deref(&self) -> &TcbCacheCounters {
        &self.counters
    }
}

impl Report {
    /// Completes counters by what follows from them and from the shape of the cache.
    pub(crate) fn of(
        settings: &Settings,
        mut counters: TcbCacheCounters,
        sets_by_occupancy: Vec<u64>,
    ) -> Self {
        let Settings { scheme, geometry } = settings;
        let first = sets_by_occupancy.iter().position(|sets| *sets > 0);
        let last = sets_by_occupancy.iter().rposition(|sets| *sets > 0);
        counters.capacity_bytes = geometry.capacity_bytes();
        counters.lines = u64::from(geometry.lines());
        counters.sets = u64::from(geometry.banks() * geometry.sets());
        counters.ways = u64::from(geometry.ways());
        counters.occupancy_min = first.unwrap_or(0) as u64;
        counters.occupancy_max = last.unwrap_or(0) as u64;
        let sets: u64 = sets_by_occupancy.iter().sum();
        Self {
            scheme: scheme.to_string(),
            hit_ratio: counters.hits as f64 / counters.accesses.max(1) as f64,
            occupancy_mean: counters.occupied as f64 / sets.max(1) as f64,
            counters,
            sets_by_occupancy,
        }
    }

    /// Counts sets by the lines that they have in use.
    pub(crate) fn by_occupancy(occupancy: &[u32], ways: u32) -> Vec<u64> {
        let mut sets = vec![0; ways as usize + 1];
        for lines in occupancy {
            sets[(*lines).min(ways) as usize] += 1;
        }
        sets
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Geometry, Scheme};

    #[test]
    fn occupancy_is_summed_up() {
        let settings = Settings {
            scheme: Scheme::parse("spec").unwrap(),
            geometry: Geometry::new(512, 64, 2, 2).unwrap(),
        };
        let counters = TcbCacheCounters {
            accesses: 8,
            hits: 6,
            occupied: 7,
            ..TcbCacheCounters::default()
        };
        let sets = Report::by_occupancy(&[1, 1, 3, 2], 4);
        let report = Report::of(&settings, counters, sets);
        assert_eq!(report.sets_by_occupancy, [0, 2, 1, 1, 0]);
        assert_eq!((report.occupancy_min, report.occupancy_max), (1, 3));
        assert!((report.occupancy_mean - 1.75).abs() < 1e-9);
        assert!((report.hit_ratio - 0.75).abs() < 1e-9);
        assert_eq!((report.lines, report.sets, report.ways), (8, 4, 2));
        let nothing = Report::of(&settings, TcbCacheCounters::default(), Vec::new());
        assert_eq!((nothing.occupancy_min, nothing.occupancy_max), (0, 0));
        assert_eq!((nothing.hit_ratio, nothing.occupancy_mean), (0.0, 0.0));
    }
}
