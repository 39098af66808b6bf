//! Rewrites the headers of a captured TCP packet.
//!
//! Deliberately independent of the switch's translation code. It re-addresses packets before they
//! enter the switch, and produces the expected packets that the switch's are compared with
//! ([`super::check`]). A bug in either shows as a difference. It is written for clarity, not for
//! throughput.

use fairlead_base::{Endpoint, FlowKey};
use fairlead_wire::{TcpFlags, TcpPacket};

const KIND_END: u8 = 0;
const KIND_NOP: u8 = 1;
const KIND_SACK: u8 = 5;
const KIND_TIMESTAMPS: u8 = 8;

/// An edit of a packet. Numbers are added modulo 2³².
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Edit {
    /// New addresses and ports, of the packet's own family.
    pub key: FlowKey,
    /// Added to the sequence number.
    pub seq_add: u32,
    /// Added to the acknowledgement number and to the edges of SACK blocks.
    pub ack_add: u32,
    /// Left shift of the window field, right if negative.
    pub window_shift: i8,
    /// Added to the timestamp value.
    pub ts_value_add: u32,
    /// Added to the timestamp echo.
    pub ts_echo_add: u32,
    /// Subtracted from the hop limit.
    pub hops: u8,
}

impl Edit {
    /// Changes only addresses and ports.
    pub fn of_key(key: FlowKey) -> Self {
        Self {
            key,
            seq_add: 0,
            ack_add: 0,
            window_shift: 0,
            ts_value_add: 0,
            ts_echo_add: 0,
            hops: 0,
        }
    }

    /// Rewrites a packet with headers `header`. The TCP checksum is updated incrementally: it is
    /// correct afterwards if it was before, even if the end of the packet was not captured.
    pub fn apply(&self, bytes: &mut [u8], header: &TcpPacket) {
        let tcp_at = usize::from(header.tcp_at);
        let payload_at = usize::from(header.payload_at);
        debug_assert!(payload_at <= bytes.len() && tcp_at + 20 <= payload_at);
        let before = covered(bytes, header, tcp_at, payload_at);
        self.rewrite_ip(bytes, header, tcp_at);
        self.rewrite_tcp(&mut bytes[tcp_at..payload_at], header.flags);
        let after = covered(bytes, header, tcp_at, payload_at);
        let field = &mut bytes[tcp_at + 16..tcp_at + 18];
        let old = u16::from_be_bytes([field[0], field[1]]);
        // RFC 1624, equation 3, with the whole header as one field.
        let new = !folded(u32::from(!old) + u32::from(!before) + u32::from(after));
        field.copy_from_slice(&new.to_be_bytes());
    }

    fn rewrite_ip(&self, bytes: &mut [u8], header: &TcpPacket, tcp_at: usize) {
        let (src, dst) = (&self.key.src.addr, &self.key.dst.addr);
        debug_assert!(src.is_v4() == header.v4 && dst.is_v4() == header.v4);
        if header.v4 {
            bytes[8] = bytes[8].saturating_sub(self.hops);
            bytes[12..16].copy_from_slice(&src.v4_octets());
            bytes[16..20].copy_from_slice(&dst.v4_octets());
            bytes[10..12].fill(0);
            let checksum = !sum(&bytes[..tcp_at]);
            bytes[10..12].copy_from_slice(&checksum.to_be_bytes());
        } else {
            bytes[7] = bytes[7].saturating_sub(self.hops);
            bytes[8..24].copy_from_slice(&src.0);
            bytes[24..40].copy_from_slice(&dst.0);
        }
    }

