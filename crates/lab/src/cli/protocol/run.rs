//! `lab protocol run`: traces a program.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::BufWriter;
use std::path::{Path, PathBuf};

use clap::Args;
use fairlead_trace::references::{Event, Header, Writer};

use crate::cli::{Context, output};
use crate::error::LabError;
use crate::protocol::stacks::{self, Isa, STACKS, Stack, StackRun};
use crate::protocol::tracer::{GuestSpec, Marks, Outcome, TraceSpec, trace, trace_guest};
use crate::protocol::{linux, lwip};
use crate::table::grouped;

/// Arguments of `lab protocol run`.
#[derive(Clone, Debug, Args)]
#[command(allow_negative_numbers = true, after_help = after_help())]
pub(super) struct RunArgs {
    /// Write the trace to this file
    #[arg(long, short, value_name = "FILE")]
    output: PathBuf,
    /// A packet begins with the first instruction of this function, or at this address (0x…)
    #[arg(long, value_name = "SYMBOL", requires = "end", conflicts_with_all = ["stack", "whole"])]
    begin: Option<String>,
    /// A packet ends before the first instruction of this function, or at this address (0x…)
    #[arg(long, value_name = "SYMBOL", requires = "begin")]
    end: Option<String>,
    /// Trace the whole run, even of a program with marks
    #[arg(long, conflicts_with = "stack")]
    whole: bool,
    /// The emulated processor (qemu-x86_64 -cpu help) [default: Nehalem, cortex-a72]
    #[arg(long, value_name = "NAME")]
    cpu: Option<String>,
    /// Trace this thread of a program that has several; the first is 0
    #[arg(long, value_name = "NUMBER", conflicts_with = "stack")]
    thread: Option<u32>,
    /// Trace one of the workloads below
    #[arg(long, value_name = "NAME", conflicts_with = "program")]
    stack: Option<String>,
    /// Instruction set for which the workload is built
    #[arg(long, value_name = "ISA", requires = "stack", default_value = "x86_64")]
    isa: Isa,
    /// A checkout of lwIP, for its workloads
    #[arg(long, value_name = "FOLDER", requires = "stack")]
    checkout: Option<PathBuf>,
    /// A Linux kernel (vmlinuz), for its workloads [default: one that scripts/vm has got]
    #[arg(long, value_name = "FILE", requires = "stack")]
    kernel: Option<PathBuf>,
    /// Bytes of payload of each packet or message
    #[arg(long, value_name = "BYTES", requires = "stack", default_value_t = 1024)]
    size: u32,
    /// Packets or messages of each kind
    #[arg(long, value_name = "NUMBER", requires = "stack", default_value_t = 200)]
    packets: u32,
    /// Connections among which packets are drawn
    #[arg(long, value_name = "NUMBER", requires = "stack", default_value_t = 100)]
    connections: u32,
    /// Program and arguments
    #[arg(last = true, value_name = "PROGRAM", required_unless_present = "stack")]
    program: Vec<OsString>,
}

fn after_help() -> String {
    let mut text = String::from(
        "Examples:
  lab protocol run --stack datapath --packets 500 -o T.refs
  lab protocol run -o T.refs -- ./program arguments
  lab protocol run --begin tcp_input --end tcp_output -o T.refs -- ./program

A program may mark packets itself (lab protocol markers). Without marks the whole run is traced.
Calls of --begin and --end must alternate.

Workloads:
",
    );
    for stack in STACKS {
        text += &format!("  {:<26} {}\n", stack.name, stack.about);
    }
    for (name, about) in lwip::STACKS.into_iter().chain(linux::STACKS) {
        text += &format!("  {name:<26} {about}\n");
    }
    text
}

impl RunArgs {
    /// Builds lwIP, if its workload is asked for.
    fn lwip(&self) -> Result<Option<lwip::Built>, LabError> {
        let is_lwip = lwip::STACKS
            .iter()
            .any(|(name, _)| self.stack.as_deref() == Some(name));
        match &self.checkout {
            Some(checkout) if is_lwip => lwip::Built::new(checkout).map(Some),
            None if is_lwip => {
                let problem = "write the folder of a checkout of lwIP";
                Err(LabError::option("--checkout", "", problem))
            }
            _ => Ok(None),
        }
    }

