//! Connection handoff: proxies hand pairs of connections off over a Unix socket, and get them back.
//!
//! | file | concern |
//! |---|---|
//! | `owner.rs` | the messages of one proxy |
//! | `adopt.rs` | two sockets become a record |
//! | `give_back.rs` | a record becomes two sockets |
//! | `clocks.rs` | clocks of ends whose connections were given back a moment ago |
//! | `command.rs` | `fairlead handoff` |
//! | `inherit.rs`, `notes.rs` | pairs that an earlier run of the switch had |
//! | `resources.rs` | how much room proxies have, and pairs that go back when the table is full |
//! | `listing.rs` | what is handed off, for operators |
//!
//! One thread accepts proxies and learns which pairs have ended; each proxy has a thread of its
//! own. The switch is asked between two batches of packets.

mod adopt;
mod clocks;
pub mod command;
mod give_back;
mod inherit;
mod listing;
mod notes;
mod owner;
mod resources;

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

use fairlead_base::{FlowKey, Instant};
use fairlead_bpf_loader::{Gates, Pins, WayOut, interface_index, monotonic_ns};
use fairlead_datapath::{Datapath, State as TcpState};
use fairlead_handoff::message::Happening;
use fairlead_handoff::{
    Budget, Cid, Command, Ledger, Limits, Message, Owner, Phase, Policy, Refusal, Side,
};
use fairlead_os_tcp::{pass, repair};

use crate::api::{Request, Requests, Work};
use crate::config::{PAIRS_MAX, Settings};
use crate::serve::fastpath::in_full;

pub(crate) use listing::Handoffs;

/// How long a lock on a pair lasts if nobody ends it.
const LEASE: Duration = Duration::from_secs(1);
/// How long the switch may take for one piece of work.
const PATIENCE: Duration = Duration::from_secs(2);
/// Between two looks at the pairs.
const TEND_PAUSE: Duration = Duration::from_millis(250);
/// Between two looks at whether somebody connects.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// Descriptors besides those of pairs.
const DESCRIPTORS_BESIDES: u64 = 4_096;
/// Connections of proxies at once.
const OWNERS_MAX: u32 = 64;

/// The socket, and the threads that serve it. Dropping it removes the socket; pairs go on.
#[derive(Debug)]
pub(crate) struct Handoff {
    path: PathBuf,
    carrier: Arc<Carrier>,
    thread: Option<JoinHandle<()>>,
}

/// What all threads share.
#[derive(Debug)]
pub(crate) struct Carrier {
    requests: Arc<Requests>,
    namespace: u64,
    state: Mutex<State>,
    owners: AtomicU32,
    free_lines: AtomicU32,
    stopping: AtomicBool,
}

#[derive(Debug)]
struct State {
    ledger: Ledger,
    gates: Gates,
    /// Those that the carrier has.
    pairs: BTreeMap<Cid, Carried>,
    /// For connections that are handed off again at once.
    clocks: clocks::Clocks,
    /// What proxies were last told of resources.
    told: resources::Told,
    /// Proxies that are here, and whose they are.
    links: Vec<(Owner, Weak<OwnedFd>)>,
    /// Spares what the switch sends the stack's checks of its source.
    _way_out: Option<WayOut>,
}

/// A pair that the switch carries.
#[derive(Debug)]
struct Carried {
    line: fairlead_datapath::Line,
    number: u64,
    /// Of packets from the client and from the server.
    keys: [FlowKey; 2],
    /// The socket towards the server, in repair mode: it keeps its port from being used for
    /// another connection to that server. None where that port is another's by now.
    kept: Option<OwnedFd>,
    /// What the sockets were.
    sockets: [fairlead_os_tcp::State; 2],
    /// The connection over which it was handed off.
    link: Weak<OwnedFd>,
    /// Whose it is.
    owner: Owner,
    /// Its owner knows that it is over.
    over: bool,
    /// When its owner was last asked to take it back, ms.
    asked_ms: u64,
}

