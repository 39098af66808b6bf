//! `lab advise`: recommends cache size and policy, with their cost.

use clap::Args;

use super::arguments::{CostArgs, StreamArgs, ThreadArgs};
use super::{Context, output, tcb};
use crate::advise::{Advice, AdviseSpec, Choice, advise};
use crate::cost::hardware::Hardware;
use crate::error::LabError;
use crate::load::Loader;
use crate::size::Size;
use crate::table::{Table, grouped, percent};

/// Arguments of `lab advise`.
#[derive(Clone, Debug, Args)]
#[command(
    allow_negative_numbers = true,
    after_help = "Examples:
  lab advise nasa.log.zst --concurrency 4000
  lab advise capture.pcap --capacities 16K,32K,64K --ways 4,8 --json
The advised cache is the one with the fewest bits whose miss ratio is within --tolerance of the
best of all that were tried."
)]
pub struct AdviseArgs {
    #[command(flatten)]
    stream: StreamArgs,
    /// Capacities to try [default: from 4K up to one line per session]
    #[arg(long, value_name = "SIZES", value_delimiter = ',')]
    capacities: Vec<Size>,
    /// Numbers of ways to try
    #[arg(
        long,
        value_name = "NUMBERS",
        value_delimiter = ',',
        default_value = "2,4,8"
    )]
    ways: Vec<u32>,
    /// Schemes to try, simplest first
    #[arg(long, value_name = "SCHEMES")]
    schemes: Vec<String>,
    /// Line size in bytes
    #[arg(long, value_name = "SIZE", default_value = "64")]
    line: Size,
    /// Tolerance: results within this share of the best count as equally good
    #[arg(long, value_name = "SHARE", default_value_t = 0.01)]
    tolerance: f64,
    #[command(flatten)]
    cost: CostArgs,
    #[command(flatten)]
    threads: ThreadArgs,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &AdviseArgs, context: &Context<'_>) -> Result<(), LabError> {
    if !(0.0..1.0).contains(&args.tolerance) {
        let problem = "write a share from 0 to below 1, such as 0.01 for 1 %";
        return Err(LabError::option(
            "--tolerance",
            args.tolerance.to_string(),
            problem,
        ));
    }
    let constants = args.cost.constants()?;
    let made = args.stream.spec()?;
    let mut spec = AdviseSpec {
        capacities: args.capacities.clone(),
        ways: args.ways.clone(),
        line: args.line,
        tolerance: args.tolerance,
        seed: made.seed,
        ..AdviseSpec::default()
    };
    if !args.schemes.is_empty() {
        spec.schemes = tcb::schemes(&args.schemes);
    }
    for scheme in &spec.schemes {
        crate::run::check(&crate::RunSpec::paper(scheme.clone()))?;
    }
    let stream = Loader::with_times().stream(&made, context.control)?;
    for text in &stream.note.notes {
        context.note(&format!("note: {}: {text}", stream.note.trace));
    }
    let advice = advise(
        &stream,
        &spec,
        &constants,
        args.threads.threads,
        context.control,
    )?;
    if args.json {
        return output::print_json(&advice);
    }
    output::print(&text(&advice))?;
    Ok(())
}

fn configuration(choice: &Choice) -> String {
    let run = &choice.run;
    format!("{}, {} ways, {}", run.capacity, run.ways, run.scheme)
}

fn text(advice: &Advice) -> String {
    let mut out = tcb::heading(&advice.stream);
    let (peak_open, peak_on) = advice.concurrency.map_or((0, 0), |concurrency| {
        (concurrency.peak_open, concurrency.peak_on)
    });
    out += &format!(
        "At most {} sessions are open at once; at most {} were accessed within one second.\n",
        grouped(peak_open),
        grouped(peak_on)
    );
    let advised = &advice.advised;
    out += &format!(
        "\nRecommended: {}; {} of packets miss.\n",
        configuration(advised),
        percent(advised.miss_ratio)
    );
    out += &format!(
        "This is within {} of the best tried ({}: {}); {} of packets are the first of their \
         session and miss in any cache.\n",
        percent(advice.asked.tolerance),
        configuration(&advice.best),
        percent(advice.best.miss_ratio),
        percent(advice.compulsory_miss_ratio)
    );
    out += &cost_text(advised);
    out += &steps_text(advice);
    if advice.stream.synthetic {
        out += "The trace is synthetic, not recorded traffic.\n";
    }
    out
}

fn steps_text(advice: &Advice) -> String {
    let advised = &advice.advised;
    let mut out = "\nEffect of more or less memory:\n".to_owned();
    let mut table = Table::new([
        "capacity",
        "best policy",
        "ways",
        "miss ratio",
        "conventional",
        "full LRU",
        "full MIN",
        "receive ns",
        "",
    ]);
    for step in &advice.steps {
        let best = &step.best;
        let mark = if best.run.capacity == advised.run.capacity {
            "<- recommended size"
        } else {
            ""
        };
        table.row([
            step.capacity.to_string(),
            best.run.scheme.clone(),
            best.run.ways.to_string(),
            percent(best.miss_ratio),
            step.conventional_miss_ratio
                .map(percent)
                .unwrap_or_default(),
            percent(step.lru_miss_ratio),
            percent(step.min_miss_ratio),
            format!("{:.1}", best.toe.receive_ns),
            mark.to_owned(),
        ]);
    }
    out += &table.text(2);
    out += "\"Conventional\" is modulo indexing with LRU, one bank of 4 ways. \"Full LRU\" \
            is a fully associative cache with\nLRU, \"full MIN\" one with Belady's MIN: no \
            policy that gives every newcomer a line misses less.\n\"Receive ns\" is the model of \
            an offload engine (`lab cost`).\n";
    out
}

/// Bits of an IPv4 session identifier.
const ALL_BITS: u32 = 48;

/// State of the policy outside its lines.
fn besides(hardware: &Hardware) -> String {
    let parts = [
        (hardware.policy_bits_a_set.into(), "a set"),
        (hardware.policy_bits_besides, "for the whole cache"),
    ];
    let said = parts.iter().filter(|(bits, _)| *bits > 0);
    said.map(|(bits, whose)| format!(", {} {whose}", grouped(*bits)))
        .collect()
}

fn cost_text(choice: &Choice) -> String {
    let hardware = &choice.hardware;
    let mut out = format!(
        "It costs {} bits: {} lines of {} payload bits, {} for tag and pointer, {} for the \
         policy{}.\n",
        grouped(hardware.bits),
        grouped(hardware.lines),
        hardware.payload_bits / hardware.lines.max(1),
        hardware.tag_bits_a_line,
        hardware.policy_bits_a_line,
        besides(hardware),
    );
    if let Some(hash) = &hardware.hash {
        out += &format!(
            "Its {} hash functions of {} bits take {} gates and {} gate delays ({} ps)",
            hash.functions,
            hash.input_bits,
            grouped(hash.gates),
            hash.gate_delays,
            hash.delay_ps,
        );
        if hash.input_bits == ALL_BITS {
            let scheme = &choice.run.scheme;
            out += &format!("; with --schemes {scheme},bits=16 they take a third");
        }
        out += ".\n";
    }
    out
}
