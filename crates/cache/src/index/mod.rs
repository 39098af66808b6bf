//! Index functions: from the bits of a key to a set in every bank. One file each.

mod crc;
mod displacement;
mod linear;
mod modulo;
mod prime;
mod universal;
mod xor;

pub use crc::Crc;
pub use displacement::Displacement;
pub use modulo::Modulo;
pub use prime::PrimeModulo;
pub use universal::Universal;
pub use xor::Xor;

use fairlead_base::Endpoint;

use crate::geometry::{BANKS_MAX, Geometry};
use crate::key::{Bits, Mask};
use crate::place::{Place, Places};

/// Functions of one family: a first and a second for each bank (paper: hash1 to hash4).
pub const FUNCTIONS: usize = 2 * BANKS_MAX;

/// A family of index functions.
pub trait Index: Send + Sync {
    /// The sets of a key, each below the number of sets of a bank: by the first functions of banks
    /// 0 to 3, then by the second ones.
    fn sets(&self, bits: &Bits) -> [u32; FUNCTIONS];

    /// True when fewer sets are the low bits of more: then places for many serve for few
    /// ([`Places::narrowed`]).
    fn nests(&self) -> bool {
        false
    }

    /// True when the sets of a key are those of a key of its length without ones, XOR what each of
    /// its ones adds: then many keys are looked up byte by byte.
    fn is_linear(&self) -> bool {
        false
    }
}

/// One line of the registry.
pub struct IndexEntry {
    /// Its name.
    pub name: &'static str,
    /// One line of explanation.
    pub help: &'static str,
    /// For a number of sets (a power of two) and a seed.
    pub build: fn(sets: u32, seed: u64) -> Box<dyn Index>,
}

/// Every index family.
pub const INDEXES: &[IndexEntry] = &[
    IndexEntry {
        name: "mod",
        help: "the lowest bits of the key; the same in all banks",
        build: |sets, _| Box::new(Modulo::new(sets)),
    },
    IndexEntry {
        name: "xor",
        help: "the key folded by XOR into index bits, each bank turning the folds differently",
        build: |sets, _| Box::new(Xor::new(sets)),
    },
    IndexEntry {
        name: "pmod",
        help: "the key modulo the largest prime up to the number of sets; same in all banks",
        build: |sets, _| Box::new(PrimeModulo::new(sets)),
    },
    IndexEntry {
        name: "pdisp",
        help: "low bits displaced by the rest of the key times a prime, another prime in each bank",
        build: |sets, _| Box::new(Displacement::new(sets)),
    },
    IndexEntry {
        name: "crc",
        help: "CRC-32C of the key, each bank 4 bits further on (above 16 sets some are shared)",
        build: |sets, _| Box::new(Crc::new(sets)),
    },
    IndexEntry {
        name: "h3",
        help: "universal: each index bit the parity of the key under a mask drawn from the seed",
        build: |sets, seed| Box::new(Universal::new(sets, seed)),
    },
];

/// The entry of a name; `universal` is another name of `h3`.
pub fn entry(name: &str) -> Option<&'static IndexEntry> {
    let name = if name == "universal" { "h3" } else { name };
    INDEXES.iter().find(|entry| entry.name == name)
}

/// Maps session identifiers to places: a mask followed by a family of functions.
pub struct Indexer {
    family: Box<dyn Index>,
    mask: Mask,
    banks: u32,
    sets: u32,
}

impl core::fmt::Debug for Indexer {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let Self {
            mask, banks, sets, ..
        } = self;
        write!(f, "Indexer(bits {mask}, {banks} banks of {sets} sets)")
    }
}

impl Indexer {
    /// A family of the registry for a geometry.
    pub fn new(entry: &IndexEntry, mask: Mask, geometry: &Geometry, seed: u64) -> Self {
        Self {
            family: (entry.build)(geometry.sets(), seed),
            mask,
            banks: geometry.banks(),
            sets: geometry.sets(),
        }
    }

    /// The place of one session identifier.
    #[inline]
    pub fn place(&self, key: &Endpoint) -> Place {
        let sets = self.family.sets(&self.mask.select(key));
        let banks = (self.banks as usize).min(BANKS_MAX);
        let mut place = Place::default();
        place.first[..banks].copy_from_slice(&sets[..banks]);
        place.second[..banks].copy_from_slice(&sets[BANKS_MAX..BANKS_MAX + banks]);
        place
    }

