use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

const START: Instant = Instant::ZERO;

/// A packet's payload, never the same twice in a row.
fn content(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 7 + at / 251) as u8).collect()
}

/// The IPv4 packet from 10.0.0.`host` with this identification, cut at these offsets, multiples
/// of 8.
fn cut_v4(host: u8, id: u16, payload: &[u8], cuts: &[usize]) -> Vec<Packet> {
    let mut parts = Vec::new();
    for (from, to) in ranges(payload.len(), cuts) {
        let more = u16::from(to < payload.len()) << 13;
        parts.push(part_v4(
            host,
            id,
            more | (from / 8) as u16,
            &payload[from..to],
        ));
    }
    parts
}

fn part_v4(host: u8, id: u16, place: u16, payload: &[u8]) -> Packet {
    let mut bytes = vec![
        0x45, 0, 0, 0, 0, 0, 0, 0, 64, 6, 0, 0, 10, 0, 0, host, 10, 1, 0, 3,
    ];
    bytes[2..4].copy_from_slice(&(20 + payload.len() as u16).to_be_bytes());
    bytes[4..6].copy_from_slice(&id.to_be_bytes());
    bytes[6..8].copy_from_slice(&place.to_be_bytes());
    let sum = fairlead_wire::checksum::ipv4_header(&bytes);
    bytes[10..12].copy_from_slice(&sum.to_be_bytes());
    bytes.extend_from_slice(payload);
    Packet::from_bytes(&bytes)
}

/// The IPv6 packet from 2001:db8::`host`, likewise.
fn cut_v6(host: u8, id: u16, payload: &[u8], cuts: &[usize]) -> Vec<Packet> {
    let mut parts = Vec::new();
    for (from, to) in ranges(payload.len(), cuts) {
        let mut bytes = vec![0; 48];
        (bytes[0], bytes[6], bytes[7], bytes[40]) = (0x60, 44, 64, 6);
        bytes[4..6].copy_from_slice(&(8 + to as u16 - from as u16).to_be_bytes());
        bytes[8..12].copy_from_slice(&[0x20, 1, 0xd, 0xb8]);
        bytes[23] = host;
        bytes[24..28].copy_from_slice(&[0x20, 1, 0xd, 0xb8]);
        bytes[39] = 3;
        let place = from as u16 | u16::from(to < payload.len());
        bytes[42..44].copy_from_slice(&place.to_be_bytes());
        bytes[46..48].copy_from_slice(&id.to_be_bytes());
        bytes.extend_from_slice(&payload[from..to]);
        parts.push(Packet::from_bytes(&bytes));
    }
    parts
}

fn ranges(len: usize, cuts: &[usize]) -> Vec<(usize, usize)> {
    let mut ends: Vec<usize> = cuts.iter().map(|cut| cut / 8 * 8).collect();
    ends.retain(|&end| end > 0 && end < len);
    ends.push(len);
    ends.sort_unstable();
    ends.dedup();
    let starts = core::iter::once(0).chain(ends.clone());
    starts.zip(ends.clone()).collect()
}

fn put(fragments: &mut Fragments, now: Instant, packet: &Packet) -> (Taken, Packet) {
    let mut packet = packet.clone();
    let fragment = Fragment::parse(&packet.bytes).unwrap();
    let taken = fragments.take(now, &fragment, &mut packet);
    let (datagrams, bytes) = fragments.held();
    assert!(datagrams <= DATAGRAMS_MAX && bytes <= BYTES_MAX);
    let pieces = fragments.pending.values().map(|one| one.pieces.len());
    assert!(pieces.max().unwrap_or(0) <= PIECES_MAX);
    (taken, packet)
}

/// Nothing is left, in any of the stores.
fn assert_empty(fragments: &Fragments) {
    assert_eq!(fragments.held(), (0, 0));
    assert!(fragments.by_age.is_empty() && fragments.by_sender.is_empty());
    assert!(fragments.senders.is_empty());
    assert_eq!(fragments.poll_timeout(), None);
}

