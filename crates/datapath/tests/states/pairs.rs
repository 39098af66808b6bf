//! Pairs: two connections with numbers of their own on each leg, carried as one record.

use fairlead_base::{Endpoint, Instant, Packet};
use fairlead_datapath::config::{Pool, PoolId, Protocol, Route, Server, Service};
use fairlead_datapath::{
    Config, Datapath, Estate, Line, PairKept, PairRefused, Pairing, Seen, State, Verdict,
};
use fairlead_tcp::adoption::{Kept, KeptPair, Misfit};
use fairlead_tcp::pairing::{ESTABLISHED, Leg, Scales, Stamps};
use fairlead_testkit::{FastPathDouble, endpoint, segment};
use fairlead_wire::{Classified, TcpFlags, TcpPacket, classify, options};

/// The client's stream, by its own numbers; the same by the server's.
const CLIENT: (u32, u32) = (5_000, 0xffff_fff0);
/// The server's stream, by the client's numbers; by its own.
const SERVER: (u32, u32) = (9_000, 70_000);
/// Timestamps likewise: each end's own value and what the other end sees of it.
const CLIENT_CLOCK: (u32, u32) = (700, 40);
const SERVER_CLOCK: (u32, u32) = (4_000_000_000, 100);

fn ends() -> [Endpoint; 4] {
    [
        "10.1.0.10:4000",
        "10.1.0.2:80",
        "10.2.0.254:5000",
        "10.2.0.1:8080",
    ]
    .map(endpoint)
}

fn leg(local: Endpoint, peer: Endpoint) -> Leg {
    Leg {
        local,
        peer,
        state: ESTABLISHED,
        rcv_nxt: 0,
        write_seq: 0,
        unread: 0,
        unacknowledged: 0,
        timestamps: None,
        sack: true,
        scales: Some(Scales { peer: 7, own: 7 }),
        ecn: false,
        mss: 1_460,
        own_mss: 1_460,
        window: 64_000,
        window_max: 64_000,
        promised: 64_000,
    }
}

fn pairing() -> Pairing {
    let [client, listen, source, server] = ends();
    let to_client = Leg {
        rcv_nxt: CLIENT.0,
        write_seq: SERVER.0,
        timestamps: Some(Stamps {
            own: SERVER_CLOCK.1,
            peer: CLIENT_CLOCK.0,
        }),
        ..leg(listen, client)
    };
    let to_server = Leg {
        rcv_nxt: SERVER.1,
        write_seq: CLIENT.1,
        timestamps: Some(Stamps {
            own: CLIENT_CLOCK.1,
            peer: SERVER_CLOCK.0,
        }),
        // The server reads windows in units of 2^9.
        scales: Some(Scales { peer: 7, own: 9 }),
        ..leg(source, server)
    };
    Pairing::of(&to_client, &to_server).unwrap()
}

fn now(ms: u64) -> Instant {
    Instant::from_millis(ms)
}

struct Rig {
    datapath: Datapath,
    line: Line,
    number: u64,
}

impl Rig {
    fn new() -> Self {
        let config = Config {
            pairs: 2,
            ..Config::new(Vec::new(), Vec::new())
        };
        let mut datapath = Datapath::new(config, 1.into(), now(0)).unwrap();
        let (line, number) = datapath.adopt_pair(now(0), &pairing(), &[]).unwrap();
        datapath.check_invariants();
        Self {
            datapath,
            line,
            number,
        }
    }

    /// What becomes of a segment, with a good checksum before and after.
    fn pass(&mut self, mut packet: Packet) -> (TcpPacket, Packet) {
        let verdict = self.datapath.handle_packet(now(1), &mut packet);
        assert_eq!(verdict, Verdict::Transmit);
        self.datapath.check_invariants();
        let Ok(Classified::Tcp(header)) = classify(&packet.bytes) else {
            panic!("no segment")
        };
        assert!(header.checksum_valid(&packet.bytes), "{header:?}");
        (header, packet)
    }

