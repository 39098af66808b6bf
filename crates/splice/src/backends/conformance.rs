//! One suite over every policy in the registry.

use core::time::Duration;
use std::collections::{BTreeSet, VecDeque};

use proptest::prelude::*;

use super::policy::{REGISTRY, Registered};
use super::tests::{POOL, V4, at, config};
use super::*;

fn pool(policy: &Registered, weights: &[u16], seed: u64) -> Backends {
    let balance = (policy.balance)(HashOn::ClientAddress);
    Backends::new(&config(&[(balance, weights)]), seed).unwrap()
}

/// How often each of `servers` servers is picked for `connections` different clients; connections
/// end after `overlap` others have begun.
fn shares(backends: &mut Backends, servers: usize, connections: u64, overlap: usize) -> Vec<f64> {
    let mut counts = vec![0u32; servers];
    let mut open = VecDeque::new();
    for client in 0..connections {
        let hash = backends.affinity_hash(&client.to_be_bytes());
        let id = backends
            .pick(POOL, hash, V4, &[], at(0))
            .expect("servers are there");
        counts[usize::from(id.0)] += 1;
        backends.opened(id);
        open.push_back(id);
        if open.len() > overlap {
            backends.closed(open.pop_front().expect("not empty"));
        }
    }
    counts
        .into_iter()
        .map(|count| f64::from(count) / connections as f64)
        .collect()
}

#[test]
fn the_registry_and_the_configuration_agree() {
    let names: BTreeSet<_> = REGISTRY.iter().map(|policy| policy.name).collect();
    assert_eq!(names.len(), REGISTRY.len(), "names are distinct");
    for policy in REGISTRY {
        let balance = (policy.balance)(HashOn::ClientAddress);
        assert_eq!(policy::registered(&balance).name, policy.name);
    }
}

#[test]
fn shares_follow_the_weights() {
    let weights = [1u16, 2, 5, 0, 12];
    for policy in REGISTRY {
        for overlap in [0, 200] {
            // Among busy servers of unequal weight two choices even the load out only in part:
            // who is drawn too rarely cannot be made up for. The idle case is exact.
            let tolerance = if policy.name == "random-two" && overlap > 0 {
                0.05
            } else {
                0.015
            };
            let mut backends = pool(policy, &weights, 5);
            let shares = shares(&mut backends, weights.len(), 20_000, overlap);
            for (share, weight) in shares.iter().zip(weights) {
                let wanted = f64::from(weight) / 20.0;
                assert!(
                    (share - wanted).abs() < tolerance,
                    "{}, {overlap} at once: {shares:?} for {weights:?}",
                    policy.name
                );
            }
        }
    }
}

#[test]
fn the_same_seed_makes_the_same_choices() {
    let weights = [3, 1, 1, 7, 2, 2];
    for policy in REGISTRY {
        let run = |seed| {
            let mut backends = pool(policy, &weights, seed);
            (0..500u64)
                .map(|round| {
                    let hash = backends.affinity_hash(&(round % 50).to_be_bytes());
                    let id = backends.pick(POOL, hash, V4, &[], at(round)).unwrap();
                    backends.opened(id);
                    if round % 7 == 0 {
                        backends.failed(id, at(round));
                    }
                    id
                })
                .collect::<Vec<_>>()
        };
        assert_eq!(run(9), run(9), "{}", policy.name);
    }
}

#[test]
fn pools_do_not_disturb_each_other() {
    for policy in REGISTRY {
        let balance = (policy.balance)(HashOn::ClientAddress);
        let config = config(&[(balance.clone(), &[2, 1, 3]), (balance, &[1, 1])]);
        let run = |busy_neighbour: bool| {
            let mut backends = Backends::new(&config, 3).unwrap();
            (0..200u64)
                .map(|hash| {
                    if busy_neighbour {
                        let id = backends.pick(PoolId(1), hash, V4, &[], at(0)).unwrap();
                        backends.opened(id);
                    }
                    backends
                        .pick(POOL, hash.wrapping_mul(0x9E37_79B9), V4, &[], at(0))
                        .unwrap()
                })
                .collect::<Vec<_>>()
        };
        assert_eq!(run(false), run(true), "{}", policy.name);
    }
}

