//! Bytes that the switch sends to a server on its own account: the collected head, and before it
//! perhaps a PROXY protocol header.
//!
//! A head that the client can still retransmit is sent once and forgotten. Everything else is
//! *held*: sent again until the server acknowledges it, because no one else could. While bytes are
//! held the engine sees every packet of the connection: the client's retransmissions of held bytes
//! are absorbed, and the server's acknowledgements of them are not shown to the client.

use core::time::Duration;

use fairlead_base::{DropReason, Endpoint, Instant, Packet, SeqNumber};
use fairlead_tcp::record::flag;
use fairlead_tcp::{Backoff, Line, Reassembly, Side, State, window};
use fairlead_wire::{SynOptions, TcpFlags, TcpPacket, Timestamps, options, proxy_protocol};

use super::Switch;
use super::probe::mss_of_router;
use super::request::Request;
use super::setup::{Decision, Setup, SetupId, follow_clock};
use crate::closing::Reset;
use crate::config::ProxyVersion;
use crate::event::End;
use crate::translate;

const RESEND_WAIT: Duration = Duration::from_millis(250);
const RESENDS: u8 = 8;

/// The least payload of a segment that is not the last, whatever MSS a server claims: it bounds the
/// number of segments.
pub(super) const SEGMENT_BYTES_MIN: usize = 64;

/// Bytes of the timestamps option with its padding.
const TIMESTAMPS_BYTES: usize = 12;

/// Segments sent in one go, at most: the usual initial window is 10 (RFC 6928), heads reach 32 KiB.
const BURST_SEGMENTS: usize = 32;

/// What a server's SYN-ACK has told of it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Peer {
    /// Its initial sequence number.
    pub(super) isn: SeqNumber,
    /// The largest segment it is sent, options included.
    pub(super) mss: u16,
    /// Its timestamp value, 0 without timestamps.
    pub(super) ts: u32,
    /// By how much its windows are shifted from now on.
    pub(super) scale: u8,
    /// The window in its SYN-ACK, never scaled (RFC 7323, section 2.2).
    pub(super) window: u16,
}

/// Bytes for the server. See the module's text.
#[derive(Debug)]
pub(super) struct Held {
    bytes: Vec<u8>,
    /// Number of the first byte towards the server.
    start: SeqNumber,
    /// Number behind the last byte: from here on both sides number alike.
    end: SeqNumber,
    /// How many bytes the server has acknowledged, how many were sent since the last time-out, and
    /// how many were ever sent.
    acked: usize,
    sent: usize,
    ever_sent: usize,
    /// How much more than `acked` the server takes.
    window_bytes: usize,
    /// One byte is sent all the same, to learn whether a closed window has opened.
    probing: bool,
    mss: u16,
    server_ts: u32,
    server_scale: u8,
    /// The client's FIN follows the last byte and has not been sent with it yet.
    fin: bool,
    /// Where the bytes differ from what the client sent: a preamble, or a rewritten head.
    ours: bool,
    /// What the client has acknowledged of the server's stream, in the server's numbers.
    client_ack: SeqNumber,
    /// The one request that is forwarded, until all of it has come.
    pub(super) request: Option<Request>,
}

impl Held {
    /// What is sent before and with the collected bytes: the preamble, then the head (rewritten, if
    /// it is), then what is in order behind it up to `end`, the number behind the last byte. The
    /// collected bytes are taken out of the set-up: from now on they are here.
    pub(super) fn new(
        setup: &mut Setup,
        decision: Option<Decision>,
        client_isn: u32,
        end: SeqNumber,
        server: &Peer,
    ) -> Self {
        let whole = setup.is_whole();
        let (preamble, rewrite, request) = decision
            .map(|one| (one.preamble, one.rewrite, one.request))
            .unwrap_or_default();
        let ours = !preamble.is_empty() || rewrite.is_some();
        let stream = std::mem::replace(&mut setup.stream, Reassembly::new(0));
        let (head, head_len) = rewrite.unwrap_or_default();
        // Behind the one request nothing is sent.
        let first = SeqNumber(client_isn) + 1;
        let count = end.since(first).cast_unsigned();
        let fin = whole && count == stream.in_order_len();
        let rest = stream.in_order().get(head_len as usize..count as usize);
        let bytes = [&preamble, &head, rest.unwrap_or_default()].concat();
        Self {
            start: end - bytes.len() as u32,
            end,
            acked: 0,
            sent: 0,
            ever_sent: 0,
            window_bytes: usize::from(server.window),
            probing: false,
            mss: server.mss,
            server_ts: server.ts,
            server_scale: server.scale,
            fin,
            ours,
            client_ack: server.isn + 1,
            request,
            bytes,
        }
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes.capacity()
    }

