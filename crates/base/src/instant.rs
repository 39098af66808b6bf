//! A point in time, passed in by the caller: core code never reads a clock.

use core::ops::{Add, Sub};
use core::time::Duration;

/// Nanoseconds since an origin that the driver of the core chooses (process start, the first
/// packet of a capture, zero in a simulation). Never goes back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Instant {
    nanos: u64,
}

impl Instant {
    /// The origin.
    pub const ZERO: Self = Self { nanos: 0 };

    /// `nanos` nanoseconds after the origin.
    pub const fn from_nanos(nanos: u64) -> Self {
        Self { nanos }
    }

    /// `micros` microseconds after the origin.
    pub const fn from_micros(micros: u64) -> Self {
        Self {
            nanos: micros.saturating_mul(1_000),
        }
    }

    /// `millis` milliseconds after the origin.
    pub const fn from_millis(millis: u64) -> Self {
        Self {
            nanos: millis.saturating_mul(1_000_000),
        }
    }

    /// Nanoseconds since the origin.
    pub const fn as_nanos(self) -> u64 {
        self.nanos
    }

    /// Whole milliseconds since the origin.
    pub const fn as_millis(self) -> u64 {
        self.nanos / 1_000_000
    }

    /// Time elapsed since `earlier`, zero when `earlier` is later.
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.nanos.saturating_sub(earlier.nanos))
    }
}

impl Add<Duration> for Instant {
    type Output = Self;
    fn add(self, after: Duration) -> Self {
        let nanos = u64::try_from(after.as_nanos()).unwrap_or(u64::MAX);
        Self {
            nanos: self.nanos.saturating_add(nanos),
        }
    }
}

impl Sub<Duration> for Instant {
    type Output = Self;
    fn sub(self, before: Duration) -> Self {
        let nanos = u64::try_from(before.as_nanos()).unwrap_or(u64::MAX);
        Self {
            nanos: self.nanos.saturating_sub(nanos),
        }
    }
}
