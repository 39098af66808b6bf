//! The client's handshake: SYN, cookie, first data (the paper's Table 1; RFC 4987).

use fairlead_base::{DropReason, FlowKey, Instant, Packet, SeqNumber};
use fairlead_tcp::record::{Record, State, flag};
use fairlead_tcp::{Found, Line, Promise, Side};
use fairlead_wire::{Asked, SynOptions, TcpFlags, TcpPacket, Timestamps, options};

use super::setup::{Awaited, Setup, SetupId};
use super::{Switch, output};
use crate::Verdict;
use crate::config::{OnDenied, Protocol};
use crate::event::Event;

impl Switch {
    /// A packet for a service from a tuple that has no connection.
    pub(super) fn handle_newcomer(
        &mut self,
        now: Instant,
        packet: &mut Packet,
        header: &TcpPacket,
        listen: u16,
    ) -> Verdict {
        let flags = header.flags;
        if self.listen_addresses.contains(&header.key.src.addr) {
            // One of our own addresses: we would answer ourselves.
            return self.drop(DropReason::BadSource);
        }
        // The kernel program gives the same reason.
        if flags.contains(TcpFlags::RST) {
            return self.drop(DropReason::NoConnection);
        }
        if flags.contains(TcpFlags::SYN) {
            if flags.contains(TcpFlags::ACK) {
                return self.refuse(packet, header, DropReason::BadTcpFlags);
            }
            return self.answer_syn(now, packet, header, listen);
        }
        if !flags.contains(TcpFlags::ACK) {
            return self.drop(DropReason::BadTcpFlags);
        }
        let client_isn = header.seq - 1;
        let cookie = header.ack - 1;
        if let Some(promise) = self.cookies.check(&header.key, client_isn, now, cookie) {
            return self.admit(now, packet, header, listen, client_isn, promise);
        }
        self.handle_unproven(now, packet, header, listen)
    }

    /// A client's packet of no connection on record that does not prove itself by a cookie.
    fn handle_unproven(
        &mut self,
        now: Instant,
        packet: &mut Packet,
        header: &TcpPacket,
        listen: u16,
    ) -> Verdict {
        let cookie = header.ack - 1;
        let service = self.service_of(listen);
        let wait = service.timeouts.wake;
        if service.routes.iter().any(|route| route.sleep)
            && let Some(verdict) = self.hear_sleeper(packet, header, wait)
        {
            return verdict;
        }
        // A keep-alive probe of a client that has sent nothing yet has the number before its first
        // byte, and perhaps one byte of nonsense (RFC 9293, section 3.8.4).
        let probing = header.payload_len() <= 1 && !header.flags.contains(TcpFlags::FIN);
        if probing && let Some(promise) = self.cookies.check(&header.key, header.seq, now, cookie) {
            if self.service_of(listen).protocol == Protocol::Tcp {
                // The last segment of the handshake was lost, and the client waits to hear
                // something.
                return self.admit(now, packet, header, listen, header.seq, promise);
            }
            self.reply_to_idle(now, packet, header, header.seq + 1, TcpFlags::ACK);
            return Verdict::Transmit;
        }
        if self.acks_idle_end(now, header) {
            return Verdict::Consumed;
        }
        if self.cookies.is_of_tuple(&header.key, now, cookie) {
            // The first segment is missing, and with it the number by which the cookie could be
            // checked in full: lost, or overtaken by this one. A RST would kill a good connection.
            return self.drop(DropReason::CookieInvalid);
        }
        self.refuse(packet, header, DropReason::CookieInvalid)
    }

    /// What becomes of a SYN whose sender an access list denies. The kernel program asks the same
    /// lists (`bpf/lib/access.h`).
    fn deny(&mut self, packet: &mut Packet, header: &TcpPacket, listen: u16) -> Option<Verdict> {
        let index = usize::from(self.listen_services[usize::from(listen)]);
        let service = &self.config.services[index];
        let client = header.key.src.addr;
        let at = service
            .access
            .iter()
            .position(|list| !list.allows(client))?;
        let on_denied = service.on_denied;
        if let Some(denied) = self.counts.services[index].denied.get_mut(at) {
            *denied += 1;
        }
        Some(match on_denied {
            OnDenied::Drop => self.drop(DropReason::AccessDenied),
            OnDenied::Reset => self.refuse(packet, header, DropReason::AccessDenied),
        })
    }

