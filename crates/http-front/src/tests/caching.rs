//! Routes with a cache.

use std::time::Duration;

use fairlead_http_cache::Journal;
use fairlead_splice::access::{AccessEntry, AccessList};
use fairlead_splice::config::CacheRule;

use super::world::{LISTEN, World, at, config};
use crate::{BLOCK_BYTES, Limits, RequestEnd};

const B: &str = "GET /b HTTP/1.1\r\nHost: x\r\n\r\n";

fn world() -> World {
    let mut config = config();
    config.services[0].routes[1].cache = Some(CacheRule::new(8 << 20));
    let mut world = World::of(config, Limits::default(), 1);
    world.front.set_wall_clock(world.now, 1_800_000_000_000);
    world
}

fn world_in_files() -> World {
    let mut world = world();
    world.put_into_files(1_800_000_000_000, Vec::new());
    world
}

fn fresh(body: &str) -> String {
    let len = body.len();
    format!("HTTP/1.1 200 OK\r\nCache-Control: max-age=60\r\nContent-Length: {len}\r\n\r\n{body}")
}

fn body(response: &str) -> &str {
    response.split_once("\r\n\r\n").expect("a whole head").1
}

#[test]
fn the_second_request_is_answered_without_the_server() {
    let mut world = world();
    let client = world.ask(B);
    let server = world.connects[0];
    assert!(world.got(server).starts_with("GET /b HTTP/1.1\r\n"));
    world.say(server, fresh("hello"));
    let got = world.got(client);
    assert!(
        got.starts_with("HTTP/1.1 200 OK\r\n") && got.ends_with("\r\n\r\nhello"),
        "{got}"
    );
    assert!(
        got.contains("cache-status: fairlead; fwd=uri-miss"),
        "{got}"
    );
    world.wait(Duration::from_secs(3));
    for _ in 0..3 {
        world.say(client, B);
        let got = world.got(client);
        assert!(
            got.contains("\r\nage: 3\r\n") && got.contains("cache-status: fairlead; hit"),
            "{got}"
        );
        assert_eq!(body(&got), "hello");
    }
    assert_eq!(world.connects.len(), 1);
    assert_eq!(world.got(server), "");
    let ends: Vec<_> = world.events().iter().map(|event| event.end).collect();
    assert_eq!(ends, [RequestEnd::Served; 4]);
    world.end(client);
    assert!(world.front.is_idle());
}

#[test]
fn long_bodies_are_stored_and_sent_in_any_pieces() {
    let kinds = [(700, false), (700, true), (100_000, false), (100_000, true)];
    let kinds = kinds.map(|(piece, chunked)| [(piece, chunked, false), (piece, chunked, true)]);
    for (piece, chunked, in_file) in kinds.into_iter().flatten() {
        let mut world = if in_file { world_in_files() } else { world() };
        world.piece = piece;
        let text: String = (0..5 * BLOCK_BYTES)
            .map(|at| char::from(b'a' + (at % 26) as u8))
            .collect();
        let answer = match chunked {
            false => fresh(&text),
            true => format!(
                "HTTP/1.1 200 OK\r\nCache-Control: max-age=60\r\nTransfer-Encoding: chunked\r\n\r\n\
                 {:x}\r\n{text}\r\n0\r\n\r\n",
                text.len()
            ),
        };
        let first = world.ask(B);
        let server = world.connects[0];
        world.say(server, answer);
        let unchunked = |got: &str| {
            let (head, mut rest) = got.split_once("\r\n\r\n").expect("a head");
            if !head.contains("chunked") {
                return rest.to_owned();
            }
            let mut whole = String::new();
            loop {
                let Some((size, after)) = rest.split_once("\r\n") else {
                    panic!("no size: {:?}, {} bytes, {head}", rest, whole.len());
                };
                let size = usize::from_str_radix(size, 16).expect("a number");
                whole += &after[..size];
                rest = &after[size + 2..];
                if size == 0 {
                    assert_eq!(rest, "");
                    return whole;
                }
            }
        };
        let got = world.got(first);
        assert!(unchunked(&got) == text, "{piece} {chunked}");
        let second = world.ask(B);
        let got = world.got(second);
        let head = got.split_once("\r\n\r\n").map(|(head, _)| head);
        assert!(got.contains("fairlead; hit"), "{piece} {chunked} {head:?}");
        assert!(unchunked(&got) == text, "{piece} {chunked} {head:?}");
        assert_eq!(world.connects.len(), 1);
        assert_eq!(world.parts > 0, in_file);
        let part = world.ask("GET /b HTTP/1.1\r\nHost: x\r\nRange: bytes=100000-100009\r\n\r\n");
        let got = world.got(part);
        assert!(got.starts_with("HTTP/1.1 206 "), "{got}");
        assert_eq!(body(&got), &text[100_000..100_010]);
    }
}

