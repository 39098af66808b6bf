//! Writes pcapng (draft-ietf-opsawg-pcapng, sections 4.1 to 4.3).

use std::io::{self, Write};

use crate::link::LinkType;

const SECTION_HEADER: u32 = 0x0a0d_0d0a;
const BYTE_ORDER: u32 = 0x1a2b_3c4d;
const INTERFACE: u32 = 1;
const ENHANCED_PACKET: u32 = 6;

const INTERFACE_STATISTICS: u32 = 5;

const OPT_END: u16 = 0;
const OPT_COMMENT: u16 = 1;
const IF_NAME: u16 = 2;
const IF_TSRESOL: u16 = 9;
const EPB_FLAGS: u16 = 2;
const ISB_IFRECV: u16 = 4;
const ISB_IFDROP: u16 = 5;
const SHB_USERAPPL: u16 = 4;

/// The longest comment, bytes; a longer one is cut.
const COMMENT_BYTES_MAX: usize = 1_024;

/// Direction of a packet at an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Passage {
    /// It arrived.
    In,
    /// It was sent.
    Out,
}

/// Writes raw IP packets to a pcapng file, with stamps in nanoseconds.
#[derive(Debug)]
pub struct CaptureWriter<W: Write> {
    out: W,
    interfaces: u32,
    block: Vec<u8>,
    packets: u64,
}

impl<W: Write> CaptureWriter<W> {
    /// Begins a file with these interfaces, numbered from 0. `application` is what wrote it.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn new(out: W, application: &str, interfaces: &[&str]) -> io::Result<Self> {
        let mut writer = Self {
            out,
            interfaces: interfaces.len() as u32,
            block: Vec::with_capacity(2_048),
            packets: 0,
        };
        writer.begin(SECTION_HEADER);
        writer.u32(BYTE_ORDER);
        // Version 1.0; the section's length is not known.
        writer.u16(1);
        writer.u16(0);
        writer.block.extend([0xff; 8]);
        writer.option(SHB_USERAPPL, application.as_bytes());
        writer.option(OPT_END, &[]);
        writer.end()?;
        for name in interfaces {
            writer.begin(INTERFACE);
            writer.u16(LinkType::RAW.0);
            writer.u16(0);
            // No limit on captured lengths.
            writer.u32(0);
            writer.option(IF_NAME, name.as_bytes());
            writer.option(IF_TSRESOL, &[9]);
            writer.option(OPT_END, &[]);
            writer.end()?;
        }
        Ok(writer)
    }

    /// Writes one IP packet. `missing` uncaptured bytes count in its original length. An empty
    /// comment is omitted.
    ///
    /// # Errors
    /// The file cannot be written, or there is no such interface.
    pub fn write(
        &mut self,
        interface: u32,
        passage: Passage,
        stamp_ns: u64,
        bytes: &[u8],
        missing: usize,
        comment: &str,
    ) -> io::Result<()> {
        if interface >= self.interfaces {
            return Err(io::Error::other(format!(
                "there is no interface {interface}"
            )));
        }
        self.begin(ENHANCED_PACKET);
        self.u32(interface);
        self.u32((stamp_ns >> 32) as u32);
        self.u32(stamp_ns as u32);
        self.u32(bytes.len() as u32);
        self.u32((bytes.len() + missing) as u32);
        self.padded(bytes);
        let direction: u32 = match passage {
            Passage::In => 1,
            Passage::Out => 2,
        };
        self.option(EPB_FLAGS, &direction.to_le_bytes());
        if !comment.is_empty() {
            self.option(OPT_COMMENT, cut(comment).as_bytes());
        }
        self.option(OPT_END, &[]);
        self.end()?;
        self.packets += 1;
        Ok(())
    }

    /// Writes interface statistics: packets since the start, and how many of them were lost because
    /// the reader was too slow.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn write_statistics(
        &mut self,
        interface: u32,
        stamp_ns: u64,
        received: u64,
        dropped: u64,
    ) -> io::Result<()> {
        self.begin(INTERFACE_STATISTICS);
        self.u32(interface);
        self.u32((stamp_ns >> 32) as u32);
        self.u32(stamp_ns as u32);
        self.option(ISB_IFRECV, &received.to_le_bytes());
        self.option(ISB_IFDROP, &dropped.to_le_bytes());
        self.option(OPT_END, &[]);
        self.end()
    }

    /// What is written to.
    pub fn out_mut(&mut self) -> &mut W {
        &mut self.out
    }

    /// Packets written so far.
    pub fn packets(&self) -> u64 {
        self.packets
    }

    /// Flushes the buffer to the operating system.
    ///
    /// # Errors
    /// When that fails.
    pub fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }

    /// Flushes, and returns the writer.
    ///
    /// # Errors
    /// When the last bytes cannot be written.
    pub fn into_inner(mut self) -> io::Result<W> {
        self.out.flush()?;
        Ok(self.out)
    }

    fn begin(&mut self, kind: u32) {
        self.block.clear();
        self.u32(kind);
        // The block's length, known at its end.
        self.u32(0);
    }

    fn end(&mut self) -> io::Result<()> {
        let length = (self.block.len() + 4) as u32;
        self.block[4..8].copy_from_slice(&length.to_le_bytes());
        self.u32(length);
        self.out.write_all(&self.block)
    }

    fn u16(&mut self, value: u16) {
        self.block.extend(value.to_le_bytes());
    }

    fn u32(&mut self, value: u32) {
        self.block.extend(value.to_le_bytes());
    }

    fn padded(&mut self, bytes: &[u8]) {
        self.block.extend_from_slice(bytes);
        self.block.resize(self.block.len().next_multiple_of(4), 0);
    }

    fn option(&mut self, code: u16, value: &[u8]) {
        self.u16(code);
        self.u16(value.len() as u16);
        self.padded(value);
    }
}

/// At most [`COMMENT_BYTES_MAX`] bytes, whole characters.
fn cut(comment: &str) -> &str {
    let mut end = comment.len().min(COMMENT_BYTES_MAX);
    while !comment.is_char_boundary(end) {
        end -= 1;
    }
    &comment[..end]
}
