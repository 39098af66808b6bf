//! Memory caches under other policies than LRU, one at a time.

use super::{ACCESS_MAX, Geometry};
use crate::cache::Cache;
use crate::geometry::{self, GeometryError};
use crate::lookup::Lookup;
use crate::place::Place;
use crate::policy::{self, Parameters, Setup};

/// A replacement policy of memory caches.
#[derive(Clone, Copy, Debug)]
pub struct Replacement {
    /// Its name.
    pub name: &'static str,
    /// One line of explanation.
    pub help: &'static str,
    build: fn(&Setup) -> Box<dyn Lookup<u64>>,
}

macro_rules! replacements {
    ($($name:literal, $policy:ty, $help:literal;)*) => {
        /// Every policy that a memory cache can have. They are those of [`crate::policy`].
        pub const REPLACEMENTS: &[Replacement] = &[$(Replacement {
            name: $name,
            help: $help,
            build: |setup| Box::new(Cache::<u64, $policy, 1, 0>::new(setup)),
        }),*];
    };
}

replacements! {
    "lru", policy::Lru, "least recently used";
    "fifo", policy::Fifo, "first in, first out";
    "plru", policy::TreePlru, "pseudo-LRU: a binary tree of bits";
    "random", policy::Random, "any line of the set";
    "clock", policy::SecondChance, "first in, first out, with a second chance";
    "drrip", policy::Drrip, "2-bit re-reference prediction, two ways of entry in a duel";
}

impl Replacement {
    /// The policy of a name.
    pub fn find(name: &str) -> Option<&'static Self> {
        REPLACEMENTS.iter().find(|known| known.name == name)
    }

    /// All names, in words.
    pub fn names() -> String {
        let names: Vec<_> = REPLACEMENTS.iter().map(|known| known.name).collect();
        names.join(", ")
    }
}

/// One set-associative cache of memory lines under any policy. Chance is drawn from the seed 1.
pub struct PolicyLevel {
    cache: Box<dyn Lookup<u64>>,
    shift: u32,
    sets: u32,
}

impl core::fmt::Debug for PolicyLevel {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "PolicyLevel({:?})", self.cache.geometry())
    }
}

const SEED: u64 = 1;

impl PolicyLevel {
    /// An empty cache.
    ///
    /// # Errors
    /// The number of ways is no power of two, or above 16.
    pub fn new(geometry: Geometry, replacement: &Replacement) -> Result<Self, GeometryError> {
        let (line, ways) = (geometry.line_bytes(), geometry.ways());
        let setup = Setup {
            geometry: geometry::Geometry::new(geometry.capacity_bytes(), line, 1, ways)?,
            parameters: Parameters::default(),
            seed: SEED,
        };
        Ok(Self {
            cache: (replacement.build)(&setup),
            shift: line.ilog2(),
            sets: geometry.sets(),
        })
    }

    /// Accesses `size` bytes at `address`: each line in turn. True if any was absent. Bytes past
    /// the end of the address space are ignored.
    #[inline]
    pub fn misses(&mut self, address: u64, size: u32) -> bool {
        let size = u64::from(size.clamp(1, ACCESS_MAX));
        let last = address.saturating_add(size - 1) >> self.shift;
        let mut absent = false;
        for line in address >> self.shift..=last {
            absent |= self.touch(line);
        }
        absent
    }

    #[inline]
    fn touch(&mut self, line: u64) -> bool {
        let place = self.place(line);
        if self.cache.lookup(line, &place, 0, 0).is_some() {
            return false;
        }
        self.cache.fill(line, &place, 0, 0);
        true
    }

    fn place(&self, line: u64) -> Place {
        let set = (line & u64::from(self.sets - 1)) as u32;
        Place {
            first: [set, 0, 0, 0],
            ..Place::default()
        }
    }

    /// Empties all lines. What the policy has learned apart from them stays: bits of trees, the
    /// counter of a duel, the state of chance.
    pub fn flush(&mut self) {
        for number in 0..self.cache.geometry().lines() {
            if let Some(line) = self.cache.tag(number) {
                let place = self.place(line);
                self.cache.remove(line, &place);
            }
        }
    }
}
