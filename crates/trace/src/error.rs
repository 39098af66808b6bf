//! What can be wrong with a trace as a whole.

use core::fmt;
use std::io;

use crate::gzip::NotGzip;

/// A trace that cannot be read, or not to its end: which file, where, what, and what to do.
#[derive(Debug, thiserror::Error)]
#[error("{name}: {place}{fault}")]
pub struct TraceError {
    /// The file.
    pub name: String,
    /// Where it happened.
    pub place: Place,
    /// What happened.
    pub fault: Fault,
}

/// A place in the unpacked file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// The file as a whole.
    File,
    /// A line; the first is 1.
    Line(u64),
    /// A packet of a capture; the first is 1, as other tools number them.
    Packet(u64),
    /// A row of a binary table; the first is 1.
    Row(u64),
    /// A byte; the first is 0.
    Byte(u64),
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File => Ok(()),
            Self::Line(line) => write!(f, "line {line}: "),
            Self::Packet(packet) => write!(f, "packet {packet}: "),
            Self::Row(row) => write!(f, "row {row}: "),
            Self::Byte(byte) => write!(f, "byte {byte}: "),
        }
    }
}

/// What is wrong.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Fault {
    /// Reading or unpacking fails.
    #[error("cannot be read on ({0}); if it was unpacked or copied, compare it with the original")]
    Read(io::Error),
    /// The file ends in the middle of something.
    #[error("the file ends in the middle of {0}; fetch it again, it was cut")]
    Cut(String),
    /// The gzip data is followed by something else.
    #[error(
        "the gzip data is followed by something else; fetch the file again, or unpack the first \
         part (gzip -dc)"
    )]
    NotGzip,
    /// There is not one row in it.
    #[error("it contains no {0}; is it the right file?")]
    Empty(&'static str),
    /// The content is of no known format.
    #[error(
        "{0}; name the format if you know it with --format, in Python format= (one of: {names})",
        names = crate::format::names()
    )]
    Unknown(String),
    /// Compressed in an unsupported format.
    #[error("it is {0}")]
    Packed(&'static str),
    /// Not one packet is of a link type that is read.
    #[error(
        "its packets are of a link type that is not read; capture Ethernet, Linux cooked, BSD \
         loopback or raw IP"
    )]
    Link,
    /// Not one request has a client.
    #[error(
        "no request has a client that is known (`-` and `unix:` stand for none); without clients \
         there are no sessions"
    )]
    NoClients,
    /// A description of columns that cannot be used.
    #[error("{0}")]
    Columns(String),
    /// Too many lines cannot be read.
    #[error(
        "{reason}; {bad} of the first {seen} rows cannot be read as {format}, more than the {} % \
         that are let pass. Name another format, or let more pass (--max-bad, in Python \
         max_bad)",
        max_bad * 100.0
    )]
    TooManyBad {
        /// What is wrong with this line.
        reason: crate::Reason,
        /// Rows that could not be read so far.
        bad: u64,
        /// All rows so far.
        seen: u64,
        /// The share that is let pass.
        max_bad: f64,
        /// The format it was read as.
        format: &'static str,
    },
    /// Any number may be unreadable, and all rows are.
    #[error("{reason}; not one of its {bad} rows can be read as {format}: name another format")]
    AllBad {
        /// What is wrong with this line.
        reason: crate::Reason,
        /// Rows.
        bad: u64,
        /// The format they were read as.
        format: &'static str,
    },
    /// More clients than are let in.
    #[error("more than {0} clients; read a part of the trace, or raise the limit (below 2^32 - 1)")]
    TooManyClients(u32),
    /// More sessions than are let in.
    #[error(
        "more than {0} sessions; read a part of the trace, or raise the limit (below 2^32 - 1)"
    )]
    TooManySessions(u32),
    /// More rows than are let in.
    #[error("more than {0} rows; read a part of the trace, or raise the limit")]
    TooManyRows(u64),
    /// The file contradicts itself.
    #[error("the file is damaged here: {0}; fetch or write it again")]
    Damaged(String),
    /// A file of a later version of the program.
    #[error("version {0} of the format; this program reads version 1: use a newer one")]
    Version(u16),
    /// Not a trace of references.
    #[error("this is no trace of references; write one with fairlead lab protocol run")]
    NotReferences,
    /// The format holds packets, not requests.
    #[error("{0} has sessions, not requests; read it as accesses (--as accesses)")]
    NoRequests(&'static str),
    /// The format has no client ports.
    #[error("{0} has no client ports; read it as requests, which the model expands")]
    NoPorts(&'static str),
    /// The caller stopped it.
    #[error("stopped")]
    Stopped,
}

impl Fault {
    /// Converts an I/O error. An unexpected end of input means a truncated file.
    pub(crate) fn of_io(error: io::Error) -> Self {
        if error.kind() == io::ErrorKind::UnexpectedEof {
            Self::Cut("the packed stream".to_owned())
        } else if error.get_ref().is_some_and(|inner| inner.is::<NotGzip>()) {
            Self::NotGzip
        } else {
            Self::Read(error)
        }
    }
}
