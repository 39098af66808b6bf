//! One socket that is watched.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use fairlead_handoff::Cid;
use fairlead_offload::layout::{self, SEND_BYTES, line, state};
use fairlead_offload::{Reason, Turns, ring};
use libc::{c_int, epoll_event, sockaddr_storage, socklen_t};

use crate::channel::Channel;
use crate::options::Options;
use crate::real;

/// Where a connection is.
pub(crate) enum Place {
    /// In the kernel of the host.
    Kernel,
    /// On the card.
    Card(Box<Carried>),
}

/// An address as `getsockname` returns it.
#[derive(Clone, Copy)]
pub(crate) struct Name {
    pub(crate) storage: sockaddr_storage,
    pub(crate) len: socklen_t,
}

/// A connection on the card.
pub(crate) struct Carried {
    pub(crate) channel: Arc<Channel>,
    pub(crate) cid: Cid,
    /// The position behind the last byte that was written.
    pub(crate) sent: u32,
    /// The position behind the last byte that was read.
    pub(crate) read: u32,
    pub(crate) ranges: u32,
    /// The program has ended its stream.
    pub(crate) is_ended: bool,
    /// The error was reported.
    pub(crate) error_is_told: bool,
    /// Tokens that may wait unread, for programs that ask for edges.
    pub(crate) tokens: u32,
    pub(crate) names: [Name; 2],
    pub(crate) options: Options,
}

impl Carried {
    /// A word of the line.
    pub(crate) fn word(&self, word: usize) -> &AtomicU32 {
        let place = layout::word_at(self.cid.line(), word);
        self.channel.memory.word(place)
    }

    pub(crate) fn state(&self) -> u32 {
        self.word(line::STATE).load(Ordering::Acquire)
    }

    /// True if nothing more can come or go.
    pub(crate) fn is_lost(&self) -> bool {
        self.state() & state::RESET != 0 || self.channel.is_dead()
    }

    /// The error of a lost connection: once it, then `later`.
    pub(crate) fn take_error(&mut self, later: c_int) -> c_int {
        if std::mem::replace(&mut self.error_is_told, true) {
            return later;
        }
        match self.word(line::ERROR).load(Ordering::Acquire) as c_int {
            0 => libc::ECONNRESET,
            error => error,
        }
    }

    /// Free bytes of the send buffer. A card that writes nonsense has no room.
    pub(crate) fn room(&self) -> u32 {
        let taken = self.word(line::TAKEN).load(Ordering::Acquire);
        ring::used(self.sent, taken, SEND_BYTES).map_or(0, |used| SEND_BYTES - used)
    }

    /// Ranges that wait.
    pub(crate) fn waiting_ranges(&self) -> u32 {
        let done = self.word(line::RANGES_DONE).load(Ordering::Acquire);
        self.ranges.wrapping_sub(done)
    }
}

/// A call that is made in the kernel. As long as it lasts, no other thread hands the socket off:
/// the call may wait there.
pub(crate) struct InKernel(Option<Arc<AtomicU32>>);

impl InKernel {
    /// Nothing is known of the descriptor.
    pub(crate) const UNWATCHED: Self = Self(None);

    /// True if the socket is known.
    pub(crate) fn is_of_socket(&self) -> bool {
        self.0.is_some()
    }

    /// In the kernel with this socket, which the caller has locked.
    pub(crate) fn with(inner: &Inner) -> Self {
        inner.calls_in_kernel.fetch_add(1, Ordering::AcqRel);
        Self(Some(Arc::clone(&inner.calls_in_kernel)))
    }
}

impl Drop for InKernel {
    fn drop(&mut self) {
        if let Some(calls) = &self.0 {
            calls.fetch_sub(1, Ordering::AcqRel);
        }
    }
}

/// An epoll instance that watches the descriptor.
#[derive(Clone, Copy)]
pub(crate) struct Watch {
    pub(crate) epoll: c_int,
    pub(crate) fd: c_int,
    pub(crate) event: epoll_event,
    /// A one-shot watch (`EPOLLONESHOT`) that has fired.
    pub(crate) has_fired: bool,
}

