//! Writes a trace.

use std::io::{self, Write};

use super::{
    END, Event, HEADER, Header, MAGIC, RECORD_BYTES, RECORDS, SECTION_RECORDS, STORED_BYTES_MAX,
    Totals,
};

/// Of Zstandard: fast, and traces repeat themselves so often that more gains little.
const LEVEL: i32 = 1;

/// Writes a trace, a section at a time.
pub struct Writer<W> {
    out: W,
    written_bytes: u64,
    /// Records of the next section.
    pending: Vec<u8>,
    packer: zstd::bulk::Compressor<'static>,
    totals: Totals,
}

impl<W> core::fmt::Debug for Writer<W> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let mut fields = f.debug_struct("Writer");
        fields.field("totals", &self.totals).finish_non_exhaustive()
    }
}

impl<W: Write> Writer<W> {
    /// Begins a trace.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn new(mut out: W) -> io::Result<Self> {
        out.write_all(&MAGIC)?;
        Ok(Self {
            out,
            written_bytes: MAGIC.len() as u64,
            pending: Vec::with_capacity(SECTION_RECORDS * RECORD_BYTES),
            packer: zstd::bulk::Compressor::new(LEVEL)?,
            totals: Totals::default(),
        })
    }

    /// Appends an event.
    ///
    /// # Errors
    /// When it cannot be written.
    #[inline]
    pub fn push(&mut self, event: Event) -> io::Result<()> {
        match event {
            Event::Instruction { repeat, .. } => self.totals.instructions += u64::from(!repeat),
            Event::Read { .. } | Event::Write { .. } => self.totals.accesses += 1,
            Event::Begin { .. } => self.totals.packets += 1,
            Event::End { .. } => {}
        }
        self.pending.extend(event.to_word().to_le_bytes());
        if self.pending.len() == SECTION_RECORDS * RECORD_BYTES {
            self.flush_section()?;
        }
        Ok(())
    }

    /// Counts so far.
    pub fn totals(&self) -> Totals {
        let pending = (self.pending.len() / RECORD_BYTES) as u64;
        Totals {
            records: self.totals.records + pending,
            ..self.totals
        }
    }

    /// Ends the trace with its header, of which the totals are filled in.
    ///
    /// # Errors
    /// When it cannot be written, or the header has more than a mebibyte.
    pub fn finish(mut self, header: Header) -> io::Result<W> {
        if !self.pending.is_empty() {
            self.flush_section()?;
        }
        let header = Header {
            totals: self.totals,
            ..header
        };
        let text = serde_json::to_vec(&header)?;
        let at = self.written_bytes;
        self.section(HEADER, &text, 0)?;
        self.out.write_all(&at.to_le_bytes())?;
        self.out.write_all(&END)?;
        self.out.flush()?;
        Ok(self.out)
    }

    fn flush_section(&mut self) -> io::Result<()> {
        let packed = self.packer.compress(&self.pending)?;
        let records = self.pending.len() / RECORD_BYTES;
        self.section(RECORDS, &packed, records as u32)?;
        self.totals.records += records as u64;
        self.pending.clear();
        Ok(())
    }

    fn section(&mut self, tag: [u8; 4], stored: &[u8], records: u32) -> io::Result<()> {
        let stored_bytes = u32::try_from(stored.len())
            .ok()
            .filter(|bytes| *bytes <= STORED_BYTES_MAX)
            .ok_or_else(|| io::Error::other("a section of the trace is too large"))?;
        self.out.write_all(&tag)?;
        self.out.write_all(&stored_bytes.to_le_bytes())?;
        self.out.write_all(&records.to_le_bytes())?;
        self.out.write_all(&crc32fast::hash(stored).to_le_bytes())?;
        self.out.write_all(stored)?;
        self.written_bytes += (super::SECTION_HEAD_BYTES + stored.len()) as u64;
        Ok(())
    }
}
