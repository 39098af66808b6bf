//! Heads of responses (RFC 9112, sections 4 and 6.3).

use core::fmt;

use fairlead_http_cache::ResponseHead as CacheView;
use fairlead_wire::http::{ChunkScanner, FIELDS_MAX};

use crate::fields::{Options, push_field};
use crate::framing::Framing;

/// Adds fields to a head that is whole.
pub(crate) fn add_fields(head: &mut Vec<u8>, fields: &[u8]) {
    debug_assert!(head.ends_with(b"\r\n\r\n"), "a head that is not whole");
    head.truncate(head.len() - 2);
    head.extend_from_slice(fields);
    head.extend_from_slice(b"\r\n");
}

/// What a server's response begins with.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ResponseHead {
    pub(crate) status: u16,
    /// Its bytes.
    pub(crate) len: usize,
    pub(crate) framing: Framing,
    /// The server keeps the connection.
    pub(crate) keeps: bool,
}

/// Why a response is not passed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BadResponse {
    /// It is no head of HTTP/1.
    Malformed,
    /// Two lengths, or a length beside chunks: two readers would end it differently.
    TwoLengths,
    /// A length that is no number.
    Length,
    /// Chunks in a response of HTTP/1.0, or to a request of it.
    ChunksOfHttp10,
    /// A switch of protocols that nobody has asked for.
    Unasked,
}

impl BadResponse {
    /// Its name in logs and metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::Malformed => "response_malformed",
            Self::TwoLengths => "response_two_lengths",
            Self::Length => "response_length",
            Self::ChunksOfHttp10 => "response_chunks_of_http10",
            Self::Unasked => "response_unasked",
        }
    }
}

impl fmt::Display for BadResponse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Of the request, what its response is read by.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Question {
    pub(crate) is_head: bool,
    /// The minor version of its client.
    pub(crate) minor: u8,
    /// Another protocol was asked for.
    pub(crate) upgrade: bool,
    /// The client's connection may be kept.
    pub(crate) keep: bool,
}

impl ResponseHead {
    /// Reads a head; `None` while it is not whole. What the client gets is written to `out`, except
    /// for an interim response to a client of HTTP/1.0, which knows none.
    pub(crate) fn read(
        bytes: &[u8],
        question: &Question,
        out: &mut Vec<u8>,
    ) -> Result<Option<Self>, BadResponse> {
        let mut fields = [httparse::EMPTY_HEADER; FIELDS_MAX];
        let mut parsed = httparse::Response::new(&mut fields);
        let len = match parsed.parse(bytes) {
            Ok(httparse::Status::Complete(len)) => len,
            Ok(httparse::Status::Partial) => return Ok(None),
            Err(_) => return Err(BadResponse::Malformed),
        };
        let (status, minor) = (parsed.code.unwrap_or(0), parsed.version.unwrap_or(0));
        if !(100..1_000).contains(&status) {
            return Err(BadResponse::Malformed);
        }
        let options = Options::of(parsed.headers.iter().map(|one| (one.name, one.value)));
        let framing = framing(parsed.headers, status, minor, question)?;
        if status == 101 && !question.upgrade {
            return Err(BadResponse::Unasked);
        }
        let keeps = match minor {
            0 => options.has("keep-alive"),
            _ => !options.has("close"),
        };
        let head = Self {
            status,
            len,
            framing,
            keeps: keeps && !matches!(framing, Framing::UntilClose),
        };
        if head.is_interim() && question.minor == 0 {
            return Ok(Some(head));
        }
        let reason = parsed.reason.unwrap_or_default();
        out.extend_from_slice(format!("HTTP/1.1 {status} {reason}\r\n").as_bytes());
        for one in parsed.headers.iter() {
            if options.lets_pass(one.name) {
                push_field(out, one.name, one.value);
            }
        }
        if status == 101 {
            let protocol = parsed.headers.iter();
            let mut protocol = protocol.filter(|one| one.name.eq_ignore_ascii_case("upgrade"));
            push_field(out, "Connection", b"upgrade");
            if let Some(protocol) = protocol.next() {
                push_field(out, "Upgrade", protocol.value);
            }
        } else if !head.is_interim() {
            match (head.lets_client_keep(question), question.minor) {
                (false, _) => push_field(out, "Connection", b"close"),
                (true, 0) => push_field(out, "Connection", b"keep-alive"),
                (true, _) => {}
            }
        }
        out.extend_from_slice(b"\r\n");
        Ok(Some(head))
    }

