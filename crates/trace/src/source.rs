//! A trace's bytes, unpacked.

use std::io::{self, BufReader, Read};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::error::{Fault, Place, TraceError};
use crate::format::Format;
use crate::gzip::{GZIP_MAGIC, Members};

/// Read at a time, bytes.
pub(crate) const BLOCK_BYTES: usize = 1 << 20;

/// Bytes read at a time for decompression. Not more than detection needs, so that uncompressed data
/// is not copied.
const PACKED_BYTES: usize = HEAD_BYTES;

/// Bytes used for format detection.
pub(crate) const HEAD_BYTES: usize = 64 << 10;

/// The largest Zstandard window that is unpacked, as a power of two: 128 MiB, the default limit of
/// the reference tool.
const ZSTD_WINDOW_LOG_MAX: u32 = 27;

const ZSTD_MAGIC: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];
/// Of frames that are skipped, the last three bytes; the first is 50 to 5f. `pzstd` puts one first.
const ZSTD_SKIPPED: [u8; 3] = [0x2a, 0x4d, 0x18];

/// What some editors and spreadsheets put before text in UTF-8.
const BYTE_ORDER_MARK: [u8; 3] = [0xef, 0xbb, 0xbf];

/// What is packed otherwise, or is no plain text, by its first bytes; and what to do.
const PACKED: [(&[u8], &str); 9] = [
    (b"\xfd7zXZ\0", "packed by xz; unpack it (xz -dc)"),
    (b"BZh91AY&SY", "packed by bzip2; unpack it (bzip2 -dc)"),
    (b"\x1f\x9d", "packed by compress; unpack it (zcat)"),
    (b"PK\x03\x04", "a ZIP archive; unpack it (unzip -p)"),
    (b"7z\xbc\xaf\x27\x1c", "a 7z archive; unpack it (7z x -so)"),
    (b"\x04\x22\x4d\x18", "packed by lz4; unpack it (lz4 -dc)"),
    (
        b"PAR1",
        "a Parquet file; read it in Python, and give its columns (from_table)",
    ),
    (
        b"\xff\xfe",
        "text in UTF-16; write it in UTF-8 (iconv -f UTF-16 -t UTF-8)",
    ),
    (
        b"\xfe\xff",
        "text in UTF-16; write it in UTF-8 (iconv -f UTF-16 -t UTF-8)",
    ),
];

/// Where the header of a tar archive's first file says so.
const TAR: (usize, &[u8]) = (257, b"ustar");

/// An opened trace. Reads as the unpacked bytes.
pub struct Source {
    name: String,
    inner: Box<dyn Read + Send>,
    /// The first bytes, and how many of them were consumed.
    head: Vec<u8>,
    given: usize,
    taken: Arc<AtomicU64>,
}

impl core::fmt::Debug for Source {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let mut fields = f.debug_struct("Source");
        fields.field("name", &self.name).finish_non_exhaustive()
    }
}

/// Opens a trace; `name` is for messages and helps format detection. Compression is detected by the
/// first bytes.
///
/// # Errors
/// When the first bytes cannot be read or unpacked.
pub fn open(
    name: impl Into<String>,
    reader: impl Read + Send + 'static,
) -> Result<Source, TraceError> {
    let name = name.into();
    let taken = Arc::new(AtomicU64::new(0));
    let counted = Counted {
        reader,
        taken: Arc::clone(&taken),
    };
    let failed = |error| TraceError {
        name: name.clone(),
        place: Place::Byte(0),
        fault: Fault::of_io(error),
    };
    let mut inner = unpacked(counted).map_err(failed)?;
    let mut head = vec![0; HEAD_BYTES];
    let filled = fill(&mut inner, &mut head).map_err(failed)?;
    head.truncate(filled);
    if head.starts_with(&BYTE_ORDER_MARK) && !head.contains(&0) {
        head.drain(..BYTE_ORDER_MARK.len());
    }
    Ok(Source {
        name,
        inner,
        head,
        given: 0,
        taken,
    })
}

