//! ICMP errors about packets that the switch translated: the quotation is translated back and the
//! error goes to the end that sent the packet (RFC 792, RFC 4443; path MTU: RFC 1191, RFC 8201).

use fairlead_base::{Address, Checksum, DropReason, Instant, Packet, SeqNumber};
use fairlead_tcp::record::flag;
use fairlead_tcp::{Found, Line, Side, State};
use fairlead_wire::checksum::{self, Delta};
use fairlead_wire::packet::offset;
use fairlead_wire::{IcmpKind, IcmpPacket, IcmpQuote, build};

use super::Switch;
use super::connect::Failure;
use crate::Verdict;

impl Switch {
    /// Handles an ICMP message.
    pub fn handle_icmp(
        &mut self,
        now: Instant,
        packet: &mut Packet,
        message: &IcmpPacket,
    ) -> Verdict {
        self.counts.engine_packets += 1;
        let verdict = self.handle_message(now, packet, message);
        self.debug_check(None);
        verdict
    }

    fn handle_message(
        &mut self,
        now: Instant,
        packet: &mut Packet,
        message: &IcmpPacket,
    ) -> Verdict {
        if message.kind == IcmpKind::EchoRequest {
            return self.answer_echo(packet, message);
        }
        let is_error = matches!(
            message.kind,
            IcmpKind::PacketTooBig { .. }
                | IcmpKind::Unreachable { .. }
                | IcmpKind::TimeExceeded
                | IcmpKind::ParameterProblem
        );
        let Some(quote) = message.quote.as_ref().filter(|_| is_error) else {
            return self.drop(DropReason::BadIcmp);
        };
        // The quoted packet is one that we sent; its answer would come on the reversed key.
        let Some(Found { line, side }) = self.table.find(&quote.key.reversed()) else {
            return self.probe_unreachable(now, message, quote);
        };
        if message.dst != quote.key.src.addr {
            return self.drop(DropReason::BadIcmp);
        }
        self.disarm(now, line);
        self.catch_up(now, line);
        match (self.table.record(line).state, side) {
            (State::SynSent, Side::Server) => self.server_unreachable(now, message, quote, line),
            (State::Answering, Side::Client) => self.answer_too_big(message, quote, line),
            (State::Established | State::SynSent | State::Answering | State::Free, _) => {
                self.drop(DropReason::NothingToDo)
            }
            (_, Side::Server) if self.is_about_held(now, message, quote, line) => Verdict::Consumed,
            _ => self.pass_error(packet, message, quote, line, side),
        }
    }

    /// True for an error about a packet that the switch sent under its client's own address: it is
    /// for the client, which would not know what to make of it, and so passes the switch by.
    pub fn is_error_past_us(&self, message: &IcmpPacket) -> bool {
        let Some(quote) = &message.quote else {
            return false;
        };
        let Some(Found { line, side }) = self.table.find(&quote.key.reversed()) else {
            return false;
        };
        let client = self.table.record(line).client();
        side == Side::Server && quote.key.src == client && message.dst == client.addr
    }

    /// True for a too-big message about bytes that the switch sent on its own account.
    fn is_about_held(
        &mut self,
        now: Instant,
        message: &IcmpPacket,
        quote: &IcmpQuote,
        line: Line,
    ) -> bool {
        let held = self.table.record(line).flags & flag::HELD != 0;
        match message.kind {
            IcmpKind::PacketTooBig { mtu } if held => self.held_too_big(now, line, quote.seq, mtu),
            _ => false,
        }
    }

    /// A listening address answers pings, so that operators can tell a dead switch from a dead
    /// server.
    fn answer_echo(&mut self, packet: &mut Packet, message: &IcmpPacket) -> Verdict {
        if !self.listen_addresses.contains(&message.dst) {
            return self.drop(DropReason::NotOurs);
        }
        self.counts.pings += 1;
        let mut answer = Vec::with_capacity(packet.bytes.len());
        build::emit_icmp_echo_reply(&packet.bytes, message, &mut answer);
        packet.clear();
        packet.bytes.extend_from_slice(&answer);
        Verdict::Transmit
    }

    /// A server's address or port cannot be reached: the next server is tried. The message must
    /// quote our SYN, number and all (RFC 5927, section 4.1).
    fn server_unreachable(
        &mut self,
        now: Instant,
        message: &IcmpPacket,
        quote: &IcmpQuote,
        line: Line,
    ) -> Verdict {
        let (IcmpKind::Unreachable { .. }, Some(index)) = (message.kind, self.setup_of(line))
        else {
            return self.drop(DropReason::NothingToDo);
        };
        if quote.seq != self.our_isn(line, index) {
            return self.drop(DropReason::BadIcmp);
        }
        self.server_failed(now, line, index, Failure::Refused);
        Verdict::Consumed
    }

    /// Turns an error about a packet that we sent on `side` into one about the packet that came
    /// to us, and sends it there.
    fn pass_error(
        &mut self,
        packet: &mut Packet,
        message: &IcmpPacket,
        quote: &IcmpQuote,
        line: Line,
        side: Side,
    ) -> Verdict {
        let endpoints = self.table.endpoints();
        let record = self.table.record(line);
        // Of a pair, what the server's leg shows has numbers of its own.
        let second = self.second(line).map_or(0, |second| second.seq);
        // Sent to the server: it came from the client. Sent to the client: it came from the server.
        let (original, seq_add, ack_add) = match side {
            Side::Server => (
                record.client_key(endpoints),
                second.wrapping_neg(),
                record.seq_delta,
            ),
            Side::Client => (
                record.server_key(endpoints),
                record.seq_delta.wrapping_neg(),
                second,
            ),
        };
        // Each end knows the other under the address that the switch shows it. A router's own
        // address would be none of the end's business, and where it is one of this very machine
        // the kernel would drop the packet as martian.
        let from = original.dst.addr;
        let bytes = packet.bytes.as_mut_slice();
        let seq = quote.seq + seq_add;
        if rewrite_quote(bytes, message, quote, &original, seq, ack_add).is_none() {
            return self.drop(DropReason::BadIcmp);
        }
        if let Err(reason) = rewrite_outer(bytes, message, &from, &original.src.addr) {
            return self.drop(reason);
        }
        packet.checksum = Checksum::Complete;
        Verdict::Transmit
    }
}

