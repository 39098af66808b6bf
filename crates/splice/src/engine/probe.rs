//! Learning what servers honour, and what clients are therefore offered.
//!
//! Every server is sent a SYN from time to time; its SYN-ACK shows its MSS, window scale, SACK and
//! timestamps, and a RST takes the half-open connection back. A service offers its clients what
//! all its servers that have answered can keep; before any has, next to nothing.

use core::time::Duration;
use std::collections::BTreeMap;

use fairlead_base::{DropReason, Endpoint, FlowKey, Instant, Packet, SeqNumber};
use fairlead_wire::{SynOptions, TcpFlags, TcpPacket, Timestamps};

use super::{Switch, output};
use crate::Verdict;
use crate::backends::ServerId;
use crate::config::{Config, Source};
use crate::event::Offers;

/// How long a server is given to answer a probe.
const PROBE_WAIT: Duration = Duration::from_secs(1);

/// Ports that probes use where they share an address with a listening endpoint.
const PROBE_PORTS: u32 = 16_384;

/// What a service offers its clients in SYN-ACKs. A change keeps the terms before it: handshakes
/// that began under them may still complete, and their cookies name them by parity.
#[derive(Clone, Debug)]
pub(super) struct Offer {
    terms: [Offers; 2],
    parity: bool,
}

impl Offer {
    /// Before any server has answered.
    pub(super) fn unknown(config: &Config) -> Self {
        let mss = config.device_mss.min(1_460);
        let terms = Offers {
            mss,
            window_scale: None,
            sack: false,
            timestamps: false,
        };
        Self {
            terms: [terms; 2],
            parity: false,
        }
    }

    pub(super) fn current(&self) -> Offers {
        self.of_parity(self.parity)
    }

    pub(super) fn parity(&self) -> bool {
        self.parity
    }

    pub(super) fn of_parity(&self, parity: bool) -> Offers {
        self.terms[usize::from(parity)]
    }

    fn change(&mut self, terms: Offers) {
        if self.current() != terms {
            self.parity = !self.parity;
            self.terms[usize::from(self.parity)] = terms;
        }
    }
}

/// Probes under way.
#[derive(Debug)]
pub(super) struct Probes {
    next_round: Instant,
    waiting: BTreeMap<FlowKey, Probe>,
}

/// One SYN that has not been answered.
#[derive(Clone, Copy, Debug)]
struct Probe {
    id: ServerId,
    isn: SeqNumber,
    give_up: Instant,
}

impl Probes {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            next_round: now,
            waiting: BTreeMap::new(),
        }
    }

    /// True when a packet with this key answers a probe.
    pub(super) fn awaits(&self, key: &FlowKey) -> bool {
        !self.waiting.is_empty() && self.waiting.contains_key(key)
    }

    pub(super) fn due(&self) -> Instant {
        let give_up = self.waiting.values().map(|probe| probe.give_up).min();
        give_up.map_or(self.next_round, |give_up| give_up.min(self.next_round))
    }
}

impl Switch {
    /// Gives up on probes that were not answered, and begins a round when it is time.
    pub(super) fn run_probes(&mut self, now: Instant) {
        let silent: Vec<(FlowKey, Probe)> = self
            .probes
            .waiting
            .iter()
            .filter(|(_, probe)| probe.give_up <= now)
            .map(|(key, probe)| (*key, *probe))
            .collect();
        for (key, probe) in silent {
            self.probes.waiting.remove(&key);
            self.probe_failed(now, probe.id);
        }
        if self.probes.next_round > now {
            return;
        }
        self.probes.next_round = now + self.config.probe_interval;
        let servers: Vec<(ServerId, Endpoint)> = self
            .backends
            .servers()
            .map(|(id, _, server)| (id, server.endpoint))
            .collect();
        for (id, server) in servers {
            if self.probes.waiting.values().all(|probe| probe.id != id) {
                self.send_probe(now, id, server);
            }
        }
    }

    /// An address of ours from which `server` can be asked: a source address, or else the
    /// listening address of a service that uses the server.
    fn probe_source(&self, id: ServerId, server: Endpoint) -> Option<fairlead_base::Address> {
        let v4 = server.addr.is_v4();
        let (pool, _) = self.backends.server(id);
        let mut services = self
            .config
            .services
            .iter()
            .filter(|service| service.routes.iter().any(|route| route.pool == pool));
        let snat = self
            .config
            .snat
            .iter()
            .find(|address| address.is_v4() == v4);
        let service = services.next()?;
        match (service.source, snat) {
            (Source::Snat, Some(&address)) => Some(address),
            _ => service
                .listen
                .iter()
                .map(|listen| listen.addr)
                .find(|addr| addr.is_v4() == v4),
        }
    }

