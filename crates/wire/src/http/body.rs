//! Where the body of a request ends (RFC 9112, sections 6 and 7.1).

/// How a request marks the end of its body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Body {
    /// This number of bytes follows the head; 0 where the head announces no body.
    Length(u64),
    /// Chunks follow, and each says how long it is.
    Chunked,
}

/// What reading chunks has led to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChunkScan {
    /// All bytes are the body's, and more of it is to come.
    Incomplete,
    /// The body ends behind this number of the bytes.
    Complete(usize),
    /// The byte at this offset can be none of the body's.
    Malformed(usize),
}

/// Where in a chunked body the next byte stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Place {
    /// At the first digit of a chunk's size.
    #[default]
    SizeStart,
    Size,
    /// In a chunk's extensions.
    Extension,
    SizeCr,
    Data,
    DataCr,
    DataLf,
    /// At the beginning of a trailer's line, or of the empty line that ends the body.
    TrailerStart,
    Trailer,
    TrailerCr,
    EndLf,
    Ended,
}

/// Follows the chunks of a body, whose bytes it is shown once each and in order.
#[derive(Clone, Copy, Debug, Default)]
pub struct ChunkScanner {
    place: Place,
    /// The size of the chunk at hand, or what is left of it.
    left: u64,
    /// Bytes of chunk sizes' lines and of trailers since the last chunk of data.
    overhead: u32,
}

/// Longer extensions and trailers are no body's.
const OVERHEAD_BYTES_MAX: u32 = 16 << 10;

impl ChunkScanner {
    /// Looks at the next bytes.
    pub fn scan(&mut self, bytes: &[u8]) -> ChunkScan {
        let mut at = 0;
        while at < bytes.len() {
            if self.place == Place::Data {
                let here = (bytes.len() - at).min(usize::try_from(self.left).unwrap_or(usize::MAX));
                at += here;
                self.left -= here as u64;
                if self.left == 0 {
                    self.place = Place::DataCr;
                }
                continue;
            }
            if self.place == Place::Ended {
                return ChunkScan::Complete(at);
            }
            self.overhead += 1;
            let next = self.step(bytes[at]);
            let Some(next) = next.filter(|_| self.overhead <= OVERHEAD_BYTES_MAX) else {
                return ChunkScan::Malformed(at);
            };
            self.place = next;
            at += 1;
        }
        if self.place == Place::Ended {
            ChunkScan::Complete(at)
        } else {
            ChunkScan::Incomplete
        }
    }

    /// Passes over what is not data, up to the next data or the end; how many bytes that was. For
    /// bytes that another scanner has found to be a body's, shown in order, each once to this
    /// function or to [`ChunkScanner::pass_chunk`].
    pub fn skip_overhead(&mut self, bytes: &[u8]) -> usize {
        let mut at = 0;
        while at < bytes.len() && !matches!(self.place, Place::Data | Place::Ended) {
            self.place = self.step(bytes[at]).unwrap_or(Place::Ended);
            at += 1;
        }
        at
    }

    /// How much data follows before the next overhead.
    pub fn data_left(&self) -> u64 {
        if self.place == Place::Data {
            self.left
        } else {
            0
        }
    }

    /// Passes over data, [`ChunkScanner::data_left`] at most.
    pub fn pass_chunk(&mut self, bytes: u64) {
        debug_assert!(bytes <= self.data_left(), "more than the chunk has");
        self.left = self.left.saturating_sub(bytes);
        if self.place == Place::Data && self.left == 0 {
            self.place = Place::DataCr;
        }
    }

