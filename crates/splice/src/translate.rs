//! The translation step: rewrites a packet of a spliced connection in place.
//!
//! What changes (content-aware-switch-2006, "Processing on microengines"): addresses, ports, hop
//! limit; the server's sequence numbers and the client's acknowledgements by one constant; SACK
//! edges with the acknowledgements (RFC 2018); timestamps both ways (RFC 7323); the window by the
//! difference of the scales. Checksums are updated incrementally (RFC 1624), so damage done to a
//! packet before it came here is still found by its receiver.
//!
//! Everything needed is in a [`Record`] and in [`Endpoints`]: a kernel program can do the same.

use fairlead_base::{Checksum, DropReason, Endpoint, Packet, SeqNumber};
use fairlead_tcp::record::flag;
use fairlead_tcp::{Endpoints, Record, Renumbering, Side, window};
use fairlead_wire::checksum::Delta;
use fairlead_wire::{TcpFlags, TcpPacket, options};

const KIND_NOP: u8 = 1;
const KIND_SACK: u8 = 5;
const KIND_TIMESTAMPS: u8 = 8;

/// What to change in one packet.
#[derive(Clone, Copy, Debug)]
pub struct Edits {
    /// New source.
    pub src: Endpoint,
    /// New destination.
    pub dst: Endpoint,
    /// Added to the sequence number.
    pub seq_add: u32,
    /// What becomes of the acknowledgement number.
    pub ack: AckEdit,
    /// Shift of the window field ([`window::rescale`]).
    pub window_shift: i8,
    /// Added to the timestamp value.
    pub ts_value_add: u32,
    /// Added to the timestamp echo.
    pub ts_echo_add: u32,
}

/// What becomes of an acknowledgement number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AckEdit {
    /// This is added to it, and to every SACK edge.
    Add(u32),
    /// It becomes this; SACK blocks, which would speak of other bytes, are blanked.
    Become(SeqNumber),
}

impl Edits {
    /// The changes for a packet that came in on `side` of a spliced connection.
    #[inline]
    pub fn of(record: &Record, endpoints: &Endpoints, side: Side) -> Self {
        match side {
            Side::Client => Self {
                src: record.source(endpoints),
                dst: endpoints.server(record.server),
                seq_add: 0,
                ack: AckEdit::Add(record.seq_delta.wrapping_neg()),
                window_shift: record.client_shift,
                ts_value_add: 0,
                ts_echo_add: record.ts_delta.wrapping_neg(),
            },
            Side::Server => Self {
                src: endpoints.listen(record.listen),
                dst: record.client(),
                seq_add: record.seq_delta,
                ack: AckEdit::Add(0),
                window_shift: record.server_shift,
                ts_value_add: record.ts_delta,
                ts_echo_add: 0,
            },
        }
    }
}

/// Forwards a packet of a spliced connection without the engine: tracks how far the stream has
/// been seen, then translates. Only for packets for which [`is_fast`] holds.
///
/// # Errors
/// [`DropReason::TtlExpired`].
#[inline]
pub fn forward(
    record: &mut Record,
    endpoints: &Endpoints,
    side: Side,
    packet: &mut Packet,
    header: &TcpPacket,
    now_ms: u32,
) -> Result<(), DropReason> {
    if header.ttl <= 1 {
        return Err(DropReason::TtlExpired); // it does not pass, so it tells nothing
    }
    let end = header.seq + header.payload_len() as u32;
    // The one request ends where it has been seen to; acknowledgements may stand behind that.
    let settled = side == Side::Client && record.flags & flag::ONE_REQUEST != 0;
    if !settled {
        record.advance(side, end);
    }
    record.last_active = now_ms;
    apply(packet, header, &Edits::of(record, endpoints, side))
}

/// How far a packet may lie beyond everything seen before and still not be looked at: more than a
/// super-packet, so that losses before the switch do not matter. Farther ones are rare and often
/// damaged, which only their checksum can tell, or a stranger's; they must not lead the tracked
/// numbers astray.
const JUMP_MAX: i32 = 1 << 20;

/// How many bytes before the client's first the switch may have sent to the server: a PROXY protocol
/// header and what a rewritten head grows by.
const PREAMBLE_BYTES_MAX: u32 = 512;

