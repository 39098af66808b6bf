//! Where a session identifier may stand.

use crate::geometry::BANKS_MAX;

/// The sets in which a session identifier may stand: one by the first function and one by the
/// second in each bank (paper: hash1 and hash2, hash3 and hash4). Entries of banks that the cache
/// does not have are ignored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct Place {
    /// Set number inside bank *b*, by its first function.
    pub first: [u32; BANKS_MAX],
    /// Set number inside bank *b*, by its second function.
    pub second: [u32; BANKS_MAX],
}

/// The places of many session identifiers, by dense number; 8 or 16 bits a set where they suffice,
/// for it is the reading of these that a simulation waits for.
#[derive(Clone, Debug)]
pub struct Places {
    banks: u32,
    sets: u32,
    rows: Rows,
    count: usize,
}

/// First sets of all banks, then the second ones, row after row.
#[derive(Clone, Debug)]
enum Rows {
    Bytes { first: Vec<u8>, second: Vec<u8> },
    Narrow { first: Vec<u16>, second: Vec<u16> },
    Wide { first: Vec<u32>, second: Vec<u32> },
}

/// The sets of one access in all banks of a cache, numbered through all banks.
pub(crate) type Sets<const B: usize> = [u32; B];

impl Places {
    /// None yet, for a cache of `banks` with `sets` each; room for `capacity` places.
    pub fn new(banks: u32, sets: u32, capacity: usize) -> Self {
        let cells = capacity.saturating_mul(banks as usize);
        let rows = if sets <= 1 << 8 {
            Rows::Bytes {
                first: Vec::with_capacity(cells),
                second: Vec::with_capacity(cells),
            }
        } else if sets <= 1 << 16 {
            Rows::Narrow {
                first: Vec::with_capacity(cells),
                second: Vec::with_capacity(cells),
            }
        } else {
            Rows::Wide {
                first: Vec::with_capacity(cells),
                second: Vec::with_capacity(cells),
            }
        };
        Self {
            banks: banks.min(BANKS_MAX as u32),
            sets,
            rows,
            count: 0,
        }
    }

    /// Adds the place of the next number. Sets past the end are taken modulo the number of sets.
    pub fn push(&mut self, place: &Place) {
        let banks = self.banks as usize;
        let sets = self.sets.max(1);
        for (by_first, by_second) in place.first.iter().zip(&place.second).take(banks) {
            let (a, b) = (by_first % sets, by_second % sets);
            match &mut self.rows {
                Rows::Bytes { first, second } => {
                    first.push(a as u8);
                    second.push(b as u8);
                }
                Rows::Narrow { first, second } => {
                    first.push(a as u16);
                    second.push(b as u16);
                }
                Rows::Wide { first, second } => {
                    first.push(a);
                    second.push(b);
                }
            }
        }
        self.count += 1;
    }

    /// The same places for fewer banks, the first ones, and fewer sets, by the low bits; `None` for
    /// more of either than there are. Right where the index nests ([`crate::Indexer::nests`]).
    pub fn narrowed(&self, banks: u32, sets: u32) -> Option<Self> {
        if banks > self.banks || sets > self.sets {
            return None;
        }
        let (from, banks, mask) = (self.banks as usize, banks as usize, sets.saturating_sub(1));
        let (first, second) = match &self.rows {
            Rows::Bytes { first, second } => (
                narrowed(first, from, banks, mask),
                narrowed(second, from, banks, mask),
            ),
            Rows::Narrow { first, second } => (
                narrowed(first, from, banks, mask),
                narrowed(second, from, banks, mask),
            ),
            Rows::Wide { first, second } => (
                narrowed(first, from, banks, mask),
                narrowed(second, from, banks, mask),
            ),
        };
        let bytes = |cells: Vec<u32>| cells.iter().map(|cell| *cell as u8).collect();
        let narrow = |cells: Vec<u32>| cells.iter().map(|cell| *cell as u16).collect();
        let rows = match Self::new(0, sets, 0).rows {
            Rows::Bytes { .. } => Rows::Bytes {
                first: bytes(first),
                second: bytes(second),
            },
            Rows::Narrow { .. } => Rows::Narrow {
                first: narrow(first),
                second: narrow(second),
            },
            Rows::Wide { .. } => Rows::Wide { first, second },
        };
        Some(Self {
            banks: banks as u32,
            sets,
            rows,
            count: self.count,
        })
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.count
    }

