//! Locations of a session identifier.

use fearless_simd::Simd;

use crate::geometry::BANKS_MAX;
use crate::vector::{Kernel, on_vectors};

/// The sets that a session identifier can be in: one by the first function and one by the second in
/// each bank (paper: hash1 and hash2, hash3 and hash4). Entries of missing banks are ignored.
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
    second: bool,
    rows: Rows,
    count: usize,
}

/// Row after row: the first sets of all banks, then the second ones where these are kept, so that
/// one place is read in one piece.
#[derive(Clone, Debug)]
enum Rows {
    Bytes(Vec<u8>),
    Narrow(Vec<u16>),
    Wide(Vec<u32>),
}

/// The sets of one access in all banks of a cache, numbered through all banks.
pub(crate) type Sets<const B: usize> = [u32; B];

impl Places {
    /// None yet, for a cache of `banks` with `sets` each; room for `capacity` places.
    pub fn new(banks: u32, sets: u32, capacity: usize) -> Self {
        Self::with(banks, sets, true, capacity)
    }

    /// As `new`, but that second sets are not kept: for policies that do not move lines.
    pub fn first_only(banks: u32, sets: u32, capacity: usize) -> Self {
        Self::with(banks, sets, false, capacity)
    }

    fn with(banks: u32, sets: u32, second: bool, capacity: usize) -> Self {
        let banks = banks.min(BANKS_MAX as u32);
        let row = banks as usize * if second { 2 } else { 1 };
        let cells = capacity.saturating_mul(row);
        let rows = if sets <= 1 << 8 {
            Rows::Bytes(Vec::with_capacity(cells))
        } else if sets <= 1 << 16 {
            Rows::Narrow(Vec::with_capacity(cells))
        } else {
            Rows::Wide(Vec::with_capacity(cells))
        };
        Self {
            banks,
            sets,
            second,
            rows,
            count: 0,
        }
    }

    /// Adds the place of the next number. Sets past the end are taken modulo the number of sets.
    pub fn push(&mut self, place: &Place) {
        let (banks, sets) = (self.banks as usize, self.sets.max(1));
        // Division takes longer than everything else and is rarely needed.
        let within = |set: u32| if set < sets { set } else { set % sets };
        let second = if self.second { banks } else { 0 };
        let first = place.first[..banks].iter();
        let cells = first.chain(&place.second[..second]).map(|set| within(*set));
        match &mut self.rows {
            Rows::Bytes(rows) => rows.extend(cells.map(|cell| cell as u8)),
            Rows::Narrow(rows) => rows.extend(cells.map(|cell| cell as u16)),
            Rows::Wide(rows) => rows.extend(cells),
        }
        self.count += 1;
    }

    /// Adds the places of the next numbers. Their sets, all below the number of sets, are the first
    /// of each of these, in the order of a row.
    pub(crate) fn push_rows<const N: usize>(&mut self, cells: &[[u32; N]]) {
        let row = self.row();
        match &mut self.rows {
            Rows::Bytes(rows) => push_rows(rows, row, cells, |cell| cell as u8),
            Rows::Narrow(rows) => push_rows(rows, row, cells, |cell| cell as u16),
            Rows::Wide(rows) => push_rows(rows, row, cells, |cell| cell),
        }
        self.count += cells.len();
    }

    /// The same places for fewer banks, the first ones, and fewer sets, by the low bits, without
    /// the second ones where `second` is false; `None` for more of any of these than there are.
    /// Right where the index nests ([`crate::Indexer::nests`]).
    pub fn narrowed(&self, banks: u32, sets: u32, second: bool) -> Option<Self> {
        if banks > self.banks || sets > self.sets || second && !self.second {
            return None;
        }
        let mut narrowed = Self::with(banks, sets, second, self.count);
        match &self.rows {
            Rows::Bytes(rows) => self.narrow(rows, &mut narrowed),
            Rows::Narrow(rows) => self.narrow(rows, &mut narrowed),
            Rows::Wide(rows) => self.narrow(rows, &mut narrowed),
        }
        narrowed.count = self.count;
        Some(narrowed)
    }

