//! The Internet checksum: RFC 1071 in full, RFC 1624 by increments.
//!
//! Arithmetic is ones' complement: 0xffff and 0 are the same number, and only a sum of nothing
//! but zeros comes out as 0. A sum over real headers is never 0, therefore a complete recomputation
//! and an increment agree to the bit, in both representations of zero.

use fairlead_base::Address;

/// Protocol number of TCP in IP headers and pseudo-headers.
pub const PROTOCOL_TCP: u8 = 6;
/// Protocol number of ICMP for IPv4.
pub const PROTOCOL_ICMP: u8 = 1;
/// Protocol number of ICMPv6.
pub const PROTOCOL_ICMPV6: u8 = 58;

/// The sum of `bytes` taken as big-endian 16-bit words; an odd last byte is padded with a zero on
/// its right. Parts may be added with `+` when each but the last has an even length; [`fold`]
/// turns the total into 16 bits.
#[inline]
pub fn sum(bytes: &[u8]) -> u64 {
    // RFC 1071, section 2: the sum does not depend on byte order nor on the width of the words
    // added, so little-endian 64-bit words are cut in halves that cannot overflow their lanes (up
    // to 32 GiB), and the bytes of the result are swapped once. The lanes are independent, which
    // lets the compiler use vector registers.
    let mut lanes = [0u64; 4];
    let (blocks, rest) = bytes.as_chunks::<32>();
    for block in blocks {
        let (words, _) = block.as_chunks::<8>();
        for (lane, word) in lanes.iter_mut().zip(words) {
            let word = u64::from_le_bytes(*word);
            *lane += (word & 0xffff_ffff) + (word >> 32);
        }
    }
    let mut total = lanes[0] + lanes[1] + lanes[2] + lanes[3];
    let (words, mut rest) = rest.as_chunks::<8>();
    for word in words {
        let word = u64::from_le_bytes(*word);
        total += (word & 0xffff_ffff) + (word >> 32);
    }
    if let Some((four, after)) = rest.split_first_chunk::<4>() {
        total += u64::from(u32::from_le_bytes(*four));
        rest = after;
    }
    if let Some((two, after)) = rest.split_first_chunk::<2>() {
        total += u64::from(u16::from_le_bytes(*two));
        rest = after;
    }
    if let Some(&last) = rest.first() {
        total += u64::from(last);
    }
    u64::from(fold(total).swap_bytes())
}

/// A partial sum as 16 bits, carries added back in; not complemented.
#[inline]
pub const fn fold(sum: u64) -> u16 {
    let sum = (sum >> 32) + (sum & 0xffff_ffff);
    let sum = (sum >> 16) + (sum & 0xffff);
    let sum = (sum >> 16) + (sum & 0xffff);
    let sum = (sum >> 16) + (sum & 0xffff);
    sum as u16
}

/// The sum of the pseudo-header of TCP or ICMPv6 (RFC 9293, section 3.1; RFC 8200, section 8.1);
/// `length` counts the bytes from the transport header on.
///
/// The two families need no distinction: the prefix of an IPv4-mapped address sums to 0xffff,
/// which is zero.
#[inline]
pub fn pseudo_header(src: &Address, dst: &Address, protocol: u8, length: u32) -> u64 {
    sum(&src.0) + sum(&dst.0) + u64::from(protocol) + u64::from(length)
}

/// The TCP checksum over `segment` (TCP header, options and payload), including its checksum field:
/// with a zero field, the value to write there; otherwise 0 if the field is correct.
pub fn tcp(src: &Address, dst: &Address, segment: &[u8]) -> u16 {
    let length = segment.len() as u32;
    !fold(sum(segment) + pseudo_header(src, dst, PROTOCOL_TCP, length))
}

/// What the checksum field holds while a device has yet to complete it
/// ([`fairlead_base::Checksum::Partial`]): the pseudo-header's sum, not complemented.
pub fn tcp_partial(src: &Address, dst: &Address, segment_len: u32) -> u16 {
    fold(pseudo_header(src, dst, PROTOCOL_TCP, segment_len))
}

/// The checksum of an IPv4 header, including its checksum field: with a zero field, the value to
/// write there; otherwise 0 if the field is correct.
#[inline]
pub fn ipv4_header(header: &[u8]) -> u16 {
    !fold(sum(header))
}

/// Changes to checksummed bytes, gathered for one update of the checksum by equation 3 of
/// RFC 1624: `HC' = ~(~HC + ~m + m')`.
///
/// A complete TCP checksum takes all changes of TCP header, payload and pseudo-header (addresses,
/// length). A partial one ([`Delta::apply_to_partial`]) takes only those of the pseudo-header:
/// keep address changes in a `Delta` of their own when both kinds occur, and join the two with
/// [`Delta::join`]. The IPv4 header checksum takes the changes of that header alone.
#[derive(Clone, Copy, Debug, Default)]
pub struct Delta(u64);

