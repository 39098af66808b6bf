//! The control socket of a running instance (docs/decisions/0017).
//!
//! The admin pages are read-only and open to every local user. Orders arrive at a Unix socket in
//! [`FOLDER`], which only root and the instance's own user can open. A client sends one line, the
//! order, and receives lines of JSON ([`Answer`]); or it speaks HTTP, with the API of
//! [`crate::api`]. The thread that runs the switch polls for orders
//! several times a second and handles them like the corresponding signal.

mod ask;
mod server;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use serde::{Deserialize, Serialize};
use tokio::sync::{oneshot, watch};

pub use ask::{Asked, NoAnswer, ask};
pub(crate) use ask::{PATIENCE, describe, explain, is_late};
pub use server::{ControlServer, remove_if_dead, start};

/// Directory of all instances' sockets.
pub const FOLDER: &str = "/run/fairlead";

/// An order to an instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Report the state.
    Look,
    /// Restart with the current configuration file.
    Reload,
    /// Accept no new connections, exit with the last one, and report progress until then.
    Drain,
}

impl Order {
    /// All orders.
    pub const ALL: [Self; 3] = [Self::Look, Self::Reload, Self::Drain];

    /// The line on the wire.
    pub fn name(self) -> &'static str {
        match self {
            Self::Look => "look",
            Self::Reload => "reload",
            Self::Drain => "drain",
        }
    }
}

/// Phase of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Phase {
    /// Not yet ready.
    #[default]
    Starting,
    /// In service.
    Serving,
    /// No new connections; live ones may finish.
    Draining,
    /// Live connections are being reset.
    Resetting,
    /// Stopped; nothing is left in the kernel.
    Ended,
    /// Stopped; the kernel keeps forwarding spliced connections for the next run.
    Left,
}

impl Phase {
    /// True if the run has stopped.
    pub fn is_over(self) -> bool {
        matches!(self, Self::Ended | Self::Left)
    }
}

/// State of a run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct State {
    /// The instance's name.
    pub instance: String,
    /// The process id, in the PID namespace of the instance.
    pub process: u32,
    /// Identifies the run. A reload starts a new run in the same process.
    pub run: u64,
    /// Its phase.
    pub phase: Phase,
    /// Connections that are being set up or spliced.
    pub live: u64,
    /// Live connections that were reset at shutdown.
    pub cut_off: u64,
    /// Seconds until the phase's deadline, if it has one.
    pub seconds_left: Option<u64>,
}

/// A line of an answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Answer {
    /// The current state.
    State(State),
    /// It restarts with these changes.
    Reloading(Vec<String>),
    /// Refused, with the reason.
    Refused(String),
}

/// Outcome of an order: the changes (of a reload), or the reason for a refusal.
pub(crate) type Outcome = Result<Vec<String>, String>;

/// An order in the queue.
#[derive(Debug)]
pub(crate) struct Pending {
    pub(crate) order: Order,
    reply: oneshot::Sender<Outcome>,
}

impl Pending {
    /// Sends the outcome to the client.
    pub(crate) fn answer(self, outcome: Outcome) {
        // The client may have disconnected.
        let _ = self.reply.send(outcome);
    }
}

/// Passes orders from the socket's thread to the switch's thread, and state back.
#[derive(Debug)]
pub struct ControlQueue {
    /// `None` once the switch accepts no more orders.
    pending: Mutex<Option<Vec<Pending>>>,
    state: watch::Sender<State>,
    refused: AtomicU64,
}

/// Queued orders; one more is refused.
const PENDING_MAX: usize = 16;

/// The reason given for an order that arrives too late.
const OVER: &str = "the switch is stopping or restarting; try again";

impl ControlQueue {
    /// A queue for the run `run` of this instance.
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

    /// Takes the oldest order with a client that still waits for it.
    pub(crate) fn take(&self) -> Option<Pending> {
        let mut pending = self.pending.lock().unwrap_or_else(PoisonError::into_inner);
        let pending = pending.as_mut()?;
        pending.retain(|one| !one.reply.is_closed());
        (!pending.is_empty()).then(|| pending.remove(0))
    }

    /// Updates the state and notifies watching clients.
    pub(crate) fn tell(&self, change: impl FnOnce(&mut State)) {
        self.state.send_if_modified(|state| {
            let before = state.clone();
            change(state);
            *state != before
        });
    }

    /// The current state.
    pub fn state(&self) -> State {
        self.state.borrow().clone()
    }

    /// Requests at the socket that were invalid, not permitted, or too many.
    pub fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }

    /// Accepts no more orders, and drops queued ones.
    fn close(&self) {
        let mut pending = self.pending.lock().unwrap_or_else(PoisonError::into_inner);
        *pending = None;
    }

    /// Queues an order. Returns the channel for its outcome, or the reason for a refusal.
    fn leave(&self, order: Order) -> Result<oneshot::Receiver<Outcome>, &'static str> {
        let mut pending = self.pending.lock().unwrap_or_else(PoisonError::into_inner);
        let pending = pending.as_mut().ok_or(OVER)?;
        pending.retain(|one| !one.reply.is_closed());
        if pending.len() >= PENDING_MAX {
            return Err("too many orders are queued");
        }
        let (reply, outcome) = oneshot::channel();
        pending.push(Pending { order, reply });
        Ok(outcome)
    }

    /// Orders a restart with the current configuration file; the outcome, or why it is refused.
    pub(crate) fn order_reload(&self) -> Result<oneshot::Receiver<Outcome>, &'static str> {
        self.leave(Order::Reload)
    }

    fn refuse(&self, why: &str) -> Answer {
        self.refused.fetch_add(1, Ordering::Relaxed);
        tracing::warn!("control request refused: {why}");
        Answer::Refused(why.to_owned())
    }
}

/// The socket path of an instance in this process's network namespace. Instances of the same name
/// may run in several namespaces, so the namespace's inode number is part of the file name.
pub fn socket_of(instance: &str) -> std::io::Result<PathBuf> {
    Ok(Path::new(FOLDER).join(format!("{instance}{}", ending()?)))
}

/// Suffix of all socket names in this network namespace.
fn ending() -> std::io::Result<String> {
    use std::os::unix::fs::MetadataExt;
    let namespace = std::fs::metadata("/proc/thread-self/ns/net")?.ino();
    Ok(format!(".{namespace}.sock"))
}

/// Instances with a socket in this network namespace.
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
    fn orders_are_taken_in_order_and_withdrawn_on_disconnect() {
        let queue = ControlQueue::new("edge", 7);
        assert!(queue.take().is_none());
        let gone = queue.leave(Order::Drain).unwrap();
        let mut waits = queue.leave(Order::Reload).unwrap();
        drop(gone);
        let pending = queue.take().unwrap();
        assert_eq!(pending.order, Order::Reload);
        pending.answer(Err("no".to_owned()));
        assert_eq!(waits.try_recv().unwrap(), Err("no".to_owned()));
        assert!(queue.take().is_none());
    }

    #[test]
    fn the_queue_is_bounded() {
        let queue = ControlQueue::new("edge", 7);
        let waiting: Vec<_> = (0..PENDING_MAX)
            .map(|_| queue.leave(Order::Drain))
            .collect();
        assert!(queue.leave(Order::Drain).is_err());
        drop(waiting);
        assert!(queue.leave(Order::Drain).is_ok());
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