    fn own(&mut self) -> Vec<TcpPacket> {
        let mut packet = Packet::default();
        let mut all = Vec::new();
        while self.datapath.poll_transmit(&mut packet) {
            let Ok(Classified::Tcp(header)) = classify(&packet.bytes) else {
                panic!("no segment")
            };
            assert!(header.checksum_valid(&packet.bytes), "{header:?}");
            all.push(header);
        }
        all
    }

    fn state(&self) -> Option<State> {
        let [client, listen, ..] = ends();
        self.datapath.connection_state(client, listen)
    }
}

fn from_client(seq: u32, ack: u32) -> fairlead_testkit::Segment {
    let [client, listen, ..] = ends();
    segment(client, listen)
        .seq(CLIENT.0 + seq)
        .ack(SERVER.0 + ack)
}

fn from_server(seq: u32, ack: u32) -> fairlead_testkit::Segment {
    let [_, _, source, server] = ends();
    let (seq, ack) = (SERVER.1.wrapping_add(seq), CLIENT.1.wrapping_add(ack));
    segment(server, source).seq(seq).ack(ack)
}

#[test]
fn both_streams_are_in_the_numbers_of_their_receivers() {
    let [client, listen, source, server] = ends();
    let mut rig = Rig::new();
    let sent = from_client(0, 0).timestamps(CLIENT_CLOCK.0 + 1, SERVER_CLOCK.1);
    let (header, packet) = rig.pass(sent.payload([1; 100]).window(1_000).packet());
    assert_eq!((header.key.src, header.key.dst), (source, server));
    assert_eq!((header.seq.0, header.ack.0), (CLIENT.1, SERVER.1));
    assert_eq!(header.window, 250, "in units of 2^9");
    let stamps = options::timestamps(header.options(&packet.bytes)).unwrap();
    assert_eq!(
        (stamps.value, stamps.echo),
        (CLIENT_CLOCK.1 + 1, SERVER_CLOCK.0)
    );

    // The wrap of the server's numbers lies in those 100 bytes.
    let sent = from_server(0, 100).timestamps(SERVER_CLOCK.0 + 5, CLIENT_CLOCK.1 + 1);
    let (header, packet) = rig.pass(sent.payload([2; 50]).window(77).packet());
    assert_eq!((header.key.src, header.key.dst), (listen, client));
    assert_eq!((header.seq.0, header.ack.0), (SERVER.0, CLIENT.0 + 100));
    assert_eq!(header.window, 77);
    let stamps = options::timestamps(header.options(&packet.bytes)).unwrap();
    assert_eq!(
        (stamps.value, stamps.echo),
        (SERVER_CLOCK.1 + 5, CLIENT_CLOCK.0 + 1)
    );

    // SACK edges go with acknowledgements.
    let block = |base: u32| (base.wrapping_add(200), base.wrapping_add(300));
    let (_, packet) = rig.pass(from_server(50, 100).sack(&[block(CLIENT.1)]).packet());
    let Ok(Classified::Tcp(header)) = classify(&packet.bytes) else {
        panic!()
    };
    let edges = &header.options(&packet.bytes)[4..12];
    let expected = [
        block(CLIENT.0).0.to_be_bytes(),
        block(CLIENT.0).1.to_be_bytes(),
    ]
    .concat();
    assert_eq!(edges, expected);
}

