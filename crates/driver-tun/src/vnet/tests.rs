//! Both directions of the header, and headers that no kernel should write.

use proptest::prelude::*;

use super::*;

/// An IPv4 or IPv6 TCP packet with `payload` zero bytes behind a 32-byte TCP header.
fn tcp_packet(v4: bool, payload: usize) -> Packet {
    let mut bytes = if v4 { vec![0; 20] } else { vec![0; 40] };
    let ip_bytes = bytes.len();
    let total = ip_bytes + 32 + payload;
    if v4 {
        bytes[0] = 0x45;
        bytes[2..4].copy_from_slice(&(total as u16).to_be_bytes());
        bytes[9] = TCP;
    } else {
        bytes[0] = 0x60;
        bytes[4..6].copy_from_slice(&((total - 40) as u16).to_be_bytes());
        bytes[6] = TCP;
    }
    bytes.resize(total, 0);
    bytes[ip_bytes + 12] = 8 << 4;
    Packet::from_bytes(&bytes)
}

fn udp_packet() -> Packet {
    let mut packet = tcp_packet(true, 100);
    packet.bytes[9] = UDP;
    packet
}

fn offloaded(v4: bool, payload: usize, segment_bytes: u16) -> Packet {
    let mut packet = tcp_packet(v4, payload);
    packet.checksum = Checksum::Partial;
    packet.gso = Some(Gso { segment_bytes });
    packet
}

/// What the kernel would say of a packet that was written to it.
fn read_back(header: VnetHeader, packet: &Packet) -> Result<Packet, BadHeader> {
    let mut read = Packet::from_bytes(&packet.bytes);
    VnetHeader::from_bytes(&header.to_bytes())
        .describe(&mut read)
        .map(|()| read)
}

#[test]
fn bytes_are_in_the_order_of_the_specification() {
    let header = VnetHeader {
        flags: 1,
        gso_type: 4,
        header_bytes: 0x0102,
        segment_bytes: 0x0304,
        checksum_start: 0x0506,
        checksum_offset: 0x0708,
    };
    let bytes = header.to_bytes();
    assert_eq!(bytes, [1, 4, 2, 1, 4, 3, 6, 5, 8, 7]);
    assert_eq!(VnetHeader::from_bytes(&bytes), header);
}

#[test]
fn plain_packets_need_no_word() {
    for checksum in [Checksum::Complete, Checksum::Verified] {
        let packet = Packet {
            checksum,
            ..tcp_packet(true, 10)
        };
        assert_eq!(VnetHeader::of(&packet), Ok(VnetHeader::default()));
    }
}

#[test]
fn verdicts_on_checksums_are_told_apart() {
    for (flags, checksum) in [
        (0, Checksum::Complete),
        (CHECKSUM_VALID, Checksum::Verified),
        (NEEDS_CHECKSUM, Checksum::Partial),
        (NEEDS_CHECKSUM | CHECKSUM_VALID, Checksum::Partial),
    ] {
        let header = VnetHeader {
            flags,
            checksum_start: 20,
            checksum_offset: 16,
            ..Default::default()
        };
        let mut packet = tcp_packet(true, 0);
        header.describe(&mut packet).unwrap();
        assert_eq!((packet.checksum, packet.gso), (checksum, None));
    }
}

#[test]
fn super_packets_of_both_families_round_trip() {
    for (v4, tcp_at) in [(true, 20), (false, 40)] {
        let packet = offloaded(v4, 60_000, 1_448);
        let header = VnetHeader::of(&packet).unwrap();
        assert_eq!(header.gso_type, if v4 { 1 } else { 4 });
        assert_eq!(header.header_bytes, tcp_at + 32);
        assert_eq!(
            (header.checksum_start, header.checksum_offset),
            (tcp_at, 16)
        );
        let read = read_back(header, &packet).unwrap();
        assert_eq!(read.gso, packet.gso);
        assert_eq!(read.checksum, Checksum::Partial);
        assert_eq!(read.bytes, packet.bytes);
    }
}

#[test]
fn a_congestion_window_reduced_flag_stays_on_one_segment() {
    let mut packet = offloaded(true, 4_000, 1_000);
    packet.bytes[20 + TCP_FLAGS_AT] = TCP_FLAG_CWR | 0x10;
    let header = VnetHeader::of(&packet).unwrap();
    assert_eq!(header.gso_type, GSO_TCP4 | GSO_ECN);
    assert_eq!(read_back(header, &packet).unwrap().gso, packet.gso);
}

