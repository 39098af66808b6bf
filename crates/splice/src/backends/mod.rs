//! Servers: what is known of each, and which one of a pool gets a connection.
//!
//! [`Backends`] keeps the state of every server of every pool: open connections, failures, whether
//! it answers. How a pool chooses is a [`Policy`], one file each:
//!
//! | file | choice |
//! |---|---|
//! | `round_robin.rs` | in turn, by weight |
//! | `weighted.rs` | at random, by weight |
//! | `least_connections.rs` | fewest open connections for its weight |
//! | `random_two.rs` | the less loaded of two drawn at random |
//! | `maglev.rs` | consistent hashing of an affinity key |
//!
//! To add one: write its file with a `REGISTERED` line, add a variant to
//! [`Balance`](crate::config::Balance) and name both in [`policy::REGISTRY`] and
//! [`policy::registered`]. The conformance tests then run over it.
//!
//! Consulted when a connection is set up, never per packet. Absent by design: clock, sockets.

mod affinity;
mod availability;
mod health;
mod honoured;
mod least_connections;
mod maglev;
pub mod policy;
mod random_two;
mod round_robin;
mod weighted;

#[cfg(test)]
mod conformance;
#[cfg(test)]
mod tests;

use core::hash::Hasher;
use core::time::Duration;

use fairlead_base::{Address, Instant, Rng};
use siphasher::sip::SipHasher13;
use thiserror::Error;

pub use self::affinity::{Affinity, affinity};
use self::availability::Availability;
use self::honoured::Honoured;
pub use self::honoured::{Change, Lacking};
use self::policy::{Among, Draw, Members, Policy};
use crate::carried::Carried;
use crate::config::{AllDown, Config, HashOn, Outlier, PoolId, Server};
use crate::event::{Admin, Offers, ServerState, Unavailable};
use crate::routes::Subject;
use crate::snapshot::{PoolSnapshot, ServerSnapshot};

/// Servers in all pools together, at most: a [`ServerId`] is 16 bits.
pub const SERVERS_MAX: usize = 65_535;

/// Pools, at most: a [`PoolId`] is 16 bits.
pub const POOLS_MAX: usize = 65_535;

/// One server of one pool: its index over the servers of all pools, in the order of the
/// configuration. An endpoint that stands in two pools has two ids, each with its own state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ServerId(pub u16);

/// A configuration that [`Backends`] cannot hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum BackendsError {
    /// More than [`SERVERS_MAX`] servers.
    #[error("{count} servers in all pools together; at most {SERVERS_MAX} are possible")]
    TooManyServers {
        /// How many there are.
        count: usize,
    },
    /// More than [`POOLS_MAX`] pools.
    #[error("{count} pools; at most {POOLS_MAX} are possible")]
    TooManyPools {
        /// How many there are.
        count: usize,
    },
}

/// Whom a server would see, which not every server can.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caller {
    /// It calls by IPv4: a splice does not change the family of addresses.
    pub v4: bool,
    /// The address that it calls from, where that is not one of ours: a host takes no SYN that
    /// comes from itself.
    pub addr: Option<Address>,
}

impl Caller {
    /// Any caller of a family, from an address of ours.
    pub fn by(v4: bool) -> Self {
        Self { v4, addr: None }
    }
}

/// The servers of all pools.
#[derive(Debug)]
pub struct Backends {
    members: Vec<Member>,
    pools: Vec<Pool>,
    key: (u64, u64),
}

/// What is known of one server of a pool.
#[derive(Clone, Debug)]
struct Member {
    server: Server,
    pool: PoolId,
    active: u32,
    total: u64,
    failures: u64,
    carried: Carried,
    availability: Availability,
    ejections: u64,
    honoured: Honoured,
    /// The largest segment that the way to it takes.
    way_mss: u16,
}

#[derive(Debug)]
struct Pool {
    /// Index of its first server in `Backends::members`.
    first: usize,
    /// How many servers it has.
    len: usize,
    hash_on: Option<HashOn>,
    policy: Box<dyn Policy>,
    /// Its own, so that one pool's traffic does not change another's draws.
    rng: Rng,
    all_down: AllDown,
    slow_start: Duration,
    outlier: Option<Outlier>,
    /// Some server's [`Availability`] waits for a moment.
    is_waiting: bool,
}

