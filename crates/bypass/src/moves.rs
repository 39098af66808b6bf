//! To the card (`ch_nic_handoff`) and back (`ch_nic_restore`).

use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use fairlead_handoff::message::Kind;
use fairlead_handoff::{Body, Cid, Command, Refusal};
use fairlead_offload::layout::state;
use fairlead_offload::{Reason, Turns};
use fairlead_os_ring::token;
use fairlead_os_tcp::repair;
use libc::{c_int, sockaddr_storage, socklen_t};

use crate::channel::{self, Channel};
use crate::entry::{Carried, InKernel, Inner, Name, Place, Watch};
use crate::flow::borrowed;
use crate::options::{self, Options};
use crate::real;
use crate::reasons;
use crate::settings::settings;
use crate::table::{self, Entry, hold};

/// How long a connection that must come back is waited for.
const PATIENCE: Duration = Duration::from_secs(2);
const PAUSE: Duration = Duration::from_micros(200);

fn name(fd: c_int, of_peer: bool) -> Option<Name> {
    // SAFETY: plain numbers, for which all zeros are a value.
    let mut storage: sockaddr_storage = unsafe { core::mem::zeroed() };
    let mut len = size_of::<sockaddr_storage>() as socklen_t;
    let to = (&raw mut storage).cast();
    // SAFETY: room for every address, its length beside it.
    let got = unsafe {
        match of_peer {
            true => real::getpeername(fd, to, &raw mut len),
            false => real::getsockname(fd, to, &raw mut len),
        }
    };
    (got == 0).then_some(Name { storage, len })
}

fn port(name: &Name) -> u16 {
    // Of both families the port is at the same place.
    let at = (&raw const name.storage).cast::<libc::sockaddr_in>();
    // SAFETY: the storage is longer than this structure and aligned for it.
    u16::from_be(unsafe { (*at).sin_port })
}

/// The connection belongs to a port that is offloaded.
fn is_meant(names: &[Name; 2]) -> bool {
    names.iter().any(|name| settings().has_port(port(name)))
}

/// True for reasons that will not pass.
fn is_lasting(why: Refusal) -> bool {
    matches!(
        why,
        Refusal::NotTcp
            | Refusal::Feature
            | Refusal::Namespace
            | Refusal::Policy
            | Refusal::Unsupported
    )
}

/// The program does something by which connections on the card would be passed over.
static NEVER: AtomicBool = AtomicBool::new(false);

/// From now on nothing is handed off; what was comes back.
pub(crate) fn never_again() {
    NEVER.store(true, Ordering::Release);
    all_come_back(Reason::Uring);
}

/// A connection that may be handed off now.
pub(crate) struct Ready {
    fd: c_int,
    names: [Name; 2],
    /// Those that have room.
    cards: Vec<Arc<Channel>>,
}

/// Why this connection is not handed off now.
fn may_go(inner: &mut Inner) -> Result<Ready, Reason> {
    if NEVER.load(Ordering::Acquire) {
        return Err(Reason::Uring);
    }
    let &[fd] = inner.fds.as_slice() else {
        return Err(Reason::Copied); // it may be anywhere
    };
    if inner.is_called() {
        return Err(Reason::Waiting);
    }
    let mut why = Reason::NoCard;
    let mut is_open = |channel: &Arc<Channel>| {
        if channel.room() == 0 {
            why = Reason::NoRoom;
            return false;
        }
        let is_given = inner.given == Some(channel.takes());
        if is_given {
            why = Reason::Given;
        }
        !is_given
    };
    let mut cards = channel::cards();
    cards.retain(&mut is_open);
    if cards.is_empty() {
        return Err(why);
    }
    let (Some(local), Some(peer)) = (name(fd, false), name(fd, true)) else {
        return Err(Reason::Unconnected); // not yet, or not any more
    };
    let names = [local, peer];
    if !is_meant(&names) {
        inner.stays = true;
        return Err(Reason::Port);
    }
    Ok(Ready { fd, names, cards })
}

