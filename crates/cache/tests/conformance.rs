//! What every policy over every index keeps to.

use std::collections::BTreeMap;

use fairlead_base::{Address, Endpoint, Rng};
use fairlead_cache::bounds::{self, Stream};
use fairlead_cache::index::INDEXES;
use fairlead_cache::registry::POLICIES;
use fairlead_cache::{
    Geometry, Lifetime, Lookup, Member, Place, Places, Scheme, Simulate, Statistics, build,
    build_lookup, run_all,
};

const SESSIONS: u32 = 3000;

fn keys() -> Vec<Endpoint> {
    let mut rng = Rng::new(1);
    (0..SESSIONS)
        .map(|number| {
            let word = rng.next_u64() as u32;
            let addr = match number % 8 {
                0 => Address::v6([word as u8; 16]),
                _ => Address::v4(word.to_be_bytes()),
            };
            let port = 1024 + rng.below(256) as u16;
            Endpoint { addr, port }
        })
        .collect()
}

/// A stream in which some sessions come often, in bursts, and time goes forward.
fn stream(seed: u64, count: usize) -> (Vec<u32>, Vec<u32>) {
    let mut rng = Rng::new(seed);
    let (mut tick, mut id) = (0, 0);
    (0..count)
        .map(|_| {
            if rng.below(3) > 0 {
                let bound = rng.below(SESSIONS) + 1;
                id = rng.below(bound);
            }
            tick += u32::from(rng.below(60) == 0);
            (id, tick)
        })
        .unzip()
}

/// Every policy over every index, by turns in other banks and ways.
fn designs() -> Vec<(Scheme, Geometry)> {
    let shapes = [
        (1, 1),
        (2, 4),
        (4, 2),
        (1, 8),
        (2, 1),
        (4, 16),
        (2, 8),
        (1, 4),
    ];
    let mut designs = Vec::new();
    for policy in POLICIES {
        for index in INDEXES {
            let (banks, ways) = shapes[designs.len() % shapes.len()];
            let mut scheme = Scheme::parse("spec").unwrap();
            for setting in [
                format!("policy={}", policy.name),
                format!("index={}", index.name),
                format!("banks={banks}"),
            ] {
                scheme.set(&setting).unwrap();
            }
            let geometry = scheme.geometry(16 << 10, 64, ways).unwrap();
            designs.push((scheme, geometry));
        }
    }
    designs
}

fn simulated(text: &str, ways: u32, seed: u64, ids: &[u32], ticks: &[u32]) -> Statistics {
    let scheme = Scheme::parse(text).unwrap();
    let geometry = scheme.geometry(16 << 10, 64, ways).unwrap();
    let places = scheme.indexer(&geometry, 7).unwrap().places(&keys());
    let mut cache = build(&scheme, &geometry, seed).unwrap();
    cache.run(ids, ticks, &[], &places).unwrap();
    cache.statistics()
}

/// Follows a cache through everything that it says it did.
struct Shadow {
    cache: Box<dyn Lookup<u32>>,
    lines: BTreeMap<u32, u32>,
    bypasses: u64,
}

impl Shadow {
    fn access(&mut self, id: u32, place: &Place, tick: u32, hint: u8) {
        let found = self.cache.lookup(id, place, tick, hint);
        assert_eq!(found.map(|found| found.line), self.lines.get(&id).copied());
        if found.is_some() {
            return;
        }
        let filled = self.cache.fill(id, place, tick, hint);
        if let Some(evicted) = filled.evicted {
            assert!(self.lines.remove(&evicted).is_some(), "evicted twice");
        }
        if let Some((from, to)) = filled.moved {
            let moved = self.lines.values_mut().find(|line| **line == from);
            *moved.expect("a line in use was moved") = to;
        }
        let Some(line) = filled.line else {
            self.bypasses += 1;
            return;
        };
        assert!(self.lines.values().all(|other| *other != line), "taken");
        self.lines.insert(id, line);
        assert_eq!(self.cache.tag(line), Some(id));
        let again = self.cache.lookup(id, place, tick, 0);
        assert_eq!(again.map(|found| found.line), Some(line), "hit after fill");
        // Filling what is there changes nothing.
        assert_eq!(self.cache.fill(id, place, tick, 0).line, Some(line));
    }

