//! Two levels: an instruction cache and a data cache over one cache for both, as cachegrind has.

use super::{Geometry, Level};

/// Which first-level cache, and what kind of reference.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// An instruction fetch.
    Instruction,
    /// A data read. A modification of memory is one read, as for cachegrind.
    Read,
    /// A data write.
    Write,
}

/// Where a reference missed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Missed {
    /// The first level had it.
    No,
    /// Missed in the first level, found in the second.
    First,
    /// Missed in both.
    Both,
}

/// References and misses, with the names that cachegrind gives them in brackets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Instructions (Ir).
    pub instructions: u64,
    /// Missed in the instruction cache (I1mr).
    pub i1_misses: u64,
    /// Instructions missed in the second level (ILmr).
    pub ll_instruction_misses: u64,
    /// Data reads (Dr).
    pub reads: u64,
    /// Reads missed in the data cache (D1mr).
    pub d1_read_misses: u64,
    /// Reads missed in the second level (DLmr).
    pub ll_read_misses: u64,
    /// Data writes (Dw).
    pub writes: u64,
    /// Writes missed in the data cache (D1mw).
    pub d1_write_misses: u64,
    /// Writes missed in the second level (DLmw).
    pub ll_write_misses: u64,
}

impl Counts {
    /// Misses of the data cache.
    pub fn d1_misses(&self) -> u64 {
        self.d1_read_misses + self.d1_write_misses
    }

    /// Data misses of the second level.
    pub fn ll_data_misses(&self) -> u64 {
        self.ll_read_misses + self.ll_write_misses
    }

    /// Adds the counts of another stretch.
    pub fn sum(&mut self, other: &Self) {
        self.instructions += other.instructions;
        self.i1_misses += other.i1_misses;
        self.ll_instruction_misses += other.ll_instruction_misses;
        self.reads += other.reads;
        self.d1_read_misses += other.d1_read_misses;
        self.ll_read_misses += other.ll_read_misses;
        self.writes += other.writes;
        self.d1_write_misses += other.d1_write_misses;
        self.ll_write_misses += other.ll_write_misses;
    }

    /// Counts a reference.
    #[inline]
    pub fn add(&mut self, side: Side, missed: Missed) {
        let first = u64::from(missed != Missed::No);
        let both = u64::from(missed == Missed::Both);
        let (references, misses, ll_misses) = match side {
            Side::Instruction => (
                &mut self.instructions,
                &mut self.i1_misses,
                &mut self.ll_instruction_misses,
            ),
            Side::Read => (
                &mut self.reads,
                &mut self.d1_read_misses,
                &mut self.ll_read_misses,
            ),
            Side::Write => (
                &mut self.writes,
                &mut self.d1_write_misses,
                &mut self.ll_write_misses,
            ),
        };
        *references += 1;
        *misses += first;
        *ll_misses += both;
    }
}

/// An instruction cache and a data cache over a second level.
#[derive(Clone, Debug)]
pub struct Hierarchy {
    i1: Level,
    d1: Level,
    ll: Level,
    /// Longer data accesses are cut: the shortest line.
    size_max: u32,
}

impl Hierarchy {
    /// Empty caches.
    pub fn new(i1: Geometry, d1: Geometry, ll: Geometry) -> Self {
        let lines = [i1.line_bytes(), d1.line_bytes(), ll.line_bytes()];
        Self {
            i1: Level::new(i1),
            d1: Level::new(d1),
            ll: Level::new(ll),
            size_max: lines.into_iter().fold(u32::MAX, u32::min),
        }
    }

    /// One reference. As in cachegrind, a data access counts as at most one line long, and the
    /// second level sees the misses of the first with their whole size.
    #[inline]
    pub fn access(&mut self, side: Side, address: u64, size: u32) -> Missed {
        let (first, size) = match side {
            Side::Instruction => (&mut self.i1, size),
            Side::Read | Side::Write => (&mut self.d1, size.min(self.size_max)),
        };
        if !first.misses(address, size) {
            return Missed::No;
        }
        match self.ll.misses(address, size) {
            false => Missed::First,
            true => Missed::Both,
        }
    }

    /// Empties all caches.
    pub fn flush(&mut self) {
        self.i1.flush();
        self.d1.flush();
        self.ll.flush();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_second_level_sees_only_misses_of_both_kinds() {
        let small = Geometry::new(128, 1, 64).unwrap();
        let large = Geometry::new(256, 4, 64).unwrap();
        let mut caches = Hierarchy::new(small, small, large);
        let mut counts = Counts::default();
        let mut access = |side, address, size| {
            let missed = caches.access(side, address, size);
            counts.add(side, missed);
            missed
        };
        assert_eq!(access(Side::Instruction, 0, 4), Missed::Both);
        assert_eq!(access(Side::Instruction, 4, 4), Missed::No);
        // The line is there for data, too, but not in the data cache.
        assert_eq!(access(Side::Read, 8, 8), Missed::First);
        assert_eq!(access(Side::Write, 8, 8), Missed::No);
        assert_eq!(access(Side::Write, 128, 64), Missed::Both);
        assert_eq!(access(Side::Read, 0, 8), Missed::First, "same set as 128");
        // Cut to one line: it touches lines 3 and 4, not 5.
        assert_eq!(access(Side::Read, 3 * 64 + 32, 100), Missed::Both);
        assert_eq!(access(Side::Read, 5 * 64, 4), Missed::Both);
        let wanted = Counts {
            instructions: 2,
            i1_misses: 1,
            ll_instruction_misses: 1,
            reads: 4,
            d1_read_misses: 4,
            ll_read_misses: 2,
            writes: 2,
            d1_write_misses: 1,
            ll_write_misses: 1,
        };
        assert_eq!(counts, wanted);
        assert_eq!((counts.d1_misses(), counts.ll_data_misses()), (5, 3));
        caches.flush();
        assert_eq!(caches.access(Side::Read, 5 * 64, 4), Missed::Both);
    }
}
