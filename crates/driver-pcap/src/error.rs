//! What can be wrong with a capture file.

use core::fmt;
use std::io;

/// A capture that cannot be read completely. Packets read before the error are valid.
#[derive(Debug, thiserror::Error)]
#[error("{name}: {place}{fault}")]
pub struct CaptureError {
    /// The file.
    pub name: String,
    /// Where it happened.
    pub place: Place,
    /// What happened.
    pub fault: Fault,
}

/// A position in a capture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Packets that were read whole before it.
    pub packets_before: u64,
    /// Offset in the unpacked file, bytes; `None` before anything was read.
    pub offset: Option<u64>,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.offset {
            Some(offset) => {
                let number = self.packets_before + 1;
                write!(f, "packet {number}, byte {offset}: ")
            }
            None => Ok(()),
        }
    }
}

/// What is wrong.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Fault {
    /// The file cannot be opened.
    #[error("cannot be opened: {0}")]
    Open(io::Error),
    /// Reading or unpacking fails.
    #[error("cannot be read on: {0}")]
    Read(io::Error),
    /// The first bytes are those of no capture file.
    #[error("neither pcap nor pcapng: it starts with {0}")]
    Unknown(String),
    /// The file ends in the middle of a record.
    #[error("the file ends in the middle of it")]
    Cut,
    /// A record contradicts itself.
    #[error("the file is damaged here: {0}")]
    Damaged(String),
}
