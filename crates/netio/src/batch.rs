//! Packets that arrived together, in buffers that are used again and again.

use fairlead_base::{Instant, Packet};

/// Up to a fixed number of packets and, roughly, of bytes. Buffers are allocated the first time
/// that they are needed and kept for good, so a batch in steady use allocates nothing.
#[derive(Debug)]
pub struct Batch {
    packets: Vec<Packet>,
    used: usize,
    used_bytes: usize,
    packets_max: usize,
    bytes_max: usize,
    arrived: Option<Instant>,
}

impl Batch {
    /// An empty batch for at most `packets_max` packets (at least one). It also counts as full
    /// once it holds `bytes_max` bytes or more: a bound by bytes keeps a batch of super-packets
    /// within the processor's cache between being read and being sent.
    pub fn new(packets_max: usize, bytes_max: usize) -> Self {
        let packets_max = packets_max.max(1);
        Self {
            packets: Vec::with_capacity(packets_max),
            used: 0,
            used_bytes: 0,
            packets_max,
            bytes_max,
            arrived: None,
        }
    }

    /// How many packets it holds.
    pub fn len(&self) -> usize {
        self.used
    }

    /// True when it holds none.
    pub fn is_empty(&self) -> bool {
        self.used == 0
    }

    /// The sum of the packets' lengths when they were put in, bytes.
    pub fn len_bytes(&self) -> usize {
        self.used_bytes
    }

    /// True when no further packet is taken.
    pub fn is_full(&self) -> bool {
        self.used >= self.packets_max || (self.used > 0 && self.used_bytes >= self.bytes_max)
    }

    /// Forgets the packets; the buffers stay.
    pub fn clear(&mut self) {
        self.used = 0;
        self.used_bytes = 0;
        self.arrived = None;
    }

    /// The packets, in the order of their arrival.
    pub fn packets(&self) -> &[Packet] {
        &self.packets[..self.used]
    }

    /// The packets, to be changed in place.
    pub fn packets_mut(&mut self) -> &mut [Packet] {
        &mut self.packets[..self.used]
    }

    /// When the packets arrived, where the driver knows that better than its caller (a capture
    /// file). Such a driver puts only packets of one time into a batch.
    pub fn arrived(&self) -> Option<Instant> {
        self.arrived
    }

    /// Sets the time of arrival of all packets in the batch.
    pub fn set_arrived(&mut self, at: Instant) {
        self.arrived = Some(at);
    }

    /// Lends the next free buffer, emptied, to `fill`, and takes the packet in when `fill` says
    /// `true`. Returns what `fill` said; `Ok(false)` without calling it when the batch is full.
    pub fn push_with<E>(
        &mut self,
        fill: impl FnOnce(&mut Packet) -> Result<bool, E>,
    ) -> Result<bool, E> {
        if self.is_full() {
            return Ok(false);
        }
        if self.used == self.packets.len() {
            self.packets.push(Packet::with_capacity());
        }
        let packet = &mut self.packets[self.used];
        packet.clear();
        if !fill(packet)? {
            return Ok(false);
        }
        self.used_bytes += packet.bytes.len();
        self.used += 1;
        Ok(true)
    }

    /// Takes a copy of a packet; `false` when the batch is full.
    pub fn push_copy(&mut self, packet: &Packet) -> bool {
        let copied: Result<bool, core::convert::Infallible> = self.push_with(|free| {
            free.bytes.extend_from_slice(&packet.bytes);
            free.checksum = packet.checksum;
            free.gso = packet.gso;
            Ok(true)
        });
        matches!(copied, Ok(true))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fairlead_base::{Checksum, Gso, PACKET_BYTES_MAX};

    fn of_len(len: usize) -> Packet {
        Packet::from_bytes(&vec![0x45; len])
    }

    #[test]
    fn is_full_at_the_packet_limit() {
        let mut batch = Batch::new(2, usize::MAX);
        assert!(batch.push_copy(&of_len(20)));
        assert!(!batch.is_full());
        assert!(batch.push_copy(&of_len(30)));
        assert!(batch.is_full());
        assert!(!batch.push_copy(&of_len(40)));
        assert_eq!(
            batch
                .packets()
                .iter()
                .map(|p| p.bytes.len())
                .collect::<Vec<_>>(),
            [20, 30]
        );
    }

    #[test]
    fn is_full_once_the_byte_limit_is_reached_but_always_takes_one() {
        let mut batch = Batch::new(8, 100);
        assert!(batch.push_copy(&of_len(60_000)));
        assert!(batch.is_full());
        batch.clear();
        assert!(batch.is_empty());
        assert!(batch.push_copy(&of_len(60)));
        assert!(batch.push_copy(&of_len(60)));
        assert!(!batch.push_copy(&of_len(60)));
        assert_eq!(batch.len_bytes(), 120);
    }

    #[test]
    fn a_fill_that_declines_or_fails_takes_no_place() {
        let mut batch = Batch::new(1, usize::MAX);
        assert_eq!(batch.push_with(|_| Ok::<_, ()>(false)), Ok(false));
        assert_eq!(batch.push_with(|_| Err("broken")), Err("broken"));
        assert!(batch.is_empty());
        assert!(batch.push_copy(&of_len(1)));
    }

    #[test]
    fn buffers_and_their_offload_state_are_reset_and_kept() {
        let mut batch = Batch::new(4, usize::MAX);
        let mut packet = of_len(1_000);
        packet.checksum = Checksum::Partial;
        packet.gso = Some(Gso { segment_bytes: 100 });
        assert!(batch.push_copy(&packet));
        batch.set_arrived(Instant::from_millis(3));
        let first = batch.packets()[0].bytes.as_ptr();
        for _ in 0..100 {
            batch.clear();
            assert_eq!(batch.arrived(), None);
            let _ = batch.push_with(|free| {
                assert!(free.bytes.is_empty() && free.bytes.capacity() >= PACKET_BYTES_MAX);
                assert_eq!((free.checksum, free.gso), (Checksum::Complete, None));
                free.bytes.resize(PACKET_BYTES_MAX, 1);
                Ok::<_, ()>(true)
            });
        }
        assert_eq!(
            batch.packets()[0].bytes.as_ptr(),
            first,
            "the buffer was allocated anew"
        );
    }
}
