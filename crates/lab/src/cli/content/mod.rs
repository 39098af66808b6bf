//! `lab content`: content caches on network interfaces.

mod run;

use clap::{Args, Subcommand};

use super::Context;
use crate::error::LabError;

/// Arguments of `lab content`.
#[derive(Clone, Debug, Args)]
pub struct ContentArgs {
    /// The command.
    #[command(subcommand)]
    command: ContentCommand,
}

#[derive(Clone, Debug, Subcommand)]
enum ContentCommand {
    /// Simulate content caches on a log
    Run(run::RunArgs),
}

pub(super) fn run(args: &ContentArgs, context: &Context<'_>) -> Result<(), LabError> {
    match &args.command {
        ContentCommand::Run(args) => run::run(args, context),
    }
}
