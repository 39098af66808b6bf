//! Captures made by hand: which packets are accesses, which are passed over, which are bad.

use std::io::Cursor;

use fairlead_trace::{
    Accesses, Passed, Place, ReadOptions, Reason, Report, TraceError, open, read_accesses,
};

const TCP: u8 = 6;
const UDP: u8 = 17;
const ICMP: u8 = 1;
const ICMPV6: u8 = 58;
const HOP_BY_HOP: u8 = 0;

/// A capture of raw IP packets (pcap, little-endian, link type 101), a second apart.
fn capture(packets: &[Vec<u8>]) -> Vec<u8> {
    let mut file = Vec::new();
    for word in [0xa1b2_c3d4u32, 0x0004_0002, 0, 0, 65_535, 101] {
        file.extend(word.to_le_bytes());
    }
    for (number, packet) in packets.iter().enumerate() {
        let len = packet.len() as u32;
        for word in [number as u32, 0, len, len] {
            file.extend(word.to_le_bytes());
        }
        file.extend(packet);
    }
    file
}

/// An IPv4 packet, its checksum right.
fn v4(protocol: u8, source: [u8; 4], fragment: u16, payload: &[u8]) -> Vec<u8> {
    let mut header = [0u8; 20];
    header[0] = 0x45;
    header[2..4].copy_from_slice(&(20 + payload.len() as u16).to_be_bytes());
    header[6..8].copy_from_slice(&fragment.to_be_bytes());
    (header[8], header[9]) = (64, protocol);
    header[12..16].copy_from_slice(&source);
    header[16..].copy_from_slice(&[192, 0, 2, 80]);
    let (words, _) = header.as_chunks::<2>();
    let mut sum: u32 = words
        .iter()
        .map(|word| u32::from(u16::from_be_bytes(*word)))
        .sum();
    sum = (sum & 0xffff) + (sum >> 16);
    header[10..12].copy_from_slice(&(!(sum as u16)).to_be_bytes());
    [&header, payload].concat()
}

/// An IPv6 packet from `::`, as of a host that has no address yet.
fn v6_from_nowhere(next: u8, payload: &[u8]) -> Vec<u8> {
    let mut header = [0u8; 40];
    header[0] = 0x60;
    header[4..6].copy_from_slice(&(payload.len() as u16).to_be_bytes());
    (header[6], header[7]) = (next, 255);
    header[24..26].copy_from_slice(&[0xff, 0x02]);
    [&header, payload].concat()
}

/// A SYN to port 80 with this data offset, in words.
fn syn(words: u8) -> Vec<u8> {
    let mut segment = vec![0u8; 20];
    segment[..4].copy_from_slice(&[0x80, 0, 0, 80]);
    (segment[12], segment[13]) = (words << 4, 2);
    v4(TCP, [192, 0, 2, 1], 0, &segment)
}

fn read(packets: &[Vec<u8>], max_bad: f64) -> Result<(Accesses, Report), TraceError> {
    let source = open("made.pcap", Cursor::new(capture(packets))).unwrap();
    let options = ReadOptions {
        max_bad,
        ..ReadOptions::default()
    };
    read_accesses(source, options)
}

#[test]
fn what_is_not_tcp_is_passed_over_whatever_it_holds() {
    // An echo reply, a neighbour solicitation and a multicast listener report from `::`, DHCP from
    // 0.0.0.0, a fragment of UDP, an ICMP message that is cut.
    let others = [
        v4(ICMP, [192, 0, 2, 9], 0, &[0, 0, 0, 0, 0, 1, 0, 1]),
        v6_from_nowhere(ICMPV6, &[135, 0, 0, 0, 0, 0, 0, 0]),
        v6_from_nowhere(
            HOP_BY_HOP,
            &[ICMPV6, 0, 5, 2, 0, 0, 1, 0, 143, 0, 0, 0, 0, 0, 0, 0],
        ),
        v4(UDP, [0, 0, 0, 0], 0, &[0, 68, 0, 67, 0, 8, 0, 0]),
        v4(UDP, [192, 0, 2, 9], 0x2000, &[0; 8]),
        v4(ICMP, [192, 0, 2, 9], 0, &[3]),
    ];
    let mut packets = others.to_vec();
    packets.push(syn(5));
    let (accesses, report) = read(&packets, 0.0).unwrap();
    assert_eq!((accesses.len(), report.bad_rows()), (1, 0), "{report:?}");
    let passed: Vec<_> = report.passed.into_iter().collect();
    assert_eq!(passed, [(Passed::NotTcp, others.len() as u64)]);
}

