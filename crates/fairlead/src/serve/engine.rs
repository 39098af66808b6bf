//! One round of work: read a batch, handle it, transmit the results.

use std::sync::Arc;

use fairlead_base::{DropReason, Endpoint, Instant, Packet, ReasonCounts};
use fairlead_datapath::tcb_cache::Report;
use fairlead_datapath::{Datapath, Event, Refusal, Snapshot, Uncached, Verdict};
use fairlead_netio::{Batch, Direction, RxQueue, TxQueue};

use super::pressure::Strangers;
use crate::api::RequestQueue;
use crate::capture::CaptureHub;

/// Maximum packets per batch: enough for the datapath to prefetch the records of a portion.
pub(super) const BATCH_PACKETS: usize = 32;
/// Approximate maximum bytes per batch, so that packets are still in the L2 cache when they are
/// written.
const BATCH_BYTES: usize = 256 << 10;

/// A datapath on a queue. In steady state a round does not allocate.
#[derive(Debug)]
pub(super) struct Engine<Q> {
    datapath: Datapath,
    queue: Q,
    batch: Batch,
    verdicts: Vec<Verdict>,
    out: Packet,
    failures: ReasonCounts,
    capture: Arc<CaptureHub>,
}

impl<Q: RxQueue + TxQueue> Engine<Q> {
    pub(super) fn new(datapath: Datapath, queue: Q, capture: Arc<CaptureHub>) -> Self {
        Self {
            datapath,
            queue,
            batch: Batch::new(BATCH_PACKETS, BATCH_BYTES),
            verdicts: Vec::with_capacity(BATCH_PACKETS),
            out: Packet::with_capacity(),
            failures: ReasonCounts::default(),
            capture,
        }
    }

    /// The queue.
    pub(super) fn queue(&self) -> &Q {
        &self.queue
    }

    /// Receives up to a batch of packets, transmits the results, and handles due timers. Returns
    /// the number of packets received; [`Self::has_drained`] tells whether more may be queued.
    ///
    /// # Errors
    /// The queue can no longer be read. A packet that cannot be sent is dropped and counted.
    pub(super) fn round(
        &mut self,
        now: Instant,
        on_event: &mut impl FnMut(Event),
    ) -> Result<usize, <Q as RxQueue>::Error> {
        self.batch.clear();
        let received = self.queue.receive(now, &mut self.batch)?;
        if received > 0 {
            if self.capture.is_on() {
                for packet in self.batch.packets() {
                    self.capture
                        .show(now, Direction::Rx, packet, &self.datapath);
                }
            }
            self.datapath
                .handle_batch(now, self.batch.packets_mut(), &mut self.verdicts);
            self.send_passed_on(now);
        }
        if self.datapath.poll_timeout().is_some_and(|due| due <= now) {
            self.datapath.handle_timeout(now);
        }
        self.send_own(now);
        while let Some(event) = self.datapath.poll_event() {
            on_event(event);
        }
        Ok(received)
    }

    /// Handles up to a batch of copies of forwarded ICMP errors, if they concern the switch's
    /// packets.
    ///
    /// # Errors
    /// The copies can no longer be read.
    pub(super) fn hear<P: RxQueue>(
        &mut self,
        now: Instant,
        passing: &mut P,
    ) -> Result<(), P::Error> {
        self.batch.clear();
        passing.receive(now, &mut self.batch)?;
        self.verdicts.clear();
        for packet in self.batch.packets_mut() {
            let mut verdict = Verdict::Consumed; // a copy: the stack forwards the original
            if self.datapath.is_error_past_us(packet) {
                if self.capture.is_on() {
                    self.capture
                        .show(now, Direction::Rx, packet, &self.datapath);
                }
                verdict = self.datapath.handle_packet(now, packet);
            }
            self.verdicts.push(verdict);
        }
        self.send_passed_on(now);
        self.send_own(now);
        Ok(())
    }

    /// Transmits the packets of the batch with the verdict `Transmit`.
    fn send_passed_on(&mut self, now: Instant) {
        for (packet, verdict) in self.batch.packets().iter().zip(&self.verdicts) {
            if *verdict == Verdict::Transmit {
                let sent = self.queue.transmit(now, packet);
                if sent.is_err() {
                    self.failures.add(DropReason::TransmitFailed);
                } else if self.capture.is_on() {
                    self.capture
                        .show(now, Direction::Tx, packet, &self.datapath);
                }
            }
        }
    }

