//! Speed and memory of Fairlead's core. `make bench` runs it and keeps the result.

mod alloc;
mod core_bench;
mod world;

use std::io::IsTerminal;
use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::Parser;
use serde_json::{Value, json};

#[global_allocator]
static ALLOCATOR: alloc::Counting = alloc::Counting;

/// Measures the core in memory: spliced packets, handshakes, bytes per connection.
#[derive(Debug, Parser)]
#[command(version)]
struct Arguments {
    /// Connections of the large case.
    #[arg(long, default_value_t = 1_000_000)]
    connections: u32,
    /// Packets in each timed round.
    #[arg(long, default_value_t = 4_000_000)]
    packets: u64,
    /// Rounds; the median counts.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// SYNs of the flood.
    #[arg(long, default_value_t = 10_000_000)]
    syns: u64,
    /// Where the result is written as JSON.
    #[arg(long)]
    record: Option<PathBuf>,
}

fn say(text: &str) {
    eprintln!("{text}");
}

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    let live = std::io::stderr().is_terminal();
    let progress = move |done: u32| {
        if live {
            eprint!("\r  {done} connections spliced");
        }
    };
    say("memory: splicing connections one by one");
    let (memory, mut large) = core_bench::memory(arguments.connections, progress)?;
    if live {
        eprintln!();
    }
    show("memory", &memory);
    let mut splice = Vec::new();
    for (payload_bytes, timestamps) in [(0, true), (1_400, true)] {
        let (packets, rounds) = (arguments.packets, arguments.rounds);
        let case = core_bench::splice_rate(&mut large, packets, rounds, payload_bytes, timestamps)?;
        show("splice", &case);
        splice.push(case);
    }
    drop(large);
    let mut small = world::World::new(1_000)?;
    small.splice(1_000, |_| {})?;
    for (payload_bytes, timestamps) in [(0, true), (0, false), (1_400, true)] {
        let (packets, rounds) = (arguments.packets, arguments.rounds);
        let case = core_bench::splice_rate(&mut small, packets, rounds, payload_bytes, timestamps)?;
        show("splice", &case);
        splice.push(case);
    }
    let handshakes = core_bench::handshakes(arguments.syns)?;
    show("handshakes", &handshakes);
    let result = json!({
        "machine": machine(),
        "commit": commit(),
        "command": std::env::args().collect::<Vec<_>>().join(" "),
        "memory": memory,
        "splice": splice,
        "handshakes": handshakes,
    });
    if let Some(path) = arguments.record {
        let text = serde_json::to_string_pretty(&result)? + "\n";
        std::fs::write(&path, text).with_context(|| format!("writing {}", path.display()))?;
    }
    Ok(())
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
