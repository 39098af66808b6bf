//! The switch's own answers to clients: an HTTP error or a TLS alert, then the end.
//!
//! An answer is as many segments as it takes. They go out within the client's window and a
//! congestion window (RFC 5681: slow start, and one segment after a time-out); what is not
//! acknowledged in time is sent again from there on.

use core::time::Duration;
use std::sync::Arc;

use fairlead_base::{DropReason, Instant, SeqNumber};
use fairlead_tcp::record::flag;
use fairlead_tcp::{Backoff, Line, State};
use fairlead_wire::{
    Asked, IcmpKind, IcmpPacket, IcmpQuote, SynOptions, TcpFlags, TcpPacket, Timestamps,
};

use super::Switch;
use super::held::SEGMENT_BYTES_MIN;
use super::probe::{mss_of_family, mss_of_router};
use super::setup::{Awaited, Setup, SetupId};
use crate::Verdict;
use crate::config::Page;

const RESEND_WAIT: Duration = Duration::from_millis(300);
const RESENDS: u8 = 5;

/// How long a client may take for an answer, however slowly it goes on.
const TAKE_MAX: Duration = Duration::from_secs(60);

/// Segments that are sent before the first acknowledgement (RFC 6928).
const FIRST_SEGMENTS: u32 = 10;

/// How long a client that has our FIN is waited for.
const LINGER: Duration = Duration::from_secs(3);

/// How long an answered connection is remembered when both sides have closed, so that a lost last
/// acknowledgement can be repeated.
const REST: Duration = Duration::from_secs(1);

/// An answer on its way. Its positions count from its first byte; the FIN takes the last one.
#[derive(Debug)]
pub(super) struct Answer {
    /// All of it, or what stands before a page.
    bytes: Vec<u8>,
    /// The same one for all clients.
    page: Option<Arc<Page>>,
    /// How much the client has acknowledged, how much was sent since the last time-out, and how
    /// much was ever sent.
    acked: u32,
    sent: u32,
    ever_sent: u32,
    /// How much more than `acked` the client takes, and the network.
    window: u32,
    congestion_window: u32,
    mss: u16,
    /// Behind the last byte of the client that was acknowledged, its FIN included.
    client_end: SeqNumber,
    client_closed: bool,
}

impl Answer {
    fn page_bytes(&self) -> &[u8] {
        self.page.as_ref().map_or(&[], |page| &page.body)
    }

    /// Its bytes without the FIN.
    fn bytes_len(&self) -> u32 {
        (self.bytes.len() + self.page_bytes().len()) as u32
    }

    /// How much of our sequence space it takes: its bytes and the FIN.
    fn len(&self) -> u32 {
        self.bytes_len() + 1
    }

    /// The client has acknowledged bytes and FIN.
    fn is_taken(&self) -> bool {
        self.acked == self.len()
    }

    /// What is at these positions.
    fn payload(&self, from: u32, to: u32) -> Vec<u8> {
        let all = self.bytes.iter().chain(self.page_bytes());
        let count = to.saturating_sub(from) as usize;
        all.skip(from as usize).take(count).copied().collect()
    }

    /// The payload of a full segment beside `options_len` bytes of options (RFC 6691, section 2).
    fn segment_bytes(&self, options_len: usize) -> u32 {
        let room = usize::from(self.mss).saturating_sub(options_len);
        room.max(SEGMENT_BYTES_MIN) as u32
    }

    /// The next segment within the windows: where it begins and ends, and whether the FIN follows.
    /// A short one that is not the last goes out only when nothing else is under way (RFC 9293,
    /// section 3.8.6.2.1).
    fn next_segment(&self, segment_bytes: u32, window: u32) -> Option<(u32, u32, bool)> {
        let bytes_len = self.bytes_len();
        let carried = self.acked.saturating_add(self.congestion_window);
        let mut until = self.acked.saturating_add(window).min(self.len());
        if carried < bytes_len {
            until = until.min(carried);
        }
        if self.sent >= until {
            return None;
        }
        let end = (self.sent + segment_bytes).min(bytes_len).min(until);
        let is_short = end < bytes_len && end - self.sent < segment_bytes;
        if is_short && self.sent > self.acked {
            return None;
        }
        Some((self.sent, end, end == bytes_len && until > bytes_len))
    }

