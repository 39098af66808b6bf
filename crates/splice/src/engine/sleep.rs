//! Connections that have outlived the socket of their process (`Route::sleep`, docs/handoff.md).
//!
//! Such a connection is a few numbers in a map of the host's side. A request with exactly these
//! numbers wakes it: it is given to whoever listens now. All else that its client may send is
//! answered here as the process's TCP would have. A request for which nobody listens is held until
//! somebody does; so is one that a socket has left unread.

use core::time::Duration;

use fairlead_base::{Checksum, DropReason, Endpoint, FlowKey, Packet, SeqNumber};
use fairlead_tcp::Sleeper;
use fairlead_wire::{
    Classified, SynOptions, TcpFlags, TcpPacket, Timestamps, checksum, classify, options,
};

use super::host::{self, STAMPS_BYTES};
use super::{Switch, output, probe};
use crate::Verdict;

/// Segments of a connection that was woken a moment ago are at most so far ahead of the request
/// that woke it.
const WINDOW_MAX: i64 = 1 << 30;

/// The window that clients see while nobody can take anything but a request.
const WINDOW: u16 = u16::MAX >> 2;

impl Switch {
    /// A packet of a client whose connection has outlived its socket; `None` for all others. A
    /// request waits so long for a listener.
    pub(super) fn hear_sleeper(
        &mut self,
        packet: &mut Packet,
        header: &TcpPacket,
        wait: Duration,
    ) -> Option<Verdict> {
        let sleeper = self.host.handoff.as_deref()?.sleeper(&header.key)?;
        let ahead = i64::from(header.seq.since(SeqNumber(sleeper.client_nxt)));
        if !sleeper.is_asleep {
            // Its socket is being made by the segment before.
            return Some(match (-WINDOW_MAX..WINDOW_MAX).contains(&ahead) {
                true => Verdict::Transmit,
                false => self.drop(DropReason::BadSequence),
            });
        }
        let exact = ahead == 0 && header.ack == SeqNumber(sleeper.server_nxt);
        let fin = header.flags.contains(TcpFlags::FIN);
        Some(if exact && header.payload_len() > 0 {
            match self.listens_now(sleeper.listener) {
                true => self.wake(packet, header, wait, &sleeper),
                false => self.hold(&header.key, wait, sleeper.listener, &packet.bytes),
            }
        } else if exact && fin {
            if let Some(handoff) = self.host.handoff.as_deref_mut() {
                handoff.end(&header.key);
            }
            self.counts.sleepers_closed += 1;
            let flags = TcpFlags::FIN | TcpFlags::ACK;
            self.answer_for(packet, header, &sleeper, header.seq + 1, flags);
            Verdict::Transmit
        } else if ahead == -1 && header.payload_len() <= 1 && !fin {
            // A keep-alive probe (RFC 9293, section 3.8.4).
            let ack = SeqNumber(sleeper.client_nxt);
            self.answer_for(packet, header, &sleeper, ack, TcpFlags::ACK);
            Verdict::Transmit
        } else {
            self.drop(DropReason::BadSequence)
        })
    }

    /// Gives the connection to whoever listens now, with the request that came.
    fn wake(
        &mut self,
        packet: &Packet,
        header: &TcpPacket,
        wait: Duration,
        sleeper: &Sleeper,
    ) -> Verdict {
        let payload = header.payload(&packet.bytes);
        let client_nxt = sleeper.client_nxt.wrapping_add(payload.len() as u32);
        let method = host::beginning(payload);
        let handoff = self.host.handoff.as_deref_mut();
        if !handoff.is_some_and(|one| one.wake(&header.key, client_nxt, method, wait)) {
            return self.drop(DropReason::HostUnavailable);
        }
        self.counts.woken += 1;
        if let Some(handoff) = self.host.handoff.as_deref_mut() {
            handoff.keep(&header.key, (sleeper.client_nxt, client_nxt), &packet.bytes);
        }
        let stamps = stamps_of(options::timestamps(header.options(&packet.bytes)));
        let device_mss = probe::mss_of_family(self.config.device_mss, header.v4);
        let most = usize::from(device_mss - STAMPS_BYTES);
        let pieces = payload.len().div_ceil(most);
        for (at, piece) in payload.chunks(most).enumerate() {
            let seq = header.seq + (at * most) as u32;
            let flags = match at + 1 == pieces {
                true => header.flags,
                false => TcpFlags::ACK,
            };
            let (ack, window) = (header.ack, header.window);
            self.output
                .send(header.key, seq, ack, flags, window, &stamps, piece);
        }
        Verdict::Consumed
    }

