//! The laboratory's own file: accesses as columns. docs/trace-format.md describes it.
//!
//! A header of 64 bytes, then chunks: a kind (u32), a length (u32), that many bytes, and their
//! CRC-32. All numbers are little-endian.

use std::io::{self, Write};

use fairlead_base::{Address, Endpoint};

use crate::accesses::{Accesses, HINT_OPENING, TIME_MAX_US};
use crate::error::{Fault, Place, TraceError};
use crate::read::Watch;
use crate::sessions::EndpointTable;
use crate::source::{Source, fill};

/// Magic number. Its first byte is not text, and its line ends reveal a copy in text mode.
const MAGIC: [u8; 8] = *b"\x93FLAB\r\n\x1a";
const VERSION: u16 = 1;
const HEADER_BYTES: usize = 64;
/// Bytes of the header that its checksum covers.
const CHECKED_BYTES: usize = 60;
/// Bytes of the header that are zero.
const ZEROS: [core::ops::Range<usize>; 2] = [10..12, 32..CHECKED_BYTES];

const KEYS: u32 = 1;
const ROWS: u32 = 2;
const END: u32 = 0;

const KEY_BYTES: usize = 18;
/// Maximum keys per chunk.
const CHUNK_KEYS: usize = 1 << 16;
/// Maximum rows per chunk.
const CHUNK_ROWS: usize = 1 << 16;
/// Bytes of a chunk before its content.
const CHUNK_HEAD_BYTES: u64 = 8;
/// Maximum bytes per chunk: rows with wide times, ids and hints, and the chunk's header.
const CHUNK_BYTES_MAX: usize = CHUNK_ROWS * 13 + 16;

/// Times of a chunk as 32-bit distances from its first, or all 64 bits.
const TIMES_32: u32 = 0;
const TIMES_64: u32 = 1;

/// The latest time: row times count from the first, which may be as far before the origin as the
/// last is after it.
const TIME_MAX: u64 = 2 * TIME_MAX_US.unsigned_abs();

/// In the header: rows have hints.
const FLAG_HINTS: u32 = 1;

pub(crate) fn begins(head: &[u8]) -> bool {
    head.starts_with(&MAGIC)
}

/// Writes accesses.
///
/// # Errors
/// When `out` cannot be written; [`io::ErrorKind::InvalidInput`] for times that the reader would
/// refuse: those that run backwards, do not count from the first or lie 146,000 years behind it.
pub fn write(accesses: &Accesses, out: impl Write) -> io::Result<()> {
    if let Some(first) = accesses.time_us.first() {
        check_times(&accesses.time_us, 0, *first)
            .map_err(|fault| io::Error::new(io::ErrorKind::InvalidInput, fault))?;
    }
    let mut out = io::BufWriter::with_capacity(1 << 20, out);
    let hints = !accesses.hint.is_empty();
    let mut header = [0u8; HEADER_BYTES];
    header[..8].copy_from_slice(&MAGIC);
    header[8..10].copy_from_slice(&VERSION.to_le_bytes());
    header[12..16].copy_from_slice(&u32::from(hints).to_le_bytes());
    header[16..24].copy_from_slice(&(accesses.len() as u64).to_le_bytes());
    header[24..32].copy_from_slice(&(accesses.keys.len() as u64).to_le_bytes());
    let sum = crc32fast::hash(&header[..CHECKED_BYTES]);
    header[CHECKED_BYTES..].copy_from_slice(&sum.to_le_bytes());
    out.write_all(&header)?;
    let mut bytes = Vec::with_capacity(CHUNK_BYTES_MAX);
    for keys in accesses.keys.chunks(CHUNK_KEYS) {
        bytes.clear();
        for key in keys {
            bytes.extend_from_slice(&key.addr.0);
            bytes.extend_from_slice(&key.port.to_le_bytes());
        }
        chunk(&mut out, KEYS, &bytes)?;
    }
    for from in (0..accesses.len()).step_by(CHUNK_ROWS) {
        let to = accesses.len().min(from + CHUNK_ROWS);
        bytes.clear();
        times(&mut bytes, &accesses.time_us[from..to]);
        for id in &accesses.id[from..to] {
            bytes.extend_from_slice(&id.to_le_bytes());
        }
        if hints {
            bytes.extend_from_slice(&accesses.hint[from..to]);
        }
        chunk(&mut out, ROWS, &bytes)?;
    }
    chunk(&mut out, END, &[])?;
    out.flush()
}

