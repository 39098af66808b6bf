//! The server's side: choosing, SYN, refusal, silence, and the splice (the paper's Table 2).

use core::time::Duration;

use fairlead_base::{DropReason, Endpoint, FlowKey, Instant, Packet, SeqNumber};
use fairlead_tcp::join::SynAck;
use fairlead_tcp::record::{TRANSPARENT, flag};
use fairlead_tcp::{Backoff, Found, KeyInUse, Line, Side, State};
use fairlead_wire::{Asked, SynOptions, TcpFlags, TcpPacket, Timestamps};

use super::head::Refusal;
use super::held::{Held, Peer};
use super::offload::Custody;
use super::setup::{Decision, SetupId};
use super::{Switch, head, probe, timer};
use crate::Verdict;
use crate::backends::{Caller, Change, Lacking, ServerId};
use crate::config::Source;
use crate::event::{Event, ServerState};
use crate::snat::Candidates;

/// First retransmission of a SYN towards a server: servers are near.
const SYN_WAIT: Duration = Duration::from_millis(250);
const SYN_RETRANSMISSIONS: u8 = 8;

/// The first one comes as soon as this after the server answered an older connection's packets: it
/// takes a RST first, and to give it time to arrive is all that is waited for.
const SYN_AFTER_RESET: Duration = Duration::from_millis(2);

/// Why a server was not reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Failure {
    Refused,
    Silent,
    Mismatch,
}

impl Failure {
    fn reason(self) -> DropReason {
        match self {
            Self::Refused => DropReason::ServerRefused,
            Self::Silent => DropReason::ServerSilent,
            Self::Mismatch => DropReason::OptionMismatch,
        }
    }
}

impl Switch {
    /// Chooses a server that has not been tried and sends it a SYN; without one left, the client
    /// is turned away.
    pub(super) fn connect(&mut self, now: Instant, line: Line, index: SetupId) {
        let client = self.table.record(line).client_addr;
        let listen = self.table.record(line).listen;
        let transparent = self.service_of(listen).source == Source::Transparent;
        let caller = Caller {
            v4: client.is_v4(),
            addr: transparent.then_some(client),
        };
        let setup = self.setups.peek(index);
        if let Some(decision) = setup.and_then(|setup| setup.decision.as_ref()) {
            self.look_at_loads(now, decision.pool);
        }
        loop {
            let Some(setup) = self.setups.entry(index) else {
                return;
            };
            let Some(decision) = &setup.decision else {
                return;
            };
            let picked = if setup.attempts <= decision.retries {
                self.backends
                    .pick(decision.pool, decision.hash, caller, &setup.tried, now)
            } else {
                None
            };
            let Some(server) = picked else {
                let sourceless = setup.no_source && setup.attempts == 0;
                let reason = if sourceless {
                    DropReason::SnatExhausted
                } else {
                    DropReason::NoServer
                };
                self.give_up(now, line, index, reason);
                return;
            };
            setup.tried.push(server);
            if self.bind_source(now, line, server) {
                self.send_first_syn(now, line, index, server);
                return;
            }
            if let Some(setup) = self.setups.entry(index) {
                setup.no_source = true;
            }
        }
    }

    /// Turns a client away for whom there is a route but no way to a server.
    pub(super) fn give_up(&mut self, now: Instant, line: Line, index: SetupId, reason: DropReason) {
        let decision = self
            .setups
            .entry(index)
            .and_then(|setup| setup.decision.as_ref());
        let (subject, bodyless) = decision
            .map(|decision| (decision.subject.clone(), decision.bodyless))
            .unwrap_or_default();
        self.record(line).state = State::Established;
        let refusal = Refusal {
            reason,
            status: 503,
            alert: head::ALERT_INTERNAL_ERROR,
            subject,
            bodyless,
            fault: None,
        };
        self.refuse_head(now, line, index, refusal);
    }

