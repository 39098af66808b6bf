//! Fairlead against HAProxy: same client, same server, same machine, in turn.
//!
//! Three hosts (namespaces): `wrk` on the client, nginx on the server, and between them the
//! switch's host with Fairlead, HAProxy as shipped, and HAProxy with large buffers and pooled
//! server connections, all running all the time. "Direct" is plain forwarding to the server. Every
//! cell is measured in alternation; the medians and their ratios count.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use fairlead_netns::{Host, Running, World};
use serde_json::{Value, json};

/// Who is measured, and where the client finds it.
const TARGETS: [(&str, &str); 4] = [
    ("fairlead", "10.1.0.3:80"),
    ("haproxy", "10.1.0.1:8080"),
    ("haproxy-tuned", "10.1.0.1:8081"),
    ("direct", "10.2.0.1:8081"),
];

const SIZES: [(&str, usize); 3] = [("1KiB", 1 << 10), ("64KiB", 64 << 10), ("1MiB", 1 << 20)];

/// How much is measured, and of which way to forward packets.
#[derive(Clone, Debug)]
pub(crate) struct Effort {
    /// The word for `[fastpath] mode`.
    pub(crate) mode: String,
    /// Alternations; the median counts.
    pub(crate) rounds: usize,
    /// Seconds of each measurement.
    pub(crate) seconds: u32,
    /// Connections of the client.
    pub(crate) connections: u32,
}

struct Testbed {
    client: Host,
    _world: World,
    _processes: Vec<Running>,
    folder: PathBuf,
}

impl Drop for Testbed {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.folder);
    }
}

fn nginx_configuration(folder: &Path) -> String {
    let at = folder.display();
    let paths: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
        .iter()
        .map(|kind| format!("{kind}_temp_path {at}/{kind};\n"))
        .collect();
    format!(
        "daemon off;\nmaster_process off;\npid {at}/nginx.pid;\n\
         error_log {at}/nginx.log;\nworker_rlimit_nofile 12000;\n\
         events {{ worker_connections 8192; }}\nhttp {{\n{paths}access_log off;\nsendfile on;\n\
         tcp_nopush on;\nkeepalive_requests 100000000;\nopen_file_cache max=100;\n\
         server {{ listen 10.2.0.1:8081 backlog=16384; root {at}/files; }}\n}}\n"
    )
}

fn haproxy_configuration(tuned: bool) -> String {
    let (global, reuse, bind) = if tuned {
        (
            "tune.bufsize 131072\n",
            "http-reuse always\n",
            "10.1.0.1:8081",
        )
    } else {
        ("", "", "10.1.0.1:8080")
    };
    format!(
        "global\nmaxconn 8000\n{global}defaults\nmode http\ntimeout connect 5s\n\
         timeout client 60s\ntimeout server 60s\n{reuse}listen web\nbind {bind}\n\
         server one 10.2.0.1:8081\n"
    )
}

fn fairlead_configuration(mode: &str) -> String {
    FAIRLEAD_CONFIGURATION.replace("mode = \"engine\"", &format!("mode = \"{mode}\""))
}

const FAIRLEAD_CONFIGURATION: &str = r#"
[instance]
name = "bench"

[fastpath]
mode = "engine"
device = "fairlead0"
snat = "100.64.0.0/24"

[[service]]
name = "web"
listen = "10.1.0.3:80"
protocol = "http"
source = "snat"

[[service.route]]
pool = "pages"

[[pool]]
name = "pages"
balance = "round-robin"
server = [{ address = "10.2.0.1:8081" }]
"#;

