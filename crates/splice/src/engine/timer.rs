//! Time: exact timers for the few connections in set-up, a sweep over the many that are joined.

use core::time::Duration;
use std::collections::BTreeSet;

use fairlead_base::{DropReason, Instant};
use fairlead_tcp::record::flag;
use fairlead_tcp::{Line, State};
use fairlead_wire::Asked;

use super::connect::Failure;
use super::head::Refusal;
use super::setup::{SetupId, Setups};
use super::{Switch, head};
use crate::event::End;

/// Every record is looked at once in this time; so late an idle connection may be found.
const SWEEP_CYCLE: Duration = Duration::from_secs(1);

/// The sweep goes in this many steps a cycle.
const SWEEP_STEPS: u32 = 20;

/// Time between two of them.
pub(super) const SWEEP_STEP: Duration =
    Duration::from_millis(SWEEP_CYCLE.as_millis() as u64 / SWEEP_STEPS as u64);

/// Records ended by one step when everything is aborted.
const ABORT_LINES: u32 = 4_096;

/// How long what the switch holds, and the source towards the server, stay after a RST, which may
/// be refused (RFC 5961).
pub(super) const RESET_HOLD_MS: u32 = 3_000;

/// Lines that are looked at for one at rest when the table is full, at most.
const HAND_LINES: u32 = 64;

/// Set-ups handled in one call, at most.
const TIMERS_AT_ONCE: usize = 4_096;

/// When set-ups want attention: one entry for each that does, so that there are never more entries
/// than set-ups.
#[derive(Debug, Default)]
pub(super) struct Timers {
    due: BTreeSet<(Instant, SetupId)>,
}

impl Timers {
    fn next(&self) -> Option<Instant> {
        self.due.first().map(|(due, _)| *due)
    }

    /// Takes the earliest set-up that is due.
    fn take(&mut self, now: Instant) -> Option<SetupId> {
        let &(due, index) = self.due.first()?;
        if due > now {
            return None;
        }
        self.due.pop_first();
        Some(index)
    }

    /// Panics unless the queue is that of the set-ups.
    pub(super) fn check(&self, setups: &Setups) {
        let scheduled: BTreeSet<(Instant, SetupId)> = setups.scheduled().collect();
        assert_eq!(scheduled, self.due, "timers");
    }

    /// Takes a set-up out that stands at `scheduled`.
    pub(super) fn forget(&mut self, index: SetupId, scheduled: Option<Instant>) {
        if let Some(due) = scheduled {
            self.due.remove(&(due, index));
        }
    }
}

/// Where the sweep is.
#[derive(Debug)]
pub(super) struct Sweep {
    next: Instant,
    cursor: u32,
    /// Where the search for a connection at rest goes on.
    hand: u32,
}

impl Sweep {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            next: now + SWEEP_STEP,
            cursor: 0,
            hand: 0,
        }
    }

    pub(super) fn restart(&mut self) {
        self.cursor = 0;
    }
}

/// How long nothing came. A fast path outside may have seen a packet after `now` was read.
pub(super) fn quiet_ms(now_ms: u32, last_active: u32) -> u32 {
    let quiet = now_ms.wrapping_sub(last_active);
    if quiet > i32::MAX as u32 { 0 } else { quiet }
}

impl Switch {
    /// When [`Self::handle_timeout`] wants to be called next.
    pub fn poll_timeout(&self) -> Option<Instant> {
        if self.aborting && self.table.used() > 0 || self.has_endings() {
            return Some(Instant::ZERO);
        }
        let timer = self.timers.next();
        let sweep = (self.table.used() > 0).then_some(self.sweep.next);
        let probe = (!self.draining).then(|| self.probes.due());
        [timer, sweep, probe, self.offload.due()]
            .into_iter()
            .flatten()
            .min()
    }

    /// Does what has become due.
    pub fn handle_timeout(&mut self, now: Instant) {
        self.learn_begun(now);
        self.run_timers(now);
        if !self.draining {
            // After the timers: servers that have failed are asked at once.
            self.run_probes(now);
        }
        self.run_endings(now);
        self.run_sweep(now);
        self.end_expired_sleepers();
        self.flush_fast_path();
        self.debug_check(None);
    }

    /// Puts a set-up into the timer queue where it is due now. To be called whenever one of its
    /// timers has changed.
    pub(super) fn schedule(&mut self, index: SetupId) {
        let Some(setup) = self.setups.entry(index) else {
            return;
        };
        let due = setup.due();
        if setup.scheduled == due {
            return;
        }
        self.timers.forget(index, setup.scheduled);
        setup.scheduled = due;
        if let Some(due) = due {
            self.timers.due.insert((due, index));
        }
    }

