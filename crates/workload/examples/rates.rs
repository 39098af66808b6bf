//! How fast workloads are made: `cargo run --release -p fairlead-workload --example rates -- LOG`
//! expands a log to several loads; `… -- zipf IDS COUNT FILE` writes Zipf accesses as
//! `oracleGeneral`, and beside it (`FILE.lab`) as the laboratory's own file.

use std::fs::File;
use std::process::ExitCode;

use fairlead_trace::format::{lab, oracle_general};
use fairlead_trace::{ReadOptions, open, read_requests};
use fairlead_workload::{Expansion, Prepared, Standard, standard, zipf};

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let done = match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["zipf", ids, count, file] => write(ids, count, file),
        [log] => rates(log),
        _ => Err("rates LOG, or rates zipf IDS COUNT FILE".into()),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(complaint) => {
            eprintln!("{complaint}");
            ExitCode::FAILURE
        }
    }
}

type Outcome = Result<(), Box<dyn std::error::Error>>;

fn write(ids: &str, count: &str, file: &str) -> Outcome {
    let (accesses, seconds) = timed(|| zipf(ids.parse()?, 1.0, count.parse()?, 1).map_err(boxed));
    let accesses = accesses?;
    println!(
        "zipf: {:.1} M accesses/s",
        accesses.len() as f64 / seconds / 1e6
    );
    oracle_general::write(&accesses, 0, File::create(file)?)?;
    lab::write(&accesses, File::create(format!("{file}.lab"))?)?;
    Ok(())
}

fn rates(log: &str) -> Outcome {
    let source = open(log, File::open(log)?)?;
    let (requests, _) = read_requests(source, ReadOptions::default())?;
    let expansion = Expansion::default();
    let (prepared, seconds) = timed(|| Prepared::new(&requests, &expansion, 1));
    let prepared = prepared?;
    let rate = requests.len() as f64 / seconds / 1e6;
    println!(
        "prepare: {} sessions, {rate:.1} M requests/s",
        prepared.sessions()
    );
    for load in [
        None,
        Some(500.0),
        Some(2_000.0),
        Some(4_000.0),
        Some(8_000.0),
    ] {
        let (expanded, seconds) = timed(|| prepared.load(load));
        let expanded = expanded?;
        println!(
            "{load:?}: {} accesses and {} of warm-up, {:.0} s, mean {:.1} and at most {} open, \
             {:.1} M accesses/s",
            expanded.rows,
            expanded.warm_up_rows,
            expanded.measured_us as f64 / 1e6,
            expanded.concurrency_mean,
            expanded.concurrency_peak,
            expanded.accesses.len() as f64 / seconds / 1e6,
        );
    }
    let (accesses, seconds) = timed(|| standard(&Standard::default(), 1));
    let count = accesses?.len() as f64;
    println!(
        "standard: {count} accesses, {:.1} M accesses/s",
        count / seconds / 1e6
    );
    Ok(())
}

fn boxed(error: impl std::error::Error + 'static) -> Box<dyn std::error::Error> {
    Box::new(error)
}

/// Seconds that this thread has run, of a machine that others use as well.
fn thread_seconds() -> f64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let ran_ns: Option<f64> = text
        .split_whitespace()
        .next()
        .and_then(|word| word.parse().ok());
    ran_ns.unwrap_or(0.0) / 1e9
}

fn timed<T>(work: impl FnOnce() -> T) -> (T, f64) {
    let started = thread_seconds();
    let done = work();
    (done, thread_seconds() - started)
}
