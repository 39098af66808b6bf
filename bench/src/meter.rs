//! What `fairlead content meter` costs a server: requests/s of nginx with and without the meter at
//! its interface, in alternation.

use std::fs;
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use fairlead_netns::{Host, Running, Signal, World};
use serde_json::{Value, json};

use crate::stand::{Stand, load_before, processor_seconds};
use crate::table::{median, ratio};
use crate::testbed::targets::nginx;
use crate::testbed::wrk::{self, Sample};

/// How long anything may take.
const PATIENCE: Duration = Duration::from_secs(20);
const SERVER: &str = "10.1.0.1:8081";
/// How long the meter may take until it is attached.
const ATTACHES: Duration = Duration::from_millis(600);

/// What is measured, and how much of it.
#[derive(Clone, Debug)]
pub(crate) struct Effort {
    pub(crate) fairlead: PathBuf,
    pub(crate) rounds: usize,
    pub(crate) seconds: u32,
    pub(crate) connections: u32,
}

const FILES: [(&str, usize); 3] = [("1KiB", 1 << 10), ("16KiB", 16 << 10), ("64KiB", 64 << 10)];

pub(crate) fn run(effort: &Effort) -> Result<Value> {
    fairlead_netns::raise_open_files(65_536)?;
    // On a disk: pages of tmpfs are never written back.
    let mut stand = Stand::new(&std::env::temp_dir(), "meter")?;
    fs::create_dir_all(stand.folder.join("files"))?;
    for (name, bytes) in FILES {
        let path = stand.folder.join("files").join(name);
        fs::write(&path, vec![b'x'; bytes])?;
        fs::File::open(&path)?.sync_all()?;
    }
    let mut world = World::new()?;
    let (client, server) = (world.host("client")?, world.host("server")?);
    let link = world.link((&client, &["10.1.0.2/24"]), (&server, &["10.1.0.1/24"]))?;
    server.sysctl("net.core.somaxconn", "16384")?;
    let prefix = stand.folder.display().to_string();
    let inside = format!(
        "sendfile on; tcp_nopush on; open_file_cache max=100;\n\
         server {{ listen {SERVER} backlog=16384; root {prefix}/files; }}"
    );
    let path = stand.write("server.conf", &nginx(&stand.folder, "server", &inside))?;
    let id = stand.spawn(&server, &["nginx", "-p", &prefix, "-c", &path])?;
    wait_for(&client)?;
    let load = load_before();
    let bed = Bed {
        effort,
        stand,
        client,
        server,
        nginx: id,
        interface: link.b,
    };
    let mut rows = Vec::new();
    for (file, _) in FILES {
        rows.push(bed.measure(file)?);
    }
    Ok(json!({
        "rounds": effort.rounds,
        "seconds": effort.seconds,
        "client_connections": effort.connections,
        "load_before": load,
        "rows": rows,
    }))
}

fn wait_for(client: &Host) -> Result<()> {
    let until = Instant::now() + PATIENCE;
    let address: SocketAddr = SERVER.parse()?;
    while Instant::now() < until {
        if client.enter(|| TcpStream::connect(address))?.is_ok() {
            return Ok(());
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    bail!("nginx does not answer")
}

struct Bed<'a> {
    effort: &'a Effort,
    stand: Stand,
    client: Host,
    server: Host,
    nginx: u32,
    interface: String,
}

/// Requests/s, and microseconds of nginx's process for each request.
type Round = (Sample, f64);

impl Bed<'_> {
    fn measure(&self, file: &str) -> Result<Value> {
        let (mut without, mut with) = (Vec::new(), Vec::new());
        let (mut packets, mut lost) = (0, 0);
        self.load(file, 1)?;
        for round in 0..self.effort.rounds {
            // Neither is always the first.
            for metered in [round % 2 == 0, round % 2 != 0] {
                if !metered {
                    // A machine that has rested is faster: both rest.
                    std::thread::sleep(ATTACHES);
                    without.push(self.load(file, self.effort.seconds)?);
                    continue;
                }
                let meter = self.meter()?;
                with.push(self.load(file, self.effort.seconds)?);
                let seen = self.end(meter)?;
                let number = |name: &str| seen[name].as_u64().unwrap_or(0);
                ensure!(number("content_bytes") > 0, "the meter saw nothing: {seen}");
                packets += number("packets");
                lost += number("lost_packets");
            }
        }
        let rates = |all: &[Round]| all.iter().map(|one| one.0.rate).collect::<Vec<f64>>();
        let micros = |all: &[Round]| median(all.iter().map(|one| one.1));
        let kept = ratio(&rates(&with), &rates(&without));
        println!(
            "{file}: {:.0} requests/s without, {:.0} with the meter, ratio {kept:.3}; nginx's \
             process {:.1} and {:.1} µs a request; {lost} of {packets} packets lost",
            median(rates(&without)),
            median(rates(&with)),
            micros(&without),
            micros(&with),
        );
        Ok(json!({
            "row": file,
            "requests_per_second_without": median(rates(&without)).round(),
            "requests_per_second_with": median(rates(&with)).round(),
            "ratio": kept,
            "process_microseconds_without": micros(&without),
            "process_microseconds_with": micros(&with),
            "packets": packets,
            "lost_packets": lost,
            "each_without": rates(&without),
            "each_with": rates(&with),
        }))
    }

    fn load(&self, file: &str, seconds: u32) -> Result<Round> {
        let before = processor_seconds(&[self.nginx]);
        let load = wrk::Load {
            address: SERVER,
            file,
            close: false,
            connections: self.effort.connections,
            seconds,
            distinct: false,
        };
        let sample = wrk::run(&self.client, &self.stand.folder, &[], &load)?;
        ensure!(sample.requests > 0, "nginx answers nothing");
        let used = processor_seconds(&[self.nginx]) - before;
        Ok((sample, used / sample.requests as f64 * 1e6))
    }

    fn meter(&self) -> Result<Running> {
        let mut command = self
            .server
            .command(&self.effort.fairlead.display().to_string());
        command
            .args(["content", "meter", "--json", "--interface", &self.interface])
            .stdout(fs::File::create(self.stand.folder.join("meter.json"))?)
            .stderr(Stdio::null());
        let mut meter = self.server.start(&mut command)?;
        std::thread::sleep(ATTACHES);
        ensure!(meter.is_alive(), "the meter does not run");
        Ok(meter)
    }

    fn end(&self, mut meter: Running) -> Result<Value> {
        meter.signal(Signal::Interrupt)?;
        meter
            .wait_for(PATIENCE)?
            .context("the meter does not end")?;
        let text = fs::read_to_string(self.stand.folder.join("meter.json"))?;
        Ok(serde_json::from_str(&text)?)
    }
}
