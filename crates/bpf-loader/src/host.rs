//! Connections that become sockets of this machine: the programs of `bpf/fairlead_host.bpf.c`.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use aya::maps::{HashMap, MapData, MapError, PerCpuArray};
use aya::programs::links::{FdLink, PinnedLink};
use aya::programs::tc::{SchedClassifierLink, TcAttachOptions, TcAttachType};
use aya::programs::{LinkOrder, ProgramError, SchedClassifier};
use aya::{Btf, Ebpf, EbpfLoader, include_bytes_aligned};
use aya_obj::btf::BtfKind;
use fairlead_base::{Endpoint, FlowKey};
use fairlead_tcp::{HostTerms, Progress, Sleeper};

use crate::Counters;
use crate::answered::Answered;
use crate::clock::monotonic_ns;
use crate::filter::has_links;
use crate::hits::{AGAIN, HitMaps, SWEEP};
use crate::interfaces::interface_index;
use crate::kernel::{Kernel, LoadError, take};
use crate::lasting::{self, Former};
use crate::layout::{
    ASSIGN_REQUEST, HOST_FULL, HOST_PLAIN, HOST_WATCHED, RawEndpoint, RawFlowKey, RawGive, RawHost,
};
use crate::pins::{self, Pins};
use crate::sleep::{Lives, Shown, TakenOver};
use crate::sys;
use crate::unread::Unreads;

static HOST: &[u8] = include_bytes_aligned!(concat!(env!("OUT_DIR"), "/fairlead_host.o"));
/// At the interfaces.
const AT_INTERFACES: &str = "fairlead_host";
/// At the engine's device.
const AT_DEVICE: &str = "fairlead_give";
/// At the interfaces, for what leaves.
const AT_EGRESS: &str = "fairlead_leave";
/// `FL_BOUND_LISTENS`
const LISTENS_MAX: usize = 1_024;
/// So long segments that find no listener are dropped, where clients are to send them again: longer
/// than it takes the engine to know that nobody listens.
const AGAIN_NS: u64 = 1_000_000_000;
/// The kernel's function that makes a socket of a cookie (Linux 6.9).
const ASSIGN: &str = "bpf_sk_assign_tcp_reqsk";
const OPCODE_CALL: u8 = 0x85;
/// `BPF_PSEUDO_KFUNC_CALL`, where an instruction has its source register.
const KERNEL_FUNCTION: u8 = 2 << 4;

/// The programs, for as long as this is there, and longer where they are pinned.
pub struct HostPrograms {
    ebpf: Ebpf,
    pins: Option<Arc<Pins>>,
    links: BTreeMap<(&'static str, u32), SchedClassifierLink>,
    told: BTreeSet<Endpoint>,
    /// Where a socket listens that accepts nothing.
    full: BTreeSet<Endpoint>,
    /// What belongs to no socket is led to the engine's device.
    leads: bool,
    /// Where processes listen whose connections are watched.
    watched: BTreeSet<Endpoint>,
    counters: PerCpuArray<MapData, u64>,
    /// By listening endpoint where some requests are answered: where the front listens.
    fronts: BTreeMap<Endpoint, Endpoint>,
    answered: Answered,
    /// Maps that grow with connections, for their sizes.
    sized: Vec<(&'static str, OwnedFd)>,
}

impl core::fmt::Debug for HostPrograms {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let mut debug = f.debug_struct("HostPrograms");
        debug.field("told", &self.told).finish_non_exhaustive()
    }
}

/// What [`HostPrograms::forget`] has ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Forgotten {
    /// Connections that slept.
    pub asleep: u64,
    /// Connections whose requests the kernel answered: they were reset.
    pub answered: u64,
}

/// Where the engine announces what it is about to give, and finds who sleeps.
#[derive(Debug)]
pub struct Gives {
    map: HashMap<MapData, RawFlowKey, RawGive>,
    lives: Lives,
    unreads: Unreads,
    /// Those of an earlier run, in a map of another size.
    former: Option<Lives>,
    /// Those of an earlier run that could not be read.
    other_layout: u64,
    /// Connections that are not followed: there was no room.
    beyond_limit: u64,
}

