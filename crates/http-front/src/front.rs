//! The driver's side of a front.

use core::time::Duration;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use fairlead_base::{Address, Endpoint, Instant, Seed};
use fairlead_splice::Uncached;
use fairlead_splice::backends::{Backends, BackendsError, ServerId};
use fairlead_splice::config::{Config, Service};
use fairlead_splice::snapshot::PoolSnapshot;
use fairlead_wire::http::{HeadScanner, Scan};

use crate::buffer::{BLOCK_BYTES, Stock};
use crate::caches::Caches;
use crate::client::{Client, Phase};
use crate::conns::{Conn, ConnId, Conns, Shut, Side};
use crate::counts::Counts;
use crate::event::{Event, RequestEnd};
use crate::exchange::Exchange;
use crate::server::{Reading, Server};
use crate::tunnel::Tunnels;

/// Bounds on what strangers can make grow.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Clients' connections at once.
    pub clients: usize,
    /// Bytes of buffers at once. Connections that find none wait.
    pub buffer_bytes: u64,
    /// Connections to one server that wait for a request.
    pub idle_per_server: usize,
    /// How long they wait.
    pub idle: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            clients: 16_384,
            buffer_bytes: 256 << 20,
            idle_per_server: 64,
            idle: Duration::from_secs(30),
        }
    }
}

/// What a driver has to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Begin a connection to a server.
    Connect(ConnId, Endpoint),
    /// There is something to send.
    Send(ConnId),
    /// There is room again for what was received.
    Receive(ConnId),
    /// End the direction in which we send.
    Shut(ConnId),
    /// Close.
    Close(ConnId),
    /// Close, with a RST.
    Reset(ConnId),
    /// Leave the socket to whoever serves it from now on ([`Front::inherited`]).
    Release(ConnId),
}

/// Bytes of heads and answers that a connection keeps room for.
const OUT_BYTES_KEPT: usize = 4 << 10;

/// Events that wait for the driver, at most. Those beyond are lost.
const EVENTS_MAX: usize = 4_096;

/// The same of what is not for a cache.
const UNCACHED_MAX: usize = 1_024;

/// The connections of one thread.
#[derive(Debug)]
pub struct Front {
    pub(crate) config: Arc<Config>,
    pub(crate) limits: Limits,
    pub(crate) backends: Backends,
    pub(crate) listens: Vec<(Endpoint, u16)>,
    pub(crate) conns: Conns,
    pub(crate) stock: Stock,
    /// Connections without a request, by server.
    pub(crate) idle: Vec<Vec<ConnId>>,
    pub(crate) actions: VecDeque<Action>,
    events: VecDeque<Event>,
    /// What turned out not to be for a cache.
    uncached: VecDeque<Uncached>,
    /// They found no room for what they have received.
    starved: Vec<ConnId>,
    pub(crate) counts: Counts,
    pub(crate) draining: bool,
    /// Clients go to another front when they are idle.
    pub(crate) releases: bool,
    pub(crate) caches: Caches,
    pub(crate) tunnels: Tunnels,
    /// Connections by client.
    pub(crate) of_client: BTreeMap<Address, u32>,
}

impl Front {
    /// A front for the services of a configuration.
    ///
    /// # Errors
    /// More pools or servers than can be numbered.
    pub fn new(config: Arc<Config>, seed: Seed, limits: Limits) -> Result<Self, BackendsError> {
        let backends = Backends::new(&config, seed.word("front", 0))?;
        let services = (0..=u16::MAX).zip(&config.services);
        let listens = services
            .flat_map(|(index, service)| service.listen.iter().map(move |&one| (one, index)))
            .collect();
        let idle = vec![Vec::new(); backends.servers().count()];
        Ok(Self {
            limits,
            backends,
            listens,
            conns: Conns::default(),
            stock: Stock::new(limits.buffer_bytes),
            idle,
            actions: VecDeque::new(),
            events: VecDeque::new(),
            uncached: VecDeque::new(),
            starved: Vec::new(),
            counts: Counts {
                routes: config
                    .services
                    .iter()
                    .map(|one| vec![0; one.routes.len()])
                    .collect(),
                ..Counts::default()
            },
            draining: false,
            of_client: BTreeMap::new(),
            releases: false,
            tunnels: Tunnels::default(),
            caches: Caches::new(&config, seed),
            config,
        })
    }