/// An IPv6 fragment of a segment, behind a header of options; `place` is its offset and flag.
fn v6_fragment(place: u16, payload: &[u8]) -> Vec<u8> {
    let options = [44, 0, 1, 4, 0, 0, 0, 0];
    let mut fragment = [TCP, 0, 0, 0, 0, 0, 0, 7];
    fragment[2..4].copy_from_slice(&place.to_be_bytes());
    let mut packet = v6_from_nowhere(60, &[&options, &fragment, payload].concat());
    packet[8..10].copy_from_slice(&[0x20, 0x01]);
    packet[24..26].copy_from_slice(&[0x20, 0x01]);
    packet
}

#[test]
fn of_a_segment_in_fragments_the_first_is_the_access() {
    let syn = &syn(5)[20..];
    let data = [syn, &[0; 28]].concat();
    let host = [192, 0, 2, 1];
    let packets = [
        v4(TCP, host, 0x2000, &data),
        v4(TCP, host, 0x2006, &[0; 48]),
        v4(TCP, host, 0x000c, &[0; 4]),
        v6_fragment(1, &data),
        v6_fragment(0x31, &[0; 48]),
        v6_fragment(0x60, &[0; 4]),
        // TCP's header in two.
        v4(TCP, host, 0x2000, &syn[..16]),
        v4(TCP, host, 0x2002, &syn[16..]),
        v6_fragment(1, &syn[..16]),
        v6_fragment(0x10, &syn[16..]),
        // Not cut at all.
        v6_fragment(0, &data),
    ];
    let (accesses, report) = read(&packets, 0.0).unwrap();
    assert_eq!(
        report.passed.into_iter().collect::<Vec<_>>(),
        [(Passed::Fragment, 8)]
    );
    assert_eq!(accesses.time_us, [0, 3_000_000, 10_000_000]);
    let ports: Vec<u16> = accesses.keys.iter().map(|key| key.port).collect();
    assert_eq!((ports, accesses.id), (vec![0x8000; 2], vec![0, 1, 1]));
    assert_eq!(accesses.hint, [2; 3]);
}

#[test]
fn a_packet_before_all_times_has_none() {
    // pcapng: a section, an interface of raw IP, and SYNs of which the first has no time.
    let block = |kind: u32, body: &[u8]| {
        let len = (body.len() as u32 + 12).to_le_bytes();
        [&kind.to_le_bytes()[..], &len, body, &len].concat()
    };
    let words = |words: &[u32]| words.iter().flat_map(|word| word.to_le_bytes()).collect();
    let enhanced = |stamp: u32| {
        let head: Vec<u8> = words(&[0, 0, stamp, 40, 40]);
        block(6, &[head, syn(5)].concat())
    };
    let section: Vec<u8> = words(&[0x1a2b_3c4d, 1, u32::MAX, u32::MAX]);
    let interface: Vec<u8> = words(&[101, 0]);
    let file = [
        block(0x0a0d_0d0a, &section),
        block(1, &interface),
        block(3, &[&40u32.to_le_bytes()[..], &syn(5)].concat()),
        enhanced(7_000_000),
        enhanced(8_000_000),
    ];
    let source = open("made.pcapng", Cursor::new(file.concat())).unwrap();
    let options = ReadOptions {
        max_bad: 0.5,
        ..ReadOptions::default()
    };
    let (accesses, report) = read_accesses(source, options).unwrap();
    assert_eq!(accesses.time_us, [0, 1_000_000]);
    assert_eq!(report.first_bad, Some((1, Reason::Time)));
}

#[test]
fn a_packet_without_all_of_its_headers_says_so() {
    for len in [39, 34, 26, 20, 12] {
        let error = read(&[syn(5)[..len].to_vec()], 0.0).unwrap_err();
        let said = error.to_string();
        assert!(
            said.contains("not all of the packet's headers"),
            "{len}: {said}"
        );
    }
}

#[test]
fn a_bad_segment_is_named_by_the_number_of_its_packet() {
    let packets = [v4(UDP, [192, 0, 2, 9], 0, &[0; 8]), syn(5), syn(2)];
    let (_, report) = read(&packets, 1.0).unwrap();
    assert_eq!(report.first_bad, Some((3, Reason::Headers)));
    let error = read(&packets, 0.1).unwrap_err();
    assert_eq!(error.place, Place::Packet(3));
    let said = error.to_string();
    assert!(said.starts_with("made.pcap: packet 3: "), "{said}");
}
