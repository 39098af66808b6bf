//! Coming and going: devices and routes, draining, crashes, what is said when something is missing.

use std::collections::BTreeMap;
use std::process::{Output, Stdio};
use std::time::{Duration, Instant};

use fairlead_netns::{Host, Signal};
use fairlead_testkit::stream::Digest;

use crate::harness::{
    Connection, Family, Lab, Nginx, Origin, PATIENCE, PREFIX, Switch, binary, in_a_lab,
    raw_service, web, web_service,
};

/// Everything about a host's devices, addresses, routes, rules and settings.
fn network(host: &Host) -> String {
    let mut all = String::new();
    for arguments in [
        &["-brief", "link"][..],
        &["-4", "addr", "show", "scope", "global"],
        &["-4", "route", "show", "table", "all"],
        &["-6", "route", "show", "table", "all"],
        &["-4", "rule"],
        &["-6", "rule"],
    ] {
        let output = host.command("ip").args(arguments).output().unwrap();
        all.push_str(&format!(
            "ip {arguments:?}\n{}\n",
            String::from_utf8_lossy(&output.stdout)
        ));
    }
    // Numbers of packets and remaining lifetimes change by themselves; nothing of them is shown.
    let output = host
        .command("sh")
        .args(["-c", "grep -r . /proc/sys/net/ipv4/conf /proc/sys/net/ipv6/conf /proc/sys/net/ipv4/ip_forward 2>/dev/null | grep -v stable_secret | sort"])
        .output()
        .unwrap();
    all.push_str(&String::from_utf8_lossy(&output.stdout));
    all
}

fn fairlead(host: &Host, arguments: &[&str]) -> Output {
    let mut command = host.command(&binary().to_string_lossy());
    command
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .expect("running fairlead")
}

fn config() -> String {
    web_service("transparent", "", "", |family| {
        vec![family.server_at(1, 8080)]
    })
}

fn serves(lab: &Lab, family: Family) {
    let mut connection = Connection::to(lab, family.virtual_at(80));
    let response = connection.ask("GET", "a.example", "/").unwrap();
    assert_eq!((response.status, response.server()), (200, "pages"));
}

fn pages(lab: &Lab) -> [Nginx; 2] {
    // One name for both families, so that answers compare.
    [Family::V4, Family::V6].map(|family| {
        let address = family.server_at(1, 8080);
        let block = format!(
            "server {{ listen {address}; location / {{ add_header X-Server pages always; return 200 pages; }} }}"
        );
        Nginx::start(lab, &format!("pages-{family:?}"), &block, &[address])
    })
}

#[test]
fn device_routes_and_rules_are_gone_when_it_ends() {
    in_a_lab(|lab| {
        let _pages = pages(lab);
        let before = network(&lab.switch);
        let mut switch = Switch::start(lab, &config());
        assert!(network(&lab.switch).contains("fairlead0"));
        serves(lab, Family::V4);
        serves(lab, Family::V6);
        switch.signal(Signal::Terminate);
        assert_eq!(switch.wait_for_end(), Some(0), "{}", switch.log());
        assert_eq!(network(&lab.switch), before);
    });
}

#[test]
fn what_a_crash_leaves_is_cleared_at_the_next_start() {
    in_a_lab(|lab| {
        let _pages = pages(lab);
        let before = network(&lab.switch);
        let mut switch = Switch::start(lab, &config());
        serves(lab, Family::V4);
        switch.signal(Signal::Kill);
        switch.wait_for_end();
        drop(switch);
        let mut switch = Switch::start(lab, &config());
        serves(lab, Family::V4);
        serves(lab, Family::V6);
        switch.signal(Signal::Terminate);
        assert_eq!(switch.wait_for_end(), Some(0), "{}", switch.log());
        assert_eq!(network(&lab.switch), before);
    });
}

