//! Where a response ends, by its head (RFC 9112, section 6.3).

/// Fields of a head that are read; with more nothing is concluded.
const FIELDS_MAX: usize = 100;

/// How a response marks its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResponseEnd {
    /// After this number of bytes, the head included.
    Length(u64),
    /// By its last chunk.
    Chunked,
    /// By the end of its connection, or another response follows without a request, or the
    /// connection changes its protocol: nothing can be said of what comes later.
    Endless,
    /// The head is not whole.
    Incomplete,
}

/// Where the response ends that begins with `bytes`, to a request that begins with `method`.
pub fn response_end(bytes: &[u8], method: [u8; 4]) -> ResponseEnd {
    let mut fields = [httparse::EMPTY_HEADER; FIELDS_MAX];
    let mut head = httparse::Response::new(&mut fields);
    let head_len = match head.parse(bytes) {
        Ok(httparse::Status::Complete(len)) => len as u64,
        Ok(httparse::Status::Partial) => return ResponseEnd::Incomplete,
        Err(_) => return ResponseEnd::Endless,
    };
    let status = head.code.unwrap_or(0);
    let says = |name: &str, word: &str| {
        let named = head.headers.iter().filter(|one| is(one.name, name));
        let mut values = named.flat_map(|one| one.value.split(|byte| *byte == b','));
        values.any(|value| value.trim_ascii().eq_ignore_ascii_case(word.as_bytes()))
    };
    // HTTP/1.0 closes after each response, but for an extension of its own.
    let closes = head.version != Some(1) || says("connection", "close");
    if status < 200 || method == *b"CONN" || closes || says("connection", "upgrade") {
        return ResponseEnd::Endless;
    }
    if method == *b"HEAD" || status == 204 || status == 304 {
        return ResponseEnd::Length(head_len);
    }
    let mut codings = head
        .headers
        .iter()
        .filter(|one| is(one.name, "transfer-encoding"));
    if let Some(coding) = codings.next() {
        let chunked = coding.value.trim_ascii().eq_ignore_ascii_case(b"chunked");
        return match chunked && codings.next().is_none() {
            true => ResponseEnd::Chunked,
            false => ResponseEnd::Endless,
        };
    }
    let mut lengths = head
        .headers
        .iter()
        .filter(|one| is(one.name, "content-length"));
    let length = lengths.next().and_then(|one| {
        let text = core::str::from_utf8(one.value.trim_ascii()).ok()?;
        let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        digits.then(|| text.parse::<u64>().ok())?
    });
    let total = length.and_then(|length| length.checked_add(head_len));
    match total.filter(|_| lengths.next().is_none()) {
        Some(total) => ResponseEnd::Length(total),
        None => ResponseEnd::Endless,
    }
}

fn is(name: &str, wanted: &str) -> bool {
    name.eq_ignore_ascii_case(wanted)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn end(fields: &str) -> ResponseEnd {
        of("GET ", "HTTP/1.1 200 OK", fields)
    }

    fn of(method: &str, line: &str, fields: &str) -> ResponseEnd {
        let head = format!("{line}\r\n{fields}\r\n");
        let shown = match response_end(head.as_bytes(), method.as_bytes().try_into().unwrap()) {
            ResponseEnd::Length(total) => ResponseEnd::Length(total - head.len() as u64),
            other => other,
        };
        let whole = response_end(&head.as_bytes()[..head.len() - 1], *b"GET ");
        assert!(
            matches!(whole, ResponseEnd::Incomplete | ResponseEnd::Endless),
            "{whole:?}"
        );
        shown
    }

    #[test]
    fn a_length_or_chunks_tell_the_end() {
        assert_eq!(end("Content-Length: 12\r\n"), ResponseEnd::Length(12));
        assert_eq!(end("content-length:0\r\n"), ResponseEnd::Length(0));
        assert_eq!(end("Transfer-Encoding: Chunked\r\n"), ResponseEnd::Chunked);
        let both = "Transfer-Encoding: chunked\r\nContent-Length: 5\r\n";
        assert_eq!(end(both), ResponseEnd::Chunked);
        let length = "Content-Length: 5\r\n";
        assert_eq!(
            of("HEAD", "HTTP/1.1 200 OK", length),
            ResponseEnd::Length(0)
        );
        for line in ["HTTP/1.1 204 No Content", "HTTP/1.1 304 Not Modified"] {
            assert_eq!(of("GET ", line, length), ResponseEnd::Length(0), "{line}");
        }
    }

    #[test]
    fn what_leaves_a_doubt_has_no_end() {
        for fields in [
            "",
            "Connection: close\r\nContent-Length: 5\r\n",
            "Connection: foo, Close\r\nContent-Length: 5\r\n",
            "Transfer-Encoding: gzip, chunked\r\n",
            "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n",
            "Content-Length: 5\r\nContent-Length: 5\r\n",
            "Content-Length: +5\r\n",
            "Content-Length: 5, 5\r\n",
            "Content-Length: 18446744073709551615\r\n",
            "Content-Length: 99999999999999999999\r\n",
            "Connection: upgrade\r\nContent-Length: 5\r\n",
        ] {
            assert_eq!(end(fields), ResponseEnd::Endless, "{fields}");
        }
        let length = "Content-Length: 5\r\n";
        for line in ["HTTP/1.0 200 OK", "HTTP/1.1 100 Continue", "HTTP/1.1 101 X"] {
            assert_eq!(of("GET ", line, length), ResponseEnd::Endless, "{line}");
        }
        assert_eq!(of("CONN", "HTTP/1.1 200 OK", length), ResponseEnd::Endless);
        for bytes in [&b""[..], b"HTTP/1.1 200", b"HTTP/1.1 200 OK\r\nContent-"] {
            assert_eq!(response_end(bytes, *b"GET "), ResponseEnd::Incomplete);
        }
        for bytes in [&b"\xff\xfe"[..], b"hello, world\r\n\r\n"] {
            assert_eq!(response_end(bytes, *b"GET "), ResponseEnd::Endless);
        }
    }
}
