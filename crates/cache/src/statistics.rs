//! What a cache counts.

/// Counts since the beginning, or since the end of a warm-up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Statistics {
    /// Look-ups.
    pub accesses: u64,
    /// Lookups that missed: `fills + bypasses`, if each is followed by a fill.
    pub misses: u64,
    /// First accesses to a session identifier; counted only in the lab.
    pub cold_misses: u64,
    /// Lines moved into another of their sets.
    pub migrations: u64,
    /// Hits in a set of a second function.
    pub second_lookup_hits: u64,
    /// Newcomers not inserted.
    pub bypasses: u64,
    /// Newcomers inserted.
    pub fills: u64,
    /// Evictions: fills of occupied lines, or moves onto them.
    pub evictions: u64,
    /// Of these, lines that were ON.
    pub evicted_on: u64,
}

impl Statistics {
    /// Hits.
    pub fn hits(&self) -> u64 {
        self.accesses - self.misses
    }

    /// Adds a block of accesses in which every miss was given a line.
    pub(crate) fn add_block(&mut self, accesses: u64, misses: u64, evictions: u64, on: u64) {
        self.accesses += accesses;
        self.misses += misses;
        self.fills += misses;
        self.evictions += evictions;
        self.evicted_on += on;
    }

    /// Adds what was counted since, cold misses apart.
    pub(crate) fn add(&mut self, since: &Self) {
        self.accesses += since.accesses;
        self.misses += since.misses;
        self.migrations += since.migrations;
        self.second_lookup_hits += since.second_lookup_hits;
        self.bypasses += since.bypasses;
        self.fills += since.fills;
        self.evictions += since.evictions;
        self.evicted_on += since.evicted_on;
    }

    /// Misses a look-up; 0 when there were none.
    pub fn miss_ratio(&self) -> f64 {
        if self.accesses == 0 {
            return 0.0;
        }
        self.misses as f64 / self.accesses as f64
    }
}
