//! Heads of answers.

use crate::conditions::Part;
use crate::head::Now;
use crate::object::{Object, write_field, write_status_line};
use crate::reason::Reason;
use crate::settings::Settings;

/// How an answer came about, for `Cache-Status` (RFC 9211).
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct How {
    /// Why the request was forwarded; `None` for a hit.
    pub(crate) forward: Option<&'static str>,
    /// The server's status.
    pub(crate) status: Option<u16>,
    pub(crate) stored: bool,
    pub(crate) collapsed: bool,
    pub(crate) ttl: Option<i64>,
    pub(crate) reason: Option<Reason>,
    /// The answer is neither stored nor a server's.
    pub(crate) is_own: bool,
    /// The kernel sends it.
    pub(crate) in_kernel: bool,
}

/// Fields of a 304: those that a 200 would have and that concern the client's copy (RFC 9110,
/// section 15.4.5).
const OF_NOT_MODIFIED: [&str; 7] = [
    "cache-control",
    "content-location",
    "date",
    "etag",
    "expires",
    "vary",
    "last-modified",
];

/// Writes the head of an answer from a stored response: all but the empty line at its end, and
/// without `Connection` and `Transfer-Encoding`, which are the connection's.
pub(crate) fn write_answer(
    out: &mut Vec<u8>,
    object: &Object,
    part: &Part,
    age: Option<u32>,
    how: How,
    settings: &Settings,
) -> u16 {
    let status = match part {
        Part::Whole => object.verdict.status,
        Part::Range(_) => 206,
        Part::NotModified => 304,
        Part::Unsatisfiable => 416,
    };
    match part {
        Part::Whole => out.extend_from_slice(&object.head),
        Part::Range(_) => {
            write_status_line(out, status, b"Partial Content");
            let line = object.head.iter().position(|byte| *byte == b'\n');
            out.extend_from_slice(&object.head[line.map_or(0, |at| at + 1)..]);
        }
        Part::NotModified => {
            write_status_line(out, status, b"Not Modified");
            for (name, value) in object.fields() {
                if OF_NOT_MODIFIED
                    .iter()
                    .any(|kept| kept.eq_ignore_ascii_case(name))
                {
                    write_field(out, name, value);
                }
            }
        }
        Part::Unsatisfiable => {
            write_status_line(out, status, b"Range Not Satisfiable");
            for (name, value) in object.fields() {
                if name.eq_ignore_ascii_case("date") {
                    write_field(out, name, value);
                }
            }
        }
    }
    write_lengths(out, object, part);
    if let Some(age) = age {
        write_number(out, "age", u64::from(age));
    }
    write_notes(out, how, settings);
    status
}

fn write_lengths(out: &mut Vec<u8>, object: &Object, part: &Part) {
    let total = object.total;
    match part {
        Part::Whole if object.verdict.status == 204 => {}
        Part::Whole => {
            if let Some(total) = total {
                write_number(out, "content-length", total);
            }
        }
        Part::Range(range) => {
            let total = total.unwrap_or(range.end);
            let (first, last) = (range.start, range.end - 1);
            write_field(
                out,
                "content-range",
                format!("bytes {first}-{last}/{total}").as_bytes(),
            );
            write_number(out, "content-length", range.end - range.start);
        }
        Part::Unsatisfiable => {
            let total = total.unwrap_or_default();
            write_field(out, "content-range", format!("bytes */{total}").as_bytes());
            write_number(out, "content-length", 0);
        }
        Part::NotModified => {}
    }
}

/// Writes `Via` and `Cache-Status`.
pub(crate) fn write_notes(out: &mut Vec<u8>, how: How, settings: &Settings) {
    if settings.shows_via {
        out.extend_from_slice(b"via: 1.1 ");
        out.extend_from_slice(settings.name.as_bytes());
        out.extend_from_slice(b"\r\n");
    }
    if !settings.shows_status {
        return;
    }
    out.extend_from_slice(b"cache-status: ");
    out.extend_from_slice(settings.name.as_bytes());
    match how.forward {
        None if how.is_own => {}
        None => out.extend_from_slice(b"; hit"),
        Some(forward) => {
            out.extend_from_slice(b"; fwd=");
            out.extend_from_slice(forward.as_bytes());
        }
    }
    if let Some(status) = how.status {
        out.extend_from_slice(b"; fwd-status=");
        push_number(out, u64::from(status));
    }
    if let Some(ttl) = how.ttl {
        out.extend_from_slice(if ttl < 0 { b"; ttl=-" } else { b"; ttl=" });
        push_number(out, ttl.unsigned_abs());
    }
    if how.stored {
        out.extend_from_slice(b"; stored");
    }
    if how.collapsed {
        out.extend_from_slice(b"; collapsed");
    }
    if how.in_kernel {
        out.extend_from_slice(b"; detail=kernel");
    }
    if let Some(reason) = how.reason {
        out.extend_from_slice(b"; detail=");
        out.extend_from_slice(reason.name().as_bytes());
    }
    out.extend_from_slice(b"\r\n");
}

/// Writes the head of a 504, the answer to `only-if-cached` when nothing is stored.
pub(crate) fn write_not_cached(out: &mut Vec<u8>, now: Now, settings: &Settings) {
    write_status_line(out, 504, b"Gateway Timeout");
    let mut date = Vec::new();
    crate::date::write_date(&mut date, now.wall());
    write_field(out, "date", &date);
    write_number(out, "content-length", 0);
    let how = How {
        is_own: true,
        reason: Some(Reason::OnlyIfCached),
        ..How::default()
    };
    write_notes(out, how, settings);
}

fn write_number(out: &mut Vec<u8>, name: &str, number: u64) {
    out.extend_from_slice(name.as_bytes());
    out.extend_from_slice(b": ");
    push_number(out, number);
    out.extend_from_slice(b"\r\n");
}

fn push_number(out: &mut Vec<u8>, mut number: u64) {
    let mut digits = [0; 20];
    let mut at = digits.len();
    loop {
        at -= 1;
        digits[at] = b'0' + (number % 10) as u8;
        number /= 10;
        if number == 0 {
            break;
        }
    }
    out.extend_from_slice(&digits[at..]);
}
