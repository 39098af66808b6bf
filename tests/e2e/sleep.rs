//! Idle connections outlive the process that has their socket (`sleep = true`).

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use socket2::{SockRef, TcpKeepalive};

use crate::harness::{
    Connection, Family, Lab, Nginx, Origin, PATIENCE, Switch, with_sockets_of_cookies,
};

pub(crate) fn services(extra: &str) -> String {
    format!(
        r#"
[[service]]
name = "web"
listen = ["10.1.0.3:80", "[fd01:3::3]:80"]
protocol = "http"
{extra}
[[service.route]]
treatment = "host"
sleep = true
listener = ["127.0.0.1:8082", "[::1]:8082"]
"#
    )
}

fn listeners() -> [SocketAddr; 2] {
    ["127.0.0.1:8082", "[::1]:8082"].map(|text| text.parse().unwrap())
}

pub(crate) fn nginx(lab: &Lab) -> Nginx {
    let [four, six] = listeners();
    let text = "x".repeat(3_000);
    let servers = format!(
        "server {{ listen {four}; listen {six}; keepalive_timeout 600;\n\
         location / {{ return 200 \"{text}\"; }} }}"
    );
    Nginx::start_on(lab, &lab.switch, "sleepy", &servers, &[four, six])
}

/// A server whose process ends after each answer, as far as a client can see: it closes the
/// connection without having said so. The answers count its connections.
pub(crate) fn one_answer_each(lab: &Lab, answer: &'static str) -> ([Origin; 2], Arc<AtomicU64>) {
    let accepted = Arc::new(AtomicU64::new(0));
    let start = |address| {
        let accepted = Arc::clone(&accepted);
        let serve = move |mut stream: TcpStream| {
            let mut head = Vec::new();
            let mut buffer = [0; 4_096];
            while !head.windows(4).any(|four| four == b"\r\n\r\n") {
                match stream.read(&mut buffer)? {
                    0 => return Ok(()),
                    got => head.extend_from_slice(&buffer[..got]),
                }
            }
            accepted.fetch_add(1, Ordering::SeqCst);
            stream.write_all(answer.as_bytes())
        };
        Origin::start_on(&lab.switch, address, serve)
    };
    (listeners().map(start), accepted)
}

pub(crate) const LENGTH: &str = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
const CHUNKED: &str = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n";

