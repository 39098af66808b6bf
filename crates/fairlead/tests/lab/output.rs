//! `fairlead lab`, the program: results arrive or it fails, and files are written whole or not at
//! all.

use std::fs::{self, File};
use std::process::{Command, Output, Stdio};

use crate::support::{Folder, command as lab};
use crate::{json, refused};

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

const FEW: &str = "zipf:ids=100,accesses=1000";

#[test]
fn results_that_cannot_be_written_are_an_error() {
    let nasa = "tests/traces/nasa.log";
    let folder = Folder::new("results");
    let rows = folder.path("rows.csv");
    for args in [
        vec!["tcb", FEW, "--scheme", "mod"],
        vec!["tcb", FEW, "--scheme", "mod", "--json"],
        vec!["stat", nasa],
        vec!["stat", nasa, "--json"],
        vec!["schemes"],
        vec!["schemes", "--json"],
        vec!["convert", FEW, &rows],
    ] {
        let full = File::options().write(true).open("/dev/full").unwrap();
        let output = lab(&args).stdout(full).output().unwrap();
        let said = said(&output);
        assert_eq!(output.status.code(), Some(1), "{args:?}: {said}");
        assert!(
            said.contains("error: standard output: "),
            "{args:?}: {said}"
        );
    }
}

#[test]
fn a_reader_that_has_gone_away_is_no_error() {
    for more in [None, Some("--json")] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let mut command = lab(&["schemes"]);
        let output = command.args(more).stdout(writer).output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{}", said(&output));
        assert_eq!(said(&output), "");
    }
}

#[test]
fn a_file_that_cannot_be_finished_leaves_what_was_there() {
    let folder = Folder::new("unfinished");
    let rows = folder.path("n.csv");
    let before = "time_us,ip,port\n0,10.0.0.1,1024\n10,10.0.0.2,1024\n";
    fs::write(&rows, before).unwrap();
    // A time that the format does not hold is found while the file is written.
    let late = format!("{before}{},10.0.0.2,1024\n", 5_000_000_000_000_000u64);
    fs::write(folder.path("late.csv"), late).unwrap();
    let args = ["convert", &folder.path("late.csv"), &rows];
    let output = lab(&args).args(["--to", "oracleGeneral"]).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", said(&output));
    assert!(said(&output).contains("does not fit"), "{}", said(&output));
    assert_eq!(fs::read_to_string(&rows).unwrap(), before);
    assert_eq!(folder.names(), ["late.csv", "n.csv"]);
}

#[test]
fn standard_output_can_be_the_file() {
    let args = ["convert", FEW, "/dev/stdout", "--to", "csv"];
    let output = lab(&args).stdout(Stdio::piped()).output().unwrap();
    assert!(output.status.success(), "{}", said(&output));
    let written = String::from_utf8(output.stdout.clone()).unwrap();
    assert!(written.starts_with("time_us,ip,port\n0,"), "{written}");
    // A header and the rows: what is said of the file does not stand in it.
    assert_eq!(written.lines().count(), 1_001);
    assert!(
        said(&output).contains("/dev/stdout: 1,000 accesses"),
        "{}",
        said(&output)
    );
    // As a file, too, into which standard output goes.
    let folder = Folder::new("redirected");
    let path = folder.path("rows.csv");
    let file = File::create(&path).unwrap();
    let output = lab(&args).stdout(file).output().unwrap();
    assert!(output.status.success(), "{}", said(&output));
    assert_eq!(fs::read_to_string(&path).unwrap(), written);
    assert_eq!(folder.names(), ["rows.csv"]);
}

#[test]
fn what_a_format_cannot_hold_is_said() {
    let folder = Folder::new("notes");
    let rows = folder.path("rows.csv");
    let text = "time_us,ip,port\n0,2001:db9::1,80\n10,10.0.0.2,1024\n";
    fs::write(&rows, text).unwrap();
    let args = ["convert", &rows, &folder.path("rows.oracleGeneral")];
    let output = lab(&args).output().unwrap();
    for word in [
        "note: ",
        "whole seconds; the times of 1 of 2",
        "1 of 2 sessions have IPv6",
    ] {
        assert!(said(&output).contains(word), "{}", said(&output));
    }
    let output = lab(&args).arg("--quiet").output().unwrap();
    assert_eq!(said(&output), "");
    let output = lab(&["convert", &rows, &folder.path("again.csv")]);
    assert_eq!(said(&{ output }.output().unwrap()), "");
}

