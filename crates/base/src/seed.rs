//! What every secret and every choice by chance of an instance comes from.

use core::fmt;
use core::hash::Hasher;

use siphasher::sip::SipHasher24;

/// 128 secret bits, and the words made of them: a pseudorandom function (SipHash-2-4) of what a
/// word is for and of its number. Who sees any number of words learns nothing of the others, so
/// that numbers that go onto the wire and keys of what must not be forged may have the same seed.
#[derive(Clone, Copy)]
pub struct Seed([u64; 2]);

impl Seed {
    /// From two words of the operating system's random numbers. Whoever needs no secrets (a
    /// simulation, a test, a capture played again) makes one `from` a number.
    pub fn new(words: [u64; 2]) -> Self {
        Self(words)
    }

    /// Word `number` for `purpose`: always the same.
    pub fn word(&self, purpose: &str, number: u64) -> u64 {
        let mut hasher = SipHasher24::new_with_keys(self.0[0], self.0[1]);
        hasher.write(&number.to_le_bytes());
        hasher.write(purpose.as_bytes());
        hasher.finish()
    }
}

/// Not a secret: there are only so many such numbers.
impl From<u64> for Seed {
    fn from(number: u64) -> Self {
        Self([number, 0])
    }
}

impl fmt::Debug for Seed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Seed(..)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_depend_on_all_of_the_seed_the_purpose_and_the_number() {
        let word = Seed::new([1, 2]).word("keys", 3);
        assert_eq!(word, Seed::new([1, 2]).word("keys", 3));
        for other in [
            Seed::new([0, 2]).word("keys", 3),
            Seed::new([1, 0]).word("keys", 3),
            Seed::new([1, 2]).word("key", 3),
            Seed::new([1, 2]).word("keys", 4),
        ] {
            assert_ne!(word, other);
        }
    }

    #[test]
    fn it_does_not_show_itself() {
        assert_eq!(format!("{:?}", Seed::new([1, 2])), "Seed(..)");
    }
}
