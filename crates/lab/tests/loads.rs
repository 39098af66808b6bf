//! One loader for many recipes: what it keeps of one does not decide another.

use std::path::PathBuf;

use fairlead_lab::calibrate::{CalibrateSpec, calibrate};
use fairlead_lab::load::As;
use fairlead_lab::stat;
use fairlead_lab::{LabError, Loader, RunSpec, Silent, StreamSpec};
use fairlead_workload::{PacketModel, PortModel, Standard};

/// A log of ten rows of which one cannot be read.
fn log(name: &str) -> PathBuf {
    let line = "host - - [01/Jul/1995:00:00:01 -0400] \"GET /a HTTP/1.0\" 200 7\n";
    let path = std::env::temp_dir().join(format!("fairlead-{name}-{}.log", std::process::id()));
    std::fs::write(&path, line.repeat(9) + "no row of a log\n").unwrap();
    path
}

#[test]
fn how_much_of_a_log_may_be_unreadable_is_asked_each_time() {
    let path = log("max-bad");
    let made = |max_bad: f64| StreamSpec {
        max_bad,
        ..StreamSpec::file(&path)
    };
    let mut loader = Loader::default();
    let mut rows = |max_bad: f64| {
        let stream = loader.stream(&made(max_bad), &Silent);
        let read = stream.map(|stream| stream.note.read.unwrap().rows);
        read.map_err(|error| error.to_string())
    };
    assert_eq!(rows(0.5), Ok(9));
    let refused = rows(0.01).unwrap_err();
    assert!(refused.contains("more than the 1 %"), "{refused}");
    assert_eq!(rows(0.5), Ok(9));
    std::fs::remove_file(&path).unwrap();
}

#[test]
fn rows_of_binary_files_are_no_lines() {
    let record = |time_us: u64| {
        let mut record = [0u8; 32];
        record[15] = 1;
        record[24..].copy_from_slice(&time_us.to_le_bytes());
        record
    };
    let path = std::env::temp_dir().join(format!("fairlead-rows-{}", std::process::id()));
    std::fs::write(&path, [record(1), record(u64::MAX), record(2)].concat()).unwrap();
    let made = StreamSpec {
        max_bad: 0.5,
        ..StreamSpec::file(&path)
    };
    let stream = Loader::default().stream(&made, &Silent).unwrap();
    let notes = stream.note.notes.join(" ");
    assert!(notes.contains("the first is row 2: no time"), "{notes}");
    std::fs::remove_file(&path).unwrap();
}

#[test]
fn a_recipe_is_told_apart_by_what_decides_its_stream() {
    let path = log("deciding");
    let table = path.with_extension("csv");
    std::fs::write(&table, "time_us,ip,port\n1,::1,1\n").unwrap();
    let made = |path: &PathBuf, seed: u64| {
        let mut made = StreamSpec::file(path);
        made.seed = seed;
        made.expansion.periods = seed as u32;
        made
    };
    let (log, rows) = (
        |seed| made(&path, seed).deciding(),
        |seed| made(&table, seed).deciding(),
    );
    assert_eq!(rows(2), StreamSpec::file(&table));
    assert_ne!(log(2), log(3));
    assert_eq!(log(2).expansion, log(3).expansion);
    let open = |sessions: f64| {
        let mut made = made(&table, 2);
        made.expansion.concurrent_sessions = Some(sessions);
        made.deciding()
    };
    assert_ne!(open(8.0), open(9.0));
    std::fs::remove_file(&path).unwrap();
    std::fs::remove_file(&table).unwrap();
}

#[test]
fn settings_of_the_expansion_without_effect_are_named() {
    let path = log("without-effect");
    let notes = |change: &dyn Fn(&mut StreamSpec)| {
        let mut made = StreamSpec {
            max_bad: 0.5,
            ..StreamSpec::file(&path)
        };
        change(&mut made);
        let stream = Loader::default().stream(&made, &Silent).unwrap();
        let mut notes = stream.note.notes;
        notes.retain(|note| note.starts_with("no effect"));
        notes
    };
    let random = |made: &mut StreamSpec| {
        made.expansion.ports = PortModel::RANDOM;
        made.expansion.acks_max = 7;
        made.expansion.packets = PacketModel::Packets;
    };
    assert_eq!(notes(&random), [""; 0]);
    let said = notes(&|made| {
        made.expansion.periods = 3;
        made.expansion.warm_up_s = Some(9.0);
        made.expansion.segment_bytes = 99;
    });
    assert!(
        said[0].contains("--warm-up (warm_up_s), --periods (periods);"),
        "{said:?}"
    );
    assert!(said[1].contains("segment_bytes; add --packets"), "{said:?}");
    std::fs::write(&path, "1,10.0.0.1,5000\n2,10.0.0.1,5000\n").unwrap();
    let said = notes(&|made| {
        made.format = Some("csv:time=1,client=2,port=3".to_owned());
        made.rows = As::Requests;
        made.expansion.ports = PortModel::RANDOM;
    });
    assert!(
        said.len() == 1 && said[0].contains("--ports (ports)"),
        "{said:?}"
    );
    std::fs::remove_file(&path).unwrap();
}

