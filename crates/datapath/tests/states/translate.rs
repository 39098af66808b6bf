//! SPLICED: data and acknowledgements are translated and passed on, the paper's Table 3.

use fairlead_base::{Address, Checksum, DropReason, Endpoint, Gso, Packet, SeqNumber};
use fairlead_datapath::{Side, State, Verdict};
use fairlead_splice::translate::{self, AckEdit, Edits};
use fairlead_testkit::{segment, tcp};
use fairlead_wire::packet::offset;
use fairlead_wire::{Classified, TcpFlags, classify, options};
use proptest::prelude::*;

use crate::rig::{Ends, Joined, REQUEST, http_config, v6_config};

#[test]
fn spliced_data_and_acks_pass_both_ways_with_numbers_of_the_other_side() {
    for config in [http_config(), v6_config()] {
        let mut joined = Joined::with(config, &Ends::default());
        let response = joined
            .by_server()
            .payload(b"HTTP/1.1 200 OK\r\n\r\n")
            .timestamps(joined.server_ts.wrapping_add(7), 5_010);
        let sent = joined.rig.put_one(&response);
        assert_eq!(sent.header.seq, SeqNumber(joined.seen_nxt));
        assert_eq!(sent.header.ack, SeqNumber(joined.client_nxt));
        assert_eq!(sent.header.key.src, joined.rig.vip);
        assert_eq!(sent.header.key.dst, joined.rig.client);
        assert_eq!(sent.header.ttl, 63);
        assert_eq!(sent.payload(), b"HTTP/1.1 200 OK\r\n\r\n");
        let stamps = sent.timestamps().unwrap();
        assert_eq!(
            (stamps.value, stamps.echo),
            (joined.seen_ts.wrapping_add(7), 5_010)
        );

        let ack = joined
            .by_client()
            .ack(joined.seen_nxt.wrapping_add(19))
            .timestamps(5_020, joined.seen_ts.wrapping_add(7));
        let sent = joined.rig.put_one(&ack);
        assert_eq!(
            sent.header.ack,
            SeqNumber(joined.server_nxt.wrapping_add(19))
        );
        assert_eq!(sent.header.key.src, joined.source);
        assert_eq!(sent.header.key.dst, joined.server);
        let stamps = sent.timestamps().unwrap();
        assert_eq!(
            (stamps.value, stamps.echo),
            (5_020, joined.server_ts.wrapping_add(7))
        );
        let snapshot = joined.rig.datapath.snapshot();
        assert_eq!(
            (snapshot.live, snapshot.setups, snapshot.fast_packets),
            (1, 0, 2)
        );
        assert_eq!(REQUEST.len() as u32, joined.client_nxt - 1_001);
    }
}

#[test]
fn spliced_repeated_request_is_passed_on_once_more_and_never_by_us() {
    let mut joined = Joined::usual();
    let again = joined.by_client().seq(1_001).payload(REQUEST);
    let sent = joined.rig.put_one(&again);
    assert_eq!(
        (sent.header.seq, sent.payload()),
        (SeqNumber(1_001), REQUEST)
    );
    assert!(joined.rig.wait_ms(10_000).is_empty());
}

#[test]
fn spliced_transfer_across_the_wrap_is_counted_byte_by_byte() {
    let ends = Ends {
        client_isn: u32::MAX - 3_000,
        server_isn: u32::MAX - 10_000,
        ..Ends::default()
    };
    let mut joined = Joined::with(http_config(), &ends);
    for _ in 0..40 {
        for side in [Side::Client, Side::Server] {
            let sent = joined.rig.put_one(&joined.by(side).payload([7; 1_000]));
            let seq = match side {
                Side::Client => joined.client_nxt,
                Side::Server => joined.seen_nxt,
            };
            assert_eq!(sent.header.seq, SeqNumber(seq));
            joined.advance(side, 1_000);
        }
    }
    joined.rig.put(&joined.by_client().flags(TcpFlags::RST));
    joined.rig.wait_ms(5_000);
    let events = joined.rig.events();
    let bytes = events.iter().find_map(|event| match event {
        fairlead_datapath::Event::Closed {
            bytes_in,
            bytes_out,
            ..
        } => Some((*bytes_in, *bytes_out)),
        _ => None,
    });
    assert_eq!(bytes, Some((40_000 + REQUEST.len() as u64, 40_000)));
}

