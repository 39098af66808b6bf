//! Which server gets a request, and over which connection.

use std::time::Duration;

use fairlead_splice::config::{Balance, HashOn, ProxyVersion};
use fairlead_splice::event::Admin;

use super::world::{World, at, config};
use crate::{Limits, RequestEnd};

const A: &str = "GET /a HTTP/1.1\r\nHost: x\r\n\r\n";
const B: &str = "GET /b HTTP/1.1\r\nHost: x\r\n\r\n";
const OK: &str = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";

#[test]
fn requests_of_one_connection_go_to_different_pools() {
    let mut world = World::new();
    let client = world.ask(A);
    let first = world.connects[0];
    assert_eq!(world.far(first).to, Some(at(10, 8_000)));
    assert!(
        world
            .got(first)
            .starts_with("GET /a HTTP/1.1\r\nHost: x\r\nX-Forwarded-For: 10.0.0.99")
    );
    world.say(first, OK);
    assert_eq!(world.got(client), OK);
    world.say(client, B);
    let second = world.connects[1];
    assert_eq!(world.far(second).to, Some(at(20, 8_000)));
    world.say(second, OK);
    assert_eq!(world.got(client), OK);
    let events = world.events();
    assert_eq!(events.len(), 2);
    let to: Vec<_> = events
        .iter()
        .map(|event| event.to.expect("a route").0)
        .collect();
    assert_eq!(to, [0, 1]);
    assert!(
        events
            .iter()
            .all(|one| one.end == RequestEnd::Served && one.status == Some(200))
    );
    let bytes = OK.len() as u64;
    assert_eq!(
        (events[0].bytes_in, events[0].bytes_out),
        (A.len() as u64, bytes)
    );
}

#[test]
fn connections_to_servers_are_used_again_by_other_clients() {
    let mut world = World::new();
    for round in 0..5 {
        let client = world.ask(B);
        let server = world.connects[0];
        assert!(world.got(server).starts_with("GET /b"), "{round}");
        world.say(server, OK);
        assert_eq!(world.got(client), OK);
        world.end(client);
    }
    assert_eq!(world.connects.len(), 1);
    let counts = world.front.counts();
    assert_eq!(
        (
            counts.numbers.front_connects,
            counts.numbers.front_reuses,
            counts.numbers.front_idle
        ),
        (1, 4, 1)
    );
    world.wait(Duration::from_secs(31));
    let server = world.connects[0];
    assert!(world.far(server).closed && !world.far(server).reset);
    assert_eq!(world.front.counts().numbers.front_servers, 0);
}

#[test]
fn pipelined_requests_are_answered_in_order() {
    let mut world = World::new();
    let client = world.ask([A, B, A].concat());
    let mut all = String::new();
    for (server, body) in [(0, "one"), (1, "two"), (2, "six")] {
        let conn = world.connects[server];
        world.say(
            conn,
            format!("HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n{body}"),
        );
        all += &world.got(client);
    }
    let bodies: Vec<_> = all
        .split("\r\n\r\n")
        .skip(1)
        .map(|text| &text[..3])
        .collect();
    assert_eq!(bodies, ["one", "two", "six"]);
}

#[test]
fn a_server_that_refuses_is_passed_over() {
    let mut world = World::new();
    world.refusing.push(at(10, 8_000));
    let client = world.ask(A);
    assert_eq!(world.connects.len(), 2);
    let second = world.connects[1];
    assert_eq!(world.far(second).to, Some(at(11, 8_000)));
    world.say(second, OK);
    assert_eq!(world.got(client), OK);
    assert_eq!(world.events()[0].retries, 1);
    // A body that waits is sent to whoever takes it.
    world.refusing.push(at(11, 8_000));
    world.silent.push(at(20, 8_000));
    let post = "POST /b HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\nabc";
    let client = world.ask(post);
    world.wait(Duration::from_secs(4));
    assert!(
        world
            .got(client)
            .starts_with("HTTP/1.1 503 Service Unavailable\r\n")
    );
    let event = &world.events()[0];
    assert_eq!((event.end, event.status), (RequestEnd::NoServer, Some(503)));
}

