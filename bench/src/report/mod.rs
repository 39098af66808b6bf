//! `fairlead-bench report` writes `docs/performance.md`, and the README's table, from the records
//! that they cite. The prose is in `performance.in`; all figures come from here.
//!
//! A line `{{table record…}}` of the template becomes a table:
//!
//! | line | becomes |
//! |---|---|
//! | `{{machine record}}` | the machine of the section; records of others are refused |
//! | `{{peers record targets}}` | requests/s and p99, with the targets, or without |
//! | `{{spread record…}}` | the same rows in several records |
//! | `{{KIND record}}` | the table of `cost`, `open`, `flood`, `core` or `lab` |

mod builds;
mod record;
mod tables;
mod targets;
#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use clap::Args;

pub(crate) use record::Record;
use tables::Markdown;

/// Writes the pages of figures.
#[derive(Debug, Args)]
pub(crate) struct Report {
    /// The repository.
    #[arg(long, default_value = ".")]
    root: PathBuf,
}

/// The page of all tables, from the root of the repository.
const PAGE: &str = "docs/performance.md";
/// Where the README's table stands.
const README: &str = "README.md";
const BEGIN: &str = "<!-- begin: written by fairlead-bench report -->\n";
const END: &str = "<!-- end -->\n";
/// Folder of the records.
const RECORDS: &str = "bench/records";
const TEMPLATE: &str = include_str!("performance.in");
/// The records of the README's table: as shipped, processor time, offloads off, engine mode.
const SUMMARY: [&str; 4] = [
    "peers-auto-049276ce7067",
    "cost-auto-e1f9d3f9e293",
    "peers-auto-offloads-off-049276ce7067",
    "peers-engine-e1f9d3f9e293",
];

/// Writes both pages.
pub(crate) fn run(report: &Report) -> Result<()> {
    for (path, text) in pages(&report.root)? {
        let path = report.root.join(path);
        std::fs::write(&path, text).with_context(|| format!("writing {}", path.display()))?;
        println!("wrote {}", path.display());
    }
    Ok(())
}

/// The pages as the records have them, and their paths from the root.
fn pages(root: &Path) -> Result<[(&'static str, String); 2]> {
    let records = root.join(RECORDS);
    let readme = root.join(README);
    let readme = std::fs::read_to_string(&readme)
        .with_context(|| format!("reading {}", readme.display()))?;
    Ok([
        (PAGE, fill(TEMPLATE, &records)?),
        (README, with_summary(&readme, &records)?),
    ])
}

/// The template with its tables.
fn fill(template: &str, records: &Path) -> Result<Markdown> {
    let mut text = String::new();
    let mut machine = None;
    for (at, line) in template.lines().enumerate() {
        let directive = line
            .strip_prefix("{{")
            .and_then(|line| line.strip_suffix("}}"));
        match directive {
            Some(directive) => {
                let words: Vec<&str> = directive.split_whitespace().collect();
                let table = table(&words, records, &mut machine);
                text += &table.with_context(|| format!("line {} of the template", at + 1))?;
            }
            None => {
                text += line;
                text.push('\n');
            }
        }
    }
    Ok(text)
}

fn table(words: &[&str], folder: &Path, machine: &mut Option<String>) -> Result<Markdown> {
    let [kind, names @ ..] = words else {
        bail!("an empty directive")
    };
    let with_targets = names.last() == Some(&"targets");
    let names = &names[..names.len() - usize::from(with_targets)];
    let records = names.iter().map(|name| Record::read(folder, name));
    let records: Vec<Record> = records.collect::<Result<_>>()?;
    let first = records.first().context("a directive without a record")?;
    if *kind == "machine" {
        *machine = Some(first.processor());
        return Ok(format!("{}.\n", first.machine()));
    }
    for record in &records {
        ensure!(
            machine.as_ref() == Some(&record.processor()),
            "{} was measured on {}, not on the section's machine",
            record.name,
            record.processor()
        );
    }
    ensure!(
        *kind == "spread" || records.len() == 1,
        "{kind} takes one record"
    );
    let base = "../";
    match *kind {
        "peers" => tables::peers(first, with_targets, base),
        "spread" => tables::spread(&records, base),
        "cost" => tables::cost(first, base),
        "open" => tables::open(first, base),
        "flood" => tables::flood(first, base),
        "core" => tables::core(first, base),
        "lab" => tables::lab(first, base),
        "builds" => builds::builds(first, base),
        kind => bail!("there is no table {kind}"),
    }
}

/// The README with its table replaced.
fn with_summary(readme: &str, folder: &Path) -> Result<Markdown> {
    let (before, rest) = readme
        .split_once(BEGIN)
        .with_context(|| format!("{README} has no line {BEGIN}"))?;
    let (_, after) = rest
        .split_once(END)
        .with_context(|| format!("{README} has no line {END}"))?;
    let [fast, cost, offloads_off, engine] = SUMMARY.map(|name| Record::read(folder, name));
    let table = tables::summary(
        &tables::Summary {
            fast: fast?,
            cost: cost?,
            offloads_off: offloads_off?,
            engine: engine?,
        },
        "",
    )?;
    Ok(format!("{before}{BEGIN}{table}{END}{after}"))
}
