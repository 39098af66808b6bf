//! Requests routed one by one, and answers from a cache, beside proxies that do the same:
//! requests/s, the 99th percentile, and processor time of what stands in front.
//!
//! Processor time is that of processes: what the kernel does for them while it receives packets is
//! nobody's here.

use std::fs;
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use aya::programs::loaded_programs;
use aya::sys::{Stats, enable_stats};
use fairlead_netns::{Host, Running, Signal, World, program};
use serde_json::{Value, json};

use crate::stand::{Stand, load_before, processor_seconds};
use crate::table::{median, ratio};
use crate::testbed::targets::nginx;
use crate::testbed::wrk::{self, Sample};

/// How long anything may take.
const PATIENCE: Duration = Duration::from_secs(20);
const SERVER: &str = "10.2.0.1:8081";

/// What is measured, and how much of it.
#[derive(Clone, Debug)]
pub(crate) struct Effort {
    pub(crate) fairlead: PathBuf,
    pub(crate) mode: String,
    pub(crate) rounds: usize,
    pub(crate) seconds: u32,
    pub(crate) connections: u32,
}

/// Who stands in front, and where.
const FRONTS: [(&str, &str); 9] = [
    ("per-request", "10.1.0.3:80"),
    ("haproxy-http", "10.1.0.1:8080"),
    ("nginx-proxy", "10.1.0.1:8082"),
    ("splice", "10.1.0.3:82"),
    ("cache", "10.1.0.3:81"),
    ("nginx-cache", "10.1.0.1:8083"),
    ("varnish", "10.1.0.1:8084"),
    ("direct", SERVER),
    ("kernel-cache", "10.1.0.3:83"),
];

/// Rows: a file, and a connection for each request or not.
const CASES: [(&str, bool); 7] = [
    ("1KiB", false),
    ("16KiB", false),
    ("64KiB", false),
    ("1MiB", false),
    ("1KiB", true),
    ("16KiB", true),
    ("64KiB", true),
];

const FILES: [(&str, usize); 4] = [
    ("1KiB", 1 << 10),
    ("16KiB", 16 << 10),
    ("64KiB", 64 << 10),
    ("1MiB", 1 << 20),
];

pub(crate) fn run(effort: &Effort) -> Result<Value> {
    let bed = Bed::new(effort)?;
    let load = load_before();
    let mut rows = Vec::new();
    for (file, close) in CASES {
        rows.push(bed.measure(effort, file, close)?);
    }
    Ok(json!({
        "mode": effort.mode,
        "rounds": effort.rounds,
        "seconds": effort.seconds,
        "client_connections": effort.connections,
        "load_before": load,
        "rows": rows,
    }))
}

struct Bed {
    client: Host,
    switch: Host,
    stand: Stand,
    fairlead: Option<Running>,
    /// Processes by the place of their front.
    fronts: Vec<Option<Vec<u32>>>,
    _world: World,
}

impl Drop for Bed {
    fn drop(&mut self) {
        // Killed, it would leave its fast path to a next run in a network that goes away.
        if let Some(mut fairlead) = self.fairlead.take() {
            let _ = fairlead.signal(Signal::Terminate);
            let _ = fairlead.wait_for(PATIENCE);
        }
    }
}

impl Bed {
    fn new(effort: &Effort) -> Result<Self> {
        fairlead_netns::raise_open_files(65_536)?;
        // Peers keep what they cache there: memory, as Fairlead's is.
        let shared = Path::new("/dev/shm");
        let parent = if shared.is_dir() {
            shared.to_owned()
        } else {
            std::env::temp_dir()
        };
        let stand = Stand::new(&parent, "front")?;
        let folder = &stand.folder;
        fs::create_dir_all(folder.join("files"))?;
        for (name, bytes) in FILES {
            fs::write(folder.join("files").join(name), vec![b'x'; bytes])?;
        }
        let mut world = World::new()?;
        let (client, switch) = (world.host("client")?, world.host("switch")?);
        let servers = world.host("servers")?;
        world.link((&client, &["10.1.0.2/24"]), (&switch, &["10.1.0.1/24"]))?;
        world.link((&switch, &["10.2.0.254/24"]), (&servers, &["10.2.0.1/24"]))?;
        client.route("10.2.0.0/24", "10.1.0.1")?;
        client.route("10.1.0.3/32", "10.1.0.1")?;
        servers.route("default", "10.2.0.254")?;
        switch.sysctl("net.ipv4.ip_forward", "1")?;
        for host in [&client, &switch] {
            host.sysctl("net.ipv4.ip_local_port_range", "1024 65535")?;
            host.sysctl("net.ipv4.tcp_tw_reuse", "1")?;
        }
        for host in [&switch, &servers] {
            host.sysctl("net.core.somaxconn", "16384")?;
        }
        let mut bed = Self {
            client,
            switch,
            stand,
            fairlead: None,
            fronts: vec![None; FRONTS.len()],
            _world: world,
        };
        bed.start(effort, &servers)?;
        Ok(bed)
    }

