//! A stored response, or one that is being stored.

use fairlead_content::{BlockSize, Extent, Object as Extents};

use crate::conditions::Validators;
use crate::directives::lines;
use crate::freshness::{Storable, Verdict};
use crate::head::{Field, ResponseHead};
use crate::slab::Ticket;

/// No object.
pub(crate) const NONE: u32 = u32::MAX;

/// How far a body is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Bytes still come.
    Filling,
    /// All of it is there.
    Complete,
    /// It ended early: readers must not take it for a whole.
    Cut,
}

#[derive(Clone, Debug)]
pub(crate) struct Object {
    pub(crate) verdict: Verdict,
    pub(crate) key: Box<[u8]>,
    /// Length of the key's part that names the URL.
    pub(crate) url: u32,
    pub(crate) vary: Box<[Box<str>]>,
    /// What the request had for the fields in `vary`.
    pub(crate) variant: Box<[u8]>,
    pub(crate) tags: Box<[u64]>,
    /// Status line and fields, each line with its end; no `Content-Length`, no `Age`.
    pub(crate) head: Box<[u8]>,
    pub(crate) last_modified: Option<u64>,
    pub(crate) date: u64,
    /// Length of the body, when it is known.
    pub(crate) total: Option<u64>,
    /// Bytes of the body that came.
    pub(crate) received: u64,
    /// Bytes before this were dropped: of an object that is only passed on.
    pub(crate) base: u64,
    pub(crate) lines: Vec<u32>,
    /// Lines that were promised to this object and are not taken yet.
    pub(crate) reserved: u32,
    pub(crate) phase: Phase,
    /// Readers, and fetches that validate or fill it.
    pub(crate) pins: u32,
    pub(crate) is_linked: bool,
    pub(crate) is_resident: bool,
    /// Somebody else sends it, too: [`crate::Cache::offer`].
    pub(crate) is_offered: bool,
    /// The next object with the same hash.
    pub(crate) next: u32,
    /// The fetch that validates it.
    pub(crate) validation: Option<Ticket>,
    /// The fetch that fills it.
    pub(crate) fill: Option<Ticket>,
    /// Memory that is accounted for, without blocks.
    pub(crate) memory: u64,
    /// Its latest record in the journal; 0 without one.
    pub(crate) serial: u64,
    /// Checksum of the whole blocks of its body, or of all of it once it is complete. For the
    /// journal.
    pub(crate) check: u64,
}

impl Object {
    /// Memory without blocks, in bytes.
    pub(crate) fn small_memory(&self) -> u64 {
        let vary: usize = self.vary.iter().map(|name| name.len() + 16).sum();
        let parts = self.key.len() + vary + self.variant.len() + self.head.len();
        let lines = self.total.map_or(self.lines.capacity() * 4, |_| {
            (self.lines.len() + self.reserved as usize) * 4
        });
        (size_of::<Self>() + parts + self.tags.len() * 8 + lines) as u64
    }

    /// Fields of the stored head.
    pub(crate) fn fields(&self) -> impl Iterator<Item = Field<'_>> {
        fields_of(&self.head)
    }

    pub(crate) fn etag(&self) -> Option<&[u8]> {
        let mut found = self.fields();
        found
            .find(|(name, _)| name.eq_ignore_ascii_case("etag"))
            .map(|(_, value)| value)
    }

    pub(crate) fn validators(&self) -> Validators<'_> {
        Validators {
            status: self.verdict.status,
            etag: self.etag(),
            last_modified: self.last_modified,
            date: self.date,
            length: self.total,
        }
    }

    /// The next piece of the body from `offset` on, within one block.
    pub(crate) fn piece(&self, block: BlockSize, offset: u64, end: u64) -> Option<Extent> {
        let from = offset.checked_sub(self.base)?;
        let body = Extents::new(block, self.received - self.base, &self.lines)?;
        body.extents(from..end.saturating_sub(self.base)).next()
    }

    /// Takes over what a new head says.
    pub(crate) fn set(&mut self, storable: Storable, head: Box<[u8]>, checked: u64) {
        self.verdict = Verdict {
            hash: self.verdict.hash,
            checked,
            head_bytes: head.len() as u32,
            ..storable.verdict
        };
        self.last_modified = storable.last_modified;
        self.date = storable.date;
        self.vary = storable.vary.into_boxed_slice();
        self.head = head;
    }
}

