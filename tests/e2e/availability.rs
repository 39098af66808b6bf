//! Health checks, orders about servers, and lists of connections.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::process::Stdio;
use std::time::{Duration, Instant};

use fairlead_netns::trial::skip;
use serde_json::Value;

use crate::harness::{
    Connection, Family, Lab, Nginx, PATIENCE, Switch, in_a_lab, on_the_fast_path, web_service,
};
use crate::orders::fairlead;
use crate::restart;

fn server(number: u8) -> SocketAddr {
    Family::V4.server_at(number, 8080)
}

/// A server whose health page fails while the file `sick` stands in its folder.
fn sickly(lab: &Lab, number: u8) -> Nginx {
    let (name, address) = (format!("s{number}"), server(number));
    let servers = format!(
        "server {{ listen {address};\n\
         location = /health {{ if (-f $folder/sick) {{ return 503; }} return 200 \"fine\\n\"; }}\n\
         location / {{ return 200 \"{name}\\n\"; }} }}"
    );
    Nginx::start(lab, &name, &servers, &[address])
}

fn services(pool: &str, numbers: &[u8]) -> String {
    web_service("snat", "", pool, |family| match family {
        Family::V4 => numbers.iter().map(|&number| server(number)).collect(),
        Family::V6 => Vec::new(),
    })
}

/// The server that answers a request on a connection of its own, or the status.
fn answered_by(lab: &Lab) -> Result<String, u16> {
    let mut connection = Connection::to(lab, Family::V4.virtual_at(80));
    let answer = connection.ask("GET", "a.example", "/x").unwrap();
    match answer.status {
        200 => Ok(answer.server().to_owned()),
        status => Err(status),
    }
}

/// Who answers `count` requests.
fn answering(lab: &Lab, count: usize) -> BTreeSet<String> {
    (0..count).map(|_| answered_by(lab).unwrap()).collect()
}

fn set(names: &[&str]) -> BTreeSet<String> {
    names.iter().map(|&name| name.to_owned()).collect()
}

fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let until = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < until, "never: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Runs a command that is to succeed, and returns what it prints.
fn done(lab: &Lab, arguments: &[&str]) -> String {
    let mut arguments = arguments.to_vec();
    arguments.extend(["--config", "FILE"]);
    let (code, out, error) = fairlead(lab, &arguments);
    assert_eq!(code, Some(0), "{arguments:?}: {error}");
    out
}

