//! GDSF, greedy dual with size and frequency (Cherkasova, 1998): an entry's priority is the age of
//! the cache when it was last used, plus its uses divided by its weight. The lowest is evicted, and
//! the cache's age becomes its priority.

use super::{Registered, Residency};

pub(super) const REGISTERED: Registered = Registered {
    name: "gdsf",
    about: "greedy dual: uses per block, and age",
    build: |entries, _| Box::new(Gdsf::new(entries)),
};

#[derive(Debug)]
struct Gdsf {
    age: f64,
    /// A binary heap of entries, the next to be evicted first.
    heap: Vec<u32>,
    /// By entry: its place in the heap.
    place: Vec<u32>,
    ranks: Vec<Rank>,
    uses: Vec<u32>,
    weights: Vec<u32>,
    /// Of two equal priorities the one that is older is evicted.
    turn: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, PartialOrd)]
struct Rank {
    priority: f64,
    turn: u64,
}

impl Gdsf {
    fn new(entries: u32) -> Self {
        let count = entries as usize;
        Self {
            age: 0.0,
            heap: Vec::with_capacity(count),
            place: vec![0; count],
            ranks: vec![Rank::default(); count],
            uses: vec![0; count],
            weights: vec![1; count],
            turn: 0,
        }
    }

    fn rank(&mut self, entry: u32) {
        let entry = entry as usize;
        self.turn += 1;
        self.ranks[entry] = Rank {
            priority: self.age + f64::from(self.uses[entry]) / f64::from(self.weights[entry]),
            turn: self.turn,
        };
    }

    fn is_before(&self, left: usize, right: usize) -> bool {
        let rank = |at: usize| self.ranks[self.heap[at] as usize];
        rank(left) < rank(right)
    }

    fn swap(&mut self, left: usize, right: usize) {
        self.heap.swap(left, right);
        self.place[self.heap[left] as usize] = left as u32;
        self.place[self.heap[right] as usize] = right as u32;
    }

    fn rise(&mut self, mut at: usize) {
        while at > 0 && self.is_before(at, (at - 1) / 2) {
            self.swap(at, (at - 1) / 2);
            at = (at - 1) / 2;
        }
    }

    fn sink(&mut self, mut at: usize) {
        loop {
            let mut first = at;
            for child in [2 * at + 1, 2 * at + 2] {
                if child < self.heap.len() && self.is_before(child, first) {
                    first = child;
                }
            }
            if first == at {
                return;
            }
            self.swap(at, first);
            at = first;
        }
    }
}

impl Residency for Gdsf {
    fn on_insert(&mut self, entry: u32, _name: u64, weight: u32) {
        self.uses[entry as usize] = 1;
        self.weights[entry as usize] = weight.max(1);
        self.rank(entry);
        self.place[entry as usize] = self.heap.len() as u32;
        self.heap.push(entry);
        self.rise(self.heap.len() - 1);
    }

    fn on_hit(&mut self, entry: u32) {
        let uses = &mut self.uses[entry as usize];
        *uses = uses.saturating_add(1);
        self.rank(entry);
        self.sink(self.place[entry as usize] as usize);
    }

    fn victim(&mut self) -> Option<u32> {
        self.heap.first().copied()
    }

    fn on_evict(&mut self, entry: u32) {
        self.age = self.ranks[entry as usize].priority;
        self.on_remove(entry);
    }

    fn on_remove(&mut self, entry: u32) {
        let at = self.place[entry as usize] as usize;
        let last = self.heap.len() - 1;
        self.swap(at, last);
        self.heap.pop();
        if at < last {
            self.rise(at);
            self.sink(at);
        }
    }
}
