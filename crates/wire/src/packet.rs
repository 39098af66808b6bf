//! From bytes to a validated summary: IPv4 (RFC 791), IPv6 (RFC 8200), TCP (RFC 9293).

use core::fmt;
use core::ops::{BitAnd, BitOr, BitOrAssign, Range};

use fairlead_base::{Address, DropReason, Endpoint, FlowKey, PACKET_BYTES_MAX, SeqNumber};

use crate::checksum::{self, PROTOCOL_ICMP, PROTOCOL_ICMPV6, PROTOCOL_TCP};
use crate::icmp::IcmpPacket;

/// Bytes of an IPv4 header without options.
pub const IPV4_HEADER_BYTES: usize = 20;
/// Bytes of the fixed IPv6 header.
pub const IPV6_HEADER_BYTES: usize = 40;
/// Bytes of a TCP header without options.
pub const TCP_HEADER_BYTES: usize = 20;

/// The most IPv6 extension headers that are walked before a packet is refused.
pub const EXTENSION_HEADERS_MAX: usize = 8;
/// The most bytes of IPv6 extension headers that are walked before a packet is refused.
pub const EXTENSION_BYTES_MAX: usize = 256;

/// Offsets of the fields that a translation rewrites, from the start of their header.
pub mod offset {
    /// TCP: source port, 2 bytes.
    pub const TCP_SRC_PORT: usize = 0;
    /// TCP: destination port, 2 bytes.
    pub const TCP_DST_PORT: usize = 2;
    /// TCP: sequence number, 4 bytes.
    pub const TCP_SEQ: usize = 4;
    /// TCP: acknowledgement number, 4 bytes.
    pub const TCP_ACK: usize = 8;
    /// TCP: flags, 1 byte.
    pub const TCP_FLAGS: usize = 13;
    /// TCP: window, 2 bytes.
    pub const TCP_WINDOW: usize = 14;
    /// TCP: checksum, 2 bytes.
    pub const TCP_CHECKSUM: usize = 16;
    /// TCP: options, up to the payload.
    pub const TCP_OPTIONS: usize = 20;
    /// IPv4: time to live, 1 byte.
    pub const IPV4_TTL: usize = 8;
    /// IPv4: header checksum, 2 bytes.
    pub const IPV4_CHECKSUM: usize = 10;
    /// IPv4: source address, 4 bytes.
    pub const IPV4_SRC: usize = 12;
    /// IPv4: destination address, 4 bytes.
    pub const IPV4_DST: usize = 16;
    /// IPv6: what follows the header, 1 byte.
    pub const IPV6_NEXT_HEADER: usize = 6;
    /// IPv6: hop limit, 1 byte.
    pub const IPV6_HOP_LIMIT: usize = 7;
    /// IPv6: source address, 16 bytes.
    pub const IPV6_SRC: usize = 8;
    /// IPv6: destination address, 16 bytes.
    pub const IPV6_DST: usize = 24;
}

/// The control bits of a TCP header (RFC 9293, section 3.1), as they lie in its 14th byte.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
#[repr(transparent)]
pub struct TcpFlags(pub u8);

impl TcpFlags {
    /// No bit set.
    pub const NONE: Self = Self(0);
    /// No more data from the sender.
    pub const FIN: Self = Self(1);
    /// Synchronise sequence numbers.
    pub const SYN: Self = Self(2);
    /// Reset the connection.
    pub const RST: Self = Self(4);
    /// Push.
    pub const PSH: Self = Self(8);
    /// The acknowledgement number counts.
    pub const ACK: Self = Self(16);
    /// The urgent pointer counts.
    pub const URG: Self = Self(32);
    /// Echo of congestion (RFC 3168).
    pub const ECE: Self = Self(64);
    /// Congestion window reduced (RFC 3168).
    pub const CWR: Self = Self(128);

    const IMPOSSIBLE_WITH_SYN: Self = Self(Self::FIN.0 | Self::RST.0);
    const CLASSIC: Self = Self(0x3f);

