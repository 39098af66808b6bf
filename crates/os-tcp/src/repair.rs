//! State of connected sockets, read and made in repair mode (`TCP_REPAIR` of tcp(7)).
//!
//! A socket in repair mode goes on receiving and acknowledging. So its packets must be held up
//! before [`State::export`], and must not reach the kernel again once the socket is
//! [disconnected](disconnect): the kernel would answer them by a RST.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use fairlead_base::Endpoint;
use fairlead_tcp::pairing::{Leg, Scales, Stamps};
use libc::c_int;

use crate::sys::{self, Name};

const TCP: c_int = libc::IPPROTO_TCP;
const TCP_TIMESTAMP: c_int = 24;
const TCP_REPAIR_WINDOW: c_int = 29;
const TCP_REPAIR_OPTIONS: c_int = 22;
const TCP_ULP: c_int = 31;
const SO_NETNS_COOKIE: c_int = 71;
const SO_BUF_LOCK: c_int = 72;
const SIOCINQ: libc::c_ulong = 0x541b;
const SIOCOUTQ: libc::c_ulong = 0x5411;
/// Of these, bytes that were not sent yet.
const SIOCOUTQNSD: libc::c_ulong = 0x894b;

/// Values of `TCP_REPAIR`.
const ON: u32 = 1;
const OFF: u32 = 0;
const OFF_WITHOUT_PROBE: u32 = -1_i32 as u32;

/// Values of `TCP_REPAIR_QUEUE`.
const NO_QUEUE: u32 = 0;
const RECEIVE_QUEUE: u32 = 1;
const SEND_QUEUE: u32 = 2;

/// The bit of `TCP_TIMESTAMP` by which a socket's clock counts microseconds, from Linux 6.7 on.
const MICROSECONDS: u32 = 1;

/// Kinds of TCP options, for `TCP_REPAIR_OPTIONS`.
const KIND_MSS: u32 = 2;
const KIND_WINDOW_SCALE: u32 = 3;
const KIND_SACK: u32 = 4;
const KIND_TIMESTAMPS: u32 = 8;

/// Bits of `tcpi_options`.
const HAS_TIMESTAMPS: u8 = 1;
const HAS_SACK: u8 = 2;
const HAS_SCALES: u8 = 4;
const HAS_ECN: u8 = 8;

/// What the timestamps option takes of each segment, bytes.
const TIMESTAMPS_BYTES: u32 = 12;

/// How often the state is read until it is the same twice.
const READS_MAX: usize = 50;

/// Bytes that [`drain`] moves at once.
const CHUNK_BYTES: usize = 64 << 10;

/// Why a descriptor is not a socket that can be handed off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// It is no connected TCP socket.
    NotTcp,
    /// It belongs to another network namespace.
    Namespace,
    /// It uses a feature whose state cannot be exported.
    Feature,
}

/// Whose connection a socket is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Its own address and port.
    pub local: Endpoint,
    /// Its peer's.
    pub peer: Endpoint,
}

/// The number of the network namespace that this thread is in.
///
/// # Errors
/// Before Linux 5.14.
pub fn own_namespace() -> io::Result<u64> {
    let socket = sys::socket(libc::AF_INET, libc::SOCK_DGRAM, 0)?;
    namespace_of(socket.as_fd())
}

fn namespace_of(socket: BorrowedFd<'_>) -> io::Result<u64> {
    let mut room = [0; 8];
    sys::option_bytes(socket, libc::SOL_SOCKET, SO_NETNS_COOKIE, &mut room)?;
    Ok(u64::from_ne_bytes(room))
}

