//! The program and its maps.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use aya::maps::{Array, HashMap, IterableMap as _, MapData, MapError, PerCpuArray};
use aya::programs::ProgramError;
use aya::{Ebpf, EbpfError, EbpfLoader, include_bytes_aligned};
use fairlead_base::{Address, Endpoint, FlowKey};
use fairlead_tcp::ticket::TICKETS_MAX;
use fairlead_tcp::{
    Begun, ConnectOffload, Endpoints, FastPath, FlowOffload, Join, Joined, Line, ListenOffer,
    PairOffload, Preconnect, Record, Refusal, SynOffload, Taker, Ticket, Tracking,
};

use crate::Counters;
use crate::attach::{Held, Mode};
use crate::flow_table::{FlowTableKind, TcbGeometry, raw_tcb};
use crate::footprint;
use crate::hits::HitBase;
use crate::index::{KeyIndex, buckets_for, hash_key};
use crate::joins::{JoinMemory, PLACES_MAX};
use crate::keys::Keys;
use crate::lanes::{Issued, Lanes};
use crate::layout::{
    LAYOUT_VERSION, NO_SCALE, OFFER_ACCESS, OFFER_ANSWER, OFFER_AWAIT_CLIENT, OFFER_BEGIN,
    OFFER_HOST, OFFER_SACK, OFFER_SCALE_PARITY, OFFER_TIMESTAMPS, RawAddress, RawBucket,
    RawEndpoint, RawFlowKey, RawJoin, RawLane, RawListen, RawSettings, RawTcb, TCB_WAYS,
};
use crate::memory::{RecordMemory, Taken};
use crate::pairs::PairMaps;
use crate::pins::{Pins, network_namespace};
use crate::remains::Shapes;
use crate::sys;

static TC: &[u8] = include_bytes_aligned!(concat!(env!("OUT_DIR"), "/fairlead_tc.o"));
static XDP: &[u8] = include_bytes_aligned!(concat!(env!("OUT_DIR"), "/fairlead_xdp.o"));

static TC_LRU: &[u8] = include_bytes_aligned!(concat!(env!("OUT_DIR"), "/fairlead_tc_lru.o"));
static XDP_LRU: &[u8] = include_bytes_aligned!(concat!(env!("OUT_DIR"), "/fairlead_xdp_lru.o"));
static TC_TCB: &[u8] = include_bytes_aligned!(concat!(env!("OUT_DIR"), "/fairlead_tc_tcb.o"));
static XDP_TCB: &[u8] = include_bytes_aligned!(concat!(env!("OUT_DIR"), "/fairlead_xdp_tcb.o"));

/// The program for a way of attaching and a kind of flow table; empty in a build without a compiler
/// for it.
pub(crate) fn object(mode: Mode, kind: &FlowTableKind) -> &'static [u8] {
    let (tc, xdp) = match kind {
        FlowTableKind::Hash => (TC, XDP),
        FlowTableKind::LruHash { .. } => (TC_LRU, XDP_LRU),
        FlowTableKind::TcbCache(_) => (TC_TCB, XDP_TCB),
    };
    match mode {
        Mode::Tc => tc,
        Mode::XdpNative | Mode::XdpGeneric => xdp,
    }
}

