//! Bounds: what is full refuses, is counted, and leaks nothing.

use core::time::Duration;

use fairlead_base::{DropReason, Endpoint, Instant, Rng};
use fairlead_datapath::config::{Config, Limits, Protocol, ProxyVersion, Source, Treatment};
use fairlead_datapath::{ConfigError, Datapath, End, Side, State};
use fairlead_testkit::{endpoint, segment};
use fairlead_wire::TcpFlags;

use crate::rig::{
    Ends, Joined, REQUEST, Rig, http_config, linux, refusal, server, simple_config, syn_ack,
    v6_config,
};

fn limited(change: impl Fn(&mut Limits)) -> Rig {
    let mut config = http_config();
    change(&mut config.limits);
    Rig::probed(config, &linux(1))
}

/// The same client from the next port.
fn next_client(rig: &mut Rig) {
    rig.client.port += 1;
}

#[track_caller]
fn assert_refused(rig: &mut Rig, bytes: &[u8], reason: DropReason) {
    let (opened, sent) = rig.request(1_000, bytes);
    assert_eq!(sent.len(), 1);
    assert!(sent[0].header.flags.contains(TcpFlags::RST));
    assert_eq!(sent[0].header.seq.0, opened.dseq.wrapping_add(1));
    assert_eq!(rig.state(), None);
    let refusals = rig.refusals();
    assert_eq!(refusals.last(), Some(&(reason, None)));
    assert!(rig.drops(reason) >= 1);
}

#[test]
fn table_full_refuses_and_the_next_one_gets_the_freed_place() {
    let mut rig = limited(|limits| limits.connections = 2);
    let (first, _) = rig.request(1_000, REQUEST);
    next_client(&mut rig);
    rig.request(1_000, REQUEST);
    next_client(&mut rig);
    assert_refused(&mut rig, REQUEST, DropReason::TableFull);
    let now = rig.datapath.snapshot();
    assert_eq!((now.records, now.records_max), (2, 2));
    assert_eq!(now.services[0].refused, 1);
    rig.put(&first.at(REQUEST.len() as u32).flags(TcpFlags::RST));
    next_client(&mut rig);
    let (_, sent) = rig.request(1_000, REQUEST);
    assert_eq!(sent[0].header.flags, TcpFlags::SYN);
}

/// Takes the client through a whole connection; the next one comes from the next port.
fn finished(rig: Rig, isn: u32) -> Rig {
    let ends = Ends {
        client_isn: isn,
        ..Ends::default()
    };
    let mut joined = Joined::on(rig, &ends);
    for side in [Side::Client, Side::Server] {
        joined.close(side);
        joined.acknowledge(side.other());
    }
    assert_eq!(joined.state(), State::TimeWait);
    next_client(&mut joined.rig);
    joined.rig
}

#[test]
fn a_full_table_gives_up_what_is_at_rest_and_never_what_lives() {
    let mut rig = limited(|limits| limits.connections = 4);
    let (_, sent) = rig.request(1_000, REQUEST);
    rig.put(&syn_ack(&sent[0], 5, &linux(1)));
    let live = rig.client;
    next_client(&mut rig);
    for isn in [2_000, 3_000] {
        rig = finished(rig, isn);
    }
    let (reset, sent) = rig.request(4_000, REQUEST);
    rig.put(&syn_ack(&sent[0], 5, &linux(1)));
    rig.put(&reset.at(REQUEST.len() as u32).flags(TcpFlags::RST));
    assert_eq!(rig.state(), Some(State::Reset));
    next_client(&mut rig);
    assert_eq!(rig.ends().last(), Some(&End::ResetByClient));
    for newcomer in 0..3u16 {
        let now = rig.datapath.snapshot();
        assert_eq!((now.records, now.time_wait_evicted), (4, newcomer.into()));
        let (_, sent) = rig.request(9_000, REQUEST);
        assert_eq!(sent[0].header.flags, TcpFlags::SYN);
        next_client(&mut rig);
        // In the order in which they began.
        let resting = |port: &u16| {
            let port = live.port + port;
            let client = Endpoint { port, ..live };
            rig.datapath.connection_state(client, rig.vip).is_some()
        };
        let left: Vec<u16> = (1..4).filter(resting).collect();
        assert_eq!(left, (newcomer + 2..4).collect::<Vec<_>>());
    }
    assert_eq!(rig.ends(), []);
    assert_refused(&mut rig, REQUEST, DropReason::TableFull);
    let state = rig.datapath.connection_state(live, rig.vip);
    assert_eq!(state, Some(State::Spliced));
    let now = rig.datapath.snapshot();
    assert_eq!((now.live, now.time_wait, now.time_wait_evicted), (1, 0, 3));
    rig.wait(Duration::from_secs(8_500));
    rig.assert_empty();
}