/// True when the acknowledgement number lies where the preamble of a young connection did; in a long
/// transfer it does so once in every 4 GiB, without meaning.
#[inline]
pub(crate) fn is_near_start(record: &Record, header: &TcpPacket) -> bool {
    record.client_isn.wrapping_sub(header.ack.0) < PREAMBLE_BYTES_MAX
}

/// The largest window of any TCP (RFC 7323, section 2.3): nobody's acknowledgement is farther
/// behind what was sent to it.
pub(crate) const WINDOW_MAX: u32 = 1 << 30;

/// Where an acknowledgement points: the number that it names, in its receiver's own numbering, and
/// the number behind the last one seen from that receiver.
#[inline]
pub(crate) fn acknowledged(
    record: &Record,
    side: Side,
    header: &TcpPacket,
) -> (SeqNumber, SeqNumber) {
    match side {
        Side::Client => (header.ack - record.seq_delta, SeqNumber(record.server_nxt)),
        Side::Server => (header.ack, SeqNumber(record.client_nxt)),
    }
}

/// True when both numbers of a packet are such as its sender may use, by what was seen so far: it
/// is not far ahead, and acknowledges nothing that was not sent to it. A stranger who knows neither
/// number hits that once in 2¹⁴ times (RFC 5961, section 5 asks for the same of data).
#[inline]
pub(crate) fn is_in_step(record: &Record, side: Side, header: &TcpPacket) -> bool {
    let (ack, sent) = acknowledged(record, side, header);
    header.seq.since(record.nxt(side)) <= JUMP_MAX && sent.0.wrapping_sub(ack.0) <= WINDOW_MAX
}

/// True when a packet may move the number tracked for its sender. A long jump, behind much that
/// was lost before the switch, takes an acknowledgement that is closer.
pub(crate) fn may_advance(record: &Record, side: Side, header: &TcpPacket) -> bool {
    is_in_step(record, side, header)
        || (is_near(header.seq, record.nxt(side)) && acks_nearby(record, side, header))
}

/// Numbers that are not farther apart than this are *near*: wide enough for a window that is still
/// on its way, narrow enough that a blind guess rarely hits (once in 2⁷ times).
const NEAR: i32 = 1 << 24;

/// True for two numbers that are near each other.
pub(crate) fn is_near(a: SeqNumber, b: SeqNumber) -> bool {
    (-NEAR..=NEAR).contains(&a.since(b))
}

/// True when the acknowledgement in a packet is one that its sender may have sent lately: a
/// stranger has to guess it too (RFC 5961, section 5.2).
pub(crate) fn acks_nearby(record: &Record, side: Side, header: &TcpPacket) -> bool {
    let (ack, sent) = acknowledged(record, side, header);
    header.flags.contains(TcpFlags::ACK) && is_near(ack, sent)
}

/// True when both numbers of a packet are such as its sender has lately used. Both, because the
/// cookies of one tuple begin with the same bits: of two connections of a client's on it, the
/// acknowledgements are near each other once in five times or so.
pub(crate) fn is_recent(record: &Record, side: Side, header: &TcpPacket) -> bool {
    let (ack, sent) = acknowledged(record, side, header);
    let ahead = header.seq.since(record.nxt(side));
    (0..=NEAR).contains(&sent.since(ack)) && (-NEAR..=JUMP_MAX).contains(&ahead)
}

/// True when a packet needs nothing but translation: its connection is spliced and quiet, it carries
/// none of SYN, FIN and RST, which change the connection's state, its numbers may be its sender's,
/// and it does not acknowledge what was said before the client's first byte.
#[inline]
pub fn is_fast(record: &Record, side: Side, header: &TcpPacket) -> bool {
    record.state == fairlead_tcp::State::Spliced
        && record.flags & !flag::FAST == 0
        && header.flags.0 & (TcpFlags::SYN.0 | TcpFlags::FIN.0 | TcpFlags::RST.0) == 0
        && is_in_step(record, side, header)
        && !is_near_start(record, header)
        && is_of_request(record, side, header)
}

/// True unless a packet may bring bytes, or a FIN, from behind the one request of a client: then it
/// is the engine's.
#[inline]
pub(crate) fn is_of_request(record: &Record, side: Side, header: &TcpPacket) -> bool {
    let limited = record.flags & flag::ONE_REQUEST != 0 && side == Side::Client;
    let nxt = SeqNumber(record.client_nxt);
    let fin = header.flags.contains(TcpFlags::FIN);
    let is_closed = record.flags & flag::CLIENT_FIN != 0;
    !limited || header.payload_len() == 0 && (!fin || header.seq + u32::from(is_closed) == nxt)
}

