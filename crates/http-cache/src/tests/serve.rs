//! One request after the other.

use super::rig::{Got, Rig, hit};
use crate::*;

const HOUR: &str = "Cache-Control: max-age=3600";
const ETAG: &str = "ETag: \"1\"";

#[test]
fn a_stored_response_is_served_with_its_age() {
    let mut rig = Rig::new();
    rig.store("/a", &[HOUR, "X: y"], b"body");
    assert_eq!(
        rig.field("cache-status").as_deref(),
        Some("fairlead; fwd=uri-miss; fwd-status=200; ttl=3600; stored")
    );
    assert_eq!(rig.field("age"), None);
    rig.pass_seconds(7);
    assert_eq!(rig.get("/a"), hit(b"body"));
    assert_eq!(rig.field("age").as_deref(), Some("7"));
    assert_eq!(rig.field("x").as_deref(), Some("y"));
    assert_eq!(rig.field("content-length").as_deref(), Some("4"));
    assert_eq!(rig.field("via").as_deref(), Some("1.1 fairlead"));
    assert_eq!(
        rig.field("cache-status").as_deref(),
        Some("fairlead; hit; ttl=3593")
    );
    assert!(rig.out.starts_with(b"HTTP/1.1 200 OK\r\n"));
    assert!(matches!(rig.get("/A"), Got::Fetch(..)));
    assert!(matches!(rig.get("/a?"), Got::Fetch(..)));
}

#[test]
fn a_long_body_is_read_block_by_block_and_a_head_without_a_body() {
    let mut rig = Rig::new();
    let body: Vec<u8> = (0..100_000u32).map(|at| (at % 251) as u8).collect();
    rig.store("/long", &[HOUR], &body);
    assert_eq!(rig.get("/long"), hit(&body));
    assert_eq!(rig.ask("HEAD", "/long", &[]), hit(b""));
    assert_eq!(rig.field("content-length").as_deref(), Some("100000"));
    assert_eq!(rig.ask("HEAD", "/other", &[]), Got::Pass(Reason::HeadMiss));
    rig.store("/empty", &[HOUR], b"");
    assert_eq!(rig.get("/empty"), hit(b""));
}

#[test]
fn a_stale_response_is_validated() {
    let mut rig = Rig::new();
    rig.store(
        "/a",
        &[HOUR, ETAG, "Last-Modified: Mon, 14 Sep 2026 14:13:20 GMT"],
        b"body",
    );
    rig.pass_seconds(3_600);
    let Got::Fetch(fetch, conditions) = rig.get("/a") else {
        panic!("stale");
    };
    assert_eq!(
        conditions,
        [
            "if-none-match: \"1\"",
            "if-modified-since: Mon, 14 Sep 2026 14:13:20 GMT"
        ]
    );
    let next = rig.respond(fetch, 304, &["Cache-Control: max-age=60", "New: 1", ETAG]);
    let Next::Stored(Some(answer)) = next else {
        panic!("{next:?}");
    };
    assert_eq!(rig.read(answer), (b"body".to_vec(), true));
    assert_eq!(
        rig.field("cache-status").as_deref(),
        Some("fairlead; fwd=stale; fwd-status=304; ttl=60")
    );
    assert_eq!(rig.get("/a"), hit(b"body"));
    assert_eq!(rig.field("new").as_deref(), Some("1"));
    assert_eq!(rig.field("cache-control").as_deref(), Some("max-age=60"));
    rig.pass_seconds(60);
    let Got::Fetch(fetch, _) = rig.get("/a") else {
        panic!("stale");
    };
    assert_eq!(rig.serve(fetch, &[HOUR, "ETag: \"2\""], b"new"), b"new");
    assert_eq!(rig.get("/a"), hit(b"new"));
    assert_eq!(rig.cache.stats().objects, 1);
}

#[test]
fn a_304_for_another_revision_is_asked_again() {
    let mut rig = Rig::new();
    rig.store("/a", &["Cache-Control: no-cache", ETAG], b"body");
    let Got::Fetch(fetch, conditions) = rig.get("/a") else {
        panic!("no-cache");
    };
    assert_eq!(conditions.len(), 1);
    assert_eq!(rig.respond(fetch, 304, &["ETag: \"2\""]), Next::Again);
    assert_eq!(rig.serve(fetch, &[HOUR], b"new"), b"new");
    assert_eq!(rig.get("/a"), hit(b"new"));
}

