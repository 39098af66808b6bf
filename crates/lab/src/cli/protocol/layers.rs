//! `lab protocol layers`: which part of a stack instructions belong to.

use std::path::PathBuf;

use clap::Args;

use super::open;
use crate::cli::{Context, output};
use crate::error::LabError;
use crate::protocol::layers::{LayerReport, Patterns, layers};
use crate::table::{Table, percent};

/// Arguments of `lab protocol layers`.
#[derive(Clone, Debug, Args)]
#[command(
    allow_negative_numbers = true,
    after_help = "Examples:
  lab protocol layers T.refs
  lab protocol layers T.refs --patterns own.toml --json
An instruction belongs to the innermost inlined function that is not of the standard library. Its
source file, or its function's name, decides on the layer. The traced program must still be where
it was, with line tables. `--show-patterns` prints the built-in patterns, to be changed."
)]
pub(super) struct LayersArgs {
    /// A trace of `lab protocol run`
    #[arg(value_name = "TRACE", required_unless_present = "show_patterns")]
    trace: Option<PathBuf>,
    /// Patterns of layers, as TOML
    #[arg(long, value_name = "FILE")]
    patterns: Option<PathBuf>,
    /// Print the built-in patterns
    #[arg(long)]
    show_patterns: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &LayersArgs, context: &Context<'_>) -> Result<(), LabError> {
    let Some(trace) = args.trace.as_ref().filter(|_| !args.show_patterns) else {
        return output::print(crate::protocol::layers::KNOWN);
    };
    let patterns = match &args.patterns {
        Some(path) => Patterns::read(path)?,
        None => Patterns::known()?,
    };
    let mut reader = open(trace)?;
    let report = layers(&mut reader, &patterns, context.control)?;
    for note in &report.notes {
        context.note(&format!("note: {note}"));
    }
    if args.json {
        return output::print_json(&report);
    }
    output::print(&text(&report))
}

fn text(report: &LayerReport) -> String {
    let mut table = Table::new([
        "kind",
        "layer",
        "instructions",
        "share",
        "accesses",
        "I lines",
        "D lines",
    ]);
    for row in &report.rows {
        table.row([
            row.kind.clone(),
            row.layer.clone(),
            format!("{:.0}", row.instructions),
            percent(row.share),
            format!("{:.0}", row.accesses),
            format!("{:.1}", row.instruction_lines),
            format!("{:.1}", row.data_lines),
        ]);
    }
    table.text(0)
}
