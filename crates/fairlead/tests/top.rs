//! `fairlead top` as scripts call it, against real pages.

use std::process::Command;
use std::sync::Arc;

use fairlead::admin::{Counters, Identity, Shared, start};

fn top(arguments: &[&str]) -> std::process::Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_fairlead"));
    command.arg("top").args(arguments).output().unwrap()
}

#[test]
fn a_pipe_gets_one_plain_table_a_look() {
    let shared = Arc::new(Shared::new(Identity {
        instance: "edge".into(),
        version: "1.2.3".into(),
        mode: "engine".into(),
        fast_path: "engine (mode = \"engine\")".into(),
        flow_table: "hash".into(),
        device: "fairlead0".into(),
    }));
    shared.publish(Counters::default());
    let pages = start("127.0.0.1:0".parse().unwrap(), Arc::clone(&shared)).unwrap();
    let admin = pages.address().to_string();
    let output = top(&["--admin", &admin, "--interval", "0.1", "--count", "3"]);
    assert!(output.status.success());
    let text = String::from_utf8(output.stdout).unwrap();
    let titles = text
        .lines()
        .filter(|line| line.starts_with("edge  fairlead 1.2.3  ok"));
    assert_eq!(titles.count(), 3, "{text}");
    assert!(
        text.contains("connections/s") && !text.contains('\x1b'),
        "{text}"
    );
}

#[test]
fn without_a_switch_it_says_so_and_bad_usage_is_2() {
    // Nobody listens on a port that was just free.
    let port = {
        let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        free.local_addr().unwrap().to_string()
    };
    let output = top(&["--admin", &port, "--count", "1"]);
    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("is the switch running?"), "{said}");
    assert_eq!(top(&["--interval", "0"]).status.code(), Some(2));
}