    /// The server has all bytes; what stays is what is known of the request.
    fn forget_bytes(&mut self) {
        self.bytes = Vec::new();
        self.start = self.end;
        (self.acked, self.sent, self.ever_sent) = (0, 0, 0);
    }

    /// The server has all bytes.
    pub(super) fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// True unless the client can retransmit all of it, byte by byte, and all of it goes out at
    /// once: what is sent later must be what was read, whatever the client sends meanwhile.
    pub(super) fn must_be_held(&self, acked_to_client: u32) -> bool {
        let at_once = self
            .window_bytes
            .min(BURST_SEGMENTS * self.segment_bytes(TIMESTAMPS_BYTES));
        self.ours || acked_to_client > 0 || self.bytes.len() > at_once
    }

    /// The payload of a full segment with so many bytes of options (RFC 6691, section 2).
    fn segment_bytes(&self, options_len: usize) -> usize {
        usize::from(self.mss)
            .saturating_sub(options_len)
            .max(SEGMENT_BYTES_MIN)
    }

    /// The number of the next byte to send: where a segment without bytes stands.
    fn next(&self) -> SeqNumber {
        self.start + self.ever_sent as u32
    }

    /// How many bytes are due to go out now.
    fn sendable(&self) -> usize {
        let window_bytes = self.window_bytes.max(usize::from(self.probing));
        let until = self.acked.saturating_add(window_bytes);
        self.bytes.len().min(until).saturating_sub(self.sent)
    }
}

/// The header that tells a server who the client is.
pub(super) fn proxy_header(
    version: Option<ProxyVersion>,
    client: Endpoint,
    listen: Endpoint,
) -> Vec<u8> {
    let mut header = Vec::new();
    match version {
        Some(ProxyVersion::V1) => proxy_protocol::emit_v1(client, listen, &mut header),
        Some(ProxyVersion::V2) => proxy_protocol::emit_v2(client, listen, &mut header),
        None => {}
    }
    header
}

/// What becomes of a packet of a connection with held bytes.
pub(super) enum Passage {
    /// It goes on, with these changes.
    Pass {
        header: TcpPacket,
        /// The acknowledgement with which it goes on, if not its own.
        ack: Option<SeqNumber>,
    },
    /// It ends here, refused.
    Stop(DropReason),
    /// It ends here; what it said has been heard.
    Heard,
}

impl Passage {
    fn unchanged(header: &TcpPacket) -> Self {
        Self::Pass {
            header: *header,
            ack: None,
        }
    }
}

impl Switch {
    /// Starts to hold what [`Held`] has, and sends it for the first time.
    pub(super) fn begin_holding(&mut self, now: Instant, line: Line, index: SetupId) {
        self.setups.recount(index);
        if let Some(setup) = self.setups.entry(index) {
            setup.backoff = Some(Backoff::start(now, RESEND_WAIT, RESENDS));
        }
        self.schedule(index);
        self.send_held(now, line, index);
    }

    /// Sends what the server's window takes and has not been sent; an acknowledgement alone when
    /// there is nothing.
    pub(super) fn send_held(&mut self, now: Instant, line: Line, index: SetupId) {
        let record = *self.table.record(line);
        if record.state.is_resting() {
            return; // after a RST nothing is sent
        }
        let key = record.server_key(self.table.endpoints()).reversed();
        let Some(setup) = self.setups.entry(index) else {
            return;
        };
        let own_window = window::rescale(setup.client_window, record.client_shift);
        let Some(held) = &mut setup.held else { return };
        let timestamps = (record.flags & flag::TIMESTAMPS != 0).then_some(Timestamps {
            value: setup.client_ts,
            echo: held.server_ts,
        });
        let mut options = std::mem::take(&mut self.syn_options);
        options.clear();
        SynOptions {
            timestamps,
            ..SynOptions::default()
        }
        .emit(&mut options);
        let segment = held.segment_bytes(options.len());
        let mut fin_sent = false;
        for turn in 0..BURST_SEGMENTS {
            let count = held.sendable().min(segment);
            if turn > 0 && count == 0 {
                break;
            }
            // A segment without bytes stands where the next byte would.
            let at = if count > 0 { held.sent } else { held.ever_sent };
            let payload = held.bytes.get(at..at + count).unwrap_or_default();
            let last = at + count == held.bytes.len();
            let mut flags = TcpFlags::ACK;
            if last && count > 0 {
                flags |= TcpFlags::PSH;
            }
            if last && held.fin {
                flags |= TcpFlags::FIN;
                held.fin = false;
                fin_sent = true;
            }
            let (seq, ack) = (held.start + at as u32, held.client_ack);
            self.output
                .send(key, seq, ack, flags, own_window, &options, payload);
            held.sent += count;
            held.ever_sent = held.ever_sent.max(held.sent);
        }
        let end = held.end;
        self.syn_options = options;
        if fin_sent {
            self.note_fin(now, line, Side::Client, end + 1);
        }
    }

