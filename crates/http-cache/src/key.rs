//! Keys: whole, as bytes, and hashed. Each part has its length in front, so that no two keys have
//! the same bytes.

use core::hash::Hasher;

use fairlead_base::Seed;
use fairlead_wire::http::members;
use siphasher::sip::SipHasher13;

use crate::head::RequestHead;
use crate::settings::KeyPart;

/// Hashes with a secret, so that nobody can choose keys that collide.
#[derive(Clone, Debug)]
pub(crate) struct Hashing {
    words: [u64; 2],
    /// Bits of a key's hash that are kept: all, except in tests of collisions.
    mask: u64,
}

impl Hashing {
    pub(crate) fn new(seed: Seed) -> Self {
        Self::from_words([seed.word("http-cache", 0), seed.word("http-cache", 1)])
    }

    /// As it was in an earlier process.
    pub(crate) fn from_words(words: [u64; 2]) -> Self {
        Self {
            words,
            mask: u64::MAX,
        }
    }

    /// So that keys have one of few hashes.
    #[cfg(test)]
    pub(crate) fn collide(&mut self, mask: u64) {
        self.mask = mask;
    }

    pub(crate) fn words(&self) -> [u64; 2] {
        self.words
    }

    /// Of these parts, one behind the other.
    pub(crate) fn hash(&self, kind: u8, parts: &[&[u8]]) -> u64 {
        let mut hasher = SipHasher13::new_with_keys(self.words[0], self.words[1] ^ u64::from(kind));
        for part in parts {
            hasher.write_u32(part.len() as u32);
            hasher.write(part);
        }
        hasher.finish()
    }

    pub(crate) fn key(&self, url: &[u8]) -> u64 {
        self.hash(b'k', &[url]) & self.mask
    }
}

/// A part that is absent.
const ABSENT: u32 = u32::MAX;

/// Writes the key of a request. Returns the length of the part that names the URL; behind it are
/// header values.
pub(crate) fn write_key(key: &mut Vec<u8>, parts: &[KeyPart], head: &RequestHead<'_>) -> usize {
    key.clear();
    let (path, query) = head.parts();
    for part in parts {
        match part {
            KeyPart::Host => write_part(key, Some(head.host.as_bytes())),
            KeyPart::Query => write_part(key, query),
            KeyPart::Path | KeyPart::Header(_) => {}
        }
    }
    write_part(key, Some(path));
    let url = key.len();
    for part in parts {
        if let KeyPart::Header(name) = part {
            write_values(key, head, name);
        }
    }
    url
}

/// Writes the names of a `Vary` field and what the request has for each.
pub(crate) fn write_variant(out: &mut Vec<u8>, names: &[Box<str>], head: &RequestHead<'_>) {
    out.clear();
    for name in names {
        write_part(out, Some(name.as_bytes()));
        write_values(out, head, name);
    }
}

fn write_part(key: &mut Vec<u8>, part: Option<&[u8]>) {
    let length = part.map_or(ABSENT, |part| part.len() as u32);
    key.extend_from_slice(&length.to_le_bytes());
    key.extend_from_slice(part.unwrap_or_default());
}

/// Fields that compare without regard to case, and whose members have no order.
const PLAIN_LISTS: [&str; 2] = ["accept-language", "accept-encoding"];

/// All values of a field as one list, without blanks around its members: lines may be joined, and
/// blanks do not count (RFC 9111, section 4.1).
fn write_values(key: &mut Vec<u8>, head: &RequestHead<'_>, name: &str) {
    let start = key.len();
    key.extend_from_slice(&ABSENT.to_le_bytes());
    let is_plain = PLAIN_LISTS
        .iter()
        .any(|list| list.eq_ignore_ascii_case(name));
    let mut is_there = false;
    for line in crate::directives::lines(head.fields, name) {
        is_there = true;
        for member in members(line) {
            let at = key.len();
            key.extend_from_slice(member);
            if is_plain {
                key[at..].make_ascii_lowercase();
            }
            key.push(b',');
        }
    }
    if is_there {
        let length = (key.len() - start - 4) as u32;
        key[start..start + 4].copy_from_slice(&length.to_le_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::head::Field;

    fn key(host: &str, target: &str, fields: &[Field<'_>]) -> Vec<u8> {
        let parts = [
            KeyPart::Host,
            KeyPart::Path,
            KeyPart::Query,
            KeyPart::Header("X".into()),
        ];
        let head = RequestHead {
            method: "GET",
            host,
            target: target.as_bytes(),
            fields,
        };
        let mut key = Vec::new();
        write_key(&mut key, &parts, &head);
        key
    }

    #[test]
    fn different_requests_have_different_keys() {
        let keys = [
            key("a", "/b", &[]),
            key("a", "/b?", &[]),
            key("a", "/b?c", &[]),
            key("", "/b", &[]),
            key("a/", "b", &[]),
            key("a", "/b", &[("x", b"")]),
            key("a", "/b", &[("x", b"1")]),
            key("a", "/b", &[("x", b"1"), ("X", b"2")]),
        ];
        for (at, one) in keys.iter().enumerate() {
            assert!(keys[..at].iter().all(|other| other != one), "{at}");
        }
        assert_eq!(key("a", "/", &[("y", b"1")]), key("a", "/", &[]));
    }

    #[test]
    fn variants_are_compared_by_members() {
        let names = [Box::from("foo"), Box::from("accept-language")];
        let variant = |fields: &[Field<'_>]| {
            let head = RequestHead {
                method: "GET",
                host: "a",
                target: b"/",
                fields,
            };
            let mut out = Vec::new();
            write_variant(&mut out, &names, &head);
            out
        };
        let one = variant(&[("Foo", b"1, 2"), ("Accept-Language", b"EN,de")]);
        let same = variant(&[
            ("accept-language", b" en , de"),
            ("foo", b"1"),
            ("foo", b"2 "),
        ]);
        assert_eq!(one, same);
        assert_ne!(
            one,
            variant(&[("foo", b"1, 2"), ("accept-language", b"en")])
        );
        assert_ne!(variant(&[("foo", b"A")]), variant(&[("foo", b"a")]));
        assert_ne!(variant(&[("foo", b"")]), variant(&[]));
    }
}
