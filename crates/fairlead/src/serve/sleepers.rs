//! Connections that outlive the sockets of their processes (`sleep = true`): the port through which
//! the engine gives and wakes them, and the thread that reads where responses end.

mod held;

use std::collections::BTreeMap;
use std::io::{self, Read as _, Write as _};
use std::os::fd::AsFd as _;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use fairlead_base::Endpoint;
use fairlead_base::FlowKey;
use fairlead_bpf_loader::{Gives, Life, Lives, ResponseSpan, Shown, ShownHead, TakenOver, What};
use fairlead_datapath::{Datapath, Held, HostHandoff, HostTerms, Progress, Sleeper};
use fairlead_os_tcp::{Destroyer, Listening};
use fairlead_wire::http::{ResponseEnd, response_end};

use self::held::HeldRequests;
use crate::api::{Request, Requests, Work};

/// How often it is looked who has slept too long.
const SWEEP: Duration = Duration::from_secs(1);
/// How long the thread waits for something to read before it looks whether it is to end.
const PATIENCE: Duration = Duration::from_millis(100);
/// While a request waits for a listener, it is looked so often whether there is one.
const LOOK: Duration = Duration::from_millis(2);
/// What the kernel said about a listener is believed so long.
const HEARD_FOR: Duration = Duration::from_millis(10);
/// A response of more bytes has no end that could be named by a sequence number.
const SPAN_MAX: u64 = 1 << 30;

/// The engine's port to sockets of this machine.
#[derive(Clone, Debug)]
pub(super) struct Sockets {
    shared: Arc<Mutex<Shared>>,
    /// Wakes the thread.
    wake: Arc<UnixStream>,
    /// Where the engine is woken, once it runs.
    requests: Arc<OnceLock<Arc<Requests>>>,
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
    /// Requests for which nobody listens yet.
    held: HeldRequests,
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
        self.listens_now(listener)
    }

    /// The same, as it is now.
    fn listens_now(&mut self, listener: Endpoint) -> Option<bool> {
        let now = Instant::now();
        let listens = self.listening.as_mut()?.at(listener).ok()?;
        // As many as routes have listeners.
        self.heard.insert(listener, (now, listens));
        Some(listens)
    }
}

