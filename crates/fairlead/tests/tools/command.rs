//! The program itself: exit codes, what goes to which stream, and `status` against real pages.

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::Arc;

use fairlead::admin::{
    AdminServer, Counters, FastPathState, Identity, ProcessCounters, Shared, start,
};
use fairlead::config::load;
use fairlead::serve::ExitStatus;
use fairlead_datapath::Snapshot;
use serde_json::Value;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn fairlead(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_fairlead"))
        .args(args)
        .current_dir(root())
        .output()
        .unwrap()
}

fn out(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn err(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

/// A file that is gone when its owner is.
struct Written(PathBuf);

impl Written {
    fn new(name: &str, text: &str) -> Self {
        let file = format!("fairlead-command-{}-{name}.toml", std::process::id());
        let path = std::env::temp_dir().join(file);
        std::fs::write(&path, text).unwrap();
        Self(path)
    }

    fn path(&self) -> &str {
        self.0.to_str().unwrap()
    }
}

impl Drop for Written {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn edge() -> String {
    std::fs::read_to_string(root().join("examples/edge.toml")).unwrap()
}

#[test]
fn version_and_help() {
    let version = fairlead(&["--version"]);
    assert!(version.status.success());
    let layout = fairlead_bpf_loader::LAYOUT_VERSION;
    let number = env!("CARGO_PKG_VERSION");
    assert_eq!(
        out(&version),
        format!("fairlead {number} (layout {layout})\n")
    );
    let changelog = std::fs::read_to_string(root().join("CHANGELOG.md")).unwrap();
    let stated = format!("The layout number of the kernel maps is {layout}.");
    assert!(
        changelog.contains(&stated),
        "CHANGELOG.md does not say: {stated}"
    );
    let help = out(&fairlead(&["--help"]));
    for command in [
        "serve", "reload", "drain", "check", "demo", "replay", "status",
    ] {
        assert!(help.contains(&format!("\n  {command} ")), "{help}");
    }
    assert_eq!(fairlead(&["chekc"]).status.code(), Some(2));
    assert!(err(&fairlead(&["chekc"])).contains("'check'"));
}

#[test]
fn every_command_that_takes_a_configuration_takes_it_by_one_letter() {
    for command in [
        "serve", "reload", "drain", "check", "down", "doctor", "status",
    ] {
        let output = fairlead(&[command, "-c", "no/such/file.toml"]);
        assert!(!output.status.success(), "{command}");
        let said = out(&output) + &err(&output);
        assert!(said.contains("no/such/file.toml"), "{command}: {said}");
    }
}

/// Exit codes and their meanings, as a command's help has them.
fn exit_codes(command: &str) -> Vec<(u8, String)> {
    let help = out(&fairlead(&[command, "--help"]));
    let (_, codes) = help.split_once("\nExit codes:\n").expect("it tells them");
    let lines = codes.lines().map(str::trim);
    lines
        .map(|line| {
            let (code, meaning) = line.split_once("  ").unwrap();
            (code.parse().unwrap(), meaning.trim_start().to_owned())
        })
        .collect()
}

#[test]
fn exit_codes_are_told_by_the_help_and_the_guide() {
    let guide = std::fs::read_to_string(root().join("docs/operator-tools.md")).unwrap();
    let (_, guide) = guide.split_once("\n## Exit codes\n").unwrap();
    let guided = |command: &str| -> Vec<(u8, String)> {
        let begin = format!("| `{command}` | ");
        let rows = guide.lines().filter_map(|line| line.strip_prefix(&begin));
        rows.map(|row| {
            let (code, meaning) = row.trim_end_matches(" |").split_once(" | ").unwrap();
            (code.parse().unwrap(), meaning.to_owned())
        })
        .collect()
    };
    let statuses = [
        ExitStatus::Ok,
        ExitStatus::DeviceFailed,
        ExitStatus::Configuration,
        ExitStatus::Host,
        ExitStatus::Bug,
    ];
    for (command, codes) in [
        ("serve", statuses.map(ExitStatus::code).to_vec()),
        ("down", vec![0, 1, 2, 3]),
        ("drain", vec![0, 1, 2, 130]),
    ] {
        let told = exit_codes(command);
        let these: Vec<u8> = told.iter().map(|(code, _)| *code).collect();
        assert_eq!(these, codes, "{command}");
        assert_eq!(told, guided(command), "{command}");
    }
    let help = out(&fairlead(&["--help"]));
    let (_, commands) = help.split_once("\nCommands:\n").unwrap();
    let lines = commands.lines().take_while(|line| !line.is_empty());
    // A long text goes on further to the right.
    let begins = lines.filter_map(|line| line.strip_prefix("  "));
    for command in begins.filter_map(|line| line.split(' ').next()) {
        if command.is_empty() {
            continue;
        }
        let missing = command != "help" && guided(command).is_empty();
        assert!(!missing, "{command} has no exit codes in the guide");
    }
}

#[test]
fn output_that_cannot_be_written_is_an_error() {
    let Ok(full) = std::fs::File::options().write(true).open("/dev/full") else {
        return fairlead_netns::trial::skip(
            "output_that_cannot_be_written_is_an_error",
            "there is no /dev/full",
        );
    };
    for args in [
        &["check", "-c", "examples/edge.toml"][..],
        &["doctor", "--json"],
    ] {
        let output = Command::new(env!("CARGO_BIN_EXE_fairlead"))
            .args(args)
            .current_dir(root())
            .stdout(full.try_clone().unwrap())
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(1), "{args:?}");
        assert!(
            err(&output).contains("standard output: "),
            "{}",
            err(&output)
        );
    }
}

#[test]
fn errors_that_nobody_can_read_end_it_as_ever() {
    let Ok(full) = std::fs::File::options().write(true).open("/dev/full") else {
        return fairlead_netns::trial::skip(
            "errors_that_nobody_can_read_end_it_as_ever",
            "there is no /dev/full",
        );
    };
    for args in [
        &["serve", "-c", "no/such/file.toml"][..],
        &[
            "serve",
            "-c",
            "examples/edge.toml",
            "--log",
            "loud=very=much",
        ],
        &["down", "-c", "no/such/file.toml"],
    ] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_fairlead"));
        command.args(args).current_dir(root());
        let status = command.stderr(full.try_clone().unwrap()).status();
        assert_eq!(status.unwrap().code(), Some(2), "{args:?}");
    }
}

#[test]
fn check_accepts_the_sample() {
    let output = fairlead(&["check", "--config", "examples/edge.toml"]);
    assert_eq!(output.status.code(), Some(0));
    assert!(err(&output).is_empty(), "{}", err(&output));
    let text = out(&output);
    assert!(
        text.starts_with("examples/edge.toml: configuration OK: 1 service, 3 routes"),
        "{text}"
    );
    assert!(
        !text.contains('\x1b'),
        "no colour when it is not a terminal"
    );
}

#[test]
fn check_refuses_a_broken_file_with_its_places() {
    let broken = Written::new(
        "broken",
        &edge().replace("pool = \"images\"", "pool = \"image\""),
    );
    let output = fairlead(&["check", "--config", broken.path()]);
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(out(&output), "");
    let expected = format!(
        "{}:25:8: error: there is no pool \"image\"\n   25 | pool = \"image\"\n      |        \
         ^^^^^^^\n      = did you mean \"images\"?\n1 error, 0 warnings: this configuration is not \
         used\n",
        broken.path()
    );
    assert_eq!(err(&output), expected);

    let json = fairlead(&["check", "--json", "--config", broken.path()]);
    assert_eq!(json.status.code(), Some(1));
    let document: Value = serde_json::from_str(&out(&json)).unwrap();
    assert_eq!(document["findings"][0]["line"], 25);
    assert_eq!(document["findings"][0]["column"], 8);
    let named = Command::new(env!("CARGO_BIN_EXE_fairlead"))
        .arg("check")
        .env("FAIRLEAD_CONFIG", broken.path())
        .output()
        .unwrap();
    assert_eq!(err(&named), expected, "the variable names it");
    let missing = fairlead(&["check", "--config", "no/such/file.toml"]);
    assert_eq!(missing.status.code(), Some(1));
    assert!(
        err(&missing).contains("no/such/file.toml: No such file"),
        "{}",
        err(&missing)
    );
}

#[test]
fn check_warns_and_accepts_unless_it_is_to_be_strict() {
    let odd = edge().replace(
        "[[service.route]]                 # the default\npool = \"pages\"\n",
        "",
    );
    let odd = Written::new(
        "odd",
        &odd.replace(
            "host = \"api.example.com\"\npool = \"api\"",
            "pool = \"pages\"\n[[service.route]]\npool = \"api\"",
        ),
    );
    let output = fairlead(&["check", "--config", odd.path()]);
    assert_eq!(output.status.code(), Some(0));
    assert!(
        err(&output).contains("warning: route #3 is never reached"),
        "{}",
        err(&output)
    );
    assert!(
        out(&output).contains("configuration OK, with 1 warning"),
        "{}",
        out(&output)
    );
    let strict = fairlead(&["check", "--strict", "--config", odd.path()]);
    assert_eq!(strict.status.code(), Some(1));
}

#[test]
fn the_log_follows_the_variable_unless_the_option_is_given() {
    let serve = |variable: &str, args: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_fairlead"));
        command
            .args(["serve", "--config", "no/such/file.toml"])
            .args(args);
        err(&command.env("FAIRLEAD_LOG", variable).output().unwrap())
    };
    // A filter that cannot be understood is found before the file that is not there.
    assert!(serve("warning", &[]).contains("did you mean warn?"));
    assert!(serve("loud=very=much", &[]).contains("is not a log level"));
    assert!(serve("loud=very=much", &["--log", "info"]).contains("no/such/file.toml"));
    assert!(serve("debug", &[]).contains("no/such/file.toml"));
}