    /// Heeds what is known of servers elsewhere: orders, weights and health checks.
    pub fn follow(&mut self, pools: &[PoolSnapshot], now: Instant) {
        let servers = pools.iter().flat_map(|pool| &pool.servers);
        for (id, server) in (0..=u16::MAX).map(ServerId).zip(servers) {
            self.backends.set_admin(id, server.admin, now);
            self.backends.set_weight(id, server.weight);
            if let Some(is_up) = server.check {
                self.backends.set_check(id, is_up, now);
            }
        }
        self.backends.handle_time(now);
    }

    /// Compares the clock with that of the rest of the world, in milliseconds since 1970. Caches
    /// need it.
    pub fn set_wall_clock(&mut self, now: Instant, wall_ms: u64) {
        self.caches.set_wall(now, wall_ms);
    }

    /// A client has connected. `None` where it is turned away: close its socket.
    pub fn accepted(&mut self, now: Instant, client: Endpoint, listen: Endpoint) -> Option<ConnId> {
        self.admit(client, listen, |service| now + service.timeouts.head)
    }

    /// A client that another front has released ([`Action::Release`]). `None` where it is turned
    /// away: close its socket.
    pub fn inherited(
        &mut self,
        now: Instant,
        client: Endpoint,
        listen: Endpoint,
    ) -> Option<ConnId> {
        self.admit(client, listen, |service| {
            now + service.per_request.keep_alive
        })
    }

    /// A client's connection, whose next request must begin in time.
    fn admit(
        &mut self,
        client: Endpoint,
        listen: Endpoint,
        deadline: impl FnOnce(&Service) -> Instant,
    ) -> Option<ConnId> {
        let refuses = self.is_full() || self.has_enough(client) || self.draining;
        let Some(service) = self.service_of(listen).filter(|_| !refuses) else {
            self.counts.numbers.front_turned_away += 1;
            return None;
        };
        *self.of_client.entry(client.addr.subscriber()).or_default() += 1;
        self.counts.numbers.front_accepted += 1;
        self.counts.numbers.front_clients += 1;
        let client = Client::new(client, listen, service);
        let mut conn = Conn::new(Side::Client(Box::new(client)));
        conn.deadline = Some(deadline(&self.config.services[usize::from(service)]));
        Some(self.conns.add(conn))
    }

    /// Where the next bytes of a connection go. `None` where they are not wanted now: an
    /// [`Action::Receive`] follows.
    pub fn space(&mut self, id: ConnId) -> Option<&mut [u8]> {
        let (conns, stock) = (&mut self.conns, &mut self.stock);
        let conn = conns.get(id)?;
        if conn.eof || conn.is_held {
            return None;
        }
        // Asked for twice, because of a limit of the borrow checker.
        if conn.input.space(stock).is_none() {
            if conn.input.len() == 0 && !core::mem::replace(&mut conn.is_starved, true) {
                self.starved.push(id);
            }
            return None;
        }
        conn.input.space(stock)
    }

    /// This number of bytes was received into its space. Zero of them only gives the space back.
    pub fn received(&mut self, now: Instant, id: ConnId, bytes: usize) {
        let Some(conn) = self.conns.get(id) else {
            return;
        };
        conn.input.filled(bytes);
        if bytes == 0 {
            conn.input.rest(&mut self.stock);
            return self.feed();
        }
        match conn.side {
            Side::Client(_) => {
                self.counts.numbers.front_bytes_in += bytes as u64;
                self.read_client(now, id);
            }
            Side::Server(_) => self.read_server(now, id),
        }
        self.settle(now);
    }

