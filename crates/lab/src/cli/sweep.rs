//! `lab sweep`: runs a plan, resumable.

use std::path::PathBuf;

use clap::Args;

use super::arguments::ThreadArgs;
use super::{Context, output};
use crate::error::LabError;
use crate::plan::Plan;
use crate::sweep::{Results, sweep};

/// Arguments of `lab sweep`.
#[derive(Clone, Debug, Args)]
#[command(
    allow_negative_numbers = true,
    after_help = "A plan:
  seeds = [1, 2, 3]
  bounds = true
  [[trace]]
  path = \"nasa.log.zst\"
  expansion = { concurrent_sessions = [2000, 4000] }
  [[trace]]
  standard = { sessions = { from = 1000, to = 8000, times = 2 } }
  [[run]]
  scheme = [\"mod\", \"2-universal\", \"spec\"]
  capacity = [\"16K\", \"32K\", \"64K\"]
  ways = [4, 8]

Lists stand for one run with each of their values. Results are appended as they finish; what is
there already is not run again, so a sweep that was stopped or killed goes on where it was."
)]
pub struct SweepArgs {
    /// Plan file (TOML)
    #[arg(value_name = "PLAN.toml")]
    plan: PathBuf,
    /// Results file: `.jsonl` (one object per line) or `.csv` [default: the plan's name with
    /// `.jsonl`]
    #[arg(long, short, value_name = "FILE")]
    out: Option<PathBuf>,
    #[command(flatten)]
    threads: ThreadArgs,
    /// Only print the number of runs
    #[arg(long)]
    dry_run: bool,
}

pub(super) fn run(args: &SweepArgs, context: &Context<'_>) -> Result<(), LabError> {
    let plan = Plan::read(&args.plan)?;
    if args.dry_run {
        output::print(&format!(
            "{}: {} streams, {} configurations: {} runs\n",
            plan.name,
            plan.streams.len(),
            plan.runs.len(),
            plan.tasks()
        ))?;
        return Ok(());
    }
    let path = args
        .out
        .clone()
        .unwrap_or_else(|| args.plan.with_extension("jsonl"));
    let mut results = Results::open(&path)?;
    let outcome = sweep(&plan, &mut results, args.threads.threads, context.control)?;
    for note in &outcome.notes {
        context.note(&format!("note: {note}"));
    }
    let left = outcome.tasks - outcome.there - outcome.finished;
    let mut text = format!(
        "{}: {} of {} runs finished now, {} already done",
        path.display(),
        outcome.finished,
        outcome.tasks,
        outcome.there,
    );
    if outcome.stopped {
        text += &format!(", {left} left; run the same command to continue");
    }
    output::print(&(text + "\n"))?;
    if outcome.stopped {
        return Err(LabError::Stopped);
    }
    Ok(())
}
