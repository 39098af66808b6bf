//! Speed and memory of Fairlead, alone and against peers. `make bench` runs it and keeps the
//! results in `bench/records`.

mod alloc;
mod begin_bench;
mod builds;
mod cache_bench;
mod compare;
mod core_bench;
mod cost;
mod fastpath_bench;
mod flood;
mod front;
mod handoff;
mod held;
mod meter;
mod open;
mod operator_bench;
mod pairs;
mod peers;
mod report;
mod sockmap;
mod stand;
mod table;
mod tag_bench;
mod testbed;
mod world;

use std::io::IsTerminal;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use clap::{Args, Parser, Subcommand};
use serde_json::{Value, json};

use testbed::{Layout, Testbed, congestion};

#[global_allocator]
static ALLOCATOR: alloc::Counting = alloc::Counting;

/// Measures Fairlead: its core in memory, and all of it beside proxies and plain forwarding.
#[derive(Debug, Parser)]
#[command(version)]
struct Arguments {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// The core in memory, one thread: spliced packets, handshakes, bytes per connection.
    Core(Core),
    /// Requests/s beside HAProxy, nginx and plain forwarding, in network namespaces of its own.
    Peers(Bed),
    /// Nanoseconds a packet in the kernel program, by step and by flow table (BPF_PROG_TEST_RUN).
    Fastpath(Fastpath),
    /// What the operator's side costs: access lists at each SYN, a list of all connections.
    Operator(Operator),
    /// Connections that a proxy hands off, beside HAProxy, nginx and plain forwarding.
    Pairs(Pairs),
    #[command(hide = true)]
    Sockmap(sockmap::Proxy),
    /// Requests routed one by one, and answers from a cache, beside HAProxy, nginx and Varnish.
    Front(Front),
    /// nginx with and without `fairlead content meter` at its interface.
    Meter(Meter),
    /// What the switch's own core is busy with for each request, beside the same peers.
    Cost(Bed),
    /// Thousands of open connections of which one in 20 is active, beside the same peers.
    Open(Open),
    /// Holds connections open for one of the others, until its standard input ends.
    #[command(hide = true)]
    Hold(held::Hold),
    /// Compares this build with another one in alternation: rows of core and peers that are slower.
    Builds(Builds),
    /// A SYN flood, bounded in rate and time: what it does to open and to new connections.
    Flood(Flood),
    /// Connections that become sockets of this machine, beside proxies; restarts under them.
    Handoff(Handoff),
    /// Writes docs/performance.md and the README's table from the records that they cite.
    Report(report::Report),
    /// Two records of one kind, number by number.
    Compare(compare::Compare),
}

#[derive(Debug, Args)]
struct Core {
    /// Connections of the large case.
    #[arg(long, default_value_t = 1_000_000)]
    connections: u32,
    /// Packets in each timed round.
    #[arg(long, default_value_t = 4_000_000)]
    packets: u64,
    /// Rounds; the median counts.
    #[arg(long, default_value_t = 7)]
    rounds: usize,
    /// SYNs of the flood.
    #[arg(long, default_value_t = 10_000_000)]
    syns: u64,
    /// Folder in which the result is kept as JSON.
    #[arg(long)]
    record: Option<PathBuf>,
}

#[derive(Debug, Args)]
struct Fastpath {
    /// Connections on record, one row each.
    #[arg(long, value_delimiter = ',', default_values_t = [1_000, 100_000, 1_000_000])]
    connections: Vec<u32>,
    /// Packets in each round.
    #[arg(long, default_value_t = 4_000)]
    packets: u32,
    /// Alternations; the median counts.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Folder in which the result is kept as JSON.
    #[arg(long)]
    record: Option<PathBuf>,
}

/// What a client asks of each way in turn.
#[derive(Debug, Args)]
struct Load {
    /// The fairlead binary; beside this one unless given.
    #[arg(long)]
    fairlead: Option<PathBuf>,
    /// Alternations; the median counts.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Seconds of each measurement.
    #[arg(long, default_value_t = 2)]
    seconds: u32,
    /// Connections of the client.
    #[arg(long, default_value_t = 64)]
    connections: u32,
    /// Folder in which the result is kept as JSON.
    #[arg(long)]
    record: Option<PathBuf>,
}

impl Load {
    fn fairlead(&self) -> Result<PathBuf> {
        match &self.fairlead {
            Some(given) => Ok(given.clone()),
            None => beside("fairlead"),
        }
    }
}

