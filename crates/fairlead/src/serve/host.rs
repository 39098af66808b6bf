//! Connections that become sockets of this machine (`treatment = "host"`, `"per-request"`): the
//! kernel programs, the local routes, and what this machine's TCP agrees to.

mod full;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use fairlead_base::{Endpoint, Instant};
use fairlead_bpf_loader::{Counters, HostPrograms, Mode as AttachMode, Pins, TakenOver};
use fairlead_datapath::{Datapath, Offers};
use fairlead_driver_tun::net::Network;
use fairlead_splice::config::{Config, Route, Service};

use self::full::FullListener;
use super::fastpath::{Fastpath, in_full};
use super::front::Prepared;
use super::listeners::ListenerWatch;
use super::sleepers::{SleeperDesk, Sockets, Tracker};
use crate::admin::{ListenerStatus, ProcessCounters};
use crate::api::Requests;
use crate::config::Settings;

/// Behind generic XDP a packet has no link header any more, with which a SYN could come in again.
const GENERIC: &str = "mode = \"xdp-generic\" cannot; mode = \"tc\" can";

/// What the start changes.
type Parts<'a> = (
    &'a mut Datapath,
    &'a mut Fastpath,
    &'a mut Network,
    &'a mut Prepared,
);

/// What serves such routes, if any are configured.
#[derive(Debug, Default)]
pub(super) struct Host {
    programs: Option<HostPrograms>,
    listens: BTreeSet<Endpoint>,
    device: String,
    /// Where connections may outlive their sockets.
    sleep: bool,
    /// Kept for its end.
    tracker: Option<Tracker>,
    desk: Option<Arc<SleeperDesk>>,
    watch: Option<ListenerWatch>,
    /// Kept for their end.
    full: Vec<FullListener>,
    sockets: Option<Sockets>,
    /// How many sleep.
    asleep: Arc<AtomicU64>,
    /// What became of those that an earlier run left.
    taken: TakenOver,
    /// Connections that were reset: the kernel answered them, and no program is loaded any more.
    reset: u64,
}

impl Host {
    /// Starts serving such routes. Where that is not possible a warning says why, and their clients
    /// take the fallback pools or are reset.
    pub(super) fn start(
        settings: &Settings,
        parts: Parts<'_>,
        pins: Option<&Arc<Pins>>,
        now: Instant,
    ) -> Self {
        let listens = listens(&settings.switch);
        if listens.is_empty() && settings.switch.watched.is_empty() {
            // An earlier run may have had some.
            let _ = parts.2.hold(&BTreeSet::new());
            let mut this = Self::default();
            if let Some(pins) = pins {
                let gone = HostPrograms::forget(pins);
                this.taken.no_route = gone.asleep;
                this.reset = gone.answered;
            }
            this.say_taken();
            this.say_reset(this.reset);
            return this;
        }
        let mut this = Self {
            programs: None,
            listens,
            device: settings.network.device.clone(),
            sleep: sleeps(&settings.switch),
            ..Self::default()
        };
        match this.try_start(settings, parts, pins, now) {
            Ok(()) => {
                let all = this.listens.iter().chain(&settings.switch.watched);
                let names: Vec<String> = all.map(ToString::to_string).collect();
                tracing::info!(
                    "sockets of this machine take connections to {}",
                    names.join(" ")
                );
            }
            Err(why) => {
                this.programs = None;
                this.say_refused(&settings.switch, &why);
            }
        }
        this
    }

    fn try_start(
        &mut self,
        settings: &Settings,
        (datapath, fastpath, network, front): Parts<'_>,
        pins: Option<&Arc<Pins>>,
        now: Instant,
    ) -> Result<(), String> {
        let leads = match fastpath.mode() {
            Some(AttachMode::Tc) => false,
            Some(AttachMode::XdpNative) => true,
            Some(AttachMode::XdpGeneric) => return Err(GENERIC.to_owned()),
            None => return Err("the kernel fast path is not in use".to_owned()),
        };
        let own = OwnTcp::read();
        if let Some(why) = own.refusal() {
            return Err(why);
        }
        let sleepers = settings.switch.limits.sleepers;
        let loaded = HostPrograms::load(pins.cloned(), if self.sleep { sleepers } else { 0 });
        let (mut programs, gives, shown) = loaded.map_err(|error| in_full(&error))?;
        if leads {
            programs.lead();
        }
        let interfaces = fastpath.interfaces();
        let addresses: BTreeSet<IpAddr> = self.listens.iter().map(|one| one.addr.to_ip()).collect();
        let held = network.hold(&addresses);
        held.map_err(|error| error.to_string())?;
        if own.rfc1337 {
            let (all, at) = full::open(&self.listens);
            self.full = all;
            programs.set_full(at);
        }
        let fronts = fronts(&settings.switch, &programs.answered_at());
        if let Some(kernel) = fastpath.kernel().filter(|_| !fronts.is_empty()) {
            let maps = programs.answer(kernel, fronts);
            front.hits = Some(maps.map_err(|error| in_full(&error))?);
        }
        programs.set_watched(settings.switch.watched.iter().copied().collect());
        let set = programs.set(&interfaces, &self.device, &self.listens, self.sleep);
        set.map_err(|error| in_full(&error))?;
        self.say_reset(programs.end_answered());
        fastpath.serve_hosted(&addresses)?;
        let no_sleep = |error: std::io::Error| format!("sockets cannot be ended: {error}");
        let (sockets, woken) = Sockets::new(gives, self.sleep).map_err(no_sleep)?;
        self.sockets = Some(sockets.clone());
        self.taken = sockets.take_over(|listen, to| sleeps_at(&settings.switch, listen, to));
        self.say_taken();
        if self.sleep {
            let asleep = Arc::clone(&self.asleep);
            let tracker = Tracker::start(shown, (sockets.clone(), woken), asleep);
            self.tracker = Some(tracker.map_err(no_sleep)?);
            let desk = SleeperDesk::new(sockets.clone());
            self.desk = Some(Arc::new(desk.map_err(no_sleep)?));
        }
        self.watch = Some(ListenerWatch::new(sockets.clone(), &settings.switch));
        datapath.set_host(
            now,
            Box::new(sockets),
            own.offers(settings.switch.device_mss),
        );
        self.programs = Some(programs);
        Ok(())
    }

