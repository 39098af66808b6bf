//! CLOCK: first in, first out, with a second chance for entries that were used.

use fairlead_cache::queue::Queue;

use super::{Registered, Residency};

pub(super) const REGISTERED: Registered = Registered {
    name: "clock",
    about: "first in, first out, with a second chance for used entries",
    build: |entries, _| {
        Box::new(Clock {
            queue: Queue::new(entries as usize),
            is_used: vec![false; entries as usize],
        })
    },
};

#[derive(Debug)]
struct Clock {
    queue: Queue,
    is_used: Vec<bool>,
}

impl Residency for Clock {
    fn on_insert(&mut self, entry: u32, _name: u64, _weight: u32) {
        self.is_used[entry as usize] = false;
        self.queue.push(entry);
    }

    fn on_hit(&mut self, entry: u32) {
        self.is_used[entry as usize] = true;
    }

    fn victim(&mut self) -> Option<u32> {
        loop {
            let entry = self.queue.tail()?;
            if !core::mem::replace(&mut self.is_used[entry as usize], false) {
                return Some(entry);
            }
            self.queue.renew(entry);
        }
    }

    fn on_evict(&mut self, entry: u32) {
        self.queue.remove(entry);
    }
}
