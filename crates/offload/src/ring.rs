//! Positions in a buffer that is used round and round: they count all bytes that ever passed,
//! modulo 2³², and the buffer's length is a power of two.

/// A stretch of a buffer: two pieces, of which the second begins at the buffer's beginning and may
/// be empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// Where the first piece begins.
    pub at: u32,
    /// Its length.
    pub first: u32,
    /// The length of the second.
    pub second: u32,
}

impl Span {
    /// `len` bytes from this position on, in a buffer of `size` bytes.
    pub fn of(position: u32, len: u32, size: u32) -> Self {
        debug_assert!(size.is_power_of_two() && len <= size);
        let at = position % size;
        let first = len.min(size - at);
        Self {
            at,
            first,
            second: len - first,
        }
    }

    /// Bytes of both pieces.
    pub fn len(self) -> u32 {
        self.first + self.second
    }

    /// No bytes.
    pub fn is_empty(self) -> bool {
        self.len() == 0
    }
}

/// Bytes between two positions; `None` if a buffer of `size` bytes cannot hold them.
pub fn used(written: u32, read: u32, size: u32) -> Option<u32> {
    let used = written.wrapping_sub(read);
    (used <= size).then_some(used)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_span_stays_in_the_buffer_and_has_each_byte_once(
            position: u32, len in 0_u32..=64, bits in 6_u32..9,
        ) {
            let size = 1 << bits;
            let span = Span::of(position, len, size);
            prop_assert_eq!(span.len(), len);
            prop_assert!(span.at + span.first <= size && span.second <= span.at);
            prop_assert_eq!(used(position.wrapping_add(len), position, size), Some(len));
            prop_assert_eq!(used(position.wrapping_sub(1), position, size), None);
        }
    }
}