proptest! {
    /// Any order, with copies, of both versions.
    #[test]
    fn a_packet_is_whole_when_its_last_fragment_comes_whatever_the_order(
        len in 9usize..4_000,
        cuts in vec(8usize..4_000, 1..12),
        order in vec(any::<prop::sample::Index>(), 0..40),
        v4 in any::<bool>(),
    ) {
        let payload = content(len);
        let parts = if v4 { cut_v4(1, 9, &payload, &cuts) } else { cut_v6(1, 9, &payload, &cuts) };
        prop_assume!(parts.len() > 1);
        let mut fragments = Fragments::new();
        let mut there = std::collections::BTreeSet::new();
        let drawn = order.iter().map(|index| index.index(parts.len()));
        for at in drawn.chain(0..parts.len()) {
            there.insert(at);
            let (taken, packet) = put(&mut fragments, START, &parts[at]);
            if there.len() < parts.len() {
                prop_assert_eq!(taken, Taken::Kept);
                continue;
            }
            prop_assert_eq!(taken, Taken::Whole);
            let headers = if v4 { 20 } else { 40 };
            prop_assert_eq!(&packet.bytes[headers..], &payload[..]);
            prop_assert_eq!(Fragment::parse(&packet.bytes), Err(DropReason::Fragment));
            break;
        }
        prop_assert_eq!(fragments.reassembled(), 1);
        prop_assert_eq!(fragments.drops().total(), 0);
        assert_empty(&fragments);
    }

    /// Whatever comes, limits hold and every fragment is accounted for: in a packet, or dropped.
    #[test]
    fn limits_hold_and_every_fragment_is_counted(
        parts in vec((0u8..12, 0u16..200, 0u16..40, any::<bool>(), 1usize..8), 1..400),
    ) {
        let mut fragments = Fragments::new();
        let (mut copies, mut whole, mut in_whole) = (0, 0, 0);
        for (turn, &(host, id, place, more, eights)) in parts.iter().enumerate() {
            let place = place | u16::from(more) << 13;
            let place = if place == 0 { 1 << 13 } else { place };
            let now = START + Duration::from_millis(turn as u64 * 500);
            let one = part_v4(host, id, place, &content(eights * 8));
            fragments.expire(now);
            let (_, bytes) = fragments.held();
            let datagram = Fragment::parse(&one.bytes).unwrap().datagram;
            let pending = fragments.pending.get(&datagram);
            let pieces = pending.map_or(0, |pending| pending.pieces.len() as u64);
            match put(&mut fragments, now, &one).0 {
                Taken::Kept => copies += u64::from(fragments.held().1 == bytes),
                Taken::Whole => (whole, in_whole) = (whole + 1, in_whole + pieces + 1),
                Taken::Refused(_) => {}
            }
        }
        fragments.expire(START + Duration::from_secs(3_600));
        assert_empty(&fragments);
        prop_assert_eq!(fragments.reassembled(), whole);
        let dropped = fragments.drops().total();
        prop_assert_eq!(copies + in_whole + dropped, parts.len() as u64);
    }
}

#[test]
fn a_packet_with_a_fragment_header_and_nothing_to_wait_for_is_whole_at_once() {
    let mut fragments = Fragments::new();
    let others = cut_v6(1, 9, &content(64), &[32]);
    assert_eq!(put(&mut fragments, START, &others[0]).0, Taken::Kept);
    let atomic = &cut_v6(1, 9, &content(20), &[])[0];
    let (taken, packet) = put(&mut fragments, START, atomic);
    assert_eq!(taken, Taken::Whole);
    assert_eq!((packet.bytes.len(), packet.bytes[6]), (60, 6));
    assert_eq!(put(&mut fragments, START, &others[1]).0, Taken::Whole);
}

