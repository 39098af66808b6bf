//! What an earlier run left in pinned maps: checked before it is used, as all input is.

use std::collections::BTreeMap;
use std::mem::offset_of;
use std::os::fd::AsFd;
use std::path::Path;

use aya::maps::{Array, HashMap, IterableMap as _, Map, MapData, MapError, MapInfo, MapType};
use aya::{Ebpf, EbpfLoader, Pod};
use fairlead_base::{Address, Endpoint};
use fairlead_tcp::{Endpoints, Kept, KeptPair, Line, ListenOffer, Misfit, adoption};

use crate::attach::Mode;
use crate::flow_table::FlowTableKind;
use crate::kernel::{LoadError, object};
use crate::layout::{
    LAYOUT_VERSION, NO_SCALE, OFFER_ANSWER, OFFER_AWAIT_CLIENT, OFFER_BEGIN, OFFER_HOST,
    OFFER_SACK, OFFER_SCALE_PARITY, OFFER_TIMESTAMPS, RawAddress, RawEndpoint, RawListen,
    RawSettings,
};
use crate::maps::{self, Pinning};
use crate::memory::RecordMemory;
use crate::monotonic_ns;
use crate::pairs;
use crate::pins::{self, Pins, network_namespace};
use crate::sys;

/// What an earlier run left.
#[derive(Debug)]
pub struct Remains {
    /// Its origin on the monotonic clock, nanoseconds.
    pub origin_ns: u64,
    /// The words behind its cookies.
    pub cookie: (u64, u64),
    /// What its records name by index.
    pub endpoints: Endpoints,
    /// What it offered, by listening endpoint.
    pub offers: Vec<(Endpoint, ListenOffer)>,
    /// Its joined connections, by line.
    pub records: Vec<(Line, Kept)>,
    /// What pairs among them have besides.
    pub pairs: BTreeMap<Line, KeptPair>,
    /// Lines whose content is impossible, by what is wrong with them.
    pub misfits: BTreeMap<Misfit, u64>,
}

/// The pinned maps of this build's program, by name, with their shapes.
#[derive(Debug, Default)]
pub(crate) struct Shapes(Vec<(String, Pinning, Shape)>);

/// The shape of a map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    kind: u32,
    key_bytes: u32,
    value_bytes: u32,
    flags: u32,
    /// Compared for optional maps only: the loader sets the size of most others.
    pub(crate) entries: u32,
}

impl Shape {
    fn of(one: &MapInfo) -> Result<Self, MapError> {
        Ok(Self {
            kind: one.map_type()? as u32,
            key_bytes: one.key_size(),
            value_bytes: one.value_size(),
            flags: one.map_flags(),
            entries: one.max_entries(),
        })
    }

    /// As an object file has it.
    pub(crate) fn of_object(map: &aya_obj::Map) -> Self {
        Self {
            kind: map.map_type(),
            key_bytes: map.key_size(),
            value_bytes: map.value_size(),
            flags: map.map_flags(),
            entries: map.max_entries(),
        }
    }

    /// Of the map that is pinned there.
    pub(crate) fn at(path: &Path) -> Option<Self> {
        let pinned = MapInfo::from_pin(path).ok()?;
        Self::of(&pinned).ok()
    }

    fn pinned(pins: &Pins, name: &str) -> Option<Self> {
        Self::at(&pins.map(name))
    }

    /// Equal, but for the number of entries.
    pub(crate) fn suits(&self, other: &Self) -> bool {
        let entries = self.entries;
        *self == Self { entries, ..*other }
    }
}

