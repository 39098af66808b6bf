//! `lab tcb`: simulates one cache on one trace.

use clap::Args;
use serde::Serialize;

use super::arguments::{GeometryArgs, StreamArgs, ThreadArgs};
use super::{Context, output};
use crate::bounds::Wanted;
use crate::error::LabError;
use crate::load::{Loader, Provenance, Stream};
use crate::run::{Configuration, run_many};
use crate::spec::{RunResult, RunSpec};
use crate::table::{Table, grouped, percent};

/// Arguments of `lab tcb`.
#[derive(Clone, Debug, Args)]
#[command(
    allow_negative_numbers = true,
    after_help = "Examples:
  lab tcb nasa.log.zst --scheme spec --capacity 32K --ways 4 --concurrency 4000 --seed 1 --json
  lab tcb capture.pcap --scheme mod,2-universal,spec
  lab tcb rows.csv --as accesses --scheme spec          (header: time_us,ip,port)
  lab tcb standard:4000 --scheme spec,on_ticks=8        (synthetic)
`lab schemes` lists schemes and what can be set about them."
)]
pub struct TcbArgs {
    #[command(flatten)]
    stream: StreamArgs,
    /// Schemes, with optional settings (`spec,index=crc`); separate several by commas or repeat the
    /// option
    #[arg(long, value_name = "SCHEME", default_value = "spec")]
    scheme: Vec<String>,
    #[command(flatten)]
    geometry: GeometryArgs,
    /// Omit the bounds, which is several times faster. Bounds are misses over the same accesses
    /// with the same number of lines: compulsory misses; `lru`, fully associative; `min`, Belady's
    /// for caches that give every newcomer a line (a policy that bypasses may miss less); `set_min`
    /// or `greedy` within the sets of schemes that do not move lines
    #[arg(long, overrides_with = "bounds")]
    no_bounds: bool,
    /// Compute the bounds (the default)
    #[arg(long, overrides_with = "no_bounds")]
    bounds: bool,
    #[command(flatten)]
    threads: ThreadArgs,
    /// Print JSON: an object for one scheme, a list for several
    #[arg(long)]
    json: bool,
}

/// One run, for programs.
#[derive(Serialize)]
struct Document<'a> {
    scheme: &'a str,
    resolved: String,
    capacity: u64,
    line: u64,
    /// Former name of `capacity`.
    capacity_bytes: u64,
    /// Former name of `line`.
    line_bytes: u64,
    lines: u32,
    banks: u32,
    sets: u32,
    ways: u32,
    index_bits: String,
    on_ticks: u32,
    tick_ms: u32,
    seed: u64,
    #[serde(flatten)]
    result: &'a RunResult,
    stream: &'a Provenance,
    version: &'static str,
}

impl<'a> Document<'a> {
    fn new(run: &'a RunSpec, result: &'a RunResult, stream: &'a Stream) -> Result<Self, LabError> {
        let Configuration {
            scheme, geometry, ..
        } = Configuration::new(run)?;
        Ok(Self {
            scheme: &run.scheme,
            resolved: scheme.to_string(),
            capacity: geometry.capacity_bytes(),
            line: geometry.line_bytes().into(),
            capacity_bytes: geometry.capacity_bytes(),
            line_bytes: geometry.line_bytes().into(),
            lines: geometry.lines(),
            banks: geometry.banks(),
            sets: geometry.sets(),
            ways: geometry.ways(),
            index_bits: scheme.mask.to_string(),
            on_ticks: scheme.parameters.lifetime.on_ticks(),
            tick_ms: stream.note.made.tick_ms,
            seed: run.seed,
            result,
            stream: &stream.note,
            version: crate::sweep::VERSION,
        })
    }
}

/// Splits `mod,spec,index=crc` into schemes: a part with `=` is a setting of the preceding scheme.
pub(super) fn schemes(given: &[String]) -> Vec<String> {
    let mut schemes: Vec<String> = Vec::new();
    for list in given {
        let mut inside = false;
        for part in list.split(',').map(str::trim) {
            match schemes.last_mut() {
                Some(scheme) if inside && part.contains('=') => {
                    scheme.push(',');
                    scheme.push_str(part);
                }
                _ => schemes.push(part.to_owned()),
            }
            inside = true;
        }
    }
    schemes
}

