//! `lab content paper`: the paper's figures on the logs at hand.

use std::path::PathBuf;

use clap::Args;

use crate::cli::arguments::{ThreadArgs, check_max_bad};
use crate::cli::{Context, claims, output};
use crate::content::paper::{Report, logs, page, paper};
use crate::error::LabError;
use crate::table::grouped;

/// Arguments of `lab content paper`.
#[derive(Clone, Debug, Args)]
#[command(
    allow_negative_numbers = true,
    after_help = "Examples:
  lab content paper ~/traces
  lab content paper nasa.log.zst access.log --out results
Writes page.html, claims.csv, content.json and one CSV per figure. Logs are recognized as the
paper's by their names. Files of a folder without response sizes are named and left out."
)]
pub(super) struct PaperArgs {
    /// Logs with response sizes, or folders of them
    #[arg(value_name = "PATH", required = true)]
    paths: Vec<PathBuf>,
    /// Maximum share of unreadable rows per log
    #[arg(long, value_name = "SHARE", default_value_t = 0.01)]
    max_bad: f64,
    /// Output directory
    #[arg(long, short, value_name = "FOLDER", default_value = "content-results")]
    out: PathBuf,
    #[command(flatten)]
    threads: ThreadArgs,
    /// Print everything as JSON and write no files
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &PaperArgs, context: &Context<'_>) -> Result<(), LabError> {
    check_max_bad(args.max_bad)?;
    if !args.json {
        std::fs::create_dir_all(&args.out).map_err(|error| LabError::file(&args.out, error))?;
    }
    let (logs, left_out) = logs::read(&args.paths, args.max_bad, context.control)?;
    let report = paper(logs, left_out, args.threads.threads, context.control)?;
    if args.json {
        output::print_json(&report)?;
    } else {
        output::write_file(&args.out.join("content.json"), &output::json(&report)?)?;
        for figure in &report.figures {
            let name = format!("{}.csv", figure.id);
            output::write_file(&args.out.join(name), &figure.table().csv())?;
        }
        output::write_file(
            &args.out.join("claims.csv"),
            &claims::table(&report.figures).csv(),
        )?;
        output::write_file(&args.out.join("page.html"), &page::page(&report))?;
        output::print(&text(&report))?;
        let page = args.out.join("page.html");
        output::print(&format!("\nThe page: {}\n", page.display()))?;
    }
    // A log that was named must not be missing in silence.
    let is_named = |failure: &&crate::paper::Failure| {
        let named = args.paths.iter().filter(|path| path.is_file());
        named.into_iter().any(|path| {
            path.file_name()
                .is_some_and(|name| name.to_string_lossy() == failure.trace)
        })
    };
    match report.left_out.iter().find(is_named) {
        Some(failure) => Err(LabError::Trace(format!(
            "{}: {}",
            failure.trace, failure.problem
        ))),
        None => Ok(()),
    }
}

fn text(report: &Report) -> String {
    let mut out = String::from("Logs\n");
    for log in &report.logs {
        let part = log.paper_log.map_or_else(String::new, |name| {
            format!(", all or a part of the paper's {name} log")
        });
        out += &format!("  {}: {} responses{part}\n", log.log, grouped(log.requests));
    }
    for failure in &report.left_out {
        out += &format!("  left out: {}: {}\n", failure.trace, failure.problem);
    }
    if !report.absent.is_empty() {
        out += &format!("  not at hand: {}\n", report.absent.join(", "));
    }
    out += &claims::text(&report.figures);
    out
}
