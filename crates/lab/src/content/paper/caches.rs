//! Table 1, figure 3, and what it has not: other policies and bounds.

use fairlead_content::Policy;

use super::measure::{Measured, SPLITS};
use super::{against, claim, figure, published, row};
use crate::content::{Cell, SIZES, Split, Unit};
use crate::paper::{Claim, Figure, Row};
use crate::table::percent;

pub(super) fn figures(measured: &[Measured]) -> Vec<Figure> {
    vec![
        table_1(measured),
        figure_3(measured),
        policies(measured),
        policies_by(measured, "policies-requests", "whole responses", |row| {
            row.request_hit_ratio
        }),
        policies_by_block(measured),
    ]
}

fn table_1(measured: &[Measured]) -> Figure {
    let mut rows = Vec::new();
    for one in measured {
        let responses = &one.log.responses;
        let name = &one.log.name;
        let known = published::recognise(name);
        let megabytes = |bytes: u64| bytes as f64 / 1e6;
        let mean = responses.response_bytes() as f64 / responses.len().max(1) as f64;
        type Get = fn(&published::Log) -> f64;
        let values: [(&str, f64, Get); 5] = [
            (
                "response bytes (MB)",
                megabytes(responses.response_bytes()),
                |log| log.response_megabytes,
            ),
            ("average response (B)", mean, |log| log.mean_bytes),
            (
                "data set (MB)",
                megabytes(responses.data_set_bytes()),
                |log| log.data_set_megabytes,
            ),
            ("requests", responses.len() as f64, |log| log.requests),
            ("distinct files", responses.distinct_files() as f64, |log| {
                log.files
            }),
        ];
        for (what, ours, get) in values {
            rows.push(against(
                row(name, "table 1", what, ours),
                known.map(get),
                false,
            ));
        }
        rows.push(row(name, "table 1", "duration (s)", responses.span_s));
    }
    let mut table = figure(
        "table-1",
        "Statistics of the logs",
        "as named",
        "statistic",
        rows,
    );
    table.notes = vec![
        "Published values are of the paper's whole logs; a log at hand can be a part of one, so \
         there is no error."
            .to_owned(),
        "A file is as long as its longest response. Responses without a body or a size are left \
         out."
            .to_owned(),
    ];
    table
}

fn figure_3(measured: &[Measured]) -> Figure {
    let mut rows = Vec::new();
    let mut claims = Vec::new();
    for one in measured {
        let name = &one.log.name;
        for size in SIZES {
            let cell = Cell {
                size,
                ..Cell::default()
            };
            let x = size.to_string();
            let mut add = |series: String, cell: &Cell| {
                rows.push(row(name, &series, x.clone(), one.removed(cell)));
            };
            add("one cache, blocks".to_owned(), &cell);
            for split in SPLITS {
                let two = Cell {
                    caches: 2,
                    split,
                    ..cell
                };
                add(format!("two caches, blocks, {}", split.name()), &two);
            }
            let files = Cell {
                unit: Unit::File,
                ..cell
            };
            add("one cache, files".to_owned(), &files);
            add(
                "two caches, files, alternate".to_owned(),
                &Cell { caches: 2, ..files },
            );
        }
        claims.extend(claims_of_figure_3(one));
    }
    let title = "Content removed from the bus by LRU caches";
    let mut figure = figure(
        "figure-3",
        title,
        "share of content bytes",
        "size of a cache",
        rows,
    );
    figure.claims = claims;
    figure.notes = vec![
        "The paper splits a log \"evenly\" and does not say how: alternating requests, by client \
         and by halves are three series."
            .to_owned(),
    ];
    figure
}

fn claims_of_figure_3(one: &Measured) -> Vec<Claim> {
    let name = &one.log.name;
    let single = Cell::default();
    let two = Cell {
        caches: 2,
        ..single
    };
    let (alone, both) = (one.removed(&single), one.removed(&two));
    let half = match one.log.paper_log() {
        Some("NASA" | "World Cup") => Some(both > 0.5),
        _ => None,
    };
    let lower = one.removed(&two) <= one.removed(&single);
    let few = Cell {
        size: SIZES[6],
        ..single
    };
    vec![
        claim(
            name,
            "two 16 MB caches remove more than 50 % of the content of IBM, NASA, Rice, World Cup",
            half,
            percent(both),
        ),
        claim(
            name,
            "two caches remove slightly less than one of the same size",
            lower,
            format!("{} and {}", percent(both), percent(alone)),
        ),
        claim(
            name,
            "a few megabytes remove a significant part (here: 4 MB, 20 % or more)",
            one.removed(&few) >= 0.2,
            percent(one.removed(&few)),
        ),
    ]
}