#[test]
fn draining_lets_a_transfer_finish_and_takes_nothing_new() {
    in_a_lab(|lab| {
        let seen = std::sync::Arc::default();
        let _origin = Origin::start(
            lab,
            Family::V4.server_at(1, 8080),
            web("pages", false, seen),
        );
        let text = format!("{PREFIX}{}", config())
            .replace("drain_timeout = \"1s\"", "drain_timeout = \"600s\"");
        let mut switch = Switch::start_with(lab, &text);
        let mut idle = Connection::to(lab, Family::V4.virtual_at(80));
        let len = 20 << 20;
        let mut busy = Connection::to(lab, Family::V4.virtual_at(80));
        busy.send(format!(
            "GET /bytes/{len} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"
        ))
        .unwrap();
        switch.record(busy.local(), "decided");
        switch.signal(Signal::Terminate);
        switch.wait_for_log("SIGTERM");
        assert!(
            switch.is_alive(),
            "a transfer is under way: {}",
            switch.log()
        );
        // New connections are refused at the door, whether by silence or by a reset.
        let attempt = lab
            .client
            .enter(|| {
                std::net::TcpStream::connect_timeout(
                    &Family::V4.virtual_at(80),
                    Duration::from_millis(800),
                )
            })
            .unwrap();
        assert!(attempt.is_err(), "a draining switch took a connection");
        // One whose handshake was complete but that had said nothing yet is new, too.
        let _ = idle.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
        let response = busy.response(false).unwrap();
        assert_eq!(response.digest, Digest::of_stream(len, len));
        drop((busy, idle));
        let end = switch.wait_for_end();
        assert_eq!(end, Some(0), "once nothing lives: {}", switch.log());
    });
}

#[test]
fn draining_ends_at_its_limit_and_a_second_signal_ends_it_at_once() {
    in_a_lab(|lab| {
        let _pages = pages(lab);
        for (limit, steps) in [("1s", 1), ("600s", 2)] {
            let text = format!("{PREFIX}{}", config()).replace(
                "drain_timeout = \"1s\"",
                &format!("drain_timeout = \"{limit}\""),
            );
            let mut switch = Switch::start_with(lab, &text);
            let mut held = Connection::to(lab, Family::V4.virtual_at(80));
            assert_eq!(held.ask("GET", "a.example", "/").unwrap().status, 200);
            for step in ["no new connections", "resetting 1 live"]
                .iter()
                .take(steps)
            {
                switch.signal(Signal::Terminate);
                switch.wait_for_log(&format!("SIGTERM: {step}"));
            }
            let code = switch.wait_for_end();
            assert!(
                code.is_some(),
                "it ended by itself, not by a signal: {}",
                switch.log()
            );
            // Both ends are reset.
            let outcome = held.rest();
            assert!(outcome.is_err() || outcome.unwrap().is_empty());
        }
    });
}

#[test]
fn a_connection_that_is_idle_or_half_closed_for_too_long_is_reset_at_both_ends() {
    in_a_lab(|lab| {
        let (resets, seen) = std::sync::mpsc::channel();
        let resets = std::sync::Mutex::new(resets);
        let _origin = Origin::start(lab, Family::V4.server_at(1, 7), move |mut stream| {
            // To the end of the client's stream if there is one, then some time for a reset.
            let mut reset = std::io::copy(&mut stream, &mut std::io::sink()).is_err();
            let until = Instant::now() + PATIENCE;
            while !reset && Instant::now() < until {
                reset = stream.take_error()?.is_some();
                std::thread::sleep(Duration::from_millis(10));
            }
            // The test may have given up waiting.
            let _ = resets.lock().unwrap().send(reset);
            Ok(())
        });
        let config = raw_service("transparent", |family| family.server_at(1, 7));
        for (key, end) in [
            ("idle_timeout", "idle_timeout"),
            ("max_lifetime", "max_lifetime"),
            ("half_closed_timeout", "half_closed_timeout"),
        ] {
            let config = config.replace("protocol =", &format!("{key} = \"1s\"\nprotocol ="));
            let switch = Switch::start(lab, &config);
            let begun = Instant::now();
            let mut connection = Connection::to(lab, Family::V4.virtual_at(7));
            connection.send("x").unwrap();
            match key {
                "half_closed_timeout" => connection.finish_sending().unwrap(),
                // Activity saves nobody.
                "max_lifetime" => {
                    for _ in 0..8 {
                        std::thread::sleep(Duration::from_millis(100));
                        connection.send("x").unwrap();
                    }
                }
                _ => {}
            }
            let error = connection.rest().expect_err("a reset");
            assert_eq!(
                error.kind(),
                std::io::ErrorKind::ConnectionReset,
                "{key}: the client is reset"
            );
            let took = begun.elapsed().as_millis();
            assert!((900..30_000).contains(&took), "{key}: after {took} ms");
            assert_eq!(
                seen.recv_timeout(PATIENCE),
                Ok(true),
                "{key}: the server, too"
            );
            assert_eq!(switch.record(connection.local(), "closed").text("end"), end);
        }
    });
}

