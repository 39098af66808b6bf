//! The admin pages: `/healthz`, `/metrics` (OpenMetrics) and `/status` (JSON).
//!
//! The thread that runs the switch calls [`Shared::publish`] several times a second. The pages run
//! on their own thread and show the counters published last. Nothing here accesses the switch.

mod caches;
mod counted;
mod metrics;
mod pace;
mod server;
mod status;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, Instant};

use fairlead_datapath::tcb_cache::Report;
use fairlead_driver_tun::DeviceCounters;
use fairlead_splice::snapshot::Snapshot;

use crate::capture::CaptureHub;
use crate::checks::CheckBoard;
use crate::config::Settings;

pub use caches::CacheStatus;
pub use counted::Counted;
pub use metrics::{CONTENT_TYPE as METRICS_CONTENT_TYPE, metrics};
pub use server::{AdminServer, start};
pub(crate) use status::up_or_down;
pub use status::{
    AnnouncedStatus, CarriedStatus, CheckStatus, DeviceStatus, DirectionStatus, HandoffStatus,
    InterfaceStatus, KernelStatus, ListenerStatus, Offers, PoolStatus, RouteStatus, ServerStatus,
    ServiceStatus, Status, StatusError, TcbCacheStatus,
};

/// Age of the last published counters above which the switch counts as stalled.
pub const STALLED_AFTER: Duration = Duration::from_secs(5);

/// Identity of the running instance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The instance's name.
    pub instance: String,
    /// The program's version.
    pub version: String,
    /// Where spliced packets are translated.
    pub mode: String,
    /// The fast path in use.
    pub fast_path: FastPathState,
    /// Kind of the kernel's flow table, if the kernel forwards.
    pub flow_table: String,
    /// The device.
    pub device: String,
}

/// State of the fast path.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FastPathState {
    /// `xdp`, `tc`, `xdp-generic`, or `engine`.
    pub way: String,
    /// Description: interfaces, and why no better mode is used.
    pub told: String,
    /// The interfaces to serve.
    pub interfaces: Vec<InterfaceStatus>,
}

impl FastPathState {
    /// The engine alone.
    pub fn engine(told: &str) -> Self {
        Self {
            way: "engine".to_owned(),
            told: told.to_owned(),
            interfaces: Vec::new(),
        }
    }
}

impl Identity {
    /// The identity for these settings and the fast path chosen.
    pub fn of(settings: &Settings, fast_path: FastPathState) -> Self {
        Self {
            instance: settings.instance.name.clone(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            mode: settings.fastpath.mode.name().to_owned(),
            fast_path,
            flow_table: settings.fastpath.flow_table.name().to_owned(),
            device: settings.network.device.clone(),
        }
    }
}

fairlead_base::counters! {
    /// What the process counts besides the switch.
    pub struct ProcessCounters {
        Counter log_lines_lost: "log_lines_lost",
            "Log lines lost because the reader of the log was too slow";
        Counter access_log_lines_lost: "access_log_lines_lost",
            "Lines of the access log lost because its file or standard output could not be \
             written or was too slow";
        Counter reloads_refused: "reloads_refused", "Reloads that were requested and refused";
        Counter orders_refused: "orders_refused",
            "Requests on the control socket that were invalid, not permitted or too many";
        Counter announce_conflicts: "announce_conflicts",
            "Claims of other machines to addresses that were probed or announced here";
        Counter device_queue_dropped: "device_queue_dropped",
            "Packets for the engine dropped because the queue of the device was full; read every \
             few seconds";
        Counter sleepers_full: "sleepers_full",
            "Connections of routes with `sleep` that do not sleep, because `sleepers` in [limits] \
             is reached";
        Counter sleepers_kept: "sleepers_taken_over",
            "Connections without a socket that were taken over from the previous run";
        Counter sleepers_other_layout: "sleepers_discarded" { reason = "layout" },
            "Connections without a socket that the previous run left and this one could not take \
             over, by reason: their map has another layout, no route leads to their listener, or \
             there is no room";
        Counter sleepers_no_route: "sleepers_discarded" { reason = "route" }, "The same";
        Counter sleepers_no_room: "sleepers_discarded" { reason = "room" }, "The same";
        Gauge sleepers: "sleepers", "Connections without a socket now, counted every second";
        Gauge resident_bytes: "resident_bytes",
            "Memory of the process that is in RAM (RSS), with the kernel maps that it has mapped";
    }
}

/// All counters.
#[derive(Clone, Debug, Default)]
pub struct Counters {
    /// Of the switch.
    pub switch: Snapshot,
    /// By the process around it.
    pub process: ProcessCounters,
    /// Listening addresses in subnets of this machine's interfaces.
    pub announced: Vec<AnnouncedStatus>,
    /// Listening sockets of this machine that routes lead to.
    pub listeners: Vec<ListenerStatus>,
    /// What proxies have handed off, where that is configured.
    pub handoff: Option<HandoffStatus>,
    /// By its device.
    pub device: DeviceCounters,
    /// By the kernel program, where there is one; its packets and drops are among the switch's.
    pub kernel: Option<fairlead_bpf_loader::Counters>,
    /// By the front, where there is one.
    pub front: Option<fairlead_http_front::Counts>,
    /// By the TCB cache, where there is one.
    pub tcb_cache: Option<Report>,
}

/// Counters and when they were published.
#[derive(Clone, Debug)]
pub struct Published {
    /// The counters.
    pub counters: Counters,
    /// When they were published.
    pub at: Instant,
}

/// State reported by `/healthz`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Health {
    /// Accepting connections.
    Ok,
    /// Nothing was published yet.
    Starting,
    /// Accepting no new connections.
    Draining,
    /// Nothing was published for [`STALLED_AFTER`].
    Stalled,
}

