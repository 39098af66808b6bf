//! Packets of pairs: both programs apply the second constants as the datapath does, to the byte,
//! and note the same of both ends. FINs and RSTs among them.

use fairlead_tcp::{PAIR_ROUTE, PairOffload, Second, Seen};
use fairlead_wire::{Classified, TcpPacket, classify, options};

use super::translating::{is_usual, some_packet};
use super::*;

/// A record of a pair, and what it lacks.
fn pair(rng: &mut Rng, v6: bool) -> (Record, Second) {
    let (record, ..) = record(rng, v6, false);
    let record = Record {
        nat_addr: u16::from(v6),
        route: PAIR_ROUTE,
        client_shift: 0,
        server_shift: 0,
        ..record
    };
    let second = Second {
        seq: rng.next_u64() as u32,
        ts: rng.next_u64() as u32,
        client_shift: (rng.below(29) as i8) - 14,
        server_shift: (rng.below(29) as i8) - 14,
    };
    (record, second)
}

fn header_of(packet: &Packet) -> TcpPacket {
    match classify(&packet.bytes) {
        Ok(Classified::Tcp(header)) => header,
        other => panic!("a TCP packet: {other:?}"),
    }
}

/// What the datapath makes of a packet in midstream, and what it notes of its sender, if that
/// acknowledges something; `None` for one that needs more than translation.
fn expected(
    record: &mut Record,
    second: &Second,
    side: Side,
    packet: &mut Packet,
    addresses: &Endpoints,
) -> Option<Option<Seen>> {
    let mut header = header_of(packet);
    if side == Side::Server {
        header = translate::renumber(packet, &header, &second.of(side)).unwrap();
    }
    if !translate::is_fast(record, side, &header) {
        return None;
    }
    let stamps = options::timestamps(header.options(&packet.bytes));
    let seen = Seen {
        ack: match side {
            Side::Client => header.ack.0.wrapping_sub(record.seq_delta),
            Side::Server => header.ack.0,
        },
        window: header.window,
        timestamp: stamps.map(|stamps| stamps.value),
    };
    translate::forward(record, addresses, side, packet, &header, 0).unwrap();
    if side == Side::Client {
        let header = header_of(packet);
        translate::renumber(packet, &header, &second.of(side)).unwrap();
    }
    Some(header.flags.contains(TcpFlags::ACK).then_some(seen))
}

/// The addresses of the test, and one that no configuration has.
fn addresses() -> Endpoints {
    let mut all = endpoints();
    all.nats.push(endpoint("[fd02::fe]:1").addr);
    all.listens.push(endpoint("10.1.0.1:7"));
    all
}

fn pairs_agree(mode: Mode, kind: FlowTableKind) {
    on_a_switch(|_, interface| {
        let mut rng = Rng::new(24);
        let loaded = Kernel::load_pinned(mode, kind, 64, &endpoints(), COOKIE, 0, None);
        let (mut kernel, mut table) = loaded.unwrap();
        tell_interfaces(&mut kernel);
        let addresses = addresses();
        let mut translated = 0;
        for round in 0..600u32 {
            let (mut record, second) = pair(&mut rng, round % 3 == 0);
            if round % 6 == 1 {
                record.listen = 2;
            }
            let line = Line(round % 64);
            let keys = (record.client_key(&addresses), record.server_key(&addresses));
            let mut seen = [None; 2];
            assert!(table.place_pair(line, &record, &addresses, b"notes"));
            assert!(table.describe_pair(line, &second, &seen));
            assert!(table.offload(line, &record, &keys.0, &keys.1));
            for at in 0..4 {
                let side = [Side::Client, Side::Server][at % 2];
                let (key, sent) = match side {
                    Side::Client => (keys.0, record.server_nxt.wrapping_add(record.seq_delta)),
                    Side::Server => (keys.1, record.client_nxt.wrapping_add(second.seq)),
                };
                let packet = some_packet(&mut rng, key, record.nxt(side).0, sent);
                let frame = frame_of(&packet);
                let trial = match frame.len() {
                    ..800 => kernel.try_frame(&frame, interface, 1),
                    _ => kernel.try_super_packet(&frame, interface, (2, 600)),
                };
                let trial = trial.unwrap();
                let mut ours = record;
                let mut there = packet.clone();
                let noted = expected(&mut ours, &second, side, &mut there, &addresses);
                let usual = is_usual(header_of(&packet).options(&packet.bytes));
                let (true, Some(noted)) = (usual, noted) else {
                    assert_eq!((trial.fate, trial.frame), (Fate::Pass, frame), "as it was");
                    // What is noted of it the engine notes once more.
                    seen = table.pair_seen(line);
                    continue;
                };
                assert_eq!(trial.fate, Fate::Redirect, "{packet:?}");
                assert_eq!(trial.frame[14..], there.bytes, "round {round}, {side:?}");
                let tracking = table.tracking(line);
                ours.last_active = tracking.last_active;
                assert_eq!(tracking, fairlead_tcp::Tracking::of(&ours));
                seen[side as usize] = noted.or(seen[side as usize]);
                assert_eq!(table.pair_seen(line), seen);
                record = ours;
                translated += 1;
            }
            table.remove(line, &keys.0, &keys.1);
            table.forget_pair(line);
            assert_eq!(table.pair_seen(line), [None; 2]);
        }
        assert!(translated > 1_600, "most are translated: {translated}");
    });
}

