//! Common Log Format, `host ident user [dd/Mon/yyyy:HH:MM:SS ±zzzz] "request" status bytes`,
//! followed by any other fields: the Combined Log Format, and variants. The client may be preceded
//! by a virtual host (Apache's `vhost_combined`) or a syslog prefix (RFC 3164, RFC 5424), and
//! followed by its port (`10.0.0.1:40001`) and by proxies, separated by commas
//! (`X-Forwarded-For`).
//!
//! The time is the last bracket in front of the request that can be read as a time: names of users
//! may have brackets.
//!
//! Words without quotation marks may stand between the time and the request.
//!
//! Requests may contain quotation marks. The first one that is followed by a status and has no
//! backslash of its own in front of it ends the request. If every such mark has one, the first of
//! them ends it: logs of 1995 escape nothing. If there is no such mark (some lines of 1994 and
//! 1995 lack it), the last two words of the line are status and size.

use memchr::{memchr, memchr_iter};

use super::{syslog, word};
use crate::builder::{Builder, Row};
use crate::field;
use crate::hash::hash64;
use crate::lines::LineFormat;
use crate::reason::{Reason, Step};
use crate::requests::BYTES_UNKNOWN;
use crate::stamp::Calendar;

/// Reads lines of this format.
#[derive(Debug, Default)]
pub(crate) struct Clf {
    calendar: Calendar,
}

impl LineFormat for Clf {
    #[inline]
    fn line(&mut self, line: &[u8], out: &mut Builder) -> Result<Step, Reason> {
        let line = syslog::message(line);
        let (first, rest) = field::cut(line, b' ').ok_or(Reason::Fields)?;
        let (open, time_us, after) = self.time(rest)?;
        let host = client_of(first, &rest[..open]);
        let answer = answer(request_of(after)?)?;
        let (client, port) = out.client_and_port(host)?;
        out.push(Row {
            port,
            bytes: answer.bytes,
            object: hash64(field::object_of(answer.request)),
            status: answer.status,
            ..Row::new(time_us, client)
        })
    }
}

impl Clf {
    /// The time in `text`, the position of its bracket, and the text behind it: the last bracket at
    /// the start of a word that holds a time, in front of the request.
    #[inline]
    fn time<'a>(&mut self, text: &'a [u8]) -> Result<(usize, i64, &'a [u8]), Reason> {
        let mut found = None;
        let mut request = text.len();
        for open in memchr_iter(b'[', text) {
            if open >= request {
                break;
            }
            if open > 0 && !text[open - 1].is_ascii_whitespace() {
                continue;
            }
            let Some((stamp, after)) = field::cut(&text[open + 1..], b']') else {
                break;
            };
            if let Some(time_us) = self.calendar.clf_us(stamp) {
                found = Some((open, time_us, after));
                let behind = text.len() - after.len();
                request = memchr(b'"', after).map_or(behind, |at| behind + at);
            }
        }
        found.ok_or(Reason::Time)
    }
}

/// The request, with its mark, in the text behind the time. Words may precede it: how long it took,
/// how many workers are busy. If one of them is an address, it is the client (logs of S3), and the
/// line is of another format.
#[inline]
fn request_of(after: &[u8]) -> Result<&[u8], Reason> {
    let after = after.trim_ascii_start();
    if after.starts_with(b"\"") {
        return Ok(after);
    }
    let mark = memchr(b'"', after).ok_or(Reason::Request)?;
    let (words, request) = after.split_at(mark);
    let mut words = words.split(u8::is_ascii_whitespace);
    match words.any(|word| is_address(field::bare(word))) {
        true => Err(Reason::Request),
        false => Ok(request),
    }
}

/// The client of a request: `first` is the line's first word, `between` the text from there to the
/// time.
#[inline]
fn client_of<'a>(first: &'a [u8], between: &'a [u8]) -> &'a [u8] {
    let next = word(between.trim_ascii_start()).0;
    // Of two addresses the first is the connection's.
    let host = if next == b"-" || first.ends_with(b",") || is_address(first) {
        first
    } else {
        behind(first, next, between)
    };
    field::cut(host, b',').map_or(host, |(client, _)| client)
}

