//! Connections of an earlier run: what is taken over ends once, and is counted once.

use core::time::Duration;

use fairlead_base::{DropReason, Endpoint, Instant, Seed};
use fairlead_datapath::config::{Balance, Config, HashOn, PoolId, Protocol};
use fairlead_datapath::{Datapath, End, Estate, Event, State, Verdict};
use fairlead_tcp::{Endpoints, Kept, Line, Record};
use fairlead_testkit::{endpoint, segment, tcp};
use fairlead_wire::TcpFlags;

use crate::rig::{REQUEST, Rig, http_config, linux, route, simple_config};

/// No configured route has this index, nor the one above.
const NO_ROUTE: u16 = fairlead_tcp::PAIR_ROUTE - 1;

/// A connection from this port, as an earlier run left it; `http_config` has the rest.
fn kept(port: u16, state: State) -> Kept {
    let record = Record {
        client_addr: endpoint("192.0.2.9:0").addr,
        client_port: port,
        nat_port: port,
        state,
        ..Record::default()
    };
    Kept {
        record,
        given: false,
    }
}

/// What an earlier run left that listened and had sources as `config` says, and these records.
fn estate(config: &Config, server: Endpoint, records: Vec<(Line, Kept)>) -> Estate {
    Estate {
        endpoints: Endpoints {
            listens: config.services[0].listen.clone(),
            servers: vec![server],
            nats: config.snat.clone(),
        },
        records,
        ..Estate::default()
    }
}

#[test]
fn records_at_rest_are_no_connections_that_go_on() {
    let states = [
        State::Spliced,
        State::TimeWait,
        State::FinRelayed1,
        State::Reset,
        State::Spliced,
    ];
    let config = http_config();
    let records = (0..).zip(states);
    let estate = estate(
        &config,
        config.pools[0].servers[0].endpoint,
        records
            .map(|(line, state)| (Line(line), kept(40_000 + line as u16, state)))
            .collect(),
    );
    let start = Instant::from_millis(1_000);
    let mut switch = Datapath::resume(config, Seed::from(1), start, &estate).unwrap();
    let adopted = switch.adopt(start, &estate);
    assert_eq!((adopted.connections, adopted.at_rest), (3, 2));
    let snapshot = switch.snapshot();
    assert_eq!((snapshot.adopted, snapshot.live), (3, 3));
    assert_eq!((snapshot.time_wait, snapshot.records), (2, 5));
    assert_eq!(snapshot.pools[0].servers[0].active, 3);
    // All run out of time.
    let mut now = start;
    while now < start + Duration::from_secs(3 * 3_600) {
        now = now + Duration::from_millis(500);
        switch.handle_timeout(now);
    }
    let snapshot = switch.snapshot();
    assert_eq!((snapshot.live, snapshot.records), (0, 0));
    assert_eq!(snapshot.pools[0].servers[0].active, 0);
    let ended = |end| {
        snapshot
            .ended
            .iter()
            .find(|(one, _)| *one == end)
            .unwrap()
            .1
    };
    assert_eq!(ended(End::IdleTimeout), 2);
    assert_eq!(ended(End::HalfClosedTimeout), 1);
    let all: u64 = snapshot.ended.iter().map(|(_, count)| count).sum();
    assert_eq!(all, snapshot.adopted, "each that was taken over ends once");
}

/// Takes over one spliced connection to `server`, by the first route of the earlier run.
fn resumed(config: Config, server: Endpoint) -> (Datapath, Instant) {
    let estate = estate(
        &config,
        server,
        vec![(Line(0), kept(40_000, State::Spliced))],
    );
    let start = Instant::from_millis(1_000);
    let mut switch = Datapath::resume(config, Seed::from(1), start, &estate).unwrap();
    assert_eq!(switch.adopt(start, &estate).connections, 1);
    (switch, start)
}

#[test]
fn the_end_is_told_whatever_became_of_route_and_server() {
    let as_it_was = http_config();
    let mut other_routes = http_config();
    other_routes.services[0].routes.insert(0, route(vec![], 1));
    let server = as_it_was.pools[0].servers[0].endpoint;
    let stranger = endpoint("10.2.0.99:8081");
    for (config, server, knows_route, of_pool) in [
        (as_it_was.clone(), server, true, Some(PoolId(0))),
        (other_routes, server, false, Some(PoolId(0))),
        (as_it_was, stranger, false, None),
    ] {
        let (mut switch, start) = resumed(config, server);
        switch.handle_timeout(start + Duration::from_secs(3 * 3_600));
        let mut told = Vec::new();
        while let Some(event) = switch.poll_event() {
            if let Event::Closed {
                route,
                pool,
                treatment,
                end,
                ..
            } = event
            {
                told.push((route < NO_ROUTE, pool, treatment.is_some(), end));
            }
        }
        let expected = (knows_route, of_pool, knows_route, End::IdleTimeout);
        assert_eq!(told, [expected]);
    }
}

