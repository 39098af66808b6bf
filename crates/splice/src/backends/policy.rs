//! What a balance policy is, what it may see, and which ones there are.

use core::fmt;

use fairlead_base::{Instant, Rng};

use super::{
    Caller, Member, ServerId, least_connections, maglev, random_two, round_robin, weighted,
};
use crate::config::{Balance, HashOn, Server};

/// How one pool chooses among its servers. An object belongs to one pool and is told nothing but
/// what it is asked: load and health come with the question.
pub trait Policy: fmt::Debug + Send {
    /// Chooses among the servers of which [`Members::eligible`] says yes, by index within the
    /// pool. `None` exactly when there is none; then no state may change, for the question is
    /// asked again with fewer servers excluded.
    fn choose(&mut self, members: &Members<'_>, draw: &mut Draw<'_>) -> Option<usize>;

    /// Nobody was sent to a server that was chosen. A policy that goes in turn gives the turn back.
    fn give_back(&mut self, _members: &Members<'_>, _index: usize) {}

    /// Weights have changed: for a policy that keeps something made of them. `weights` are as
    /// [`Members::weight`] has them, in the order of the servers that it was built for.
    fn reweigh(&mut self, _servers: &[Server], _weights: &[u32]) {}
}

/// What is different about each choice.
#[derive(Debug)]
pub struct Draw<'a> {
    /// The hash of the affinity key.
    pub hash: u64,
    /// The pool's chance.
    pub rng: &'a mut Rng,
}

/// One pool's servers at the moment of a choice.
#[derive(Clone, Copy, Debug)]
pub struct Members<'a> {
    members: &'a [Member],
    first: usize,
    caller: Caller,
    tried: &'a [ServerId],
    now: Instant,
    among: Among,
}

/// Which of the servers that could serve a caller may be chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Among {
    /// Those that are available, without backups.
    Available,
    /// Backups too.
    Backups,
    /// All that the operator has not taken out.
    Down,
}

impl<'a> Members<'a> {
    pub(super) fn new(
        members: &'a [Member],
        first: usize,
        caller: Caller,
        tried: &'a [ServerId],
        now: Instant,
    ) -> Self {
        Self {
            members,
            first,
            caller,
            tried,
            now,
            among: Among::Available,
        }
    }

    /// The same question with other servers allowed.
    pub(super) fn among(self, among: Among) -> Self {
        Self { among, ..self }
    }

    /// Whether a server may be chosen: it has a weight, can have this caller, has not been tried
    /// for this connection, and is available (unless no such server is left).
    pub fn eligible(&self, index: usize) -> bool {
        let Some(member) = self.members.get(index) else {
            return false;
        };
        let addr = member.server.endpoint.addr;
        member.server.weight > 0
            && addr.is_v4() == self.caller.v4
            && self.caller.addr != Some(addr)
            && match self.among {
                Among::Available => !member.server.backup && member.availability.is_open(self.now),
                Among::Backups => member.availability.is_open(self.now),
                Among::Down => !member.availability.is_withheld(),
            }
            && !self
                .tried
                .iter()
                .any(|tried| usize::from(tried.0) == self.first + index)
    }

    /// The indices of all servers that may be chosen, rising.
    pub fn eligible_ones(&self) -> impl Iterator<Item = usize> + '_ {
        (0..self.members.len()).filter(|&index| self.eligible(index))
    }

    /// The share of a server (0 for an unknown index): its weight in eighths, of which one that
    /// starts slowly has fewer.
    pub fn weight(&self, index: usize) -> u32 {
        self.members.get(index).map_or(0, Member::weight)
    }

    /// Its open connections and its weight: a fraction to be compared by [`Load`]'s order.
    pub fn load(&self, index: usize) -> Load {
        let active = self.members.get(index).map_or(0, |member| member.active);
        Load {
            active,
            weight: self.weight(index),
        }
    }

    /// An eligible server other than `except`, at random, by weight. Linear in the pool's size.
    pub fn draw(&self, rng: &mut Rng, except: Option<usize>) -> Option<usize> {
        let ones = || self.eligible_ones().filter(|&index| Some(index) != except);
        let total: u64 = ones().map(|index| u64::from(self.weight(index))).sum();
        if total == 0 {
            return None;
        }
        // 65,535 servers of weight 65,535 would have more: those at the end would go without.
        let mut left = rng.below(u32::try_from(total).unwrap_or(u32::MAX));
        for index in ones() {
            let weight = self.weight(index);
            if left < weight {
                return Some(index);
            }
            left -= weight;
        }
        None
    }
}

/// Open connections for a weight. Ordered by the quotient, exactly.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    active: u32,
    weight: u32,
}

impl Ord for Load {
    fn cmp(&self, other: &Self) -> core::cmp::Ordering {
        let ours = u64::from(self.active) * u64::from(other.weight);
        ours.cmp(&(u64::from(other.active) * u64::from(self.weight)))
    }
}

impl PartialOrd for Load {
    fn partial_cmp(&self, other: &Self) -> Option<core::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Load {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Load {}

/// A policy's line in the registry.
#[derive(Debug)]
pub struct Registered {
    /// Its name in configuration files, logs and metrics.
    pub name: &'static str,
    /// How it chooses, one line of `docs/configuration.md`.
    pub chooses: &'static str,
    /// The configuration that asks for it; only hashing policies look at the argument.
    pub balance: fn(HashOn) -> Balance,
    /// Makes it for a pool of these servers. Time and memory are bounded by the number of servers.
    pub build: fn(&[Server]) -> Box<dyn Policy>,
}

/// All policies.
pub const REGISTRY: [&Registered; 5] = [
    &round_robin::REGISTERED,
    &weighted::REGISTERED,
    &least_connections::REGISTERED,
    &random_two::REGISTERED,
    &maglev::REGISTERED,
];

/// Every way to choose, for simulations and fuzzers: each policy, with each thing to hash where it
/// hashes.
pub fn every_balance(header: &str, cookie: &str) -> Vec<Balance> {
    let mut all = Vec::new();
    for policy in REGISTRY {
        let client = (policy.balance)(HashOn::ClientAddress);
        let hashes = client.hash_on().is_some();
        all.push(client);
        if hashes {
            all.push((policy.balance)(HashOn::Header(header.to_owned())));
            all.push((policy.balance)(HashOn::Cookie(cookie.to_owned())));
        }
    }
    all
}

/// The policy that a configuration asks for.
pub fn registered(balance: &Balance) -> &'static Registered {
    match balance {
        Balance::RoundRobin => &round_robin::REGISTERED,
        Balance::Weighted => &weighted::REGISTERED,
        Balance::LeastConnections => &least_connections::REGISTERED,
        Balance::RandomTwo => &random_two::REGISTERED,
        Balance::Maglev(_) => &maglev::REGISTERED,
    }
}