    /// Answers a SYN, keeping nothing.
    pub(super) fn answer_syn(
        &mut self,
        now: Instant,
        packet: &mut Packet,
        header: &TcpPacket,
        listen: u16,
    ) -> Verdict {
        if let Some(verdict) = self.deny(packet, header, listen) {
            return verdict;
        }
        self.counts.syns += 1;
        if self.draining {
            return self.refuse(packet, header, DropReason::Draining);
        }
        let asked = match SynOptions::parse(header.options(&packet.bytes)) {
            Ok(asked) => asked,
            Err(reason) => return self.drop(reason),
        };
        let service = self.listen_services[usize::from(listen)];
        let offer = &mut self.offers[usize::from(service)];
        let terms = offer.terms();
        let scale = asked.window_scale.filter(|_| terms.window_scale.is_some());
        let sack = asked.sack_permitted && terms.sack;
        let promise = Promise {
            mss: Promise::mss_class(asked.mss),
            window_scale: scale,
            sack,
            scale_parity: offer.parity(),
        };
        if scale.is_some() {
            offer.note_scale_used(now);
        }
        let dseq = self.cookies.make(&header.key, header.seq, now, promise);
        let mss = offer.mss(header.v4);
        let timestamps = asked.timestamps.filter(|_| terms.timestamps);
        let answer = SynOptions {
            mss: Some(mss),
            window_scale: scale.and(terms.window_scale),
            sack_permitted: sack,
            timestamps: timestamps.map(|asked| Timestamps {
                value: Self::now_ms(now),
                echo: asked.value,
            }),
        };
        let mut options = std::mem::take(&mut self.syn_options);
        options.clear();
        answer.emit(&mut options);
        let window = self
            .service_of(listen)
            .head_bytes_max
            .min(u32::from(u16::MAX)) as u16;
        let flags = TcpFlags::SYN | TcpFlags::ACK;
        output::reply(
            packet,
            header.key.reversed(),
            dseq,
            header.seq + 1,
            flags,
            window,
            &options,
        );
        self.syn_options = options;
        self.counts.syn_acks += 1;
        Verdict::Transmit
    }

    /// A packet with a valid cookie and no record.
    pub(super) fn admit(
        &mut self,
        now: Instant,
        packet: &mut Packet,
        header: &TcpPacket,
        listen: u16,
        client_isn: SeqNumber,
        promise: Promise,
    ) -> Verdict {
        let protocol = self.service_of(listen).protocol;
        if header.payload_len() == 0
            && protocol != Protocol::Tcp
            && let Some(verdict) = self.hear_idle(now, packet, header, listen)
        {
            return verdict;
        }
        // Others send one segment that proves them, and may be answered it once more.
        let is_tcp = protocol == Protocol::Tcp;
        if is_tcp && self.refused.contains(header.key, header.ack) {
            return self.refuse(packet, header, DropReason::NoConnection);
        }
        let head_max = self.service_of(listen).head_bytes_max as usize;
        let needed = header.payload_len().min(head_max) as u64;
        if let Err(reason) = self.make_room(now, needed) {
            return self.no_room_for(now, packet, header, listen, reason);
        }
        let stamps = options::timestamps(header.options(&packet.bytes));
        let record = Record {
            client_addr: header.key.src.addr,
            client_port: header.key.src.port,
            listen,
            client_isn: client_isn.0,
            client_nxt: (client_isn + 1).0,
            last_active: Self::now_ms(now),
            state: State::Established,
            flags: if stamps.is_some() {
                flag::TIMESTAMPS
            } else {
                0
            },
            ..Record::default()
        };
        let Ok(line) = self.table.insert(record, now.as_millis()) else {
            return self.no_room_for(now, packet, header, listen, DropReason::TableFull);
        };
        match self.whose_meanwhile(now, line, &header.key) {
            Some(found) if found.line == line => {}
            Some(begun) => return self.handle_on_record(now, packet, header, begun),
            None => return self.refuse(packet, header, DropReason::NoConnection),
        }
        self.begin_setup(
            now,
            line,
            header.ack - 1,
            promise,
            stamps.unwrap_or_default(),
        );
        let (client, ack) = (header.key, header.ack);
        let given = self.counts.given;
        let verdict = self.client_in_setup(now, packet, header, line);
        if self.table.record(line).state == State::Free && self.counts.given == given {
            self.refused.note(client, ack);
        }
        // Only now: where the splice could be left to the fast path, it has been told by that.
        self.register(line);
        verdict
    }

    /// Whose a client's key is that a new record has just been made for: a fast path may have begun
    /// a connection by another copy of its segment. That is so before it is told of the record, or
    /// not at all: so it is told first and asked then. `None`: begun, and ended at once.
    fn whose_meanwhile(&mut self, now: Instant, line: Line, client: &FlowKey) -> Option<Found> {
        if !self.has_tickets_out() {
            let side = Side::Client;
            return Some(Found { line, side });
        }
        self.register(line);
        self.learn_begun(now);
        self.table.find(client)
    }

