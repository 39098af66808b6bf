//! What the operator's side costs: an access list at each SYN in the kernel program, another list
//! by order, and a list of all connections.

use std::time::Instant;

use anyhow::{Context, Result, ensure};
use fairlead_base::{Address, Endpoint, FlowKey, Rng, SeqNumber};
use fairlead_bpf_loader::{AccessPrefix, AccessRule, Fate, Kernel, Mode, interface_index};
use fairlead_datapath::Selection;
use fairlead_netns::World as Hosts;
use fairlead_splice::access::{AccessEntry, AccessList};
use fairlead_tcp::SynOffload;
use fairlead_wire::{TcpFlags, TcpRepr};
use serde_json::{Value, json};

use crate::fastpath_bench::{SYN_OPTIONS, endpoints, host, offer, server};
use crate::table::{median, row};
use crate::world::World;

/// Lines that are looked at between two batches of packets, as in the binary.
const LINES_AT_ONCE: u32 = 4_096;

pub(crate) fn run(prefixes: &[u32], syns: u32, rounds: usize, connections: u32) -> Result<Value> {
    Ok(json!({
        "access": access(prefixes, syns, rounds)?,
        "order": prefixes.iter().map(|&count| order(count, rounds)).collect::<Vec<_>>(),
        "listing": listing(connections, rounds)?,
    }))
}

/// A list of random prefixes of IPv4, all of which allow.
fn list(count: u32) -> AccessList {
    let mut rng = Rng::new(7);
    let entries = (0..count).map(|_| {
        let bits = 12 + rng.below(21) as u8;
        let word = rng.next_u64() as u32 & u32::MAX << (32 - bits);
        AccessEntry {
            first: Address::v4(word.to_be_bytes()),
            bits,
            allow: true,
        }
    });
    AccessList::new("some", true, entries.collect())
}

/// A SYN from anywhere.
fn syn(rng: &mut Rng) -> Vec<u8> {
    // Global unicast addresses, some of which are this machine's or none's.
    let word = 0x0b00_0000 + rng.below(0x6000_0000);
    let mut packet = Vec::new();
    TcpRepr {
        key: FlowKey {
            src: Endpoint {
                addr: Address::v4(word.to_be_bytes()),
                port: 40_000,
            },
            dst: server(false),
        },
        seq: SeqNumber(1),
        ack: SeqNumber(0),
        flags: TcpFlags::SYN,
        window: 64_240,
        options: &SYN_OPTIONS,
        payload: &[],
        ttl: 60,
    }
    .emit(&mut packet);
    let link = [2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0];
    [&link[..], &packet].concat()
}

/// A SYN from a random address, run once a call: the kernel's own measure of one run.
fn access(sizes: &[u32], syns: u32, rounds: usize) -> Result<Vec<Value>> {
    let mut hosts = Hosts::new()?;
    let host = host(&mut hosts)?;
    host.route("0.0.0.0/0", "10.1.0.9")?;
    host.enter(|| {
        let interface = interface_index("c").context("the client's interface")?;
        let mut kernels = vec![(0, kernel(None)?)];
        for &count in sizes {
            kernels.push((count, kernel(Some(&list(count)))?));
        }
        let mut all = vec![Vec::new(); kernels.len()];
        for round in 0..rounds {
            for (at, (_, kernel)) in kernels.iter_mut().enumerate() {
                let mut rng = Rng::new(round as u64);
                let mut each = Vec::new();
                for _ in 0..syns {
                    let trial = kernel.try_frame(&syn(&mut rng), interface, 1)?;
                    ensure!(trial.fate == Fate::Redirect, "{:?}", trial.fate);
                    each.push(trial.each.as_nanos() as f64);
                }
                all[at].push(median(each));
            }
        }
        let base = median(all[0].clone());
        let rows = kernels.iter().zip(all).map(|((count, _), rounds)| {
            let more: Vec<f64> = rounds.iter().map(|one| one - base).collect();
            let ns = median(rounds);
            row(
                &format!("SYN, {count} prefixes"),
                [format!("{ns:.0} ns"), format!("{:+.0} ns", ns - base)],
            );
            json!({ "prefixes": count, "syn_ns": ns, "more_ns": median(more) })
        });
        Ok(rows.collect())
    })?
}

fn kernel(list: Option<&AccessList>) -> Result<Kernel> {
    let (mut kernel, mut table) = Kernel::load(Mode::Tc, 4, &endpoints(), (1, 2), 0)?;
    if let Some(list) = list {
        let rule = AccessRule {
            index: 0,
            listen: server(false),
            lists: vec![(0, list.default_allow())],
            counter: 0,
            reset: false,
        };
        let prefixes = list.entries().iter().map(|entry| AccessPrefix {
            list: 0,
            first: entry.first,
            bits: entry.bits,
            allow: entry.allow,
        });
        kernel.set_access(&mut table, prefixes, &[rule])?;
    }
    table.set_offer(server(false), &offer());
    Ok(kernel)
}

/// CPU time of this thread, milliseconds. The kernel brings it up to date at its ticks: what takes
/// less than a few of them is measured many times over.
fn thread_ms() -> f64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let first = text.split(' ').next();
    let ns: Option<f64> = first.and_then(|word| word.parse().ok());
    ns.unwrap_or(0.0) / 1e6
}

/// One prefix more in a list: sorting it anew, outside the packets' thread.
fn order(count: u32, rounds: usize) -> Value {
    let list = list(count);
    let entry = AccessEntry {
        first: Address::v4([192, 0, 2, 1]),
        bits: 32,
        allow: false,
    };
    let times = (2_000_000 / count.max(1)).max(1);
    let spent = (0..rounds).map(|_| {
        let begun = thread_ms();
        for _ in 0..times {
            let changed = list.changed(&[(entry, Some(false))]);
            assert!(!changed.allows(entry.first));
        }
        (thread_ms() - begun) / f64::from(times)
    });
    let ms = median(spent.collect::<Vec<_>>());
    row(&format!("order, {count} prefixes"), [format!("{ms:.2} ms")]);
    json!({ "prefixes": count, "cpu_ms": ms })
}

/// Lists of all connections in one measure.
const LISTS: usize = 10;

/// A list of all connections, in pieces between which packets are handled: CPU time of the whole,
/// and how long a piece takes.
fn listing(connections: u32, rounds: usize) -> Result<Value> {
    let mut world = World::new(connections)?;
    world.splice(connections, |_| {})?;
    let (mut whole, mut pieces) = (Vec::new(), Vec::new());
    for _ in 0..rounds {
        let begun = thread_ms();
        for _ in 0..LISTS {
            let (mut from, mut count) = (Some(0), 0);
            while let Some(line) = from {
                let piece = Instant::now();
                let mut found = Vec::new();
                let lines = (line, LINES_AT_ONCE);
                let all = Selection::default();
                from = world
                    .datapath
                    .connections(world.now, &all, lines, &mut found);
                count += found.len();
                pieces.push(piece.elapsed().as_secs_f64() * 1e3);
            }
            ensure!(count == connections as usize, "{count} connections");
        }
        whole.push((thread_ms() - begun) / LISTS as f64);
    }
    let (whole, piece) = (median(whole), median(pieces));
    row(
        &format!("list {connections} connections"),
        [format!("{whole:.0} ms"), format!("{piece:.2} ms a piece")],
    );
    Ok(json!({ "connections": connections, "cpu_ms": whole, "piece_ms": piece }))
}
