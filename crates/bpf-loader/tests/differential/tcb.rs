//! The kernel's TCB cache against `fairlead_cache`: the same look-ups leave the same lines.

use std::collections::HashMap;

use fairlead_bpf_loader::{FlowLookups, FlowTableKind, TcbGeometry, monotonic_ns};
use fairlead_cache::{Geometry, Indexer, Lookup, Scheme, build_lookup};

use super::*;

const LINES: u32 = 64;
const CONNECTIONS: u32 = 150;
/// Few accesses a tick, so that lines are ON and OFF in turn; the first with which it is so, on
/// machines that are quicker or slower.
const TICKS_NS: [u64; 4] = [3_000_000, 12_000_000, 48_000_000, 192_000_000];

/// Connection `number`: every third of IPv6, every second of the others behind source NAT, and a
/// few from a port that is listened on here.
fn connection(number: u32) -> Record {
    let v6 = number.is_multiple_of(3);
    let host = 1 + number % 100;
    let client = match v6 {
        true => endpoint(&format!("[fd01::{host}:{number}]:{}", 40_000 + number * 7)),
        false if number % 25 == 1 => endpoint(&format!("10.1.{}.{host}:80", 10 + number / 64)),
        false => endpoint(&format!("10.1.{}.{host}:{}", number / 64, 40_000 + number)),
    };
    Record {
        client_addr: client.addr,
        client_port: client.port,
        listen: u16::from(v6),
        server: u16::from(v6),
        nat_addr: if v6 || number.is_multiple_of(2) {
            TRANSPARENT
        } else {
            0
        },
        nat_port: 20_000 + number as u16,
        seq_delta: 5,
        client_nxt: 5_000_000,
        server_nxt: 9_000_000,
        state: State::Spliced,
        ..Record::default()
    }
}

/// The cache of the lab beside the kernel's, and what of it the test has to keep itself.
struct Twin {
    cache: Box<dyn Lookup<Endpoint>>,
    indexer: Indexer,
    /// By line of the cache: which record.
    records: Vec<u32>,
    /// What the kernel writes for whom: for IPv6 a hash.
    tags: HashMap<Endpoint, u64>,
    tick_ns: u64,
    tick: u32,
    hits: u64,
    misses: u64,
    mismatches: u64,
}

impl Twin {
    fn new(seed: u64, tick_ns: u64) -> Self {
        let scheme = Scheme::parse("spec").unwrap();
        let geometry = Geometry::new(u64::from(LINES) * 64, 64, 2, 4).unwrap();
        Self {
            cache: build_lookup(&scheme, &geometry, seed).unwrap(),
            indexer: scheme.indexer(&geometry, seed).unwrap(),
            records: vec![0; LINES as usize],
            tags: HashMap::new(),
            tick_ns,
            tick: 0,
            hits: 0,
            misses: 0,
            mismatches: 0,
        }
    }

    /// A packet of `who`, whose record the flow table knows or not; `fits`: on the side that the
    /// listening ports let the kernel expect.
    fn access(&mut self, who: &Endpoint, record: Option<u32>, fits: bool) {
        let place = self.indexer.place(who);
        if let Some(found) = self.cache.lookup(*who, &place, self.tick, 0) {
            self.hits += u64::from(record.is_some());
            let named = &mut self.records[found.line as usize];
            if Some(*named) != record {
                self.mismatches += 1;
                *named = record.unwrap_or(*named);
            }
            return;
        }
        let Some(record) = record else { return };
        self.misses += 1;
        if !fits {
            return;
        }
        let filled = self.cache.fill(*who, &place, self.tick, 0);
        if let Some((from, to)) = filled.moved {
            self.records[to as usize] = self.records[from as usize];
        }
        self.records[filled.line.unwrap() as usize] = record;
    }

    /// Compares all lines.
    fn compare(&mut self, kernel: &Kernel) {
        for (at, line) in kernel.tcb_lines().unwrap().iter().enumerate() {
            let Some(who) = self.cache.tag(at as u32) else {
                assert_eq!(line.used_at_ns, 0, "line {at} is empty");
                continue;
            };
            assert_eq!(line.record.0, self.records[at], "line {at}");
            assert_eq!(*self.tags.entry(who).or_insert(line.tag), line.tag);
            if who.addr.is_v4() {
                let address = u64::from(u32::from_be_bytes(who.addr.v4_octets()));
                let bits = address << 16 | u64::from(who.port);
                assert_eq!(line.tag, 1 << 62 | bits, "line {at}");
            }
        }
    }
}