    /// The client has acknowledged this much, and takes `window` more.
    fn note_ack(&mut self, acked: u32, window: u32) -> bool {
        if acked < self.acked {
            return false; // an old packet
        }
        let news = acked - self.acked;
        if self.window == 0 && news == 0 {
            self.sent = acked; // a probe that it did not take
        }
        self.window = window;
        self.acked = acked;
        self.sent = self.sent.max(acked);
        self.congestion_window = self.congestion_window.saturating_add(news);
        news > 0
    }
}

impl Setup {
    /// Where the client's stream ends for a client that is being answered.
    pub(super) fn answered_until(&self) -> Option<SeqNumber> {
        self.answer.as_ref().map(|answer| answer.client_end)
    }

    /// How much the client takes behind what it acknowledges, by its last packet.
    fn client_room(&self) -> u32 {
        let scale = self.promise.window_scale.unwrap_or(0).min(14);
        u32::from(self.client_window) << scale
    }

    /// How much of our sequence space the client was sent behind our SYN.
    pub(super) fn sent_to_client(&self) -> u32 {
        self.answer.as_ref().map_or(0, |answer| answer.ever_sent)
    }
}

impl Switch {
    /// Acknowledges what is in order of a head that is not whole. From now on these bytes are ours
    /// to deliver.
    pub(super) fn acknowledge_head(&mut self, line: Line, index: SetupId) {
        if let Some(setup) = self.setups.entry(index) {
            setup.acked = setup.stream.in_order_len();
        }
        self.challenge_client(line, index);
    }

    /// Tells a client whose head is being read what is acknowledged so far, and no more.
    pub(super) fn challenge_client(&mut self, line: Line, index: SetupId) {
        let record = *self.table.record(line);
        let key = record.client_key(self.table.endpoints()).reversed();
        let Some(setup) = self.setups.entry(index) else {
            return;
        };
        let options = own_options(setup, record.flags);
        let (sent, ack, window) = match &setup.answer {
            Some(answer) => (answer.ever_sent, answer.client_end, ANSWER_WINDOW),
            None => {
                let ack = SeqNumber(record.client_isn) + 1 + setup.acked;
                let room = setup.stream.limit_bytes() - setup.acked;
                (0, ack, own_window(room, setup.offered_scale))
            }
        };
        let seq = setup.dseq + 1 + sent;
        self.output
            .send(key, seq, ack, TcpFlags::ACK, window, &options, &[]);
    }

    /// Sends an answer and closes. A client of which too much is awaited already gets its first
    /// segments once, a RST behind them, and is forgotten.
    pub(super) fn answer(
        &mut self,
        now: Instant,
        line: Line,
        index: SetupId,
        bytes: Vec<u8>,
        page: Option<Arc<Page>>,
    ) {
        let client = self.table.record(line).client_addr;
        self.setups.set_awaited(index, &client, None);
        let bounded = self.setups.awaits_enough_of(&client, &self.config.limits);
        let first = SeqNumber(self.table.record(line).client_isn) + 1;
        let device_mss = mss_of_family(self.config.device_mss, client.is_v4());
        self.record(line).state = State::Answering;
        let Some(setup) = self.setups.entry(index) else {
            return;
        };
        let in_order = setup.stream.in_order_len();
        let client_closed = setup.fin_at == Some(in_order);
        let client_end = first + in_order + u32::from(client_closed);
        let mss = setup.promise.mss.min(device_mss);
        setup.answer = Some(Answer {
            bytes,
            page,
            acked: 0,
            sent: 0,
            ever_sent: 0,
            window: setup.client_room(),
            congestion_window: FIRST_SEGMENTS * u32::from(mss),
            mss,
            client_end,
            client_closed,
        });
        setup.stream = fairlead_tcp::Reassembly::new(0);
        setup.decision = None;
        setup.ack_due = None;
        setup.deadline = Some(now + TAKE_MAX);
        setup.backoff = Some(Backoff::start(now, RESEND_WAIT, RESENDS));
        self.setups.recount(index);
        self.send_answer(line, index, false);
        if bounded {
            self.counts.drops.add(DropReason::HalfReadClientFull);
            self.send_reset_to_client(line, index);
            self.free(line);
            return;
        }
        self.setups.set_awaited(index, &client, Some(Awaited::Ack));
        self.setups.note_answered(index);
        self.schedule(index);
    }