fn listed(lab: &Lab, what: &[&str]) -> Vec<Value> {
    let mut arguments = what.to_vec();
    arguments.push("--json");
    let text = done(lab, &arguments);
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

fn state_of(lab: &Lab, number: u8) -> Option<String> {
    let address = server(number).to_string();
    let rows = listed(lab, &["server", "list"]);
    let row = rows.iter().find(|row| row["server"] == address.as_str());
    let why = row.expect("the server").get("unavailable");
    why.and_then(Value::as_str).map(str::to_owned)
}

/// False, and said so, where the socket of orders cannot be made.
fn takes_orders(switch: &Switch, test: &str) -> bool {
    let takes = !switch.log().contains("no control socket");
    if !takes {
        skip(test, "the folder of sockets cannot be made by this user");
    }
    takes
}

const CHECK: &str = "check = { type = \"http\", path = \"/health\", interval = \"200ms\", \
                     fast_interval = \"100ms\", down_interval = \"200ms\", timeout = \"500ms\", \
                     rise = 2, fall = 2 }";

/// nginx answers everything but its health page: without checks it would get half of the clients.
#[test]
fn a_server_whose_health_page_fails_gets_no_connections_until_it_passes_again() {
    in_a_lab(|lab| {
        let _servers = [sickly(lab, 1), sickly(lab, 2)];
        let switch = Switch::start(lab, &services(CHECK, &[1, 2]));
        assert_eq!(answering(lab, 6), set(&["s1", "s2"]));
        lab.file("s2/sick", "");
        let begun = Instant::now();
        // fall × interval + timeout, twice that for a machine that is busy, and an update's time.
        // By chance a few connections in a row go to one server.
        wait_until("s2 gets nothing", || answering(lab, 16) == set(&["s1"]));
        let took = begun.elapsed();
        assert!(took < Duration::from_secs(4), "{took:?}");
        switch.wait_for_log("HTTP 503");
        let of_server = format!("server=\"{}\"", server(2));
        let available = |line: &&str| {
            line.starts_with("fairlead_server_available{") && line.contains(&of_server)
        };
        wait_until("its metric says so", || {
            let metrics = switch.page("/metrics").unwrap();
            let line = metrics.lines().find(available);
            line.expect("its metric").ends_with(" 0")
        });
        std::fs::remove_file(lab.folder().join("s2/sick")).unwrap();
        wait_until("s2 is back", || answering(lab, 4) == set(&["s1", "s2"]));
    });
}

#[test]
fn without_a_server_that_passes_clients_are_refused_where_the_pool_has_it_so() {
    in_a_lab(|lab| {
        let _servers = [sickly(lab, 1), sickly(lab, 2)];
        let pool = format!("all_down = \"refuse\"\n{CHECK}");
        let _switch = Switch::start(lab, &services(&pool, &[1, 2]));
        lab.file("s1/sick", "");
        lab.file("s2/sick", "");
        wait_until("nobody serves", || answered_by(lab) == Err(503));
        std::fs::remove_file(lab.folder().join("s1/sick")).unwrap();
        wait_until("s1 serves", || answered_by(lab).is_ok());
        assert_eq!(answering(lab, 4), set(&["s1"]));
    });
}

#[test]
fn connections_of_a_server_that_goes_down_are_reset_where_its_pool_has_it_so() {
    in_a_lab(|lab| {
        let _servers = [sickly(lab, 1)];
        let pool = CHECK.replace("rise", "on_down = \"reset\", rise");
        let _switch = Switch::start(lab, &services(&pool, &[1]));
        let mut connection = Connection::to(lab, Family::V4.virtual_at(80));
        assert_eq!(
            connection.ask("GET", "a.example", "/x").unwrap().status,
            200
        );
        lab.file("s1/sick", "");
        let end = connection.rest();
        assert!(end.is_err(), "a RST, not {end:?}");
    });
}

#[test]
fn a_server_is_drained_disabled_and_enabled_by_command() {
    in_a_lab(|lab| {
        let _servers = [sickly(lab, 1), sickly(lab, 2)];
        let switch = Switch::start(lab, &services("", &[1, 2]));
        if !takes_orders(
            &switch,
            "a_server_is_drained_disabled_and_enabled_by_command",
        ) {
            return;
        }
        let mut old = Connection::to(lab, Family::V4.virtual_at(80));
        let first = old.ask("GET", "a.example", "/x").unwrap();
        let (held, other) = match first.server() {
            "s1" => (1, "s2"),
            _ => (2, "s1"),
        };
        let name = format!("four/{}", server(held));
        for order in ["drain", "disable"] {
            let begun = Instant::now();
            let out = done(lab, &["server", order, &name]);
            assert!(out.starts_with(&name), "{out}");
            assert_eq!(answering(lab, 6), set(&[other]));
            assert!(begun.elapsed() < Duration::from_secs(10));
            // What is open goes on.
            assert_eq!(old.ask("GET", "a.example", "/y").unwrap().status, 200);
            done(lab, &["server", "enable", &name]);
            assert_eq!(answering(lab, 6), set(&["s1", "s2"]));
        }
        done(lab, &["server", "weight", &name, "0"]);
        assert_eq!(answering(lab, 6), set(&[other]));
        assert_eq!(state_of(lab, held).as_deref(), Some("no_weight"));
        done(lab, &["server", "reset", &name]);
        assert_eq!(answering(lab, 6), set(&["s1", "s2"]));
        let (code, _, error) = fairlead(
            lab,
            &["server", "drain", "four/10.9.9.9:1", "--config", "FILE"],
        );
        assert_eq!(code, Some(1));
        assert!(error.contains(&server(1).to_string()), "{error}");
        // Idle connections go by order.
        done(
            lab,
            &["server", "drain", &name, "--close-idle", "1", "--wait"],
        );
        assert!(old.rest().is_err());
    });
}

#[test]
fn connections_are_listed_shown_and_killed_by_command() {
    in_a_lab(|lab| {
        let _servers = [sickly(lab, 1)];
        let switch = Switch::start(lab, &services("", &[1]));
        if !takes_orders(
            &switch,
            "connections_are_listed_shown_and_killed_by_command",
        ) {
            return;
        }
        let mut two = [0, 1].map(|_| {
            let mut connection = Connection::to(lab, Family::V4.virtual_at(80));
            assert_eq!(
                connection.ask("GET", "a.example", "/x").unwrap().status,
                200
            );
            connection
        });
        let rows = listed(lab, &["connections", "list", "--service", "web"]);
        assert_eq!(rows.len(), 2);
        let client = two[0].local().to_string();
        let row = rows.iter().find(|row| row["client"] == client.as_str());
        let row = row.expect("the first connection");
        assert_eq!(row["server"], server(1).to_string().as_str());
        assert!(row["bytes_in"].as_u64() > Some(20), "{row}");
        let id = row["id"].as_str().unwrap();
        let shown: Value = serde_json::from_str(&done(lab, &["connections", "show", id])).unwrap();
        assert_eq!(shown["id"], id);
        done(lab, &["connections", "kill", id]);
        assert!(two[0].rest().is_err());
        assert_eq!(two[1].ask("GET", "a.example", "/x").unwrap().status, 200);
        assert_eq!(listed(lab, &["connections", "list"]).len(), 1);
        let (code, _, error) = fairlead(lab, &["connections", "kill", id, "--config", "FILE"]);
        assert_eq!(code, Some(1), "{error}");
        let (code, ..) = fairlead(lab, &["connections", "kill", "--config", "FILE"]);
        assert_eq!(code, Some(1), "all of them, by mistake");
        let pool = two[1].local().ip().to_string();
        done(lab, &["connections", "kill", "--client", &pool]);
        assert!(two[1].rest().is_err());
        // The admin address lists, too, and does nothing else.
        assert!(switch.page("/v1/connections").is_ok());
    });
}

/// An order outlives a restart in place; a changed configuration overtakes it.
#[test]
fn orders_outlive_a_reload_and_servers_come_and_go_by_order() {
    on_the_fast_path(|lab| {
        let _servers = [sickly(lab, 1), sickly(lab, 2)];
        let switch = restart::start(lab, &services("", &[1]));
        if !takes_orders(
            &switch,
            "orders_outlive_a_reload_and_servers_come_and_go_by_order",
        ) {
            return;
        }
        let mut old = Connection::to(lab, Family::V4.virtual_at(80));
        assert_eq!(old.ask("GET", "a.example", "/x").unwrap().status, 200);
        let added = server(2).to_string();
        done(lab, &["server", "add", "four", &added]);
        wait_until("s2 serves", || answering(lab, 4) == set(&["s1", "s2"]));
        assert_eq!(old.ask("GET", "a.example", "/x").unwrap().status, 200);
        let drained = format!("four/{}", server(1));
        done(lab, &["server", "drain", &drained]);
        assert_eq!(answering(lab, 4), set(&["s2"]));
        done(lab, &["reload"]);
        wait_until("it is back", || switch.page("/healthz").is_ok());
        assert_eq!(answering(lab, 6), set(&["s2"]));
        assert_eq!(state_of(lab, 1).as_deref(), Some("drain"));
        done(lab, &["server", "enable", &drained]);
        done(lab, &["server", "remove", &format!("four/{added}")]);
        wait_until("s2 is gone", || answering(lab, 4) == set(&["s1"]));
        let (code, _, error) = fairlead(lab, &["server", "remove", &drained, "--config", "FILE"]);
        assert!(code == Some(1) && error.contains("only server"), "{error}");
    });
}

/// Orders come as fast as they are answered, while clients connect; nobody notices.
#[test]
fn no_client_notices_a_hundred_orders() {
    in_a_lab(|lab| {
        let _servers = [sickly(lab, 1), sickly(lab, 2)];
        let switch = Switch::start(lab, &services("", &[1, 2]));
        if !takes_orders(&switch, "no_client_notices_a_hundred_orders") {
            return;
        }
        let mut command = lab.client.command("wrk");
        command.args(["-t1", "-c", "8", "-d", "12s", "--timeout", "20s"]);
        command.args(["-H", "Connection: close"]);
        command.arg(format!("http://{}/x", Family::V4.virtual_at(80)));
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        let load = command.spawn().expect("running wrk");
        let name = format!("four/{}", server(2));
        let begun = Instant::now();
        let mut orders = 0;
        while orders < 100 && begun.elapsed() < Duration::from_secs(10) {
            let order: &[&str] = match orders % 5 {
                0 => &["server", "drain", &name],
                1 => &["server", "enable", &name],
                2 => &["server", "weight", &name, "3"],
                3 => &["server", "disable", &name],
                _ => &["server", "reset", &name],
            };
            done(lab, order);
            orders += 1;
        }
        let output = load.wait_with_output().expect("wrk's end");
        let text = String::from_utf8_lossy(&output.stdout);
        let errors = text.contains("Socket errors") || text.contains("Non-2xx");
        assert!(
            output.status.success() && !errors,
            "after {orders} orders: {text}"
        );
    });
}