    /// Finds an address and port from which this server can be reached, and binds them.
    pub(super) fn bind_source(&mut self, now: Instant, line: Line, server: ServerId) -> bool {
        let record = *self.table.record(line);
        let endpoint = self.backends.server(server).1.endpoint;
        self.record(line).server = self.places.of_server(server);
        if self.service_of(record.listen).source == Source::Transparent {
            self.record(line).nat_addr = TRANSPARENT;
            return self.bind_or_replace(now, line);
        }
        let candidates = self.snat.candidates(record.client(), endpoint);
        for source in candidates.clone() {
            let key = self.take_source(line, source);
            if !self.probes.awaits(&key) && self.bind_unused(now, line) {
                return true;
            }
        }
        self.bind_rested(now, line, candidates)
    }

    /// Writes a source of ours into a record; the key of the server's answers to it.
    fn take_source(&mut self, line: Line, (nat_addr, nat_port): (u16, u16)) -> FlowKey {
        let (record, endpoints) = self.table.record_and_endpoints(line);
        record.nat_addr = nat_addr;
        record.nat_port = nat_port;
        record.server_key(endpoints)
    }

    /// When all are taken, the connection that has rested longest yields its source: nobody uses it
    /// any more, and the server, should it keep the connection still, gives way to a SYN as well
    /// (see [`Self::ask_again_soon`]).
    fn bind_rested(&mut self, now: Instant, line: Line, candidates: Candidates) -> bool {
        let mut longest: Option<(u32, Line, (u16, u16))> = None;
        for source in candidates {
            let key = self.take_source(line, source);
            let Some(Found { line: other, .. }) = self.table.find(&key) else {
                continue;
            };
            self.catch_up(now, other);
            let record = self.table.record(other);
            let quiet_ms = timer::quiet_ms(Self::now_ms(now), record.last_active);
            let rests = record.state.is_resting() && record.flags & flag::HELD == 0;
            if rests && longest.is_none_or(|(most, ..)| most < quiet_ms) {
                longest = Some((quiet_ms, other, source));
            }
        }
        let Some((quiet_ms, other, source)) = longest else {
            return false;
        };
        if quiet_ms < timer::RESET_HOLD_MS {
            return false;
        }
        self.reclaim(now, other);
        self.remove_resting(other);
        self.counts.time_wait_evicted += 1;
        self.take_source(line, source);
        self.table.bind_server(line).is_ok()
    }

    /// Binds a source of many that nobody uses; what was reset uses it no more after a while.
    fn bind_unused(&mut self, now: Instant, line: Line) -> bool {
        match self.table.bind_server(line) {
            Ok(()) => true,
            Err(KeyInUse(other)) => {
                let record = self.table.record(other);
                let quiet_ms = timer::quiet_ms(Self::now_ms(now), record.last_active);
                if record.state != State::Reset || quiet_ms < timer::RESET_HOLD_MS {
                    return false;
                }
                self.remove_resting(other);
                self.table.bind_server(line).is_ok()
            }
        }
    }

    /// In transparent mode there is one source only. A resting connection yields it, as the
    /// client's own TCP has shown that it considers the old connection over.
    fn bind_or_replace(&mut self, now: Instant, line: Line) -> bool {
        match self.table.bind_server(line) {
            Ok(()) => true,
            Err(KeyInUse(other)) => {
                // A fast path outside may have seen it end since.
                self.reclaim(now, other);
                if !self.table.record(other).state.is_resting() {
                    self.offload(other);
                    return false;
                }
                self.remove_resting(other);
                self.table.bind_server(line).is_ok()
            }
        }
    }

    fn send_first_syn(&mut self, now: Instant, line: Line, index: SetupId, server: ServerId) {
        self.note_asked(now, line, index, server);
        self.send_syn(line, index);
        self.arm(now, line, index);
    }

