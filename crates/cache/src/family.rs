//! LRU with one index function, for all numbers of ways at once (Mattson and others, 1970: a larger
//! cache with the same number of sets contains a smaller one).

use fearless_simd::prelude::*;
use fearless_simd::{Simd, i32x16, mask32x16, u32x16};

use crate::cache::Cache;
use crate::geometry::{Geometry, GeometryError, WAYS_MAX};
use crate::lifetime::Lifetime;
use crate::lines::Lines;
use crate::place::Places;
use crate::policy::{Lru, Parameters, Setup};
use crate::simulate::{BLOCK, RunError};
use crate::statistics::Statistics;
use crate::vector::{Kernel, on_widest_vectors};

/// Caches of one bank and as many sets, of 1, 2, … 16 ways, under LRU. One pass over the accesses
/// gives the counts of all: an access misses if its depth in the LRU order of its set exceeds the
/// number of ways, and then evicts the line at that depth.
#[derive(Clone, Debug)]
pub struct LruFamily {
    cache: Cache<u32, Lru, 1, WAYS_MAX>,
    /// Accesses by depth; the last entry counts deeper ones.
    depths: [u64; WAYS_MAX + 1],
    /// Accesses by how many of the lines before theirs were ON.
    on: [u64; WAYS_MAX + 1],
    sets: Vec<u32>,
    /// Lines in use by number of ways, when counting began.
    held_before: [u64; WAYS_MAX],
}

impl LruFamily {
    /// Number of caches simulated.
    pub const WAYS: usize = WAYS_MAX;

    /// Empty caches with this number of sets and this ON time.
    ///
    /// # Errors
    /// The number of sets is not a power of two, or 16 ways exceed the maximum number of lines.
    pub fn new(sets: u32, lifetime: Lifetime) -> Result<Self, GeometryError> {
        let ways = WAYS_MAX as u32;
        let geometry = Geometry::new(u64::from(sets) * u64::from(ways), 1, 1, ways)?;
        let setup = Setup {
            geometry,
            parameters: Parameters {
                lifetime,
                ..Parameters::default()
            },
            seed: 0,
        };
        Ok(Self {
            cache: Cache::new(&setup),
            depths: [0; WAYS_MAX + 1],
            on: [0; WAYS_MAX + 1],
            sets: vec![0; BLOCK],
            held_before: [0; WAYS_MAX],
        })
    }

    /// Accesses one after the other, as [`crate::Simulate::run`]. Places must be for one bank of
    /// the family's sets.
    ///
    /// # Errors
    /// As there.
    pub fn run(&mut self, ids: &[u32], ticks: &[u32], places: &Places) -> Result<(), RunError> {
        RunError::check(&self.cache.geometry(), false, &[], places)?;
        Self::run_all(core::slice::from_mut(self), ids, ticks, places)
    }

    /// Several families over one stream, each as by `run`. Places must be for one bank of at least
    /// as many sets as each has, by an index that nests ([`crate::Indexer::nests`]); they are read
    /// once for all.
    ///
    /// # Errors
    /// As `run`; nothing was simulated then.
    pub fn run_all(
        families: &mut [Self],
        ids: &[u32],
        ticks: &[u32],
        places: &Places,
    ) -> Result<(), RunError> {
        if ids.len() != ticks.len() {
            return Err(RunError::Lengths {
                ids: ids.len(),
                ticks: ticks.len(),
                hints: 0,
            });
        }
        for family in families.iter() {
            let sets = family.cache.geometry().sets();
            if (places.banks(), places.sets().max(sets)) != (1, places.sets()) {
                return Err(RunError::OtherGeometry {
                    given_banks: places.banks(),
                    given_sets: places.sets(),
                    banks: 1,
                    sets,
                });
            }
        }
        RunError::check_ids(ids, places)?;
        let mut read = [0; BLOCK];
        for (ids, ticks) in ids.chunks(BLOCK).zip(ticks.chunks(BLOCK)) {
            places.gather(ids, &mut read[..ids.len()], &mut []);
            for family in families.iter_mut() {
                let low = family.cache.geometry().sets() - 1;
                for (set, wide) in family.sets.iter_mut().zip(&read) {
                    *set = wide & low;
                }
                family.cache.make_room();
                on_widest_vectors(Depths {
                    cache: &mut family.cache,
                    depths: &mut family.depths,
                    on: &mut family.on,
                    ids,
                    ticks,
                    sets: &family.sets,
                });
            }
        }
        Ok(())
    }

