//! The standard workload: a number of sessions, all open all the time, alternating between ON
//! bursts and OFF pauses. It serves to compare schemes without a log, and must be labelled
//! synthetic.

use fairlead_base::{Address, Endpoint, Rng};
use fairlead_trace::{
    Accesses, EndpointTable, HINT_CLOSING, HINT_NONE, HINT_OPENING, address_of_name,
};
use serde::{Deserialize, Serialize};

use crate::draw::{below, exponential, log_normal, micros, uniform};
use crate::expand::WorkloadError;
use crate::ports::PortModel;

/// The most sessions: their identifiers take 42 bytes each.
const SESSIONS_MAX: u32 = 1 << 28;

/// A step of the clock: so long is at least between two accesses of a session, seconds.
const STEP_S: f64 = 1e-6;

/// The actual number may be below the expected one by chance: drawing is refused only if the
/// expected number exceeds this multiple of the maximum.
const SURELY_TOO_MANY: f64 = 2.0;
/// Accesses drawn before those that are seen, at most, as expected: some ten seconds' work.
const UNSEEN_MAX: f64 = 1e9;

/// Parameters of the standard workload. What is not written has its default.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Standard {
    /// Sessions.
    #[serde(deserialize_with = "crate::count::deserialize_sessions")]
    pub sessions: u32,
    /// Accesses of an ON burst, mean of a geometric distribution; 1 or more.
    pub burst_mean: f64,
    /// Pause between two accesses of a burst, mean of an exponential distribution, seconds.
    pub gap_mean_s: f64,
    /// What every OFF pause has at least, seconds.
    pub off_floor_s: f64,
    /// What it has besides: the median of a log-normal distribution, seconds.
    pub off_median_s: f64,
    /// That distribution's σ.
    pub off_sigma: f64,
    /// How long, seconds.
    pub seconds: f64,
    /// Duration before the result, seconds. Long enough for most pauses, so that the start is like
    /// the rest.
    pub before_s: f64,
    /// Duration before counting, seconds: the first part of the result, which warms caches.
    #[serde(skip_serializing_if = "is_zero")]
    pub warm_up_s: f64,
    /// Bursts of a session until its connection closes, mean of a geometric distribution; 0 when it
    /// never does. After a pause another session takes its place, so that a part of `sessions` is
    /// always between two; first and last accesses then have hints.
    #[serde(skip_serializing_if = "is_zero")]
    pub bursts_per_session: f64,
    /// Ports of clients.
    #[serde(deserialize_with = "crate::ports::deserialize")]
    pub ports: PortModel,
    /// Sessions of one client, at most: each client has a number of them drawn evenly from 1 to
    /// this.
    #[serde(deserialize_with = "crate::count::deserialize_sessions")]
    pub sessions_per_client_max: u32,
    /// The most accesses.
    #[serde(deserialize_with = "crate::count::deserialize")]
    pub rows_max: u64,
}

/// What has no part in a workload is not in its recipe either.
fn is_zero(value: &f64) -> bool {
    *value == 0.0
}

impl Default for Standard {
    fn default() -> Self {
        Self {
            sessions: 4_000,
            burst_mean: 6.0,
            gap_mean_s: 0.3,
            off_floor_s: 1.0,
            off_median_s: 10.0,
            off_sigma: 1.0,
            seconds: 60.0,
            before_s: 60.0,
            warm_up_s: 0.0,
            bursts_per_session: 0.0,
            ports: PortModel::SEQUENTIAL,
            sessions_per_client_max: 1,
            rows_max: 1 << 28,
        }
    }
}

impl Standard {
    fn complaint(&self) -> Option<String> {
        let finite = |value: f64| value >= 0.0 && value.is_finite();
        for (name, value) in [
            ("gap_mean_s", self.gap_mean_s),
            ("off_floor_s", self.off_floor_s),
            ("off_median_s", self.off_median_s),
            ("off_sigma", self.off_sigma),
            ("seconds", self.seconds),
            ("before_s", self.before_s),
            ("warm_up_s", self.warm_up_s),
        ] {
            if !finite(value) {
                return Some(format!("{name} must be 0 or more"));
            }
        }
        if !(self.burst_mean >= 1.0 && self.burst_mean.is_finite()) {
            return Some("burst_mean must be 1 or more".to_owned());
        }
        let bursts = self.bursts_per_session;
        if !(bursts == 0.0 || bursts >= 1.0 && bursts.is_finite()) {
            return Some("bursts_per_session must be 1 or more, or 0 for no end".to_owned());
        }
        if !(1..=SESSIONS_MAX).contains(&self.sessions) || self.sessions_per_client_max == 0 {
            let said = format!("sessions must be 1 to {SESSIONS_MAX}, of a client 1 or more");
            return Some(said);
        }
        // A pause must not be shorter than a clock's step for ever.
        if self.off_floor_s + self.off_median_s < 1e-3 {
            return Some("off_floor_s + off_median_s must be a millisecond or more".to_owned());
        }
        self.ports.complaint()
    }

