//! `fairlead lab`, the program: what it writes, what bad input gets, and that a sweep goes on where
//! it was.

mod content;
mod handoff;
mod options;
mod output;
mod paper;
mod protocol;
mod support;

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use support::{Folder, command, lab, root};

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

fn json(args: &[&str]) -> Value {
    let output = lab(args);
    assert!(
        output.status.success(),
        "{args:?}: {}",
        text(&output.stderr)
    );
    serde_json::from_slice(&output.stdout).unwrap()
}

/// The command fails with this code, names what is wrong and does not panic.
#[track_caller]
fn refused(args: &[&str], code: i32, words: &[&str]) {
    let output = lab(args);
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{args:?}: {said}");
    assert!(!said.contains("panicked"), "{said}");
    for word in words {
        assert!(said.contains(word), "{args:?}: no {word:?} in: {said}");
    }
    assert!(
        output.stdout.is_empty(),
        "{args:?}: {}",
        text(&output.stdout)
    );
}

const NASA: &str = "tests/traces/nasa.log";

#[test]
fn tcb_has_the_promised_keys() {
    let result = json(&[
        "tcb",
        NASA,
        "--scheme",
        "spec",
        "--capacity",
        "1K",
        "--ways",
        "4",
        "--concurrency",
        "40",
        "--seed",
        "1",
        "--json",
    ]);
    for key in [
        "accesses",
        "misses",
        "miss_ratio",
        "cold_misses",
        "migrations",
        "second_lookup_hits",
    ] {
        assert!(result[key].is_number(), "{key} in {result}");
    }
    // As in options, plans and sweeps, and as they once were called.
    for (key, older, value) in [
        ("capacity", "capacity_bytes", 1_024),
        ("line", "line_bytes", 64),
    ] {
        assert_eq!(
            (&result[key], &result[older]),
            (&value.into(), &value.into())
        );
    }
    let bounds = &result["bounds"];
    let misses = result["misses"].as_u64().unwrap();
    assert!(bounds["min"].as_u64().unwrap() <= misses);
    assert!(bounds["min"].as_u64().unwrap() <= bounds["lru"].as_u64().unwrap());
    assert!(bounds["compulsory"].as_u64().unwrap() <= bounds["min"].as_u64().unwrap());
    let made = &result["stream"]["made"]["expansion"];
    assert_eq!(made["concurrent_sessions"], 40.0);
    assert_eq!(made["session_timeout_s"], 1800.0);
    assert!(result["stream"]["expanded"]["concurrency_mean"].is_number());
    // What no session is silent for comes before what is counted.
    assert_eq!(result["stream"]["expanded"]["warm_up_s"], 1801.0);
    assert!(result["stream"].get("notes").is_none(), "{result}");
}

#[test]
fn a_short_warm_up_is_used_and_warned_of() {
    let words = ["tcb", NASA, "--concurrency", "40", "--json"];
    let plain = lab(&words);
    let short = lab(&[&words[..], &["--warm-up", "300"]].concat());
    assert!(!text(&plain.stderr).contains("warm-up"));
    let said = text(&short.stderr);
    assert!(
        said.contains("warm-up of 300 s") && said.contains("1800 s"),
        "{said}"
    );
    let result: Value = serde_json::from_slice(&short.stdout).unwrap();
    assert_eq!(result["stream"]["expanded"]["warm_up_s"], 300.0);
}