/// One cache under every policy, with an upper bound.
fn policies(measured: &[Measured]) -> Figure {
    let mut figure = policies_by(measured, "policies", "content bytes", |row| {
        row.removed_ratio
    });
    for one in measured {
        for (size, upper) in SIZES.iter().zip(&one.upper) {
            for (unit, bound) in ["block", "file"].iter().zip(upper) {
                let series = format!("{unit}, upper bound");
                let name = &one.log.name;
                figure
                    .rows
                    .push(row(name, &series, size.to_string(), *bound));
            }
        }
        let best = |unit: Unit| {
            let all = Policy::ALL.map(|policy| {
                let cell = Cell {
                    unit,
                    policy,
                    ..Cell::default()
                };
                (one.removed(&cell), policy)
            });
            all.into_iter()
                .max_by(|left, right| left.0.total_cmp(&right.0))
                .unwrap_or((0.0, Policy::Lru))
        };
        let (share, policy) = best(Unit::Block);
        let lru = one.removed(&Cell::default());
        figure.claims.push(claim(
            &one.log.name,
            "other replacement policies can do better than LRU (here: at 16 MB, by blocks)",
            share > lru,
            format!("{policy} {}, lru {}", percent(share), percent(lru)),
        ));
    }
    figure.notes.push(
        "The upper bound takes hits by their bytes per space and time; no policy exceeds it, and \
         none may reach it."
            .to_owned(),
    );
    figure
}

fn policies_by(
    measured: &[Measured],
    id: &str,
    what: &str,
    value: fn(&crate::content::Row) -> f64,
) -> Figure {
    let mut rows = Vec::new();
    for one in measured {
        for unit in [Unit::Block, Unit::File] {
            for policy in Policy::ALL {
                for size in SIZES {
                    let cell = Cell {
                        size,
                        unit,
                        policy,
                        ..Cell::default()
                    };
                    let ours = one.row(&cell).as_ref().map_or(0.0, value);
                    let series = format!("{}, {policy}", unit.name());
                    rows.push(row(&one.log.name, &series, size.to_string(), ours));
                }
            }
        }
    }
    let title = format!("One cache under every policy: share of {what}");
    figure(
        id,
        &title,
        &format!("share of {what}"),
        "size of the cache",
        rows,
    )
}

/// Block hits, which Belady's MIN bounds exactly.
fn policies_by_block(measured: &[Measured]) -> Figure {
    let mut figure = policies_by(measured, "policies-blocks", "blocks", |row| {
        row.block_hit_ratio
    });
    figure.rows.retain(|row| row.series.starts_with("block"));
    for one in measured {
        let name = &one.log.name;
        let mut exceeded = 0;
        for (size, bound) in SIZES.iter().zip(&one.belady) {
            let Some(bound) = bound else {
                continue;
            };
            figure
                .rows
                .push(row(name, "block, Belady", size.to_string(), *bound));
            let above = |policy: Policy| {
                let cell = Cell {
                    size: *size,
                    policy,
                    ..Cell::default()
                };
                one.row(&cell)
                    .is_some_and(|row| row.block_hit_ratio > *bound)
            };
            exceeded += Policy::ALL
                .into_iter()
                .filter(|policy| above(*policy))
                .count();
        }
        if one.belady.iter().any(Option::is_none) {
            let note = format!("{name}: too many blocks for Belady's bound at some sizes");
            figure.notes.push(note);
        }
        figure.claims.push(claim(
            name,
            "ours: Belady's bound is at least every policy's block hits",
            exceeded == 0,
            format!("{exceeded} cells exceed it"),
        ));
    }
    figure
}

/// The paper's configuration with two caches.
pub(super) fn two_caches(size: crate::Size) -> Cell {
    Cell {
        size,
        caches: 2,
        split: Split::Alternate,
        ..Cell::default()
    }
}

/// Sizes of figure 7: 4, 8 and 16 MB.
pub(super) const FIGURE_7: [crate::Size; 3] = [SIZES[6], SIZES[7], SIZES[8]];

/// Makes a series of shares.
pub(super) fn shares(log: &str, x: &str, values: &[(&str, f64)]) -> Vec<Row> {
    values
        .iter()
        .map(|(series, value)| row(log, series, x, *value))
        .collect()
}
