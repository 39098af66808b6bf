//! Orders about servers and single connections, and what health checks say.

use core::time::Duration;

use fairlead_datapath::config::{Check, OnDown, Protocol};
use fairlead_datapath::{
    Admin, Change, ConnectionId, Departure, End, Event, Selection, ServerId, State, Unavailable,
};
use fairlead_testkit::endpoint;
use fairlead_wire::TcpFlags;

use crate::rig::{Ends, Joined, REQUEST, Rig, linux, simple_config};

const SERVERS: [&str; 2] = ["10.2.0.1:8081", "10.2.0.2:8082"];

fn rig() -> Rig {
    Rig::probed(simple_config(Protocol::Http, &SERVERS), &linux(900_000))
}

fn admin(rig: &mut Rig, server: u16, admin: Admin, departure: Departure) -> bool {
    let change = Change::Admin {
        server: ServerId(server),
        admin,
        departure,
    };
    rig.datapath.apply(rig.now, change).unwrap()
}

fn all(rig: &Rig, selection: &Selection) -> Vec<fairlead_datapath::Connection> {
    let mut found = Vec::new();
    let mut next = Some(0);
    while let Some(from) = next {
        next = rig
            .datapath
            .connections(rig.now, selection, (from, 1), &mut found);
    }
    found
}

/// The server that the next connection is sent to.
fn next_server(rig: &mut Rig) -> String {
    rig.client.port += 1;
    let (_, sent) = rig.request(1_000, REQUEST);
    sent[0].header.key.dst.to_string()
}

#[test]
fn a_drained_server_gets_no_new_connections_and_keeps_the_old_ones() {
    let mut joined = Joined::on(rig(), &Ends::default());
    let drained = joined.server;
    let id = joined.rig.datapath.find_server("only", drained).unwrap();
    assert!(admin(
        &mut joined.rig,
        id.0,
        Admin::Drain,
        Departure::default()
    ));
    assert!(!admin(
        &mut joined.rig,
        id.0,
        Admin::Drain,
        Departure::default()
    ));
    let told = joined
        .rig
        .events()
        .into_iter()
        .find_map(|event| match event {
            Event::Availability {
                server,
                unavailable,
                ..
            } => Some((server, unavailable)),
            _ => None,
        });
    assert_eq!(told, Some((drained, Some(Unavailable::Draining))));
    for _ in 0..4 {
        assert_ne!(next_server(&mut joined.rig), drained.to_string());
    }
    joined.rig.client = endpoint("192.0.2.7:40000");
    let segment = joined.by_client().payload(b"more");
    assert_eq!(joined.rig.put_one(&segment).payload(), b"more");
}

#[test]
fn idle_connections_of_a_leaving_server_are_closed_and_busy_ones_are_not() {
    let mut joined = Joined::on(rig(), &Ends::default());
    let id = joined
        .rig
        .datapath
        .find_server("only", joined.server)
        .unwrap();
    let departure = Departure {
        close_idle: Some(Duration::from_secs(5)),
        reset_after: None,
    };
    admin(&mut joined.rig, id.0, Admin::Drain, departure);
    for _ in 0..3 {
        assert_eq!(joined.rig.wait_ms(4_000).len(), 0);
        let segment = joined.by_client().payload(b"x");
        joined.rig.put_one(&segment);
        joined.client_nxt += 1;
    }
    let resets = joined.rig.wait_ms(8_000);
    assert_eq!(resets.len(), 2);
    assert!(
        resets
            .iter()
            .all(|one| one.header.flags.contains(TcpFlags::RST))
    );
    assert_eq!(joined.rig.ends(), [End::Killed]);
}

#[test]
fn a_deadline_resets_what_is_left_and_readiness_takes_it_back() {
    let departure = Departure {
        close_idle: None,
        reset_after: Some(Duration::from_secs(3)),
    };
    let mut joined = Joined::on(rig(), &Ends::default());
    let id = joined
        .rig
        .datapath
        .find_server("only", joined.server)
        .unwrap();
    admin(&mut joined.rig, id.0, Admin::Maintenance, departure);
    admin(&mut joined.rig, id.0, Admin::Ready, Departure::default());
    assert_eq!(joined.rig.wait_ms(9_000).len(), 0);
    admin(&mut joined.rig, id.0, Admin::Maintenance, departure);
    assert_eq!(joined.rig.wait_ms(2_000).len(), 0);
    assert_eq!(joined.rig.wait_ms(3_000).len(), 2);
    assert_eq!(joined.rig.ends(), [End::Killed]);
}

#[test]
fn connections_are_listed_and_killed_by_id() {
    let mut joined = Joined::on(rig(), &Ends::default());
    joined.rig.wait_ms(1_500);
    let found = all(&joined.rig, &Selection::default());
    let [one] = &found[..] else {
        panic!("{found:?}");
    };
    assert_eq!(
        (one.client, one.listen),
        (joined.rig.client, joined.rig.vip)
    );
    assert_eq!(one.server.map(|(.., server)| server), Some(joined.server));
    assert_eq!(
        (one.state, one.bytes_in),
        (State::Spliced, REQUEST.len() as u64)
    );
    assert_eq!(one.age, Duration::from_millis(1_500));
    // Another connection on that line would have another number.
    let mut text = one.id.to_string();
    text.pop();
    let other: ConnectionId = format!("{text}f").parse().unwrap();
    for (id, ends) in [(other, 0), (one.id, 1)] {
        let selection = Selection {
            id: Some(id),
            ..Selection::default()
        };
        let change = Change::End(selection);
        joined.rig.datapath.apply(joined.rig.now, change).unwrap();
        assert_eq!(joined.rig.wait_ms(0).len(), 2 * ends);
        assert_eq!(joined.rig.ends().len(), ends);
    }
    assert_eq!(all(&joined.rig, &Selection::default()), []);
}

