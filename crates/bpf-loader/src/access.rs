//! The access lists that the program asks at SYNs.

use std::collections::BTreeSet;

use aya::maps::lpm_trie::{Key, LpmTrie};
use aya::maps::{HashMap, MapData, MapError, PerCpuArray};
use fairlead_base::{Address, Endpoint};

use crate::kernel::{FlowTable, Kernel, LoadError};
use crate::layout::{ACCESS_LISTS, RawAccessPrefix, RawAccessRule};

/// A prefix of an access list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AccessPrefix {
    /// Number of the list.
    pub list: u32,
    /// The first address.
    pub first: Address,
    /// Bits of the prefix, counted in its family.
    pub bits: u8,
    /// True if its addresses may connect.
    pub allow: bool,
}

/// The lists of a listening endpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AccessRule {
    /// Index of the listening endpoint, as records name it.
    pub index: u16,
    /// The endpoint.
    pub listen: Endpoint,
    /// Numbers of the lists, each with its default; eight at most.
    pub lists: Vec<(u32, bool)>,
    /// Place of the first list among the counters of [`Kernel::access_denied`]; the others follow.
    pub counter: u32,
    /// True if a client that is denied gets a RST, which the engine sends.
    pub reset: bool,
}

/// `FL_ACCESS_COUNTERS`
const COUNTERS_MAX: usize = 2_048;

impl Kernel {
    /// Has SYNs compared with these lists, from the next offer to an endpoint on. To be called
    /// once, before the program is attached. Without it there are no lists.
    ///
    /// # Errors
    /// When the kernel does not take them.
    pub fn set_access(
        &mut self,
        table: &mut FlowTable,
        prefixes: impl Iterator<Item = AccessPrefix>,
        rules: &[AccessRule],
    ) -> Result<(), LoadError> {
        let missing = LoadError::Missing("fl_access");
        let map = self.ebpf.map_mut("fl_access").ok_or(missing)?;
        let mut map: LpmTrie<&mut MapData, RawAccessPrefix, u32> = map.try_into()?;
        for prefix in prefixes {
            map.insert(&key_of(&prefix), u32::from(prefix.allow), 0)?;
        }
        let missing = LoadError::Missing("fl_access_rules");
        let map = self.ebpf.map_mut("fl_access_rules").ok_or(missing)?;
        let mut map: HashMap<&mut MapData, u32, RawAccessRule> = map.try_into()?;
        for rule in rules {
            map.insert(u32::from(rule.index), raw_rule(rule), 0)?;
        }
        let listens: BTreeSet<Endpoint> = rules.iter().map(|rule| rule.listen).collect();
        Ok(table.set_listed(listens)?)
    }

    /// The prefixes, to change them while the program asks them. To be called once, after
    /// [`Self::set_access`].
    pub fn take_access(&mut self) -> Option<AccessPrefixes> {
        let map = self.ebpf.take_map("fl_access")?;
        let map = LpmTrie::try_from(map).ok()?;
        Some(AccessPrefixes { map })
    }

    /// SYNs that the program denied, by list of each service: see [`AccessRule::counter`].
    ///
    /// # Errors
    /// When the kernel does not give the counters.
    pub fn access_denied(&self, count: usize) -> Result<Vec<u64>, LoadError> {
        let missing = LoadError::Missing("fl_access_denied");
        let map = self.ebpf.map("fl_access_denied").ok_or(missing)?;
        let map: PerCpuArray<&MapData, u64> = map.try_into()?;
        let places = 0..count.min(COUNTERS_MAX) as u32;
        let counted = places.map(|at| Ok(map.get(&at, 0)?.iter().sum()));
        counted.collect()
    }
}

/// The prefixes of all lists in the kernel.
#[derive(Debug)]
pub struct AccessPrefixes {
    map: LpmTrie<MapData, RawAccessPrefix, u32>,
}

impl AccessPrefixes {
    /// Puts a prefix in, or gives it another verdict.
    ///
    /// # Errors
    /// When the kernel does not take it.
    pub fn set(&mut self, prefix: &AccessPrefix) -> Result<(), LoadError> {
        Ok(self
            .map
            .insert(&key_of(prefix), u32::from(prefix.allow), 0)?)
    }

    /// Takes a prefix out; one that is not there is no error.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn remove(&mut self, prefix: &AccessPrefix) -> Result<(), LoadError> {
        match self.map.remove(&key_of(prefix)) {
            Err(MapError::KeyNotFound) => Ok(()),
            Err(MapError::SyscallError(error))
                if error.io_error.kind() == std::io::ErrorKind::NotFound =>
            {
                Ok(())
            }
            outcome => Ok(outcome?),
        }
    }
}

fn key_of(prefix: &AccessPrefix) -> Key<RawAccessPrefix> {
    let mut address = [0; 16];
    let v4 = prefix.first.is_v4();
    match v4 {
        true => address[..4].copy_from_slice(&prefix.first.v4_octets()),
        false => address = prefix.first.0,
    }
    let list = prefix.list << 1 | u32::from(v4);
    Key::new(
        u32::BITS + u32::from(prefix.bits),
        RawAccessPrefix { list, address },
    )
}

fn raw_rule(rule: &AccessRule) -> RawAccessRule {
    let mut raw = RawAccessRule {
        count: rule.lists.len().min(ACCESS_LISTS) as u32,
        reset: u32::from(rule.reset),
        counter: rule.counter,
        ..RawAccessRule::default()
    };
    for (at, (list, allow)) in rule.lists.iter().take(ACCESS_LISTS).enumerate() {
        raw.lists[at] = *list;
        raw.allow |= u32::from(*allow) << at;
    }
    raw
}
