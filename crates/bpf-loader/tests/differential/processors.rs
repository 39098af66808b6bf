//! Two processors at once on the same connections: whoever comes first, the same bytes leave, and
//! the connections come to the same ends. On a machine with one processor the two take turns.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use fairlead_bpf_loader::{FlowTableKind, TcbGeometry, Trial};
use fairlead_tcp::join::Terms;
use fairlead_tcp::{ConnectOffload, Join, Preconnect};

use super::unbegun::{HEAD, LANE, PROMISE, Stage, behind, ticket_of};
use super::*;

const CONNECTIONS: u32 = 64;
const ROUNDS: u32 = 12;
const SIDES: [Side; 2] = [Side::Client, Side::Server];

/// Where two threads wait for each other, as often as they like, for less than a packet takes.
#[derive(Default)]
struct Start(AtomicU32);

impl Start {
    fn wait(&self, turn: u32) {
        self.0.fetch_add(1, Ordering::AcqRel);
        let mut spins = 0u32;
        while self.0.load(Ordering::Acquire) < 2 * (turn + 1) {
            spins += 1;
            if spins.is_multiple_of(2_000) {
                std::thread::yield_now();
            }
            std::hint::spin_loop();
        }
    }
}

/// Runs `one` on two processors, told which it is.
fn on_both<T: Send>(one: impl Fn(usize) -> T + Sync) -> [T; 2] {
    let one = &one;
    std::thread::scope(|scope| {
        [0, 1]
            .map(|which| {
                scope.spawn(move || {
                    stay_on(which);
                    one(which)
                })
            })
            .map(|thread| thread.join().unwrap())
    })
}

/// Keeps this thread on one processor; where there is no such processor, it stays where it is.
pub(super) fn stay_on(processor: usize) {
    // SAFETY: a set of processors on the stack, all zero to begin with, written and read in its
    // own size.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(processor, &mut set);
        libc::sched_setaffinity(0, size_of_val(&set), &raw const set);
    }
}

fn kinds() -> [FlowTableKind; 3] {
    [
        FlowTableKind::Hash,
        FlowTableKind::LruHash { keys: 0 },
        // Fewer lines than there are connections: they take each other's all the time.
        FlowTableKind::TcbCache(TcbGeometry {
            lines: 32,
            tick_ns: 1_000,
        }),
    ]
}

fn kernel_of(mode: Mode, kind: FlowTableKind) -> (Kernel, FlowTable) {
    let loaded = Kernel::load_pinned(mode, kind, CONNECTIONS, &endpoints(), COOKIE, 0, None);
    let (mut kernel, table) = loaded.unwrap();
    tell_interfaces(&mut kernel);
    (kernel, table)
}

/// A spliced connection of its own ports.
fn spliced(rng: &mut Rng, number: u32) -> Record {
    let (mut record, ..) = record(rng, number.is_multiple_of(3), number.is_multiple_of(2));
    record.client_port = 20_000 + number as u16;
    record.nat_port = 30_000 + number as u16;
    record.server_isn = record.server_nxt.wrapping_sub(5_000);
    record.server_wraps = u16::from(record.server_nxt < 5_000);
    record
}

fn keys_of(record: &Record) -> [FlowKey; 2] {
    let endpoints = endpoints();
    [record.client_key(&endpoints), record.server_key(&endpoints)]
}

/// Packets that one side sends in this order: data, a FIN or a RST, and the acknowledgement of the
/// other's FIN.
fn sends(record: &Record, side: Side, ends_by: TcpFlags) -> [Packet; 3] {
    let key = keys_of(record)[side as usize];
    let other = match side {
        Side::Client => record.server_nxt.wrapping_add(record.seq_delta),
        Side::Server => record.client_nxt,
    };
    let nxt = record.nxt(side).0;
    let at = |seq: u32, ack: u32, flags| {
        let built = segment(key.src, key.dst).seq(nxt.wrapping_add(seq));
        built.ack(other.wrapping_add(ack)).flags(flags)
    };
    let data = at(0, 0, TcpFlags::ACK | TcpFlags::PSH).payload([7; 100]);
    let last = at(101, 101, TcpFlags::ACK);
    [data, at(100, 100, ends_by), last].map(|built| built.packet())
}

/// What leaves for a packet of an open connection, whatever else has happened to it.
fn translated(record: &Record, side: Side, packet: &Packet) -> Vec<u8> {
    let header = tcp(packet);
    let mut out = packet.clone();
    let edits = translate::Edits::of(record, &endpoints(), side);
    translate::apply(&mut out, &header, &edits).unwrap();
    out.bytes
}

