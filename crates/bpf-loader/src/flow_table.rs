//! The kinds of the kernel's flow table, what they are made from and what they count.
//!
//! - `hash`: a hash map with room for all; nothing happens to a connection's keys.
//! - `lru-hash`: a hash map that may be smaller. Keys are evicted in silence; the engine has the
//!   record still, and gives both keys anew with the packet that came to it.
//! - `tcb-cache`: the TCB cache, then the hash map behind it. A line of the cache is believed after
//!   its record was compared with the packet.

use aya::maps::{Array, MapData};
use fairlead_base::Endpoint;
use fairlead_cache::Bits;
use fairlead_cache::index::{Index as _, Universal};
use fairlead_tcp::Line;

use crate::counters::KernelCounters;
use crate::kernel::{Kernel, LoadError};
use crate::layout::{RawSums, RawTcb, RawTcbSet, TCB_BANKS, TCB_PIECES, TCB_WAYS};

/// How the kernel finds the record of a packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FlowTableKind {
    /// The kernel's hash map, with room for every connection.
    #[default]
    Hash,
    /// The kernel's LRU hash map.
    LruHash {
        /// Keys that it holds; a connection has two. 0: as many as all connections have, and the
        /// free ones that the kernel keeps for each processor.
        keys: u32,
    },
    /// The TCB cache in front of the hash map.
    TcbCache(TcbGeometry),
}

/// The shape and the clock of the kernel's TCB cache: two banks of four ways.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TcbGeometry {
    /// Lines of both banks, a power of two from [`TcbGeometry::LINES_MIN`] to
    /// [`TcbGeometry::LINES_MAX`].
    pub lines: u32,
    /// Nanoseconds of a tick; a line is ON for four from its last packet on.
    pub tick_ns: u64,
}

impl TcbGeometry {
    /// One set in each bank.
    pub const LINES_MIN: u32 = (TCB_BANKS * TCB_WAYS) as u32;
    /// As many as there may be connections.
    pub const LINES_MAX: u32 = 1 << 24;
    /// Where nothing is configured: 2 MiB.
    pub const LINES: u32 = 1 << 16;
    /// The paper's quarter of a second.
    pub const TICK_NS: u64 = 250_000_000;

    /// So many lines, and the paper's tick.
    pub fn of_lines(lines: u32) -> Self {
        Self {
            lines,
            tick_ns: Self::TICK_NS,
        }
    }

    /// Sets of one bank.
    pub(crate) fn sets(&self) -> u32 {
        let lines = self.lines.clamp(Self::LINES_MIN, Self::LINES_MAX);
        lines.next_power_of_two() / Self::LINES_MIN
    }
}

/// A line stays ON for so many ticks (paper, section 3.3).
const ON_TICKS: u32 = 4;

impl FlowTableKind {
    /// The word for it in the configuration.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Hash => "hash",
            Self::LruHash { .. } => "lru-hash",
            Self::TcbCache(_) => "tcb-cache",
        }
    }

    /// True where the kernel may have evicted what it was told.
    pub(crate) fn evicts(&self) -> bool {
        matches!(self, Self::LruHash { .. })
    }

    /// Entries of the map of keys for so many connections.
    pub(crate) fn keys(&self, records: u32) -> u32 {
        let all = records.saturating_mul(2);
        match *self {
            Self::LruHash { keys: 0 } => all.saturating_add(free_keys()),
            Self::LruHash { keys } => keys,
            // Behind the index, which has two places for each key: in a full table of 2,097,152
            // keys some 17,600 find their bucket full (buckets of 8, 4 keys each on average). A
            // key without room even here leaves its connection to the engine.
            Self::Hash | Self::TcbCache(_) => (all / BEHIND_INDEX).max(BEHIND_INDEX_MIN),
        }
    }
}

/// The map behind the index has room for one of this number of keys,
const BEHIND_INDEX: u32 = 16;
/// and for these.
const BEHIND_INDEX_MIN: u32 = 1_024;

/// What the kernel takes from an LRU hash map beforehand: 128 free entries a processor
/// (`LOCAL_FREE_TARGET` in kernel/bpf/bpf_lru_list.c), and a batch more for who comes next.
fn free_keys() -> u32 {
    let processors = aya::util::nr_cpus().unwrap_or(64) as u32;
    (processors + 1).saturating_mul(128)
}

