//! What a policy keeps in hardware, counted from the configuration.

use crate::geometry::Geometry;
use crate::lifetime::Lifetime;

/// Bits beside tags and payload. Where chance comes from is not counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StateBits {
    /// Of every line.
    pub line: u32,
    /// Of every set of every bank.
    pub set: u32,
    /// Of the cache, once.
    pub cache: u64,
}

impl StateBits {
    /// Of all lines, sets and the cache.
    pub fn all(&self, geometry: &Geometry) -> u64 {
        let sets = u64::from(geometry.banks()) * u64::from(geometry.sets());
        let lines = u64::from(geometry.lines());
        u64::from(self.line) * lines + u64::from(self.set) * sets + self.cache
    }
}

/// Bits of a stamp that tells what was touched first: the fewest that are more than the 24 that
/// the paper finds too few (section 3.4).
pub const STAMP_BITS_EXACT: u32 = 25;

/// Bits of a number below `count`.
pub(crate) fn number_bits(count: u32) -> u32 {
    u32::BITS - count.saturating_sub(1).leading_zeros()
}

/// Bits of a line's place in the order of its set.
pub(crate) fn rank_bits(geometry: &Geometry) -> u32 {
    number_bits(geometry.ways())
}

/// Bits by which a line stands in the order of all candidates. A place in the order of a set says
/// nothing between the sets of two banks: there it takes stamps.
pub(crate) fn order_bits(geometry: &Geometry) -> u32 {
    match geometry.banks() {
        1 => rank_bits(geometry),
        _ => STAMP_BITS_EXACT,
    }
}

/// Bits of a counter that says for so long that a line is ON: 3 in the paper, for 4 ticks; none
/// where all lines always are, or none ever is.
pub(crate) fn counter_bits(lifetime: Lifetime) -> u32 {
    if lifetime == Lifetime::ALWAYS {
        return 0;
    }
    u32::BITS - lifetime.on_ticks().leading_zeros()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Scheme;
    use crate::registry::entry;

    fn bits(text: &str, ways: u32) -> StateBits {
        let scheme = Scheme::parse(text).unwrap();
        let geometry = scheme.geometry(32 << 10, 64, ways).unwrap();
        let policy = entry(&scheme.policy).unwrap();
        (policy.state)(&geometry, &scheme.parameters)
    }

    fn line(text: &str, ways: u32) -> u32 {
        bits(text, ways).line
    }

    #[test]
    fn bits_follow_the_configuration() {
        let ways = [1, 2, 4, 8, 16];
        assert_eq!(ways.map(|ways| line("mod", ways)), [0, 1, 2, 3, 4]);
        assert_eq!(ways.map(|ways| line("2-lru", ways)), [25; 5]);
        assert_eq!(ways.map(|ways| line("spec", ways)), [3, 4, 5, 6, 7]);
        assert_eq!(ways.map(|ways| line("2-universal", ways)), [1; 5]);
        let on = |ticks: &str| line(&format!("no-migrate,on_ticks={ticks}"), 4);
        assert_eq!(["0", "1", "4", "7", "8", "12"].map(on), [2, 3, 5, 5, 6, 6]);
        assert_eq!(on("always"), 2);
        assert_eq!(line("timestamp16", 4), 16);
        assert_eq!(line("timestamp16,stamp_bits=8", 4), 8);
        assert_eq!(bits("timestamp16,stamp_bits=8", 4).cache, 8);
        assert_eq!(line("sieve,banks=1", 8), 4);
        assert_eq!(line("clock,banks=1", 8), 1);
        assert_eq!(line("random", 4), 0);
    }

    #[test]
    fn what_sets_and_the_cache_keep_is_counted() {
        assert!(bits("access", 4).set > 0);
        assert_eq!(bits("rr", 4).cache, 1);
        let paper = Geometry::paper();
        // 82 pairs of counters, two tables, a log-book of an entry to 16 lines.
        let tide = bits("tide", 4);
        assert_eq!(
            (tide.line, tide.cache),
            (8, 82 * 34 + 2 * 256 * 8 + 32 * 24)
        );
        assert_eq!(tide.all(&paper), 512 * 8 + tide.cache);
        let access = bits("access", 4);
        assert_eq!(access.all(&paper), 512 * 2 + 128 * u64::from(access.set));
    }
}
