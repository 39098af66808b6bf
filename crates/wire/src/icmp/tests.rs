use super::*;
use crate::build::{
    TcpRepr, emit_icmp_echo_reply, emit_icmp_echo_request, emit_icmp_too_big, emit_icmp_unreachable,
};
use crate::packet::{Classified, TcpFlags, classify};
use proptest::prelude::*;

/// Client, server and a router between them.
struct Path {
    client: Address,
    server: Address,
    router: Address,
}

fn v4_path() -> Path {
    Path {
        client: Address::v4([10, 1, 0, 3]),
        server: Address::v4([10, 2, 0, 1]),
        router: Address::v4([10, 9, 9, 9]),
    }
}

fn v6_path() -> Path {
    let [client, server, router] = [3u8, 1, 9].map(|last| {
        let mut octets = [0; 16];
        octets[..4].copy_from_slice(&[0x20, 1, 0xd, 0xb8]);
        octets[15] = last;
        Address::v6(octets)
    });
    Path {
        client,
        server,
        router,
    }
}

impl Path {
    /// A packet from the server to the client, with an option list that makes 24 bytes of header.
    fn packet(&self, payload_len: usize) -> Vec<u8> {
        let mut out = Vec::new();
        TcpRepr {
            key: self.key(),
            seq: SeqNumber(0xdead_beef),
            ack: SeqNumber(5),
            flags: TcpFlags::ACK,
            window: 100,
            options: &[2, 4, 5, 180],
            payload: &vec![0x55; payload_len],
            ttl: 60,
        }
        .emit(&mut out);
        out
    }

    fn key(&self) -> FlowKey {
        FlowKey {
            src: Endpoint {
                addr: self.server,
                port: 80,
            },
            dst: Endpoint {
                addr: self.client,
                port: 40_000,
            },
        }
    }

    fn ip_header_bytes(&self) -> u16 {
        if self.client.is_v4() { 20 } else { 40 }
    }
}

fn parsed(bytes: &[u8]) -> IcmpPacket {
    match classify(bytes) {
        Ok(Classified::Icmp(icmp)) => icmp,
        other => panic!("{other:?}"),
    }
}

/// Makes the checksum of the ICMP message in `bytes` right again after an edit.
fn mend(bytes: &mut [u8]) {
    let at = if bytes[0] >> 4 == 4 { 20 } else { 40 };
    bytes[at + 2..at + 4].fill(0);
    let mut sum = checksum::sum(&bytes[at..]);
    if at == 40 {
        let (src, dst) = v6_addresses(bytes.first_chunk().unwrap());
        let length = (bytes.len() - at) as u32;
        sum += checksum::pseudo_header(&src, &dst, PROTOCOL_ICMPV6, length);
    }
    bytes[at + 2..at + 4].copy_from_slice(&(!checksum::fold(sum)).to_be_bytes());
}

#[test]
fn too_big_with_its_quote() {
    for path in [v4_path(), v6_path()] {
        let quoted = path.packet(1_460);
        let mut bytes = Vec::new();
        emit_icmp_too_big(&path.router, &path.server, 1_400, &quoted, &mut bytes);
        let ip = path.ip_header_bytes();
        // RFC 1812 and RFC 4443 limit the length of the whole error.
        assert_eq!(bytes.len(), if ip == 20 { 576 } else { 1_280 });
        let icmp = parsed(&bytes);
        let quote = IcmpQuote {
            key: path.key(),
            seq: SeqNumber(0xdead_beef),
            ip_at: ip + 8,
            tcp_at: ip + 8 + ip,
            tcp_len: bytes.len() as u16 - (ip + 8 + ip),
        };
        let expected = IcmpPacket {
            src: path.router,
            dst: path.server,
            v4: ip == 20,
            icmp_at: ip,
            end: bytes.len() as u16,
            kind: IcmpKind::PacketTooBig { mtu: 1_400 },
            quote: Some(quote),
        };
        assert_eq!(icmp, expected);
    }
}

#[test]
fn quotes_of_any_length_from_eight_bytes_on() {
    for path in [v4_path(), v6_path()] {
        let quoted = path.packet(10);
        let ip = usize::from(path.ip_header_bytes());
        for len in 0..=quoted.len() {
            let mut bytes = Vec::new();
            emit_icmp_unreachable(&path.router, &path.server, 1, &quoted[..len], &mut bytes);
            let icmp = parsed(&bytes);
            assert_eq!(icmp.kind, IcmpKind::Unreachable { code: 1 });
            let present = icmp.quote.map(|quote| usize::from(quote.tcp_len));
            let expected = len.checked_sub(ip).filter(|&tcp_len| tcp_len >= 8);
            assert_eq!(present, expected, "{len} bytes quoted");
        }
    }
}

