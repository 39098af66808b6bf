//! LRU for all numbers of ways at once (Mattson and others, 1970), and for several numbers of sets,
//! each with fewer references than the one before: what is on top of the order of its set is on top
//! with more sets, too.

use fearless_simd::prelude::*;
use fearless_simd::{Simd, mask32x16, u32x16};

use super::Feed;
use super::lines::{JOINED, REGION_BYTES};
use crate::geometry::{GeometryError, at_most, power_of_two};
use crate::vector::{Kernel, on_widest_vectors};

/// Ways of the largest cache of a family.
const WAYS: usize = 16;
/// A tag that no line has.
const EMPTY: u32 = u32::MAX;

/// Accesses by depth in the LRU order of their set, without those of depth 0; the last entry
/// counts deeper ones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Depths {
    /// Two counters for each depth, used alternately: consecutive accesses do not wait for each
    /// other.
    below_top: [[u64; 32]; 2],
}

impl Depths {
    /// Misses with this number of ways, 1 to 16.
    pub fn misses(&self, ways: usize) -> u64 {
        let at = ways.clamp(1, WAYS);
        let deeper = self.below_top.iter().flat_map(|counts| &counts[at..]);
        deeper.copied().fold(0, u64::wrapping_add)
    }
}

/// All caches with one number of sets, of 1, 2, … 16 ways.
#[derive(Clone, Debug)]
pub struct Family {
    /// Per set, lines from the most to the least recently used.
    tags: Vec<[u32; WAYS]>,
}

impl Family {
    /// Number of caches simulated.
    pub const WAYS: usize = WAYS;

    fn new(sets: u32) -> Self {
        Self {
            tags: vec![[EMPTY; WAYS]; sets as usize],
        }
    }
}

/// Families with several numbers of sets over one stream of lines.
#[derive(Clone, Debug)]
pub struct FamilySet {
    feed: Feed,
    families: Vec<Family>,
    kept: Vec<u32>,
}

impl FamilySet {
    /// Empty caches with lines of this many bytes and these numbers of sets, in rising order.
    ///
    /// # Errors
    /// A number is no power of two, or a way would be larger than a region.
    pub fn new(line_bytes: u32, sets: &[u32]) -> Result<Self, GeometryError> {
        // The smallest cache of the family; its errors are those of all.
        super::Geometry::new(u64::from(line_bytes), 1, line_bytes)?;
        for &sets in sets {
            power_of_two("the number of sets", u64::from(sets))?;
            at_most(
                "the number of sets",
                u64::from(sets),
                REGION_BYTES / u64::from(line_bytes),
            )?;
        }
        debug_assert!(sets.is_sorted());
        Ok(Self {
            feed: Feed::new(line_bytes),
            families: sets.iter().map(|sets| Family::new(*sets)).collect(),
            kept: Vec::new(),
        })
    }

    /// Where accesses are added; [`Self::run`] takes them.
    pub fn feed(&mut self) -> &mut Feed {
        &mut self.feed
    }

    /// Simulates what the feed has collected, and adds to `depths`, one for each number of sets.
    /// Returns the number of accesses.
    pub fn run(&mut self, depths: &mut [Depths]) -> u64 {
        debug_assert_eq!(depths.len(), self.families.len());
        let (lines, accesses) = self.feed.take();
        for (family, depths) in self.families.iter_mut().zip(depths) {
            if lines.is_empty() {
                break;
            }
            self.kept.resize(lines.len(), 0);
            let mut kept = 0;
            on_widest_vectors(Pass {
                tags: &mut family.tags,
                lines,
                depths: &mut depths.below_top,
                kept: &mut self.kept,
                count: &mut kept,
            });
            self.kept.truncate(kept);
            std::mem::swap(lines, &mut self.kept);
        }
        lines.clear();
        accesses
    }

    /// Empties all caches. Accesses that were not run are lost.
    pub fn flush(&mut self) {
        self.feed.take().0.clear();
        if self.feed.forget() {
            for family in &mut self.families {
                family.tags.fill([EMPTY; WAYS]);
            }
        }
    }
}

/// One family over lines; writes those that were not on top of their set.
struct Pass<'a> {
    tags: &'a mut [[u32; WAYS]],
    lines: &'a [u32],
    depths: &'a mut [[u64; 32]; 2],
    kept: &'a mut [u32],
    count: &'a mut usize,
}

impl Kernel for Pass<'_> {
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let low = self.tags.len() - 1;
        let mut kept = 0;
        // Depth of the access so far; 0 if none of its lines was kept.
        let mut deepest = 0usize;
        for (at, line) in self.lines.iter().enumerate() {
            let id = line & !JOINED;
            let tags_at = &mut self.tags[id as usize & low];
            let tags = u32x16::simd_from(simd, *tags_at);
            let wanted = u32x16::splat(simd, id);
            let found = tags.simd_eq(wanted).to_bitmask() as u32 | 1 << WAYS;
            let depth = found.trailing_zeros() as usize % 32;
            let moved = mask32x16::from_bitmask(simd, u64::from(found ^ (found - 1)));
            let tags = moved.select(wanted.slide::<15>(tags), tags);
            *tags_at = tags.into();
            let counts = &mut self.depths[at % 2];
            let mut joined = 0;
            if line & JOINED != 0 {
                // The access is counted once, at its deepest line.
                counts[deepest] = counts[deepest].wrapping_sub(u64::from(deepest > 0));
                joined = if deepest > 0 { JOINED } else { 0 };
                deepest = deepest.max(depth);
                counts[deepest] = counts[deepest].wrapping_add(u64::from(deepest > 0));
            } else {
                deepest = depth;
                counts[depth] = counts[depth].wrapping_add(u64::from(depth > 0));
            }
            self.kept[kept] = id | joined;
            kept += usize::from(depth > 0);
        }
        *self.count = kept;
    }
}
