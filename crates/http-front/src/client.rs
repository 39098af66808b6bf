//! A client's connection: reading requests, and ending.

use core::time::Duration;
use std::sync::Arc;

use fairlead_base::{DropReason, Endpoint, Instant};
use fairlead_splice::backends::{Backends, ServerId};
use fairlead_splice::config::{Page, PoolId, Service, Unmatched};
use fairlead_splice::routes::{self, Subject};
use fairlead_wire::Asked;
use fairlead_wire::http::{self, HeadScanner, RequestHead, Scan};

use crate::cached::{Cached, Job};
use crate::caches::{Caches, Step};
use crate::conns::{Conn, ConnId, Shut, Side};
use crate::event::{Event, RequestEnd};
use crate::exchange::Exchange;
use crate::fields::{Options, request_head, upgrade};
use crate::framing::Framing;
use crate::front::{Action, Front};
use crate::hits::Hit;
use crate::purge;
use crate::response::Question;
use crate::tunnel::Tunnel;

/// What `Retry-After` says when no server can be reached, seconds.
const RETRY_AFTER_S: u32 = 5;

/// How long a client is given to read the last response: what it still sends is dropped meanwhile,
/// because a close with unread bytes would be a RST, which can overtake the response (RFC 9112,
/// section 9.6).
const LINGER: Duration = Duration::from_secs(2);

/// Of a client's connection.
#[derive(Debug)]
pub(crate) struct Client {
    pub(crate) client: Endpoint,
    pub(crate) listen: Endpoint,
    pub(crate) service: u16,
    pub(crate) phase: Phase,
    scanner: HeadScanner,
    /// The head at hand began so far back.
    begun: Option<Instant>,
    pub(crate) exchange: Option<Exchange>,
    /// A connection to a server that only this client uses, because the server was told of it.
    pub(crate) private: Option<(ServerId, ConnId)>,
    /// It has no socket: its request is the front's own.
    pub(crate) job: Option<Job>,
    /// Its socket's addresses are not its own: the switch stands between.
    pub(crate) is_announced: bool,
    /// It has changed to another protocol.
    pub(crate) tunnel: Option<Tunnel>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Who the client is has yet to be said (`announced.rs`).
    Announcement,
    /// A request is awaited, or its head not yet whole.
    Head,
    /// A request is being served.
    Exchange,
    /// The connection has changed to another protocol.
    Tunnel,
    /// The last response goes out.
    Ending,
    /// It was sent; the client is to close.
    Lingering,
}

/// A request head that leads nowhere.
struct Refusal {
    status: u16,
    reason: DropReason,
    route: Option<(u16, PoolId)>,
    asked: Asked,
    is_head: bool,
}

enum Read {
    Incomplete,
    Whole(Box<Exchange>, usize, Option<(usize, Step)>),
    Refused(Refusal),
}

impl Client {
    pub(crate) fn new(client: Endpoint, listen: Endpoint, service: u16) -> Self {
        Self {
            client,
            listen,
            service,
            phase: Phase::Head,
            scanner: HeadScanner::default(),
            begun: None,
            exchange: None,
            private: None,
            job: None,
            is_announced: false,
            tunnel: None,
        }
    }

    /// Reads a request head, and decides where the request goes.
    fn read(
        &mut self,
        bytes: &[u8],
        service: &Service,
        backends: &Backends,
        caches: &mut Caches,
        now: Instant,
        draining: bool,
    ) -> Read {
        let refused = |status, reason, asked| {
            Read::Refused(Refusal {
                status,
                reason,
                route: None,
                asked,
                is_head: false,
            })
        };
        let head = match self.scanner.scan(bytes) {
            Scan::Incomplete if bytes.len() >= service.head_bytes_max as usize => {
                let error = self.scanner.too_large();
                return refused(error.status(), error.reason(), Asked::default());
            }
            Scan::Incomplete => return Read::Incomplete,
            Scan::Malformed(error) => {
                return refused(error.status(), error.reason(), Asked::default());
            }
            Scan::Complete(head) => head,
        };
        let is_head = head.method == "HEAD";
        let subject = Subject::Http(&head);
        let route = routes::choose(service, self.listen, self.client.addr, &subject);
        let pool = route.and_then(|route| Some((route as u16, service.routes[route].pool?)));
        let Some((route, pool)) = pool else {
            let status = match service.unmatched {
                Unmatched::Misdirected => 421,
                _ => 404,
            };
            return Read::Refused(Refusal {
                status,
                reason: DropReason::NoRoute,
                route: None,
                asked: head.subject(),
                is_head,
            });
        };
        let options = Options::of(head.headers());
        let forwarded = service.per_request.forwarded;
        let mut exchange = self.exchange_of(&head, &options, service, (route, pool), now);
        exchange.question.keep &= !draining;
        exchange.hash = backends.hash_for(pool, &subject, self.client.addr);
        let cache = caches.of(self.service, route);
        // A cache answers none that has a body, but those that change something concern it.
        let asks = matches!(head.method, "GET" | "HEAD" | purge::METHOD);
        let is_odd = exchange.question.upgrade || asks && exchange.has_body;
        let cache = cache.filter(|_| !is_odd);
        let from = self.client;
        let step = cache.map(|at| (at, caches.ask(at, &head, &options, from, forwarded, now)));
        if let Some((slot, Step::Answer(_, _, None))) = &step {
            caches.note_hit(&self.hit(*slot, service, (route, pool), bytes), &head, now);
        }
        match &step {
            None | Some((_, Step::Pass(_))) => {
                exchange.head = request_head(&head, &options, from, forwarded, None);
            }
            Some((_, Step::Wait(_))) => exchange.raw = bytes[..head.head_len].to_vec(),
            Some((_, Step::Answer(..) | Step::Fetch(_))) => {}
        }
        Read::Whole(Box::new(exchange), head.head_len, step)
    }

