//! What bad input gets.

use std::io::{Read, Write};
use std::time::{Duration, Instant};

use crate::harness::{Connection, Family, Nginx, PATIENCE, Switch, binary, in_a_lab, web_service};

/// A head, the status it must get, and the reason it must be counted under.
const BAD: [(&str, u16, &str); 21] = [
    ("GET / HTTP/1.1\r\n\r\n", 400, "http_malformed"),
    (
        "GET / HTTP/1.1\r\nHost: a\r\nHost: a\r\n\r\n",
        400,
        "http_malformed",
    ),
    ("GET / HTTP/1.1\r\nHost: a b\r\n\r\n", 400, "http_malformed"),
    ("GET / HTTP/1.1\nHost: a\n\n", 400, "http_malformed"),
    (
        "GET / HTTP/1.1\r\nHost: a\r\n folded: x\r\n\r\n",
        400,
        "http_malformed",
    ),
    ("GET / HTTP/1.1\r\nHost : a\r\n\r\n", 400, "http_malformed"),
    (
        "GET / HTTP/1.1\r\nHost: a\r\nno colon\r\n\r\n",
        400,
        "http_malformed",
    ),
    (
        "GET / HTTP/1.1\r\nHost: a\r\nX: a\0b\r\n\r\n",
        400,
        "http_malformed",
    ),
    ("GET  / HTTP/1.1\r\nHost: a\r\n\r\n", 400, "http_malformed"),
    ("GET /\r\nHost: a\r\n\r\n", 400, "http_malformed"),
    (
        "GET http://b/ HTTP/1.1\r\nHost: a\r\n\r\n",
        400,
        "http_malformed",
    ),
    (
        "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab",
        400,
        "http_malformed",
    ),
    (
        "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n",
        400,
        "http_malformed",
    ),
    (
        "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: -1\r\n\r\n",
        400,
        "http_malformed",
    ),
    (
        "POST / HTTP/1.0\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n",
        400,
        "http_malformed",
    ),
    (
        "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: x-own\r\n\r\n",
        501,
        "http_malformed",
    ),
    (
        "CONNECT a:443 HTTP/1.1\r\nHost: a:443\r\n\r\n",
        501,
        "http_malformed",
    ),
    ("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505, "http_version"),
    ("GET / HTTP/1.2\r\nHost: a\r\n\r\n", 505, "http_version"),
    (
        "\x16\x03\x01\x02\x00\x01\x00\x01\x7c\x03\x03",
        400,
        "http_malformed",
    ),
    ("SSH-2.0-OpenSSH_9.2\r\n", 400, "http_malformed"),
];

#[test]
fn malformed_heads_get_the_answer_that_rfc_9112_asks_for() {
    in_a_lab(|lab| {
        let _nginx = Nginx::plain(lab, "pages", Family::V4.server_at(1, 8080));
        let switch = Switch::start(lab, &one_server(""));
        for (head, status, reason) in BAD {
            let before = switch.drops(reason);
            let mut connection = Connection::to(lab, Family::V4.virtual_at(80));
            connection.send(head).unwrap();
            let response = connection
                .response(false)
                .unwrap_or_else(|error| panic!("{head:?}: {error}"));
            assert_eq!(response.status, status, "{head:?}");
            assert_eq!(response.server(), "", "{head:?} reached a server");
            assert_eq!(response.header("connection"), Some("close"));
            assert_eq!(connection.rest().unwrap(), b"", "{head:?}");
            let refused = switch.record(connection.local(), "refused");
            assert_eq!(refused.text("status"), status.to_string(), "{head:?}");
            assert_eq!(refused.text("reason"), reason, "{head:?}");
            assert_eq!(switch.drops(reason), before + 1, "{head:?}");
        }
        assert_eq!(switch.count("spliced"), 0);
        // A refusal leaves nothing behind, and the next client is served.
        let mut connection = Connection::to(lab, Family::V4.virtual_at(80));
        assert_eq!(connection.ask("GET", "a.example", "/").unwrap().status, 200);
        switch.wait_for_count("setups", 0);
        assert_eq!(switch.count("buffered_bytes"), 0);
    });
}

#[test]
fn a_client_that_keeps_sending_still_reads_its_refusal() {
    in_a_lab(|lab| {
        let _nginx = Nginx::plain(lab, "pages", Family::V4.server_at(1, 8080));
        let _switch = Switch::start(lab, &one_server(""));
        for body in [1_000usize, 20_000, 60_000] {
            let mut connection = Connection::to(lab, Family::V4.virtual_at(80));
            let head = format!("POST / HTTP/1.1\r\nContent-Length: {body}\r\n\r\n");
            connection.send(head).unwrap();
            connection.send(vec![b'x'; body]).unwrap();
            let response = connection.response(false).unwrap();
            assert_eq!(response.status, 400, "{body}");
        }
    });
}

#[test]
fn a_head_that_is_too_large_gets_431() {
    in_a_lab(|lab| {
        let _nginx = Nginx::plain(lab, "pages", Family::V4.server_at(1, 8080));
        let switch = Switch::start(lab, &one_server("head_limit = 4096"));
        for filler in [5_000, 30_000] {
            let mut connection = Connection::to(lab, Family::V4.virtual_at(80));
            let field = "x".repeat(filler);
            connection
                .send(format!("GET / HTTP/1.1\r\nHost: a\r\nX: {field}\r\n\r\n"))
                .unwrap();
            assert_eq!(connection.response(false).unwrap().status, 431, "{filler}");
            let refused = switch.record(connection.local(), "refused");
            assert_eq!(refused.text("reason"), "head_too_large");
        }
        // Just below the limit it is read.
        let mut connection = Connection::to(lab, Family::V4.virtual_at(80));
        let field = "x".repeat(3_900);
        connection
            .send(format!("GET / HTTP/1.1\r\nHost: a\r\nX: {field}\r\n\r\n"))
            .unwrap();
        assert_eq!(connection.response(false).unwrap().status, 200);
    });
}

#[test]
fn an_unknown_host_gets_404_or_421_as_configured() {
    in_a_lab(|lab| {
        let _nginx = Nginx::plain(lab, "pages", Family::V4.server_at(1, 8080));
        for (unmatched, status) in [
            ("", 404),
            ("unmatched = 404", 404),
            ("unmatched = 421", 421),
        ] {
            let config = one_server(unmatched).replace(
                "listen = \"10.1.0.3:80\"\npool",
                "host = \"known.example.com\"\npool",
            );
            assert!(config.contains("known.example.com"));
            let switch = Switch::start(lab, &config);
            let mut connection = Connection::to(lab, Family::V4.virtual_at(80));
            let response = connection.ask("GET", "unknown.example.com", "/x").unwrap();
            assert_eq!((response.status, response.server()), (status, ""));
            let refused = switch.record(connection.local(), "refused");
            assert_eq!(refused.text("reason"), "no_route");
            assert!(
                refused.text("subject").contains("unknown.example.com/x"),
                "{refused:?}"
            );
            let mut connection = Connection::to(lab, Family::V4.virtual_at(80));
            let response = connection.ask("GET", "Known.Example.com", "/x").unwrap();
            assert_eq!((response.status, response.server()), (200, "pages"));
        }
    });
}

#[test]
fn a_client_that_never_finishes_its_head_is_let_go() {
    in_a_lab(|lab| {
        let _nginx = Nginx::plain(lab, "pages", Family::V4.server_at(1, 8080));
        let switch = Switch::start(lab, &one_server("head_timeout = \"1s\""));
        let mut connection = Connection::to(lab, Family::V4.virtual_at(80));
        let begun = Instant::now();
        // A byte now and then must not extend its time.
        connection
            .send("GET / HTTP/1.1\r\nHost: a\r\nX-Slow: ")
            .unwrap();
        for _ in 0..8 {
            std::thread::sleep(Duration::from_millis(200));
            if connection.send("x").is_err() {
                break;
            }
        }
        let mut text = String::new();
        // Either the answer or, where bytes crossed it, a reset.
        let outcome = connection.stream.read_to_string(&mut text);
        assert!(
            begun.elapsed() < Duration::from_secs(30),
            "{:?}",
            begun.elapsed()
        );
        assert!(
            text.starts_with("HTTP/1.1 408 ") || outcome.is_err(),
            "{text:?}"
        );
        let refused = switch.record(connection.local(), "refused");
        assert_eq!(refused.text("reason"), "head_timeout");
        switch.wait_for_count("half_read", 0);
    });
}

#[test]
fn half_read_heads_of_one_client_are_limited_and_others_are_served() {
    in_a_lab(|lab| {
        let _nginx = Nginx::plain(lab, "pages", Family::V4.server_at(1, 8080));
        let config = format!(
            "[limits]\nhalf_read_heads_per_client = 10\n{}",
            one_server("")
        );
        let switch = Switch::start(lab, &config);
        let mut held: Vec<Connection> = Vec::new();
        for _ in 0..15 {
            let mut connection = Connection::to(lab, Family::V4.virtual_at(80));
            connection.send("GET / HTTP/1.1\r\nHost: a").unwrap();
            held.push(connection);
        }
        switch.wait_for_status("five refusals", |status| {
            status["drops"]["half_read_client_full"].as_u64() >= Some(5)
        });
        assert_eq!(switch.count("half_read"), 10);
        // A whole head is no half-read one.
        let mut connection = Connection::to(lab, Family::V4.virtual_at(80));
        assert_eq!(connection.ask("GET", "a.example", "/").unwrap().status, 200);
        // The first ten may still finish theirs.
        for connection in &mut held[..10] {
            connection.send(".example\r\n\r\n").unwrap();
            assert_eq!(connection.response(false).unwrap().status, 200);
        }
        drop(held);
        switch.wait_for_count("half_read", 0);
    });
}

#[test]
fn connections_beyond_the_limit_are_refused_and_counted() {
    in_a_lab(|lab| {
        let _nginx = Nginx::plain(lab, "pages", Family::V4.server_at(1, 8080));
        let config = format!("[limits]\nconnections = 20\n{}", one_server(""));
        let switch = Switch::start(lab, &config);
        let mut held = Vec::new();
        let mut refused = 0;
        for _ in 0..30 {
            let Ok(mut connection) = Connection::open(lab, Family::V4.virtual_at(80)) else {
                refused += 1;
                continue;
            };
            connection
                .stream
                .set_read_timeout(Some(Duration::from_secs(20)))
                .unwrap();
            match connection.ask("GET", "a.example", "/") {
                Ok(response) if response.status == 200 => held.push(connection),
                _ => refused += 1,
            }
        }
        assert_eq!(held.len() + refused, 30);
        assert!(
            (15..=20).contains(&held.len()),
            "{} were served",
            held.len()
        );
        assert!(switch.drops("table_full") > 0, "{}", switch.status());
        // Nobody who was served is thrown out for it.
        for connection in &mut held {
            assert_eq!(connection.ask("GET", "a.example", "/").unwrap().status, 200);
        }
    });
}

#[test]
fn a_port_without_a_service_and_a_stray_packet_do_no_harm() {
    in_a_lab(|lab| {
        let _nginx = Nginx::plain(lab, "pages", Family::V4.server_at(1, 8080));
        let switch = Switch::start(lab, &one_server(""));
        let attempt = Connection::open(lab, Family::V4.virtual_at(81));
        let error = attempt.expect_err("nobody serves port 81");
        assert_eq!(error.kind(), std::io::ErrorKind::ConnectionRefused);
        // UDP to the virtual address, and raw noise.
        lab.client
            .enter(|| {
                let socket = std::net::UdpSocket::bind("10.1.0.10:0").unwrap();
                for len in [0usize, 1, 19, 20, 1_000] {
                    socket
                        .send_to(&vec![0xa5; len], Family::V4.virtual_at(80))
                        .unwrap();
                }
            })
            .unwrap();
        let mut connection = Connection::to(lab, Family::V4.virtual_at(80));
        assert_eq!(connection.ask("GET", "a.example", "/").unwrap().status, 200);
        assert!(switch.status()["drops"].as_object().is_some());
    });
}

#[test]
fn noise_on_the_wire_is_counted_and_the_next_client_is_served() {
    in_a_lab(|lab| {
        let _nginx = Nginx::plain(lab, "pages", Family::V4.server_at(1, 8080));
        let switch = Switch::start(lab, &one_server(""));
        let before = switch.count("rx_packets");
        // Raw IPv4 packets of protocol 6 with seeded bytes as their "TCP".
        let sent = lab
            .client
            .enter(|| {
                let kind = socket2::Type::RAW;
                let socket =
                    socket2::Socket::new(socket2::Domain::IPV4, kind, Some(6.into())).unwrap();
                let to: std::net::SocketAddr = "10.1.0.3:0".parse().unwrap();
                let mut sent = 0;
                for seed in 0..500u64 {
                    let len = (seed as usize * 7) % 200;
                    let mut bytes = fairlead_testkit::stream::bytes(seed, 0, len);
                    if seed % 2 == 0 && len >= 4 {
                        bytes[2..4].copy_from_slice(&80u16.to_be_bytes());
                    }
                    sent += u64::from(socket.send_to(&bytes, &to.into()).is_ok());
                }
                sent
            })
            .unwrap();
        let until = Instant::now() + PATIENCE;
        while switch.count("rx_packets") < before + sent && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(20));
        }
        let dropped: u64 = switch.status()["drops"]
            .as_object()
            .unwrap()
            .values()
            .map(|count| count.as_u64().unwrap())
            .sum();
        assert!(
            dropped >= sent,
            "{dropped} of {sent} were counted: {}",
            switch.status()
        );
        let mut connection = Connection::to(lab, Family::V4.virtual_at(80));
        assert_eq!(connection.ask("GET", "a.example", "/").unwrap().status, 200);
        assert_eq!(switch.count("accepted"), 1);
    });
}

