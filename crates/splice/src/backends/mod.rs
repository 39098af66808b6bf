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

use fairlead_base::{Address, Instant, Rng};
use siphasher::sip::SipHasher13;
use thiserror::Error;

pub use self::affinity::{Affinity, affinity};
use self::health::Health;
use self::honoured::Honoured;
pub use self::honoured::{Change, Lacking};
use self::policy::{Draw, Members, Policy};
use crate::carried::Carried;
use crate::config::{Config, HashOn, PoolId, Server};
use crate::event::{Offers, ServerState};
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
    health: Health,
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
            });
            members.extend(
                pool.servers
                    .iter()
                    .map(|&server| Member::new(server, PoolId(id))),
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
    /// Servers that are down are passed over, except for one trial connection each time their
    /// retry time comes. When all that is left is down, a server is chosen all the same: a mistake
    /// of the health state must not turn clients away. `None` when nothing is left, or when there
    /// is no such pool.
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
        let pool = self.pools.get_mut(usize::from(pool.0))?;
        let range = pool.first..pool.first + pool.len;
        let mut members = Members::new(&self.members[range], pool.first, caller, tried, now);
        let mut choice = pool.policy.choose(
            &members,
            &mut Draw {
                hash,
                rng: &mut pool.rng,
            },
        );
        if choice.is_none() {
            members = members.with_down_ones();
            choice = pool.policy.choose(
                &members,
                &mut Draw {
                    hash,
                    rng: &mut pool.rng,
                },
            );
        }
        let choice = choice?;
        debug_assert!(
            members.eligible(choice),
            "a policy chose what it may not choose"
        );
        let index = pool.first + choice;
        self.members[index].health.picked(now);
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
        member.health.failed(now)
    }

    /// As [`Backends::failed`], of a connection of `client`: a server that is up is down only when
    /// the next failure is another client's, unless it answers before.
    pub fn failed_for(&mut self, id: ServerId, client: Address, now: Instant) -> bool {
        let Some(member) = self.member_mut(id) else {
            return false;
        };
        member.failures += 1;
        member.health.failed_for(client, now)
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
        let is_up_again = member.health.answered(now);
        match change {
            Change::None if is_up_again => Change::More,
            change => change,
        }
    }

    /// The server answered, and nothing else is known: it is up. True when that is news.
    pub fn reached(&mut self, id: ServerId, now: Instant) -> bool {
        let member = self.member_mut(id);
        member.is_some_and(|member| member.health.answered(now))
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
        self.member(id)
            .map_or(ServerState::Unknown, |member| member.health.state())
    }

    /// Since when [`Backends::state`] has been what it is; the origin of time while unknown.
    pub fn state_since(&self, id: ServerId) -> Instant {
        self.member(id)
            .map_or(Instant::ZERO, |member| member.health.since())
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
        let named = config.pools.iter().zip(&self.pools);
        named
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
    fn new(server: Server, pool: PoolId) -> Self {
        Self {
            server,
            pool,
            active: 0,
            total: 0,
            failures: 0,
            carried: Carried::default(),
            health: Health::default(),
            honoured: Honoured::default(),
            way_mss: u16::MAX,
        }
    }

    fn snapshot(&self) -> ServerSnapshot {
        ServerSnapshot {
            endpoint: self.server.endpoint,
            weight: self.server.weight,
            active: self.active,
            total: self.total,
            failures: self.failures,
            carried: self.carried,
            state: self.health.state(),
            offers: self.offers(),
        }
    }

    fn offers(&self) -> Option<Offers> {
        let mut offers = self.honoured.least()?;
        offers.mss = offers.mss.min(self.way_mss);
        Some(offers)
    }
}
