//! What a virtual device does for the switch: merges arriving segments into super-packets, leaves
//! checksums to be finished, and cuts and finishes what leaves.

use fairlead_base::{Checksum, Gso, PACKET_BYTES_MAX, Packet};
use smoltcp::wire::{IpAddress, IpProtocol, Ipv4Packet, Ipv6Packet, TcpPacket, checksum};

use super::segment::{ACK, FIN, PSH, Segment, ip_pair, seal};
use crate::dice::Dice;

/// Merges neighbours that carry on from each other, as generic receive offload does; some of the
/// rest get an unfinished or a vouched-for checksum.
pub(crate) fn merge(arrived: Vec<Vec<u8>>, dice: &mut Dice) -> Vec<Packet> {
    let mut merged: Vec<Super> = Vec::with_capacity(arrived.len());
    for bytes in arrived {
        let segment = Segment::read(&bytes).ok();
        if let (Some(last), Some(next)) = (merged.last_mut(), segment)
            && last.takes(&next, &bytes)
        {
            last.append(&next, &bytes);
            continue;
        }
        merged.push(Super {
            bytes,
            head: segment,
            segment_bytes: None,
            closed: false,
        });
    }
    merged
        .into_iter()
        .map(|packet| packet.finish(dice))
        .collect()
}

struct Super {
    bytes: Vec<u8>,
    /// The first segment, with its end moved as others are appended.
    head: Option<Segment>,
    segment_bytes: Option<usize>,
    closed: bool,
}

impl Super {
    fn takes(&self, next: &Segment, bytes: &[u8]) -> bool {
        let Some(head) = &self.head else { return false };
        let unit = self.segment_bytes.unwrap_or(head.end - head.payload_at);
        let payload = next.end - next.payload_at;
        !self.closed
            && payload > 0
            && payload <= unit
            && self.bytes.len() + payload <= PACKET_BYTES_MAX
            && (head.src, head.dst) == (next.src, next.dst)
            && head.flags == ACK
            && next.flags & !PSH == ACK
            && head.ack == next.ack
            && head.window == next.window
            && head.hop_limit == next.hop_limit
            && head.seq + (head.end - head.payload_at) as u32 == next.seq
            && head.tcp_at == next.tcp_at
            && self.bytes[head.tcp_at + 20..head.payload_at]
                == bytes[next.tcp_at + 20..next.payload_at]
    }

    fn append(&mut self, next: &Segment, bytes: &[u8]) {
        let Some(head) = &mut self.head else { return };
        let unit = *self.segment_bytes.get_or_insert(head.end - head.payload_at);
        self.bytes.truncate(head.end);
        self.bytes.extend_from_slice(next.payload(bytes));
        head.end = self.bytes.len();
        self.bytes[head.tcp_at + 13] |= next.flags & PSH;
        self.closed = next.flags & PSH != 0 || next.end - next.payload_at < unit;
    }

    fn finish(mut self, dice: &mut Dice) -> Packet {
        let mut checksum = Checksum::Complete;
        if self.segment_bytes.is_some() {
            set_ip_len(&mut self.bytes);
            checksum = Checksum::Partial;
        } else if self.head.is_some() {
            checksum = dice.weighted(&[
                (6, Checksum::Complete),
                (2, Checksum::Verified),
                (2, Checksum::Partial),
            ]);
        }
        if checksum == Checksum::Partial
            && let Some((at, sum)) = owed_sum(&self.bytes)
        {
            self.bytes[at..at + 2].copy_from_slice(&sum.to_be_bytes());
        }
        let gso = self.segment_bytes.map(|bytes| Gso {
            segment_bytes: bytes as u16,
        });
        Packet {
            bytes: self.bytes,
            checksum,
            gso,
        }
    }
}

fn set_ip_len(bytes: &mut [u8]) {
    let len = bytes.len() as u16;
    if bytes[0] >> 4 == 4 {
        let mut ip = Ipv4Packet::new_unchecked(bytes);
        ip.set_total_len(len);
        ip.fill_checksum();
    } else {
        Ipv6Packet::new_unchecked(bytes).set_payload_len(len - 40);
    }
}

/// Where the TCP checksum is, and the sum of the pseudo-header that an unfinished one holds.
fn owed_sum(bytes: &[u8]) -> Option<(usize, u16)> {
    let bounds = ip_pair(bytes).ok()?;
    let len = (bounds.end - bounds.payload_at) as u32;
    let sum = pseudo_sum(&bounds.src, &bounds.dst, len);
    (bounds.protocol == IpProtocol::Tcp).then_some((bounds.payload_at + 16, sum))
}

