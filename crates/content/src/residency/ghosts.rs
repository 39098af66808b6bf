//! Names of entries that were evicted, without their contents. A fixed number is remembered.

use fairlead_cache::queue::Queue;

#[derive(Debug)]
pub(super) struct Ghosts {
    /// Numbers of remembered names, the latest at the head.
    order: Queue,
    names: Vec<u64>,
    /// Numbers that hold no name.
    free: Vec<u32>,
    /// Open addressing by name, twice as many as numbers.
    buckets: Vec<u32>,
}

const NONE: u32 = u32::MAX;

impl Ghosts {
    pub(super) fn new(count: u32) -> Self {
        Self {
            order: Queue::new(count as usize),
            names: vec![0; count as usize],
            free: (0..count).rev().collect(),
            buckets: vec![NONE; 2 * count as usize],
        }
    }

    /// Remembers a name, and forgets the oldest if there is no room.
    pub(super) fn remember(&mut self, name: u64) {
        if self.buckets.is_empty() || self.find(name).is_some() {
            return;
        }
        if self.free.is_empty()
            && let Some(oldest) = self.order.tail()
        {
            self.forget(self.names[oldest as usize]);
        }
        let Some(number) = self.free.pop() else {
            return;
        };
        self.names[number as usize] = name;
        self.order.push(number);
        let mut at = self.home(name);
        while self.buckets[at] != NONE {
            at = self.next(at);
        }
        self.buckets[at] = number;
    }

    /// Forgets a name; true if it was remembered.
    pub(super) fn forget(&mut self, name: u64) -> bool {
        let Some(mut gap) = self.find(name) else {
            return false;
        };
        let number = self.buckets[gap];
        self.order.remove(number);
        self.free.push(number);
        let count = self.buckets.len();
        let mut at = self.next(gap);
        while self.buckets[at] != NONE {
            let home = self.home(self.names[self.buckets[at] as usize]);
            if (gap + count - home) % count < (at + count - home) % count {
                self.buckets[gap] = self.buckets[at];
                gap = at;
            }
            at = self.next(at);
        }
        self.buckets[gap] = NONE;
        true
    }

    fn find(&self, name: u64) -> Option<usize> {
        if self.buckets.is_empty() {
            return None;
        }
        let mut at = self.home(name);
        while self.buckets[at] != NONE {
            if self.names[self.buckets[at] as usize] == name {
                return Some(at);
            }
            at = self.next(at);
        }
        None
    }

    fn home(&self, name: u64) -> usize {
        // Names may be small numbers.
        let mixed = name.wrapping_mul(0x9E37_79B9_7F4A_7C15);
        ((u128::from(mixed) * self.buckets.len() as u128) >> 64) as usize
    }

    fn next(&self, at: usize) -> usize {
        if at + 1 == self.buckets.len() {
            0
        } else {
            at + 1
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use fairlead_base::Rng;

    use super::*;

    #[test]
    fn the_latest_names_are_remembered() {
        for seed in 0..32 {
            let mut rng = Rng::new(seed);
            let count = rng.below(12);
            let mut ghosts = Ghosts::new(count);
            let mut model = VecDeque::new();
            for _ in 0..500 {
                let name = u64::from(rng.below(30));
                if rng.chance(500_000) {
                    ghosts.remember(name);
                    if count > 0 && !model.contains(&name) {
                        if model.len() == count as usize {
                            model.pop_front();
                        }
                        model.push_back(name);
                    }
                } else {
                    let known = model.contains(&name);
                    assert_eq!(ghosts.forget(name), known);
                    model.retain(|other| *other != name);
                }
            }
        }
    }
}
