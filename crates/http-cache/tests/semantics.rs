//! Decisions compared with those of `http-cache-semantics`, for heads and times by chance.
//!
//! Not compared, because the library decides otherwise on purpose or does not know it: cookies,
//! `proxy-revalidate` (it takes it for a lifetime of 0), `max-stale` with a response that has
//! `s-maxage` or `no-cache` (it serves it stale), several values for one directive, targeted
//! fields, `must-understand`, statuses other than its 14, and Date that differs from the time of
//! the response.

use std::time::{Duration, UNIX_EPOCH};

use fairlead_base::{Instant, Seed};
use fairlead_http_cache::{
    Cache, Decision, Field, Next, Now, RequestHead, ResponseHead, Settings, write_date,
};
use http_cache_semantics::{BeforeRequest, CacheOptions, CachePolicy};
use proptest::prelude::*;

const WALL: u64 = 1_790_000_000;
const STATUSES: [u16; 13] = [
    200, 203, 204, 300, 301, 302, 303, 307, 308, 404, 405, 410, 501,
];

type Lines = Vec<(&'static str, String)>;

fn date(seconds: u64) -> String {
    let mut text = Vec::new();
    write_date(&mut text, seconds);
    String::from_utf8(text).expect("text")
}

fn maybe<T: Strategy>(part: T) -> impl Strategy<Value = Option<T::Value>> {
    prop::option::weighted(0.3, part)
}

/// A line of directives, each at most once.
fn control(directives: Vec<Option<String>>) -> Option<String> {
    let present: Vec<String> = directives.into_iter().flatten().collect();
    (!present.is_empty()).then(|| present.join(", "))
}

prop_compose! {
    fn response_lines()(
        max_age in maybe(0u32..200),
        s_maxage in maybe(0u32..200),
        words in prop::collection::vec(prop::bool::weighted(0.12), 5),
        expires in maybe(-100i64..200),
        wrong_expires in prop::bool::weighted(0.05),
        last_modified in maybe(0u64..3_000),
        etag in prop::bool::weighted(0.3),
        age in maybe(0u32..150),
        vary in maybe(prop::sample::select(vec!["X-One", "X-One, X-Two"])),
        pragma in prop::bool::weighted(0.05),
    ) -> Lines {
        let names = ["no-store", "no-cache", "private", "public", "must-revalidate"];
        let mut directives: Vec<Option<String>> = names
            .iter()
            .zip(words)
            .map(|(name, there)| there.then(|| (*name).to_owned()))
            .collect();
        directives.push(max_age.map(|seconds| format!("max-age={seconds}")));
        directives.push(s_maxage.map(|seconds| format!("s-maxage={seconds}")));
        let expires = match expires {
            _ if wrong_expires => Some("0".to_owned()),
            Some(after) => Some(date(WALL.saturating_add_signed(after))),
            None => None,
        };
        let fields = [
            ("date", Some(date(WALL))),
            ("cache-control", control(directives)),
            ("expires", expires),
            ("last-modified", last_modified.map(|before| date(WALL - before))),
            ("etag", etag.then(|| "\"a\"".to_owned())),
            ("age", age.map(|age| age.to_string())),
            ("vary", vary.map(str::to_owned)),
            ("pragma", pragma.then(|| "no-cache".to_owned())),
        ];
        let fields = fields.into_iter();
        fields.filter_map(|(name, value)| Some((name, value?))).collect()
    }
}

prop_compose! {
    fn request_lines()(
        max_age in maybe(0u32..200),
        min_fresh in maybe(0u32..100),
        max_stale in maybe(prop::option::of(0u32..100)),
        no_cache in prop::bool::weighted(0.05),
        no_store in prop::bool::weighted(0.05),
        pragma in prop::bool::weighted(0.05),
        authorization in prop::bool::weighted(0.15),
        one in maybe(prop::sample::select(vec!["a", "b"])),
        two in maybe(prop::sample::select(vec!["a", "b"])),
    ) -> Lines {
        let control = control(vec![
            max_age.map(|seconds| format!("max-age={seconds}")),
            min_fresh.map(|seconds| format!("min-fresh={seconds}")),
            max_stale.map(|most| match most {
                Some(seconds) => format!("max-stale={seconds}"),
                None => "max-stale".to_owned(),
            }),
            no_cache.then(|| "no-cache".to_owned()),
            no_store.then(|| "no-store".to_owned()),
        ]);
        let pragma = pragma && control.is_none();
        let fields = [
            ("cache-control", control),
            ("pragma", pragma.then(|| "no-cache".to_owned())),
            ("authorization", authorization.then(|| "x".to_owned())),
            ("x-one", one.map(str::to_owned)),
            ("x-two", two.map(str::to_owned)),
        ];
        let fields = fields.into_iter();
        fields.filter_map(|(name, value)| Some((name, value?))).collect()
    }
}

fn fields(lines: &Lines) -> Vec<Field<'_>> {
    let fields = lines.iter();
    fields
        .map(|(name, value)| (*name, value.as_bytes()))
        .collect()
}