/// Two sessions with one identifier, an hour and more apart, are two, open for their own time.
#[test]
fn sessions_of_a_log_end_with_the_timeout_where_ports_come_again() {
    let folder = Folder::new("sessions");
    let at = |client: &str, clock: &str| {
        format!("{client} - - [01/Jul/1995:{clock} -0400] \"GET / HTTP/1.0\" 200 10\n")
    };
    let log = [
        at("10.0.0.1", "00:00:00"),
        at("10.0.0.2", "00:00:50"),
        at("10.0.0.1", "00:01:40"),
        at("10.0.0.2", "00:02:30"),
        at("10.0.0.1", "02:46:40"),
        at("10.0.0.1", "02:48:20"),
    ];
    let path = folder.write("sessions.log", log.concat());
    let one_port = ["stat", &path, "--expand", "ports.range=1", "--json"];
    let found = &json(&one_port)["accesses"];
    assert_eq!(found["sessions"], 3);
    assert_eq!(found["accesses_per_session"], 2.0);
    let near = |value: &Value, wanted: f64| (value.as_f64().unwrap() - wanted).abs() < 1.1;
    assert_eq!(found["gaps"]["off"]["count"], 3);
    assert!(near(&found["gaps"]["off"]["mean"], 100.0), "{found}");
    assert_eq!(found["concurrency"]["peak_open"], 2);
    assert!(near(&found["concurrency"]["peak_open_at_s"], 50.0));
    let mean = found["concurrency"]["mean_open"].as_f64().unwrap();
    assert!((mean - 300.0 / 10_100.0).abs() < 1e-3, "{mean}");
    let said = text(&lab(&one_port[..4]).stdout);
    assert!(said.contains("3 sessions with 2 identifiers"), "{said}");
    // At a load as many are open as were asked for, and no pause is cut off.
    let loaded = json(&["stat", &path, "--concurrency", "50", "--json"]);
    let (found, expanded) = (&loaded["accesses"], &loaded["stream"]["expanded"]);
    let mean = found["concurrency"]["mean_open"].as_f64().unwrap();
    assert!((mean - 50.0).abs() < 0.1, "{mean}");
    assert_eq!(
        found["concurrency"]["peak_open"],
        expanded["concurrency_peak"]
    );
    assert_eq!(found["accesses_per_session"], 2.0);
    assert_eq!(found["gaps"]["off"]["count"], 3, "{found}");
    assert!(near(&found["gaps"]["off"]["mean"], 100.0), "{found}");
}

#[test]
fn rows_of_accesses_are_taken_as_they_are() {
    let folder = Folder::new("accesses");
    let rows = "time_us,ip,port\n0,10.0.0.1,1024\n10,10.0.0.2,1024\n20,10.0.0.1,1024\n\
                30,2001:db8::1,80\n40,10.0.0.1,1025\n";
    let path = folder.write("rows.csv", rows);
    let result = json(&[
        "tcb", &path, "--as", "accesses", "--scheme", "mod", "--json",
    ]);
    assert_eq!(
        (&result["accesses"], &result["misses"]),
        (&5.into(), &4.into())
    );
    assert_eq!(result["bounds"]["compulsory"], 4);
    // And written and read again in the laboratory's own file and as a table.
    for name in ["rows.lab", "again.csv"] {
        let out = folder.0.join(name).display().to_string();
        assert!(lab(&["convert", &path, &out]).status.success());
        let again = json(&["tcb", &out, "--as", "accesses", "--scheme", "mod", "--json"]);
        assert_eq!(
            again["stream"]["stream"], result["stream"]["stream"],
            "{name}"
        );
    }
}