impl Shapes {
    /// Of the program in this build: from maps of one entry each, made for the purpose.
    pub(crate) fn of_this_build(mode: Mode, kind: &FlowTableKind) -> Result<Self, LoadError> {
        let object = object(mode, kind);
        if object.is_empty() {
            return Err(LoadError::NotBuiltIn);
        }
        let ebpf: Ebpf = EbpfLoader::new().load(object)?;
        let lasting = ebpf.maps().filter_map(|(name, map)| {
            let pinning = maps::pinning(name)?;
            (pinning != Pinning::Private).then_some((name, pinning, map))
        });
        let shapes = lasting.map(|(name, pinning, map)| {
            let shape = map_fd(map).ok_or(LoadError::Missing("map of a known kind"))?;
            Ok((name.to_owned(), pinning, Shape::of(&shape.info()?)?))
        });
        shapes.collect::<Result<_, LoadError>>().map(Self)
    }

    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(|(name, ..)| name.as_str())
    }

    /// Compares what is pinned with it. Optional maps may be missing or of another shape.
    fn check(&self, pins: &Pins) -> Result<(), LoadError> {
        let required = self.0.iter();
        let required = required.filter(|(_, pinning, _)| *pinning == Pinning::Required);
        // Of another kind of flow table other maps are missing, too.
        let (first, others): (Vec<_>, Vec<_>) = required.partition(|(name, ..)| name == "fl_flows");
        for (name, _, shape) in first.into_iter().chain(others) {
            let pinned = Shape::pinned(pins, name);
            if pinned.is_some_and(|pinned| pinned.suits(shape)) {
                continue;
            }
            let what = match pinned {
                Some(other) if name == "fl_flows" && other.kind != shape.kind => {
                    return Err(LoadError::OtherFlowTable);
                }
                Some(other)
                    if (other.key_bytes, other.value_bytes)
                        == (shape.key_bytes, shape.value_bytes) =>
                {
                    format!("{name} has another type or other flags")
                }
                Some(other) => format!(
                    "{name} has keys and values of {} and {} bytes, this build uses {} and {}",
                    other.key_bytes, other.value_bytes, shape.key_bytes, shape.value_bytes
                ),
                None => format!("{name} is missing"),
            };
            return Err(LoadError::OtherLayout(what));
        }
        Ok(())
    }

    /// Unpins optional maps of another shape, so that loading makes new ones. The program that is
    /// at work goes on with the old ones.
    pub(crate) fn drop_unsuited(&self, pins: &Pins) -> Result<(), LoadError> {
        for (name, pinning, shape) in &self.0 {
            let pinned = Shape::pinned(pins, name);
            if *pinning == Pinning::Optional && pinned.is_some_and(|pinned| pinned != *shape) {
                let removed = std::fs::remove_file(pins.map(name));
                removed.map_err(|error| LoadError::Pins(error.to_string()))?;
            }
        }
        Ok(())
    }
}

pub(crate) fn map_fd(map: &Map) -> Option<&MapData> {
    match map {
        Map::Array(one)
        | Map::HashMap(one)
        | Map::LruHashMap(one)
        | Map::PerCpuArray(one)
        | Map::PerCpuHashMap(one)
        | Map::RingBuf(one)
        | Map::PerfEventArray(one) => Some(one),
        _ => None,
    }
}

/// Opens a pinned map.
pub(crate) fn pinned(pins: &Pins, name: &str) -> Result<MapData, MapError> {
    MapData::from_pin(pins.map(name))
}

/// Reads what an earlier run of this instance left in `pins`, after it has taken back what that had
/// left to the program to join: what is found is all there will be. `None`: nothing, or nothing
/// that was ever in use; that is removed.
///
/// # Errors
/// [`LoadError::OtherLayout`] for maps of another layout or size than `records` lines,
/// [`LoadError::OtherNamespace`], and what the kernel refuses.
pub fn survey(
    pins: &Pins,
    records: u32,
    kind: &FlowTableKind,
) -> Result<Option<Remains>, LoadError> {
    let records = records.max(1);
    let shapes = Shapes::of_this_build(Mode::Tc, kind)?;
    let any = shapes.names().any(|name| pins.map(name).exists());
    let forget = || {
        let forgotten = pins.forget();
        forgotten.map_err(|error| LoadError::Pins(error.to_string()))?;
        Ok(None)
    };
    if !any && pins.links().is_empty() {
        return Ok(None);
    }
    if !pins.is_attached() {
        // It ended before it had begun, or its interfaces are gone.
        return forget();
    }
    // Before any advice to remove what cannot be taken over: there it may be in use.
    if namespace(pins).is_some_and(|there| there != network_namespace()) {
        let folder = pins.folder().display().to_string();
        return Err(LoadError::OtherNamespace(folder));
    }
    shapes.check(pins)?;
    let there = settings(pins)?;
    if there.version != LAYOUT_VERSION {
        let said = format!(
            "it has layout {}, this build has layout {LAYOUT_VERSION}",
            there.version
        );
        return Err(LoadError::OtherLayout(said));
    }
    let lines = pinned(pins, "fl_records")?;
    check_sizes(pins, &lines, &there, records, kind)?;
    if there.origin_ns > monotonic_ns() {
        return Err(LoadError::OtherLayout(
            "its clock is ahead of this machine's clock".into(),
        ));
    }
    let endpoint = |raw: RawEndpoint| Endpoint::from(raw);
    let endpoints = Endpoints {
        listens: entries(pins, "fl_listen_at", there.listens, endpoint)?,
        servers: entries(pins, "fl_server_at", there.servers, endpoint)?,
        nats: entries(pins, "fl_nat_at", there.nats, |raw: RawAddress| {
            Address::from(raw)
        })?,
    };
    let mut memory = RecordMemory::map(lines.fd().as_fd(), records as usize)?;
    memory.disarm_all();
    let (records, misfits) = read(&memory, &endpoints);
    Ok(Some(Remains {
        origin_ns: there.origin_ns,
        cookie: (there.cookie_k0, there.cookie_k1),
        offers: offers(pins)?,
        records,
        pairs: pairs::left(pins)?,
        misfits,
        endpoints,
    }))
}

type Read = (Vec<(Line, Kept)>, BTreeMap<Misfit, u64>);

