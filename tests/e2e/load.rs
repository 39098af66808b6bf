//! Many at once.

use std::process::Stdio;
use std::time::Duration;

use crate::harness::{Connection, Family, Lab, Nginx, Switch, in_a_lab, rounds, web_service};

/// Runs wrk and returns what it says.
fn wrk(lab: &Lab, arguments: &[&str]) -> String {
    let mut command = lab.client.command("wrk");
    let output = command
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .expect("running wrk");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{text}");
    assert!(!text.contains("Socket errors"), "{text}");
    assert!(!text.contains("Non-2xx"), "{text}");
    text
}

fn requests(text: &str) -> u64 {
    let line = text
        .lines()
        .find(|line| line.contains(" requests in "))
        .expect("wrk's count");
    line.split_whitespace()
        .next()
        .and_then(|word| word.parse().ok())
        .expect("a number")
}

#[test]
fn wrk_finds_no_error_with_kept_connections_or_one_a_request() {
    in_a_lab(|lab| {
        let _servers = Family::BOTH
            .map(|family| Nginx::plain(lab, &format!("s{family:?}"), family.server_at(1, 8080)));
        for source in ["snat", "transparent"] {
            let switch = Switch::start(
                lab,
                &web_service(source, "", "", |family| vec![family.server_at(1, 8080)]),
            );
            let duration = format!("{}s", rounds(2, 20));
            let mut wanted = 0;
            for family in Family::BOTH {
                let url = format!("http://{}/", family.virtual_at(80));
                let kept = wrk(lab, &["-t1", "-c50", "-d", &duration, &url]);
                assert!(requests(&kept) > 500, "{kept}");
                let each = wrk(
                    lab,
                    &[
                        "-t1",
                        "-c50",
                        "-d",
                        &duration,
                        "-H",
                        "Connection: close",
                        &url,
                    ],
                );
                assert!(requests(&each) > 100, "{each}");
                wanted += 50 + requests(&each);
            }
            assert!(
                switch.count("spliced") >= wanted,
                "{} of {wanted}",
                switch.count("spliced")
            );
            switch.wait_for_count("live", 0, Duration::from_secs(20));
        }
    });
}

#[test]
fn five_thousand_connections_at_once_are_all_served() {
    in_a_lab(|lab| {
        const COUNT: usize = 5_000;
        let _nginx = Nginx::plain(lab, "pages", Family::V4.server_at(1, 8080));
        for source in ["snat", "transparent"] {
            let switch = Switch::start(
                lab,
                &web_service(source, "", "", |family| match family {
                    Family::V4 => vec![family.server_at(1, 8080)],
                    Family::V6 => Vec::new(),
                }),
            );
            let streams = lab
                .client
                .enter(|| {
                    let one = |_| std::net::TcpStream::connect(Family::V4.virtual_at(80));
                    (0..COUNT).map(one).collect::<std::io::Result<Vec<_>>>()
                })
                .unwrap()
                .unwrap();
            let mut held: Vec<Connection> = streams
                .into_iter()
                .map(|stream| Connection::over(stream).unwrap())
                .collect();
            // All ask before any is answered, then all once more.
            for round in 1..=2 {
                for connection in &mut held {
                    connection
                        .send("GET / HTTP/1.1\r\nHost: a.example\r\n\r\n")
                        .unwrap();
                }
                for connection in &mut held {
                    let response = connection.response(false).unwrap();
                    assert_eq!((response.status, response.text()), (200, "pages\n"));
                    assert_eq!(response.header("x-asked"), Some(round.to_string().as_str()));
                }
            }
            assert_eq!(switch.count("live"), COUNT as u64);
            assert_eq!(switch.count("spliced"), COUNT as u64);
            drop(held);
            switch.wait_for_count("live", 0, Duration::from_secs(60));
        }
    });
}
