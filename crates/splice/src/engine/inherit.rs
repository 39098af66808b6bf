//! What an earlier run left: connections that go on, and the indices by which their records name
//! listening endpoints, servers and sources.
//!
//! An index keeps its meaning as long as a record names it, however the configuration has changed:
//! what is configured still is found under its old index, what is new takes an index that no
//! record names, and what is no longer configured stays under its own until the next start.

use std::collections::{BTreeMap, BTreeSet};

use fairlead_base::{Endpoint, FlowKey, Instant};
use fairlead_tcp::record::TRANSPARENT;
use fairlead_tcp::{Endpoints, Kept, KeptPair, Line, ListenOffer, Misfit, PAIR_ROUTE, Record};

use super::pairs::is_pair;
use super::{ConfigError, Listens, Switch};
use crate::backends::ServerId;
use crate::config::{Config, Protocol, Service};
use crate::event::Offers;

/// What an earlier run left.
#[derive(Clone, Debug, Default)]
pub struct Estate {
    /// What its records name by index.
    pub endpoints: Endpoints,
    /// The words behind its cookies, of which some may be on their way.
    pub cookie: Option<(u64, u64)>,
    /// What it offered last, by listening endpoint.
    pub offers: Vec<(Endpoint, ListenOffer)>,
    /// Its joined connections, in the order of their lines.
    pub records: Vec<(Line, Kept)>,
    /// What pairs among them have besides.
    pub pairs: BTreeMap<Line, KeptPair>,
}

/// Places of addresses that pairs alone name.
#[derive(Debug, Default)]
struct PairPlaces {
    listens: BTreeSet<u16>,
    servers: BTreeSet<u16>,
    nats: BTreeSet<u16>,
}

impl Estate {
    /// What its connections need of the host's network: the listening endpoints that they came to,
    /// the servers that see clients' own addresses, and the source addresses that others see.
    pub fn in_use(&self) -> Endpoints {
        let (mut listens, mut nats) = (BTreeSet::new(), BTreeSet::new());
        let mut transparent = BTreeSet::new();
        // Those of pairs are the host's own.
        let records = self.records.iter();
        for (_, kept) in records.filter(|(_, kept)| !is_pair(&kept.record)) {
            listens.insert(kept.record.listen);
            if kept.record.nat_addr == TRANSPARENT {
                transparent.insert(kept.record.server);
            } else {
                nats.insert(kept.record.nat_addr);
            }
        }
        let all = &self.endpoints;
        Endpoints {
            listens: listens.into_iter().map(|one| all.listen(one)).collect(),
            servers: transparent.into_iter().map(|one| all.server(one)).collect(),
            nats: nats.into_iter().map(|one| all.nat(one)).collect(),
        }
    }

    fn pair_places(&self) -> PairPlaces {
        let mut places = PairPlaces::default();
        let records = self.records.iter().map(|(_, kept)| &kept.record);
        for record in records.filter(|record| is_pair(record)) {
            places.listens.insert(record.listen);
            places.servers.insert(record.server);
            places.nats.insert(record.nat_addr);
        }
        places
    }

    /// Its addresses without those of pairs, which stand at places of their own.
    pub(super) fn configured(&self, endpoints: &Endpoints) -> Endpoints {
        let places = self.pair_places();
        Endpoints {
            listens: without(&endpoints.listens, &places.listens),
            servers: without(&endpoints.servers, &places.servers),
            nats: without(&endpoints.nats, &places.nats),
        }
    }
}

/// An array with nothing at some places.
fn without<T: Copy + Default>(array: &[T], places: &BTreeSet<u16>) -> Vec<T> {
    let all = array.iter().enumerate();
    let is_left_out = |at: usize| u16::try_from(at).is_ok_and(|at| places.contains(&at));
    all.map(|(at, one)| if is_left_out(at) { T::default() } else { *one })
        .collect()
}

/// Puts what stood at some places there again.
fn put_back<T: Copy + Default>(array: &mut Vec<T>, old: &[T], places: &BTreeSet<u16>) {
    for place in places.iter().map(|place| usize::from(*place)) {
        if array.len() <= place {
            array.resize(place + 1, T::default());
        }
        array[place] = old.get(place).copied().unwrap_or_default();
    }
}

