//! The switch, its clients and servers, and the promises it is held to after each step.

use core::time::Duration;
use std::collections::{BTreeSet, VecDeque};

use fairlead_base::{Checksum, DropReason, Endpoint, Instant, Packet};
use fairlead_datapath::{Datapath, End, Event, Snapshot, Verdict};
use fairlead_testkit::endpoint;
use fairlead_wire::{Classified, TcpFlags, TcpPacket, classify};

use super::oracle;
use super::peers::{Client, Leg};
use super::settings::{self, LISTENS, SNAT};
use crate::corpus::fingerprint;
use crate::novelty::note;

/// Server sides that are remembered.
const LEGS_MAX: usize = 24;
/// Packets that left, remembered to be quoted, repeated and reflected.
const RECENT_MAX: usize = 8;
/// Packets that one input may make the engine send.
const SENT_AT_ONCE_MAX: usize = 128;
/// Calls of `handle_timeout` until nothing is due any more.
const TIMEOUT_CALLS_MAX: usize = 256;
/// A packet for one of our own addresses comes back so often before it must have died out.
const ECHOES_MAX: usize = 8;

/// See the module's text.
pub(super) struct World {
    pub(super) datapath: Datapath,
    pub(super) now: Instant,
    pub(super) clients: Vec<Client>,
    pub(super) legs: Vec<Leg>,
    pub(super) recent: VecDeque<Packet>,
    /// Packets that wait to be handled together, and how many are still awaited.
    queue: Vec<Packet>,
    pub(super) batch: usize,
    ours: BTreeSet<fairlead_base::Address>,
    listens: Vec<Endpoint>,
    servers: BTreeSet<Endpoint>,
    last: Snapshot,
    closed: u64,
}

impl World {
    /// A fresh switch at `now`.
    pub(super) fn new(seed: u64, now: Instant) -> Self {
        let config = settings::config(seed);
        let listens: Vec<Endpoint> = LISTENS.iter().map(|text| endpoint(text)).collect();
        let snat = SNAT.iter().map(|text| endpoint(text).addr);
        let servers = config
            .pools
            .iter()
            .flat_map(|pool| &pool.servers)
            .map(|server| server.endpoint)
            .collect();
        let mut clients = Vec::new();
        for at in 0..12u16 {
            let (text, listen) = if at < 8 {
                (format!("192.0.2.{}:{}", 1 + at / 4, 40_000 + at % 4), 0)
            } else {
                (format!("[2001:db8::{}]:{}", at, 40_000 + at % 2), 5)
            };
            clients.push(Client::new(endpoint(&text), listens[listen]));
        }
        Self {
            datapath: Datapath::new(config, seed.into(), now).expect("a configuration"),
            now,
            clients,
            legs: Vec::new(),
            recent: VecDeque::new(),
            queue: Vec::new(),
            batch: 0,
            ours: listens
                .iter()
                .map(|listen| listen.addr)
                .chain(snat)
                .collect(),
            listens,
            servers,
            last: Snapshot::default(),
            closed: 0,
        }
    }

    /// Lets the switch have a packet, at once or with others.
    pub(super) fn feed(&mut self, packet: Packet) {
        self.queue.push(packet);
        self.batch = self.batch.saturating_sub(1);
        if self.batch == 0 {
            self.flush();
        }
    }

    /// Handles what waits.
    pub(super) fn flush(&mut self) {
        self.batch = 0;
        let packets = core::mem::take(&mut self.queue);
        if !packets.is_empty() {
            self.handle(packets, 0);
        }
    }

