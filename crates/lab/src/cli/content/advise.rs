//! `lab content advise`: which size and policy fit a log.

use clap::Args;

use super::run::LogArgs;
use crate::cli::arguments::ThreadArgs;
use crate::cli::{Context, output};
use crate::content::Unit;
use crate::content::advise::{Advice, AdviseSpec, advise};
use crate::error::LabError;
use crate::size::Size;
use crate::table::{Table, percent};

/// Arguments of `lab content advise`.
#[derive(Clone, Debug, Args)]
#[command(
    allow_negative_numbers = true,
    after_help = "Examples:
  lab content advise access.log.gz
  lab content advise access.log.gz --size-max 64M --unit file --target 0.8
The recommended size is the smallest that saves the target share of what an unlimited cache saves.
LRU is recommended unless another policy saves more by the margin."
)]
pub(super) struct AdviseArgs {
    #[command(flatten)]
    log: LogArgs,
    /// Smallest size to consider
    #[arg(long, value_name = "SIZE", default_value = "256K")]
    size_min: Size,
    /// Largest size to consider
    #[arg(long, value_name = "SIZE", default_value = "1G")]
    size_max: Size,
    /// Number of caches
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    caches: u32,
    /// Size of a block
    #[arg(long, value_name = "SIZE", default_value = "4K")]
    block: Size,
    /// What is cached and evicted
    #[arg(long, value_name = "WHAT", value_enum, default_value = "block")]
    unit: Unit,
    /// Share of an unlimited cache's saving that is good enough
    #[arg(long, value_name = "SHARE", default_value_t = 0.9)]
    target: f64,
    /// Share of the content by which a policy must be better than LRU
    #[arg(long, value_name = "SHARE", default_value_t = 0.01)]
    margin: f64,
    #[command(flatten)]
    threads: ThreadArgs,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl AdviseArgs {
    fn spec(&self) -> Result<AdviseSpec, LabError> {
        for (option, share) in [("--target", self.target), ("--margin", self.margin)] {
            if !(0.0..=1.0).contains(&share) {
                return Err(LabError::option(
                    option,
                    share.to_string(),
                    "write a share from 0 to 1",
                ));
            }
        }
        Ok(AdviseSpec {
            sizes: [self.size_min, self.size_max],
            caches: self.caches,
            unit: self.unit,
            block: super::run::block_size(self.block)?.bytes(),
            target: self.target,
            margin: self.margin,
        })
    }
}

pub(super) fn run(args: &AdviseArgs, context: &Context<'_>) -> Result<(), LabError> {
    let asked = args.spec()?;
    let (name, responses) = args.log.read(context)?;
    let advice = advise(&responses, &asked, args.threads.threads, context.control)?;
    if args.json {
        return output::print_json(&advice);
    }
    output::print(&text(&name, &advice))
}

fn text(name: &str, advice: &Advice) -> String {
    let caches = match advice.asked.caches {
        1 => String::new(),
        caches => format!("{caches} caches of "),
    };
    let mut out = match advice.size {
        Some(size) => format!(
            "{name}: {caches}{size} under {}, which removes {} of the content\n",
            advice.policy,
            percent(advice.removed_ratio)
        ),
        None => format!("{name}: no cache\n"),
    };
    for reason in &advice.reasons {
        out += &format!("  - {reason}\n");
    }
    let mut policies: Vec<&str> = Vec::new();
    for row in &advice.rows {
        if !policies.contains(&row.policy) {
            policies.push(row.policy);
        }
    }
    let mut table = Table::new(std::iter::once("size").chain(policies.iter().copied()));
    for rows in advice.rows.chunks(policies.len().max(1)) {
        let size = rows.first().map(|row| row.size.to_string());
        let shares = rows.iter().map(|row| percent(row.removed_ratio));
        table.row(size.into_iter().chain(shares));
    }
    out + "\nContent removed\n" + &table.text(2)
}
