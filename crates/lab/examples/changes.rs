//! What research/policy-study.md says of changes of the workload, of closing hints, and of as many
//! sessions as lines: `cargo run --release -p fairlead-lab --example changes`, with a number behind
//! it for more windows after a change than sixteen.
//!
//! Everything is simulated and seeded, so the output is the same everywhere.

use fairlead_cache::bounds::{self, placeable};
use fairlead_cache::{Geometry, Scheme, Simulate, build, build_lookup};
use fairlead_trace::{Accesses, HINT_CLOSING};
use fairlead_workload::{Standard, standard};

/// A quarter of a second.
const TICK_US: u64 = 250_000;
/// The paper's cache.
const CAPACITY_BYTES: u64 = 32 << 10;
const LINES: u32 = 512;
/// Accesses of a window: the order of `tide` is made anew twice in it.
const WINDOW: usize = 4_096;
const SEEDS: u64 = 10;

type Failure = Box<dyn std::error::Error>;

fn main() -> Result<(), Failure> {
    let windows = match std::env::args().nth(1) {
        Some(number) => number.parse()?,
        None => 16,
    };
    as_many_as_lines()?;
    changes(windows)?;
    hints()
}

/// Where each window of a stream begins and ends, from `from` on.
fn bounds_of(
    stream: &Accesses,
    from: usize,
    windows: usize,
) -> impl Iterator<Item = (usize, usize)> + use<> {
    let end = stream.len();
    let begins = (from..end).step_by(WINDOW).take(windows);
    begins.map(move |at| (at, (at + WINDOW).min(end)))
}

fn cache_of(name: &str, seed: u64) -> Result<(Scheme, Geometry, Box<dyn Simulate>), Failure> {
    let scheme = Scheme::parse(name)?;
    let geometry = scheme.geometry(CAPACITY_BYTES, 64, 4)?;
    let cache = build(&scheme, &geometry, seed)?;
    Ok((scheme, geometry, cache))
}

/// As many sessions as lines: how many can have a line, and what is missed in the last minute.
fn as_many_as_lines() -> Result<(), Failure> {
    println!("{LINES} sessions: left without a line (two sets, four sets), misses after 120 s");
    println!("seed,left2,left4,accesses,full_lru,enru,lru8,spec,tide");
    for seed in 1..=SEEDS {
        let made = Standard {
            sessions: LINES,
            seconds: 180.0,
            ..Standard::default()
        };
        let stream = standard(&made, seed)?;
        let ticks = stream.ticks(TICK_US);
        let from = stream.time_us.partition_point(|time| *time < 120_000_000);
        let mut row = seed.to_string();
        for (at, name) in ["2-universal", "2-lru", "spec", "tide"].iter().enumerate() {
            let (scheme, geometry, mut cache) = cache_of(name, seed)?;
            let places = scheme.indexer(&geometry, seed)?.places(&stream.keys);
            if at == 0 {
                let left = |second| LINES as usize - placeable(&places, geometry.ways(), second);
                let counted = bounds::Stream::new(&stream.id, stream.keys.len(), from)?;
                let lru = bounds::lru(&counted, LINES);
                let count = stream.len() - from;
                row += &format!(",{},{},{count},{lru}", left(false), left(true));
            }
            cache.run(&stream.id[..from], &ticks[..from], &[], &places)?;
            cache.reset_statistics();
            cache.run(&stream.id[from..], &ticks[from..], &[], &places)?;
            row += &format!(",{}", cache.statistics().misses);
        }
        println!("{row}");
    }
    Ok(())
}

/// One stream after another, with other sessions.
fn joined(before: &Accesses, after: &Accesses) -> (Accesses, usize) {
    let begins = before.time_us.last().copied().unwrap_or(0) + 1;
    let known = before.keys.len() as u32;
    let mut both = before.clone();
    let times = after.time_us.iter().map(|time| begins + time);
    both.time_us.extend(times);
    both.id.extend(after.id.iter().map(|id| known + id));
    both.keys.extend(&after.keys);
    (both, before.len())
}

/// Misses in each window from `from` on.
fn by_window(
    name: &str,
    seed: u64,
    stream: &Accesses,
    from: usize,
    windows: usize,
) -> Result<Vec<u64>, Failure> {
    let (scheme, geometry, mut cache) = cache_of(name, seed)?;
    let places = scheme.indexer(&geometry, seed)?.places(&stream.keys);
    let ticks = stream.ticks(TICK_US);
    cache.run(&stream.id[..from], &ticks[..from], &[], &places)?;
    let mut misses = Vec::new();
    for (at, to) in bounds_of(stream, from, windows) {
        cache.reset_statistics();
        cache.run(&stream.id[at..to], &ticks[at..to], &[], &places)?;
        misses.push(cache.statistics().misses);
    }
    Ok(misses)
}

fn lru_by_window(stream: &Accesses, from: usize, windows: usize) -> Result<Vec<u64>, Failure> {
    let mut before = 0;
    let mut misses = Vec::new();
    for (_, to) in bounds_of(stream, from, windows) {
        let part = bounds::Stream::new(&stream.id[..to], stream.keys.len(), from)?;
        let sum = bounds::lru(&part, LINES);
        misses.push(sum - before);
        before = sum;
    }
    Ok(misses)
}