/// A program in the folder of this one.
fn beside(name: &str) -> Result<PathBuf> {
    let own = std::env::current_exe()?;
    Ok(own.parent().context("a folder")?.join(name))
}

#[derive(Debug, Args)]
struct Pairs {
    #[command(flatten)]
    load: Load,
    /// The example proxy; in `examples` beside this program unless given.
    #[arg(long)]
    proxy: Option<PathBuf>,
    /// Where packets are forwarded.
    #[arg(long, default_value = "auto")]
    mode: String,
    /// Adoptions and give-backs of one connection.
    #[arg(long, default_value_t = 100)]
    moves: u32,
    /// Proxies that are killed.
    #[arg(long, default_value_t = 20)]
    proxies: u32,
    /// Tunnels that they hand off, in all.
    #[arg(long, default_value_t = 10_000)]
    tunnels: u32,
    /// No more tunnels are opened after this number of seconds.
    #[arg(long, default_value_t = 75)]
    tunnel_seconds: u32,
}

impl Pairs {
    fn run(self) -> Result<()> {
        let effort = pairs::Effort {
            fairlead: self.load.fairlead()?,
            proxy: self.proxy.map_or_else(|| beside("examples/proxy"), Ok)?,
            mode: self.mode,
            rounds: self.load.rounds.max(1),
            seconds: self.load.seconds.max(1),
            connections: self.load.connections.max(1),
            moves: self.moves.max(1),
            proxies: self.proxies.max(1),
            tunnels: self.tunnels,
            tunnel_seconds: self.tunnel_seconds,
        };
        keep("pairs", pairs::run(&effort)?, self.load.record.as_deref())
    }
}

#[derive(Debug, Args)]
struct Front {
    #[command(flatten)]
    load: Load,
    /// Where packets are forwarded.
    #[arg(long, default_value = "auto")]
    mode: String,
}

impl Front {
    fn run(self) -> Result<()> {
        let effort = front::Effort {
            fairlead: self.load.fairlead()?,
            mode: self.mode,
            rounds: self.load.rounds.max(1),
            seconds: self.load.seconds.max(1),
            connections: self.load.connections.max(1),
        };
        keep("front", front::run(&effort)?, self.load.record.as_deref())
    }
}

#[derive(Debug, Args)]
#[command(mut_arg("rounds", |rounds| rounds.default_value("7")))]
struct Meter {
    #[command(flatten)]
    load: Load,
}

impl Meter {
    fn run(self) -> Result<()> {
        let effort = meter::Effort {
            fairlead: self.load.fairlead()?,
            rounds: self.load.rounds.max(1),
            seconds: self.load.seconds.max(1),
            connections: self.load.connections.max(1),
        };
        keep("meter", meter::run(&effort)?, self.load.record.as_deref())
    }
}

#[derive(Debug, Args)]
struct Operator {
    /// Prefixes of a list, one row each.
    #[arg(long, value_delimiter = ',', default_values_t = [1_000, 100_000, 1_000_000])]
    prefixes: Vec<u32>,
    /// SYNs in each round.
    #[arg(long, default_value_t = 20_000)]
    syns: u32,
    /// Alternations; the median counts.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Connections in the list.
    #[arg(long, default_value_t = 1_000_000)]
    connections: u32,
    /// Folder in which the result is kept as JSON.
    #[arg(long)]
    record: Option<PathBuf>,
}

