//! Connections that have changed to another protocol go to the fast path: the front is a proxy that
//! hands pairs off to its own switch (docs/handoff.md).
//!
//! An adoption waits for both ends, so threads of their own do it, each with one pair at a time.
//! Nothing waits for them in a queue: a pair is copied until a thread is free.

use std::io::{self, ErrorKind};
use std::net::TcpStream as Socket;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, SyncSender, channel, sync_channel};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use fairlead_client::{Carrier, Cid, Event, Refusal};
use fairlead_http_front::{ConnId, TunnelEnds};
use fairlead_splice::config::Config;
use mio::net::TcpStream;
use socket2::SockRef;

use super::FrontDesk;
use crate::handoff;

/// Pairs that move at once. A move takes about a round trip to the farther end.
const THREADS: usize = 4;
/// Between two looks at what the carrier says by itself.
const PAUSE: Duration = Duration::from_millis(100);
/// Between two attempts to reach it.
const RETRY: Duration = Duration::from_secs(1);
/// How long it may look for a moment without bytes in flight, to give a pair back.
const GIVE_BACK: Duration = Duration::from_millis(500);

/// How the carrier is reached.
#[derive(Clone, Debug)]
pub(crate) struct Adopts {
    /// `adopt_socket`
    pub(crate) socket: PathBuf,
    /// Knows whose pairs are.
    pub(crate) carrier: Arc<handoff::Carrier>,
}

/// What became of a pair.
pub(super) enum Moved {
    /// The carrier has it.
    Away(ConnId),
    /// It has not; the sockets are as before.
    Stays {
        pair: Pair,
        /// Later it may.
        for_now: bool,
    },
    /// Nobody knows who has it.
    Lost(ConnId),
    /// It came back.
    Back {
        ends: TunnelEnds,
        sockets: [TcpStream; 2],
    },
}

/// A tunnel whose sockets are not watched any more.
pub(super) struct Pair {
    pub(super) ids: [ConnId; 2],
    pub(super) sockets: [TcpStream; 2],
}

/// The threads, as the front sees them.
pub(super) struct Handoffs {
    shared: Arc<Shared>,
    threads: Vec<SyncSender<Pair>>,
    moved: Receiver<(usize, Moved)>,
    /// Threads without a pair.
    free: Vec<usize>,
}

struct Shared {
    adopts: Adopts,
    config: Arc<Config>,
    front: Weak<FrontDesk>,
    /// No pair moves any more, except those that are moving.
    over: AtomicBool,
    /// Pairs that are moving, either way.
    moving: AtomicU32,
}

impl Handoffs {
    /// Starts the threads.
    pub(super) fn start(
        adopts: Adopts,
        config: Arc<Config>,
        front: &Arc<FrontDesk>,
    ) -> io::Result<Self> {
        let shared = Arc::new(Shared {
            adopts,
            config,
            front: Arc::downgrade(front),
            over: AtomicBool::new(false),
            moving: AtomicU32::new(0),
        });
        let (sender, moved) = channel();
        let mut threads = Vec::new();
        for number in 0..THREADS {
            let (orders, pairs) = sync_channel(1);
            let mover = Mover {
                number,
                shared: Arc::clone(&shared),
                pairs,
                moved: sender.clone(),
                carrier: None,
                next: Instant::now(),
            };
            let thread = std::thread::Builder::new().name("front-handoff".to_owned());
            thread.spawn(move || mover.run())?;
            threads.push(orders);
        }
        Ok(Self {
            shared,
            free: (0..THREADS).collect(),
            threads,
            moved,
        })
    }

    /// A pair can move now.
    pub(super) fn has_room(&self) -> bool {
        !self.free.is_empty()
    }

    /// Moves a pair. It comes back at once where no thread is free.
    pub(super) fn hand_off(&mut self, pair: Pair) -> Option<Pair> {
        let Some(thread) = self.free.pop() else {
            return Some(pair);
        };
        self.shared.moving.fetch_add(1, Ordering::AcqRel);
        let refused = self.threads[thread].try_send(pair).err()?;
        self.shared.moving.fetch_sub(1, Ordering::AcqRel);
        let (std::sync::mpsc::TrySendError::Full(pair)
        | std::sync::mpsc::TrySendError::Disconnected(pair)) = refused;
        Some(pair)
    }

    /// What has moved since the last call.
    pub(super) fn poll_moved(&mut self) -> Option<Moved> {
        let (thread, moved) = self.moved.try_recv().ok()?;
        if !matches!(moved, Moved::Back { .. }) {
            self.free.push(thread);
        }
        self.shared.moving.fetch_sub(1, Ordering::AcqRel);
        Some(moved)
    }

    /// Begins no further move. True once nothing moves.
    pub(super) fn end(&self) -> bool {
        self.shared.over.store(true, Ordering::Release);
        self.shared.moving.load(Ordering::Acquire) == 0
    }
}