impl Gives {
    /// Announces the segments of a client; with `progress` its connection may outlive its socket.
    /// False when the kernel does not take it.
    pub fn give(
        &mut self,
        client: &FlowKey,
        terms: &HostTerms,
        progress: Option<&Progress>,
    ) -> bool {
        let (client_scale, our_scale) = terms.scales.unwrap_or_default();
        let give = RawGive {
            listener: RawEndpoint::from(terms.listener),
            mss: terms.mss,
            scales: terms.scales.is_some().into(),
            client_scale,
            our_scale,
            sack: terms.sack.into(),
            timestamps: terms.timestamps.into(),
            pad: 0,
            first: terms.first,
            wait_until_ns: match terms.again {
                true => self.waits_until(client, terms.first, AGAIN_NS),
                false => 0,
            },
        };
        // In this order: whatever a killed process has left undone, the client's next segment finds
        // a listener or the engine.
        if self.map.insert(RawFlowKey::from(client), give, 0).is_err() {
            return false;
        }
        if let Some(progress) = progress
            && !self.lives.begin(client, give, progress)
        {
            self.beyond_limit += 1;
        }
        true
    }

    /// What is known of a connection that outlived its socket.
    pub fn sleeper(&self, client: &FlowKey) -> Option<Sleeper> {
        self.lives.sleeper(client)
    }

    /// Keeps a request that is about to be given, lest its socket leave it unread: a packet from
    /// its IP header on, and the numbers of its first byte and of the byte behind it. One that is
    /// too long is not kept.
    pub fn keep(&mut self, client: &FlowKey, numbers: (u32, u32), packet: &[u8]) {
        self.unreads.keep(client, numbers, packet);
    }

    /// The request that a sleeper's socket has left unread, if it is kept: a packet.
    pub fn unread(&self, client: &FlowKey) -> Option<Vec<u8>> {
        let sleeper = self.lives.sleeper(client)?;
        self.unreads.of(client, sleeper.client_nxt)
    }

    /// Announces a sleeper's next segments as [`Self::give`] does. Its old socket must be gone.
    pub fn wake(
        &mut self,
        client: &FlowKey,
        client_nxt: u32,
        method: [u8; 4],
        wait: Duration,
    ) -> bool {
        let Some((give, first)) = self.lives.given(client) else {
            return false;
        };
        let wait_ns = u64::try_from(wait.as_nanos()).unwrap_or(u64::MAX);
        let give = RawGive {
            first,
            wait_until_ns: self.waits_until(client, first, wait_ns),
            ..give
        };
        // In this order, as above.
        self.map.insert(RawFlowKey::from(client), give, 0).is_ok()
            && self.lives.wake(client, client_nxt, method)
    }

    /// How long segments that find nobody who listens are dropped: from the first time on that they
    /// were given.
    fn waits_until(&self, client: &FlowKey, first: u32, wait_ns: u64) -> u64 {
        let former = self.map.get(&RawFlowKey::from(client), 0).ok();
        let former = former.filter(|one| one.first == first && one.wait_until_ns > 0);
        let until = monotonic_ns().saturating_add(wait_ns);
        former.map_or(until, |one| one.wait_until_ns)
    }

    /// To whom a client's segments were given last, and how long they may still wait for somebody
    /// who listens there.
    pub fn waits_for(&self, client: &FlowKey) -> Option<(Endpoint, Duration)> {
        let give = self.map.get(&RawFlowKey::from(client), 0).ok()?;
        let left = give.wait_until_ns.saturating_sub(monotonic_ns());
        Some((Endpoint::from(give.listener), Duration::from_nanos(left)))
    }

    /// A sleeper is over.
    pub fn end(&mut self, client: &FlowKey) {
        self.lives.end(client);
    }

    /// How many connections there was no room for, so that they do not sleep.
    pub fn beyond_limit(&self) -> u64 {
        self.beyond_limit
    }

    /// The connections, for another thread.
    ///
    /// # Errors
    /// When there is no descriptor left.
    pub fn lives(&self) -> Result<Lives, MapError> {
        self.lives.another()
    }

