//! Connections that outlive the sockets of their processes (`sleep = true`): the port through which
//! the engine gives and wakes them, and the thread that reads where responses end.

use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use fairlead_base::Endpoint;
use fairlead_base::FlowKey;
use fairlead_bpf_loader::{Gives, Life, Lives, ResponseSpan, Shown, ShownHead, TakenOver};
use fairlead_datapath::{HostHandoff, HostTerms, Progress, Sleeper};
use fairlead_os_tcp::{Destroyer, Listening};
use fairlead_wire::http::{ResponseEnd, response_end};

/// How often it is looked who has slept too long.
const SWEEP: Duration = Duration::from_secs(1);
/// How long the thread waits for something to read before it looks whether it is to end.
const PATIENCE: Duration = Duration::from_millis(100);
/// What the kernel said about a listener is believed so long.
const HEARD_FOR: Duration = Duration::from_millis(10);
/// A response of more bytes has no end that could be named by a sequence number.
const SPAN_MAX: u64 = 1 << 30;

/// The engine's port to sockets of this machine.
#[derive(Clone, Debug)]
pub(super) struct Sockets {
    shared: Arc<Mutex<Shared>>,
}

/// What the engine and the thread share: a socket is ended and its successor announced in one step,
/// or the thread would end the successor.
#[derive(Debug)]
struct Shared {
    gives: Gives,
    /// Where something may sleep.
    destroyer: Option<Destroyer>,
    /// Over, and their clients have yet to learn it.
    expired: Vec<(FlowKey, Sleeper)>,
    /// Where this kernel says who listens.
    listening: Option<Listening>,
    /// What it said last, and when.
    heard: BTreeMap<Endpoint, (Instant, bool)>,
}

impl Shared {
    /// Ends the socket of a client's connection, if there is one. False when it stays.
    fn end_socket(&mut self, client: &FlowKey) -> bool {
        let ended = self.destroyer.as_mut();
        let ended = ended.map(|one| one.destroy(client.dst, client.src));
        matches!(ended, Some(Ok(_)))
    }

    /// Whether somebody listens there; `None` where the kernel does not say.
    fn listens(&mut self, listener: Endpoint) -> Option<bool> {
        let now = Instant::now();
        if let Some((at, listens)) = self.heard.get(&listener)
            && now.duration_since(*at) < HEARD_FOR
        {
            return Some(*listens);
        }
        let listens = self.listening.as_mut()?.at(listener).ok()?;
        // As many as routes have listeners.
        self.heard.insert(listener, (now, listens));
        Some(listens)
    }
}

impl Sockets {
    pub(super) fn new(gives: Gives, sleep: bool) -> io::Result<Self> {
        let shared = Shared {
            gives,
            destroyer: sleep.then(Destroyer::open).transpose()?,
            expired: Vec::new(),
            listening: Listening::open()
                .inspect_err(|error| {
                    tracing::warn!("whether somebody listens is not known: {error}");
                })
                .ok(),
            heard: BTreeMap::new(),
        };
        Ok(Self {
            shared: Arc::new(Mutex::new(shared)),
        })
    }

    /// Goes on with what an earlier run left; `serves` is asked whether a listening endpoint has a
    /// route with `sleep` to a listener.
    pub(super) fn take_over(&self, serves: impl Fn(Endpoint, Endpoint) -> bool) -> TakenOver {
        let mut shared = self.shared();
        let Shared { gives, expired, .. } = &mut *shared;
        gives.take_over(serves, expired)
    }

    /// Whether somebody listens there; `None` where the kernel does not say.
    pub(super) fn listens(&self, listener: Endpoint) -> Option<bool> {
        self.shared().listens(listener)
    }

    /// The connections, for another thread.
    pub(super) fn lives(&self) -> io::Result<Lives> {
        self.shared().gives.lives().map_err(io::Error::other)
    }

    /// Ends a sleeper; the engine tells its client. False where it does not sleep.
    fn expire(&self, client: &FlowKey) -> bool {
        let mut shared = self.shared();
        let sleeper = shared.gives.sleeper(client);
        let Some(sleeper) = sleeper.filter(|one| one.is_asleep) else {
            return false;
        };
        shared.gives.end(client);
        shared.end_socket(client);
        shared.expired.push((*client, sleeper));
        true
    }

    fn shared(&self) -> MutexGuard<'_, Shared> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends the socket of a connection that fell asleep, unless it was woken meanwhile.
    fn end_socket_of_sleeper(&self, client: &FlowKey) {
        let mut shared = self.shared();
        if shared
            .gives
            .sleeper(client)
            .is_some_and(|one| one.is_asleep)
        {
            shared.end_socket(client);
        }
    }
}

impl HostHandoff for Sockets {
    fn give(&mut self, client: &FlowKey, terms: &HostTerms, progress: Option<&Progress>) -> bool {
        let mut shared = self.shared();
        let progress = progress.filter(|_| shared.destroyer.is_some());
        shared.gives.give(client, terms, progress)
    }

    fn listens(&mut self, listener: Endpoint) -> bool {
        self.shared().listens(listener).unwrap_or(true)
    }

