//! Middleware that shows every packet to an onlooker, such as a capture file.

use fairlead_base::{Instant, Packet};

use crate::{Batch, RxQueue, TxQueue};

/// Which way a packet went.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Direction {
    /// Received from the device.
    Rx,
    /// Sent to the device.
    Tx,
}

/// Who looks on. A sink that fails keeps that to itself (and counts it): packets go on.
pub trait Sink {
    /// Sees one packet, before it is changed or after it was.
    fn record(&mut self, at: Instant, direction: Direction, packet: &Packet);
}

impl<F: FnMut(Instant, Direction, &Packet)> Sink for F {
    fn record(&mut self, at: Instant, direction: Direction, packet: &Packet) {
        self(at, direction, packet);
    }
}

/// A queue that shows its packets to a [`Sink`]: received ones as they arrive, sent ones when the
/// queue below has taken them.
#[derive(Debug)]
pub struct Tee<Q, S> {
    inner: Q,
    sink: S,
}

impl<Q, S: Sink> Tee<Q, S> {
    /// Puts the onlooker above a queue.
    pub fn new(inner: Q, sink: S) -> Self {
        Self { inner, sink }
    }

    /// The onlooker.
    pub fn sink(&self) -> &S {
        &self.sink
    }

    /// The queue below.
    pub fn inner_mut(&mut self) -> &mut Q {
        &mut self.inner
    }

    /// Takes both apart again.
    pub fn into_parts(self) -> (Q, S) {
        (self.inner, self.sink)
    }
}

impl<Q: RxQueue, S: Sink> RxQueue for Tee<Q, S> {
    type Error = Q::Error;

    fn receive(&mut self, now: Instant, batch: &mut Batch) -> Result<usize, Q::Error> {
        let before = batch.len();
        let received = self.inner.receive(now, batch)?;
        let at = batch.arrived().unwrap_or(now);
        for packet in &batch.packets()[before..] {
            self.sink.record(at, Direction::Rx, packet);
        }
        Ok(received)
    }
}

impl<Q: TxQueue, S: Sink> TxQueue for Tee<Q, S> {
    type Error = Q::Error;

    fn transmit(&mut self, now: Instant, packet: &Packet) -> Result<(), Q::Error> {
        self.inner.transmit(now, packet)?;
        self.sink.record(now, Direction::Tx, packet);
        Ok(())
    }

    fn flush(&mut self, now: Instant) -> Result<(), Q::Error> {
        self.inner.flush(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{MemoryFull, MemoryQueue};

    #[test]
    fn shows_each_packet_once_with_its_direction_and_time() {
        let mut queue = MemoryQueue::new(2);
        queue.inject(Packet::from_bytes(&[1])).unwrap();
        let mut seen = Vec::new();
        let mut tee = Tee::new(queue, |at: Instant, way: Direction, packet: &Packet| {
            seen.push((at.as_millis(), way, packet.bytes.clone()));
        });
        let mut batch = Batch::new(8, usize::MAX);
        batch.push_copy(&Packet::from_bytes(&[9])); // was there before: not shown again
        assert_eq!(tee.receive(Instant::from_millis(5), &mut batch), Ok(1));
        for byte in [2, 3] {
            tee.transmit(Instant::from_millis(6), &Packet::from_bytes(&[byte]))
                .unwrap();
        }
        let refused = tee.transmit(Instant::from_millis(7), &Packet::from_bytes(&[4]));
        assert_eq!(refused, Err(MemoryFull));
        tee.flush(Instant::from_millis(8)).unwrap();
        let (queue, _) = tee.into_parts();
        assert_eq!(queue.flushes(), 1);
        assert_eq!(
            seen,
            [
                (5, Direction::Rx, vec![1]),
                (6, Direction::Tx, vec![2]),
                (6, Direction::Tx, vec![3]),
            ]
        );
    }

    #[test]
    fn a_time_of_arrival_known_below_wins_over_the_callers_clock() {
        struct Stamped;
        impl RxQueue for Stamped {
            type Error = MemoryFull;
            fn receive(&mut self, _now: Instant, batch: &mut Batch) -> Result<usize, MemoryFull> {
                batch.push_copy(&Packet::from_bytes(&[1]));
                batch.set_arrived(Instant::from_millis(77));
                Ok(1)
            }
        }
        let mut at_millis = 0;
        let mut tee = Tee::new(Stamped, |at: Instant, _: Direction, _: &Packet| {
            at_millis = at.as_millis()
        });
        tee.receive(Instant::from_millis(5), &mut Batch::new(1, 1))
            .unwrap();
        let _ = tee.into_parts();
        assert_eq!(at_millis, 77);
    }
}
