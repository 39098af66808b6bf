//! The cache itself.

use fairlead_base::{Endpoint, FlowKey, HashKey, Instant, Rng};
use fairlead_cache::{Indexer, Lookup, SchemeError, build_lookup};
use fairlead_tcp::{Endpoints, Found, Line, Record, Side, State, Table};
use fairlead_wire::TcpPacket;

use crate::asked::{Asked, Session, hint, identifier, opens};
use crate::report::{Report, TcbCacheCounters};
use crate::settings::{Settings, tick};

/// Maps the session identifiers in the cache's lines to records.
///
/// *Identifiers.* A packet to a listening endpoint is from a client: the identifier is the client's
/// address and port. Any other packet is from a server, and the identifier is its destination: in
/// transparent mode the same client, so that both directions share a line; with source NAT the
/// address and port that the server sees, a second identifier with its own line.
///
/// *Validation.* A line is only a hint to a record. The record must be in use, must have the
/// packet's complete key on that side, and must be indexed under it: the server's key is indexed
/// from the splice until the record is freed. Otherwise the table is consulted as without a cache,
/// and its answer is written into the line. So records may be removed and reused, and a client may
/// use two services, without notifying the cache.
///
/// *Tags.* The 48 bits of an IPv4 identifier as they are; of an IPv6 one 62 bits of a keyed hash,
/// which is as good as the 144 where every hit is verified.
///
/// SYNs do not go through the cache: they have no record.
pub struct TcbCache {
    cache: Box<dyn Lookup<u64>>,
    indexer: Indexer,
    settings: Settings,
    /// In order.
    listens: Box<[Endpoint]>,
    hash_key: HashKey,
    /// By line of the cache.
    records: Box<[Line]>,
    strangers: u64,
    mismatches: u64,
    tick: u32,
}

impl core::fmt::Debug for TcbCache {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let Settings { scheme, geometry } = &self.settings;
        write!(f, "TcbCache({scheme}, {geometry:?})")
    }
}

/// Marks tags of IPv6 identifiers: above all IPv4 ones, and never all ones, which means none.
const V6: u64 = 0b10 << 62;
const HASHED: u64 = (1 << 62) - 1;

impl TcbCache {
    /// An empty cache for the connections of `endpoints`. Index functions, and the policy's chance,
    /// come from `seed`: the lab with the same seed finds the same places.
    ///
    /// # Errors
    /// When scheme and geometry do not fit together.
    pub fn new(settings: &Settings, endpoints: &Endpoints, seed: u64) -> Result<Self, SchemeError> {
        let Settings { scheme, geometry } = settings;
        let mut listens = endpoints.listens.clone();
        listens.sort_unstable();
        Ok(Self {
            cache: build_lookup(scheme, geometry, seed)?,
            indexer: scheme.indexer(geometry, seed)?,
            settings: settings.clone(),
            listens: listens.into(),
            hash_key: HashKey::new(Rng::new(seed).next_u64()),
            records: vec![Line(0); geometry.lines() as usize].into(),
            strangers: 0,
            mismatches: 0,
            tick: 0,
        })
    }

    /// Its settings.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    #[inline]
    fn tag(&self, identifier: &Endpoint) -> u64 {
        if identifier.addr.is_v4() {
            let address = u32::from_be_bytes(identifier.addr.v4_octets());
            return (u64::from(address) << 16) | u64::from(identifier.port);
        }
        let key = FlowKey {
            src: *identifier,
            dst: Endpoint::default(),
        };
        V6 | (key.hash64(&self.hash_key) & HASHED)
    }

    /// Prepares a packet's lookup. It has no side effects, so it can be done for many packets in
    /// advance.
    #[inline]
    pub fn ask(&self, header: &TcpPacket) -> Asked {
        if opens(header) {
            return Asked::default();
        }
        let (identifier, side) = identifier(header, &self.listens);
        let session = Session {
            tag: self.tag(&identifier),
            place: self.indexer.place(&identifier),
            side,
            hint: hint(header),
        };
        Asked {
            session: Some(session),
            hash: None,
        }
    }