#[derive(Debug, Args)]
struct Bed {
    /// The fairlead binary; beside this one unless given.
    #[arg(long)]
    fairlead: Option<PathBuf>,
    /// Where packets are forwarded: engine (user space, behind a TUN device), tc, xdp, auto.
    #[arg(long, default_value = "auto")]
    mode: String,
    /// The links' offloads: on as shipped, or off as on a wire.
    #[arg(long, value_enum, default_value_t = Offloads::On)]
    offloads: Offloads,
    /// The hosts' congestion control: cubic unless given, or this machine's own if that is not
    /// allowed in its namespaces.
    #[arg(long, value_name = "NAME")]
    congestion: Option<String>,
    /// Alternations; the median counts.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Seconds of each measurement.
    #[arg(long, default_value_t = 2)]
    seconds: u32,
    /// Connections of the client.
    #[arg(long, default_value_t = 64)]
    connections: u32,
    /// Of peers and cost: only rows whose title contains this, as `keep-alive, 1KiB`.
    #[arg(long, default_value = "")]
    only: String,
    /// Of peers and cost: every request asks with a query of its own, so that no two heads are the
    /// same.
    #[arg(long)]
    distinct: bool,
    /// Of peers: packets that the switch's interfaces receive are steered over all cores (receive
    /// packet steering), as an operator may do where an interface has fewer queues than there are
    /// cores.
    #[arg(long)]
    steer: bool,
    /// Of peers: the switch's interfaces join the segments that they receive (generic receive
    /// offload) in spite of `--offloads off`.
    #[arg(long)]
    join: bool,
    /// Folder in which the result is kept as JSON.
    #[arg(long)]
    record: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Offloads {
    On,
    Off,
}

#[derive(Debug, Args)]
struct Open {
    #[command(flatten)]
    bed: Bed,
    /// Open connections, one row each.
    #[arg(long, value_delimiter = ',', default_values_t = [1_000, 10_000, 100_000])]
    open: Vec<u32>,
}

#[derive(Debug, Args)]
struct Builds {
    #[command(flatten)]
    bed: Bed,
    /// Folder with `fairlead` and `fairlead-bench` of the other build, such as `target/release`.
    #[arg(long, value_name = "FOLDER")]
    other: PathBuf,
    /// Connections of the core's large case.
    #[arg(long, default_value_t = 1_000_000)]
    core_connections: u32,
}

#[derive(Debug, Args)]
struct Flood {
    #[command(flatten)]
    bed: Bed,
    /// Legitimate new connections a second.
    #[arg(long, default_value_t = 1_000)]
    legitimate: u32,
    /// SYNs of the flood for each of them.
    #[arg(long, default_value_t = 100)]
    times: u32,
    /// Connections that are open all the time.
    #[arg(long, default_value_t = 1_000)]
    held: u32,
}

#[derive(Debug, Args)]
struct Handoff {
    /// The fairlead binary; beside this one unless given.
    #[arg(long)]
    fairlead: Option<PathBuf>,
    /// Alternations; the median counts.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Seconds of each measurement.
    #[arg(long, default_value_t = 2)]
    seconds: u32,
    /// Connections of the client.
    #[arg(long, default_value_t = 64)]
    connections: u32,
    /// Restarts, and reloads, of the server.
    #[arg(long, default_value_t = 20)]
    restarts: usize,
    /// Connections that sleep for the measurement of memory.
    #[arg(long, default_value_t = 5_000)]
    sleepers: usize,
    /// What is measured: newcomers, tracker, memory, restarts.
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "newcomers,tracker,memory,restarts"
    )]
    parts: Vec<String>,
    /// Folder in which the result is kept as JSON.
    #[arg(long)]
    record: Option<PathBuf>,
}

fn main() -> Result<()> {
    match Arguments::parse().what {
        What::Core(arguments) => core(&arguments),
        What::Fastpath(Fastpath {
            connections,
            packets,
            rounds,
            record,
        }) => {
            let result = fastpath_bench::run(&connections, packets.max(1), rounds.max(1))?;
            keep("fastpath", result, record.as_deref())
        }
        What::Operator(Operator {
            prefixes,
            syns,
            rounds,
            connections,
            record,
        }) => {
            let rounds = rounds.max(1);
            let result = operator_bench::run(&prefixes, syns.max(1), rounds, connections)?;
            keep("operator", result, record.as_deref())
        }
        What::Pairs(pairs) => pairs.run(),
        What::Sockmap(proxy) => proxy.run(),
        What::Front(front) => front.run(),
        What::Meter(meter) => meter.run(),
        What::Peers(bed) => {
            let mut testbed = Testbed::new(&bed.layout(false, 1_000)?)?;
            let result = peers::run(&mut testbed, bed.effort(), &bed.cases()?)?;
            bed.keep("peers", &testbed, result)
        }
        What::Cost(bed) => {
            let mut testbed = Testbed::new(&bed.layout(true, 1_000)?)?;
            let result = cost::run(&mut testbed, bed.effort(), &bed.cases()?)?;
            bed.keep("cost", &testbed, result)
        }
        What::Open(Open { bed, open }) => {
            let most = open.iter().copied().max().unwrap_or(0);
            let mut testbed = Testbed::new(&bed.layout(false, most)?)?;
            let result = open::run(&mut testbed, bed.effort(), &open)?;
            bed.keep("open", &testbed, result)
        }
        What::Hold(hold) => held::hold(&hold),
        What::Builds(arguments) => builds(&arguments),
        What::Flood(arguments) => flood(&arguments),
        What::Handoff(arguments) => handoff(&arguments),
        What::Report(report) => report::run(&report),
        What::Compare(compare) => compare::run(&compare),
    }
}