impl Identity {
    /// Looks at a descriptor that somebody else sent; it may be of any kind. `namespace` as of
    /// [`own_namespace`].
    ///
    /// # Errors
    /// Why it cannot be handed off.
    pub fn of(socket: BorrowedFd<'_>, namespace: u64) -> Result<Self, Refused> {
        let option = |name| sys::option(socket, libc::SOL_SOCKET, name).ok();
        let is = |name, value: c_int| option(name) == Some(value as u32);
        let family = is(libc::SO_DOMAIN, libc::AF_INET) || is(libc::SO_DOMAIN, libc::AF_INET6);
        if !family || !is(libc::SO_TYPE, libc::SOCK_STREAM) {
            return Err(Refused::NotTcp);
        }
        if is(libc::SO_PROTOCOL, libc::IPPROTO_MPTCP) {
            return Err(Refused::Feature);
        }
        if !is(libc::SO_PROTOCOL, TCP) || is(libc::SO_ACCEPTCONN, 1) {
            return Err(Refused::NotTcp);
        }
        if namespace_of(socket).ok() != Some(namespace) {
            return Err(Refused::Namespace);
        }
        let mut layer = [0; 16];
        let layered = sys::option_bytes(socket, TCP, TCP_ULP, &mut layer);
        if layered.is_ok_and(|bytes| bytes > 0) {
            return Err(Refused::Feature);
        }
        let end = |of_peer| sys::name(socket, of_peer).ok()?.endpoint();
        match (end(false), end(true)) {
            (Some(local), Some(peer)) => Ok(Self { local, peer }),
            _ => Err(Refused::NotTcp),
        }
    }
}

/// The last value of its peer's timestamps is not in a socket's exported state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PeerClock {
    /// It was seen in a packet.
    Seen(u32),
    /// It is not known, or there are no timestamps.
    Unknown,
}

/// The state of a connected socket with empty queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct State {
    /// What a pair is made of.
    pub leg: Leg,
    /// The last segment that moved the window.
    pub window_at: u32,
    /// The number up to which the peer was last told its window.
    pub told_at: u32,
    /// Sizes of the send and the receive buffer, bytes, as they are set.
    pub buffers: [u32; 2],
    /// The family of the socket, which for addresses of IPv4 may be IPv6's.
    pub family: c_int,
    /// Its timestamps count microseconds, not milliseconds (Linux 6.7, `features tcp_usec_ts` of a
    /// route).
    pub microseconds: bool,
}

/// Enters repair mode. The socket sends nothing of its own accord from now on, and leaves no trace
/// when it is closed.
///
/// # Errors
/// EPERM without CAP_NET_ADMIN, or if the socket is neither connected nor closed.
pub fn enter(socket: BorrowedFd<'_>) -> io::Result<()> {
    sys::set(socket, TCP, libc::TCP_REPAIR, ON)
}

/// Leaves repair mode; `probe`: by a segment that makes the peer answer. The socket's address may
/// be used by others then. The kernel forgets in repair mode that it could be, and a program that
/// begins anew could not listen on its port while a connection of before is in TIME_WAIT.
///
/// # Errors
/// What the kernel says.
pub fn leave(socket: BorrowedFd<'_>, probe: bool) -> io::Result<()> {
    sys::set(socket, TCP, libc::TCP_REPAIR_QUEUE, NO_QUEUE)?;
    let off = if probe { OFF } else { OFF_WITHOUT_PROBE };
    sys::set(socket, TCP, libc::TCP_REPAIR, off)?;
    sys::set(socket, libc::SOL_SOCKET, libc::SO_REUSEADDR, 1)
}

/// True for a socket in repair mode.
pub fn is_silent(socket: BorrowedFd<'_>) -> bool {
    sys::option(socket, TCP, libc::TCP_REPAIR).is_ok_and(|mode| mode == ON)
}

/// Makes a socket in repair mode forget its connection, without a word to the peer. Its addresses
/// are free then.
///
/// # Errors
/// What the kernel says.
pub fn disconnect(socket: BorrowedFd<'_>) -> io::Result<()> {
    sys::connect(socket, &Name::empty()) // all zeros: AF_UNSPEC
}

