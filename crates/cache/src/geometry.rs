//! Number and arrangement of a cache's lines: banks, sets, ways.

use thiserror::Error;

/// Maximum number of banks; the paper uses up to four (section 2.3).
pub const BANKS_MAX: usize = 4;
/// Maximum ways per set of a bank.
pub const WAYS_MAX: usize = 16;
/// Maximum number of lines (2²⁶: 4 GiB of 64-byte lines).
pub const LINES_MAX: u64 = 1 << 26;

/// The validated shape of a cache. `lines = capacity / line`, `sets = lines / banks / ways`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Geometry {
    capacity_bytes: u64,
    line_bytes: u32,
    banks: u32,
    ways: u32,
    sets: u32,
}

/// Why a geometry is invalid, with what to write instead.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum GeometryError {
    /// Not a power of two, or zero.
    #[error("{what} must be a power of two, not {value}: write {below} or {above}")]
    NotPowerOfTwo {
        /// Which number.
        what: &'static str,
        /// What was given.
        value: u64,
        /// The power of two below it (or 1).
        below: u64,
        /// The power of two above it.
        above: u64,
    },
    /// More banks or ways than supported.
    #[error("{what} is {value}; write at most {max}")]
    TooMany {
        /// Which number.
        what: &'static str,
        /// What was given.
        value: u64,
        /// The limit.
        max: u64,
    },
    /// Fewer bytes or ways than supported.
    #[error("{what} is {value}; write at least {min}")]
    TooFew {
        /// Which number.
        what: &'static str,
        /// What was given.
        value: u64,
        /// The limit.
        min: u64,
    },
    /// The number of sets would be no power of two.
    #[error(
        "a capacity of {capacity_bytes} bytes is no power of two of sets of {ways} ways × \
         {line_bytes} bytes: write {below} or {above}"
    )]
    UnevenSets {
        /// The capacity given.
        capacity_bytes: u64,
        /// Ways.
        ways: u32,
        /// Bytes of a line.
        line_bytes: u32,
        /// The next smaller capacity that fits.
        below: u64,
        /// The next larger one.
        above: u64,
    },
    /// The capacity is too small for one set in every bank.
    #[error(
        "a capacity of {capacity_bytes} bytes is less than one set in every bank: {banks} banks × \
         {ways} ways × {line_bytes} bytes; write a capacity of at least {needed_bytes}"
    )]
    LessThanOneSet {
        /// The capacity given.
        capacity_bytes: u64,
        /// Bytes of a line.
        line_bytes: u32,
        /// Banks.
        banks: u32,
        /// Ways.
        ways: u32,
        /// The least capacity for these.
        needed_bytes: u64,
    },
}

pub(crate) fn power_of_two(what: &'static str, value: u64) -> Result<(), GeometryError> {
    if value.is_power_of_two() {
        return Ok(());
    }
    let below = if value == 0 { 1 } else { 1 << value.ilog2() };
    Err(GeometryError::NotPowerOfTwo {
        what,
        value,
        below,
        above: value.checked_next_power_of_two().unwrap_or(below).max(2),
    })
}

pub(crate) fn at_most(what: &'static str, value: u64, max: u64) -> Result<(), GeometryError> {
    if value > max {
        return Err(GeometryError::TooMany { what, value, max });
    }
    Ok(())
}

impl Geometry {
    /// The geometry of these numbers, all powers of two.
    ///
    /// # Errors
    /// When one is no power of two, exceeds [`BANKS_MAX`], [`WAYS_MAX`] or [`LINES_MAX`], or the
    /// capacity holds less than one set in every bank.
    pub fn new(
        capacity_bytes: u64,
        line_bytes: u32,
        banks: u32,
        ways: u32,
    ) -> Result<Self, GeometryError> {
        power_of_two("the capacity in bytes", capacity_bytes)?;
        power_of_two("the bytes of a line", u64::from(line_bytes))?;
        power_of_two("the number of banks", u64::from(banks))?;
        power_of_two("the number of ways", u64::from(ways))?;
        at_most("the number of banks", u64::from(banks), BANKS_MAX as u64)?;
        at_most("the number of ways", u64::from(ways), WAYS_MAX as u64)?;
        let lines = capacity_bytes / u64::from(line_bytes);
        at_most("the number of lines", lines, LINES_MAX)?;
        let sets = lines / u64::from(banks * ways);
        if sets == 0 {
            return Err(GeometryError::LessThanOneSet {
                capacity_bytes,
                line_bytes,
                banks,
                ways,
                needed_bytes: u64::from(line_bytes) * u64::from(banks * ways),
            });
        }
        Ok(Self {
            capacity_bytes,
            line_bytes,
            banks,
            ways,
            sets: sets as u32,
        })
    }

    /// The paper's (Table 1, section 3.1): 32 KiB of 64-byte lines, 2 banks of 4 ways.
    pub fn paper() -> Self {
        Self {
            capacity_bytes: 32 << 10,
            line_bytes: 64,
            banks: 2,
            ways: 4,
            sets: 64,
        }
    }

    /// Bytes of all lines.
    pub fn capacity_bytes(&self) -> u64 {
        self.capacity_bytes
    }

    /// Bytes of a line.
    pub fn line_bytes(&self) -> u32 {
        self.line_bytes
    }

    /// Banks, each with index functions of its own.
    pub fn banks(&self) -> u32 {
        self.banks
    }

    /// Ways of a set in one bank.
    pub fn ways(&self) -> u32 {
        self.ways
    }

    /// Sets of one bank.
    pub fn sets(&self) -> u32 {
        self.sets
    }

    /// Lines of all banks.
    pub fn lines(&self) -> u32 {
        self.banks * self.sets * self.ways
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_papers_geometry_has_512_lines() {
        let paper = Geometry::paper();
        assert_eq!(Geometry::new(32 << 10, 64, 2, 4), Ok(paper));
        assert_eq!((paper.lines(), paper.sets()), (512, 64));
    }

    #[test]
    fn what_is_wrong_says_what_to_write() {
        let said = |geometry: Result<Geometry, GeometryError>| geometry.unwrap_err().to_string();
        let text = said(Geometry::new(33_000, 64, 2, 4));
        assert!(text.contains("32768 or 65536"), "{text}");
        let text = said(Geometry::new(256, 64, 2, 4));
        assert!(text.contains("at least 512"), "{text}");
        assert!(said(Geometry::new(32 << 10, 64, 8, 4)).contains("at most 4"));
        assert!(said(Geometry::new(32 << 10, 64, 2, 0)).contains("1 or 2"));
        assert!(said(Geometry::new(u64::MAX, 64, 2, 4)).contains("power of two"));
        assert!(said(Geometry::new(1 << 63, 1, 1, 1)).contains("at most"));
        assert!(Geometry::new(64, 64, 1, 1).is_ok());
    }
}