fn pages(draining: bool) -> (AdminServer, Arc<Shared>) {
    let settings = load(&root().join("examples/edge.toml")).unwrap().settings;
    let shared = Arc::new(Shared::new(Identity::of(
        &settings,
        FastPathState::engine("engine"),
    )));
    let mut switch = Snapshot {
        draining,
        ..Snapshot::default()
    };
    (switch.live, switch.rx_packets) = (41, 1_234_567);
    shared.publish(Counters {
        switch,
        process: ProcessCounters {
            log_lines_lost: 17,
            ..ProcessCounters::default()
        },
        ..Counters::default()
    });
    let server = start("127.0.0.1:0".parse().unwrap(), Arc::clone(&shared), None).unwrap();
    (server, shared)
}

#[test]
fn status_shows_a_running_switch() {
    let (server, _shared) = pages(true);
    let address = server.address().to_string();
    let output = fairlead(&["status", "--admin", &address]);
    assert_eq!(output.status.code(), Some(0), "{}", err(&output));
    let text = out(&output);
    assert!(text.starts_with("edge  fairlead "), "{text}");
    assert!(
        text.lines().next().unwrap().ends_with(", draining"),
        "{text}"
    );
    assert!(text.contains("log is incomplete: 17 lines"), "{text}");
    assert!(
        text.contains("41 live") && text.contains("1,234,567 in"),
        "{text}"
    );

    let json = fairlead(&["status", "--json", "--admin", &address]);
    let document: Value = serde_json::from_str(&out(&json)).unwrap();
    assert_eq!(document["live"], 41);

    let config = Written::new("status", &edge().replace("127.0.0.1:9090", &address));
    let output = fairlead(&["status", "--config", config.path()]);
    assert!(out(&output).contains("41 live"), "{}", err(&output));
}

