//! The kernel program against the Rust datapath: the same packets, the same bytes.

mod access;
mod answering;
mod beginning;
mod closing;
mod heads;
mod hits;
mod joining;
mod pairs;
mod processors;
mod sleeping;
mod strays;
mod sums;
mod syns;
mod taking;
mod tcb;
mod translating;
mod unbegun;
mod vlans;
mod ways;

use fairlead_base::{Address, DropReason, Endpoint, FlowKey, Instant, Packet, Rng, SeqNumber};
use fairlead_bpf_loader::{Exit, Fate, FlowTable, FlowTableKind, Kernel, Mode, is_built_in};
use fairlead_netns::trial::{Needs, in_namespaces, name_of, skip};
use fairlead_netns::{Host, World};
use fairlead_splice::translate;
use fairlead_tcp::record::{TRANSPARENT, flag};
use fairlead_tcp::{
    CookieKey, Endpoints, FlowOffload, Line, ListenOffer, Promise, Record, Refusal, Side, State,
    SynOffload,
};
use fairlead_testkit::{endpoint, segment, tcp};
use fairlead_wire::{SynOptions, TcpFlags, Timestamps};

const COOKIE: (u64, u64) = (0x0123_4567_89ab_cdef, 0xfedc_ba98_7654_3210);
const ETHERNET: [u8; 12] = [2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2];

/// Runs `test` on a forwarding host between clients (eth `c`, whose index it is told) and servers
/// (eth `s`), whose neighbours are known. The far ends are up first: a carrier that comes later is
/// noticed up to a second later.
fn on_a_switch<T: Send>(test: impl FnOnce(&Host, u32) -> T + Send) -> T {
    let mut world = World::new().unwrap();
    let host = world.host("switch").unwrap();
    host.sysctl("net.ipv4.ip_forward", "1").unwrap();
    host.sysctl("net.ipv6.conf.all.forwarding", "1").unwrap();
    host.ip(
        "link add c address 02:00:00:00:00:01 mtu 4000 type veth peer name cx\n\
         link add s address 02:00:00:00:00:01 mtu 4000 type veth peer name sx\n\
         link set cx up\nlink set sx up\nlink set c up\nlink set s up\n\
         addr add 10.1.0.1/24 dev c\naddr add 10.2.0.254/24 dev s\n\
         addr add fd01::1/64 dev c nodad\naddr add fd02::fe/64 dev s nodad\n\
         neigh add 10.1.0.9 lladdr 02:00:00:00:00:09 dev c\n\
         neigh add 10.2.0.1 lladdr 02:00:00:00:00:11 dev s\n\
         neigh add fd01::9 lladdr 02:00:00:00:00:09 dev c\n\
         neigh add fd02::1 lladdr 02:00:00:00:00:11 dev s\n",
    )
    .unwrap();
    host.enter(|| test(&host, interface_index(c"c"))).unwrap()
}

/// The index of an interface of this thread's namespace.
fn interface_index(name: &std::ffi::CStr) -> u32 {
    // SAFETY: a string that ends in a zero byte, only read.
    unsafe { libc::if_nametoindex(name.as_ptr()) }
}

fn endpoints() -> Endpoints {
    Endpoints {
        listens: vec![endpoint("10.1.0.3:80"), endpoint("[fd01::3]:80")],
        servers: vec![endpoint("10.2.0.1:8081"), endpoint("[fd02::1]:8081")],
        nats: vec![Address::v4([100, 64, 0, 1])],
    }
}

/// In the namespace of [`on_a_switch`], whose interfaces take what is sent.
fn kernel(mode: Mode, origin_ns: u64) -> (Kernel, FlowTable) {
    let (mut kernel, table) = Kernel::load(mode, 64, &endpoints(), COOKIE, origin_ns).unwrap();
    tell_interfaces(&mut kernel);
    (kernel, table)
}

fn tell_interfaces(kernel: &mut Kernel) {
    let exits = [c"c", c"s"].map(|name| Exit {
        interface: interface_index(name),
        device: interface_index(name),
        tag: None,
        buffers: false,
    });
    kernel.set_exits(&exits).unwrap();
    let own = ETHERNET.first_chunk().copied().unwrap();
    let addresses = [c"c", c"s"].map(|name| (interface_index(name), own));
    kernel.set_addresses(&addresses).unwrap();
}

