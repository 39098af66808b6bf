//! The connection table: records in one array, found through one open-addressing index.
//!
//! All memory is reserved when the table is created and touched as it fills: nothing is
//! reallocated, moved or rehashed while packets wait. An index entry is 8 bytes (32 bits of hash, a
//! side, a line); a spliced connection has two, so that both directions are found. At 2²⁰
//! connections that is 64 bytes of record, 8 of set-up state and 32 of index each (load factor at
//! most one half).

use fairlead_base::{Endpoint, FlowKey, HashKey};

use crate::adoption::Misfit;
use crate::endpoints::Endpoints;
use crate::record::{Record, Side, State};

/// A record's place in the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Line(pub u32);

/// A look-up's result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found {
    /// Where the record is.
    pub line: Line,
    /// Which leg the key belongs to.
    pub side: Side,
}

/// No line is free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Full;

/// Another record already answers to this key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyInUse(pub Line);

/// Data of a record not needed per packet. The lower bits contain 1 + the index of the set-up
/// state, if there is one, or the free list's link. The upper bits contain the creation time, in
/// milliseconds since the core's origin, modulo 2³⁷: four years, whereas 32 bits are seven weeks.
#[derive(Clone, Copy, Debug, Default)]
struct Beside(u64);

impl Beside {
    fn new(opened_ms: u64, link: u32) -> Self {
        debug_assert!(u64::from(link) <= LINK_MASK);
        Self(opened_ms << LINK_BITS | u64::from(link))
    }

    fn link(self) -> u32 {
        (self.0 & LINK_MASK) as u32
    }

    fn opened_ms(self) -> u64 {
        self.0 >> LINK_BITS
    }
}

/// No set-up state; the end of the free list.
const NONE: u32 = 0;
const SIDE_BIT: u64 = 1 << 31;
const LINES_MAX: u32 = 1 << 26;
/// Of a link to any line.
const LINK_BITS: u32 = 27;
const LINK_MASK: u64 = (1 << LINK_BITS) - 1;
const OPENED_MASK: u64 = u64::MAX >> LINK_BITS;

/// The table. See the module's text.
#[derive(Debug)]
pub struct Table {
    records: Vec<Record>,
    beside: Vec<Beside>,
    index: Vec<u64>,
    mask: u32,
    hash_key: HashKey,
    free: u32,
    used: u32,
    capacity: u32,
    endpoints: Endpoints,
}

impl Table {
    /// A table of `capacity` lines (at least 1, at most 2²⁶).
    pub fn new(capacity: u32, endpoints: Endpoints, seed: u64) -> Self {
        let capacity = capacity.clamp(1, LINES_MAX);
        let entries = (capacity as usize * 4).next_power_of_two().max(16);
        Self {
            records: Vec::with_capacity(capacity as usize),
            beside: Vec::with_capacity(capacity as usize),
            // Entry 0 means empty: `vec![0; n]` gets zeroed pages that cost nothing until touched.
            index: vec![0; entries],
            mask: (entries - 1) as u32,
            hash_key: HashKey::new(seed),
            free: NONE,
            used: 0,
            capacity,
            endpoints,
        }
    }

    /// The addresses that records name by index.
    #[inline]
    pub fn endpoints(&self) -> &Endpoints {
        &self.endpoints
    }

    /// The addresses, to add some: what a record in use names must stay what it is.
    pub fn endpoints_mut(&mut self) -> &mut Endpoints {
        &mut self.endpoints
    }

    /// Records in use.
    pub fn used(&self) -> u32 {
        self.used
    }

    /// Records that fit.
    pub fn capacity(&self) -> u32 {
        self.capacity
    }

    /// Lines ever used: the range that a sweep visits.
    pub fn high_water(&self) -> u32 {
        self.records.len() as u32
    }

    /// The record of a line; a free one for a line that was never used.
    #[inline]
    pub fn record(&self, line: Line) -> &Record {
        static FREE: Record = FREE_RECORD;
        self.records.get(line.0 as usize).unwrap_or(&FREE)
    }

    /// The record of a line.
    ///
    /// # Panics
    /// When the line was never handed out by this table: a bug in the caller.
    #[inline]
    pub fn record_mut(&mut self, line: Line) -> &mut Record {
        &mut self.records[line.0 as usize]
    }

