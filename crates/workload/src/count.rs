//! Counts as people write them: `1M`, `20K`, `4000`.

use core::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, Error, Visitor};

const HOW: &str = "write a whole number, with K for thousands or M for millions";

/// A count, where K and M are thousands and millions.
///
/// # Errors
/// What to write instead.
pub fn count(text: &str) -> Result<u64, String> {
    let (digits, times) = match text.as_bytes().last() {
        Some(b'k' | b'K') => (&text[..text.len() - 1], 1_000),
        Some(b'm' | b'M') => (&text[..text.len() - 1], 1_000_000),
        _ => (text, 1),
    };
    let number = digits.trim_end().parse::<u64>().ok();
    let number = number.and_then(|number| number.checked_mul(times));
    number.ok_or_else(|| HOW.to_owned())
}

/// A [`count`] of sessions, which have 32-bit numbers.
///
/// # Errors
/// What to write instead.
pub fn sessions(text: &str) -> Result<u32, String> {
    let problem = "write at most 4294967295 sessions (2^32 - 1)";
    u32::try_from(count(text)?).map_err(|_| problem.to_owned())
}

/// A number, or a text that [`count`] reads.
struct Written;

impl Visitor<'_> for Written {
    type Value = u64;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(HOW)
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<u64, E> {
        Ok(number)
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<u64, E> {
        u64::try_from(number).map_err(|_| E::custom(format!("{number}: {HOW}")))
    }

    fn visit_f64<E: Error>(self, number: f64) -> Result<u64, E> {
        Err(E::custom(format!("{number}: {HOW}")))
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<u64, E> {
        count(text).map_err(|problem| E::custom(format!("{text:?}: {problem}")))
    }
}

/// Reads a count where serde wants one: a number, or a text with a suffix.
///
/// # Errors
/// What to write instead.
pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<u64, D::Error> {
    from.deserialize_any(Written)
}

/// As [`deserialize`], of sessions.
///
/// # Errors
/// What to write instead.
pub fn deserialize_sessions<'de, D: Deserializer<'de>>(from: D) -> Result<u32, D::Error> {
    let number = deserialize(from)?;
    let problem = || D::Error::custom(format!("{number}: write a whole number up to {}", u32::MAX));
    u32::try_from(number).map_err(|_| problem())
}

/// As [`deserialize`], for an average number of open sessions, which may be fractional.
///
/// # Errors
/// What to write instead.
pub fn deserialize_open<'de, D: Deserializer<'de>>(from: D) -> Result<Option<f64>, D::Error> {
    Ok(Option::<Open>::deserialize(from)?.map(|open| open.0))
}

/// What [`Written`] takes, or a number with a fraction.
struct Open(f64);

impl<'de> Deserialize<'de> for Open {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(WrittenOpen).map(Self)
    }
}

struct WrittenOpen;

impl Visitor<'_> for WrittenOpen {
    type Value = f64;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("write a number; a whole number may end in K for thousands or M for millions")
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<f64, E> {
        Ok(number as f64)
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<f64, E> {
        Ok(number as f64)
    }

    fn visit_f64<E: Error>(self, number: f64) -> Result<f64, E> {
        Ok(number)
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<f64, E> {
        Written.visit_str(text).map(|number: u64| number as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_with_suffixes_are_parsed() {
        for (text, number) in [
            ("0", 0),
            ("4000", 4_000),
            ("20K", 20_000),
            ("1 m", 1_000_000),
        ] {
            assert_eq!(count(text), Ok(number), "{text}");
        }
        for text in ["", "K", "-1", "1.5K", "1G", "1 0", "99999999999999M"] {
            assert!(count(text).unwrap_err().contains("whole number"), "{text}");
        }
        assert_eq!(sessions("4M"), Ok(4_000_000));
        assert!(sessions("5000M").unwrap_err().contains("2^32"));
    }
}
