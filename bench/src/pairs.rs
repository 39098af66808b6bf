//! Connections that a proxy hands off, beside proxies that copy and one by socket maps: requests/s
//! and processor time of what stands in front, how long an adoption and a give-back take, and
//! tunnels that outlive one proxy after another.
//!
//! Processor time is that of processes: what the kernel does for them while it receives packets is
//! nobody's here, and the fast path runs there. The work of socket maps is that of the kernel, too.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use fairlead_netns::{Host, Running, Signal, World};
use serde_json::{Value, json};

use crate::stand::{Stand, load_before, processor_seconds};
use crate::table::median;
use crate::testbed::{targets, wrk};

/// How long anything may take.
const PATIENCE: Duration = Duration::from_secs(20);
const SERVER: &str = "10.2.0.1:8081";
/// A proxy of the example hands a connection off after this number of bytes.
const AFTER: &str = "131072";

/// What is measured, and how much of it.
#[derive(Clone, Debug)]
pub(crate) struct Effort {
    pub(crate) fairlead: PathBuf,
    pub(crate) proxy: PathBuf,
    pub(crate) mode: String,
    pub(crate) rounds: usize,
    pub(crate) seconds: u32,
    pub(crate) connections: u32,
    pub(crate) moves: u32,
    pub(crate) proxies: u32,
    pub(crate) tunnels: u32,
    pub(crate) tunnel_seconds: u32,
}

/// Who stands in front.
const FRONTS: [(&str, &str); 6] = [
    ("pairs", "10.1.0.1:8090"),
    ("haproxy-tcp-splice", "10.1.0.1:8080"),
    ("nginx-stream", "10.1.0.1:8082"),
    ("copying-example", "10.1.0.1:8091"),
    ("sockmap", "10.1.0.1:8094"),
    ("direct", SERVER),
];

pub(crate) fn run(effort: &Effort) -> Result<Value> {
    let mut bed = Bed::new(effort)?;
    let load = load_before();
    let transfer = transfer(&mut bed, effort)?;
    let moves = moves(&mut bed, effort)?;
    let tunnels = tunnels(&mut bed, effort)?;
    Ok(json!({
        "mode": effort.mode,
        "fast_path": bed.fast_path(),
        "load_before": load,
        "keep_alive_64KiB": transfer,
        "moves": moves,
        "tunnels": tunnels,
    }))
}

struct Bed {
    client: Host,
    switch: Host,
    stand: Stand,
    fairlead: Option<Running>,
    /// By name of [`FRONTS`].
    fronts: Vec<(&'static str, Vec<u32>)>,
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
        fairlead_netns::raise_open_files(1 << 20)?;
        let stand = Stand::new(&std::env::temp_dir(), "pairs")?;
        let folder = &stand.folder;
        fs::create_dir_all(folder.join("files"))?;
        fs::write(folder.join("files/64KiB"), vec![b'x'; 64 << 10])?;
        fs::write(folder.join("files/1KiB"), vec![b'x'; 1 << 10])?;
        let mut world = World::new()?;
        let (client, switch) = (world.host("client")?, world.host("switch")?);
        let servers = world.host("servers")?;
        world.link((&client, &["10.1.0.2/24"]), (&switch, &["10.1.0.1/24"]))?;
        world.link(
            (&switch, &["10.2.0.254/24"]),
            (&servers, &["10.2.0.1/24", "10.4.0.1/24"]),
        )?;
        client.route("10.2.0.0/24", "10.1.0.1")?;
        servers.route("default", "10.2.0.254")?;
        switch.sysctl("net.ipv4.ip_forward", "1")?;
        for host in [&client, &switch] {
            host.sysctl("net.ipv4.ip_local_port_range", "1024 65535")?;
        }
        for host in [&switch, &servers] {
            host.sysctl("net.core.somaxconn", "16384")?;
        }
        let mut bed = Self {
            client,
            switch,
            stand,
            fairlead: None,
            fronts: Vec::new(),
            _world: world,
        };
        bed.start(effort, &servers)?;
        Ok(bed)
    }

