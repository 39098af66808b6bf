use super::*;
use crate::build::TcpRepr;
use crate::options::{SynOptions, Timestamps};
use proptest::prelude::*;

const V4: [Address; 2] = [
    Address([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 1, 0, 3]),
    Address([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 2, 0, 1]),
];
const V6: [Address; 2] = [
    Address([0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 3]),
    Address([0x20, 1, 0xd, 0xb8, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]),
];

fn key([src, dst]: [Address; 2]) -> FlowKey {
    FlowKey {
        src: Endpoint {
            addr: src,
            port: 40_000,
        },
        dst: Endpoint {
            addr: dst,
            port: 80,
        },
    }
}

/// A packet with 12 bytes of options and `payload`.
fn packet(addresses: [Address; 2], flags: TcpFlags, payload: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    TcpRepr {
        key: key(addresses),
        seq: SeqNumber(0x0102_0304),
        ack: SeqNumber(0xf1f2_f3f4),
        flags,
        window: 0x1234,
        options: &[1, 1, 8, 10, 0, 0, 0, 1, 0, 0, 0, 2],
        payload,
        ttl: 17,
    }
    .emit(&mut out);
    out
}

fn v4_packet() -> Vec<u8> {
    packet(V4, TcpFlags::ACK, b"hello")
}

fn v6_packet() -> Vec<u8> {
    packet(V6, TcpFlags::ACK, b"hello")
}

fn parsed(bytes: &[u8]) -> TcpPacket {
    match classify(bytes) {
        Ok(Classified::Tcp(tcp)) => tcp,
        other => panic!("{other:?}"),
    }
}

fn refused(bytes: &[u8]) -> DropReason {
    classify(bytes).expect_err("must be refused")
}

/// Makes the checksum of an IPv4 header right again after an edit.
fn mend(mut bytes: Vec<u8>) -> Vec<u8> {
    let header_len = usize::from(bytes[0] & 0xf) * 4;
    bytes[10..12].fill(0);
    let checksum = checksum::ipv4_header(&bytes[..header_len]);
    bytes[10..12].copy_from_slice(&checksum.to_be_bytes());
    bytes
}

fn edited(mut bytes: Vec<u8>, edits: &[(usize, u8)]) -> Vec<u8> {
    for &(at, value) in edits {
        bytes[at] = value;
    }
    if bytes[0] >> 4 == 4 && bytes[0] & 0xf >= 5 {
        mend(bytes)
    } else {
        bytes
    }
}

/// An IPv6 packet whose chain of extension headers (kind, whole header but for the first byte) is
/// put before TCP.
fn extended(chain: &[(u8, Vec<u8>)]) -> Vec<u8> {
    let plain = v6_packet();
    let mut bytes = plain[..IPV6_HEADER_BYTES].to_vec();
    let after = chain.iter().skip(1).map(|(kind, _)| *kind);
    for ((_, rest), next) in chain.iter().zip(after.chain([PROTOCOL_TCP])) {
        bytes.push(next);
        bytes.extend(rest);
    }
    bytes[6] = chain.first().map_or(PROTOCOL_TCP, |(kind, _)| *kind);
    bytes.extend(&plain[IPV6_HEADER_BYTES..]);
    let payload_len = (bytes.len() - IPV6_HEADER_BYTES) as u16;
    bytes[4..6].copy_from_slice(&payload_len.to_be_bytes());
    bytes
}

/// An extension header of `8 * (units + 1)` bytes, without its first byte.
fn extension(units: u8) -> Vec<u8> {
    let mut rest = vec![0; 8 * (usize::from(units) + 1) - 1];
    rest[0] = units;
    rest
}

