//! The engine's counters.

use fairlead_base::ReasonCounts;

use crate::carried::Carried;
use crate::config::Config;
use crate::event::End;

/// Counters since start; `live` and `resting` are gauges.
#[derive(Clone, Debug)]
pub(super) struct Counts {
    pub(super) drops: ReasonCounts,
    pub(super) engine_packets: u64,
    pub(super) syns: u64,
    pub(super) syn_acks: u64,
    pub(super) spliced: u64,
    /// Connections that a fast path outside began.
    pub(super) begun: u64,
    /// Connections taken over from an earlier run.
    pub(super) adopted: u64,
    /// Records at rest that were given up for newcomers.
    pub(super) rests_cut_short: u64,
    /// Packets of servers that were passed on to somebody who uses them without the switch.
    pub(super) handed_back: u64,
    pub(super) retries: u64,
    pub(super) probes_sent: u64,
    /// Echo requests that were answered.
    pub(super) pings: u64,
    /// Spliced connections whose end has not been noted.
    pub(super) live: u64,
    /// Records at rest: in TIME_WAIT or after a RST.
    pub(super) resting: u64,
    pub(super) ended: [u64; End::ALL.len()],
    pub(super) services: Vec<ServiceCounts>,
}

/// Counters of one service.
#[derive(Clone, Debug)]
pub(super) struct ServiceCounts {
    pub(super) accepted: u64,
    pub(super) refused: u64,
    pub(super) carried: Carried,
    pub(super) decisions: Vec<u64>,
}

impl Counts {
    pub(super) fn new(config: &Config) -> Self {
        let services = config.services.iter().map(|service| ServiceCounts {
            accepted: 0,
            refused: 0,
            carried: Carried::default(),
            decisions: vec![0; service.routes.len()],
        });
        Self {
            drops: ReasonCounts::default(),
            engine_packets: 0,
            syns: 0,
            syn_acks: 0,
            spliced: 0,
            begun: 0,
            adopted: 0,
            rests_cut_short: 0,
            handed_back: 0,
            retries: 0,
            probes_sent: 0,
            pings: 0,
            live: 0,
            resting: 0,
            ended: [0; End::ALL.len()],
            services: services.collect(),
        }
    }
}
