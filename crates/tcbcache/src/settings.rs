//! Settings of a TCB cache, and its clock.

use core::time::Duration;

use fairlead_base::Instant;
use fairlead_cache::{Geometry, Scheme};

/// Bytes of a line: one connection record (paper, Table 1).
pub const LINE_BYTES: u32 = 64;

/// The length of a tick (paper, section 3.3: a quarter of a second).
pub const TICK: Duration = Duration::from_millis(250);

/// The tick of a point in time. Wraps after 34 years.
#[inline]
pub fn tick(now: Instant) -> u32 {
    (now.as_millis() / TICK.as_millis() as u64) as u32
}

/// A scheme and its shape.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Index, banks, policy and parameters.
    pub scheme: Scheme,
    /// Lines, banks, sets, ways.
    pub geometry: Geometry,
}
