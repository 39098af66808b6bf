//! What the kernel program counted, summed over CPUs.

use core::ops::{Deref, DerefMut};
use std::collections::BTreeMap;

use aya::maps::{MapData, MapError, PerCpuArray};
use fairlead_base::{CounterSet as _, DropReason, ReasonCounts};

use crate::flow_table::FlowLookups;
use crate::layout::DROPS;

include!(concat!(env!("OUT_DIR"), "/counters.rs"));

/// Counters of the kernel program since it was loaded.
#[derive(Clone, Debug, Default)]
pub struct Counters {
    /// The plain numbers.
    pub kernel: KernelCounters,
    /// Packets that ended in the kernel, by reason.
    pub drops: ReasonCounts,
    /// Look-ups in the flow table, by processor.
    pub lookups: Vec<FlowLookups>,
    /// Keys that the kernel's flow table had evicted and was told anew (`lru-hash`).
    pub keys_anew: u64,
    /// Bytes that the kernel has set aside for each map, by its name; 0 where it does not say.
    pub map_bytes: BTreeMap<String, u64>,
}

impl Deref for Counters {
    type Target = KernelCounters;

    fn deref(&self) -> &KernelCounters {
        &self.kernel
    }
}

impl DerefMut for Counters {
    fn deref_mut(&mut self) -> &mut KernelCounters {
        &mut self.kernel
    }
}

impl Counters {
    pub(crate) fn read(map: &PerCpuArray<MapData, u64>) -> Result<Self, MapError> {
        let sum = |index: u32| -> Result<u64, MapError> { Ok(map.get(&index, 0)?.iter().sum()) };
        let mut drops = ReasonCounts::default();
        for &reason in DropReason::ALL {
            drops.add_many(reason, sum(DROPS + reason as u32)?);
        }
        let mut kernel = KernelCounters::default();
        let mut by_cpu = Vec::new();
        for place in 0..KernelCounters::TABLE.len() {
            let values = map.get(&(place as u32), 0)?;
            by_cpu.resize(values.len(), KernelCounters::default());
            for (cpu, value) in by_cpu.iter_mut().zip(values.iter()) {
                *cpu.value_mut(place) = *value;
                *kernel.value_mut(place) += value;
            }
        }
        Ok(Self {
            kernel,
            drops,
            lookups: by_cpu.iter().map(FlowLookups::of).collect(),
            keys_anew: 0,
            map_bytes: BTreeMap::new(),
        })
    }

    /// Adds what another program has counted of the same.
    pub(crate) fn add_kernel(&mut self, other: &Self) {
        for place in 0..KernelCounters::TABLE.len() {
            *self.kernel.value_mut(place) += other.kernel.value(place);
        }
    }

    /// What was counted since `earlier`.
    #[must_use]
    pub(crate) fn since(&self, earlier: &Self) -> Self {
        let mut drops = ReasonCounts::default();
        for &reason in DropReason::ALL {
            let since = self
                .drops
                .of(reason)
                .saturating_sub(earlier.drops.of(reason));
            drops.add_many(reason, since);
        }
        let lookups = self.lookups.iter().enumerate();
        let lookups = lookups.map(|(cpu, now)| match earlier.lookups.get(cpu) {
            Some(then) => now.since(then),
            None => *now,
        });
        Self {
            kernel: self.kernel.since(&earlier.kernel),
            drops,
            lookups: lookups.collect(),
            keys_anew: self.keys_anew.saturating_sub(earlier.keys_anew),
            map_bytes: self.map_bytes.clone(),
        }
    }
}
