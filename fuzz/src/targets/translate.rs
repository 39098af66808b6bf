//! `splice::translate`: any record over any packet.

use fairlead_base::{Address, Checksum, DropReason, Endpoint, FlowKey, Gso, Packet, SeqNumber};
use fairlead_splice::translate::{self, AckEdit, Edits};
use fairlead_tcp::record::{TRANSPARENT, flag};
use fairlead_tcp::{Endpoints, Record, Side, State};
use fairlead_wire::{Classified, TcpFlags, TcpPacket, TcpRepr, classify, options};

use super::sums::is_right;
use super::{Target, repair};
use crate::novelty::{note, note_size};
use crate::script::Script;

pub(super) const TARGET: Target = Target {
    name: "translate",
    about: "a spliced packet: the right fields change, a checksum stays right or wrong",
    run,
    bytes_max: 512,
    tokens: &[
        &[1, 1, 8, 10, 0, 0, 0, 1, 0, 0, 0, 2],
        &[1, 1, 5, 10, 0, 0, 0, 1, 0, 0, 0, 9],
        &[5, 18, 0, 0, 0, 1, 0, 0, 0, 9],
        &[1, 8, 10, 0, 0, 0, 1, 0, 0, 0, 2, 0],
        &[0xff; 4],
        &[0xff, 0xff, 0, 0],
    ],
};

/// A connection, the packet before translation, and what is to be done with it.
struct Case {
    endpoints: Endpoints,
    record: Record,
    side: Side,
    packet: Packet,
    header: TcpPacket,
}

fn run(input: &[u8]) {
    let mut script = Script::new(input);
    let Some(case) = case(&mut script) else {
        return;
    };
    let become_ack = script.flip().then(|| SeqNumber(script.u32()));
    let edits = Edits {
        ack: become_ack.map_or_else(
            || Edits::of(&case.record, &case.endpoints, case.side).ack,
            AckEdit::Become,
        ),
        ..Edits::of(&case.record, &case.endpoints, case.side)
    };
    let mut translated = case.packet.clone();
    match translate::apply(&mut translated, &case.header, &edits) {
        Err(reason) => {
            note("translate.refused", reason as u64);
            assert_eq!(reason, DropReason::TtlExpired);
            assert!(case.header.ttl <= 1);
            assert_eq!(translated.bytes, case.packet.bytes, "dropped, but changed");
        }
        Ok(()) => {
            check(&case, &edits, &translated);
            check_back(&case, &edits, &translated);
        }
    }
    check_forward(&case);
    check_trim(&case, usize::from(script.u16()));
}

fn case(script: &mut Script<'_>) -> Option<Case> {
    let v4 = script.flip();
    let mut endpoint = || Endpoint {
        addr: address(v4, script.u8()),
        port: script.u16(),
    };
    let (client, listen, server, nat) = (endpoint(), endpoint(), endpoint(), endpoint());
    let record = Record {
        client_addr: client.addr,
        client_port: client.port,
        nat_addr: if script.flip() { TRANSPARENT } else { 0 },
        nat_port: nat.port,
        seq_delta: script.u32(),
        ts_delta: script.u32(),
        client_isn: script.u32(),
        server_isn: script.u32(),
        client_nxt: script.u32(),
        server_nxt: script.u32(),
        state: State::Spliced,
        flags: if script.flip() { flag::TIMESTAMPS } else { 0 },
        client_shift: (script.u8() % 15) as i8,
        server_shift: (script.u8() % 29) as i8 - 14,
        ..Record::default()
    };
    let endpoints = Endpoints {
        listens: vec![listen],
        servers: vec![server],
        nats: vec![nat.addr],
    };
    let side = if script.flip() {
        Side::Client
    } else {
        Side::Server
    };
    let key = match side {
        Side::Client => record.client_key(&endpoints),
        Side::Server => record.server_key(&endpoints),
    };
    let packet = packet(script, key);
    let Ok(Classified::Tcp(header)) = classify(&packet.bytes) else {
        return None;
    };
    Some(Case {
        endpoints,
        record,
        side,
        packet,
        header,
    })
}

/// Addresses that sum to zero and to all ones are among them.
fn address(v4: bool, which: u8) -> Address {
    match (v4, which) {
        (true, 0..16) => Address::v4([10, 0, 0, which]),
        (true, _) => Address::v4([which % 200, 0xff, !which, 0]),
        (false, _) => {
            let mut octets = [which; 16];
            octets[0] = 0xfd;
            octets[15] = !which;
            Address::v6(octets)
        }
    }
}