impl Backends {
    /// The servers of `config`, none heard of yet.
    ///
    /// Everything that is left to chance follows from `seed`: two instances with the same seed and
    /// servers send the same affinity key to the same server.
    ///
    /// # Errors
    /// More pools or servers than ids.
    pub fn new(config: &Config, seed: u64) -> Result<Self, BackendsError> {
        let count = config.pools.iter().map(|pool| pool.servers.len()).sum();
        if count > SERVERS_MAX {
            return Err(BackendsError::TooManyServers { count });
        }
        if config.pools.len() > POOLS_MAX {
            return Err(BackendsError::TooManyPools {
                count: config.pools.len(),
            });
        }
        let mut rng = Rng::new(seed);
        let key = (rng.next_u64(), rng.next_u64());
        let mut members = Vec::with_capacity(count);
        let mut pools = Vec::with_capacity(config.pools.len());
        for (id, pool) in (0..=u16::MAX).zip(&config.pools) {
            pools.push(Pool {
                first: members.len(),
                len: pool.servers.len(),
                hash_on: pool.balance.hash_on().cloned(),
                policy: (policy::registered(&pool.balance).build)(&pool.servers),
                rng: Rng::new(rng.next_u64()),
                all_down: pool.all_down,
                slow_start: pool.slow_start,
                outlier: pool.outlier,
                is_waiting: false,
            });
            let is_up = |server: &Server| {
                let check = pool.check.as_ref().filter(|_| server.check)?;
                Some(check.initially_up)
            };
            members.extend(
                pool.servers
                    .iter()
                    .map(|&server| Member::new(server, PoolId(id), is_up(&server))),
            );
        }
        Ok(Self {
            members,
            pools,
            key,
        })
    }

    /// Keys [`Self::affinity_hash`] by another seed: one that outlives a run, so that the next run
    /// sends the same affinity key to the same server.
    pub fn key_affinity(&mut self, seed: u64) {
        let mut rng = Rng::new(seed);
        self.key = (rng.next_u64(), rng.next_u64());
    }

    /// Chooses a server of `pool` for a new connection of `caller`, never one of `tried` nor one of
    /// weight 0. Servers that this caller cannot have lose no turn by it, and no trial.
    ///
    /// Servers that are not available are passed over, except for one trial connection each time
    /// the retry time of one without health checks comes. Backups come next; then, unless the pool
    /// has it otherwise, servers that are down: a mistake about their state must not turn clients
    /// away. `None` when nothing is left, or when there is no such pool.
    ///
    /// `hash` is the [`Backends::affinity_hash`] of the connection's affinity key; only hashing
    /// balances look at it.
    pub fn pick(
        &mut self,
        pool: PoolId,
        hash: u64,
        caller: Caller,
        tried: &[ServerId],
        now: Instant,
    ) -> Option<ServerId> {
        let of = self.pools.get(usize::from(pool.0))?;
        if of.is_waiting {
            self.handle_time_of(pool, now);
        }
        let pool = self.pools.get_mut(usize::from(pool.0))?;
        let range = pool.first..pool.first + pool.len;
        let members = Members::new(&self.members[range], pool.first, caller, tried, now);
        let stages: &[Among] = match pool.all_down {
            AllDown::Try => &[Among::Available, Among::Backups, Among::Down],
            AllDown::Refuse => &[Among::Available, Among::Backups],
        };
        let choice = stages.iter().find_map(|&among| {
            let members = members.among(among);
            let rng = &mut pool.rng;
            let choice = pool.policy.choose(&members, &mut Draw { hash, rng })?;
            debug_assert!(
                members.eligible(choice),
                "a policy chose what it may not choose"
            );
            Some(choice)
        })?;
        let index = pool.first + choice;
        self.members[index].availability.picked(now);
        u16::try_from(index).ok().map(ServerId)
    }

    /// The choice of a server that was not known to be down came to nothing: nobody was sent there.
    /// It was chosen for any caller of its family.
    pub fn give_back(&mut self, id: ServerId) {
        let index = usize::from(id.0);
        let Some(member) = self.members.get(index) else {
            return;
        };
        let pool = &mut self.pools[usize::from(member.pool.0)];
        let range = pool.first..pool.first + pool.len;
        // No trial's time has come then.
        let never = Instant::ZERO;
        let caller = Caller::by(member.server.endpoint.addr.is_v4());
        let members = Members::new(&self.members[range], pool.first, caller, &[], never);
        pool.policy.give_back(&members, index - pool.first);
    }

    /// Counts a connection to `id`. To be called as soon as the server is picked, before it has
    /// answered, so that a burst of connections sees its own load.
    pub fn opened(&mut self, id: ServerId) {
        if let Some(member) = self.member_mut(id) {
            member.active = member.active.saturating_add(1);
            member.total += 1;
        }
    }

