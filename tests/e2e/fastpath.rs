//! What the kernel fast path does by itself, and what it leaves to the engine.

use std::time::Duration;

use serde_json::Value;

use crate::harness::{Connection, Family, Lab, Nginx, Switch, in_a_lab, web_service};

/// A number of the kernel program's, or nothing where the engine works alone.
fn kernel(switch: &Switch, name: &str) -> Option<u64> {
    let status = switch.status();
    status.get("kernel")?.get(name).and_then(Value::as_u64)
}

/// One request on a connection of its own, which the server closes.
fn ask_and_close(lab: &Lab, family: Family) -> u64 {
    let mut connection = Connection::to(lab, family.virtual_at(80));
    let request = "GET / HTTP/1.1\r\nHost: a.example\r\nConnection: close\r\n\r\n";
    connection.send(request).unwrap();
    let response = connection.response(false).unwrap();
    assert_eq!(response.status, 200, "{response:?}");
    assert!(connection.rest().unwrap().is_empty(), "and then the end");
    let client = connection.local();
    drop(connection);
    u64::from(client.port())
}

/// Waits until published counters stand still.
fn settled(switch: &Switch) {
    switch.wait_for_count("live", 0, Duration::from_secs(10));
    std::thread::sleep(Duration::from_millis(600));
}

#[test]
fn of_a_connection_per_request_the_engine_sees_the_head_and_the_servers_syn_ack() {
    const EACH: u64 = 40;
    in_a_lab(|lab| {
        let _servers = Family::BOTH
            .map(|family| Nginx::plain(lab, &format!("f{family:?}"), family.server_at(1, 8080)));
        for source in ["snat", "transparent"] {
            let services = web_service(source, "", "", |family| vec![family.server_at(1, 8080)]);
            let switch = Switch::start(lab, &services);
            // Neighbours are learnt by the first packets.
            for family in Family::BOTH {
                ask_and_close(lab, family);
            }
            settled(&switch);
            let Some(before) = kernel(&switch, "to_engine") else {
                eprintln!("skipped: the switch runs on its engine alone");
                return;
            };
            let engine = switch.count("engine_packets");
            let fins = kernel(&switch, "fins").unwrap();
            let finished = switch.status()["ended"]["finished"].as_u64().unwrap();
            for _ in 0..EACH {
                for family in Family::BOTH {
                    ask_and_close(lab, family);
                }
            }
            settled(&switch);
            let status = switch.status();
            let count = 2 * EACH;
            // The program knows the client's tuple; the server's is bound when it has answered.
            let left = kernel(&switch, "to_engine").unwrap() - before;
            assert_eq!(left, count, "heads: {status}");
            let seen = switch.count("engine_packets") - engine;
            assert_eq!(seen, 2 * count, "heads and SYN-ACKs: {status}");
            assert!(
                kernel(&switch, "fins").unwrap() - fins >= 2 * count,
                "{status}"
            );
            let ended = status["ended"]["finished"].as_u64().unwrap() - finished;
            assert_eq!(ended, count, "{status}");
            assert!(status["time_wait"].as_u64().unwrap() >= count, "{status}");
        }
    });
}

/// The engine learns of ends from the records alone: how, when, and how much was carried.
#[test]
fn ends_in_the_kernel_are_told_as_they_were() {
    in_a_lab(|lab| {
        let _nginx = Nginx::plain(lab, "pages", Family::V4.server_at(1, 8080));
        let services = web_service("snat", "", "", |family| match family {
            Family::V4 => vec![Family::V4.server_at(1, 8080)],
            Family::V6 => Vec::new(),
        });
        let switch = Switch::start(lab, &services);
        let request = "GET / HTTP/1.1\r\nHost: a.example\r\n\r\n";
        for how in ["finished", "reset_by_client"] {
            let mut connection = Connection::to(lab, Family::V4.virtual_at(80));
            connection.send(request).unwrap();
            let response = connection.response(false).unwrap();
            assert_eq!(response.status, 200);
            let client = connection.local();
            let begun = std::time::Instant::now();
            std::thread::sleep(Duration::from_millis(1_500));
            if how == "finished" {
                drop(connection);
            } else {
                connection.abort();
            }
            let closed = switch.record(client, "closed");
            assert_eq!(closed.text("end"), how, "{closed:?}");
            assert_eq!(
                closed.number("bytes_in"),
                request.len() as u64,
                "{closed:?}"
            );
            let body = response.body.len() as u64;
            assert!(closed.number("bytes_out") > body, "{closed:?}");
            let waited_ms = begun.elapsed().as_millis() as u64;
            let lived_ms = closed.number("duration_ms");
            assert!((1_400..=waited_ms + 500).contains(&lived_ms), "{closed:?}");
            // A RST rests 3 s before it is told, and is told with its own time.
            if how == "reset_by_client" {
                assert!(lived_ms < 2_800, "{closed:?}");
            }
        }
    });
}
