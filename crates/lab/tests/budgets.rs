//! What each packet of the datapath costs is what `bench/budgets.toml` says. Skipped with a message
//! where the workloads cannot be built or traced, or are built by other tools.

use std::path::Path;
use std::process::Command;
use std::sync::OnceLock;

use fairlead_lab::Silent;
use fairlead_lab::protocol::budget::{Budgets, Verdict};
use fairlead_lab::protocol::stacks::{Stack, StackRun};
use fairlead_lab::protocol::tracer::{TraceSpec, trace};
use fairlead_trace::references::Event;

/// Builds the workloads; false, with a line in the list of skipped tests, if they cannot be traced.
fn ready(test: &str) -> bool {
    let skip = |why: &str| {
        fairlead_netns::trial::skip(test, why);
        false
    };
    if Command::new("qemu-x86_64")
        .arg("--version")
        .output()
        .is_err()
    {
        return skip("no qemu-x86_64: apt-get install qemu-user");
    }
    if !cfg!(target_arch = "x86_64") {
        return skip("the workloads are built for x86-64");
    }
    static BUILT: OnceLock<Result<(), String>> = OnceLock::new();
    let built = BUILT.get_or_init(|| {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/stacks");
        let built = Command::new(script).output().unwrap();
        let said = String::from_utf8_lossy(&built.stderr).into_owned();
        if built.status.success() {
            Ok(())
        } else {
            Err(said)
        }
    });
    assert_eq!(*built, Ok(()), "make stacks");
    true
}

#[test]
fn packets_cost_what_they_may() {
    if !ready("packets_cost_what_they_may") {
        return;
    }
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../bench/budgets.toml");
    let budgets = Budgets::read(&path).unwrap();
    let measured = Budgets::measure(&Silent).unwrap();
    match budgets.compare(&measured) {
        Verdict::Compared(differences) => {
            let lines: Vec<String> = differences.iter().map(ToString::to_string).collect();
            let lines = lines.join("\n");
            assert!(
                lines.is_empty(),
                "{lines}\nIf that is meant: fairlead lab protocol budget update"
            );
        }
        Verdict::OtherTools { budgets, here } => {
            let why = format!("budgets are of {budgets:?}, here are {here:?}");
            fairlead_netns::trial::skip("packets_cost_what_they_may", &why);
        }
    }
}

#[test]
fn two_runs_of_a_workload_are_equal() {
    if !ready("two_runs_of_a_workload_are_equal") {
        return;
    }
    for name in ["datapath-ipv6", "smoltcp-tcp", "smoltcp-udp-no-checksums"] {
        let run = StackRun {
            stack: Stack::named(name).unwrap(),
            size: 1000,
            packets: 10,
            connections: 5,
        };
        let spec = run.spec().unwrap();
        let traced = |spec: &TraceSpec| {
            let mut events: Vec<Event> = Vec::new();
            let outcome = trace(spec, &Silent, &mut |more| {
                events.extend_from_slice(more);
                Ok(())
            });
            (outcome.unwrap().trouble, events)
        };
        let (trouble, first) = traced(&spec);
        assert_eq!(trouble, None, "{name}");
        assert!(first.len() > 10_000, "{name}: {} events", first.len());
        assert!(first == traced(&spec).1, "{name} differs from run to run");
        let folder = format!("fairlead-workload-elsewhere-{}", std::process::id());
        let folder = std::env::temp_dir().join(folder);
        std::fs::create_dir_all(&folder).unwrap();
        let elsewhere = folder.join("copy");
        std::fs::copy(&spec.program, &elsewhere).unwrap();
        let moved = run.spec_of(elsewhere).unwrap();
        assert!(
            first == traced(&moved).1,
            "{name} differs from place to place"
        );
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