    /// The next number of a connection with held bytes towards its server.
    pub(super) fn held_next(&self, line: Line) -> Option<SeqNumber> {
        if self.table.record(line).flags & flag::HELD == 0 {
            return None;
        }
        let held = self.setups.peek(self.setup_of(line)?)?.held.as_ref()?;
        // Behind the last byte the client's own numbers go on.
        (held.ever_sent < held.bytes.len()).then(|| held.next())
    }

    /// Sends held bytes again when they have not been acknowledged in time.
    pub(super) fn held_expired(&mut self, now: Instant, line: Line, index: SetupId) {
        let record = self.table.record(line);
        let resting = record.state == State::Reset;
        let mss = self.mss_to(record.server, record.client_addr.is_v4());
        let Some(setup) = self.setups.entry(index) else {
            return;
        };
        let Some(backoff) = setup.backoff.as_mut().filter(|backoff| backoff.due <= now) else {
            return;
        };
        if resting {
            // After a RST nothing is sent. It stays for the case that the RST is not accepted, but
            // not for as long as the client repeats it.
            if !backoff.expire(now) {
                self.let_go(line);
            }
            return;
        }
        if !backoff.expire(now) {
            self.counts.drops.add(DropReason::PreambleUnacked);
            self.reset_both(line);
            self.note_end(now, line, End::PreambleUnacked);
            self.free(line);
            return;
        }
        if let Some(held) = &mut setup.held {
            held.sent = held.acked;
            // The way may take less by now, and nobody else can send these bytes.
            held.mss = held.mss.min(mss);
            // A closed window is probed with one byte (RFC 9293, section 3.8.6.1).
            held.probing = true;
        }
        self.send_held(now, line, index);
    }

    /// A packet that the switch sent for its own held bytes was too big for the way to the server:
    /// they are cut smaller and sent again (RFC 1191, section 6.3).
    pub(super) fn held_too_big(
        &mut self,
        now: Instant,
        line: Line,
        seq: SeqNumber,
        mtu: u32,
    ) -> bool {
        let v4 = self.table.record(line).client_addr.is_v4();
        let Some(index) = self.setup_of(line) else {
            return false;
        };
        let Some(held) = self
            .setups
            .entry(index)
            .and_then(|setup| setup.held.as_mut())
        else {
            return false;
        };
        if seq.before(held.start) || !seq.before(held.next()) {
            return false;
        }
        let mss = mss_of_router(mtu, v4);
        if mss >= SEGMENT_BYTES_MIN as u16 && mss < held.mss {
            held.mss = mss;
            held.sent = held.acked;
            self.send_held(now, line, index);
        }
        true
    }

    /// Looks at a packet of a connection with held bytes.
    pub(super) fn pass_held(
        &mut self,
        now: Instant,
        packet: &mut Packet,
        header: &TcpPacket,
        line: Line,
        side: Side,
    ) -> Passage {
        let Some(index) = self.setup_of(line) else {
            debug_assert!(false, "held bytes are kept in set-up state");
            self.record(line).flags &= !flag::HELD;
            return Passage::unchanged(header);
        };
        match side {
            Side::Client => self.pass_held_from_client(now, packet, header, line, index),
            Side::Server => self.pass_held_from_server(now, packet, header, line, index),
        }
    }