#[test]
fn sessions_of_a_log_with_ports_are_counted_alike_everywhere() {
    let path = log("with-ports");
    // Two connections of one client at once, and one of another.
    let rows =
        "0,10.0.0.1,5000\n1,10.0.0.1,6000\n30,10.0.0.1,5000\n31,10.0.0.1,6000\n40,10.0.0.2,7\n";
    std::fs::write(&path, rows).unwrap();
    let made = StreamSpec {
        format: Some("csv:time=1,client=2,port=3".to_owned()),
        rows: As::Requests,
        ..StreamSpec::file(&path)
    };
    let mut loader = Loader::with_times();
    let stream = loader.stream(&made, &Silent).unwrap();
    let log = loader.log(&path, &made, &Silent).unwrap();
    let spec = stat::StatSpec::default();
    let (of_log, of_stream) = (
        stat::log(&log, &spec),
        stat::accesses(&stream, &spec).unwrap(),
    );
    assert_eq!((of_log.totals.clients, of_log.totals.sessions), (2, 3));
    assert_eq!(of_stream.sessions, 3);
    assert_eq!((of_log.gaps.on.count, of_log.gaps.off.count), (0, 2));
    assert_eq!((of_stream.gaps.on.count, of_stream.gaps.off.count), (0, 2));
    std::fs::remove_file(&path).unwrap();
}

#[test]
fn a_workload_that_is_all_warm_up_says_so() {
    let standard = |seconds: f64| Standard {
        sessions: 20,
        warm_up_s: 30.0,
        seconds,
        ..Standard::default()
    };
    for (seconds, is_said) in [(0.0, true), (30.0, false)] {
        let made = StreamSpec::standard(standard(seconds), 1);
        let stream = Loader::default().stream(&made, &Silent).unwrap();
        assert_eq!(stream.counted() == 0, is_said);
        let said = stream.note.notes.join(" ").contains("no access is left");
        assert_eq!(said, is_said);
    }
}

#[test]
fn why_all_is_one_session_is_told_by_what_was_read() {
    let path = log("one-client");
    let note = |format: Option<&str>, text: &str| {
        std::fs::write(&path, text).unwrap();
        let made = StreamSpec {
            format: format.map(str::to_owned),
            ..StreamSpec::file(&path)
        };
        let stream = Loader::default().stream(&made, &Silent).unwrap();
        stream.note.notes.join(" ")
    };
    let line = "10.0.0.1 - - [01/Jul/1995:00:00:01 -0400] \"GET /a HTTP/1.0\" 200 7\n";
    let said = note(None, &line.repeat(2));
    assert!(said.contains("has only one client"), "{said}");
    let said = note(Some("csv:time=1"), "1,a\n2,b\n");
    assert!(said.contains("no client column was given"), "{said}");
    let said = note(Some("csv:time=1,client=2"), "1,a\n2,b\n");
    assert_eq!(said, "");
    std::fs::remove_file(&path).unwrap();
}

/// A fit of the standard workload to `target`.
fn fit(seconds: f64, target: f64, sessions_max: u32) -> Result<u32, LabError> {
    let standard = Standard {
        seconds,
        ..Standard::default()
    };
    let asked = CalibrateSpec {
        made: StreamSpec::standard(standard, 1),
        fitted: RunSpec::paper("mod"),
        target,
        predicted: Vec::new(),
        sessions_max,
    };
    let found = calibrate(&asked, &mut Loader::default(), 1, &Silent)?;
    Ok(found.sessions)
}

#[test]
fn no_more_sessions_are_tried_than_are_asked_for() {
    let refused = fit(20.0, 0.99, 100).unwrap_err().to_string();
    assert!(refused.contains("even with 100 open sessions"), "{refused}");
}

#[test]
fn a_load_at_which_nothing_is_accessed_is_a_low_one() {
    // One session is in a pause for all of these ten seconds.
    let refused = fit(10.0, 0.05, 1 << 17).unwrap_err().to_string();
    assert!(refused.contains("--target 0.05"), "{refused}");
    assert!(refused.contains("closest miss ratio"), "{refused}");
}
