//! Joined connections outside the fast path: FIN, RST and TIME_WAIT (the paper's Fig. 4 and
//! Table 3).

use fairlead_base::{DropReason, Instant, Packet, SeqNumber};
use fairlead_tcp::record::flag;
use fairlead_tcp::{Line, Side, State};
use fairlead_wire::{SynOptions, TcpFlags, TcpPacket, Timestamps, options};

use super::held::Passage;
use super::{Switch, output};
use crate::Verdict;
use crate::closing::{self, Reset, old_number};
use crate::event::End;
use crate::translate::{self, AckEdit, Edits};

/// The window in an acknowledgement that stands in for one of the client's, whose window is not
/// known: small, and corrected by the client's next packet.
const STAND_IN_WINDOW: u16 = 1_024;

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
            return match side {
                Side::Client => self.syn_on_record(now, packet, header, line),
                Side::Server => self.syn_from_server(packet, header, line),
            };
        }
        if side == Side::Server {
            self.note_status(packet, header, line);
        }
        if side == Side::Client && self.may_be_new(header, line) {
            if let Some(verdict) = self.replace_if_new(now, packet, header, line) {
                return verdict;
            }
            self.doubt_renewal(now, header, line);
        }
        let (mut header, mut new_ack) = (*header, None);
        if side == Side::Server && self.is_of_preamble(&header, line) {
            // It comes late: what it says was withheld from the client then, and is now.
            if header.segment_len() == 0 {
                return self.drop(DropReason::NothingToDo);
            }
            new_ack = Some(SeqNumber(self.table.record(line).client_isn) + 1);
        }
        if side == Side::Client {
            match self.look_at_requests(now, packet, &header, line) {
                Ok(kept) => header = kept,
                Err(verdict) => return verdict,
            }
        }
        if self.table.record(line).flags & flag::HELD != 0 {
            match self.pass_held(now, packet, &header, line, side) {
                Passage::Pass {
                    header: passed,
                    ack,
                } => (header, new_ack) = (passed, ack),
                Passage::Stop(reason) => return self.drop(reason),
                Passage::Heard => {
                    // What is at rest ends when its time has come, whoever still speaks.
                    let now_ms = Self::now_ms(now);
                    let record = self.record(line);
                    if !record.state.is_resting() {
                        record.last_active = now_ms;
                    }
                    return Verdict::Consumed;
                }
            }
        }
        if header.ttl <= 1 {
            return self.drop(DropReason::TtlExpired); // it does not pass, so it tells nothing
        }
        self.follow(now, &header, line, side, new_ack.is_some());
        self.follow_request(line);
        let (record, endpoints) = self.table.record_and_endpoints(line);
        let mut edits = Edits::of(record, endpoints, side);
        if let Some(ack) = new_ack {
            edits.ack = AckEdit::Become(ack);
        }
        match translate::apply(packet, &header, &edits) {
            Ok(()) => Verdict::Transmit,
            Err(reason) => self.drop(reason),
        }
    }

    /// What is left of a client's packet, or a verdict where nothing goes further.
    fn look_at_requests(
        &mut self,
        now: Instant,
        packet: &mut Packet,
        header: &TcpPacket,
        line: Line,
    ) -> Result<TcpPacket, Verdict> {
        match self.judge_later_request(now, packet, header, line) {
            Some(verdict) => Err(verdict),
            None => self.keep_to_request(now, packet, header, line),
        }
    }

    /// Follows a joined connection by a packet that passes. `ack_hidden` says that its
    /// acknowledgement speaks of held bytes.
    fn follow(
        &mut self,
        now: Instant,
        header: &TcpPacket,
        line: Line,
        side: Side,
        ack_hidden: bool,
    ) {
        let record = self.record(line);
        let before = record.state;
        let reset = closing::follow_packet(record, side, header, Self::now_ms(now), ack_hidden);
        if reset == Some(Reset::Doubtful) {
            self.ask(line, side.other());
        }
        self.note_move(now, line, before);
    }

    /// A joined connection was in state `before`: has it ended since?
    pub(super) fn note_move(&mut self, now: Instant, line: Line, before: State) {
        if !before.is_live() {
            return;
        }
        let record = self.table.record(line);
        let by_client = record.flags & flag::RESET_BY_CLIENT != 0;
        let end = match record.state {
            State::TimeWait => End::Finished,
            State::Reset if by_client => End::ResetByClient,
            State::Reset => End::ResetByServer,
            _ => return,
        };
        self.note_end(now, line, end);
        self.counts.resting += 1;
    }

    /// True for a server's acknowledgement of bytes that the switch sent before the client's first:
    /// an old one, as nothing is held any more.
    fn is_of_preamble(&self, header: &TcpPacket, line: Line) -> bool {
        let record = self.table.record(line);
        header.flags.0 & (TcpFlags::ACK.0 | TcpFlags::RST.0) == TcpFlags::ACK.0
            && record.flags & flag::HELD == 0
            && translate::is_near_start(record, header)
            && record.bytes_in() < 1 << 31
    }

    /// A SYN from the server's side.
    fn syn_from_server(&mut self, packet: &mut Packet, header: &TcpPacket, line: Line) -> Verdict {
        let ack = header.flags.contains(TcpFlags::ACK);
        if ack && self.table.record(line).state == State::Reset {
            // It has heard neither our acknowledgement nor the RST. An acknowledgement now would
            // open a connection of which no one is left.
            return self.refuse(packet, header, DropReason::NoConnection);
        }
        if ack && header.seq.0 != self.table.record(line).server_isn {
            self.begin_anew(header, line);
        }
        if !ack || header.seq.0 != self.table.record(line).server_isn {
            return self.drop(DropReason::BadSequence);
        }
        // Our acknowledgement of its SYN-ACK was lost. If the client has sent data it will send it
        // again, and that would do; but it may be waiting for the server to speak first.
        let stamps = options::timestamps(header.options(&packet.bytes));
        let mut list = Vec::new();
        SynOptions {
            timestamps: stamps.map(|theirs| Timestamps {
                value: theirs.echo,
                echo: theirs.value,
            }),
            ..SynOptions::default()
        }
        .emit(&mut list);
        let (key, flags) = (header.key.reversed(), TcpFlags::ACK);
        let (seq, known) = (header.ack, header.seq + 1);
        output::reply(packet, key, seq, known, flags, STAND_IN_WINDOW, &list);
        Verdict::Transmit
    }

    /// A server whose queue was full answers a SYN by a cookie that it does not keep (RFC 4987),
    /// and the same SYN, sent again, from its queue: with another number. Then the first one is
    /// void. While nothing of the server's has passed, the client knows neither.
    fn begin_anew(&mut self, header: &TcpPacket, line: Line) {
        let record = self.record(line);
        let of_our_syn = header.ack.0 == record.client_isn.wrapping_add(1);
        let silent = record.server_nxt == record.server_isn.wrapping_add(1);
        if record.state == State::Spliced && record.flags & flag::HELD == 0 && of_our_syn && silent
        {
            let moved = record.server_isn.wrapping_sub(header.seq.0);
            record.seq_delta = record.seq_delta.wrapping_add(moved);
            record.server_isn = header.seq.0;
            record.server_nxt = header.seq.0.wrapping_add(1);
        }
    }

    /// Removes a record in TIME_WAIT or after a RST.
    pub(super) fn remove_resting(&mut self, line: Line) {
        if !self.table.record(line).state.is_resting() {
            debug_assert!(false, "only resting records are removed here");
            return;
        }
        self.counts.resting -= 1;
        self.free(line);
    }

    /// The switch itself has passed a side's FIN on.
    pub(super) fn note_fin(&mut self, now: Instant, line: Line, side: Side, end: SeqNumber) {
        let record = self.record(line);
        let before = record.state;
        closing::note_fin(record, side, end, Self::now_ms(now));
        self.note_move(now, line, before);
    }

    /// A RST of a side passes.
    pub(super) fn note_reset(
        &mut self,
        now: Instant,
        line: Line,
        side: Side,
        seq: SeqNumber,
    ) -> Reset {
        let record = self.record(line);
        let before = record.state;
        let reset = closing::note_reset(record, side, seq, Self::now_ms(now));
        self.note_move(now, line, before);
        reset
    }

    /// Asks one end whether it still has the connection, by a segment with numbers so old that no
    /// TCP takes it for news: who has the connection answers by an acknowledgement, if at all
    /// (RFC 9293, section 3.10.7.4), which harms nobody; who has not, by a RST with the number that
    /// was acknowledged. It carries no timestamps, as none is known here; a TCP that insists on
    /// them, or a firewall before it, may leave it without an answer, and the connection to its
    /// idle time.
    fn ask(&mut self, line: Line, side: Side) {
        let record = *self.table.record(line);
        let endpoints = self.table.endpoints();
        let (seq, ack) = (
            old_number(&record, side.other()) - 1,
            old_number(&record, side),
        );
        let (key, seq, ack) = match side {
            Side::Client => (record.client_key(endpoints), seq + record.seq_delta, ack),
            Side::Server => (record.server_key(endpoints), seq, ack),
        };
        let (key, flags) = (key.reversed(), TcpFlags::ACK);
        self.output
            .send(key, seq, ack, flags, STAND_IN_WINDOW, &[], &[]);
    }
}
