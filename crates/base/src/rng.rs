//! Seeded chance: the only source of randomness that core code knows.

/// SplitMix64 (Steele, Lea and Flood, 2014): small, fast, full period. Not for secrets.
#[derive(Clone, Debug)]
pub struct Rng {
    state: u64,
}

impl Rng {
    /// A generator that is the same for the same seed, on every machine.
    pub fn new(seed: u64) -> Self {
        Self { state: seed }
    }

    /// The next 64 bits.
    #[inline]
    pub fn next_u64(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut word = self.state;
        word = (word ^ (word >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        word ^ (word >> 31)
    }

    /// A number below `bound` (0 when `bound` is 0), by multiplication: bias below 2⁻³² for the
    /// bounds used here.
    #[inline]
    pub fn below(&mut self, bound: u32) -> u32 {
        ((u64::from(bound) * (self.next_u64() >> 32)) >> 32) as u32
    }

    /// True with probability `per_million` / 1 000 000.
    pub fn chance(&mut self, per_million: u32) -> bool {
        self.below(1_000_000) < per_million
    }
}
