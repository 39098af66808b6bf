//! FIFO: evicts the entry that was inserted first.

use fairlead_cache::queue::Queue;

use super::{Registered, Residency};

pub(super) const REGISTERED: Registered = Registered {
    name: "fifo",
    about: "first in, first out",
    build: |entries, _| Box::new(Fifo(Queue::new(entries as usize))),
};

#[derive(Debug)]
struct Fifo(Queue);

impl Residency for Fifo {
    fn on_insert(&mut self, entry: u32, _name: u64, _weight: u32) {
        self.0.push(entry);
    }

    fn on_hit(&mut self, _entry: u32) {}

    fn victim(&mut self) -> Option<u32> {
        self.0.tail()
    }

    fn on_evict(&mut self, entry: u32) {
        self.0.remove(entry);
    }
}
