//! The document of `/status`: all counters of the switch, and who it is.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::{Deref, DerefMut};

use fairlead_base::ReasonCounts;
use fairlead_bpf_loader::{FlowLookups, KernelCounters};
use fairlead_datapath::ServerId;
use fairlead_datapath::tcb_cache::{Report, TcbCacheCounters};
use fairlead_driver_tun::{DeviceCounters, SizeCounts};
use fairlead_http_front::FrontCounters;
use fairlead_splice::carried::Carried;
use fairlead_splice::event::{End, Offers as OffersSeen};
use fairlead_splice::snapshot::{
    PoolSnapshot, RouteSnapshot, ServerSnapshot, ServiceSnapshot, Snapshot, SwitchCounters,
};
use serde::{Deserialize, Serialize};

use super::caches::CacheStatus;
use super::counted::Counted;
use super::{Counters, ProcessCounters, Published, Shared};

/// An interface of the kernel's fast path.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct InterfaceStatus {
    /// Its name.
    pub name: String,
    /// False while it is gone.
    pub served: bool,
}

/// A listening address in a subnet of an interface, for which ARP or neighbour solicitations are
/// answered.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct AnnouncedStatus {
    /// The address.
    pub address: String,
    /// The interface's name.
    pub interface: String,
    /// `announced`, `probing` or `conflict`.
    pub state: String,
}

/// A listening socket of this machine that takes connections of a route.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ListenerStatus {
    /// Its address and port.
    pub listener: String,
    /// False while nobody listens there.
    pub up: bool,
}

/// Connections that proxies have handed off.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct HandoffStatus {
    /// Handed off now.
    pub connections: u64,
    /// Users that have some.
    pub owners: u64,
    /// Commands by name.
    pub commands: BTreeMap<String, u64>,
    /// Refusals by command and reason.
    pub refused: BTreeMap<String, BTreeMap<String, u64>>,
    /// Packets that were no message.
    pub malformed: u64,
}

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
    /// All of it in words.
    pub fast_path: String,
    /// What translates packets now: `xdp`, `tc`, `xdp-generic`, or `engine`.
    pub way: String,
    /// The interfaces that the kernel's fast path is to serve.
    pub interfaces: Vec<InterfaceStatus>,
    pub flow_table: String,
    pub device: String,
    /// What `/healthz` says.
    pub health: String,
    /// Seconds since the start.
    pub uptime_s: u64,
    /// Age of these counters, milliseconds.
    pub age_ms: u64,
    pub draining: bool,
    /// The switch's plain numbers.
    #[serde(flatten)]
    pub switch: Counted<SwitchCounters>,
    /// The process's.
    #[serde(flatten)]
    pub process: Counted<ProcessCounters>,
    /// Connections ended, by how.
    pub ended: BTreeMap<String, u64>,
    /// Drops and refusals by reason, the zeros too.
    pub drops: BTreeMap<String, u64>,
    /// The front, where there is one.
    pub front: Option<Counted<FrontCounters>>,
    /// Caches of routes.
    pub caches: Vec<CacheStatus>,
    /// The TCB cache, where there is one.
    pub tcb_cache: Option<TcbCacheStatus>,
    /// The listening addresses that are announced, or to be announced.
    pub announced: Vec<AnnouncedStatus>,
    /// Listening sockets of this machine that routes lead to.
    pub listeners: Vec<ListenerStatus>,
    /// What proxies have handed off, where that is configured.
    pub handoff: Option<HandoffStatus>,
    pub services: Vec<ServiceStatus>,
    pub pools: Vec<PoolStatus>,
    /// What the kernel program counts, where there is one.
    pub kernel: Option<KernelStatus>,
    /// What the device itself counts.
    pub device_use: DeviceStatus,
}

/// A part of the document that has the fields of what is counted, under the same names: one that
/// is added there must be added here.
macro_rules! mirror {
    ($(#[$about:meta])* $name:ident of $source:ident { $($field:ident: $kind:ty,)* }) => {
        $(#[$about])*
        #[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
        #[serde(default)]
        #[expect(missing_docs, reason = "the fields are documented where they are counted")]
        pub struct $name {
            $(pub $field: $kind,)*
        }

        impl From<$source> for $name {
            fn from(source: $source) -> Self {
                let $source { $($field,)* } = source;
                Self { $($field: $field.into(),)* }
            }
        }
    };
}

/// The kernel program's share. What it drops is among all drops.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
#[expect(
    missing_docs,
    reason = "the fields are documented where they are counted"
)]
pub struct KernelStatus {
    #[serde(flatten)]
    pub counters: Counted<KernelCounters>,
    pub dropped: u64,
    /// Keys that the flow table had evicted and was told anew.
    pub keys_anew: u64,
    /// Bytes that the kernel has set aside for each of the program's maps.
    pub map_bytes: BTreeMap<String, u64>,
    /// Look-ups in the flow table, by processor.
    pub lookups: Vec<Counted<FlowLookups>>,
}