    /// True when every bit of `other` is set.
    #[inline]
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// True when any bit of `other` is set.
    #[inline]
    pub const fn intersects(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }

    /// The same with the bits of `other` cleared.
    #[inline]
    pub const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// False for combinations that no TCP sends: SYN with FIN or RST, or none of the six flags of
    /// RFC 793.
    #[inline]
    const fn possible(self) -> bool {
        self.intersects(Self::CLASSIC)
            && !(self.contains(Self::SYN) && self.intersects(Self::IMPOSSIBLE_WITH_SYN))
    }
}

impl BitOr for TcpFlags {
    type Output = Self;
    #[inline]
    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

impl BitOrAssign for TcpFlags {
    #[inline]
    fn bitor_assign(&mut self, other: Self) {
        self.0 |= other.0;
    }
}

impl BitAnd for TcpFlags {
    type Output = Self;
    #[inline]
    fn bitand(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }
}

impl fmt::Display for TcpFlags {
    /// One letter for each bit from FIN up: `SA` is SYN and ACK. `-` when none is set.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 == 0 {
            return f.write_str("-");
        }
        for (bit, letter) in ["F", "S", "R", "P", "A", "U", "E", "C"].iter().enumerate() {
            if self.0 & (1 << bit) != 0 {
                f.write_str(letter)?;
            }
        }
        Ok(())
    }
}

impl fmt::Debug for TcpFlags {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The headers of a valid TCP packet in short. The offsets refer to the bytes it was parsed from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TcpPacket {
    /// Source and destination.
    pub key: FlowKey,
    /// Sequence number.
    pub seq: SeqNumber,
    /// Acknowledgement number; it counts when [`TcpFlags::ACK`] is set.
    pub ack: SeqNumber,
    /// Control bits.
    pub flags: TcpFlags,
    /// Window as sent, not scaled.
    pub window: u16,
    /// Time to live or hop limit.
    pub ttl: u8,
    /// True for IPv4.
    pub v4: bool,
    /// Offset of the TCP header.
    pub tcp_at: u16,
    /// Offset of the payload: TCP options end here.
    pub payload_at: u16,
    /// Offset of the end of the IP packet. Bytes after it are padding of the link.
    pub end: u16,
}

impl TcpPacket {
    /// Bytes of payload.
    #[inline]
    pub fn payload_len(&self) -> usize {
        usize::from(self.end).saturating_sub(usize::from(self.payload_at))
    }

    /// Sequence space of the segment: payload, SYN and FIN (SEG.LEN of RFC 9293).
    #[inline]
    pub fn segment_len(&self) -> u32 {
        self.payload_len() as u32
            + u32::from(self.flags.contains(TcpFlags::SYN))
            + u32::from(self.flags.contains(TcpFlags::FIN))
    }

    /// The TCP options within `bytes`; empty if `bytes` is shorter than the parsed packet.
    #[inline]
    pub fn options<'a>(&self, bytes: &'a [u8]) -> &'a [u8] {
        let from = usize::from(self.tcp_at) + TCP_HEADER_BYTES;
        bytes
            .get(from..usize::from(self.payload_at))
            .unwrap_or_default()
    }

    /// The payload within `bytes`; empty if `bytes` is shorter than the parsed packet.
    #[inline]
    pub fn payload<'a>(&self, bytes: &'a [u8]) -> &'a [u8] {
        bytes
            .get(usize::from(self.payload_at)..usize::from(self.end))
            .unwrap_or_default()
    }

    /// True when the TCP checksum over pseudo-header, header and payload is right.
    pub fn checksum_valid(&self, bytes: &[u8]) -> bool {
        bytes
            .get(usize::from(self.tcp_at)..usize::from(self.end))
            .is_some_and(|segment| {
                checksum::tcp(&self.key.src.addr, &self.key.dst.addr, segment) == 0
            })
    }
}

/// A packet that may concern a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Classified {
    /// A TCP segment, with its checksum not verified.
    Tcp(TcpPacket),
    /// An ICMP or ICMPv6 message with a correct checksum.
    Icmp(IcmpPacket),
}