#[test]
fn many_misses_at_once_are_one_fetch() {
    let mut world = world();
    let clients: Vec<_> = (0..50).map(|_| world.ask(B)).collect();
    assert_eq!(world.connects.len(), 1);
    let server = world.connects[0];
    world.say(server, fresh("once"));
    for client in clients {
        assert_eq!(body(&world.got(client)), "once");
    }
    assert_eq!(world.got(server).matches("GET").count(), 1);
}

#[test]
fn private_answers_release_those_that_wait() {
    let mut world = world();
    let clients: Vec<_> = (0..5).map(|_| world.ask(B)).collect();
    assert_eq!(world.connects.len(), 1);
    let private = "HTTP/1.1 200 OK\r\nCache-Control: private\r\nContent-Length: 1\r\n\r\n";
    let server = world.connects[0];
    world.got(server);
    world.say(server, format!("{private}0"));
    // Each of the others has its own.
    assert_eq!(
        world.connects.len() + usize::try_from(world.front.counts().numbers.front_reuses).unwrap(),
        5
    );
    let mut number = 1;
    for conn in world.connects.clone() {
        while world.got(conn).contains("GET") {
            world.say(conn, format!("{private}{number}"));
            number += 1;
        }
    }
    let mut bodies = std::collections::BTreeSet::new();
    for client in clients {
        let got = world.got(client);
        assert!(!got.contains("; hit"), "{got}");
        bodies.insert(body(&got).to_owned());
    }
    assert_eq!(bodies.len(), 5, "somebody got another's: {bodies:?}");
}

#[test]
fn what_is_stale_is_validated_and_replaced() {
    let mut world = world();
    let client = world.ask(B);
    let server = world.connects[0];
    let stored = "HTTP/1.1 200 OK\r\nCache-Control: max-age=5\r\nETag: \"1\"\r\n\
                  Content-Length: 3\r\n\r\none";
    world.say(server, stored);
    world.got(server);
    assert_eq!(body(&world.got(client)), "one");
    world.wait(Duration::from_secs(6));
    world.say(client, B);
    assert!(world.got(server).contains("if-none-match: \"1\"\r\n"));
    world.say(
        server,
        "HTTP/1.1 304 Not Modified\r\nCache-Control: max-age=5\r\nETag: \"1\"\r\n\r\n",
    );
    let got = world.got(client);
    assert!(
        got.starts_with("HTTP/1.1 200 ") && body(&got) == "one",
        "{got}"
    );
    world.wait(Duration::from_secs(6));
    world.say(client, B);
    world.got(server);
    world.say(server, fresh("two"));
    assert_eq!(body(&world.got(client)), "two");
    assert_eq!(world.connects.len(), 1);
    // Its client has it already.
    let ask = "GET /b HTTP/1.1\r\nHost: x\r\nIf-None-Match: \"1\"\r\n\r\n";
    world.say(client, ask);
    assert!(world.got(client).starts_with("HTTP/1.1 200 "));
}

#[test]
fn interim_responses_reach_the_client_that_caused_the_fetch() {
    let mut world = world();
    let client = world.ask(B);
    let server = world.connects[0];
    let interim = "HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n";
    world.say(server, interim);
    assert_eq!(world.got(client), interim);
    world.say(server, format!("{interim}{}", fresh("hello")));
    let got = world.got(client);
    assert!(
        got.starts_with(&format!("{interim}HTTP/1.1 200 OK\r\n")),
        "{got}"
    );
    world.say(client, B);
    let got = world.got(client);
    assert!(
        got.starts_with("HTTP/1.1 200 OK\r\n") && got.contains("; hit"),
        "{got}"
    );
}