#[test]
fn fragments_that_overlap_cost_the_whole_packet_and_what_is_still_to_come() {
    let payload = content(64);
    let mut changed = payload.clone();
    changed[3] ^= 1;
    for wrong in [
        part_v4(1, 9, 1 | 1 << 13, &payload[..8]), // within the first
        part_v4(1, 9, 3 | 1 << 13, &payload[..16]), // over its end
        part_v4(1, 9, 1 << 13, &payload[..40]),    // from its start on
        part_v4(1, 9, 1 << 13, &changed[..32]),    // a copy, but not the same
        part_v4(1, 9, 2, &payload[..8]),           // an end where there is more
    ] {
        let mut fragments = Fragments::new();
        let parts = cut_v4(1, 9, &payload, &[32]);
        assert_eq!(put(&mut fragments, START, &parts[0]).0, Taken::Kept);
        let refused = Taken::Refused(DropReason::FragmentOverlap);
        assert_eq!(put(&mut fragments, START, &wrong).0, refused);
        assert_eq!(put(&mut fragments, START, &parts[1]).0, refused);
        assert_eq!(put(&mut fragments, START, &parts[0]).0, refused);
        assert_eq!(fragments.drops().of(DropReason::FragmentOverlap), 4);
        // Another packet of the same sender is not affected, nor is a new one after the timeout.
        for id in [10, 9] {
            let parts = cut_v4(1, id, &payload, &[32]);
            let later = if id == 9 { START + PATIENCE } else { START };
            assert_eq!(put(&mut fragments, later, &parts[1]).0, Taken::Kept);
            assert_eq!(put(&mut fragments, later, &parts[0]).0, Taken::Whole);
        }
        assert_empty(&fragments);
    }
}

#[test]
fn two_ends_or_bytes_behind_the_end_contradict() {
    let payload = content(64);
    for wrong in [
        part_v4(1, 9, 8, &payload[..16]),
        part_v4(1, 9, 8 | 1 << 13, &payload[..8]),
        part_v4(1, 9, 2, &payload[..8]),
    ] {
        let mut fragments = Fragments::new();
        let parts = cut_v4(1, 9, &payload, &[32]);
        assert_eq!(put(&mut fragments, START, &parts[1]).0, Taken::Kept);
        let refused = Taken::Refused(DropReason::FragmentOverlap);
        assert_eq!(put(&mut fragments, START, &wrong).0, refused);
    }
}

#[test]
fn what_is_not_whole_in_time_is_given_up() {
    let mut fragments = Fragments::new();
    let parts = cut_v4(1, 9, &content(64), &[16, 32]);
    assert_eq!(fragments.poll_timeout(), None);
    put(&mut fragments, START, &parts[0]);
    put(&mut fragments, START + Duration::from_secs(20), &parts[2]);
    assert_eq!(fragments.poll_timeout(), Some(START + PATIENCE));
    fragments.expire(START + PATIENCE - Duration::from_millis(1));
    assert_eq!(fragments.held().0, 1);
    fragments.expire(START + PATIENCE);
    assert_empty(&fragments);
    assert_eq!(fragments.drops().of(DropReason::FragmentTimeout), 2);
    let (taken, _) = put(&mut fragments, START + PATIENCE, &parts[1]);
    assert_eq!(taken, Taken::Kept, "it begins anew");
}

