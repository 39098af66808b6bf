//! Lengths and checksums put right, so that chance gets past them to what lies behind.

use fairlead_base::Address;
use fairlead_wire::checksum::{self, PROTOCOL_ICMP, PROTOCOL_ICMPV6, PROTOCOL_TCP};

/// The IP header's length field becomes the length of the bytes.
pub(super) const LENGTH: u8 = 1;
/// The IPv4 header's checksum becomes right.
pub(super) const IP_CHECKSUM: u8 = 2;
/// The checksum of TCP, ICMP or ICMPv6 becomes right.
pub(super) const UPPER_CHECKSUM: u8 = 4;
/// The packet becomes TCP or, with [`ICMP`], ICMP.
pub(super) const PROTOCOL: u8 = 8;
/// See [`PROTOCOL`].
pub(super) const ICMP: u8 = 16;

/// Repairs what `what` names, as far as there are bytes for it.
pub(super) fn repair(bytes: &mut [u8], what: u8) {
    match bytes.first().map(|first| first >> 4) {
        Some(4) => repair_v4(bytes, what),
        Some(6) => repair_v6(bytes, what),
        _ => {}
    }
}

fn repair_v4(bytes: &mut [u8], what: u8) {
    let header_len = usize::from(bytes[0] & 15) * 4;
    if header_len < 20 || bytes.len() < header_len {
        return;
    }
    let total = bytes.len().min(usize::from(u16::MAX));
    if what & LENGTH != 0 {
        bytes[2..4].copy_from_slice(&(total as u16).to_be_bytes());
    }
    if what & PROTOCOL != 0 {
        let icmp = what & ICMP != 0;
        bytes[9] = if icmp { PROTOCOL_ICMP } else { PROTOCOL_TCP };
    }
    let end = usize::from(u16::from_be_bytes([bytes[2], bytes[3]])).min(bytes.len());
    if what & UPPER_CHECKSUM != 0 && end > header_len {
        let address =
            |at: usize| Address::v4([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let (src, dst, protocol) = (address(12), address(16), bytes[9]);
        repair_upper(&mut bytes[header_len..end], &src, &dst, protocol);
    }
    if what & IP_CHECKSUM != 0 {
        bytes[10..12].fill(0);
        let sum = checksum::ipv4_header(&bytes[..header_len]);
        bytes[10..12].copy_from_slice(&sum.to_be_bytes());
    }
}

/// Only without extension headers.
fn repair_v6(bytes: &mut [u8], what: u8) {
    if bytes.len() < 40 {
        return;
    }
    let payload = (bytes.len() - 40).min(usize::from(u16::MAX));
    if what & LENGTH != 0 {
        bytes[4..6].copy_from_slice(&(payload as u16).to_be_bytes());
    }
    if what & PROTOCOL != 0 {
        let icmp = what & ICMP != 0;
        bytes[6] = if icmp { PROTOCOL_ICMPV6 } else { PROTOCOL_TCP };
    }
    let end = (40 + usize::from(u16::from_be_bytes([bytes[4], bytes[5]]))).min(bytes.len());
    if what & UPPER_CHECKSUM != 0 {
        let address = |at: usize| {
            let mut octets = [0; 16];
            octets.copy_from_slice(&bytes[at..at + 16]);
            Address::v6(octets)
        };
        let (src, dst, protocol) = (address(8), address(24), bytes[6]);
        repair_upper(&mut bytes[40..end], &src, &dst, protocol);
    }
}

fn repair_upper(upper: &mut [u8], src: &Address, dst: &Address, protocol: u8) {
    let length = upper.len() as u32;
    let (at, pseudo) = match protocol {
        PROTOCOL_TCP => (16, checksum::pseudo_header(src, dst, protocol, length)),
        PROTOCOL_ICMPV6 => (2, checksum::pseudo_header(src, dst, protocol, length)),
        PROTOCOL_ICMP => (2, 0),
        _ => return,
    };
    let Some(field) = upper.get_mut(at..at + 2) else {
        return;
    };
    field.fill(0);
    let sum = !checksum::fold(pseudo + checksum::sum(upper));
    upper[at..at + 2].copy_from_slice(&sum.to_be_bytes());
}
