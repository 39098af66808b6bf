//! Connections that the kernel begins by itself, because the engine has decided such heads before.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, RwLock};
use std::time::{Duration, Instant};

use fairlead_netns::Signal;
use fairlead_netns::trial::skip;
use serde_json::Value;

use crate::harness::{
    Connection, Family, Lab, Origin, PATIENCE, SetAtEnd, Switch, on_the_fast_path, web,
};

/// Requests, one after the other, that a client makes while it asks.
const EACH: u64 = 400;

/// Clients at a time.
const CLIENTS: u64 = 4;

/// Connections a second that make a listening endpoint's route busy: 8 between two of the engine's
/// sweeps, which come every 50 ms.
const BUSY_A_SECOND: f64 = 8.0 / 0.05;

/// Servers by name and port: two of a pool for `/a/`, and two for everything else.
const SERVERS: [(&str, u16); 4] = [("a1", 8081), ("a2", 8082), ("b1", 8083), ("b2", 8084)];

fn servers(lab: &Lab, family: Family) -> Vec<Origin> {
    let start = |(name, port)| {
        let seen = Arc::new(Mutex::new(Vec::new()));
        Origin::start(lab, family.server_at(1, port), web(name, false, seen))
    };
    SERVERS.map(start).into()
}

fn services() -> String {
    let mut text = String::new();
    let listen = Family::BOTH.map(|family| format!("\"{}\"", family.virtual_at(80)));
    text.push_str(&format!(
        "\n[[service]]\nname = \"web\"\nlisten = [{}]\nprotocol = \"http\"\n\
         source = \"snat\"\n[[service.route]]\npath_prefix = \"/a/\"\npool = \"a\"\n\
         [[service.route]]\npool = \"b\"\n",
        listen.join(", ")
    ));
    for pool in ["a", "b"] {
        let of_pool = SERVERS.iter().filter(|(name, _)| name.starts_with(pool));
        let all = of_pool.flat_map(|(_, port)| Family::BOTH.map(|one| one.server_at(1, *port)));
        let all: Vec<_> = all.map(|at| format!("{{ address = \"{at}\" }}")).collect();
        let all = all.join(", ");
        text.push_str(&format!("[[pool]]\nname = \"{pool}\"\nserver = [{all}]\n"));
    }
    text
}

/// One request on a connection of its own; the name of who answered it.
fn ask(lab: &Lab, family: Family, number: u64) -> String {
    let path = ["/a/", "/b/"][number as usize % 2].to_owned() + &(number % 6).to_string();
    let mut connection = Connection::to(lab, family.virtual_at(80));
    let head = format!("GET {path} HTTP/1.1\r\nHost: x.example\r\nConnection: close\r\n\r\n");
    connection.send(head).unwrap();
    let response = connection.response(false).unwrap();
    assert_eq!(response.status, 200, "{response:?}");
    let server = response.server().to_owned();
    assert_eq!(server[..1], path[1..2], "{path} was answered by {server}");
    assert!(connection.rest().unwrap().is_empty());
    server
}

fn kernel(switch: &Switch, name: &str) -> u64 {
    let status = switch.status();
    status["kernel"][name].as_u64().expect("a counter")
}

/// Generic XDP begins nothing, as it joins nothing.
fn may_begin(switch: &Switch) -> bool {
    let way = switch.status()["fast_path"].as_str().unwrap().to_owned();
    !way.starts_with("xdp-generic")
}

/// More connections than `least` were begun by the kernel, where it may, unless fewer came for each
/// route than make one busy: a slow machine's test is skipped in that.
fn begins(name: &str, switch: &Switch, least: u64, a_second: f64) {
    let begun = kernel(switch, "begun");
    if !may_begin(switch) {
        assert_eq!(begun, 0, "{}", switch.status());
    } else if begun <= least && a_second < BUSY_A_SECOND {
        let why = "connections a second make no route busy, for the kernel to begin them";
        skip(name, &format!("{a_second:.0} {why}"));
    } else {
        assert!(begun > least, "{begun}: {}", switch.status());
    }
}

