//! The first bytes of a stream, put in order: bounded, and the first copy of a byte wins.

/// Maximum number of pieces after a gap; a sender with more gaps has to retransmit.
pub const PIECES_MAX: usize = 32;

/// Why bytes were refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// They are beyond the limit.
    BeyondLimit,
    /// Too many holes.
    TooManyPieces,
}

/// Collects a stream from its first byte on. Overlapping bytes that were seen before are ignored
/// even when they differ, so that the head that was read is the head that is sent (a defence
/// against smuggling by conflicting retransmissions).
#[derive(Clone, Debug, Default)]
pub struct Reassembly {
    bytes: Vec<u8>,
    /// Filled ranges `[start, end)`, ascending, never touching each other.
    filled: Vec<(u32, u32)>,
    limit_bytes: u32,
}

impl Reassembly {
    /// Accepts at most `limit_bytes` from the stream's start.
    pub fn new(limit_bytes: u32) -> Self {
        Self {
            limit_bytes,
            ..Self::default()
        }
    }

    /// How many bytes of memory taking `len` bytes at `offset` would add.
    pub fn growth_bytes(&self, offset: u32, len: usize) -> usize {
        let end = (u64::from(offset) + len as u64).min(u64::from(self.limit_bytes)) as usize;
        self.capacity_for(end) - self.bytes.capacity()
    }

    /// Doubles the capacity up to the limit, so that a stream arriving byte by byte is not copied
    /// each time.
    fn capacity_for(&self, end: usize) -> usize {
        let now = self.bytes.capacity();
        if end <= now {
            now
        } else {
            end.max((now * 2).min(self.limit_bytes as usize))
        }
    }

    /// Adds bytes at `offset` from the stream's start. What exceeds the limit is cut off.
    ///
    /// # Errors
    /// A [`Refusal`] if no byte could be accepted.
    pub fn insert(&mut self, offset: u32, bytes: &[u8]) -> Result<(), Refusal> {
        if bytes.is_empty() {
            return Ok(());
        }
        if offset >= self.limit_bytes {
            return Err(Refusal::BeyondLimit);
        }
        let room = (self.limit_bytes - offset) as usize;
        let bytes = &bytes[..bytes.len().min(room)];
        let end = offset + bytes.len() as u32;
        let joins = self
            .filled
            .iter()
            .any(|&(start, stop)| offset <= stop && start <= end);
        if !joins && self.filled.len() >= PIECES_MAX {
            return Err(Refusal::TooManyPieces);
        }
        if self.bytes.len() < end as usize {
            let capacity = self.capacity_for(end as usize);
            self.bytes.reserve_exact(capacity - self.bytes.len());
            self.bytes.resize(end as usize, 0);
        }
        let mut at = offset;
        for &(start, stop) in &self.filled {
            if start >= end || at >= end {
                break;
            }
            if at < start {
                self.bytes[at as usize..start as usize]
                    .copy_from_slice(&bytes[(at - offset) as usize..(start - offset) as usize]);
            }
            at = at.max(stop);
        }
        if at < end {
            self.bytes[at as usize..end as usize].copy_from_slice(&bytes[(at - offset) as usize..]);
        }
        self.merge(offset, end);
        Ok(())
    }

    fn merge(&mut self, mut start: u32, mut end: u32) {
        self.filled.retain(|&(other_start, other_end)| {
            let apart = other_end < start || end < other_start;
            if !apart {
                start = start.min(other_start);
                end = end.max(other_end);
            }
            apart
        });
        let at = self.filled.partition_point(|&(other, _)| other < start);
        self.filled.insert(at, (start, end));
    }

    /// The bytes from the start to the first hole.
    pub fn in_order(&self) -> &[u8] {
        &self.bytes[..self.in_order_len() as usize]
    }

    /// How many bytes are in order.
    pub fn in_order_len(&self) -> u32 {
        match self.filled.first() {
            Some(&(0, end)) => end,
            _ => 0,
        }
    }

    /// The sequence number after the last accepted byte, regardless of gaps.
    pub fn end(&self) -> u32 {
        self.filled.last().map_or(0, |&(_, end)| end)
    }

    /// Bytes of memory held for the stream.
    pub fn held_bytes(&self) -> usize {
        self.bytes.capacity()
    }

    /// True when the limit is reached in order.
    pub fn is_full(&self) -> bool {
        self.in_order_len() >= self.limit_bytes
    }

    /// Maximum number of bytes accepted.
    pub fn limit_bytes(&self) -> u32 {
        self.limit_bytes
    }
}

#[cfg(test)]
mod tests {
    use fairlead_base::Rng;

    use super::*;

    #[test]
    fn the_first_copy_of_a_byte_wins() {
        let mut stream = Reassembly::new(100);
        stream.insert(4, b"EFGH").unwrap();
        stream.insert(0, b"abcdefghij").unwrap();
        assert_eq!(stream.in_order(), b"abcdEFGHij");
        stream.insert(0, b"XXXXXXXXXXXX").unwrap();
        assert_eq!(stream.in_order(), b"abcdEFGHijXX");
    }

    #[test]
    fn what_exceeds_the_limit_is_cut() {
        let mut stream = Reassembly::new(4);
        stream.insert(2, b"cdef").unwrap();
        assert_eq!(stream.insert(4, b"e"), Err(Refusal::BeyondLimit));
        stream.insert(0, b"ab").unwrap();
        assert_eq!(stream.in_order(), b"abcd");
        assert!(stream.is_full());
    }

    #[test]
    fn memory_grows_as_announced_and_never_past_the_limit() {
        let mut stream = Reassembly::new(1_000);
        let mut rng = Rng::new(7);
        for _ in 0..500 {
            let (offset, len) = (rng.below(1_100), rng.below(60) as usize);
            let announced = stream.held_bytes() + stream.growth_bytes(offset, len);
            if stream.insert(offset, &vec![1; len]).is_ok() && len > 0 {
                assert_eq!(stream.held_bytes(), announced);
            }
            assert!(stream.held_bytes() <= 1_000);
        }
        assert_eq!(stream.end(), 1_000);
    }

    #[test]
    fn holes_are_bounded() {
        let mut stream = Reassembly::new(10_000);
        for piece in 0..PIECES_MAX as u32 {
            stream.insert(1 + piece * 2, b"x").unwrap();
        }
        assert_eq!(stream.insert(5_000, b"x"), Err(Refusal::TooManyPieces));
        stream.insert(0, b"x").unwrap();
        assert_eq!(stream.in_order_len(), 2);
    }

    /// Against a byte-by-byte model: random pieces of conflicting content in random order.
    #[test]
    fn agrees_with_a_model_byte_by_byte() {
        for seed in 0..200 {
            let mut rng = Rng::new(seed);
            let mut stream = Reassembly::new(64);
            let mut model: [Option<u8>; 64] = [None; 64];
            for _ in 0..40 {
                let offset = rng.below(70);
                let bytes: Vec<u8> = (0..rng.below(12)).map(|_| rng.next_u64() as u8).collect();
                if stream.insert(offset, &bytes).is_ok() {
                    for (at, &byte) in bytes.iter().enumerate() {
                        if let Some(place) = model.get_mut(offset as usize + at) {
                            place.get_or_insert(byte);
                        }
                    }
                }
                let expected: Vec<u8> = model.iter().map_while(|&byte| byte).collect();
                assert_eq!(stream.in_order(), expected, "seed {seed}");
            }
        }
    }
}
