//! SYN_SENT: the server's side of the handshake, the paper's Table 2.

use core::time::Duration;

use fairlead_base::{DropReason, Endpoint, SeqNumber};
use fairlead_datapath::config::{Config, Protocol, Source};
use fairlead_datapath::{Event, ServerState, State, Verdict};
use fairlead_testkit::{endpoint, segment};
use fairlead_wire::{SynOptions, TcpFlags};

use crate::rig::{
    Opened, REQUEST, Rig, Sent, http_config, linux, payload, refusal, route, server, simple_config,
    syn_ack, v6_config,
};

const SERVERS: [&str; 3] = ["10.2.0.1:8081", "10.2.0.2:8081", "10.2.0.3:8081"];

fn three_servers() -> Config {
    simple_config(Protocol::Http, &SERVERS)
}

/// A client whose request has led to a SYN.
fn asked(config: Config) -> (Rig, Opened, Sent) {
    let mut rig = Rig::probed(config, &linux(1));
    let (opened, mut sent) = rig.request(1_000, REQUEST);
    assert_eq!(sent.len(), 1);
    assert_eq!(rig.state(), Some(State::SynSent));
    (rig, opened, sent.remove(0))
}

fn attempts(rig: &mut Rig) -> Vec<u8> {
    let events = rig.events().into_iter();
    events
        .filter_map(|event| match event {
            Event::Decided { attempt, .. } => Some(attempt),
            _ => None,
        })
        .collect()
}

#[test]
fn syn_sent_syn_ack_splices_and_sends_the_head_with_the_ack() {
    let (mut rig, opened, syn) = asked(http_config());
    let sent = rig.put(&syn_ack(&syn, 70_000, &linux(900_000)));
    assert_eq!(rig.last, Some(Verdict::Consumed));
    assert_eq!(sent.len(), 1, "the ACK rides on the request");
    assert_eq!(sent[0].header.seq, SeqNumber(1_001));
    assert_eq!(sent[0].header.ack, SeqNumber(70_001));
    assert_eq!(sent[0].payload(), REQUEST);
    assert!(sent[0].header.flags.contains(TcpFlags::ACK | TcpFlags::PSH));
    let stamps = sent[0].timestamps().unwrap();
    assert_eq!((stamps.value, stamps.echo), (5_010, 900_000));
    assert_eq!(rig.state(), Some(State::Spliced));
    let now = rig.datapath.snapshot();
    assert_eq!((now.live, now.setups, now.buffered_bytes), (1, 0, 0));
    assert_eq!((now.spliced, now.retries), (1, 0));
    assert_eq!(now.pools[0].servers[0].active, 1);
    assert_eq!(opened.isn, 1_000);
}

#[test]
fn syn_sent_syn_ack_twice_is_acknowledged_twice_and_the_head_sent_once() {
    let (mut rig, _, syn) = asked(http_config());
    let answer = syn_ack(&syn, 70_000, &linux(900_000));
    rig.put(&answer);
    let again = rig.put_one(&answer);
    assert_eq!(again.header.flags, TcpFlags::ACK);
    assert_eq!(again.payload().len(), 0);
    assert_eq!(
        (again.header.seq, again.header.ack),
        (SeqNumber(1_001), SeqNumber(70_001))
    );
    // RFC 7323, section 3.2: in every segment once agreed; never back.
    let stamps = again.timestamps().unwrap();
    assert_eq!(stamps.echo, 900_000);
    assert_eq!(rig.state(), Some(State::Spliced));
    rig.put_none(&syn_ack(&syn, 70_001, &linux(900_000)).ack(1_002));
    rig.assert_dropped(DropReason::BadSequence);
}

#[test]
fn syn_sent_rst_leads_to_the_next_server_at_once() {
    let (mut rig, opened, syn) = asked(three_servers());
    let next = rig.put_one(&refusal(&syn));
    assert_eq!(next.header.flags, TcpFlags::SYN);
    assert_ne!(next.header.key.dst, syn.header.key.dst);
    assert_eq!(next.header.seq, SeqNumber(opened.isn));
    assert_eq!(payload(&rig.put(&syn_ack(&next, 9, &linux(1)))), REQUEST);
    let now = rig.datapath.snapshot();
    assert_eq!(now.retries, 1);
    assert_eq!(now.services[0].routes[0].decisions, 1);
    let active: u32 = now.pools[0]
        .servers
        .iter()
        .map(|server| server.active)
        .sum();
    assert_eq!(active, 1);
    assert_eq!(rig.drops(DropReason::ServerRefused), 1);
    assert_eq!(attempts(&mut rig), [0, 1]);
}