#[test]
fn an_address_that_is_listened_on_no_more_takes_no_new_connection() {
    let mut config = http_config();
    let old = config.services[0].listen.clone();
    config.services[0].listen = vec![endpoint("10.1.0.4:80")];
    let server = config.pools[0].servers[0].endpoint;
    let estate = Estate {
        endpoints: Endpoints {
            // Nothing stands at the second place any more, and nobody names it.
            listens: vec![old[0], endpoint("10.1.0.5:80"), endpoint("10.1.0.4:80")],
            servers: vec![server],
            nats: config.snat.clone(),
        },
        records: vec![(Line(0), kept(40_000, State::Spliced))],
        ..Estate::default()
    };
    let start = Instant::from_millis(1_000);
    let mut switch = Datapath::resume(config, Seed::from(1), start, &estate).unwrap();
    assert_eq!(switch.adopt(start, &estate).of_retired_services, 1);
    let client = endpoint("192.0.2.9:40000");
    let syn = segment(client, old[0]).flags(TcpFlags::SYN).seq(77_000);
    let mut packet = syn.syn_options(&linux(5)).packet();
    assert_eq!(switch.handle_packet(start, &mut packet), Verdict::Transmit);
    assert!(tcp(&packet).flags.contains(TcpFlags::RST), "refused");
    assert_eq!(switch.snapshot().drops.of(DropReason::NotOurs), 1);
    let state = switch.connection_state(client, old[0]);
    assert_eq!(state, Some(State::Spliced), "what is spliced goes on");
}

#[test]
fn a_place_that_nothing_stands_at_is_no_service() {
    let config = http_config();
    let listen = config.services[0].listen[0];
    let estate = Estate {
        endpoints: Endpoints {
            listens: vec![endpoint("10.1.0.5:80"), listen],
            servers: vec![config.pools[0].servers[0].endpoint],
            nats: config.snat.clone(),
        },
        ..Estate::default()
    };
    let services = config.services.len();
    let start = Instant::from_millis(1_000);
    let switch = Datapath::resume(config, Seed::from(1), start, &estate).unwrap();
    assert_eq!(switch.snapshot().services.len(), services);
}

#[test]
fn a_connection_that_was_begun_on_a_tuple_at_rest_is_taken_over() {
    for order in [
        [State::TimeWait, State::Spliced],
        [State::Spliced, State::Reset],
    ] {
        let config = http_config();
        let records = order.map(|state| {
            let mut one = kept(40_000, state);
            one.record.nat_port = 2_000 + u16::from(state == State::Spliced);
            one
        });
        let estate = estate(
            &config,
            config.pools[0].servers[0].endpoint,
            (0..).map(Line).zip(records).collect(),
        );
        let start = Instant::from_millis(1_000);
        let mut switch = Datapath::resume(config, Seed::from(1), start, &estate).unwrap();
        let adopted = switch.adopt(start, &estate);
        assert_eq!((adopted.connections, adopted.at_rest), (1, 0), "{order:?}");
        assert!(adopted.misfits.is_empty(), "{:?}", adopted.misfits);
        let snapshot = switch.snapshot();
        assert_eq!((snapshot.live, snapshot.records), (1, 1));
    }
}

/// Which server each of some clients is sent to.
fn chosen(rig: &mut Rig) -> Vec<Endpoint> {
    let ports = 40_000..40_032;
    let server = |port| {
        rig.client = endpoint(&format!("192.0.2.{}:{port}", port - 39_990));
        rig.request(1_000, REQUEST);
        let events = rig.events().into_iter();
        let mut decided = events.filter_map(|event| match event {
            Event::Decided { server, .. } => Some(server),
            _ => None,
        });
        decided.next().unwrap()
    };
    ports.map(server).collect()
}