/// To be called after [`leave`] of a socket that was made: its buffers grow as they are needed.
///
/// # Errors
/// What the kernel says.
pub fn settle(socket: BorrowedFd<'_>) -> io::Result<()> {
    // Linux 5.14; without it the buffers keep their sizes.
    let _ = sys::set(socket, libc::SOL_SOCKET, SO_BUF_LOCK, 0);
    Ok(())
}

/// As [`disconnect`], and leaves repair mode. The socket keeps its address and port, so that the
/// kernel chooses neither for a connection of another one. Where somebody listens there, nobody
/// chooses that port, and it cannot be kept.
///
/// # Errors
/// What the kernel says: EADDRINUSE where somebody listens. The connection is forgotten all the
/// same.
pub fn park(socket: BorrowedFd<'_>, local: Endpoint) -> io::Result<()> {
    disconnect(socket)?;
    leave(socket, false)?;
    let family = sys::option(socket, libc::SOL_SOCKET, libc::SO_DOMAIN)? as c_int;
    sys::bind(socket, &Name::of(local, family))
}

/// Keeps a socket in repair mode from probing its peer.
///
/// # Errors
/// What the kernel says.
pub fn hush(socket: BorrowedFd<'_>) -> io::Result<()> {
    sys::set(socket, libc::SOL_SOCKET, libc::SO_KEEPALIVE, 0)
}

/// Bytes received and not read, and bytes written and not acknowledged.
///
/// # Errors
/// What the kernel says.
pub fn queues(socket: BorrowedFd<'_>) -> io::Result<(u32, u32)> {
    let unread = sys::queue_bytes(socket, SIOCINQ)?;
    Ok((unread, sys::queue_bytes(socket, SIOCOUTQ)?))
}

/// Makes the peer show what it has received: by a segment from before its window, which it answers
/// at once. Without this it may wait with its acknowledgement until it has data to send.
///
/// # Errors
/// As of [`enter`].
pub fn ask(socket: BorrowedFd<'_>) -> io::Result<()> {
    in_repair(socket, true, |_| Ok(()))
}

/// The number of the next byte that would be written.
fn written_up_to(socket: BorrowedFd<'_>) -> io::Result<u32> {
    in_repair(socket, false, next_to_write)
}

/// The same of a socket in repair mode.
///
/// # Errors
/// What the kernel says.
pub(crate) fn next_to_write(socket: BorrowedFd<'_>) -> io::Result<u32> {
    queue_number(socket, SEND_QUEUE)
}

/// Does something in repair mode, and leaves it; `probe`: see [`leave`].
fn in_repair<T>(
    socket: BorrowedFd<'_>,
    probe: bool,
    work: impl FnOnce(BorrowedFd<'_>) -> io::Result<T>,
) -> io::Result<T> {
    // Repair mode forgets it.
    let reuse = sys::option(socket, libc::SOL_SOCKET, libc::SO_REUSEADDR)?;
    enter(socket)?;
    let outcome = work(socket);
    leave(socket, probe)?;
    sys::set(socket, libc::SOL_SOCKET, libc::SO_REUSEADDR, reuse)?;
    outcome
}

/// Writes what was received on each of two sockets to the other, until nothing is left in any
/// queue. No byte is lost or kept in between: what the other one does not take stays where it is.
/// An end that could acknowledge the last bytes is [asked](ask) to. What `heard` has of an end, 0
/// or 1, counts as well: the furthest acknowledgement that came and did not reach the socket.
/// Returns how many bytes went from the first to the second and back; false beside them if bytes
/// were left when `patience` ended.
///
/// # Errors
/// A socket failed.
pub fn drain(
    first: BorrowedFd<'_>,
    second: BorrowedFd<'_>,
    mut heard: impl FnMut(usize) -> Option<u32>,
    patience: Duration,
) -> io::Result<([u64; 2], bool)> {
    let until = Instant::now() + patience;
    let mut room = vec![0; CHUNK_BYTES];
    let mut moved = [0; 2];
    let mut ends = [first, second].map(|socket| Drained {
        socket,
        asked: None,
        known: None,
    });
    loop {
        let to_second = pass_on(first, second, &mut room)?;
        let to_first = pass_on(second, first, &mut room)?;
        moved[0] += to_second;
        moved[1] += to_first;
        let now = Instant::now();
        let unread = [queues(first)?.0, queues(second)?.0];
        let mut is_empty = unread == [0, 0];
        for (at, end) in ends.iter_mut().enumerate() {
            // What waits for it in the other socket comes first.
            let is_whole = unread[1 - at] == 0;
            is_empty &= end.is_empty(is_whole, || heard(at), now)?;
        }
        if is_empty || now >= until {
            return Ok((moved, is_empty));
        }
        std::thread::sleep(PAUSE);
    }
}

/// One of two sockets that are drained.
struct Drained<'a> {
    socket: BorrowedFd<'a>,
    /// When its end was asked what it has received.
    asked: Option<Instant>,
    /// An acknowledgement that was heard of, how many bytes lacked theirs then, and whether it was
    /// of everything.
    known: Option<(u32, u32, bool)>,
}

