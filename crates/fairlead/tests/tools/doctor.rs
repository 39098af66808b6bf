//! `fairlead doctor` as it is called: on this machine, without rights, with a broken
//! configuration, and where everything is as it should be.

use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Command, Output};

use fairlead_netns::trial::{Needs, in_namespaces, skip};
use fairlead_netns::{World, in_user_namespace};
use serde_json::Value;

const BINARY: &str = env!("CARGO_BIN_EXE_fairlead");

const CONFIG: &str = r#"
[network]
device = "fl-doctor0"
snat = "100.64.0.0/24"
[fastpath]
mode = "MODE"
[[service]]
name = "web"
listen = "10.9.0.3:80"
protocol = "http"
source = "snat"
[[service.route]]
pool = "pages"
[[pool]]
name = "pages"
server = [{ address = "10.0.0.2:8081" }, { address = "192.0.2.7:80" }]
"#;

/// A file that is gone when the test ends.
struct File(PathBuf);

impl File {
    fn new(name: &str, text: &str) -> Self {
        let name = format!("fairlead-doctor-{}-{name}.toml", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::write(&path, text).unwrap();
        Self(path)
    }
}

impl Drop for File {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn doctor(arguments: &[&str]) -> Command {
    let mut command = Command::new(BINARY);
    command.arg("doctor").args(arguments).env_remove("NO_COLOR");
    command
}

/// The document, checked for what holds everywhere.
#[track_caller]
fn document(output: &Output) -> Value {
    let text = String::from_utf8_lossy(&output.stdout);
    let document: Value = serde_json::from_str(&text).unwrap_or_else(|error| {
        panic!(
            "{error}: {text}\n{}",
            String::from_utf8_lossy(&output.stderr)
        )
    });
    let checks = document["checks"].as_array().unwrap();
    let problems = checks.iter().filter(|check| check["state"] == "problem");
    let can_serve = problems.count() == 0;
    assert_eq!(document["can_serve"], can_serve);
    assert_eq!(output.status.code(), Some(if can_serve { 0 } else { 1 }));
    for check in checks {
        let state = check["state"].as_str().unwrap();
        assert!(["ok", "unseen", "warning", "problem"].contains(&state));
        assert!(!check["what"].as_str().unwrap().contains('\n'), "{check}");
        if ["warning", "problem"].contains(&state) {
            assert!(check["advice"].is_string(), "nothing to do about {check}");
        }
    }
    document
}

/// The first check of a name.
#[track_caller]
fn check<'a>(document: &'a Value, name: &str) -> &'a Value {
    let checks = document["checks"].as_array().unwrap();
    let found = checks.iter().find(|check| check["name"] == name);
    found.unwrap_or_else(|| panic!("no check {name} in {document:#}"))
}

#[test]
fn this_machine_is_examined_and_nothing_is_coloured_in_a_pipe() {
    let json = doctor(&["--json"]).output().unwrap();
    let document = document(&json);
    assert_eq!(check(&document, "kernel")["state"], "ok");
    let plain = doctor(&[]).output().unwrap();
    let text = String::from_utf8(plain.stdout).unwrap();
    assert!(!text.contains('\x1b'), "{text}");
    assert!(text.starts_with("machine\n"), "{text}");
    assert_eq!(plain.status.code(), json.status.code());
}

#[test]
fn bad_usage_is_2() {
    for wrong in [&["--colour"][..], &["--config"], &["more"]] {
        let output = doctor(wrong).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{wrong:?}");
    }
}

#[test]
fn a_broken_configuration_is_a_problem_and_the_rest_is_still_looked_at() {
    let broken = File::new("broken", "[fastpath]\nmode = \"warp\"\n");
    let path = broken.0.to_str().unwrap();
    let document = document(&doctor(&["--json", "--config", path]).output().unwrap());
    let found = check(&document, "configuration");
    assert_eq!(found["state"], "problem");
    assert!(found["advice"].as_str().unwrap().contains("fairlead check"));
    check(&document, "kernel");
    check(&document, "mode");

    let nowhere = doctor(&["--json", "--config", "/no/such/file.toml"])
        .output()
        .unwrap();
    let document = self::document(&nowhere);
    assert_eq!(check(&document, "configuration")["state"], "problem");
}

