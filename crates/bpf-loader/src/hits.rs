//! Requests that the kernel answers from a cache: the maps that `bpf/lib/hits.h` shares with user
//! space, and its programs that user space runs.

use std::collections::BTreeMap;
use std::os::fd::{AsFd as _, OwnedFd};

use aya::Ebpf;
use aya::maps::{Array, HashMap, IterableMap as _, Map, MapData, MapError, Queue, RingBuf};
use aya::programs::SchedClassifier;
use fairlead_base::{Endpoint, FlowKey};
use fairlead_wire::http::plain_hash;

use crate::clock::monotonic_ns;
use crate::kernel::{LoadError, take};
use crate::layout::{
    HIT_BYTES, RawEndpoint, RawFlowKey, RawHit, RawHitEvent, RawHitListen, RawHitSettings,
    RawListen, RawObject, RawOffer, RawSettings,
};
use crate::sys;

pub(crate) const AGAIN: &str = "fairlead_again";
pub(crate) const SWEEP: &str = "fairlead_sweep";
/// Repairs between two sweeps, at most.
const LATE_MAX: usize = 1_024;
/// Events that are read at once, at most.
const EVENTS_MAX: usize = 65_536;

/// What these connections have in common with those of the fast path.
#[derive(Debug)]
pub struct HitBase {
    listens: OwnedFd,
    cookie: (u64, u64),
    origin_ns: u64,
}

impl HitBase {
    pub(crate) fn of(
        listens: &HashMap<MapData, RawEndpoint, RawListen>,
        cookie: (u64, u64),
        origin_ns: u64,
    ) -> Option<Self> {
        let listens = listens.map().fd().as_fd().try_clone_to_owned().ok()?;
        Some(Self {
            listens,
            cookie,
            origin_ns,
        })
    }

    fn another(&self) -> Result<Self, LoadError> {
        let listens = self.listens.try_clone().map_err(MapError::IoError)?;
        Ok(Self { listens, ..*self })
    }
}

/// A response that the kernel may send.
#[derive(Clone, Copy, Debug)]
pub struct HitObject<'a> {
    /// All of it: head and body.
    pub bytes: &'a [u8],
    /// Where ten bytes are free for the value of `Age`; a multiple of four.
    pub age_at: u16,
    /// The same for that of `Connection`.
    pub keep_at: u16,
    /// Its age now, nanoseconds.
    pub age_ns: u64,
}

/// A request that the kernel has answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HitEvent {
    /// The client's key.
    pub client: FlowKey,
    /// The object's number.
    pub object: u64,
    /// Bytes of the request.
    pub bytes_in: u64,
    /// Bytes of the answer.
    pub bytes_out: u64,
}

/// The maps, and the programs that user space runs.
pub struct HitMaps {
    base: HitBase,
    offered: HashMap<MapData, RawEndpoint, RawListen>,
    offers: HashMap<MapData, u64, RawOffer>,
    objects: HashMap<MapData, u64, RawObject>,
    listens: HashMap<MapData, RawEndpoint, RawHitListen>,
    pub(crate) connections: HashMap<MapData, RawFlowKey, RawHit>,
    settings: Array<MapData, RawHitSettings>,
    late: Queue<MapData, RawFlowKey>,
    events: RingBuf<MapData>,
    again: OwnedFd,
    sweep: OwnedFd,
    /// Where the front listens for clients of these.
    fronts: BTreeMap<Endpoint, Endpoint>,
    told: BTreeMap<Endpoint, RawHitListen>,
    epoch: u32,
    logs: bool,
    /// The number of the next object.
    next: u64,
}

impl core::fmt::Debug for HitMaps {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let mut debug = f.debug_struct("HitMaps");
        debug.field("fronts", &self.fronts).finish_non_exhaustive()
    }
}

