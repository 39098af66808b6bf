//! Requests that the kernel answers from a cache, and connections that the front takes over in the
//! middle.

use std::io::ErrorKind;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use fairlead_netio::FaultPlan;
use fairlead_netns::Host;
use fairlead_netns::trial::skip;

use crate::chromium;
use crate::content_cache::{counting, fairlead, of_v4, services};
use crate::harness::{Connection, Family, Lab, Response, Switch, seeds, with_sockets_of_cookies};
use crate::http::curl;
use crate::load::{requests, spare_ports, wrk};
use crate::loss::BadLine;
use crate::reload::reload;
use crate::restart::{in_kernel, kill};

/// One segment.
const SHORT: usize = 1_000;
/// Two.
const LONG: usize = 2_300;

fn with_hits() -> String {
    services(", kernel = true")
}

/// What the kernel program has counted.
fn kernel(switch: &Switch, name: &str) -> u64 {
    let status = switch.status();
    let count = status["kernel"][name].as_u64();
    count.unwrap_or_else(|| panic!("no {name}: {status}"))
}

fn is_from_kernel(answer: &Response) -> bool {
    let status = answer.header("cache-status").unwrap_or("");
    status == "fairlead; hit; detail=kernel"
}

/// Asks until the kernel answers, with a connection each time.
fn heat_from(host: &Host, family: Family, path: &str) -> Response {
    heat_for(host, family, "x", path)
}