    fn hit<'a>(
        &self,
        slot: usize,
        service: &'a Service,
        to: (u16, PoolId),
        bytes: &'a [u8],
    ) -> Hit<'a> {
        Hit {
            slot,
            service: (self.service, service),
            to,
            listen: self.listen,
            bytes,
        }
    }

    fn exchange_of(
        &self,
        head: &RequestHead<'_>,
        options: &Options<'_>,
        service: &Service,
        (route, pool): (u16, PoolId),
        now: Instant,
    ) -> Exchange {
        let body = Framing::of_request(head.body());
        let keep = match head.version_minor {
            0 => options.has("keep-alive"),
            _ => !options.has("close"),
        };
        let asks_upgrade = upgrade(head, options).is_some() && body.is_empty();
        Exchange {
            route,
            pool,
            server: None,
            tried: Vec::new(),
            retries: service.routes[usize::from(route)].retries,
            attempts: 0,
            head: Vec::new(),
            question: Question {
                is_head: head.method == "HEAD",
                minor: head.version_minor,
                upgrade: asks_upgrade,
                keep,
            },
            // RFC 9110, section 9.2.2.
            is_idempotent: matches!(
                head.method,
                "GET" | "HEAD" | "OPTIONS" | "TRACE" | "PUT" | "DELETE"
            ),
            has_body: !body.is_empty(),
            body_done: body.is_empty(),
            body,
            hash: 0,
            started: now,
            status: None,
            keeps: false,
            bytes_in: head.head_len as u64,
            bytes_out: 0,
            asked: head.subject(),
            cached: Cached::No,
            raw: Vec::new(),
        }
    }
}

impl Front {
    /// Something was received of a client.
    pub(crate) fn read_client(&mut self, now: Instant, id: ConnId) {
        let Some(conn) = self.conns.get(id) else {
            return;
        };
        let Some(client) = conn.client() else { return };
        match client.phase {
            Phase::Announcement => self.read_announcement(now, id),
            Phase::Head => self.read_request(now, id),
            Phase::Exchange => self.read_body(now, id),
            Phase::Tunnel => {
                conn.pass = conn.input.len();
                self.touch(now, id);
                self.send_to_peer(now, id);
            }
            Phase::Ending | Phase::Lingering => conn.input.clear(&mut self.stock),
        }
    }

    /// Reads a request's head, and begins to serve it when it is whole.
    pub(crate) fn read_request(&mut self, now: Instant, id: ConnId) {
        let Some(conn) = self.conns.get(id) else {
            return;
        };
        let Conn { input, side, .. } = conn;
        let Side::Client(client) = side else {
            return;
        };
        if input.len() == 0 {
            return;
        }
        let service = &self.config.services[usize::from(client.service)];
        let (backends, caches) = (&self.backends, &mut self.caches);
        let read = client.read(input.bytes(), service, backends, caches, now, self.draining);
        match read {
            Read::Incomplete => {
                let head = service.timeouts.head;
                let begun = *client.begun.get_or_insert(now);
                conn.deadline = Some(begun + head);
            }
            Read::Refused(refusal) => self.refuse(now, id, refusal),
            Read::Whole(exchange, head_len, step) => {
                conn.skip(head_len, &mut self.stock);
                if let Some(client) = self.conns.get(id).and_then(Conn::client) {
                    client.phase = Phase::Exchange;
                    client.exchange = Some(*exchange);
                    client.begun = None;
                    client.scanner = HeadScanner::default();
                }
                self.touch(now, id);
                match step {
                    Some((slot, step)) => self.follow_cache(now, id, slot, step),
                    None => self.choose_server(now, id),
                }
                self.read_body(now, id);
            }
        }
    }