    fn run_timers(&mut self, now: Instant) {
        for _ in 0..TIMERS_AT_ONCE {
            let Some(index) = self.timers.take(now) else {
                return;
            };
            let Some(setup) = self.setups.entry(index) else {
                debug_assert!(false, "a set-up leaves the queue when it is forgotten");
                continue;
            };
            setup.scheduled = None;
            let line = setup.line;
            self.setup_expired(now, line, index);
            // Nothing takes a freed place before this: only packets begin set-ups.
            self.schedule(index);
        }
    }

    fn setup_expired(&mut self, now: Instant, line: Line, index: SetupId) {
        self.disarm(now, line);
        if self.setup_of(line) != Some(index) {
            return; // joined meanwhile
        }
        let record = self.table.record(line);
        let (state, held) = (record.state, record.flags & flag::HELD != 0);
        match state {
            State::Established => self.head_expired(now, line, index),
            State::SynSent => self.syn_expired(now, line, index),
            State::Answering => self.answer_expired(now, line, index),
            _ if held => self.held_expired(now, line, index),
            _ => debug_assert!(false, "set-up state outlives its set-up"),
        }
    }

    fn head_expired(&mut self, now: Instant, line: Line, index: SetupId) {
        let Some(setup) = self.setups.entry(index) else {
            return;
        };
        if setup.deadline.is_some_and(|deadline| deadline <= now) {
            let refusal = Refusal {
                reason: DropReason::HeadTimeout,
                status: 408,
                alert: head::ALERT_INTERNAL_ERROR,
                subject: Asked::default(),
                bodyless: false,
                fault: None,
            };
            self.refuse_head(now, line, index, refusal);
            return;
        }
        if setup.silent_until.is_some_and(|until| until <= now) {
            setup.silent_until = None;
            return self.hear_silence(now, line, index);
        }
        if setup.ack_due.is_some_and(|ack_due| ack_due <= now) {
            setup.ack_due = None;
            if setup.stream.in_order_len() > setup.acked {
                self.acknowledge_head(line, index);
            }
        }
    }

    fn syn_expired(&mut self, now: Instant, line: Line, index: SetupId) {
        let Some(setup) = self.setups.entry(index) else {
            return;
        };
        let late = setup.deadline.is_some_and(|deadline| deadline <= now);
        let deadline = setup.deadline.unwrap_or(now);
        let backoff = setup.backoff.as_mut().filter(|backoff| backoff.due <= now);
        let again = backoff.map(|backoff| backoff.expire_before(now, deadline));
        if late || again == Some(false) {
            // A SYN-ACK that is still under way would find no connection; the RST now is kinder.
            self.reset_silent_server(line, index);
            self.server_failed(now, line, index, Failure::Silent);
        } else if again == Some(true) {
            self.send_syn(line, index);
        }
    }

    fn run_sweep(&mut self, now: Instant) {
        if self.aborting {
            self.sweep_lines(now, ABORT_LINES);
            return;
        }
        if self.sweep.next > now {
            return;
        }
        self.sweep.next = now + SWEEP_STEP;
        self.catch_up_with_fast_path(now);
        self.handle_availability(now);
        self.keep_tickets(now);
        let lines = self.table.high_water().div_ceil(SWEEP_STEPS).max(64);
        self.sweep_lines(now, lines);
    }

    fn sweep_lines(&mut self, now: Instant, lines: u32) {
        let high_water = self.table.high_water();
        for _ in 0..lines.min(high_water) {
            if self.sweep.cursor >= high_water {
                self.sweep.cursor = 0;
            }
            let line = Line(self.sweep.cursor);
            self.sweep.cursor += 1;
            if self.aborting {
                self.abort_line(now, line);
            } else {
                self.sweep_line(now, line);
            }
        }
    }

