//! The core in memory, one thread: spliced packets, handshakes, memory.

use std::time::{Duration, Instant as Clock};

use anyhow::{Result, ensure};
use fairlead_base::{Endpoint, FlowKey, Packet, Rng, SeqNumber};
use fairlead_datapath::Verdict;
use fairlead_wire::{SynOptions, TcpFlags, Timestamps};
use serde_json::{Value, json};

use crate::alloc;
use crate::world::{self, World};

/// Packets handled in one call.
pub(crate) const BATCH: usize = 64;

/// Resident bytes of this process.
pub(crate) fn resident_bytes() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages = statm
        .split(' ')
        .nth(1)
        .and_then(|pages| pages.parse::<u64>().ok())
        .unwrap_or(0);
    pages * 4_096
}

pub(crate) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Receive buffers for packets of the usual MTU, as a network card's are. Each starts at another
/// offset within a page: buffers a power of two apart would fight for the same cache lines.
fn receive_buffers() -> Vec<Packet> {
    let bytes = |at: usize| Vec::with_capacity(2_048 + 64 * (at % 32));
    let buffers = 0..BATCH;
    buffers
        .map(|at| Packet {
            bytes: bytes(at),
            ..Packet::default()
        })
        .collect()
}

/// Headers of packets to come, ready to be copied into receive buffers: random connections, both
/// directions, ACKs of the client and full segments of the server in turn.
pub(crate) struct Source {
    headers: Vec<u8>,
    each_bytes: usize,
    next: usize,
}

/// Which connections packets belong to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Traffic {
    /// Any, each packet anew.
    Random,
    /// One of a hundred that are busy; each is busy for six packets in the mean.
    Bursts,
}

impl Traffic {
    /// The connection of each of `packets` packets, of `all` that there are.
    fn connections(self, all: usize, packets: usize) -> Vec<usize> {
        let mut rng = Rng::new(5);
        let mut any = |all: usize| rng.below(all as u32) as usize;
        let mut busy: Vec<usize> = (0..100).map(|_| any(all)).collect();
        (0..packets)
            .map(|_| match self {
                Self::Random => any(all),
                Self::Bursts => {
                    let one = any(busy.len());
                    if any(6) == 0 {
                        busy[one] = any(all);
                    }
                    busy[one]
                }
            })
            .collect()
    }
}

impl Source {
    pub(crate) fn new(world: &World, traffic: Traffic, payload: &[u8], timestamps: bool) -> Self {
        let packets = (world.flows.len() * 2).clamp(1 << 14, 1 << 20);
        let connections = traffic.connections(world.flows.len(), packets);
        let mut packet = Packet::default();
        let options: &[u8] = if timestamps {
            &[1, 1, 8, 10, 0, 0, 0, 9, 0, 0, 0, 9]
        } else {
            &[]
        };
        let mut headers = Vec::new();
        let mut each_bytes = 0;
        for (at, connection) in connections.into_iter().enumerate() {
            let flow = world.flows[connection];
            let (key, seq, ack) = if at % 2 == 0 {
                (flow.from_client, flow.client_nxt, flow.seen_nxt)
            } else {
                (flow.from_server, flow.server_nxt, flow.client_nxt)
            };
            world::segment(&mut packet, key, seq, ack, TcpFlags::ACK, options, payload);
            each_bytes = packet.bytes.len();
            headers.extend_from_slice(&packet.bytes);
        }
        Self {
            headers,
            each_bytes,
            next: 0,
        }
    }

    fn fill(&mut self, batch: &mut [Packet]) {
        for packet in batch {
            if self.next + self.each_bytes > self.headers.len() {
                self.next = 0;
            }
            packet.bytes.clear();
            packet
                .bytes
                .extend_from_slice(&self.headers[self.next..self.next + self.each_bytes]);
            self.next += self.each_bytes;
        }
    }
}

/// What came of a round.
pub(crate) struct Round {
    pub(crate) packets_per_second: f64,
    pub(crate) allocations: u64,
}

/// One round: packets per second through `handle_batch`. Between batches, `step` passes. Filling
/// the receive buffers is not timed. Allocations are an error.
pub(crate) fn round(
    world: &mut World,
    source: &mut Source,
    packets: u64,
    step: Duration,
) -> Result<Round> {
    let mut batch: Vec<Packet> = receive_buffers();
    for packet in &mut batch {
        packet.checksum = fairlead_base::Checksum::Verified;
    }
    let mut verdicts = Vec::with_capacity(BATCH);
    let (mut busy, mut allocations) = (Duration::ZERO, 0);
    for _ in 0..packets / BATCH as u64 {
        source.fill(&mut batch);
        let allocated = alloc::allocations();
        let start = Clock::now();
        world
            .datapath
            .handle_batch(world.now, &mut batch, &mut verdicts);
        busy += start.elapsed();
        allocations += alloc::allocations() - allocated;
        ensure!(
            verdicts.iter().all(|verdict| *verdict == Verdict::Transmit),
            "every packet is spliced"
        );
        world.now = world.now + step;
    }
    ensure!(
        allocations == 0,
        "{allocations} allocations in {packets} packets"
    );
    Ok(Round {
        packets_per_second: packets as f64 / busy.as_secs_f64(),
        allocations,
    })
}