impl From<fairlead_bpf_loader::Counters> for KernelStatus {
    fn from(source: fairlead_bpf_loader::Counters) -> Self {
        Self {
            counters: Counted(source.kernel),
            dropped: source.drops.total(),
            keys_anew: source.keys_anew,
            map_bytes: source.map_bytes,
            lookups: source.lookups.into_iter().map(Counted).collect(),
        }
    }
}

mirror! {
    /// What a device has carried since it was opened.
    DeviceStatus of DeviceCounters {
        rx: DirectionStatus,
        tx: DirectionStatus,
        rx_empty_reads: u64,
        rx_bad_header: u64,
        tx_no_room: u64,
        tx_down: u64,
        tx_refused: u64,
        tx_unsendable: u64,
    }
}

mirror! {
    /// One direction of a device. Each packet, super-packets too, is one system call. The entries
    /// of `by_size` take packets of up to 128 bytes, of up to 256 and so on to 32 KiB, and longer
    /// ones.
    DirectionStatus of SizeCounts {
        packets: u64,
        bytes: u64,
        super_packets: u64,
        longest_bytes: u64,
        by_size: Vec<u64>,
    }
}

/// The TCB cache. The entries of `sets_by_occupancy` are sets with no line in use, with one, and so
/// on to all of them.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
#[expect(
    missing_docs,
    reason = "the fields are documented where they are counted"
)]
pub struct TcbCacheStatus {
    pub scheme: String,
    #[serde(flatten)]
    pub counters: Counted<TcbCacheCounters>,
    pub hit_ratio: f64,
    pub occupancy_mean: f64,
    pub sets_by_occupancy: Vec<u64>,
}

impl From<Report> for TcbCacheStatus {
    fn from(report: Report) -> Self {
        let Report {
            scheme,
            counters,
            hit_ratio,
            occupancy_mean,
            sets_by_occupancy,
        } = report;
        Self {
            scheme,
            counters: Counted(counters),
            hit_ratio,
            occupancy_mean,
            sets_by_occupancy,
        }
    }
}

mirror! {
    /// What connections that are over carried. The entries of `by_duration` are connections that
    /// lived up to each of `DURATION_LIMITS_MS`, and longer.
    CarriedStatus of Carried {
        bytes_in: u64,
        bytes_out: u64,
        lived_ms: u64,
        by_duration: Vec<u64>,
    }
}

mirror! {
    /// One route.
    RouteStatus of RouteSnapshot {
        name: String,
        pool: String,
        decisions: u64,
        requests: u64,
        later_requests: BTreeMap<String, u64>,
    }
}

mirror! {
    /// TCP options that a server honours.
    Offers of OffersSeen {
        mss: u16,
        window_scale: Option<u8>,
        sack: bool,
        timestamps: bool,
    }
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
    /// SYNs denied, by access list.
    pub denied: BTreeMap<String, u64>,
    pub carried: CarriedStatus,
    pub routes: Vec<RouteStatus>,
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
    pub carried: CarriedStatus,
    /// `up`, `down` or `unknown`.
    pub state: String,
    pub offers: Option<Offers>,
    /// `ready`, `drain` or `maint`.
    pub admin: String,
    /// Why it gets no connections; absent where it gets some.
    pub unavailable: Option<String>,
    /// The weight that it has now, in eighths: less than eight times the weight while it starts
    /// slowly.
    pub weight_eighths: u64,
    pub backup: bool,
    pub ejections: u64,
    /// What its health checks have shown; absent without any.
    pub check: Option<CheckStatus>,
}

/// What the health checks of a server have shown.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct CheckStatus {
    /// `up` or `down`.
    pub state: String,
    /// Checks that passed since the start.
    pub passed: u64,
    /// Checks that failed since the start.
    pub failed: u64,
    /// How long the last one took, seconds.
    pub seconds: f64,
    /// What was wrong with the last one; empty where it passed.
    pub problem: String,
}

// Most readers of a status read the switch's plain numbers.
impl Deref for Status {
    type Target = SwitchCounters;

