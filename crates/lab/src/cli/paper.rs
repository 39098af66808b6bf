//! `lab paper`: reproduces the paper's figures and tables, as JSON and CSV.

use std::path::PathBuf;

use clap::Args;
use fairlead_workload::count::sessions;

use super::arguments::{CostArgs, ThreadArgs, check_max_bad, check_some};
use super::{Context, claims, output};
use crate::error::LabError;
use crate::paper::{self, CONCURRENCY, Figure, Given, PaperSpec, Report, published, traces};
use crate::table::{Table, grouped, percent};

/// Arguments of `lab paper`.
#[derive(Clone, Debug, Args)]
#[command(
    allow_negative_numbers = true,
    after_help = "Examples:
  lab paper --traces ~/traces --out paper-results
  lab paper --trace nasa-1995-07-09.log.zst --quick --out paper-results
The number of open sessions is fitted to TCB(Mod) alone; the other columns of figure 12 are
predictions. The paper's traces that are not at hand are named; the synthetic workload that is
fitted in their stead is called synthetic everywhere. `fairlead-lab paper` (Python) makes one page
with plots of the same."
)]
pub struct PaperArgs {
    /// Directory of traces, recognized by their archive file names
    #[arg(long, value_name = "FOLDER")]
    traces: Option<PathBuf>,
    /// Trace file; may be repeated
    #[arg(long, value_name = "FILE")]
    trace: Vec<PathBuf>,
    /// Maximum share of unreadable rows per trace
    #[arg(long, value_name = "SHARE", default_value_t = 0.01)]
    max_bad: f64,
    /// Output directory for `paper.json` and one CSV per figure
    #[arg(long, short, value_name = "FOLDER", default_value = "paper-results")]
    out: PathBuf,
    /// Number of seeds to average over
    #[arg(long, value_name = "NUMBERS", value_delimiter = ',')]
    seeds: Vec<u64>,
    /// Open sessions for traces without a published column to fit
    #[arg(long, value_name = "NUMBER", value_parser = sessions, default_value_t = CONCURRENCY)]
    concurrency: u32,
    /// Number of universal hash functions to draw for section 4.1
    #[arg(long, value_name = "NUMBER")]
    hash_draws: Option<u32>,
    /// Faster: fewer seeds and draws, a shorter synthetic workload, only the paper's own traces
    #[arg(long)]
    quick: bool,
    /// Do not replace missing traces by a synthetic workload
    #[arg(long)]
    no_synthetic: bool,
    #[command(flatten)]
    cost: CostArgs,
    #[command(flatten)]
    threads: ThreadArgs,
    /// Print everything as JSON and write no files
    #[arg(long)]
    json: bool,
}

/// Seconds of the synthetic workload, normal and fast.
const SECONDS: f64 = 60.0;
const SECONDS_QUICK: f64 = 10.0;
const DRAWS_QUICK: u32 = 50;

impl PaperArgs {
    fn spec(&self) -> Result<PaperSpec, LabError> {
        check_max_bad(self.max_bad)?;
        check_some("--concurrency", self.concurrency)?;
        let mut seeds = self.seeds.clone();
        if seeds.is_empty() {
            seeds = if self.quick { vec![1] } else { vec![1, 2, 3] };
        }
        let first = seeds[0];
        let mut given: Vec<Given> = Vec::new();
        if let Some(folder) = &self.traces {
            given.extend(traces::in_folder(folder, first)?);
            if self.quick {
                given.retain(|one| one.paper_trace.is_some());
            }
        }
        for path in &self.trace {
            let known = traces::recognise(path, first);
            given.push(known.unwrap_or_else(|| traces::unknown(path, first)));
        }
        for one in &mut given {
            one.made.max_bad = self.max_bad;
        }
        if !self.no_synthetic {
            let seconds = if self.quick { SECONDS_QUICK } else { SECONDS };
            for trace in published::TRACES {
                if given.iter().all(|one| one.paper_trace != Some(trace.name)) {
                    given.push(traces::stand_in(trace.name, seconds, first));
                }
            }
        }
        if given.is_empty() {
            let problem = "nothing to run: give --traces FOLDER or --trace FILE";
            return Err(LabError::option("--traces", "", problem));
        }
        let draws = if self.quick {
            DRAWS_QUICK
        } else {
            published::HASH_DRAWS
        };
        Ok(PaperSpec {
            traces: given,
            seeds,
            concurrency: self.concurrency,
            hash_draws: self.hash_draws.unwrap_or(draws).min(published::HASH_DRAWS),
            variants: !self.quick,
            constants: self.cost.constants()?,
        })
    }
}

