//! Scenarios by seed: the ones that once failed, and a sweep.
//!
//! `FAIRLEAD_SIM_SEEDS=N` sweeps N seeds instead of 256, from `FAIRLEAD_SIM_FROM` on (0).
//! `FAIRLEAD_SIM_SEED=X` replays one seed and prints every packet.
//!
//! `the_tcb_cache_changes_nothing` runs CACHED_SEEDS of either kind, or `FAIRLEAD_SIM_SEEDS`, with
//! and without a cache.
//!
//! With `FAIRLEAD_SIM_HOSTILE=1` the scenarios of these seeds have strangers in them;
//! `strangers_do_no_harm` sweeps HOSTILE_SEEDS of those in any case, or a quarter of
//! `FAIRLEAD_SIM_SEEDS` if that is more.
//!
//! A seed that fails is added to `seeds.txt`, or to `hostile.txt` if it takes strangers, with its
//! cause, and stays there.

use std::env;
use std::panic::catch_unwind;
use std::time::Duration;

use fairlead_datapath::tcb_cache::{Scheme, Settings};
use fairlead_sim::{Outcome, Scenario, run_scenario, run_seed};

type Draw = fn(u64) -> Scenario;

const SEEDS: u64 = 256;
const HOSTILE_SEEDS: u64 = 96;
const CACHED_SEEDS: u64 = 24;
const LATE_SEEDS: u64 = 48;

fn number(name: &str) -> Option<u64> {
    let text = env::var(name).ok()?;
    Some(
        text.parse()
            .unwrap_or_else(|_| panic!("{name}={text} is no number")),
    )
}

/// Seeds that once failed: a number at the start of a line, its story behind it.
fn kept(list: &str) -> Vec<u64> {
    list.lines()
        .filter(|line| !line.trim().is_empty() && !line.starts_with('#'))
        .map(|line| {
            let first = line.split_whitespace().next().unwrap_or_default();
            first
                .parse()
                .unwrap_or_else(|_| panic!("{line:?} begins with no seed"))
        })
        .collect()
}

fn sweep(draw: Draw, seeds: impl Iterator<Item = u64>) -> Vec<Outcome> {
    let (mut outcomes, mut failures) = (Vec::new(), Vec::new());
    for seed in seeds {
        match catch_unwind(|| run_scenario(&draw(seed))) {
            Ok(Ok(outcome)) => outcomes.push(outcome),
            Ok(Err(failure)) => {
                let first_line = failure.what.lines().next().unwrap_or_default().to_owned();
                failures.push((seed, first_line, failure.to_string()));
            }
            Err(_) => failures.push((seed, "a panic (see above)".to_owned(), String::new())),
        }
    }
    if let Some((seed, _, report)) = failures.iter().find(|(.., report)| !report.is_empty()) {
        eprintln!("{report}replay it with FAIRLEAD_SIM_SEED={seed}");
    }
    if !failures.is_empty() {
        let all: Vec<_> = failures
            .iter()
            .map(|(seed, what, _)| format!("{seed}: {what}"))
            .collect();
        let (failed, total) = (failures.len(), failures.len() + outcomes.len());
        panic!("{failed} of {total} seeds failed:\n{}", all.join("\n"));
    }
    outcomes
}

#[test]
fn seeds_that_once_failed_pass() {
    if number("FAIRLEAD_SIM_SEED").is_none() {
        let kept = kept(include_str!("seeds.txt"));
        sweep(Scenario::draw, kept.into_iter());
    }
}

#[test]
fn hostile_seeds_that_once_failed_pass() {
    if number("FAIRLEAD_SIM_SEED").is_none() {
        let kept = kept(include_str!("hostile.txt"));
        sweep(Scenario::draw_hostile, kept.into_iter());
    }
}