    /// True if the last round emptied the queue, so that it is time to wait. If packets have
    /// arrived since, the wait returns at once and costs no more than another read.
    pub(super) fn has_drained(&self) -> bool {
        !self.batch.is_full()
    }

    /// Transmits packets that the datapath generated.
    fn send_own(&mut self, now: Instant) {
        while self.datapath.poll_transmit(&mut self.out) {
            if self.queue.transmit(now, &self.out).is_err() {
                self.failures.add(DropReason::TransmitFailed);
            } else if self.capture.is_on() {
                let own = &self.out;
                self.capture.show(now, Direction::Tx, own, &self.datapath);
            }
        }
        if self.queue.flush(now).is_err() {
            self.failures.add(DropReason::TransmitFailed);
        }
    }

    /// Handles requests of other threads. True when there were any.
    pub(super) fn handle_requests(&mut self, now: Instant, queue: &mut RequestQueue) -> bool {
        queue.handle(now, &mut self.datapath)
    }

    /// Responses to these were not for the cache of their route.
    pub(super) fn note_uncached(&mut self, now: Instant, all: &[Uncached]) {
        self.datapath.note_uncached(now, all);
    }

    /// Makes the fast path drop these packets.
    pub(super) fn refuse_ahead(&mut self, refusal: Refusal) {
        self.datapath.refuse_ahead(refusal);
    }

    /// Sets the MTU of the path to a server.
    pub(super) fn set_mtu_to(&mut self, now: Instant, server: Endpoint, mtu: Option<u32>) {
        self.datapath.set_mtu_to(now, server, mtu);
    }

    /// Accepts no new connections from now on.
    pub(super) fn drain(&mut self, now: Instant) {
        self.datapath.drain(now);
    }

    /// Resets every connection on both sides. Complete when [`Self::live_connections`] is 0, after
    /// some rounds.
    pub(super) fn abort_all(&mut self, now: Instant) {
        self.datapath.abort_all(now);
        self.send_own(now);
    }

    /// Packets from clients without a connection so far.
    pub(super) fn strangers(&self) -> Strangers {
        Strangers {
            newcomers: self.datapath.newcomers(),
            unproven: self.datapath.unproven(),
        }
    }

    /// Connections being set up or spliced.
    pub(super) fn live_connections(&self) -> u64 {
        self.datapath.live_connections()
    }

    /// When the next round is due, even without packets.
    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        self.datapath.poll_timeout()
    }

    /// Reads what the kernel has done, so that [`Self::snapshot`] is as recent as the kernel's
    /// counters.
    pub(super) fn catch_up_with_fast_path(&mut self, now: Instant) {
        self.datapath.catch_up_with_fast_path(now);
    }

    /// Reports the remaining connection ends of a run that leaves its connections to the next one;
    /// the next run does not report ends from before its start.
    pub(super) fn learn_all_ends(&mut self, now: Instant, on_event: &mut impl FnMut(Event)) {
        self.datapath.learn_all_ends(now);
        while let Some(event) = self.datapath.poll_event() {
            on_event(event);
        }
    }

    /// What the TCB cache has counted; `None` without one.
    pub(super) fn tcb_cache_report(&self) -> Option<Report> {
        self.datapath.tcb_cache_report()
    }

    /// All counters, including transmit failures.
    pub(super) fn snapshot(&self) -> Snapshot {
        let mut snapshot = self.datapath.snapshot();
        snapshot.drops.merge(&self.failures);
        snapshot
    }
}

#[cfg(test)]
mod tests {
    use fairlead_netio::MemoryQueue;
    use fairlead_testkit::{endpoint, segment};
    use fairlead_wire::build;

    use super::*;
    use crate::config;

    fn engine(queue: MemoryQueue) -> Engine<MemoryQueue> {
        let loaded = config::parse(config::SMALL, "test.toml");
        let settings = loaded
            .map_err(|report| report.render(false))
            .unwrap()
            .settings;
        let datapath = Datapath::new(settings.switch, 1.into(), Instant::ZERO).unwrap();
        Engine::new(datapath, queue, Arc::default())
    }

