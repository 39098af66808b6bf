//! The engine: everything about a connection that is not plain translation.
//!
//! One file per concern; this one holds the state and the control flow.
//!
//! | file | concern |
//! |---|---|
//! | `handshake.rs` | SYN, cookie, the first data |
//! | `head.rs` | collecting and reading the head, deciding |
//! | `connect.rs` | the server's side: SYN, refusal, silence, the splice itself |
//! | `held.rs` | bytes that the switch holds for the server until it acknowledges them |
//! | `joined.rs` | packets of joined connections, by the rules of `closing.rs` |
//! | `renewal.rs` | a SYN on a tuple that is on record |
//! | `hand_back.rs` | packets of servers that belong to no connection of the switch |
//! | `request.rs` | the one request of a one-shot connection, and what comes behind it |
//! | `answer.rs` | the switch's own answers to clients |
//! | `icmp.rs` | errors that quote translated packets |
//! | `unreachable.rs` | UDP to listening addresses |
//! | `probe.rs` | learning what servers honour; what is offered to clients |
//! | `timer.rs` | timers of set-ups, and the sweep over all records |
//! | `offload/` | connections that a fast path outside joins, begins or forwards |
//! | `apply.rs` | changes by orders and health checks |
//! | `connections.rs` | lists of connections, and orders about single ones |
//! | `inherit.rs` | connections of an earlier run, and indices that keep their meaning |
//! | `pairs.rs` | records made of two connections that a proxy has handed off |
//! | `parting.rs` | whose the last packets of a connection are |
//! | `invariants.rs` | what holds between two calls |
//! | `details.rs` | what the access log shows of set-ups |
//! | `setup.rs`, `output.rs`, `counts.rs` | stores |

mod answer;
mod apply;
mod connect;
mod connections;
mod counts;
mod details;
mod hand_back;
mod handshake;
mod head;
mod held;
mod host;
mod icmp;
mod inherit;
mod invariants;
mod joined;
mod later;
mod offload;
mod output;
mod pairs;
mod parting;
mod probe;
mod refused;
mod renewal;
mod request;
mod setup;
mod sleep;
mod timer;
mod uncacheable;
mod unreachable;

use core::time::Duration;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

use fairlead_base::{Address, Checksum, DropReason, Endpoint, Instant, Packet, Seed, SeqNumber};
use fairlead_tcp::record::flag;
use fairlead_tcp::{CookieKey, Found, Line, Record, Side, State, Table};
use fairlead_wire::{TcpFlags, TcpPacket};

use self::apply::Endings;
pub use self::apply::{Change, ChangeError, Departure};
pub use self::connections::{BadConnectionId, Connection, ConnectionId, Selection};
use self::counts::Counts;
use self::details::Kept;
use self::host::Host;
use self::inherit::Places;
pub use self::inherit::{Adopted, Estate};
use self::later::Later;
use self::offload::Offload;
use self::output::Output;
use self::pairs::Pairs;
pub use self::pairs::{Pair, PairKept, PairRefused, PairState};
pub use self::parting::Parted;
use self::parting::Parting;
use self::probe::{Offer, Probes};
use self::refused::Refused;
use self::renewal::Renewals;
use self::setup::Setups;
use self::timer::{Sweep, Timers};
use self::uncacheable::Uncacheable;
pub use self::uncacheable::Uncached;
use self::unreachable::Rate;
use crate::Verdict;
use crate::backends::{Backends, BackendsError, ServerId};
use crate::config::{Config, Pool, PoolId, Server, Service, Source};
use crate::event::{End, Event};
use crate::snapshot::{ServiceSnapshot, Snapshot, SwitchCounters};
use crate::snat::Snat;

/// Events that wait to be fetched, at most.
const EVENTS_MAX: usize = 65_536;

