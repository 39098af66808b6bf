//! The engine's counters.

use core::ops::{Deref, DerefMut};

use fairlead_base::ReasonCounts;

use crate::carried::Carried;
use crate::config::Config;
use crate::event::End;
use crate::snapshot::SwitchCounters;

/// Counters since start; `live` and `resting` are gauges.
#[derive(Clone, Debug)]
pub(super) struct Counts {
    pub(super) drops: ReasonCounts,
    /// What `/status` and `/metrics` show: see the table there.
    pub(super) shown: SwitchCounters,
    /// Connections that a fast path outside began.
    pub(super) begun: u64,
    /// Echo requests that were answered.
    pub(super) pings: u64,
    /// Records at rest: in TIME_WAIT or after a RST.
    pub(super) resting: u64,
    pub(super) ended: [u64; End::ALL.len()],
    pub(super) services: Vec<ServiceCounts>,
}

impl Deref for Counts {
    type Target = SwitchCounters;

    fn deref(&self) -> &SwitchCounters {
        &self.shown
    }
}

impl DerefMut for Counts {
    fn deref_mut(&mut self) -> &mut SwitchCounters {
        &mut self.shown
    }
}

/// Counters of one service.
#[derive(Clone, Debug)]
pub(super) struct ServiceCounts {
    pub(super) accepted: u64,
    pub(super) refused: u64,
    /// SYNs denied, by the service's access lists.
    pub(super) denied: Vec<u64>,
    pub(super) carried: Carried,
    pub(super) decisions: Vec<u64>,
}

impl Counts {
    pub(super) fn new(config: &Config) -> Self {
        let services = config.services.iter().map(|service| ServiceCounts {
            accepted: 0,
            refused: 0,
            denied: vec![0; service.access.len()],
            carried: Carried::default(),
            decisions: vec![0; service.routes.len()],
        });
        Self {
            drops: ReasonCounts::default(),
            shown: SwitchCounters::default(),
            begun: 0,
            pings: 0,
            resting: 0,
            ended: [0; End::ALL.len()],
            services: services.collect(),
        }
    }
}