/// Why the kernel program cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    /// There was no compiler for it when this program was built.
    #[error("built without the kernel program: clang and libbpf-dev were missing")]
    NotBuiltIn,
    /// The kernel refused the program or a map.
    #[error("the kernel refused the fast path: {0}")]
    Refused(#[from] EbpfError),
    /// The kernel refused the program.
    #[error("the kernel refused the fast path's program: {0}")]
    Program(#[from] ProgramError),
    /// The kernel lacks what this needs.
    #[error("Linux {0} is needed")]
    TooOld(&'static str),
    /// A map could not be used.
    #[error("cannot access a map of the fast path: {0}")]
    Map(#[from] MapError),
    /// The record array could not be mapped.
    #[error("cannot map the record array: {0}")]
    Memory(#[from] std::io::Error),
    /// An earlier run of this instance left maps that this build or configuration cannot use.
    #[error(
        "an earlier run of this instance left a fast path that cannot be taken over: {0}; \
         `fairlead down` removes it, and ends the connections that it still forwards"
    )]
    OtherLayout(String),
    /// An earlier run's flow table is of another kind, which cannot take its place.
    #[error(
        "an earlier run of this instance left another kind of flow table: `flow_table` in \
         [fastpath] has changed from or to \"lru-hash\" (\"hash\" and \"tcb-cache\" can take over \
         each other's connections); restore the old value, or remove it with `fairlead down`, \
         which ends the connections that it still forwards"
    )]
    OtherFlowTable,
    /// What an earlier run left is in use in another network namespace; the folder it is pinned in.
    #[error(
        "an instance of this name left a fast path in another network namespace: start it there, \
         remove it with `fairlead down` there, or choose another `name` in [instance]; if that \
         namespace no longer exists but its interface does, `rm -r {0}` detaches the program"
    )]
    OtherNamespace(String),
    /// The pinned files cannot be changed.
    #[error("the pinned maps: {0}")]
    Pins(String),
    /// The object lacks something it should have: a fault of the build.
    #[error("the kernel program has no {0}")]
    Missing(&'static str),
}

/// The loaded program. Its connections are in [`FlowTable`].
pub struct Kernel {
    pub(crate) ebpf: Ebpf,
    pub(crate) mode: Mode,
    pub(crate) pins: Option<Arc<Pins>>,
    pub(crate) instance: Option<String>,
    /// By the interface's index, where nothing is pinned.
    pub(crate) held: BTreeMap<u32, Held>,
    counters: PerCpuArray<MapData, u64>,
    /// What was counted before this run.
    before: Counters,
    kind: FlowTableKind,
    keys_anew: Arc<AtomicU64>,
    map_bytes: BTreeMap<String, u64>,
    pub(crate) base: Option<HitBase>,
}

/// The connections that the kernel knows: the port through which the switch gives and takes them.
pub struct FlowTable {
    memory: RecordMemory,
    /// None where the program joins nothing.
    joins: Option<JoinMemory>,
    /// None where it begins nothing.
    lanes: Option<(Lanes, Heads)>,
    keys: Keys,
    listens: HashMap<MapData, RawEndpoint, RawListen>,
    pub(crate) settings: Array<MapData, RawSettings>,
    pub(crate) settled: RawSettings,
    pub(crate) pairs: PairMaps,
    /// Listening endpoints with access lists.
    listed: BTreeSet<Endpoint>,
    /// By line.
    known: Vec<Known>,
    kind: FlowTableKind,
    /// Keys that the kernel had been told and had evicted.
    keys_anew: Arc<AtomicU64>,
}

impl core::fmt::Debug for FlowTable {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("FlowTable")
            .field("memory", &self.memory)
            .finish_non_exhaustive()
    }
}

impl core::fmt::Debug for Kernel {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Kernel")
            .field("mode", &self.mode)
            .finish_non_exhaustive()
    }
}

/// The lane of each head that was decided, by its hash.
type Heads = HashMap<MapData, u64, u32>;

pub(crate) fn take<T: TryFrom<aya::maps::Map, Error = MapError>>(
    ebpf: &mut Ebpf,
    name: &'static str,
) -> Result<T, LoadError> {
    let map = ebpf.take_map(name).ok_or(LoadError::Missing(name))?;
    Ok(T::try_from(map)?)
}

impl Kernel {
    /// Loads the program for `mode` and fills its maps. It does nothing until it is attached.
    ///
    /// `records` are as many as the table has lines; `cookie` is the secret behind SYN cookies,
    /// `origin_ns` the core's origin on the monotonic clock: both must be the engine's.
    ///
    /// # Errors
    /// See [`LoadError`]; without CAP_BPF and CAP_NET_ADMIN it is [`LoadError::Refused`].
    pub fn load(
        mode: Mode,
        records: u32,
        endpoints: &Endpoints,
        cookie: (u64, u64),
        origin_ns: u64,
    ) -> Result<(Self, FlowTable), LoadError> {
        let kind = FlowTableKind::Hash;
        Self::load_pinned(mode, kind, records, endpoints, cookie, origin_ns, None)
    }

