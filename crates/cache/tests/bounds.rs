//! Bounds against slow twins.

use fairlead_base::Rng;
use fairlead_cache::bounds::{self, Stream};

fn stream(seed: u64, count: usize, sessions: u32) -> Vec<u32> {
    let mut rng = Rng::new(seed);
    (0..count)
        .map(|_| {
            let bound = rng.below(sessions) + 1;
            rng.below(bound)
        })
        .collect()
}

/// Misses of a list that is kept in order: front first to go; `touch` and `victim` make the policy.
fn slow(
    ids: &[u32],
    lines: usize,
    mut on_hit: impl FnMut(&mut Vec<(u32, bool)>, usize),
    mut victim: impl FnMut(&mut Vec<(u32, bool)>, usize) -> usize,
) -> u64 {
    let mut held: Vec<(u32, bool)> = Vec::new();
    let mut misses = 0;
    for (now, id) in ids.iter().enumerate() {
        if let Some(at) = held.iter().position(|(other, _)| other == id) {
            on_hit(&mut held, at);
            continue;
        }
        misses += 1;
        if held.len() == lines {
            let at = victim(&mut held, now);
            held.remove(at);
        }
        held.push((*id, false));
    }
    misses
}

#[test]
fn fully_associative_caches_equal_their_slow_twins() {
    for (seed, lines) in [(1, 1), (2, 2), (3, 7), (4, 32), (5, 300)] {
        let ids = stream(seed, 6_000, 200);
        let fast = Stream::new(&ids, 200, 0).unwrap();
        let mark = |held: &mut Vec<(u32, bool)>, at: usize| held[at].1 = true;
        let first = |_: &mut Vec<(u32, bool)>, _: usize| 0;
        let to_back = |held: &mut Vec<(u32, bool)>, at: usize| {
            let entry = held.remove(at);
            held.push(entry);
        };
        let cap = lines as usize;
        assert_eq!(bounds::lru(&fast, lines), slow(&ids, cap, to_back, first));
        assert_eq!(
            bounds::fifo(&fast, lines),
            slow(&ids, cap, |_, _| {}, first)
        );
        let second_chance = |held: &mut Vec<(u32, bool)>, _: usize| {
            while held[0].1 {
                let (id, _) = held.remove(0);
                held.push((id, false));
            }
            0
        };
        let slow_clock = slow(&ids, cap, mark, second_chance);
        assert_eq!(bounds::clock(&fast, lines), slow_clock);
        // The hand stays with the entry after the one that left.
        let mut hand = 0;
        let pass = |held: &mut Vec<(u32, bool)>, _: usize| {
            let mut at = if hand < held.len() { hand } else { 0 };
            while held[at].1 {
                held[at].1 = false;
                at = (at + 1) % held.len();
            }
            // At the newest entry the hand begins anew, for the newcomer comes behind it.
            hand = if at + 1 == held.len() { usize::MAX } else { at };
            at
        };
        assert_eq!(bounds::sieve(&fast, lines), slow(&ids, cap, mark, pass));
        let furthest = |held: &mut Vec<(u32, bool)>, now: usize| {
            let next = |id: u32| ids[now..].iter().position(|other| *other == id);
            let uses = held.iter().map(|(id, _)| next(*id).unwrap_or(usize::MAX));
            let (at, _) = uses.enumerate().max_by_key(|(_, next)| *next).unwrap();
            at
        };
        assert_eq!(
            bounds::min(&fast, lines),
            slow(&ids, cap, |_, _| {}, furthest)
        );
    }
}

/// What libCacheSim 0.3.5's `S3FIFO` misses on the streams of these seeds, by number of lines. With
/// fewer than 20 its small queue has room for one, and it lets nobody in.
#[test]
fn s3_fifo_misses_what_libcachesim_misses() {
    let lines = [20, 32, 50, 100, 200];
    let misses = [
        [6_805, 6_236, 5_527, 3_926, 1_763],
        [6_749, 6_194, 5_491, 3_918, 1_685],
        [6_858, 6_290, 5_620, 4_020, 1_796],
        [6_854, 6_252, 5_584, 4_037, 1_773],
        [6_790, 6_200, 5_482, 3_934, 1_815],
        [6_797, 6_268, 5_650, 4_074, 1_832],
    ];
    for (seed, misses) in misses.into_iter().enumerate() {
        let ids = stream(seed as u64, 8_000, 400);
        let stream = Stream::new(&ids, 400, 0).unwrap();
        assert_eq!(lines.map(|lines| bounds::s3_fifo(&stream, lines)), misses);
    }
}

#[test]
fn bounds_are_in_their_order() {
    for seed in 0..8 {
        let ids = stream(seed, 8_000, 400);
        let stream = Stream::new(&ids, 400, 1_000).unwrap();
        let compulsory = bounds::compulsory(&stream);
        let mut last = u64::MAX;
        for lines in [1, 4, 16, 64, 256, 400, 4_000] {
            let bypassing = bounds::min_or_bypass(&stream, lines);
            let least = bounds::min(&stream, lines);
            assert!(compulsory <= bypassing && bypassing <= least && least <= last);
            for misses in [
                bounds::lru(&stream, lines),
                bounds::fifo(&stream, lines),
                bounds::clock(&stream, lines),
                bounds::sieve(&stream, lines),
                bounds::s3_fifo(&stream, lines),
            ] {
                assert!(least <= misses && misses <= 7_000);
                assert!(lines < 400 || misses == compulsory);
            }
            last = least;
        }
        assert_eq!(bounds::min(&stream, 0), 7_000);
    }
}

#[test]
fn a_stream_that_does_not_fit_is_refused() {
    let error = Stream::new(&[0, 5], 5, 0).unwrap_err().to_string();
    assert!(error.contains("number 5 at access 1"), "{error}");
}

#[test]
fn whoever_watches_is_told_of_all_and_can_end_it() {
    use std::sync::atomic::{AtomicUsize, Ordering};
    type Bound = fn(&Stream<'_>, u32) -> u64;
    let ids = stream(1, 400_000, 300);
    let plain = Stream::new(&ids, 300, 100_000).unwrap();
    let all: [Bound; 8] = [
        |stream, _| bounds::compulsory(stream),
        bounds::lru,
        bounds::fifo,
        bounds::clock,
        bounds::sieve,
        bounds::s3_fifo,
        bounds::min,
        bounds::min_or_bypass,
    ];
    for bound in all {
        let done = AtomicUsize::new(0);
        let count = |more| {
            done.fetch_add(more, Ordering::Relaxed);
            true
        };
        assert_eq!(bound(&plain.watched(&count), 64), bound(&plain, 64));
        assert_eq!(done.load(Ordering::Relaxed), ids.len());
        let asked = AtomicUsize::new(0);
        let stop = |_| {
            asked.fetch_add(1, Ordering::Relaxed);
            false
        };
        bound(&plain.watched(&stop), 64);
        assert_eq!(asked.load(Ordering::Relaxed), 1, "asked once, it ends");
    }
}