fn read(memory: &RecordMemory, endpoints: &Endpoints) -> Read {
    let mut read = Read::default();
    for line in (0..memory.lines()).map(Line) {
        match adoption::read(&memory.bytes(line), endpoints) {
            Ok(None) => {}
            Ok(Some(kept)) => read.0.push((line, kept)),
            Err(misfit) => *read.1.entry(misfit).or_default() += 1,
        }
    }
    read
}

/// Ends the work of the program that an earlier run left, and gives its joined connections as they
/// are then: since [`survey`] some have ended. What else is pinned stays.
///
/// # Errors
/// What the kernel refuses; the program may go on then.
pub fn retire(pins: &Pins, endpoints: &Endpoints) -> Result<Vec<(Line, Kept)>, LoadError> {
    let lines = pinned(pins, "fl_records")?;
    let memory = RecordMemory::map(lines.fd().as_fd(), lines.info()?.max_entries() as usize)?;
    for link in pins.links() {
        pins::remove(&link)?;
    }
    Ok(read(&memory, endpoints).0)
}

/// True when what an instance has pinned is at work in another network namespace than the calling
/// thread's, whatever build has pinned it. Of a namespace that is gone, interfaces are gone, too,
/// but for those that were moved out of it, and network cards, which the machine gets back: nobody
/// can go there any more, and who asks is told what to do.
pub fn is_at_work_elsewhere(pins: &Pins) -> bool {
    let here = network_namespace();
    pins.is_attached() && namespace(pins).is_some_and(|there| there != here)
}

/// The network namespace in the settings that are pinned: where every layout that was ever pinned
/// has it, however long the rest is.
fn namespace(pins: &Pins) -> Option<u64> {
    let map = pinned(pins, "fl_settings").ok()?;
    let info = map.info().ok()?;
    if info.map_type().ok()? != MapType::Array || info.key_size() != 4 {
        return None;
    }
    // SAFETY: an array, whose values are as long as it says.
    let value = unsafe { sys::first_value(map.fd().as_fd(), info.value_size() as usize) }.ok()?;
    let bytes = value.get(offset_of!(RawSettings, netns)..)?;
    Some(u64::from_ne_bytes(*bytes.first_chunk()?))
}

/// Compares the sizes of the tables with those that are asked for.
fn check_sizes(
    pins: &Pins,
    lines: &MapData,
    there: &RawSettings,
    records: u32,
    kind: &FlowTableKind,
) -> Result<(), LoadError> {
    let count = lines.info()?.max_entries();
    let flows = pinned(pins, "fl_flows")?.info()?.max_entries();
    let too_few = !kind.evicts() && flows < kind.keys(records);
    if count != records || there.records != records || too_few {
        return Err(LoadError::OtherLayout(format!(
            "its table has {count} records, but `connections` in [limits] is {records}"
        )));
    }
    if kind.evicts() && flows != kind.keys(records) {
        return Err(LoadError::OtherLayout(format!(
            "its flow table has {flows} keys, but this configuration needs {}",
            kind.keys(records)
        )));
    }
    Ok(())
}

fn settings(pins: &Pins) -> Result<RawSettings, LoadError> {
    let map = Map::from_map_data(pinned(pins, "fl_settings")?)?;
    let map: Array<MapData, RawSettings> = map.try_into()?;
    Ok(map.get(&0, 0)?)
}

/// The first entries of an array, or all where it has fewer.
fn entries<R: Pod, T>(
    pins: &Pins,
    name: &str,
    count: u32,
    read: impl Fn(R) -> T,
) -> Result<Vec<T>, LoadError> {
    let map: Array<MapData, R> = Map::from_map_data(pinned(pins, name)?)?.try_into()?;
    let indices = 0..map.len().min(count);
    let all = indices.map(|index| Ok(read(map.get(&index, 0)?)));
    all.collect()
}

fn offers(pins: &Pins) -> Result<Vec<(Endpoint, ListenOffer)>, LoadError> {
    let map = Map::from_map_data(pinned(pins, "fl_listens")?)?;
    let map: HashMap<MapData, RawEndpoint, RawListen> = map.try_into()?;
    let limit = map.map().info()?.max_entries() as usize;
    let mut all = Vec::new();
    for entry in map.iter().take(limit) {
        let (listen, raw) = entry?;
        let has = |bit: u8| raw.flags & bit != 0;
        let terms = ListenOffer {
            listen: raw.index,
            mss: raw.mss,
            window: raw.window,
            // TCP has none above 14; what is not possible is not offered.
            window_scale: (raw.window_scale != NO_SCALE && raw.window_scale <= 14)
                .then_some(raw.window_scale),
            scale_parity: has(OFFER_SCALE_PARITY),
            sack: has(OFFER_SACK),
            timestamps: has(OFFER_TIMESTAMPS),
            answer: has(OFFER_ANSWER),
            await_client: has(OFFER_AWAIT_CLIENT),
            begin: has(OFFER_BEGIN),
            host: has(OFFER_HOST),
        };
        all.push((Endpoint::from(listen), terms));
    }
    Ok(all)
}