    /// Lets the client go that was answered first, so that a newcomer finds room. False when there
    /// is none.
    pub(super) fn end_oldest_answer(&mut self) -> bool {
        let Some(index) = self.setups.oldest_answered() else {
            return false;
        };
        let Some(setup) = self.setups.peek(index) else {
            return false;
        };
        let line = setup.line;
        let (taken, closed) = setup.answer.as_ref().map_or((false, false), |answer| {
            (answer.is_taken(), answer.client_closed)
        });
        if !taken {
            self.counts.drops.add(DropReason::AnswerUnacked);
        }
        if !(taken && closed) {
            self.send_reset_to_client(line, index);
        }
        self.free(line);
        true
    }

    /// Sends what the windows take of an answer and has not been sent. A closed window is probed
    /// with one byte (RFC 9293, section 3.8.6.1).
    fn send_answer(&mut self, line: Line, index: SetupId, probe: bool) {
        let record = *self.table.record(line);
        let key = record.client_key(self.table.endpoints()).reversed();
        let Some(setup) = self.setups.entry(index) else {
            return;
        };
        let options = own_options(setup, record.flags);
        let dseq = setup.dseq;
        let Some(answer) = &mut setup.answer else {
            return;
        };
        let segment_bytes = answer.segment_bytes(options.len());
        let window = answer.window.max(u32::from(probe));
        let ack = answer.client_end;
        while let Some((from, to, fin)) = answer.next_segment(segment_bytes, window) {
            let mut flags = TcpFlags::ACK;
            if to == answer.bytes_len() {
                flags |= TcpFlags::PSH;
            }
            if fin {
                flags |= TcpFlags::FIN;
            }
            let (seq, payload) = (dseq + 1 + from, answer.payload(from, to));
            self.output
                .send(key, seq, ack, flags, ANSWER_WINDOW, &options, &payload);
            answer.sent = to + u32::from(fin);
            answer.ever_sent = answer.ever_sent.max(answer.sent);
        }
    }

    /// A segment of an answer was too big for the way to the client: what is not acknowledged is
    /// cut smaller and sent again (RFC 1191, section 6.3).
    pub(super) fn answer_too_big(
        &mut self,
        message: &IcmpPacket,
        quote: &IcmpQuote,
        line: Line,
    ) -> Verdict {
        let v4 = self.table.record(line).client_addr.is_v4();
        let IcmpKind::PacketTooBig { mtu } = message.kind else {
            return self.drop(DropReason::NothingToDo);
        };
        let Some(index) = self.setup_of(line) else {
            return self.drop(DropReason::NothingToDo);
        };
        let Some(setup) = self.setups.entry(index) else {
            return self.drop(DropReason::NothingToDo);
        };
        let first = setup.dseq + 1;
        let Some(answer) = &mut setup.answer else {
            return self.drop(DropReason::NothingToDo);
        };
        let (begin, end) = (first + answer.acked, first + answer.ever_sent);
        if quote.seq.before(begin) || !quote.seq.before(end) {
            return self.drop(DropReason::BadIcmp);
        }
        let mss = mss_of_router(mtu, v4);
        if usize::from(mss) >= SEGMENT_BYTES_MIN && mss < answer.mss {
            answer.mss = mss;
            answer.sent = answer.acked;
            // As many bytes in small segments would be a burst of many packets.
            let first = FIRST_SEGMENTS * u32::from(mss);
            answer.congestion_window = answer.congestion_window.min(first);
            self.send_answer(line, index, false);
        }
        Verdict::Consumed
    }

