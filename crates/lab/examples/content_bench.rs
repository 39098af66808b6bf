//! The figures of docs/content-study.md: `cargo run --release -p fairlead-lab --example
//! content_bench`. Medians over rounds in alternation, as JSON.

use std::hint::black_box;
use std::time::Instant;

use fairlead_base::Rng;
use fairlead_content::{BlockKey, Directory, FileId, Found, Policy, Revision};
use fairlead_lab::Silent;
use fairlead_lab::content::{Cell, Responses, SIZES, simulate};
use serde_json::json;

type Failure = Box<dyn std::error::Error>;

const BLOCKS: u32 = 1_000_000;
const LOOK_UPS: usize = 4_000_000;
const REQUESTS: usize = 1_000_000;
const ROUNDS: usize = 7;

fn main() -> Result<(), Failure> {
    let (directory, keys) = directory();
    let missing: Vec<BlockKey> = keys.iter().map(|key| other(*key)).collect();
    let responses = responses();
    let cells: Vec<Cell> = SIZES
        .into_iter()
        .flat_map(|size| {
            [1, 2].map(|caches| Cell {
                size,
                caches,
                ..Cell::default()
            })
        })
        .collect();
    let (mut hits, mut misses) = (Vec::new(), Vec::new());
    let (mut one, mut all) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        hits.push(look_ups(&directory, &keys, true)?);
        misses.push(look_ups(&directory, &missing, false)?);
        one.push(study(&responses, &cells, 1)?);
        all.push(study(&responses, &cells, 0)?);
    }
    let policies: serde_json::Map<String, serde_json::Value> = Policy::ALL
        .into_iter()
        .map(|policy| {
            let cell = Cell {
                policy,
                ..Cell::default()
            };
            let seconds = study(&responses, &[cell], 1).unwrap_or(f64::NAN);
            (policy.name().to_owned(), json!(rounded(seconds)))
        })
        .collect();
    let result = json!({
        "directory": {
            "blocks": BLOCKS,
            "bytes_per_block": Directory::bytes_per_line(),
            "look_up_hit_ns": summary(&mut hits),
            "look_up_miss_ns": summary(&mut misses),
        },
        "study": {
            "requests": REQUESTS,
            "blocks_used": responses.bytes.iter().map(|bytes| bytes.div_ceil(4_096)).sum::<u64>(),
            "cells": cells.len(),
            "one_thread_s": summary(&mut one),
            "all_cores_s": summary(&mut all),
            "one_cell_of_16_mib_s": policies,
        },
    });
    println!("{}", serde_json::to_string_pretty(&result)?);
    Ok(())
}

fn rounded(value: f64) -> f64 {
    (value * 1_000.0).round() / 1_000.0
}

fn summary(values: &mut [f64]) -> serde_json::Value {
    values.sort_by(f64::total_cmp);
    json!({
        "median": rounded(values[values.len() / 2]),
        "least": rounded(values[0]),
        "most": rounded(values[values.len() - 1]),
    })
}

fn other(key: BlockKey) -> BlockKey {
    BlockKey {
        file: FileId {
            device: 2,
            ..key.file
        },
        ..key
    }
}

/// A full directory of random blocks, and keys of it in random order.
fn directory() -> (Directory, Vec<BlockKey>) {
    let mut rng = Rng::new(1);
    let mut directory = Directory::new(BLOCKS, 7);
    let mut all = Vec::new();
    while directory.len() < directory.lines() {
        let file = FileId {
            device: 1,
            inode: rng.next_u64() >> 30,
        };
        let index = rng.below(64);
        let key = BlockKey { file, index };
        if directory.look_up(key, Revision(1)) == Found::Miss {
            directory.insert(key, Revision(1));
            all.push(key);
        }
    }
    let keys = (0..LOOK_UPS).map(|_| all[rng.below(BLOCKS) as usize]);
    let keys = keys.collect();
    (directory, keys)
}

/// Nanoseconds a look-up.
fn look_ups(directory: &Directory, keys: &[BlockKey], hit: bool) -> Result<f64, Failure> {
    let begin = Instant::now();
    let mut found = 0;
    for key in keys {
        let outcome = directory.look_up(black_box(*key), Revision(1));
        found += usize::from(matches!(outcome, Found::Hit(_)));
    }
    let seconds = begin.elapsed().as_secs_f64();
    if found != if hit { keys.len() } else { 0 } {
        return Err(format!("{found} of {} found", keys.len()).into());
    }
    Ok(seconds * 1e9 / keys.len() as f64)
}

/// A million requests by Zipf's law (0.9) to 20,000 files of 13 KiB in the mean.
fn responses() -> Responses {
    let mut rng = Rng::new(3);
    let files = 20_000;
    let sizes: Vec<u64> = (0..files)
        .map(|_| {
            let least = 500 << rng.below(8);
            u64::from(least + rng.below(least))
        })
        .collect();
    let mut sum = 0.0;
    let sums: Vec<f64> = (1..=files)
        .map(|rank| {
            sum += f64::from(rank).powf(-0.9);
            sum
        })
        .collect();
    Responses::from_pairs((0..REQUESTS).map(|_| {
        let point = (rng.next_u64() >> 11) as f64 / (1u64 << 53) as f64 * sum;
        let file = sums
            .partition_point(|sum| *sum <= point)
            .min(sizes.len() - 1);
        (file as u32, sizes[file])
    }))
}

/// Seconds of these simulations.
fn study(responses: &Responses, cells: &[Cell], threads: usize) -> Result<f64, Failure> {
    let begin = Instant::now();
    black_box(simulate(responses, cells, threads, &Silent)?);
    Ok(begin.elapsed().as_secs_f64())
}
