//! What an input made happen, as far as a target tells: a poor man's coverage.

use std::cell::RefCell;

/// Places in the map of what was seen. Two notes may share one; that only hides a little novelty.
const PLACES: usize = 1 << 16;

/// How often each note was made during one input.
struct Notes {
    counts: Vec<u8>,
    touched: Vec<u16>,
}

thread_local! {
    static NOTES: RefCell<Notes> = const {
        RefCell::new(Notes { counts: Vec::new(), touched: Vec::new() })
    };
}

/// Notes that something happened: `kind` says what sort of thing, `value` which one. Cheap, and of
/// no effect where nobody looks.
pub fn note(kind: &str, value: u64) {
    let mut hash = 0xcbf2_9ce4_8422_2325 ^ value.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    for byte in kind.bytes() {
        hash = (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
    }
    let place = (hash ^ (hash >> 29) ^ (hash >> 47)) as usize % PLACES;
    NOTES.with_borrow_mut(|notes| {
        if notes.counts.is_empty() {
            notes.counts = vec![0; PLACES];
        }
        if notes.counts[place] == 0 {
            notes.touched.push(place as u16);
        }
        notes.counts[place] = notes.counts[place].saturating_add(1);
    });
}

/// Notes a number by its order of magnitude.
pub fn note_size(kind: &str, size: usize) {
    note(
        kind,
        u64::from(size.checked_ilog2().map_or(0, |log| log + 1)),
    );
}

/// Everything that was seen over many inputs.
#[derive(Clone, Debug)]
pub struct Seen {
    /// One bit for each order of magnitude of a note's count.
    magnitudes: Vec<u8>,
}

impl Default for Seen {
    fn default() -> Self {
        Self {
            magnitudes: vec![0; PLACES],
        }
    }
}

impl Seen {
    /// Takes the notes of this thread since the last call, and tells how many of them are news.
    pub fn absorb(&mut self) -> usize {
        NOTES.with_borrow_mut(|notes| {
            let mut news = 0;
            for &place in &notes.touched {
                let count = core::mem::take(&mut notes.counts[usize::from(place)]);
                let bit = match count {
                    0 | 1 => 1,
                    2 => 2,
                    3..=7 => 4,
                    8..=31 => 8,
                    _ => 16,
                };
                let magnitudes = &mut self.magnitudes[usize::from(place)];
                news += usize::from(*magnitudes & bit == 0);
                *magnitudes |= bit;
            }
            notes.touched.clear();
            news
        })
    }

    /// Different notes so far.
    pub fn len(&self) -> usize {
        self.magnitudes.iter().filter(|bits| **bits != 0).count()
    }

    /// True when nothing was ever noted.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_note_is_news_once_and_again_at_another_magnitude() {
        let mut seen = Seen::default();
        note("verdict", 3);
        note("verdict", 4);
        assert_eq!(seen.absorb(), 2);
        note("verdict", 3);
        assert_eq!(seen.absorb(), 0);
        for _ in 0..10 {
            note("verdict", 3);
        }
        assert_eq!(seen.absorb(), 1, "ten times is another thing than once");
        assert_eq!(seen.absorb(), 0, "notes are taken once");
        assert_eq!(seen.len(), 2);
    }
}
