//! Restores captured packets to what they would be on a wire.
//!
//! A machine that captures its own packets sees them before its NIC computes checksums and segments
//! them, and many captures keep only the first bytes of each packet. What can be corrected is
//! corrected and counted.

use std::collections::HashMap;

use fairlead_base::{Address, DropReason, PACKET_BYTES_MAX};
use fairlead_driver_pcap::IpBytes;
use fairlead_wire::{Classified, TcpPacket, checksum, classify};

/// A TCP packet ready for the replay.
#[derive(Clone, Debug)]
pub struct Prepared {
    /// The IP packet at full length; uncaptured bytes are zero.
    pub bytes: Vec<u8>,
    /// Its headers.
    pub header: TcpPacket,
    /// Number of uncaptured bytes at its end. If not 0, its checksum is that of the packet on the
    /// wire.
    pub missing: usize,
    /// What was corrected.
    pub repairs: Repairs,
}

/// Corrections of a packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Repairs {
    /// The IP header's length or checksum.
    pub ip: bool,
    /// The TCP checksum.
    pub tcp: bool,
}

/// Why a captured IP packet is not replayed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Unfit {
    /// It is not a valid TCP packet.
    Broken(DropReason),
    /// ICMP.
    Icmp,
    /// Its headers were not captured completely.
    HeadersSnapped,
    /// Longer than any driver supports.
    TooLong,
}

/// Senders with packets captured before checksum offload. A sender is one of them if most of its
/// checksums are wrong; on a wire, hardly any are.
#[derive(Clone, Debug, Default)]
pub struct Senders {
    counts: HashMap<Address, Checksums>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Checksums {
    right: u64,
    wrong: u64,
}

/// Maximum number of senders tracked.
const SENDERS_MAX: usize = 1 << 18;

impl Senders {
    /// Counts a packet's checksum, if the packet was captured completely.
    pub fn count(&mut self, ip: &IpBytes<'_>) {
        if ip.missing > 0 {
            return;
        }
        let Ok((bytes, header, _)) = whole(ip) else {
            return;
        };
        let sender = header.key.src.addr;
        if self.counts.len() >= SENDERS_MAX && !self.counts.contains_key(&sender) {
            return;
        }
        let counts = self.counts.entry(sender).or_default();
        if header.checksum_valid(&bytes) {
            counts.right += 1;
        } else {
            counts.wrong += 1;
        }
    }