#[test]
fn without_any_rights_it_works_and_says_what_it_could_not_see() {
    // Whoever runs this: root becomes nobody, others stay who they are.
    let mut command = doctor(&["--json"]);
    let is_root = std::fs::metadata("/proc/self")
        .is_ok_and(|own| std::os::unix::fs::MetadataExt::uid(&own) == 0);
    if is_root {
        command.uid(65_534).gid(65_534);
    }
    let output = match command.output() {
        Ok(output) => output,
        Err(error) => return skip("without_any_rights", &format!("nobody: {error}")),
    };
    let document = document(&output);
    assert_eq!(output.status.code(), Some(1));
    let found = check(&document, "net-admin");
    assert_eq!(found["state"], "problem");
    assert!(found["what"].as_str().unwrap().contains("CAP_NET_ADMIN"));
    assert_eq!(check(&document, "bpf")["state"], "warning");
    assert_eq!(check(&document, "firewall")["state"], "unseen");
    assert_eq!(document["expected_mode"], "engine");
}

#[test]
fn in_a_user_namespace_the_engine_is_expected_and_the_reason_told() {
    let mut command = doctor(&["--json"]);
    in_user_namespace(&mut command);
    let Ok(output) = command.output() else {
        return skip("in_a_user_namespace", "user namespaces are switched off");
    };
    let document = document(&output);
    let found = check(&document, "bpf");
    assert_eq!(found["state"], "warning");
    assert!(found["what"].as_str().unwrap().contains("user namespace"));
    assert_eq!(document["expected_mode"], "engine");
    assert!(!document["why_not_better"].as_str().unwrap().is_empty());
}

#[test]
fn a_network_is_judged_before_and_after_the_advice_is_followed() {
    in_namespaces(
        "doctor::a_network_is_judged_before_and_after_the_advice_is_followed",
        Needs::default(),
        |_| {},
        judged,
    );
}

fn judged() {
    let mut world = World::new().unwrap();
    let (switch, server) = (world.host("switch").unwrap(), world.host("server").unwrap());
    let link = world
        .link((&switch, &["10.0.0.1/24"]), (&server, &["10.0.0.2/24"]))
        .unwrap();
    let auto = File::new("auto", &CONFIG.replace("MODE", "auto"));
    let examine = |file: &File| {
        let mut command = switch.command(BINARY);
        command.args(["doctor", "--json", "--config"]).arg(&file.0);
        document(&command.output().unwrap())
    };
    switch.sysctl("net.ipv4.ip_forward", "0").unwrap();
    let before = examine(&auto);
    let found = check(&before, "obstacles");
    assert_eq!(found["state"], "problem");
    let advice = found["advice"].as_str().unwrap();
    assert!(
        advice.contains("sysctl -w net.ipv4.ip_forward=1"),
        "{advice}"
    );

    switch.sysctl("net.ipv4.ip_forward", "1").unwrap();
    switch
        .sysctl(&format!("net.ipv4.conf.{}.rp_filter", link.a), "1")
        .unwrap();
    let after = examine(&auto);
    assert_eq!(check(&after, "obstacles")["state"], "ok", "{after:#}");
    assert_eq!(check(&after, "rp-filter")["state"], "warning");
    assert!(
        check(&after, "driver")["what"]
            .as_str()
            .unwrap()
            .contains("veth")
    );
    let servers = after["checks"].as_array().unwrap().iter();
    let servers: Vec<&Value> = servers.filter(|check| check["name"] == "server").collect();
    assert_eq!(servers[0]["state"], "ok", "{}", servers[0]);
    assert!(servers[0]["what"].as_str().unwrap().contains(&link.a));
    assert_eq!(servers[1]["state"], "warning", "no route: {}", servers[1]);

    let named = CONFIG
        .replace("MODE", "tc")
        .replace("[fastpath]", "[fastpath]\ninterfaces = [\"not-there0\"]");
    let named = File::new("named", &named);
    let missing = examine(&named);
    assert_eq!(missing["can_serve"], false);
    assert_eq!(check(&missing, "interface")["state"], "problem");
    assert_eq!(check(&missing, "mode")["state"], "problem");
}
