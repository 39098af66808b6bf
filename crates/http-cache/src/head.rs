//! Heads as the caller passes them, and copies of those that must outlive the call.

use fairlead_base::Instant;

/// A field: its name as it was sent, its value without blanks around it.
pub type Field<'a> = (&'a str, &'a [u8]);

/// The present, on two clocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Now {
    /// Milliseconds since 1970: compared with dates that servers send. It may jump.
    pub wall_ms: u64,
    /// Time that never goes back: ages and time-outs are measured with it.
    pub at: Instant,
}

impl Now {
    /// Whole seconds since 1970.
    pub fn wall(self) -> u64 {
        self.wall_ms / 1_000
    }
}

/// Head of a request whose framing is known to be valid.
#[derive(Clone, Copy, Debug)]
pub struct RequestHead<'a> {
    /// As it was sent; methods are case-sensitive.
    pub method: &'a str,
    /// Host of the request, lower-case, without port; empty if it has none.
    pub host: &'a str,
    /// Path and query as they were sent: no percent is decoded, no dot segment resolved.
    pub target: &'a [u8],
    /// All fields in order.
    pub fields: &'a [Field<'a>],
}

/// Head of a final response of a server.
#[derive(Clone, Copy, Debug)]
pub struct ResponseHead<'a> {
    /// 200 to 999.
    pub status: u16,
    /// The reason phrase; may be empty.
    pub phrase: &'a [u8],
    /// All fields in order.
    pub fields: &'a [Field<'a>],
    /// Length of the body as its framing announces it, or `None` if it ends with a last chunk or
    /// with the connection. A response without a body has 0.
    pub length: Option<u64>,
}

impl<'a> RequestHead<'a> {
    /// Values of all fields of this name, in order.
    pub fn values(&self, name: &'a str) -> impl Iterator<Item = &'a [u8]> {
        values(self.fields, name)
    }

    /// Path, and query without its question mark.
    pub(crate) fn parts(&self) -> (&'a [u8], Option<&'a [u8]>) {
        match self.target.iter().position(|byte| *byte == b'?') {
            Some(at) => (&self.target[..at], Some(&self.target[at + 1..])),
            None => (self.target, None),
        }
    }
}

impl<'a> ResponseHead<'a> {
    /// Values of all fields of this name, in order.
    pub fn values(&self, name: &'a str) -> impl Iterator<Item = &'a [u8]> {
        values(self.fields, name)
    }
}

fn values<'a>(fields: &'a [Field<'a>], name: &'a str) -> impl Iterator<Item = &'a [u8]> {
    fields
        .iter()
        .filter(move |(key, _)| key.eq_ignore_ascii_case(name))
        .map(|(_, value)| *value)
}

/// A copy of a request's head: the response may come long after the call.
#[derive(Clone, Debug)]
pub(crate) struct Kept {
    bytes: Box<[u8]>,
    method: u32,
    host: u32,
    target: u32,
    /// Ends of name and value of each field in `bytes`.
    fields: Box<[(u32, u32)]>,
}

impl Kept {
    pub(crate) fn new(head: &RequestHead<'_>) -> Self {
        let mut bytes = Vec::new();
        bytes.extend_from_slice(head.method.as_bytes());
        let method = bytes.len() as u32;
        bytes.extend_from_slice(head.host.as_bytes());
        let host = bytes.len() as u32;
        bytes.extend_from_slice(head.target);
        let target = bytes.len() as u32;
        let fields = head
            .fields
            .iter()
            .map(|(name, value)| {
                bytes.extend_from_slice(name.as_bytes());
                let middle = bytes.len() as u32;
                bytes.extend_from_slice(value);
                (middle, bytes.len() as u32)
            })
            .collect();
        Self {
            bytes: bytes.into_boxed_slice(),
            method,
            host,
            target,
            fields,
        }
    }

    /// Memory that it takes, in bytes.
    pub(crate) fn memory(&self) -> u64 {
        (size_of::<Self>() + self.bytes.len() + self.fields.len() * 8) as u64
    }

    /// Calls `read` with the head.
    pub(crate) fn with<T>(&self, read: impl FnOnce(&RequestHead<'_>) -> T) -> T {
        let text = |from: u32, to: u32| {
            core::str::from_utf8(&self.bytes[from as usize..to as usize]).unwrap_or_default()
        };
        let mut at = self.target;
        let fields: Vec<Field<'_>> = self
            .fields
            .iter()
            .map(|(middle, end)| {
                let name = text(at, *middle);
                at = *end;
                (name, &self.bytes[*middle as usize..*end as usize])
            })
            .collect();
        read(&RequestHead {
            method: text(0, self.method),
            host: text(self.method, self.host),
            target: &self.bytes[self.host as usize..self.target as usize],
            fields: &fields,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_says_what_the_head_said() {
        let fields: [Field<'_>; 3] = [("Accept", b"a"), ("X", b""), ("accept", b"b\xff")];
        let head = RequestHead {
            method: "GET",
            host: "a.example",
            target: b"/p?q?r",
            fields: &fields,
        };
        assert_eq!(head.parts(), (&b"/p"[..], Some(&b"q?r"[..])));
        Kept::new(&head).with(|copy| {
            assert_eq!((copy.method, copy.host), (head.method, head.host));
            assert_eq!((copy.target, copy.fields), (head.target, head.fields));
            let values: Vec<_> = copy.values("ACCEPT").collect();
            assert_eq!(values, [&b"a"[..], &b"b\xff"[..]]);
        });
    }
}
