//! Later requests on a kept-alive connection, which another pool would get.

use core::time::Duration;

use fairlead_base::{DropReason, SeqNumber};
use fairlead_datapath::config::{Config, LaterRequests};
use fairlead_datapath::{End, Event, Side, State};
use fairlead_testkit::FastPathDouble;
use fairlead_wire::TcpFlags;

use crate::rig::{Ends, Joined, REQUEST, Rig, http_config, linux, payload};

/// Another pool's: routes of the rig lead by `.jpg`, and the first request has it.
const PAGE: &[u8] = b"GET /a.html HTTP/1.1\r\nHost: example.com\r\n\r\n";
const IMAGE: &[u8] = b"GET /b.jpg HTTP/1.1\r\nHost: example.com\r\n\r\n";

fn with(later_requests: LaterRequests) -> Config {
    let mut config = http_config();
    config.services[0].later_requests = later_requests;
    config
}

fn joined(later_requests: LaterRequests) -> Joined {
    Joined::with(with(later_requests), &Ends::default())
}

/// The number of a client whose connections are among those that are watched.
fn sampled() -> u32 {
    let is_sample = |isn: &u32| isn.wrapping_mul(0x9e37_79b1) >> 26 == 0;
    (1_000..).find(is_sample).expect("one in 64")
}

/// The server answers and the client has it.
#[track_caller]
fn answered(joined: &mut Joined) {
    joined
        .rig
        .put_one(&joined.by_server().payload(b"an answer"));
    joined.advance(Side::Server, 9);
    joined.acknowledge(Side::Client);
}

/// The client's next bytes reach the server.
#[track_caller]
fn passes(joined: &mut Joined, bytes: &[u8]) {
    let sent = joined.rig.put_one(&joined.by_client().payload(bytes));
    assert_eq!(payload(&[sent]), bytes);
    joined.advance(Side::Client, bytes.len() as u32);
}

/// Both ends are reset at the numbers that they expect, and the server gets nothing.
#[track_caller]
fn is_closed_by(joined: &mut Joined, bytes: &[u8]) {
    let sent = joined.rig.put(&joined.by_client().payload(bytes));
    let reset = TcpFlags::RST | TcpFlags::ACK;
    assert_eq!(sent.len(), 2);
    assert!(sent.iter().all(|one| one.header.flags == reset));
    let numbers: Vec<_> = sent.iter().map(|one| one.header.seq).collect();
    assert_eq!(
        numbers,
        [SeqNumber(joined.seen_nxt), SeqNumber(joined.client_nxt)]
    );
    assert_eq!(joined.rig.drops(DropReason::LaterRequest), 1);
}

fn counted(joined: &Joined) -> Vec<(String, u64)> {
    let services = joined.rig.datapath.snapshot().services;
    let counts = services[0].routes[0].later_requests.clone();
    counts.into_iter().collect()
}

fn news(joined: &mut Joined) -> usize {
    let events = joined.rig.events().into_iter();
    let all = events.filter(|event| matches!(event, Event::LaterRequest { .. }));
    all.count()
}

#[test]
fn a_request_of_another_pool_closes_its_connection() {
    let mut joined = joined(LaterRequests::Close);
    answered(&mut joined);
    passes(&mut joined, IMAGE);
    answered(&mut joined);
    is_closed_by(&mut joined, PAGE);
    assert_eq!(counted(&joined), [("to-1".to_owned(), 1)]);
    assert_eq!(joined.rig.ends(), [End::LaterRequest]);
    joined.rig.assert_empty();
}

#[test]
fn a_request_without_a_route_closes_its_connection() {
    let mut config = with(LaterRequests::Close);
    config.services[0].routes.truncate(1);
    let mut joined = Joined::with(config, &Ends::default());
    answered(&mut joined);
    is_closed_by(&mut joined, PAGE);
    assert_eq!(counted(&joined), [("unmatched".to_owned(), 1)]);
}

#[test]
fn a_body_that_looks_like_a_request_passes() {
    let mut joined = joined(LaterRequests::Close);
    // The server has said nothing since the first head.
    passes(&mut joined, PAGE);
    answered(&mut joined);
    passes(
        &mut joined,
        b"POST /c.jpg HTTP/1.1\r\nHost: example.com\r\nContent-Length: 43\r\n\r\n",
    );
    passes(&mut joined, PAGE);
    passes(&mut joined, PAGE);
    assert_eq!(counted(&joined), []);
    assert_eq!(joined.state(), State::Spliced);
}

