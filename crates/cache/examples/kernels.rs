//! Accesses a second (of processor time) of every scheme, on one thread:
//! `cargo run --release -p fairlead-cache --example kernels [-- [rank|spread] [tick=N] [lines=N]
//! [accesses [scheme…]]]`.
//!
//! The stream is Zipf 1.0 over a million sessions, numbered as they are first seen, as whatever
//! reads a trace numbers them (with `spread`: by chance; with `rank`: the most frequent is 0); the
//! caches have 512 lines, in as many banks as the scheme has, of 4 ways. Ticks come every 100
//! accesses, so that about half the lines are ON. `rank tick=250000` is what `bench/lab.py` runs.
#![allow(clippy::disallowed_methods, clippy::disallowed_types)]

use std::time::Instant;

use fairlead_base::{Address, Endpoint, Rng};
use fairlead_cache::registry::entry;
use fairlead_cache::{Lifetime, LruFamily, Member, Places, Scheme, Simulate, build, run_all};

const SESSIONS: u32 = 1_000_000;
const SEED: u64 = 7;
const REPEATS: usize = 3;
const GUIDE_BITS: u32 = 16;

/// How sessions are numbered.
#[derive(Clone, Copy, PartialEq)]
enum Numbers {
    FirstSeen,
    ByChance,
    ByRank,
}