    fn check(&self) {
        let held = self.lines.len() as u32;
        assert!(held <= self.cache.geometry().lines());
        assert_eq!(self.cache.occupancy().iter().sum::<u32>(), held);
        for (id, line) in &self.lines {
            assert_eq!(self.cache.tag(*line), Some(*id));
        }
        let counts = self.cache.statistics();
        assert_eq!(counts.misses, counts.fills + counts.bypasses);
        assert_eq!(counts.bypasses, self.bypasses);
        assert!(counts.evicted_on <= counts.evictions && counts.evictions <= counts.fills);
    }
}

#[test]
fn a_cache_does_what_it_says_it_did() {
    let keys = keys();
    for (at, (scheme, geometry)) in designs().into_iter().enumerate() {
        let places = scheme.indexer(&geometry, 7).unwrap().places(&keys);
        let mut shadow = Shadow {
            cache: build_lookup(&scheme, &geometry, 7).unwrap(),
            lines: BTreeMap::new(),
            bypasses: 0,
        };
        let (ids, ticks) = stream(at as u64, 3_000);
        let mut rng = Rng::new(at as u64);
        for (id, tick) in ids.iter().zip(&ticks) {
            let place = places.at(*id as usize).unwrap();
            if rng.below(20) == 0 {
                let removed = shadow.cache.remove(*id, &place);
                assert_eq!(removed, shadow.lines.remove(id), "{scheme}");
            }
            // The wrap of the tick lies in the middle.
            let tick = tick.wrapping_sub(25);
            shadow.access(*id, &place, tick, rng.below(3) as u8);
        }
        shadow.check();
        for on in shadow.cache.on_lines(u32::MAX / 3) {
            assert!(on <= geometry.ways());
        }
    }
}

#[test]
fn ticks_of_any_kind_and_tags_of_no_kind_do_no_harm() {
    let keys = keys();
    for (scheme, geometry) in designs() {
        let places = scheme.indexer(&geometry, 7).unwrap().places(&keys);
        let mut cache = build_lookup::<u32>(&scheme, &geometry, 7).unwrap();
        let mut rng = Rng::new(3);
        for _ in 0..500 {
            let extremes = [
                0,
                1,
                u32::MAX,
                1 << 31,
                (1 << 31) - 1,
                rng.next_u64() as u32,
            ];
            let tick = extremes[rng.below(6) as usize];
            let id = rng.below(SESSIONS);
            let place = places.at(id as usize).unwrap();
            if cache.lookup(id, &place, tick, 255).is_none() {
                cache.fill(id, &place, tick, 255);
            }
            // The tag of empty lines is never found, and sets past the end are wrapped.
            let far = Place {
                first: [u32::MAX; 4],
                second: [u32::MAX; 4],
            };
            assert_eq!(cache.lookup(u32::MAX, &far, tick, 0), None);
            assert_eq!(cache.fill(u32::MAX, &far, tick, 0).line, None);
            assert_eq!(cache.remove(u32::MAX, &far), None);
        }
    }
}

#[test]
fn simulation_is_the_same_by_seed_in_blocks_and_in_batches() {
    let keys = keys();
    let (ids, ticks) = stream(5, 20_000);
    for (scheme, geometry) in designs() {
        let places = scheme.indexer(&geometry, 7).unwrap().places(&keys);
        let mut whole = build(&scheme, &geometry, 11).unwrap();
        whole.run(&ids, &ticks, &[], &places).unwrap();
        let mut parts = build(&scheme, &geometry, 11).unwrap();
        for from in (0..ids.len()).step_by(777) {
            let part = from..(from + 777).min(ids.len());
            let hints = vec![0; part.len()];
            let (ids, ticks) = (&ids[part.clone()], &ticks[part]);
            parts.run(ids, ticks, &hints, &places).unwrap();
        }
        let mut twins: Vec<_> = (0..2)
            .map(|_| build(&scheme, &geometry, 11).unwrap())
            .collect();
        let mut members: Vec<Member<'_>> = twins
            .iter_mut()
            .map(|twin| (twin.as_mut() as &mut dyn Simulate, &places))
            .collect();
        run_all(&mut members, &ids, &ticks, &[]).unwrap();
        let counts = whole.statistics();
        for other in [&parts, &twins[0], &twins[1]] {
            assert_eq!(other.statistics(), counts, "{scheme}");
            assert_eq!(other.contents(), whole.contents(), "{scheme}");
            assert_eq!(other.on_lines(), whole.on_lines(), "{scheme}");
        }
        // One access after the other through the live interface is the same again.
        let mut live = build_lookup::<u32>(&scheme, &geometry, 11).unwrap();
        for (id, tick) in ids.iter().zip(&ticks) {
            let place = places.at(*id as usize).unwrap();
            if live.lookup(*id, &place, *tick, 0).is_none() {
                live.fill(*id, &place, *tick, 0);
            }
        }
        let cold_misses = counts.cold_misses;
        let live_counts = Statistics {
            cold_misses,
            ..live.statistics()
        };
        assert_eq!(live_counts, counts, "{scheme}");
        adds_up(&counts, whole.as_ref(), &ids);
        no_better_than_min(&counts, &geometry, &ids, &places);
    }
}

