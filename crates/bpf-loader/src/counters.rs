//! What the kernel program counted, summed over CPUs.

use aya::maps::{MapData, MapError, PerCpuArray};

/// Counters of the kernel program since it was loaded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Packets translated and sent on without user space.
    pub fast_packets: u64,
    /// Their bytes, link headers not counted.
    pub fast_bytes: u64,
    /// SYNs answered.
    pub syns: u64,
    /// SYN-ACKs sent.
    pub syn_acks: u64,
    /// Last ACKs of handshakes that ended in the kernel.
    pub acks_swallowed: u64,
    /// Packets of connections and services that were left to the engine.
    pub to_engine: u64,
    /// Of them: packets for which the kernel knew no route or no neighbour.
    pub no_neighbour: u64,
    /// Packets of others, passed on untouched.
    pub not_ours: u64,
}

impl Counters {
    pub(crate) fn read(map: &PerCpuArray<MapData, u64>) -> Result<Self, MapError> {
        let sum = |index: u32| -> Result<u64, MapError> { Ok(map.get(&index, 0)?.iter().sum()) };
        Ok(Self {
            fast_packets: sum(0)?,
            fast_bytes: sum(1)?,
            syns: sum(2)?,
            syn_acks: sum(3)?,
            acks_swallowed: sum(4)?,
            to_engine: sum(5)?,
            no_neighbour: sum(6)?,
            not_ours: sum(7)?,
        })
    }
}
