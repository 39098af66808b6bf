//! The server's SYN-ACK: two switches with the same past, one of which leaves the splice to the
//! kernel. What the other sends, and what it then knows, is what the kernel sends and knows.

use core::time::Duration;

use aya::maps::{Array, Map, MapData, loaded_maps};
use fairlead_base::{DropReason, Instant, Packet, Rng, SeqNumber};
use fairlead_bpf_loader::{Fate, FlowTable, Kernel, Mode};
use fairlead_splice::config::{
    Config, Limits, Pool, PoolId, Protocol, Route, Server, Service, Source,
};
use fairlead_splice::{Switch, Verdict};
use fairlead_tcp::join::Terms;
use fairlead_tcp::ticket::TICKETS_MAX;
use fairlead_tcp::{ConnectOffload, Join, Line, Record, State};
use fairlead_testkit::{Segment, endpoint, segment, tcp};
use fairlead_wire::{Classified, SynOptions, TcpFlags, Timestamps, classify};

use super::{COOKIE, frame_of, on_a_switch, run};

pub(super) const NOW: Instant = Instant::from_millis(1_000);

pub(super) fn config(v6: bool, source: Source) -> Config {
    let (listen, server, nat) = match v6 {
        false => ("10.1.0.3:80", "10.2.0.1:8081", "100.64.0.1:0"),
        true => ("[fd01::3]:80", "[fd02::1]:8081", "[fd64::1]:0"),
    };
    let route = Route {
        retries: 0,
        ..Route::new("all", Vec::new(), PoolId(0))
    };
    let service = Service {
        source,
        routes: vec![route],
        ..Service::new("web", vec![endpoint(listen)], Protocol::Http)
    };
    let pool = Pool {
        connect_timeout: Duration::from_secs(2),
        probe_interval: Duration::from_secs(86_400),
        ..Pool::new("only", vec![Server::new(endpoint(server))])
    };
    Config {
        snat: vec![endpoint(nat).addr],
        limits: Limits {
            connections: 64,
            ..Limits::default()
        },
        ..Config::new(vec![service], vec![pool])
    }
}

/// Lets a switch have a packet; what it sends.
pub(super) fn put(switch: &mut Switch, packet: &Packet) -> Vec<Packet> {
    let Ok(Classified::Tcp(header)) = classify(&packet.bytes) else {
        panic!("a TCP packet");
    };
    let mut packet = packet.clone();
    let found = switch.table().find(&header.key);
    let verdict = switch.handle_packet(NOW, &mut packet, &header, found);
    let mut sent = Vec::from_iter((verdict == Verdict::Transmit).then_some(packet));
    let mut own = Packet::default();
    while switch.poll_transmit(&mut own) {
        sent.push(own.clone());
    }
    sent
}

/// The same, as bytes.
fn bytes_of(sent: &[Packet]) -> Vec<&[u8]> {
    sent.iter().map(|packet| &packet.bytes[..]).collect()
}

pub(super) fn syn_ack(syn: &Packet, isn: u32, options: &SynOptions) -> Packet {
    let header = tcp(syn);
    segment(header.key.dst, header.key.src)
        .flags(TcpFlags::SYN | TcpFlags::ACK)
        .seq(isn)
        .ack(header.seq.0.wrapping_add(1))
        .window(29_000)
        .syn_options(options)
        .packet()
}

/// A switch whose server honours everything.
pub(super) fn probed(config: &Config) -> Switch {
    let mut switch = Switch::new(config.clone(), 42.into(), NOW).unwrap();
    switch.handle_timeout(NOW);
    let mut probe = Packet::default();
    assert!(switch.poll_transmit(&mut probe));
    let all = SynOptions {
        mss: Some(1_460),
        window_scale: Some(7),
        sack_permitted: true,
        timestamps: Some(Timestamps { value: 1, echo: 0 }),
    };
    put(&mut switch, &syn_ack(&probe, 7, &all));
    switch
}

/// A client of one round: what it offers, asks and has for a window.
pub(super) struct Client {
    pub(super) asked: SynOptions,
    pub(super) request: Vec<u8>,
    pub(super) first: Segment,
}

