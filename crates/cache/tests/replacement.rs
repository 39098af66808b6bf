//! Memory caches under each policy against models that are plain lists, written from the rules.

use std::collections::BTreeMap;

use fairlead_base::Rng;
use fairlead_cache::memory::{Geometry, Level, PolicyLevel, REPLACEMENTS, Replacement};
use proptest::prelude::*;

/// What a model keeps of a line. What `mark` is differs by policy.
#[derive(Clone, Copy)]
struct Line {
    number: u64,
    mark: u8,
    filled: u64,
    used: u64,
}

/// A cache as a list of ways for each set.
struct Model {
    policy: &'static str,
    line_bytes: u64,
    sets: Vec<Vec<Option<Line>>>,
    rng: Rng,
    time: u64,
    /// By set, and by first and last way of a subtree: the upper half was used last.
    upper_last: BTreeMap<(usize, usize, usize), bool>,
    /// Misses of the sets that always insert at 2, less those of the sets that insert at 3.
    duel: i32,
}

impl Model {
    fn new(policy: &'static str, geometry: Geometry) -> Self {
        Self {
            policy,
            line_bytes: u64::from(geometry.line_bytes()),
            sets: vec![vec![None; geometry.ways() as usize]; geometry.sets() as usize],
            rng: Rng::new(1),
            time: 0,
            upper_last: BTreeMap::new(),
            duel: 511,
        }
    }

    fn misses(&mut self, address: u64, size: u32) -> bool {
        let last = (address + u64::from(size) - 1) / self.line_bytes;
        let mut absent = false;
        for number in address / self.line_bytes..=last {
            absent |= !self.touch(number);
        }
        absent
    }

    /// True if the line is there.
    fn touch(&mut self, number: u64) -> bool {
        let set = (number % self.sets.len() as u64) as usize;
        let ways = self.sets[set].iter();
        let found = ways.flatten().position(|line| line.number == number);
        // Ways fill from the first on and are emptied together.
        let way = found.unwrap_or_else(|| self.make_room(set));
        self.time += 1;
        let insertion = match (found, self.policy) {
            (None, "drrip") => self.insertion(set),
            _ => 0,
        };
        let line = &mut self.sets[set][way];
        match line {
            Some(line) if found.is_some() => {
                line.used = self.time;
                line.mark = u8::from(self.policy == "clock");
            }
            _ => {
                *line = Some(Line {
                    number,
                    mark: insertion,
                    filled: self.time,
                    used: self.time,
                });
            }
        }
        self.note_halves(set, way);
        found.is_some()
    }

    fn note_halves(&mut self, set: usize, way: usize) {
        let (mut first, mut end) = (0, self.sets[set].len());
        while end - first > 1 {
            let middle = usize::midpoint(first, end);
            self.upper_last.insert((set, first, end), way >= middle);
            (first, end) = if way >= middle {
                (middle, end)
            } else {
                (first, middle)
            };
        }
    }

    fn leader(&self, set: usize) -> Option<bool> {
        let period = self.sets.len().clamp(2, 32);
        match set % period {
            0 => Some(false),
            at if at == period / 2 => Some(true),
            _ => None,
        }
    }

    fn insertion(&mut self, set: usize) -> u8 {
        let far = self.leader(set).unwrap_or(self.duel > 511);
        if far && self.rng.below(32) != 0 { 3 } else { 2 }
    }

