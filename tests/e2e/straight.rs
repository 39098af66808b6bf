//! Veths whose other ends receive at once what the program sends them.

use std::time::{Duration, Instant};

use fairlead_bpf_loader::{PassProgram, interface_index};
use fairlead_netns::Host;
use fairlead_netns::trial::skip;
use fairlead_survey::is_seen_at_egress;

use crate::harness::{
    Connection, Family, Lab, Nginx, PATIENCE, Switch, kernel_mode, on_the_fast_path, web_service,
};

/// Packets that an interface has sent and that its other end has received, as they count.
fn counted(host: &Host, device: &str) -> [u64; 2] {
    let read = || std::fs::read_to_string("/proc/thread-self/net/dev");
    let text = host.enter(read).expect("the namespace").expect("counters");
    let mut lines = text.lines().filter_map(|line| line.split_once(':'));
    let (_, counts) = lines
        .find(|(name, _)| name.trim() == device)
        .expect("the interface");
    let counts: Vec<u64> = counts
        .split_whitespace()
        .map(|count| count.parse().expect("a number"))
        .collect();
    [counts[9], counts[1]]
}

/// A hundred requests on a connection that is open; gives the packets that the switch's interface
/// towards the client has sent meanwhile, and those that the client's has received.
fn ask(lab: &Lab, connection: &mut Connection) -> [u64; 2] {
    let both = || {
        let [sent, _] = counted(&lab.switch, &lab.front.b);
        let [_, received] = counted(&lab.client, &lab.front.a);
        [sent, received]
    };
    let before = both();
    for _ in 0..100 {
        let response = connection.ask("GET", "a.example", "/").unwrap();
        assert_eq!(response.status, 200, "{response:?}");
    }
    let after = both();
    [after[0] - before[0], after[1] - before[1]]
}

#[test]
fn packets_pass_a_veths_queue_by_but_nothing_that_somebody_set_up() {
    // Of neighbours and probes.
    const OTHERS: u64 = 20;
    let name = "straight::packets_pass_a_veths_queue_by_but_nothing_that_somebody_set_up";
    on_the_fast_path(|lab| {
        if kernel_mode() != "tc" || fairlead_netns::cards::are_given() {
            return skip(name, "only tc on a veth has another way to its other end");
        }
        let _servers = Family::BOTH
            .map(|family| Nginx::plain(lab, &format!("q{family:?}"), family.server_at(1, 8080)));
        let services = web_service("snat", "", "", |family| vec![family.server_at(1, 8080)]);
        let (front, back) = (&lab.front.b, &lab.back.a);
        let straight = |text: &str| format!("redirected to the peer of {text}");

        let switch = Switch::start_in_kernel(lab, "veth_redirect = \"queue\"", &services);
        let way = switch.status()["fast_path"].to_string();
        assert!(!way.contains("redirected to the peer"), "{way}");
        let mut connection = Connection::to(lab, Family::V4.virtual_at(80));
        let [sent, received] = ask(lab, &mut connection);
        assert!(sent >= 100 && received >= 100, "{sent}, {received}");
        drop((connection, switch));

        // What somebody shapes is not passed by.
        let mut shape = lab.switch.command("tc");
        shape.args(["qdisc", "add", "dev", back, "root", "pfifo"]);
        let is_shaped = shape.status().is_ok_and(|status| status.success());
        if !is_shaped {
            skip(name, "of queueing disciplines: `tc` or the kernel has none");
        }
        let switch = Switch::start_in_kernel(lab, "", &services);
        let both = straight(&format!("{front}, {back}"));
        switch.wait_for_status("what is quickest", |status| {
            let way = status["fast_path"].to_string();
            way.contains(&straight(front)) && way.contains(&both) != is_shaped
        });
        // One connection through all of it, of either family.
        let mut connections = Family::BOTH.map(|family| Connection::to(lab, family.virtual_at(80)));
        for connection in &mut connections {
            let [sent, received] = ask(lab, connection);
            assert!(sent < OTHERS, "{sent} by the queue, {received} received");
            assert!(received >= 100, "{received}");
        }

        let program = lab.client.enter(|| PassProgram::attach(&lab.front.a));
        let program = program
            .expect("the namespace")
            .expect("a program of others");
        switch.wait_for_status("its program to be heeded", |status| {
            !status["fast_path"]
                .to_string()
                .contains("redirected to the peer")
        });
        for connection in &mut connections {
            let [sent, received] = ask(lab, connection);
            assert!(sent >= 100 && received >= 100, "{sent}, {received}");
        }

        drop(program);
        if is_shaped {
            let mut command = lab.switch.command("tc");
            command.args(["qdisc", "del", "dev", back, "root"]);
            assert!(command.status().expect("running tc").success());
        }
        switch.wait_for_status("nothing to be passed by", |status| {
            status["fast_path"].to_string().contains(&both)
        });
        for connection in &mut connections {
            let [sent, _] = ask(lab, connection);
            assert!(sent < OTHERS, "{sent} by the queue");
        }
        assert_eq!(switch.status()["drops"]["transmit_failed"], 0);
    });
}

#[test]
fn programs_that_see_what_is_sent_are_seen() {
    on_the_fast_path(|lab| {
        let back = &lab.back.a;
        let is_seen = || {
            lab.switch
                .enter(|| is_seen_at_egress(interface_index(back).unwrap()))
        };
        let is_seen = || is_seen().expect("the namespace").expect("an answer");
        assert!(!is_seen());
        let program = lab.switch.enter(|| PassProgram::attach_at_egress(back));
        let program = program
            .expect("the namespace")
            .expect("a program of others");
        assert!(is_seen());
        // A filter, as there are before Linux 6.6, is taken off where it is.
        lab.switch.enter(|| drop(program)).expect("the namespace");
        // What other tests are starting has what is open here until it runs.
        let until = Instant::now() + PATIENCE;
        while is_seen() {
            assert!(Instant::now() < until, "it is there still");
            std::thread::sleep(Duration::from_millis(10));
        }
        // And one that is there for what is received says nothing of what is sent.
        let services = web_service("snat", "", "", |family| vec![family.server_at(1, 8080)]);
        let _switch = Switch::start_in_kernel(lab, "", &services);
        assert!(!is_seen());
    });
}
