//! Classify, look up, hand to an organ, emit: a packet's way through Fairlead.
//!
//! The way of a call: [`Datapath::handle_batch`] with packets that came in, then
//! [`Datapath::poll_transmit`] and [`Datapath::poll_event`] until they are empty; when
//! [`Datapath::poll_timeout`] says so, [`Datapath::handle_timeout`], and the same again. Time must
//! not go back from one call to the next.
//!
//! Absent by design: sockets, clocks, threads, files, random sources.
#![forbid(unsafe_code)]

pub mod fragments;
mod pairs;
pub mod tcb_cache;

use fairlead_base::{DropReason, Endpoint, FlowKey, Instant, Packet, Seed};
pub use fairlead_splice::Uncached;
pub use fairlead_splice::backends::ServerId;
pub use fairlead_splice::config;
pub use fairlead_splice::config::Config;
pub use fairlead_splice::event::{Admin, Details, End, Event, Offers, ServerState, Unavailable};
pub use fairlead_splice::snapshot::Snapshot;
pub use fairlead_splice::{
    Adopted, BadConnectionId, Change, ChangeError, ConfigError, Connection, ConnectionId,
    Departure, Estate, PairKept, PairRefused, PairState, Selection, Verdict,
};
use fairlead_splice::{Switch, translate};
use fairlead_tcp::Found;
pub use fairlead_tcp::{
    Endpoints, FastPath, Held, HostHandoff, HostTerms, Line, ListenOffer, Pairing, Progress,
    Record, Refusal, Second, Seen, Side, Sleeper, State, Tracking,
};
use fairlead_wire::{Classified, Fragment, TcpPacket, classify};

use self::fragments::{Fragments, Taken};

/// Packets whose memory is fetched together. Look-ups of one portion do not wait for each other:
/// first all index entries are read, then all records, then the packets are handled in order.
const PORTION: usize = 64;

/// Why something is not even classified; nothing of a connection is.
const UNREADABLE: [DropReason; 12] = [
    DropReason::Truncated,
    DropReason::BadIpHeader,
    DropReason::BadIpChecksum,
    DropReason::Fragment,
    DropReason::BadExtensionHeader,
    DropReason::BadTcpHeader,
    DropReason::BadTcpFlags,
    DropReason::NotTcp,
    DropReason::BadSource,
    DropReason::FragmentTimeout,
    DropReason::FragmentLimit,
    DropReason::FragmentOverlap,
];

/// Packets and bytes in and out.
#[derive(Clone, Copy, Debug, Default)]
struct Traffic {
    rx_packets: u64,
    rx_bytes: u64,
    tx_packets: u64,
    tx_bytes: u64,
    fast_packets: u64,
    fast_bytes: u64,
}

/// The packet processor.
#[derive(Debug)]
pub struct Datapath {
    switch: Switch,
    traffic: Traffic,
    drops: fairlead_base::ReasonCounts,
    fragments: Fragments,
    tcb_cache: Option<Box<tcb_cache::TcbCache>>,
}

/// A connection on record, as onlookers know it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Whose {
    /// Line of its record.
    pub line: u32,
    /// The packet is of the leg towards the server.
    pub is_server_leg: bool,
    /// The client.
    pub client: Endpoint,
    /// Index of the listening endpoint among [`Datapath::endpoints`].
    pub listen: u16,
}

impl Datapath {
    /// A datapath for this configuration. `seed` feeds every secret and every choice by chance.
    ///
    /// # Errors
    /// A [`ConfigError`] for what the types of [`Config`] cannot rule out.
    pub fn new(config: Config, seed: Seed, now: Instant) -> Result<Self, ConfigError> {
        Ok(Self::around(Switch::new(config, seed, now)?))
    }

    /// As [`Self::new`], after another that left `estate`: its indices and cookies stay good. Its
    /// connections come by [`Self::adopt`].
    ///
    /// # Errors
    /// As [`Self::new`], also when there are more old and new addresses than indices.
    pub fn resume(
        config: Config,
        seed: Seed,
        now: Instant,
        estate: &Estate,
    ) -> Result<Self, ConfigError> {
        Ok(Self::around(Switch::resume(config, seed, now, estate)?))
    }

