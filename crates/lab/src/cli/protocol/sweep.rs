//! `lab protocol sweep`: many caches and machines over one trace.

use std::path::PathBuf;

use clap::Args;
use fairlead_cache::memory::REPLACEMENTS;

use super::open;
use crate::cli::arguments::ThreadArgs;
use crate::cli::{Context, output};
use crate::error::LabError;
use crate::protocol::machine::Machine;
use crate::protocol::report::{MachineRow, Report};
use crate::protocol::spread::Spread;
use crate::protocol::sweep::{LRU, SweepSpec, WARM_UP, sweep};
use crate::protocol::tally::State;
use crate::size::Size;
use crate::table::{Table, grouped, percent};

/// Arguments of `lab protocol sweep`.
#[derive(Clone, Debug, Args)]
#[command(
    allow_negative_numbers = true,
    after_help = "Examples:
  lab protocol sweep T.refs
  lab protocol sweep T.refs --machine zen4 --machine own.toml --out results
  lab protocol sweep T.refs --size 16K,32K,64K --ways 1,2,8 --line 64 --json
  lab protocol sweep T.refs --policy plru --line 64
Caches are emptied before each packet (cold) or kept (warm). What the program does between packets
is left out. Machines are r4400-100, neoverse-n1, zen4, golden-cove, or a TOML file with the keys
of those (crates/lab/src/protocol/machines in the repository)."
)]
pub(super) struct SweepArgs {
    /// A trace of `lab protocol run`
    #[arg(value_name = "TRACE")]
    trace: PathBuf,
    /// Capacities [default: 4K to 256K]
    #[arg(
        long,
        value_name = "SIZES",
        value_delimiter = ',',
        allow_hyphen_values = true
    )]
    size: Vec<Size>,
    /// Ways, 1 to 16 [default: 1,2,4,8,16]
    #[arg(
        long,
        value_name = "NUMBERS",
        value_delimiter = ',',
        allow_hyphen_values = true
    )]
    ways: Vec<u32>,
    /// Bytes of a line [default: 32,64,128]
    #[arg(
        long,
        value_name = "NUMBERS",
        value_delimiter = ',',
        allow_hyphen_values = true
    )]
    line: Vec<u32>,
    /// Replacement policy of these caches; machines have LRU. All but lru are simulated one cache
    /// at a time
    #[arg(long, value_name = "POLICY", default_value = LRU, allow_hyphen_values = true,
        long_help = policies())]
    policy: String,
    /// Machine, by name or TOML file; may be repeated [default: all that are known]
    #[arg(long, value_name = "MACHINE", allow_hyphen_values = true)]
    machine: Vec<String>,
    /// Packets of each kind that only fill the warm caches
    #[arg(long, value_name = "NUMBER", default_value_t = WARM_UP, allow_hyphen_values = true)]
    warm_up: u64,
    /// Write packet.csv, misses.csv, fits.csv, clock.csv and sweep.json to this folder
    #[arg(long, short, value_name = "FOLDER")]
    out: Option<PathBuf>,
    #[command(flatten)]
    threads: ThreadArgs,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

fn policies() -> String {
    let mut out =
        "Replacement policy of these caches; machines have LRU. All but lru are simulated \
        one cache at a time, with ways that are powers of two:"
            .to_owned();
    for known in REPLACEMENTS {
        out += &format!("\n  {:<7} {}", known.name, known.help);
    }
    out
}

impl SweepArgs {
    fn spec(&self) -> Result<SweepSpec, LabError> {
        let usual = SweepSpec::default();
        let or = |given: &[u32], usual: Vec<u32>| match given {
            [] => usual,
            given => given.to_vec(),
        };
        let machines = match &self.machine[..] {
            [] => Machine::known()?,
            names => names
                .iter()
                .map(|name| Machine::find(name))
                .collect::<Result<_, _>>()?,
        };
        Ok(SweepSpec {
            sizes: match &self.size[..] {
                [] => usual.sizes,
                sizes => sizes.to_vec(),
            },
            ways: or(&self.ways, usual.ways),
            lines: or(&self.line, usual.lines),
            policy: self.policy.clone(),
            machines,
            clocks: usual.clocks,
            warm_up: self.warm_up,
        })
    }
}