fn is_address(word: &[u8]) -> bool {
    field::v4(word).is_some() || field::v6(word).is_some()
}

/// The client, which may follow a virtual host or a syslog prefix. It and its proxies precede a
/// `-`, the unknown identity (RFC 1413): the first one with an address in front of it, or else the
/// last one that a user follows; other `-` belong to the prefix. If an identity is given, it is not
/// an address and has no proxies.
fn behind<'a>(first: &'a [u8], next: &'a [u8], between: &'a [u8]) -> &'a [u8] {
    let (mut client, mut before) = (first, first);
    let mut last = None;
    let mut words = between
        .split(|byte| *byte == b' ')
        .filter(|word| !word.is_empty())
        .peekable();
    while let Some(word) = words.next() {
        if word == b"-" && words.peek().is_some() {
            let host = field::cut(client, b',').map_or(client, |(host, _)| host);
            if is_address(host) || is_address(field::bare(host)) {
                return client;
            }
            if client != b"-" {
                last = Some(client);
            }
        }
        if !before.ends_with(b",") {
            client = word;
        }
        before = word;
    }
    if let Some(client) = last {
        client
    } else if is_address(next) || memchr(b',', next).is_some() {
        next
    } else {
        first
    }
}

/// The text after the time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Answer<'a> {
    pub(crate) request: &'a [u8],
    pub(crate) status: u16,
    pub(crate) bytes: u64,
}

/// Reads `"request" status bytes …`.
#[inline]
pub(crate) fn answer(text: &[u8]) -> Result<Answer<'_>, Reason> {
    let [b'"', text @ ..] = text else {
        return Err(Reason::Request);
    };
    let mut from = 0;
    let mut escaped = None;
    while let Some(at) = memchr(b'"', &text[from..]) {
        let quote = from + at;
        from = quote + 1;
        if let Some((status, bytes)) = numbers(&text[from..]) {
            let request = &text[..quote];
            if !ends_in_escape(request) {
                return answered(request, status, bytes);
            }
            escaped = escaped.or(Some((request, status, bytes)));
        }
    }
    match escaped {
        Some((request, status, bytes)) => answered(request, status, bytes),
        None => unclosed(text),
    }
}

#[inline]
fn answered(request: &[u8], status: u16, bytes: Result<u64, Reason>) -> Result<Answer<'_>, Reason> {
    Ok(Answer {
        request,
        status,
        bytes: bytes?,
    })
}

/// True if `text` ends in an odd number of backslashes: the mark behind it is escaped.
#[inline]
fn ends_in_escape(text: &[u8]) -> bool {
    let backslashes = text.iter().rev().take_while(|byte| **byte == b'\\');
    backslashes.count() % 2 == 1
}

/// ` status bytes`; `None` when no status is there.
#[inline]
fn numbers(text: &[u8]) -> Option<(u16, Result<u64, Reason>)> {
    let [b' ', rest @ ..] = text else {
        return None;
    };
    let (status, rest) = word(rest);
    let status = status_of(status)?;
    Some((status, size_of(word(rest).0)))
}

#[inline]
fn status_of(text: &[u8]) -> Option<u16> {
    match text {
        b"-" => Some(0),
        [_, _, _] => field::number16(text),
        _ => None,
    }
}

#[inline]
fn size_of(text: &[u8]) -> Result<u64, Reason> {
    match text {
        b"-" => Ok(BYTES_UNKNOWN),
        digits => field::number(digits).ok_or(Reason::Size),
    }
}

/// A request without its closing mark.
#[cold]
fn unclosed(text: &[u8]) -> Result<Answer<'_>, Reason> {
    let mut words = text.trim_ascii_end().rsplitn(3, |byte| *byte == b' ');
    let (bytes, status) = (words.next(), words.next());
    let (Some(bytes), Some(status), Some(request)) = (bytes, status, words.next()) else {
        return Err(Reason::Fields);
    };
    Ok(Answer {
        request,
        status: status_of(status).ok_or(Reason::Status)?,
        bytes: size_of(bytes)?,
    })
}
