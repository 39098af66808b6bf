//! Pairs: records made of two connections that a proxy has handed off.
//!
//! To the engine a pair is a record like any other, with the service [`PAIRS`]; what makes it
//! different is applied at the boundary ([`fairlead_tcp::second`]) by whoever calls the engine. Its
//! addresses are nobody's configuration: they take places of their own in [`Endpoints`], which are
//! free again with the last pair that names them. A fast path outside learns these, too, and
//! forwards a pair's packets as those of any connection (`offload/pair.rs`).

use std::collections::BTreeMap;

use fairlead_base::{Address, Endpoint, FlowKey, Instant};
use fairlead_tcp::{
    Endpoints, KeptPair, Line, PAIR_ROUTE, Pairing, Record, Second, Seen, Side, State,
};
use fairlead_wire::{TcpFlags, TcpPacket, Timestamps};

use super::Switch;
use crate::config::{Protocol, Service};

/// The service of pairs, as counters and logs have it.
pub(super) const PAIRS: &str = "(handed off)";

/// A pair.
#[derive(Clone, Copy, Debug)]
pub struct Pair {
    /// Which pair this is: lines are used again, this number is not.
    pub number: u64,
    /// Its second constants.
    pub second: Second,
    /// The client and the server.
    pub seen: [Option<Seen>; 2],
    /// A fast path outside knows its addresses.
    pub(super) placed: bool,
}

/// A pair as it is now.
#[derive(Clone, Copy, Debug)]
pub struct PairState {
    /// Its record.
    pub record: Record,
    /// The rest.
    pub pair: Pair,
}

/// Why there is no pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PairRefused {
    /// No line or no place for an address is free, or the switch stops.
    Full,
    /// A connection has these addresses and ports.
    KeyInUse,
}

/// Why a pair is not given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PairKept {
    /// It is over.
    Gone,
    /// Bytes are in flight, or an end has closed.
    Busy,
}

/// All pairs.
#[derive(Debug, Default)]
pub(super) struct Pairs {
    most: u32,
    service: u16,
    last: u64,
    all: BTreeMap<Line, Pair>,
    /// What an owner wrote down of them for a later run.
    notes: BTreeMap<Line, Vec<u8>>,
    /// Of pairs that are gone while packets to their servers wait to be sent.
    parted: Vec<(FlowKey, Second)>,
    listens: Places<Endpoint>,
    servers: Places<Endpoint>,
    nats: Places<Address>,
}

/// Places of addresses that pairs name, and how many do.
#[derive(Debug)]
struct Places<T> {
    used: BTreeMap<T, (u16, u32)>,
    free: Vec<u16>,
}

impl<T> Default for Places<T> {
    fn default() -> Self {
        Self {
            used: BTreeMap::new(),
            free: Vec::new(),
        }
    }
}

impl<T: Copy + Ord + Default> Places<T> {
    /// Takes over that `one` is at this place. False where it is at another.
    fn keep(&mut self, one: T, place: u16) -> bool {
        let (there, count) = self.used.entry(one).or_insert((place, 0));
        *count += 1;
        *there == place
    }

    /// A place for `one` in `array`; `None` when there are no more indices.
    fn take(&mut self, one: T, array: &mut Vec<T>) -> Option<u16> {
        if let Some((place, count)) = self.used.get_mut(&one) {
            *count += 1;
            return Some(*place);
        }
        let place = match self.free.pop() {
            Some(place) => place,
            // The last index means something else.
            None => u16::try_from(array.len())
                .ok()
                .filter(|at| *at != u16::MAX)?,
        };
        match array.get_mut(usize::from(place)) {
            Some(at) => *at = one,
            None => array.push(one),
        }
        self.used.insert(one, (place, 1));
        Some(place)
    }

    fn give_back(&mut self, one: T, array: &mut [T]) {
        let Some((place, count)) = self.used.get_mut(&one) else {
            debug_assert!(false, "a pair names only places that it took");
            return;
        };
        *count -= 1;
        if *count == 0 {
            array[usize::from(*place)] = T::default();
            self.free.push(*place);
            self.used.remove(&one);
        }
    }
}

impl Pairs {
    /// For at most `most` pairs, whose service becomes the last of `services`.
    pub(super) fn new(most: u32, services: &mut Vec<Service>) -> Self {
        let service = services.len() as u16;
        if most > 0 {
            services.push(Service::new(PAIRS, Vec::new(), Protocol::Tcp));
        }
        Self {
            most,
            service,
            ..Self::default()
        }
    }
}

impl Switch {
    /// True while there are pairs.
    #[inline]
    pub fn has_pairs(&self) -> bool {
        !self.pairs.all.is_empty() || !self.pairs.parted.is_empty()
    }

    /// All packets that waited have been sent.
    pub(super) fn forget_parted_pairs(&mut self) {
        self.pairs.parted.clear();
    }

    /// The second constants of the connection on this line, if it is a pair.
    #[inline]
    pub fn second(&self, line: Line) -> Option<Second> {
        self.pairs.all.get(&line).map(|pair| pair.second)
    }