    /// From the client: what we hold already ends here, what is behind it goes on.
    fn pass_held_from_client(
        &mut self,
        now: Instant,
        packet: &mut Packet,
        header: &TcpPacket,
        line: Line,
        index: SetupId,
    ) -> Passage {
        let record = *self.table.record(line);
        let Some(setup) = self.setups.entry(index) else {
            return Passage::Stop(DropReason::NoConnection);
        };
        let floor = SeqNumber(record.client_isn) + 1 + setup.acked;
        let Some(held) = &mut setup.held else {
            return Passage::unchanged(header);
        };
        let end = held.end;
        // Where the client's number means nothing to the server yet, ours stands in.
        let unknown = held.ever_sent < held.bytes.len() || header.seq.before(end);
        if header.flags.contains(TcpFlags::RST) {
            if !unknown {
                return Passage::unchanged(header);
            }
            return self.reset_held_by_client(now, header.seq, line, index);
        }
        let mut news = false;
        let (ack, sent) = (header.ack - record.seq_delta, SeqNumber(record.server_nxt));
        let old = ack.before(SeqNumber(record.server_isn) + 1);
        if header.flags.contains(TcpFlags::ACK) && !old && !ack.after(sent) {
            news = ack.after(held.client_ack);
            if news {
                held.client_ack = ack;
            }
            setup.client_window = header.window;
            if let Some(stamps) = options::timestamps(header.options(&packet.bytes)) {
                setup.note_client_stamps(stamps);
            }
        }
        let fin = header.flags.contains(TcpFlags::FIN);
        if header.payload_len() == 0 && !fin && unknown && !header.seq.before(end) {
            self.send_held(now, line, index);
            return Passage::Heard;
        }
        if !header.seq.before(end) {
            return Passage::unchanged(header);
        }
        let count = end.since(header.seq) as usize;
        if fin && header.payload_len() < count {
            // A FIN where the client has already sent more: first copies win.
            return Passage::Stop(DropReason::BadSequence);
        }
        if header.payload_len() <= count && !fin {
            if header.seq.before(floor) {
                // It was acknowledged; that may have been lost, or this is a keep-alive probe.
                self.acknowledge_held(line, index);
            }
            if !news {
                return Passage::Stop(DropReason::HeldAlready);
            }
            self.send_held(now, line, index);
            return Passage::Heard;
        }
        match translate::trim_front(packet, header, count) {
            Some(header) => Passage::unchanged(&header),
            None => Passage::Stop(DropReason::Truncated),
        }
    }

    /// A RST from the client, with a number that means nothing to the server. It counts where the
    /// client is expected to go on, by what it has sent or by what was acknowledged to it; the
    /// server gets one with the number that it expects. A near one is answered by what we expect.
    fn reset_held_by_client(
        &mut self,
        now: Instant,
        seq: SeqNumber,
        line: Line,
        index: SetupId,
    ) -> Passage {
        let record = *self.table.record(line);
        let Some(setup) = self.setups.peek(index) else {
            return Passage::Stop(DropReason::NoConnection);
        };
        let floor = SeqNumber(record.client_isn) + 1 + setup.acked;
        let Some((next, ack)) = setup
            .held
            .as_ref()
            .map(|held| (held.next(), held.client_ack))
        else {
            return Passage::Stop(DropReason::NoConnection);
        };
        let seq = if seq == floor {
            record.nxt(Side::Client)
        } else {
            seq
        };
        match self.note_reset(now, line, Side::Client, seq) {
            Reset::Believed => {
                let key = record.server_key(self.table.endpoints()).reversed();
                let flags = TcpFlags::RST | TcpFlags::ACK;
                self.output.send(key, next, ack, flags, 0, &[], &[]);
                Passage::Heard
            }
            Reset::Doubtful => {
                self.acknowledge_held(line, index);
                Passage::Stop(DropReason::BadSequence)
            }
            Reset::Unlikely => Passage::Stop(DropReason::BadSequence),
        }
    }

    /// Repeats to the client what was acknowledged of its head.
    fn acknowledge_held(&mut self, line: Line, index: SetupId) {
        let record = *self.table.record(line);
        let key = record.client_key(self.table.endpoints()).reversed();
        let Some(setup) = self.setups.peek(index) else {
            return;
        };
        let Some(held) = &setup.held else { return };
        let timestamps = (record.flags & flag::TIMESTAMPS != 0).then_some(Timestamps {
            value: held.server_ts.wrapping_add(record.ts_delta),
            echo: setup.client_ts,
        });
        let mut options = Vec::new();
        SynOptions {
            timestamps,
            ..SynOptions::default()
        }
        .emit(&mut options);
        let seq = SeqNumber(record.server_nxt) + record.seq_delta;
        let ack = SeqNumber(record.client_isn) + 1 + setup.acked;
        let unit = held.window_bytes >> held.server_scale.min(14);
        let field = u16::try_from(unit).unwrap_or(u16::MAX);
        let field = window::rescale(field, record.server_shift);
        self.output
            .send(key, seq, ack, TcpFlags::ACK, field, &options, &[]);
    }