    /// Refuses a client, unless a fast path has begun its connection meanwhile, by another copy of
    /// its segment.
    fn no_room_for(
        &mut self,
        now: Instant,
        packet: &mut Packet,
        header: &TcpPacket,
        listen: u16,
        reason: DropReason,
    ) -> Verdict {
        if self.has_tickets_out() {
            self.learn_begun(now);
        }
        match self.table.find(&header.key) {
            Some(begun) => self.handle_on_record(now, packet, header, begun),
            None => self.refuse_newcomer(packet, header, listen, reason),
        }
    }

    /// Sees to it that one more connection can be set up, whose head begins with so many bytes.
    fn make_room(&mut self, now: Instant, needed: u64) -> Result<(), DropReason> {
        if self.draining {
            return Err(DropReason::Draining);
        }
        if self.has_tickets_out() && !self.has_room_beside_tickets(needed) {
            // They may be taken at any moment: at the limits there are none.
            self.withdraw_tickets(now);
        }
        if self.setups.buffered_bytes() + needed > self.config.limits.buffered_bytes {
            return Err(DropReason::BufferFull);
        }
        if self.setups.is_full() {
            // Of those that a fast path outside has joined by itself we may not know yet.
            self.catch_up_with_fast_path(now);
        }
        if self.setups.is_full() && !self.end_oldest_answer() {
            return Err(DropReason::SetupFull);
        }
        if self.table.used() == self.table.capacity() {
            self.revoke_tickets();
        }
        if self.table.used() == self.table.capacity() && !self.end_a_rest(now) {
            return Err(DropReason::TableFull);
        }
        Ok(())
    }

    /// Makes the set-up state of a new record. From here on a timer watches over it.
    pub(super) fn begin_setup(
        &mut self,
        now: Instant,
        line: Line,
        dseq: SeqNumber,
        promise: Promise,
        stamps: Timestamps,
    ) {
        let listen = self.table.record(line).listen;
        let service = usize::from(self.listen_services[usize::from(listen)]);
        let settings = &self.config.services[service];
        let offered_scale = promise
            .window_scale
            .and_then(|_| self.offers[service].scale_of(promise.scale_parity));
        let mut setup = Box::new(Setup::new(
            line,
            dseq,
            promise,
            offered_scale,
            settings.protocol,
            settings.head_bytes_max,
            stamps.value,
            stamps.echo,
            now,
        ));
        setup.deadline = Some(now + settings.timeouts.head);
        setup.silent_until = settings.timeouts.first_bytes.map(|after| now + after);
        let awaits_speech = setup.silent_until.is_some();
        let index = self.setups.insert(setup);
        if awaits_speech {
            let client = self.table.record(line).client_addr;
            self.setups
                .set_awaited(index, &client, Some(Awaited::Speech));
        }
        self.table.set_setup(line, Some(index.index()));
        self.schedule(index);
        self.counts.services[service].accepted += 1;
    }

    /// Turns a client away whose handshake is complete but of whom nothing is kept.
    fn refuse_newcomer(
        &mut self,
        packet: &mut Packet,
        header: &TcpPacket,
        listen: u16,
        reason: DropReason,
    ) -> Verdict {
        self.refused.note(header.key, header.ack);
        let service = self.listen_services[usize::from(listen)];
        self.counts.services[usize::from(service)].refused += 1;
        self.emit_event(Event::Refused {
            client: header.key.src,
            listen: header.key.dst,
            service,
            reason,
            status: None,
            subject: Asked::default(),
            fault: None,
        });
        self.refuse(packet, header, reason)
    }

    /// The end of a handshake, or of a client that says nothing at all: still no memory, unless it
    /// is to be waited for; then there is no verdict yet.
    pub(super) fn hear_idle(
        &mut self,
        now: Instant,
        packet: &mut Packet,
        header: &TcpPacket,
        listen: u16,
    ) -> Option<Verdict> {
        if header.flags.contains(TcpFlags::FIN) {
            let flags = TcpFlags::FIN | TcpFlags::ACK;
            self.reply_to_idle(now, packet, header, header.seq + 1, flags);
            return Some(Verdict::Transmit);
        }
        let limits = self.config.limits;
        match self.service_of(listen).timeouts.first_bytes {
            None => Some(Verdict::Consumed),
            Some(_)
                if self.setups.silent() >= limits.silent_clients
                    || self.setups.awaits_enough_of(&header.key.src.addr, &limits) =>
            {
                // When it speaks, it is served as without that time-out.
                Some(self.drop(DropReason::SilentClientsFull))
            }
            Some(_) => None,
        }
    }

