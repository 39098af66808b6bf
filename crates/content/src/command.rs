//! The device's commands (figure 6 of the paper) and their descriptors.
//!
//! A descriptor is two little-endian words of 64 bits:
//!
//! | word | bits | meaning |
//! |---|---|---|
//! | 0 | 0–51 | address in host memory |
//! | 0 | 52–55 | command: 1 init, 2 insert, 3 append memory, 4 append cache |
//! | 0 | 56–63 | flags |
//! | 1 | 0–39 | offset in the cache |
//! | 1 | 40–63 | length |

use crate::block::{CacheOffset, Extent, HostAddress};

/// Length of a descriptor.
pub const DESCRIPTOR_BYTES: usize = 16;

/// Flags of an append.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flags {
    /// The packet begins with this piece.
    pub first: bool,
    /// The packet ends with this piece.
    pub last: bool,
    /// The device computes the packet's checksums; counts at the last piece.
    pub checksum: bool,
}

/// What the device does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    /// Prepares the cache; its completion has the size.
    Init,
    /// Copies host memory into the cache.
    Insert {
        /// Where the bytes are.
        from: HostAddress,
        /// Where they go.
        to: Extent,
    },
    /// Appends host memory to the packet.
    AppendMemory {
        /// Where the bytes are.
        from: HostAddress,
        /// How many.
        len: u32,
        /// First, last.
        flags: Flags,
    },
    /// Appends a part of the cache to the packet.
    AppendCache {
        /// Which part.
        from: Extent,
        /// First, last.
        flags: Flags,
    },
}

/// Why a descriptor is no command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DescriptorError {
    /// No such command.
    Command(u8),
    /// Flags that do not exist, or that this command does not have.
    Flags(u8),
    /// A field that this command does not have is not 0.
    UnusedField,
    /// No bytes.
    Length,
}

impl core::fmt::Display for DescriptorError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::Command(code) => write!(f, "no command has the number {code}"),
            Self::Flags(flags) => write!(f, "flags {flags:#04x} do not belong to this command"),
            Self::UnusedField => write!(f, "a field that this command does not use is not 0"),
            Self::Length => write!(f, "the length is 0"),
        }
    }
}

impl core::error::Error for DescriptorError {}

impl Command {
    /// Largest address, offset and length that a descriptor holds.
    pub const ADDRESS_MAX: u64 = (1 << 52) - 1;
    /// See [`Self::ADDRESS_MAX`].
    pub const OFFSET_MAX: u64 = (1 << 40) - 1;
    /// See [`Self::ADDRESS_MAX`].
    pub const LENGTH_MAX: u32 = (1 << 24) - 1;

    /// The descriptor; `None` if a value does not fit.
    pub fn encode(self) -> Option<[u8; DESCRIPTOR_BYTES]> {
        let none = Extent {
            at: CacheOffset(0),
            len: 0,
        };
        let (code, address, extent, flags) = match self {
            Self::Init => (INIT, HostAddress(0), none, Flags::default()),
            Self::Insert { from, to } => (INSERT, from, to, Flags::default()),
            Self::AppendMemory { from, len, flags } => {
                (APPEND_MEMORY, from, Extent { len, ..none }, flags)
            }
            Self::AppendCache { from, flags } => (APPEND_CACHE, HostAddress(0), from, flags),
        };
        let fits = address.0 <= Self::ADDRESS_MAX
            && extent.at.0 <= Self::OFFSET_MAX
            && extent.len <= Self::LENGTH_MAX;
        if !fits {
            return None;
        }
        let first = address.0 | u64::from(code) << 52 | u64::from(flags.bits()) << 56;
        let second = extent.at.0 | u64::from(extent.len) << 40;
        let mut out = [0; DESCRIPTOR_BYTES];
        out[..8].copy_from_slice(&first.to_le_bytes());
        out[8..].copy_from_slice(&second.to_le_bytes());
        Some(out)
    }