    /// What goes out next.
    pub fn output(&self, id: ConnId) -> [&[u8]; 2] {
        let Some(conn) = self.conns.peek(id) else {
            return [&[], &[]];
        };
        if let Side::Server(server) = &conn.side
            && server.reading == Reading::Connecting
        {
            return [&[], &[]];
        }
        let own = &conn.out[conn.out_at..];
        let peer = conn.peer.and_then(|peer| self.conns.peek(peer));
        let passing = peer.map_or(&[][..], |peer| &peer.input.bytes()[..peer.pass]);
        [own, passing]
    }

    /// This number of bytes of the output was sent.
    pub fn sent(&mut self, now: Instant, id: ConnId, bytes: usize) {
        let Some(conn) = self.conns.get(id) else {
            return;
        };
        let own = bytes.min(conn.out.len() - conn.out_at);
        conn.out_at += own;
        if conn.is_flushed() {
            // Connections that wait keep no large buffer.
            conn.out.clear();
            conn.out.shrink_to(OUT_BYTES_KEPT);
            conn.out_at = 0;
        }
        let (peer, is_client) = (conn.peer, matches!(conn.side, Side::Client(_)));
        if is_client {
            self.counts.numbers.front_bytes_out += bytes as u64;
        }
        if let Some(peer) = peer.filter(|_| bytes > own) {
            self.took(peer, bytes - own);
        }
        let client = if is_client { Some(id) } else { peer };
        if let Some(client) = client {
            self.note_sent(now, client, is_client, bytes);
        }
        self.shut_if_flushed(id);
        self.settle(now);
    }

    /// Bytes of its input were sent to its peer.
    pub(crate) fn took(&mut self, id: ConnId, bytes: usize) {
        if let Some(conn) = self.conns.get(id) {
            assert!(bytes <= conn.pass, "more was sent than there was to send");
            conn.pass -= bytes;
            conn.input.consume(bytes, &mut self.stock);
            self.actions.push_back(Action::Receive(id));
        }
    }

    /// The other end sends nothing more.
    pub fn ended(&mut self, now: Instant, id: ConnId) {
        let Some(conn) = self.conns.get(id) else {
            return;
        };
        conn.input.rest(&mut self.stock);
        conn.eof = true;
        match conn.side {
            Side::Client(_) => self.client_ended(now, id),
            Side::Server(_) => self.server_ended(now, id),
        }
        self.settle(now);
    }

    /// The connection is no more: reset, or never made.
    pub fn failed(&mut self, now: Instant, id: ConnId) {
        let Some(conn) = self.conns.get(id) else {
            return;
        };
        match conn.side {
            Side::Client(_) => self.drop_client(now, id, RequestEnd::ClientLost),
            Side::Server(_) => self.server_failed(now, id),
        }
        self.settle(now);
    }

    /// A connection to a server is made.
    pub fn connected(&mut self, now: Instant, id: ConnId) {
        self.server_connected(now, id);
        self.settle(now);
    }

    /// Ends what has waited too long. To be called every 100 ms or so.
    pub fn handle_time(&mut self, now: Instant) {
        let late = |(id, conn): (ConnId, &Conn)| {
            let due = conn.deadline.is_some_and(|at| at <= now);
            due.then_some((id, matches!(conn.side, Side::Client(_))))
        };
        let late: Vec<_> = self.conns.all().filter_map(late).collect();
        self.caches.handle_time(now);
        self.tend_hits(now);
        if self.releases {
            self.release_idle(now);
        }
        self.tend_tunnels(now);
        for (id, is_client) in late {
            match is_client {
                true => self.client_late(now, id),
                false => self.server_late(now, id),
            }
        }
        self.settle(now);
    }