#[test]
fn syn_sent_rst_that_does_not_acknowledge_our_syn_is_ignored() {
    let (mut rig, _, syn) = asked(three_servers());
    for wrong in [
        refusal(&syn).ack(syn.header.seq.0),
        refusal(&syn).flags(TcpFlags::RST),
    ] {
        rig.put_none(&wrong);
        rig.assert_dropped(DropReason::BadSequence);
    }
    assert_eq!(rig.state(), Some(State::SynSent));
}

#[test]
fn syn_sent_silence_repeats_the_syn_and_then_asks_the_next_server() {
    let (mut rig, _, syn) = asked(three_servers());
    let sent = rig.wait(Duration::from_millis(1_999));
    assert_eq!(sent.len(), 3, "after 250, 750 and 1,750 ms");
    for again in &sent {
        assert_eq!(again.header, syn.header);
    }
    let sent = rig.wait(Duration::from_millis(1));
    assert_eq!(sent.len(), 3);
    assert_eq!(
        sent[0].header.flags,
        TcpFlags::RST,
        "a late SYN-ACK finds nobody"
    );
    assert_eq!(sent[0].header.seq, syn.header.seq + 1);
    assert!(
        sent[0].whose.is_some_and(|whose| whose.is_server_leg),
        "onlookers know whose it is, though another server is asked by now"
    );
    assert_eq!(sent[0].header.key, syn.header.key);
    assert_eq!(sent[1].header.flags, TcpFlags::SYN);
    assert_ne!(sent[1].header.key.dst, syn.header.key.dst);
    assert_eq!(sent[2].header.key.dst, syn.header.key.dst, "a probe");
    assert_eq!(rig.drops(DropReason::ServerSilent), 1);
    let late = rig.put_one(&syn_ack(&syn, 9, &linux(1)));
    assert_eq!(late.header.flags, TcpFlags::RST);
    assert_eq!(payload(&rig.put(&syn_ack(&sent[1], 9, &linux(1)))), REQUEST);
}

/// When SYNs are sent to the only server, in ms behind the first, until the client is answered.
#[track_caller]
fn syns_of_one_try(timeout_ms: u64) -> Vec<u64> {
    let mut config = simple_config(Protocol::Http, &SERVERS[..1]);
    config.pools[0].connect_timeout = Duration::from_millis(timeout_ms);
    let (mut rig, _, syn) = asked(config);
    let mut times = vec![0];
    for ms in 1..=timeout_ms {
        for sent in rig.wait_ms(1) {
            if sent.header.key == syn.header.key && sent.header.flags == TcpFlags::SYN {
                assert_eq!(sent.header, syn.header);
                times.push(ms);
            }
        }
    }
    assert_eq!(rig.drops(DropReason::ServerSilent), 1);
    assert_eq!(rig.state(), Some(State::Answering));
    times
}

#[test]
fn syn_sent_silence_is_asked_into_until_shortly_before_the_timeout() {
    assert_eq!(syns_of_one_try(3_000), [0, 250, 750, 1_750, 2_500]);
    for timeout_ms in [300, 700, 1_000, 1_900, 2_000, 3_900, 5_000, 10_000, 60_000] {
        let times = syns_of_one_try(timeout_ms);
        let last = times[times.len() - 1];
        assert!(timeout_ms - last <= 500, "{timeout_ms}: {times:?}");
    }
}

#[test]
fn syn_sent_no_server_left_is_answered_503_with_retry_after() {
    let (mut rig, _, mut syn) = asked(three_servers());
    for _ in 0..2 {
        syn = rig.put_one(&refusal(&syn));
    }
    let answer = rig.put_one(&refusal(&syn));
    let text = String::from_utf8(answer.payload().to_vec()).unwrap();
    assert!(text.starts_with("HTTP/1.1 503 "), "{text}");
    assert!(text.contains("\r\nRetry-After: 5\r\n"), "{text}");
    assert_eq!(answer.header.key.dst, rig.client);
    assert_eq!(rig.state(), Some(State::Answering));
    let events = rig.events();
    assert!(events.iter().any(|event| matches!(
        event,
        Event::Refused {
            reason: DropReason::NoServer,
            status: Some(503),
            ..
        }
    )));
    rig.wait(Duration::from_secs(60));
    rig.assert_empty();
}

