//! What a packet costs in the kernel program, without an interface: by step, and by flow table.
//!
//! The kernel runs the program on one packet again and again. A packet that is translated is
//! another one in the next run; so that it is still of its connection, the server's address is the
//! virtual one, the client keeps its own, and numbers move by one a run. What changes a packet for
//! good (a SYN becomes its answer) is run once a call, with caches as a system call leaves them.

use anyhow::{Context, Result, ensure};
use fairlead_base::{Address, Endpoint, FlowKey, Rng, SeqNumber};
use fairlead_bpf_loader::{
    Fate, FlowTable, FlowTableKind, Kernel, Mode, TcbGeometry, interface_index,
};
use fairlead_netns::{Host, World};
use fairlead_tcp::record::{TRANSPARENT, flag};
use fairlead_tcp::{Endpoints, FlowOffload, Line, ListenOffer, Record, State, SynOffload};
use fairlead_wire::{TcpFlags, TcpRepr};
use serde_json::{Value, json};

use crate::table::{median, row};
use crate::{begin_bench, tag_bench};

/// Runs a call for what stays its connection's: the hop limit lasts for no more.
pub(crate) const REPEAT: u32 = 200;
const CLIENT_NXT: u32 = 5_000_000;
const SERVER_NXT: u32 = 9_000_000;
/// The options that stacks in use put before SACK blocks, and one block.
const TIMESTAMPS: [u8; 12] = [1, 1, 8, 10, 0, 0, 0, 9, 0, 0, 0, 9];
const TIMESTAMPS_AND_SACK: [u8; 24] = [
    1, 1, 8, 10, 0, 0, 0, 9, 0, 0, 0, 9, 1, 1, 5, 10, 0, 137, 84, 64, 0, 137, 89, 184,
];
pub(crate) const SYN_OPTIONS: [u8; 20] = [
    2, 4, 5, 180, 4, 2, 8, 10, 0, 0, 0, 1, 0, 0, 0, 0, 1, 3, 3, 7,
];

pub(crate) fn server(v6: bool) -> Endpoint {
    let addr = if v6 {
        let mut bytes = [0; 16];
        (bytes[0], bytes[1], bytes[15]) = (0xfd, 2, 1);
        Address(bytes)
    } else {
        Address::v4([10, 2, 0, 1])
    };
    Endpoint { addr, port: 8081 }
}

/// Client `number`, behind one next hop with all others.
fn client(number: u32, v6: bool) -> Endpoint {
    let (net, port) = (number / 50_000, 10_000 + (number % 50_000) as u16);
    let addr = if v6 {
        let mut bytes = [0; 16];
        (bytes[0], bytes[1], bytes[14], bytes[15]) = (0xfd, 1, 1, net as u8);
        Address(bytes)
    } else {
        Address::v4([10, 64, 0, net as u8])
    };
    Endpoint { addr, port }
}

pub(crate) fn endpoints() -> Endpoints {
    Endpoints {
        listens: vec![server(false), server(true)],
        servers: vec![server(false), server(true)],
        nats: Vec::new(),
    }
}

fn record(number: u32, v6: bool) -> Record {
    let client = client(number, v6);
    Record {
        client_addr: client.addr,
        client_port: client.port,
        listen: u16::from(v6),
        server: u16::from(v6),
        nat_addr: TRANSPARENT,
        seq_delta: 1,
        ts_delta: 1,
        client_isn: 1_000,
        server_isn: 1_000,
        client_nxt: CLIENT_NXT,
        server_nxt: SERVER_NXT,
        state: State::Spliced,
        flags: flag::TIMESTAMPS,
        ..Record::default()
    }
}

/// A packet of client `number`.
pub(crate) struct Shape<'a> {
    v6: bool,
    flags: TcpFlags,
    ack: u32,
    options: &'a [u8],
    payload: &'a [u8],
}

/// A segment like any other.
const DATA: Shape<'static> = Shape {
    v6: false,
    flags: TcpFlags::ACK,
    ack: SERVER_NXT + 1,
    options: &TIMESTAMPS,
    payload: &[7; 100],
};

pub(crate) fn frame(number: u32, to: Endpoint, shape: &Shape<'_>) -> Vec<u8> {
    let mut packet = Vec::new();
    TcpRepr {
        key: FlowKey {
            src: client(number, shape.v6),
            dst: to,
        },
        seq: SeqNumber(CLIENT_NXT),
        ack: SeqNumber(shape.ack),
        flags: shape.flags,
        window: 500,
        options: shape.options,
        payload: shape.payload,
        ttl: 250,
    }
    .emit(&mut packet);
    let kind: [u8; 2] = if shape.v6 { [0x86, 0xdd] } else { [0x08, 0x00] };
    [&[2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2][..], &kind, &packet].concat()
}

