//! `lab handoff`: connection handoff to a card, measured on this machine.

use std::fs::File;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

use clap::{Args, Subcommand};

use super::{Context, output};
use crate::error::LabError;
use crate::handoff::report::Report;
use crate::handoff::totals::Totals;
use crate::handoff::web::{backend, client, mix::Mix};
use crate::handoff::{HandoffSpec, Part, load, page, paper};

/// Arguments of `lab handoff`.
#[derive(Clone, Debug, Args)]
pub struct HandoffArgs {
    #[command(subcommand)]
    command: HandoffCommand,
}

#[derive(Clone, Debug, Subcommand)]
enum HandoffCommand {
    /// Figures 7 to 9 and table 2 of the paper, in namespaces of this machine
    Paper(PaperArgs),
    /// One end of the load
    #[command(hide = true)]
    Load(LoadArgs),
    /// Web clients, or what answers dynamic requests
    #[command(hide = true)]
    Web(WebArgs),
}

/// Arguments of `lab handoff paper`.
#[derive(Clone, Debug, Args)]
#[command(
    allow_negative_numbers = true,
    after_help = "Examples:
  lab handoff paper --out handoff-results
  lab handoff paper --seconds 1 --rounds 1
  lab handoff paper --only web
Root, two processors, perf (linux-perf), ip, ethtool, nsenter and taskset are needed, and nginx for
the web server's rows; without it they are left out, with a note. Processor 0 is
the host's, processor 1 is the client's and the cards': other work on them is counted, so the
machine should be quiet. With fairlead-sender (make stacks) and QEMU, instructions are counted, too:
of the program and the bypass library, and of a kernel that scripts/vm has got. The command makes
network namespaces and takes them away at its end.
As it is, it takes about eight minutes, of which the web server's rows take two and a half."
)]
struct PaperArgs {
    /// Seconds of each measurement
    #[arg(long, value_name = "NUMBER", default_value_t = 2, value_parser = at_least_one(600))]
    seconds: u32,
    /// Measurements of each kind, host and cards by turns; medians are shown
    #[arg(long, value_name = "NUMBER", default_value_t = 3, value_parser = at_least_one(100))]
    rounds: u32,
    /// Measure this part only
    #[arg(long, value_name = "PART")]
    only: Option<Part>,
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

#[derive(Clone, Debug, Args)]
#[command(allow_negative_numbers = true)]
struct WebArgs {
    /// Answer dynamic requests here
    #[arg(long, value_name = "PATH", conflicts_with = "connect")]
    serve: Option<PathBuf>,
    /// Ask a web server there
    #[arg(long, value_name = "ADDRESS", required_unless_present = "serve")]
    connect: Option<SocketAddr>,
    /// Connections
    #[arg(long, value_name = "NUMBER", default_value_t = 1, value_parser = at_least_one(20_000))]
    connections: u32,
    /// Static requests only
    #[arg(long = "static")]
    is_static: bool,
}

/// Of the web clients' requests.
const SEED: u64 = 1;

fn at_least_one(most: i64) -> clap::builder::RangedI64ValueParser<u32> {
    clap::value_parser!(u32).range(1..=most)
}

pub(super) fn run(args: &HandoffArgs, context: &Context<'_>) -> Result<(), LabError> {
    match &args.command {
        HandoffCommand::Paper(args) => run_paper(args, context),
        HandoffCommand::Load(args) => run_load(args).map_err(failed),
        HandoffCommand::Web(args) => run_web(args).map_err(failed),
    }
}

fn run_paper(args: &PaperArgs, context: &Context<'_>) -> Result<(), LabError> {
    let spec = HandoffSpec {
        seconds: args.seconds.into(),
        rounds: args.rounds,
        only: args.only,
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

fn failed(error: io::Error) -> LabError {
    LabError::Machine(format!("the load: {error}"))
}

fn ready() {
    let _ = output::print("ready\n");
}

fn run_load(args: &LoadArgs) -> io::Result<()> {
    let connections = args.connections as usize;
    if let Some(address) = args.listen {
        let listener = TcpListener::bind(address)?;
        let file = args.file.as_ref().map(File::open).transpose()?;
        ready();
        return load::send(&listener, connections, file.as_ref());
    }
    while_asked(|totals, stop| load::receive(&args.connect, connections, ready, totals, stop))
}

fn run_web(args: &WebArgs) -> io::Result<()> {
    if let Some(path) = &args.serve {
        let listener = UnixListener::bind(path)?;
        ready();
        return backend::serve(&listener);
    }
    let connections = args.connections as usize;
    let mix = Mix::new(SEED, args.is_static);
    let address = args.connect.ok_or(io::ErrorKind::InvalidInput)?;
    while_asked(|totals, stop| client::run(address, connections, mix, ready, totals, stop))
}

/// A client runs until its input ends, and says how far it is for each byte of that.
fn while_asked(run: impl FnOnce(&Totals, &AtomicBool) -> io::Result<()>) -> io::Result<()> {
    let (totals, stop) = (Totals::default(), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| totals.report(io::stdin(), io::stdout(), &stop));
        run(&totals, &stop).inspect_err(|error| {
            // Nobody waits for the end of the input, if that did not end this.
            output::note(&format!("the load: {error}"));
            std::process::exit(1);
        })
    })
}