fn unpacked(mut raw: impl Read + Send + 'static) -> io::Result<Box<dyn Read + Send>> {
    // A pipe may give them one by one.
    let mut first = [0; ZSTD_MAGIC.len()];
    let filled = fill(&mut raw, &mut first)?;
    let again = io::Cursor::new(first).take(filled as u64);
    let raw = BufReader::with_capacity(PACKED_BYTES, again.chain(raw));
    let first = &first[..filled];
    if first.starts_with(&ZSTD_MAGIC) || begins_with_skipped(first) {
        let mut decoder = zstd::Decoder::with_buffer(raw)?;
        decoder.window_log_max(ZSTD_WINDOW_LOG_MAX)?;
        return Ok(Box::new(decoder));
    }
    if first.starts_with(&GZIP_MAGIC) {
        return Ok(Box::new(Members::new(raw)));
    }
    Ok(Box::new(raw))
}

fn begins_with_skipped(first: &[u8]) -> bool {
    let kind = first.first().is_some_and(|byte| byte & 0xf0 == 0x50);
    kind && first[1..].starts_with(&ZSTD_SKIPPED)
}

/// For an unsupported compression format: its name, and what to do.
fn packed(head: &[u8]) -> Option<&'static str> {
    let is_tar = head
        .get(TAR.0..)
        .is_some_and(|rest| rest.starts_with(TAR.1));
    if is_tar {
        return Some("a tar archive; name one file, unpacked (tar -xO)");
    }
    let known = PACKED.iter().find(|(magic, _)| head.starts_with(magic));
    known.map(|(_, what)| *what)
}

/// Reads until `buffer` is full or the input ends; returns the number of bytes.
pub(crate) fn fill(reader: &mut impl Read, buffer: &mut [u8]) -> io::Result<usize> {
    let mut filled = 0;
    while filled < buffer.len() {
        match reader.read(&mut buffer[filled..]) {
            Ok(0) => break,
            Ok(count) => filled += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}

impl Source {
    /// The name it was opened with.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Detects the format by the first bytes.
    ///
    /// # Errors
    /// The format is unknown, or the trace is empty.
    pub fn detect(&self) -> Result<Format, TraceError> {
        if self.head.is_empty() {
            return Err(self.error(Place::File, Fault::Empty("byte")));
        }
        Format::detect(&self.name, &self.head).map_err(|complaint| {
            let fault = packed(&self.head).map_or(Fault::Unknown(complaint), Fault::Packed);
            self.error(Place::File, fault)
        })
    }

    /// The bytes used for format detection.
    pub(crate) fn head(&self) -> &[u8] {
        &self.head
    }

    /// A count of the bytes read from below, as they are stored.
    pub(crate) fn taken(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.taken)
    }

    pub(crate) fn error(&self, place: Place, fault: Fault) -> TraceError {
        TraceError {
            name: self.name.clone(),
            place,
            fault,
        }
    }
}

impl Read for Source {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let rest = &self.head[self.given..];
        if rest.is_empty() {
            return self.inner.read(buffer);
        }
        let count = rest.len().min(buffer.len());
        buffer[..count].copy_from_slice(&rest[..count]);
        self.given += count;
        Ok(count)
    }
}

struct Counted<R> {
    reader: R,
    taken: Arc<AtomicU64>,
}

impl<R: Read> Read for Counted<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.reader.read(buffer)?;
        self.taken.fetch_add(count as u64, Ordering::Relaxed);
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    /// Gives a byte at a time, as a pipe may.
    struct Dripping(io::Cursor<Vec<u8>>);

    impl Read for Dripping {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            let one = buffer.len().min(1);
            self.0.read(&mut buffer[..one])
        }
    }

    #[test]
    fn compression_is_detected_with_short_reads() {
        let plain = b"1,10.0.0.1,7\n";
        let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        gzip.write_all(plain).unwrap();
        let zstd = zstd::encode_all(&plain[..], 1).unwrap();
        for packed in [zstd, gzip.finish().unwrap(), plain.to_vec(), b"1".to_vec()] {
            let is_short = packed.len() == 1;
            let bytes = Dripping(io::Cursor::new(packed));
            let mut text = Vec::new();
            open("x", bytes).unwrap().read_to_end(&mut text).unwrap();
            assert_eq!(text, if is_short { &plain[..1] } else { &plain[..] });
        }
    }
}
