//! The live cache and the lab's simulation have the same hits on the same packets.

use core::time::Duration;
use std::collections::BTreeMap;

use fairlead_base::{Endpoint, Instant, Packet, Rng, SeqNumber};
use fairlead_cache::{Places, Scheme, Simulate, build};
use fairlead_datapath::config::{Config, Source};
use fairlead_datapath::tcb_cache::Settings;
use fairlead_datapath::{Datapath, Verdict};
use fairlead_testkit::{Segment, endpoint, segment};
use fairlead_wire::TcpFlags;

use crate::rig::{Ends, Joined, Rig, http_config, tcb_cache, v6_config};

const CONNECTIONS: u16 = 200;
const PACKETS: usize = 3_000;
const SEED: u64 = 77;

/// A spliced connection, and what its ends send next.
struct Flow {
    client: Endpoint,
    vip: Endpoint,
    source: Endpoint,
    server: Endpoint,
    client_nxt: u32,
    seen_nxt: u32,
    server_nxt: u32,
    closing: bool,
}

impl Flow {
    fn by_client(&self) -> Segment {
        segment(self.client, self.vip)
            .seq(self.client_nxt)
            .ack(self.seen_nxt)
    }

    fn by_server(&self) -> Segment {
        segment(self.server, self.source)
            .seq(self.server_nxt)
            .ack(self.client_nxt)
    }
}

/// A switch with many connections of clients whose ports have little order.
fn spliced(config: Config) -> (Rig, Vec<Flow>) {
    let mut config = config;
    config.limits.connections = u32::from(CONNECTIONS);
    // No timestamps: fewer numbers to keep.
    let mut ends = Ends::default();
    ends.client.timestamps = None;
    ends.server.timestamps = None;
    let mut rig = Rig::probed(config, &ends.server);
    let mut flows = Vec::new();
    for at in 0..CONNECTIONS {
        rig.client.port = 1_024 + at.wrapping_mul(40_503) % 60_000;
        let joined = Joined::on(rig, &ends);
        flows.push(Flow {
            client: joined.rig.client,
            vip: joined.rig.vip,
            source: joined.source,
            server: joined.server,
            client_nxt: joined.client_nxt,
            seen_nxt: joined.seen_nxt,
            server_nxt: joined.server_nxt,
            closing: false,
        });
        rig = joined.rig;
    }
    rig.events();
    (rig, flows)
}

/// The lab's cache, and the numbers that it knows session identifiers by.
struct Lab {
    simulation: Box<dyn Simulate>,
    numbers: BTreeMap<Endpoint, u32>,
    places: Places,
}

impl Lab {
    fn new(settings: &Settings, flows: &[Flow]) -> Self {
        let Settings { scheme, geometry } = settings;
        let mut keys: Vec<_> = flows
            .iter()
            .flat_map(|flow| [flow.client, flow.source])
            .collect();
        keys.sort_unstable();
        keys.dedup();
        Self {
            simulation: build(scheme, geometry, SEED).unwrap(),
            places: scheme.indexer(geometry, SEED).unwrap().places(&keys),
            numbers: (0..).zip(keys).map(|(number, key)| (key, number)).collect(),
        }
    }

    fn access(&mut self, identifier: &Endpoint, now: Instant, closing: bool) {
        let id = self.numbers[identifier];
        let tick = (now.as_millis() / 250) as u32;
        self.simulation
            .run(&[id], &[tick], &[u8::from(closing)], &self.places)
            .unwrap();
    }
}

/// What both have counted so far.
fn compare(datapath: &Datapath, lab: &Lab, name: &str) {
    let live = datapath.tcb_cache_report().unwrap();
    let counted = lab.simulation.statistics();
    let of_lab = [
        counted.accesses,
        counted.hits(),
        counted.misses,
        counted.migrations,
        counted.second_lookup_hits,
        counted.bypasses,
        counted.evictions,
        counted.evicted_on,
        lab.simulation.on_lines().into_iter().map(u64::from).sum(),
        lab.simulation.occupancy().into_iter().map(u64::from).sum(),
    ];
    let of_live = [
        live.accesses,
        live.hits,
        live.misses,
        live.migrations,
        live.second_lookup_hits,
        live.bypasses,
        live.evictions,
        live.evicted_on,
        live.on_lines,
        live.occupied,
    ];
    assert_eq!(of_live, of_lab, "{name}");
    assert_eq!((live.strangers, live.mismatches), (0, 0), "{name}");
}

