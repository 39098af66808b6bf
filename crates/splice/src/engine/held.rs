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
use fairlead_tcp::{Backoff, Line, Reassembly, Side, window};
use fairlead_wire::{SynOptions, TcpFlags, TcpPacket, Timestamps, options, proxy_protocol};

use super::Switch;
use crate::config::ProxyVersion;
use crate::event::End;
use crate::translate::{self, AckEdit};

const RESEND_WAIT: Duration = Duration::from_millis(250);
const RESENDS: u8 = 9;

/// Segments sent in one go, at most: the usual initial window is 10 (RFC 6928), heads reach 32 KiB.
const BURST_SEGMENTS: usize = 32;

/// Bytes for the server. See the module's text.
#[derive(Debug)]
pub(super) struct Held {
    bytes: Vec<u8>,
    /// Number of the first byte towards the server.
    start: SeqNumber,
    /// Number behind the last byte: from here on both sides number alike.
    end: SeqNumber,
    /// How many bytes the server has acknowledged, and how many were sent.
    acked: usize,
    sent: usize,
    /// How much more than `acked` the server takes.
    window_bytes: usize,
    mss: u16,
    server_ts: u32,
    server_scale: u8,
    /// The client's FIN follows the last byte and has not been sent with it yet.
    fin: bool,
    /// What the client has acknowledged of the server's stream, in the server's numbers.
    client_ack: Option<SeqNumber>,
}

impl Held {
    /// What is sent before and with the collected bytes: `proxy`, then the head (rewritten, if it
    /// is), then what is in order behind it. `end` is the number behind the last byte.
    #[expect(clippy::too_many_arguments, reason = "made in one place")]
    pub(super) fn new(
        proxy: &[u8],
        rewrite: Option<(Vec<u8>, u32)>,
        stream: &Reassembly,
        end: SeqNumber,
        mss: u16,
        server_ts: u32,
        server_scale: u8,
        syn_ack_window: u16,
        fin: bool,
    ) -> Self {
        let collected = stream.in_order();
        let (head, head_len) = rewrite.unwrap_or_default();
        let rest = collected.get(head_len as usize..).unwrap_or_default();
        let bytes = [proxy, &head, rest].concat();
        Self {
            start: end - bytes.len() as u32,
            end,
            acked: 0,
            sent: 0,
            window_bytes: usize::from(syn_ack_window),
            mss,
            server_ts,
            server_scale,
            fin,
            client_ack: None,
            bytes,
        }
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes.capacity()
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
    /// It goes on, with this header and acknowledgement.
    Pass(TcpPacket, Option<AckEdit>),
    /// It ends here.
    Stop(DropReason),
}

impl Switch {
    /// Starts to hold what [`Held`] has, and sends it for the first time.
    pub(super) fn begin_holding(&mut self, now: Instant, line: Line, index: u32) {
        self.setups.recount(index);
        if let Some(setup) = self.setups.entry(index) {
            setup.backoff = Some(Backoff::start(now, RESEND_WAIT, RESENDS));
        }
        self.schedule(index);
        self.send_held(now, line, index);
    }

    /// Sends what the server's window takes and has not been sent; an acknowledgement alone when
    /// there is nothing.
    pub(super) fn send_held(&mut self, now: Instant, line: Line, index: u32) {
        let record = *self.table.record(line);
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
            mss: None,
            window_scale: None,
            sack_permitted: false,
            timestamps,
        }
        .emit(&mut options);
        let ack = held.client_ack.unwrap_or(SeqNumber(record.server_isn) + 1);
        let segment = usize::from(held.mss).saturating_sub(options.len()).max(64);
        let until = held
            .bytes
            .len()
            .min(held.acked.saturating_add(held.window_bytes));
        let mut fin_sent = false;
        let mut segments = 0;
        loop {
            let stop = until.min(held.sent + segment);
            if segments == BURST_SEGMENTS || (segments > 0 && stop <= held.sent) {
                break;
            }
            let payload = held.bytes.get(held.sent..stop).unwrap_or_default();
            let last = stop == held.bytes.len();
            let mut flags = TcpFlags::ACK;
            if last && !payload.is_empty() {
                flags = flags | TcpFlags::PSH;
            }
            if last && held.fin {
                flags = flags | TcpFlags::FIN;
                held.fin = false;
                fin_sent = true;
            }
            let seq = held.start + held.sent as u32;
            self.output
                .send(key, seq, ack, flags, own_window, &options, payload);
            held.sent = stop.max(held.sent);
            segments += 1;
        }
        let end = held.end;
        self.syn_options = options;
        if fin_sent {
            self.note_fin(now, line, Side::Client, end + 1);
        }
    }

