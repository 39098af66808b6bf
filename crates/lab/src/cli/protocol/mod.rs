//! `lab protocol`: how protocol stacks use caches.

mod caches;
mod layers;
mod sweep;

use std::fs::File;
use std::path::Path;

use clap::{Args, Subcommand};
use fairlead_trace::references::Reader;

use super::Context;
use crate::error::LabError;
use crate::protocol::unreadable;

/// Arguments of `lab protocol`.
#[derive(Clone, Debug, Args)]
pub struct ProtocolArgs {
    #[command(subcommand)]
    command: ProtocolCommand,
}

#[derive(Clone, Debug, Subcommand)]
enum ProtocolCommand {
    /// Count the misses of one pair of caches over a second level, as cachegrind does
    Caches(caches::CachesArgs),
    /// Simulate many caches and machines, cold and warm
    Sweep(sweep::SweepArgs),
    /// Split the instructions of each packet by layer of the stack
    Layers(layers::LayersArgs),
}

pub(super) fn run(args: &ProtocolArgs, context: &Context<'_>) -> Result<(), LabError> {
    match &args.command {
        ProtocolCommand::Caches(args) => caches::run(args, context),
        ProtocolCommand::Sweep(args) => sweep::run(args, context),
        ProtocolCommand::Layers(args) => layers::run(args, context),
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