impl Drop for Handoffs {
    fn drop(&mut self) {
        self.end();
    }
}

/// One thread.
struct Mover {
    number: usize,
    shared: Arc<Shared>,
    pairs: Receiver<Pair>,
    moved: Sender<(usize, Moved)>,
    carrier: Option<Carrier>,
    /// When it is next tried to reach the carrier.
    next: Instant,
}

impl Mover {
    fn run(mut self) {
        loop {
            match self.pairs.recv_timeout(PAUSE) {
                Ok(pair) => {
                    let moved = self.hand_off(pair);
                    self.tell(moved);
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
            self.heed();
        }
    }

    fn tell(&self, moved: Moved) {
        if let Err(unheard) = self.moved.send((self.number, moved)) {
            let (_, moved) = unheard.0;
            // The front has failed: nobody is to take a part for the whole.
            if let Moved::Stays {
                pair: Pair { sockets, .. },
                ..
            }
            | Moved::Back { sockets, .. } = moved
            {
                reset(&sockets);
            }
        }
        if let Some(front) = self.shared.front.upgrade() {
            front.wake();
        }
    }

    /// The carrier, if it can be reached.
    fn carrier(&mut self) -> Option<&mut Carrier> {
        if self.carrier.is_none() && Instant::now() >= self.next {
            self.next = Instant::now() + RETRY;
            self.carrier = Carrier::connect(&self.shared.adopts.socket).ok();
        }
        self.carrier.as_mut()
    }

    fn hand_off(&mut self, pair: Pair) -> Moved {
        let is_over = self.shared.over.load(Ordering::Acquire);
        let Some(carrier) = self.carrier().filter(|_| !is_over) else {
            return Moved::Stays {
                pair,
                for_now: true,
            };
        };
        match carrier.adopt(&pair.sockets[0], &pair.sockets[1]) {
            Ok(Ok(_)) => Moved::Away(pair.ids[0]),
            Ok(Err(reason)) => {
                tracing::debug!("an upgraded connection is copied: {}", reason.meaning());
                let for_now = is_for_now(reason);
                Moved::Stays { pair, for_now }
            }
            Err(error) => {
                self.carrier = None;
                match error.kind() {
                    // It has seen nothing of the pair.
                    ErrorKind::BrokenPipe => Moved::Stays {
                        pair,
                        for_now: true,
                    },
                    _ => {
                        reset(&pair.sockets);
                        Moved::Lost(pair.ids[0])
                    }
                }
            }
        }
    }

    /// Takes pairs back that are to be.
    fn heed(&mut self) {
        while !self.shared.over.load(Ordering::Acquire)
            && let Some(carrier) = self.carrier()
        {
            match carrier.event(Duration::ZERO) {
                Ok(Some(Event::WantedBack { cid, .. })) => self.take_back(cid),
                Ok(Some(Event::Ended { .. } | Event::Room { .. })) => {}
                Ok(None) => return,
                Err(_) => self.carrier = None,
            }
        }
    }

    /// Takes a pair back if it can be of the front. One of an earlier run may be.
    fn take_back(&mut self, cid: Cid) {
        let ends = self.shared.adopts.carrier.ends(cid);
        let Some(ends) = ends.filter(|ends| ends.place(&self.shared.config).is_some()) else {
            return;
        };
        self.shared.moving.fetch_add(1, Ordering::AcqRel);
        let carrier = self.carrier.as_mut();
        let given = carrier.map(|carrier| carrier.give_back(cid, GIVE_BACK));
        let sockets = match given {
            Some(Ok(Ok((client, server)))) => watched(client, server),
            Some(Ok(Err(reason))) => Err(io::Error::other(reason.meaning())),
            Some(Err(error)) => {
                self.carrier = None;
                Err(error)
            }
            None => Err(ErrorKind::NotConnected.into()),
        };
        match sockets {
            Ok(sockets) => self.tell(Moved::Back { ends, sockets }),
            Err(error) => {
                self.shared.moving.fetch_sub(1, Ordering::AcqRel);
                tracing::debug!("an upgraded connection is not taken back: {error}");
            }
        }
    }
}

/// The pair could be handed off at another time.
fn is_for_now(reason: Refusal) -> bool {
    matches!(
        reason,
        Refusal::Busy
            | Refusal::QueueNotEmpty
            | Refusal::Unstable
            | Refusal::Budget
            | Refusal::TableFull
            | Refusal::Unavailable
    )
}

fn watched(client: Socket, server: Socket) -> io::Result<[TcpStream; 2]> {
    for one in [&client, &server] {
        one.set_nonblocking(true)?;
        one.set_nodelay(true)?;
    }
    Ok([client, server].map(TcpStream::from_std))
}

pub(super) fn reset(sockets: &[TcpStream; 2]) {
    for socket in sockets {
        let _ = SockRef::from(socket).set_linger(Some(Duration::ZERO));
    }
}
