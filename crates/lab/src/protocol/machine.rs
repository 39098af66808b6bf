//! Machines: two levels of caches and the time that misses take, each constant with its source.

use std::path::Path;

use fairlead_cache::memory::{Counts, Geometry, Hierarchy};
use serde::{Deserialize, Serialize};

use crate::error::{LabError, in_words};
use crate::size::Size;

/// Machines that need no file.
const KNOWN: [(&str, &str); 4] = [
    ("r4400-100", include_str!("machines/r4400-100.toml")),
    ("neoverse-n1", include_str!("machines/neoverse-n1.toml")),
    ("zen4", include_str!("machines/zen4.toml")),
    ("golden-cove", include_str!("machines/golden-cove.toml")),
];

/// The machine of the paper's time.
pub const R4400: &str = "r4400-100";

/// A machine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Machine {
    /// Its name: the file's, without `.toml`.
    #[serde(default)]
    pub name: String,
    /// What it is.
    pub about: String,
    /// Clock, MHz.
    pub clock_mhz: Constant,
    /// First level, instructions.
    pub i1: CacheShape,
    /// First level, data.
    pub d1: CacheShape,
    /// Second level, for both.
    pub l2: CacheShape,
    /// Time of a miss in the first level that the second level has.
    pub l2_hit: Latency,
    /// Time of a miss in the second level, in addition.
    pub memory: Latency,
}

/// A number and its source.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Constant {
    /// The number.
    pub value: f64,
    /// Where it is published, or `assumed`.
    pub source: String,
}

/// A cache, and where its numbers are published.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CacheShape {
    /// Bytes.
    pub size: Size,
    /// Ways.
    pub ways: u32,
    /// Bytes of a line.
    pub line: u32,
    /// Where this is published, or `assumed`.
    pub source: String,
}

/// A time. In cycles it becomes shorter with a faster clock; in nanoseconds it stays.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Latency {
    /// Cycles of the machine's clock.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cycles: Option<f64>,
    /// Nanoseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ns: Option<f64>,
    /// Where this is published, or `assumed`.
    pub source: String,
}

impl Latency {
    /// In cycles of a clock.
    fn in_cycles(&self, clock_mhz: f64) -> f64 {
        self.cycles.unwrap_or(0.0) + self.ns.unwrap_or(0.0) * clock_mhz / 1e3
    }

    fn is_valid(&self) -> bool {
        let one = self.cycles.xor(self.ns);
        one.is_some_and(|value| value.is_finite() && value >= 0.0)
    }
}

impl CacheShape {
    /// As a geometry.
    ///
    /// # Errors
    /// When there is no such cache.
    pub fn geometry(&self) -> Result<Geometry, LabError> {
        Geometry::new(self.size.0, self.ways, self.line)
            .map_err(|error| LabError::Geometry(error.to_string()))
    }
}

/// Cycles of a packet, in which nothing overlaps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Cycles {
    /// One for each instruction: what a machine without misses takes.
    pub instructions: f64,
    /// Waiting for instructions.
    pub instruction_stalls: f64,
    /// Waiting for data.
    pub data_stalls: f64,
}

impl Cycles {
    /// All of them.
    pub fn total(&self) -> f64 {
        self.instructions + self.instruction_stalls + self.data_stalls
    }

    /// Memory cycles per instruction: for instructions.
    pub fn instruction_mcpi(&self) -> f64 {
        ratio(self.instruction_stalls, self.instructions)
    }

    /// Memory cycles per instruction: for data.
    pub fn data_mcpi(&self) -> f64 {
        ratio(self.data_stalls, self.instructions)
    }
}

/// A quotient; 0 of nothing.
pub(crate) fn ratio(part: f64, whole: f64) -> f64 {
    if whole > 0.0 { part / whole } else { 0.0 }
}

impl Machine {
    /// By name, or from a TOML file.
    ///
    /// # Errors
    /// An unknown name, an unreadable file, an impossible machine.
    pub fn find(name: &str) -> Result<Self, LabError> {
        if let Some((name, text)) = KNOWN.iter().find(|(known, _)| *known == name) {
            return Self::parse(name, name, text);
        }
        let path = Path::new(name);
        if path.extension().is_none_or(|end| end != "toml") {
            let names = KNOWN.map(|(name, _)| name).join(", ");
            let problem = format!("unknown machine; known are {names}; or write a TOML file");
            return Err(LabError::option("--machine", name, problem));
        }
        let text = std::fs::read_to_string(path).map_err(|error| LabError::file(path, error))?;
        let own = path.file_stem().map(|stem| stem.to_string_lossy());
        Self::parse(name, &own.unwrap_or_default(), &text)
    }

    /// All that need no file.
    ///
    /// # Errors
    /// Never, as a test shows.
    pub fn known() -> Result<Vec<Self>, LabError> {
        let parse = |(name, text): &(&str, &str)| Self::parse(name, name, text);
        KNOWN.iter().map(parse).collect()
    }

