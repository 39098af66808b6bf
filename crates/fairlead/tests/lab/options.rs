//! Values of options and of keys: what is taken, and what is said of the others.

use crate::support::{Folder, lab, root};
use crate::{NASA, json, refused, text};

#[test]
fn values_that_cannot_be_are_named_by_option_key_and_line() {
    let folder = Folder::new("values");
    let worded = folder.write(
        "constants.toml",
        "[toe]\nhit_ns = 5\nmemory_ns = \"fast\"\n",
    );
    let words = [
        "constants.toml",
        "line 3: memory_ns",
        "fast",
        "write a number",
    ];
    refused(&["cost", "--constants", &worded], 2, &words);
    let setting = "toe.memory_ns=fast";
    refused(
        &["cost", "--constant", setting],
        2,
        &["--constant", setting, "write a number"],
    );
    for (args, words) in [
        (["map", "--seconds", "0"], ["--seconds 0", "more than 0"]),
        (["map", "--seconds", "-1"], ["--seconds -1", "more than 0"]),
        (["map", "--loads", "-1"], ["--loads -1", "from 0.001 on"]),
        (["map", "--warm-up", "-1"], ["--warm-up -1", "0 or more"]),
        (
            ["cost", "--miss-ratio", "-1"],
            ["--miss-ratio -1", "from 0 to 1"],
        ),
        (
            ["paper", "--concurrency", "-1"],
            ["'-1' for '--concurrency", "-1"],
        ),
        (
            ["stat", "standard:seconds=0", "-q"],
            ["standard", "increase seconds or sessions"],
        ),
        (
            ["stat", "zipf:ids=1G", "-q"],
            ["\"1G\"", "K for thousands or M for millions"],
        ),
    ] {
        refused(&args, 2, &words);
    }
}

#[test]
fn plans_name_a_model_of_ports_as_the_guide_does() {
    let folder = Folder::new("ports");
    let out = folder.path("out.jsonl");
    let log = root().join(NASA);
    let text = format!(
        "[[trace]]\npath = {log:?}\nexpansion = {{ ports = ['random', 'sequential'] }}\n\
         [[trace]]\npath = {log:?}\n\
         expansion = {{ ports = {{ model = 'sequential', skew = 1.0 }} }}\n\
         [[trace]]\nstandard = {{ sessions = 9, seconds = 9, ports = 'random' }}\n\
         [[run]]\nscheme = 'mod'\n"
    );
    let plan = folder.write("plan.toml", text);
    let done = lab(&["sweep", &plan, "--out", &out]);
    let said = String::from_utf8_lossy(&done.stderr).into_owned();
    assert!(done.status.success(), "{said}");
    let rows = std::fs::read_to_string(&out).unwrap();
    assert_eq!(rows.lines().count(), 4, "{rows}");
    assert!(rows.contains("\"range\":256,\"skew\":1.0"), "{rows}");
}

#[test]
fn times_that_no_clock_shows_are_refused() {
    let folder = Folder::new("times");
    let rows = [-i64::MAX, 0, i64::MAX].map(|at| format!("{at},10.0.0.1,1024\n"));
    let table = format!("time_us,ip,port\n{}", rows.concat());
    let table = folder.write("times.csv", table);
    let words = ["times.csv: line 2", "no time that can be read"];
    for command in ["stat", "advise"] {
        refused(&[command, &table], 1, &words);
        refused(&[command, &table, "--as", "requests"], 1, &words);
    }
}

#[test]
fn plans_take_fractions_ranges_of_seeds_and_counts_with_suffixes() {
    let folder = Folder::new("ranges");
    let plan = |text: &str| folder.write("plan.toml", text);
    let out = folder.path("out.jsonl");
    let runs = "[[run]]\nscheme = 'mod'\n";
    let path = plan(&format!(
        "seeds = {{ from = 3, to = 7, step = 2 }}\n[[trace]]\n\
         standard = {{ sessions = '1K', seconds = {{ from = 0.5, to = 2, times = 2 }} }}\n\
         [[trace]]\nzipf = {{ ids = '2K', accesses = '5K' }}\n{runs}"
    ));
    let done = lab(&["sweep", &path, "--out", &out]);
    let said = String::from_utf8_lossy(&done.stderr).into_owned();
    assert!(done.status.success(), "{said}");
    let rows = std::fs::read_to_string(&out).unwrap();
    assert_eq!(rows.lines().count(), 3 * (3 + 1), "{rows}");
    for part in [
        "\"sessions\":1000,",
        "\"seconds\":0.5,",
        "\"accesses\":5000",
        "\"seed\":7",
    ] {
        assert!(rows.contains(part), "{part}: {rows}");
    }
    let wrong = plan(&format!("seeds = '1..8'\n[[trace]]\nzipf = {{}}\n{runs}"));
    let words = ["plan.toml", "seeds", "{ from = 1, to = 8, step = 1 }"];
    refused(&["sweep", &wrong, "--out", &out], 2, &words);
}