    /// As [`Self::load`], with a flow table of this kind, and with maps that outlive this process:
    /// those that lie in `pins` already (see [`crate::survey`], which has checked them) or new
    /// ones. Of old maps, what is not said anew stays as it is; the program that uses them goes on.
    ///
    /// # Errors
    /// As [`Self::load`].
    pub fn load_pinned(
        mode: Mode,
        kind: FlowTableKind,
        records: u32,
        endpoints: &Endpoints,
        cookie: (u64, u64),
        origin_ns: u64,
        pins: Option<Arc<Pins>>,
    ) -> Result<(Self, FlowTable), LoadError> {
        let object = object(mode, &kind);
        if object.is_empty() {
            return Err(LoadError::NotBuiltIn);
        }
        let records = records.max(1);
        let mut ebpf = load_maps(mode, &kind, records, pins.as_deref())?;
        let map_bytes = footprint::map_bytes(&ebpf);
        let record_map: Array<MapData, RawRecord> = take(&mut ebpf, "fl_records")?;
        let memory = RecordMemory::map(record_map.map().fd().as_fd(), records as usize)?;
        let joins = may_join(mode).then(|| map_joins(&mut ebpf)).transpose()?;
        let begins = may_join(mode) && !kind.evicts();
        let lanes = begins.then(|| map_lanes(&mut ebpf)).transpose()?;
        fill_addresses(&mut ebpf, endpoints)?;
        fill_strays(&mut ebpf, endpoints)?;
        if let FlowTableKind::TcbCache(geometry) = &kind {
            fill_cache(&mut ebpf, geometry, endpoints, cookie)?;
        }
        let mut settled = settings(records, endpoints, cookie, origin_ns);
        // Last of all: an instance that ends before has left nothing that could be used.
        let mut settings: Array<MapData, RawSettings> = take(&mut ebpf, "fl_settings")?;
        // The program of an earlier run goes on meanwhile, and packets must not miss its device.
        settled.engine = settings.get(&0, 0).map_or(0, |before| before.engine);
        settings.set(0, settled, 0)?;
        let keys = take_keys(&mut ebpf, settled.hash_key, kind)?;
        let listens = take(&mut ebpf, "fl_listens")?;
        let counters = take(&mut ebpf, "fl_counters")?;
        let mut kernel = Self {
            ebpf,
            mode,
            instance: pins.as_ref().and_then(|pins| pins.instance()),
            pins,
            held: BTreeMap::new(),
            before: Counters::read(&counters)?,
            counters,
            kind,
            keys_anew: Arc::default(),
            map_bytes,
            base: HitBase::of(&listens, cookie, origin_ns),
        };
        kernel.load_program()?;
        let table = FlowTable {
            pairs: PairMaps::take(&mut kernel.ebpf)?,
            memory,
            joins,
            lanes,
            keys,
            listens,
            settings,
            settled,
            listed: BTreeSet::new(),
            known: vec![Known::default(); records as usize],
            kind,
            keys_anew: Arc::clone(&kernel.keys_anew),
        };
        Ok((kernel, table))
    }

    /// What it counted since this run began.
    ///
    /// # Errors
    /// When the kernel does not give the counters.
    pub fn counters(&self) -> Result<Counters, MapError> {
        let mut counters = Counters::read(&self.counters)?.since(&self.before);
        counters.keys_anew = self.keys_anew.load(Ordering::Relaxed);
        counters.map_bytes.clone_from(&self.map_bytes);
        Ok(counters)
    }

