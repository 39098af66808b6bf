//! Whole packets from their parts, with lengths and checksums filled in.

use fairlead_base::{Address, FlowKey, PACKET_BYTES_MAX, SeqNumber};

use crate::checksum::{self, PROTOCOL_ICMP, PROTOCOL_ICMPV6, PROTOCOL_TCP};
use crate::icmp::{ICMP_HEADER_BYTES, IcmpPacket};
use crate::options::OPTIONS_BYTES_MAX;
use crate::packet::{IPV4_HEADER_BYTES, IPV6_HEADER_BYTES, TCP_HEADER_BYTES, TcpFlags, offset};

/// Hop limit of packets that have no reason for another one.
pub const TTL_DEFAULT: u8 = 64;

/// The longest ICMP error: RFC 1812, section 4.3.2.3.
const ICMP_ERROR_BYTES_MAX: usize = 576;
/// The longest ICMPv6 error: RFC 4443, section 2.4(c).
const ICMPV6_ERROR_BYTES_MAX: usize = 1_280;

/// A TCP packet to build. Both endpoints of `key` have the same family.
#[derive(Clone, Copy, Debug)]
pub struct TcpRepr<'a> {
    /// Source and destination.
    pub key: FlowKey,
    /// Sequence number.
    pub seq: SeqNumber,
    /// Acknowledgement number.
    pub ack: SeqNumber,
    /// Control bits.
    pub flags: TcpFlags,
    /// Window as sent, not scaled.
    pub window: u16,
    /// Option list: a multiple of 4 bytes, at most 40.
    pub options: &'a [u8],
    /// Payload.
    pub payload: &'a [u8],
    /// Time to live or hop limit.
    pub ttl: u8,
}

impl TcpRepr<'_> {
    /// Replaces `out` by the packet: IP header (IPv4 with DF set and identification 0, which
    /// RFC 6864 allows), TCP header, options, payload, all checksums complete.
    ///
    /// # Panics
    /// When the option list is too long or no multiple of 4, when the packet would exceed
    /// [`PACKET_BYTES_MAX`], or when the endpoints are of two families: faults of the caller.
    pub fn emit(&self, out: &mut Vec<u8>) {
        let tcp_at = self.write_headers(out);
        out.extend_from_slice(self.payload);
        let (src, dst) = (&self.key.src.addr, &self.key.dst.addr);
        let checksum = checksum::tcp(src, dst, &out[tcp_at..]);
        put_u16(out, tcp_at + offset::TCP_CHECKSUM, checksum);
    }

    /// The same, but the TCP checksum field holds only the pseudo-header's sum, as in a packet
    /// with [`fairlead_base::Checksum::Partial`].
    ///
    /// # Panics
    /// As [`TcpRepr::emit`].
    pub fn emit_partial(&self, out: &mut Vec<u8>) {
        let tcp_at = self.write_headers(out);
        out.extend_from_slice(self.payload);
        let length = (out.len() - tcp_at) as u32;
        let partial = checksum::tcp_partial(&self.key.src.addr, &self.key.dst.addr, length);
        put_u16(out, tcp_at + offset::TCP_CHECKSUM, partial);
    }

    /// All but the payload; the checksum field is zero. Gives the offset of the TCP header.
    fn write_headers(&self, out: &mut Vec<u8>) -> usize {
        let options_len = self.options.len();
        assert!(
            options_len <= OPTIONS_BYTES_MAX,
            "{options_len} bytes of TCP options"
        );
        assert!(
            options_len.is_multiple_of(4),
            "{options_len} bytes of TCP options"
        );
        let header_len = TCP_HEADER_BYTES + options_len;
        let (src, dst) = (&self.key.src.addr, &self.key.dst.addr);
        let upper_len = header_len + self.payload.len();
        let protocols = [PROTOCOL_TCP, PROTOCOL_TCP];
        let tcp_at = write_ip(out, src, dst, self.ttl, protocols, upper_len);
        out.extend(self.key.src.port.to_be_bytes());
        out.extend(self.key.dst.port.to_be_bytes());
        out.extend(self.seq.0.to_be_bytes());
        out.extend(self.ack.0.to_be_bytes());
        out.extend([(header_len as u8 / 4) << 4, self.flags.0]);
        out.extend(self.window.to_be_bytes());
        // Checksum and urgent pointer.
        out.extend([0; 4]);
        out.extend_from_slice(self.options);
        tcp_at
    }
}