fn adds_up(counts: &Statistics, cache: &dyn Simulate, ids: &[u32]) {
    let mut distinct = ids.to_vec();
    distinct.sort_unstable();
    distinct.dedup();
    assert_eq!(counts.accesses, ids.len() as u64);
    assert_eq!(counts.cold_misses, distinct.len() as u64);
    assert_eq!(counts.misses, counts.fills + counts.bypasses);
    let held: u32 = cache.occupancy().iter().sum();
    assert_eq!(counts.fills, counts.evictions + u64::from(held));
    assert!(counts.evicted_on <= counts.evictions);
    assert!(counts.second_lookup_hits <= counts.hits());
    let mut contents: Vec<u32> = cache.contents().into_iter().flatten().collect();
    assert_eq!(contents.len() as u32, held);
    contents.sort_unstable();
    contents.dedup();
    assert_eq!(contents.len() as u32, held, "a tag stands twice");
}

fn no_better_than_min(counts: &Statistics, geometry: &Geometry, ids: &[u32], places: &Places) {
    let stream = Stream::new(ids, SESSIONS as usize, 0).unwrap();
    let least = bounds::min_or_bypass(&stream, geometry.lines());
    assert!(bounds::compulsory(&stream) <= least && least <= counts.misses);
    let ways = geometry.ways();
    let greedy = bounds::greedy_furthest(&stream, places, ways, true).unwrap();
    assert!(least <= greedy);
    // With one function a bank, MIN set by set is the optimum.
    let per_set = bounds::min_per_set(&stream, places, ways, true).unwrap();
    if let Some(per_set) = per_set.filter(|_| counts.second_lookup_hits == 0) {
        assert!(counts.migrations > 0 || per_set <= counts.misses);
    }
}

#[test]
fn a_warm_up_is_not_counted() {
    let (ids, ticks) = stream(6, 9_000);
    let scheme = Scheme::parse("spec").unwrap();
    let geometry = Geometry::paper();
    let places = scheme.indexer(&geometry, 7).unwrap().places(&keys());
    let mut cache = build(&scheme, &geometry, 7).unwrap();
    cache.run(&ids, &ticks, &[], &places).unwrap();
    let before = cache.statistics();
    cache.reset_statistics();
    assert_eq!(cache.statistics(), Statistics::default());
    cache.run(&ids, &ticks, &[], &places).unwrap();
    assert_eq!(cache.statistics().cold_misses, 0);
    assert!(cache.statistics().misses < before.misses);
}

#[test]
fn lru_with_more_ways_never_misses_more() {
    let (ids, ticks) = stream(8, 30_000);
    let mut last = u64::MAX;
    for ways in [1, 2, 4, 8, 16] {
        // 16 sets, whatever the ways.
        let scheme = Scheme::parse("universal").unwrap();
        let geometry = scheme.geometry(1024 * u64::from(ways), 64, ways).unwrap();
        let places = scheme.indexer(&geometry, 7).unwrap().places(&keys());
        let mut cache = build(&scheme, &geometry, 7).unwrap();
        cache.run(&ids, &ticks, &[], &places).unwrap();
        let misses = cache.statistics().misses;
        assert!(misses <= last, "{ways} ways");
        last = misses;
    }
}

#[test]
fn designs_that_are_the_same_by_other_names_are_the_same() {
    for seed in 0..4 {
        let (ids, ticks) = stream(seed, 30_000);
        let run = |text: &str, ways| simulated(text, ways, seed, &ids, &ticks);
        for index in ["mod", "pmod"] {
            let one = run(&format!("mod,index={index}"), 8);
            let two = run(&format!("mod,banks=2,index={index}"), 4);
            assert_eq!(one, two, "one hash in both banks is one bank of 8 ways");
        }
        let never = |name: &str| run(&format!("{name},on_ticks=0"), 4);
        assert_eq!(never("spec"), never("no-migrate"), "nothing is ever ON");
        assert_ne!(run("spec", 4), run("no-migrate", 4));
        for name in ["spec", "mod", "2-xor", "pmod", "crc", "2-pdisp"] {
            let masked = format!("{name},bits={:x}:ffff", u128::MAX);
            assert_eq!(run(name, 4), run(&masked, 4), "all bits are all bits");
        }
    }
}