    fn narrow<N: Copy + Into<u32>>(&self, cells: &[N], to: &mut Self) {
        let (from, banks) = (self.banks as usize, to.banks as usize);
        let mask = to.sets.saturating_sub(1);
        let second = if to.second { from..from + banks } else { 0..0 };
        let rows = cells.chunks_exact(self.row());
        let kept = rows.flat_map(|row| row[..banks].iter().chain(&row[second.clone()]));
        let kept = kept.map(|cell| (*cell).into() & mask);
        match &mut to.rows {
            Rows::Bytes(rows) => rows.extend(kept.map(|cell| cell as u8)),
            Rows::Narrow(rows) => rows.extend(kept.map(|cell| cell as u16)),
            Rows::Wide(rows) => rows.extend(kept),
        }
    }

    /// Cells of a row.
    pub(crate) fn row(&self) -> usize {
        self.banks.max(1) as usize * if self.second { 2 } else { 1 }
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.count
    }

    /// True if there are none.
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

    /// Whether second sets are kept.
    pub fn has_second(&self) -> bool {
        self.second
    }

    /// The place of one number; `None` past the end. Second sets that are not kept are 0.
    pub fn at(&self, number: usize) -> Option<Place> {
        if number >= self.count {
            return None;
        }
        let (banks, from) = (self.banks as usize, number * self.row());
        let cell = |at: usize| match &self.rows {
            Rows::Bytes(rows) => rows[at].into(),
            Rows::Narrow(rows) => rows[at].into(),
            Rows::Wide(rows) => rows[at],
        };
        let mut place = Place::default();
        for bank in 0..banks {
            place.first[bank] = cell(from + bank);
            if self.second {
                place.second[bank] = cell(from + banks + bank);
            }
        }
        Some(place)
    }

    /// Writes the first sets of `ids`, those of all banks after each other, numbered through all
    /// banks, and the second ones unless `second` is empty. Ids must be below `len`.
    pub(crate) fn gather(&self, ids: &[u32], first: &mut [u32], second: &mut [u32]) {
        match &self.rows {
            Rows::Bytes(rows) => self.gather_from(rows, ids, first, second),
            Rows::Narrow(rows) => self.gather_from(rows, ids, first, second),
            Rows::Wide(rows) => self.gather_from(rows, ids, first, second),
        }
    }

    fn gather_from<N: Copy + Default + Into<u32>>(
        &self,
        cells: &[N],
        ids: &[u32],
        first: &mut [u32],
        second: &mut [u32],
    ) {
        match (self.banks, self.second) {
            (1, false) => gather::<N, 1, 1>(cells, self.sets, ids, first, second),
            (1, true) => gather::<N, 1, 2>(cells, self.sets, ids, first, second),
            (2, false) => gather::<N, 2, 2>(cells, self.sets, ids, first, second),
            (2, true) => gather::<N, 2, 4>(cells, self.sets, ids, first, second),
            (_, false) => gather::<N, 4, 4>(cells, self.sets, ids, first, second),
            (_, true) => gather::<N, 4, 8>(cells, self.sets, ids, first, second),
        }
    }
}

fn push_rows<T: Copy + Default, const N: usize>(
    rows: &mut Vec<T>,
    row: usize,
    cells: &[[u32; N]],
    narrow: impl Fn(u32) -> T,
) {
    let from = rows.len();
    rows.resize(from + cells.len() * row, T::default());
    let rows = &mut rows[from..];
    if row == N {
        for (to, cells) in rows.as_chunks_mut::<N>().0.iter_mut().zip(cells) {
            *to = cells.map(&narrow);
        }
        return;
    }
    for (to, cells) in rows.chunks_exact_mut(row).zip(cells) {
        for (to, cell) in to.iter_mut().zip(cells) {
            *to = narrow(*cell);
        }
    }
}