#[test]
fn clients_conditions_and_ranges_are_answered_from_the_whole() {
    let mut rig = Rig::new();
    rig.store("/a", &[HOUR, ETAG, "X: y"], b"0123456789");
    let ask = |rig: &mut Rig, lines: &[&str]| match rig.ask("GET", "/a", lines) {
        Got::Hit { status, body, .. } => (status, String::from_utf8(body).expect("text")),
        other => panic!("{other:?}"),
    };
    assert_eq!(
        ask(&mut rig, &["If-None-Match: \"1\""]),
        (304, String::new())
    );
    assert_eq!(rig.field("etag").as_deref(), Some("\"1\""));
    assert_eq!((rig.field("x"), rig.field("content-length")), (None, None));
    assert_eq!(ask(&mut rig, &["Range: bytes=2-4"]), (206, "234".into()));
    assert_eq!(rig.field("content-range").as_deref(), Some("bytes 2-4/10"));
    assert_eq!(rig.field("content-length").as_deref(), Some("3"));
    assert_eq!(rig.field("x").as_deref(), Some("y"));
    assert!(rig.out.starts_with(b"HTTP/1.1 206 Partial Content\r\n"));
    assert_eq!(ask(&mut rig, &["Range: bytes=10-"]), (416, String::new()));
    assert_eq!(rig.field("content-range").as_deref(), Some("bytes */10"));
    let range = ["Range: bytes=2-4", "If-Range: \"0\""];
    assert_eq!(ask(&mut rig, &range), (200, "0123456789".into()));
}

#[test]
fn a_range_of_something_new_is_served_while_the_whole_is_stored() {
    let mut rig = Rig::new();
    let Got::Fetch(fetch, _) = rig.ask("GET", "/a", &["Range: bytes=5000-5001"]) else {
        panic!("a miss");
    };
    let body: Vec<u8> = (0..9_000u32).map(|at| (at / 4) as u8).collect();
    assert_eq!(rig.serve(fetch, &[HOUR], &body), &body[5_000..5_002]);
    assert_eq!(rig.get("/a"), hit(&body));
}

#[test]
fn bodies_with_a_wrong_length_are_never_stored() {
    for (announced, sent) in [(Some(5), 4), (Some(5), 6), (None, 4)] {
        let mut rig = Rig::new();
        let fetch = rig.fetch("/a");
        let Next::Fill(Some(answer)) = rig.respond_with(fetch, 200, &[HOUR], announced) else {
            panic!("storable");
        };
        let now = rig.now();
        let mut out = Vec::new();
        match rig.cache.body(fetch, &b"123456"[..sent], now) {
            Ok(_) if announced.is_some() => {
                assert_eq!(rig.cache.finish(fetch, now), Err(Reason::Length));
            }
            Ok(_) => assert_eq!(rig.cache.abort(fetch, Reason::Cut, now, &mut out), None),
            Err(reason) => assert_eq!(reason, Reason::Length),
        }
        assert!(!rig.read(answer).1);
        assert_eq!(rig.cache.stats().objects, 0);
        assert!(matches!(rig.get("/a"), Got::Fetch(..)));
    }
}

#[test]
fn a_failed_revalidation_keeps_what_was_stored() {
    let mut rig = Rig::new();
    let kept = "Cache-Control: max-age=10, stale-if-error=100";
    rig.store("/a", &[kept, ETAG], b"body");
    rig.pass_seconds(20);
    for status in [500, 503, 404] {
        let Got::Fetch(fetch, _) = rig.get("/a") else {
            panic!("stale");
        };
        let next = rig.respond(fetch, status, &[]);
        if status == 404 {
            assert_eq!(next, Next::Relay(Reason::NoFreshness));
            continue;
        }
        let Next::Stored(Some(answer)) = next else {
            panic!("{next:?}");
        };
        assert_eq!(rig.read(answer).0, b"body");
        assert_eq!(rig.field("age").as_deref(), Some("20"));
    }
    // The 404 is the server's word.
    assert_eq!(rig.cache.stats().objects, 0);
    rig.store("/b", &[kept], b"body");
    rig.pass_seconds(20);
    let Got::Fetch(fetch, conditions) = rig.get("/b") else {
        panic!("stale");
    };
    assert!(conditions.is_empty());
    let (now, mut out) = (rig.now(), Vec::new());
    let answer = rig.cache.abort(fetch, Reason::Cut, now, &mut out);
    assert_eq!(rig.read(answer.expect("stale")).0, b"body");
    rig.pass_seconds(100);
    let fetch = rig.fetch("/b");
    let now = rig.now();
    assert_eq!(rig.cache.abort(fetch, Reason::Cut, now, &mut out), None);
}

