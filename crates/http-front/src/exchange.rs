//! One request: the choice of its server, retries, and its end.

use fairlead_base::{DropReason, Instant};
use fairlead_splice::backends::{Caller, ServerId};
use fairlead_splice::config::{PoolId, ProxyVersion};
use fairlead_wire::{Asked, proxy_protocol};

use crate::Action;
use crate::cached::Cached;
use crate::client::Phase;
use crate::conns::{Conn, ConnId};
use crate::event::{Event, RequestEnd};
use crate::framing::Framing;
use crate::front::Front;
use crate::response::Question;
use crate::server::{Reading, Server};

/// A request that is being served.
#[derive(Debug)]
pub(crate) struct Exchange {
    pub(crate) route: u16,
    pub(crate) pool: PoolId,
    /// The server at work, counted as busy with it.
    pub(crate) server: Option<ServerId>,
    pub(crate) tried: Vec<ServerId>,
    /// How many further servers may be tried.
    pub(crate) retries: u8,
    /// How often it was sent once more.
    pub(crate) attempts: u8,
    /// The head as the server gets it, kept for a second attempt.
    pub(crate) head: Vec<u8>,
    pub(crate) question: Question,
    /// Served twice it does no more than served once.
    pub(crate) is_idempotent: bool,
    pub(crate) has_body: bool,
    pub(crate) body: Framing,
    /// The whole body is here, or was sent.
    pub(crate) body_done: bool,
    /// What the pool's balance hashes.
    pub(crate) hash: u64,
    pub(crate) started: Instant,
    /// What the client is being sent.
    pub(crate) status: Option<u16>,
    /// The client's connection can have another request after this one.
    pub(crate) keeps: bool,
    pub(crate) bytes_in: u64,
    pub(crate) bytes_out: u64,
    pub(crate) asked: Asked,
    /// What the route's cache does for it.
    pub(crate) cached: Cached,
    /// The head as the client sent it, kept while it waits for another's response.
    pub(crate) raw: Vec<u8>,
}

impl Exchange {
    /// One without a body, of which nothing else is known.
    fn bare((route, pool): (u16, PoolId), question: Question, now: Instant) -> Self {
        Self {
            route,
            pool,
            server: None,
            tried: Vec::new(),
            retries: 0,
            attempts: 0,
            head: Vec::new(),
            question,
            is_idempotent: false,
            has_body: false,
            body: Framing::Length(0),
            body_done: true,
            hash: 0,
            started: now,
            status: None,
            keeps: false,
            bytes_in: 0,
            bytes_out: 0,
            asked: Asked::default(),
            cached: Cached::No,
            raw: Vec::new(),
        }
    }

    /// A request of our own, on behalf of a client's.
    pub(crate) fn of_fetch(of: &Self, head: Vec<u8>, question: Question, now: Instant) -> Self {
        Self {
            retries: of.retries,
            head,
            is_idempotent: true,
            hash: of.hash,
            ..Self::bare((of.route, of.pool), question, now)
        }
    }

    /// Of a tunnel that came back. What was asked for is not known any more.
    pub(crate) fn of_tunnel(to: (u16, PoolId), server: ServerId, now: Instant) -> Self {
        let question = Question {
            is_head: false,
            minor: 1,
            upgrade: true,
            keep: false,
        };
        Self {
            server: Some(server),
            status: Some(101),
            ..Self::bare(to, question, now)
        }
    }

    /// A server may get it twice, and it is here still to be sent twice.
    fn is_repeatable(&self) -> bool {
        self.is_idempotent && !self.has_body
    }

    /// It may go to another server, or over another connection: nothing of a response has been
    /// passed on, and the server either never got it or may get it twice.
    fn may_repeat(&self, reached: bool) -> bool {
        self.status.is_none() && (!reached || self.is_repeatable())
    }
}

