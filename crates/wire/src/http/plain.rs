//! Plain heads: those that a kernel program can read as the scanner does.
//!
//! A plain head is one whole HTTP/1.1 request head from the first byte on, of printable ASCII,
//! whose target begins with a slash, with one `Host` without blanks inside, and without
//! `Content-Length` and `Transfer-Encoding`. A decision that depends only on method, target and
//! host of such a head holds for every plain head with the same [`plain_hash`]. `bpf/lib/head.h`
//! implements the same; tests compare the two.

use core::hash::Hasher as _;

use siphasher::sip::SipHasher13;

use super::head::FIELDS_MAX;
use super::rules::is_token_byte;

/// Maximum length of a plain head's method, including the space after it.
const METHOD_BYTES_MAX: usize = 16;

/// The hash of method, target and host as written, for a listening endpoint with this index, keyed
/// by two secret words; `None` if `bytes` does not start with a plain head. Bytes after the head
/// are ignored.
pub fn plain_hash(bytes: &[u8], listen: u16, (k0, k1): (u64, u64)) -> Option<u64> {
    let (line, mut rest) = line(bytes)?;
    let request = line.strip_suffix(b" HTTP/1.1")?;
    let space = request.iter().position(|&byte| byte == b' ')?;
    let (method, target) = (&request[..space], &request[space + 1..]);
    let named = !method.is_empty() && method.iter().all(u8::is_ascii_uppercase);
    if !named || space >= METHOD_BYTES_MAX || target.first() != Some(&b'/') || !printable(target) {
        return None;
    }
    let (mut host, mut fields) = (None, 0);
    loop {
        let (line, behind) = self::line(rest)?;
        rest = behind;
        if line.is_empty() {
            break;
        }
        fields += 1;
        let colon = line.iter().position(|&byte| byte == b':')?;
        let (name, value) = (&line[..colon], &line[colon + 1..]);
        if fields > FIELDS_MAX || name.is_empty() || !name.iter().all(|&byte| is_token_byte(byte)) {
            return None;
        }
        if !value.iter().all(|byte| matches!(byte, b'\t' | b' '..=b'~')) {
            return None;
        }
        if has_framing(name) {
            return None;
        }
        if name.eq_ignore_ascii_case(b"host") {
            let blanks = value.iter().take_while(|&&byte| byte == b' ').count();
            let value = &value[blanks..];
            if !printable(value) || host.replace(value).is_some() {
                return None;
            }
        }
    }
    let mut hasher = SipHasher13::new_with_keys(k0, k1);
    hasher.write(&listen.to_le_bytes());
    hasher.write(request);
    hasher.write(b" ");
    hasher.write(host?);
    Some(hasher.finish())
}

/// A line without its CRLF, and what follows it.
fn line(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let end = bytes.iter().position(|&byte| byte == b'\r')?;
    let behind = bytes.get(end + 2..)?;
    (bytes[end + 1] == b'\n').then_some((&bytes[..end], behind))
}

fn printable(text: &[u8]) -> bool {
    text.iter().all(u8::is_ascii_graphic)
}

