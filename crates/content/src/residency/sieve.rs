//! SIEVE (Zhang et al., NSDI 2024): one bit per entry, one hand, and entries stay in place.

use fairlead_cache::queue::Queue;

use super::{Registered, Residency};

pub(super) const REGISTERED: Registered = Registered {
    name: "sieve",
    about: "a hand passes over used entries, which stay in place",
    build: |entries, _| {
        Box::new(Sieve {
            queue: Queue::new(entries as usize),
            is_used: vec![false; entries as usize],
            hand: None,
        })
    },
};

#[derive(Debug)]
struct Sieve {
    queue: Queue,
    is_used: Vec<bool>,
    /// Where the next search begins; the tail if `None`.
    hand: Option<u32>,
}

impl Residency for Sieve {
    fn on_insert(&mut self, entry: u32, _name: u64, _weight: u32) {
        self.is_used[entry as usize] = false;
        self.queue.push(entry);
    }

    fn on_hit(&mut self, entry: u32) {
        self.is_used[entry as usize] = true;
    }

    fn victim(&mut self) -> Option<u32> {
        let mut entry = self.hand.or(self.queue.tail())?;
        while core::mem::replace(&mut self.is_used[entry as usize], false) {
            entry = self.queue.ahead(entry).or(self.queue.tail())?;
        }
        self.hand = Some(entry);
        Some(entry)
    }

    fn on_evict(&mut self, entry: u32) {
        if self.hand == Some(entry) {
            self.hand = self.queue.ahead(entry);
        }
        self.queue.remove(entry);
    }
}
