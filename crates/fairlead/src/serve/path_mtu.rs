//! Path MTU towards transparent servers, which see the clients' own addresses.
//!
//! A router reports a packet that is too big to the packet's source. That is the client, not the
//! switch, and the client cannot use the message. So ICMP errors that this machine forwards to
//! clients are also handled as if they had been addressed to the switch. Errors that this machine
//! would generate itself, because one of its interfaces or routes has a smaller MTU, are avoided:
//! the MSS offered to clients is capped.

use std::net::SocketAddr;

use fairlead_base::Instant;
use fairlead_driver_tun::{PassingErrors, TunDevice};
use fairlead_splice::config::Route;
use fairlead_survey::mtu_to;

use super::engine::Engine;
use super::plan::transparent_servers;
use crate::config::Settings;

/// Watches the path MTU (see the module documentation). Idle without transparent servers.
#[derive(Debug)]
pub(super) struct PathMtu {
    /// Copies of forwarded ICMP errors.
    pub(super) passing: PassingErrors,
    servers: Vec<SocketAddr>,
    /// Index of the server to query next.
    turn: usize,
}

impl PathMtu {
    /// Starts to listen, and looks up the MTU to every server. Call it once the device exists and
    /// before the first client is answered.
    pub(super) fn start(settings: &Settings, engine: &mut Engine<TunDevice>, now: Instant) -> Self {
        let servers = transparent_servers(&settings.switch);
        let [v4, v6] = [true, false].map(|v4| servers.iter().any(|one| one.is_ipv4() == v4));
        let device = &settings.network.device;
        let mut routes = settings.switch.services.iter().flat_map(|one| &one.routes);
        let watched = match routes.any(Route::is_to_host) {
            true => PassingErrors::watch_early(device, v4, v6),
            false => PassingErrors::watch(device, v4, v6),
        };
        let passing = watched.unwrap_or_else(|error| {
            tracing::warn!(
                "cannot read ICMP errors about packets to transparent servers ({error}): this \
                 needs the capability CAP_NET_RAW. Without it, set `mtu` in [network] to the \
                 smallest MTU on the path to them, or uploads may stall (except in mode \"tc\")"
            );
            PassingErrors::none()
        });
        let mut watch = Self {
            passing,
            servers,
            turn: 0,
        };
        for _ in 0..watch.servers.len() {
            watch.tend(engine, now);
        }
        watch
    }

    /// Looks up the MTU to the next server again, because interfaces and routes change. One per
    /// call, so that many servers do not delay packets.
    pub(super) fn tend(&mut self, engine: &mut Engine<TunDevice>, now: Instant) {
        let Some(&server) = self.servers.get(self.turn) else {
            return;
        };
        self.turn = (self.turn + 1) % self.servers.len();
        // On a failed lookup keep the last known MTU.
        if let Ok(mtu) = mtu_to(server.ip()) {
            engine.set_mtu_to(now, server.into(), mtu);
        }
    }

    /// Handles forwarded ICMP errors.
    pub(super) fn hear(&mut self, engine: &mut Engine<TunDevice>, now: Instant) {
        if let Err(error) = engine.hear(now, &mut self.passing) {
            tracing::error!("cannot read forwarded ICMP errors any more: {error}");
            self.passing = PassingErrors::none();
        }
    }
}