    /// Prefetches the data of a lookup: the cached record, or else the entry in the table's index.
    /// The return value only keeps the reads from being optimized away.
    #[inline]
    pub fn touch(&self, asked: &mut Asked, key: &FlowKey, table: &Table) -> u64 {
        let line = asked
            .session
            .and_then(|session| self.cache.peek(session.tag, &session.place));
        if let Some(line) = line {
            let record = self.records[line as usize];
            return u64::from(table.record(record).last_active);
        }
        let hash = table.hash(key);
        asked.hash = Some(hash);
        table.touch_index(hash)
    }

    /// Finds the connection that a packet belongs to: what [`Table::find`] would say.
    #[inline]
    pub fn find(
        &mut self,
        asked: &Asked,
        key: &FlowKey,
        table: &Table,
        now: Instant,
    ) -> Option<Found> {
        let by_table = || match asked.hash {
            Some(hash) => table.find_hashed(key, hash),
            None => table.find(key),
        };
        let Some(session) = asked.session else {
            return by_table();
        };
        self.tick = tick(now);
        let Session {
            tag, place, hint, ..
        } = session;
        let Some(hit) = self.cache.lookup(tag, &place, self.tick, hint) else {
            let found = by_table();
            match found {
                Some(found) => self.fill(&session, found.line),
                None => self.strangers += 1,
            }
            return found;
        };
        let line = self.records[hit.line as usize];
        if answers(table.record(line), table.endpoints(), session.side, key) {
            let side = session.side;
            debug_assert_eq!(by_table(), Some(Found { line, side }));
            return Some(Found { line, side });
        }
        self.mismatches += 1;
        let found = by_table();
        if let Some(found) = found {
            self.records[hit.line as usize] = found.line;
        }
        found
    }

    /// Inserts a newcomer.
    fn fill(&mut self, session: &Session, record: Line) {
        let Session {
            tag, place, hint, ..
        } = session;
        let filled = self.cache.fill(*tag, place, self.tick, *hint);
        if let Some((from, to)) = filled.moved {
            self.records[to as usize] = self.records[from as usize];
        }
        if let Some(line) = filled.line {
            self.records[line as usize] = record;
        }
    }

    /// Time goes on, without a packet.
    pub fn advance(&mut self, now: Instant) {
        self.tick = tick(now);
    }

    /// Counters and occupancy.
    pub fn report(&self) -> Report {
        let counted = self.cache.statistics();
        let occupancy = self.cache.occupancy();
        let sum = |lines: &[u32]| lines.iter().copied().map(u64::from).sum();
        let counters = TcbCacheCounters {
            accesses: counted.accesses - self.strangers,
            hits: counted.hits(),
            misses: counted.misses - self.strangers,
            strangers: self.strangers,
            mismatches: self.mismatches,
            migrations: counted.migrations,
            second_lookup_hits: counted.second_lookup_hits,
            bypasses: counted.bypasses,
            evictions: counted.evictions,
            evicted_on: counted.evicted_on,
            on_lines: sum(&self.cache.on_lines(self.tick)),
            occupied: sum(&occupancy),
            ..TcbCacheCounters::default()
        };
        let sets = Report::by_occupancy(&occupancy, self.settings.geometry.ways());
        Report::of(&self.settings, counters, sets)
    }
}

/// True when a record is the one that the table's index has under this key on this side.
#[inline]
fn answers(record: &Record, endpoints: &Endpoints, side: Side, key: &FlowKey) -> bool {
    match side {
        Side::Client => record.state != State::Free && record.client_key(endpoints) == *key,
        // While a server is being chosen, the record may name a server without being indexed under
        // its key.
        Side::Server => {
            let bound = record.state.is_live()
                || record.state == State::TimeWait
                || record.state == State::Reset;
            bound && record.server_key(endpoints) == *key
        }
    }
}
