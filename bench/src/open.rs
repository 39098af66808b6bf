//! Many open connections of which few are active: the case of a front end, where a connection is
//! state that has to be found again.

use anyhow::Result;
use serde_json::{Map, Value, json};

use crate::held::Held;
use crate::peers::Effort;
use crate::table::{median, ratio, row};
use crate::testbed::Testbed;
use crate::testbed::targets::Target;
use crate::testbed::wrk::Load;

/// One of this many open connections is active.
const ACTIVE: u32 = 20;

const TARGETS: [Target; 4] = [
    Target::Fairlead,
    Target::HaproxyTuned,
    Target::NginxTuned,
    Target::Direct,
];

/// For every number of open connections: requests/s over the active ones, and Fairlead's memory.
pub(crate) fn run(testbed: &mut Testbed, effort: Effort, counts: &[u32]) -> Result<Value> {
    row(
        "requests/s (p99 ms)",
        TARGETS
            .iter()
            .map(|target| target.name())
            .chain(["/best peer", "/direct", "memory MiB"]),
    );
    let mut cells = Vec::new();
    for &count in counts {
        let mut rates: Vec<Vec<f64>> = vec![Vec::new(); TARGETS.len()];
        let mut p99 = rates.clone();
        let mut memory_kib = 0;
        for _ in 0..effort.rounds {
            for (at, target) in TARGETS.into_iter().enumerate() {
                let active = (count / ACTIVE).max(1);
                if !testbed.can_hold(target, count) {
                    continue;
                }
                testbed.turn_of(target)?;
                let held = Held::open(testbed, target.address(), count - active)?;
                let sample = testbed.measure(&Load {
                    address: target.address(),
                    file: "1KiB",
                    close: false,
                    connections: active,
                    seconds: effort.seconds,
                    distinct: false,
                })?;
                if target == Target::Fairlead {
                    memory_kib = memory_kib.max(resident_kib(testbed.fairlead_pid()));
                }
                drop(held);
                rates[at].push(sample.rate);
                p99[at].push(sample.p99_ms);
            }
        }
        cells.push(cell(count, &rates, &p99, memory_kib));
    }
    Ok(json!({
        "rounds": effort.rounds,
        "seconds": effort.seconds,
        "active": format!("one of {ACTIVE}"),
        "cells": cells,
    }))
}

fn cell(count: u32, rates: &[Vec<f64>], p99: &[Vec<f64>], memory_kib: u64) -> Value {
    let middle = |at: usize| median(rates[at].iter().copied());
    // One that cannot hold them has no rate, which is 0.
    let best = match middle(1) > middle(2) {
        true => 1,
        false => 2,
    };
    let (to_best, to_direct) = (ratio(&rates[0], &rates[best]), ratio(&rates[0], &rates[3]));
    let of = |at: usize| {
        let late = median(p99[at].iter().copied());
        match rates[at].is_empty() {
            true => "too many files".to_owned(),
            false => format!("{:.0} ({late:.1})", middle(at)),
        }
    };
    row(
        &format!("{count} open, {} active", (count / ACTIVE).max(1)),
        (0..TARGETS.len()).map(of).chain([
            format!("{to_best:.2}"),
            format!("{to_direct:.2}"),
            format!("{:.0}", memory_kib as f64 / 1_024.0),
        ]),
    );
    let targets: Map<String, Value> = TARGETS
        .iter()
        .enumerate()
        .map(|(at, target)| {
            let value = match rates[at].is_empty() {
                true => json!("cannot hold them: above the limit of open files per process"),
                false => json!({
                    "requests_per_second": middle(at).round(),
                    "p99_ms": median(p99[at].iter().copied()),
                }),
            };
            (target.name().to_owned(), value)
        })
        .collect();
    json!({
        "open": count,
        "best_peer": TARGETS[best].name(),
        "ratio_to_best_peer": to_best,
        "ratio_to_direct": to_direct,
        "fairlead_resident_kib": memory_kib,
        "targets": targets,
    })
}

/// Memory of a process that is resident, in KiB; 0 when it is gone.
pub(crate) fn resident_kib(pid: u32) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = text.lines().find(|line| line.starts_with("VmRSS:"));
    line.and_then(|line| line.split_whitespace().nth(1)?.parse().ok())
        .unwrap_or(0)
}