#[test]
fn a_connection_that_ended_while_it_waited_costs_the_client_nothing() {
    let mut world = World::new();
    let client = world.ask(B);
    let server = world.connects[0];
    world.say(server, OK);
    world.got(client);
    // The server's end and the next request meet.
    world.say(client, B);
    world.end(server);
    assert_eq!(world.connects.len(), 2);
    let second = world.connects[1];
    world.say(second, OK);
    assert_eq!(world.got(client), OK);
    assert_eq!(world.events()[1].retries, 1);
}

#[test]
fn what_may_not_be_done_twice_is_sent_once() {
    for method in ["POST", "PUT"] {
        let mut world = World::new();
        let ask = format!("{method} /b HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\nab");
        let client = world.ask(B);
        let server = world.connects[0];
        world.say(server, OK);
        world.got(client);
        // A connection of its own, though another one waits: its body cannot be sent again.
        world.say(client, ask);
        assert_eq!(world.connects.len(), 2, "{method}");
        let own = world.connects[1];
        assert!(world.got(own).ends_with("\r\n\r\nab"));
        world.end(own);
        assert_eq!(world.connects.len(), 2, "{method}");
        assert!(
            world
                .got(client)
                .starts_with("HTTP/1.1 502 Bad Gateway\r\n")
        );
    }
}

#[test]
fn a_pool_with_the_proxy_protocol_keeps_clients_apart() {
    let mut config = config();
    config.pools[1].proxy_protocol = Some(ProxyVersion::V1);
    let mut world = World::of(config, Limits::default(), 1);
    let one = world.ask(B);
    let first = world.connects[0];
    assert!(
        world
            .got(first)
            .starts_with("PROXY TCP4 10.0.0.99 10.0.0.1 1001 80\r\nGET /b")
    );
    world.say(first, OK);
    assert_eq!(world.got(one), OK);
    let other = world.ask(B);
    assert_eq!(world.connects.len(), 2);
    assert!(
        world
            .got(world.connects[1])
            .starts_with("PROXY TCP4 10.0.0.99 10.0.0.1 1002 80\r\n")
    );
    // Its own client's next request has it, without a second header.
    world.say(one, B);
    assert_eq!(world.connects.len(), 2);
    assert!(world.got(first).starts_with("GET /b"));
    world.say(first, OK);
    world.end(one);
    assert!(world.far(first).closed);
    world.end(other);
}

#[test]
fn orders_of_the_operator_are_heeded() {
    let mut world = World::new();
    let mut snapshot = world.front.backends.snapshot(&world.front.config);
    snapshot[0].servers[0].admin = Admin::Maintenance;
    world.front.follow(&snapshot, world.now);
    for _ in 0..4 {
        world.ask(A);
    }
    for conn in world.connects.clone() {
        assert_eq!(world.far(conn).to, Some(at(11, 8_000)));
    }
}

#[test]
fn a_hashing_pool_keeps_a_client_at_its_server() {
    let mut config = config();
    config.pools[0].balance = Balance::Maglev(HashOn::Cookie("id".into()));
    let mut world = World::of(config, Limits::default(), 1);
    let mut seen = std::collections::BTreeSet::new();
    for user in 0..20 {
        let mut own = std::collections::BTreeSet::new();
        for _ in 0..3 {
            let before = world.connects.len();
            let ask = format!("POST /a HTTP/1.1\r\nHost: x\r\nCookie: id={user}\r\n\r\n");
            world.ask(ask);
            let conn = world.connects[before];
            own.insert(world.far(conn).to);
        }
        assert_eq!(own.len(), 1, "{user}");
        seen.extend(own);
    }
    assert_eq!(seen.len(), 2);
}

#[test]
fn a_request_without_a_route_is_answered() {
    let mut config = config();
    config.services[0].routes.pop();
    let mut world = World::of(config, Limits::default(), 1);
    let client = world.ask(B);
    assert!(world.got(client).starts_with("HTTP/1.1 404 Not Found\r\n"));
    assert!(world.far(client).shut && !world.far(client).closed);
    world.end(client);
    assert!(world.far(client).closed && !world.far(client).reset);
    assert!(world.connects.is_empty());
}
