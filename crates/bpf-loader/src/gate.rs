//! The gate of connections that a proxy hands off: what becomes of their packets on the way in.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;

use aya::maps::{Array, HashMap, MapData};
use aya::programs::tc::{SchedClassifierLink, TcAttachOptions, TcAttachType};
use aya::programs::{LinkOrder, SchedClassifier};
use aya::{Ebpf, EbpfLoader, include_bytes_aligned};
use fairlead_base::FlowKey;

use crate::attach::hold;
use crate::filter::has_links;
use crate::interfaces::{ethernet_interfaces, interface_index};
use crate::kernel::LoadError;
use crate::layout::RawFlowKey;
use crate::pins::Pins;

static PAIR: &[u8] = include_bytes_aligned!(concat!(env!("OUT_DIR"), "/fairlead_pair.o"));
/// Before the fast path, and behind it.
const PROGRAMS: [&str; 2] = ["fairlead_pair", "fairlead_lead"];
const MAP: &str = "fl_gates";
const LOCKS: &str = "fl_locks";

/// What becomes of packets with a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gate {
    /// Segments with data, a SYN or a FIN are dropped until this time, ns of
    /// [`crate::monotonic_ns`]. Acknowledgements pass.
    Acks(u64),
    /// All are dropped until this time.
    Shut(u64),
    /// What the fast path leaves goes to the engine.
    Engine,
}

/// What a gate has seen while it was not open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GateSeen {
    /// The sender's last timestamp, and the number of the segment that carried it.
    pub stamp: Option<(u32, u32)>,
    /// The furthest that the sender has acknowledged.
    pub heard: Option<Heard>,
    /// Packets dropped.
    pub dropped: u32,
}

/// An acknowledgement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Heard {
    /// The number that it acknowledges.
    pub ack: u32,
    /// The number of the segment that carried it.
    pub seq: u32,
    /// The window beside it, as it was sent.
    pub window: u16,
}

/// `struct fl_gate`, in words.
type RawGate = [u32; 12];

/// `struct fl_flow_key`, in words.
type RawKey = [u32; 9];

/// The programs of `bpf/fairlead_pair.bpf.c` on all Ethernet interfaces of this namespace but not
/// on the engine's device, for as long as this is there, or pinned.
#[derive(Debug)]
pub struct Gates {
    ebpf: Ebpf,
    /// The engine's device.
    device: u32,
    /// None where they are pinned.
    links: BTreeMap<u32, Option<[SchedClassifierLink; 2]>>,
    /// Where they outlive this process.
    pins: Option<Arc<Pins>>,
    /// What an earlier run has pinned.
    earlier: Vec<PathBuf>,
    /// Keys whose packets are held up.
    locked: BTreeSet<FlowKey>,
}

impl Gates {
    /// Loads the program for the engine's device with this index. Where there are `pins` it
    /// outlives this process, so that packets of handed-off connections never reach the stack.
    /// That of an earlier run goes on besides, until [`Self::take_place`].
    ///
    /// # Errors
    /// [`LoadError::TooOld`] before Linux 6.6, where a program could stay behind; what the kernel
    /// refuses elsewhere.
    pub fn load(device: u32, pins: Option<Arc<Pins>>) -> Result<Self, LoadError> {
        if PAIR.is_empty() {
            return Err(LoadError::NotBuiltIn);
        }
        if !has_links() {
            return Err(LoadError::TooOld("6.6"));
        }
        let mut ebpf = EbpfLoader::new().load(PAIR)?;
        for name in PROGRAMS {
            program(&mut ebpf, name)?.load()?;
        }
        Ok(Self {
            ebpf,
            device,
            links: BTreeMap::new(),
            earlier: pins.iter().flat_map(|pins| pins.gates()).collect(),
            pins,
            locked: BTreeSet::new(),
        })
    }

    /// Attaches the program to interfaces that are new since the last call.
    ///
    /// # Errors
    /// What the kernel refuses, if it is on no interface then.
    pub fn attach(&mut self) -> Result<(), LoadError> {
        let names = ethernet_interfaces().unwrap_or_default();
        let with_index = |name: String| Some((interface_index(&name)?, name));
        let here: BTreeMap<u32, String> = names.into_iter().filter_map(with_index).collect();
        self.links.retain(|index, _| here.contains_key(index));
        let mut failed = None;
        for (index, name) in here {
            if index == self.device || self.links.contains_key(&index) {
                continue;
            }
            let first = self.attach_one(0, &name, LinkOrder::first());
            let both = first.and_then(|a| Ok([a, self.attach_one(1, &name, LinkOrder::last())?]));
            match both {
                Ok(links) => {
                    let links = match &self.pins {
                        Some(pins) => Self::pin(pins, index, links).map(|()| None)?,
                        None => Some(links),
                    };
                    self.links.insert(index, links);
                }
                Err(error) => failed = Some(error), // it may have gone meanwhile
            }
        }
        match failed {
            Some(error) if self.links.is_empty() => Err(error),
            _ => Ok(()),
        }
    }

