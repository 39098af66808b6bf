//! Reads a trace.

use std::io::{self, Read, Seek, SeekFrom};

use super::{
    END, END_BYTES, Event, HEADER, Header, MAGIC, RECORD_BYTES, RECORDS, SECTION_HEAD_BYTES,
    SECTION_RECORDS, STORED_BYTES_MAX,
};
use crate::error::{Fault, Place, TraceError};
use crate::source::fill;

/// Reads a trace, a section at a time.
pub struct Reader<R> {
    name: String,
    source: R,
    header: Header,
    /// Of the header's section: where records end.
    end_at: u64,
    at: u64,
    seen_records: u64,
    inside: Option<u8>,
    unpacker: zstd::bulk::Decompressor<'static>,
    stored: Vec<u8>,
    plain: Vec<u8>,
}

impl<R> core::fmt::Debug for Reader<R> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let mut fields = f.debug_struct("Reader");
        fields.field("name", &self.name).finish_non_exhaustive()
    }
}

/// What precedes a section's contents.
struct SectionHead {
    tag: [u8; 4],
    stored_bytes: u32,
    records: u32,
    checksum: u32,
}

impl SectionHead {
    fn of(bytes: [u8; SECTION_HEAD_BYTES]) -> Self {
        let [a, b, c, d, rest @ ..] = bytes;
        let [e, f, g, h, i, j, k, l, m, n, o, p] = rest;
        Self {
            tag: [a, b, c, d],
            stored_bytes: u32::from_le_bytes([e, f, g, h]),
            records: u32::from_le_bytes([i, j, k, l]),
            checksum: u32::from_le_bytes([m, n, o, p]),
        }
    }

    /// Bytes of the whole section.
    fn len(&self) -> u64 {
        SECTION_HEAD_BYTES as u64 + u64::from(self.stored_bytes)
    }
}

impl<R: Read + Seek> Reader<R> {
    /// Opens a trace and reads its header; `name` is for messages.
    ///
    /// # Errors
    /// It is no trace of references, or of a later version, or damaged, or was cut: with the byte
    /// where that shows.
    pub fn new(name: impl Into<String>, source: R) -> Result<Self, TraceError> {
        let name = name.into();
        let unpacker = zstd::bulk::Decompressor::new().map_err(|error| TraceError {
            name: name.clone(),
            place: Place::File,
            fault: Fault::Read(error),
        })?;
        let mut reader = Self {
            name,
            source,
            header: Header::default(),
            end_at: 0,
            at: 0,
            seen_records: 0,
            inside: None,
            unpacker,
            stored: Vec::new(),
            plain: vec![0; SECTION_RECORDS * RECORD_BYTES],
        };
        reader.check_magic()?;
        reader.read_header()?;
        reader.rewind()?;
        Ok(reader)
    }

    /// What was traced.
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// Bytes of the file, and how many of them were read: for a progress bar.
    pub fn progress_bytes(&self) -> (u64, u64) {
        (self.at, self.end_at)
    }

