//! The sockets of the front, on one thread.
//!
//! Sockets are watched by edges: once one has been found empty, or full, it is left alone until the
//! kernel says otherwise.

use std::io::{self, IoSlice, Read, Write};
use std::net::{Shutdown, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::time::{Duration, Instant as Clock, SystemTime};

use fairlead_base::{Endpoint, Instant};
use fairlead_http_front::{Action, ConnId, Counts, FilePart, Front};
use fairlead_os_tcp::heirs::is_connection;
use fairlead_os_tcp::pass;
use mio::net::{TcpListener, TcpStream};
use mio::unix::SourceFd;
use mio::{Events, Interest, Poll, Token};
use socket2::SockRef;

use super::desk::Desk;
use super::files::Files;
use super::handoffs::{Handoffs, Moved, Pair, reset};
use super::hits::KernelHits;

/// How often time-outs are looked for.
const TICK: Duration = Duration::from_millis(100);
/// Readiness that is read at once.
const EVENTS: usize = 256;
/// Actions between two looks at other sockets.
const ACTIONS_MAX: usize = 1_024;

/// How long a reload waits for answers from caches: nearly all are sent by then.
const CACHE_PATIENCE: Duration = Duration::from_millis(300);

/// How long it waits for pairs that are being handed off. Nobody serves them meanwhile, so they
/// come back soon.
const MOVE_PATIENCE: Duration = Duration::from_secs(2);

/// More is sent right behind it. The same on all of Linux's architectures.
const MSG_MORE: i32 = 0x8000;

const WAKE: Token = Token(usize::MAX);
const PREDECESSOR: Token = Token(usize::MAX - 1);
const LISTENERS: usize = usize::MAX - 8;

/// The token that wakes the thread.
pub(super) const fn wake_token() -> Token {
    WAKE
}

struct Socket {
    stream: TcpStream,
    generation: u32,
    /// It may have bytes.
    readable: bool,
    /// It may have room.
    writable: bool,
    /// Its end may be behind the bytes that it has.
    ends: bool,
    connecting: bool,
}

/// A front and its sockets.
pub(super) struct Driver {
    front: Front,
    poll: Poll,
    listeners: Vec<TcpListener>,
    /// To the listeners from this one on the switch connects for clients that it announces.
    announced: usize,
    sockets: Vec<Option<Socket>>,
    /// Those that the front has released.
    released: Vec<TcpStream>,
    /// Where released ones go.
    heir: Option<OwnedFd>,
    /// Where those come from that the run before has released.
    predecessor: Option<OwnedFd>,
    desk: Arc<Desk>,
    files: Files,
    hits: Option<KernelHits>,
    /// Where upgraded connections go.
    handoffs: Option<Handoffs>,
    /// Until then requests may go on with their caches, before the process executes another
    /// program.
    leaves_by: Option<Instant>,
    started: Clock,
    now: Instant,
}

impl Driver {
    pub(super) fn new(
        front: Front,
        poll: Poll,
        (mut listeners, announced): (Vec<TcpListener>, usize),
        predecessor: Option<OwnedFd>,
        desk: Arc<Desk>,
    ) -> io::Result<Self> {
        if let Some(from) = &predecessor {
            let mut from = SourceFd(&from.as_raw_fd());
            poll.registry()
                .register(&mut from, PREDECESSOR, Interest::READABLE)?;
        }
        for (index, listener) in listeners.iter_mut().enumerate() {
            let token = Token(LISTENERS + index);
            poll.registry()
                .register(listener, token, Interest::READABLE)?;
        }
        Ok(Self {
            front,
            poll,
            listeners,
            announced,
            sockets: Vec::new(),
            released: Vec::new(),
            heir: None,
            predecessor,
            desk,
            files: Files::default(),
            hits: None,
            handoffs: None,
            leaves_by: None,
            started: Clock::now(),
            now: Instant::ZERO,
        })
    }

    /// Puts caches into files. Clients that connect meanwhile wait.
    pub(super) fn open_files(&mut self, instance: &str) {
        self.front.set_wall_clock(self.now, wall_ms());
        self.files = Files::open(instance, &mut self.front, self.now);
    }

    /// Has upgraded connections go to the fast path.
    pub(super) fn hand_off_by(&mut self, handoffs: Handoffs) {
        self.front.let_tunnels_leave(true);
        self.handoffs = Some(handoffs);
    }

    /// Goes on from the counters of a front that has failed.
    pub(super) fn go_on_counting(&mut self, counts: Counts) {
        self.front.go_on_counting(counts);
    }

    /// Resets all connections, without the front: nobody is to take a part of a response for the
    /// whole.
    pub(super) fn cut(&mut self) {
        self.give_hits_back();
        for socket in self.sockets.iter().flatten() {
            let _ = SockRef::from(&socket.stream).set_linger(Some(Duration::ZERO));
        }
    }

    /// Leaves the kernel program to another front, with nothing to answer.
    fn give_hits_back(&mut self) {
        if let Some(mut hits) = self.hits.take() {
            hits.withdraw_all(self.now);
            self.desk.leave_hits(hits);
        }
    }

    /// Tells the kernel program what it may answer, and learns what it has.
    fn tend_hits(&mut self) {
        if self.hits.is_none() {
            self.hits = self.desk.take_hits();
            if self.hits.is_some() {
                self.front.answer_in_kernel(true);
            }
        }
        if let Some(hits) = &mut self.hits {
            hits.tend(&mut self.front, self.now);
        }
    }

    /// Tells the kernel program what is not to be answered any more.
    fn follow_hits(&mut self) {
        if let Some(hits) = &mut self.hits {
            hits.follow(&mut self.front, self.now);
        }
    }

    /// Adds clients that the run before gives away.
    fn inherit(&mut self) {
        let mut room = [0];
        loop {
            let Some(from) = &self.predecessor else {
                return;
            };
            match pass::receive(from.as_fd(), &mut room) {
                Ok(None) => return,
                Ok(Some((1.., sockets))) => {
                    for socket in sockets.into_iter().filter(|one| is_connection(one.as_fd())) {
                        self.take_on(TcpStream::from_std(socket.into()));
                    }
                }
                // It has ended.
                Ok(Some(_)) | Err(_) => self.predecessor = None,
            }
        }
    }

    fn take_on(&mut self, stream: TcpStream) {
        let ends = stream.peer_addr().and_then(|client| {
            let listen = stream.local_addr()?;
            Ok((endpoint(client), endpoint(listen)))
        });
        // It may have ended meanwhile.
        let Ok((client, listen)) = ends else { return };
        if let Some(id) = self.front.inherited(self.now, client, listen)
            && self.add(id, stream, false)
        {
            self.receive(id);
            self.act(ACTIONS_MAX);
        }
    }

    /// No client is connected, nor waits for another process.
    pub(super) fn is_idle(&self) -> bool {
        self.front.is_idle() && self.released.is_empty()
    }

    /// The descriptors that [`Self::finish`] needs.
    pub(super) fn descriptors(&self) -> Vec<RawFd> {
        let sockets = self.sockets.iter().flatten().map(|one| &one.stream);
        let sockets = sockets.chain(&self.released).map(AsRawFd::as_raw_fd);
        let listeners = self.listeners.iter().map(AsRawFd::as_raw_fd);
        let own = [self.poll.as_raw_fd()].into_iter().chain(listeners);
        own.chain(sockets).collect()
    }

    /// Serves the requests that are under way, gives their clients to the `heir`, and resets what
    /// is left after `patience`. In a process of its own, without the desk.
    pub(super) fn finish(&mut self, heir: OwnedFd, patience: Duration) {
        self.desk = Arc::default();
        self.handoffs = None;
        self.heir = Some(heir);
        for index in 0..self.listeners.len() {
            self.accept(index);
        }
        self.listeners.clear();
        let until = Instant::ZERO + self.started.elapsed() + patience;
        // If it fails they are reset.
        let _ = self.serve(Some(until));
        self.front.abort(self.now);
        self.act(usize::MAX);
    }

    /// Gives released clients to the heir, as far as it has room.
    fn hand_on(&mut self) {
        while let Some(heir) = &self.heir
            && !self.released.is_empty()
        {
            let from = self.released.len().saturating_sub(pass::DESCRIPTORS_MAX);
            let some: Vec<_> = self.released[from..].iter().map(AsFd::as_fd).collect();
            match pass::send(heir.as_fd(), b"c", &some) {
                Ok(()) => self.released.truncate(from),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(_) => {
                    self.heir = None;
                    self.released.clear();
                }
            }
        }
    }

    /// Serves until the desk says that it is over.
    pub(super) fn run(&mut self) -> io::Result<()> {
        self.serve(None)
    }

    /// Serves until the desk says that it is over, or else the last client's end or `until`.
    fn serve(&mut self, until: Option<Instant>) -> io::Result<()> {
        let mut events = Events::with_capacity(EVENTS);
        let mut tick = Instant::ZERO;
        let mut busy = false;
        loop {
            let patience = if busy { Duration::ZERO } else { TICK };
            match self.poll.poll(&mut events, Some(patience)) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                other => other?,
            }
            self.now = Instant::ZERO + self.started.elapsed();
            for event in &events {
                self.heed(event);
                self.act(ACTIONS_MAX);
            }
            if self.now >= tick {
                tick = self.now + TICK;
                self.front.set_wall_clock(self.now, wall_ms());
                self.front.handle_time(self.now);
                self.tend_hits();
                self.desk.publish(&mut self.front);
            }
            let (files, hits, now) = (&mut self.files, &mut self.hits, self.now);
            let write = |front: &mut Front| {
                files.write(front);
                hits.iter_mut().for_each(|one| one.follow(front, now));
            };
            if self.desk.heed(&mut self.front, self.now, write) {
                self.act(usize::MAX);
                match self.desk.forgets() {
                    true => self.files.remove(),
                    false => self.files.write(&mut self.front),
                }
                self.give_hits_back();
                self.desk.publish(&mut self.front);
                return Ok(());
            }
            self.hand_off();
            busy = self.act(ACTIONS_MAX);
            if until.is_none() && self.may_leave() {
                self.act(usize::MAX);
                return Ok(());
            }
            self.hand_on();
            if until.is_some_and(|until| self.now >= until || self.is_idle()) {
                return Ok(());
            }
        }
    }

    /// The sockets can go on in another process, and the caches' files be opened by a third one.
    fn may_leave(&mut self) -> bool {
        if !self.front.is_releasing() {
            return false;
        }
        let now = self.now;
        let by = *self.leaves_by.get_or_insert_with(|| now + CACHE_PATIENCE);
        let moves = self.handoffs.as_ref().is_some_and(|one| !one.end());
        let waits = self.front.uses_caches() && now < by || moves && now < by + MOVE_PATIENCE;
        if waits {
            return false;
        }
        self.give_hits_back();
        self.files.write(&mut self.front);
        self.front.part_from_caches(now);
        self.files = Files::default();
        self.desk.publish(&mut self.front);
        true
    }

    fn heed(&mut self, event: &mio::event::Event) {
        match event.token() {
            WAKE => {}
            PREDECESSOR => self.inherit(),
            Token(token) if token >= LISTENERS => self.accept(token - LISTENERS),
            Token(token) => {
                let id = id_of(token);
                let Some(socket) = self.socket(id) else {
                    return;
                };
                socket.readable |= event.is_readable() || event.is_error();
                socket.writable |= event.is_writable();
                socket.ends |= event.is_read_closed() || event.is_error();
                if socket.connecting {
                    if event.is_writable() || event.is_error() {
                        self.connected(id);
                    }
                    return;
                }
                if socket.readable {
                    self.receive(id);
                }
                self.send(id);
            }
        }
    }

    fn socket(&mut self, id: ConnId) -> Option<&mut Socket> {
        find(&mut self.sockets, id)
    }

    fn accept(&mut self, index: usize) {
        loop {
            match self.listeners[index].accept() {
                Ok((stream, client)) => {
                    let listen = stream.local_addr().map(endpoint);
                    let Ok(listen) = listen else { continue };
                    let id = match index < self.announced {
                        true => self.front.accepted(self.now, endpoint(client), listen),
                        false => self.front.connected_for(self.now),
                    };
                    let Some(id) = id else { continue };
                    let _ = stream.set_nodelay(true);
                    if self.add(id, stream, false) {
                        // Its first segment came with it.
                        self.receive(id);
                        self.act(ACTIONS_MAX);
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // Nothing more; or no descriptor is left, and the client is refused by its queue.
                Err(_) => return,
            }
        }
    }

    /// Watches a socket. False where it cannot be, and the front has heard that it failed.
    fn add(&mut self, id: ConnId, mut stream: TcpStream, connecting: bool) -> bool {
        let token = token_of(id);
        let interest = Interest::READABLE | Interest::WRITABLE;
        let registered = self.poll.registry().register(&mut stream, token, interest);
        if registered.is_err() {
            self.front.failed(self.now, id);
            return false;
        }
        let index = id.index as usize;
        if self.sockets.len() <= index {
            self.sockets.resize_with(index + 1, || None);
        }
        self.sockets[index] = Some(Socket {
            stream,
            generation: id.generation,
            readable: !connecting,
            writable: !connecting,
            ends: false,
            connecting,
        });
        true
    }

    /// Carries out what the front wants. True if there is more to do.
    fn act(&mut self, most: usize) -> bool {
        for _ in 0..most {
            let Some(action) = self.front.poll_action() else {
                return false;
            };
            match action {
                Action::Connect(id, to) => self.connect(id, to),
                Action::Send(id) => self.send(id),
                Action::Receive(id) => self.receive(id),
                Action::Shut(id) => {
                    if let Some(socket) = self.socket(id) {
                        // If it is closed already, its end is read next.
                        let _ = socket.stream.shutdown(Shutdown::Write);
                    }
                }
                Action::Close(id) => self.close(id, false),
                Action::Reset(id) => self.close(id, true),
                Action::Release(id) => {
                    if let Some(stream) = self.forget(id) {
                        self.released.push(stream);
                    }
                }
            }
        }
        true
    }

    /// Hands upgraded connections off, and hears what became of those before.
    fn hand_off(&mut self) {
        while let Some(moved) = self.handoffs.as_mut().and_then(Handoffs::poll_moved) {
            match moved {
                Moved::Away(client) => self.front.handed_off(self.now, client),
                Moved::Stays { pair, for_now } => self.stays(pair, for_now),
                Moved::Lost(client) => self.front.failed(self.now, client),
                Moved::Back { ends, sockets } => match self.front.handed_back(self.now, &ends) {
                    Some(ids) => self.add_both(Pair { ids, sockets }),
                    None => reset(&sockets),
                },
            }
        }
        while let Some(handoffs) = self.handoffs.as_mut().filter(|one| one.has_room())
            && let Some(ids) = self.front.poll_hand_off()
        {
            let [client, server] = ids.map(|id| forget(&mut self.sockets, &self.poll, id));
            let Some(sockets) = client.zip(server).map(Into::into) else {
                self.front.failed(self.now, ids[0]);
                continue;
            };
            if let Some(pair) = handoffs.hand_off(Pair { ids, sockets }) {
                self.stays(pair, true);
            }
        }
    }

    /// A pair that was to be handed off is copied again.
    fn stays(&mut self, pair: Pair, for_now: bool) {
        let client = pair.ids[0];
        self.add_both(pair);
        self.front.stays(self.now, client, for_now);
    }

    fn add_both(&mut self, pair: Pair) {
        for (id, socket) in pair.ids.into_iter().zip(pair.sockets) {
            // It may have been aborted meanwhile; then its end is a RST.
            if self.front.knows(id) {
                self.add(id, socket, false);
            } else {
                let _ = SockRef::from(&socket).set_linger(Some(Duration::ZERO));
            }
        }
    }

    fn connect(&mut self, id: ConnId, to: Endpoint) {
        match TcpStream::connect(to.to_socket()) {
            Ok(stream) => {
                let _ = stream.set_nodelay(true);
                self.add(id, stream, true);
            }
            Err(_) => self.front.failed(self.now, id),
        }
    }

    fn connected(&mut self, id: ConnId) {
        let Some(socket) = self.socket(id) else {
            return;
        };
        if let Ok(Some(_)) | Err(_) = socket.stream.take_error() {
            return self.front.failed(self.now, id);
        }
        match socket.stream.peer_addr() {
            Ok(_) => {
                socket.connecting = false;
                (socket.readable, socket.writable) = (true, true);
                self.front.connected(self.now, id);
            }
            Err(error) if error.kind() == io::ErrorKind::NotConnected => {}
            Err(_) => self.front.failed(self.now, id),
        }
    }

    fn receive(&mut self, id: ConnId) {
        loop {
            let Some(socket) = find(&mut self.sockets, id) else {
                return;
            };
            if !socket.readable || socket.connecting {
                return;
            }
            let Some(space) = self.front.space(id) else {
                return;
            };
            let room = space.len();
            match socket.stream.read(space) {
                Ok(0) => {
                    socket.readable = false;
                    return self.front.ended(self.now, id);
                }
                Ok(bytes) => {
                    // All of it was there, unless its end is behind it.
                    socket.readable = bytes == room || socket.ends;
                    self.front.received(self.now, id, bytes);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    socket.readable = false;
                    return self.front.received(self.now, id, 0);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return self.front.failed(self.now, id),
            }
        }
    }

    fn send(&mut self, id: ConnId) {
        loop {
            let Some(socket) = find(&mut self.sockets, id) else {
                return;
            };
            if !socket.writable || socket.connecting {
                return;
            }
            if self.front.must_write() {
                self.files.write(&mut self.front);
            }
            self.follow_hits();
            let Some(socket) = find(&mut self.sockets, id) else {
                return;
            };
            let part = self.front.file_part(id);
            let [own, passing] = self.front.output(id);
            let mut is_part = false;
            let written = match (own.is_empty(), passing.is_empty()) {
                (true, true) => {
                    let Some(FilePart { cache, part }) = part else {
                        return;
                    };
                    is_part = true;
                    self.files.send(cache, socket.stream.as_fd(), part)
                }
                // The head waits for the first bytes behind it.
                (false, true) if part.is_some() => {
                    SockRef::from(&socket.stream).send_with_flags(own, MSG_MORE)
                }
                (false, true) => socket.stream.write(own),
                (true, false) => socket.stream.write(passing),
                (false, false) => {
                    let parts = [IoSlice::new(own), IoSlice::new(passing)];
                    socket.stream.write_vectored(&parts)
                }
            };
            match written {
                Ok(bytes) if is_part => self.front.sent_part(self.now, id, bytes),
                Ok(bytes) => self.front.sent(self.now, id, bytes),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    socket.writable = false;
                    return;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => {
                    // A server may have answered before it closed.
                    (socket.readable, socket.writable, socket.ends) = (true, false, true);
                    self.receive(id);
                    return self.front.failed(self.now, id);
                }
            }
        }
    }

    fn close(&mut self, id: ConnId, reset: bool) {
        if let Some(stream) = self.forget(id).filter(|_| reset) {
            let _ = SockRef::from(&stream).set_linger(Some(Duration::ZERO));
        }
    }

    /// Gives up a socket.
    fn forget(&mut self, id: ConnId) -> Option<TcpStream> {
        forget(&mut self.sockets, &self.poll, id)
    }
}

fn forget(sockets: &mut [Option<Socket>], poll: &Poll, id: ConnId) -> Option<TcpStream> {
    find(sockets, id)?;
    let mut socket = sockets[id.index as usize].take()?;
    let _ = poll.registry().deregister(&mut socket.stream);
    Some(socket.stream)
}

fn find(sockets: &mut [Option<Socket>], id: ConnId) -> Option<&mut Socket> {
    let socket = sockets.get_mut(id.index as usize)?.as_mut()?;
    (socket.generation == id.generation).then_some(socket)
}

/// Milliseconds since 1970.
fn wall_ms() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    since.map_or(0, |since| {
        u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
    })
}

fn token_of(id: ConnId) -> Token {
    // The place is below 2³¹, so that no token is that of a listener.
    Token((id.generation as usize) << 31 | id.index as usize)
}

fn id_of(token: usize) -> ConnId {
    ConnId {
        index: (token & 0x7fff_ffff) as u32,
        generation: (token >> 31) as u32,
    }
}

fn endpoint(at: SocketAddr) -> Endpoint {
    Endpoint {
        addr: at.ip().into(),
        port: at.port(),
    }
}
