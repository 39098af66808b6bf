use std::collections::BTreeMap;

use fairlead_base::Rng;
use fairlead_cache::bounds::{self, Stream};

use super::*;

/// A cache of blocks under a policy, by the book.
struct Cache {
    residency: Box<dyn Residency + Send>,
    entry_of: BTreeMap<u32, u32>,
    block_in: BTreeMap<u32, u32>,
    free: Vec<u32>,
}

impl Cache {
    fn new(policy: Policy, entries: u32) -> Self {
        Self {
            residency: policy.build(entries, u64::from(entries)),
            entry_of: BTreeMap::new(),
            block_in: BTreeMap::new(),
            free: (0..entries).rev().collect(),
        }
    }

    /// True for a miss.
    fn access(&mut self, block: u32) -> bool {
        if let Some(entry) = self.entry_of.get(&block) {
            self.residency.on_hit(*entry);
            return false;
        }
        self.residency.on_miss(u64::from(block));
        let entry = match self.free.pop() {
            Some(entry) => entry,
            None => {
                let victim = self.residency.victim().expect("the cache is full");
                self.residency.on_evict(victim);
                let gone = self.block_in.remove(&victim).expect("it is cached");
                self.entry_of.remove(&gone);
                victim
            }
        };
        self.residency.on_insert(entry, u64::from(block), 1);
        self.entry_of.insert(block, entry);
        self.block_in.insert(entry, block);
        true
    }

    fn remove(&mut self, block: u32) {
        if let Some(entry) = self.entry_of.remove(&block) {
            self.residency.on_remove(entry);
            self.block_in.remove(&entry);
            self.free.push(entry);
        }
    }
}

fn skewed(seed: u64, ids: u32, count: usize) -> Vec<u32> {
    let mut rng = Rng::new(seed);
    let one = |rng: &mut Rng| rng.below(ids).min(rng.below(ids)).min(rng.below(ids));
    (0..count).map(|_| one(&mut rng)).collect()
}

#[test]
fn policies_agree_with_the_references_of_the_cache_crate() {
    type Reference = fn(&Stream<'_>, u32) -> u64;
    let references: [(Policy, Reference); 5] = [
        (Policy::Lru, bounds::lru),
        (Policy::Fifo, bounds::fifo),
        (Policy::Clock, bounds::clock),
        (Policy::Sieve, bounds::sieve),
        (Policy::S3Fifo, bounds::s3_fifo),
    ];
    for seed in 0..12 {
        let ids = skewed(seed, 120, 3_000);
        let stream = Stream::new(&ids, 120, 0).expect("in order");
        for (policy, reference) in references {
            for entries in [1, 2, 7, 30, 64] {
                let mut cache = Cache::new(policy, entries);
                let misses = ids.iter().filter(|block| cache.access(**block)).count();
                let wanted = reference(&stream, entries);
                assert_eq!(misses as u64, wanted, "{policy}, {entries}, seed {seed}");
            }
        }
    }
}

#[test]
fn gdsf_evicts_the_lowest_priority() {
    for seed in 0..8 {
        let entries = 9;
        let mut rng = Rng::new(seed);
        let mut policy = Policy::Gdsf.build(entries, 100);
        // By entry: priority, turn, uses, weight.
        let mut model: BTreeMap<u32, (f64, u64, f64, f64)> = BTreeMap::new();
        let (mut age, mut turn) = (0.0, 0);
        for _ in 0..2_000 {
            let entry = rng.below(entries);
            turn += 1;
            if let Some((priority, at, uses, weight)) = model.get_mut(&entry) {
                if rng.chance(700_000) {
                    policy.on_hit(entry);
                    *uses += 1.0;
                    (*priority, *at) = (age + *uses / *weight, turn);
                    continue;
                }
                if rng.chance(200_000) {
                    policy.on_remove(entry);
                    model.remove(&entry);
                    continue;
                }
                let lowest = model
                    .iter()
                    .min_by(|(_, left), (_, right)| left.partial_cmp(right).expect("numbers"));
                let (victim, lowest) = lowest.map(|(entry, rank)| (*entry, rank.0)).expect("some");
                assert_eq!(policy.victim(), Some(victim));
                policy.on_evict(victim);
                age = lowest;
                model.remove(&victim);
            } else {
                let weight = 1 + rng.below(20);
                policy.on_insert(entry, 0, weight);
                let weight = f64::from(weight);
                model.insert(entry, (age + 1.0 / weight, turn, 1.0, weight));
            }
        }
    }
}

#[test]
fn every_policy_survives_removals() {
    for policy in Policy::ALL {
        let mut rng = Rng::new(7);
        let mut cache = Cache::new(policy, 10);
        for block in skewed(3, 40, 4_000) {
            if rng.chance(200_000) {
                cache.remove(block);
            } else {
                cache.access(block);
                assert!(!cache.access(block), "{policy}: just inserted");
            }
            assert_eq!(cache.entry_of.len() + cache.free.len(), 10, "{policy}");
        }
    }
}

#[test]
fn names_are_read_as_they_are_written() {
    for policy in Policy::ALL {
        assert_eq!(policy.name().parse(), Ok(policy));
        assert!(!policy.about().is_empty());
    }
    assert_eq!("s3_fifo".parse(), Ok(Policy::S3Fifo));
    assert!("mru".parse::<Policy>().unwrap_err().contains("lru, fifo"));
}

#[test]
fn files_up_to_the_cache_are_admitted() {
    let admission = Admission::up_to_the_cache(4_096);
    assert!(admission.admits(4_096) && !admission.admits(4_097));
}
