//! The paper's figures and tables (tcb-cache-2010) on the traces at hand: ours beside published.
//!
//! | file | |
//! |---|---|
//! | `published.rs` | every number that the paper prints |
//! | `plans/` | what each figure runs, as plans |
//! | `traces.rs` | which files are which of the paper's traces |
//! | `measure.rs` | runs over one trace |
//! | `variants.rs` | figure 12 under other assumptions |
//! | `figures.rs` | tables out of runs, with the published value and the error |
//! | `claims.rs` | what the paper says of figures that are only drawn, held against ours |

mod claims;
mod figures;
mod measure;
mod printed;
pub mod published;
pub mod traces;
mod variants;

use serde::Serialize;

use crate::control::Control;
use crate::cost::Constants;
use crate::error::LabError;
use crate::load::Loader;
use crate::plan::given_twice;
use crate::table::Table;
use measure::Measured;
pub use traces::Given;

/// What the paper is reproduced with.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PaperSpec {
    /// Traces.
    pub traces: Vec<Given>,
    /// Seeds; ratios are means over them. The concurrency is fitted under the first.
    pub seeds: Vec<u64>,
    /// Open sessions for traces that have no published column to be fitted to.
    pub concurrency: u32,
    /// Universal functions drawn for section 4.1.
    pub hash_draws: u32,
    /// Whether figure 12 is also predicted under other assumptions.
    pub variants: bool,
    /// Constants of the cost models.
    pub constants: Constants,
}

/// The paper's "thousands of concurrent sessions" (section 1), and its figure 2b.
pub const CONCURRENCY: u32 = 4_096;

/// One bar or point.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// The trace.
    pub trace: String,
    /// True for synthetic workloads.
    pub synthetic: bool,
    /// Which line or group of bars.
    pub series: String,
    /// Where on the axis.
    pub x: String,
    /// Our value.
    pub ours: f64,
    /// Half the distance between the largest and the smallest over the seeds, where there are
    /// several.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub spread: Option<f64>,
    /// The published value, where the paper prints one for this trace.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub published: Option<f64>,
    /// Ours less published.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<f64>,
    /// True for the value to which the concurrency was fitted: no prediction.
    pub fitted: bool,
}

/// One claim of the paper's text, held against ours.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Claim {
    /// What the paper says, in our words.
    pub says: String,
    /// The trace it was held against.
    pub trace: String,
    /// Whether our results agree; `None` if undecidable.
    pub holds: Option<bool>,
    /// Ours, in words.
    pub ours: String,
}

impl Claim {
    /// The verdict in words.
    pub fn verdict(&self) -> &'static str {
        match self.holds {
            Some(true) => "holds",
            Some(false) => "does not hold",
            None => "cannot be said",
        }
    }
}

/// One figure or table of the paper.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Figure {
    /// `figure-12`.
    pub id: String,
    /// What it shows.
    pub title: String,
    /// What `ours` is: `miss ratio`, `miss ratio / Mod`, `share`, `ns`.
    pub unit: String,
    /// What `x` is.
    pub x: String,
    /// The plan that was run, as TOML; empty where nothing is simulated.
    pub plan: String,
    /// Its values.
    pub rows: Vec<Row>,
    /// The paper's claim.
    pub claims: Vec<Claim>,
    /// What to know before comparing.
    pub notes: Vec<String>,
}

impl Figure {
    /// As a table.
    pub fn table(&self) -> Table {
        let mut table = Table::new([
            "trace",
            "synthetic",
            "series",
            "x",
            "ours",
            "spread",
            "published",
            "error",
            "fitted",
        ]);
        let cell = |value: Option<f64>| value.map(|value| value.to_string()).unwrap_or_default();
        for row in &self.rows {
            table.row([
                row.trace.clone(),
                row.synthetic.to_string(),
                row.series.clone(),
                row.x.clone(),
                row.ours.to_string(),
                cell(row.spread),
                cell(row.published),
                cell(row.error),
                row.fitted.to_string(),
            ]);
        }
        table
    }
}

/// What a trace was run at.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TraceNote {
    /// The trace.
    pub given: Given,
    /// Open sessions: fitted or given.
    pub sessions: u32,
    /// What TCB(Mod) missed there under the first seed.
    pub mod_miss_ratio: f64,
    /// How the stream was made, under the first seed.
    pub stream: crate::load::Provenance,
}

/// A trace that could not be run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Failure {
    /// The trace.
    pub trace: String,
    /// The problem, and what to do.
    pub problem: String,
}

/// Everything.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// Of the program.
    pub version: &'static str,
    /// What it was made with.
    pub asked: PaperSpec,
    /// The traces, as they were run.
    pub traces: Vec<TraceNote>,
    /// Traces that could not be run: nothing of them is in the figures.
    pub failed: Vec<Failure>,
    /// The paper's traces that are not at hand.
    pub absent: Vec<String>,
    /// Figures and tables, in the paper's order.
    pub figures: Vec<Figure>,
    /// True when it was stopped: traces after the last are missing.
    pub stopped: bool,
}

/// Runs everything.
///
/// # Errors
/// What cannot be run as it was asked for; what is wrong with the first trace, if none could be
/// run. Where some could, the others are [`Report::failed`]. A stop keeps what is finished.
pub fn paper(
    mut asked: PaperSpec,
    threads: usize,
    control: &dyn Control,
) -> Result<Report, LabError> {
    asked.traces = traces::told_apart(asked.traces);
    if asked.traces.is_empty() || asked.seeds.is_empty() {
        return Err(LabError::option(
            "paper",
            "",
            "needs at least one trace and one seed",
        ));
    }
    if let Some(seed) = given_twice(&asked.seeds) {
        return Err(LabError::option("seed", seed.to_string(), "is given twice"));
    }
    let mut measured: Vec<Measured> = Vec::new();
    let mut failures: Vec<(String, LabError)> = Vec::new();
    let mut stopped = false;
    for given in &asked.traces {
        let mut loader = Loader::with_times();
        match measure::measure(given, &asked, &mut loader, threads, control) {
            Ok(one) => measured.push(one),
            Err(LabError::Stopped) => {
                stopped = true;
                break;
            }
            // Hours may have gone into the others.
            Err(error) => failures.push((given.name.clone(), error)),
        }
    }
    if measured.is_empty() && !stopped && !failures.is_empty() {
        return Err(failures.swap_remove(0).1);
    }
    let failure = |(trace, error): (String, LabError)| Failure {
        trace,
        problem: error.to_string(),
    };
    let figures = figures::figures(&measured, &asked);
    Ok(Report {
        version: crate::sweep::VERSION,
        absent: traces::absent(&asked.traces),
        traces: measured.into_iter().map(|one| one.note).collect(),
        failed: failures.into_iter().map(failure).collect(),
        figures,
        stopped,
        asked,
    })
}