    /// True for the acknowledgement of the FIN with which [`Self::hear_idle`] let a client go.
    pub(super) fn acks_idle_end(&self, now: Instant, header: &TcpPacket) -> bool {
        let cookie = header.ack - 2;
        header.payload_len() == 0
            && self
                .cookies
                .check(&header.key, header.seq - 2, now, cookie)
                .is_some()
    }

    /// Answers a client of which nothing is kept, with timestamps if it sent some.
    fn reply_to_idle(
        &mut self,
        now: Instant,
        packet: &mut Packet,
        header: &TcpPacket,
        ack: SeqNumber,
        flags: TcpFlags,
    ) {
        let stamps = options::timestamps(header.options(&packet.bytes));
        let value = Self::now_ms(now);
        let stamps = stamps.map(|theirs| Timestamps {
            value,
            echo: theirs.value,
        });
        let mut options = Vec::new();
        SynOptions {
            mss: None,
            window_scale: None,
            sack_permitted: false,
            timestamps: stamps,
        }
        .emit(&mut options);
        let window = u16::MAX >> 2;
        output::reply(
            packet,
            header.key.reversed(),
            header.ack,
            ack,
            flags,
            window,
            &options,
        );
    }

    /// A packet of a client whose connection is being set up.
    pub(super) fn client_in_setup(
        &mut self,
        now: Instant,
        packet: &mut Packet,
        header: &TcpPacket,
        line: Line,
    ) -> Verdict {
        let record = *self.table.record(line);
        let Some(index) = self.setup_of(line) else {
            debug_assert!(false, "a connection in set-up has set-up state");
            return self.drop(DropReason::NoConnection);
        };
        if header.flags.contains(TcpFlags::SYN) {
            return self.syn_on_record(now, packet, header, line);
        }
        if record.flags & flag::SYN_SEEN != 0
            && let Some(verdict) = self.replace_if_new(now, packet, header, line)
        {
            return verdict;
        }
        if header.flags.contains(TcpFlags::RST) {
            return self.client_reset_in_setup(header, line, index);
        }
        let Some(setup) = self.setups.entry(index) else {
            return self.drop(DropReason::NoConnection);
        };
        if !header.flags.contains(TcpFlags::ACK) {
            return self.drop(DropReason::BadTcpFlags);
        }
        // Who was sent the cookie knows where our numbers are; strangers do not.
        let acked = header.ack.since(setup.dseq + 1);
        if !u32::try_from(acked).is_ok_and(|acked| acked <= setup.sent_to_client()) {
            return self.drop(DropReason::BadSequence);
        }
        if let Some(stamps) = options::timestamps(header.options(&packet.bytes)) {
            setup.note_client_stamps(stamps);
        }
        setup.client_window = header.window;
        if record.state == State::Answering {
            return self.client_of_answer(now, header, line, index);
        }
        self.collect(now, packet, header, line, index)
    }

    /// A client gives up before it is spliced. Only exact numbers count; another one within what
    /// we would take is answered by a challenge, which a client that means it answers by a RST with
    /// the exact number (RFC 5961, section 3.2).
    fn client_reset_in_setup(&mut self, header: &TcpPacket, line: Line, index: SetupId) -> Verdict {
        let record = *self.table.record(line);
        let first = SeqNumber(record.client_isn) + 1;
        let Some(setup) = self.setups.peek(index) else {
            return self.drop(DropReason::NoConnection);
        };
        let (expected, highest) = match setup.answered_until() {
            Some(end) => (end, end),
            None => {
                let fin_end = setup.fin_at.map_or(0, |at| at.saturating_add(1));
                let highest = setup.stream.end().max(fin_end);
                (first + setup.acked, first + highest)
            }
        };
        if header.seq != expected && header.seq != highest {
            let room = i64::from(self.service_of(record.listen).head_bytes_max) + 2;
            if (0..=room).contains(&i64::from(header.seq.since(expected))) {
                self.challenge_client(line, index);
            }
            return self.drop(DropReason::BadSequence);
        }
        match record.state {
            State::SynSent => self.reset_server_in_setup(line, index),
            State::Established => {
                self.note_refusal(line, DropReason::HeadAborted, None, Asked::default());
            }
            _ => {}
        }
        self.free(line);
        Verdict::Consumed
    }
}
