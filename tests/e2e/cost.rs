//! What health checks cost. Ignored: it prints a figure of the machine that it runs on.
//! `cargo test -p fairlead-e2e -- --ignored --nocapture cost`

use std::time::Duration;

use crate::harness::{Family, Lab, Nginx, PREFIX, Switch, in_a_lab, web_service};

/// Servers, each of which is checked once a second.
const SERVERS: usize = 1_000;
const SECONDS: u64 = 20;

/// CPU time of a process so far, of all its threads, seconds.
fn cpu_seconds(process: u32) -> f64 {
    let threads = format!("/proc/{process}/task");
    let threads = std::fs::read_dir(threads).expect("its threads");
    let of = |thread: std::io::Result<std::fs::DirEntry>| {
        let path = thread.ok()?.path().join("schedstat");
        let text = std::fs::read_to_string(path).ok()?;
        text.split(' ').next()?.parse::<f64>().ok()
    };
    threads.filter_map(of).sum::<f64>() / 1e9
}

/// A switch with all servers, checked or not: its CPU time per second, and how many checks passed.
fn share(lab: &Lab, check: &str) -> (f64, u64) {
    let pool = format!("probe_interval = \"1h\"\n{check}");
    let services = web_service("snat", "", &pool, |family| match family {
        Family::V4 => (0..SERVERS)
            .map(|at| {
                format!("10.9.{}.{}:8080", at / 250, at % 250 + 1)
                    .parse()
                    .unwrap()
            })
            .collect(),
        Family::V6 => Vec::new(),
    });
    let switch = Switch::start_with(lab, &format!("{PREFIX}{services}"));
    let begun = || checks(&switch);
    std::thread::sleep(Duration::from_secs(3));
    let (before, passed) = (cpu_seconds(switch.id()), begun());
    std::thread::sleep(Duration::from_secs(SECONDS));
    let spent = cpu_seconds(switch.id()) - before;
    (spent / SECONDS as f64, begun() - passed)
}

/// Checks that have passed so far.
fn checks(switch: &Switch) -> u64 {
    let metrics = switch.page("/metrics").expect("metrics");
    let of = metrics
        .lines()
        .filter(|line| line.starts_with("fairlead_server_checks_passed_total"));
    of.filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok())
        .sum()
}

#[test]
#[ignore = "prints a figure of the machine that it runs on"]
fn a_thousand_servers_checked_each_second() {
    in_a_lab(|lab| {
        lab.servers
            .ip("route add local 10.9.0.0/16 dev lo\n")
            .expect("addresses of the servers");
        lab.switch
            .route("10.9.0.0/16", "10.2.0.1")
            .expect("a route to them");
        let server = "server { listen 0.0.0.0:8080; location / { return 200 \"ok\\n\"; } }";
        let at = Family::V4.server_at(1, 8080);
        let _server = Nginx::start(lab, "all", server, &[at]);
        let check = "check = { type = \"http\", interval = \"1s\", timeout = \"900ms\" }";
        let (idle, none) = share(lab, "");
        let (checking, passed) = share(lab, check);
        println!(
            "{SERVERS} servers, {SECONDS} s: {:.2} % of a core without checks, {:.2} % with; \
             {} checks a second passed",
            idle * 100.0,
            checking * 100.0,
            passed / SECONDS
        );
        assert_eq!(none, 0);
        assert!(passed > 0, "no check passed");
    });
}