/// A field that gives the length of a body. The kernel program compares only the length and the
/// last eight bytes of the name, which also matches a few unused names.
fn has_framing(name: &[u8]) -> bool {
    let like = |length: usize, end: &[u8; 8]| {
        name.len() == length && name[length - 8..].eq_ignore_ascii_case(end)
    };
    like(14, b"t-length") || like(17, b"encoding")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::http::{HeadError, HeadScanner, RequestHead, Scan};

    const KEYS: (u64, u64) = (7, 9);

    fn hash(text: &str) -> Option<u64> {
        plain_hash(text.as_bytes(), 3, KEYS)
    }

    #[test]
    fn only_method_target_and_host_are_hashed() {
        let plain = hash("GET /a?b HTTP/1.1\r\nHost: x.example\r\n\r\n").unwrap();
        for same in [
            "GET /a?b HTTP/1.1\r\nhOST:x.example\r\n\r\n",
            "GET /a?b HTTP/1.1\r\nCookie: a=1\r\nHost:   x.example\r\nTE: x\r\n\r\nbehind it",
        ] {
            assert_eq!(hash(same), Some(plain), "{same}");
        }
        for other in [
            "HEAD /a?b HTTP/1.1\r\nHost: x.example\r\n\r\n",
            "GET /a?c HTTP/1.1\r\nHost: x.example\r\n\r\n",
            "GET /a?b HTTP/1.1\r\nHost: X.example\r\n\r\n",
        ] {
            assert!(hash(other).is_some_and(|other| other != plain), "{other}");
        }
        let bytes = b"GET /a?b HTTP/1.1\r\nHost: x.example\r\n\r\n";
        assert_ne!(plain_hash(bytes, 4, KEYS), Some(plain));
        assert_ne!(plain_hash(bytes, 3, (7, 10)), Some(plain));
    }

    #[test]
    fn heads_that_need_the_scanner_are_not_plain() {
        for odd in [
            "",
            "GET /a HTTP/1.1\r\nHost: x\r\n",
            "GET /a HTTP/1.1\r\nHost: x\r\n\r",
            "\r\nGET /a HTTP/1.1\r\nHost: x\r\n\r\n",
            "get /a HTTP/1.1\r\nHost: x\r\n\r\n",
            "GET  /a HTTP/1.1\r\nHost: x\r\n\r\n",
            "GET http://x/ HTTP/1.1\r\nHost: x\r\n\r\n",
            "OPTIONS * HTTP/1.1\r\nHost: x\r\n\r\n",
            "GET /a HTTP/1.0\r\nHost: x\r\n\r\n",
            "GET /a http/1.1\r\nHost: x\r\n\r\n",
            "GET /a HTTP/1.1\nHost: x\n\n",
            "GET /a HTTP/1.1\r\n\r\n",
            "GET /a HTTP/1.1\r\nHost: x\r\nHost: x\r\n\r\n",
            "GET /a HTTP/1.1\r\nHost: x y\r\n\r\n",
            "GET /a HTTP/1.1\r\nHost: x \r\n\r\n",
            "GET /a HTTP/1.1\r\nHost : x\r\n\r\n",
            "GET /a HTTP/1.1\r\nHost: x\r\nA: \u{e4}\r\n\r\n",
            "GET /a HTTP/1.1\r\nHost: x\r\n b: c\r\n\r\n",
            "GET /a HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n",
            "GET /a HTTP/1.1\r\nHost: x\r\nTRANSFER-encoding: chunked\r\n\r\n",
            "GETGETGETGETGETG /a HTTP/1.1\r\nHost: x\r\n\r\n",
        ] {
            assert_eq!(hash(odd), None, "{odd:?}");
        }
    }

    #[test]
    fn the_scanner_takes_the_host_from_every_plain_head_that_it_accepts() {
        let fields = "X-A: b\r\n".repeat(99);
        let most = format!("GET /a HTTP/1.1\r\nHost: Abc.example:80\r\n{fields}\r\n");
        assert!(hash(&most).is_some());
        let Scan::Complete(head) = HeadScanner::default().scan(most.as_bytes()) else {
            panic!("a whole head");
        };
        assert_eq!(head.host.as_deref(), Some("abc.example"));
        let more = most.replace("\r\n\r\n", "\r\nX-B: c\r\n\r\n");
        assert_eq!(hash(&more), None);
    }

    /// Method, target and host, and fields, most of them such as plain heads have.
    fn parts() -> impl Strategy<Value = ([String; 3], Vec<String>)> {
        let method = prop_oneof![
            8 => "[A-Z]{1,15}",
            1 => Just("CONNECT".to_owned()),
            1 => "[A-Za-z-]{1,17}",
        ];
        let target = prop_oneof![4 => "/[!-~&&[^#]]{0,30}", 1 => "/[!-~]{0,9}", 1 => "[ -~]{0,9}"];
        let host = prop_oneof![
            4 => r"[a-zA-Z0-9-]{1,9}\.example(:[0-9]{1,4})?",
            2 => r"(|a\.example\.|\[::1\](:80)?)",
            1 => "[!-~]{0,9}",
            1 => "[ -~\t]{0,9}",
        ];
        ([method.boxed(), target.boxed(), host.boxed()], fields())
    }

    /// Other fields of a head, as lines without their ends.
    fn fields() -> impl Strategy<Value = Vec<String>> {
        let name = prop_oneof![
            20 => "[a-zA-Z0-9!#$%&'*+.^_`|~-]{1,18}",
            1 => prop::sample::select(&["Content-Length", "transfer-encoding", "Host", ""][..])
                .prop_map(str::to_owned),
        ];
        let line =
            (name, "[ \t]{0,2}[ -~\t]{0,20}").prop_map(|(name, value)| format!("{name}:{value}"));
        let count = prop_oneof![9 => 0..8_usize, 1 => 97..102_usize];
        count.prop_flat_map(move |count| prop::collection::vec(line.clone(), count))
    }

    fn head_of(parts: &[String; 3], fields: &[String], at: usize) -> Vec<u8> {
        let [method, target, host] = parts;
        let mut lines = vec![format!("{method} {target} HTTP/1.1")];
        lines.extend_from_slice(fields);
        lines.insert(1 + at % lines.len(), format!("Host: {host}"));
        lines.extend([String::new(), String::new()]);
        lines.join("\r\n").into_bytes()
    }

    /// Puts bytes over others, into and out of a head.
    fn change(mut bytes: Vec<u8>, changes: &[(u8, prop::sample::Index, u8)]) -> Vec<u8> {
        for (kind, at, byte) in changes {
            let at = at.index(bytes.len());
            match kind {
                0 => bytes[at] = *byte,
                1 => bytes.insert(at, *byte),
                _ if bytes.len() > 1 => drop(bytes.remove(at)),
                _ => {}
            }
        }
        bytes
    }

    fn changes() -> impl Strategy<Value = Vec<(u8, prop::sample::Index, u8)>> {
        let byte = prop_oneof![
            prop::sample::select(&b"\r\n \t:\0/H1a\x7f\x80"[..]),
            any::<u8>(),
        ];
        prop::collection::vec((0..3_u8, any::<prop::sample::Index>(), byte), 0..3)
    }

    /// What the scanner says of the head that `bytes` begin with, if that is plain; it ends where
    /// the first empty line does.
    fn scanned(bytes: &[u8]) -> Option<(u64, Result<RequestHead<'_>, HeadError>)> {
        let hash = plain_hash(bytes, 3, KEYS)?;
        let end = bytes.windows(4).position(|four| four == b"\r\n\r\n");
        let end = end.expect("a whole head") + 4;
        let behind = plain_hash(&bytes[..end], 3, KEYS);
        assert_eq!(behind, Some(hash), "of the head alone");
        assert_eq!(plain_hash(&bytes[..end - 1], 3, KEYS), None, "cut off");
        let head = match HeadScanner::default().scan(bytes) {
            Scan::Complete(head) => Ok(head),
            Scan::Malformed(error) => Err(error),
            Scan::Incomplete => panic!("a whole head: {}", bytes.escape_ascii()),
        };
        assert!(head.as_ref().is_ok_and(|head| head.head_len == end) || head.is_err());
        Some((hash, head))
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2_000))]

        /// Whatever the scanner refuses, it refuses for what is hashed.
        #[test]
        fn the_scanner_reads_plain_heads_or_refuses_what_decides(
            (parts, fields) in parts(),
            at in 0..100_usize,
            changes in changes(),
            behind in any::<Vec<u8>>(),
        ) {
            let bytes = [change(head_of(&parts, &fields, at), &changes), behind].concat();
            if let Some((_, Err(error))) = scanned(&bytes) {
                let decides = matches!(
                    error,
                    HeadError::Connect | HeadError::FragmentInTarget | HeadError::HostMalformed
                );
                prop_assert!(decides, "{error}: {}", bytes.escape_ascii());
            }
        }

        /// Two heads of one hash are decided alike, whatever else they say.
        #[test]
        fn one_hash_has_one_meaning(
            (parts, fields) in parts(),
            others in fields(),
            ats in (0..100_usize, 0..100_usize),
            changes in (changes(), changes()),
        ) {
            let one = change(head_of(&parts, &fields, ats.0), &changes.0);
            let other = change(head_of(&parts, &others, ats.1), &changes.1);
            if let (Some((one, a)), Some((other, b))) = (scanned(&one), scanned(&other)) {
                let decide = |head: &RequestHead<'_>| {
                    (head.method.to_owned(), head.target.to_vec(), head.host.clone())
                };
                if one == other {
                    prop_assert_eq!(a.as_ref().map(decide), b.as_ref().map(decide));
                } else if let (Ok(a), Ok(b)) = (&a, &b) {
                    // It is the same for what is written alike.
                    prop_assert!(
                        (a.method, a.target) != (b.method, b.target)
                            || a.header("host") != b.header("host")
                    );
                }
            }
        }
    }
}