/// Rows read ahead.
const AHEAD: usize = 128;
/// Cells that are numbered at once.
const CELLS: usize = 8;

/// For `B` banks and rows of `R` cells.
fn gather<N: Copy + Default + Into<u32>, const B: usize, const R: usize>(
    cells: &[N],
    sets: u32,
    ids: &[u32],
    first: &mut [u32],
    second: &mut [u32],
) {
    on_vectors(Gather::<N, B, R> {
        rows: cells.as_chunks().0,
        sets,
        ids,
        first: first.as_chunks_mut().0,
        second: second.as_chunks_mut().0,
    });
}

/// Rows are rarely in the L1 or L2 cache. Reading them back to back lets the loads overlap.
struct Gather<'a, N, const B: usize, const R: usize> {
    rows: &'a [[N; R]],
    sets: u32,
    ids: &'a [u32],
    first: &'a mut [[u32; B]],
    second: &'a mut [[u32; B]],
}

impl<N: Copy + Default + Into<u32>, const B: usize, const R: usize> Kernel for Gather<'_, N, B, R> {
    #[inline(always)]
    fn run<S: Simd>(self, _: S) {
        let Self {
            rows,
            sets,
            ids,
            first,
            second,
        } = self;
        let (mut firsts, mut seconds) = (first.chunks_mut(AHEAD), second.chunks_mut(AHEAD));
        let before: [u32; CELLS] = core::array::from_fn(|cell| (cell % R % B) as u32 * sets);
        let mut read = [[N::default(); R]; AHEAD];
        let mut numbered = [[0u32; R]; AHEAD];
        for ids in ids.chunks(AHEAD) {
            for (row, id) in read.iter_mut().zip(ids) {
                *row = rows[*id as usize];
            }
            let (read, _) = read.as_flattened().as_chunks::<CELLS>();
            let (sets, _) = numbered.as_flattened_mut().as_chunks_mut::<CELLS>();
            for (sets, read) in sets.iter_mut().zip(read) {
                *sets = core::array::from_fn(|cell| before[cell] + read[cell].into());
            }
            for (first, sets) in firsts.next().unwrap_or_default().iter_mut().zip(&numbered) {
                first.copy_from_slice(&sets[..B]);
            }
            for (second, sets) in seconds.next().unwrap_or_default().iter_mut().zip(&numbered) {
                second.copy_from_slice(&sets[R - B..]);
            }
        }
    }
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
            places.gather(&[1, 0], &mut out, &mut []);
            assert_eq!(out, [3, sets + 5, 0, sets]);
            let mut second = [0; 4];
            places.gather(&[0, 1], &mut out, &mut second);
            assert_eq!(out, [0, sets, 3, sets + 5]);
            assert_eq!(second, [0, sets, 7, sets + 1]);
        }
    }

    #[test]
    fn first_sets_alone_are_those_of_whole_places() {
        let place = |number: u32| Place {
            first: [number, number + 1, 0, 0],
            second: [number + 2, number + 3, 0, 0],
        };
        let mut whole = Places::new(2, 64, 3);
        let mut first = Places::first_only(2, 64, 3);
        for number in [70, 5, 9] {
            whole.push(&place(number));
            first.push(&place(number));
        }
        assert!(whole.has_second() && !first.has_second());
        assert!(first.narrowed(2, 64, true).is_none());
        let narrowed = whole.narrowed(2, 64, false).unwrap();
        for number in 0..3 {
            let at = whole.at(number).unwrap();
            assert_eq!(first.at(number).unwrap().first, at.first);
            assert_eq!(narrowed.at(number), first.at(number));
        }
        assert_eq!(whole.at(0).unwrap().second, [8, 9, 0, 0]);
        let (mut of_whole, mut of_first) = ([0; 6], [0; 6]);
        whole.gather(&[2, 0, 1], &mut of_whole, &mut []);
        first.gather(&[2, 0, 1], &mut of_first, &mut []);
        assert_eq!(of_whole, of_first);
    }
}
