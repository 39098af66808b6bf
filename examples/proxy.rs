//! A TCP proxy that hands its connections off to Fairlead.
//!
//! `proxy LISTEN SERVER ADOPT_SOCKET BYTES`: accepts at LISTEN, copies to and from SERVER, and when
//! BYTES have passed hands both connections off. Then it may be killed: they go on. What is given
//! back is handed off again after BYTES more. When Fairlead says that it has room, all connections
//! are handed off at once, whatever they have carried. When Fairlead restarts, it connects again,
//! and takes back what another proxy of its user has handed off, too. Each line on standard output
//! is one thing that happened.

use std::collections::BTreeMap;
use std::error::Error;
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use fairlead_client::{Carrier, Cid, Event, Refusal, wait_for_any};

/// How often a handoff is tried again that was refused for now, after twice as long each time.
const TRIES: u32 = 20;

/// How long a connection waits for bytes, and one that is to be handed off.
const LATER: Duration = Duration::from_secs(1);
const SOON: Duration = Duration::from_millis(2);
/// How long it reads nothing, so that all it has read can be written.
const HOLD: Duration = Duration::from_millis(50);
/// How long it waits for an end that does not read.
const STALLED: Duration = Duration::from_micros(200);

type Shared = Arc<Mutex<State>>;

struct State {
    carrier: Carrier,
    path: PathBuf,
    /// How often Fairlead has said that it has room.
    rooms: Arc<AtomicU64>,
    /// Handed off: bytes copied before.
    away: BTreeMap<Cid, u64>,
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [listen, server, socket, bytes] = &arguments[..] else {
        return Err("usage: proxy LISTEN SERVER ADOPT_SOCKET BYTES".into());
    };
    let after: u64 = bytes.parse()?;
    let state = State {
        carrier: Carrier::connect(socket.as_ref())?,
        path: socket.into(),
        rooms: Arc::default(),
        away: BTreeMap::new(),
    };
    let shared = Arc::new(Mutex::new(state));
    let listener = TcpListener::bind(listen)?;
    say(&format!("listening {}", listener.local_addr()?));
    let of_events = Arc::clone(&shared);
    std::thread::spawn(move || watch(&of_events, after));
    loop {
        let (client, _) = listener.accept()?;
        let server = TcpStream::connect(server)?;
        let shared = Arc::clone(&shared);
        std::thread::spawn(move || run(&shared, client, server, 0, after));
    }
}

fn say(line: &str) {
    let _ = writeln!(std::io::stdout(), "{line}");
}

/// One direction of a pair.
#[derive(Default)]
struct Way {
    /// Read, and not written yet.
    left: Vec<u8>,
    is_over: bool,
}

