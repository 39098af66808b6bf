//! Conditions of requests, compared with a stored response (RFC 9110, section 13; RFC 9111,
//! section 4.3.2).

use core::ops::Range;

use fairlead_wire::http::members;

use crate::date::parse_date;
use crate::directives::lines;
use crate::head::RequestHead;
use crate::range::{Asked, parse_range};

/// A stored response's validators.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Validators<'a> {
    pub(crate) status: u16,
    pub(crate) etag: Option<&'a [u8]>,
    pub(crate) last_modified: Option<u64>,
    pub(crate) date: u64,
    /// Of the body, if it is known.
    pub(crate) length: Option<u64>,
}

/// What of a stored response is sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    Whole,
    Range(Range<u64>),
    NotModified,
    Unsatisfiable,
}

/// Last-Modified is a strong validator when it lies this many seconds before Date.
const STRONG_SECONDS: u64 = 60;

/// What a request's conditions and range make of a response.
pub(crate) fn part(request: &RequestHead<'_>, stored: &Validators<'_>, now: u64) -> Part {
    if (200..300).contains(&stored.status) && is_unchanged(request, stored, now) {
        return Part::NotModified;
    }
    let range = lines(request.fields, "range").next();
    let (Some(range), Some(length)) = (range, stored.length) else {
        return Part::Whole;
    };
    let applies = request.method == "GET" && stored.status == 200;
    if !applies || !if_range(request, stored, now) {
        return Part::Whole;
    }
    match parse_range(range, length) {
        Asked::Part(range) => Part::Range(range),
        Asked::Unsatisfiable => Part::Unsatisfiable,
        Asked::Whole => Part::Whole,
    }
}

/// `If-None-Match`, or else `If-Modified-Since`, says that the client has the response.
fn is_unchanged(request: &RequestHead<'_>, stored: &Validators<'_>, now: u64) -> bool {
    let mut has_tags = false;
    for line in lines(request.fields, "if-none-match") {
        has_tags = true;
        if members(line).any(|tag| tag == b"*" || stored.etag.is_some_and(|own| weak(own, tag))) {
            return true;
        }
    }
    if has_tags {
        return false;
    }
    let Some(since) = lines(request.fields, "if-modified-since").next() else {
        return false;
    };
    let changed = stored.last_modified.unwrap_or(stored.date);
    parse_date(since, now).is_some_and(|since| changed <= since)
}

/// True if the range is wanted of this response.
fn if_range(request: &RequestHead<'_>, stored: &Validators<'_>, now: u64) -> bool {
    let Some(condition) = lines(request.fields, "if-range").next() else {
        return true;
    };
    if condition.starts_with(b"\"") || condition.starts_with(b"W/") {
        return !condition.starts_with(b"W/") && stored.etag == Some(condition);
    }
    let is_strong = |at: u64| stored.date.saturating_sub(at) >= STRONG_SECONDS;
    let stored = stored.last_modified.filter(|at| is_strong(*at));
    stored.is_some() && parse_date(condition, now) == stored
}

/// Equal but for weakness.
pub(crate) fn weak(left: &[u8], right: &[u8]) -> bool {
    opaque(left) == opaque(right)
}

fn opaque(tag: &[u8]) -> &[u8] {
    tag.strip_prefix(b"W/").unwrap_or(tag)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::head::Field;

    const NOW: u64 = 1_000_000_000;
    // 2001-09-08 and 09.
    const BEFORE: &[u8] = b"Sat, 08 Sep 2001 01:46:40 GMT";
    const AT: &[u8] = b"Sun, 09 Sep 2001 01:46:40 GMT";

    fn stored(last_modified: Option<u64>) -> Validators<'static> {
        Validators {
            status: 200,
            etag: Some(b"\"a\""),
            last_modified,
            date: NOW + 100,
            length: Some(10),
        }
    }

    fn ask(fields: &[Field<'_>], stored: &Validators<'_>) -> Part {
        let request = RequestHead {
            method: "GET",
            host: "a",
            target: b"/",
            fields,
        };
        part(&request, stored, NOW)
    }

    #[test]
    fn a_client_that_has_the_response_gets_no_body() {
        for (fields, wanted) in [
            (&[("If-None-Match", &b"\"a\""[..])][..], Part::NotModified),
            (&[("If-None-Match", b"W/\"a\"")], Part::NotModified),
            (&[("If-None-Match", b"\"b\", \"a\"")], Part::NotModified),
            (&[("If-None-Match", b"*")], Part::NotModified),
            (&[("If-None-Match", b"\"b,\\\", \\\"a\"")], Part::Whole),
            (
                &[("If-None-Match", b"\"b\""), ("If-Modified-Since", AT)],
                Part::Whole,
            ),
            (&[("If-Modified-Since", AT)], Part::NotModified),
            (&[("If-Modified-Since", BEFORE)], Part::Whole),
            (&[("If-Modified-Since", b"soon")], Part::Whole),
        ] {
            assert_eq!(ask(fields, &stored(Some(NOW))), wanted, "{fields:?}");
        }
        let error = Validators {
            status: 404,
            ..stored(Some(NOW))
        };
        assert_eq!(ask(&[("If-None-Match", b"\"a\"")], &error), Part::Whole);
        // Without Last-Modified, Date counts.
        assert_eq!(
            ask(&[("If-Modified-Since", AT)], &stored(None)),
            Part::Whole
        );
    }

    #[test]
    fn a_range_is_sent_of_the_response_that_it_is_for() {
        let range = ("Range", &b"bytes=2-3"[..]);
        for (fields, wanted) in [
            (&[range][..], Part::Range(2..4)),
            (&[range, ("If-Range", b"\"a\"")], Part::Range(2..4)),
            (&[range, ("If-Range", b"W/\"a\"")], Part::Whole),
            (&[range, ("If-Range", b"\"b\"")], Part::Whole),
            (&[range, ("If-Range", AT)], Part::Range(2..4)),
            (&[range, ("If-Range", BEFORE)], Part::Whole),
            (&[("Range", b"bytes=10-")], Part::Unsatisfiable),
            (&[("Range", b"bytes=0-1,5-6")], Part::Whole),
            (&[range, ("If-None-Match", b"\"a\"")], Part::NotModified),
        ] {
            assert_eq!(ask(fields, &stored(Some(NOW))), wanted, "{fields:?}");
        }
        // Changed 40 s before Date: it may have changed again in that second.
        let recent = stored(Some(NOW + 60));
        assert_eq!(
            ask(
                &[range, ("If-Range", b"Sun, 09 Sep 2001 01:47:40 GMT")],
                &recent
            ),
            Part::Whole
        );
        let unknown = Validators {
            length: None,
            ..stored(None)
        };
        assert_eq!(ask(&[range], &unknown), Part::Whole);
    }
}
