//! Connections that a fast path outside begins by itself.
//!
//! Where many connections come for one route, the engine has decided most of their heads before. So
//! it chooses servers and sources for the next ones beforehand, as *tickets*
//! ([`fairlead_tcp::ticket`]), tells the fast path which heads lead to them, and learns by looking
//! who has taken one: before it handles packets, and with the sweep. What it does then is what it
//! would have done with the client's first segment; the SYN to the server is sent already, and the
//! connection armed (see `connect.rs`), or joined.
//!
//! Only what a head's method, target and host decide alone can be begun so: services of HTTP whose
//! routes ask for nothing else, pools that choose in turn or by weight, sources of our own.
//! Everything else, and every head that is new, the engine reads as before.

use core::time::Duration;
use std::collections::BTreeMap;

use fairlead_base::{FlowKey, Instant, SeqNumber};
use fairlead_tcp::record::flag;
use fairlead_tcp::ticket::{PAYLOAD_BYTES_MAX, TICKETS_MAX};
use fairlead_tcp::{Begun, CookieKey, Line, Record, State, Taker, Ticket};
use fairlead_wire::http::plain_hash;

use super::Custody;
use crate::backends::{Caller, ServerId};
use crate::config::{LaterRequests, Matcher, PoolId, Protocol, Route, Service, Source, Treatment};
use crate::engine::head::Reading;
use crate::engine::setup::SetupId;
use crate::engine::timer::SWEEP_STEP;
use crate::engine::{Switch, probe};
use crate::event::ServerState;

/// Connections for one route between two sweeps, at least, for which tickets are worth their while.
const BUSY: u32 = 8;

/// Tickets of a route, at least and at most: more than clients that usually come at once. A client
/// that finds no ticket waits until the engine has processed every ticket that was taken.
const WANTED: core::ops::RangeInclusive<u32> = 16..=128;

/// All of them together, at most: half of the places. The others are for connections that were
/// begun and are not joined yet.
const WANTED_IN_ALL: u32 = TICKETS_MAX / 2;

/// How often the engine looks for taken tickets in the time in which a route uses up all of its
/// tickets, at the rate of late. So it learns of few at a time, and in time.
const LOOKS: u32 = 4;

/// It looks no more often than this.
const LOOK_EVERY_MIN: Duration = Duration::from_millis(1);

/// Heads that are remembered until they come again, and those that the fast path was told.
const HEADS: usize = 1_024;

/// Tickets, by lane, and what is learnt of heads.
#[derive(Debug, Default)]
pub(super) struct Tickets {
    lanes: Vec<Lane>,
    by_route: BTreeMap<(u16, u16), u16>,
    /// Hashes of heads, each at one place: seen once, and told.
    seen: Vec<u64>,
    told: Vec<u64>,
    gone: Vec<(Line, u32)>,
    /// How long the engine waits until it looks again, and when it does; unless sweeps will do.
    look_every: Option<Duration>,
    look_at: Option<Instant>,
}

/// Tickets for one listening endpoint and route.
#[derive(Debug)]
struct Lane {
    listen: u16,
    route: u16,
    pool: PoolId,
    /// Issued, and not known to be taken.
    out: u32,
    wanted: u32,
    /// Connections since the last sweep.
    used: u32,
}

impl Tickets {
    /// For a fast path with this many lanes.
    pub(super) fn reset(&mut self, lanes: u16) {
        *self = Self::default();
        if lanes > 0 {
            self.lanes.reserve(usize::from(lanes));
            self.seen = vec![0; HEADS];
            self.told = vec![0; HEADS];
        }
    }

    /// Tickets that nobody is known to have taken.
    pub(super) fn out(&self) -> u32 {
        self.lanes.iter().map(|lane| lane.out).sum()
    }

    /// When somebody should look who has taken one.
    pub(super) fn due(&self) -> Option<Instant> {
        self.look_at
    }

    /// Somebody has looked.
    fn looked(&mut self, now: Instant) {
        self.look_at = self.look_every.map(|every| now + every);
    }

