//! Connections that a fast path outside has: when they are given to it, taken back and forgotten.
//!
//! The rule is simple. Whoever handles a packet of a connection takes it back before and gives it
//! out after, if nothing is left to do then but to translate, and to follow it to its end. Timers
//! only catch up with what the fast path has seen: that is how ends become known.

use fairlead_base::{FlowKey, Instant};
use fairlead_tcp::{FastPath, Line, ListenOffer, Refusal, State};

use super::{Estate, Switch};
use crate::closing;
use crate::config::Protocol;

/// A fast path, and which connections it has.
#[derive(Debug, Default)]
pub(super) struct Given {
    pub(super) fast_path: Option<Box<dyn FastPath>>,
    /// By line.
    has: Vec<bool>,
}

impl Switch {
    /// Lets `fast_path` forward packets from now on. Connections on record go on with the engine
    /// until their next packet.
    pub fn set_fast_path(&mut self, now: Instant, fast_path: Box<dyn FastPath>) {
        self.take_all_back(now);
        self.tickets.reset(fast_path.lanes());
        self.given.fast_path = Some(fast_path);
        self.given.has = vec![false; self.table.capacity() as usize];
        self.refresh_offers(now);
    }

    /// Leaves nothing with a fast path that another one follows.
    fn take_all_back(&mut self, now: Instant) {
        if self.has_fast_path() {
            self.withdraw_tickets(now);
            let lines = self.table.high_water();
            (0..lines).for_each(|line| self.take_back(now, Line(line)));
        }
    }

    /// Lets the fast path refuse this.
    pub fn refuse_ahead(&mut self, refusal: Refusal) {
        if let Some(fast_path) = &mut self.given.fast_path {
            fast_path.refuse(refusal);
        }
    }

    /// True while a fast path outside forwards packets.
    #[inline]
    pub fn has_fast_path(&self) -> bool {
        self.given.fast_path.is_some()
    }

    /// True while a fast path forwards packets that may lose keys.
    pub(super) fn fast_path_may_lose_keys(&self) -> bool {
        let fast_path = self.given.fast_path.as_ref();
        fast_path.is_some_and(|fast_path| fast_path.may_lose_keys())
    }

    /// The two secret words behind SYN cookies, for a fast path that makes them itself.
    pub fn cookie_words(&self) -> (u64, u64) {
        self.cookies.words()
    }

    /// Takes a connection back into the engine's hand, if it was given.
    #[inline]
    pub fn take_back(&mut self, now: Instant, line: Line) {
        if self.has_fast_path() {
            self.disarm(now, line);
            self.catch_up_or_take(now, line, true);
        }
    }

    /// Gives a connection to the fast path, if there is one and nothing but translation is left.
    #[inline]
    pub fn give_out(&mut self, line: Line) {
        if self.has_fast_path() {
            self.give(line);
        }
    }

    /// Has the fast path do what it has put off.
    #[inline]
    pub(super) fn flush_fast_path(&mut self) {
        if let Some(fast_path) = &mut self.given.fast_path {
            fast_path.flush();
        }
    }

    /// Brings a record up to what the fast path has seen.
    pub(super) fn catch_up(&mut self, now: Instant, line: Line) {
        if self.has_fast_path() {
            self.catch_up_or_take(now, line, false);
        }
    }

    fn catch_up_or_take(&mut self, now: Instant, line: Line, take: bool) {
        let index = line.0 as usize;
        let (Some(fast_path), Some(true)) = (&mut self.given.fast_path, self.given.has.get(index))
        else {
            return;
        };
        let tracking = if take {
            self.given.has[index] = false;
            fast_path.take(line)
        } else {
            fast_path.peek(line)
        };
        let record = self.table.record_mut(line);
        let before = record.state;
        tracking.apply_to(record);
        self.note_move(now, line, before);
    }

    fn give(&mut self, line: Line) {
        let record = self.table.record(line);
        let joined = record.state.is_live() || record.state == State::TimeWait;
        if !joined || record.flags & !closing::FLAGS != 0 {
            if let Some(fast_path) = &mut self.given.fast_path
                && is_joined(record.state)
            {
                fast_path.keep(line, record);
            }
            return;
        }
        let endpoints = self.table.endpoints();
        let (client, server) = (record.client_key(endpoints), record.server_key(endpoints));
        if let Some(fast_path) = &mut self.given.fast_path
            && let Some(has) = self.given.has.get_mut(line.0 as usize)
        {
            *has = fast_path.give(line, record, &client, &server);
        }
    }

    /// Notes in whose hand a connection of an earlier run is.
    pub(super) fn note_given(&mut self, line: Line, given: bool) {
        if let Some(has) = self.given.has.get_mut(line.0 as usize) {
            *has = given;
        }
    }

    /// Tells the fast path which of an earlier run's connections go on, and what is offered no
    /// more.
    pub(super) fn reconcile_fast_path(
        &mut self,
        lines: &[(Line, FlowKey, FlowKey)],
        estate: &Estate,
    ) {
        let Some(fast_path) = &mut self.given.fast_path else {
            return;
        };
        fast_path.reconcile(lines);
        let gone = estate.offers.iter().map(|(listen, _)| *listen);
        gone.filter(|listen| !self.listens.contains_key(listen))
            .for_each(|listen| fast_path.withdraw_offer(listen));
    }

    /// Tells the fast path of a new record, if that has not been turned away already.
    pub(super) fn introduce(&mut self, line: Line) {
        if let Some(fast_path) = &mut self.given.fast_path
            && self.table.record(line).state != State::Free
        {
            let client = self.table.record(line).client_key(self.table.endpoints());
            fast_path.introduce(line, &client);
        }
    }

    /// Tells the fast path that a connection leaves its server for another.
    pub(super) fn leave_server(&mut self, line: Line) {
        if let Some(fast_path) = &mut self.given.fast_path {
            let server = self.table.record(line).server_key(self.table.endpoints());
            fast_path.leave_server(line, &server);
        }
    }

    /// Tells the fast path that a record goes.
    pub(super) fn forget_given(&mut self, line: Line) {
        if let Some(fast_path) = &mut self.given.fast_path {
            let record = self.table.record(line);
            let endpoints = self.table.endpoints();
            let (client, server) = (record.client_key(endpoints), record.server_key(endpoints));
            fast_path.forget(line, &client, &server);
            if let Some(has) = self.given.has.get_mut(line.0 as usize) {
                *has = false;
            }
        }
    }

    /// Tells the fast path what every service offers.
    pub(super) fn publish_offers(&mut self) {
        let Some(fast_path) = &mut self.given.fast_path else {
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
                await_client: settings.protocol != Protocol::Tcp,
                begin: self.tickets.are_for(listen),
            };
            fast_path.set_offer(endpoint, &published);
        }
    }
}

/// Both connections are, or were, joined: all that is known of them is in the record.
fn is_joined(state: State) -> bool {
    state.is_live() || state.is_resting()
}
