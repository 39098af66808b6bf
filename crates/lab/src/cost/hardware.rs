//! Hardware cost of a configuration: bits besides the payload, gates of its index functions.

use fairlead_cache::policy::StateBits;
use fairlead_cache::registry;
use serde::Serialize;

use super::Constants;
use super::gates::{HashCost, universal};
use crate::run::Configuration;

/// Bits and gates of one configuration.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Hardware {
    /// Lines.
    pub lines: u64,
    /// Bits of payload.
    pub payload_bits: u64,
    /// Bits of a line for tag, pointer and whether it holds anything.
    pub tag_bits_a_line: u32,
    /// Bits of a line that the policy needs.
    pub policy_bits_a_line: u32,
    /// Bits of each set of each bank that it needs.
    pub policy_bits_a_set: u32,
    /// Bits that it needs once.
    pub policy_bits_besides: u64,
    /// All bits.
    pub bits: u64,
    /// The hash's gates; nothing for index functions other than the universal one, for which the
    /// paper gives no count.
    pub hash: Option<HashCost>,
}

/// Counts bits and gates.
pub fn hardware(constants: &Constants, configuration: &Configuration) -> Hardware {
    let geometry = &configuration.geometry;
    let scheme = &configuration.scheme;
    let lines = u64::from(geometry.lines());
    let storage = &constants.storage;
    let tag_bits = storage.tag_bits + storage.pointer_bits + storage.valid_bits;
    let policy = registry::entry(&scheme.policy);
    let state = policy.map_or_else(StateBits::default, |policy| {
        (policy.state)(geometry, &scheme.parameters)
    });
    let payload_bits = geometry.capacity_bytes() * 8;
    let functions = if policy.is_some_and(|policy| policy.moves) {
        2
    } else {
        1
    };
    let is_universal = matches!(scheme.index.as_str(), "h3" | "universal");
    let hash = is_universal.then(|| {
        universal(
            &constants.gates,
            scheme.mask.bits_v4(),
            geometry.sets().trailing_zeros(),
            functions * geometry.banks(),
        )
    });
    Hardware {
        lines,
        payload_bits,
        tag_bits_a_line: tag_bits,
        policy_bits_a_line: state.line,
        policy_bits_a_set: state.set,
        policy_bits_besides: state.cache,
        bits: payload_bits + lines * u64::from(tag_bits) + state.all(geometry),
        hash,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::RunSpec;

    #[test]
    fn the_papers_cache_is_counted() {
        let spec = RunSpec {
            index_bits: Some("16".to_owned()),
            ..RunSpec::paper("spec")
        };
        let counted = hardware(&Constants::default(), &Configuration::new(&spec).unwrap());
        assert_eq!((counted.lines, counted.payload_bits), (512, 262_144));
        assert_eq!(counted.tag_bits_a_line, 48 + 32 + 1);
        let hash = counted.hash.unwrap();
        // Two banks, two functions each, 64 sets a bank, 31 gates a bit.
        assert_eq!(
            (hash.functions, hash.output_bits, hash.gates),
            (4, 6, 31 * 6 * 4)
        );
        let plain = hardware(
            &Constants::default(),
            &Configuration::new(&RunSpec::paper("mod")).unwrap(),
        );
        assert_eq!(plain.hash, None);
        assert!(plain.bits < counted.bits);
    }

    #[test]
    fn what_a_policy_keeps_depends_on_what_is_built() {
        let counted = |scheme: &str, ways: u32, threshold: Option<u8>| {
            let spec = RunSpec {
                ways,
                threshold,
                ..RunSpec::paper(scheme)
            };
            hardware(&Constants::default(), &Configuration::new(&spec).unwrap())
        };
        let line = |scheme: &str, ways, threshold| {
            let built = counted(scheme, ways, threshold);
            built.policy_bits_a_line
        };
        let ways = [1, 8, 16].map(|ways| line("mod", ways, None));
        assert_eq!(ways, [0, 3, 4]);
        assert_eq!(line("timestamp16,stamp_bits=8", 4, None), 8);
        assert_eq!(line("spec,on_ticks=12", 4, None), 6);
        assert_eq!(line("spec", 4, Some(4)), 5);
        // One tick takes a bit.
        assert_eq!(line("spec", 4, Some(7)), 3);
        assert!(line("2-lru", 4, None) > 24);
        let tide = counted("tide", 4, None);
        let besides = tide.bits - tide.payload_bits - 512 * (81 + 8);
        assert_eq!((besides, tide.policy_bits_besides), (7_652, 7_652));
        let access = counted("access", 4, None);
        let of_sets = 128 * u64::from(access.policy_bits_a_set);
        assert_eq!(access.bits - access.payload_bits, 512 * (81 + 2) + of_sets);
        assert!(of_sets > 0);
    }
}
