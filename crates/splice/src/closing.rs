//! FINs and RSTs on the record of a joined connection (the paper's Fig. 4 and Table 3), by whoever
//! handles the packet: the engine, or a fast path by itself.
//!
//! The kernel program does the same as [`may_follow`], [`moves_state`] and [`follow`] say
//! (`bpf/lib/closing.h`). There both directions run on two processors at once: each writes its own
//! side's numbers, then state and flags as one word, by compare and swap.

use fairlead_base::SeqNumber;
use fairlead_tcp::record::flag;
use fairlead_tcp::{Record, Side, State};
use fairlead_wire::{TcpFlags, TcpPacket};

use crate::translate::{self, WINDOW_MAX};

/// Flags under which a fast path may follow a connection to its end.
pub const FLAGS: u8 = flag::FAST
    | flag::CLIENT_FIN
    | flag::SERVER_FIN
    | flag::CLIENT_FIN_ACKED
    | flag::SERVER_FIN_ACKED;

/// What a RST that passes means to the switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reset {
    /// Its number is the one expected: the connection is over.
    Believed,
    /// Its number is near: its receiver may accept it, or know better.
    Doubtful,
    /// Its number is far from all that was seen.
    Unlikely,
}

/// The bits of a side's FIN: passed on, acknowledged.
fn bits(side: Side) -> (u8, u8) {
    match side {
        Side::Client => (flag::CLIENT_FIN, flag::CLIENT_FIN_ACKED),
        Side::Server => (flag::SERVER_FIN, flag::SERVER_FIN_ACKED),
    }
}

