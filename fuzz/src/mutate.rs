//! Seeded changes to inputs.

use fairlead_base::Rng;

/// Values at which lengths, counts and comparisons tip over.
const EDGES: [u32; 20] = [
    0,
    1,
    2,
    3,
    4,
    7,
    8,
    15,
    16,
    20,
    40,
    63,
    127,
    128,
    255,
    256,
    0x7fff,
    0x8000,
    0xffff,
    0xffff_ffff,
];

/// Changes inputs by chance, always within `bytes_max`.
#[derive(Clone, Debug)]
pub struct Mutator<'a> {
    rng: Rng,
    tokens: &'a [&'a [u8]],
    bytes_max: usize,
}

impl<'a> Mutator<'a> {
    /// The same changes for the same seed. `tokens` are byte strings that mean something to the
    /// target.
    pub fn new(seed: u64, tokens: &'a [&'a [u8]], bytes_max: usize) -> Self {
        Self {
            rng: Rng::new(seed),
            tokens,
            bytes_max,
        }
    }

    /// A number below `bound`.
    pub fn below(&mut self, bound: usize) -> usize {
        self.rng.below(bound.min(u32::MAX as usize) as u32) as usize
    }

    /// Changes `bytes` one to sixteen times; `other` is an input to take pieces from.
    pub fn mutate(&mut self, bytes: &mut Vec<u8>, other: &[u8]) {
        let rounds = 1 << self.below(5);
        for _ in 0..rounds {
            self.change(bytes, other);
        }
        bytes.truncate(self.bytes_max);
    }

    fn change(&mut self, bytes: &mut Vec<u8>, other: &[u8]) {
        if bytes.is_empty() {
            let count = 1 + self.below(8);
            bytes.extend((0..count).map(|_| self.rng.next_u64() as u8));
            return;
        }
        match self.below(12) {
            0 => {
                let at = self.below(bytes.len());
                bytes[at] ^= 1 << self.below(8);
            }
            1 => {
                let at = self.below(bytes.len());
                bytes[at] = self.rng.next_u64() as u8;
            }
            2 => {
                let at = self.below(bytes.len());
                let step = 1 + self.below(16) as u8;
                let up = self.rng.chance(500_000);
                bytes[at] = if up {
                    bytes[at].wrapping_add(step)
                } else {
                    bytes[at].wrapping_sub(step)
                };
            }
            3 => self.edge(bytes),
            4 => self.remove(bytes),
            5 => self.repeat(bytes),
            6 | 7 => self.token(bytes),
            8 => self.insert_noise(bytes),
            9 => self.swap(bytes),
            10 => self.cross(bytes, other),
            _ => bytes.truncate(1 + self.below(bytes.len())),
        }
    }

    /// Writes a telling number over one, two or four bytes.
    fn edge(&mut self, bytes: &mut [u8]) {
        let value = EDGES[self.below(EDGES.len())];
        let width = [1, 2, 4][self.below(3)].min(bytes.len());
        let at = self.below(bytes.len() - width + 1);
        let big = value.to_be_bytes();
        bytes[at..at + width].copy_from_slice(&big[4 - width..]);
    }

    /// A range of at most a quarter of the bytes, and at least one.
    fn piece(&mut self, len: usize) -> core::ops::Range<usize> {
        let count = 1 + self.below((len / 4).max(1));
        let at = self.below(len - count.min(len) + 1);
        at..(at + count).min(len)
    }

    fn remove(&mut self, bytes: &mut Vec<u8>) {
        let piece = self.piece(bytes.len());
        bytes.drain(piece);
    }

    fn repeat(&mut self, bytes: &mut Vec<u8>) {
        let piece = self.piece(bytes.len());
        let copy = bytes[piece].to_vec();
        let at = self.below(bytes.len() + 1);
        bytes.splice(at..at, copy);
    }

    fn token(&mut self, bytes: &mut Vec<u8>) {
        if self.tokens.is_empty() {
            return self.insert_noise(bytes);
        }
        let token = self.tokens[self.below(self.tokens.len())];
        let at = self.below(bytes.len() + 1);
        let over = self.rng.chance(300_000);
        let until = if over {
            (at + token.len()).min(bytes.len())
        } else {
            at
        };
        bytes.splice(at..until, token.iter().copied());
    }

    fn insert_noise(&mut self, bytes: &mut Vec<u8>) {
        let count = 1 + self.below(8);
        let noise: Vec<u8> = (0..count).map(|_| self.rng.next_u64() as u8).collect();
        let at = self.below(bytes.len() + 1);
        bytes.splice(at..at, noise);
    }

    fn swap(&mut self, bytes: &mut [u8]) {
        let (one, other) = (self.below(bytes.len()), self.below(bytes.len()));
        bytes.swap(one, other);
    }

    /// The front of one and the back of the other, or a piece of the other in the middle.
    fn cross(&mut self, bytes: &mut Vec<u8>, other: &[u8]) {
        if other.is_empty() {
            return;
        }
        if self.rng.chance(500_000) {
            bytes.truncate(self.below(bytes.len() + 1));
            bytes.extend_from_slice(&other[self.below(other.len())..]);
        } else {
            let piece = self.piece(other.len());
            let at = self.below(bytes.len() + 1);
            bytes.splice(at..at, other[piece].iter().copied());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_makes_the_same_changes_within_the_limit() {
        let run = |seed| {
            let mut mutator = Mutator::new(seed, &[b"token"], 64);
            let mut bytes = b"some input to begin with".to_vec();
            let mut all = Vec::new();
            for _ in 0..500 {
                mutator.mutate(&mut bytes, b"another input");
                assert!(bytes.len() <= 64);
                all.push(bytes.clone());
            }
            all
        };
        assert_eq!(run(7), run(7));
        assert_ne!(run(7), run(8));
    }

    #[test]
    fn tokens_and_pieces_of_others_get_in() {
        let mut mutator = Mutator::new(1, &[b"TOKEN"], 200);
        let holds = |bytes: &[u8], part: &[u8]| bytes.windows(part.len()).any(|at| at == part);
        let (mut token, mut piece) = (false, false);
        for _ in 0..2_000 {
            let mut bytes = b"................".to_vec();
            mutator.mutate(&mut bytes, b"piecepiecepiece");
            token |= holds(&bytes, b"TOKEN");
            piece |= holds(&bytes, b"piec");
        }
        assert!(token && piece);
    }
}