    fn rewrite_tcp(&self, tcp: &mut [u8], flags: TcpFlags) {
        tcp[0..2].copy_from_slice(&self.key.src.port.to_be_bytes());
        tcp[2..4].copy_from_slice(&self.key.dst.port.to_be_bytes());
        add(&mut tcp[4..8], self.seq_add);
        let ack_add = if flags.contains(TcpFlags::ACK) {
            self.ack_add
        } else {
            0
        };
        add(&mut tcp[8..12], ack_add);
        let window = shifted(u16::from_be_bytes([tcp[14], tcp[15]]), self.window_shift);
        tcp[14..16].copy_from_slice(&window.to_be_bytes());
        let mut options = &mut tcp[20..];
        while let [kind, ..] = *options {
            if kind == KIND_END {
                break;
            }
            if kind == KIND_NOP {
                options = &mut options[1..];
                continue;
            }
            let Some(&length) = options.get(1) else { break };
            let length = usize::from(length);
            if length < 2 || length > options.len() {
                break;
            }
            let (option, rest) = options.split_at_mut(length);
            match (kind, length) {
                (KIND_TIMESTAMPS, 10) => {
                    add(&mut option[2..6], self.ts_value_add);
                    add(&mut option[6..10], self.ts_echo_add);
                }
                (KIND_SACK, _) => {
                    for edge in option[2..].chunks_exact_mut(4) {
                        add(edge, self.ack_add);
                    }
                }
                _ => {}
            }
            options = rest;
        }
    }
}

/// A flow key from its two endpoints.
pub fn key(src: Endpoint, dst: Endpoint) -> FlowKey {
    FlowKey { src, dst }
}

/// A window field at another scale. Rounding never closes an open window.
pub fn shifted(window: u16, shift: i8) -> u16 {
    if window == 0 {
        return 0;
    }
    let exact = f64::from(window) * f64::from(shift).exp2();
    exact.clamp(1.0, f64::from(u16::MAX)) as u16
}

fn add(field: &mut [u8], more: u32) {
    let mut four = [0; 4];
    four.copy_from_slice(field);
    let sum = u32::from_be_bytes(four).wrapping_add(more);
    field.copy_from_slice(&sum.to_be_bytes());
}

/// The checksum of the parts that may change: addresses, and the header without its checksum.
fn covered(bytes: &[u8], header: &TcpPacket, tcp_at: usize, payload_at: usize) -> u16 {
    let addresses = if header.v4 { 12..20 } else { 8..40 };
    let tcp = &bytes[tcp_at..payload_at];
    let parts = [sum(&bytes[addresses]), sum(&tcp[..16]), sum(&tcp[18..])];
    folded(parts.into_iter().map(u32::from).sum())
}

/// The ones' complement sum of 16-bit words (RFC 1071).
fn sum(bytes: &[u8]) -> u16 {
    let words = bytes.chunks(2).map(|pair| {
        let low = pair.get(1).copied().unwrap_or(0);
        u32::from(u16::from_be_bytes([pair[0], low]))
    });
    folded(words.sum())
}

fn folded(mut sum: u32) -> u16 {
    while sum > 0xffff {
        sum = (sum >> 16) + (sum & 0xffff);
    }
    sum as u16
}

#[cfg(test)]
mod tests {
    use fairlead_testkit::{Segment, endpoint, segment, tcp};
    use fairlead_wire::options;
    use proptest::prelude::*;

    use super::*;

    fn edited(segment: &Segment, edit: &Edit) -> Vec<u8> {
        let packet = segment.packet();
        let header = tcp(&packet);
        let mut bytes = packet.bytes;
        edit.apply(&mut bytes, &header);
        bytes
    }

