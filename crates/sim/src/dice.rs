//! Draws from a seed, in the shapes that scenarios need.

use core::time::Duration;

use fairlead_base::Rng;

/// A seeded source of choices.
#[derive(Clone, Debug)]
pub(crate) struct Dice(Rng);

impl Dice {
    /// The same seed and label give the same draws; different labels are independent, so that a
    /// new draw in one place does not shift those of another.
    pub(crate) fn new(seed: u64, label: &str) -> Self {
        Self(Rng::new(mix(seed, label.as_bytes())))
    }

    /// 64 bits.
    pub(crate) fn word(&mut self) -> u64 {
        self.0.next_u64()
    }

    /// A number from `low` to `high`, both included.
    pub(crate) fn between(&mut self, low: u32, high: u32) -> u32 {
        low + self.0.below(high.saturating_sub(low).saturating_add(1))
    }

    /// True with a probability in percent.
    pub(crate) fn percent(&mut self, percent: u32) -> bool {
        self.0.below(100) < percent
    }

    /// True with a probability in millionths.
    pub(crate) fn chance(&mut self, per_million: u32) -> bool {
        per_million > 0 && self.0.chance(per_million)
    }

    /// One of these, each as likely.
    pub(crate) fn pick<T: Clone>(&mut self, from: &[T]) -> T {
        from[self.0.below(from.len() as u32) as usize].clone()
    }

    /// One of these, by weight.
    pub(crate) fn weighted<T: Clone>(&mut self, from: &[(u32, T)]) -> T {
        let total: u32 = from.iter().map(|(weight, _)| weight).sum();
        let mut draw = self.0.below(total.max(1));
        for (weight, choice) in from {
            if draw < *weight {
                return choice.clone();
            }
            draw -= weight;
        }
        from[from.len() - 1].1.clone()
    }

    /// Whole microseconds up to `most`.
    pub(crate) fn micros(&mut self, most: Duration) -> Duration {
        let most = u32::try_from(most.as_micros()).unwrap_or(u32::MAX - 1);
        Duration::from_micros(u64::from(self.between(0, most)))
    }

    /// Whole milliseconds from `low` to `high`.
    pub(crate) fn millis(&mut self, low: u32, high: u32) -> Duration {
        Duration::from_millis(u64::from(self.between(low, high)))
    }
}

/// FNV-1a over a label, started from a seed.
fn mix(seed: u64, label: &[u8]) -> u64 {
    let mut hash = seed ^ 0xcbf2_9ce4_8422_2325;
    for &byte in label {
        hash = (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
    }
    hash
}

/// Bytes that are a function of a seed and a position, so that any piece can be checked alone.
pub(crate) fn stream_bytes(seed: u64, from: usize, out: &mut [u8]) {
    let mut word = [0u8; 8];
    let mut block = usize::MAX;
    for (at, byte) in (from..).zip(out.iter_mut()) {
        if at / 8 != block {
            block = at / 8;
            let mixed = seed ^ (block as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15);
            word = Rng::new(mixed).next_u64().to_le_bytes();
        }
        *byte = word[at % 8];
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_read_in_pieces_is_the_stream_read_at_once() {
        let mut whole = vec![0; 1_000];
        stream_bytes(9, 0, &mut whole);
        let mut pieces = vec![0; 1_000];
        let mut from = 0;
        for len in [1, 2, 3, 7, 8, 9, 100, 870] {
            stream_bytes(9, from, &mut pieces[from..from + len]);
            from += len;
        }
        assert_eq!(whole, pieces);
    }

    #[test]
    fn a_weight_of_zero_is_never_drawn() {
        let mut dice = Dice::new(1, "weights");
        for _ in 0..1_000 {
            assert_ne!(dice.weighted(&[(0, 'a'), (1, 'b'), (0, 'c')]), 'a');
        }
    }

    #[test]
    fn labels_are_independent_and_repeatable() {
        assert_eq!(Dice::new(5, "x").word(), Dice::new(5, "x").word());
        assert_ne!(Dice::new(5, "x").word(), Dice::new(5, "y").word());
    }
}
