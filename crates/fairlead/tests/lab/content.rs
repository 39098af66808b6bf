//! `lab content`: its contract with scripts, and what it refuses.

use crate::support::{Folder, lab};
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