    /// Works out how many tickets each lane needs until the next sweep, from how many it used since
    /// the last one, and how often to look meanwhile.
    fn plan(&mut self) {
        let is_busy = |lane: &&Lane| lane.used >= BUSY;
        let busy = self.lanes.iter().filter(is_busy).count().max(1) as u32;
        let (least, most) = WANTED.into_inner();
        let most = (WANTED_IN_ALL / busy).clamp(least, most);
        let mut looks = 0;
        for lane in &mut self.lanes {
            let used = std::mem::take(&mut lane.used);
            lane.wanted = 0;
            if used >= BUSY {
                lane.wanted = used.next_power_of_two().clamp(least, most);
                looks = looks.max(used.saturating_mul(LOOKS) / lane.wanted);
            }
        }
        let every = (looks > 1).then(|| (SWEEP_STEP / looks).max(LOOK_EVERY_MIN));
        self.look_every = every;
    }

    /// There are, or were, tickets for a listening endpoint.
    pub(super) fn are_for(&self, listen: u16) -> bool {
        self.lanes.iter().any(|lane| lane.listen == listen)
    }

    /// Notes a head; true when the fast path is to be told: it has come twice, and was not told.
    fn is_news(&mut self, head: u64) -> bool {
        let at = head as usize % HEADS;
        let (Some(seen), Some(told)) = (self.seen.get_mut(at), self.told.get_mut(at)) else {
            return false;
        };
        let again = std::mem::replace(seen, head) == head;
        again && std::mem::replace(told, head) != head
    }
}

impl Switch {
    /// A head was read and decided: where more of its kind come, the fast path is to know.
    pub(in crate::engine) fn note_decision(&mut self, line: Line, index: SetupId) {
        let Some(lane) = self.lane_for(line) else {
            return;
        };
        self.offload.tickets.lanes[usize::from(lane)].used += 1;
        let listen = self.table.record(line).listen;
        let Some(setup) = self.setups.peek(index) else {
            return;
        };
        let head = plain_hash(setup.stream.in_order(), listen, self.cookies.words());
        if let Some(head) = head
            && self.offload.tickets.is_news(head)
            && let Some(fast_path) = self.offload.preconnect()
        {
            fast_path.learn_head(head, lane);
        }
    }

    /// The lane for a connection's route, if there can be one.
    fn lane_for(&mut self, line: Line) -> Option<u16> {
        let lanes = self.offload.preconnect()?.lanes();
        let Record { listen, route, .. } = *self.table.record(line);
        if let Some(lane) = self.offload.tickets.by_route.get(&(listen, route)) {
            return Some(*lane);
        }
        let lane = u16::try_from(self.offload.tickets.lanes.len()).ok()?;
        let service = self.service_of(listen);
        let pool = service.routes.get(usize::from(route))?.pool?;
        if lane >= lanes || !self.can_begin(service, route) {
            return None;
        }
        let first = !self.offload.tickets.are_for(listen);
        self.offload.tickets.by_route.insert((listen, route), lane);
        self.offload.tickets.lanes.push(Lane {
            listen,
            route,
            pool,
            out: 0,
            wanted: 0,
            used: 0,
        });
        if first {
            self.publish_offers();
        }
        Some(lane)
    }

    /// Whether a plain head alone decides about connections of this route.
    fn can_begin(&self, service: &Service, route: u16) -> bool {
        let routes = &service.routes;
        let route: &Route = &routes[usize::from(route)];
        let Some(pool) = route.pool else {
            return false;
        };
        let pool = &self.config.pools[usize::from(pool.0)];
        service.protocol == Protocol::Http
            && service.source == Source::Snat
            && service.head_bytes_max as usize >= PAYLOAD_BYTES_MAX
            && routes
                .iter()
                .flat_map(|route| &route.matchers)
                .all(Matcher::decided_by_plain_head)
            && route.treatment == Treatment::Splice
            && route.cache.is_none()
            && service.later_requests != LaterRequests::Close
            && pool.proxy_protocol.is_none()
            && pool.balance.may_choose_ahead()
    }

    /// Learns who has taken tickets. To be called before packets are handled: theirs may be among
    /// them.
    #[inline]
    pub fn learn_begun(&mut self, now: Instant) {
        for lane in 0..self.offload.tickets.lanes.len() as u16 {
            if self.offload.tickets.lanes[usize::from(lane)].out > 0 {
                self.learn_begun_of(now, lane);
            }
        }
        self.offload.tickets.looked(now);
    }

