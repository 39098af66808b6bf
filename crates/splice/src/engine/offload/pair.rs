//! Pairs in the hand of a fast path outside: it must know the addresses that their records name,
//! and what these records lack.

use fairlead_tcp::{Line, PairOffload};

use super::Custody;
use crate::engine::Switch;

impl Switch {
    fn pair_offload(&mut self) -> Option<&mut dyn PairOffload> {
        self.offload.fast_path.as_mut()?.pairs()
    }

    /// Tells the fast path the addresses of a pair, and has packets of its keys come to the engine
    /// until it is handed over.
    pub(in crate::engine) fn introduce_pair(&mut self, line: Line) {
        let notes = self.pair_notes(line).to_vec();
        let (record, endpoints) = (self.table.record(line), self.table.endpoints());
        let fast_path = self.offload.fast_path.as_mut();
        let placed = fast_path
            .and_then(|fast_path| fast_path.pairs())
            .is_some_and(|pairs| pairs.place_pair(line, record, endpoints, &notes));
        if let Some(pair) = self.pair_mut(line) {
            pair.placed = placed;
        }
    }

    /// Tells the fast path what a pair's record lacks, before it is handed over. False when it
    /// stays with the engine.
    pub(super) fn describe_pair(&mut self, line: Line) -> bool {
        if self.offload.custody.of(line) != Custody::Engine {
            return true; // it knows
        }
        let Some(pair) = self.pair_mut(line).copied().filter(|pair| pair.placed) else {
            return false;
        };
        let pairs = self.pair_offload();
        pairs.is_some_and(|pairs| pairs.describe_pair(line, &pair.second, &pair.seen))
    }

    /// Learns what the fast path has seen of a pair's ends. Of an end that was silent, what the
    /// engine has seen before is what the fast path was told.
    pub(super) fn learn_pair_seen(&mut self, line: Line) {
        if self.pair_mut(line).is_none() {
            return;
        }
        let seen = self.pair_offload().map(|pairs| pairs.pair_seen(line));
        if let (Some(seen), Some(pair)) = (seen, self.pair_mut(line)) {
            pair.seen = seen;
        }
    }

    /// A pair's line is free.
    pub(in crate::engine) fn forget_offloaded_pair(&mut self, line: Line) {
        if let Some(pairs) = self.pair_offload() {
            pairs.forget_pair(line);
        }
    }
}