    /// A client's SYN to `to`; every `number` is another client.
    fn syn(number: u16, to: &str) -> Packet {
        let from = endpoint(&format!("10.1.0.10:{}", 20_000 + number));
        segment(from, endpoint(to))
            .flags(fairlead_wire::TcpFlags::SYN)
            .packet()
    }

    fn sent(engine: &mut Engine<MemoryQueue>) -> Vec<Packet> {
        core::iter::from_fn(|| engine.queue.take_sent()).collect()
    }

    #[test]
    fn packets_are_answered_dropped_and_probes_sent_in_the_round_that_brings_them() {
        let mut queue = MemoryQueue::new(64);
        for packet in [
            syn(1, "10.1.0.3:80"),
            syn(2, "10.1.0.9:80"),
            syn(3, "10.1.0.3:80"),
        ] {
            queue.inject(packet).unwrap();
        }
        let mut engine = engine(queue);
        let received = engine.round(Instant::from_millis(1), &mut |_| {}).unwrap();
        assert_eq!(received, 3);
        let to_clients = |packet: &&Packet| packet.bytes[16..20] == [10, 1, 0, 10];
        let sent = sent(&mut engine);
        assert_eq!(sent.iter().filter(to_clients).count(), 2, "two SYN-ACKs");
        let to_server = |packet: &&Packet| packet.bytes[16..20] == [10, 2, 0, 1];
        assert_eq!(
            sent.iter().filter(to_server).count(),
            1,
            "the server's first probe"
        );
        let snapshot = engine.snapshot();
        assert_eq!((snapshot.syns, snapshot.rx_packets), (2, 3));
        assert_eq!(snapshot.drops.of(DropReason::NotOurs), 1);
        assert!(engine.queue.flushes() > 0);
    }

    #[test]
    fn more_than_a_batch_takes_several_rounds() {
        let count = BATCH_PACKETS as u16 + 5;
        let mut queue = MemoryQueue::new(1_000);
        for number in 0..count {
            queue.inject(syn(number, "10.1.0.3:80")).unwrap();
        }
        let mut engine = engine(queue);
        let mut rounds = Vec::new();
        for millis in 1..4 {
            let received = engine.round(Instant::from_millis(millis), &mut |_| {});
            rounds.push((received.unwrap(), engine.has_drained()));
        }
        assert_eq!(rounds, [(BATCH_PACKETS, false), (5, true), (0, true)]);
        assert_eq!(engine.snapshot().syn_acks, u64::from(count));
    }

    #[test]
    fn forwarded_errors_of_others_are_neither_sent_nor_counted() {
        let mut engine = engine(MemoryQueue::new(64));
        engine.round(Instant::from_millis(1), &mut |_| {}).unwrap();
        let probe = sent(&mut engine).remove(0);
        let mut passing = MemoryQueue::new(8);
        let (router, other) = (endpoint("172.16.0.1:0"), endpoint("10.1.0.10:0"));
        let mut error = Packet::default();
        let (from, quoted) = (&router.addr, &probe.bytes);
        build::emit_icmp_too_big(from, &other.addr, 1_300, quoted, &mut error.bytes);
        passing.inject(error).unwrap();
        passing.inject(syn(1, "10.1.0.3:80")).unwrap();
        let before = engine.snapshot();
        engine.hear(Instant::from_millis(2), &mut passing).unwrap();
        let after = engine.snapshot();
        assert!(sent(&mut engine).is_empty());
        assert_eq!(after.rx_packets, before.rx_packets);
        assert_eq!(after.drops.total(), before.drops.total());
    }

    #[test]
    fn transmit_failures_are_counted_and_do_not_stop_the_round() {
        let mut queue = MemoryQueue::new(2);
        for number in 0..2 {
            queue.inject(syn(number, "10.1.0.3:80")).unwrap();
        }
        let mut engine = engine(queue);
        engine.round(Instant::from_millis(1), &mut |_| {}).unwrap(); // 2 SYN-ACKs, and a probe
        assert_eq!(engine.snapshot().drops.of(DropReason::TransmitFailed), 1);
        assert_eq!(sent(&mut engine).len(), 2);
        engine.round(Instant::from_millis(2), &mut |_| {}).unwrap();
        assert_eq!(engine.snapshot().drops.of(DropReason::TransmitFailed), 1);
    }
}
