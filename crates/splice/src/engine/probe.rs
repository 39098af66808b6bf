//! Learning what servers honour, and what clients are therefore offered.
//!
//! Every server is sent a SYN from time to time; its SYN-ACK shows its MSS, window scale, SACK and
//! timestamps, and a RST takes the half-open connection back. A service offers its clients what
//! all its servers can keep; before they have answered, next to nothing.

use core::time::Duration;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

use fairlead_base::{DropReason, Endpoint, FlowKey, Instant, Packet, Seed, SeqNumber};
use fairlead_tcp::cookie;
use fairlead_wire::{IcmpKind, IcmpPacket, IcmpQuote, SynOptions, TcpFlags, TcpPacket, Timestamps};

use super::{Switch, output};
use crate::Verdict;
use crate::backends::ServerId;
use crate::config::{Config, Route, Source};
use crate::event::{Offers, ServerState};

/// When it is looked again whether there is somebody to ask, where there are no pools.
const NO_POOLS: Duration = Duration::from_secs(10);

/// How long a server is given to answer each SYN of a probe.
const PROBE_WAIT: Duration = Duration::from_millis(400);

/// SYNs of one probe: one that is lost says nothing about its server.
const PROBE_SYNS: u8 = 3;

/// A server that did not answer is asked again sooner than all are: after the interval divided by
/// this …
const RETRY_FRACTION: u32 = 16;

/// … but at least this long, and then twice as long each time, until its turn comes anyway.
const RETRY_MIN: Duration = Duration::from_secs(1);

/// A server is asked at once when a connection to it has failed, but so long after it was asked for
/// that reason last.
const PROMPT_PAUSE: Duration = Duration::from_secs(1);

/// Ports that probes use where they share an address with a listening endpoint.
const PROBE_PORTS: u32 = 16_384;

/// The smallest MSS that is believed.
const MSS_MIN: u16 = 88;

/// What a peer that does not say takes in one segment (RFC 9293, section 3.7.1), with IPv4 and
/// with IPv6.
const MSS_UNSAID: [u16; 2] = [536, 1_220];

/// [`MSS_UNSAID`] of a family.
pub(super) fn mss_unsaid(v4: bool) -> u16 {
    MSS_UNSAID[usize::from(!v4)]
}

/// An MSS as it is for IPv4 (MTU − 40), brought to a family: IPv6 headers are 20 bytes longer.
pub(super) fn mss_of_family(mss: u16, v4: bool) -> u16 {
    if v4 { mss } else { mss.saturating_sub(20) }
}

/// The MSS for packets of at most so many bytes (RFC 6691, section 2).
fn mss_of_mtu(mtu: u32, v4: bool) -> u16 {
    let mss = mtu.saturating_sub(if v4 { 40 } else { 60 });
    u16::try_from(mss).unwrap_or(u16::MAX).max(MSS_MIN)
}

/// The MSS for a way of which a router says that it takes packets of `mtu` bytes. One that does not
/// say it: what every host must take (RFC 1191, section 5).
pub(super) fn mss_of_router(mtu: u32, v4: bool) -> u16 {
    let mtu = if mtu == 0 { 576 } else { mtu };
    let mss = mtu.saturating_sub(if v4 { 40 } else { 60 });
    u16::try_from(mss).unwrap_or(u16::MAX)
}

/// What a server honours by the options of its SYN-ACK.
pub(super) fn honoured(options: &SynOptions, v4: bool) -> Offers {
    Offers {
        mss: options.mss.unwrap_or(mss_unsaid(v4)).max(MSS_MIN),
        window_scale: options.window_scale,
        sack: options.sack_permitted,
        timestamps: options.timestamps.is_some(),
    }
}

/// What a service offers its clients in SYN-ACKs.
///
/// A cookie has room for all of it but the window scale that was offered, which must still be known
/// when the handshake completes. So at most two different scales are in use at a time, and the
/// cookie names one by its parity; a third waits until no cookie speaks of the first any more.
#[derive(Clone, Debug)]
pub(super) struct Offer {
    /// With the MSS as it is for IPv4; `None` while not all servers are known.
    terms: Option<Offers>,
    device_mss: u16,
    scales: [OfferedScale; 2],
    parity: bool,
    /// The terms are an earlier run's, which knew the servers.
    inherited: bool,
}

/// A window scale, and when a SYN-ACK last offered it.
#[derive(Clone, Copy, Debug, Default)]
struct OfferedScale {
    shift: u8,
    used: Option<Instant>,
}

impl OfferedScale {
    fn is_free(&self, now: Instant) -> bool {
        self.used.is_none_or(|used| used + cookie::LIFETIME <= now)
    }
}