    /// A server has been chosen, and is sent a SYN at this moment.
    pub(super) fn note_asked(
        &mut self,
        now: Instant,
        line: Line,
        index: SetupId,
        server: ServerId,
    ) {
        self.backends.opened(server);
        let record = self.table.record(line);
        let (listen, route, client) = (record.listen, record.route, record.client());
        let endpoints = self.table.endpoints();
        let listen_endpoint = endpoints.listen(listen);
        let server_endpoint = self.backends.server(server).1.endpoint;
        let service = self.listen_services[usize::from(listen)];
        self.record(line).state = State::SynSent;
        let Some(setup) = self.setups.entry(index) else {
            return;
        };
        let Some(decision) = &setup.decision else {
            return;
        };
        let attempt = setup.attempts;
        setup.attempts = attempt.saturating_add(1);
        let timeout = self.config.pools[usize::from(decision.pool.0)].connect_timeout;
        setup.asked = Some(now);
        setup.deadline = Some(now + timeout);
        setup.backoff = Some(Backoff::start(now, SYN_WAIT, SYN_RETRANSMISSIONS));
        let event = Event::Decided {
            client,
            listen: listen_endpoint,
            service,
            route,
            pool: decision.pool,
            server: server_endpoint,
            attempt,
            treatment: decision.treatment,
            subject: decision.subject.clone(),
        };
        if attempt == 0 {
            self.counts.services[usize::from(service)].decisions[usize::from(route)] += 1;
        } else {
            self.counts.retries += 1;
        }
        self.emit_event(event);
        self.schedule(index);
    }

    /// Our initial sequence number towards the server.
    pub(super) fn our_isn(&self, line: Line, index: SetupId) -> SeqNumber {
        let client_isn = SeqNumber(self.table.record(line).client_isn);
        let decision = self
            .setups
            .peek(index)
            .and_then(|setup| setup.decision.as_ref());
        client_isn - decision.map_or(0, Decision::inserted_bytes)
    }

    /// The MSS that a server is asked with.
    fn asked_mss(&self, line: Line, index: SetupId) -> Option<u16> {
        let v4 = self.table.record(line).client_addr.is_v4();
        let device_mss = probe::mss_of_family(self.config.device_mss, v4);
        let setup = self.setups.peek(index)?;
        Some(setup.promise.mss.min(device_mss))
    }

    /// Sends a SYN with the client's own number and options.
    pub(super) fn send_syn(&mut self, line: Line, index: SetupId) {
        let isn = self.our_isn(line, index);
        let record = *self.table.record(line);
        let mss = self.asked_mss(line, index);
        let Some(setup) = self.setups.entry(index) else {
            return;
        };
        let timestamps = (record.flags & flag::TIMESTAMPS != 0).then_some(Timestamps {
            value: setup.client_ts,
            echo: 0,
        });
        let ask = SynOptions {
            mss,
            window_scale: setup.promise.window_scale,
            sack_permitted: setup.promise.sack,
            timestamps,
        };
        let scale = setup.promise.window_scale.unwrap_or(0);
        let window = (u32::from(setup.client_window) << scale).min(u32::from(u16::MAX)) as u16;
        let mut options = std::mem::take(&mut self.syn_options);
        options.clear();
        ask.emit(&mut options);
        let key = record.server_key(self.table.endpoints()).reversed();
        self.output
            .send(key, isn, SeqNumber(0), TcpFlags::SYN, window, &options, &[]);
        self.syn_options = options;
    }

    /// A server answers our SYN.
    pub(super) fn server_in_setup(
        &mut self,
        now: Instant,
        packet: &mut Packet,
        header: &TcpPacket,
        line: Line,
    ) -> Verdict {
        let Some(index) = self.setup_of(line) else {
            let custody = self.custody(line);
            debug_assert!(matches!(custody, Custody::Ticket { .. }), "{custody:?}");
            // A ticket's source, which nobody uses yet: left over from before.
            return self.refuse(packet, header, DropReason::NoConnection);
        };
        let expected = self.our_isn(line, index) + 1;
        let flags = header.flags;
        let acceptable = flags.contains(TcpFlags::ACK) && header.ack == expected;
        if flags.contains(TcpFlags::RST) {
            if !acceptable {
                return self.drop(DropReason::BadSequence);
            }
            self.server_failed(now, line, index, Failure::Refused);
            return Verdict::Consumed;
        }
        if !flags.contains(TcpFlags::ACK) {
            // It answers nothing of ours. To be refused it would take a RST with number 0, which a
            // server that has just answered our SYN may find in its window.
            return self.drop(DropReason::BadSequence);
        }
        if !acceptable {
            // Perhaps left over from an older connection on this tuple: RFC 9293, section 3.5.2. A
            // server keeps closed ones for a minute, and a switch that was started anew does not
            // know them.
            self.ask_again_soon(now, index);
            return self.refuse(packet, header, DropReason::BadSequence);
        }
        if !flags.contains(TcpFlags::SYN) {
            return self.drop(DropReason::BadSequence);
        }
        let Ok(options) = SynOptions::parse(header.options(&packet.bytes)) else {
            return self.drop(DropReason::BadTcpOptions);
        };
        let promised_timestamps = self.table.record(line).flags & flag::TIMESTAMPS != 0;
        self.note_answer(now, line, index, &options);
        if promised_timestamps && options.timestamps.is_none() {
            // The client will send them in every segment and wants them in every segment
            // (RFC 7323, section 3.2): this server cannot be joined to it.
            self.reset_server_in_setup_at(line, expected);
            self.server_failed(now, line, index, Failure::Mismatch);
            return Verdict::Consumed;
        }
        self.splice(now, header, line, index, &options);
        Verdict::Consumed
    }

