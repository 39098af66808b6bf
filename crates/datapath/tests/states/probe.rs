//! What servers honour is learned by asking them; what clients are offered follows from it.

use core::time::Duration;

use fairlead_base::{DropReason, Seed, SeqNumber};
use fairlead_datapath::config::{Config, PoolId, ProxyVersion, Source};
use fairlead_datapath::{Event, Offers, ServerState};
use fairlead_testkit::{endpoint, segment};
use fairlead_wire::{SynOptions, TcpFlags, Timestamps};

use crate::rig::{
    Ends, Joined, REQUEST, Rig, Sent, http_config, linux, payload, probe_every, refusal, server,
    syn_ack, v6_config,
};

/// Asks for everything.
fn greedy() -> SynOptions {
    linux(5_000)
}

fn probing() -> Config {
    let mut config = http_config();
    probe_every(&mut config, Duration::from_secs(10));
    config
}

fn known(rig: &Rig) -> Vec<(ServerState, Option<Offers>)> {
    let pools = rig.datapath.snapshot().pools;
    let servers = pools.iter().flat_map(|pool| &pool.servers);
    servers
        .map(|server| (server.state, server.offers))
        .collect()
}

fn servers_of(sent: &[Sent]) -> Vec<String> {
    sent.iter()
        .map(|sent| sent.header.key.dst.to_string())
        .collect()
}

#[test]
fn unprobed_service_offers_next_to_nothing() {
    let mut rig = Rig::new(http_config());
    let offered = rig.open(1_000, &greedy()).offered;
    // RFC 9293, section 3.7.1: what every host takes.
    let expected = SynOptions {
        mss: Some(536),
        ..SynOptions::default()
    };
    assert_eq!(offered, expected);
    let offered = Rig::new(v6_config()).open(1_000, &greedy()).offered;
    assert_eq!(offered.mss, Some(1_220));
}

#[test]
fn probed_service_offers_exactly_what_all_its_servers_honour() {
    let server = |mss, scale, sack, timestamps: bool| SynOptions {
        mss: Some(mss),
        window_scale: scale,
        sack_permitted: sack,
        timestamps: timestamps.then_some(Timestamps { value: 9, echo: 0 }),
    };
    // The first server, the second, what is offered.
    let cases = [
        (
            server(1_460, Some(7), true, true),
            server(1_460, Some(7), true, true),
            server(1_460, Some(7), true, true),
        ),
        (
            server(1_400, Some(7), true, true),
            server(1_300, Some(9), true, false),
            server(1_300, Some(9), true, false),
        ),
        (
            server(1_460, None, true, true),
            server(1_460, Some(9), false, true),
            server(1_460, None, false, true),
        ),
        // More than the device carries is not passed on.
        (
            server(8_960, Some(0), true, true),
            server(8_960, Some(14), true, true),
            server(1_460, Some(14), true, true),
        ),
    ];
    for (first, second, expected) in cases {
        let mut rig = Rig::probed_each(http_config(), |server| {
            Some(if server == endpoint("10.2.0.1:8081") {
                first
            } else {
                second
            })
        });
        let offered = rig.open(1_000, &greedy()).offered;
        assert_eq!(offered.mss, expected.mss);
        assert_eq!(offered.window_scale, expected.window_scale);
        assert_eq!(offered.sack_permitted, expected.sack_permitted);
        assert_eq!(offered.timestamps.is_some(), expected.timestamps.is_some());
        // What the client does not ask for it does not get.
        let bare = rig.open(2_000, &SynOptions::default()).offered;
        assert_eq!(
            bare,
            SynOptions {
                mss: expected.mss,
                ..SynOptions::default()
            }
        );
    }
}

#[test]
fn probed_service_waits_for_all_its_servers_but_not_for_those_that_are_down() {
    let mut rig = Rig::probed_each(http_config(), |server| {
        (server == endpoint("10.2.0.1:8081")).then(|| linux(1))
    });
    assert_eq!(rig.open(1_000, &greedy()).offered.window_scale, None);
    assert_eq!(rig.wait_ms(1_199).len(), 2);
    assert_eq!(rig.open(1_000, &greedy()).offered.window_scale, None);
    rig.wait_ms(1);
    assert_eq!(known(&rig)[1].0, ServerState::Down);
    assert_eq!(rig.open(1_000, &greedy()).offered.window_scale, Some(7));
}

