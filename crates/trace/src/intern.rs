//! Dense numbers for keys, in the order in which keys are first seen.
//!
//! Open addressing with linear probing and one multiplication: the inner loop of every reader. A
//! fixed seed, so that a trace has the same numbers in every run.

use crate::hash::{fold, hash64};

const EMPTY: u32 = u32::MAX;
const LINES_MIN: usize = 1 << 10;
const SEED: u64 = 0x5851_F42D_4C95_7F2D;
const FACTOR: u64 = 0xD134_2543_DE82_EF95;

/// Numbers for 64-bit keys.
#[derive(Clone, Debug)]
pub struct NumberTable {
    /// Key and number; `EMPTY` where there is none.
    lines: Vec<(u64, u32)>,
    len: usize,
}

impl Default for NumberTable {
    fn default() -> Self {
        Self {
            lines: vec![(0, EMPTY); LINES_MIN],
            len: 0,
        }
    }
}

#[inline]
fn spread(key: u64) -> usize {
    fold(key ^ SEED, FACTOR) as usize
}

impl NumberTable {
    /// The number of `key`; `next` becomes its number when it has none. The second part is true
    /// then. `next` must be below 2³² − 1.
    #[inline]
    pub fn number(&mut self, key: u64, next: u32) -> (u32, bool) {
        let mask = self.lines.len() - 1;
        let mut at = spread(key) & mask;
        loop {
            let (there, number) = self.lines[at];
            if number == EMPTY {
                break;
            }
            if there == key {
                return (number, false);
            }
            at = (at + 1) & mask;
        }
        debug_assert!(next != EMPTY);
        self.lines[at] = (key, next);
        self.len += 1;
        if self.len * 8 > self.lines.len() * 5 {
            self.grow();
        }
        (next, true)
    }

    /// Looks where these keys lie, so that what follows finds those lines in the processor's
    /// cache: a large table is slow because one miss waits for the other.
    #[inline]
    pub(crate) fn touch(&self, keys: impl Iterator<Item = u64>) {
        let mask = self.lines.len() - 1;
        let sum = keys.fold(0, |sum, key| sum ^ self.lines[spread(key) & mask].1);
        std::hint::black_box(sum);
    }

    /// Keys in the table.
    pub fn len(&self) -> usize {
        self.len
    }

    /// True when no key was seen.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    #[cold]
    fn grow(&mut self) {
        let lines = vec![(0, EMPTY); self.lines.len() * 2];
        let old = std::mem::replace(&mut self.lines, lines);
        let mask = self.lines.len() - 1;
        for (key, number) in old.into_iter().filter(|(_, number)| *number != EMPTY) {
            let mut at = spread(key) & mask;
            while self.lines[at].1 != EMPTY {
                at = (at + 1) & mask;
            }
            self.lines[at] = (key, number);
        }
    }
}

/// Numbers for byte strings.
#[derive(Clone, Debug, Default)]
pub struct NameTable {
    /// By hash: the index of the first name with it.
    by_hash: NumberTable,
    /// All names, one behind the other.
    text: Vec<u8>,
    names: Vec<Name>,
}

#[derive(Clone, Copy, Debug)]
struct Name {
    at: usize,
    len: u32,
    number: u32,
    /// The next name with the same hash.
    other: u32,
}

impl NameTable {
    /// The number of `name`; `next` becomes its number when it has none. The second part is true
    /// then. `next` must be below 2³² − 1.
    #[inline]
    pub fn number(&mut self, name: &[u8], next: u32) -> (u32, bool) {
        let index = self.names.len() as u32;
        let (mut found, fresh) = self.by_hash.number(hash64(name), index);
        if !fresh {
            loop {
                let entry = self.names[found as usize];
                if self.text_of(entry) == name {
                    return (entry.number, false);
                }
                if entry.other == EMPTY {
                    self.names[found as usize].other = index;
                    break;
                }
                found = entry.other;
            }
        }
        self.names.push(Name {
            at: self.text.len(),
            len: name.len() as u32,
            number: next,
            other: EMPTY,
        });
        self.text.extend_from_slice(name);
        (next, true)
    }

    #[inline]
    fn text_of(&self, name: Name) -> &[u8] {
        &self.text[name.at..name.at + name.len as usize]
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use fairlead_base::Rng;

    use super::*;

    #[test]
    fn numbers_are_those_of_a_map() {
        let mut rng = Rng::new(1);
        let mut model = BTreeMap::new();
        let mut table = NumberTable::default();
        assert!(table.is_empty());
        for _ in 0..50_000 {
            let key = u64::from(rng.below(20_000)) << (rng.below(3) * 16);
            let next = model.len() as u32;
            let fresh = !model.contains_key(&key);
            let expected = *model.entry(key).or_insert(next);
            assert_eq!(table.number(key, next), (expected, fresh));
        }
        assert_eq!(table.len(), model.len());
    }

    #[test]
    fn names_are_told_apart() {
        let mut rng = Rng::new(2);
        let mut model = BTreeMap::new();
        let mut table = NameTable::default();
        for _ in 0..50_000 {
            let name = format!("h{}", rng.below(9_000)).into_bytes();
            let next = model.len() as u32;
            let fresh = !model.contains_key(&name);
            let expected = *model.entry(name.clone()).or_insert(next);
            assert_eq!(table.number(&name, next), (expected, fresh));
        }
    }
}
