//! The client's handshake: SYN, cookie, first data (the paper's Table 1; RFC 4987).

use fairlead_base::{DropReason, Instant, Packet, SeqNumber};
use fairlead_tcp::record::{Record, State, flag};
use fairlead_tcp::{Promise, Side};
use fairlead_wire::{SynOptions, TcpFlags, TcpPacket, Timestamps, options};

use super::setup::Setup;
use super::{Switch, output};
use crate::Verdict;
use crate::config::Protocol;
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
        if flags.contains(TcpFlags::RST) {
            return self.drop(DropReason::NothingToDo);
        }
        if flags.contains(TcpFlags::SYN) {
            if flags.contains(TcpFlags::ACK) {
                return self.refuse(packet, header, DropReason::BadTcpFlags);
            }
            return self.answer_syn(now, packet, header, listen, None);
        }
        if !flags.contains(TcpFlags::ACK) {
            return self.drop(DropReason::BadTcpFlags);
        }
        let client_isn = header.seq - 1;
        let cookie = header.ack - 1;
        if let Some(promise) = self.cookies.check(&header.key, client_isn, now, cookie) {
            return self.admit(now, packet, header, listen, promise);
        }
        if header.payload_len() > 0 || flags.contains(TcpFlags::FIN) {
            // Perhaps the second segment overtook the first, in whose absence the cookie cannot be
            // checked: a RST would kill a connection that is merely reordered.
            return self.drop(DropReason::CookieInvalid);
        }
        // A keep-alive probe of a client that has sent nothing yet has the number before.
        let probing = self
            .cookies
            .check(&header.key, header.seq, now, cookie)
            .is_some();
        if probing {
            return self.acknowledge_idle(now, packet, header, header.seq + 1);
        }
        self.refuse(packet, header, DropReason::CookieInvalid)
    }

    /// Answers a SYN, keeping nothing. `dseq` is given for a connection that is already being set
    /// up and must keep its number.
    pub(super) fn answer_syn(
        &mut self,
        now: Instant,
        packet: &mut Packet,
        header: &TcpPacket,
        listen: u16,
        dseq: Option<SeqNumber>,
    ) -> Verdict {
        self.counts.syns += 1;
        if self.draining {
            return self.refuse(packet, header, DropReason::Draining);
        }
        let asked = match SynOptions::parse(header.options(&packet.bytes)) {
            Ok(asked) => asked,
            Err(reason) => return self.drop(reason),
        };
        let service = self.listen_services[usize::from(listen)];
        let offer = &self.offers[usize::from(service)];
        let terms = offer.current();
        let scale = asked.window_scale.filter(|_| terms.window_scale.is_some());
        let sack = asked.sack_permitted && terms.sack;
        let promise = Promise {
            mss: Promise::mss_class(asked.mss),
            window_scale: scale,
            sack,
            offer_parity: offer.parity(),
        };
        let dseq = dseq.unwrap_or_else(|| self.cookies.make(&header.key, header.seq, now, promise));
        let mss = if header.v4 {
            terms.mss
        } else {
            terms.mss.saturating_sub(20)
        };
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
    fn admit(
        &mut self,
        now: Instant,
        packet: &mut Packet,
        header: &TcpPacket,
        listen: u16,
        promise: Promise,
    ) -> Verdict {
        let protocol = self.service_of(listen).protocol;
        let fin = header.flags.contains(TcpFlags::FIN);
        if header.payload_len() == 0 && protocol != Protocol::Tcp {
            // The end of the handshake, or a client that says nothing at all: still no memory.
            if fin {
                let (seq, ack) = (header.ack, header.seq + 1);
                let flags = TcpFlags::FIN | TcpFlags::ACK;
                self.reply_to_idle(now, packet, header, seq, ack, flags);
                return Verdict::Transmit;
            }
            return Verdict::Consumed;
        }
        if self.draining {
            return self.refuse_newcomer(packet, header, listen, DropReason::Draining);
        }
        if self.setups.is_full() {
            return self.refuse_newcomer(packet, header, listen, DropReason::SetupFull);
        }
        let client_isn = header.seq - 1;
        let stamps = options::timestamps(header.options(&packet.bytes));
        let record = Record {
            client_addr: header.key.src.addr,
            client_port: header.key.src.port,
            listen,
            client_isn: client_isn.0,
            client_nxt: header.seq.0,
            last_active: Self::now_ms(now),
            state: State::Established,
            flags: if stamps.is_some() {
                flag::TIMESTAMPS
            } else {
                0
            },
            ..Record::default()
        };
        let Ok(line) = self.table.insert(record, Self::now_ms(now)) else {
            return self.refuse_newcomer(packet, header, listen, DropReason::TableFull);
        };
        let service = self.listen_services[usize::from(listen)];
        let offered_scale = self.offers[usize::from(service)]
            .of_parity(promise.offer_parity)
            .window_scale
            .filter(|_| promise.window_scale.is_some());
        let limit = self.service_of(listen).head_bytes_max;
        let (client_ts, our_ts) = stamps.map_or((0, 0), |stamps| (stamps.value, stamps.echo));
        let setup = Box::new(Setup::new(
            line,
            header.ack - 1,
            promise,
            offered_scale,
            protocol,
            limit,
            client_ts,
            our_ts,
        ));
        let index = self.setups.insert(setup);
        self.table.set_setup(line, Some(index));
        self.counts.services[usize::from(service)].accepted += 1;
        self.client_in_setup(now, packet, header, line)
    }

    /// Turns a client away whose handshake is complete but of whom nothing is kept.
    fn refuse_newcomer(
        &mut self,
        packet: &mut Packet,
        header: &TcpPacket,
        listen: u16,
        reason: DropReason,
    ) -> Verdict {
        let service = self.listen_services[usize::from(listen)];
        self.counts.services[usize::from(service)].refused += 1;
        self.emit_event(Event::Refused {
            client: header.key.src,
            listen: header.key.dst,
            service,
            reason,
            status: None,
            subject: String::new(),
        });
        self.refuse(packet, header, reason)
    }

    fn acknowledge_idle(
        &mut self,
        now: Instant,
        packet: &mut Packet,
        header: &TcpPacket,
        ack: SeqNumber,
    ) -> Verdict {
        self.reply_to_idle(now, packet, header, header.ack, ack, TcpFlags::ACK);
        Verdict::Transmit
    }

    /// Answers a client of which nothing is kept, with timestamps if it sent some.
    fn reply_to_idle(
        &mut self,
        now: Instant,
        packet: &mut Packet,
        header: &TcpPacket,
        seq: SeqNumber,
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
            seq,
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
        line: fairlead_tcp::Line,
    ) -> Verdict {
        let record = *self.table.record(line);
        let Some(index) = self.table.setup(line) else {
            debug_assert!(false, "a connection in set-up has set-up state");
            return self.drop(DropReason::NoConnection);
        };
        if header.flags.contains(TcpFlags::SYN) {
            if header.flags.contains(TcpFlags::ACK) {
                return self.drop(DropReason::BadTcpFlags);
            }
            let dseq = self.setups.entry(index).map(|setup| setup.dseq);
            let same = header.seq.0 == record.client_isn;
            if !same {
                self.record(line).flags |= flag::SYN_SEEN;
            }
            return self.answer_syn(now, packet, header, record.listen, dseq.filter(|_| same));
        }
        if record.flags & flag::SYN_SEEN != 0
            && let Some(verdict) = self.replace_if_new(now, packet, header, line, Side::Client)
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
        if let Some(stamps) = options::timestamps(header.options(&packet.bytes)) {
            setup.note_client_ts(stamps.value);
        }
        setup.client_window = header.window;
        if record.state == State::Answering {
            return self.client_of_answer(now, header, line, index);
        }
        if header.ack != setup.dseq + 1 {
            return self.drop(DropReason::BadSequence);
        }
        self.collect(now, packet, header, line, index)
    }

    /// A client gives up before it is spliced. Only the exact next number counts (RFC 5961,
    /// section 3.2): the client has sent nothing that we do not know of.
    fn client_reset_in_setup(
        &mut self,
        header: &TcpPacket,
        line: fairlead_tcp::Line,
        index: u32,
    ) -> Verdict {
        let record = *self.table.record(line);
        let ahead = header.seq.since(SeqNumber(record.client_isn));
        let limit = i64::from(self.service_of(record.listen).head_bytes_max) + 2;
        if !(0..=limit).contains(&i64::from(ahead)) {
            return self.drop(DropReason::BadSequence);
        }
        if record.state == State::SynSent {
            self.reset_server_in_setup(line, index);
        }
        self.forget_setup(line, index);
        self.table.remove(line);
        Verdict::Consumed
    }
}
