//! Common Log Format, `host ident user [dd/Mon/yyyy:HH:MM:SS ±zzzz] "request" status bytes`,
//! followed by any other fields: the Combined Log Format, and variants. The client may be preceded
//! by a virtual host (Apache's `vhost_combined`) or a syslog prefix, and followed by proxies,
//! separated by commas (`X-Forwarded-For`).
//!
//! Requests may contain quotation marks. The first one followed by a status ends the request; if
//! there is none (some lines of 1994 and 1995 lack it), the last two words of the line are status
//! and size.

use memchr::{memchr, memchr_iter};

use super::word;
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
        let (first, rest) = field::cut(line, b' ').ok_or(Reason::Fields)?;
        let open = time_from(rest).ok_or(Reason::Time)?;
        let host = client_of(first, &rest[..open]);
        let (stamp, rest) = field::cut(&rest[open + 1..], b']').ok_or(Reason::Time)?;
        let time_us = self.calendar.clf_us(stamp).ok_or(Reason::Time)?;
        let answer = answer(rest.trim_ascii_start())?;
        let client = out.client(host)?;
        out.push(Row {
            bytes: answer.bytes,
            object: hash64(field::object_of(answer.request)),
            status: answer.status,
            ..Row::new(time_us, client)
        })
    }
}

/// Position of the time's bracket: the first at the start of a word.
#[inline]
fn time_from(text: &[u8]) -> Option<usize> {
    memchr_iter(b'[', text).find(|at| *at == 0 || text[at - 1].is_ascii_whitespace())
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

/// The client, which may follow a virtual host or a syslog prefix. It and its proxies precede the
/// first `-`, the unknown identity (RFC 1413). If an identity is given, it is not an address and
/// has no proxies.
fn behind<'a>(first: &'a [u8], next: &'a [u8], between: &'a [u8]) -> &'a [u8] {
    let (mut client, mut before) = (first, first);
    let mut words = between
        .split(|byte| *byte == b' ')
        .filter(|word| !word.is_empty())
        .peekable();
    while let Some(word) = words.next() {
        if word == b"-" && words.peek().is_some() {
            return client;
        }
        if !before.ends_with(b",") {
            client = word;
        }
        before = word;
    }
    if is_address(next) || memchr(b',', next).is_some() {
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
    while let Some(at) = memchr(b'"', &text[from..]) {
        let quote = from + at;
        if let Some((status, bytes)) = numbers(&text[quote + 1..]) {
            return Ok(Answer {
                request: &text[..quote],
                status,
                bytes: bytes?,
            });
        }
        from = quote + 1;
    }
    unclosed(text)
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