pub(super) fn run(args: &PaperArgs, context: &Context<'_>) -> Result<(), LabError> {
    let asked = args.spec()?;
    if !args.json {
        std::fs::create_dir_all(&args.out).map_err(|error| LabError::file(&args.out, error))?;
    }
    let report = paper::paper(asked, args.threads.threads, context.control)?;
    if args.json {
        output::print_json(&report)?;
    } else {
        output::write_file(&args.out.join("paper.json"), &output::json(&report)?)?;
        for figure in &report.figures {
            let name = format!("{}.csv", figure.id);
            output::write_file(&args.out.join(name), &figure.table().csv())?;
        }
        output::write_file(
            &args.out.join("claims.csv"),
            &claims::table(&report.figures).csv(),
        )?;
        output::print(&text(&report))?;
        output::print(&format!("\nAll tables: {}\n", args.out.display()))?;
    }
    if report.stopped {
        return Err(LabError::Stopped);
    }
    if !report.failed.is_empty() {
        return Err(failed(&report));
    }
    Ok(())
}

/// Some traces could not be run; the results of the others are written.
fn failed(report: &Report) -> LabError {
    let mut text = format!(
        "{} of {} traces could not be run; the output has the others",
        report.failed.len(),
        report.asked.traces.len()
    );
    for failure in &report.failed {
        text += &format!("\n  {}: {}", failure.trace, failure.problem);
    }
    LabError::Trace(text)
}

fn text(report: &Report) -> String {
    let mut out = String::from("Traces\n");
    for note in &report.traces {
        let given = &note.given;
        let fit = match given.fitted_to {
            Some(target) => format!("fitted to {} of TCB(Mod)", percent(target)),
            None => "as asked".to_owned(),
        };
        out += &format!(
            "  {}: {}\n    {} accesses, {} open sessions ({fit}, {} there)\n",
            given.name,
            given.what,
            grouped(note.stream.accesses),
            grouped(u64::from(note.sessions)),
            percent(note.mod_miss_ratio),
        );
    }
    for failure in &report.failed {
        out += &format!("  {}: could not be run\n", failure.trace);
    }
    for line in &report.absent {
        out += &format!("  {line}\n");
    }
    for figure in report
        .figures
        .iter()
        .filter(|figure| figure.id.starts_with("figure-12"))
    {
        out += &figure_12(figure);
    }
    out += &claims::text(&report.figures);
    out
}

fn figure_12(figure: &Figure) -> String {
    let mut table = Table::new([
        "trace",
        "model",
        "scheme",
        "ours",
        "±",
        "published",
        "error",
        "",
    ]);
    let cell = |value: Option<f64>| value.map(percent).unwrap_or_default();
    for row in &figure.rows {
        table.row([
            row.trace.clone(),
            row.series.clone(),
            row.x.clone(),
            percent(row.ours),
            cell(row.spread),
            cell(row.published),
            row.error
                .map(|error| format!("{:+.1}", error * 100.0))
                .unwrap_or_default(),
            if row.fitted { "fitted" } else { "" }.to_owned(),
        ]);
    }
    let spread = match figure.rows.iter().any(|row| row.spread.is_some()) {
        true => "; ± is half of maximum minus minimum over the seeds",
        false => "",
    };
    let title = &figure.title;
    format!("\n{title} (errors in points{spread})\n{}", table.text(2))
}
