//! From addresses to the numbers of lines that a [`super::FamilySet`] takes.

use std::collections::BTreeMap;

use super::ACCESS_MAX;

/// Addresses are numbered by regions of this size, so that a line number has 31 bits.
pub const REGION_BYTES: u64 = 1 << REGION_SHIFT;
const REGION_SHIFT: u32 = 22;
/// Most regions that a program may touch: 32 GiB in all.
pub const REGIONS_MAX: u32 = 1 << (31 + LINE_MIN_SHIFT - REGION_SHIFT);
const LINE_MIN_SHIFT: u32 = super::LINE_MIN.ilog2();
/// Marks a line that belongs to the same access as the one before.
pub(super) const JOINED: u32 = 1 << 31;

/// A program that touches more regions than [`REGIONS_MAX`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "address {address:#x}: memory is touched in more than {REGIONS_MAX} places, {} MiB each",
    REGION_BYTES >> 20
)]
pub struct TooScattered {
    /// The first address that has no number.
    pub address: u64,
}

/// Collects the lines of accesses. Repeated references to one line are only counted: they hit in
/// every cache and leave every LRU order as it is.
#[derive(Clone, Debug)]
pub struct Feed {
    shift: u32,
    numbers: BTreeMap<u64, u32>,
    /// Region numbers given since the caches were last emptied.
    given: u32,
    /// The region of the last access, and its number.
    near: (u64, u32),
    last: u32,
    lines: Vec<u32>,
    accesses: u64,
}

const NONE: u64 = u64::MAX;

impl Feed {
    /// For lines of this many bytes, a power of two from [`super::LINE_MIN`] to
    /// [`super::LINE_MAX`]; others are rounded into this range.
    pub fn new(line_bytes: u32) -> Self {
        let line = line_bytes.clamp(super::LINE_MIN, super::LINE_MAX);
        Self {
            shift: line.ilog2(),
            numbers: BTreeMap::new(),
            given: 0,
            near: (NONE, 0),
            last: JOINED,
            lines: Vec::new(),
            accesses: 0,
        }
    }

    /// Adds an access. Of several lines each is touched, and the access misses at most once.
    ///
    /// # Errors
    /// No number is left for its region.
    #[inline]
    pub fn push(&mut self, address: u64, size: u32) -> Result<(), TooScattered> {
        self.accesses += 1;
        let size = u64::from(size.clamp(1, ACCESS_MAX));
        let end = address.saturating_add(size - 1);
        let (first, last) = (address >> self.shift, end >> self.shift);
        let line = self.number(address)?;
        let repeated = line == self.last;
        if !repeated {
            self.lines.push(line);
        }
        self.last = line;
        if first != last {
            self.push_rest(first + 1, last, !repeated)?;
        }
        Ok(())
    }

    #[cold]
    fn push_rest(&mut self, first: u64, last: u64, mut joined: bool) -> Result<(), TooScattered> {
        for line in first..=last {
            let number = self.number(line << self.shift)?;
            let mark = if joined { JOINED } else { 0 };
            self.lines.push(number | mark);
            self.last = number;
            joined = true;
        }
        Ok(())
    }

    #[inline]
    fn number(&mut self, address: u64) -> Result<u32, TooScattered> {
        let region = address >> REGION_SHIFT;
        if region != self.near.0 {
            self.near = (region, self.region(region, address)?);
        }
        let within = (address & (REGION_BYTES - 1)) >> self.shift;
        Ok(self.near.1 << (REGION_SHIFT - self.shift) | within as u32)
    }

    fn region(&mut self, region: u64, address: u64) -> Result<u32, TooScattered> {
        if let Some(number) = self.numbers.get(&region) {
            return Ok(*number);
        }
        if self.given == REGIONS_MAX {
            return Err(TooScattered { address });
        }
        let number = self.given;
        self.given += 1;
        self.numbers.insert(region, number);
        Ok(number)
    }

    /// Lines that were not taken yet.
    pub fn waiting(&self) -> usize {
        self.lines.len()
    }

    /// Forgets all lines: what follows misses. True if the caches must be emptied, too. Usually
    /// they need not, since the same addresses get new numbers from now on, and an old line below
    /// all new ones changes no depth.
    #[must_use]
    pub(super) fn forget(&mut self) -> bool {
        debug_assert!(self.lines.is_empty(), "lines were taken");
        // Half of the numbers are always left for what follows.
        let must = self.given > REGIONS_MAX / 2;
        if must {
            self.given = 0;
        }
        self.numbers.clear();
        self.near = (NONE, 0);
        self.last = JOINED;
        must
    }

    /// The lines since the last call, for [`super::FamilySet`], and the number of accesses.
    pub(super) fn take(&mut self) -> (&mut Vec<u32>, u64) {
        let accesses = std::mem::take(&mut self.accesses);
        (&mut self.lines, accesses)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repeated_lines_are_dropped_and_straddlers_joined() {
        let mut feed = Feed::new(64);
        for (address, size) in [
            (0, 4),
            (4, 4),
            (60, 4),
            (60, 8),
            (64, 4),
            (128, 130),
            (0, 1),
        ] {
            feed.push(address, size).unwrap();
        }
        let (lines, accesses) = feed.take();
        assert_eq!(*lines, [0, 1, 2, 3 | JOINED, 4 | JOINED, 0]);
        assert_eq!(accesses, 7);
    }

    #[test]
    fn regions_are_numbered_and_run_out() {
        let mut feed = Feed::new(16);
        for region in 0..u64::from(REGIONS_MAX) {
            feed.push(region * 3 * REGION_BYTES + 16, 4).unwrap();
        }
        let full = feed.push(2 * REGION_BYTES, 4).unwrap_err();
        assert_eq!(full.address, 2 * REGION_BYTES);
        let (lines, _) = feed.take();
        assert!(lines.iter().all(|line| line & JOINED == 0));
        assert_eq!(lines.len(), REGIONS_MAX as usize);
        lines.clear();
        assert!(feed.forget());
        feed.push(2 * REGION_BYTES, 4).unwrap();
        assert_eq!(*feed.take().0, [0]);
    }

    #[test]
    fn an_access_over_a_region_has_lines_in_both() {
        let mut feed = Feed::new(64);
        feed.push(5 * REGION_BYTES, 4).unwrap();
        feed.push(5 * REGION_BYTES - 4, 8).unwrap();
        let per_region = (REGION_BYTES / 64) as u32;
        assert_eq!(*feed.take().0, [0, 2 * per_region - 1, JOINED]);
    }
}
