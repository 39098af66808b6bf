//! Every constant of the cost models, with its source. All can be changed: by a TOML file
//! (`--constants FILE`) or by options. Nothing else in this crate knows a latency.
//!
//! "tcb-cache-2010" is the paper of the TCB cache; its own sources are quoted as it quotes them.

use serde::{Deserialize, Serialize};

/// All constants.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Constants {
    /// A TCP offload engine's receive path.
    pub toe: Toe,
    /// A general-purpose processor's receive path.
    pub cpu: Cpu,
    /// Gates of the index functions.
    pub gates: Gates,
    /// Bits that each line carries.
    pub storage: Storage,
}

/// The receive path of a TCP offload engine (tcb-cache-2010, sections 2.1.1 and 4.1).
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Toe {
    /// Protocol work for a packet in order, ns (section 2.1.1: 51.2 ns in a 10 Gbit/s engine).
    pub protocol_ns: f64,
    /// The TCB cache's own latency, paid by every packet, ns (section 2.1.1: 6.4 ns).
    pub hit_ns: f64,
    /// One access to memory, ns (section 2.1.1: assumed 50 ns there).
    pub memory_ns: f64,
    /// Accesses to memory for a miss. Section 2.1.1 counts one and says that the walk through a
    /// hash bucket makes it more than one; how many is not said.
    pub memory_accesses: f64,
}

impl Default for Toe {
    fn default() -> Self {
        Self {
            protocol_ns: 51.2,
            hit_ns: 6.4,
            memory_ns: 50.0,
            memory_accesses: 1.0,
        }
    }
}

/// The receive path on a processor with a TCB cache beside its second-level cache
/// (tcb-cache-2010, table 1, sections 2.1.2 and 4.5).
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Cpu {
    /// Clock, GHz (table 1).
    pub clock_ghz: f64,
    /// One access to memory, cycles (table 1).
    pub memory_cycles: f64,
    /// A hit in the second-level cache, cycles (table 1).
    pub l2_cycles: f64,
    /// A hit in the TCB cache, cycles (table 1).
    pub tcb_cache_cycles: f64,
    /// Cache lines of a TCB that a packet touches in the original system. ASSUMPTION: the paper
    /// says "multiple" (section 4.5), and that about 64 of 512 bytes are hot (section 3.1).
    pub tcb_lines: f64,
    /// Records visited in a hash bucket until the TCB is found. ASSUMPTION: the paper says that
    /// the walk is prone to misses (section 4.5), not how long it is.
    pub bucket_steps: f64,
    /// Share of those accesses that miss the second-level cache in the original system.
    /// ASSUMPTION: 1 makes every saving an upper bound.
    pub original_miss_ratio: f64,
    /// Accesses to memory for a miss of the TCB cache, beside the walk. The hot 64 bytes are one
    /// line (section 3.1).
    pub fill_lines: f64,
    /// Cycles that receiving a request takes beside its TCB. NOT PUBLISHED as a number (figure 2
    /// is drawn). Without it the model gives saved cycles, and the value at which the published
    /// saving would come out.
    pub other_cycles: Option<f64>,
    /// Cycles of a whole response beside its TCB. NOT PUBLISHED as a number (figure 19 is drawn).
    pub response_other_cycles: Option<f64>,
}

impl Default for Cpu {
    fn default() -> Self {
        Self {
            clock_ghz: 3.0,
            memory_cycles: 300.0,
            l2_cycles: 10.0,
            tcb_cache_cycles: 10.0,
            tcb_lines: 3.0,
            bucket_steps: 1.0,
            original_miss_ratio: 1.0,
            fill_lines: 1.0,
            other_cycles: None,
            response_other_cycles: None,
        }
    }
}

/// Gates of a universal hash (tcb-cache-2010, sections 3.2 and 4.3).
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Gates {
    /// Delay of one gate, ps (section 3.2: about 10 ps in a 60 nm process).
    pub gate_ps: f64,
}

impl Default for Gates {
    fn default() -> Self {
        Self { gate_ps: 10.0 }
    }
}

/// Bits that a line carries beside its payload (tcb-cache-2010, section 3.1).
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Storage {
    /// The tag: the whole session identifier of IPv4, address and port (section 3.1).
    pub tag_bits: u32,
    /// Where the TCB is in memory (section 3.1: 4 bytes).
    pub pointer_bits: u32,
    /// Whether the line holds anything.
    pub valid_bits: u32,
}

impl Default for Storage {
    fn default() -> Self {
        Self {
            tag_bits: 48,
            pointer_bits: 32,
            valid_bits: 1,
        }
    }
}