#[test]
fn spliced_partial_checksums_and_super_packets_stay_what_they_are() {
    for config in [http_config(), v6_config()] {
        let mut joined = Joined::with(config, &Ends::default());
        let data = joined.by_server().payload([9; 30_000]).timestamps(1, 2);
        let sent = joined.rig.put_packet(data.super_packet(1_400));
        assert_eq!(sent[0].packet.checksum, Checksum::Partial);
        let gso = Gso {
            segment_bytes: 1_400,
        };
        assert_eq!(sent[0].packet.gso, Some(gso));
        assert_eq!(sent[0].payload(), [9; 30_000]);
        assert_eq!(sent[0].header.seq, SeqNumber(joined.seen_nxt));
    }
}

#[test]
fn spliced_packet_at_its_last_hop_is_dropped_unchanged() {
    for config in [http_config(), v6_config()] {
        let mut joined = Joined::with(config, &Ends::default());
        for (ttl, passes) in [(0, false), (1, false), (2, true)] {
            let sent = joined.rig.put(&joined.by_client().ttl(ttl).payload(b"x"));
            assert_eq!(sent.len(), usize::from(passes));
        }
        assert_eq!(joined.rig.drops(DropReason::TtlExpired), 2);
    }
}

#[test]
fn what_is_dropped_at_its_last_hop_tells_nothing() {
    let fin = TcpFlags::FIN | TcpFlags::ACK;
    for (flags, payload) in [
        (TcpFlags::RST, &b""[..]),
        (fin, b""),
        (fin, b"last"),
        (TcpFlags::ACK, b"more data"),
    ] {
        for side in [Side::Client, Side::Server] {
            let mut joined = Joined::usual();
            let next = joined.by(side).payload(b"next");
            joined
                .rig
                .put_none(&joined.by(side).flags(flags).payload(payload).ttl(1));
            assert_eq!(joined.rig.last, Some(Verdict::Drop(DropReason::TtlExpired)));
            assert_eq!(joined.state(), State::Spliced);
            // A RST of the number that its receiver expects still is one.
            joined.rig.put_one(&next);
            joined.advance(side, 4);
            joined.rig.put_one(&joined.by(side).flags(TcpFlags::RST));
            assert_eq!(joined.state(), State::Reset, "{flags:?} by {side:?}");
        }
    }
}

/// The urgent pointer counts from the segment's number, which moves.
#[test]
fn held_trimmed_segment_points_to_the_same_urgent_byte() {
    let flags = TcpFlags::ACK | TcpFlags::URG;
    for (pointer, count, left) in [
        (7u16, 0, Some(7)),
        (7, 6, Some(1)),
        (7, 7, None),
        (3, 8, None),
    ] {
        let joined = Joined::usual();
        let mut packet = joined.by_client().flags(flags).payload([1; 20]).packet();
        let header = tcp(&packet);
        packet.bytes[38..40].copy_from_slice(&pointer.to_be_bytes());
        let trimmed = translate::trim_front(&mut packet, &header, count).unwrap();
        // Checks the checksum too.
        assert_eq!(tcp(&packet), trimmed);
        assert_eq!(trimmed.flags.contains(TcpFlags::URG), left.is_some());
        let pointer = u16::from_be_bytes([packet.bytes[38], packet.bytes[39]]);
        assert_eq!(pointer, left.unwrap_or(0));
    }
}