impl Testbed {
    fn new(fairlead: &Path, mode: &str) -> Result<Self> {
        for program in ["nginx", "haproxy", "wrk", "curl"] {
            ensure!(
                fairlead_netns::program(program).is_some(),
                "{program} is missing: sudo apt-get install nginx-light haproxy wrk curl"
            );
        }
        let folder = std::env::temp_dir().join(format!("fairlead-bench-{}", std::process::id()));
        fs::create_dir_all(folder.join("files"))?;
        for (name, bytes) in SIZES {
            fs::write(folder.join("files").join(name), vec![b'x'; bytes])?;
        }
        let mut world = World::new()?;
        let client = world.host("client")?;
        let switch = world.host("switch")?;
        let servers = world.host("servers")?;
        world.link((&client, &["10.1.0.2/24"]), (&switch, &["10.1.0.1/24"]))?;
        world.link((&switch, &["10.2.0.254/24"]), (&servers, &["10.2.0.1/24"]))?;
        client.route("10.1.0.3/32", "10.1.0.1")?;
        client.route("10.2.0.0/24", "10.1.0.1")?;
        servers.route("default", "10.2.0.254")?;
        switch.sysctl("net.ipv4.ip_forward", "1")?;
        // Many short connections from one client address.
        for host in [&client, &switch] {
            host.sysctl("net.ipv4.ip_local_port_range", "1024 65535")?;
            host.sysctl("net.ipv4.tcp_tw_reuse", "1")?;
        }
        fairlead_netns::raise_open_files(65_536)?;
        let mut testbed = Self {
            client,
            _world: world,
            _processes: Vec::new(),
            folder: folder.clone(),
        };
        let write = |name: &str, text: &str| -> Result<PathBuf> {
            let path = folder.join(name);
            fs::write(&path, text)?;
            Ok(path)
        };
        let nginx = write("nginx.conf", &nginx_configuration(&folder))?;
        let fair = write("fairlead.toml", &fairlead_configuration(mode))?;
        let log =
            |name: &str| -> Result<Stdio> { Ok(Stdio::from(fs::File::create(folder.join(name))?)) };
        let mut command = servers.command("nginx");
        command
            .arg("-p")
            .arg(&folder)
            .arg("-c")
            .arg(&nginx)
            .stderr(log("nginx.err")?);
        testbed._processes.push(servers.start(&mut command)?);
        for tuned in [false, true] {
            let name = match tuned {
                true => "haproxy-tuned.cfg",
                false => "haproxy.cfg",
            };
            let path = write(name, &haproxy_configuration(tuned))?;
            let mut command = switch.command("haproxy");
            command
                .arg("-db")
                .arg("-f")
                .arg(path)
                .stderr(log("haproxy.err")?);
            command.stdout(Stdio::null());
            testbed._processes.push(switch.start(&mut command)?);
        }
        let mut command = switch.command(&fairlead.display().to_string());
        command
            .args(["serve", "--config"])
            .arg(fair)
            .stderr(log("fairlead.err")?);
        command.stdout(Stdio::null());
        testbed._processes.push(switch.start(&mut command)?);
        for (name, address) in TARGETS {
            testbed.wait_for(name, address)?;
        }
        Ok(testbed)
    }

    fn wait_for(&self, name: &str, address: &str) -> Result<()> {
        let until = Instant::now() + Duration::from_secs(15);
        while Instant::now() < until {
            let mut curl = self.client.command("curl");
            curl.args(["-s", "-m", "2", "-o", "/dev/null", "-w", "%{http_code}"]);
            let output = curl.arg(format!("http://{address}/1KiB")).output()?;
            if output.stdout == b"200" {
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(200));
        }
        let log = fs::read_to_string(self.folder.join("fairlead.err")).unwrap_or_default();
        bail!("{name} at {address} does not answer; fairlead's log:\n{log}")
    }

    /// One measurement: requests a second, p99 latency in ms, errors.
    fn measure(&self, address: &str, size: &str, close: bool, effort: &Effort) -> Result<Sample> {
        let mut wrk = self.client.command("wrk");
        wrk.args(["-t", "1", "--latency", "--timeout", "5s"]);
        wrk.arg("-c").arg(effort.connections.to_string());
        wrk.arg("-d").arg(format!("{}s", effort.seconds));
        if close {
            wrk.args(["-H", "Connection: close"]);
        }
        let output = wrk.arg(format!("http://{address}/{size}")).output()?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        Sample::parse(&text).with_context(|| format!("reading what wrk printed:\n{text}"))
    }
}

#[derive(Clone, Copy, Debug)]
struct Sample {
    rate: f64,
    p99_ms: f64,
    errors: u64,
}

impl Sample {
    fn parse(text: &str) -> Option<Self> {
        let word = |line: &str, at: usize| line.split_whitespace().nth(at).map(str::to_owned);
        let find = |start: &str| {
            text.lines()
                .find(|line| line.trim_start().starts_with(start))
        };
        let rate = word(find("Requests/sec:")?, 1)?.parse().ok()?;
        let p99_ms = milliseconds(&word(find("99%")?, 1)?)?;
        // "Socket errors: connect 0, read 0, write 0, timeout 0"
        let errors = find("Socket errors").map_or(0, |line| {
            line.split([' ', ','])
                .filter_map(|word| word.parse::<u64>().ok())
                .sum()
        });
        let refused = find("Non-2xx")
            .and_then(|line| word(line, 4)?.parse().ok())
            .unwrap_or(0);
        Some(Self {
            rate,
            p99_ms,
            errors: errors + refused,
        })
    }
}

