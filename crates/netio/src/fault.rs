//! Middleware that loses, duplicates, reorders and corrupts packets by seed.

use core::time::Duration;
use std::collections::VecDeque;

use fairlead_base::{Checksum, Instant, Packet, Rng};

use crate::{Batch, RxQueue, TxQueue};

/// Maximum packets held back in one direction; beyond that packets are not reordered.
const HELD_MAX: usize = 256;
/// Packets taken from the queue below at a time.
const INTAKE_PACKETS: usize = 16;
/// Retries of one `receive` on the underlying queue if all its packets were dropped.
const INTAKE_ROUNDS_MAX: usize = 64;

/// How often each fault happens, in packets out of a million, and how far packets are reordered.
/// The default injects nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FaultPlan {
    /// The packet vanishes.
    pub loss_per_million: u32,
    /// The packet comes twice in a row.
    pub duplicate_per_million: u32,
    /// The packet is overtaken by later ones.
    pub reorder_per_million: u32,
    /// One bit of the packet is inverted. A verified checksum becomes unverified. A packet with a
    /// checksum still to be computed is dropped instead: the later checksum would cover the
    /// corruption and hide it, whereas on a wire the receiver would have dropped the packet.
    pub corrupt_per_million: u32,
    /// A reordered packet is overtaken by one to this many packets (0 counts as 1).
    pub overtaken_by_max: u16,
    /// It is let go after this time even when fewer packets followed.
    pub hold_max: Duration,
}

impl Default for FaultPlan {
    fn default() -> Self {
        Self {
            loss_per_million: 0,
            duplicate_per_million: 0,
            reorder_per_million: 0,
            corrupt_per_million: 0,
            overtaken_by_max: 8,
            hold_max: Duration::from_millis(20),
        }
    }
}

/// What was injected so far, both directions together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FaultCounts {
    /// Packets received for forwarding.
    pub seen: u64,
    /// Packets that vanished.
    pub lost: u64,
    /// Packets that were passed on twice.
    pub duplicated: u64,
    /// Packets that were held back.
    pub reordered: u64,
    /// Packets with an inverted bit, or dropped instead.
    pub corrupted: u64,
}

#[derive(Debug)]
struct Held {
    packet: Packet,
    overtakers_left: u16,
    until: Instant,
}

/// One direction: the same seed gives the same faults to the same packets, whatever the other
/// direction carries.
#[derive(Debug)]
struct Lane {
    rng: Rng,
    held: VecDeque<Held>,
    ready: VecDeque<Packet>,
}

impl Lane {
    fn new(seed: u64) -> Self {
        Self {
            rng: Rng::new(seed),
            held: VecDeque::new(),
            ready: VecDeque::new(),
        }
    }

    /// Applies faults to one packet; the results are queued in `ready`.
    fn admit(&mut self, now: Instant, packet: &Packet, plan: &FaultPlan, counts: &mut FaultCounts) {
        // All random numbers are drawn for every packet, so that one rate does not affect the
        // others.
        let lost = self.rng.chance(plan.loss_per_million);
        let duplicated = self.rng.chance(plan.duplicate_per_million);
        let reordered = self.rng.chance(plan.reorder_per_million);
        let corrupted = self.rng.chance(plan.corrupt_per_million);
        let place = self.rng.next_u64();
        counts.seen += 1;
        if lost {
            counts.lost += 1;
            return;
        }
        let mut packet = packet.clone();
        if corrupted {
            counts.corrupted += 1;
            if packet.checksum == Checksum::Partial {
                return;
            }
            invert_bit(&mut packet, place);
        }
        if reordered && self.held.len() < HELD_MAX {
            counts.reordered += 1;
            let overtakers = 1 + (place >> 48) as u16 % plan.overtaken_by_max.max(1);
            let until = now + plan.hold_max;
            self.held.push_back(Held {
                packet,
                overtakers_left: overtakers,
                until,
            });
            return;
        }
        if duplicated {
            counts.duplicated += 1;
            self.ready.push_back(packet.clone());
        }
        self.ready.push_back(packet);
        for held in &mut self.held {
            held.overtakers_left = held.overtakers_left.saturating_sub(1);
        }
        self.release(now);
    }