#[test]
fn a_stale_response_is_served_while_one_request_validates_it() {
    let mut rig = Rig::new();
    let control = "Cache-Control: max-age=10, stale-while-revalidate=100";
    rig.store("/a", &[control, ETAG], b"body");
    rig.pass_seconds(20);
    let Got::Hit {
        body,
        revalidate: Some(fetch),
        ..
    } = rig.get("/a")
    else {
        panic!("stale");
    };
    assert_eq!(body, b"body");
    assert_eq!(
        rig.field("cache-status").as_deref(),
        Some("fairlead; hit; ttl=-10")
    );
    assert_eq!(rig.get("/a"), hit(b"body"));
    let next = rig.respond_with(fetch, 200, &[HOUR], Some(3));
    assert_eq!(next, Next::Fill(None));
    let now = rig.now();
    assert_eq!(rig.cache.body(fetch, b"new", now), Ok(3));
    assert_eq!(rig.cache.finish(fetch, now), Ok(()));
    assert_eq!(rig.get("/a"), hit(b"new"));
    assert_eq!(rig.cache.stats().fetches, 0);
}

#[test]
fn a_failed_background_validation_leaves_no_reader() {
    let mut rig = Rig::new();
    let control = "Cache-Control: max-age=10, stale-while-revalidate=100, stale-if-error=100";
    rig.store("/a", &[control, ETAG], b"body");
    rig.pass_seconds(20);
    let Got::Hit {
        revalidate: Some(fetch),
        ..
    } = rig.get("/a")
    else {
        panic!("stale");
    };
    assert!(matches!(rig.respond(fetch, 503, &[]), Next::Relay(_)));
    assert_eq!(
        (rig.cache.stats().readers, rig.cache.stats().fetches),
        (0, 0)
    );
    let Got::Hit {
        revalidate: Some(fetch),
        ..
    } = rig.get("/a")
    else {
        panic!("stale");
    };
    assert_eq!(rig.respond(fetch, 304, &[HOUR]), Next::Stored(None));
    assert_eq!(rig.get("/a"), hit(b"body"));
}

#[test]
fn variants_have_objects_of_their_own() {
    let mut rig = Rig::new();
    for (language, body) in [
        ("Accept-Language: de", b"de"),
        ("Accept-Language: en", b"en"),
    ] {
        let Got::Fetch(fetch, _) = rig.ask("GET", "/a", &[language]) else {
            panic!("{language}");
        };
        assert_eq!(
            rig.serve(fetch, &[HOUR, "Vary: Accept-Language"], body),
            body
        );
    }
    assert_eq!(rig.ask("GET", "/a", &["accept-language: DE"]), hit(b"de"));
    assert_eq!(rig.ask("GET", "/a", &["accept-language: en"]), hit(b"en"));
    assert!(matches!(rig.get("/a"), Got::Fetch(..)));
    let explained = rig.cache.explain("a.example", b"/a", rig.now());
    assert_eq!(explained.variants.len(), 2);
    assert_eq!(explained.variants[0].vary, ["accept-language"]);
    assert!(explained.variants[0].is_complete);
}