fn frame_of(packet: &Packet) -> Vec<u8> {
    let kind: [u8; 2] = if packet.bytes[0] >> 4 == 4 {
        [0x08, 0x00]
    } else {
        [0x86, 0xdd]
    };
    [&ETHERNET[..], &kind, &packet.bytes].concat()
}

/// A record of a splice of either family, and its two keys.
fn record(rng: &mut Rng, v6: bool, transparent: bool) -> (Record, FlowKey, FlowKey) {
    let client = if v6 {
        endpoint("[fd01::9]:40000")
    } else {
        endpoint("10.1.0.9:40000")
    };
    let record = Record {
        client_addr: client.addr,
        client_port: client.port,
        listen: u16::from(v6),
        server: u16::from(v6),
        nat_addr: if transparent || v6 { TRANSPARENT } else { 0 },
        nat_port: 20_000,
        seq_delta: rng.next_u64() as u32,
        ts_delta: if rng.chance(800_000) {
            rng.next_u64() as u32
        } else {
            0
        },
        client_isn: 1_000,
        server_isn: 7,
        client_nxt: 5_000_000,
        server_nxt: if rng.chance(500_000) {
            100
        } else {
            u32::MAX - 100
        },
        state: State::Spliced,
        flags: flag::TIMESTAMPS,
        client_shift: (rng.below(9) as i8) - 4,
        server_shift: (rng.below(9) as i8) - 4,
        ..Record::default()
    };
    let keys = (
        record.client_key(&endpoints()),
        record.server_key(&endpoints()),
    );
    (record, keys.0, keys.1)
}

#[test]
fn an_overloaded_engine_has_syns_dropped_and_counted() {
    run(|| {
        on_a_switch(|_, interface| {
            let (mut kernel, mut table) = kernel(Mode::Tc, 0);
            let offer = ListenOffer {
                listen: 0,
                mss: 1_460,
                window: 16_384,
                window_scale: Some(7),
                scale_parity: false,
                sack: true,
                timestamps: true,
                answer: true,
                await_client: true,
                begin: false,
                host: false,
            };
            table.set_offer(endpoint("10.1.0.3:80"), &offer);
            let dropped = |share, table: &mut FlowTable, kernel: &mut Kernel| {
                table.set_refusal(Refusal {
                    syns: share,
                    unproven: false,
                });
                let syn = |port| {
                    let from = endpoint(&format!("10.1.0.9:{port}"));
                    let packet = segment(from, endpoint("10.1.0.3:80"));
                    frame_of(&packet.flags(TcpFlags::SYN).packet())
                };
                let fates = (0..400).map(|port| {
                    let frame = syn(2_000 + port);
                    kernel.try_frame(&frame, interface, 1).unwrap().fate
                });
                fates.filter(|fate| *fate == Fate::Drop).count()
            };
            assert_eq!(dropped(0, &mut table, &mut kernel), 0);
            let half = dropped(1 << 31, &mut table, &mut kernel);
            assert!((120..280).contains(&half), "{half} of 400");
            assert!(dropped(u32::MAX, &mut table, &mut kernel) >= 399);
            assert_eq!(dropped(0, &mut table, &mut kernel), 0);
            let counters = kernel.counters().unwrap();
            let refused = counters.drops.of(fairlead_base::DropReason::Overloaded);
            assert!(refused >= 399 + half as u64);
            assert!(counters.syn_acks >= 800);
            // While the switch drains, each SYN costs the engine an answer.
            let draining = ListenOffer {
                answer: false,
                ..offer
            };
            table.set_offer(endpoint("10.1.0.3:80"), &draining);
            assert_eq!(dropped(0, &mut table, &mut kernel), 0);
            assert!(dropped(u32::MAX, &mut table, &mut kernel) >= 399);
        });
    });
}