impl Delta {
    /// No change.
    #[inline]
    pub const fn new() -> Self {
        Self(0)
    }

    /// A change that [`Delta::to_folded`] has packed.
    #[inline]
    pub const fn from_folded(folded: u16) -> Self {
        Self(folded as u64)
    }

    /// All changes so far in 16 bits, for a record that keeps them; the same at every application.
    #[inline]
    pub const fn to_folded(self) -> u16 {
        fold(self.0)
    }

    /// A 16-bit field at an even offset changed.
    #[inline]
    pub fn u16(&mut self, old: u16, new: u16) -> &mut Self {
        self.0 += u64::from(!old) + u64::from(new);
        self
    }

    /// A 32-bit field at an even offset changed.
    #[inline]
    pub fn u32(&mut self, old: u32, new: u32) -> &mut Self {
        self.0 += u64::from(!old) + u64::from(new);
        self
    }

    /// A 32-bit field changed whose first byte is at `offset` from the start of the checksummed
    /// bytes. At an odd offset, where options may lie, each byte counts in the other half of its
    /// word: RFC 1071, section 2(B).
    #[inline]
    pub fn u32_at(&mut self, offset: usize, old: u32, new: u32) -> &mut Self {
        let turn = if offset % 2 == 1 { 8 } else { 0 };
        self.u32(old.rotate_left(turn), new.rotate_left(turn))
    }

    /// Bytes at an even offset changed. Both slices have the same, even length.
    #[inline]
    pub fn bytes(&mut self, old: &[u8], new: &[u8]) -> &mut Self {
        debug_assert_eq!(old.len(), new.len());
        debug_assert_eq!(old.len() % 2, 0);
        self.u16(fold(sum(old)), fold(sum(new)))
    }

    /// An address changed. The prefix of IPv4-mapped addresses has no weight, so an address may
    /// also change its family.
    #[inline]
    pub fn address(&mut self, old: &Address, new: &Address) -> &mut Self {
        self.bytes(&old.0, &new.0)
    }

    /// All of `other`'s changes as well.
    #[inline]
    pub fn join(&mut self, other: Self) -> &mut Self {
        self.0 += u64::from(other.to_folded());
        self
    }

    /// The checksum field after the changes, when it was `checksum` before.
    #[inline]
    pub const fn apply_to(self, checksum: u16) -> u16 {
        !self.apply_to_partial(!checksum)
    }

    /// The same for a field that holds a sum which is not complemented.
    #[inline]
    pub const fn apply_to_partial(self, sum: u16) -> u16 {
        fold(self.0 + sum as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Word by word with an end-around carry after each addition.
    fn naive(bytes: &[u8]) -> u16 {
        let mut total = 0u32;
        for pair in bytes.chunks(2) {
            let word = u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0));
            total += word;
            if total > 0xffff {
                total -= 0xffff;
            }
        }
        total as u16
    }

    #[test]
    fn example_of_rfc_1071_section_3() {
        let bytes = [0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7];
        assert_eq!(fold(sum(&bytes)), 0xddf2);
    }

    #[test]
    fn example_of_rfc_1624_section_4() {
        let mut delta = Delta::new();
        delta.u16(0x5555, 0x3285);
        assert_eq!(delta.apply_to(0xdd2f), 0x0000);
    }

    #[test]
    fn every_length_and_alignment_agrees_with_the_naive_sum() {
        let mut rng = fairlead_base::Rng::new(1);
        let bytes: Vec<u8> = (0..200).map(|_| rng.next_u64() as u8).collect();
        for start in 0..33 {
            for end in start..bytes.len() {
                let part = &bytes[start..end];
                assert_eq!(fold(sum(part)), naive(part), "{start}..{end}");
            }
        }
    }

    #[test]
    fn the_longest_packet_of_ones_and_of_zeros() {
        assert_eq!(fold(sum(&vec![0xff; 65_535])), naive(&vec![0xff; 65_535]));
        assert_eq!(fold(sum(&vec![0xff; 65_534])), 0xffff);
        assert_eq!(fold(sum(&vec![0; 65_535])), 0);
        assert_eq!(fold(sum(&[])), 0);
    }

    #[test]
    fn fold_keeps_every_carry() {
        assert_eq!(fold(u64::MAX), 0xffff);
        assert_eq!(fold(0xffff), 0xffff);
        assert_eq!(fold(0x1_0000), 1);
        assert_eq!(fold(0x1_fffe), 0xffff);
        assert_eq!(fold(0xffff_0000_0001), 1);
    }

    #[test]
    fn an_ipv4_header_from_the_wire() {
        let mut header: [u8; 20] = [
            0x45, 0x00, 0x00, 0x73, 0x00, 0x00, 0x40, 0x00, 0x40, 0x11, 0xb8, 0x61, 0xc0, 0xa8,
            0x00, 0x01, 0xc0, 0xa8, 0x00, 0xc7,
        ];
        assert_eq!(ipv4_header(&header), 0);
        header[10] = 0;
        header[11] = 0;
        assert_eq!(ipv4_header(&header), 0xb861);
    }