impl Front {
    /// Chooses a server for a request, and takes or begins a connection to it.
    pub(crate) fn choose_server(&mut self, now: Instant, id: ConnId) {
        let Some(client) = self.conns.get(id).and_then(Conn::client) else {
            return;
        };
        let private = client.private;
        let v4 = client.client.addr.is_v4();
        let Some(exchange) = client.exchange.as_mut() else {
            return;
        };
        let (pool, hash) = (exchange.pool, exchange.hash);
        let tried = core::mem::take(&mut exchange.tried);
        // A request is not bound to the client's version of IP.
        let pick = [v4, !v4].into_iter().find_map(|v4| {
            let caller = Caller::by(v4);
            self.backends.pick(pool, hash, caller, &tried, now)
        });
        let fresh = !exchange.is_repeatable();
        exchange.tried = tried;
        exchange.server = pick;
        let Some(server) = pick else {
            return self.end_exchange(now, id, RequestEnd::NoServer, Some(503));
        };
        self.backends.opened(server);
        let conn = match private {
            Some((of, conn)) if of == server => Some(conn),
            _ => self.idle_connection(server),
        };
        // Only what may be sent twice goes where it may have to be.
        let conn = conn.filter(|&conn| !fresh && self.conns.peek(conn).is_some());
        match conn {
            Some(conn) => {
                self.counts.numbers.front_reuses += 1;
                self.hand_over(now, id, conn);
            }
            None => self.connect(now, id, server),
        }
    }

    /// A connection to a server that waits for a request, the one that waited least.
    fn idle_connection(&mut self, server: ServerId) -> Option<ConnId> {
        self.idle[usize::from(server.0)].last().copied()
    }

    fn connect(&mut self, now: Instant, id: ConnId, server: ServerId) {
        let (of, at) = self.backends.server(server);
        let pool = &self.config.pools[usize::from(of.0)];
        let mut connection = Server::new(server);
        let (version, timeout) = (pool.proxy_protocol, pool.connect_timeout);
        connection.is_private = version.is_some();
        let conn = self.add_server(connection);
        let who = self.conns.get(id).and_then(Conn::client);
        let who = who.map(|client| (client.client, client.listen));
        if let (Some(added), Some((client, listen))) = (self.conns.get(conn), who) {
            added.deadline = Some(now + timeout);
            match version {
                Some(ProxyVersion::V1) => proxy_protocol::emit_v1(client, listen, &mut added.out),
                Some(ProxyVersion::V2) => proxy_protocol::emit_v2(client, listen, &mut added.out),
                None => {}
            }
        }
        self.join(id, conn);
        self.actions.push_back(Action::Connect(conn, at.endpoint));
    }

    /// Gives a request to a connection that has waited for one.
    fn hand_over(&mut self, now: Instant, id: ConnId, conn: ConnId) {
        if let Some(of) = self.conns.get(conn) {
            of.deadline = None;
            if let Some(server) = of.server() {
                server.reading = Reading::Head;
                server.is_reused = true;
                let waiting = &mut self.idle[usize::from(server.id.0)];
                waiting.retain(|one| *one != conn);
            }
        }
        self.join(id, conn);
        self.touch(now, id);
        self.actions.push_back(Action::Send(conn));
    }

    /// Joins a client and a server for a request.
    fn join(&mut self, id: ConnId, conn: ConnId) {
        let Some((client, server)) = self.conns.pair(id, conn) else {
            return;
        };
        client.peer = Some(conn);
        server.peer = Some(id);
        let is_private = server.server().is_some_and(|one| one.is_private);
        let Some(of) = client.client() else { return };
        if let Some(exchange) = &of.exchange {
            server.out.extend_from_slice(&exchange.head);
        }
        let server = server.server().map(|one| one.id);
        let earlier = of.private.take();
        if is_private {
            of.private = server.map(|server| (server, conn));
        }
        if let Some((_, earlier)) = earlier.filter(|(_, earlier)| *earlier != conn) {
            self.close(earlier);
        }
    }

