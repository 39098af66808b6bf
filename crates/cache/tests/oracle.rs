//! `spec` and `no-migrate` against a slow model: a list of lines with counters that are lowered at
//! every tick, written as the paper (sections 3.3 and 3.4) says it.

use fairlead_base::{Address, Endpoint, Rng};
use fairlead_cache::{Place, Scheme, build};

#[derive(Clone, Copy, PartialEq)]
struct Line {
    session: Option<u32>,
    counter: u32,
    last_access: u64,
}

struct Model {
    lines: Vec<Line>,
    sets: u32,
    ways: u32,
    threshold: u32,
    migrates: bool,
    rng: Rng,
    tick: u32,
    accesses: u64,
    misses: u64,
    migrations: u64,
    second_hits: u64,
    evicted_on: u64,
}

impl Model {
    fn set(&self, bank: u32, set: u32) -> Vec<usize> {
        let begin = (bank * self.sets + set) * self.ways;
        (begin..begin + self.ways)
            .map(|line| line as usize)
            .collect()
    }

    fn is_on(&self, line: usize) -> bool {
        self.lines[line].session.is_some() && self.lines[line].counter >= self.threshold
    }

    /// Empty lines first, then by last access.
    fn least_recent(&self, of: &[usize]) -> usize {
        let age = |line: &usize| match self.lines[*line].session {
            None => 0,
            Some(_) => self.lines[*line].last_access,
        };
        *of.iter().min_by_key(|line| age(line)).unwrap()
    }

    fn access(&mut self, session: u32, tick: u32, places: &[Place]) {
        while self.tick < tick {
            self.tick += 1;
            for line in &mut self.lines {
                line.counter = line.counter.saturating_sub(1);
            }
        }
        self.accesses += 1;
        let place = &places[session as usize];
        let first = [self.set(0, place.first[0]), self.set(1, place.first[1])];
        let second = [self.set(0, place.second[0]), self.set(1, place.second[1])];
        let newcomer = Line {
            session: Some(session),
            counter: 7,
            last_access: self.accesses,
        };
        let is_here = |line: &&usize| self.lines[**line].session == Some(session);
        if let Some(line) = first.concat().iter().find(is_here) {
            self.lines[*line] = newcomer;
            return;
        }
        if self.migrates
            && let Some(line) = second.concat().iter().find(is_here)
        {
            self.second_hits += 1;
            self.lines[*line] = newcomer;
            return;
        }
        self.misses += 1;
        let on = |set: &[usize]| set.iter().filter(|line| self.is_on(**line)).count();
        let set = if on(&first[0]) <= on(&first[1]) {
            &first[0]
        } else {
            &first[1]
        };
        let oldest = self.least_recent(set);
        let mut into = oldest;
        if self.migrates && self.is_on(oldest) {
            let mut migratable = Vec::new();
            for line in set {
                let home = &places[self.lines[*line].session.unwrap() as usize];
                let left = self.set(0, home.second[0]);
                let homes = [left, self.set(1, home.second[1])].concat();
                let off: Vec<_> = homes
                    .into_iter()
                    .filter(|line| !self.is_on(*line))
                    .collect();
                if !off.is_empty() {
                    migratable.push((*line, self.least_recent(&off)));
                }
            }
            if !migratable.is_empty() {
                let drawn = self.rng.below(migratable.len() as u32) as usize;
                let (from, to) = migratable[drawn];
                self.lines[to] = self.lines[from];
                self.migrations += 1;
                into = from;
                self.lines[from].session = None;
            }
        }
        self.evicted_on += u64::from(self.is_on(into));
        self.lines[into] = newcomer;
    }
}

/// Sessions in bursts, more of them than there are lines.
fn stream(rng: &mut Rng, sessions: u32, accesses_a_tick: u32) -> Vec<(u32, u32)> {
    let mut tick = 0;
    let mut active: Vec<u32> = (0..40).map(|_| rng.below(sessions)).collect();
    (0..12_000)
        .map(|_| {
            if rng.below(accesses_a_tick) == 0 {
                tick += 1 + rng.below(20) / 19 * 5;
            }
            let at = rng.below(40) as usize;
            if rng.below(8) == 0 {
                active[at] = rng.below(sessions);
            }
            (active[at], tick)
        })
        .collect()
}

fn compare(seed: u64, name: &str, threshold: u32, ways: u32, accesses_a_tick: u32) -> u64 {
    let mut rng = Rng::new(seed);
    let sessions = 200 + rng.below(400);
    let mut scheme = Scheme::parse(name).unwrap();
    scheme.set(&format!("on_ticks={}", 8 - threshold)).unwrap();
    let geometry = scheme.geometry(1024 * u64::from(ways), 64, ways).unwrap();
    let keys: Vec<Endpoint> = (0..sessions)
        .map(|_| Endpoint {
            addr: Address::v4((rng.next_u64() as u32).to_be_bytes()),
            port: rng.below(65_536) as u16,
        })
        .collect();
    let places = scheme.indexer(&geometry, seed).unwrap().places(&keys);
    let by_session: Vec<Place> = (0..keys.len()).map(|at| places.at(at).unwrap()).collect();
    let empty = Line {
        session: None,
        counter: 0,
        last_access: 0,
    };
    let mut model = Model {
        lines: vec![empty; geometry.lines() as usize],
        sets: geometry.sets(),
        ways,
        threshold,
        migrates: name == "spec",
        rng: Rng::new(seed),
        tick: 0,
        accesses: 0,
        misses: 0,
        migrations: 0,
        second_hits: 0,
        evicted_on: 0,
    };
    let accesses = stream(&mut rng, sessions, accesses_a_tick);
    for (session, tick) in &accesses {
        model.access(*session, *tick, &by_session);
    }
    let (ids, ticks): (Vec<u32>, Vec<u32>) = accesses.into_iter().unzip();
    let mut cache = build(&scheme, &geometry, seed).unwrap();
    cache.run(&ids, &ticks, &[], &places).unwrap();
    let counts = cache.statistics();
    assert_eq!(counts.accesses, model.accesses);
    assert_eq!(counts.misses, model.misses, "misses, {scheme} seed {seed}");
    assert_eq!(counts.migrations, model.migrations);
    assert_eq!(counts.second_lookup_hits, model.second_hits);
    assert_eq!(counts.evicted_on, model.evicted_on);
    let contents: Vec<_> = model.lines.iter().map(|line| line.session).collect();
    assert_eq!(cache.contents(), contents);
    let on = |line: usize| u32::from(model.is_on(line));
    let on_lines: u32 = (0..model.lines.len()).map(on).sum();
    assert_eq!(cache.on_lines().iter().sum::<u32>(), on_lines);
    counts.migrations
}

#[test]
fn the_cache_does_what_the_paper_says() {
    let mut migrations = 0;
    for seed in 0..6 {
        for (ways, accesses_a_tick) in [(4, 3), (4, 12), (4, 40), (2, 20), (8, 60)] {
            for threshold in [4, 1, 7, 8] {
                for name in ["spec", "no-migrate"] {
                    migrations += compare(seed, name, threshold, ways, accesses_a_tick);
                }
            }
        }
    }
    assert!(
        migrations > 10_000,
        "only {migrations} migrations were seen"
    );
}