#[test]
fn spliced_urgent_data_probes_and_congestion_marks_pass_as_they_are() {
    let mut joined = Joined::usual();
    let flags = TcpFlags::ACK | TcpFlags::URG | TcpFlags::ECE;
    let mut urgent = joined.by_client().flags(flags).payload(b"!").packet();
    urgent.bytes[39] = 1;
    // The pointer is part of the checksum.
    let sum = u16::from_be_bytes([urgent.bytes[36], urgent.bytes[37]]);
    let mut delta = fairlead_wire::checksum::Delta::new();
    delta.u16(0, 1);
    urgent.bytes[36..38].copy_from_slice(&delta.apply_to(sum).to_be_bytes());
    let sent = joined.rig.put_packet(urgent);
    assert_eq!(sent[0].header.flags, flags);
    assert_eq!(sent[0].packet.bytes[38..40], [0, 1]);
    let probe = joined.by_client().seq(joined.client_nxt - 1);
    let sent = joined.rig.put_one(&probe);
    assert_eq!(sent.header.seq, SeqNumber(joined.client_nxt - 1));
}

/// RFC 1624 keeps damage visible: the receiver still finds it.
#[test]
fn spliced_damaged_payload_stays_damaged() {
    let mut joined = Joined::usual();
    let mut damaged = joined.by_server().payload(b"page").packet();
    let last = damaged.bytes.len() - 1;
    damaged.bytes[last] ^= 4;
    let passed = joined.rig.put_raw(damaged).unwrap();
    let Ok(Classified::Tcp(header)) = classify(&passed.bytes) else {
        panic!("still a packet");
    };
    assert!(!header.checksum_valid(&passed.bytes));
}

#[test]
fn spliced_damaged_number_far_out_does_not_lead_the_tracked_numbers_astray() {
    let mut joined = Joined::usual();
    let mut damaged = joined.by_client().payload(b"x").packet();
    damaged.bytes[24] ^= 0x20;
    joined.rig.put_packet(damaged);
    joined.rig.assert_dropped(DropReason::BadTcpChecksum);
    // A FIN where it belongs is still believed.
    joined.close(Side::Client);
    assert_eq!(joined.state(), State::FinRelayed1);
}

#[test]
fn spliced_data_behind_a_great_loss_passes_and_is_believed() {
    let mut joined = Joined::usual();
    joined.advance(Side::Server, 12 << 20);
    let sent = joined.rig.put_one(&joined.by_server().payload(b"far"));
    assert_eq!(sent.header.seq, SeqNumber(joined.seen_nxt));
    joined.advance(Side::Server, 3);
    let fast = joined.rig.datapath.snapshot().fast_packets;
    joined.rig.put_one(&joined.by_server().payload(b"near"));
    assert_eq!(joined.rig.datapath.snapshot().fast_packets, fast + 1);
}

/// What was lost is sent again, and leads the tracked number to where the stream is.
#[test]
fn spliced_data_behind_an_incredible_loss_passes_and_is_believed_once_the_gap_is_filled() {
    let mut joined = Joined::usual();
    let gap = 50 << 20;
    let far = joined.by_server().seq(joined.server_nxt.wrapping_add(gap));
    let far = far.payload(b"far");
    assert_eq!(joined.rig.put_one(&far).payload(), b"far");
    let fast = joined.rig.datapath.snapshot().fast_packets;
    joined.rig.put_one(&far);
    assert_eq!(
        joined.rig.datapath.snapshot().fast_packets,
        fast,
        "still far"
    );
    for _ in 0..50 {
        joined.advance(Side::Server, (1 << 20) - 4);
        joined.rig.put_one(&joined.by_server().payload(b"fill"));
        joined.advance(Side::Server, 4);
    }
    joined.rig.put_one(&far);
    assert_eq!(joined.rig.datapath.snapshot().fast_packets, fast + 51);
}

