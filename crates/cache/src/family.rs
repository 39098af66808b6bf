//! LRU with one index function, all numbers of ways at once (Mattson and others, 1970: what a cache
//! holds, a larger one of as many sets holds too).

use fearless_simd::Simd;

use crate::cache::Cache;
use crate::geometry::{Geometry, GeometryError, WAYS_MAX};
use crate::lines::Lines;
use crate::place::Places;
use crate::policy::{Lru, Parameters, Setup};
use crate::simulate::{BLOCK, RunError};
use crate::vector::{Kernel, Lanes, on_vectors, quads_mut};

/// Caches of one bank and as many sets, of 1, 2, … 16 ways, under LRU. One pass over the accesses
/// tells the misses of each: an access misses where it comes deeper in the order of its set than
/// there are ways.
#[derive(Clone, Debug)]
pub struct LruFamily {
    cache: Cache<u32, Lru, 1, WAYS_MAX>,
    /// Accesses that came at each depth; at the end those that came deeper.
    depths: [u64; WAYS_MAX + 1],
    sets: Vec<u32>,
}

impl LruFamily {
    /// How many caches it stands for.
    pub const WAYS: usize = WAYS_MAX;

    /// Empty caches of so many sets.
    ///
    /// # Errors
    /// When that is no power of two, or 16 ways of so many sets are more lines than are built.
    pub fn new(sets: u32) -> Result<Self, GeometryError> {
        let ways = WAYS_MAX as u32;
        let geometry = Geometry::new(u64::from(sets) * u64::from(ways), 1, 1, ways)?;
        let setup = Setup {
            geometry,
            parameters: Parameters::default(),
            seed: 0,
        };
        Ok(Self {
            cache: Cache::new(&setup),
            depths: [0; WAYS_MAX + 1],
            sets: vec![0; BLOCK],
        })
    }

    /// Accesses one after the other, as [`crate::Simulate::run`]. Places must be for one bank of
    /// the family's sets.
    ///
    /// # Errors
    /// Places of another geometry, numbers without a place. Nothing was simulated then.
    pub fn run(&mut self, ids: &[u32], places: &Places) -> Result<(), RunError> {
        RunError::check(&self.cache.geometry(), ids, places)?;
        for ids in ids.chunks(BLOCK) {
            places.gather_first(ids, &mut self.sets[..ids.len()]);
            self.cache.make_room();
            on_vectors(Depths {
                cache: &mut self.cache,
                depths: &mut self.depths,
                ids,
                sets: &self.sets,
            });
        }
        Ok(())
    }

    /// Misses so far with 1, 2, … 16 ways.
    pub fn misses(&self) -> [u64; WAYS_MAX] {
        let mut deeper: u64 = self.depths.iter().sum();
        core::array::from_fn(|depth| {
            deeper -= self.depths[depth];
            deeper
        })
    }

    /// Accesses so far.
    pub fn accesses(&self) -> u64 {
        self.depths.iter().sum()
    }

    /// Counts from zero again and keeps the contents: the end of a warm-up.
    pub fn reset_statistics(&mut self) {
        self.depths = [0; WAYS_MAX + 1];
    }
}

struct Depths<'a> {
    cache: &'a mut Cache<u32, Lru, 1, WAYS_MAX>,
    depths: &'a mut [u64; WAYS_MAX + 1],
    ids: &'a [u32],
    sets: &'a [u32],
}

impl Kernel for Depths<'_> {
    /// As LRU of 16 ways; the depth of a line is how many in its set were touched later.
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Self {
            cache,
            depths,
            ids,
            sets,
        } = self;
        // Two counts by turns, so that an access need not wait for the one before it.
        let mut counts = [[0u64; 32]; 2];
        let Lines { stamps, clock, .. } = &mut cache.lines;
        let (tags_of, stamps_of) = (quads_mut(&mut cache.tags), quads_mut(stamps));
        let mut stamp = clock.stamp();
        for (at, (id, set)) in ids.iter().zip(sets).enumerate() {
            stamp += 1;
            let (wanted, set) = (Lanes::<S, 1, WAYS_MAX>::splat(simd, *id as i32), &[*set]);
            let tags = Lanes::tags(simd, tags_of, set);
            let stamps = Lanes::stamps(simd, stamps_of, set);
            let found = tags.equals(&wanted);
            let least = found.pick(&Lanes::splat(simd, 0), &stamps).least();
            let scores = found.pick(&Lanes::splat(simd, 0), &stamps);
            let chosen = scores.equals(&Lanes::splat(simd, least));
            let old = Lanes::splat(
                simd,
                chosen.pick(&stamps, &Lanes::splat(simd, i32::MAX)).least(),
            );
            let later = old.less(&stamps).bits().count_ones();
            let depth = if least == 0 { later as usize } else { WAYS_MAX };
            counts[at % 2][depth % 32] += 1;
            chosen.pick(&wanted, &tags).store_tags(tags_of, set);
            let stamps = chosen.pick(&Lanes::splat(simd, stamp), &stamps);
            stamps.store_stamps(stamps_of, set);
        }
        clock.set_stamp(stamp);
        for (depth, count) in depths.iter_mut().enumerate() {
            *count += counts[0][depth] + counts[1][depth];
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
        let ticks = vec![0; ids.len()];
        for sets in [1u32, 16, 64] {
            let mut family = LruFamily::new(sets).unwrap();
            let scheme = Scheme::parse("universal").unwrap();
            for (part, cut) in [(&ids[..10_001], 10_001), (&ids[10_001..], 0)] {
                let geometry = scheme.geometry(u64::from(sets) * 16, 1, 16).unwrap();
                let places = scheme.indexer(&geometry, 7).unwrap().places(&keys);
                family.run(part, &places).unwrap();
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
                let misses = family.misses()[ways as usize - 1];
                assert_eq!(
                    misses,
                    cache.statistics().misses,
                    "{ways} ways of {sets} sets"
                );
            }
            let misses = family.misses();
            assert!(misses.is_sorted_by(|fewer, more| fewer >= more));
        }
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        assert!(LruFamily::new(3).is_err() && LruFamily::new(0).is_err());
        assert!(LruFamily::new(1 << 31).is_err());
        let mut family = LruFamily::new(16).unwrap();
        let other = family.run(&[0], &Places::new(2, 16, 0)).unwrap_err();
        assert!(other.to_string().contains("1 of 16"), "{other}");
        let none = family.run(&[0], &Places::new(1, 16, 0)).unwrap_err();
        assert!(none.to_string().contains("session number 0"), "{none}");
    }
}