/// Zipf with exponent 1, by the inverse of its distribution.
fn zipf(count: usize, by: Numbers) -> Vec<u32> {
    let mut rng = Rng::new(SEED);
    let mut sum = 0.0;
    let shares: Vec<f64> = (1..=SESSIONS)
        .map(|rank| {
            sum += 1.0 / f64::from(rank);
            sum
        })
        .collect();
    let mut numbers: Vec<u32> = (0..SESSIONS).collect();
    for at in (1..numbers.len()).rev() {
        numbers.swap(at, rng.below(at as u32 + 1) as usize);
    }
    let (mut given, mut next) = (vec![u32::MAX; SESSIONS as usize], 0);
    // Where to look, by the first bits of what is drawn.
    let guide: Vec<usize> = (0..=1 << GUIDE_BITS)
        .map(|bits| {
            let drawn = f64::from(bits) / f64::from(1 << GUIDE_BITS) * sum;
            shares.partition_point(|share| *share < drawn)
        })
        .collect();
    (0..count)
        .map(|_| {
            let bits = rng.next_u64() >> 11;
            let drawn = bits as f64 / (1u64 << 53) as f64 * sum;
            let near = (bits >> (53 - GUIDE_BITS)) as usize;
            let from = guide[near].saturating_sub(1);
            let to = (guide[near + 1] + 1).min(shares.len());
            let rank = from + shares[from..to].partition_point(|share| *share < drawn);
            let rank = rank.min(numbers.len() - 1);
            let number = numbers[rank];
            let given = &mut given[number as usize];
            if *given == u32::MAX {
                *given = next;
                next += 1;
            }
            match by {
                Numbers::FirstSeen => *given,
                Numbers::ByChance => number,
                Numbers::ByRank => rank as u32,
            }
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
    let mut arguments = std::env::args().skip(1).peekable();
    let (mut by, mut accesses_a_tick, mut lines) = (Numbers::FirstSeen, 100, 512);
    while let Some(word) = arguments.next_if(|word| word.parse::<usize>().is_err()) {
        match word.split_once('=') {
            Some(("tick", number)) => accesses_a_tick = number.parse()?,
            Some(("lines", number)) => lines = number.parse()?,
            None if word == "spread" => by = Numbers::ByChance,
            None if word == "rank" => by = Numbers::ByRank,
            _ => return Err(format!("what is `{word}`?").into()),
        }
    }
    let count: usize = arguments.next().unwrap_or("20000000".into()).parse()?;
    let asked: Vec<String> = arguments.collect();
    let (ids, keys) = (zipf(count, by), keys());
    let ticks: Vec<u32> = (0..count).map(|at| (at / accesses_a_tick) as u32).collect();
    println!("{count} accesses, {SESSIONS} sessions, Zipf 1.0, {lines} lines");
    let all = asked.is_empty();
    let names = Scheme::all().map(|(name, _)| name.to_owned());
    for name in if all { names.collect() } else { asked } {
        one(&name, lines, &ids, &ticks, &keys)?;
    }
    if all {
        batch("8 x 2-lru", &["2-lru"; 8], &ids, &ticks, &keys)?;
        batch("paper's 17", &PAPER, &ids, &ticks, &keys)?;
        family(&ids, &ticks, &keys)?;
    }
    Ok(())
}

/// The schemes of the paper's figures.
const PAPER: [&str; 17] = [
    "mod",
    "xor",
    "pmod",
    "pdisp",
    "crc",
    "universal",
    "2-xor",
    "2-pdisp",
    "2-universal",
    "4-xor",
    "4-pdisp",
    "4-universal",
    "rr",
    "timestamp16",
    "access",
    "no-migrate",
    "spec",
];

/// A scheme alone.
fn one(
    name: &str,
    lines: u64,
    ids: &[u32],
    ticks: &[u32],
    keys: &[Endpoint],
) -> Result<(), Box<dyn std::error::Error>> {
    let scheme = Scheme::parse(name)?;
    let geometry = scheme.geometry(lines * 64, 64, 4)?;
    let indexer = scheme.indexer(&geometry, SEED)?;
    let moves = entry(&scheme.policy).is_some_and(|entry| entry.moves);
    let places = if moves {
        indexer.places(keys)
    } else {
        indexer.first_places(keys)
    };
    let mut last = None;
    let rate = rate(ids.len(), || {
        let mut cache = build(&scheme, &geometry, SEED).expect("checked");
        cache.run(ids, ticks, &[], &places).expect("checked");
        last = Some(cache.statistics());
    });
    let counts = last.unwrap_or_default();
    let (ratio, moved, refused) = (counts.miss_ratio(), counts.migrations, counts.bypasses);
    println!(
        "{name:14} {rate:6.1} M/s   miss ratio {ratio:.4}   migrations {moved}   bypasses {refused}"
    );
    Ok(())
}

/// Configurations that share what they can.
fn batch(
    title: &str,
    names: &[&str],
    ids: &[u32],
    ticks: &[u32],
    keys: &[Endpoint],
) -> Result<(), Box<dyn std::error::Error>> {
    let mut plan = Vec::new();
    let mut tables: Vec<(String, Places)> = Vec::new();
    for name in names {
        let scheme = Scheme::parse(name)?;
        let geometry = scheme.geometry(32 << 10, 64, 4)?;
        let index = format!("{} {}", scheme.index, scheme.banks);
        let known = tables.iter().position(|(other, _)| *other == index);
        let at = known.unwrap_or(tables.len());
        if known.is_none() {
            let places = scheme.indexer(&geometry, SEED)?.places(keys);
            tables.push((index, places));
        }
        plan.push((scheme, geometry, at));
    }
    let work = || {
        let mut caches: Vec<Box<dyn Simulate>> = plan
            .iter()
            .map(|(scheme, geometry, _)| build(scheme, geometry, SEED).expect("checked"))
            .collect();
        let mut members: Vec<Member<'_>> = caches
            .iter_mut()
            .zip(&plan)
            .map(|(cache, (_, _, at))| {
                let cache = cache.as_mut() as &mut dyn Simulate;
                (cache, &tables[*at].1)
            })
            .collect();
        run_all(&mut members, ids, ticks, &[]).expect("checked");
    };
    let rate = rate(names.len() * ids.len(), work);
    println!("{title:14} {rate:6.1} M configuration-accesses/s in one batch");
    let clock = Instant::now();
    std::thread::scope(|scope| {
        scope.spawn(work);
        scope.spawn(work);
    });
    let both = (2 * names.len() * ids.len()) as f64 / clock.elapsed().as_secs_f64() / 1e6;
    println!("{:14} {both:6.1} M/s of the clock on two threads", "");
    Ok(())
}

/// All ways from 1 to 16 in one pass.
fn family(ids: &[u32], ticks: &[u32], keys: &[Endpoint]) -> Result<(), Box<dyn std::error::Error>> {
    let scheme = Scheme::parse("universal")?;
    for sets in [64, 512] {
        let geometry = scheme.geometry(sets * 16 * 64, 64, 16)?;
        let places = scheme.indexer(&geometry, SEED)?.places(keys);
        let mut misses = Vec::new();
        let rate = rate(ids.len(), || {
            let mut family = LruFamily::new(geometry.sets(), Lifetime::default()).expect("small");
            family.run(ids, ticks, &places).expect("checked");
            misses = family.misses().to_vec();
        });
        let all = rate * LruFamily::WAYS as f64;
        let ratio = |ways: usize| misses[ways - 1] as f64 / ids.len() as f64;
        let ratios = (ratio(1), ratio(4), ratio(8), ratio(16));
        println!(
            "LRU, 1-16 ways of {sets} sets: {rate:.1} M/s, {all:.0} M configuration-accesses/s"
        );
        println!("    miss ratios of 1, 4, 8, 16 ways {ratios:.4?}");
    }
    Ok(())
}
