//! Stable fingerprints: of a stream's columns, of a task. The same on every machine.
//!
//! Each piece of a column is reduced to 64 bits ([`hash64`]), and SipHash combines them to 128
//! bits. This detects accidental differences, not deliberate collisions.

use std::fmt;
use std::hash::Hasher;
use std::io::{self, Read};

use fairlead_base::Endpoint;
use fairlead_trace::hash64;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use siphasher::sip128::{Hash128, Hasher128, SipHasher13};

use crate::control::Control;

/// A 128-bit fingerprint, written as 32 hexadecimal digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Fingerprint(pub u128);

impl Fingerprint {
    /// Hexadecimal digits of one.
    const DIGITS: usize = 32;

    /// As it is written: no more digits, no fewer, and nothing else, as any short number would be
    /// one.
    pub fn parse(text: &str) -> Option<Self> {
        let is_one =
            text.len() == Self::DIGITS && text.bytes().all(|digit| digit.is_ascii_hexdigit());
        let number = is_one.then(|| u128::from_str_radix(text, 16).ok());
        number.flatten().map(Self)
    }

    /// Fingerprint of a stream: equal for the same accesses at the same ticks with the same
    /// warm-up, whatever their origin.
    pub fn of_stream(
        ids: &[u32],
        ticks: &[u32],
        hints: &[u8],
        keys: &[Endpoint],
        counted_from: usize,
    ) -> Self {
        let mut printer = Printer::default();
        printer.words(ids).words(ticks).bytes(hints);
        printer.pieces(keys, |key| {
            let mut bytes = [0; 18];
            bytes[..16].copy_from_slice(&key.addr.0);
            bytes[16..].copy_from_slice(&key.port.to_be_bytes());
            bytes
        });
        printer.json(&counted_from).finish()
    }

    /// Fingerprint of a file's contents, independent of read sizes. `None` if stopped.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn of_content(mut reader: impl Read, control: &dyn Control) -> io::Result<Option<Self>> {
        let mut printer = Printer::default();
        let mut chunk = Vec::with_capacity(CHUNK_BYTES);
        loop {
            chunk.clear();
            let mut part = reader.by_ref().take(CHUNK_BYTES as u64);
            if part.read_to_end(&mut chunk)? == 0 {
                return Ok(Some(printer.finish()));
            }
            if control.stopped() {
                return Ok(None);
            }
            printer.bytes(&chunk);
        }
    }
}

/// Bytes of a file that are taken in at once.
const CHUNK_BYTES: usize = 1 << 20;

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl Serialize for Fingerprint {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Fingerprint {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = String::deserialize(from)?;
        Self::parse(&text).ok_or_else(|| serde::de::Error::custom("not 32 hexadecimal digits"))
    }
}

/// Collects the input of a fingerprint. Every part is preceded by its length, so that boundaries
/// are unambiguous.
#[derive(Debug, Default)]
pub struct Printer(SipHasher13);

/// Values of a column that are hashed at once.
const PIECE: usize = 1 << 12;

impl Printer {
    /// Adds bytes.
    pub fn bytes(&mut self, bytes: &[u8]) -> &mut Self {
        self.0.write_u64(bytes.len() as u64);
        self.0.write(bytes);
        self
    }

    /// Adds a column of 32-bit numbers.
    pub fn words(&mut self, column: &[u32]) -> &mut Self {
        self.pieces(column, |word| word.to_le_bytes())
    }

    /// Adds a column of values, each as the bytes that stand for it.
    fn pieces<T, const N: usize>(
        &mut self,
        column: &[T],
        bytes_of: impl Fn(&T) -> [u8; N],
    ) -> &mut Self {
        self.0.write_u64(column.len() as u64);
        let mut bytes = Vec::with_capacity(PIECE);
        for piece in column.chunks(PIECE) {
            bytes.clear();
            bytes.extend(piece.iter().map(&bytes_of));
            self.0.write_u64(hash64(bytes.as_flattened()));
        }
        self
    }

    /// Adds anything that can be written as JSON.
    pub fn json(&mut self, value: &impl Serialize) -> &mut Self {
        let text = serde_json::to_vec(value).unwrap_or_default();
        self.bytes(&text)
    }

    /// The fingerprint of the parts added.
    pub fn finish(&self) -> Fingerprint {
        let Hash128 { h1, h2 } = self.0.finish128();
        Fingerprint(u128::from(h1) << 64 | u128::from(h2))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::Silent;

    /// Gives a few bytes at a time, and is interrupted before each.
    struct Drip<'a>(&'a [u8], bool);

    impl Read for Drip<'_> {
        fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
            self.1 = !self.1;
            if self.1 {
                return Err(io::ErrorKind::Interrupted.into());
            }
            let count = to.len().min(100_003);
            self.0.read(&mut to[..count])
        }
    }

    #[test]
    fn content_is_the_same_in_whatever_pieces_it_comes() {
        let content: Vec<u8> = (0..5u32 << 19).map(|at| (at >> 8) as u8).collect();
        let print = |reader: &mut dyn Read| Fingerprint::of_content(reader, &Silent).unwrap();
        let whole = print(&mut &content[..]);
        assert!(whole.is_some() && whole == print(&mut Drip(&content, false)));
        // As it was before it was said so: what is planned already goes on.
        let mut printer = Printer::default();
        for chunk in content.chunks(1 << 20) {
            printer.bytes(chunk);
        }
        assert_eq!(whole, Some(printer.finish()));
    }

    #[test]
    fn parts_do_not_run_into_each_other() {
        let print = |parts: &[&[u8]]| {
            let mut printer = Printer::default();
            for part in parts {
                printer.bytes(part);
            }
            printer.finish()
        };
        assert_ne!(print(&[b"ab", b"c"]), print(&[b"a", b"bc"]));
        assert_eq!(print(&[b"ab"]), print(&[b"ab"]));
    }

    #[test]
    fn every_column_of_a_stream_counts() {
        let key = |port| Endpoint {
            addr: fairlead_base::Address::v4([10, 0, 0, 1]),
            port,
        };
        let (ids, ticks, hints, keys) = ([0, 1, 0], [4, 4, 5], [0, 1, 0], [key(1), key(2)]);
        let print = Fingerprint::of_stream(&ids, &ticks, &hints, &keys, 1);
        assert_eq!(
            print,
            Fingerprint::of_stream(&ids, &ticks, &hints, &keys, 1)
        );
        for other in [
            Fingerprint::of_stream(&[0, 1, 1], &ticks, &hints, &keys, 1),
            Fingerprint::of_stream(&ids, &[4, 5, 5], &hints, &keys, 1),
            Fingerprint::of_stream(&ids, &ticks, &[], &keys, 1),
            Fingerprint::of_stream(&ids, &ticks, &hints, &[key(1), key(3)], 1),
            Fingerprint::of_stream(&ids, &ticks, &hints, &keys, 2),
            Fingerprint::of_stream(&ticks, &ids, &hints, &keys, 1),
        ] {
            assert_ne!(print, other);
        }
    }

    #[test]
    fn a_fingerprint_is_the_same_everywhere() {
        let mut printer = Printer::default();
        let column: Vec<u32> = (0..10_000).collect();
        printer.words(&column).json(&("mod", 4));
        let text = printer.finish().to_string();
        assert_eq!(text.len(), 32);
        let back: Fingerprint = serde_json::from_str(&format!("\"{text}\"")).unwrap();
        assert_eq!(back, printer.finish());
        let mut other = column.clone();
        other[9_999] = 0;
        let mut second = Printer::default();
        second.words(&other).json(&("mod", 4));
        assert_ne!(second.finish(), back);
    }
}
