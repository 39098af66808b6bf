//! The expansion as a whole.

use fairlead_base::Rng;
use fairlead_trace::{Accesses, EndpointTable, Requests};
use serde::Serialize;

use crate::expansion::Expansion;
use crate::overlay::{self, Load, Overlaid, Refusal, Row};
use crate::sessions::{self, Sessions};
use crate::statistics::line;

/// Why a workload cannot be made.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum WorkloadError {
    /// A parameter that cannot be used.
    #[error("{0}")]
    Parameter(String),
    /// Nothing to expand.
    #[error("no requests to expand")]
    Empty,
    /// All sessions are of one access, so that none is ever open.
    #[error(
        "every session has a single access, so {0} sessions can never be open at once; set packets \
         = \"packets\", or omit concurrent_sessions"
    )]
    NeverOpen(f64),
    /// More accesses than are let in.
    #[error(
        "more than {0} accesses; reduce concurrent_sessions, warm_up_s or periods, use a longer \
         trace, or increase rows_max"
    )]
    TooManyRows(u64),
    /// A load that lasts longer than can be counted.
    #[error(
        "the load would last more than 36,000 years; raise concurrent_sessions, or lower periods \
         or warm_up_s"
    )]
    TooLong,
}

/// Accesses, with facts about the expansion.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Expanded {
    /// The accesses, warm-up first.
    #[serde(skip)]
    pub accesses: Accesses,
    /// Number of warm-up rows at the beginning: simulated, but not counted.
    pub warm_up_rows: usize,
    /// Rows that count.
    pub rows: usize,
    /// Start of the counted part, microseconds since the first access.
    pub measured_from_us: u64,
    /// With `concurrent_sessions`: how much of the steady state was made before it, seconds.
    pub warm_up_s: Option<f64>,
    /// Its duration, microseconds: up to the last access, or whole periods.
    pub measured_us: u64,
    /// Sessions of the log.
    pub log_sessions: u64,
    /// Sessions in the accesses, repetitions counted.
    pub sessions: u64,
    /// Sessions that share their identifier with an earlier one: ports come again.
    pub shared_identifiers: u64,
    /// Open sessions, mean over the counted part.
    pub concurrency_mean: f64,
    /// Open sessions, the most at any instant of the counted part.
    pub concurrency_peak: u64,
    /// When that was first so, microseconds since the first access.
    pub concurrency_peak_at_us: u64,
    /// With `concurrent_sessions`: after which time everything repeats with other clients,
    /// microseconds.
    pub period_us: Option<u64>,
    /// The mean pause within ON periods of the log, microseconds.
    pub on_gap_mean_us: f64,
    /// Responses that were acknowledged in part only (`acks_max`).
    pub responses_cut: u64,
    /// True if the model assigned any ports, because the log lacks some.
    #[serde(skip)]
    pub ports_drawn: bool,
}

/// A log cut into sessions and timed: what does not depend on the load. To be expanded to many
/// loads, as calibration does.
#[derive(Clone, Debug)]
pub struct Prepared {
    sessions: Sessions,
    expansion: Expansion,
    seed: u64,
}

/// Expands a log to accesses; the same for the same seed.
///
/// # Errors
/// [`WorkloadError`] when a parameter cannot be used, or there would be nothing or too much.
pub fn expand(
    requests: &Requests,
    expansion: &Expansion,
    seed: u64,
) -> Result<Expanded, WorkloadError> {
    Prepared::new(requests, expansion, seed)?.load(expansion.concurrent_sessions)
}

impl Prepared {
    /// Cuts a log into sessions and draws their times and ports.
    ///
    /// # Errors
    /// When a parameter cannot be used, or there is no request.
    pub fn new(
        requests: &Requests,
        expansion: &Expansion,
        seed: u64,
    ) -> Result<Self, WorkloadError> {
        if let Some(complaint) = expansion.complaint() {
            return Err(WorkloadError::Parameter(complaint));
        }
        if requests.is_empty() {
            return Err(WorkloadError::Empty);
        }
        if requests.len() as u64 > expansion.rows_max.min(u64::from(u32::MAX)) {
            return Err(WorkloadError::TooManyRows(expansion.rows_max));
        }
        let mut seeds = Rng::new(seed);
        let sessions = sessions::split(requests, expansion, seeds.next_u64())?;
        Ok(Self {
            sessions,
            expansion: expansion.clone(),
            seed: seeds.next_u64(),
        })
    }