#[test]
fn spliced_batches_give_one_verdict_each_in_order() {
    let mut joined = Joined::usual();
    let mut packets: Vec<Packet> = (0..200u32)
        .map(|number| {
            if number % 3 == 0 {
                Packet::from_bytes(&[0x45; 10])
            } else {
                let at = joined.client_nxt + number;
                joined.by_client().seq(at).payload([number as u8]).packet()
            }
        })
        .collect();
    let mut verdicts = Vec::new();
    let datapath = &mut joined.rig.datapath;
    datapath.handle_batch(joined.rig.now, &mut packets, &mut verdicts);
    assert_eq!(verdicts.len(), packets.len());
    for (number, (packet, verdict)) in packets.iter().zip(&verdicts).enumerate() {
        let passed = *verdict == fairlead_datapath::Verdict::Transmit;
        assert_eq!(passed, number % 3 != 0);
        if passed {
            assert_eq!(tcp(packet).payload(&packet.bytes), [number as u8]);
        }
    }
}

prop_compose! {
    fn address(v4: bool)(octets: [u8; 16]) -> Address {
        let [_, b, c, d, ..] = octets;
        let mut v6 = octets;
        v6[0] = 0x20;
        if v4 { Address::v4([10, b, c, d]) } else { Address::v6(v6) }
    }
}

fn end(v4: bool) -> impl Strategy<Value = Endpoint> {
    (address(v4), any::<u16>()).prop_map(|(addr, port)| Endpoint { addr, port })
}

/// A list of whole options in any order, with padding anywhere.
fn option_list() -> impl Strategy<Value = Vec<u8>> {
    let one = prop_oneof![
        Just(vec![1u8]),
        any::<[u8; 8]>().prop_map(|body| [&[8, 10], &body[..]].concat()),
        any::<[u8; 8]>().prop_map(|body| [&[5, 10], &body[..]].concat()),
        any::<[u8; 16]>().prop_map(|body| [&[5, 18], &body[..]].concat()),
        any::<[u8; 3]>().prop_map(|body| [&[99, 5], &body[..]].concat()),
    ];
    prop::collection::vec(one, 0..5).prop_map(|parts| {
        let mut list = Vec::new();
        for part in parts {
            if list.len() + part.len() <= 40 {
                list.extend(part);
            }
        }
        list.resize(list.len().next_multiple_of(4), 1);
        list
    })
}

#[derive(Clone, Debug)]
struct Case {
    packet: Packet,
    there: Edits,
    back: Edits,
}

fn case() -> impl Strategy<Value = Case> {
    any::<bool>()
        .prop_flat_map(|v4| {
            let ends = (end(v4), end(v4), end(v4), end(v4));
            let payload = prop::collection::vec(any::<u8>(), 0..64);
            (
                ends,
                any::<[u32; 6]>(),
                any::<u16>(),
                option_list(),
                payload,
                0u8..3,
                2u8..,
            )
        })
        .prop_map(|(ends, numbers, window, list, payload, kind, ttl)| {
            let (src, dst, new_src, new_dst) = ends;
            let [seq, ack, seq_add, ack_add, ts_value_add, ts_echo_add] = numbers;
            let built = segment(src, dst)
                .seq(seq)
                .ack(ack)
                .window(window)
                .ttl(ttl)
                .options(&list)
                .payload(payload);
            let packet = match kind {
                0 => built.packet(),
                1 => built.partial(),
                _ => built.flags(TcpFlags::PSH).packet(),
            };
            let there = Edits {
                src: new_src,
                dst: new_dst,
                seq_add,
                ack: AckEdit::Add(ack_add),
                window_shift: 0,
                ts_value_add,
                ts_echo_add,
            };
            let back = Edits {
                src,
                dst,
                seq_add: seq_add.wrapping_neg(),
                ack: AckEdit::Add(ack_add.wrapping_neg()),
                window_shift: 0,
                ts_value_add: ts_value_add.wrapping_neg(),
                ts_echo_add: ts_echo_add.wrapping_neg(),
            };
            Case {
                packet,
                there,
                back,
            }
        })
}

