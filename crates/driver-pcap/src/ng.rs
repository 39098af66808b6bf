//! The block format, pcapng (draft-ietf-opsawg-pcapng).
//!
//! Blocks are framed here, where lengths are bounded and truncation is distinguished from damage;
//! `pcap-parser` parses the contents.

use pcap_parser::pcapng::{
    Block, InterfaceDescriptionBlock, OptionCode, parse_block_be, parse_block_le,
};

use crate::RECORD_BYTES_MAX;
use crate::error::Fault;
use crate::intake::Intake;
use crate::link::LinkType;
use crate::reader::{Framed, read_fault};

const SECTION_HEADER: u32 = 0x0a0d_0d0a;
const INTERFACE: u32 = 1;
/// Obsolete, but written by tools until about 2010.
const PACKET: u32 = 2;
const SIMPLE_PACKET: u32 = 3;
const ENHANCED_PACKET: u32 = 6;
const BYTE_ORDER: u32 = 0x1a2b_3c4d;

/// Offsets of a packet within its block.
const ENHANCED_AT: usize = 28;
const SIMPLE_AT: usize = 12;

/// Maximum interfaces per section.
const INTERFACES_MAX: usize = 65_536;

/// One interface of the current section.
#[derive(Clone, Copy, Debug)]
struct Interface {
    link: LinkType,
    snap_len: u32,
    units_per_second: u64,
    offset_s: i64,
}

/// What is known of the current section.
#[derive(Debug, Default)]
pub(crate) struct Sections {
    big_endian: bool,
    interfaces: Vec<Interface>,
}

impl Sections {
    /// True when the bytes at hand are the beginning of a section.
    pub(crate) fn begins(intake: &Intake) -> bool {
        intake.bytes().starts_with(&SECTION_HEADER.to_be_bytes())
    }

    /// Frames the next packet, processing the blocks before it.
    pub(crate) fn next(&mut self, intake: &mut Intake) -> Result<Option<Framed>, Fault> {
        loop {
            if !intake.fill(12).map_err(read_fault)? {
                return match intake.bytes() {
                    [] => Ok(None),
                    _ => Err(Fault::Cut),
                };
            }
            let kind = self.block_kind(intake.bytes())?;
            let length = u32_at(intake.bytes(), 4, self.big_endian);
            if length < 12 || !length.is_multiple_of(4) {
                return Err(Fault::Damaged(format!("a block of {length} bytes")));
            }
            let known = matches!(
                kind,
                SECTION_HEADER | INTERFACE | PACKET | SIMPLE_PACKET | ENHANCED_PACKET
            );
            if !known {
                if !intake.skip(u64::from(length)).map_err(read_fault)? {
                    return Err(Fault::Cut);
                }
                continue;
            }
            let length = length as usize;
            if length > RECORD_BYTES_MAX {
                return Err(Fault::Damaged(format!(
                    "a block of {length} bytes, more than the {RECORD_BYTES_MAX} that are possible"
                )));
            }
            if !intake.fill(length).map_err(read_fault)? {
                return Err(Fault::Cut);
            }
            if let Some(framed) = self.read_block(&intake.bytes()[..length])? {
                return Ok(Some(framed));
            }
            intake.take(length);
        }
    }

    /// The type of the block that begins here; a section header says how it and all that follow
    /// are to be read.
    fn block_kind(&mut self, bytes: &[u8]) -> Result<u32, Fault> {
        if u32_at(bytes, 0, true) != SECTION_HEADER {
            return Ok(u32_at(bytes, 0, self.big_endian));
        }
        self.big_endian = match u32_at(bytes, 8, true) {
            BYTE_ORDER => true,
            other if other.swap_bytes() == BYTE_ORDER => false,
            other => {
                let what = format!("a section with the byte-order magic {other:08x}");
                return Err(Fault::Damaged(what));
            }
        };
        Ok(SECTION_HEADER)
    }