/// Spliced packets per second through `handle_batch`. Filling the receive buffers is not timed:
/// that is a driver's work. Gives the medians of `rounds` rounds.
pub(crate) fn splice_rate(
    world: &mut World,
    packets: u64,
    rounds: usize,
    payload_bytes: usize,
    timestamps: bool,
) -> Result<Value> {
    let payload = vec![0u8; payload_bytes];
    let mut source = Source::new(world, Traffic::Random, &payload, timestamps);
    let (mut rates, mut allocations) = (Vec::new(), 0);
    for _ in 0..rounds {
        let round = round(world, &mut source, packets, Duration::ZERO)?;
        rates.push(round.packets_per_second);
        allocations += round.allocations;
    }
    let spread = (
        rates.iter().copied().fold(f64::MAX, f64::min),
        rates.iter().copied().fold(0.0, f64::max),
    );
    let rate = median(rates);
    Ok(json!({
        "connections": world.flows.len(),
        "payload_bytes": payload_bytes,
        "timestamps": timestamps,
        "packets_per_second": rate.round(),
        "nanoseconds_per_packet": (1e10 / rate).round() / 10.0,
        "slowest_round": spread.0.round(),
        "fastest_round": spread.1.round(),
        "rounds": rounds,
        "allocations": allocations,
    }))
}

/// SYN → SYN-ACK, each SYN from another tuple: rate, and growth of memory.
pub(crate) fn handshakes(syns: u64) -> Result<Value> {
    let mut world = World::new(1 << 16)?;
    let mut options = Vec::new();
    SynOptions {
        mss: Some(1460),
        window_scale: Some(7),
        sack_permitted: true,
        timestamps: Some(Timestamps { value: 1, echo: 0 }),
    }
    .emit(&mut options);
    let mut rng = Rng::new(3);
    let mut batch: Vec<Packet> = receive_buffers();
    let mut verdicts = Vec::with_capacity(BATCH);
    let mut busy = Duration::ZERO;
    let mut flood = |world: &mut World, syns: u64| -> Result<()> {
        for _ in 0..syns / BATCH as u64 {
            for packet in &mut batch {
                let word = rng.next_u64();
                let [a, b, c, ..] = word.to_be_bytes();
                let src = Endpoint {
                    addr: fairlead_base::Address::v4([1 + a % 200, b, c, 9]),
                    port: (word >> 8) as u16 | 1,
                };
                let key = FlowKey {
                    src,
                    dst: world::listen(),
                };
                let (seq, ack) = (SeqNumber(word as u32), SeqNumber(0));
                world::segment(packet, key, seq, ack, TcpFlags::SYN, &options, &[]);
                // A SYN comes from a stranger: its checksum is verified, and that is timed.
                packet.checksum = fairlead_base::Checksum::Complete;
            }
            let start = Clock::now();
            world
                .datapath
                .handle_batch(world.now, &mut batch, &mut verdicts);
            busy += start.elapsed();
            ensure!(verdicts.iter().all(|verdict| *verdict == Verdict::Transmit));
        }
        Ok(())
    };
    flood(&mut world, 100_000)?;
    let (heap, resident) = (alloc::bytes(), resident_bytes());
    let warm_up = 100_000 / BATCH as u64 * BATCH as u64;
    flood(&mut world, syns)?;
    let heap_growth = alloc::bytes() as i64 - heap as i64;
    let resident_growth = resident_bytes() as i64 - resident as i64;
    let handled = warm_up + syns / BATCH as u64 * BATCH as u64;
    let snapshot = world.datapath.snapshot();
    ensure!(snapshot.syn_acks == handled && snapshot.records == 0);
    Ok(json!({
        "syns": handled,
        "syn_acks_per_second": (handled as f64 / busy.as_secs_f64()).round(),
        "heap_growth_bytes": heap_growth,
        "resident_growth_bytes": resident_growth,
        "records": snapshot.records,
    }))
}

/// Bytes per spliced connection: heap, and what is resident.
pub(crate) fn memory(connections: u32, progress: impl FnMut(u32)) -> Result<(Value, World)> {
    let (heap, resident) = (alloc::bytes(), resident_bytes());
    let mut world = World::new(connections)?;
    world.splice(connections, progress)?;
    // The bench's own list of flows is not the datapath's.
    let flows = (world.flows.capacity() * size_of::<world::Flow>()) as u64;
    let heap = alloc::bytes() - heap - flows;
    let resident = resident_bytes() - resident - flows;
    let each = |bytes: u64| (bytes as f64 / f64::from(connections) * 10.0).round() / 10.0;
    let value = json!({
        "connections": connections,
        "heap_bytes_per_connection": each(heap),
        "resident_bytes_per_connection": each(resident),
        "resident_mib": (resident as f64 / (1 << 20) as f64 * 10.0).round() / 10.0,
        "process_resident_mib": (resident_bytes() - flows) as f64 / (1 << 20) as f64,
    });
    Ok((value, world))
}