    /// Whether somebody listens there, as far as that can be known.
    pub(super) fn listens_now(&mut self, listener: Endpoint) -> bool {
        let handoff = self.host.handoff.as_deref_mut();
        handoff.is_none_or(|one| one.listens_now(listener))
    }

    /// Holds a request until somebody listens, for so long at most.
    pub(super) fn hold(
        &mut self,
        client: &FlowKey,
        wait: Duration,
        listener: Endpoint,
        packet: &[u8],
    ) -> Verdict {
        let handoff = self.host.handoff.as_deref_mut();
        if !handoff.is_some_and(|one| one.hold(client, listener, wait, packet)) {
            return self.drop(DropReason::HeldFull); // the client sends it again
        }
        self.counts.host_held += 1;
        Verdict::Consumed
    }

    /// The next packet that was held, for which somebody listens now. Where nobody
    /// has come to listen in time, the client gets a RST.
    pub fn next_held(&mut self) -> Option<Packet> {
        loop {
            let held = self.host.handoff.as_deref_mut()?.next_held()?;
            let mut packet = Packet::from_bytes(&held.packet);
            let Ok(Classified::Tcp(header)) = classify(&packet.bytes) else {
                continue; // the kernel program understands more
            };
            if is_partial(&packet, &header) {
                packet.checksum = Checksum::Partial;
            }
            if !held.is_late {
                return Some(packet);
            }
            self.counts.host_held_late += 1;
            if let Some(handoff) = self.host.handoff.as_deref_mut()
                && handoff.sleeper(&header.key).is_some()
            {
                handoff.end(&header.key);
            }
            let verdict = self.refuse(&mut packet, &header, DropReason::HostUnavailable);
            if verdict == Verdict::Transmit {
                self.output.send_packet(&packet);
            }
        }
    }

    /// Makes a packet the answer of the socket that is gone. Of its clock only what its client has
    /// seen is known, which is said again.
    fn answer_for(
        &self,
        packet: &mut Packet,
        header: &TcpPacket,
        sleeper: &Sleeper,
        ack: SeqNumber,
        flags: TcpFlags,
    ) {
        let stamps = options::timestamps(header.options(&packet.bytes));
        let stamps = stamps_of(stamps.map(|theirs| Timestamps {
            value: theirs.echo,
            echo: theirs.value,
        }));
        let (key, seq) = (header.key.reversed(), SeqNumber(sleeper.server_nxt));
        output::reply(packet, key, seq, ack, flags, WINDOW, &stamps);
    }

    /// Closes connections that have slept too long.
    pub(super) fn end_expired_sleepers(&mut self) {
        while let Some((client, sleeper)) = self.next_expired_sleeper() {
            self.counts.sleepers_closed += 1;
            let (seq, ack) = (SeqNumber(sleeper.server_nxt), SeqNumber(sleeper.client_nxt));
            let flags = TcpFlags::FIN | TcpFlags::ACK;
            let to = client.reversed();
            self.output.send(to, seq, ack, flags, WINDOW, &[], &[]);
        }
    }

    fn next_expired_sleeper(&mut self) -> Option<(FlowKey, Sleeper)> {
        self.host.handoff.as_deref_mut()?.next_expired()
    }
}

/// Whether a packet, kept as it came, was from a machine of this host, or put together by a device
/// that had checked it.
fn is_partial(packet: &Packet, header: &TcpPacket) -> bool {
    let tcp_at = usize::from(header.tcp_at);
    let field = packet.bytes.get(tcp_at + 16..tcp_at + 18);
    let (src, dst) = (&header.key.src.addr, &header.key.dst.addr);
    let bytes = u32::from(header.end) - u32::from(header.tcp_at);
    field == Some(&checksum::tcp_partial(src, dst, bytes).to_be_bytes()[..])
}

fn stamps_of(timestamps: Option<Timestamps>) -> Vec<u8> {
    let mut options = Vec::new();
    SynOptions {
        mss: None,
        window_scale: None,
        sack_permitted: false,
        timestamps,
    }
    .emit(&mut options);
    options
}
