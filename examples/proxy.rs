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
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use fairlead_client::{Carrier, Cid, Event, Refusal, wait_for_any};

/// How often a handoff is tried again that was refused for now.
const TRIES: u32 = 20;

/// How long a connection waits for bytes, and one that is to be handed off.
const LATER: Duration = Duration::from_secs(1);
const SOON: Duration = Duration::from_millis(2);

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

/// Serves one pair of connections until it is handed off, or over.
fn run(shared: &Shared, client: TcpStream, server: TcpStream, before: u64, after: u64) {
    let mut copied = before;
    let mut tries = TRIES;
    let rooms = Arc::clone(&shared.lock().expect("no thread panics").rooms);
    let seen = rooms.load(Ordering::Acquire);
    let mut is_due = false;
    loop {
        let patience = if is_due { SOON } else { LATER };
        match copy_some(&client, &server, patience) {
            Ok(0) => {}
            Ok(count) => copied += count,
            Err(error) => return say(&format!("ended after {copied} bytes: {error}")),
        }
        // The carrier asks for connections, or this one has carried enough.
        let is_wanted = rooms.load(Ordering::Acquire) != seen;
        is_due = (is_wanted || copied >= before.saturating_add(after)) && tries > 0;
        if !is_due {
            continue;
        }
        // While another one is handed off, this one goes on.
        let Ok(mut state) = shared.try_lock() else {
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
                tries = if for_now.contains(&reason) {
                    tries - 1
                } else {
                    0
                };
                if tries == 0 {
                    say(&format!("refused: {}", reason.name()));
                }
            }
            // It is not there, and has seen nothing of these two.
            Err(error) if error.kind() == ErrorKind::BrokenPipe => {}
            Err(error) => return say(&format!("Fairlead does not answer: {error}")),
        }
    }
}

/// Copies what comes in this time, each way once: bytes in both directions, all of them written.
fn copy_some(client: &TcpStream, server: &TcpStream, patience: Duration) -> std::io::Result<u64> {
    let fds = [client.as_fd(), server.as_fd()];
    let ready = wait_for_any(&fds, patience)?;
    let mut copied = 0;
    for (is_ready, mut from, mut to) in [(ready[0], client, server), (ready[1], server, client)] {
        if is_ready {
            let mut bytes = [0; 65_536];
            let count = from.read(&mut bytes)?;
            if count == 0 {
                return Err(ErrorKind::UnexpectedEof.into());
            }
            to.write_all(&bytes[..count])?;
            copied += count as u64;
        }
    }
    Ok(copied)
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