    /// Bytes that the kernel has set aside for the TCB cache; 0 where there is none.
    pub fn cache_bytes(&self) -> u64 {
        let of = |name| match self.ebpf.map(name) {
            Some(aya::maps::Map::Array(map)) => sys::map_bytes(map.fd().as_fd()),
            _ => 0,
        };
        of("fl_tcb_sets") + of("fl_tcb")
    }

    /// The kind of its flow table.
    pub fn flow_table(&self) -> FlowTableKind {
        self.kind
    }
}

/// What the program has to know at the start.
fn settings(
    records: u32,
    endpoints: &Endpoints,
    cookie: (u64, u64),
    origin_ns: u64,
) -> RawSettings {
    RawSettings {
        cookie_k0: cookie.0,
        cookie_k1: cookie.1,
        origin_ns,
        version: LAYOUT_VERSION,
        records,
        netns: network_namespace(),
        hash_key: hash_key(cookie),
        buckets: buckets_for(records),
        listens: endpoints.listens.len() as u32,
        servers: endpoints.servers.len() as u32,
        nats: endpoints.nats.len() as u32,
        ..RawSettings::default()
    }
}

/// Makes the maps, or opens those that are pinned, and reads the program.
fn load_maps(
    mode: Mode,
    kind: &FlowTableKind,
    records: u32,
    pins: Option<&Pins>,
) -> Result<Ebpf, LoadError> {
    let mut loader = EbpfLoader::new();
    loader
        .map_max_entries("fl_records", records)
        .map_max_entries("fl_joins", TICKETS_MAX + records.min(PLACES_MAX))
        .map_max_entries("fl_index", buckets_for(records))
        .map_max_entries("fl_flows", kind.keys(records))
        .map_max_entries("fl_listens", ENDPOINTS_MAX)
        .map_max_entries("fl_listen_at", ENDPOINTS_MAX)
        .map_max_entries("fl_server_at", ENDPOINTS_MAX)
        .map_max_entries("fl_nat_at", ENDPOINTS_MAX)
        .map_max_entries("fl_strays_at", ENDPOINTS_MAX);
    if let FlowTableKind::TcbCache(geometry) = kind {
        let sets = geometry.sets() * TcbGeometry::LINES_MIN / TCB_WAYS as u32;
        loader.map_max_entries("fl_tcb_sets", sets);
    }
    let shapes = match pins {
        Some(_) => Shapes::of_this_build(mode, kind)?,
        None => Shapes::default(),
    };
    if let Some(pins) = pins {
        shapes.drop_unsuited(pins)?;
        for name in shapes.names() {
            loader.map_pin_path(name, pins.map(name));
        }
    }
    Ok(loader.load(object(mode, kind))?)
}

fn take_keys(ebpf: &mut Ebpf, hash_key: u64, kind: FlowTableKind) -> Result<Keys, LoadError> {
    let index = map_index(ebpf, hash_key)?;
    let empty = index.is_some().then(|| take(ebpf, "fl_flows_empty"));
    let flows = take(ebpf, "fl_flows")?;
    Ok(Keys::new(index, flows, empty.transpose()?, kind.evicts()))
}

/// The index of keys, where the kind of flow table has one.
fn map_index(ebpf: &mut Ebpf, hash_key: u64) -> Result<Option<KeyIndex>, LoadError> {
    let Some(map) = ebpf.map("fl_index") else {
        return Ok(None);
    };
    let map: Array<&MapData, RawBucket> = map.try_into()?;
    let buckets = map.len() as usize;
    Ok(Some(KeyIndex::map(
        map.map().fd().as_fd(),
        buckets,
        hash_key,
    )?))
}

/// Whether connections are left to the program to join. Not before the stack: when a program there
/// has made a packet longer or shorter, the kernel notes its end one Ethernet header too far
/// (`bpf_prog_run_generic_xdp`, still so in Linux 6.18). A server's stack that gets the packet
/// itself, by a veth, appends what comes next there, and its program reads other bytes than were
/// sent.
fn may_join(mode: Mode) -> bool {
    mode != Mode::XdpGeneric
}