#[test]
fn probed_ipv6_servers_say_an_mss_of_their_family_and_so_do_we() {
    let server = SynOptions {
        mss: Some(1_440),
        ..linux(1)
    };
    let mut rig = Rig::new(v6_config());
    for probe in rig.wait(Duration::ZERO) {
        assert_eq!(probe.syn_options().mss, Some(1_440));
        rig.put_one(&syn_ack(&probe, 1, &server));
    }
    assert_eq!(rig.open(1_000, &greedy()).offered.mss, Some(1_440));
    let small = SynOptions {
        mss: Some(1_220),
        ..linux(1)
    };
    let mut rig = Rig::probed(v6_config(), &small);
    assert_eq!(rig.open(1_000, &greedy()).offered.mss, Some(1_220));
}

/// A server of the other family serves no client of the service.
#[test]
fn probed_service_offers_what_servers_of_its_clients_family_honour() {
    for (mut config, other) in [
        (http_config(), "[2001:db8:2::2]:8082"),
        (v6_config(), "10.2.0.2:8082"),
    ] {
        config.pools[1].servers.push(server(other));
        let mut rig = Rig::probed(config, &linux(1));
        assert_eq!(rig.open(1_000, &greedy()).offered.window_scale, Some(7));
    }
}

/// A pool of both families, and a service for each: whichever comes first.
#[test]
fn probes_ask_every_server_from_a_service_that_can_reach_it() {
    for v6_first in [false, true] {
        let mut config = http_config();
        config.snat.clear();
        config.pools[0].servers.push(server("[2001:db8:2::1]:8081"));
        config.pools[1].servers.push(server("[2001:db8:2::2]:8082"));
        config.services[0].source = Source::Transparent;
        let mut six = config.services[0].clone();
        six.name = "web6".into();
        six.listen = vec![endpoint("[2001:db8:1::3]:80")];
        config.services.insert(usize::from(!v6_first), six);
        let mut rig = Rig::new(config);
        let mut asked = servers_of(&rig.wait(Duration::ZERO));
        asked.sort();
        let all = [
            "10.2.0.1:8081",
            "10.2.0.2:8082",
            "[2001:db8:2::1]:8081",
            "[2001:db8:2::2]:8082",
        ];
        assert_eq!(asked, all);
    }
}

#[test]
fn probe_asks_for_everything_and_takes_it_back() {
    let mut rig = Rig::new(probing());
    let probes = rig.wait(Duration::ZERO);
    assert_eq!(servers_of(&probes), ["10.2.0.1:8081", "10.2.0.2:8082"]);
    let asked = probes[0].syn_options();
    assert_eq!(asked.mss, Some(1_460));
    assert!(asked.window_scale.is_some() && asked.sack_permitted && asked.timestamps.is_some());
    assert_eq!(known(&rig), [(ServerState::Unknown, None); 2]);
    let reset = rig.put_one(&syn_ack(&probes[0], 9, &linux(1)));
    assert_eq!(reset.header.flags, TcpFlags::RST);
    assert_eq!(reset.header.seq, probes[0].header.seq + 1);
    let offers = Offers {
        mss: 1_460,
        window_scale: Some(7),
        sack: true,
        timestamps: true,
    };
    assert_eq!(known(&rig)[0], (ServerState::Up, Some(offers)));
    let server = endpoint("10.2.0.1:8081");
    let news = Event::Server {
        server,
        pool: PoolId(0),
        state: ServerState::Up,
        offers: Some(offers),
        fewer: false,
    };
    assert_eq!(rig.events(), [news]);
    assert_eq!(rig.datapath.snapshot().probes_sent, 2);
    rig.assert_empty();
}

/// What servers and clients are shown, one each: whoever guesses a part of the seed must be wrong.
#[test]
fn probe_numbers_and_cookies_take_all_of_the_seed() {
    let shown = |seed| {
        let mut rig = Rig::seeded(probing(), seed);
        let probe = rig.wait(Duration::ZERO).remove(0).header;
        let cookie = rig.open(1_000, &linux(1)).dseq;
        (probe.seq, probe.key.src.port, cookie)
    };
    let one = shown(Seed::new([1, 2]));
    assert_eq!(one, shown(Seed::new([1, 2])));
    for other in [[0, 2], [1, 0], [1, 3]] {
        let other = shown(Seed::new(other));
        assert_ne!(one.0, other.0);
        assert_ne!(one.1, other.1);
        assert_ne!(one.2, other.2);
    }
}

