//! The paper's figures and tables on the logs at hand, published values beside ours.
//!
//! | file | contents |
//! |---|---|
//! | `published.rs` | what the paper prints |
//! | `logs.rs` | which files are read, and which of the paper's logs they are |
//! | `measure.rs` | simulations of one log |
//! | `caches.rs` | table 1, figure 3, policies and bounds |
//! | `buses.rs` | figures 4 and 7 to 11, by the model |
//! | `popularity.rs` | figure 12 |
//! | `page.rs` | one page of HTML |

mod buses;
mod caches;
pub mod logs;
mod measure;
pub mod page;
mod popularity;
pub mod published;

use serde::Serialize;

use super::traffic::{Assumed, fitted_stall};
use crate::control::Control;
use crate::error::LabError;
use crate::paper::{Claim, Failure, Figure, Row};
use logs::Log;
use measure::Measured;

/// A log and where it is from.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LogNote {
    /// Its file's name.
    pub log: String,
    /// The paper's log of which it is all or a part.
    pub paper_log: Option<&'static str>,
    /// Responses with a body.
    pub requests: u64,
    /// What was left out, and why.
    pub notes: Vec<String>,
}

/// Everything.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// Of the program.
    pub version: &'static str,
    /// Logs.
    pub logs: Vec<LogNote>,
    /// Files without response sizes, and files that cannot be read, with the reason.
    pub left_out: Vec<Failure>,
    /// The paper's logs of which no part is at hand.
    pub absent: Vec<&'static str>,
    /// What the bus model assumes.
    pub assumed: Assumed,
    /// The fitted stall of a transfer, s.
    pub stall_s: f64,
    /// The log to which it was fitted; none: the value for a day of the NASA log.
    pub fitted_to: Option<String>,
    /// Figures and tables, in the paper's order.
    pub figures: Vec<Figure>,
}

/// The stall that a day of the NASA log gives, for reports without such a log.
pub const STALL_S: f64 = 0.644e-6;

/// Runs everything.
///
/// # Errors
/// When no log can be read; a stop.
pub fn paper(
    logs: Vec<Log>,
    left_out: Vec<Failure>,
    threads: usize,
    control: &dyn Control,
) -> Result<Report, LabError> {
    let mut measured = Vec::new();
    for log in logs {
        measured.push(Measured::new(log, threads, control)?);
    }
    let assumed = Assumed::default();
    let nasa = measured
        .iter()
        .filter(|one| one.log.paper_log() == Some("NASA"))
        .max_by_key(|one| one.log.responses.len());
    let fitted = nasa.and_then(|one| {
        let stall = fitted_stall(&one.log.responses, &assumed)?;
        Some((stall, one.log.name.clone()))
    });
    let (stall_s, fitted_to) = match fitted {
        Some((stall, name)) => (stall, Some(name)),
        None => (STALL_S, None),
    };
    let mut figures = caches::figures(&measured);
    figures.extend(buses::figures(
        &measured,
        &assumed,
        stall_s,
        fitted_to.as_deref(),
    ));
    figures.extend(popularity::figures(&measured));
    let has = |name: &str| measured.iter().any(|one| one.log.paper_log() == Some(name));
    let absent = published::LOGS.iter().map(|log| log.name);
    Ok(Report {
        version: crate::sweep::VERSION,
        absent: absent.filter(|name| !has(name)).collect(),
        logs: measured.iter().map(Measured::note).collect(),
        left_out,
        assumed,
        stall_s,
        fitted_to,
        figures,
    })
}

/// A value without a published one.
fn row(log: &str, series: &str, x: impl Into<String>, ours: f64) -> Row {
    Row {
        trace: log.to_owned(),
        synthetic: false,
        series: series.to_owned(),
        x: x.into(),
        ours,
        spread: None,
        published: None,
        error: None,
        fitted: false,
    }
}

/// A value beside a published one. `same` says that both are of the same input, so that their
/// difference is an error.
fn against(row: Row, published: Option<f64>, same: bool) -> Row {
    Row {
        published,
        error: published.filter(|_| same).map(|value| row.ours - value),
        ..row
    }
}

fn figure(id: &str, title: &str, unit: &str, x: &str, rows: Vec<Row>) -> Figure {
    Figure {
        id: id.to_owned(),
        title: title.to_owned(),
        unit: unit.to_owned(),
        x: x.to_owned(),
        plan: String::new(),
        rows,
        claims: Vec::new(),
        notes: Vec::new(),
    }
}

fn claim(log: &str, says: &str, holds: impl Into<Option<bool>>, ours: String) -> Claim {
    Claim {
        says: says.to_owned(),
        trace: log.to_owned(),
        holds: holds.into(),
        ours,
    }
}