/// Both sides of all connections send data, then a FIN, then acknowledge the other's, each pair at
/// once.
fn both_close_at_once(mode: Mode, kind: FlowTableKind) {
    on_a_switch(|_, interface| {
        let mut rng = Rng::new(51);
        let (kernel, mut table) = kernel_of(mode, kind);
        for _ in 0..ROUNDS {
            let records = Vec::from_iter((0..CONNECTIONS).map(|number| spliced(&mut rng, number)));
            for (line, record) in (0..).map(Line).zip(&records) {
                let [client, server] = keys_of(record);
                assert!(table.offload(line, record, &client, &server));
            }
            let start = Start::default();
            on_both(|which| {
                let side = SIDES[which];
                for step in 0..3 {
                    for (at, record) in (0..).zip(&records) {
                        let packet = &sends(record, side, TcpFlags::FIN | TcpFlags::ACK)[step];
                        let frame = frame_of(packet);
                        start.wait(step as u32 * CONNECTIONS + at);
                        let trial = kernel.try_frame(&frame, interface, 1).unwrap();
                        assert_eq!(trial.fate, Fate::Redirect, "{side:?}, step {step}, {at}");
                        assert_eq!(trial.frame[14..], translated(record, side, packet));
                    }
                }
            });
            for (line, record) in (0..).map(Line).zip(&records) {
                let seen = table.tracking(line);
                let all = flag::CLIENT_FIN
                    | flag::SERVER_FIN
                    | flag::CLIENT_FIN_ACKED
                    | flag::SERVER_FIN_ACKED;
                assert_eq!(seen.state, State::TimeWait, "{seen:?}");
                assert_eq!(seen.flags & all, all, "{seen:?}");
                assert_eq!(seen.client_nxt, record.client_nxt.wrapping_add(101));
                assert_eq!(seen.server_nxt, record.server_nxt.wrapping_add(101));
                let [client, server] = keys_of(record);
                table.remove(line, &client, &server);
            }
            table.flush();
        }
        let counted = kernel.counters().unwrap();
        let packets = u64::from(ROUNDS * CONNECTIONS);
        assert_eq!(
            (counted.fast_packets, counted.fins),
            (6 * packets, 2 * packets)
        );
    });
}

#[test]
fn tc_closes_from_both_sides_at_once() {
    run(|| {
        for kind in kinds() {
            both_close_at_once(Mode::Tc, kind);
        }
    });
}

#[test]
fn xdp_closes_from_both_sides_at_once() {
    run(|| {
        for kind in kinds() {
            both_close_at_once(Mode::XdpNative, kind);
        }
    });
}

/// The client's RST and the server's FIN at once: the connection is reset, and the FIN went before
/// or is left to the engine.
#[test]
fn a_reset_and_a_fin_at_once_leave_a_reset() {
    run(|| {
        on_a_switch(|_, interface| {
            let mut rng = Rng::new(52);
            let (kernel, mut table) = kernel_of(Mode::Tc, FlowTableKind::Hash);
            let start = Start::default();
            for turn in 0..ROUNDS * CONNECTIONS {
                let record = spliced(&mut rng, turn % CONNECTIONS);
                let [client, server] = keys_of(&record);
                assert!(table.offload(Line(0), &record, &client, &server));
                let reset = segment(client.src, client.dst).seq(record.client_nxt);
                let [_, fin, _] = sends(&record, Side::Server, TcpFlags::FIN | TcpFlags::ACK);
                let frames = [reset.flags(TcpFlags::RST).packet(), fin].map(|one| frame_of(&one));
                let [reset, fin] = on_both(|which| {
                    start.wait(turn);
                    kernel.try_frame(&frames[which], interface, 1).unwrap()
                });
                assert_eq!(reset.fate, Fate::Redirect);
                match fin.fate {
                    Fate::Redirect => {}
                    fate => assert_eq!((fate, &fin.frame), (Fate::Pass, &frames[1])),
                }
                let seen = table.tracking(Line(0));
                assert_eq!(seen.state, State::Reset, "{seen:?}");
                assert_ne!(seen.flags & flag::RESET_BY_CLIENT, 0, "{seen:?}");
                let went = seen.flags & flag::SERVER_FIN != 0;
                assert_eq!(went, fin.fate == Fate::Redirect, "{seen:?}");
                table.remove(Line(0), &client, &server);
                table.flush();
            }
        });
    });
}