#[test]
fn it_ends_like_any_connection() {
    let mut rig = Rig::new();
    let fin = TcpFlags::FIN | TcpFlags::ACK;
    let (header, _) = rig.pass(from_client(0, 0).flags(fin).packet());
    assert_eq!(header.seq.0, CLIENT.1);
    rig.pass(from_server(0, 1).packet());
    assert_eq!(rig.state(), Some(State::AckRelayed1));
    let closing = rig.datapath.release_pair(now(2), rig.line, rig.number);
    assert_eq!(closing.map(|_| ()), Err(PairKept::Busy));
    rig.pass(from_server(0, 1).flags(fin).packet());
    let (header, _) = rig.pass(from_client(1, 1).packet());
    assert_eq!((header.seq.0, header.ack.0), (CLIENT.1 + 1, SERVER.1 + 1));
    assert_eq!(rig.state(), Some(State::TimeWait));
    // Its client's next connection is another process's: the rest makes way for it.
    let mut syn = from_client(100_000, 0).flags(TcpFlags::SYN).packet();
    let verdict = rig.datapath.handle_packet(now(2), &mut syn);
    assert!(matches!(verdict, Verdict::Drop(_)));
    assert_eq!((rig.state(), rig.datapath.pair_count()), (None, 0));
    rig.datapath.check_invariants();
}

#[test]
fn resets_of_the_switch_have_the_numbers_that_each_end_expects() {
    let mut rig = Rig::new();
    rig.pass(from_client(0, 0).payload([1; 10]).packet());
    assert!(rig.datapath.end_pair(now(2), rig.line, rig.number));
    assert!(!rig.datapath.end_pair(now(2), rig.line, rig.number));
    let [client, _, _, server] = ends();
    let resets = rig.own();
    let to = |end: Endpoint| {
        let mut all = resets.iter();
        all.find(|one| one.key.dst == end && one.flags.contains(TcpFlags::RST))
            .unwrap()
    };
    assert_eq!(to(client).seq.0, SERVER.0);
    assert_eq!(
        to(server).seq.0,
        CLIENT.1.wrapping_add(10),
        "in the server's numbers"
    );
    rig.datapath.check_invariants();
}

#[test]
fn it_is_given_up_only_when_nothing_is_in_flight() {
    let mut rig = Rig::new();
    let released = |rig: &mut Rig| rig.datapath.release_pair(now(2), rig.line, rig.number);
    rig.pass(from_client(0, 0).payload([1; 10]).packet());
    assert_eq!(released(&mut rig).map(|_| ()), Err(PairKept::Busy));
    rig.pass(from_server(0, 10).payload([2; 20]).window(500).packet());
    assert_eq!(released(&mut rig).map(|_| ()), Err(PairKept::Busy));
    rig.pass(from_client(10, 20).window(400).packet());
    let other = rig.datapath.release_pair(now(2), rig.line, rig.number + 1);
    assert_eq!(other.map(|_| ()), Err(PairKept::Gone));
    let state = released(&mut rig).unwrap();
    assert_eq!(state.record.client_nxt, CLIENT.0 + 10);
    assert_eq!(state.record.server_nxt, SERVER.1 + 20);
    let windows = state.pair.seen.map(|seen| seen.unwrap().window);
    assert_eq!(windows, [400, 500]);
    assert_eq!(released(&mut rig).map(|_| ()), Err(PairKept::Gone));
    rig.datapath.check_invariants();
    // Its addresses can be handed off again.
    assert!(rig.datapath.adopt_pair(now(3), &pairing(), &[]).is_ok());
}

