//! Back-pressure: an engine that newcomers keep from keeping up takes fewer of them, before packets
//! of live connections are lost in the device's queue.

use core::time::Duration;

use fairlead_base::Instant;

use super::engine::BATCH_PACKETS;

/// So many full batches one after the other mean that packets wait: a quarter of the device's
/// queue came while it was being read.
const FULL_BATCHES: u32 = 64;

/// So many of the packets in them must be newcomers', or refusing some would not help: what waits
/// is data that the kernel left to the engine, or a flood of something else. The peers' congestion
/// control sees to the one, and the other would go on.
const NEWCOMERS_MIN: u64 = FULL_BATCHES as u64 * BATCH_PACKETS as u64 / 4;

/// How long a share holds before less is refused again.
const EASE_AFTER: Duration = Duration::from_millis(20);

/// A share below this is none.
const SHARE_MIN: u32 = 1 << 26;

/// What is refused: SYNs of 2³².
#[derive(Debug, Default)]
pub(super) struct Pressure {
    full_batches: u32,
    /// Newcomers' packets when the first of these batches came.
    newcomers_then: u64,
    newcomers: u64,
    share: u32,
    changed_at: Instant,
}

impl Pressure {
    /// To be called after every round, with how many packets it found, and how many of newcomers'
    /// have come since the start. Returns the share of SYNs that are to be dropped from now on,
    /// when it has changed.
    pub(super) fn handle_round(
        &mut self,
        now: Instant,
        received: usize,
        newcomers: u64,
    ) -> Option<u32> {
        let before = core::mem::replace(&mut self.newcomers, newcomers);
        let is_full = received >= BATCH_PACKETS;
        if is_full {
            if self.full_batches == 0 {
                self.newcomers_then = before;
            }
            self.full_batches += 1;
            if self.full_batches < FULL_BATCHES {
                return None;
            }
        }
        self.full_batches = 0;
        if is_full && newcomers - self.newcomers_then >= NEWCOMERS_MIN {
            // Half of those that were still answered: never all, or nobody would learn of better
            // times.
            return self.change(now, self.share / 2 + (u32::MAX / 2));
        }
        if self.share == 0 || now < self.changed_at + EASE_AFTER {
            return None;
        }
        let half = self.share / 2;
        self.change(now, if half < SHARE_MIN { 0 } else { half })
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

    /// Rounds that are full of newcomers.
    #[derive(Default)]
    struct Flood {
        pressure: Pressure,
        newcomers: u64,
    }

    impl Flood {
        fn round(&mut self, millis: u64, received: usize) -> Option<u32> {
            self.newcomers += received as u64;
            self.pressure
                .handle_round(at(millis), received, self.newcomers)
        }
    }

    #[test]
    fn an_engine_that_keeps_up_refuses_nobody() {
        let mut flood = Flood::default();
        for round in 0..10_000 {
            // Bursts, but the queue was empty again before it was a quarter full.
            let received = if round % 60 == 0 { 3 } else { BATCH_PACKETS };
            assert_eq!(flood.round(round, received), None);
        }
    }

    #[test]
    fn more_and_more_is_refused_while_packets_wait_and_less_when_they_do_not() {
        let mut flood = Flood::default();
        let mut shares = Vec::new();
        for _ in 0..FULL_BATCHES * 3 {
            shares.extend(flood.round(1, BATCH_PACKETS));
        }
        assert_eq!(shares.len(), 3);
        assert!(shares.is_sorted() && shares[0] == u32::MAX / 2);
        assert!(shares[2] < u32::MAX, "some are answered always");
        assert_eq!(flood.round(2, 0), None, "not at once");
        let mut eased = Vec::new();
        for millis in 2..2_000 {
            eased.extend(flood.round(millis, 1));
        }
        assert!(eased.is_sorted_by(|a, b| a > b) && eased.last() == Some(&0));
        assert!(eased.len() < 10, "within a fifth of a second: {eased:?}");
    }

    #[test]
    fn newcomers_are_not_refused_for_what_others_send() {
        let mut pressure = Pressure::default();
        for round in 0..10_000 {
            // One packet of eight is a newcomer's.
            let newcomers = (round + 1) * BATCH_PACKETS as u64 / 8;
            assert_eq!(
                pressure.handle_round(at(round), BATCH_PACKETS, newcomers),
                None
            );
        }
    }

    #[test]
    fn what_was_refused_of_a_flood_is_answered_again_while_others_fill_the_queue() {
        let mut flood = Flood::default();
        for _ in 0..FULL_BATCHES * 3 {
            flood.round(1, BATCH_PACKETS);
        }
        let newcomers = flood.newcomers;
        let eased = (1..100_000).filter_map(|round| {
            flood
                .pressure
                .handle_round(at(1 + round), BATCH_PACKETS, newcomers)
        });
        assert_eq!(eased.last(), Some(0));
    }
}