    /// Counts a connection to `id` that an earlier run opened.
    pub fn adopted(&mut self, id: ServerId) {
        if let Some(member) = self.member_mut(id) {
            member.active = member.active.saturating_add(1);
        }
    }

    /// The counterpart of every [`Backends::opened`] and [`Backends::adopted`]: the
    /// connection is over, or was never made.
    pub fn closed(&mut self, id: ServerId) {
        if let Some(member) = self.member_mut(id) {
            debug_assert!(member.active > 0, "closed without opened");
            member.active = member.active.saturating_sub(1);
        }
    }

    /// What spliced connections to `id` carried that are over.
    pub fn carried(&mut self, id: ServerId) -> Option<&mut Carried> {
        self.member_mut(id).map(|member| &mut member.carried)
    }

    /// The server refused a probe, or left it unanswered. It is down until it
    /// answers; a trial connection is let through after 2 s, then 4 s, … at most every 30 s.
    /// True when its state changed.
    pub fn failed(&mut self, id: ServerId, now: Instant) -> bool {
        let Some(member) = self.member_mut(id) else {
            return false;
        };
        member.failures += 1;
        member.availability.failed(now)
    }

    /// As [`Backends::failed`], of a connection of `client`: a server that is up is down only when
    /// the next failure is another client's, unless it answers before.
    pub fn failed_for(&mut self, id: ServerId, client: Address, now: Instant) -> bool {
        let Some(member) = self.member_mut(id) else {
            return false;
        };
        member.failures += 1;
        let is_news = member.availability.failed_for(client, now);
        self.eject_outlier(id, now) || is_news
    }

    /// Ejects a server that has failed often enough, unless that would be too many of its pool.
    fn eject_outlier(&mut self, id: ServerId, now: Instant) -> bool {
        let index = usize::from(id.0);
        let pool = &mut self.pools[usize::from(self.members[index].pool.0)];
        let members = &mut self.members[pool.first..pool.first + pool.len];
        let Some(outlier) = pool.outlier.as_ref() else {
            return false;
        };
        let ejected = members
            .iter()
            .filter(|one| one.availability.is_ejected())
            .count();
        let most = (pool.len * usize::from(outlier.ejection_percent_max) / 100).max(1);
        let member = &mut members[index - pool.first];
        let is_ejected = ejected < most && member.availability.is_outlier(outlier);
        if is_ejected {
            member.availability.eject(now, outlier);
            member.ejections += 1;
            pool.is_waiting = true;
        }
        is_ejected
    }

    /// The server answered a probe, honouring these options: it is up. Options that some answer
    /// lacked count again only when all answers have had them for a long time, at least an hour.
    pub fn answered(&mut self, id: ServerId, offers: Offers, now: Instant) -> Change {
        self.heard(id, now, |honoured| honoured.probed(offers, now))
    }

    /// The server answered a client's connection: it is up.
    pub fn connected(
        &mut self,
        id: ServerId,
        seen: Offers,
        lacking: Lacking,
        now: Instant,
    ) -> Change {
        if let Some(member) = self.member_mut(id) {
            member.availability.taken();
        }
        self.heard(id, now, |honoured| honoured.connected(seen, lacking))
    }

    fn heard(
        &mut self,
        id: ServerId,
        now: Instant,
        note: impl FnOnce(&mut Honoured) -> Change,
    ) -> Change {
        let Some(member) = self.member_mut(id) else {
            return Change::None;
        };
        let change = note(&mut member.honoured);
        let is_up_again = self.reached(id, now);
        match change {
            Change::None if is_up_again => Change::More,
            change => change,
        }
    }

    /// The server answered, and nothing else is known: it is up. True when that is news.
    pub fn reached(&mut self, id: ServerId, now: Instant) -> bool {
        self.change(id, |one, slow_start| one.answered(now, slow_start))
    }

    /// Carries the operator's order out. True when it is another than before.
    pub fn set_admin(&mut self, id: ServerId, admin: Admin, now: Instant) -> bool {
        self.change(id, |one, slow_start| one.set_admin(now, slow_start, admin))
    }

    /// Heeds what health checks say. True when it is something else than before.
    pub fn set_check(&mut self, id: ServerId, is_up: bool, now: Instant) -> bool {
        self.change(id, |one, slow_start| one.set_check(now, slow_start, is_up))
    }

