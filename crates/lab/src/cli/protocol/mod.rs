//! `lab protocol`: how protocol stacks use caches.

mod budget;
mod caches;
mod layers;
mod layouts;
mod paper;
mod run;
mod stat;
mod sweep;

use std::fs::File;
use std::path::Path;

use clap::{Args, Subcommand};
use fairlead_trace::references::Reader;

use super::{Context, output};
use crate::error::LabError;
use crate::protocol::{tracer, unreadable};

/// Arguments of `lab protocol`.
#[derive(Clone, Debug, Args)]
pub struct ProtocolArgs {
    #[command(subcommand)]
    command: ProtocolCommand,
}

#[derive(Clone, Debug, Subcommand)]
enum ProtocolCommand {
    /// Trace a program under QEMU: each instruction, each access to memory, each packet
    Run(run::RunArgs),
    /// Count instructions, branches, accesses and cache lines of each packet of a trace
    Stat(stat::StatArgs),
    /// Count the misses of one pair of caches over a second level, as cachegrind does
    Caches(caches::CachesArgs),
    /// Simulate many caches and machines, cold and warm
    Sweep(sweep::SweepArgs),
    /// Split the instructions of each packet by layer of the stack
    Layers(layers::LayersArgs),
    /// Compare builds of the workloads that differ in the layout of their code
    Layouts(layouts::LayoutsArgs),
    /// Check, or write, what each packet of the datapath may cost
    Budget(budget::BudgetArgs),
    /// Hold the claims of the paper against the stacks at hand, as one page
    Paper(paper::PaperArgs),
    /// Print the marks of packets, to be included in a program that is to be traced
    Markers(MarkersArgs),
}

/// Arguments of `lab protocol markers`.
#[derive(Clone, Debug, Args)]
struct MarkersArgs {
    /// The language
    language: Language,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Language {
    /// A header for C and C++
    C,
    /// A module
    Rust,
}

pub(super) fn run(args: &ProtocolArgs, context: &Context<'_>) -> Result<(), LabError> {
    match &args.command {
        ProtocolCommand::Run(args) => run::run(args, context),
        ProtocolCommand::Stat(args) => stat::run(args, context),
        ProtocolCommand::Caches(args) => caches::run(args, context),
        ProtocolCommand::Sweep(args) => sweep::run(args, context),
        ProtocolCommand::Layers(args) => layers::run(args, context),
        ProtocolCommand::Layouts(args) => layouts::run(args, context),
        ProtocolCommand::Budget(args) => budget::run(args, context),
        ProtocolCommand::Paper(args) => paper::run(args, context),
        ProtocolCommand::Markers(args) => output::print(match args.language {
            Language::C => tracer::MARKS_C,
            Language::Rust => tracer::MARKS_RUST,
        }),
    }
}

/// Opens a trace of references.
///
/// # Errors
/// It cannot be read, or is no trace of references.
pub(super) fn open(path: &Path) -> Result<Reader<File>, LabError> {
    let file = File::open(path).map_err(|error| LabError::file(path, error))?;
    Reader::new(path.display().to_string(), file).map_err(unreadable)
}