    /// Lets the request's body pass, as far as it is here.
    fn read_body(&mut self, now: Instant, id: ConnId) {
        let Some(conn) = self.conns.get(id) else {
            return;
        };
        let Conn {
            input, pass, side, ..
        } = conn;
        let Side::Client(client) = side else {
            return;
        };
        let Some(exchange) = client.exchange.as_mut().filter(|one| !one.body_done) else {
            return;
        };
        match exchange.body.take(&input.bytes()[*pass..]) {
            Ok(share) => {
                *pass += share.bytes;
                exchange.bytes_in += share.bytes as u64;
                exchange.body_done = share.is_last;
                self.touch(now, id);
                self.send_to_peer(now, id);
            }
            Err(_) => self.end_exchange(now, id, RequestEnd::Refused, Some(400)),
        }
    }

    /// What a connection has for its peer is to be sent.
    pub(crate) fn send_to_peer(&mut self, now: Instant, id: ConnId) {
        let Some(peer) = self.conns.peek(id).and_then(|conn| conn.peer) else {
            return;
        };
        match self.is_job(peer) {
            true => self.deliver(now, peer, id),
            false => self.actions.push_back(Action::Send(peer)),
        }
    }

    /// It is a request of the front's own.
    pub(crate) fn is_job(&self, id: ConnId) -> bool {
        let side = self.conns.peek(id).map(|conn| &conn.side);
        matches!(side, Some(Side::Client(client)) if client.job.is_some())
    }

    /// A request makes progress.
    pub(crate) fn touch(&mut self, now: Instant, id: ConnId) {
        let Some(conn) = self.conns.get(id) else {
            return;
        };
        let Some(client) = conn.client() else { return };
        let stalled = self.config.services[usize::from(client.service)]
            .per_request
            .stalled;
        conn.deadline = Some(now + stalled);
    }

    fn refuse(&mut self, now: Instant, id: ConnId, refusal: Refusal) {
        let Some((client, listen, service)) = self.who(id) else {
            return;
        };
        self.counts.refused.add(refusal.reason);
        self.counts.numbers.add_end(RequestEnd::Refused);
        self.emit(Event {
            client,
            listen,
            service,
            to: refusal.route,
            server: None,
            asked: refusal.asked,
            status: Some(refusal.status),
            bytes_in: 0,
            bytes_out: 0,
            duration: Duration::ZERO,
            retries: 0,
            end: RequestEnd::Refused,
            reason: Some(refusal.reason),
        });
        let unmatched = refusal.reason == DropReason::NoRoute;
        self.answer(now, id, refusal.status, refusal.is_head, unmatched);
    }

    fn who(&mut self, id: ConnId) -> Option<(Endpoint, Endpoint, u16)> {
        let client = self.conns.get(id)?.client()?;
        Some((client.client, client.listen, client.service))
    }

    /// Answers a client ourselves, and ends the connection.
    pub(crate) fn answer(
        &mut self,
        now: Instant,
        id: ConnId,
        status: u16,
        is_head: bool,
        unmatched: bool,
    ) {
        let Some((_, _, service)) = self.who(id) else {
            return;
        };
        let service = &self.config.services[usize::from(service)];
        let page: Option<Arc<Page>> = match status {
            _ if unmatched => service.unmatched_page.clone(),
            503 => service.unavailable_page.clone(),
            _ => None,
        };
        let retry_after_s = (status == 503).then_some(RETRY_AFTER_S);
        let answer = match page {
            Some(page) => {
                let (of, len) = (page.content_type, page.body.len());
                let mut answer = http::response_head(status, retry_after_s, of, len);
                if !is_head {
                    answer.extend_from_slice(&page.body);
                }
                answer
            }
            None => http::response(status, retry_after_s, is_head),
        };
        self.counts.numbers.add_status(status);
        if let Some(conn) = self.conns.get(id) {
            conn.out.extend_from_slice(&answer);
        }
        self.end_client(now, id, true);
    }

