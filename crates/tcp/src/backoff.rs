//! Retransmission with exponential back-off (RFC 6298, section 5), without measurement: the switch
//! sends so little of its own that an estimate would rarely have a sample.

use core::time::Duration;

use fairlead_base::Instant;

/// When to send again, and when to give up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backoff {
    /// When the next retransmission is due.
    pub due: Instant,
    wait: Duration,
    left: u8,
}

impl Backoff {
    /// Sent now; again after `first_wait`, then after twice that, …, `retransmissions` times.
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
        self.wait = self.wait.saturating_mul(2);
        self.due = now + self.wait;
        true
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
}