#[test]
fn of_a_busy_route_the_kernel_begins_connections_and_everything_is_counted_as_ever() {
    let name = "tickets::of_a_busy_route_the_kernel_begins_connections_and_everything_is_\
                counted_as_ever";
    on_the_fast_path(|lab| {
        let _servers = Family::BOTH.map(|family| servers(lab, family));
        let mut switch = Switch::start_in_kernel(lab, "", &services());
        let answers = Mutex::new(std::collections::BTreeMap::<String, u64>::new());
        let begin = Instant::now();
        std::thread::scope(|scope| {
            for client in 0..CLIENTS {
                let answers = &answers;
                scope.spawn(move || {
                    for number in 0..EACH {
                        let family = Family::BOTH[client as usize % 2];
                        let server = ask(lab, family, number);
                        *answers.lock().unwrap().entry(server).or_default() += 1;
                    }
                });
            }
        });
        let count = CLIENTS * EACH;
        let a_second = count as f64 / begin.elapsed().as_secs_f64();
        switch.wait_for_count("live", 0);
        let status = switch.status();
        begins(name, &switch, count / 4, a_second / 4.0);
        for (name, expected) in [("accepted", count), ("spliced", count), ("setups", 0)] {
            assert_eq!(status[name].as_u64(), Some(expected), "{name}: {status}");
        }
        let routes = status["services"][0]["routes"].as_array().unwrap().clone();
        for route in routes {
            assert_eq!(route["decisions"].as_u64(), Some(count / 2), "{status}");
        }
        let finished = status["ended"]["finished"].as_u64();
        assert_eq!(finished, Some(count), "{status}");
        let no_tickets = |status: &Value| status["records"] == status["time_wait"];
        switch.wait_for_status("no record but at rest", no_tickets);
        // In turn, whoever chose.
        let answers = answers.into_inner().unwrap();
        assert_eq!(answers.len(), SERVERS.len());
        for (server, got) in &answers {
            let fair = count / SERVERS.len() as u64;
            assert!(got.abs_diff(fair) < fair / 4, "{server}: {answers:?}");
        }
        switch.signal(Signal::Terminate);
        assert_eq!(switch.wait_for_end(), Some(0));
    });
}

#[test]
fn a_server_that_ends_costs_no_request_though_tickets_name_it() {
    let name = "tickets::a_server_that_ends_costs_no_request_though_tickets_name_it";
    on_the_fast_path(|lab| {
        let mut all: Vec<Origin> = servers(lab, Family::V4);
        let _others = servers(lab, Family::V6);
        let mut switch = Switch::start_in_kernel(lab, "", &services());
        let (end, asked) = (AtomicBool::new(false), AtomicU64::new(0));
        let begin = Instant::now();
        // What waits to be accepted when a server ends is reset: so nothing does.
        let gate = RwLock::new(());
        std::thread::scope(|scope| {
            let over = SetAtEnd(&end);
            for _ in 0..CLIENTS {
                scope.spawn(|| {
                    while !end.load(Ordering::SeqCst) {
                        let _open = gate.read().unwrap();
                        ask(lab, Family::V4, asked.fetch_add(1, Ordering::SeqCst));
                    }
                });
            }
            let wait_for = |count: u64| {
                let until = asked.load(Ordering::SeqCst) + count;
                let latest = Instant::now() + PATIENCE;
                while asked.load(Ordering::SeqCst) < until {
                    assert!(Instant::now() < latest, "requests stand still");
                    std::thread::sleep(Duration::from_millis(2));
                }
            };
            wait_for(400);
            let closed = gate.write().unwrap();
            drop(all.remove(0));
            drop(closed);
            wait_for(400);
            drop(over);
        });
        let a_second = asked.load(Ordering::SeqCst) as f64 / begin.elapsed().as_secs_f64();
        begins(name, &switch, 0, a_second / 2.0);
        // At once, while tickets are there still.
        switch.signal(Signal::Terminate);
        assert_eq!(switch.wait_for_end(), Some(0));
    });
}
