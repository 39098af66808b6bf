//! What must hold after every change. Debug builds check small structures each time, so that tests
//! and simulations find the change that broke one.

use crate::directory::{Directory, NONE};

/// Structures with more lines are not checked at every change: each check reads all of them.
const CHECKED_LINES_MAX: u32 = 64;

impl Directory {
    /// Checks all invariants: every block is found where it is, the list of free lines has all
    /// others, and no search passes over an empty bucket.
    ///
    /// # Panics
    /// When one is broken.
    pub fn check_invariants(&self) {
        let lines = self.lines();
        let held = self.buckets.iter().filter(|bucket| bucket.line != NONE);
        assert_eq!(held.count(), self.used as usize, "buckets in use");
        for line in 0..lines {
            let Some(key) = self.key_of(line) else {
                continue;
            };
            let found = self.find(key).map(|(_, there)| there);
            assert_eq!(found, Some(line), "{key:?} is in line {line}");
        }
        let (mut free, mut count) = (self.free, 0);
        while free != NONE {
            assert_eq!(self.key_of(free), None, "line {free} is free");
            count += 1;
            assert!(count <= lines, "the list of free lines is a circle");
            free = self.entries[free as usize].inode as u32;
        }
        assert_eq!(count + self.used, lines, "each line is free or in use");
    }

    #[inline]
    pub(crate) fn checked(&self) {
        if cfg!(debug_assertions) && self.lines() <= CHECKED_LINES_MAX {
            self.check_invariants();
        }
    }
}
