//! The kinds of the kernel's flow table, each with less room than there are connections.

use std::io::{BufRead, BufReader, Write};
use std::process::Stdio;
use std::sync::{Arc, Mutex};

use serde_json::Value;

use crate::harness::{Connection, Family, Lab, Origin, Switch, on_the_fast_path, web, web_service};

/// Connections that stay: more than there are lines or pairs of keys.
const CONNECTIONS: usize = 400;
const ROUNDS: u64 = 4;

fn start(lab: &Lab, source: &str, flow_table: &str) -> Switch {
    let services = web_service(source, "", "", |family| vec![family.server_at(1, 8080)]);
    Switch::start_in_kernel(lab, flow_table, &services)
}

fn servers(lab: &Lab) -> [Origin; 2] {
    Family::BOTH.map(|family| {
        let serve = web("pages", false, Arc::<Mutex<Vec<_>>>::default());
        Origin::start(lab, family.server_at(1, 8080), serve)
    })
}

/// The sum over processors.
fn lookups(status: &Value, name: &str) -> u64 {
    let all = status["kernel"]["lookups"].as_array().expect("a kernel");
    all.iter().map(|one| one[name].as_u64().unwrap()).sum()
}

/// Asks on every connection in turn, so that each is the least recent when it is asked.
fn asked_in_turn(lab: &Lab, source: &str, flow_table: &str) -> Value {
    let _web = servers(lab);
    let switch = start(lab, source, flow_table);
    let open = |number: usize| Connection::to(lab, Family::BOTH[number % 2].virtual_at(80));
    let mut connections: Vec<_> = (0..CONNECTIONS).map(open).collect();
    for round in 1..=ROUNDS {
        for connection in &mut connections {
            let response = connection.ask("GET", "a.example", "/bytes/3000").unwrap();
            assert_eq!(response.status, 200);
            let told = response.header("x-asked").map(ToOwned::to_owned);
            assert_eq!(told, Some(round.to_string()), "the same server connection");
        }
    }
    switch.wait_for_quiet();
    let status = switch.status();
    assert_eq!(status["live"], CONNECTIONS, "{status}");
    let metrics = switch.page("/metrics").unwrap();
    let line = "fairlead_flow_table_hits_total{cpu=\"0\"}";
    assert!(metrics.contains(line), "{metrics}");
    drop(connections);
    switch.wait_for_count("live", 0);
    for (how, count) in switch.status()["ended"].as_object().unwrap() {
        let expected = if how == "finished" { CONNECTIONS } else { 0 };
        assert_eq!(*count, expected, "{how}");
    }
    status
}

#[test]
fn connections_whose_keys_the_kernel_evicts_go_on() {
    on_the_fast_path(|lab| {
        for source in ["snat", "transparent"] {
            let table = "flow_table = \"lru-hash\"\nlru_max_keys = 256";
            let status = asked_in_turn(lab, source, table);
            assert_eq!(status["flow_table"], "lru-hash");
            let anew = status["kernel"]["keys_anew"].as_u64().unwrap();
            assert!(anew > CONNECTIONS as u64, "{status}");
            assert!(lookups(&status, "hits") > 0, "{status}");
        }
    });
}

/// Connects from one port, requests, disappears silently on command, and repeats.
const VANISHING: &str = r#"
import socket, sys
def ask():
    s = socket.socket()
    s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    s.settimeout(60)
    s.bind(("", 45678))
    s.connect((sys.argv[1], 80))
    s.sendall(b"GET /bytes/10 HTTP/1.1\r\nHost: a.example\r\n\r\n")
    print(s.recv(4096).split(b"\r\n")[0].decode(), flush=True)
    return s
s = ask()
sys.stdin.readline()
s.setsockopt(socket.IPPROTO_TCP, 19, 1)  # TCP_REPAIR: closed without a FIN or RST
s.close()
ask()
"#;

/// The kernel has evicted the old connection's key and answers the SYN as a stranger's. The engine
/// has the old record still, and must know the new connection by its first data.
#[test]
fn a_client_that_begins_anew_on_an_evicted_tuple_is_served() {
    on_the_fast_path(|lab| {
        let _web = servers(lab);
        let table = "flow_table = \"lru-hash\"\nlru_max_keys = 256";
        let switch = start(lab, "snat", table);
        let mut command = lab.client.command("python3");
        let to = Family::V4.virtual_at(80).ip().to_string();
        command.args(["-c", VANISHING, &to]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut client = lab.client.start(&mut command).expect("python3");
        let mut answers = BufReader::new(client.child().stdout.take().unwrap()).lines();
        let mut answer = || answers.next().expect("an answer").unwrap();
        assert_eq!(answer(), "HTTP/1.1 200 OK");
        let mut others: Vec<_> = (0..CONNECTIONS)
            .map(|_| Connection::to(lab, Family::V4.virtual_at(80)))
            .collect();
        for connection in &mut others {
            assert_eq!(connection.ask("GET", "a.example", "/").unwrap().status, 200);
        }
        let mut stdin = client.child().stdin.take().unwrap();
        stdin.write_all(b"now\n").unwrap();
        assert_eq!(answer(), "HTTP/1.1 200 OK");
        drop(others);
        switch.wait_for_count("live", 0);
        let ended = switch.status()["ended"].clone();
        assert_eq!(ended["replaced"], 1, "{ended}");
    });
}

#[test]
fn a_tcb_cache_that_is_too_small_loses_look_ups_and_nothing_else() {
    on_the_fast_path(|lab| {
        for source in ["snat", "transparent"] {
            let table = "flow_table = \"tcb-cache\"\ntcb_cache_lines = 64";
            let status = asked_in_turn(lab, source, table);
            assert_eq!(status["flow_table"], "tcb-cache");
            for name in ["hits", "misses", "migrations", "evictions"] {
                assert!(lookups(&status, name) > 0, "{name}: {status}");
            }
            assert_eq!(status["kernel"]["keys_anew"], 0, "{status}");
        }
    });
}

#[test]
fn a_hash_map_has_room_for_all() {
    on_the_fast_path(|lab| {
        let status = asked_in_turn(lab, "snat", "flow_table = \"hash\"");
        assert_eq!(status["flow_table"], "hash");
        for name in ["misses", "migrations", "evictions", "mismatches"] {
            assert_eq!(lookups(&status, name), 0, "{name}: {status}");
        }
        let hits = lookups(&status, "hits");
        let fast = status["kernel"]["fast_packets"].as_u64().unwrap();
        assert!(hits >= fast && fast > 1_000, "{status}");
    });
}
