//! The document of `/status`: all counters of the switch, and who it is.

use std::collections::BTreeMap;
use std::fmt;

use fairlead_splice::event;
use fairlead_splice::snapshot::{
    PoolSnapshot, RouteSnapshot, ServerSnapshot, ServiceSnapshot, Snapshot,
};
use serde::{Deserialize, Serialize};

use super::{Published, Shared};

/// Everything that `/status` says. Fields that a newer switch adds are ignored, and a missing one
/// is zero, so that the command and the switch may differ in version.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
#[expect(
    missing_docs,
    reason = "the fields are those of Identity and Snapshot, documented there"
)]
pub struct Status {
    pub instance: String,
    pub version: String,
    pub mode: String,
    pub device: String,
    /// What `/healthz` says.
    pub health: String,
    /// Seconds since the start.
    pub uptime_s: u64,
    /// Age of these counters, milliseconds.
    pub age_ms: u64,
    pub draining: bool,
    pub rx_packets: u64,
    pub rx_bytes: u64,
    pub tx_packets: u64,
    pub tx_bytes: u64,
    pub fast_packets: u64,
    pub fast_bytes: u64,
    pub engine_packets: u64,
    pub syns: u64,
    pub syn_acks: u64,
    pub accepted: u64,
    pub spliced: u64,
    pub retries: u64,
    pub probes_sent: u64,
    pub live: u64,
    pub setups: u64,
    pub half_read: u64,
    pub buffered_bytes: u64,
    pub time_wait: u64,
    pub records: u64,
    pub records_max: u64,
    /// Connections ended, by how.
    pub ended: BTreeMap<String, u64>,
    /// Drops and refusals by reason, the zeros too.
    pub drops: BTreeMap<String, u64>,
    pub services: Vec<ServiceStatus>,
    pub pools: Vec<PoolStatus>,
}

/// One service.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
#[expect(
    missing_docs,
    reason = "the fields are those of ServiceSnapshot, documented there"
)]
pub struct ServiceStatus {
    pub name: String,
    pub accepted: u64,
    pub refused: u64,
    pub routes: Vec<RouteStatus>,
}

/// One route.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
#[expect(
    missing_docs,
    reason = "the fields are those of RouteSnapshot, documented there"
)]
pub struct RouteStatus {
    pub name: String,
    pub pool: String,
    pub decisions: u64,
}

/// One pool.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
#[expect(
    missing_docs,
    reason = "the fields are those of PoolSnapshot, documented there"
)]
pub struct PoolStatus {
    pub name: String,
    pub servers: Vec<ServerStatus>,
}

/// One server.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
#[expect(
    missing_docs,
    reason = "the fields are those of ServerSnapshot, documented there"
)]
pub struct ServerStatus {
    /// Address and port.
    pub endpoint: String,
    pub weight: u16,
    pub active: u64,
    pub total: u64,
    pub failures: u64,
    /// `up`, `down` or `unknown`.
    pub state: String,
    pub offers: Option<Offers>,
}

/// TCP options that a server honours.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
#[expect(
    missing_docs,
    reason = "the fields are those of the event's Offers, documented there"
)]
pub struct Offers {
    pub mss: u16,
    pub window_scale: Option<u8>,
    pub sack: bool,
    pub timestamps: bool,
}

/// Why there is no status.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct StatusError(pub(crate) String);

impl fmt::Display for StatusError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for StatusError {}

impl Status {
    /// From what was published last.
    pub fn of(shared: &Shared, latest: &Published) -> Self {
        let identity = shared.identity().clone();
        // Every field is named: one that is added to the snapshot must find its place here.
        let Snapshot {
            drops,
            rx_packets,
            rx_bytes,
            tx_packets,
            tx_bytes,
            fast_packets,
            fast_bytes,
            engine_packets,
            syns,
            syn_acks,
            accepted,
            spliced,
            retries,
            probes_sent,
            live,
            setups,
            half_read,
            buffered_bytes,
            time_wait,
            records,
            records_max,
            ended,
            draining,
            services,
            pools,
        } = latest.snapshot.clone();
        let mut by_end: BTreeMap<String, u64> = event::End::ALL
            .iter()
            .map(|end| (end.name().to_owned(), 0))
            .collect();
        for (end, count) in ended {
            *by_end.entry(end.name().to_owned()).or_default() += count;
        }
        Self {
            instance: identity.instance,
            version: identity.version,
            mode: identity.mode,
            device: identity.device,
            health: shared.health().name().to_owned(),
            uptime_s: shared.uptime().as_secs(),
            age_ms: u64::try_from(latest.at.elapsed().as_millis()).unwrap_or(u64::MAX),
            draining,
            rx_packets,
            rx_bytes,
            tx_packets,
            tx_bytes,
            fast_packets,
            fast_bytes,
            engine_packets,
            syns,
            syn_acks,
            accepted,
            spliced,
            retries,
            probes_sent,
            live,
            setups,
            half_read,
            buffered_bytes,
            time_wait,
            records,
            records_max,
            ended: by_end,
            drops: drops
                .iter()
                .map(|(reason, count)| (reason.name().to_owned(), count))
                .collect(),
            services: services.into_iter().map(ServiceStatus::from).collect(),
            pools: pools.into_iter().map(PoolStatus::from).collect(),
        }
    }
}

impl From<ServiceSnapshot> for ServiceStatus {
    fn from(snapshot: ServiceSnapshot) -> Self {
        let ServiceSnapshot {
            name,
            accepted,
            refused,
            routes,
        } = snapshot;
        let route = |route: RouteSnapshot| {
            let RouteSnapshot {
                name,
                pool,
                decisions,
            } = route;
            RouteStatus {
                name,
                pool,
                decisions,
            }
        };
        Self {
            name,
            accepted,
            refused,
            routes: routes.into_iter().map(route).collect(),
        }
    }
}

impl From<PoolSnapshot> for PoolStatus {
    fn from(snapshot: PoolSnapshot) -> Self {
        let PoolSnapshot { name, servers } = snapshot;
        let server = |server: ServerSnapshot| {
            let ServerSnapshot {
                endpoint,
                weight,
                active,
                total,
                failures,
                state,
                offers,
            } = server;
            ServerStatus {
                endpoint: endpoint.to_string(),
                weight,
                active: u64::from(active),
                total,
                failures,
                state: state.name().to_owned(),
                offers: offers.map(Offers::from),
            }
        };
        Self {
            name,
            servers: servers.into_iter().map(server).collect(),
        }
    }
}

impl From<event::Offers> for Offers {
    fn from(offers: event::Offers) -> Self {
        let event::Offers {
            mss,
            window_scale,
            sack,
            timestamps,
        } = offers;
        Self {
            mss,
            window_scale,
            sack,
            timestamps,
        }
    }
}