impl HitMaps {
    /// Of programs that are loaded.
    pub(crate) fn take(
        ebpf: &mut Ebpf,
        base: &HitBase,
        fronts: BTreeMap<Endpoint, Endpoint>,
    ) -> Result<Self, LoadError> {
        let base = base.another()?;
        let offered = base.listens.try_clone().map_err(MapError::IoError)?;
        let offered = Map::from_map_data(MapData::from_fd(offered)?)?;
        let mut this = Self {
            offered: offered.try_into()?,
            base,
            offers: take(ebpf, "fl_offers")?,
            objects: take(ebpf, "fl_objects")?,
            listens: take(ebpf, "fl_hit_listens")?,
            connections: take(ebpf, "fl_hits")?,
            settings: take(ebpf, "fl_hit_settings")?,
            late: take(ebpf, "fl_hits_late")?,
            events: take(ebpf, "fl_hit_events")?,
            again: descriptor(ebpf, AGAIN)?,
            sweep: descriptor(ebpf, SWEEP)?,
            fronts,
            told: BTreeMap::new(),
            epoch: 1,
            logs: false,
            // No number of an earlier run, whose connections go on.
            next: monotonic_ns(),
        };
        this.settle()?;
        this.refresh();
        Ok(this)
    }

    fn settle(&mut self) -> Result<(), MapError> {
        let settings = RawHitSettings {
            base: RawSettings {
                cookie_k0: self.base.cookie.0,
                cookie_k1: self.base.cookie.1,
                origin_ns: self.base.origin_ns,
                ..RawSettings::default()
            },
            epoch: self.epoch,
            logs: self.logs.into(),
        };
        self.settings.set(0, settings, 0)
    }

    /// Has the program show each hit, or not.
    pub fn log(&mut self, logs: bool) {
        if logs != self.logs {
            self.logs = logs;
            // It is the same map as at the start.
            let _ = self.settle();
        }
    }

    /// Tells the program what is offered to clients of listening endpoints now.
    pub fn refresh(&mut self) {
        for (&listen, &front) in &self.fronts {
            let key = RawEndpoint::from(listen);
            let Ok(offered) = self.offered.get(&key, 0) else {
                continue;
            };
            let wanted = RawHitListen {
                listen: offered,
                front: front.into(),
            };
            if self.told.get(&listen) != Some(&wanted)
                && self.listens.insert(key, wanted, 0).is_ok()
            {
                self.told.insert(listen, wanted);
            }
        }
    }

    /// The number of requests with this head, as the program finds them; `None` for heads that it
    /// does not read.
    pub fn key(&self, listen: Endpoint, head: &[u8]) -> Option<u64> {
        let index = self.told.get(&listen)?.listen.index;
        plain_hash(head, index, self.base.cookie)
    }

    /// Makes a response known, and returns its number.
    ///
    /// # Errors
    /// Without room, or if it is too long.
    pub fn add(&mut self, object: &HitObject<'_>) -> Result<u64, MapError> {
        let number = self.next;
        let mut data = [0; HIT_BYTES];
        let Some(room) = data.get_mut(..object.bytes.len()) else {
            return Err(MapError::OutOfBounds {
                index: 0,
                max_entries: 0,
            });
        };
        room.copy_from_slice(object.bytes);
        let raw = RawObject {
            number,
            born_ns: monotonic_ns().wrapping_sub(object.age_ns),
            bytes: object.bytes.len() as u32,
            age_at: object.age_at,
            keep_at: object.keep_at,
            data,
        };
        self.objects.insert(number, raw, 0)?;
        self.next += 1;
        Ok(number)
    }

    /// Forgets a response: who is missing a part of it is reset.
    pub fn remove(&mut self, object: u64) {
        let _ = self.objects.remove(&object); // it was added, or never known
    }

    /// Has requests answered with a response for so long.
    ///
    /// # Errors
    /// Without room.
    pub fn offer(&mut self, key: u64, object: u64, fresh_ns: u64) -> Result<(), MapError> {
        let offer = RawOffer {
            object,
            fresh_until_ns: monotonic_ns().saturating_add(fresh_ns),
            hits: 0,
            bytes: 0,
            epoch: self.epoch,
            pad: 0,
        };
        self.offers.insert(key, offer, 0)
    }

    /// Has them answered no more.
    pub fn withdraw(&mut self, key: u64) {
        let _ = self.offers.remove(&key); // it was offered, or never known
    }

    /// How many requests were answered since the offer was made, and with how many bytes.
    pub fn hits(&self, key: u64) -> Option<(u64, u64)> {
        let offer = self.offers.get(&key, 0).ok()?;
        Some((offer.hits, offer.bytes))
    }

    /// Makes all offers void for the next packet.
    ///
    /// # Errors
    /// When the kernel refuses it.
    pub fn purge(&mut self) -> Result<(), MapError> {
        self.epoch = self.epoch.wrapping_add(1);
        self.settle()
    }

