//! All counters at one moment, for status pages and metrics.

use fairlead_base::{Endpoint, ReasonCounts};

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
    /// Further servers tried after a refusal or silence.
    pub retries: u64,
    /// Probes sent to servers.
    pub probes_sent: u64,
    /// Now: spliced connections, TIME_WAIT not counted.
    pub live: u64,
    /// Now: connections being set up.
    pub setups: u64,
    /// Now: heads not yet whole.
    pub half_read: u64,
    /// Now: bytes held in heads.
    pub buffered_bytes: u64,
    /// Now: records in TIME_WAIT.
    pub time_wait: u64,
    /// Now: records in use, of any state.
    pub records: u64,
    /// Records that fit.
    pub records_max: u64,
    /// Connections ended, by how ([`End::ALL`] order).
    pub ended: Vec<(End, u64)>,
    /// True once no new connections are taken.
    pub draining: bool,
    /// The services.
    pub services: Vec<ServiceSnapshot>,
    /// The pools.
    pub pools: Vec<PoolSnapshot>,
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
    /// Connections made to it.
    pub total: u64,
    /// Connections it refused or left unanswered.
    pub failures: u64,
    /// What is known of it.
    pub state: ServerState,
    /// What it honours, once it has answered.
    pub offers: Option<Offers>,
}