    fn deref(&self) -> &SwitchCounters {
        &self.switch
    }
}

impl DerefMut for Status {
    fn deref_mut(&mut self) -> &mut SwitchCounters {
        &mut self.switch
    }
}

impl Deref for TcbCacheStatus {
    type Target = TcbCacheCounters;

    fn deref(&self) -> &TcbCacheCounters {
        &self.counters
    }
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
        let identity = shared.identity();
        let mut pools = Self::counted(&latest.counters).pools;
        let servers = pools.iter_mut().flat_map(|pool| &mut pool.servers);
        for (id, server) in (0..=u16::MAX).zip(servers) {
            if let Some(known) = shared.checks().of(ServerId(id)) {
                server.check = Some(known);
            }
        }
        Self {
            pools,
            instance: identity.instance,
            version: identity.version,
            mode: identity.mode,
            fast_path: identity.fast_path.told,
            way: identity.fast_path.way,
            interfaces: identity.fast_path.interfaces,
            flow_table: identity.flow_table,
            device: identity.device,
            health: shared.health().name().to_owned(),
            uptime_s: shared.uptime().as_secs(),
            age_ms: u64::try_from(latest.at.elapsed().as_millis()).unwrap_or(u64::MAX),
            ..Self::counted(&latest.counters)
        }
    }

    /// The counters alone. Every field is named: one that is added to the counters must find its
    /// place.
    fn counted(counters: &Counters) -> Self {
        let Counters {
            switch,
            process,
            announced,
            listeners,
            handoff,
            device,
            kernel,
            front,
            tcb_cache,
        } = counters.clone();
        let Snapshot {
            counters,
            drops,
            ended,
            draining,
            services,
            pools,
        } = switch;
        let caches = front.as_ref().map_or(&[][..], |front| &front.caches);
        Self {
            caches: CacheStatus::all(caches, &services),
            switch: Counted(counters),
            process: Counted(process),
            announced,
            listeners,
            handoff,
            kernel: kernel.map(KernelStatus::from),
            device_use: device.into(),
            draining,
            ended: by_end(&ended),
            drops: by_reason(&drops),
            front: front.map(|front| Counted(front.numbers)),
            tcb_cache: tcb_cache.map(TcbCacheStatus::from),
            services: services.into_iter().map(ServiceStatus::from).collect(),
            pools: pools.into_iter().map(PoolStatus::from).collect(),
            ..Self::default()
        }
    }
}

/// Drops and refusals by name.
fn by_reason(drops: &ReasonCounts) -> BTreeMap<String, u64> {
    drops
        .iter()
        .map(|(reason, count)| (reason.name().to_owned(), count))
        .collect()
}

/// Ends by name, those that never happened too.
fn by_end(ended: &[(End, u64)]) -> BTreeMap<String, u64> {
    let none = End::ALL.iter().map(|end| (end, 0));
    let counted = ended.iter().map(|(end, count)| (end, *count));
    let mut by_end = BTreeMap::new();
    for (end, count) in none.chain(counted) {
        *by_end.entry(end.name().to_owned()).or_default() += count;
    }
    by_end
}

impl From<ServiceSnapshot> for ServiceStatus {
    fn from(snapshot: ServiceSnapshot) -> Self {
        let ServiceSnapshot {
            name,
            accepted,
            refused,
            denied,
            carried,
            routes,
        } = snapshot;
        Self {
            name,
            accepted,
            refused,
            denied: denied.into_iter().collect(),
            carried: carried.into(),
            routes: routes.into_iter().map(RouteStatus::from).collect(),
        }
    }
}

/// The word for what health checks say.
pub(crate) fn up_or_down(is_up: bool) -> &'static str {
    if is_up { "up" } else { "down" }
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
                carried,
                state,
                offers,
                admin,
                check,
                unavailable,
                weight_eighths,
                backup,
                ejections,
            } = server;
            ServerStatus {
                endpoint: endpoint.to_string(),
                weight,
                active: u64::from(active),
                total,
                failures,
                carried: carried.into(),
                state: state.name().to_owned(),
                offers: offers.map(Offers::from),
                admin: admin.name().to_owned(),
                unavailable: unavailable.map(|why| why.name().to_owned()),
                weight_eighths: u64::from(weight_eighths),
                backup,
                ejections,
                check: check.map(|is_up| CheckStatus {
                    state: up_or_down(is_up).to_owned(),
                    ..CheckStatus::default()
                }),
            }
        };
        Self {
            name,
            servers: servers.into_iter().map(server).collect(),
        }
    }
}