#[test]
fn probe_is_repeated_before_its_server_counts_as_down() {
    let mut rig = Rig::new(probing());
    let first = rig.wait(Duration::ZERO);
    for wait in [400, 400] {
        assert!(rig.wait_ms(wait - 1).is_empty());
        let again = rig.wait_ms(1);
        assert_eq!(servers_of(&again), servers_of(&first));
        assert_eq!(again[0].header.seq, first[0].header.seq);
        assert_eq!(known(&rig), [(ServerState::Unknown, None); 2]);
    }
    // One of them answers at last.
    rig.put_one(&syn_ack(&first[1], 9, &linux(1)));
    rig.wait_ms(400);
    assert_eq!(known(&rig)[0].0, ServerState::Down);
    assert_eq!(known(&rig)[1].0, ServerState::Up);
    let next = rig.wait(Duration::from_secs(9));
    // The one that is down comes first, out of turn; in the next round both are asked.
    let asked = servers_of(&next);
    assert_eq!(asked[0], "10.2.0.1:8081");
    assert!(asked.contains(&servers_of(&first)[1]), "{asked:?}");
    assert_ne!(next[0].header.seq, first[0].header.seq);
}

#[test]
fn probe_refused_means_down_at_once() {
    let mut rig = Rig::new(probing());
    let probes = rig.wait(Duration::ZERO);
    rig.put_none(&refusal(&probes[0]));
    assert_eq!(known(&rig)[0].0, ServerState::Down);
    // Not every RST is an answer.
    rig.put(&refusal(&probes[1]).ack(77));
    assert_eq!(known(&rig)[1].0, ServerState::Unknown);
    let stale = segment(probes[1].header.key.dst, probes[1].header.key.src)
        .seq(5)
        .ack(99);
    let reset = rig.put_one(&stale);
    assert_eq!(
        (reset.header.flags, reset.header.seq),
        (TcpFlags::RST, SeqNumber(99))
    );
    assert_eq!(rig.drops(DropReason::BadSequence), 2);
}

#[test]
fn probes_are_not_sent_while_draining() {
    let mut rig = Rig::new(probing());
    rig.datapath.drain(rig.now);
    assert!(rig.wait(Duration::from_secs(100)).is_empty());
    assert_eq!(rig.datapath.poll_timeout(), None);
}

#[test]
fn probe_of_a_transparent_service_comes_from_its_listening_address() {
    let mut config = probing();
    config.services[0].source = fairlead_datapath::config::Source::Transparent;
    config.snat.clear();
    let mut rig = Rig::new(config);
    let probes = rig.wait(Duration::ZERO);
    assert_eq!(probes.len(), 2);
    assert!(
        probes
            .iter()
            .all(|probe| probe.header.key.src.addr == rig.vip.addr)
    );
    rig.put_one(&syn_ack(&probes[0], 9, &linux(1)));
    assert_eq!(known(&rig)[0].0, ServerState::Up);
}

/// A server whose scale changes: handshakes under way keep what they were promised.
#[test]
fn probed_scale_that_changes_leaves_handshakes_under_way_alone() {
    let scaled = |scale| SynOptions {
        window_scale: Some(scale),
        ..linux(1)
    };
    let mut config = probing();
    config.services[0].routes.truncate(1);
    config.pools.truncate(1);
    let mut rig = Rig::probed(config, &scaled(3));
    let before = rig.open(1_000, &greedy());
    assert_eq!(before.offered.window_scale, Some(3));
    let probe_round = |rig: &mut Rig, scale| {
        for probe in rig.wait(Duration::from_secs(10)) {
            rig.put(&syn_ack(&probe, 9, &scaled(scale)));
        }
    };
    probe_round(&mut rig, 7);
    rig.client.port += 1;
    let after = rig.open(1_000, &greedy());
    assert_eq!(after.offered.window_scale, Some(7));
    // A third has to wait until no cookie speaks of the first.
    probe_round(&mut rig, 9);
    rig.client.port += 1;
    assert_eq!(rig.open(1_000, &greedy()).offered.window_scale, Some(7));

    // Each connection translates windows by the scale that its client was promised.
    for (opened, field) in [(before, 400 << 6), (after, 400 << 2)] {
        let syn = rig.put_one(&opened.data(0, REQUEST));
        rig.put(&syn_ack(&syn, 5, &scaled(9)));
        let data = segment(syn.header.key.dst, syn.header.key.src)
            .seq(6)
            .ack(1_001 + REQUEST.len() as u32)
            .window(400)
            .payload(b"x");
        let seen = rig.put_one(&data);
        assert_eq!(
            seen.header.window, field,
            "{:?}",
            opened.offered.window_scale
        );
    }
    for _ in 0..13 {
        probe_round(&mut rig, 9);
    }
    rig.client.port += 1;
    assert_eq!(rig.open(1_000, &greedy()).offered.window_scale, Some(9));
}

