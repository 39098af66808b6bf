//! A cache whose blocks are in a file, before and after its process.

use std::path::PathBuf;

use fairlead_base::{Instant, Seed};
use fairlead_http_cache::{
    BlockSize, Cache, Decision, Journal, Next, Now, Read, RequestHead, ResponseHead, Settings,
};
use fairlead_os_memory::BlockFile;

const BYTES: u64 = 4 << 20;

/// Removes its file at the end.
struct Place(PathBuf);

impl Drop for Place {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn now(seconds: u64) -> Now {
    Now {
        wall_ms: 1_790_000_000_000 + seconds * 1_000,
        // The clock of each process begins anew.
        at: Instant::from_millis(5),
    }
}

fn settings() -> Settings {
    let mut settings = Settings::new(BYTES);
    settings.journals = true;
    settings
}

fn body(number: u32) -> Vec<u8> {
    (0..number * 3_001)
        .map(|at| ((at * number) >> 3) as u8)
        .collect()
}

/// What a client reads, or `None` for a miss, which is then stored.
fn get(cache: &mut Cache<BlockFile>, number: u32, now: Now) -> Option<Vec<u8>> {
    let target = format!("/{number}");
    let head = RequestHead {
        method: "GET",
        host: "a.example",
        target: target.as_bytes(),
        fields: &[],
    };
    let mut out = Vec::new();
    let answer = match cache.request(&head, now, &mut out) {
        Decision::Hit { answer, .. } => answer,
        Decision::Fetch(fetch) => {
            let bytes = body(number);
            let head = ResponseHead {
                status: 200,
                phrase: b"OK",
                fields: &[("Cache-Control", b"max-age=100")],
                length: Some(bytes.len() as u64),
            };
            let next = cache.response(fetch.fetch, &head, now, &mut out);
            let Next::Fill(answer) = next else {
                panic!("{next:?}");
            };
            cache.body(fetch.fetch, &bytes, now).expect("it fits");
            cache.finish(fetch.fetch, now).expect("it is whole");
            if let Some(body) = answer.and_then(|answer| answer.body) {
                cache.end(body.reader);
            }
            return None;
        }
        other => panic!("{other:?}"),
    };
    let mut read = Vec::new();
    if let Some(one) = answer.body {
        while let Read::Bytes(bytes) = cache.read(one.reader) {
            read.extend_from_slice(bytes);
            let count = bytes.len() as u64;
            cache.advance(one.reader, count);
        }
        assert_eq!(cache.read(one.reader), Read::End);
        cache.end(one.reader);
    }
    Some(read)
}

fn write(cache: &mut Cache<BlockFile>, journal: &mut Vec<u8>) {
    match cache.poll_journal() {
        Journal::Nothing => {}
        Journal::Append(bytes) => journal.extend(bytes),
        Journal::Replace(bytes) => *journal = bytes,
    }
}

#[test]
fn bodies_in_a_file_are_served_by_the_next_process() {
    let name = format!("fairlead-restart-{}", std::process::id());
    let place = Place(std::env::temp_dir().join(name));
    let _ = std::fs::remove_file(&place.0);
    let open = || BlockFile::open(&place.0, BlockSize::PAGE, settings().lines());
    let mut journal = Vec::new();
    let (store, was_there) = open().expect("a new file");
    assert!(!was_there);
    let mut cache = Cache::restore(settings(), store, Seed::from(1), &journal, now(0));
    for number in 1..30 {
        assert_eq!(get(&mut cache, number, now(0)), None);
        write(&mut cache, &mut journal);
    }
    // One more, of which the journal knows nothing: its blocks are given back.
    assert_eq!(get(&mut cache, 40, now(0)), None);
    drop(cache);
    let (store, was_there) = open().expect("the same file");
    assert!(was_there);
    let mut cache = Cache::restore(settings(), store, Seed::from(2), &journal, now(50));
    cache.check_invariants();
    let known: u64 = (1..30)
        .map(|number| BlockSize::PAGE.blocks(number * 3_001))
        .sum();
    let allocated = cache.store().allocated_bytes().expect("fstat");
    // A file system may count some blocks of its own.
    let own = 65_536;
    assert!(allocated <= known * 4_096 + own, "{allocated}");
    for number in 1..30 {
        assert_eq!(
            get(&mut cache, number, now(50)),
            Some(body(number)),
            "{number}"
        );
    }
    assert_eq!(get(&mut cache, 40, now(50)), None);
    // Time went on while there was no process.
    assert_eq!(get(&mut cache, 7, now(100)), None);
}
