//! How connections end, and what they may cost.

use std::time::Duration;

use super::world::{LISTEN, World, at, config};
use crate::{BLOCK_BYTES, Limits, RequestEnd};

const B: &str = "GET /b HTTP/1.1\r\nHost: x\r\n\r\n";

#[test]
fn bad_heads_are_answered_and_lead_nowhere() {
    for (ask, status) in [
        ("GET / HTTP/1.1\r\n\r\n", "400"),
        (
            "GET / HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
            "400",
        ),
        ("GET / HTTP/1.1\nHost: x\n\n", "400"),
        ("GET / HTTP/2.0\r\nHost: x\r\n\r\n", "505"),
        ("CONNECT x:1 HTTP/1.1\r\nHost: x\r\n\r\n", "501"),
    ] {
        let mut world = World::new();
        let client = world.ask(ask);
        assert!(
            world
                .got(client)
                .starts_with(&format!("HTTP/1.1 {status} ")),
            "{ask}"
        );
        assert!(world.far(client).shut && world.connects.is_empty());
        assert_eq!(world.events()[0].end, RequestEnd::Refused);
        world.wait(Duration::from_secs(3));
        assert!(world.far(client).closed, "the client has had its time");
    }
    let mut world = World::new();
    let client = world.ask(format!(
        "GET /{} HTTP/1.1\r\nHost: x\r\n",
        "y".repeat(20_000)
    ));
    assert!(world.got(client).starts_with("HTTP/1.1 431 "));
}

#[test]
fn chunks_that_are_none_reach_no_server_as_a_request() {
    let mut world = World::new();
    let ask = "PUT /b HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nabGET /a";
    let client = world.ask(ask);
    let server = world.connects[0];
    assert!(world.far(server).reset);
    assert!(world.got(client).starts_with("HTTP/1.1 400 "));
}

#[test]
fn slow_and_idle_clients_are_ended() {
    let mut world = World::new();
    let slow = world.ask("GET /b HT");
    for _ in 0..9 {
        world.wait(Duration::from_secs(1));
        world.say(slow, "");
    }
    assert!(world.got(slow).is_empty());
    world.wait(Duration::from_secs(2));
    assert!(world.got(slow).starts_with("HTTP/1.1 408 "));
    let idle = world.ask(B);
    let server = world.connects[0];
    world.say(server, "HTTP/1.1 204 X\r\n\r\n");
    world.wait(Duration::from_secs(59));
    assert!(!world.far(idle).shut);
    world.wait(Duration::from_secs(4));
    assert!(world.far(idle).closed && !world.far(idle).reset);
}

#[test]
fn a_server_that_says_nothing_is_given_up() {
    let mut world = World::new();
    let client = world.ask(B);
    world.wait(Duration::from_secs(61));
    assert!(world.got(client).starts_with("HTTP/1.1 504 "));
    let server = world.connects[0];
    assert!(world.far(server).reset);
    assert_eq!(world.events()[0].end, RequestEnd::Stalled);
}

#[test]
fn a_client_that_goes_takes_its_request_along() {
    let mut world = World::new();
    let client = world.ask("POST /b HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\nab");
    let server = world.connects[0];
    world.end(client);
    assert!(world.far(client).closed && world.far(server).closed);
    assert_eq!(world.events()[0].end, RequestEnd::ClientLost);
    // One that only sends nothing more still gets its answer.
    let client = world.ask(B);
    world.end(client);
    let server = world.connects[1];
    world.say(server, "HTTP/1.1 200 X\r\nContent-Length: 2\r\n\r\nok");
    assert!(world.got(client).ends_with("ok"));
    assert!(world.far(client).closed && !world.far(client).reset);
}

#[test]
fn responses_that_break_rules_are_not_passed_on() {
    for bad in [
        "HTTP/1.1 200 X\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab",
        "HTTP/1.1 101 X\r\n\r\n",
        "not http at all\r\n\r\n",
    ] {
        let mut world = World::new();
        let client = world.ask(B);
        let server = world.connects[0];
        world.say(server, bad);
        assert!(world.got(client).starts_with("HTTP/1.1 502 "), "{bad}");
        assert_eq!(world.events()[0].end, RequestEnd::BadResponse);
    }
    let mut world = World::new();
    let client = world.ask(B);
    let server = world.connects[0];
    // What a server says behind its response is nobody's.
    world.say(
        server,
        "HTTP/1.1 200 X\r\nContent-Length: 2\r\n\r\nokHTTP/1.1 200 Y\r\n\r\n",
    );
    assert_eq!(
        world.got(client),
        "HTTP/1.1 200 X\r\nContent-Length: 2\r\n\r\nok"
    );
    assert!(world.far(server).closed);
}

#[test]
fn there_are_as_many_clients_and_bytes_as_the_limits_say() {
    let limits = Limits {
        clients: 3,
        buffer_bytes: 2 * BLOCK_BYTES as u64,
        ..Limits::default()
    };
    let mut world = World::of(config(), limits, 1);
    // Two heads that are not whole take all the room.
    let slow = [world.ask("GET"), world.ask("GET")];
    let third = world.ask(B);
    assert!(world.front.accepted(world.now, at(98, 1), LISTEN).is_none());
    assert_eq!(world.front.counts().numbers.front_turned_away, 1);
    assert!(world.connects.is_empty());
    // Room comes back with the first of them.
    world.end(slow[0]);
    assert_eq!(world.connects.len(), 1);
    let server = world.connects[0];
    world.say(server, "HTTP/1.1 204 X\r\n\r\n");
    assert_eq!(world.got(third), "HTTP/1.1 204 X\r\n\r\n");
}

#[test]
fn a_drain_ends_connections_behind_their_responses() {
    let mut world = World::new();
    let (busy, idle) = (world.ask(B), world.client());
    world.front.drain(world.now);
    world.run();
    assert!(world.far(idle).shut);
    assert!(world.front.accepted(world.now, at(98, 1), LISTEN).is_none());
    let server = world.connects[0];
    world.say(server, "HTTP/1.1 200 X\r\nContent-Length: 2\r\n\r\nok");
    assert!(world.got(busy).ends_with("ok"));
    world.end(idle);
    world.wait(Duration::from_secs(3));
    assert!(world.front.is_idle() && world.front.counts().numbers.front_servers == 0);
    let mut world = World::new();
    let client = world.ask(B);
    world.front.abort(world.now);
    world.run();
    assert!(world.far(client).reset && world.front.is_idle());
}
