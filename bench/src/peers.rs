//! Fairlead against proxies and plain forwarding: same client, same server, same machine, in turn.
//! Every cell is measured in alternation; the medians, and those of ratios within a round, count.

use anyhow::Result;
use serde_json::{Map, Value, json};

use crate::table::{median, ratio, row};
use crate::testbed::targets::Target;
use crate::testbed::wrk::{Load, Sample};
use crate::testbed::{FILES, Testbed};

/// How much is measured.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Effort {
    /// Alternations; the median counts.
    pub(crate) rounds: usize,
    /// Seconds of each measurement.
    pub(crate) seconds: u32,
    /// Connections of the client.
    pub(crate) connections: u32,
    /// No two heads are the same.
    pub(crate) distinct: bool,
}

/// One way to ask for one file.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Case {
    /// A connection for each request.
    pub(crate) close: bool,
    /// The file.
    pub(crate) file: &'static str,
}

impl Case {
    /// The rows of the tables.
    pub(crate) fn all() -> impl Iterator<Item = Self> {
        let files = |close| FILES.map(|(file, _)| Self { close, file });
        [true, false].into_iter().flat_map(files)
    }

    /// How connections are used, in words.
    pub(crate) fn kind(self) -> &'static str {
        match self.close {
            true => "connection per request",
            false => "keep-alive",
        }
    }

    /// In a row's title.
    pub(crate) fn title(self) -> String {
        format!("{}, {}", self.kind(), self.file)
    }

    /// What `wrk` does for it.
    pub(crate) fn load(self, target: Target, effort: Effort) -> Load<'static> {
        Load {
            address: target.address(),
            file: self.file,
            close: self.close,
            connections: effort.connections,
            seconds: effort.seconds,
            distinct: effort.distinct,
        }
    }
}

/// Who is measured: Fairlead, the peers, direct, the link.
const TARGETS: [Target; 7] = Target::WITH_LINK;

/// Measures these rows; prints a table as it grows.
pub(crate) fn run(testbed: &mut Testbed, effort: Effort, cases: &[Case]) -> Result<Value> {
    let names = TARGETS.iter().map(|target| target.name());
    row(
        "requests/s (p99 ms)",
        names.chain(["/best peer", "/direct", "p99 ms/peer's"]),
    );
    let mut cells = Vec::new();
    for &case in cases {
        let mut samples: Vec<Vec<Sample>> = vec![Vec::new(); TARGETS.len()];
        for _ in 0..effort.rounds {
            for (all, target) in samples.iter_mut().zip(TARGETS) {
                testbed.turn_of(target)?;
                all.push(testbed.measure(&case.load(target, effort))?);
            }
        }
        cells.push(cell(case, &samples));
    }
    Ok(json!({
        "rounds": effort.rounds,
        "seconds": effort.seconds,
        "client_connections": effort.connections,
        "distinct_heads": effort.distinct,
        "cells": cells,
    }))
}

fn cell(case: Case, samples: &[Vec<Sample>]) -> Value {
    let rates: Vec<Vec<f64>> = samples
        .iter()
        .map(|all| all.iter().map(|sample| sample.rate).collect())
        .collect();
    let p99 = |at: usize| median(samples[at].iter().map(|sample| sample.p99_ms));
    let middle = |at: usize| median(rates[at].iter().copied());
    let peers = (0..TARGETS.len()).filter(|&at| TARGETS[at].is_peer());
    let best = peers
        .clone()
        .max_by(|&a, &b| middle(a).total_cmp(&middle(b)))
        .unwrap_or(0);
    let quickest = peers
        .clone()
        .map(p99)
        .min_by(f64::total_cmp)
        .unwrap_or(f64::NAN);
    let direct = TARGETS.len() - 2;
    let (to_best, to_direct) = (
        ratio(&rates[0], &rates[best]),
        ratio(&rates[0], &rates[direct]),
    );
    let values = (0..TARGETS.len()).map(|at| format!("{:.0} ({:.1})", middle(at), p99(at)));
    row(
        &case.title(),
        values.chain([
            format!("{to_best:.2}"),
            format!("{to_direct:.2}"),
            format!("{:.1}/{quickest:.1}", p99(0)),
        ]),
    );
    let ratios: Map<String, Value> = (1..TARGETS.len())
        .map(|at| {
            let name = TARGETS[at].name().to_owned();
            (name, json!(ratio(&rates[0], &rates[at])))
        })
        .collect();
    let targets: Map<String, Value> = (0..TARGETS.len())
        .map(|at| {
            let errors: u64 = samples[at].iter().map(|sample| sample.errors).sum();
            let value = json!({
                "requests_per_second": middle(at).round(),
                "p99_ms": p99(at),
                "all_rates": rates[at].iter().map(|rate| rate.round()).collect::<Vec<_>>(),
                "errors": errors,
            });
            (TARGETS[at].name().to_owned(), value)
        })
        .collect();
    json!({
        "kind": case.kind(),
        "size": case.file,
        "best_peer": TARGETS[best].name(),
        "ratio_to_best_peer": to_best,
        "ratio_to_direct": to_direct,
        "link_to_best_peer": ratio(&rates[direct + 1], &rates[best]),
        "ratio_to": ratios,
        "targets": targets,
    })
}