#[test]
fn setups_full_refuses_but_spliced_connections_do_not_count() {
    let mut rig = limited(|limits| limits.setups = 1);
    for _ in 0..5 {
        let (_, sent) = rig.request(1_000, REQUEST);
        rig.put(&syn_ack(&sent[0], 5, &linux(1)));
        next_client(&mut rig);
    }
    rig.request(1_000, REQUEST);
    next_client(&mut rig);
    assert_refused(&mut rig, REQUEST, DropReason::SetupFull);
    assert_eq!(rig.datapath.snapshot().setups, 1);
}

#[test]
fn half_read_heads_of_one_client_are_limited_and_those_of_others_not() {
    let mut rig = limited(|limits| limits.half_read_per_client = 2);
    for _ in 0..2 {
        let opened = rig.open(1_000, &linux(5_000));
        rig.put_none(&opened.data(0, b"GET"));
        next_client(&mut rig);
    }
    assert_refused(&mut rig, b"GET", DropReason::HalfReadClientFull);
    // A whole head is none that is half read.
    next_client(&mut rig);
    let (_, sent) = rig.request(1_000, REQUEST);
    assert_eq!(sent[0].header.flags, TcpFlags::SYN);
    rig.client.addr.0[15] += 1;
    let opened = rig.open(1_000, &linux(5_000));
    rig.put_none(&opened.data(0, b"GET"));
    assert_eq!(rig.datapath.snapshot().half_read, 3);
    rig.wait(Duration::from_secs(60));
    rig.assert_empty();
}

#[test]
fn a_refused_client_of_a_tcp_service_counts_once_whatever_it_sends() {
    for no_source in [false, true] {
        let mut config = simple_config(Protocol::Tcp, &["10.2.0.1:8081"]);
        if no_source {
            config.snat.clear();
        } else {
            config.limits.setups = 1;
        }
        let mut rig = Rig::probed(config, &linux(1));
        if !no_source {
            let opened = rig.open(1_000, &linux(5_000));
            rig.put_one(&opened.at(0));
            next_client(&mut rig);
        }
        let before = rig.datapath.snapshot().services[0].clone();
        let opened = rig.open(1_000, &linux(5_000));
        // The handshake's last ACK; the first data, which is under way by then; and again.
        for segment in [
            opened.at(0),
            opened.data(0, b"hello"),
            opened.data(0, b"hello"),
        ] {
            let sent = rig.put_one(&segment);
            assert!(sent.header.flags.contains(TcpFlags::RST));
        }
        let after = rig.datapath.snapshot().services[0].clone();
        assert_eq!(after.refused, before.refused + 1);
        assert_eq!(after.accepted, before.accepted + u64::from(no_source));
        assert_eq!(rig.refusals().len(), 1);
        assert_eq!(rig.drops(DropReason::NoConnection), 2);
    }
}

#[test]
fn all_addresses_of_a_64_bit_network_are_one_client() {
    let mut config = v6_config();
    config.limits.half_read_per_client = 2;
    let mut rig = Rig::probed(config, &linux(1));
    let client = rig.client.addr;
    for host in 0..2 {
        rig.client.addr.0[8] += host + 1;
        let opened = rig.open(1_000, &linux(5_000));
        rig.put_none(&opened.data(0, b"GET"));
    }
    rig.client.addr.0[15] += 1;
    assert_refused(&mut rig, b"GET", DropReason::HalfReadClientFull);
    rig.client.addr = client;
    rig.client.addr.0[7] += 1;
    let opened = rig.open(1_000, &linux(5_000));
    rig.put_none(&opened.data(0, b"GET"));
    assert_eq!(rig.datapath.snapshot().half_read, 3);
    rig.wait(Duration::from_secs(60));
    rig.assert_empty();
}