    fn send_probe(&mut self, now: Instant, id: ServerId, server: Endpoint) {
        let Some(addr) = self.probe_source(id, server) else {
            return;
        };
        let isn = SeqNumber(self.rng.next_u64() as u32);
        let mut key = FlowKey {
            src: server,
            dst: Endpoint { addr, port: 0 },
        };
        for _ in 0..8 {
            key.dst.port = 49_152 + self.rng.below(PROBE_PORTS) as u16;
            let taken = self.table.find(&key).is_some()
                || self.listens.contains_key(&key.dst)
                || self.probes.waiting.contains_key(&key);
            if !taken {
                break;
            }
            key.dst.port = 0;
        }
        if key.dst.port == 0 {
            return;
        }
        let mss = self.config.device_mss - if server.addr.is_v4() { 0 } else { 20 };
        let ask = SynOptions {
            mss: Some(mss),
            window_scale: Some(7),
            sack_permitted: true,
            timestamps: Some(Timestamps {
                value: Self::now_ms(now),
                echo: 0,
            }),
        };
        let mut options = Vec::new();
        ask.emit(&mut options);
        let window = u16::MAX;
        let to_server = key.reversed();
        self.output.send(
            to_server,
            isn,
            SeqNumber(0),
            TcpFlags::SYN,
            window,
            &options,
            &[],
        );
        self.counts.probes_sent += 1;
        self.probes.waiting.insert(
            key,
            Probe {
                id,
                isn,
                give_up: now + PROBE_WAIT,
            },
        );
    }

    /// A server answers a probe.
    pub(super) fn handle_probe_answer(
        &mut self,
        now: Instant,
        packet: &mut Packet,
        header: &TcpPacket,
    ) -> Verdict {
        let Some(&probe) = self.probes.waiting.get(&header.key) else {
            return self.drop(DropReason::NoConnection);
        };
        let flags = header.flags;
        if !flags.contains(TcpFlags::ACK) || header.ack != probe.isn + 1 {
            return self.refuse(packet, header, DropReason::BadSequence);
        }
        if flags.contains(TcpFlags::RST) {
            self.probes.waiting.remove(&header.key);
            self.probe_failed(now, probe.id);
            return Verdict::Consumed;
        }
        let Ok(options) = SynOptions::parse(header.options(&packet.bytes)) else {
            return self.drop(DropReason::BadTcpOptions);
        };
        if !flags.contains(TcpFlags::SYN) {
            return self.refuse(packet, header, DropReason::BadSequence);
        }
        self.probes.waiting.remove(&header.key);
        let offers = Offers {
            mss: options.mss.unwrap_or(536).max(88),
            window_scale: options.window_scale,
            sack: options.sack_permitted,
            timestamps: options.timestamps.is_some(),
        };
        if self.backends.answered(probe.id, offers, now) {
            self.announce(probe.id);
            self.refresh_offers();
        }
        let (key, seq) = (header.key.reversed(), header.ack);
        output::reply(packet, key, seq, SeqNumber(0), TcpFlags::RST, 0, &[]);
        Verdict::Transmit
    }

    fn probe_failed(&mut self, now: Instant, id: ServerId) {
        if self.backends.failed(id, now) {
            self.announce(id);
        }
    }

    /// Brings every service's offer up to what its servers are known to honour.
    pub(super) fn refresh_offers(&mut self) {
        for (service, offer) in self.config.services.iter().zip(&mut self.offers) {
            let known = service
                .routes
                .iter()
                .flat_map(|route| self.backends.ids(route.pool))
                .filter_map(|id| self.backends.offers(id));
            let common = known.reduce(|a, b| Offers {
                mss: a.mss.min(b.mss),
                // All must take part; the largest scale can express every server's window.
                window_scale: a.window_scale.zip(b.window_scale).map(|(a, b)| a.max(b)),
                sack: a.sack && b.sack,
                timestamps: a.timestamps && b.timestamps,
            });
            if let Some(mut terms) = common {
                terms.mss = terms.mss.min(self.config.device_mss);
                offer.change(terms);
            }
        }
    }
}