#[test]
fn syn_sent_retries_end_where_the_route_says() {
    let mut config = three_servers();
    config.services[0].routes[0].retries = 1;
    let (mut rig, _, syn) = asked(config);
    let next = rig.put_one(&refusal(&syn));
    let answer = rig.put_one(&refusal(&next));
    assert!(answer.payload().starts_with(b"HTTP/1.1 503 "));
}

#[test]
fn syn_sent_no_server_left_is_a_rst_for_a_tcp_service() {
    let mut rig = Rig::probed(simple_config(Protocol::Tcp, &SERVERS[..1]), &linux(1));
    let opened = rig.open(1_000, &linux(5_000));
    let syn = rig.put_one(&opened.at(0));
    let reset = rig.put_one(&refusal(&syn));
    assert!(reset.header.flags.contains(TcpFlags::RST));
    assert_eq!(reset.header.seq, SeqNumber(opened.dseq) + 1);
    assert_eq!(reset.header.ack, SeqNumber(1_001));
    assert_eq!(rig.refusals(), [(DropReason::NoServer, None)]);
    rig.assert_empty();
}

/// RFC 9293, section 3.5.2: half-open on the server's side.
#[test]
fn syn_sent_stale_ack_is_reset_and_the_retry_works() {
    let (mut rig, _, syn) = asked(http_config());
    let stale = segment(syn.header.key.dst, syn.header.key.src)
        .seq(5_555)
        .ack(99_999);
    let reset = rig.put_one(&stale);
    assert_eq!(reset.header.flags, TcpFlags::RST);
    assert_eq!(reset.header.seq, SeqNumber(99_999));
    assert_eq!(reset.header.key, syn.header.key);
    // As soon as the server has had time for the RST.
    let again = rig.wait_ms(2);
    assert_eq!(again[0].header, syn.header);
    assert_eq!(
        payload(&rig.put(&syn_ack(&again[0], 9, &linux(1)))),
        REQUEST
    );
}

/// Whoever sends such acknowledgements without end does not get as many SYNs for it.
#[test]
fn syn_sent_stale_acks_hurry_one_retransmission_only() {
    let (mut rig, _, syn) = asked(http_config());
    let stale = segment(syn.header.key.dst, syn.header.key.src)
        .seq(5_555)
        .ack(99_999);
    let mut syns = 0;
    for _ in 0..100 {
        assert_eq!(rig.put_one(&stale).header.flags, TcpFlags::RST);
        let sent = rig.wait_ms(2);
        syns += sent
            .iter()
            .filter(|one| one.header.flags == TcpFlags::SYN)
            .count();
    }
    assert_eq!(syns, 1, "the next is due after half a second");
}

#[test]
fn syn_sent_acknowledgement_without_syn_is_dropped() {
    let (mut rig, _, syn) = asked(http_config());
    let bare = segment(syn.header.key.dst, syn.header.key.src)
        .seq(5)
        .ack(syn.header.seq.0.wrapping_add(1));
    rig.put_none(&bare);
    rig.assert_dropped(DropReason::BadSequence);
    assert_eq!(rig.state(), Some(State::SynSent));
}

#[test]
fn syn_sent_server_without_promised_timestamps_is_passed_over_and_not_promised_again() {
    let without = SynOptions {
        timestamps: None,
        ..linux(0)
    };
    let (mut rig, _, syn) = asked(three_servers());
    let sent = rig.put(&syn_ack(&syn, 9, &without));
    assert_eq!(sent.len(), 2);
    assert_eq!(sent[0].header.flags, TcpFlags::RST);
    assert_eq!(sent[0].header.seq, syn.header.seq + 1);
    assert_eq!(sent[1].header.flags, TcpFlags::SYN);
    assert_ne!(sent[1].header.key.dst, syn.header.key.dst);
    assert_eq!(rig.drops(DropReason::OptionMismatch), 1);
    let now = rig.datapath.snapshot();
    let mismatched = now.pools[0]
        .servers
        .iter()
        .find(|server| server.endpoint == syn.header.key.dst)
        .unwrap();
    assert_eq!(mismatched.state, ServerState::Up, "it answers");
    assert!(!mismatched.offers.unwrap().timestamps);
    rig.client.port += 1;
    let offered = rig.open(7, &linux(5_000)).offered;
    assert!(offered.timestamps.is_none() && offered.window_scale.is_some());
}