    /// Ends a client's connection behind what waits to be sent. It lingers where the client may
    /// still be sending.
    pub(crate) fn end_client(&mut self, now: Instant, id: ConnId, linger: bool) {
        let Some(conn) = self.conns.get(id) else {
            return;
        };
        debug_assert!(conn.peer.is_none(), "a request is under way");
        let eof = conn.eof;
        let Some(client) = conn.client() else { return };
        client.phase = Phase::Ending;
        client.exchange = None;
        conn.input.clear(&mut self.stock);
        if conn.is_flushed() && (!linger || eof) {
            return self.close(id);
        }
        if linger && !eof {
            conn.shut = Shut::Wanted;
        }
        self.touch(now, id);
        if self.conns.peek(id).is_some_and(Conn::is_flushed) {
            self.linger(now, id);
            self.shut_if_flushed(id);
        } else {
            self.actions.push_back(Action::Send(id));
        }
    }

    fn linger(&mut self, now: Instant, id: ConnId) {
        if let Some(conn) = self.conns.get(id) {
            conn.deadline = Some(now + LINGER);
            if let Some(client) = conn.client() {
                client.phase = Phase::Lingering;
            }
        }
    }

    /// Something was sent to a client, or to its server.
    pub(crate) fn note_sent(&mut self, now: Instant, id: ConnId, to_client: bool, bytes: usize) {
        let Some(conn) = self.conns.get(id) else {
            return;
        };
        let (flushed, shut) = (conn.is_flushed(), conn.shut);
        let Some(client) = conn.client() else { return };
        match client.phase {
            Phase::Exchange | Phase::Tunnel => {
                if let Some(exchange) = client.exchange.as_mut().filter(|_| to_client) {
                    exchange.bytes_out += bytes as u64;
                }
                self.note_copied(now, id, bytes);
                self.touch(now, id);
                self.finish_if_done(now, id);
            }
            Phase::Ending if flushed && shut == Shut::Open => self.close(id),
            Phase::Ending if flushed => self.linger(now, id),
            Phase::Announcement | Phase::Head | Phase::Ending | Phase::Lingering => {}
        }
    }

    /// A client sends nothing more.
    pub(crate) fn client_ended(&mut self, now: Instant, id: ConnId) {
        let Some(conn) = self.conns.get(id) else {
            return;
        };
        let (empty, flushed) = (conn.input.len() == 0, conn.is_flushed());
        let Some(client) = conn.client() else { return };
        match client.phase {
            Phase::Announcement => self.close(id),
            Phase::Head if empty => self.close(id),
            Phase::Head => self.drop_client(now, id, RequestEnd::ClientLost),
            Phase::Exchange => {
                let whole = client.exchange.as_ref().is_some_and(|one| one.body_done);
                if !whole {
                    self.drop_client(now, id, RequestEnd::ClientLost);
                }
            }
            Phase::Tunnel => self.end_direction(now, id),
            Phase::Ending if !flushed => conn.shut = Shut::Open,
            Phase::Ending | Phase::Lingering => self.close(id),
        }
    }

    /// A client has waited, or made us wait, for too long.
    pub(crate) fn client_late(&mut self, now: Instant, id: ConnId) {
        let Some(conn) = self.conns.get(id) else {
            return;
        };
        let empty = conn.input.len() == 0;
        let Some(client) = conn.client() else { return };
        match client.phase {
            Phase::Head if empty => self.end_client(now, id, true),
            Phase::Head => {
                let refusal = Refusal {
                    status: 408,
                    reason: DropReason::HeadTimeout,
                    route: None,
                    asked: Asked::default(),
                    is_head: false,
                };
                self.refuse(now, id, refusal);
            }
            Phase::Exchange => self.end_exchange(now, id, RequestEnd::Stalled, Some(504)),
            Phase::Tunnel => self.end_exchange(now, id, RequestEnd::Upgraded, None),
            Phase::Announcement | Phase::Ending => self.reset(id),
            Phase::Lingering => self.close(id),
        }
    }

    /// Forgets a client whose connection is of no use any more.
    pub(crate) fn drop_client(&mut self, now: Instant, id: ConnId, end: RequestEnd) {
        if self.exchange(id).is_some() {
            self.end_exchange(now, id, end, None);
        } else {
            self.reset(id);
        }
    }

    /// The next request, if it is here already.
    pub(crate) fn await_request(&mut self, now: Instant, id: ConnId) {
        let Some(conn) = self.conns.get(id) else {
            return;
        };
        let Some(client) = conn.client() else { return };
        client.phase = Phase::Head;
        client.exchange = None;
        let keep_alive = self.config.services[usize::from(client.service)]
            .per_request
            .keep_alive;
        conn.deadline = Some(now + keep_alive);
        match (conn.eof, conn.input.len()) {
            (true, 0) => self.close(id),
            (_, 0) if self.releases => self.release_if_idle(now, id),
            (_, 0) => self.actions.push_back(Action::Receive(id)),
            _ => self.read_request(now, id),
        }
    }
}