fn map_joins(ebpf: &mut Ebpf) -> Result<JoinMemory, LoadError> {
    // Not taken out: the program is loaded later, and needs it.
    let map = ebpf.map("fl_joins").ok_or(LoadError::Missing("fl_joins"))?;
    let map: Array<&MapData, RawJoin> = map.try_into()?;
    let places = map.len() as usize;
    Ok(JoinMemory::map(map.map().fd().as_fd(), places)?)
}

fn map_lanes(ebpf: &mut Ebpf) -> Result<(Lanes, Heads), LoadError> {
    let map = ebpf.map("fl_lanes").ok_or(LoadError::Missing("fl_lanes"))?;
    let map: Array<&MapData, RawLane> = map.try_into()?;
    let lanes = Lanes::map(map.map().fd().as_fd(), map.len() as usize)?;
    Ok((lanes, take(ebpf, "fl_heads")?))
}

/// As many endpoints as records can name: what is pinned must suit every later configuration.
const ENDPOINTS_MAX: u32 = 1 << 16;

/// Writes what the TCB cache is made from.
fn fill_cache(
    ebpf: &mut Ebpf,
    geometry: &TcbGeometry,
    endpoints: &Endpoints,
    cookie: (u64, u64),
) -> Result<(), LoadError> {
    let seed = cookie.0 ^ cookie.1.rotate_left(32);
    let raw = raw_tcb(geometry, &endpoints.listens, seed);
    let map = ebpf.map_mut("fl_tcb").ok_or(LoadError::Missing("fl_tcb"))?;
    let mut map: Array<&mut MapData, RawTcb> = map.try_into()?;
    Ok(map.set(0, *raw, 0)?)
}

/// Writes what records name by index.
fn fill_addresses(ebpf: &mut Ebpf, endpoints: &Endpoints) -> Result<(), LoadError> {
    let raw = |endpoint: &Endpoint| RawEndpoint::from(*endpoint);
    fill(ebpf, "fl_listen_at", endpoints.listens.iter().map(raw))?;
    fill(ebpf, "fl_server_at", endpoints.servers.iter().map(raw))?;
    let nats = endpoints.nats.iter().map(|nat| RawAddress::from(*nat));
    fill(ebpf, "fl_nat_at", nats)
}

/// Writes the addresses to which whatever comes is the engine's alone.
fn fill_strays(ebpf: &mut Ebpf, endpoints: &Endpoints) -> Result<(), LoadError> {
    let name = "fl_strays_at";
    let map = ebpf.map_mut(name).ok_or(LoadError::Missing(name))?;
    let mut map: HashMap<&mut MapData, RawAddress, u32> = map.try_into()?;
    let nats: BTreeSet<Address> = endpoints.nats.iter().copied().collect();
    let listened = endpoints.listens.iter().map(|listen| listen.addr);
    for address in listened.filter(|address| !nats.contains(address)) {
        map.insert(RawAddress::from(address), 1, 0)?;
    }
    Ok(())
}

/// Writes an array from its start. What is in it and stays the same is not written.
fn fill<R: aya::Pod + PartialEq>(
    ebpf: &mut Ebpf,
    name: &'static str,
    entries: impl ExactSizeIterator<Item = R>,
) -> Result<(), LoadError> {
    // Not taken out: the program is loaded later, and needs it.
    let map = ebpf.map_mut(name).ok_or(LoadError::Missing(name))?;
    let mut map: Array<&mut MapData, R> = map.try_into()?;
    for (index, entry) in (0..).zip(entries) {
        if map.get(&index, 0)? != entry {
            map.set(index, entry, 0)?;
        }
    }
    Ok(())
}

/// `struct fl_record` as bytes: only its size matters to the map.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(4))]
pub(crate) struct RawRecord([u8; 64]);

// SAFETY: plain bytes.
unsafe impl aya::Pod for RawRecord {}

