use std::collections::BTreeSet;

use serde_json::json;

use super::*;

fn root() -> &'static Path {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().expect("bench lies in the repository")
}

/// The documents that may cite records.
fn documents(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).expect("a folder").flatten() {
        let path = entry.path();
        if path.is_dir() {
            documents(&path, found);
        } else if path.extension().is_some_and(|end| end == "md") {
            found.push(path);
        }
    }
}

#[test]
fn pages_say_what_their_records_say() {
    let pages = pages(root()).expect("the pages can be written");
    if std::env::var_os("UPDATE").is_some_and(|value| value == "1") {
        for (path, text) in &pages {
            std::fs::write(root().join(path), text).expect("the page is written");
        }
    }
    for (path, text) in pages {
        let written = std::fs::read_to_string(root().join(path)).expect("the page is there");
        assert!(
            written == text,
            "{path} is stale: run `fairlead-bench report`, or \
             `UPDATE=1 cargo test -p fairlead-bench report`"
        );
    }
}

#[test]
fn every_record_is_cited() {
    let mut pages = vec![root().join("README.md")];
    documents(&root().join("docs"), &mut pages);
    let cited: BTreeSet<String> = pages
        .iter()
        .flat_map(|page| {
            let text = std::fs::read_to_string(page).expect("a text");
            let names = text.split("bench/records/").skip(1);
            let names = names.filter_map(|rest| rest.split_once(".json"));
            names
                .map(|(name, _)| name.to_owned())
                .collect::<Vec<String>>()
        })
        .collect();
    let records = std::fs::read_dir(root().join(RECORDS)).expect("the records");
    let records = records.flatten().map(|entry| entry.path());
    let records = records.filter(|path| path.extension().is_some_and(|end| end == "json"));
    let uncited: Vec<PathBuf> = records
        .filter(|path| {
            let name = path.file_stem().map(|name| name.to_string_lossy());
            !name.is_some_and(|name| cited.contains(name.as_ref()))
        })
        .collect();
    assert!(
        uncited.is_empty(),
        "no page cites these records: add them to bench/src/report/performance.in, or remove \
         them: {uncited:#?}"
    );
}

#[test]
fn the_template_has_no_figures_of_its_own() {
    let prose = TEMPLATE.lines().filter(|line| !line.starts_with("{{"));
    for line in prose {
        let letters: Vec<char> = line.chars().collect();
        let decimal = letters
            .windows(3)
            .any(|three| three[0].is_ascii_digit() && three[1] == '.' && three[2].is_ascii_digit());
        assert!(!decimal, "a figure belongs into a record: {line}");
    }
}

/// A record of `peers` with one row, of which some figures are given.
fn record(to_best: f64, to_direct: f64, link: f64, p99_ms: f64) -> Record {
    let target = |p99_ms: f64, rate: f64| json!({"p99_ms": p99_ms, "all_rates": [rate, rate]});
    Record::of(
        "peers-test",
        json!({
            "command": "fairlead-bench peers --record folder",
            "result": {
                "fast_path": "INFO fast path: tc on client0, servers1",
                "congestion_control": "cubic",
                "offloads": true,
                "client_connections": 64,
                "rounds": 2,
                "seconds": 1,
                "haproxy": "HAProxy version 2.6.12-1+deb12u4 2026/10/17",
                "nginx": "nginx version: nginx/1.22.1",
                "cells": [{
                    "kind": "keep-alive",
                    "size": "64KiB",
                    "best_peer": "nginx-128k",
                    "ratio_to_best_peer": to_best,
                    "ratio_to_direct": to_direct,
                    "link_to_best_peer": link,
                    "targets": {
                        "fairlead": target(p99_ms, 15.0),
                        "nginx-128k": target(3.0, 10.0),
                        "haproxy": target(2.5, 8.0),
                        "direct": target(0.8, 13.0),
                        "link": target(0.7, 16.0),
                    },
                }],
            },
        }),
    )
}

#[test]
fn a_table_names_its_record_and_how_it_was_made() {
    let text = tables::peers(&record(1.7, 1.0, 1.9, 0.5), true, "../").expect("a table");
    for part in [
        "`fairlead-bench peers`: kernel fast path (tc), CUBIC, offloads on, 64 connections",
        "HAProxy 2.6.12, nginx 1.22.1; [record](../bench/records/peers-test.json).",
        "| keep-alive, 64 KiB | 1.70 (nginx, 128 KiB) | 1.60 | 1.00 | 0.95 | 1.90 |",
        "| 1.90 | 0.5 / 2.5 / 0.8 |",
        "Every target is met.",
    ] {
        assert!(text.contains(part), "{part} is missing in\n{text}");
    }
    assert!(!text.contains("**"), "{text}");
}

#[test]
fn a_missed_target_is_marked_and_its_bound_stated() {
    let text = tables::peers(&record(0.97, 0.9, 1.18, 2.6), true, "../").expect("a table");
    for part in [
        "| **0.97** (nginx, 128 KiB) | 1.60 | **0.90** | 0.95 | 1.18 | **2.6** / 2.5 / 0.8 |",
        "- keep-alive, 64 KiB: 0.97 of the best peer, target 1.60. No switch can meet this target \
         here: client and server on one link, with nothing between them, reach 1.18.",
        "- keep-alive, 64 KiB: 0.90 of plain forwarding, target 0.95.",
        "- keep-alive, 64 KiB: p99 of 2.6 ms; the target is less than the quickest peer's 2.5 ms.",
    ] {
        assert!(text.contains(part), "{part} is missing in\n{text}");
    }
    let text = tables::peers(&record(1.5, 1.0, 1.7, 1.0), true, "../").expect("a table");
    let bound = "Plain forwarding reaches 1.30, the bare link 1.70.";
    assert!(text.contains(bound), "{text}");
}

#[test]
fn a_record_of_another_machine_is_refused() {
    let folder = root().join(RECORDS);
    let template = |second: &str| format!("{{{{machine lab-8800bfa30b76}}}}\n{{{{{second}}}}}\n");
    let same = fill(&template("lab lab-8800bfa30b76"), &folder).expect("the same machine");
    assert!(
        same.starts_with("AMD EPYC, 2 cores, Linux 6.18.44.\n"),
        "{same}"
    );
    for (second, complaint) in [
        ("lab lab-462548969bae", "not on the section's machine"),
        ("lab lab-000000000000", "lab-000000000000.json"),
        ("speed lab-8800bfa30b76", "there is no table speed"),
        ("lab", "without a record"),
    ] {
        let error = fill(&template(second), &folder).expect_err(second);
        let text = format!("{error:#}");
        assert!(
            text.contains("line 2") && text.contains(complaint),
            "{text}"
        );
    }
}