#[test]
fn bad_traces_are_refused_by_name() {
    let folder = Folder::new("traces");
    let tcb = |path: &str, more: &[&str], words: &[&str]| {
        let args = [&["tcb", path, "--scheme", "mod"], more].concat();
        refused(&args, 1, words);
    };
    let log = std::fs::read(root().join(NASA)).unwrap();
    let mut packed = flate2_gzip(&log);
    packed.truncate(packed.len() / 2);
    let cut = folder.write("cut.log.gz", &packed);
    tcb(&cut, &[], &["cut.log.gz", "fetch it again, it was cut"]);
    let mut packed = std::fs::read(root().join("tests/traces/nasa.log"))
        .map(|log| zstd_stored(&log))
        .unwrap();
    packed.truncate(packed.len() / 2);
    let cut = folder.write("cut.log.zst", &packed);
    tcb(&cut, &[], &["cut.log.zst", "fetch it again, it was cut"]);
    let noise: Vec<u8> = (0..4_096u32)
        .map(|at| (at.wrapping_mul(2_654_435_761) >> 24) as u8)
        .collect();
    let binary = folder.write("noise.log", &noise);
    tcb(
        &binary,
        &[],
        &[
            "noise.log",
            "a binary file of unknown format",
            "name the format",
        ],
    );
    tcb(
        &binary,
        &["--format", "clf"],
        &["noise.log", "cannot be read as clf"],
    );
    let empty = folder.write("empty.log", "");
    tcb(&empty, &[], &["empty.log", "is it the right file"]);
    let blank = folder.write("blank.log", "\n\n");
    tcb(&blank, &[], &["blank.log", "only blank lines"]);
    let rowless = folder.write("rowless.csv", "time_us,ip,port\n");
    tcb(&rowless, &[], &["rowless.csv", "no row"]);
    tcb("no/such/file.log", &[], &["no/such/file.log"]);
    tcb("tests", &[], &["directory"]);
    let mut lines = String::from_utf8(log).unwrap();
    lines.push_str(&"this is not a request\n".repeat(60));
    let back = folder.write("back.csv", "time_us,ip,port\n9,10.0.0.1,1\n5,10.0.0.1,1\n");
    tcb(
        &back,
        &[],
        &["back.csv", "steps back once, first at row 2", "--sort"],
    );
    assert!(lab(&["tcb", &back, "--sort"]).status.success());
    let broken = folder.write("broken.log", lines);
    tcb(&broken, &[], &["broken.log", "line 121", "--max-bad"]);
}

/// Raw blocks only: enough of Zstandard for a test.
fn zstd_stored(bytes: &[u8]) -> Vec<u8> {
    // Magic; one segment, its size in four bytes; one last raw block.
    let mut out = vec![0x28, 0xb5, 0x2f, 0xfd, 0xa0];
    let length = u32::try_from(bytes.len()).unwrap();
    out.extend(length.to_le_bytes());
    out.extend(&(length << 3 | 1).to_le_bytes()[..3]);
    out.extend(bytes);
    out
}

/// Stored blocks only: enough of gzip for a test.
fn flate2_gzip(bytes: &[u8]) -> Vec<u8> {
    let mut out = vec![0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 255];
    let length = u16::try_from(bytes.len()).unwrap();
    out.push(1);
    out.extend(length.to_le_bytes());
    out.extend((!length).to_le_bytes());
    out.extend(bytes);
    out
}