/// A packet for the engine: straight to its device where frames can lose their Ethernet header on
/// the way, by the routes otherwise; in both cases as it is. What is not ours goes on.
#[test]
fn what_the_engine_must_see_goes_to_its_device() {
    run(|| {
        on_a_switch(|_, interface| {
            let data = |to: &str| {
                let packet = segment(endpoint("10.1.0.9:2000"), endpoint(to));
                let packet = packet.flags(TcpFlags::ACK).payload(b"GET /");
                frame_of(&packet.packet())
            };
            for (mode, straight) in [(Mode::Tc, Fate::Redirect), (Mode::XdpNative, Fate::Pass)] {
                let (kernel, mut table) = kernel(mode, 0);
                table.set_offer(endpoint("10.1.0.3:80"), &OFFER);
                let fate = |frame: &[u8]| {
                    let trial = kernel.try_frame(frame, interface, 1).unwrap();
                    assert_eq!(trial.frame, frame, "left as it was");
                    trial.fate
                };
                assert_eq!(fate(&data("10.1.0.3:80")), Fate::Pass);
                table.set_engine(interface).unwrap();
                assert_eq!(fate(&data("10.1.0.3:80")), straight);
                assert_eq!(fate(&data("10.1.0.3:81")), Fate::Pass, "not ours");
                // A SYN in the service's own name is no client's.
                let own = segment(endpoint("10.1.0.3:2000"), endpoint("10.1.0.3:80"));
                let own = frame_of(&own.flags(TcpFlags::SYN).packet());
                assert_eq!(fate(&own), straight);
                table.set_refusal(Refusal {
                    syns: 1,
                    unproven: false,
                });
                assert_eq!(fate(&data("10.1.0.3:80")), straight, "kept");
            }
        });
    });
}

/// Floods of anything but SYNs prove nothing either: under pressure they end in the kernel.
#[test]
fn segments_without_a_good_cookie_are_refused_for_an_overloaded_engine() {
    run(|| {
        on_a_switch(|_, interface| {
            let modes = [Mode::Tc, Mode::XdpNative];
            // Without answers while the switch drains: what proves itself is the engine's.
            for (mode, answer) in modes
                .into_iter()
                .flat_map(|one| [(one, true), (one, false)])
            {
                let origin = fairlead_bpf_loader::monotonic_ns() - 1_000_000_000;
                let (kernel, mut table) = kernel(mode, origin);
                let offer = ListenOffer { answer, ..OFFER };
                table.set_offer(endpoint("10.1.0.3:80"), &offer);
                let (from, to) = (endpoint("10.1.0.9:2000"), endpoint("10.1.0.3:80"));
                let key = FlowKey { src: from, dst: to };
                let promise = Promise {
                    mss: 1_460,
                    window_scale: None,
                    sack: false,
                    scale_parity: false,
                };
                let cookies = CookieKey::new(COOKIE.0, COOKIE.1);
                let now = Instant::from_millis(1_000);
                let cookie = cookies.make(&key, SeqNumber(500), now, promise);
                let mut to_engine = |unproven, ack: SeqNumber, payload: &[u8]| {
                    table.set_refusal(Refusal { syns: 0, unproven });
                    let before = kernel.counters().unwrap();
                    let packet = segment(from, to).seq(501).ack(ack.0).flags(TcpFlags::ACK);
                    let frame = frame_of(&packet.payload(payload).packet());
                    kernel.try_frame(&frame, interface, 1).unwrap();
                    let after = kernel.counters().unwrap();
                    let dropped = |counters: &fairlead_bpf_loader::Counters| {
                        counters.drops.of(DropReason::Overloaded)
                    };
                    let told = after.to_engine - before.to_engine;
                    assert!(told + dropped(&after) - dropped(&before) <= 1);
                    (told, dropped(&after) - dropped(&before))
                };
                for payload in [&b""[..], b"GET /"] {
                    assert_eq!(to_engine(false, cookie + 2, payload), (1, 0));
                    assert_eq!(to_engine(true, cookie + 2, payload), (0, 1));
                }
                assert_eq!(to_engine(true, cookie + 1, b"GET /"), (1, 0));
                let swallowed = if answer { (0, 0) } else { (1, 0) };
                assert_eq!(to_engine(true, cookie + 1, b""), swallowed);
            }
        });
    });
}