#[test]
fn a_packet_of_each_family_field_by_field() {
    for (addresses, tcp_at) in [(V4, 20), (V6, 40)] {
        let bytes = packet(addresses, TcpFlags::ACK | TcpFlags::PSH, b"hello");
        let tcp = parsed(&bytes);
        let expected = TcpPacket {
            key: key(addresses),
            seq: SeqNumber(0x0102_0304),
            ack: SeqNumber(0xf1f2_f3f4),
            flags: TcpFlags::ACK | TcpFlags::PSH,
            window: 0x1234,
            ttl: 17,
            v4: tcp_at == 20,
            tcp_at,
            payload_at: tcp_at + 32,
            end: tcp_at + 37,
        };
        assert_eq!(tcp, expected);
        assert_eq!(tcp.payload(&bytes), b"hello");
        assert_eq!(tcp.payload_len(), 5);
        assert_eq!(tcp.segment_len(), 5);
        assert_eq!(tcp.options(&bytes)[..4], [1, 1, 8, 10]);
        assert_eq!(tcp.options(&bytes).len(), 12);
        assert!(tcp.checksum_valid(&bytes));
    }
}

/// A SYN as a Linux host sends it, bytes written out by hand from RFC 791 and RFC 9293, its
/// checksums computed apart from this crate.
#[test]
fn a_syn_written_by_hand() {
    #[rustfmt::skip]
    let bytes = [
        0x45, 0x00, 0x00, 0x2c, 0x1c, 0x46, 0x40, 0x00, 0x40, 0x06, 0x0a, 0x84,
        0x0a, 0x00, 0x00, 0x01, 0x0a, 0x00, 0x00, 0x02,
        0x9c, 0x40, 0x00, 0x50, 0x00, 0x00, 0x00, 0x01, 0x00, 0x00, 0x00, 0x00,
        0x60, 0x02, 0xfa, 0xf0, 0xec, 0xa1, 0x00, 0x00, 0x02, 0x04, 0x05, 0xb4,
    ];
    let tcp = parsed(&bytes);
    assert_eq!(tcp.key.to_string(), "10.0.0.1:40000 -> 10.0.0.2:80");
    assert_eq!(tcp.flags, TcpFlags::SYN);
    assert_eq!(tcp.segment_len(), 1);
    assert_eq!(tcp.window, 64_240);
    assert_eq!(
        SynOptions::parse(tcp.options(&bytes)).unwrap().mss,
        Some(1460)
    );
    assert!(tcp.checksum_valid(&bytes));
}

#[test]
fn padding_of_the_link_is_no_payload() {
    for mut bytes in [v4_packet(), v6_packet()] {
        let end = bytes.len();
        bytes.extend([0xaa; 9]);
        let tcp = parsed(&bytes);
        assert_eq!(usize::from(tcp.end), end);
        assert_eq!(tcp.payload(&bytes), b"hello");
        assert!(tcp.checksum_valid(&bytes));
    }
}

#[test]
fn every_cut_is_truncated() {
    for bytes in [v4_packet(), v6_packet(), extended(&[(60, extension(1))])] {
        for len in 0..bytes.len() {
            assert_eq!(refused(&bytes[..len]), DropReason::Truncated, "{len}");
        }
    }
}

#[test]
fn lengths_below_the_headers() {
    // IPv4 total length below its own header, then below TCP's.
    for (total_len, reason) in [
        (0, DropReason::Truncated),
        (19, DropReason::Truncated),
        (20, DropReason::Truncated),
        (39, DropReason::Truncated),
        (40, DropReason::BadTcpHeader),
        (51, DropReason::BadTcpHeader),
    ] {
        let bytes = edited(v4_packet(), &[(3, total_len)]);
        assert_eq!(refused(&bytes), reason, "{total_len}");
    }
    assert_eq!(
        parsed(&edited(v4_packet(), &[(3, 52)])).payload_len(),
        0,
        "the shortest that holds the options"
    );
    for (payload_len, reason) in [
        (0, DropReason::Truncated),
        (19, DropReason::Truncated),
        (20, DropReason::BadTcpHeader),
    ] {
        let bytes = edited(v6_packet(), &[(5, payload_len)]);
        assert_eq!(refused(&bytes), reason, "{payload_len}");
    }
}

#[test]
fn ip_versions_and_header_lengths() {
    for version in [0u8, 1, 5, 7, 15] {
        let bytes = edited(v4_packet(), &[(0, version << 4 | 5)]);
        assert_eq!(refused(&bytes), DropReason::BadIpHeader);
    }
    for words in 0..5 {
        let bytes = edited(v4_packet(), &[(0, 0x40 | words)]);
        assert_eq!(refused(&bytes), DropReason::BadIpHeader);
    }
    assert_eq!(refused(&[]), DropReason::Truncated);
}