    /// Gives a server another weight. True when it is another than before.
    pub fn set_weight(&mut self, id: ServerId, weight: u16) -> bool {
        let Some(member) = self.member_mut(id) else {
            return false;
        };
        let is_news = member.server.weight != weight;
        member.server.weight = weight;
        let pool = member.pool;
        if is_news {
            self.reweigh(pool);
        }
        is_news
    }

    /// Changes a server's availability, and what follows from that for its pool.
    fn change(
        &mut self,
        id: ServerId,
        change: impl FnOnce(&mut Availability, Duration) -> bool,
    ) -> bool {
        let Some(member) = self.members.get_mut(usize::from(id.0)) else {
            return false;
        };
        let pool = &mut self.pools[usize::from(member.pool.0)];
        let steps = member.availability.steps();
        let is_news = change(&mut member.availability, pool.slow_start);
        pool.is_waiting |= member.availability.is_waiting();
        if member.availability.steps() != steps {
            let pool = member.pool;
            self.reweigh(pool);
        }
        debug_assert!(self.is_sound());
        is_news
    }

    /// True unless a pool waits without a server that does.
    fn is_sound(&self) -> bool {
        self.pools.iter().all(|pool| {
            let members = &self.members[pool.first..pool.first + pool.len];
            let waits = members.iter().any(|one| one.availability.is_waiting());
            !waits || pool.is_waiting
        })
    }

    /// Tells a pool's policy the weights as they are now.
    fn reweigh(&mut self, pool: PoolId) {
        let pool = &mut self.pools[usize::from(pool.0)];
        let members = &self.members[pool.first..pool.first + pool.len];
        let servers: Vec<Server> = members.iter().map(|one| one.server).collect();
        let weights: Vec<u32> = members.iter().map(Member::weight).collect();
        pool.policy.reweigh(&servers, &weights);
    }

    /// Ends ejections and goes on with slow starts whose moment has come. True when something
    /// changed.
    pub fn handle_time(&mut self, now: Instant) -> bool {
        let mut changed = false;
        for id in 0..self.pools.len() {
            if self.pools[id].is_waiting {
                changed |= self.handle_time_of(PoolId(id as u16), now);
            }
        }
        changed
    }

    fn handle_time_of(&mut self, id: PoolId, now: Instant) -> bool {
        let pool = &mut self.pools[usize::from(id.0)];
        let mut changed = false;
        pool.is_waiting = false;
        for member in &mut self.members[pool.first..pool.first + pool.len] {
            changed |= member.availability.handle_time(now, pool.slow_start);
            pool.is_waiting |= member.availability.is_waiting();
        }
        if changed {
            self.reweigh(id);
        }
        changed
    }

    /// Why a server gets no connections; `None` where it gets some, or is no server.
    pub fn unavailable(&self, id: ServerId) -> Option<Unavailable> {
        self.member(id).and_then(Member::unavailable)
    }

    /// A server of a pool by its address.
    pub fn find(&self, pool: PoolId, endpoint: fairlead_base::Endpoint) -> Option<ServerId> {
        let is_it = |id: &ServerId| self.members[usize::from(id.0)].server.endpoint == endpoint;
        self.ids(pool).find(is_it)
    }

    /// The way to the server takes segments of this length at most: longer ones that it honours
    /// do not count. True when [`Backends::offers`] is less by it.
    pub fn set_way_mss(&mut self, id: ServerId, mss: u16) -> bool {
        let Some(member) = self.member_mut(id) else {
            return false;
        };
        let before = member.offers();
        member.way_mss = mss;
        before
            .zip(member.offers())
            .is_some_and(|(before, now)| now.mss < before.mss)
    }

    /// The largest segment that the way to a server takes, as far as that was told.
    pub fn way_mss(&self, id: ServerId) -> u16 {
        self.member(id).map_or(u16::MAX, |member| member.way_mss)
    }

    /// What is known of a server. [`ServerState::Unknown`] for an id of no server.
    pub fn state(&self, id: ServerId) -> ServerState {
        self.member(id).map_or(ServerState::Unknown, |member| {
            member.availability.connect().state()
        })
    }

    /// Since when [`Backends::state`] has been what it is; the origin of time while unknown.
    pub fn state_since(&self, id: ServerId) -> Instant {
        self.member(id).map_or(Instant::ZERO, |member| {
            member.availability.connect().since()
        })
    }

    /// The options that all of a server's answers have honoured, as far as the way to it takes the
    /// segments.
    pub fn offers(&self, id: ServerId) -> Option<Offers> {
        self.member(id).and_then(Member::offers)
    }