    /// Sessions of the log.
    pub fn sessions(&self) -> usize {
        self.sessions.len()
    }

    /// The accesses with this number of sessions open at once, or at the log's own pace.
    ///
    /// # Errors
    /// The number of open sessions is not possible, or there would be too many accesses.
    pub fn load(&self, concurrent_sessions: Option<f64>) -> Result<Expanded, WorkloadError> {
        let Some(concurrent) = concurrent_sessions else {
            return Ok(self.finish(self.own_pace(), None));
        };
        if !(concurrent > 0.0 && concurrent.is_finite()) {
            let complaint = "concurrent_sessions must be above 0".to_owned();
            return Err(WorkloadError::Parameter(complaint));
        }
        let load = Load {
            concurrent,
            warm_up_us: (self.expansion.warm_up() * 1e6).min(9e15) as i64,
            periods: self.expansion.periods,
            rows_max: self.expansion.rows_max,
        };
        match overlay::overlay(&self.sessions, load, self.seed) {
            Ok(overlaid) => Ok(self.finish(overlaid, Some(load))),
            Err(Refusal::NeverOpen) => Err(WorkloadError::NeverOpen(concurrent)),
            Err(Refusal::Rows(most)) => Err(WorkloadError::TooManyRows(most)),
            Err(Refusal::Long) => Err(WorkloadError::TooLong),
        }
    }

    fn own_pace(&self) -> Overlaid {
        let sessions = &self.sessions;
        let first = sessions.start_us.iter().copied().min().unwrap_or(0);
        let mut table = EndpointTable::default();
        let mut rows = Vec::with_capacity(sessions.since_us.len());
        let mut stretches = Vec::with_capacity(sessions.len());
        for session in 0..sessions.len() {
            // Fewer than rows, which are fewer than numbers.
            let id = table
                .number(sessions.key[session], u32::MAX - 1)
                .unwrap_or(0);
            let start = sessions.start_us[session] - first;
            let begin = start as u64;
            stretches.push((begin, begin + sessions.open_us(session)));
            for row in sessions.rows(session) {
                let time_us = start + sessions.since_us[row] as i64;
                let hint = sessions.hint[row];
                rows.push(Row { time_us, id, hint });
            }
        }
        Overlaid {
            rows,
            table,
            sessions: sessions.len() as u64,
            period_us: 0,
            open: line(&mut stretches),
        }
    }

    fn finish(&self, overlaid: Overlaid, load: Option<Load>) -> Expanded {
        let mut rows = overlaid.rows;
        rows.sort_by_key(|row| row.time_us);
        let warm_up_rows = rows.partition_point(|row| row.time_us < 0);
        let first = rows.first().map_or(0, |row| row.time_us);
        let last = rows.last().map_or(0, |row| row.time_us);
        let keys = overlaid.table.into_keys();
        let hints = rows.iter().any(|row| row.hint != 0);
        let accesses = Accesses {
            time_us: rows
                .iter()
                .map(|row| (row.time_us - first) as u64)
                .collect(),
            id: rows.iter().map(|row| row.id).collect(),
            hint: if hints {
                rows.iter().map(|row| row.hint).collect()
            } else {
                Vec::new()
            },
            keys,
        };
        let measured_from_us = if load.is_some() {
            (-first).max(0) as u64
        } else {
            0
        };
        let measured_us = match load {
            Some(load) => overlaid.period_us * u64::from(load.periods),
            None => last as u64,
        };
        Expanded {
            warm_up_rows,
            rows: accesses.len() - warm_up_rows,
            measured_from_us,
            warm_up_s: load.map(|load| load.warm_up_us as f64 / 1e6),
            measured_us,
            log_sessions: self.sessions.len() as u64,
            sessions: overlaid.sessions,
            shared_identifiers: overlaid.sessions - accesses.keys.len() as u64,
            concurrency_mean: overlaid.open.mean,
            concurrency_peak: overlaid.open.peak,
            concurrency_peak_at_us: measured_from_us + overlaid.open.peak_at,
            period_us: load.map(|_| overlaid.period_us),
            on_gap_mean_us: self.sessions.on_gap_mean_us,
            responses_cut: self.sessions.responses_cut,
            ports_drawn: self.sessions.ports_drawn,
            accesses,
        }
    }
}
