//! `lab content`: its contract with scripts, and what it refuses.

use crate::support::{Folder, lab, root};
use crate::{NASA, json, refused, text};

#[test]
fn a_run_prints_one_object_a_size() {
    let words = [
        "content", "run", NASA, "--size", "256K,16M", "--caches", "1",
    ];
    let rows = json(&[&words[..], &["--block", "4K", "--policy", "lru", "--json"]].concat());
    let rows = rows.as_array().unwrap();
    assert_eq!(rows.len(), 2);
    for (row, size) in rows.iter().zip([256 << 10, 16 << 20]) {
        assert_eq!(row["size"], size);
        let number = |key: &str| row[key].as_u64().unwrap_or_else(|| panic!("no {key}"));
        let (removed, all) = (number("content_bytes_removed"), number("response_bytes"));
        let ratio = row["removed_ratio"].as_f64().unwrap();
        assert!((ratio - removed as f64 / all as f64).abs() < 1e-12);
        assert!(number("distinct_files") <= number("requests"));
        assert!(number("data_set_bytes") <= all);
    }
    assert!(rows[0]["content_bytes_removed"].as_u64() <= rows[1]["content_bytes_removed"].as_u64());
}

#[test]
fn responses_alternate_between_two_caches() {
    let folder = Folder::new("content-alternate");
    let line = |path: &str| {
        format!("host - - [01/Jul/1995:00:00:01 -0400] \"GET {path} HTTP/1.0\" 200 4096\n")
    };
    let log = folder.write("a.log", [line("/a"), line("/b")].concat().repeat(3));
    let removed = |caches: &str| {
        let rows = json(&[
            "content", "run", &log, "--size", "4K", "--caches", caches, "--json",
        ]);
        rows[0]["content_bytes_removed"].as_u64().unwrap()
    };
    assert_eq!((removed("1"), removed("2")), (0, 4 * 4_096));
}

#[test]
fn people_get_a_table() {
    let output = lab(&["content", "run", NASA, "--size", "1M", "--policy", "all"]);
    let said = text(&output.stdout);
    for word in ["content removed", "s3-fifo", "1 MiB", "one cache"] {
        assert!(said.contains(word), "no {word:?} in: {said}");
    }
}

#[test]
fn what_cannot_be_run_is_refused() {
    let run = |words: &[&str], why: &str| {
        refused(&[&["content", "run"], words].concat(), 2, &[why]);
    };
    run(&["tests/traces/sdsc.log"], "no response sizes");
    run(&[NASA, "--size", "5000"], "multiple of the block size");
    run(&[NASA, "--block", "3K"], "power of two");
    run(&[NASA, "--caches", "0"], "from 1 to 64");
    run(&[NASA, "--policy", "mru"], "one of: lru");
}

#[test]
fn advice_has_a_size_a_policy_and_reasons() {
    let advice = json(&["content", "advise", NASA, "--json"]);
    assert!(advice["size"].as_u64().unwrap() >= 256 << 10);
    assert!(advice["reasons"].as_array().unwrap().len() >= 4);
    let output = lab(&["content", "advise", NASA, "--size-max", "1M"]);
    let said = text(&output.stdout);
    assert!(
        said.contains("of the content") && said.contains("gdsf"),
        "{said}"
    );
    refused(
        &["content", "advise", NASA, "--target", "2"],
        2,
        &["from 0 to 1"],
    );
    let words = ["content", "advise", NASA, "--size-min", "2G"];
    refused(&words, 2, &["--size-min"]);
}

#[test]
fn the_paper_is_a_page_and_tables() {
    let folder = Folder::new("content-paper");
    let out = folder.path("out");
    let log = folder.write("nasa.log", std::fs::read(root().join(NASA)).unwrap());
    folder.write("notes.md", "no log");
    folder.write("rows.txt", "nothing\n");
    let parent = folder.0.display().to_string();
    let output = lab(&["content", "paper", &parent, "--out", &out]);
    let said = text(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    assert!(said.contains("the paper's NASA log"), "{said}");
    assert!(said.contains("left out: rows.txt"), "{said}");
    let names = folder.names();
    assert!(names.contains(&"out".to_owned()), "{names:?}");
    let page = std::fs::read_to_string(folder.path("out/page.html")).unwrap();
    for word in ["<svg", "figure-12", "nasa.log", "16 MiB", "pcie5-x8"] {
        assert!(page.contains(word), "no {word:?}");
    }
    let claims = std::fs::read_to_string(folder.path("out/claims.csv")).unwrap();
    assert!(claims.starts_with("figure,trace,the paper says,holds,ours\n"));
    assert!(claims.contains("Belady's bound is at least every policy's block hits,holds"));
    let report = json(&["content", "paper", &log, "--json"]);
    let figure = &report["figures"][1];
    assert_eq!(figure["id"], "figure-3");
    assert_eq!(figure["rows"].as_array().unwrap().len(), 9 * 6);
    // A log that is named must be usable.
    let named = folder.path("rows.txt");
    let output = lab(&["content", "paper", &log, &named, "--out", &out]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("rows.txt"));
}
