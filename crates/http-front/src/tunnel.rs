//! Connections that have changed to another protocol (RFC 9110, section 7.8). Their bytes are
//! copied both ways, until the driver hands both connections off to something quicker.
//!
//! ```text
//!            quiet, or many bytes              poll_hand_off
//!   Copied ──────────────────────► due, empty ───────────────► Away ──► handed_off: over here
//!     ▲ │                                                       │
//!     │ └► Held: nothing is read, until empty or the next tick   └► stays: copied again
//! ```

use core::time::Duration;
use std::collections::VecDeque;

use fairlead_base::{Endpoint, Instant};
use fairlead_splice::config::{Config, PoolId, Route};

use crate::Action;
use crate::client::{Client, Phase};
use crate::conns::{Conn, ConnId, Shut, Side};
use crate::event::RequestEnd;
use crate::exchange::Exchange;
use crate::front::Front;
use crate::server::{Reading, Server};

/// A tunnel that was quiet for this long is handed off: what its ends send while it moves is lost,
/// and has to be sent again.
const QUIET: Duration = Duration::from_millis(100);
/// One that has carried this much is worth it, quiet or not.
const MANY_BYTES: u64 = 1 << 20;
/// The pause behind a refusal, twice as long after each further one.
const PAUSE: Duration = Duration::from_millis(250);
/// After this number of refusals it stays.
const REFUSALS_MAX: u32 = 8;

/// Of a client whose connection is a tunnel.
#[derive(Debug)]
pub(crate) struct Tunnel {
    stage: Stage,
    /// Bytes that were copied.
    bytes: u64,
    /// When the last ones were.
    last: Instant,
    refusals: u32,
    /// Not handed off before.
    next: Instant,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Copied,
    /// Nothing is read, so that everything gets written.
    Held,
    /// The driver has taken its sockets out.
    Away,
    /// It is copied for good.
    Stays,
}

/// All of them.
#[derive(Debug, Default)]
pub(crate) struct Tunnels {
    /// The driver can hand them off.
    can_leave: bool,
    /// Those that may be handed off now.
    due: VecDeque<ConnId>,
}

/// The ends of a tunnel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TunnelEnds {
    /// The client.
    pub client: Endpoint,
    /// The listening endpoint that it connected to.
    pub listen: Endpoint,
    /// The server.
    pub server: Endpoint,
}

impl TunnelEnds {
    /// Service, route and pool of a front with this configuration that such a tunnel may be of.
    pub fn place(&self, config: &Config) -> Option<(u16, u16, PoolId)> {
        let mut services = (0..=u16::MAX).zip(&config.services);
        let (number, service) = services.find(|(_, one)| one.listen.contains(&self.listen))?;
        let mut routes = (0..=u16::MAX).zip(&service.routes);
        routes.find_map(|(route, of)| {
            let pool = of.pool.filter(|_| Route::is_to_front(of))?;
            let mut servers = config.pools[usize::from(pool.0)].servers.iter();
            let is_its = servers.any(|one| one.endpoint == self.server);
            is_its.then_some((number, route, pool))
        })
    }
}

impl Tunnel {
    fn new(now: Instant, stage: Stage) -> Self {
        Self {
            stage,
            bytes: 0,
            last: now,
            refusals: 0,
            next: now,
        }
    }

    fn is_due(&self, now: Instant) -> bool {
        let is_worth = self.bytes >= MANY_BYTES || self.last + QUIET <= now;
        self.stage == Stage::Copied && self.next <= now && is_worth
    }

    /// It is not handed off for a while.
    fn put_off(&mut self, now: Instant) {
        self.refusals += 1;
        self.stage = match self.refusals {
            REFUSALS_MAX.. => Stage::Stays,
            _ => Stage::Copied,
        };
        self.next = now + PAUSE * (1 << self.refusals.min(REFUSALS_MAX));
    }
}

