//! Number and arrangement of a memory cache's lines.

use crate::geometry::{GeometryError, LINES_MAX, at_most, power_of_two};

/// Fewest bytes of a line.
pub const LINE_MIN: u32 = 16;
/// Most bytes of a line.
pub const LINE_MAX: u32 = 4096;
/// Most ways of a set.
pub const WAYS_MAX: u32 = 64;

/// The validated shape of a memory cache: `sets = capacity / line / ways`. Lines and sets are
/// powers of two; ways are any number, since real caches have 10 or 12.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Geometry {
    capacity_bytes: u64,
    ways: u32,
    line_bytes: u32,
    sets: u32,
}

impl Geometry {
    /// The geometry of these numbers.
    ///
    /// # Errors
    /// The line or the number of sets is no power of two, or a number is out of range.
    pub fn new(capacity_bytes: u64, ways: u32, line_bytes: u32) -> Result<Self, GeometryError> {
        power_of_two("the bytes of a line", u64::from(line_bytes))?;
        if line_bytes < LINE_MIN {
            return Err(GeometryError::TooFew {
                what: "the number of bytes of a line",
                value: u64::from(line_bytes),
                min: u64::from(LINE_MIN),
            });
        }
        at_most(
            "the number of bytes of a line",
            u64::from(line_bytes),
            u64::from(LINE_MAX),
        )?;
        if ways == 0 {
            return Err(GeometryError::TooFew {
                what: "the number of ways",
                value: 0,
                min: 1,
            });
        }
        at_most("the number of ways", u64::from(ways), u64::from(WAYS_MAX))?;
        let lines = capacity_bytes / u64::from(line_bytes);
        at_most("the number of lines", lines, LINES_MAX)?;
        let set_bytes = u64::from(ways) * u64::from(line_bytes);
        if capacity_bytes < set_bytes {
            return Err(GeometryError::LessThanOneSet {
                capacity_bytes,
                line_bytes,
                banks: 1,
                ways,
                needed_bytes: set_bytes,
            });
        }
        let sets = capacity_bytes / set_bytes;
        if !sets.is_power_of_two() || !capacity_bytes.is_multiple_of(set_bytes) {
            let below = 1 << sets.ilog2();
            return Err(GeometryError::UnevenSets {
                capacity_bytes,
                ways,
                line_bytes,
                below: below * set_bytes,
                above: 2 * below * set_bytes,
            });
        }
        Ok(Self {
            capacity_bytes,
            ways,
            line_bytes,
            sets: sets as u32,
        })
    }

    /// Bytes of all lines.
    pub fn capacity_bytes(&self) -> u64 {
        self.capacity_bytes
    }

    /// Lines of a set.
    pub fn ways(&self) -> u32 {
        self.ways
    }

    /// Bytes of a line.
    pub fn line_bytes(&self) -> u32 {
        self.line_bytes
    }

    /// Sets.
    pub fn sets(&self) -> u32 {
        self.sets
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn real_caches_are_accepted() {
        for (capacity, ways, line, sets) in [
            (32 << 10, 8, 64, 64),
            (48 << 10, 12, 64, 64),
            (16 << 10, 1, 32, 512),
            (1 << 20, 1, 128, 8192),
            (1280 << 10, 10, 64, 2048),
        ] {
            let geometry = Geometry::new(capacity, ways, line).unwrap();
            assert_eq!(geometry.sets(), sets);
            assert_eq!(geometry.capacity_bytes(), capacity);
        }
    }

    #[test]
    fn errors_name_what_to_write() {
        let said = |capacity, ways, line| Geometry::new(capacity, ways, line).unwrap_err();
        let text = said(40 << 10, 8, 64).to_string();
        assert!(text.contains("32768 or 65536"), "{text}");
        assert!(said(32_769, 8, 64).to_string().contains("32768 or 65536"));
        assert!(said(32 << 10, 8, 48).to_string().contains("32 or 64"));
        assert!(said(32 << 10, 8, 8).to_string().contains("at least 16"));
        assert!(said(32 << 10, 8, 8192).to_string().contains("at most 4096"));
        assert!(said(32 << 10, 0, 64).to_string().contains("at least 1"));
        assert!(said(32 << 10, 65, 64).to_string().contains("at most 64"));
        assert!(said(256, 8, 64).to_string().contains("at least 512"));
        assert!(said(0, 1, 64).to_string().contains("at least 64"));
        assert!(said(u64::MAX, 1, 64).to_string().contains("at most"));
    }
}