    fn learn_begun_of(&mut self, now: Instant, lane: u16) {
        while let Some(fast_path) = self.offload.preconnect()
            && let Some(begun) = fast_path.next_taken(lane)
        {
            let of = &mut self.offload.tickets.lanes[usize::from(lane)];
            of.out -= 1;
            of.used += 1;
            self.take_in(now, lane, begun);
        }
        let Lane { out, wanted, .. } = self.offload.tickets.lanes[usize::from(lane)];
        if out < wanted - wanted / LOOKS {
            self.supply(now, lane);
        }
    }

    /// Sees how many tickets each lane needs until the next sweep.
    pub(in crate::engine) fn keep_tickets(&mut self, now: Instant) {
        self.learn_begun(now);
        self.offload.tickets.plan();
        self.offload.tickets.looked(now);
        for lane in 0..self.offload.tickets.lanes.len() as u16 {
            if self.offload.tickets.lanes[usize::from(lane)].wanted == 0 {
                self.revoke_lane(lane);
            } else {
                self.supply(now, lane);
            }
        }
    }

    /// Takes all tickets back: what they were chosen by has changed.
    pub(in crate::engine) fn revoke_tickets(&mut self) {
        for lane in 0..self.offload.tickets.lanes.len() as u16 {
            self.revoke_lane(lane);
        }
    }

    /// Takes all tickets back and issues no more until a lane is busy again.
    pub(in crate::engine) fn withdraw_tickets(&mut self, now: Instant) {
        let lanes = self.offload.tickets.lanes.iter_mut();
        lanes.for_each(|lane| lane.wanted = 0);
        self.offload.tickets.look_every = None;
        self.revoke_tickets();
        self.learn_begun(now);
    }

    fn revoke_lane(&mut self, lane: u16) {
        if self.offload.tickets.lanes[usize::from(lane)].out == 0 {
            return;
        }
        let mut gone = std::mem::take(&mut self.offload.tickets.gone);
        if let Some(fast_path) = self.offload.preconnect() {
            fast_path.revoke(lane, &mut gone);
        }
        self.offload.tickets.lanes[usize::from(lane)].out -= gone.len() as u32;
        for (line, place) in gone.drain(..) {
            let ticket = Custody::Ticket { lane, place };
            debug_assert_eq!(self.custody(line), ticket, "{line:?} was revoked");
            if let Some(server) = self.places.server(self.table.record(line).server) {
                self.backends.give_back(server);
            }
            self.free(line);
        }
        self.offload.tickets.gone = gone;
    }

    /// Issues tickets until a lane has as many as it needs.
    fn supply(&mut self, now: Instant, lane: u16) {
        loop {
            let of = &self.offload.tickets.lanes[usize::from(lane)];
            // Newcomers that the engine reads are never to find the table full of tickets; and who
            // takes one needs a set-up.
            let free = self.table.capacity() - self.table.used();
            let wanted = of.wanted.min(free / 4);
            let room = self.has_room_beside_tickets(PAYLOAD_BYTES_MAX as u64) && !self.draining;
            if of.out >= wanted || !room || !self.issue(now, lane) {
                return;
            }
        }
    }

    /// One more connection with this many bytes may be set up, and all tickets that are out may be
    /// taken besides, each with as many bytes as it may hold.
    pub(in crate::engine) fn has_room_beside_tickets(&self, bytes: u64) -> bool {
        let out = self.offload.tickets.out();
        let bytes = bytes + u64::from(out) * PAYLOAD_BYTES_MAX as u64;
        self.setups.has_room_for(out)
            && self.setups.buffered_bytes() + bytes <= self.config.limits.buffered_bytes
    }