    /// Parts a client from its server.
    pub(crate) fn part(&mut self, id: ConnId) -> Option<ConnId> {
        let peer = self.conns.get(id)?.peer.take()?;
        if let Some(other) = self.conns.get(peer) {
            other.peer = None;
        }
        if let Some(client) = self.conns.get(id).and_then(Conn::client)
            && let Some(server) = client.exchange.as_mut().and_then(|one| one.server.take())
        {
            self.backends.closed(server);
        }
        Some(peer)
    }

    /// A server did not take a request, or left it unanswered: another one gets it, if that is
    /// safe.
    pub(crate) fn retry(&mut self, now: Instant, id: ConnId, failed: Failed, end: RequestEnd) {
        let Some(client) = self.conns.get(id).and_then(Conn::client) else {
            return;
        };
        let address = client.client.addr;
        let Some(exchange) = client.exchange.as_mut() else {
            return;
        };
        let again = exchange.may_repeat(failed != Failed::Unreached);
        let server = exchange.server;
        // A connection that had waited was closed meanwhile: that says nothing of its server.
        let counts = failed != Failed::Stale;
        let left = usize::from(exchange.retries) > exchange.tried.len();
        let lives = exchange.attempts < RETRIES_MAX;
        if let Some(server) = server.filter(|_| counts) {
            exchange.tried.push(server);
        }
        let goes_on = again && lives && (left || !counts);
        if goes_on {
            exchange.attempts += 1;
        }
        if let Some(server) = server.filter(|_| failed == Failed::Unreached) {
            self.backends.failed_for(server, address, now);
        }
        if goes_on {
            self.counts.numbers.front_retries += 1;
            if let Some(peer) = self.part(id) {
                self.close(peer);
            }
            self.choose_server(now, id);
        } else {
            let status = match failed {
                Failed::Unreached => 503,
                Failed::Lost | Failed::Stale => 502,
            };
            self.end_exchange(now, id, end, Some(status));
        }
    }

    /// Ends a request before its response is complete. The client gets `status` if it has seen
    /// nothing of a response, else a RST.
    pub(crate) fn end_exchange(
        &mut self,
        now: Instant,
        id: ConnId,
        end: RequestEnd,
        status: Option<u16>,
    ) {
        if self.is_job(id) {
            return self.fail_job(now, id, end, status.unwrap_or(502));
        }
        self.leave_cache(id);
        let Some(exchange) = self.exchange(id) else {
            return;
        };
        let status = status.filter(|_| exchange.status.is_none());
        if let Some(status) = status {
            exchange.status = Some(status);
        }
        let is_head = exchange.question.is_head;
        self.note_end(now, id, end);
        if let Some(peer) = self.part(id) {
            self.reset(peer);
        }
        if let Some(conn) = self.conns.get(id) {
            conn.pass = 0;
            if let Some(client) = conn.client() {
                client.exchange = None;
                client.phase = Phase::Ending;
            }
        }
        match status {
            Some(status) => self.answer(now, id, status, is_head, false),
            None => self.reset(id),
        }
    }

    /// A request is over, one way or the other.
    pub(crate) fn note_end(&mut self, now: Instant, id: ConnId, end: RequestEnd) {
        let Some(client) = self.conns.get(id).and_then(Conn::client) else {
            return;
        };
        let (of, listen, service) = (client.client, client.listen, client.service);
        let Some(exchange) = client.exchange.as_mut() else {
            return;
        };
        let route = usize::from(exchange.route);
        self.counts.routes[usize::from(service)][route] += 1;
        let server = exchange.server.or(exchange.tried.last().copied());
        let event = Event {
            client: of,
            listen,
            service,
            to: Some((exchange.route, exchange.pool)),
            server: server.map(|id| (id, self.backends.server(id).1.endpoint)),
            asked: core::mem::take(&mut exchange.asked),
            status: exchange.status,
            bytes_in: exchange.bytes_in,
            bytes_out: exchange.bytes_out,
            duration: now.since(exchange.started),
            retries: exchange.attempts,
            end,
            reason: (end == RequestEnd::Refused).then_some(DropReason::HttpMalformed),
        };
        if let Some(reason) = event.reason {
            self.counts.refused.add(reason);
        }
        self.counts.numbers.add_end(end);
        self.emit(event);
    }