impl Front {
    /// Whether the driver can hand tunnels off ([`Front::poll_hand_off`]).
    pub fn let_tunnels_leave(&mut self, can_leave: bool) {
        self.tunnels.can_leave = can_leave;
        self.tunnels.due.clear();
    }

    /// A response has changed the protocol: what is here passes, and all that comes.
    pub(crate) fn begin_tunnel(&mut self, now: Instant, client: ConnId, server: ConnId) {
        let Some((to, from)) = self.conns.pair(client, server) else {
            return;
        };
        from.pass = from.input.len();
        to.pass = to.input.len();
        if let Some(server) = from.server() {
            server.reading = Reading::Tunnel;
        }
        if let Some(of) = to.client() {
            // The sockets of an announced client lead to the switch itself.
            let stage = match of.is_announced {
                true => Stage::Stays,
                false => Stage::Copied,
            };
            of.phase = Phase::Tunnel;
            of.tunnel = Some(Tunnel::new(now, stage));
        }
        self.actions.push_back(Action::Send(server));
        self.touch(now, client);
    }

    /// Bytes of a tunnel have been copied.
    pub(crate) fn note_copied(&mut self, now: Instant, id: ConnId, bytes: usize) {
        let Some(tunnel) = self.tunnel(id) else {
            return;
        };
        tunnel.bytes += bytes as u64;
        tunnel.last = now;
        if tunnel.stage == Stage::Held && self.is_empty_tunnel(id) {
            self.tunnels.due.push_front(id);
        }
    }

    fn tunnel(&mut self, id: ConnId) -> Option<&mut Tunnel> {
        self.conns.get(id)?.client()?.tunnel.as_mut()
    }

    /// Looks for tunnels that may be handed off, every 100 ms or so. One that was held meanwhile in
    /// vain goes on: its ends may wait for each other.
    pub(crate) fn tend_tunnels(&mut self, now: Instant) {
        if !self.tunnels.can_leave {
            return;
        }
        let (mut due, mut held) = (VecDeque::new(), Vec::new());
        for (id, conn) in self.conns.all() {
            let Side::Client(client) = &conn.side else {
                continue;
            };
            match &client.tunnel {
                Some(tunnel) if tunnel.stage == Stage::Held => held.push(id),
                Some(tunnel) if tunnel.is_due(now) => due.push_back(id),
                _ => {}
            }
        }
        self.tunnels.due = due;
        for id in held {
            if let Some(tunnel) = self.tunnel(id) {
                tunnel.put_off(now);
            }
            self.hold(id, false);
        }
    }

    /// The next tunnel to be handed off: its client and its server. Nothing of it is here, and
    /// nothing is read or written any more until [`Front::stays`].
    pub fn poll_hand_off(&mut self) -> Option<[ConnId; 2]> {
        while let Some(id) = self.tunnels.due.pop_front() {
            let Some(stage) = self.tunnel(id).map(|tunnel| tunnel.stage) else {
                continue;
            };
            if !matches!(stage, Stage::Copied | Stage::Held) {
                continue;
            }
            let is_empty = self.is_empty_tunnel(id);
            let stage = match (self.is_open_tunnel(id), is_empty) {
                (false, _) => Stage::Stays,
                (true, true) => Stage::Away,
                (true, false) => Stage::Held,
            };
            if let Some(tunnel) = self.tunnel(id) {
                tunnel.stage = stage;
            }
            self.hold(id, stage != Stage::Stays);
            if stage == Stage::Away
                && let Some(conn) = self.conns.get(id)
                && let Some(peer) = conn.peer
            {
                conn.deadline = None;
                return Some([id, peer]);
            }
        }
        None
    }

    /// A tunnel was handed off: it is no affair of the front any more, nor are its sockets.
    pub fn handed_off(&mut self, now: Instant, client: ConnId) {
        if self.is_away(client) {
            self.note_end(now, client, RequestEnd::HandedOff);
            if let Some(peer) = self.part(client) {
                self.close(peer);
            }
            self.close(client);
            self.settle(now);
        }
    }

