//! Back-pressure: an engine that strangers keep from keeping up has the fast path refuse some of
//! them, before packets of live connections are lost in the device's queue.

use core::time::Duration;

use fairlead_base::Instant;
use fairlead_datapath::Refusal;

use super::engine::BATCH_PACKETS;

/// So many full batches one after the other mean that packets wait: a quarter of the device's
/// queue came while it was being read.
const FULL_BATCHES: u32 = 64;

/// So many of the packets in them must be strangers' of a kind, or refusing that kind would not
/// help. Where data waits that the kernel left to the engine, the peers' congestion control sees to
/// it. More than the three in nine of a short connection of which the engine sees every packet:
/// its clients wait for each other, and a refused SYN costs one a second.
const STRANGERS_MIN: u64 = FULL_BATCHES as u64 * BATCH_PACKETS as u64 / 2;

/// How long a share of SYNs holds before less is refused again.
const EASE_AFTER: Duration = Duration::from_millis(20);

/// How long what proves nothing is refused: of a flood of it the engine then sees so many
/// batches in this time and no more.
const UNPROVEN_FOR: Duration = Duration::from_secs(1);

/// A share below this is none.
const SHARE_MIN: u32 = 1 << 26;

/// Packets of clients without a connection, since the start.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Strangers {
    /// SYNs, and first segments that proved a handshake.
    pub(super) newcomers: u64,
    /// Those that proved nothing: segments, and what was for no service.
    pub(super) unproven: u64,
}

/// What is refused, and since when.
#[derive(Debug, Default)]
pub(super) struct Pressure {
    full_batches: u32,
    /// When the first of these batches came.
    then: Strangers,
    last: Strangers,
    refusal: Refusal,
    syns_at: Instant,
    unproven_at: Instant,
}

impl Pressure {
    /// To be called after every round, with how many packets it found. Returns what is to be
    /// refused from now on, when that has changed.
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

    /// Packets wait.
    fn press(&mut self, now: Instant) {
        if self.last.unproven - self.then.unproven >= STRANGERS_MIN {
            self.refusal.unproven = true;
            self.unproven_at = now;
        }
        if self.last.newcomers - self.then.newcomers >= STRANGERS_MIN {
            // Half of those that were still answered: never all, or nobody would learn of better
            // times.
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
    fn an_engine_that_keeps_up_refuses_nobody() {
        let mut flood = Flood::default();
        for round in 0..10_000 {
            // Bursts, but the queue was empty again before it was a quarter full.
            let received = if round % 60 == 0 { 3 } else { BATCH_PACKETS };
            assert_eq!(flood.newcomers(round, received), None);
            assert_eq!(flood.unproven(round, 1), None);
        }
    }

    #[test]
    fn more_and_more_is_refused_while_packets_wait_and_less_when_they_do_not() {
        let mut flood = Flood::default();
        let mut shares = Vec::new();
        for _ in 0..FULL_BATCHES * 3 {
            shares.extend(flood.newcomers(1, BATCH_PACKETS));
        }
        assert!(shares.iter().all(|refusal| !refusal.unproven));
        let shares: Vec<u32> = shares.iter().map(|refusal| refusal.syns).collect();
        assert_eq!(shares.len(), 3);
        assert!(shares.is_sorted() && shares[0] == u32::MAX / 2);
        assert!(shares[2] < u32::MAX, "some are answered always");
        assert_eq!(flood.newcomers(2, 0), None, "not at once");
        let mut eased = Vec::new();
        for millis in 2..2_000 {
            eased.extend(flood.newcomers(millis, 1).map(|refusal| refusal.syns));
        }
        assert!(eased.is_sorted_by(|a, b| a > b) && eased.last() == Some(&0));
        assert!(eased.len() < 10, "within a fifth of a second: {eased:?}");
    }

    #[test]
    fn nobody_is_refused_for_what_connections_send() {
        let mut flood = Flood::default();
        for round in 0..10_000 {
            // Of a short connection nine packets: SYN, last ACK and head are a newcomer's.
            flood.strangers.newcomers += BATCH_PACKETS as u64 * 3 / 9;
            assert_eq!(flood.others(round, BATCH_PACKETS), None);
        }
    }

    #[test]
    fn what_was_refused_of_newcomers_is_answered_again_while_others_fill_the_queue() {
        let mut flood = Flood::default();
        for _ in 0..FULL_BATCHES * 3 {
            flood.newcomers(1, BATCH_PACKETS);
        }
        let eased = (2..100_000).filter_map(|millis| flood.others(millis, BATCH_PACKETS));
        assert_eq!(eased.last(), Some(Refusal::default()));
    }

    #[test]
    fn a_flood_without_proof_is_seen_for_a_moment_of_every_second_and_costs_no_newcomer() {
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