    fn handle(&mut self, mut packets: Vec<Packet>, depth: usize) {
        let before = packets.clone();
        let drops = self.last.drops.clone();
        let mut verdicts = Vec::new();
        if let [packet] = packets.as_mut_slice() {
            verdicts.push(self.datapath.handle_packet(self.now, packet));
        } else {
            self.datapath
                .handle_batch(self.now, &mut packets, &mut verdicts);
        }
        assert_eq!(verdicts.len(), before.len(), "a verdict for every packet");
        let mut echoes = Vec::new();
        for ((before, after), verdict) in before.iter().zip(&packets).zip(&verdicts) {
            oracle::check_verdict(before, after, *verdict);
            note("datapath.verdict", verdict_number(*verdict));
            if *verdict == Verdict::Transmit {
                self.sent(after, false, &mut echoes);
            }
        }
        self.collect(SENT_AT_ONCE_MAX * before.len(), &mut echoes);
        for verdict in &verdicts {
            if let Verdict::Drop(reason) = verdict {
                let now = self.last.drops.of(*reason);
                assert!(now > drops.of(*reason), "{reason} was not counted");
            }
        }
        for echo in echoes {
            assert!(
                depth < ECHOES_MAX,
                "a packet to ourselves goes round and round"
            );
            self.handle(vec![echo], depth + 1);
        }
    }

    /// Takes everything the switch has to say, and checks its numbers.
    fn collect(&mut self, sent_max: usize, echoes: &mut Vec<Packet>) {
        self.fetch(sent_max, echoes);
        self.check_numbers();
    }

    /// Takes everything the switch has to say.
    fn fetch(&mut self, sent_max: usize, echoes: &mut Vec<Packet>) {
        let mut packet = Packet::default();
        let mut count = 0;
        while self.datapath.poll_transmit(&mut packet) {
            count += 1;
            assert!(count <= sent_max, "{count} packets at once");
            oracle::check_made(&packet);
            self.sent(&packet, true, echoes);
        }
        while let Some(event) = self.datapath.poll_event() {
            self.closed += u64::from(matches!(event, Event::Closed { .. }));
            note("datapath.event", event_number(&event));
            oracle::check_event(&event, self.now);
        }
    }

    fn check_numbers(&mut self) {
        let snapshot = self.datapath.snapshot();
        oracle::check_gauges(&self.last, &snapshot, self.datapath.live_connections());
        let ended: u64 = snapshot.ended.iter().map(|(_, count)| count).sum();
        assert_eq!(ended, self.closed, "every end has its event");
        let gauges = [
            snapshot.live,
            snapshot.setups,
            snapshot.half_read,
            snapshot.time_wait,
            snapshot.records,
            u64::from(snapshot.buffered_bytes > 0),
        ];
        let shape = gauges
            .iter()
            .fold(0, |shape, gauge| shape << 2 | (*gauge).min(3));
        note("datapath.gauges", shape);
        self.last = snapshot;
    }

    /// A packet left: its receiver learns from it.
    fn sent(&mut self, packet: &Packet, by_engine: bool, echoes: &mut Vec<Packet>) {
        if self.recent.len() == RECENT_MAX {
            self.recent.pop_front();
        }
        self.recent.push_back(packet.clone());
        let header = match classify(&packet.bytes) {
            Ok(Classified::Tcp(header)) => header,
            Ok(Classified::Icmp(message)) => {
                if self.ours.contains(&message.dst) {
                    echoes.push(packet.clone());
                }
                return;
            }
            // Answers to impossible addresses; nothing more is to be learned from them.
            Err(_) => return,
        };
        if self.ours.contains(&header.key.dst.addr) {
            echoes.push(packet.clone());
        }
        self.learn(&header, packet, by_engine);
    }