#[inline]
fn be32(bytes: &[u8], at: usize) -> u32 {
    match bytes.get(at..).and_then(|rest| rest.first_chunk::<4>()) {
        Some(four) => u32::from_be_bytes(*four),
        None => 0,
    }
}

#[inline]
fn put32(bytes: &mut [u8], at: usize, value: u32) {
    if let Some(four) = bytes
        .get_mut(at..)
        .and_then(|rest| rest.first_chunk_mut::<4>())
    {
        *four = value.to_be_bytes();
    }
}

/// Rewrites the IP header: addresses and hop limit. Returns the change to the pseudo-header.
#[inline]
fn rewrite_ip(
    bytes: &mut [u8],
    header: &TcpPacket,
    src: &Endpoint,
    dst: &Endpoint,
) -> Result<Delta, DropReason> {
    let mut pseudo = Delta::new();
    if header.ttl <= 1 {
        return Err(DropReason::TtlExpired);
    }
    if header.v4 {
        let ip = bytes.first_chunk_mut::<20>().ok_or(DropReason::Truncated)?;
        let old_src = u32::from_be_bytes([ip[12], ip[13], ip[14], ip[15]]);
        let old_dst = u32::from_be_bytes([ip[16], ip[17], ip[18], ip[19]]);
        let new_src = u32::from_be_bytes(src.addr.v4_octets());
        let new_dst = u32::from_be_bytes(dst.addr.v4_octets());
        pseudo.u32(old_src, new_src).u32(old_dst, new_dst);
        let mut all = pseudo;
        let lived = u16::from_be_bytes([ip[8], ip[9]]);
        all.u16(lived, lived - 0x0100);
        ip[8] -= 1;
        let checksum = all.apply_to(u16::from_be_bytes([ip[10], ip[11]]));
        [ip[10], ip[11]] = checksum.to_be_bytes();
        ip[12..16].copy_from_slice(&new_src.to_be_bytes());
        ip[16..20].copy_from_slice(&new_dst.to_be_bytes());
    } else {
        let ip = bytes.first_chunk_mut::<40>().ok_or(DropReason::Truncated)?;
        pseudo
            .address(&header.key.src.addr, &src.addr)
            .address(&header.key.dst.addr, &dst.addr);
        ip[7] -= 1;
        ip[8..24].copy_from_slice(&src.addr.0);
        ip[24..40].copy_from_slice(&dst.addr.0);
    }
    Ok(pseudo)
}

/// Counts one hop of a packet that is passed on as it is.
///
/// # Errors
/// [`DropReason::TtlExpired`]; the packet is unchanged then.
pub fn age(packet: &mut Packet, header: &TcpPacket) -> Result<(), DropReason> {
    let key = &header.key;
    rewrite_ip(packet.bytes.as_mut_slice(), header, &key.src, &key.dst).map(|_| ())
}

/// Applies `edits` to `packet`, whose header summary is `header`.
///
/// # Errors
/// [`DropReason::TtlExpired`]; the packet is unchanged then. [`DropReason::Truncated`] when
/// `header` does not describe `packet`: a bug in the caller that must not become a panic.
#[inline]
pub fn apply(packet: &mut Packet, header: &TcpPacket, edits: &Edits) -> Result<(), DropReason> {
    let bytes = packet.bytes.as_mut_slice();
    let pseudo = rewrite_ip(bytes, header, &edits.src, &edits.dst)?;
    let window = window::rescale(header.window, edits.window_shift);
    rewrite_tcp(packet, header, edits, window, pseudo)
}

/// Puts a segment on a pair's server leg into the numbers of the other side of the boundary
/// ([`fairlead_tcp::second`]). Returns its header as it is then.
///
/// # Errors
/// [`DropReason::Truncated`], as [`apply`].
pub fn renumber(
    packet: &mut Packet,
    header: &TcpPacket,
    by: &Renumbering,
) -> Result<TcpPacket, DropReason> {
    let edits = Edits {
        src: header.key.src,
        dst: header.key.dst,
        seq_add: by.seq_add,
        ack: AckEdit::Add(by.ack_add),
        window_shift: 0,
        ts_value_add: by.ts_value_add,
        ts_echo_add: by.ts_echo_add,
    };
    let window = by.window(header.window);
    rewrite_tcp(packet, header, &edits, window, Delta::new())?;
    let mut now = *header;
    now.seq = header.seq + by.seq_add;
    if header.flags.contains(TcpFlags::ACK) {
        now.ack = header.ack + by.ack_add;
    }
    now.window = window;
    Ok(now)
}