/// One request, and as many bytes of an answer.
pub(crate) fn ask(connection: &mut Connection, answer: &str) {
    connection
        .send("GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        .unwrap();
    receive(connection, answer);
}

/// As many bytes of an answer.
fn receive(connection: &mut Connection, answer: &str) {
    let mut got = vec![0; answer.len()];
    let mut filled = 0;
    while filled < got.len() {
        match connection.read(&mut got[filled..]).unwrap() {
            0 => panic!(
                "the end after {:?}",
                got[..filled].escape_ascii().to_string()
            ),
            more => filled += more,
        }
    }
    assert_eq!(got, answer.as_bytes());
}

fn slept(switch: &Switch) -> u64 {
    switch.status()["kernel"]["host_slept"]
        .as_u64()
        .unwrap_or(0)
}

pub(crate) fn wait_until_asleep(switch: &Switch, wanted: u64) {
    let what = format!("{wanted} sleepers");
    switch.wait_for_status(&what, |status| {
        status["kernel"]["host_slept"].as_u64() >= Some(wanted)
    });
}

#[test]
fn keep_alive_connections_survive_restarts_of_an_unmodified_server() {
    with_sockets_of_cookies(|lab| {
        let switch = Switch::start_in_kernel(lab, "", &services(""));
        let mut server = nginx(lab);
        let mut connections: Vec<Connection> = (0..20)
            .map(|number| Connection::to(lab, Family::BOTH[number % 2].virtual_at(80)))
            .collect();
        for round in 1..=4 {
            for connection in &mut connections {
                let answer = connection.ask("GET", "x", "/").unwrap();
                assert_eq!(answer.body.len(), 3_000, "round {round}");
                // Each server knows the connection from its first request on.
                assert_eq!(answer.header("x-asked"), Some("1"), "round {round}");
            }
            match round % 2 {
                0 => server.kill(),
                _ => server.stop(),
            }
            wait_until_asleep(&switch, 20 * round);
            server = nginx(lab);
        }
        assert_eq!(switch.count("woken"), 60);
    });
}

#[test]
fn each_answer_with_an_end_lets_its_connection_sleep() {
    with_sockets_of_cookies(|lab| {
        let switch = Switch::start_in_kernel(lab, "", &services(""));
        for answer in [LENGTH, CHUNKED] {
            let (_servers, accepted) = one_answer_each(lab, answer);
            for family in Family::BOTH {
                let mut connection = Connection::to(lab, family.virtual_at(80));
                let before = slept(&switch);
                for round in 1..=5 {
                    ask(&mut connection, answer);
                    wait_until_asleep(&switch, before + round);
                }
            }
            assert_eq!(
                accepted.load(Ordering::SeqCst),
                10,
                "a socket for each request"
            );
        }
    });
}

#[test]
fn what_is_not_whole_ends_as_without_the_switch() {
    with_sockets_of_cookies(|lab| {
        let switch = Switch::start_in_kernel(lab, "", &services(""));
        for (answer, what) in [
            ("HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nok", "cut"),
            ("HTTP/1.1 200 OK\r\n\r\nok", "without a length"),
            ("HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok", "HTTP/1.0"),
            (
                "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok",
                "the last one",
            ),
            (
                "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n",
                "without its last chunk",
            ),
        ] {
            let (_servers, _) = one_answer_each(lab, answer);
            for family in Family::BOTH {
                let began = Instant::now();
                let mut connection = Connection::to(lab, family.virtual_at(80));
                ask(&mut connection, answer);
                assert!(connection.rest().unwrap().is_empty(), "{what}");
                assert!(began.elapsed() < Duration::from_secs(5), "{what}");
            }
        }
        assert_eq!(slept(&switch), 0);
    });
}

#[test]
fn a_sleeper_answers_keep_alives_and_its_clients_end() {
    with_sockets_of_cookies(|lab| {
        let switch = Switch::start_in_kernel(lab, "", &services(""));
        let (_servers, _) = one_answer_each(lab, LENGTH);
        for (number, family) in Family::BOTH.into_iter().enumerate() {
            let to = family.virtual_at(80);
            let stream = lab
                .client
                .enter(|| TcpStream::connect(to))
                .unwrap()
                .unwrap();
            let second = Duration::from_secs(1);
            let probes = TcpKeepalive::new().with_time(second).with_interval(second);
            SockRef::from(&stream)
                .set_tcp_keepalive(&probes.with_retries(2))
                .unwrap();
            let mut connection = Connection::over(stream).unwrap();
            let before = slept(&switch);
            ask(&mut connection, LENGTH);
            wait_until_asleep(&switch, before + 1);
            // Without answers the client's TCP would give up after three seconds.
            std::thread::sleep(Duration::from_secs(5));
            ask(&mut connection, LENGTH);
            wait_until_asleep(&switch, before + 2);
            connection.finish_sending().unwrap();
            assert!(connection.rest().unwrap().is_empty());
            switch.wait_for_count("sleepers_closed", number as u64 + 1);
        }
    });
}

#[test]
fn a_request_waits_for_a_listener_for_a_limited_time() {
    with_sockets_of_cookies(|lab| {
        let switch = Switch::start_in_kernel(lab, "", &services("wake_wait = \"2s\""));
        let (servers, _) = one_answer_each(lab, LENGTH);
        let mut connections = Family::BOTH.map(|family| Connection::to(lab, family.virtual_at(80)));
        for connection in &mut connections {
            ask(connection, LENGTH);
        }
        wait_until_asleep(&switch, 2);
        drop(servers);
        std::thread::scope(|scope| {
            let asking = connections
                .iter_mut()
                .map(|connection| scope.spawn(|| ask(connection, LENGTH)));
            let asking: Vec<_> = asking.collect();
            std::thread::sleep(Duration::from_millis(500));
            let (_servers, accepted) = one_answer_each(lab, LENGTH);
            for one in asking {
                one.join().unwrap();
            }
            assert_eq!(accepted.load(Ordering::SeqCst), 2);
            wait_until_asleep(&switch, 4);
        });
        // Nobody comes back.
        for connection in &mut connections {
            let began = Instant::now();
            let error = connection.ask("GET", "x", "/").unwrap_err();
            assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{error}");
            let waited = began.elapsed();
            assert!(waited >= Duration::from_secs(1) && waited < Duration::from_secs(20));
        }
    });
}

/// Clients that ask all the time: each request is answered, and none waits for a repetition of TCP,
/// whose first comes after 200 ms.
#[test]
fn reloads_and_restarts_under_load_fail_no_request() {
    with_sockets_of_cookies(|lab| {
        let switch = Switch::start_in_kernel(lab, "", &services(""));
        let mut server = Some(nginx(lab));
        let (over, asked) = (AtomicBool::new(false), AtomicU64::new(0));
        let longest = Mutex::new(Duration::ZERO);
        std::thread::scope(|scope| {
            let asking: Vec<_> = (0..8)
                .map(|number| {
                    let (over, asked, longest) = (&over, &asked, &longest);
                    let to = Family::BOTH[number % 2].virtual_at(80);
                    scope.spawn(move || {
                        let mut connection = Connection::to(lab, to);
                        while !over.load(Ordering::SeqCst) {
                            let began = Instant::now();
                            let answer = connection.ask("GET", "x", "/").unwrap();
                            let took = began.elapsed();
                            let mut longest = longest.lock().unwrap();
                            *longest = took.max(*longest);
                            assert_eq!(answer.body.len(), 3_000);
                            asked.fetch_add(1, Ordering::SeqCst);
                            if answer.header("connection") == Some("close") {
                                connection = Connection::to(lab, to);
                            }
                            std::thread::sleep(Duration::from_millis(2));
                        }
                    })
                })
                .collect();
            for _ in 0..4 {
                std::thread::sleep(Duration::from_millis(100));
                server.as_mut().unwrap().reload();
                std::thread::sleep(Duration::from_millis(100));
                server.take().unwrap().quit();
                server = Some(nginx(lab));
            }
            std::thread::sleep(Duration::from_millis(300));
            over.store(true, Ordering::SeqCst);
            for one in asking {
                one.join().unwrap();
            }
        });
        assert!(asked.load(Ordering::SeqCst) > 100);
        assert!(switch.count("woken") >= 32, "{}", switch.status());
        eprintln!("the longest wait: {:?}", longest.lock().unwrap());
    });
}

/// A process that ends with a request in its socket that it has not read, and one after it.
#[test]
fn a_request_that_nobody_has_read_is_given_to_the_next_process() {
    with_sockets_of_cookies(|lab| {
        let switch = Switch::start_in_kernel(lab, "", &services(""));
        let deaf = Arc::new(AtomicU64::new(0));
        let start = |address| {
            let deaf = Arc::clone(&deaf);
            let serve = move |stream: TcpStream| {
                stream.peek(&mut [0])?;
                deaf.fetch_add(1, Ordering::SeqCst);
                Ok(()) // closed, which is a RST
            };
            Origin::start_on(&lab.switch, address, serve)
        };
        let servers = listeners().map(start);
        let mut connections = Family::BOTH.map(|family| Connection::to(lab, family.virtual_at(80)));
        std::thread::scope(|scope| {
            let asking = connections
                .iter_mut()
                .map(|connection| scope.spawn(|| ask(connection, LENGTH)));
            let asking: Vec<_> = asking.collect();
            let until = Instant::now() + PATIENCE;
            while deaf.load(Ordering::SeqCst) < 4 {
                assert!(Instant::now() < until, "{}", switch.status());
                std::thread::sleep(Duration::from_millis(1));
            }
            drop(servers);
            let (_servers, accepted) = one_answer_each(lab, LENGTH);
            for one in asking {
                one.join().unwrap();
            }
            assert_eq!(accepted.load(Ordering::SeqCst), 2);
        });
        assert!(switch.status()["kernel"]["host_unread"].as_u64() >= Some(4));
    });
}

#[test]
fn requests_wait_for_a_listener_and_are_handed_on_at_once() {
    with_sockets_of_cookies(|lab| {
        let switch = Switch::start_in_kernel(lab, "", &services(""));
        let (servers, _) = one_answer_each(lab, LENGTH);
        let mut sleeper = Connection::to(lab, Family::V4.virtual_at(80));
        ask(&mut sleeper, LENGTH);
        wait_until_asleep(&switch, 1);
        drop(servers);
        let newcomer = Connection::to(lab, Family::V6.virtual_at(80));
        let mut connections = [sleeper, newcomer];
        for connection in &mut connections {
            connection
                .send("GET / HTTP/1.1\r\nHost: x\r\n\r\n")
                .unwrap();
        }
        let what = "both held";
        switch.wait_for_status(what, |status| status["host_held"].as_u64() >= Some(2));
        // Their TCP repeats the requests 0.2, 0.6, 1.4 and 3.0 seconds later.
        std::thread::sleep(Duration::from_millis(1_600));
        let (_servers, _) = one_answer_each(lab, LENGTH);
        let began = Instant::now();
        for connection in &mut connections {
            receive(connection, LENGTH);
        }
        let waited = began.elapsed();
        assert!(waited < Duration::from_millis(700), "{waited:?}");
    });
}

#[test]
fn a_sleeper_is_ended_after_its_time() {
    with_sockets_of_cookies(|lab| {
        let switch = Switch::start_in_kernel(lab, "", &services("sleep_max = \"1s\""));
        let (_servers, _) = one_answer_each(lab, LENGTH);
        for family in Family::BOTH {
            let mut connection = Connection::to(lab, family.virtual_at(80));
            ask(&mut connection, LENGTH);
            assert!(
                connection.rest().unwrap().is_empty(),
                "the end, and no reset"
            );
        }
        switch.wait_for_count("sleepers_closed", 2);
    });
}