    fn start(&mut self, effort: &Effort, servers: &Host) -> Result<()> {
        let prefix = self.stand.folder.display().to_string();
        let path = self.stand.write(
            "server.conf",
            &targets::server(&self.stand.folder, "server"),
        )?;
        self.stand
            .spawn(servers, &["nginx", "-p", &prefix, "-c", &path])?;
        let switch = self.switch.clone();
        let path = self.stand.write("haproxy.cfg", &haproxy())?;
        let haproxy = self
            .stand
            .spawn(&switch, &["haproxy", "-db", "-f", &path])?;
        let path = self
            .stand
            .write("stream.conf", &nginx_stream(&self.stand.folder))?;
        let nginx = self
            .stand
            .spawn(&switch, &["nginx", "-p", &prefix, "-c", &path])?;
        let adopt = self.stand.folder.join("adopt").display().to_string();
        let path = self
            .stand
            .write("fairlead.toml", &fairlead(&effort.mode, &adopt))?;
        let program = effort.fairlead.display().to_string();
        let mut command = switch.command(&program);
        command
            .args(["serve", "--config", &path])
            .stdout(Stdio::null());
        let log = fs::File::create(self.stand.folder.join("fairlead.err"))?;
        let fairlead = switch.start(command.stderr(Stdio::from(log)))?;
        let fairlead_id = fairlead.id();
        self.fairlead = Some(fairlead);
        let until = Instant::now() + PATIENCE;
        while !Path::new(&adopt).exists() {
            ensure!(
                Instant::now() < until,
                "Fairlead does not start: {}",
                self.log()
            );
            std::thread::sleep(Duration::from_millis(50));
        }
        let proxy = effort.proxy.display().to_string();
        let mut start = |at: usize, after: &str| {
            self.stand
                .spawn(&switch, &[&proxy, FRONTS[at].1, SERVER, &adopt, after])
        };
        let (pairs, copying) = (start(0, AFTER)?, start(3, "18446744073709551615")?);
        let own = std::env::current_exe()?.display().to_string();
        let words = [&own, "sockmap", FRONTS[4].1, SERVER];
        let sockmap = self.stand.spawn(&switch, &words)?;
        self.fronts = vec![
            ("pairs", vec![fairlead_id, pairs]),
            ("haproxy-tcp-splice", vec![haproxy]),
            ("nginx-stream", vec![nginx]),
            ("copying-example", vec![copying]),
            ("sockmap", vec![sockmap]),
            ("direct", Vec::new()),
        ];
        for (name, address) in FRONTS {
            self.wait_for(name, address)?;
        }
        Ok(())
    }

    fn log(&self) -> String {
        fs::read_to_string(self.stand.folder.join("fairlead.err")).unwrap_or_default()
    }

    fn fast_path(&self) -> String {
        let log = self.log();
        let line = log.lines().rfind(|line| line.contains("fast path"));
        let said = line.and_then(|line| line.split("fast path").nth(1));
        said.unwrap_or_default()
            .trim_matches([':', ' '])
            .chars()
            .take(120)
            .collect()
    }