    /// Begins again with the first record.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn rewind(&mut self) -> Result<(), TraceError> {
        self.seek(MAGIC.len() as u64)?;
        self.seen_records = 0;
        self.inside = None;
        Ok(())
    }

    /// Replaces `events` by the next ones, at most [`SECTION_RECORDS`]; false at the end.
    ///
    /// # Errors
    /// The file is damaged: with the byte where the section begins.
    pub fn next_chunk(&mut self, events: &mut Vec<Event>) -> Result<bool, TraceError> {
        events.clear();
        if self.at >= self.end_at {
            if self.seen_records != self.header.totals.records {
                let (seen, said) = (self.seen_records, self.header.totals.records);
                return Err(self.damaged(format!("{seen} records, where {said} were written")));
            }
            return Ok(false);
        }
        let head = self.section_head()?;
        let records = head.records as usize;
        if head.tag != RECORDS || records == 0 || records > SECTION_RECORDS {
            return Err(self.damaged("no section of records".to_owned()));
        }
        if head.len() > self.end_at - self.at {
            return Err(self.damaged("a section that is too long".to_owned()));
        }
        self.contents(&head)?;
        let plain = &mut self.plain[..];
        let unpacked = self.unpacker.decompress_to_buffer(&self.stored[..], plain);
        if unpacked.ok() != Some(records * RECORD_BYTES) {
            return Err(self.damaged(format!("not {records} records")));
        }
        self.decode(records, events)?;
        self.at += head.len();
        self.seen_records += head.records as u64;
        Ok(true)
    }

    fn decode(&mut self, records: usize, events: &mut Vec<Event>) -> Result<(), TraceError> {
        events.reserve(records);
        let (words, _) = self.plain[..records * RECORD_BYTES].as_chunks::<RECORD_BYTES>();
        let mut inside = self.inside;
        for word in words {
            let event = Event::from_word(u64::from_le_bytes(*word));
            let is_in_order = match event {
                None => false,
                Some(Event::Begin { kind }) => inside.replace(kind).is_none(),
                Some(Event::End { kind }) => inside.take() == Some(kind),
                Some(_) => true,
            };
            match event {
                Some(event) if is_in_order => events.push(event),
                _ => {
                    let record = self.seen_records + events.len() as u64;
                    events.clear();
                    return Err(self.damaged(format!("record {record} is impossible")));
                }
            }
        }
        self.inside = inside;
        Ok(())
    }

    fn check_magic(&mut self) -> Result<(), TraceError> {
        let mut magic = [0; MAGIC.len()];
        let filled = fill(&mut self.source, &mut magic).map_err(|error| self.io(error))?;
        let version = magic[MAGIC.len() - 1];
        if filled < MAGIC.len() || magic[..MAGIC.len() - 1] != MAGIC[..MAGIC.len() - 1] {
            return Err(self.error(Fault::NotReferences));
        }
        if version != MAGIC[MAGIC.len() - 1] {
            return Err(self.error(Fault::Version(u16::from(version))));
        }
        Ok(())
    }

    fn read_header(&mut self) -> Result<(), TraceError> {
        let len = self.source.seek(SeekFrom::End(0));
        let len = len.map_err(|error| self.io(error))?;
        let Some(end_at) = len.checked_sub(END_BYTES) else {
            return Err(self.where_cut(len));
        };
        self.seek(end_at)?;
        let mut place = [0; 8];
        let mut end = [0; END.len()];
        self.exact(&mut place)?;
        self.exact(&mut end)?;
        if end != END {
            return Err(self.where_cut(len));
        }
        let at = u64::from_le_bytes(place);
        if at < MAGIC.len() as u64 || at > end_at {
            return Err(self.damaged("the place of the header is outside".to_owned()));
        }
        self.seek(at)?;
        let head = self.section_head()?;
        let fits = Some(end_at) == at.checked_add(head.len());
        if head.tag != HEADER || head.records != 0 || !fits {
            return Err(self.damaged("no header".to_owned()));
        }
        self.contents(&head)?;
        self.header = serde_json::from_slice(&self.stored)
            .map_err(|error| self.damaged(format!("the header: {error}")))?;
        self.end_at = at;
        Ok(())
    }

    /// The error for a file without an end: follows its sections to where it was cut.
    fn where_cut(&mut self, len: u64) -> TraceError {
        let mut at = MAGIC.len() as u64;
        loop {
            if let Err(error) = self.seek(at) {
                return error;
            }
            let rest = len.saturating_sub(at);
            if rest == 0 {
                return self.error(Fault::Cut("the trace".to_owned()));
            }
            if rest < SECTION_HEAD_BYTES as u64 {
                return self.error(Fault::Cut("a section".to_owned()));
            }
            let head = match self.section_head() {
                Ok(head) => head,
                Err(error) => return error,
            };
            if head.tag == HEADER && head.len() <= rest {
                self.at += head.len();
                return if rest - head.len() < END_BYTES {
                    self.error(Fault::Cut("the trace's end".to_owned()))
                } else {
                    self.damaged("the end of the trace".to_owned())
                };
            }
            if head.tag != RECORDS && head.tag != HEADER {
                return self.damaged("no section".to_owned());
            }
            if head.len() > rest {
                return self.error(Fault::Cut("a section".to_owned()));
            }
            at += head.len();
        }
    }

    fn section_head(&mut self) -> Result<SectionHead, TraceError> {
        let mut bytes = [0; SECTION_HEAD_BYTES];
        self.exact(&mut bytes)?;
        let head = SectionHead::of(bytes);
        if head.stored_bytes > STORED_BYTES_MAX {
            return Err(self.damaged("a section that is too long".to_owned()));
        }
        Ok(head)
    }

    /// Reads the stored bytes of a section and checks them.
    fn contents(&mut self, head: &SectionHead) -> Result<(), TraceError> {
        let mut stored = core::mem::take(&mut self.stored);
        stored.resize(head.stored_bytes as usize, 0);
        let read = self.exact(&mut stored);
        self.stored = stored;
        read?;
        if crc32fast::hash(&self.stored) != head.checksum {
            return Err(self.damaged("the checksum of a section".to_owned()));
        }
        Ok(())
    }

    fn exact(&mut self, buffer: &mut [u8]) -> Result<(), TraceError> {
        match fill(&mut self.source, buffer) {
            Ok(filled) if filled == buffer.len() => Ok(()),
            Ok(_) => Err(self.error(Fault::Cut("a section".to_owned()))),
            Err(error) => Err(self.io(error)),
        }
    }

    fn seek(&mut self, at: u64) -> Result<(), TraceError> {
        self.at = at;
        let done = self.source.seek(SeekFrom::Start(at));
        done.map(|_| ()).map_err(|error| self.io(error))
    }

    fn io(&self, error: io::Error) -> TraceError {
        self.error(Fault::Read(error))
    }

    fn damaged(&self, what: String) -> TraceError {
        self.error(Fault::Damaged(what))
    }

    fn error(&self, fault: Fault) -> TraceError {
        TraceError {
            name: self.name.clone(),
            place: Place::Byte(self.at),
            fault,
        }
    }
}
