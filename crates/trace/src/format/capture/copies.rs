//! Packets that a capture has more than once: taken on several interfaces of one path, or by a
//! mirror of both ports.

use fairlead_base::FlowKey;
use fairlead_wire::TcpPacket;

use crate::hash::hash64;

/// The most time between a packet and its copy, nanoseconds. TCP sends the same bytes again no
/// sooner than this: a retransmission timer has 200 ms or more, a tail loss probe 2 ms (RFC 8985).
const COPY_NS: u64 = 1_000_000;

/// Packets remembered: as many as 10 Gbit/s has in [`COPY_NS`], four times over. A newer packet
/// replaces an older one in the same place; then a copy of the older one is not recognized.
const REMEMBERED: usize = 1 << 12;

/// The checksum within a TCP header. Of two copies one may have been taken before the card filled
/// it in.
const CHECKSUM: core::ops::Range<usize> = 16..18;

/// What the packets of the last moment were.
#[derive(Debug)]
pub(super) struct Copies {
    /// Fingerprint and time.
    recent: Vec<(u64, u64)>,
}

impl Default for Copies {
    fn default() -> Self {
        Self {
            recent: vec![(0, u64::MAX); REMEMBERED],
        }
    }
}

impl Copies {
    /// True if a packet of this fingerprint came within [`COPY_NS`].
    pub(super) fn is_copy(&mut self, fingerprint: u64, stamp_ns: u64) -> bool {
        let place = &mut self.recent[fingerprint as usize % REMEMBERED];
        let before = std::mem::replace(place, (fingerprint, stamp_ns));
        before.0 == fingerprint && before.1.abs_diff(stamp_ns) <= COPY_NS && before.1 != u64::MAX
    }
}

/// A hash of what copies of a segment have in common, and segments sent one after the other do not:
/// addresses, the identification of IPv4 (RFC 6864), length, and the TCP header without its
/// checksum. `None` if the segment may be sent again at once without a difference: it has no
/// identification and no payload. Hosts answer each of several segments with the same RST.
///
/// `header` is the captured part of the TCP header and what follows it.
pub(super) fn fingerprint(packet: &TcpPacket, ip: &[u8], header: &[u8]) -> Option<u64> {
    let identification = match packet.v4 {
        true => ip
            .get(4..6)
            .filter(|identification| *identification != [0, 0]),
        false => None,
    };
    if identification.is_none() && packet.payload_len() == 0 {
        return None;
    }
    let end = (usize::from(packet.payload_at) - usize::from(packet.tcp_at)).min(header.len());
    let mut fields = [0u8; 128];
    let mut at = 0;
    let mut add = |bytes: &[u8]| {
        fields[at..at + bytes.len()].copy_from_slice(bytes);
        at += bytes.len();
    };
    let FlowKey { src, dst } = packet.key;
    add(&src.addr.0);
    add(&dst.addr.0);
    add(&(packet.payload_len() as u64).to_le_bytes());
    add(identification.unwrap_or_default());
    // At most 60 bytes: 15 words.
    add(&header[..end.min(CHECKSUM.start)]);
    add(header.get(CHECKSUM.end..end).unwrap_or_default());
    Some(hash64(&fields[..at]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_comes_within_a_millisecond() {
        let mut copies = Copies::default();
        assert!(!copies.is_copy(7, 5));
        assert!(copies.is_copy(7, 5 + COPY_NS));
        assert!(!copies.is_copy(7, 6 + 2 * COPY_NS));
        assert!(!copies.is_copy(8, 6 + 2 * COPY_NS));
        // The second interface's clock may be behind.
        assert!(copies.is_copy(7, 6 + COPY_NS));
        assert!(!copies.is_copy(7 + REMEMBERED as u64, 6 + COPY_NS));
        assert!(!copies.is_copy(7, 6 + COPY_NS), "its place was taken");
    }

    #[test]
    fn nothing_is_a_copy_of_no_packet() {
        let mut copies = Copies::default();
        assert!(!copies.is_copy(0, u64::MAX));
        assert!(!copies.is_copy(0, u64::MAX - 1));
    }
}