pub(crate) fn host(world: &mut World) -> Result<Host> {
    let host = world.host("bench")?;
    host.sysctl("net.ipv4.ip_forward", "1")?;
    host.sysctl("net.ipv6.conf.all.forwarding", "1")?;
    host.ip(
        "link add c address 02:00:00:00:00:01 type veth peer name cx\n\
         link add s address 02:00:00:00:00:01 type veth peer name sx\n\
         link set c up\nlink set cx up\nlink set s up\nlink set sx up\n\
         addr add 10.1.0.1/24 dev c\naddr add 10.2.0.254/24 dev s\n\
         addr add fd01::1/64 dev c nodad\naddr add fd02::fe/64 dev s nodad\n\
         neigh add 10.1.0.9 lladdr 02:00:00:00:00:09 dev c\n\
         neigh add 10.2.0.1 lladdr 02:00:00:00:00:11 dev s\n\
         neigh add fd01::9 lladdr 02:00:00:00:00:09 dev c\n\
         neigh add fd02::1 lladdr 02:00:00:00:00:11 dev s\n\
         route add 10.64.0.0/16 via 10.1.0.9\n",
    )?;
    Ok(host)
}

pub(crate) fn give(table: &mut FlowTable, number: u32, line: u32, v6: bool) -> bool {
    let record = record(number, v6);
    let (client, server) = (
        record.client_key(&endpoints()),
        record.server_key(&endpoints()),
    );
    // With one address for both legs the two keys are a packet's and its answer's.
    table.offload(Line(line), &record, &client, &server)
}

pub(crate) fn offer() -> ListenOffer {
    ListenOffer {
        listen: 0,
        mss: 1_460,
        window: 16_384,
        window_scale: Some(7),
        scale_parity: false,
        sack: true,
        timestamps: true,
        answer: true,
        await_client: true,
        begin: false,
        host: false,
    }
}

/// A long segment.
pub(crate) fn plain(v6: bool) -> Shape<'static> {
    with_options(v6, &TIMESTAMPS)
}