fn builds(arguments: &Builds) -> Result<()> {
    let bed = &arguments.bed;
    let other = builds::Build(arguments.other.clone());
    let effort = bed.effort();
    let options = [
        format!("--connections={}", arguments.core_connections),
        "--packets=2000000".to_owned(),
        "--syns=2000000".to_owned(),
    ];
    let core = builds::core(&other, effort.rounds, &options)?;
    let mut testbed = Testbed::new(&bed.layout(false, 1_000)?)?;
    let requests = builds::requests(&mut testbed, &other, effort, &bed.cases()?)?;
    let slower = builds::slower(&core) + builds::slower(&requests);
    println!(
        "{slower} of {} rows are slower",
        core.len() + requests.len()
    );
    let result = json!({
        "rounds": effort.rounds,
        "seconds": effort.seconds,
        "core": core,
        "requests": requests,
    });
    bed.keep("builds", &testbed, result)
}

fn core(arguments: &Core) -> Result<()> {
    let live = std::io::stderr().is_terminal();
    let progress = move |done: u32| {
        if live {
            eprint!("\r  {done} connections spliced");
        }
    };
    let (memory, mut large) = core_bench::memory(arguments.connections, progress)?;
    if live {
        eprintln!();
    }
    show("memory", &memory);
    let mut splice = splice_cases(&mut large, arguments)?;
    let mut tcb_cache = cache_cases(&mut large, arguments)?;
    drop(large);
    let mut small = world::World::new(1_000)?;
    small.splice(1_000, |_| {})?;
    splice.extend(splice_cases(&mut small, arguments)?);
    tcb_cache.extend(cache_cases(&mut small, arguments)?);
    let handshakes = core_bench::handshakes(arguments.syns)?;
    show("handshakes", &handshakes);
    let result = json!({
        "memory": memory,
        "splice": splice,
        "tcb_cache": tcb_cache,
        "handshakes": handshakes,
    });
    keep("core", result, arguments.record.as_deref())
}

fn splice_cases(world: &mut world::World, arguments: &Core) -> Result<Vec<Value>> {
    let mut cases = Vec::new();
    for (payload_bytes, timestamps) in [(0, true), (0, false), (1_400, true)] {
        let (packets, rounds) = (arguments.packets, arguments.rounds);
        let case = core_bench::splice_rate(world, packets, rounds, payload_bytes, timestamps)?;
        show("splice", &case);
        cases.push(case);
    }
    Ok(cases)
}

fn cache_cases(world: &mut world::World, arguments: &Core) -> Result<Vec<Value>> {
    let cases = cache_bench::run(world, arguments.packets / 4, arguments.rounds)?;
    cases.iter().for_each(|case| show("tcb cache", case));
    Ok(cases)
}

fn handoff(arguments: &Handoff) -> Result<()> {
    let beside = std::env::current_exe()?.with_file_name("fairlead");
    let effort = handoff::Effort {
        rounds: arguments.rounds.max(1),
        seconds: arguments.seconds.max(1),
        connections: arguments.connections.max(1),
        restarts: arguments.restarts.max(1),
        sleepers: arguments.sleepers.max(1),
    };
    let fairlead = arguments.fairlead.clone().unwrap_or(beside);
    let mut result = handoff::run(fairlead, effort, &arguments.parts)?;
    result["haproxy"] = json!(version("haproxy", "-v"));
    result["nginx"] = json!(version("nginx", "-v"));
    keep("handoff", result, arguments.record.as_deref())
}

fn flood(arguments: &Flood) -> Result<()> {
    let bed = &arguments.bed;
    let layout = bed.layout(false, 1_000)?;
    let testbed = Testbed::new(&Layout {
        stranger: true,
        ..layout
    })?;
    let storm = flood::Storm {
        rounds: bed.rounds,
        seconds: bed.seconds,
        legitimate: arguments.legitimate,
        times: arguments.times,
        held: arguments.held,
    };
    let result = flood::run(&testbed, storm)?;
    bed.keep("flood", &testbed, result)
}

