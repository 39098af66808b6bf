//! The admin pages: `/healthz`, `/metrics` (OpenMetrics) and `/status` (JSON).
//!
//! The thread that runs the switch calls [`Shared::publish`] several times a second; the pages,
//! on a thread of their own, show what was published last. Nothing here touches the switch.

mod metrics;
mod pace;
mod server;
mod status;

use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, Instant};

use fairlead_driver_tun::DeviceCounters;
use fairlead_splice::snapshot::Snapshot;

use crate::capture::CaptureHub;
use crate::config::Settings;

pub use metrics::{CONTENT_TYPE as METRICS_CONTENT_TYPE, metrics};
pub use server::{AdminServer, start};
pub use status::{
    CarriedStatus, DeviceStatus, DirectionStatus, FlowLookupsStatus, InterfaceStatus, KernelStatus,
    Offers, PoolStatus, RouteStatus, ServerStatus, ServiceStatus, Status, StatusError,
    TcbCacheStatus,
};

/// How old the last published counters may be before the switch counts as stalled.
pub const STALLED_AFTER: Duration = Duration::from_secs(5);

/// Who is running.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The instance's name.
    pub instance: String,
    /// The program's version.
    pub version: String,
    /// Where spliced packets are translated.
    pub mode: String,
    /// What translates them now.
    pub fast_path: FastPathState,
    /// The kind of the kernel's flow table, where the kernel has one.
    pub flow_table: String,
    /// The device.
    pub device: String,
}

/// What translates packets.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FastPathState {
    /// `xdp`, `tc`, `xdp-generic`, or `engine`.
    pub way: String,
    /// All of it in words: which interfaces, and why nothing better does.
    pub told: String,
    /// The interfaces that are to be served.
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
    /// Who runs with these settings; `fast_path` is what was chosen.
    pub fn of(settings: &Settings, fast_path: FastPathState) -> Self {
        Self {
            instance: settings.instance.name.clone(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            mode: settings.fastpath.mode.name().to_owned(),
            fast_path,
            flow_table: settings.fastpath.flow_table.name().to_owned(),
            device: settings.fastpath.device.clone(),
        }
    }
}

/// Everything that is counted.
#[derive(Clone, Debug, Default)]
pub struct Counters {
    /// By the switch.
    pub switch: Snapshot,
    /// By its device.
    pub device: DeviceCounters,
    /// Packets for the engine that found the device's queue full, since this run began.
    pub device_queue_dropped: u64,
    /// By the kernel program, where there is one; its packets and drops are among the switch's.
    pub kernel: Option<fairlead_bpf_loader::Counters>,
    /// Log lines that were lost because nobody read them in time.
    pub log_lines_lost: u64,
    /// Reloads that were asked for and could not be.
    pub reloads_refused: u64,
    /// Requests at the control socket that were no orders, not permitted or too many.
    pub orders_refused: u64,
}

/// Counters and when they were published.
#[derive(Clone, Debug)]
pub struct Published {
    /// The counters.
    pub counters: Counters,
    /// When.
    pub at: Instant,
}

/// What `/healthz` says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Health {
    /// Taking connections.
    Ok,
    /// Nothing was published yet.
    Starting,
    /// Taking no new connections.
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

/// Where the switch leaves its counters for the pages.
#[derive(Debug)]
pub struct Shared {
    identity: RwLock<Identity>,
    started: Instant,
    latest: RwLock<Option<Arc<Published>>>,
    capture: Arc<CaptureHub>,
}

impl Shared {
    /// For a switch that starts now.
    pub fn new(identity: Identity) -> Self {
        Self {
            identity: RwLock::new(identity),
            started: Instant::now(),
            latest: RwLock::new(None),
            capture: Arc::default(),
        }
    }

    /// Leaves new counters. Costs one allocation and a lock that readers hold for a pointer's
    /// copy; four times a second is plenty.
    pub fn publish(&self, counters: Counters) {
        let published = Arc::new(Published {
            counters,
            at: Instant::now(),
        });
        *self.latest.write().unwrap_or_else(PoisonError::into_inner) = Some(published);
    }

    /// What was published last.
    pub fn latest(&self) -> Option<Arc<Published>> {
        self.latest
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Where captures pass.
    pub fn capture(&self) -> &Arc<CaptureHub> {
        &self.capture
    }

    /// Who is running.
    pub fn identity(&self) -> Identity {
        let identity = self.identity.read();
        identity.unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Says what translates packets from now on.
    pub fn set_fast_path(&self, state: FastPathState) {
        let identity = self.identity.write();
        identity.unwrap_or_else(PoisonError::into_inner).fast_path = state;
    }

    /// Since the start.
    pub fn uptime(&self) -> Duration {
        self.started.elapsed()
    }

    /// How the switch is.
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
    fn a_switch_that_publishes_nothing_more_is_stalled() {
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
