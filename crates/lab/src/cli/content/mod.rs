//! `lab content`: content caches on network interfaces.

mod advise;
mod paper;
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
    /// Recommend a size and a policy for a log, with reasons
    Advise(advise::AdviseArgs),
    /// Reproduce the paper's figures on the logs at hand: a page of HTML, CSV and JSON
    Paper(paper::PaperArgs),
}

pub(super) fn run(args: &ContentArgs, context: &Context<'_>) -> Result<(), LabError> {
    match &args.command {
        ContentCommand::Run(args) => run::run(args, context),
        ContentCommand::Advise(args) => advise::run(args, context),
        ContentCommand::Paper(args) => paper::run(args, context),
    }
}
