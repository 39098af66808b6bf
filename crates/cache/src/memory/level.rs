//! One set-associative cache of memory lines under LRU.

use super::{ACCESS_MAX, Geometry};

/// One cache. Each set lists its lines from the most to the least recently used.
#[derive(Clone, Debug)]
pub struct Level {
    geometry: Geometry,
    shift: u32,
    /// Line numbers plus one; 0 is an empty way.
    tags: Vec<u64>,
}

impl Level {
    /// An empty cache.
    pub fn new(geometry: Geometry) -> Self {
        let lines = geometry.sets() as usize * geometry.ways() as usize;
        Self {
            geometry,
            shift: geometry.line_bytes().ilog2(),
            tags: vec![0; lines],
        }
    }

    /// The geometry.
    pub fn geometry(&self) -> Geometry {
        self.geometry
    }

    /// Accesses `size` bytes at `address` and returns the depth in the LRU order of its set: 0 for
    /// the most recently used line, the number of ways for a miss. Of several lines the deepest
    /// counts. Bytes past the end of the address space are ignored.
    #[inline]
    pub fn access(&mut self, address: u64, size: u32) -> u32 {
        let first = address >> self.shift;
        let size = u64::from(size.clamp(1, ACCESS_MAX));
        let last = address.saturating_add(size - 1) >> self.shift;
        let mut depth = self.touch(first);
        for line in first + 1..=last {
            depth = depth.max(self.touch(line));
        }
        depth
    }

    /// True if the access misses.
    #[inline]
    pub fn misses(&mut self, address: u64, size: u32) -> bool {
        self.access(address, size) == self.geometry.ways()
    }

    #[inline]
    fn touch(&mut self, line: u64) -> u32 {
        let ways = self.geometry.ways() as usize;
        let set = (line & u64::from(self.geometry.sets() - 1)) as usize;
        let tags = &mut self.tags[set * ways..][..ways];
        let tag = line + 1;
        if tags[0] == tag {
            return 0;
        }
        let found = tags.iter().position(|one| *one == tag);
        let end = found.unwrap_or(ways - 1);
        tags.copy_within(..end, 1);
        tags[0] = tag;
        found.unwrap_or(ways) as u32
    }

    /// Empties the cache.
    pub fn flush(&mut self) {
        self.tags.fill(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn depth_counts_the_lines_used_since() {
        let mut level = Level::new(Geometry::new(256, 4, 64).unwrap());
        for line in 0..4u64 {
            assert_eq!(level.access(line * 64, 4), 4);
        }
        assert_eq!(level.access(0, 4), 3);
        assert_eq!(level.access(0, 4), 0);
        assert_eq!(level.access(3 * 64, 1), 1);
        assert_eq!(level.access(4 * 64, 1), 4, "replaces line 1");
        assert_eq!(level.access(64, 1), 4);
        level.flush();
        assert!(level.misses(64, 1) && !level.misses(64, 1));
    }

    #[test]
    fn a_straddling_access_takes_the_deepest_line() {
        let mut level = Level::new(Geometry::new(512, 2, 64).unwrap());
        assert_eq!(level.access(60, 4), 2);
        assert_eq!(level.access(60, 8), 2, "the second line is new");
        assert_eq!(level.access(60, 8), 0);
        assert_eq!(level.access(u64::MAX, 8), 2, "no overflow");
        assert_eq!(level.access(u64::MAX - 1, 0), 0);
    }
}
