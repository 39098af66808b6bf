//! `fairlead top` as scripts call it, against real pages.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use fairlead::admin::{Counters, FastPathState, Identity, Shared, start};
use fairlead_netns::trial::skip;

const PATIENCE: Duration = Duration::from_secs(60);

fn top(arguments: &[&str]) -> std::process::Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_fairlead"));
    command.arg("top").args(arguments).output().unwrap()
}

fn shared() -> Arc<Shared> {
    let shared = Arc::new(Shared::new(Identity {
        instance: "edge".into(),
        version: "1.2.3".into(),
        mode: "engine".into(),
        fast_path: FastPathState::engine("engine (mode = \"engine\")"),
        flow_table: "hash".into(),
        device: "fairlead0".into(),
    }));
    shared.publish(Counters::default());
    shared
}

#[test]
fn a_pipe_gets_one_plain_table_a_look() {
    let pages = start("127.0.0.1:0".parse().unwrap(), shared(), None).unwrap();
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
fn no_look_at_all_is_refused() {
    let pages = start("127.0.0.1:0".parse().unwrap(), shared(), None).unwrap();
    let admin = pages.address().to_string();
    for option in ["-n", "--count"] {
        let output = top(&["--admin", &admin, option, "0"]);
        assert_eq!(output.status.code(), Some(2));
        let told = String::from_utf8(output.stderr).unwrap();
        assert!(
            told.contains("'0' for '--count <N>'") && told.contains("1 or more"),
            "{told}"
        );
    }
}

#[test]
fn it_ends_when_its_reader_goes_away() {
    let pages = start("127.0.0.1:0".parse().unwrap(), shared(), None).unwrap();
    let admin = pages.address().to_string();
    let mut command = Command::new(env!("CARGO_BIN_EXE_fairlead"));
    command.args(["top", "--admin", &admin, "--interval", "0.1"]);
    let mut top = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut reader = BufReader::new(top.stdout.take().unwrap());
    let mut title = String::new();
    reader.read_line(&mut title).unwrap();
    assert!(title.starts_with("edge"), "{title}");
    drop(reader);
    let until = Instant::now() + PATIENCE;
    let status = loop {
        if let Some(status) = top.try_wait().unwrap() {
            break status;
        }
        if Instant::now() > until {
            let _ = top.kill();
            panic!("it goes on for nobody");
        }
        std::thread::sleep(Duration::from_millis(20));
    };
    assert!(status.success());
}

#[test]
fn a_switch_that_does_not_answer_is_asked_again() {
    let pages = start("127.0.0.1:0".parse().unwrap(), shared(), None).unwrap();
    let address = pages.address();
    let mut command = Command::new(env!("CARGO_BIN_EXE_fairlead"));
    command.args(["top", "--admin", &address.to_string(), "--interval", "0.1"]);
    let mut top = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(top.stdout.take().unwrap()).lines();
    let mut wait_for = |start: &str| {
        let mut lines = lines.by_ref().map(Result::unwrap);
        assert!(lines.any(|line| line.starts_with(start)), "{start}");
    };
    wait_for("edge");
    drop(pages);
    wait_for("no answer from");
    let _pages = start(address, shared(), None).unwrap();
    wait_for("edge");
    top.kill().unwrap();
    top.wait().unwrap();
}

/// The shell at a terminal of its own that runs `top` in a process whose number is written to
/// `number`, and then tells its exit code and what the terminal does. `None` where there is no
/// script(1).
fn at_a_terminal(number: &Path, arguments: &str) -> Option<Child> {
    let top = format!("{} top {arguments}", env!("CARGO_BIN_EXE_fairlead"));
    let number = number.display();
    let size = "stty cols 120 rows 40";
    let line = format!("{size}; sh -c 'echo $$ > {number}; exec {top}'; echo code=$?; stty -a");
    let mut command = Command::new("script");
    command
        .args(["-qec", &line, "/dev/null"])
        .env("TERM", "xterm");
    command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null());
    command.spawn().ok()
}

/// What is shown until a line has `words`, and that line.
fn shown_until(shown: &mut impl BufRead, words: &str) -> String {
    let mut all = Vec::new();
    while !String::from_utf8_lossy(&all).contains(words) {
        let mut byte = [0];
        let shown = shown.read_exact(&mut byte);
        shown.unwrap_or_else(|_| panic!("no {words}: {}", String::from_utf8_lossy(&all)));
        all.extend(byte);
    }
    String::from_utf8_lossy(&all).into_owned()
}

#[test]
fn a_signal_gives_the_terminal_back() {
    let number = std::env::temp_dir().join(format!("fairlead-top-{}", std::process::id()));
    for signal in ["TERM", "HUP"] {
        let pages = start("127.0.0.1:0".parse().unwrap(), shared(), None).unwrap();
        let arguments = format!("--interval 60 --admin {}", pages.address());
        let Some(mut shell) = at_a_terminal(&number, &arguments) else {
            return skip("top::a_signal_gives_the_terminal_back", "no script(1) here");
        };
        let mut shown = BufReader::new(shell.stdout.take().unwrap());
        shown_until(&mut shown, "connections/s");
        let top = std::fs::read_to_string(&number).unwrap();
        let kill = Command::new("kill")
            .args(["-s", signal, top.trim()])
            .status();
        assert!(kill.unwrap().success());
        let told = shown_until(&mut shown, "icanon");
        assert!(
            told.contains("code=0") && !told.contains("-icanon"),
            "{told}"
        );
        shell.wait().unwrap();
    }
    std::fs::remove_file(&number).unwrap();
}

#[test]
fn at_a_terminal_too_a_last_look_that_fails_is_1() {
    let number = std::env::temp_dir().join(format!("fairlead-top-{}-1", std::process::id()));
    let pages = start("127.0.0.1:0".parse().unwrap(), shared(), None).unwrap();
    let arguments = format!("--interval 1 --count 1 --admin {}", pages.address());
    let Some(mut shell) = at_a_terminal(&number, &arguments) else {
        let name = "top::at_a_terminal_too_a_last_look_that_fails_is_1";
        return skip(name, "no script(1) here");
    };
    let mut shown = BufReader::new(shell.stdout.take().unwrap());
    shown_until(&mut shown, "connections/s");
    drop(pages);
    let told = shown_until(&mut shown, "icanon");
    assert!(
        told.contains("code=1") && told.contains("no answer from"),
        "{told}"
    );
    shell.wait().unwrap();
    std::fs::remove_file(&number).unwrap();
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