/// What became of an earlier run's connections.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Adopted {
    /// Connections that go on.
    pub connections: u64,
    /// Records of connections that were over, and rest still.
    pub at_rest: u64,
    /// Of them, connections of services that are no longer configured.
    pub of_retired_services: u64,
    /// Of them, connections to servers that are no longer configured.
    pub to_retired_servers: u64,
    /// Lines that were not taken over, by what is wrong with them.
    pub misfits: BTreeMap<Misfit, u64>,
}

/// The route of a record whose route is not known; no configured one has this index.
const NO_ROUTE: u16 = PAIR_ROUTE - 1;

/// The service that connections belong to whose own is no longer configured.
const RETIRED: &str = "(no longer configured)";

/// Which index stands for what is configured.
#[derive(Debug)]
pub(super) struct Places {
    /// Of each listening endpoint, in the order of the configuration.
    listens: Vec<u16>,
    /// Of each server, by [`ServerId`].
    servers: Vec<u16>,
    /// The other way round.
    ids: Vec<Option<ServerId>>,
    /// Of each source address, in the order of the configuration.
    pub(super) nats: Vec<u16>,
}

impl Places {
    /// The index under which records name a server.
    pub(super) fn of_server(&self, id: ServerId) -> u16 {
        self.servers[usize::from(id.0)]
    }

    /// The server that records name by an index; none for one that is no longer configured.
    pub(super) fn server(&self, index: u16) -> Option<ServerId> {
        self.ids.get(usize::from(index)).copied().flatten()
    }

    pub(super) fn listens(&self, configured: &[Endpoint]) -> BTreeMap<Endpoint, u16> {
        let places = self.listens.iter().copied();
        configured.iter().copied().zip(places).collect()
    }
}

/// One array of [`Endpoints`] for an earlier run's records and for this configuration: what is
/// configured at the same place as before, what is new where nothing is in use. Returns the array
/// and the index of everything that is wanted.
fn merge<T: Copy + Ord + Default>(
    old: &[T],
    wanted: &[T],
    in_use: &BTreeSet<u16>,
    what: &'static str,
) -> Result<(Vec<T>, Vec<u16>), ConfigError> {
    let mut merged = old.to_vec();
    let mut places: BTreeMap<T, Vec<usize>> = BTreeMap::new();
    for (place, one) in old.iter().enumerate().rev() {
        places.entry(*one).or_default().push(place);
    }
    // What stands there twice keeps its order.
    let found: Vec<Option<usize>> = wanted
        .iter()
        .map(|one| places.get_mut(one).and_then(Vec::pop))
        .collect();
    let kept: BTreeSet<usize> = found.iter().flatten().copied().collect();
    let is_free = |place: &usize| {
        let used = u16::try_from(*place).is_ok_and(|place| in_use.contains(&place));
        !used && !kept.contains(place)
    };
    let mut free = (0..old.len())
        .filter(is_free)
        .collect::<Vec<_>>()
        .into_iter();
    let mut all = Vec::with_capacity(wanted.len());
    for (one, place) in wanted.iter().zip(found) {
        let place = place.or_else(|| free.next()).unwrap_or(merged.len());
        match merged.get_mut(place) {
            Some(there) => *there = *one,
            None => merged.push(*one),
        }
        // The last index of sources has a meaning of its own.
        let index = u16::try_from(place)
            .ok()
            .filter(|index| *index != TRANSPARENT);
        all.push(index.ok_or(ConfigError::TooMany {
            what,
            count: merged.len(),
            max: usize::from(TRANSPARENT),
        })?);
    }
    free.for_each(|place| merged[place] = T::default());
    let nothing = T::default();
    while merged.last() == Some(&nothing) {
        merged.pop();
    }
    Ok((merged, all))
}