#[inline]
fn rewrite_tcp(
    packet: &mut Packet,
    header: &TcpPacket,
    edits: &Edits,
    new_window: u16,
    pseudo: Delta,
) -> Result<(), DropReason> {
    let tcp = packet
        .bytes
        .get_mut(usize::from(header.tcp_at)..usize::from(header.payload_at))
        .ok_or(DropReason::Truncated)?;
    let (fixed, options) = tcp
        .split_first_chunk_mut::<20>()
        .ok_or(DropReason::Truncated)?;
    let mut delta = Delta::new();

    let old_ports = u32::from_be_bytes([fixed[0], fixed[1], fixed[2], fixed[3]]);
    let new_ports = (u32::from(edits.src.port) << 16) | u32::from(edits.dst.port);
    delta.u32(old_ports, new_ports);
    fixed[..4].copy_from_slice(&new_ports.to_be_bytes());

    let new_seq = header.seq + edits.seq_add;
    delta.u32(header.seq.0, new_seq.0);
    fixed[4..8].copy_from_slice(&new_seq.0.to_be_bytes());

    let mut sack_add = Some(0);
    if header.flags.contains(TcpFlags::ACK) {
        let new_ack = match edits.ack {
            AckEdit::Add(add) => {
                sack_add = Some(add);
                header.ack + add
            }
            AckEdit::Become(ack) => {
                sack_add = None;
                ack
            }
        };
        delta.u32(header.ack.0, new_ack.0);
        fixed[8..12].copy_from_slice(&new_ack.0.to_be_bytes());
    }

    delta.u16(header.window, new_window);
    [fixed[14], fixed[15]] = new_window.to_be_bytes();

    if !options.is_empty() {
        rewrite_options(options, &mut delta, edits, sack_add);
    }

    let field = u16::from_be_bytes([fixed[16], fixed[17]]);
    let field = match packet.checksum {
        Checksum::Partial => pseudo.apply_to_partial(field),
        Checksum::Complete | Checksum::Verified => delta.join(pseudo).apply_to(field),
    };
    [fixed[16], fixed[17]] = field.to_be_bytes();
    Ok(())
}

#[inline]
fn rewrite_options(options: &mut [u8], delta: &mut Delta, edits: &Edits, sack_add: Option<u32>) {
    let timestamps = edits.ts_value_add != 0 || edits.ts_echo_add != 0;
    if sack_add.is_none() {
        blank_sack(options, delta);
    }
    let usual = options.len() == 12 && options[..4] == [KIND_NOP, KIND_NOP, KIND_TIMESTAMPS, 10];
    if usual {
        if timestamps {
            shift_timestamps(&mut options[4..], 0, delta, edits);
        }
        return;
    }
    // A malformed list is the receiver's to judge: what was readable has been translated.
    let _ = options::edit(options, |kind, at, body| match (kind, body.len()) {
        (KIND_TIMESTAMPS, 8) if timestamps => shift_timestamps(body, at, delta, edits),
        (KIND_SACK, _) => {
            let add = sack_add.unwrap_or(0);
            let mut edge = 0;
            while add != 0 && edge + 4 <= body.len() {
                let old = be32(body, edge);
                let new = old.wrapping_add(add);
                delta.u32_at(at + edge, old, new);
                put32(body, edge, new);
                edge += 4;
            }
        }
        _ => {}
    });
}

/// Overwrites every SACK option with padding.
fn blank_sack(options: &mut [u8], delta: &mut Delta) {
    while let Some((at, len)) = options::walk(options)
        .find(|(kind, ..)| *kind == KIND_SACK)
        .map(|(_, at, body)| (at, body.len() + 2))
    {
        for (at, byte) in options.iter_mut().enumerate().skip(at).take(len) {
            let shift = if at % 2 == 0 { 8 } else { 0 };
            delta.u16(u16::from(*byte) << shift, u16::from(KIND_NOP) << shift);
            *byte = KIND_NOP;
        }
    }
}

