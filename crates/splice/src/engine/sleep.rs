//! Connections that have outlived the socket of their process (`Route::sleep`, docs/handoff.md).
//!
//! Such a connection is a few numbers in a map of the host's side. A request with exactly these
//! numbers wakes it: it is given to whoever listens now. All else that its client may send is
//! answered here as the process's TCP would have.

use fairlead_base::{DropReason, FlowKey, Packet, SeqNumber};
use fairlead_tcp::Sleeper;
use fairlead_wire::{SynOptions, TcpFlags, TcpPacket, Timestamps, options};

use super::host::{self, STAMPS_BYTES};
use super::{Switch, output, probe};
use crate::Verdict;
use crate::config::Route;

/// Segments of a connection that was woken a moment ago are at most so far ahead of the request
/// that woke it.
const WINDOW_MAX: i64 = 1 << 30;

/// The window that clients see while nobody can take anything but a request.
const WINDOW: u16 = u16::MAX >> 2;

impl Switch {
    /// A packet of a client whose connection has outlived its socket; `None` for all others.
    pub(super) fn hear_sleeper(
        &mut self,
        packet: &mut Packet,
        header: &TcpPacket,
        listen: u16,
    ) -> Option<Verdict> {
        if !self
            .service_of(listen)
            .routes
            .iter()
            .any(|route: &Route| route.sleep)
        {
            return None;
        }
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
            self.wake(packet, header, listen, &sleeper)
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
        listen: u16,
        sleeper: &Sleeper,
    ) -> Verdict {
        let payload = header.payload(&packet.bytes);
        let client_nxt = sleeper.client_nxt.wrapping_add(payload.len() as u32);
        let wait = self.service_of(listen).timeouts.wake;
        let method = host::beginning(payload);
        let handoff = self.host.handoff.as_deref_mut();
        if !handoff.is_some_and(|one| one.wake(&header.key, client_nxt, method, wait)) {
            return self.drop(DropReason::HostUnavailable);
        }
        self.counts.woken += 1;
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