impl Sockets {
    /// With the end that tells the thread of new work.
    pub(super) fn new(gives: Gives, sleep: bool) -> io::Result<(Self, UnixStream)> {
        let (wake, woken) = UnixStream::pair()?;
        wake.set_nonblocking(true)?;
        woken.set_nonblocking(true)?;
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
            held: HeldRequests::default(),
        };
        let this = Self {
            shared: Arc::new(Mutex::new(shared)),
            wake: Arc::new(wake),
            requests: Arc::default(),
        };
        Ok((this, woken))
    }

    /// Where the engine is woken from now on.
    pub(super) fn connect(&self, requests: &Arc<Requests>) {
        let _ = self.requests.set(Arc::clone(requests));
    }

    /// Releases requests for which somebody listens, or whose time is over, and has the engine
    /// handle them. Whether some wait on.
    fn release(&self) -> bool {
        let mut shared = self.shared();
        if shared.held.is_waiting() {
            let mut listening = shared.held.listeners();
            listening.retain(|&one| shared.listens_now(one).unwrap_or(true));
            shared.held.release(Instant::now(), &listening);
        }
        let (is_ready, waits) = (shared.held.is_ready(), shared.held.is_waiting());
        drop(shared);
        if is_ready && let Some(requests) = self.requests.get() {
            let work = |now, datapath: &mut Datapath| datapath.hear_held(now);
            // Where too many wait, it is tried again.
            let _ = requests.make(Request::Work(Work(Box::new(work))));
        }
        is_ready || waits
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

    /// How many connections do not sleep, because there was no room.
    pub(super) fn beyond_limit(&self) -> u64 {
        self.shared().gives.beyond_limit()
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

    /// Ends the socket of a connection that fell asleep, unless it was woken meanwhile. A request
    /// that it has left unread is heard once more.
    fn end_socket_of_sleeper(&self, client: &FlowKey) {
        let mut shared = self.shared();
        let sleeper = shared.gives.sleeper(client);
        if sleeper.is_none_or(|one| !one.is_asleep) {
            return;
        }
        shared.end_socket(client);
        if let Some(packet) = shared.gives.unread(client) {
            shared.held.hand_on(client, packet);
        }
    }

    /// Holds a request that found nobody who listens.
    fn hold_alone(&self, client: &FlowKey) {
        let mut shared = self.shared();
        let waits = shared.gives.waits_for(client);
        if let Some((listener, wait)) = waits
            && let Some(packet) = shared.gives.unread(client)
        {
            // Where there is no room, the client sends it again.
            let until = Instant::now() + wait;
            shared.held.hold(client, listener, until, &packet);
        }
    }

    /// Ends a socket, whose RST then has its connection judged.
    fn end_socket_in_doubt(&self, client: &FlowKey) {
        self.shared().end_socket(client);
    }
}

impl HostHandoff for Sockets {
    fn give(&mut self, client: &FlowKey, terms: &HostTerms, progress: Option<&Progress>) -> bool {
        let mut shared = self.shared();
        let progress = progress.filter(|_| shared.destroyer.is_some());
        shared.held.forget(client);
        shared.gives.give(client, terms, progress)
    }

    fn listens(&mut self, listener: Endpoint) -> bool {
        self.shared().listens(listener).unwrap_or(true)
    }

    fn listens_now(&mut self, listener: Endpoint) -> bool {
        self.shared().listens_now(listener).unwrap_or(true)
    }

    fn keep(&mut self, client: &FlowKey, numbers: (u32, u32), packet: &[u8]) {
        let mut shared = self.shared();
        if shared.destroyer.is_some() {
            shared.gives.keep(client, numbers, packet);
        }
    }

    fn hold(
        &mut self,
        client: &FlowKey,
        listener: Endpoint,
        wait: Duration,
        packet: &[u8],
    ) -> bool {
        let until = Instant::now() + wait;
        let held = self.shared().held.hold(client, listener, until, packet);
        // A full pipe wakes as well.
        let _ = (&*self.wake).write(&[0]);
        held
    }

    fn next_held(&mut self) -> Option<Held> {
        self.shared().held.next_ready()
    }

    fn sleeper(&self, client: &FlowKey) -> Option<Sleeper> {
        let shared = self.shared();
        shared.destroyer.as_ref()?;
        shared.gives.sleeper(client)
    }

    fn wake(&mut self, client: &FlowKey, client_nxt: u32, method: [u8; 4], wait: Duration) -> bool {
        let mut shared = self.shared();
        shared.held.forget(client);
        // The kernel makes no second socket beside one of the same addresses.
        shared.end_socket(client) && shared.gives.wake(client, client_nxt, method, wait)
    }

    fn end(&mut self, client: &FlowKey) {
        let mut shared = self.shared();
        shared.held.forget(client);
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
        (sockets, woken): (Sockets, UnixStream),
        asleep: Arc<AtomicU64>,
    ) -> io::Result<Self> {
        let end = Arc::new(AtomicBool::new(false));
        let ending = Arc::clone(&end);
        let (mut lives, judged) = (sockets.lives()?, sockets.lives()?);
        let work = move || {
            // Those that fell asleep while nobody was there.
            for life in lives.asleep() {
                sockets.end_socket_of_sleeper(&life.client);
            }
            let mut reading = Reading {
                shown,
                sockets,
                woken,
                judged,
            };
            let (mut late, mut swept) = (Vec::new(), None::<Instant>);
            let mut patience = PATIENCE;
            while !ending.load(Ordering::Relaxed) {
                reading.round(patience);
                patience = match reading.sockets.release() {
                    true => LOOK,
                    false => PATIENCE,
                };
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
    /// Something waits.
    woken: UnixStream,
    /// What the program knows of connections.
    judged: Lives,
}

impl Reading {
    /// Waits, and reads what is there.
    fn round(&mut self, patience: Duration) {
        self.shown.wait(self.woken.as_fd(), patience);
        while (&self.woken).read(&mut [0; 64]).is_ok_and(|got| got > 0) {}
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
                Seen::Alone => self.sockets.hold_alone(&client),
                Seen::InDoubt => {
                    if self.shown.is_whole(&client, &self.judged) {
                        self.sockets.end_socket_in_doubt(&client);
                    }
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
    InDoubt,
    Alone,
}

fn read(shown: ShownHead<'_>) -> (FlowKey, u32, Seen) {
    let seen = match shown.what {
        What::Asleep => Seen::Asleep,
        What::InDoubt => Seen::InDoubt,
        What::Alone => Seen::Alone,
        What::Response => Seen::Response(span(response_end(shown.head, shown.method))),
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