/// Without hop limit and IPv4 header checksum, which a hop changes for good.
fn unhopped(packet: &Packet) -> Vec<u8> {
    let mut bytes = packet.bytes.clone();
    if bytes[0] >> 4 == 4 {
        bytes[offset::IPV4_TTL] = 0;
        bytes[offset::IPV4_CHECKSUM..offset::IPV4_CHECKSUM + 2].fill(0);
    } else {
        bytes[offset::IPV6_HOP_LIMIT] = 0;
    }
    bytes
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    /// There and back is as if nothing had been, and every checksum on the way is right.
    #[test]
    fn spliced_translation_there_and_back_is_the_identity(case in case()) {
        let mut packet = case.packet.clone();
        let header = tcp(&packet);
        translate::apply(&mut packet, &header, &case.there).unwrap();
        let between = tcp(&packet);
        prop_assert_eq!(between.key.src, case.there.src);
        prop_assert_eq!(between.key.dst, case.there.dst);
        prop_assert_eq!(between.seq, header.seq + case.there.seq_add);
        prop_assert_eq!(between.payload(&packet.bytes), header.payload(&case.packet.bytes));
        prop_assert_eq!(between.ttl, header.ttl - 1);
        let stamps = options::timestamps(header.options(&case.packet.bytes));
        let moved = options::timestamps(between.options(&packet.bytes));
        prop_assert_eq!(
            moved.map(|stamps| (stamps.value, stamps.echo)),
            stamps.map(|stamps| (
                stamps.value.wrapping_add(case.there.ts_value_add),
                stamps.echo.wrapping_add(case.there.ts_echo_add),
            ))
        );
        let mut returned = packet.clone();
        if translate::apply(&mut returned, &between, &case.back).is_ok() {
            tcp(&returned);
            prop_assert_eq!(unhopped(&returned), unhopped(&case.packet));
        }
    }

    /// An acknowledgement that is put in place of another takes the SACK blocks with it.
    #[test]
    fn spliced_replaced_acknowledgement_blanks_sack(case in case(), ack: u32) {
        let mut packet = case.packet;
        let header = tcp(&packet);
        let edits = Edits { ack: AckEdit::Become(SeqNumber(ack)), ..case.there };
        translate::apply(&mut packet, &header, &edits).unwrap();
        let between = tcp(&packet);
        if header.flags.contains(TcpFlags::ACK) {
            prop_assert_eq!(between.ack, SeqNumber(ack));
            let kinds = options::walk(between.options(&packet.bytes)).map(|(kind, ..)| kind);
            prop_assert!(kinds.filter(|&kind| kind == options::KIND_SACK).count() == 0);
        }
    }

    /// Bytes cut off the front leave a valid packet with the rest, at the right number.
    #[test]
    fn held_trimmed_segment_is_a_valid_segment(case in case(), count in 0usize..80) {
        let mut packet = case.packet;
        let header = tcp(&packet);
        let payload = header.payload(&packet.bytes).to_vec();
        let trimmed = translate::trim_front(&mut packet, &header, count).unwrap();
        let count = count.min(payload.len());
        prop_assert_eq!(tcp(&packet), trimmed);
        prop_assert_eq!(trimmed.payload(&packet.bytes), &payload[count..]);
        prop_assert_eq!(trimmed.seq, header.seq + count as u32);
    }

    /// Whatever bytes come, nothing panics, and what passes is still a packet.
    #[test]
    fn spliced_noise_is_survived(
        side in prop_oneof![Just(Side::Client), Just(Side::Server)],
        flips in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6),
        cut in any::<prop::sample::Index>(),
        list in option_list(),
    ) {
        let mut joined = Joined::usual();
        let mut packet = joined.by(side).options(&list).payload(b"some bytes").packet();
        for (place, flip) in flips {
            let at = place.index(packet.bytes.len());
            packet.bytes[at] ^= flip;
        }
        packet.bytes.truncate(cut.index(packet.bytes.len() + 1).max(packet.bytes.len() / 2));
        if let Some(passed) = joined.rig.put_raw(packet) {
            prop_assert!(classify(&passed.bytes).is_ok());
        }
        joined.rig.fetch(&mut Vec::new());
    }
}
