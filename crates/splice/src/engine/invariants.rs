//! What holds between two calls from outside, whatever came before.
//!
//! Everything that is kept twice must agree: who holds a connection and what is kept for it, sums
//! and what they are sums of, queues and what stands in them.

use fairlead_tcp::record::flag;
use fairlead_tcp::ticket::TICKETS_MAX;
use fairlead_tcp::{Line, State};

use super::Switch;
use super::offload::Custody;
use crate::backends::ServerId;

/// In debug builds, tables up to this high are checked whole after each call; of others the line
/// that the call was about.
const CHECKED_WHOLE: u32 = 32;

/// What all lines add up to.
#[derive(Debug, Default)]
struct Sums {
    used: u32,
    live: u64,
    resting: u64,
    setups: usize,
    /// Connections of each server, by [`ServerId`].
    of_servers: Vec<u32>,
}

impl Switch {
    /// Panics unless all that is kept agrees. Its time is linear in the size of the table: for
    /// tests and simulations.
    ///
    /// # Panics
    /// When an invariant does not hold: a fault in this crate.
    pub fn check_invariants(&self) {
        let mut sums = Sums {
            of_servers: vec![0; self.backends.servers().count()],
            ..Sums::default()
        };
        for line in (0..self.table.high_water()).map(Line) {
            self.check_line(line);
            self.add_line(line, &mut sums);
        }
        assert_eq!(sums.used, self.table.used(), "records in use");
        assert_eq!(sums.live, self.counts.live, "spliced connections");
        assert_eq!(sums.resting, self.counts.resting, "records at rest");
        assert_eq!(sums.setups, self.setups.used(), "set-ups without a line");
        for (id, connections) in (0..).map(ServerId).zip(sums.of_servers) {
            assert_eq!(connections, self.backends.active(id), "load of {id:?}");
        }
        self.setups.check();
        self.details.check();
        self.timers.check(&self.setups);
        self.check_places();
        self.check_lanes();
    }

    /// The cheap part of [`Self::check_invariants`], after a call that was about this line, in
    /// debug builds.
    #[inline]
    pub(super) fn debug_check(&self, line: Option<Line>) {
        if !cfg!(debug_assertions) {
            return;
        }
        if self.table.high_water() <= CHECKED_WHOLE {
            self.check_invariants();
        } else if let Some(line) = line {
            self.check_line(line);
        }
    }

    /// Who holds a connection fits its state, and what is kept for it.
    fn check_line(&self, line: Line) {
        let record = self.table.record(line);
        let (state, held) = (record.state, record.flags & flag::HELD != 0);
        let joined = state.is_live() || state.is_resting();
        let setup = self.setup_of(line);
        let custody = self.custody(line);
        let fits = match custody {
            Custody::Engine => match state {
                State::Free => setup.is_none(),
                State::Established | State::SynSent | State::Answering => setup.is_some(),
                _ => setup.is_some() == held,
            },
            Custody::Connecting { .. } => state == State::SynSent && setup.is_some(),
            Custody::Kernel => joined && !held && setup.is_none(),
            Custody::Ticket { place, .. } => {
                let named = u32::from(record.client_port) == place;
                state == State::SynSent && setup.is_none() && named
            }
        };
        assert!(fits, "{line:?}: {custody:?}, {setup:?}, {record:?}");
        if let Some(setup) = setup.and_then(|id| self.setups.peek(id)) {
            assert_eq!(setup.line, line, "whose set-up this is");
        }
    }

    fn add_line(&self, line: Line, sums: &mut Sums) {
        let record = self.table.record(line);
        let setup = self.setup_of(line).is_some();
        sums.used += u32::from(record.state != State::Free);
        sums.live += u64::from(record.state.is_live());
        sums.resting += u64::from(record.state.is_resting());
        sums.setups += usize::from(setup);
        let asked = record.state == State::SynSent && setup;
        if (asked || record.state.is_live())
            && let Some(id) = self.places.server(record.server)
        {
            sums.of_servers[usize::from(id.0)] += 1;
        }
    }

    /// Every place of a ticket is free, or one connection's.
    fn check_places(&self) {
        let held = self.custodies().others();
        let held = held.filter_map(|(_, custody)| custody.place());
        let mut all: Vec<u32> = held.collect();
        all.extend(self.custodies().free_places());
        all.sort_unstable();
        let whole = all.iter().copied().eq(0..TICKETS_MAX);
        assert!(all.is_empty() || whole, "places: {all:?}");
    }

    /// Each lane knows how many of its tickets are out.
    fn check_lanes(&self) {
        let mut tickets = vec![0; self.tickets_by_lane().count()];
        for (_, custody) in self.custodies().others() {
            if let Custody::Ticket { lane, .. } = custody {
                tickets[usize::from(lane)] += 1;
            }
        }
        assert!(tickets.into_iter().eq(self.tickets_by_lane()), "tickets");
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use fairlead_base::{Instant, Seed};
    use fairlead_tcp::Record;

    use super::*;
    use crate::config::Config;

    /// What the check says of a switch that was changed behind its back.
    fn complaint(spoil: impl FnOnce(&mut Switch)) -> String {
        let config = Config::new(Vec::new(), Vec::new());
        let mut switch = Switch::new(config, Seed::from(1), Instant::ZERO).unwrap();
        switch.check_invariants();
        spoil(&mut switch);
        let panic = catch_unwind(AssertUnwindSafe(|| switch.check_invariants())).unwrap_err();
        *panic.downcast::<String>().expect("a message")
    }

    fn with_record(switch: &mut Switch, state: State) -> Line {
        let record = Record {
            state,
            ..Record::default()
        };
        switch.table.insert(record, 0).unwrap()
    }

    #[test]
    fn wrong_counts_are_found() {
        let live = complaint(|switch| switch.counts.live += 1);
        assert!(live.contains("spliced connections"), "{live}");
        let resting = complaint(|switch| switch.counts.resting += 1);
        assert!(resting.contains("records at rest"), "{resting}");
        let uncounted = complaint(|switch| {
            with_record(switch, State::Spliced);
        });
        assert!(uncounted.contains("spliced connections"), "{uncounted}");
    }

    #[test]
    fn a_holder_that_does_not_fit_the_state_is_found() {
        for (state, custody) in [
            (State::Established, Custody::Engine),
            (State::SynSent, Custody::Connecting { place: None }),
            (State::SynSent, Custody::Kernel),
            (State::Spliced, Custody::Connecting { place: None }),
        ] {
            let said = complaint(|switch| {
                let line = with_record(switch, state);
                if custody != Custody::Engine {
                    switch.pass_to(line, custody);
                }
            });
            assert!(said.contains(&format!("{custody:?}")), "{said}");
        }
    }
}