/// Which keys of a line the kernel has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Known {
    client: bool,
    server: bool,
}

impl FlowTable {
    /// Has packets for the engine go straight to the interface with this index, where the program
    /// can do that: the TUN device that their routes lead to. Without it they go by those.
    ///
    /// # Errors
    /// When the kernel does not take the setting.
    pub fn set_engine(&mut self, interface: u32) -> Result<(), MapError> {
        self.settled.engine = interface;
        self.settings.set(0, self.settled, 0)
    }

    /// Endpoints whose SYNs are compared with access lists. What an earlier run offered goes on
    /// under these lists, so that there is no moment without them.
    pub(crate) fn set_listed(&mut self, listens: BTreeSet<Endpoint>) -> Result<(), MapError> {
        for listen in &listens {
            let key = RawEndpoint::from(*listen);
            if let Ok(mut offered) = self.listens.get(&key, 0) {
                offered.flags |= OFFER_ACCESS;
                self.listens.insert(key, offered, 0)?;
            }
        }
        self.listed = listens;
        Ok(())
    }

    /// Bytes that the kernel has set aside for the map of keys.
    pub fn memory_bytes(&self) -> u64 {
        self.keys.memory_bytes()
    }

    /// Sees that both keys of a line lead to it. False without room.
    fn tell(&mut self, line: Line, client: &FlowKey, server: &FlowKey) -> bool {
        let Some(known) = self.known.get_mut(line.0 as usize) else {
            return false;
        };
        let (client, server) = (RawFlowKey::from(client), RawFlowKey::from(server));
        let (to_client, to_server) = (line.0 << 1, line.0 << 1 | 1);
        if !known.client {
            known.client = self.keys.tell(client, to_client);
        }
        if !known.server {
            known.server = self.keys.tell(server, to_server);
        }
        if known.server && !known.client {
            self.keys.leave(server, to_server);
            known.server = false;
        }
        known.client && known.server
    }

    fn point(&mut self, key: &FlowKey, flow: u32) -> bool {
        self.keys.tell(RawFlowKey::from(key), flow)
    }

    /// Sees that a key leads to its line, where the kernel may have evicted it: whenever the engine
    /// had to take a packet that may be why.
    fn point_anew(&mut self, key: &FlowKey, flow: u32, told: bool) -> bool {
        if self.keys.leads_to(&RawFlowKey::from(key), flow) {
            return true;
        }
        if told {
            self.keys_anew.fetch_add(1, Ordering::Relaxed);
        }
        self.point(key, flow)
    }

    /// Frees the lines of connections that do not go on. `adopted` is in the order of lines.
    fn free_all_but(&mut self, adopted: &[(Line, FlowKey, FlowKey)]) {
        let mut adopted = adopted.iter().map(|(line, ..)| *line).peekable();
        for line in (0..self.memory.lines()).map(Line) {
            if adopted.next_if_eq(&line).is_none() {
                self.memory.free(line);
            }
        }
    }

    /// Removes the keys of connections that do not go on, and notes those of the others.
    fn check_keys(&mut self, adopted: &[(Line, FlowKey, FlowKey)]) {
        // The map has at most twice as many entries as there are lines; nobody else adds any.
        let limit = self.known.len() * 2;
        let key_of = |flow: u32| {
            let found = adopted.binary_search_by_key(&Line(flow >> 1), |(line, ..)| *line);
            let (_, client, server) = &adopted[found.ok()?];
            Some(RawFlowKey::from([client, server][(flow & 1) as usize]))
        };
        let known = &mut self.known;
        self.keys.retain(limit, key_of, |flow| {
            let known = &mut known[(flow >> 1) as usize];
            known.client |= flow & 1 == 0;
            known.server |= flow & 1 == 1;
        });
    }
}

