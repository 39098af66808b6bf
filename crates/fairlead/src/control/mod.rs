//! The control socket: where a running instance takes orders (docs/decisions/0017).
//!
//! The admin pages can only be read, and by everybody. Orders come by a Unix socket in
//! [`FOLDER`], which the kernel keeps for the instance's own user and root. A connection has one
//! line, the order, and gets lines of JSON ([`Answer`]). The thread that runs the switch looks for
//! orders several times a second and does what a signal would make it do.

mod ask;
mod server;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use serde::{Deserialize, Serialize};
use tokio::sync::{oneshot, watch};

pub use ask::{Asked, NoAnswer, ask};
pub(crate) use ask::{PATIENCE, describe, is_late};
pub use server::{ControlServer, remove_if_dead, start};

/// Where the sockets of all instances are.
pub const FOLDER: &str = "/run/fairlead";

/// What an instance can be told to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Tell how it is.
    Look,
    /// Begin anew with the configuration file of now.
    Reload,
    /// Take no new connections, end with the last one; tell how it goes until then.
    Drain,
}

impl Order {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Look, Self::Reload, Self::Drain];

    /// The line that says it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Look => "look",
            Self::Reload => "reload",
            Self::Drain => "drain",
        }
    }
}

/// Where a run is between its start and its end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Phase {
    /// Not yet ready.
    #[default]
    Starting,
    /// In service.
    Serving,
    /// No new connections; live ones have their time.
    Draining,
    /// Live connections are being reset.
    Resetting,
    /// Over, and nothing is left.
    Ended,
    /// Over; the kernel forwards what is spliced, for the next run.
    Left,
}

impl Phase {
    /// True when this run does nothing more.
    pub fn is_over(self) -> bool {
        matches!(self, Self::Ended | Self::Left)
    }
}

/// How a run is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct State {
    /// The instance's name.
    pub instance: String,
    /// The process, by its number where it runs.
    pub process: u32,
    /// Another number for every run, also of one process.
    pub run: u64,
    /// Where it is.
    pub phase: Phase,
    /// Connections that are set up or spliced.
    pub live: u64,
    /// Those that were live when they were reset.
    pub cut_off: u64,
    /// Seconds until this phase ends whatever happens, where there is such a time.
    pub seconds_left: Option<u64>,
}

/// A line of an answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Answer {
    /// How it is.
    State(State),
    /// It begins anew, with these changes.
    Reloading(Vec<String>),
    /// Not done, and why.
    Refused(String),
}

/// What an order comes to: changes (none but of a reload), or why it is refused.
pub(crate) type Outcome = Result<Vec<String>, String>;

/// An order that waits to be done.
#[derive(Debug)]
pub(crate) struct Pending {
    pub(crate) order: Order,
    reply: oneshot::Sender<Outcome>,
}

impl Pending {
    /// Says what came of it.
    pub(crate) fn answer(self, outcome: Outcome) {
        // Whoever asked may be gone.
        let _ = self.reply.send(outcome);
    }
}

/// Between the thread that runs the switch and the one that serves the socket.
#[derive(Debug)]
pub struct Desk {
    /// None once the switch takes no more.
    pending: Mutex<Option<Vec<Pending>>>,
    state: watch::Sender<State>,
    refused: AtomicU64,
}

/// Orders that wait at once; a further one is refused.
const PENDING_MAX: usize = 16;

/// Why an order is not done that came too late.
const OVER: &str = "this run of the switch is over, or begins anew right now: ask again";

impl Desk {
    /// For a run of this instance, known by a number of its own.
    pub fn new(instance: &str, run: u64) -> Self {
        let state = State {
            instance: instance.to_owned(),
            process: std::process::id(),
            run,
            ..State::default()
        };
        Self {
            pending: Mutex::new(Some(Vec::new())),
            state: watch::Sender::new(state),
            refused: AtomicU64::new(0),
        }
    }