    #[test]
    fn exactly_the_requested_fields_change() {
        let ends = [
            (
                "192.0.2.1:4000",
                "192.0.2.2:80",
                "10.0.0.1:5000",
                "10.0.0.2:8080",
            ),
            (
                "[2001:db8::1]:4000",
                "[2001:db8::2]:80",
                "[2001:db8:1::1]:5000",
                "[2001:db8:1::2]:8080",
            ),
        ];
        for (src, dst, new_src, new_dst) in ends {
            let [src, dst, new_src, new_dst] = [src, dst, new_src, new_dst].map(endpoint);
            let edit = Edit {
                seq_add: 5,
                ack_add: u32::MAX,
                window_shift: -2,
                ts_value_add: 7,
                ts_echo_add: 9,
                hops: 1,
                ..Edit::of_key(key(new_src, new_dst))
            };
            let begin = segment(src, dst).seq(u32::MAX).ack(0).window(401).ttl(64);
            let end = segment(new_src, new_dst)
                .seq(4)
                .ack(u32::MAX)
                .window(100)
                .ttl(63);
            let given = begin.clone().timestamps(100, 200).payload("odd");
            let wanted = end.clone().timestamps(107, 209).payload("odd");
            assert_eq!(edited(&given, &edit), wanted.packet().bytes);
            let given = begin.sack(&[(10, 20), (0, 1)]).payload("x");
            let wanted = end.sack(&[(9, 19), (u32::MAX, 0)]).payload("x");
            assert_eq!(edited(&given, &edit), wanted.packet().bytes);
        }
    }

    #[test]
    fn an_acknowledgement_without_ack_flag_is_unchanged() {
        let (src, dst) = (endpoint("192.0.2.1:1"), endpoint("192.0.2.2:2"));
        let edit = Edit {
            ack_add: 9,
            ..Edit::of_key(key(src, dst))
        };
        let reset = segment(src, dst).flags(TcpFlags::RST).ack(77);
        assert_eq!(edited(&reset, &edit), reset.packet().bytes);
    }

    #[test]
    fn a_wrong_checksum_stays_wrong_by_the_same_amount() {
        let (src, dst) = (endpoint("192.0.2.1:1"), endpoint("192.0.2.2:2"));
        let packet = segment(src, dst).payload("abc").packet();
        let header = tcp(&packet);
        let edit = Edit {
            seq_add: 0x1234_5678,
            ..Edit::of_key(key(dst, src))
        };
        let mut damaged = packet.bytes;
        let last = damaged.len() - 1;
        damaged[last] ^= 0x40;
        edit.apply(&mut damaged, &header);
        let Ok(fairlead_wire::Classified::Tcp(header)) = fairlead_wire::classify(&damaged) else {
            panic!("still a packet")
        };
        assert!(!header.checksum_valid(&damaged));
        damaged[last] ^= 0x40;
        assert!(header.checksum_valid(&damaged));
    }

    #[test]
    fn windows_are_scaled_like_the_switch_does() {
        for window in [0, 1, 2, 63, 64, 100, 8_192, 40_000, u16::MAX] {
            for shift in -14..=14 {
                let other = fairlead_tcp::window::rescale(window, shift);
                assert_eq!(shifted(window, shift), other, "{window} by {shift}");
            }
        }
    }

    proptest! {
        #[test]
        fn any_options_are_survived(
            options in proptest::collection::vec(any::<u8>(), 0..40),
            add in any::<u32>(),
        ) {
            let mut options = options;
            options.resize(options.len().next_multiple_of(4), 0);
            let (src, dst) = (endpoint("192.0.2.1:1"), endpoint("192.0.2.2:2"));
            let packet = segment(src, dst).options(&options).packet();
            let header = tcp(&packet);
            let edit = Edit {
                ack_add: add,
                ts_value_add: add,
                ts_echo_add: add,
                ..Edit::of_key(key(src, dst))
            };
            let mut bytes = packet.bytes;
            edit.apply(&mut bytes, &header);
            prop_assert!(header.checksum_valid(&bytes));
            let kinds = |bytes: &[u8]| -> Vec<(u8, usize)> {
                options::walk(header.options(bytes)).map(|(kind, at, _)| (kind, at)).collect()
            };
            let before = segment(src, dst).options(&options).packet().bytes;
            prop_assert_eq!(kinds(&bytes), kinds(&before));
        }
    }
}
