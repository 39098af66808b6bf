//! Content caches against an independent slow simulator, bounds above every policy, and the code of
//! the live path against the laboratory's.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};

use fairlead_base::Rng;
use fairlead_content::{
    Admission, BlockSize, Command, FileId, HostAddress, Part, Policy, Revision, Sender,
    SenderConfig,
};
use fairlead_lab::content::bounds::{Upper, belady_block_hits};
use fairlead_lab::content::{Cell, CellResult, Responses, Row, Split, Unit, simulate};
use fairlead_lab::{Loader, Silent, Size, StreamSpec};

/// LRU caches, one block or file at a time, in a list.
fn slow(responses: &Responses, cell: &Cell) -> u64 {
    let capacity = cell.blocks() as usize;
    let mut caches = vec![VecDeque::new(); cell.caches as usize];
    let mut saved = 0;
    for at in 0..responses.len() {
        let (file, bytes) = (responses.file[at], responses.bytes[at]);
        let file_bytes = responses.file_bytes[file as usize];
        if file_bytes > cell.size.0 {
            continue;
        }
        let cache = &mut caches[cell.split.cache(at, responses, cell.caches)];
        let mut use_it = |key: (u32, u64), weight: usize, bytes: u64| {
            let known = cache.iter().position(|(other, _)| *other == key);
            if let Some(at) = known {
                cache.remove(at);
                saved += bytes;
            }
            cache.push_back((key, weight));
            while cache.iter().map(|(_, weight)| weight).sum::<usize>() > capacity {
                cache.pop_front();
            }
        };
        match cell.unit {
            Unit::File => use_it((file, 0), file_bytes.div_ceil(4_096) as usize, bytes),
            Unit::Block => {
                for index in 0..bytes.div_ceil(4_096) {
                    use_it((file, index), 1, (bytes - index * 4_096).min(4_096));
                }
            }
        }
    }
    saved
}

/// Responses of skewed files; with `varying`, of different parts of them.
fn drawn(seed: u64, count: usize, varying: bool) -> Responses {
    let mut rng = Rng::new(seed);
    let sizes: Vec<u64> = (0..60).map(|_| 1 + u64::from(rng.below(40_000))).collect();
    Responses::from_pairs((0..count).map(|_| {
        let file = rng.below(60).min(rng.below(60));
        let whole = sizes[file as usize];
        let part = varying && rng.chance(400_000);
        let bytes = if part {
            1 + u64::from(rng.below(whole as u32))
        } else {
            whole
        };
        (file, bytes)
    }))
}

fn cells(policies: &[Policy]) -> Vec<Cell> {
    let mut cells = Vec::new();
    for policy in policies {
        for unit in [Unit::Block, Unit::File] {
            for (caches, split) in [
                (1, Split::Alternate),
                (2, Split::Alternate),
                (2, Split::Halves),
            ] {
                for blocks in [1, 4, 10, 40, 120] {
                    cells.push(Cell {
                        size: Size(blocks * 4_096),
                        caches,
                        split,
                        unit,
                        policy: *policy,
                        ..Cell::default()
                    });
                }
            }
        }
    }
    cells
}

fn run(responses: &Responses, cells: &[Cell]) -> Vec<CellResult> {
    simulate(responses, cells, 1, &Silent).unwrap()
}

#[test]
fn lru_agrees_with_a_slow_simulator() {
    for (seed, varying) in [(1, false), (2, true), (3, true)] {
        let responses = drawn(seed, 1_500, varying);
        for result in run(&responses, &cells(&[Policy::Lru])) {
            let wanted = slow(&responses, &result.cell);
            assert_eq!(result.count.bytes, wanted, "{:?}", result.cell);
        }
    }
}

#[test]
fn no_policy_exceeds_the_bounds() {
    for varying in [false, true] {
        let responses = drawn(4, 4_000, varying);
        for result in run(&responses, &cells(&Policy::ALL)) {
            let (cell, count) = (result.cell, result.count);
            let upper = Upper::new(&responses, &cell).bytes(cell.size.0);
            assert!(count.bytes <= upper, "{cell:?}: {} of {upper}", count.bytes);
            assert!(upper <= responses.response_bytes());
            if cell.unit == Unit::Block {
                let best = belady_block_hits(&responses, &cell).unwrap();
                assert!(count.blocks <= best, "{cell:?}: {} of {best}", count.blocks);
            }
        }
    }
}

#[test]
fn the_upper_bound_is_near_a_policy_when_all_fits() {
    let responses = drawn(5, 2_000, false);
    let cell = Cell {
        size: Size(4 << 20),
        ..Cell::default()
    };
    let saved = run(&responses, &[cell])[0].count.bytes;
    assert_eq!(Upper::new(&responses, &cell).bytes(cell.size.0), saved);
}

#[test]
fn other_policies_agree_with_lru_in_a_cache_that_is_never_full() {
    let responses = drawn(6, 1_000, true);
    let large = |policy: Policy| Cell {
        size: Size(8 << 20),
        policy,
        ..Cell::default()
    };
    let results = run(&responses, &Policy::ALL.map(large));
    for result in &results {
        assert_eq!(result.count, results[0].count, "{}", result.cell.policy);
    }
    assert!(results[0].count.bytes > 0);
}