    fn parse(place: &str, name: &str, text: &str) -> Result<Self, LabError> {
        let plan = |problem: String| LabError::Plan {
            place: place.to_owned(),
            problem,
        };
        let mut machine: Self =
            toml::from_str(text).map_err(|error| plan(in_words(error.to_string().trim_end())))?;
        if machine.name.is_empty() {
            machine.name = name.to_owned();
        }
        for (key, shape) in [
            ("i1", &machine.i1),
            ("d1", &machine.d1),
            ("l2", &machine.l2),
        ] {
            shape
                .geometry()
                .map_err(|error| plan(format!("{key}: {error}")))?;
        }
        for (key, latency) in [("l2_hit", &machine.l2_hit), ("memory", &machine.memory)] {
            if !latency.is_valid() {
                let problem = "write either cycles or ns, a number from 0";
                return Err(plan(format!("{key}: {problem}")));
            }
        }
        let clock = machine.clock_mhz.value;
        if !(clock.is_finite() && clock > 0.0) {
            return Err(plan("clock_mhz: write a number above 0".to_owned()));
        }
        Ok(machine)
    }

    /// Its caches, empty.
    ///
    /// # Errors
    /// When there are no such caches.
    pub fn caches(&self) -> Result<Hierarchy, LabError> {
        let (i1, d1, l2) = (&self.i1, &self.d1, &self.l2);
        Ok(Hierarchy::new(
            i1.geometry()?,
            d1.geometry()?,
            l2.geometry()?,
        ))
    }

    /// The cycles of these counts, with a clock that is `factor` times as fast. Nothing overlaps:
    /// an upper bound for processors that execute out of order.
    pub fn cycles(&self, counts: &Counts, factor: f64) -> Cycles {
        let clock = self.clock_mhz.value * factor;
        let (l2_hit, memory) = (self.l2_hit.in_cycles(clock), self.memory.in_cycles(clock));
        let stalls = |misses: u64, far: u64| misses as f64 * l2_hit + far as f64 * memory;
        Cycles {
            instructions: counts.instructions as f64,
            instruction_stalls: stalls(counts.i1_misses, counts.ll_instruction_misses),
            data_stalls: stalls(counts.d1_misses(), counts.ll_data_misses()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_constant_of_a_known_machine_has_a_source() {
        for machine in Machine::known().unwrap() {
            let sources = [
                &machine.clock_mhz.source,
                &machine.i1.source,
                &machine.d1.source,
                &machine.l2.source,
                &machine.l2_hit.source,
                &machine.memory.source,
            ];
            for source in sources {
                assert!(source.len() >= "assumed".len(), "{}", machine.name);
            }
            machine.caches().unwrap();
        }
        assert_eq!(Machine::known().unwrap().len(), 4);
    }

    #[test]
    fn a_faster_clock_makes_memory_dearer_and_cycles_stay() {
        let counts = Counts {
            instructions: 1000,
            i1_misses: 10,
            ll_instruction_misses: 1,
            reads: 300,
            d1_read_misses: 4,
            ..Counts::default()
        };
        let old = Machine::find(R4400).unwrap();
        let cycles = old.cycles(&counts, 1.0);
        assert!(
            (cycles.instruction_stalls - 200.0).abs() < 1e-9,
            "{cycles:?}"
        );
        assert!((cycles.data_stalls - 40.0).abs() < 1e-9);
        assert!((cycles.total() - 1240.0).abs() < 1e-9);
        assert!((cycles.instruction_mcpi() - 0.2).abs() < 1e-9);
        let fast = old.cycles(&counts, 4.0);
        assert!((fast.instruction_stalls - 800.0).abs() < 1e-9);
        // The second level of today is on the chip.
        let new = Machine::find("zen4").unwrap();
        let growth = new.cycles(&counts, 2.0).data_stalls / new.cycles(&counts, 1.0).data_stalls;
        assert!((growth - 1.0).abs() < 1e-9);
    }

    #[test]
    fn errors_name_the_key() {
        let said = |from: &str, to: &str| {
            let text = KNOWN[0].1.replacen(from, to, 1);
            Machine::parse("x.toml", "x", &text)
                .unwrap_err()
                .to_string()
        };
        assert!(said("ways = 1", "ways = 3").contains("i1: "));
        assert!(said("ns = 100\n", "ns = -1\n").contains("l2_hit: write either"));
        assert!(said("ns = 100\n", "").contains("l2_hit: write either"));
        assert!(said("value = 100", "value = 0").contains("clock_mhz"));
        assert!(said("about", "abut").contains("abut"));
        let unknown = Machine::find("r4400").unwrap_err();
        assert!(unknown.to_string().contains("zen4") && unknown.exit_code() == 2);
        assert_eq!(Machine::find("absent.toml").unwrap_err().exit_code(), 1);
    }
}
