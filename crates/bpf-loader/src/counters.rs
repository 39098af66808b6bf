//! What the kernel program counted, summed over CPUs.

use aya::maps::{MapData, MapError, PerCpuArray};
use fairlead_base::{DropReason, ReasonCounts};

use crate::flow_table::FlowLookups;
use crate::layout::counter;

/// Counters of the kernel program since it was loaded.
#[derive(Clone, Debug, Default)]
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
    /// Of them: packets of connections that could not be sent: no route or neighbour was known,
    /// they were too long for the way, or their interface takes nothing from XDP.
    pub no_neighbour: u64,
    /// Packets of others, passed on untouched.
    pub not_ours: u64,
    /// Of the fast packets: with a FIN.
    pub fins: u64,
    /// Of the fast packets: with a RST that ended its connection.
    pub resets: u64,
    /// Connections joined to their servers, by the server's SYN-ACK alone.
    pub joins: u64,
    /// Connections begun: their servers were sent a SYN, for the clients' first bytes alone.
    pub begun: u64,
    /// Bytes of the packets that were not translated and ended in the kernel (SYNs, last ACKs of
    /// handshakes, SYN-ACKs of servers, what is dropped), link headers not counted.
    pub ended_bytes: u64,
    /// Bytes of what was made in their place: SYN-ACKs, and clients' first bytes to servers.
    pub made_bytes: u64,
    /// Packets that ended in the kernel, by reason.
    pub drops: ReasonCounts,
    /// Look-ups in the flow table, by processor.
    pub lookups: Vec<FlowLookups>,
    /// Keys that the kernel's flow table had evicted and was told anew (`lru-hash`).
    pub keys_anew: u64,
}

impl Counters {
    pub(crate) fn read(map: &PerCpuArray<MapData, u64>) -> Result<Self, MapError> {
        let sum = |index: u32| -> Result<u64, MapError> { Ok(map.get(&index, 0)?.iter().sum()) };
        let mut drops = ReasonCounts::default();
        for &reason in DropReason::ALL {
            drops.add_many(reason, sum(counter::DROPS + reason as u32)?);
        }
        Ok(Self {
            fast_packets: sum(counter::FAST_PACKETS)?,
            fast_bytes: sum(counter::FAST_BYTES)?,
            syns: sum(counter::SYNS)?,
            syn_acks: sum(counter::SYN_ACKS)?,
            acks_swallowed: sum(counter::ACKS_SWALLOWED)?,
            to_engine: sum(counter::TO_ENGINE)?,
            no_neighbour: sum(counter::NO_NEIGHBOUR)?,
            not_ours: sum(counter::NOT_OURS)?,
            fins: sum(counter::FINS)?,
            resets: sum(counter::RESETS)?,
            joins: sum(counter::JOINS)?,
            begun: sum(counter::BEGUN)?,
            ended_bytes: sum(counter::ENDED_BYTES)?,
            made_bytes: sum(counter::MADE_BYTES)?,
            drops,
            lookups: FlowLookups::read(map)?,
            keys_anew: 0,
        })
    }

    /// What was counted since `earlier`.
    #[must_use]
    pub(crate) fn since(&self, earlier: &Self) -> Self {
        let less = |now: u64, then: u64| now.saturating_sub(then);
        let mut drops = ReasonCounts::default();
        for &reason in DropReason::ALL {
            drops.add_many(
                reason,
                less(self.drops.of(reason), earlier.drops.of(reason)),
            );
        }
        let lookups = self.lookups.iter().enumerate();
        let lookups = lookups.map(|(cpu, now)| match earlier.lookups.get(cpu) {
            Some(then) => now.since(then),
            None => *now,
        });
        Self {
            fast_packets: less(self.fast_packets, earlier.fast_packets),
            fast_bytes: less(self.fast_bytes, earlier.fast_bytes),
            syns: less(self.syns, earlier.syns),
            syn_acks: less(self.syn_acks, earlier.syn_acks),
            acks_swallowed: less(self.acks_swallowed, earlier.acks_swallowed),
            to_engine: less(self.to_engine, earlier.to_engine),
            no_neighbour: less(self.no_neighbour, earlier.no_neighbour),
            not_ours: less(self.not_ours, earlier.not_ours),
            fins: less(self.fins, earlier.fins),
            resets: less(self.resets, earlier.resets),
            joins: less(self.joins, earlier.joins),
            begun: less(self.begun, earlier.begun),
            ended_bytes: less(self.ended_bytes, earlier.ended_bytes),
            made_bytes: less(self.made_bytes, earlier.made_bytes),
            drops,
            lookups: lookups.collect(),
            keys_anew: less(self.keys_anew, earlier.keys_anew),
        }
    }
}