#[test]
fn counts_have_suffixes_and_empty_traces_are_refused() {
    let folder = Folder::new("generate");
    let out = folder.path("a.csv");
    let made = |args: &[&str]| {
        let output = lab(&[&["generate"], args, &["--out", &out]].concat());
        { output }.output().unwrap()
    };
    let output = made(&["standard", "--sessions", "2K", "--seconds", "1"]);
    assert!(output.status.success(), "{}", said(&output));
    fs::remove_file(&out).unwrap();
    for (args, word) in [
        (["standard", "--sessions", "5000M"], "2^32"),
        (["zipf", "--ids", "5000M"], "2^32"),
        (["standard", "--sessions", "1.5K"], "K for thousands"),
        (["zipf", "--accesses", "0"], "accesses must be 1 or more"),
        (
            ["zipf", "--accesses", "1000M"],
            "accesses must be 268435456 at most",
        ),
        (
            ["standard", "--seconds", "1e30"],
            "more than 268435456 accesses",
        ),
    ] {
        let output = made(&args);
        assert_eq!(output.status.code(), Some(2), "{args:?}: {}", said(&output));
        assert!(said(&output).contains(word), "{args:?}: {}", said(&output));
        assert_eq!(folder.names(), [""; 0], "{args:?}");
    }
    let output = lab(&["tcb", "zipf:ids=10,accesses=0"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2), "{}", said(&output));
}

#[test]
fn a_setting_that_is_there_twice_is_refused() {
    for trace in ["standard:sessions=100,sessions=200", "zipf:100,ids=200"] {
        let output = lab(&["tcb", trace]).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{}", said(&output));
        assert!(said(&output).contains("duplicate"), "{}", said(&output));
    }
}

/// A sweep reads what it wrote: a device has no end, a pipe keeps nothing.
/// What is wrong with the last trace is not to be found when all others were run.
#[test]
fn a_plan_is_looked_at_as_a_whole_before_it_is_run() {
    let folder = Folder::new("whole");
    folder.write("rows.csv", "time_us,ip,port\n1,10.0.0.1,7\n");
    folder.write("prose.log", "once upon\na time\n");
    for (trace, code, words) in [
        (
            "standard = { seconds = 0.5, burst_mean = 0 }",
            2,
            "burst_mean must be 1",
        ),
        ("path = 'nowhere.log'", 1, "nowhere.log: No such file"),
        ("path = 'prose.log'", 1, "of unknown format"),
        (
            "path = '/dev/null'",
            1,
            "/dev/null: a sweep reads its traces more than once",
        ),
        (
            "path = 'rows.csv'\nexpansion = { concurrent_sessions = 9 }",
            1,
            "rows are accesses",
        ),
    ] {
        let first = "[[trace]]\nzipf = { ids = 9, accesses = 9 }\n[[run]]\nscheme = 'mod'\n";
        let plan = folder.write("plan.toml", format!("{first}[[trace]]\n{trace}\n"));
        let out = folder.path("out.jsonl");
        refused(&["sweep", &plan, "--out", &out], code, &[words]);
        assert_eq!(fs::read(&out).unwrap_or_default(), b"", "{trace}");
    }
    // And a map's last cell.
    let words = ["sessions must be", "synthetic"];
    let map = "map --loads 1,1e9 --bursts 2 --ports random --seconds 60 --warm-up 600";
    let words_of: Vec<&str> = map.split(' ').collect();
    let begun = std::time::Instant::now();
    refused(&words_of, 2, &words);
    assert!(begun.elapsed().as_secs() < 5);
}

#[test]
fn a_sweep_writes_to_files_only() {
    let folder = Folder::new("devices");
    let plan = "[[trace]]\nzipf = { ids = 9, accesses = 9 }\n[[run]]\nscheme = \"mod\"\n";
    let plan = folder.write("plan.toml", plan);
    for out in ["/dev/full", "/dev/stdout", "/dev/null"] {
        refused(
            &["sweep", &plan, "--out", out],
            2,
            &[out, "is not a regular file"],
        );
    }
}

/// What goes on with a file of results finds whole rows in it, however full the disk was.
#[test]
fn a_sweep_that_cannot_write_leaves_whole_rows() {
    let folder = Folder::new("full-disk");
    let plan =
        "seeds = 60\n[[trace]]\nzipf = { ids = 9, accesses = 9 }\n[[run]]\nscheme = \"mod\"\n";
    let plan = folder.write("plan.toml", plan);
    for name in ["rows.csv", "rows.jsonl"] {
        let out = folder.path(name);
        let mut command = Command::new("sh");
        let limited = "trap '' XFSZ; ulimit -f 8; exec \"$0\" lab sweep \"$1\" --out \"$2\"";
        let fairlead = env!("CARGO_BIN_EXE_fairlead");
        command.args(["-c", limited, fairlead, &plan, &out]);
        let output = command.output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{}", said(&output));
        assert!(said(&output).contains(name), "{}", said(&output));
        let rows = fs::read_to_string(&out).unwrap();
        assert!(rows.len() > 2_000 && rows.ends_with('\n'), "{rows}");
    }
}

