//! `lab protocol stat`: what each kind of packet costs.

use std::path::PathBuf;

use clap::Args;
use fairlead_trace::references::Header;
use serde::Serialize;

use super::open;
use crate::cli::{Context, output};
use crate::error::LabError;
use crate::protocol::packets::{Counter, KindCounts};
use crate::protocol::spread::Spread;
use crate::table::{Table, grouped};

/// Arguments of `lab protocol stat`.
#[derive(Clone, Debug, Args)]
#[command(
    allow_negative_numbers = true,
    after_help = "Examples:
  lab protocol stat T.refs
  lab protocol stat T.refs --json
Numbers are medians over packets, with least and most where they differ. A line is counted once
a packet, however often it is touched."
)]
pub(super) struct StatArgs {
    /// The trace
    #[arg(value_name = "TRACE")]
    path: PathBuf,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Document {
    trace: Header,
    kinds: Vec<KindCounts>,
}

pub(super) fn run(args: &StatArgs, context: &Context<'_>) -> Result<(), LabError> {
    let mut reader = open(&args.path)?;
    let header = reader.header().clone();
    let mut counter = Counter::of(&header);
    let mut events = Vec::new();
    let (_, bytes) = reader.progress_bytes();
    context.control.begin("counting", bytes);
    while reader
        .next_chunk(&mut events)
        .map_err(|error| LabError::Protocol(error.to_string()))?
    {
        if context.control.stopped() {
            return Err(LabError::Stopped);
        }
        counter.add(&events)?;
        context.control.reached(reader.progress_bytes().0);
    }
    context.control.end();
    let kinds = counter.finish(&header);
    let document = Document {
        trace: header,
        kinds,
    };
    if args.json {
        return output::print_json(&document);
    }
    output::print(&text(&document))
}

/// The median, and the range where there is one.
fn shown(spread: Spread) -> String {
    let Spread {
        median,
        least,
        most,
        ..
    } = spread;
    if least == most {
        return grouped(median);
    }
    format!("{} ({}–{})", grouped(median), grouped(least), grouped(most))
}

/// A table of what each kind costs.
pub(super) fn table(kinds: &[KindCounts]) -> Table {
    let mut table = Table::new([
        "packet",
        "number",
        "instructions",
        "branches",
        "reads",
        "writes",
        "I lines 32 B",
        "64 B",
        "D lines 32 B",
        "64 B",
    ]);
    for kind in kinds {
        table.row([
            kind.name.clone(),
            grouped(kind.packets),
            shown(kind.instructions),
            kind.branches.map_or_else(|| "unknown".to_owned(), shown),
            shown(kind.reads),
            shown(kind.writes),
            shown(kind.instruction_lines_32),
            shown(kind.instruction_lines_64),
            shown(kind.data_lines_32),
            shown(kind.data_lines_64),
        ]);
    }
    table
}

/// A sentence on packets in which a kernel took an interrupt.
fn interrupted(kinds: &[KindCounts]) -> String {
    let packets: u64 = kinds.iter().map(|kind| kind.interrupted).sum();
    match packets {
        0 => String::new(),
        1 => "1 packet has an interrupt in it\n".to_owned(),
        _ => format!("{} packets have an interrupt in them\n", grouped(packets)),
    }
}

fn text(document: &Document) -> String {
    let Document { trace, kinds } = document;
    format!(
        "{} on {} ({}, {})\n{} instructions and {} accesses in {} packets\n\n{}",
        trace.command.join(" "),
        trace.isa,
        trace.emulator,
        trace.cpu,
        grouped(trace.totals.instructions),
        grouped(trace.totals.accesses),
        grouped(trace.totals.packets),
        table(kinds).text(1),
    ) + &interrupted(kinds)
}
