//! `lab map`: maps where ON/OFF speculation pays.

use clap::Args;
use fairlead_workload::PortModel;

use super::arguments::{ThreadArgs, port_model};
use super::{Context, output, tcb};
use crate::error::LabError;
use crate::load::port_model_name;
use crate::map::{Cell, Map, MapSpec, SPEC, TWO_HASH, map};
use crate::size::Size;
use crate::table::{Table, signed_percent};

/// Arguments of `lab map`.
#[derive(Clone, Debug, Args)]
#[command(
    allow_negative_numbers = true,
    after_help = "Examples:
  lab map
  lab map --warm-up 20 --seeds 1,2,3                    (as research/policy-study.md has it)
  lab map --loads 4,8,16 --bursts 6 --schemes 2-universal,spec --seconds 30 --csv > map.csv
Everything here is synthetic: the standard workload, ON bursts and OFF pauses."
)]
pub struct MapArgs {
    /// Open sessions per cache line
    #[arg(long, value_name = "NUMBERS", value_delimiter = ',')]
    loads: Vec<f64>,
    /// Mean accesses per ON burst
    #[arg(long, value_name = "NUMBERS", value_delimiter = ',')]
    bursts: Vec<f64>,
    /// Port models: sequential (1995) or random (today)
    #[arg(long, value_name = "MODELS", value_delimiter = ',')]
    ports: Vec<String>,
    /// Number of seeds to average over
    #[arg(long, value_name = "NUMBERS", value_delimiter = ',')]
    seeds: Vec<u64>,
    /// Seconds of traffic per cell
    #[arg(long, value_name = "SECONDS")]
    seconds: Option<f64>,
    /// Seconds of warm-up before them, not counted
    #[arg(long, value_name = "SECONDS", default_value_t = 0.0)]
    warm_up: f64,
    /// Schemes to compare
    #[arg(long, value_name = "SCHEMES")]
    schemes: Vec<String>,
    /// Total size of the lines in bytes
    #[arg(long, value_name = "SIZE", default_value = "32K")]
    capacity: Size,
    /// Ways per set
    #[arg(long, value_name = "NUMBER", default_value_t = 4)]
    ways: u32,
    #[command(flatten)]
    threads: ThreadArgs,
    /// Print JSON
    #[arg(long, conflicts_with = "csv")]
    json: bool,
    /// Print CSV
    #[arg(long)]
    csv: bool,
}

impl MapArgs {
    fn spec(&self) -> Result<MapSpec, LabError> {
        let mut spec = MapSpec {
            capacity: self.capacity,
            ways: self.ways,
            ..MapSpec::default()
        };
        let given = |values: &[f64], usual: Vec<f64>| {
            if values.is_empty() {
                usual
            } else {
                values.to_vec()
            }
        };
        spec.loads = given(&self.loads, spec.loads);
        spec.bursts = given(&self.bursts, spec.bursts);
        if !self.seeds.is_empty() {
            spec.seeds.clone_from(&self.seeds);
        }
        if !self.schemes.is_empty() {
            spec.schemes = tcb::schemes(&self.schemes);
        }
        if !self.ports.is_empty() {
            let ports: Result<Vec<PortModel>, LabError> =
                self.ports.iter().map(|name| port_model(name)).collect();
            spec.ports = ports?;
        }
        if let Some(seconds) = self.seconds {
            if !(seconds > 0.0 && seconds.is_finite()) {
                let problem = "write seconds, more than 0";
                return Err(LabError::option("--seconds", seconds.to_string(), problem));
            }
            spec.standard.seconds = seconds;
        }
        if !(self.warm_up >= 0.0 && self.warm_up.is_finite()) {
            let problem = "write seconds, 0 or more";
            return Err(LabError::option(
                "--warm-up",
                self.warm_up.to_string(),
                problem,
            ));
        }
        spec.standard.warm_up_s = self.warm_up;
        Ok(spec)
    }
}

pub(super) fn run(args: &MapArgs, context: &Context<'_>) -> Result<(), LabError> {
    let map = map(args.spec()?, args.threads.threads, context.control)?;
    if args.json {
        output::print_json(&map)?;
    } else if args.csv {
        output::print(&table(&map, true).csv())?;
    } else {
        output::print(&text(&map))?;
    }
    if map.stopped {
        return Err(LabError::Stopped);
    }
    Ok(())
}