impl Client {
    fn new(rng: &mut Rng, config: &Config) -> Self {
        let vip = config.services[0].listen[0];
        let v4 = vip.addr.is_v4();
        let from = if v4 {
            "10.1.0.9:40000"
        } else {
            "[fd01::9]:40000"
        };
        let stamps = Timestamps {
            value: rng.next_u64() as u32,
            echo: 0,
        };
        let asked = SynOptions {
            mss: Some(if rng.chance(800_000) { 1_460 } else { 9_000 }),
            window_scale: rng.chance(800_000).then(|| rng.below(15) as u8),
            sack_permitted: rng.chance(500_000),
            timestamps: rng.chance(700_000).then_some(stamps),
        };
        let mut request = b"GET /a HTTP/1.1\r\nHost: a.example\r\nX: ".to_vec();
        let pad = [0, 1, 2, 700, 1_300, 1_360, 1_380, 1_400, 1_420][rng.below(9) as usize];
        request.extend(vec![b'x'; pad + rng.below(9) as usize]);
        request.extend(b"\r\n\r\n");
        let first = segment(endpoint(from), vip).seq(rng.next_u64() as u32);
        Self {
            asked,
            request,
            first,
        }
    }

    /// Lets a switch have the handshake; the segment with the request.
    pub(super) fn shake_hands(&self, switch: &mut Switch, window: u16) -> Packet {
        let syn = self.first.clone().flags(TcpFlags::SYN);
        let syn = syn.syn_options(&self.asked).packet();
        let isn = tcp(&syn).seq.0;
        let answer = put(switch, &syn).remove(0);
        let (header, told) = (tcp(&answer), tcp(&answer));
        let offered = SynOptions::parse(told.options(&answer.bytes)).unwrap();
        let mut data = self.first.clone().flags(TcpFlags::ACK | TcpFlags::PSH);
        data = data.seq(isn.wrapping_add(1)).window(window);
        data = data.ack(header.seq.0.wrapping_add(1));
        if let Some(ours) = offered.timestamps {
            data = data.timestamps(ours.echo.wrapping_add(3), ours.value);
        }
        data.payload(&self.request).packet()
    }

    /// Lets a switch have the handshake and the request; the SYN to the server.
    fn ask(&self, switch: &mut Switch, window: u16) -> Packet {
        let data = self.shake_hands(switch, window);
        put(switch, &data).remove(0)
    }
}

/// What a server answers, usual or not.
pub(super) fn answered(rng: &mut Rng, asked: &SynOptions) -> SynOptions {
    let mss = [1_460, 1_460, 1_460, 9_000, 536, 0][rng.below(6) as usize];
    SynOptions {
        mss: (mss != 0).then_some(mss),
        window_scale: if rng.chance(900_000) {
            asked.window_scale.map(|_| rng.below(15) as u8)
        } else {
            None
        },
        sack_permitted: asked.sack_permitted && rng.chance(800_000),
        timestamps: asked.timestamps.map(|ours| Timestamps {
            value: rng.next_u64() as u32,
            echo: ours.value,
        }),
    }
}

pub(super) fn the_record(switch: &Switch, client: &Client) -> Record {
    let key = tcp(&client.first.clone().packet()).key;
    let found = switch.table().find(&key).expect("on record");
    *switch.table().record(found.line)
}