impl Watch {
    /// It is this epoll instance's watch of this descriptor.
    pub(crate) fn is_of(&self, epoll: c_int, fd: c_int) -> bool {
        (self.epoll, self.fd) == (epoll, fd)
    }

    /// `EPOLLONESHOT`: after one event the program must enable it again.
    fn is_for_one(&self) -> bool {
        self.event.events & libc::EPOLLONESHOT as u32 != 0
    }

    /// Takes the descriptor out.
    pub(crate) fn end(&mut self) {
        if self.is_for_one() {
            self.has_fired = has_fired(self.epoll, self.fd);
        }
        let none = core::ptr::null_mut();
        // SAFETY: numbers.
        unsafe { real::epoll_ctl(self.epoll, libc::EPOLL_CTL_DEL, self.fd, none) };
    }

    /// Puts the descriptor in again, whatever it is now.
    pub(crate) fn begin(&mut self) {
        let mut event = self.event;
        if self.is_for_one() && self.has_fired {
            event.events = libc::EPOLLONESHOT as u32;
        }
        let event = &raw mut event;
        // SAFETY: numbers, and a structure that the kernel reads.
        unsafe { real::epoll_ctl(self.epoll, libc::EPOLL_CTL_ADD, self.fd, event) };
    }
}

/// True if an epoll instance has disabled a one-shot watch.
fn has_fired(epoll: c_int, fd: c_int) -> bool {
    let Ok(text) = std::fs::read_to_string(format!("/proc/self/fdinfo/{epoll}")) else {
        return false;
    };
    // tfd: N events: HEX ...
    let mut targets = text.lines().map(str::split_whitespace);
    let events = targets.find_map(|mut words| {
        let is_it = words.next() == Some("tfd:") && words.next()?.parse() == Ok(fd);
        is_it.then(|| u32::from_str_radix(words.nth(1)?, 16).ok())?
    });
    // The kernel clears all but these flags when it disables a watch.
    let flags = libc::EPOLLONESHOT | libc::EPOLLET | libc::EPOLLWAKEUP | libc::EPOLLEXCLUSIVE;
    events.is_some_and(|events| events & !(flags as u32) == 0)
}

/// What is known of a socket.
pub(crate) struct Inner {
    pub(crate) place: Place,
    pub(crate) turns: Turns,
    /// Descriptors of it.
    pub(crate) fds: Vec<c_int>,
    pub(crate) watches: Vec<Watch>,
    /// The program does not read any more, wherever the connection is.
    pub(crate) is_deaf: bool,
    /// It stays in the kernel for good.
    pub(crate) stays: bool,
    /// Why it was not handed off, the last time.
    pub(crate) kept: Option<Reason>,
    /// The operator gave it back, when he had taken so often.
    pub(crate) given: Option<u32>,
    /// It waits for the thread that hands off.
    pub(crate) is_queued: bool,
    /// That thread is at it. Nothing comes or goes meanwhile.
    pub(crate) is_moving: bool,
    /// Calls that threads are making in the kernel; it is not handed off meanwhile.
    pub(crate) calls_in_kernel: Arc<AtomicU32>,
    /// Calls until it moves, in tests.
    pub(crate) calls: u32,
}

impl Inner {
    /// A socket in the kernel.
    pub(crate) fn new(fd: c_int) -> Self {
        Self {
            place: Place::Kernel,
            turns: Turns::default(),
            fds: vec![fd],
            watches: Vec::new(),
            is_deaf: false,
            stays: false,
            kept: None,
            given: None,
            is_queued: false,
            is_moving: false,
            calls_in_kernel: Arc::default(),
            calls: 0,
        }
    }

    /// True while a thread makes a call on it in the kernel.
    pub(crate) fn is_called(&self) -> bool {
        self.calls_in_kernel.load(Ordering::Acquire) > 0
    }

    pub(crate) fn carried(&mut self) -> Option<&mut Carried> {
        match &mut self.place {
            Place::Card(carried) => Some(carried),
            Place::Kernel => None,
        }
    }

    /// True if all that watch it ask for edges.
    pub(crate) fn wants_edges(&self) -> bool {
        let edge = libc::EPOLLET as u32;
        !self.watches.is_empty() && self.watches.iter().all(|one| one.event.events & edge != 0)
    }
}