impl Way {
    /// Copies what comes in this time (if it `reads`), or as much of it as is taken: bytes written.
    fn copy(
        &mut self,
        mut from: &TcpStream,
        mut to: &TcpStream,
        reads: bool,
    ) -> std::io::Result<u64> {
        if reads && self.left.is_empty() && !self.is_over {
            let mut bytes = [0; 65_536];
            match from.read(&mut bytes) {
                Ok(0) => {
                    self.is_over = true;
                    to.shutdown(Shutdown::Write)?;
                }
                Ok(count) => self.left.extend_from_slice(&bytes[..count]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        }
        if self.left.is_empty() {
            return Ok(0);
        }
        match to.write(&self.left) {
            Ok(count) => {
                self.left.drain(..count);
                Ok(count as u64)
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(0),
            Err(error) => Err(error),
        }
    }
}

/// Copies both ways what can be copied; if that is nothing, waits. True once both are over.
fn copy(
    ways: &mut [Way; 2],
    [client, server]: [&TcpStream; 2],
    copied: &mut u64,
    (reads, patience): (bool, Duration),
) -> std::io::Result<bool> {
    let [there, back] = ways;
    let count = there.copy(client, server, reads)? + back.copy(server, client, reads)?;
    *copied += count;
    if count > 0 {
        return Ok(false);
    }
    let fds = [client.as_fd(), server.as_fd()];
    match (there.is_over, back.is_over) {
        (true, true) => return Ok(there.left.is_empty() && back.left.is_empty()),
        // An end does not read: the other one may have more to say all the while.
        _ if !there.left.is_empty() || !back.left.is_empty() => std::thread::sleep(STALLED),
        (false, false) => drop(wait_for_any(&fds, patience)?),
        (true, false) => drop(wait_for_any(&[fds[1]], patience)?),
        (false, true) => drop(wait_for_any(&[fds[0]], patience)?),
    }
    Ok(false)
}

/// When a pair is handed off.
struct Plan {
    tries: u32,
    pause: Duration,
    next: Instant,
    /// Since when nothing is read, so that all that was read can be written.
    held: Option<Instant>,
}

impl Plan {
    fn new() -> Self {
        Self {
            tries: TRIES,
            pause: SOON,
            next: Instant::now(),
            held: None,
        }
    }

    /// It is to be handed off: whether nothing is read now. An end that does not take what is left
    /// may wait for the other one's bytes, so that ends.
    fn holds(&mut self) -> bool {
        let now = Instant::now();
        if now < self.next {
            return false;
        }
        if now >= *self.held.get_or_insert(now) + HOLD {
            self.put_off("an end does not take what was read");
            return false;
        }
        true
    }

    fn put_off(&mut self, why: &str) {
        say(&format!("not yet: {why}"));
        self.held = None;
        self.next = Instant::now() + self.pause;
        self.pause = (2 * self.pause).min(LATER);
    }
}

/// Serves one pair of connections until it is handed off, or over.
fn run(shared: &Shared, client: TcpStream, server: TcpStream, before: u64, after: u64) {
    let mut copied = before;
    let mut plan = Plan::new();
    let rooms = Arc::clone(&shared.lock().expect("no thread panics").rooms);
    let seen = rooms.load(Ordering::Acquire);
    let mut ways = [Way::default(), Way::default()];
    let is_set = [&client, &server].map(|one| one.set_nonblocking(true).is_ok());
    assert_eq!(is_set, [true; 2], "a socket may be asked not to block");
    loop {
        // The carrier asks for connections, or this one has carried enough.
        let is_wanted = rooms.load(Ordering::Acquire) != seen;
        let is_due = (is_wanted || copied >= before.saturating_add(after))
            && plan.tries > 0
            && !ways.iter().any(|way| way.is_over);
        let holds = is_due && plan.holds();
        if !holds || ways.iter().any(|way| !way.left.is_empty()) {
            let how = (!holds, if is_due { SOON } else { LATER });
            match copy(&mut ways, [&client, &server], &mut copied, how) {
                Ok(false) => continue,
                Ok(true) => return say(&format!("ended after {copied} bytes")),
                Err(error) => return say(&format!("ended after {copied} bytes: {error}")),
            }
        }
        // While another one is handed off, this one goes on.
        let Ok(mut state) = shared.try_lock() else {
            plan.next = Instant::now() + SOON;
            continue;
        };
        let begun = Instant::now();
        match state.carrier.adopt(&client, &server) {
            Ok(Ok(cid)) => {
                state.away.insert(cid, copied);
                let micros = begun.elapsed().as_micros();
                return say(&format!(
                    "adopted {} after {copied} bytes in {micros} us",
                    cid.0
                ));
            }
            Ok(Err(reason)) => {
                let for_now = [Refusal::Busy, Refusal::QueueNotEmpty, Refusal::Unstable];
                plan.tries = if for_now.contains(&reason) {
                    plan.tries - 1
                } else {
                    0
                };
                // What the ends sent meanwhile was dropped: they need time to send it again.
                plan.put_off(reason.name());
                if plan.tries == 0 {
                    say(&format!("refused: {}", reason.name()));
                }
            }
            // It is not there, and has seen nothing of these two.
            Err(error) if error.kind() == ErrorKind::BrokenPipe => {
                plan.put_off("Fairlead is not there");
            }
            Err(error) => return say(&format!("Fairlead does not answer: {error}")),
        }
    }
}

/// Reports ends, and takes connections back that are to be.
fn watch(shared: &Shared, after: u64) {
    loop {
        std::thread::sleep(Duration::from_millis(20));
        let mut state = shared.lock().expect("no thread panics");
        match state.carrier.event(Duration::ZERO) {
            Ok(None) => {}
            Err(_) => match Carrier::connect(&state.path) {
                Ok(carrier) => {
                    state.carrier = carrier;
                    say("connected again");
                }
                Err(_) => std::thread::sleep(Duration::from_millis(80)),
            },
            Ok(Some(Event::Ended {
                cid, from, bytes, ..
            })) => {
                state.away.remove(&cid);
                say(&format!("over {} {from:?} {bytes}", cid.0));
            }
            Ok(Some(Event::Room { lines })) => {
                state
                    .rooms
                    .fetch_add(u64::from(lines > 0), Ordering::AcqRel);
                say(&format!("room for {lines}"));
            }
            Ok(Some(Event::WantedBack { cid, .. })) => {
                let begun = Instant::now();
                match state.carrier.give_back(cid, Duration::from_millis(500)) {
                    Ok(Ok((client, server))) => {
                        let before = state.away.remove(&cid).unwrap_or(0);
                        let micros = begun.elapsed().as_micros();
                        say(&format!("back {} in {micros} us", cid.0));
                        let shared = Arc::clone(shared);
                        std::thread::spawn(move || run(&shared, client, server, before, after));
                    }
                    Ok(Err(reason)) => say(&format!("not back: {}", reason.name())),
                    Err(error) => return say(&format!("Fairlead does not answer: {error}")),
                }
            }
        }
    }
}