#[test]
fn a_dead_server_is_stood_in_for_by_what_is_stale() {
    let mut world = world();
    let client = world.ask(B);
    let server = world.connects[0];
    let stored = "HTTP/1.1 200 OK\r\nCache-Control: max-age=5, stale-if-error=60\r\n\
                  Content-Length: 3\r\n\r\none";
    world.say(server, stored);
    assert_eq!(body(&world.got(client)), "one");
    world.end(server);
    world.refusing.push(super::world::at(20, 8_000));
    world.wait(Duration::from_secs(6));
    world.say(client, B);
    let got = world.got(client);
    assert!(
        got.starts_with("HTTP/1.1 200 ") && body(&got) == "one",
        "{got}"
    );
    world.wait(Duration::from_secs(60));
    let client = world.ask(B);
    assert!(world.got(client).starts_with("HTTP/1.1 503 "));
}

#[test]
fn requests_that_change_something_pass_and_invalidate() {
    let mut world = world();
    let client = world.ask(B);
    let server = world.connects[0];
    world.say(server, fresh("old"));
    world.got(client);
    world.say(
        client,
        "POST /b HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\nhi",
    );
    let own = world.connects[1];
    world.say(own, "HTTP/1.1 204 Done\r\n\r\n");
    let got = world.got(client);
    assert!(
        got.starts_with("HTTP/1.1 204 Done\r\n") && got.contains("fwd=method"),
        "{got}"
    );
    world.got(server);
    world.got(own);
    world.say(client, B);
    let again = [server, own]
        .into_iter()
        .find(|&conn| !world.far(conn).got.is_empty());
    let again = again.expect("a fetch");
    world.say(again, fresh("new"));
    assert_eq!(body(&world.got(client)), "new");
}

#[test]
fn a_fetch_outlives_its_client_and_a_cut_body_is_not_stored() {
    let mut world = world();
    let client = world.ask(B);
    let server = world.connects[0];
    world.say(
        server,
        "HTTP/1.1 200 OK\r\nCache-Control: max-age=60\r\nContent-Length: 6\r\n\r\nabc",
    );
    world.front.failed(world.now, client);
    world.run();
    world.say(server, "def");
    let next = world.ask(B);
    let got = world.got(next);
    assert!(got.contains("; hit") && body(&got) == "abcdef", "{got}");
    // Cut in the middle: its client sees that, and the next one has its own.
    let cut = "GET /cut HTTP/1.1\r\nHost: x\r\n\r\n";
    let client = world.ask(cut);
    world.say(
        server,
        "HTTP/1.1 200 OK\r\nCache-Control: max-age=60\r\nContent-Length: 6\r\n\r\nabc",
    );
    world.end(server);
    assert!(world.far(client).reset);
    let before = world.connects.len();
    world.ask(cut);
    assert_eq!(world.connects.len(), before + 1);
}

#[test]
fn heads_and_old_clients_are_answered_from_the_cache() {
    let mut world = world();
    // A HEAD is no reason to fetch a body.
    let head = "HEAD /b HTTP/1.1\r\nHost: x\r\n\r\n";
    let client = world.ask(head);
    let server = world.connects[0];
    assert!(world.got(server).starts_with("HEAD /b"));
    world.say(server, "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n");
    assert!(world.got(client).contains("fairlead; fwd=bypass"));
    world.say(client, B);
    world.say(server, fresh("hello"));
    world.got(client);
    world.say(client, head);
    let got = world.got(client);
    assert!(
        got.contains("; hit") && got.contains("content-length: 5\r\n"),
        "{got}"
    );
    assert!(body(&got).is_empty());
    let old = world.ask("GET /b HTTP/1.0\r\nHost: x\r\n\r\n");
    let got = world.got(old);
    assert!(
        got.contains("Connection: close\r\n") && body(&got) == "hello",
        "{got}"
    );
    assert!(world.far(old).closed && !world.far(old).reset);
}

