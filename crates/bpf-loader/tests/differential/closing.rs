//! FINs, their acknowledgements and RSTs: packets and records after them, as in Rust.

use fairlead_base::{DropReason, Packet, Rng};
use fairlead_bpf_loader::{Fate, FlowTable, Kernel, Mode};
use fairlead_splice::{closing, translate};
use fairlead_tcp::record::flag;
use fairlead_tcp::{
    FlowOffload, Line, ListenOffer, Record, Refusal, Side, State, SynOffload, Tracking,
};
use fairlead_testkit::{segment, tcp};
use fairlead_wire::{Classified, TcpFlags, TcpPacket, checksum, classify};

use super::translating::is_usual;
use super::{OFFER, endpoints, frame_of, kernel, monotonic_now, on_a_switch, record, run};

/// The longest segment whose checksum the program looks at.
const SUMMED_BYTES_MAX: usize = 1_600;

const SIDES: [Side; 2] = [Side::Client, Side::Server];

/// A record somewhere between the splice and its end.
fn closing_record(rng: &mut Rng, round: u32) -> (Record, [fairlead_base::FlowKey; 2]) {
    let (mut record, client, server) =
        record(rng, round.is_multiple_of(3), round.is_multiple_of(2));
    record.server_isn = record.server_nxt.wrapping_sub(1 + rng.below(3) * 50_000);
    for (fin, acked) in [
        (flag::CLIENT_FIN, flag::CLIENT_FIN_ACKED),
        (flag::SERVER_FIN, flag::SERVER_FIN_ACKED),
    ] {
        match rng.below(3) {
            0 => {}
            1 => record.flags |= fin,
            _ => record.flags |= fin | acked,
        }
    }
    record.state = closing::state_of(record.flags);
    record.last_active = 77;
    match rng.below(25) {
        0 => record.state = State::Reset,
        1 => record.flags |= flag::HELD,
        2 => record.flags |= flag::SYN_SEEN,
        3..10 => record.flags |= flag::ONE_REQUEST,
        _ => {}
    }
    (record, [client, server])
}

/// A packet such as comes when connections end, with numbers right, nearly right or wrong.
fn closing_packet(
    rng: &mut Rng,
    record: &Record,
    side: Side,
    keys: &[fairlead_base::FlowKey; 2],
) -> Packet {
    let (key, sent) = match side {
        Side::Client => (keys[0], record.server_nxt.wrapping_add(record.seq_delta)),
        Side::Server => (keys[1], record.client_nxt),
    };
    let payload = match rng.below(20) {
        0..13 => 0,
        13..19 => rng.below(1_400),
        _ => 1_400 + rng.below(400),
    };
    let flags = [
        TcpFlags::ACK,
        TcpFlags::ACK,
        TcpFlags::FIN | TcpFlags::ACK,
        TcpFlags::FIN | TcpFlags::ACK,
        TcpFlags::FIN | TcpFlags::ACK | TcpFlags::PSH,
        TcpFlags::FIN,
        TcpFlags::RST,
        TcpFlags::RST | TcpFlags::ACK,
        TcpFlags::SYN,
        TcpFlags::FIN | TcpFlags::RST | TcpFlags::ACK,
    ][rng.below(10) as usize];
    let nxt = record.nxt(side).0;
    let fin = u32::from(flags.contains(TcpFlags::FIN));
    let seq = match rng.below(8) {
        0..3 => nxt,
        3 => nxt.wrapping_sub(1),
        4 => nxt.wrapping_sub(payload + fin),
        5 => nxt.wrapping_sub(rng.below(100_000)),
        6 => nxt.wrapping_add(rng.below(1 << 21)),
        _ => rng.next_u64() as u32,
    };
    let ack = match rng.below(6) {
        0..3 => sent,
        3 => sent.wrapping_sub(1),
        4 => sent.wrapping_sub(rng.below(1 << 25)),
        _ => rng.next_u64() as u32,
    };
    let mut built = segment(key.src, key.dst).seq(seq).ack(ack).flags(flags);
    built = built
        .window(rng.next_u64() as u16)
        .ttl(2 + rng.below(200) as u8);
    if rng.chance(500_000) {
        built = built.timestamps(rng.next_u64() as u32, rng.next_u64() as u32);
    }
    let mut packet = built
        .payload(vec![rng.below(256) as u8; payload as usize])
        .packet();
    if rng.chance(100_000) {
        let at = usize::from(header_of(&packet).tcp_at) + 16;
        packet.bytes[at] ^= 0x5a;
    }
    packet
}

