//! ICMP (RFC 792, RFC 1191) and ICMPv6 (RFC 4443) as far as they concern TCP connections.

use core::ops::Range;

use fairlead_base::{Address, DropReason, Endpoint, FlowKey, SeqNumber};

use crate::checksum::{self, PROTOCOL_ICMPV6, PROTOCOL_TCP};
use crate::packet::{IPV4_HEADER_BYTES, IPV6_HEADER_BYTES, offset, upper_layer, v6_addresses};

/// Size of an ICMP header: type, code, checksum and four type-specific bytes.
pub const ICMP_HEADER_BYTES: usize = 8;

/// The fewest bytes of a TCP header that a quote is good for: ports and sequence number.
const QUOTED_TCP_BYTES_MIN: usize = 8;

/// A valid ICMP or ICMPv6 message. The offsets refer to the bytes it was parsed from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IcmpPacket {
    /// Who sent it: for an error message, often a router.
    pub src: Address,
    /// The destination.
    pub dst: Address,
    /// True for IPv4.
    pub v4: bool,
    /// Offset of the ICMP header.
    pub icmp_at: u16,
    /// Offset of the end of the IP packet. Bytes after it are padding of the link.
    pub end: u16,
    /// What it says.
    pub kind: IcmpKind,
    /// The packet it complains of, when that is a TCP packet.
    pub quote: Option<IcmpQuote>,
}

/// The message, named alike for both families.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IcmpKind {
    /// Echo request (type 8; 128 in ICMPv6).
    EchoRequest,
    /// The packet was longer than the next link carries (type 3 code 4; 2 in ICMPv6).
    PacketTooBig {
        /// The longest packet that link carries, in bytes; 0 from a router that does not say
        /// (RFC 1191, section 5).
        mtu: u32,
    },
    /// Destination unreachable (type 3 with another code; 1 in ICMPv6). The codes of the two
    /// families differ.
    Unreachable {
        /// The message's code.
        code: u8,
    },
    /// Hop limit used up (type 11; 3 in ICMPv6).
    TimeExceeded,
    /// A header field was refused (type 12; 4 in ICMPv6).
    ParameterProblem,
    /// Anything else.
    Other,
}

/// The beginning of a TCP packet inside an ICMP error. It may be cut short; its checksums may no
/// longer be right.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IcmpQuote {
    /// The quoted packet's flow: `src` sent the packet that failed.
    pub key: FlowKey,
    /// The quoted sequence number.
    pub seq: SeqNumber,
    /// Offset of the quoted IP header within the whole packet.
    pub ip_at: u16,
    /// Offset of the quoted TCP header within the whole packet.
    pub tcp_at: u16,
    /// Quoted TCP bytes that are present, at least 8.
    pub tcp_len: u16,
}

impl IcmpPacket {
    /// Parses the message that lies in `place`; both addresses are of one family. An error message
    /// without a usable quote is valid, with `quote` `None`.
    pub(crate) fn parse(
        bytes: &[u8],
        place: Range<usize>,
        src: Address,
        dst: Address,
    ) -> Result<Self, DropReason> {
        let v4 = src.is_v4();
        let Range { start: at, end } = place;
        let bytes = bytes.get(..end).ok_or(DropReason::BadIcmp)?;
        let message = bytes.get(at..).ok_or(DropReason::BadIcmp)?;
        let header = message
            .first_chunk::<ICMP_HEADER_BYTES>()
            .ok_or(DropReason::BadIcmp)?;
        let mut sum = checksum::sum(message);
        if !v4 {
            let length = message.len() as u32;
            sum += checksum::pseudo_header(&src, &dst, PROTOCOL_ICMPV6, length);
        }
        if checksum::fold(sum) != 0xffff {
            return Err(DropReason::BadIcmp);
        }
        let &[kind, code, _, _, b4, b5, b6, b7] = header;
        let kind = match (v4, kind) {
            (true, 8) | (false, 128) => IcmpKind::EchoRequest,
            (true, 3) if code == 4 => IcmpKind::PacketTooBig {
                mtu: u32::from(u16::from_be_bytes([b6, b7])),
            },
            (false, 2) => IcmpKind::PacketTooBig {
                mtu: u32::from_be_bytes([b4, b5, b6, b7]),
            },
            (true, 3) | (false, 1) => IcmpKind::Unreachable { code },
            (true, 11) | (false, 3) => IcmpKind::TimeExceeded,
            (true, 12) | (false, 4) => IcmpKind::ParameterProblem,
            _ => IcmpKind::Other,
        };
        let quote = match kind {
            IcmpKind::EchoRequest | IcmpKind::Other => None,
            _ if v4 => quote_v4(bytes, at + ICMP_HEADER_BYTES),
            _ => quote_v6(bytes, at + ICMP_HEADER_BYTES),
        };
        Ok(Self {
            src,
            dst,
            v4,
            icmp_at: at as u16,
            end: end as u16,
            kind,
            quote,
        })
    }
}

