//! Connections of an earlier run: what is taken over ends once, and is counted once.

use core::time::Duration;

use fairlead_base::{Instant, Seed};
use fairlead_datapath::{Datapath, End, Estate, State};
use fairlead_tcp::{Endpoints, Kept, Line, Record};
use fairlead_testkit::endpoint;

use crate::rig::http_config;

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
    let estate = Estate {
        endpoints: Endpoints {
            listens: config.services[0].listen.clone(),
            servers: vec![config.pools[0].servers[0].endpoint],
            nats: config.snat.clone(),
        },
        records: records
            .map(|(line, state)| (Line(line), kept(40_000 + line as u16, state)))
            .collect(),
        ..Estate::default()
    };
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
    while now < start + Duration::from_secs(2 * 3_600) {
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
