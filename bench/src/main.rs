//! Speed and memory of Fairlead, alone and against peers. `make bench` runs it and keeps the
//! results in `bench/records`.

mod alloc;
mod cache_bench;
mod core_bench;
mod peers;
mod world;

use std::io::IsTerminal;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::{Args, Parser, Subcommand};
use serde_json::{Value, json};

#[global_allocator]
static ALLOCATOR: alloc::Counting = alloc::Counting;

/// Measures Fairlead: its core in memory, and its TUN path against HAProxy.
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
    /// Fairlead against HAProxy and plain forwarding, in network namespaces of its own.
    Peers(Peers),
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
struct Peers {
    /// The fairlead binary; beside this one unless given.
    #[arg(long)]
    fairlead: Option<PathBuf>,
    /// Where packets are forwarded: engine (user space, behind a TUN device), tc, auto.
    #[arg(long, default_value = "engine")]
    mode: String,
    /// Alternations; the median counts.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Seconds of each measurement.
    #[arg(long, default_value_t = 3)]
    seconds: u32,
    /// Connections of the client.
    #[arg(long, default_value_t = 64)]
    connections: u32,
    /// Folder in which the result is kept as JSON.
    #[arg(long)]
    record: Option<PathBuf>,
}

fn main() -> Result<()> {
    match Arguments::parse().what {
        What::Core(arguments) => core(&arguments),
        What::Peers(arguments) => peers(&arguments),
    }
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

fn peers(arguments: &Peers) -> Result<()> {
    let own = std::env::current_exe()?;
    let fairlead = arguments
        .fairlead
        .clone()
        .unwrap_or_else(|| own.with_file_name("fairlead"));
    let effort = peers::Effort {
        mode: arguments.mode.clone(),
        rounds: arguments.rounds,
        seconds: arguments.seconds,
        connections: arguments.connections,
    };
    let result = peers::run(&fairlead, &effort)?;
    let name = match effort.mode.as_str() {
        "engine" => "peers".to_owned(),
        mode => format!("peers-{mode}"),
    };
    keep(&name, result, arguments.record.as_deref())
}

/// Writes a result with what it was measured on.
fn keep(name: &str, result: Value, folder: Option<&Path>) -> Result<()> {
    let Some(folder) = folder else { return Ok(()) };
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
