//! Which servers are how busy, while connections end in a fast path outside.
//!
//! The sweep learns of such an end within a second, in which a pool that goes by open connections
//! would choose by old numbers. So the connections of such pools stand in a queue. Whenever one of
//! these pools is about to choose, some at the queue's head are looked at: what has ended leaves,
//! and its server is known to have one less; the others go to the end. Where connections are short,
//! those that stand there are few, and numbers nearly right; among many long ones few end.

use std::collections::VecDeque;

use fairlead_base::Instant;
use fairlead_tcp::Line;

use crate::config::PoolId;
use crate::engine::Switch;

/// Connections that are looked at for each choice. With `n` of them open for long, ends that are
/// not known level off where as many are found as come: at about a third of `n`.
const LOOKS: usize = 4;

/// Spliced connections of pools that go by their number, each once.
#[derive(Debug, Default)]
pub(super) struct Loads {
    queue: VecDeque<Line>,
}

impl Switch {
    fn goes_by_load(&self, pool: PoolId) -> bool {
        let balance = &self.config.pools[usize::from(pool.0)].balance;
        self.has_fast_path() && balance.goes_by_load()
    }

    /// Notes that a connection is spliced.
    pub(in crate::engine) fn watch_load(&mut self, line: Line) {
        let server = self.places.server(self.table.record(line).server);
        let pool = server.map(|id| self.backends.server(id).0);
        if pool.is_some_and(|pool| self.goes_by_load(pool)) {
            self.offload.loads.queue.push_back(line);
        }
    }

    /// Learns of some ends before this pool chooses.
    pub(in crate::engine) fn look_at_loads(&mut self, now: Instant, pool: PoolId) {
        if !self.goes_by_load(pool) {
            return;
        }
        self.look_at_armed(now, LOOKS);
        for _ in 0..LOOKS.min(self.offload.loads.queue.len()) {
            let Some(line) = self.offload.loads.queue.pop_front() else {
                return;
            };
            self.catch_up(now, line);
            // An end that the sweep has found first left its line here, which another connection
            // may have by now: there are never more entries than lines in use.
            let room = self.offload.loads.queue.len() < self.table.used() as usize;
            if self.table.record(line).state.is_live() && room {
                self.offload.loads.queue.push_back(line);
            }
        }
    }
}