impl SynOffload for FlowTable {
    fn set_offer(&mut self, listen: Endpoint, terms: &ListenOffer) {
        let mut flags = 0;
        for (set, bit) in [
            (terms.sack, OFFER_SACK),
            (terms.timestamps, OFFER_TIMESTAMPS),
            (terms.scale_parity, OFFER_SCALE_PARITY),
            (terms.answer, OFFER_ANSWER),
            (terms.await_client, OFFER_AWAIT_CLIENT),
            (terms.begin, OFFER_BEGIN),
            (terms.host, OFFER_HOST),
            (self.listed.contains(&listen), OFFER_ACCESS),
        ] {
            if set {
                flags |= bit;
            }
        }
        let entry = RawListen {
            index: terms.listen,
            mss: terms.mss,
            window: terms.window,
            window_scale: terms.window_scale.unwrap_or(NO_SCALE),
            flags,
        };
        if let Err(error) = self.listens.insert(RawEndpoint::from(listen), entry, 0) {
            tracing::error!(%error, %listen, "the kernel refused the offered options");
        }
    }

    fn withdraw_offer(&mut self, listen: Endpoint) {
        let _ = self.listens.remove(&RawEndpoint::from(listen));
    }

    fn set_refusal(&mut self, refusal: Refusal) {
        self.settled.refuse = refusal.syns;
        self.settled.proven = u32::from(refusal.unproven);
        if let Err(error) = self.settings.set(0, self.settled, 0) {
            tracing::error!(%error, "the kernel refused the settings");
        }
    }
}

impl FlowOffload for FlowTable {
    fn may_lose_keys(&self) -> bool {
        self.keys.may_lack_some()
    }

    fn register(&mut self, line: Line, client: &FlowKey) {
        let Some(known) = self.known.get_mut(line.0 as usize) else {
            return;
        };
        if !known.client {
            known.client = self.keys.tell(RawFlowKey::from(client), line.0 << 1);
        }
    }

    fn offload(&mut self, line: Line, record: &Record, client: &FlowKey, server: &FlowKey) -> bool {
        let Some(known) = self.known.get(line.0 as usize).copied() else {
            return false;
        };
        if self.kind.evicts() {
            let client = self.point_anew(client, line.0 << 1, known.client);
            let server = self.point_anew(server, line.0 << 1 | 1, known.server);
            self.known[line.0 as usize] = Known { client, server };
            return client && server && self.memory.give(line, record);
        }
        self.tell(line, client, server) && self.memory.give(line, record)
    }

    fn reclaim(&mut self, line: Line) -> Tracking {
        self.memory.take(line).unwrap_or_else(no_tracking)
    }

    fn tracking(&self, line: Line) -> Tracking {
        self.memory.peek(line).unwrap_or_else(no_tracking)
    }

    fn persist(&mut self, line: Line, record: &Record) {
        self.memory.keep(line, record);
    }

    fn release_server(&mut self, line: Line, server: &FlowKey) {
        let Some(known) = self.known.get_mut(line.0 as usize) else {
            return;
        };
        if std::mem::take(&mut known.server) {
            self.keys.leave(RawFlowKey::from(server), line.0 << 1 | 1);
        }
    }

    fn remove(&mut self, line: Line, client: &FlowKey, server: &FlowKey) {
        self.memory.free(line);
        let Some(known) = self.known.get_mut(line.0 as usize) else {
            return;
        };
        let known = std::mem::take(known);
        if known.client {
            self.keys.leave(RawFlowKey::from(client), line.0 << 1);
        }
        if known.server {
            self.keys.leave(RawFlowKey::from(server), line.0 << 1 | 1);
        }
    }

    fn restore(&mut self, adopted: &[(Line, FlowKey, FlowKey)]) {
        self.free_all_but(adopted);
        self.pairs.forget_all_but(adopted);
        self.check_keys(adopted);
        for (line, client, server) in adopted {
            let known = self.known[line.0 as usize];
            let client = known.client || self.point(client, line.0 << 1);
            let server = known.server || self.point(server, line.0 << 1 | 1);
            self.known[line.0 as usize] = Known { client, server };
        }
        self.keys.remove_leaving();
    }

