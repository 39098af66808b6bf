//! Connection handoff (docs/handoff.md): connections that become sockets of a web server on the
//! switch's own machine, beside proxies there and the server alone; and idle ones that outlive
//! restarts of it.

mod load;

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use fairlead_netns::{Host, Running, Signal, World, program};
use serde_json::{Map, Value, json};

use crate::table::{median, ratio, row};
use crate::testbed::wrk::{self, Load, Sample};

/// How much is measured.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Effort {
    /// Alternations; the median counts.
    pub(crate) rounds: usize,
    /// Seconds of each measurement.
    pub(crate) seconds: u32,
    /// Connections of the client.
    pub(crate) connections: u32,
    /// Restarts, and reloads, of the server.
    pub(crate) restarts: usize,
    /// Connections that sleep for the measurement of memory.
    pub(crate) sleepers: usize,
}

/// The server alone, and Fairlead's services without and with `sleep`.
const ALONE: &str = "10.1.0.1:8000";
const HOSTED: &str = "10.1.0.3:80";
const SLEEPY: &str = "10.1.0.3:81";
const LOCAL: &str = "127.0.0.1:8080";
const ADMIN: &str = "127.0.0.1:9090";
const PATIENCE: Duration = Duration::from_secs(15);
/// Between two restarts.
const PAUSE: Duration = Duration::from_millis(300);

/// Who takes the client's connections.
struct Way {
    name: &'static str,
    address: &'static str,
}

/// A client, and a machine with everything else.
struct Bed {
    client: Host,
    machine: Host,
    folder: PathBuf,
    fairlead: PathBuf,
    /// The web server, while it runs.
    server: Option<Running>,
    switch: Option<Running>,
    peers: Vec<Running>,
    ways: Vec<Way>,
    /// Kept for its end.
    _world: World,
}

impl Drop for Bed {
    fn drop(&mut self) {
        let _ = self.end_switch();
        self.peers.clear();
        self.server = None;
        let _ = fs::remove_dir_all(&self.folder);
    }
}

impl Bed {
    fn new(fairlead: PathBuf) -> Result<Self> {
        for name in ["nginx", "haproxy", "wrk"] {
            ensure!(program(name).is_some(), "{name} is missing");
        }
        fairlead_netns::raise_open_files(1 << 20)?;
        let folder = std::env::temp_dir().join(format!("fairlead-handoff-{}", std::process::id()));
        fs::create_dir_all(folder.join("files"))?;
        fs::write(folder.join("files/1KiB"), vec![b'x'; 1_024])?;
        let mut world = World::new()?;
        let (client, machine) = (world.host("client")?, world.host("machine")?);
        world.link((&client, &["10.1.0.2/24"]), (&machine, &["10.1.0.1/24"]))?;
        client.route("10.1.0.3/32", "10.1.0.1")?;
        machine.sysctl("net.ipv4.ip_forward", "1")?;
        for host in [&client, &machine] {
            host.sysctl("net.ipv4.ip_local_port_range", "1024 65535")?;
            host.sysctl("net.ipv4.tcp_tw_reuse", "1")?;
            host.sysctl("net.core.somaxconn", "16384")?;
        }
        let mut bed = Self {
            client,
            machine,
            folder,
            fairlead,
            server: None,
            switch: None,
            peers: Vec::new(),
            ways: Vec::new(),
            _world: world,
        };
        bed.start_server()?;
        bed.start_peers()?;
        Ok(bed)
    }

    fn write(&self, name: &str, text: &str) -> Result<String> {
        let path = self.folder.join(name);
        fs::write(&path, text)?;
        Ok(path.display().to_string())
    }

    fn start(&self, words: &[&str], log: &str) -> Result<Running> {
        let mut command = self.machine.command(words[0]);
        command.args(&words[1..]).stdin(Stdio::null());
        let log = fs::File::create(self.folder.join(log))?;
        command.stdout(Stdio::null()).stderr(Stdio::from(log));
        Ok(self.machine.start(&mut command)?)
    }

