//! Each request of a connection is routed by itself (`treatment = "per-request"`).

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use fairlead_netns::Signal;

use crate::harness::{
    Connection, Family, Lab, Nginx, Origin, SetAtEnd, Switch, request_heads, web,
    with_sockets_of_cookies,
};
use crate::http::curl;
use crate::reload::reload;
use crate::restart::in_kernel;

/// `/a…` goes to the server at 8001, all else to that at 8002, both on the servers' host.
fn services(extra: &str) -> String {
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
treatment = "per-request"
pool = "two"

[[pool]]
name = "one"
server = [{{ address = "10.2.0.1:8001" }}]
[[pool]]
name = "two"
server = [{{ address = "10.2.0.1:8002" }}]
"#
    )
}

fn origins(lab: &Lab) -> [Origin; 2] {
    [("one", 8001), ("two", 8002)].map(|(name, port)| {
        let at = Family::V4.server_at(1, port);
        Origin::start(lab, at, web(name, false, Arc::default()))
    })
}

fn front(switch: &Switch, name: &str) -> u64 {
    switch.status()["front"][name].as_u64().unwrap_or(0)
}

fn wait_for(switch: &Switch, name: &str, wanted: u64) {
    switch.wait_for_status(name, |status| {
        status["front"][name].as_u64() == Some(wanted)
    });
}

#[test]
fn requests_of_one_connection_reach_two_pools() {
    with_sockets_of_cookies(|lab| {
        let _origins = origins(lab);
        let switch = Switch::start_in_kernel(lab, "", &services(""));
        for family in Family::BOTH {
            let mut connection = Connection::to(lab, family.virtual_at(80));
            for round in 0..10 {
                for (path, server) in [("/a", "one"), ("/b", "two"), ("/bytes/100000", "two")] {
                    let answer = connection.ask("GET", "x", path).unwrap();
                    assert_eq!(
                        (answer.status, answer.server()),
                        (200, server),
                        "{round} {path}"
                    );
                }
            }
        }
        wait_for(&switch, "front_served", 60);
        assert_eq!(front(&switch, "front_accepted"), 2);
        // One connection a server does, whoever asks.
        assert_eq!(front(&switch, "front_connects"), 2);
        let status = switch.status();
        assert_eq!(
            status["services"][0]["routes"][0]["requests"], 20,
            "{status}"
        );
        assert_eq!(status["services"][0]["routes"][1]["requests"], 40);
        wait_for(&switch, "front_clients", 0);
    });
}

/// A server that says what head it got, and answers as the test has it.
fn teller(lab: &Lab, port: u16, answer: fn(&str, &mut TcpStream) -> bool) -> Origin {
    Origin::start(lab, Family::V4.server_at(1, port), move |mut stream| {
        for head in request_heads(&stream)? {
            let head = head?;
            if !answer(&head, &mut stream) {
                return Ok(());
            }
        }
        Ok(())
    })
}

fn echo(head: &str, stream: &mut TcpStream) -> bool {
    let answer = format!(
        "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{head}",
        head.len()
    );
    stream.write_all(answer.as_bytes()).is_ok()
}

#[test]
fn servers_learn_the_clients_address() {
    with_sockets_of_cookies(|lab| {
        let _tell = teller(lab, 8002, echo);
        let mut switch = Switch::start_in_kernel(lab, "", &services(""));
        let heard = |request: &str| {
            let mut connection = Connection::to(lab, Family::V4.virtual_at(80));
            connection.send(request).unwrap();
            connection.response(false).unwrap().text().to_owned()
        };
        let plain =
            "GET /x HTTP/1.1\r\nHost: x\r\nConnection: close\r\nX-Forwarded-For: 9.9.9.9\r\n\r\n";
        let client = Family::V4.client();
        let head = heard(plain);
        assert!(
            head.contains(&format!("X-Forwarded-For: 9.9.9.9, {client}\r\n")),
            "{head}"
        );
        assert!(!head.contains("Connection"), "{head}");
        switch.signal(Signal::Terminate);
        assert_eq!(switch.wait_for_end(), Some(0));
        let switch = Switch::start_in_kernel(lab, "", &services("forwarded = \"forwarded\""));
        let head = heard(plain);
        assert!(
            head.contains(&format!("Forwarded: for={client}\r\n")),
            "{head}"
        );
        drop(switch);
    });
}

