//! What the switch itself costs. Client and server run on core 0, everything of the switch on core
//! 1: its processes, and the packets that its interfaces receive. The busy time of core 1 for each
//! request, above that of plain forwarding, is what an operator pays for.

use anyhow::{Context, Result, ensure};
use serde_json::{Map, Value, json};

use crate::peers::{Case, Effort};
use crate::table::{median, row};
use crate::testbed::Testbed;
use crate::testbed::targets::Target;

/// How long core 1 has not been idle since the machine started, in seconds. Time asleep is kept
/// exactly by the kernel, time at work only by sampling: so it is what is left.
fn busy_seconds(started: std::time::Instant) -> Result<f64> {
    let text = std::fs::read_to_string("/proc/stat")?;
    let line = text
        .lines()
        .find(|line| line.starts_with("cpu1 "))
        .context("this machine has one core only")?;
    let words: Vec<f64> = line
        .split_whitespace()
        .skip(1)
        .filter_map(|word| word.parse().ok())
        .collect();
    ensure!(words.len() >= 8, "unknown form of /proc/stat: {line}");
    // USER_HZ is 100 on every architecture that Linux runs on today but Alpha.
    let asleep = (words[3] + words[4] + words[7]) / 100.0;
    Ok(started.elapsed().as_secs_f64() - asleep)
}

/// Measures these rows; prints a table as it grows.
pub(crate) fn run(testbed: &mut Testbed, effort: Effort, cases: &[Case]) -> Result<Value> {
    let started = std::time::Instant::now();
    let names = Target::ALL.iter().map(|target| target.name());
    row("core 1, µs a request", names.chain(["of cheapest peer"]));
    let mut cells = Vec::new();
    for &case in cases {
        let mut costs: Vec<Vec<f64>> = vec![Vec::new(); Target::ALL.len()];
        let mut rates = costs.clone();
        for _ in 0..effort.rounds {
            for (at, target) in Target::ALL.into_iter().enumerate() {
                testbed.turn_of(target)?;
                let before = busy_seconds(started)?;
                let sample = testbed.measure(&case.load(target, effort))?;
                let busy = busy_seconds(started)? - before;
                ensure!(sample.requests > 0, "{} answers nothing", target.name());
                costs[at].push(busy * 1e6 / sample.requests as f64);
                rates[at].push(sample.rate);
            }
        }
        cells.push(cell(case, &costs, &rates));
    }
    Ok(json!({
        "rounds": effort.rounds,
        "seconds": effort.seconds,
        "client_connections": effort.connections,
        "unit": "microseconds that core 1 is busy for a request, above plain forwarding",
        "cells": cells,
    }))
}

fn cell(case: Case, costs: &[Vec<f64>], rates: &[Vec<f64>]) -> Value {
    let direct = Target::ALL.len() - 1;
    // Above plain forwarding in the same round.
    let above = |at: usize| {
        let pairs = costs[at].iter().zip(&costs[direct]);
        median(pairs.map(|(cost, forwarding)| cost - forwarding))
    };
    let cheapest = (0..direct)
        .filter(|&at| Target::ALL[at].is_peer())
        .map(above)
        .min_by(f64::total_cmp)
        .unwrap_or(f64::NAN);
    let share = above(0) / cheapest;
    let values = (0..direct).map(|at| format!("{:+.1}", above(at)));
    let forwarding = median(costs[direct].iter().copied());
    row(
        &case.title(),
        values.chain([format!("({forwarding:.1})"), format!("{share:.2}")]),
    );
    let targets: Map<String, Value> = Target::ALL
        .iter()
        .enumerate()
        .map(|(at, target)| {
            let value = json!({
                "busy_us_per_request": median(costs[at].iter().copied()),
                "above_forwarding_us": above(at),
                "requests_per_second": median(rates[at].iter().copied()).round(),
            });
            (target.name().to_owned(), value)
        })
        .collect();
    json!({
        "kind": case.kind(),
        "size": case.file,
        "share_of_cheapest_peer": share,
        "targets": targets,
    })
}
