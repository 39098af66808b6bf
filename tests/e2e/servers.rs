//! Servers that differ, fail, come back; and how one of them is chosen.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use fairlead_testkit::stream::Digest;

use crate::harness::{
    Connection, Family, Lab, Nginx, Origin, PATIENCE, Preamble, Seen, Switch, in_a_lab, show, web,
    web_service,
};

type Record = Arc<Mutex<Vec<Seen>>>;

/// `web` origins called `s1` … at the addresses 1 … of a family.
fn origins(lab: &Lab, family: Family, count: u8) -> (Vec<Origin>, Record) {
    const NAMES: [&str; 3] = ["s1", "s2", "s3"];
    let seen: Record = Arc::default();
    let all = (1..=count)
        .map(|number| {
            let serve = web(NAMES[usize::from(number) - 1], false, Arc::clone(&seen));
            Origin::start(lab, family.server_at(number, 8080), serve)
        })
        .collect();
    (all, seen)
}

fn only_v4(servers: &[SocketAddr]) -> impl Fn(Family) -> Vec<SocketAddr> + '_ {
    move |family| {
        if family == Family::V4 {
            servers.to_vec()
        } else {
            Vec::new()
        }
    }
}

fn v4(count: u8) -> Vec<SocketAddr> {
    (1..=count)
        .map(|number| Family::V4.server_at(number, 8080))
        .collect()
}

fn ask(lab: &Lab, fields: &str) -> (u16, String) {
    let mut connection = Connection::to(lab, Family::V4.virtual_at(80));
    connection
        .send(format!(
            "GET /x HTTP/1.1\r\nHost: a.example\r\n{fields}\r\n"
        ))
        .unwrap();
    let response = connection.response(false).unwrap();
    (response.status, response.server().to_owned())
}

/// How often each server answers `count` requests on connections of their own.
fn spread(lab: &Lab, count: usize, fields: impl Fn(usize) -> String) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    for number in 0..count {
        let (status, server) = ask(lab, &fields(number));
        assert_eq!(status, 200);
        *counts.entry(server).or_insert(0) += 1;
    }
    counts
}

#[test]
fn a_server_sees_the_client_or_an_address_of_the_pool_as_configured() {
    in_a_lab(|lab| {
        let four = origins(lab, Family::V4, 1);
        let six = origins(lab, Family::V6, 1);
        for (source, transparent) in [("transparent", true), ("snat", false)] {
            let switch = Switch::start(
                lab,
                &web_service(source, "", "", |family| vec![family.server_at(1, 8080)]),
            );
            for (family, (_, seen), pool) in [
                (Family::V4, &four, "100.64.0."),
                (Family::V6, &six, "fd64::"),
            ] {
                let mut connection = Connection::to(lab, family.virtual_at(80));
                let response = connection.ask("GET", "a.example", "/x").unwrap();
                let peer = seen.lock().unwrap().last().unwrap().peer;
                assert_eq!(response.header("x-saw"), Some(peer.to_string().as_str()));
                if transparent {
                    assert_eq!(peer, connection.local());
                } else {
                    assert!(peer.ip().to_string().starts_with(pool), "{peer}");
                }
                let local = connection.local();
                drop(connection);
                let closed = switch.record(local, "closed");
                assert_eq!(closed.text("source"), peer.to_string());
                // What the record counts is what went through: the request and the response.
                assert_eq!(
                    closed.number("bytes_in"),
                    "GET /x HTTP/1.1\r\nHost: a.example\r\n\r\n".len() as u64
                );
                assert!(closed.number("bytes_out") > 50);
            }
        }
    });
}

#[test]
fn a_proxy_header_of_either_version_tells_the_server_who_the_client_is() {
    in_a_lab(|lab| {
        let seen: Record = Arc::default();
        let _origins = Family::BOTH.map(|family| {
            Origin::start(
                lab,
                family.server_at(1, 8080),
                web("s1", true, Arc::clone(&seen)),
            )
        });
        for (word, version) in [("v1", 1), ("v2", 2)] {
            for source in ["snat", "transparent"] {
                let pool = format!("proxy_protocol = \"{word}\"");
                let switch = Switch::start(
                    lab,
                    &web_service(source, "", &pool, |family| vec![family.server_at(1, 8080)]),
                );
                for family in Family::BOTH {
                    let mut connection = Connection::to(lab, family.virtual_at(80));
                    let head =
                        "PUT /up HTTP/1.1\r\nHost: a.example\r\nContent-Length: 500000\r\n\r\n";
                    connection.send(head).unwrap();
                    connection.send_stream(1, 0, 500_000).unwrap();
                    let response = connection.response(false).unwrap();
                    assert_eq!(response.text(), show(&Digest::of_stream(1, 500_000)));
                    let response = connection.ask("GET", "a.example", "/bytes/300000").unwrap();
                    assert_eq!(response.digest, Digest::of_stream(300_000, 300_000));
                    let wanted = Preamble {
                        version,
                        source: connection.local(),
                        destination: family.virtual_at(80),
                    };
                    assert_eq!(seen.lock().unwrap().last().unwrap().preamble, Some(wanted));
                    let local = connection.local();
                    drop(connection);
                    assert_eq!(switch.record(local, "closed").text("end"), "finished");
                }
            }
        }
    });
}