impl Offer {
    /// Before the servers have answered.
    pub(super) fn unknown(config: &Config) -> Self {
        Self {
            terms: None,
            device_mss: config.device_mss,
            scales: [OfferedScale::default(); 2],
            parity: false,
            inherited: false,
        }
    }

    /// Goes on with what an earlier run offered, until the servers have answered this one. Of two
    /// scales it left the present one only: cookies that name the other are read as if it was the
    /// same, which is near, and neither changes before they have aged.
    pub(super) fn inherit(&mut self, now: Instant, terms: Offers, parity: bool) {
        self.parity = parity;
        if let Some(shift) = terms.window_scale {
            let used = Some(now);
            self.scales = [OfferedScale { shift, used }; 2];
        }
        self.note_scale_used(now);
        self.terms = Some(terms);
        self.inherited = true;
    }

    /// What is offered now; of the MSS, see [`Self::mss`].
    pub(super) fn terms(&self) -> Offers {
        self.terms.unwrap_or(Offers {
            mss: MSS_UNSAID[0],
            window_scale: None,
            sack: false,
            timestamps: false,
        })
    }

    /// The MSS that clients of a family are told.
    pub(super) fn mss(&self, v4: bool) -> u16 {
        let device_mss = mss_of_family(self.device_mss, v4);
        match &self.terms {
            Some(terms) => mss_of_family(terms.mss, v4).min(device_mss),
            None => mss_unsaid(v4).min(device_mss),
        }
    }

    /// Names the window scale that is offered now.
    pub(super) fn parity(&self) -> bool {
        self.parity
    }

    /// The window scale that a cookie names.
    pub(super) fn scale_of(&self, parity: bool) -> Option<u8> {
        Some(self.scales[usize::from(parity)].shift)
    }

    /// A cookie was made that names the present window scale.
    pub(super) fn note_scale_used(&mut self, now: Instant) {
        self.scales[usize::from(self.parity)].used = Some(now);
    }

    fn change(&mut self, now: Instant, mut terms: Offers) {
        if let Some(shift) = terms.window_scale {
            let (present, other) = (usize::from(self.parity), usize::from(!self.parity));
            if self.scales[present].shift == shift {
            } else if self.scales[present].is_free(now) {
                self.scales[present].shift = shift;
            } else if self.scales[other].shift == shift || self.scales[other].is_free(now) {
                self.scales[other].shift = shift;
                self.parity = !self.parity;
            } else {
                terms.window_scale = Some(self.scales[present].shift);
            }
        }
        self.terms = Some(terms);
        self.inherited = false;
    }
}

/// Probes under way.
#[derive(Debug)]
pub(super) struct Probes {
    /// When the servers of each pool are asked next, and the first of these moments.
    rounds: Vec<Instant>,
    next_round: Instant,
    /// By the key of the answer.
    waiting: BTreeMap<FlowKey, Probe>,
    /// When to look at which; one that was answered meanwhile is passed over. In order, as all wait
    /// equally long.
    due: VecDeque<(Instant, FlowKey)>,
    /// Servers that are asked again out of turn, and when.
    again: BTreeSet<(Instant, ServerId)>,
    /// Each server that does not answer: how long was last waited before it was asked again, and
    /// whether it stands in `again`.
    pauses: BTreeMap<ServerId, (Duration, bool)>,
    /// Servers to which a connection has failed, and when they are asked.
    prompts: BTreeSet<(Instant, ServerId)>,
    /// When each was, or will be, asked for that reason last.
    prompted: BTreeMap<ServerId, Instant>,
    seed: Seed,
    /// Words of `seed` in use.
    drawn: u64,
}

/// A SYN that has not been answered.
#[derive(Clone, Copy, Debug)]
struct Probe {
    id: ServerId,
    isn: SeqNumber,
    syns_left: u8,
    due: Instant,
}

impl Probes {
    pub(super) fn new(now: Instant, pools: usize, seed: Seed) -> Self {
        Self {
            rounds: vec![now; pools],
            next_round: now,
            waiting: BTreeMap::new(),
            due: VecDeque::new(),
            again: BTreeSet::new(),
            pauses: BTreeMap::new(),
            prompts: BTreeSet::new(),
            prompted: BTreeMap::new(),
            seed,
            drawn: 0,
        }
    }

    /// What nobody can tell who has not the seed, whatever else it has seen: servers see these
    /// numbers, and no server is to answer for another, or to learn what cookies are made of.
    fn draw(&mut self) -> u64 {
        self.drawn += 1;
        self.seed.word("probes", self.drawn)
    }