#[test]
fn the_next_process_has_what_was_stored() {
    let mut world = world_in_files();
    let text = "x".repeat(50_000);
    let client = world.ask(B);
    let server = world.connects[0];
    world.say(server, fresh(&text));
    let got = world.got(client);
    assert_eq!(body(&got), text);
    let Journal::Replace(mut journal) = world.front.poll_journal(0) else {
        panic!("a journal begins as a whole");
    };
    let client = world.ask("GET /c HTTP/1.1\r\nHost: x\r\n\r\n");
    world.say(server, fresh("short"));
    assert_eq!(body(&world.got(client)), "short");
    let Journal::Append(more) = world.front.poll_journal(0) else {
        panic!("there is news");
    };
    journal.extend(more);
    assert_eq!(world.front.poll_journal(0), Journal::Nothing);
    let file = world.files[0].again();
    let mut config = config();
    config.services[0].routes[1].cache = Some(CacheRule::new(8 << 20));
    let mut next = World::of(config, Limits::default(), 2);
    next.put_into_files(1_800_000_007_000, vec![(file, journal)]);
    for (request, whole) in [
        (B, &text[..]),
        ("GET /c HTTP/1.1\r\nHost: x\r\n\r\n", "short"),
    ] {
        let client = next.ask(request);
        let got = next.got(client);
        assert!(
            got.contains("\r\nage: 7\r\n") && got.contains("fairlead; hit"),
            "{got}"
        );
        assert_eq!(body(&got), whole);
    }
    assert_eq!((next.connects.len(), next.parts > 0), (0, true));
    assert_eq!(next.front.caches()[0].stats.restored, 2);
}

/// A body whose server dies is cut for those who read it, also where they read the file.
#[test]
fn a_body_in_a_file_that_is_cut_is_no_whole_one() {
    let mut world = world_in_files();
    let client = world.ask(B);
    let server = world.connects[0];
    let text = "y".repeat(40_000);
    world.say(server, &fresh(&text)[..30_000]);
    world.end(server);
    assert!(world.far(client).reset);
    assert!(world.got(client).len() < 31_000);
    assert_eq!(world.front.caches()[0].stats.objects, 0);
}

fn purging_world(list: &[u8]) -> World {
    let mut config = config();
    let mut rule = CacheRule::new(8 << 20);
    let entries = list.iter().map(|last| AccessEntry {
        first: at(*last, 0).addr,
        bits: 32,
        allow: true,
    });
    rule.purge_from = Some(AccessList::new("purge_from", false, entries.collect()));
    config.services[0].routes[1].cache = Some(rule);
    let mut world = World::of(config, Limits::default(), 1);
    world.put_into_files(1_800_000_000_000, Vec::new());
    world
}

#[test]
fn listed_clients_purge_by_request() {
    let mut world = purging_world(&[99]);
    let client = world.ask(B);
    let server = world.connects[0];
    let tagged = |body: &str, tag: &str| {
        fresh(body).replace("\r\n\r\n", &format!("\r\nxkey: {tag}\r\n\r\n"))
    };
    let is_hit = |world: &mut World, next: &str| {
        world.say(client, B);
        let got = world.got(client);
        let hit = got.contains("fairlead; hit");
        if got.is_empty() {
            world.say(server, tagged(next, "one two"));
            world.got(client);
        }
        hit
    };
    world.say(server, tagged("first", "one two"));
    world.got(client);
    assert!(is_hit(&mut world, "never"));
    for (line, gone) in [
        ("PURGE /b HTTP/1.1\r\nHost: x\r\n\r\n", true),
        ("PURGE /b HTTP/1.1\r\nHost: y\r\n\r\n", false),
        (
            "PURGE / HTTP/1.1\r\nHost: y\r\nxkey-purge: none, two\r\n\r\n",
            true,
        ),
        (
            "PURGE / HTTP/1.1\r\nHost: y\r\nSurrogate-Key: none\r\n\r\n",
            false,
        ),
        (
            "PURGE / HTTP/1.1\r\nHost: y\r\nSurrogate-Key: one\r\n\r\n",
            true,
        ),
    ] {
        let purger = world.ask(line);
        let got = world.got(purger);
        assert!(got.starts_with("HTTP/1.1 200 Purged\r\n"), "{got}");
        assert!(world.front.must_write());
        assert_eq!(is_hit(&mut world, "next"), !gone, "{line}");
    }
    // What is purged softly is stale, and still there.
    for line in [
        "PURGE /b HTTP/1.1\r\nHost: x\r\nFastly-Soft-Purge: 1\r\n\r\n",
        "PURGE /c HTTP/1.1\r\nHost: x\r\nxkey-softpurge: one\r\n\r\n",
    ] {
        let purger = world.ask(line);
        assert!(world.got(purger).starts_with("HTTP/1.1 200 "));
        let objects = world.front.caches()[0].stats.objects;
        assert_eq!(objects, 1, "{line}");
        assert!(!is_hit(&mut world, "next"), "{line}");
    }
    assert_eq!(world.front.caches()[0].stats.purges, 8, "with each tag");
    assert_eq!(world.got(server).matches("PURGE").count(), 0);
}