    /// The order that came first, and that somebody still waits for.
    pub(crate) fn take(&self) -> Option<Pending> {
        let mut pending = self.pending.lock().unwrap_or_else(PoisonError::into_inner);
        let pending = pending.as_mut()?;
        pending.retain(|one| !one.reply.is_closed());
        (!pending.is_empty()).then(|| pending.remove(0))
    }

    /// Tells those who watch how it is now.
    pub(crate) fn tell(&self, change: impl FnOnce(&mut State)) {
        self.state.send_if_modified(|state| {
            let before = state.clone();
            change(state);
            *state != before
        });
    }

    /// How it is.
    pub fn state(&self) -> State {
        self.state.borrow().clone()
    }

    /// Requests at the socket that were no orders, not permitted or too many.
    pub fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }

    /// Takes no more orders; those that wait are not done.
    fn close(&self) {
        let mut pending = self.pending.lock().unwrap_or_else(PoisonError::into_inner);
        *pending = None;
    }

    /// Where the outcome of an order will come; or why it will not.
    fn leave(&self, order: Order) -> Result<oneshot::Receiver<Outcome>, &'static str> {
        let mut pending = self.pending.lock().unwrap_or_else(PoisonError::into_inner);
        let pending = pending.as_mut().ok_or(OVER)?;
        pending.retain(|one| !one.reply.is_closed());
        if pending.len() >= PENDING_MAX {
            return Err("too many orders wait already");
        }
        let (reply, outcome) = oneshot::channel();
        pending.push(Pending { order, reply });
        Ok(outcome)
    }

    fn refuse(&self, why: &str) -> Answer {
        self.refused.fetch_add(1, Ordering::Relaxed);
        tracing::warn!("a request at the control socket is refused: {why}");
        Answer::Refused(why.to_owned())
    }
}

/// The socket of an instance in the network namespace of this process. Instances of one name may
/// run in several, so the namespace's number is a part of the file's name.
pub fn socket_of(instance: &str) -> std::io::Result<PathBuf> {
    Ok(Path::new(FOLDER).join(format!("{instance}{}", ending()?)))
}

/// How the names of all sockets in this network namespace end.
fn ending() -> std::io::Result<String> {
    use std::os::unix::fs::MetadataExt;
    let namespace = std::fs::metadata("/proc/thread-self/ns/net")?.ino();
    Ok(format!(".{namespace}.sock"))
}

/// The instances that have a socket in this network namespace.
pub fn instances() -> Vec<String> {
    let (Ok(ending), Ok(files)) = (ending(), std::fs::read_dir(FOLDER)) else {
        return Vec::new();
    };
    let names = files.filter_map(|file| file.ok()?.file_name().into_string().ok());
    let mut names: Vec<String> = names
        .filter_map(|name| Some(name.strip_suffix(&ending)?.to_owned()))
        .collect();
    names.sort();
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orders_come_in_turn_and_not_for_who_has_gone() {
        let desk = Desk::new("edge", 7);
        assert!(desk.take().is_none());
        let gone = desk.leave(Order::Drain).unwrap();
        let mut waits = desk.leave(Order::Reload).unwrap();
        drop(gone);
        let pending = desk.take().unwrap();
        assert_eq!(pending.order, Order::Reload);
        pending.answer(Err("no".to_owned()));
        assert_eq!(waits.try_recv().unwrap(), Err("no".to_owned()));
        assert!(desk.take().is_none());
    }

    #[test]
    fn orders_that_wait_are_bounded() {
        let desk = Desk::new("edge", 7);
        let waiting: Vec<_> = (0..PENDING_MAX).map(|_| desk.leave(Order::Drain)).collect();
        assert!(desk.leave(Order::Drain).is_err());
        drop(waiting);
        assert!(desk.leave(Order::Drain).is_ok());
    }

    #[test]
    fn the_longest_name_fits_a_socket() {
        let name = "n".repeat(64);
        let path = Path::new(FOLDER).join(format!("{name}.{}.sock.new", u32::MAX));
        assert!(path.as_os_str().len() < 108, "{path:?}");
        let socket = socket_of("edge").unwrap();
        assert!(socket.starts_with(FOLDER) && socket != socket_of("edge2").unwrap());
    }
}