    /// True when there are none.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Banks of the caches that these are for.
    pub fn banks(&self) -> u32 {
        self.banks
    }

    /// Sets of each bank.
    pub fn sets(&self) -> u32 {
        self.sets
    }

    /// The place of one number; `None` past the end.
    pub fn at(&self, number: usize) -> Option<Place> {
        if number >= self.count {
            return None;
        }
        let banks = self.banks as usize;
        let mut place = Place::default();
        for bank in 0..banks {
            let cell = number * banks + bank;
            (place.first[bank], place.second[bank]) = match &self.rows {
                Rows::Bytes { first, second } => (first[cell].into(), second[cell].into()),
                Rows::Narrow { first, second } => (first[cell].into(), second[cell].into()),
                Rows::Wide { first, second } => (first[cell], second[cell]),
            };
        }
        Some(place)
    }

    /// Writes the first sets of `ids`, those of all banks after each other, numbered through all
    /// banks. Ids must be below `len`.
    pub(crate) fn gather_first(&self, ids: &[u32], out: &mut [u32]) {
        match &self.rows {
            Rows::Bytes { first, .. } => self.gather(first, ids, out),
            Rows::Narrow { first, .. } => self.gather(first, ids, out),
            Rows::Wide { first, .. } => self.gather(first, ids, out),
        }
    }

    /// As `gather_first`, the second sets.
    pub(crate) fn gather_second(&self, ids: &[u32], out: &mut [u32]) {
        match &self.rows {
            Rows::Bytes { second, .. } => self.gather(second, ids, out),
            Rows::Narrow { second, .. } => self.gather(second, ids, out),
            Rows::Wide { second, .. } => self.gather(second, ids, out),
        }
    }

    fn gather<N: Copy + Into<u32>>(&self, cells: &[N], ids: &[u32], out: &mut [u32]) {
        match self.banks {
            1 => gather::<N, 1>(cells, self.sets, ids, out),
            2 => gather::<N, 2>(cells, self.sets, ids, out),
            _ => gather::<N, 4>(cells, self.sets, ids, out),
        }
    }
}

fn gather<N: Copy + Into<u32>, const B: usize>(
    cells: &[N],
    sets: u32,
    ids: &[u32],
    out: &mut [u32],
) {
    let (rows, _) = cells.as_chunks::<B>();
    let (out, _) = out.as_chunks_mut::<B>();
    for (id, out) in ids.iter().zip(out) {
        let row = rows[*id as usize];
        for bank in 0..B {
            out[bank] = bank as u32 * sets + row[bank].into();
        }
    }
}

/// The first `banks` cells of each row of `from`, their low bits.
fn narrowed<N: Copy + Into<u32>>(cells: &[N], from: usize, banks: usize, mask: u32) -> Vec<u32> {
    let rows = cells.chunks_exact(from.max(1));
    let kept = rows.flat_map(|row| &row[..banks]);
    kept.map(|cell| (*cell).into() & mask).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn narrow_and_wide_rows_say_the_same() {
        let place = Place {
            first: [3, 5, 0, 0],
            second: [7, 1, 0, 0],
        };
        for sets in [64, 1 << 12, 1 << 17] {
            let mut places = Places::new(2, sets, 1);
            places.push(&Place::default());
            places.push(&place);
            assert_eq!(places.at(1), Some(place));
            assert_eq!(places.at(2), None);
            let mut out = [0; 4];
            places.gather_first(&[1, 0], &mut out);
            assert_eq!(out, [3, sets + 5, 0, sets]);
            places.gather_second(&[1, 0], &mut out);
            assert_eq!(out, [7, sets + 1, 0, sets]);
        }
    }
}