#[test]
fn status_says_why_there_is_none() {
    let nobody = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = nobody.local_addr().unwrap().to_string();
    drop(nobody);
    let output = fairlead(&["status", "--admin", &address]);
    assert_eq!(output.status.code(), Some(1));
    let said = err(&output);
    assert!(
        said.contains(&format!("no answer from {address}")),
        "{said}"
    );
    assert!(said.contains("is the switch running?"), "{said}");

    for (wrong, told) in [
        ("127.0.0.1", "missing port: write 127.0.0.1:9090"),
        ("::1", "missing port: write [::1]:9090"),
        ("[::1]", "missing port: write [::1]:9090"),
        (
            "localhost:9090",
            "such as 127.0.0.1:9090; host names are not resolved",
        ),
    ] {
        let output = fairlead(&["status", "--admin", wrong]);
        assert_eq!(output.status.code(), Some(2));
        assert!(err(&output).contains(told), "{}", err(&output));
    }

    let pageless = Written::new(
        "pageless",
        &edge().replace("admin = \"127.0.0.1:9090\"", ""),
    );
    let output = fairlead(&["status", "--config", pageless.path()]);
    assert!(
        err(&output).contains("sets no admin address"),
        "{}",
        err(&output)
    );

    // Something else listens there.
    let stranger = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = stranger.local_addr().unwrap().to_string();
    let answering = std::thread::spawn(move || {
        for body in ["hello", "{\"live\": \"many\"}"] {
            let (mut stream, _) = stranger.accept().unwrap();
            let mut head = [0u8; 1_024];
            let _ = std::io::Read::read(&mut stream, &mut head).unwrap();
            let answer = format!(
                "HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
                body.len()
            );
            std::io::Write::write_all(&mut stream, answer.as_bytes()).unwrap();
        }
    });
    for _ in 0..2 {
        let output = fairlead(&["status", "--admin", &address]);
        assert_eq!(output.status.code(), Some(1));
        assert!(
            err(&output).contains("the answer is not a Fairlead status"),
            "{}",
            err(&output)
        );
    }
    answering.join().unwrap();
}