#[test]
fn tc_translates_pairs_as_the_engine_does() {
    run(|| pairs_agree(Mode::Tc, FlowTableKind::Hash));
    run(|| pairs_agree(Mode::Tc, FlowTableKind::LruHash { keys: 0 }));
}

#[test]
fn xdp_translates_pairs_as_the_engine_does() {
    run(|| pairs_agree(Mode::XdpNative, FlowTableKind::Hash));
}

/// With the TCB cache before the index, too.
#[test]
fn the_cache_is_no_obstacle() {
    let cache = fairlead_bpf_loader::TcbGeometry::of_lines(1 << 10);
    run(move || pairs_agree(Mode::Tc, FlowTableKind::TcbCache(cache)));
}

/// A record without its second constants is the engine's.
#[test]
fn a_pair_that_lacks_something_is_left_alone() {
    run(|| {
        on_a_switch(|_, interface| {
            let mut rng = Rng::new(3);
            let (mut kernel, mut table) = kernel(Mode::Tc, 0);
            let (record, second) = pair(&mut rng, false);
            let addresses = addresses();
            let keys = (record.client_key(&addresses), record.server_key(&addresses));
            assert!(table.offload(Line(1), &record, &keys.0, &keys.1));
            let sent = record.server_nxt.wrapping_add(record.seq_delta);
            let data = segment(keys.0.src, keys.0.dst).seq(record.client_nxt);
            let frame = frame_of(&data.ack(sent).flags(TcpFlags::ACK).packet());
            let fate = |kernel: &mut Kernel| kernel.try_frame(&frame, interface, 1).unwrap().fate;
            assert_eq!(fate(&mut kernel), Fate::Pass);
            assert!(
                !table.describe_pair(Line(1), &second, &[None; 2]),
                "nowhere"
            );
            assert!(table.place_pair(Line(1), &record, &addresses, &[]));
            assert!(table.describe_pair(Line(1), &second, &[None; 2]));
            assert_eq!(fate(&mut kernel), Fate::Redirect);
        });
    });
}

/// A FIN and a RST by each end are followed in the kernel, in the numbers that the other end knows.
fn ends_agree(mode: Mode) {
    on_a_switch(|_, interface| {
        let mut rng = Rng::new(29);
        let (kernel, mut table) = kernel(mode, 0);
        let addresses = addresses();
        for round in 0..40u32 {
            let (record, second) = pair(&mut rng, round % 2 == 0);
            let keys = (record.client_key(&addresses), record.server_key(&addresses));
            assert!(table.place_pair(Line(0), &record, &addresses, &[]));
            assert!(table.describe_pair(Line(0), &second, &[None; 2]));
            assert!(table.offload(Line(0), &record, &keys.0, &keys.1));
            let side = [Side::Client, Side::Server][(round / 2 % 2) as usize];
            let (flag, state) = match round / 4 % 2 {
                0 => (TcpFlags::FIN, State::FinRelayed1),
                _ => (TcpFlags::RST, State::Reset),
            };
            let (key, seq, ack) = match side {
                Side::Client => {
                    let ack = record.server_nxt.wrapping_add(record.seq_delta);
                    (keys.0, record.client_nxt, ack)
                }
                Side::Server => {
                    let ack = record.client_nxt.wrapping_add(second.seq);
                    (keys.1, record.server_nxt, ack)
                }
            };
            let packet = segment(key.src, key.dst).seq(seq).ack(ack);
            let packet = packet.flags(flag | TcpFlags::ACK).packet();
            let trial = kernel.try_frame(&frame_of(&packet), interface, 1).unwrap();
            assert_eq!(trial.fate, Fate::Redirect, "{mode:?} {side:?} {flag:?}");
            let sent = tcp(&Packet::from_bytes(&trial.frame[14..]));
            assert!(sent.checksum_valid(&trial.frame[14..]));
            let told = match side {
                Side::Client => (
                    seq.wrapping_add(second.seq),
                    ack.wrapping_sub(record.seq_delta),
                ),
                Side::Server => (
                    seq.wrapping_add(record.seq_delta),
                    ack.wrapping_sub(second.seq),
                ),
            };
            assert_eq!((sent.seq.0, sent.ack.0), told);
            assert_eq!(table.tracking(Line(0)).state, state);
            table.remove(Line(0), &keys.0, &keys.1);
            table.forget_pair(Line(0));
        }
    });
}

#[test]
fn tc_follows_ends_of_pairs() {
    run(|| ends_agree(Mode::Tc));
}

#[test]
fn xdp_follows_ends_of_pairs() {
    run(|| ends_agree(Mode::XdpNative));
}
