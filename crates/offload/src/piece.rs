//! What `ch_nic_send` names: the address of its message.
//!
//! | bits | of bytes in the send buffer | of a range of a file |
//! |---|---|---|
//! | 63 | 0 | 1 |
//! | 62–54 | 0 | the file's number |
//! | 53–28 | 62–32: the position, whose highest bit is in bit 31 | the first page |
//! | 27–0 | the length | the length |
//!
//! So a range begins at a page, in the first 256 GiB of its file, and is shorter than 256 MiB.

use crate::layout::{FILES, SEND_BYTES};

const RANGE: u64 = 1 << 63;
const LEN_BITS: u32 = 28;
const PAGE_BITS: u32 = 12;
const PAGES: u64 = 1 << 26;

/// The longest range, bytes.
pub const RANGE_MAX: u32 = (1 << LEN_BITS) - 1;

/// Something to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Piece {
    /// Bytes of the send buffer, from this position on.
    Bytes {
        /// The position of the first.
        from: u32,
        /// Their number.
        len: u32,
    },
    /// Bytes of a file.
    Range {
        /// The file's number.
        file: u16,
        /// The first byte's offset.
        offset: u64,
        /// The number of bytes.
        len: u32,
    },
}

impl Piece {
    /// Its address; `None`: no address names it.
    pub fn address(self) -> Option<u64> {
        match self {
            Self::Bytes { from, len } => {
                let high = u64::from(from & 0x7fff_ffff) << 32 | u64::from(from >> 31) << 31;
                (1..=SEND_BYTES)
                    .contains(&len)
                    .then_some(high | u64::from(len))
            }
            Self::Range { file, offset, len } => {
                let page = offset >> PAGE_BITS;
                let is_whole = offset.is_multiple_of(1 << PAGE_BITS);
                if !is_whole || page >= PAGES || file >= FILES || !(1..=RANGE_MAX).contains(&len) {
                    return None;
                }
                Some(RANGE | u64::from(file) << 54 | page << LEN_BITS | u64::from(len))
            }
        }
    }

    /// What an address names; `None`: nothing.
    pub fn from_address(address: u64) -> Option<Self> {
        let len = address as u32 & RANGE_MAX;
        let piece = match address & RANGE {
            0 => Self::Bytes {
                from: (address >> 32) as u32 | (address as u32 >> 31) << 31,
                len,
            },
            _ => Self::Range {
                file: (address >> 54) as u16 & (FILES - 1),
                offset: (address >> LEN_BITS & (PAGES - 1)) << PAGE_BITS,
                len,
            },
        };
        (piece.address() == Some(address)).then_some(piece)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn an_address_names_one_piece(address: u64, from: u32, len in 1..=SEND_BYTES) {
            if let Some(piece) = Piece::from_address(address) {
                prop_assert_eq!(piece.address(), Some(address));
            }
            let piece = Piece::Bytes { from, len };
            prop_assert_eq!(piece.address().and_then(Piece::from_address), Some(piece));
        }

        #[test]
        fn a_range_is_named_or_refused(file: u16, offset in 0_u64..1 << 40, len: u32) {
            let piece = Piece::Range { file, offset, len };
            if let Some(address) = piece.address() {
                prop_assert_eq!(Piece::from_address(address), Some(piece));
            }
            let whole = Piece::Range { file: file % FILES, offset: offset >> 14 << 12, len: 1 };
            prop_assert!(whole.address().is_some());
        }
    }
}
