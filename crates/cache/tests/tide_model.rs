//! `tide` against a slow model of it: whole stamps instead of coded bytes, every rule by its
//! definition instead of by tables.

use fairlead_base::{Address, Endpoint, Rng};
use fairlead_cache::{Geometry, Place, Scheme, build};

const EDGES: [u64; 42] = [
    0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 20, 24, 28, 32, 40, 48, 56, 64, 80,
    96, 112, 128, 160, 192, 224, 256, 320, 384, 448, 512, 768, 1024, 1536, 2048, 2560,
];

/// When something was last touched.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Last {
    /// Not told.
    Ebbed,
    /// Not told, for its connection was closed.
    Closed,
    /// In this fine step.
    Fine(u64),
    /// In this coarse step.
    Coarse(u64),
}

#[derive(Clone, Copy, Debug)]
struct State {
    last: Last,
    reused: bool,
}

const NOTHING: State = State {
    last: Last::Ebbed,
    reused: false,
};

#[derive(Clone, Copy)]
struct Line {
    id: Option<u32>,
    state: State,
}

struct Model {
    sets: usize,
    lines: Vec<Line>,
    log: Vec<(u16, State)>,
    log_turn: u32,
    accesses: u64,
    fine: u64,
    hits: [[u32; 41]; 2],
    exposure: [[u32; 41]; 2],
    worths: Option<[[f64; 41]; 2]>,
    /// Rank of the line that is good enough, as a key.
    enough: Key,
    looks: i64,
    misses: u64,
    bypasses: u64,
    moves: u64,
}

/// Lines go in this order: worth (as truncated bits), then the oldest; `None` goes before all.
type Key = Option<(u64, core::cmp::Reverse<u64>, usize)>;

impl Model {
    fn new(geometry: &Geometry) -> Self {
        let lines = geometry.lines() as usize;
        Self {
            sets: geometry.sets() as usize,
            lines: vec![
                Line {
                    id: None,
                    state: NOTHING
                };
                lines
            ],
            log: vec![(0, NOTHING); (lines / 16).clamp(16, 4096)],
            log_turn: 0,
            accesses: 0,
            fine: 0,
            hits: [[0; 41]; 2],
            exposure: [[0; 41]; 2],
            worths: None,
            enough: None,
            looks: 0,
            misses: 0,
            bypasses: 0,
            moves: 0,
        }
    }

    /// Age in fine steps, and in which of the two scales.
    fn age(&self, last: Last) -> Option<(u64, u64)> {
        match last {
            Last::Ebbed | Last::Closed => None,
            Last::Fine(step) => Some((self.fine - step, 0)),
            Last::Coarse(step) => Some(((self.fine / 16 - step) * 16, 1)),
        }
    }

    fn class(&self, state: State) -> Option<(usize, usize)> {
        let (age, _) = self.age(state.last)?;
        let class = (0..41).rev().find(|class| EDGES[*class] <= age);
        Some((usize::from(state.reused), class.expect("begins at 0")))
    }

    fn count_hit(&mut self, state: State) {
        if let Some((reuse, class)) = self.class(state) {
            self.hits[reuse][class] += 1;
        }
    }

    fn key(&self, state: State) -> Key {
        let (age, scale) = self.age(state.last)?;
        let (reuse, class) = self.class(state)?;
        let worth = self
            .worths
            .map_or(0, |worths| worths[reuse][class].to_bits() >> 20);
        // The last number decides between states that are alike in everything else.
        let within = match scale {
            0 => age as usize,
            _ => 64 + age as usize / 16,
        };
        Some((worth, core::cmp::Reverse(age), reuse * 127 + within))
    }

    fn aged(&self, state: State) -> State {
        let last = match state.last {
            Last::Fine(step) if self.fine - step >= 52 => Last::Coarse(step / 16),
            Last::Coarse(step) if self.fine / 16 - step >= 60 => Last::Ebbed,
            last => last,
        };
        match last {
            Last::Ebbed => NOTHING,
            last => State { last, ..state },
        }
    }

    fn look(&mut self, state: State) -> State {
        if let Some((reuse, class)) = self.class(state) {
            self.exposure[reuse][class] += 8;
            if class == 1 {
                self.exposure[reuse][0] += 4;
            }
        }
        self.aged(state)
    }

    fn step(&mut self) {
        self.fine += 1;
        let eighth = (self.fine as usize - 1) % 8;
        let lines = self.lines.len() / 8;
        for at in eighth * lines..(eighth + 1) * lines {
            self.lines[at].state = self.look(self.lines[at].state);
        }
        let entries = self.log.len() / 8;
        for at in eighth * entries..(eighth + 1) * entries {
            self.log[at].1 = self.look(self.log[at].1);
        }
        if self.fine.is_multiple_of(32) {
            self.order();
        }
    }