    /// No new requests from now on: connections end behind the response that is under way.
    pub fn drain(&mut self, now: Instant) {
        self.draining = true;
        self.answer_in_kernel(false);
        let waits = |(id, conn): (ConnId, &Conn)| match &conn.side {
            Side::Client(client) => {
                (client.phase == Phase::Head && conn.input.len() == 0).then_some(id)
            }
            Side::Server(server) => (server.reading == Reading::Idle).then_some(id),
        };
        let waiting: Vec<_> = self.conns.all().filter_map(waits).collect();
        for id in waiting {
            match self.conns.get(id).map(|conn| conn.client().is_some()) {
                Some(true) => self.end_client(now, id, true),
                Some(false) => self.close(id),
                None => {}
            }
        }
        self.check_invariants();
    }

    /// Resets all connections.
    pub fn abort(&mut self, now: Instant) {
        self.draining = true;
        let clients =
            |(id, conn): (ConnId, &Conn)| matches!(conn.side, Side::Client(_)).then_some(id);
        let clients: Vec<_> = self.conns.all().filter_map(clients).collect();
        for id in clients {
            self.drop_client(now, id, RequestEnd::Aborted);
        }
        let rest: Vec<_> = self.conns.all().map(|(id, _)| id).collect();
        for id in rest {
            self.close(id);
        }
        self.check_invariants();
    }

    /// What to do next. To be called until there is nothing.
    pub fn poll_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// What has happened.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// A request whose response turned out not to be for the cache of its route: connections that
    /// begin with it need not come here.
    pub fn poll_uncached(&mut self) -> Option<Uncached> {
        self.uncached.pop_front()
    }

    /// Notes that the response to the request with this head is not for the cache.
    pub(crate) fn note_uncached(&mut self, service: u16, route: u16, head: &[u8]) {
        let mut scanner = HeadScanner::default();
        let Scan::Complete(head) = scanner.scan(head) else {
            return;
        };
        let host = head.host.as_deref().unwrap_or_default();
        self.caches.hits.note_uncached(host, head.target);
        if self.uncached.len() < UNCACHED_MAX {
            self.uncached.push_back(Uncached {
                service,
                route,
                host: host.to_owned(),
                target: head.target.to_owned(),
            });
        }
    }

    pub(crate) fn emit(&mut self, event: Event) {
        if self.events.len() < EVENTS_MAX {
            self.events.push_back(event);
        } else {
            self.counts.numbers.front_events_lost += 1;
        }
    }

    /// The counters.
    pub fn counts(&self) -> Counts {
        let mut counts = self.counts.clone();
        counts.caches = self.caches();
        counts.numbers.front_idle = self.idle.iter().map(|ids| ids.len() as u64).sum();
        counts.numbers.front_buffer_bytes = (self.stock.used() * BLOCK_BYTES) as u64;
        counts
    }

    /// Goes on from the counters of a front that has failed, before there are connections.
    pub fn go_on_counting(&mut self, counts: Counts) {
        self.counts = counts.carried_on();
        self.check_invariants();
    }

    /// The connection is one of the front still.
    pub fn knows(&self, id: ConnId) -> bool {
        self.conns.peek(id).is_some()
    }

    /// No client is connected.
    pub fn is_idle(&self) -> bool {
        self.counts.numbers.front_clients == 0
    }

    /// Ends the direction in which we send, behind what there is to be sent.
    pub(crate) fn shut_if_flushed(&mut self, id: ConnId) {
        let Some(conn) = self.conns.peek(id) else {
            return;
        };
        let passing = conn.peer.and_then(|peer| self.conns.peek(peer));
        let flushed = conn.is_flushed() && passing.is_none_or(|peer| peer.pass == 0);
        if conn.shut == Shut::Wanted && flushed {
            if let Some(conn) = self.conns.get(id) {
                conn.shut = Shut::Done;
            }
            self.actions.push_back(Action::Shut(id));
        }
    }

