//! Which target is checked when.

use std::collections::{BTreeSet, VecDeque};

use core::time::Duration;
use fairlead_base::{Endpoint, Instant, Rng};

use crate::{Check, Judge};

/// Checks under way at once, at most.
pub const IN_FLIGHT_MAX: usize = 64;

/// A server of a pool, as whoever drives this numbers them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Member(pub u16);

/// A target of a [`Schedule`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct TargetId(pub u32);

/// What a target's state now is, for one of its members.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Change {
    /// The server.
    pub member: Member,
    /// What it is.
    pub is_up: bool,
    /// False when a check has passed or failed without a change of state.
    pub is_news: bool,
}

#[derive(Debug)]
struct Target {
    address: Endpoint,
    check: Check,
    members: Vec<Member>,
    judge: Judge,
    /// Members that are not checked while this holds.
    paused: usize,
    in_flight: bool,
    passed: u64,
    failed: u64,
}

/// Targets and when each is due.
#[derive(Debug)]
pub struct Schedule {
    targets: Vec<Target>,
    due: BTreeSet<(Instant, TargetId)>,
    in_flight: usize,
    changes: VecDeque<Change>,
    rng: Rng,
}

impl Schedule {
    /// Without targets. `seed` spreads the checks.
    pub fn new(seed: u64) -> Self {
        Self {
            targets: Vec::new(),
            due: BTreeSet::new(),
            in_flight: 0,
            changes: VecDeque::new(),
            rng: Rng::new(seed),
        }
    }

    /// Adds a server. `is_up` is what an earlier run knew of it, if any did. First checks are
    /// spread over an interval, but come within a second where nothing is known.
    pub fn add(
        &mut self,
        now: Instant,
        member: Member,
        address: Endpoint,
        check: &Check,
        is_up: Option<bool>,
    ) -> TargetId {
        let alike = |one: &Target| one.address == address && one.check == *check;
        if let Some(at) = self.targets.iter().position(alike) {
            self.targets[at].members.push(member);
            return TargetId(at as u32);
        }
        let id = TargetId(self.targets.len() as u32);
        self.targets.push(Target {
            address,
            check: check.clone(),
            members: vec![member],
            judge: Judge::new(is_up.unwrap_or(check.initially_up)),
            paused: 0,
            in_flight: false,
            passed: 0,
            failed: 0,
        });
        let within = match is_up {
            Some(_) => check.interval,
            None => check.interval.min(Duration::from_secs(1)),
        };
        let delay = self.share_of(within, 1_000);
        self.due.insert((now + delay, id));
        self.check_invariants();
        id
    }

    /// From nothing to `thousandths` of a duration, at random.
    fn share_of(&mut self, of: Duration, thousandths: u32) -> Duration {
        of * self.rng.below(thousandths.max(1)) / 1_000
    }

    /// Takes a target that is to be checked now.
    pub fn poll_due(&mut self, now: Instant) -> Option<TargetId> {
        if self.in_flight >= IN_FLIGHT_MAX {
            return None;
        }
        let &(due, id) = self.due.first()?;
        if due > now {
            return None;
        }
        self.due.pop_first();
        self.targets[id.0 as usize].in_flight = true;
        self.in_flight += 1;
        self.check_invariants();
        Some(id)
    }

    /// A target's address, and what is asked of it.
    ///
    /// # Panics
    /// When `id` did not come from this schedule.
    pub fn target(&self, id: TargetId) -> (Endpoint, &Check) {
        let target = &self.targets[id.0 as usize];
        let mut address = target.address;
        address.port = target.check.port.unwrap_or(address.port);
        (address, &target.check)
    }

    /// Passed and failed checks of a target.
    pub fn results(&self, id: TargetId) -> (u64, u64) {
        let target = &self.targets[id.0 as usize];
        (target.passed, target.failed)
    }