impl Health {
    /// The word on the page.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Starting => "starting",
            Self::Draining => "draining",
            Self::Stalled => "stalled",
        }
    }
}

/// Passes counters from the switch to the pages.
#[derive(Debug)]
pub struct Shared {
    identity: RwLock<Identity>,
    started: Instant,
    latest: RwLock<Option<Arc<Published>>>,
    capture: Arc<CaptureHub>,
    checks: Arc<CheckBoard>,
    /// Listening addresses are to be announced.
    announces: AtomicBool,
}

impl Shared {
    /// For a switch that starts now.
    pub fn new(identity: Identity) -> Self {
        Self {
            identity: RwLock::new(identity),
            started: Instant::now(),
            latest: RwLock::new(None),
            capture: Arc::default(),
            checks: Arc::default(),
            announces: AtomicBool::new(false),
        }
    }

    /// Whether listening addresses are to be announced.
    pub fn announces(&self) -> bool {
        self.announces.load(Ordering::Relaxed)
    }

    /// Has listening addresses announced from now on, or not.
    pub fn set_announces(&self, announces: bool) {
        self.announces.store(announces, Ordering::Relaxed);
    }

    /// Publishes new counters. Costs one allocation and a lock that readers hold for a pointer
    /// copy; intended for about four calls per second.
    pub fn publish(&self, counters: Counters) {
        let published = Arc::new(Published {
            counters,
            at: Instant::now(),
        });
        *self.latest.write().unwrap_or_else(PoisonError::into_inner) = Some(published);
    }

    /// The counters published last.
    pub fn latest(&self) -> Option<Arc<Published>> {
        self.latest
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// What health checks have shown.
    pub(crate) fn checks(&self) -> &Arc<CheckBoard> {
        &self.checks
    }

    /// The capture hub.
    pub fn capture(&self) -> &Arc<CaptureHub> {
        &self.capture
    }

    /// Identity of the running instance.
    pub fn identity(&self) -> Identity {
        let identity = self.identity.read();
        identity.unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Sets the fast path in use.
    pub fn set_fast_path(&self, state: FastPathState) {
        let identity = self.identity.write();
        identity.unwrap_or_else(PoisonError::into_inner).fast_path = state;
    }

    /// Time since the start.
    pub fn uptime(&self) -> Duration {
        self.started.elapsed()
    }

    /// Health of the switch.
    pub fn health(&self) -> Health {
        match self.latest() {
            None => Health::Starting,
            Some(latest) if latest.at.elapsed() > STALLED_AFTER => Health::Stalled,
            Some(latest) if latest.counters.switch.draining => Health::Draining,
            Some(_) => Health::Ok,
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn identity() -> Identity {
        Identity {
            instance: "edge".into(),
            version: "0.1.0".into(),
            mode: "engine".into(),
            fast_path: FastPathState::engine("engine"),
            flow_table: "hash".into(),
            device: "fairlead0".into(),
        }
    }

    #[test]
    fn health_follows_what_is_published() {
        let shared = Shared::new(identity());
        assert_eq!(shared.health(), Health::Starting);
        let mut counters = Counters::default();
        shared.publish(counters.clone());
        assert_eq!(shared.health(), Health::Ok);
        counters.switch.draining = true;
        shared.publish(counters);
        assert_eq!(shared.health(), Health::Draining);
    }

    #[test]
    fn a_switch_that_stops_publishing_is_stalled() {
        let shared = Shared::new(identity());
        let Some(long_ago) = Instant::now().checked_sub(STALLED_AFTER * 2) else {
            return;
        };
        let old = Published {
            counters: Counters::default(),
            at: long_ago,
        };
        *shared.latest.write().unwrap() = Some(Arc::new(old));
        assert_eq!(shared.health(), Health::Stalled);
    }
}
