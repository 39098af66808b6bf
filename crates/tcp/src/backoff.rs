//! Retransmission with exponential back-off (RFC 6298, section 5), without measurement: the switch
//! sends so little of its own that an estimate would rarely have a sample.

use core::time::Duration;

use fairlead_base::Instant;

/// The longest wait: RFC 6298, section 2.5, allows a bound of 60 seconds or more.
const WAIT_MAX: Duration = Duration::from_secs(60);

/// What a last retransmission before a deadline is given to be answered, and at least.
const LAST_WAIT: Duration = Duration::from_millis(500);
const LAST_WAIT_MIN: Duration = Duration::from_millis(250);

/// When to send again, and when to give up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backoff {
    /// When the next retransmission is due.
    pub due: Instant,
    wait: Duration,
    left: u8,
}

impl Backoff {
    /// Sent now; again after `first_wait`, then after twice that, …, never more than a minute,
    /// `retransmissions` times.
    pub fn start(now: Instant, first_wait: Duration, retransmissions: u8) -> Self {
        Self {
            due: now + first_wait,
            wait: first_wait,
            left: retransmissions,
        }
    }

    /// Called when due: true to send again, false to give up.
    pub fn expire(&mut self, now: Instant) -> bool {
        if self.left == 0 {
            return false;
        }
        self.left -= 1;
        self.wait = self.wait.saturating_mul(2).min(WAIT_MAX);
        self.due = now + self.wait;
        true
    }

    /// As [`Self::expire`], where everything is given up at `deadline`: the last retransmission is
    /// brought forward, so that no more than half a second passes without one at the end.
    pub fn expire_before(&mut self, now: Instant, deadline: Instant) -> bool {
        let again = self.expire(now);
        if again && self.due + LAST_WAIT_MIN > deadline {
            let left = deadline.since(now);
            if left > LAST_WAIT {
                self.due = now + (left - LAST_WAIT).max(LAST_WAIT_MIN);
            }
        }
        again
    }

    /// The first transmission met older state at the peer: retransmit after `wait`, if that is
    /// sooner. `retransmissions` is the argument of [`Self::start`].
    pub fn hurry(&mut self, now: Instant, wait: Duration, retransmissions: u8) {
        if self.left == retransmissions {
            self.due = self.due.min(now + wait);
        }
    }

    /// The peer is alive but has acknowledged nothing new: it gets `retransmissions` again, at the
    /// current interval. This is how to wait for a closed window to open (RFC 9293, section
    /// 3.8.6.1: a connection stays while its probes are answered).
    pub fn heard(&mut self, retransmissions: u8) {
        self.left = retransmissions;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_and_end() {
        let mut backoff = Backoff::start(Instant::ZERO, Duration::from_millis(200), 3);
        let mut dues = vec![backoff.due.as_millis()];
        while backoff.expire(backoff.due) {
            dues.push(backoff.due.as_millis());
        }
        assert_eq!(dues, [200, 600, 1_400, 3_000]);
    }

    #[test]
    fn the_last_retransmission_comes_in_the_last_half_second_before_a_deadline() {
        for deadline_ms in (300..60_000).step_by(50) {
            let deadline = Instant::from_millis(deadline_ms);
            let mut backoff = Backoff::start(Instant::ZERO, Duration::from_millis(250), 8);
            let mut sent = vec![0];
            while backoff.due < deadline {
                let now = backoff.due;
                sent.push(now.as_millis());
                assert!(backoff.expire_before(now, deadline));
                assert!(backoff.due > now);
            }
            let quiet = deadline_ms - sent[sent.len() - 1];
            assert!(quiet <= 500, "{deadline_ms}: {sent:?}");
            assert!(
                sent.windows(2).all(|two| two[1] - two[0] >= 250),
                "{deadline_ms}: {sent:?}"
            );
            if deadline_ms == 3_000 {
                assert_eq!(sent, [0, 250, 750, 1_750, 2_500]);
            }
        }
    }

    #[test]
    fn only_the_first_retransmission_is_hurried_and_never_put_off() {
        let (now, soon) = (Instant::ZERO, Duration::from_millis(2));
        let mut backoff = Backoff::start(now, Duration::from_millis(200), 3);
        backoff.hurry(now, Duration::from_secs(9), 3);
        assert_eq!(backoff.due.as_millis(), 200);
        backoff.hurry(now, soon, 3);
        assert_eq!(backoff.due.as_millis(), 2);
        assert!(backoff.expire(backoff.due));
        let next = backoff.due;
        assert_eq!(next.as_millis(), 402);
        backoff.hurry(now, soon, 3);
        assert_eq!(backoff.due, next);
    }

    #[test]
    fn a_peer_that_answers_is_waited_for_at_most_a_minute_apart() {
        let mut backoff = Backoff::start(Instant::ZERO, Duration::from_secs(40), 1);
        for _ in 0..5 {
            let before = backoff.due;
            assert!(backoff.expire(before));
            assert!(backoff.due.since(before) <= Duration::from_secs(60));
            backoff.heard(1);
        }
        assert!(backoff.expire(backoff.due));
        assert!(!backoff.expire(backoff.due));
    }
}