/// Where a joined connection is by which FINs were passed on and acknowledged.
pub fn state_of(flags: u8) -> State {
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

/// A number of a side's stream so old that its acknowledgement is no news and a segment there lies
/// before every window: the first byte's, or one behind which the largest window (RFC 7323,
/// section 2.3) has been filled since.
pub(crate) fn old_number(record: &Record, side: Side) -> SeqNumber {
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

/// True when a packet that is not plainly translated ([`translate::is_fast`]) needs no more than
/// [`follow`] besides translation: one of a connection that is closing, or has closed, and whose
/// numbers leave no doubt whose it is. The rest is the engine's: SYNs, RSTs with any number but the
/// next, and on a tuple at rest all that may belong to the client's next connection.
pub fn may_follow(record: &Record, side: Side, header: &TcpPacket) -> bool {
    if record.flags & !FLAGS != 0 || header.flags.contains(TcpFlags::SYN) {
        return false;
    }
    if header.flags.contains(TcpFlags::RST) {
        let bare = header.payload_len() == 0;
        return bare && record.state.is_live() && header.seq == record.nxt(side);
    }
    if !header.flags.contains(TcpFlags::ACK)
        || !translate::is_in_step(record, side, header)
        || translate::is_near_start(record, header)
        || !translate::is_of_request(record, side, header)
    {
        return false;
    }
    match record.state {
        State::TimeWait => side == Side::Server || is_of_the_end(record, header),
        state => state.is_live(),
    }
}

/// True for what a client whose connection is at rest may still send: it has everything, and says
/// so, or repeats its end.
fn is_of_the_end(record: &Record, header: &TcpPacket) -> bool {
    let (ack, sent) = translate::acknowledged(record, Side::Client, header);
    let end = header.seq + header.segment_len();
    ack == sent && end.0 == record.client_nxt
}

/// True when a packet for which [`may_follow`] holds may move the connection's state: then its
/// checksum must be good, for a damaged one that is believed would end the connection for the
/// switch alone.
pub fn moves_state(record: &Record, side: Side, header: &TcpPacket) -> bool {
    header.flags.0 & (TcpFlags::FIN.0 | TcpFlags::RST.0) != 0
        || acks_fin(record, side, header.ack).is_some()
}

/// Follows a joined connection by a packet that passes. `ack_hidden` says that its acknowledgement
/// speaks of bytes that the switch itself holds. What a RST means is told.
pub(crate) fn follow_packet(
    record: &mut Record,
    side: Side,
    header: &TcpPacket,
    now_ms: u32,
    ack_hidden: bool,
) -> Option<Reset> {
    let (fin, _) = bits(side);
    let is_next = is_next(record, side, header);
    if header.payload_len() > 0
        && record.flags & fin == 0
        && translate::may_advance(record, side, header)
    {
        record.advance(side, header.seq + header.payload_len() as u32);
    }
    if !record.state.is_resting() {
        record.last_active = now_ms;
    }
    if header.flags.contains(TcpFlags::RST) {
        return Some(note_reset(record, side, header.seq, now_ms));
    }
    let is_its = is_next || translate::acks_nearby(record, side, header);
    if header.flags.contains(TcpFlags::FIN) && is_its {
        let end = header.seq + header.payload_len() as u32 + 1;
        note_fin(record, side, end, now_ms);
    }
    if header.flags.contains(TcpFlags::ACK) && !ack_hidden {
        note_ack(record, side, header.ack, now_ms);
    }
    None
}

/// True for a packet that begins, or ends, exactly where the last one seen of its sender ended. A
/// stranger hits that number so rarely that the acknowledgement need not be near: with a large
/// window it is farther behind.
fn is_next(record: &Record, side: Side, header: &TcpPacket) -> bool {
    let (nxt, end) = (record.nxt(side), header.seq + header.payload_len() as u32);
    translate::is_in_step(record, side, header) && (header.seq == nxt || end == nxt)
}

/// Follows a connection by a packet for which [`may_follow`] holds, and [`moves_state`] only if its
/// checksum is good.
pub fn follow(record: &mut Record, side: Side, header: &TcpPacket, now_ms: u32) {
    follow_packet(record, side, header, now_ms, false);
}

/// A side's FIN passes. It is where the stream ends, whatever was seen before; of two that
/// differ, the newer is believed until one is acknowledged.
pub(crate) fn note_fin(record: &mut Record, side: Side, end: SeqNumber, now_ms: u32) {
    let (fin, acked) = bits(side);
    let resting = record.state.is_resting();
    let settled = record.flags & acked != 0 || resting;
    if settled || !translate::is_near(end, record.nxt(side)) || !record.settle(side, end) {
        return;
    }
    record.flags |= fin;
    follow_flags(record, now_ms);
}

/// The bit to set when an acknowledgement covers the other side's FIN for the first time.
fn acks_fin(record: &Record, side: Side, ack: SeqNumber) -> Option<u8> {
    let (fin, acked) = bits(side.other());
    let covers = match side {
        Side::Client => ack - record.seq_delta == SeqNumber(record.server_nxt),
        Side::Server => ack == SeqNumber(record.client_nxt),
    };
    (covers && record.flags & (fin | acked) == fin).then_some(acked)
}

fn note_ack(record: &mut Record, side: Side, ack: SeqNumber, now_ms: u32) {
    if let Some(acked) = acks_fin(record, side, ack) {
        record.flags |= acked;
        follow_flags(record, now_ms);
    }
}

/// Moves a joined connection to the state that its flags speak of.
fn follow_flags(record: &mut Record, now_ms: u32) {
    if record.state.is_live() {
        record.state = state_of(record.flags);
        if record.state == State::TimeWait {
            record.last_active = now_ms;
        }
    }
}

/// A RST passes. Its receiver accepts it if its number is exactly the next one that it expects
/// (RFC 5961, section 3.2). As far as the switch can tell that is the number behind all that it
/// has seen; or, while a FIN is not acknowledged, that of the FIN, where a TCP that has closed
/// resets what was sent before the FIN arrived; or the answer to what the engine asked.
pub(crate) fn note_reset(record: &mut Record, side: Side, seq: SeqNumber, now_ms: u32) -> Reset {
    let (fin, acked) = bits(side);
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
        record.last_active = now_ms;
    }
    Reset::Believed
}