#[test]
fn syn_sent_server_that_takes_less_than_it_was_asked_with_is_promised_less() {
    let saying = |mss| SynOptions {
        mss: Some(mss),
        ..linux(0)
    };
    // What the client takes, what the server says, what the next client is told.
    for (client, said, next) in [(1_460, 1_360, 1_360), (1_300, 1_300, 1_460)] {
        let mut rig = Rig::probed(simple_config(Protocol::Http, &["10.2.0.1:8081"]), &linux(1));
        let opened = rig.open(1_000, &saying(client));
        let syn = rig.put_one(&opened.data(0, REQUEST));
        assert!(syn.syn_options().mss <= Some(client));
        rig.put(&syn_ack(&syn, 9, &saying(said)));
        rig.client.port += 1;
        assert_eq!(rig.open(7, &linux(5_000)).offered.mss, Some(next));
    }
}

#[test]
fn syn_sent_client_rst_takes_the_syn_back() {
    let (mut rig, opened, syn) = asked(http_config());
    let reset = opened.at(REQUEST.len() as u32).flags(TcpFlags::RST);
    let sent = rig.put_one(&reset);
    assert_eq!(sent.header.flags, TcpFlags::RST);
    assert_eq!(sent.header.key, syn.header.key);
    assert_eq!(sent.header.seq, syn.header.seq + 1);
    assert_eq!(rig.state(), None);
    rig.assert_empty();
}

#[test]
fn syn_sent_more_bytes_of_the_client_wait_for_the_server() {
    let (mut rig, opened, syn) = asked(http_config());
    let end = REQUEST.len() as u32;
    rig.put_none(&opened.data(end, b"body"));
    rig.put_none(&opened.data(0, REQUEST));
    rig.put_none(&opened.at(end + 4).flags(TcpFlags::FIN | TcpFlags::ACK));
    let sent = rig.put(&syn_ack(&syn, 9, &linux(1)));
    assert_eq!(payload(&sent), [REQUEST, b"body"].concat());
    assert_eq!(rig.state(), Some(State::FinRelayed1));
}

#[test]
fn syn_sent_client_that_begins_anew_replaces_the_old_one() {
    let (mut rig, _, syn) = asked(http_config());
    let anew = rig.open(90_000, &linux(6_000));
    assert_eq!(rig.state(), Some(State::SynSent));
    let sent = rig.put(&anew.data(0, REQUEST));
    assert_eq!(sent.len(), 2);
    assert_eq!(sent[0].header.flags, TcpFlags::RST);
    assert_eq!(sent[0].header.key, syn.header.key);
    assert_eq!(sent[1].header.flags, TcpFlags::SYN);
    assert_eq!(sent[1].header.seq, SeqNumber(90_000));
    assert_eq!(rig.datapath.snapshot().records, 1);
}

#[test]
fn syn_sent_window_of_the_client_is_told_unscaled() {
    let mut rig = Rig::probed(http_config(), &linux(1));
    let opened = rig.open(1_000, &linux(5_000));
    let syn = rig.put_one(&opened.data(0, REQUEST).window(100));
    assert_eq!(syn.header.window, 100 << 7);
    let sent = rig.put(&syn_ack(&syn, 9, &linux(1)));
    assert_eq!(sent[0].header.window, 100, "scaled from here on");
}

#[test]
fn syn_sent_server_with_a_small_window_gets_the_head_as_it_takes_it() {
    let (mut rig, _, syn) = asked(http_config());
    let small = syn_ack(&syn, 9, &linux(1)).window(10);
    let sent = rig.put(&small);
    assert_eq!(payload(&sent), &REQUEST[..10]);
    // What comes later must be what was read, so it is ours to send, not the client's.
    let ack = segment(syn.header.key.dst, syn.header.key.src)
        .seq(10)
        .ack(1_011)
        .window(500);
    let sent = rig.put(&ack);
    assert_eq!(payload(&sent), &REQUEST[10..]);
}