impl Drained<'_> {
    /// Whether its end has everything. It is asked, if everything was sent to it (`is_whole`).
    fn is_empty(
        &mut self,
        is_whole: bool,
        heard: impl FnOnce() -> Option<u32>,
        now: Instant,
    ) -> io::Result<bool> {
        let (socket, out) = (self.socket, queues(self.socket)?.1);
        if out == 0 {
            return Ok(true);
        }
        // Asked too early, an end answers too early, and no second time for half a second.
        if !is_whole || unsent(socket)? != 0 {
            return Ok(false);
        }
        if let Some(heard) = heard() {
            let known = self
                .known
                .filter(|known| (known.0, known.1) == (heard, out));
            let is_all = match known {
                Some((.., is_all)) => is_all,
                None => heard == written_up_to(socket)?,
            };
            self.known = Some((heard, out, is_all));
            if is_all {
                return Ok(true);
            }
        }
        if self.asked.is_none_or(|at| now >= at + ASK_PAUSE) {
            ask(socket)?;
            self.asked = Some(now);
        }
        Ok(false)
    }
}

/// Between two looks at queues that are not empty yet.
const PAUSE: Duration = Duration::from_micros(20);
/// Until an end is asked again: the question, or its answer, may have been lost.
const ASK_PAUSE: Duration = Duration::from_millis(100);

/// Moves what is there now.
fn pass_on(from: BorrowedFd<'_>, to: BorrowedFd<'_>, room: &mut [u8]) -> io::Result<u64> {
    let mut moved = 0;
    loop {
        let peek = sys::receive(from, room, libc::MSG_PEEK | libc::MSG_DONTWAIT);
        let got = match would_block(peek)? {
            None | Some(0) => return Ok(moved),
            Some(got) => got,
        };
        let sent = sys::send(to, &room[..got], libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL);
        let Some(sent) = would_block(sent)? else {
            return Ok(moved);
        };
        // Only now is it read, so that nobody has to keep it.
        let mut left = sent;
        while left > 0 {
            left -= sys::receive(from, &mut room[..left], libc::MSG_DONTWAIT)?.max(1);
        }
        moved += sent as u64;
    }
}

fn would_block(outcome: io::Result<usize>) -> io::Result<Option<usize>> {
    match outcome {
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
        Err(error) => Err(error),
    }
}

/// Puts bytes into a queue of a socket in repair mode.
fn fill(socket: BorrowedFd<'_>, queue: u32, bytes: &[u8]) -> io::Result<()> {
    if bytes.is_empty() {
        return Ok(());
    }
    sys::set(socket, TCP, libc::TCP_REPAIR_QUEUE, queue)?;
    let mut left = bytes;
    while !left.is_empty() {
        let part = &left[..left.len().min(CHUNK_BYTES)];
        let taken = sys::send(socket, part, libc::MSG_DONTWAIT)?;
        left = &left[taken.max(1).min(left.len())..];
    }
    Ok(())
}

