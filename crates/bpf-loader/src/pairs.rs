//! What the kernel program has to know of pairs besides their records.

use std::collections::BTreeMap;

use aya::maps::{Array, HashMap, Map, MapData, MapError};
use aya::{Ebpf, Pod};
use fairlead_base::FlowKey;
use fairlead_tcp::{Endpoints, KeptPair, Line, PairOffload, Record, Second, Seen};

use crate::kernel::{FlowTable, LoadError, take};
use crate::layout::{PAIR_KEPT, PAIRS, ROUTE_PAIR, RawAddress, RawEndpoint, RawSecond, RawSeen};
use crate::pins::Pins;
use crate::remains::pinned;

const _: () = assert!(ROUTE_PAIR == fairlead_tcp::PAIR_ROUTE);

/// The map of second constants, by line, and the arrays of addresses, of which pairs take places
/// while the program is at work.
pub(crate) struct PairMaps {
    seconds: HashMap<MapData, u32, RawSecond>,
    listens: Array<MapData, RawEndpoint>,
    servers: Array<MapData, RawEndpoint>,
    nats: Array<MapData, RawAddress>,
}

impl PairMaps {
    /// Of a program that is loaded, and needs them no more here.
    pub(crate) fn take(ebpf: &mut Ebpf) -> Result<Self, LoadError> {
        Ok(Self {
            seconds: take(ebpf, "fl_seconds")?,
            listens: take(ebpf, "fl_listen_at")?,
            servers: take(ebpf, "fl_server_at")?,
            nats: take(ebpf, "fl_nat_at")?,
        })
    }

    /// Writes the addresses that a record names by index, and what is to be kept for a later run.
    pub(crate) fn place(
        &mut self,
        line: Line,
        record: &Record,
        endpoints: &Endpoints,
        notes: &[u8],
    ) -> Result<(), MapError> {
        let mut kept = [0; PAIR_KEPT];
        kept.iter_mut()
            .zip(notes)
            .for_each(|(to, from)| *to = *from);
        self.seconds
            .insert(line.0, raw(&Second::default(), &[None; 2], kept), 0)?;
        let listen = endpoints.listen(record.listen);
        put(&mut self.listens, record.listen, RawEndpoint::from(listen))?;
        let server = endpoints.server(record.server);
        put(&mut self.servers, record.server, RawEndpoint::from(server))?;
        let nat = endpoints.nat(record.nat_addr);
        put(&mut self.nats, record.nat_addr, RawAddress::from(nat))
    }

    pub(crate) fn describe(
        &mut self,
        line: Line,
        second: &Second,
        seen: &[Option<Seen>; 2],
    ) -> Result<(), MapError> {
        let kept = self.seconds.get(&line.0, 0)?.kept;
        self.seconds.insert(line.0, raw(second, seen, kept), 0)
    }

    /// Forgets pairs that do not go on; `adopted` is in the order of lines.
    pub(crate) fn forget_all_but(&mut self, adopted: &[(Line, FlowKey, FlowKey)]) {
        let goes_on = |line: u32| {
            let found = adopted.binary_search_by_key(&Line(line), |(line, ..)| *line);
            found.is_ok()
        };
        let lines = self.seconds.keys().take(PAIRS as usize).flatten();
        let gone: Vec<u32> = lines.filter(|line| !goes_on(*line)).collect();
        gone.into_iter().for_each(|line| self.forget(Line(line)));
    }

    pub(crate) fn seen(&self, line: Line) -> [Option<Seen>; 2] {
        let raw = self.seconds.get(&line.0, 0);
        raw.map_or([None; 2], |raw| [raw.client, raw.server].map(Option::from))
    }

    pub(crate) fn forget(&mut self, line: Line) {
        let _ = self.seconds.remove(&line.0); // it is there, or the program never knew it
    }
}

impl PairOffload for FlowTable {
    fn place_pair(
        &mut self,
        line: Line,
        record: &Record,
        endpoints: &Endpoints,
        notes: &[u8],
    ) -> bool {
        let placed = self.pairs.place(line, record, endpoints, notes);
        let placed = placed.and_then(|()| {
            // A later start reads no more of the arrays than this.
            let before = self.settled;
            let settled = &mut self.settled;
            settled.listens = settled.listens.max(u32::from(record.listen) + 1);
            settled.servers = settled.servers.max(u32::from(record.server) + 1);
            settled.nats = settled.nats.max(u32::from(record.nat_addr) + 1);
            match self.settled == before {
                true => Ok(()),
                false => self.settings.set(0, self.settled, 0),
            }
        });
        placed.inspect_err(no_pair).is_ok()
    }

    fn describe_pair(&mut self, line: Line, second: &Second, seen: &[Option<Seen>; 2]) -> bool {
        let described = self.pairs.describe(line, second, seen);
        described.inspect_err(no_pair).is_ok()
    }

    fn pair_seen(&self, line: Line) -> [Option<Seen>; 2] {
        self.pairs.seen(line)
    }

    fn forget_pair(&mut self, line: Line) {
        self.pairs.forget(line);
    }
}

fn no_pair(error: &MapError) {
    tracing::debug!(%error, "the kernel does not take a pair");
}

fn raw(second: &Second, seen: &[Option<Seen>; 2], kept: [u8; PAIR_KEPT]) -> RawSecond {
    let [client, server] = seen.map(RawSeen::from);
    RawSecond {
        seq: second.seq,
        ts: second.ts,
        client_shift: second.client_shift,
        server_shift: second.server_shift,
        pad: [0; 2],
        client,
        server,
        kept,
    }
}

/// What an earlier run left of its pairs.
pub(crate) fn left(pins: &Pins) -> Result<BTreeMap<Line, KeptPair>, LoadError> {
    let map = Map::from_map_data(pinned(pins, "fl_seconds")?)?;
    let map: HashMap<MapData, u32, RawSecond> = map.try_into()?;
    let mut all = BTreeMap::new();
    for entry in map.iter().take(PAIRS as usize) {
        let (line, raw) = entry?;
        let kept = KeptPair {
            second: Second {
                seq: raw.seq,
                ts: raw.ts,
                client_shift: raw.client_shift,
                server_shift: raw.server_shift,
            },
            seen: [raw.client, raw.server].map(Option::from),
            notes: raw.kept.to_vec(),
        };
        all.insert(Line(line), kept);
    }
    Ok(all)
}

fn put<R: Pod + PartialEq>(
    array: &mut Array<MapData, R>,
    index: u16,
    entry: R,
) -> Result<(), MapError> {
    let index = u32::from(index);
    match array.get(&index, 0)? == entry {
        true => Ok(()),
        false => array.set(index, entry, 0),
    }
}

impl From<Option<Seen>> for RawSeen {
    fn from(seen: Option<Seen>) -> Self {
        let Some(seen) = seen else {
            return Self::default();
        };
        Self {
            ack: seen.ack,
            stamp: seen.timestamp.unwrap_or(0),
            window: seen.window,
            known: 1,
            stamped: u8::from(seen.timestamp.is_some()),
        }
    }
}

impl From<RawSeen> for Option<Seen> {
    fn from(raw: RawSeen) -> Self {
        (raw.known != 0).then_some(Seen {
            ack: raw.ack,
            window: raw.window,
            timestamp: (raw.stamped != 0).then_some(raw.stamp),
        })
    }
}
