//! All counters at one moment, for status pages and metrics.

use fairlead_base::{Endpoint, ReasonCounts};

use crate::carried::Carried;
use crate::event::{End, Offers, ServerState};

/// Counters since start, and gauges ("now").
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    /// Drops and refusals by reason.
    pub drops: ReasonCounts,
    /// Packets that came in (a super-packet is one).
    pub rx_packets: u64,
    /// Bytes that came in, IP headers included.
    pub rx_bytes: u64,
    /// Packets that went out.
    pub tx_packets: u64,
    /// Bytes that went out, IP headers included.
    pub tx_bytes: u64,
    /// Packets translated by the fast path alone.
    pub fast_packets: u64,
    /// Their bytes.
    pub fast_bytes: u64,
    /// Packets that the engine looked at.
    pub engine_packets: u64,
    /// SYNs for a service.
    pub syns: u64,
    /// SYN-ACKs sent to clients.
    pub syn_acks: u64,
    /// Connections whose cookie was accepted and of which a record was made.
    pub accepted: u64,
    /// Connections spliced.
    pub spliced: u64,
    /// Connections taken over from an earlier run, those at rest not included.
    pub adopted: u64,
    /// Records in TIME_WAIT or after a RST that were given up for newcomers, as the table was full,
    /// or all sources towards a server were taken.
    pub rests_cut_short: u64,
    /// Packets that came in fragments and were put together.
    pub reassembled: u64,
    /// Packets from servers that belong to no connection of the switch, passed on as they were.
    pub handed_back: u64,
    /// Further servers tried after a refusal or silence.
    pub retries: u64,
    /// Probes sent to servers.
    pub probes_sent: u64,
    /// Now: spliced connections, those at rest not counted.
    pub live: u64,
    /// Now: connections being set up.
    pub setups: u64,
    /// Now: heads not yet whole.
    pub half_read: u64,
    /// Now: bytes held in heads.
    pub buffered_bytes: u64,
    /// Now: records at rest, in TIME_WAIT or after a RST.
    pub time_wait: u64,
    /// Now: records in use, of any state.
    pub records: u64,
    /// Records that fit.
    pub records_max: u64,
    /// Connections ended, by how ([`End::ALL`] order).
    pub ended: Vec<(End, u64)>,
    /// True once no new connections are taken.
    pub draining: bool,
    /// The TCB cache, where there is one.
    pub tcb_cache: Option<TcbCacheSnapshot>,
    /// The services.
    pub services: Vec<ServiceSnapshot>,
    /// The pools.
    pub pools: Vec<PoolSnapshot>,
}

/// Counters of the TCB cache, and what it holds now.
#[derive(Clone, Debug, Default)]
pub struct TcbCacheSnapshot {
    /// Its scheme: name, and what differs from what the name stands for.
    pub scheme: String,
    /// Bytes of its lines, 64 each.
    pub capacity_bytes: u64,
    /// Its lines.
    pub lines: u64,
    /// Its sets, in all banks.
    pub sets: u64,
    /// Lines of each set.
    pub ways: u64,
    /// Look-ups for connections on record.
    pub accesses: u64,
    /// Session identifiers that were there.
    pub hits: u64,
    /// Hits of all accesses, 0 to 1; 0 before the first.
    pub hit_ratio: f64,
    /// Session identifiers that were not there.
    pub misses: u64,
    /// Look-ups for connections that are not on record; not among the accesses.
    pub strangers: u64,
    /// Hits that led to another connection of the same client, so that the table was asked.
    pub mismatches: u64,
    /// Lines moved into another of their sets.
    pub migrations: u64,
    /// Hits in a set of a second function.
    pub second_lookup_hits: u64,
    /// Newcomers that were not given a line.
    pub bypasses: u64,
    /// Lines given up for others.
    pub evictions: u64,
    /// Of these, lines that were ON.
    pub evicted_on: u64,
    /// Now: ON lines.
    pub on_lines: u64,
    /// Now: lines in use.
    pub occupied: u64,
    /// Now: lines in use in the emptiest set.
    pub occupancy_min: u64,
    /// Now: lines in use in the mean of all sets.
    pub occupancy_mean: f64,
    /// Now: lines in use in the fullest set.
    pub occupancy_max: u64,
    /// Now: how many sets have none, one, … all of their lines in use.
    pub sets_by_occupancy: Vec<u64>,
}

/// Counters of one service.
#[derive(Clone, Debug, Default)]
pub struct ServiceSnapshot {
    /// Its name.
    pub name: String,
    /// Connections whose cookie was accepted.
    pub accepted: u64,
    /// Clients turned away.
    pub refused: u64,
    /// What its connections carried that are over.
    pub carried: Carried,
    /// Decisions by route.
    pub routes: Vec<RouteSnapshot>,
}

/// Counters of one route.
#[derive(Clone, Debug, Default)]
pub struct RouteSnapshot {
    /// Its name.
    pub name: String,
    /// Its pool's name.
    pub pool: String,
    /// Connections it decided.
    pub decisions: u64,
}

/// Counters of one pool.
#[derive(Clone, Debug, Default)]
pub struct PoolSnapshot {
    /// Its name.
    pub name: String,
    /// Its servers.
    pub servers: Vec<ServerSnapshot>,
}

/// Counters of one server.
#[derive(Clone, Debug)]
pub struct ServerSnapshot {
    /// Where it listens.
    pub endpoint: Endpoint,
    /// Its weight.
    pub weight: u16,
    /// Now: connections to it.
    pub active: u32,
    /// Connections begun to it, those that it did not take included.
    pub total: u64,
    /// Connections and probes that it refused or left unanswered.
    pub failures: u64,
    /// What connections to it carried that are over.
    pub carried: Carried,
    /// What is known of it.
    pub state: ServerState,
    /// What it honours, once it has answered.
    pub offers: Option<Offers>,
}
