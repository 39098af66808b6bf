//! One record: an instruction, an access, or a mark.

/// What happened, in the order of execution. The accesses of an instruction follow it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// An instruction was executed.
    Instruction {
        /// Of its first byte.
        address: u64,
        /// In bytes, 1 to 15.
        length: u8,
        /// It is a jump, call or return, taken or not.
        branch: bool,
        /// It is a further round of the instruction before (x86 `rep`): the processor executes one
        /// instruction, which the emulator and Valgrind repeat.
        repeat: bool,
    },
    /// Memory was read.
    Read {
        /// Of the first byte.
        address: u64,
        /// In bytes, 1 to 64.
        size: u8,
    },
    /// Memory was written.
    Write {
        /// Of the first byte.
        address: u64,
        /// In bytes, 1 to 64.
        size: u8,
    },
    /// The work on a packet begins.
    Begin {
        /// Of the packet; [`super::Header::kind_name`] has its name.
        kind: u8,
    },
    /// The work on a packet ends.
    End {
        /// As at its begin.
        kind: u8,
    },
}

/// Bits of an address; the highest one is the sign of the upper half.
const ADDRESS_BITS: u32 = 56;
const ADDRESS_MASK: u64 = (1 << ADDRESS_BITS) - 1;
const SIZE_MASK: u64 = 63;
const LENGTH_MASK: u64 = 15;
const BRANCH: u64 = 16;
const REPEAT: u64 = 32;
const READ: u64 = 1;
const WRITE: u64 = 2;
const MARK: u64 = 3;
const MARK_BEGIN: u64 = 0;
const MARK_END: u64 = 1;
/// The largest access; its size is stored as 0.
const ACCESS_BYTES_MAX: u8 = 64;

fn word(kind: u64, size: u64, address: u64) -> u64 {
    kind << 62 | (size & SIZE_MASK) << ADDRESS_BITS | address & ADDRESS_MASK
}

fn canonical(address: u64) -> u64 {
    let above = u64::BITS - ADDRESS_BITS;
    ((address << above).cast_signed() >> above).cast_unsigned()
}

impl Event {
    /// The record of this event.
    pub fn to_word(self) -> u64 {
        match self {
            Self::Instruction {
                address,
                length,
                branch,
                repeat,
            } => {
                debug_assert!(
                    (1..=15).contains(&length),
                    "an instruction of {length} bytes"
                );
                let flags = u64::from(branch) * BRANCH + u64::from(repeat) * REPEAT;
                word(0, u64::from(length) & LENGTH_MASK | flags, address)
            }
            Self::Read { address, size } => word(READ, u64::from(size), address),
            Self::Write { address, size } => word(WRITE, u64::from(size), address),
            Self::Begin { kind } => word(MARK, MARK_BEGIN, u64::from(kind)),
            Self::End { kind } => word(MARK, MARK_END, u64::from(kind)),
        }
    }

    /// The event of a record; `None` for words that no event has.
    #[inline]
    pub fn from_word(word: u64) -> Option<Self> {
        let address = canonical(word);
        let size = word >> ADDRESS_BITS & SIZE_MASK;
        let access = if size == 0 {
            ACCESS_BYTES_MAX
        } else {
            size as u8
        };
        Some(match word >> 62 {
            0 => {
                let length = (size & LENGTH_MASK) as u8;
                if length == 0 {
                    return None;
                }
                Self::Instruction {
                    address,
                    length,
                    branch: size & BRANCH != 0,
                    repeat: size & REPEAT != 0,
                }
            }
            READ => Self::Read {
                address,
                size: access,
            },
            WRITE => Self::Write {
                address,
                size: access,
            },
            _ => {
                let kind = u8::try_from(word & ADDRESS_MASK).ok()?;
                match size {
                    MARK_BEGIN => Self::Begin { kind },
                    MARK_END => Self::End { kind },
                    _ => return None,
                }
            }
        })
    }
}