    fn wait_for(&self, name: &str, address: &str) -> Result<()> {
        let until = Instant::now() + PATIENCE;
        while Instant::now() < until {
            if self
                .connect(address)
                .is_ok_and(|stream| request(&stream, "1KiB").is_ok())
            {
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        bail!("{name} at {address} does not answer: {}", self.log())
    }

    fn connect(&self, address: &str) -> Result<TcpStream> {
        let address: SocketAddr = address.parse()?;
        let stream = self
            .client
            .enter(|| TcpStream::connect_timeout(&address, PATIENCE))??;
        stream.set_read_timeout(Some(PATIENCE))?;
        Ok(stream)
    }
}

/// Asks for a file on a connection, and reads the answer. How many bytes its body had.
fn request(mut stream: &TcpStream, file: &str) -> Result<usize> {
    // At once: the second of several small segments would wait for an acknowledgement.
    let head = format!("GET /{file} HTTP/1.1\r\nHost: bench\r\n\r\n");
    stream.write_all(head.as_bytes())?;
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") {
        stream.read_exact(&mut byte)?;
        head.push(byte[0]);
        ensure!(head.len() < 4_096, "no head");
    }
    let head = String::from_utf8_lossy(&head).into_owned();
    let length = head
        .lines()
        .find_map(|line| line.strip_prefix("Content-Length: "));
    let length: usize = length.context("no length")?.trim().parse()?;
    let mut body = vec![0; length];
    stream.read_exact(&mut body)?;
    ensure!(body.iter().all(|byte| *byte == b'x'), "other bytes");
    // Acknowledged at once: an adoption waits for that, which here would be the client's 40 ms.
    socket2::SockRef::from(stream).set_tcp_quickack(true)?;
    Ok(length)
}

fn haproxy() -> String {
    format!(
        "defaults\nmode tcp\noption splice-auto\ntimeout connect 5s\ntimeout client 3600s\n\
         timeout server 3600s\nlisten front\nbind {}\nserver one {SERVER}\n",
        FRONTS[1].1
    )
}

fn nginx_stream(folder: &Path) -> String {
    let at = folder.display();
    format!(
        "load_module /usr/lib/nginx/modules/ngx_stream_module.so;\ndaemon off;\n\
         master_process off;\npid {at}/stream.pid;\nerror_log {at}/stream.log;\n\
         events {{ worker_connections 16384; multi_accept on; }}\nstream {{ server {{\n\
         listen {} backlog=16384; proxy_pass {SERVER}; proxy_buffer_size 128k; }} }}\n",
        FRONTS[2].1
    )
}

fn fairlead(mode: &str, adopt: &str) -> String {
    format!(
        r#"
[instance]
name = "pairs"
drain_timeout = "0s"
adopt_socket = "{adopt}"
adopt_connections = 65536

[network]
device = "fairlead0"
snat = "100.64.0.0/24"
[fastpath]
mode = "{mode}"

[[service]]
name = "web"
listen = "10.1.0.3:80"
protocol = "http"
source = "snat"
[[service.route]]
pool = "pages"
[[pool]]
name = "pages"
server = [{{ address = "{SERVER}" }}]
"#
    )
}

/// Requests/s on connections that are kept alive, in alternation.
fn transfer(bed: &mut Bed, effort: &Effort) -> Result<Value> {
    let mut samples = vec![(Vec::new(), Vec::new(), 0); FRONTS.len()];
    let mut taken = Vec::new();
    for _ in 0..effort.rounds {
        for ((name, address), sample) in FRONTS.iter().zip(&mut samples) {
            let ids = &bed
                .fronts
                .iter()
                .find(|one| one.0 == *name)
                .context("a front")?
                .1;
            let before = processor_seconds(ids);
            let load = wrk::Load {
                address,
                file: "64KiB",
                close: false,
                connections: effort.connections,
                seconds: effort.seconds,
                distinct: false,
            };
            let watch = (*name == FRONTS[0].0).then(|| Watch::start(bed, effort));
            let measured = wrk::run(&bed.client, &bed.stand.folder, &[], &load)?;
            taken.extend(watch.map(Watch::end).transpose()?);
            let used = processor_seconds(ids) - before;
            sample.0.push(measured.rate);
            sample.1.push(used / f64::from(effort.seconds));
            sample.2 += measured.errors;
        }
    }
    let rows = FRONTS.iter().zip(&samples).map(|((name, _), sample)| {
        let (rate, cores) = (median(sample.0.clone()), median(sample.1.clone()));
        println!("{name}: {rate:.0} requests/s, {cores:.2} cores in processes");
        json!({
            "front": name,
            "requests_per_second": rate,
            "cores_in_processes": cores,
            "errors": sample.2,
            "each": sample.0,
        })
    });
    let rows: Vec<Value> = rows.collect();
    for one in &taken {
        println!("{}", one.said(effort.connections));
    }
    let taken: Vec<_> = taken.iter().map(Taken::json).collect();
    Ok(json!({ "fronts": rows, "handed_off_by_round": taken }))
}

/// How many of the connections of one measurement have been handed off, and when.
#[derive(Debug, Default)]
struct Taken {
    count: u64,
    /// Until all were, s.
    all_after: Option<f64>,
    refused: BTreeMap<String, u64>,
}

impl Taken {
    fn said(&self, connections: u32) -> String {
        let after = self.all_after.map_or_else(
            || "not all".to_owned(),
            |seconds| format!("all after {seconds:.1} s"),
        );
        let refused = self.refused.iter();
        let refused: String = refused
            .map(|(reason, count)| format!(", {reason} {count}"))
            .collect();
        format!(
            "{} of {connections} handed off, {after}{refused}",
            self.count
        )
    }