fn drive(config: Config, settings: &Settings, name: &str) -> (u64, u64) {
    let (mut rig, mut flows) = spliced(config);
    rig.datapath.set_tcb_cache(Some(settings), SEED).unwrap();
    let mut lab = Lab::new(settings, &flows);
    let mut rng = Rng::new(SEED);
    let (mut done, mut at) = (0, 0);
    let mut verdicts = Vec::new();
    while done < PACKETS {
        let mut batch: Vec<Packet> = Vec::new();
        for _ in 0..=rng.below(100) {
            if rng.below(6) == 0 {
                // Some more often than others.
                at = rng.below(u32::from(CONNECTIONS)) as usize;
                at -= if rng.below(2) == 0 { at / 2 } else { 0 };
            }
            let flow = &mut flows[at];
            let by_client = rng.below(2) == 0;
            let closes = by_client && !flow.closing && rng.below(60) == 0;
            let mut segment = if by_client {
                flow.by_client()
            } else {
                flow.by_server()
            };
            if closes {
                segment = segment.flags(TcpFlags::FIN | TcpFlags::ACK);
                flow.client_nxt = flow.client_nxt.wrapping_add(1);
                flow.closing = true;
            }
            batch.push(segment.packet());
            let identifier = if by_client { flow.client } else { flow.source };
            lab.access(&identifier, rig.now, closes);
        }
        done += batch.len();
        rig.datapath
            .handle_batch(rig.now, &mut batch, &mut verdicts);
        assert!(verdicts.iter().all(|one| *one == Verdict::Transmit));
        compare(&rig.datapath, &lab, name);
        rig.wait(Duration::from_millis(u64::from(rng.below(900))));
    }
    let statistics = lab.simulation.statistics();
    (statistics.hits(), statistics.misses)
}

fn transparent() -> Config {
    let mut config = http_config();
    config.services[0].source = Source::Transparent;
    config
}

#[test]
fn every_scheme_hits_where_the_lab_says() {
    for (name, _) in Scheme::all() {
        let (hits, misses) = drive(transparent(), &tcb_cache(name, 2 << 10, 4), name);
        assert!(hits > 300 && misses > 300, "{name}: {hits} and {misses}");
    }
}

#[test]
fn with_source_addresses_of_ours_and_over_ipv6_too() {
    for scheme in ["spec", "2-universal", "spec,bits=16,on_ticks=2", "crc"] {
        let settings = tcb_cache(scheme, 8 << 10, 2);
        drive(http_config(), &settings, scheme);
        drive(v6_config(), &settings, scheme);
    }
}

#[test]
fn an_identifier_is_the_clients_or_what_the_server_sees() {
    // With source NAT each direction has a line; transparent ones share it.
    for (config, lines) in [(http_config(), 2), (transparent(), 1)] {
        let (mut rig, flows) = spliced(config);
        let settings = tcb_cache("spec", 32 << 10, 4);
        rig.datapath.set_tcb_cache(Some(&settings), SEED).unwrap();
        for _ in 0..3 {
            let sent = rig.put_one(&flows[5].by_client());
            assert_eq!(sent.header.key.dst, flows[5].server);
            let sent = rig.put_one(&flows[5].by_server());
            assert_eq!(sent.header.key.dst, flows[5].client);
            assert_eq!(sent.header.seq, SeqNumber(flows[5].seen_nxt));
        }
        let cache = rig.datapath.tcb_cache_report().unwrap();
        assert_eq!((cache.misses, cache.hits), (lines, 6 - lines));
        assert_eq!((cache.occupied, cache.on_lines), (lines, lines));
        assert_eq!(cache.sets_by_occupancy[1], lines);
        rig.wait(Duration::from_millis(1_500));
        rig.datapath.handle_timeout(rig.now);
        let cache = rig.datapath.tcb_cache_report().unwrap();
        assert_eq!((cache.occupied, cache.on_lines), (lines, 0));
    }
    // A SYN, and what belongs to nothing.
    let (mut rig, _) = spliced(http_config());
    let before = rig.datapath.tcb_cache_report().unwrap();
    rig.client = endpoint("192.0.2.99:999");
    rig.syn(5, &Ends::default().client);
    rig.put(&rig.by_client().seq(9).ack(9));
    let after = rig.datapath.tcb_cache_report().unwrap();
    assert_eq!(after.strangers - before.strangers, 1);
    assert_eq!(after.accesses, before.accesses);
    assert_eq!(after.occupied, before.occupied);
}