    /// Goes on with the connections that an earlier run left; once, and after
    /// [`HostPrograms::set`]. `serves` says whether a listening endpoint has a route with `sleep`
    /// to a listener. Sleepers without one are over, and appended to `ended`.
    pub fn take_over(
        &mut self,
        serves: impl Fn(Endpoint, Endpoint) -> bool,
        ended: &mut Vec<(FlowKey, Sleeper)>,
    ) -> TakenOver {
        let former = self.former.take();
        let mut taken = self.lives.take_over(former, serves, ended);
        taken.other_layout += self.other_layout;
        taken
    }
}

/// Whether this kernel makes sockets of cookies; `None` where its functions cannot be read.
pub fn has_host_function() -> Option<bool> {
    let types = Btf::from_sys_fs().ok()?;
    Some(types.id_by_type_name_kind(ASSIGN, BtfKind::Func).is_ok())
}

impl HostPrograms {
    /// Loads the programs. `sleepers` is how many connections may sleep. They do nothing until
    /// [`Self::set`].
    ///
    /// # Errors
    /// [`LoadError::TooOld`] before Linux 6.9; what the kernel refuses elsewhere.
    pub fn load(pins: Option<Arc<Pins>>, sleepers: u32) -> Result<(Self, Gives, Shown), LoadError> {
        if HOST.is_empty() {
            return Err(LoadError::NotBuiltIn);
        }
        let types = Btf::from_sys_fs().map_err(aya::EbpfError::from)?;
        let number = types.id_by_type_name_kind(ASSIGN, BtfKind::Func);
        let number = number.map_err(|_| LoadError::TooOld("6.9"))?;
        if !has_links() {
            return Err(LoadError::TooOld("6.9"));
        }
        let object = with_function(HOST, number);
        let sleepers = sleepers.max(1);
        let mut loader = EbpfLoader::new();
        loader.btf(Some(&types));
        for map in ["fl_lives", "fl_responses", "fl_unreads"] {
            if let Some(entries) = lasting::entries_of(map, sleepers) {
                loader.map_max_entries(map, entries);
            }
        }
        let mut former = Former::default();
        if let Some(pins) = &pins {
            let parsed = aya_obj::Object::parse(HOST).map_err(aya::EbpfError::from)?;
            former = lasting::prepare(pins, &parsed, sleepers, &mut loader)?;
        }
        let mut ebpf = loader.load(&object)?;
        for name in [AT_INTERFACES, AT_DEVICE, AT_EGRESS, AGAIN, SWEEP] {
            program(&mut ebpf, name)?.load()?;
        }
        let sized = lasting::descriptors(&ebpf);
        let answered = Answered::of(&ebpf)?;
        let map = take(&mut ebpf, "fl_gives")?;
        let lives = Lives::new(take(&mut ebpf, "fl_lives")?);
        let unreads = Unreads::new(take(&mut ebpf, "fl_unreads")?);
        let ring = take(&mut ebpf, "fl_shown")?;
        let mut shown = Shown::new(ring, take(&mut ebpf, "fl_responses")?);
        if let Some(responses) = former.responses {
            shown.take_over(responses)?;
        }
        let gives = Gives {
            map,
            lives,
            unreads,
            former: former.lives.map(Lives::of_map).transpose()?,
            other_layout: former.other_layout,
            beyond_limit: 0,
        };
        let counters = take(&mut ebpf, "fl_host_counters")?;
        let this = Self {
            ebpf,
            pins,
            links: BTreeMap::new(),
            told: BTreeSet::new(),
            full: BTreeSet::new(),
            leads: false,
            watched: BTreeSet::new(),
            fronts: BTreeMap::new(),
            answered,
            counters,
            sized,
        };
        Ok((this, gives, shown))
    }

    /// Has requests to listening endpoints answered in the kernel, from the next [`Self::set`] on,
    /// and given to the front at the address beside each.
    ///
    /// # Errors
    /// When a descriptor cannot be had.
    pub fn answer(
        &mut self,
        fast_path: &Kernel,
        fronts: BTreeMap<Endpoint, Endpoint>,
    ) -> Result<HitMaps, LoadError> {
        let base = fast_path.base.as_ref();
        let base = base.ok_or(LoadError::Missing("fl_listens"))?;
        self.fronts.clone_from(&fronts);
        HitMaps::take(&mut self.ebpf, base, fronts)
    }

