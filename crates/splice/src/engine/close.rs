//! Joined connections outside the fast path: FIN, RST, TIME_WAIT, and a SYN on a used tuple
//! (the paper's Fig. 4 and Table 3).

use fairlead_base::{DropReason, Instant, Packet, SeqNumber};
use fairlead_tcp::record::flag;
use fairlead_tcp::{Line, Side, State};
use fairlead_wire::{TcpFlags, TcpPacket};

use super::Switch;
use super::held::Passage;
use crate::Verdict;
use crate::config::Protocol;
use crate::event::End;
use crate::translate::{self, Edits};

/// A RST this far from the number expected is passed on but changes nothing here: its receiver
/// will judge it (RFC 5961, section 3.2).
const RESET_WINDOW: i32 = 1 << 24;

/// Where a joined connection is by which FINs were passed on and acknowledged.
pub(super) fn state_of(flags: u8) -> State {
    let fins = flags & (flag::CLIENT_FIN | flag::SERVER_FIN);
    let acked = flags & (flag::CLIENT_FIN_ACKED | flag::SERVER_FIN_ACKED);
    match (fins.count_ones(), acked.count_ones()) {
        (0, _) => State::Spliced,
        (1, 0) => State::FinRelayed1,
        (1, _) => State::AckRelayed1,
        (_, 2) => State::TimeWait,
        _ => State::FinRelayed2,
    }
}

impl Switch {
    /// A packet of a joined connection that the fast path does not handle alone.
    pub(super) fn handle_joined(
        &mut self,
        now: Instant,
        packet: &mut Packet,
        header: &TcpPacket,
        line: Line,
        side: Side,
    ) -> Verdict {
        if header.flags.contains(TcpFlags::SYN) {
            return self.syn_on_joined(now, packet, header, line, side);
        }
        if side == Side::Client
            && self.table.record(line).flags & flag::SYN_SEEN != 0
            && let Some(verdict) = self.replace_if_new(now, packet, header, line, side)
        {
            return verdict;
        }
        let (mut header, mut ack_edit) = (*header, None);
        if self.table.record(line).flags & flag::HELD != 0 {
            match self.pass_held(now, packet, &header, line, side) {
                Passage::Pass(trimmed, edit) => (header, ack_edit) = (trimmed, edit),
                Passage::Stop(reason) => return self.drop(reason),
            }
        }
        let header = &header;
        let end = header.seq + header.payload_len() as u32;
        let record = self.record(line);
        if header.payload_len() > 0 {
            match side {
                Side::Client => record.advance_client(end),
                Side::Server => record.advance_server(end),
            }
        }
        if record.state != State::TimeWait {
            record.last_active = Self::now_ms(now);
        }
        if header.flags.contains(TcpFlags::RST) {
            self.note_reset(now, line, side, header.seq);
        } else {
            self.revive_if_challenged(line, side, header);
            if header.flags.contains(TcpFlags::FIN) {
                self.note_fin(now, line, side, end + 1);
            }
            if header.flags.contains(TcpFlags::ACK) && ack_edit.is_none() {
                self.note_ack(now, line, side, header.ack);
            }
        }
        let (record, endpoints) = self.table.record_and_endpoints(line);
        let mut edits = Edits::of(record, endpoints, side);
        if let Some(edit) = ack_edit {
            edits.ack = edit;
        }
        match translate::apply(packet, header, &edits) {
            Ok(()) => Verdict::Transmit,
            Err(reason) => self.drop(reason),
        }
    }

    /// A SYN where there is a connection already.
    fn syn_on_joined(
        &mut self,
        now: Instant,
        packet: &mut Packet,
        header: &TcpPacket,
        line: Line,
        side: Side,
    ) -> Verdict {
        let record = *self.table.record(line);
        let ack = header.flags.contains(TcpFlags::ACK);
        match side {
            // Whoever it is must first prove by the cookie that our answer reached it. The old
            // connection stays untouched until then (RFC 5961, section 4; RFC 6191 for TIME_WAIT).
            Side::Client if !ack => {
                self.record(line).flags |= flag::SYN_SEEN;
                self.answer_syn(now, packet, header, record.listen, None)
            }
            // Our acknowledgement of its SYN-ACK was lost.
            Side::Server if ack && header.seq.0 == record.server_isn => {
                let key = record.server_key(self.table.endpoints()).reversed();
                let seq = SeqNumber(record.client_nxt);
                let known = SeqNumber(record.server_isn) + 1;
                self.output
                    .send(key, seq, known, TcpFlags::ACK, u16::MAX >> 2, &[], &[]);
                Verdict::Consumed
            }
            _ => self.drop(DropReason::BadSequence),
        }
    }

    /// A packet from a tuple on which a SYN was seen: if it carries the cookie of a new handshake,
    /// the old connection gives way. `None` when it belongs to the old one.
    pub(super) fn replace_if_new(
        &mut self,
        now: Instant,
        packet: &mut Packet,
        header: &TcpPacket,
        line: Line,
        side: Side,
    ) -> Option<Verdict> {
        debug_assert_eq!(side, Side::Client);
        let record = *self.table.record(line);
        let client_isn = header.seq - 1;
        let is_ack = header.flags.contains(TcpFlags::ACK);
        if !is_ack || header.flags.contains(TcpFlags::RST) || client_isn.0 == record.client_isn {
            return None;
        }
        self.cookies
            .check(&header.key, client_isn, now, header.ack - 1)?;
        let protocol = self.service_of(record.listen).protocol;
        if header.payload_len() == 0 && protocol != Protocol::Tcp {
            return Some(Verdict::Consumed);
        }
        self.end_for_new(now, line);
        Some(self.handle_newcomer(now, packet, header, record.listen))
    }

