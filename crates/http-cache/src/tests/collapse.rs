//! Requests at the same time.

use super::rig::{Got, Rig, hit};
use crate::*;

const HOUR: &str = "Cache-Control: max-age=3600";

fn wait(rig: &mut Rig, lines: &[&str]) -> WaiterId {
    match rig.ask("GET", "/a", lines) {
        Got::Wait(waiter) => waiter,
        other => panic!("{other:?}"),
    }
}

fn resumed(rig: &mut Rig) -> Vec<WaiterId> {
    let events = rig.events();
    let resumed = events.iter().filter_map(|event| match event {
        Event::Resume(waiter) => Some(*waiter),
        _ => None,
    });
    resumed.collect()
}

#[test]
fn a_thousand_clients_make_one_fetch() {
    let mut rig = Rig::new();
    let fetch = rig.fetch("/a");
    for _ in 1..1_000 {
        wait(&mut rig, &[]);
    }
    assert!(rig.events().is_empty());
    let Next::Fill(Some(first)) = rig.respond_with(fetch, 200, &[HOUR], Some(4)) else {
        panic!("storable");
    };
    let now = rig.now();
    rig.cache.body(fetch, b"bo", now).expect("fits");
    let waiters = resumed(&mut rig);
    assert_eq!(waiters.len(), 999);
    let mut readers = vec![first];
    for waiter in waiters {
        rig.out.clear();
        match rig.cache.resume(waiter, now, &mut rig.out) {
            Decision::Hit { answer, .. } => readers.push(answer),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(
        rig.field("cache-status").as_deref(),
        Some("fairlead; fwd=uri-miss; ttl=3600; collapsed")
    );
    let mut bodies = vec![Vec::new(); readers.len()];
    for (answer, body) in readers.iter().zip(&mut bodies) {
        assert!(!rig.read_some(answer.body.expect("a body").reader, body));
        assert_eq!(body, b"bo");
    }
    rig.cache.body(fetch, b"dy", now).expect("fits");
    assert_eq!(rig.events().len(), 1_000);
    rig.cache.finish(fetch, now).expect("complete");
    for (answer, body) in readers.iter().zip(&mut bodies) {
        let reader = answer.body.expect("a body").reader;
        assert!(rig.read_some(reader, body));
        assert_eq!(body, b"body");
        rig.cache.end(reader);
    }
    rig.cache.check_invariants();
    let stats = rig.cache.stats();
    assert_eq!((stats.misses, stats.collapsed, stats.readers), (1, 999, 0));
}

#[test]
fn a_private_answer_releases_all_and_is_remembered() {
    let mut rig = Rig::new();
    let fetch = rig.fetch("/a");
    for _ in 0..10 {
        wait(&mut rig, &[]);
    }
    let next = rig.respond(fetch, 200, &["Cache-Control: private"]);
    assert_eq!(next, Next::Relay(Reason::Private));
    let waiters = resumed(&mut rig);
    assert_eq!(waiters.len(), 10);
    let mut fetches = Vec::new();
    for waiter in waiters {
        match rig.resume(waiter) {
            Got::Fetch(fetch, _) => fetches.push(fetch),
            other => panic!("{other:?}"),
        }
    }
    fetches.push(rig.fetch("/a"));
    assert!(
        rig.cache
            .explain("a.example", b"/a", rig.now())
            .is_uncacheable
    );
    // Once it can be shared, it is.
    let last = fetches.pop().expect("some");
    rig.serve(last, &[HOUR], b"body");
    assert_eq!(rig.get("/a"), hit(b"body"));
    for fetch in fetches {
        rig.respond(fetch, 200, &["Cache-Control: private"]);
    }
    rig.pass_seconds(121);
    assert_eq!(rig.cache.stats().fetches, 0);
}

#[test]
fn other_variants_make_one_fetch_each() {
    let mut rig = Rig::new();
    let Got::Fetch(first, _) = rig.ask("GET", "/a", &["Accept-Language: a"]) else {
        panic!("a miss");
    };
    for _ in 0..5 {
        for line in [
            "Accept-Language: a",
            "Accept-Language: b",
            "Accept-Language: c",
        ] {
            wait(&mut rig, &[line]);
        }
    }
    rig.serve(first, &[HOUR, "Vary: Accept-Language"], b"a");
    let (mut fetches, mut hits, mut waits) = (0, 0, 0);
    for waiter in resumed(&mut rig) {
        match rig.resume(waiter) {
            Got::Fetch(..) => fetches += 1,
            Got::Hit { .. } => hits += 1,
            Got::Wait(_) => waits += 1,
            Got::Pass(reason) => panic!("{reason:?}"),
        }
    }
    assert_eq!((fetches, hits, waits), (2, 5, 8));
}

#[test]
fn a_fetch_that_stalls_frees_its_waiters() {
    let mut rig = Rig::new();
    let fetch = rig.fetch("/a");
    wait(&mut rig, &[]);
    rig.ms += 300;
    wait(&mut rig, &[]);
    assert_eq!(
        rig.cache.poll_timeout().map(|at| at.as_millis()),
        Some(1_500)
    );
    rig.ms += 200;
    rig.cache.handle_timeout(rig.now().at);
    let waiters = resumed(&mut rig);
    assert_eq!(waiters.len(), 1);
    assert!(matches!(rig.resume(waiters[0]), Got::Fetch(..)));
    // The other one may go on waiting, and the slow response still serves it.
    rig.serve(fetch, &[HOUR], b"slow");
    let waiters = resumed(&mut rig);
    assert_eq!(rig.resume(waiters[0]), hit(b"slow"));
    assert_eq!(rig.cache.stats().reason(Reason::Stalled), 1);
    assert_eq!(rig.cache.stats().waiters, 0);
}

#[test]
fn a_fetch_that_fails_is_tried_by_one_waiter() {
    let mut rig = Rig::new();
    let fetch = rig.fetch("/a");
    for _ in 0..10 {
        wait(&mut rig, &[]);
    }
    let now = rig.now();
    assert_eq!(
        rig.cache.abort(fetch, Reason::Cut, now, &mut Vec::new()),
        None
    );
    let (mut fetches, mut waits) = (Vec::new(), 0);
    for waiter in resumed(&mut rig) {
        match rig.resume(waiter) {
            Got::Fetch(fetch, _) => fetches.push(fetch),
            Got::Wait(_) => waits += 1,
            other => panic!("{other:?}"),
        }
    }
    assert_eq!((fetches.len(), waits), (1, 9));
    rig.ms += 500;
    rig.cache.handle_timeout(rig.now().at);
    assert_eq!(resumed(&mut rig).len(), 9);
}

#[test]
fn requests_of_their_own_do_not_wait() {
    let mut rig = Rig::new();
    let _ = rig.fetch("/a");
    for line in ["Authorization: x", "Cache-Control: no-cache"] {
        assert!(
            matches!(rig.ask("GET", "/a", &[line]), Got::Fetch(..)),
            "{line}"
        );
    }
    let waiter = wait(&mut rig, &["Cookie: a=b"]);
    rig.cache.cancel(waiter);
    rig.cache.check_invariants();
    assert_eq!(rig.cache.stats().waiters, 0);
}

#[test]
fn a_body_of_unknown_length_that_is_too_long_is_passed_on_within_a_window() {
    let mut settings = Settings::new(4 << 20);
    settings.max_object = 100_000;
    let mut rig = Rig::with(settings);
    let fetch = rig.fetch("/a");
    wait(&mut rig, &[]);
    let Next::Fill(Some(first)) = rig.respond(fetch, 200, &[HOUR]) else {
        panic!("storable");
    };
    let now = rig.now();
    let waiter = resumed(&mut rig)[0];
    let second = match rig.cache.resume(waiter, now, &mut rig.out) {
        Decision::Hit { answer, .. } => answer.body.expect("a body").reader,
        other => panic!("{other:?}"),
    };
    let first = first.body.expect("a body").reader;
    let body: Vec<u8> = (0..2_000_000u32).map(|at| (at / 7) as u8).collect();
    let (mut one, mut two) = (Vec::new(), Vec::new());
    let mut sent = 0;
    let mut waits = 0;
    while sent < body.len() {
        let next = (sent + 30_000).min(body.len());
        sent += rig
            .cache
            .body(fetch, &body[sent..next], now)
            .expect("memory");
        assert!(rig.cache.stats().body_bytes <= 65 * 4_096);
        assert!(!rig.read_some(first, &mut one));
        if sent < next {
            // The second reader is slow; the fetch waits for it.
            waits += 1;
            assert_eq!(rig.cache.body(fetch, &body[sent..next], now), Ok(0));
            rig.events();
            assert!(!rig.read_some(second, &mut two));
            assert!(rig.events().contains(&Event::Continue(fetch)));
        }
        rig.cache.check_invariants();
    }
    rig.cache.finish(fetch, now).expect("complete");
    assert!(rig.read_some(first, &mut one) && rig.read_some(second, &mut two));
    assert!(one == body && two == body && waits > 3);
    rig.cache.end(first);
    rig.cache.end(second);
    let stats = rig.cache.stats();
    assert_eq!((stats.objects, stats.body_bytes, stats.stored), (0, 0, 0));
    let range = rig.ask("GET", "/a", &["Range: bytes=0-1"]);
    assert_eq!(range, Got::Pass(Reason::RangeOfUncacheable));
    assert_eq!(stats.reason(Reason::TooLarge), 1);
}

#[test]
fn a_fetch_that_nobody_reads_is_abandoned_if_it_will_not_be_stored() {
    let mut settings = Settings::new(4 << 20);
    settings.max_object = 10_000;
    let mut rig = Rig::with(settings);
    let fetch = rig.fetch("/a");
    let Next::Fill(Some(answer)) = rig.respond(fetch, 200, &[HOUR]) else {
        panic!("storable");
    };
    let now = rig.now();
    rig.cache.body(fetch, &[1; 5_000], now).expect("memory");
    rig.cache.end(answer.body.expect("a body").reader);
    // It may still be stored.
    assert!(rig.events().is_empty());
    rig.cache.body(fetch, &[1; 6_000], now).expect("memory");
    assert_eq!(rig.events(), [Event::Abandoned(fetch)]);
    rig.cache.abort(fetch, Reason::Cut, now, &mut Vec::new());
    rig.cache.check_invariants();
    assert_eq!(rig.cache.stats().objects, 0);
}

#[test]
fn a_range_behind_the_window_of_what_is_passed_on_is_reached() {
    let mut settings = Settings::new(4 << 20);
    settings.max_object = 1_000_000;
    let mut rig = Rig::with(settings);
    let Got::Fetch(fetch, _) = rig.ask("GET", "/a", &["Range: bytes=600000-600009"]) else {
        panic!("a miss");
    };
    let next = rig.respond_with(fetch, 200, &[HOUR], Some(700_000));
    let Next::Fill(Some(answer)) = next else {
        panic!("{next:?}");
    };
    rig.cache.purge(Purge::All, false).expect("valid");
    // The next look-up finds that it was purged: from now on it is only passed on.
    assert!(matches!(rig.get("/a"), Got::Fetch(..)));
    let body: Vec<u8> = (0..700_000u32).map(|at| (at / 3) as u8).collect();
    let now = rig.now();
    assert_eq!(rig.cache.body(fetch, &body, now), Ok(body.len()));
    assert_eq!(rig.cache.finish(fetch, now), Ok(()));
    assert_eq!(rig.read(answer), (body[600_000..600_010].to_vec(), true));
}

#[test]
fn a_response_to_be_validated_each_time_is_shared_with_nobody_while_it_comes() {
    let mut rig = Rig::new();
    let control = "Cache-Control: no-cache";
    rig.store("/a", &[control, "ETag: \"1\""], b"one");
    let Got::Fetch(first, conditions) = rig.get("/a") else {
        panic!("no-cache");
    };
    assert_eq!(conditions, ["if-none-match: \"1\""]);
    let next = rig.respond_with(first, 200, &[control, "ETag: \"2\""], Some(3));
    assert!(matches!(next, Next::Fill(Some(_))));
    // The complete one can still be validated.
    let got = rig.get("/a");
    assert!(matches!(got, Got::Fetch(_, conditions) if conditions == ["if-none-match: \"1\""]));
    let now = rig.now();
    rig.cache.body(first, b"two", now).expect("fits");
    rig.cache.finish(first, now).expect("complete");
    let got = rig.get("/a");
    assert!(matches!(got, Got::Fetch(_, conditions) if conditions == ["if-none-match: \"2\""]));
}
