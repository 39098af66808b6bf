//! What outlives the process.

use fairlead_base::{Rng, Seed};

use super::rig::{Got, Rig, hit};
use crate::journal::{Put, Record, fingerprint};
use crate::*;

const HOUR: &str = "Cache-Control: max-age=3600";

fn settings() -> Settings {
    let mut settings = Settings::new(2 << 20);
    settings.journals = true;
    settings
}

/// The file, as a driver writes it.
fn write(rig: &mut Rig, file: &mut Vec<u8>) {
    match rig.cache.poll_journal() {
        Journal::Nothing => {}
        Journal::Append(bytes) => file.extend(bytes),
        Journal::Replace(bytes) => *file = bytes,
    }
}

/// Kills the process, and starts another one.
fn restart(rig: Rig, file: &[u8], settings: Settings) -> Rig {
    let (ms, now) = (rig.ms, rig.now());
    let store = rig.cache.into_store();
    let cache = Cache::restore(settings, store, Seed::from(99), file, now);
    cache.check_invariants();
    Rig {
        cache,
        ms,
        out: Vec::new(),
    }
}

#[test]
fn what_is_stored_is_there_after_a_restart() {
    let mut rig = Rig::with(settings());
    let mut file = Vec::new();
    write(&mut rig, &mut file);
    let long: Vec<u8> = (0..50_000u32).map(|at| (at / 3) as u8).collect();
    rig.store("/long", &[HOUR, "ETag: \"1\"", "xkey: one"], &long);
    rig.store("/short", &[HOUR, "Vary: Accept"], b"short");
    rig.store("/empty", &[HOUR], b"");
    rig.store("/gone", &[HOUR], b"gone");
    rig.store("/tagged", &[HOUR, "xkey: two"], b"tagged");
    rig.store("/soft", &[HOUR, "ETag: \"1\""], b"soft");
    write(&mut rig, &mut file);
    let host = "a.example";
    let purge = |rig: &mut Rig, purge, soft| rig.cache.purge(purge, soft).expect("valid");
    purge(
        &mut rig,
        Purge::Url {
            host,
            target: b"/gone",
        },
        false,
    );
    purge(&mut rig, Purge::Tag(b"two"), false);
    purge(
        &mut rig,
        Purge::Url {
            host,
            target: b"/soft",
        },
        true,
    );
    // A fill that is under way is lost.
    let fetch = rig.fetch("/half");
    rig.respond_with(fetch, 200, &[HOUR], Some(10_000));
    let now = rig.now();
    rig.cache.body(fetch, &[1; 9_000], now).expect("fits");
    write(&mut rig, &mut file);
    rig.pass_seconds(10);
    let mut rig = restart(rig, &file, settings());
    assert_eq!(
        (rig.cache.stats().restored, rig.cache.stats().not_restored),
        (4, 1),
        "all but the tagged one"
    );
    assert_eq!(rig.get("/long"), hit(&long));
    assert_eq!(rig.field("age").as_deref(), Some("10"));
    assert_eq!(rig.field("etag").as_deref(), Some("\"1\""));
    assert_eq!(rig.get("/short"), hit(b"short"));
    assert_eq!(rig.get("/empty"), hit(b""));
    for target in ["/gone", "/tagged", "/half"] {
        let got = rig.get(target);
        assert!(
            matches!(got, Got::Fetch(_, conditions) if conditions.is_empty()),
            "{target}"
        );
    }
    assert!(matches!(rig.get("/soft"), Got::Fetch(_, conditions) if conditions.len() == 1));
    // It goes on: purges by tag still know their objects, and there is a new journal.
    write(&mut rig, &mut file);
    rig.cache.purge(Purge::Tag(b"one"), false).expect("valid");
    write(&mut rig, &mut file);
    let mut rig = restart(rig, &file, settings());
    assert!(matches!(rig.get("/long"), Got::Fetch(..)));
    assert_eq!(rig.get("/short"), hit(b"short"));
}