/// The arrays that records of both runs index, and where this configuration's parts are in them.
pub(super) fn places(
    estate: &Estate,
    listens: &[Endpoint],
    servers: &[Endpoint],
    nats: &[fairlead_base::Address],
) -> Result<(Endpoints, Places), ConfigError> {
    let named = |index: fn(&Record) -> u16| -> BTreeSet<u16> {
        let records = estate.records.iter();
        records.map(|(_, kept)| index(&kept.record)).collect()
    };
    // What pairs name is nobody's configuration, also where it is the same.
    let (pairs, all) = (estate.pair_places(), &estate.endpoints);
    let old = &estate.configured(all);
    let (mut listens, listen_places) = merge(
        &old.listens,
        listens,
        &named(|record| record.listen),
        "listening endpoints, those of live connections included",
    )?;
    let (mut servers, server_places) = merge(
        &old.servers,
        servers,
        &named(|record| record.server),
        "servers, those of live connections included",
    )?;
    let (mut nats, nat_places) = merge(
        &old.nats,
        nats,
        &named(|record| record.nat_addr),
        "source addresses, those of live connections included",
    )?;
    put_back(&mut listens, &all.listens, &pairs.listens);
    put_back(&mut servers, &all.servers, &pairs.servers);
    put_back(&mut nats, &all.nats, &pairs.nats);
    let mut ids = vec![None; servers.len()];
    for (id, &place) in (0..).zip(&server_places) {
        ids[usize::from(place)] = Some(ServerId(id));
    }
    let places = Places {
        listens: listen_places,
        servers: server_places,
        ids,
        nats: nat_places,
    };
    let endpoints = Endpoints {
        listens,
        servers,
        nats,
    };
    Ok((endpoints, places))
}

/// The service of every listening endpoint. Those that are no longer configured get one of their
/// own, with the timeouts that are the default.
pub(super) fn services(
    config: &mut Config,
    endpoints: &Endpoints,
    configured: &Listens,
) -> Vec<u16> {
    let of = configured.endpoints.iter().zip(&configured.services);
    let of: BTreeMap<Endpoint, u16> = of.map(|(listen, service)| (*listen, *service)).collect();
    let retired = config.services.len() as u16;
    let listens = endpoints.listens.iter();
    // A place that nothing stands at is no record's, so any service will do.
    let nothing = Endpoint::default();
    let services: Vec<u16> = listens
        .map(|listen| match of.get(listen) {
            Some(service) => *service,
            None if *listen == nothing => 0,
            None => retired,
        })
        .collect();
    if services.contains(&retired) {
        let nowhere = Vec::new();
        config
            .services
            .push(Service::new(RETIRED, nowhere, Protocol::Tcp));
    }
    services
}

impl Switch {
    /// Clients are offered what they were until the servers have answered.
    pub(super) fn take_over(&mut self, now: Instant, estate: &Estate) {
        for (endpoint, terms) in &estate.offers {
            let Some(&listen) = self.listens.get(endpoint) else {
                continue;
            };
            let service = usize::from(self.listen_services[usize::from(listen)]);
            let offers = Offers {
                mss: terms
                    .mss
                    .saturating_add(if endpoint.addr.is_v4() { 0 } else { 20 }),
                window_scale: terms.window_scale,
                sack: terms.sack,
                timestamps: terms.timestamps,
            };
            self.offers[service].inherit(now, offers, terms.scale_parity);
        }
    }

    /// Takes over the connections of an earlier run, whose [`Estate`] this switch was made with.
    /// To be called once, before any packet; where there is a fast path, after
    /// [`Self::set_fast_path`].
    pub fn adopt(&mut self, now: Instant, estate: &Estate) -> Adopted {
        let mut adopted = Adopted::default();
        let mut lines: Vec<(Line, FlowKey, FlowKey)> = Vec::new();
        let left = self.left_for_others(estate);
        for &(line, kept) in &estate.records {
            if left.contains(&line) {
                continue;
            }
            let is_pair = is_pair(&kept.record);
            let record = match is_pair {
                true => kept.record,
                false => self.with_route(kept.record),
            };
            let pair = estate.pairs.get(&line).filter(|pair| pair.is_possible());
            let fits = match pair {
                None if is_pair => Err(Misfit::Pair),
                _ => self.table.adopt(line, record, now.as_millis()),
            };
            if let Err(misfit) = fits {
                *adopted.misfits.entry(misfit).or_default() += 1;
                continue;
            }
            if let (true, Some(pair)) = (is_pair, pair) {
                self.inherit_pair(line, pair);
            }
            let endpoints = self.table.endpoints();
            lines.push((
                line,
                record.client_key(endpoints),
                record.server_key(endpoints),
            ));
            let listen = endpoints.listen(record.listen);
            if kept.given {
                self.note_offloaded(line);
            }
            if record.state.is_resting() {
                adopted.at_rest += 1;
                continue;
            }
            adopted.connections += 1;
            if is_pair {
                continue;
            }
            adopted.of_retired_services += u64::from(!self.listens.contains_key(&listen));
            let server = self.places.server(record.server);
            adopted.to_retired_servers += u64::from(server.is_none());
            server.inspect(|id| self.backends.adopted(*id));
        }
        self.counts.resting += adopted.at_rest;
        self.counts.live += adopted.connections;
        self.counts.adopted += adopted.connections;
        self.restore_fast_path(&lines, estate);
        for (line, _, _) in lines {
            self.keep_watched(now, line);
        }
        self.debug_check(None);
        adopted
    }