    /// Calls `tell` with the head, as a cache reads it; `bytes` are those that it was read from.
    pub(crate) fn with<T>(&self, bytes: &[u8], tell: impl FnOnce(&CacheView<'_>) -> T) -> T {
        let mut fields = [httparse::EMPTY_HEADER; FIELDS_MAX];
        let mut parsed = httparse::Response::new(&mut fields);
        let whole = parsed.parse(bytes);
        debug_assert!(whole.is_ok_and(|of| of.is_complete()), "it was read before");
        let phrase = parsed.reason.unwrap_or_default();
        let fields: Vec<_> = parsed
            .headers
            .iter()
            .map(|one| (one.name, one.value))
            .collect();
        let options = Options::of(fields.iter().copied());
        let passing = fields.iter().copied();
        let fields: Vec<_> = passing
            .filter(|(name, _)| options.lets_pass(name))
            .collect();
        tell(&CacheView {
            status: self.status,
            phrase: phrase.as_bytes(),
            fields: &fields,
            length: match self.framing {
                Framing::Length(bytes) => Some(bytes),
                Framing::Chunked(_) | Framing::UntilClose => None,
            },
        })
    }

    /// Another response follows.
    pub(crate) fn is_interim(&self) -> bool {
        self.status < 200 && self.status != 101
    }

    /// The client's connection can have another request after this response.
    pub(crate) fn lets_client_keep(&self, question: &Question) -> bool {
        question.keep && !matches!(self.framing, Framing::UntilClose)
    }
}

/// Where the body ends. What may be read in two ways is refused.
fn framing(
    fields: &[httparse::Header<'_>],
    status: u16,
    minor: u8,
    question: &Question,
) -> Result<Framing, BadResponse> {
    let named = |name: &'static str| {
        let named = fields.iter();
        named.filter(move |one| one.name.eq_ignore_ascii_case(name))
    };
    let length = match named("content-length").count() {
        0 => None,
        1 => named("content-length").next(),
        _ => return Err(BadResponse::TwoLengths),
    };
    let coded = named("transfer-encoding").next().is_some();
    if coded && length.is_some() {
        return Err(BadResponse::TwoLengths);
    }
    let length = match length.map(|one| one.value) {
        None => None,
        Some(digits) if digits.iter().all(u8::is_ascii_digit) => {
            let number = core::str::from_utf8(digits).ok();
            let number = number.and_then(|text| text.parse().ok());
            Some(number.ok_or(BadResponse::Length)?)
        }
        Some(_) => return Err(BadResponse::Length),
    };
    if question.is_head || status < 200 || status == 204 || status == 304 {
        return Ok(Framing::Length(0));
    }
    if !coded {
        return Ok(length.map_or(Framing::UntilClose, Framing::Length));
    }
    if minor == 0 || question.minor == 0 {
        return Err(BadResponse::ChunksOfHttp10);
    }
    let codings = named("transfer-encoding");
    let mut codings = codings.flat_map(|one| one.value.split(|&byte| byte == b','));
    let last = codings.next_back().unwrap_or_default().trim_ascii();
    match last.eq_ignore_ascii_case(b"chunked") {
        true => Ok(Framing::Chunked(ChunkScanner::default())),
        false => Ok(Framing::UntilClose),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GET: Question = Question {
        is_head: false,
        minor: 1,
        upgrade: false,
        keep: true,
    };

    fn read(
        text: &str,
        question: &Question,
    ) -> (Result<Option<ResponseHead>, BadResponse>, String) {
        let mut out = Vec::new();
        let read = ResponseHead::read(text.as_bytes(), question, &mut out);
        (read, String::from_utf8(out).expect("text"))
    }

    fn refused(text: &str) -> Option<BadResponse> {
        read(text, &GET).0.err()
    }

    #[test]
    fn a_head_goes_on_without_what_is_about_the_connection() {
        let text = "HTTP/1.1 200 Fine\r\nContent-Length: 3\r\nConnection: keep-alive, X-A\r\n\
                    X-A: 1\r\nKeep-Alive: 5\r\nServer: s\r\n\r\nabc";
        let (head, out) = read(text, &GET);
        let head = head.unwrap().expect("whole");
        assert_eq!(
            (head.status, head.keeps, head.len),
            (200, true, text.len() - 3)
        );
        assert!(matches!(head.framing, Framing::Length(3)));
        assert_eq!(
            out,
            "HTTP/1.1 200 Fine\r\nContent-Length: 3\r\nServer: s\r\n\r\n"
        );
        for end in 0..text.len() - 3 {
            assert!(read(&text[..end], &GET).0.unwrap().is_none(), "{end}");
        }
    }

    #[test]
    fn the_end_of_a_body_is_found_as_the_rfc_says() {
        let of = |status: &str, fields: &str, question: &Question| {
            let text = format!("HTTP/1.1 {status} X\r\n{fields}\r\n");
            read(&text, question).0.unwrap().expect("whole").framing
        };
        let is_empty = |framing: Framing| framing.is_empty();
        let head = Question {
            is_head: true,
            ..GET
        };
        assert!(is_empty(of("200", "Content-Length: 9\r\n", &head)));
        assert!(
            is_empty(of("204", "", &GET)) && is_empty(of("304", "Content-Length: 9\r\n", &GET))
        );
        assert!(matches!(of("200", "", &GET), Framing::UntilClose));
        let chunks = "Transfer-Encoding: gzip, Chunked\r\n";
        assert!(matches!(of("200", chunks, &GET), Framing::Chunked(_)));
        assert!(matches!(
            of("200", "Transfer-Encoding: gzip\r\n", &GET),
            Framing::UntilClose
        ));
    }

    #[test]
    fn what_two_readers_would_end_differently_is_refused() {
        let with = |fields: &str| refused(&format!("HTTP/1.1 200 X\r\n{fields}\r\n"));
        let two = Some(BadResponse::TwoLengths);
        assert_eq!(with("Content-Length: 3\r\nContent-Length: 3\r\n"), two);
        assert_eq!(
            with("Content-Length: 3\r\nTransfer-Encoding: chunked\r\n"),
            two
        );
        for bad in ["+3", "3, 3", "0x3", "99999999999999999999"] {
            assert_eq!(
                with(&format!("Content-Length: {bad}\r\n")),
                Some(BadResponse::Length),
                "{bad}"
            );
        }
        assert_eq!(
            refused("HTTP/1.0 200 X\r\nTransfer-Encoding: chunked\r\n\r\n"),
            Some(BadResponse::ChunksOfHttp10)
        );
        assert_eq!(
            refused("HTTP/1.1 101 X\r\n\r\n"),
            Some(BadResponse::Unasked)
        );
        for text in ["HTTP/2 200 X\r\n\r\n", "\0\0\0", "HTTP/1.1 99 X\r\n\r\n"] {
            assert_eq!(refused(text), Some(BadResponse::Malformed), "{text}");
        }
    }

    #[test]
    fn old_clients_are_told_what_becomes_of_the_connection() {
        let old = Question { minor: 0, ..GET };
        let text = "HTTP/1.1 200 X\r\nContent-Length: 1\r\n\r\n";
        assert!(read(text, &old).1.contains("Connection: keep-alive\r\n"));
        let once = Question { keep: false, ..GET };
        assert!(read(text, &once).1.contains("Connection: close\r\n"));
        let endless = "HTTP/1.1 200 X\r\n\r\n";
        assert!(read(endless, &GET).1.contains("Connection: close\r\n"));
        let interim = "HTTP/1.1 100 Continue\r\n\r\n";
        assert_eq!(read(interim, &old).1, "");
        assert_eq!(read(interim, &GET).1, interim);
    }
}