#[test]
fn ipv4_options_are_skipped_and_checksummed() {
    let plain = v4_packet();
    for words in 1..=10u8 {
        let mut bytes = plain[..20].to_vec();
        bytes.extend(vec![1; usize::from(words) * 4]);
        bytes.extend(&plain[20..]);
        let total_len = bytes.len() as u8;
        let bytes = edited(bytes, &[(0, 0x45 + words), (3, total_len)]);
        let tcp = parsed(&bytes);
        assert_eq!(tcp.tcp_at, 20 + u16::from(words) * 4);
        assert_eq!(tcp.payload(&bytes), b"hello");
        assert!(tcp.checksum_valid(&bytes));
        let mut wrong = bytes.clone();
        wrong[20] = 0;
        assert_eq!(refused(&wrong), DropReason::BadIpChecksum);
    }
}

#[test]
fn every_flipped_bit_of_an_ipv4_header_is_noticed() {
    let bytes = v4_packet();
    for bit in 0..20 * 8 {
        let mut wrong = bytes.clone();
        wrong[bit / 8] ^= 1 << (bit % 8);
        assert!(classify(&wrong).is_err(), "bit {bit}");
    }
}

#[test]
fn fragments_of_both_families() {
    for (at, value) in [(6, 0x20), (6, 0x01), (7, 0x01), (6, 0x60)] {
        assert_eq!(
            refused(&edited(v4_packet(), &[(at, value)])),
            DropReason::Fragment
        );
    }
    // Neither DF nor the reserved bit make a fragment.
    parsed(&edited(v4_packet(), &[(6, 0x00)]));
    parsed(&edited(v4_packet(), &[(6, 0xc0)]));
    assert_eq!(
        refused(&extended(&[(44, extension(0))])),
        DropReason::Fragment
    );
    let behind = extended(&[(60, extension(0)), (44, extension(0))]);
    assert_eq!(refused(&behind), DropReason::Fragment);
}

#[test]
fn extension_headers_that_are_walked() {
    for chain in [
        vec![(0, extension(0))],
        vec![(60, extension(3))],
        vec![(43, extension(2))],
        vec![
            (0, extension(1)),
            (60, extension(0)),
            (43, extension(2)),
            (60, extension(0)),
        ],
        vec![(60, extension(0)); EXTENSION_HEADERS_MAX],
        vec![(60, extension(31))],
        vec![(60, extension(15)); 2],
    ] {
        let bytes = extended(&chain);
        let tcp = parsed(&bytes);
        let extensions: usize = chain.iter().map(|(_, rest)| rest.len() + 1).sum();
        assert_eq!(usize::from(tcp.tcp_at), 40 + extensions);
        assert_eq!(tcp.payload(&bytes), b"hello");
        assert!(tcp.checksum_valid(&bytes));
    }
}

#[test]
fn extension_headers_that_are_refused() {
    let mut segments_left = extension(2);
    segments_left[2] = 1;
    for chain in [
        vec![(60, extension(0)); EXTENSION_HEADERS_MAX + 1],
        vec![(60, extension(32))],
        vec![(60, extension(15)), (60, extension(16))],
        vec![(43, segments_left)],
        // Hop-by-hop options must come first.
        vec![(60, extension(0)), (0, extension(0))],
        vec![(51, extension(1))],
        vec![(135, extension(0))],
    ] {
        assert_eq!(
            refused(&extended(&chain)),
            DropReason::BadExtensionHeader,
            "{:?}",
            chain[0].0
        );
    }
    // A length that leads out of the packet.
    let mut bytes = extended(&[(60, extension(0))]);
    bytes[41] = 12;
    assert_eq!(refused(&bytes), DropReason::Truncated);
}

#[test]
fn other_protocols() {
    for protocol in [0, 2, 17, 41, 47, 50, 58, 132, 255] {
        assert_eq!(
            refused(&edited(v4_packet(), &[(9, protocol)])),
            DropReason::NotTcp
        );
    }
    for protocol in [1, 17, 41, 50, 59, 132, 255] {
        assert_eq!(
            refused(&edited(v6_packet(), &[(6, protocol)])),
            DropReason::NotTcp
        );
    }
}

