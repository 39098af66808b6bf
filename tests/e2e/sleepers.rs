//! Sleepers outlive the switch, and operators list and end them.

use std::net::SocketAddr;
use std::time::Duration;

use fairlead_netns::Signal;

use crate::harness::{Connection, Family, Lab, Nginx, Switch, binary, with_sockets_of_cookies};
use crate::reload::reload;
use crate::restart::in_kernel;
use crate::sleep::{LENGTH, ask, nginx, one_answer_each, services, wait_until_asleep};

fn connections(lab: &Lab, count: usize) -> Vec<Connection> {
    let open = |number: usize| Connection::to(lab, Family::BOTH[number % 2].virtual_at(80));
    (0..count).map(open).collect()
}

/// Each asks, and is answered by a server that has not seen it before.
fn ask_all(connections: &mut [Connection], when: &str) {
    for connection in connections {
        let answer = connection.ask("GET", "x", "/").unwrap();
        assert_eq!(answer.body.len(), 3_000, "{when}");
        assert_eq!(answer.header("x-asked"), Some("1"), "{when}");
    }
}

fn kill(mut switch: Switch) {
    switch.signal(Signal::Kill);
    assert_eq!(switch.wait_for_end(), None, "by a signal");
}

/// Does something where the switch's pins are.
fn at_pins(lab: &Lab, script: &str) {
    let script = format!("cd /sys/fs/bpf/fairlead/e2e && {script}");
    let mut command = lab.switch.command("sh");
    let output = command.args(["-c", &script]).output().expect("running sh");
    assert!(output.status.success(), "{output:?}");
}

#[test]
fn what_sleeps_outlives_crash_and_reload_of_the_switch() {
    with_sockets_of_cookies(|lab| {
        let configuration = in_kernel(&services(""));
        let switch = Switch::start_with(lab, &configuration);
        let server = nginx(lab);
        let mut all = connections(lab, 20);
        ask_all(&mut all, "at first");
        server.stop();
        wait_until_asleep(&switch, 20);
        kill(switch);

        let mut switch = Switch::start_with(lab, &configuration);
        assert_eq!(switch.count("sleepers_kept"), 20);
        switch.wait_for_count("sleepers", 20);
        let server = nginx(lab);
        ask_all(&mut all, "after a crash");
        assert_eq!(switch.count("woken"), 20);

        // They move to a map of another size.
        server.kill();
        wait_until_asleep(&switch, 20);
        let changed = format!("{configuration}\n[limits]\nsleepers = 1000\n");
        reload(lab, &mut switch, &changed, 2);
        assert_eq!(switch.count("sleepers_kept"), 20);
        let server = nginx(lab);
        ask_all(&mut all, "after a reload");

        // They fall asleep, and some ask, while there is no switch. It has read the responses.
        std::thread::sleep(Duration::from_millis(300));
        kill(switch);
        server.stop();
        for connection in &mut all[..4] {
            connection
                .send("GET / HTTP/1.1\r\nHost: x\r\n\r\n")
                .unwrap();
        }
        std::thread::sleep(Duration::from_millis(300));
        let switch = Switch::start_with(lab, &changed);
        assert_eq!(switch.count("sleepers_kept"), 20);
        let _server = nginx(lab);
        for connection in &mut all[..4] {
            assert_eq!(connection.response(false).unwrap().body.len(), 3_000);
        }
        ask_all(&mut all[4..], "after they slept alone");
    });
}

#[test]
fn what_cannot_be_taken_over_is_discarded_and_counted() {
    with_sockets_of_cookies(|lab| {
        let configuration = in_kernel(&services(""));
        let mut switch = Switch::start_with(lab, &configuration);
        let (_servers, _) = one_answer_each(lab, LENGTH);
        let mut all = connections(lab, 6);
        for connection in &mut all {
            ask(connection, LENGTH);
        }
        wait_until_asleep(&switch, 6);
        // Room for some.
        let fewer = format!("{configuration}\n[limits]\nsleepers = 4\n");
        reload(lab, &mut switch, &fewer, 2);
        assert_eq!(switch.count("sleepers_kept"), 4);
        assert_eq!(switch.count("sleepers_no_room"), 2);
        switch.wait_for_count("sleepers_closed", 2);
        // No route.
        let awake = configuration.replace("sleep = true", "");
        reload(lab, &mut switch, &awake, 3);
        assert_eq!(switch.count("sleepers_no_route"), 4);
        switch.wait_for_count("sleepers_closed", 4);
        for connection in &mut all {
            assert!(connection.rest().unwrap().is_empty(), "a FIN, and no reset");
        }

        reload(lab, &mut switch, &configuration, 4);
        let mut all = connections(lab, 6);
        for connection in &mut all {
            ask(connection, LENGTH);
        }
        wait_until_asleep(&switch, 6);
        kill(switch);
        // As another build would have left them.
        at_pins(lab, "mv fl_lives-2 fl_lives-0");
        let switch = Switch::start_with(lab, &configuration);
        assert_eq!(switch.count("sleepers_kept"), 0);
        assert_eq!(switch.count("sleepers_other_layout"), 6);
        let page = switch.page("/metrics").unwrap();
        let line = "fairlead_sleepers_discarded_total{reason=\"layout\"} 6";
        assert!(page.contains(line), "{page}");
        at_pins(lab, "test -e fl_lives-2 && test ! -e fl_lives-0");
        let mut fresh = connections(lab, 2);
        for connection in &mut fresh {
            ask(connection, LENGTH);
        }
        wait_until_asleep(&switch, 2);
    });
}

