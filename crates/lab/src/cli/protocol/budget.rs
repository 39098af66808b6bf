//! `lab protocol budget`: what each packet of the datapath may cost.

use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};

use crate::cli::{Context, output};
use crate::error::LabError;
use crate::protocol::budget::{Budgets, KernelBudgets, Verdict};

/// Arguments of `lab protocol budget`.
#[derive(Clone, Debug, Args)]
#[command(
    allow_negative_numbers = true,
    after_help = "Examples:
  lab protocol budget check bench/budgets.toml
  lab protocol budget update bench/budgets.toml
  lab protocol budget check --kernel /boot/vmlinuz-6.1.0-56-amd64
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
    /// Also the kernel program, on this kernel in a virtual machine (after scripts/stacks --kernel)
    #[arg(long, value_name = "FILE", allow_hyphen_values = true)]
    kernel: Option<PathBuf>,
}

pub(super) fn run(args: &BudgetArgs, context: &Context<'_>) -> Result<(), LabError> {
    match &args.command {
        BudgetCommand::Check(args) => check(args, context),
        BudgetCommand::Update(args) => update(args, context),
    }
}

fn check(args: &FileArgs, context: &Context<'_>) -> Result<(), LabError> {
    let path = &args.path;
    let budgets = Budgets::read(path)?;
    let measured = Budgets::measure(context.control)?;
    let mut packets: usize = budgets.packet.values().map(|packets| packets.len()).sum();
    let mut differences = compared(path, budgets.compare(&measured))?;
    if let Some(kernel) = &args.kernel {
        let Some(budgets) = &budgets.kernel else {
            return Err(LabError::Protocol(format!(
                "{} has no budgets of the kernel program; write them: budget update --kernel",
                path.display()
            )));
        };
        let measured = KernelBudgets::measure(kernel, context.control)?;
        differences.extend(compared(path, budgets.compare(&measured))?);
        packets += budgets.packet.len();
    }
    if differences.is_empty() {
        return output::print(&format!("{packets} kinds of packets cost what they may\n"));
    }
    Err(LabError::Budget(format!(
        "{}\n{} differs. If that is meant: fairlead lab protocol budget update",
        differences.join("\n"),
        path.display()
    )))
}

/// The differences, a line each.
fn compared(path: &Path, verdict: Verdict) -> Result<Vec<String>, LabError> {
    match verdict {
        Verdict::Compared(differences) => Ok(differences.iter().map(ToString::to_string).collect()),
        Verdict::OtherTools { budgets, here } => Err(LabError::Protocol(format!(
            "{} is of other tools: {}; here: {}. Nothing was compared",
            path.display(),
            budgets.join(", "),
            here.join(", ")
        ))),
    }
}

fn update(args: &FileArgs, context: &Context<'_>) -> Result<(), LabError> {
    let path = &args.path;
    let before = path.exists().then(|| Budgets::read(path)).transpose()?;
    let mut measured = Budgets::measure(context.control)?;
    measured.kernel = match &args.kernel {
        Some(kernel) => Some(KernelBudgets::measure(kernel, context.control)?),
        None => before.as_ref().and_then(|before| before.kernel.clone()),
    };
    output::write_file(path, &measured.text()?)?;
    let mut differences = Vec::new();
    if let Some(before) = before {
        differences = before.differences(&measured);
        if let (Some(before), Some(measured)) = (before.kernel, &measured.kernel) {
            differences.extend(before.differences(measured));
        }
    }
    let lines: String = differences.iter().map(|line| format!("{line}\n")).collect();
    let count = differences.len();
    output::print(&format!("{lines}{}: {count} differences\n", path.display()))
}
