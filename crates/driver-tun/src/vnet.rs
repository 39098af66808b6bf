//! The header that precedes every packet on the device (`struct virtio_net_hdr`, VIRTIO 1.2,
//! section 5.1.6), and what it says about a [`Packet`], both ways.
//!
//! The kernel writes the header, but nothing here trusts it: fields that point outside the packet
//! or contradict it are errors, never panics.

use fairlead_base::{Checksum, Gso, Packet};

/// Bytes of the header on the device.
pub const VNET_HEADER_BYTES: usize = 10;

const NEEDS_CHECKSUM: u8 = 1;
const CHECKSUM_VALID: u8 = 2;

const GSO_NONE: u8 = 0;
const GSO_TCP4: u8 = 1;
const GSO_TCP6: u8 = 4;
const GSO_ECN: u8 = 0x80;

const TCP: u8 = 6;
const UDP: u8 = 17;
const TCP_CHECKSUM_AT: usize = 16;
const UDP_CHECKSUM_AT: usize = 6;
const TCP_HEADER_BYTES_MIN: usize = 20;
const TCP_FLAGS_AT: usize = 13;
const TCP_FLAG_CWR: u8 = 0x80;

/// IPv6 extension headers that are stepped over, at most.
const EXTENSIONS_MAX: usize = 8;

/// The header's fields, in host order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VnetHeader {
    /// 1: a checksum is to be filled in; 2: the checksum was verified.
    pub flags: u8,
    /// How a super-packet is to be cut; bit 7: its first segment alone carries CWR.
    pub gso_type: u8,
    /// Bytes of all headers (a hint).
    pub header_bytes: u16,
    /// Payload bytes of each segment but the last.
    pub segment_bytes: u16,
    /// Where the sum begins.
    pub checksum_start: u16,
    /// Where it goes, counted from `checksum_start`.
    pub checksum_offset: u16,
}

/// A header from the kernel that does not fit its packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum BadHeader {
    /// The place of the checksum is outside the packet.
    ChecksumOutside,
    /// A way of cutting that was never agreed on, or that does not fit the packet's protocol.
    GsoType,
    /// A super-packet without a segment size, or whose checksum is not left to its cutter.
    GsoFields,
}

/// A packet with an offload state that cannot be described to the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Unsendable {
    /// Empty, or longer than a device carries.
    Length,
    /// A checksum is to be filled in, but this is neither TCP nor UDP.
    NoChecksumField,
    /// A super-packet that is not TCP, has no segment size, or has a complete checksum.
    NotCuttable,
}

impl VnetHeader {
    /// From the bytes on the device.
    pub fn from_bytes(bytes: &[u8; VNET_HEADER_BYTES]) -> Self {
        let field = |at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
        Self {
            flags: bytes[0],
            gso_type: bytes[1],
            header_bytes: field(2),
            segment_bytes: field(4),
            checksum_start: field(6),
            checksum_offset: field(8),
        }
    }

    /// To the bytes on the device.
    pub fn to_bytes(self) -> [u8; VNET_HEADER_BYTES] {
        let mut bytes = [0; VNET_HEADER_BYTES];
        bytes[0] = self.flags;
        bytes[1] = self.gso_type;
        bytes[2..4].copy_from_slice(&self.header_bytes.to_le_bytes());
        bytes[4..6].copy_from_slice(&self.segment_bytes.to_le_bytes());
        bytes[6..8].copy_from_slice(&self.checksum_start.to_le_bytes());
        bytes[8..10].copy_from_slice(&self.checksum_offset.to_le_bytes());
        bytes
    }

    /// Notes on a packet that was just read what this header says about it.
    ///
    /// A checksum that is to be filled in at a place where neither TCP nor UDP has one (a tunnel's
    /// inner packet) is filled in here, so that [`Checksum::Partial`] always means the packet's
    /// own transport header.
    pub fn describe(&self, packet: &mut Packet) -> Result<(), BadHeader> {
        let partial = self.flags & NEEDS_CHECKSUM != 0;
        packet.gso = None;
        packet.checksum = match self.flags & (NEEDS_CHECKSUM | CHECKSUM_VALID) {
            0 => Checksum::Complete,
            CHECKSUM_VALID => Checksum::Verified,
            _ => Checksum::Partial,
        };
        let gso_type = self.gso_type & !GSO_ECN;
        if gso_type == GSO_NONE && !partial {
            return Ok(()); // the usual small packet: nothing to look up
        }
        let transport = Transport::of(&packet.bytes);
        match (gso_type, packet.bytes.first().map(|first| first >> 4)) {
            (GSO_NONE, _) => {}
            (GSO_TCP4, Some(4)) | (GSO_TCP6, Some(6)) => {
                if !partial || self.segment_bytes == 0 {
                    return Err(BadHeader::GsoFields);
                }
                if transport
                    .and_then(|at| at.tcp_header_end(&packet.bytes))
                    .is_none()
                {
                    return Err(BadHeader::GsoType);
                }
                packet.gso = Some(Gso {
                    segment_bytes: self.segment_bytes,
                });
            }
            _ => return Err(BadHeader::GsoType),
        }
        if partial {
            self.settle_checksum(packet, transport)?;
        }
        Ok(())
    }