/// Arms a connection for the server's SYN-ACK; the frame of that, and its sender's initial number.
fn arm(rng: &mut Rng, table: &mut FlowTable, turn: u32) -> (Record, Vec<u8>) {
    let isn = rng.next_u64() as u32;
    let payload = [b'x'; 90];
    let mut record = Record {
        client_nxt: 1_001 + payload.len() as u32,
        state: State::SynSent,
        flags: 0,
        ..spliced(rng, 3 * (turn % CONNECTIONS) + 1)
    };
    (record.seq_delta, record.ts_delta) = (0, 0);
    let join = Join {
        terms: Terms {
            dseq: SeqNumber(rng.next_u64() as u32),
            asked_scale: Some(7),
            offered_scale: Some(6),
            our_ts: 0,
        },
        client_ts: 0,
        client_window: 500,
        device_mss: 1_460,
        payload: &payload,
    };
    let [client, server] = keys_of(&record);
    assert!(table.arm(Line(0), turn % 8, &record, &join, [&client, &server]));
    let options = SynOptions {
        mss: Some(1_460),
        window_scale: Some(7),
        ..SynOptions::default()
    };
    let answer = segment(server.src, server.dst).seq(isn).ack(1_001);
    let answer = answer.flags(TcpFlags::SYN | TcpFlags::ACK).window(29_000);
    record.server_isn = isn;
    (record, frame_of(&answer.syn_options(&options).packet()))
}

/// A SYN-ACK comes twice at once: one of them joins the connection, and the other is not answered.
#[test]
fn of_two_equal_answers_at_once_one_joins() {
    run(|| {
        on_a_switch(|_, interface| {
            let mut rng = Rng::new(53);
            let (kernel, mut table) = kernel_of(Mode::Tc, FlowTableKind::Hash);
            let start = Start::default();
            for turn in 0..ROUNDS * CONNECTIONS {
                let (record, frame) = arm(&mut rng, &mut table, turn);
                let trials: [Trial; 2] = on_both(|_| {
                    start.wait(turn);
                    kernel.try_frame(&frame, interface, 1).unwrap()
                });
                let went = |trial: &&Trial| trial.fate == Fate::Redirect;
                assert_eq!(trials.iter().filter(went).count(), 1, "{trials:?}");
                let left = trials.iter().find(|trial| !went(trial)).unwrap();
                assert_eq!((left.fate, &left.frame), (Fate::Pass, &frame));
                let joined = table.disarm(Line(0)).expect("joined");
                assert_eq!(joined.server_isn, record.server_isn);
                assert_eq!(table.tracking(Line(0)).state, State::Spliced);
                let [client, server] = keys_of(&record);
                table.remove(Line(0), &client, &server);
                table.flush();
            }
            let joins = kernel.counters().unwrap().joins;
            assert_eq!(joins, u64::from(ROUNDS * CONNECTIONS));
        });
    });
}

/// The engine takes an armed connection back while the SYN-ACK comes: it is joined and the engine
/// knows it, or the SYN-ACK is the engine's.
#[test]
fn a_connection_is_joined_or_taken_back_and_never_both() {
    run(|| {
        on_a_switch(|_, interface| {
            let mut rng = Rng::new(54);
            let (kernel, mut table) = kernel_of(Mode::Tc, FlowTableKind::Hash);
            let mut joins = 0;
            for turn in 0..ROUNDS * CONNECTIONS {
                let (record, frame) = arm(&mut rng, &mut table, turn);
                let start = Start::default();
                let (joined, trial) = std::thread::scope(|scope| {
                    let (start, kernel, frame) = (&start, &kernel, &frame);
                    let arrives = scope.spawn(move || {
                        stay_on(1);
                        start.wait(0);
                        kernel.try_frame(frame, interface, 1).unwrap()
                    });
                    start.wait(0);
                    // Some time into the packet's way, now earlier, now later.
                    for _ in 0..turn % 64 * 20 {
                        std::hint::spin_loop();
                    }
                    (table.disarm(Line(0)), arrives.join().unwrap())
                });
                match joined {
                    Some(joined) => {
                        assert_eq!(trial.fate, Fate::Redirect);
                        assert_eq!(joined.server_isn, record.server_isn);
                        joins += 1;
                    }
                    None => assert_eq!((trial.fate, &trial.frame), (Fate::Pass, &frame)),
                }
                let [client, server] = keys_of(&record);
                table.remove(Line(0), &client, &server);
                table.flush();
            }
            assert_eq!(kernel.counters().unwrap().joins, joins);
        });
    });
}

