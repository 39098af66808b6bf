//! The answer of a scanner that is shown a growing run of bytes.

use core::fmt;

/// A scanner's verdict on the bytes so far. Every verdict but [`Scan::Incomplete`] is final: more
/// bytes never change it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Scan<T, E> {
    /// Valid so far, but incomplete.
    Incomplete,
    /// Complete.
    Complete(T),
    /// Invalid, whatever bytes follow.
    Malformed(E),
}

impl<T, E> Scan<T, E> {
    /// The result, if complete.
    pub fn complete(self) -> Option<T> {
        match self {
            Self::Complete(whole) => Some(whole),
            Self::Incomplete | Self::Malformed(_) => None,
        }
    }

    /// The error, if there is one.
    pub fn malformed(self) -> Option<E> {
        match self {
            Self::Malformed(error) => Some(error),
            Self::Incomplete | Self::Complete(_) => None,
        }
    }
}

/// What was wrong with bytes that a scanner refused, and where.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Fault {
    /// The name of the rule that is broken.
    pub rule: &'static str,
    /// The offset of the byte that breaks it, from the first byte shown to the scanner; `None`
    /// where it is something missing.
    pub at: Option<u32>,
    /// That byte.
    pub byte: Option<u8>,
}

impl Fault {
    pub(crate) fn new(rule: &'static str, at: Option<usize>, bytes: &[u8]) -> Self {
        Self {
            rule,
            at: at.and_then(|at| u32::try_from(at).ok()),
            byte: at.and_then(|at| bytes.get(at)).copied(),
        }
    }
}

/// `control_byte at 35 byte 0x01`
impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.rule)?;
        if let Some(at) = self.at {
            write!(f, " at {at}")?;
        }
        if let Some(byte) = self.byte {
            write!(f, " byte 0x{byte:02x}")?;
        }
        Ok(())
    }
}
