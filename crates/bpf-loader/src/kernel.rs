//! The program and its maps.

use std::os::fd::AsFd;
use std::sync::Arc;

use aya::maps::{Array, HashMap, IterableMap as _, MapData, MapError, PerCpuArray};
use aya::programs::ProgramError;
use aya::{Ebpf, EbpfError, EbpfLoader, include_bytes_aligned};
use fairlead_base::{Endpoint, FlowKey};
use fairlead_tcp::{Endpoints, FastPath, Line, ListenOffer, Record, Tracking};

use crate::Counters;
use crate::attach::Mode;
use crate::layout::{
    NO_SCALE, RawAddress, RawEndpoint, RawFlowKey, RawListen, RawSettings, VERSION, offer,
};
use crate::memory::RecordMemory;
use crate::pins::{Pins, network_namespace};
use crate::remains::Shapes;

static TC: &[u8] = include_bytes_aligned!(concat!(env!("OUT_DIR"), "/fairlead_tc.o"));
static XDP: &[u8] = include_bytes_aligned!(concat!(env!("OUT_DIR"), "/fairlead_xdp.o"));

/// As [`TC`], with the kernel's LRU hash map as flow table.
static TC_LRU: &[u8] = include_bytes_aligned!(concat!(env!("OUT_DIR"), "/fairlead_tc_lru.o"));

/// The program for a way of attaching; empty in a build without a compiler for it.
pub(crate) fn object(mode: Mode) -> &'static [u8] {
    match mode {
        Mode::Tc => TC,
        Mode::XdpNative | Mode::XdpGeneric => XDP,
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
    /// A map could not be used.
    #[error("a map of the fast path: {0}")]
    Map(#[from] MapError),
    /// The record array could not be mapped.
    #[error("the record array cannot be mapped: {0}")]
    Memory(#[from] std::io::Error),
    /// An earlier run of this instance left maps that this build or configuration cannot use.
    #[error(
        "an earlier run of this instance left a fast path that cannot be taken over: {0}; \
         `fairlead down` removes it, and ends the connections that it still forwards"
    )]
    OtherLayout(String),
    /// What an earlier run left is in use in another network namespace.
    #[error(
        "an instance of this name has left a fast path in another network namespace: start it \
         there, give this one another `name` in [instance], or remove that one with `fairlead down`"
    )]
    OtherNamespace,
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
    counters: PerCpuArray<MapData, u64>,
    /// What was counted before this run.
    before: Counters,
}