    /// The fit by its formula: at each class the least, over begins before it, of the greatest
    /// mean up to an end after it.
    fn pooled(&self) -> [f64; 41] {
        let sum = |of: &[[u32; 41]; 2], from: usize, to: usize, least: f64| -> f64 {
            (from..=to)
                .map(|class| f64::from(of[0][class] + of[1][class]) + least)
                .sum()
        };
        core::array::from_fn(|class| {
            let greatest = |from| {
                (class..41)
                    .map(|to| sum(&self.hits, from, to, 1e-3) / sum(&self.exposure, from, to, 1e-2))
                    .fold(0.0, f64::max)
            };
            (0..=class).map(greatest).fold(f64::INFINITY, f64::min)
        })
    }

    fn order(&mut self) {
        let pooled = self.pooled();
        let mut worths = [[0.0; 41]; 2];
        for (reuse, worths) in worths.iter_mut().enumerate() {
            let likely = |hits: f64, expected: f64, supposed: f64| {
                let (hits, expected) = (hits + 0.5, expected + 0.5);
                let least = (hits.sqrt() - 0.6).powi(2) / 1.1;
                let most = ((hits + 0.25).sqrt() + 0.6).powi(2) * 1.1;
                if supposed * expected < least {
                    least / expected
                } else if supposed * expected > most {
                    most / expected
                } else {
                    supposed
                }
            };
            let hits = |at: usize| f64::from(self.hits[reuse][at]);
            let at_pooled = |at: usize| f64::from(self.exposure[reuse][at]) * pooled[at];
            let of_all = likely((0..41).map(hits).sum(), (0..41).map(at_pooled).sum(), 1.0);
            let rate = |class: usize| {
                let beside = || (0..41usize).filter(|at| at.abs_diff(class) == 1);
                let hits = hits(class) + 0.5 * beside().map(hits).sum::<f64>();
                let expected = at_pooled(class) + 0.5 * beside().map(at_pooled).sum::<f64>();
                pooled[class] * likely(hits, expected, of_all)
            };
            for (from, worth) in worths.iter_mut().enumerate() {
                // Kept until the end of each class in turn.
                let (mut hits, mut time, mut alive) = (0.0, 0.0, 1.0);
                for class in from..41 {
                    let width = (EDGES[class + 1] - EDGES[class]) as f64;
                    let stays = 1.0 / (1.0 + rate(class) * width);
                    hits += alive * (1.0 - stays);
                    time += alive * (1.0 - stays) / rate(class);
                    alive *= stays;
                    *worth = f64::max(*worth, hits / time);
                }
            }
            for class in (0..40).rev() {
                if worths[class + 1] > worths[class] {
                    worths[class] = worths[class + 1].min(worths[class] * 1.1);
                }
            }
            worths[0] *= 1.1;
        }
        self.worths = Some(worths);
        for (hits, exposure) in self
            .hits
            .as_flattened_mut()
            .iter_mut()
            .zip(self.exposure.as_flattened_mut())
        {
            if *hits >= 1 << 12 || *exposure >= 1 << 20 {
                *hits /= 2;
                *exposure /= 2;
            }
        }
        let mut keys: Vec<Key> = self.lines.iter().map(|line| self.key(line.state)).collect();
        keys.sort();
        self.enough = keys[self.lines.len() / 64 - 1];
    }

    fn note(&mut self, place: &[usize; 4], state: State) {
        let mut mark = 0u32;
        for set in place {
            mark = mark.rotate_left(7) ^ (*set as u32).wrapping_mul(0x9E37_79B1);
        }
        let mark = (mark >> 16) as u16 ^ mark as u16;
        self.log_turn += 1;
        let at = place[0] % self.log.len();
        let (held, watched) = self.log[at];
        if self.age(watched.last).is_some() {
            if held == mark {
                self.log[at].1 = NOTHING;
                self.count_hit(watched);
            }
        } else if self.log_turn.is_multiple_of(8) {
            self.log[at] = (mark, state);
        }
    }