    /// The interfaces have changed.
    pub(super) fn follow(&mut self, fastpath: &Fastpath) {
        if let Some(programs) = &mut self.programs
            && let Err(error) = programs.set(
                &fastpath.interfaces(),
                &self.device,
                &self.listens,
                self.sleep,
            )
        {
            tracing::warn!("sockets of this machine: {}", in_full(&error));
        }
    }

    /// Who listens.
    pub(super) fn listeners(&mut self) -> Vec<ListenerStatus> {
        let watch = self.watch.as_mut();
        watch.map_or_else(Vec::new, ListenerWatch::look)
    }

    /// Says what becomes of clients, and why. The front has another way to its own.
    fn say_refused(&self, switch: &Config, why: &str) {
        let mut routes = switch.services.iter().flat_map(|one| &one.routes);
        if !switch.watched.is_empty() || routes.clone().any(Route::is_to_host) {
            tracing::warn!(
                "routes with treatment = \"host\", and `watch`, cannot be served: {why}"
            );
        }
        if !fronts(switch, &BTreeSet::new()).is_empty() {
            tracing::warn!("`kernel = true` of caches has no effect: {why}");
        }
        if routes.any(Route::is_to_front) {
            tracing::info!("requests reach the front by way of the engine: {why}");
        }
    }

    fn say_taken(&self) {
        let TakenOver {
            asleep,
            awake,
            other_layout,
            no_route,
            no_room,
        } = self.taken;
        if asleep + awake > 0 {
            tracing::info!(
                asleep,
                awake,
                "took over connections that may outlive sockets"
            );
        }
        for (count, why) in [
            (other_layout, "their map has another layout"),
            (no_route, "no route with `sleep` leads to their listener"),
            (no_room, "`sleepers` in [limits] is too small"),
        ] {
            if count > 0 {
                tracing::warn!("discarded {count} sleepers of an earlier run: {why}");
            }
        }
    }

    fn say_reset(&self, count: u64) {
        if count > 0 {
            tracing::warn!(
                "reset {count} connections of an earlier run that the kernel answered: their \
                 service has no front any more"
            );
        }
    }

    /// Who lists and ends sleepers, where there may be some.
    pub(super) fn desk(&self) -> Option<&Arc<SleeperDesk>> {
        self.desk.as_ref()
    }

    /// Where the engine is woken for requests that have waited.
    pub(super) fn connect(&self, requests: &Arc<Requests>) {
        if let Some(sockets) = &self.sockets {
            sockets.connect(requests);
        }
    }

    /// Adds what is known of sleepers.
    pub(super) fn count(&self, counters: &mut ProcessCounters) {
        counters.sleepers = self.asleep.load(Ordering::Relaxed);
        let sockets = self.sockets.as_ref();
        counters.sleepers_full = sockets.map_or(0, Sockets::beyond_limit);
        counters.sleepers_kept = self.taken.asleep;
        counters.sleepers_other_layout = self.taken.other_layout;
        counters.sleepers_no_route = self.taken.no_route;
        counters.sleepers_no_room = self.taken.no_room;
    }

    /// Adds what the programs have counted.
    pub(super) fn add_to(&self, counters: &mut Counters) {
        counters.hits_reset += self.reset;
        if let Some(programs) = &self.programs {
            programs.add_to(counters);
        }
    }
}

/// By listening endpoint where the kernel answers some requests, or where it did in an earlier run
/// (`answered`): where the front listens.
fn fronts(switch: &Config, answered: &BTreeSet<Endpoint>) -> BTreeMap<Endpoint, Endpoint> {
    let mut fronts = BTreeMap::new();
    for service in &switch.services {
        let mut routes = service.routes.iter().filter(|route| route.is_to_front());
        let answers = routes.clone().any(|route| service.answers_in_kernel(route));
        let Some(route) = routes.next() else {
            continue;
        };
        let of = |listen: &Endpoint| route.listeners.of_version(listen.addr.is_v4());
        let known = service.listen.iter();
        let known = known.filter(|listen| answers || answered.contains(*listen));
        fronts.extend(known.filter_map(|listen| Some((*listen, of(listen)?))));
    }
    fronts
}

