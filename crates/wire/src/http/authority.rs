//! `Host` and the authority of an absolute target: `host [":" port]` (RFC 3986, section 3.2).

use core::net::Ipv6Addr;

/// The longest host name (RFC 1035, section 2.3.4, as text).
const NAME_BYTES_MAX: usize = 255;

/// A host in the one form in which hosts are compared, with the port as written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Authority {
    /// Lower-case, without a trailing dot; an IPv6 address without its brackets, in the form of
    /// RFC 5952. Empty for an empty authority.
    pub(super) host: String,
    /// Absent too for `host:`, which RFC 3986 allows.
    pub(super) port: Option<u16>,
}

impl Authority {
    /// Reads `text`, which holds no user information. `None` when it breaks the syntax.
    ///
    /// Names are letters, digits, `-`, `.`, `_` and `~`. RFC 3986 would also allow sub-delimiters
    /// and percent encodings: no name in the DNS is looked up with them, and a comma would let a
    /// joined pair of `Host` fields through.
    pub(super) fn parse(text: &[u8]) -> Option<Self> {
        if text.is_empty() {
            return Some(Self {
                host: String::new(),
                port: None,
            });
        }
        let (host, port) = if let Some(rest) = text.strip_prefix(b"[") {
            let end = rest.iter().position(|&byte| byte == b']')?;
            let address: Ipv6Addr = core::str::from_utf8(&rest[..end]).ok()?.parse().ok()?;
            let port = match &rest[end + 1..] {
                [] => None,
                [b':', port @ ..] => Some(port),
                _ => return None,
            };
            (address.to_string(), port)
        } else {
            let (name, port) = match text.iter().position(|&byte| byte == b':') {
                Some(colon) => (&text[..colon], Some(&text[colon + 1..])),
                None => (text, None),
            };
            (host_name(name)?, port)
        };
        let port = match port {
            None | Some([]) => None,
            Some(digits) => Some(port_number(digits)?),
        };
        Some(Self { host, port })
    }
}

fn host_name(name: &[u8]) -> Option<String> {
    let name = name.strip_suffix(b".").unwrap_or(name);
    let written = |byte: &u8| byte.is_ascii_alphanumeric() || b"-._~".contains(byte);
    if name.len() > NAME_BYTES_MAX || !name.iter().all(written) {
        return None;
    }
    if name.split(|&byte| byte == b'.').any(<[u8]>::is_empty) {
        return None;
    }
    Some(
        name.iter()
            .map(|byte| char::from(byte.to_ascii_lowercase()))
            .collect(),
    )
}

fn port_number(digits: &[u8]) -> Option<u16> {
    if !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    core::str::from_utf8(digits).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Option<(String, Option<u16>)> {
        Authority::parse(text.as_bytes()).map(|authority| (authority.host, authority.port))
    }

    #[test]
    fn hosts_take_one_form() {
        for (text, host, port) in [
            ("example.org", "example.org", None),
            ("EXAMPLE.Org.", "example.org", None),
            ("example.org:8080", "example.org", Some(8080)),
            ("example.org.:080", "example.org", Some(80)),
            ("example.org:", "example.org", None),
            ("my_host-1.~x", "my_host-1.~x", None),
            ("192.0.2.1:80", "192.0.2.1", Some(80)),
            ("[2001:DB8:0:0::1]", "2001:db8::1", None),
            ("[::1]:65535", "::1", Some(65_535)),
            ("", "", None),
        ] {
            assert_eq!(parsed(text), Some((host.to_owned(), port)), "{text}");
        }
    }

    #[test]
    fn broken_hosts_are_refused() {
        let long = "a.".repeat(128);
        for text in [
            ".",
            "..",
            "a..b",
            ".a",
            "a b",
            "a/b",
            "a,b",
            "user@a",
            "a:b",
            "a:1:2",
            "a:65536",
            "a:-1",
            "a:+1",
            ":80",
            "::1",
            "[::1",
            "[::1]x",
            "[::1]:x",
            "[a]",
            "[fe80::1%eth0]",
            "[1.2.3.4]",
            "[v1.x]",
            "a%41",
            "a\0",
            "ä",
            "a?b",
            "a#b",
            "a\\b",
            &long[..],
        ] {
            // The long one is 255 bytes once its last dot is gone, so make it one longer.
            let text = if text.len() > 200 {
                format!("a{text}")
            } else {
                text.to_owned()
            };
            assert_eq!(parsed(&text), None, "{text}");
        }
    }
}