    /// A client reacts to our answer.
    pub(super) fn client_of_answer(
        &mut self,
        now: Instant,
        header: &TcpPacket,
        line: Line,
        index: SetupId,
    ) -> Verdict {
        let record = *self.table.record(line);
        let key = record.client_key(self.table.endpoints()).reversed();
        let Some(setup) = self.setups.entry(index) else {
            return self.drop(DropReason::NoConnection);
        };
        let options = own_options(setup, record.flags);
        let (dseq, room) = (setup.dseq, setup.client_room());
        let Some(answer) = &mut setup.answer else {
            return self.drop(DropReason::NoConnection);
        };
        let before = (answer.is_taken(), answer.client_closed);
        let acked = header.ack.since(dseq + 1).cast_unsigned();
        let news = answer.note_ack(acked, room);
        // What still comes is taken and forgotten, so that the client is not kept from closing.
        let end = header.seq + header.segment_len();
        let in_order = !header.seq.after(answer.client_end);
        if in_order && end.after(answer.client_end) {
            answer.client_end = end;
        }
        if in_order && header.flags.contains(TcpFlags::FIN) {
            answer.client_closed = true;
        }
        let (client_end, after) = (answer.client_end, (answer.is_taken(), answer.client_closed));
        if after.0 && after != before {
            // Once for each step: a client that goes on sending is not waited for without end.
            setup.backoff = None;
            setup.deadline = Some(now + if after.1 { REST } else { LINGER });
        } else if news && !after.0 {
            setup.backoff = Some(Backoff::start(now, RESEND_WAIT, RESENDS));
        } else if room == 0
            && let Some(backoff) = &mut setup.backoff
        {
            backoff.heard(RESENDS);
        }
        if after.0 {
            self.setups.set_awaited(index, &record.client_addr, None);
        } else {
            self.send_answer(line, index, false);
        }
        if header.segment_len() > 0 {
            let sent = self
                .setups
                .peek(index)
                .map_or(0, |setup| setup.sent_to_client());
            self.output.send(
                key,
                dseq + 1 + sent,
                client_end,
                TcpFlags::ACK,
                ANSWER_WINDOW,
                &options,
                &[],
            );
        }
        self.schedule(index);
        Verdict::Consumed
    }

    /// Time has passed for an answer: send it again, or let it go.
    pub(super) fn answer_expired(&mut self, now: Instant, line: Line, index: SetupId) {
        let Some(setup) = self.setups.entry(index) else {
            return;
        };
        let Some(answer) = &mut setup.answer else {
            return;
        };
        let (taken, closed) = (answer.is_taken(), answer.client_closed);
        let late = setup.deadline.is_some_and(|deadline| deadline <= now);
        let backoff = setup.backoff.as_mut().filter(|backoff| backoff.due <= now);
        if !taken && !late {
            let Some(backoff) = backoff else { return };
            if backoff.expire(now) {
                answer.sent = answer.acked;
                answer.congestion_window = u32::from(answer.mss);
                self.send_answer(line, index, true);
                return;
            }
        } else if !late {
            return;
        }
        if !taken {
            self.counts.drops.add(DropReason::AnswerUnacked);
        }
        if !closed {
            self.send_reset_to_client(line, index);
        }
        self.free(line);
    }

    /// Resets a client that is not read any further, and forgets it.
    pub(super) fn reset_client(
        &mut self,
        line: Line,
        index: SetupId,
        reason: DropReason,
        subject: Asked,
    ) {
        self.note_refusal(line, reason, None, subject);
        self.send_reset_to_client(line, index);
        self.free(line);
    }

    /// Sends a client of a connection in set-up a RST at the number it expects.
    pub(super) fn send_reset_to_client(&mut self, line: Line, index: SetupId) {
        let record = *self.table.record(line);
        let key = record.client_key(self.table.endpoints()).reversed();
        let Some(setup) = self.setups.entry(index) else {
            return;
        };
        let (sent, ack) = match &setup.answer {
            Some(answer) => (answer.ever_sent, answer.client_end),
            None => {
                let end = SeqNumber(record.client_isn) + 1 + setup.stream.in_order_len();
                (0, end)
            }
        };
        let seq = setup.dseq + 1 + sent;
        self.output
            .send(key, seq, ack, TcpFlags::RST | TcpFlags::ACK, 0, &[], &[]);
    }
}

/// The window told to a client that is being answered: what it sends is thrown away.
const ANSWER_WINDOW: u16 = 4_096;

/// A window of `room` bytes as it is written in a segment: scaled by what was offered, unlike that
/// of the SYN-ACK. Room for one unit is always left open, or the client would have to probe.
fn own_window(room: u32, offered_scale: Option<u8>) -> u16 {
    let field = room >> offered_scale.unwrap_or(0).min(14);
    field.clamp(1, u32::from(u16::MAX)) as u16
}

/// Timestamps of packets that we send to a client before a server's can be translated: ours of the
/// SYN-ACK, which stays below all that follow.
fn own_options(setup: &Setup, flags: u8) -> Vec<u8> {
    let mut options = Vec::new();
    let timestamps = (flags & flag::TIMESTAMPS != 0).then_some(Timestamps {
        value: setup.our_ts,
        echo: setup.client_ts,
    });
    SynOptions {
        mss: None,
        window_scale: None,
        sack_permitted: false,
        timestamps,
    }
    .emit(&mut options);
    options
}