/// One packet through both.
fn step(
    kernel: &mut Kernel,
    twin: &mut Twin,
    interface: u32,
    (number, side): (u32, Side),
    known: bool,
) {
    let record = connection(number);
    let endpoints = endpoints();
    let key = match side {
        Side::Client => record.client_key(&endpoints),
        Side::Server => record.server_key(&endpoints),
    };
    let packet = segment(key.src, key.dst).flags(TcpFlags::ACK).packet();
    kernel.try_frame(&frame_of(&packet), interface, 1).unwrap();
    // The kernel's clock is the one that counts: what it has just written is its time.
    let lines = kernel.tcb_lines().unwrap();
    let newest = lines.iter().map(|line| line.used_at_ns).max().unwrap();
    twin.tick = (newest / twin.tick_ns) as u32;
    let guess = if key.dst.port == 80 {
        Side::Client
    } else {
        Side::Server
    };
    let who = if guess == Side::Client {
        key.src
    } else {
        key.dst
    };
    twin.access(&who, known.then_some(number), guess == side);
    twin.compare(kernel);
}

fn caches_agree(mode: Mode) {
    let mut told = Vec::new();
    for tick_ns in TICKS_NS {
        match caches_agree_at(mode, tick_ns) {
            Ok(()) => return,
            Err(left) => told.push(left),
        }
    }
    panic!("not all of it was tried: {told:#?}");
}

/// Fails where they do not agree; an error where that means little, for not all of it was tried.
fn caches_agree_at(mode: Mode, tick_ns: u64) -> Result<(), String> {
    on_a_switch(|_, interface| {
        let geometry = TcbGeometry {
            lines: LINES,
            tick_ns,
        };
        let kind = FlowTableKind::TcbCache(geometry);
        let origin = monotonic_ns();
        let loaded =
            Kernel::load_pinned(mode, kind, CONNECTIONS, &endpoints(), COOKIE, origin, None);
        let (mut kernel, mut table): (Kernel, FlowTable) = loaded.unwrap();
        super::tell_interfaces(&mut kernel);
        let mut twin = Twin::new(COOKIE.0 ^ COOKIE.1.rotate_left(32), tick_ns);
        let mut rng = Rng::new(11);
        let mut known = vec![false; CONNECTIONS as usize];
        let mut seen = 0;
        for round in 0..6_000u32 {
            // Some are asked for often, others seldom; some come and go, and strangers too.
            let among = [8, 40, CONNECTIONS][rng.below(3) as usize];
            let number = (rng.below(among) + round / 1_000 * 17) % CONNECTIONS;
            let record = connection(number);
            let keys = (
                record.client_key(&endpoints()),
                record.server_key(&endpoints()),
            );
            let is_known = &mut known[number as usize];
            if !*is_known && rng.chance(900_000) {
                assert!(table.offload(Line(number), &record, &keys.0, &keys.1));
                *is_known = true;
            } else if *is_known && rng.chance(10_000) {
                table.remove(Line(number), &keys.0, &keys.1);
                table.flush();
                *is_known = false;
            }
            let side = if rng.chance(500_000) {
                Side::Client
            } else {
                Side::Server
            };
            step(&mut kernel, &mut twin, interface, (number, side), *is_known);
            seen += u32::from(*is_known);
            if rng.chance(5_000) {
                std::thread::sleep(std::time::Duration::from_millis(u64::from(rng.below(20))));
            }
        }
        let counters = kernel.counters().unwrap();
        let sum = |field: fn(&FlowLookups) -> u64| counters.lookups.iter().map(field).sum::<u64>();
        let model = twin.cache.statistics();
        assert_eq!(sum(|one| one.hits), twin.hits);
        assert_eq!(sum(|one| one.misses), twin.misses);
        assert_eq!(sum(|one| one.mismatches), twin.mismatches);
        assert_eq!(sum(|one| one.second_hits), model.second_lookup_hits);
        assert_eq!(sum(|one| one.migrations), model.migrations);
        assert_eq!(sum(|one| one.evictions), model.evictions);
        assert_eq!(sum(|one| one.evicted_on), model.evicted_on);
        assert_eq!(twin.hits + twin.misses, u64::from(seen));
        let different: std::collections::HashSet<_> = twin.tags.values().collect();
        assert_eq!(different.len(), twin.tags.len(), "tags differ");
        let is_tried = twin.hits > 500
            && twin.misses > 500
            && twin.mismatches > 2
            && model.migrations > 20
            && model.second_lookup_hits > 5
            && model.evicted_on > 0;
        let told = format!("{model:?}, {} hits, {} strays", twin.hits, twin.mismatches);
        is_tried.then_some(()).ok_or(told)
    })
}

#[test]
fn tc_cache_is_the_labs() {
    run(|| caches_agree(Mode::Tc));
}

#[test]
fn xdp_cache_is_the_labs() {
    run(|| caches_agree(Mode::XdpGeneric));
}
