//! The front's place in the packet loop: what it learns from there, and what it reports.

use std::os::fd::{OwnedFd, RawFd};
use std::sync::Arc;
use std::time::Duration;

use fairlead_base::{Instant, Seed};
use fairlead_bpf_loader::HitMaps;
use fairlead_datapath::Snapshot;
use fairlead_driver_tun::TunDevice;
use fairlead_http_front::Counts;
use fairlead_os_tcp::heirs::take_over;
use fairlead_splice::config::Config;

use super::engine::Engine;
use crate::api::{Api, RequestQueue};
use crate::config::{Access, Settings};
use crate::front::{self, Adopts, KernelHits, Ready, Running, is_wanted};
use crate::log::AccessLog;

/// The front, if some route needs it and it can be had.
#[derive(Debug, Default)]
pub(super) struct FrontThread {
    running: Option<Running>,
    /// How long requests may go on behind a reload.
    patience: Duration,
}

/// Its sockets, if they could be opened.
pub(super) struct Prepared {
    ready: Option<Ready>,
    /// Where clients of the run before a reload come from.
    predecessor: Option<OwnedFd>,
    /// The kernel program that answers requests, if there is one.
    pub(super) hits: Option<HitMaps>,
}

/// The descriptor of that socket.
pub(super) const PREDECESSOR: &str = "FAIRLEAD_PREDECESSOR";

/// The socket, if the run before left it open. Call it once per process.
fn predecessor() -> Option<OwnedFd> {
    take_over(std::env::var(PREDECESSOR).ok()?.parse().ok()?)
}

impl FrontThread {
    /// Opens its sockets, and leads routes to them.
    pub(super) fn prepare(switch: &mut Config) -> Prepared {
        let wanted = is_wanted(switch);
        let opened = wanted.then(|| Ready::open(switch)).transpose();
        let ready = opened.unwrap_or_else(|error| {
            tracing::warn!("requests follow the first one of their connection: {error}");
            None
        });
        Prepared {
            ready,
            predecessor: predecessor(),
            hits: None,
        }
    }

    /// Ends the thread for a reload. Returns where the next run hears of its clients.
    pub(super) fn leave(&mut self, requests: &mut RequestQueue) -> Option<RawFd> {
        // Whoever hands connections off waits for an answer of this thread.
        requests.close();
        self.running.take()?.leave(self.patience)
    }

    /// Passes on what is known of servers, and logs what it has done.
    pub(super) fn exchange(
        &mut self,
        engine: &mut Engine<TunDevice>,
        switch: &mut Snapshot,
        access_log: &mut AccessLog<'_>,
        now: Instant,
    ) -> Option<Counts> {
        let running = self.running.as_ref()?;
        running.tell(switch);
        let shown = running.take();
        engine.note_uncached(now, &shown.uncached);
        for event in &shown.events {
            access_log.request(now, event);
        }
        switch.drops.merge(&shown.counts.refused);
        for (service, counts) in switch.services.iter_mut().zip(&shown.counts.routes) {
            for (route, count) in service.routes.iter_mut().zip(counts) {
                route.requests = *count;
            }
        }
        Some(shown.counts)
    }

    pub(super) fn drain(&self) {
        if let Some(running) = &self.running {
            running.drain();
        }
    }

    /// Nothing that caches hold is to outlive the process.
    pub(super) fn forget(&self) {
        if let Some(running) = &self.running {
            running.forget();
        }
    }

    pub(super) fn abort(&self) {
        if let Some(running) = &self.running {
            running.abort();
        }
    }

    /// Clients that are connected to it.
    pub(super) fn clients(&self) -> u64 {
        self.running.as_ref().map_or(0, Running::clients)
    }
}

impl Prepared {
    /// Starts its thread.
    pub(super) fn start(self, settings: &Settings, api: &Api, seed: Seed) -> FrontThread {
        let at = (&*settings.instance.name, &*settings.network.device);
        let (switch, predecessor) = (&settings.switch, self.predecessor);
        let ready = self.ready;
        let socket = settings.instance.adopt_socket.clone();
        let carrier = api.handoff.get().map(Arc::clone);
        let adopts = socket.zip(carrier);
        let adopts = adopts.map(|(socket, carrier)| Adopts { socket, carrier });
        let start = |ready| front::start(ready, at, switch, seed, predecessor, adopts);
        let started = ready.map(start).transpose();
        let running = started.unwrap_or_else(|error| {
            tracing::warn!("requests are not served one by one: {error}");
            None
        });
        if let Some(running) = &running {
            let _ = api.front.set(Arc::clone(running.desk()));
            if let Some(maps) = self.hits {
                let mut hits = KernelHits::new(maps);
                hits.log(settings.log.access == Access::All);
                running.answer_in_kernel(hits);
            }
        }
        FrontThread {
            running,
            patience: settings.instance.drain_timeout,
        }
    }
}
