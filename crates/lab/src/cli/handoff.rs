//! `lab handoff`: connection handoff to a card, measured on this machine.

use std::fs::File;
use std::io::Read;
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use clap::{Args, Subcommand};

use super::{Context, output};
use crate::error::LabError;
use crate::handoff::report::Report;
use crate::handoff::{HandoffSpec, load, page, paper};

/// Arguments of `lab handoff`.
#[derive(Clone, Debug, Args)]
pub struct HandoffArgs {
    #[command(subcommand)]
    command: HandoffCommand,
}

#[derive(Clone, Debug, Subcommand)]
enum HandoffCommand {
    /// Figures 7 and 8 and table 2 of the paper, in namespaces of this machine
    Paper(PaperArgs),
    /// One end of the load
    #[command(hide = true)]
    Load(LoadArgs),
}

/// Arguments of `lab handoff paper`.
#[derive(Clone, Debug, Args)]
#[command(
    allow_negative_numbers = true,
    after_help = "Examples:
  lab handoff paper --out handoff-results
  lab handoff paper --seconds 1 --rounds 1
Root, two processors, perf (linux-perf), ip, ethtool, nsenter and taskset are needed. Processor 0 is
the host's, processor 1 is the client's and the cards': other work on them is counted, so the
machine should be quiet. With fairlead-sender (make stacks) and QEMU, instructions are counted, too:
of the program and the bypass library, and of a kernel that scripts/vm has got. The command makes
network namespaces and takes them away at its end."
)]
struct PaperArgs {
    /// Seconds of each measurement
    #[arg(long, value_name = "NUMBER", default_value_t = 2, value_parser = at_least_one(600))]
    seconds: u32,
    /// Measurements of each kind, host and cards by turns; medians are shown
    #[arg(long, value_name = "NUMBER", default_value_t = 3, value_parser = at_least_one(100))]
    rounds: u32,
    /// A Linux kernel (vmlinuz) whose `send` is traced [default: one that scripts/vm has got]
    #[arg(long, value_name = "FILE", allow_hyphen_values = true)]
    kernel: Option<PathBuf>,
    /// Output directory for `handoff.json`, a CSV file for each table, and `index.html`
    #[arg(long, short, value_name = "FOLDER")]
    out: Option<PathBuf>,
    /// Print everything as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Debug, Args)]
#[command(allow_negative_numbers = true)]
struct LoadArgs {
    /// Send, and accept connections here
    #[arg(long, value_name = "ADDRESS", conflicts_with = "connect")]
    listen: Option<SocketAddr>,
    /// Send the beginning of this file
    #[arg(
        long,
        value_name = "FILE",
        requires = "listen",
        allow_hyphen_values = true
    )]
    file: Option<PathBuf>,
    /// Read, and connect there; several in turn
    #[arg(long, value_name = "ADDRESS", required_unless_present = "listen")]
    connect: Vec<SocketAddr>,
    /// Connections
    #[arg(long, value_name = "NUMBER", value_parser = at_least_one(20_000))]
    connections: u32,
}

fn at_least_one(most: i64) -> clap::builder::RangedI64ValueParser<u32> {
    clap::value_parser!(u32).range(1..=most)
}

pub(super) fn run(args: &HandoffArgs, context: &Context<'_>) -> Result<(), LabError> {
    match &args.command {
        HandoffCommand::Paper(args) => run_paper(args, context),
        HandoffCommand::Load(args) => run_load(args),
    }
}

fn run_paper(args: &PaperArgs, context: &Context<'_>) -> Result<(), LabError> {
    let spec = HandoffSpec {
        seconds: args.seconds.into(),
        rounds: args.rounds,
    };
    let report = paper(spec, args.kernel.as_deref(), context.control)?;
    report
        .notes
        .iter()
        .for_each(|note| context.note(&format!("note: {note}")));
    if let Some(folder) = &args.out {
        write(&report, folder)?;
    }
    if args.json {
        return output::print_json(&report);
    }
    let tables = report.tables();
    let tables = tables
        .iter()
        .map(|(_, title, table)| format!("{title}\n{}\n", table.text(0)));
    output::print(&tables.collect::<String>())?;
    match &args.out {
        Some(folder) => output::print(&format!("All tables: {}\n", folder.display())),
        None => Ok(()),
    }
}

fn write(report: &Report, folder: &Path) -> Result<(), LabError> {
    std::fs::create_dir_all(folder).map_err(|error| LabError::file(folder, error))?;
    output::write_file(&folder.join("handoff.json"), &output::json(report)?)?;
    for (name, _, table) in report.tables() {
        output::write_file(&folder.join(format!("{name}.csv")), &table.csv())?;
    }
    output::write_file(&folder.join("index.html"), &page::page(report))
}

/// The reader runs until its input ends.
fn run_load(args: &LoadArgs) -> Result<(), LabError> {
    let failed = |error: std::io::Error| LabError::Machine(format!("the load: {error}"));
    let ready = || drop(output::print("ready\n"));
    let connections = args.connections as usize;
    if let Some(address) = args.listen {
        let listener = TcpListener::bind(address).map_err(failed)?;
        let open = |path: &PathBuf| File::open(path).map_err(|error| LabError::file(path, error));
        let file = args.file.as_ref().map(open).transpose()?;
        ready();
        return load::send(&listener, connections, file.as_ref()).map_err(failed);
    }
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let _ = std::io::stdin().read(&mut [0]);
            stop.store(true, Ordering::Release);
        });
        let read = load::receive(&args.connect, connections, ready, &stop);
        // Nobody waits for the end of the input, if that did not end this.
        match read {
            Ok(bytes) => output::print(&format!("{bytes}\n")),
            Err(error) => {
                output::note(&format!("the load: {error}"));
                std::process::exit(1);
            }
        }
    })
}