    /// A record and the addresses it names, at once.
    #[inline]
    pub fn record_and_endpoints(&mut self, line: Line) -> (&mut Record, &Endpoints) {
        (&mut self.records[line.0 as usize], &self.endpoints)
    }

    /// Age of the record, milliseconds; 0 if an external fast path created it after `now_ms` was
    /// read. Valid for two years.
    pub fn lived_ms(&self, line: Line, now_ms: u64) -> u64 {
        let opened_ms = self.beside[line.0 as usize].opened_ms();
        let lived_ms = now_ms.wrapping_sub(opened_ms) & OPENED_MASK;
        if lived_ms > OPENED_MASK / 2 {
            0
        } else {
            lived_ms
        }
    }

    /// Index of the set-up state of a connection that is not yet plainly spliced.
    pub fn setup(&self, line: Line) -> Option<u32> {
        // At a free line there is the free list's link.
        let used = self.record(line).state != State::Free;
        let link = self.beside.get(line.0 as usize).filter(|_| used)?.link();
        link.checked_sub(1)
    }

    /// Notes or forgets where the set-up state is.
    pub fn set_setup(&mut self, line: Line, setup: Option<u32>) {
        let beside = &mut self.beside[line.0 as usize];
        *beside = Beside::new(beside.opened_ms(), setup.map_or(NONE, |index| index + 1));
    }

    /// The hash under which a key is found.
    #[inline]
    pub fn hash(&self, key: &FlowKey) -> u32 {
        (key.hash64(&self.hash_key) >> 32) as u32
    }

    /// Prefetches the index entry of a hash.
    #[inline]
    pub fn touch_index(&self, hash: u32) -> u64 {
        self.index[(hash & self.mask) as usize]
    }

    /// Reads the record that a hash most probably leads to, when its index entries are near
    /// already ([`Self::touch_index`]). The value only keeps the read from being optimised away.
    #[inline]
    pub fn touch_record(&self, hash: u32) -> u32 {
        let mut at = hash & self.mask;
        loop {
            let entry = self.index[at as usize];
            if entry == 0 {
                return 0;
            }
            if (entry >> 32) as u32 == hash {
                let line = decode(entry).line;
                return self
                    .records
                    .get(line.0 as usize)
                    .map_or(0, |record| record.last_active);
            }
            at = (at + 1) & self.mask;
        }
    }

    /// Finds the connection that a packet with this key belongs to.
    #[inline]
    pub fn find(&self, key: &FlowKey) -> Option<Found> {
        self.find_hashed(key, self.hash(key))
    }

    /// As [`Self::find`], with the hash already computed.
    #[inline]
    pub fn find_hashed(&self, key: &FlowKey, hash: u32) -> Option<Found> {
        let mut at = hash & self.mask;
        loop {
            let entry = self.index[at as usize];
            if entry == 0 {
                return None;
            }
            if (entry >> 32) as u32 == hash {
                let found = decode(entry);
                let record = &self.records[found.line.0 as usize];
                let matches = match found.side {
                    Side::Client => record.client_key(&self.endpoints) == *key,
                    Side::Server => record.server_key(&self.endpoints) == *key,
                };
                if matches {
                    return Some(found);
                }
            }
            at = (at + 1) & self.mask;
        }
    }

    /// Takes a line for `record` and indexes it under its client's key.
    ///
    /// # Errors
    /// [`Full`] if no line is free. The caller ensures that the key is not in use.
    pub fn insert(&mut self, record: Record, opened_ms: u64) -> Result<Line, Full> {
        debug_assert!(record.state != State::Free);
        debug_assert!(self.find(&record.client_key(&self.endpoints)).is_none());
        let line = if self.free != NONE {
            let line = Line(self.free - 1);
            self.free = self.beside[line.0 as usize].link();
            self.records[line.0 as usize] = record;
            self.beside[line.0 as usize] = Beside::new(opened_ms, NONE);
            line
        } else if self.high_water() < self.capacity {
            self.records.push(record);
            self.beside.push(Beside::new(opened_ms, NONE));
            Line(self.high_water() - 1)
        } else {
            return Err(Full);
        };
        self.used += 1;
        let key = record.client_key(&self.endpoints);
        self.index_insert(self.hash(&key), line, Side::Client);
        Ok(line)
    }

