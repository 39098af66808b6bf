//! What a trace is like: clients, sessions, ON and OFF times (figure 3), bits (figure 7), sessions
//! by set (figure 5), concurrency.

pub mod sets;

pub use fairlead_workload::statistics::{gaps, histogram, open};

use fairlead_workload::Expanded;
use fairlead_workload::statistics::{BitAverages, Totals, bit_averages, totals};
use serde::Serialize;

use crate::error::LabError;
use crate::load::{Log, Provenance, Stream};
use crate::spec::RunSpec;
use gaps::{Gaps, Limits};
use open::Concurrency;
use sets::Spread;

/// `part / whole`, or 0.
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
        Self::seeded(1)
    }
}

impl StatSpec {
    /// The usual, with the index functions that are drawn from a seed.
    pub fn seeded(seed: u64) -> Self {
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
            spread: schemes
                .into_iter()
                .map(|scheme| RunSpec {
                    seed,
                    ..RunSpec::paper(scheme)
                })
                .collect(),
            session_timeout_s: 1_800.0,
        }
    }
}

/// Statistics of a log, before any model.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LogStat {
    /// Clients, sessions, bytes.
    #[serde(flatten)]
    pub totals: Totals,
    /// The silence that ends a session, s.
    pub session_timeout_s: f64,
    /// ON and OFF times of clients, and ports if the log has them.
    pub gaps: Gaps,
}

/// A stream of accesses.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct StreamStat {
    /// Accesses.
    pub accesses: u64,
    /// Sessions: of a log those of the expansion, warm-up included, which may share identifiers;
    /// of rows that are accesses as they are, distinct identifiers that are accessed.
    pub sessions: u64,
    /// Mean accesses per session; for a log, of its complete sessions.
    pub accesses_per_session: f64,
    /// From the first access to the last, s.
    pub span_s: f64,
    /// ON and OFF times of sessions, in the part that counts. Of a log, a silence beyond the
    /// session timeout ends one.
    pub gaps: Gaps,
    /// Sessions at one time; of a log, in the part that counts.
    pub concurrency: Concurrency,
    /// Averages of the bits of session identifiers.
    pub bits: BitAverages,
    /// How evenly sessions fall on sets.
    pub spread: Vec<Spread>,
}

/// All of it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Statistics {
    /// Origin of the stream.
    pub stream: Provenance,
    /// The log, if there is one.
    pub log: Option<LogStat>,
    /// The stream of accesses.
    pub accesses: StreamStat,
}

/// An access keeps a session ON for a second (section 3.3).
const ON_US: u64 = 1_000_000;