fn packet(script: &mut Script<'_>, key: FlowKey) -> Packet {
    let mut list = script
        .take(usize::from(script.clone().u8()) % 41 + 1)
        .to_vec();
    list.truncate(40);
    list.resize(list.len().next_multiple_of(4), 1);
    let ttl = script.pick(&[64, 1, 0, 2, 255]);
    let mode = script.u8();
    let repr = TcpRepr {
        key,
        seq: SeqNumber(script.u32()),
        ack: SeqNumber(script.u32()),
        flags: TcpFlags(script.u8() ^ TcpFlags::ACK.0),
        window: script.u16(),
        options: &list,
        payload: script.take(usize::from(mode) * 2),
        ttl,
    };
    let mut packet = Packet::default();
    match mode % 4 {
        0 | 1 => repr.emit(&mut packet.bytes),
        2 => {
            repr.emit_partial(&mut packet.bytes);
            packet.checksum = Checksum::Partial;
            packet.gso = Some(Gso { segment_bytes: 7 });
        }
        _ => {
            // Damaged on its way: its receiver must still be able to tell.
            repr.emit(&mut packet.bytes);
            let at = packet.bytes.len() - 1 - usize::from(script.u8()) % 20;
            packet.bytes[at] ^= script.u8();
            // The IP header's own checksum is always looked at, and right.
            repair::repair(&mut packet.bytes, repair::IP_CHECKSUM);
        }
    }
    if packet.checksum == Checksum::Complete && script.flip() {
        // Padding of the link.
        packet.bytes.extend_from_slice(&[0x5a; 3]);
    }
    packet
}

fn parsed(packet: &Packet) -> TcpPacket {
    match classify(&packet.bytes) {
        Ok(Classified::Tcp(header)) => header,
        other => panic!("a translated packet is {other:?}"),
    }
}

fn check(case: &Case, edits: &Edits, translated: &Packet) {
    let (old, new) = (&case.header, parsed(translated));
    assert_eq!((new.key.src, new.key.dst), (edits.src, edits.dst));
    assert_eq!(new.ttl, old.ttl - 1);
    assert_eq!(new.flags, old.flags);
    assert_eq!(new.seq, old.seq + edits.seq_add);
    let expected = match (old.flags.contains(TcpFlags::ACK), edits.ack) {
        (false, _) => old.ack,
        (true, AckEdit::Add(add)) => old.ack + add,
        (true, AckEdit::Become(ack)) => ack,
    };
    assert_eq!(new.ack, expected);
    let window = u64::from(old.window);
    let shift = u32::from(edits.window_shift.unsigned_abs());
    let expected = if edits.window_shift >= 0 {
        (window << shift).min(0xffff)
    } else {
        (window >> shift).max(window.min(1))
    };
    assert_eq!(u64::from(new.window), expected);
    assert_eq!(
        new.payload(&translated.bytes),
        old.payload(&case.packet.bytes)
    );
    assert_eq!(translated.bytes.len(), case.packet.bytes.len());
    assert_eq!(
        is_right(translated, &new),
        is_right(&case.packet, old),
        "the checksum's verdict changed: {:?}",
        translated.checksum
    );
    check_options(
        old.options(&case.packet.bytes),
        new.options(&translated.bytes),
        edits,
        old,
    );
}

/// Options one by one, from the bytes before and after.
fn check_options(old: &[u8], new: &[u8], edits: &Edits, header: &TcpPacket) {
    let become_ack =
        header.flags.contains(TcpFlags::ACK) && matches!(edits.ack, AckEdit::Become(_));
    let sack_add = match edits.ack {
        AckEdit::Add(add) if header.flags.contains(TcpFlags::ACK) => add,
        _ => 0,
    };
    for (kind, at, body) in options::walk(old) {
        let after = &new[at..at + 2 + body.len()];
        let word = |bytes: &[u8], at: usize| {
            u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
        };
        note(
            "translate.option",
            u64::from(kind.min(9)) << 1 | (at as u64 & 1),
        );
        if kind == options::KIND_SACK && become_ack {
            assert!(
                after.iter().all(|byte| *byte == options::KIND_NOP),
                "SACK blanked"
            );
            continue;
        }
        assert_eq!(after[..2], old[at..at + 2]);
        let after = &after[2..];
        match kind {
            options::KIND_TIMESTAMPS if body.len() == 8 => {
                assert_eq!(
                    word(after, 0),
                    word(body, 0).wrapping_add(edits.ts_value_add)
                );
                assert_eq!(
                    word(after, 4),
                    word(body, 4).wrapping_add(edits.ts_echo_add)
                );
            }
            options::KIND_SACK => {
                for edge in (0..body.len() / 4 * 4).step_by(4) {
                    assert_eq!(word(after, edge), word(body, edge).wrapping_add(sack_add));
                }
            }
            _ => assert_eq!(after, body),
        }
    }
}

