//! `lab cost`: converts miss ratios to time, and cache designs to gates and bits.

use clap::Args;
use serde::Serialize;

use super::arguments::{CostArgs, GeometryArgs};
use super::{Context, output, tcb};
use crate::cost::constants::Constants;
use crate::cost::cpu::{self, CpuTime};
use crate::cost::hardware::{Hardware, hardware};
use crate::cost::toe::{self, ToeTime};
use crate::error::LabError;
use crate::paper::published;
use crate::run::Configuration;
use crate::table::{Table, grouped, percent, signed_percent};

/// Arguments of `lab cost`.
#[derive(Clone, Debug, Args)]
#[command(
    allow_negative_numbers = true,
    after_help = "Examples:
  lab cost --miss-ratio 0.50,0.26
  lab cost --miss-ratio 0.50,0.26 --constant toe.memory_accesses=2
  lab cost --scheme spec,bits=16 --capacity 64K
The first miss ratio is what the others are held against. --show-constants writes all constants
as TOML, to be changed and given back with --constants."
)]
pub struct CostCommandArgs {
    /// Miss ratios, baseline first [default: NASA's of figure 12]
    #[arg(long, value_name = "SHARES", value_delimiter = ',')]
    miss_ratio: Vec<f64>,
    /// Schemes to estimate
    #[arg(long, value_name = "SCHEME", default_value = "spec,spec,bits=16")]
    scheme: Vec<String>,
    #[command(flatten)]
    geometry: GeometryArgs,
    #[command(flatten)]
    cost: CostArgs,
    /// Print the constants as TOML and exit
    #[arg(long)]
    show_constants: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Document {
    constants: Constants,
    times: Vec<Time>,
    hardware: Vec<Built>,
}

#[derive(Serialize)]
struct Time {
    miss_ratio: f64,
    toe: ToeTime,
    toe_saved_share: f64,
    cpu: CpuTime,
}

#[derive(Serialize)]
struct Built {
    scheme: String,
    hardware: Hardware,
}

pub(super) fn run(args: &CostCommandArgs, _context: &Context<'_>) -> Result<(), LabError> {
    let constants = args.cost.constants()?;
    if args.show_constants {
        let text = toml::to_string(&constants)
            .map_err(|error| LabError::Trace(format!("constants: {error}")))?;
        output::print(&text)?;
        return Ok(());
    }
    let mut ratios = args.miss_ratio.clone();
    if ratios.is_empty() {
        let nasa = published::FIGURE_12.iter().find(|row| row.trace == "NASA");
        ratios.extend(nasa.iter().flat_map(|row| row.miss_ratios));
    }
    if let Some(wrong) = ratios.iter().find(|ratio| !(0.0..=1.0).contains(*ratio)) {
        let problem = "write shares from 0 to 1";
        return Err(LabError::option("--miss-ratio", wrong.to_string(), problem));
    }
    let first = ratios.first().copied().unwrap_or(0.0);
    let times = ratios
        .iter()
        .map(|&miss_ratio| Time {
            miss_ratio,
            toe: toe::receive(&constants.toe, miss_ratio),
            toe_saved_share: toe::saved_share(&constants.toe, first, miss_ratio),
            cpu: cpu::request(&constants.cpu, miss_ratio),
        })
        .collect();
    let built: Result<Vec<Built>, LabError> = tcb::schemes(&args.scheme)
        .into_iter()
        .map(|scheme| {
            let configuration = Configuration::new(&args.geometry.run(&scheme, 1))?;
            let hardware = hardware(&constants, &configuration);
            Ok(Built { scheme, hardware })
        })
        .collect();
    let document = Document {
        constants,
        times,
        hardware: built?,
    };
    if args.json {
        return output::print_json(&document);
    }
    output::print(&text(&document))?;
    Ok(())
}

fn hardware_table(document: &Document) -> Table {
    let mut hardware = Table::new([
        "scheme",
        "lines",
        "bits",
        "tag bits/line",
        "policy bits/line",
        "a set",
        "besides",
        "hash functions",
        "gates",
        "gate delays",
        "ps",
    ]);
    for built in &document.hardware {
        let hash = built.hardware.hash.as_ref();
        let cell = |value: Option<String>| value.unwrap_or_else(|| "not counted".to_owned());
        hardware.row([
            built.scheme.clone(),
            grouped(built.hardware.lines),
            grouped(built.hardware.bits),
            built.hardware.tag_bits_a_line.to_string(),
            built.hardware.policy_bits_a_line.to_string(),
            built.hardware.policy_bits_a_set.to_string(),
            grouped(built.hardware.policy_bits_besides),
            cell(hash.map(|hash| hash.functions.to_string())),
            cell(hash.map(|hash| grouped(hash.gates))),
            cell(hash.map(|hash| hash.gate_delays.to_string())),
            cell(hash.map(|hash| format!("{:.0}", hash.delay_ps))),
        ]);
    }
    hardware
}

fn times_table(document: &Document) -> Table {
    let cpu = &document.constants.cpu;
    // A share of an unknown total cannot be computed.
    let shares = [
        (cpu.other_cycles.is_some(), "of a request"),
        (cpu.response_other_cycles.is_some(), "of a response"),
    ];
    let columns = [
        "miss ratio",
        "TOE ns",
        "of that TCB",
        "TOE saved",
        "CPU cycles for the TCB",
        "without TCB cache",
        "saved",
    ];
    let known = shares.iter().filter(|(is_known, _)| *is_known);
    let mut times = Table::new(columns.into_iter().chain(known.map(|(_, name)| *name)));
    for time in &document.times {
        let mut cells = vec![
            percent(time.miss_ratio),
            format!("{:.1}", time.toe.receive_ns),
            format!("{:.1}", time.toe.tcb_ns),
            signed_percent(time.toe_saved_share),
            format!("{:.0}", time.cpu.tcb_cache_cycles),
            format!("{:.0}", time.cpu.original_cycles),
            format!("{:.0}", time.cpu.saved_cycles),
        ];
        let shares = [time.cpu.receive_saved_share, time.cpu.response_saved_share];
        cells.extend(shares.into_iter().flatten().map(signed_percent));
        times.row(cells);
    }
    times
}

fn text(document: &Document) -> String {
    let constants = &document.constants;
    let mut out = format!(
        "Time of a packet: an offload engine ({} ns of protocol, {} ns for a hit, {} × {} ns for \
         a miss), a processor\n{}\n{}",
        constants.toe.protocol_ns,
        constants.toe.hit_ns,
        constants.toe.memory_accesses,
        constants.toe.memory_ns,
        times_table(document).text(2),
        hardware_table(document).text(2),
    );
    let [first, .., last] = document.times.as_slice() else {
        return out;
    };
    let needed = toe::accesses_for_saving(
        &constants.toe,
        first.miss_ratio,
        last.miss_ratio,
        published::TOE_SAVED,
    );
    if let Some(accesses) = needed {
        out += &format!(
            "\nThe published {} reduction of receive time in a TOE requires {accesses:.1} memory \
             accesses per miss.\n",
            percent(published::TOE_SAVED)
        );
    }
    for (share, what) in [
        (published::CPU_SAVED, "receiving a request"),
        (published::RESPONSE_SAVED, "a whole response"),
    ] {
        if let Some(whole) = cpu::whole_for_saving(&constants.cpu, last.miss_ratio, share) {
            out += &format!(
                "The published {} reduction of {what} on a processor holds if it takes {whole:.0} \
                 cycles.\n",
                percent(share)
            );
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(constants: Constants) -> String {
        let time = |miss_ratio| Time {
            miss_ratio,
            toe: toe::receive(&constants.toe, miss_ratio),
            toe_saved_share: toe::saved_share(&constants.toe, 0.5, miss_ratio),
            cpu: cpu::request(&constants.cpu, miss_ratio),
        };
        let configuration = Configuration::new(&crate::RunSpec::paper("2-universal")).unwrap();
        text(&Document {
            times: vec![time(0.5), time(0.26)],
            hardware: vec![Built {
                scheme: "2-universal".to_owned(),
                hardware: hardware(&constants, &configuration),
            }],
            constants,
        })
    }

    #[test]
    fn results_of_the_constants_are_in_the_text() {
        let usual = said(Constants::default());
        assert!(
            !usual.contains("of a request") && usual.contains("  70"),
            "{usual}"
        );
        let mut constants = Constants::default();
        constants.cpu.other_cycles = Some(3000.0);
        constants.gates.gate_ps = 20.0;
        let receive = cpu::request(&constants.cpu, 0.26)
            .receive_saved_share
            .unwrap();
        let told = said(constants);
        let shown = signed_percent(receive);
        assert!(
            told.contains("of a request") && told.contains(&shown),
            "{told}"
        );
        assert!(
            !told.contains("of a response") && told.contains("  140"),
            "{told}"
        );
        constants.cpu.response_other_cycles = Some(20_000.0);
        assert!(said(constants).contains("of a response"));
    }
}