/// A site that has many networks is one customer: it has a part of all.
#[test]
fn the_networks_of_one_site_have_a_sixteenth_of_all_half_read_heads() {
    let mut config = v6_config();
    (config.limits.half_read, config.limits.half_read_per_client) = (48, 2);
    let mut rig = Rig::probed(config, &linux(1));
    for network in 0..3 {
        rig.client.addr.0[7] = network;
        let opened = rig.open(1_000, &linux(5_000));
        rig.put_none(&opened.data(0, b"GET"));
    }
    rig.client.addr.0[6] += 1;
    assert_refused(&mut rig, b"GET", DropReason::HalfReadClientFull);
    rig.client.addr.0[5] += 1;
    let opened = rig.open(1_000, &linux(5_000));
    rig.put_none(&opened.data(0, b"GET"));
    assert_eq!(rig.datapath.snapshot().half_read, 4);
    rig.wait(Duration::from_secs(60));
    rig.assert_empty();
}

#[test]
fn half_read_heads_in_all_are_limited() {
    let mut rig = limited(|limits| limits.half_read = 3);
    for _ in 0..3 {
        let opened = rig.open(1_000, &linux(5_000));
        rig.put_none(&opened.data(0, b"GET"));
        rig.client.addr.0[15] += 1;
    }
    assert_refused(&mut rig, b"GET", DropReason::HalfReadFull);
    assert_eq!(rig.datapath.snapshot().half_read, 3);
}

/// What no route takes is answered, and silence to the answer keeps it.
const MALFORMED: &[u8] = b"\0";

#[test]
fn answers_that_nobody_acknowledges_give_way_to_newcomers() {
    let mut rig = limited(|limits| limits.setups = 3);
    let first = rig.client;
    for _ in 0..3 {
        let (_, sent) = rig.request(1_000, MALFORMED);
        assert!(sent[0].payload().starts_with(b"HTTP/1.1 400 "));
        next_client(&mut rig);
    }
    assert_eq!(rig.datapath.snapshot().setups, 3);
    rig.client.addr.0[15] += 1;
    let (_, sent) = rig.request(1_000, REQUEST);
    assert_eq!(sent.len(), 2);
    assert!(sent[0].header.flags.contains(TcpFlags::RST));
    assert_eq!(sent[0].header.key.dst, first, "the oldest");
    assert_eq!(sent[1].header.flags, TcpFlags::SYN);
    assert_eq!(rig.drops(DropReason::AnswerUnacked), 1);
    assert_eq!(rig.drops(DropReason::SetupFull), 0);
    assert_eq!(rig.datapath.snapshot().setups, 3);
    // What is being set up does not give way.
    for _ in 0..2 {
        rig.client.addr.0[15] += 1;
        rig.request(1_000, REQUEST);
    }
    rig.client.addr.0[15] += 1;
    assert_refused(&mut rig, REQUEST, DropReason::SetupFull);
    rig.wait(Duration::from_secs(60));
    rig.assert_empty();
}

#[test]
fn answers_that_one_client_does_not_acknowledge_are_limited() {
    let mut rig = limited(|limits| limits.half_read_per_client = 2);
    let opened = rig.open(1_000, &linux(5_000));
    rig.put_none(&opened.data(0, b"GET"));
    next_client(&mut rig);
    let (taker, answer) = rig.request(1_000, MALFORMED);
    let end = answer[0].header.seq + answer[0].header.segment_len();
    next_client(&mut rig);
    let (opened, sent) = rig.request(1_000, MALFORMED);
    assert!(sent[0].payload().starts_with(b"HTTP/1.1 400 "));
    let end_of_it = sent[0].header.seq + sent[0].header.segment_len();
    assert!(sent[1].header.flags.contains(TcpFlags::RST));
    assert_eq!(sent[1].header.seq, end_of_it);
    assert_eq!((sent.len(), rig.state()), (2, None));
    assert_eq!(rig.drops(DropReason::HalfReadClientFull), 1);
    // Nothing is kept: asked again, it answers again.
    assert_eq!(rig.put(&opened.data(0, MALFORMED)).len(), 2);
    // Whoever acknowledges is no longer waited for.
    rig.put_none(&taker.at(MALFORMED.len() as u32).ack(end.0));
    next_client(&mut rig);
    assert_eq!(rig.request(1_000, MALFORMED).1.len(), 1);
    let now = rig.datapath.snapshot();
    assert_eq!((now.half_read, now.setups), (1, 3));
    // Other clients have a bound of their own.
    rig.client.addr.0[15] += 1;
    assert_eq!(rig.request(1_000, MALFORMED).1.len(), 1);
    rig.wait(Duration::from_secs(60));
    rig.assert_empty();
}