fn times(bytes: &mut Vec<u8>, times: &[u64]) {
    let (first, last) = (times[0], times[times.len() - 1]);
    let narrow = last.wrapping_sub(first) <= u64::from(u32::MAX);
    let width = if narrow { TIMES_32 } else { TIMES_64 };
    bytes.extend_from_slice(&(times.len() as u32).to_le_bytes());
    bytes.extend_from_slice(&width.to_le_bytes());
    bytes.extend_from_slice(&first.to_le_bytes());
    for time in times {
        let since = time.wrapping_sub(first);
        if narrow {
            bytes.extend_from_slice(&(since as u32).to_le_bytes());
        } else {
            bytes.extend_from_slice(&since.to_le_bytes());
        }
    }
}

fn chunk(out: &mut impl Write, kind: u32, bytes: &[u8]) -> io::Result<()> {
    out.write_all(&kind.to_le_bytes())?;
    out.write_all(&(bytes.len() as u32).to_le_bytes())?;
    out.write_all(bytes)?;
    out.write_all(&crc32fast::hash(bytes).to_le_bytes())
}

/// What the header says.
struct Header {
    rows: u64,
    keys: u64,
    hints: bool,
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    let four = bytes.get(at..).and_then(|rest| rest.first_chunk::<4>());
    four.map_or(0, |four| u32::from_le_bytes(*four))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    let eight = bytes.get(at..).and_then(|rest| rest.first_chunk::<8>());
    eight.map_or(0, |eight| u64::from_le_bytes(*eight))
}

impl Header {
    fn parse(bytes: &[u8; HEADER_BYTES]) -> Result<Self, (Place, Fault)> {
        let damaged =
            |at: usize, what: &str| Err((Place::Byte(at as u64), Fault::Damaged(what.to_owned())));
        if !begins(bytes) {
            let fault = Fault::Unknown("not a file of the laboratory".to_owned());
            return Err((Place::File, fault));
        }
        if crc32fast::hash(&bytes[..CHECKED_BYTES]) != u32_at(bytes, CHECKED_BYTES) {
            return damaged(CHECKED_BYTES, "the header's checksum is wrong");
        }
        let version = u16::from_le_bytes([bytes[8], bytes[9]]);
        if version != VERSION {
            return Err((Place::File, Fault::Version(version)));
        }
        if let Some(at) = ZEROS.into_iter().flatten().find(|at| bytes[*at] != 0) {
            return damaged(at, "a byte of the header that is zero in version 1 is not");
        }
        let flags = u32_at(bytes, 12);
        let header = Self {
            rows: u64_at(bytes, 16),
            keys: u64_at(bytes, 24),
            hints: flags & FLAG_HINTS != 0,
        };
        if flags & !FLAG_HINTS != 0 {
            return damaged(12, "the header has flags that do not exist");
        }
        // More than rows, too: a synthetic workload may end before all have had an access.
        if header.keys >= u64::from(u32::MAX) {
            return damaged(24, "too many sessions");
        }
        Ok(header)
    }
}

/// Reads chunks.
struct Chunks<'a> {
    source: &'a mut Source,
    bytes: Vec<u8>,
    offset: u64,
}