/// True when the kernel joined it.
fn one_join(rng: &mut Rng, mode: Mode, interface: u32) -> bool {
    let v6 = rng.chance(400_000);
    let source = [Source::Snat, Source::Transparent][rng.below(2) as usize];
    let config = config(v6, source);
    let (mut alone, mut pair) = (probed(&config), probed(&config));
    let endpoints = pair.table().endpoints().clone();
    let origin = fairlead_bpf_loader::monotonic_ns() - NOW.as_millis() * 1_000_000;
    let (mut kernel, table) = Kernel::load(mode, 64, &endpoints, COOKIE, origin).unwrap();
    super::tell_interfaces(&mut kernel);
    pair.set_fast_path(NOW, Box::new(table));
    let client = Client::new(rng, &config);
    let window = rng.next_u64() as u16;
    let syn = client.ask(&mut alone, window);
    assert_eq!(client.ask(&mut pair, window).bytes, syn.bytes);
    let options = answered(
        rng,
        &SynOptions::parse(tcp(&syn).options(&syn.bytes)).unwrap(),
    );
    let mut packet = syn_ack(&syn, rng.next_u64() as u32, &options);
    let spoilt = rng.chance(100_000);
    if spoilt {
        let at = usize::from(tcp(&packet).tcp_at) + 16;
        packet.bytes[at] ^= 0x5a;
    }
    let trial = kernel.try_frame(&frame_of(&packet), interface, 1).unwrap();
    let sent = put(&mut alone, &packet);
    if trial.fate == Fate::Pass {
        assert_eq!(trial.frame, frame_of(&packet), "left as it was");
        // The engine finds it as it was.
        assert_eq!(bytes_of(&put(&mut pair, &packet)), bytes_of(&sent));
    } else {
        assert_eq!(trial.fate, Fate::Redirect);
        assert!(!spoilt, "a wrong checksum is not believed");
        assert_eq!(sent.len(), 1, "one segment");
        assert_eq!(trial.frame[14..], sent[0].bytes, "{options:?}");
        assert_eq!(
            trial.frame[..6],
            super::ETHERNET[6..],
            "back to where it came from"
        );
    }
    // A packet from the client has the engine learn of it.
    let next = client
        .first
        .clone()
        .flags(TcpFlags::ACK | TcpFlags::URG)
        .packet();
    let (mine, other) = (put(&mut pair, &next), put(&mut alone, &next));
    assert_eq!(bytes_of(&mine), bytes_of(&other));
    let (mut ours, mut theirs) = (the_record(&pair, &client), the_record(&alone, &client));
    (ours.last_active, theirs.last_active) = (0, 0);
    assert_eq!(format!("{ours:?}"), format!("{theirs:?}"));
    let (a, b) = (pair.snapshot(), alone.snapshot());
    assert_eq!(
        (a.spliced, a.live, a.setups, a.buffered_bytes),
        (b.spliced, b.live, b.setups, b.buffered_bytes)
    );
    let counted = kernel.counters().unwrap();
    assert_eq!(counted.joins == 1, trial.fate == Fate::Redirect);
    let bytes = match counted.joins {
        0 => (0, 0),
        _ => (packet.bytes.len() as u64, trial.frame.len() as u64 - 14),
    };
    assert_eq!((counted.ended_bytes, counted.made_bytes), bytes);
    counted.joins == 1
}

fn joins_agree(mode: Mode) {
    on_a_switch(|_, interface| {
        let mut rng = Rng::new(21);
        let joined = (0..60).filter(|_| one_join(&mut rng, mode, interface));
        let joined = joined.count();
        assert!((20..55).contains(&joined), "most, not all: {joined} of 60");
    });
}

#[test]
fn tc_joins_as_the_engine_does() {
    run(|| joins_agree(Mode::Tc));
}

#[test]
fn xdp_joins_as_the_engine_does() {
    run(|| joins_agree(Mode::XdpNative));
}

/// An armed connection with these first bytes, and its server's SYN-ACK of a header of 28.
fn armed(table: &mut FlowTable, payload: &[u8]) -> Packet {
    let (mut record, client, server) = super::record(&mut Rng::new(5), false, true);
    (record.state, record.flags) = (State::SynSent, 0);
    let join = Join {
        terms: Terms {
            dseq: SeqNumber(1),
            asked_scale: Some(7),
            offered_scale: Some(7),
            our_ts: 0,
        },
        client_ts: 0,
        client_window: 1_000,
        device_mss: 1_460,
        payload,
    };
    assert!(table.arm(Line(3), 0, &record, &join, [&client, &server]));
    let options = SynOptions {
        mss: Some(1_460),
        window_scale: Some(7),
        ..SynOptions::default()
    };
    segment(server.src, server.dst)
        .flags(TcpFlags::SYN | TcpFlags::ACK)
        .ack(record.client_isn + 1)
        .window(29_000)
        .syn_options(&options)
        .packet()
}

