//! Steering at a card of offloaded connections: `bpf/fairlead_offload.bpf.c` on the devices of the
//! card's network namespace. The programs stay there when their loader ends, and go with the
//! devices.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use aya::maps::{Array, HashMap, Map, MapData, MapError, PerCpuArray};
use aya::programs::tc::{NlOptions, TcAttachOptions, TcAttachType, qdisc_add_clsact};
use aya::programs::{ProgramError, SchedClassifier};
use aya::{EbpfLoader, include_bytes_aligned};
use fairlead_base::Endpoint;

use crate::clock::monotonic_ns;
use crate::interfaces::interface_index;
use crate::kernel::LoadError;
use crate::pins::{self, PinsError, ROOT};

static OFFLOAD: &[u8] = include_bytes_aligned!(concat!(env!("OUT_DIR"), "/fairlead_offload.o"));
const MOVING: &str = "fl_offload_moving";
const GIVEN: &str = "fl_offload_given";
const COUNTS: &str = "fl_offload_counts";

/// How long what comes for a connection on its way is held, at most.
pub const LEASE: Duration = Duration::from_secs(1);

/// What the programs have counted, in packets.
const NAMES: [&str; 10] = [
    "to_card",
    "to_host",
    "held",
    "not_sent",
    "from_host",
    "from_card",
    "stale",
    "reborn_syn",
    "old_syn",
    "given_up",
];

/// `struct fl_offload_way`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
struct RawWay {
    src: [u8; 16],
    dst: [u8; 16],
    src_port: [u8; 2],
    dst_port: [u8; 2],
}

const _: () = assert!(size_of::<RawWay>() == 36);

// SAFETY: plain old bytes without padding, for which every bit pattern is a value.
unsafe impl aya::Pod for RawWay {}

impl RawWay {
    fn of(peer: Endpoint, local: Endpoint) -> Self {
        Self {
            src: peer.addr.0,
            dst: local.addr.0,
            src_port: peer.port.to_be_bytes(),
            dst_port: local.port.to_be_bytes(),
        }
    }
}

/// The devices of a card, by name.
#[derive(Clone, Copy, Debug)]
pub struct CardDevices<'a> {
    /// Towards the network.
    pub wire: &'a str,
    /// Towards the host.
    pub host: &'a str,
    /// The TUN device for held packets.
    pub hold: &'a str,
}

fn folder(card: &str) -> PathBuf {
    Path::new(ROOT).join(format!("fairlead-offload-{card}"))
}

fn pinned(map: &str, card: &str) -> Result<Map, LoadError> {
    let map_at = MapData::from_pin(folder(card).join(map))?;
    Ok(match map {
        MOVING => Map::HashMap(map_at),
        GIVEN => Map::LruHashMap(map_at),
        _ => Map::PerCpuArray(map_at),
    })
}

/// Attaches the programs to the devices of this thread's network namespace, and pins their maps
/// under the card's name.
///
/// # Errors
/// What the kernel refuses.
pub fn steer(card: &str, devices: CardDevices<'_>) -> Result<(), LoadError> {
    if OFFLOAD.is_empty() {
        return Err(LoadError::NotBuiltIn);
    }
    let mounted = pins::mount().map_err(PinsError::NoFileSystem);
    mounted.map_err(|error| LoadError::Pins(error.to_string()))?;
    let mut ebpf = EbpfLoader::new().load(OFFLOAD)?;
    let index = |name: &str| interface_index(name).unwrap_or(0);
    let numbers = [
        index(devices.wire),
        index(devices.host),
        index(devices.hold),
        0,
    ];
    let map = ebpf.map_mut("fl_offload_devices");
    let map = map.ok_or(LoadError::Missing("fl_offload_devices"))?;
    let mut map: Array<&mut MapData, [u32; 4]> = map.try_into()?;
    map.set(0, numbers, 0)?;
    let places = [
        ("fl_offload_in", devices.wire, TcAttachType::Ingress),
        ("fl_offload_out", devices.wire, TcAttachType::Egress),
        ("fl_offload_host", devices.host, TcAttachType::Ingress),
    ];
    for (name, device, way) in places {
        let program = ebpf.program_mut(name).ok_or(LoadError::Missing(name))?;
        let program: &mut SchedClassifier = program.try_into()?;
        program.load()?;
        attach(program, device, way)?;
    }
    let folder = folder(card);
    let in_the_way = |error: io::Error| MapError::IoError(error);
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir(&folder).map_err(in_the_way)?;
    for name in [MOVING, GIVEN, COUNTS] {
        let map = ebpf.map(name).ok_or(LoadError::Missing(name))?;
        let pinned = map.pin(folder.join(name));
        pinned.map_err(|error| MapError::IoError(io::Error::other(error)))?;
    }
    Ok(())
}