#[test]
fn what_follows_the_quoted_packet_is_not_counted() {
    for path in [v4_path(), v6_path()] {
        let mut quoted = path.packet(0);
        let tcp_len = quoted.len() - usize::from(path.ip_header_bytes());
        quoted.extend([0; 60]);
        let mut bytes = Vec::new();
        emit_icmp_unreachable(&path.router, &path.server, 3, &quoted, &mut bytes);
        let quote = parsed(&bytes).quote.unwrap();
        assert_eq!(usize::from(quote.tcp_len), tcp_len);
    }
}

#[test]
fn a_quoted_length_that_cannot_be_is_disregarded() {
    for path in [v4_path(), v6_path()] {
        let ip = usize::from(path.ip_header_bytes());
        let mut quoted = path.packet(0);
        let tcp_len = quoted.len() - ip;
        let (length_at, checksum_at) = if ip == 20 { (2, 10) } else { (4, 4) };
        quoted[checksum_at..checksum_at + 2].fill(0xab);
        quoted[length_at..length_at + 2].fill(0);
        let mut bytes = Vec::new();
        emit_icmp_unreachable(&path.router, &path.server, 3, &quoted, &mut bytes);
        let quote = parsed(&bytes).quote.unwrap();
        assert_eq!(usize::from(quote.tcp_len), tcp_len);
        assert_eq!(quote.key, path.key());
    }
}

#[test]
fn quotes_that_are_no_tcp_of_the_same_family() {
    let (v4, v6) = (v4_path(), v6_path());
    let quote_of = |path: &Path, quoted: &[u8]| {
        let mut bytes = Vec::new();
        emit_icmp_unreachable(&path.router, &path.server, 3, quoted, &mut bytes);
        parsed(&bytes).quote
    };
    assert_eq!(quote_of(&v4, &v6.packet(0)), None);
    assert_eq!(quote_of(&v6, &v4.packet(9)), None);
    let altered = |path: &Path, at: usize, value: u8| {
        let mut quoted = path.packet(20);
        quoted[at] = value;
        quoted
    };
    // UDP, a header length below 5 words, a later fragment.
    for (at, value) in [(9, 17), (0, 0x44), (7, 1), (6, 0x01)] {
        assert_eq!(quote_of(&v4, &altered(&v4, at, value)), None, "{at}");
    }
    // The first fragment has the TCP header; so has one whose header has options.
    assert!(quote_of(&v4, &altered(&v4, 6, 0x20)).is_some());
    let with_options = quote_of(&v4, &altered(&v4, 0, 0x46)).unwrap();
    assert_eq!(with_options.tcp_at - with_options.ip_at, 24);
    // UDP, and a fragment header.
    for protocol in [17, 44, 51] {
        assert_eq!(quote_of(&v6, &altered(&v6, 6, protocol)), None);
    }
    // A mapped address inside an IPv6 quote would name an IPv4 connection.
    let mut mapped = v6.packet(0);
    mapped[offset::IPV6_SRC..offset::IPV6_DST].copy_from_slice(&v4.server.0);
    mapped[offset::IPV6_DST..offset::IPV6_DST + 16].copy_from_slice(&v4.client.0);
    assert_eq!(quote_of(&v6, &mapped), None);
}

#[test]
fn extension_headers_inside_a_quote_are_walked() {
    let path = v6_path();
    let plain = path.packet(0);
    let mut quoted = plain[..40].to_vec();
    quoted[6] = 60;
    quoted.extend([PROTOCOL_TCP, 0, 1, 4, 0, 0, 0, 0]);
    quoted.extend(&plain[40..]);
    quoted[5] += 8;
    let mut bytes = Vec::new();
    emit_icmp_too_big(&path.router, &path.server, 1_280, &quoted, &mut bytes);
    let quote = parsed(&bytes).quote.unwrap();
    assert_eq!(
        (quote.ip_at, quote.tcp_at, quote.tcp_len),
        (48, 48 + 48, 24)
    );
    assert_eq!(quote.key, path.key());
}

#[test]
fn types_and_codes() {
    use IcmpKind::{EchoRequest, Other, PacketTooBig, ParameterProblem, TimeExceeded, Unreachable};
    let v4 = [
        (0, 0, Other),
        (3, 0, Unreachable { code: 0 }),
        (3, 4, PacketTooBig { mtu: 0x0506 }),
        (3, 13, Unreachable { code: 13 }),
        (5, 1, Other),
        (8, 0, EchoRequest),
        (11, 0, TimeExceeded),
        (12, 1, ParameterProblem),
        (13, 0, Other),
        (128, 0, Other),
    ];
    let v6 = [
        (0, 0, Other),
        (1, 4, Unreachable { code: 4 }),
        (2, 0, PacketTooBig { mtu: 0x0304_0506 }),
        (3, 1, TimeExceeded),
        (4, 0, ParameterProblem),
        (8, 0, Other),
        (128, 0, EchoRequest),
        (129, 0, Other),
        (135, 0, Other),
    ];
    for (path, table) in [(v4_path(), &v4[..]), (v6_path(), &v6[..])] {
        for &(kind, code, expected) in table {
            let mut bytes = Vec::new();
            let quoted = path.packet(0);
            emit_icmp_unreachable(&path.router, &path.server, 0, &quoted, &mut bytes);
            let at = usize::from(path.ip_header_bytes());
            bytes[at] = kind;
            bytes[at + 1] = code;
            bytes[at + 4..at + 8].copy_from_slice(&[3, 4, 5, 6]);
            mend(&mut bytes);
            let icmp = parsed(&bytes);
            assert_eq!(icmp.kind, expected, "type {kind} code {code}");
            let is_error = !matches!(expected, EchoRequest | Other);
            assert_eq!(icmp.quote.is_some(), is_error, "type {kind} code {code}");
        }
    }
}