    /// From the server: its acknowledgements of held bytes are ours to hear, not the client's.
    fn pass_held_from_server(
        &mut self,
        now: Instant,
        packet: &mut Packet,
        header: &TcpPacket,
        line: Line,
        index: SetupId,
    ) -> Passage {
        let record = *self.table.record(line);
        let Some(setup) = self.setups.entry(index) else {
            return Passage::Stop(DropReason::NoConnection);
        };
        let floor = SeqNumber(record.client_isn) + 1 + setup.acked;
        let Some(held) = &mut setup.held else {
            return Passage::unchanged(header);
        };
        if !header.flags.contains(TcpFlags::ACK) {
            return Passage::unchanged(header);
        }
        let hidden = Passage::Pass {
            header: *header,
            ack: Some(floor),
        };
        if header.flags.contains(TcpFlags::RST) {
            return hidden;
        }
        let (known, next) = (held.start + held.acked as u32, held.next());
        let whole = held.ever_sent == held.bytes.len();
        // Behind our bytes come the client's own.
        let sent = if whole {
            SeqNumber(record.client_nxt)
        } else {
            next
        };
        let near = translate::is_near(header.seq, SeqNumber(record.server_nxt));
        if !near || header.ack.after(sent) {
            // It acknowledges what it cannot have (RFC 9293, section 3.10.7.4), or is a stranger's.
            return Passage::Stop(DropReason::BadSequence);
        }
        let by_client = record.flags & flag::RESET_BY_CLIENT != 0;
        if record.state == State::Reset && by_client && header.ack.before(held.end) {
            // It did not accept the RST that we sent behind all that we had sent, because some of
            // that was lost: now it gets one with the number that it expects.
            let key = header.key.reversed();
            let (seq, ack) = (header.ack, header.seq + header.segment_len());
            self.output.send(key, seq, ack, TcpFlags::RST, 0, &[], &[]);
        }
        if !header.ack.before(held.end) {
            if held.request.is_some() {
                held.forget_bytes();
                setup.backoff = None;
                self.setups.recount(index);
            } else {
                self.let_go(line);
            }
            return Passage::unchanged(header);
        }
        if !header.ack.before(known) {
            if let Some(stamps) = options::timestamps(header.options(&packet.bytes)) {
                follow_clock(&mut held.server_ts, stamps.value);
            }
            self.note_held_acked(now, header, line, index);
        }
        if header.payload_len() == 0 && !header.flags.contains(TcpFlags::FIN) {
            return Passage::Heard;
        }
        hidden
    }

    /// Nothing is held any more: from here on packets are only translated.
    pub(super) fn let_go(&mut self, line: Line) {
        self.record(line).flags &= !flag::HELD;
        if let Some(index) = self.setup_of(line) {
            self.forget_setup(line, index);
        }
    }

    /// The server has acknowledged held bytes, or told its window again.
    fn note_held_acked(&mut self, now: Instant, header: &TcpPacket, line: Line, index: SetupId) {
        let Some(setup) = self.setups.entry(index) else {
            return;
        };
        let Some(held) = &mut setup.held else { return };
        let acked = header.ack.since(held.start) as usize;
        let window_bytes = usize::from(header.window) << held.server_scale.min(14);
        let opens = held.window_bytes == 0 && window_bytes > 0;
        let progress = acked > held.acked;
        held.acked = acked;
        // What was sent into a closed window was not taken.
        held.sent = if opens { acked } else { held.sent.max(acked) };
        held.window_bytes = window_bytes;
        held.probing = false;
        if progress || opens {
            setup.backoff = Some(Backoff::start(now, RESEND_WAIT, RESENDS));
        } else if held.window_bytes == 0
            && let Some(backoff) = &mut setup.backoff
        {
            backoff.heard(RESENDS);
        }
        let resting = self.table.record(line).state == State::Reset;
        if held.sendable() > 0 && !resting {
            self.send_held(now, line, index);
        }
        self.schedule(index);
    }
}