/// Parses and validates one IP packet. What is checked: IP version and lengths, the IPv4 header
/// checksum, fragments, the chain of IPv6 extension headers, the source address, TCP's data offset
/// and flags, ICMP's checksum. What is not: the TCP checksum (see [`TcpPacket::checksum_valid`])
/// and the inside of TCP options. Bytes after the end of the IP packet are ignored.
///
/// # Errors
/// The reason for which the packet must be dropped, in the order of the headers. An IPv6 packet
/// from an IPv4-mapped address is [`DropReason::BadSource`], one to such an address
/// [`DropReason::NotOurs`]: they must not pass for the IPv4 flow that has the same [`FlowKey`].
#[inline]
pub fn classify(bytes: &[u8]) -> Result<Classified, DropReason> {
    match bytes.first().map(|first| first >> 4) {
        Some(4) => classify_v4(bytes),
        Some(6) => classify_v6(bytes),
        Some(_) => Err(DropReason::BadIpHeader),
        None => Err(DropReason::Truncated),
    }
}

#[inline]
fn classify_v4(bytes: &[u8]) -> Result<Classified, DropReason> {
    // Taken as an array, the header needs one length check for all its fields.
    let header = bytes
        .first_chunk::<IPV4_HEADER_BYTES>()
        .ok_or(DropReason::Truncated)?;
    let header_len = usize::from(header[0] & 0x0f) * 4;
    if header_len < IPV4_HEADER_BYTES {
        return Err(DropReason::BadIpHeader);
    }
    let total_len = u16::from_be_bytes([header[2], header[3]]);
    let end = usize::from(total_len);
    if end < header_len || end > bytes.len() {
        return Err(DropReason::Truncated);
    }
    let sum = if header_len == IPV4_HEADER_BYTES {
        checksum::sum(header)
    } else {
        checksum::sum(&bytes[..header_len])
    };
    if checksum::fold(sum) != 0xffff {
        return Err(DropReason::BadIpChecksum);
    }
    // More fragments, or an offset.
    if u16::from_be_bytes([header[6], header[7]]) & 0x3fff != 0 {
        return Err(DropReason::Fragment);
    }
    let src = u32::from_be_bytes([header[12], header[13], header[14], header[15]]);
    let dst = u32::from_be_bytes([header[16], header[17], header[18], header[19]]);
    let protocol = header[9];
    if protocol != PROTOCOL_TCP && protocol != PROTOCOL_ICMP {
        return Err(DropReason::NotTcp);
    }
    let multicast = src >> 28 == 0xe;
    if multicast || src == 0 || src == u32::MAX {
        return Err(DropReason::BadSource);
    }
    let place = header_len..end;
    if protocol == PROTOCOL_TCP {
        parse_tcp(bytes, place, mapped(src), mapped(dst), header[8], true)
    } else {
        parse_icmp(bytes, place, src.to_be_bytes(), dst.to_be_bytes())
    }
}

/// Not inlined, so that callers of [`classify`] carry the code of one family only.
#[inline(never)]
fn classify_v6(bytes: &[u8]) -> Result<Classified, DropReason> {
    let header = bytes
        .first_chunk::<IPV6_HEADER_BYTES>()
        .ok_or(DropReason::Truncated)?;
    let payload_len = usize::from(u16::from_be_bytes([header[4], header[5]]));
    let end = IPV6_HEADER_BYTES + payload_len;
    // Zero would announce a jumbogram (RFC 2675). No driver here carries more than 65 535 bytes.
    if payload_len == 0 || end > bytes.len() || end > PACKET_BYTES_MAX {
        return Err(DropReason::Truncated);
    }
    let (protocol, upper_at) = match header[6] {
        PROTOCOL_TCP => (PROTOCOL_TCP, IPV6_HEADER_BYTES),
        next => upper_layer(&bytes[..end], next, IPV6_HEADER_BYTES)?,
    };
    if protocol != PROTOCOL_TCP && protocol != PROTOCOL_ICMPV6 {
        return Err(DropReason::NotTcp);
    }
    let (src, dst) = v6_addresses(header);
    if src.0[0] == 0xff || src.0 == [0; 16] || src.is_v4() {
        return Err(DropReason::BadSource);
    }
    if dst.is_v4() {
        return Err(DropReason::NotOurs);
    }
    if protocol == PROTOCOL_TCP {
        parse_tcp(bytes, upper_at..end, src, dst, header[7], false)
    } else {
        parse_icmp(bytes, upper_at..end, src.0, dst.0)
    }
}

