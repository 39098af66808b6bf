use super::*;
use crate::checksum::PROTOCOL_ICMPV6;

/// An IPv4 fragment: flags and offset as in the header, with `options` bytes of options.
fn v4(place: u16, options: usize, payload: &[u8]) -> Vec<u8> {
    let headers = 20 + options;
    let total = (headers + payload.len()) as u16;
    let mut bytes = vec![0; headers];
    bytes[0] = 0x40 | (headers / 4) as u8;
    bytes[1] = 2;
    bytes[2..4].copy_from_slice(&total.to_be_bytes());
    bytes[4..6].copy_from_slice(&[0x12, 0x34]);
    bytes[6..8].copy_from_slice(&place.to_be_bytes());
    bytes[8] = 64;
    bytes[9] = PROTOCOL_TCP;
    bytes[12..16].copy_from_slice(&[10, 1, 0, 3]);
    bytes[16..20].copy_from_slice(&[10, 2, 0, 1]);
    let sum = checksum::ipv4_header(&bytes);
    bytes[10..12].copy_from_slice(&sum.to_be_bytes());
    bytes.extend_from_slice(payload);
    bytes
}

/// An IPv6 fragment behind these extension headers, of which each names the next by its first byte.
fn v6(first: u8, extensions: &[u8], place: u16, payload: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0; 40];
    bytes[0] = 0x60;
    bytes[1] = 0x30; // congestion
    let len = (extensions.len() + 8 + payload.len()) as u16;
    bytes[4..6].copy_from_slice(&len.to_be_bytes());
    bytes[6] = first;
    bytes[7] = 64;
    bytes[8..24].copy_from_slice(&[0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 3]);
    bytes[24..40].copy_from_slice(&[0x20, 1, 0xd, 0xb8, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
    bytes.extend_from_slice(extensions);
    let [high, low] = place.to_be_bytes();
    bytes.extend_from_slice(&[PROTOCOL_TCP, 0, high, low, 1, 2, 3, 4]);
    bytes.extend_from_slice(payload);
    bytes
}

#[test]
fn an_ipv4_fragment_says_where_it_belongs() {
    let mut bytes = v4(MORE_V4 | 0x0102, 4, &[7; 16]);
    bytes.extend_from_slice(&[9; 6]); // padding of the link
    let fragment = Fragment::parse(&bytes).unwrap();
    assert_eq!(fragment.offset, 0x0102 * 8);
    assert!(fragment.more && !fragment.is_atomic());
    assert_eq!(fragment.payload(&bytes), [7; 16]);
    assert_eq!(fragment.len(), 16);
    assert_eq!(fragment.ecn, 2);
    let datagram = fragment.datagram;
    assert_eq!((datagram.id, datagram.protocol), (0x1234, PROTOCOL_TCP));
    assert_eq!(datagram.src, Address::v4([10, 1, 0, 3]));
    assert_eq!(datagram.dst, Address::v4([10, 2, 0, 1]));
}

#[test]
fn the_whole_ipv4_packet_has_the_options_and_may_be_cut_again() {
    let bytes = v4(MORE_V4, 8, &[7; 16]);
    let mut whole = Vec::new();
    Fragment::parse(&bytes)
        .unwrap()
        .write_headers(&bytes, &mut whole);
    whole.extend_from_slice(&[7; 40]);
    finish(&mut whole, true);
    assert_eq!(whole.len(), 68);
    assert_eq!(u16::from_be_bytes([whole[2], whole[3]]), 68);
    assert_eq!(whole[1], 3, "congestion was met");
    assert_eq!(whole[6..8], [0, 0]);
    assert_eq!(checksum::fold(checksum::sum(&whole[..28])), 0xffff);
    assert_eq!(Fragment::parse(&whole), Err(DropReason::Fragment));
}

#[test]
fn an_ipv6_fragment_is_found_behind_other_headers() {
    // Hop-by-hop options, then destination options, of eight bytes each.
    let extensions = [60, 0, 1, 4, 0, 0, 0, 0, 44, 0, 1, 4, 0, 0, 0, 0];
    for (first, extensions, named_at) in [(44, &[][..], 6), (0, &extensions[..], 48)] {
        let bytes = v6(first, extensions, 16 | 1, &[7; 24]);
        let fragment = Fragment::parse(&bytes).unwrap();
        assert_eq!((fragment.offset, fragment.more), (16, true));
        assert_eq!(fragment.ecn, 3);
        assert_eq!(fragment.datagram.id, 0x0102_0304);
        assert_eq!(fragment.payload(&bytes), [7; 24]);
        let mut whole = Vec::new();
        fragment.write_headers(&bytes, &mut whole);
        assert_eq!(whole.len(), 40 + extensions.len());
        assert_eq!(whole[named_at], PROTOCOL_TCP, "the fragment header is gone");
        whole.extend_from_slice(&[7; 24]);
        finish(&mut whole, false);
        let payload = extensions.len() as u16 + 24;
        assert_eq!(u16::from_be_bytes([whole[4], whole[5]]), payload);
    }
    assert!(Fragment::parse(&v6(44, &[], 0, &[1])).unwrap().is_atomic());
}

#[test]
fn what_no_packet_can_be_made_of_is_refused() {
    for (bytes, reason) in [
        (v4(0, 0, &[7; 8]), DropReason::Fragment),
        (v4(MORE_V4, 0, &[7; 9]), DropReason::BadIpHeader),
        (v4(MORE_V4, 0, &[]), DropReason::BadIpHeader),
        (v4(OFFSET_V4, 0, &[7; 8]), DropReason::BadIpHeader),
        (
            v4(MORE_V4, 0, &[7; 8])[..27].to_vec(),
            DropReason::Truncated,
        ),
        (v6(44, &[], 1, &[7; 9]), DropReason::BadIpHeader),
        (v6(44, &[], 0xfff8, &[7; 8]), DropReason::BadIpHeader),
        (
            v6(44, &[], 1, &[7; 8])[..50].to_vec(),
            DropReason::Truncated,
        ),
        (v6(PROTOCOL_ICMPV6, &[], 1, &[7; 8]), DropReason::Fragment),
        (v6(51, &[], 1, &[7; 8]), DropReason::BadExtensionHeader),
        (vec![0x50; 40], DropReason::BadIpHeader),
        (vec![], DropReason::Truncated),
    ] {
        assert_eq!(Fragment::parse(&bytes), Err(reason), "{bytes:x?}");
    }
    let mut other = v4(MORE_V4, 0, &[7; 8]);
    other[9] = 17;
    let at = offset::IPV4_CHECKSUM;
    assert_eq!(Fragment::parse(&other), Err(DropReason::BadIpChecksum));
    other[at..at + 2].fill(0);
    let sum = checksum::ipv4_header(&other[..20]);
    other[at..at + 2].copy_from_slice(&sum.to_be_bytes());
    assert_eq!(Fragment::parse(&other), Err(DropReason::NotTcp));
}