#[test]
fn without_forwarding_it_says_what_it_needs() {
    in_a_lab(|lab| {
        lab.switch.sysctl("net.ipv4.ip_forward", "0").unwrap();
        let mut switch = Switch::launch(lab, &format!("{PREFIX}{}", config()));
        switch.wait_for_log("net.ipv4.ip_forward");
        switch.signal(Signal::Terminate);
        assert!(switch.wait_for_end().is_some());
        // It did not change the setting itself.
        let output = lab
            .switch
            .command("cat")
            .arg("/proc/sys/net/ipv4/ip_forward")
            .output()
            .unwrap();
        assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), "0");
    });
}

#[test]
fn a_second_switch_on_the_same_device_does_not_start() {
    in_a_lab(|lab| {
        let _pages = pages(lab);
        let _switch = Switch::start(lab, &config());
        let path = lab.file(
            "second.toml",
            format!("{PREFIX}{}", config()).replace("9090", "9091"),
        );
        let output = fairlead(&lab.switch, &["serve", "--config", &path.to_string_lossy()]);
        assert!(!output.status.success());
        assert!(!output.stderr.is_empty(), "and it says why");
        serves(lab, Family::V4);
    });
}

#[test]
fn a_broken_configuration_never_starts_and_is_pointed_at() {
    in_a_lab(|lab| {
        let text =
            format!("{PREFIX}{}", config()).replace("protocol = \"http\"", "protocol = \"htpp\"");
        let line = text.lines().position(|line| line.contains("htpp")).unwrap() + 1;
        let path = lab.file("broken.toml", &text);
        for command in ["check", "serve"] {
            let output = fairlead(&lab.switch, &[command, "--config", &path.to_string_lossy()]);
            assert!(!output.status.success(), "{command}");
            let said = String::from_utf8_lossy(&output.stderr).into_owned()
                + &String::from_utf8_lossy(&output.stdout);
            assert!(said.contains(&format!(":{line}:")), "{command}: {said}");
            assert!(
                said.contains("\"http\""),
                "{command} says what to write: {said}"
            );
        }
        assert!(!network(&lab.switch).contains("fairlead0"));
        let good = lab.file("good.toml", format!("{PREFIX}{}", config()));
        let output = fairlead(&lab.switch, &["check", "--config", &good.to_string_lossy()]);
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
    });
}

#[test]
fn status_and_metrics_agree_with_what_happened() {
    in_a_lab(|lab| {
        let _pages = pages(lab);
        let switch = Switch::start(lab, &config());
        for _ in 0..7 {
            serves(lab, Family::V4);
        }
        switch.wait_for_count("live", 0);
        assert_eq!(switch.count("spliced"), 7);
        let metrics = switch.page("/metrics").unwrap();
        assert!(metrics.trim_end().ends_with("# EOF"), "OpenMetrics ends so");
        let spliced = metrics
            .lines()
            .find(|line| line.starts_with("fairlead_") && line.contains("spliced"));
        assert!(
            spliced.is_some_and(|line| line.ends_with(" 7")),
            "{metrics}"
        );
        let output = fairlead(&lab.switch, &["status", "--json"]);
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
        let status: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(status["spliced"], 7);
        let output = fairlead(&lab.switch, &["status"]);
        assert!(output.status.success());
        assert!(
            String::from_utf8_lossy(&output.stdout).contains("pages") || !output.stdout.is_empty()
        );
        let version = fairlead(&lab.switch, &["--version"]);
        assert!(String::from_utf8_lossy(&version.stdout).starts_with("fairlead "));
    });
}

