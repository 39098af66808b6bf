//! UDP to a listening address: nobody takes it, and the sender hears so (RFC 1122, section 4.1.3.1;
//! RFC 4443, section 3.1), within a rate. A client that tries HTTP/3 first falls back at once.

use core::time::Duration;

use fairlead_base::{Address, Checksum, DropReason, Instant, Packet};
use fairlead_wire::build;

use super::Switch;
use crate::Verdict;

/// Messages at once, and the time until there is one more (RFC 1812, section 4.3.2.8).
const BURST: u32 = 50;
const PAUSE: Duration = Duration::from_millis(10);

const UDP: u8 = 17;
const IPV4_BYTES: usize = 20;
const IPV6_BYTES: usize = 40;
/// Port unreachable, by family.
const CODES: [u8; 2] = [3, 4];

/// How many more messages may be sent.
#[derive(Debug)]
pub(super) struct Rate {
    left: u32,
    since: Instant,
}

impl Default for Rate {
    fn default() -> Self {
        Self {
            left: BURST,
            since: Instant::ZERO,
        }
    }
}

impl Rate {
    fn take(&mut self, now: Instant) -> bool {
        let more = now.since(self.since).as_millis() / PAUSE.as_millis();
        let more = u32::try_from(more).unwrap_or(u32::MAX);
        if more > 0 {
            self.left = self.left.saturating_add(more).min(BURST);
            self.since = now;
        }
        let any = self.left > 0;
        self.left = self.left.saturating_sub(1);
        any
    }
}

/// Source and destination of a UDP packet whose IP header is valid; `None` for another one, or a
/// source that must not be answered.
fn ends(bytes: &[u8]) -> Option<(Address, Address)> {
    let (src, dst) = match bytes.first()? >> 4 {
        4 => {
            let header: &[u8; IPV4_BYTES] = bytes.first_chunk()?;
            if header[9] != UDP {
                return None;
            }
            let [.., a, b, c, d, e, f, g, h] = *header;
            (Address::v4([a, b, c, d]), Address::v4([e, f, g, h]))
        }
        _ => {
            let header: &[u8; IPV6_BYTES] = bytes.first_chunk()?;
            if header[6] != UDP {
                return None;
            }
            let src = Address::v6(*header[8..].first_chunk()?);
            (src, Address::v6(*header[24..].first_chunk()?))
        }
    };
    let [first, ..] = src.v4_octets();
    let is_fit = match src.is_v4() {
        true => first != 0 && first != 127 && first < 224,
        false => src.0[0] != 0xff && src.0[..12] != [0; 12],
    };
    (is_fit && src.is_v4() == dst.is_v4()).then_some((src, dst))
}

impl Switch {
    /// Handles a packet that is neither TCP nor ICMP, and whose IP header is valid.
    pub fn handle_other_protocol(&mut self, now: Instant, packet: &mut Packet) -> Verdict {
        self.counts.drops.add(DropReason::NotTcp);
        let dropped = Verdict::Drop(DropReason::NotTcp);
        let Some((src, dst)) = ends(&packet.bytes) else {
            return dropped;
        };
        let is_ours = self.listen_addresses.contains(&dst);
        if !is_ours || self.is_own_address(&src) || !self.unreachable.take(now) {
            return dropped;
        }
        let mut answer = Vec::new();
        let code = CODES[usize::from(!src.is_v4())];
        build::emit_icmp_unreachable(&dst, &src, code, &packet.bytes, &mut answer);
        packet.clear();
        packet.bytes.extend_from_slice(&answer);
        packet.checksum = Checksum::Complete;
        Verdict::Transmit
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_is_answered_and_then_a_rate() {
        let mut rate = Rate::default();
        let start = Instant::from_millis(1_000_000);
        let taken = (0..200).filter(|_| rate.take(start)).count();
        assert_eq!(taken, BURST as usize);
        let later = start + Duration::from_millis(100);
        let taken = (0..200).filter(|_| rate.take(later)).count();
        assert_eq!(taken, 10);
    }

    #[test]
    fn only_udp_of_a_real_sender_has_ends() {
        let mut packet = [0_u8; 28];
        (packet[0], packet[9]) = (0x45, UDP);
        packet[12..20].copy_from_slice(&[10, 1, 0, 9, 10, 1, 0, 3]);
        let expected = (Address::v4([10, 1, 0, 9]), Address::v4([10, 1, 0, 3]));
        assert_eq!(ends(&packet), Some(expected));
        for (at, value) in [(9, 6), (12, 0), (12, 224), (12, 127)] {
            let mut other = packet;
            other[at] = value;
            assert_eq!(ends(&other), None, "byte {at}");
        }
        for length in 0..20 {
            assert_eq!(ends(&packet[..length]), None);
        }
    }
}