/// A configuration that no switch can be built from.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// More listening endpoints or source addresses than a record can name.
    #[error("{what}: {count}; at most {max} are possible")]
    TooMany {
        /// What there is too much of.
        what: &'static str,
        /// How many there are.
        count: usize,
        /// How many are possible.
        max: usize,
    },
    /// Two services listen on one endpoint.
    #[error("two services listen on {0}")]
    ListenTwice(Endpoint),
    /// A route names a pool that does not exist.
    #[error("a route of service {service} names a pool that does not exist")]
    UnknownPool {
        /// The service's name.
        service: String,
    },
    /// A transparent service leads to a pool of which its clients can use no server.
    #[error("transparent service {service} and the servers of pool {pool} share no IP version")]
    OtherFamily {
        /// The service's name.
        service: String,
        /// The pool's name.
        pool: String,
    },
    /// The servers cannot be held.
    #[error(transparent)]
    Backends(#[from] BackendsError),
}

/// Where clients connect.
struct Listens {
    endpoints: Vec<Endpoint>,
    /// Index of the service of each.
    services: Vec<u16>,
}

impl Listens {
    /// The listening endpoints of a configuration, which records can name, and whose routes lead
    /// to pools that exist.
    fn of(config: &Config) -> Result<Self, ConfigError> {
        const INDICES: usize = u16::MAX as usize;
        let mut seen = BTreeSet::new();
        let mut listens = Self {
            endpoints: Vec::new(),
            services: Vec::new(),
        };
        for (index, service) in config.services.iter().enumerate() {
            for &listen in &service.listen {
                if !seen.insert(listen) {
                    return Err(ConfigError::ListenTwice(listen));
                }
                listens.endpoints.push(listen);
                listens.services.push(index as u16);
            }
            let known = |pool: usize| pool < config.pools.len();
            if !service
                .routes
                .iter()
                .all(|route| route.pool.is_none_or(|pool| known(usize::from(pool.0))))
            {
                return Err(ConfigError::UnknownPool {
                    service: service.name.clone(),
                });
            }
            if let Some(pool) = stranded(config, service) {
                return Err(ConfigError::OtherFamily {
                    service: service.name.clone(),
                    pool: pool.name.clone(),
                });
            }
        }
        let too_many = |what, count: usize| ConfigError::TooMany {
            what,
            count,
            max: INDICES,
        };
        if listens.endpoints.len() > INDICES {
            return Err(too_many("listening endpoints", listens.endpoints.len()));
        }
        // The last index means the client's own address.
        if config.snat.len() >= INDICES {
            return Err(too_many("source addresses", config.snat.len()));
        }
        Ok(listens)
    }
}

/// A pool that a transparent service could never use: servers are sent the client's own address, so
/// one of them must have the family of some listening address. Single servers of the other family
/// are passed over, for a pool may serve services of both.
fn stranded<'a>(config: &'a Config, service: &Service) -> Option<&'a Pool> {
    let reached = |server: &Server| {
        let v4 = server.endpoint.addr.is_v4();
        let mut listens = service.listen.iter();
        listens.any(|listen| listen.addr.is_v4() == v4)
    };
    let routes = service.routes.iter();
    let mut pools = routes.filter_map(|route| config.pools.get(usize::from(route.pool?.0)));
    match service.source {
        Source::Transparent => {
            pools.find(|pool| !pool.servers.is_empty() && !pool.servers.iter().any(reached))
        }
        Source::Snat => None,
    }
}

/// The switch: all connections, and what is needed to make and end them.
#[derive(Debug)]
pub struct Switch {
    config: Config,
    table: Table,
    listens: BTreeMap<Endpoint, u16>,
    listen_addresses: BTreeSet<Address>,
    listen_services: Vec<u16>,
    places: Places,
    servers: BTreeSet<Endpoint>,
    nats: BTreeSet<Address>,
    backends: Backends,
    uncacheable: Uncacheable,
    snat: Snat,
    cookies: CookieKey,
    offers: Vec<Offer>,
    setups: Setups,
    refused: Refused,
    unreachable: Rate,
    renewals: Renewals,
    timers: Timers,
    sweep: Sweep,
    probes: Probes,
    output: Output,
    parting: Parting,
    events: VecDeque<Event>,
    syn_options: Vec<u8>,
    counts: Counts,
    details: Kept,
    offload: Offload,
    endings: Endings,
    later: Later,
    host: Host,
    pairs: Pairs,
    draining: bool,
    aborting: bool,
}