impl Bed {
    fn layout(&self, apart: bool, open: u32) -> Result<Layout> {
        let own = std::env::current_exe()?;
        let beside = || own.with_file_name("fairlead");
        Ok(Layout {
            fairlead: self.fairlead.clone().unwrap_or_else(beside),
            mode: self.mode.clone(),
            offloads: self.offloads == Offloads::On,
            congestion: self.congestion.clone(),
            apart,
            steer: self.steer && !apart,
            join: self.join && !apart,
            client_addresses: 8,
            open,
            stranger: false,
        })
    }

    fn effort(&self) -> peers::Effort {
        peers::Effort {
            rounds: self.rounds.max(1),
            seconds: self.seconds.max(1),
            connections: self.connections,
            distinct: self.distinct,
        }
    }

    /// The rows that are asked for.
    fn cases(&self) -> Result<Vec<peers::Case>> {
        let cases = peers::Case::all().filter(|case| case.title().contains(&self.only));
        let cases: Vec<peers::Case> = cases.collect();
        ensure!(!cases.is_empty(), "no row's title contains {:?}", self.only);
        Ok(cases)
    }

    /// Keeps a result under the name of what was measured, and how.
    fn keep(&self, name: &str, testbed: &Testbed, mut result: Value) -> Result<()> {
        let offloads = match self.offloads {
            Offloads::On => "",
            Offloads::Off => "-offloads-off",
        };
        result["mode"] = json!(self.mode);
        result["fast_path"] = json!(testbed.fast_path());
        result["offloads"] = json!(self.offloads == Offloads::On);
        result["congestion_control"] = json!(testbed.congestion);
        result["haproxy"] = json!(version("haproxy", "-v"));
        result["nginx"] = json!(version("nginx", "-v"));
        let congestion = match testbed.congestion.as_str() {
            congestion::USUAL => String::new(),
            other => format!("-{other}"),
        };
        let distinct = if self.distinct { "-distinct" } else { "" };
        let steer = if self.steer { "-steer" } else { "" };
        let join = if self.join { "-join" } else { "" };
        let name = format!(
            "{name}-{}{offloads}{congestion}{distinct}{steer}{join}",
            self.mode
        );
        keep(&name, result, self.record.as_deref())
    }
}

fn version(program: &str, flag: &str) -> Option<String> {
    let path = fairlead_netns::program(program)?;
    let output = std::process::Command::new(path).arg(flag).output().ok()?;
    let text = [output.stdout, output.stderr].concat();
    Some(String::from_utf8_lossy(&text).lines().next()?.to_owned())
}

/// Writes a result with what it was measured on.
fn keep(name: &str, result: Value, folder: Option<&Path>) -> Result<()> {
    let Some(folder) = folder else { return Ok(()) };
    std::fs::create_dir_all(folder).with_context(|| format!("making {}", folder.display()))?;
    let commit = commit().unwrap_or_else(|| "unknown".into());
    let record = json!({
        "machine": machine(),
        "commit": commit,
        "command": command(),
        "result": result,
    });
    let path = folder.join(format!("{name}-{commit}.json"));
    let text = serde_json::to_string_pretty(&record)? + "\n";
    std::fs::write(&path, text).with_context(|| format!("writing {}", path.display()))?;
    println!("kept in {}", path.display());
    Ok(())
}

/// The command line, without the folder that the program was built in.
fn command() -> String {
    let rest = std::env::args().skip(1);
    std::iter::once("fairlead-bench".to_owned())
        .chain(rest)
        .collect::<Vec<_>>()
        .join(" ")
}

fn show(name: &str, value: &Value) {
    let fields = value.as_object().into_iter().flatten();
    let fields: Vec<String> = fields
        .map(|(key, value)| format!("{key} {value}"))
        .collect();
    println!("{name}: {}", fields.join(", "));
}

fn read_line(path: &str, key: &str) -> Option<String> {
    let text = std::fs::read_to_string(path).ok()?;
    let line = text.lines().find(|line| line.starts_with(key))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}

/// What this ran on.
fn machine() -> Value {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    json!({
        "cpu": read_line("/proc/cpuinfo", "model name"),
        "cores": std::thread::available_parallelism().map_or(0, usize::from),
        "memory": read_line("/proc/meminfo", "MemTotal"),
        "kernel": release.trim(),
    })
}

fn commit() -> Option<String> {
    let output = std::process::Command::new("git")
        .args(["rev-parse", "--short=12", "HEAD"])
        .output();
    let text = String::from_utf8(output.ok()?.stdout).ok()?;
    Some(text.trim().to_owned())
}