fn put16(bytes: &mut [u8], at: usize, value: u16) -> Option<()> {
    bytes
        .get_mut(at..at + 2)?
        .copy_from_slice(&value.to_be_bytes());
    Some(())
}

fn read16(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes([*bytes.get(at)?, *bytes.get(at + 1)?]))
}

fn read32(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_be_bytes(*bytes.get(at..)?.first_chunk::<4>()?))
}

/// Puts the original's addresses, ports and numbers into the quotation. What was cut off stays
/// cut off.
fn rewrite_quote(
    bytes: &mut [u8],
    message: &IcmpPacket,
    quote: &IcmpQuote,
    original: &fairlead_base::FlowKey,
    seq: SeqNumber,
    ack_add: u32,
) -> Option<()> {
    let (ip, tcp) = (usize::from(quote.ip_at), usize::from(quote.tcp_at));
    let mut pseudo = Delta::new();
    pseudo.address(&quote.key.src.addr, &original.src.addr);
    pseudo.address(&quote.key.dst.addr, &original.dst.addr);
    if message.v4 {
        let field = read16(bytes, ip + 10)?;
        put16(bytes, ip + 10, pseudo.apply_to(field))?;
        bytes
            .get_mut(ip + 12..ip + 16)?
            .copy_from_slice(&original.src.addr.v4_octets());
        bytes
            .get_mut(ip + 16..ip + 20)?
            .copy_from_slice(&original.dst.addr.v4_octets());
    } else {
        bytes
            .get_mut(ip + 8..ip + 24)?
            .copy_from_slice(&original.src.addr.0);
        bytes
            .get_mut(ip + 24..ip + 40)?
            .copy_from_slice(&original.dst.addr.0);
    }
    let mut delta = pseudo;
    delta
        .u16(quote.key.src.port, original.src.port)
        .u16(quote.key.dst.port, original.dst.port);
    delta.u32(quote.seq.0, seq.0);
    put16(bytes, tcp, original.src.port)?;
    put16(bytes, tcp + 2, original.dst.port)?;
    bytes
        .get_mut(tcp + 4..tcp + 8)?
        .copy_from_slice(&seq.0.to_be_bytes());
    let quoted = usize::from(quote.tcp_len);
    if quoted >= 12 {
        let ack = read32(bytes, tcp + 8)?;
        let new_ack = ack.wrapping_add(ack_add);
        delta.u32(ack, new_ack);
        bytes
            .get_mut(tcp + 8..tcp + 12)?
            .copy_from_slice(&new_ack.to_be_bytes());
    }
    if quoted >= 18 {
        let field = read16(bytes, tcp + 16)?;
        put16(bytes, tcp + 16, delta.apply_to(field))?;
    }
    Some(())
}

/// Sends the error on, from `from` to `to`, its checksums made anew.
fn rewrite_outer(
    bytes: &mut [u8],
    message: &IcmpPacket,
    from: &Address,
    to: &Address,
) -> Result<(), DropReason> {
    let ttl_at = if message.v4 {
        offset::IPV4_TTL
    } else {
        offset::IPV6_HOP_LIMIT
    };
    let ttl = bytes.get_mut(ttl_at).ok_or(DropReason::BadIcmp)?;
    // Errors are forwarded like any packet, so that they cannot go in circles.
    if *ttl <= 1 {
        return Err(DropReason::TtlExpired);
    }
    *ttl -= 1;
    readdress(bytes, message, from, to).ok_or(DropReason::BadIcmp)
}

fn readdress(bytes: &mut [u8], message: &IcmpPacket, from: &Address, to: &Address) -> Option<()> {
    let (at, end) = (usize::from(message.icmp_at), usize::from(message.end));
    if message.v4 {
        bytes.get_mut(12..16)?.copy_from_slice(&from.v4_octets());
        bytes.get_mut(16..20)?.copy_from_slice(&to.v4_octets());
        put16(bytes, offset::IPV4_CHECKSUM, 0)?;
        let sum = checksum::ipv4_header(bytes.get(..at)?);
        put16(bytes, offset::IPV4_CHECKSUM, sum)?;
        put16(bytes, at + 2, 0)?;
        let sum = !checksum::fold(checksum::sum(bytes.get(at..end)?));
        put16(bytes, at + 2, sum)
    } else {
        bytes.get_mut(8..24)?.copy_from_slice(&from.0);
        bytes.get_mut(24..40)?.copy_from_slice(&to.0);
        put16(bytes, at + 2, 0)?;
        let message_bytes = bytes.get(at..end)?;
        let length = message_bytes.len() as u32;
        let pseudo = checksum::pseudo_header(from, to, checksum::PROTOCOL_ICMPV6, length);
        let sum = !checksum::fold(pseudo + checksum::sum(message_bytes));
        put16(bytes, at + 2, sum)
    }
}