impl Chunks<'_> {
    /// Fills `count` bytes, all of them.
    fn exactly(&mut self, count: usize, what: &str) -> Result<(), (Place, Fault)> {
        self.bytes.resize(count, 0);
        let place = Place::Byte(self.offset);
        let filled = fill(self.source, &mut self.bytes);
        let filled = filled.map_err(|error| (place, Fault::of_io(error)))?;
        self.offset += filled as u64;
        if filled < count {
            return Err((place, Fault::Cut(what.to_owned())));
        }
        Ok(())
    }

    /// No data may follow the last chunk.
    fn end(&mut self) -> Result<(), (Place, Fault)> {
        let place = Place::Byte(self.offset);
        match fill(self.source, &mut [0]) {
            Ok(0) => Ok(()),
            Ok(_) => {
                let what = "data after the last chunk".to_owned();
                Err((place, Fault::Damaged(what)))
            }
            Err(error) => Err((place, Fault::of_io(error))),
        }
    }

    /// The next chunk's kind; its bytes are in `self.bytes`, without the checksum.
    fn next(&mut self) -> Result<u32, (Place, Fault)> {
        let place = Place::Byte(self.offset);
        self.exactly(CHUNK_HEAD_BYTES as usize, "a chunk's head")?;
        let (kind, len) = (u32_at(&self.bytes, 0), u32_at(&self.bytes, 4) as usize);
        if len > CHUNK_BYTES_MAX.max(CHUNK_KEYS * KEY_BYTES) {
            let fault = Fault::Damaged(format!("a chunk of {len} bytes"));
            return Err((place, fault));
        }
        self.exactly(len + 4, "a chunk")?;
        let sum = u32_at(&self.bytes, len);
        self.bytes.truncate(len);
        if crc32fast::hash(&self.bytes) != sum {
            let fault = Fault::Damaged("a chunk's checksum is wrong".to_owned());
            return Err((place, fault));
        }
        Ok(kind)
    }
}

/// Keys reserved before a row is seen: a header alone must not make memory grow.
const RESERVE_MAX: u64 = 1 << 22;

pub(crate) fn read(source: &mut Source, watch: &mut Watch<'_>) -> Result<Accesses, TraceError> {
    let mut chunks = Chunks {
        source,
        bytes: Vec::new(),
        offset: 0,
    };
    let result = read_chunks(&mut chunks, watch);
    result.map_err(|halt| match halt {
        Halt::Here(place, fault) => watch.error(place, fault),
        Halt::Whole(error) => error,
    })
}

enum Halt {
    Here(Place, Fault),
    Whole(TraceError),
}

impl From<(Place, Fault)> for Halt {
    fn from((place, fault): (Place, Fault)) -> Self {
        Self::Here(place, fault)
    }
}

fn read_chunks(chunks: &mut Chunks<'_>, watch: &mut Watch<'_>) -> Result<Accesses, Halt> {
    chunks.exactly(HEADER_BYTES, "the header")?;
    let header: &[u8; HEADER_BYTES] = chunks.bytes.first_chunk().unwrap_or(&[0; HEADER_BYTES]);
    let header = Header::parse(header)?;
    let limits = watch.limits();
    if header.keys > u64::from(limits.sessions_max) {
        let fault = Fault::TooManySessions(limits.sessions_max);
        return Err((Place::File, fault).into());
    }
    let rows = header.rows.min(RESERVE_MAX) as usize;
    let mut accesses = Accesses {
        time_us: Vec::with_capacity(rows),
        id: Vec::with_capacity(rows),
        keys: Vec::with_capacity(header.keys.min(RESERVE_MAX) as usize),
        hint: Vec::new(),
    };
    let mut sessions = SessionChunks::default();
    loop {
        let at = chunks.offset;
        let place = Place::Byte(at);
        let kind = chunks.next()?;
        watch.add_bytes(chunks.bytes.len() as u64 + 12);
        let damaged = |what: &str| (place, Fault::Damaged(what.to_owned()));
        match kind {
            KEYS => {
                let first = accesses.keys.len();
                add_keys(&mut accesses.keys, &chunks.bytes).map_err(damaged)?;
                if accesses.keys.len() > first {
                    sessions.0.push((first, at + CHUNK_HEAD_BYTES));
                }
            }
            ROWS => add_rows(&mut accesses, &chunks.bytes, &header).map_err(damaged)?,
            END if !chunks.bytes.is_empty() => {
                return Err(damaged("the last chunk has a content").into());
            }
            END => {
                chunks.end()?;
                break;
            }
            other => return Err(damaged(&format!("a chunk of kind {other}")).into()),
        }
        if accesses.keys.len() as u64 > header.keys || accesses.len() as u64 > header.rows {
            return Err(damaged("more rows or sessions than the header says").into());
        }
        let rows = accesses.len() as u64;
        watch.turn(rows).map_err(Halt::Whole)?;
    }
    let (rows, keys) = (accesses.len() as u64, accesses.keys.len() as u64);
    if rows != header.rows || keys != header.keys {
        let what = "fewer rows or sessions than the header says";
        let end = Place::Byte(chunks.offset);
        return Err((end, Fault::Damaged(what.to_owned())).into());
    }
    sessions.check(&accesses.keys)?;
    Ok(accesses)
}