    /// Takes a joined connection of an earlier run over, on the line that it had then. To be called
    /// in the order of lines, before anything is inserted.
    ///
    /// # Errors
    /// [`Misfit::Line`] for an invalid line; [`Misfit::KeyInUse`].
    pub fn adopt(&mut self, line: Line, record: Record, opened_ms: u64) -> Result<(), Misfit> {
        if line.0 >= self.capacity || line.0 < self.high_water() {
            return Err(Misfit::Line);
        }
        let client = record.client_key(&self.endpoints);
        let server = record.server_key(&self.endpoints);
        if client == server || self.find(&client).is_some() || self.find(&server).is_some() {
            return Err(Misfit::KeyInUse);
        }
        while self.high_water() < line.0 {
            self.records.push(FREE_RECORD);
            self.beside.push(Beside::new(0, self.free));
            self.free = self.high_water();
        }
        self.records.push(record);
        self.beside.push(Beside::new(opened_ms, NONE));
        self.used += 1;
        self.index_insert(self.hash(&client), line, Side::Client);
        self.index_insert(self.hash(&server), line, Side::Server);
        Ok(())
    }

    /// Indexes a record under its server's key too, once server and source are chosen.
    ///
    /// # Errors
    /// [`KeyInUse`] when another connection already uses this source towards this server.
    pub fn bind_server(&mut self, line: Line) -> Result<(), KeyInUse> {
        let key = self.records[line.0 as usize].server_key(&self.endpoints);
        let hash = self.hash(&key);
        if let Some(found) = self.find_hashed(&key, hash) {
            return Err(KeyInUse(found.line));
        }
        self.index_insert(hash, line, Side::Server);
        Ok(())
    }

    /// Takes a record's server key out of the index again.
    pub fn unbind_server(&mut self, line: Line) {
        let key = self.records[line.0 as usize].server_key(&self.endpoints);
        self.index_remove(self.hash(&key), line, Side::Server);
    }

    /// Has a record be another client's, from now on: under a key that is not in use.
    pub fn rename_client(&mut self, line: Line, client: Endpoint, opened_ms: u64) {
        let at = line.0 as usize;
        let before = self.records[at].client_key(&self.endpoints);
        let removed = self.index_remove(self.hash(&before), line, Side::Client);
        debug_assert!(removed, "every record in use is indexed by its client");
        self.records[at].client_addr = client.addr;
        self.records[at].client_port = client.port;
        self.beside[at] = Beside::new(opened_ms, self.beside[at].link());
        let key = self.records[at].client_key(&self.endpoints);
        debug_assert!(self.find(&key).is_none());
        self.index_insert(self.hash(&key), line, Side::Client);
    }

    /// Frees a line and both its keys.
    pub fn remove(&mut self, line: Line) {
        let record = self.records[line.0 as usize];
        if record.state == State::Free {
            return;
        }
        self.unbind_server(line);
        let key = record.client_key(&self.endpoints);
        let removed = self.index_remove(self.hash(&key), line, Side::Client);
        debug_assert!(removed, "every record in use is indexed by its client");
        self.records[line.0 as usize] = FREE_RECORD;
        self.beside[line.0 as usize] = Beside::new(0, self.free);
        self.free = line.0 + 1;
        self.used -= 1;
    }

    fn index_insert(&mut self, hash: u32, line: Line, side: Side) {
        let mut at = hash & self.mask;
        // Terminates: at most half of the entries are ever in use.
        while self.index[at as usize] != 0 {
            at = (at + 1) & self.mask;
        }
        self.index[at as usize] = encode(hash, line, side);
    }

    /// Removes an entry and closes the gap, so that no tombstones pile up.
    fn index_remove(&mut self, hash: u32, line: Line, side: Side) -> bool {
        let wanted = encode(hash, line, side);
        let mut at = hash & self.mask;
        loop {
            match self.index[at as usize] {
                0 => return false,
                entry if entry == wanted => break,
                _ => at = (at + 1) & self.mask,
            }
        }
        let mut gap = at;
        loop {
            at = (at + 1) & self.mask;
            let entry = self.index[at as usize];
            if entry == 0 {
                break;
            }
            let home = (entry >> 32) as u32 & self.mask;
            // The entry may fill the gap if its home is not between the gap and itself.
            if (at.wrapping_sub(home) & self.mask) >= (at.wrapping_sub(gap) & self.mask) {
                self.index[gap as usize] = entry;
                gap = at;
            }
        }
        self.index[gap as usize] = 0;
        true
    }

