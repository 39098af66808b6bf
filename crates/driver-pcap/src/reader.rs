//! Packet after packet from a capture file.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use crate::error::{CaptureError, Fault, Place};
use crate::intake::Intake;
use crate::legacy::Legacy;
use crate::link::LinkType;
use crate::ng::Sections;

/// A packet as the file has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Captured<'a> {
    /// Its number in the file; the first is 1.
    pub number: u64,
    /// When it was captured, nanoseconds since 1970; without a time stamp that of the previous
    /// packet, or `None` if there is none yet.
    pub stamp_ns: Option<u64>,
    /// What its first byte belongs to.
    pub link: LinkType,
    /// The captured bytes, link header first.
    pub bytes: &'a [u8],
    /// How long it was on the wire, bytes; more than was captured if it was snapped.
    pub original_len: u32,
}

/// The kind of file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// The format of tcpdump.
    Pcap,
    /// The newer format with blocks.
    PcapNg,
}

/// Position of a record's packet in the buffer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Framed {
    /// Length of the whole record.
    pub(crate) record_len: usize,
    /// Offset of the packet within the record, and its length.
    pub(crate) packet_at: usize,
    pub(crate) packet_len: usize,
    pub(crate) stamp_ns: Option<u64>,
    pub(crate) link: LinkType,
    pub(crate) original_len: u32,
}

#[derive(Debug)]
enum Layout {
    Legacy(Legacy),
    Sections(Sections),
}

/// Reads a capture file once, from its first packet to its last.
#[derive(Debug)]
pub struct CaptureReader {
    name: String,
    intake: Intake,
    layout: Layout,
    packets: u64,
    stamp_ns: Option<u64>,
    /// Length of the record lent out by the last call.
    lent: usize,
    over: bool,
}

impl CaptureReader {
    /// Opens a file. What is packed is recognised by its first bytes, not by its name.
    ///
    /// # Errors
    /// When it cannot be opened, or is no capture.
    pub fn open(path: &Path) -> Result<Self, CaptureError> {
        let name = path.display().to_string();
        let opened = File::open(path).and_then(|file| {
            if file.metadata()?.is_dir() {
                return Err(io::Error::from(io::ErrorKind::IsADirectory));
            }
            Ok(file)
        });
        match opened {
            Ok(file) => Self::begin(name, Intake::of_file(file)),
            Err(error) => Err(CaptureError {
                name,
                place: Place {
                    packets_before: 0,
                    offset: None,
                },
                fault: Fault::Open(error),
            }),
        }
    }

    /// Reads a capture from anywhere; `name` is for messages.
    ///
    /// # Errors
    /// When it cannot be read, or is no capture.
    pub fn from_source(
        name: impl Into<String>,
        source: impl Read + Send + 'static,
    ) -> Result<Self, CaptureError> {
        Self::begin(name.into(), Intake::new(Box::new(source)))
    }

    fn begin(name: String, intake: io::Result<Intake>) -> Result<Self, CaptureError> {
        let start = |offset| Place {
            packets_before: 0,
            offset,
        };
        let failed = |name: &str, place, fault| CaptureError {
            name: name.to_owned(),
            place,
            fault,
        };
        let mut intake = intake.map_err(|error| failed(&name, start(None), Fault::Read(error)))?;
        let layout = match detect(&mut intake) {
            Ok(layout) => layout,
            Err(fault) => return Err(failed(&name, start(None), fault)),
        };
        Ok(Self {
            name,
            intake,
            layout,
            packets: 0,
            stamp_ns: None,
            lent: 0,
            over: false,
        })
    }

    /// The kind of file.
    pub fn format(&self) -> Format {
        match self.layout {
            Layout::Legacy(_) => Format::Pcap,
            Layout::Sections(_) => Format::PcapNg,
        }
    }

    /// Packets read so far.
    pub fn packets(&self) -> u64 {
        self.packets
    }

    /// True once the file is at its end, or an error was met.
    pub fn is_over(&self) -> bool {
        self.over
    }

    /// The next packet; `None` at the end of the file.
    ///
    /// # Errors
    /// When the rest of the file cannot be read. Nothing follows an error but `None`.
    pub fn next_packet(&mut self) -> Result<Option<Captured<'_>>, CaptureError> {
        self.intake.take(std::mem::take(&mut self.lent));
        if self.over {
            return Ok(None);
        }
        let framed = match &mut self.layout {
            Layout::Legacy(legacy) => legacy.next(&mut self.intake),
            Layout::Sections(sections) => sections.next(&mut self.intake),
        };
        let framed = match framed {
            Ok(Some(framed)) => framed,
            Ok(None) => {
                self.over = true;
                return Ok(None);
            }
            Err(fault) => {
                self.over = true;
                return Err(CaptureError {
                    name: self.name.clone(),
                    place: Place {
                        packets_before: self.packets,
                        offset: Some(self.intake.offset()),
                    },
                    fault,
                });
            }
        };
        self.lent = framed.record_len;
        self.packets += 1;
        self.stamp_ns = framed.stamp_ns.or(self.stamp_ns);
        let end = framed.packet_at + framed.packet_len;
        Ok(Some(Captured {
            number: self.packets,
            stamp_ns: self.stamp_ns,
            link: framed.link,
            bytes: &self.intake.bytes()[framed.packet_at..end],
            original_len: framed.original_len,
        }))
    }
}

fn detect(intake: &mut Intake) -> Result<Layout, Fault> {
    intake.fill(4).map_err(read_fault)?;
    if let Some(legacy) = Legacy::begin(intake)? {
        return Ok(Layout::Legacy(legacy));
    }
    if Sections::begins(intake) {
        return Ok(Layout::Sections(Sections::default()));
    }
    let first = intake.bytes();
    if first.is_empty() {
        return Err(Fault::Unknown("nothing: it is empty".to_owned()));
    }
    let shown: Vec<String> = first
        .iter()
        .take(4)
        .map(|byte| format!("{byte:02x}"))
        .collect();
    Err(Fault::Unknown(shown.join(" ")))
}

/// A packed file that ends too early is cut, like one that is not packed.
pub(crate) fn read_fault(error: io::Error) -> Fault {
    if error.kind() == io::ErrorKind::UnexpectedEof {
        Fault::Cut
    } else {
        Fault::Read(error)
    }
}