    /// Ends a request whose response was sent; the connections are for the next one.
    pub(crate) fn finish_if_done(&mut self, now: Instant, id: ConnId) {
        let Some(peer) = self.conns.peek(id).and_then(|conn| conn.peer) else {
            return self.finish_cached(now, id);
        };
        if self.is_job(id) {
            return self.deliver(now, id, peer);
        }
        let Some((conn, other)) = self.conns.pair(id, peer) else {
            return;
        };
        let sent = conn.is_flushed() && other.pass == 0;
        let (passed, flushed, eof) = (conn.pass == 0, other.is_flushed(), conn.eof);
        let (other_eof, rest) = (other.eof, other.input.len());
        let Some(server) = other.server() else { return };
        let (reading, keeps, is_private) = (server.reading, server.keeps, server.is_private);
        let Some(client) = conn.client() else { return };
        let Some(exchange) = &client.exchange else {
            return;
        };
        if client.phase == Phase::Tunnel {
            if sent && passed && flushed && eof && other_eof {
                self.note_end(now, id, RequestEnd::Upgraded);
                self.part(id);
                self.close(peer);
                self.end_client(now, id, false);
            }
            return;
        }
        if reading != Reading::Complete || !sent {
            return;
        }
        let asked = exchange.body_done && passed && flushed;
        let next = exchange.keeps && asked && !self.draining;
        self.note_end(now, id, RequestEnd::Served);
        self.part(id);
        if keeps && asked && !other_eof && rest == 0 && !self.draining {
            self.rest(now, peer, is_private);
        } else {
            self.close(peer);
        }
        if next {
            return self.await_request(now, id);
        }
        if let Some(conn) = self.conns.get(id) {
            conn.pass = 0;
        }
        let unread = self.conns.peek(id).is_some_and(|conn| conn.input.len() > 0);
        if let Some(client) = self.conns.get(id).and_then(Conn::client) {
            client.exchange = None;
            client.phase = Phase::Ending;
        }
        self.end_client(now, id, !asked || unread);
    }

    /// A server's connection waits for another request, if it can have one.
    pub(crate) fn rest_or_close(&mut self, now: Instant, id: ConnId) {
        let Some(conn) = self.conns.get(id) else {
            return;
        };
        let (eof, rest, flushed) = (conn.eof, conn.input.len(), conn.is_flushed());
        let Some(server) = conn.server() else { return };
        let done = server.reading == Reading::Complete && server.keeps && !eof;
        let is_private = server.is_private;
        match done && rest == 0 && flushed && !self.draining {
            true => self.rest(now, id, is_private),
            false => self.close(id),
        }
    }

    /// A server's connection waits for another request.
    fn rest(&mut self, now: Instant, id: ConnId, is_private: bool) {
        let (idle, most) = (self.limits.idle, self.limits.idle_per_server);
        let Some(conn) = self.conns.get(id) else {
            return;
        };
        conn.deadline = Some(now + idle);
        let Some(server) = conn.server() else { return };
        let waiting = &mut self.idle[usize::from(server.id.0)];
        if is_private {
            server.reading = Reading::Idle;
        } else if waiting.len() < most {
            server.reading = Reading::Idle;
            waiting.push(id);
        } else {
            return self.close(id);
        }
        self.actions.push_back(Action::Receive(id));
    }
}

/// A request is sent once more so often at most, whatever the reasons.
const RETRIES_MAX: u8 = 16;

/// How far a request got with a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Failed {
    /// There was no connection.
    Unreached,
    /// It was sent over a connection that had waited, which then ended.
    Stale,
    /// It was sent, and the connection ended.
    Lost,
}
