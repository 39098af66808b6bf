//! Logs of web servers, captures and traces of caches, as columns.
//!
//! [`open`] takes any reader and decompresses it if needed (gzip, Zstandard; detected by the first
//! bytes). [`read_requests`] reads the contents of a log: times, clients, objects, sizes
//! ([`Requests`]). [`read_accesses`] reads what a cache of connection state sees: times and session
//! identifiers ([`Accesses`]). Formats are detected by content ([`Format::detect`]) unless the
//! caller specifies one. Sources are read in blocks; only the columns stay in memory.
//!
//! Lines that cannot be read are counted by [`Reason`] and left out; past a share of
//! [`ReadOptions::max_bad`] reading stops with an error that names file, line and reason.
//!
//! Absent by design: files, clocks, threads. Whoever calls opens the file.
#![forbid(unsafe_code)]

mod accesses;
mod builder;
mod error;
mod field;
pub mod format;
mod gzip;
mod hash;
mod intern;
mod lines;
mod read;
mod reason;
mod records;
pub mod references;
mod requests;
mod sessions;
mod source;
mod stamp;

pub use accesses::{Accesses, HINT_CLOSING, HINT_NONE, HINT_OPENING, TIME_MAX_US};
pub use error::{Fault, Place, TraceError};
pub use format::Format;
pub use format::capture::Packets;
pub use format::csv::{Column, ColumnMap, TimeUnit};
pub use hash::{address_of_name, hash64};
pub use intern::{NameTable, NumberTable};
pub use read::{Limits, ReadOptions, read_accesses, read_requests};
pub use reason::{Passed, Reason, Report};
pub use requests::{BYTES_UNKNOWN, Client, Origin, Requests};
pub use sessions::EndpointTable;
pub use source::{Source, open};