    /// Seconds from the beginning of a burst to that of the next, mean.
    fn cycle_s(&self) -> f64 {
        let off = self.off_median_s * (self.off_sigma * self.off_sigma / 2.0).exp();
        (self.burst_mean - 1.0) * self.gap_mean_s + self.off_floor_s + off
    }

    /// Accesses in so much time, about. Those of a burst are a step of the clock apart at least.
    fn rows_expected(&self, seconds: f64) -> f64 {
        let steps_s = (self.burst_mean - 1.0) * STEP_S;
        let bursts = seconds / (self.cycle_s() + steps_s);
        f64::from(self.sessions) * self.burst_mean * bursts
    }

    /// Can it be made, as far as is known beforehand?
    ///
    /// # Errors
    /// When a parameter cannot be used, or there would be too many accesses.
    pub fn check(&self) -> Result<(), WorkloadError> {
        if let Some(complaint) = self.complaint() {
            return Err(WorkloadError::Parameter(complaint));
        }
        let rows_max = self.rows_max as f64;
        if self.rows_expected(self.warm_up_s + self.seconds) > SURELY_TOO_MANY * rows_max {
            return Err(self.too_many());
        }
        if self.rows_expected(self.before_s) > UNSEEN_MAX {
            return Err(WorkloadError::Parameter(format!(
                "more than {UNSEEN_MAX} accesses before those that are seen; lower before_s"
            )));
        }
        Ok(())
    }

    fn too_many(&self) -> WorkloadError {
        WorkloadError::Parameter(format!(
            "more than {} accesses; lower sessions, seconds, warm_up_s or burst_mean, or raise \
             rows_max",
            self.rows_max
        ))
    }
}

/// Session identifiers, all different.
fn identifiers(standard: &Standard, rng: &mut Rng) -> EndpointTable {
    let mut table = EndpointTable::default();
    let sessions = standard.sessions;
    while table.len() < sessions as usize {
        let addr: Address = address_of_name(&rng.next_u64().to_le_bytes());
        let first = standard.ports.first(rng);
        let count = rng.below(standard.sessions_per_client_max) + 1;
        for number in 0..count.min(sessions - table.len() as u32) {
            let port = standard.ports.port(first, number, rng);
            table.number(Endpoint { addr, port }, u32::MAX - 1);
        }
    }
    table
}

/// An access: time, session, and hint.
type Row = (u64, u32, u8);

/// Walks through the sessions, one place after the other.
struct Walk<'a> {
    standard: &'a Standard,
    rng: Rng,
    table: EndpointTable,
    rows: Vec<Row>,
}

impl Walk<'_> {
    /// The number of a session that was not there before.
    fn newcomer(&mut self) -> u32 {
        loop {
            let known = self.table.len() as u32;
            let addr = address_of_name(&self.rng.next_u64().to_le_bytes());
            let first = self.standard.ports.first(&mut self.rng);
            let port = self.standard.ports.port(first, 0, &mut self.rng);
            let number = self.table.number(Endpoint { addr, port }, u32::MAX - 1);
            if number == Some(known) {
                return known;
            }
        }
    }

    /// All accesses from `begin` to `end` of the session in a slot, and of its successors.
    ///
    /// # Errors
    /// As soon as there are more accesses than there may be: one session can have them all.
    fn place(&mut self, place: u32, begin: u64, end: u64) -> Result<(), WorkloadError> {
        let standard = self.standard;
        let ends = 1.0 / standard.burst_mean;
        let mut session = Some(place);
        let mut hint = HINT_NONE;
        let mut time = below(&mut self.rng, micros(standard.cycle_s()).max(1));
        while time < end {
            let is_last = uniform(&mut self.rng) < ends;
            let closes = is_last
                && standard.bursts_per_session > 0.0
                && uniform(&mut self.rng) * standard.bursts_per_session < 1.0;
            if closes {
                hint = HINT_CLOSING;
            }
            if time >= begin {
                // Only sessions that are seen have a number.
                let number = match session {
                    Some(number) => number,
                    None => *session.insert(self.newcomer()),
                };
                if self.rows.len() as u64 >= standard.rows_max {
                    return Err(standard.too_many());
                }
                self.rows.push((time - begin, number, hint));
            }
            hint = HINT_NONE;
            if closes {
                (session, hint) = (None, HINT_OPENING);
            }
            let rng = &mut self.rng;
            let pause = if is_last {
                let more = log_normal(rng, standard.off_median_s, standard.off_sigma);
                standard.off_floor_s + more
            } else {
                exponential(rng, standard.gap_mean_s)
            };
            // No two accesses of a session at one instant: time goes on whatever is drawn.
            time = time.saturating_add(micros(pause).max(1));
        }
        Ok(())
    }
}

