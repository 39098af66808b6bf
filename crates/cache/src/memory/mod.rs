//! Memory caches, simulated: which instruction and data references of a program miss.
//!
//! Not the TCB cache: these hold memory lines by address, as a processor's caches do.
//! [`Hierarchy`] is one pair of first-level caches over a second level and counts as cachegrind
//! does; [`Family`] gives the misses of every LRU cache with as many sets in one pass. Both replace
//! the least recently used line, allocate on writes, and count an access that straddles lines as
//! one miss at most. [`PolicyLevel`] is one cache under another policy.
//!
//! Absent by design: prefetchers, write-backs, coherence, timing.

mod family;
mod geometry;
mod hierarchy;
mod level;
mod lines;
mod replacement;

pub use family::{Depths, Family, FamilySet};
pub use geometry::{Geometry, LINE_MAX, LINE_MIN, WAYS_MAX};
pub use hierarchy::{Counts, Hierarchy, Missed, Side};
pub use level::Level;
pub use lines::{Feed, REGION_BYTES, REGIONS_MAX, TooScattered};
pub use replacement::{PolicyLevel, REPLACEMENTS, Replacement};

/// Most bytes of an access; longer ones are cut.
pub const ACCESS_MAX: u32 = 4096;