    fn json(&self) -> Value {
        json!({
            "count": self.count,
            "all_after_s": self.all_after,
            "refused": self.refused,
        })
    }
}

/// Looks at Fairlead's counters while a measurement runs.
struct Watch {
    is_over: Arc<AtomicBool>,
    thread: JoinHandle<Result<Taken>>,
}

impl Watch {
    fn start(bed: &Bed, effort: &Effort) -> Self {
        let is_over = Arc::new(AtomicBool::new(false));
        let (over, switch, effort) = (Arc::clone(&is_over), bed.switch.clone(), effort.clone());
        let thread = std::thread::spawn(move || {
            let (begun, before) = (Instant::now(), counted(&switch, &effort)?);
            let mut taken = Taken::default();
            while taken.all_after.is_none() && !over.load(Ordering::Acquire) {
                std::thread::sleep(Duration::from_millis(100));
                let now = counted(&switch, &effort)?;
                taken.count = now.0 - before.0;
                if taken.count >= u64::from(effort.connections) {
                    taken.all_after = Some(begun.elapsed().as_secs_f64());
                }
                let refused = now.1.into_iter();
                let refused = refused.map(|(reason, count)| {
                    let known = before.1.get(&reason).copied().unwrap_or(0);
                    (reason, count - known)
                });
                taken.refused = refused.filter(|one| one.1 > 0).collect();
            }
            Ok(taken)
        });
        Self { is_over, thread }
    }

    fn end(self) -> Result<Taken> {
        self.is_over.store(true, Ordering::Release);
        let taken = self.thread.join();
        taken.unwrap_or_else(|_| bail!("the watch ended"))
    }
}

/// Handoffs that were done, and those that were refused by reason.
fn counted(switch: &Host, effort: &Effort) -> Result<(u64, BTreeMap<String, u64>)> {
    let mut command = switch.command(&effort.fairlead.display().to_string());
    command.args(["handoff", "list", "--json", "--instance", "pairs"]);
    let output = command.output()?;
    let listed: Value = serde_json::from_slice(&output.stdout).context("a list of handoffs")?;
    let rows = |field: &str| listed[field].as_array().cloned().unwrap_or_default();
    let is_it = |row: &Value| row[0] == "ch_nic_handoff";
    let given = rows("commands").into_iter().find(is_it);
    let given = given.and_then(|row| row[1].as_u64()).context("a count")?;
    let refused = rows("refused").into_iter().filter(is_it);
    let refused: BTreeMap<_, _> = refused
        .filter_map(|row| Some((row[1].as_str()?.to_owned(), row[2].as_u64()?)))
        .collect();
    Ok((given.saturating_sub(refused.values().sum()), refused))
}

/// A proxy of the example, and what it says.
struct Proxy {
    process: Running,
    lines: Receiver<String>,
}

impl Proxy {
    fn start(bed: &Bed, effort: &Effort, port: u16) -> Result<Self> {
        let mut command = bed.switch.command(&effort.proxy.display().to_string());
        let adopt = bed.stand.folder.join("adopt");
        command
            .args([&format!("10.1.0.1:{port}"), SERVER])
            .arg(adopt)
            .arg("1024");
        let mut process = bed.switch.start(command.stdout(Stdio::piped()))?;
        let output = process.child().stdout.take().context("its output")?;
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            let all = BufReader::new(output).lines().map_while(Result::ok);
            all.for_each(|line| drop(sender.send(line)));
        });
        let proxy = Self { process, lines };
        proxy.says("listening")?;
        Ok(proxy)
    }

    fn says(&self, begin: &str) -> Result<String> {
        loop {
            let line = self.lines.recv_timeout(PATIENCE);
            let line = line.with_context(|| format!("no {begin:?}"))?;
            if let Some(rest) = line.strip_prefix(begin) {
                return Ok(rest.trim().to_owned());
            }
        }
    }

    fn kill(mut self) -> Result<()> {
        self.process.signal(Signal::Kill)?;
        self.process.wait_for(PATIENCE)?;
        Ok(())
    }
}