#[test]
fn connections_beyond_the_limit_end_with_their_process_and_are_counted() {
    with_sockets_of_cookies(|lab| {
        let limited = format!("{}\n[limits]\nsleepers = 4\n", in_kernel(&services("")));
        let switch = Switch::start_with(lab, &limited);
        let server = nginx(lab);
        let mut all = connections(lab, 6);
        ask_all(&mut all, "at first");
        switch.wait_for_count("sleepers_full", 2);
        server.kill();
        wait_until_asleep(&switch, 4);
        for connection in &mut all[4..] {
            assert!(connection.rest().unwrap().is_empty(), "a FIN");
        }
        let _server = nginx(lab);
        ask_all(&mut all[..4], "after they slept");
    });
}

/// A web server that listens on an address of the machine itself, and is served without the switch.
#[test]
fn a_server_that_is_only_watched_has_sleepers() {
    with_sockets_of_cookies(|lab| {
        let addresses: [SocketAddr; 2] =
            ["10.1.0.2:8088", "[fd01::2]:8088"].map(|text| text.parse().unwrap());
        let listens = addresses.map(|at| format!("listen {at};")).join(" ");
        let text = "x".repeat(3_000);
        let servers = format!(
            "server {{ {listens} keepalive_timeout 600;\n\
             location / {{ return 200 \"{text}\"; }} }}"
        );
        let start = || Nginx::start_on(lab, &lab.switch, "watched", &servers, &addresses);
        let [four, six] = addresses;
        let watch = format!("[network]\nwatch = [\"{four}\", \"{six}\"]\n");
        let configuration = in_kernel(&services("")).replace("[network]\n", &watch);
        let mut server = start();
        let switch = Switch::start_with(lab, &configuration);
        let open = |number: usize| Connection::to(lab, addresses[number % 2]);
        let mut all: Vec<Connection> = (0..10).map(open).collect();
        for round in 1..=3 {
            ask_all(&mut all, "in each round");
            match round % 2 {
                0 => server.kill(),
                _ => server.quit(),
            }
            wait_until_asleep(&switch, 10 * round);
            if round == 2 {
                for connection in &mut all[..2] {
                    connection
                        .send("GET / HTTP/1.1\r\nHost: x\r\n\r\n")
                        .unwrap();
                }
                let both = |status: &serde_json::Value| status["host_held"].as_u64() >= Some(2);
                switch.wait_for_status("both held", both);
            }
            server = start();
            if round == 2 {
                for connection in &mut all[..2] {
                    assert_eq!(connection.response(false).unwrap().body.len(), 3_000);
                }
                all.drain(..2);
                all.extend((0..2).map(open));
            }
        }
        assert_eq!(switch.count("woken"), 20);
    });
}

/// `fairlead sleepers` with these arguments: whether it did it, and what it wrote.
fn order(lab: &Lab, arguments: &[&str]) -> (bool, String) {
    let mut command = lab.switch.command(&binary().to_string_lossy());
    command.arg("sleepers").args(arguments);
    command.args(["--instance", "e2e"]);
    let run = move || command.output();
    let output = lab.switch.enter(run).unwrap().expect("fairlead sleepers");
    let text = [output.stdout, output.stderr].concat();
    let text = String::from_utf8_lossy(&text).into_owned();
    (output.status.success(), text)
}

#[test]
fn operators_list_sleepers_and_end_some() {
    with_sockets_of_cookies(|lab| {
        let switch = Switch::start_in_kernel(lab, "", &services(""));
        let (_servers, _) = one_answer_each(lab, LENGTH);
        let mut all = connections(lab, 4);
        let (done, text) = order(lab, &["list"]);
        assert!(done && text.contains("no connection sleeps"), "{text}");
        for connection in &mut all {
            ask(connection, LENGTH);
        }
        wait_until_asleep(&switch, 4);
        let (done, text) = order(lab, &["list"]);
        assert!(done, "{text}");
        let addresses: Vec<SocketAddr> = all.iter().map(Connection::local).collect();
        for address in &addresses {
            assert!(text.contains(&address.to_string()), "{address}: {text}");
        }
        assert!(
            text.contains("127.0.0.1:8082") && text.contains("3600"),
            "{text}"
        );
        let (done, text) = order(lab, &["end", &addresses[1].to_string()]);
        assert!(done && text.contains("1 ended"), "{text}");
        assert!(all[1].rest().unwrap().is_empty(), "a FIN, and no reset");
        let (done, text) = order(lab, &["list", "--json"]);
        let list: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert!(done && list["asleep"] == 3, "{text}");
        let gone = addresses[1].to_string();
        let (done, text) = order(lab, &["end", &gone]);
        assert!(!done && text.contains("does not sleep"), "{text}");
        let (done, text) = order(lab, &["end", "everyone"]);
        assert!(!done && text.contains("192.0.2.7:40000"), "{text}");
        // Those that are left wake as ever.
        ask(&mut all[0], LENGTH);
        let (done, text) = order(lab, &["list"]);
        assert!(done, "{text}");
        wait_until_asleep(&switch, 5);
        let (done, text) = order(lab, &["end", "--all"]);
        assert!(done && text.contains("3 ended"), "{text}");
        for connection in [0, 2, 3] {
            assert!(all[connection].rest().unwrap().is_empty(), "a FIN");
        }
        switch.wait_for_count("sleepers_closed", 4);
    });
}