    fn sweep_line(&mut self, now: Instant, line: Line) {
        self.catch_up(now, line);
        let record = self.table.record(line);
        if record.flags & flag::SYN_SEEN != 0 {
            self.expire_renewal(now, line);
        }
        let record = self.table.record(line);
        let quiet_ms = quiet_ms(Self::now_ms(now), record.last_active);
        let (state, held) = (record.state, record.flags & flag::HELD != 0);
        let after = |timeout: Duration| u128::from(quiet_ms) >= timeout.as_millis();
        match state {
            State::Free | State::Established | State::SynSent | State::Answering => {}
            State::Reset if quiet_ms < RESET_HOLD_MS => {}
            State::Reset => {
                if after(self.service_of(record.listen).timeouts.time_wait) {
                    self.remove_resting(line);
                } else if held {
                    self.let_go(line);
                }
            }
            _ if !state.is_resting() && self.has_lived_enough(now, line) => {
                self.reclaim(now, line);
                self.time_out(now, line, DropReason::MaxLifetime, End::MaxLifetime);
            }
            _ if !state.is_resting() && self.leaves(now, line, quiet_ms) => {
                self.end_line(now, line, End::Killed);
            }
            // The timer of the held bytes gives up sooner.
            _ if held && self.resends(line) => {}
            State::Spliced => {
                if after(self.service_of(record.listen).timeouts.idle) {
                    self.time_out(now, line, DropReason::IdleTimeout, End::IdleTimeout);
                }
            }
            State::FinRelayed1 | State::AckRelayed1 | State::FinRelayed2 => {
                if after(self.service_of(record.listen).timeouts.half_closed) {
                    let reason = DropReason::HalfClosedTimeout;
                    self.time_out(now, line, reason, End::HalfClosedTimeout);
                }
            }
            State::TimeWait => {
                if after(self.service_of(record.listen).timeouts.time_wait) {
                    self.remove_resting(line);
                }
            }
        }
    }

    /// A timer sends held bytes again. Once the server has them all, what stays is a request that
    /// has not come as a whole: nothing is sent for it, and the usual time limits apply.
    fn resends(&self, line: Line) -> bool {
        let setup = self.setup_of(line).and_then(|id| self.setups.peek(id));
        setup.is_some_and(|setup| setup.backoff.is_some())
    }

    fn has_lived_enough(&self, now: Instant, line: Line) -> bool {
        let listen = self.table.record(line).listen;
        let longest = self.service_of(listen).timeouts.lifetime;
        longest.is_some_and(|longest| {
            let lived_ms = self.table.lived_ms(line, now.as_millis());
            u128::from(lived_ms) >= longest.as_millis()
        })
    }

    /// Ends the rest of a connection that is over, so that a newcomer finds a line in a full table.
    /// The hand goes on where it stopped: as newcomers take the lines that it frees, it meets
    /// connections in the order in which they began. False when it meets none at rest for a while.
    pub(super) fn end_a_rest(&mut self, now: Instant) -> bool {
        let high_water = self.table.high_water();
        for _ in 0..HAND_LINES.min(high_water) {
            let line = Line(self.sweep.hand % high_water);
            self.sweep.hand = line.0 + 1;
            self.catch_up(now, line);
            let record = self.table.record(line);
            if record.state.is_resting() && record.flags & flag::HELD == 0 {
                self.reclaim(now, line);
                self.remove_resting(line);
                self.counts.time_wait_evicted += 1;
                return true;
            }
        }
        false
    }

    fn time_out(&mut self, now: Instant, line: Line, reason: DropReason, end: End) {
        self.counts.drops.add(reason);
        self.reset_both(line);
        self.note_end(now, line, end);
        self.free(line);
    }

    pub(super) fn abort_line(&mut self, now: Instant, line: Line) {
        self.end_line(now, line, End::Aborted);
    }

    /// Ends whatever a line has, with a RST to both ends where there are two.
    pub(super) fn end_line(&mut self, now: Instant, line: Line, end: End) {
        self.reclaim(now, line);
        let record = *self.table.record(line);
        match record.state {
            State::Free => return,
            State::TimeWait | State::Reset => self.counts.resting -= 1,
            State::Established | State::SynSent | State::Answering => {
                if let Some(index) = self.setup_of(line) {
                    self.send_reset_to_client(line, index);
                    if record.state == State::SynSent {
                        self.reset_server_in_setup(line, index);
                    }
                }
            }
            _ => {
                self.reset_both(line);
                self.note_end(now, line, end);
            }
        }
        self.free(line);
    }
}

#[cfg(test)]
mod tests {
    use super::quiet_ms;

    #[test]
    fn a_packet_from_a_moment_later_is_no_long_silence() {
        assert_eq!(quiet_ms(5_000, 4_000), 1_000);
        assert_eq!(quiet_ms(5_000, 5_001), 0);
        assert_eq!(quiet_ms(10, u32::MAX - 9), 20);
    }
}
