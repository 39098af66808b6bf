//! Instants from stamps.

use core::time::Duration;

use fairlead_base::Instant;

/// A stamp that is earlier than its predecessor by less than this is a packet that was written out
/// of order; by more, another capture was joined to this one.
const DISORDER_MAX_NS: u64 = 1_000_000_000;

/// The longest plausible silence. A longer one marks a seam between joined captures.
pub const GAP_MAX: Duration = Duration::from_secs(86_400);

/// Converts time stamps of a capture to monotonic instants. The first packet is at
/// [`Instant::ZERO`]. In joined captures the later part starts where the earlier one ended, at its
/// own pace.
#[derive(Clone, Debug, Default)]
pub struct StampClock {
    first_ns: Option<u64>,
    last_ns: u64,
    now: Instant,
    seams: u64,
}

impl StampClock {
    /// The instant of a packet with this stamp.
    pub fn advance(&mut self, stamp_ns: u64) -> Instant {
        if self.first_ns.is_none() {
            self.first_ns = Some(stamp_ns);
            self.last_ns = stamp_ns;
        }
        if stamp_ns < self.last_ns {
            if self.last_ns - stamp_ns > DISORDER_MAX_NS {
                self.seams += 1;
                self.last_ns = stamp_ns;
            }
            return self.now;
        }
        let gap = Duration::from_nanos(stamp_ns - self.last_ns);
        self.last_ns = stamp_ns;
        if gap > GAP_MAX {
            self.seams += 1;
        } else {
            self.now = self.now + gap;
        }
        self.now
    }

    /// The instant of a packet; without a time stamp it is the current one.
    pub fn advance_if_known(&mut self, stamp_ns: Option<u64>) -> Instant {
        stamp_ns.map_or(self.now, |stamp_ns| self.advance(stamp_ns))
    }

    /// The instant of the last packet.
    pub fn now(&self) -> Instant {
        self.now
    }

    /// An instant as a stamp, counted from the first packet's.
    pub fn stamp_ns(&self, at: Instant) -> u64 {
        let first = self.first_ns.unwrap_or(0);
        first.saturating_add(at.as_nanos())
    }

    /// How often captures of different times were joined.
    pub fn seams(&self) -> u64 {
        self.seams
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: u64 = 1_000_000_000;

    #[test]
    fn time_starts_at_zero_and_follows_the_stamps() {
        let mut clock = StampClock::default();
        assert_eq!(clock.advance(7 * S), Instant::ZERO);
        assert_eq!(clock.advance(7 * S + 5), Instant::from_nanos(5));
        assert_eq!(clock.advance(8 * S), Instant::from_nanos(S));
        assert_eq!(clock.stamp_ns(clock.now()), 8 * S);
        assert_eq!(clock.seams(), 0);
    }

    #[test]
    fn a_little_disorder_does_not_stop_it() {
        let mut clock = StampClock::default();
        clock.advance(10 * S);
        clock.advance(11 * S);
        assert_eq!(clock.advance(11 * S - 5), Instant::from_nanos(S));
        assert_eq!(clock.advance(11 * S + 5), Instant::from_nanos(S + 5));
        assert_eq!(clock.seams(), 0);
    }

    #[test]
    fn a_joined_capture_goes_on_where_the_first_ended() {
        let mut clock = StampClock::default();
        clock.advance(1_000 * S);
        clock.advance(1_002 * S);
        assert_eq!(clock.advance(500 * S), Instant::from_nanos(2 * S));
        assert_eq!(clock.advance(501 * S), Instant::from_nanos(3 * S));
        let years = 30 * 365 * 86_400 * S;
        assert_eq!(clock.advance(501 * S + years), Instant::from_nanos(3 * S));
        assert_eq!(clock.advance(502 * S + years), Instant::from_nanos(4 * S));
        assert_eq!(clock.seams(), 2);
        assert_eq!(clock.advance(0), clock.now());
        assert_eq!(clock.advance(u64::MAX), clock.now());
    }
}