    /// A connection to a server has failed: it is asked soon.
    pub(super) fn prompt(&mut self, id: ServerId, now: Instant) {
        let last = self.prompted.get(&id).copied();
        if last.is_some_and(|last| self.prompts.contains(&(last, id))) {
            return;
        }
        let due = last.map_or(now, |last| now.max(last + PROMPT_PAUSE));
        self.prompted.insert(id, due);
        self.prompts.insert((due, id));
    }

    /// Takes a server to which a connection has failed, and that is asked now.
    fn take_prompted(&mut self, now: Instant) -> Option<ServerId> {
        let &(due, id) = self.prompts.first()?;
        (due <= now).then(|| {
            self.prompts.pop_first();
            id
        })
    }

    /// True while a server's answer is waited for.
    fn asks(&self, id: ServerId) -> bool {
        self.waiting.values().any(|probe| probe.id == id)
    }

    /// A server did not answer: it is asked again, after longer and longer pauses.
    fn ask_again(&mut self, id: ServerId, now: Instant, interval: Duration) {
        let first = (interval / RETRY_FRACTION).max(RETRY_MIN);
        let pause = match self.pauses.get(&id) {
            Some((_, true)) => return,
            Some((last, false)) => *last * 2,
            None => first,
        };
        if pause < interval {
            self.pauses.insert(id, (pause, true));
            self.again.insert((now + pause, id));
        }
    }

    /// A server answered: the next time the pauses begin anew.
    fn heard(&mut self, id: ServerId, interval: Duration) {
        match self.pauses.get_mut(&id) {
            Some((last, true)) => *last = (interval / RETRY_FRACTION).max(RETRY_MIN) / 2,
            _ => drop(self.pauses.remove(&id)),
        }
    }

    /// Takes a server that is asked out of turn now.
    fn take_again(&mut self, now: Instant) -> Option<ServerId> {
        let &(due, id) = self.again.first()?;
        if due > now {
            return None;
        }
        self.again.pop_first();
        if let Some((_, waiting)) = self.pauses.get_mut(&id) {
            *waiting = false;
        }
        Some(id)
    }

    /// True when a packet with this key answers a probe.
    pub(super) fn awaits(&self, key: &FlowKey) -> bool {
        !self.waiting.is_empty() && self.waiting.contains_key(key)
    }

    pub(super) fn due(&self) -> Instant {
        let due = self.due.front().map(|(due, _)| *due);
        let again = self.again.first().map(|(due, _)| *due);
        let prompt = self.prompts.first().map(|(due, _)| *due);
        let due = due.into_iter().chain(again).chain(prompt).min();
        due.map_or(self.next_round, |due| due.min(self.next_round))
    }
}

impl Switch {
    /// Goes after probes that were not answered, and begins a round when it is time.
    pub(super) fn run_probes(&mut self, now: Instant) {
        while let Some(&(due, key)) = self.probes.due.front()
            && due <= now
        {
            self.probes.due.pop_front();
            let Some(&probe) = self.probes.waiting.get(&key) else {
                continue;
            };
            if probe.due != due {
                continue;
            }
            if probe.syns_left > 0 {
                self.send_probe_syn(now, key, probe);
            } else {
                self.probes.waiting.remove(&key);
                self.probe_failed(now, probe.id);
            }
        }
        while let Some(id) = self.probes.take_again(now) {
            if self.backends.state(id) != ServerState::Up {
                let (_, server) = self.backends.server(id);
                self.begin_probe(now, id, server.endpoint);
            }
        }
        while let Some(id) = self.probes.take_prompted(now) {
            if !self.probes.asks(id) {
                let (_, server) = self.backends.server(id);
                self.begin_probe(now, id, server.endpoint);
            }
        }
        if self.probes.next_round > now {
            return;
        }
        let due = self.begin_rounds(now);
        // A scale that had to wait may have its turn.
        self.refresh_offers(now);
        let busy: BTreeSet<ServerId> = self.probes.waiting.values().map(|probe| probe.id).collect();
        let servers: Vec<(ServerId, Endpoint)> = self
            .backends
            .servers()
            .filter(|(id, pool, _)| due[usize::from(pool.0)] && !busy.contains(id))
            .map(|(id, _, server)| (id, server.endpoint))
            .collect();
        for (id, server) in servers {
            self.begin_probe(now, id, server);
        }
    }

    /// Begins the rounds that are due; for each pool, whether its is.
    fn begin_rounds(&mut self, now: Instant) -> Vec<bool> {
        let rounds = self.probes.rounds.iter_mut().zip(&self.config.pools);
        let due = rounds.map(|(round, pool)| {
            let is_due = *round <= now;
            if is_due {
                *round = now + pool.probe_interval;
            }
            is_due
        });
        let due = due.collect();
        let first = self.probes.rounds.iter().min().copied();
        self.probes.next_round = first.unwrap_or(now + NO_POOLS);
        due
    }