#[test]
fn bad_options_are_refused_with_what_to_write() {
    let tcb = |more: &[&str], words: &[&str]| refused(&[&["tcb", NASA], more].concat(), 2, words);
    tcb(&["--capacity", "33K"], &["33792", "power of two", "32768"]);
    tcb(&["--capacity", "64"], &["one set", "at least 512"]);
    tcb(&["--ways", "3"], &["power of two", "2 or 4"]);
    tcb(&["--ways", "0"], &["power of two"]);
    tcb(&["--line", "0"], &["power of two"]);
    tcb(&["--capacity", "lots"], &["--capacity", "32K"]);
    tcb(&["--scheme", "speck"], &["speck", "2-universal"]);
    tcb(&["--index-bits", "50"], &["index bits 50", "all48"]);
    tcb(&["--threshold", "9"], &["threshold 9", "0 (always ON)"]);
    tcb(&["--tick-ms", "0"], &["--tick-ms 0"]);
    tcb(&["--max-bad", "2"], &["--max-bad 2"]);
    tcb(&["--concurrency", "0"], &["--concurrency 0"]);
    tcb(
        &["--expand", "session_timeout_s=-1"],
        &["session_timeout_s"],
    );
    tcb(&["--expand", "no_such=1"], &["no_such"]);
    tcb(&["--ports", "odd"], &["--ports odd", "sequential"]);
    tcb(&["--format", "clv"], &["--format clv", "clf"]);
    refused(&["tcb", "standard:sessions=0"], 2, &["sessions"]);
    refused(&["tcb", "zipf:ids=0"], 2, &["ids"]);
    // 2³² sessions, from every side.
    let too_many = "4294967296";
    refused(
        &["tcb", "zipf:ids=4294967296"],
        2,
        &["zipf ids=", "write a whole number"],
    );
    refused(
        &["tcb", "standard:4294967296"],
        2,
        &["standard", "write a whole number"],
    );
    refused(
        &["tcb", "standard:sessions=4294967295"],
        2,
        &["sessions must be 1 to 268435456"],
    );
    refused(
        &[
            "generate",
            "standard",
            "--sessions",
            too_many,
            "--out",
            "x.lab",
        ],
        2,
        &["--sessions", "4294967295"],
    );
    refused(
        &["generate", "zipf", "--ids", too_many, "--out", "x.lab"],
        2,
        &["--ids", "at most 4294967295 sessions"],
    );
    tcb(
        &["--concurrency", too_many],
        &["--concurrency", "4294967295"],
    );
    refused(&["map", "--warm-up=-1"], 2, &["--warm-up -1", "0 or more"]);
    refused(
        &["calibrate", NASA, "--target", "1.5"],
        2,
        &["--target 1.5"],
    );
    refused(
        &["generate", "zipf", "--out", "x.dat"],
        2,
        &["x.dat", ".oracleGeneral"],
    );
}

#[test]
fn options_are_named_by_what_was_written() {
    let tcb = |more: &[&str], words: &[&str]| refused(&[&["tcb", NASA], more].concat(), 2, words);
    tcb(&["--sub-second", "odd"], &["--sub-second", "odd"]);
    tcb(&["--packets", "odd"], &["--packets", "odd"]);
    tcb(
        &["--expand", "ports.range=70000"],
        &["--expand ports", "65535"],
    );
    tcb(&["--capacity", "-1"], &["--capacity", "'-1'", "32K"]);
    tcb(&["--ways", "-1"], &["--ways", "'-1'"]);
    let cost = |more: &[&str], words: &[&str]| refused(&[&["cost"], more].concat(), 2, words);
    for wrong in ["nan", "inf", "-5", "-0.5"] {
        let setting = format!("toe.memory_ns={wrong}");
        cost(&["--constant", &setting], &["toe.memory_ns", "0 or more"]);
    }
    let folder = Folder::new("constants");
    let broken = folder.write("constants.toml", "[toe]\nmemory_ns = = 3\n");
    cost(&["--constants", &broken], &["constants.toml", "line 2"]);
}

#[test]
fn advice_is_on_all_that_was_asked_or_none() {
    let advise = |more: &[&str], words: &[&str]| {
        let trace = "zipf:ids=500,accesses=2000";
        refused(&[&["advise", trace], more].concat(), 2, words);
    };
    advise(&["--ways", "2,3"], &["--ways 3", "power of two"]);
    advise(&["--ways", "4096"], &["--ways 4096"]);
    advise(&["--line", "48"], &["--line 48", "power of two"]);
    advise(
        &["--capacities", "1000,32K"],
        &["--capacities 1000", "power of two"],
    );
    advise(&["--capacities", "64,32K"], &["--capacities 64", "one set"]);
    advise(&["--tolerance", "2"], &["--tolerance 2", "below 1"]);
}

