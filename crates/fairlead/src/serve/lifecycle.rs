//! Startup and shutdown: when the switch is ready, and how it stops on request.

use core::time::Duration;

use fairlead_base::Instant;

use crate::control;

/// How long startup waits for the servers' first answers, which determine the options offered to
/// clients.
pub(super) const PROBE_PATIENCE: Duration = Duration::from_millis(250);

/// How long shutdown waits for connections to be reset.
pub(super) const ABORT_PATIENCE: Duration = Duration::from_secs(5);

/// Phase between start and stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Packets flow; some servers have not answered yet.
    Starting { until: Instant },
    /// In service.
    Serving,
    /// No new connections; live ones may finish until then.
    Draining { until: Instant },
    /// All connections are being reset, until then at most.
    Aborting { until: Instant },
}

/// The next step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Continue.
    Continue,
    /// Announce that the switch is ready.
    AnnounceReady,
    /// Take no new connections.
    Drain,
    /// Reset all connections.
    Abort,
    /// Leave the loop.
    End,
}

/// State machine of the phases. The caller carries out its steps.
#[derive(Debug)]
pub(super) struct Lifecycle {
    phase: Phase,
    drain_timeout: Duration,
    cut_off: u64,
}

impl Lifecycle {
    /// Packets flow from `now` on.
    pub(super) fn new(now: Instant, drain_timeout: Duration) -> Self {
        Self {
            phase: Phase::Starting {
                until: now + PROBE_PATIENCE,
            },
            drain_timeout,
            cut_off: 0,
        }
    }

    /// Handles a termination signal: the first one drains, the next one stops at once.
    pub(super) fn handle_signal(&mut self, now: Instant, live: u64) -> Step {
        match self.phase {
            Phase::Starting { .. } | Phase::Serving if !self.drain_timeout.is_zero() => {
                self.phase = Phase::Draining {
                    until: now + self.drain_timeout,
                };
                Step::Drain
            }
            Phase::Starting { .. } | Phase::Serving | Phase::Draining { .. } => {
                self.abort(now, live)
            }
            Phase::Aborting { .. } => Step::End,
        }
    }

    /// Handles a drain order: begins a drain unless one has begun.
    pub(super) fn handle_drain(&mut self, now: Instant, live: u64) -> Step {
        match self.is_ending() {
            true => Step::Continue,
            false => self.handle_signal(now, live),
        }
    }

    /// Call after every round. `live` counts connections that are being set up or spliced;
    /// `servers_known` is true if every server has answered or failed to.
    pub(super) fn handle_round(
        &mut self,
        now: Instant,
        live: u64,
        servers_known: impl FnOnce() -> bool,
    ) -> Step {
        match self.phase {
            Phase::Starting { until } if now >= until || servers_known() => {
                self.phase = Phase::Serving;
                Step::AnnounceReady
            }
            Phase::Draining { .. } | Phase::Aborting { .. } if live == 0 => Step::End,
            Phase::Draining { until } if now >= until => self.abort(now, live),
            Phase::Aborting { until } if now >= until => Step::End,
            _ => Step::Continue,
        }
    }

    fn abort(&mut self, now: Instant, live: u64) -> Step {
        self.cut_off = live;
        self.phase = Phase::Aborting {
            until: now + ABORT_PATIENCE,
        };
        Step::Abort
    }