/// The bytes of a queue of a socket in repair mode; `bytes` of them, as they were counted.
fn content(socket: BorrowedFd<'_>, queue: u32, bytes: u32) -> io::Result<Vec<u8>> {
    if bytes == 0 {
        return Ok(Vec::new());
    }
    sys::set(socket, TCP, libc::TCP_REPAIR_QUEUE, queue)?;
    // One more, so that a queue that has grown is noticed.
    let mut room = vec![0; bytes as usize + 1];
    let got = sys::receive(socket, &mut room, libc::MSG_PEEK | libc::MSG_DONTWAIT)?;
    room.truncate(got);
    Ok(room)
}

/// The content of both queues of a socket in repair mode: received and not read, sent and not
/// acknowledged.
///
/// # Errors
/// What the kernel says.
pub(crate) fn contents(
    socket: BorrowedFd<'_>,
    (unread, unacknowledged): (u32, u32),
) -> io::Result<[Vec<u8>; 2]> {
    Ok([
        content(socket, RECEIVE_QUEUE, unread)?,
        content(socket, SEND_QUEUE, unacknowledged)?,
    ])
}

/// Bytes that were written and not sent yet.
///
/// # Errors
/// What the kernel says.
pub(crate) fn unsent(socket: BorrowedFd<'_>) -> io::Result<u32> {
    sys::queue_bytes(socket, SIOCOUTQNSD)
}

/// Whether both ends have agreed to timestamps.
///
/// # Errors
/// What the kernel says.
pub fn has_timestamps(socket: BorrowedFd<'_>) -> io::Result<bool> {
    Ok(Agreed::of(socket)?.has(HAS_TIMESTAMPS))
}

/// The number of the next byte of a queue.
fn queue_number(socket: BorrowedFd<'_>, queue: u32) -> io::Result<u32> {
    sys::set(socket, TCP, libc::TCP_REPAIR_QUEUE, queue)?;
    sys::option(socket, TCP, libc::TCP_QUEUE_SEQ)
}

/// `struct tcp_info`, as far as it is needed.
struct Agreed {
    state: u8,
    options: u8,
    scales: u8,
    path_mtu: u32,
    advertised: u32,
}

impl Agreed {
    fn of(socket: BorrowedFd<'_>) -> io::Result<Self> {
        let mut room = [0; 104];
        let bytes = sys::option_bytes(socket, TCP, libc::TCP_INFO, &mut room)?;
        if bytes < room.len() {
            return Err(io::Error::other("TCP_INFO is too short"));
        }
        let word = |at: usize| {
            let word = room[at..].first_chunk();
            word.map_or(0, |w| u32::from_ne_bytes(*w))
        };
        Ok(Self {
            state: room[0],
            options: room[5],
            scales: room[6],
            path_mtu: word(60),
            advertised: word(84),
        })
    }

    /// The segment size that the socket said in its SYN. The kernel's figure lacks the timestamps
    /// option, unless the socket was restored; no host offers more than its interface takes.
    fn own_mss(&self, v4: bool) -> u32 {
        let headers = if v4 { 40 } else { 60 };
        let option = match self.has(HAS_TIMESTAMPS) {
            true => TIMESTAMPS_BYTES,
            false => 0,
        };
        let possible = self.path_mtu.saturating_sub(headers);
        (self.advertised + option).min(possible.max(self.advertised))
    }

    fn has(&self, option: u8) -> bool {
        self.options & option != 0
    }
}

/// `struct tcp_repair_window`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Window {
    at: u32,
    now: u32,
    most: u32,
    promised: u32,
    told_at: u32,
}

impl Window {
    fn of(socket: BorrowedFd<'_>) -> io::Result<Self> {
        let mut room = [0; 20];
        sys::option_bytes(socket, TCP, TCP_REPAIR_WINDOW, &mut room)?;
        let word = |at: usize| {
            room[at * 4..]
                .first_chunk()
                .map_or(0, |w| u32::from_ne_bytes(*w))
        };
        Ok(Self {
            at: word(0),
            now: word(1),
            most: word(2),
            promised: word(3),
            told_at: word(4),
        })
    }
}