#[test]
fn a_stray_segment_of_no_connection_is_reset() {
    in_a_lab(|lab| {
        let _nginx = Nginx::plain(lab, "pages", Family::V4.server_at(1, 8080));
        let mut switch = Switch::start(lab, &one_server(""));
        let mut connection = Connection::to(lab, Family::V4.virtual_at(80));
        assert_eq!(connection.ask("GET", "a.example", "/").unwrap().status, 200);
        // A switch that was killed, and whose part in the kernel was taken down, knows its
        // connections no more; its successor must not leave the client hanging.
        switch.signal(fairlead_netns::Signal::Kill);
        assert_eq!(switch.wait_for_end(), None);
        let mut down = lab.switch.command(&binary().to_string_lossy());
        let down = down.args(["down", "--instance", "e2e"]).output().unwrap();
        assert!(down.status.success(), "{down:?}");
        let _next = Switch::start(lab, &one_server(""));
        let mut buffer = [0; 100];
        let outcome = connection
            .stream
            .write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
            .and_then(|()| connection.stream.read(&mut buffer));
        match outcome {
            Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset),
            Ok(count) => panic!("{count} bytes of answer on a connection that is gone"),
        }
    });
}

fn one_server(extra: &str) -> String {
    web_service("snat", extra, "", |family| match family {
        Family::V4 => vec![family.server_at(1, 8080)],
        Family::V6 => Vec::new(),
    })
}
