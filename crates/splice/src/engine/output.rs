//! Packets that the engine makes itself, waiting to be fetched.

use std::collections::VecDeque;

use fairlead_base::{Checksum, FlowKey, Packet, SeqNumber};
use fairlead_wire::{TcpFlags, TcpRepr};

/// Hop limit of packets that start here.
pub(super) const TTL: u8 = 64;

/// Buffers kept for reuse.
const SPARE_MAX: usize = 256;

/// A queue of packets with buffers that are used again. It is as long as one input makes it: the
/// caller empties it after every input.
#[derive(Debug, Default)]
pub(super) struct Output {
    queue: VecDeque<Vec<u8>>,
    spare: Vec<Vec<u8>>,
}

impl Output {
    /// Queues a packet.
    #[expect(clippy::too_many_arguments, reason = "the fields of a TCP header")]
    pub(super) fn send(
        &mut self,
        key: FlowKey,
        seq: SeqNumber,
        ack: SeqNumber,
        flags: TcpFlags,
        window: u16,
        options: &[u8],
        payload: &[u8],
    ) {
        let mut bytes = self.spare.pop().unwrap_or_default();
        TcpRepr {
            key,
            seq,
            ack,
            flags,
            window,
            options,
            payload,
            ttl: TTL,
        }
        .emit(&mut bytes);
        self.queue.push_back(bytes);
    }

    /// Queues a packet as it is; its checksums are complete.
    pub(super) fn send_packet(&mut self, packet: &Packet) {
        debug_assert_eq!(packet.checksum, Checksum::Complete);
        let mut bytes = self.spare.pop().unwrap_or_default();
        bytes.clear();
        bytes.extend_from_slice(&packet.bytes);
        self.queue.push_back(bytes);
    }

    /// Takes the oldest packet.
    pub(super) fn take(&mut self, out: &mut Packet) -> bool {
        let Some(bytes) = self.queue.pop_front() else {
            return false;
        };
        out.clear();
        out.bytes.extend_from_slice(&bytes);
        if self.spare.len() < SPARE_MAX {
            self.spare.push(bytes);
        }
        true
    }
}

/// Replaces a packet by an answer to it.
pub(super) fn reply(
    packet: &mut Packet,
    key: FlowKey,
    seq: SeqNumber,
    ack: SeqNumber,
    flags: TcpFlags,
    window: u16,
    options: &[u8],
) {
    TcpRepr {
        key,
        seq,
        ack,
        flags,
        window,
        options,
        payload: &[],
        ttl: TTL,
    }
    .emit(&mut packet.bytes);
    packet.checksum = Checksum::Complete;
    packet.gso = None;
}
