//! Holds what the switch made of a packet against what it had to make of it.

use fairlead_base::Endpoint;
use fairlead_wire::{Classified, TcpPacket, classify};

use super::edit::Edit;
use super::prepare::Prepared;

/// Where a translated packet is not what it should be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// The packet's number in the capture.
    pub packet: u64,
    /// The captured client.
    pub client: Endpoint,
    /// What differs.
    pub what: String,
}

/// Differences that are kept; all are counted.
pub const DIFFERENCES_MAX: usize = 64;

/// Translated packets that were compared.
#[derive(Clone, Debug, Default)]
pub struct Comparison {
    /// From client to server: equal to what was captured, but for addresses, hop limit, checksum.
    pub forward: u64,
    /// From server to client.
    pub reverse: u64,
    /// Packets that the switch made itself from the client's first bytes.
    pub heads: u64,
    /// Packets with numbers of the switch's own, while it held bytes for the server.
    pub not_comparable: u64,
    /// Packets that are not what they should be.
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

/// Compares a packet that came out of the switch with the captured one under `expected`. `None`
/// when it is right.
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
    let at = right.iter().zip(out).position(|(a, b)| a != b)?;
    let field = name_of(header, at);
    let (checksum_at, end) = (
        usize::from(header.tcp_at) + 16,
        usize::from(header.tcp_at) + 18,
    );
    // 0 and 0xffff are the same sum.
    let zeros = |field: &[u8]| matches!(field, [0, 0] | [0xff, 0xff]);
    if at >= checksum_at
        && at < end
        && zeros(&right[checksum_at..end])
        && zeros(&out[checksum_at..end])
        && right[end..] == out[end..]
    {
        return None;
    }
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