#[test]
fn a_large_pool_with_one_server_left_finds_it() {
    let weights = vec![1; 700];
    for policy in REGISTRY {
        let mut backends = pool(policy, &weights, 11);
        let tried: Vec<_> = (0..700).filter(|&id| id != 431).map(ServerId).collect();
        for hash in 0..20u64 {
            let picked = backends.pick(POOL, hash << 40, V4, &tried, at(0));
            assert_eq!(picked, Some(ServerId(431)), "{}", policy.name);
        }
        for id in &tried {
            backends.failed(*id, at(0));
        }
        for hash in 0..20u64 {
            let picked = backends.pick(POOL, hash << 40, V4, &[], at(1));
            assert_eq!(picked, Some(ServerId(431)), "{}", policy.name);
        }
    }
}

#[derive(Clone, Debug)]
enum Step {
    Pick { hash: u64, tried: Vec<u16> },
    Fail(u16),
    Answer(u16),
    CloseOldest,
    Wait(u8),
}

fn step() -> impl Strategy<Value = Step> {
    let tried = proptest::collection::vec(0u16..14, 0..6);
    prop_oneof![
        6 => (any::<u64>(), tried).prop_map(|(hash, tried)| Step::Pick { hash, tried }),
        2 => (0u16..12).prop_map(Step::Fail),
        1 => (0u16..12).prop_map(Step::Answer),
        2 => Just(Step::CloseOldest),
        1 => (0u8..40).prop_map(Step::Wait),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    /// Whatever happens: never a server that was tried, has no weight or is of another pool;
    /// never one that is down while one is up; always one while there is one.
    #[test]
    fn every_choice_is_allowed(
        weights in proptest::collection::vec(0u16..=4, 0..10),
        extreme in any::<bool>(),
        seed in any::<u64>(),
        steps in proptest::collection::vec(step(), 1..120),
    ) {
        let weights: Vec<u16> =
            weights.iter().map(|&weight| if extreme { weight * 16_383 } else { weight }).collect();
        for policy in REGISTRY {
            let mut backends = pool(policy, &weights, seed);
            let mut now = at(0);
            let mut open = Vec::new();
            for step in &steps {
                match step {
                    Step::Pick { hash, tried } => {
                        let tried: Vec<_> = tried.iter().copied().map(ServerId).collect();
                        let allowed: Vec<_> = backends
                            .servers()
                            .filter(|(id, _, server)| server.weight > 0 && !tried.contains(id))
                            .map(|(id, _, _)| id)
                            .collect();
                        let up = |id: &ServerId| backends.state(*id) != ServerState::Down;
                        let any_up = allowed.iter().any(up);
                        let states: Vec<_> = allowed.iter().map(up).collect();
                        let since: Vec<_> =
                            allowed.iter().map(|id| backends.state_since(*id)).collect();
                        let picked = backends.pick(POOL, *hash, V4, &tried, now);
                        prop_assert_eq!(picked.is_some(), !allowed.is_empty(), "{}", policy.name);
                        let Some(picked) = picked else { continue };
                        let at = allowed.iter().position(|id| *id == picked);
                        prop_assert!(at.is_some(), "{}: {:?} not allowed", policy.name, picked);
                        let at = at.expect("just tested");
                        let may_be_on_trial = now >= since[at] + Duration::from_secs(2);
                        prop_assert!(
                            states[at] || !any_up || may_be_on_trial,
                            "{}: one that is down though others are up", policy.name
                        );
                        backends.opened(picked);
                        open.push(picked);
                    }
                    Step::Fail(id) => { backends.failed(ServerId(*id), now); }
                    Step::Answer(id) => {
                        let offers =
                            Offers { mss: 536, window_scale: None, sack: false, timestamps: false };
                        backends.answered(ServerId(*id), offers, now);
                    }
                    Step::CloseOldest => {
                        if !open.is_empty() {
                            backends.closed(open.remove(0));
                        }
                    }
                    Step::Wait(seconds) => now = now + Duration::from_secs((*seconds).into()),
                }
            }
            for (id, _, _) in backends.servers() {
                let wanted = open.iter().filter(|&&other| other == id).count();
                prop_assert_eq!(backends.active(id) as usize, wanted);
            }
        }
    }
}