/// It stays. That is counted once, until there is another reason.
fn keep(inner: &mut Inner, why: Reason) {
    if inner.kept.replace(why) != Some(why) {
        reasons::count(why, channel::cards().first().map(|card| &**card));
    }
}

/// What is needed to hand it off; `None`: it stays, and why is counted.
fn ready(inner: &mut Inner) -> Option<Ready> {
    if inner.stays {
        return None;
    }
    may_go(inner).map_err(|why| keep(inner, why)).ok()
}

/// False: it stays, and why is counted. A card is not looked for here.
pub(crate) fn may_be_ready(inner: &mut Inner) -> bool {
    !inner.stays && (channel::are_due() || ready(inner).is_some())
}

/// Hands a connection off. Whether or not it works, the descriptor can be used.
pub(crate) fn to_card(inner: &mut Inner) {
    channel::look_for_cards();
    if let Some(ready) = begin(inner) {
        let taken = ready.ask();
        finish(inner, ready, taken);
    }
}

/// Begins a handoff; `None`: it stays. Nothing watches the descriptor until the handoff is
/// finished: the card may have the old file for a moment longer.
pub(crate) fn begin(inner: &mut Inner) -> Option<Ready> {
    let ready = ready(inner)?;
    inner.watches.iter_mut().for_each(Watch::end);
    Some(ready)
}

/// A connection that a card has taken.
pub(crate) struct Taken {
    channel: Arc<Channel>,
    cid: Cid,
    token: OwnedFd,
    options: Options,
}

impl Ready {
    /// Asks the cards. The socket need not be locked, but nothing may happen to it.
    pub(crate) fn ask(&self) -> Result<Taken, Option<Refusal>> {
        let options = Options::of(self.fd);
        let mut outcome = Err(None);
        for channel in &self.cards {
            outcome = ask(channel, self.fd).map(|(cid, token)| Taken {
                channel: Arc::clone(channel),
                cid,
                token,
                options,
            });
            // Each card has addresses of its own.
            if !matches!(outcome, Err(Some(Refusal::Address))) {
                break;
            }
        }
        outcome
    }
}

/// What the cards said takes effect.
pub(crate) fn finish(inner: &mut Inner, ready: Ready, taken: Result<Taken, Option<Refusal>>) {
    match taken {
        Ok(taken) => {
            let carried = Carried {
                channel: taken.channel,
                cid: taken.cid,
                sent: 0,
                read: 0,
                ranges: 0,
                is_ended: false,
                error_is_told: false,
                tokens: 0,
                names: ready.names,
                options: taken.options,
            };
            options::tell_all(&carried);
            inner.kept = None;
            inner.place = Place::Card(Box::new(carried));
            replace(inner, taken.token);
        }
        Err(why) => {
            inner.stays = why.is_some_and(is_lasting);
            let reason = match why {
                Some(_) => Reason::Refused,
                None => Reason::NoAnswer,
            };
            keep(inner, reason);
            // Later, perhaps.
            inner.turns = Turns::default();
        }
    }
    inner.watches.iter_mut().for_each(Watch::begin);
}

/// The number of the connection, and the program's end of its token; `None`: the card has gone.
fn ask(channel: &Arc<Channel>, fd: c_int) -> Result<(Cid, OwnedFd), Option<Refusal>> {
    let (program, card) = token::pair().map_err(|_| None)?;
    let handoff = Command::Handoff {
        kind: Kind::Single,
        unwritten: [0; 2],
    };
    let own = Cid::new(fd as u32 & (Cid::LINES - 1), 0);
    let beside = [borrowed(fd), borrowed(card.as_raw_fd())];
    match channel.ask(own, handoff, &beside) {
        Ok((Body::Done(_, cid), _)) => Ok((Cid(cid as u32), program)),
        Ok((Body::Refused(_, why), _)) => Err(Some(why)),
        Ok(_) => Err(None),
        Err(_) => {
            // The card died. The socket is ours still, maybe in repair mode. The guard ends that if
            // this program may not.
            let until = Instant::now() + PATIENCE;
            while repair::is_silent(borrowed(fd)) && Instant::now() < until {
                if repair::leave(borrowed(fd), false).is_err() {
                    std::thread::sleep(PAUSE);
                }
            }
            Err(None)
        }
    }
}