    fn around(switch: Switch) -> Self {
        Self {
            switch,
            traffic: Traffic::default(),
            drops: Default::default(),
            fragments: Fragments::new(),
            tcb_cache: None,
        }
    }

    /// Takes over the connections of an earlier run, whose [`Estate`] this was made with. To be
    /// called once, before any packet, and after [`Self::set_fast_path`].
    pub fn adopt(&mut self, now: Instant, estate: &Estate) -> Adopted {
        self.switch.adopt(now, estate)
    }

    /// Handles packets in place: `verdicts[i]` tells what to do with `packets[i]`.
    pub fn handle_batch(
        &mut self,
        now: Instant,
        packets: &mut [Packet],
        verdicts: &mut Vec<Verdict>,
    ) {
        verdicts.clear();
        verdicts.reserve(packets.len());
        self.switch.learn_begun(now);
        for portion in packets.chunks_mut(PORTION) {
            if self.tcb_cache.is_some() {
                self.handle_portion_cached(now, portion, verdicts);
            } else {
                self.handle_portion(now, portion, verdicts);
            }
        }
    }

    fn handle_portion(
        &mut self,
        now: Instant,
        packets: &mut [Packet],
        verdicts: &mut Vec<Verdict>,
    ) {
        let mut headers: [Option<TcpPacket>; PORTION] = [None; PORTION];
        let mut hashes = [0u32; PORTION];
        let table = self.switch.table();
        for (at, packet) in packets.iter().enumerate() {
            if let Ok(Classified::Tcp(header)) = classify(&packet.bytes) {
                hashes[at] = table.hash(&header.key);
                headers[at] = Some(header);
            }
        }
        let hashes_used = &hashes[..packets.len()];
        let entries = hashes_used
            .iter()
            .fold(0, |all, &hash| all ^ table.touch_index(hash));
        let records = hashes_used
            .iter()
            .fold(0, |all, &hash| all ^ table.touch_record(hash));
        std::hint::black_box((entries, records));
        self.handle_each(now, packets, &headers, verdicts, |this, at, header| {
            let table = this.switch.table();
            table.find_hashed(&header.key, hashes[at])
        });
    }

    /// Handles packets in order; `find` looks up the connection of the one at this index. Those
    /// without a header are not TCP.
    #[inline]
    fn handle_each(
        &mut self,
        now: Instant,
        packets: &mut [Packet],
        headers: &[Option<TcpPacket>; PORTION],
        verdicts: &mut Vec<Verdict>,
        find: impl Fn(&mut Self, usize, &TcpPacket) -> Option<Found>,
    ) {
        for (at, (packet, header)) in packets.iter_mut().zip(headers).enumerate() {
            self.note_arrival(packet);
            let verdict = match header {
                Some(header) => self.handle_tcp(now, packet, header, |this| find(this, at, header)),
                None => self.handle_other(now, packet),
            };
            self.note_verdict(packet, verdict);
            verdicts.push(verdict);
        }
    }

    #[inline]
    fn note_arrival(&mut self, packet: &Packet) {
        self.traffic.rx_packets += 1;
        self.traffic.rx_bytes += packet.bytes.len() as u64;
    }

    #[inline]
    fn note_verdict(&mut self, packet: &Packet, verdict: Verdict) {
        if verdict == Verdict::Transmit {
            self.traffic.tx_packets += 1;
            self.traffic.tx_bytes += packet.bytes.len() as u64;
        }
    }

    /// Handles what is not TCP, or not even a packet: rare, so it is classified a second time.
    #[cold]
    fn handle_other(&mut self, now: Instant, packet: &mut Packet) -> Verdict {
        match classify(&packet.bytes) {
            Ok(Classified::Icmp(message)) => self.switch.handle_icmp(now, packet, &message),
            Ok(Classified::Tcp(_)) => self.drop(DropReason::NotTcp),
            Err(DropReason::NotTcp) => self.switch.handle_other_protocol(now, packet),
            Err(DropReason::Fragment) => self.handle_fragment(now, packet),
            Err(reason) => self.drop(reason),
        }
    }

