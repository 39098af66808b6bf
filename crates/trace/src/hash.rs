//! A hash that is stable across machines and versions, and addresses derived from it.

use fairlead_base::{Address, Rng};

const K0: u64 = 0x9E37_79B9_7F4A_7C15;
const K1: u64 = 0xD6E8_FEB8_6659_FD93;
const K2: u64 = 0xA076_1D64_78BD_642F;

#[inline]
pub(crate) fn fold(a: u64, b: u64) -> u64 {
    let wide = u128::from(a) * u128::from(b);
    (wide as u64) ^ ((wide >> 64) as u64)
}

#[inline]
fn word(bytes: &[u8], at: usize) -> u64 {
    let mut eight = [0u8; 8];
    eight.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(eight)
}

/// The last 0 to 15 bytes as two words, which overlap where there are 8 or more.
#[inline]
fn tail(bytes: &[u8]) -> (u64, u64) {
    match bytes.len() {
        0 => (0, 0),
        len @ 1..=3 => {
            let (first, middle, last) = (bytes[0], bytes[len / 2], bytes[len - 1]);
            let low = u64::from(first) | u64::from(middle) << 8 | u64::from(last) << 16;
            (low, 0)
        }
        len @ 4..=7 => {
            let four = |at: usize| {
                let mut four = [0u8; 4];
                four.copy_from_slice(&bytes[at..at + 4]);
                u64::from(u32::from_le_bytes(four))
            };
            (four(0), four(len - 4))
        }
        len => (word(bytes, 0), word(bytes, len - 8)),
    }
}

/// A 64-bit hash of names of objects and clients. It never changes, because results computed with
/// it are compared with later ones. Not cryptographic.
#[inline]
pub fn hash64(bytes: &[u8]) -> u64 {
    let mut state = K0 ^ (bytes.len() as u64).wrapping_mul(K1);
    let mut chunks = bytes.chunks_exact(16);
    for chunk in &mut chunks {
        state = fold(state ^ word(chunk, 0), K1 ^ word(chunk, 8)).wrapping_add(K2);
    }
    let (low, high) = tail(chunks.remainder());
    fold(fold(state ^ low, K1 ^ high) ^ K2, K0 ^ bytes.len() as u64)
}

/// The IPv4 address derived from a client's name or number, for logs without addresses.
///
/// Equal for equal names. Uniform over public addresses: no networks 0, 10 and 127, nothing from
/// 224 on, and no final 0 or 255, so that each bit is set about as often as in addresses of real
/// clients (tcb-cache-2010, Fig. 7). About one pair of names in 90,000 names collides; they remain
/// two clients.
pub fn address_of_name(name: &[u8]) -> Address {
    let mut rng = Rng::new(hash64(name));
    loop {
        let [a, b, c, d] = (rng.next_u64() >> 32).to_le_bytes()[..4]
            .try_into()
            .unwrap_or([0; 4]);
        let public = matches!(a, 1..=223) && a != 10 && a != 127;
        if public && d != 0 && d != 255 {
            return Address::v4([a, b, c, d]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hash_is_stable() {
        assert_eq!(hash64(b""), 0xE183_8ADD_5D9B_C7B1);
        assert_eq!(hash64(b"/index.html"), 0x2A63_93EB_AAB1_160A);
        let long = hash64(b"/images/NASA-logosmall.gif");
        assert_eq!(long, 0x063D_5802_DCD7_8D6F);
    }

    #[test]
    fn every_length_and_every_byte_counts() {
        let mut seen = std::collections::BTreeSet::new();
        for len in 0..70usize {
            let plain = vec![b'x'; len];
            assert!(seen.insert(hash64(&plain)), "length {len}");
            for at in 0..len {
                let mut other = plain.clone();
                other[at] = b'y';
                assert!(seen.insert(hash64(&other)), "length {len}, byte {at}");
            }
        }
    }

    #[test]
    fn addresses_of_names_are_public_and_spread_evenly() {
        const NAMES: usize = 20_000;
        let mut set = [0u32; 32];
        for number in 0..NAMES {
            let address = address_of_name(format!("host{number}.example").as_bytes());
            assert!(address.is_v4());
            let [a, _, _, d] = address.v4_octets();
            assert!((1..224).contains(&a) && a != 10 && a != 127 && d != 0 && d != 255);
            let bits = u32::from_be_bytes(address.v4_octets());
            for (bit, count) in set.iter_mut().enumerate() {
                *count += bits >> (31 - bit) & 1;
            }
        }
        for (bit, count) in set.iter().enumerate() {
            let share = f64::from(*count) / NAMES as f64;
            assert!((0.40..0.60).contains(&share), "bit {bit}: {share}");
        }
    }
}
