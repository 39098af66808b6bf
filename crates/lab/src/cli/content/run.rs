//! `lab content run`: simulates content caches on a log.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::Args;
use fairlead_content::{BlockSize, Policy};
use fairlead_trace::Report;

use crate::cli::arguments::{ThreadArgs, check_max_bad};
use crate::cli::{Context, output};
use crate::content::{Cell, Responses, Row, SIZES, Split, Unit, simulate};
use crate::error::LabError;
use crate::load::{Loader, StreamSpec};
use crate::notes::reading_notes;
use crate::size::Size;
use crate::table::{Table, grouped, percent};

/// Arguments of `lab content run`.
#[derive(Clone, Debug, Args)]
#[command(
    allow_negative_numbers = true,
    after_help = "Examples:
  lab content run nasa.log.zst
  lab content run nasa.log.zst --size 4M,16M --caches 2 --policy all
  lab content run nasa.log.zst --size 256K,16M --caches 1 --block 4K --policy lru --json
Rows are played back in the order of the log, or by time if more than a tenth of them step back in
time. Rows without a size or a body are left out. Files larger than a cache are not cached; a file
is as long as its longest response."
)]
pub(super) struct RunArgs {
    #[command(flatten)]
    log: LogArgs,
    /// Sizes of each cache [default: 64K to 16M, doubling]
    #[arg(long, value_name = "SIZES", value_delimiter = ',')]
    size: Vec<Size>,
    /// Number of caches (network interfaces)
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    caches: u32,
    /// How requests are split between several caches
    #[arg(long, value_name = "HOW", value_enum, default_value = "alternate")]
    split: Split,
    /// Size of a block
    #[arg(long, value_name = "SIZE", default_value = "4K")]
    block: Size,
    /// What is cached and evicted
    #[arg(long, value_name = "WHAT", value_enum, default_value = "block")]
    unit: Unit,
    /// Policies, or `all`: lru, fifo, clock, sieve, s3-fifo, gdsf
    #[arg(
        long,
        value_name = "POLICIES",
        value_delimiter = ',',
        default_value = "lru"
    )]
    policy: Vec<String>,
    #[command(flatten)]
    threads: ThreadArgs,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Selects a log.
#[derive(Clone, Debug, Args)]
pub(super) struct LogArgs {
    /// A log with response sizes, optionally compressed; `-` for standard input
    #[arg(value_name = "LOG")]
    log: OsString,
    /// Format of the log; detected from the content by default
    #[arg(long, value_name = "FORMAT")]
    format: Option<String>,
    /// Maximum share of unreadable rows
    #[arg(long, value_name = "SHARE", default_value_t = 0.01)]
    max_bad: f64,
}

impl LogArgs {
    /// Reads the log, and says what was left out.
    pub(super) fn read(&self, context: &Context<'_>) -> Result<(String, Responses), LabError> {
        check_max_bad(self.max_bad)?;
        let path = match self.log.to_str() {
            Some("-") => PathBuf::from("/dev/stdin"),
            _ => PathBuf::from(&self.log),
        };
        let made = StreamSpec {
            format: self.format.clone(),
            max_bad: self.max_bad,
            ..StreamSpec::file(&path)
        };
        let log = Loader::with_unknown_clients().log(&path, &made, context.control)?;
        let name = made.name();
        let responses = Responses::of(&log.requests, &name)?;
        // What time does is said by the responses, which keep an order that is nearly one of time.
        let report = Report {
            stepped_back: 0,
            ..log.report.clone()
        };
        for note in reading_notes(&report) {
            context.note(&format!("note: {name}: {note}"));
        }
        for note in responses.notes() {
            context.note(&format!("note: {name}: {note}"));
        }
        Ok((name, responses))
    }
}

/// The block size of an option.
pub(super) fn block_size(size: Size) -> Result<BlockSize, LabError> {
    BlockSize::new(size.0).ok_or_else(|| {
        let problem = "write a power of two from 512 to 1M";
        LabError::option("--block", size.to_string(), problem)
    })
}

impl RunArgs {
    fn cells(&self) -> Result<Vec<Cell>, LabError> {
        let block = block_size(self.block)?;
        let sizes = match &self.size[..] {
            [] => &SIZES[..],
            sizes => sizes,
        };
        let mut policies = Vec::new();
        for name in &self.policy {
            if name == "all" {
                policies.extend(Policy::ALL);
            } else {
                let policy = name.parse();
                policies.push(
                    policy
                        .map_err(|problem: String| LabError::option("--policy", name, problem))?,
                );
            }
        }
        let mut cells = Vec::new();
        for policy in policies {
            for size in sizes {
                let cell = Cell {
                    size: *size,
                    caches: self.caches,
                    split: self.split,
                    unit: self.unit,
                    block,
                    policy,
                };
                cell.check()?;
                if !cells.contains(&cell) {
                    cells.push(cell);
                }
            }
        }
        Ok(cells)
    }
}

pub(super) fn run(args: &RunArgs, context: &Context<'_>) -> Result<(), LabError> {
    let cells = args.cells()?;
    let (name, responses) = args.log.read(context)?;
    let results = simulate(&responses, &cells, args.threads.threads, context.control)?;
    let rows: Vec<Row> = results
        .iter()
        .map(|result| Row::new(&responses, result))
        .collect();
    if args.json {
        return output::print_json(&rows);
    }
    output::print(&text(&name, args, &responses, &rows))
}

fn text(name: &str, args: &RunArgs, responses: &Responses, rows: &[Row]) -> String {
    let requests = responses.len() as u64;
    let bytes = responses.response_bytes();
    let mut out = format!(
        "{name}\n  {} responses, {} bytes ({} on average), {} files, {} bytes of files\n",
        grouped(requests),
        grouped(bytes),
        grouped(bytes / requests.max(1)),
        grouped(responses.distinct_files()),
        grouped(responses.data_set_bytes()),
    );
    let caches = match args.caches {
        1 => "one cache".to_owned(),
        caches => format!("{caches} caches of each size, split: {}", args.split.name()),
    };
    let unit = args.unit.name();
    out += &format!(
        "  {caches}; a {unit} is evicted; blocks of {}\n\n",
        args.block
    );
    let mut table = Table::new([
        "policy",
        "size",
        "content removed",
        "bytes removed",
        "whole responses",
        "blocks",
    ]);
    for row in rows {
        table.row([
            row.policy.to_owned(),
            row.size.to_string(),
            percent(row.removed_ratio),
            grouped(row.content_bytes_removed),
            percent(row.request_hit_ratio),
            percent(row.block_hit_ratio),
        ]);
    }
    out + &table.text(2)
}