    /// Handles a fragment: it is kept until the others are there. Fragments for addresses that are
    /// not the switch's are dropped.
    fn handle_fragment(&mut self, now: Instant, packet: &mut Packet) -> Verdict {
        let fragment = match Fragment::parse(&packet.bytes) {
            Ok(fragment) => fragment,
            Err(reason) => return self.drop(reason),
        };
        if !self.switch.is_own_address(&fragment.datagram.dst) {
            return self.drop(DropReason::Fragment);
        }
        match self.fragments.take(now, &fragment, packet) {
            Taken::Kept => Verdict::Consumed,
            Taken::Refused(reason) => Verdict::Drop(reason), // it is counted there
            Taken::Whole => match classify(&packet.bytes) {
                Ok(Classified::Tcp(header)) => self.find_and_handle(now, packet, &header),
                Ok(Classified::Icmp(message)) => self.switch.handle_icmp(now, packet, &message),
                Err(reason) => self.drop(reason),
            },
        }
    }

    /// Handles one packet in place.
    pub fn handle_packet(&mut self, now: Instant, packet: &mut Packet) -> Verdict {
        self.switch.learn_begun(now);
        self.note_arrival(packet);
        let verdict = match classify(&packet.bytes) {
            Ok(Classified::Tcp(header)) => self.find_and_handle(now, packet, &header),
            _ => self.handle_other(now, packet),
        };
        self.note_verdict(packet, verdict);
        verdict
    }

    fn find_and_handle(
        &mut self,
        now: Instant,
        packet: &mut Packet,
        header: &TcpPacket,
    ) -> Verdict {
        let asked = self.tcb_cache.as_ref().map(|cache| cache.ask(header));
        let asked = asked.unwrap_or_default();
        let find = |this: &mut Self| this.find_cached(now, header, &asked);
        self.handle_tcp(now, packet, header, find)
    }

    /// True for an ICMP error about a packet of ours that is addressed past us, to a client whose
    /// own address a server sees. A copy of one, wherever it was had from, may be handled like a
    /// packet that came in.
    pub fn is_error_past_us(&self, packet: &Packet) -> bool {
        matches!(classify(&packet.bytes), Ok(Classified::Icmp(message))
            if self.switch.is_error_past_us(&message))
    }

    /// The way to `server` takes packets of so many bytes; `None`: nobody knows. See
    /// [`Switch::set_mtu_to`].
    pub fn set_mtu_to(&mut self, now: Instant, server: Endpoint, mtu: Option<u32>) {
        self.switch.set_mtu_to(now, server, mtu);
    }

    #[inline]
    fn handle_tcp(
        &mut self,
        now: Instant,
        packet: &mut Packet,
        header: &TcpPacket,
        find: impl FnOnce(&mut Self) -> Option<Found>,
    ) -> Verdict {
        let found = find(self);
        if let Some(found) = found {
            if self.switch.has_pairs()
                && let Some(second) = self.switch.second(found.line)
            {
                return self.handle_pair(now, packet, header, found, &second);
            }
            if self.switch.may_be_later_request(found, header) {
                return self.switch.handle_packet(now, packet, header, Some(found));
            }
            if self.switch.has_fast_path() {
                return self.handle_offloaded(now, packet, header, found);
            }
            let (record, endpoints) = self.switch.table_mut().record_and_endpoints(found.line);
            if translate::is_fast(record, found.side, header) {
                let now_ms = now.as_millis() as u32;
                let side = found.side;
                return match translate::forward(record, endpoints, side, packet, header, now_ms) {
                    Ok(()) => {
                        self.traffic.fast_packets += 1;
                        self.traffic.fast_bytes += packet.bytes.len() as u64;
                        Verdict::Transmit
                    }
                    Err(reason) => self.drop(reason),
                };
            }
        }
        self.switch.handle_packet(now, packet, header, found)
    }