/// Two hosts behind one address, that answer in turn: what one of them lacks is promised no more.
#[test]
fn probes_that_two_hosts_answer_in_turn_lead_to_what_both_honour() {
    let lesser = [
        SynOptions {
            timestamps: None,
            ..linux(1)
        },
        SynOptions {
            sack_permitted: false,
            ..linux(1)
        },
        SynOptions {
            window_scale: None,
            ..linux(1)
        },
        SynOptions {
            mss: Some(1_400),
            ..linux(1)
        },
    ];
    for less in lesser {
        let mut config = probing();
        config.services[0].routes.truncate(1);
        config.pools.truncate(1);
        let mut rig = Rig::probed(config, &linux(1));
        let mut told = 0;
        for round in 0..1_000 {
            let options = if round % 2 == 0 { less } else { linux(1) };
            for probe in rig.wait(Duration::from_secs(10)) {
                rig.put(&syn_ack(&probe, 9, &options));
            }
            let offered = rig.syn(1_000, &greedy()).syn_options();
            assert_eq!(offered.timestamps.is_some(), less.timestamps.is_some());
            let rest = |one: &SynOptions| (one.mss, one.window_scale, one.sack_permitted);
            assert_eq!(rest(&offered), rest(&less), "round {round}");
            let fewer = |event: &Event| matches!(event, Event::Server { fewer: true, .. });
            told += rig.events().iter().filter(|event| fewer(event)).count();
        }
        assert_eq!(told, 1, "one event");
    }
}

/// The host that a client gets lacks what was promised: that client fails, and no further one.
#[test]
fn connection_that_finds_fewer_options_than_probes_is_the_last_to_fail() {
    let mut config = probing();
    config.services[0].routes.truncate(1);
    config.pools.truncate(1);
    let mut rig = Rig::probed(config, &linux(1));
    let bare = SynOptions {
        timestamps: None,
        ..linux(1)
    };
    for round in 0..50 {
        rig.client.port += 1;
        let (opened, sent) = rig.request(1_000, REQUEST);
        let syn = sent
            .iter()
            .find(|sent| sent.header.flags == TcpFlags::SYN)
            .expect("a SYN");
        assert_eq!(opened.stamps.is_some(), round == 0);
        rig.put(&syn_ack(syn, 9, &bare));
        for probe in rig.wait(Duration::from_secs(10)) {
            if probe.header.flags == TcpFlags::SYN && probe.header.seq != syn.header.seq {
                rig.put(&syn_ack(&probe, 9, &linux(1)));
            }
        }
    }
    assert_eq!(rig.drops(DropReason::OptionMismatch), 1);
}

#[test]
fn probe_and_connection_never_share_a_port() {
    let mut rig = Rig::new(probing());
    let probes = rig.wait(Duration::ZERO);
    let taken: Vec<_> = probes.iter().map(|probe| probe.header.key.src).collect();
    for port in 0..50 {
        rig.client.port = 50_000 + port;
        let (_, sent) = rig.request(1_000, REQUEST);
        assert!(!taken.contains(&sent[0].header.key.src));
    }
}

#[test]
fn probe_answer_after_the_splice_of_others_disturbs_nobody() {
    let mut joined = Joined::with(probing(), &Ends::default());
    let probes = joined.rig.wait(Duration::from_secs(10));
    joined.rig.put_one(&syn_ack(&probes[0], 1, &linux(1)));
    let data = joined.by_server().payload(b"on");
    assert_eq!(payload(&joined.rig.put(&data)), b"on");
}

