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

/// An IPv4 packet with this identification, its checksum right.
fn identified(mut packet: Vec<u8>, identification: u16) -> Vec<u8> {
    let before = u32::from(u16::from_be_bytes([packet[10], packet[11]]));
    packet[4..6].copy_from_slice(&identification.to_be_bytes());
    // The identification was zero: the checksum is less by as much (RFC 1624).
    let sum = u32::from(!(before as u16)) + u32::from(identification);
    let sum = (sum & 0xffff) + (sum >> 16);
    packet[10..12].copy_from_slice(&(!(sum as u16)).to_be_bytes());
    packet
}

/// A segment without payload from one end to the other, IPv4.
fn segment(source: ([u8; 4], u16), destination: ([u8; 4], u16), flags: u8) -> Vec<u8> {
    let mut tcp = [0u8; 20];
    tcp[..2].copy_from_slice(&source.1.to_be_bytes());
    tcp[2..4].copy_from_slice(&destination.1.to_be_bytes());
    (tcp[12], tcp[13]) = (5 << 4, flags);
    let mut packet = v4(TCP, source.0, 0, &tcp);
    let old = u32::from(!u16::from_be_bytes([packet[10], packet[11]]));
    packet[16..20].copy_from_slice(&destination.0);
    let words = |octets: [u8; 4]| -> u32 {
        let [a, b, c, d] = octets.map(u32::from);
        (a << 8 | b) + (c << 8 | d)
    };
    let mut sum = old + 2 * 0xffff - words([192, 0, 2, 80]) + words(destination.0);
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    packet[10..12].copy_from_slice(&(!(sum as u16)).to_be_bytes());
    packet
}

const SYN: u8 = 2;
const ACK: u8 = 16;

fn clients(packets: &[Vec<u8>]) -> (Vec<u16>, Report) {
    let (accesses, report) = read(packets, 0.0).unwrap();
    let ports = accesses
        .id
        .iter()
        .map(|id| accesses.keys[*id as usize].port);
    (ports.collect(), report)
}

#[test]
fn an_address_that_a_syn_was_sent_to_is_a_server_before_it_and_after_it() {
    let server = ([10, 0, 2, 1], 50_051);
    let client = |last: u8, port: u16| ([10, 0, 1, last], port);
    let packets = [
        segment(client(1, 40_001), server, ACK),
        segment(server, client(1, 40_001), ACK),
        segment(client(2, 40_002), server, SYN),
        segment(server, client(3, 40_003), ACK),
        segment(client(3, 40_003), server, ACK),
    ];
    let (ports, report) = clients(&packets);
    assert_eq!(ports, [40_001, 40_002, 40_003]);
    assert_eq!(report.passed[&Passed::FromServer], 2);
    assert_eq!(report.guessed, 0);
}

#[test]
fn an_end_with_more_connections_is_the_server_and_ports_decide_the_rest() {
    let server = ([10, 0, 2, 1], 50_051);
    let mut packets = Vec::new();
    for last in 1..=10 {
        let client = ([10, 0, 1, last], 40_000 + u16::from(last));
        packets.push(segment(server, client, ACK));
        packets.push(segment(client, server, ACK));
    }
    let (ports, report) = clients(&packets);
    assert_eq!(ports, (40_001..=40_010).collect::<Vec<u16>>());
    assert_eq!(report.guessed, 0);
    // A connection alone: the lower port is the server's, and that is a guess.
    let (ports, report) = clients(&packets[..2]);
    assert_eq!((ports, report.guessed), (vec![50_051], 1));
}

#[test]
fn ends_that_change_their_roles_are_two_connections() {
    let (one, other) = (([10, 0, 0, 1], 1_000), ([10, 0, 0, 2], 2_000));
    let packets = [
        segment(one, other, SYN),
        segment(one, other, ACK),
        segment(other, one, SYN),
        segment(one, other, ACK),
        segment(other, one, ACK),
    ];
    let (ports, report) = clients(&packets);
    assert_eq!(ports, [1_000, 1_000, 2_000, 2_000]);
    assert_eq!(report.passed[&Passed::FromServer], 1);
}

#[test]
fn a_packet_that_was_captured_twice_is_one_access() {
    let (client, server) = (([10, 0, 0, 1], 4_000), ([10, 0, 0, 2], 80));
    let first = segment(client, server, ACK);
    let at = |packets: &[(u32, Vec<u8>)]| {
        let mut file = capture(&[]);
        for (us, packet) in packets {
            let len = packet.len() as u32;
            for word in [0, *us, len, len] {
                file.extend(word.to_le_bytes());
            }
            file.extend(packet);
        }
        let source = open("made.pcap", Cursor::new(file)).unwrap();
        let (accesses, report) = read_accesses(source, ReadOptions::default()).unwrap();
        (accesses.len(), report.passed.get(&Passed::Copy).copied())
    };
    let named = identified(first.clone(), 7);
    let mut behind_a_router = named.clone();
    // The time to live is one less, and the checksum one more in its high byte.
    behind_a_router[8] -= 1;
    behind_a_router[10] = behind_a_router[10].wrapping_add(1);
    assert_eq!(
        at(&[(0, named.clone()), (900, behind_a_router)]),
        (1, Some(1))
    );
    assert_eq!(at(&[(0, named.clone()), (1_001, named.clone())]), (2, None));
    let other = identified(first.clone(), 8);
    assert_eq!(at(&[(0, named), (10, other)]), (2, None));
    // Without an identification an acknowledgement may be sent twice.
    assert_eq!(at(&[(0, first.clone()), (10, first)]), (2, None));
}