    fn flush(&mut self) {
        self.keys.remove_leaving();
    }
}

impl ConnectOffload for FlowTable {
    fn arm(
        &mut self,
        line: Line,
        place: u32,
        record: &Record,
        join: &Join<'_>,
        [client, server]: [&FlowKey; 2],
    ) -> bool {
        let joins = self.joins.as_mut();
        let place = TICKETS_MAX + place;
        joins.is_some_and(|joins| joins.write(place, line, join))
            && self.tell(line, client, server)
            && self.memory.arm(line, record, place)
    }

    fn joined(&self, line: Line) -> Option<Joined> {
        self.memory.joined(line)
    }

    fn disarm(&mut self, line: Line) -> Option<Joined> {
        self.memory.disarm(line)
    }
}

impl Preconnect for FlowTable {
    fn lanes(&self) -> u16 {
        let lanes = self.lanes.as_ref();
        lanes.map_or(0, |(lanes, _)| lanes.count())
    }

    fn issue(&mut self, ticket: &Ticket<'_>) -> bool {
        let (Some(joins), Some((lanes, _))) = (&mut self.joins, &mut self.lanes) else {
            return false;
        };
        let Some(known) = self.known.get_mut(ticket.line.0 as usize) else {
            return false;
        };
        let server = RawFlowKey::from(ticket.server);
        known.client = false;
        known.server = ticket.place < TICKETS_MAX
            && joins.prepare(ticket.place, ticket)
            && self.keys.tell(server, ticket.line.0 << 1 | 1);
        known.server
            && self.memory.issue(ticket.line, ticket.record, ticket.place)
            && lanes.issue(ticket.lane, ticket.line, ticket.place)
    }

    fn next_taken(&mut self, lane: u16) -> Option<Begun> {
        let (lanes, _) = self.lanes.as_mut()?;
        let Issued { line, place, .. } = lanes.taken(lane)?;
        let by = match self.memory.taken(line) {
            Taken::Filling => return None,
            Taken::Spoilt => None,
            Taken::By(client, client_isn, timestamps) => Some((client, client_isn, timestamps)),
        };
        lanes.pass_taken(lane);
        // Only now: it was written before the phase moved.
        let noted = self.joins.as_ref()?.taken(place);
        let taker = by
            .zip(noted)
            .map(|((client, client_isn, timestamps), noted)| Taker {
                client,
                client_isn,
                dseq: noted.dseq,
                stamps: timestamps.then_some(noted.stamps),
                window: noted.window,
                payload: noted.payload,
                begun_ms: noted.begun_ms,
            });
        self.known[line.0 as usize].client = taker.is_some();
        Some(Begun { line, place, taker })
    }

    fn revoke(&mut self, lane: u16, gone: &mut Vec<(Line, u32)>) {
        let Some((lanes, _)) = &mut self.lanes else {
            return;
        };
        gone.extend(
            lanes
                .revoke(lane)
                .iter()
                .map(|ticket| (ticket.line, ticket.place)),
        );
    }

    fn learn_head(&mut self, head: u64, lane: u16) {
        if let Some((_, heads)) = &mut self.lanes {
            // Without it such heads are the engine's, as before.
            let _ = heads.insert(head, u32::from(lane), 0);
        }
    }

    fn client_key_superseded(&mut self, line: Line) {
        if let Some(known) = self.known.get_mut(line.0 as usize) {
            known.client = false;
        }
    }
}

impl FastPath for FlowTable {
    fn connect(&mut self) -> Option<&mut dyn ConnectOffload> {
        self.joins.is_some().then_some(self as _)
    }

    fn preconnect(&mut self) -> Option<&mut dyn Preconnect> {
        self.lanes.is_some().then_some(self as _)
    }

    fn pairs(&mut self) -> Option<&mut dyn PairOffload> {
        Some(self)
    }
}

/// For a line that the array does not have: never given, so never asked for.
fn no_tracking() -> Tracking {
    Tracking::of(&Record::default())
}
