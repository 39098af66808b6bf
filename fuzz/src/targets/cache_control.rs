//! `http_cache`: arbitrary lines of `Cache-Control`, and dates.

use fairlead_base::Seed;
use fairlead_http_cache::{
    Cache, Decision, Field, Next, Now, RequestControl, RequestHead, ResponseControl, ResponseHead,
    Settings, parse_date, write_date,
};

use super::Target;
use crate::novelty::note;

pub(super) const TARGET: Target = Target {
    name: "cache_control",
    about: "lines of Cache-Control: the same whatever their case, order and number; none is stored \
            against its word",
    run,
    bytes_max: 512,
    tokens: &[
        b"max-age=60",
        b"s-maxage=0",
        b"no-store",
        b"no-cache",
        b"no-cache=\"a, b\"",
        b"private",
        b"must-understand",
        b"stale-while-revalidate=5",
        b"stale-if-error=99999999999",
        b"max-stale",
        b"min-fresh=1",
        b"only-if-cached",
        b", ",
        b"\n",
        b"\"",
        b"\\",
        b"=",
        b";p=(1 2)",
        b"?0",
        b"Sun, 06 Nov 1994 08:49:37 GMT",
        b"Sunday, 06-Nov-94 08:49:37 GMT",
        b"Sun Nov  6 08:49:37 1994",
    ],
};

const NOW: u64 = 1_790_000_000;
const SECONDS_MAX: u32 = 1 << 31;

fn run(bytes: &[u8]) {
    let lines: Vec<&[u8]> = bytes.split(|byte| *byte == b'\n').collect();
    let response = response(&lines);
    let request = request(&lines);
    for number in [
        response.max_age,
        response.s_maxage,
        response.stale_while_revalidate,
        response.stale_if_error,
        request.max_age,
        request.min_fresh,
        request.max_stale,
    ] {
        assert!(number.is_none_or(|number| number <= SECONDS_MAX));
    }
    note(
        "control.response",
        u64::from(response.no_store) << 3
            | u64::from(response.no_cache) << 2
            | u64::from(response.private) << 1
            | u64::from(response.max_age.is_some()),
    );
    note(
        "control.request",
        u64::from(request.only_if_cached) << 2
            | u64::from(request.no_cache) << 1
            | u64::from(request.max_stale.is_some()),
    );
    check_same(&lines, &response, &request);
    check_targeted(&lines, &response);
    check_stored(&lines, &response);
    check_date(bytes);
}

fn fields<'a>(name: &'static str, lines: &[&'a [u8]]) -> Vec<Field<'a>> {
    lines.iter().map(|line| (name, *line)).collect()
}

fn response(lines: &[&[u8]]) -> ResponseControl {
    ResponseControl::new(&fields("Cache-Control", lines), &[])
}

fn request(lines: &[&[u8]]) -> RequestControl {
    RequestControl::new(&fields("cache-control", lines))
}

fn check_same(lines: &[&[u8]], control: &ResponseControl, asked: &RequestControl) {
    let backwards: Vec<&[u8]> = lines.iter().rev().copied().collect();
    assert_eq!(
        (response(&backwards), request(&backwards)),
        (*control, *asked),
        "order"
    );
    let upper: Vec<Vec<u8>> = lines.iter().map(|line| line.to_ascii_uppercase()).collect();
    let upper: Vec<&[u8]> = upper.iter().map(Vec::as_slice).collect();
    assert_eq!(
        (response(&upper), request(&upper)),
        (*control, *asked),
        "case"
    );
    if !lines.concat().contains(&b'"') {
        let joined = lines.join(&b", "[..]);
        assert_eq!(response(&[&joined]), *control, "one line");
        assert_eq!(request(&[&joined]), *asked, "one line");
    }
    let stricter = [lines, &[b"no-store"]].concat();
    let wanted = ResponseControl {
        no_store: true,
        ..*control
    };
    assert_eq!(response(&stricter), wanted, "one more line");
}

/// A targeted field is a dictionary, or has no effect.
fn check_targeted(lines: &[&[u8]], control: &ResponseControl) {
    let targets = [Box::from("CDN-Cache-Control")];
    let mut both = fields("Cache-Control", lines);
    both.extend(fields("CDN-Cache-Control", lines));
    let targeted = ResponseControl::new(&both, &targets);
    note("control.targeted", u64::from(targeted.is_targeted));
    if !targeted.is_targeted {
        assert_eq!(targeted, *control);
    }
}

fn check_stored(lines: &[&[u8]], control: &ResponseControl) {
    let mut cache = Cache::new(Settings::new(1 << 20), Seed::from(1));
    let now = Now {
        wall_ms: NOW * 1_000,
        at: fairlead_base::Instant::from_millis(1),
    };
    let head = RequestHead {
        method: "GET",
        host: "a",
        target: b"/",
        fields: &[],
    };
    let mut out = Vec::new();
    let Decision::Fetch(fetch) = cache.request(&head, now, &mut out) else {
        panic!("an empty cache");
    };
    let fields = fields("cache-control", lines);
    let head = ResponseHead {
        status: 200,
        phrase: b"",
        fields: &fields,
        length: Some(0),
    };
    let next = cache.response(fetch.fetch, &head, now, &mut out);
    cache.check_invariants();
    let is_stored = matches!(next, Next::Fill(_));
    note("control.stored", u64::from(is_stored));
    let forbidden = control.private || control.no_store && !control.must_understand;
    assert!(!(forbidden && is_stored), "stored against its word");
}

fn check_date(bytes: &[u8]) {
    let Some(seconds) = parse_date(bytes, NOW) else {
        return;
    };
    note("control.date", seconds % 64);
    let mut text = Vec::new();
    write_date(&mut text, seconds);
    assert_eq!(parse_date(&text, NOW), Some(seconds));
}