#[test]
fn memory_and_time_are_bounded_under_a_flood_of_syns() {
    in_a_lab(|lab| {
        let _pages = pages(lab);
        let switch = Switch::start(lab, &config());
        serves(lab, Family::V4);
        let before = resident(switch.id());
        // How many of them get through depends on how the machine shares its time.
        let until = Instant::now() + PATIENCE;
        let mut sent = flood(lab, 60_000);
        while switch.count("syns") < 30_000 {
            assert!(Instant::now() < until, "of {sent}: {}", switch.status());
            sent += flood(lab, 20_000);
        }
        assert_eq!(switch.count("setups"), 0);
        let after = resident(switch.id());
        let grown = |(mapping, now): (&String, &u64)| {
            let then = before.get(mapping).copied().unwrap_or(0);
            (*now > then).then(|| format!("{mapping}: {then} KiB, then {now} KiB"))
        };
        let all = |at: &BTreeMap<String, u64>| at.values().sum::<u64>();
        assert!(
            all(&after) <= all(&before) + 4_096,
            "{:#?}",
            after.iter().filter_map(grown).collect::<Vec<_>>()
        );
        serves(lab, Family::V4);
    });
}

/// What of a process's memory is there, KiB by mapping.
fn resident(process: u32) -> BTreeMap<String, u64> {
    let text = std::fs::read_to_string(format!("/proc/{process}/smaps")).unwrap();
    let (mut sizes, mut mapping) = (BTreeMap::new(), "");
    for line in text.lines() {
        let mut words = line.split_whitespace();
        match words.next() {
            Some("Rss:") => {
                let size = words.next().and_then(|word| word.parse().ok());
                sizes.insert(mapping.to_owned(), size.expect("a size"));
            }
            Some(word) if !word.ends_with(':') => mapping = line,
            _ => {}
        }
    }
    sizes
}

/// Sends SYNs from many made-up ports of the client, and returns how many left.
fn flood(lab: &Lab, count: u32) -> u64 {
    lab.client
        .enter(|| {
            let kind = socket2::Type::RAW;
            let socket = socket2::Socket::new(socket2::Domain::IPV4, kind, Some(6.into())).unwrap();
            let to: std::net::SocketAddr = "10.1.0.3:0".parse().unwrap();
            let from = fairlead_testkit::endpoint("10.1.0.10:1");
            let mut sent = 0;
            for number in 0..count {
                let port = 1_024 + (number % 60_000) as u16;
                let segment = syn(from.addr, port, number);
                sent += u64::from(socket.send_to(&segment, &to.into()).is_ok());
                // The device queues 500 packets; a faster flood is lost before it is seen.
                if number % 100 == 0 {
                    std::thread::sleep(Duration::from_millis(1));
                }
            }
            sent
        })
        .unwrap()
}

/// A SYN from `port` to port 80 of the virtual address, with its checksum.
fn syn(from: fairlead_base::Address, port: u16, seq: u32) -> [u8; 20] {
    let mut bytes = [0; 20];
    bytes[0..2].copy_from_slice(&port.to_be_bytes());
    bytes[2..4].copy_from_slice(&80u16.to_be_bytes());
    bytes[4..8].copy_from_slice(&seq.to_be_bytes());
    bytes[12] = 5 << 4;
    bytes[13] = 2;
    bytes[14..16].copy_from_slice(&1_000u16.to_be_bytes());
    // Pseudo-header and segment, summed by 16 bits (RFC 1071).
    let mut sum = 6u32 + 20;
    for pair in from
        .v4_octets()
        .chunks(2)
        .chain([10, 1, 0, 3].chunks(2))
        .chain(bytes.chunks(2))
    {
        sum += u32::from(u16::from_be_bytes([pair[0], pair[1]]));
    }
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    bytes[16..18].copy_from_slice(&(!(sum as u16)).to_be_bytes());
    bytes
}