pub(super) fn run(args: &TcbArgs, context: &Context<'_>) -> Result<(), LabError> {
    let seed = args.stream.made.seed;
    let runs: Vec<RunSpec> = schemes(&args.scheme)
        .iter()
        .map(|scheme| args.geometry.run(scheme, seed))
        .collect();
    // Errors in the options are reported before a trace is read.
    for run in &runs {
        crate::run::check(run)?;
    }
    let made = args.stream.spec()?;
    let stream = Loader::default().stream(&made, context.control)?;
    for text in &stream.note.notes {
        context.note(&format!("note: {}: {text}", stream.note.trace));
    }
    let wanted = if args.no_bounds {
        Wanted::Nothing
    } else {
        Wanted::All
    };
    let results = run_many(
        &stream,
        &runs,
        wanted,
        args.threads.threads,
        context.control,
    )?;
    if !args.json {
        output::print(&text(&runs, &results, &stream)?)?;
        return Ok(());
    }
    let documents = runs
        .iter()
        .zip(&results)
        .map(|(run, result)| Document::new(run, result, &stream))
        .collect::<Result<Vec<_>, _>>()?;
    match documents.as_slice() {
        [one] => output::print_json(one),
        several => output::print_json(&several),
    }
}

fn text(runs: &[RunSpec], results: &[RunResult], stream: &Stream) -> Result<String, LabError> {
    let note = &stream.note;
    let mut out = heading(note);
    let mut table = Table::new([
        "scheme",
        "misses",
        "miss ratio",
        "cold",
        "migrations",
        "second hits",
        "bypasses",
        "ON evicted",
    ]);
    for (run, result) in runs.iter().zip(results) {
        let mut counts = vec![
            Configuration::new(run)?.scheme.to_string(),
            grouped(result.misses),
            percent(result.miss_ratio),
        ];
        counts.extend(
            [
                result.cold_misses,
                result.migrations,
                result.second_lookup_hits,
                result.bypasses,
                result.evicted_on,
            ]
            .map(grouped),
        );
        table.row(counts);
    }
    if let Some(run) = runs.first() {
        out += &format!(
            "{} in lines of {}, {} ways, seed {}\n",
            run.capacity, run.line, run.ways, run.seed
        );
    }
    out.push('\n');
    out += &table.text(2);
    if let Some((result, bounds)) = results
        .first()
        .and_then(|result| Some((result, result.bounds.as_ref()?)))
    {
        let mut table = Table::new(["bound", "misses", "miss ratio"]);
        let mut add = |name: &str, misses: u64| {
            let ratio = crate::stat::share(misses, result.accesses);
            table.row([name.to_owned(), grouped(misses), percent(ratio)]);
        };
        add("compulsory", bounds.compulsory);
        add("LRU, fully associative", bounds.lru);
        add("MIN, fully associative", bounds.min);
        for (run, result) in runs.iter().zip(results) {
            let bounds = result.bounds.clone().unwrap_or_default();
            if let Some(misses) = bounds.set_min {
                add(&format!("MIN in the sets of {}", run.scheme), misses);
            }
            if let Some(misses) = bounds.greedy {
                add(
                    &format!("greedy-furthest in the sets of {}", run.scheme),
                    misses,
                );
            }
        }
        out.push('\n');
        out += &table.text(2);
    }
    Ok(out)
}

/// Describes a stream in one or two lines.
pub(super) fn heading(note: &Provenance) -> String {
    // Ports are reused, and sessions with the same port share an identifier.
    let shared = note.expanded.as_ref().map_or(0, |it| it.shared_identifiers);
    let identifiers = if shared > 0 {
        format!(" with {} identifiers", grouped(note.sessions))
    } else {
        String::new()
    };
    let mut out = format!(
        "{}: {} accesses of {} sessions{identifiers} in {}",
        note.trace,
        grouped(note.accesses),
        grouped(note.sessions + shared),
        span(note.span_s),
    );
    if note.warm_up > 0 {
        out += &format!("; the first {} are warm-up", grouped(note.warm_up));
    }
    out.push('\n');
    out
}

/// A readable duration.
pub(super) fn span(seconds: f64) -> String {
    match seconds {
        s if s >= 2.0 * 86_400.0 => format!("{:.1} days", s / 86_400.0),
        s if s >= 7_200.0 => format!("{:.1} hours", s / 3_600.0),
        s if s >= 120.0 => format!("{:.1} minutes", s / 60.0),
        s => format!("{s:.1} s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn schemes_are_separated_from_their_settings() {
        let given = [
            "mod,spec,index=crc,bits=16".to_owned(),
            "universal".to_owned(),
        ];
        assert_eq!(
            schemes(&given),
            ["mod", "spec,index=crc,bits=16", "universal"]
        );
        assert_eq!(schemes(&["".to_owned()]), [""]);
        assert_eq!(schemes(&["index=crc".to_owned()]), ["index=crc"]);
    }
}