    /// Records at rest whose client has begun anew. A fast path outside begins connections by
    /// itself, also on a tuple at rest, and whoever was to end the rest was not there any more.
    /// What was begun may be at rest itself by then: then the later rest stays.
    fn left_for_others(&self, estate: &Estate) -> BTreeSet<Line> {
        let mut left = BTreeSet::new();
        let mut owners: BTreeMap<FlowKey, (Line, &Record)> = BTreeMap::new();
        for (line, Kept { record, .. }) in &estate.records {
            let key = record.client_key(self.table.endpoints());
            let Some(&(other, before)) = owners.get(&key) else {
                owners.insert(key, (*line, record));
                continue;
            };
            let later = record.last_active.wrapping_sub(before.last_active) as i32 > 0;
            match (before.state.is_resting(), record.state.is_resting()) {
                (false, false) => continue,
                (true, true) if !later => left.insert(*line),
                (false, true) => left.insert(*line),
                (true, _) => {
                    owners.insert(key, (*line, record));
                    left.insert(other)
                }
            };
        }
        left
    }

    /// A record whose route is the one that it had: known only when that still leads to the pool
    /// of its server. Otherwise it has none.
    fn with_route(&self, record: Record) -> Record {
        let service = self.service_of(record.listen);
        let route = service.routes.get(usize::from(record.route));
        let server = self.places.server(record.server);
        let pool = server.map(|id| self.backends.server(id).0);
        let same = route.is_some_and(|route| pool.is_some() && route.pool == pool);
        Record {
            route: if same { record.route } else { NO_ROUTE },
            ..record
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn merged(old: &[u32], wanted: &[u32], in_use: &[u16]) -> (Vec<u32>, Vec<u16>) {
        merge(old, wanted, &in_use.iter().copied().collect(), "").unwrap()
    }

    #[test]
    fn indices_keep_their_meaning_in_any_order() {
        assert_eq!(merged(&[], &[7, 8], &[]), (vec![7, 8], vec![0, 1]));
        assert_eq!(merged(&[7, 8], &[8, 7], &[0, 1]), (vec![7, 8], vec![1, 0]));
        // What is new comes behind, or where nothing is named any more.
        assert_eq!(
            merged(&[7, 8], &[9, 8], &[0, 1]),
            (vec![7, 8, 9], vec![2, 1])
        );
        assert_eq!(merged(&[7, 8], &[9, 8], &[1]), (vec![9, 8], vec![0, 1]));
        assert_eq!(merged(&[7, 8], &[7], &[]), (vec![7], vec![0]));
        assert_eq!(merged(&[7, 8], &[8], &[]), (vec![0, 8], vec![1]));
    }

    #[test]
    fn what_stands_there_twice_stays_two() {
        assert_eq!(
            merged(&[7, 8, 7], &[7, 7, 8], &[0, 1, 2]),
            (vec![7, 8, 7], vec![0, 2, 1])
        );
        assert_eq!(merged(&[7], &[7, 7], &[0]), (vec![7, 7], vec![0, 1]));
    }

    #[test]
    fn an_index_too_many_is_refused() {
        let old: Vec<u32> = (1..=65_535).collect();
        let all = (0..=u16::MAX).collect();
        assert!(merge(&old, &[70_000], &all, "things").is_err());
        assert!(merge(&old, &[3], &all, "things").is_ok());
    }
}
