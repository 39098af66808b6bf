//! `lab paper` and `lab calibrate`: what they were told, and what goes wrong in the middle.

use serde_json::Value;

use crate::support::{Folder, lab};
use crate::{NASA, refused, text};

const COMBINED: &str = "tests/traces/combined.log";

/// A short run over these traces.
fn paper(traces: &[&str], more: &[&str]) -> std::process::Output {
    let mut words = vec!["paper", "--quick", "--no-synthetic", "--concurrency", "300"];
    for trace in traces {
        words.extend(["--trace", trace]);
    }
    words.extend(["--hash-draws", "0"]);
    lab(&[&words[..], more].concat())
}

/// A log of which too many rows cannot be read.
fn broken(folder: &Folder) -> String {
    let log = std::fs::read_to_string(crate::support::root().join(COMBINED)).unwrap();
    folder.write("broken.log", log + "no row\n".repeat(60).as_str())
}

#[test]
fn a_trace_that_fails_does_not_take_the_others_along() {
    let folder = Folder::new("paper-failed");
    let broken = broken(&folder);
    let out = folder.path("out");
    let output = paper(&[&broken, COMBINED], &["--out", &out]);
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    for word in [
        "1 of 2 traces could not be run",
        "broken.log: line ",
        "--max-bad",
    ] {
        assert!(said.contains(word), "no {word:?} in: {said}");
    }
    assert!(text(&output.stdout).contains("broken.log: could not be run"));
    let report = std::fs::read_to_string(folder.path("out/paper.json")).unwrap();
    let report: Value = serde_json::from_str(&report).unwrap();
    assert_eq!(report["traces"].as_array().unwrap().len(), 1);
    assert_eq!(report["traces"][0]["given"]["name"], "combined.log");
    assert_eq!(report["failed"][0]["trace"], "broken.log");
    let problem = report["failed"][0]["problem"].as_str().unwrap();
    assert!(problem.contains("more than the 1 %"), "{problem}");
    // Without a draw nothing is said of them.
    let claims = std::fs::read_to_string(folder.path("out/claims.csv")).unwrap();
    let draws = claims.lines().find(|row| row.starts_with("section-4.1,"));
    let draws = draws.unwrap();
    assert!(draws.contains(",cannot be said,"), "{draws}");
    assert!(!draws.contains("inf"), "{draws}");
}

#[test]
fn more_unreadable_rows_may_be_let_pass() {
    let folder = Folder::new("paper-max-bad");
    let broken = broken(&folder);
    let out = folder.path("out");
    let words = [
        "paper",
        "--trace",
        &broken,
        "--quick",
        "--no-synthetic",
        "--out",
        &out,
    ];
    refused(&words, 1, &["broken.log: line ", "--max-bad"]);
    let passed = paper(&[&broken], &["--max-bad", "0.9", "--json"]);
    assert!(passed.status.success(), "{}", text(&passed.stderr));
    let report: Value = serde_json::from_slice(&passed.stdout).unwrap();
    assert_eq!(report["failed"], Value::Array(Vec::new()));
    assert_eq!(report["traces"][0]["stream"]["read"]["bad"], 60);
    let wrong = ["paper", "--trace", NASA, "--max-bad", "2"];
    refused(&wrong, 2, &["--max-bad 2", "a share from 0 to 1"]);
}

#[test]
fn a_fit_takes_no_load_and_tells_its_notes() {
    let fit = ["--target", "0.5", "--capacity", "1K"];
    let words = [&["calibrate", NASA, "--concurrency", "40"], &fit[..]].concat();
    refused(&words, 2, &["--concurrency 40", "omit it"]);
    let words = [&["calibrate", "standard:10"], &fit[..]].concat();
    refused(&words, 2, &["standard:10", "omit it"]);
    let words = [&["calibrate", NASA, "--warm-up", "5"], &fit[..]].concat();
    let output = lab(&words);
    let said = text(&output.stderr);
    assert!(output.status.success(), "{said}");
    assert!(said.contains("note: nasa.log: a warm-up of 5 s"), "{said}");
}