#[test]
fn a_trace_is_not_written_over_by_what_is_made_of_it() {
    let folder = Folder::new("itself");
    let at = |path: &str| fs::read(crate::support::root().join(path)).unwrap();
    for (name, before) in [
        ("nasa.log", at(crate::NASA)),
        ("http.pcap", at("tests/captures/http-2011.pcap")),
        ("few.csv", b"time_us,ip,port\n9,10.0.0.1,1\n".to_vec()),
    ] {
        let trace = folder.write(name, &before);
        let link = folder.path("link");
        std::os::unix::fs::symlink(&trace, &link).unwrap();
        for out in [&trace, &link] {
            let words = [out.as_str(), "the trace itself", "another name"];
            refused(&["convert", &trace, out, "--to", "csv"], 2, &words);
            assert_eq!(fs::read(&trace).unwrap(), before);
        }
        fs::remove_file(&link).unwrap();
    }
}

#[test]
fn a_dash_is_standard_input() {
    let stdin = || File::open(crate::support::root().join(crate::NASA)).unwrap();
    let named = lab(&["stat", "/dev/stdin"])
        .stdin(stdin())
        .output()
        .unwrap();
    let output = lab(&["stat", "-"]).stdin(stdin()).output().unwrap();
    assert!(output.status.success(), "{}", said(&output));
    assert_eq!(output.stdout, named.stdout);
    // A file may be called so all the same.
    let folder = Folder::new("dash");
    folder.write(
        "-",
        fs::read(crate::support::root().join(crate::NASA)).unwrap(),
    );
    let output = lab(&["stat", &folder.path("-")]).output().unwrap();
    assert!(output.status.success(), "{}", said(&output));
}

/// A workload that is too short for all its sessions has those that are accessed.
#[test]
fn sessions_without_an_access_are_not_counted() {
    let stat = json(&["stat", "zipf:ids=100000,accesses=2000", "--json"]);
    let sessions = stat["accesses"]["sessions"].as_u64().unwrap();
    assert!((1..2_000).contains(&sessions), "{sessions}");
    let whole = stat["accesses"]["accesses_per_session"].as_f64().unwrap();
    assert_eq!(whole, 2_000.0 / sessions as f64);
    assert_eq!(stat["stream"]["sessions"], sessions);
    let bits = &stat["accesses"]["bits"];
    let identifiers = bits["sessions"].as_u64().unwrap() + bits["v6"].as_u64().unwrap();
    assert_eq!(identifiers, sessions);
    let run = json(&["tcb", "zipf:ids=100000,accesses=2000", "--json"]);
    assert_eq!(run["cold_misses"], sessions);
}

#[test]
fn what_is_no_property_of_a_table_is_answered_with_those_there_are() {
    let folder = Folder::new("table");
    let table = folder.write("t.csv", "1,10.0.0.1\n");
    let format = "csv:time=1,who=2";
    let words = ["`who`", "client port", "separator header"];
    refused(&["stat", &table, "--format", format], 2, &words);
}

#[test]
fn ports_of_a_map_are_named_as_the_option_takes_them() {
    let map = |ports: &str| {
        let grid = "map --loads 1 --bursts 2 --seconds 1 --schemes mod --csv --ports";
        let words: Vec<&str> = grid.split(' ').chain([ports]).collect();
        let output = lab(&words).output().unwrap();
        assert!(output.status.success(), "{}", said(&output));
        String::from_utf8(output.stdout).unwrap()
    };
    let both = map("sequential,random");
    let ports = |row: &str| row.split(',').next().unwrap().to_owned();
    let names: Vec<String> = both.lines().skip(1).map(ports).collect();
    assert_eq!(map(&names.join(",")), both);
}

#[test]
fn what_is_advised_was_asked_for() {
    let asked = ["--schemes", "spec", "--ways", "8", "--json"];
    let advice = json(&[&["advise", "zipf:ids=20,accesses=2000"], &asked[..]].concat());
    let steps = advice["steps"].as_array().unwrap();
    let of_steps = steps.iter().map(|step| &step["best"]);
    for choice in of_steps.chain([&advice["best"], &advice["advised"]]) {
        let run = &choice["run"];
        assert!(run["scheme"] == "spec" && run["ways"] == 8, "{run}");
    }
    assert!(steps[0]["conventional_miss_ratio"].is_f64());
}

/// As of everything else that is written to standard output, a reader may have enough.
#[test]
fn a_trace_whose_reader_has_gone_ends_quietly() {
    for args in [
        &["convert", "standard:4000", "/dev/stdout", "--to", "csv"][..],
        &[
            "generate",
            "zipf",
            "--accesses",
            "1M",
            "--to",
            "lab",
            "--out",
            "/dev/stdout",
        ],
    ] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let output = lab(args).stdout(writer).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(0), "{args:?}: {said}");
        let notes = said.lines().filter(|line| !line.starts_with("note: "));
        assert_eq!(notes.count(), 0, "{args:?}: {said}");
    }
}
