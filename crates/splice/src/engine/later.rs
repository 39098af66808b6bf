//! Later requests of kept-alive connections. A splice decides once; what a client asks afterwards
//! follows the first request, also where another route leads to another pool. A service may have
//! such requests counted, or the connection closed before one is forwarded.
//!
//! The engine keeps the connections that it watches, so that it sees every packet of them. It looks
//! at a client's segment where a request can begin: the first one after the server has spoken, with
//! everything acknowledged that the server has said. A request of which the head does not begin and
//! end in that segment, or which is sent ahead of an answer, is not seen; a body that looks like a
//! request is passed over, because the server says nothing between the head and its body.

use std::collections::BTreeMap;

use core::time::Duration;

use fairlead_base::{DropReason, Instant, Packet, SeqNumber};
use fairlead_tcp::{Found, Line, Record, Side, State};
use fairlead_wire::TcpPacket;
use fairlead_wire::http::{HeadScanner, Scan};

use super::Switch;
use super::offload::Custody;
use crate::Verdict;
use crate::config::{Config, LaterRequests, Protocol, Route, Service, Treatment};
use crate::event::{End, Event};
use crate::routes::{self, Subject};
use crate::snapshot::{RouteSnapshot, UNMATCHED};

/// Where requests are only counted, one connection in this many is watched: a power of two.
const SAMPLE: u32 = 64;

/// Pairs of routes that are counted; requests of further pairs are not.
const PAIRS_MAX: usize = 1_024;

/// After this time a pair of routes is news again.
const NEWS_AFTER: Duration = Duration::from_secs(3_600);

/// A service, the route of a connection in it, and the one that a later request would take: `None`
/// where none matches.
type Pair = (u16, u16, Option<u16>);

#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    count: u64,
    told: Option<Instant>,
}

/// What is known of later requests.
#[derive(Debug)]
pub(super) struct Later {
    /// Some service has its later requests watched.
    is_asked_for: bool,
    /// By line: how far the server had spoken when its client last sent something.
    heard: Vec<u32>,
    seen: BTreeMap<Pair, Seen>,
}

impl Later {
    pub(super) fn new(config: &Config) -> Self {
        let services = &config.services;
        Self {
            is_asked_for: services
                .iter()
                .any(|one| one.later_requests != LaterRequests::Pass),
            heard: Vec::new(),
            seen: BTreeMap::new(),
        }
    }

    /// The requests that were counted for a route: by the route they would have taken.
    pub(super) fn of(&self, service: u16, route: u16) -> Vec<(Option<u16>, u64)> {
        let all = (service, route, None)..=(service, route, Some(u16::MAX));
        let counts = self.seen.range(all);
        counts.map(|(pair, seen)| (pair.2, seen.count)).collect()
    }

    fn hear(&mut self, line: Line, server_nxt: u32) {
        let at = line.0 as usize;
        if self.heard.len() <= at {
            self.heard.resize(at + 1, 0);
        }
        self.heard[at] = server_nxt;
    }

    /// Counts one; true where that is news.
    fn count(&mut self, now: Instant, pair: Pair) -> bool {
        if self.seen.len() >= PAIRS_MAX && !self.seen.contains_key(&pair) {
            return false;
        }
        let seen = self.seen.entry(pair).or_default();
        seen.count += 1;
        let is_news = seen.told.is_none_or(|told| now >= told + NEWS_AFTER);
        if is_news {
            seen.told = Some(now);
        }
        is_news
    }
}

impl Switch {
    /// A client's segment that the engine has to look at, because a later request may begin in it.
    #[inline]
    pub fn may_be_later_request(&self, found: Found, header: &TcpPacket) -> bool {
        self.later.is_asked_for
            && found.side == Side::Client
            && header.payload_len() > 0
            && self.is_watched(self.table.record(found.line))
    }

    /// Whether the later requests of a connection are looked at.
    #[inline]
    pub(super) fn is_watched(&self, record: &Record) -> bool {
        self.later.is_asked_for && record.state == State::Spliced && self.is_to_be_watched(record)
    }

    /// Whether they will be, once it is spliced. The engine splices it then: until it learnt of a
    /// splice that the fast path made, it would miss requests.
    pub(super) fn is_to_be_watched(&self, record: &Record) -> bool {
        let service = self.service_of(record.listen);
        let route = service.routes.get(usize::from(record.route));
        let splices = route.is_some_and(|route| route.treatment == Treatment::Splice);
        let is_drawn = match service.later_requests {
            LaterRequests::Pass => false,
            LaterRequests::Count => is_sample(record.client_isn),
            LaterRequests::Close => true,
        };
        is_drawn && splices && service.protocol == Protocol::Http
    }

