//! Counters.

use crate::reason::Reason;

/// Counters since the cache was made, and its sizes now.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Requests that the cache decided about.
    pub requests: u64,
    /// Answered from the cache without a server.
    pub hits: u64,
    /// Of the hits, answered by the kernel: [`Cache::note_offered`](crate::Cache::note_offered).
    pub kernel_hits: u64,
    /// Of the hits, stale, with validation in the background.
    pub stale_hits: u64,
    /// Answered from the cache because the server failed.
    pub errors_replaced: u64,
    /// Requests to servers that the cache asked for, without validations.
    pub misses: u64,
    /// Requests to servers that validate a stored response.
    pub validations: u64,
    /// Of these, answered with 304.
    pub validated: u64,
    /// Requests that waited for another one's response.
    pub collapsed: u64,
    /// Requests that the cache took no part in.
    pub passed: u64,
    /// Responses that were stored as a whole.
    pub stored: u64,
    /// Objects that were evicted to make room.
    pub evicted: u64,
    /// Purges that were ordered.
    pub purges: u64,
    /// Objects that were dropped because of a purge.
    pub purged: u64,
    /// Objects that were dropped after an unsafe method.
    pub invalidated: u64,
    /// Objects of an earlier process that were taken over.
    pub restored: u64,
    /// Objects of an earlier process that were dropped: damaged, purged, or without room.
    pub not_restored: u64,
    /// Bytes of bodies read from the cache.
    pub bytes_served: u64,
    /// Bytes of bodies that servers sent to be stored.
    pub bytes_fetched: u64,
    /// How often something did not happen, by reason.
    pub reasons: ReasonCounts,
    /// Objects now, also those that are being filled or only still read.
    pub objects: u64,
    /// Memory now, of all kinds.
    pub bytes_used: u64,
    /// Memory of bodies now.
    pub body_bytes: u64,
    /// Fetches now.
    pub fetches: u64,
    /// Waiters now.
    pub waiters: u64,
    /// Readers now.
    pub readers: u64,
}

impl Stats {
    pub(crate) fn count(&mut self, reason: Reason) {
        self.reasons.0[reason as usize] += 1;
    }

    /// How often something did not happen for this reason.
    pub fn reason(&self, reason: Reason) -> u64 {
        self.reasons.0[reason as usize]
    }
}

/// Counts by [`Reason`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReasonCounts([u64; Reason::ALL.len()]);

impl Default for ReasonCounts {
    fn default() -> Self {
        Self([0; Reason::ALL.len()])
    }
}

impl ReasonCounts {
    /// Each reason with its count.
    pub fn iter(&self) -> impl Iterator<Item = (Reason, u64)> + '_ {
        Reason::ALL.iter().copied().zip(self.0)
    }
}
