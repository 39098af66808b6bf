//! Connections go to other processes.

use fairlead_splice::config::CacheRule;

use super::world::{LISTEN, World, at, config};
use crate::{Limits, RequestEnd};

const A: &str = "GET /a HTTP/1.1\r\nHost: x\r\n\r\n";
const B: &str = "GET /b HTTP/1.1\r\nHost: x\r\n\r\n";

fn world(in_files: bool) -> World {
    let mut config = config();
    config.services[0].routes[1].cache = Some(CacheRule::new(8 << 20));
    let mut world = World::of(config, Limits::default(), 1);
    match in_files {
        true => world.put_into_files(1_800_000_000_000, Vec::new()),
        false => world.front.set_wall_clock(world.now, 1_800_000_000_000),
    }
    world
}

fn fresh(body: &str) -> String {
    let len = body.len();
    format!("HTTP/1.1 200 OK\r\nCache-Control: max-age=60\r\nContent-Length: {len}\r\n\r\n{body}")
}

#[test]
fn clients_go_when_they_wait_for_a_request() {
    let mut world = world(false);
    let (idle, busy, begun) = (world.client(), world.ask(A), world.ask("GET /"));
    world.front.release(world.now);
    world.run();
    assert_eq!(world.released, [idle]);
    let server = world.connects[0];
    world.say(server, fresh("hello"));
    assert!(world.got(busy).ends_with("hello"));
    assert_eq!(world.released, [idle, busy]);
    world.say(begun, "a HTTP/1.1\r\nHost: x\r\n\r\n");
    let server = world.connects[1];
    world.say(server, fresh("again"));
    assert!(world.got(begun).ends_with("again"));
    assert_eq!(world.released, [idle, busy, begun]);
    assert!(world.front.is_idle());
    assert!(world.far.values().all(|far| !far.closed));
}

#[test]
fn another_front_goes_on_with_them() {
    let mut world = world(false);
    assert!(world.inherit(LISTEN).is_some());
    assert_eq!(world.inherit(at(3, 3)), None);
    assert_eq!(world.front.counts().numbers.front_turned_away, 1);
    world.wait(std::time::Duration::from_secs(59));
    assert!(!world.front.is_idle(), "as long as between two requests");
    world.wait(std::time::Duration::from_secs(4));
    assert!(world.front.is_idle());
}

#[test]
fn stored_bodies_are_copied_before_their_file_is_left() {
    for in_files in [false, true] {
        let mut world = world(in_files);
        let body = "0123456789".repeat(20_000);
        let first = world.ask(B);
        let server = world.connects[0];
        world.say(server, fresh(&body));
        assert!(world.got(first).ends_with(&body));
        world.say_only(first, B.as_bytes());
        assert!(world.front.uses_caches());
        world.front.release(world.now);
        world.front.part_from_caches(world.now);
        assert!(!world.front.uses_caches());
        world.files.clear();
        world.run();
        assert!(world.got(first).ends_with(&body), "in files: {in_files}");
        assert_eq!(world.released, [first]);
    }
}

#[test]
fn those_that_wait_for_a_fetch_go_on_alone() {
    let mut world = world(false);
    let (first, second) = (world.ask(B), world.ask(B));
    let head = world.ask(B.replace("GET /b", "HEAD /c"));
    let passed = world.ask(
        B.replace("GET", "POST")
            .replace("\r\n\r\n", "\r\nContent-Length: 0\r\n\r\n"),
    );
    let before = world.connects.len();
    assert_eq!(before, 3, "one fetch for two");
    world.front.release(world.now);
    world.front.part_from_caches(world.now);
    world.run();
    let of_head = world.connects[1];
    assert!(
        world.got(of_head).starts_with("HEAD /c HTTP/1.1\r\n"),
        "not for the cache"
    );
    world.say(of_head, "HTTP/1.1 204 No\r\n\r\n");
    assert!(world.got(head).starts_with("HTTP/1.1 204 "));
    let servers = world.connects.split_off(before);
    assert_eq!(servers.len(), 2);
    for (at, server) in servers.into_iter().enumerate() {
        assert!(world.got(server).starts_with("GET /b HTTP/1.1\r\n"));
        world.say(server, fresh(&at.to_string()));
    }
    let mut got = [world.got(first), world.got(second)];
    got.sort_by_key(|one| one.chars().last());
    assert!(
        got[0].ends_with("\r\n\r\n0") && got[1].ends_with("\r\n\r\n1"),
        "{got:?}"
    );
    let to_passed = world.connects[2];
    world.say(to_passed, fresh("done"));
    assert!(world.got(passed).ends_with("done"));
}

#[test]
fn a_body_that_is_being_fetched_is_cut_off() {
    let mut world = world(false);
    let (first, second) = (world.ask(B), world.ask(B));
    let server = world.connects[0];
    let answer = fresh("hello");
    world.say(server, &answer[..answer.len() - 2]);
    world.front.release(world.now);
    world.front.part_from_caches(world.now);
    world.run();
    for client in [first, second] {
        assert!(world.far(client).reset);
    }
    assert!(world.front.is_idle());
    let ends: Vec<_> = world.events().iter().map(|event| event.end).collect();
    assert!(
        ends.iter().all(|end| *end != RequestEnd::Served),
        "{ends:?}"
    );
}