    /// The server is about to forget what it took our SYN for.
    fn ask_again_soon(&mut self, now: Instant, index: SetupId) {
        let setup = self.setups.entry(index);
        let Some(backoff) = setup.and_then(|setup| setup.backoff.as_mut()) else {
            return;
        };
        backoff.hurry(now, SYN_AFTER_RESET, SYN_RETRANSMISSIONS);
        self.schedule(index);
    }

    /// A server has answered a client's connection: it is up. What it honours is a probe's to say,
    /// as this SYN asked only for what its client knows; but a promise that it broke is not made
    /// again.
    fn note_answer(&mut self, now: Instant, line: Line, index: SetupId, options: &SynOptions) {
        let asked_mss = self.asked_mss(line, index);
        let record = self.table.record(line);
        let promised_timestamps = record.flags & flag::TIMESTAMPS != 0;
        let v4 = record.client_addr.is_v4();
        let Some(id) = self.places.server(record.server) else {
            return;
        };
        let seen = probe::honoured(options, v4);
        let lacking = Lacking {
            // Below what it was asked with, it is the server's own: some say no more than that.
            segments: asked_mss.is_some_and(|asked| seen.mss < asked),
            timestamps: promised_timestamps && !seen.timestamps,
        };
        let change = self.backends.connected(id, seen, lacking, now);
        self.heed(now, id, change);
    }

    /// Joins the two connections: from here on packets are translated.
    fn splice(
        &mut self,
        now: Instant,
        header: &TcpPacket,
        line: Line,
        index: SetupId,
        options: &SynOptions,
    ) {
        let mss_out = self.mss_to(self.table.record(line).server, header.v4);
        self.keep_details(now, line, index, true);
        let Some(setup) = self.setups.entry(index) else {
            return;
        };
        let answer = SynAck {
            isn: header.seq,
            scale: options.window_scale,
            ts: options.timestamps.map(|stamps| stamps.value),
        };
        let terms = setup.terms();
        let record = self.table.record_mut(line);
        terms.join(&answer).apply_to(record);
        let mut decision = setup.decision.take();
        let in_order = setup.stream.in_order();
        let request = decision.as_mut().and_then(|one| one.request.as_mut());
        let count = request.map_or(in_order.len(), |one| one.first_bytes(in_order));
        let surplus = count < in_order.len();
        let end = SeqNumber(record.client_isn) + 1 + count as u32;
        record.advance_client(end);
        record.last_active = Self::now_ms(now);
        record.state = State::Spliced;
        setup.deadline = None;
        setup.backoff = None;
        let held = Held::new(
            setup,
            decision,
            record.client_isn,
            end,
            &Peer {
                isn: header.seq,
                mss: options
                    .mss
                    .unwrap_or(probe::mss_unsaid(header.v4))
                    .min(mss_out),
                ts: options.timestamps.map_or(0, |stamps| stamps.value),
                scale: terms.server_scale(&answer).unwrap_or(0),
                window: header.window,
            },
        );
        let hold = held.must_be_held(setup.acked);
        setup.held = Some(held);
        if surplus {
            self.counts.drops.add(DropReason::BehindRequest);
        }
        self.counts.spliced += 1;
        self.counts.live += 1;
        self.watch_load(line);
        self.note_first_request(line);
        if hold {
            self.record(line).flags |= flag::HELD;
            self.note_request(line, index);
            self.begin_holding(now, line, index);
        } else {
            self.send_held(now, line, index);
            self.forget_setup(line, index);
        }
    }