    fn issue(&mut self, now: Instant, lane: u16) -> bool {
        let Lane {
            listen,
            route,
            pool,
            ..
        } = self.offload.tickets.lanes[usize::from(lane)];
        let Some(place) = self.offload.custody.next_place() else {
            return false;
        };
        let v4 = self.table.endpoints().listen(listen).addr.is_v4();
        let Some(server) = self.pick_known(now, pool, v4) else {
            return false;
        };
        let record = Record {
            // Of nobody: no packet has an address like this.
            client_port: place as u16,
            listen,
            route,
            last_active: Self::now_ms(now),
            state: State::SynSent,
            ..Record::default()
        };
        let Ok(line) = self.table.insert(record, now.as_millis()) else {
            self.backends.give_back(server);
            return false;
        };
        if !self.bind_source(now, line, server) || !self.hand_out(lane, line, place, v4) {
            self.backends.give_back(server);
            self.free(line);
            return false;
        }
        let ticket = Custody::Ticket { lane, place };
        self.offload.custody.pass(line, ticket);
        self.offload.tickets.lanes[usize::from(lane)].out += 1;
        true
    }

    /// Chooses a server among those of this family that are known to be up: the others keep their
    /// turns, and their trials, for connections that the engine makes.
    fn pick_known(&mut self, now: Instant, pool: PoolId, v4: bool) -> Option<ServerId> {
        let known = |id: &ServerId| {
            self.backends.state(*id) == ServerState::Up && self.backends.offers(*id).is_some()
        };
        let others = self.backends.ids(pool).filter(|id| !known(id));
        let others: Vec<ServerId> = others.collect();
        self.backends.pick(pool, 0, Caller::by(v4), &others, now)
    }

    fn hand_out(&mut self, lane: u16, line: Line, place: u32, v4: bool) -> bool {
        let record = self.table.record(line);
        let device_mss = self.mss_to(record.server, v4);
        let Some(fast_path) = self.offload.preconnect() else {
            return false;
        };
        fast_path.issue(&Ticket {
            lane,
            line,
            place,
            record,
            server: &record.server_key(self.table.endpoints()),
            syn_mss: probe::mss_of_family(self.config.device_mss, v4),
            device_mss,
        })
    }

    /// A ticket of this lane has been taken, or spoilt.
    fn take_in(&mut self, now: Instant, lane: u16, begun: Begun) {
        let Begun { line, place, taker } = begun;
        let ticket = Custody::Ticket { lane, place };
        debug_assert_eq!(self.custody(line), ticket, "{line:?} was taken");
        let Some(taker) = taker else {
            self.free(line);
            return;
        };
        let Some(server) = self.places.server(self.table.record(line).server) else {
            debug_assert!(false, "tickets are for servers that are configured");
            self.free(line);
            return;
        };
        if !self.make_way(now, line, &taker) {
            return;
        }
        let since_ms = taker.begun_ms.wrapping_sub(Self::now_ms(now)).cast_signed();
        let begun_ms = now.as_millis().wrapping_add_signed(since_ms.into());
        self.table.rename_client(line, taker.client, begun_ms);
        let record = self.record(line);
        record.client_isn = taker.client_isn.0;
        record.client_nxt = (taker.client_isn + 1).0;
        record.last_active = taker.begun_ms;
        if taker.stamps.is_some() {
            record.flags = flag::TIMESTAMPS;
        }
        self.set_up_begun(now, line, place, server, &taker);
    }

    /// Sees to it that a client's key is free for a connection that was begun under it. False: it
    /// is another's, and the new connection is gone.
    fn make_way(&mut self, now: Instant, line: Line, taker: &Taker) -> bool {
        let endpoints = self.table.endpoints();
        let record = *self.table.record(line);
        let client = FlowKey {
            src: taker.client,
            dst: endpoints.listen(record.listen),
        };
        let server = record.server_key(endpoints);
        let Some(found) = self.table.find(&client) else {
            return true;
        };
        self.reclaim(now, found.line);
        let state = self.table.record(found.line).state;
        if state.is_resting() {
            if let Some(fast_path) = self.offload.preconnect() {
                fast_path.client_key_superseded(found.line);
            }
            self.remove_resting(found.line);
            return true;
        }
        if self.setup_of(found.line).is_none() && state == State::Established {
            // The engine is about to admit the same client by another copy of its segment, and has
            // asked nobody yet: whoever asked a server first keeps the client.
            self.free(found.line);
            return true;
        }
        // It has admitted that client meanwhile.
        self.reset_begun(line, taker);
        if let Some(fast_path) = &mut self.offload.fast_path {
            fast_path.remove(line, &client, &server);
        }
        self.free(line);
        false
    }