/// Where several designs are equally good, the table of capacities has the one that is advised: the
/// one with the fewest bits.
#[test]
fn of_designs_that_miss_the_same_the_one_with_the_fewest_bits_is_best() {
    for stream in [
        "zipf:ids=20,accesses=2000",
        "standard:sessions=2000,seconds=20",
    ] {
        let advice = json(&["advise", stream, "--json"]);
        let best = &advice["best"];
        let steps = advice["steps"].as_array().unwrap();
        let step = steps
            .iter()
            .find(|step| step["capacity"] == best["run"]["capacity"]);
        assert_eq!(step.unwrap()["best"], *best, "{stream}");
    }
}

/// How many sessions are open at once is a setting of the expansion, and accesses are not expanded.
#[test]
fn a_number_of_open_sessions_is_not_believed_of_accesses() {
    let folder = Folder::new("accesses");
    let rows: String = (0..2_000)
        .map(|at| format!("{at},10.0.{}.{},1024\n", at % 7, at * 31 % 250))
        .collect();
    let trace = folder.write("rows.csv", format!("time_us,ip,port\n{rows}"));
    let words = ["rows.csv", "rows are accesses", "concurrent_sessions"];
    refused(&["calibrate", &trace, "--target", "0.5"], 1, &words);
    let out = folder.0.join("out").display().to_string();
    let paper = [
        "paper",
        "--trace",
        &trace,
        "--quick",
        "--no-synthetic",
        "--out",
        &out,
    ];
    refused(&paper, 1, &words);
    let plan = format!(
        "[[trace]]\npath = {trace:?}\nexpansion = {{ concurrent_sessions = [200, 400] }}\n\
         [[run]]\nscheme = \"mod\"\n"
    );
    let plan = folder.write("plan.toml", plan);
    let out = folder.0.join("out.csv").display().to_string();
    refused(&["sweep", &plan, "--out", &out], 1, &words);
    // A single run says that it did not use it.
    let one = lab(&["tcb", &trace, "--concurrency", "200"]);
    assert!(one.status.success());
    assert!(
        text(&one.stderr).contains("are not used"),
        "{}",
        text(&one.stderr)
    );
}

/// The same rows twice would count as two samples.
#[test]
fn equal_seeds_are_refused() {
    let folder = Folder::new("seeds");
    let text = "seeds = [4, 2, 4]\n[[trace]]\nstandard = { sessions = 9, seconds = 1 }\n\
                [[run]]\nscheme = \"mod\"\n";
    let plan = folder.write("plan.toml", text);
    let out = folder.0.join("out").display().to_string();
    refused(&["sweep", &plan, "--out", &out], 2, &["duplicate 4"]);
    let paper = ["paper", "--seeds", "2,2", "--out", &out];
    refused(&paper, 2, &["seed 2", "given twice"]);
    refused(&["map", "--seeds", "1,1"], 2, &["--seeds 1", "duplicate"]);
}

#[test]
fn a_fit_that_misses_its_target_is_none() {
    let words = ["--target 0.0001", "closest miss ratio", "open sessions"];
    refused(&["calibrate", NASA, "--target", "0.0001"], 2, &words);
}

#[test]
fn notes_of_a_trace_are_told_by_a_sweep() {
    let folder = Folder::new("notes");
    let rows = "10,10.0.0.1,1024\nno row\n".to_owned() + &"20,10.0.0.1,1024\n".repeat(200);
    let trace = folder.write("one.csv", format!("time_us,ip,port\n{rows}"));
    let plan = format!("[[trace]]\npath = {trace:?}\n[[run]]\nscheme = \"mod\"\n");
    let plan = folder.write("plan.toml", plan);
    let out = folder.0.join("out.csv").display().to_string();
    let said = text(&lab(&["sweep", &plan, "--out", &out]).stderr);
    for words in [
        "1 of 202 rows could not be read",
        "all accesses belong to one session",
    ] {
        assert!(said.contains(words), "no {words:?} in: {said}");
    }
    let silent = lab(&["sweep", &plan, "--out", &out, "--quiet"]);
    assert!(silent.stderr.is_empty(), "{}", text(&silent.stderr));
}

