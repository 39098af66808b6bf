//! Responses kept by a route's cache.

use std::io::Write;
use std::net::SocketAddr;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use fairlead_netns::trial::skip;
use fairlead_netns::{Running, Signal};

use crate::haproxy::is_installed;
use crate::harness::{
    Connection, Family, Lab, Nginx, Origin, SetAtEnd, Switch, binary, request_heads, web,
    with_sockets_of_cookies,
};
use crate::http::curl;
use crate::reload::reload;
use crate::restart::{in_kernel, kill};

pub(crate) fn services(cache: &str) -> String {
    format!(
        r#"
[[service]]
name = "web"
listen = ["10.1.0.3:80", "[fd01:3::3]:80"]
protocol = "http"
[[service.route]]
pool = "one"
cache = {{ size = "16MiB", max_object = "4MiB"{cache} }}

[[pool]]
name = "one"
server = [{{ address = "10.2.0.1:8001" }}, {{ address = "[fd02::1]:8001" }}]
"#
    )
}

/// The same for IPv4 alone.
pub(crate) fn of_v4(services: &str) -> String {
    let services = services.replace(", { address = \"[fd02::1]:8001\" }", "");
    services.replace("[\"10.1.0.3:80\", \"[fd01:3::3]:80\"]", "\"10.1.0.3:80\"")
}

/// A server whose answers may be kept for as long as the path says (`/60/…`), and that counts them.
pub(crate) fn counting(lab: &Lab, body_bytes: usize) -> ([Origin; 2], Arc<AtomicU64>) {
    let asked = Arc::new(AtomicU64::new(0));
    let start = |family: Family| {
        let asked = Arc::clone(&asked);
        Origin::start(lab, family.server_at(1, 8001), move |mut stream| {
            for head in request_heads(&stream)? {
                let head = head?;
                let number = asked.fetch_add(1, Ordering::SeqCst) + 1;
                let age = head.split('/').nth(1).unwrap_or("0").to_owned();
                let text = format!("{number} ").repeat(body_bytes / 2 + 1);
                let answer = format!(
                    "HTTP/1.1 200 OK\r\nCache-Control: max-age={age}\r\nContent-Length: \
                     {body_bytes}\r\n\r\n{}",
                    &text[..body_bytes]
                );
                stream.write_all(answer.as_bytes())?;
            }
            Ok(())
        })
    };
    (Family::BOTH.map(start), asked)
}

fn front(switch: &Switch, name: &str) -> u64 {
    switch.status()["front"][name].as_u64().unwrap_or(0)
}

#[test]
fn responses_are_fetched_once_and_sent_many_times() {
    with_sockets_of_cookies(|lab| {
        let (_origins, asked) = counting(lab, 300_000);
        let switch = Switch::start_in_kernel(lab, "", &services(""));
        let mut whole: Option<Vec<u8>> = None;
        for round in 0..5 {
            for family in Family::BOTH {
                let mut connection = Connection::to(lab, family.virtual_at(80));
                for _ in 0..3 {
                    let answer = connection.ask("GET", "x", "/60/a").unwrap();
                    assert_eq!(answer.status, 200);
                    let status = answer.header("cache-status").unwrap();
                    let is_hit = status.starts_with("fairlead; hit");
                    assert_eq!(is_hit, whole.is_some(), "{round} {status}");
                    let first = whole.get_or_insert_with(|| answer.body.clone());
                    assert!(*first == answer.body, "other bytes");
                }
            }
        }
        assert_eq!(asked.load(Ordering::SeqCst), 1);
        switch.wait_for_status("served", |status| status["front"]["front_served"] == 30);
        assert_eq!(front(&switch, "front_accepted"), 10);
    });
}

#[test]
fn what_cannot_be_kept_is_spliced_or_relayed() {
    with_sockets_of_cookies(|lab| {
        let (_origins, asked) = counting(lab, 1_000);
        let switch = Switch::start_in_kernel(lab, "", &services(""));
        // A connection that begins with a POST never meets the cache.
        let mut connection = Connection::to(lab, Family::V4.virtual_at(80));
        let post = "POST /60/x HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n";
        connection.send(post).unwrap();
        assert_eq!(
            connection.response(false).unwrap().header("cache-status"),
            None
        );
        switch.wait_for_count("spliced", 1);
        assert_eq!(front(&switch, "front_accepted"), 0);
        // Responses that are stale at once are fetched each time.
        let mut connection = Connection::to(lab, Family::V4.virtual_at(80));
        let before = asked.load(Ordering::SeqCst);
        for _ in 0..3 {
            let answer = connection.ask("GET", "x", "/0/y").unwrap();
            assert!(!answer.header("cache-status").unwrap().contains("; hit"));
        }
        assert_eq!(asked.load(Ordering::SeqCst), before + 3);
    });
}

