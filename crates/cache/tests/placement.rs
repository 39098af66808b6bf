//! How many sessions can have a line at once, where there are exactly as many as lines.

use std::collections::BTreeSet;

use fairlead_base::{Address, Endpoint, Rng};
use fairlead_cache::bounds::placeable;
use fairlead_cache::{Geometry, Place, Places, Scheme};

/// Hall's condition, tried for every subset of sessions: slow and obviously right.
fn by_hand(homes: &[Vec<u32>], ways: usize) -> usize {
    let all = homes.len();
    (0..1u32 << all)
        .map(|chosen| {
            let within: Vec<usize> = (0..all).filter(|at| chosen >> at & 1 == 1).collect();
            let sets: BTreeSet<u32> = within.iter().flat_map(|at| homes[*at].clone()).collect();
            all - within.len().saturating_sub(sets.len() * ways)
        })
        .min()
        .unwrap_or(0)
}

#[test]
fn placeable_is_what_halls_theorem_says() {
    let mut rng = Rng::new(1);
    for _ in 0..200 {
        let (sets, ways) = (1 + rng.below(3), 1 + rng.below(2));
        let mut places = Places::new(2, sets, 10);
        let mut homes = [Vec::new(), Vec::new()];
        for _ in 0..10 {
            let mut draw = || rng.below(sets);
            let place = Place {
                first: [draw(), draw(), 0, 0],
                second: [draw(), draw(), 0, 0],
            };
            places.push(&place);
            let first = vec![place.first[0], sets + place.first[1]];
            let second = [place.second[0], sets + place.second[1]];
            homes[1].push([first.clone(), second.to_vec()].concat());
            homes[0].push(first);
        }
        for (homes, second) in homes.iter().zip([false, true]) {
            let ways = ways as usize;
            assert_eq!(
                placeable(&places, ways as u32, second),
                by_hand(homes, ways)
            );
        }
    }
}

/// Sessions left without a line, for each seed, when there are `sessions` of them.
fn left_over(sessions: u32, second: bool) -> Vec<usize> {
    let scheme = Scheme::parse("2-universal").unwrap();
    let geometry = Geometry::paper();
    (0..40)
        .map(|seed| {
            let mut rng = Rng::new(seed);
            let key = |_| Endpoint {
                addr: Address::v4((rng.next_u64() as u32).to_be_bytes()),
                port: 1024 + rng.below(256) as u16,
            };
            let keys: Vec<Endpoint> = (0..sessions).map(key).collect();
            let places = scheme.indexer(&geometry, seed).unwrap().places(&keys);
            sessions as usize - placeable(&places, geometry.ways(), second)
        })
        .collect()
}

/// research/policy-study.md, "One row breaks the rule".
#[test]
fn as_many_sessions_as_lines_have_no_room_under_two_hashes() {
    let mean = |left: &[usize]| left.iter().sum::<usize>() as f64 / left.len() as f64;
    let full = left_over(512, false);
    println!("512 of 512, two sets each: {full:?}, mean {}", mean(&full));
    assert!(full.iter().all(|left| *left > 0), "nobody can, at any seed");
    assert!((3.0..12.0).contains(&mean(&full)));
    let near = left_over(492, false);
    println!("492 of 512, two sets each: {near:?}, mean {}", mean(&near));
    assert!(
        mean(&near) < 0.5,
        "below the threshold of 0.98 nearly all have a place"
    );
    // With the second sets, as `spec` and `tide` have them, nearly all have one.
    let four = left_over(512, true);
    println!("512 of 512, four sets each: {four:?}, mean {}", mean(&four));
    assert!(mean(&four) < 0.5);
}