    /// Whether its server is a socket of this process. The fast path could only give back each of
    /// its packets.
    pub(super) fn is_of_front(&self, record: &Record) -> bool {
        let server = || self.places.server(record.server);
        let pool = |id| self.backends.server(id).0;
        self.config.front.is_some() && server().map(pool) == self.config.front
    }

    /// Takes a connection back from the fast path that is to be watched.
    pub(super) fn keep_watched(&mut self, now: Instant, line: Line) {
        if self.custody(line) == Custody::Kernel && self.is_watched(self.table.record(line)) {
            self.reclaim(now, line);
            self.offload(line);
        }
    }

    /// A connection was spliced: until its server speaks, the client sends its first request.
    pub(super) fn note_first_request(&mut self, line: Line) {
        if self.later.is_asked_for {
            let first = self.table.record(line).server_isn.wrapping_add(1);
            self.later.hear(line, first);
        }
    }

    /// Looks at a client's packet of a joined connection; a verdict where it goes no further.
    pub(super) fn judge_later_request(
        &mut self,
        now: Instant,
        packet: &Packet,
        header: &TcpPacket,
        line: Line,
    ) -> Option<Verdict> {
        let record = *self.table.record(line);
        let is_next = header.seq == SeqNumber(record.client_nxt);
        if header.payload_len() == 0 || !is_next || !self.is_watched(&record) {
            return None;
        }
        let heard = self.later.heard.get(line.0 as usize).copied();
        self.later.hear(line, record.server_nxt);
        let all_acknowledged = header.ack - record.seq_delta == SeqNumber(record.server_nxt);
        if heard == Some(record.server_nxt) || !all_acknowledged {
            return None;
        }
        let would_be = self.route_of(&record, header.payload(&packet.bytes))?;
        let service = self.listen_services[usize::from(record.listen)];
        let closes = self.service_of(record.listen).later_requests == LaterRequests::Close;
        if self.later.count(now, (service, record.route, would_be)) {
            self.emit_event(Event::LaterRequest {
                client: record.client(),
                service,
                route: record.route,
                would_be,
                closes,
            });
        }
        if !closes {
            return None;
        }
        self.end_line(now, line, End::LaterRequest);
        Some(self.drop(DropReason::LaterRequest))
    }

    /// Counters of the routes of the service with this index.
    pub(super) fn route_snapshots(
        &self,
        index: usize,
        service: &Service,
        decisions: &[u64],
    ) -> Vec<RouteSnapshot> {
        let name = |would_be: Option<u16>| {
            let route = would_be.and_then(|route| service.routes.get(usize::from(route)));
            route.map_or(UNMATCHED, |route| &route.name).to_owned()
        };
        let routes = (0u16..).zip(service.routes.iter().zip(decisions));
        routes
            .map(|(number, (route, &decisions))| {
                let later = self.later.of(index as u16, number).into_iter();
                RouteSnapshot {
                    name: route.name.clone(),
                    pool: self.target_of(route),
                    decisions,
                    requests: 0,
                    later_requests: later.map(|(to, count)| (name(to), count)).collect(),
                }
            })
            .collect()
    }

    /// The name of a route's pool; without one, where its listener is.
    fn target_of(&self, route: &Route) -> String {
        let listeners = [route.listeners.v4, route.listeners.v6];
        match route.pool {
            Some(pool) => self.config.pools[usize::from(pool.0)].name.clone(),
            None => {
                let listeners: Vec<_> = listeners
                    .iter()
                    .flatten()
                    .map(ToString::to_string)
                    .collect();
                listeners.join(" ")
            }
        }
    }

    /// The route that a request takes which is whole in `bytes`, if it leads to another pool than
    /// the connection's: `Some(None)` where no route matches.
    fn route_of(&self, record: &Record, bytes: &[u8]) -> Option<Option<u16>> {
        let service = self.service_of(record.listen);
        let mut scanner = HeadScanner::default();
        let Scan::Complete(head) = scanner.scan(bytes) else {
            return None;
        };
        let listen = self.table.endpoints().listen(record.listen);
        let subject = Subject::Http(&head);
        let chosen = routes::choose(service, listen, record.client_addr, &subject);
        let pool = |index: usize| {
            service
                .routes
                .get(index)
                .map(|route| (route.treatment, route.pool))
        };
        let stays = chosen.is_some_and(|index| pool(index) == pool(usize::from(record.route)));
        (!stays).then_some(chosen.map(|index| index as u16))
    }
}

/// Clients draw their initial numbers by chance, so these decide which connections are watched.
fn is_sample(client_isn: u32) -> bool {
    client_isn.wrapping_mul(0x9e37_79b1) >> (32 - SAMPLE.ilog2()) == 0
}
