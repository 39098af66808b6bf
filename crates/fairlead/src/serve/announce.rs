//! Answers ARP and neighbour solicitations for listening addresses, on a thread of its own, and
//! looks which of them are addresses of this machine.
//!
//! Only while the switch is healthy: an address that is answered for while nobody serves it would
//! keep clients from another machine that does.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv6Addr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use fairlead_announce::{Announcer, Event, Hardware, Place, State};
use fairlead_base::{Address, Instant, Seed};
use fairlead_driver_tun::net::{self, Subnet};
use fairlead_driver_tun::{NEIGHBOURS_WAIT_MAX, Neighbours};
use fairlead_survey::{Link, links};

use crate::admin::{AnnouncedStatus, Health, Shared};
use crate::config::Settings;

/// How often addresses and interfaces are looked at.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// The longest wait, so that an end of the switch is noticed.
const WAIT_MAX: Duration = Duration::from_millis(100);

/// Frames handled between two looks at the clock.
const FRAMES_AT_ONCE: usize = 256;

/// What others see of it.
#[derive(Debug, Default)]
pub(super) struct Seen {
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    announced: Vec<AnnouncedStatus>,
    conflicts: u64,
    local: BTreeSet<IpAddr>,
}

impl Seen {
    fn with<T>(&self, then: impl FnOnce(&mut Inner) -> T) -> T {
        then(&mut self.inner.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Addresses in the subnets of this machine's interfaces, and what is done about them.
    pub(super) fn announced(&self) -> Vec<AnnouncedStatus> {
        self.with(|inner| inner.announced.clone())
    }

    /// Conflicts with other machines.
    pub(super) fn conflicts(&self) -> u64 {
        self.with(|inner| inner.conflicts)
    }

    /// Listening addresses that this machine has itself.
    pub(super) fn local(&self) -> BTreeSet<IpAddr> {
        self.with(|inner| inner.local.clone())
    }
}

/// The thread. Dropping it ends it; the addresses are answered for no more.
#[derive(Debug)]
pub(super) struct AnnounceThread {
    seen: Arc<Seen>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl AnnounceThread {
    /// Starts it. Without the thread nothing is announced, which is logged.
    pub(super) fn start(settings: &Settings, shared: &Arc<Shared>, seed: Seed) -> Self {
        let (seen, stop) = (Arc::<Seen>::default(), Arc::<AtomicBool>::default());
        let mut worker = Worker {
            listen: listen_addresses(settings),
            interfaces: settings.instance.announce_interfaces.clone(),
            device: settings.network.device.clone(),
            shared: Arc::clone(shared),
            seen: Arc::clone(&seen),
            announcer: Announcer::new(settings.instance.announce_repeat, seed),
            sockets: Vec::new(),
            opened: BTreeMap::new(),
            names: BTreeMap::new(),
            failing: String::new(),
            started: std::time::Instant::now(),
        };
        let stopped = Arc::clone(&stop);
        let thread = std::thread::Builder::new().name("announce".to_owned());
        let thread = thread
            .spawn(move || worker.run(&stopped))
            .inspect_err(|error| tracing::warn!("addresses are not announced: {error}"))
            .ok();
        Self { seen, stop, thread }
    }

    /// What it has found.
    pub(super) fn seen(&self) -> &Seen {
        &self.seen
    }
}

impl Drop for AnnounceThread {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn listen_addresses(settings: &Settings) -> BTreeSet<IpAddr> {
    let services = settings.switch.services.iter();
    let listen = services.flat_map(|service| &service.listen);
    listen.map(|endpoint| endpoint.addr.to_ip()).collect()
}

struct Worker {
    listen: BTreeSet<IpAddr>,
    interfaces: Vec<String>,
    device: String,
    shared: Arc<Shared>,
    seen: Arc<Seen>,
    announcer: Announcer,
    sockets: Vec<Neighbours>,
    /// What the sockets are for: the addresses of each interface.
    opened: BTreeMap<u32, Vec<IpAddr>>,
    names: BTreeMap<u32, String>,
    /// The last failure that was logged.
    failing: String,
    started: std::time::Instant,
}

impl Worker {
    fn run(&mut self, stop: &AtomicBool) {
        let (mut look_at, mut was_on) = (Instant::ZERO, false);
        let mut frame = Vec::new();
        while !stop.load(Ordering::Relaxed) {
            let now = self.now();
            let is_on = self.shared.announces() && self.shared.health() == Health::Ok;
            if now >= look_at || is_on != was_on {
                was_on = is_on;
                look_at = now + LOOK_INTERVAL;
                self.look(now, is_on);
            }
            self.announcer.handle_timeout(now);
            self.transmit();
            self.publish();
            let due = self
                .announcer
                .poll_timeout()
                .unwrap_or(look_at)
                .min(look_at);
            let wait = due.since(self.now()).min(WAIT_MAX);
            if let Err(error) = Neighbours::wait(&self.sockets, wait) {
                self.fail(&error.to_string());
                std::thread::sleep(WAIT_MAX);
            }
            self.receive(&mut frame);
        }
    }

    fn now(&self) -> Instant {
        Instant::ZERO + self.started.elapsed()
    }

    /// Looks which addresses are in a subnet of which interface, and which are this machine's.
    fn look(&mut self, now: Instant, is_on: bool) {
        let found = net::subnets().map_err(|error| error.to_string());
        let found = found.and_then(|subnets| {
            let links = links().map_err(|error| error.to_string())?;
            Ok((subnets, links))
        });
        let (subnets, links) = match found {
            Ok(found) => found,
            Err(why) => return self.fail(&why),
        };
        let own: BTreeSet<IpAddr> = subnets.iter().map(|subnet| subnet.address).collect();
        let local = self.listen.intersection(&own).copied().collect();
        self.seen.with(|inner| inner.local = local);
        self.names = links
            .iter()
            .map(|link| (link.index, link.name.clone()))
            .collect();
        let mut wanted = BTreeMap::new();
        if is_on {
            wanted = self.wanted(&subnets, &links, &own);
        }
        self.open(&wanted);
        let is_open = |place: &Place| {
            self.sockets
                .iter()
                .any(|one| one.interface() == place.interface)
        };
        wanted.retain(|place, _| is_open(place));
        self.announcer.set_wanted(now, &wanted);
    }

    fn wanted(
        &self,
        subnets: &[Subnet],
        links: &[Link],
        own: &BTreeSet<IpAddr>,
    ) -> BTreeMap<Place, Hardware> {
        let mut wanted = BTreeMap::new();
        for subnet in subnets {
            let link = links.iter().find(|link| link.index == subnet.interface);
            let Some(link) = link.filter(|link| self.may_announce_on(link)) else {
                continue;
            };
            let Some(hardware) = link.address else {
                continue;
            };
            for address in self.listen.iter().filter(|one| !own.contains(one)) {
                if subnet.contains(*address) {
                    let place = Place {
                        address: Address::from(*address),
                        interface: link.index,
                    };
                    wanted.insert(place, hardware);
                }
            }
        }
        wanted
    }

    fn may_announce_on(&self, link: &Link) -> bool {
        let named = self.interfaces.is_empty() || self.interfaces.contains(&link.name);
        // A member of a bridge or bond speaks by that.
        let speaks = link.is_up && link.is_ethernet && !link.is_loopback;
        named && speaks && link.controller.is_none() && link.name != self.device
    }

    /// Opens sockets where addresses are wanted, anew where others are.
    fn open(&mut self, wanted: &BTreeMap<Place, Hardware>) {
        let mut of: BTreeMap<u32, Vec<IpAddr>> = BTreeMap::new();
        for place in wanted.keys() {
            of.entry(place.interface)
                .or_default()
                .push(place.address.to_ip());
        }
        let unchanged = |one: &Neighbours| {
            of.get(&one.interface()) == self.opened.get(&one.interface())
                && of.contains_key(&one.interface())
        };
        self.sockets.retain(unchanged);
        self.opened = of;
        let mut failed = Vec::new();
        for (interface, addresses) in &self.opened {
            if self.sockets.iter().any(|one| one.interface() == *interface) {
                continue;
            }
            if self.sockets.len() >= NEIGHBOURS_WAIT_MAX / 2 {
                failed.push(format!("more than {} interfaces", NEIGHBOURS_WAIT_MAX / 2));
                break;
            }
            let v6: Vec<Ipv6Addr> = addresses
                .iter()
                .filter_map(|address| match address {
                    IpAddr::V6(v6) => Some(*v6),
                    IpAddr::V4(_) => None,
                })
                .collect();
            match Neighbours::open(*interface, &v6) {
                Ok(socket) => self.sockets.push(socket),
                Err(error) => failed.push(format!("{}: {error}", self.name_of(*interface))),
            }
        }
        if !failed.is_empty() {
            self.fail(&failed.join(", "));
        }
    }

    fn fail(&mut self, why: &str) {
        if self.failing != why {
            tracing::warn!("some addresses are not announced: {why}");
            why.clone_into(&mut self.failing);
        }
    }

    fn name_of(&self, interface: u32) -> String {
        let name = self.names.get(&interface);
        name.cloned().unwrap_or_else(|| interface.to_string())
    }

    fn receive(&mut self, frame: &mut Vec<u8>) {
        let now = self.now();
        for socket in &self.sockets {
            for _ in 0..FRAMES_AT_ONCE {
                match socket.receive(frame) {
                    Ok(true) => self.announcer.handle_frame(now, socket.interface(), frame),
                    // An interface that is down is looked at again.
                    Ok(false) | Err(_) => break,
                }
            }
        }
        self.transmit();
    }

    fn transmit(&mut self) {
        while let Some((interface, frame)) = self.announcer.poll_transmit() {
            let mut sockets = self.sockets.iter();
            if let Some(socket) = sockets.find(|one| one.interface() == interface)
                && let Err(error) = socket.send(&frame)
            {
                let why = format!("{}: {error}", self.name_of(interface));
                self.fail(&why);
            }
        }
    }

    fn publish(&mut self) {
        while let Some(event) = self.announcer.poll_event() {
            self.log(&event);
        }
        let announced = self
            .announcer
            .states()
            .map(|(place, state)| AnnouncedStatus {
                address: place.address.to_string(),
                interface: self.name_of(place.interface),
                state: state.name().to_owned(),
            });
        let (announced, conflicts) = (announced.collect(), self.announcer.conflicts());
        self.seen.with(|inner| {
            inner.announced = announced;
            inner.conflicts = conflicts;
        });
    }

    fn log(&self, event: &Event) {
        let (address, name) = (event.place.address, self.name_of(event.place.interface));
        match (event.state, event.with) {
            (State::Announced, _) => tracing::info!("announcing {address} on {name}"),
            (State::Conflict, Some([a, b, c, d, e, f])) => tracing::warn!(
                "{address} is in use on {name} by \
                 {a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{f:02x}: not announced here while it is"
            ),
            _ => {}
        }
    }
}
