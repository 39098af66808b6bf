//! What a client asked for, for logs.

use crate::tls::ClientHello;

/// The longest [`Asked::as_str`], bytes.
pub const SUBJECT_BYTES_MAX: usize = 256;
/// The longest [`Asked::alpn`], bytes.
pub const ALPN_BYTES_MAX: usize = 64;

/// What a client asked for, in printable ASCII (other bytes, and `\\`, as `\\xc3`) and cut at
/// [`SUBJECT_BYTES_MAX`] bytes. One string: it is made for every connection.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Asked {
    text: String,
    parts: Parts,
}

/// Where the parts of the text begin.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Parts {
    #[default]
    Nothing,
    /// `GET host/path`
    Http { host_at: u16, path_at: u16 },
    /// The server name, then the application protocols.
    Tls { alpn_at: u16 },
}

impl Asked {
    /// Of an HTTP request: without the query, which may hold secrets.
    pub fn http(method: &str, host: &str, path: &[u8]) -> Self {
        let length = method.len() + 1 + host.len() + path.len();
        let mut text = String::with_capacity(length.min(SUBJECT_BYTES_MAX));
        let mut whole = push(&mut text, method.as_bytes(), SUBJECT_BYTES_MAX);
        whole = whole && push(&mut text, b" ", SUBJECT_BYTES_MAX);
        let host_at = text.len() as u16;
        whole = whole && push(&mut text, host.as_bytes(), SUBJECT_BYTES_MAX);
        let path_at = text.len() as u16;
        let _ = whole && push(&mut text, path, SUBJECT_BYTES_MAX);
        let parts = Parts::Http { host_at, path_at };
        Self { text, parts }
    }

    /// Of a ClientHello: its server name and application protocols.
    pub fn tls(hello: &ClientHello) -> Self {
        let name = hello.sni.as_deref().unwrap_or_default();
        let mut text = String::with_capacity(name.len());
        push(&mut text, name.as_bytes(), SUBJECT_BYTES_MAX);
        let alpn_at = text.len() as u16;
        let most = text.len() + ALPN_BYTES_MAX;
        for (index, protocol) in hello.alpn.iter().enumerate() {
            let comma: &[u8] = if index == 0 { b"" } else { b"," };
            if !push(&mut text, comma, most) || !push(&mut text, protocol, most) {
                break;
            }
        }
        let parts = Parts::Tls { alpn_at };
        Self { text, parts }
    }

    /// `GET host/path`, a TLS server name, or nothing.
    pub fn as_str(&self) -> &str {
        match self.parts {
            Parts::Tls { alpn_at } => self.part(0, alpn_at.into()),
            Parts::Nothing | Parts::Http { .. } => &self.text,
        }
    }

    /// The method of an HTTP request.
    pub fn method(&self) -> Option<&str> {
        match self.parts {
            Parts::Http { host_at, .. } => Some(self.part(0, host_at.into()).trim_end()),
            Parts::Nothing | Parts::Tls { .. } => None,
        }
    }

    /// The host of an HTTP request, if it names one.
    pub fn host(&self) -> Option<&str> {
        let Parts::Http { host_at, path_at } = self.parts else {
            return None;
        };
        Some(self.part(host_at.into(), path_at.into())).filter(|host| !host.is_empty())
    }

    /// The path of an HTTP request.
    pub fn path(&self) -> Option<&str> {
        match self.parts {
            Parts::Http { path_at, .. } => Some(self.part(path_at.into(), self.text.len())),
            Parts::Nothing | Parts::Tls { .. } => None,
        }
    }

    /// The server name of a ClientHello, if it has one.
    pub fn sni(&self) -> Option<&str> {
        let Parts::Tls { alpn_at } = self.parts else {
            return None;
        };
        Some(self.part(0, alpn_at.into())).filter(|name| !name.is_empty())
    }

    /// The application protocols of a ClientHello, separated by commas, if it has some.
    pub fn alpn(&self) -> Option<&str> {
        let Parts::Tls { alpn_at } = self.parts else {
            return None;
        };
        let list = self.part(alpn_at.into(), self.text.len());
        Some(list).filter(|list| !list.is_empty())
    }

    /// Bytes that it takes on the heap.
    pub fn heap_bytes(&self) -> usize {
        self.text.capacity()
    }

    fn part(&self, from: usize, to: usize) -> &str {
        self.text.get(from..to).unwrap_or_default()
    }
}

/// Appends bytes as far as `most` bytes in all allow; true if that is all of them.
fn push(text: &mut String, bytes: &[u8], most: usize) -> bool {
    const HEX: [char; 16] = [
        '0', '1', '2', '3', '4', '5', '6', '7', '8', '9', 'a', 'b', 'c', 'd', 'e', 'f',
    ];
    for &byte in bytes {
        let plain = matches!(byte, b' '..=b'~') && byte != b'\\';
        if text.len() + if plain { 1 } else { 4 } > most {
            return false;
        }
        if plain {
            text.push(char::from(byte));
        } else {
            text.push_str("\\x");
            text.extend([HEX[usize::from(byte >> 4)], HEX[usize::from(byte & 15)]]);
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hello(sni: &str, alpn: &[&[u8]]) -> ClientHello {
        ClientHello {
            sni: Some(sni.to_owned()),
            alpn: alpn.iter().map(|one| one.to_vec()).collect(),
            len: 100,
            legacy_version: 0x0303,
            has_ech: false,
        }
    }

    #[test]
    fn a_request_has_its_parts() {
        let asked = Asked::http("GET", "example.com", b"/a b\n\xff");
        assert_eq!(asked.as_str(), "GET example.com/a b\\x0a\\xff");
        assert_eq!(asked.method(), Some("GET"));
        assert_eq!(asked.host(), Some("example.com"));
        assert_eq!(asked.path(), Some("/a b\\x0a\\xff"));
        assert_eq!((asked.sni(), asked.alpn()), (None, None));
        let bare = Asked::http("OPTIONS", "", b"*");
        assert_eq!((bare.host(), bare.path()), (None, Some("*")));
    }

    #[test]
    fn a_hello_has_its_parts() {
        let asked = Asked::tls(&hello("a.example", &[b"h2", b"http/1.1", b"\0,\""]));
        assert_eq!(
            (asked.as_str(), asked.sni()),
            ("a.example", Some("a.example"))
        );
        assert_eq!(asked.alpn(), Some("h2,http/1.1,\\x00,\""));
        assert_eq!(
            (asked.method(), asked.host(), asked.path()),
            (None, None, None)
        );
        let bare = Asked::tls(&hello("", &[]));
        assert_eq!((bare.as_str(), bare.sni(), bare.alpn()), ("", None, None));
    }

    #[test]
    fn lengths_are_limited() {
        for long in [b"x".repeat(1_000), b"\xff".repeat(1_000)] {
            let asked = Asked::http("GET", "a", &long);
            assert!((SUBJECT_BYTES_MAX - 3..=SUBJECT_BYTES_MAX).contains(&asked.as_str().len()));
            let text = String::from_utf8_lossy(&long);
            let asked = Asked::http(&text, &text, &long);
            assert!(asked.as_str().len() <= SUBJECT_BYTES_MAX);
            assert_eq!((asked.host(), asked.path()), (None, Some("")));
            let asked = Asked::tls(&hello(&text, &[&long, b"h2"]));
            assert!(asked.as_str().len() <= SUBJECT_BYTES_MAX);
            assert!(asked.alpn().unwrap().len() <= ALPN_BYTES_MAX);
        }
    }
}