/// What turns out to be the engine's goes there whole, or it would miss the last options: so no
/// packet is made shorter before all is settled.
fn a_syn_ack_is_made_no_shorter(mode: Mode) {
    on_a_switch(|_, interface| {
        for (payload, fate) in [(&b"1234567"[..], Fate::Pass), (b"12345678", Fate::Redirect)] {
            let (kernel, mut table) = super::kernel(mode, 0);
            let frame = frame_of(&armed(&mut table, payload));
            assert_eq!(frame.len(), 14 + 20 + 28);
            let trial = kernel.try_frame(&frame, interface, 1).unwrap();
            assert_eq!(trial.fate, fate, "{payload:?}");
            assert_eq!(trial.frame.len(), frame.len());
            assert_eq!(trial.frame == frame, fate == Fate::Pass, "left as it was");
        }
    });
}

#[test]
fn tc_makes_a_syn_ack_no_shorter() {
    run(|| a_syn_ack_is_made_no_shorter(Mode::Tc));
}

#[test]
fn xdp_makes_a_syn_ack_no_shorter() {
    run(|| a_syn_ack_is_made_no_shorter(Mode::XdpNative));
}

/// `struct fl_join` as bytes.
#[derive(Clone, Copy)]
#[repr(C, align(8))]
struct RawJoin([u8; 1_536]);

// SAFETY: plain bytes.
unsafe impl aya::Pod for RawJoin {}

/// Where the payload's length is in it, and the payload.
const PAYLOAD_BYTES_AT: usize = 20;
const PAYLOAD_AT: usize = 32;

/// Makes the payload that waits in the first place behind those of tickets an impossible one,
/// longer than a place. It is found among the maps of all processes by its content.
fn spoil(payload: &[u8]) {
    let all = loaded_maps().flatten();
    let named = all.filter(|map| map.name() == b"fl_joins");
    // Those of others come and go meanwhile.
    let opened = named.filter_map(|map| MapData::from_id(map.id()).ok());
    let mut spoilt = 0;
    for map in opened.filter_map(|map| Map::from_map_data(map).ok()) {
        let mut places: Array<MapData, RawJoin> = map.try_into().unwrap();
        let Ok(mut first) = places.get(&TICKETS_MAX, 0) else {
            continue;
        };
        if first.0[PAYLOAD_AT..].starts_with(payload) {
            first.0[PAYLOAD_BYTES_AT..][..2].copy_from_slice(&1_600u16.to_ne_bytes());
            places.set(TICKETS_MAX, first, 0).unwrap();
            spoilt += 1;
        }
    }
    assert_eq!(spoilt, 1);
}

/// A join that comes to nothing because its segment cannot be made.
fn what_fails_is_counted_once(mode: Mode) {
    on_a_switch(|_, interface| {
        let (kernel, mut table) = super::kernel(mode, 0);
        let (mut record, client, server) = super::record(&mut Rng::new(5), false, true);
        (record.state, record.flags) = (State::SynSent, 0);
        let payload = format!("GET / by {:?} {mode:?}", std::thread::current().id());
        let join = Join {
            terms: Terms {
                dseq: SeqNumber(1),
                asked_scale: None,
                offered_scale: None,
                our_ts: 0,
            },
            client_ts: 0,
            client_window: 1_000,
            device_mss: 9_000,
            payload: payload.as_bytes(),
        };
        assert!(table.arm(Line(3), 0, &record, &join, [&client, &server]));
        spoil(payload.as_bytes());
        let options = SynOptions {
            mss: Some(9_000),
            ..SynOptions::default()
        };
        let packet = segment(server.src, server.dst)
            .flags(TcpFlags::SYN | TcpFlags::ACK)
            .ack(record.client_isn + 1)
            .window(29_000)
            .syn_options(&options)
            .packet();
        let trial = kernel.try_frame(&frame_of(&packet), interface, 1).unwrap();
        assert_eq!(trial.fate, Fate::Drop);
        let counted = kernel.counters().unwrap();
        assert_eq!(counted.drops.of(DropReason::TransmitFailed), 1);
        let ended = packet.bytes.len() as u64;
        assert_eq!((counted.ended_bytes, counted.made_bytes), (ended, 0));
    });
}

#[test]
fn tc_counts_a_join_that_fails_once() {
    run(|| what_fails_is_counted_once(Mode::Tc));
}

#[test]
fn xdp_counts_a_join_that_fails_once() {
    run(|| what_fails_is_counted_once(Mode::XdpNative));
}
