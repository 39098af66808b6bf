//! Whether a server answers, and when one that does not is tried again.

use core::time::Duration;

use fairlead_base::{Address, Instant};

use crate::event::ServerState;

/// A server that is down is tried again after this long …
pub(super) const PAUSE_MIN: Duration = Duration::from_secs(2);

/// … and twice as long after each trial that fails, up to this.
pub(super) const PAUSE_MAX: Duration = Duration::from_secs(30);

/// The health of one server.
#[derive(Clone, Debug)]
pub(super) struct Health {
    state: ServerState,
    since: Instant,
    /// While down: when a connection may be sent to it again.
    retry_at: Instant,
    /// While down: the time between two trials.
    pause: Duration,
    /// While down: a connection was let through and has not come back yet.
    on_trial: bool,
    /// While up: the client whose connection failed since it answered last.
    doubted_by: Option<Address>,
}

impl Default for Health {
    fn default() -> Self {
        Self {
            state: ServerState::Unknown,
            since: Instant::ZERO,
            retry_at: Instant::ZERO,
            pause: PAUSE_MIN,
            on_trial: false,
            doubted_by: None,
        }
    }
}

impl Health {
    /// What is known.
    pub(super) fn state(&self) -> ServerState {
        self.state
    }

    /// Since when it is known.
    pub(super) fn since(&self) -> Instant {
        self.since
    }

    /// Whether it did not answer when it was asked last.
    pub(super) fn is_down(&self) -> bool {
        self.state == ServerState::Down
    }

    /// Whether a connection may be sent there now.
    pub(super) fn admits(&self, now: Instant) -> bool {
        self.state != ServerState::Down || now >= self.retry_at
    }

    /// A connection is being sent there. If that is a trial, the next one waits its turn: a crowd
    /// of clients must not learn one by one that the server is still down. A trial of which
    /// nothing is ever heard (the client left) is simply followed by the next.
    pub(super) fn picked(&mut self, now: Instant) {
        if self.state == ServerState::Down && now >= self.retry_at {
            self.on_trial = true;
            self.retry_at = now + self.pause;
        }
    }

    /// It did not answer a connection of this client, or refused it. True when that is news.
    ///
    /// What is up is not down for one client's failures: a server may have banned it, or the client
    /// may have refused in the server's name.
    pub(super) fn failed_for(&mut self, client: Address, now: Instant) -> bool {
        let client = client.site();
        let others = self.doubted_by.is_some_and(|first| first != client);
        if self.state == ServerState::Up && !others {
            self.doubted_by = Some(client);
            return false;
        }
        self.failed(now)
    }

    /// It did not answer, or refused. True when that is news.
    pub(super) fn failed(&mut self, now: Instant) -> bool {
        if self.state != ServerState::Down {
            *self = Self {
                state: ServerState::Down,
                since: now,
                retry_at: now + PAUSE_MIN,
                ..Self::default()
            };
            return true;
        }
        // Connections that were under way when the server went down fail one after the other; only
        // a failure that tells of a later moment makes the pause longer.
        if self.on_trial || now >= self.retry_at {
            self.on_trial = false;
            self.pause = (self.pause * 2).min(PAUSE_MAX);
            self.retry_at = now + self.pause;
        }
        false
    }

    /// It answered. True when that is news.
    pub(super) fn answered(&mut self, now: Instant) -> bool {
        self.doubted_by = None;
        if self.state == ServerState::Up {
            return false;
        }
        *self = Self {
            state: ServerState::Up,
            since: now,
            ..Self::default()
        };
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Instant {
        Instant::ZERO + Duration::from_secs(seconds)
    }

    #[test]
    fn each_failed_trial_doubles_the_pause_up_to_the_limit() {
        let mut health = Health::default();
        assert!(health.failed(at(100)));
        let mut now = 100;
        for pause in [2, 4, 8, 16, 30, 30, 30] {
            assert!(
                !health.admits(at(now + pause - 1)),
                "too early after {pause}"
            );
            now += pause;
            assert!(health.admits(at(now)), "not in time after {pause}");
            health.picked(at(now));
            assert!(
                !health.admits(at(now)),
                "a second connection while the first is on trial"
            );
            assert!(!health.failed(at(now)), "down already");
        }
        assert_eq!(health.since(), at(100));
    }

    #[test]
    fn one_client_does_not_bring_a_server_down_and_two_in_a_row_do() {
        let [one, two] = [Address::v4([192, 0, 2, 1]), Address::v4([192, 0, 2, 2])];
        let mut health = Health::default();
        health.answered(at(1));
        for now in 2..10 {
            assert!(!health.failed_for(one, at(now)));
        }
        // It answers somebody: what was before says nothing any more.
        health.answered(at(10));
        assert!(!health.failed_for(two, at(11)));
        assert_eq!(health.state(), ServerState::Up);
        assert!(health.failed_for(one, at(12)), "the second in a row");
        assert_eq!(
            (health.state(), health.since()),
            (ServerState::Down, at(12))
        );
        health.answered(at(13));
        assert!(!health.failed_for(two, at(14)));
        assert!(health.failed(at(14)), "a probe");
    }

    #[test]
    fn the_networks_of_one_site_are_one_client() {
        let client = |site, network| {
            let mut octets = [
                0x20, 0x01, 0x0d, 0xb8, 0, site, 0, network, 0, 0, 0, 0, 0, 0, 0, 1,
            ];
            octets[15] = network;
            Address::v6(octets)
        };
        let mut health = Health::default();
        health.answered(at(1));
        for network in 0..9 {
            assert!(!health.failed_for(client(1, network), at(2)));
        }
        assert!(health.failed_for(client(2, 0), at(2)), "another");
    }

    #[test]
    fn a_server_that_never_answered_is_down_at_its_first_failure() {
        let mut health = Health::default();
        assert!(health.failed_for(Address::v4([192, 0, 2, 1]), at(1)));
        assert_eq!(health.state(), ServerState::Down);
    }

    #[test]
    fn failures_of_connections_already_under_way_do_not_lengthen_the_pause() {
        let mut health = Health::default();
        health.failed(at(10));
        for _ in 0..50 {
            health.failed(at(11));
        }
        assert!(health.admits(at(12)));
    }

    #[test]
    fn a_trial_that_never_ends_is_followed_by_another_after_the_pause() {
        let mut health = Health::default();
        health.failed(at(10));
        health.picked(at(12));
        assert!(!health.admits(at(13)));
        assert!(health.admits(at(14)));
    }

    #[test]
    fn an_answer_ends_the_outage_and_the_next_one_starts_with_a_short_pause() {
        let mut health = Health::default();
        health.failed(at(10));
        health.picked(at(12));
        health.failed(at(12));
        assert!(health.answered(at(13)));
        assert!(!health.answered(at(14)), "no news");
        assert_eq!((health.state(), health.since()), (ServerState::Up, at(13)));
        assert!(health.admits(at(13)));
        health.failed(at(20));
        assert!(!health.admits(at(21)));
        assert!(health.admits(at(22)));
    }
}