fairlead_base::counters! {
    /// What one processor has counted of lookups in the flow table.
    pub struct FlowLookups {
        Counter hits: "flow_table_hits",
            "Packets with a connection in the flow table; with tcb-cache, in a line of the cache";
        Counter misses: "flow_table_misses",
            "Packets with a connection only in the map behind the tcb-cache";
        Counter mismatches: "flow_table_mismatches",
            "Hits on a line of the tcb-cache that belongs to another connection";
        Counter second_hits: "flow_table_second_hits",
            "Hits of the tcb-cache in the set of its second index function";
        Counter migrations: "flow_table_migrations",
            "Lines of the tcb-cache moved into another of their sets";
        Counter evictions: "flow_table_evictions", "Lines of the tcb-cache evicted";
        Counter evicted_on: "flow_table_evicted_on",
            "Lines of the tcb-cache evicted while they were ON";
    }
}

impl FlowLookups {
    /// Of what one processor has counted.
    pub(crate) fn of(counted: &KernelCounters) -> Self {
        // Counted one after the other while packets go on.
        let found = counted.fast_packets + counted.flow_other;
        Self {
            hits: found.saturating_sub(counted.flow_misses),
            misses: counted.flow_misses,
            mismatches: counted.tcb_mismatches,
            second_hits: counted.tcb_second_hits,
            migrations: counted.tcb_migrations,
            evictions: counted.tcb_evictions,
            evicted_on: counted.tcb_evicted_on,
        }
    }
}

/// A line of the kernel's TCB cache as it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TcbLine {
    /// What stands for a session identifier: 0 in an empty line, else its 48 bits under 2⁶² (IPv4),
    /// or a hash of 62 bits under 2⁶³.
    pub tag: u64,
    /// Its last use, nanoseconds after the core's origin; 0 in an empty line.
    pub used_at_ns: u64,
    /// The record that it leads to.
    pub record: Line,
}

impl Kernel {
    /// All lines of the TCB cache, set after set, bank after bank; none without that cache.
    ///
    /// # Errors
    /// When the kernel does not give them.
    pub fn tcb_lines(&self) -> Result<Vec<TcbLine>, LoadError> {
        let Some(map) = self.ebpf.map("fl_tcb_sets") else {
            return Ok(Vec::new());
        };
        let map: Array<&MapData, RawTcbSet> = map.try_into()?;
        let mut lines = Vec::new();
        for number in 0..map.len() {
            let set = map.get(&number, 0)?;
            lines.extend((0..TCB_WAYS).map(|way| TcbLine {
                tag: set.tags[way],
                used_at_ns: set.used_at[way],
                record: Line(set.lines[way]),
            }));
        }
        Ok(lines)
    }
}

/// What the kernel's cache is made from: the universal functions of [`fairlead_cache`] from `seed`.
pub(crate) fn raw_tcb(geometry: &TcbGeometry, listens: &[Endpoint], seed: u64) -> Box<RawTcb> {
    // Every output bit that there is: fewer sets are the low bits of more.
    let family = Universal::new(1 << 31, seed);
    let mut raw = Box::new(RawTcb {
        mask: geometry.sets() - 1,
        on_ticks: ON_TICKS,
        tick_ns: geometry.tick_ns,
        pad: [0; 6],
        chance: seed,
        pad2: [0; 7],
        ports: [0; 1_024],
        first: [[0; 16]; TCB_PIECES],
        second: [[0; 16]; TCB_PIECES],
        tag: [[0; 16]; TCB_PIECES],
    });
    for listen in listens {
        raw.ports[usize::from(listen.port / 64)] |= 1 << (listen.port % 64);
    }
    // Sums are linear: those of a key are those of its pieces, each by itself.
    for piece in 0..TCB_PIECES {
        for value in 0..16 {
            let mut bits = Bits {
                limbs: [0; 3],
                len: 144,
            };
            bits.limbs[piece / 16] = (value as u64) << (piece % 16 * 4);
            // First functions of four banks, then the second ones; here there are two banks.
            let [a, b, spare, spare2, c, d, ..] = family.sets(&bits).map(u64::from);
            let at = |sums: &mut RawSums, sum: u64| sums[piece][value] = sum;
            at(&mut raw.first, a | b << 32);
            at(&mut raw.second, c | d << 32);
            at(&mut raw.tag, spare | spare2 << 31);
        }
    }
    raw
}
