//! When results make a server's state.

use core::time::Duration;

use crate::Check;

/// Whether a server is up, by the results of its checks: it changes after `rise` passed or `fall`
/// failed ones in a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Judge {
    is_up: bool,
    /// Results in a row that contradict `is_up`.
    against: u8,
}

impl Judge {
    /// Before the first result.
    pub fn new(is_up: bool) -> Self {
        Self { is_up, against: 0 }
    }

    /// Whether the server is up.
    pub fn is_up(&self) -> bool {
        self.is_up
    }

    /// Heeds a result. True when the state changes by it.
    pub fn handle_result(&mut self, passed: bool, check: &Check) -> bool {
        if passed == self.is_up {
            self.against = 0;
            return false;
        }
        self.against = self.against.saturating_add(1);
        let wanted = if passed { check.rise } else { check.fall };
        if self.against < wanted {
            return false;
        }
        *self = Self::new(passed);
        true
    }

    /// From the end of a check to the next one.
    pub fn pause(&self, check: &Check) -> Duration {
        match (self.against, self.is_up) {
            (0, true) => check.interval,
            (0, false) => check.down_interval,
            _ => check.fast_interval,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(results: &str, is_up: bool) -> String {
        let check = Check {
            rise: 2,
            fall: 3,
            ..Check::default()
        };
        let mut judge = Judge::new(is_up);
        let step = |result| {
            judge.handle_result(result == '+', &check);
            if judge.is_up() { 'U' } else { 'D' }
        };
        results.chars().map(step).collect()
    }

    #[test]
    fn a_state_changes_at_the_last_result_of_its_row_and_not_before() {
        assert_eq!(run("--+---", true), "UUUUUD");
        assert_eq!(run("+-++", false), "DDDU");
        // A server that flaps below both limits stays what it is.
        assert_eq!(run("--+--+--+", true), "UUUUUUUUU");
        assert_eq!(run("+-+-+-+-", false), "DDDDDDDD");
    }

    #[test]
    fn checks_come_faster_while_results_contradict_the_state() {
        let check = Check {
            interval: Duration::from_secs(5),
            fast_interval: Duration::from_secs(1),
            down_interval: Duration::from_secs(20),
            ..Check::default()
        };
        let mut judge = Judge::new(true);
        let mut pauses = Vec::new();
        for passed in [true, false, false, false, false, true, true] {
            judge.handle_result(passed, &check);
            pauses.push(judge.pause(&check).as_secs());
        }
        assert_eq!(pauses, [5, 1, 1, 20, 20, 1, 5]);
    }
}
