//! Back-pressure: an engine that does not keep up takes fewer new clients, before packets of live
//! connections are lost in the device's queue.

use core::time::Duration;

use fairlead_base::Instant;

use super::engine::BATCH_PACKETS;

/// So many full batches one after the other mean that packets wait: a quarter of the device's
/// queue came while it was being read.
const FULL_BATCHES: u32 = 64;

/// How long a share holds before less is refused again.
const EASE_AFTER: Duration = Duration::from_millis(20);

/// A share below this is none.
const SHARE_MIN: u32 = 1 << 26;

/// What is refused: SYNs of 2³².
#[derive(Debug, Default)]
pub(super) struct Pressure {
    full_batches: u32,
    share: u32,
    changed_at: Instant,
}

impl Pressure {
    /// To be called after every round, with how many packets it found. Returns the share of SYNs
    /// that are to be dropped from now on, when it has changed.
    pub(super) fn handle_round(&mut self, now: Instant, received: usize) -> Option<u32> {
        if received < BATCH_PACKETS {
            self.full_batches = 0;
            if self.share == 0 || now < self.changed_at + EASE_AFTER {
                return None;
            }
            let half = self.share / 2;
            return self.change(now, if half < SHARE_MIN { 0 } else { half });
        }
        self.full_batches += 1;
        if self.full_batches < FULL_BATCHES {
            return None;
        }
        self.full_batches = 0;
        // Half of those that were still answered: never all, or nobody would learn of better times.
        self.change(now, self.share / 2 + (u32::MAX / 2))
    }

    fn change(&mut self, now: Instant, share: u32) -> Option<u32> {
        self.changed_at = now;
        let changed = share != self.share;
        self.share = share;
        changed.then_some(share)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Instant {
        Instant::from_millis(millis)
    }

    #[test]
    fn an_engine_that_keeps_up_refuses_nobody() {
        let mut pressure = Pressure::default();
        for round in 0..10_000 {
            // Bursts, but the queue was empty again before it was a quarter full.
            let received = if round % 60 == 0 { 3 } else { BATCH_PACKETS };
            assert_eq!(pressure.handle_round(at(round), received), None);
        }
    }

    #[test]
    fn more_and_more_is_refused_while_packets_wait_and_less_when_they_do_not() {
        let mut pressure = Pressure::default();
        let mut shares = Vec::new();
        for _ in 0..FULL_BATCHES * 3 {
            shares.extend(pressure.handle_round(at(1), BATCH_PACKETS));
        }
        assert_eq!(shares.len(), 3);
        assert!(shares.is_sorted() && shares[0] == u32::MAX / 2);
        assert!(shares[2] < u32::MAX, "some are answered always");
        assert_eq!(pressure.handle_round(at(2), 0), None, "not at once");
        let mut eased = Vec::new();
        for millis in 2..2_000 {
            eased.extend(pressure.handle_round(at(millis), 1));
        }
        assert!(eased.is_sorted_by(|a, b| a > b) && eased.last() == Some(&0));
        assert!(eased.len() < 10, "within a fifth of a second: {eased:?}");
    }
}
