//! Twins of core functions that are slow and obviously right.

use fairlead_base::Address;

/// The Internet checksum's sum as RFC 1071 describes it: word by word, each carry added back at
/// once. Not complemented.
pub fn ones_complement_sum(bytes: &[u8]) -> u16 {
    let mut total = 0u32;
    for pair in bytes.chunks(2) {
        total += u32::from(pair[0]) << 8 | u32::from(pair.get(1).copied().unwrap_or(0));
        if total > 0xffff {
            total -= 0xffff;
        }
    }
    total as u16
}

/// The sum of TCP's pseudo-header, laid out as bytes as the RFCs draw it: what a partial checksum
/// holds.
pub fn pseudo_header(src: &Address, dst: &Address, tcp_len: u32) -> u16 {
    let mut drawn = Vec::with_capacity(40);
    if src.is_v4() && dst.is_v4() {
        drawn.extend(src.v4_octets());
        drawn.extend(dst.v4_octets());
        drawn.extend([0, 6]);
        drawn.extend((tcp_len as u16).to_be_bytes());
    } else {
        drawn.extend(src.0);
        drawn.extend(dst.0);
        drawn.extend(tcp_len.to_be_bytes());
        drawn.extend([0, 0, 0, 6]);
    }
    ones_complement_sum(&drawn)
}

/// The TCP checksum of `segment`, whose checksum field is taken as zero.
pub fn tcp_checksum(src: &Address, dst: &Address, segment: &[u8]) -> u16 {
    let mut bytes = pseudo_header(src, dst, segment.len() as u32)
        .to_be_bytes()
        .to_vec();
    bytes.extend_from_slice(segment);
    bytes[18..20].fill(0);
    !ones_complement_sum(&bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{endpoint, segment};
    use fairlead_wire::checksum;

    #[test]
    fn oracle_and_core_agree() {
        for [client, server] in [
            ["10.1.0.3:40000", "10.2.0.1:80"],
            ["[2001:db8::3]:40000", "[2001:db8:1::1]:443"],
        ] {
            let (client, server) = (endpoint(client), endpoint(server));
            for length in 0..50u64 {
                let payload = crate::stream::bytes(length, 0, length as usize);
                let packet = segment(client, server).payload(&payload).packet();
                let tcp = crate::tcp(&packet);
                let bytes = &packet.bytes[usize::from(tcp.tcp_at)..];
                let field = u16::from_be_bytes([bytes[16], bytes[17]]);
                assert_eq!(field, tcp_checksum(&client.addr, &server.addr, bytes));
                assert_eq!(
                    checksum::fold(checksum::sum(bytes)),
                    ones_complement_sum(bytes)
                );
            }
        }
    }
}
