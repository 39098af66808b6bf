//! `http_cache`: arbitrary `Range` fields, by themselves and of a stored body.

use fairlead_base::{Instant, Seed};
use fairlead_http_cache::{
    Asked, Cache, Decision, Next, Now, Read, RequestHead, ResponseHead, Settings, parse_range,
};

use super::Target;
use crate::novelty::note;

pub(super) const TARGET: Target = Target {
    name: "range",
    about: "a length and a Range field: inside the body, and the bytes that are sent are those",
    run,
    bytes_max: 96,
    tokens: &[
        b"bytes=",
        b"bytes=0-",
        b"bytes=-1",
        b"bytes=4095-4096",
        b"18446744073709551615",
        b"-",
        b",",
        b" ",
        b"0",
    ],
};

/// Lengths that are stored, too.
const STORED_MAX: u64 = 20_000;

fn run(bytes: &[u8]) {
    let (length, value) = bytes.split_at(bytes.len().min(3));
    let length = length
        .iter()
        .fold(0, |sum, byte| sum << 8 | u64::from(*byte));
    for length in [length, length % STORED_MAX, u64::MAX - length] {
        let asked = parse_range(value, length);
        match &asked {
            Asked::Part(range) => {
                assert!(range.start < range.end && range.end <= length);
                let again = format!("bytes={}-{}", range.start, range.end - 1);
                assert_eq!(parse_range(again.as_bytes(), length), asked);
            }
            Asked::Unsatisfiable | Asked::Whole => {}
        }
        note(
            "range.asked",
            match asked {
                Asked::Part(range) => 2 + u64::from(range.start.checked_ilog2().unwrap_or(0)),
                Asked::Unsatisfiable => 1,
                Asked::Whole => 0,
            },
        );
    }
    // A field has no line ends.
    if !value.iter().any(|byte| matches!(byte, b'\r' | b'\n' | 0)) {
        check_sent(value, length % STORED_MAX);
    }
}

fn check_sent(value: &[u8], length: u64) {
    let body: Vec<u8> = (0..length).map(|at| (at % 251) as u8).collect();
    let mut cache = Cache::new(Settings::new(1 << 20), Seed::from(1));
    let now = Now {
        wall_ms: 1,
        at: Instant::from_millis(1),
    };
    let fields = [("Range", value)];
    let mut head = RequestHead {
        method: "GET",
        host: "a",
        target: b"/",
        fields: &[],
    };
    let mut out = Vec::new();
    let Decision::Fetch(fetch) = cache.request(&head, now, &mut out) else {
        panic!("an empty cache");
    };
    let response = ResponseHead {
        status: 200,
        phrase: b"",
        fields: &[("cache-control", b"max-age=9")],
        length: Some(length),
    };
    let next = cache.response(fetch.fetch, &response, now, &mut out);
    assert!(matches!(next, Next::Fill(_)));
    cache.body(fetch.fetch, &body, now).expect("as announced");
    cache.finish(fetch.fetch, now).expect("as announced");
    head.fields = &fields;
    out.clear();
    let Decision::Hit { answer, .. } = cache.request(&head, now, &mut out) else {
        panic!("it is stored");
    };
    let mut sent = Vec::new();
    if let Some(one) = answer.body {
        loop {
            let count = match cache.read(one.reader) {
                Read::Bytes(bytes) => {
                    sent.extend_from_slice(bytes);
                    bytes.len() as u64
                }
                Read::End => break,
                other => panic!("{other:?}"),
            };
            cache.advance(one.reader, count);
        }
    }
    let (status, wanted) = match parse_range(value, length) {
        Asked::Part(range) => (206, &body[range.start as usize..range.end as usize]),
        Asked::Unsatisfiable => (416, &[][..]),
        Asked::Whole => (200, &body[..]),
    };
    assert_eq!(answer.status, status);
    assert!(sent == wanted, "other bytes");
}