#[test]
fn every_seed_keeps_every_promise() {
    let hostile = number("FAIRLEAD_SIM_HOSTILE").is_some_and(|hostile| hostile > 0);
    let draw: Draw = if hostile {
        Scenario::draw_hostile
    } else {
        Scenario::draw
    };
    if let Some(seed) = number("FAIRLEAD_SIM_SEED") {
        let mut scenario = draw(seed);
        scenario.world.printed = true;
        match run_scenario(&scenario) {
            Ok(outcome) => eprintln!("{outcome:#?}"),
            Err(failure) => panic!("{failure}"),
        }
        return;
    }
    let count = number("FAIRLEAD_SIM_SEEDS").unwrap_or(SEEDS);
    let from = number("FAIRLEAD_SIM_FROM").unwrap_or(0);
    let outcomes = sweep(draw, from..from + count);
    let sum = |of: fn(&Outcome) -> u64| outcomes.iter().map(of).sum::<u64>();
    let clients = sum(|one| one.clients as u64);
    eprintln!(
        "{count} seeds: {clients} clients, {} served, {} refused, {} left early, {} reset, {} MB of \
         streams, {} packets compared, {} steps, {} virtual minutes",
        sum(|one| one.served as u64),
        sum(|one| one.refused as u64),
        sum(|one| one.aborted as u64),
        sum(|one| one.reset as u64),
        sum(|one| one.stream_bytes) / 1_000_000,
        sum(|one| one.compared),
        sum(|one| one.steps),
        sum(|one| one.virtual_ms) / 60_000,
    );
    // A sweep in which little happens proves little.
    assert!(
        sum(|one| one.served as u64) * 2 > clients,
        "fewer than half of the clients served"
    );
    assert!(
        sum(|one| one.refused as u64) * 50 > clients,
        "hardly anybody was refused"
    );
    assert!(
        sum(|one| one.compared) > clients * 10,
        "hardly any packets were translated"
    );
}

/// Floods, blind resets, forged errors and garbage among conversations.
#[test]
fn strangers_do_no_harm() {
    if number("FAIRLEAD_SIM_SEED").is_some() {
        return;
    }
    let asked = number("FAIRLEAD_SIM_SEEDS").unwrap_or(0);
    let outcomes = sweep(Scenario::draw_hostile, 0..HOSTILE_SEEDS.max(asked / 4));
    let served: usize = outcomes.iter().map(|one| one.served).sum();
    let clients: usize = outcomes.iter().map(|one| one.clients).sum();
    assert!(served * 2 > clients, "{served} of {clients} clients served");
}

/// A scenario with a TCB cache of few lines, of another scheme each seed.
fn cached(draw: Draw, seed: u64) -> Scenario {
    let mut scenario = draw(seed);
    let name = ["spec", "2-universal", "mod", "tide"][(seed % 4) as usize];
    let scheme = Scheme::parse(name).unwrap();
    let geometry = scheme.geometry(1 << (10 + seed % 3), 64, 4).unwrap();
    scenario.world.tcb_cache = Some(Settings { scheme, geometry });
    scenario
}

/// Not one bit of one packet differs.
#[test]
fn the_tcb_cache_changes_nothing() {
    if number("FAIRLEAD_SIM_SEED").is_some() {
        return;
    }
    let asked = number("FAIRLEAD_SIM_SEEDS").unwrap_or(0);
    let draws: [(Draw, Draw); 2] = [
        (Scenario::draw, |seed| cached(Scenario::draw, seed)),
        (Scenario::draw_hostile, |seed| {
            cached(Scenario::draw_hostile, seed)
        }),
    ];
    for (plain, cached) in draws {
        let seeds = 0..CACHED_SEEDS.max(asked);
        assert_eq!(sweep(cached, seeds.clone()), sweep(plain, seeds));
    }
}

/// A scenario of a switch whose milliseconds, of which records and timestamps have 32 bits, come to
/// their end or to their middle within seconds: after 50 days, or 25.
fn late(draw: Draw, seed: u64) -> Scenario {
    let mut scenario = draw(seed);
    let limit = 1 << (31 + seed % 2);
    scenario.world.uptime = Duration::from_millis(limit - 500 * (1 + seed % 32));
    scenario
}

#[test]
fn weeks_make_no_difference() {
    if number("FAIRLEAD_SIM_SEED").is_some() {
        return;
    }
    let seeds = 0..LATE_SEEDS.max(number("FAIRLEAD_SIM_SEEDS").unwrap_or(0) / 4);
    sweep(|seed| late(Scenario::draw, seed), seeds.clone());
    sweep(|seed| late(Scenario::draw_hostile, seed), seeds);
}

#[test]
fn a_seed_gives_the_same_packets_every_time() {
    for seed in [1, 2, 3] {
        assert_eq!(run_seed(seed).unwrap(), run_seed(seed).unwrap());
    }
}