    /// Linux in a virtual machine, if its workload is asked for.
    fn guest(&self) -> Result<Option<GuestSpec>, LabError> {
        let Some(name) = self.stack.as_deref().filter(|name| linux::is_named(name)) else {
            return Ok(None);
        };
        let kernel = linux::kernel(self.kernel.as_deref())?;
        let spec = linux::spec(name, &[self.size], self.packets, &kernel)?;
        let cpu = self.cpu.clone();
        Ok(Some(GuestSpec { cpu, ..spec }))
    }

    fn spec(&self, lwip: Option<&lwip::Built>) -> Result<TraceSpec, LabError> {
        let cpu = self.cpu.clone();
        if let (Some(name), Some(built)) = (&self.stack, lwip) {
            let spec = built.spec(name, self.size, self.packets)?;
            return Ok(TraceSpec { cpu, ..spec });
        }
        if let Some(name) = &self.stack {
            let run = StackRun {
                stack: Stack::named(name)?,
                size: self.size,
                packets: self.packets,
                connections: self.connections,
            };
            let spec = run.spec_of(stacks::program(self.isa)?)?;
            return Ok(TraceSpec { cpu, ..spec });
        }
        let marks = match (&self.begin, &self.end) {
            (Some(begin), Some(end)) => Marks::Symbols {
                begin: begin.clone(),
                end: end.clone(),
            },
            _ if self.whole => Marks::Whole,
            _ => Marks::Own,
        };
        let mut words = self.program.iter().cloned();
        Ok(TraceSpec {
            program: words.next().unwrap_or_default(),
            arguments: words.collect(),
            marks,
            cpu,
            thread: self.thread,
            ..TraceSpec::default()
        })
    }
}

pub(super) fn run(args: &RunArgs, context: &Context<'_>) -> Result<(), LabError> {
    if let Some(guest) = args.guest()? {
        return keep(args, context, &|sink| {
            trace_guest(&guest, context.control, sink)
        });
    }
    let lwip = args.lwip()?;
    let spec = args.spec(lwip.as_ref())?;
    keep(args, context, &|sink| trace(&spec, context.control, sink))
}

/// Takes events.
type Sink<'a> = dyn FnMut(&[Event]) -> Result<(), LabError> + 'a;
/// Traces, and gives events to a sink.
type Tracing<'a> = dyn Fn(&mut Sink<'_>) -> Result<Outcome, LabError> + 'a;

/// Writes a trace to the file that is asked for.
fn keep(args: &RunArgs, context: &Context<'_>, traced: &Tracing<'_>) -> Result<(), LabError> {
    // A device or a pipe cannot be replaced by renaming, and is not to be removed.
    let is_stream = output::is_stream(&args.output);
    let part = match is_stream {
        true => args.output.clone(),
        false => part_of(&args.output),
    };
    let written = write(&part, traced);
    let (header, trouble) = match written {
        Ok(written) => written,
        Err(error) => {
            if !is_stream {
                let _ = fs::remove_file(&part);
            }
            return Err(error);
        }
    };
    if let Some(trouble) = trouble {
        let kept = part.display();
        return Err(LabError::Protocol(format!(
            "{trouble}; what was traced until then is kept in {kept}"
        )));
    }
    if !is_stream {
        fs::rename(&part, &args.output).map_err(|error| LabError::file(&args.output, error))?;
    }
    let bytes = fs::metadata(&args.output).map_or(0, |metadata| metadata.len());
    let text = format!(
        "{}: {} packets, {} instructions, {} accesses, {} bytes",
        args.output.display(),
        grouped(header.totals.packets),
        grouped(header.totals.instructions),
        grouped(header.totals.accesses),
        grouped(bytes)
    );
    output::report(&args.output, &text, context)
}

fn part_of(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".part");
    name.into()
}

/// Traces into a file; what is wrong with the run comes with the header.
fn write(part: &Path, traced: &Tracing<'_>) -> Result<(Header, Option<String>), LabError> {
    let failed = |error| LabError::file(part, error);
    let file = File::create(part).map_err(failed)?;
    let mut writer = Writer::new(BufWriter::new(file)).map_err(failed)?;
    let outcome = traced(&mut |events| {
        events
            .iter()
            .try_for_each(|event| writer.push(*event))
            .map_err(failed)
    })?;
    let totals = writer.totals();
    writer.finish(outcome.header.clone()).map_err(failed)?;
    let header = Header {
        totals,
        ..outcome.header
    };
    Ok((header, outcome.trouble))
}
