//! Connections begin, end, and have options and names.

use std::sync::{Arc, Mutex};

use fairlead_handoff::Command;
use fairlead_handoff::message::Control;
use fairlead_offload::layout::{RECEIVE_BYTES, line, state};
use fairlead_offload::{Reason, ring};
use libc::{c_int, c_ulong, c_void, sockaddr, socklen_t};

use super::{fail, settled};
use crate::entry::{Carried, Inner, Name};
use crate::moves::must_come_back;
use crate::settings::settings;
use crate::table::{self, Entry, hold};
use crate::{options, real};

/// True for a TCP socket.
fn is_tcp(fd: c_int) -> bool {
    let number = |name: c_int| {
        let (mut value, mut len) = (0 as c_int, size_of::<c_int>() as socklen_t);
        let to = (&raw mut value).cast();
        // SAFETY: room for a number, its length beside it.
        let got = unsafe { real::getsockopt(fd, libc::SOL_SOCKET, name, to, &raw mut len) };
        (got == 0).then_some(value)
    };
    number(libc::SO_PROTOCOL) == Some(libc::IPPROTO_TCP)
}

/// From now on the socket is watched.
fn watch(fd: c_int) {
    // Whatever had the number before.
    drop(table::remove(fd));
    if !settings().sockets.is_empty() && is_tcp(fd) {
        table::put(fd, Arc::new(Mutex::new(Inner::new(fd))));
    }
}

/// accept4(2).
///
/// # Safety
/// As of accept4(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn accept4(
    fd: c_int,
    to: *mut sockaddr,
    len: *mut socklen_t,
    flags: c_int,
) -> c_int {
    // SAFETY: as the program promises.
    let accepted = unsafe { real::accept4(fd, to, len, flags) };
    if accepted >= 0 {
        watch(accepted);
    }
    accepted
}

/// accept(2).
///
/// # Safety
/// As of accept(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn accept(fd: c_int, to: *mut sockaddr, len: *mut socklen_t) -> c_int {
    // SAFETY: as the program promises.
    unsafe { accept4(fd, to, len, 0) }
}

/// socket(2). A connection that it makes is handed off later, as an accepted one.
///
/// # Safety
/// None.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn socket(family: c_int, kind: c_int, protocol: c_int) -> c_int {
    // SAFETY: numbers.
    let made = unsafe { real::socket(family, kind, protocol) };
    let is_ip = family == libc::AF_INET || family == libc::AF_INET6;
    if made >= 0 && is_ip && kind & 0xf == libc::SOCK_STREAM {
        watch(made);
    }
    made
}

/// connect(2), by which a socket can also lose its peer.
///
/// # Safety
/// As of connect(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn connect(fd: c_int, to: *const sockaddr, len: socklen_t) -> c_int {
    let _call = table::get(fd).map(|entry| must_come_back(&entry, Reason::Call));
    // SAFETY: as the program promises.
    unsafe { real::connect(fd, to, len) }
}

/// Does something with a connection on the card, or makes a call that does not wait where it is not
/// there. No thread moves it meanwhile.
fn with<T>(fd: c_int, work: impl FnOnce(&mut Carried) -> T, kernel: impl FnOnce() -> T) -> T {
    let entry = table::get(fd);
    let mut inner = entry.as_ref().map(hold);
    match inner.as_mut().and_then(|inner| inner.carried()) {
        Some(carried) => work(carried),
        None => kernel(),
    }
}

/// Makes a call about an option that the rings do not carry: a connection on the card comes back.
fn with_option(fd: c_int, level: c_int, name: c_int, call: impl FnOnce() -> c_int) -> c_int {
    let is_of_the_token =
        level == libc::SOL_SOCKET && [libc::SO_RCVTIMEO, libc::SO_SNDTIMEO].contains(&name);
    let Some(entry) = table::get(fd).filter(|_| !is_of_the_token) else {
        return settled(fd, call);
    };
    match must_come_back(&entry, Reason::SocketOption) {
        Some(_call) => call(),
        None => fail(libc::ENOPROTOOPT),
    }
}

/// shutdown(2).
///
/// # Safety
/// None.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shutdown(fd: c_int, how: c_int) -> c_int {
    // SAFETY: numbers.
    let kernel = || unsafe { real::shutdown(fd, how) };
    let Some(entry) = table::get(fd) else {
        return kernel();
    };
    let mut inner = hold(&entry);
    let outcome = match inner.carried() {
        Some(carried) => end(carried, how),
        None => kernel(),
    };
    inner.is_deaf |= outcome == 0 && how != libc::SHUT_WR;
    outcome
}

/// shutdown(2) of a connection on the card.
fn end(carried: &mut Carried, how: c_int) -> c_int {
    if carried.is_lost() {
        return fail(libc::ENOTCONN);
    }
    if how != libc::SHUT_RD && !std::mem::replace(&mut carried.is_ended, true) {
        let command = Command::Control {
            control: Control::ShutdownToClient,
            argument: 0,
        };
        carried.channel.post(carried.cid, command);
    }
    0
}

