//! Which fast path runs, and what it does when something is in its way.

use std::time::{Duration, Instant};

use fairlead_bpf_loader::PassProgram;

use crate::harness::{
    Connection, Family, Lab, Origin, PREFIX, Switch, binary, on_the_fast_path, web, web_service,
};

fn server(lab: &Lab) -> Origin {
    let serve = web("pages", false, std::sync::Arc::default());
    Origin::start(lab, Family::V4.server_at(1, 8080), serve)
}

fn config(mode: &str, interfaces: &[&str]) -> String {
    let services = web_service("transparent", "", "", |family| match family {
        Family::V4 => vec![family.server_at(1, 8080)],
        Family::V6 => Vec::new(),
    });
    let mut wanted = format!("mode = '{mode}'");
    if !interfaces.is_empty() {
        wanted += &format!("\ninterfaces = {interfaces:?}");
    }
    format!("{PREFIX}{services}").replace("mode = \"engine\"", &wanted)
}

fn serves(lab: &Lab) {
    let mut connection = Connection::to(lab, Family::V4.virtual_at(80));
    let response = connection.ask("GET", "a.example", "/bytes/50000").unwrap();
    assert_eq!((response.status, response.server()), (200, "pages"));
}

fn fast_path(switch: &Switch) -> String {
    switch.status()["fast_path"].as_str().unwrap().to_owned()
}

/// Waits until the status says so.
fn wait_for(switch: &Switch, wanted: impl Fn(&str) -> bool) {
    let until = Instant::now() + Duration::from_secs(10);
    while !wanted(&fast_path(switch)) {
        assert!(Instant::now() < until, "{}", fast_path(switch));
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn auto_takes_the_best_way_names_it_and_says_why_not_a_better_one() {
    on_the_fast_path(|lab| {
        let _server = server(lab);
        let switch = Switch::start_with(lab, &config("auto", &[]));
        let state = fast_path(&switch);
        let (front, back) = (&lab.front.b, &lab.back.a);
        assert!(state.starts_with("tc on "), "{state}");
        assert!(state.contains(front) && state.contains(back), "{state}");
        assert!(state.contains("veth and carries super-packets"), "{state}");
        // Which interfaces, and why these, is in the log.
        let log = switch.log();
        let said = format!("interface {back}: on the way to 10.2.0.1");
        assert!(log.contains(&said), "{log}");
        assert!(
            log.contains(&format!("interface {front}: on the way to 10.1.0.3")),
            "{log}"
        );
        serves(lab);
        assert!(switch.count("fast_packets") > 5);
    });
}

#[test]
fn another_xdp_program_is_named_and_not_replaced() {
    on_the_fast_path(|lab| {
        let _server = server(lab);
        let front = &lab.front.b;
        let stranger = lab.switch.enter(|| PassProgram::attach(front)).unwrap();
        let stranger = stranger.unwrap();
        for mode in ["xdp-generic", "xdp"] {
            let mut refused = Switch::launch(lab, &config(mode, &[]));
            assert_eq!(refused.wait_for(Duration::from_secs(20)), Some(3));
            let log = refused.log();
            assert!(log.contains("another XDP program"), "{log}");
            assert!(
                log.contains("fairlead_pass") && log.contains("by user 0"),
                "{log}"
            );
        }
        let output = lab
            .switch
            .command("ip")
            .args(["link", "show", front])
            .output();
        let shown = String::from_utf8(output.unwrap().stdout).unwrap();
        assert!(shown.contains("xdpgeneric"), "it is where it was: {shown}");
        // At tc it is in nobody's way.
        let switch = Switch::start_with(lab, &config("auto", &[]));
        serves(lab);
        assert!(fast_path(&switch).starts_with("tc on "));
        drop(stranger);
    });
}

#[test]
fn an_interface_that_goes_is_named_and_one_that_comes_back_is_used() {
    on_the_fast_path(|lab| {
        let _server = server(lab);
        let add = "link add extra0 type veth peer name extra1\nlink set extra0 up\n";
        lab.switch.ip(add).unwrap();
        let interfaces = [&*lab.front.b, &*lab.back.a, "extra0"];
        let switch = Switch::start_with(lab, &config("tc", &interfaces));
        assert!(fast_path(&switch).contains("extra0"));
        lab.switch.ip("link del extra0\n").unwrap();
        wait_for(&switch, |state| state.contains("lost: extra0"));
        assert!(switch.log().contains("interface extra0 is gone"));
        serves(lab);
        lab.switch.ip(add).unwrap();
        wait_for(&switch, |state| {
            !state.contains("lost") && state.contains("extra0")
        });
        let filters = lab.switch.command("sh");
        let mut filters = filters;
        let output = filters.args(["-c", "ls /sys/fs/bpf/fairlead/e2e"]).output();
        let links = String::from_utf8(output.unwrap().stdout).unwrap();
        assert!(links.matches("link-tc-").count() >= 3, "{links}");
        serves(lab);
    });
}

#[test]
fn without_rights_it_names_them_and_runs_on_the_engine() {
    on_the_fast_path(|lab| {
        let _server = server(lab);
        let mut command = lab.switch.command("setpriv");
        command.arg("--bounding-set=-sys_admin,-bpf").arg(binary());
        let switch = Switch::run(lab, &config("auto", &[]), command, &[]).ready();
        let state = fast_path(&switch);
        assert!(state.starts_with("engine"), "{state}");
        assert!(state.contains("CAP_BPF"), "{state}");
        serves(lab);
        drop(switch);
        let mut command = lab.switch.command("setpriv");
        command.arg("--bounding-set=-sys_admin,-bpf").arg(binary());
        let mut refused = Switch::run(lab, &config("tc", &[]), command, &[]);
        assert_eq!(refused.wait_for(Duration::from_secs(20)), Some(3));
        assert!(refused.log().contains("CAP_BPF"), "{}", refused.log());
    });
}