/// Measures a log.
pub fn log(log: &Log, spec: &StatSpec) -> LogStat {
    let requests = &log.requests;
    let mut order: Vec<usize> = (0..requests.len()).collect();
    order.sort_by_key(|row| requests.time_us[*row]);
    let (askers, distinct) = fairlead_workload::askers(requests);
    let askers: Vec<u32> = order.iter().map(|row| askers[*row]).collect();
    let times: Vec<i64> = order.iter().map(|row| requests.time_us[*row]).collect();
    let limits = Limits {
        on_gap_max_s: spec.on_gap_max_s,
        end_us: Some((spec.session_timeout_s * 1e6) as i64),
        counted_from: 0,
    };
    LogStat {
        totals: totals(requests, spec.session_timeout_s),
        session_timeout_s: spec.session_timeout_s,
        gaps: gaps::measure(&askers, &times, distinct, limits),
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
    let arriving = sets::by_first_access(&stream.ids, &stream.keys);
    let spread: Result<Vec<Spread>, LabError> = spec
        .spread
        .iter()
        .map(|run| sets::measure(&arriving, run))
        .collect();
    let accesses = stream.ids.len() as u64;
    let expansion = &stream.note.made.expansion;
    // Ports come again: what bears one identifier may be several sessions. The expansion knows.
    let expanded = stream.note.expanded.as_ref();
    let (sessions, accesses_per_session) = match expanded {
        Some(expanded) => {
            let whole = expanded.log_sessions * measured_times(expanded, expansion.periods);
            (expanded.sessions, share(expanded.rows as u64, whole))
        }
        None => {
            let sessions = stream.note.sessions;
            (sessions, share(accesses, sessions))
        }
    };
    let limits = Limits {
        on_gap_max_s: spec.on_gap_max_s,
        end_us: expanded.map(|_| (expansion.silence_max_s() * 1e6) as i64),
        counted_from: stream.counted_from,
    };
    Ok(StreamStat {
        accesses,
        sessions,
        accesses_per_session,
        span_s: stream.note.span_s,
        gaps: gaps::measure(&stream.ids, &times, stream.keys.len(), limits),
        concurrency: concurrency(stream),
        bits: bit_averages(&arriving),
        spread: spread?,
    })
}

/// How many times over the accesses of the log are measured.
fn measured_times(expanded: &Expanded, periods: u32) -> u64 {
    expanded.period_us.map_or(1, |_| u64::from(periods))
}

/// How many sessions there are at a time; the stream must have its times. A log's stream begins and
/// ends in the middle of sessions, and its identifiers come again: how many are open is known from
/// the expansion. So it is of the standard workload whose connections never end: what is measured
/// of its short length is less. An identifier that was accessed lately is ON, whoever bears it.
pub fn concurrency(stream: &Stream) -> Concurrency {
    let seen = open::measure(&stream.ids, &stream.time_us, stream.keys.len(), ON_US);
    if let Some(expanded) = &stream.note.expanded {
        return Concurrency {
            peak_open: expanded.concurrency_peak,
            peak_open_at_s: expanded.concurrency_peak_at_us as f64 / 1e6,
            mean_open: expanded.concurrency_mean,
            ..seen
        };
    }
    let standard = stream.note.made.standard.as_ref();
    match standard.filter(|standard| standard.bursts_per_session == 0.0) {
        Some(standard) => Concurrency {
            peak_open: standard.sessions.into(),
            peak_open_at_s: 0.0,
            mean_open: standard.sessions.into(),
            ..seen
        },
        None => seen,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Loader, Silent, StreamSpec};

    #[test]
    fn sessions_that_never_end_are_open_all_the_time() {
        let open = |bursts_per_session: f64| {
            let standard = fairlead_workload::Standard {
                sessions: 600,
                seconds: 20.0,
                bursts_per_session,
                ..fairlead_workload::Standard::default()
            };
            let made = StreamSpec::standard(standard, 1);
            let stream = Loader::with_times().stream(&made, &Silent).unwrap();
            concurrency(&stream)
        };
        let lasting = open(0.0);
        assert_eq!((lasting.peak_open, lasting.mean_open), (600, 600.0));
        assert!(lasting.peak_on < 200, "{}", lasting.peak_on);
        let ending = open(2.0);
        assert!(ending.peak_open < 600, "{}", ending.peak_open);
    }

    #[test]
    fn index_functions_are_drawn_from_the_seed() {
        let standard = fairlead_workload::Standard {
            sessions: 600,
            seconds: 30.0,
            ..fairlead_workload::Standard::default()
        };
        let made = StreamSpec::standard(standard, 1);
        let stream = Loader::with_times().stream(&made, &Silent).unwrap();
        let spread = |spec: StatSpec| accesses(&stream, &spec).unwrap().spread;
        let (usual, other) = (spread(StatSpec::default()), spread(StatSpec::seeded(2)));
        assert_eq!(usual, spread(StatSpec::seeded(1)));
        for (usual, other) in usual.iter().zip(&other) {
            let is_drawn = usual.scheme.contains("universal");
            assert_eq!(usual.pdf != other.pdf, is_drawn, "{}", usual.scheme);
        }
    }
}