fn quote_v4(bytes: &[u8], ip_at: usize) -> Option<IcmpQuote> {
    let header = bytes.get(ip_at..)?.first_chunk::<IPV4_HEADER_BYTES>()?;
    let header_len = usize::from(header[0] & 0x0f) * 4;
    let fragment_offset = u16::from_be_bytes([header[6], header[7]]) & 0x1fff;
    if header[0] >> 4 != 4
        || header_len < IPV4_HEADER_BYTES
        || header[9] != PROTOCOL_TCP
        || fragment_offset != 0
    {
        return None;
    }
    let [.., s0, s1, s2, s3, d0, d1, d2, d3] = *header;
    let (src, dst) = (Address::v4([s0, s1, s2, s3]), Address::v4([d0, d1, d2, d3]));
    let total_len = usize::from(u16::from_be_bytes([header[2], header[3]]));
    quote_tcp(
        bytes,
        ip_at,
        ip_at + header_len,
        ip_at + total_len,
        src,
        dst,
    )
}

fn quote_v6(bytes: &[u8], ip_at: usize) -> Option<IcmpQuote> {
    let header = bytes.get(ip_at..)?.first_chunk::<IPV6_HEADER_BYTES>()?;
    let (src, dst) = v6_addresses(header);
    // A mapped address would name an IPv4 flow.
    if header[0] >> 4 != 6 || src.is_v4() || dst.is_v4() {
        return None;
    }
    let (protocol, tcp_at) = upper_layer(bytes, header[6], ip_at + IPV6_HEADER_BYTES).ok()?;
    if protocol != PROTOCOL_TCP {
        return None;
    }
    let payload_len = usize::from(u16::from_be_bytes([header[4], header[5]]));
    let claimed_end = ip_at + IPV6_HEADER_BYTES + payload_len;
    quote_tcp(bytes, ip_at, tcp_at, claimed_end, src, dst)
}

/// `bytes` ends where the ICMP message ends; `claimed_end` is where the quoted packet would end
/// if it were whole.
fn quote_tcp(
    bytes: &[u8],
    ip_at: usize,
    tcp_at: usize,
    claimed_end: usize,
    src: Address,
    dst: Address,
) -> Option<IcmpQuote> {
    let quoted = bytes.get(tcp_at..)?;
    let &[p0, p1, p2, p3, s0, s1, s2, s3] = quoted.first_chunk::<QUOTED_TCP_BYTES_MIN>()?;
    // What lies behind the quoted packet is padding or an extension (RFC 4884), not TCP. Some
    // hosts quote a length that they have changed; one too small to be true is disregarded.
    let claimed_len = claimed_end.saturating_sub(tcp_at);
    let tcp_len = if claimed_len < offset::TCP_OPTIONS {
        quoted.len()
    } else {
        quoted.len().min(claimed_len)
    };
    Some(IcmpQuote {
        key: FlowKey {
            src: Endpoint {
                addr: src,
                port: u16::from_be_bytes([p0, p1]),
            },
            dst: Endpoint {
                addr: dst,
                port: u16::from_be_bytes([p2, p3]),
            },
        },
        seq: SeqNumber(u32::from_be_bytes([s0, s1, s2, s3])),
        ip_at: ip_at as u16,
        tcp_at: tcp_at as u16,
        tcp_len: tcp_len as u16,
    })
}

#[cfg(test)]
mod tests;
