//! Memory caches against an LRU that is a plain list for each set.

use fairlead_cache::memory::{Depths, FamilySet, Geometry, Hierarchy, Level, Missed, Side};
use proptest::prelude::*;

/// Line numbers of each set, the most recently used first.
struct Naive {
    geometry: Geometry,
    sets: Vec<Vec<u64>>,
}

impl Naive {
    fn new(geometry: Geometry) -> Self {
        let sets = vec![Vec::new(); geometry.sets() as usize];
        Self { geometry, sets }
    }

    /// True if any line of the access was absent.
    fn misses(&mut self, address: u64, size: u32) -> bool {
        let line = u64::from(self.geometry.line_bytes());
        let mut absent = false;
        for number in address / line..=(address + u64::from(size) - 1) / line {
            let at = (number % self.sets.len() as u64) as usize;
            let set = &mut self.sets[at];
            let before = set.len();
            set.retain(|one| *one != number);
            absent |= set.len() == before;
            set.insert(0, number);
            set.truncate(self.geometry.ways() as usize);
        }
        absent
    }

    fn flush(&mut self) {
        self.sets.iter_mut().for_each(Vec::clear);
    }
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Access(u64, u32),
    Flush,
}

/// Accesses near each other, some over line ends, some far away, and sometimes a flush.
fn steps() -> impl Strategy<Value = Vec<Step>> {
    let near = (0u64..6_000, 1u32..40).prop_map(|(address, size)| Step::Access(address, size));
    let far = (0u64..4, 0u64..400, 1u32..9)
        .prop_map(|(region, low, size)| Step::Access((region << 33) + 4_194_100 + low, size));
    let again = (0u64..8, 1u32..17).prop_map(|(at, size)| Step::Access(at * 60, size));
    let step = prop_oneof![
        40 => near,
        10 => far,
        40 => again,
        1 => Just(Step::Flush)
    ];
    proptest::collection::vec(step, 0..600)
}

const SETS: [u32; 4] = [1, 4, 8, 64];
const WAYS: [u32; 6] = [1, 2, 4, 8, 12, 16];

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn a_family_equals_each_cache_alone(steps in steps(), line in 4u32..8, batch in 1usize..200) {
        let line_bytes = 1 << line;
        let mut families = FamilySet::new(line_bytes, &SETS).unwrap();
        let mut depths = vec![Depths::default(); SETS.len()];
        let mut alone: Vec<(usize, u32, Naive, Level, u64)> = Vec::new();
        for (at, sets) in SETS.iter().enumerate() {
            for ways in WAYS {
                let bytes = u64::from(sets * ways * line_bytes);
                let geometry = Geometry::new(bytes, ways, line_bytes).unwrap();
                alone.push((at, ways, Naive::new(geometry), Level::new(geometry), 0));
            }
        }
        let mut accesses = 0;
        for step in &steps {
            match *step {
                Step::Access(address, size) => {
                    families.feed().push(address, size).unwrap();
                    for (_, ways, naive, level, misses) in &mut alone {
                        let missed = naive.misses(address, size);
                        prop_assert_eq!(missed, level.access(address, size) == *ways);
                        *misses += u64::from(missed);
                    }
                }
                Step::Flush => {
                    accesses += families.run(&mut depths);
                    families.flush();
                    for (_, _, naive, level, _) in &mut alone {
                        naive.flush();
                        level.flush();
                    }
                }
            }
            if families.feed().waiting() >= batch {
                accesses += families.run(&mut depths);
            }
        }
        accesses += families.run(&mut depths);
        let asked = steps.iter().filter(|step| matches!(step, Step::Access(..))).count();
        prop_assert_eq!(accesses, asked as u64);
        for (at, ways, _, _, misses) in &alone {
            let counted = depths[*at].misses(*ways as usize);
            prop_assert_eq!(counted, *misses, "{} sets, {} ways", SETS[*at], ways);
        }
    }

    #[test]
    fn two_levels_equal_naive_ones(steps in steps()) {
        let geometry = |bytes, ways, line| Geometry::new(bytes, ways, line).unwrap();
        let (first, second) = (geometry(1 << 10, 2, 32), geometry(6 << 10, 12, 64));
        let mut caches = Hierarchy::new(geometry(512, 1, 16), first, second);
        let mut naive = [geometry(512, 1, 16), first, second].map(Naive::new);
        for (at, step) in steps.iter().enumerate() {
            let Step::Access(address, size) = *step else {
                continue;
            };
            let side = [Side::Instruction, Side::Read, Side::Write][at % 3];
            // An instruction is at most 15 bytes long; data are cut to the shortest line.
            let size = if side == Side::Instruction { size.min(15) } else { size };
            let cut = size.min(16);
            let l1 = usize::from(side != Side::Instruction);
            let wanted = match naive[l1].misses(address, cut) {
                false => Missed::No,
                true if naive[2].misses(address, cut) => Missed::Both,
                true => Missed::First,
            };
            prop_assert_eq!(caches.access(side, address, size), wanted);
        }
    }
}

#[test]
fn a_thousand_flushes_leave_nothing_behind() {
    let mut families = FamilySet::new(64, &[1, 16]).unwrap();
    let mut depths = [Depths::default(); 2];
    for _ in 0..3_000 {
        for region in 0..5u64 {
            families.feed().push(region << 30, 8).unwrap();
        }
        families.run(&mut depths);
        families.flush();
    }
    assert_eq!(depths[0].misses(16), 15_000);
    assert_eq!(depths[1].misses(1), 15_000);
}

#[test]
fn impossible_families_are_refused() {
    let said = |line, sets: &[u32]| FamilySet::new(line, sets).unwrap_err().to_string();
    assert!(said(64, &[3]).contains("2 or 4"));
    assert!(said(64, &[1 << 17]).contains("at most 65536"));
    assert!(said(8, &[4]).contains("at least 16"));
}
