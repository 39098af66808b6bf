//! The front where the kernel makes no sockets of cookies: before Linux 6.9, on the engine alone,
//! behind generic XDP, or because a setting is in the way, as here.

use std::io::Read;
use std::sync::Arc;

use crate::harness::{
    Connection, Family, Lab, Origin, Switch, kernel_mode, on_the_fast_path, prefix_in, web,
    with_and_without_the_fast_path,
};
use crate::reload::reload;

fn services(extra: &str, route: &str) -> String {
    format!(
        r#"
[[service]]
name = "web"
listen = ["10.1.0.3:80", "[fd01:3::3]:80"]
protocol = "http"
{extra}
[[service.route]]
path_prefix = "/a"
treatment = "per-request"
pool = "one"
[[service.route]]
path_prefix = "/splice"
pool = "two"
[[service.route]]
{route}
pool = "two"

[[pool]]
name = "one"
server = [{{ address = "10.2.0.1:8001" }}, {{ address = "[fd02::1]:8001" }}]
[[pool]]
name = "two"
server = [{{ address = "10.2.0.1:8002" }}, {{ address = "[fd02::1]:8002" }}]
"#
    )
}

const PER_REQUEST: &str = "treatment = \"per-request\"";

fn origins(lab: &Lab) -> Vec<Origin> {
    let start = |(name, port)| {
        let start = |family: Family| {
            let at = family.server_at(1, port);
            Origin::start(lab, at, web(name, false, Arc::default()))
        };
        Family::BOTH.map(start)
    };
    let all = [("one", 8001), ("two", 8002)].map(start);
    all.into_iter().flatten().collect()
}

fn front(switch: &Switch, name: &str) -> u64 {
    switch.status()["front"][name].as_u64().unwrap_or(0)
}

/// Without this setting the kernel makes no sockets of cookies.
fn without_sockets_of_cookies(lab: &Lab) {
    lab.switch.sysctl("net.ipv4.tcp_syncookies", "0").unwrap();
}

fn routes_each_request(lab: &Lab, mode: &str, extra: &str) {
    let configuration = format!("{}{}", prefix_in(mode, ""), services(extra, PER_REQUEST));
    let switch = Switch::start_with(lab, &configuration);
    for family in Family::BOTH {
        let mut connection = Connection::to(lab, family.virtual_at(80));
        for round in 0..10 {
            for (path, server) in [("/a", "one"), ("/b", "two"), ("/bytes/300000", "two")] {
                let answer = connection.ask("GET", "x", path).unwrap();
                let got = (answer.status, answer.server());
                assert_eq!(got, (200, server), "{mode} {round} {path}");
                if path.starts_with("/bytes") {
                    assert_eq!(answer.body.len(), 300_000, "{mode}");
                }
            }
        }
        // The first request of a connection may ask for a splice as ever.
        let mut spliced = Connection::to(lab, family.virtual_at(80));
        for path in ["/splice", "/a"] {
            assert_eq!(spliced.ask("GET", "x", path).unwrap().server(), "two");
        }
    }
    switch.wait_for_status("all served", |status| {
        status["front"]["front_served"].as_u64() == Some(60)
    });
    assert_eq!(front(&switch, "front_accepted"), 2, "{mode}");
    assert_eq!(switch.count("given"), 0, "{mode}");
    switch.wait_for_status("all closed", |status| {
        status["front"]["front_clients"].as_u64() == Some(0)
    });
}

#[test]
fn requests_of_one_connection_reach_two_pools_on_every_way() {
    with_and_without_the_fast_path(|lab, mode| {
        without_sockets_of_cookies(lab);
        let _origins = origins(lab);
        routes_each_request(lab, mode, "");
        routes_each_request(lab, mode, "source = \"transparent\"");
    });
}

#[test]
fn requests_of_one_connection_reach_two_pools_behind_generic_xdp() {
    on_the_fast_path(|lab| {
        let _origins = origins(lab);
        routes_each_request(lab, "xdp-generic", "");
    });
}

#[test]
fn servers_learn_the_clients_address_and_a_cache_answers() {
    with_and_without_the_fast_path(|lab, mode| {
        without_sockets_of_cookies(lab);
        let saw = |family: Family| {
            let at = family.server_at(1, 8002);
            Origin::start(lab, at, move |mut stream| {
                let mut head = [0; 4_000];
                let mut got = 0;
                while !head[..got].ends_with(b"\r\n\r\n") {
                    got += stream.read(&mut head[got..])?;
                }
                let head = String::from_utf8_lossy(&head[..got]).into_owned();
                let answer = format!(
                    "HTTP/1.1 200 OK\r\nCache-Control: max-age=60\r\nConnection: \
                     close\r\nContent-Length: {}\r\n\r\n{head}",
                    head.len()
                );
                std::io::Write::write_all(&mut stream, answer.as_bytes())
            })
        };
        let _servers = Family::BOTH.map(saw);
        let services = services("", "cache = { size = \"4MiB\" }");
        let switch = Switch::start_with(lab, &format!("{}{services}", prefix_in(mode, "")));
        for family in Family::BOTH {
            let path = format!("/for/{family:?}");
            let first = || {
                let mut connection = Connection::to(lab, family.virtual_at(80));
                connection.ask("GET", "x", &path).unwrap()
            };
            let client = family.client();
            let head = first();
            assert!(
                head.text().contains(&client.to_string()),
                "{mode}: {}",
                head.text()
            );
            let again = first();
            let status = again.header("cache-status").unwrap();
            assert!(status.starts_with("fairlead; hit"), "{mode}: {status}");
            // What no cache answers is spliced.
            let mut connection = Connection::to(lab, family.virtual_at(80));
            let answer = connection.ask("POST", "x", &path).unwrap();
            assert_eq!(answer.header("cache-status"), None, "{mode}");
        }
        switch.wait_for_status("four requests", |status| {
            status["front"]["front_served"].as_u64() == Some(4)
        });
    });
}

/// The process that serves its last requests cannot say who a client is: idle ones get a FIN.
#[test]
fn after_a_reload_new_connections_are_served() {
    on_the_fast_path(|lab| {
        without_sockets_of_cookies(lab);
        let _origins = origins(lab);
        let services = services("", PER_REQUEST);
        let text = format!("{}{services}", prefix_in(&kernel_mode(), ""));
        let mut switch = Switch::start_with(lab, &text);
        let mut idle = Connection::to(lab, Family::V4.virtual_at(80));
        assert_eq!(idle.ask("GET", "x", "/a").unwrap().server(), "one");
        reload(lab, &mut switch, &text, 2);
        assert!(idle.rest().unwrap().is_empty(), "a FIN");
        for family in Family::BOTH {
            let mut connection = Connection::to(lab, family.virtual_at(80));
            for (path, server) in [("/a", "one"), ("/b", "two")] {
                assert_eq!(connection.ask("GET", "x", path).unwrap().server(), server);
            }
        }
    });
}