/// One set in one bank is the fully associative cache of as many lines.
#[test]
fn one_set_is_the_whole_queue() {
    for ways in [1, 2, 4, 8, 16] {
        for seed in 0..8 {
            let (mut ids, ticks) = stream(seed, 8_000);
            // Few sessions or many, for the lines that there are.
            let sessions = [ways + 1, ways * 2, ways * 5, SESSIONS][seed as usize % 4];
            ids.iter_mut().for_each(|id| *id %= sessions);
            let counted = Stream::new(&ids, SESSIONS as usize, 0).unwrap();
            let of = |policy: &str| {
                let text = format!("mod,policy={policy}");
                let scheme = Scheme::parse(&text).unwrap();
                let geometry = scheme.geometry(u64::from(ways) * 64, 64, ways).unwrap();
                assert_eq!(geometry.sets(), 1);
                let places = scheme.indexer(&geometry, 7).unwrap().places(&keys());
                let mut cache = build(&scheme, &geometry, seed).unwrap();
                cache.run(&ids, &ticks, &[], &places).unwrap();
                cache.statistics().misses
            };
            let (sieve, clock) = (of("sieve"), of("clock"));
            assert_eq!(
                sieve,
                bounds::sieve(&counted, ways),
                "{ways} ways, {sessions}"
            );
            assert_eq!(
                clock,
                bounds::clock(&counted, ways),
                "{ways} ways, {sessions}"
            );
            assert_eq!(of("lru"), bounds::lru(&counted, ways));
        }
    }
}

/// SIEVE as its paper draws it: a queue, the newest in front, and a hand on an entry of it or, with
/// none, at the tail. Entries that are taken out push the hand on.
#[derive(Default)]
struct Sieve {
    queue: Vec<(u32, bool)>,
    hand: Option<u32>,
}

impl Sieve {
    fn at(&self, id: u32) -> Option<usize> {
        self.queue.iter().position(|(held, _)| *held == id)
    }

    fn take_out(&mut self, at: usize) {
        let (id, _) = self.queue.remove(at);
        if self.hand == Some(id) {
            self.hand = (at > 0).then(|| self.queue[at - 1].0);
        }
    }

    fn access(&mut self, id: u32, lines: usize) -> bool {
        if let Some(at) = self.at(id) {
            self.queue[at].1 = true;
            return true;
        }
        if self.queue.len() == lines {
            let from = self.hand.and_then(|hand| self.at(hand));
            let mut at = from.unwrap_or(lines - 1);
            while std::mem::take(&mut self.queue[at].1) {
                at = at.checked_sub(1).unwrap_or(lines - 1);
            }
            self.hand = Some(self.queue[at].0);
            self.take_out(at);
        }
        self.queue.insert(0, (id, false));
        false
    }
}

#[test]
fn sieve_in_one_set_is_sieve_when_connections_close_too() {
    let scheme = Scheme::parse("mod,policy=sieve").unwrap();
    let place = Place::default();
    for (ways, seed) in [(2, 1), (4, 2), (8, 3), (16, 4)] {
        let geometry = scheme.geometry(u64::from(ways) * 64, 64, ways).unwrap();
        let mut cache = build_lookup::<u32>(&scheme, &geometry, 1).unwrap();
        let mut model = Sieve::default();
        let mut rng = Rng::new(seed);
        for step in 0..20_000 {
            let id = rng.below(ways * 3);
            if rng.below(5) == 0 {
                let removed = cache.remove(id, &place).is_some();
                let held = model.at(id);
                assert_eq!(removed, held.is_some(), "{ways} ways, step {step}");
                held.into_iter().for_each(|at| model.take_out(at));
                continue;
            }
            let hit = cache.lookup(id, &place, 0, 0).is_some();
            if !hit {
                cache.fill(id, &place, 0, 0);
            }
            let wanted = model.access(id, ways as usize);
            assert_eq!(hit, wanted, "{ways} ways, step {step}");
        }
    }
}