#[test]
fn syn_sent_server_of_another_family_is_never_asked() {
    let mut config = simple_config(Protocol::Http, &[SERVERS[0], "[2001:db8:2::1]:8081"]);
    config.snat.push(endpoint("[2001:db8:64::1]:0").addr);
    for _ in 0..2 {
        let (mut rig, _, syn) = asked(config.clone());
        assert_eq!(syn.header.key.dst, endpoint(SERVERS[0]));
        let answer = rig.put_one(&refusal(&syn));
        assert!(answer.payload().starts_with(b"HTTP/1.1 503 "));
        config.pools[0].servers.swap(0, 1);
    }
}

#[test]
fn syn_sent_ipv6_splices() {
    let (mut rig, _, syn) = asked(v6_config());
    assert_eq!(syn.header.key.src.addr, endpoint("[2001:db8:64::1]:0").addr);
    assert_eq!(payload(&rig.put(&syn_ack(&syn, 9, &linux(1)))), REQUEST);
}

fn transparent() -> Config {
    let mut config = simple_config(Protocol::Http, &SERVERS[..1]);
    config.services[0].source = Source::Transparent;
    config
}

#[test]
fn syn_sent_transparent_source_is_the_client_itself() {
    let (mut rig, _, syn) = asked(transparent());
    assert_eq!(syn.header.key.src, rig.client);
    assert_eq!(syn.header.key.dst, endpoint(SERVERS[0]));
    assert_eq!(payload(&rig.put(&syn_ack(&syn, 9, &linux(1)))), REQUEST);
    let data = segment(endpoint(SERVERS[0]), rig.client)
        .seq(10)
        .ack(1_001 + REQUEST.len() as u32)
        .payload(b"page");
    assert_eq!(rig.put_one(&data).header.key.src, rig.vip);
}

/// Two listening endpoints, one server, one client endpoint: towards the server there is room for
/// one connection only.
#[test]
fn syn_sent_transparent_source_in_use_is_refused_and_counted() {
    let mut config = transparent();
    config.services[0].listen.push(endpoint("10.1.0.3:8080"));
    let (mut rig, _, syn) = asked(config);
    rig.vip = endpoint("10.1.0.3:8080");
    let (_, sent) = rig.request(1_000, REQUEST);
    assert!(sent[0].payload().starts_with(b"HTTP/1.1 503 "));
    assert_eq!(rig.refusals(), [(DropReason::SnatExhausted, Some(503))]);
    rig.vip = endpoint("10.1.0.3:80");
    assert_eq!(payload(&rig.put(&syn_ack(&syn, 9, &linux(1)))), REQUEST);
}

#[test]
fn syn_sent_answered_by_a_server_that_was_down_brings_it_up() {
    let (mut rig, _, syn) = asked(three_servers());
    let next = rig.put_one(&refusal(&syn));
    let dead = syn.header.key.dst;
    rig.put(&syn_ack(&next, 9, &linux(1)));
    let probe = rig.wait_ms(0).remove(0);
    rig.put_none(&refusal(&probe));
    rig.now = rig.now + Duration::from_secs(3);
    assert_eq!(state_of(&rig, dead), ServerState::Down);
    // A trial connection comes to it sooner or later.
    for port in 0..6 {
        rig.client.port = 50_000 + port;
        let (_, sent) = rig.request(1_000, REQUEST);
        rig.put(&syn_ack(&sent[0], 9, &linux(1)));
    }
    assert_eq!(state_of(&rig, dead), ServerState::Up);
}

/// What is known of a server of the first pool.
fn state_of(rig: &Rig, endpoint: Endpoint) -> ServerState {
    let now = rig.datapath.snapshot();
    let mut servers = now.pools[0].servers.iter();
    servers
        .find(|server| server.endpoint == endpoint)
        .unwrap()
        .state
}

