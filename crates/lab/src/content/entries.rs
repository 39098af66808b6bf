//! Caches under any policy, by the residency code of the live path.

use fairlead_content::{Policy, Residency};

/// A cache of numbered items: blocks, or whole files with weights.
#[derive(Debug)]
pub(super) struct Entries {
    residency: Box<dyn Residency + Send>,
    /// By item: its entry.
    entry_of: Vec<u32>,
    /// By entry: its item, and the item's weight.
    item_in: Vec<(u32, u32)>,
    free: Vec<u32>,
    weight: u64,
    capacity: u64,
}

const NONE: u32 = u32::MAX;

impl Entries {
    /// For `items` items, in `capacity` blocks.
    pub(super) fn new(policy: Policy, items: usize, capacity: u64) -> Self {
        let entries = capacity.min(items as u64) as u32;
        Self {
            residency: policy.build(entries, capacity),
            entry_of: vec![NONE; items],
            item_in: vec![(NONE, 0); entries as usize],
            free: (0..entries).rev().collect(),
            weight: 0,
            capacity,
        }
    }

    /// True for a hit. An item of at most the capacity is inserted otherwise.
    #[inline]
    pub(super) fn access(&mut self, item: u32, weight: u32) -> bool {
        let entry = self.entry_of[item as usize];
        if entry != NONE {
            self.residency.on_hit(entry);
            return true;
        }
        if u64::from(weight) <= self.capacity {
            self.insert(item, weight);
        }
        false
    }

    fn insert(&mut self, item: u32, weight: u32) {
        self.residency.on_miss(u64::from(item));
        while self.weight + u64::from(weight) > self.capacity || self.free.is_empty() {
            let Some(victim) = self.residency.victim() else {
                return;
            };
            self.residency.on_evict(victim);
            let (gone, freed) = self.item_in[victim as usize];
            self.entry_of[gone as usize] = NONE;
            self.weight -= u64::from(freed);
            self.free.push(victim);
        }
        let Some(entry) = self.free.pop() else {
            return;
        };
        self.entry_of[item as usize] = entry;
        self.item_in[entry as usize] = (item, weight);
        self.weight += u64::from(weight);
        self.residency.on_insert(entry, u64::from(item), weight);
    }
}