    fn learn(&mut self, header: &TcpPacket, packet: &Packet, by_engine: bool) {
        let (src, dst) = (header.key.src, header.key.dst);
        let from_listen = self.listens.contains(&src);
        for client in &mut self.clients {
            if from_listen && client.endpoint == dst && client.listen == src {
                client.hear(header, &packet.bytes);
            }
        }
        if !self.servers.contains(&dst) {
            return;
        }
        let known = self
            .legs
            .iter()
            .position(|leg| leg.server == dst && leg.source == src);
        let at = known.unwrap_or_else(|| {
            if self.legs.len() == LEGS_MAX {
                self.legs.remove(0);
            }
            self.legs.push(Leg::new(dst, src));
            self.legs.len() - 1
        });
        self.legs[at].hear(header, &packet.bytes, by_engine);
        if header.flags.contains(TcpFlags::SYN) && known.is_some() {
            // The newest are at the end.
            let leg = self.legs.remove(at);
            self.legs.push(leg);
        }
    }

    /// Lets time pass and does what becomes due, each at its moment (`exactly`) or in `steps`.
    pub(super) fn wait(&mut self, time: Duration, exactly: bool) {
        self.flush();
        let until = self.now + time;
        if exactly {
            while let Some(due) = self.datapath.poll_timeout().filter(|due| *due <= until) {
                self.now = self.now.max(due);
                self.run_timeouts();
            }
        }
        self.now = until;
        self.run_timeouts();
    }

    /// Calls the switch until nothing is due any more.
    pub(super) fn run_timeouts(&mut self) {
        let mut calls = 0;
        let mut echoes = Vec::new();
        while self
            .datapath
            .poll_timeout()
            .is_some_and(|due| due <= self.now)
        {
            self.datapath.handle_timeout(self.now);
            self.fetch(SENT_AT_ONCE_MAX * 16, &mut echoes);
            calls += 1;
            assert!(calls < TIMEOUT_CALLS_MAX, "a time-out that is never over");
        }
        if calls > 0 {
            self.check_numbers();
        }
        assert!(echoes.is_empty(), "a timer sent a packet to ourselves");
    }

    /// Ends everything at once, as when the switch is stopped.
    pub(super) fn abort(&mut self) {
        self.flush();
        self.datapath.abort_all(self.now);
        self.collect(SENT_AT_ONCE_MAX * 16, &mut Vec::new());
        self.run_timeouts();
        assert_eq!(self.last.records, 0, "aborted, but there is something left");
    }

    /// Nobody says anything any more: after a while nothing may be left.
    pub(super) fn settle(&mut self) {
        self.flush();
        for _ in 0..64 {
            if self.last.records == 0 {
                break;
            }
            self.wait(Duration::from_secs(10), false);
        }
        oracle::check_empty(&self.last);
    }
}

fn verdict_number(verdict: Verdict) -> u64 {
    match verdict {
        Verdict::Transmit => 1_000,
        Verdict::Consumed => 1_001,
        Verdict::Drop(reason) => reason as u64,
    }
}

fn event_number(event: &Event) -> u64 {
    match event {
        Event::Decided { route, attempt, .. } => u64::from(*route) << 8 | u64::from(*attempt),
        Event::Given { route, .. } => 1 << 36 | u64::from(*route),
        Event::Refused { reason, status, .. } => {
            1 << 16 | (*reason as u64) << 10 | u64::from(status.unwrap_or(0))
        }
        Event::Closed { end, service, .. } => {
            let name = fingerprint(End::name(*end).as_bytes()) % 64;
            1 << 32 | u64::from(*service) << 8 | name
        }
        Event::Server { state, .. } => 1 << 33 | *state as u64,
        Event::Availability { unavailable, .. } => 1 << 34 | u64::from(unavailable.is_some()),
        Event::LaterRequest { would_be, .. } => 1 << 35 | u64::from(would_be.unwrap_or(u16::MAX)),
    }
}

/// True when a packet says that its checksum is complete and it is not right.
pub(super) fn is_damaged(packet: &Packet) -> bool {
    match classify(&packet.bytes) {
        Ok(Classified::Tcp(header)) => {
            packet.checksum != Checksum::Partial && !header.checksum_valid(&packet.bytes)
        }
        Ok(Classified::Icmp(_)) => false,
        Err(reason) => reason != DropReason::BadSource,
    }
}