    fn start(&mut self, effort: &Effort, servers: &Host) -> Result<()> {
        let prefix = self.stand.folder.display().to_string();
        let server = format!(
            "sendfile on; tcp_nopush on; open_file_cache max=100; expires 1h;\n\
             server {{ listen {SERVER} backlog=16384; root {prefix}/files; }}"
        );
        let path = self
            .stand
            .write("server.conf", &nginx(&self.stand.folder, "server", &server))?;
        self.stand
            .spawn(servers, &["nginx", "-p", &prefix, "-c", &path])?;
        let switch = self.switch.clone();
        let path = self.stand.write("haproxy.cfg", &haproxy())?;
        self.fronts[1] = Some(vec![
            self.stand
                .spawn(&switch, &["haproxy", "-db", "-f", &path])?,
        ]);
        for (at, name, cached) in [(2, "proxy", false), (5, "kept", true)] {
            let text = nginx(
                &self.stand.folder,
                name,
                &nginx_proxy(&self.stand.folder, at, cached),
            );
            let path = self.stand.write(&format!("{name}.conf"), &text)?;
            self.fronts[at] = Some(vec![
                self.stand
                    .spawn(&switch, &["nginx", "-p", &prefix, "-c", &path])?,
            ]);
        }
        if program("varnishd").is_some() {
            let (at, own) = (FRONTS[6].1, format!("{prefix}/varnish"));
            let words = [
                "varnishd",
                "-F",
                "-a",
                at,
                "-b",
                SERVER,
                "-s",
                "malloc,256m",
                "-n",
                &own,
            ];
            self.fronts[6] = Some(vec![self.stand.spawn(&switch, &words)?]);
        }
        let path = self.stand.write("fairlead.toml", &fairlead(&effort.mode))?;
        let mut command = switch.command(&effort.fairlead.display().to_string());
        command
            .args(["serve", "--config", &path])
            .stdout(Stdio::null());
        let log = fs::File::create(self.stand.folder.join("fairlead.err"))?;
        let fairlead = switch.start(command.stderr(Stdio::from(log)))?;
        let own = vec![fairlead.id()];
        self.fairlead = Some(fairlead);
        for at in [0, 3, 4, 8] {
            self.fronts[at] = Some(own.clone());
        }
        self.fronts[7] = Some(Vec::new());
        for (front, running) in FRONTS.into_iter().zip(&self.fronts) {
            if running.is_some() {
                self.wait_for(front)?;
            }
        }
        Ok(())
    }

