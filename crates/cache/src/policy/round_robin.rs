//! `rr`: banks in turn (paper, section 4.4, "TCB (RR)").

use super::{Choice, Policy, Setup};
use crate::lines::{Access, Lines};

/// Each newcomer goes to the next bank, over the least recent line of its set there.
#[derive(Clone, Copy, Debug)]
pub struct RoundRobin {
    next: usize,
}

impl<const B: usize, const W: usize> Policy<B, W> for RoundRobin {
    fn new(_: &Setup) -> Self {
        Self { next: 0 }
    }

    #[inline]
    fn choose(&mut self, lines: &mut Lines<B, W>, access: &Access<B>) -> Choice {
        let set = access.first[self.next % B];
        self.next = (self.next + 1) % B;
        Choice::Replace(lines.oldest(set))
    }
}
