//! `lab calibrate`: fits the concurrency to one published column and predicts the others.

use clap::Args;
use fairlead_workload::count::sessions;

use super::arguments::{GeometryArgs, StreamArgs, ThreadArgs, check_some};
use super::{Context, output, tcb};
use crate::calibrate::{CalibrateSpec, Calibration, calibrate};
use crate::error::LabError;
use crate::load::Loader;
use crate::paper::published;
use crate::table::{Table, percent};

/// Arguments of `lab calibrate`.
#[derive(Clone, Debug, Args)]
#[command(
    allow_negative_numbers = true,
    after_help = "Example:
  lab calibrate nasa-1995-07-09.log.zst --target 0.50
finds the number of open sessions at which TCB(Mod) misses 50 % and predicts the paper's other
columns from it. Nothing else is fitted."
)]
pub struct CalibrateArgs {
    #[command(flatten)]
    stream: StreamArgs,
    /// Target miss ratio
    #[arg(long, value_name = "SHARE")]
    target: f64,
    /// Scheme to fit
    #[arg(long, value_name = "SCHEME", default_value = "mod")]
    fit: String,
    /// Schemes to predict
    #[arg(
        long,
        value_name = "SCHEMES",
        default_value = "2-universal,no-migrate,spec"
    )]
    predict: Vec<String>,
    #[command(flatten)]
    geometry: GeometryArgs,
    /// Maximum number of open sessions to try
    #[arg(long, value_name = "NUMBER", value_parser = sessions, default_value_t = SESSIONS_MAX)]
    sessions_max: u32,
    #[command(flatten)]
    threads: ThreadArgs,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Two orders of magnitude more than any web server of the paper's time had.
pub(super) const SESSIONS_MAX: u32 = 1 << 17;

pub(super) fn run(args: &CalibrateArgs, context: &Context<'_>) -> Result<(), LabError> {
    if !(args.target > 0.0 && args.target < 1.0) {
        let problem = "write a share between 0 and 1";
        return Err(LabError::option(
            "--target",
            args.target.to_string(),
            problem,
        ));
    }
    check_some("--sessions-max", args.sessions_max)?;
    let made = args.stream.spec_of_any_load()?;
    let seed = made.seed;
    let asked = CalibrateSpec {
        made,
        fitted: args.geometry.run(&args.fit, seed),
        target: args.target,
        predicted: tcb::schemes(&args.predict)
            .iter()
            .map(|scheme| args.geometry.run(scheme, seed))
            .collect(),
        sessions_max: args.sessions_max,
    };
    for run in std::iter::once(&asked.fitted).chain(&asked.predicted) {
        crate::run::check(run)?;
    }
    let mut loader = Loader::default();
    let found = calibrate(&asked, &mut loader, args.threads.threads, context.control)?;
    for text in &found.stream.notes {
        context.note(&format!("note: {}: {text}", found.stream.trace));
    }
    if args.json {
        return output::print_json(&found);
    }
    output::print(&text(&found))?;
    Ok(())
}

fn text(found: &Calibration) -> String {
    let mut out = tcb::heading(&found.stream);
    out += &format!(
        "{} open sessions: {} misses {}, target {}\n\n",
        found.sessions,
        found.runs[0].scheme,
        percent(found.reached),
        percent(found.target)
    );
    let published = published::FIGURE_12
        .iter()
        .find(|row| (row.miss_ratios[0] - found.target).abs() < 1e-9);
    let mut table = Table::new(["scheme", "miss ratio", "published", ""]);
    for (at, (run, ratio)) in found.runs.iter().zip(&found.miss_ratios).enumerate() {
        let column = published::FIGURE_12_SCHEMES
            .iter()
            .position(|scheme| *scheme == run.scheme);
        let theirs = published
            .zip(column)
            .map(|(row, column)| row.miss_ratios[column]);
        table.row([
            run.scheme.clone(),
            percent(*ratio),
            theirs.map(percent).unwrap_or_default(),
            if at == 0 { "fitted" } else { "predicted" }.to_owned(),
        ]);
    }
    table.row([
        "LRU, fully associative",
        &percent(found.lru_miss_ratio),
        "",
        "bound",
    ]);
    table.row([
        "MIN, fully associative",
        &percent(found.min_miss_ratio),
        "",
        "bound",
    ]);
    out += &table.text(2);
    if let Some(row) = published {
        out += &format!(
            "Published: the row of figure 12 with TCB(Mod) {} ({}). Check that this is the same \
             trace.\n",
            percent(found.target),
            row.trace
        );
    }
    out
}
