//! The laboratory's commands, for `fairlead lab …` and for `fairlead-lab …`.

mod advise;
mod arguments;
mod calibrate;
mod claims;
mod content;
mod convert;
mod cost;
mod generate;
mod handoff;
mod map;
mod output;
mod paper;
mod progress;
mod protocol;
mod schemes;
mod stat;
mod sweep;
mod tcb;

use std::ffi::OsString;
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};

use crate::control::Control;
use crate::error::LabError;
use progress::Shown;

/// Arguments of `fairlead lab`.
#[derive(Clone, Debug, Args)]
pub struct LabArgs {
    /// The command.
    #[command(subcommand)]
    pub command: LabCommand,
    /// Print no progress bar and no notes
    #[arg(long, short, global = true)]
    pub quiet: bool,
}

/// Commands of the laboratory.
#[derive(Clone, Debug, Subcommand)]
pub enum LabCommand {
    /// Simulate one cache on a trace
    Tcb(tcb::TcbArgs),
    /// Characterize a trace: clients, sessions, ON/OFF times, address bits, concurrency
    Stat(stat::StatArgs),
    /// Run a plan of parameter ranges × traces × seeds, resumable
    Sweep(sweep::SweepArgs),
    /// Map where ON/OFF speculation pays, by load, burst length and port model
    Map(map::MapArgs),
    /// Recommend cache size and policy for a trace, with their cost
    Advise(advise::AdviseArgs),
    /// Convert miss ratios to time, and cache designs to gates and bits
    Cost(cost::CostCommandArgs),
    /// Fit the concurrency to one published column and predict the others
    Calibrate(calibrate::CalibrateArgs),
    /// Reproduce the paper's figures and tables on available traces, as JSON and CSV
    Paper(paper::PaperArgs),
    /// How protocol stacks use caches: trace, count, sweep
    Protocol(protocol::ProtocolArgs),
    /// Content caches on network interfaces: how much of a web server's content stays off the bus
    Content(content::ContentArgs),
    /// Connection handoff to a card: the paper's figures and tables, measured on this machine
    Handoff(handoff::HandoffArgs),
    /// List schemes, indexes and policies
    Schemes(schemes::SchemesArgs),
    /// Convert a trace to another format
    Convert(convert::ConvertArgs),
    /// Generate a synthetic trace
    Generate(generate::GenerateArgs),
}

#[derive(Debug, Parser)]
#[command(
    name = "fairlead-lab",
    version,
    about = "Fairlead's laboratory: simulate caches of connection state on real traffic",
    propagate_version = true
)]
struct Whole {
    #[command(flatten)]
    lab: LabArgs,
}

/// Parses a command line, starting with the program's name, and runs the command.
pub fn main(args: impl Iterator<Item = OsString>, control: &dyn Control) -> ExitCode {
    match Whole::try_parse_from(args) {
        Ok(whole) => run(&whole.lab, control),
        Err(error) => {
            let code = u8::try_from(error.exit_code()).unwrap_or(2);
            let _ = error.print();
            ExitCode::from(code)
        }
    }
}

/// Runs a parsed command.
pub fn run(args: &LabArgs, control: &dyn Control) -> ExitCode {
    let shown = Shown::new(control, args.quiet);
    let context = Context {
        control: &shown,
        quiet: args.quiet,
    };
    match execute(&args.command, &context) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            drop(shown);
            output::note(&format!("error: {error}"));
            ExitCode::from(error.exit_code())
        }
    }
}

/// Context of every command.
pub(crate) struct Context<'a> {
    control: &'a dyn Control,
    quiet: bool,
}

impl Context<'_> {
    /// Writes a line to standard error, unless quiet.
    fn note(&self, text: &str) {
        if !self.quiet {
            output::note(text);
        }
    }
}

fn execute(command: &LabCommand, context: &Context<'_>) -> Result<(), LabError> {
    match command {
        LabCommand::Tcb(args) => tcb::run(args, context),
        LabCommand::Stat(args) => stat::run(args, context),
        LabCommand::Sweep(args) => sweep::run(args, context),
        LabCommand::Map(args) => map::run(args, context),
        LabCommand::Advise(args) => advise::run(args, context),
        LabCommand::Cost(args) => cost::run(args, context),
        LabCommand::Calibrate(args) => calibrate::run(args, context),
        LabCommand::Paper(args) => paper::run(args, context),
        LabCommand::Protocol(args) => protocol::run(args, context),
        LabCommand::Content(args) => content::run(args, context),
        LabCommand::Handoff(args) => handoff::run(args, context),
        LabCommand::Schemes(args) => schemes::run(args),
        LabCommand::Convert(args) => convert::run(args, context),
        LabCommand::Generate(args) => generate::run(args, context),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Whole::command().debug_assert();
    }

    #[test]
    fn every_option_accepts_a_negative_value() {
        // Taken for an option, it would cause a usage error.
        fn look(command: &clap::Command, before: &[&str]) -> usize {
            let words = [before, &[command.get_name()]].concat();
            let options = command.get_opts();
            let valued = options.filter(|option| option.get_action().takes_values());
            let mut seen = 0;
            for option in valued.filter_map(clap::Arg::get_long) {
                let asked = format!("--{option}");
                let words = [&words[..], &[&asked, "-1"]].concat();
                if let Err(error) = Whole::try_parse_from(&words) {
                    let kind = error.kind();
                    assert_ne!(kind, clap::error::ErrorKind::UnknownArgument, "{words:?}");
                }
                seen += 1;
            }
            let inner = command.get_subcommands();
            seen + inner.map(|inner| look(inner, &words)).sum::<usize>()
        }
        assert!(look(&Whole::command(), &[]) > 40);
    }
}
