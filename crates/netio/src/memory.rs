//! A queue that lives in memory: the twin of a device for tests and simulations.

use std::collections::VecDeque;

use fairlead_base::{Instant, Packet};

use crate::{Batch, RxQueue, TxQueue};

/// Packets to be received on one side, packets that were sent on the other; both bounded.
#[derive(Debug)]
pub struct MemoryQueue {
    rx: VecDeque<Packet>,
    tx: VecDeque<Packet>,
    packets_max: usize,
    flushes: u64,
}

/// The queue holds as many packets as it may.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryFull;

impl core::fmt::Display for MemoryFull {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("the queue is full")
    }
}

impl core::error::Error for MemoryFull {}

impl MemoryQueue {
    /// An empty queue for at most `packets_max` packets a direction.
    pub fn new(packets_max: usize) -> Self {
        Self {
            rx: VecDeque::new(),
            tx: VecDeque::new(),
            packets_max,
            flushes: 0,
        }
    }

    /// Puts a packet where [`RxQueue::receive`] finds it.
    pub fn inject(&mut self, packet: Packet) -> Result<(), MemoryFull> {
        if self.rx.len() >= self.packets_max {
            return Err(MemoryFull);
        }
        self.rx.push_back(packet);
        Ok(())
    }

    /// Takes the oldest packet that was transmitted.
    pub fn take_sent(&mut self) -> Option<Packet> {
        self.tx.pop_front()
    }

    /// How often [`TxQueue::flush`] was called.
    pub fn flushes(&self) -> u64 {
        self.flushes
    }
}

impl RxQueue for MemoryQueue {
    type Error = MemoryFull;

    fn receive(&mut self, _now: Instant, batch: &mut Batch) -> Result<usize, MemoryFull> {
        let mut received = 0;
        while !batch.is_full() {
            let Some(packet) = self.rx.pop_front() else {
                break;
            };
            batch.push_copy(&packet);
            received += 1;
        }
        Ok(received)
    }
}

impl TxQueue for MemoryQueue {
    type Error = MemoryFull;

    fn transmit(&mut self, _now: Instant, packet: &Packet) -> Result<(), MemoryFull> {
        if self.tx.len() >= self.packets_max {
            return Err(MemoryFull);
        }
        self.tx.push_back(packet.clone());
        Ok(())
    }

    fn flush(&mut self, _now: Instant) -> Result<(), MemoryFull> {
        self.flushes += 1;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn receives_in_order_over_several_batches_and_refuses_beyond_its_bound() {
        let mut queue = MemoryQueue::new(3);
        for byte in 0..3 {
            queue.inject(Packet::from_bytes(&[byte])).unwrap();
        }
        assert_eq!(queue.inject(Packet::default()), Err(MemoryFull));
        let mut batch = Batch::new(2, usize::MAX);
        assert_eq!(queue.receive(Instant::ZERO, &mut batch), Ok(2));
        assert_eq!(batch.packets()[1].bytes, [1]);
        assert_eq!(
            queue.receive(Instant::ZERO, &mut batch),
            Ok(0),
            "the batch is full"
        );
        batch.clear();
        assert_eq!(queue.receive(Instant::ZERO, &mut batch), Ok(1));
        assert_eq!(
            queue.receive(Instant::ZERO, &mut batch),
            Ok(0),
            "nothing is left"
        );
    }

    #[test]
    fn keeps_what_was_sent_up_to_its_bound() {
        let mut queue = MemoryQueue::new(1);
        queue
            .transmit(Instant::ZERO, &Packet::from_bytes(&[7]))
            .unwrap();
        assert_eq!(
            queue.transmit(Instant::ZERO, &Packet::from_bytes(&[8])),
            Err(MemoryFull)
        );
        queue.flush(Instant::ZERO).unwrap();
        assert_eq!(queue.take_sent().unwrap().bytes, [7]);
        assert!(queue.take_sent().is_none());
        assert_eq!(queue.flushes(), 1);
    }
}