    /// Bytes reserved for records and index.
    pub fn reserved_bytes(&self) -> usize {
        self.records.capacity() * size_of::<Record>()
            + self.beside.capacity() * size_of::<Beside>()
            + self.index.capacity() * size_of::<u64>()
    }
}

const FREE_RECORD: Record = Record {
    client_addr: fairlead_base::Address([0; 16]),
    client_port: 0,
    listen: 0,
    server: 0,
    nat_addr: 0,
    nat_port: 0,
    route: 0,
    seq_delta: 0,
    ts_delta: 0,
    client_isn: 0,
    server_isn: 0,
    client_nxt: 0,
    server_nxt: 0,
    client_wraps: 0,
    server_wraps: 0,
    last_active: 0,
    state: State::Free,
    flags: 0,
    client_shift: 0,
    server_shift: 0,
};

/// An entry is never 0: lines are stored plus one.
fn encode(hash: u32, line: Line, side: Side) -> u64 {
    let side = if side == Side::Server { SIDE_BIT } else { 0 };
    (u64::from(hash) << 32) | side | u64::from(line.0 + 1)
}

#[inline]
fn decode(entry: u64) -> Found {
    let side = if entry & SIDE_BIT == 0 {
        Side::Client
    } else {
        Side::Server
    };
    Found {
        line: Line((entry & (SIDE_BIT - 1)) as u32 - 1),
        side,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use fairlead_base::{Address, Endpoint, Rng};

    use super::*;

    fn endpoints() -> Endpoints {
        let endpoint = |last, port| Endpoint {
            addr: Address::v4([10, 0, 0, last]),
            port,
        };
        Endpoints {
            listens: vec![endpoint(1, 80), endpoint(1, 443)],
            servers: vec![endpoint(2, 8080), endpoint(3, 8080)],
            nats: vec![Address::v4([100, 64, 0, 1]), Address::v4([100, 64, 0, 2])],
        }
    }

    fn record(port: u16) -> Record {
        Record {
            client_addr: Address::v4([192, 0, 2, 1]),
            client_port: port,
            nat_port: port,
            state: State::Spliced,
            ..Record::default()
        }
    }

    #[test]
    fn both_directions_find_the_same_line() {
        let mut table = Table::new(8, endpoints(), 1);
        let line = table.insert(record(4_000), 0).unwrap();
        table.bind_server(line).unwrap();
        let client = table.record(line).client_key(table.endpoints());
        let server = table.record(line).server_key(table.endpoints());
        assert_eq!(
            table.find(&client),
            Some(Found {
                line,
                side: Side::Client
            })
        );
        assert_eq!(
            table.find(&server),
            Some(Found {
                line,
                side: Side::Server
            })
        );
        assert_eq!(table.find(&client.reversed()), None);
    }

    #[test]
    fn a_full_table_refuses_and_a_freed_line_is_used_again() {
        let mut table = Table::new(2, endpoints(), 1);
        let first = table.insert(record(1), 0).unwrap();
        table.insert(record(2), 0).unwrap();
        assert_eq!(table.insert(record(3), 0), Err(Full));
        table.remove(first);
        assert_eq!(table.insert(record(3), 0), Ok(first));
        assert_eq!(table.used(), 2);
    }

    #[test]
    fn adopted_records_keep_their_lines_and_leave_the_others_free() {
        let mut table = Table::new(4, endpoints(), 1);
        assert_eq!(table.adopt(Line(1), record(1), 5), Ok(()));
        assert_eq!(table.adopt(Line(0), record(2), 5), Err(Misfit::Line));
        assert_eq!(table.adopt(Line(4), record(2), 5), Err(Misfit::Line));
        assert_eq!(table.adopt(Line(2), record(1), 5), Err(Misfit::KeyInUse));
        let twin = Record {
            nat_port: 1,
            ..record(2)
        };
        assert_eq!(table.adopt(Line(3), twin, 5), Err(Misfit::KeyInUse));
        assert_eq!(table.adopt(Line(3), record(3), 5), Ok(()));
        let found = table.find(&record(3).server_key(table.endpoints()));
        let side = Side::Server;
        assert_eq!(
            found,
            Some(Found {
                line: Line(3),
                side
            })
        );
        assert_eq!((table.used(), table.lived_ms(Line(3), 9)), (2, 4));
        let free: Vec<_> = (4..7).map(|port| table.insert(record(port), 0)).collect();
        assert_eq!(free, [Ok(Line(2)), Ok(Line(0)), Err(Full)]);
        for line in (0..4).map(Line) {
            table.remove(line);
        }
        assert!(table.index.iter().all(|&entry| entry == 0));
    }

    #[test]
    fn one_source_towards_one_server_is_one_connection() {
        let mut table = Table::new(4, endpoints(), 1);
        let first = table.insert(record(1), 0).unwrap();
        table.bind_server(first).unwrap();
        let mut other = record(2);
        other.nat_port = 1;
        let second = table.insert(other, 0).unwrap();
        assert_eq!(table.bind_server(second), Err(KeyInUse(first)));
        table.record_mut(second).server = 1;
        table.bind_server(second).unwrap();
    }

    #[test]
    fn a_renamed_client_is_found_under_its_new_key_only() {
        let mut table = Table::new(4, endpoints(), 1);
        let line = table.insert(record(4_000), 5).unwrap();
        table.bind_server(line).unwrap();
        table.set_setup(line, Some(7));
        let server = table.record(line).server_key(table.endpoints());
        let before = table.record(line).client_key(table.endpoints());
        let client = Endpoint {
            addr: Address::v4([192, 0, 2, 9]),
            port: 4_001,
        };
        table.rename_client(line, client, 8);
        let after = FlowKey {
            src: client,
            dst: before.dst,
        };
        let found = |key| table.find(key).map(|found| (found.line, found.side));
        assert_eq!(found(&before), None);
        assert_eq!(found(&after), Some((line, Side::Client)));
        assert_eq!(found(&server), Some((line, Side::Server)));
        assert_eq!(table.record(line).client(), client);
        assert_eq!((table.lived_ms(line, 9), table.setup(line)), (1, Some(7)));
        assert_eq!(table.used(), 1);
        // Both keys are free again with the line.
        table.remove(line);
        assert!(table.index.iter().all(|&entry| entry == 0));
        assert_eq!(table.insert(record(4_000), 0), Ok(line));
    }

    #[test]
    fn a_record_has_an_age_of_years_beside_any_link() {
        const DAY_MS: u64 = 86_400_000;
        let mut table = Table::new(4, endpoints(), 1);
        // Close to the end of 37 bits.
        let opened_ms = (1 << 37) - DAY_MS;
        let line = table.insert(record(1), opened_ms).unwrap();
        for link in [None, Some(0), Some(LINES_MAX)] {
            table.set_setup(line, link);
            assert_eq!(table.setup(line), link);
            for lived_ms in [0, 1, 50 * DAY_MS, 700 * DAY_MS] {
                assert_eq!(table.lived_ms(line, opened_ms + lived_ms), lived_ms);
            }
            assert_eq!(table.lived_ms(line, opened_ms - 3), 0, "a moment later");
        }
    }

    /// Random inserts and removals against an ordered map: nothing is lost, nothing stays.
    #[test]
    fn agrees_with_a_map_under_random_use() {
        let mut rng = Rng::new(3);
        let mut table = Table::new(300, endpoints(), 9);
        let mut model: BTreeMap<u16, Line> = BTreeMap::new();
        for _ in 0..20_000 {
            let port = rng.below(600) as u16;
            match model.remove(&port) {
                Some(line) => table.remove(line),
                None => match table.insert(record(port), 0) {
                    Ok(line) => {
                        table.bind_server(line).unwrap();
                        if rng.below(2) == 0 {
                            // By way of another name, which it leaves again.
                            let client = record(port).client();
                            table.rename_client(line, record(1_000).client(), 0);
                            table.rename_client(line, client, 0);
                        }
                        model.insert(port, line);
                    }
                    Err(Full) => assert_eq!(model.len(), 300),
                },
            }
            assert_eq!(table.used() as usize, model.len());
            let probe = rng.below(600) as u16;
            let key = record(probe).client_key(table.endpoints());
            assert_eq!(
                table.find(&key).map(|found| found.line),
                model.get(&probe).copied()
            );
            let key = record(probe).server_key(table.endpoints());
            assert_eq!(
                table.find(&key).map(|found| found.line),
                model.get(&probe).copied()
            );
        }
        for line in model.into_values() {
            table.remove(line);
        }
        assert!(
            table.index.iter().all(|&entry| entry == 0),
            "no entry is left behind"
        );
    }
}