    /// Releases packets that were overtaken often enough or waited long enough.
    fn release(&mut self, now: Instant) {
        let mut index = 0;
        while let Some(held) = self.held.get(index) {
            if held.overtakers_left == 0 || held.until <= now {
                let released = self.held.remove(index).map(|held| held.packet);
                self.ready.extend(released);
            } else {
                index += 1;
            }
        }
    }
}

fn invert_bit(packet: &mut Packet, place: u64) {
    if packet.bytes.is_empty() {
        return;
    }
    let bit = place as usize % (packet.bytes.len() * 8);
    packet.bytes[bit / 8] ^= 1 << (bit % 8);
    packet.checksum = Checksum::Complete;
}

/// A queue with faults in both directions. Allocates per packet: made for tests and trials.
#[derive(Debug)]
pub struct Faults<Q> {
    inner: Q,
    plan: FaultPlan,
    counts: FaultCounts,
    intake: Batch,
    rx: Lane,
    tx: Lane,
}

impl<Q> Faults<Q> {
    /// Puts faults above a queue. The same seed and packets give the same faults.
    pub fn new(inner: Q, plan: FaultPlan, seed: u64) -> Self {
        let mut rng = Rng::new(seed);
        Self {
            inner,
            plan,
            counts: FaultCounts::default(),
            intake: Batch::new(INTAKE_PACKETS, usize::MAX),
            rx: Lane::new(rng.next_u64()),
            tx: Lane::new(rng.next_u64()),
        }
    }

    /// What was injected so far.
    pub fn counts(&self) -> FaultCounts {
        self.counts
    }

    /// The queue below.
    pub fn inner_mut(&mut self) -> &mut Q {
        &mut self.inner
    }

    /// When a packet that is held back wants to go: call `receive` and `flush` then.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.rx
            .held
            .iter()
            .chain(&self.tx.held)
            .map(|held| held.until)
            .min()
    }
}

impl<Q: RxQueue> Faults<Q> {
    fn hand_out(&mut self, batch: &mut Batch) -> usize {
        let mut handed = 0;
        while let Some(packet) = self.rx.ready.front() {
            if !batch.push_copy(packet) {
                break;
            }
            self.rx.ready.pop_front();
            handed += 1;
        }
        handed
    }
}

impl<Q: RxQueue> RxQueue for Faults<Q> {
    type Error = Q::Error;

    fn receive(&mut self, now: Instant, batch: &mut Batch) -> Result<usize, Q::Error> {
        self.rx.release(now);
        let mut received = self.hand_out(batch);
        for _ in 0..INTAKE_ROUNDS_MAX {
            if received > 0 || batch.is_full() {
                break;
            }
            self.intake.clear();
            let taken = self.inner.receive(now, &mut self.intake)?;
            if taken == 0 {
                break;
            }
            if let Some(at) = self.intake.arrived() {
                batch.set_arrived(at);
            }
            for packet in self.intake.packets() {
                self.rx.admit(now, packet, &self.plan, &mut self.counts);
            }
            received += self.hand_out(batch);
        }
        Ok(received)
    }
}

impl<Q: TxQueue> Faults<Q> {
    fn send_ready(&mut self, now: Instant) -> Result<(), Q::Error> {
        let mut outcome = Ok(());
        while let Some(packet) = self.tx.ready.pop_front() {
            let sent = self.inner.transmit(now, &packet);
            if outcome.is_ok() {
                outcome = sent;
            }
        }
        outcome
    }
}

impl<Q: TxQueue> TxQueue for Faults<Q> {
    type Error = Q::Error;

    fn transmit(&mut self, now: Instant, packet: &Packet) -> Result<(), Q::Error> {
        self.tx.admit(now, packet, &self.plan, &mut self.counts);
        self.send_ready(now)
    }

