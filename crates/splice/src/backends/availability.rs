//! Whether a server may get connections, and with what weight: one type that every balance policy
//! asks.
//!
//! Four inputs do not know of each other: what the operator ordered, what health checks say,
//! whether the server is ejected as an outlier, and whether it answers SYNs.
//!
//! | operator | health check | outlier | SYNs | connections |
//! |---|---|---|---|---|
//! | maintenance, or drain | any | any | any | none, whatever becomes of the others |
//! | ready | down | any | any | none |
//! | ready | up or none | ejected | any | none |
//! | ready | up | no | unanswered | none until it answers one of ours |
//! | ready | none | no | unanswered | one at a time, as a trial |
//! | ready | up or none | no | answered, or not asked yet | its share |
//!
//! A server that becomes available again gets its share in [`RAMP_STEPS`] steps where its pool has
//! a `slow_start`.

use core::time::Duration;

use fairlead_base::{Address, Instant};

use super::health::Health;
use crate::config::Outlier;
use crate::event::{Admin, Unavailable};

/// Steps of a slow start: a server's weight is multiplied by 1 to this.
pub(super) const RAMP_STEPS: u32 = 8;

/// The availability of one server.
#[derive(Clone, Debug, Default)]
pub(super) struct Availability {
    admin: Admin,
    /// By its health checks; `None` without any.
    check: Option<bool>,
    outlier: Ejection,
    connect: Health,
    /// While it starts slowly: since when.
    ramp: Option<Instant>,
    /// Of [`RAMP_STEPS`], how many it does not have yet.
    missing_steps: u32,
}

/// What an outlier has done.
#[derive(Clone, Copy, Debug, Default)]
struct Ejection {
    /// Connections in a row that it did not take.
    failures: u32,
    until: Option<Instant>,
    /// How often it was ejected in a row: each time is as much longer.
    times: u32,
}

impl Availability {
    /// Of a server that has health checks if `is_up` says something.
    pub(super) fn new(is_up: Option<bool>) -> Self {
        Self {
            check: is_up,
            ..Self::default()
        }
    }

    /// What SYNs say.
    pub(super) fn connect(&self) -> &Health {
        &self.connect
    }

    pub(super) fn admin(&self) -> Admin {
        self.admin
    }

    /// What health checks say; `None` without any.
    pub(super) fn check(&self) -> Option<bool> {
        self.check
    }

    /// Whether it is left out as an outlier.
    pub(super) fn is_ejected(&self) -> bool {
        self.outlier.until.is_some()
    }

    /// Whether it gets connections now.
    pub(super) fn is_open(&self, now: Instant) -> bool {
        self.why_not(now).is_none()
    }

    /// Whether the operator has taken it out: it gets no connections whatever becomes of others.
    pub(super) fn is_withheld(&self) -> bool {
        self.admin != Admin::Ready
    }

    /// Why it gets no connections now.
    pub(super) fn why_not(&self, now: Instant) -> Option<Unavailable> {
        let may_be_tried = self.check.is_none() && self.connect.admits(now);
        match self.admin {
            Admin::Maintenance => Some(Unavailable::Maintenance),
            Admin::Drain => Some(Unavailable::Draining),
            Admin::Ready if self.check == Some(false) => Some(Unavailable::CheckFailed),
            Admin::Ready if self.is_ejected() => Some(Unavailable::Ejected),
            Admin::Ready if self.connect.is_down() && !may_be_tried => {
                Some(Unavailable::NotAnswering)
            }
            Admin::Ready => None,
        }
    }

    /// Its weight is to be multiplied by this, of [`RAMP_STEPS`].
    pub(super) fn steps(&self) -> u32 {
        RAMP_STEPS - self.missing_steps
    }

    /// Changes something. A server that was unavailable and is not any more starts slowly, if its
    /// pool has it so. True when it became available or unavailable.
    fn change(
        &mut self,
        now: Instant,
        slow_start: Duration,
        change: impl FnOnce(&mut Self),
    ) -> bool {
        // A trial does not make it available.
        let is_out = |one: &Self| one.connect.is_down() || one.why_not(now).is_some();
        let was_out = is_out(self);
        change(self);
        let is_out = is_out(self);
        if was_out && !is_out && !slow_start.is_zero() {
            self.ramp = Some(now);
            self.missing_steps = RAMP_STEPS - 1;
        } else if is_out {
            self.ramp = None;
            self.missing_steps = 0;
        }
        self.check_invariants();
        was_out != is_out
    }

