//! What a trace is like: clients, sessions, ON and OFF times (figure 3), bits (figure 7), sessions
//! by set (figure 5), concurrency.

pub mod sets;

pub use fairlead_workload::statistics::{gaps, histogram, open};

use fairlead_workload::statistics::{BitAverages, Totals, bit_averages, totals};
use serde::Serialize;

use crate::error::LabError;
use crate::load::{Log, Provenance, Stream};
use crate::spec::RunSpec;
use gaps::Gaps;
use open::Concurrency;
use sets::Spread;

/// `part` of `whole`; 0 of nothing.
pub(crate) fn share(part: u64, whole: u64) -> f64 {
    if whole == 0 {
        0.0
    } else {
        part as f64 / whole as f64
    }
}

/// What is measured and how.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct StatSpec {
    /// Gaps up to this are ON, s.
    pub on_gap_max_s: f64,
    /// Schemes whose spread of sessions over sets is measured.
    pub spread: Vec<RunSpec>,
    /// A gap that ends a session of a log, s.
    pub session_timeout_s: f64,
}

impl Default for StatSpec {
    fn default() -> Self {
        let schemes = [
            "mod",
            "xor",
            "pmod",
            "pdisp",
            "crc",
            "universal",
            "2-xor",
            "2-pdisp",
            "2-universal",
            "4-universal",
        ];
        Self {
            on_gap_max_s: gaps::ON_GAP_MAX_S,
            spread: schemes.into_iter().map(RunSpec::paper).collect(),
            session_timeout_s: 1_800.0,
        }
    }
}

/// A log as it is, before any model.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LogStat {
    /// Clients, sessions, bytes.
    #[serde(flatten)]
    pub totals: Totals,
    /// The silence that ends a session, s.
    pub session_timeout_s: f64,
    /// ON and OFF times of clients, as the log has them.
    pub gaps: Gaps,
}

/// A stream of accesses.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct StreamStat {
    /// Accesses.
    pub accesses: u64,
    /// Distinct session identifiers.
    pub sessions: u64,
    /// Accesses of a session, on average.
    pub accesses_per_session: f64,
    /// From the first access to the last, s.
    pub span_s: f64,
    /// ON and OFF times of sessions.
    pub gaps: Gaps,
    /// Sessions at one time.
    pub concurrency: Concurrency,
    /// Averages of the bits of session identifiers.
    pub bits: BitAverages,
    /// How evenly sessions fall on sets.
    pub spread: Vec<Spread>,
}

/// All of it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Statistics {
    /// Where the stream comes from.
    pub stream: Provenance,
    /// The log, where there is one.
    pub log: Option<LogStat>,
    /// The stream of accesses that is made of it.
    pub accesses: StreamStat,
}

/// An access keeps a session ON for a second (section 3.3).
const ON_US: u64 = 1_000_000;

/// Measures a log.
pub fn log(log: &Log, spec: &StatSpec) -> LogStat {
    let requests = &log.requests;
    let mut order: Vec<usize> = (0..requests.len()).collect();
    order.sort_by_key(|row| requests.time_us[*row]);
    let clients: Vec<u32> = order.iter().map(|row| requests.client[*row]).collect();
    let times: Vec<i64> = order.iter().map(|row| requests.time_us[*row]).collect();
    let end_us = (spec.session_timeout_s * 1e6) as i64;
    let distinct = requests.clients.len();
    LogStat {
        totals: totals(requests, spec.session_timeout_s),
        session_timeout_s: spec.session_timeout_s,
        gaps: gaps::measure(&clients, &times, distinct, spec.on_gap_max_s, Some(end_us)),
    }
}

/// Measures a stream; it must have its times.
///
/// # Errors
/// A scheme or a geometry of [`StatSpec::spread`] that is not sound.
pub fn accesses(stream: &Stream, spec: &StatSpec) -> Result<StreamStat, LabError> {
    let times: Vec<i64> = stream
        .time_us
        .iter()
        .map(|time| i64::try_from(*time).unwrap_or(i64::MAX))
        .collect();
    let spread: Result<Vec<Spread>, LabError> = spec
        .spread
        .iter()
        .map(|run| sets::measure(&stream.keys, run))
        .collect();
    Ok(StreamStat {
        accesses: stream.ids.len() as u64,
        sessions: stream.keys.len() as u64,
        accesses_per_session: share(stream.ids.len() as u64, stream.keys.len() as u64),
        span_s: stream.note.span_s,
        gaps: gaps::measure(
            &stream.ids,
            &times,
            stream.keys.len(),
            spec.on_gap_max_s,
            None,
        ),
        concurrency: open::measure(&stream.ids, &stream.time_us, stream.keys.len(), ON_US),
        bits: bit_averages(&stream.keys),
        spread: spread?,
    })
}
