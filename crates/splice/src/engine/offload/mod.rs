//! Connections that a fast path outside holds: when they are handed over, taken back and removed.
//!
//! | file | concern |
//! |---|---|
//! | `custody.rs` | who holds each connection, and how that changes |
//! | `connect.rs` | connections that the fast path joins when their servers answer |
//! | `preconnect.rs` | tickets: connections that the fast path begins |
//! | `load.rs` | open connections of pools that choose by them |
//! | `pair.rs` | pairs, whose records lack something |
//!
//! The rule is simple. Whoever handles a packet of a connection reclaims it before and offloads it
//! after, if nothing is left to do then but to translate, and to follow it to its end. Timers only
//! catch up with what the fast path has seen: that is how ends become known.

mod connect;
mod custody;
mod load;
mod pair;
mod preconnect;

use fairlead_base::{FlowKey, Instant};
use fairlead_tcp::{
    ConnectOffload, FastPath, Line, ListenOffer, Preconnect, Refusal, State, Tracking,
};

use self::connect::Connecting;
pub(super) use self::custody::{Custodies, Custody};
use self::load::Loads;
use self::preconnect::Tickets;
use super::pairs::is_pair;
use super::{Estate, Switch};
use crate::closing;
use crate::config::{Protocol, Route};

/// A fast path, and which connections it holds.
#[derive(Debug, Default)]
pub(super) struct Offload {
    fast_path: Option<Box<dyn FastPath>>,
    custody: Custodies,
    connecting: Connecting,
    tickets: Tickets,
    loads: Loads,
}

impl Offload {
    fn connect(&mut self) -> Option<&mut dyn ConnectOffload> {
        self.fast_path.as_mut()?.connect()
    }

    fn preconnect(&mut self) -> Option<&mut dyn Preconnect> {
        self.fast_path.as_mut()?.preconnect()
    }

    /// When somebody should look which tickets have been taken.
    pub(super) fn due(&self) -> Option<Instant> {
        self.tickets.due()
    }
}

impl Switch {
    /// Lets `fast_path` forward packets from now on. Connections on record go on with the engine
    /// until their next packet.
    pub fn set_fast_path(&mut self, now: Instant, mut fast_path: Box<dyn FastPath>) {
        self.reclaim_all(now);
        let lanes = fast_path
            .preconnect()
            .map_or(0, |fast_path| fast_path.lanes());
        self.offload.tickets.reset(lanes);
        self.offload.custody.reset(lanes > 0);
        self.offload.fast_path = Some(fast_path);
        for line in self.pair_lines() {
            self.introduce_pair(line);
        }
        self.refresh_offers(now);
        self.debug_check(None);
    }

    /// Leaves nothing with a fast path that another one follows.
    fn reclaim_all(&mut self, now: Instant) {
        if self.has_fast_path() {
            self.withdraw_tickets(now);
            let lines = self.table.high_water();
            (0..lines).for_each(|line| self.reclaim(now, Line(line)));
        }
    }

    /// Lets the fast path refuse this.
    pub fn refuse_ahead(&mut self, refusal: Refusal) {
        if let Some(fast_path) = &mut self.offload.fast_path {
            fast_path.set_refusal(refusal);
        }
    }

    /// True while a fast path outside forwards packets.
    #[inline]
    pub fn has_fast_path(&self) -> bool {
        self.offload.fast_path.is_some()
    }

    /// True while a fast path forwards packets that may lose keys.
    pub(super) fn fast_path_may_lose_keys(&self) -> bool {
        let fast_path = self.offload.fast_path.as_ref();
        fast_path.is_some_and(|fast_path| fast_path.may_lose_keys())
    }

    /// The two secret words behind SYN cookies, for a fast path that makes them itself.
    pub fn cookie_words(&self) -> (u64, u64) {
        self.cookies.words()
    }

    #[cfg(test)]
    pub(super) fn pass_to(&mut self, line: Line, custody: Custody) {
        self.offload.custody.pass(line, custody);
    }

    pub(super) fn custodies(&self) -> &Custodies {
        &self.offload.custody
    }

    /// Who holds a connection.
    #[inline]
    pub(super) fn custody(&self, line: Line) -> Custody {
        self.offload.custody.of(line)
    }

    /// Takes a connection back into the engine's hand, if it was handed over.
    #[inline]
    pub fn reclaim(&mut self, now: Instant, line: Line) {
        if !self.has_fast_path() {
            return;
        }
        if let Custody::Connecting { .. } = self.custody(line) {
            self.disarm(now, line);
        }
        if self.custody(line) == Custody::Kernel
            && let Some(fast_path) = &mut self.offload.fast_path
        {
            let tracking = fast_path.reclaim(line);
            self.offload.custody.pass(line, Custody::Engine);
            self.note_tracking(now, line, &tracking);
            self.learn_pair_seen(line);
        }
    }

    /// Hands a connection to the fast path, if there is one and nothing but translation is left.
    #[inline]
    pub fn offload(&mut self, line: Line) {
        if self.has_fast_path() {
            self.offload_or_persist(line);
        }
    }

