//! Responses kept by a route's cache.

use std::io::{BufRead, BufReader, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use fairlead_netns::Signal;

use crate::harness::{
    Connection, Family, Lab, Nginx, Origin, Switch, binary, with_sockets_of_cookies,
};
use crate::http::curl;
use crate::reload::reload;
use crate::restart::{in_kernel, kill};

fn services(cache: &str) -> String {
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

/// A server whose answers may be kept for as long as the path says (`/60/…`), and that counts them.
fn counting(lab: &Lab, body_bytes: usize) -> ([Origin; 2], Arc<AtomicU64>) {
    let asked = Arc::new(AtomicU64::new(0));
    let start = |family: Family| {
        let asked = Arc::clone(&asked);
        Origin::start(lab, family.server_at(1, 8001), move |mut stream| {
            let mut reader = BufReader::new(stream.try_clone()?);
            loop {
                let mut head = String::new();
                while !head.ends_with("\r\n\r\n") {
                    if reader.read_line(&mut head)? == 0 {
                        return Ok(());
                    }
                }
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

fn fairlead(lab: &Lab, arguments: &[&str]) -> String {
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
        let services = services("").replace(", { address = \"[fd02::1]:8001\" }", "");
        let services = services.replace("[\"10.1.0.3:80\", \"[fd01:3::3]:80\"]", "\"10.1.0.3:80\"");
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