pub(super) fn run(args: &SweepArgs, context: &Context<'_>) -> Result<(), LabError> {
    let spec = args.spec()?;
    let mut reader = open(&args.trace)?;
    let report = sweep(&mut reader, &spec, args.threads.threads, context.control)?;
    if let Some(folder) = &args.out {
        std::fs::create_dir_all(folder).map_err(|error| LabError::file(folder, error))?;
        let write = |name: &str, text: &str| output::write_file(&folder.join(name), text);
        write("packet.csv", &report.packet_table().csv())?;
        write("misses.csv", &report.miss_table().csv())?;
        write("fits.csv", &report.fit_table().csv())?;
        write("clock.csv", &report.clock_table().csv())?;
        write("sweep.json", &output::json(&report)?)?;
    }
    if args.json {
        return output::print_json(&report);
    }
    output::print(&text(&report))
}

fn text(report: &Report) -> String {
    let mut out = format!("Packets\n{}", packets(report).text(2));
    out += &format!("\nMachines (medians)\n{}", machines(report).text(2));
    out += &format!(
        "\nSmallest cache ({}) with less than one miss per warm packet, by ways\n",
        report.asked.policy
    );
    out += &fits(report).text(2);
    out += "\nGain from a faster clock with memory as before, warm\n";
    out += &clocks(report).text(2);
    for note in &report.notes {
        out += &format!("note: {note}\n");
    }
    out
}

fn packets(report: &Report) -> Table {
    let mut table = Table::new([
        "kind",
        "packets",
        "instructions",
        "least–most",
        "accesses",
        "I lines (64 B)",
        "D lines (64 B)",
    ]);
    for row in &report.packets {
        let range = |spread: &Spread| format!("{}–{}", grouped(spread.least), grouped(spread.most));
        table.row([
            row.kind.clone(),
            grouped(row.packets),
            grouped(row.instructions.median),
            range(&row.instructions),
            grouped(row.accesses.median),
            grouped(row.instruction_lines_64.median),
            grouped(row.data_lines_64.median),
        ]);
    }
    table
}

fn machines(report: &Report) -> Table {
    let mut table = Table::new([
        "kind", "machine", "caches", "I misses", "D misses", "L2 I", "L2 D", "I ratio", "D ratio",
        "MCPI I", "MCPI D", "cycles", "ideal I", "ideal D",
    ]);
    for row in &report.machines {
        table.row(machine_cells(row));
    }
    table
}

fn machine_cells(row: &MachineRow) -> Vec<String> {
    vec![
        row.kind.clone(),
        row.machine.clone(),
        row.state.name().to_owned(),
        grouped(row.i1_misses.median),
        grouped(row.d1_misses.median),
        grouped(row.l2_instruction_misses.median),
        grouped(row.l2_data_misses.median),
        percent(row.i1_miss_ratio),
        percent(row.d1_miss_ratio),
        format!("{:.2}", row.mcpi_instructions),
        format!("{:.2}", row.mcpi_data),
        grouped(row.cycles.median),
        grouped(row.cycles_ideal_instructions.round() as u64),
        grouped(row.cycles_ideal_data.round() as u64),
    ]
}

fn fits(report: &Report) -> Table {
    let mut heads = vec!["kind".to_owned(), "part".to_owned(), "line".to_owned()];
    let mut ways: Vec<u32> = report.fits.iter().map(|row| row.ways).collect();
    ways.sort_unstable();
    ways.dedup();
    heads.extend(ways.iter().map(|ways| format!("{ways} ways")));
    let mut table = Table::new(heads);
    for rows in report
        .fits
        .chunk_by(|a, b| (&a.kind, a.part, a.line) == (&b.kind, b.part, b.line))
    {
        let first = &rows[0];
        let mut cells = vec![
            first.kind.clone(),
            first.part.name().to_owned(),
            first.line.to_string(),
        ];
        cells.extend(ways.iter().map(|ways| {
            let row = rows.iter().find(|row| row.ways == *ways);
            let size = row.and_then(|row| row.size);
            size.map_or_else(|| "none".to_owned(), |size| size.to_string())
        }));
        table.row(cells);
    }
    table
}

fn clocks(report: &Report) -> Table {
    let mut heads = vec!["kind".to_owned(), "machine".to_owned()];
    heads.extend(
        report
            .asked
            .clocks
            .iter()
            .map(|clock| format!("clock × {clock}")),
    );
    let mut table = Table::new(heads);
    let warm: Vec<_> = report
        .clocks
        .iter()
        .filter(|row| row.state == State::Warm)
        .collect();
    for rows in warm.chunk_by(|a, b| (&a.kind, &a.machine) == (&b.kind, &b.machine)) {
        let mut cells = vec![rows[0].kind.clone(), rows[0].machine.clone()];
        cells.extend(rows.iter().map(|row| format!("{:.2}", row.gain)));
        table.row(cells);
    }
    table
}
