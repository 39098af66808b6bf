//! Compares packets translated by the switch with the expected ones.

use fairlead_base::Endpoint;
use fairlead_wire::{Classified, TcpPacket, classify};

use super::edit::Edit;
use super::prepare::Prepared;

/// A difference between a translated packet and the expected one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// The packet's number in the capture.
    pub packet: u64,
    /// The captured client.
    pub client: Endpoint,
    /// What differs.
    pub what: String,
}

/// Maximum differences kept; all are counted.
pub const DIFFERENCES_MAX: usize = 64;

/// Translated packets that were compared.
#[derive(Clone, Debug, Default)]
pub struct Comparison {
    /// From client to server: identical to the captured packet except for addresses, hop limit and
    /// checksum.
    pub forward: u64,
    /// From server to client.
    pub reverse: u64,
    /// Packets that the switch generated from the client's first bytes.
    pub heads: u64,
    /// Packets with numbers of the switch's own, while it held bytes for the server.
    pub not_comparable: u64,
    /// Packets that differ from the expected ones.
    pub different: u64,
    /// The first of them.
    pub differences: Vec<Difference>,
}

impl Comparison {
    /// Keeps a difference.
    pub fn report(&mut self, packet: u64, client: Endpoint, what: String) {
        self.different += 1;
        if self.differences.len() < DIFFERENCES_MAX {
            self.differences.push(Difference {
                packet,
                client,
                what,
            });
        }
    }
}

/// Compares a packet from the switch with the captured one edited by `expected`. `None` if they are
/// equal.
pub fn difference(captured: &Prepared, expected: &Edit, out: &[u8]) -> Option<String> {
    let mut right = captured.bytes.clone();
    expected.apply(&mut right, &captured.header);
    if right == out {
        return None;
    }
    let header = &captured.header;
    if right.len() != out.len() {
        return Some(format!("{} bytes instead of {}", out.len(), right.len()));
    }
    let checksum = usize::from(header.tcp_at) + 16..usize::from(header.tcp_at) + 18;
    let differs = |at: &usize| right[*at] != out[*at];
    let elsewhere = (0..right.len())
        .filter(|at| !checksum.contains(at))
        .find(differs);
    // 0 and 0xffff represent the same sum.
    let zeros = |field: &[u8]| matches!(field, [0, 0] | [0xff, 0xff]);
    let same = zeros(&right[checksum.clone()]) && zeros(&out[checksum.clone()]);
    let at = match elsewhere {
        Some(at) => at,
        None if same => return None,
        None => checksum.start,
    };
    let field = name_of(header, at);
    let show = |bytes: &[u8]| {
        let hex: Vec<String> = bytes
            .iter()
            .skip(at)
            .take(4)
            .map(|b| format!("{b:02x}"))
            .collect();
        hex.join(" ")
    };
    let (got, wanted) = (show(out), show(&right));
    Some(format!("{field}, byte {at}: {got} instead of {wanted}"))
}

/// True when all checksums of a TCP packet are right.
pub fn is_sound(bytes: &[u8]) -> bool {
    match classify(bytes) {
        Ok(Classified::Tcp(header)) => header.checksum_valid(bytes),
        Ok(Classified::Icmp(_)) => true,
        Err(_) => false,
    }
}

fn name_of(header: &TcpPacket, at: usize) -> &'static str {
    let tcp_at = usize::from(header.tcp_at);
    if at < tcp_at {
        return "the IP header";
    }
    match at - tcp_at {
        0..4 => "the ports",
        4..8 => "the sequence number",
        8..12 => "the acknowledgement number",
        12 => "the data offset",
        13 => "the flags",
        14..16 => "the window",
        16..18 => "the checksum",
        18..20 => "the urgent pointer",
        _ if at < usize::from(header.payload_at) => "the options",
        _ => "the payload",
    }
}

#[cfg(test)]
mod tests {
    use fairlead_testkit::{endpoint, segment, tcp};

    use super::super::edit::key;
    use super::super::prepare::Repairs;
    use super::*;

    fn captured() -> (Prepared, Edit) {
        let packet = segment(endpoint("192.0.2.1:1"), endpoint("192.0.2.2:2"))
            .timestamps(1, 2)
            .payload("hello")
            .packet();
        let prepared = Prepared {
            header: tcp(&packet),
            bytes: packet.bytes,
            missing: 0,
            repairs: Repairs::default(),
        };
        let expected = Edit {
            hops: 1,
            seq_add: 3,
            ..Edit::of_key(key(endpoint("10.0.0.1:3"), endpoint("10.0.0.2:4")))
        };
        (prepared, expected)
    }

    #[test]
    fn every_byte_is_compared_and_named() {
        let (captured, expected) = captured();
        let mut right = captured.bytes.clone();
        expected.apply(&mut right, &captured.header);
        assert_eq!(difference(&captured, &expected, &right), None);
        for (at, name) in [
            (0, "the IP header"),
            (8, "the IP header"),
            (20, "the ports"),
            (24, "the sequence number"),
            (31, "the acknowledgement number"),
            (32, "the data offset"),
            (33, "the flags"),
            (34, "the window"),
            (36, "the checksum"),
            (39, "the urgent pointer"),
            (44, "the options"),
            (56, "the payload"),
        ] {
            let mut wrong = right.clone();
            wrong[at] ^= 1;
            let what = difference(&captured, &expected, &wrong).expect(name);
            assert!(what.starts_with(name), "{what}");
            // If the checksum differs as well, the field that caused it is named.
            if at != 36 {
                wrong[36] ^= 1;
                let what = difference(&captured, &expected, &wrong).expect(name);
                assert!(what.starts_with(name), "{what}");
            }
        }
        right.push(0);
        let longer = difference(&captured, &expected, &right).unwrap();
        assert_eq!(longer, "58 bytes instead of 57");
    }

    #[test]
    fn both_forms_of_a_zero_checksum_are_accepted() {
        let (captured, expected) = captured();
        let mut right = captured.bytes.clone();
        expected.apply(&mut right, &captured.header);
        let mut zero = captured;
        // A checksum that becomes zero by the edit.
        for sum in 0..=u16::MAX {
            zero.bytes[36..38].copy_from_slice(&sum.to_be_bytes());
            let mut out = zero.bytes.clone();
            expected.apply(&mut out, &zero.header);
            if matches!(out[36..38], [0, 0] | [0xff, 0xff]) {
                for form in [[0, 0], [0xff, 0xff]] {
                    out[36..38].copy_from_slice(&form);
                    assert_eq!(difference(&zero, &expected, &out), None);
                }
                return;
            }
        }
        panic!("no such checksum");
    }

    #[test]
    fn all_differences_are_counted_and_some_kept() {
        let mut comparison = Comparison::default();
        for packet in 0..1_000 {
            comparison.report(packet, endpoint("192.0.2.1:1"), "x".to_owned());
        }
        assert_eq!(comparison.different, 1_000);
        assert_eq!(comparison.differences.len(), DIFFERENCES_MAX);
    }
}