#[test]
fn data_offsets() {
    for plain in [v4_packet(), v6_packet()] {
        let tcp = parsed(&plain);
        let at = usize::from(tcp.tcp_at) + 12;
        for words in 0..16u8 {
            let bytes = edited(plain.clone(), &[(at, words << 4)]);
            // 20 bytes of header, 12 of options, 5 of payload.
            if (5..=9).contains(&words) {
                let tcp = parsed(&bytes);
                assert_eq!(tcp.payload_at - tcp.tcp_at, u16::from(words) * 4);
            } else {
                assert_eq!(refused(&bytes), DropReason::BadTcpHeader, "{words}");
            }
        }
    }
}

#[test]
fn flags_that_no_tcp_sends() {
    for bits in 0..=255u8 {
        let bytes = packet(V4, TcpFlags(bits), b"");
        let syn = bits & 2 != 0;
        let impossible = bits & 0x3f == 0 || syn && bits & 5 != 0;
        match classify(&bytes) {
            Err(reason) => {
                assert!(impossible, "{}", TcpFlags(bits));
                assert_eq!(reason, DropReason::BadTcpFlags);
            }
            Ok(_) => assert!(!impossible, "{}", TcpFlags(bits)),
        }
    }
}

#[test]
fn sources_that_cannot_be() {
    for src in [[0, 0, 0, 0], [224, 0, 0, 1], [239, 255, 255, 255], [255; 4]] {
        let bytes = packet([Address::v4(src), V4[1]], TcpFlags::ACK, b"");
        assert_eq!(refused(&bytes), DropReason::BadSource, "{src:?}");
    }
    for src in [
        [223, 255, 255, 255],
        [240, 0, 0, 1],
        [127, 0, 0, 1],
        [255, 255, 255, 254],
    ] {
        parsed(&packet([Address::v4(src), V4[1]], TcpFlags::ACK, b""));
    }
    let mut multicast = V6[0];
    multicast.0[0] = 0xff;
    for src in [Address::v6([0; 16]), multicast] {
        let bytes = packet([src, V6[1]], TcpFlags::ACK, b"");
        assert_eq!(refused(&bytes), DropReason::BadSource, "{src}");
    }
    let mut loopback = [0; 16];
    loopback[15] = 1;
    parsed(&packet([Address::v6(loopback), V6[1]], TcpFlags::ACK, b""));
}

/// Otherwise an IPv6 packet could speak for an IPv4 connection.
#[test]
fn mapped_addresses_in_ipv6_are_refused() {
    let mut bytes = v6_packet();
    bytes[offset::IPV6_SRC..offset::IPV6_DST].copy_from_slice(&V4[0].0);
    assert_eq!(refused(&bytes), DropReason::BadSource);
    let mut bytes = v6_packet();
    bytes[offset::IPV6_DST..offset::IPV6_DST + 16].copy_from_slice(&V4[1].0);
    assert_eq!(refused(&bytes), DropReason::NotOurs);
}

#[test]
fn the_longest_packets() {
    let payload = vec![7; 65_535];
    let v4 = packet(V4, TcpFlags::ACK, &payload[..65_535 - 52]);
    assert_eq!(v4.len(), 65_535);
    assert_eq!(parsed(&v4).end, 65_535);
    let mut v6 = packet(V6, TcpFlags::ACK, &payload[..65_535 - 72]);
    assert_eq!(v6.len(), 65_535);
    let tcp = parsed(&v6);
    assert_eq!(tcp.payload_len(), 65_535 - 72);
    assert!(tcp.checksum_valid(&v6));
    // A payload length that is possible on a wire but not in a buffer of any driver.
    v6[4..6].copy_from_slice(&[0xff, 0xff]);
    v6.extend([0; 40]);
    assert_eq!(refused(&v6), DropReason::Truncated);
}

#[test]
fn a_summary_used_on_other_bytes_is_harmless() {
    let tcp = parsed(&v4_packet());
    for bytes in [&[][..], &[0; 30], &[0; 50]] {
        assert!(!tcp.checksum_valid(bytes));
        assert!(tcp.payload(bytes).is_empty());
    }
    assert!(tcp.options(&[0; 30]).is_empty());
}

