//! Joined connections outside the fast path: FIN, RST and TIME_WAIT (the paper's Fig. 4 and Table 3).

use fairlead_base::{DropReason, Instant, Packet, SeqNumber};
use fairlead_tcp::record::flag;
use fairlead_tcp::{Line, Record, Side, State};
use fairlead_wire::{SynOptions, TcpFlags, TcpPacket, Timestamps, options};

use super::held::Passage;
use super::{Switch, output};
use crate::Verdict;
use crate::event::End;
use crate::translate::{self, AckEdit, Edits, WINDOW_MAX};

/// The window in an acknowledgement that stands in for one of the client's, whose window is not
/// known: small, and corrected by the client's next packet.
const STAND_IN_WINDOW: u16 = 1_024;

/// A number of a side's stream so old that its acknowledgement is no news and a segment there lies
/// before every window: the first byte's, or one behind which the largest window (RFC 7323,
/// section 2.3) has been filled since.
fn old_number(record: &Record, side: Side) -> SeqNumber {
    let (isn, bytes) = match side {
        Side::Client => (record.client_isn, record.bytes_in()),
        Side::Server => (record.server_isn, record.bytes_out()),
    };
    if bytes < u64::from(WINDOW_MAX) {
        SeqNumber(isn) + 1
    } else {
        record.nxt(side) - WINDOW_MAX
    }
}

/// What a RST that passes means to the switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reset {
    /// Its number is the one expected: the connection is over.
    Believed,
    /// Its number is near: its receiver may accept it, or know better.
    Doubtful,
    /// Its number is far from all that was seen.
    Unlikely,
}

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
            return match side {
                Side::Client => self.syn_on_record(now, packet, header, line),
                Side::Server => self.syn_from_server(packet, header, line),
            };
        }
        if side == Side::Client
            && self.table.record(line).flags & flag::SYN_SEEN != 0
            && let Some(verdict) = self.replace_if_new(now, packet, header, line)
        {
            return verdict;
        }
        let (mut header, mut new_ack) = (*header, None);
        if side == Side::Server && self.is_of_preamble(&header, line) {
            // It comes late: what it says was withheld from the client then, and is now.
            if header.segment_len() == 0 {
                return self.drop(DropReason::NothingToDo);
            }
            new_ack = Some(SeqNumber(self.table.record(line).client_isn) + 1);
        }
        if self.table.record(line).flags & flag::HELD != 0 {
            match self.pass_held(now, packet, &header, line, side) {
                Passage::Pass {
                    header: passed,
                    ack,
                } => (header, new_ack) = (passed, ack),
                Passage::Stop(reason) => return self.drop(reason),
                Passage::Heard => {
                    self.record(line).last_active = Self::now_ms(now);
                    return Verdict::Consumed;
                }
            }
        }
        self.follow(now, &header, line, side, new_ack.is_some());
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
        let fin = match side {
            Side::Client => flag::CLIENT_FIN,
            Side::Server => flag::SERVER_FIN,
        };
        if header.payload_len() > 0
            && record.flags & fin == 0
            && translate::may_advance(record, side, header)
        {
            record.advance(side, header.seq + header.payload_len() as u32);
        }
        if !matches!(record.state, State::TimeWait | State::Reset) {
            record.last_active = Self::now_ms(now);
        }
        if header.flags.contains(TcpFlags::RST) {
            if self.note_reset(now, line, side, header.seq) == Reset::Doubtful {
                self.ask(line, side.other());
            }
            return;
        }
        let near = translate::acks_nearby(self.table.record(line), side, header);
        if header.flags.contains(TcpFlags::FIN) && near {
            let end = header.seq + header.payload_len() as u32 + 1;
            self.note_fin(now, line, side, end);
        }
        if header.flags.contains(TcpFlags::ACK) && !ack_hidden {
            self.note_ack(now, line, side, header.ack);
        }
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
    pub(super) fn remove_resting(&mut self, now: Instant, line: Line) {
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
                self.note_end(now, line, end);
            }
            _ => {
                debug_assert!(false, "only resting records are removed here");
                return;
            }
        }
        self.free(line);
    }

    /// A side's FIN passes. It is where the stream ends, whatever was seen before; of two that
    /// differ, the newer is believed until one is acknowledged.
    pub(super) fn note_fin(&mut self, now: Instant, line: Line, side: Side, end: SeqNumber) {
        let record = self.record(line);
        let (fin, acked) = match side {
            Side::Client => (flag::CLIENT_FIN, flag::CLIENT_FIN_ACKED),
            Side::Server => (flag::SERVER_FIN, flag::SERVER_FIN_ACKED),
        };
        let resting = matches!(record.state, State::TimeWait | State::Reset);
        let settled = record.flags & acked != 0 || resting;
        if settled || !translate::is_near(end, record.nxt(side)) || !record.settle(side, end) {
            return;
        }
        record.flags |= fin;
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

    /// A RST passes. Its receiver accepts it if its number is exactly the next one that it expects
    /// (RFC 5961, section 3.2). As far as the switch can tell that is the number behind all that it
    /// has seen; or, while a FIN is not acknowledged, that of the FIN, where a TCP that has closed
    /// resets what was sent before the FIN arrived; or the answer to [`Self::ask`].
    pub(super) fn note_reset(
        &mut self,
        now: Instant,
        line: Line,
        side: Side,
        seq: SeqNumber,
    ) -> Reset {
        let record = self.record(line);
        let (fin, acked) = match side {
            Side::Client => (flag::CLIENT_FIN, flag::CLIENT_FIN_ACKED),
            Side::Server => (flag::SERVER_FIN, flag::SERVER_FIN_ACKED),
        };
        let nxt = record.nxt(side);
        let at_fin = record.flags & (fin | acked) == fin && seq == nxt - 1;
        let answer = seq != nxt && seq == old_number(record, side);
        if seq != nxt && !at_fin && !answer {
            return if record.state.is_live() && translate::is_near(seq, nxt) {
                Reset::Doubtful
            } else {
                Reset::Unlikely
            };
        }
        if record.state.is_live() {
            let resetter = if answer { side.other() } else { side };
            record.flags &= !flag::RESET_BY_CLIENT;
            if resetter == Side::Client {
                record.flags |= flag::RESET_BY_CLIENT;
            }
            record.state = State::Reset;
        }
        if record.state == State::Reset {
            record.last_active = Self::now_ms(now);
        }
        Reset::Believed
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