#[test]
fn what_is_no_whole_request_behind_an_answer_passes() {
    let mut joined = joined(LaterRequests::Close);
    // Not all of the answer is acknowledged.
    joined
        .rig
        .put_one(&joined.by_server().payload(b"an answer"));
    let early = joined.by_client().payload(PAGE);
    joined.advance(Side::Server, 9);
    joined.rig.put_one(&early);
    joined.advance(Side::Client, PAGE.len() as u32);
    for bytes in [&PAGE[..20], b"\x16\x03\x01\x02\x00\x01", b"\r\n"] {
        answered(&mut joined);
        passes(&mut joined, bytes);
    }
    assert_eq!(counted(&joined), []);
    // Sent again: it is not the next thing that the client says.
    answered(&mut joined);
    joined.client_nxt -= 2;
    passes(&mut joined, b"\r\n");
    is_closed_by(&mut joined, PAGE);
}

#[test]
fn requests_are_counted_and_pass() {
    let ends = Ends {
        client_isn: sampled(),
        ..Ends::default()
    };
    let mut joined = Joined::with(with(LaterRequests::Count), &ends);
    for round in 1..4 {
        answered(&mut joined);
        passes(&mut joined, PAGE);
        assert_eq!(counted(&joined), [("to-1".to_owned(), round)]);
    }
    assert_eq!(news(&mut joined), 1, "the first of them");
    joined.rig.wait(Duration::from_secs(3_601));
    answered(&mut joined);
    passes(&mut joined, PAGE);
    assert_eq!(news(&mut joined), 1, "once an hour");
    assert_eq!(joined.state(), State::Spliced);
}

#[test]
fn nothing_is_counted_where_nobody_asks_or_the_connection_is_not_drawn() {
    for (later_requests, client_isn) in [
        (LaterRequests::Pass, sampled()),
        (LaterRequests::Count, sampled() + 1),
    ] {
        let ends = Ends {
            client_isn,
            ..Ends::default()
        };
        let mut joined = Joined::with(with(later_requests), &ends);
        answered(&mut joined);
        passes(&mut joined, PAGE);
        assert_eq!(counted(&joined), []);
    }
}

/// The fast path is given connections that are not watched, and no others.
#[test]
fn the_engine_keeps_what_it_watches() {
    for (later_requests, client_isn, kept) in [
        (LaterRequests::Close, 1_000, true),
        (LaterRequests::Count, sampled(), true),
        (LaterRequests::Count, sampled() + 1, false),
    ] {
        let ends = Ends {
            client_isn,
            ..Ends::default()
        };
        let mut joined = Joined::with(with(later_requests), &ends);
        let double = FastPathDouble::connecting();
        let fast_path = Box::new(double.clone());
        joined.rig.datapath.set_fast_path(joined.rig.now, fast_path);
        answered(&mut joined);
        let held = double.told(|told| told.lines.len());
        assert_eq!(held, usize::from(!kept), "{later_requests:?}");
        if later_requests == LaterRequests::Close {
            is_closed_by(&mut joined, PAGE);
        }
    }
}

/// Nor does it join them.
#[test]
fn the_fast_path_joins_only_what_it_may_keep() {
    for (later_requests, client_isn, armed, kept) in [
        (LaterRequests::Close, 1_000, 0, 0),
        (LaterRequests::Count, sampled(), 0, 0),
        (LaterRequests::Count, sampled() + 1, 1, 1),
    ] {
        let mut rig = Rig::probed(with(later_requests), &linux(1));
        let double = FastPathDouble::connecting();
        let fast_path = Box::new(double.clone());
        rig.datapath.set_fast_path(rig.now, fast_path);
        rig.request(client_isn, REQUEST);
        assert_eq!(double.told(|told| told.arms), armed, "{later_requests:?}");
        let lines: Vec<_> = double.told(|told| told.lines.keys().copied().collect());
        for line in lines {
            double.join(line, 70_000);
        }
        rig.datapath.catch_up_with_fast_path(rig.now);
        assert_eq!(
            double.told(|told| told.lines.len()),
            kept,
            "{later_requests:?}"
        );
    }
}