    fn make_room(&mut self, set: usize) -> usize {
        match self.leader(set) {
            Some(false) => self.duel = (self.duel + 1).min(1023),
            Some(true) => self.duel = (self.duel - 1).max(0),
            None => {}
        }
        let ways = self.sets[set].len();
        let mut lines: Vec<Line> = self.sets[set].iter().copied().flatten().collect();
        if lines.len() < ways {
            return lines.len();
        }
        let least = |key: &dyn Fn(&Line) -> u64| (0..ways).min_by_key(|way| key(&lines[*way]));
        match self.policy {
            "lru" => least(&|line| line.used).unwrap(),
            "fifo" => least(&|line| line.filled).unwrap(),
            "random" => self.rng.below(ways as u32) as usize,
            "plru" => {
                let (mut first, mut end) = (0, ways);
                while end - first > 1 {
                    let middle = usize::midpoint(first, end);
                    // Before any access the lower half is next.
                    let lower = self.upper_last.get(&(set, first, end)) != Some(&false);
                    (first, end) = if lower {
                        (first, middle)
                    } else {
                        (middle, end)
                    };
                }
                first
            }
            "clock" => loop {
                let way = (0..ways).min_by_key(|way| lines[*way].filled).unwrap();
                if lines[way].mark == 0 {
                    self.sets[set] = lines.into_iter().map(Some).collect();
                    break way;
                }
                self.time += 1;
                lines[way].mark = 0;
                lines[way].filled = self.time;
            },
            "drrip" => loop {
                if let Some(way) = lines.iter().position(|line| line.mark == 3) {
                    self.sets[set] = lines.into_iter().map(Some).collect();
                    break way;
                }
                lines.iter_mut().for_each(|line| line.mark += 1);
            },
            other => panic!("no model of {other}"),
        }
    }

    fn flush(&mut self) {
        self.sets.iter_mut().for_each(|set| set.fill(None));
    }
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Access(u64, u32),
    Flush,
}

/// Accesses near each other, some over line ends, and sometimes a flush.
fn steps() -> impl Strategy<Value = Vec<Step>> {
    let near = (0u64..6_000, 1u32..70).prop_map(|(address, size)| Step::Access(address, size));
    let far = (0u64..9, 1u32..40).prop_map(|(at, size)| Step::Access((at << 40) + 50, size));
    let again = (0u64..40, 1u32..17).prop_map(|(at, size)| Step::Access(at * 60, size));
    let step = prop_oneof![40 => near, 10 => far, 60 => again, 1 => Just(Step::Flush)];
    proptest::collection::vec(step, 0..800)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn every_policy_equals_its_model(steps in steps(), line in 4u32..8) {
        for replacement in REPLACEMENTS {
            for (sets, ways) in [(1, 4), (4, 1), (4, 2), (8, 8), (64, 4), (2, 16)] {
                let bytes = u64::from((sets * ways) << line);
                let geometry = Geometry::new(bytes, ways, 1 << line).unwrap();
                let mut level = PolicyLevel::new(geometry, replacement).unwrap();
                let mut model = Model::new(replacement.name, geometry);
                for (at, step) in steps.iter().enumerate() {
                    match *step {
                        Step::Access(address, size) => prop_assert_eq!(
                            level.misses(address, size), model.misses(address, size),
                            "{}, {} sets, {} ways, step {}", replacement.name, sets, ways, at
                        ),
                        Step::Flush => {
                            level.flush();
                            model.flush();
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn lru_by_name_is_the_other_lru_and_all_differ_from_it() {
    let geometry = Geometry::new(4 << 10, 8, 64).unwrap();
    let mut rng = Rng::new(9);
    // Loops a little longer than the cache, and what disturbs them.
    let accesses: Vec<u64> = (0..40_000u64)
        .map(|at| match at % 5 {
            0 => u64::from(rng.below(16 << 10)),
            _ => at * 7 % (5 << 10),
        })
        .collect();
    let mut level = Level::new(geometry);
    let wanted = accesses.iter().filter(|at| level.misses(**at, 8)).count();
    let mut found = BTreeMap::new();
    for replacement in REPLACEMENTS {
        let mut level = PolicyLevel::new(geometry, replacement).unwrap();
        let misses = accesses.iter().filter(|at| level.misses(**at, 8)).count();
        if let Some(other) = found.insert(misses, replacement.name) {
            panic!("{other} and {} are the same", replacement.name);
        }
    }
    assert_eq!(found.get(&wanted), Some(&"lru"));
}

#[test]
fn ways_that_are_no_power_of_two_are_refused() {
    let geometry = Geometry::new(48 << 10, 12, 64).unwrap();
    for replacement in REPLACEMENTS {
        assert!(PolicyLevel::new(geometry, replacement).is_err());
    }
    assert!(Replacement::find("plru").is_some() && Replacement::find("tide").is_none());
}