/// [`Address::v4`] by way of an integer: written as two words of eight bytes, in the widths in
/// which a flow's hash reads them soon after. Stores of other widths would make it wait for them.
#[inline]
fn mapped(v4: u32) -> Address {
    Address((0xffff_0000_0000 | u128::from(v4)).to_be_bytes())
}

/// Source and destination of an IPv6 header.
#[inline]
pub(crate) fn v6_addresses(header: &[u8; IPV6_HEADER_BYTES]) -> (Address, Address) {
    let mut src = [0; 16];
    let mut dst = [0; 16];
    src.copy_from_slice(&header[offset::IPV6_SRC..offset::IPV6_DST]);
    dst.copy_from_slice(&header[offset::IPV6_DST..]);
    (Address::v6(src), Address::v6(dst))
}

/// Parses the TCP segment that lies in `place`, which ends at or before [`PACKET_BYTES_MAX`].
/// Always inlined: out of line, the summary would pass through memory twice.
#[inline(always)]
fn parse_tcp(
    bytes: &[u8],
    place: Range<usize>,
    src: Address,
    dst: Address,
    ttl: u8,
    v4: bool,
) -> Result<Classified, DropReason> {
    let segment = bytes.get(place.clone()).ok_or(DropReason::Truncated)?;
    let header = segment
        .first_chunk::<TCP_HEADER_BYTES>()
        .ok_or(DropReason::Truncated)?;
    let header_len = usize::from(header[12] >> 4) * 4;
    if header_len < TCP_HEADER_BYTES || header_len > segment.len() {
        return Err(DropReason::BadTcpHeader);
    }
    let flags = TcpFlags(header[offset::TCP_FLAGS]);
    if !flags.possible() {
        return Err(DropReason::BadTcpFlags);
    }
    let src_port = u16::from_be_bytes([header[0], header[1]]);
    let dst_port = u16::from_be_bytes([header[2], header[3]]);
    Ok(Classified::Tcp(TcpPacket {
        key: FlowKey {
            src: Endpoint {
                addr: src,
                port: src_port,
            },
            dst: Endpoint {
                addr: dst,
                port: dst_port,
            },
        },
        seq: SeqNumber(u32::from_be_bytes([
            header[4], header[5], header[6], header[7],
        ])),
        ack: SeqNumber(u32::from_be_bytes([
            header[8], header[9], header[10], header[11],
        ])),
        flags,
        window: u16::from_be_bytes([header[14], header[15]]),
        ttl,
        v4,
        tcp_at: place.start as u16,
        payload_at: (place.start + header_len) as u16,
        end: place.end as u16,
    }))
}

/// Kept away from the path of TCP packets. It takes addresses as they are on the wire, because a
/// reference to an [`Address`] would force those of TCP packets into memory, too.
#[cold]
#[inline(never)]
fn parse_icmp<A: Into<core::net::IpAddr>>(
    bytes: &[u8],
    place: Range<usize>,
    src: A,
    dst: A,
) -> Result<Classified, DropReason> {
    let (src, dst) = (Address::from(src.into()), Address::from(dst.into()));
    IcmpPacket::parse(bytes, place, src, dst).map(Classified::Icmp)
}

const HOP_BY_HOP: u8 = 0;
const ROUTING: u8 = 43;
const FRAGMENT: u8 = 44;
const AUTHENTICATION: u8 = 51;
const DESTINATION_OPTIONS: u8 = 60;
const MOBILITY: u8 = 135;
const HOST_IDENTITY: u8 = 139;
const SHIM6: u8 = 140;