    /// How often a server is asked.
    fn probe_interval(&self, id: ServerId) -> Duration {
        let (pool, _) = self.backends.server(id);
        self.config.pools[usize::from(pool.0)].probe_interval
    }

    /// An address of ours from which `server` can be asked: a source address, or else the
    /// listening address of a service that uses the server.
    fn probe_source(&self, id: ServerId, server: Endpoint) -> Option<fairlead_base::Address> {
        let v4 = server.addr.is_v4();
        let (pool, _) = self.backends.server(id);
        let services = &self.config.services;
        let mut services = services
            .iter()
            .filter(|service| service.routes.iter().any(|route| route.pool == Some(pool)));
        let snat = self
            .config
            .snat
            .iter()
            .find(|address| address.is_v4() == v4);
        services.find_map(|service| match (service.source, snat) {
            (Source::Snat, Some(&address)) => Some(address),
            _ => service
                .listen
                .iter()
                .map(|listen| listen.addr)
                .find(|addr| addr.is_v4() == v4),
        })
    }

    fn begin_probe(&mut self, now: Instant, id: ServerId, server: Endpoint) {
        let Some(addr) = self.probe_source(id, server) else {
            return;
        };
        for _ in 0..8 {
            let word = self.probes.draw();
            let isn = SeqNumber((word >> 32) as u32);
            let port = 49_152 + (word as u32 % PROBE_PORTS) as u16;
            let key = FlowKey {
                src: server,
                dst: Endpoint { addr, port },
            };
            let taken = self.table.find(&key).is_some()
                || self.listens.contains_key(&key.dst)
                || self.probes.waiting.contains_key(&key);
            if !taken {
                let probe = Probe {
                    id,
                    isn,
                    syns_left: PROBE_SYNS,
                    due: now,
                };
                self.counts.probes_sent += 1;
                self.send_probe_syn(now, key, probe);
                return;
            }
        }
    }