#[test]
fn flags_are_shown_as_letters() {
    assert_eq!((TcpFlags::SYN | TcpFlags::ACK).to_string(), "SA");
    assert_eq!(TcpFlags(0xff).to_string(), "FSRPAUEC");
    assert_eq!(TcpFlags::NONE.to_string(), "-");
    let mut flags = TcpFlags::FIN;
    flags |= TcpFlags::ACK;
    assert_eq!(format!("{flags:?}"), "FA");
    assert!(flags.contains(TcpFlags::FIN) && !flags.contains(TcpFlags::FIN | TcpFlags::RST));
    assert!(flags.intersects(TcpFlags::FIN | TcpFlags::RST));
    assert!(!flags.intersects(TcpFlags::RST));
    assert_eq!(flags.without(TcpFlags::FIN), TcpFlags::ACK);
    assert_eq!(flags & TcpFlags::ACK, TcpFlags::ACK);
}

fn any_addresses() -> impl Strategy<Value = [Address; 2]> {
    let v4 = (1u8..224, any::<[u8; 3]>(), any::<[u8; 4]>())
        .prop_map(|(a, [b, c, d], dst)| [Address::v4([a, b, c, d]), Address::v4(dst)]);
    // Global unicast, so neither side is mapped.
    let v6 = any::<([u8; 16], [u8; 16])>().prop_map(|(mut src, mut dst)| {
        src[0] = 0x20;
        dst[0] = 0x20;
        [Address::v6(src), Address::v6(dst)]
    });
    prop_oneof![v4, v6]
}

fn any_flags() -> impl Strategy<Value = TcpFlags> {
    any::<u8>()
        .prop_map(TcpFlags)
        .prop_filter("possible", |flags| flags.possible())
}

/// What holds for whatever `classify` accepts.
fn is_consistent(bytes: &[u8], tcp: &TcpPacket) {
    assert!(tcp.payload_at >= tcp.tcp_at + 20 && tcp.payload_at <= tcp.tcp_at + 60);
    assert!(tcp.payload_at <= tcp.end && usize::from(tcp.end) <= bytes.len());
    assert_eq!(tcp.key.src.addr.is_v4(), tcp.v4);
    assert_eq!(tcp.key.dst.addr.is_v4(), tcp.v4);
    assert_eq!(tcp.payload(bytes).len(), tcp.payload_len());
    let options = usize::from(tcp.payload_at - tcp.tcp_at) - 20;
    assert_eq!(tcp.options(bytes).len(), options);
    assert!(tcp.flags.possible());
    let _ = tcp.checksum_valid(bytes);
    let _ = SynOptions::parse(tcp.options(bytes));
}

