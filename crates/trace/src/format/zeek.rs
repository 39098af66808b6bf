//! Zeek's tables: a header of lines with `#` names separator, fields and the mark of unset ones.
//! `conn.log` has sizes and protocols, `http.log` objects and statuses, `ssl.log` server names.

use crate::builder::{Builder, Row};
use crate::field;
use crate::hash::hash64;
use crate::lines::LineFormat;
use crate::reason::{Passed, Reason, Step};
use crate::requests::BYTES_UNKNOWN;
use crate::stamp::fraction_us;

/// The most fields of a line that are looked at.
const FIELDS_MAX: usize = 64;

pub(crate) fn begins(head: &[u8]) -> bool {
    head.starts_with(b"#separator ") || head.starts_with(b"#fields")
}

/// Where the fields are that are used; by the last header met.
#[derive(Clone, Copy, Debug, Default)]
struct Places {
    time: Option<usize>,
    client: Option<usize>,
    port: Option<usize>,
    bytes: Option<usize>,
    protocol: Option<usize>,
    host: Option<usize>,
    uri: Option<usize>,
    status: Option<usize>,
}

/// Reads lines of this format.
#[derive(Debug)]
pub(crate) struct Zeek {
    separator: u8,
    unset: Vec<u8>,
    places: Places,
}

impl Default for Zeek {
    fn default() -> Self {
        Self {
            separator: b'\t',
            unset: b"-".to_vec(),
            places: Places::default(),
        }
    }
}

impl LineFormat for Zeek {
    fn line(&mut self, line: &[u8], out: &mut Builder) -> Result<Step, Reason> {
        if line[0] == b'#' {
            self.header(line);
            return Ok(Step::Passed(Passed::Comment));
        }
        let mut fields = [&b""[..]; FIELDS_MAX];
        let mut count = 0;
        for field in line.split(|byte| *byte == self.separator).take(FIELDS_MAX) {
            fields[count] = field;
            count += 1;
        }
        let fields = &fields[..count];
        let places = self.places;
        let set = |place: Option<usize>| {
            let text = place.and_then(|at| fields.get(at).copied());
            text.filter(|text| *text != self.unset.as_slice())
        };
        if set(places.protocol).is_some_and(|protocol| protocol != b"tcp") {
            return Ok(Step::Passed(Passed::NotTcp));
        }
        let time_us = set(places.time).and_then(seconds_us).ok_or(Reason::Time)?;
        let client = set(places.client).ok_or(Reason::Client)?;
        let port = set(places.port)
            .and_then(field::number16)
            .ok_or(Reason::Port)?;
        let bytes = match set(places.bytes) {
            Some(text) => field::number(text).ok_or(Reason::Size)?,
            None => BYTES_UNKNOWN,
        };
        let status = match set(places.status) {
            Some(text) => field::number16(text).ok_or(Reason::Status)?,
            None => 0,
        };
        let host = set(places.host).map_or(0, hash64);
        let uri = set(places.uri).map_or(0, hash64);
        let client = out.client(client)?;
        out.push(Row {
            port,
            bytes,
            object: host ^ uri.rotate_left(1),
            status,
            ..Row::new(time_us, client)
        })
    }
}

impl Zeek {
    fn header(&mut self, line: &[u8]) {
        if let Some(text) = line.strip_prefix(b"#separator ") {
            self.separator = match text {
                [b'\\', b'x', high, low] => hex(*high) << 4 | hex(*low),
                [one] => *one,
                _ => self.separator,
            };
        }
        let separator = self.separator;
        if let Some(text) = line.strip_prefix(b"#unset_field") {
            self.unset = text.get(1..).unwrap_or_default().to_vec();
        }
        let Some(names) = line.strip_prefix(b"#fields") else {
            return;
        };
        let at = |name: &[u8]| {
            let mut names = names.split(|byte| *byte == separator).skip(1);
            names.position(|field| field == name)
        };
        self.places = Places {
            time: at(b"ts"),
            client: at(b"id.orig_h"),
            port: at(b"id.orig_p"),
            bytes: at(b"response_body_len").or_else(|| at(b"resp_bytes")),
            protocol: at(b"proto"),
            host: at(b"host").or_else(|| at(b"server_name")),
            uri: at(b"uri"),
            status: at(b"status_code"),
        };
    }
}

fn hex(letter: u8) -> u8 {
    (letter as char).to_digit(16).unwrap_or(0) as u8
}

/// Seconds with a fraction.
#[inline]
fn seconds_us(text: &[u8]) -> Option<i64> {
    let (seconds, fraction) = field::cut(text, b'.').unwrap_or((text, b""));
    let seconds = field::number(seconds).filter(|seconds| *seconds < 1 << 40)?;
    Some(seconds as i64 * 1_000_000 + fraction_us(fraction)?)
}