#[test]
fn buffered_bytes_are_limited_at_every_moment() {
    let mut rig = limited(|limits| limits.buffered_bytes = 3_000);
    let opened = rig.open(1_000, &linux(5_000));
    let long = ["GET /", &"a".repeat(995)].concat();
    rig.put_none(&opened.data(0, long.as_bytes()));
    // A hole takes room too.
    rig.put_none(&opened.data(4_000, b"x"));
    rig.assert_dropped(DropReason::BufferFull);
    rig.put_none(&opened.data(1_000, &[b'a'; 1_000]));
    assert_eq!(rig.datapath.snapshot().buffered_bytes, 2_000);
    next_client(&mut rig);
    assert_refused(&mut rig, &[b'b'; 1_400], DropReason::BufferFull);
    // What still fits is taken.
    next_client(&mut rig);
    let small = b"GET /a.jpg HTTP/1.1\r\nHost: a\r\n\r\n";
    let (_, sent) = rig.request(1_000, small);
    assert_eq!(sent[0].header.flags, TcpFlags::SYN);
    assert!(rig.datapath.snapshot().buffered_bytes <= 3_000);
    rig.wait(Duration::from_secs(60));
    rig.assert_empty();
}

#[test]
fn buffered_bytes_of_preamble_and_rewritten_head_count_too() {
    let mut config = simple_config(Protocol::Http, &["10.2.0.1:8081"]);
    config.pools[0].proxy_protocol = Some(ProxyVersion::V1);
    config.services[0].routes[0].treatment = Treatment::OneShot;
    config.limits.buffered_bytes = REQUEST.len() as u64 + 20;
    let mut rig = Rig::probed(config, &linux(1));
    let (_, sent) = rig.request(1_000, REQUEST);
    assert!(sent[0].payload().starts_with(b"HTTP/1.1 503 "));
    assert_eq!(rig.refusals(), [(DropReason::BufferFull, Some(503))]);
    rig.wait(Duration::from_secs(60));
    rig.assert_empty();
}

#[test]
fn too_many_holes_in_a_head_are_refused_packet_by_packet() {
    let mut rig = limited(|_| {});
    let opened = rig.open(1_000, &linux(5_000));
    rig.put_none(&opened.data(0, b"G"));
    for hole in 1..=32u32 {
        rig.put_none(&opened.data(hole * 2, b"x"));
    }
    rig.assert_dropped(DropReason::BeyondHead);
    rig.put_none(&opened.data(20_000, b"x"));
    rig.assert_dropped(DropReason::BeyondHead);
    assert_eq!(rig.state(), Some(State::Established));
}

/// A source list without an address of the family. All ports of one: see `inherit.rs`.
#[test]
fn sources_exhausted_are_refused_and_counted() {
    let mut config = http_config();
    config.snat.clear();
    config.pools[1].servers.push(server("10.2.0.3:8082"));
    let mut rig = Rig::probed(config, &linux(1));
    let (_, sent) = rig.request(1_000, REQUEST);
    assert!(sent[0].payload().starts_with(b"HTTP/1.1 503 "));
    assert_eq!(rig.refusals(), [(DropReason::SnatExhausted, Some(503))]);
    assert_eq!(rig.drops(DropReason::SnatExhausted), 1, "one client");
    rig.wait(Duration::from_secs(60));
    rig.assert_empty();
}

#[test]
fn events_that_nobody_fetches_are_bounded_and_counted() {
    let mut config = http_config();
    config.services[0].routes.clear();
    config.limits.connections = 1_000;
    let mut rig = Rig::probed(config, &linux(1));
    for round in 0..66_000u32 {
        rig.client.port = round as u16;
        rig.client.addr.0[15] = (round >> 16) as u8;
        let opened = rig.open(round, &linux(1));
        rig.put(&opened.data(0, b"\0"));
        rig.put(&opened.at(1).flags(TcpFlags::RST));
    }
    assert_eq!(rig.events().len(), 65_536);
    assert_eq!(rig.drops(DropReason::EventLost), 66_000 - 65_536);
    rig.assert_empty();
}