    /// The place behind a byte that is not of a chunk's data.
    fn step(&mut self, byte: u8) -> Option<Place> {
        let text = matches!(byte, b'\t' | b' '..=b'~' | 0x80..);
        match (self.place, byte) {
            (Place::SizeStart | Place::Size, b'0'..=b'9' | b'a'..=b'f' | b'A'..=b'F') => {
                let digit = char::from(byte).to_digit(16)?;
                self.left = self.left.checked_mul(16)?.checked_add(digit.into())?;
                Some(Place::Size)
            }
            (Place::Size, b';' | b' ' | b'\t') => Some(Place::Extension),
            (Place::Extension, _) if text => Some(Place::Extension),
            (Place::Size | Place::Extension, b'\r') => Some(Place::SizeCr),
            (Place::SizeCr, b'\n') if self.left == 0 => Some(Place::TrailerStart),
            (Place::SizeCr, b'\n') => {
                self.overhead = 0;
                Some(Place::Data)
            }
            (Place::DataCr, b'\r') => Some(Place::DataLf),
            (Place::DataLf, b'\n') => Some(Place::SizeStart),
            (Place::TrailerStart, b'\r') => Some(Place::EndLf),
            (Place::TrailerStart | Place::Trailer, _) if text => Some(Place::Trailer),
            (Place::Trailer, b'\r') => Some(Place::TrailerCr),
            (Place::TrailerCr, b'\n') => Some(Place::TrailerStart),
            (Place::EndLf, b'\n') => Some(Place::Ended),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scan(bytes: &[u8]) -> ChunkScan {
        ChunkScanner::default().scan(bytes)
    }

    /// The same, byte by byte.
    fn scan_cut(bytes: &[u8]) -> ChunkScan {
        let mut scanner = ChunkScanner::default();
        for (at, byte) in bytes.iter().enumerate() {
            match scanner.scan(core::slice::from_ref(byte)) {
                ChunkScan::Incomplete => {}
                ChunkScan::Complete(taken) => return ChunkScan::Complete(at + taken),
                ChunkScan::Malformed(_) => return ChunkScan::Malformed(at),
            }
        }
        ChunkScan::Incomplete
    }

    #[test]
    fn the_end_of_a_chunked_body_is_found() {
        let body = b"4;a=\"b\"\r\nGET \r\n0A \r\n0123456789\r\n000\r\nX-Sum: 1\r\n\r\n";
        for behind in [&b""[..], b"GET / HTTP/1.1\r\n"] {
            let all = [&body[..], behind].concat();
            assert_eq!(scan(&all), ChunkScan::Complete(body.len()));
            assert_eq!(scan_cut(&all), ChunkScan::Complete(body.len()));
        }
        for end in 0..body.len() {
            assert_eq!(scan(&body[..end]), ChunkScan::Incomplete, "{end}");
        }
        assert_eq!(scan(b"0\r\n\r\n"), ChunkScan::Complete(5));
    }

    #[test]
    fn data_is_told_from_what_is_around_it() {
        let body = b"4;a=\"b\"\r\nGET \r\n0A \r\n0123456789\r\n000\r\nX-Sum: 1\r\n\r\n";
        for piece in [1, 3, 7, 100] {
            let mut scanner = ChunkScanner::default();
            let mut data = Vec::new();
            for mut bytes in body.chunks(piece) {
                while !bytes.is_empty() {
                    bytes = &bytes[scanner.skip_overhead(bytes)..];
                    let here = bytes.len().min(scanner.data_left() as usize);
                    data.extend_from_slice(&bytes[..here]);
                    scanner.pass_chunk(here as u64);
                    bytes = &bytes[here..];
                }
            }
            assert_eq!(data, b"GET 0123456789", "{piece}");
        }
    }

    #[test]
    fn what_can_be_read_in_two_ways_is_malformed() {
        for (bytes, at) in [
            (&b"\r\n"[..], 0),
            (b"g\r\n", 0),
            (b"4\n", 1),
            (b"4\rx", 2),
            (b"2\r\nabc", 5),
            (b"2\r\nab\n", 5),
            (b"2\r\nab\rx", 6),
            (b"-1\r\n", 0),
            (b"10000000000000000\r\n", 16),
            (b"0\r\n\n", 3),
            (b"0\r\nA: b\n", 7),
            (b"0\r\n\rx", 4),
        ] {
            assert_eq!(
                scan(bytes),
                ChunkScan::Malformed(at),
                "{}",
                bytes.escape_ascii()
            );
            assert_eq!(
                scan_cut(bytes),
                ChunkScan::Malformed(at),
                "{}",
                bytes.escape_ascii()
            );
        }
        let long = [b"1;", &b"x".repeat(20_000)[..]].concat();
        assert_eq!(scan(&long), ChunkScan::Malformed(16 << 10));
    }
}
