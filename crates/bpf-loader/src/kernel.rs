//! The program and its maps.

use std::os::fd::AsFd;

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

static TC: &[u8] = include_bytes_aligned!(concat!(env!("OUT_DIR"), "/fairlead_tc.o"));
static XDP: &[u8] = include_bytes_aligned!(concat!(env!("OUT_DIR"), "/fairlead_xdp.o"));

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
    /// The object lacks something it should have: a fault of the build.
    #[error("the kernel program has no {0}")]
    Missing(&'static str),
}

/// The loaded program. Its connections are in [`FlowTable`].
pub struct Kernel {
    pub(crate) ebpf: Ebpf,
    pub(crate) mode: Mode,
    counters: PerCpuArray<MapData, u64>,
}

/// The connections that the kernel knows: the port through which the switch gives and takes them.
pub struct FlowTable {
    memory: RecordMemory,
    flows: HashMap<MapData, RawFlowKey, u32>,
    listens: HashMap<MapData, RawEndpoint, RawListen>,
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

fn take<T: TryFrom<aya::maps::Map, Error = MapError>>(
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
        let object = object(mode);
        if object.is_empty() {
            return Err(LoadError::NotBuiltIn);
        }
        let at_least_one = |count: usize| u32::try_from(count).unwrap_or(u32::MAX).max(1);
        let records = records.max(1);
        let mut ebpf = EbpfLoader::new()
            .map_max_entries("fl_records", records)
            .map_max_entries("fl_flows", records.saturating_mul(2))
            .map_max_entries("fl_listen_at", at_least_one(endpoints.listens.len()))
            .map_max_entries("fl_server_at", at_least_one(endpoints.servers.len()))
            .map_max_entries("fl_nat_at", at_least_one(endpoints.nats.len()))
            .load(object)?;
        let record_map: Array<MapData, RawRecord> = take(&mut ebpf, "fl_records")?;
        let memory = RecordMemory::map(record_map.map().fd().as_fd(), records as usize)?;
        let mut listen_at: Array<MapData, RawEndpoint> = take(&mut ebpf, "fl_listen_at")?;
        for (index, endpoint) in (0..).zip(&endpoints.listens) {
            listen_at.set(index, RawEndpoint::from(*endpoint), 0)?;
        }
        let mut server_at: Array<MapData, RawEndpoint> = take(&mut ebpf, "fl_server_at")?;
        for (index, endpoint) in (0..).zip(&endpoints.servers) {
            server_at.set(index, RawEndpoint::from(*endpoint), 0)?;
        }
        let mut nat_at: Array<MapData, RawAddress> = take(&mut ebpf, "fl_nat_at")?;
        for (index, address) in (0..).zip(&endpoints.nats) {
            nat_at.set(index, RawAddress::from(*address), 0)?;
        }
        let settings = RawSettings {
            cookie_k0: cookie.0,
            cookie_k1: cookie.1,
            origin_ns,
            version: VERSION,
            records,
        };
        let mut settings_map: Array<MapData, RawSettings> = take(&mut ebpf, "fl_settings")?;
        settings_map.set(0, settings, 0)?;
        let flows = take(&mut ebpf, "fl_flows")?;
        let listens = take(&mut ebpf, "fl_listens")?;
        let counters = take(&mut ebpf, "fl_counters")?;
        let mut kernel = Self {
            ebpf,
            mode,
            counters,
        };
        kernel.load_program()?;
        let table = FlowTable {
            memory,
            flows,
            listens,
            known: vec![Known::Nothing; records as usize],
        };
        Ok((kernel, table))
    }

    /// What it counted.
    ///
    /// # Errors
    /// When the kernel does not give the counters.
    pub fn counters(&self) -> Result<Counters, MapError> {
        Counters::read(&self.counters)
    }
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
        self.memory.take(line);
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
