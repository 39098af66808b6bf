//! Stable fingerprints: of a stream's columns, of a task. The same on every machine.

use std::fmt;
use std::hash::Hasher;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use siphasher::sip128::{Hash128, Hasher128, SipHasher13};

/// 128 bits that stand for what was hashed; written as 32 hexadecimal digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Fingerprint(pub u128);

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
        u128::from_str_radix(&text, 16)
            .map(Self)
            .map_err(|_| serde::de::Error::custom("not 32 hexadecimal digits"))
    }
}

/// Collects what a fingerprint stands for. Every part is preceded by its length, so that parts
/// cannot run into each other.
#[derive(Debug, Default)]
pub struct Printer(SipHasher13);

/// Bytes that are handed to the hash at once.
const CHUNK_BYTES: usize = 1 << 14;

impl Printer {
    /// Adds bytes.
    pub fn bytes(&mut self, bytes: &[u8]) -> &mut Self {
        self.0.write_u64(bytes.len() as u64);
        self.0.write(bytes);
        self
    }

    /// Adds a column of 32-bit numbers.
    pub fn words(&mut self, column: &[u32]) -> &mut Self {
        self.0.write_u64(column.len() as u64);
        let mut bytes = Vec::with_capacity(CHUNK_BYTES);
        for chunk in column.chunks(CHUNK_BYTES / 4) {
            bytes.clear();
            bytes.extend(chunk.iter().flat_map(|word| word.to_le_bytes()));
            self.0.write(&bytes);
        }
        self
    }

    /// Adds anything that can be written as JSON.
    pub fn json(&mut self, value: &impl Serialize) -> &mut Self {
        let text = serde_json::to_vec(value).unwrap_or_default();
        self.bytes(&text)
    }

    /// The fingerprint of what was added.
    pub fn finish(&self) -> Fingerprint {
        let Hash128 { h1, h2 } = self.0.finish128();
        Fingerprint(u128::from(h1) << 64 | u128::from(h2))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
