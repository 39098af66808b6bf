//! What reading a trace came to, as results have it.

use fairlead_trace::Report;
use serde::Serialize;

/// What reading a file came to.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ReadNote {
    /// The format it was read as.
    pub format: String,
    /// Rows that could be read.
    pub rows: u64,
    /// Rows that could not.
    pub bad: u64,
    /// Why not, and how often.
    pub bad_by_reason: Vec<(String, u64)>,
    /// Rows skipped intentionally, by kind: packets from servers, comments.
    pub passed: Vec<(String, u64)>,
    /// The line (or record) of the first of them.
    pub first_bad: Option<u64>,
    /// How often time stepped back; rows are then sorted by time.
    pub stepped_back: u64,
}

impl ReadNote {
    /// From the reader's report.
    pub fn new(report: &Report) -> Self {
        let bad_by_reason = report
            .bad
            .iter()
            .map(|(reason, count)| (reason.to_string(), *count))
            .collect();
        let passed = report
            .passed
            .iter()
            .map(|(what, count)| (what.to_string(), *count))
            .collect();
        Self {
            format: report.format.to_string(),
            rows: report.rows,
            bad: report.bad_rows(),
            bad_by_reason,
            passed,
            first_bad: report.first_bad.map(|(line, _)| line),
            stepped_back: report.stepped_back,
        }
    }
}