/// Walks IPv6 extension headers (RFC 8200, section 4) from `at` on, where a header of kind `next`
/// is. Gives the protocol behind them and its offset, which is not past the end of `bytes`.
pub(crate) fn upper_layer(bytes: &[u8], next: u8, start: usize) -> Result<(u8, usize), DropReason> {
    match walk(bytes, next, start)? {
        Walked { next: FRAGMENT, .. } => Err(DropReason::Fragment),
        Walked { next, at, .. } => Ok((next, at)),
    }
}

/// Where the fragment header of an IPv6 packet is, and the byte that names it. `next`: what the
/// packet's own header names.
pub(crate) fn fragment_header(bytes: &[u8], next: u8) -> Result<(usize, usize), DropReason> {
    match walk(bytes, next, IPV6_HEADER_BYTES)? {
        Walked {
            next: FRAGMENT,
            named_at,
            at,
        } => Ok((named_at.unwrap_or(offset::IPV6_NEXT_HEADER), at)),
        _ => Err(DropReason::Fragment),
    }
}

/// What a walk along extension headers leads to.
struct Walked {
    next: u8,
    /// Where the extension header begins that names it; `None` before the first.
    named_at: Option<usize>,
    at: usize,
}

/// Walks IPv6 extension headers up to a fragment header or the upper-layer header.
fn walk(bytes: &[u8], mut next: u8, start: usize) -> Result<Walked, DropReason> {
    let mut at = start;
    let mut named_at = None;
    for walked in 0..=EXTENSION_HEADERS_MAX {
        match next {
            // Section 4.1: only directly after the IPv6 header.
            HOP_BY_HOP if walked == 0 => {}
            ROUTING | DESTINATION_OPTIONS => {}
            HOP_BY_HOP | AUTHENTICATION | MOBILITY | HOST_IDENTITY | SHIM6 => {
                return Err(DropReason::BadExtensionHeader);
            }
            next => return Ok(Walked { next, named_at, at }),
        }
        if walked == EXTENSION_HEADERS_MAX {
            break;
        }
        let &[following, units, _, segments_left] = bytes
            .get(at..)
            .and_then(<[u8]>::first_chunk::<4>)
            .ok_or(DropReason::Truncated)?;
        if next == ROUTING && segments_left != 0 {
            return Err(DropReason::BadExtensionHeader);
        }
        named_at = Some(at);
        at += (usize::from(units) + 1) * 8;
        if at - start > EXTENSION_BYTES_MAX {
            break;
        }
        if at > bytes.len() {
            return Err(DropReason::Truncated);
        }
        next = following;
    }
    Err(DropReason::BadExtensionHeader)
}

/// The protocol that the headers of an IP packet name, whatever else may be wrong with it; `None`
/// where they do not tell. For those who only look: what is to be handled goes by [`classify`].
pub fn protocol(bytes: &[u8]) -> Option<u8> {
    match bytes.first()? >> 4 {
        4 => Some(bytes.first_chunk::<IPV4_HEADER_BYTES>()?[9]),
        6 => v6_protocol(bytes),
        _ => None,
    }
}

/// Behind any extension headers, of fragments too: [`upper_layer`] refuses, here nothing is.
fn v6_protocol(bytes: &[u8]) -> Option<u8> {
    let mut next = bytes.first_chunk::<IPV6_HEADER_BYTES>()?[6];
    let mut at = IPV6_HEADER_BYTES;
    for _ in 0..=EXTENSION_HEADERS_MAX {
        let &[following, units] = match next {
            HOP_BY_HOP | ROUTING | FRAGMENT | AUTHENTICATION | DESTINATION_OPTIONS => {
                bytes.get(at..)?.first_chunk::<2>()?
            }
            protocol => return Some(protocol),
        };
        at += match next {
            FRAGMENT => 8,
            // Counted in words of four bytes, less two (RFC 4302).
            AUTHENTICATION => (usize::from(units) + 2) * 4,
            _ => (usize::from(units) + 1) * 8,
        };
        next = following;
    }
    None
}

#[cfg(test)]
mod tests;