/// How long a request to a watched address waits for a listener.
const WATCHED_WAIT: core::time::Duration = core::time::Duration::from_secs(10);

impl Switch {
    /// A switch for this configuration. `seed` feeds every secret and every choice by chance.
    ///
    /// # Errors
    /// A [`ConfigError`] for what the types of [`Config`] cannot rule out.
    pub fn new(config: Config, seed: Seed, now: Instant) -> Result<Self, ConfigError> {
        Self::build(config, seed, now, &Estate::default())
    }

    /// As [`Self::new`], after another that left `estate`: what its records call a listening
    /// endpoint, a server or a source keeps its index, and its cookies are good. The connections
    /// themselves come by [`Self::adopt`].
    ///
    /// # Errors
    /// As [`Self::new`], and [`ConfigError::TooMany`] when old and new indices do not fit together.
    pub fn resume(
        config: Config,
        seed: Seed,
        now: Instant,
        estate: &Estate,
    ) -> Result<Self, ConfigError> {
        Self::build(config, seed, now, estate)
    }

    fn build(
        mut config: Config,
        seed: Seed,
        now: Instant,
        estate: &Estate,
    ) -> Result<Self, ConfigError> {
        let listens = Listens::of(&config)?;
        let words = estate.cookie;
        let words = words.unwrap_or_else(|| (seed.word("cookies", 0), seed.word("cookies", 1)));
        let mut backends = Backends::new(&config, seed.word("servers", 0))?;
        // What cookies are made of is inherited, and so is which client meets which server.
        backends.key_affinity(Seed::new([words.0, words.1]).word("affinity", 0));
        let servers: Vec<Endpoint> = backends.servers().map(|(_, _, one)| one.endpoint).collect();
        let (endpoints, places) =
            inherit::places(estate, &listens.endpoints, &servers, &config.snat)?;
        let configured = estate.configured(&endpoints);
        let listen_services = inherit::services(&mut config, &configured, &listens);
        let most = config.pairs.max(estate.pairs.len() as u32);
        let pairs = Pairs::new(most, &mut config.services);
        let (services, pools) = (config.services.len(), config.pools.len());
        let (table_seed, snat_seed) = (seed.word("table", 0), seed.word("source addresses", 0));
        let mut switch = Self {
            listens: places.listens(&listens.endpoints),
            listen_addresses: configured
                .listens
                .iter()
                .map(|listen| listen.addr)
                .collect(),
            listen_services,
            servers: configured.servers.iter().copied().collect(),
            nats: configured.nats.iter().copied().collect(),
            snat: Snat::among(&configured.nats, &places.nats, snat_seed),
            table: Table::new(config.limits.connections, endpoints, table_seed),
            places,
            backends,
            uncacheable: Uncacheable::default(),
            cookies: CookieKey::new(words.0, words.1),
            offers: vec![Offer::unknown(&config); services],
            setups: Setups::new(config.limits.setups),
            refused: Refused::default(),
            unreachable: Rate::default(),
            renewals: Renewals::default(),
            timers: Timers::default(),
            sweep: Sweep::new(now),
            probes: Probes::new(now, pools, seed),
            output: Output::default(),
            parting: Parting::default(),
            events: VecDeque::new(),
            syn_options: Vec::new(),
            counts: Counts::new(&config),
            details: Kept::new(config.details_bytes),
            offload: Offload::default(),
            endings: Endings::default(),
            later: Later::new(&config),
            host: Host::default(),
            pairs,
            draining: false,
            aborting: false,
            config,
        };
        switch.take_over(now, estate);
        switch.refresh_offers(now);
        Ok(switch)
    }

    /// The configuration it was built from.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// The connection table.
    pub fn table(&self) -> &Table {
        &self.table
    }