/// The standard workload; the same for the same seed. The warm-up is its beginning.
///
/// # Errors
/// When a parameter cannot be used, or there would be too many accesses.
pub fn standard(standard: &Standard, seed: u64) -> Result<Accesses, WorkloadError> {
    warmed(standard, seed).map(|(accesses, _)| accesses)
}

/// The same, and how many accesses at its beginning are of the warm-up: times count from the first
/// access, `warm_up_s` does from where the workload begins.
///
/// # Errors
/// As [`standard`].
pub fn warmed(standard: &Standard, seed: u64) -> Result<(Accesses, usize), WorkloadError> {
    standard.check()?;
    let mut rng = Rng::new(seed);
    let table = identifiers(standard, &mut rng);
    let begin = micros(standard.before_s);
    let lasts = micros(standard.warm_up_s).saturating_add(micros(standard.seconds));
    let end = begin.saturating_add(lasts);
    let mut walk = Walk {
        standard,
        rng,
        table,
        rows: Vec::new(),
    };
    for place in 0..standard.sessions {
        walk.place(place, begin, end)?;
    }
    let mut rows = walk.rows;
    rows.sort_unstable();
    if rows.is_empty() {
        return Err(WorkloadError::Empty);
    }
    let first = rows[0].0;
    let warm_up_us = micros(standard.warm_up_s);
    let warm_up = rows.partition_point(|(time, ..)| *time < warm_up_us);
    let hints = rows.iter().map(|(.., hint)| *hint);
    let accesses = Accesses {
        time_us: rows.iter().map(|(time, ..)| time - first).collect(),
        id: rows.iter().map(|(_, id, _)| *id).collect(),
        keys: walk.table.into_keys(),
        hint: if standard.bursts_per_session > 0.0 {
            hints.collect()
        } else {
            Vec::new()
        },
    };
    Ok((accesses, warm_up))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::statistics::gaps::{Limits, measure};

    #[test]
    fn a_warm_up_counts_from_the_beginning() {
        // Few accesses: the first is long behind the beginning.
        let made = |warm_up_s: f64, seconds: f64| Standard {
            sessions: 1,
            warm_up_s,
            seconds,
            ..Standard::default()
        };
        let (mut late, mut none) = (0, 0);
        for seed in 1..40 {
            let Ok(short) = standard(&made(0.0, 20.0), seed) else {
                continue;
            };
            // The same accesses, whatever part of them is warm-up.
            let (whole, warm_up) = warmed(&made(20.0, 40.0), seed).unwrap();
            assert_eq!(warm_up, short.len());
            assert_eq!(whole.time_us[..warm_up], short.time_us);
            late += u64::from(
                whole
                    .time_us
                    .get(warm_up)
                    .is_some_and(|at| *at < 20_000_000),
            );
            none += usize::from(warmed(&made(20.0, 0.0), seed).unwrap().1 == warm_up);
        }
        assert!(late > 5 && none > 5, "{late} {none}");
    }

    #[test]
    fn bursts_and_pauses_are_as_asked_for() {
        let parameters = Standard {
            sessions: 2_000,
            seconds: 600.0,
            ..Standard::default()
        };
        let accesses = standard(&parameters, 1).unwrap();
        assert!(accesses.time_us.is_sorted());
        // 600 s, a cycle of 19 s, six accesses each.
        let expected = 2_000.0 * 600.0 / parameters.cycle_s() * 6.0;
        let count = accesses.len() as f64;
        assert!(
            (count / expected - 1.0).abs() < 0.06,
            "{count}, not {expected}"
        );
        // Pauses of a burst are short and those between are longer than a second, but for the few
        // of a burst that are above it: e^(-1/0.3) of them.
        let times: Vec<i64> = accesses.time_us.iter().map(|time| *time as i64).collect();
        let limits = Limits {
            on_gap_max_s: 1.0,
            end_us: None,
            counted_from: 0,
        };
        let found = measure(&accesses.id, &times, accesses.keys.len(), limits);
        let long = (-1.0f64 / 0.3).exp();
        let bursts = 1.0 / 6.0 + 5.0 / 6.0 * long;
        assert!(
            (found.accesses_per_burst - 1.0 / bursts).abs() < 0.25,
            "{}",
            found.accesses_per_burst
        );
        assert!(found.on.mean > 0.22 && found.on.mean < 0.3);
    }

    #[test]
    fn the_same_seed_gives_the_same_and_another_does_not() {
        let few = Standard {
            sessions: 50,
            ..Standard::default()
        };
        assert_eq!(standard(&few, 7), standard(&few, 7));
        assert_ne!(standard(&few, 7), standard(&few, 8));
        assert_eq!(standard(&few, 7).unwrap().keys.len(), 50);
    }

    #[test]
    fn a_warm_up_is_more_of_the_same() {
        let of = |warm_up_s, seconds| {
            let parameters = Standard {
                sessions: 200,
                seconds,
                warm_up_s,
                ..Standard::default()
            };
            standard(&parameters, 1)
        };
        assert_eq!(of(0.0, 50.0), of(20.0, 30.0));
    }

    #[test]
    fn sessions_that_close_say_so_and_others_take_their_place() {
        let parameters = Standard {
            sessions: 300,
            bursts_per_session: 3.0,
            ..Standard::default()
        };
        let accesses = standard(&parameters, 1).unwrap();
        assert_eq!(accesses.hint.len(), accesses.len());
        let mut over = vec![false; accesses.keys.len()];
        let (mut opened, mut closed) = (0u32, 0u32);
        let mut seen = vec![false; over.len()];
        for (id, hint) in accesses.id.iter().zip(&accesses.hint) {
            let id = *id as usize;
            assert!(!over[id], "nothing comes behind a FIN");
            let first = !std::mem::replace(&mut seen[id], true);
            // A session that was there before the beginning has opened before it.
            assert!(*hint != HINT_OPENING || first && id >= 300, "it opens once");
            opened += u32::from(*hint == HINT_OPENING);
            over[id] = *hint == HINT_CLOSING;
            closed += u32::from(over[id]);
        }
        // 300 places, a burst in 19 s, one in three the last: 60 s make about 315 ends.
        assert!((250..380).contains(&closed), "{closed}");
        assert!(opened.abs_diff(closed) < 100, "{opened}");
        let keys: std::collections::BTreeSet<_> = accesses.keys.iter().collect();
        assert_eq!(keys.len(), accesses.keys.len());
    }

    #[test]
    fn too_many_accesses_are_refused_before_they_fill_memory() {
        for (sessions, seconds) in [(100, 1e30), (1_000, 1e9), (1, 1e12)] {
            let parameters = Standard {
                sessions,
                seconds,
                rows_max: 1_000,
                ..Standard::default()
            };
            let said = standard(&parameters, 1).unwrap_err().to_string();
            assert!(said.contains("more than 1000 accesses"), "{said}");
            assert!(said.contains("seconds"), "{said}");
        }
    }

    #[test]
    fn as_many_accesses_as_there_may_be_are_made() {
        let mut parameters = Standard {
            sessions: 100,
            ..Standard::default()
        };
        let all = standard(&parameters, 1).unwrap();
        parameters.rows_max = all.len() as u64;
        assert_eq!(standard(&parameters, 1).unwrap(), all);
        parameters.rows_max -= 1;
        assert!(standard(&parameters, 1).is_err());
    }

    #[test]
    fn what_is_expected_is_about_what_comes() {
        let usual = Standard {
            sessions: 100,
            seconds: 200.0,
            ..Standard::default()
        };
        // Bursts a thousand times faster than the clock, hardly a pause between them.
        let fast = Standard {
            sessions: 1,
            burst_mean: 1e4,
            gap_mean_s: 1e-9,
            off_floor_s: 0.0,
            off_median_s: 1e-3,
            seconds: 1.0,
            before_s: 0.1,
            ..Standard::default()
        };
        let single = Standard {
            burst_mean: 1.0,
            ..usual
        };
        for parameters in [usual, fast, single] {
            let rows = standard(&parameters, 1).unwrap().len() as f64;
            let ratio = parameters.rows_expected(parameters.seconds) / rows;
            assert!((0.8..1.25).contains(&ratio), "{parameters:?}: {ratio}");
        }
    }

    #[test]
    fn what_cannot_be_is_refused() {
        for (parameters, word) in [
            (
                Standard {
                    sessions: 0,
                    ..Standard::default()
                },
                "sessions",
            ),
            (
                Standard {
                    burst_mean: 0.5,
                    ..Standard::default()
                },
                "burst_mean",
            ),
            (
                Standard {
                    seconds: f64::NAN,
                    ..Standard::default()
                },
                "seconds",
            ),
            (
                Standard {
                    rows_max: 10,
                    ..Standard::default()
                },
                "10 accesses",
            ),
            (
                Standard {
                    before_s: 1e12,
                    ..Standard::default()
                },
                "lower before_s",
            ),
            (
                Standard {
                    bursts_per_session: 0.5,
                    ..Standard::default()
                },
                "bursts_per_session",
            ),
        ] {
            let said = standard(&parameters, 1).unwrap_err().to_string();
            assert!(said.contains(word), "{said}");
        }
    }
}