/// The endpoints of all services with such routes.
fn listens(switch: &Config) -> BTreeSet<Endpoint> {
    let hosted = |service: &&Service| service.routes.iter().any(Route::is_to_socket);
    let services = switch.services.iter().filter(hosted);
    services
        .flat_map(|service| &service.listen)
        .copied()
        .collect()
}

/// True where connections may outlive their sockets.
fn sleeps(switch: &Config) -> bool {
    let mut routes = switch.services.iter().flat_map(|service| &service.routes);
    !switch.watched.is_empty() || routes.any(|route| route.sleep)
}

/// True where connections to a listening endpoint may outlive the sockets of a listener.
fn sleeps_at(switch: &Config, listen: Endpoint, listener: Endpoint) -> bool {
    if switch.watched.contains(&listen) {
        return listen == listener;
    }
    let mut services = switch.services.iter();
    let service = services.find(|service| service.listen.contains(&listen));
    let v4 = listener.addr.is_v4();
    let leads = |route: &Route| {
        let to = route.listeners.of_version(v4);
        route.sleep && to == Some(listener)
    };
    service.is_some_and(|service| service.routes.iter().any(leads))
}

/// What this machine's TCP agrees to, by its settings (`ip-sysctl`).
#[derive(Clone, Copy, Debug)]
pub(crate) struct OwnTcp {
    syncookies: bool,
    timestamps: bool,
    sack: bool,
    scaling: bool,
    rfc1337: bool,
    /// The most that a receive buffer may have, bytes.
    receive_bytes: u64,
}

impl OwnTcp {
    /// The settings of the network namespace of the calling thread.
    pub(crate) fn read() -> Self {
        let number = |path: &str| {
            let text = std::fs::read_to_string(format!("/proc/sys/net/{path}")).ok()?;
            text.split_whitespace().last()?.parse::<u64>().ok()
        };
        let is_on = |name: &str| number(&format!("ipv4/{name}")).is_some_and(|value| value != 0);
        let buffers = ["ipv4/tcp_rmem", "core/rmem_max"].map(|path| number(path).unwrap_or(0));
        Self {
            syncookies: is_on("tcp_syncookies"),
            timestamps: is_on("tcp_timestamps"),
            sack: is_on("tcp_sack"),
            scaling: is_on("tcp_window_scaling"),
            rfc1337: is_on("tcp_rfc1337"),
            receive_bytes: buffers.into_iter().max().unwrap_or(0),
        }
    }

    /// Why no connection can become a socket.
    pub(crate) fn refusal(&self) -> Option<String> {
        (!self.syncookies).then(|| {
            "net.ipv4.tcp_syncookies is 0, so the kernel accepts no connection whose SYN it has \
             not answered itself; enable it with `sysctl -w net.ipv4.tcp_syncookies=1`"
                .to_owned()
        })
    }

    /// What clients are offered. The scale is the one that the kernel would choose itself.
    fn offers(&self, device_mss: u16) -> Offers {
        let bits = self.receive_bytes.max(1).ilog2() + 1;
        let scale = bits.saturating_sub(16).min(14) as u8;
        Offers {
            mss: device_mss,
            window_scale: self.scaling.then_some(scale),
            sack: self.sack,
            timestamps: self.timestamps,
        }
    }
}

#[cfg(test)]
impl OwnTcp {
    /// As Debian has it.
    pub(crate) fn usual() -> Self {
        Self {
            syncookies: true,
            timestamps: true,
            sack: true,
            scaling: true,
            rfc1337: false,
            receive_bytes: 6_291_456,
        }
    }

    pub(crate) fn without_cookies(self) -> Self {
        Self {
            syncookies: false,
            ..self
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_scale_is_the_kernels() {
        // tcp_select_initial_window: shifted until it fits 16 bits.
        for (bytes, scale) in [
            (65_535, 0),
            (65_536, 1),
            (212_992, 2),
            (6_291_456, 7),
            (1 << 40, 14),
        ] {
            let own = OwnTcp {
                receive_bytes: bytes,
                ..OwnTcp::usual()
            };
            assert_eq!(own.offers(1_460).window_scale, Some(scale), "{bytes}");
        }
    }

    #[test]
    fn options_that_this_machine_does_without_are_not_offered() {
        let plain = OwnTcp {
            timestamps: false,
            sack: false,
            scaling: false,
            ..OwnTcp::usual()
        };
        let offers = plain.offers(1_460);
        assert_eq!(
            (offers.window_scale, offers.sack, offers.timestamps),
            (None, false, false)
        );
        let usual = OwnTcp::usual();
        assert!(usual.refusal().is_none());
        let without = usual.without_cookies();
        assert!(without.refusal().unwrap().contains("tcp_syncookies"));
    }
}