    /// A packet of a connection on record that a fast path outside left to us.
    fn handle_offloaded(
        &mut self,
        now: Instant,
        packet: &mut Packet,
        header: &TcpPacket,
        found: Found,
    ) -> Verdict {
        self.switch.reclaim(now, found.line);
        let (record, endpoints) = self.switch.table_mut().record_and_endpoints(found.line);
        if !translate::is_fast(record, found.side, header) {
            return self.switch.handle_packet(now, packet, header, Some(found));
        }
        let now_ms = now.as_millis() as u32;
        let moved = translate::forward(record, endpoints, found.side, packet, header, now_ms);
        self.switch.offload(found.line);
        match moved {
            Ok(()) => {
                self.switch.note_packet();
                Verdict::Transmit
            }
            Err(reason) => self.drop(reason),
        }
    }

    /// Lets `fast_path` forward packets and answer SYNs by itself from now on.
    pub fn set_fast_path(&mut self, now: Instant, fast_path: Box<dyn FastPath>) {
        self.switch.set_fast_path(now, fast_path);
    }

    /// Leads clients of routes to this machine's listening sockets there from now on; see
    /// [`Switch::set_host`].
    pub fn set_host(&mut self, now: Instant, handoff: Box<dyn HostHandoff>, offers: Offers) {
        self.switch.set_host(now, handoff, offers);
    }

    /// Handles packets that were held until somebody listened ([`HostHandoff::hold`]). To be called
    /// when some wait no longer.
    pub fn hear_held(&mut self, now: Instant) {
        while let Some(mut packet) = self.switch.next_held() {
            // A packet that is to be sent as it is was overtaken by its client's repetition.
            self.handle_packet(now, &mut packet);
        }
    }

    /// Responses to these were not for the cache of their route ([`Switch::note_uncached`]).
    pub fn note_uncached(&mut self, now: Instant, all: &[Uncached]) {
        self.switch.note_uncached(now, all);
    }

    /// Lets the fast path outside refuse this, because the engine does not keep up.
    pub fn refuse_ahead(&mut self, refusal: Refusal) {
        self.switch.refuse_ahead(refusal);
    }

    /// The two secret words behind SYN cookies, for a fast path that makes them itself.
    pub fn cookie_words(&self) -> (u64, u64) {
        self.switch.cookie_words()
    }

    /// The addresses that records name by index, for a fast path.
    pub fn endpoints(&self) -> &Endpoints {
        self.switch.table().endpoints()
    }

    fn drop(&mut self, reason: DropReason) -> Verdict {
        self.drops.add(reason);
        Verdict::Drop(reason)
    }

    /// Does what has become due.
    pub fn handle_timeout(&mut self, now: Instant) {
        if let Some(cache) = &mut self.tcb_cache {
            cache.advance(now);
        }
        self.fragments.expire(now);
        self.switch.handle_timeout(now);
    }