/// What comes back for SYNs that were sent in another's name never wakes the engine.
#[test]
fn resets_of_no_connection_end_in_the_kernel() {
    run(|| {
        on_a_switch(|_, interface| {
            for mode in [Mode::Tc, Mode::XdpNative] {
                let (mut kernel, mut table) = kernel(mode, 0);
                table.set_offer(endpoint("10.1.0.3:80"), &OFFER);
                let reset = |to: &str, flags| {
                    let packet = segment(endpoint("10.1.0.9:2000"), endpoint(to));
                    frame_of(&packet.flags(flags).packet())
                };
                let fate = |kernel: &mut Kernel, frame: Vec<u8>| {
                    kernel.try_frame(&frame, interface, 1).unwrap().fate
                };
                for flags in [TcpFlags::RST, TcpFlags::RST | TcpFlags::ACK] {
                    assert_eq!(fate(&mut kernel, reset("10.1.0.3:80", flags)), Fate::Drop);
                    let other = reset("10.1.0.3:81", flags);
                    assert_eq!(fate(&mut kernel, other), Fate::Pass, "not ours");
                }
                let nonsense = reset("10.1.0.3:80", TcpFlags::RST | TcpFlags::SYN);
                assert_eq!(fate(&mut kernel, nonsense), Fate::Drop);
                let dropped = kernel.counters().unwrap().drops;
                assert_eq!(dropped.of(DropReason::NoConnection), 2);
                assert_eq!(dropped.of(DropReason::BadTcpFlags), 1, "as the engine says");
                // One about a connection that the engine has is the engine's.
                let client = endpoint("10.1.0.9:2000");
                let key = FlowKey {
                    src: client,
                    dst: endpoint("10.1.0.3:80"),
                };
                table.register(Line(3), &key);
                let known = reset("10.1.0.3:80", TcpFlags::RST);
                assert_eq!(fate(&mut kernel, known), Fate::Pass);
            }
        });
    });
}

/// Runs `test`, which is written inside its test function, where programs may be loaded.
fn run<F: FnOnce()>(test: F) {
    let name = name_of::<F>();
    if !is_built_in() {
        return skip(
            name,
            "built without the kernel program: install clang and libbpf-dev",
        );
    }
    in_namespaces(
        name,
        Needs::default(),
        |_| {},
        || match may_use_bpf() {
            Ok(()) => test(),
            Err(why) => skip(name, &why),
        },
    );
}

/// Whether this process may load the program.
fn may_use_bpf() -> Result<(), String> {
    use std::error::Error as _;
    let loaded = Kernel::load(Mode::Tc, 1, &Endpoints::default(), (0, 0), 0);
    let Err(error) = loaded else {
        return Ok(());
    };
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(one) = cause {
        text = format!("{text}: {one}");
        cause = one.source();
    }
    assert!(text.contains("not permitted"), "root, and yet: {text}");
    Err("no right to use BPF (CAP_BPF and CAP_NET_ADMIN, as root)".to_owned())
}

const OFFER: ListenOffer = ListenOffer {
    listen: 0,
    mss: 1_460,
    window: 16_384,
    window_scale: Some(7),
    scale_parity: true,
    sack: true,
    timestamps: true,
    answer: true,
    await_client: true,
    begin: false,
    host: false,
};

fn some_syn(rng: &mut Rng, client: Endpoint, listen: Endpoint) -> Packet {
    let options = SynOptions {
        mss: rng.chance(900_000).then(|| 200 + rng.below(9_000) as u16),
        window_scale: rng.chance(700_000).then(|| rng.below(15) as u8),
        sack_permitted: rng.chance(700_000),
        timestamps: rng.chance(700_000).then(|| Timestamps {
            value: rng.next_u64() as u32,
            echo: 0,
        }),
    };
    segment(client, listen)
        .seq(rng.next_u64() as u32)
        .flags(TcpFlags::SYN)
        .window(64_240)
        .syn_options(&options)
        .packet()
}

