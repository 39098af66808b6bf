//! Packets in midstream: translated as the engine does it, to the byte, or left to it.

use fairlead_base::{FlowKey, Packet, Rng};
use fairlead_bpf_loader::{Fate, FlowTable, Kernel, Mode};
use fairlead_splice::translate;
use fairlead_tcp::{FlowOffload, Line, Record, Side, Tracking};
use fairlead_testkit::{segment, tcp};
use fairlead_wire::{Classified, TcpFlags, checksum, classify};

use super::{endpoints, frame_of, kernel, on_a_switch, record, run};

/// A packet of a sender who has sent up to `nxt`, to a receiver who has sent up to `sent`; now and
/// then one with numbers of a stranger.
pub(super) fn some_packet(rng: &mut Rng, key: FlowKey, nxt: u32, sent: u32) -> Packet {
    let stranger = rng.chance(50_000);
    let ack = if stranger {
        rng.next_u64() as u32
    } else {
        sent.wrapping_sub(rng.below(70_000))
    };
    let mut built = segment(key.src, key.dst)
        .seq(nxt.wrapping_add(rng.below(4_000)).wrapping_sub(2_000))
        .ack(ack)
        .flags(some_flags(rng))
        .window(match rng.chance(50_000) {
            true => 0,
            false => rng.next_u64() as u16,
        })
        .ttl(2 + rng.below(200) as u8);
    let shape = rng.below(4);
    if shape & 1 == 1 {
        built = built.timestamps(rng.next_u64() as u32, rng.next_u64() as u32);
    }
    if shape & 2 == 2 {
        let blocks: Vec<(u32, u32)> = (0..1 + rng.below(3))
            .map(|_| (rng.next_u64() as u32, rng.next_u64() as u32))
            .collect();
        built = built.sack(&blocks);
    }
    let payload = vec![rng.below(256) as u8; rng.below(1_200) as usize];
    let mut packet = built.payload(payload).packet();
    if rng.chance(300_000) {
        mark(rng, &mut packet);
    }
    if rng.chance(100_000) {
        // A checksum that was wrong before stays wrong by the same amount.
        let at = usize::from(tcp(&packet).tcp_at) + 16;
        packet.bytes[at] ^= 0x5a;
    }
    packet
}

/// Of a packet in midstream: mostly an ACK, now and then with whatever else goes with that, or
/// without it, as no TCP sends them.
fn some_flags(rng: &mut Rng) -> TcpFlags {
    let others = TcpFlags::PSH | TcpFlags::URG | TcpFlags::ECE | TcpFlags::CWR;
    match rng.below(20) {
        0..12 => TcpFlags::ACK,
        12..18 => TcpFlags::ACK | TcpFlags::PSH,
        18 => TcpFlags::ACK | others & TcpFlags(rng.next_u64() as u8),
        _ => TcpFlags::URG | others & TcpFlags(rng.next_u64() as u8),
    }
}

/// Sets the service class, a mark of congestion with it, and in IPv4 the identification.
fn mark(rng: &mut Rng, packet: &mut Packet) {
    let class = rng.next_u64() as u8;
    if packet.bytes[0] >> 4 == 6 {
        packet.bytes[0] = 0x60 | class >> 4;
        packet.bytes[1] = class << 4 | rng.below(16) as u8;
        return;
    }
    packet.bytes[1] = class;
    packet.bytes[4..6].copy_from_slice(&(rng.next_u64() as u16).to_be_bytes());
    packet.bytes[6] = [0, 0x40, 0x80, 0xc0][rng.below(4) as usize]; // DF, and the bit beside it
    packet.bytes[10..12].fill(0);
    let sum = checksum::ipv4_header(&packet.bytes[..20]);
    packet.bytes[10..12].copy_from_slice(&sum.to_be_bytes());
}

fn translations_agree(mode: Mode) {
    on_a_switch(|_, interface| {
        let mut rng = Rng::new(7);
        let (mut kernel, mut table) = kernel(mode, 0);
        let mut translated = 0;
        for round in 0..600u32 {
            let (record, client, server) = record(&mut rng, round % 3 == 0, round % 2 == 0);
            let line = Line(round % 64);
            assert!(table.offload(line, &record, &client, &server));
            for side in [Side::Client, Side::Server] {
                let key = if side == Side::Client { client } else { server };
                let nxt = record.nxt(side).0;
                let sent = match side {
                    Side::Client => record.server_nxt.wrapping_add(record.seq_delta),
                    Side::Server => record.client_nxt,
                };
                let packet = some_packet(&mut rng, key, nxt, sent);
                let done =
                    one_translation(&mut kernel, &table, &record, line, side, &packet, interface);
                translated += u32::from(done);
            }
            table.remove(line, &client, &server);
        }
        assert!(
            translated > 800,
            "most packets are translated: {translated}"
        );
    });
}

/// Timestamps, SACK blocks, or both in this order, each behind two NOPs, and nothing else.
pub(super) fn is_usual(options: &[u8]) -> bool {
    let rest = match options {
        [1, 1, 8, 10, rest @ ..] if rest.len() >= 8 => &rest[8..],
        other => other,
    };
    let is_sack = |length: usize| length == rest.len() - 2 && length >= 10 && length % 8 == 2;
    rest.is_empty() || matches!(rest, [1, 1, 5, length, ..] if is_sack(usize::from(*length)))
}

/// Tries one packet; true when it was translated, and then as the engine would.
pub(super) fn one_translation(
    kernel: &mut Kernel,
    table: &FlowTable,
    record: &Record,
    line: Line,
    side: Side,
    packet: &Packet,
    interface: u32,
) -> bool {
    let Ok(Classified::Tcp(header)) = classify(&packet.bytes) else {
        panic!("a TCP packet");
    };
    let mut ours = *record;
    let before = table.tracking(line);
    before.apply_to(&mut ours);
    let frame = frame_of(packet);
    let trial = match frame.len() {
        ..800 => kernel.try_frame(&frame, interface, 1),
        _ => kernel.try_super_packet(&frame, interface, (2, 600)),
    };
    let trial = trial.unwrap();
    if !translate::is_fast(&ours, side, &header) {
        assert_eq!(trial.fate, Fate::Pass);
        assert_eq!(trial.frame, frame_of(packet), "left as it was");
        return false;
    }
    // Lists of options of an unusual shape are the engine's.
    let unusual = !is_usual(header.options(&packet.bytes));
    if unusual {
        assert_eq!(trial.fate, Fate::Pass);
        assert_eq!(trial.frame, frame_of(packet), "left as it was");
        return false;
    }
    assert_eq!(trial.fate, Fate::Redirect, "{header:?}");
    let mut expected = packet.clone();
    translate::forward(&mut ours, &endpoints(), side, &mut expected, &header, 0).unwrap();
    assert_eq!(trial.frame[14..], expected.bytes, "{header:?}");
    let seen = table.tracking(line);
    ours.last_active = seen.last_active;
    assert_eq!(seen, Tracking::of(&ours));
    true
}

#[test]
fn tc_translates_as_the_engine_does() {
    run(|| translations_agree(Mode::Tc));
}

#[test]
fn xdp_translates_as_the_engine_does() {
    run(|| translations_agree(Mode::XdpNative));
}