    /// A server did not take the connection: the next one is tried. Whether the server takes others
    /// a probe finds out.
    pub(super) fn server_failed(
        &mut self,
        now: Instant,
        line: Line,
        index: SetupId,
        failure: Failure,
    ) {
        self.counts.drops.add(failure.reason());
        let record = self.table.record(line);
        let client = record.client_addr;
        if let Some(id) = self.places.server(record.server) {
            self.backends.closed(id);
            if failure != Failure::Mismatch {
                if self.backends.state(id) != ServerState::Down {
                    self.probes.prompt(id, now);
                }
                if self.backends.failed_for(id, client, now) {
                    self.announce(id);
                    self.refresh_offers(now);
                }
            }
        }
        self.release_server(line);
        self.table.unbind_server(line);
        self.connect(now, line, index);
    }

    /// A server has answered: brings what clients are offered up to it.
    pub(super) fn heed(&mut self, now: Instant, id: ServerId, change: Change) {
        if change != Change::None {
            self.announce_change(id, change);
            self.refresh_offers(now);
        }
    }

    /// Tells everybody that a server's state changed.
    pub(super) fn announce(&mut self, id: ServerId) {
        self.announce_change(id, Change::More);
    }

    fn announce_change(&mut self, id: ServerId, change: Change) {
        self.revoke_tickets();
        let (pool, server) = self.backends.server(id);
        let (state, offers) = (self.backends.state(id), self.backends.offers(id));
        self.emit_event(Event::Server {
            server: server.endpoint,
            pool,
            state,
            offers,
            fewer: change == Change::Less,
        });
    }

    /// Takes back a SYN that was sent, whether or not it was answered yet.
    pub(super) fn reset_silent_server(&mut self, line: Line, index: SetupId) {
        let next = self.our_isn(line, index) + 1;
        self.reset_server_in_setup_at(line, next);
    }

    /// The same for good: the server gets no connection from this client.
    pub(super) fn reset_server_in_setup(&mut self, line: Line, index: SetupId) {
        self.reset_silent_server(line, index);
        if let Some(id) = self.places.server(self.table.record(line).server) {
            self.backends.closed(id);
        }
    }

    pub(super) fn reset_server_in_setup_at(&mut self, line: Line, next: SeqNumber) {
        self.part(line, Side::Server);
        let key = self
            .table
            .record(line)
            .server_key(self.table.endpoints())
            .reversed();
        self.output
            .send(key, next, SeqNumber(0), TcpFlags::RST, 0, &[], &[]);
    }

    /// Counts a refusal and tells everybody.
    pub(super) fn note_refusal(
        &mut self,
        line: Line,
        reason: DropReason,
        status: Option<u16>,
        subject: Asked,
    ) {
        let refusal = Refusal {
            reason,
            status: 0,
            alert: 0,
            subject,
            bodyless: false,
            fault: None,
        };
        self.note_refusal_of(line, status, refusal);
    }

    /// The same with what was wrong with a head.
    pub(super) fn note_refusal_of(&mut self, line: Line, status: Option<u16>, refusal: Refusal) {
        let record = self.table.record(line);
        let (client, listen) = (record.client(), record.listen);
        let service = self.listen_services[usize::from(listen)];
        let listen: Endpoint = self.table.endpoints().listen(listen);
        self.counts.drops.add(refusal.reason);
        self.counts.services[usize::from(service)].refused += 1;
        self.emit_event(Event::Refused {
            client,
            listen,
            service,
            reason: refusal.reason,
            status,
            subject: refusal.subject,
            fault: refusal.fault,
        });
    }

    /// Frees set-up state.
    pub(super) fn forget_setup(&mut self, line: Line, index: SetupId) {
        let client = self.table.record(line).client_addr;
        if let Some(setup) = self.setups.remove(index, &client) {
            self.timers.forget(index, setup.scheduled);
        }
        self.table.set_setup(line, None);
    }
}