    /// The second constants for a packet that is about to be sent, if it goes to a pair's server.
    pub fn second_for(&self, sent: &FlowKey) -> Option<Second> {
        let key = sent.reversed();
        let found = self.table.find(&key);
        match found.filter(|found| found.side == Side::Server) {
            Some(found) => self.second(found.line),
            None => {
                let mut parted = self.pairs.parted.iter();
                parted.find(|one| one.0 == key).map(|one| one.1)
            }
        }
    }

    /// All pairs, those at rest included, as far as they are known: [`Self::catch_up_pairs`].
    pub fn pairs(&self) -> impl Iterator<Item = (Line, PairState)> + '_ {
        let all = self.pairs.all.iter();
        all.map(|(&line, &pair)| {
            let record = *self.table.record(line);
            (line, PairState { record, pair })
        })
    }

    /// The number of the latest pair.
    pub fn last_pair(&self) -> u64 {
        self.pairs.last
    }

    /// Takes over a pair of an earlier run, whose record is on the table.
    pub(super) fn inherit_pair(&mut self, line: Line, left: &KeptPair) {
        let record = *self.table.record(line);
        let (endpoints, pairs) = (self.table.endpoints(), &mut self.pairs);
        let places = [
            pairs
                .listens
                .keep(endpoints.listen(record.listen), record.listen),
            pairs
                .servers
                .keep(endpoints.server(record.server), record.server),
            pairs
                .nats
                .keep(endpoints.nat(record.nat_addr), record.nat_addr),
        ];
        debug_assert_eq!(places, [true; 3], "each address has one place");
        self.listen_services[usize::from(record.listen)] = pairs.service;
        pairs.last += 1;
        let pair = Pair {
            number: pairs.last,
            second: left.second,
            seen: left.seen,
            placed: true,
        };
        pairs.all.insert(line, pair);
        pairs.notes.insert(line, left.notes.clone());
    }

    /// What was written down of a pair when it was adopted.
    pub fn pair_notes(&self, line: Line) -> &[u8] {
        self.pairs.notes.get(&line).map_or(&[], Vec::as_slice)
    }

    /// Takes two connections over as one. Their packets must come here from now on. `notes` are
    /// kept for a later run.
    ///
    /// # Errors
    /// See [`PairRefused`].
    pub fn adopt_pair(
        &mut self,
        now: Instant,
        pairing: &Pairing,
        notes: &[u8],
    ) -> Result<(Line, u64), PairRefused> {
        if self.draining || self.pairs.all.len() as u64 >= u64::from(self.pairs.most) {
            return Err(PairRefused::Full);
        }
        let record = self.place_pair(now, pairing).ok_or(PairRefused::Full)?;
        let endpoints = self.table.endpoints();
        let keys = [record.client_key(endpoints), record.server_key(endpoints)];
        let taken = keys.iter().any(|key| self.table.find(key).is_some());
        if taken || keys[0] == keys[1] {
            self.unplace_pair(&record);
            return Err(PairRefused::KeyInUse);
        }
        let Ok(line) = self.table.insert(record, now.as_millis()) else {
            self.unplace_pair(&record);
            return Err(PairRefused::Full);
        };
        let bound = self.table.bind_server(line);
        debug_assert!(bound.is_ok(), "its key was not in use");
        self.pairs.last += 1;
        let pair = Pair {
            number: self.pairs.last,
            second: pairing.second,
            seen: [None; 2],
            placed: false,
        };
        self.pairs.all.insert(line, pair);
        self.pairs.notes.insert(line, notes.to_vec());
        self.counts.live += 1;
        self.counts.services[usize::from(self.pairs.service)].accepted += 1;
        self.introduce_pair(line);
        self.offload(line);
        self.debug_check(Some(line));
        Ok((line, pair.number))
    }

    /// Gives a pair up, whose packets must not come here any more: what its sockets must know.
    ///
    /// # Errors
    /// [`PairKept::Busy`] unless all that both ends sent is acknowledged.
    pub fn release_pair(
        &mut self,
        now: Instant,
        line: Line,
        number: u64,
    ) -> Result<PairState, PairKept> {
        let is_it = |pair: &&Pair| pair.number == number;
        if self.pairs.all.get(&line).filter(is_it).is_none() {
            return Err(PairKept::Gone);
        }
        // Its next packet offloads it again, should it stay.
        self.reclaim(now, line);
        let record = *self.table.record(line);
        let pair = *self.pairs.all.get(&line).ok_or(PairKept::Gone)?;
        if record.state.is_resting() {
            return Err(PairKept::Gone);
        }
        // All was acknowledged when it was adopted.
        let first = |side: Side| match side {
            Side::Client => record.client_isn.wrapping_add(1),
            Side::Server => record.server_isn.wrapping_add(1),
        };
        let acked = |side: Side| {
            let ack = pair.seen[side as usize].map(|seen| seen.ack);
            ack.unwrap_or(first(side.other())) == record.nxt(side.other()).0
        };
        if record.state != State::Spliced || !acked(Side::Client) || !acked(Side::Server) {
            return Err(PairKept::Busy);
        }
        self.counts.live -= 1;
        self.free(line);
        // So that no key leads here when the sockets' packets come.
        self.flush_fast_path();
        self.debug_check(None);
        Ok(PairState { record, pair })
    }

    /// Ends a pair by a RST to both ends. False if it is over already.
    pub fn end_pair(&mut self, now: Instant, line: Line, number: u64) -> bool {
        let pair = self.pairs.all.get(&line);
        let is_it = pair.is_some_and(|pair| pair.number == number);
        if is_it {
            self.end_line(now, line, crate::event::End::Killed);
        }
        is_it
    }

    /// What is known of a pair besides its record, and what a fast path outside has seen.
    pub(super) fn pair_mut(&mut self, line: Line) -> Option<&mut Pair> {
        self.pairs.all.get_mut(&line)
    }

    /// The lines of all pairs.
    pub(super) fn pair_lines(&self) -> Vec<Line> {
        self.pairs.all.keys().copied().collect()
    }

    /// Learns how far all pairs have come that a fast path outside has.
    pub fn catch_up_pairs(&mut self, now: Instant) {
        for line in self.pair_lines() {
            self.catch_up(now, line);
        }
    }

    /// Remembers what a packet says that its socket would have to know. Its numbers are those
    /// within the boundary.
    pub fn note_pair(
        &mut self,
        line: Line,
        side: Side,
        header: &TcpPacket,
        stamps: Option<Timestamps>,
    ) {
        if !header.flags.contains(TcpFlags::ACK) {
            return; // nobody sends such segments in midstream
        }
        let record = self.table.record(line);
        let ack = match side {
            Side::Client => header.ack.0.wrapping_sub(record.seq_delta),
            Side::Server => header.ack.0,
        };
        if let Some(pair) = self.pairs.all.get_mut(&line) {
            pair.seen[side as usize] = Some(Seen {
                ack,
                window: header.window,
                timestamp: stamps.map(|stamps| stamps.value),
            });
        }
    }

    /// Frees a pair's line, and what it had besides.
    pub(super) fn remove_pair(&mut self, line: Line) {
        let record = *self.table.record(line);
        let known = self.pairs.all.remove(&line);
        self.pairs.notes.remove(&line);
        debug_assert!(known.is_some(), "every record with this route is a pair's");
        if let Some(pair) = known {
            let key = record.server_key(self.table.endpoints());
            self.pairs.parted.push((key, pair.second));
        }
        self.remove_offloaded(line);
        self.forget_offloaded_pair(line);
        self.table.remove(line);
        self.unplace_pair(&record);
    }

    /// Its record, with places for its addresses.
    fn place_pair(&mut self, now: Instant, pairing: &Pairing) -> Option<Record> {
        let Endpoints {
            listens,
            servers,
            nats,
        } = self.table.endpoints_mut();
        let pairs = &mut self.pairs;
        let listen = pairs.listens.take(pairing.listen, listens)?;
        if self.listen_services.len() < listens.len() {
            self.listen_services.push(pairs.service);
        }
        let Some(server) = pairs.servers.take(pairing.server, servers) else {
            pairs.listens.give_back(pairing.listen, listens);
            return None;
        };
        let Some(nat) = pairs.nats.take(pairing.source.addr, nats) else {
            pairs.listens.give_back(pairing.listen, listens);
            pairs.servers.give_back(pairing.server, servers);
            return None;
        };
        Some(pairing.record(listen, server, nat, Self::now_ms(now)))
    }

    fn unplace_pair(&mut self, record: &Record) {
        let endpoints = self.table.endpoints_mut();
        let pairs = &mut self.pairs;
        let listen = endpoints.listen(record.listen);
        pairs.listens.give_back(listen, &mut endpoints.listens);
        let server = endpoints.server(record.server);
        pairs.servers.give_back(server, &mut endpoints.servers);
        let nat = endpoints.nat(record.nat_addr);
        pairs.nats.give_back(nat, &mut endpoints.nats);
    }
}

/// True for a record that is a pair's.
#[inline]
pub(super) fn is_pair(record: &Record) -> bool {
    record.route == PAIR_ROUTE
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_shared_and_used_again() {
        let (mut places, mut array) = (Places::default(), vec![7_u32]);
        assert_eq!(places.take(5, &mut array), Some(1));
        assert_eq!(places.take(5, &mut array), Some(1));
        assert_eq!(
            places.take(7, &mut array),
            Some(2),
            "not the configured one"
        );
        places.give_back(5, &mut array);
        assert_eq!(array, [7, 5, 7]);
        places.give_back(5, &mut array);
        assert_eq!(array, [7, 0, 7]);
        assert_eq!(places.take(9, &mut array), Some(1));
        assert_eq!(array, [7, 9, 7]);
    }
}
