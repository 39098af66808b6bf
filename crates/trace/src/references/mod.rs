//! Traces of references: each instruction that a program executed, and each access to memory.
//!
//! A file holds records of 8 bytes, in sections of at most [`SECTION_RECORDS`] that are compressed
//! (Zstandard) and have a checksum each. What was traced, and where its objects were loaded, is in
//! a last section ([`Header`]), because it is complete only when the program ends. So a file that
//! was cut is recognized when it is opened.
//!
//! ```text
//! file    = magic, section…, place of the header: offset u64, "FLREFEND"
//! section = tag [4], stored bytes u32, records u32, CRC-32 of the stored bytes u32, stored bytes
//! record  = kind: 2 bits, size: 6 bits, address: 56 bits (its sign is extended); little-endian
//! ```
//!
//! [`Reader`] and [`Writer`] hold one section, whatever the length of the trace.

mod header;
mod reader;
mod record;
mod writer;

#[cfg(test)]
mod tests;

pub use header::{Header, Object, Symbol, Totals};
pub use reader::Reader;
pub use record::Event;
pub use writer::Writer;

/// Records of a section, at most.
pub const SECTION_RECORDS: usize = 1 << 16;
/// Bytes of a record.
pub const RECORD_BYTES: usize = 8;

/// The first bytes of a file; the last one is the version of the format.
const MAGIC: [u8; 8] = *b"\x89FLREFS\x01";
/// The last bytes of a file.
const END: [u8; 8] = *b"FLREFEND";
/// Bytes at the end of a file: where its header is, and [`END`].
const END_BYTES: u64 = 16;
/// Tag of a section of records.
const RECORDS: [u8; 4] = *b"RECS";
/// Tag of the header's section.
const HEADER: [u8; 4] = *b"HEAD";
/// Bytes in front of a section's contents.
const SECTION_HEAD_BYTES: usize = 16;
/// Stored bytes of a section, at most: more than Zstandard makes of incompressible records.
const STORED_BYTES_MAX: u32 = 1 << 20;
