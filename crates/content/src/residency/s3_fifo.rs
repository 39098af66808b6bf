//! S3-FIFO (Yang et al., SOSP 2023): a small queue, a main queue, ghosts. As
//! `fairlead_cache::bounds::s3_fifo`, with weights.

use fairlead_cache::queue::Queue;

use super::ghosts::Ghosts;
use super::{Registered, Residency};

pub(super) const REGISTERED: Registered = Registered {
    name: "s3-fifo",
    about: "a small queue for newcomers, a main queue, names of evicted ones",
    build: |entries, blocks| Box::new(S3Fifo::new(entries, blocks)),
};

/// Uses counted per entry.
const COUNT_MAX: u8 = 3;
/// Uses in the small queue from which on an entry moves to the main queue.
const MOVES_FROM: u8 = 2;

#[derive(Debug)]
struct S3Fifo {
    small: Queue,
    main: Queue,
    small_weight: u64,
    main_weight: u64,
    small_max: u64,
    main_max: u64,
    counts: Vec<u8>,
    is_small: Vec<bool>,
    weights: Vec<u32>,
    names: Vec<u64>,
    ghosts: Ghosts,
    is_returning: bool,
    has_evicted: bool,
}

impl S3Fifo {
    fn new(entries: u32, blocks: u64) -> Self {
        let count = entries as usize;
        let small_max = (blocks / 10).max(1);
        Self {
            small: Queue::new(count),
            main: Queue::new(count),
            small_weight: 0,
            main_weight: 0,
            small_max,
            main_max: blocks - small_max.min(blocks),
            counts: vec![0; count],
            is_small: vec![false; count],
            weights: vec![0; count],
            names: vec![0; count],
            ghosts: Ghosts::new((f64::from(entries) * 0.9) as u32),
            is_returning: false,
            has_evicted: false,
        }
    }

    /// The small queue's victim. All that was used often enough moves on, whatever the main queue's
    /// weight then is.
    fn small_victim(&mut self) -> Option<u32> {
        loop {
            let entry = self.small.tail()?;
            if self.counts[entry as usize] < MOVES_FROM {
                return Some(entry);
            }
            self.take(entry);
            self.counts[entry as usize] = 0;
            self.put(entry, false);
        }
    }

    fn main_victim(&mut self) -> Option<u32> {
        loop {
            let entry = self.main.tail()?;
            let count = &mut self.counts[entry as usize];
            if *count == 0 {
                return Some(entry);
            }
            *count -= 1;
            self.main.renew(entry);
        }
    }

    fn put(&mut self, entry: u32, is_small: bool) {
        let weight = u64::from(self.weights[entry as usize]);
        self.is_small[entry as usize] = is_small;
        if is_small {
            self.small.push(entry);
            self.small_weight += weight;
        } else {
            self.main.push(entry);
            self.main_weight += weight;
        }
    }

    fn take(&mut self, entry: u32) {
        let weight = u64::from(self.weights[entry as usize]);
        if self.is_small[entry as usize] {
            self.small.remove(entry);
            self.small_weight -= weight;
        } else {
            self.main.remove(entry);
            self.main_weight -= weight;
        }
    }
}

impl Residency for S3Fifo {
    fn on_miss(&mut self, name: u64) {
        self.is_returning = self.ghosts.forget(name);
    }

    fn on_insert(&mut self, entry: u32, name: u64, weight: u32) {
        self.counts[entry as usize] = 0;
        self.weights[entry as usize] = weight;
        self.names[entry as usize] = name;
        // While the cache fills, overflow of the small queue goes to the main one.
        let fills = !self.has_evicted && self.small_weight >= self.small_max;
        let is_returning = core::mem::take(&mut self.is_returning);
        self.put(entry, !(is_returning || fills));
    }

    fn on_hit(&mut self, entry: u32) {
        let count = &mut self.counts[entry as usize];
        *count = (*count + 1).min(COUNT_MAX);
    }

    /// From the small queue, or from the main one if that is too heavy or the small one has no
    /// victim.
    fn victim(&mut self) -> Option<u32> {
        if self.main_weight <= self.main_max
            && let Some(entry) = self.small_victim()
        {
            return Some(entry);
        }
        self.main_victim().or_else(|| self.small_victim())
    }

    fn on_evict(&mut self, entry: u32) {
        self.has_evicted = true;
        if self.is_small[entry as usize] {
            self.ghosts.remember(self.names[entry as usize]);
        }
        self.take(entry);
    }

    fn on_remove(&mut self, entry: u32) {
        self.take(entry);
    }
}
