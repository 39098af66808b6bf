//! Bytes of a file, unpacked, with a bounded look ahead.

use std::fs::File;
use std::io::{self, BufReader, Cursor, Read};

use flate2::bufread::MultiGzDecoder;

/// Read at a time.
const CHUNK_BYTES: usize = 256 << 10;

/// The largest supported Zstandard window, as a power of two: 128 MiB, the default limit of the
/// reference tool.
const ZSTD_WINDOW_LOG_MAX: u32 = 27;

const GZIP_MAGIC: [u8; 2] = [0x1f, 0x8b];
const ZSTD_MAGIC: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];

/// Decompressed bytes of a file, with lookahead.
pub(crate) struct Intake {
    source: Box<dyn Read + Send>,
    buffer: Vec<u8>,
    taken: usize,
    filled: usize,
    offset: u64,
}

impl core::fmt::Debug for Intake {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let mut fields = f.debug_struct("Intake");
        fields.field("offset", &self.offset).finish_non_exhaustive()
    }
}

impl Intake {
    pub(crate) fn of_file(file: File) -> io::Result<Self> {
        Self::new(Box::new(file))
    }

    /// Detects compression by the first bytes.
    pub(crate) fn new(mut raw: Box<dyn Read + Send>) -> io::Result<Self> {
        // A pipe may return them one by one; reading to a limit retries until they have arrived.
        let mut first = Vec::with_capacity(ZSTD_MAGIC.len());
        let limit = ZSTD_MAGIC.len() as u64;
        raw.by_ref().take(limit).read_to_end(&mut first)?;
        let is_zstd = first.starts_with(&ZSTD_MAGIC);
        let is_gzip = first.starts_with(&GZIP_MAGIC);
        let raw = BufReader::with_capacity(CHUNK_BYTES, Cursor::new(first).chain(raw));
        let source: Box<dyn Read + Send> = if is_zstd {
            let mut decoder = zstd::Decoder::with_buffer(raw)?;
            decoder.window_log_max(ZSTD_WINDOW_LOG_MAX)?;
            Box::new(decoder)
        } else if is_gzip {
            Box::new(MultiGzDecoder::new(raw))
        } else {
            Box::new(raw)
        };
        Ok(Self {
            source,
            buffer: vec![0; CHUNK_BYTES],
            taken: 0,
            filled: 0,
            offset: 0,
        })
    }

    /// Tries to have `count` bytes at hand; `false` when the file ends before.
    pub(crate) fn fill(&mut self, count: usize) -> io::Result<bool> {
        if self.filled - self.taken >= count {
            return Ok(true);
        }
        self.buffer.copy_within(self.taken..self.filled, 0);
        self.filled -= self.taken;
        self.taken = 0;
        if self.buffer.len() < count {
            self.buffer.resize(count, 0);
        }
        while self.filled < count {
            match self.source.read(&mut self.buffer[self.filled..]) {
                Ok(0) => return Ok(false),
                Ok(read) => self.filled += read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }

    /// The bytes at hand.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.buffer[self.taken..self.filled]
    }

    /// Goes on by `count` of the bytes at hand.
    pub(crate) fn take(&mut self, count: usize) {
        self.taken = (self.taken + count).min(self.filled);
        self.offset += count as u64;
    }

    /// Goes on by `count` bytes, at hand or not; `false` when the file ends before.
    pub(crate) fn skip(&mut self, mut count: u64) -> io::Result<bool> {
        while count > 0 {
            let portion = count.min(CHUNK_BYTES as u64) as usize;
            if !self.fill(portion)? {
                return Ok(false);
            }
            self.take(portion);
            count -= portion as u64;
        }
        Ok(true)
    }

    /// Decompressed bytes consumed so far.
    pub(crate) fn offset(&self) -> u64 {
        self.offset
    }
}