/// Chunks with sessions: the number of each one's first, and the byte where that is.
#[derive(Default)]
struct SessionChunks(Vec<(usize, u64)>);

impl SessionChunks {
    /// Are no two sessions equal? Looked at once, when all are there.
    fn check(&self, keys: &[Endpoint]) -> Result<(), (Place, Fault)> {
        let mut table = EndpointTable::default();
        let known =
            |(number, key): (usize, &Endpoint)| table.number(*key, u32::MAX) != Some(number as u32);
        let Some(number) = keys.iter().enumerate().position(known) else {
            return Ok(());
        };
        let chunk = self.0.partition_point(|(first, _)| *first <= number) - 1;
        let (first, byte) = self.0[chunk];
        let place = Place::Byte(byte + ((number - first) * KEY_BYTES) as u64);
        let what = "a session identifier that is there before";
        Err((place, Fault::Damaged(what.to_owned())))
    }
}

fn add_keys(keys: &mut Vec<Endpoint>, bytes: &[u8]) -> Result<(), &'static str> {
    let (whole, rest) = bytes.as_chunks::<KEY_BYTES>();
    if !rest.is_empty() {
        return Err("a part of a session identifier");
    }
    for key in whole {
        let mut octets = [0u8; 16];
        octets.copy_from_slice(&key[..16]);
        keys.push(Endpoint {
            addr: Address::v6(octets),
            port: u16::from_le_bytes([key[16], key[17]]),
        });
    }
    Ok(())
}

/// Times of a chunk, from the row `from` on, of which the chunk says that its first is `first`.
fn check_times(times: &[u64], from: usize, first: u64) -> Result<(), &'static str> {
    if times[from] != first {
        return Err("the first time is not the one that the chunk says");
    }
    if from == 0 && first != 0 {
        return Err("times do not count from the first");
    }
    // What went beyond 64 bits came out below the first.
    if !times[from.saturating_sub(1)..].is_sorted() {
        return Err("time runs backwards");
    }
    if times.last().is_some_and(|last| *last > TIME_MAX) {
        return Err("a time beyond 146,000 years");
    }
    Ok(())
}

fn add_rows(accesses: &mut Accesses, bytes: &[u8], header: &Header) -> Result<(), &'static str> {
    let (rows, width) = (u32_at(bytes, 0) as usize, u32_at(bytes, 4));
    let first = u64_at(bytes, 8);
    let time_bytes = match width {
        TIMES_32 => 4,
        TIMES_64 => 8,
        _ => return Err("times of a width that does not exist"),
    };
    let row_bytes = time_bytes + 4 + usize::from(header.hints);
    if rows == 0 || rows > CHUNK_ROWS || bytes.len() != 16 + rows * row_bytes {
        return Err("a chunk's length is not that of its rows");
    }
    let (times, rest) = bytes[16..].split_at(rows * time_bytes);
    let (ids, hints) = rest.split_at(rows * 4);
    let before = accesses.len();
    if width == TIMES_32 {
        let (times, _) = times.as_chunks::<4>();
        let since = times
            .iter()
            .map(|time| u64::from(u32::from_le_bytes(*time)));
        accesses
            .time_us
            .extend(since.map(|since| first.wrapping_add(since)));
    } else {
        let (times, _) = times.as_chunks::<8>();
        let since = times.iter().map(|time| u64::from_le_bytes(*time));
        accesses
            .time_us
            .extend(since.map(|since| first.wrapping_add(since)));
    }
    let (ids, _) = ids.as_chunks::<4>();
    accesses
        .id
        .extend(ids.iter().map(|id| u32::from_le_bytes(*id)));
    accesses.hint.extend_from_slice(hints);
    check_times(&accesses.time_us, before, first)?;
    // No branches: the largest is found in vectors.
    if hints.iter().fold(0, |most, hint| most.max(*hint)) > HINT_OPENING {
        return Err("a hint that does not exist");
    }
    let largest = accesses.id[before..].iter().copied().max().unwrap_or(0);
    if largest as usize >= accesses.keys.len() {
        return Err("a row of a session that is not there");
    }
    Ok(())
}