    fn access(&mut self, id: u32, places: &[[usize; 4]], hint: u8) {
        self.looks = (self.looks + 14).min(2048);
        self.accesses += 1;
        if self.accesses.is_multiple_of(self.lines.len() as u64 / 8) {
            self.step();
        }
        let place = &places[id as usize];
        let fresh = |reused| State {
            last: Last::Fine(self.fine),
            reused,
        };
        let lines_of = |place: &[usize; 4]| -> Vec<usize> {
            place.iter().flat_map(|set| set * 4..set * 4 + 4).collect()
        };
        let found = lines_of(place)
            .into_iter()
            .find(|line| self.lines[*line].id == Some(id));
        if let Some(line) = found {
            let state = self.lines[line].state;
            let touched = fresh(true);
            self.count_hit(state);
            self.note(place, touched);
            let closed = hint == 1 || state.last == Last::Closed && hint != 2;
            self.lines[line].state = if closed {
                State {
                    last: Last::Closed,
                    ..touched
                }
            } else {
                touched
            };
            return;
        }
        self.misses += 1;
        let newcomer = fresh(false);
        self.note(place, newcomer);
        let enough = if self.lines.iter().any(|line| line.id.is_none()) {
            None
        } else {
            self.enough
        };
        // (line, whose line moves there)
        let mut seen: Vec<(usize, Option<usize>)> = Vec::new();
        let mut best = (self.key(newcomer), None);
        let mut widen = |model: &Self, sets: &[usize; 4], parent, best: &mut (Key, _)| {
            for set in sets {
                if seen.iter().any(|(line, _)| line / 4 == *set) {
                    continue;
                }
                for line in set * 4..set * 4 + 4 {
                    seen.push((line, parent));
                    if model.key(model.lines[line].state) < best.0 {
                        *best = (model.key(model.lines[line].state), Some((line, parent)));
                    }
                }
            }
            seen.len() as i64
        };
        let mut looked = widen(self, place, None, &mut best);
        let limit = self.looks.max(looked);
        for parent in lines_of(place) {
            if best.0 <= enough || looked >= limit {
                break;
            }
            if let Some(owner) = self.lines[parent].id {
                looked = widen(self, &places[owner as usize], Some(parent), &mut best);
            }
        }
        self.looks = (self.looks - looked - 16).max(-2048);
        let Some((line, parent)) = best.1 else {
            self.bypasses += 1;
            return;
        };
        let mut into = line;
        if let Some(parent) = parent {
            let moving = self.lines[parent];
            self.lines[line] = Line {
                state: self.aged(moving.state),
                ..moving
            };
            self.moves += 1;
            into = parent;
        }
        let last = if hint == 1 {
            Last::Closed
        } else {
            newcomer.last
        };
        self.lines[into] = Line {
            id: Some(id),
            state: State { last, ..newcomer },
        };
    }
}

/// Bursts, rounds and strangers, in phases, so that the order learned changes.
fn stream(count: usize, seed: u64) -> (Vec<u32>, Vec<u8>) {
    let mut rng = Rng::new(seed);
    let mut ids = Vec::with_capacity(count);
    let mut round = 0;
    while ids.len() < count {
        let phase = ids.len() / (count / 4);
        match (phase, rng.below(4)) {
            (0, _) | (_, 0) => {
                let id = rng.below(700);
                (0..=rng.below(6)).for_each(|_| ids.push(id));
            }
            (1, _) => {
                round = (round + 1) % 400;
                ids.push(700 + round);
            }
            (2, _) => ids.push(rng.below(rng.clone().below(1500) + 1)),
            _ => ids.push(rng.below(120)),
        }
    }
    ids.truncate(count);
    let hints = ids
        .iter()
        .map(|_| {
            if rng.below(10) == 0 {
                1 + rng.below(2) as u8
            } else {
                0
            }
        })
        .collect();
    (ids, hints)
}

#[test]
fn tide_does_what_its_slow_model_does() {
    for (capacity, seed, hinted) in [
        (8 << 10, 1, false),
        (8 << 10, 2, true),
        (32 << 10, 3, false),
    ] {
        let scheme = Scheme::parse("tide").unwrap();
        let geometry = scheme.geometry(capacity, 64, 4).unwrap();
        let mut rng = Rng::new(seed);
        let keys: Vec<Endpoint> = (0..1500)
            .map(|_| Endpoint {
                addr: Address::v4((rng.next_u64() as u32).to_be_bytes()),
                port: 1024 + rng.below(256) as u16,
            })
            .collect();
        let places = scheme.indexer(&geometry, seed).unwrap().places(&keys);
        let sets = geometry.sets() as usize;
        let rows: Vec<[usize; 4]> = (0..keys.len())
            .map(|at| {
                let Place { first, second } = places.at(at).unwrap();
                let through = |bank: usize, set: u32| bank * sets + set as usize;
                [
                    through(0, first[0]),
                    through(1, first[1]),
                    through(0, second[0]),
                    through(1, second[1]),
                ]
            })
            .collect();
        let (ids, hints) = stream(40_000, seed);
        let hints = if hinted { hints } else { vec![0; ids.len()] };
        let mut cache = build(&scheme, &geometry, seed).unwrap();
        let mut model = Model::new(&geometry);
        for (at, (ids, hints)) in ids.chunks(500).zip(hints.chunks(500)).enumerate() {
            let ticks = vec![at as u32; ids.len()];
            cache.run(ids, &ticks, hints, &places).unwrap();
            for (id, hint) in ids.iter().zip(hints) {
                model.access(*id, &rows, *hint);
            }
            let held: Vec<Option<u32>> = model.lines.iter().map(|line| line.id).collect();
            assert_eq!(cache.contents(), held, "seed {seed}, block {at}");
        }
        let counts = cache.statistics();
        assert_eq!(
            (counts.misses, counts.bypasses, counts.migrations),
            (model.misses, model.bypasses, model.moves)
        );
        assert!(model.moves > 0 && model.worths.is_some() && model.sets == sets);
    }
}