/// Of a packet whose checksum may be wrong.
fn header_of(packet: &Packet) -> TcpPacket {
    match classify(&packet.bytes) {
        Ok(Classified::Tcp(header)) => header,
        other => panic!("a TCP packet: {other:?}"),
    }
}

/// What the Rust side makes of it: the packet that leaves, or nothing for the engine's.
fn in_rust(record: &mut Record, side: Side, packet: &Packet, header: &TcpPacket) -> Option<Packet> {
    let mut out = packet.clone();
    if !is_usual(header.options(&packet.bytes)) {
        return None;
    }
    if translate::is_fast(record, side, header) {
        translate::forward(record, &endpoints(), side, &mut out, header, 0).unwrap();
        return Some(out);
    }
    if !closing::may_follow(record, side, header) {
        return None;
    }
    let bytes = usize::from(header.end - header.tcp_at);
    let good = bytes <= SUMMED_BYTES_MAX && header.checksum_valid(&packet.bytes);
    if closing::moves_state(record, side, header) && !good {
        return None;
    }
    let edits = translate::Edits::of(record, &endpoints(), side);
    let rests = record.state == State::TimeWait;
    closing::follow(record, side, header, if rests { u32::MAX } else { 0 });
    translate::apply(&mut out, header, &edits).unwrap();
    Some(out)
}

/// Tries one packet both ways; true when it did not go to the engine.
fn one_step(
    kernel: &mut Kernel,
    table: &FlowTable,
    record: &mut Record,
    (line, side): (Line, Side),
    packet: &Packet,
    interface: u32,
) -> bool {
    let header = header_of(packet);
    let before = *record;
    let trial = kernel.try_frame(&frame_of(packet), interface, 1).unwrap();
    let expected = in_rust(record, side, packet, &header);
    let seen = table.tracking(line);
    let told = || format!("{side:?} {header:?}\n{before:?}\n{seen:?}");
    match &expected {
        Some(expected) => {
            assert_eq!(trial.fate, Fate::Redirect, "{}", told());
            assert_eq!(trial.frame[14..], expected.bytes, "{}", told());
        }
        None => {
            assert_eq!(trial.fate, Fate::Pass, "{}", told());
            assert_eq!(trial.frame, frame_of(packet), "{}", told());
        }
    }
    if expected.is_some() && before.state != State::TimeWait {
        let now_ms = monotonic_now().as_millis() as u32;
        assert!(now_ms.wrapping_sub(seen.last_active) < 60_000, "{}", told());
        record.last_active = seen.last_active;
    }
    assert_eq!(seen, Tracking::of(record), "{}", told());
    expected.is_some()
}

fn ends_agree(mode: Mode) {
    on_a_switch(|_, interface| {
        let mut rng = Rng::new(23);
        let (mut kernel, mut table) = kernel(mode, 0);
        let (mut followed, mut moved) = (0, 0);
        for round in 0..4_000u32 {
            let (mut record, keys) = closing_record(&mut rng, round);
            let line = Line(round % 64);
            assert!(table.offload(line, &record, &keys[0], &keys[1]));
            let side = SIDES[rng.below(2) as usize];
            let packet = closing_packet(&mut rng, &record, side, &keys);
            let before = record.state;
            let step = (line, side);
            let done = one_step(&mut kernel, &table, &mut record, step, &packet, interface);
            followed += u32::from(done);
            moved += u32::from(record.state != before);
            // What the engine takes is what the program left.
            let expected = table.tracking(line);
            assert_eq!(table.reclaim(line), expected);
            table.remove(line, &keys[0], &keys[1]);
        }
        assert!(followed > 1_000, "many packets are followed: {followed}");
        assert!(moved > 300, "many move the state: {moved}");
    });
}