/// The connections that the kernel knows: the port through which the switch gives and takes them.
pub struct FlowTable {
    memory: RecordMemory,
    flows: HashMap<MapData, RawFlowKey, u32>,
    listens: HashMap<MapData, RawEndpoint, RawListen>,
    settings: Array<MapData, RawSettings>,
    settled: RawSettings,
    /// By line.
    known: Vec<Known>,
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
        Self::load_pinned(mode, records, endpoints, cookie, origin_ns, None)
    }

    /// As [`Self::load`] for [`Mode::Tc`], with the kernel's LRU hash map as flow table: to be
    /// measured, not to be used, for it evicts connections without a word.
    ///
    /// # Errors
    /// As [`Self::load`].
    pub fn load_lru_candidate(
        records: u32,
        endpoints: &Endpoints,
    ) -> Result<(Self, FlowTable), LoadError> {
        Self::load_object(TC_LRU, Mode::Tc, records, endpoints, (0, 0), 0, None)
    }

    /// As [`Self::load`], with maps that outlive this process: those that lie in `pins` already
    /// (see [`crate::survey`], which has checked them) or new ones. Of old maps, what is not said
    /// anew stays as it is; the program that uses them goes on.
    ///
    /// # Errors
    /// As [`Self::load`].
    pub fn load_pinned(
        mode: Mode,
        records: u32,
        endpoints: &Endpoints,
        cookie: (u64, u64),
        origin_ns: u64,
        pins: Option<Arc<Pins>>,
    ) -> Result<(Self, FlowTable), LoadError> {
        Self::load_object(
            object(mode),
            mode,
            records,
            endpoints,
            cookie,
            origin_ns,
            pins,
        )
    }

    fn load_object(
        object: &'static [u8],
        mode: Mode,
        records: u32,
        endpoints: &Endpoints,
        cookie: (u64, u64),
        origin_ns: u64,
        pins: Option<Arc<Pins>>,
    ) -> Result<(Self, FlowTable), LoadError> {
        if object.is_empty() {
            return Err(LoadError::NotBuiltIn);
        }
        let records = records.max(1);
        let mut loader = EbpfLoader::new();
        loader
            .map_max_entries("fl_records", records)
            .map_max_entries("fl_flows", records.saturating_mul(2))
            .map_max_entries("fl_listens", room(endpoints.listens.len()).max(1_024))
            .map_max_entries("fl_listen_at", room(endpoints.listens.len()))
            .map_max_entries("fl_server_at", room(endpoints.servers.len()))
            .map_max_entries("fl_nat_at", room(endpoints.nats.len()));
        let shapes = match &pins {
            Some(_) => Shapes::of_this_build(mode)?,
            None => Shapes::default(),
        };
        if let Some(pins) = &pins {
            for name in shapes.names() {
                loader.map_pin_path(name, pins.map(name));
            }
        }
        let mut ebpf = loader.load(object)?;
        let record_map: Array<MapData, RawRecord> = take(&mut ebpf, "fl_records")?;
        let memory = RecordMemory::map(record_map.map().fd().as_fd(), records as usize)?;
        fill_addresses(&mut ebpf, endpoints)?;
        let settled = RawSettings {
            cookie_k0: cookie.0,
            cookie_k1: cookie.1,
            origin_ns,
            version: VERSION,
            records,
            netns: network_namespace(),
            refuse: 0,
            pad: 0,
        };
        // Last of all: an instance that ends before has left nothing that could be used.
        let mut settings: Array<MapData, RawSettings> = take(&mut ebpf, "fl_settings")?;
        settings.set(0, settled, 0)?;
        let flows = take(&mut ebpf, "fl_flows")?;
        let listens = take(&mut ebpf, "fl_listens")?;
        let counters = take(&mut ebpf, "fl_counters")?;
        let before = Counters::read(&counters)?;
        let mut kernel = Self {
            ebpf,
            mode,
            pins,
            counters,
            before,
        };
        kernel.load_program()?;
        let table = FlowTable {
            memory,
            flows,
            listens,
            settings,
            settled,
            known: vec![Known::Nothing; records as usize],
        };
        Ok((kernel, table))
    }

    /// What it counted since this run began.
    ///
    /// # Errors
    /// When the kernel does not give the counters.
    pub fn counters(&self) -> Result<Counters, MapError> {
        Ok(Counters::read(&self.counters)?.since(&self.before))
    }
}

/// Entries for `count` things, and as many again for a later configuration.
fn room(count: usize) -> u32 {
    let wanted = (count * 2).next_power_of_two().clamp(64, 1 << 16);
    wanted.max(count) as u32
}

/// Writes what records name by index.
fn fill_addresses(ebpf: &mut Ebpf, endpoints: &Endpoints) -> Result<(), LoadError> {
    let raw = |endpoint: &Endpoint| RawEndpoint::from(*endpoint);
    fill(ebpf, "fl_listen_at", endpoints.listens.iter().map(raw))?;
    fill(ebpf, "fl_server_at", endpoints.servers.iter().map(raw))?;
    let nats = endpoints.nats.iter().map(|nat| RawAddress::from(*nat));
    fill(ebpf, "fl_nat_at", nats)
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
    if entries.len() > map.len() as usize {
        return Err(LoadError::OtherLayout(format!(
            "{name} has room for {} addresses, {} are needed",
            map.len(),
            entries.len()
        )));
    }
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

/// What the kernel knows of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Known {
    Nothing,
    Client,
    Both,
}

impl Known {
    fn of(client: bool, server: bool) -> Self {
        match (client, server) {
            (true, true) => Self::Both,
            (true, false) => Self::Client,
            _ => Self::Nothing,
        }
    }

    /// Whether the client's key leads to the line, and the server's.
    fn sides(self) -> [bool; 2] {
        [self != Self::Nothing, self == Self::Both]
    }
}