/// From what to what.
fn cases() -> Vec<(&'static str, Standard, Standard)> {
    let with = |sessions, burst_mean| Standard {
        sessions,
        burst_mean,
        seconds: 240.0,
        ..Standard::default()
    };
    // Rounds: pauses of two seconds and little more, no bursts; the least recent comes next.
    let rounds = Standard {
        off_floor_s: 2.0,
        off_median_s: 0.01,
        off_sigma: 0.1,
        seconds: 480.0,
        ..with(1_024, 1.0)
    };
    vec![
        ("same to same", with(2_048, 6.0), with(2_048, 6.0)),
        ("bursts 6 to 40", with(2_048, 6.0), with(2_048, 40.0)),
        ("bursts 40 to 6", with(2_048, 40.0), with(2_048, 6.0)),
        ("1024 to 8192", with(1_024, 6.0), with(8_192, 6.0)),
        ("8192 to 1024", with(8_192, 6.0), with(1_024, 6.0)),
        ("rounds to bursts", rounds.clone(), with(2_048, 6.0)),
        ("bursts to rounds", with(2_048, 6.0), rounds),
    ]
}

/// From one workload to another, at once: all sessions are new.
fn changes(windows: usize) -> Result<(), Failure> {
    println!("\nmisses by window of {WINDOW} accesses after a change, sums of {SEEDS} seeds");
    for (name, before, after) in cases() {
        let kinds = ["full LRU", "2-universal", "spec", "tide", "tide, learned"];
        let mut sums = kinds.map(|kind| (kind, vec![0u64; windows]));
        for seed in 1..=SEEDS {
            let after = standard(&after, 100 + seed)?;
            let (stream, from) = joined(&standard(&before, seed)?, &after);
            // The same accesses, for one that has seen much of their kind before.
            let mut kin = after.clone();
            kin.keys.iter_mut().for_each(|key| key.port ^= 0x8000);
            let (known, known_from) = joined(&kin, &after);
            for (kind, sum) in &mut sums {
                let misses = match *kind {
                    "full LRU" => lru_by_window(&stream, from, windows)?,
                    "tide, learned" => by_window("tide", seed, &known, known_from, windows)?,
                    scheme => by_window(scheme, seed, &stream, from, windows)?,
                };
                for (sum, more) in sum.iter_mut().zip(misses) {
                    *sum += more;
                }
            }
        }
        for (kind, sum) in sums {
            let cells: Vec<String> = sum.iter().map(u64::to_string).collect();
            println!("{name},{kind},{}", cells.join(","));
        }
    }
    Ok(())
}

/// Misses, with lines freed at a FIN by the policy itself or by whoever owns the cache.
fn hinted(
    name: &str,
    seed: u64,
    stream: &Accesses,
    from: usize,
    free: bool,
) -> Result<u64, Failure> {
    let scheme = Scheme::parse(name)?;
    let geometry = scheme.geometry(CAPACITY_BYTES, 64, 4)?;
    let places = scheme.indexer(&geometry, seed)?.places(&stream.keys);
    let ticks = stream.ticks(TICK_US);
    let mut cache = build_lookup::<u32>(&scheme, &geometry, seed)?;
    let mut misses = 0;
    for (at, id) in stream.id.iter().enumerate() {
        let place = places.at(*id as usize).ok_or("a session without a place")?;
        let hint = if free { stream.hint[at] } else { 0 };
        if cache.lookup(*id, &place, ticks[at], hint).is_none() {
            misses += u64::from(at >= from);
            cache.fill(*id, &place, ticks[at], hint);
        }
        if hint == HINT_CLOSING && name != "tide" {
            cache.remove(*id, &place);
        }
    }
    Ok(misses)
}

fn hints() -> Result<(), Failure> {
    println!("\nclosing hints: misses without and with, sums of 3 seeds");
    println!(
        "places,bursts,accesses,compulsory,full_lru,enru,enru_fin,lru8,lru8_fin,spec,spec_fin,\
         tide,tide_fin"
    );
    for sessions in [768, 1_024, 2_048, 4_096] {
        for bursts_per_session in [1.0, 3.0, 10.0] {
            let mut sums = [0u64; 11];
            for seed in 1..=3 {
                let made = Standard {
                    sessions,
                    bursts_per_session,
                    warm_up_s: 20.0,
                    ..Standard::default()
                };
                let stream = standard(&made, seed)?;
                let from = stream.time_us.partition_point(|time| *time < 20_000_000);
                let counted = bounds::Stream::new(&stream.id, stream.keys.len(), from)?;
                let mut row = vec![(stream.len() - from) as u64];
                row.push(bounds::compulsory(&counted));
                row.push(bounds::lru(&counted, LINES));
                for name in ["2-universal", "2-lru", "spec", "tide"] {
                    row.push(hinted(name, seed, &stream, from, false)?);
                    row.push(hinted(name, seed, &stream, from, true)?);
                }
                for (sum, more) in sums.iter_mut().zip(row) {
                    *sum += more;
                }
            }
            let cells = sums.map(|sum| sum.to_string()).join(",");
            println!("{sessions},{bursts_per_session},{cells}");
        }
    }
    Ok(())
}
