//! Faults put into the switch's output on purpose, one rule broken at a time, to see that the
//! oracles notice. A check that nothing can fail proves nothing.

use smoltcp::wire::{Ipv4Packet, Ipv6Packet, TcpPacket, TcpSeqNumber};

use crate::net::segment::{ACK, FIN, SYN, Segment, seal};

/// A rule that is broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mutant {
    /// Sequence numbers of segments with payload are one too high.
    SeqAhead,
    /// Acknowledgements are one too high.
    AckAhead,
    /// One byte of the payload is another.
    OtherByte,
    /// One byte of the payload is another, and the checksum that of the right one.
    BadChecksum,
    /// Windows are twice as wide as they were said to be.
    WiderWindow,
    /// Timestamp values are too high.
    ValueAhead,
    /// Timestamp echoes are too high.
    EchoAhead,
    /// SACK edges are too high.
    SackAhead,
    /// The source port is the next one.
    OtherSource,
    /// FINs are lost on the way through.
    NoFin,
    /// Hops are not counted.
    HopsKept,
    /// Segments are longer than the receiver's MSS.
    MssIgnored,
}

impl Mutant {
    /// All of them.
    pub const ALL: [Self; 12] = [
        Self::SeqAhead,
        Self::AckAhead,
        Self::OtherByte,
        Self::BadChecksum,
        Self::WiderWindow,
        Self::ValueAhead,
        Self::EchoAhead,
        Self::SackAhead,
        Self::OtherSource,
        Self::NoFin,
        Self::HopsKept,
        Self::MssIgnored,
    ];

    /// Changes a packet that leaves the switch, if it is one of those that this mutant changes.
    pub(crate) fn apply(self, bytes: &mut Vec<u8>) {
        let Ok(segment) = Segment::read(bytes) else {
            return;
        };
        if segment.has(SYN) {
            return;
        }
        let options = segment.tcp_at + 20..segment.payload_at;
        let has_payload = segment.end > segment.payload_at;
        match self {
            Self::SeqAhead if has_payload => {
                let seq = TcpSeqNumber((segment.seq + 1).0 as i32);
                tcp(bytes, &segment).set_seq_number(seq);
            }
            Self::AckAhead if segment.has(ACK) => {
                let ack = TcpSeqNumber((segment.ack + 1).0 as i32);
                tcp(bytes, &segment).set_ack_number(ack);
            }
            Self::OtherByte if has_payload => bytes[segment.end - 1] ^= 0x20,
            Self::BadChecksum if has_payload => {
                bytes[segment.end - 1] ^= 0x20;
                return;
            }
            Self::WiderWindow => {
                let window = segment.window.saturating_mul(2);
                tcp(bytes, &segment).set_window_len(window);
            }
            Self::ValueAhead => add_to_option(&mut bytes[options], 8, 0, 1 << 20),
            Self::EchoAhead => add_to_option(&mut bytes[options], 8, 4, 1 << 20),
            Self::SackAhead => add_to_option(&mut bytes[options], 5, 4, 1 << 20),
            Self::OtherSource => {
                let port = segment.src.port.wrapping_add(1).max(1);
                tcp(bytes, &segment).set_src_port(port);
            }
            Self::NoFin if segment.has(FIN) => tcp(bytes, &segment).set_fin(false),
            Self::HopsKept => {
                let hops = segment.hop_limit.saturating_add(1);
                if bytes[0] >> 4 == 4 {
                    Ipv4Packet::new_unchecked(&mut bytes[..]).set_hop_limit(hops);
                } else {
                    Ipv6Packet::new_unchecked(&mut bytes[..]).set_hop_limit(hops);
                }
            }
            Self::MssIgnored if has_payload => {
                let longer = bytes.len() + 9_000;
                bytes.resize(longer, 0);
                if bytes[0] >> 4 == 4 {
                    Ipv4Packet::new_unchecked(&mut bytes[..]).set_total_len(longer as u16);
                } else {
                    Ipv6Packet::new_unchecked(&mut bytes[..]).set_payload_len(longer as u16 - 40);
                }
            }
            _ => return,
        }
        seal(bytes);
    }
}

fn tcp<'a>(bytes: &'a mut [u8], segment: &Segment) -> TcpPacket<&'a mut [u8]> {
    TcpPacket::new_unchecked(&mut bytes[segment.tcp_at..segment.end])
}

/// Adds to the 32-bit word at `at` of the body of the first option of this kind.
fn add_to_option(options: &mut [u8], kind: u8, at: usize, add: u32) {
    let mut from = 0;
    while let Some(&found) = options.get(from) {
        let len = match found {
            0 => return,
            1 => 1,
            _ => usize::from(options.get(from + 1).copied().unwrap_or(0)).max(2),
        };
        if found == kind
            && let Some(word) = options.get_mut(from + 2 + at..from + 6 + at)
        {
            let value = u32::from_be_bytes([word[0], word[1], word[2], word[3]]);
            word.copy_from_slice(&value.wrapping_add(add).to_be_bytes());
            return;
        }
        from += len;
    }
}
