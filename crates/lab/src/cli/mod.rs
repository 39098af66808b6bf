//! The laboratory's commands, for `fairlead lab …` and for `fairlead-lab …`.

mod advise;
mod arguments;
mod calibrate;
mod convert;
mod cost;
mod generate;
mod map;
mod output;
mod paper;
mod progress;
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

/// What follows `fairlead lab`.
#[derive(Clone, Debug, Args)]
pub struct LabArgs {
    /// What to do.
    #[command(subcommand)]
    pub command: LabCommand,
    /// No progress bar, no notes
    #[arg(long, short, global = true)]
    pub quiet: bool,
}

/// What the laboratory does.
#[derive(Clone, Debug, Subcommand)]
pub enum LabCommand {
    /// Run one cache over a trace
    Tcb(tcb::TcbArgs),
    /// Measure a trace: clients, sessions, ON/OFF times, bits, concurrency
    Stat(stat::StatArgs),
    /// Run a plan: ranges × traces × seeds, resumable
    Sweep(sweep::SweepArgs),
    /// Map where ON/OFF speculation pays, over load, burst length and port model
    Map(map::MapArgs),
    /// How large, which policy, at what cost, for this trace
    Advise(advise::AdviseArgs),
    /// What miss ratios mean in time, and caches in gates and bits
    Cost(cost::CostCommandArgs),
    /// Fit the concurrency to one published column, predict the others
    Calibrate(calibrate::CalibrateArgs),
    /// The paper's figures and tables on the traces at hand, as JSON and CSV
    Paper(paper::PaperArgs),
    /// List schemes, indexes and policies
    Schemes(schemes::SchemesArgs),
    /// Write a trace in another format
    Convert(convert::ConvertArgs),
    /// Write a synthetic trace
    Generate(generate::GenerateArgs),
}

#[derive(Debug, Parser)]
#[command(
    name = "fairlead-lab",
    version,
    about = "The laboratory of Fairlead: caches of connection state on real traffic",
    propagate_version = true
)]
struct Whole {
    #[command(flatten)]
    lab: LabArgs,
}

/// Reads a command line, the program's name first, and does what it says.
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

/// Does what a command line said.
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

/// What every command is given.
pub(crate) struct Context<'a> {
    control: &'a dyn Control,
    quiet: bool,
}

impl Context<'_> {
    /// Writes a line to standard error, unless nothing is to be heard.
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
    fn a_negative_value_is_a_value_of_every_option() {
        // Taken for an option, it would be answered with a usage.
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