/// The numbers that a packet may change while they are read.
fn moving_part(socket: BorrowedFd<'_>) -> io::Result<([u32; 2], (u32, u32), Window)> {
    let numbers = [
        queue_number(socket, RECEIVE_QUEUE)?,
        queue_number(socket, SEND_QUEUE)?,
    ];
    Ok((numbers, queues(socket)?, Window::of(socket)?))
}

impl State {
    /// Reads the state of a socket in repair mode. Bytes in queues are counted and not read.
    ///
    /// # Errors
    /// What the kernel says; `TimedOut` if the state is never the same twice.
    pub fn export(
        socket: BorrowedFd<'_>,
        identity: Identity,
        clock: PeerClock,
    ) -> io::Result<Self> {
        let agreed = Agreed::of(socket)?;
        let mss = sys::option(socket, TCP, libc::TCP_MAXSEG)?;
        let own = sys::option(socket, TCP, TCP_TIMESTAMP)?;
        let mut last = moving_part(socket)?;
        let mut reads = 1;
        let (numbers, (unread, unacknowledged), window) = loop {
            let next = moving_part(socket)?;
            if next == last {
                break next;
            }
            reads += 1;
            if reads > READS_MAX {
                return Err(io::ErrorKind::TimedOut.into());
            }
            last = next;
        };
        let stamped = agreed.has(HAS_TIMESTAMPS);
        let own_mss = agreed.own_mss(identity.local.addr.is_v4());
        let timestamps = match (stamped, clock) {
            (true, PeerClock::Seen(peer)) => Some(Stamps { own, peer }),
            (true, PeerClock::Unknown) => return Err(io::ErrorKind::NotFound.into()),
            (false, _) => None,
        };
        Ok(Self {
            leg: Leg {
                local: identity.local,
                peer: identity.peer,
                state: agreed.state,
                rcv_nxt: numbers[0],
                write_seq: numbers[1],
                unread,
                unacknowledged,
                timestamps,
                sack: agreed.has(HAS_SACK),
                scales: agreed.has(HAS_SCALES).then_some(Scales {
                    peer: agreed.scales & 15,
                    own: agreed.scales >> 4,
                }),
                ecn: agreed.has(HAS_ECN),
                mss: mss.min(u32::from(u16::MAX)) as u16,
                own_mss: own_mss.min(u32::from(u16::MAX)) as u16,
                window: window.now,
                window_max: window.most,
                promised: window.promised,
            },
            window_at: window.at,
            told_at: window.told_at,
            buffers: [
                sys::option(socket, libc::SOL_SOCKET, libc::SO_SNDBUF)? / 2,
                sys::option(socket, libc::SOL_SOCKET, libc::SO_RCVBUF)? / 2,
            ],
            family: sys::option(socket, libc::SOL_SOCKET, libc::SO_DOMAIN)? as c_int,
            microseconds: stamped && own & MICROSECONDS != 0,
        })
    }

    /// A socket in this state, in repair mode: it sends nothing until [`leave`], by which time its
    /// packets must find it. Its queues are empty.
    ///
    /// # Errors
    /// What the kernel says: EADDRNOTAVAIL while another socket has the addresses.
    pub fn restore(&self) -> io::Result<OwnedFd> {
        let socket = sys::socket(self.family, libc::SOCK_STREAM, 0)?;
        self.restore_in(socket.as_fd())?;
        Ok(socket)
    }

    /// As [`Self::restore`], in a socket without a connection: a new one, or one that was
    /// [disconnected](disconnect).
    ///
    /// # Errors
    /// As there.
    pub fn restore_in(&self, fd: BorrowedFd<'_>) -> io::Result<()> {
        self.restore_filled(fd, &[], &[])
    }