    /// Where connections came in whose requests an earlier run answered.
    pub fn answered_at(&self) -> BTreeSet<Endpoint> {
        self.answered.listens()
    }

    /// Resets connections whose requests an earlier run answered, and that have no front any more;
    /// after [`Self::set`]. How many.
    pub fn end_answered(&mut self) -> u64 {
        let mut all = self.answered.entries();
        all.retain(|(key, _)| !self.fronts.contains_key(&FlowKey::from(*key).dst));
        self.answered.reset(&self.ebpf, &all)
    }

    /// Leads what belongs to no socket to the engine's device, from the next [`Self::set`] on: the
    /// fast path would leave it to the stack.
    pub fn lead(&mut self) {
        self.leads = true;
    }

    /// Serves these listening endpoints, and no others, on these interfaces and the engine's
    /// device. Of more than 1,024 endpoints the last ones are left out.
    ///
    /// # Errors
    /// What the kernel refuses.
    pub fn set(
        &mut self,
        interfaces: &[String],
        device: &str,
        listens: &BTreeSet<Endpoint>,
        sleep: bool,
    ) -> Result<(), LoadError> {
        let map = self.ebpf.map_mut("fl_hosts");
        let map = map.ok_or(LoadError::Missing("fl_hosts"))?;
        let mut map: HashMap<&mut MapData, RawEndpoint, RawHost> = map.try_into()?;
        let all: BTreeSet<Endpoint> = listens.union(&self.watched).copied().collect();
        for gone in self.told.difference(&all) {
            let _ = map.remove(&RawEndpoint::from(*gone));
        }
        let engine = interface_index(device).unwrap_or(0);
        for endpoint in all.iter().take(LISTENS_MAX) {
            let kind = match endpoint {
                one if self.watched.contains(one) => HOST_WATCHED,
                one if self.full.contains(one) => HOST_FULL,
                _ => HOST_PLAIN,
            };
            let host = RawHost {
                hits: self.fronts.contains_key(endpoint).into(),
                kind,
                device: engine,
                leads: u32::from(self.leads),
            };
            map.insert(RawEndpoint::from(*endpoint), host, 0)?;
        }
        self.told = all;
        let at = |program| interfaces.iter().map(move |name| (program, name.as_str()));
        let leaving = at(AT_EGRESS).filter(|_| sleep);
        let places = at(AT_INTERFACES)
            .chain(leaving)
            .chain([(AT_DEVICE, device)]);
        let mut wanted = BTreeSet::new();
        for (name, interface) in places {
            let Some(index) = interface_index(interface) else {
                continue;
            };
            wanted.insert((name, index));
            if !self.links.contains_key(&(name, index)) {
                self.attach(name, interface, index)?;
            }
        }
        self.links.retain(|place, _| wanted.contains(place));
        let gone = self.pinned().into_iter();
        let is_wanted = |pin: &PathBuf| {
            let mut pins = wanted.iter().map(|(name, index)| self.pin_of(name, *index));
            pins.any(|one| one.as_ref() == Some(pin))
        };
        for (pin, _) in gone.filter(|(pin, _)| !is_wanted(pin)) {
            let _ = pins::remove(&pin);
        }
        Ok(())
    }

    /// At these endpoints processes of this machine listen whose connections may sleep, from the
    /// next [`Self::set`] on.
    pub fn set_watched(&mut self, endpoints: BTreeSet<Endpoint>) {
        self.watched = endpoints;
    }

    /// At these listening endpoints a socket listens that accepts nothing, from the next
    /// [`Self::set`] on.
    pub fn set_full(&mut self, endpoints: BTreeSet<Endpoint>) {
        self.full = endpoints;
    }

    /// Takes the programs off all interfaces, and forgets what they knew: an earlier run pinned
    /// them, this one does without.
    pub fn forget(pins: &Pins) -> Forgotten {
        for (pin, _) in pins.host_links() {
            let _ = pins::remove(&pin);
        }
        let answered = lasting::answered(pins).map_or_else(Vec::new, |all| all.entries());
        let reset = |(mut own, ..): (Self, Gives, Shown)| own.answered.reset(&own.ebpf, &answered);
        let answered = match answered.is_empty() {
            true => 0,
            false => Self::load(None, 0).map_or(0, reset),
        };
        Forgotten {
            asleep: lasting::forget(pins).unwrap_or(0),
            answered,
        }
    }

