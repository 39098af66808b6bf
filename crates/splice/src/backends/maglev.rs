//! Maglev consistent hashing (Eisenbud et al., "Maglev: A Fast and Reliable Software Network Load
//! Balancer", NSDI 2016, section 3.4).
//!
//! Every server has its own permutation of the table's entries, made from its endpoint alone. In
//! turns, each claims the next entry of its permutation that is still free, until the table is
//! full. So servers get entries by weight, almost exactly, and when one is removed most of the
//! entries of the others stay where they are.

use core::cmp::Ordering;
use core::hash::Hasher;
use std::collections::BinaryHeap;

use siphasher::sip::SipHasher13;

use super::policy::{Draw, Members, Policy, Registered};
use crate::config::{Balance, Server};

pub(super) static REGISTERED: Registered = Registered {
    name: "maglev",
    chooses: "by consistent hashing: the same key gets the same server, and few keys move when \
              servers change",
    balance: Balance::Maglev,
    build: |servers| Box::new(Maglev::new(servers)),
};

/// Table sizes, primes: the first that has [`ENTRIES_PER_SERVER`] entries for every server. The
/// first two are those of the paper. All pools but the hugest have the same size, for with another
/// size nearly every key would change its server.
const SIZES: [usize; 3] = [65_537, 655_373, 6_553_511];

/// Entries for every server, at least: no server's share is wrong by more than 1 %.
const ENTRIES_PER_SERVER: usize = 100;

/// Entries looked at when the one a key falls on belongs to a server that cannot be chosen.
const PROBES_MAX: usize = 128;

/// The lookup table of one pool: 2 bytes an entry, so 128 KiB for up to 655 servers.
#[derive(Debug)]
struct Maglev {
    /// Index within the pool of the server that an entry belongs to. Empty when no server has a
    /// weight.
    table: Vec<u16>,
    /// What tells the servers apart, whatever their order.
    identities: Vec<u64>,
}

impl Maglev {
    fn new(servers: &[Server]) -> Self {
        Self {
            table: populate(servers),
            identities: servers.iter().map(|server| identity(server, 2)).collect(),
        }
    }

    /// The server for a key when [`PROBES_MAX`] entries were of no use: by highest random weight
    /// (Thaler and Ravishankar, 1998), which like the table moves only the keys it has to.
    fn by_rank(&self, members: &Members<'_>, hash: u64) -> Option<usize> {
        let rank = |index: usize| {
            let identity = self.identities.get(index).copied().unwrap_or_default();
            let mut hasher = SipHasher13::new_with_keys(hash, identity);
            hasher.write_u64(identity);
            // In (0, 1], so that the logarithm is finite; the larger the weight, the nearer to 0.
            let chance = ((hasher.finish() >> 11) + 1) as f64 / (1u64 << 53) as f64;
            chance.ln() / f64::from(members.weight(index))
        };
        members
            .eligible_ones()
            .map(|index| (index, rank(index)))
            .max_by(|(_, one), (_, other)| one.total_cmp(other))
            .map(|(index, _)| index)
    }
}

impl Policy for Maglev {
    fn reweigh(&mut self, servers: &[Server], weights: &[u32]) {
        self.table = populate_by(servers, |index| u64::from(weights[index]));
    }

    fn choose(&mut self, members: &Members<'_>, draw: &mut Draw<'_>) -> Option<usize> {
        let size = self.table.len() as u64;
        if size == 0 {
            return None;
        }
        // From there in steps that are the key's own, so that the keys of a server that is down
        // are shared by all others; keys of the others are not touched. Neighbouring entries
        // would not do: the permutations are arithmetic, so who stands next to whom is no chance.
        let start = (draw.hash % size) as usize;
        let step = (draw.hash / size % (size - 1).max(1)) as usize + 1;
        (0..PROBES_MAX)
            .map(|probe| usize::from(self.table[(start + probe * step) % self.table.len()]))
            .find(|&index| members.eligible(index))
            .or_else(|| self.by_rank(members, draw.hash))
    }
}

/// A hash of a server's endpoint. Not keyed by the seed: the table is no secret, and the same on
/// every instance; which entry a client falls on is the secret.
fn identity(server: &Server, purpose: u64) -> u64 {
    let mut hasher = SipHasher13::new_with_keys(0, purpose);
    hasher.write(&server.endpoint.addr.0);
    hasher.write(&server.endpoint.port.to_be_bytes());
    hasher.finish()
}