/// `body` starts at the value; `at` is the offset of its option, even exactly when the value is.
#[inline]
fn shift_timestamps(body: &mut [u8], at: usize, delta: &mut Delta, edits: &Edits) {
    let (value, echo) = (be32(body, 0), be32(body, 4));
    let new_value = value.wrapping_add(edits.ts_value_add);
    let new_echo = echo.wrapping_add(edits.ts_echo_add);
    delta
        .u32_at(at, value, new_value)
        .u32_at(at, echo, new_echo);
    put32(body, 0, new_value);
    put32(body, 4, new_echo);
}

/// Cuts `count` payload bytes off the front of a packet, in place; both checksums are made anew.
/// The urgent pointer goes on pointing where it did, or goes with what it pointed to. A rare step:
/// it is for retransmissions that overlap bytes the switch itself holds.
pub fn trim_front(packet: &mut Packet, header: &TcpPacket, count: usize) -> Option<TcpPacket> {
    let payload_at = usize::from(header.payload_at);
    let count = count.min(header.payload_len());
    packet.bytes.truncate(usize::from(header.end));
    packet.bytes.drain(payload_at..payload_at + count);
    let urgent = urgent(packet, header)?.saturating_sub(count);
    reseal(
        packet,
        header,
        header.seq + count as u32,
        header.flags,
        urgent,
    )
}

/// Cuts a packet behind its first `count` payload bytes, and a FIN with what is cut off; as
/// [`trim_front`] otherwise.
pub fn trim_back(packet: &mut Packet, header: &TcpPacket, count: usize) -> Option<TcpPacket> {
    let count = count.min(header.payload_len());
    packet
        .bytes
        .truncate(usize::from(header.payload_at) + count);
    let urgent = urgent(packet, header)?.min(count);
    let flags = header.flags.without(TcpFlags::FIN);
    reseal(packet, header, header.seq, flags, urgent)
}

/// Where the urgent pointer points, in bytes from the sequence number.
fn urgent(packet: &Packet, header: &TcpPacket) -> Option<usize> {
    let tcp = packet.bytes.get(usize::from(header.tcp_at)..)?;
    Some(usize::from(u16::from_be_bytes([
        *tcp.get(18)?,
        *tcp.get(19)?,
    ])))
}

/// Writes lengths, number, flags, urgent pointer and checksums of a packet that was cut.
fn reseal(
    packet: &mut Packet,
    header: &TcpPacket,
    seq: SeqNumber,
    mut flags: TcpFlags,
    urgent: usize,
) -> Option<TcpPacket> {
    use fairlead_wire::checksum;
    let total = packet.bytes.len();
    if header.v4 {
        let ip_len = usize::from(header.tcp_at);
        let ip = packet.bytes.get_mut(..ip_len)?;
        ip[2..4].copy_from_slice(&(total as u16).to_be_bytes());
        ip[10..12].fill(0);
        let checksum = checksum::ipv4_header(ip);
        ip[10..12].copy_from_slice(&checksum.to_be_bytes());
    } else {
        let payload = (total - 40) as u16;
        packet
            .bytes
            .get_mut(4..6)?
            .copy_from_slice(&payload.to_be_bytes());
    }
    let tcp = packet.bytes.get_mut(usize::from(header.tcp_at)..)?;
    put32(tcp, 4, seq.0);
    if flags.contains(TcpFlags::URG) {
        tcp[18..20].copy_from_slice(&(urgent as u16).to_be_bytes());
        // Without an ACK it would be a segment without a meaning; as it is, nobody takes it.
        if urgent == 0 && flags.contains(TcpFlags::ACK) {
            flags = flags.without(TcpFlags::URG);
        }
    }
    tcp[13] = flags.0;
    tcp[16..18].fill(0);
    let (src, dst) = (&header.key.src.addr, &header.key.dst.addr);
    let field = match packet.checksum {
        Checksum::Partial => checksum::tcp_partial(src, dst, tcp.len() as u32),
        _ => checksum::tcp(src, dst, tcp),
    };
    tcp[16..18].copy_from_slice(&field.to_be_bytes());
    let left = total - usize::from(header.payload_at);
    if packet
        .gso
        .is_some_and(|gso| left <= usize::from(gso.segment_bytes))
    {
        packet.gso = None;
    }
    Some(TcpPacket {
        seq,
        flags,
        end: total as u16,
        ..*header
    })
}
