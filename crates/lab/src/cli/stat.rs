//! `lab stat`: characterizes a trace.

use clap::Args;

use super::arguments::StreamArgs;
use super::tcb::{heading, span};
use super::{Context, output};
use crate::error::LabError;
use crate::load::Loader;
use crate::stat::gaps::Gaps;
use crate::stat::{self, LogStat, StatSpec, Statistics, StreamStat};
use crate::table::{Table, grouped, percent};

/// Arguments of `lab stat`.
#[derive(Clone, Debug, Args)]
#[command(
    allow_negative_numbers = true,
    after_help = "Examples:
  lab stat nasa.log.zst
  lab stat nasa.log.zst --concurrency 4000 --json
  lab stat capture.pcap --on-gap 1
A log's own figures come first; those of the accesses that the expansion makes of it follow."
)]
pub struct StatArgs {
    #[command(flatten)]
    stream: StreamArgs,
    /// Longest gap within an ON burst, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = stat::gaps::ON_GAP_MAX_S)]
    on_gap: f64,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &StatArgs, context: &Context<'_>) -> Result<(), LabError> {
    if !(args.on_gap > 0.0 && args.on_gap.is_finite()) {
        let problem = "must be a number of seconds above 0";
        return Err(LabError::option(
            "--on-gap",
            args.on_gap.to_string(),
            problem,
        ));
    }
    let made = args.stream.spec()?;
    let mut loader = Loader::with_times();
    let stream = loader.stream(&made, context.control)?;
    for text in &stream.note.notes {
        context.note(&format!("note: {}: {text}", stream.note.trace));
    }
    let spec = StatSpec {
        on_gap_max_s: args.on_gap,
        session_timeout_s: made.expansion.session_timeout_s,
        ..StatSpec::seeded(made.seed)
    };
    let log = match &made.path {
        Some(path) if stream.note.expanded.is_some() => Some(stat::log(
            &*loader.log(path, &made, context.control)?,
            &spec,
        )),
        _ => None,
    };
    let statistics = Statistics {
        accesses: stat::accesses(&stream, &spec)?,
        stream: stream.note,
        log,
    };
    if args.json {
        return output::print_json(&statistics);
    }
    output::print(&text(&statistics))?;
    Ok(())
}

fn text(statistics: &Statistics) -> String {
    let mut out = String::new();
    if let Some(log) = &statistics.log {
        out += &log_text(&statistics.stream.trace, log);
        out.push('\n');
    }
    out += &heading(&statistics.stream);
    out += &stream_text(&statistics.accesses);
    out
}

fn log_text(name: &str, log: &LogStat) -> String {
    let totals = &log.totals;
    let mut table = Table::new(["the log", ""]);
    table.row(["requests", &grouped(totals.requests)]);
    let named = grouped(totals.named_clients);
    table.row([
        "clients",
        &format!("{} ({named} by name)", grouped(totals.clients)),
    ]);
    let sessions = format!(
        "{} (a silence of {} ends one), {:.1} requests each",
        grouped(totals.sessions),
        span(log.session_timeout_s),
        totals.requests as f64 / totals.sessions.max(1) as f64
    );
    table.row(["sessions", &sessions]);
    table.row(["objects", &grouped(totals.objects)]);
    table.row(["time", &span(totals.span_us as f64 / 1e6)]);
    table.row([
        "busiest second",
        &format!("{} requests", grouped(totals.peak_per_second)),
    ]);
    let bytes = grouped(totals.response_bytes);
    table.row([
        "bytes",
        &format!("{bytes} in {} responses", grouped(totals.sized)),
    ]);
    let top = percent(totals.top_client_share);
    table.row(["busiest client", &format!("{top} of requests")]);
    format!(
        "{name}\n{}{}",
        table.text(2),
        gaps_text(&log.gaps, "client, by port where there is one")
    )
}

fn stream_text(stream: &StreamStat) -> String {
    let mut table = Table::new(["accesses", ""]);
    let each = format!("{:.1}", stream.accesses_per_session);
    table.row(["accesses per session", &each]);
    let concurrency = &stream.concurrency;
    let peak = format!(
        "{} (at {}), {:.0} on average",
        grouped(concurrency.peak_open),
        span(concurrency.peak_open_at_s),
        concurrency.mean_open
    );
    table.row(["open sessions, maximum", &peak]);
    let on = format!(
        "{} (accessed within {} s)",
        grouped(concurrency.peak_on),
        concurrency.on_s
    );
    table.row(["ON sessions, maximum", &on]);
    let mut out = table.text(2);
    out += &gaps_text(&stream.gaps, "session");
    out += &bits_text(stream);
    let mut spread = Table::new(["scheme", "sets", "sessions per set", "mean |X−EX|", "most"]);
    for one in &stream.spread {
        spread.row([
            one.scheme.clone(),
            one.sets.to_string(),
            format!("{:.1}", one.expected),
            format!("{:.1}", one.mean_deviation),
            grouped(one.most),
        ]);
    }
    out + "\nSessions by set (figure 5)\n" + &spread.text(2)
}

fn gaps_text(gaps: &Gaps, whose: &str) -> String {
    let mut out = format!(
        "\nTime between accesses of a {whose} (figure 3): ON up to {} s\n  ON: {} gaps, mean \
         {:.2} s, {} within 1 s; {:.1} accesses a burst\n  OFF: {} gaps, mean {:.1} s \
         of those that begin and end within {}\n",
        gaps.on_gap_max_s,
        grouped(gaps.on.count),
        gaps.on.mean,
        percent(gaps.on_within_a_second),
        gaps.accesses_per_burst,
        grouped(gaps.off.count),
        gaps.off.mean,
        span(gaps.within_s),
    );
    for (name, histogram) in [("ON", &gaps.on), ("OFF", &gaps.off)] {
        let bars: Vec<String> = histogram
            .shares()
            .iter()
            .enumerate()
            .filter(|(bin, _)| histogram.counts[*bin] > 0)
            .map(|(bin, share)| format!("{} s: {}", histogram.name(bin), percent(*share)))
            .collect();
        if !bars.is_empty() {
            out += &format!("  {name} {}\n", bars.join(", "));
        }
    }
    out
}

fn bits_text(stream: &StreamStat) -> String {
    let bits = &stream.bits;
    let row = |values: &[f64]| {
        let cells: Vec<String> = values.iter().map(|value| format!("{value:.2}")).collect();
        cells
            .chunks(16)
            .map(|chunk| format!("    {}\n", chunk.join(" ")))
            .collect::<String>()
    };
    let mut out = format!(
        "\nAverage of each bit (figure 7; the first is the most significant), {} session \
         identifiers\n  address\n{}  port\n{}",
        grouped(bits.sessions),
        row(&bits.address),
        row(&bits.port)
    );
    if bits.v6 > 0 {
        out += &format!("  {} IPv6 identifiers omitted\n", grouped(bits.v6));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_observed_duration_of_pauses_is_shown() {
        let limits = stat::gaps::Limits {
            on_gap_max_s: 5.0,
            end_us: None,
            counted_from: 0,
        };
        let gaps = stat::gaps::measure(&[0, 0, 1], &[0, 7_000_000, 10_000_000], 2, limits);
        let said = gaps_text(&gaps, "session");
        let expected = format!(
            "mean 7.0 s of those that begin and end within {}\n",
            span(10.0)
        );
        assert!(said.contains(&expected), "{said}");
    }
}