#[test]
fn purges_concern_what_they_name() {
    let all = ["/x/1", "/x/2", "/y/1", "/z"];
    let purges: [(Purge<'_>, &[&str]); 6] = [
        (
            Purge::Url {
                host: "a.example",
                target: b"/x/1",
            },
            &["/x/1"],
        ),
        (
            Purge::Prefix {
                host: "a.example",
                path: b"/x",
            },
            &["/x/1", "/x/2"],
        ),
        (
            Purge::Prefix {
                host: "b.example",
                path: b"/x",
            },
            &[],
        ),
        (Purge::Tag(b"one"), &["/x/1", "/y/1"]),
        (Purge::Host("a.example"), &all),
        (Purge::All, &all),
    ];
    for (purge, gone) in purges {
        for soft in [false, true] {
            let mut rig = Rig::new();
            for target in all {
                let tag = if target.ends_with('1') {
                    "xkey: one"
                } else {
                    "xkey: two"
                };
                rig.store(target, &[HOUR, tag, ETAG], target.as_bytes());
            }
            rig.cache.purge(purge, soft).expect("valid");
            for target in all {
                let got = rig.get(target);
                if !gone.contains(&target) {
                    assert_eq!(got, hit(target.as_bytes()), "{purge:?}");
                } else {
                    let Got::Fetch(_, conditions) = got else {
                        panic!("{purge:?}: {got:?}");
                    };
                    assert_eq!(conditions.is_empty(), !soft, "{purge:?}");
                }
            }
        }
    }
    let mut rig = Rig::new();
    let deep = Purge::Prefix {
        host: "a",
        path: b"/1/2/3/4/5/6/7/8",
    };
    assert_eq!(rig.cache.purge(deep, false), Err(PurgeError::TooDeep));
}

#[test]
fn a_purge_concerns_responses_to_earlier_requests() {
    for purge in [
        Purge::Url {
            host: "a.example",
            target: b"/a",
        },
        Purge::Tag(b"one"),
        Purge::All,
    ] {
        for head_first in [false, true] {
            let mut rig = Rig::new();
            let fetch = rig.fetch("/a");
            if !head_first {
                rig.cache.purge(purge, false).expect("valid");
            }
            let next = rig.respond_with(fetch, 200, &[HOUR, "xkey: one"], Some(4));
            let Next::Fill(Some(answer)) = next else {
                panic!("{next:?}");
            };
            if head_first {
                rig.cache.purge(purge, false).expect("valid");
            }
            let now = rig.now();
            assert_eq!(rig.cache.body(fetch, b"body", now), Ok(4));
            assert_eq!(rig.cache.finish(fetch, now), Ok(()));
            // Its own client gets it.
            assert_eq!(rig.read(answer), (b"body".to_vec(), true));
            assert!(matches!(rig.get("/a"), Got::Fetch(..)), "{purge:?}");
        }
    }
}

#[test]
fn unsafe_methods_invalidate() {
    let mut rig = Rig::new();
    for target in ["/a", "/b", "/c", "/d"] {
        rig.store(target, &[HOUR], b"body");
    }
    let request = RequestHead {
        method: "POST",
        host: "a.example",
        target: b"/a",
        fields: &[],
    };
    assert_eq!(rig.ask("POST", "/a", &[]), Got::Pass(Reason::Method));
    let mut response = ResponseHead {
        status: 500,
        phrase: b"",
        fields: &[
            ("Location", b"http://A.example:80/b"),
            ("Content-Location", b"c"),
            ("Location", b"https://other.example/d"),
        ],
        length: None,
    };
    rig.cache.passed(&request, &response, rig.now());
    assert_eq!(rig.cache.stats().objects, 4);
    response.status = 201;
    rig.cache.passed(&request, &response, rig.now());
    assert_eq!(rig.cache.stats().invalidated, 3);
    assert_eq!(rig.get("/d"), hit(b"body"));
}

#[test]
fn requests_say_what_they_accept() {
    let mut rig = Rig::new();
    assert!(matches!(
        rig.ask("GET", "/a", &["Cache-Control: only-if-cached"]),
        Got::Hit { status: 504, .. }
    ));
    assert_eq!(
        rig.field("cache-status").as_deref(),
        Some("fairlead; detail=only-if-cached")
    );
    rig.store("/a", &[HOUR, ETAG], b"body");
    assert_eq!(
        rig.ask("GET", "/a", &["Cache-Control: only-if-cached"]),
        hit(b"body")
    );
    rig.pass_seconds(10);
    for control in ["no-cache", "max-age=9", "min-fresh=3591"] {
        let line = format!("Cache-Control: {control}");
        let got = rig.ask("GET", "/a", &[&line]);
        assert!(
            matches!(got, Got::Fetch(_, conditions) if conditions.len() == 1),
            "{control}"
        );
    }
    let none = rig.ask("GET", "/b", &["Cache-Control: no-store"]);
    assert_eq!(none, Got::Pass(Reason::RequestNoStore));
    for (method, target, line, reason) in [
        ("PUT", "/a", "X: y", Reason::Method),
        ("GET", "*", "X: y", Reason::Target),
        ("GET", "/a", "Content-Length: 3", Reason::RequestBody),
        (
            "GET",
            "/a",
            "Transfer-Encoding: chunked",
            Reason::RequestBody,
        ),
        ("GET", "/a", "Upgrade: websocket", Reason::Upgrade),
        ("GET", "/a", "If-Match: \"1\"", Reason::Precondition),
    ] {
        assert_eq!(rig.ask(method, target, &[line]), Got::Pass(reason));
    }
    let long = format!("X: {}", "y".repeat(20_000));
    assert_eq!(
        rig.ask("GET", "/a", &[&long]),
        Got::Pass(Reason::HeadTooLarge)
    );
}

#[test]
fn requests_with_cookies_take_part_unless_they_must_not() {
    for serves_cookies in [true, false] {
        let mut settings = Settings::new(1 << 20);
        settings.serves_cookies = serves_cookies;
        let mut rig = Rig::with(settings);
        rig.store("/a", &[HOUR], b"body");
        let wanted = if serves_cookies {
            hit(b"body")
        } else {
            Got::Pass(Reason::Cookie)
        };
        assert_eq!(rig.ask("GET", "/a", &["Cookie: a=b"]), wanted);
        assert_eq!(rig.get("/a"), hit(b"body"));
    }
}

#[test]
fn the_memory_limit_holds() {
    for policy in Policy::ALL {
        let mut settings = Settings::new(1 << 20);
        settings.policy = policy;
        let mut rig = Rig::with(settings);
        let mut rng = fairlead_base::Rng::new(5);
        for _ in 0..600 {
            let number = rng.below(200);
            let target = format!("/{number}");
            let body = vec![number as u8; (number * 331) as usize];
            match rig.get(&target) {
                Got::Fetch(fetch, _) => assert_eq!(rig.serve(fetch, &[HOUR], &body), body),
                got => assert_eq!(got, hit(&body)),
            }
            assert!(rig.cache.stats().bytes_used <= 1 << 20);
        }
        let stats = rig.cache.stats();
        assert!(stats.evicted > 50 && stats.hits > 20, "{policy}: {stats:?}");
    }
}

#[test]
fn keys_that_collide_are_compared_as_a_whole() {
    let mut settings = Settings::new(1 << 20);
    settings.key.push(KeyPart::Header("X-Site".into()));
    let mut rig = Rig::with(settings);
    rig.cache.collide(1);
    let mut rng = fairlead_base::Rng::new(5);
    let mut hits = 0;
    for _ in 0..2_000 {
        let (number, site) = (rng.below(60), rng.below(3));
        let (target, line) = (format!("/{number}"), format!("X-Site: {site}"));
        let body = vec![number as u8 + 60 * site as u8; (number * 300) as usize];
        match rig.ask("GET", &target, &[&line]) {
            Got::Fetch(fetch, _) => assert_eq!(rig.serve(fetch, &[HOUR], &body), body),
            got => {
                assert_eq!(got, hit(&body));
                hits += 1;
            }
        }
        if rng.below(20) == 0 {
            let url = Purge::Url {
                host: "a.example",
                target: target.as_bytes(),
            };
            rig.cache.purge(url, false).expect("valid");
            let explained = rig.cache.explain("a.example", target.as_bytes(), rig.now());
            assert!(explained.variants.is_empty());
        }
    }
    assert!(hits > 100, "{hits}");
}

#[test]
fn what_is_read_is_not_evicted_and_what_does_not_fit_is_relayed() {
    let mut rig = Rig::with(Settings::new(1 << 20));
    let body = vec![1; 700_000];
    let fetch = rig.fetch("/a");
    let next = rig.respond_with(fetch, 200, &[HOUR], Some(700_000));
    let Next::Fill(Some(answer)) = next else {
        panic!("{next:?}");
    };
    let now = rig.now();
    rig.cache.body(fetch, &body, now).expect("fits");
    rig.cache.finish(fetch, now).expect("complete");
    let fetch = rig.fetch("/b");
    let next = rig.respond_with(fetch, 200, &[HOUR], Some(700_000));
    assert_eq!(next, Next::Relay(Reason::NoMemory));
    assert_eq!(rig.read(answer), (body.clone(), true));
    rig.store("/b", &[HOUR], &body);
    let fetch = rig.fetch("/c");
    let next = rig.respond_with(fetch, 200, &[HOUR], Some(17 << 20));
    assert_eq!(next, Next::Relay(Reason::TooLarge));
    let range = rig.ask("GET", "/c", &["Range: bytes=0-1"]);
    assert_eq!(range, Got::Pass(Reason::RangeOfUncacheable));
}