    /// The operator's order. True when it is another than before.
    pub(super) fn set_admin(&mut self, now: Instant, slow_start: Duration, admin: Admin) -> bool {
        let is_news = self.admin != admin;
        self.change(now, slow_start, |one| one.admin = admin);
        is_news
    }

    /// What health checks say. True when it is something else than before.
    pub(super) fn set_check(&mut self, now: Instant, slow_start: Duration, is_up: bool) -> bool {
        let is_news = self.check.is_some_and(|was_up| was_up != is_up);
        if self.check.is_some() {
            self.change(now, slow_start, |one| one.check = Some(is_up));
        }
        is_news
    }

    /// A SYN was answered. True when the server was not known to answer.
    pub(super) fn answered(&mut self, now: Instant, slow_start: Duration) -> bool {
        let mut is_news = false;
        self.change(now, slow_start, |one| {
            is_news = one.connect.answered(now);
            one.outlier.failures = 0;
        });
        is_news
    }

    /// A probe was not answered. True when that is news.
    pub(super) fn failed(&mut self, now: Instant) -> bool {
        let mut is_news = false;
        self.change(now, Duration::ZERO, |one| is_news = one.connect.failed(now));
        is_news
    }

    /// A client's connection was not taken. True when that is news.
    pub(super) fn failed_for(&mut self, client: Address, now: Instant) -> bool {
        let mut is_news = false;
        self.change(now, Duration::ZERO, |one| {
            is_news = one.connect.failed_for(client, now);
            one.outlier.failures = one.outlier.failures.saturating_add(1);
        });
        is_news
    }

    /// Whether it has failed so often in a row that it is to be ejected.
    pub(super) fn is_outlier(&self, outlier: &Outlier) -> bool {
        !self.is_ejected() && self.outlier.failures >= outlier.consecutive_connect_failures
    }

    /// Ejects it.
    pub(super) fn eject(&mut self, now: Instant, outlier: &Outlier) {
        self.change(now, Duration::ZERO, |one| {
            one.outlier.failures = 0;
            one.outlier.times = one.outlier.times.saturating_add(1);
            let pause = outlier.ejection_time.saturating_mul(one.outlier.times);
            one.outlier.until = Some(now + pause.min(outlier.ejection_time_max));
        });
    }

    /// A connection is being sent there.
    pub(super) fn picked(&mut self, now: Instant) {
        self.connect.picked(now);
    }

    /// It was taken: an ejection after this is a first one.
    pub(super) fn taken(&mut self) {
        if !self.is_ejected() {
            self.outlier.times = 0;
        }
    }

    /// Whether [`Self::handle_time`] will have something to do.
    pub(super) fn is_waiting(&self) -> bool {
        self.outlier.until.is_some() || self.ramp.is_some()
    }

    /// Ends an ejection, and goes on with a slow start. True when something changed.
    pub(super) fn handle_time(&mut self, now: Instant, slow_start: Duration) -> bool {
        let mut changed = false;
        if self.outlier.until.is_some_and(|until| until <= now) {
            self.change(now, slow_start, |one| one.outlier.until = None);
            changed = true;
        }
        if let Some(since) = self.ramp {
            let step = (slow_start / RAMP_STEPS).max(Duration::from_millis(1));
            let steps = now.since(since).as_millis() / step.as_millis();
            let missing = RAMP_STEPS - 1 - (steps.min(u128::from(RAMP_STEPS - 1)) as u32);
            changed |= missing != self.missing_steps;
            self.missing_steps = missing;
            if missing == 0 {
                self.ramp = None;
            }
        }
        self.check_invariants();
        changed
    }