    /// Has the fast path do what it has put off.
    #[inline]
    pub(super) fn flush_fast_path(&mut self) {
        if let Some(fast_path) = &mut self.offload.fast_path {
            fast_path.flush();
        }
    }

    /// Brings a record up to what the fast path has seen.
    pub(super) fn catch_up(&mut self, now: Instant, line: Line) {
        if self.custody(line) == Custody::Kernel
            && let Some(fast_path) = &self.offload.fast_path
        {
            let tracking = fast_path.tracking(line);
            self.note_tracking(now, line, &tracking);
        }
    }

    fn note_tracking(&mut self, now: Instant, line: Line, tracking: &Tracking) {
        let record = self.table.record_mut(line);
        let before = record.state;
        tracking.apply_to(record);
        self.note_move(now, line, before);
    }

    fn offload_or_persist(&mut self, line: Line) {
        let record = self.table.record(line);
        let is_watched = self.is_watched(record) || self.is_of_front(record);
        let joined = record.state.is_live() || record.state.is_resting();
        if is_pair(record) && !self.describe_pair(line) {
            return;
        }
        let record = self.table.record(line);
        let (Some(fast_path), true) = (&mut self.offload.fast_path, joined) else {
            return;
        };
        if self.offload.custody.of(line) != Custody::Engine {
            return; // it was begun and joined while this packet was handled
        }
        if is_watched || record.state == State::Reset || record.flags & !closing::FLAGS != 0 {
            fast_path.persist(line, record);
            return;
        }
        let endpoints = self.table.endpoints();
        let (client, server) = (record.client_key(endpoints), record.server_key(endpoints));
        if fast_path.offload(line, record, &client, &server) {
            self.offload.custody.pass(line, Custody::Kernel);
        }
    }

    /// A connection of an earlier run goes on in the fast path.
    pub(super) fn note_offloaded(&mut self, line: Line) {
        if self.has_fast_path() {
            self.offload.custody.pass(line, Custody::Kernel);
        }
    }

    /// Tells the fast path which of an earlier run's connections go on, and what is offered no
    /// more.
    pub(super) fn restore_fast_path(
        &mut self,
        lines: &[(Line, FlowKey, FlowKey)],
        estate: &Estate,
    ) {
        let Some(fast_path) = &mut self.offload.fast_path else {
            return;
        };
        fast_path.restore(lines);
        let gone = estate.offers.iter().map(|(listen, _)| *listen);
        gone.filter(|listen| !self.listens.contains_key(listen))
            .for_each(|listen| fast_path.withdraw_offer(listen));
    }

    /// Tells the fast path of a new record, if that has not been turned away already.
    pub(super) fn register(&mut self, line: Line) {
        if let Some(fast_path) = &mut self.offload.fast_path
            && self.table.record(line).state != State::Free
        {
            let client = self.table.record(line).client_key(self.table.endpoints());
            fast_path.register(line, &client);
        }
    }

    /// Tells the fast path that a connection leaves its server for another.
    pub(super) fn release_server(&mut self, line: Line) {
        if let Some(fast_path) = &mut self.offload.fast_path {
            let server = self.table.record(line).server_key(self.table.endpoints());
            fast_path.release_server(line, &server);
        }
    }

    /// Tells the fast path that a record goes.
    pub(super) fn remove_offloaded(&mut self, line: Line) {
        if let Some(fast_path) = &mut self.offload.fast_path {
            let record = self.table.record(line);
            let endpoints = self.table.endpoints();
            let (client, server) = (record.client_key(endpoints), record.server_key(endpoints));
            fast_path.remove(line, &client, &server);
            self.offload.custody.clear(line);
        }
    }

    /// Tells the fast path what every service offers.
    pub(super) fn publish_offers(&mut self) {
        let has_host = self.host_offers().is_some();
        let Some(fast_path) = &mut self.offload.fast_path else {
            return;
        };
        let listens = self.table.endpoints().listens.iter();
        for ((listen, &endpoint), &service) in (0..).zip(listens).zip(&self.listen_services) {
            if self.listens.get(&endpoint) != Some(&listen) {
                continue; // of an earlier run only
            }
            let settings = &self.config.services[usize::from(service)];
            let offer = &self.offers[usize::from(service)];
            let terms = offer.terms();
            let published = ListenOffer {
                listen,
                mss: offer.mss(endpoint.addr.is_v4()),
                window: settings.head_bytes_max.min(u32::from(u16::MAX)) as u16,
                window_scale: terms.window_scale,
                scale_parity: offer.parity(),
                sack: terms.sack,
                timestamps: terms.timestamps,
                answer: !self.draining,
                await_client: settings.protocol != Protocol::Tcp
                    && settings.timeouts.first_bytes.is_none(),
                begin: self.offload.tickets.are_for(listen),
                host: has_host && settings.routes.iter().any(Route::is_to_socket),
            };
            fast_path.set_offer(endpoint, &published);
        }
    }
}