/// A fast path outside has the pair from the first moment, tells what it has seen when the engine
/// takes the pair back, and learns what the engine has.
#[test]
fn a_fast_path_carries_it_and_says_what_it_has_seen() {
    let mut rig = Rig::new();
    let double = FastPathDouble::connecting();
    rig.datapath.set_fast_path(now(1), Box::new(double.clone()));
    let (line, second) = (rig.line, pairing().second);
    assert!(double.told(|told| told.lines.is_empty()));
    rig.pass(from_client(0, 0).payload([1; 10]).window(300).packet());
    let mut seen = double.told(|told| {
        assert!(told.lines.contains_key(&line));
        assert_eq!(told.pairs[&line].0, second);
        told.pairs[&line].1
    });
    assert_eq!(seen[0].map(|seen| seen.window), Some(300));
    assert_eq!(seen[1], None);
    // Its engine's answer, and bytes of the server's, pass by the fast path.
    let other = |told: &mut fairlead_testkit::Told, acked: u32, seen: [Option<Seen>; 2]| {
        let kept = told.lines.get_mut(&line).unwrap();
        kept.record.server_nxt = kept.record.server_nxt.wrapping_add(acked);
        told.pairs.get_mut(&line).unwrap().1 = seen;
    };
    let first = Seen {
        ack: CLIENT.0 + 10,
        window: 500,
        timestamp: None,
    };
    seen[1] = Some(first);
    double.told(|told| other(told, 20, seen));
    let (_, state) = rig.datapath.pairs(now(2)).next().unwrap();
    assert_eq!(state.record.server_nxt, SERVER.1 + 20, "as it is now");
    let release = |rig: &mut Rig| rig.datapath.release_pair(now(3), rig.line, rig.number);
    assert_eq!(release(&mut rig).map(|_| ()), Err(PairKept::Busy));
    assert!(double.told(|told| told.lines.is_empty()), "taken back");
    // Packets are the engine's then, until one of them has passed.
    rig.pass(from_client(10, 0).window(400).packet());
    assert!(double.told(|told| told.lines.contains_key(&line)));
    seen[0] = Some(Seen {
        ack: SERVER.1 + 20,
        window: 400,
        timestamp: None,
    });
    double.told(|told| other(told, 0, seen));
    let state = release(&mut rig).unwrap();
    assert_eq!(state.record.client_nxt, CLIENT.0 + 10);
    assert_eq!(state.pair.seen, seen);
    assert!(double.told(|told| told.pairs.is_empty() && told.lines.is_empty()));
    rig.datapath.check_invariants();
    // The next one is the fast path's at once.
    rig.datapath.adopt_pair(now(4), &pairing(), &[]).unwrap();
    assert_eq!(double.told(|told| told.lines.len()), 1);
}

/// An error about what was sent to either end goes to the other one, who knows the packet by its
/// own numbers.
#[test]
fn errors_of_routers_quote_what_each_end_has_sent() {
    let [client, listen, source, server] = ends();
    let mut rig = Rig::new();
    let (_, to_server) = rig.pass(from_client(0, 0).payload([1; 1_400]).packet());
    let (_, to_client) = rig.pass(from_server(0, 0).payload([2; 1_300]).packet());
    let router = endpoint("10.2.0.99:1").addr;
    for (sent, told, by, seq, ack) in [
        (&to_server, source, (client, listen), CLIENT.0, SERVER.0),
        (&to_client, listen, (server, source), SERVER.1, CLIENT.1),
    ] {
        let mut error = Packet::default();
        let (to, bytes) = (told.addr, &sent.bytes);
        fairlead_wire::build::emit_icmp_too_big(&router, &to, 1_200, bytes, &mut error.bytes);
        let verdict = rig.datapath.handle_packet(now(2), &mut error);
        assert_eq!(verdict, Verdict::Transmit);
        let Ok(Classified::Icmp(message)) = classify(&error.bytes) else {
            panic!("no message")
        };
        assert_eq!(message.dst, by.0.addr);
        let quote = message.quote.unwrap();
        assert_eq!(
            (quote.key.src, quote.key.dst, quote.seq.0),
            (by.0, by.1, seq)
        );
        let at = usize::from(quote.tcp_at) + 8;
        let quoted = u32::from_be_bytes(*error.bytes[at..].first_chunk().unwrap());
        assert_eq!(quoted, ack);
    }
}