/// A connection that is refused says that its client was; whether the server is dead a probe asks.
#[test]
fn syn_sent_one_client_that_is_refused_again_and_again_does_not_bring_the_server_down() {
    let (mut rig, _, mut syn) = asked(simple_config(Protocol::Http, &SERVERS[..1]));
    let dead = syn.header.key.dst;
    let mut probes = 0;
    for port in 50_000..50_020 {
        rig.put(&refusal(&syn));
        for probe in rig.wait_ms(if port % 2 == 0 { 0 } else { 1_000 }) {
            if probe.header.key.src.port >= 49_152 && probe.header.flags == TcpFlags::SYN {
                probes += 1;
                rig.put(&syn_ack(&probe, 9, &linux(1)));
            }
        }
        assert_eq!(state_of(&rig, dead), ServerState::Up);
        rig.client.port = port;
        syn = rig.request(1_000, REQUEST).1.remove(0);
        assert_eq!(syn.header.key.dst, dead);
    }
    assert_eq!(probes, 11, "one a second, and the first");
    let events = rig.events();
    assert!(
        !events
            .iter()
            .any(|event| matches!(event, Event::Server { .. }))
    );
}

#[test]
fn syn_sent_a_server_that_refuses_two_clients_in_a_row_is_down_at_once() {
    let (mut rig, _, syn) = asked(simple_config(Protocol::Http, &SERVERS[..1]));
    let dead = syn.header.key.dst;
    rig.put(&refusal(&syn));
    assert_eq!(state_of(&rig, dead), ServerState::Up);
    rig.client.addr.0[15] += 1;
    let (_, sent) = rig.request(1_000, REQUEST);
    rig.put(&refusal(&sent[0]));
    assert_eq!(state_of(&rig, dead), ServerState::Down);
    // The probe asks all the same, and brings it up if they were wrong.
    let probe = rig.wait_ms(0).remove(0);
    rig.put(&syn_ack(&probe, 9, &linux(1)));
    assert_eq!(state_of(&rig, dead), ServerState::Up);
}

/// Its own kernel would take the SYN for one with a forged source, and not answer.
#[test]
fn syn_sent_transparent_server_is_not_asked_for_its_own_host() {
    let mut config = transparent();
    config.pools[0].servers.push(server(SERVERS[1]));
    for (source, asked) in [
        (Source::Transparent, [SERVERS[1], SERVERS[1]]),
        (Source::Snat, [SERVERS[0], SERVERS[1]]),
    ] {
        config.services[0].source = source;
        let mut rig = Rig::probed(config.clone(), &linux(1));
        rig.client.addr = endpoint(SERVERS[0]).addr;
        let mut seen = Vec::new();
        for port in 50_000..50_002 {
            rig.client.port = port;
            let (_, sent) = rig.request(1_000, REQUEST);
            seen.push(sent[0].header.key.dst);
        }
        seen.sort_unstable();
        assert_eq!(seen, asked.map(endpoint));
    }
    // Without another server it is turned away, and nothing is held against the server.
    let mut rig = Rig::probed(transparent(), &linux(1));
    rig.client.addr = endpoint(SERVERS[0]).addr;
    let (_, sent) = rig.request(1_000, REQUEST);
    assert!(sent[0].payload().starts_with(b"HTTP/1.1 503 "));
    assert_eq!(state_of(&rig, endpoint(SERVERS[0])), ServerState::Up);
    rig.wait(Duration::from_secs(60));
    rig.assert_empty();
}

#[test]
fn syn_sent_unprobed_server_is_known_after_its_first_answer() {
    let mut rig = Rig::new(three_servers());
    let (opened, sent) = rig.request(1_000, REQUEST);
    assert!(opened.stamps.is_none());
    rig.put(&syn_ack(
        &sent[0],
        9,
        &SynOptions {
            mss: Some(1_400),
            ..SynOptions::default()
        },
    ));
    assert_eq!(rig.state(), Some(State::Spliced));
    let now = rig.datapath.snapshot();
    let known = now.pools[0]
        .servers
        .iter()
        .filter(|server| server.offers.is_some());
    assert_eq!(known.count(), 1);
}

/// An MSS that small is not believed, whether a probe hears it first or a connection.
#[test]
fn syn_sent_unprobed_server_with_a_tiny_mss_is_known_with_the_least_that_is_believed() {
    let mut rig = Rig::new(simple_config(Protocol::Http, &SERVERS[..1]));
    let (_, sent) = rig.request(1_000, REQUEST);
    let tiny = SynOptions {
        mss: Some(1),
        ..SynOptions::default()
    };
    rig.put(&syn_ack(&sent[0], 9, &tiny));
    let now = rig.datapath.snapshot();
    assert_eq!(now.pools[0].servers[0].offers.unwrap().mss, 88);
    rig.client.port += 1;
    assert_eq!(rig.open(7, &linux(5_000)).offered.mss, Some(88));
}