    /// A check has ended. Results of a target that is not being checked are not heeded.
    pub fn handle_result(&mut self, now: Instant, id: TargetId, passed: bool) {
        let Some(target) = self.targets.get_mut(id.0 as usize) else {
            return;
        };
        if !std::mem::take(&mut target.in_flight) {
            return;
        }
        self.in_flight -= 1;
        let counter = if passed {
            &mut target.passed
        } else {
            &mut target.failed
        };
        *counter += 1;
        let is_news = target.judge.handle_result(passed, &target.check);
        let is_up = target.judge.is_up();
        if target.paused < target.members.len() {
            let pause = target.judge.pause(&target.check);
            // A tenth at random, so that targets that began together drift apart.
            let pause = pause * 19 / 20 + self.share_of(pause, 100);
            self.due.insert((now + pause, id));
        }
        for &member in &self.targets[id.0 as usize].members {
            self.changes.push_back(Change {
                member,
                is_up,
                is_news,
            });
        }
        self.check_invariants();
    }

    /// A server is not to be checked, or again; a target without any server to be checked for
    /// rests.
    pub fn set_paused(&mut self, now: Instant, id: TargetId, paused: bool) {
        let Some(target) = self.targets.get_mut(id.0 as usize) else {
            return;
        };
        let rested = target.paused == target.members.len();
        if paused {
            target.paused = (target.paused + 1).min(target.members.len());
        } else {
            target.paused = target.paused.saturating_sub(1);
        }
        let rests = target.paused == target.members.len();
        if rests && !rested {
            self.due.retain(|(_, one)| *one != id);
        } else if rested && !rests && !target.in_flight {
            self.due.insert((now, id));
        }
        self.check_invariants();
    }

    /// Takes the next result's meaning for a server.
    pub fn poll_change(&mut self) -> Option<Change> {
        self.changes.pop_front()
    }

    /// When [`Self::poll_due`] has a target again; `None` while a result must come first.
    pub fn poll_timeout(&self) -> Option<Instant> {
        if self.in_flight >= IN_FLIGHT_MAX {
            return None;
        }
        self.due.first().map(|(due, _)| *due)
    }