    /// Misses so far with 1, 2, … 16 ways.
    pub fn misses(&self) -> [u64; WAYS_MAX] {
        from_each(&self.depths)
    }

    /// The counts of the cache with this number of ways, 1 to 16, without cold misses.
    pub fn statistics(&self, ways: usize) -> Statistics {
        let at = ways.clamp(1, WAYS_MAX) - 1;
        let misses = self.misses()[at];
        Statistics {
            accesses: self.accesses(),
            misses,
            fills: misses,
            evictions: misses + self.held_before[at] - self.held()[at],
            evicted_on: from_each(&self.on)[at],
            ..Statistics::default()
        }
    }

    /// Accesses so far.
    pub fn accesses(&self) -> u64 {
        self.depths.iter().sum()
    }

    /// Counts from zero again and keeps the contents: the end of a warm-up.
    pub fn reset_statistics(&mut self) {
        self.depths = [0; WAYS_MAX + 1];
        self.on = [0; WAYS_MAX + 1];
        self.held_before = self.held();
    }

    /// Lines in use with 1, 2, … 16 ways.
    fn held(&self) -> [u64; WAYS_MAX] {
        let occupied = self.cache.occupancy();
        let held = |ways: u32| -> u64 {
            occupied
                .iter()
                .map(|lines| u64::from(*lines.min(&ways)))
                .sum()
        };
        core::array::from_fn(|at| held(at as u32 + 1))
    }
}

/// How many were counted at 1 or more, at 2 or more, and so on.
fn from_each(counts: &[u64; WAYS_MAX + 1]) -> [u64; WAYS_MAX] {
    let mut rest: u64 = counts.iter().sum();
    core::array::from_fn(|at| {
        rest -= counts[at];
        rest
    })
}

struct Depths<'a> {
    cache: &'a mut Cache<u32, Lru, 1, WAYS_MAX>,
    depths: &'a mut [u64; WAYS_MAX + 1],
    on: &'a mut [u64; WAYS_MAX + 1],
    ids: &'a [u32],
    ticks: &'a [u32],
    sets: &'a [u32],
}