#[test]
fn a_client_meets_its_server_again_after_a_restart_unless_that_is_gone() {
    let servers: Vec<String> = (1..=8).map(|host| format!("10.2.0.{host}:8081")).collect();
    let servers: Vec<&str> = servers.iter().map(String::as_str).collect();
    let config = |servers: &[&str]| {
        let mut config = simple_config(Protocol::Http, servers);
        config.pools[0].balance = Balance::Maglev(HashOn::ClientAddress);
        config
    };
    let mut before = Rig::seeded(config(&servers), 1.into());
    let estate = Estate {
        cookie: Some(before.datapath.cookie_words()),
        ..Estate::default()
    };
    let before = chosen(&mut before);
    let gone = endpoint(servers[7]);
    for left in [&servers[..], &servers[..7]] {
        let start = Instant::from_millis(1_000);
        let mut after = Rig::seeded(config(left), 2.into());
        after.datapath = Datapath::resume(config(left), 2.into(), start, &estate).unwrap();
        let after = chosen(&mut after);
        let both = before.iter().zip(&after);
        let moved = both
            .filter(|(old, new)| old != new && **old != gone)
            .count();
        // Of what was not the removed server's the table itself moves a little.
        let may_move = if left.len() < servers.len() { 3 } else { 0 };
        assert!(moved <= may_move, "{before:?} {after:?}");
    }
}

/// A switch of one source address, all of whose ports an earlier run has used towards the one
/// server: by connections in these states, of which nothing was heard for so long.
fn used_up(quiet_ms: u32, state: impl Fn(u16) -> State) -> Rig {
    let mut config = simple_config(Protocol::Http, &["10.2.0.1:8081"]);
    config.snat.truncate(1);
    config.limits.connections = 100_000;
    let mut rig = Rig::new(config.clone());
    let server = config.pools[0].servers[0].endpoint;
    let records = (0..).zip(1_024..=u16::MAX).map(|(line, port)| {
        let mut kept = kept(port, state(port));
        kept.record.last_active = (rig.now.as_millis() as u32).wrapping_sub(quiet_ms);
        (Line(line), kept)
    });
    let estate = estate(&config, server, records.collect());
    rig.datapath = Datapath::resume(config, Seed::from(1), rig.now, &estate).unwrap();
    rig.datapath.adopt(rig.now, &estate);
    rig
}

#[test]
fn connections_at_rest_yield_their_sources_when_all_are_taken() {
    let mut rig = used_up(5_000, |port| match port % 16 {
        0 => State::TimeWait,
        _ => State::Spliced,
    });
    let rests = rig.datapath.snapshot().time_wait;
    for count in 1..=3 {
        let (_, sent) = rig.request(1_000, REQUEST);
        assert_eq!(sent[0].header.flags, TcpFlags::SYN, "{:?}", rig.refusals());
        assert_eq!(sent[0].header.key.src.port % 16, 0);
        rig.client.port += 1;
        let now = rig.datapath.snapshot();
        assert_eq!(now.time_wait_evicted, count);
        assert_eq!((now.time_wait, now.live), (rests - count, 15 * rests));
    }
}

#[test]
fn a_source_is_in_use_while_a_connection_lives_and_for_a_moment_after() {
    for (quiet_ms, state) in [(5_000, State::Spliced), (2_999, State::TimeWait)] {
        let mut rig = used_up(quiet_ms, |_| state);
        let (_, sent) = rig.request(1_000, REQUEST);
        assert!(sent[0].payload().starts_with(b"HTTP/1.1 503 "), "{state:?}");
        assert_eq!(rig.refusals(), [(DropReason::SnatExhausted, Some(503))]);
        assert_eq!(rig.datapath.snapshot().time_wait_evicted, 0);
    }
}

#[test]
fn of_two_rests_of_one_tuple_the_later_is_taken_over() {
    for times in [[500, 900], [900, 500], [u32::MAX, 3]] {
        let config = http_config();
        let records = times.map(|last_active| {
            let mut one = kept(40_000, State::TimeWait);
            one.record.nat_port = 2_000 + u16::from(last_active == 900 || last_active == 3);
            one.record.last_active = last_active;
            one
        });
        let server = config.pools[0].servers[0].endpoint;
        let nat = config.snat[0];
        let records = (0..).map(Line).zip(records).collect();
        let estate = estate(&config, server, records);
        let start = Instant::from_millis(1_000);
        let mut switch = Datapath::resume(config, Seed::from(1), start, &estate).unwrap();
        let adopted = switch.adopt(start, &estate);
        assert_eq!((adopted.connections, adopted.at_rest), (0, 1), "{times:?}");
        assert!(adopted.misfits.is_empty(), "{:?}", adopted.misfits);
        // What comes late from its server finds it; of the earlier one nothing is known.
        for (port, is_known) in [(2_001, true), (2_000, false)] {
            let to = Endpoint { addr: nat, port };
            let mut late = segment(server, to).flags(TcpFlags::ACK).packet();
            let verdict = switch.handle_packet(start, &mut late);
            let reset = verdict == Verdict::Transmit && tcp(&late).flags.contains(TcpFlags::RST);
            assert_eq!(reset, !is_known, "{times:?}");
        }
    }
}
