//! Dense numbers for keys, in the order in which keys are first seen.
//!
//! Open addressing with linear probing and one multiplication: the inner loop of every reader. A
//! line has the key and its number side by side, so that a look-up is one miss of the processor's
//! cache. A fixed seed, so that a trace has the same numbers in every run.

use crate::hash::{fold, hash64};

const EMPTY: u32 = u32::MAX;
const LINES_MIN: usize = 1 << 10;
const SEED: u64 = 0x5851_F42D_4C95_7F2D;
const FACTOR: u64 = 0xD134_2543_DE82_EF95;

/// Numbers for 64-bit keys.
#[derive(Clone, Debug)]
pub struct NumberTable {
    lines: Vec<Line>,
    len: usize,
}

#[derive(Clone, Copy, Debug)]
struct Line {
    key: u64,
    /// `EMPTY` for no key.
    number: u32,
}

const NOBODY: Line = Line {
    key: 0,
    number: EMPTY,
};

impl Default for NumberTable {
    fn default() -> Self {
        Self {
            lines: vec![NOBODY; LINES_MIN],
            len: 0,
        }
    }
}

/// Number of keys looked up together.
const AHEAD: usize = 256;
/// Bits of a word.
const WORD: usize = 64;

#[inline]
fn spread(key: u64) -> u64 {
    fold(key ^ SEED, FACTOR)
}

impl NumberTable {
    /// The number of `key`; `next` becomes its number when it has none. The second part is true
    /// then. `next` must be below 2³² − 1, and no other key's number.
    #[inline]
    pub fn number(&mut self, key: u64, next: u32) -> (u32, bool) {
        match self.find(key) {
            Ok(number) => (number, false),
            Err(at) => {
                self.add(at, key, next);
                (next, true)
            }
        }
    }

    /// The number of a key, or its free line.
    #[inline]
    fn find(&self, key: u64) -> Result<u32, usize> {
        let mask = self.lines.len() - 1;
        let mut at = spread(key) as usize & mask;
        loop {
            let line = self.lines[at];
            if line.number == EMPTY {
                return Err(at);
            }
            if line.key == key {
                return Ok(line.number);
            }
            at = (at + 1) & mask;
        }
    }

    /// The numbers of many keys. `fresh` is called for each new one and returns its number, or
    /// `None` to stop. Returns how many are in `numbers`. In a large table, lookups are dominated
    /// by dependent cache misses; here `AHEAD` of them overlap.
    #[inline]
    pub(crate) fn numbers(
        &mut self,
        keys: &[u64],
        numbers: &mut [u32],
        mut fresh: impl FnMut(u64) -> Option<u32>,
    ) -> usize {
        for (round, keys) in keys.chunks(AHEAD).enumerate() {
            let from = round * AHEAD;
            let numbers = &mut numbers[from..from + keys.len()];
            let others = self.look(keys, numbers);
            for (word, mut others) in others.into_iter().enumerate() {
                while others != 0 {
                    let at = word * WORD + others.trailing_zeros() as usize;
                    others &= others - 1;
                    numbers[at] = match self.find(keys[at]) {
                        Ok(number) => number,
                        Err(line) => {
                            let Some(next) = fresh(keys[at]) else {
                                return from + at;
                            };
                            self.add(line, keys[at], next);
                            next
                        }
                    };
                }
            }
        }
        keys.len()
    }

    /// Reads the first line of each key, at most `AHEAD`. Returns a bit mask of the keys not found
    /// there; the numbers of the others are valid. All lines are read before any is examined, so
    /// that the loads overlap.
    #[inline]
    fn look(&self, keys: &[u64], numbers: &mut [u32]) -> [u64; AHEAD / WORD] {
        let mask = self.lines.len() - 1;
        let mut places = [0; AHEAD];
        for (place, key) in places.iter_mut().zip(keys) {
            *place = spread(*key) as usize & mask;
        }
        let mut lines = [NOBODY; AHEAD];
        for (line, place) in lines.iter_mut().zip(&places[..keys.len()]) {
            *line = self.lines[*place];
        }
        let mut others = [0; AHEAD / WORD];
        for (at, (number, (line, key))) in
            numbers.iter_mut().zip(lines.iter().zip(keys)).enumerate()
        {
            // No branches, which would be guessed wrong.
            *number = line.number;
            let other = (line.key != *key) | (line.number == EMPTY);
            others[at / WORD] |= u64::from(other) << (at % WORD);
        }
        others
    }

    fn add(&mut self, at: usize, key: u64, number: u32) {
        debug_assert!(number != EMPTY);
        self.lines[at] = Line { key, number };
        self.len += 1;
        if self.len * 8 > self.lines.len() * 5 {
            self.grow();
        }
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
        let lines = vec![NOBODY; self.lines.len() * 2];
        let old = std::mem::replace(&mut self.lines, lines);
        let mask = self.lines.len() - 1;
        for line in old.into_iter().filter(|line| line.number != EMPTY) {
            let mut at = spread(line.key) as usize & mask;
            while self.lines[at].number != EMPTY {
                at = (at + 1) & mask;
            }
            self.lines[at] = line;
        }
    }
}

/// Numbers for byte strings.
#[derive(Clone, Debug, Default)]
pub struct NameTable {
    /// By hash: the index of the first name with it.
    by_hash: NumberTable,
    /// All names, concatenated.
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
    fn batch_lookup_agrees_with_single_lookups() {
        let mut rng = Rng::new(3);
        let (mut single, mut many) = (NumberTable::default(), NumberTable::default());
        for round in 0..200u32 {
            let keys: Vec<u64> = (0..rng.below(700))
                .map(|_| u64::from(rng.below(40 * (round + 1))))
                .collect();
            let expected: Vec<u32> = keys
                .iter()
                .map(|key| single.number(*key, single.len() as u32).0)
                .collect();
            let mut numbers = vec![0; keys.len()];
            let mut next = many.len() as u32;
            let mut fresh = |_| {
                next += 1;
                Some(next - 1)
            };
            assert_eq!(many.numbers(&keys, &mut numbers, &mut fresh), keys.len());
            assert_eq!(numbers, expected);
        }
        assert!(many.len() > 2_000, "it has grown");
        let mut numbers = [0; 3];
        let known = 0;
        let full = many.numbers(&[known, u64::MAX, known], &mut numbers, |_| None);
        assert_eq!(full, 1, "it ends at the first that gets no number");
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
