//! `lab protocol budget`: what each packet of the datapath may cost.

use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};

use crate::cli::{Context, output};
use crate::error::LabError;
use crate::protocol::budget::{Budgets, Verdict};

/// Arguments of `lab protocol budget`.
#[derive(Clone, Debug, Args)]
#[command(
    allow_negative_numbers = true,
    after_help = "Examples:
  lab protocol budget check bench/budgets.toml
  lab protocol budget update bench/budgets.toml
The workloads are those that make stacks has built last. Exit code 1 of check: a number differs.
Exit code 2: the workloads were built by other tools than the file names, or cannot be traced."
)]
pub(super) struct BudgetArgs {
    #[command(subcommand)]
    command: BudgetCommand,
}

#[derive(Clone, Debug, Subcommand)]
enum BudgetCommand {
    /// Compare instructions, branches and cache lines of each packet with a file, exactly
    Check(FileArgs),
    /// Write what is measured to the file, and show the differences
    Update(FileArgs),
}

#[derive(Clone, Debug, Args)]
struct FileArgs {
    /// The file
    #[arg(value_name = "FILE", default_value = "bench/budgets.toml")]
    path: PathBuf,
}

pub(super) fn run(args: &BudgetArgs, context: &Context<'_>) -> Result<(), LabError> {
    match &args.command {
        BudgetCommand::Check(args) => check(&args.path, context),
        BudgetCommand::Update(args) => update(&args.path, context),
    }
}

fn check(path: &Path, context: &Context<'_>) -> Result<(), LabError> {
    let budgets = Budgets::read(path)?;
    let measured = Budgets::measure(context.control)?;
    match budgets.compare(&measured) {
        Verdict::Compared(differences) if differences.is_empty() => {
            let packets: usize = budgets.packet.values().map(|packets| packets.len()).sum();
            output::print(&format!("{packets} kinds of packets cost what they may\n"))
        }
        Verdict::Compared(differences) => {
            let lines: Vec<String> = differences.iter().map(ToString::to_string).collect();
            Err(LabError::Budget(format!(
                "{}\n{} differs. If that is meant: fairlead lab protocol budget update",
                lines.join("\n"),
                path.display()
            )))
        }
        Verdict::OtherTools { budgets, here } => Err(LabError::Protocol(format!(
            "{} is of other tools: {}; here: {}. Nothing was compared",
            path.display(),
            budgets.join(", "),
            here.join(", ")
        ))),
    }
}

fn update(path: &Path, context: &Context<'_>) -> Result<(), LabError> {
    let before = path.exists().then(|| Budgets::read(path)).transpose()?;
    let measured = Budgets::measure(context.control)?;
    output::write_file(path, &measured.text()?)?;
    let differences = before.map_or_else(Vec::new, |before| before.differences(&measured));
    let lines: String = differences.iter().map(|line| format!("{line}\n")).collect();
    let count = differences.len();
    output::print(&format!("{lines}{}: {count} differences\n", path.display()))
}
