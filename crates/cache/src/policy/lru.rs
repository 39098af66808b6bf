//! `lru`: the least recent of all lines that the newcomer may have, in all banks.

use super::{Choice, Policy, Setup};
use crate::lines::{Access, Lines};

/// Exact recency over `B × W` lines.
#[derive(Clone, Copy, Debug)]
pub struct Lru;

impl<const B: usize, const W: usize> Policy<B, W> for Lru {
    fn new(_: &Setup) -> Self {
        Self
    }

    #[inline]
    fn choose(&mut self, lines: &mut Lines<B, W>, access: &Access<B>) -> Choice {
        Choice::Replace(lines.oldest_of(&access.first))
    }
}