#[test]
fn tc_follows_ends_as_the_engine_does() {
    run(|| ends_agree(Mode::Tc));
}

#[test]
fn xdp_follows_ends_as_the_engine_does() {
    run(|| ends_agree(Mode::XdpNative));
}

/// The packets of a close in order, then what a client does who begins anew.
fn a_whole_close(mode: Mode) {
    on_a_switch(|_, interface| {
        let mut rng = Rng::new(5);
        let (mut kernel, mut table) = kernel(mode, 0);
        table.set_offer(endpoints().listens[0], &ListenOffer { listen: 0, ..OFFER });
        let (mut record, client, server) = record(&mut rng, false, false);
        record.server_isn = record.server_nxt.wrapping_sub(101);
        let line = Line(3);
        assert!(table.offload(line, &record, &client, &server));
        let delta = record.seq_delta;
        let (client_nxt, server_nxt) = (record.client_nxt, record.server_nxt);
        let fin = TcpFlags::FIN | TcpFlags::ACK;
        let seen = |number: u32| number.wrapping_add(delta);
        let steps = [
            (
                Side::Server,
                server_nxt,
                client_nxt,
                fin,
                State::FinRelayed1,
            ),
            (
                Side::Client,
                client_nxt,
                seen(server_nxt) + 1,
                TcpFlags::ACK,
                State::AckRelayed1,
            ),
            (
                Side::Client,
                client_nxt,
                seen(server_nxt) + 1,
                fin,
                State::FinRelayed2,
            ),
            (
                Side::Client,
                client_nxt,
                seen(server_nxt) + 1,
                fin,
                State::FinRelayed2,
            ),
            (
                Side::Server,
                server_nxt + 1,
                client_nxt + 1,
                TcpFlags::ACK,
                State::TimeWait,
            ),
            (
                Side::Server,
                server_nxt,
                client_nxt + 1,
                fin,
                State::TimeWait,
            ),
        ];
        for (side, seq, ack, flags, state) in steps {
            let key = if side == Side::Client { client } else { server };
            let packet = segment(key.src, key.dst)
                .seq(seq)
                .ack(ack)
                .flags(flags)
                .packet();
            let step = (line, side);
            assert!(one_step(
                &mut kernel,
                &table,
                &mut record,
                step,
                &packet,
                interface
            ));
            record.last_active = table.tracking(line).last_active;
            assert_eq!(table.tracking(line).state, state);
        }
        begins_anew(&mut kernel, &table, line, &record, client, interface);
        // The same after a RST.
        record.state = State::Reset;
        record.flags = flag::TIMESTAMPS | flag::RESET_BY_CLIENT;
        assert!(table.offload(line, &record, &client, &server));
        begins_anew(&mut kernel, &table, line, &record, client, interface);
    });
}

/// On a tuple at rest the kernel answers a SYN, swallows the last ACK of the handshake, and leaves
/// the data to the engine; a late copy of the old SYN it leaves, too.
fn begins_anew(
    kernel: &mut Kernel,
    table: &FlowTable,
    line: Line,
    record: &Record,
    client: fairlead_base::FlowKey,
    interface: u32,
) {
    let before = table.tracking(line);
    let send = |seq: u32, ack: u32, flags: TcpFlags, payload: &[u8]| {
        let built = segment(client.src, client.dst)
            .seq(seq)
            .ack(ack)
            .flags(flags);
        let packet = built.payload(payload).packet();
        kernel.try_frame(&frame_of(&packet), interface, 1).unwrap()
    };
    assert_eq!(
        send(record.client_isn, 0, TcpFlags::SYN, &[]).fate,
        Fate::Pass
    );
    let answered = send(9_000_000, 0, TcpFlags::SYN, &[]);
    assert_eq!(answered.fate, Fate::Redirect);
    let answer = tcp(&Packet::from_bytes(&answered.frame[14..]));
    assert_eq!(answer.flags, TcpFlags::SYN | TcpFlags::ACK);
    let cookie = answer.seq.0.wrapping_add(1);
    assert_eq!(send(9_000_001, cookie, TcpFlags::ACK, &[]).fate, Fate::Drop);
    assert_eq!(
        send(9_000_001, cookie, TcpFlags::ACK, b"GET").fate,
        Fate::Pass
    );
    assert_eq!(table.tracking(line), before, "the old connection rests");
}

