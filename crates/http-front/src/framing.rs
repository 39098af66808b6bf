//! Where a body ends (RFC 9112, section 6).

use fairlead_wire::http::{Body, ChunkScan, ChunkScanner};

/// How the end of a body is found, and how far it has come.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Framing {
    /// This number of bytes is to come.
    Length(u64),
    Chunked(ChunkScanner),
    /// It ends with the connection: a response only.
    UntilClose,
}

/// What of the next bytes is the body's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Share {
    pub(crate) bytes: usize,
    /// It ends behind them.
    pub(crate) is_last: bool,
}

/// The bytes are not chunks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Malformed;

impl Framing {
    pub(crate) fn of_request(body: Body) -> Self {
        match body {
            Body::Length(bytes) => Self::Length(bytes),
            Body::Chunked => Self::Chunked(ChunkScanner::default()),
        }
    }

    /// No byte is to come.
    pub(crate) fn is_empty(&self) -> bool {
        matches!(self, Self::Length(0))
    }

    /// Takes what is the body's of the bytes behind those that were shown before.
    pub(crate) fn take(&mut self, bytes: &[u8]) -> Result<Share, Malformed> {
        let all = bytes.len();
        match self {
            Self::Length(left) => {
                let here = all.min(usize::try_from(*left).unwrap_or(usize::MAX));
                *left -= here as u64;
                let is_last = *left == 0;
                Ok(Share {
                    bytes: here,
                    is_last,
                })
            }
            Self::Chunked(scanner) => match scanner.scan(bytes) {
                ChunkScan::Incomplete => Ok(Share {
                    bytes: all,
                    is_last: false,
                }),
                ChunkScan::Complete(bytes) => Ok(Share {
                    bytes,
                    is_last: true,
                }),
                ChunkScan::Malformed(_) => Err(Malformed),
            },
            Self::UntilClose => Ok(Share {
                bytes: all,
                is_last: false,
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn share(bytes: usize, is_last: bool) -> Share {
        Share { bytes, is_last }
    }

    #[test]
    fn each_kind_ends_where_it_says() {
        let mut length = Framing::Length(5);
        assert!(!length.is_empty());
        assert_eq!(length.take(b"abc"), Ok(share(3, false)));
        assert_eq!(length.take(b"deGET"), Ok(share(2, true)));
        assert!(length.is_empty() && Framing::of_request(Body::Length(0)).is_empty());
        let mut chunks = Framing::of_request(Body::Chunked);
        assert_eq!(chunks.take(b"2\r\na"), Ok(share(4, false)));
        assert_eq!(chunks.take(b"b\r\n0\r\n\r\nHTTP"), Ok(share(8, true)));
        let mut lies = Framing::of_request(Body::Chunked);
        assert_eq!(lies.take(b"2\r\nabc"), Err(Malformed));
        let mut endless = Framing::UntilClose;
        assert_eq!(endless.take(b"abc"), Ok(share(3, false)));
    }
}
