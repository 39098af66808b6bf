//! Byte streams whose content is a function of seed and position, so that any slice of a transfer
//! can be made and checked without the rest.

/// Bytes that one step of the generator gives.
const WORD_BYTES: u64 = 8;

/// The eight bytes of word `index`: SplitMix64 with random access.
fn word(seed: u64, index: u64) -> [u8; WORD_BYTES as usize] {
    let position = index.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    fairlead_base::Rng::new(seed.wrapping_add(position))
        .next_u64()
        .to_le_bytes()
}

/// Writes the bytes of stream `seed` from position `at` on into `out`.
pub fn fill(seed: u64, at: u64, out: &mut [u8]) {
    let mut position = at;
    let mut rest = out;
    while !rest.is_empty() {
        let from = (position % WORD_BYTES) as usize;
        let bytes = &word(seed, position / WORD_BYTES)[from..];
        let count = bytes.len().min(rest.len());
        let (now, later) = rest.split_at_mut(count);
        now.copy_from_slice(&bytes[..count]);
        position += count as u64;
        rest = later;
    }
}

/// The `len` bytes of stream `seed` from position `at` on.
pub fn bytes(seed: u64, at: u64, len: usize) -> Vec<u8> {
    let mut out = vec![0; len];
    fill(seed, at, &mut out);
    out
}

/// Compares `received` with stream `seed` from position `at` on.
///
/// # Errors
/// The position in the stream of the first byte that differs.
pub fn check(seed: u64, at: u64, received: &[u8]) -> Result<(), u64> {
    let mut expected = [0u8; 4_096];
    let mut position = at;
    for part in received.chunks(expected.len()) {
        let expected = &mut expected[..part.len()];
        fill(seed, position, expected);
        if expected != part {
            let same = part.iter().zip(&*expected).take_while(|(a, b)| a == b);
            return Err(position + same.count() as u64);
        }
        position += part.len() as u64;
    }
    Ok(())
}

/// A digest of a stream that arrives in pieces: FNV-1a with 64 bits, and the length. It tells
/// streams apart that differ by accident, not by intent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Digest {
    hash: u64,
    len_bytes: u64,
}

impl Default for Digest {
    fn default() -> Self {
        Self::new()
    }
}

impl Digest {
    /// Of the empty stream.
    pub const fn new() -> Self {
        Self {
            hash: 0xcbf2_9ce4_8422_2325,
            len_bytes: 0,
        }
    }

    /// Of the first `len_bytes` bytes of stream `seed`.
    pub fn of_stream(seed: u64, len_bytes: u64) -> Self {
        let mut digest = Self::new();
        let mut buffer = [0u8; 4_096];
        while digest.len_bytes < len_bytes {
            let left = len_bytes - digest.len_bytes;
            let count = usize::try_from(left).map_or(buffer.len(), |left| left.min(buffer.len()));
            fill(seed, digest.len_bytes, &mut buffer[..count]);
            digest.update(&buffer[..count]);
        }
        digest
    }

    /// Takes in the next bytes of the stream.
    pub fn update(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.hash = (self.hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
        self.len_bytes += bytes.len() as u64;
    }

    /// The hash so far.
    pub fn value(&self) -> u64 {
        self.hash
    }

    /// Bytes taken in so far.
    pub fn len_bytes(&self) -> u64 {
        self.len_bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_slice_agrees_with_the_whole() {
        let whole = bytes(5, 0, 300);
        for at in 0..64 {
            for len in 0..64 {
                assert_eq!(bytes(5, at as u64, len), whole[at..at + len]);
            }
        }
    }

    #[test]
    fn seeds_and_positions_give_different_bytes() {
        assert_ne!(bytes(1, 0, 64), bytes(2, 0, 64));
        assert_ne!(bytes(1, 0, 64), bytes(1, 8, 64));
        let far = (1 << 32) + 3;
        assert_ne!(bytes(1, 3, 64), bytes(1, far, 64));
        let counts = bytes(9, 0, 65_536)
            .iter()
            .fold([0u32; 256], |mut counts, &byte| {
                counts[usize::from(byte)] += 1;
                counts
            });
        for count in counts {
            assert!((160..=360).contains(&count), "{count} of about 256");
        }
    }

    #[test]
    fn check_names_the_first_wrong_position() {
        let mut received = bytes(3, 1_000, 10_000);
        assert_eq!(check(3, 1_000, &received), Ok(()));
        for wrong in [0usize, 4_095, 4_096, 9_999] {
            received[wrong] ^= 0x80;
            assert_eq!(check(3, 1_000, &received), Err(1_000 + wrong as u64));
            received[wrong] ^= 0x80;
        }
        assert_eq!(check(3, 0, &[]), Ok(()));
    }

    #[test]
    fn digests_do_not_depend_on_the_pieces() {
        let whole = bytes(11, 0, 10_000);
        let mut digest = Digest::new();
        for piece in whole.chunks(1_460) {
            digest.update(piece);
        }
        assert_eq!(digest, Digest::of_stream(11, 10_000));
        assert_eq!(digest.len_bytes(), 10_000);
        assert_ne!(digest.value(), Digest::of_stream(12, 10_000).value());
        assert_ne!(digest.value(), Digest::of_stream(11, 9_999).value());
    }

    #[test]
    fn digest_is_fnv_1a() {
        // Reference values of the FNV specification.
        let mut digest = Digest::new();
        assert_eq!(digest.value(), 0xcbf2_9ce4_8422_2325);
        digest.update(b"a");
        assert_eq!(digest.value(), 0xaf63_dc4c_8601_ec8c);
        digest.update(b"");
        let mut foobar = Digest::new();
        foobar.update(b"foobar");
        assert_eq!(foobar.value(), 0x8594_4171_f739_67e8);
    }
}
