use super::*;
use crate::head::Field;

const WALL: u64 = 1_790_000_000;
const DATE: &[u8] = b"Mon, 21 Sep 2026 14:13:20 GMT";

fn now(seconds: u64) -> Now {
    Now {
        wall_ms: (WALL + seconds) * 1_000,
        at: Instant::from_millis(seconds * 1_000 + 5_000),
    }
}

fn store(status: u16, fields: &[Field<'_>]) -> Result<Storable, Reason> {
    store_for(&[], status, fields, &Settings::new(1 << 20))
}

fn store_for(
    asked: &[Field<'_>],
    status: u16,
    fields: &[Field<'_>],
    settings: &Settings,
) -> Result<Storable, Reason> {
    let request = RequestHead {
        method: "GET",
        host: "a",
        target: b"/",
        fields: asked,
    };
    let response = ResponseHead {
        status,
        phrase: b"",
        fields,
        length: None,
    };
    storable(&request, &response, now(0).at, now(0), settings)
}

fn lifetime(fields: &[Field<'_>]) -> u32 {
    store(200, fields).map_or(0, |storable| storable.verdict.lifetime)
}

#[test]
fn a_verdict_is_one_cache_line() {
    assert_eq!((size_of::<Verdict>(), align_of::<Verdict>()), (64, 64));
}

#[test]
fn responses_for_one_user_are_not_stored() {
    let control = |value: &'static str| ("Cache-Control", value.as_bytes());
    for (fields, reason) in [
        (&[control("no-store, max-age=60")][..], Reason::NoStore),
        (&[control("private, max-age=60")], Reason::Private),
        (&[control("private=\"x\", max-age=60")], Reason::Private),
        (
            &[control("max-age=60"), ("Set-Cookie", b"a=b")],
            Reason::SetCookie,
        ),
        (
            &[control("max-age=60"), ("Vary", b"Accept, *")],
            Reason::Vary,
        ),
        (&[control("max-age=0")], Reason::NoFreshness),
        (&[], Reason::NoFreshness),
        (&[("Expires", b"0")], Reason::NoFreshness),
        (
            &[control("max-age=60"), ("Age", b"60")],
            Reason::NoFreshness,
        ),
    ] {
        assert_eq!(store(200, fields).err(), Some(reason), "{fields:?}");
    }
    let settings = Settings::new(1 << 20);
    let authorized: [Field<'_>; 1] = [("Authorization", b"x")];
    for (value, is_stored) in [
        ("max-age=60", false),
        ("max-age=60, public", true),
        ("max-age=60, must-revalidate", true),
        ("max-age=60, proxy-revalidate", false),
        ("s-maxage=60", true),
    ] {
        let stored = store_for(&authorized, 200, &[control(value)], &settings);
        assert_eq!(stored.is_ok(), is_stored, "{value}");
    }
    let asked: [Field<'_>; 1] = [("Cache-Control", b"no-store")];
    let stored = store_for(&asked, 200, &[control("max-age=60")], &settings);
    assert_eq!(stored.err(), Some(Reason::RequestNoStore));
}

#[test]
fn a_status_is_stored_by_its_lifetime_or_by_itself() {
    let fresh: [Field<'_>; 1] = [("Cache-Control", b"max-age=60")];
    let unchanged: [Field<'_>; 2] = [
        ("Date", DATE),
        ("Last-Modified", b"Mon, 14 Sep 2026 14:13:20 GMT"),
    ];
    for (status, by_itself) in [
        (200, true),
        (201, false),
        (203, true),
        (204, true),
        (299, false),
        (302, false),
        (404, true),
        (403, false),
        (500, false),
        (501, true),
        (599, false),
    ] {
        assert!(store(status, &fresh).is_ok(), "{status}");
        let heuristic = store(status, &unchanged);
        assert_eq!(heuristic.is_ok(), by_itself, "{status}");
    }
    assert_eq!(lifetime(&unchanged), 7 * 8_640);
    for status in [206, 304] {
        assert_eq!(store(status, &fresh).err(), Some(Reason::Status));
    }
    let understood: [Field<'_>; 1] = [("Cache-Control", b"max-age=60, no-store, must-understand")];
    assert!(store(200, &understood).is_ok());
    assert_eq!(store(599, &understood).err(), Some(Reason::Status));
}

#[test]
fn lifetimes_follow_the_order_of_the_rfc() {
    let hour: Field<'_> = ("Expires", b"Mon, 21 Sep 2026 15:13:20 GMT");
    for (fields, wanted) in [
        (&[("Date", DATE), hour][..], 3_600),
        (&[("Date", b"foo"), hour], 3_600),
        (&[hour, ("Cache-Control", b"max-age=60")], 60),
        (&[hour, ("Cache-Control", b"max-age=60, s-maxage=30")], 30),
        (&[hour, ("Cache-Control", b"s-maxage=120, max-age=60")], 120),
        (
            &[hour, ("Cache-Control", b"max-age=2147483649")],
            SECONDS_MAX,
        ),
        (&[hour, ("CDN-Cache-Control", b"max-age=5")], 5),
        (&[hour, hour, ("ETag", b"\"a\"")], 0),
    ] {
        assert_eq!(lifetime(fields), wanted, "{fields:?}");
    }
}

#[test]
fn ages_add_up() {
    let age = |fields: &[Field<'_>]| {
        let mut all = vec![("Cache-Control", &b"max-age=100000"[..])];
        all.extend_from_slice(fields);
        store(200, &all).expect("fresh").verdict.initial_age
    };
    for (fields, wanted) in [
        (&[][..], 0),
        (&[("Age", &b"7"[..])], 7),
        (&[("Age", b"7, 0")], 7),
        (&[("Age", b"0, 7")], 0),
        (&[("Age", b"7"), ("Age", b"9")], 7),
        (&[("Age", b"7.0")], 0),
        (&[("Age", b"-7")], 0),
        // The server's clock is ten seconds behind, or ahead.
        (&[("Date", b"Mon, 21 Sep 2026 14:13:10 GMT")], 10),
        (&[("Date", b"Mon, 21 Sep 2026 14:13:30 GMT")], 0),
        (
            &[("Date", b"Mon, 21 Sep 2026 14:13:10 GMT"), ("Age", b"30")],
            30,
        ),
    ] {
        assert_eq!(age(fields), wanted, "{fields:?}");
    }
}

#[test]
fn requests_may_be_stricter_or_looser() {
    let verdict = store(200, &[("Cache-Control", b"max-age=100")])
        .expect("fresh")
        .verdict;
    let fit = |control: &str, at| {
        let fields: [Field<'_>; 1] = [("cache-control", control.as_bytes())];
        verdict.judge(&RequestControl::new(&fields), now(at)).fit
    };
    for (control, at, wanted) in [
        ("", 99, Fit::Fresh),
        ("", 100, Fit::Validate),
        ("no-cache", 1, Fit::Validate),
        ("max-age=10", 10, Fit::Fresh),
        ("max-age=10", 11, Fit::Validate),
        ("min-fresh=10", 90, Fit::Fresh),
        ("min-fresh=10", 91, Fit::Validate),
        ("max-stale", 10_000, Fit::Fresh),
        ("max-stale=10", 110, Fit::Fresh),
        ("max-stale=10", 111, Fit::Validate),
    ] {
        assert_eq!(fit(control, at), wanted, "{control:?} at {at}");
    }
}

#[test]
fn staleness_is_allowed_by_the_response_alone() {
    let judge = |value: &str, at| {
        let verdict = store(
            200,
            &[("Cache-Control", value.as_bytes()), ("ETag", b"\"a\"")],
        );
        let control = RequestControl {
            max_stale: Some(SECONDS_MAX),
            ..RequestControl::default()
        };
        let verdict = verdict.expect("storable").verdict;
        let own = verdict.judge(&RequestControl::default(), now(at));
        (
            own.fit,
            own.replaces_errors,
            verdict.judge(&control, now(at)).fit,
        )
    };
    use Fit::{Fresh, Validate, WhileRevalidate};
    for (value, at, wanted) in [
        (
            "max-age=10, stale-while-revalidate=5",
            14,
            (WhileRevalidate, false, Fresh),
        ),
        (
            "max-age=10, stale-while-revalidate=5",
            15,
            (Validate, false, Fresh),
        ),
        ("max-age=10, stale-if-error=5", 14, (Validate, true, Fresh)),
        ("max-age=10, stale-if-error=5", 15, (Validate, false, Fresh)),
        (
            "max-age=10, must-revalidate, stale-while-revalidate=5, stale-if-error=5",
            14,
            (Validate, false, Validate),
        ),
        ("s-maxage=10", 14, (Validate, false, Validate)),
        ("max-age=10, no-cache", 1, (Validate, false, Validate)),
    ] {
        assert_eq!(judge(value, at), wanted, "{value} at {at}");
    }
}

#[test]
fn a_clock_that_goes_back_makes_nothing_fresh() {
    let verdict = store(200, &[("Cache-Control", b"max-age=100")])
        .expect("fresh")
        .verdict;
    let asked = RequestControl::default();
    let mut later = now(10);
    later.wall_ms = now(0).wall_ms - 1;
    assert_eq!(verdict.judge(&asked, later).fit, Fit::Validate);
    // Forward: what the dates say counts.
    later.wall_ms = now(200).wall_ms;
    assert_eq!(verdict.judge(&asked, later).fit, Fit::Validate);
    // The other clock counts when the wall's stands still.
    let mut later = now(200);
    later.wall_ms = now(0).wall_ms;
    assert_eq!(verdict.judge(&asked, later).fit, Fit::Validate);
}
