//! Bodies, interim responses and upgrades.

use super::world::World;
use crate::{BLOCK_BYTES, RequestEnd};

fn body(bytes: usize) -> String {
    (0..bytes)
        .map(|at| char::from(b'a' + (at * 7 % 26) as u8))
        .collect()
}

#[test]
fn long_bodies_pass_both_ways_in_any_pieces() {
    for piece in [1_000, 10_000, usize::MAX] {
        let mut world = World::new();
        world.piece = piece;
        let up = body(5 * BLOCK_BYTES + 17);
        let ask = format!(
            "PUT /b HTTP/1.1\r\nHost: x\r\nContent-Length: {}\r\n\r\n{up}",
            up.len()
        );
        let client = world.ask(ask);
        let server = world.connects[0];
        let got = world.got(server);
        assert!(got.ends_with(&format!("\r\n\r\n{up}")), "{piece}");
        let down = body(9 * BLOCK_BYTES + 3);
        let answer = format!(
            "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{down}",
            down.len()
        );
        world.say(server, &answer);
        assert!(world.got(client) == answer, "{piece}");
        assert_eq!(world.events()[0].end, RequestEnd::Served);
        assert_eq!(world.front.counts().numbers.front_buffer_bytes, 0);
        assert_eq!(world.front.counts().numbers.front_idle, 1);
    }
}

#[test]
fn chunks_pass_as_they_are_with_their_trailers() {
    let mut world = World::new();
    world.piece = 3;
    let chunks = "4\r\nWiki\r\n5;x=\"y\"\r\npedia\r\n0\r\nX-Sum: 9\r\n\r\n";
    let ask = format!("PUT /b HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n{chunks}");
    let client = world.ask(ask);
    let server = world.connects[0];
    assert!(world.got(server).ends_with(&format!("\r\n\r\n{chunks}")));
    let answer = format!("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n{chunks}");
    world.say(server, &answer);
    assert_eq!(world.got(client), answer);
    assert_eq!(world.events()[0].end, RequestEnd::Served);
}

#[test]
fn a_response_without_a_length_ends_with_its_connection() {
    let mut world = World::new();
    let client = world.ask("GET /b HTTP/1.1\r\nHost: x\r\n\r\n");
    let server = world.connects[0];
    world.say(server, "HTTP/1.1 200 OK\r\n\r\nsome");
    world.say(server, " more");
    assert!(!world.far(client).closed);
    world.end(server);
    assert_eq!(
        world.got(client),
        "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nsome more"
    );
    assert!(world.far(client).closed && !world.far(client).reset);
}

#[test]
fn a_response_that_is_cut_resets_the_client() {
    for begin in [
        "Content-Length: 5\r\n\r\nab",
        "Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n",
    ] {
        let mut world = World::new();
        let client = world.ask("GET /b HTTP/1.1\r\nHost: x\r\n\r\n");
        let server = world.connects[0];
        world.say(server, format!("HTTP/1.1 200 OK\r\n{begin}"));
        world.end(server);
        assert!(world.far(client).reset, "{begin}");
        assert_eq!(world.events()[0].end, RequestEnd::ServerLost);
    }
}

#[test]
fn interim_responses_pass_and_a_body_waits_for_them() {
    let mut world = World::new();
    let head = "POST /b HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\n";
    let client = world.ask(head);
    let server = world.connects[0];
    assert!(world.got(server).contains("Expect: 100-continue\r\n"));
    world.say(server, "HTTP/1.1 100 Continue\r\n\r\n");
    assert_eq!(world.got(client), "HTTP/1.1 100 Continue\r\n\r\n");
    world.say(client, "hi");
    assert_eq!(world.got(server), "hi");
    world.say(
        server,
        "HTTP/1.1 103 Early Hints\r\n\r\nHTTP/1.1 204 No Content\r\n\r\n",
    );
    assert_eq!(
        world.got(client),
        "HTTP/1.1 103 Early Hints\r\n\r\nHTTP/1.1 204 No Content\r\n\r\n"
    );
    assert_eq!(world.events()[0].status, Some(204));
}

#[test]
fn an_early_response_ends_the_connection_behind_it() {
    let mut world = World::new();
    let client = world.ask("POST /b HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\nab");
    let server = world.connects[0];
    world.say(server, "HTTP/1.1 413 Too Much\r\nContent-Length: 0\r\n\r\n");
    assert!(world.got(client).starts_with("HTTP/1.1 413 Too Much\r\n"));
    assert!(world.far(client).shut && !world.far(client).reset && world.far(server).closed);
    world.say(client, "more");
    world.end(client);
    assert!(world.far(client).closed && !world.far(client).reset);
}

#[test]
fn heads_answer_without_a_body() {
    let mut world = World::new();
    let head = "HEAD /b HTTP/1.1\r\nHost: x\r\n\r\n";
    let client = world.ask(head);
    let server = world.connects[0];
    world.say(server, "HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\n");
    assert!(world.got(client).ends_with("Content-Length: 500\r\n\r\n"));
    world.say(client, head);
    assert_eq!(world.connects.len(), 1);
    world.say(
        server,
        "HTTP/1.1 304 Not Modified\r\nContent-Length: 7\r\n\r\n",
    );
    assert!(world.got(client).starts_with("HTTP/1.1 304"));
    assert!(!world.far(client).closed);
}

#[test]
fn an_upgrade_joins_the_connections() {
    let mut world = World::new();
    let ask = "GET /b HTTP/1.1\r\nHost: x\r\nConnection: upgrade\r\nUpgrade: echo\r\n\r\n";
    let client = world.ask(ask);
    let server = world.connects[0];
    world.say(
        server,
        "HTTP/1.1 101 Switching\r\nConnection: upgrade\r\nUpgrade: echo\r\n\r\nhello",
    );
    let expected = "HTTP/1.1 101 Switching\r\nConnection: upgrade\r\nUpgrade: echo\r\n\r\nhello";
    assert_eq!(world.got(client), expected);
    world.got(server);
    world.say(client, "GET / HTTP/1.1\r\n");
    assert_eq!(world.got(server), "GET / HTTP/1.1\r\n");
    world.end(client);
    assert!(world.far(server).shut && !world.far(server).closed);
    world.say(server, "bye");
    assert_eq!(world.got(client), "bye");
    world.end(server);
    assert!(world.far(client).closed && world.far(server).closed);
    assert_eq!(world.events()[0].end, RequestEnd::Upgraded);
}

#[test]
fn clients_of_http_10_are_served_as_such() {
    let mut world = World::new();
    let client = world.ask("GET /b HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
    let server = world.connects[0];
    assert!(world.got(server).starts_with("GET /b HTTP/1.0\r\n"));
    world.say(server, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
    world.end(server);
    assert!(world.got(client).contains("Connection: keep-alive\r\n"));
    assert!(!world.far(client).closed);
    world.say(client, "GET /b HTTP/1.0\r\n\r\n");
    let server = world.connects[1];
    world.say(server, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
    assert!(world.got(client).contains("Connection: close\r\n"));
    assert!(world.far(client).closed && !world.far(client).reset);
}