#[test]
fn a_server_that_dies_is_replaced_and_a_lost_one_answered_for() {
    with_sockets_of_cookies(|lab| {
        let mut origins = Some(origins(lab));
        let services = services("").replace(
            "server = [{ address = \"10.2.0.1:8002\" }]",
            "server = [{ address = \"10.2.0.1:8003\" }, { address = \"10.2.0.1:8002\" }]",
        );
        let switch = Switch::start_in_kernel(lab, "", &services);
        // Nobody listens at 8003.
        for _ in 0..8 {
            let mut connection = Connection::to(lab, Family::V4.virtual_at(80));
            assert_eq!(connection.ask("GET", "x", "/b").unwrap().server(), "two");
        }
        let mut kept = Connection::to(lab, Family::V4.virtual_at(80));
        assert_eq!(kept.ask("GET", "x", "/b").unwrap().server(), "two");
        origins.take();
        // Its own connection to the server is there still, but no further one can be made.
        let mut other = Connection::to(lab, Family::V4.virtual_at(80));
        other
            .send("POST /b HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\nhi")
            .unwrap();
        assert_eq!(other.response(false).unwrap().status, 503);
        assert!(other.rest().unwrap().is_empty());
        wait_for(&switch, "front_no_server", 1);
    });
}

#[test]
fn another_protocol_takes_the_connection_over() {
    with_sockets_of_cookies(|lab| {
        let _echo = teller(lab, 8002, |head, stream| {
            assert!(
                head.contains("Connection: upgrade\r\nUpgrade: echo\r\n"),
                "{head}"
            );
            let answer = "HTTP/1.1 101 Go\r\nConnection: upgrade\r\nUpgrade: echo\r\n\r\n";
            stream.write_all(answer.as_bytes()).unwrap();
            let mut buffer = [0; 1_000];
            loop {
                match stream.read(&mut buffer) {
                    Ok(0) | Err(_) => return false,
                    Ok(bytes) => stream.write_all(&buffer[..bytes]).unwrap(),
                }
            }
        });
        let switch = Switch::start_in_kernel(lab, "", &services(""));
        let mut connection = Connection::to(lab, Family::V4.virtual_at(80));
        let ask = "GET / HTTP/1.1\r\nHost: x\r\nConnection: upgrade\r\nUpgrade: echo\r\n\r\n";
        connection.send(ask).unwrap();
        let head = connection.response_head().unwrap();
        assert_eq!(head.status, 101);
        for round in 0..100 {
            let text = format!("round {round} \r\n\r\n");
            connection.send(&text).unwrap();
            let mut back = vec![0; text.len()];
            let mut got = 0;
            while got < back.len() {
                got += connection.read(&mut back[got..]).unwrap();
            }
            assert_eq!(back, text.as_bytes());
        }
        connection.finish_sending().unwrap();
        assert!(connection.rest().unwrap().is_empty());
        wait_for(&switch, "front_upgraded", 1);
    });
}

#[test]
fn curl_and_nginx_speak_through_it() {
    with_sockets_of_cookies(|lab| {
        let blocks = "server { listen 10.2.0.1:8001; location / { return 200 \"one\"; } }\n\
                      server { listen 10.2.0.1:8002; location / { return 200 \"two\"; } \
                      location /put { client_max_body_size 0; proxy_pass http://10.2.0.1:8001/; } }";
        let at = [8001, 8002].map(|port| Family::V4.server_at(1, port));
        let _nginx = Nginx::start(lab, "both", blocks, &at);
        let switch = Switch::start_in_kernel(lab, "", &services(""));
        let format = " %{num_connects} ";
        let arguments = [
            "--write-out",
            format,
            "http://10.1.0.3/a",
            "http://10.1.0.3/b",
        ];
        assert_eq!(curl(lab, &arguments), "one 1 two 0 ");
        // A body that waits for `100 Continue`, in chunks.
        let body = lab.file("body", vec![b'x'; 3_000_000]);
        let from = format!("@{}", body.display());
        let arguments = [
            "--header",
            "Expect: 100-continue",
            "--header",
            "Transfer-Encoding: chunked",
            "--data-binary",
            &from,
            "http://10.1.0.3/put",
        ];
        assert_eq!(curl(lab, &arguments), "one");
        wait_for(&switch, "front_served", 3);
        assert!(front(&switch, "front_bytes_in") > 3_000_000);
    });
}