    /// True when its places, narrowed, are those that the same family has for fewer banks and
    /// sets.
    pub fn nests(&self) -> bool {
        self.family.nests()
    }

    /// The places of all session identifiers, by their dense numbers.
    pub fn places(&self, keys: &[Endpoint]) -> Places {
        self.added(Places::new(self.banks, self.sets, keys.len()), keys)
    }

    /// As `places`, without second sets: for policies that do not move lines.
    pub fn first_places(&self, keys: &[Endpoint]) -> Places {
        self.added(Places::first_only(self.banks, self.sets, keys.len()), keys)
    }

    fn added(&self, mut places: Places, keys: &[Endpoint]) -> Places {
        if self.family.is_linear() && keys.len() >= linear::WORTHWHILE {
            linear::add(self, &mut places, keys);
            return places;
        }
        for key in keys {
            places.push(&self.place(key));
        }
        places
    }
}

#[cfg(test)]
mod tests {
    use fairlead_base::{Address, Rng};

    use super::*;

    #[test]
    fn many_keys_have_the_places_of_each() {
        let mut rng = Rng::new(6);
        let mut address = || match rng.below(8) {
            0 => Address::v6(core::array::from_fn(|_| rng.next_u64() as u8)),
            _ => Address::v4((rng.next_u64() as u32).to_be_bytes()),
        };
        let addresses: Vec<Address> = (0..5000).map(|_| address()).collect();
        let key = |addr: &Address| Endpoint {
            addr: *addr,
            port: rng.next_u64() as u16,
        };
        let keys: Vec<Endpoint> = addresses.iter().map(key).collect();
        let mut linear = Vec::new();
        for entry in INDEXES {
            for (banks, sets) in [(1, 64u32), (2, 64), (2, 1 << 10), (4, 1 << 8), (4, 1 << 17)] {
                let lines = u64::from(banks) * u64::from(sets);
                let geometry = Geometry::new(lines, 1, banks, 1).unwrap();
                for mask in [Mask::ALL, Mask::PAPER, "f0000001:8001".parse().unwrap()] {
                    let indexer = Indexer::new(entry, mask, &geometry, 3);
                    let (all, first) = (indexer.places(&keys), indexer.first_places(&keys));
                    assert_eq!((all.len(), first.len()), (keys.len(), keys.len()));
                    for (number, key) in keys.iter().enumerate() {
                        let place = indexer.place(key);
                        assert_eq!(all.at(number), Some(place), "{}", entry.name);
                        assert_eq!(first.at(number).unwrap().first, place.first);
                    }
                    if indexer.family.is_linear() && !linear.contains(&entry.name) {
                        linear.push(entry.name);
                    }
                }
            }
        }
        assert_eq!(linear, ["mod", "xor", "crc", "h3"]);
    }

    #[test]
    fn places_of_those_that_nest_serve_for_smaller_caches() {
        let mut rng = Rng::new(5);
        let keys: Vec<Endpoint> = (0..300)
            .map(|_| Endpoint {
                addr: Address::v4((rng.next_u64() as u32).to_be_bytes()),
                port: rng.next_u64() as u16,
            })
            .collect();
        let geometry = |banks, sets: u32| {
            Geometry::new(u64::from(banks) * u64::from(sets), 1, banks, 1).unwrap()
        };
        let mut nesting = Vec::new();
        for entry in INDEXES {
            let places = |banks, sets| {
                let geometry = geometry(banks, sets);
                Indexer::new(entry, Mask::ALL, &geometry, 9).places(&keys)
            };
            let wide = places(4, 1 << 17);
            if !Indexer::new(entry, Mask::ALL, &geometry(1, 1), 9).nests() {
                continue;
            }
            nesting.push(entry.name);
            for (banks, sets) in [(1, 1), (1, 64), (2, 256), (2, 1 << 12), (4, 1 << 17)] {
                let narrowed = wide.narrowed(banks, sets, true).unwrap();
                let own = places(banks, sets);
                assert_eq!((narrowed.banks(), narrowed.sets()), (banks, sets));
                assert_eq!(narrowed.len(), own.len());
                for number in 0..keys.len() {
                    assert_eq!(narrowed.at(number), own.at(number), "{}", entry.name);
                }
            }
        }
        assert_eq!(nesting, ["mod", "crc", "h3"]);
    }
}