    fn leaves_checksums_out(&self, sender: &Address) -> bool {
        let counts = self.counts.get(sender).copied().unwrap_or_default();
        counts.wrong > counts.right
    }
}

/// Restores a packet.
///
/// # Errors
/// Why it cannot be replayed.
pub fn prepare(ip: &IpBytes<'_>, senders: &Senders) -> Result<Prepared, Unfit> {
    let (mut bytes, header, ip_repaired) = whole(ip)?;
    let mut repairs = Repairs {
        ip: ip_repaired,
        tcp: false,
    };
    if ip.missing == 0 && !header.checksum_valid(&bytes) {
        let segment = usize::from(header.tcp_at)..usize::from(header.end);
        let (src, dst) = (&header.key.src.addr, &header.key.dst.addr);
        let field_at = segment.start + 16;
        let field = u16::from_be_bytes([bytes[field_at], bytes[field_at + 1]]);
        let partial = [segment.len() as u32, 0]
            .map(|length| checksum::tcp_partial(src, dst, length))
            .contains(&field);
        if partial || senders.leaves_checksums_out(src) {
            bytes[field_at..field_at + 2].fill(0);
            let right = checksum::tcp(src, dst, &bytes[segment]);
            bytes[field_at..field_at + 2].copy_from_slice(&right.to_be_bytes());
            repairs.tcp = true;
        }
    }
    Ok(Prepared {
        bytes,
        header,
        missing: ip.missing,
        repairs,
    })
}

/// Corrects length and IP header. Returns true if anything changed.
fn whole(ip: &IpBytes<'_>) -> Result<(Vec<u8>, TcpPacket, bool), Unfit> {
    let captured = ip.bytes.len();
    if captured + ip.missing > PACKET_BYTES_MAX {
        return Err(Unfit::TooLong);
    }
    let mut bytes = Vec::with_capacity(captured + ip.missing);
    bytes.extend_from_slice(ip.bytes);
    bytes.resize(captured + ip.missing, 0);
    let repaired = repair_ip(&mut bytes, captured);
    let header = match classify(&bytes) {
        Ok(Classified::Tcp(header)) => header,
        Ok(Classified::Icmp(_)) => return Err(Unfit::Icmp),
        Err(_) if captured < 40 && ip.missing > 0 => return Err(Unfit::HeadersSnapped),
        Err(reason) => return Err(Unfit::Broken(reason)),
    };
    if captured < usize::from(header.payload_at) {
        return Err(Unfit::HeadersSnapped);
    }
    Ok((bytes, header, repaired))
}

/// Fills in what was left to the NIC: the length of a packet to be segmented, the checksum of an
/// IPv4 header.
fn repair_ip(bytes: &mut [u8], captured: usize) -> bool {
    let total = bytes.len();
    match bytes
        .first()
        .map(|first| (first >> 4, usize::from(first & 15) * 4))
    {
        Some((4, header_len)) if header_len >= 20 && captured >= header_len => {
            let uncut = bytes[2..4] == [0, 0];
            let unsummed =
                bytes[10..12] == [0, 0] && checksum::ipv4_header(&bytes[..header_len]) != 0;
            if uncut {
                bytes[2..4].copy_from_slice(&(total as u16).to_be_bytes());
            }
            if uncut || unsummed {
                bytes[10..12].fill(0);
                let right = checksum::ipv4_header(&bytes[..header_len]);
                bytes[10..12].copy_from_slice(&right.to_be_bytes());
            }
            uncut || unsummed
        }
        Some((6, _)) if captured > 40 && bytes[4..6] == [0, 0] => {
            bytes[4..6].copy_from_slice(&((total - 40) as u16).to_be_bytes());
            true
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use fairlead_testkit::{Segment, endpoint, segment};

    use super::*;

    fn data() -> Segment {
        segment(endpoint("192.0.2.1:1000"), endpoint("192.0.2.2:80")).payload("payload")
    }

    fn ip(bytes: &[u8], missing: usize) -> IpBytes<'_> {
        IpBytes { bytes, missing }
    }

    #[test]
    fn a_valid_packet_is_unchanged() {
        let bytes = data().packet().bytes;
        let prepared = prepare(&ip(&bytes, 0), &Senders::default()).unwrap();
        assert_eq!(prepared.bytes, bytes);
        assert_eq!(
            (prepared.missing, prepared.repairs),
            (0, Repairs::default())
        );
    }

    #[test]
    fn a_checksum_left_to_the_device_is_computed() {
        let sound = data().packet().bytes;
        let mut partial = sound.clone();
        let sum = checksum::tcp_partial(
            &endpoint("192.0.2.1:1").addr,
            &endpoint("192.0.2.2:1").addr,
            (sound.len() - 20) as u32,
        );
        partial[36..38].copy_from_slice(&sum.to_be_bytes());
        let prepared = prepare(&ip(&partial, 0), &Senders::default()).unwrap();
        assert_eq!(prepared.bytes, sound);
        assert!(prepared.repairs.tcp && !prepared.repairs.ip);
    }

    #[test]
    fn a_wrong_checksum_is_corrected_only_for_offloading_senders() {
        let sound = data().packet().bytes;
        let mut wrong = sound.clone();
        wrong[36] ^= 0xff;
        let mut senders = Senders::default();
        senders.count(&ip(&sound, 0));
        senders.count(&ip(&wrong, 0));
        let kept = prepare(&ip(&wrong, 0), &senders).unwrap();
        assert_eq!((kept.bytes, kept.repairs.tcp), (wrong.clone(), false));
        senders.count(&ip(&wrong, 0));
        let repaired = prepare(&ip(&wrong, 0), &senders).unwrap();
        assert_eq!((repaired.bytes, repaired.repairs.tcp), (sound, true));
    }

    #[test]
    fn a_packet_to_be_segmented_gets_its_length() {
        for ends in [
            ("192.0.2.1:1000", "192.0.2.2:80"),
            ("[2001:db8::1]:1000", "[2001:db8::2]:80"),
        ] {
            let long = vec![7u8; 9_000];
            let sound = segment(endpoint(ends.0), endpoint(ends.1))
                .payload(&long)
                .packet()
                .bytes;
            let mut uncut = sound.clone();
            if sound[0] >> 4 == 4 {
                uncut[2..4].fill(0);
                uncut[10..12].fill(0);
            } else {
                uncut[4..6].fill(0);
            }
            let prepared = prepare(&ip(&uncut, 0), &Senders::default()).unwrap();
            assert_eq!(prepared.bytes, sound);
            assert_eq!(
                prepared.repairs,
                Repairs {
                    ip: true,
                    tcp: false
                }
            );
        }
    }

    #[test]
    fn a_snapped_packet_is_filled_up_and_its_checksum_kept() {
        let sound = data().timestamps(1, 2).packet().bytes;
        let headers = 20 + 32;
        let prepared = prepare(&ip(&sound[..headers + 3], 4), &Senders::default()).unwrap();
        assert_eq!(prepared.missing, 4);
        assert_eq!(prepared.bytes[..headers + 3], sound[..headers + 3]);
        assert_eq!(prepared.bytes[headers + 3..], [0; 4]);
        for captured in [0, 10, 20, 39, 40, headers - 1] {
            let cut = prepare(
                &ip(&sound[..captured], sound.len() - captured),
                &Senders::default(),
            );
            assert!(
                matches!(cut, Err(Unfit::HeadersSnapped | Unfit::Broken(_))),
                "{captured}: {cut:?}"
            );
        }
    }

    #[test]
    fn other_packets_have_a_reason() {
        let mut bytes = data().packet().bytes;
        bytes[9] = 17;
        bytes[10..12].fill(0);
        let unfit = prepare(&ip(&bytes, 0), &Senders::default()).unwrap_err();
        assert_eq!(unfit, Unfit::Broken(DropReason::NotTcp));
        let long = ip(&bytes, PACKET_BYTES_MAX);
        assert_eq!(
            prepare(&long, &Senders::default()).unwrap_err(),
            Unfit::TooLong
        );
    }
}