    /// The connection table, for the fast path.
    pub fn table_mut(&mut self) -> &mut Table {
        &mut self.table
    }

    fn service_of(&self, listen: u16) -> &Service {
        &self.config.services[usize::from(self.listen_services[usize::from(listen)])]
    }

    fn now_ms(now: Instant) -> u32 {
        now.as_millis() as u32
    }

    fn drop(&mut self, reason: DropReason) -> Verdict {
        self.counts.drops.add(reason);
        Verdict::Drop(reason)
    }

    /// Counts a packet that the fast path outside left to us, and that was only translated here:
    /// to whoever runs it, the engine looked at it.
    pub fn note_packet(&mut self) {
        self.counts.engine_packets += 1;
    }

    /// Handles a TCP packet that the fast path does not handle alone. `found` is the result of
    /// looking its key up in [`Self::table`].
    pub fn handle_packet(
        &mut self,
        now: Instant,
        packet: &mut Packet,
        header: &TcpPacket,
        found: Option<Found>,
    ) -> Verdict {
        self.counts.engine_packets += 1;
        if packet.checksum == Checksum::Complete && !header.checksum_valid(&packet.bytes) {
            return self.drop(DropReason::BadTcpChecksum);
        }
        let verdict = match found {
            Some(found) => self.handle_on_record(now, packet, header, found),
            None => self.handle_stranger(now, packet, header),
        };
        self.debug_check(found.map(|found| found.line));
        verdict
    }

    /// A packet of a connection on record, in whichever hand that is.
    fn handle_on_record(
        &mut self,
        now: Instant,
        packet: &mut Packet,
        header: &TcpPacket,
        Found { line, side }: Found,
    ) -> Verdict {
        self.reclaim(now, line);
        let verdict = self.handle_found(now, packet, header, line, side);
        self.offload(line);
        verdict
    }

    /// A packet of a connection on record, which the engine has.
    fn handle_found(
        &mut self,
        now: Instant,
        packet: &mut Packet,
        header: &TcpPacket,
        line: Line,
        side: Side,
    ) -> Verdict {
        match (self.table.record(line).state, side) {
            (State::Established | State::SynSent | State::Answering, Side::Client) => {
                self.client_in_setup(now, packet, header, line)
            }
            (State::SynSent, Side::Server) => self.server_in_setup(now, packet, header, line),
            (State::Free | State::Established | State::Answering, _) => {
                debug_assert!(false, "no key of this side is bound in these states");
                self.drop(DropReason::NoConnection)
            }
            _ => self.handle_joined(now, packet, header, line, side),
        }
    }

    /// A packet of no known connection.
    fn handle_stranger(
        &mut self,
        now: Instant,
        packet: &mut Packet,
        header: &TcpPacket,
    ) -> Verdict {
        if let Some(&listen) = self.listens.get(&header.key.dst) {
            return self.handle_newcomer(now, packet, header, listen);
        }
        if self.config.watched.contains(&header.key.dst) {
            let heard = self.hear_sleeper(packet, header, WATCHED_WAIT);
            return heard.unwrap_or_else(|| self.drop(DropReason::NotOurs));
        }
        if self.probes.awaits(&header.key) {
            return self.handle_probe_answer(now, packet, header);
        }
        if self.is_past_us(header) {
            return self.hand_back(packet, header);
        }
        let from_server = self.servers.contains(&header.key.src);
        if from_server || self.nats.contains(&header.key.dst.addr) {
            return self.refuse(packet, header, DropReason::NoConnection);
        }
        if self.listen_addresses.contains(&header.key.dst.addr)
            && header.flags.contains(TcpFlags::SYN)
        {
            return self.refuse(packet, header, DropReason::NotOurs);
        }
        self.drop(DropReason::NotOurs)
    }