/// The code that a driver runs, on the same responses: one packet per block.
#[test]
fn the_senders_directory_saves_what_the_laboratory_says() {
    let responses = drawn(7, 3_000, false);
    let block = BlockSize::PAGE;
    for policy in Policy::ALL {
        let cell = Cell {
            size: Size(40 * 4_096),
            policy,
            ..Cell::default()
        };
        let mut sender = Sender::new(SenderConfig {
            cache_bytes: cell.size.0,
            block,
            policy,
            admission: Admission::up_to_the_cache(cell.size.0),
            seed: 1,
        });
        let mut memory = 0;
        for at in 0..responses.len() {
            let (file, bytes) = (responses.file[at], responses.bytes[at]);
            let file_bytes = responses.file_bytes[file as usize];
            for index in 0..block.blocks(bytes) {
                let offset = index * 4_096;
                let part = Part::File {
                    file: FileId {
                        device: 1,
                        inode: u64::from(file),
                    },
                    revision: Revision(1),
                    file_bytes,
                    offset,
                    from: HostAddress(offset),
                    len: (bytes - offset).min(4_096) as u32,
                };
                sender.packet(&[part], true, &mut |command| match command {
                    Command::Insert { to, .. } => memory += u64::from(to.len),
                    Command::AppendMemory { len, .. } => memory += u64::from(len),
                    _ => {}
                });
            }
        }
        let saved = run(&responses, &[cell])[0].count.bytes;
        assert_eq!(sender.counts().bytes_saved, saved, "{policy}");
        assert_eq!(memory, responses.response_bytes() - saved, "{policy}");
        assert_eq!(sender.traffic().bytes.content, memory, "{policy}");
    }
}

fn read(path: &Path) -> Result<Responses, String> {
    let made = StreamSpec {
        max_bad: 0.1,
        ..StreamSpec::file(path)
    };
    let log = Loader::default()
        .log(path, &made, &Silent)
        .map_err(|error| error.to_string())?;
    Responses::of(&log.requests, "log").map_err(|error| error.to_string())
}

#[test]
fn excerpts_of_public_logs_are_simulated() {
    let traces = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/traces");
    for name in [
        "nasa.log",
        "epa.log",
        "calgary.log",
        "worldcup.csv",
        "combined.log",
    ] {
        let responses = read(&traces.join(name)).unwrap();
        let cells = [4, 16, 64, 256].map(|blocks: u64| Cell {
            size: Size(blocks * 4_096),
            ..Cell::default()
        });
        let results = run(&responses, &cells);
        for result in &results {
            assert_eq!(result.count.bytes, slow(&responses, &result.cell), "{name}");
        }
        assert!(results[3].count.bytes > 0, "{name}");
    }
    let refused = read(&traces.join("sdsc.log")).unwrap_err();
    assert!(refused.contains("no response sizes"), "{refused}");
}

/// The figures of an independent program over whole logs: 64 KiB, 1 MiB, 16 MiB; 16 MiB in two.
#[test]
fn whole_logs_give_the_known_figures() {
    let shared = match std::env::var_os("FAIRLEAD_SHARED") {
        Some(folder) => PathBuf::from(folder),
        None => Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared"),
    };
    let path = shared.join("data/nasa-1995-07-09.log.zst");
    if !path.exists() {
        println!("skipped: no whole logs; FAIRLEAD_SHARED=FOLDER says where they are");
        return;
    }
    let responses = read(&path).unwrap();
    assert_eq!(
        (responses.len(), responses.distinct_files()),
        (32_357, 1_972)
    );
    let cell = |size: u64, caches: u32| Cell {
        size: Size(size),
        caches,
        ..Cell::default()
    };
    let cells = [
        cell(64 << 10, 1),
        cell(1 << 20, 1),
        cell(16 << 20, 1),
        cell(16 << 20, 2),
    ];
    let shown: Vec<String> = run(&responses, &cells)
        .iter()
        .map(|result| format!("{:.1}", 100.0 * Row::new(&responses, result).removed_ratio))
        .collect();
    assert_eq!(shown, ["1.4", "11.7", "58.7", "58.3"]);
}

#[test]
fn requests_without_a_known_client_count_for_content() {
    let name = format!("fairlead-unknown-clients-{}.log", std::process::id());
    let path = std::env::temp_dir().join(name);
    let line =
        |client| format!("{client} - - [26/Nov/2026:10:00:00 +0000] \"GET /a HTTP/1.1\" 200 5\n");
    std::fs::write(&path, line("-") + &line("unix:") + &line("10.0.0.1")).unwrap();
    let rows = |mut loader: Loader| {
        let log = loader
            .log(&path, &StreamSpec::file(&path), &Silent)
            .unwrap();
        log.requests.len()
    };
    assert_eq!(
        (
            rows(Loader::with_unknown_clients()),
            rows(Loader::default())
        ),
        (3, 1)
    );
    std::fs::remove_file(&path).unwrap();
}