#[test]
fn another_body_in_its_blocks_is_found() {
    let mut rig = Rig::with(settings());
    let mut file = Vec::new();
    write(&mut rig, &mut file);
    rig.store("/a", &[HOUR], &[b'a'; 5_000]);
    write(&mut rig, &mut file);
    // Killed before the purge was written: the block has been used for something else since.
    rig.cache.purge(Purge::All, false).expect("valid");
    let _ = rig.get("/a");
    rig.store("/b", &[HOUR], &[b'b'; 5_000]);
    let mut rig = restart(rig, &file, settings());
    assert!(matches!(rig.get("/a"), Got::Fetch(..)));
    assert_eq!(rig.cache.stats().not_restored, 1);
    assert_eq!(rig.cache.stats().body_bytes, 0);
}

#[test]
fn a_clock_that_went_back_leaves_nothing_fresh() {
    let mut rig = Rig::with(settings());
    let mut file = Vec::new();
    rig.pass_seconds(10);
    rig.store("/a", &[HOUR, "ETag: \"1\""], b"body");
    write(&mut rig, &mut file);
    rig.ms -= 5_000;
    let mut rig = restart(rig, &file, settings());
    assert!(matches!(rig.get("/a"), Got::Fetch(_, conditions) if conditions.len() == 1));
}

#[test]
fn the_journal_of_other_keys_is_not_used() {
    let mut rig = Rig::with(settings());
    let mut file = Vec::new();
    rig.store("/a", &[HOUR], b"body");
    write(&mut rig, &mut file);
    let mut other = settings();
    other.key = vec![KeyPart::Host, KeyPart::Path];
    let rig = restart(rig, &file, other);
    assert_eq!(rig.cache.stats().objects, 0);
}

#[test]
fn a_journal_is_replaced_before_it_is_long() {
    let mut rig = Rig::with(settings());
    let mut file = Vec::new();
    let mut longest = 0;
    for number in 0..6_000 {
        let target = format!("/{}", number % 40);
        rig.store(&target, &[HOUR], &[number as u8; 100]);
        let url = Purge::Url {
            host: "a.example",
            target: target.as_bytes(),
        };
        rig.cache.purge(url, false).expect("valid");
        write(&mut rig, &mut file);
        longest = longest.max(file.len());
    }
    assert!(longest > 900_000 && longest < 1_200_000, "{longest}");
}

/// Entries that were never stored: none is believed, and none breaks anything.
#[test]
fn a_journal_of_any_records_is_no_danger() {
    for seed in 0..200 {
        let mut rng = Rng::new(seed);
        let mut rig = Rig::with(settings());
        let mut file = Vec::new();
        for number in 0..rng.below(12) {
            rig.store(&format!("/{number}"), &[HOUR], &[number as u8; 6_000]);
        }
        write(&mut rig, &mut file);
        let mut records: Vec<Record> = Record::read_all(&file).collect();
        for record in &mut records {
            if let Record::Put(put) = record {
                change(put, &mut rng);
            }
        }
        for _ in 0..rng.below(5) {
            let (one, two) = (rng.below(20) as usize, rng.below(20) as usize);
            if one.max(two) < records.len() {
                records.swap(one, two);
            }
        }
        let mut file = Vec::new();
        for record in &records {
            record.write(&mut file);
        }
        let mut rig = restart(rig, &file, settings());
        for number in 0..12 {
            match rig.get(&format!("/{number}")) {
                Got::Hit { body, .. } => assert_eq!(body, [number as u8; 6_000]),
                Got::Fetch(..) => {}
                other => panic!("{other:?}"),
            }
        }
    }
    let start = Record::Start {
        fingerprint: fingerprint(&settings()),
        words: [1, 2],
        generation: u64::MAX - 1,
    };
    let mut file = Vec::new();
    start.write(&mut file);
    assert_eq!(
        restart(Rig::with(settings()), &file, settings())
            .cache
            .stats()
            .objects,
        0
    );
}

fn change(put: &mut Put, rng: &mut Rng) {
    match rng.below(9) {
        0 => put.total = rng.next_u64() >> rng.below(64),
        1 => put.lines = vec![rng.below(600); put.lines.len()],
        2 => put.lines.push(rng.below(600)),
        3 => put.url = rng.below(100),
        4 => put.check ^= 1,
        5 => put.verdict.checked = rng.next_u64(),
        6 => put.lines.reverse(),
        _ => {}
    }
}