/// `timestamp` against a list of stamps, written as section 3.4 of the paper says it: "the line
/// with the least timestamp is replaced".
#[test]
fn the_least_stamp_goes_and_stamps_begin_again_at_0() {
    for (seed, bits) in [(1, 3), (2, 8), (3, 10), (4, 12), (5, 16), (6, 31)] {
        let (ids, ticks) = stream(seed, 40_000);
        let scheme = Scheme::parse(&format!("timestamp16,stamp_bits={bits}")).unwrap();
        let geometry = scheme.geometry(16 << 10, 64, 4).unwrap();
        let places = scheme.indexer(&geometry, 7).unwrap().places(&keys());
        let mut lines: Vec<Option<(u32, u64)>> = vec![None; geometry.lines() as usize];
        let mut misses = 0;
        for (count, id) in (1u64..).zip(&ids) {
            let stamp = count % (1 << bits);
            let place = places.at(*id as usize).unwrap();
            let of_bank = |bank: u32| {
                let set = bank * geometry.sets() + place.first[bank as usize];
                set as usize * 4..set as usize * 4 + 4
            };
            let candidates = || (0..2).flat_map(of_bank);
            let holds = |line: &usize| lines[*line].is_some_and(|(held, _)| held == *id);
            let hit = candidates().find(holds);
            misses += u64::from(hit.is_none());
            let stamp_of = |line: &usize| lines[*line].map(|(_, stamp)| stamp);
            let least = candidates().min_by_key(stamp_of);
            lines[hit.or(least).unwrap()] = Some((*id, stamp));
        }
        let mut cache = build(&scheme, &geometry, seed).unwrap();
        cache.run(&ids, &ticks, &[], &places).unwrap();
        assert_eq!(cache.statistics().misses, misses, "{bits} bits");
        let held: Vec<_> = lines.iter().map(|line| line.map(|(id, _)| id)).collect();
        assert_eq!(cache.contents(), held, "{bits} bits");
        let exact = simulated("2-lru", 4, seed, &ids, &ticks).misses;
        if bits <= 10 {
            assert!(
                misses > exact + exact / 50,
                "{bits} bits: {misses}, {exact}"
            );
        } else if bits >= 16 {
            assert_eq!(misses, exact, "no stamp comes twice");
        }
    }
}

/// The counter's threshold of 0: every line is ON that holds anything.
#[test]
fn where_all_is_on_spec_moves_lines_into_empty_ones_only() {
    let mut scheme = Scheme::parse("spec").unwrap();
    scheme.parameters.lifetime = Lifetime::from_counter(0);
    let geometry = scheme.geometry(16 << 10, 64, 4).unwrap();
    let places = scheme.indexer(&geometry, 7).unwrap().places(&keys());
    for seed in 0..4 {
        let (ids, ticks) = stream(seed, 30_000);
        let mut cache = build(&scheme, &geometry, seed).unwrap();
        cache.run(&ids, &ticks, &[], &places).unwrap();
        assert_eq!(cache.occupancy().iter().sum::<u32>(), geometry.lines());
        assert_eq!(cache.on_lines().iter().sum::<u32>(), geometry.lines());
        assert!(cache.statistics().migrations > 0, "while it filled");
        cache.reset_statistics();
        cache.run(&ids, &ticks, &[], &places).unwrap();
        assert_eq!(cache.statistics().migrations, 0);
    }
}

#[test]
fn streams_that_do_not_fit_are_refused_before_anything_happens() {
    let scheme = Scheme::parse("spec").unwrap();
    let geometry = Geometry::paper();
    let places = scheme.indexer(&geometry, 7).unwrap().places(&keys());
    let mut cache = build(&scheme, &geometry, 7).unwrap();
    let mut said = |ids: &[u32], ticks: &[u32], hints: &[u8], places: &Places| {
        let error = cache.run(ids, ticks, hints, places).unwrap_err();
        error.to_string()
    };
    assert!(said(&[1], &[], &[], &places).contains("equally long"));
    assert!(said(&[1], &[0], &[0, 0], &places).contains("equally long"));
    assert!(said(&[0, u32::MAX], &[0, 0], &[], &places).contains("access 1"));
    assert!(said(&[0, 3000], &[0, 0], &[], &places).contains("3000 sessions"));
    let other = Places::new(1, 64, 0);
    assert!(said(&[], &[], &[], &other).contains("the cache has 2"));
    let half = Places::first_only(2, 64, 0);
    assert!(said(&[], &[], &[], &half).contains("second sets"));
    assert_eq!(cache.statistics(), Statistics::default());
}