impl Handoff {
    /// Starts it, if it is configured.
    ///
    /// # Errors
    /// What stands against it, in words.
    pub(crate) fn start(
        settings: &Settings,
        requests: &Arc<Requests>,
        pins: Option<Arc<Pins>>,
    ) -> Result<Option<Self>, String> {
        let Some(path) = settings.instance.adopt_socket.clone() else {
            return Ok(None);
        };
        let text = |error: &dyn std::fmt::Display| format!("{}: {error}", path.display());
        let namespace = repair::own_namespace().map_err(|error| text(&error))?;
        // One descriptor for each pair.
        let descriptors = u64::from(settings.switch.pairs) + DESCRIPTORS_BESIDES;
        match fairlead_netns::raise_open_files(descriptors) {
            Ok(most) if most < descriptors => {
                tracing::warn!("at most {most} files may be open, and each pair takes one");
            }
            _ => {}
        }
        let device = interface_index(&settings.network.device);
        let device = device.ok_or_else(|| "its device is gone".to_owned())?;
        let mut gates = Gates::load(device, pins).map_err(|error| in_full(&error))?;
        gates.attach().map_err(|error| in_full(&error))?;
        let group = settings.instance.adopt_group.as_deref();
        let listener = listen(&path, group).map_err(|error| text(&error))?;
        let limits = Limits {
            connections: settings.switch.limits.connections.min(PAIRS_MAX),
            kept_free: settings.switch.limits.connections / 8,
            budget: Budget {
                connections: settings.instance.adopt_connections,
                ..Budget::default()
            },
            ..Limits::default()
        };
        let state = State {
            ledger: Ledger::new(limits, Policy::All),
            gates,
            pairs: BTreeMap::new(),
            clocks: clocks::Clocks::default(),
            told: resources::Told::default(),
            links: Vec::new(),
            _way_out: WayOut::attach(&settings.network.device).ok(),
        };
        let carrier = Arc::new(Carrier {
            requests: Arc::clone(requests),
            namespace,
            state: Mutex::new(state),
            owners: AtomicU32::new(0),
            free_lines: AtomicU32::new(0),
            stopping: AtomicBool::new(false),
        });
        let of_thread = Arc::clone(&carrier);
        let thread = std::thread::Builder::new()
            .name("fairlead-adopt".into())
            .spawn(move || of_thread.serve(&listener))
            .map_err(|error| text(&error))?;
        tracing::info!("connections are adopted at {}", path.display());
        Ok(Some(Self {
            path,
            carrier,
            thread: Some(thread),
        }))
    }

    /// What the API needs.
    pub(crate) fn carrier(&self) -> &Arc<Carrier> {
        &self.carrier
    }
}

impl Drop for Handoff {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
        self.carrier.stopping.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Listens at `path`, for root and a group. The socket gets its name when its mode is right.
fn listen(path: &Path, group: Option<&str>) -> io::Result<OwnedFd> {
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)?;
        // The other sockets there are their owner's alone; a group must reach this one.
        let mode = fs::metadata(folder)?.permissions().mode();
        if group.is_some() && folder == Path::new(crate::control::FOLDER) {
            fs::set_permissions(folder, fs::Permissions::from_mode(mode | 0o011))?;
        }
    }
    if pass::connect(path).is_ok() {
        return Err(io::ErrorKind::AddrInUse.into());
    }
    let fresh = path.with_added_extension("new");
    let _ = fs::remove_file(&fresh);
    let listener = pass::listen(&fresh)?;
    if let Some(group) = group {
        let id = group_id(group)?;
        chown(&fresh, None, Some(id))?;
    }
    fs::set_permissions(&fresh, fs::Permissions::from_mode(0o660))?;
    fs::rename(&fresh, path)?;
    Ok(listener)
}

/// The number of a group of `/etc/group`.
fn group_id(name: &str) -> io::Result<u32> {
    let file = fs::read_to_string("/etc/group")?;
    let mut lines = file.lines().map(|line| line.split(':'));
    let found = lines.find_map(|mut fields| {
        let is_it = fields.next() == Some(name);
        is_it.then(|| fields.nth(1)?.parse().ok()).flatten()
    });
    found.ok_or_else(|| io::Error::other(format!("there is no group {name:?}")))
}

impl Carrier {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now_ms() -> u64 {
        monotonic_ns() / 1_000_000
    }

    fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }

    /// Has the switch do something, and waits for what it says.
    fn with_switch<T: Send + 'static>(
        &self,
        work: impl FnOnce(Instant, &mut Datapath) -> T + Send + 'static,
    ) -> Result<T, Refusal> {
        let (reply, answer) = sync_channel(1);
        let work = Work(Box::new(move |now, datapath| {
            let _ = reply.send(work(now, datapath));
        }));
        let made = self.requests.make(Request::Work(work));
        made.map_err(|_| Refusal::Unavailable)?;
        answer.recv_timeout(PATIENCE).map_err(|error| match error {
            RecvTimeoutError::Timeout => Refusal::Busy, // the machine stood still
            RecvTimeoutError::Disconnected => Refusal::Unavailable,
        })
    }

    /// Accepts proxies, and learns what became of pairs.
    fn serve(self: &Arc<Self>, listener: &OwnedFd) {
        let mut threads: Vec<JoinHandle<()>> = Vec::new();
        let mut tended_ms = 0;
        // The switch may not have begun yet.
        while !self.is_stopping() && self.inherit().is_err() {
            std::thread::sleep(ACCEPT_PAUSE);
        }
        while !self.is_stopping() {
            match pass::accept(listener.as_fd()) {
                Ok(Some((socket, peer))) => {
                    threads.retain(|thread| !thread.is_finished());
                    threads.extend(self.welcome(socket, peer));
                    continue;
                }
                Ok(None) => {}
                Err(error) => tracing::debug!(%error, "a proxy was not accepted"),
            }
            let now_ms = Self::now_ms();
            if now_ms >= tended_ms + TEND_PAUSE.as_millis() as u64 {
                tended_ms = now_ms;
                self.tend();
            }
            std::thread::sleep(ACCEPT_PAUSE);
        }
        threads.into_iter().for_each(|thread| drop(thread.join()));
    }

    /// Serves a proxy in a thread of its own, unless there are too many.
    fn welcome(self: &Arc<Self>, socket: OwnedFd, peer: pass::Peer) -> Option<JoinHandle<()>> {
        if self.owners.fetch_add(1, Ordering::AcqRel) >= OWNERS_MAX {
            self.owners.fetch_sub(1, Ordering::AcqRel);
            tracing::debug!(user = peer.user, "too many proxies");
            return None;
        }
        let carrier = Arc::clone(self);
        let thread = std::thread::Builder::new().name("fairlead-owner".into());
        let spawned = thread.spawn(move || {
            owner::serve(&carrier, &Arc::new(socket), peer);
            carrier.owners.fetch_sub(1, Ordering::AcqRel);
        });
        let failed = |_| self.owners.fetch_sub(1, Ordering::AcqRel);
        spawned.map_err(failed).ok()
    }

    /// Learns how far all pairs have come, opens the gates of those that are gone, and tells owners
    /// of ends.
    fn tend(&self) {
        let found = self.with_switch(|now, datapath| {
            let pairs = datapath.pairs(now);
            let pairs = pairs.map(|(_, state)| (state.pair.number, state.record));
            let found: BTreeMap<_, _> = pairs.collect();
            (found, datapath.last_pair(), datapath.free_lines())
        });
        let Ok((found, last, free_lines)) = found else {
            return;
        };
        self.free_lines.store(free_lines, Ordering::Release);
        let mut guard = self.state();
        let state = &mut *guard;
        // Interfaces that are new.
        if let Err(error) = state.gates.attach() {
            tracing::debug!("the gates: {}", in_full(&error));
        }
        let mut gone = Vec::new();
        for (&cid, pair) in &mut state.pairs {
            let phase = state.ledger.find(cid).map(|entry| entry.phase);
            // One on its way is its mover's; one that is newer than the answer is not missing.
            if phase != Some(Phase::Carried) || pair.number > last {
                continue;
            }
            let record = found.get(&pair.number);
            if let Some(record) = record {
                state.ledger.seen(cid, Side::Client, record.bytes_in());
                state.ledger.seen(cid, Side::Server, record.bytes_out());
            } else {
                gone.push(cid);
            }
            let rest = record
                .map(|record| record.state)
                .filter(|state| state.is_resting());
            if (rest.is_some() || record.is_none()) && !pair.over {
                pair.over = true;
                let bytes = state.ledger.find(cid).map_or([0; 2], |entry| entry.bytes);
                let link = link_of(&state.links, pair);
                tell_end(cid, link, rest, bytes);
            }
        }
        for cid in gone {
            if let Some(pair) = state.pairs.remove(&cid) {
                if let Some(kept) = pair.kept {
                    let _ = repair::disconnect(kept.as_fd());
                }
                pair.keys.iter().for_each(|key| state.gates.open(key));
            }
            state.ledger.ended(cid);
        }
        let active = |number: u64| found.get(&number).map(|record| record.last_active);
        state.tend_resources(free_lines, Self::now_ms(), active);
    }
}

/// The connection of the proxy that handed a pair off, or of another one of the same user.
fn link_of(links: &[(Owner, Weak<OwnedFd>)], pair: &Carried) -> Option<Arc<OwnedFd>> {
    pair.link.upgrade().or_else(|| {
        let of_owner = links.iter().filter(|(owner, _)| *owner == pair.owner);
        of_owner.rev().find_map(|(_, link)| link.upgrade())
    })
}

/// Two messages, one for each direction. A proxy that does not read them misses them.
fn tell_end(cid: Cid, link: Option<Arc<OwnedFd>>, rest: Option<TcpState>, bytes: [u64; 2]) {
    let happening = match rest {
        Some(TcpState::TimeWait) => Happening::Finished,
        Some(_) => Happening::Reset,
        None => Happening::GivenUp,
    };
    let Some(link) = link else {
        return;
    };
    for (from, bytes) in Side::BOTH.into_iter().zip(bytes) {
        let command = Command::OsControl {
            happening,
            from,
            bytes,
        };
        let message = Message::command(cid, command).encode();
        let _ = pass::send(link.as_fd(), &message, &[]);
    }
}