pub(crate) fn fairlead(lab: &Lab, arguments: &[&str]) -> String {
    let mut command = lab.switch.command(binary().to_str().unwrap());
    let output = command
        .args(arguments)
        .args(["--instance", "e2e"])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{arguments:?}: {said}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn purges_are_seen_by_the_next_request() {
    with_sockets_of_cookies(|lab| {
        let (_origins, asked) = counting(lab, 100);
        let switch = Switch::start_in_kernel(lab, "", &services(""));
        let mut connection = Connection::to(lab, Family::V4.virtual_at(80));
        let mut ask = |path: &str| connection.ask("GET", "x.example", path).unwrap().body;
        let url = "http://x.example/60/a";
        for purge in [
            &["--url", url][..],
            &["--prefix", "http://x.example/60/"],
            &["--prefix", "http://x.example/"],
            &["--all"],
            &["--soft", "--url", url],
        ] {
            let kept = ask("/60/a");
            assert_eq!(ask("/60/a"), kept, "{purge:?}");
            let said = fairlead(lab, &["cache", "explain", url]);
            assert!(
                said.contains("1 response") && said.contains("200 fresh"),
                "{said}"
            );
            let before = asked.load(Ordering::SeqCst);
            let order = [&["cache", "purge"], purge].concat();
            assert_eq!(fairlead(lab, &order), "purged in 1 cache\n");
            assert_ne!(ask("/60/a"), kept, "{purge:?}");
            assert_eq!(asked.load(Ordering::SeqCst), before + 1);
        }
        // Another URL is not touched by it.
        let kept = ask("/60/b");
        fairlead(lab, &["cache", "purge", "--url", url]);
        assert_eq!(ask("/60/b"), kept);
        let stat = fairlead(lab, &["cache", "stat", "--json"]);
        // Of three requests a round the last one misses; the first of all does, and that for `b`.
        for count in ["\"hits\": 10", "\"misses\": 6", "\"validations\": 1"] {
            assert!(stat.contains(count), "{stat}");
        }
        drop(switch);
    });
}

#[test]
fn many_clients_that_miss_at_once_cause_one_fetch() {
    with_sockets_of_cookies(|lab| {
        let (_origins, asked) = counting(lab, 20_000);
        let switch = Switch::start_in_kernel(lab, "", &services(""));
        let threads: Vec<_> = (0..100)
            .map(|_| Connection::to(lab, Family::V4.virtual_at(80)))
            .map(|mut connection| {
                std::thread::spawn(move || connection.ask("GET", "x", "/60/herd").unwrap().body)
            })
            .collect();
        let bodies: Vec<_> = threads.into_iter().map(|one| one.join().unwrap()).collect();
        assert!(
            bodies
                .iter()
                .all(|body| *body == bodies[0] && body.len() == 20_000)
        );
        assert_eq!(asked.load(Ordering::SeqCst), 1);
        drop(switch);
    });
}

#[test]
fn nginx_files_are_kept_validated_and_sent_in_parts() {
    with_sockets_of_cookies(|lab| {
        let folder = lab.folder().join("www");
        std::fs::create_dir(&folder).unwrap();
        let text: Vec<u8> = (0..2_000_000_u32).map(|at| (at * 7 / 3) as u8).collect();
        std::fs::write(folder.join("file"), &text).unwrap();
        let block = format!(
            "server {{ listen 10.2.0.1:8001; root {}; expires 1s; }}",
            folder.display()
        );
        let nginx = Nginx::start(lab, "files", &block, &[Family::V4.server_at(1, 8001)]);
        let services = of_v4(&services(""));
        let switch = Switch::start_in_kernel(lab, "", &services);
        let file = lab.folder().join("got");
        let url = "http://10.1.0.3/file";
        let ask = |more: &[&str]| {
            let mut all = vec!["--output", file.to_str().unwrap(), "--write-out"];
            all.push("%{http_code} %header{cache-status}");
            all.extend(more);
            all.push(url);
            (curl(lab, &all), std::fs::read(&file).unwrap())
        };
        for expected in ["fwd=uri-miss", "hit"] {
            let (said, got) = ask(&[]);
            assert!(
                said.starts_with("200 ") && said.contains(expected),
                "{said}"
            );
            assert!(got == text);
        }
        let (said, got) = ask(&["--range", "1000000-1000099"]);
        assert!(said.starts_with("206 ") && said.contains("; hit"), "{said}");
        assert!(got == text[1_000_000..1_000_100]);
        std::thread::sleep(Duration::from_millis(2_100));
        let (said, got) = ask(&[]);
        assert!(
            said.contains("fwd=stale") && said.contains("304") && got == text,
            "{said}"
        );
        // Without its server, what is stale is an error.
        nginx.stop();
        std::thread::sleep(Duration::from_millis(2_100));
        let (said, _) = ask(&[]);
        assert!(
            said.starts_with("503 ") || said.starts_with("502 "),
            "{said}"
        );
        drop(switch);
    });
}

/// Files of stored responses of the lab's instance.
fn files(lab: &Lab) -> usize {
    let script = "ls /run/fairlead /dev/shm/fairlead 2>/dev/null | \
                  grep -c \"^e2e\\.$(stat -Lc %i /proc/self/ns/net)\\.cache-\"";
    let mut command = lab.switch.command("sh");
    let output = command.args(["-c", script]).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    text.trim().parse().expect("a number of files")
}

#[test]
fn what_is_kept_outlives_reloads_and_kills() {
    with_sockets_of_cookies(|lab| {
        let (_origins, asked) = counting(lab, 300_000);
        let configuration = in_kernel(&services(""));
        let mut switch = Switch::start_with(lab, &configuration);
        let ask = |path: &str| {
            let mut connection = Connection::to(lab, Family::V4.virtual_at(80));
            let answer = connection.ask("GET", "x.example", path).unwrap();
            let status = answer.header("cache-status").unwrap();
            (answer.body.clone(), status.starts_with("fairlead; hit"))
        };
        let kept = ask("/600/a");
        let purged = ask("/600/b");
        assert!(!kept.1 && !purged.1);
        fairlead(lab, &["cache", "purge", "--url", "http://x.example/600/b"]);
        reload(lab, &mut switch, &configuration, 2);
        assert_eq!(ask("/600/a"), (kept.0.clone(), true), "after a reload");
        let stat = fairlead(lab, &["cache", "stat", "--json"]);
        assert!(stat.contains("\"restored\": 1"), "{stat}");
        assert_eq!(asked.load(Ordering::SeqCst), 2);
        kill(switch);
        assert_eq!(files(lab), 2, "blocks and journal");
        let mut switch = Switch::start_with(lab, &configuration);
        assert_eq!(ask("/600/a"), (kept.0, true), "after a kill");
        assert_eq!(asked.load(Ordering::SeqCst), 2);
        // What was purged has not come back.
        assert!(!ask("/600/b").1);
        // Another key means something else: nothing is taken over.
        let other = configuration.replace("\"4MiB\"", "\"4MiB\", key = [\"path\"]");
        reload(lab, &mut switch, &other, 2);
        assert!(!ask("/600/a").1, "of another key");
        // A stop leaves nothing.
        switch.signal(Signal::Terminate);
        assert_eq!(switch.wait_for_end(), Some(0));
        assert_eq!(files(lab), 0);
    });
}

#[test]
fn listed_clients_purge_by_request() {
    with_sockets_of_cookies(|lab| {
        let (_origins, asked) = counting(lab, 100);
        let listed = ", purge_from = [\"10.1.0.0/16\"]";
        let switch = Switch::start_in_kernel(lab, "", &services(listed));
        let over = |family: Family| Connection::to(lab, family.virtual_at(80));
        let mut connection = over(Family::V4);
        let mut ask = || connection.ask("GET", "x.example", "/60/a").unwrap().body;
        let kept = ask();
        assert_eq!(ask(), kept);
        // A connection that begins with it.
        let purged = over(Family::V4).ask("PURGE", "x.example", "/60/a").unwrap();
        assert_eq!(purged.status, 200);
        let next = ask();
        assert_ne!(next, kept);
        // Of another family, which is not in the list.
        let refused = over(Family::V6).ask("PURGE", "x.example", "/60/a").unwrap();
        assert_eq!(refused.status, 403);
        assert_eq!(ask(), next);
        assert_eq!(asked.load(Ordering::SeqCst), 2);
        let said = fairlead(lab, &["cache", "advise"]);
        assert!(
            said.contains("4 requests") && said.contains("* 16 MiB"),
            "{said}"
        );
        drop(switch);
    });
}

/// A server whose pages all change at once: each has its path and the version, over and over. It
/// dies now and then, also within a body.
struct Changing {
    version: Arc<AtomicU64>,
    is_dead: Arc<AtomicBool>,
    _origin: Origin,
}

const VERSIONED_BYTES: [usize; 4] = [300, 5_000, 40_000, 500_000];

fn page(path: &str, version: u64) -> String {
    let number: usize = path
        .rsplit('/')
        .next()
        .and_then(|text| text.parse().ok())
        .unwrap();
    let bytes = VERSIONED_BYTES[number % 4];
    let unit = format!("{path}:{version};");
    unit.repeat(bytes / unit.len() + 1)
}

impl Changing {
    fn start(lab: &Lab) -> Self {
        let (version, is_dead) = (
            Arc::new(AtomicU64::new(1)),
            Arc::new(AtomicBool::new(false)),
        );
        let (now, dead) = (Arc::clone(&version), Arc::clone(&is_dead));
        let origin = Origin::start(lab, Family::V4.server_at(1, 8001), move |mut stream| {
            for head in request_heads(&stream)? {
                let head = head?;
                let path = head.split(' ').nth(1).unwrap_or("/0").to_owned();
                let body = page(&path, now.load(Ordering::SeqCst));
                let head = format!(
                    "HTTP/1.1 200 OK\r\nCache-Control: max-age=600\r\nxkey: all\r\n\
                     Content-Length: {}\r\n\r\n",
                    body.len()
                );
                stream.write_all(head.as_bytes())?;
                let (first, rest) = body.split_at(body.len() / 2);
                stream.write_all(first.as_bytes())?;
                if dead.load(Ordering::SeqCst) {
                    return Ok(());
                }
                stream.write_all(rest.as_bytes())?;
            }
            Ok(())
        });
        Self {
            version,
            is_dead,
            _origin: origin,
        }
    }
}

/// What turned out not to be for the cache costs no more than without one.
#[test]
fn connections_that_begin_with_what_is_not_kept_are_spliced() {
    with_sockets_of_cookies(|lab| {
        let servers = Family::BOTH.map(|family| family.server_at(1, 8001));
        // Neither lifetime nor validator.
        let _web = servers.map(|at| Origin::start(lab, at, web("one", false, Arc::default())));
        let switch = Switch::start_in_kernel(lab, "", &services(""));
        let first = |path: &str| {
            let mut connection = Connection::to(lab, Family::V4.virtual_at(80));
            let answer = connection.ask("GET", "x.example", path).unwrap();
            assert_eq!(answer.server(), "one");
            answer.header("cache-status").is_none()
        };
        assert!(!first("/a"));
        let until = std::time::Instant::now() + Duration::from_secs(60);
        while !first("/a") {
            assert!(std::time::Instant::now() < until, "never spliced");
            std::thread::sleep(Duration::from_millis(50));
        }
        assert!(!first("/b"), "another URL");
        switch.wait_for_status("bypassed", |status| status["cache_bypassed"] == 1);
        drop(switch);
        let switch = Switch::start_in_kernel(lab, "", &services(", first = \"always\""));
        for _ in 0..20 {
            assert!(!first("/a"), "all of them");
            std::thread::sleep(Duration::from_millis(50));
        }
        assert_eq!(switch.count("cache_bypassed"), 0);
    });
}

/// Clients read pages that change, are purged, and whose server dies: every response is whole and
/// of its path, and none is older than the last purge. Seconds: `FAIRLEAD_SOAK_SECONDS`.
#[test]
fn no_byte_is_of_another_page_or_older_than_a_purge() {
    with_sockets_of_cookies(|lab| {
        let seconds = std::env::var("FAIRLEAD_SOAK_SECONDS").ok();
        let seconds = seconds.and_then(|text| text.parse().ok()).unwrap_or(6);
        let server = Changing::start(lab);
        let services = of_v4(&services(""));
        let services = services
            .replace("\"16MiB\"", "\"2MiB\"")
            .replace("\"4MiB\"", "\"1MiB\"");
        let switch = Switch::start_with(lab, &in_kernel(&services));
        let (end, floor) = (AtomicBool::new(false), AtomicU64::new(0));
        let (right, failed) = (AtomicU64::new(0), AtomicU64::new(0));
        let read = |first: usize| {
            let mut connection = Connection::to(lab, Family::V4.virtual_at(80));
            for number in (first..).step_by(7) {
                if end.load(Ordering::SeqCst) {
                    return;
                }
                let path = format!("/page/{}", number % 23);
                let oldest = floor.load(Ordering::SeqCst);
                match connection.ask("GET", "x.example", &path) {
                    Ok(answer) if answer.status == 200 => {
                        let text = String::from_utf8(answer.body).unwrap();
                        let version = text.split([':', ';']).nth(1).unwrap().parse().unwrap();
                        assert!(text == page(&path, version), "{path}: other bytes");
                        assert!(
                            version >= oldest,
                            "{path}: {version}, purged up to {oldest}"
                        );
                        right.fetch_add(1, Ordering::SeqCst);
                    }
                    _ => {
                        failed.fetch_add(1, Ordering::SeqCst);
                        connection = Connection::to(lab, Family::V4.virtual_at(80));
                    }
                }
            }
        };
        std::thread::scope(|scope| {
            let over = SetAtEnd(&end);
            let read = &read;
            for first in 0..4 {
                scope.spawn(move || read(first));
            }
            let until = std::time::Instant::now() + Duration::from_secs(seconds);
            for round in 0u64.. {
                if std::time::Instant::now() > until {
                    break;
                }
                server.is_dead.store(round % 5 == 4, Ordering::SeqCst);
                std::thread::sleep(Duration::from_millis(100));
                let version = server.version.fetch_add(1, Ordering::SeqCst) + 1;
                let what = [&["--all"][..], &["--tag", "all"]][round as usize % 2];
                let what = match round % 3 {
                    0 => &["--prefix", "http://x.example/page/"][..],
                    _ => what,
                };
                fairlead(lab, &[&["cache", "purge"], what].concat());
                floor.store(version, Ordering::SeqCst);
            }
            drop(over);
        });
        let (right, failed) = (right.into_inner(), failed.into_inner());
        assert!(right > 20 * seconds, "{right} responses, {failed} failures");
        drop(switch);
    });
}

/// HAProxy on the clients' host, which sends requests of all its clients over whichever connection
/// is free.
fn sharing_proxy(lab: &Lab, listen: SocketAddr) -> Running {
    let to = Family::V4.virtual_at(80);
    let text = format!(
        "global\n  maxconn 1000\ndefaults\n  mode http\n  timeout connect 2s\n  \
         timeout client 10s\n  timeout server 10s\n  http-reuse always\nlisten web\n  \
         bind {listen}\n  server one {to}\n"
    );
    let file = lab.file("sharing.cfg", text);
    let mut command = lab.client.command("haproxy");
    command.arg("-db").arg("-f").arg(file);
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    lab.client.start(&mut command).expect("starting haproxy")
}

#[test]
fn a_proxy_that_shares_connections_gets_the_right_answers() {
    let test = "content_cache::a_proxy_that_shares_connections_gets_the_right_answers";
    if !is_installed() {
        return skip(test, "haproxy is not installed");
    }
    with_sockets_of_cookies(|lab| {
        let _server = Changing::start(lab);
        let services = of_v4(&services(""));
        let switch = Switch::start_in_kernel(lab, "", &services);
        let listen = SocketAddr::new(Family::V4.client(), 8_088);
        let mut proxy = sharing_proxy(lab, listen);
        let until = std::time::Instant::now() + Duration::from_secs(10);
        while Connection::open(lab, listen).is_err() {
            assert!(proxy.is_alive() && std::time::Instant::now() < until);
            std::thread::sleep(Duration::from_millis(20));
        }
        std::thread::scope(|scope| {
            for first in 0..6 {
                let mut connection = Connection::to(lab, listen);
                scope.spawn(move || {
                    for number in (first..300).step_by(6) {
                        // Half of them are the same for all, and half are asked for once.
                        let path = format!(
                            "/page/{}",
                            if number % 2 == 0 { number % 8 } else { number }
                        );
                        let answer = connection.ask("GET", "x.example", &path).unwrap();
                        assert_eq!(answer.status, 200, "{path}");
                        assert!(
                            answer.body == page(&path, 1).into_bytes(),
                            "{path}: other bytes"
                        );
                    }
                });
            }
        });
        assert!(
            front(&switch, "front_accepted") < 300,
            "connections are shared"
        );
        drop(switch);
    });
}