    /// Forgets a connection; its peer is the caller's affair.
    pub(crate) fn close(&mut self, id: ConnId) {
        self.forget(id, Action::Close(id));
    }

    pub(crate) fn reset(&mut self, id: ConnId) {
        self.forget(id, Action::Reset(id));
    }

    pub(crate) fn forget(&mut self, id: ConnId, action: Action) {
        let Some(mut conn) = self.conns.remove(id) else {
            return;
        };
        conn.input.clear(&mut self.stock);
        match &conn.side {
            Side::Client(client) => {
                debug_assert!(client.job.is_none(), "a request of our own has no socket");
                self.counts.numbers.front_clients -= 1;
                let (of, private) = (client.client, client.private);
                self.leave_client(of);
                if let Some((_, private)) = private {
                    self.close(private);
                }
            }
            Side::Server(server) => {
                self.counts.numbers.front_servers -= 1;
                if server.reading == Reading::Idle {
                    self.idle[usize::from(server.id.0)].retain(|one| *one != id);
                }
            }
        }
        self.actions.push_back(action);
    }

    /// What follows from every call.
    pub(crate) fn settle(&mut self, now: Instant) {
        self.heed_caches(now);
        self.feed();
        self.check_invariants();
    }

    /// Lets connections go on that found no room.
    fn feed(&mut self) {
        if self.stock.has_room() {
            // Those that still find none come back.
            for id in core::mem::take(&mut self.starved) {
                if let Some(conn) = self.conns.get(id) {
                    conn.is_starved = false;
                    self.actions.push_back(Action::Receive(id));
                }
            }
        }
    }

    /// What holds between calls.
    ///
    /// # Panics
    /// Where it does not.
    pub fn check_invariants(&self) {
        if !cfg!(debug_assertions) {
            return;
        }
        let (mut clients, mut servers, mut blocks) = (0, 0, 0);
        for (id, conn) in self.conns.all() {
            assert!(
                conn.pass <= conn.input.len(),
                "more passes than was received"
            );
            blocks += usize::from(conn.input.has_block());
            let peer = conn.peer.map(|peer| self.conns.peek(peer));
            if let Some(peer) = peer {
                let back = peer.expect("a peer that is no more").peer;
                assert_eq!(back, Some(id), "peers know each other");
            }
            match &conn.side {
                Side::Client(client) => {
                    clients += u64::from(client.job.is_none());
                    let busy = matches!(client.phase, Phase::Exchange | Phase::Tunnel);
                    assert_eq!(client.exchange.is_some(), busy, "a request is there or not");
                    assert!(busy || conn.peer.is_none());
                }
                Side::Server(server) => {
                    servers += 1;
                    let is_idle = server.reading == Reading::Idle;
                    let waits = self.idle[usize::from(server.id.0)].contains(&id);
                    assert_eq!(is_idle, waits || server.is_private && is_idle);
                    assert_eq!(
                        is_idle,
                        conn.peer.is_none(),
                        "a server has a request or none"
                    );
                }
            }
        }
        assert_eq!(
            (clients, servers),
            (
                self.counts.numbers.front_clients,
                self.counts.numbers.front_servers
            )
        );
        let of_all: u64 = self.of_client.values().copied().map(u64::from).sum();
        assert_eq!(of_all, clients, "clients are counted");
        assert_eq!(blocks, self.stock.used(), "blocks are lost");
    }
}

impl Front {
    pub(crate) fn exchange(&mut self, id: ConnId) -> Option<&mut Exchange> {
        self.conns.get(id)?.client()?.exchange.as_mut()
    }

    pub(crate) fn add_server(&mut self, server: Server) -> ConnId {
        self.counts.numbers.front_servers += 1;
        self.counts.numbers.front_connects += 1;
        self.conns.add(Conn::new(Side::Server(server)))
    }
}