fn table(map: &Map, exact: bool) -> Table {
    let mut heads: Vec<String> = ["ports", "burst", "load", "sessions"]
        .map(str::to_owned)
        .to_vec();
    heads.extend(map.asked.schemes.iter().cloned());
    let gains = gains(map);
    heads.extend(["LRU full", "MIN"].map(str::to_owned));
    heads.extend(gains.iter().map(|(name, ..)| name.clone()));
    let mut table = Table::new(heads);
    for cell in &map.cells {
        let ratio = |value: f64| {
            if exact {
                value.to_string()
            } else {
                format!("{value:.3}")
            }
        };
        let mut row = vec![
            port_model_name(&cell.ports).to_owned(),
            cell.burst_mean.to_string(),
            cell.load.to_string(),
            cell.sessions.to_string(),
        ];
        row.extend(cell.miss_ratios.iter().map(|value| ratio(*value)));
        row.extend([ratio(cell.lru), ratio(cell.min)]);
        for (_, scheme, of) in &gains {
            let gain = match (value(map, cell, scheme), value(map, cell, of)) {
                (Some(scheme), Some(of)) => Cell::gain(scheme, of),
                _ => continue,
            };
            row.push(if exact {
                gain.to_string()
            } else {
                signed_percent(gain)
            });
        }
        table.row(row);
    }
    table
}

/// Column of gains over fully associative LRU.
const FULL_LRU: &str = "LRU full";

fn value(map: &Map, cell: &Cell, scheme: &str) -> Option<f64> {
    if scheme == FULL_LRU {
        Some(cell.lru)
    } else {
        map.ratio(cell, scheme)
    }
}

/// Comparisons: heading, scheme, baseline.
fn gains(map: &Map) -> Vec<(String, String, String)> {
    let has = |name: &str| map.asked.schemes.iter().any(|scheme| scheme == name);
    let mut subjects = vec![SPEC];
    subjects.extend(crate::schemes::own());
    let mut gains = Vec::new();
    for subject in subjects.into_iter().filter(|name| has(name)) {
        for of in [TWO_HASH, "2-lru", FULL_LRU] {
            if of == FULL_LRU || has(of) {
                let name = format!("saved by {subject} over {of}");
                gains.push((name, subject.to_owned(), of.to_owned()));
            }
        }
    }
    gains
}

fn text(map: &Map) -> String {
    let asked = &map.asked;
    let mut out = format!(
        "Synthetic: the standard workload, {} s per cell after {} s of warm-up, {} in lines of {}, \
         {} ways, {} seed(s)\n\n",
        asked.standard.seconds,
        asked.standard.warm_up_s,
        asked.capacity,
        asked.line,
        asked.ways,
        asked.seeds.len(),
    );
    out += &table(map, false).text(2);
    out.push('\n');
    for (name, scheme, of) in gains(map) {
        let cells = map.cells.iter().filter_map(|cell| {
            let gain = Cell::gain(value(map, cell, &scheme)?, value(map, cell, &of)?);
            Some((gain, cell))
        });
        let Some((worst, at)) = cells.clone().min_by(|a, b| a.0.total_cmp(&b.0)) else {
            continue;
        };
        let lost = cells.clone().filter(|(gain, _)| *gain < 0.0).count();
        let (best, top) = cells
            .max_by(|a, b| a.0.total_cmp(&b.0))
            .unwrap_or((worst, at));
        out += &format!(
            "{name}: from {} (load {}, burst {}, {}) to {} (load {}, burst {}, {}); it misses \
             more in {lost} of {} cells\n",
            signed_percent(worst),
            at.load,
            at.burst_mean,
            port_model_name(&at.ports),
            signed_percent(best),
            top.load,
            top.burst_mean,
            port_model_name(&top.ports),
            map.cells.len(),
        );
    }
    out += &best_of_text(map);
    out
}

/// Our scheme against the best of its rivals, cell by cell.
fn best_of_text(map: &Map) -> String {
    let Some(own) = crate::schemes::own() else {
        return String::new();
    };
    let gains = map.cells.iter().filter_map(|cell| {
        let rivals = [TWO_HASH, SPEC, FULL_LRU];
        let ratios = rivals.iter().filter_map(|name| value(map, cell, name));
        let best = ratios.fold(f64::INFINITY, f64::min);
        Some((Cell::gain(value(map, cell, own)?, best), cell))
    });
    let Some((worst, at)) = gains.clone().min_by(|a, b| a.0.total_cmp(&b.0)) else {
        return String::new();
    };
    let within = gains.filter(|(gain, _)| *gain >= -0.01).count();
    format!(
        "{own} against the best of {TWO_HASH}, {SPEC} and {FULL_LRU}: within 1 % or better in \
         {within} of {} cells; at worst {} (load {}, burst {}, {})\n",
        map.cells.len(),
        signed_percent(worst),
        at.load,
        at.burst_mean,
        port_model_name(&at.ports),
    )
}