/// File systems take all bytes but two in a name; JSON takes UTF-8.
#[test]
fn names_of_files_need_not_be_unicode() {
    let folder = Folder::new("names");
    let place = folder.0.join(OsStr::from_bytes(b"fol\xe9der"));
    std::fs::create_dir(&place).unwrap();
    let path = place.join(OsStr::from_bytes(b"na\xffsa.log"));
    std::fs::copy(root().join(NASA), &path).unwrap();
    for words in ["tcb --json", "tcb", "stat --json", "stat"] {
        let words: Vec<&str> = words.split(' ').collect();
        let output = command(&words).arg(&path).output().unwrap();
        let said = text(&output.stdout);
        assert!(output.status.success(), "{}", text(&output.stderr));
        assert!(said.contains("na\u{fffd}sa.log"), "{words:?}: {said}");
    }
    let nothing = path.with_extension("gone");
    let output = command(&["tcb"]).arg(&nothing).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("na\u{fffd}sa.gone: No such file"));
    std::fs::rename(&path, place.join("plain.log")).unwrap();
    let (plan, out) = (place.join("plan.toml"), place.join("out.csv"));
    let text = "[[trace]]\npath = \"plain.log\"\n[[run]]\nscheme = \"mod\"\n";
    std::fs::write(&plan, text).unwrap();
    let mut sweep = command(&["sweep", "--out"]);
    assert!(sweep.args([&out, &plan]).output().unwrap().status.success());
    let rows = std::fs::read_to_string(&out).unwrap();
    assert!(rows.contains("fol\u{fffd}der/plain.log"), "{rows}");
}