#[test]
fn one_sender_takes_an_eighth_and_loses_its_own_oldest() {
    let mut fragments = Fragments::new();
    let other = cut_v4(2, 1, &content(64), &[32]);
    put(&mut fragments, START, &other[0]);
    for id in 0..1_000 {
        put(
            &mut fragments,
            START,
            &cut_v4(1, id, &content(64), &[32])[0],
        );
    }
    assert_eq!(fragments.held().0, DATAGRAMS_MAX / SHARES + 1);
    assert_eq!(put(&mut fragments, START, &other[1]).0, Taken::Whole);
    let newest = cut_v4(1, 999, &content(64), &[32]);
    assert_eq!(put(&mut fragments, START, &newest[1]).0, Taken::Whole);
    assert_eq!(fragments.drops().of(DropReason::FragmentLimit), 1_000 - 128);
    // Large ones.
    for id in 1_000..1_100 {
        put(
            &mut fragments,
            START,
            &cut_v4(1, id, &content(60_000), &[59_992])[0],
        );
    }
    assert!(fragments.held().1 <= BYTES_MAX / SHARES);
    // Addresses of one IPv6 network of 64 bits are one sender.
    let mut fragments = Fragments::new();
    for host in 0..200 {
        put(
            &mut fragments,
            START,
            &cut_v6(host, 1, &content(64), &[32])[0],
        );
    }
    assert_eq!(fragments.held().0, DATAGRAMS_MAX / SHARES);
}

#[test]
fn many_senders_lose_the_oldest_of_all() {
    let mut fragments = Fragments::new();
    for host in 0..=255u8 {
        for id in 0..5 {
            put(
                &mut fragments,
                START,
                &cut_v4(host, id, &content(64), &[32])[0],
            );
        }
    }
    assert_eq!(fragments.held().0, DATAGRAMS_MAX);
    assert_eq!(fragments.drops().of(DropReason::FragmentLimit), 256);
    let mut fragments = Fragments::new();
    for host in 0..=255u8 {
        put(
            &mut fragments,
            START,
            &cut_v4(host, 1, &content(60_000), &[59_992])[0],
        );
    }
    let (datagrams, bytes) = fragments.held();
    assert!(datagrams < 70 && bytes <= BYTES_MAX);
}

#[test]
fn a_packet_in_too_many_fragments_is_given_up() {
    let mut fragments = Fragments::new();
    let cuts: Vec<usize> = (1..200).map(|at| at * 8).collect();
    let parts = cut_v4(1, 9, &content(1_600), &cuts);
    for part in &parts[..PIECES_MAX] {
        assert_eq!(put(&mut fragments, START, part).0, Taken::Kept);
    }
    let refused = Taken::Refused(DropReason::FragmentLimit);
    assert_eq!(put(&mut fragments, START, &parts[PIECES_MAX]).0, refused);
    assert_empty(&fragments);
    assert_eq!(fragments.drops().total(), PIECES_MAX as u64 + 1);
}

/// What the first fragment has of options, no packet has room for.
#[test]
fn a_packet_longer_than_any_is_never_made() {
    let mut fragments = Fragments::new();
    let payload = content(65_512);
    let mut first = part_v4(1, 9, 1 << 13, &payload[..8]);
    first.bytes[0] = 0x4f;
    first.bytes[2..4].copy_from_slice(&68u16.to_be_bytes());
    first.bytes[10..12].fill(0);
    let options: Vec<u8> = vec![1; 40];
    first.bytes.splice(20..20, options);
    let sum = fairlead_wire::checksum::ipv4_header(&first.bytes[..60]);
    first.bytes[10..12].copy_from_slice(&sum.to_be_bytes());
    assert_eq!(put(&mut fragments, START, &first).0, Taken::Kept);
    let rest = part_v4(1, 9, 1, &payload[8..]);
    assert_eq!(put(&mut fragments, START, &rest).0, Taken::Kept);
    fragments.expire(START + PATIENCE);
    assert_empty(&fragments);
}

#[test]
fn congestion_that_one_fragment_met_the_packet_has_met() {
    let mut fragments = Fragments::new();
    let mut parts = cut_v6(1, 9, &content(64), &[32]);
    parts[1].bytes[1] |= 3 << 4;
    put(&mut fragments, START, &parts[0]);
    let (taken, packet) = put(&mut fragments, START, &parts[1]);
    assert_eq!((taken, packet.bytes[1]), (Taken::Whole, 3 << 4));
}
