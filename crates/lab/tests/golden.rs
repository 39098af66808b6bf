//! Golden tables: scheme × capacity × trace → misses. A change of these numbers is a change of
//! what the laboratory says, and is looked at as a diff.
//!
//! `UPDATE=1 cargo test -p fairlead-lab --test golden` writes the table anew.

use std::path::{Path, PathBuf};

use fairlead_cache::Scheme;
use fairlead_lab::{Loader, RunSpec, Silent, Size, StreamSpec, Wanted, run_many};
use fairlead_workload::Standard;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn table_path() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/snapshots/misses.csv")
}

/// Excerpts are small: caches of 16 and 64 lines, and few open sessions.
fn streams() -> Vec<(&'static str, StreamSpec)> {
    let excerpt = |name: &str, concurrent: Option<f64>| {
        let mut made = StreamSpec::file(root().join("tests/traces").join(name));
        made.expansion.concurrent_sessions = concurrent;
        made
    };
    let mut packets = excerpt("nasa.log", None);
    packets.expansion.packets = fairlead_workload::PacketModel::Packets;
    let standard = Standard {
        sessions: 120,
        seconds: 60.0,
        ..Standard::default()
    };
    vec![
        ("nasa.log", excerpt("nasa.log", None)),
        ("nasa.log, 40 open", excerpt("nasa.log", Some(40.0))),
        ("nasa.log, packets", packets),
        ("worldcup.bin, 40 open", excerpt("worldcup.bin", Some(40.0))),
        ("elb.log", excerpt("elb.log", None)),
        ("combined.log", excerpt("combined.log", None)),
        (
            "synthetic: standard, 120 sessions",
            StreamSpec::standard(standard, 1),
        ),
    ]
}

fn runs() -> Vec<RunSpec> {
    let mut runs = Vec::new();
    for capacity in [Size(1 << 10), Size(4 << 10)] {
        for (scheme, _) in Scheme::all() {
            runs.push(RunSpec {
                capacity,
                ways: 2,
                ..RunSpec::paper(scheme)
            });
        }
    }
    runs
}

#[test]
fn misses_are_those_of_the_table() {
    let mut table = String::from(
        "trace,scheme,capacity,accesses,misses,migrations,second,set_min,greedy,lru,min\n",
    );
    for (name, made) in streams() {
        let stream = Loader::default().stream(&made, &Silent).unwrap();
        let runs = runs();
        let results = run_many(&stream, &runs, Wanted::All, 1, &Silent).unwrap();
        for (run, result) in runs.iter().zip(&results) {
            let bounds = result.bounds.clone().unwrap();
            assert!(result.misses >= bounds.compulsory && bounds.min <= bounds.lru);
            // Who moves lines stands where the bound in the sets does not look.
            let moves = ["spec", "tide"].contains(&run.scheme.as_str());
            let in_sets = (bounds.set_min.is_some(), bounds.greedy.is_some());
            let single = Scheme::parse(&run.scheme).unwrap().banks == 1;
            assert_eq!(
                in_sets,
                (!moves && single, !moves && !single),
                "{}",
                run.scheme
            );
            assert!(
                result.bypasses > 0 || result.misses >= bounds.min,
                "{name} {}",
                run.scheme
            );
            let cell =
                |value: Option<u64>| value.map(|value| value.to_string()).unwrap_or_default();
            table += &format!(
                "\"{name}\",{},{},{},{},{},{},{},{},{},{}\n",
                run.scheme,
                run.capacity.0,
                result.accesses,
                result.misses,
                result.migrations,
                result.second_lookup_hits,
                cell(bounds.set_min),
                cell(bounds.greedy),
                bounds.lru,
                bounds.min,
            );
        }
    }
    if std::env::var_os("UPDATE").is_some_and(|value| value == "1") {
        std::fs::create_dir_all(table_path().parent().unwrap()).unwrap();
        std::fs::write(table_path(), &table).unwrap();
        return;
    }
    // A scheme that is new has no row yet; one that is there keeps its numbers.
    let golden = std::fs::read_to_string(table_path()).unwrap();
    let ours: std::collections::BTreeSet<&str> = table.lines().collect();
    for (line, row) in golden.lines().enumerate() {
        assert!(
            ours.contains(row),
            "line {}: {row}: no longer so; UPDATE=1 writes the table anew",
            line + 1
        );
    }
    assert!(golden.lines().count() > 300);
}

#[test]
fn threads_and_company_change_nothing() {
    let (_, made) = streams().remove(1);
    let stream = Loader::default().stream(&made, &Silent).unwrap();
    let runs = runs();
    let together = run_many(&stream, &runs, Wanted::Nothing, 3, &Silent).unwrap();
    for (run, result) in runs.iter().zip(&together) {
        let one = std::slice::from_ref(run);
        let alone = run_many(&stream, one, Wanted::Nothing, 1, &Silent).unwrap();
        assert_eq!(&alone[0], result, "{}", run.scheme);
    }
}