#[test]
fn what_fits_one_segment_is_not_cut() {
    for payload in [0, 1, 999, 1_000] {
        let header = VnetHeader::of(&offloaded(true, payload, 1_000)).unwrap();
        assert_eq!((header.flags, header.gso_type), (NEEDS_CHECKSUM, GSO_NONE));
    }
    assert_eq!(
        VnetHeader::of(&offloaded(true, 1_001, 1_000))
            .unwrap()
            .gso_type,
        GSO_TCP4
    );
}

#[test]
fn the_checksum_of_udp_has_its_own_place() {
    let mut packet = udp_packet();
    packet.checksum = Checksum::Partial;
    let header = VnetHeader::of(&packet).unwrap();
    assert_eq!((header.checksum_start, header.checksum_offset), (20, 6));
    assert_eq!(
        read_back(header, &packet).unwrap().checksum,
        Checksum::Partial
    );
}

#[test]
fn extension_headers_are_stepped_over_and_an_endless_chain_is_not() {
    let with_extensions = |count: usize| {
        let plain = tcp_packet(false, 100);
        let mut bytes = plain.bytes[..40].to_vec();
        if count > 0 {
            bytes[6] = 60;
        }
        for index in 0..count {
            bytes.extend([
                if index + 1 < count { 60 } else { TCP },
                0,
                1,
                4,
                0,
                0,
                0,
                0,
            ]);
        }
        bytes.extend_from_slice(&plain.bytes[40..]);
        Packet {
            checksum: Checksum::Partial,
            ..Packet::from_bytes(&bytes)
        }
    };
    for count in 0..EXTENSIONS_MAX {
        let header = VnetHeader::of(&with_extensions(count)).unwrap();
        assert_eq!(usize::from(header.checksum_start), 40 + 8 * count);
    }
    let endless = with_extensions(EXTENSIONS_MAX);
    assert_eq!(VnetHeader::of(&endless), Err(Unsendable::NoChecksumField));
}

#[test]
fn a_foreign_partial_checksum_is_filled_in() {
    // A tunnel's packet: the sum belongs to something 40 bytes in that is not the outer transport.
    let mut packet = udp_packet();
    packet.bytes[60] = 0x12;
    packet.bytes[61] = 0x34;
    packet.bytes[47] = 0x55; // pseudo-header's part, waiting in the field
    let header = VnetHeader {
        flags: NEEDS_CHECKSUM,
        checksum_start: 40,
        checksum_offset: 7,
        ..Default::default()
    };
    header.describe(&mut packet).unwrap();
    assert_eq!(packet.checksum, Checksum::Complete);
    // 40..: the field lies at an odd place of the summed bytes; summed again with the complement
    // in it, the pairs around it must come to the sum without it.
    let mut without = packet.bytes.clone();
    without[47..49].copy_from_slice(&[0x55, 0]);
    let expected = !ones_complement_sum(&without[40..]);
    assert_eq!(packet.bytes[47..49], expected.to_be_bytes());
}

#[test]
fn contradictions_are_refused() {
    let gso = |gso_type, flags, segment_bytes| VnetHeader {
        flags,
        gso_type,
        segment_bytes,
        header_bytes: u16::MAX,
        checksum_start: 20,
        checksum_offset: 16,
    };
    for (header, v4, error) in [
        (gso(GSO_TCP4, NEEDS_CHECKSUM, 0), true, BadHeader::GsoFields),
        (gso(GSO_TCP4, 0, 1_000), true, BadHeader::GsoFields),
        (
            gso(GSO_TCP4, CHECKSUM_VALID, 1_000),
            true,
            BadHeader::GsoFields,
        ),
        (
            gso(GSO_TCP6, NEEDS_CHECKSUM, 1_000),
            true,
            BadHeader::GsoType,
        ),
        (
            gso(GSO_TCP4, NEEDS_CHECKSUM, 1_000),
            false,
            BadHeader::GsoType,
        ),
        (gso(3, NEEDS_CHECKSUM, 1_000), true, BadHeader::GsoType),
        (gso(5, NEEDS_CHECKSUM, 1_000), true, BadHeader::GsoType),
        (gso(0x7f, 0, 1_000), true, BadHeader::GsoType),
    ] {
        let mut packet = tcp_packet(v4, 4_000);
        assert_eq!(header.describe(&mut packet), Err(error), "{header:?}");
    }
    let mut udp = udp_packet();
    let header = gso(GSO_TCP4, NEEDS_CHECKSUM, 50);
    assert_eq!(header.describe(&mut udp), Err(BadHeader::GsoType));
    let beyond = |checksum_start, checksum_offset| VnetHeader {
        flags: NEEDS_CHECKSUM,
        checksum_start,
        checksum_offset,
        ..Default::default()
    };
    for (start, offset) in [(51, 0), (20, 31), (u16::MAX, u16::MAX), (52, 0)] {
        let mut packet = tcp_packet(true, 0);
        let outcome = beyond(start, offset).describe(&mut packet);
        assert_eq!(outcome, Err(BadHeader::ChecksumOutside), "{start}+{offset}");
    }
}

