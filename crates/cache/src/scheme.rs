//! Schemes: the names of the paper's figures, resolved to index, banks, policy and parameters.

use core::fmt;
use std::collections::BTreeSet;

use thiserror::Error;

use crate::geometry::{Geometry, GeometryError};
use crate::index::{self, Indexer};
use crate::key::{Mask, MaskError};
use crate::lifetime::{Lifetime, LifetimeError};
use crate::policy::Parameters;
use crate::registry::{self, UnknownPolicy};

/// A cache design without its size.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scheme {
    /// Its name, without overrides.
    pub name: String,
    /// The index family's name.
    pub index: String,
    /// The index bits.
    pub mask: Mask,
    /// Banks, each with a function of its own.
    pub banks: u32,
    /// The policy's name.
    pub policy: String,
    /// What can be set about the policy.
    pub parameters: Parameters,
}

/// A scheme that cannot be read or built.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum SchemeError {
    /// No scheme has this name.
    #[error("unknown scheme `{name}`; available: {}", all_names())]
    Unknown {
        /// What was asked for.
        name: String,
    },
    /// An invalid override.
    #[error(
        "`{text}` is not a setting of a scheme: write index=, bits=, banks=, policy=, on_ticks= or \
         stamp_bits=, as in `spec,index=crc,on_ticks=8`"
    )]
    Setting {
        /// What was written.
        text: String,
    },
    /// A setting that is written more than once.
    #[error("{setting} is there twice; write it once")]
    Twice {
        /// Its name.
        setting: String,
    },
    /// An unknown index family.
    #[error("unknown index `{name}`; available: {}", index_names())]
    UnknownIndex {
        /// What was asked for.
        name: String,
    },
    /// Stamps of more or fewer bits than can be.
    #[error("stamps have 1 to 31 bits, not {0}")]
    StampBits(u32),
    /// A geometry with another number of banks than the scheme.
    #[error(
        "scheme `{name}` has {banks} banks, the geometry {given}: write banks={given} or {banks}"
    )]
    Banks {
        /// The scheme.
        name: String,
        /// Its banks.
        banks: u32,
        /// The geometry's.
        given: u32,
    },
    /// No policy has this name.
    #[error(transparent)]
    Policy(#[from] UnknownPolicy),
    /// Index bits that cannot be read.
    #[error(transparent)]
    Mask(#[from] MaskError),
    /// An ON time that is too long.
    #[error(transparent)]
    Lifetime(#[from] LifetimeError),
    /// An invalid geometry.
    #[error(transparent)]
    Geometry(#[from] GeometryError),
}

fn all_names() -> String {
    let names: Vec<_> = NAMED.iter().map(|(name, ..)| *name).collect();
    names.join(" ")
}

fn index_names() -> String {
    let names: Vec<_> = index::INDEXES.iter().map(|entry| entry.name).collect();
    names.join(" ")
}

/// Name, index, banks, policy, one line of explanation.
type Named = (&'static str, &'static str, u32, &'static str, &'static str);

/// The paper's schemes (Figs. 4, 12 and 14), then the challengers on the paper's best index.
const NAMED: &[Named] = &[
    (
        "mod",
        "mod",
        1,
        "lru",
        "modulo, one bank: the paper's TCB(Mod)",
    ),
    ("xor", "xor", 1, "lru", "XOR folding, one bank"),
    ("pmod", "pmod", 1, "lru", "modulo a prime, one bank"),
    ("pdisp", "pdisp", 1, "lru", "prime displacement, one bank"),
    ("crc", "crc", 1, "lru", "CRC-32C, one bank"),
    ("universal", "h3", 1, "lru", "universal hash, one bank"),
    (
        "2-xor",
        "xor",
        2,
        "enru",
        "XOR folding, skewed over two banks",
    ),
    (
        "2-pdisp",
        "pdisp",
        2,
        "enru",
        "prime displacement, two banks",
    ),
    (
        "2-universal",
        "h3",
        2,
        "enru",
        "universal hash, two banks: the paper's TCB(2-hash)",
    ),
    (
        "4-xor",
        "xor",
        4,
        "enru",
        "XOR folding, skewed over four banks",
    ),
    (
        "4-pdisp",
        "pdisp",
        4,
        "enru",
        "prime displacement, four banks",
    ),
    ("4-universal", "h3", 4, "enru", "universal hash, four banks"),
    (
        "2-lru",
        "h3",
        2,
        "lru",
        "universal hash, two banks, exact LRU over both",
    ),
    (
        "no-migrate",
        "h3",
        2,
        "no-migrate",
        "ON lines balanced: the paper's TCB(no-migrate)",
    ),
    (
        "spec",
        "h3",
        2,
        "spec",
        "ON lines balanced and moved: the paper's TCB(spec)",
    ),
    (
        "rr",
        "h3",
        2,
        "rr",
        "universal hash, banks in turn: the paper's TCB(RR)",
    ),
    (
        "timestamp16",
        "h3",
        2,
        "timestamp",
        "LRU by 16-bit stamps: the paper's TCB(16)",
    ),
    (
        "access",
        "h3",
        2,
        "access",
        "set with fewer accesses: the paper's TCB(Access)",
    ),
    (
        "random",
        "h3",
        2,
        "random",
        "challenger: any candidate line",
    ),
    ("clock", "h3", 2, "clock", "challenger: CLOCK"),
    ("sieve", "h3", 2, "sieve", "challenger: SIEVE"),
    ("s3-fifo", "h3", 2, "s3-fifo", "challenger: S3-FIFO"),
    (
        "drrip",
        "h3",
        2,
        "drrip",
        "challenger: DRRIP with set dueling",
    ),
    (
        "tide",
        "h3",
        2,
        "tide",
        "our own: the order of leaving learned by age, lines moved",
    ),
];

impl Scheme {
    /// All names, each with a line of explanation.
    pub fn all() -> impl Iterator<Item = (&'static str, &'static str)> {
        NAMED.iter().map(|(name, .., help)| (*name, *help))
    }

    /// Reads `name`, or `name,setting=value,…` with settings `index`, `bits` (see [`Mask`]),
    /// `banks`, `policy`, `on_ticks` and `stamp_bits`.
    ///
    /// # Errors
    /// Unknown names and settings; the error lists the available ones.
    pub fn parse(text: &str) -> Result<Self, SchemeError> {
        let mut parts = text.split(',').map(str::trim);
        let name = parts.next().unwrap_or_default();
        let found = NAMED.iter().find(|(known, ..)| *known == name);
        let Some((name, index, banks, policy, _)) = found else {
            return Err(SchemeError::Unknown {
                name: name.to_owned(),
            });
        };
        let mut scheme = Self {
            name: (*name).to_owned(),
            index: (*index).to_owned(),
            mask: Mask::ALL,
            banks: *banks,
            policy: (*policy).to_owned(),
            parameters: Parameters::default(),
        };
        let mut given = BTreeSet::new();
        for part in parts {
            // Otherwise the last one would win silently.
            let setting = part.split('=').next().unwrap_or_default();
            if !given.insert(setting) {
                return Err(SchemeError::Twice {
                    setting: setting.to_owned(),
                });
            }
            scheme.set(part)?;
        }
        scheme.check()?;
        Ok(scheme)
    }

    /// Overrides one `setting=value`.
    ///
    /// # Errors
    /// Unknown settings, and invalid values.
    pub fn set(&mut self, text: &str) -> Result<(), SchemeError> {
        let error = || SchemeError::Setting {
            text: text.to_owned(),
        };
        let (setting, value) = text.split_once('=').ok_or_else(error)?;
        let number = || value.parse::<u32>().map_err(|_| error());
        match setting {
            "index" => self.index = value.to_owned(),
            "bits" => self.mask = value.parse()?,
            "banks" => self.banks = number()?,
            "policy" => self.policy = value.to_owned(),
            "on_ticks" if value == "always" => self.parameters.lifetime = Lifetime::ALWAYS,
            "on_ticks" => self.parameters.lifetime = Lifetime::new(number()?)?,
            "stamp_bits" => self.parameters.stamp_bits = number()?,
            _ => return Err(error()),
        }
        self.check()
    }

    /// Sees that index, policy and parameters can be.
    ///
    /// # Errors
    /// When they cannot.
    pub fn check(&self) -> Result<(), SchemeError> {
        if index::entry(&self.index).is_none() {
            return Err(SchemeError::UnknownIndex {
                name: self.index.clone(),
            });
        }
        if registry::entry(&self.policy).is_none() {
            return Err(UnknownPolicy {
                name: self.policy.clone(),
            }
            .into());
        }
        match self.parameters.stamp_bits {
            1..=31 => Ok(()),
            bits => Err(SchemeError::StampBits(bits)),
        }
    }

    /// A geometry with the scheme's banks; `ways` are those of one bank.
    ///
    /// # Errors
    /// As [`Geometry::new`].
    pub fn geometry(
        &self,
        capacity_bytes: u64,
        line_bytes: u32,
        ways: u32,
    ) -> Result<Geometry, SchemeError> {
        Ok(Geometry::new(capacity_bytes, line_bytes, self.banks, ways)?)
    }

    /// The index functions for a geometry. Policies draw from the same seed, but not the same
    /// numbers.
    ///
    /// # Errors
    /// The geometry has another number of banks, or the index is unknown.
    pub fn indexer(&self, geometry: &Geometry, seed: u64) -> Result<Indexer, SchemeError> {
        self.check_banks(geometry)?;
        let entry = index::entry(&self.index).ok_or_else(|| SchemeError::UnknownIndex {
            name: self.index.clone(),
        })?;
        Ok(Indexer::new(entry, self.mask, geometry, seed))
    }

    pub(crate) fn check_banks(&self, geometry: &Geometry) -> Result<(), SchemeError> {
        if geometry.banks() == self.banks {
            return Ok(());
        }
        Err(SchemeError::Banks {
            name: self.name.clone(),
            banks: self.banks,
            given: geometry.banks(),
        })
    }
}

impl fmt::Display for Scheme {
    /// Name and all overrides, in the form read by [`Scheme::parse`].
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)?;
        let plain = Self::parse(&self.name).ok();
        let plain = plain.as_ref();
        if plain.is_none_or(|plain| plain.index != self.index) {
            write!(f, ",index={}", self.index)?;
        }
        if self.mask != Mask::ALL {
            write!(f, ",bits={}", self.mask)?;
        }
        if plain.is_none_or(|plain| plain.banks != self.banks) {
            write!(f, ",banks={}", self.banks)?;
        }
        if plain.is_none_or(|plain| plain.policy != self.policy) {
            write!(f, ",policy={}", self.policy)?;
        }
        let Parameters {
            lifetime,
            stamp_bits,
        } = self.parameters;
        if lifetime == Lifetime::ALWAYS {
            f.write_str(",on_ticks=always")?;
        } else if lifetime != Lifetime::default() {
            write!(f, ",on_ticks={}", lifetime.on_ticks())?;
        }
        if stamp_bits != Parameters::default().stamp_bits {
            write!(f, ",stamp_bits={stamp_bits}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn schemes_are_written_as_they_are_read() {
        for (name, help) in Scheme::all() {
            let scheme = Scheme::parse(name).unwrap();
            assert_eq!(scheme.to_string(), name);
            assert!(!help.is_empty());
        }
        let text = "spec,index=crc,bits=16,on_ticks=8";
        let scheme = Scheme::parse(text).unwrap();
        assert_eq!(scheme.to_string(), text);
        assert_eq!(scheme.mask, Mask::PAPER);
    }

    #[test]
    fn what_is_not_known_is_said_with_what_is() {
        let said = |text: &str| Scheme::parse(text).unwrap_err().to_string();
        assert!(said("speck").contains("2-universal"));
        assert!(said("spec,policy=x").contains("enru"));
        assert!(said("spec,index=x").contains("pdisp"));
        assert!(said("spec,colour=x").contains("on_ticks="));
        assert!(said("spec,bits=99").contains("1 to 40"));
        assert!(said("spec,on_ticks=9999").contains("4096"));
        assert!(said("spec,stamp_bits=0").contains("1 to 31"));
        assert!(said("").contains("spec"));
        for twice in ["spec,on_ticks=4,on_ticks=8", "mod,policy=clock, policy=lru"] {
            assert!(said(twice).contains("is there twice"), "{twice}");
        }
        let mod_scheme = Scheme::parse("mod").unwrap();
        let error = mod_scheme.indexer(&Geometry::paper(), 0).unwrap_err();
        assert!(error.to_string().contains("banks"));
    }
}