/// The number before the last word.
fn micros(said: &str) -> Result<f64> {
    let number = said.rsplit(' ').nth(1).context("a time")?;
    Ok(number.parse()?)
}

/// One connection hands itself off and is given back, again and again, while nothing is on its way.
fn moves(bed: &mut Bed, effort: &Effort) -> Result<Value> {
    let proxy = Proxy::start(bed, effort, 8_092)?;
    let stream = bed.connect("10.1.0.1:8092")?;
    let (mut adoptions, mut returns) = (Vec::new(), Vec::new());
    let program = effort.fairlead.display().to_string();
    for _ in 0..effort.moves {
        request(&stream, "1KiB")?;
        request(&stream, "1KiB")?;
        let said = proxy.says("adopted")?;
        adoptions.push(micros(&said)?);
        request(&stream, "1KiB")?;
        let number = said.split(' ').next().context("a number")?;
        let mut give = bed.switch.command(&program);
        give.args(["handoff", "give", number, "--instance", "pairs"]);
        let output = give.output()?;
        ensure!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
        returns.push(micros(&proxy.says("back")?)?);
    }
    let (adoption, back) = (median(adoptions.clone()), median(returns.clone()));
    println!(
        "an adoption {adoption} us, a give-back {back} us (medians of {})",
        effort.moves
    );
    Ok(json!({
        "count": effort.moves,
        "adoption_us": adoption,
        "give_back_us": back,
        "each_adoption_us": adoptions,
        "each_give_back_us": returns,
    }))
}

/// Tunnels by one proxy after another, each of which is killed when it has handed its own off.
fn tunnels(bed: &mut Bed, effort: &Effort) -> Result<Value> {
    let (mut open, mut taken) = (Vec::new(), Vec::new());
    let each = effort.tunnels / effort.proxies.max(1);
    let begun = Instant::now();
    // The same share of the time for each proxy, so that all of them have some.
    let share = f64::from(effort.tunnel_seconds) / f64::from(effort.proxies.max(1));
    for count in 1..=effort.proxies {
        let proxy = Proxy::start(bed, effort, 8_093)?;
        for _ in 0..each {
            if begun.elapsed().as_secs_f64() > share * f64::from(count) {
                break;
            }
            let stream = bed.connect("10.1.0.1:8093")?;
            request(&stream, "1KiB")?;
            taken.push(micros(&proxy.says("adopted")?)?);
            open.push(stream);
        }
        proxy.kill()?;
        let seconds = begun.elapsed().as_secs_f64();
        println!(
            "{} tunnels, {count} proxies killed, {seconds:.1} s",
            open.len()
        );
    }
    let opened = begun.elapsed().as_secs_f64();
    let lost = open
        .iter()
        .filter(|stream| request(stream, "1KiB").is_err())
        .count();
    let (count, median_us) = (open.len(), median(taken.clone()));
    println!(
        "{count} tunnels, {} proxies killed, {lost} lost",
        effort.proxies
    );
    Ok(json!({
        "tunnels": count,
        "proxies_killed": effort.proxies,
        "lost": lost,
        "opened_in_s": opened,
        "adoption_us": median_us,
    }))
}