    /// When [`Self::handle_timeout`] wants to be called next.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let due = [self.switch.poll_timeout(), self.fragments.poll_timeout()];
        due.into_iter().flatten().min()
    }

    /// Takes the next packet that the engine made itself. Call until `false` after every input.
    pub fn poll_transmit(&mut self, out: &mut Packet) -> bool {
        let more = self.switch.poll_transmit(out);
        if more {
            if self.switch.has_pairs() {
                self.renumber_sent(out);
            }
            self.traffic.tx_packets += 1;
            self.traffic.tx_bytes += out.bytes.len() as u64;
        }
        more
    }

    /// Takes the next event. Call until `None`.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.switch.poll_event()
    }

    /// Takes no new connections from now on.
    pub fn drain(&mut self, _now: Instant) {
        self.switch.drain();
    }

    /// Makes a change: an order of the operator, or what a health check says. True when something
    /// is different by it. Between two batches.
    ///
    /// # Errors
    /// See [`ChangeError`].
    pub fn apply(&mut self, now: Instant, change: Change) -> Result<bool, ChangeError> {
        self.switch.apply(now, change)
    }

    /// The id of a server of a pool, by the pool's name; `None` where there is no such server.
    pub fn find_server(&self, pool: &str, server: Endpoint) -> Option<ServerId> {
        self.switch.find_server(pool, server)
    }

    /// Puts the selected live connections of `lines` lines, from line `from` on, into `found`. The
    /// line to go on with; `None` at the end.
    pub fn connections(
        &self,
        now: Instant,
        selection: &Selection,
        (from, lines): (u32, u32),
        found: &mut Vec<Connection>,
    ) -> Option<u32> {
        self.switch
            .connections(now, selection, (from, lines), found)
    }

    /// Ends everything by RST to both ends; done when [`Self::live_connections`] is 0 after some
    /// calls of [`Self::handle_timeout`].
    pub fn abort_all(&mut self, now: Instant) {
        self.switch.abort_all();
        self.switch.handle_timeout(now);
    }

    /// Connections that are being set up or spliced; TIME_WAIT does not count.
    pub fn live_connections(&self) -> u64 {
        self.switch.live_connections()
    }

    /// Packets that proved nothing; see [`Switch::unproven`]. What is no packet of TCP or ICMP is
    /// among them.
    pub fn unproven(&self) -> u64 {
        let dropped = |reason| self.drops.of(reason) + self.fragments.drops().of(reason);
        let no_tcp: u64 = UNREADABLE.map(dropped).iter().sum();
        self.switch.unproven() + no_tcp
    }

    /// Packets of newcomers that the engine has dealt with; see [`Switch::newcomers`].
    pub fn newcomers(&self) -> u64 {
        self.switch.newcomers()
    }

    /// Where the connection between a client and a listening endpoint is; `None` when none is on
    /// record.
    pub fn connection_state(&self, client: Endpoint, listen: Endpoint) -> Option<State> {
        let key = FlowKey {
            src: client,
            dst: listen,
        };
        let table = self.switch.table();
        let found = table.find(&key)?;
        Some(table.record(found.line).state)
    }

    /// The connection that a packet with this key belongs to; `None` when it is on no record, and
    /// no packet that waits to be sent is of one that was.
    pub fn whose(&self, key: &FlowKey) -> Option<Whose> {
        let table = self.switch.table();
        let on_record = table.find(key).map(|found| {
            let record = table.record(found.line);
            (found, record.client(), record.listen)
        });
        let parted = || self.switch.parted(key);
        let (found, client, listen) =
            on_record.or_else(|| parted().map(|one| (one.found, one.client, one.listen)))?;
        Some(Whose {
            line: found.line.0,
            is_server_leg: found.side == Side::Server,
            client,
            listen,
        })
    }

    /// Learns what the fast path outside has done on its own since it was last asked, so that
    /// [`Self::snapshot`] lacks nothing.
    pub fn catch_up_with_fast_path(&mut self, now: Instant) {
        self.switch.catch_up_with_fast_path(now);
    }

    /// Learns of every end in the fast path, before a run that leaves its connections to the next.
    pub fn learn_all_ends(&mut self, now: Instant) {
        self.switch.learn_all_ends(now);
    }

    /// All counters.
    pub fn snapshot(&self) -> Snapshot {
        let mut snapshot = self.switch.snapshot();
        let traffic = &self.traffic;
        snapshot.rx_packets = traffic.rx_packets;
        snapshot.rx_bytes = traffic.rx_bytes;
        snapshot.tx_packets = traffic.tx_packets;
        snapshot.tx_bytes = traffic.tx_bytes;
        snapshot.fast_packets = traffic.fast_packets;
        snapshot.fast_bytes = traffic.fast_bytes;
        snapshot.reassembled = self.fragments.reassembled();
        snapshot.drops.merge(&self.drops);
        snapshot.drops.merge(self.fragments.drops());
        snapshot
    }

    /// Panics unless all that is kept of connections agrees. Linear in their number: for tests.
    ///
    /// # Panics
    /// When an invariant does not hold: a fault of the switch.
    pub fn check_invariants(&self) {
        self.switch.check_invariants();
    }

    /// The configuration it was built from.
    pub fn config(&self) -> &Config {
        self.switch.config()
    }
}