/// A client's first segment on a tuple of its own.
fn first_segment(turn: u32) -> Packet {
    let client = endpoint(&format!("10.1.0.9:{}", 10_000 + turn));
    behind(client, turn, PROMISE).payload(HEAD).packet()
}

/// Who has taken tickets of the lines 0 and 1; both are free again.
fn settle(stage: &mut Stage) -> u32 {
    let mut taken = 0;
    while let Some(begun) = stage.table.next_taken(LANE) {
        let mut record = ticket_of(begun.line.0);
        if let Some(taker) = begun.taker {
            (record.client_addr, record.client_port) = (taker.client.addr, taker.client.port);
            taken += 1;
        }
        let [client, server] = keys_of(&record);
        stage.table.remove(begun.line, &client, &server);
    }
    let mut gone = Vec::new();
    stage.table.revoke(LANE, &mut gone);
    for (line, _) in gone {
        let [client, server] = keys_of(&ticket_of(line.0));
        stage.table.remove(line, &client, &server);
    }
    taken
}

/// A client's first segment comes twice at once: one of them begins a connection, or none. Two
/// would be with two servers.
#[test]
fn of_two_equal_first_segments_at_once_one_begins_at_most() {
    run(|| {
        on_a_switch(|_, interface| {
            let mut stage = Stage::new(Mode::Tc, CONNECTIONS, interface);
            let (start, mut begun) = (Start::default(), 0);
            for turn in 0..ROUNDS * CONNECTIONS {
                stage.issue(LANE, 0);
                stage.issue(LANE, 1);
                let frame = frame_of(&first_segment(turn));
                let trials: [Trial; 2] = on_both(|_| {
                    start.wait(turn);
                    stage.kernel.try_frame(&frame, interface, 1).unwrap()
                });
                let taken = settle(&mut stage);
                assert!(taken <= 1, "turn {turn}");
                let went = trials.iter().filter(|trial| trial.fate == Fate::Redirect);
                assert_eq!(went.count(), taken as usize, "{trials:?}");
                begun += taken;
            }
            assert!(begun > ROUNDS * CONNECTIONS / 4, "most: {begun}");
        });
    });
}

/// Lets some time pass, of two at once now the one is earlier, now the other.
fn linger(turn: u32) {
    for _ in 0..turn % 64 * 20 {
        std::hint::spin_loop();
    }
}

/// The engine puts a client on record while a copy of its first segment comes: the copy is the
/// engine's, or the engine finds at once that it has begun a connection.
#[test]
fn a_copy_of_who_is_put_on_record_begins_before_that_or_not_at_all() {
    run(|| {
        on_a_switch(|_, interface| {
            let mut stage = Stage::new(Mode::Tc, CONNECTIONS, interface);
            let mut begun = 0;
            for turn in 0..ROUNDS * CONNECTIONS {
                stage.issue(LANE, 0);
                let packet = first_segment(turn);
                let (key, frame) = (tcp(&packet).key, frame_of(&packet));
                let (start, kernel) = (Start::default(), Arc::clone(&stage.kernel));
                let (taken, trial) = std::thread::scope(|scope| {
                    let arrives = scope.spawn(|| {
                        stay_on(1);
                        start.wait(0);
                        linger(if turn.is_multiple_of(2) { turn } else { 0 });
                        kernel.try_frame(&frame, interface, 1).unwrap()
                    });
                    start.wait(0);
                    linger(if turn.is_multiple_of(2) { 0 } else { turn });
                    stage.table.register(Line(9), &key);
                    let taken = stage.table.next_taken(LANE).and_then(|begun| begun.taker);
                    (taken, arrives.join().unwrap())
                });
                let went = trial.fate == Fate::Redirect;
                assert_eq!(taken.is_some(), went, "turn {turn}: {trial:?}");
                begun += u32::from(went);
                let mut record = ticket_of(0);
                if let Some(taker) = taken {
                    (record.client_addr, record.client_port) =
                        (taker.client.addr, taker.client.port);
                }
                let [client, server] = keys_of(&record);
                stage.table.remove(Line(0), &client, &server);
                stage.table.remove(Line(9), &key, &server);
                settle(&mut stage);
            }
            assert!(begun > 0, "some are begun");
        });
    });
}