/// Replaces `out` by an echo request.
///
/// # Panics
/// When the packet would exceed [`PACKET_BYTES_MAX`], or the addresses are of two families.
pub fn emit_icmp_echo_request(
    src: &Address,
    dst: &Address,
    identifier: u16,
    number: u16,
    payload: &[u8],
    out: &mut Vec<u8>,
) {
    let [i0, i1] = identifier.to_be_bytes();
    let [n0, n1] = number.to_be_bytes();
    let kind = if src.is_v4() { 8 } else { 128 };
    emit_icmp(src, dst, [kind, 0], [i0, i1, n0, n1], payload, out);
}

/// Replaces `out` by the answer to the echo request that [`crate::classify`] has parsed from
/// `bytes` as `request`: the same identifier, number and content, sent back.
///
/// # Panics
/// When `bytes` is shorter than what `request` was parsed from.
pub fn emit_icmp_echo_reply(bytes: &[u8], request: &IcmpPacket, out: &mut Vec<u8>) {
    let message = &bytes[usize::from(request.icmp_at)..usize::from(request.end)];
    let (header, payload) = message.split_at(ICMP_HEADER_BYTES);
    let kind = if request.v4 { 0 } else { 129 };
    let rest = [header[4], header[5], header[6], header[7]];
    emit_icmp(&request.dst, &request.src, [kind, 0], rest, payload, out);
}

/// Replaces `out` by a router's message that `quoted`, a packet of the same family, is longer than
/// `mtu` bytes. IPv4 has room for the low 16 bits of `mtu` only. The quote is cut to the length
/// that errors may have.
///
/// # Panics
/// When the addresses are of two families.
pub fn emit_icmp_too_big(src: &Address, dst: &Address, mtu: u32, quoted: &[u8], out: &mut Vec<u8>) {
    let [b0, b1, b2, b3] = mtu.to_be_bytes();
    if src.is_v4() {
        emit_icmp(src, dst, [3, 4], [0, 0, b2, b3], quote(src, quoted), out);
    } else {
        emit_icmp(src, dst, [2, 0], [b0, b1, b2, b3], quote(src, quoted), out);
    }
}

/// Replaces `out` by the message that the destination of `quoted` cannot be reached; the meaning
/// of `code` depends on the family. The quote is cut to the length that errors may have.
///
/// # Panics
/// When the addresses are of two families.
pub fn emit_icmp_unreachable(
    src: &Address,
    dst: &Address,
    code: u8,
    quoted: &[u8],
    out: &mut Vec<u8>,
) {
    let kind = if src.is_v4() { 3 } else { 1 };
    emit_icmp(src, dst, [kind, code], [0; 4], quote(src, quoted), out);
}

fn quote<'a>(src: &Address, quoted: &'a [u8]) -> &'a [u8] {
    let room = if src.is_v4() {
        ICMP_ERROR_BYTES_MAX - IPV4_HEADER_BYTES - ICMP_HEADER_BYTES
    } else {
        ICMPV6_ERROR_BYTES_MAX - IPV6_HEADER_BYTES - ICMP_HEADER_BYTES
    };
    &quoted[..quoted.len().min(room)]
}

/// One ICMP packet; `rest` are the bytes 4 to 7 of its header.
fn emit_icmp(
    src: &Address,
    dst: &Address,
    kind_and_code: [u8; 2],
    rest: [u8; 4],
    body: &[u8],
    out: &mut Vec<u8>,
) {
    let length = ICMP_HEADER_BYTES + body.len();
    let protocols = [PROTOCOL_ICMP, PROTOCOL_ICMPV6];
    let icmp_at = write_ip(out, src, dst, TTL_DEFAULT, protocols, length);
    out.extend(kind_and_code);
    out.extend([0; 2]);
    out.extend(rest);
    out.extend_from_slice(body);
    let mut sum = checksum::sum(&out[icmp_at..]);
    if !src.is_v4() {
        sum += checksum::pseudo_header(src, dst, PROTOCOL_ICMPV6, length as u32);
    }
    put_u16(out, icmp_at + 2, !checksum::fold(sum));
}

