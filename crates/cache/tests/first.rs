//! Every scheme runs, and its counts add up.

use fairlead_base::{Address, Endpoint, Rng};
use fairlead_cache::{Scheme, build};

fn keys(count: u32) -> Vec<Endpoint> {
    let mut rng = Rng::new(1);
    (0..count)
        .map(|_| Endpoint {
            addr: Address::v4((rng.next_u64() as u32).to_be_bytes()),
            port: 1024 + rng.below(256) as u16,
        })
        .collect()
}

#[test]
fn every_scheme_runs() {
    let keys = keys(3000);
    let mut rng = Rng::new(2);
    let ids: Vec<u32> = (0..50_000)
        .map(|_| rng.below(rng.clone().below(3000) + 1))
        .collect();
    let ticks: Vec<u32> = (0..50_000).map(|at| at / 100).collect();
    for (name, _) in Scheme::all() {
        let scheme = Scheme::parse(name).unwrap();
        let geometry = scheme.geometry(32 << 10, 64, 4).unwrap();
        let places = scheme.indexer(&geometry, 7).unwrap().places(&keys);
        let mut cache = build(&scheme, &geometry, 7).unwrap();
        cache.run(&ids, &ticks, &[], &places).unwrap();
        let counts = cache.statistics();
        assert_eq!(counts.accesses, 50_000);
        assert_eq!(counts.misses, counts.fills + counts.bypasses);
        let held: u32 = cache.occupancy().iter().sum();
        assert_eq!(counts.fills, counts.evictions + u64::from(held));
        assert!(
            counts.cold_misses <= counts.misses && counts.misses < 50_000,
            "{name}"
        );
    }
}