    fn pin(pins: &Pins, interface: u32, links: [SchedClassifierLink; 2]) -> Result<(), LoadError> {
        let process = std::process::id();
        for (which, link) in (0..).zip(links) {
            // A name that no earlier run has used for a link that is still there.
            let serial = (0..).map(|n| pins.gate(which, interface, process, n));
            let path = serial.into_iter().find(|path| !path.exists());
            hold(link, &path.ok_or(LoadError::Missing("name for a link"))?)?;
        }
        Ok(())
    }

    /// Ends what an earlier run has left at the interfaces: all gates that it had are set here.
    pub fn take_place(&mut self) {
        for link in self.earlier.drain(..) {
            let _ = std::fs::remove_file(link);
        }
    }

    fn attach_one(
        &mut self,
        which: usize,
        name: &str,
        order: LinkOrder,
    ) -> Result<SchedClassifierLink, LoadError> {
        let program = program(&mut self.ebpf, PROGRAMS[which])?;
        let by_link = TcAttachOptions::TcxOrder(order);
        let link = program.attach_with_options(name, TcAttachType::Ingress, by_link)?;
        Ok(program.take_link(link)?)
    }

    /// Says how many gates hold packets up: before the first does, and after the last.
    fn count_locks(&mut self) -> Result<(), LoadError> {
        let map = self.ebpf.map_mut(LOCKS).ok_or(LoadError::Missing(LOCKS))?;
        let mut map: Array<&mut MapData, u32> = map.try_into()?;
        Ok(map.set(0, self.locked.len() as u32, 0)?)
    }

    /// Sets what becomes of packets with this key. What was seen before is forgotten, unless the
    /// gate is closed further.
    ///
    /// # Errors
    /// What the kernel refuses: the map is full.
    pub fn set(&mut self, key: &FlowKey, gate: Gate) -> Result<(), LoadError> {
        let device = self.device;
        if gate != Gate::Engine && self.locked.insert(*key) {
            self.count_locks()?;
        }
        let mut map = map(&mut self.ebpf)?;
        let whose = key;
        let key: RawKey = RawFlowKey::from(key).words();
        let (mode, until) = match gate {
            Gate::Acks(until) => (1, until),
            Gate::Shut(until) => (2, until),
            Gate::Engine => (3, 0),
        };
        let before = match mode {
            2 => map.get(&key, 0).unwrap_or_default(),
            _ => RawGate::default(),
        };
        let [low, high] = halves(until);
        let mut value = before;
        value[..4].copy_from_slice(&[mode, device, low, high]);
        map.insert(key, value, 0)?;
        if gate == Gate::Engine && self.locked.remove(whose) {
            self.count_locks()?;
        }
        Ok(())
    }

    /// What was seen at a gate.
    ///
    /// # Errors
    /// What the kernel refuses: no such gate.
    pub fn seen(&mut self, key: &FlowKey) -> Result<GateSeen, LoadError> {
        let map = map(&mut self.ebpf)?;
        let words = map.get(&RawFlowKey::from(key).words(), 0)?;
        let [
            ..,
            stamp,
            seq,
            stamped,
            dropped,
            ack,
            ack_seq,
            window,
            acked,
        ] = words;
        let heard = Heard {
            ack,
            seq: ack_seq,
            window: window as u16,
        };
        Ok(GateSeen {
            stamp: (stamped != 0).then_some((stamp, seq)),
            heard: (acked != 0).then_some(heard),
            dropped,
        })
    }

    /// Opens a gate: packets are the stack's again.
    pub fn open(&mut self, key: &FlowKey) {
        if let Ok(mut map) = map(&mut self.ebpf) {
            let _ = map.remove(&RawFlowKey::from(key).words());
        }
        if self.locked.remove(key) {
            let _ = self.count_locks();
        }
    }
}

fn program<'a>(
    ebpf: &'a mut Ebpf,
    name: &'static str,
) -> Result<&'a mut SchedClassifier, LoadError> {
    let program = ebpf.program_mut(name);
    Ok(program.ok_or(LoadError::Missing(name))?.try_into()?)
}

fn map(ebpf: &mut Ebpf) -> Result<HashMap<&mut MapData, RawKey, RawGate>, LoadError> {
    let map = ebpf.map_mut(MAP);
    Ok(map.ok_or(LoadError::Missing(MAP))?.try_into()?)
}

/// A word of 64 bits as two of 32, in the order in which they lie in memory.
fn halves(long: u64) -> [u32; 2] {
    let [a, b, c, d, e, f, g, h] = long.to_ne_bytes();
    [[a, b, c, d], [e, f, g, h]].map(u32::from_ne_bytes)
}