    /// A tunnel could not be handed off; its sockets are here again. It is tried once more if it
    /// may be only now that it cannot.
    pub fn stays(&mut self, now: Instant, client: ConnId, for_now: bool) {
        if !self.is_away(client) {
            return;
        }
        self.counts.numbers.front_handoffs_refused += 1;
        if let Some(tunnel) = self.tunnel(client) {
            tunnel.put_off(now);
            if !for_now {
                tunnel.stage = Stage::Stays;
            }
        }
        self.hold(client, false);
        self.touch(now, client);
        self.settle(now);
    }

    /// A tunnel that was handed off came back: it is copied from now on. `None` where it is of no
    /// service ([`TunnelEnds::place`]).
    pub fn handed_back(&mut self, now: Instant, ends: &TunnelEnds) -> Option<[ConnId; 2]> {
        let (service, route, pool) = ends.place(&self.config)?;
        let server = self.backends.find(pool, ends.server)?;
        let mut client = Client::new(ends.client, ends.listen, service);
        client.phase = Phase::Tunnel;
        client.tunnel = Some(Tunnel::new(now, Stage::Stays));
        client.exchange = Some(Exchange::of_tunnel((route, pool), server, now));
        *self
            .of_client
            .entry(ends.client.addr.subscriber())
            .or_default() += 1;
        let numbers = &mut self.counts.numbers;
        numbers.front_clients += 1;
        numbers.front_servers += 1;
        numbers.front_handed_back += 1;
        self.backends.opened(server);
        let mut other = Conn::new(Side::Server(Server::of_tunnel(server)));
        let client = self.conns.add(Conn::new(Side::Client(Box::new(client))));
        other.peer = Some(client);
        let server = self.conns.add(other);
        if let Some(conn) = self.conns.get(client) {
            conn.peer = Some(server);
        }
        self.touch(now, client);
        self.settle(now);
        Some([client, server])
    }

    /// One end of a tunnel sends nothing more; the other one hears of it behind what was sent.
    pub(crate) fn end_direction(&mut self, now: Instant, id: ConnId) {
        let Some(peer) = self.conns.peek(id).and_then(|conn| conn.peer) else {
            return;
        };
        let Some((one, other)) = self.conns.pair(id, peer) else {
            return;
        };
        if other.shut == Shut::Open {
            other.shut = Shut::Wanted;
        }
        let client = if one.client().is_some() { id } else { peer };
        self.shut_if_flushed(peer);
        self.finish_if_done(now, client);
    }

    fn is_away(&mut self, client: ConnId) -> bool {
        self.tunnel(client)
            .is_some_and(|tunnel| tunnel.stage == Stage::Away)
    }

    /// Nothing waits to be sent, either way.
    fn is_empty_tunnel(&self, id: ConnId) -> bool {
        self.both_of(id, |conn| conn.is_flushed() && conn.input.len() == 0)
    }

    /// Neither direction has ended.
    fn is_open_tunnel(&self, id: ConnId) -> bool {
        self.both_of(id, |conn| !conn.eof && conn.shut == Shut::Open)
    }

    fn both_of(&self, id: ConnId, holds: impl Fn(&Conn) -> bool) -> bool {
        let one = self.conns.peek(id);
        let other = one.and_then(|conn| self.conns.peek(conn.peer?));
        one.zip(other)
            .is_some_and(|(one, other)| holds(one) && holds(other))
    }

    /// Reads nothing more of both ends of a tunnel, or goes on.
    fn hold(&mut self, id: ConnId, is_held: bool) {
        let peer = self.conns.peek(id).and_then(|conn| conn.peer);
        for id in [Some(id), peer].into_iter().flatten() {
            if let Some(conn) = self.conns.get(id)
                && core::mem::replace(&mut conn.is_held, is_held) != is_held
                && !is_held
            {
                self.actions.push_back(Action::Receive(id));
            }
        }
    }
}
