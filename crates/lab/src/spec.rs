//! One configuration of a cache, and what came out of running it.

use serde::{Deserialize, Deserializer, Serialize};

use crate::size::Size;

/// A configuration: everything that decides the misses of a stream.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RunSpec {
    /// A scheme's name, as `schemes` lists them.
    pub scheme: String,
    /// Bytes of all lines (default: the paper's 32 KiB).
    #[serde(default = "paper_capacity")]
    pub capacity: Size,
    /// Bytes of a line (default: the paper's 64).
    #[serde(default = "paper_line")]
    pub line: Size,
    /// Ways of a set (default: the paper's 4).
    #[serde(default = "paper_ways")]
    pub ways: u32,
    /// Bits of the session identifier that choose the set: `all48`, the lowest 1 to 40 of the
    /// address and the port's low byte, or masks `IIIIIIII:PPPP`; the scheme's own when left out.
    #[serde(
        default,
        deserialize_with = "number_or_text",
        skip_serializing_if = "Option::is_none"
    )]
    pub index_bits: Option<String>,
    /// The lifetime counter from which a line counts as ON; the scheme's own when left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub threshold: Option<u8>,
    /// What index functions and random choices are drawn from.
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

fn first_seed() -> u64 {
    1
}

/// Bits that are a number, `16`, are written as one in plans as well.
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

    /// Lines, were the geometry sound.
    pub fn lines(&self) -> u64 {
        self.capacity.0 / self.line.0.max(1)
    }
}

/// What a run counted, warm-up left out.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RunResult {
    /// Accesses.
    pub accesses: u64,
    /// Accesses that found nothing.
    pub misses: u64,
    /// `misses / accesses`; 0 of nothing.
    pub miss_ratio: f64,
    /// Misses of sessions never seen before, warm-up included in "before".
    pub cold_misses: u64,
    /// Lines moved to their second place.
    pub migrations: u64,
    /// Hits that only the second lookup found.
    pub second_lookup_hits: u64,
    /// Misses that were not given a line.
    pub bypasses: u64,
    /// Lines thrown out while they were ON.
    pub evicted_on: u64,
    /// Bounds for the same lines over the same accesses, where they were asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bounds: Option<Bounds>,
}

/// Misses that bound or frame a result: the same accesses, the same number of lines.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Bounds {
    /// First accesses of each session: no cache avoids them.
    pub compulsory: u64,
    /// Misses of least-recently-used, fully associative.
    pub lru: u64,
    /// Misses of Belady's MIN, fully associative, that gives every newcomer a line: no policy that
    /// does so has fewer. One that bypasses (`bypasses` above 0) may have: it is another bound's
    /// (`fairlead_cache::bounds::min_or_bypass`).
    pub min: u64,
    /// Misses of MIN within each set; for schemes with a single index function that do not move
    /// lines.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub set_min: Option<u64>,
    /// Misses when the line that is needed furthest ahead goes, among those that the index
    /// functions allow; for schemes with several that do not move lines. Not an optimum: that one
    /// is NP-hard.
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
    fn bits_that_are_a_number_may_be_written_as_one() {
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
