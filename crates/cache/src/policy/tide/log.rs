//! The log-book: a few sessions that are watched whether they are in the cache or not.
//!
//! What stays in the cache tells only about ages up to which lines are kept. Here an access is now
//! and then written down, with the byte that its line has (or would have), and stays until the same
//! session is asked for again or its age is past telling: so ages are also counted that no line
//! lives to see. An entry is found by the session's sets alone, so that it needs no hash of its own
//! and is the same for a simulation and for the datapath.

use super::age::{EBBED, is_untold};

/// Lines for one entry.
const LINES_AN_ENTRY: u32 = 16;
/// Entries at least and at most.
const ENTRIES: core::ops::RangeInclusive<u32> = 16..=4096;
/// One access in this many is recorded, if its entry is free.
const ONE_OF: u32 = 8;

#[derive(Clone, Copy, Debug)]
struct Entry {
    mark: u16,
    byte: u8,
}

#[derive(Clone, Debug)]
pub(super) struct LogBook {
    entries: Vec<Entry>,
    hand: usize,
    turn: u32,
}

impl LogBook {
    pub(super) fn new(lines: u32) -> Self {
        let wanted = lines / LINES_AN_ENTRY;
        let count = wanted
            .clamp(*ENTRIES.start(), *ENTRIES.end())
            .next_power_of_two();
        let free = Entry {
            mark: 0,
            byte: EBBED,
        };
        Self {
            entries: vec![free; count as usize],
            hand: 0,
            turn: 0,
        }
    }

    /// The session with this first set and this [`mark`] is asked for, and its line's byte becomes
    /// `byte`. If it was watched, the byte it was written down with, and its entry is then free.
    /// Both that and writing down are rare: an entry is soon taken by a session that is seldom
    /// asked for.
    #[inline(always)]
    pub(super) fn note(&mut self, first: u32, mark: u16, byte: u8) -> Option<u8> {
        self.turn = self.turn.wrapping_add(1);
        let at = first as usize & (self.entries.len() - 1);
        let entry = &mut self.entries[at];
        if entry.mark == mark && !is_untold(entry.byte) {
            return Some(core::mem::replace(&mut entry.byte, EBBED));
        }
        if self.turn.is_multiple_of(ONE_OF) && is_untold(entry.byte) {
            *entry = Entry { mark, byte };
        }
        None
    }

    /// Looks at the next eighth of the entries: each byte is shown to `see` and becomes what it
    /// says.
    pub(super) fn pass(&mut self, mut see: impl FnMut(u8) -> u8) {
        for _ in 0..self.entries.len() / 8 {
            let entry = &mut self.entries[self.hand];
            entry.byte = see(entry.byte);
            self.hand = (self.hand + 1) & (self.entries.len() - 1);
        }
    }
}

/// 16 bits of the sets that do not choose the entry alone.
#[inline(always)]
pub(super) fn mark<const N: usize, const M: usize>(first: &[u32; N], second: &[u32; M]) -> u16 {
    let mut mark = 0u32;
    for set in first {
        mark = mark.rotate_left(7) ^ set.wrapping_mul(0x9E37_79B1);
    }
    for set in second {
        mark = mark.rotate_left(7) ^ set.wrapping_mul(0x9E37_79B1);
    }
    (mark >> 16) as u16 ^ mark as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    fn note(log: &mut LogBook, first: &[u32; 2], second: &[u32; 2], byte: u8) -> Option<u8> {
        log.note(first[0], mark(first, second), byte)
    }

    #[test]
    fn a_watched_session_is_told_once() {
        let mut log = LogBook::new(512);
        for _ in 0..ONE_OF {
            assert_eq!(note(&mut log, &[3, 70], &[9, 80], 0x41), None);
        }
        // Another one of the same entry does not disturb it.
        assert_eq!(note(&mut log, &[3, 71], &[9, 80], 0x42), None);
        assert_eq!(note(&mut log, &[3, 70], &[9, 80], 0x43), Some(0x41));
        assert_eq!(note(&mut log, &[3, 70], &[9, 80], 0x44), None);
    }

    #[test]
    fn entries_are_passed_in_turn_and_freed() {
        let mut log = LogBook::new(512);
        for set in 0..32 {
            for _ in 0..ONE_OF {
                note(&mut log, &[set, 0], &[0, 0], 0x40);
            }
        }
        let mut seen = 0;
        for _ in 0..8 {
            log.pass(|byte| {
                seen += u32::from(!is_untold(byte));
                EBBED
            });
        }
        assert_eq!(seen, 32);
        assert_eq!(note(&mut log, &[5, 0], &[0, 0], 0x41), None);
    }
}