#[test]
fn what_no_header_describes_is_not_sent() {
    assert_eq!(VnetHeader::of(&Packet::default()), Err(Unsendable::Length));
    assert_eq!(
        VnetHeader::of(&Packet::from_bytes(&[0x45; 65_536])),
        Err(Unsendable::Length)
    );
    let mut complete = offloaded(true, 4_000, 1_000);
    complete.checksum = Checksum::Complete;
    assert_eq!(VnetHeader::of(&complete), Err(Unsendable::NotCuttable));
    assert_eq!(
        VnetHeader::of(&offloaded(true, 4_000, 0)),
        Err(Unsendable::NotCuttable)
    );
    let mut udp = Packet {
        checksum: Checksum::Partial,
        ..udp_packet()
    };
    udp.gso = Some(Gso { segment_bytes: 10 });
    assert_eq!(VnetHeader::of(&udp), Err(Unsendable::NotCuttable));
    let mut icmp = Packet {
        checksum: Checksum::Partial,
        ..tcp_packet(true, 10)
    };
    icmp.bytes[9] = 1;
    assert_eq!(VnetHeader::of(&icmp), Err(Unsendable::NoChecksumField));
    let mut fragment = Packet {
        checksum: Checksum::Partial,
        ..tcp_packet(true, 10)
    };
    fragment.bytes[7] = 1;
    assert_eq!(VnetHeader::of(&fragment), Err(Unsendable::NoChecksumField));
    for cut in 0..36 {
        let mut short = Packet {
            checksum: Checksum::Partial,
            ..tcp_packet(true, 10)
        };
        short.bytes.truncate(cut);
        assert!(VnetHeader::of(&short).is_err(), "{cut} bytes");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    /// Whatever the header and the packet say, the outcome is a verdict; and a packet that passes
    /// can be written again.
    #[test]
    fn no_header_and_no_packet_panics(
        header: [u8; VNET_HEADER_BYTES],
        mut bytes in proptest::collection::vec(any::<u8>(), 0..200),
        version in prop_oneof![Just(0x45u8), Just(0x4f), Just(0x60), any::<u8>()],
        protocol in prop_oneof![Just(TCP), Just(UDP), Just(60u8), any::<u8>()],
    ) {
        for (at, value) in [(0, version), (9, protocol), (6, protocol)] {
            if let Some(byte) = bytes.get_mut(at) {
                *byte = value;
            }
        }
        let mut packet = Packet::from_bytes(&bytes);
        if VnetHeader::from_bytes(&header).describe(&mut packet).is_ok() {
            prop_assert!(packet.gso.is_none() || packet.checksum == Checksum::Partial);
            prop_assert!(packet.gso.is_none_or(|gso| gso.segment_bytes > 0));
            prop_assert_eq!(packet.bytes.len(), bytes.len());
            if !bytes.is_empty() {
                prop_assert!(VnetHeader::of(&packet).is_ok(), "{:?}", packet);
            }
        }
    }

    /// Packets as the engine makes them come back as they were.
    #[test]
    fn what_is_sent_is_read_back(
        v4: bool, payload in 0usize..60_000, segment_bytes in 1u16..,
    ) {
        let packet = offloaded(v4, payload, segment_bytes);
        let read = read_back(VnetHeader::of(&packet).unwrap(), &packet).unwrap();
        let cut = payload > usize::from(segment_bytes);
        prop_assert_eq!(read.gso, packet.gso.filter(|_| cut));
        prop_assert_eq!(read.checksum, Checksum::Partial);
    }
}
