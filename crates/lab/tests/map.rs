//! The map's claim, on a grid that is coarse enough for every day: our own policy is nowhere worse
//! than the best of 2-hash ENRU, `spec` and fully associative LRU by more than 1 %
//! (research/policy-study.md has the whole grid).

use fairlead_lab::map::{Cell, MapSpec, SPEC, TWO_HASH, map};
use fairlead_lab::{Silent, schemes};
use fairlead_workload::{PortModel, Standard};

#[test]
fn our_own_policy_is_within_one_percent_of_the_best_everywhere() {
    let own = schemes::own().expect("there is one");
    let asked = MapSpec {
        loads: vec![0.5, 1.0, 1.5, 2.0, 4.0, 12.0],
        bursts: vec![1.5, 6.0, 40.0],
        ports: vec![PortModel::SEQUENTIAL],
        seeds: (1..=8).collect(),
        standard: Standard {
            seconds: 60.0,
            warm_up_s: 20.0,
            ..Standard::default()
        },
        schemes: [TWO_HASH, SPEC, own].map(str::to_owned).to_vec(),
        ..MapSpec::default()
    };
    let made = map(asked, 0, &Silent).expect("a sound grid");
    assert_eq!(made.cells.len(), 18);
    for cell in &made.cells {
        let ratio = |scheme| made.ratio(cell, scheme).expect("it ran");
        let best = ratio(TWO_HASH).min(ratio(SPEC)).min(cell.lru);
        let beyond = ratio(own) / best.max(1e-9) - 1.0;
        assert!(
            beyond <= 0.01,
            "load {}, burst {}: {:.2} % worse",
            cell.load,
            cell.burst_mean,
            beyond * 100.0
        );
    }
    // And where there is something to gain, it gains: many sessions, short bursts.
    let short = |cell: &&Cell| (cell.load, cell.burst_mean) == (4.0, 1.5);
    let cell = made.cells.iter().find(short).expect("it is in the grid");
    assert!(made.ratio(cell, own).expect("it ran") < 0.98 * cell.lru);
}