#[test]
fn connections_are_killed_in_every_state_of_their_set_up() {
    let by_client = |rig: &Rig| Selection {
        client: Some((rig.client.addr, 32)),
        ..Selection::default()
    };
    for bytes in [&REQUEST[..9], REQUEST] {
        let mut rig = rig();
        let opened = rig.open(1_000, &linux(5_000));
        rig.put(&opened.data(0, bytes));
        let selection = by_client(&rig);
        assert_eq!(all(&rig, &selection).len(), 1);
        rig.datapath.apply(rig.now, Change::End(selection)).unwrap();
        let sent = rig.wait_ms(0);
        assert!(
            sent.iter()
                .all(|one| one.header.flags.contains(TcpFlags::RST))
        );
        assert_eq!(sent[0].header.key.dst, rig.client);
        assert_eq!(all(&rig, &selection), []);
        rig.assert_empty();
    }
}

#[test]
fn what_a_selection_names_must_agree() {
    let mut joined = Joined::on(rig(), &Ends::default());
    joined.rig.wait_ms(2_000);
    let id = joined
        .rig
        .datapath
        .find_server("only", joined.server)
        .unwrap();
    let none = Selection::default();
    let seconds = |idle| Some(Duration::from_secs(idle));
    for (selection, count) in [
        (
            Selection {
                server: Some(id),
                ..none
            },
            1,
        ),
        (
            Selection {
                server: Some(ServerId(1 - id.0)),
                ..none
            },
            0,
        ),
        (
            Selection {
                service: Some(0),
                ..none
            },
            1,
        ),
        (
            Selection {
                service: Some(1),
                ..none
            },
            0,
        ),
        (
            Selection {
                idle_over: seconds(2),
                ..none
            },
            1,
        ),
        (
            Selection {
                idle_over: seconds(3),
                ..none
            },
            0,
        ),
        (
            Selection {
                client: Some((endpoint("192.0.2.0:0").addr, 24)),
                ..none
            },
            1,
        ),
        (
            Selection {
                client: Some((endpoint("192.0.3.0:0").addr, 24)),
                ..none
            },
            0,
        ),
    ] {
        assert_eq!(all(&joined.rig, &selection).len(), count, "{selection:?}");
    }
}

#[test]
fn connections_of_a_server_that_goes_down_end_where_the_pool_has_it_so() {
    for (on_down, ends) in [(OnDown::Leave, 0), (OnDown::Reset, 1)] {
        let mut config = simple_config(Protocol::Http, &SERVERS);
        config.pools[0].check = Some(Check {
            on_down,
            ..Check::default()
        });
        let rig = Rig::probed(config, &linux(900_000));
        let mut joined = Joined::on(rig, &Ends::default());
        let server = joined
            .rig
            .datapath
            .find_server("only", joined.server)
            .unwrap();
        let change = Change::Check {
            server,
            is_up: false,
        };
        assert_eq!(joined.rig.datapath.apply(joined.rig.now, change), Ok(true));
        assert_eq!(joined.rig.wait_ms(0).len(), 2 * ends);
        assert_eq!(joined.rig.ends().len(), ends);
        assert_ne!(next_server(&mut joined.rig), joined.server.to_string());
    }
}

/// Whatever changed in whatever order, the choice is that of a switch that was built so.
#[test]
fn the_end_of_many_changes_is_as_if_it_had_been_configured() {
    let mut rig = rig();
    for step in 0..40u16 {
        let server = ServerId(step % 2);
        let weight = step % 5;
        rig.datapath
            .apply(rig.now, Change::Weight { server, weight })
            .unwrap();
        let admin_is = Admin::ALL[usize::from(step % 3)];
        admin(&mut rig, server.0, admin_is, Departure::default());
    }
    for server in 0..2 {
        admin(&mut rig, server, Admin::Ready, Departure::default());
        let weight = 1 + server * 2;
        let server = ServerId(server);
        rig.datapath
            .apply(rig.now, Change::Weight { server, weight })
            .unwrap();
    }
    let mut config = simple_config(Protocol::Http, &SERVERS);
    config.pools[0].servers[1].weight = 3;
    let mut built = Rig::probed(config, &linux(900_000));
    let order = |rig: &mut Rig| -> Vec<String> { (0..12).map(|_| next_server(rig)).collect() };
    let (changed, built) = (order(&mut rig), order(&mut built));
    let heavy = |order: &[String]| order.iter().filter(|one| **one == SERVERS[1]).count();
    assert_eq!((heavy(&changed), heavy(&built)), (9, 9));
}
