//! The file format of tcpdump: one header, then records (draft-ietf-opsawg-pcap).

use pcap_parser::nom;
use pcap_parser::pcap::{
    PcapHeader, parse_pcap_frame, parse_pcap_frame_be, parse_pcap_frame_modified, parse_pcap_header,
};

use crate::RECORD_BYTES_MAX;
use crate::error::Fault;
use crate::intake::Intake;
use crate::link::LinkType;
use crate::reader::{Framed, read_fault};

const FILE_HEADER_BYTES: usize = 24;
const RECORD_HEADER_BYTES: usize = 16;
/// Records of the variant with magic `a1b2cd34` have 8 bytes more.
const MODIFIED_HEADER_BYTES: usize = 24;
/// Where the captured length stands in a record's header.
const CAPTURED_AT: usize = 8;

/// What the file's header says of all its records.
#[derive(Debug)]
pub(crate) struct Legacy {
    big_endian: bool,
    modified: bool,
    fraction_ns: u64,
    link: LinkType,
}

impl Legacy {
    /// Takes the file's header; `None` when it is another kind of file.
    pub(crate) fn begin(intake: &mut Intake) -> Result<Option<Self>, Fault> {
        let whole = intake.fill(FILE_HEADER_BYTES).map_err(read_fault)?;
        let header = match parse_pcap_header(intake.bytes()) {
            Ok((_, header)) => header,
            Err(nom::Err::Incomplete(_)) if !whole && intake.bytes().len() >= 4 => {
                return Err(Fault::Cut);
            }
            Err(_) => return Ok(None),
        };
        intake.take(FILE_HEADER_BYTES);
        Ok(Some(Self::of(&header)))
    }

    fn of(header: &PcapHeader) -> Self {
        Self {
            big_endian: header.is_bigendian(),
            modified: header.is_modified_format(),
            fraction_ns: if header.is_nanosecond_precision() {
                1
            } else {
                1_000
            },
            // The upper half of the field holds flags and the length of a frame check sequence.
            link: LinkType(header.network.0 as u32 as u16),
        }
    }

    /// Frames the next record.
    pub(crate) fn next(&self, intake: &mut Intake) -> Result<Option<Framed>, Fault> {
        let header_len = if self.modified {
            MODIFIED_HEADER_BYTES
        } else {
            RECORD_HEADER_BYTES
        };
        if !intake.fill(header_len).map_err(read_fault)? {
            return match intake.bytes() {
                [] => Ok(None),
                _ => Err(Fault::Cut),
            };
        }
        let field = &intake.bytes()[CAPTURED_AT..CAPTURED_AT + 4];
        let four = [field[0], field[1], field[2], field[3]];
        let captured = if self.big_endian {
            u32::from_be_bytes(four)
        } else {
            u32::from_le_bytes(four)
        } as usize;
        if captured > RECORD_BYTES_MAX {
            return Err(Fault::Damaged(format!(
                "a record of {captured} bytes, more than the {RECORD_BYTES_MAX} that are possible"
            )));
        }
        let record_len = header_len + captured;
        if !intake.fill(record_len).map_err(read_fault)? {
            return Err(Fault::Cut);
        }
        let record = &intake.bytes()[..record_len];
        let parsed = match (self.modified, self.big_endian) {
            (true, _) => parse_pcap_frame_modified(record),
            (false, true) => parse_pcap_frame_be(record),
            (false, false) => parse_pcap_frame(record),
        };
        let Ok((_, frame)) = parsed else {
            return Err(Fault::Damaged("a record that cannot be read".to_owned()));
        };
        let fraction_ns = u64::from(frame.ts_usec) * self.fraction_ns;
        Ok(Some(Framed {
            record_len,
            packet_at: header_len,
            packet_len: captured,
            stamp_ns: Some(u64::from(frame.ts_sec) * 1_000_000_000 + fraction_ns),
            link: self.link,
            original_len: frame.origlen.max(captured as u32),
        }))
    }
}