/// setsockopt(2). What cannot be carried brings the connection back.
///
/// # Safety
/// As of setsockopt(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn setsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *const c_void,
    len: socklen_t,
) -> c_int {
    let set = |carried: &mut Carried| {
        if level == libc::SOL_SOCKET && name == libc::SO_LINGER {
            if len as usize >= size_of::<libc::linger>() {
                // SAFETY: the program's structure of this length.
                carried.options.linger = unsafe { value.cast::<libc::linger>().read_unaligned() };
            }
            return true;
        }
        if len as usize != size_of::<c_int>() {
            return false;
        }
        // SAFETY: the program's number.
        let number = unsafe { value.cast::<c_int>().read_unaligned() };
        options::set(carried, level, name, number)
    };
    if with(fd, set, || false) {
        return 0;
    }
    // SAFETY: as the program promises.
    let call = || unsafe { real::setsockopt(fd, level, name, value, len) };
    with_option(fd, level, name, call)
}

/// getsockopt(2). What is not known here brings the connection back.
///
/// # Safety
/// As of getsockopt(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn getsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    len: *mut socklen_t,
) -> c_int {
    let get = |carried: &mut Carried| {
        if level == libc::SOL_SOCKET && name == libc::SO_ERROR {
            return Some(match carried.is_lost() {
                true => carried.take_error(0),
                false => 0,
            });
        }
        carried.options.get(level, name)
    };
    match with(fd, get, || None) {
        Some(number) if !value.is_null() && !len.is_null() => {
            let bytes = number.to_ne_bytes();
            // SAFETY: the program's place for a length.
            let room = (unsafe { *len } as usize).min(bytes.len());
            // SAFETY: room for as many bytes as the program says.
            unsafe {
                value
                    .cast::<u8>()
                    .copy_from_nonoverlapping(bytes.as_ptr(), room);
                *len = room as socklen_t;
            }
            0
        }
        _ => {
            // SAFETY: as the program promises.
            let call = || unsafe { real::getsockopt(fd, level, name, value, len) };
            with_option(fd, level, name, call)
        }
    }
}

/// Copies a name to the program.
///
/// # Safety
/// As of getsockname(2).
unsafe fn give(name: &Name, to: *mut sockaddr, len: *mut socklen_t) -> c_int {
    if to.is_null() || len.is_null() {
        return fail(libc::EFAULT);
    }
    // SAFETY: the program's place for a length.
    let room = unsafe { *len }.min(name.len) as usize;
    let from = (&raw const name.storage).cast::<u8>();
    // SAFETY: room for as many bytes as the program says.
    unsafe {
        to.cast::<u8>().copy_from_nonoverlapping(from, room);
        *len = name.len;
    }
    0
}

/// getsockname(2).
///
/// # Safety
/// As of getsockname(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn getsockname(fd: c_int, to: *mut sockaddr, len: *mut socklen_t) -> c_int {
    // SAFETY: as the program promises.
    let own = |carried: &mut Carried| unsafe { give(&carried.names[0], to, len) };
    // SAFETY: as the program promises.
    with(fd, own, || unsafe { real::getsockname(fd, to, len) })
}

/// getpeername(2).
///
/// # Safety
/// As of getpeername(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn getpeername(fd: c_int, to: *mut sockaddr, len: *mut socklen_t) -> c_int {
    let own = |carried: &mut Carried| match carried.is_lost() {
        true => fail(libc::ENOTCONN),
        // SAFETY: as the program promises.
        false => unsafe { give(&carried.names[1], to, len) },
    };
    // SAFETY: as the program promises.
    with(fd, own, || unsafe { real::getpeername(fd, to, len) })
}

/// ioctl(2), of which only one order is about bytes.
///
/// # Safety
/// As of ioctl(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ioctl(fd: c_int, order: c_ulong, argument: *mut c_void) -> c_int {
    // SAFETY: as the program promises.
    let call = || unsafe { real::ioctl(fd, order, argument) };
    if order != libc::FIONREAD {
        return settled(fd, call);
    }
    let unread = |carried: &mut Carried| {
        let received = carried.word(line::RECEIVED);
        let received = received.load(std::sync::atomic::Ordering::Acquire);
        let unread = ring::used(received, carried.read, RECEIVE_BYTES).unwrap_or(0);
        // SAFETY: the program's place for a number.
        unsafe { argument.cast::<c_int>().write_unaligned(unread as c_int) };
        0
    };
    with(fd, unread, call)
}

/// The program closes the last descriptor: what must be said before.
pub(super) fn before_close(entry: &Entry) {
    let mut inner = hold(entry);
    if !inner.fds.is_empty() {
        return;
    }
    if let Some(carried) = inner.carried() {
        let linger = carried.options.linger;
        let resets = linger.l_onoff != 0 && linger.l_linger == 0;
        if resets && carried.state() & state::RESET == 0 {
            let command = Command::Control {
                control: Control::Abort,
                argument: 0,
            };
            carried.channel.post(carried.cid, command);
        }
    }
}