/// `wrk` writes 812.00us, 3.02ms, 1.20s.
fn milliseconds(text: &str) -> Option<f64> {
    let (number, unit) = text.split_at(text.find(|sign: char| sign.is_ascii_alphabetic())?);
    let number: f64 = number.parse().ok()?;
    match unit {
        "us" => Some(number / 1_000.0),
        "ms" => Some(number),
        "s" => Some(number * 1_000.0),
        "m" => Some(number * 60_000.0),
        _ => None,
    }
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(0.0)
}

/// Measures every cell; prints a table as it grows.
pub(crate) fn run(fairlead: &Path, effort: &Effort) -> Result<Value> {
    let testbed = Testbed::new(fairlead, &effort.mode)?;
    println!(
        "{:<28} {:>14} {:>14} {:>14} {:>14} {:>9} {:>9} {:>9}",
        format!("requests/s (p99 ms), {}", effort.mode),
        "fairlead",
        "haproxy",
        "tuned",
        "direct",
        "/haproxy",
        "/tuned",
        "/direct"
    );
    let mut cells = Vec::new();
    for close in [true, false] {
        for (size, _) in SIZES {
            let mut samples: Vec<Vec<Sample>> = vec![Vec::new(); TARGETS.len()];
            for _ in 0..effort.rounds {
                for (at, (_, address)) in TARGETS.iter().enumerate() {
                    samples[at].push(testbed.measure(address, size, close, effort)?);
                }
            }
            let kind = if close {
                "connection per request"
            } else {
                "keep-alive"
            };
            cells.push(cell(kind, size, &samples));
        }
    }
    Ok(json!({
        "mode": effort.mode,
        "rounds": effort.rounds,
        "seconds": effort.seconds,
        "client_connections": effort.connections,
        "haproxy": version("haproxy", "-v"),
        "nginx": version("nginx", "-v"),
        "cells": cells,
    }))
}

fn cell(kind: &str, size: &str, samples: &[Vec<Sample>]) -> Value {
    let rates: Vec<f64> = samples
        .iter()
        .map(|all| median(all.iter().map(|sample| sample.rate)))
        .collect();
    let p99: Vec<f64> = samples
        .iter()
        .map(|all| median(all.iter().map(|sample| sample.p99_ms)))
        .collect();
    // Ratios within a round, so that a machine that slows down slows both.
    let ratio = |other: usize| {
        let pairs = samples[0].iter().zip(&samples[other]);
        median(pairs.map(|(ours, theirs)| ours.rate / theirs.rate))
    };
    let text: Vec<String> = rates
        .iter()
        .zip(&p99)
        .map(|(rate, p99)| format!("{rate:.0} ({p99:.1})"))
        .collect();
    println!(
        "{:<28} {:>14} {:>14} {:>14} {:>14} {:>9.2} {:>9.2} {:>9.2}",
        format!("{kind}, {size}"),
        text[0],
        text[1],
        text[2],
        text[3],
        ratio(1),
        ratio(2),
        ratio(3),
    );
    let targets: serde_json::Map<String, Value> = TARGETS
        .iter()
        .enumerate()
        .map(|(at, (name, _))| {
            let all = &samples[at];
            let value = json!({
                "requests_per_second": rates[at].round(),
                "p99_ms": p99[at],
                "all_rates": all.iter().map(|sample| sample.rate.round()).collect::<Vec<_>>(),
                "errors": all.iter().map(|sample| sample.errors).sum::<u64>(),
            });
            ((*name).to_owned(), value)
        })
        .collect();
    json!({
        "kind": kind,
        "size": size,
        "targets": targets,
        "ratio_to_haproxy": ratio(1),
        "ratio_to_haproxy_tuned": ratio(2),
        "ratio_to_direct": ratio(3),
    })
}

fn version(program: &str, flag: &str) -> Option<String> {
    let path = fairlead_netns::program(program)?;
    let output = std::process::Command::new(path).arg(flag).output().ok()?;
    let text = [output.stdout, output.stderr].concat();
    Some(String::from_utf8_lossy(&text).lines().next()?.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_wrk_prints_is_read() {
        let text = "  Latency Distribution\n     50%  812.00us\n     99%    3.02ms\n  \
                    9000 requests in 1.00s, 10MB read\n  \
                    Socket errors: connect 1, read 2, write 3, timeout 4\n  \
                    Non-2xx or 3xx responses: 5\nRequests/sec:   9000.50\n";
        let sample = Sample::parse(text).unwrap();
        assert_eq!(
            (sample.rate, sample.p99_ms, sample.errors),
            (9000.5, 3.02, 15)
        );
        assert!(Sample::parse("nothing").is_none());
    }
}
