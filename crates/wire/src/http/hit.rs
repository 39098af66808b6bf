//! Requests that the kernel may answer from a cache.
//!
//! One plain head ([`plain_hash`]) with nothing behind it, and without fields that ask for more
//! than the stored response as it is: `Range`, `If-…`, `Cache-Control`, `Pragma`, `Authorization`,
//! `Expect`, `Upgrade`. `bpf/lib/hit.h` implements the same; tests compare the two.

use super::plain::plain_hash;

/// What the head of such a request says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HitHead {
    /// As [`plain_hash`] has it.
    pub hash: u64,
    /// The client wants no other request answered (`Connection: close`).
    pub closes: bool,
}

/// The head of a request that the kernel may answer; `None` if it may not.
pub fn hit_head(bytes: &[u8], listen: u16, keys: (u64, u64)) -> Option<HitHead> {
    let hash = plain_hash(bytes, listen, keys)?;
    let mut closes = false;
    let mut lines = bytes.split(|&byte| byte == b'\n').skip(1);
    for line in lines.by_ref() {
        let line = line.strip_suffix(b"\r")?;
        if line.is_empty() {
            break;
        }
        let colon = line.iter().position(|&byte| byte == b':')?;
        let (name, value) = (&line[..colon], &line[colon + 1..]);
        if asks_more(name) {
            return None;
        }
        if is(name, 10, b"nnection") {
            let blanks = value.iter().take_while(|&&byte| byte == b' ').count();
            let value = &value[blanks..];
            match is(value, 5, b"close") {
                true => closes = true,
                false if is(value, 10, b"ep-alive") => {}
                false => return None,
            }
        }
    }
    let behind = lines.next();
    (behind == Some(&b""[..]) && lines.next().is_none()).then_some(HitHead { hash, closes })
}

/// Of this length and with this end, whatever its case. Longer names are compared by their last
/// eight bytes only, as the program does it.
fn is(text: &[u8], length: usize, end: &[u8]) -> bool {
    text.len() == length && text[length - end.len()..].eq_ignore_ascii_case(end)
}

fn asks_more(name: &[u8]) -> bool {
    name.get(..3)
        .is_some_and(|start| start.eq_ignore_ascii_case(b"if-"))
        || is(name, 5, b"range")
        || is(name, 6, b"expect")
        || is(name, 6, b"pragma")
        || is(name, 7, b"upgrade")
        || is(name, 13, b"-control")
        || is(name, 13, b"rization")
        || is(name, 19, b"rization")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head(text: &str) -> Option<HitHead> {
        hit_head(text.as_bytes(), 3, (7, 9))
    }

    #[test]
    fn usual_requests_may_be_answered() {
        for (fields, closes) in [
            ("", false),
            ("User-Agent: curl/8\r\nAccept: */*\r\n", false),
            ("Cookie: a=b\r\nAccept-Encoding: gzip\r\n", false),
            ("connection: Keep-Alive\r\n", false),
            ("Connection:close\r\n", true),
            ("Connection:   CLOSE\r\n", true),
            ("iframe: x\r\nRanges: 1\r\nX-Range: 1\r\n", false),
        ] {
            let text = format!("GET /a HTTP/1.1\r\nHost: x\r\n{fields}\r\n");
            let plain = plain_hash(text.as_bytes(), 3, (7, 9)).unwrap();
            let expected = HitHead {
                hash: plain,
                closes,
            };
            assert_eq!(head(&text), Some(expected), "{fields}");
        }
    }

    #[test]
    fn requests_that_ask_for_more_may_not() {
        for field in [
            "Range: bytes=0-1",
            "IF-None-Match: x",
            "If-Modified-Since: x",
            "if-range: x",
            "If-Match: x",
            "Cache-Control: no-cache",
            "Pragma: no-cache",
            "Authorization: x",
            "Proxy-Authorization: x",
            "Expect: 100-continue",
            "Upgrade: h2c",
            "Connection: upgrade",
            "Connection: close, x",
            "Connection: close ",
            "Connection:",
            "Content-Length: 0",
        ] {
            let text = format!("GET /a HTTP/1.1\r\nHost: x\r\n{field}\r\nA: b\r\n\r\n");
            assert_eq!(head(&text), None, "{field}");
        }
    }

    #[test]
    fn nothing_may_follow_and_nothing_be_missing() {
        let whole = "GET /a HTTP/1.1\r\nHost: x\r\n\r\n";
        assert!(head(whole).is_some());
        for end in 0..whole.len() {
            assert_eq!(head(&whole[..end]), None, "{end}");
        }
        for behind in ["x", "\n", "\r\n", whole] {
            assert_eq!(head(&format!("{whole}{behind}")), None, "{behind:?}");
        }
    }
}