/// Replaces `out` by an IP header for `upper_len` bytes of the family's protocol (IPv4's first).
/// Returns the offset after it.
fn write_ip(
    out: &mut Vec<u8>,
    src: &Address,
    dst: &Address,
    ttl: u8,
    protocols: [u8; 2],
    upper_len: usize,
) -> usize {
    assert_eq!(
        src.is_v4(),
        dst.is_v4(),
        "{src} and {dst} are of two families"
    );
    out.clear();
    let header_len = if src.is_v4() {
        IPV4_HEADER_BYTES
    } else {
        IPV6_HEADER_BYTES
    };
    let total_len = header_len + upper_len;
    assert!(
        total_len <= PACKET_BYTES_MAX,
        "a packet of {total_len} bytes"
    );
    if src.is_v4() {
        out.extend([0x45, 0]);
        out.extend((total_len as u16).to_be_bytes());
        // Identification 0; don't fragment.
        out.extend([0, 0, 0x40, 0]);
        out.extend([ttl, protocols[0], 0, 0]);
        out.extend(src.v4_octets());
        out.extend(dst.v4_octets());
        let checksum = checksum::ipv4_header(out);
        put_u16(out, offset::IPV4_CHECKSUM, checksum);
    } else {
        out.extend([0x60, 0, 0, 0]);
        out.extend((upper_len as u16).to_be_bytes());
        out.extend([protocols[1], ttl]);
        out.extend(src.0);
        out.extend(dst.0);
    }
    out.len()
}

fn put_u16(bytes: &mut [u8], at: usize, value: u16) {
    bytes[at..at + 2].copy_from_slice(&value.to_be_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;
    use fairlead_base::Endpoint;

    fn repr<'a>(key: FlowKey, options: &'a [u8], payload: &'a [u8]) -> TcpRepr<'a> {
        TcpRepr {
            key,
            seq: SeqNumber(1),
            ack: SeqNumber(0),
            flags: TcpFlags::SYN,
            window: 64_240,
            options,
            payload,
            ttl: TTL_DEFAULT,
        }
    }

    fn v4(last: u8, port: u16) -> Endpoint {
        Endpoint {
            addr: Address::v4([10, 0, 0, last]),
            port,
        }
    }

    fn v6(last: u8, port: u16) -> Endpoint {
        let mut octets = [0; 16];
        octets[0] = 0xfd;
        octets[15] = last;
        Endpoint {
            addr: Address::v6(octets),
            port,
        }
    }

    /// The bytes are written by hand, their checksums computed apart from this crate.
    #[test]
    fn an_ipv4_syn_byte_for_byte() {
        let key = FlowKey {
            src: v4(1, 40_000),
            dst: v4(2, 80),
        };
        let mut out = vec![1, 2, 3];
        repr(key, &[2, 4, 0x05, 0xb4], b"").emit(&mut out);
        #[rustfmt::skip]
        let expected = [
            0x45, 0x00, 0x00, 0x2c, 0x00, 0x00, 0x40, 0x00, 0x40, 0x06, 0x26, 0xca,
            0x0a, 0x00, 0x00, 0x01, 0x0a, 0x00, 0x00, 0x02,
            0x9c, 0x40, 0x00, 0x50, 0x00, 0x00, 0x00, 0x01, 0x00, 0x00, 0x00, 0x00,
            0x60, 0x02, 0xfa, 0xf0, 0xec, 0xa1, 0x00, 0x00, 0x02, 0x04, 0x05, 0xb4,
        ];
        assert_eq!(out, expected);
    }

    #[test]
    fn an_ipv6_segment_byte_for_byte() {
        let key = FlowKey {
            src: v6(1, 40_000),
            dst: v6(2, 80),
        };
        let mut out = Vec::new();
        repr(key, &[], b"odd").emit(&mut out);
        let mut expected = vec![0x60, 0, 0, 0, 0, 23, 6, 64];
        expected.extend(key.src.addr.0);
        expected.extend(key.dst.addr.0);
        expected.extend([0x9c, 0x40, 0x00, 0x50, 0, 0, 0, 1, 0, 0, 0, 0]);
        expected.extend([0x50, 0x02, 0xfa, 0xf0, 0x4a, 0xf4, 0, 0]);
        expected.extend(b"odd");
        assert_eq!(out, expected);
    }

    #[test]
    #[should_panic(expected = "two families")]
    fn endpoints_of_two_families_are_a_fault_of_the_caller() {
        let key = FlowKey {
            src: v4(1, 1),
            dst: v6(2, 2),
        };
        repr(key, &[], b"").emit(&mut Vec::new());
    }

    #[test]
    #[should_panic(expected = "3 bytes of TCP options")]
    fn options_that_are_no_whole_words_are_a_fault_of_the_caller() {
        let key = FlowKey {
            src: v4(1, 1),
            dst: v4(2, 2),
        };
        repr(key, &[1, 1, 1], b"").emit(&mut Vec::new());
    }

    #[test]
    #[should_panic(expected = "a packet of 65536 bytes")]
    fn packets_beyond_the_limit_are_a_fault_of_the_caller() {
        let key = FlowKey {
            src: v4(1, 1),
            dst: v4(2, 2),
        };
        let payload = vec![0; PACKET_BYTES_MAX - 39];
        repr(key, &[], &payload).emit(&mut Vec::new());
    }
}