/// A terminal would obey what stands in a name.
#[test]
fn names_of_files_do_not_reach_a_terminal_as_they_are() {
    let folder = Folder::new("control");
    let name = "na\u{1b}[31m\rsa\u{9b}7m\n.log";
    let log = std::fs::read(root().join(NASA)).unwrap();
    let path = folder.write(name, [&log[..], b"no row\n"].concat());
    let plan = "[[trace]]\npath = \"na\\u001b[31m\\rsa\\u009b7m\\n.log\"\nmax_bad = 0.5\n\
                [[run]]\nscheme = \"mod\"\n";
    let (plan, out) = (
        folder.write("plan.toml", plan),
        folder.path("out\u{1b}.csv"),
    );
    for (code, words) in [
        (0, ["stat", "--max-bad", "0.5", &path]),
        (0, ["tcb", "--json", "--max-bad=0.5", &path]),
        (1, ["stat", "--max-bad", "0", &path]),
        (1, ["stat", "--max-bad", "0", &folder.path("\u{1b}")]),
        (0, ["sweep", "--out", &out, &plan]),
    ] {
        let output = lab(&words);
        let said = text(&output.stdout) + &text(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{said:?}");
        let control = said.find(|letter: char| letter.is_control() && letter != '\n');
        assert_eq!(control, None, "{said:?}");
        assert!(said.contains("1b"), "{said:?}");
    }
}

#[test]
fn a_sweep_goes_on_where_it_was() {
    let folder = Folder::new("sweep");
    let trace = root().join(NASA).canonicalize().unwrap();
    let plan = format!(
        "seeds = 2\nbounds = true\n[[trace]]\npath = {trace:?}\n[[trace]]\n\
         standard = {{ sessions = [50, 100], seconds = 5 }}\n[[run]]\n\
         scheme = [\"mod\", \"spec\"]\ncapacity = [\"1K\", \"2K\"]\nways = 2\n"
    );
    let plan = folder.write("plan.toml", plan);
    for name in ["out.jsonl", "out.csv"] {
        let out = folder.0.join(name).display().to_string();
        let sweep = || text(&lab(&["sweep", &plan, "--out", &out]).stdout);
        assert!(sweep().contains("24 of 24 runs finished now, 0 already done"));
        let whole = std::fs::read_to_string(&out).unwrap();
        assert!(sweep().contains("0 of 24 runs finished now, 24 already done"));
        // A kill in the middle of a line.
        std::fs::write(&out, &whole[..whole.len() * 2 / 3]).unwrap();
        let said = sweep();
        assert!(
            !said.contains(" 0 already done") && !said.contains("24 already done"),
            "{said}"
        );
        let sorted = |text: &str| {
            let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
            lines.sort();
            lines
        };
        assert_eq!(
            sorted(&std::fs::read_to_string(&out).unwrap()),
            sorted(&whole)
        );
    }
    let other = folder.write("other.jsonl", "{\"not\": \"ours\"}\n");
    refused(
        &["sweep", &plan, "--out", &other],
        2,
        &["other.jsonl: line 1"],
    );
    let wrong = folder.write(
        "wrong.toml",
        "[[trace]]\npath = \"x\"\n[[run]]\nschema = \"mod\"\n",
    );
    refused(
        &["sweep", &wrong],
        2,
        &["wrong.toml", "[[run]] number 1", "schema"],
    );
    let torn = folder.write("torn.toml", "[[trace]]\npath = \n");
    refused(&["sweep", &torn], 2, &["torn.toml: line 2"]);
}

/// Starts a sweep that takes minutes, waits for its first results and sends it a signal.
fn interrupted(plan: &str, out: &str, signal: &str) -> (std::process::ExitStatus, Duration) {
    let mut child = Command::new(env!("CARGO_BIN_EXE_fairlead"))
        .args(["lab", "sweep", plan, "--out", out, "--quiet"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let begun = Instant::now();
    while std::fs::read_to_string(out).map_or(0, |text| text.lines().count()) < 2 {
        assert!(
            begun.elapsed() < Duration::from_secs(180),
            "no result in three minutes"
        );
        assert!(child.try_wait().unwrap().is_none(), "it is over already");
        std::thread::sleep(Duration::from_millis(20));
    }
    let told = Instant::now();
    let pid = child.id().to_string();
    let kill = Command::new("kill").args([signal, &pid]).status().unwrap();
    assert!(kill.success());
    (child.wait().unwrap(), told.elapsed())
}

#[test]
fn a_sweep_that_is_stopped_or_killed_keeps_what_is_finished() {
    let folder = Folder::new("stopped");
    let text = |runs: u64| {
        format!(
            "[[trace]]\nstandard = {{ sessions = 4000, seconds = 300 }}\n[[run]]\n\
             scheme = \"spec\"\nseed = {{ from = 1, to = {runs}, step = 1 }}\n"
        )
    };
    for signal in ["-INT", "-KILL"] {
        let plan = folder.write("long.toml", text(4_000));
        let out = folder.0.join(format!("out{signal}.jsonl"));
        let out = out.display().to_string();
        let (status, took) = interrupted(&plan, &out, signal);
        if signal == "-INT" {
            assert_eq!(status.code(), Some(130));
            // The whole of it takes minutes.
            assert!(took < Duration::from_secs(10), "{took:?}");
        }
        let lines = std::fs::read_to_string(&out).unwrap();
        let seeds: Vec<u64> = lines
            .lines()
            .filter_map(|line| serde_json::from_str::<Value>(line).ok()?["seed"].as_u64())
            .collect();
        let (kept, last) = (seeds.len() as u64, *seeds.iter().max().unwrap());
        assert!(
            kept < 4_000 && lines.lines().count() as u64 <= kept + 1,
            "one is torn at most"
        );
        // A smaller plan: what is left of it is done now, and nothing twice.
        let plan = folder.write("short.toml", text(last + 2));
        let said = String::from_utf8(lab(&["sweep", &plan, "--out", &out]).stdout).unwrap();
        let all = last + 2;
        let wanted = format!(
            "{} of {all} runs finished now, {kept} already done",
            all - kept
        );
        assert!(said.contains(&wanted), "{said}: no {wanted}");
    }
}

#[test]
fn every_command_says_what_it_found() {
    for (args, words) in [
        (vec!["schemes"], vec!["2-universal", "timestamp", "pdisp"]),
        (
            vec!["stat", NASA],
            vec!["clients", "figure 3", "figure 7", "figure 5"],
        ),
        (
            vec!["advise", NASA, "--capacities", "1K,4K"],
            vec!["Recommended: ", "gates", "conventional"],
        ),
        (vec!["cost"], vec!["TOE", "gate delays", "published"]),
        (
            vec![
                "map",
                "--loads",
                "1,2",
                "--bursts",
                "6",
                "--seconds",
                "2",
                "--capacity",
                "4K",
            ],
            vec!["Synthetic", "saved by spec over 2-universal"],
        ),
        (
            vec![
                "calibrate",
                "standard:seconds=5",
                "--target",
                "0.5",
                "--capacity",
                "4K",
            ],
            vec!["fitted", "predicted", "bound"],
        ),
    ] {
        let output = lab(&args);
        assert!(
            output.status.success(),
            "{args:?}: {}",
            text(&output.stderr)
        );
        for word in words {
            let said = text(&output.stdout);
            assert!(said.contains(word), "{args:?}: no {word:?} in {said}");
        }
    }
}

#[test]
fn the_paper_names_what_is_not_at_hand() {
    let folder = Folder::new("paper");
    let out = folder.0.join("out").display().to_string();
    let output = lab(&[
        "paper",
        "--trace",
        "tests/traces/combined.log",
        "--quick",
        "--no-synthetic",
        "--concurrency",
        "600",
        "--hash-draws",
        "3",
        "--out",
        &out,
    ]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let said = text(&output.stdout);
    for name in ["BU", "NASA", "Saskatchewan", "ClarkNet"] {
        assert!(said.contains(&format!("{name} is missing")), "{said}");
    }
    let report = std::fs::read_to_string(folder.0.join("out/paper.json")).unwrap();
    let report: Value = serde_json::from_str(&report).unwrap();
    let figures = report["figures"].as_array().unwrap();
    let ids: Vec<&str> = figures
        .iter()
        .filter_map(|figure| figure["id"].as_str())
        .collect();
    let wanted = [
        "figure-1b",
        "figure-3a",
        "figure-3b",
        "figure-4",
        "figure-5",
        "figure-7",
        "section-3.4",
        "figure-12",
        "figure-12-models",
        "figure-13",
        "figure-14",
        "figure-15",
        "figure-16",
        "table-1",
        "figure-17",
        "figure-18-19",
        "section-4.1",
        "section-4.3",
    ];
    assert_eq!(ids, wanted);
    // The log is short: no stamp of 16 or 24 bits begins again, so nothing can be said of them.
    let claims = std::fs::read_to_string(folder.0.join("out/claims.csv")).unwrap();
    for (claim, bits) in [("TCB(16) misses about", 16), ("stamps of more than 24", 24)] {
        let row = claims.lines().find(|row| row.contains(claim)).unwrap();
        assert!(row.contains(",cannot be said,"), "{row}");
        assert!(
            row.contains(&format!("stamps of {bits} bits never begin again")),
            "{row}"
        );
    }
    // The share of a whole that the paper does not print is not judged either.
    let of_cpu: Vec<&str> = claims
        .lines()
        .filter(|row| row.starts_with("figure-18-19,"))
        .collect();
    assert_eq!(of_cpu.len(), 2);
    assert!(of_cpu.iter().all(|row| row.contains(",cannot be said,")));
    for figure in figures {
        let id = figure["id"].as_str().unwrap();
        let table = std::fs::read_to_string(folder.0.join(format!("out/{id}.csv"))).unwrap();
        assert!(
            table.lines().count() > 1 || id == "figure-12-models",
            "{id}"
        );
    }
}
