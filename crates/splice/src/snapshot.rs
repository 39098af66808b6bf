//! All counters at one moment, for status pages and metrics.

use core::ops::{Deref, DerefMut};
use std::collections::BTreeMap;

use fairlead_base::{Endpoint, ReasonCounts};

use crate::carried::Carried;
use crate::event::{Admin, End, Offers, ServerState, Unavailable};

fairlead_base::counters! {
    /// The switch's counters since the start, and what it has now.
    pub struct SwitchCounters {
        Counter rx_packets: "packets" { direction = "rx" },
            "Packets received and sent; a super-packet counts as one";
        Counter tx_packets: "packets" { direction = "tx" }, "Packets sent";
        Counter rx_bytes: "bytes" { direction = "rx" },
            "Bytes of packets received and sent, IP headers included";
        Counter tx_bytes: "bytes" { direction = "tx" }, "Bytes of packets sent";
        Counter fast_packets: "fast_packets",
            "Packets forwarded by the fast path alone, in the kernel or in the process";
        Counter fast_bytes: "fast_bytes", "Bytes of packets forwarded by the fast path alone";
        Counter engine_packets: "engine_packets",
            "Packets that the engine (the slow path) handled";
        Counter syns: "syns", "SYNs received for a service";
        Counter syn_acks: "syn_acks", "SYN-ACKs sent to clients";
        Counter accepted: "accepted", "Client connections accepted: the SYN cookie was valid";
        Counter spliced: "spliced", "Client connections spliced to a server";
        Counter given: "given", "Client connections given to a listening socket of this machine";
        Counter woken: "woken",
            "Requests that woke a connection which had outlived its socket";
        Counter sleepers_closed: "sleepers_closed",
            "Connections that ended while they had no socket: by their clients, or by `sleep_max`";
        Counter host_held: "host_held",
            "Packets with requests for a listening socket of this machine that were held because \
             nobody listened; what a client repeats counts again";
        Counter host_held_late: "host_held_late",
            "Those among them for which nobody came to listen in time: their connections were \
             reset";
        Counter cache_bypassed: "cache_bypassed",
            "Connections of routes with a cache that were spliced at once, because the response to \
             their first request had turned out not to be for the cache";
        Counter host_fallbacks: "host_fallbacks",
            "Client connections for a listening socket of this machine that went to the pool of \
             their route instead";
        Counter host_unattended: "host_unattended",
            "Those among them that went there because nobody listened on the socket";
        Counter adopted: "adopted",
            "Connections taken over from the previous run, except those in TIME_WAIT";
        Counter time_wait_evicted: "time_wait_evicted",
            "TIME_WAIT records evicted early because the connection table or the source addresses \
             were exhausted";
        Counter reassembled: "reassembled", "Packets reassembled from IP fragments";
        Counter handed_back: "handed_back",
            "Packets of pool servers without a connection here, handed back to the host's stack";
        Counter retries: "retries", "Further servers tried after a refusal or a timeout";
        Counter probes_sent: "probes", "Probes sent to servers";
        Counter details_lost: "log_details_lost",
            "Connections of which the access log has no request, because `details_bytes` was used \
             up";
        Gauge live: "live", "Spliced connections now, except those in TIME_WAIT";
        Gauge setups: "setups", "Connections being set up now";
        Gauge half_read: "half_read", "Incomplete request heads and ClientHellos now";
        Gauge buffered_bytes: "buffered_bytes", "Bytes of heads buffered now";
        Gauge time_wait: "time_wait", "Connections in TIME_WAIT or reset now";
        Gauge records: "records", "Connection table entries in use now";
        Gauge records_max: "records_max", "Capacity of the connection table";
    }
}

/// Counters since start, and gauges ("now").
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    /// The plain numbers.
    pub counters: SwitchCounters,
    /// Drops and refusals by reason.
    pub drops: ReasonCounts,
    /// Connections ended, by how ([`End::ALL`] order).
    pub ended: Vec<(End, u64)>,
    /// True once no new connections are taken.
    pub draining: bool,
    /// The services.
    pub services: Vec<ServiceSnapshot>,
    /// The pools.
    pub pools: Vec<PoolSnapshot>,
}

// Most readers of a snapshot read its plain numbers.
impl Deref for Snapshot {
    type Target = SwitchCounters;

    fn deref(&self) -> &SwitchCounters {
        &self.counters
    }
}

impl DerefMut for Snapshot {
    fn deref_mut(&mut self) -> &mut SwitchCounters {
        &mut self.counters
    }
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
    /// SYNs denied, by the names of the service's access lists.
    pub denied: Vec<(String, u64)>,
    /// What its connections carried that are over.
    pub carried: Carried,
    /// Decisions by route.
    pub routes: Vec<RouteSnapshot>,
}

/// What later requests are counted by that no route matches.
pub const UNMATCHED: &str = "unmatched";

/// Counters of one route.
#[derive(Clone, Debug, Default)]
pub struct RouteSnapshot {
    /// Its name.
    pub name: String,
    /// Its pool's name.
    pub pool: String,
    /// Connections it decided.
    pub decisions: u64,
    /// Requests it decided, where they are routed one by one.
    pub requests: u64,
    /// Later requests seen on its connections that another pool would have got, by the name of the
    /// route that they would have taken, or [`UNMATCHED`].
    pub later_requests: BTreeMap<String, u64>,
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
    /// What was ordered of it.
    pub admin: Admin,
    /// Whether its health checks pass; `None` without any.
    pub check: Option<bool>,
    /// Why it gets no connections; `None` where it gets some.
    pub unavailable: Option<Unavailable>,
    /// Its weight now, in eighths of the configured unit: less while it starts slowly.
    pub weight_eighths: u32,
    /// It only gets connections while no other server is available.
    pub backup: bool,
    /// How often it was ejected as an outlier.
    pub ejections: u64,
}