    fn sleeper(&self, client: &FlowKey) -> Option<Sleeper> {
        let shared = self.shared();
        shared.destroyer.as_ref()?;
        shared.gives.sleeper(client)
    }

    fn wake(&mut self, client: &FlowKey, client_nxt: u32, method: [u8; 4], wait: Duration) -> bool {
        let mut shared = self.shared();
        // The kernel makes no second socket beside one of the same addresses.
        shared.end_socket(client) && shared.gives.wake(client, client_nxt, method, wait)
    }

    fn end(&mut self, client: &FlowKey) {
        let mut shared = self.shared();
        shared.gives.end(client);
        shared.end_socket(client);
    }

    fn next_expired(&mut self) -> Option<(FlowKey, Sleeper)> {
        self.shared().expired.pop()
    }
}

/// The thread, until this is dropped.
#[derive(Debug)]
pub(super) struct Tracker {
    end: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Tracker {
    /// Starts reading what the kernel program shows, and looking who has slept too long. `asleep`
    /// gets how many sleep.
    pub(super) fn start(
        shown: Shown,
        sockets: Sockets,
        asleep: Arc<AtomicU64>,
    ) -> io::Result<Self> {
        let end = Arc::new(AtomicBool::new(false));
        let ending = Arc::clone(&end);
        let mut lives = sockets.lives()?;
        let work = move || {
            // Those that fell asleep while nobody was there.
            for life in lives.asleep() {
                sockets.end_socket_of_sleeper(&life.client);
            }
            let mut reading = Reading { shown, sockets };
            let (mut late, mut swept) = (Vec::new(), None::<Instant>);
            while !ending.load(Ordering::Relaxed) {
                reading.round();
                if swept.is_none_or(|at| at.elapsed() >= SWEEP) {
                    asleep.store(lives.sweep(&mut late), Ordering::Relaxed);
                    swept = Some(Instant::now());
                }
                for client in late.drain(..) {
                    reading.sockets.expire(&client);
                }
            }
        };
        let thread = std::thread::Builder::new().name("responses".to_owned());
        Ok(Self {
            end,
            thread: Some(thread.spawn(work)?),
        })
    }
}

/// What the thread reads.
struct Reading {
    shown: Shown,
    sockets: Sockets,
}

impl Reading {
    /// Waits, and reads what is there.
    fn round(&mut self) {
        self.shown.wait(PATIENCE);
        while let Some((client, number, seen)) = self.shown.next_with(read) {
            match seen {
                Seen::Response(span) => {
                    // Without it the server's FIN goes out, as without this thread.
                    let _ = self.shown.set(&client, number, span);
                }
                Seen::Asleep => {
                    self.shown.forget(&client);
                    self.sockets.end_socket_of_sleeper(&client);
                }
            }
        }
    }
}

impl Drop for Tracker {
    fn drop(&mut self) {
        self.end.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join(); // after a panic of its own there is nothing to be kept
        }
    }
}

/// Sleepers, for those who list and end them.
#[derive(Debug)]
pub(crate) struct SleeperDesk {
    sockets: Sockets,
    lives: Lives,
}

impl SleeperDesk {
    pub(super) fn new(sockets: Sockets) -> io::Result<Self> {
        let lives = sockets.lives()?;
        Ok(Self { sockets, lives })
    }

    /// Those that sleep now.
    pub(crate) fn list(&self) -> Vec<Life> {
        let mut all: Vec<Life> = self.lives.asleep().collect();
        // A walk that began again has found some twice.
        all.sort_unstable_by_key(|life| life.client);
        all.dedup_by_key(|life| life.client);
        all
    }

    /// Ends those of a client's address and port, or all. How many.
    pub(crate) fn end(&self, client: Option<Endpoint>) -> usize {
        let mut all = self.list();
        all.retain(|life| client.is_none_or(|client| life.client.src == client));
        let ended = all.iter().filter(|life| self.sockets.expire(&life.client));
        ended.count()
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Seen {
    Response(ResponseSpan),
    Asleep,
}

fn read(shown: ShownHead<'_>) -> (FlowKey, u32, Seen) {
    let seen = match shown.sleeps {
        true => Seen::Asleep,
        false => Seen::Response(span(response_end(shown.head, shown.method))),
    };
    (shown.client, shown.number, seen)
}

fn span(end: ResponseEnd) -> ResponseSpan {
    match end {
        ResponseEnd::Length(bytes) if bytes <= SPAN_MAX => ResponseSpan::Bytes(bytes as u32),
        ResponseEnd::Chunked => ResponseSpan::Chunks,
        ResponseEnd::Length(_) | ResponseEnd::Endless | ResponseEnd::Incomplete => {
            ResponseSpan::Endless
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_response_with_an_end_has_a_span() {
        assert_eq!(span(ResponseEnd::Length(120)), ResponseSpan::Bytes(120));
        assert_eq!(span(ResponseEnd::Chunked), ResponseSpan::Chunks);
        for end in [
            ResponseEnd::Length(SPAN_MAX + 1),
            ResponseEnd::Endless,
            ResponseEnd::Incomplete,
        ] {
            assert_eq!(span(end), ResponseSpan::Endless, "{end:?}");
        }
    }
}
