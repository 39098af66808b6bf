//! One cache configuration, and the results of running it.

use serde::{Deserialize, Deserializer, Serialize};

use crate::size::Size;

/// A configuration: everything that determines the misses on a stream.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RunSpec {
    /// Name of the scheme, as listed by `schemes`.
    pub scheme: String,
    /// Total size of the lines, bytes (default: the paper's 32 KiB).
    #[serde(default = "paper_capacity")]
    pub capacity: Size,
    /// Line size, bytes (default: the paper's 64).
    #[serde(default = "paper_line")]
    pub line: Size,
    /// Ways per set (default: the paper's 4).
    #[serde(default = "paper_ways")]
    pub ways: u32,
    /// Bits of the session identifier that select the set: `all48`, the lowest 1 to 40 bits of the
    /// address and the port's low byte, or masks `IIIIIIII:PPPP` (default: the scheme's).
    #[serde(
        default,
        deserialize_with = "number_or_text",
        skip_serializing_if = "Option::is_none"
    )]
    pub index_bits: Option<String>,
    /// Value of the lifetime counter from which a line is ON (default: the scheme's).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub threshold: Option<u8>,
    /// Seed of index functions and random choices.
    #[serde(default = "first_seed")]
    pub seed: u64,
}

fn paper_capacity() -> Size {
    Size(crate::paper::published::CAPACITY_BYTES)
}

fn paper_line() -> Size {
    Size(crate::paper::published::LINE_BYTES)
}

fn paper_ways() -> u32 {
    crate::paper::published::WAYS
}

impl RunSpec {
    /// Reads one from JSON; without a seed of its own it takes `seed`, its stream's.
    ///
    /// # Errors
    /// What the JSON says is no configuration.
    pub fn from_json(text: &str, seed: u64) -> Result<Self, serde_json::Error> {
        let mut value: serde_json::Value = serde_json::from_str(text)?;
        if let Some(fields) = value.as_object_mut() {
            fields.entry("seed").or_insert_with(|| seed.into());
        }
        serde_json::from_value(value)
    }
}

fn first_seed() -> u64 {
    1
}

/// A plain number of bits, `16`, is also serialized as a number.
fn number_or_text<'de, D: Deserializer<'de>>(from: D) -> Result<Option<String>, D::Error> {
    #[derive(Deserialize)]
    #[serde(
        untagged,
        expecting = "write `all48`, a number of bits, or masks as text"
    )]
    enum Written {
        Number(u64),
        Text(String),
    }
    Ok(match Option::<Written>::deserialize(from)? {
        None => None,
        Some(Written::Number(bits)) => Some(bits.to_string()),
        Some(Written::Text(text)) => Some(text),
    })
}

impl RunSpec {
    /// `scheme` in the paper's geometry: 32 KiB of 64-byte lines, 4 ways.
    pub fn paper(scheme: impl Into<String>) -> Self {
        Self {
            scheme: scheme.into(),
            capacity: paper_capacity(),
            line: paper_line(),
            ways: paper_ways(),
            index_bits: None,
            threshold: None,
            seed: first_seed(),
        }
    }

    /// Number of lines, assuming a valid geometry.
    pub fn lines(&self) -> u64 {
        self.capacity.0 / self.line.0.max(1)
    }
}

/// Counts of a run, without warm-up.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RunResult {
    /// Accesses.
    pub accesses: u64,
    /// Accesses that missed.
    pub misses: u64,
    /// `misses / accesses`, or 0.
    pub miss_ratio: f64,
    /// Misses of sessions never seen before, including in the warm-up.
    pub cold_misses: u64,
    /// Lines moved to their second location.
    pub migrations: u64,
    /// Hits of the second lookup.
    pub second_lookup_hits: u64,
    /// Misses that were not inserted.
    pub bypasses: u64,
    /// Lines evicted while ON.
    pub evicted_on: u64,
    /// Bounds for the same number of lines over the same accesses, if requested.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bounds: Option<Bounds>,
}

/// Bounds and reference values of a result, for the same accesses and number of lines.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Bounds {
    /// First accesses of each session, unavoidable for any cache.
    pub compulsory: u64,
    /// Misses of fully associative LRU.
    pub lru: u64,
    /// Misses of fully associative Belady MIN, which gives every newcomer a line. No such policy
    /// has fewer; one that bypasses (`bypasses` above 0) may, and has another bound
    /// (`fairlead_cache::bounds::min_or_bypass`).
    pub min: u64,
    /// Misses of MIN within each set; for schemes with a single index function that do not move
    /// lines.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub set_min: Option<u64>,
    /// Misses when evicting the line with the furthest next use among those that the index
    /// functions allow; for schemes with several functions that do not move lines. Not optimal: the
    /// optimum is NP-hard.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub greedy: Option<u64>,
    /// `lru / accesses`.
    pub lru_miss_ratio: f64,
    /// `min / accesses`.
    pub min_miss_ratio: f64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_may_be_a_plain_number() {
        let bits = |text: &str| serde_json::from_str::<RunSpec>(text).map(|run| run.index_bits);
        for (written, read) in [
            ("16", Some("16")),
            ("\"16\"", Some("16")),
            ("\"all48\"", Some("all48")),
            ("null", None),
        ] {
            let text = format!("{{\"scheme\": \"mod\", \"index_bits\": {written}}}");
            assert_eq!(bits(&text).unwrap().as_deref(), read, "{written}");
        }
        let said = bits(r#"{"scheme": "mod", "index_bits": 1.5}"#).unwrap_err();
        assert!(said.to_string().contains("a number of bits"), "{said}");
    }
}
