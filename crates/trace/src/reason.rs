//! Reasons for skipping rows, and the report of reading.

use core::fmt;
use std::collections::BTreeMap;

use crate::Format;
use crate::format::csv::TimeUnit;

/// Why a row cannot be used. Counts towards [`crate::ReadOptions::max_bad`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Reason {
    /// Fewer fields than the format has.
    Fields,
    /// No client, or one longer than 255 bytes.
    Client,
    /// The time cannot be read.
    Time,
    /// No quoted request at its position.
    Request,
    /// The status is no number.
    Status,
    /// The size is neither a number nor `-`.
    Size,
    /// The port is no number below 65,536.
    Port,
    /// A quotation mark is never closed.
    Quote,
    /// Of the columns that were named the header lacks one, or has it twice.
    Header,
    /// A line longer than a mebibyte.
    LineLength,
    /// The file ends in the middle of the row.
    Cut,
    /// A field of a binary record that cannot be.
    Record,
    /// Fewer bytes of a packet than its headers have.
    Snapped,
    /// An IP or TCP header that contradicts itself.
    Headers,
    /// A time without a unit that is thousands of years ahead as seconds, but not as this unit.
    Unit(TimeUnit),
    /// The client is not known; the row is passed over ([`Passed::NoClient`]).
    #[doc(hidden)]
    NoClient,
    /// No room for another client; ends reading.
    #[doc(hidden)]
    Clients,
    /// No room for another session; ends reading.
    #[doc(hidden)]
    Sessions,
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Unit(unit) => {
                let name = unit.name();
                return write!(
                    f,
                    "as seconds the time is after the year 5000; add unit={name} if it counts \
                     {name}, or unit=s"
                );
            }
            Self::NoClient => "the client is not known",
            Self::Fields => "fields are missing",
            Self::Client => "no client that can be read",
            Self::Time => "no time that can be read",
            Self::Request => "no request in quotation marks",
            Self::Status => "no status that can be read",
            Self::Size => "no size that can be read",
            Self::Port => "no port that can be read",
            Self::Quote => "a quotation mark is never closed",
            Self::Header => "of the columns that were named, the header lacks one or has it twice",
            Self::LineLength => "the line is longer than 1 MiB",
            Self::Cut => "the row is cut",
            Self::Record => "a field has a value that cannot be",
            Self::Snapped => "not all of the packet's headers were captured",
            Self::Headers => "the packet's headers contradict themselves",
            Self::Clients => "too many clients",
            Self::Sessions => "too many sessions",
        })
    }
}

/// Why a row is intentionally skipped. Does not count as bad.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Passed {
    /// An empty line.
    Blank,
    /// A comment or a header.
    Comment,
    /// Not TCP; fragments of other protocols are here, too.
    NotTcp,
    /// A fragment without ports: not the first, which represents the whole segment.
    Fragment,
    /// A packet of the other direction ([`crate::Packets::FromClients`]).
    FromServer,
    /// A packet of a link type that is not read.
    Link,
    /// A request whose client the log does not know (`-`, `unix:`).
    NoClient,
    /// A copy of a packet that the capture has already.
    Copy,
}

impl fmt::Display for Passed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Blank => "empty lines",
            Self::Comment => "comments and headers",
            Self::NotTcp => "not TCP",
            Self::Fragment => "later fragments",
            Self::FromServer => "from servers",
            Self::Link => "of a link type that is not read",
            Self::NoClient => "no client",
            Self::Copy => "copies of packets",
        })
    }
}

/// Report of reading.
#[derive(Clone, Debug, PartialEq)]
pub struct Report {
    /// The file.
    pub name: String,
    /// The format it was read as.
    pub format: Format,
    /// Rows in the columns.
    pub rows: u64,
    /// Rows that could not be read, by reason.
    pub bad: BTreeMap<Reason, u64>,
    /// Rows skipped intentionally.
    pub passed: BTreeMap<Passed, u64>,
    /// The first row that could not be read: its line, its packet, or its number in a binary file,
    /// each from 1.
    pub first_bad: Option<(u64, Reason)>,
    /// How often time stepped back from one row to the next.
    pub stepped_back: u64,
    /// For accesses, the first row that is earlier than its predecessor, counted from 1 without
    /// unreadable rows.
    pub first_back: Option<u64>,
    /// Connections of a capture that were open when it began, and whose client was guessed by port
    /// numbers.
    pub guessed: u64,
    /// Earliest and latest time, microseconds since the origin.
    pub span_us: (i64, i64),
    /// Bytes of the unpacked file.
    pub bytes: u64,
}

impl Report {
    pub(crate) fn new(name: &str, format: Format) -> Self {
        Self {
            name: name.to_owned(),
            format,
            rows: 0,
            bad: BTreeMap::new(),
            passed: BTreeMap::new(),
            first_bad: None,
            stepped_back: 0,
            first_back: None,
            guessed: 0,
            span_us: (0, 0),
            bytes: 0,
        }
    }

    /// Rows that could not be read.
    pub fn bad_rows(&self) -> u64 {
        self.bad.values().sum()
    }

    /// Rows, readable or not, without those skipped intentionally.
    pub fn seen(&self) -> u64 {
        self.rows + self.bad_rows()
    }
}

/// Result of reading a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    Row,
    Passed(Passed),
}
