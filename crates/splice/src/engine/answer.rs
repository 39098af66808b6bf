//! The switch's own answers to clients: an HTTP error or a TLS alert, then the end.

use core::time::Duration;

use fairlead_base::{DropReason, Instant, SeqNumber};
use fairlead_tcp::record::flag;
use fairlead_tcp::{Backoff, Line, State};
use fairlead_wire::{Asked, SynOptions, TcpFlags, TcpPacket, Timestamps};

use super::Switch;
use super::setup::{Awaited, Setup, SetupId};
use crate::Verdict;

const RESEND_WAIT: Duration = Duration::from_millis(300);
const RESENDS: u8 = 5;

/// How long a client that has our FIN is waited for.
const LINGER: Duration = Duration::from_secs(3);

/// How long an answered connection is remembered when both sides have closed, so that a lost last
/// acknowledgement can be repeated.
const REST: Duration = Duration::from_secs(1);

/// An answer on its way. It fits one segment of any peer.
#[derive(Debug)]
pub(super) struct Answer {
    bytes: Vec<u8>,
    /// The client has acknowledged bytes and FIN.
    taken: bool,
    /// Behind the last byte of the client that was acknowledged, its FIN included.
    client_end: SeqNumber,
    client_closed: bool,
}

impl Answer {
    /// How much of our sequence space it takes: its bytes and the FIN.
    fn len(&self) -> u32 {
        self.bytes.len() as u32 + 1
    }
}

impl Setup {
    /// Where the client's stream ends for a client that is being answered.
    pub(super) fn answered_until(&self) -> Option<SeqNumber> {
        self.answer.as_ref().map(|answer| answer.client_end)
    }

    /// How much of our sequence space the client was sent behind our SYN.
    pub(super) fn sent_to_client(&self) -> u32 {
        self.answer.as_ref().map_or(0, Answer::len)
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
            Some(answer) => (answer.len(), answer.client_end, ANSWER_WINDOW),
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

    /// Sends an answer and closes. A client of which too much is awaited already gets it once, a
    /// RST behind it, and is forgotten.
    pub(super) fn answer(&mut self, now: Instant, line: Line, index: SetupId, bytes: Vec<u8>) {
        let client = self.table.record(line).client_addr;
        self.setups.set_awaited(index, &client, None);
        let bounded = self.setups.awaits_enough_of(&client, &self.config.limits);
        let first = SeqNumber(self.table.record(line).client_isn) + 1;
        self.record(line).state = State::Answering;
        let Some(setup) = self.setups.entry(index) else {
            return;
        };
        let in_order = setup.stream.in_order_len();
        let client_closed = setup.fin_at == Some(in_order);
        let client_end = first + in_order + u32::from(client_closed);
        setup.answer = Some(Answer {
            bytes,
            taken: false,
            client_end,
            client_closed,
        });
        setup.stream = fairlead_tcp::Reassembly::new(0);
        setup.decision = None;
        setup.ack_due = None;
        setup.deadline = None;
        setup.backoff = Some(Backoff::start(now, RESEND_WAIT, RESENDS));
        self.setups.recount(index);
        self.send_answer(line, index);
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
            (answer.taken, answer.client_closed)
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

    fn send_answer(&mut self, line: Line, index: SetupId) {
        let record = *self.table.record(line);
        let key = record.client_key(self.table.endpoints()).reversed();
        let Some(setup) = self.setups.entry(index) else {
            return;
        };
        let options = own_options(setup, record.flags);
        let Some(answer) = &setup.answer else { return };
        let flags = TcpFlags::ACK | TcpFlags::PSH | TcpFlags::FIN;
        let (seq, ack) = (setup.dseq + 1, answer.client_end);
        self.output
            .send(key, seq, ack, flags, ANSWER_WINDOW, &options, &answer.bytes);
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
        let dseq = setup.dseq;
        let Some(answer) = &mut setup.answer else {
            return self.drop(DropReason::NoConnection);
        };
        let our_end = dseq + 1 + answer.len();
        let before = (answer.taken, answer.client_closed);
        if header.ack == our_end {
            answer.taken = true;
        }
        // What still comes is taken and forgotten, so that the client is not kept from closing.
        let end = header.seq + header.segment_len();
        let in_order = !header.seq.after(answer.client_end);
        if in_order && end.after(answer.client_end) {
            answer.client_end = end;
        }
        if in_order && header.flags.contains(TcpFlags::FIN) {
            answer.client_closed = true;
        }
        let (client_end, after) = (answer.client_end, (answer.taken, answer.client_closed));
        if after.0 && after != before {
            // Once for each step: a client that goes on sending is not waited for without end.
            setup.backoff = None;
            setup.deadline = Some(now + if after.1 { REST } else { LINGER });
        }
        if after.0 {
            self.setups.set_awaited(index, &record.client_addr, None);
        }
        if header.segment_len() > 0 {
            self.output.send(
                key,
                our_end,
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
        let Some(answer) = &setup.answer else { return };
        let (taken, closed) = (answer.taken, answer.client_closed);
        let backoff = setup.backoff.as_mut().filter(|backoff| backoff.due <= now);
        if !taken && let Some(backoff) = backoff {
            if backoff.expire(now) {
                self.send_answer(line, index);
                return;
            }
            self.counts.drops.add(DropReason::AnswerUnacked);
        } else if setup.deadline.is_none_or(|deadline| deadline > now) {
            return;
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
            Some(answer) => (answer.len(), answer.client_end),
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
