//! A request head that has been read.

use std::borrow::Cow;

use super::body::Body;
use super::query;
use crate::asked::Asked;

/// The most field lines that a head may have.
pub const FIELDS_MAX: usize = 100;

/// A whole request head that broke no rule. Borrows from the bytes that it was read from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestHead<'a> {
    /// The method, as written (methods are case-sensitive).
    pub method: &'a str,
    /// The request target, as written: printable ASCII and bytes from 0x80 on.
    pub target: &'a [u8],
    /// The target's path, as written: no percent is decoded and no dot segment resolved. `/` for an
    /// absolute target without a path, `*` for the asterisk form.
    pub path: &'a [u8],
    /// The target's query, without the question mark.
    pub query: Option<&'a [u8]>,
    /// The host that the request is for: lower-case, without port and trailing dot, an IPv6 address
    /// without brackets and in the form of RFC 5952. `None` for HTTP/1.0 without `Host`, and for
    /// an empty `Host`.
    pub host: Option<String>,
    /// 0 for HTTP/1.0, 1 for HTTP/1.1.
    pub version_minor: u8,
    /// Bytes of the head, from the first byte shown to the scanner (an empty line before the
    /// request line counts) to the end of the empty line that ends it.
    pub head_len: usize,
    /// Where the first field line begins.
    pub(super) fields_at: usize,
    /// The field lines, each with its CRLF; the empty line is not among them.
    pub(super) field_lines: &'a [u8],
}

impl<'a> RequestHead<'a> {
    /// All fields in order: the name as written, the value without blanks around it.
    pub fn headers(&self) -> Fields<'a> {
        Fields {
            rest: self.field_lines,
        }
    }

    /// How the end of the body is marked (RFC 9112, section 6.3).
    pub fn body(&self) -> Body {
        if self.header("transfer-encoding").is_some() {
            return Body::Chunked;
        }
        // The rules have seen to it that it is one plain number.
        let length = self.header("content-length");
        let length = length.and_then(|digits| core::str::from_utf8(digits).ok()?.parse().ok());
        Body::Length(length.unwrap_or(0))
    }

    /// The value of the first field called `name`, in whatever case.
    pub fn header(&self, name: &str) -> Option<&'a [u8]> {
        self.headers()
            .find(|(key, _)| key.eq_ignore_ascii_case(name))
            .map(|(_, value)| value)
    }

    /// The values of all fields called `name`, in whatever case, joined by commas: what they mean
    /// does not change by it (RFC 9110, section 5.3). `None` when there is no such field.
    pub fn joined(&self, name: &str) -> Option<Cow<'a, [u8]>> {
        let mut values = self
            .headers()
            .filter(|(key, _)| key.eq_ignore_ascii_case(name))
            .map(|(_, value)| value);
        let first = values.next()?;
        let mut joined = Cow::Borrowed(first);
        for value in values {
            let joined = joined.to_mut();
            joined.extend_from_slice(b", ");
            joined.extend_from_slice(value);
        }
        Some(joined)
    }

    /// The value of the first cookie called `name` (RFC 6265), over all `Cookie` fields; `None` too
    /// when it is not UTF-8. Cookie names are case-sensitive.
    pub fn cookie(&self, name: &str) -> Option<&'a str> {
        let value = self
            .headers()
            .filter(|(key, _)| key.eq_ignore_ascii_case("cookie"))
            .find_map(|(_, value)| query::cookie(value, name))?;
        core::str::from_utf8(value).ok()
    }

    /// The value of the first query parameter called `name`, decoded as HTML forms encode; empty
    /// for a parameter without a value. Bytes that are not UTF-8 become U+FFFD.
    pub fn query_param(&self, name: &str) -> Option<Cow<'a, str>> {
        query::param(self.query?, name)
    }

    /// What it asks for, for logs.
    pub fn subject(&self) -> Asked {
        let host = self.host.as_deref().unwrap_or_default();
        Asked::http(self.method, host, self.path)
    }

    /// Field lines with their CRLF, for who copies them.
    pub(super) fn lines(&self) -> impl Iterator<Item = &'a [u8]> {
        self.field_lines.split_inclusive(|&byte| byte == b'\n')
    }
}

/// Iterates over the fields of a [`RequestHead`].
#[derive(Clone, Debug)]
pub struct Fields<'a> {
    rest: &'a [u8],
}

impl<'a> Iterator for Fields<'a> {
    type Item = (&'a str, &'a [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        // LF stands only at line ends, and every line has a colon and an ASCII name before it: the
        // rules have seen to that.
        let end = self.rest.iter().position(|&byte| byte == b'\n')? + 1;
        let (line, rest) = self.rest.split_at(end);
        self.rest = rest;
        let (name, value) = field(line)?;
        Some((name, value))
    }
}

/// The name and value of a field line.
pub(super) fn field(line: &[u8]) -> Option<(&str, &[u8])> {
    let colon = line.iter().position(|&byte| byte == b':')?;
    let name = core::str::from_utf8(&line[..colon]).ok()?;
    Some((name, line[colon + 1..].trim_ascii()))
}