#[test]
fn a_drain_lets_requests_finish() {
    with_sockets_of_cookies(|lab| {
        static GO: AtomicBool = AtomicBool::new(false);
        let _slow = teller(lab, 8002, |head, stream| {
            while !GO.load(Ordering::SeqCst) {
                std::thread::sleep(Duration::from_millis(5));
            }
            echo(head, stream)
        });
        let mut switch = Switch::start_in_kernel(lab, "", &services(""));
        let mut connection = Connection::to(lab, Family::V4.virtual_at(80));
        connection
            .send("GET /b HTTP/1.1\r\nHost: x\r\n\r\n")
            .unwrap();
        wait_for(&switch, "front_servers", 1);
        switch.signal(Signal::Terminate);
        switch.wait_for_log("no new connections");
        std::thread::sleep(Duration::from_millis(300));
        assert!(switch.is_alive());
        GO.store(true, Ordering::SeqCst);
        assert_eq!(connection.response(false).unwrap().status, 200);
        assert!(connection.rest().unwrap().is_empty());
        assert_eq!(switch.wait_for_end(), Some(0));
    });
}

/// Asks over one connection until the end.
fn asks_until(lab: &Lab, family: Family, end: &AtomicBool) -> u64 {
    let mut connection = Connection::to(lab, family.virtual_at(80));
    let mut asked = 0;
    while !end.load(Ordering::SeqCst) {
        assert_eq!(connection.ask("GET", "x", "/b").unwrap().status, 200);
        asked += 1;
    }
    asked
}

fn asks_once(lab: &Lab) {
    let mut connection = Connection::to(lab, Family::V4.virtual_at(80));
    assert_eq!(connection.ask("GET", "x", "/b").unwrap().status, 200);
}

#[test]
fn a_reload_goes_unnoticed() {
    with_sockets_of_cookies(|lab| {
        static GO: AtomicBool = AtomicBool::new(false);
        let _slow = teller(lab, 8001, |head, stream| {
            while !GO.load(Ordering::SeqCst) {
                std::thread::sleep(Duration::from_millis(5));
            }
            echo(head, stream)
        });
        let _quick = teller(lab, 8002, echo);
        // Requests that are under way may go on for so long.
        let configuration = in_kernel(&services("")).replace("drain_timeout = \"1s\"", "");
        let mut switch = Switch::start_with(lab, &configuration);
        let mut idle = Connection::to(lab, Family::V4.virtual_at(80));
        assert_eq!(idle.ask("GET", "x", "/b").unwrap().status, 200);
        let mut slow = Connection::to(lab, Family::V6.virtual_at(80));
        slow.send("GET /a HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
        wait_for(&switch, "front_servers", 2);
        let end = &AtomicBool::new(false);
        std::thread::scope(|scope| {
            let over = SetAtEnd(end);
            let busy = [Family::V4, Family::V6, Family::V4];
            let busy = busy.map(|family| scope.spawn(move || asks_until(lab, family, end)));
            reload(lab, &mut switch, &configuration, 2);
            // All but the one whose request is under way.
            wait_for(&switch, "front_clients", 4);
            assert_eq!(idle.ask("GET", "x", "/b").unwrap().status, 200);
            GO.store(true, Ordering::SeqCst);
            assert_eq!(slow.response(false).unwrap().status, 200);
            wait_for(&switch, "front_clients", 5);
            assert_eq!(slow.ask("GET", "x", "/b").unwrap().status, 200);
            for run in 3..6 {
                let newcomers = [(); 3].map(|()| scope.spawn(|| asks_once(lab)));
                reload(lab, &mut switch, &configuration, run);
                for one in newcomers {
                    one.join().expect("an answer");
                }
                wait_for(&switch, "front_clients", 5);
            }
            drop(over);
            for one in busy {
                assert!(one.join().expect("every request was answered") > 50);
            }
        });
        for one in [&mut idle, &mut slow] {
            assert_eq!(one.ask("GET", "x", "/a").unwrap().status, 200);
        }
    });
}