fn handshakes_agree(mode: Mode) {
    on_a_switch(|_, interface| {
        let mut rng = Rng::new(11);
        let (mut kernel, mut table) = kernel(mode, 0);
        for (index, listen) in (0..).zip(endpoints().listens) {
            table.set_offer(
                listen,
                &ListenOffer {
                    listen: index,
                    ..OFFER
                },
            );
        }
        let cookies = CookieKey::new(COOKIE.0, COOKIE.1);
        let (mut ended_bytes, mut made_bytes) = (0, 0);
        for round in 0..300u32 {
            let (client, listen) = if round % 3 == 0 {
                (endpoint("[fd01::9]:41000"), endpoints().listens[1])
            } else {
                (endpoint("10.1.0.9:41000"), endpoints().listens[0])
            };
            let packet = some_syn(&mut rng, client, listen);
            let header = tcp(&packet);
            let trial = kernel.try_frame(&frame_of(&packet), interface, 1).unwrap();
            assert_eq!(trial.fate, Fate::Redirect, "{header:?}");
            let answer = Packet::from_bytes(&trial.frame[14..]);
            let told = tcp(&answer);
            assert!(told.checksum_valid(&answer.bytes), "{told:?}");
            assert_eq!(told.key, header.key.reversed());
            assert_eq!(told.flags, TcpFlags::SYN | TcpFlags::ACK);
            assert_eq!(told.ack, header.seq + 1);
            assert_eq!(
                trial.frame[..6],
                ETHERNET[6..],
                "back to where it came from"
            );
            let asked = SynOptions::parse(header.options(&packet.bytes)).unwrap();
            let given = SynOptions::parse(told.options(&answer.bytes)).unwrap();
            assert_eq!(given.mss, Some(1_460));
            assert_eq!(given.window_scale, asked.window_scale.map(|_| 7));
            assert_eq!(given.sack_permitted, asked.sack_permitted);
            assert_eq!(
                given.timestamps.map(|one| one.echo),
                asked.timestamps.map(|one| one.value)
            );
            // The engine knows the cookie for its own, and what it promised.
            let now = monotonic_now();
            let promise = cookies.check(&header.key, header.seq, now, told.seq);
            let promise = promise.expect("a cookie of ours");
            assert_eq!(promise.window_scale, asked.window_scale);
            assert_eq!(promise.sack, asked.sack_permitted);
            assert!(promise.scale_parity);
            assert_eq!(promise.mss, fairlead_tcp::Promise::mss_class(asked.mss));
            // The last ACK of this handshake ends in the kernel, one with another number does not.
            let last = segment(client, listen)
                .seq(header.seq.0.wrapping_add(1))
                .flags(TcpFlags::ACK);
            let good = last.clone().ack(told.seq.0.wrapping_add(1)).packet();
            let other = last.ack(told.seq.0.wrapping_add(1) ^ 0x0400_0000).packet();
            let fate = |kernel: &mut Kernel, packet: &Packet| {
                kernel
                    .try_frame(&frame_of(packet), interface, 1)
                    .unwrap()
                    .fate
            };
            assert_eq!(fate(&mut kernel, &good), Fate::Drop);
            assert_eq!(fate(&mut kernel, &other), Fate::Pass);
            ended_bytes += (packet.bytes.len() + good.bytes.len()) as u64;
            made_bytes += answer.bytes.len() as u64;
        }
        // A RST of no connection.
        let reset = segment(endpoint("10.1.0.9:41000"), endpoints().listens[0]);
        let reset = reset.flags(TcpFlags::RST).packet();
        let trial = kernel.try_frame(&frame_of(&reset), interface, 1).unwrap();
        assert_eq!(trial.fate, Fate::Drop);
        ended_bytes += reset.bytes.len() as u64;
        let counted = kernel.counters().unwrap();
        assert_eq!(
            (counted.syns, counted.syn_acks, counted.acks_swallowed),
            (300, 300, 300)
        );
        assert_eq!(counted.drops.of(DropReason::NoConnection), 1);
        assert_eq!(
            (counted.ended_bytes, counted.made_bytes),
            (ended_bytes, made_bytes)
        );
    });
}

fn monotonic_now() -> fairlead_base::Instant {
    fairlead_base::Instant::from_millis(fairlead_bpf_loader::monotonic_ns() / 1_000_000)
}