    /// As [`Self::restore_in`], with these bytes in the queues: received and not read, sent and not
    /// acknowledged.
    ///
    /// # Errors
    /// As there.
    pub fn restore_filled(
        &self,
        fd: BorrowedFd<'_>,
        received: &[u8],
        sent: &[u8],
    ) -> io::Result<()> {
        let leg = &self.leg;
        enter(fd)?; // forces the reuse of addresses, too
        self.set_buffers(fd);
        // Set before the connection, or the first segments are tiny. Loopback's is refused.
        if leg.mss <= 32_767 {
            sys::set(fd, TCP, libc::TCP_MAXSEG, u32::from(leg.mss))?;
        }
        let name = |endpoint| Name::of(endpoint, self.family);
        sys::bind(fd, &name(leg.local))?;
        let queues = [
            (RECEIVE_QUEUE, leg.rcv_nxt, received),
            (SEND_QUEUE, leg.write_seq, sent),
        ];
        for (queue, number, bytes) in queues {
            let first = number.wrapping_sub(bytes.len() as u32);
            sys::set(fd, TCP, libc::TCP_REPAIR_QUEUE, queue)?;
            sys::set(fd, TCP, libc::TCP_QUEUE_SEQ, first)?;
        }
        sys::connect(fd, &name(leg.peer))?;
        sys::set_bytes(fd, TCP, TCP_REPAIR_OPTIONS, &self.options())?;
        if let Some(stamps) = leg.timestamps {
            sys::set(fd, TCP, TCP_TIMESTAMP, self.clock(stamps.own))?;
        }
        for (queue, _, bytes) in queues {
            fill(fd, queue, bytes)?;
        }
        sys::set_bytes(fd, TCP, TCP_REPAIR_WINDOW, &self.window())
    }

    fn set_buffers(&self, socket: BorrowedFd<'_>) {
        let names = [
            (libc::SO_SNDBUFFORCE, libc::SO_SNDBUF),
            (libc::SO_RCVBUFFORCE, libc::SO_RCVBUF),
        ];
        for ((force, plain), bytes) in names.into_iter().zip(self.buffers) {
            // In a user namespace only up to the system's limit.
            if sys::set(socket, libc::SOL_SOCKET, force, bytes).is_err() {
                let _ = sys::set(socket, libc::SOL_SOCKET, plain, bytes);
            }
        }
    }

    /// The next value of the clock that says what it counts.
    fn clock(&self, own: u32) -> u32 {
        let is_said = own & MICROSECONDS != 0;
        own.wrapping_add(u32::from(is_said != self.microseconds))
    }

    /// Pairs of kind and value.
    fn options(&self) -> Vec<u8> {
        let leg = &self.leg;
        let mut pairs = Vec::new();
        if leg.sack {
            pairs.push((KIND_SACK, 0));
        }
        if let Some(scales) = leg.scales {
            let both = u32::from(scales.peer) | u32::from(scales.own) << 16;
            pairs.push((KIND_WINDOW_SCALE, both));
        }
        if leg.timestamps.is_some() {
            pairs.push((KIND_TIMESTAMPS, 0));
        }
        pairs.push((KIND_MSS, u32::from(leg.mss)));
        let words = pairs.into_iter().flat_map(|(kind, value)| [kind, value]);
        words.flat_map(u32::to_ne_bytes).collect()
    }

    /// The kernel refuses a window that was moved by a segment beyond the promise, although it can
    /// have got there by itself.
    fn window(&self) -> Vec<u8> {
        let leg = &self.leg;
        let edge = leg.rcv_nxt.wrapping_add(leg.promised);
        let is_beyond = (edge.wrapping_sub(self.window_at) as i32) < 0;
        let at = if is_beyond {
            leg.rcv_nxt
        } else {
            self.window_at
        };
        let words = [at, leg.window, leg.window_max, leg.promised, self.told_at];
        words.into_iter().flat_map(u32::to_ne_bytes).collect()
    }
}