/// Puts another descriptor in the place of those that the program has. Nothing watches these.
fn replace(inner: &Inner, by: OwnedFd) {
    for &fd in &inner.fds {
        // SAFETY: numbers.
        let (status, flags) = unsafe {
            (
                real::fcntl(fd, libc::F_GETFL, 0),
                real::fcntl(fd, libc::F_GETFD, 0),
            )
        };
        let timeouts = [libc::SO_RCVTIMEO, libc::SO_SNDTIMEO].map(|one| (one, timeout(fd, one)));
        let cloexec = match flags & libc::FD_CLOEXEC {
            0 => 0,
            _ => libc::O_CLOEXEC,
        };
        // SAFETY: numbers; the old descriptor is the program's, which gets its number back.
        unsafe {
            real::dup3(by.as_raw_fd(), fd, cloexec);
            real::fcntl(fd, libc::F_SETFL, status as libc::c_ulong);
        }
        for (one, limit) in timeouts {
            let len = size_of::<libc::timeval>() as socklen_t;
            let from = (&raw const limit).cast();
            // SAFETY: a structure of this length.
            unsafe { real::setsockopt(fd, libc::SOL_SOCKET, one, from, len) };
        }
    }
}

fn timeout(fd: c_int, name: c_int) -> libc::timeval {
    let mut limit = libc::timeval {
        tv_sec: 0,
        tv_usec: 0,
    };
    let mut len = size_of::<libc::timeval>() as socklen_t;
    let to = (&raw mut limit).cast();
    // SAFETY: room for the structure, its length beside it.
    unsafe { real::getsockopt(fd, libc::SOL_SOCKET, name, to, &raw mut len) };
    limit
}

/// Takes a connection back, for this reason. False: it is still on the card.
pub(crate) fn to_kernel(inner: &mut Inner, why: Reason) -> bool {
    let Some(carried) = inner.carried() else {
        return true;
    };
    if carried.is_lost() || carried.is_ended || carried.state() & state::FINISHED != 0 {
        return false;
    }
    let (channel, cid) = (carried.channel.clone(), carried.cid);
    let options = carried.options;
    let is_given = carried.state() & state::GIVEN != 0;
    match channel.ask(cid, Command::Restore { wait_ms: 0 }, &[]) {
        Ok((Body::Done(..), mut descriptors)) => {
            let Some(socket) = descriptors.pop() else {
                channel.die();
                return false;
            };
            options.apply(socket.as_raw_fd());
            if inner.is_deaf {
                // SAFETY: numbers.
                unsafe { real::shutdown(socket.as_raw_fd(), libc::SHUT_RD) };
            }
            inner.place = Place::Kernel;
            inner.is_queued = false;
            inner.given = is_given.then(|| channel.takes());
            inner.turns = Turns::default();
            reasons::count(why, Some(&channel));
            inner.watches.iter_mut().for_each(Watch::end);
            replace(inner, socket);
            inner.watches.iter_mut().for_each(Watch::begin);
            true
        }
        _ => false,
    }
}

/// As [`to_kernel`], and waits until what is on its way has left. It stays in the kernel as long as
/// what is returned is there; `None`: it is still on the card.
pub(crate) fn must_come_back(entry: &Entry, why: Reason) -> Option<InKernel> {
    let until = Instant::now() + PATIENCE;
    loop {
        let mut inner = hold(entry);
        if to_kernel(&mut inner, why) {
            return Some(InKernel::with(&inner));
        }
        let is_hopeless = inner.carried().is_none_or(|carried| {
            carried.is_lost() || carried.is_ended || carried.state() & state::FINISHED != 0
        });
        drop(inner);
        if is_hopeless || Instant::now() > until {
            return None;
        }
        std::thread::sleep(PAUSE);
    }
}

/// Takes all connections back, before something that the library cannot carry.
pub(crate) fn all_come_back(why: Reason) {
    for (_, entry) in table::all() {
        must_come_back(&entry, why);
        hold(&entry).is_queued = false;
    }
}