    /// Open connections to a server, those being set up included.
    pub fn active(&self, id: ServerId) -> u32 {
        self.member(id).map_or(0, |member| member.active)
    }

    /// The pool and the configuration of a server.
    ///
    /// # Panics
    /// When `id` did not come from this `Backends`.
    pub fn server(&self, id: ServerId) -> (PoolId, Server) {
        let member = &self.members[usize::from(id.0)];
        (member.pool, member.server)
    }

    /// All servers, in the order of their ids.
    pub fn servers(&self) -> impl Iterator<Item = (ServerId, PoolId, Server)> + '_ {
        (0..=u16::MAX)
            .zip(&self.members)
            .map(|(id, member)| (ServerId(id), member.pool, member.server))
    }

    /// The ids of a pool's servers, in the order of the configuration; none for an unknown pool.
    pub fn ids(&self, pool: PoolId) -> impl Iterator<Item = ServerId> + use<> {
        let range = self
            .pools
            .get(usize::from(pool.0))
            .map_or(0..0, |pool| pool.first..pool.first + pool.len);
        range.filter_map(|index| u16::try_from(index).ok().map(ServerId))
    }

    /// A hash of an affinity key, SipHash-1-3 keyed by the seed: a stranger cannot choose keys
    /// that all meet on one server.
    pub fn affinity_hash(&self, bytes: &[u8]) -> u64 {
        let mut hasher = SipHasher13::new_with_keys(self.key.0, self.key.1);
        hasher.write(bytes);
        hasher.finish()
    }

    /// What `pool` hashes; `None` when it does not hash (or does not exist).
    pub fn hash_on(&self, pool: PoolId) -> Option<&HashOn> {
        self.pools.get(usize::from(pool.0))?.hash_on.as_ref()
    }

    /// The hash that [`Backends::pick`] wants for a connection of `client`: of what the pool hashes
    /// on (see [`affinity`]), or 0 when it does not hash.
    pub fn hash_for(&self, pool: PoolId, subject: &Subject<'_>, client: Address) -> u64 {
        self.hash_on(pool).map_or(0, |hash_on| {
            self.affinity_hash(affinity(hash_on, subject, client).as_bytes())
        })
    }

    /// The counters of all pools. `config` is the one that this was made of; it has the names.
    pub fn snapshot(&self, config: &Config) -> Vec<PoolSnapshot> {
        let shown = config.front.map_or(usize::MAX, |one| usize::from(one.0));
        let named = config.pools.iter().zip(&self.pools);
        named
            .take(shown)
            .map(|(config, pool)| PoolSnapshot {
                name: config.name.clone(),
                servers: self.members[pool.first..pool.first + pool.len]
                    .iter()
                    .map(Member::snapshot)
                    .collect(),
            })
            .collect()
    }

    fn member(&self, id: ServerId) -> Option<&Member> {
        self.members.get(usize::from(id.0))
    }

    fn member_mut(&mut self, id: ServerId) -> Option<&mut Member> {
        self.members.get_mut(usize::from(id.0))
    }
}

impl Member {
    fn new(server: Server, pool: PoolId, is_up: Option<bool>) -> Self {
        Self {
            server,
            pool,
            active: 0,
            total: 0,
            failures: 0,
            carried: Carried::default(),
            availability: Availability::new(is_up),
            ejections: 0,
            honoured: Honoured::default(),
            way_mss: u16::MAX,
        }
    }

    /// Its weight in eighths.
    fn weight(&self) -> u32 {
        u32::from(self.server.weight) * self.availability.steps()
    }

    /// Why it gets no connections but for a trial.
    fn unavailable(&self) -> Option<Unavailable> {
        let weightless = (self.server.weight == 0).then_some(Unavailable::NoWeight);
        let before_trials = Instant::ZERO;
        self.availability.why_not(before_trials).or(weightless)
    }

    fn snapshot(&self) -> ServerSnapshot {
        ServerSnapshot {
            endpoint: self.server.endpoint,
            weight: self.server.weight,
            active: self.active,
            total: self.total,
            failures: self.failures,
            carried: self.carried,
            state: self.availability.connect().state(),
            offers: self.offers(),
            admin: self.availability.admin(),
            check: self.availability.check(),
            unavailable: self.unavailable(),
            weight_eighths: self.weight(),
            backup: self.server.backup,
            ejections: self.ejections,
        }
    }

    fn offers(&self) -> Option<Offers> {
        let mut offers = self.honoured.least()?;
        offers.mss = offers.mss.min(self.way_mss);
        Some(offers)
    }
}