#[test]
fn counts_of_sessions_end_in_k_and_m_wherever_they_are_written() {
    let made = |args: &[&str]| {
        let args = [&["stat"], args, &["--json", "-q"]].concat();
        json(&args)["stream"]["made"].clone()
    };
    for words in [
        ["--concurrency", "1K"],
        ["--expand", "concurrent_sessions=1K"],
    ] {
        let expansion = &made(&[NASA, words[0], words[1]])["expansion"];
        assert_eq!(expansion["concurrent_sessions"], 1_000.0, "{words:?}");
    }
    let expansion = &made(&[NASA, "--expand", "rows_max=2M"])["expansion"];
    assert_eq!(expansion["rows_max"], 2_000_000);
    let short = "standard:seconds=2,sessions_per_client_max=2K";
    let standard = &made(&[short, "--concurrency", "1 k"])["standard"];
    assert_eq!(standard["sessions"], 1_000);
    assert_eq!(standard["sessions_per_client_max"], 2_000);
    // As many as `1K` of them elsewhere, not 1,024.
    made(&["standard:1K,seconds=2", "--concurrency", "1000"]);

    let few = ["--target", "0.999", "--sessions-max", "1K"];
    refused(
        &[&["calibrate", "standard:seconds=2"], &few[..]].concat(),
        2,
        &["even with 1000 open sessions"],
    );
    let told = &json(&[
        "paper",
        "--quick",
        "--no-synthetic",
        "--hash-draws",
        "0",
        "--trace",
        "tests/traces/combined.log",
        "--concurrency",
        "1K",
        "--json",
        "-q",
    ])["asked"];
    assert_eq!(told["concurrency"], 1_000);

    let folder = Folder::new("suffixes");
    let out = folder.path("out.jsonl");
    let log = root().join(NASA);
    let plan = folder.write(
        "plan.toml",
        format!(
            "[[trace]]\npath = {log:?}\n\
             expansion = {{ concurrent_sessions = ['1K', 70, 50.5] }}\n[[run]]\nscheme = 'mod'\n"
        ),
    );
    let done = lab(&["sweep", &plan, "--out", &out]);
    assert!(done.status.success(), "{}", text(&done.stderr));
    let rows = std::fs::read_to_string(&out).unwrap();
    for sessions in ["1000.0", "70.0", "50.5"] {
        let part = format!("\"concurrent_sessions\":{sessions},");
        assert!(rows.contains(&part), "{part}: {rows}");
    }
}

#[test]
fn counts_that_are_none_are_refused() {
    let how = "K for thousands or M for millions";
    for wrong in ["1G", "1.5K", "K", "-1"] {
        let quoted = format!("'{wrong}' for '--concurrency");
        refused(&["stat", NASA, "--concurrency", wrong], 2, &[&quoted, how]);
    }
    let setting = "concurrent_sessions=1G";
    refused(&["stat", NASA, "--expand", setting], 2, &["\"1G\"", how]);
    let calibrate = ["calibrate", NASA, "--target", "0.5", "--sessions-max", "0"];
    refused(&calibrate, 2, &["--sessions-max 0: write 1 or more"]);
    let paper = ["paper", "--trace", NASA, "--concurrency", "0"];
    refused(&paper, 2, &["--concurrency 0: write 1 or more"]);
}

/// The formats that the guide has a row for.
fn formats_of_the_guide() -> Vec<String> {
    let guide = std::fs::read_to_string(root().join("docs/lab.md")).unwrap();
    let (_, table) = guide.split_once("| format | description |").unwrap();
    let rows = table.lines().skip(2).take_while(|line| !line.is_empty());
    let names = rows.map(|row| row.split('`').nth(1).unwrap().to_owned());
    names.collect()
}

#[test]
fn help_messages_and_the_guide_list_the_same_formats() {
    let listed = formats_of_the_guide().join(" ");
    let told = text(&lab(&["stat", NASA, "--format", "odd"]).stderr);
    assert!(
        told.ends_with(&format!("write one of: {listed}\n")),
        "{listed}: {told}"
    );
    for command in ["tcb", "stat", "advise", "calibrate", "convert"] {
        for help in ["-h", "--help"] {
            let shown = text(&lab(&[command, help]).stdout);
            let shown: Vec<&str> = shown.split_whitespace().collect();
            let shown = shown.join(" ");
            assert!(shown.contains(&format!("One of: {listed}.")), "{shown}");
        }
    }
}