#[test]
fn nginx_understands_the_proxy_header() {
    in_a_lab(|lab| {
        let address = Family::V4.server_at(1, 8080);
        let block = format!(
            "server {{ listen {address} proxy_protocol;\n\
             location / {{ return 200 \"$proxy_protocol_addr:$proxy_protocol_port\"; }} }}"
        );
        // A connection without the header does no harm, so waiting for the listener works.
        let _nginx = Nginx::start(lab, "behind", &block, &[address]);
        for word in ["v1", "v2"] {
            let pool = format!("proxy_protocol = \"{word}\"");
            let _switch = Switch::start(lab, &web_service("snat", "", &pool, only_v4(&[address])));
            let mut connection = Connection::to(lab, Family::V4.virtual_at(80));
            let response = connection.ask("GET", "a.example", "/").unwrap();
            assert_eq!(response.text(), connection.local().to_string(), "{word}");
        }
    });
}

#[test]
fn a_server_that_refuses_is_passed_over() {
    in_a_lab(|lab| {
        let (_origins, _) = origins(lab, Family::V4, 1);
        // Nobody listens at the second address, so its kernel refuses.
        let switch = Switch::start(lab, &web_service("snat", "", "", only_v4(&v4(2))));
        for _ in 0..20 {
            assert_eq!(ask(lab, ""), (200, "s1".to_owned()));
        }
        let status = switch.status();
        let servers = status["pools"][0]["servers"].as_array().unwrap();
        assert_eq!(servers[0]["state"], "up", "{status}");
        assert_eq!(servers[1]["state"], "down", "{status}");
        assert_eq!(servers[0]["total"], 20);
    });
}

#[test]
fn a_server_that_refuses_for_the_first_time_costs_the_client_nothing() {
    in_a_lab(|lab| {
        let (mut origins, seen) = origins(lab, Family::V4, 2);
        let pool = "balance = \"round-robin\"";
        let switch = Switch::start(lab, &web_service("transparent", "", pool, only_v4(&v4(2))));
        assert_eq!(
            spread(lab, 10, |_| String::new()),
            BTreeMap::from([("s1".into(), 5), ("s2".into(), 5)])
        );
        drop(origins.pop());
        for _ in 0..4 {
            let mut connection = Connection::to(lab, Family::V4.virtual_at(80));
            connection
                .send("PUT /up HTTP/1.1\r\nHost: a.example\r\nContent-Length: 100000\r\n\r\n")
                .unwrap();
            connection.send_stream(2, 0, 100_000).unwrap();
            let response = connection.response(false).unwrap();
            assert_eq!(response.text(), show(&Digest::of_stream(2, 100_000)));
            assert_eq!(response.server(), "s1");
        }
        // One of them has met the dead server.
        assert!(switch.count("retries") >= 1);
        switch.wait_for_log("\"attempt\":1");
        assert_eq!(
            seen.lock().unwrap().len(),
            14,
            "no request reached two servers"
        );
    });
}

#[test]
fn a_silent_server_is_passed_over_after_its_time() {
    in_a_lab(|lab| {
        let (_origins, _) = origins(lab, Family::V4, 1);
        // Packets for this address go nowhere, and no one says so.
        lab.switch.ip("route add blackhole 10.2.0.77/32\n").unwrap();
        let servers = [v4(1)[0], "10.2.0.77:8080".parse().unwrap()];
        let pool = "connect_timeout = \"300ms\"";
        let switch = Switch::start(lab, &web_service("snat", "", pool, only_v4(&servers)));
        for _ in 0..6 {
            let begun = Instant::now();
            assert_eq!(ask(lab, ""), (200, "s1".to_owned()));
            assert!(
                begun.elapsed() < Duration::from_secs(20),
                "{:?}",
                begun.elapsed()
            );
        }
        assert_eq!(switch.status()["pools"][0]["servers"][1]["state"], "down");
    });
}

