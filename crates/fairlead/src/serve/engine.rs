//! One round of work: read a batch, handle it, send what comes of it.

use fairlead_base::{DropReason, Instant, Packet, ReasonCounts};
use fairlead_datapath::{Datapath, Event, Snapshot, Verdict};
use fairlead_netio::{Batch, RxQueue, TxQueue};

/// Packets read before they are handled, at most: enough for the datapath to fetch the records of
/// one portion together.
const BATCH_PACKETS: usize = 32;
/// Bytes read before they are handled, about: what is written a moment later is then still in the
/// processor's second-level cache.
const BATCH_BYTES: usize = 256 << 10;

/// A datapath on a queue. In steady use a round allocates nothing.
#[derive(Debug)]
pub(super) struct Engine<Q> {
    datapath: Datapath,
    queue: Q,
    batch: Batch,
    verdicts: Vec<Verdict>,
    out: Packet,
    failures: ReasonCounts,
}

impl<Q: RxQueue + TxQueue> Engine<Q> {
    pub(super) fn new(datapath: Datapath, queue: Q) -> Self {
        Self {
            datapath,
            queue,
            batch: Batch::new(BATCH_PACKETS, BATCH_BYTES),
            verdicts: Vec::with_capacity(BATCH_PACKETS),
            out: Packet::with_capacity(),
            failures: ReasonCounts::default(),
        }
    }

    /// The queue.
    pub(super) fn queue(&self) -> &Q {
        &self.queue
    }

    /// Receives what there is, up to a batch, sends what comes of it, and does what has become
    /// due. Returns how many packets came; fewer than none were left behind when it is 0.
    ///
    /// # Errors
    /// When the queue can no longer be read. A packet that cannot be sent is lost and counted.
    pub(super) fn round(
        &mut self,
        now: Instant,
        on_event: &mut impl FnMut(Event),
    ) -> Result<usize, <Q as RxQueue>::Error> {
        self.batch.clear();
        let received = self.queue.receive(now, &mut self.batch)?;
        if received > 0 {
            self.datapath
                .handle_batch(now, self.batch.packets_mut(), &mut self.verdicts);
            for (packet, verdict) in self.batch.packets().iter().zip(&self.verdicts) {
                if *verdict == Verdict::Transmit {
                    let sent = self.queue.transmit(now, packet);
                    if sent.is_err() {
                        self.failures.add(DropReason::TransmitFailed);
                    }
                }
            }
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

    /// Sends the packets that the datapath made itself.
    fn send_own(&mut self, now: Instant) {
        while self.datapath.poll_transmit(&mut self.out) {
            if self.queue.transmit(now, &self.out).is_err() {
                self.failures.add(DropReason::TransmitFailed);
            }
        }
        if self.queue.flush(now).is_err() {
            self.failures.add(DropReason::TransmitFailed);
        }
    }

    /// Takes no new connections from now on.
    pub(super) fn drain(&mut self, now: Instant) {
        self.datapath.drain(now);
    }

    /// Ends every connection by RST to both its ends; done when [`Self::live_connections`] is 0
    /// after some rounds.
    pub(super) fn abort_all(&mut self, now: Instant) {
        self.datapath.abort_all(now);
        self.send_own(now);
    }

    /// Connections being set up or spliced.
    pub(super) fn live_connections(&self) -> u64 {
        self.datapath.live_connections()
    }

    /// When the next round is wanted, packets or not.
    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        self.datapath.poll_timeout()
    }

    /// All counters, failures to send included.
    pub(super) fn snapshot(&self) -> Snapshot {
        let mut snapshot = self.datapath.snapshot();
        snapshot.drops.merge(&self.failures);
        snapshot
    }
}