#[test]
fn echoes_are_answered_with_their_content() {
    for path in [v4_path(), v6_path()] {
        let mut request = Vec::new();
        let content = b"0123456789abcdefghi";
        emit_icmp_echo_request(&path.client, &path.server, 77, 3, content, &mut request);
        let end = request.len();
        request.extend([0; 5]);
        let icmp = parsed(&request);
        assert_eq!((icmp.kind, icmp.quote), (IcmpKind::EchoRequest, None));
        let mut reply = Vec::new();
        emit_icmp_echo_reply(&request, &icmp, &mut reply);
        let answer = parsed(&reply);
        assert_eq!((answer.src, answer.dst), (path.server, path.client));
        let at = usize::from(icmp.icmp_at);
        assert_eq!(reply[at], if icmp.v4 { 0 } else { 129 });
        assert_eq!(reply[at + 4..], request[at + 4..end]);
    }
}

#[test]
fn every_flipped_bit_of_a_message_is_noticed() {
    for path in [v4_path(), v6_path()] {
        let mut bytes = Vec::new();
        emit_icmp_too_big(
            &path.router,
            &path.server,
            1_400,
            &path.packet(0),
            &mut bytes,
        );
        for bit in usize::from(path.ip_header_bytes()) * 8..bytes.len() * 8 {
            let mut wrong = bytes.clone();
            wrong[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(classify(&wrong), Err(DropReason::BadIcmp), "bit {bit}");
        }
    }
}

#[test]
fn messages_too_short_for_their_header() {
    for path in [v4_path(), v6_path()] {
        let at = usize::from(path.ip_header_bytes());
        for len in 0..8u8 {
            let mut bytes = Vec::new();
            emit_icmp_echo_request(&path.client, &path.server, 1, 1, &[], &mut bytes);
            if path.client.is_v4() {
                bytes[3] = 20 + len;
                bytes[10..12].fill(0);
                let checksum = checksum::ipv4_header(&bytes[..20]);
                bytes[10..12].copy_from_slice(&checksum.to_be_bytes());
            } else {
                bytes[5] = len;
            }
            bytes.truncate(at + usize::from(len));
            let expected = if at == 40 && len == 0 {
                DropReason::Truncated
            } else {
                DropReason::BadIcmp
            };
            assert_eq!(classify(&bytes), Err(expected), "{len} bytes");
        }
    }
}

#[test]
fn senders_that_cannot_be() {
    let path = v4_path();
    let mut bytes = Vec::new();
    let multicast = Address::v4([224, 0, 0, 5]);
    emit_icmp_echo_request(&multicast, &path.server, 1, 1, &[], &mut bytes);
    assert_eq!(classify(&bytes), Err(DropReason::BadSource));
}

proptest! {
    /// With the checksum made right, edited messages reach the parser of quotes.
    #[test]
    fn mutated_errors_do_no_harm(
        v4: bool,
        payload_len in 0usize..40,
        edits in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6),
        cut: prop::sample::Index,
    ) {
        let path = if v4 { v4_path() } else { v6_path() };
        let quoted = path.packet(payload_len);
        let quoted = &quoted[..cut.index(quoted.len() + 1)];
        let mut bytes = Vec::new();
        emit_icmp_too_big(&path.router, &path.server, 1_300, quoted, &mut bytes);
        let at = usize::from(path.ip_header_bytes());
        for (place, value) in edits {
            let place = at + place.index(bytes.len() - at);
            bytes[place] = value;
        }
        mend(&mut bytes);
        let icmp = parsed(&bytes);
        if let Some(quote) = icmp.quote {
            prop_assert!(quote.tcp_len >= 8);
            prop_assert!(quote.ip_at + path.ip_header_bytes() <= quote.tcp_at);
            prop_assert!(quote.tcp_at + quote.tcp_len <= icmp.end);
            prop_assert_eq!(quote.key.src.addr.is_v4(), v4);
            prop_assert_eq!(quote.key.dst.addr.is_v4(), v4);
        }
    }
}
