//! What every secret and every choice by chance of an instance comes from.

use core::fmt;
use core::hash::Hasher;

use siphasher::sip::SipHasher24;

/// 128 secret bits and the words derived from them by a pseudorandom function (SipHash-2-4) of
/// purpose and number. Any number of known words reveals nothing about the others, so one seed can
/// serve both for numbers visible on the wire and for secret keys.
#[derive(Clone, Copy)]
pub struct Seed([u64; 2]);

impl Seed {
    /// A seed from two random words of the operating system. Code that needs no secrets (a
    /// simulation, a test, a replay) can make one `from` a number.
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

/// Not a secret: the numbers can be enumerated.
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