    fn settle_checksum(
        &self,
        packet: &mut Packet,
        transport: Option<Transport>,
    ) -> Result<(), BadHeader> {
        let start = usize::from(self.checksum_start);
        let field = start + usize::from(self.checksum_offset);
        if field + 2 > packet.bytes.len() {
            return Err(BadHeader::ChecksumOutside);
        }
        if transport.is_some_and(|at| at.at == start && at.checksum_at() == Some(field)) {
            return Ok(());
        }
        if packet.gso.is_some() {
            return Err(BadHeader::GsoFields);
        }
        let sum = !ones_complement_sum(&packet.bytes[start..]);
        packet.bytes[field..field + 2].copy_from_slice(&sum.to_be_bytes());
        packet.checksum = Checksum::Complete;
        Ok(())
    }

    /// The header with which a packet is to be written to the device.
    pub fn of(packet: &Packet) -> Result<Self, Unsendable> {
        let bytes = &packet.bytes;
        if bytes.is_empty() || bytes.len() > fairlead_base::PACKET_BYTES_MAX {
            return Err(Unsendable::Length);
        }
        if packet.checksum != Checksum::Partial {
            return match packet.gso {
                None => Ok(Self::default()),
                Some(_) => Err(Unsendable::NotCuttable),
            };
        }
        let transport = Transport::of(bytes).ok_or(Unsendable::NoChecksumField)?;
        let checksum_at = transport.checksum_at().ok_or(Unsendable::NoChecksumField)?;
        if checksum_at + 2 > bytes.len() {
            return Err(Unsendable::NoChecksumField);
        }
        let mut header = Self {
            flags: NEEDS_CHECKSUM,
            checksum_start: transport.at as u16,
            checksum_offset: (checksum_at - transport.at) as u16,
            ..Self::default()
        };
        let Some(gso) = packet.gso else {
            return Ok(header);
        };
        let header_end = transport
            .tcp_header_end(bytes)
            .ok_or(Unsendable::NotCuttable)?;
        if gso.segment_bytes == 0 {
            return Err(Unsendable::NotCuttable);
        }
        if bytes.len() - header_end <= usize::from(gso.segment_bytes) {
            return Ok(header); // one segment: nothing to cut, and the kernel would refuse to
        }
        header.gso_type = if bytes[0] >> 4 == 4 {
            GSO_TCP4
        } else {
            GSO_TCP6
        };
        if bytes[transport.at + TCP_FLAGS_AT] & TCP_FLAG_CWR != 0 {
            header.gso_type |= GSO_ECN; // RFC 3168, section 6.1.2: only one segment carries CWR
        }
        header.header_bytes = header_end as u16;
        header.segment_bytes = gso.segment_bytes;
        Ok(header)
    }
}

/// Where a packet's transport header begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Transport {
    at: usize,
    protocol: u8,
}

impl Transport {
    /// Finds it by the IP header alone; `None` for fragments' tails and what is no IP packet.
    fn of(bytes: &[u8]) -> Option<Self> {
        match bytes.first()? >> 4 {
            4 => {
                let at = usize::from(bytes[0] & 0xf) * 4;
                let offset = u16::from_be_bytes([*bytes.get(6)?, *bytes.get(7)?]) & 0x1fff;
                let protocol = *bytes.get(9)?;
                (at >= 20 && offset == 0).then_some(Self { at, protocol })
            }
            6 => {
                let (mut at, mut protocol) = (40, *bytes.get(6)?);
                for _ in 0..EXTENSIONS_MAX {
                    match protocol {
                        0 | 43 | 60 => {
                            protocol = *bytes.get(at)?;
                            at += (usize::from(*bytes.get(at + 1)?) + 1) * 8;
                        }
                        _ => return Some(Self { at, protocol }),
                    }
                }
                None
            }
            _ => None,
        }
    }

    fn checksum_at(&self) -> Option<usize> {
        match self.protocol {
            TCP => Some(self.at + TCP_CHECKSUM_AT),
            UDP => Some(self.at + UDP_CHECKSUM_AT),
            _ => None,
        }
    }

    /// Where the TCP header ends, if it is TCP and the header is within the packet.
    fn tcp_header_end(&self, bytes: &[u8]) -> Option<usize> {
        if self.protocol != TCP {
            return None;
        }
        let header_bytes = usize::from(*bytes.get(self.at + 12)? >> 4) * 4;
        let end = self.at + header_bytes;
        (header_bytes >= TCP_HEADER_BYTES_MIN && end <= bytes.len()).then_some(end)
    }
}

/// The Internet checksum's sum (RFC 1071), not complemented.
fn ones_complement_sum(bytes: &[u8]) -> u16 {
    let pairs = bytes
        .chunks(2)
        .map(|pair| u64::from(pair[0]) << 8 | u64::from(*pair.get(1).unwrap_or(&0)));
    let mut sum: u64 = pairs.sum();
    while sum > 0xffff {
        sum = (sum >> 16) + (sum & 0xffff);
    }
    sum as u16
}

#[cfg(test)]
mod tests;