    /// Sends held bytes again when they have not been acknowledged in time.
    pub(super) fn held_expired(&mut self, now: Instant, line: Line, index: u32) {
        let Some(setup) = self.setups.entry(index) else {
            return;
        };
        let again = setup
            .backoff
            .as_mut()
            .is_some_and(|backoff| backoff.expire(now));
        if !again {
            self.counts.drops.add(DropReason::PreambleUnacked);
            self.reset_both(line);
            self.note_end(now, line, End::PreambleUnacked);
            self.forget_setup(line, index);
            self.table.remove(line);
            return;
        }
        if let Some(held) = &mut setup.held {
            held.sent = held.acked;
            // A closed window is probed with one byte.
            held.window_bytes = held.window_bytes.max(1);
        }
        self.schedule(index);
        self.send_held(now, line, index);
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
        let record = *self.table.record(line);
        let Some(index) = self.table.setup(line) else {
            self.record(line).flags &= !flag::HELD;
            return Passage::Pass(*header, None);
        };
        let Some(setup) = self.setups.entry(index) else {
            return Passage::Stop(DropReason::NoConnection);
        };
        let floor = SeqNumber(record.client_isn) + 1 + setup.acked;
        let Some(held) = &mut setup.held else {
            return Passage::Pass(*header, None);
        };
        let end = held.end;
        match side {
            Side::Client => {
                let ack = header.ack - record.seq_delta;
                let news = header.flags.contains(TcpFlags::ACK)
                    && held.client_ack.is_none_or(|known| ack.after(known));
                if news {
                    held.client_ack = Some(ack);
                }
                if let Some(stamps) = options::timestamps(header.options(&packet.bytes)) {
                    setup.note_client_ts(stamps.value);
                }
                setup.client_window = header.window;
                if !header.seq.before(end) || header.flags.contains(TcpFlags::RST) {
                    return Passage::Pass(*header, None);
                }
                let count = end.since(header.seq) as usize;
                let fin = header.flags.contains(TcpFlags::FIN);
                let all_held = header.payload_len() <= count && !fin;
                if all_held && !news {
                    return Passage::Stop(DropReason::HeldAlready);
                }
                match translate::trim_front(packet, header, count) {
                    Some(trimmed) => Passage::Pass(trimmed, None),
                    None => Passage::Stop(DropReason::Truncated),
                }
            }
            Side::Server => {
                if !header.flags.contains(TcpFlags::ACK) {
                    return Passage::Pass(*header, None);
                }
                if !header.ack.before(end) {
                    self.record(line).flags &= !flag::HELD;
                    self.forget_setup(line, index);
                    return Passage::Pass(*header, None);
                }
                let acked = usize::try_from(header.ack.since(held.start)).unwrap_or(0);
                held.window_bytes = usize::from(header.window) << held.server_scale.min(14);
                if let Some(stamps) = options::timestamps(header.options(&packet.bytes)) {
                    held.server_ts = stamps.value;
                }
                if acked > held.acked {
                    held.acked = acked;
                    held.sent = held.sent.max(acked);
                    setup.backoff = Some(Backoff::start(now, RESEND_WAIT, RESENDS));
                }
                if held.sent < held.bytes.len() {
                    self.send_held(now, line, index);
                }
                self.schedule(index);
                Passage::Pass(*header, Some(AckEdit::Become(floor)))
            }
        }
    }
}