fn with_options(v6: bool, options: &'static [u8]) -> Shape<'static> {
    Shape {
        v6,
        flags: TcpFlags::ACK,
        ack: SERVER_NXT + 1,
        options,
        payload: &[7; 1_000],
    }
}

/// Median nanoseconds of a run, `calls` times `repeat` runs.
pub(crate) fn time(
    kernel: &mut Kernel,
    frame: &[u8],
    interface: u32,
    (calls, repeat): (u32, u32),
    fate: Fate,
) -> Result<f64> {
    let mut each = Vec::new();
    for _ in 0..calls {
        let trial = kernel.try_frame(frame, interface, repeat)?;
        ensure!(trial.fate == fate, "{:?} instead of {fate:?}", trial.fate);
        each.push(trial.each.as_nanos() as f64);
    }
    Ok(median(each))
}

/// A step: its name, a packet, calls and runs a call, and what becomes of it.
type Case = (&'static str, Vec<u8>, (u32, u32), Fate);

fn cases(kernel: &mut Kernel, interface: u32) -> Result<Vec<Case>> {
    let spliced = SERVER_NXT + 1;
    let bare = |flags, ack, options: &'static [u8]| Shape {
        v6: false,
        flags,
        ack,
        options,
        payload: &[],
    };
    let to = server(false);
    let stranger = Endpoint { port: 9, ..to };
    let syn = frame(1, to, &bare(TcpFlags::SYN, 0, &SYN_OPTIONS));
    let answer = kernel.try_frame(&syn, interface, 1)?.frame;
    let cookie = answer.get(38..42).context("the answer to a SYN")?;
    let cookie = u32::from_be_bytes([cookie[0], cookie[1], cookie[2], cookie[3]]);
    let mut ack = frame(1, to, &bare(TcpFlags::ACK, cookie.wrapping_add(1), &[]));
    // Its number is the one behind the SYN's.
    ack[38..42].copy_from_slice(&(CLIENT_NXT + 1).to_be_bytes());
    let fin = TcpFlags::FIN | TcpFlags::ACK;
    let once = (2_000, 1);
    let many = (20, REPEAT);
    Ok(vec![
        (
            "not ours",
            frame(0, stranger, &with_options(false, &[])),
            many,
            Fate::Pass,
        ),
        ("SYN to SYN-ACK (once a call)", syn, once, Fate::Redirect),
        ("last ACK swallowed", ack, many, Fate::Drop),
        (
            "translate IPv4",
            frame(0, to, &plain(false)),
            many,
            Fate::Redirect,
        ),
        (
            "translate IPv4, SACK",
            frame(0, to, &with_options(false, &TIMESTAMPS_AND_SACK)),
            many,
            Fate::Redirect,
        ),
        (
            "translate IPv6",
            frame(0, server(true), &plain(true)),
            many,
            Fate::Redirect,
        ),
        (
            "translate IPv4 (once a call)",
            frame(0, to, &plain(false)),
            once,
            Fate::Redirect,
        ),
        (
            "FIN followed",
            frame(0, to, &bare(fin, spliced, &TIMESTAMPS)),
            many,
            Fate::Redirect,
        ),
    ])
}

/// The steps, each on a table of one connection of each family.
fn steps(interface: u32, rounds: usize) -> Result<Vec<Value>> {
    let (mut kernel, mut table) = Kernel::load(Mode::Tc, 4, &endpoints(), (1, 2), 0)?;
    for v6 in [false, true] {
        let known = give(&mut table, 0, u32::from(v6), v6);
        ensure!(known, "the kernel took no connection");
    }
    table.set_offer(server(false), &offer());
    let cases = cases(&mut kernel, interface)?;
    let mut results = Vec::new();
    for (name, frame, effort, fate) in cases {
        let mut all = Vec::new();
        for _ in 0..rounds {
            all.push(time(&mut kernel, &frame, interface, effort, fate).with_context(|| name)?);
        }
        let ns = median(all);
        row(name, [format!("{ns:.0} ns")]);
        results.push(json!({ "step": name, "ns": ns }));
    }
    Ok(results)
}

/// Packets of connections drawn from the active ones, each run once: median nanoseconds of those
/// that were sent on, and how many were not.
fn drawn(
    kernel: &mut Kernel,
    rng: &mut Rng,
    interface: u32,
    (connections, active): (u32, u32),
    packets: u32,
) -> Result<(f64, u32)> {
    let mut each = Vec::new();
    for _ in 0..packets {
        // Active ones lie everywhere among the others.
        let number = rng.below(active) * (connections / active);
        let frame = frame(number, server(false), &DATA);
        let trial = kernel.try_frame(&frame, interface, 1)?;
        // What was evicted is the engine's until it is given again, and not timed.
        if trial.fate == Fate::Redirect {
            each.push(trial.each.as_nanos() as f64);
        }
    }
    let lost = packets - each.len() as u32;
    Ok((
        if each.is_empty() {
            f64::NAN
        } else {
            median(each)
        },
        lost,
    ))
}

/// A kind of flow table with all connections in it.
struct Candidate {
    name: String,
    kernel: Kernel,
    bytes: u64,
    all: Vec<f64>,
    lost: u32,
    tried: u32,
}

impl Candidate {
    fn new(name: &str, kind: FlowTableKind, connections: u32) -> Result<Self> {
        let (kernel, mut table) =
            Kernel::load_pinned(Mode::Tc, kind, connections, &endpoints(), (5, 6), 0, None)?;
        for number in 0..connections {
            ensure!(
                give(&mut table, number, number, false),
                "no room for {number}"
            );
        }
        Ok(Self {
            name: name.to_owned(),
            bytes: table.memory_bytes() + kernel.cache_bytes(),
            kernel,
            all: Vec::new(),
            lost: 0,
            tried: 0,
        })
    }

    /// Look-ups so far: those answered, and those that only the map behind a cache answered.
    fn lookups(&self) -> Result<(u64, u64)> {
        let counted = self.kernel.counters()?.lookups;
        let sum = |field: fn(&fairlead_bpf_loader::FlowLookups) -> u64| {
            counted.iter().map(field).sum::<u64>()
        };
        Ok((sum(|one| one.hits), sum(|one| one.misses)))
    }
}

/// The kinds; of those that may be too small, one that has room and one that has not.
fn candidates(connections: u32) -> Result<Vec<Candidate>> {
    let cache = |lines| FlowTableKind::TcbCache(TcbGeometry::of_lines(lines));
    // A connection has two keys: of these keys there is room for one connection in ten.
    let keys = (connections / 5).max(256);
    let tenth = (connections / 10).next_power_of_two().max(8);
    let mut sizes = vec![tenth, TcbGeometry::LINES, connections.next_power_of_two()];
    sizes.sort_unstable();
    sizes.dedup();
    let mut all = vec![
        ("hash".to_owned(), FlowTableKind::Hash),
        ("lru-hash".to_owned(), FlowTableKind::LruHash { keys: 0 }),
        (
            format!("lru-hash, {keys} keys"),
            FlowTableKind::LruHash { keys },
        ),
    ];
    let caches = sizes.into_iter();
    all.extend(caches.map(|lines| (format!("tcb-cache, {lines} lines"), cache(lines))));
    let all = all.into_iter();
    all.map(|(name, kind)| Candidate::new(&name, kind, connections))
        .collect()
}

fn tables(interface: u32, connections: u32, packets: u32, rounds: usize) -> Result<Vec<Value>> {
    let mut candidates = candidates(connections)?;
    let mut results = Vec::new();
    for share in [5, 100] {
        let active = (connections * share / 100).max(1);
        let among = (connections, active);
        let mut rng = Rng::new(3);
        let mut before = Vec::new();
        for one in &mut candidates {
            (one.all, one.lost, one.tried) = (Vec::new(), 0, 0);
            // A cache is filled by packets; what is evicted stays so, for there is no engine here.
            let warm_up = match one.kernel.flow_table() {
                FlowTableKind::TcbCache(_) => (active * 3).clamp(packets, 1_000_000),
                _ => packets,
            };
            drawn(&mut one.kernel, &mut rng, interface, among, warm_up)?;
            before.push(one.lookups()?);
        }
        for _ in 0..rounds {
            for one in &mut candidates {
                let (ns, lost) = drawn(&mut one.kernel, &mut rng, interface, among, packets)?;
                one.all.push(ns);
                one.lost += lost;
                one.tried += packets;
            }
        }
        for (one, before) in candidates.iter_mut().zip(before) {
            results.push(told(one, before, interface, (connections, share))?);
        }
    }
    Ok(results)
}

/// Nanoseconds of one packet's run again and again, all of it in the processor's caches.
fn warm(kernel: &mut Kernel, interface: u32, number: u32) -> Result<f64> {
    let frame = frame(number, server(false), &DATA);
    time(kernel, &frame, interface, (20, REPEAT), Fate::Redirect)
}

/// A line of the table, printed.
fn told(
    one: &mut Candidate,
    before: (u64, u64),
    interface: u32,
    (connections, share): (u32, u32),
) -> Result<Value> {
    let now = one.lookups()?;
    let (hits, misses) = (now.0 - before.0, now.1 - before.1);
    let hit_percent = 100.0 * hits as f64 / (hits + misses).max(1) as f64;
    let lost_percent = 100.0 * f64::from(one.lost) / f64::from(one.tried.max(1));
    let ns = median(one.all.clone());
    // The last one is there in every kind.
    let warm_ns = warm(&mut one.kernel, interface, connections - 1)?;
    row(
        &format!("{connections}, {share} %: {}", one.name),
        [
            format!("{ns:.0} ns"),
            format!("warm {warm_ns:.0} ns"),
            format!("{:.1} MB", one.bytes as f64 / 1e6),
            format!("{hit_percent:.1} % hit"),
            format!("{lost_percent:.1} % to the engine"),
        ],
    );
    Ok(json!({
        "flow_table": one.name, "connections": connections, "active_percent": share,
        "ns": ns, "warm_ns": warm_ns, "bytes": one.bytes, "hit_percent": hit_percent,
        "to_the_engine_percent": lost_percent,
    }))
}

/// Both tables of results, printed and returned.
pub(crate) fn run(connections: &[u32], packets: u32, rounds: usize) -> Result<Value> {
    let mut world = World::new()?;
    let host = host(&mut world)?;
    host.enter(|| {
        let interface = interface_index("c").context("the interface just made")?;
        let mut steps = steps(interface, rounds)?;
        let back = interface_index("s").context("the interface just made")?;
        let wire = interface_index("cx").context("the interface just made")?;
        let begun = begin_bench::steps(&offer(), (interface, back), rounds)?;
        let tagged = tag_bench::steps([interface, back, wire], rounds)?;
        for (name, ns) in begun.into_iter().chain(tagged) {
            row(name, [format!("{ns:.0} ns")]);
            steps.push(json!({ "step": name, "ns": ns }));
        }
        let mut flow_tables = Vec::new();
        for &count in connections {
            flow_tables.extend(tables(interface, count, packets, rounds)?);
        }
        Ok(json!({ "steps": steps, "flow_tables": flow_tables, "mode": "tc" }))
    })?
}