fn now(ms: u64) -> Now {
    Now {
        wall_ms: WALL * 1_000 + ms,
        at: Instant::from_millis(1_000 + ms),
    }
}

fn their_request(lines: &Lines) -> http::Request<()> {
    let mut request = http::Request::builder().uri("http://a.example/");
    for (name, value) in lines {
        request = request.header(*name, value);
    }
    request.body(()).expect("a request")
}

fn their_policy(request: &Lines, status: u16, response: &Lines) -> CachePolicy {
    let mut theirs = http::Response::builder().status(status);
    for (name, value) in response {
        theirs = theirs.header(*name, value);
    }
    let options = CacheOptions {
        immutable_min_time_to_live: Duration::ZERO,
        ..CacheOptions::default()
    };
    let theirs = theirs.body(()).expect("a response");
    let at = UNIX_EPOCH + Duration::from_secs(WALL);
    CachePolicy::new_options(&their_request(request), &theirs, at, options)
}

/// Whether ours stored it, and the cache with it.
fn store(request: &Lines, status: u16, response: &Lines) -> (Cache, bool) {
    let mut settings = Settings::new(1 << 20);
    settings.heuristic_max = u32::MAX;
    let mut cache = Cache::new(settings, Seed::from(1));
    let mut out = Vec::new();
    let Decision::Fetch(fetch) = ask(&mut cache, request, 0, &mut out) else {
        return (cache, false);
    };
    let fields = fields(response);
    let head = ResponseHead {
        status,
        phrase: b"",
        fields: &fields,
        length: Some(0),
    };
    let next = cache.response(fetch.fetch, &head, now(0), &mut out);
    let is_stored = matches!(next, Next::Fill(_));
    if is_stored {
        cache.finish(fetch.fetch, now(0)).expect("complete");
    }
    (cache, is_stored)
}

fn ask(cache: &mut Cache, lines: &Lines, ms: u64, out: &mut Vec<u8>) -> Decision {
    let fields = fields(lines);
    let head = RequestHead {
        method: "GET",
        host: "a.example",
        target: b"/",
        fields: &fields,
    };
    out.clear();
    cache.request(&head, now(ms), out)
}

fn has(lines: &Lines, name: &str, part: &str) -> bool {
    lines
        .iter()
        .any(|(key, value)| *key == name && value.contains(part))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4_000))]

    #[test]
    fn both_decide_alike(
        first in request_lines(),
        status in prop::sample::select(STATUSES.to_vec()),
        response in response_lines(),
        second in request_lines(),
        seconds in 0u64..300,
    ) {
        // In mid-second: at whole seconds the two differ in what "no more than" means.
        let ms = seconds * 1_000 + 500;
        let theirs = their_policy(&first, status, &response);
        let (mut ours, is_stored) = store(&first, status, &response);
        prop_assert!(!is_stored || theirs.is_storable(), "stored: {:?}", response);
        let at = UNIX_EPOCH + Duration::from_secs(WALL);
        let has_validator = has(&response, "etag", "") || has(&response, "last-modified", "");
        let is_useful = has_validator || theirs.time_to_live(at) > Duration::ZERO;
        if theirs.is_storable() && is_useful {
            prop_assert!(is_stored, "not stored: {:?}", response);
        }
        if !is_stored {
            return Ok(());
        }
        let later = UNIX_EPOCH + Duration::from_secs(WALL) + Duration::from_millis(ms);
        let mut out = Vec::new();
        let decision = ask(&mut ours, &second, ms, &mut out);
        let ours_is_fresh = matches!(decision, Decision::Hit { .. });
        let needs_validation = has(&response, "cache-control", "s-maxage")
            || has(&response, "cache-control", "no-cache")
            || has(&response, "pragma", "no-cache");
        let differs = needs_validation && has(&second, "cache-control", "max-stale");
        match theirs.before_request(&their_request(&second), later) {
            BeforeRequest::Fresh(parts) => {
                prop_assert!(ours_is_fresh || differs, "{:?} {:?}", response, second);
                if ours_is_fresh {
                    let age = parts.headers["age"].to_str().expect("text");
                    let text = String::from_utf8_lossy(&out).into_owned();
                    let line = format!("\r\nage: {age}\r\n");
                    prop_assert!(text.contains(&line), "{} in {}", line, text);
                }
            }
            BeforeRequest::Stale { .. } => {
                prop_assert!(!ours_is_fresh, "{:?} {:?} {}", response, second, ms);
            }
        }
    }
}