    fn send_probe_syn(&mut self, now: Instant, key: FlowKey, mut probe: Probe) {
        let ask = SynOptions {
            mss: Some(mss_of_family(self.config.device_mss, key.src.addr.is_v4())),
            window_scale: Some(7),
            sack_permitted: true,
            timestamps: Some(Timestamps {
                value: Self::now_ms(now),
                echo: 0,
            }),
        };
        let mut options = Vec::new();
        ask.emit(&mut options);
        let (to_server, window) = (key.reversed(), u16::MAX);
        let (seq, none) = (probe.isn, SeqNumber(0));
        self.output
            .send(to_server, seq, none, TcpFlags::SYN, window, &options, &[]);
        probe.syns_left -= 1;
        probe.due = now + PROBE_WAIT;
        self.probes.due.push_back((probe.due, key));
        self.probes.waiting.insert(key, probe);
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
        if !flags.contains(TcpFlags::ACK) {
            return self.drop(DropReason::BadSequence);
        }
        if header.ack != probe.isn + 1 {
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
        let interval = self.probe_interval(probe.id);
        self.probes.heard(probe.id, interval);
        let offers = honoured(&options, header.v4);
        let change = self.backends.answered(probe.id, offers, now);
        self.heed(now, probe.id, change);
        let (key, seq) = (header.key.reversed(), header.ack);
        output::reply(packet, key, seq, SeqNumber(0), TcpFlags::RST, 0, &[]);
        Verdict::Transmit
    }

    /// A router, or this machine, says that a probe cannot reach its server: as good as a refusal,
    /// when the message quotes the probe's number (RFC 5927, section 4.1).
    pub(super) fn probe_unreachable(
        &mut self,
        now: Instant,
        message: &IcmpPacket,
        quote: &IcmpQuote,
    ) -> Verdict {
        let key = quote.key.reversed();
        let Some(&probe) = self.probes.waiting.get(&key) else {
            return self.drop(DropReason::BadIcmp);
        };
        if quote.seq != probe.isn || message.dst != key.dst.addr {
            return self.drop(DropReason::BadIcmp);
        }
        if !matches!(message.kind, IcmpKind::Unreachable { .. }) {
            return self.drop(DropReason::NothingToDo);
        }
        self.probes.waiting.remove(&key);
        self.probe_failed(now, probe.id);
        Verdict::Consumed
    }

    fn probe_failed(&mut self, now: Instant, id: ServerId) {
        let interval = self.probe_interval(id);
        self.probes.ask_again(id, now, interval);
        if self.backends.failed(id, now) {
            self.announce(id);
            self.refresh_offers(now);
        }
    }

    /// The way to `server` takes packets of so many bytes (`None`: nobody knows). Where they bear
    /// their client's own address, no one but that client is told of longer ones, and it would not
    /// know what is meant: nobody is offered more. Connections that have begun are not changed.
    pub fn set_mtu_to(&mut self, now: Instant, server: Endpoint, mtu: Option<u32>) {
        let mss = mtu.map_or(u16::MAX, |mtu| mss_of_mtu(mtu, server.addr.is_v4()));
        let all = self.backends.servers();
        let same = all.filter(|(_, _, one)| one.endpoint == server);
        let ids: Vec<ServerId> = same.map(|(id, ..)| id).collect();
        for id in ids {
            if self.backends.set_way_mss(id, mss) {
                self.announce(id);
                self.refresh_offers(now);
            }
        }
    }

    /// The largest segment that may be sent to a server, named by its index in records.
    pub(super) fn mss_to(&self, server: u16, v4: bool) -> u16 {
        let way_mss = self
            .places
            .server(server)
            .map(|id| self.backends.way_mss(id));
        mss_of_family(self.config.device_mss, v4).min(way_mss.unwrap_or(u16::MAX))
    }

    /// Brings every service's offer up to what its servers are known to honour. A server that has
    /// not answered yet may honour nothing; only one that is down does not count until it has.
    pub(super) fn refresh_offers(&mut self, now: Instant) {
        if self.has_fast_path() {
            // It may have made a cookie with the present scale a moment ago.
            self.offers
                .iter_mut()
                .for_each(|offer| offer.note_scale_used(now));
        }
        let host = self.host_offers();
        for (service, offer) in self.config.services.iter().zip(&mut self.offers) {
            // No client of another family than its own gets to a server.
            let is_used = |id: &ServerId| {
                let v4 = self.backends.server(*id).1.endpoint.addr.is_v4();
                service.listen.iter().any(|one| one.addr.is_v4() == v4)
            };
            // Sockets of this process, where the kernel does not make them.
            let front = self.config.front.filter(|_| host.is_none());
            let front = front.filter(|_| service.routes.iter().any(Route::is_to_front));
            let ids = service
                .routes
                .iter()
                .filter_map(|route| route.pool)
                .chain(front)
                .flat_map(|pool| self.backends.ids(pool))
                .filter(is_used);
            let hosts = service.routes.iter().any(Route::is_to_socket);
            let mut common: Option<Offers> = host.filter(|_| hosts);
            let mut all_known = true;
            for id in ids {
                let Some(mut offers) = self.backends.offers(id) else {
                    all_known &= self.backends.state(id) == ServerState::Down;
                    continue;
                };
                if !self.backends.server(id).1.endpoint.addr.is_v4() {
                    offers.mss = offers.mss.saturating_add(20);
                }
                common = Some(common.map_or(offers, |common| common.intersection(offers)));
            }
            match common {
                Some(terms) if all_known => offer.change(now, terms),
                _ if offer.inherited => {}
                _ => offer.terms = None,
            }
        }
        self.publish_offers();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn terms(window_scale: Option<u8>) -> Offers {
        Offers {
            mss: 1_460,
            window_scale,
            sack: true,
            timestamps: true,
        }
    }

    fn inherited(window_scale: Option<u8>) -> Offer {
        let mut offer = Offer::unknown(&Config::new(Vec::new(), Vec::new()));
        offer.inherit(Instant::ZERO, terms(window_scale), true);
        offer
    }

    #[test]
    fn an_earlier_runs_cookies_of_either_parity_are_read_as_its_last_scale_while_they_are_good() {
        let mut offer = inherited(Some(7));
        let aged = Instant::ZERO + cookie::LIFETIME;
        for now in [Instant::ZERO, aged - Duration::from_millis(1)] {
            offer.change(now, terms(Some(9)));
            assert_eq!(offer.terms().window_scale, Some(7));
            assert_eq!(
                [true, false].map(|parity| offer.scale_of(parity)),
                [Some(7); 2]
            );
        }
        offer.change(aged, terms(Some(9)));
        assert_eq!(offer.terms().window_scale, Some(9));
    }

    #[test]
    fn an_earlier_run_without_a_scale_leaves_room_for_one() {
        let mut offer = inherited(None);
        offer.change(Instant::ZERO, terms(Some(9)));
        assert_eq!(offer.terms().window_scale, Some(9));
        assert_eq!(offer.scale_of(offer.parity()), Some(9));
    }
}