fn heat_for(host: &Host, family: Family, site: &str, path: &str) -> Response {
    let until = Instant::now() + Duration::from_secs(20);
    loop {
        let mut connection = Connection::open_from(host, family.virtual_at(80)).unwrap();
        let answer = connection.ask("GET", site, path).unwrap();
        if is_from_kernel(&answer) {
            return answer;
        }
        assert!(Instant::now() < until, "never hot: {answer:?}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn heat(lab: &Lab, family: Family, path: &str) -> Response {
    heat_from(&lab.client, family, path)
}

#[test]
fn hits_and_the_front_share_one_connection() {
    with_sockets_of_cookies(|lab| {
        for bytes in [SHORT, LONG] {
            let (_origins, asked) = counting(lab, bytes);
            let switch = Switch::start_in_kernel(lab, "", &with_hits());
            for family in Family::BOTH {
                let hot = heat(lab, family, "/60/hot");
                let body = hot.body.clone();
                assert_eq!(body.len(), bytes);
                let age = hot.header("age").unwrap();
                assert!(age.len() == 10 && age.parse::<u32>().unwrap() < 60, "{age}");
                let (given, hits) = (kernel(&switch, "hits_given"), kernel(&switch, "hits"));
                let mut connection = Connection::to(lab, family.virtual_at(80));
                for _ in 0..20 {
                    let answer = connection.ask("GET", "x", "/60/hot").unwrap();
                    assert!(is_from_kernel(&answer), "{answer:?}");
                    assert!(answer.body == body, "other bytes");
                }
                assert_eq!(kernel(&switch, "hits"), hits + 20);
                // Another object, on the same connection: the front's from now on.
                let other = format!("/60/other-{family:?}");
                let answer = connection.ask("GET", "x", &other).unwrap();
                assert_eq!((answer.status, answer.body.len()), (200, bytes));
                assert!(!is_from_kernel(&answer));
                for _ in 0..3 {
                    let answer = connection.ask("GET", "x", "/60/hot").unwrap();
                    assert!(
                        !is_from_kernel(&answer) && answer.body == body,
                        "{answer:?}"
                    );
                }
                assert_eq!(kernel(&switch, "hits_given"), given + 1);
            }
            assert!(asked.load(Ordering::SeqCst) <= 4, "fetched once each");
            assert_eq!(kernel(&switch, "hits_reset"), 0);
        }
    });
}

#[test]
fn whatever_asks_for_more_is_the_fronts() {
    with_sockets_of_cookies(|lab| {
        let (_origins, _) = counting(lab, SHORT);
        let switch = Switch::start_in_kernel(lab, "", &with_hits());
        let host = "GET /60/hot HTTP/1.1\r\nHost: x\r\n";
        for family in Family::BOTH {
            let hot = heat(lab, family, "/60/hot");
            for (request, status, is_head) in [
                (format!("{host}Range: bytes=2-5\r\n\r\n"), 206, false),
                (format!("{host}If-Range: \"a\"\r\n\r\n"), 200, false),
                (
                    format!("{host}Cache-Control: max-age=9\r\n\r\n"),
                    200,
                    false,
                ),
                (format!("{host}Pragma: x\r\n\r\n"), 200, false),
                (format!("{host}Authorization: x\r\n\r\n"), 200, false),
                (format!("{host}Expect: 100-continue\r\n\r\n"), 200, false),
                (host.replace("GET", "HEAD") + "\r\n", 200, true),
                (host.replace("1.1", "1.0") + "\r\n", 200, false),
                (
                    format!("{host}X: {}\r\n\r\n", "y".repeat(1_600)),
                    200,
                    false,
                ),
            ] {
                let given = kernel(&switch, "hits_given");
                let mut connection = Connection::to(lab, family.virtual_at(80));
                assert!(is_from_kernel(
                    &connection.ask("GET", "x", "/60/hot").unwrap()
                ));
                connection.send(&request).unwrap();
                let mut answer = connection.response(is_head).unwrap();
                if answer.status == 100 {
                    answer = connection.response(is_head).unwrap();
                }
                assert_eq!(answer.status, status, "{request} {answer:?}");
                assert!(!is_from_kernel(&answer), "{request}");
                match status {
                    206 => assert_eq!(answer.body, hot.body[2..6]),
                    // Some are relayed, and the server counts.
                    _ => assert!(is_head || answer.body.len() == hot.body.len()),
                }
                assert_eq!(kernel(&switch, "hits_given"), given + 1, "{request}");
            }
            // A head in two pieces, and two requests in one.
            let mut connection = Connection::to(lab, family.virtual_at(80));
            assert!(is_from_kernel(
                &connection.ask("GET", "x", "/60/hot").unwrap()
            ));
            connection.send(host).unwrap();
            std::thread::sleep(Duration::from_millis(30));
            connection.send("\r\n").unwrap();
            assert_eq!(connection.response(false).unwrap().body, hot.body);
            let mut connection = Connection::to(lab, family.virtual_at(80));
            assert!(is_from_kernel(
                &connection.ask("GET", "x", "/60/hot").unwrap()
            ));
            connection.send(format!("{host}\r\n{host}\r\n")).unwrap();
            for _ in 0..2 {
                assert_eq!(connection.response(false).unwrap().body, hot.body);
            }
        }
    });
}

#[test]
fn long_and_rare_responses_stay_with_the_front() {
    with_sockets_of_cookies(|lab| {
        let (_origins, _) = counting(lab, 3_000);
        let switch = Switch::start_in_kernel(lab, "", &with_hits());
        for family in Family::BOTH {
            let mut connection = Connection::to(lab, family.virtual_at(80));
            for round in 0..12 {
                let answer = connection.ask("GET", "x", "/60/long").unwrap();
                assert!(!is_from_kernel(&answer) && answer.body.len() == 3_000);
                let rare = format!("/60/{family:?}-{}", round / 3);
                assert!(!is_from_kernel(&connection.ask("GET", "x", &rare).unwrap()));
            }
        }
        assert_eq!(kernel(&switch, "hits"), 0);
    });
}

#[test]
fn connections_end_as_their_clients_want() {
    with_sockets_of_cookies(|lab| {
        let (_origins, _) = counting(lab, LONG);
        let switch = Switch::start_in_kernel(lab, "", &with_hits());
        for family in Family::BOTH {
            let hot = heat(lab, family, "/60/hot");
            // The client wants no other answer.
            let mut connection = Connection::to(lab, family.virtual_at(80));
            let close = "GET /60/hot HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
            connection.send(close).unwrap();
            let answer = connection.response(false).unwrap();
            assert!(is_from_kernel(&answer) && answer.body == hot.body);
            assert_eq!(answer.header("connection"), Some("close"));
            assert_eq!(connection.rest().unwrap(), b"", "the end of the stream");
            // The client closes, and is answered with a FIN.
            let mut connection = Connection::to(lab, family.virtual_at(80));
            let answer = connection.ask("GET", "x", "/60/hot").unwrap();
            assert_eq!(answer.header("connection"), Some("keep-alive"));
            connection.finish_sending().unwrap();
            assert_eq!(connection.rest().unwrap(), b"");
            // The client resets; its port begins anew.
            let connection = Connection::to(lab, family.virtual_at(80));
            connection.abort();
            // Programs that others have written.
            let url = match family {
                Family::V4 => "http://10.1.0.3/60/hot",
                Family::V6 => "http://[fd01:3::3]/60/hot",
            };
            let hits = kernel(&switch, "hits");
            let host = ["-H", "Host: x"];
            let got = curl(lab, &[&host[..], &["-s", url, url, url]].concat());
            assert_eq!(got.len(), 3 * LONG);
            assert_eq!(kernel(&switch, "hits"), hits + 3);
        }
        switch.wait_for_status("no connections", |status| {
            status["front"]["front_clients"] == 0
        });
    });
}

#[test]
fn every_byte_is_right_where_packets_are_lost() {
    with_sockets_of_cookies(|lab| {
        let plan = FaultPlan {
            loss_per_million: 50_000,
            duplicate_per_million: 10_000,
            reorder_per_million: 20_000,
            corrupt_per_million: 2_000,
            overtaken_by_max: 5,
            hold_max: Duration::from_millis(5),
        };
        for seed in seeds(1, 10) {
            let line = BadLine::start_with(lab, seed, plan);
            for bytes in [SHORT, LONG] {
                let (_origins, _) = counting(lab, bytes);
                let switch = Switch::start_in_kernel(lab, "", &with_hits());
                for family in Family::BOTH {
                    let hot = heat_from(&line.far, family, "/60/hot").body;
                    let first = kernel(&switch, "hits");
                    for round in 0..8 {
                        let to = family.virtual_at(80);
                        let mut connection = Connection::open_from(&line.far, to).unwrap();
                        for number in 0..25 {
                            let answer = connection.ask("GET", "x", "/60/hot").unwrap();
                            assert!(answer.body == hot, "{seed} {family:?} {round} {number}");
                        }
                        let other = format!("/60/{family:?}-{round}");
                        let answer = connection.ask("GET", "x", &other).unwrap();
                        assert_eq!(answer.body.len(), bytes);
                        assert!(connection.ask("GET", "x", "/60/hot").unwrap().body == hot);
                    }
                    assert!(kernel(&switch, "hits") >= first + 150);
                }
                assert!(kernel(&switch, "hits_repeated") > 0, "nothing was lost");
                assert_eq!(kernel(&switch, "hits_reset"), 0);
            }
            let counts = line.end();
            assert!(counts.lost > 20, "{counts:?}");
        }
    });
}

#[test]
fn a_purge_is_seen_by_the_next_packet() {
    with_sockets_of_cookies(|lab| {
        let (_origins, _) = counting(lab, SHORT);
        let switch = Switch::start_in_kernel(lab, "", &with_hits());
        let target = "http://x/60/hot";
        for orders in [
            &["cache", "purge", "--url", target][..],
            &["cache", "purge", "--prefix", "http://x/60/"],
            &["cache", "purge", "--all", "--soft"],
        ] {
            let before = heat(lab, Family::V4, "/60/hot").body;
            let mut connection = Connection::to(lab, Family::V4.virtual_at(80));
            assert!(is_from_kernel(
                &connection.ask("GET", "x", "/60/hot").unwrap()
            ));
            fairlead(lab, orders);
            let answer = connection.ask("GET", "x", "/60/hot").unwrap();
            assert!(!is_from_kernel(&answer), "{orders:?} {answer:?}");
            assert!(answer.body != before, "{orders:?}: it was purged");
        }
        // A method that changes something: its own client must see that.
        let before = heat(lab, Family::V4, "/60/hot").body;
        let mut reader = Connection::to(lab, Family::V4.virtual_at(80));
        assert!(is_from_kernel(&reader.ask("GET", "x", "/60/hot").unwrap()));
        let mut writer = Connection::to(lab, Family::V4.virtual_at(80));
        writer.ask("GET", "x", "/60/other").unwrap();
        let post = "POST /60/hot HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n";
        writer.send(post).unwrap();
        assert_eq!(writer.response(false).unwrap().status, 200);
        let answer = reader.ask("GET", "x", "/60/hot").unwrap();
        assert!(!is_from_kernel(&answer) && answer.body != before);
        drop(switch);
    });
}

#[test]
fn fresh_responses_outlive_the_process_and_no_stale_ones() {
    with_sockets_of_cookies(|lab| {
        let (_origins, _) = counting(lab, SHORT);
        let configuration = in_kernel(&of_v4(&with_hits()));
        let switch = Switch::start_with(lab, &configuration);
        let hot = heat(lab, Family::V4, "/8/hot");
        let begun = Instant::now();
        let mut connection = Connection::to(lab, Family::V4.virtual_at(80));
        assert!(is_from_kernel(
            &connection.ask("GET", "x", "/8/hot").unwrap()
        ));
        kill(switch);
        let mut answered = 0;
        let until = begun + Duration::from_secs(3);
        while Instant::now() < until {
            let answer = connection.ask("GET", "x", "/8/hot").unwrap();
            assert!(is_from_kernel(&answer) && answer.body == hot.body);
            answered += 1;
            std::thread::sleep(Duration::from_millis(20));
        }
        assert!(answered > 50);
        std::thread::sleep((begun + Duration::from_secs(8)).duration_since(Instant::now()));
        // Nobody is there for what is stale; the next process has the connection.
        connection
            .send("GET /8/hot HTTP/1.1\r\nHost: x\r\n\r\n")
            .unwrap();
        let switch = Switch::start_with(lab, &configuration);
        let answer = connection.response(false).unwrap();
        assert!(
            !is_from_kernel(&answer) && answer.status == 200,
            "{answer:?}"
        );
        let answer = connection.ask("GET", "x", "/60/b").unwrap();
        assert_eq!(answer.body.len(), SHORT);
        drop(switch);
    });
}

#[test]
fn hits_are_counted_and_logged() {
    with_sockets_of_cookies(|lab| {
        let (_origins, _) = counting(lab, SHORT);
        let file = lab.file("access.log", "");
        let log = format!("access = \"all\"\ntarget = \"file:{}\"\n", file.display());
        let configuration = in_kernel(&with_hits()).replace("access = \"all\"\n", &log);
        let switch = Switch::start_with(lab, &configuration);
        heat(lab, Family::V4, "/60/hot");
        let before = switch.status();
        let mut connection = Connection::to(lab, Family::V4.virtual_at(80));
        for _ in 0..50 {
            assert!(is_from_kernel(
                &connection.ask("GET", "x", "/60/hot").unwrap()
            ));
        }
        let (name, number) = ("front_served", |status: &serde_json::Value| {
            status["front"]["front_served"].as_u64().unwrap()
        });
        switch.wait_for_status(name, |status| number(status) >= number(&before) + 50);
        let stat: serde_json::Value =
            serde_json::from_str(&fairlead(lab, &["cache", "stat", "--json"])).unwrap();
        assert!(stat[0]["kernel_hits"].as_u64().unwrap() >= 50, "{stat}");
        let port = format!("{}", connection.local().port());
        let until = Instant::now() + Duration::from_secs(10);
        let lines = || {
            let text = std::fs::read_to_string(&file).unwrap();
            let of_client = |line: &&str| line.contains(&port) && line.contains("/60/hot");
            text.lines().filter(of_client).count()
        };
        while lines() < 50 {
            assert!(
                Instant::now() < until,
                "{}",
                std::fs::read_to_string(&file).unwrap()
            );
            std::thread::sleep(Duration::from_millis(50));
        }
        assert_eq!(lines(), 50);
    });
}

/// A connection of each family that the kernel answers.
fn connections(lab: &Lab) -> [Connection; 2] {
    Family::BOTH.map(|family| {
        heat(lab, family, "/60/hot");
        let mut connection = Connection::to(lab, family.virtual_at(80));
        let answer = connection.ask("GET", "x", "/60/hot").unwrap();
        assert!(is_from_kernel(&answer), "{answer:?}");
        connection
    })
}

#[test]
fn the_front_has_the_connections_once_the_kernel_answers_no_more() {
    with_sockets_of_cookies(|lab| {
        let (_origins, _) = counting(lab, SHORT);
        let after = in_kernel(&services(""));
        for is_reload in [false, true] {
            let mut switch = Switch::start_with(lab, &in_kernel(&with_hits()));
            let connections = connections(lab);
            if is_reload {
                reload(lab, &mut switch, &after, 2);
            } else {
                kill(switch);
                switch = Switch::start_with(lab, &after);
            }
            for mut connection in connections {
                for path in ["/60/hot", "/60/b", "/60/hot"] {
                    let answer = connection.ask("GET", "x", path).unwrap();
                    assert!(!is_from_kernel(&answer), "{is_reload} {answer:?}");
                    assert_eq!((answer.status, answer.body.len()), (200, SHORT));
                }
            }
            let counts = ["hits", "hits_given", "hits_reset"].map(|name| kernel(&switch, name));
            assert_eq!(counts, [0, 2, 0], "{is_reload}");
        }
    });
}

/// The services without their cache, and so without a front.
fn without_cache(services: &str) -> String {
    let lines = services.lines().filter(|line| !line.starts_with("cache ="));
    lines.map(|line| format!("{line}\n")).collect()
}

#[test]
fn connections_without_a_front_are_reset() {
    with_sockets_of_cookies(|lab| {
        let (_origins, _) = counting(lab, SHORT);
        let v6 = services("")
            .replace("\"10.1.0.3:80\", ", "")
            .replace("{ address = \"10.2.0.1:8001\" }, ", "")
            .replace("\"web\"", "\"six\"")
            .replace("\"one\"", "\"of-six\"");
        let plain = without_cache(&with_hits());
        for (after, ends) in [
            (in_kernel(&plain), [true, true]),
            (in_kernel(&(of_v4(&plain) + &v6)), [true, false]),
        ] {
            let switch = Switch::start_with(lab, &in_kernel(&with_hits()));
            let connections = connections(lab);
            kill(switch);
            let switch = Switch::start_with(lab, &after);
            for (mut connection, ends) in connections.into_iter().zip(ends) {
                let answer = match ends {
                    true => connection.read(&mut [0]).map(|_| ()),
                    false => connection.ask("GET", "x", "/60/b").map(|_| ()),
                };
                let kind = answer.err().map(|error| error.kind());
                assert_eq!(kind, ends.then_some(ErrorKind::ConnectionReset), "{after}");
            }
            let reset = ends.into_iter().filter(|ends| *ends).count() as u64;
            assert_eq!(kernel(&switch, "hits_reset"), reset, "{after}");
            let said = format!("reset {reset} connections of an earlier run");
            assert!(switch.log().contains(&said), "{after}");
            for family in Family::BOTH {
                let mut connection = Connection::to(lab, family.virtual_at(80));
                let answer = connection.ask("GET", "x", "/60/b").unwrap();
                assert_eq!(answer.body.len(), SHORT, "{after}");
            }
        }
    });
}

#[test]
fn wrk_finds_no_error_in_what_the_kernel_answers() {
    with_sockets_of_cookies(|lab| {
        spare_ports(&lab.client);
        for (bytes, family, site) in [
            (SHORT, Family::V4, "10.1.0.3"),
            (LONG, Family::V6, "[fd01:3::3]"),
        ] {
            let url = format!("http://{site}/60/hot");
            let (_origins, _) = counting(lab, bytes);
            let switch = Switch::start_in_kernel(lab, "", &with_hits());
            for header in [None, Some("Connection: close")] {
                // Connections that begin before that are the front's, and stay there.
                heat_for(&lab.client, family, site, "/60/hot");
                let hits = kernel(&switch, "hits");
                let asked = requests(&wrk(lab, &switch, &url, header));
                let hits = kernel(&switch, "hits") - hits;
                assert!(asked > 500 && hits > asked / 2, "{hits} of {asked}");
            }
            assert_eq!(kernel(&switch, "hits_reset"), 0);
        }
    });
}

#[test]
fn chromium_is_answered_by_the_kernel_and_by_the_front() {
    let test = "kernel_hits::chromium_is_answered_by_the_kernel_and_by_the_front";
    if !chromium::is_installed() {
        return skip(test, "chromium is not installed");
    }
    with_sockets_of_cookies(|lab| {
        let asked = Arc::default();
        let _servers = [8001, 8002].map(|port| chromium::server(lab, port, &asked));
        let services = chromium::SERVICES.replace("\"always\" }", "\"always\", kernel = true }");
        let switch = Switch::start_in_kernel(lab, "", &services);
        let hot = ["/", "/script/1", "/script/2", "/image.svg"];
        for path in hot {
            heat_for(&lab.client, Family::V4, "10.1.0.3", path);
        }
        let hits = kernel(&switch, "hits");
        let page = chromium::load(lab, 1);
        let mut wanted: Vec<_> = (1..=12)
            .map(|number| {
                let sum = chromium::sum_of(&chromium::text_of(number));
                format!("<p>script-{number}={sum}</p>")
            })
            .collect();
        wanted.extend((1..=3).map(|number| format!("<p>api-{number}=api says /api/{number}</p>")));
        wanted.push("<p>image=123</p>".to_owned());
        for line in &wanted {
            assert!(page.contains(line), "no {line} in\n{page}");
        }
        // The page at least; a connection that has asked for a long script is the front's.
        assert!(kernel(&switch, "hits") > hits, "{}", switch.status());
        assert!(kernel(&switch, "hits_given") > 0, "{}", switch.status());
        assert_eq!(kernel(&switch, "hits_reset"), 0);
    });
}