/// A server that was away for a moment need not wait for the next round.
#[test]
fn probe_that_failed_is_repeated_after_pauses_that_double_up_to_the_interval() {
    let mut config = probing();
    probe_every(&mut config, Duration::from_secs(32));
    config.pools.truncate(1);
    config.services[0].routes.truncate(1);
    config.services[0].routes[0].matchers.clear();
    let mut rig = Rig::new(config);
    let probes = rig.wait(Duration::ZERO);
    assert_eq!(probes.len(), 1);
    rig.put_none(&refusal(&probes[0]));
    // A sixteenth of the interval, and twice as long each time; then the next round.
    for pause in [2_000, 4_000, 8_000, 16_000] {
        assert!(rig.wait_ms(pause - 1).is_empty(), "before {pause}");
        let again = rig.wait_ms(1);
        assert_eq!(servers_of(&again), ["10.2.0.1:8081"], "after {pause}");
        rig.put_none(&refusal(&again[0]));
    }
    let round = rig.wait_ms(2_000);
    assert_eq!(round.len(), 1);
    rig.put_one(&syn_ack(&round[0], 9, &linux(1)));
    assert_eq!(known(&rig)[0].0, ServerState::Up);
    assert!(
        rig.wait_ms(31_999).is_empty(),
        "up: not before the next round"
    );
    // The next time it is away, the pauses are short again.
    let round = rig.wait_ms(1);
    rig.put_none(&refusal(&round[0]));
    assert!(rig.wait_ms(1_999).is_empty());
    assert_eq!(rig.wait_ms(1).len(), 1);
}

/// Of the way to a server, the switch is told: no client sends what it does not take, and neither
/// does the switch itself.
#[test]
fn way_to_a_server_bounds_what_is_offered_and_sent() {
    for (config, headers, longest) in [(probing(), 40, 1_460), (v6_config(), 60, 1_440)] {
        let mut config = config;
        probe_every(&mut config, Duration::from_secs(10));
        config.pools[0].proxy_protocol = Some(ProxyVersion::V1);
        let image = config.pools[0].servers[0].endpoint;
        let mut rig = Rig::probed(config, &linux(1));
        let offered = |rig: &mut Rig| rig.open(1_000, &greedy()).offered.mss.unwrap();
        assert_eq!(offered(&mut rig), longest);
        rig.datapath.set_mtu_to(rig.now, image, Some(1_300));
        assert_eq!(offered(&mut rig), 1_300 - headers);
        assert!(!rig.events().is_empty(), "it is told");
        rig.datapath.set_mtu_to(rig.now, image, Some(1_300));
        assert!(rig.events().is_empty(), "once");

        let opened = rig.open(2_000, &linux(5_000));
        let head = format!("GET /{}.jpg HTTP/1.1\r\nHost: a\r\n\r\n", "a".repeat(4_000));
        let mut syn = None;
        for (number, part) in head.as_bytes().chunks(1_000).enumerate() {
            syn = rig
                .put(&opened.data(number as u32 * 1_000, part))
                .pop()
                .or(syn);
        }
        let first = rig.put(&syn_ack(&syn.expect("a SYN"), 5, &linux(1)));
        assert_eq!(longest_of(&first), 1_300);
        // Held bytes are sent again as the way is then.
        rig.datapath.set_mtu_to(rig.now, image, Some(900));
        let again = rig.wait_ms(300);
        assert_eq!(payload(&again), payload(&first));
        assert_eq!(longest_of(&again), 900);

        // Wider again: with the next answer.
        rig.datapath.set_mtu_to(rig.now, image, None);
        assert_eq!(offered(&mut rig), 900 - headers);
        for sent in rig.wait(Duration::from_secs(10)) {
            if sent.header.flags == TcpFlags::SYN {
                rig.put(&syn_ack(&sent, 77_000, &linux(1)));
            }
        }
        assert_eq!(offered(&mut rig), longest);
    }
}

fn longest_of(sent: &[Sent]) -> usize {
    let lengths = sent.iter().map(|one| one.packet.bytes.len());
    lengths.max().expect("something")
}
