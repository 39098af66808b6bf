//! LRU: evicts the entry that was not used for the longest time.

use fairlead_cache::queue::Queue;

use super::{Registered, Residency};

pub(super) const REGISTERED: Registered = Registered {
    name: "lru",
    about: "least recently used (the paper's)",
    build: |entries, _| Box::new(Lru(Queue::new(entries as usize))),
};

#[derive(Debug)]
struct Lru(Queue);

impl Residency for Lru {
    fn on_insert(&mut self, entry: u32, _name: u64, _weight: u32) {
        self.0.push(entry);
    }

    fn on_hit(&mut self, entry: u32) {
        self.0.renew(entry);
    }

    fn victim(&mut self) -> Option<u32> {
        self.0.tail()
    }

    fn on_evict(&mut self, entry: u32) {
        self.0.remove(entry);
    }
}
