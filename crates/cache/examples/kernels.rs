//! Accesses a second (of processor time) of every scheme, on one thread:
//! `cargo run --release -p fairlead-cache --example kernels [-- accesses [scheme…]]`.
//!
//! The stream is Zipf 1.0 over a million sessions; the caches have 512 lines, in as many banks as
//! the scheme has, of 4 ways. Ticks come every 25 accesses, so that about half the lines are ON.
#![allow(clippy::disallowed_methods, clippy::disallowed_types)]

use std::time::Instant;

use fairlead_base::{Address, Endpoint, Rng};
use fairlead_cache::{Member, Scheme, Simulate, build, run_all};

const SESSIONS: u32 = 1_000_000;
const SEED: u64 = 7;
const ACCESSES_A_TICK: usize = 25;
const REPEATS: usize = 3;

/// Zipf with exponent 1, by the inverse of its distribution.
fn zipf(count: usize) -> Vec<u32> {
    let mut rng = Rng::new(SEED);
    let mut sum = 0.0;
    let shares: Vec<f64> = (1..=SESSIONS)
        .map(|rank| {
            sum += 1.0 / f64::from(rank);
            sum
        })
        .collect();
    // Ranks are spread over the numbers, or the hottest would be neighbours.
    let mut numbers: Vec<u32> = (0..SESSIONS).collect();
    for at in (1..numbers.len()).rev() {
        numbers.swap(at, rng.below(at as u32 + 1) as usize);
    }
    (0..count)
        .map(|_| {
            let drawn = (rng.next_u64() >> 11) as f64 / (1u64 << 53) as f64 * sum;
            let rank = shares.partition_point(|share| *share < drawn);
            numbers[rank.min(numbers.len() - 1)]
        })
        .collect()
}

fn keys() -> Vec<Endpoint> {
    let mut rng = Rng::new(SEED + 1);
    (0..SESSIONS)
        .map(|_| Endpoint {
            addr: Address::v4((rng.next_u64() as u32).to_be_bytes()),
            port: 1024 + rng.below(60_000) as u16,
        })
        .collect()
}

/// Seconds of processor time that this thread has had, so that others on the machine do not count;
/// seconds of the clock where the system does not say.
fn seconds(begin: Instant) -> f64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let first = text
        .split(' ')
        .next()
        .and_then(|text| text.parse::<u64>().ok());
    first.map_or(begin.elapsed().as_secs_f64(), |spent| spent as f64 / 1e9)
}

/// Millions a second of processor time, the median of a few.
fn rate(count: usize, mut run: impl FnMut()) -> f64 {
    let mut rates: Vec<f64> = (0..REPEATS)
        .map(|_| {
            let clock = Instant::now();
            let begin = seconds(clock);
            run();
            count as f64 / (seconds(clock) - begin) / 1e6
        })
        .collect();
    rates.sort_by(f64::total_cmp);
    rates[REPEATS / 2]
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let count: usize = arguments.next().unwrap_or("20000000".into()).parse()?;
    let asked: Vec<String> = arguments.collect();
    let (ids, keys) = (zipf(count), keys());
    let ticks: Vec<u32> = (0..count).map(|at| (at / ACCESSES_A_TICK) as u32).collect();
    println!("{count} accesses, {SESSIONS} sessions, Zipf 1.0, 512 lines");
    let names = Scheme::all().map(|(name, _)| name.to_owned());
    for name in if asked.is_empty() {
        names.collect()
    } else {
        asked
    } {
        let scheme = Scheme::parse(&name)?;
        let geometry = scheme.geometry(32 << 10, 64, 4)?;
        let places = scheme.indexer(&geometry, SEED)?.places(&keys);
        let mut last = None;
        let rate = rate(count, || {
            let mut cache = build(&scheme, &geometry, SEED).expect("checked");
            cache.run(&ids, &ticks, &[], &places).expect("checked");
            last = Some(cache.statistics());
        });
        let counts = last.unwrap_or_default();
        let (ratio, moved) = (counts.miss_ratio(), counts.migrations);
        println!("{name:14} {rate:6.1} M/s   miss ratio {ratio:.4}   migrations {moved}");
    }
    batch(&ids, &ticks, &keys)?;
    Ok(())
}

/// Eight configurations of the LRU family that share their places.
fn batch(ids: &[u32], ticks: &[u32], keys: &[Endpoint]) -> Result<(), Box<dyn std::error::Error>> {
    let scheme = Scheme::parse("2-lru")?;
    let geometry = scheme.geometry(32 << 10, 64, 4)?;
    let places = scheme.indexer(&geometry, SEED)?.places(keys);
    let rate = rate(8 * ids.len(), || {
        let mut caches: Vec<Box<dyn Simulate>> = (0..8)
            .map(|_| build(&scheme, &geometry, SEED).expect("checked"))
            .collect();
        let mut members: Vec<Member<'_>> = caches
            .iter_mut()
            .map(|cache| (cache.as_mut() as &mut dyn Simulate, &places))
            .collect();
        run_all(&mut members, ids, ticks, &[]).expect("checked");
    });
    println!("8 × 2-lru      {rate:6.1} M configuration-accesses/s in one batch");
    Ok(())
}