/// A server waiting for its next turn. Its n-th turn comes at the time n / weight; equals are
/// ordered by what they are, not where they stand.
#[derive(PartialEq, Eq)]
struct Turn {
    taken: u64,
    weight: u64,
    identity: u64,
    index: u16,
}

impl Ord for Turn {
    /// The earlier turn is the greater, for the heap gives out the greatest.
    fn cmp(&self, other: &Self) -> Ordering {
        let ours = self.taken * other.weight;
        let theirs = other.taken * self.weight;
        theirs
            .cmp(&ours)
            .then_with(|| (other.identity, other.index).cmp(&(self.identity, self.index)))
    }
}

impl PartialOrd for Turn {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// A walk through all entries in the order that one server prefers.
struct Preference {
    next: usize,
    skip: usize,
}

/// The table of servers with their configured weights.
fn populate(servers: &[Server]) -> Vec<u16> {
    populate_by(servers, |index| u64::from(servers[index].weight))
}

/// Fills the table: the paper's `Populate`, with turns by weight. Expected time is the size times
/// the logarithms of size and servers.
fn populate_by(servers: &[Server], weight: impl Fn(usize) -> u64) -> Vec<u16> {
    const FREE: u16 = u16::MAX;
    let has_weight = |index: u16| weight(usize::from(index)) > 0;
    let weighty = (0..servers.len())
        .filter(|&index| weight(index) > 0)
        .count();
    if weighty < 2 {
        // Every key has the same server; a table of one entry says so.
        let only = (0..FREE).zip(servers).find(|(index, _)| has_weight(*index));
        return only.map(|(index, _)| index).into_iter().collect();
    }
    let wanted = weighty * ENTRIES_PER_SERVER;
    let size = SIZES
        .into_iter()
        .find(|&size| size > wanted)
        .unwrap_or(SIZES[SIZES.len() - 1]);
    let mut preferences: Vec<_> = servers
        .iter()
        .map(|server| Preference {
            next: (identity(server, 0) % size as u64) as usize,
            skip: (identity(server, 1) % (size as u64 - 1)) as usize + 1,
        })
        .collect();
    let mut turns: BinaryHeap<_> = (0u16..FREE)
        .zip(servers)
        .filter(|(index, _)| has_weight(*index))
        .map(|(index, server)| Turn {
            taken: 0,
            weight: weight(usize::from(index)),
            identity: identity(server, 2),
            index,
        })
        .collect();
    let mut table = vec![FREE; size];
    for _ in 0..size {
        let Some(mut turn) = turns.peek_mut() else {
            break;
        };
        let preference = &mut preferences[usize::from(turn.index)];
        // Ends: a free entry is left, and as the size is prime the walk comes to every entry.
        while table[preference.next] != FREE {
            preference.next = (preference.next + preference.skip) % size;
        }
        table[preference.next] = turn.index;
        turn.taken += 1;
    }
    table
}

#[cfg(test)]
mod tests {
    use super::super::tests::{POOL, V4, at, config};
    use super::super::{Backends, ServerId};
    use super::*;
    use crate::config::HashOn;

    fn servers(weights: &[u16]) -> Vec<Server> {
        config(&[(Balance::Maglev(HashOn::ClientAddress), weights)])
            .pools
            .remove(0)
            .servers
    }

    fn entries(table: &[u16], servers: usize) -> Vec<usize> {
        let mut counts = vec![0; servers];
        table
            .iter()
            .for_each(|&index| counts[usize::from(index)] += 1);
        counts
    }

    fn backends(weights: &[u16]) -> Backends {
        Backends::new(
            &config(&[(Balance::Maglev(HashOn::ClientAddress), weights)]),
            6,
        )
        .unwrap()
    }

    /// Where 20,000 keys go.
    fn mapping(backends: &mut Backends, tried: &[ServerId]) -> Vec<ServerId> {
        (0..20_000u64)
            .map(|client| {
                let hash = backends.affinity_hash(&client.to_be_bytes());
                backends.pick(POOL, hash, V4, tried, at(0)).unwrap()
            })
            .collect()
    }

    #[test]
    fn sizes_are_prime() {
        for size in SIZES {
            let divisor = (2..).take_while(|n| n * n <= size).find(|n| size % n == 0);
            assert_eq!(divisor, None, "{size} is not prime");
        }
        assert!(SIZES[2] > ENTRIES_PER_SERVER * super::super::SERVERS_MAX);
    }