/// Fields of a head as [`write_head`] wrote it.
pub(crate) fn fields_of(head: &[u8]) -> impl Iterator<Item = Field<'_>> {
    head.split(|byte| *byte == b'\n')
        .skip(1)
        .filter_map(|line| {
            let line = line.strip_suffix(b"\r")?;
            let at = line.iter().position(|byte| *byte == b':')?;
            let name = core::str::from_utf8(&line[..at]).ok()?;
            Some((name, line[at + 1..].trim_ascii()))
        })
}

/// Fields of one connection, and those that are written anew for each answer.
const DROPPED: [&str; 13] = [
    "connection",
    "keep-alive",
    "proxy-connection",
    "proxy-authenticate",
    "proxy-authentication-info",
    "proxy-authorization",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "http2-settings",
    "age",
    "content-length",
];

/// Writes what of a response's head is stored. A response without `Date` gets one.
pub(crate) fn write_head(head: &ResponseHead<'_>, date: u64) -> Box<[u8]> {
    let mut out = Vec::with_capacity(512);
    write_status_line(&mut out, head.status, head.phrase);
    let mut has_date = false;
    for (name, value) in head.fields {
        let dropped = DROPPED.iter().any(|other| other.eq_ignore_ascii_case(name));
        if dropped || is_nominated(head, name) || !is_one_line(name, value) {
            continue;
        }
        has_date |= name.eq_ignore_ascii_case("date");
        write_field(&mut out, name, value);
    }
    if !has_date {
        let mut text = Vec::new();
        crate::date::write_date(&mut text, date);
        write_field(&mut out, "date", &text);
    }
    out.into_boxed_slice()
}

pub(crate) fn write_status_line(out: &mut Vec<u8>, status: u16, phrase: &[u8]) {
    out.extend_from_slice(format!("HTTP/1.1 {status:03} ").as_bytes());
    let plain = |byte: &u8| *byte == b'\t' || *byte >= b' ' && *byte != 127;
    out.extend(phrase.iter().copied().filter(plain));
    out.extend_from_slice(b"\r\n");
}

pub(crate) fn write_field(out: &mut Vec<u8>, name: &str, value: &[u8]) {
    out.extend_from_slice(name.as_bytes());
    out.extend_from_slice(b": ");
    out.extend_from_slice(value);
    out.extend_from_slice(b"\r\n");
}

/// Whether `Connection` names this field.
fn is_nominated(head: &ResponseHead<'_>, name: &str) -> bool {
    lines(head.fields, "connection")
        .flat_map(fairlead_wire::http::members)
        .any(|member| member.eq_ignore_ascii_case(name.as_bytes()))
}

/// A field that would be more than one line is a caller's error, and is left out.
fn is_one_line(name: &str, value: &[u8]) -> bool {
    let breaks = |byte: &u8| matches!(byte, b'\r' | b'\n' | 0);
    let is_name = !name.is_empty() && name.bytes().all(|byte| byte > b' ' && byte != b':');
    is_name && !value.iter().any(breaks)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_head_is_stored_without_fields_of_the_connection() {
        let fields: [Field<'_>; 9] = [
            ("Connection", b"a, close"),
            ("A", b"1"),
            ("Age", b"7"),
            ("Content-Length", b"3"),
            ("X", b" two words"),
            ("Bad", b"a\r\nSet-Cookie: b"),
            ("Keep-Alive", b"timeout=5"),
            ("Via", b"1.1 x"),
            ("Empty", b""),
        ];
        let head = ResponseHead {
            status: 299,
            phrase: b"What\x07ever",
            fields: &fields,
            length: Some(3),
        };
        let stored = write_head(&head, 784_111_777);
        let text = "HTTP/1.1 299 Whatever\r\nX:  two words\r\nVia: 1.1 x\r\nEmpty: \r\n\
                    date: Sun, 06 Nov 1994 08:49:37 GMT\r\n";
        assert_eq!(String::from_utf8_lossy(&stored), text);
        let names: Vec<_> = fields_of(&stored).map(|(name, _)| name).collect();
        assert_eq!(names, ["X", "Via", "Empty", "date"]);
        assert!(fields_of(&stored).any(|field| field == ("X", b"two words")));
    }
}