#[test]
fn tc_follows_a_whole_close() {
    run(|| a_whole_close(Mode::Tc));
}

#[test]
fn xdp_follows_a_whole_close() {
    run(|| a_whole_close(Mode::XdpNative));
}

/// A RST can be exact for the switch and not for its receiver, who then asks (RFC 5961, section
/// 3.2): during a flood, too, or the exact one never comes.
fn a_question_about_a_reset_is_no_strangers(mode: Mode) {
    on_a_switch(|_, interface| {
        let (kernel, mut table) = kernel(mode, 0);
        table.set_offer(endpoints().listens[0], &OFFER);
        table.set_refusal(Refusal {
            syns: 0,
            unproven: true,
        });
        let (mut record, client, server) = record(&mut Rng::new(5), false, false);
        let sent = record.server_nxt.wrapping_add(record.seq_delta);
        let asks = segment(client.src, client.dst).seq(record.client_nxt);
        let frame = frame_of(&asks.ack(sent).flags(TcpFlags::ACK).packet());
        let counted = || {
            kernel.try_frame(&frame, interface, 1).unwrap();
            let counted = kernel.counters().unwrap();
            (counted.to_engine, counted.drops.of(DropReason::Overloaded))
        };
        assert_eq!(counted(), (0, 1), "of no connection");
        record.state = State::Reset;
        assert!(table.offload(Line(3), &record, &client, &server));
        assert_eq!(counted(), (1, 1), "the engine passes it on");
    });
}

#[test]
fn tc_a_question_about_a_reset_is_no_strangers() {
    run(|| a_question_about_a_reset_is_no_strangers(Mode::Tc));
}

#[test]
fn xdp_a_question_about_a_reset_is_no_strangers() {
    run(|| a_question_about_a_reset_is_no_strangers(Mode::XdpNative));
}

/// A checksum that a device has yet to complete is as good as a right one, under tc.
#[test]
fn tc_believes_an_open_checksum() {
    run(|| {
        on_a_switch(|_, interface| {
            let mut rng = Rng::new(6);
            let (kernel, mut table) = kernel(Mode::Tc, 0);
            for v6 in [false, true] {
                let (record, client, server) = record(&mut rng, v6, true);
                assert!(table.offload(Line(0), &record, &client, &server));
                let sent = record.server_nxt.wrapping_add(record.seq_delta);
                let built = segment(client.src, client.dst)
                    .seq(record.client_nxt)
                    .ack(sent);
                let built = built.flags(TcpFlags::FIN | TcpFlags::ACK);
                let mut packet = built.payload(vec![7; 1_900]).packet();
                let header = tcp(&packet);
                let bytes = u32::from(header.end - header.tcp_at);
                let open = checksum::tcp_partial(&client.src.addr, &client.dst.addr, bytes);
                let at = usize::from(header.tcp_at) + 16;
                packet.bytes[at..at + 2].copy_from_slice(&open.to_be_bytes());
                let trial = kernel.try_frame(&frame_of(&packet), interface, 1).unwrap();
                assert_eq!(trial.fate, Fate::Redirect, "{v6} {header:?}");
                assert_eq!(table.tracking(Line(0)).state, State::FinRelayed1);
                table.remove(Line(0), &client, &server);
            }
        });
    });
}