fn pseudo_sum(src: &IpAddress, dst: &IpAddress, len: u32) -> u16 {
    checksum::pseudo_header(src, dst, IpProtocol::Tcp, len)
}

/// Does what the device owes on a packet that leaves: finishes the checksum, cuts a super-packet.
/// The error says what a real device could not have worked with.
pub(crate) fn split(packet: &Packet) -> Result<Vec<Vec<u8>>, String> {
    if packet.checksum != Checksum::Partial {
        if packet.gso.is_some() {
            return Err("a super-packet whose checksum is not left to the device".to_owned());
        }
        return Ok(vec![packet.bytes.clone()]);
    }
    let (at, owed) = owed_sum(&packet.bytes).ok_or("an unfinished checksum, and not TCP")?;
    let field = u16::from_be_bytes([packet.bytes[at], packet.bytes[at + 1]]);
    // Zero has two forms in ones' complement, hence the remainders.
    if field % u16::MAX != owed % u16::MAX {
        return Err(format!(
            "unfinished checksum {field:#06x}, pseudo-header sums to {owed:#06x}"
        ));
    }
    let head = Segment::read_unsummed(&packet.bytes)?;
    let Some(gso) = packet.gso else {
        let mut bytes = packet.bytes.clone();
        seal(&mut bytes);
        return Ok(vec![bytes]);
    };
    let unit = usize::from(gso.segment_bytes);
    if unit == 0 || head.flags & !(ACK | PSH | FIN) != 0 {
        return Err(format!(
            "a super-packet of {unit}-byte segments, flags {:#x}",
            head.flags
        ));
    }
    let payload = head.payload(&packet.bytes);
    let count = payload.len().div_ceil(unit).max(1);
    let mut cut = Vec::with_capacity(count);
    for (number, piece) in payload.chunks(unit).enumerate() {
        let mut bytes = packet.bytes[..head.payload_at].to_vec();
        bytes.extend_from_slice(piece);
        if number + 1 < count {
            bytes[head.tcp_at + 13] &= !(PSH | FIN);
        }
        set_ip_len(&mut bytes);
        let seq = head.seq + (number * unit) as u32;
        let mut tcp = TcpPacket::new_unchecked(&mut bytes[head.tcp_at..]);
        tcp.set_seq_number(smoltcp::wire::TcpSeqNumber(seq.0 as i32));
        seal(&mut bytes);
        cut.push(bytes);
    }
    Ok(cut)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::segment::tests::packet;

    fn run(v6: bool, lens: &[usize]) -> Vec<Vec<u8>> {
        let mut seq = 1_000;
        lens.iter()
            .map(|&len| {
                let bytes = packet(v6, seq, ACK, &vec![len as u8; len]);
                seq += len as u32;
                bytes
            })
            .collect()
    }

    #[test]
    fn what_was_merged_is_cut_into_the_same_packets() {
        for v6 in [false, true] {
            let sent = run(v6, &[100, 100, 100, 40, 100, 7]);
            let merged = merge(sent.clone(), &mut Dice::new(1, "merge"));
            assert_eq!(merged.len(), 2);
            assert_eq!(merged[0].gso, Some(Gso { segment_bytes: 100 }));
            let back: Vec<_> = merged.iter().flat_map(|one| split(one).unwrap()).collect();
            assert_eq!(back, sent);
        }
    }

    #[test]
    fn holes_and_bad_checksums_are_not_merged() {
        let mut sent = run(false, &[100, 100, 100, 100]);
        sent.remove(1);
        let last = sent.len() - 1;
        let end = sent[last].len() - 1;
        sent[last][end] ^= 1;
        let merged = merge(sent.clone(), &mut Dice::new(1, "merge"));
        assert_eq!(merged.len(), 3);
        assert_eq!(merged[2].bytes, sent[2]);
        assert_eq!(merged[2].checksum, Checksum::Complete);
    }

    #[test]
    fn a_wrong_unfinished_checksum_is_refused() {
        let mut super_packet = merge(run(false, &[100, 100]), &mut Dice::new(1, "merge")).remove(0);
        assert!(split(&super_packet).is_ok());
        super_packet.bytes[20 + 16] ^= 1;
        assert!(
            split(&super_packet)
                .unwrap_err()
                .contains("unfinished checksum")
        );
    }
}