proptest! {
    #[test]
    fn what_is_emitted_is_classified(
        addresses in any_addresses(),
        ports: (u16, u16),
        numbers: (u32, u32),
        flags in any_flags(),
        window: u16,
        ttl: u8,
        mss in prop::option::of(1u16..),
        stamps in prop::option::of(any::<(u32, u32)>()),
        payload in prop::collection::vec(any::<u8>(), 0..1_500),
        padding in prop::collection::vec(any::<u8>(), 0..20),
    ) {
        let syn_options = SynOptions {
            mss,
            timestamps: stamps.map(|(value, echo)| Timestamps { value, echo }),
            ..SynOptions::default()
        };
        let mut options = Vec::new();
        syn_options.emit(&mut options);
        let [src, dst] = addresses;
        let repr = TcpRepr {
            key: FlowKey {
                src: Endpoint { addr: src, port: ports.0 },
                dst: Endpoint { addr: dst, port: ports.1 },
            },
            seq: SeqNumber(numbers.0),
            ack: SeqNumber(numbers.1),
            flags,
            window,
            options: &options,
            payload: &payload,
            ttl,
        };
        let mut bytes = vec![0xee; 7];
        repr.emit(&mut bytes);
        bytes.extend(padding);
        let tcp = parsed(&bytes);
        is_consistent(&bytes, &tcp);
        prop_assert_eq!(tcp.key, repr.key);
        prop_assert_eq!((tcp.seq, tcp.ack), (repr.seq, repr.ack));
        prop_assert_eq!((tcp.flags, tcp.window, tcp.ttl), (flags, window, ttl));
        prop_assert_eq!(tcp.options(&bytes), &options[..]);
        prop_assert_eq!(tcp.payload(&bytes), &payload[..]);
        prop_assert_eq!(SynOptions::parse(tcp.options(&bytes)), Ok(syn_options));
        prop_assert!(tcp.checksum_valid(&bytes));
        let syn_and_fin = (flags.0 >> 1 & 1) + (flags.0 & 1);
        prop_assert_eq!(tcp.segment_len(), payload.len() as u32 + u32::from(syn_and_fin));

        // The same packet with its checksum left to a device.
        let mut partial = Vec::new();
        repr.emit_partial(&mut partial);
        let at = usize::from(tcp.tcp_at);
        let field = u16::from_be_bytes([partial[at + 16], partial[at + 17]]);
        let segment_len = u32::from(tcp.end - tcp.tcp_at);
        prop_assert_eq!(field, checksum::tcp_partial(&src, &dst, segment_len));
        // A device sums the segment, the field included, and complements.
        let completed = !checksum::fold(checksum::sum(&partial[at..]));
        let checksum = u16::from_be_bytes([bytes[at + 16], bytes[at + 17]]);
        prop_assert_eq!(completed, checksum);
    }

    #[test]
    fn every_flipped_bit_of_a_segment_breaks_its_checksum(
        addresses in any_addresses(),
        payload in prop::collection::vec(any::<u8>(), 1..100),
        place: prop::sample::Index,
        bit in 0u8..8,
    ) {
        let mut bytes = packet(addresses, TcpFlags::ACK, &payload);
        let tcp = parsed(&bytes);
        let at = usize::from(tcp.tcp_at);
        let at = at + place.index(bytes.len() - at);
        bytes[at] ^= 1 << bit;
        prop_assert!(!tcp.checksum_valid(&bytes));
    }

    #[test]
    fn arbitrary_bytes_do_no_harm(
        first in prop_oneof![Just(0x45u8), Just(0x60), Just(0x4f), any::<u8>()],
        rest in prop::collection::vec(any::<u8>(), 0..200),
    ) {
        let mut bytes = vec![first];
        bytes.extend(rest);
        if let Ok(Classified::Tcp(tcp)) = classify(&bytes) {
            is_consistent(&bytes, &tcp);
        }
        // With a right header checksum and length the IPv4 parser gets further.
        let header_len = usize::from(first & 0xf) * 4;
        if first >> 4 == 4 && header_len >= 20 && bytes.len() >= header_len {
            bytes[2] = 0;
            bytes[3] = bytes.len() as u8;
            bytes[6] &= 0xc0;
            bytes[7] = 0;
            bytes[9] = if bytes[9] % 2 == 0 { 6 } else { 1 };
            if let Ok(Classified::Tcp(tcp)) = classify(&mend(bytes.clone())) {
                is_consistent(&bytes, &tcp);
            }
        }
    }

    #[test]
    fn mutations_of_valid_packets_do_no_harm(
        v4: bool,
        chain in prop::collection::vec(
            (prop_oneof![Just(0u8), Just(43), Just(60)], 0u8..4), 0..4),
        edits in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6),
        cut in prop::option::of(any::<prop::sample::Index>()),
    ) {
        let mut bytes = if v4 {
            v4_packet()
        } else {
            let chain: Vec<_> =
                chain.into_iter().map(|(kind, units)| (kind, extension(units))).collect();
            extended(&chain)
        };
        for (place, value) in edits {
            let at = place.index(bytes.len());
            bytes[at] = value;
        }
        if let Some(cut) = cut {
            bytes.truncate(cut.index(bytes.len()));
        }
        let header_len = bytes.first().map_or(0, |first| usize::from(first & 0xf) * 4);
        if v4 && header_len >= 20 && bytes.len() >= header_len {
            bytes = mend(bytes);
        }
        if let Ok(Classified::Tcp(tcp)) = classify(&bytes) {
            is_consistent(&bytes, &tcp);
        }
    }
}
