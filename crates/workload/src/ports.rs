//! Which port a client's next session has.

use core::fmt;
use core::iter;

use fairlead_base::Rng;
use serde::de::value::{MapAccessDeserializer, MapDeserializer};
use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

use crate::draw::uniform;

/// How clients choose ports. In text, omitted parameters have defaults; in an expansion or workload
/// the model's name suffices.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "model", rename_all = "kebab-case", deny_unknown_fields)]
pub enum PortModel {
    /// One after the other, as systems of 1995 did: from `base` on, within `range`, then again
    /// (tcb-cache-2010, section 3.4: from 1024 on, typically within 256).
    Sequential {
        /// The first port.
        #[serde(default = "usual::base")]
        base: u16,
        /// How many ports there are.
        #[serde(default = "usual::range")]
        range: u16,
        /// Initial port of a client: `range` × *u* to this power, *u* uniform from 0 to 1. 1 is
        /// uniform; larger values are nearer to `base`, as for recently started machines.
        #[serde(default = "usual::skew")]
        skew: f64,
    },
    /// Each drawn by itself, as systems do today.
    Random {
        /// The lowest port.
        #[serde(default = "usual::low")]
        low: u16,
        /// The highest port.
        #[serde(default = "usual::high")]
        high: u16,
    },
}

/// Parameters as they usually are.
mod usual {
    pub(super) const fn base() -> u16 {
        1_024
    }

    pub(super) const fn range() -> u16 {
        256
    }

    pub(super) const fn skew() -> f64 {
        2.0
    }

    pub(super) const fn low() -> u16 {
        32_768
    }

    pub(super) const fn high() -> u16 {
        60_999
    }
}

/// A model by its name, or as a table with its parameters.
pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<PortModel, D::Error> {
    from.deserialize_any(NameOrTable)
}

struct NameOrTable;

impl<'de> Visitor<'de> for NameOrTable {
    type Value = PortModel;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("\"sequential\", \"random\" or { model = \"random\" } with its parameters")
    }

    fn visit_str<E: serde::de::Error>(self, name: &str) -> Result<PortModel, E> {
        let table = iter::once(("model", name));
        PortModel::deserialize(MapDeserializer::new(table))
    }

    fn visit_map<A: MapAccess<'de>>(self, table: A) -> Result<PortModel, A::Error> {
        PortModel::deserialize(MapAccessDeserializer::new(table))
    }
}

impl Default for PortModel {
    fn default() -> Self {
        Self::SEQUENTIAL
    }
}

impl PortModel {
    /// Ports of 1995, for logs of then.
    pub const SEQUENTIAL: Self = Self::Sequential {
        base: usual::base(),
        range: usual::range(),
        skew: usual::skew(),
    };
    /// Ports of Linux today.
    pub const RANDOM: Self = Self::Random {
        low: usual::low(),
        high: usual::high(),
    };

    /// Initial port of a client.
    pub(crate) fn first(&self, rng: &mut Rng) -> u32 {
        match *self {
            Self::Sequential { range, skew, .. } => {
                let at = f64::from(range) * uniform(rng).powf(skew);
                (at as u32).min(u32::from(range).saturating_sub(1))
            }
            Self::Random { .. } => 0,
        }
    }

    /// The port of a client's session `number` (from 0), when it stood at `first`.
    pub(crate) fn port(&self, first: u32, number: u32, rng: &mut Rng) -> u16 {
        match *self {
            Self::Sequential { base, range, .. } => {
                let range = u64::from(range.max(1));
                let step = (u64::from(first) + u64::from(number)) % range;
                base.wrapping_add(step as u16)
            }
            Self::Random { low, high } => {
                let (low, high) = (low.min(high), low.max(high));
                low + rng.below(u32::from(high - low) + 1) as u16
            }
        }
    }

    /// What keeps it from being used.
    pub(crate) fn complaint(&self) -> Option<String> {
        match *self {
            Self::Sequential { range: 0, .. } => Some("ports: range must be 1 or more".to_owned()),
            Self::Sequential { base, range, .. } if u32::from(base) + u32::from(range) > 65_536 => {
                Some(format!("ports: {base} + {range} exceeds 65536"))
            }
            Self::Sequential { skew, .. } if !(skew > 0.0 && skew.is_finite()) => {
                Some("ports: skew must be above 0".to_owned())
            }
            Self::Random { low, high } if low > high => {
                Some(format!("ports: low {low} is above high {high}"))
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sequential_ports_go_round() {
        let model = PortModel::SEQUENTIAL;
        let mut rng = Rng::new(1);
        assert_eq!(model.port(255, 0, &mut rng), 1_279);
        assert_eq!(model.port(255, 1, &mut rng), 1_024);
        assert_eq!(model.port(0, 513, &mut rng), 1_025);
    }

    #[test]
    fn first_ports_lean_towards_the_base() {
        let mut rng = Rng::new(2);
        let firsts: Vec<u32> = (0..10_000)
            .map(|_| PortModel::SEQUENTIAL.first(&mut rng))
            .collect();
        assert!(firsts.iter().all(|first| *first < 256));
        // The half of u² below 1/4 is √(1/4) of all.
        let low = firsts.iter().filter(|first| **first < 64).count();
        assert!((4_800..5_200).contains(&low), "{low}");
    }

    #[test]
    fn random_ports_are_within_bounds_and_reach_them() {
        let model = PortModel::Random { low: 10, high: 12 };
        let mut rng = Rng::new(3);
        let ports: std::collections::BTreeSet<u16> =
            (0..100).map(|_| model.port(0, 0, &mut rng)).collect();
        assert_eq!(ports.into_iter().collect::<Vec<_>>(), [10, 11, 12]);
    }

    #[test]
    fn what_cannot_be_used_is_said() {
        for (model, word) in [
            (
                PortModel::Sequential {
                    base: 1,
                    range: 0,
                    skew: 1.0,
                },
                "range",
            ),
            (
                PortModel::Sequential {
                    base: 65_535,
                    range: 2,
                    skew: 1.0,
                },
                "65536",
            ),
            (
                PortModel::Sequential {
                    base: 1,
                    range: 2,
                    skew: 0.0,
                },
                "skew",
            ),
            (PortModel::Random { low: 2, high: 1 }, "low"),
        ] {
            assert!(
                model.complaint().is_some_and(|said| said.contains(word)),
                "{model:?}"
            );
        }
        assert_eq!(PortModel::SEQUENTIAL.complaint(), None);
        assert_eq!(PortModel::RANDOM.complaint(), None);
    }
}