    fn start_server(&mut self) -> Result<()> {
        let text = nginx(
            &self.folder,
            "server",
            2,
            &format!(
                "http {{\naccess_log off;\nkeepalive_requests 100000000;\n\
                 keepalive_timeout 3600s;\nopen_file_cache max=100;\n\
                 server {{ listen {LOCAL} backlog=16384; listen {ALONE} backlog=16384;\n\
                 root \"{}/files\"; }}\n}}\n",
                self.folder.display()
            ),
        );
        let path = self.write("server.conf", &text)?;
        let prefix = self.folder.display().to_string();
        let words = ["nginx", "-p", &prefix, "-c", &path];
        self.server = Some(self.start(&words, "server.err")?);
        self.wait_for(LOCAL)
    }

    fn end_server(&mut self, signal: Signal) -> Result<()> {
        if let Some(mut server) = self.server.take() {
            server.signal(signal)?;
            ensure!(server.wait_for(PATIENCE)?.is_some(), "nginx does not end");
        }
        Ok(())
    }

    /// Waits for a listener on the machine.
    fn wait_for(&self, address: &str) -> Result<()> {
        let until = Instant::now() + PATIENCE;
        while self.machine.enter(|| TcpStream::connect(address))?.is_err() {
            ensure!(Instant::now() < until, "nobody listens on {address}");
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }

    fn start_peers(&mut self) -> Result<()> {
        let way = |name, address| Way { name, address };
        self.ways = vec![way("fairlead", HOSTED), way("alone", ALONE)];
        let text = format!(
            "global\n  nbthread 2\n  maxconn 4000\ndefaults\n  mode tcp\n  timeout connect 5s\n  \
             timeout client 60s\n  timeout server 60s\nlisten front\n  bind 10.1.0.1:8001\n  \
             server one {LOCAL}\n"
        );
        let path = self.write("haproxy.cfg", &text)?;
        let haproxy = self.start(&["haproxy", "-db", "-f", &path], "haproxy.err")?;
        self.add_peer(way("haproxy-tcp", "10.1.0.1:8001"), haproxy)?;
        let module = Path::new("/usr/lib/nginx/modules/ngx_stream_module.so");
        match module.exists() {
            false => println!("left out: nginx stream (Debian: libnginx-mod-stream)"),
            true => {
                let inside = format!(
                    "stream {{ server {{ listen 10.1.0.1:8002 backlog=16384;\n\
                     proxy_pass {LOCAL}; }} }}\n"
                );
                let text = nginx(&self.folder, "stream", 2, &inside);
                let text = format!("load_module {};\n{text}", module.display());
                let path = self.write("stream.conf", &text)?;
                let prefix = self.folder.display().to_string();
                let words = ["nginx", "-p", &prefix, "-c", &path];
                let running = self.start(&words, "stream.err")?;
                self.add_peer(way("nginx-stream", "10.1.0.1:8002"), running)?;
            }
        }
        let sslh = ["sslh-ev", "sslh-select"];
        match sslh.into_iter().find(|name| program(name).is_some()) {
            None => println!("left out: sslh (Debian: sslh)"),
            Some(name) => {
                let words = [name, "-f", "-n", "-p", "10.1.0.1:8003", "--http", LOCAL];
                let running = self.start(&words, "sslh.err")?;
                self.add_peer(way(name, "10.1.0.1:8003"), running)?;
            }
        }
        Ok(())
    }

    fn add_peer(&mut self, way: Way, running: Running) -> Result<()> {
        self.peers.push(running);
        self.wait_for(way.address)
            .with_context(|| way.name.to_owned())?;
        self.ways.push(way);
        Ok(())
    }

    /// Has Fairlead running for these addresses, and not while others are measured.
    fn turn_of(&mut self, address: &str) -> Result<()> {
        if ![HOSTED, SLEEPY].contains(&address) {
            return self.end_switch();
        }
        if self.switch.is_some() {
            return Ok(());
        }
        let path = self.write("fairlead.toml", FAIRLEAD)?;
        let program = self.fairlead.display().to_string();
        let words = [&*program, "serve", "--config", &path];
        self.switch = Some(self.start(&words, "fairlead.err")?);
        let until = Instant::now() + PATIENCE;
        let asked = || -> std::io::Result<()> {
            let mut stream = TcpStream::connect(HOSTED)?;
            stream.set_read_timeout(Some(Duration::from_secs(2)))?;
            load::ask(&mut stream, &mut [0; 4_096]).map(drop)
        };
        while self.client.enter(asked)?.is_err() {
            if Instant::now() > until {
                let log = fs::read_to_string(self.folder.join("fairlead.err"));
                bail!("Fairlead does not answer:\n{}", log.unwrap_or_default());
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        Ok(())
    }

    fn end_switch(&mut self) -> Result<()> {
        let Some(mut switch) = self.switch.take() else {
            return Ok(());
        };
        switch.signal(Signal::Terminate)?;
        let end = switch.wait_for(PATIENCE)?;
        ensure!(end.is_some(), "Fairlead does not end");
        Ok(())
    }

    /// A measurement by `wrk`, after one that does not count.
    fn measure(&mut self, address: &str, close: bool, effort: Effort) -> Result<Sample> {
        self.turn_of(address)?;
        let mut load = Load {
            address,
            file: "1KiB",
            close,
            connections: effort.connections,
            seconds: 1,
            distinct: false,
        };
        wrk::run(&self.client, &self.folder, &[], &load)?;
        load.seconds = effort.seconds;
        wrk::run(&self.client, &self.folder, &[], &load)
    }

    /// CPU time of Fairlead so far, seconds.
    fn cpu_seconds(&self) -> f64 {
        let pid = self.switch.as_ref().map_or(0, Running::id);
        let text = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let fields: Vec<&str> = text.split_whitespace().collect();
        let ticks = |at: usize| fields.get(at).and_then(|word| word.parse::<f64>().ok());
        // Of 10 ms each.
        (ticks(13).unwrap_or(0.0) + ticks(14).unwrap_or(0.0)) / 100.0
    }

    /// A page of the switch, with its head.
    fn page(&self, path: &str) -> Result<String> {
        let asked = || -> std::io::Result<String> {
            let mut stream = TcpStream::connect(ADMIN)?;
            write!(stream, "GET {path} HTTP/1.0\r\nHost: {ADMIN}\r\n\r\n")?;
            let mut text = String::new();
            stream.read_to_string(&mut text)?;
            Ok(text)
        };
        Ok(self.machine.enter(asked)??)
    }

    /// What the switch has counted of requests that met a restart, since it started.
    fn causes(&self) -> Result<Value> {
        // Published four times a second.
        std::thread::sleep(Duration::from_millis(600));
        let page = self.page("/status")?;
        let (_, body) = page.split_once("\r\n\r\n").context("a page")?;
        let status: Value = serde_json::from_str(body)?;
        let mut causes = Map::new();
        for name in ["woken", "host_held", "host_held_late"] {
            causes.insert(name.to_owned(), status[name].clone());
        }
        for (name, count) in status["kernel"].as_object().context("kernel")? {
            if name.starts_with("host_") && count.as_u64() > Some(0) {
                causes.insert(name.clone(), count.clone());
            }
        }
        causes.insert("drops".to_owned(), status["drops"].clone());
        Ok(causes.into())
    }

    /// The value of a metric's first series whose line begins like this.
    fn metric(&self, begins: &str) -> Result<f64> {
        let page = self.page("/metrics")?;
        let mut lines = page.lines();
        let value = lines.find_map(|line| line.strip_prefix(begins)?.trim().parse().ok());
        value.with_context(|| format!("no metric {begins}"))
    }
}

const FAIRLEAD: &str = r#"
[instance]
name = "bench-handoff"
admin = "127.0.0.1:9090"
[fastpath]
mode = "tc"
[limits]
sleepers = 100_000
[log]
access = "off"
[[service]]
name = "hosted"
listen = "10.1.0.3:80"
protocol = "http"
[[service.route]]
treatment = "host"
listener = "127.0.0.1:8080"
[[service]]
name = "sleepy"
listen = "10.1.0.3:81"
protocol = "http"
[[service.route]]
treatment = "host"
sleep = true
listener = "127.0.0.1:8080"
"#;

/// Paths are quoted, because the temporary directory may have spaces in its name.
fn nginx(folder: &Path, name: &str, workers: usize, inside: &str) -> String {
    let at = folder.display();
    let mut text = format!(
        "user root root;\ndaemon off;\nworker_processes {workers};\npid \"{at}/{name}.pid\";\n\
         error_log \"{at}/{name}.log\";\nworker_rlimit_nofile 16384;\n\
         events {{ worker_connections 12000; multi_accept on; }}\n"
    );
    if let Some(rest) = inside.strip_prefix("http {\n") {
        text.push_str("http {\n");
        for kind in ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"] {
            text.push_str(&format!("{kind}_temp_path \"{at}/{name}-{kind}\";\n"));
        }
        return text + rest;
    }
    text + inside
}

/// Measures these parts.
pub(crate) fn run(fairlead: PathBuf, effort: Effort, parts: &[String]) -> Result<Value> {
    type Part = fn(&mut Bed, Effort) -> Result<Value>;
    let known: [(&str, Part); 4] = [
        ("newcomers", newcomers),
        ("tracker", tracker),
        ("memory", memory),
        ("restarts", restarts),
    ];
    let load = || fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let mut result = json!({
        "rounds": effort.rounds,
        "seconds": effort.seconds,
        "client_connections": effort.connections,
        "load_before": load().trim(),
    });
    let mut bed = Bed::new(fairlead)?;
    for part in parts {
        let found = known.iter().find(|(name, _)| name == part);
        let (name, measure) = found.with_context(|| format!("no part {part:?}"))?;
        result[*name] = measure(&mut bed, effort)?;
    }
    result["load_after"] = json!(load().trim());
    Ok(result)
}

fn rates(samples: &[Sample]) -> Vec<f64> {
    samples.iter().map(|sample| sample.rate).collect()
}

/// A connection for each request.
fn newcomers(bed: &mut Bed, effort: Effort) -> Result<Value> {
    let ways: Vec<(&str, &str)> = bed.ways.iter().map(|way| (way.name, way.address)).collect();
    row("connection a request, 1 KiB", ways.iter().map(|way| way.0));
    let mut samples: Vec<Vec<Sample>> = vec![Vec::new(); ways.len()];
    for _ in 0..effort.rounds {
        for (all, (_, address)) in samples.iter_mut().zip(&ways) {
            all.push(bed.measure(address, true, effort)?);
        }
    }
    let own = rates(&samples[0]);
    let mut result = Map::new();
    for (all, (name, _)) in samples.iter().zip(&ways) {
        let rates = rates(all);
        let value = json!({
            "requests_per_second": median(rates.iter().copied()).round(),
            "p99_ms": median(all.iter().map(|one| one.p99_ms)),
            "errors": all.iter().map(|one| one.errors).sum::<u64>(),
            "all_rates": rates.iter().map(|rate| rate.round()).collect::<Vec<_>>(),
            "ratio_of_fairlead": ratio(&own, &rates),
        });
        result.insert((*name).to_owned(), value);
    }
    for (title, of) in [
        ("requests/s", "requests_per_second"),
        ("fairlead /", "ratio_of_fairlead"),
    ] {
        let cells = ways.iter().map(|(name, _)| result[*name][of].as_f64());
        row(
            title,
            cells.map(|cell| format!("{:.2}", cell.unwrap_or(0.0))),
        );
    }
    Ok(result.into())
}

/// What it costs to read where responses end: keep-alive, with `sleep` and without.
fn tracker(bed: &mut Bed, effort: Effort) -> Result<Value> {
    let ways = [("sleep", SLEEPY), ("no_sleep", HOSTED), ("alone", ALONE)];
    let mut samples: Vec<Vec<Sample>> = vec![Vec::new(); ways.len()];
    let mut cpu: Vec<Vec<f64>> = vec![Vec::new(); ways.len()];
    for _ in 0..effort.rounds {
        for (at, (_, address)) in ways.iter().enumerate() {
            bed.turn_of(address)?;
            let before = bed.cpu_seconds();
            let sample = bed.measure(address, false, effort)?;
            // The second that does not count is in both.
            let share = f64::from(effort.seconds) / f64::from(effort.seconds + 1);
            let spent = (bed.cpu_seconds() - before) * share;
            cpu[at].push(1e6 * spent / sample.requests.max(1) as f64);
            samples[at].push(sample);
        }
    }
    let lost = {
        bed.turn_of(SLEEPY)?;
        bed.metric("fairlead_host_heads_lost_total ")?
    };
    let (sleep, plain, alone) = (rates(&samples[0]), rates(&samples[1]), rates(&samples[2]));
    let middle = |rates: &[f64]| median(rates.iter().copied()).round();
    let result = json!({
        "kind": "keep-alive, 1KiB",
        "requests_per_second": {
            "sleep": middle(&sleep), "no_sleep": middle(&plain), "alone": middle(&alone),
        },
        "ratio_sleep_to_no_sleep": ratio(&sleep, &plain),
        "ratio_sleep_to_alone": ratio(&sleep, &alone),
        "cpu_us_per_request": {
            "sleep": median(cpu[0].iter().copied()),
            "no_sleep": median(cpu[1].iter().copied()),
        },
        "heads_lost_last_run": lost,
    });
    println!("tracker: {result:#}");
    Ok(result)
}

/// Bytes of the kernel's maps for each connection, awake and asleep.
fn memory(bed: &mut Bed, effort: Effort) -> Result<Value> {
    bed.end_switch()?;
    bed.turn_of(SLEEPY)?;
    let maps = |bed: &Bed| -> Result<f64> {
        // Published four times a second.
        std::thread::sleep(Duration::from_millis(600));
        let of = |map: &str| bed.metric(&format!("fairlead_map_bytes{{map=\"{map}\"}} "));
        Ok(of("fl_lives")? + of("fl_responses")?)
    };
    let empty = maps(bed)?;
    let all = load::idle(&bed.client, SLEEPY, effort.sleepers)?;
    let awake = maps(bed)?;
    bed.end_server(Signal::Quit)?;
    let until = Instant::now() + PATIENCE;
    while bed.metric("fairlead_sleepers ")? < all.len() as f64 {
        ensure!(Instant::now() < until, "not all fall asleep");
        std::thread::sleep(Duration::from_millis(200));
    }
    let asleep = maps(bed)?;
    bed.start_server()?;
    let mut all = all;
    let mut buffer = [0; 4_096];
    let mut woken = 0;
    for stream in &mut all {
        woken += usize::from(load::ask(stream, &mut buffer).is_ok());
    }
    let each = |bytes: f64| ((bytes - empty) / all.len() as f64 * 10.0).round() / 10.0;
    let result = json!({
        "connections": all.len(),
        "bytes_awake": each(awake),
        "bytes_asleep": each(asleep),
        "woken": woken,
    });
    println!("memory: {result:#}");
    Ok(result)
}

/// Clients that keep their connections, while the server is restarted and reloaded.
fn restarts(bed: &mut Bed, effort: Effort) -> Result<Value> {
    let mut result = Map::new();
    let kinds = [
        ("reload_hup", None),
        ("restart_quit", Some(Signal::Quit)),
        ("restart_term", Some(Signal::Terminate)),
    ];
    for (kind, end) in kinds {
        let mut of = Map::new();
        for (name, address) in [("fairlead", SLEEPY), ("alone", ALONE)] {
            bed.turn_of(address)?;
            let client = bed.client.clone();
            let mut downs: Vec<load::Down> = Vec::new();
            let outcome = load::during(&client, address, || {
                for _ in 0..effort.restarts {
                    let began = Instant::now();
                    match end {
                        None => {
                            let server = bed.server.as_mut().context("nginx runs")?;
                            server.signal(Signal::HangUp)?;
                        }
                        Some(signal) => {
                            bed.end_server(signal)?;
                            bed.start_server()?;
                        }
                    }
                    if end.is_some() {
                        downs.push((began, Instant::now()));
                    }
                    std::thread::sleep(PAUSE);
                }
                Ok(())
            })?;
            let mut value = outcome.value(&downs);
            value["times"] = json!(effort.restarts);
            if address == SLEEPY {
                value["causes"] = bed.causes()?;
            }
            if end.is_some() {
                let down_ms = downs
                    .iter()
                    .map(|(from, to)| (*to - *from).as_secs_f64() * 1e3);
                value["down_ms"] = json!(median(down_ms).round());
            }
            println!("{kind}, {name}: {value}");
            of.insert(name.to_owned(), value);
        }
        result.insert(kind.to_owned(), of.into());
    }
    Ok(result.into())
}
