//! Configurations that run together, whatever they share, count what each counts alone.

use fairlead_base::{Address, Endpoint, Rng};
use fairlead_cache::{Scheme, Simulate, Statistics, build};
use fairlead_lab::run::Configuration;
use fairlead_lab::{
    Loader, RunResult, RunSpec, Silent, Size, Stream, StreamSpec, Wanted, run_many,
};
use fairlead_workload::Standard;

fn stream(rng: &mut Rng) -> Stream {
    let sessions = 50 + rng.below(400);
    let keys = (0..sessions)
        .map(|_| Endpoint {
            addr: Address::v4((rng.next_u64() as u32).to_be_bytes()),
            port: 1024 + rng.below(256) as u16,
        })
        .collect();
    let accesses = 1_500 + rng.below(1_500) as usize;
    let mut tick = 0;
    let (ids, ticks) = (0..accesses)
        .map(|_| {
            tick += u32::from(rng.below(20) == 0);
            let bound = rng.below(sessions) + 1;
            (rng.below(bound), tick)
        })
        .unzip();
    let hints = match rng.below(2) {
        0 => Vec::new(),
        _ => (0..accesses).map(|_| rng.below(3) as u8).collect(),
    };
    let standard = Standard {
        sessions: 20,
        seconds: 60.0,
        ..Standard::default()
    };
    let some = StreamSpec::standard(standard, 1);
    Stream {
        ids,
        ticks,
        time_us: Vec::new(),
        hints,
        keys,
        counted_from: [0, 1, accesses / 3, accesses][rng.below(4) as usize],
        ..Loader::default().stream(&some, &Silent).unwrap()
    }
}

/// A plan in which some configurations have places in common, or are caches of one family.
fn plan(rng: &mut Rng) -> Vec<RunSpec> {
    let schemes: Vec<&str> = Scheme::all().map(|(name, _)| name).collect();
    let of_one_bank = ["mod", "universal", "crc", "xor"];
    let mut plan: Vec<RunSpec> = (0..6 + rng.below(12))
        .map(|_| {
            let scheme = match rng.below(2) {
                0 => of_one_bank[rng.below(4) as usize],
                _ => schemes[rng.below(schemes.len() as u32) as usize],
            };
            let ways = 1 << rng.below(4);
            RunSpec {
                capacity: Size(1 << (11 + rng.below(4))),
                line: Size(16),
                ways,
                seed: 1 + u64::from(rng.below(2)),
                threshold: [None, Some(0), Some(6)][rng.below(3) as usize],
                ..RunSpec::paper(scheme)
            }
        })
        .collect();
    plan.push(plan[0].clone());
    plan
}

/// A configuration by itself, with its own places, all that it has seen noted.
fn alone(stream: &Stream, spec: &RunSpec) -> Statistics {
    let Configuration {
        scheme,
        geometry,
        seed,
    } = Configuration::new(spec).unwrap();
    let places = scheme
        .indexer(&geometry, seed)
        .unwrap()
        .places(&stream.keys);
    let mut cache = build(&scheme, &geometry, seed).unwrap();
    let run = |cache: &mut dyn Simulate, part: std::ops::Range<usize>| {
        let hints = stream.hints.get(part.clone()).unwrap_or(&[]);
        let (ids, ticks) = (&stream.ids[part.clone()], &stream.ticks[part]);
        cache.run(ids, ticks, hints, &places).unwrap();
    };
    run(cache.as_mut(), 0..stream.counted_from);
    cache.reset_statistics();
    run(cache.as_mut(), stream.counted_from..stream.ids.len());
    cache.statistics()
}

#[test]
fn together_is_as_alone() {
    for seed in 0..64 {
        let mut rng = Rng::new(seed);
        let (stream, plan) = (stream(&mut rng), plan(&mut rng));
        let threads = 1 + rng.below(3) as usize;
        let results = run_many(&stream, &plan, Wanted::Nothing, threads, &Silent).unwrap();
        for (spec, result) in plan.iter().zip(&results) {
            let counted = alone(&stream, spec);
            let expected = RunResult {
                accesses: counted.accesses,
                misses: counted.misses,
                miss_ratio: counted.miss_ratio(),
                cold_misses: counted.cold_misses,
                migrations: counted.migrations,
                second_lookup_hits: counted.second_lookup_hits,
                bypasses: counted.bypasses,
                evicted_on: counted.evicted_on,
                bounds: None,
            };
            assert_eq!(result, &expected, "seed {seed}: {spec:?}");
        }
    }
}