    /// When [`Self::handle_round`] must be called even if nothing else happens.
    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        match self.phase {
            Phase::Starting { until } | Phase::Draining { until } | Phase::Aborting { until } => {
                Some(until)
            }
            Phase::Serving => None,
        }
    }

    /// True until the switch has been announced as ready.
    pub(super) fn is_starting(&self) -> bool {
        matches!(self.phase, Phase::Starting { .. })
    }

    /// True once a stop was requested.
    pub(super) fn is_ending(&self) -> bool {
        matches!(self.phase, Phase::Draining { .. } | Phase::Aborting { .. })
    }

    /// The phase as the control socket reports it.
    pub(super) fn phase(&self) -> control::Phase {
        match self.phase {
            Phase::Starting { .. } => control::Phase::Starting,
            Phase::Serving => control::Phase::Serving,
            Phase::Draining { .. } => control::Phase::Draining,
            Phase::Aborting { .. } => control::Phase::Resetting,
        }
    }

    /// Connections that were live when they were aborted.
    pub(super) fn cut_off(&self) -> u64 {
        self.cut_off
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DRAIN: Duration = Duration::from_secs(30);

    fn at(millis: u64) -> Instant {
        Instant::from_millis(millis)
    }

    fn serving() -> Lifecycle {
        let mut life = Lifecycle::new(at(0), DRAIN);
        assert_eq!(life.handle_round(at(1), 0, || true), Step::AnnounceReady);
        life
    }

    #[test]
    fn is_ready_once_the_servers_are_known_or_patience_ends() {
        let mut life = Lifecycle::new(at(0), DRAIN);
        assert_eq!(life.handle_round(at(10), 0, || false), Step::Continue);
        assert!(life.is_starting());
        assert_eq!(life.poll_timeout(), Some(at(250)));
        assert_eq!(life.handle_round(at(249), 0, || false), Step::Continue);
        assert_eq!(life.handle_round(at(250), 0, || false), Step::AnnounceReady);
        assert_eq!(
            life.handle_round(at(251), 0, || true),
            Step::Continue,
            "announced twice"
        );
        assert_eq!(life.poll_timeout(), None);
        serving();
    }

    #[test]
    fn the_first_signal_drains_and_the_last_connection_ends() {
        let mut life = serving();
        assert_eq!(life.handle_signal(at(1_000), 2), Step::Drain);
        assert_eq!(life.handle_round(at(1_001), 2, || true), Step::Continue);
        assert_eq!(life.poll_timeout(), Some(at(31_000)));
        assert_eq!(life.handle_round(at(5_000), 0, || true), Step::End);
        assert_eq!(life.cut_off(), 0);
    }

    #[test]
    fn a_signal_while_starting_drains_too() {
        let mut life = Lifecycle::new(at(0), DRAIN);
        assert_eq!(life.handle_signal(at(5), 0), Step::Drain);
        assert_eq!(life.handle_round(at(5), 0, || false), Step::End);
    }

    #[test]
    fn draining_too_long_aborts_and_aborting_too_long_ends() {
        let mut life = serving();
        life.handle_signal(at(1_000), 3);
        assert_eq!(life.handle_round(at(30_999), 3, || true), Step::Continue);
        assert_eq!(life.handle_round(at(31_000), 3, || true), Step::Abort);
        assert_eq!(life.cut_off(), 3);
        assert_eq!(life.handle_round(at(31_001), 1, || true), Step::Continue);
        assert_eq!(life.handle_round(at(36_000), 1, || true), Step::End);
    }

    #[test]
    fn the_second_signal_aborts_and_the_third_ends_at_once() {
        let mut life = serving();
        assert_eq!(life.handle_signal(at(1_000), 5), Step::Drain);
        assert_eq!(life.handle_signal(at(1_001), 5), Step::Abort);
        assert_eq!(life.handle_round(at(1_002), 0, || true), Step::End);
        let mut stuck = serving();
        for step in [Step::Drain, Step::Abort, Step::End] {
            assert_eq!(stuck.handle_signal(at(2_000), 5), step);
        }
    }

    #[test]
    fn a_drain_that_is_asked_for_twice_resets_nothing() {
        let mut life = serving();
        assert_eq!(life.handle_drain(at(1_000), 2), Step::Drain);
        assert_eq!(life.handle_drain(at(2_000), 2), Step::Continue);
        assert_eq!(life.poll_timeout(), Some(at(31_000)), "of the first");
        assert_eq!(life.phase(), control::Phase::Draining);
        assert_eq!(
            life.handle_signal(at(3_000), 2),
            Step::Abort,
            "a signal does"
        );
        assert_eq!(life.handle_drain(at(3_001), 2), Step::Continue);
        assert_eq!(life.phase(), control::Phase::Resetting);
    }

    #[test]
    fn without_time_to_drain_the_first_signal_aborts() {
        let mut life = Lifecycle::new(at(0), Duration::ZERO);
        life.handle_round(at(1), 0, || true);
        assert_eq!(life.handle_signal(at(2), 1), Step::Abort);
        assert_eq!(life.cut_off(), 1);
    }
}
