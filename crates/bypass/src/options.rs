//! Socket options that go along with a connection: read when it is handed off, answered from here
//! while it is on the card, set again when it comes back.

use fairlead_handoff::Command;
use fairlead_handoff::message::Control;
use libc::{c_int, c_void, socklen_t};

use crate::entry::Carried;
use crate::real;

/// Level and name of each, all of them numbers.
const KEPT: [(c_int, c_int); 14] = [
    (libc::IPPROTO_TCP, libc::TCP_NODELAY),
    (libc::IPPROTO_TCP, libc::TCP_CORK),
    (libc::IPPROTO_TCP, libc::TCP_KEEPIDLE),
    (libc::IPPROTO_TCP, libc::TCP_KEEPINTVL),
    (libc::IPPROTO_TCP, libc::TCP_KEEPCNT),
    (libc::IPPROTO_TCP, libc::TCP_USER_TIMEOUT),
    (libc::IPPROTO_TCP, libc::TCP_NOTSENT_LOWAT),
    (libc::SOL_SOCKET, libc::SO_KEEPALIVE),
    (libc::SOL_SOCKET, libc::SO_REUSEADDR),
    // Cannot be set, but asked.
    (libc::SOL_SOCKET, libc::SO_DOMAIN),
    (libc::SOL_SOCKET, libc::SO_TYPE),
    (libc::SOL_SOCKET, libc::SO_PROTOCOL),
    (libc::SOL_SOCKET, libc::SO_SNDBUF),
    (libc::SOL_SOCKET, libc::SO_RCVBUF),
];
/// Those that are set again: the first of them.
const SET_AGAIN: usize = 9;
const LINGER_OFF: libc::linger = libc::linger {
    l_onoff: 0,
    l_linger: 0,
};

/// Values of a connection.
#[derive(Clone, Copy)]
pub(crate) struct Options {
    values: [c_int; KEPT.len()],
    pub(crate) linger: libc::linger,
}

fn position(level: c_int, name: c_int) -> Option<usize> {
    KEPT.iter().position(|one| *one == (level, name))
}

fn number(fd: c_int, level: c_int, name: c_int) -> c_int {
    let (mut value, mut len) = (0 as c_int, size_of::<c_int>() as socklen_t);
    let to = (&raw mut value).cast();
    // SAFETY: room for a number, its length beside it.
    unsafe { real::getsockopt(fd, level, name, to, &raw mut len) };
    value
}

impl Options {
    /// Those of a socket.
    pub(crate) fn of(fd: c_int) -> Self {
        let mut linger = LINGER_OFF;
        let mut len = size_of::<libc::linger>() as socklen_t;
        let to = (&raw mut linger).cast::<c_void>();
        // SAFETY: room for the structure, its length beside it.
        unsafe {
            real::getsockopt(fd, libc::SOL_SOCKET, libc::SO_LINGER, to, &raw mut len);
        }
        Self {
            values: KEPT.map(|(level, name)| number(fd, level, name)),
            linger,
        }
    }

    /// Sets them on a socket that came back.
    pub(crate) fn apply(&self, fd: c_int) {
        for (at, (level, name)) in KEPT.iter().enumerate().take(SET_AGAIN) {
            let from = (&raw const self.values[at]).cast();
            let len = size_of::<c_int>() as socklen_t;
            // What the system has as it is, it may refuse.
            // SAFETY: a number of this length.
            unsafe { real::setsockopt(fd, *level, *name, from, len) };
        }
        let from = (&raw const self.linger).cast();
        let len = size_of::<libc::linger>() as socklen_t;
        // SAFETY: a structure of this length.
        unsafe { real::setsockopt(fd, libc::SOL_SOCKET, libc::SO_LINGER, from, len) };
    }

    /// The value of one that is kept.
    pub(crate) fn get(&self, level: c_int, name: c_int) -> Option<c_int> {
        Some(self.values[position(level, name)?])
    }

    fn value(&self, level: c_int, name: c_int) -> u64 {
        let value = self.get(level, name).unwrap_or(0);
        u64::try_from(value).unwrap_or(0)
    }
}

/// Sets one of a connection on the card. False: it cannot be carried.
pub(crate) fn set(carried: &mut Carried, level: c_int, name: c_int, value: c_int) -> bool {
    match position(level, name) {
        Some(at) if at < SET_AGAIN => {
            carried.options.values[at] = value;
            tell(carried, level, name);
            true
        }
        _ => false,
    }
}

/// Tells the card about those that differ from what it has.
pub(crate) fn tell_all(carried: &Carried) {
    for (level, name) in [
        (libc::SOL_SOCKET, libc::SO_KEEPALIVE),
        (libc::IPPROTO_TCP, libc::TCP_USER_TIMEOUT),
    ] {
        if carried.options.value(level, name) != 0 {
            tell(carried, level, name);
        }
    }
}

fn tell(carried: &Carried, level: c_int, name: c_int) {
    let options = &carried.options;
    let tcp = libc::IPPROTO_TCP;
    let (control, argument) = match (level, name) {
        (libc::SOL_SOCKET, libc::SO_KEEPALIVE) | (libc::IPPROTO_TCP, libc::TCP_KEEPIDLE) => {
            let is_on = options.value(libc::SOL_SOCKET, libc::SO_KEEPALIVE) != 0;
            let idle_ms = options.value(tcp, libc::TCP_KEEPIDLE) * 1_000;
            (Control::KeepAlive, if is_on { idle_ms } else { 0 })
        }
        (libc::IPPROTO_TCP, libc::TCP_USER_TIMEOUT) => {
            (Control::UserTimeout, options.value(tcp, name))
        }
        // The card sends at once, and puts together what is there.
        _ => return,
    };
    let command = Command::Control { control, argument };
    carried.channel.post(carried.cid, command);
}
