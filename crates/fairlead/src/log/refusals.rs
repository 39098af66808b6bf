//! How many refusals have a line of their own.

use std::time::Duration;

use fairlead_base::{DropReason, Instant, ReasonCounts};

/// Lines in a second for one reason.
pub(super) const LINES_MAX: u64 = 10;
/// The others are summed up after so long.
pub(super) const SUM_AFTER: Duration = Duration::from_secs(10);

/// Refusals by reason, within a rate.
#[derive(Debug, Default)]
pub(super) struct Refusals {
    second: u128,
    lines: ReasonCounts,
    /// Those without a line, and when the first was.
    others: ReasonCounts,
    since: Option<Instant>,
}

impl Refusals {
    /// True if this one has a line.
    pub(super) fn admit(&mut self, now: Instant, reason: DropReason) -> bool {
        let second = u128::from(now.as_millis()) / 1_000;
        if second != self.second {
            self.second = second;
            self.lines = ReasonCounts::default();
        }
        if self.lines.of(reason) < LINES_MAX {
            self.lines.add(reason);
            return true;
        }
        self.others.add(reason);
        self.since.get_or_insert(now);
        false
    }

    /// Those without a line and for how long they came, if it is time to sum them up, or `at_once`.
    pub(super) fn sum(&mut self, now: Instant, at_once: bool) -> Option<(Duration, ReasonCounts)> {
        let lasted = now.since(self.since?);
        if lasted < SUM_AFTER && !at_once {
            return None;
        }
        self.since = None;
        Some((lasted, std::mem::take(&mut self.others)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ten_a_second_for_each_reason_have_a_line_and_the_rest_is_summed_up() {
        let mut refusals = Refusals::default();
        let at = Instant::from_millis;
        let mut lines = 0;
        for millis in 0..1_000 {
            lines += u32::from(refusals.admit(at(millis), DropReason::NoRoute));
        }
        assert_eq!(lines, 10);
        assert!(refusals.admit(at(999), DropReason::HeadTimeout));
        assert!(
            refusals.admit(at(1_000), DropReason::NoRoute),
            "the next second"
        );
        assert!(refusals.sum(at(9_999), false).is_none());
        let (lasted, sum) = refusals.sum(at(10_010), false).unwrap();
        assert_eq!((lasted, sum.total()), (SUM_AFTER, 990));
        assert_eq!(sum.of(DropReason::NoRoute), 990);
        assert!(refusals.sum(at(99_999), true).is_none(), "none twice");
    }
}