#[test]
fn without_any_server_the_answer_is_503_with_a_time_to_come_back() {
    in_a_lab(|lab| {
        let config = web_service("snat", "", "connect_timeout = \"300ms\"", only_v4(&v4(2)));
        let switch = Switch::start(lab, &config);
        for method in ["GET", "HEAD"] {
            let mut connection = Connection::to(lab, Family::V4.virtual_at(80));
            let response = connection.ask(method, "a.example", "/x").unwrap();
            assert_eq!(response.status, 503);
            let after: u32 = response.header("retry-after").unwrap().parse().unwrap();
            assert!((1..=60).contains(&after), "{after}");
            assert_eq!(response.body.is_empty(), method == "HEAD");
            assert_eq!(connection.rest().unwrap(), b"", "closed behind the answer");
            let refused = switch.record(connection.local(), "refused");
            assert_eq!(refused.text("status"), "503");
            assert_eq!(refused.text("reason"), "no_server");
        }
        assert_eq!(switch.drops("no_server"), 2);
        // The server comes (back) and is used without a restart.
        let (_origins, _) = origins(lab, Family::V4, 1);
        let until = Instant::now() + PATIENCE;
        while ask(lab, "").0 != 200 {
            assert!(Instant::now() < until, "the server was never tried again");
            std::thread::sleep(Duration::from_millis(200));
        }
    });
}

#[test]
fn round_robin_takes_turns_by_weight() {
    in_a_lab(|lab| {
        let (_origins, _) = origins(lab, Family::V4, 3);
        let config = web_service("snat", "", "balance = \"round-robin\"", only_v4(&v4(3)))
            .replace("10.2.0.2:8080\"", "10.2.0.2:8080\", weight = 2")
            .replace("10.2.0.3:8080\"", "10.2.0.3:8080\", weight = 0");
        let _switch = Switch::start(lab, &config);
        let counts = spread(lab, 30, |_| String::new());
        let count = |name| counts.get(name).copied().unwrap_or(0);
        // Where tickets were issued, some turns are those of connections yet to come.
        let in_turn = (8..=12).contains(&count("s1"));
        assert!(in_turn && count("s1") + count("s2") == 30, "{counts:?}");
    });
}

#[test]
fn chance_by_weight_reaches_every_server() {
    in_a_lab(|lab| {
        let (_origins, _) = origins(lab, Family::V4, 3);
        for balance in ["weighted", "random-two"] {
            let pool = format!("balance = \"{balance}\"");
            let _switch = Switch::start(lab, &web_service("snat", "", &pool, only_v4(&v4(3))));
            let counts = spread(lab, 90, |_| String::new());
            for name in ["s1", "s2", "s3"] {
                // 30 expected with a deviation of 4.5.
                let count = counts.get(name).copied().unwrap_or(0);
                assert!((10..=50).contains(&count), "{balance}: {counts:?}");
            }
        }
    });
}

#[test]
fn least_connections_prefers_who_has_fewest() {
    in_a_lab(|lab| {
        let (_origins, _) = origins(lab, Family::V4, 3);
        let pool = "balance = \"least-connections\"";
        let switch = Switch::start(lab, &web_service("snat", "", pool, only_v4(&v4(3))));
        let mut held = Vec::new();
        for _ in 0..30 {
            let mut connection = Connection::to(lab, Family::V4.virtual_at(80));
            let server = connection
                .ask("GET", "a.example", "/")
                .unwrap()
                .server()
                .to_owned();
            held.push((server, connection));
        }
        let count = |held: &[(String, Connection)], name| {
            held.iter().filter(|(server, _)| server == name).count()
        };
        for name in ["s1", "s2", "s3"] {
            assert_eq!(count(&held, name), 10);
        }
        held.retain(|(server, _)| server != "s2");
        switch.wait_for_count("live", 20);
        for _ in 0..10 {
            let mut connection = Connection::to(lab, Family::V4.virtual_at(80));
            let server = connection
                .ask("GET", "a.example", "/")
                .unwrap()
                .server()
                .to_owned();
            assert_eq!(server, "s2");
            held.push((server, connection));
        }
    });
}

#[test]
fn maglev_keeps_a_client_a_header_or_a_cookie_with_its_server() {
    in_a_lab(|lab| {
        let (_origins, _) = origins(lab, Family::V4, 3);
        let config = |hash: &str| {
            let pool = format!("balance = \"maglev\"\nhash = \"{hash}\"");
            web_service("snat", "", &pool, only_v4(&v4(3)))
        };
        {
            let _switch = Switch::start(lab, &config("client-address"));
            assert_eq!(
                spread(lab, 12, |_| String::new()).len(),
                1,
                "one client, one server"
            );
        }
        for (hash, field) in [
            ("header:x-user", "X-User: "),
            ("cookie:user", "Cookie: a=b; user="),
        ] {
            let _switch = Switch::start(lab, &config(hash));
            let mut homes: BTreeMap<usize, String> = BTreeMap::new();
            for round in 0..3 {
                for user in 0..20 {
                    let (status, server) = ask(lab, &format!("{field}u{user}\r\n"));
                    assert_eq!(status, 200);
                    let home = homes.entry(user).or_insert_with(|| server.clone());
                    assert_eq!(*home, server, "user {user} in round {round}");
                }
            }
            let used: std::collections::BTreeSet<_> = homes.values().collect();
            assert_eq!(used.len(), 3, "20 users among 3 servers: {homes:?}");
        }
    });
}
