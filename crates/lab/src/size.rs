//! Sizes such as `32K`, `1M`, `32768`.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A number of bytes. Written as a number or with a binary suffix: `K`, `KiB`, `M`, `MiB`, `G`,
/// `GiB`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Size(pub u64);

const LARGE: &str = "larger than 2^64 bytes";

impl FromStr for Size {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        const WHOLE: &str = "write a whole number of bytes, or one with K, M or G: 32K";
        let digits = text.bytes().take_while(u8::is_ascii_digit).count();
        let (number, unit) = text.split_at(digits);
        if number.is_empty() || unit.starts_with('.') {
            return Err(WHOLE.to_owned());
        }
        let number: u64 = number.parse().map_err(|_| LARGE.to_owned())?;
        let shift = match unit.trim_start().to_ascii_lowercase().as_str() {
            "" | "b" => 0,
            "k" | "kib" => 10,
            "m" | "mib" => 20,
            "g" | "gib" => 30,
            other => {
                return Err(format!(
                    "unknown unit {other:?}; use K, M or G (powers of 1024)"
                ));
            }
        };
        number
            .checked_mul(1 << shift)
            .map(Self)
            .ok_or_else(|| LARGE.to_owned())
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let units = [(30, "GiB"), (20, "MiB"), (10, "KiB")];
        for (shift, unit) in units {
            if self.0 >= 1 << shift && self.0.is_multiple_of(1 << shift) {
                return write!(f, "{} {unit}", self.0 >> shift);
            }
        }
        write!(f, "{} B", self.0)
    }
}

impl Serialize for Size {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_u64(self.0)
    }
}

impl<'de> Deserialize<'de> for Size {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Written {
            Number(u64),
            Text(String),
        }
        let written = Written::deserialize(from).map_err(|_| {
            serde::de::Error::custom(
                "write a whole number of bytes, or one with K, M or G: \"32K\"",
            )
        })?;
        match written {
            Written::Number(bytes) => Ok(Self(bytes)),
            Written::Text(text) => text.parse().map_err(serde::de::Error::custom),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_with_suffixes_are_parsed() {
        for (text, bytes) in [
            ("0", 0),
            ("512", 512),
            ("32K", 32_768),
            ("32k", 32_768),
            ("32 KiB", 32_768),
            ("1M", 1 << 20),
            ("2GiB", 2 << 30),
        ] {
            assert_eq!(text.parse(), Ok(Size(bytes)), "{text}");
        }
        for text in ["", "K", "-1", "1.5K", "32Q", "99999999999G", "1 K B"] {
            assert!(text.parse::<Size>().is_err(), "{text}");
        }
        for (text, word) in [
            ("1.5K", "whole number"),
            ("1T", "use K, M or G"),
            ("99999999999999999999999", "larger than 2^64"),
            ("99999999999G", "larger than 2^64"),
        ] {
            let said = text.parse::<Size>().unwrap_err();
            assert!(said.contains(word), "{text}: {said}");
        }
    }

    #[test]
    fn sizes_are_shown_in_the_largest_whole_unit() {
        assert_eq!(Size(32_768).to_string(), "32 KiB");
        assert_eq!(Size(1 << 20).to_string(), "1 MiB");
        assert_eq!(Size(1_536).to_string(), "1536 B");
        assert_eq!(Size(0).to_string(), "0 B");
    }
}