#[test]
fn other_clients_do_not_purge() {
    let mut world = purging_world(&[7]);
    let client = world.ask(B);
    let server = world.connects[0];
    world.say(server, fresh("first"));
    let got = world.got(client);
    assert!(got.ends_with("first"), "{got}");
    world.say(client, "PURGE /b HTTP/1.1\r\nHost: x\r\n\r\n");
    assert!(world.got(client).starts_with("HTTP/1.1 403 "));
    assert!(!world.front.must_write());
    world.say(client, B);
    assert!(world.got(client).contains("fairlead; hit"));
    // Without a list it is a method like others.
    let mut world = self::world();
    let client = world.ask("PURGE /b HTTP/1.1\r\nHost: x\r\n\r\n");
    let server = world.connects[0];
    assert!(world.got(server).starts_with("PURGE /b "));
    world.say(server, "HTTP/1.1 405 No\r\nContent-Length: 0\r\n\r\n");
    assert!(world.got(client).starts_with("HTTP/1.1 405 "));
}

#[test]
fn one_client_has_no_more_connections_than_it_may() {
    let mut config = config();
    config.limits.front_per_client = 3;
    let mut world = World::of(config, Limits::default(), 1);
    let clients = [world.client(), world.client(), world.client()];
    let more = |world: &mut World, last| world.front.accepted(world.now, at(last, 9), LISTEN);
    assert_eq!(more(&mut world, 99), None);
    assert!(more(&mut world, 98).is_some(), "another one");
    world.end(clients[1]);
    assert!(more(&mut world, 99).is_some());
    assert_eq!(world.front.counts().numbers.front_turned_away, 1);
}

/// The first response turns out to be for another language, so one of those that waited asks for
/// theirs, and the other waits again.
#[test]
fn a_request_that_waits_twice_is_answered() {
    let mut world = world();
    let ask = |language: &str| {
        format!("GET /b HTTP/1.1\r\nHost: x\r\nAccept-Language: {language}\r\n\r\n")
    };
    let varying = |body: &str| fresh(body).replace("\r\n\r\n", "\r\nVary: Accept-Language\r\n\r\n");
    let first = world.ask(ask("de"));
    let others = [
        world.ask(ask("en")),
        world.ask(ask("en")),
        world.ask(ask("en")),
    ];
    let server = world.connects[0];
    world.got(server);
    world.say(server, varying("hallo"));
    assert!(world.got(first).ends_with("hallo"));
    let asked: usize = world
        .connects
        .clone()
        .into_iter()
        .map(|server| world.got(server).matches("GET").count())
        .sum();
    assert_eq!(asked, 1, "for all three");
    let server = *world.connects.last().expect("one");
    world.say(server, varying("hello"));
    for other in others {
        assert!(world.got(other).ends_with("hello"));
    }
}

#[test]
fn what_is_not_for_the_cache_is_named() {
    for (fields, named) in [
        ("Cache-Control: no-store", true),
        ("Cache-Control: private, max-age=60", true),
        ("X: y", true),
        ("Cache-Control: max-age=60", false),
    ] {
        let mut config = config();
        config.services[0].routes[1].cache = Some(CacheRule::new(8 << 20));
        let mut world = World::of(config, Limits::default(), 1);
        world.front.set_wall_clock(world.now, 1_800_000_000_000);
        let id = world.ask("GET /p?q=1 HTTP/1.1\r\nHost: x.example\r\n\r\n");
        let server = world.connects[0];
        world.say(
            server,
            format!("HTTP/1.1 200 OK\r\n{fields}\r\nContent-Length: 1\r\n\r\n1"),
        );
        assert!(world.got(id).ends_with('1'));
        let told = world.front.poll_uncached();
        assert_eq!(told.is_some(), named, "{fields}");
        if let Some(told) = told {
            assert_eq!((told.service, told.route), (0, 1));
            assert_eq!((&*told.host, &*told.target), ("x.example", &b"/p?q=1"[..]));
        }
        assert_eq!(world.front.poll_uncached(), None);
    }
}