    /// Before all other programs: at the interfaces before the fast path, at the device before the
    /// program that sends what the engine sends.
    fn attach(&mut self, name: &'static str, interface: &str, index: u32) -> Result<(), LoadError> {
        let pin = self.pin_of(name, index);
        let way = match name {
            AT_EGRESS => TcAttachType::Egress,
            _ => TcAttachType::Ingress,
        };
        let program = program(&mut self.ebpf, name)?;
        if let Some(pin) = pin.as_deref().filter(|pin| pin.exists())
            && let Ok(link) = PinnedLink::from_pin(pin)
            && let Ok(link) = SchedClassifierLink::try_from(FdLink::from(link))
            && let Ok(link) = program.attach_to_link(link)
        {
            let link = program.take_link(link)?;
            self.links.insert((name, index), link);
            return Ok(());
        }
        let first = TcAttachOptions::TcxOrder(LinkOrder::first());
        let link = program.attach_with_options(interface, way, first)?;
        let link = program.take_link(link)?;
        let Some(pin) = pin else {
            self.links.insert((name, index), link);
            return Ok(());
        };
        // One of an interface that is gone, whose index has been given to another.
        let _ = std::fs::remove_file(&pin);
        let link = FdLink::try_from(link).map_err(|_| ProgramError::NotLoaded)?;
        let link = link
            .pin(&pin)
            .map_err(|error| LoadError::Pins(format!("{}: {error}", pin.display())))?;
        let link = SchedClassifierLink::try_from(FdLink::from(link));
        self.links
            .insert((name, index), link.map_err(|_| ProgramError::NotLoaded)?);
        Ok(())
    }

    fn pin_of(&self, name: &str, index: u32) -> Option<PathBuf> {
        let pins = self.pins.as_ref()?;
        Some(pins.host_link(index, name == AT_EGRESS))
    }

    /// What is pinned, and the interface of each by its index.
    fn pinned(&self) -> Vec<(PathBuf, u32)> {
        let pins = self.pins.iter().flat_map(|pins| pins.host_links());
        pins.collect()
    }

    /// A program at the interfaces: for what comes in, or for what leaves.
    pub(crate) fn at_interfaces(&self, leaves: bool) -> Result<&SchedClassifier, LoadError> {
        let name = if leaves { AT_EGRESS } else { AT_INTERFACES };
        let program = self.ebpf.program(name);
        Ok(program.ok_or(LoadError::Missing(name))?.try_into()?)
    }

    /// Adds what the programs have counted.
    pub fn add_to(&self, counters: &mut Counters) {
        if let Ok(own) = Counters::read(&self.counters) {
            counters.add_kernel(&own);
        }
        for (name, map) in &self.sized {
            let bytes = sys::map_bytes(map.as_fd());
            counters.map_bytes.insert((*name).to_owned(), bytes);
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

/// The object with the number of the kernel's function where it is called. An instruction is eight
/// bytes: the code, the registers, an offset, and a number.
fn with_function(object: &[u8], number: u32) -> Vec<u8> {
    let mut object = object.to_vec();
    for instruction in object.chunks_exact_mut(8) {
        let (head, called) = instruction.split_at_mut(4);
        if head == [OPCODE_CALL, 0, 0, 0] && called == ASSIGN_REQUEST.to_le_bytes() {
            head[1] = KERNEL_FUNCTION;
            called.copy_from_slice(&number.to_le_bytes());
        }
    }
    object
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_object_calls_the_kernels_function() {
        if HOST.is_empty() {
            eprintln!("skipped: this build has no kernel program");
            return;
        }
        let changed = with_function(HOST, 0x0123_4567);
        let differ = HOST
            .iter()
            .zip(&changed)
            .filter(|(one, other)| one != other);
        assert_eq!(
            differ.count(),
            2 * 5,
            "two calls: their kind, and their number"
        );
    }
}