    /// Sends the server of a connection that was begun a RST, with the number that it expects:
    /// behind the client's first bytes where it has been sent these.
    fn reset_begun(&mut self, line: Line, taker: &Taker) {
        let mut next = taker.client_isn + 1;
        let joined = self
            .offload
            .connect()
            .and_then(|fast_path| fast_path.disarm(line));
        if let Some(fast_path) = &self.offload.fast_path
            && joined.is_some()
        {
            next = SeqNumber(fast_path.tracking(line).client_nxt);
        }
        self.reset_server_in_setup_at(line, next);
    }

    fn set_up_begun(
        &mut self,
        now: Instant,
        line: Line,
        place: u32,
        server: ServerId,
        taker: &Taker,
    ) {
        let promise = CookieKey::promise(taker.dseq);
        let stamps = taker.stamps.unwrap_or_default();
        self.begin_setup(now, line, taker.dseq, promise, stamps);
        self.counts.begun += 1;
        let Some(index) = self.setup_of(line) else {
            return;
        };
        let Some(setup) = self.setups.entry(index) else {
            return;
        };
        setup.client_window = taker.window;
        setup.tried.push(server);
        let _ = setup.stream.insert(0, &taker.payload);
        self.setups.recount(index);
        self.note_armed(line, index, Some(place));
        match self.scan(line, index) {
            Reading::Decided(route, decision) if route == self.table.record(line).route => {
                self.note_decided(now, index, decision);
                self.note_asked(now, line, index, server);
                self.look_at(now, index);
            }
            // A head that only has the hash of one that was decided: nobody can make one without
            // the secret.
            _ => {
                self.backends.opened(server);
                self.abort_line(now, line);
            }
        }
    }

    /// Tickets that lie in the table, but are nobody's connections.
    pub(in crate::engine) fn tickets_out(&self) -> u64 {
        if self.draining {
            // What nobody had taken was taken back: the others are connections, not learnt of yet.
            return 0;
        }
        u64::from(self.offload.tickets.out())
    }

    /// Tickets that are out, lane by lane.
    pub(in crate::engine) fn tickets_by_lane(&self) -> impl Iterator<Item = u32> + '_ {
        self.offload.tickets.lanes.iter().map(|lane| lane.out)
    }

    /// Tickets are out: clients may have taken some.
    pub(in crate::engine) fn has_tickets_out(&self) -> bool {
        self.offload.tickets.out() > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lane(used: u32) -> Lane {
        let pool = PoolId(0);
        let (listen, route, out, wanted) = (0, 0, 0, 0);
        Lane {
            listen,
            route,
            pool,
            out,
            wanted,
            used,
        }
    }

    /// What is planned for lanes that used this many tickets: how many each gets, and microseconds
    /// between looks.
    fn planned(used: &[u32]) -> (Vec<u32>, Option<u128>) {
        let mut tickets = Tickets {
            lanes: used.iter().copied().map(lane).collect(),
            ..Tickets::default()
        };
        tickets.plan();
        assert!(tickets.lanes.iter().all(|lane| lane.used == 0));
        let wanted = tickets.lanes.iter().map(|lane| lane.wanted);
        let every = tickets.look_every.map(|every| every.as_micros());
        (wanted.collect(), every)
    }

    #[test]
    fn there_are_as_many_tickets_as_are_used_and_looks_in_time() {
        assert_eq!(planned(&[0]), (vec![0], None));
        assert_eq!(planned(&[7]), (vec![0], None), "quiet");
        assert_eq!(planned(&[8]), (vec![16], Some(25_000)));
        assert_eq!(planned(&[100]), (vec![128], Some(16_666)));
        assert_eq!(planned(&[320]), (vec![128], Some(5_000)));
        assert_eq!(planned(&[100_000]), (vec![128], Some(1_000)));
        assert_eq!(planned(&[3, 320, 8]), (vec![0, 128, 16], Some(5_000)));
    }

    #[test]
    fn busy_routes_share_the_places() {
        for lanes in 1..=32 {
            let (wanted, _) = planned(&vec![1_000; lanes]);
            assert_eq!(wanted.len(), lanes);
            assert!(wanted.iter().all(|one| (16..=128).contains(one)));
            assert!(wanted.iter().sum::<u32>() <= WANTED_IN_ALL, "{wanted:?}");
        }
    }
}