impl Kernel for Depths<'_> {
    /// As LRU of 16 ways, but that the lines of a set stand in the order of recency, the latest
    /// first: what is found tells its depth, and goes before all that stood before it.
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        // Two alternating counters, so that consecutive accesses do not depend on each other.
        let mut depths = [[0u32; 32]; 2];
        let mut on = [[0u32; 32]; 2];
        let Lines { stamps, clock, .. } = &mut self.cache.lines;
        let tags_of = self.cache.tags.as_chunks_mut::<WAYS_MAX>().0;
        let stamps_of = stamps.as_chunks_mut::<WAYS_MAX>().0;
        let (mut stamp, mut tick, mut on_since) = (clock.stamp(), clock.tick(), clock.on_since());
        let accesses = self.ids.iter().zip(self.ticks).zip(self.sets);
        for (at, ((id, now), set)) in accesses.enumerate() {
            if *now != tick {
                clock.set_stamp(stamp);
                clock.advance(*now);
                (tick, on_since) = (clock.tick(), clock.on_since());
            }
            stamp += 1;
            let (tags_at, stamps_at) = (&mut tags_of[*set as usize], &mut stamps_of[*set as usize]);
            let tags = u32x16::simd_from(simd, *tags_at);
            let stamps = i32x16::simd_from(simd, *stamps_at);
            let wanted = u32x16::splat(simd, *id);
            let found = tags.simd_eq(wanted).to_bitmask() as u32 | 1 << WAYS_MAX;
            let depth = found.trailing_zeros();
            let late = stamps.simd_ge(i32x16::splat(simd, on_since)).to_bitmask();
            depths[at % 2][depth as usize % 32] += 1;
            on[at % 2][late.count_ones().min(depth) as usize % 32] += 1;
            let moved = mask32x16::from_bitmask(simd, u64::from(found ^ (found - 1)));
            let tags = moved.select(wanted.slide::<15>(tags), tags);
            let newest = i32x16::splat(simd, stamp);
            let stamps = moved.select(newest.slide::<15>(stamps), stamps);
            *tags_at = tags.into();
            *stamps_at = stamps.into();
        }
        clock.set_stamp(stamp);
        for (sums, counts) in [(self.depths, &depths), (self.on, &on)] {
            for (depth, sum) in sums.iter_mut().enumerate() {
                *sum += u64::from(counts[0][depth]) + u64::from(counts[1][depth]);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use fairlead_base::{Address, Endpoint, Rng};

    use super::*;
    use crate::{Scheme, build};

    #[test]
    fn all_ways_at_once_are_each_alone() {
        let mut rng = Rng::new(3);
        let keys: Vec<Endpoint> = (0..2000)
            .map(|_| Endpoint {
                addr: Address::v4((rng.next_u64() as u32).to_be_bytes()),
                port: 1024 + rng.below(60_000) as u16,
            })
            .collect();
        let ids: Vec<u32> = (0..30_000)
            .map(|_| {
                let bound = rng.below(2000) + 1;
                rng.below(bound)
            })
            .collect();
        let ticks: Vec<u32> = (0..ids.len() as u32).map(|at| at / 50).collect();
        for sets in [1u32, 16, 64] {
            let mut family = LruFamily::new(sets, Lifetime::default()).unwrap();
            let scheme = Scheme::parse("universal").unwrap();
            for (part, cut) in [(0..10_001, 10_001), (10_001..ids.len(), 0)] {
                let geometry = scheme.geometry(u64::from(sets) * 16, 1, 16).unwrap();
                let places = scheme.indexer(&geometry, 7).unwrap().places(&keys);
                family
                    .run(&ids[part.clone()], &ticks[part], &places)
                    .unwrap();
                if cut > 0 {
                    assert_eq!(family.accesses(), cut);
                    family.reset_statistics();
                }
            }
            for ways in [1u32, 2, 4, 8, 16] {
                let bytes = u64::from(sets * ways);
                let geometry = scheme.geometry(bytes, 1, ways).unwrap();
                let places = scheme.indexer(&geometry, 7).unwrap().places(&keys);
                let mut cache = build(&scheme, &geometry, 7).unwrap();
                cache
                    .run(&ids[..10_001], &ticks[..10_001], &[], &places)
                    .unwrap();
                cache.reset_statistics();
                cache
                    .run(&ids[10_001..], &ticks[10_001..], &[], &places)
                    .unwrap();
                let alone = Statistics {
                    cold_misses: 0,
                    ..cache.statistics()
                };
                let counted = family.statistics(ways as usize);
                assert_eq!(counted, alone, "{ways} ways of {sets} sets");
                assert_eq!(counted.misses, family.misses()[ways as usize - 1]);
                assert!(counted.evicted_on > 0 || ways * sets > 64);
            }
            let misses = family.misses();
            assert!(misses.is_sorted_by(|fewer, more| fewer >= more));
        }
    }

    #[test]
    fn families_together_are_each_alone() {
        let mut rng = Rng::new(4);
        let mut wide = Places::first_only(1, 64, 500);
        for _ in 0..500 {
            let mut place = crate::Place::default();
            place.first[0] = rng.below(64);
            wide.push(&place);
        }
        let ids: Vec<u32> = (0..5_000).map(|_| rng.below(500)).collect();
        let ticks: Vec<u32> = (0..5_000).map(|at| at / 40).collect();
        let family = |sets: &u32| LruFamily::new(*sets, Lifetime::default()).unwrap();
        let sets = [4, 64, 1];
        let mut together: Vec<LruFamily> = sets.iter().map(family).collect();
        LruFamily::run_all(&mut together, &ids, &ticks, &wide).unwrap();
        for (sets, together) in sets.iter().zip(&together) {
            let own = wide.narrowed(1, *sets, false).unwrap();
            let mut alone = family(sets);
            alone.run(&ids, &ticks, &own).unwrap();
            assert_eq!(together.misses(), alone.misses(), "{sets} sets");
            for ways in [1, 4, 16] {
                assert_eq!(together.statistics(ways), alone.statistics(ways));
            }
        }
        let few = LruFamily::run_all(&mut [family(&128)], &ids, &ticks, &wide);
        assert!(few.unwrap_err().to_string().contains("1 of 128"));
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let family = |sets| LruFamily::new(sets, Lifetime::default());
        assert!(family(3).is_err() && family(0).is_err());
        assert!(family(1 << 31).is_err());
        let mut family = family(16).unwrap();
        let other = family.run(&[0], &[0], &Places::new(2, 16, 0)).unwrap_err();
        assert!(other.to_string().contains("1 of 16"), "{other}");
        let none = family.run(&[0], &[0], &Places::new(1, 16, 0)).unwrap_err();
        assert!(none.to_string().contains("session number 0"), "{none}");
    }
}