#[test]
fn tc_answers_handshakes_as_the_engine_does() {
    run(|| handshakes_agree(Mode::Tc));
}

#[test]
fn xdp_answers_handshakes_as_the_engine_does() {
    run(|| handshakes_agree(Mode::XdpNative));
}

/// A full table: some buckets of the index are full, and more of their keys in the map behind it.
#[test]
fn every_connection_of_a_full_table_is_found_and_no_other() {
    run(|| {
        on_a_switch(|_, interface| {
            // Which keys share a bucket is the secret's doing. With all of these but the first
            // a bucket overflows.
            for seed in [41, 44, 47, 51, 52, 54] {
                fill_a_table(seed, interface);
            }
        });
    });
}

/// 64 connections in a table of 64, which come and go for a while; now and then all of them.
fn fill_a_table(seed: u64, interface: u32) {
    let mut rng = Rng::new(seed);
    let secret = (rng.next_u64(), rng.next_u64());
    let (mut kernel, mut table) = Kernel::load(Mode::Tc, 64, &endpoints(), secret, 0).unwrap();
    tell_interfaces(&mut kernel);
    let mut port = |number: u16| 1_024 + number * 1_000 + rng.below(1_000) as u16;
    let ports: Vec<(u16, u16)> = (0..64).map(|number| (port(number), port(number))).collect();
    let connections: Vec<(Record, FlowKey, FlowKey)> = (0..64u16)
        .map(|number| {
            let (mut record, ..) = record(&mut rng, number % 3 == 0, number % 2 == 0);
            (record.client_port, record.nat_port) = ports[usize::from(number)];
            let endpoints = endpoints();
            let keys = (record.client_key(&endpoints), record.server_key(&endpoints));
            (record, keys.0, keys.1)
        })
        .collect();
    let mut known = [false; 64];
    for round in 0u32..20 {
        for (at, (record, client, server)) in connections.iter().enumerate() {
            let line = Line(at as u32);
            let changes = match round % 7 {
                0 => !known[at],
                6 => known[at],
                _ => rng.chance(500_000),
            };
            match (known[at], changes) {
                (false, true) => assert!(table.offload(line, record, client, server)),
                (true, true) => table.remove(line, client, server),
                _ => continue,
            }
            known[at] = !known[at];
        }
        if round.is_multiple_of(3) {
            table.flush();
        }
        for ((record, client, server), known) in connections.iter().zip(known) {
            let sent = record.server_nxt.wrapping_add(record.seq_delta);
            let by_client = segment(client.src, client.dst).seq(record.client_nxt);
            let by_server = segment(server.src, server.dst).seq(record.server_nxt);
            for packet in [by_client.ack(sent), by_server.ack(record.client_nxt)] {
                let frame = frame_of(&packet.flags(TcpFlags::ACK).packet());
                let fate = kernel.try_frame(&frame, interface, 1).unwrap().fate;
                let found = fate == Fate::Redirect;
                assert_eq!(found, known, "seed {seed}, round {round}: {record:?}");
            }
        }
    }
}

