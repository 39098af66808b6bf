//! Simulates 35 LRU caches over a trace of references and says how fast, decoding included:
//! `cargo run --release -p fairlead-lab --example references -- T.refs`. Sizes 4 KiB to 256 KiB,
//! 1 to 16 ways, lines of 64 bytes, warm; instructions and data each in a run of its own, on one
//! thread, in time of the processor.

use std::fs::File;
use std::io::Cursor;
use std::process::ExitCode;

use fairlead_cache::memory::{Depths, FamilySet, Feed, TooScattered};
use fairlead_trace::references::{Event, Reader};

/// Number of repetitions; the median counts.
const ROUNDS: usize = 7;
const LINE: u32 = 64;
const SIZES: [u32; 7] = [4, 8, 16, 32, 64, 128, 256];
const WAYS: [u32; 5] = [1, 2, 4, 8, 16];

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

fn main() -> ExitCode {
    let Some(path) = std::env::args().nth(1) else {
        eprintln!("which trace? references T.refs");
        return ExitCode::FAILURE;
    };
    match measure(&path) {
        Ok(()) => ExitCode::SUCCESS,
        Err(complaint) => {
            eprintln!("{complaint}");
            ExitCode::FAILURE
        }
    }
}

/// Seconds that this thread has run: unlike the time on the wall it does not count what other
/// programs take of a shared machine.
fn thread_seconds() -> f64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let ran_ns: Option<f64> = text
        .split_whitespace()
        .next()
        .and_then(|word| word.parse().ok());
    ran_ns.unwrap_or(0.0) / 1e9
}

fn measure(path: &str) -> Result<()> {
    let bytes = std::fs::read(path)?;
    let totals = Reader::new(path, File::open(path)?)?.header().totals;
    println!("{path}: {} bytes, {totals:?}", bytes.len());
    for (name, push) in [("instruction", fetch as Push), ("data", access as Push)] {
        let mut seconds = Vec::new();
        let mut references = 0;
        for _ in 0..ROUNDS {
            let started = thread_seconds();
            references = run(path, &bytes, push)?;
            seconds.push(thread_seconds() - started);
        }
        seconds.sort_by(f64::total_cmp);
        let rate = |seconds: f64| references as f64 / seconds / 1e6;
        println!(
            "{name}: {references} references, 35 caches: {:.0} M references/s (median of \
             {ROUNDS}; {:.0} to {:.0})",
            rate(seconds[ROUNDS / 2]),
            rate(seconds[ROUNDS - 1]),
            rate(seconds[0])
        );
    }
    Ok(())
}

type Push = fn(&mut Feed, &Event) -> std::result::Result<(), TooScattered>;

fn fetch(feed: &mut Feed, event: &Event) -> std::result::Result<(), TooScattered> {
    match *event {
        Event::Instruction {
            address, length, ..
        } => feed.push(address, u32::from(length)),
        _ => Ok(()),
    }
}

fn access(feed: &mut Feed, event: &Event) -> std::result::Result<(), TooScattered> {
    match *event {
        Event::Read { address, size } | Event::Write { address, size } => {
            feed.push(address, u32::from(size))
        }
        _ => Ok(()),
    }
}

fn run(path: &str, bytes: &[u8], push: Push) -> Result<u64> {
    let mut sets: Vec<u32> = SIZES
        .iter()
        .flat_map(|size| WAYS.map(|ways| (size << 10) / LINE / ways))
        .collect();
    sets.sort_unstable();
    sets.dedup();
    let mut families = FamilySet::new(LINE, &sets)?;
    let mut depths = vec![Depths::default(); sets.len()];
    let mut reader = Reader::new(path, Cursor::new(bytes))?;
    let mut events = Vec::new();
    let mut references = 0;
    while reader.next_chunk(&mut events)? {
        for event in &events {
            push(families.feed(), event)?;
        }
        references += families.run(&mut depths);
    }
    std::hint::black_box(&depths);
    Ok(references)
}
