//! Sorts a capture's packets by time. Packets of the engine arrive at once, those of the kernel
//! through a ring that is polled, so packets close in time can arrive far apart.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::io;
use std::time::{Duration, Instant};

use super::{Blocks, ENHANCED_PACKET, INTERFACE_STATISTICS, SwitchClock, stamp_ns, word};

/// How long a packet waits for earlier ones: longer than the polling interval of the ring.
const HOLD: Duration = Duration::from_millis(250);
/// Maximum bytes of waiting packets; above it, the earliest is released.
const HELD_BYTES_MAX: usize = 32 << 20;

/// A waiting block: its time, its number, when it arrived. Blocks of the same time keep their order
/// of arrival.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Held {
    stamp_ns: u64,
    number: u64,
    came: Instant,
    block: Vec<u8>,
}

/// Blocks sorted by time.
pub(super) struct Ordered<'a> {
    blocks: &'a Blocks,
    held: BinaryHeap<Reverse<Held>>,
    held_bytes: usize,
    number: u64,
    /// The switch's clock, from its statistics.
    pub(super) clock: SwitchClock,
    /// Reading has ended; only waiting blocks are left.
    is_finished: bool,
    /// Why reading has ended.
    end: Option<io::Error>,
}

impl<'a> Ordered<'a> {
    pub(super) fn of(blocks: &'a Blocks) -> Self {
        Self {
            blocks,
            held: BinaryHeap::new(),
            held_bytes: 0,
            number: 0,
            clock: SwitchClock::default(),
            is_finished: false,
            end: None,
        }
    }

    /// Stops reading. Waiting blocks are released without delay.
    pub(super) fn finish(&mut self) {
        self.is_finished = true;
    }

    /// True if no blocks are left.
    pub(super) fn is_empty(&self) -> bool {
        self.is_finished && self.held.is_empty() && self.end.is_none()
    }

    /// Number of waiting packets.
    pub(super) fn packets(&self) -> u64 {
        let blocks = self.held.iter().map(|Reverse(held)| &held.block);
        blocks
            .filter(|block| word(block, 0) == ENHANCED_PACKET)
            .count() as u64
    }

    /// The next block, or `None` if none is due within `most`.
    pub(super) fn next(&mut self, most: Duration) -> Option<io::Result<Vec<u8>>> {
        let until = Instant::now() + most;
        loop {
            if let Some(block) = self.due() {
                return Some(Ok(block));
            }
            if self.is_finished {
                return self.end.take().map(Err);
            }
            let now = Instant::now();
            if now >= until {
                return None;
            }
            let first = self.held.peek().map(|Reverse(held)| held.came + HOLD);
            let wait = first.map_or(until, |first| first.min(until)) - now;
            match self.blocks.next(wait) {
                None => {}
                Some(Err(error)) => (self.is_finished, self.end) = (true, Some(error)),
                Some(Ok(block)) => match word(&block, 0) {
                    ENHANCED_PACKET => self.hold(block),
                    INTERFACE_STATISTICS => {
                        self.clock.see(stamp_ns(&block));
                        self.hold(block);
                    }
                    _ => return Some(Ok(block)),
                },
            }
        }
    }

    fn hold(&mut self, block: Vec<u8>) {
        self.held_bytes += block.len();
        self.number += 1;
        self.held.push(Reverse(Held {
            stamp_ns: stamp_ns(&block),
            number: self.number,
            came: Instant::now(),
            block,
        }));
    }

    /// The earliest block, if it has waited long enough.
    fn due(&mut self) -> Option<Vec<u8>> {
        let Reverse(first) = self.held.peek()?;
        let is_due =
            self.is_finished || self.held_bytes > HELD_BYTES_MAX || first.came.elapsed() >= HOLD;
        if !is_due {
            return None;
        }
        let Reverse(first) = self.held.pop()?;
        self.held_bytes -= first.block.len();
        Some(first.block)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use fairlead_driver_pcap::{CaptureWriter, Passage};

    use super::*;

    fn blocks(stamps: &[u64]) -> Blocks {
        let mut writer = CaptureWriter::new(Vec::new(), "test", &["fl0"]).unwrap();
        for (number, stamp) in (0..).zip(stamps) {
            let packet = [0x45, number];
            let passage = Passage::In;
            writer.write(0, passage, *stamp, &packet, 0, "").unwrap();
        }
        Blocks::of(Cursor::new(writer.into_inner().unwrap()))
    }

    /// The times of all packets in output order.
    fn stamps(ordered: &mut Ordered<'_>) -> Vec<u64> {
        let mut stamps = Vec::new();
        loop {
            match ordered.next(Duration::from_secs(5)).unwrap() {
                Ok(block) if word(&block, 0) == ENHANCED_PACKET => stamps.push(stamp_ns(&block)),
                Ok(_) => {}
                Err(error) => {
                    assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
                    return stamps;
                }
            }
        }
    }

    #[test]
    fn packets_are_sorted_by_time_and_ties_by_arrival() {
        let blocks = blocks(&[5, 9, 3, 9, 1 << 40, 4]);
        let mut ordered = Ordered::of(&blocks);
        assert_eq!(stamps(&mut ordered), [3, 4, 5, 9, 9, 1 << 40]);
        assert!(ordered.is_empty());
        assert_eq!((ordered.held_bytes, ordered.packets()), (0, 0));
    }

    #[test]
    fn a_packet_waits_a_limited_time_for_earlier_ones() {
        let (sender, receiver) = std::sync::mpsc::sync_channel(4);
        let source = blocks(&[7, 6]);
        let next = || source.next(Duration::from_secs(5)).unwrap();
        let both: Vec<_> = std::iter::from_fn(|| Some(next()))
            .filter(|block| word(block.as_ref().unwrap(), 0) == ENHANCED_PACKET)
            .take(2)
            .collect();
        let blocks = Blocks(receiver);
        let mut ordered = Ordered::of(&blocks);
        let mut both = both.into_iter();
        sender.send(both.next().unwrap()).unwrap();
        assert!(ordered.next(HOLD / 5).is_none(), "it waits");
        assert_eq!(ordered.packets(), 1);
        let block = ordered.next(2 * HOLD).unwrap().unwrap();
        assert_eq!(stamp_ns(&block), 7);
        // What comes later still comes, out of its turn.
        sender.send(both.next().unwrap()).unwrap();
        assert!(ordered.next(HOLD / 5).is_none());
        ordered.finish();
        assert_eq!(stamp_ns(&ordered.next(HOLD).unwrap().unwrap()), 6);
        assert!(ordered.next(HOLD).is_none() && ordered.is_empty());
    }

    #[test]
    fn waiting_bytes_are_bounded() {
        let (sender, receiver) = std::sync::mpsc::sync_channel(4);
        let blocks = Blocks(receiver);
        let mut ordered = Ordered::of(&blocks);
        let mut packet = vec![0; 1 << 20];
        packet[0] = ENHANCED_PACKET as u8;
        for _ in 0..HELD_BYTES_MAX >> 20 {
            sender.send(Ok(packet.clone())).unwrap();
            assert!(ordered.next(Duration::from_millis(1)).is_none());
        }
        sender.send(Ok(packet)).unwrap();
        let begun = Instant::now();
        assert!(ordered.next(Duration::from_secs(5)).unwrap().is_ok());
        assert!(ordered.held_bytes <= HELD_BYTES_MAX);
        assert!(begun.elapsed() < Duration::from_secs(5));
    }
}