    /// Ends whatever is on this line, because its client has begun anew.
    fn end_for_new(&mut self, now: Instant, line: Line) {
        let record = *self.table.record(line);
        match record.state {
            State::TimeWait => self.counts.resting -= 1,
            State::SynSent => {
                if let Some(index) = self.table.setup(line) {
                    self.reset_server_in_setup(line, index);
                }
            }
            state if state.is_live() || state == State::Reset => {
                if state != State::Reset {
                    let key = record.server_key(self.table.endpoints()).reversed();
                    let seq = SeqNumber(record.client_nxt);
                    let ack = SeqNumber(record.server_nxt);
                    let flags = TcpFlags::RST | TcpFlags::ACK;
                    self.output.send(key, seq, ack, flags, 0, &[], &[]);
                }
                self.note_end(now, line, End::Replaced);
            }
            _ => {}
        }
        if let Some(index) = self.table.setup(line) {
            self.forget_setup(line, index);
        }
        self.table.remove(line);
    }

    /// Removes a record in TIME_WAIT or after a RST.
    pub(super) fn remove_resting(&mut self, line: Line) {
        let record = *self.table.record(line);
        match record.state {
            State::TimeWait => self.counts.resting -= 1,
            State::Reset => {
                let by_client = record.flags & flag::RESET_BY_CLIENT != 0;
                let end = if by_client {
                    End::ResetByClient
                } else {
                    End::ResetByServer
                };
                let last = Instant::from_millis(u64::from(record.last_active));
                self.note_end(last, line, end);
            }
            _ => debug_assert!(false, "only resting records are removed here"),
        }
        self.table.remove(line);
    }

    /// A side's FIN passes.
    pub(super) fn note_fin(&mut self, now: Instant, line: Line, side: Side, end: SeqNumber) {
        let record = self.record(line);
        let (bit, nxt) = match side {
            Side::Client => (flag::CLIENT_FIN, &mut record.client_nxt),
            Side::Server => (flag::SERVER_FIN, &mut record.server_nxt),
        };
        let ahead = end.since(SeqNumber(*nxt));
        let repeated = record.flags & bit != 0;
        if repeated || !(-RESET_WINDOW..=RESET_WINDOW).contains(&ahead) {
            return;
        }
        match side {
            Side::Client => record.advance_client(end),
            Side::Server => record.advance_server(end),
        }
        // Where the stream ends is now known, whatever was seen before.
        match side {
            Side::Client => record.client_nxt = end.0,
            Side::Server => record.server_nxt = end.0,
        }
        record.flags |= bit;
        self.follow_flags(now, line);
    }

    /// An acknowledgement passes: does it cover the other side's FIN?
    fn note_ack(&mut self, now: Instant, line: Line, side: Side, ack: SeqNumber) {
        let record = self.record(line);
        let (fin, acked, covers) = match side {
            Side::Client => (
                flag::SERVER_FIN,
                flag::SERVER_FIN_ACKED,
                ack - record.seq_delta == SeqNumber(record.server_nxt),
            ),
            Side::Server => (
                flag::CLIENT_FIN,
                flag::CLIENT_FIN_ACKED,
                ack == SeqNumber(record.client_nxt),
            ),
        };
        if covers && record.flags & fin != 0 && record.flags & acked == 0 {
            record.flags |= acked;
            self.follow_flags(now, line);
        }
    }

    /// Moves a joined connection to the state that its flags speak of.
    fn follow_flags(&mut self, now: Instant, line: Line) {
        let record = self.record(line);
        if !record.state.is_live() {
            return;
        }
        record.state = state_of(record.flags);
        if record.state == State::TimeWait {
            record.last_active = Self::now_ms(now);
            self.note_end(now, line, End::Finished);
            self.counts.resting += 1;
        }
    }

    /// A RST passes.
    fn note_reset(&mut self, now: Instant, line: Line, side: Side, seq: SeqNumber) {
        let record = *self.table.record(line);
        if !record.state.is_live() {
            return;
        }
        let nxt = match side {
            Side::Client => record.client_nxt,
            Side::Server => record.server_nxt,
        };
        if !(-RESET_WINDOW..=RESET_WINDOW).contains(&seq.since(SeqNumber(nxt))) {
            return;
        }
        if let Some(index) = self.table.setup(line) {
            self.forget_setup(line, index);
        }
        let now_ms = Self::now_ms(now);
        let record = self.record(line);
        record.flags &= !(flag::HELD | flag::RESET_BY_CLIENT);
        if side == Side::Client {
            record.flags |= flag::RESET_BY_CLIENT;
        }
        record.state = State::Reset;
        record.last_active = now_ms;
    }

    /// After a RST, an acknowledgement without data from the side that should be dead says that it
    /// did not accept the RST (a challenge, RFC 5961): the connection lives on.
    fn revive_if_challenged(&mut self, line: Line, side: Side, header: &TcpPacket) {
        let record = self.record(line);
        if record.state != State::Reset || header.payload_len() > 0 {
            return;
        }
        let resetter = if record.flags & flag::RESET_BY_CLIENT != 0 {
            Side::Client
        } else {
            Side::Server
        };
        if side != resetter && header.flags.contains(TcpFlags::ACK) {
            record.state = state_of(record.flags);
        }
    }
}