    /// Reads a descriptor.
    ///
    /// # Errors
    /// When it is no command that [`Self::encode`] writes.
    pub fn decode(bytes: &[u8; DESCRIPTOR_BYTES]) -> Result<Self, DescriptorError> {
        let word = |from: usize| {
            let mut word = [0; 8];
            word.copy_from_slice(&bytes[from..from + 8]);
            u64::from_le_bytes(word)
        };
        let (first, second) = (word(0), word(8));
        let from = HostAddress(first & Self::ADDRESS_MAX);
        let extent = Extent {
            at: CacheOffset(second & Self::OFFSET_MAX),
            len: (second >> 40) as u32,
        };
        let bits = (first >> 56) as u8;
        let code = (first >> 52 & 0xf) as u8;
        let known = Flags::from_bits(bits).ok_or(DescriptorError::Flags(bits));
        let without = |unused: bool| {
            if unused {
                Ok(())
            } else {
                Err(DescriptorError::UnusedField)
            }
        };
        let some = || {
            if extent.len > 0 {
                Ok(())
            } else {
                Err(DescriptorError::Length)
            }
        };
        let plain = || {
            if bits == 0 {
                Ok(())
            } else {
                Err(DescriptorError::Flags(bits))
            }
        };
        match code {
            INIT => {
                plain()?;
                without(from.0 == 0 && second == 0)?;
                Ok(Self::Init)
            }
            INSERT => {
                plain()?;
                some()?;
                Ok(Self::Insert { from, to: extent })
            }
            APPEND_MEMORY => {
                let flags = known?;
                without(extent.at.0 == 0)?;
                some()?;
                let len = extent.len;
                Ok(Self::AppendMemory { from, len, flags })
            }
            APPEND_CACHE => {
                let flags = known?;
                without(from.0 == 0)?;
                some()?;
                Ok(Self::AppendCache {
                    from: extent,
                    flags,
                })
            }
            other => Err(DescriptorError::Command(other)),
        }
    }
}

const INIT: u8 = 1;
const INSERT: u8 = 2;
const APPEND_MEMORY: u8 = 3;
const APPEND_CACHE: u8 = 4;

const FIRST: u8 = 1;
const LAST: u8 = 2;
const CHECKSUM: u8 = 4;

impl Flags {
    fn bits(self) -> u8 {
        u8::from(self.first) * FIRST
            + u8::from(self.last) * LAST
            + u8::from(self.checksum) * CHECKSUM
    }

    fn from_bits(bits: u8) -> Option<Self> {
        let has = |flag: u8| bits & flag != 0;
        (bits & !(FIRST | LAST | CHECKSUM) == 0).then(|| Self {
            first: has(FIRST),
            last: has(LAST),
            checksum: has(CHECKSUM),
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn commands() -> impl Strategy<Value = Command> {
        let address = || (0..=Command::ADDRESS_MAX).prop_map(HostAddress);
        let extent = || {
            (0..=Command::OFFSET_MAX, 1..=Command::LENGTH_MAX).prop_map(|(at, len)| Extent {
                at: CacheOffset(at),
                len,
            })
        };
        let flags = || {
            any::<[bool; 3]>().prop_map(|[first, last, checksum]| Flags {
                first,
                last,
                checksum,
            })
        };
        prop_oneof![
            Just(Command::Init),
            (address(), extent()).prop_map(|(from, to)| Command::Insert { from, to }),
            (address(), 1..=Command::LENGTH_MAX, flags())
                .prop_map(|(from, len, flags)| Command::AppendMemory { from, len, flags }),
            (extent(), flags()).prop_map(|(from, flags)| Command::AppendCache { from, flags }),
        ]
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(command in commands()) {
            let written = command.encode().expect("fits");
            prop_assert_eq!(Command::decode(&written), Ok(command));
        }

        #[test]
        fn what_is_read_is_written_the_same(bytes in any::<[u8; DESCRIPTOR_BYTES]>()) {
            if let Ok(command) = Command::decode(&bytes) {
                prop_assert_eq!(command.encode(), Some(bytes));
            }
        }
    }

    #[test]
    fn what_does_not_fit_is_not_written() {
        let flags = Flags::default();
        let len = 1;
        let from = HostAddress(1 << 52);
        assert_eq!(Command::AppendMemory { from, len, flags }.encode(), None);
        let from = HostAddress(1);
        let len = 1 << 24;
        assert_eq!(Command::AppendMemory { from, len, flags }.encode(), None);
    }

    #[test]
    fn wrong_descriptors_are_named() {
        let decode = |first: u64, second: u64| {
            let mut bytes = [0; DESCRIPTOR_BYTES];
            bytes[..8].copy_from_slice(&first.to_le_bytes());
            bytes[8..].copy_from_slice(&second.to_le_bytes());
            Command::decode(&bytes).unwrap_err()
        };
        assert_eq!(decode(0, 0), DescriptorError::Command(0));
        assert_eq!(decode(1 << 52 | 1, 0), DescriptorError::UnusedField);
        assert_eq!(decode(2 << 52, 0), DescriptorError::Length);
        assert_eq!(
            decode(2 << 52 | 1 << 56, 1 << 40),
            DescriptorError::Flags(1)
        );
        assert_eq!(
            decode(3 << 52 | 8 << 56, 1 << 40),
            DescriptorError::Flags(8)
        );
    }
}