    #[test]
    fn mapped_addresses_weigh_as_much_as_their_four_bytes() {
        let (src, dst) = (Address::v4([10, 1, 2, 3]), Address::v4([192, 168, 255, 1]));
        let plain = [10, 1, 2, 3, 192, 168, 255, 1, 0, 6, 0, 20];
        assert_eq!(fold(pseudo_header(&src, &dst, 6, 20)), naive(&plain));
    }

    /// The corner that equation 2 of RFC 1141 gets wrong: the new checksum must come out as 0,
    /// never as 0xffff, when the new sum is 0xffff.
    #[test]
    fn a_sum_that_becomes_minus_zero_gives_checksum_zero() {
        for start in 1..=0xffffu16 {
            // One word `start` under a checksum, changed so that the sum is 0xffff.
            let mut delta = Delta::new();
            delta.u16(start, 0xffff);
            assert_eq!(delta.apply_to(!start), 0);
            assert_eq!(delta.apply_to_partial(start), 0xffff);
            assert_eq!(Delta::new().apply_to(!start), !start);
        }
    }

    proptest! {
        #[test]
        fn sum_agrees_with_the_naive_sum(
            bytes in prop::collection::vec(any::<u8>(), 0..2_000),
            skip in 0usize..40,
        ) {
            let part = &bytes[skip.min(bytes.len())..];
            prop_assert_eq!(fold(sum(part)), naive(part));
        }

        #[test]
        fn parts_of_even_length_add_up(
            bytes in prop::collection::vec(any::<u8>(), 0..400),
            cut in 0usize..200,
        ) {
            let (head, tail) = bytes.split_at((cut * 2).min(bytes.len() / 2 * 2));
            prop_assert_eq!(fold(sum(head) + sum(tail)), fold(sum(&bytes)));
        }

        /// The first word is never changed and never zero, as in any real header; all others are
        /// drawn so that sums of 0 and 0xffff are frequent.
        #[test]
        fn increments_equal_the_full_recomputation(
            start in prop::collection::vec(prop_oneof![Just(0u8), Just(0xff), any::<u8>()], 2..80),
            edits in prop::collection::vec(
                (any::<prop::sample::Index>(), 0usize..4,
                 prop_oneof![Just(0u32), Just(u32::MAX), Just(0xffff_0000), any::<u32>()]),
                0..8,
            ),
        ) {
            let mut bytes = vec![0, 6];
            bytes.extend(start);
            let before = !naive(&bytes);
            let partial_before = naive(&bytes);
            let mut delta = Delta::new();
            for (place, kind, value) in edits {
                let width = if kind == 0 { 2 } else { 4 };
                if bytes.len() < 2 + width {
                    continue;
                }
                let mut at = 2 + place.index(bytes.len() - width - 1);
                if kind != 3 {
                    at &= !1;
                }
                let value = value.to_be_bytes();
                let new = &value[..width];
                let old = bytes[at..at + width].to_vec();
                match kind {
                    0 => {
                        let old = u16::from_be_bytes([old[0], old[1]]);
                        delta.u16(old, u16::from_be_bytes([new[0], new[1]]));
                    }
                    1 => {
                        delta.bytes(&old, new);
                    }
                    _ => {
                        let old = u32::from_be_bytes(old.try_into().unwrap());
                        delta.u32_at(at, old, u32::from_be_bytes(value));
                    }
                }
                bytes[at..at + width].copy_from_slice(new);
            }
            prop_assert_eq!(delta.apply_to(before), !naive(&bytes));
            prop_assert_eq!(delta.apply_to_partial(partial_before), naive(&bytes));
            let packed = Delta::from_folded(delta.to_folded());
            prop_assert_eq!(packed.apply_to(before), !naive(&bytes));
            let mut joined = Delta::new();
            joined.join(delta);
            prop_assert_eq!(joined.apply_to(before), !naive(&bytes));
        }

        #[test]
        fn address_changes_update_complete_and_partial_checksums(
            old in any::<([u8; 4], [u8; 4])>(),
            new in any::<([u8; 16], [u8; 16])>(),
            segment in prop::collection::vec(any::<u8>(), 20..100),
        ) {
            let (old_src, old_dst) = (Address::v4(old.0), Address::v4(old.1));
            let (new_src, new_dst) = (Address::v6(new.0), Address::v6(new.1));
            let mut delta = Delta::new();
            delta.address(&old_src, &new_src).address(&old_dst, &new_dst);
            prop_assert_eq!(
                delta.apply_to(tcp(&old_src, &old_dst, &segment)),
                tcp(&new_src, &new_dst, &segment)
            );
            let length = segment.len() as u32;
            prop_assert_eq!(
                delta.apply_to_partial(tcp_partial(&old_src, &old_dst, length)),
                tcp_partial(&new_src, &new_dst, length)
            );
        }
    }
}
