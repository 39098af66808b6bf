//! Reads a trace and says how fast: `cargo run --release -p fairlead-trace --example read -- FILE`.
//! The file is unpacked into memory first, so that decoding alone is measured, in time of the
//! processor; `--packed` leaves unpacking in. `--format NAME` overrules what the content says.

use std::io::{Cursor, Read};
use std::process::ExitCode;

use fairlead_trace::{Format, Packets, ReadOptions, Report, open, read_accesses, read_requests};

/// Number of repetitions; the best counts.
const ROUNDS: usize = 5;

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(complaint) => {
            eprintln!("{complaint}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), String> {
    let (mut files, mut packed, mut format) = (Vec::new(), false, None);
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--packed" => packed = true,
            "--format" => format = Some(arguments.next().ok_or("--format NAME")?.parse()?),
            _ => files.push(argument),
        }
    }
    if files.is_empty() {
        return Err("which file? read [--packed] [--format NAME] FILE …".to_owned());
    }
    for file in files {
        measure(&file, packed, format.clone())?;
    }
    Ok(())
}

fn measure(file: &str, packed: bool, format: Option<Format>) -> Result<(), String> {
    let said = |error: &dyn std::fmt::Display| error.to_string();
    let mut bytes = std::fs::read(file).map_err(|error| format!("{file}: {error}"))?;
    if !packed {
        let mut plain = Vec::new();
        let mut source = open(file, Cursor::new(bytes)).map_err(|error| said(&error))?;
        source
            .read_to_end(&mut plain)
            .map_err(|error| format!("{file}: {error}"))?;
        bytes = plain;
    }
    let mut best = f64::INFINITY;
    let mut last = None;
    for _ in 0..ROUNDS {
        let source = open(file, Cursor::new(bytes.clone())).map_err(|error| said(&error))?;
        let (report, seconds) = timed(source, format.clone()).map_err(|error| said(&error))?;
        best = best.min(seconds);
        last = Some(report);
    }
    let report = last.ok_or("nothing was read")?;
    let (rows, lines) = (report.rows as f64, report.seen() as f64);
    println!(
        "{file}: {} rows as {} ({} bad, {} back in time), {:.2} M rows/s, {:.0} MB/s",
        rows,
        report.format,
        report.bad_rows(),
        report.stepped_back,
        lines / best / 1e6,
        bytes.len() as f64 / best / 1e6,
    );
    for (reason, count) in &report.bad {
        println!("  {count} × {reason}");
    }
    Ok(())
}

/// Seconds that this thread has run: unlike the time on the wall it does not count what other
/// programs take of a shared machine. Zero where the system does not say.
fn thread_seconds() -> f64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let ran_ns: Option<f64> = text
        .split_whitespace()
        .next()
        .and_then(|word| word.parse().ok());
    ran_ns.unwrap_or(0.0) / 1e9
}

fn timed(
    source: fairlead_trace::Source,
    format: Option<Format>,
) -> Result<(Report, f64), fairlead_trace::TraceError> {
    let options = ReadOptions {
        format,
        packets: Packets::Both,
        ..ReadOptions::default()
    };
    let accesses = match &options.format {
        Some(format) => format.holds_accesses(),
        None => source.detect()?.holds_accesses(),
    };
    let started = thread_seconds();
    let report = if accesses {
        read_accesses(source, options)?.1
    } else {
        read_requests(source, options)?.1
    };
    Ok((report, thread_seconds() - started))
}