#[test]
fn syn_sent_weights_and_routes_are_those_of_the_configuration() {
    let mut config = http_config();
    config.services[0].routes = vec![route(vec![], 0)];
    config.pools[0].servers = vec![server(SERVERS[0]), server(SERVERS[1])];
    config.pools[0].servers[1].weight = 0;
    let mut rig = Rig::probed(config, &linux(1));
    for port in 0..5 {
        rig.client.port = 41_000 + port;
        let (_, sent) = rig.request(1_000, REQUEST);
        assert_eq!(sent[0].header.key.dst, endpoint(SERVERS[0]));
    }
    assert_eq!(rig.datapath.snapshot().services[0].routes[0].decisions, 5);
}

/// A server whose queue overflows answers one SYN by a cookie and the next from its queue.
#[test]
fn spliced_syn_ack_with_another_number_before_any_word_of_the_server_counts() {
    let mut rig = Rig::probed(http_config(), &linux(1));
    let opened = rig.open(1_000, &linux(5_000));
    let syn = rig.put_one(&opened.data(0, REQUEST));
    assert_eq!(payload(&rig.put(&syn_ack(&syn, 33, &linux(1)))), REQUEST);
    let again = rig.put_one(&syn_ack(&syn, 7_000, &linux(1)));
    assert_eq!(again.header.flags, TcpFlags::ACK);
    assert_eq!(again.header.ack, SeqNumber(7_001));
    // The client's request, sent again, now acknowledges what this server has said.
    let request = rig.put_one(&opened.data(0, REQUEST));
    assert_eq!(request.header.ack, SeqNumber(7_001));
    let answer = segment(syn.header.key.dst, syn.header.key.src)
        .seq(7_001)
        .ack(1_001 + REQUEST.len() as u32)
        .payload("late");
    let seen = rig.put_one(&answer);
    assert_eq!(seen.header.seq, SeqNumber(opened.dseq) + 1);
    // Once it has spoken, another number is a stranger's.
    rig.put_none(&syn_ack(&syn, 9_000, &linux(1)));
    rig.assert_dropped(DropReason::BadSequence);
}

/// Three servers, of which an IPv4 client can have the first alone; the second is down, and may be
/// tried again.
fn second_is_down() -> Rig {
    let servers = [
        "10.2.0.1:8081",
        "[2001:db8:2::1]:8081",
        "[2001:db8:2::2]:8081",
    ];
    let mut config = simple_config(Protocol::Http, &servers);
    let (listen, snat) = ("[2001:db8:1::3]:80", "[2001:db8:64::1]:0");
    config.services[0].listen.push(endpoint(listen));
    config.snat.push(endpoint(snat).addr);
    let up = |at: Endpoint| at != endpoint(servers[1]);
    let mut rig = Rig::probed_each(config, |at| up(at).then_some(linux(1)));
    rig.wait_ms(4_000);
    rig
}

/// Which servers the next clients of a family are sent to.
fn chosen(rig: &mut Rig, v4: bool, clients: u16) -> Vec<Endpoint> {
    let (client, vip) = match v4 {
        true => ("192.0.2.7:40000", "10.1.0.3:80"),
        false => ("[2001:db8::7]:40000", "[2001:db8:1::3]:80"),
    };
    (rig.client, rig.vip) = (endpoint(client), endpoint(vip));
    let one = |_| {
        rig.client.port += 1;
        let (_, sent) = rig.request(1_000, REQUEST);
        sent[0].header.key.dst
    };
    (0..clients).map(one).collect()
}

#[test]
fn the_trial_of_a_server_is_not_spent_on_a_client_that_cannot_have_it() {
    let second = endpoint("[2001:db8:2::1]:8081");
    for others in [0, 6] {
        let mut rig = second_is_down();
        assert!(!chosen(&mut rig, true, others).contains(&second));
        let asked = chosen(&mut rig, false, 6);
        let trials = asked.iter().filter(|one| **one == second);
        assert_eq!(trials.count(), 1, "{asked:?} after {others}");
    }
}
