//! `lab protocol layouts`: one workload in several builds.

use std::path::PathBuf;

use clap::Args;

use crate::cli::arguments::ThreadArgs;
use crate::cli::{Context, output};
use crate::error::LabError;
use crate::protocol::layouts::{LayoutRow, layouts};
use crate::protocol::machine::Machine;
use crate::protocol::stacks::{Stack, StackRun};
use crate::protocol::sweep::{SweepSpec, WARM_UP};
use crate::table::Table;

/// Arguments of `lab protocol layouts`.
#[derive(Clone, Debug, Args)]
#[command(
    allow_negative_numbers = true,
    after_help = "Examples:
  scripts/stacks --layouts 8      (in the repository: links the workloads in shuffled orders)
  lab protocol layouts --stack smoltcp-tcp target/stacks/fairlead-stacks target/stacks/layout-*
The first program is the one to which the others are compared."
)]
pub(super) struct LayoutsArgs {
    /// Builds of the program with the workloads
    #[arg(value_name = "PROGRAM", required = true)]
    programs: Vec<PathBuf>,
    /// The workload
    #[arg(long, value_name = "NAME")]
    stack: String,
    /// Bytes of payload of each packet or message
    #[arg(long, value_name = "BYTES", default_value_t = 1024)]
    size: u32,
    /// Packets or messages of each kind
    #[arg(long, value_name = "NUMBER", default_value_t = 100)]
    packets: u32,
    /// Connections among which packets are drawn
    #[arg(long, value_name = "NUMBER", default_value_t = 100)]
    connections: u32,
    /// Machine, by name or TOML file; may be repeated [default: r4400-100, zen4]
    #[arg(long, value_name = "MACHINE")]
    machine: Vec<String>,
    #[command(flatten)]
    threads: ThreadArgs,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &LayoutsArgs, context: &Context<'_>) -> Result<(), LabError> {
    let names = match &args.machine[..] {
        [] => vec!["r4400-100".to_owned(), "zen4".to_owned()],
        names => names.to_vec(),
    };
    let spec = SweepSpec {
        sizes: Vec::new(),
        lines: Vec::new(),
        machines: names
            .iter()
            .map(|name| Machine::find(name))
            .collect::<Result<_, _>>()?,
        warm_up: WARM_UP,
        ..SweepSpec::default()
    };
    let run = StackRun {
        stack: Stack::named(&args.stack)?,
        size: args.size,
        packets: args.packets,
        connections: args.connections,
    };
    let threads = args.threads.threads;
    let rows = layouts(&run, &args.programs, &spec, threads, context.control)?;
    if args.json {
        return output::print_json(&rows);
    }
    output::print(&text(&rows, args.programs.len()))
}

fn text(rows: &[LayoutRow], programs: usize) -> String {
    let mut table = Table::new(["kind", "a packet", "machine", "first", "least", "most"]);
    for row in rows {
        let number = |value: f64| format!("{value:.1}");
        table.row([
            row.kind.clone(),
            row.what.clone(),
            row.machine.clone(),
            number(row.first),
            number(row.least),
            number(row.most),
        ]);
    }
    format!("{programs} programs\n{}", table.text(0))
}