    fn flush(&mut self, now: Instant) -> Result<(), Q::Error> {
        self.tx.release(now);
        let sent = self.send_ready(now);
        self.inner.flush(now)?;
        sent
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MemoryQueue;

    const PACKETS: u32 = 4_000;

    fn numbered(number: u32) -> Packet {
        let mut bytes = vec![0x45; 40];
        bytes[..4].copy_from_slice(&number.to_be_bytes());
        Packet {
            bytes,
            checksum: Checksum::Verified,
            gso: None,
        }
    }

    fn number_of(packet: &Packet) -> u32 {
        u32::from_be_bytes([
            packet.bytes[0],
            packet.bytes[1],
            packet.bytes[2],
            packet.bytes[3],
        ])
    }

    /// Sends `PACKETS` packets 100 µs apart and returns those that the underlying queue got.
    fn send_through(plan: FaultPlan, seed: u64) -> (Vec<Packet>, FaultCounts) {
        let mut faults = Faults::new(MemoryQueue::new(1 << 20), plan, seed);
        for number in 0..PACKETS {
            let now = Instant::from_micros(u64::from(number) * 100);
            faults.transmit(now, &numbered(number)).unwrap();
            faults.flush(now).unwrap();
        }
        faults.flush(Instant::from_millis(100_000)).unwrap();
        assert_eq!(faults.poll_timeout(), None, "a packet is held for ever");
        let counts = faults.counts();
        let sent = core::iter::from_fn(|| faults.inner_mut().take_sent()).collect();
        (sent, counts)
    }

    /// The same on the way in, received with a small batch.
    fn receive_through(plan: FaultPlan, seed: u64) -> (Vec<Packet>, FaultCounts) {
        let mut queue = MemoryQueue::new(1 << 20);
        for number in 0..PACKETS {
            queue.inject(numbered(number)).unwrap();
        }
        let mut faults = Faults::new(queue, plan, seed);
        let mut batch = Batch::new(5, usize::MAX);
        let mut received = Vec::new();
        for millis in 0.. {
            batch.clear();
            let count = faults
                .receive(Instant::from_millis(millis), &mut batch)
                .unwrap();
            assert_eq!(count, batch.len());
            received.extend(batch.packets().iter().cloned());
            if count == 0 && faults.poll_timeout().is_none() {
                break;
            }
        }
        (received, faults.counts())
    }

    #[test]
    fn without_faults_everything_passes_unchanged_and_in_order() {
        for run in [send_through, receive_through] {
            let (packets, counts) = run(FaultPlan::default(), 1);
            assert!(packets.iter().map(number_of).eq(0..PACKETS));
            assert!(
                packets
                    .iter()
                    .all(|packet| packet.checksum == Checksum::Verified)
            );
            assert_eq!(
                counts,
                FaultCounts {
                    seen: u64::from(PACKETS),
                    ..Default::default()
                }
            );
        }
    }

    #[test]
    fn loses_about_as_many_as_asked_and_counts_them() {
        let plan = FaultPlan {
            loss_per_million: 100_000,
            ..Default::default()
        };
        for run in [send_through, receive_through] {
            let (packets, counts) = run(plan, 2);
            assert!((300..500).contains(&counts.lost), "{counts:?}");
            assert_eq!(packets.len() as u64, u64::from(PACKETS) - counts.lost);
            assert!(packets.iter().map(number_of).is_sorted());
        }
    }

    #[test]
    fn duplicates_follow_their_original() {
        let plan = FaultPlan {
            duplicate_per_million: 100_000,
            ..Default::default()
        };
        for run in [send_through, receive_through] {
            let (packets, counts) = run(plan, 3);
            let twins = packets
                .windows(2)
                .filter(|pair| number_of(&pair[0]) == number_of(&pair[1]));
            assert_eq!(twins.count() as u64, counts.duplicated);
            assert!((300..500).contains(&counts.duplicated), "{counts:?}");
            assert_eq!(packets.len() as u64, u64::from(PACKETS) + counts.duplicated);
        }
    }

    #[test]
    fn reordered_packets_are_overtaken_by_no_more_than_planned_and_none_is_missing() {
        let plan = FaultPlan {
            reorder_per_million: 100_000,
            overtaken_by_max: 3,
            hold_max: Duration::from_secs(1),
            ..Default::default()
        };
        for run in [send_through, receive_through] {
            let (packets, counts) = run(plan, 4);
            assert!((300..500).contains(&counts.reordered), "{counts:?}");
            let order: Vec<u32> = packets.iter().map(number_of).collect();
            let mut sorted = order.clone();
            sorted.sort_unstable();
            assert!(sorted.into_iter().eq(0..PACKETS));
            let late = (0..order.len()).filter(|&at| order[..at].iter().any(|n| *n > order[at]));
            for at in late {
                let overtakers = order[..at].iter().filter(|n| **n > order[at]).count();
                // Three that pass on their own, and those of them that were held themselves.
                assert!(
                    overtakers <= 3 + 4,
                    "{} was overtaken by {overtakers}",
                    order[at]
                );
            }
            assert!(!order.is_sorted());
        }
    }

    #[test]
    fn a_held_packet_is_let_go_in_time_without_followers() {
        let plan = FaultPlan {
            reorder_per_million: 1_000_000,
            hold_max: Duration::from_millis(10),
            ..Default::default()
        };
        let mut faults = Faults::new(MemoryQueue::new(8), plan, 5);
        faults
            .transmit(Instant::from_millis(1), &numbered(1))
            .unwrap();
        assert_eq!(faults.poll_timeout(), Some(Instant::from_millis(11)));
        faults.flush(Instant::from_millis(10)).unwrap();
        assert!(faults.inner_mut().take_sent().is_none());
        faults.flush(Instant::from_millis(11)).unwrap();
        assert!(faults.inner_mut().take_sent().is_some());
    }

    #[test]
    fn corruption_inverts_one_bit_and_withdraws_the_checksum_verdict() {
        let plan = FaultPlan {
            corrupt_per_million: 1_000_000,
            ..Default::default()
        };
        for run in [send_through, receive_through] {
            let (packets, counts) = run(plan, 6);
            assert_eq!(counts.corrupted, u64::from(PACKETS));
            for (number, packet) in packets.iter().enumerate() {
                let original = numbered(number as u32);
                let bits: u32 = original
                    .bytes
                    .iter()
                    .zip(&packet.bytes)
                    .map(|(a, b)| (a ^ b).count_ones())
                    .sum();
                assert_eq!(bits, 1);
                assert_eq!(packet.checksum, Checksum::Complete);
            }
        }
    }

    #[test]
    fn corruption_of_a_packet_with_partial_checksum_drops_it() {
        let plan = FaultPlan {
            corrupt_per_million: 1_000_000,
            ..Default::default()
        };
        let mut faults = Faults::new(MemoryQueue::new(8), plan, 7);
        let packet = Packet {
            checksum: Checksum::Partial,
            ..numbered(1)
        };
        faults.transmit(Instant::ZERO, &packet).unwrap();
        faults.transmit(Instant::ZERO, &Packet::default()).unwrap();
        assert_eq!(faults.counts().corrupted, 2);
        assert_eq!(
            faults
                .inner_mut()
                .take_sent()
                .map(|empty| empty.bytes.len()),
            Some(0)
        );
        assert!(faults.inner_mut().take_sent().is_none());
    }

    #[test]
    fn the_same_seed_gives_the_same_faults_and_another_seed_others() {
        let plan = FaultPlan {
            loss_per_million: 50_000,
            duplicate_per_million: 50_000,
            reorder_per_million: 50_000,
            corrupt_per_million: 50_000,
            ..Default::default()
        };
        for run in [send_through, receive_through] {
            let bytes = |seed| -> Vec<Vec<u8>> {
                run(plan, seed)
                    .0
                    .into_iter()
                    .map(|packet| packet.bytes)
                    .collect()
            };
            assert_eq!(bytes(8), bytes(8));
            assert_ne!(bytes(8), bytes(9));
        }
    }

    #[test]
    fn errors_are_passed_up_and_later_packets_still_pass() {
        let plan = FaultPlan {
            duplicate_per_million: 1_000_000,
            ..Default::default()
        };
        let mut faults = Faults::new(MemoryQueue::new(1), plan, 1);
        assert!(faults.transmit(Instant::ZERO, &numbered(1)).is_err());
        assert!(faults.inner_mut().take_sent().is_some());
        assert!(faults.transmit(Instant::ZERO, &numbered(2)).is_err());
        assert_eq!(
            faults.inner_mut().take_sent().map(|p| number_of(&p)),
            Some(2)
        );
    }
}