    /// Panics unless the parts fit together.
    fn check_invariants(&self) {
        debug_assert!(self.missing_steps < RAMP_STEPS, "{self:?}");
        debug_assert!(self.missing_steps == 0 || self.ramp.is_some(), "{self:?}");
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SLOW: Duration = Duration::from_secs(8);

    fn at(seconds: u64) -> Instant {
        Instant::ZERO + Duration::from_secs(seconds)
    }

    fn client(last: u8) -> Address {
        Address::v4([192, 0, 2, last])
    }

    /// The table above, row by row.
    #[test]
    fn the_inputs_decide_in_the_order_of_the_table() {
        let outlier = Outlier::default();
        let mut one = Availability::new(Some(true));
        assert_eq!(one.why_not(at(0)), None);
        one.failed(at(1));
        assert_eq!(one.why_not(at(1)), Some(Unavailable::NotAnswering));
        // With health checks no client is a trial.
        assert_eq!(one.why_not(at(900)), Some(Unavailable::NotAnswering));
        one.eject(at(900), &outlier);
        assert_eq!(one.why_not(at(900)), Some(Unavailable::Ejected));
        one.set_check(at(900), SLOW, false);
        assert_eq!(one.why_not(at(900)), Some(Unavailable::CheckFailed));
        one.set_admin(at(900), SLOW, Admin::Drain);
        assert_eq!(one.why_not(at(900)), Some(Unavailable::Draining));
        one.set_admin(at(900), SLOW, Admin::Maintenance);
        assert_eq!(one.why_not(at(900)), Some(Unavailable::Maintenance));
        let mut trial = Availability::new(None);
        trial.failed(at(1));
        assert_eq!(trial.why_not(at(1)), Some(Unavailable::NotAnswering));
        assert_eq!(trial.why_not(at(3)), None, "a trial");
    }

    #[test]
    fn a_slow_start_has_eight_steps_and_begins_anew_after_an_outage() {
        let mut one = Availability::new(Some(false));
        assert_eq!(one.steps(), 8);
        one.set_check(at(10), SLOW, true);
        let steps = |one: &mut Availability, seconds| {
            one.handle_time(at(seconds), SLOW);
            one.steps()
        };
        let seen: Vec<_> = (10..20).map(|now| steps(&mut one, now)).collect();
        assert_eq!(seen, [1, 2, 3, 4, 5, 6, 7, 8, 8, 8]);
        assert!(!one.is_waiting());
        one.set_admin(at(30), SLOW, Admin::Maintenance);
        one.set_admin(at(40), SLOW, Admin::Ready);
        assert_eq!((steps(&mut one, 41), one.is_waiting()), (2, true));
        one.set_check(at(42), SLOW, false);
        assert_eq!((one.steps(), one.is_waiting()), (8, false));
    }

    #[test]
    fn ejections_grow_until_a_connection_is_taken() {
        let outlier = Outlier {
            consecutive_connect_failures: 2,
            ejection_time: Duration::from_secs(10),
            ejection_time_max: Duration::from_secs(25),
            ..Outlier::default()
        };
        let mut one = Availability::new(None);
        let mut now = 0;
        for lasts in [10, 20, 25, 25] {
            one.answered(at(now), Duration::ZERO);
            for last in 0..2 {
                assert!(!one.is_outlier(&outlier));
                one.failed_for(client(last), at(now));
            }
            assert!(one.is_outlier(&outlier));
            one.eject(at(now), &outlier);
            one.handle_time(at(now + lasts - 1), Duration::ZERO);
            assert!(one.is_ejected(), "{lasts}");
            now += lasts;
            one.handle_time(at(now), Duration::ZERO);
            assert!(!one.is_ejected(), "{lasts}");
        }
        one.taken();
        one.eject(at(now), &outlier);
        one.handle_time(at(now + 10), Duration::ZERO);
        assert!(!one.is_ejected());
    }

    proptest! {
        /// Whatever comes in whatever order: a server that is out has no slow start, and one with
        /// all inputs good is available with its whole weight after the slow start.
        #[test]
        fn every_order_ends_in_an_available_server_once_all_is_well(
            steps in proptest::collection::vec((0u8..9, 0u64..20), 0..60),
            has_checks in any::<bool>(),
        ) {
            let outlier = Outlier::default();
            let mut one = Availability::new(has_checks.then_some(true));
            let mut now = 0;
            for (what, pass) in steps {
                now += pass;
                match what {
                    0 => drop(one.set_admin(at(now), SLOW, Admin::Drain)),
                    1 => drop(one.set_admin(at(now), SLOW, Admin::Maintenance)),
                    2 => drop(one.set_admin(at(now), SLOW, Admin::Ready)),
                    3 => drop(one.set_check(at(now), SLOW, false)),
                    4 => drop(one.set_check(at(now), SLOW, true)),
                    5 => drop(one.failed_for(client(1), at(now))),
                    6 => drop(one.failed(at(now))),
                    7 => one.eject(at(now), &outlier),
                    _ => drop(one.answered(at(now), SLOW)),
                }
                one.handle_time(at(now), SLOW);
                if one.why_not(at(now)).is_some() {
                    prop_assert_eq!(one.steps(), RAMP_STEPS);
                }
            }
            one.set_admin(at(now), SLOW, Admin::Ready);
            one.set_check(at(now), SLOW, true);
            one.answered(at(now), SLOW);
            one.handle_time(at(now + 600), SLOW);
            one.handle_time(at(now + 700), SLOW);
            prop_assert_eq!(one.why_not(at(now + 700)), None);
            prop_assert_eq!(one.steps(), RAMP_STEPS);
        }
    }
}
