//! Overload control: if packets without a connection overload the engine, the fast path drops some
//! of them, before packets of live connections are lost in the device's queue.

use core::time::Duration;

use fairlead_base::Instant;
use fairlead_datapath::Refusal;

use super::engine::BATCH_PACKETS;

/// This many full batches in a row count as overload: a quarter of the device's queue arrived while
/// it was being read.
const FULL_BATCHES: u32 = 64;

/// At least this many of their packets must be of one kind of stranger, or dropping that kind would
/// not help. Queued data of live connections is left to the peers' congestion control. The
/// threshold is above the three newcomer packets in nine of a short connection that the engine
/// handles completely: a dropped SYN would cost such a client a second.
const STRANGERS_MIN: u64 = FULL_BATCHES as u64 * BATCH_PACKETS as u64 / 2;

/// How long a drop probability for SYNs holds before it is lowered.
const EASE_AFTER: Duration = Duration::from_millis(20);

/// How long segments without proof of a handshake are dropped. A flood of them costs the engine one
/// series of full batches per interval.
const UNPROVEN_FOR: Duration = Duration::from_secs(1);

/// A drop probability below this is set to 0.
const SHARE_MIN: u32 = 1 << 26;

/// Packets from clients without a connection, since the start.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Strangers {
    /// SYNs, and first segments with a valid cookie.
    pub(super) newcomers: u64,
    /// Segments without a valid cookie, and packets for no service.
    pub(super) unproven: u64,
}

/// What is dropped, and since when.
#[derive(Debug, Default)]
pub(super) struct Pressure {
    full_batches: u32,
    /// Counts before the first of these batches.
    then: Strangers,
    last: Strangers,
    refusal: Refusal,
    syns_at: Instant,
    unproven_at: Instant,
}

impl Pressure {
    /// Call after every round with the number of packets received. Returns what to drop from now
    /// on, if that has changed.
    pub(super) fn handle_round(
        &mut self,
        now: Instant,
        received: usize,
        strangers: Strangers,
    ) -> Option<Refusal> {
        let before = core::mem::replace(&mut self.last, strangers);
        let was = self.refusal;
        if received < BATCH_PACKETS {
            self.full_batches = 0;
            self.ease(now);
        } else {
            if self.full_batches == 0 {
                self.then = before;
            }
            self.full_batches += 1;
            if self.full_batches >= FULL_BATCHES {
                self.full_batches = 0;
                self.press(now);
            }
        }
        (self.refusal != was).then_some(self.refusal)
    }

    /// Handles overload.
    fn press(&mut self, now: Instant) {
        if self.last.unproven - self.then.unproven >= STRANGERS_MIN {
            self.refusal.unproven = true;
            self.unproven_at = now;
        }
        if self.last.newcomers - self.then.newcomers >= STRANGERS_MIN {
            // Half of the SYNs that were still answered. Never all, so that a recovery is noticed.
            self.refusal.syns = self.refusal.syns / 2 + (u32::MAX / 2);
            self.syns_at = now;
        }
        self.ease(now);
    }

    fn ease(&mut self, now: Instant) {
        if self.refusal.unproven && now >= self.unproven_at + UNPROVEN_FOR {
            self.refusal.unproven = false;
        }
        if self.refusal.syns > 0 && now >= self.syns_at + EASE_AFTER {
            let half = self.refusal.syns / 2;
            self.refusal.syns = if half < SHARE_MIN { 0 } else { half };
            self.syns_at = now;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Instant {
        Instant::from_millis(millis)
    }

    /// Rounds that are full of one kind of packets.
    #[derive(Default)]
    struct Flood {
        pressure: Pressure,
        strangers: Strangers,
    }

    impl Flood {
        fn newcomers(&mut self, millis: u64, received: usize) -> Option<Refusal> {
            self.strangers.newcomers += received as u64;
            self.others(millis, received)
        }

        fn unproven(&mut self, millis: u64, received: usize) -> Option<Refusal> {
            self.strangers.unproven += received as u64;
            self.others(millis, received)
        }

        fn others(&mut self, millis: u64, received: usize) -> Option<Refusal> {
            self.pressure
                .handle_round(at(millis), received, self.strangers)
        }
    }

    #[test]
    fn without_overload_nothing_is_dropped() {
        let mut flood = Flood::default();
        for round in 0..10_000 {
            // Bursts, but the queue was empty again before it was a quarter full.
            let received = if round % 60 == 0 { 3 } else { BATCH_PACKETS };
            assert_eq!(flood.newcomers(round, received), None);
            assert_eq!(flood.unproven(round, 1), None);
        }
    }

    #[test]
    fn the_drop_probability_follows_the_load() {
        let mut flood = Flood::default();
        let mut shares = Vec::new();
        for _ in 0..FULL_BATCHES * 3 {
            shares.extend(flood.newcomers(1, BATCH_PACKETS));
        }
        assert!(shares.iter().all(|refusal| !refusal.unproven));
        let shares: Vec<u32> = shares.iter().map(|refusal| refusal.syns).collect();
        assert_eq!(shares.len(), 3);
        assert!(shares.is_sorted() && shares[0] == u32::MAX / 2);
        assert!(shares[2] < u32::MAX, "some SYNs are always answered");
        assert_eq!(flood.newcomers(2, 0), None, "not at once");
        let mut eased = Vec::new();
        for millis in 2..2_000 {
            eased.extend(flood.newcomers(millis, 1).map(|refusal| refusal.syns));
        }
        assert!(eased.is_sorted_by(|a, b| a > b) && eased.last() == Some(&0));
        assert!(eased.len() < 10, "within a fifth of a second: {eased:?}");
    }

    #[test]
    fn packets_of_connections_cause_no_drops() {
        let mut flood = Flood::default();
        for round in 0..10_000 {
            // Of a short connection nine packets: SYN, last ACK and head are a newcomer's.
            flood.strangers.newcomers += BATCH_PACKETS as u64 * 3 / 9;
            assert_eq!(flood.others(round, BATCH_PACKETS), None);
        }
    }

    #[test]
    fn dropping_syns_ends_while_other_packets_fill_the_queue() {
        let mut flood = Flood::default();
        for _ in 0..FULL_BATCHES * 3 {
            flood.newcomers(1, BATCH_PACKETS);
        }
        let eased = (2..100_000).filter_map(|millis| flood.others(millis, BATCH_PACKETS));
        assert_eq!(eased.last(), Some(Refusal::default()));
    }

    #[test]
    fn a_flood_without_cookies_is_sampled_once_a_second_and_costs_no_syn() {
        let mut flood = Flood::default();
        let (mut seen, mut refusing) = (0, false);
        for tenth in 0..100_000 {
            // Ten full batches a millisecond, for ten seconds, of which the fast path drops some.
            let told = if refusing {
                flood.others(tenth / 10, 0)
            } else {
                seen += 1;
                flood.unproven(tenth / 10, BATCH_PACKETS)
            };
            if let Some(refusal) = told {
                assert_eq!(refusal.syns, 0);
                refusing = refusal.unproven;
            }
        }
        assert_eq!(seen, 10 * FULL_BATCHES);
    }
}