/// The next run takes it over, also where its own configuration has the same server, and knows
/// nothing of the proxy's addresses otherwise.
#[test]
fn the_next_run_takes_it_over() {
    let mut rig = Rig::new();
    rig.pass(from_client(0, 0).payload([1; 10]).window(300).packet());
    let (line, state) = rig.datapath.pairs(now(2)).next().unwrap();
    let notes = b"whose it is".to_vec();
    let mut pairs = std::collections::BTreeMap::new();
    pairs.insert(
        line,
        KeptPair {
            second: state.pair.second,
            seen: state.pair.seen,
            notes: notes.clone(),
        },
    );
    let kept = Kept {
        record: state.record,
        given: false,
    };
    let estate = Estate {
        endpoints: rig.datapath.endpoints().clone(),
        records: vec![(line, kept)],
        pairs,
        ..Estate::default()
    };
    let used = estate.in_use();
    assert!(
        used.listens.is_empty() && used.nats.is_empty(),
        "the host's"
    );
    let [_, listen, _, server] = ends();
    for most in [0, 2] {
        let pool = Pool::new("p", vec![Server::new(server)]);
        let mut service = Service::new("s", vec![endpoint("10.1.0.3:80")], Protocol::Tcp);
        service.routes = vec![Route::new("all", Vec::new(), PoolId(0))];
        let config = Config {
            pairs: most,
            ..Config::new(vec![service], vec![pool])
        };
        let mut datapath = Datapath::resume(config, 1.into(), now(0), &estate).unwrap();
        let adopted = datapath.adopt(now(3), &estate);
        assert_eq!((adopted.connections, adopted.misfits.len()), (1, 0));
        assert_eq!(adopted.of_retired_services + adopted.to_retired_servers, 0);
        assert_eq!(datapath.pair_notes(line), notes);
        let named = datapath.endpoints();
        let servers = named.servers.iter().filter(|one| **one == server).count();
        assert_eq!(servers, 2, "the pair's, and the configuration's");
        assert!(named.listens.contains(&listen));
        let mut again = Rig {
            datapath,
            line,
            number: 1,
        };
        let (header, _) = again.pass(from_server(0, 10).payload([2; 20]).packet());
        assert_eq!((header.seq.0, header.ack.0), (SERVER.0, CLIENT.0 + 10));
        again.pass(from_client(10, 20).packet());
        let released = again.datapath.release_pair(now(4), line, 1).unwrap();
        assert_eq!(released.record.client_nxt, CLIENT.0 + 10);
        // Its places are free, the configuration's is not.
        let named = again.datapath.endpoints();
        let servers = named.servers.iter().filter(|one| **one == server).count();
        assert_eq!((servers, named.listens.contains(&listen)), (1, false));
        again.datapath.check_invariants();
    }
    // Without what its record lacks there is no pair.
    let lacking = Estate {
        pairs: Default::default(),
        ..estate
    };
    let config = Config::new(Vec::new(), Vec::new());
    let mut datapath = Datapath::resume(config, 1.into(), now(0), &lacking).unwrap();
    let adopted = datapath.adopt(now(3), &lacking);
    assert_eq!(adopted.misfits[&Misfit::Pair], 1);
    datapath.check_invariants();
}

#[test]
fn limits_and_keys_in_use_refuse() {
    let mut rig = Rig::new();
    let again = rig.datapath.adopt_pair(now(1), &pairing(), &[]);
    assert_eq!(again, Err(PairRefused::KeyInUse));
    let mut other = pairing();
    other.client.port += 1;
    assert_eq!(
        rig.datapath.adopt_pair(now(1), &other, &[]),
        Err(PairRefused::KeyInUse)
    );
    other.source.port += 1;
    assert!(rig.datapath.adopt_pair(now(1), &other, &[]).is_ok());
    other.client.port += 1;
    other.source.port += 1;
    assert_eq!(
        rig.datapath.adopt_pair(now(1), &other, &[]),
        Err(PairRefused::Full),
        "2 at most"
    );
    rig.datapath.drain(now(2));
    assert_eq!(
        rig.datapath.adopt_pair(now(2), &other, &[]),
        Err(PairRefused::Full)
    );
    rig.datapath.check_invariants();
}