    #[test]
    fn equal_servers_have_the_same_number_of_entries_but_one() {
        for count in [2, 3, 10, 100, 655, 656] {
            let table = populate(&servers(&vec![9; count]));
            assert_eq!(table.len(), if count > 655 { 655_373 } else { 65_537 });
            let entries = entries(&table, count);
            let (least, most) = (entries.iter().min().unwrap(), entries.iter().max().unwrap());
            assert!(
                most - least <= 1,
                "{least} to {most} entries for {count} servers"
            );
        }
    }

    #[test]
    fn entries_follow_the_weights_and_the_lightest_has_at_least_one() {
        let weights = [1u16, 2, 3, 0, 94];
        let counts = entries(&populate(&servers(&weights)), weights.len());
        for (count, weight) in counts.iter().zip(weights) {
            let wanted = 65_537 * usize::from(weight) / 100;
            assert!(count.abs_diff(wanted) <= 2, "{counts:?}");
        }
        let counts = entries(&populate(&servers(&[1, u16::MAX, u16::MAX])), 3);
        assert_eq!(counts[0], 1);
    }

    #[test]
    fn one_server_or_none_needs_no_table() {
        assert_eq!(populate(&servers(&[0, 4, 0])), [1]);
        assert!(populate(&servers(&[0, 0])).is_empty());
        assert!(populate(&[]).is_empty());
    }

    #[test]
    fn the_order_of_the_configuration_does_not_matter() {
        let forward = servers(&[1, 5, 2, 8]);
        let backward: Vec<_> = forward.iter().rev().copied().collect();
        for (one, other) in populate(&forward).into_iter().zip(populate(&backward)) {
            assert_eq!(one, 3 - other);
        }
    }

    #[test]
    fn taking_a_server_out_of_the_configuration_moves_few_keys_of_the_others() {
        for count in [3usize, 10, 50] {
            let mut weights = vec![1; count];
            let full = populate(&servers(&weights));
            weights[1] = 0;
            let without = populate(&servers(&weights));
            let of_others = full.iter().filter(|&&index| index != 1).count();
            let moved = full
                .iter()
                .zip(&without)
                .filter(|&(&before, &after)| before != 1 && before != after)
                .count();
            assert!(without.iter().all(|&index| index != 1));
            let share = moved as f64 / of_others as f64;
            assert!(
                share < 0.04,
                "{share} of the others' entries moved, {count} servers"
            );
        }
    }

    #[test]
    fn when_a_server_cannot_be_chosen_no_key_of_the_others_moves_and_its_own_are_shared() {
        let mut backends = backends(&[1; 10]);
        let before = mapping(&mut backends, &[]);
        let gone = ServerId(4);
        let tried = mapping(&mut backends, &[gone]);
        backends.failed(gone, at(0));
        let down = mapping(&mut backends, &[]);
        assert_eq!(tried, down, "tried or down is all the same");
        let mut heirs = [0usize; 10];
        for (before, after) in before.iter().zip(&down) {
            if *before == gone {
                heirs[usize::from(after.0)] += 1;
            } else {
                assert_eq!(before, after);
            }
        }
        let orphans: usize = heirs.iter().sum();
        assert!(
            (1_800..2_200).contains(&orphans),
            "{orphans} keys of 20,000 on one of ten"
        );
        for (index, count) in heirs.iter().enumerate().filter(|&(index, _)| index != 4) {
            let even = orphans / 9;
            assert!(
                count.abs_diff(even) < even / 3,
                "{count} to server {index}: {heirs:?}"
            );
        }
    }

    #[test]
    fn with_nearly_all_gone_the_rest_is_shared_by_weight_and_stays_put() {
        let mut weights = vec![100; 400];
        (weights[7], weights[8], weights[9]) = (1, 2, 1);
        let left = |left: &[u16]| {
            let mut backends = backends(&weights);
            for id in (0..400).filter(|id| !left.contains(id)) {
                backends.failed(ServerId(id), at(0));
            }
            mapping(&mut backends, &[])
        };
        let three = left(&[7, 8, 9]);
        let share = three.iter().filter(|id| id.0 == 8).count() as f64 / three.len() as f64;
        assert!((share - 0.5).abs() < 0.02, "{share} where half is due");
        for (three, two) in three.iter().zip(left(&[7, 9])) {
            assert!(*three == two || three.0 == 8);
        }
    }
}