    /// The hits since the last call.
    pub fn events(&mut self) -> Vec<HitEvent> {
        let mut events = Vec::new();
        while events.len() < EVENTS_MAX
            && let Some(item) = self.events.next()
        {
            if let Some(event) = event_of(&item) {
                events.push(event);
            }
        }
        events
    }

    /// Forgets connections that are over, and sends once more what clients are missing. To be
    /// called every 100 ms or so. How many were sent something.
    ///
    /// # Errors
    /// When the kernel does not run the program.
    pub fn tend(&mut self) -> std::io::Result<usize> {
        sys::run_program(self.sweep.as_fd(), &[0; 64], 0)?;
        let mut sent = 0;
        while sent < LATE_MAX
            && let Ok(key) = self.late.pop(0)
        {
            sent += 1;
            if let Ok(hit) = self.connections.get(&key, 0) {
                // A connection that ends meanwhile needs nothing, nor one whose interface is gone.
                let _ = sys::run_program(self.again.as_fd(), &frame_of(&key, &hit), hit.ifindex);
            }
        }
        Ok(sent)
    }

    /// How many connections are answered here, `most` at most.
    pub fn connections(&self, most: usize) -> usize {
        self.connections.keys().take(most).flatten().count()
    }
}

pub(crate) fn descriptor(ebpf: &Ebpf, name: &'static str) -> Result<OwnedFd, LoadError> {
    let program = ebpf.program(name).ok_or(LoadError::Missing(name))?;
    let program: &SchedClassifier = program.try_into()?;
    let fd = program.fd()?.as_fd().try_clone_to_owned();
    Ok(fd.map_err(MapError::IoError)?)
}

fn event_of(bytes: &[u8]) -> Option<HitEvent> {
    if bytes.len() < size_of::<RawHitEvent>() {
        return None;
    }
    // SAFETY: as many bytes as the structure has, which is one of numbers.
    let raw: RawHitEvent = unsafe { bytes.as_ptr().cast::<RawHitEvent>().read_unaligned() };
    Some(HitEvent {
        client: FlowKey::from(raw.client),
        object: raw.object,
        bytes_in: raw.bytes_in.into(),
        bytes_out: raw.bytes_out,
    })
}

/// A segment as it would come from a client that acknowledges what it has: the program makes what
/// is missing of it. Its checksum is that of the pseudo-header, as of one that is yet to be made.
pub(crate) fn frame_of(key: &RawFlowKey, hit: &RawHit) -> Vec<u8> {
    const TCP_BYTES: u16 = 20;
    let key = FlowKey::from(*key);
    let mut frame = hit.link.to_vec();
    let (src, dst) = (key.src.addr.to_ip(), key.dst.addr.to_ip());
    let mut sum = u32::from(TCP_BYTES) + 6;
    let mut add = |bytes: &[u8]| {
        for pair in bytes.chunks_exact(2) {
            sum += u32::from(u16::from_be_bytes([pair[0], pair[1]]));
        }
    };
    match (src, dst) {
        (std::net::IpAddr::V4(src), std::net::IpAddr::V4(dst)) => {
            frame.extend([0x08, 0, 0x45, 0]);
            frame.extend((20 + TCP_BYTES).to_be_bytes());
            frame.extend([0, 0, 0x40, 0, 64, 6, 0, 0]);
            for address in [src.octets(), dst.octets()] {
                frame.extend(address);
                add(&address);
            }
        }
        _ => {
            frame.extend([0x86, 0xdd, 0x60, 0, 0, 0]);
            frame.extend(TCP_BYTES.to_be_bytes());
            frame.extend([6, 64]);
            for address in [key.src.addr.0, key.dst.addr.0] {
                frame.extend(address);
                add(&address);
            }
        }
    }
    let fold = |sum: u32| (sum & 0xffff) + (sum >> 16);
    let open = fold(fold(sum)) as u16;
    frame.extend(key.src.port.to_be_bytes());
    frame.extend(key.dst.port.to_be_bytes());
    frame.extend(hit.rcv_nxt.to_be_bytes());
    frame.extend(hit.acked.to_be_bytes());
    frame.extend([5 << 4, 16, 0xff, 0xff]);
    frame.extend(open.to_be_bytes());
    frame.extend([0, 0]);
    frame
}