    /// Panics unless the counts and the queue are those of the targets.
    fn check_invariants(&self) {
        if cfg!(debug_assertions) {
            let in_flight = self.targets.iter().filter(|one| one.in_flight).count();
            assert_eq!(in_flight, self.in_flight, "checks under way");
            let mut queued = vec![0; self.targets.len()];
            self.due
                .iter()
                .for_each(|(_, id)| queued[id.0 as usize] += 1);
            for (target, queued) in self.targets.iter().zip(queued) {
                let rests = target.paused == target.members.len();
                let wanted = usize::from(!target.in_flight && !rests);
                assert_eq!(queued, wanted, "{:?} in the queue", target.address);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use fairlead_base::Address;
    use proptest::prelude::*;

    use super::*;

    fn at(ms: u64) -> Instant {
        Instant::ZERO + Duration::from_millis(ms)
    }

    fn server(host: u8) -> Endpoint {
        Endpoint {
            addr: Address::v4([10, 0, 0, host]),
            port: 80,
        }
    }

    fn checks() -> Check {
        Check {
            interval: Duration::from_secs(2),
            fast_interval: Duration::from_millis(500),
            down_interval: Duration::from_secs(4),
            ..Check::default()
        }
    }

    /// Runs until `end`; `answers` says what each check at a time results in. Returns the checks
    /// and the changes, with their times.
    fn run(
        schedule: &mut Schedule,
        end: u64,
        answers: impl Fn(u64) -> bool,
    ) -> (Vec<u64>, Vec<(u64, Change)>) {
        let (mut asked, mut changes) = (Vec::new(), Vec::new());
        for now in 0..end {
            while let Some(id) = schedule.poll_due(at(now)) {
                asked.push(now);
                schedule.handle_result(at(now), id, answers(now));
            }
            while let Some(change) = schedule.poll_change() {
                if change.is_news {
                    changes.push((now, change));
                }
            }
        }
        (asked, changes)
    }

    #[test]
    fn a_server_that_fails_is_down_within_fall_intervals_and_up_again_after_rise() {
        let mut schedule = Schedule::new(1);
        schedule.add(at(0), Member(7), server(1), &checks(), None);
        let (asked, changes) = run(&mut schedule, 60_000, |now| {
            !(20_000..40_000).contains(&now)
        });
        let [(down, one), (up, other)] = changes[..] else {
            panic!("{changes:?}");
        };
        assert_eq!((one.member, one.is_up), (Member(7), false));
        assert!((20_000..20_000 + 2_100 + 2 * 525).contains(&down), "{down}");
        assert!(
            other.is_up && (40_000..40_000 + 4_200 + 525).contains(&up),
            "{up}"
        );
        // 40 s at 2 s, and 20 s at 4 s.
        assert!((22..=32).contains(&asked.len()), "{} checks", asked.len());
    }

    #[test]
    fn servers_that_are_checked_alike_share_a_target() {
        let mut schedule = Schedule::new(1);
        let one = schedule.add(at(0), Member(1), server(1), &checks(), None);
        let other = Check {
            kind: crate::Kind::http(),
            ..checks()
        };
        assert_eq!(
            schedule.add(at(0), Member(2), server(1), &checks(), None),
            one
        );
        assert_ne!(schedule.add(at(0), Member(3), server(1), &other, None), one);
        let (_, changes) = run(&mut schedule, 10_000, |_| false);
        let members: BTreeSet<_> = changes.iter().map(|(_, one)| one.member.0).collect();
        assert_eq!(members, BTreeSet::from([1, 2, 3]));
    }

    #[test]
    fn no_more_than_the_limit_are_under_way_at_once() {
        let mut schedule = Schedule::new(1);
        for host in 0..200 {
            schedule.add(at(0), Member(host.into()), server(host), &checks(), None);
        }
        let mut under_way = Vec::new();
        while let Some(id) = schedule.poll_due(at(5_000)) {
            under_way.push(id);
        }
        assert_eq!(under_way.len(), IN_FLIGHT_MAX);
        assert_eq!(schedule.poll_timeout(), None);
        schedule.handle_result(at(5_000), under_way[0], true);
        assert!(schedule.poll_timeout().is_some_and(|due| due <= at(5_000)));
        // A result that comes twice is heeded once.
        schedule.handle_result(at(5_000), under_way[0], true);
        assert_eq!(schedule.results(under_way[0]), (1, 0));
    }

    #[test]
    fn a_target_rests_while_all_of_its_servers_do() {
        let mut schedule = Schedule::new(1);
        let id = schedule.add(at(0), Member(1), server(1), &checks(), None);
        schedule.add(at(0), Member(2), server(1), &checks(), None);
        schedule.set_paused(at(0), id, true);
        assert!(!run(&mut schedule, 3_000, |_| true).0.is_empty());
        schedule.set_paused(at(3_000), id, true);
        assert_eq!(run(&mut schedule, 60_000, |_| true).0, [0; 0]);
        schedule.set_paused(at(3_000), id, false);
        assert!(!run(&mut schedule, 60_000, |_| true).0.is_empty());
    }

    proptest! {
        /// Whatever happens in whatever order, a change is reported exactly when `rise` or `fall`
        /// results in a row ask for it. The queue's invariants are asserted within.
        #[test]
        fn changes_follow_from_the_results(
            steps in proptest::collection::vec((0u64..3_000, 0u8..8), 1..300),
            rise in 1u8..5,
            fall in 1u8..5,
        ) {
            let check = Check { rise, fall, ..checks() };
            let mut schedule = Schedule::new(9);
            let id = schedule.add(at(0), Member(1), server(1), &check, Some(true));
            let mut now = 0;
            let (mut is_up, mut run, mut paused, mut under_way) = (true, 0, false, false);
            for (pass, what) in steps {
                now += pass;
                match what {
                    0 => {
                        schedule.set_paused(at(now), id, !paused);
                        paused = !paused;
                    }
                    _ if under_way => {
                        let passed = what % 2 == 0;
                        schedule.handle_result(at(now), id, passed);
                        under_way = false;
                        run = if passed == is_up { 0 } else { run + 1 };
                        let turned = run == if passed { rise } else { fall };
                        if turned {
                            is_up = passed;
                            run = 0;
                        }
                        let change = schedule.poll_change().unwrap();
                        prop_assert_eq!((change.is_up, change.is_news), (is_up, turned));
                    }
                    _ => {
                        under_way = schedule.poll_due(at(now)).is_some();
                        prop_assert!(!under_way || !paused);
                    }
                }
            }
        }
    }
}