    /// Counts `reason` and turns the packet into a RST to its sender (RFC 9293, section 3.10.7.1).
    fn refuse(&mut self, packet: &mut Packet, header: &TcpPacket, reason: DropReason) -> Verdict {
        self.counts.drops.add(reason);
        if header.flags.contains(TcpFlags::RST) {
            return Verdict::Drop(reason);
        }
        let (seq, ack, flags) = if header.flags.contains(TcpFlags::ACK) {
            (header.ack, SeqNumber(0), TcpFlags::RST)
        } else {
            let end = header.seq + header.segment_len();
            (SeqNumber(0), end, TcpFlags::RST | TcpFlags::ACK)
        };
        output::reply(packet, header.key.reversed(), seq, ack, flags, 0, &[]);
        Verdict::Transmit
    }

    /// Takes the next packet that the engine made itself.
    pub fn poll_transmit(&mut self, out: &mut Packet) -> bool {
        let more = self.output.take(out);
        if !more {
            self.parting.clear();
            self.forget_parted_pairs();
        }
        more
    }

    /// Takes the next event.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    fn emit_event(&mut self, event: Event) {
        if self.events.len() < EVENTS_MAX {
            self.events.push_back(event);
        } else {
            self.counts.drops.add(DropReason::EventLost);
        }
    }

    /// Takes no new connections from now on.
    pub fn drain(&mut self) {
        self.draining = true;
        self.revoke_tickets();
        self.publish_offers();
        self.debug_check(None);
    }

    /// Ends every connection by a RST to both ends, in portions by [`Self::handle_timeout`].
    pub fn abort_all(&mut self) {
        self.draining = true;
        self.revoke_tickets();
        self.publish_offers();
        self.aborting = true;
        self.sweep.restart();
        self.debug_check(None);
    }

    /// The id of a server of a pool, by the pool's name; `None` where there is no such server.
    pub fn find_server(&self, pool: &str, server: Endpoint) -> Option<ServerId> {
        let index = self.config.pools.iter().position(|one| one.name == pool)?;
        self.backends.find(PoolId(index as u16), server)
    }

    /// Connections that are being set up or spliced; those at rest do not count.
    pub fn live_connections(&self) -> u64 {
        u64::from(self.table.used()) - self.counts.resting - self.tickets_out()
    }

    /// Packets of clients without a connection that the engine has dealt with: SYNs that it was
    /// asked, and first segments by which a client was taken in or turned away.
    pub fn newcomers(&self) -> u64 {
        let services = self.counts.services.iter();
        let taken: u64 = services.map(|one| one.accepted + one.refused).sum();
        self.counts.syns + taken - self.counts.begun
    }

    /// Packets that proved nothing: segments of strangers without a handshake, what concerns no
    /// service and no connection, and pings.
    pub fn unproven(&self) -> u64 {
        let reasons = [
            DropReason::CookieInvalid,
            DropReason::BadTcpChecksum,
            DropReason::BadSource,
            DropReason::BadIcmp,
            DropReason::NotOurs,
            DropReason::NotTcp,
        ];
        let dropped: u64 = reasons
            .map(|reason| self.counts.drops.of(reason))
            .iter()
            .sum();
        dropped + self.counts.pings
    }

    /// All counters of the switch itself.
    pub fn snapshot(&self) -> Snapshot {
        let services = self.config.services.iter().zip(&self.counts.services);
        let accepted = self.counts.services.iter().map(|one| one.accepted);
        Snapshot {
            counters: SwitchCounters {
                accepted: accepted.sum(),
                setups: self.setups.used() as u64,
                half_read: u64::from(self.setups.half_read()),
                buffered_bytes: self.setups.buffered_bytes(),
                time_wait: self.counts.resting,
                records: u64::from(self.table.used()),
                records_max: u64::from(self.table.capacity()),
                ..self.counts.shown
            },
            drops: self.counts.drops.clone(),
            ended: End::ALL.into_iter().zip(self.counts.ended).collect(),
            draining: self.draining,
            services: services
                .enumerate()
                .map(|(index, (service, counts))| ServiceSnapshot {
                    name: service.name.clone(),
                    accepted: counts.accepted,
                    refused: counts.refused,
                    denied: service
                        .access
                        .iter()
                        .zip(&counts.denied)
                        .map(|(list, &denied)| (list.name().to_owned(), denied))
                        .collect(),
                    carried: counts.carried,
                    routes: self.route_snapshots(index, service, &counts.decisions),
                })
                .collect(),
            pools: self.backends.snapshot(&self.config),
        }
    }

    /// Sends both ends of a joined connection a RST at the numbers they expect next: no others
    /// would be believed (RFC 5961, section 3.2).
    fn reset_both(&mut self, line: Line) {
        self.part(line, Side::Client);
        self.part(line, Side::Server);
        let record = *self.table.record(line);
        let held_next = self.held_next(line);
        let endpoints = self.table.endpoints();
        let to_client = record.client_key(endpoints).reversed();
        let to_server = record.server_key(endpoints).reversed();
        let server_nxt = SeqNumber(record.server_nxt);
        let client_nxt = SeqNumber(record.client_nxt);
        let flags = TcpFlags::RST | TcpFlags::ACK;
        let seen_by_client = server_nxt + record.seq_delta;
        self.output
            .send(to_client, seen_by_client, client_nxt, flags, 0, &[], &[]);
        let seen_by_server = held_next.unwrap_or(client_nxt);
        self.output
            .send(to_server, seen_by_server, server_nxt, flags, 0, &[], &[]);
    }

    /// The event for a spliced connection that is over. Counts it, and gives its server back.
    fn note_end(&mut self, now: Instant, line: Line, end: End) {
        let record = *self.table.record(line);
        let service = self.listen_services[usize::from(record.listen)];
        let routes = &self.service_of(record.listen).routes;
        let route = routes.get(usize::from(record.route));
        let treatment = route.map(|route| route.treatment);
        let server = self.places.server(record.server);
        let pool = server.map(|id| self.backends.server(id).0);
        self.counts.ended[end as usize] += 1;
        self.counts.live -= 1;
        // Of what a fast path outside saw closing one hears later.
        let now_ms = Self::now_ms(now);
        let since_ms = match record.state {
            State::Reset | State::TimeWait => timer::quiet_ms(now_ms, record.last_active),
            _ => 0,
        };
        // And of one that it has begun, perhaps only after it closed.
        let known_ms = self.table.lived_ms(line, now.as_millis());
        let lived_ms = known_ms.saturating_sub(u64::from(since_ms));
        let duration = Duration::from_millis(lived_ms);
        let (bytes_in, bytes_out) = (record.bytes_in(), record.bytes_out());
        if let Some(server) = server {
            self.backends.closed(server);
            if let Some(carried) = self.backends.carried(server) {
                carried.add(bytes_in, bytes_out, lived_ms);
            }
        }
        let carried = &mut self.counts.services[usize::from(service)].carried;
        carried.add(bytes_in, bytes_out, lived_ms);
        let endpoints = self.table.endpoints();
        let event = Event::Closed {
            id: ConnectionId::of(line, &record),
            client: record.client(),
            listen: endpoints.listen(record.listen),
            service,
            route: record.route,
            pool,
            server: endpoints.server(record.server),
            source: record.source(endpoints),
            treatment,
            bytes_in,
            bytes_out,
            opened: now - Duration::from_millis(u64::from(since_ms)) - duration,
            duration,
            end,
            details: self.details.take(line),
        };
        self.emit_event(event);
    }

    fn record(&mut self, line: Line) -> &mut Record {
        self.table.record_mut(line)
    }

    /// Frees a line and everything that is kept for it. Counters are the caller's.
    fn free(&mut self, line: Line) {
        if let Some(index) = self.setup_of(line) {
            self.forget_setup(line, index);
        }
        if self.table.record(line).flags & flag::SYN_SEEN != 0 {
            self.forget_renewal(line);
        }
        if pairs::is_pair(self.table.record(line)) {
            self.details.take(line);
            self.remove_pair(line);
            return;
        }
        self.remove_offloaded(line);
        self.details.take(line);
        self.table.remove(line);
    }
}