/// Keys stay for a while after their connection; the line may be another's by then.
fn old_keys_lead_nowhere(mode: Mode, kind: FlowTableKind) {
    on_a_switch(|_, interface| {
        let loaded = Kernel::load_pinned(mode, kind, 64, &endpoints(), COOKIE, 0, None);
        let (mut kernel, mut table) = loaded.unwrap();
        tell_interfaces(&mut kernel);
        let mut rng = Rng::new(31);
        for (v6, transparent) in [(false, false), (false, true), (true, true)] {
            let line = Line(5);
            let (old, old_client, old_server) = record(&mut rng, v6, transparent);
            let mut new = old;
            (new.client_port, new.nat_port) = (old.client_port + 1, old.nat_port + 1);
            let keys = (new.client_key(&endpoints()), new.server_key(&endpoints()));
            let forwards = |record: &Record, key: FlowKey, side: Side| {
                let sent = match side {
                    Side::Client => record.server_nxt.wrapping_add(record.seq_delta),
                    Side::Server => record.client_nxt,
                };
                let packet = segment(key.src, key.dst).seq(record.nxt(side).0);
                let frame = frame_of(&packet.ack(sent).flags(TcpFlags::ACK).packet());
                kernel.try_frame(&frame, interface, 1).unwrap().fate == Fate::Redirect
            };
            assert!(table.offload(line, &old, &old_client, &old_server));
            assert!(forwards(&old, old_client, Side::Client));
            assert!(forwards(&old, old_server, Side::Server));
            table.remove(line, &old_client, &old_server);
            assert!(
                !forwards(&old, old_client, Side::Client),
                "the line is free"
            );
            assert!(
                !forwards(&old, old_server, Side::Server),
                "the line is free"
            );
            assert!(table.offload(line, &new, &keys.0, &keys.1));
            for _ in 0..2 {
                assert!(!forwards(&new, old_client, Side::Client));
                assert!(!forwards(&new, old_server, Side::Server));
                assert!(forwards(&new, keys.0, Side::Client));
                assert!(forwards(&new, keys.1, Side::Server));
                table.flush(); // the second time the old keys are gone
            }
            // The old connection's ends come back, and get the line again.
            table.remove(line, &keys.0, &keys.1);
            assert!(table.offload(line, &new, &keys.0, &keys.1));
            table.flush();
            assert!(forwards(&new, keys.0, Side::Client));
            assert!(forwards(&new, keys.1, Side::Server));
            table.remove(line, &keys.0, &keys.1);
        }
    });
}

#[test]
fn tc_old_keys_lead_nowhere() {
    run(|| old_keys_lead_nowhere(Mode::Tc, FlowTableKind::Hash));
    run(|| old_keys_lead_nowhere(Mode::Tc, FlowTableKind::LruHash { keys: 0 }));
}

#[test]
fn xdp_old_keys_lead_nowhere() {
    run(|| old_keys_lead_nowhere(Mode::XdpNative, FlowTableKind::Hash));
    run(|| old_keys_lead_nowhere(Mode::XdpNative, FlowTableKind::LruHash { keys: 0 }));
}

/// Tagged frames are not looked into: the VLAN's own interface sees them without the tag.
fn tags_are_left_alone(mode: Mode) {
    on_a_switch(|_, interface| {
        let mut rng = Rng::new(12);
        let (kernel, mut table) = kernel(mode, 0);
        let (record, client, server) = record(&mut rng, false, true);
        assert!(table.offload(Line(0), &record, &client, &server));
        let sent = record.server_nxt.wrapping_add(record.seq_delta);
        let built = segment(client.src, client.dst).seq(record.client_nxt);
        let plain = frame_of(&built.ack(sent).flags(TcpFlags::ACK).packet());
        for tags in [&[0x81, 0, 0, 7][..], &[0x88, 0xa8, 0, 9, 0x81, 0, 0, 7]] {
            let tagged = [&plain[..12], tags, &plain[12..]].concat();
            let trial = kernel.try_frame(&tagged, interface, 1).unwrap();
            assert_eq!((trial.fate, trial.frame), (Fate::Pass, tagged));
        }
        let trial = kernel.try_frame(&plain, interface, 1).unwrap();
        assert_eq!(trial.fate, Fate::Redirect);
    });
}

#[test]
fn tc_leaves_tags_alone() {
    run(|| tags_are_left_alone(Mode::Tc));
}

#[test]
fn xdp_leaves_tags_alone() {
    run(|| tags_are_left_alone(Mode::XdpNative));
}

/// The program's reasons to drop are those of the whole house, by name and number.
#[test]
fn reasons_have_one_numbering() {
    let layout = include_str!("../../../../bpf/include/fairlead/layout.h");
    let lines = layout.lines().map(str::trim);
    let named = lines.filter_map(|line| line.strip_prefix("FL_REASON_"));
    let mut found = 0;
    for line in named {
        let (name, number) = line.trim_end_matches(',').split_once(" = ").unwrap();
        let mut all = DropReason::ALL.iter();
        let reason = all.find(|reason| reason.name() == name.to_lowercase());
        assert_eq!(reason.map(|one| *one as u8), number.parse().ok(), "{line}");
        found += 1;
    }
    assert!(found > 0);
}