impl FlowTable {
    fn point(&mut self, key: &FlowKey, flow: u32) -> bool {
        self.flows.insert(RawFlowKey::from(key), flow, 0).is_ok()
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
        let entries = self.flows.iter().take(limit).flatten();
        let entries: Vec<(RawFlowKey, u32)> = entries.collect();
        for (key, flow) in entries {
            let (line, side) = (Line(flow >> 1), (flow & 1) as usize);
            let found = adopted.binary_search_by_key(&line, |(line, ..)| *line);
            let expected = found.ok().map(|at| {
                let (_, client, server) = &adopted[at];
                RawFlowKey::from([client, server][side])
            });
            if expected != Some(key) {
                let _ = self.flows.remove(&key);
                continue;
            }
            let known = &mut self.known[line.0 as usize];
            let mut sides = known.sides();
            sides[side] = true;
            // A server's key alone is found again when the client's is pointed to its line.
            *known = Known::of(sides[0], sides[1]);
        }
    }
}

impl FastPath for FlowTable {
    fn set_offer(&mut self, listen: Endpoint, terms: &ListenOffer) {
        let mut flags = 0;
        for (set, bit) in [
            (terms.sack, offer::SACK),
            (terms.timestamps, offer::TIMESTAMPS),
            (terms.scale_parity, offer::SCALE_PARITY),
            (terms.answer, offer::ANSWER),
            (terms.await_client, offer::AWAIT_CLIENT),
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
            tracing::error!(%error, %listen, "the kernel does not take what is offered");
        }
    }

    fn withdraw_offer(&mut self, listen: Endpoint) {
        let _ = self.listens.remove(&RawEndpoint::from(listen));
    }

    fn refuse_syns(&mut self, share: u32) {
        self.settled.refuse = share;
        if let Err(error) = self.settings.set(0, self.settled, 0) {
            tracing::error!(%error, "the kernel does not take its settings");
        }
    }

    fn keep(&mut self, line: Line, record: &Record) {
        self.memory.keep(line, record);
    }

    fn reconcile(&mut self, adopted: &[(Line, FlowKey, FlowKey)]) {
        self.free_all_but(adopted);
        self.check_keys(adopted);
        for (line, client, server) in adopted {
            let known = self.known[line.0 as usize];
            let [has_client, has_server] = known.sides();
            let client = has_client || self.point(client, line.0 << 1);
            let server = has_server || self.point(server, line.0 << 1 | 1);
            self.known[line.0 as usize] = Known::of(client, server);
        }
    }

    fn introduce(&mut self, line: Line, client: &FlowKey) {
        let Some(known) = self.known.get_mut(line.0 as usize) else {
            return;
        };
        let inserted = self.flows.insert(RawFlowKey::from(client), line.0 << 1, 0);
        *known = match inserted {
            Ok(()) => Known::Client,
            Err(error) => {
                tracing::debug!(%error, "the kernel has no room for a connection");
                Known::Nothing
            }
        };
    }

    fn give(&mut self, line: Line, record: &Record, client: &FlowKey, server: &FlowKey) -> bool {
        let Some(known) = self.known.get(line.0 as usize).copied() else {
            return false;
        };
        if known == Known::Nothing {
            self.introduce(line, client);
        }
        if self.known[line.0 as usize] == Known::Client {
            let key = RawFlowKey::from(server);
            if let Err(error) = self.flows.insert(key, line.0 << 1 | 1, 0) {
                tracing::debug!(%error, "the kernel has no room for a connection");
                return false;
            }
            self.known[line.0 as usize] = Known::Both;
        }
        self.known[line.0 as usize] == Known::Both && self.memory.give(line, record)
    }

    fn take(&mut self, line: Line) -> Tracking {
        self.memory.take(line).unwrap_or_else(no_tracking)
    }

    fn peek(&self, line: Line) -> Tracking {
        self.memory.peek(line).unwrap_or_else(no_tracking)
    }

    fn forget(&mut self, line: Line, client: &FlowKey, server: &FlowKey) {
        self.memory.free(line);
        let Some(known) = self.known.get_mut(line.0 as usize) else {
            return;
        };
        let known = std::mem::replace(known, Known::Nothing);
        if known != Known::Nothing {
            let _ = self.flows.remove(&RawFlowKey::from(client));
        }
        if known == Known::Both {
            let _ = self.flows.remove(&RawFlowKey::from(server));
        }
    }
}

/// For a line that the array does not have: never given, so never asked for.
fn no_tracking() -> Tracking {
    Tracking::of(&Record::default())
}