    /// Reads one whole block; a packet comes back framed.
    fn read_block(&mut self, bytes: &[u8]) -> Result<Option<Framed>, Fault> {
        let parsed = if self.big_endian {
            parse_block_be(bytes)
        } else {
            parse_block_le(bytes)
        };
        let Ok((_, block)) = parsed else {
            return Err(Fault::Damaged("a block that contradicts itself".to_owned()));
        };
        match block {
            Block::SectionHeader(_) => {
                self.interfaces.clear();
                Ok(None)
            }
            Block::InterfaceDescription(block) => {
                if self.interfaces.len() >= INTERFACES_MAX {
                    return Err(Fault::Damaged("too many interfaces".to_owned()));
                }
                let interface = self.interface(&block)?;
                self.interfaces.push(interface);
                Ok(None)
            }
            Block::EnhancedPacket(block) => {
                let stamp = (u64::from(block.ts_high) << 32) | u64::from(block.ts_low);
                let lengths = (block.caplen, block.origlen);
                self.framed(bytes, block.if_id, Some(stamp), lengths)
            }
            Block::SimplePacket(block) => {
                let snap_len = self.interface_at(0)?.snap_len;
                let room = (bytes.len() - SIMPLE_AT - 4) as u32;
                let limit = if snap_len == 0 { room } else { snap_len };
                let captured = block.origlen.min(room).min(limit);
                self.framed_at(bytes, SIMPLE_AT, 0, None, (captured, block.origlen))
            }
            Block::Unknown(block) if u32_at(bytes, 0, self.big_endian) == PACKET => {
                if block.data.len() < 20 {
                    return Err(Fault::Damaged("a packet block too short".to_owned()));
                }
                let at = |offset| u32_at(block.data, offset, self.big_endian);
                let first = [block.data[0], block.data[1]];
                let interface = if self.big_endian {
                    u16::from_be_bytes(first)
                } else {
                    u16::from_le_bytes(first)
                };
                let stamp = (u64::from(at(4)) << 32) | u64::from(at(8));
                self.framed(bytes, u32::from(interface), Some(stamp), (at(12), at(16)))
            }
            _ => Ok(None),
        }
    }

    fn framed(
        &self,
        bytes: &[u8],
        interface: u32,
        stamp: Option<u64>,
        lengths: (u32, u32),
    ) -> Result<Option<Framed>, Fault> {
        self.framed_at(bytes, ENHANCED_AT, interface, stamp, lengths)
    }

    fn framed_at(
        &self,
        bytes: &[u8],
        packet_at: usize,
        interface: u32,
        stamp: Option<u64>,
        (captured, original): (u32, u32),
    ) -> Result<Option<Framed>, Fault> {
        let interface = self.interface_at(interface)?;
        let packet_len = captured as usize;
        if packet_len > bytes.len().saturating_sub(packet_at + 4) {
            let what = format!("{packet_len} bytes captured, in a block of {}", bytes.len());
            return Err(Fault::Damaged(what));
        }
        Ok(Some(Framed {
            record_len: bytes.len(),
            packet_at,
            packet_len,
            stamp_ns: stamp.map(|stamp| interface.nanos(stamp)),
            link: interface.link,
            original_len: original.max(captured),
        }))
    }

    fn interface_at(&self, index: u32) -> Result<Interface, Fault> {
        let found = self.interfaces.get(index as usize).copied();
        found.ok_or_else(|| Fault::Damaged(format!("there is no interface {index}")))
    }

    fn interface(&self, block: &InterfaceDescriptionBlock<'_>) -> Result<Interface, Fault> {
        let mut units_per_second = 1_000_000;
        let mut offset_s = 0;
        for option in &block.options {
            match (option.code, option.value()) {
                (OptionCode::IfTsresol, [exponent, ..]) => {
                    let (base, power) = match exponent & 0x80 {
                        0 => (10u64, u32::from(*exponent)),
                        _ => (2u64, u32::from(exponent & 0x7f)),
                    };
                    units_per_second = base.checked_pow(power).ok_or_else(|| {
                        Fault::Damaged(format!("stamps in units of {base}^-{power} s"))
                    })?;
                }
                (OptionCode::IfTsoffset, value) => {
                    if let Some(eight) = value.first_chunk::<8>() {
                        offset_s = if self.big_endian {
                            i64::from_be_bytes(*eight)
                        } else {
                            i64::from_le_bytes(*eight)
                        };
                    }
                }
                _ => {}
            }
        }
        Ok(Interface {
            link: LinkType(block.linktype.0 as u32 as u16),
            snap_len: block.snaplen,
            units_per_second,
            offset_s,
        })
    }
}

impl Interface {
    /// A stamp in nanoseconds since 1970, as far as that can be said in 64 bits.
    fn nanos(&self, stamp: u64) -> u64 {
        let scaled = i128::from(stamp) * 1_000_000_000 / i128::from(self.units_per_second);
        let shifted = scaled + i128::from(self.offset_s) * 1_000_000_000;
        u64::try_from(shifted.max(0)).unwrap_or(u64::MAX)
    }
}

fn u32_at(bytes: &[u8], at: usize, big_endian: bool) -> u32 {
    let four = bytes
        .get(at..)
        .and_then(|rest| rest.first_chunk::<4>())
        .copied()
        .unwrap_or_default();
    if big_endian {
        u32::from_be_bytes(four)
    } else {
        u32::from_le_bytes(four)
    }
}
