//! The ways to servers that see the clients' own addresses: how long packets may be there, and what
//! routers on them say.
//!
//! Whoever cannot take a packet tells its source: not the switch, but the client, which has sent no
//! such packet and cannot use the message. What routers say is heard as it passes by, and handled
//! as if it had been said to the switch. What this machine itself would say, because an interface
//! or a route of its own takes less, is prevented: no client is offered longer segments.

use std::net::SocketAddr;

use fairlead_base::Instant;
use fairlead_driver_tun::{PassingErrors, TunDevice};
use fairlead_survey::mtu_to;

use super::engine::Engine;
use super::plan::transparent_servers;
use crate::config::Settings;

/// See the module's text. Where there are no such servers, it does nothing.
#[derive(Debug)]
pub(super) struct Ways {
    /// What passes by.
    pub(super) passing: PassingErrors,
    servers: Vec<SocketAddr>,
    /// Whose turn it is to be asked about.
    turn: usize,
}

impl Ways {
    /// Begins to listen, and asks about every server's way: when the device is there, and before
    /// the first client is answered.
    pub(super) fn start(settings: &Settings, engine: &mut Engine<TunDevice>, now: Instant) -> Self {
        let servers = transparent_servers(&settings.switch);
        let [v4, v6] = [true, false].map(|v4| servers.iter().any(|one| one.is_ipv4() == v4));
        let watched = PassingErrors::watch(&settings.fastpath.device, v4, v6);
        let passing = watched.unwrap_or_else(|error| {
            tracing::warn!(
                "ICMP errors about packets to transparent servers cannot be read ({error}): that \
                 takes the capability CAP_NET_RAW; without it, set `mtu` in [fastpath] to the \
                 smallest MTU on the way to them, or uploads may stop (mode \"tc\" apart)"
            );
            PassingErrors::none()
        });
        let mut ways = Self {
            passing,
            servers,
            turn: 0,
        };
        for _ in 0..ways.servers.len() {
            ways.tend(engine, now);
        }
        ways
    }

    /// Asks about the next server's way: interfaces and routes change. One at a time, so that many
    /// servers hold up no packets.
    pub(super) fn tend(&mut self, engine: &mut Engine<TunDevice>, now: Instant) {
        let Some(&server) = self.servers.get(self.turn) else {
            return;
        };
        self.turn = (self.turn + 1) % self.servers.len();
        // What cannot be asked is no news.
        if let Ok(mtu) = mtu_to(server.ip()) {
            engine.set_mtu_to(now, server.into(), mtu);
        }
    }

    /// Handles what has passed by.
    pub(super) fn hear(&mut self, engine: &mut Engine<TunDevice>, now: Instant) {
        if let Err(error) = engine.hear(now, &mut self.passing) {
            tracing::error!("ICMP errors that pass by can no longer be read: {error}");
            self.passing = PassingErrors::none();
        }
    }
}