/// As a filter: a link would end with this process.
fn attach(
    program: &mut SchedClassifier,
    device: &str,
    way: TcAttachType,
) -> Result<(), ProgramError> {
    // It may be there already.
    let _ = qdisc_add_clsact(device);
    let options = TcAttachOptions::Netlink(NlOptions {
        priority: 1,
        ..NlOptions::default()
    });
    let id = program.attach_with_options(device, way, options)?;
    // The filter goes with its device, not with this process.
    std::mem::forget(program.take_link(id)?);
    Ok(())
}

/// Removes what [`steer`] has pinned.
///
/// # Errors
/// What the system says.
pub fn forget_card(card: &str) -> io::Result<()> {
    match std::fs::remove_dir_all(folder(card)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

/// Connections on their way between the host and a card.
#[derive(Debug)]
pub struct Moving {
    moving: HashMap<MapData, RawWay, u64>,
    /// Those that the card has given back.
    given: HashMap<MapData, RawWay, u64>,
}

impl Moving {
    /// That of a card which has been set up.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn of(card: &str) -> Result<Self, LoadError> {
        Ok(Self {
            moving: pinned(MOVING, card)?.try_into()?,
            given: pinned(GIVEN, card)?.try_into()?,
        })
    }

    /// From now on what comes for this connection is held, and what it sends is dropped, for
    /// [`LEASE`] at most.
    ///
    /// # Errors
    /// What the kernel says; the map is full.
    pub fn lock(&mut self, peer: Endpoint, local: Endpoint) -> Result<(), LoadError> {
        let way = RawWay::of(peer, local);
        Ok(self.moving.insert(way, monotonic_ns(), 0)?)
    }

    /// The connection has arrived.
    pub fn unlock(&mut self, peer: Endpoint, local: Endpoint) {
        // If it cannot be removed, its lease ends.
        let _ = self.moving.remove(&RawWay::of(peer, local));
    }

    /// The card has the connection, and may speak for it.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn take(&mut self, peer: Endpoint, local: Endpoint) -> Result<(), LoadError> {
        match self.given.remove(&RawWay::of(peer, local)) {
            Err(MapError::SyscallError(error))
                if error.io_error.kind() == io::ErrorKind::NotFound =>
            {
                Ok(())
            }
            other => Ok(other?),
        }
    }

    /// The connection has arrived at the host: whatever the card's stack says from now on is not
    /// sent.
    pub fn give(&mut self, peer: Endpoint, local: Endpoint) {
        // It is a precaution: the oldest entries go, where there are too many.
        let _ = self
            .given
            .insert(RawWay::of(peer, local), monotonic_ns(), 0);
        self.unlock(peer, local);
    }
}

/// What the programs of a card have counted.
///
/// # Errors
/// What the kernel says.
pub fn card_counts(card: &str) -> Result<Vec<(&'static str, u64)>, LoadError> {
    let map: PerCpuArray<MapData, u64> = pinned(COUNTS, card)?.try_into()?;
    let mut counts = Vec::new();
    for (at, name) in NAMES.iter().enumerate() {
        let values = map.get(&(at as u32), 0)?;
        counts.push((*name, values.iter().sum()));
    }
    Ok(counts)
}