#[test]
fn status_waits_no_longer_than_its_patience() {
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let begun = std::time::Instant::now();
    let output = fairlead(&[
        "status",
        "--admin",
        &silent.local_addr().unwrap().to_string(),
    ]);
    assert_eq!(output.status.code(), Some(1));
    assert!(begun.elapsed() < std::time::Duration::from_secs(30));
}

/// The values of a key of the systemd unit.
fn of_the_unit<'u>(unit: &'u str, key: &str) -> Vec<&'u str> {
    let of = |line: &'u str| line.split_once('=').filter(|(name, _)| *name == key);
    unit.lines()
        .filter_map(of)
        .map(|(_, value)| value)
        .collect()
}

#[test]
fn the_systemd_unit_runs_commands_that_there_are_and_heeds_their_codes() {
    use clap::Parser;
    use fairlead::cli::Cli;
    use fairlead::serve::ExitStatus;
    const UNIT: &str = include_str!("../../../../examples/fairlead.service");
    for key in ["ExecStart", "ExecReload"] {
        let [line] = of_the_unit(UNIT, key)[..] else {
            panic!("one {key}");
        };
        assert!(line.starts_with("/usr/local/bin/fairlead "), "{line}");
        Cli::try_parse_from(line.split(' ')).unwrap_or_else(|error| panic!("{line}: {error}"));
    }
    // A command before the start fails with codes of its own, at which systemd starts it again.
    assert!(of_the_unit(UNIT, "ExecStartPre").is_empty());
    let final_code = ExitStatus::Configuration.code().to_string();
    assert_eq!(of_the_unit(UNIT, "RestartPreventExitStatus"), [final_code]);

    // As far as the systemd at hand can tell: it looks for the program, too.
    let program = env!("CARGO_BIN_EXE_fairlead");
    let folder = std::env::temp_dir().join(format!("fairlead-unit-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let unit = folder.join("fairlead.service");
    std::fs::write(&unit, UNIT.replace("/usr/local/bin/fairlead", program)).unwrap();
    let told = Command::new("systemd-analyze")
        .arg("verify")
        .arg("--man=no")
        .arg(&unit)
        .output();
    std::fs::remove_dir_all(&folder).unwrap();
    match told {
        // What it says of the machine's own units does not count.
        Ok(told) => assert!(!err(&told).contains("fairlead"), "{}", err(&told)),
        Err(error) => {
            fairlead_netns::trial::skip("the_systemd_unit", &format!("systemd-analyze: {error}"))
        }
    }
}