    fn wait_for(&self, (name, address): (&str, &str)) -> Result<()> {
        let until = Instant::now() + PATIENCE;
        let address: SocketAddr = address.parse()?;
        let connect = || TcpStream::connect_timeout(&address, Duration::from_secs(1));
        while Instant::now() < until {
            if self.client.enter(connect)?.is_ok() {
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        let log = fs::read_to_string(self.stand.folder.join("fairlead.err")).unwrap_or_default();
        bail!("{name} at {address} does not answer: {log}")
    }

    fn measure(&self, effort: &Effort, file: &str, close: bool) -> Result<Value> {
        let mut samples: Vec<Samples> = vec![Vec::new(); FRONTS.len()];
        for round in 0..=effort.rounds {
            for ((name, address), (ids, all)) in
                FRONTS.iter().zip(self.fronts.iter().zip(&mut samples))
            {
                let Some(ids) = ids else { continue };
                let before = processor_seconds(ids);
                let load = wrk::Load {
                    address,
                    file,
                    close,
                    connections: effort.connections,
                    // The first round warms up: caches are filled in it.
                    seconds: if round == 0 { 1 } else { effort.seconds },
                    distinct: false,
                };
                let sample = wrk::run(&self.client, &self.stand.folder, &[], &load)?;
                ensure!(sample.requests > 0, "{name} answers nothing");
                let used = processor_seconds(ids) - before;
                if round > 0 {
                    all.push((sample, used / sample.requests as f64 * 1e6));
                }
            }
        }
        let kind = match close {
            true => "connection per request",
            false => "keep-alive",
        };
        let title = format!("{kind}, {file}");
        let mut row = row(&samples, &title);
        if file == FILES[0].0 {
            row["kernel_program"] = self.kernel_time(effort, close, &title)?;
        }
        Ok(row)
    }

    /// What the kernel program takes for a packet while it answers all requests. In a run of its
    /// own, because the kernel's count takes time, too.
    fn kernel_time(&self, effort: &Effort, close: bool, title: &str) -> Result<Value> {
        let (name, address) = FRONTS[8];
        let load = wrk::Load {
            address,
            file: FILES[0].0,
            close,
            connections: effort.connections,
            seconds: effort.seconds,
            distinct: false,
        };
        let counting = enable_stats(Stats::RunTime)?;
        let before = runs_of_program();
        let sample = wrk::run(&self.client, &self.stand.folder, &[], &load)?;
        let after = runs_of_program();
        drop(counting);
        let (time, runs) = (after.0 - before.0, after.1 - before.1);
        let nanoseconds = time.as_nanos() as f64 / runs.max(1) as f64;
        let runs = runs as f64 / sample.requests.max(1) as f64;
        println!(
            "{title}: {name} {nanoseconds:.0} ns of the kernel program a packet, {runs:.2} packets \
             a request"
        );
        Ok(json!({ "nanoseconds_a_packet": nanoseconds, "packets_a_request": runs }))
    }
}

/// How long the program at the interfaces has run since it was loaded, and how often.
fn runs_of_program() -> (Duration, u64) {
    let all = loaded_programs().flatten();
    let own = all.filter(|one| one.name_as_str() == Some("fairlead_host"));
    own.fold((Duration::ZERO, 0), |(time, runs), one| {
        (time + one.run_time(), runs + one.run_count())
    })
}

/// Measurements of a front, each with microseconds of its processes for a request.
type Samples = Vec<(Sample, f64)>;

fn rates(samples: &Samples) -> Vec<f64> {
    samples.iter().map(|one| one.0.rate).collect()
}

/// Prints a row, and returns it.
fn row(samples: &[Samples], title: &str) -> Value {
    let mut fronts = Vec::new();
    for ((name, _), all) in FRONTS.iter().zip(samples) {
        if all.is_empty() {
            continue;
        }
        let p99 = median(all.iter().map(|one| one.0.p99_ms));
        let micros = median(all.iter().map(|one| one.1));
        let errors: u64 = all.iter().map(|one| one.0.errors).sum();
        let rate = median(rates(all));
        println!(
            "{title}: {name} {rate:.0} requests/s, p99 {p99:.1} ms, {micros:.1} µs of processes a \
             request, {errors} errors"
        );
        fronts.push(json!({
            "front": name,
            "requests_per_second": rate.round(),
            "p99_ms": p99,
            "process_microseconds_a_request": micros,
            "errors": errors,
            "each": rates(all).iter().map(|rate| rate.round()).collect::<Vec<_>>(),
        }));
    }
    let against = |own: usize, peers: &[usize]| -> Option<f64> {
        let there = peers.iter().copied().filter(|&at| !samples[at].is_empty());
        let rate = |at: usize| median(rates(&samples[at]));
        let peer = there.max_by(|&a, &b| rate(a).total_cmp(&rate(b)))?;
        let ratio = ratio(&rates(&samples[own]), &rates(&samples[peer]));
        println!("{title}: {} {ratio:.2} × {}", FRONTS[own].0, FRONTS[peer].0);
        Some(ratio)
    };
    json!({
        "row": title,
        "fronts": fronts,
        "per_request_to_best_proxy": against(0, &[1, 2]),
        "cache_to_best_cache": against(4, &[5, 6]),
        "kernel_cache_to_best_cache": against(8, &[5, 6]),
    })
}

/// With a cache in memory, or without.
fn nginx_proxy(folder: &Path, at: usize, cached: bool) -> String {
    let (zone, use_it) = match cached {
        true => (
            format!(
                "proxy_cache_path {}/nginx-cache keys_zone=one:10m max_size=256m;\n",
                folder.display()
            ),
            "proxy_cache one; proxy_cache_key $host$uri$is_args$args;",
        ),
        false => (String::new(), "proxy_max_temp_file_size 0;"),
    };
    format!(
        "{zone}sendfile on; tcp_nopush on; open_file_cache max=1000;\n\
         upstream servers {{ server {SERVER}; keepalive 64; keepalive_requests 100000000; }}\n\
         server {{ listen {} backlog=16384; location / {{ proxy_pass http://servers; \
         proxy_http_version 1.1; proxy_set_header Connection \"\"; proxy_buffer_size 128k; \
         proxy_buffers 16 128k; proxy_busy_buffers_size 256k; {use_it} }} }}",
        FRONTS[at].1
    )
}

fn haproxy() -> String {
    format!(
        "global\ntune.bufsize 131072\ndefaults\nmode http\nhttp-reuse always\noption splice-auto\n\
         timeout connect 5s\ntimeout client 60s\ntimeout server 60s\nlisten front\nbind {} backlog \
         16384\nserver one {SERVER}\n",
        FRONTS[1].1
    )
}

fn fairlead(mode: &str) -> String {
    let service = |port: u16, lines: &str| {
        format!(
            "[[service]]\nname = \"s{port}\"\nlisten = \"10.1.0.3:{port}\"\nprotocol = \"http\"\n\
             [[service.route]]\npool = \"pages\"\n{lines}\n"
        )
    };
    format!(
        "[instance]\nname = \"front\"\ndrain_timeout = \"0s\"\n[log]\naccess = \"refused\"\n\
         [network]\ndevice = \"fairlead0\"\nsnat = \"100.64.0.0/24\"\n\
         [fastpath]\nmode = \"{mode}\"\n\
         {}{}{}{}[[pool]]\nname = \"pages\"\nserver = [{{ address = \"{SERVER}\" }}]\n",
        service(80, "treatment = \"per-request\""),
        service(81, "cache = { size = \"256MiB\", max_object = \"16MiB\" }"),
        service(82, ""),
        // Answered by the kernel if it is short; else as by the one above.
        service(
            83,
            "cache = { size = \"256MiB\", max_object = \"16MiB\", kernel = true }"
        ),
    )
}
