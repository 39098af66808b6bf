//! What a server is known to honour, over all its answers.
//!
//! Behind one address may stand several hosts (another balancer's, anycast, a Kubernetes Service)
//! that honour different options. A client that was promised an option which the host it gets does
//! not have cannot be served. So an answer that shows less counts at once, and one that shows more
//! only when all answers have done so for a long time.

use core::time::Duration;

use fairlead_base::Instant;

use crate::event::Offers;

/// Options that some answer lacked are believed again once this many answers in a row had them …
const AGREEING: u32 = 16;

/// … and after this long at least.
const AGREEING_FOR: Duration = Duration::from_secs(3_600);

/// What is known of one server's options.
#[derive(Clone, Debug, Default)]
pub(super) struct Honoured {
    /// What every answer has shown.
    least: Option<Offers>,
    /// It is known from a client's connection alone, which asks for no more than its client knows.
    provisional: bool,
    /// What the answers since the last one that showed no more than `least` have in common.
    more: Option<More>,
}

/// A run of answers that all showed more.
#[derive(Clone, Copy, Debug)]
struct More {
    common: Offers,
    answers: u32,
    since: Instant,
}

/// What an answer has led to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// What is known stays.
    None,
    /// More is known than before, or something else.
    More,
    /// The answer showed fewer options, or smaller ones, than answers before.
    Less,
}

/// What was asked for and is missing in the answer to a client's connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lacking {
    /// The MSS is smaller than was asked with, so it is the server's own.
    pub segments: bool,
    /// Timestamps were asked for.
    pub timestamps: bool,
}

impl Honoured {
    pub(super) fn least(&self) -> Option<Offers> {
        self.least
    }

    /// The server answered a probe, which asks for everything.
    pub(super) fn probed(&mut self, seen: Offers, now: Instant) -> Change {
        let known = self.least.filter(|_| !self.provisional);
        self.provisional = false;
        let Some(least) = known else {
            let news = self.least.replace(seen) != Some(seen);
            return if news { Change::More } else { Change::None };
        };
        let common = least.intersection(seen);
        if common != least {
            self.least = Some(common);
            self.more = None;
            return Change::Less;
        }
        if seen == least {
            self.more = None;
            return Change::None;
        }
        let begun = More {
            common: seen,
            answers: 0,
            since: now,
        };
        let mut more = self.more.unwrap_or(begun);
        more.common = more.common.intersection(seen);
        more.answers += 1;
        if more.common == least {
            more = More {
                answers: 1,
                ..begun
            };
        }
        if more.answers >= AGREEING && now.since(more.since) >= AGREEING_FOR {
            self.least = Some(more.common);
            self.more = None;
            return Change::More;
        }
        self.more = Some(more);
        Change::None
    }

    /// The server answered a client's connection, which did not ask for everything: only what is
    /// named as missing is known by it.
    pub(super) fn connected(&mut self, seen: Offers, lacking: Lacking) -> Change {
        let Some(mut least) = self.least else {
            (self.least, self.provisional) = (Some(seen), true);
            return Change::More;
        };
        if lacking.segments {
            least.mss = least.mss.min(seen.mss);
        }
        least.timestamps &= !lacking.timestamps;
        if self.least == Some(least) {
            return Change::None;
        }
        self.least = Some(least);
        self.more = None;
        Change::Less
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: Offers = Offers {
        mss: 1_460,
        window_scale: Some(7),
        sack: true,
        timestamps: true,
    };

    /// Each option missing or smaller.
    fn lesser() -> [Offers; 5] {
        [
            Offers { mss: 1_400, ..ALL },
            Offers {
                window_scale: None,
                ..ALL
            },
            // The larger scale can express the windows of both.
            Offers {
                window_scale: Some(9),
                ..ALL
            },
            Offers { sack: false, ..ALL },
            Offers {
                timestamps: false,
                ..ALL
            },
        ]
    }

    fn at(seconds: u64) -> Instant {
        Instant::ZERO + Duration::from_secs(seconds)
    }

    #[test]
    fn the_least_of_two_hosts_counts_from_its_first_answer_on() {
        for less in lesser() {
            let mut honoured = Honoured::default();
            assert_eq!(honoured.probed(ALL, at(0)), Change::More);
            assert_eq!(honoured.probed(less, at(1)), Change::Less, "{less:?}");
            for second in 2..20_000 {
                let seen = if second % 2 == 0 { ALL } else { less };
                assert_eq!(honoured.probed(seen, at(second)), Change::None);
                assert_eq!(honoured.least(), Some(less));
            }
        }
    }

    #[test]
    fn more_is_believed_after_many_answers_in_a_row_and_an_hour() {
        for less in lesser() {
            let mut honoured = Honoured::default();
            honoured.probed(less, at(0));
            for minute in 1..=60 {
                assert_eq!(honoured.probed(ALL, at(60 * minute)), Change::None);
            }
            assert_eq!(honoured.probed(ALL, at(60 * 61)), Change::More);
            assert_eq!(honoured.least(), Some(ALL));
        }
        // Rare answers: an hour alone is not enough.
        let mut honoured = Honoured::default();
        honoured.probed(lesser()[4], at(0));
        for hour in 1..16 {
            assert_eq!(honoured.probed(ALL, at(3_600 * hour)), Change::None);
        }
        assert_eq!(honoured.probed(ALL, at(3_600 * 16)), Change::More);
    }

    #[test]
    fn hosts_that_each_lack_something_else_share_what_they_have_in_common() {
        let [.., without_sack, without_timestamps] = lesser();
        let neither = without_sack.intersection(without_timestamps);
        let mut honoured = Honoured::default();
        honoured.probed(without_sack, at(0));
        assert_eq!(honoured.probed(without_timestamps, at(1)), Change::Less);
        for second in 2..20_000 {
            let seen = [without_sack, without_timestamps][second as usize % 2];
            assert_eq!(honoured.probed(seen, at(second)), Change::None);
        }
        assert_eq!(honoured.least(), Some(neither));
    }

    #[test]
    fn what_a_connection_shows_counts_until_the_first_probe() {
        let less = lesser()[4];
        let mut honoured = Honoured::default();
        let asked = Lacking {
            segments: false,
            timestamps: true,
        };
        assert_eq!(honoured.connected(less, Lacking::default()), Change::More);
        assert_eq!(honoured.probed(ALL, at(1)), Change::More);
        assert_eq!(
            honoured.connected(less, Lacking::default()),
            Change::None,
            "not asked for"
        );
        assert_eq!(
            honoured.connected(less, asked),
            Change::Less,
            "a promise was broken"
        );
        assert_eq!(honoured.probed(ALL, at(2)), Change::None);
        assert_eq!(honoured.least(), Some(less));
        let (shorter, asked) = (
            Offers { mss: 1_400, ..ALL },
            Lacking {
                segments: true,
                timestamps: false,
            },
        );
        assert_eq!(honoured.connected(shorter, asked), Change::Less);
        assert_eq!(honoured.least().map(|least| least.mss), Some(1_400));
    }
}