/// Translation can be undone: nothing is lost on the way but the hop count.
fn check_back(case: &Case, edits: &Edits, translated: &Packet) {
    let AckEdit::Add(ack_add) = edits.ack else {
        return;
    };
    let header = parsed(translated);
    if edits.window_shift != 0 || header.ttl <= 1 {
        return;
    }
    let back = Edits {
        src: case.header.key.src,
        dst: case.header.key.dst,
        seq_add: edits.seq_add.wrapping_neg(),
        ack: AckEdit::Add(ack_add.wrapping_neg()),
        window_shift: 0,
        ts_value_add: edits.ts_value_add.wrapping_neg(),
        ts_echo_add: edits.ts_echo_add.wrapping_neg(),
    };
    let mut returned = translated.clone();
    translate::apply(&mut returned, &header, &back).expect("two hops are left");
    let mut original = case.packet.bytes.clone();
    for bytes in [&mut returned.bytes, &mut original] {
        let ttl_at = if case.header.v4 { 8 } else { 7 };
        bytes[ttl_at] = 9;
        repair::repair(bytes, repair::IP_CHECKSUM);
        // The two zeros of ones' complement are one number.
        let at = usize::from(case.header.tcp_at) + 16;
        if bytes[at..at + 2] == [0xff, 0xff] {
            bytes[at..at + 2].fill(0);
        }
    }
    assert_eq!(returned.bytes, original, "there and back");
    note("translate.back", 1);
}

/// The fast path does the same and follows the stream.
fn check_forward(case: &Case) {
    let mut record = case.record;
    let mut packet = case.packet.clone();
    if !translate::is_fast(&record, case.side, &case.header) {
        return;
    }
    let edits = Edits::of(&record, &case.endpoints, case.side);
    let outcome = translate::forward(
        &mut record,
        &case.endpoints,
        case.side,
        &mut packet,
        &case.header,
        77,
    );
    let mut expected = case.packet.clone();
    assert_eq!(
        outcome,
        translate::apply(&mut expected, &case.header, &edits)
    );
    assert_eq!(packet.bytes, expected.bytes);
    if outcome.is_err() {
        // It does not pass, so it tells nothing.
        assert_eq!(record.last_active, case.record.last_active);
        assert_eq!(record.client_nxt, case.record.client_nxt);
        assert_eq!(record.server_nxt, case.record.server_nxt);
        return;
    }
    assert_eq!(record.last_active, 77);
    let end = case.header.seq + case.header.payload_len() as u32;
    let (before, after) = match case.side {
        Side::Client => (case.record.client_nxt, record.client_nxt),
        Side::Server => (case.record.server_nxt, record.server_nxt),
    };
    assert!(after == before || after == end.0, "a number from nowhere");
    note("translate.advanced", u64::from(after != before));
}

/// Bytes cut off the front of the payload.
fn check_trim(case: &Case, count: usize) {
    let was_right = is_right(&case.packet, &case.header);
    let mut packet = case.packet.clone();
    let Some(trimmed) = translate::trim_front(&mut packet, &case.header, count) else {
        panic!("a packet that was parsed can be trimmed");
    };
    let cut = count.min(case.header.payload_len());
    note_size("translate.trimmed", cut);
    let header = parsed(&packet);
    assert_eq!(header, trimmed);
    assert_eq!(header.seq, case.header.seq + cut as u32);
    assert_eq!(
        header.payload(&packet.bytes),
        &case.header.payload(&case.packet.bytes)[cut..]
    );
    assert!(
        !was_right || is_right(&packet, &header),
        "a checksum that was right is wrong"
    );
}