/// Many connections that all take a different way, ended in a different state: nothing is left.
#[test]
fn nothing_leaks_whatever_happens() {
    let mut configs: Vec<Config> = vec![http_config(), http_config()];
    configs[1].pools[0].proxy_protocol = Some(ProxyVersion::V2);
    configs[1].services[0].routes[0].treatment = Treatment::OneShot;
    for (index, config) in configs.into_iter().enumerate() {
        for seed in 0..40 {
            let mut rng = Rng::new(seed);
            let mut rig = Rig::probed(config.clone(), &linux(1));
            let mut seen = Vec::new();
            for step in 0..300 {
                rig.client.port = 40_000 + rng.below(12) as u16;
                match rng.below(8) {
                    0 => {
                        let opened = rig.open(rng.next_u64() as u32, &linux(step));
                        let len = rng.below(REQUEST.len() as u32 + 1) as usize;
                        seen.extend(rig.put(&opened.data(0, &REQUEST[..len])));
                        seen.extend(rig.put(&opened.data(len as u32, &REQUEST[len..])));
                    }
                    1 => drop(rig.wait_ms(u64::from(rng.below(3_000)))),
                    2..=3 => {
                        let syns = seen.iter().filter(|one| one.header.flags == TcpFlags::SYN);
                        let syns: Vec<_> = syns.cloned().collect();
                        if !syns.is_empty() {
                            let syn = &syns[rng.below(syns.len() as u32) as usize];
                            let answer = if rng.chance(300_000) {
                                refusal(syn)
                            } else {
                                syn_ack(syn, rng.next_u64() as u32, &linux(1))
                            };
                            seen.extend(rig.put(&answer));
                        }
                    }
                    // Replies to anything seen, with any flags.
                    _ if !seen.is_empty() => {
                        let to = &seen[rng.below(seen.len() as u32) as usize].header;
                        let flags = [
                            TcpFlags::ACK,
                            TcpFlags::ACK,
                            TcpFlags::FIN | TcpFlags::ACK,
                            TcpFlags::RST,
                            TcpFlags::SYN,
                        ][rng.below(5) as usize];
                        let end = to.seq + to.segment_len() - rng.below(2);
                        let reply = segment(to.key.dst, to.key.src)
                            .seq(to.ack.0.wrapping_sub(rng.below(2)))
                            .ack(end.0)
                            .window(rng.below(3) as u16 * 100)
                            .flags(flags)
                            .payload(vec![1; rng.below(2) as usize * 10]);
                        seen.extend(rig.put(&reply));
                    }
                    _ => {}
                }
                let now = rig.datapath.snapshot();
                assert!(
                    now.live + now.time_wait <= now.records,
                    "config {index} seed {seed}"
                );
                assert!(now.half_read <= now.setups);
            }
            rig.wait(Duration::from_secs(8_500));
            rig.assert_empty();
        }
    }
}

/// The client's own address cannot be sent to a server of the other family.
#[test]
fn transparent_service_whose_pool_is_of_the_other_family_is_refused() {
    let mut config = http_config();
    config.services[0].source = Source::Transparent;
    let now = Instant::from_millis(1);
    assert!(Datapath::new(config.clone(), 1.into(), now).is_ok());
    let mut other = config.clone();
    other.pools[1].servers = vec![server("[2001:db8:2::2]:8082")];
    let expected = ConfigError::OtherFamily {
        service: "web".into(),
        pool: "pages".into(),
    };
    assert_eq!(Datapath::new(other, 1.into(), now).unwrap_err(), expected);
    // One server of the other family is passed over, for probes and for clients.
    config.pools[1].servers.push(server("[2001:db8:2::2]:8082"));
    let mut rig = Rig::new(config);
    let probes = rig.wait(Duration::ZERO);
    assert_eq!(probes.len(), 2);
    for port in 0..3 {
        rig.client.port = 50_000 + port;
        let (_, sent) = rig.request(1_000, b"GET / HTTP/1.1\r\nHost: a\r\n\r\n");
        assert_eq!(sent[0].header.key.dst, endpoint("10.2.0.2:8082"));
    }
}
