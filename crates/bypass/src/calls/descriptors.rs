//! Descriptors are closed, copied and watched.

use libc::{c_int, c_uint, c_ulong, epoll_event};

use super::sockets::before_close;
use crate::channel::is_ours;
use crate::entry::Watch;
use crate::real;
use crate::table::{self, DESCRIPTORS, hold};

/// The descriptor is about to be closed. The card sees the token hang up.
fn forget(fd: c_int) {
    if let Some(entry) = table::remove(fd) {
        before_close(&entry);
    }
}

/// close(2).
///
/// # Safety
/// As of close(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn close(fd: c_int) -> c_int {
    if is_ours(fd) {
        return 0; // programs close what they do not know
    }
    forget(fd);
    // SAFETY: as the program promises.
    unsafe { real::close(fd) }
}

/// close_range(2).
///
/// # Safety
/// As of close_range(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int {
    if flags & libc::CLOSE_RANGE_CLOEXEC as c_int == 0 {
        for fd in first..=last.min(DESCRIPTORS as c_uint - 1) {
            forget(fd as c_int);
        }
    }
    // SAFETY: as the program promises.
    unsafe { real::close_range(first, last, flags) }
}

/// fclose(3), which closes without calling close(2).
///
/// # Safety
/// As of fclose(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fclose(file: *mut libc::FILE) -> c_int {
    // SAFETY: the program's file.
    let fd = unsafe { libc::fileno(file) };
    // SAFETY: as the program promises.
    let outcome = unsafe { real::fclose(file) };
    forget(fd);
    outcome
}

/// A descriptor is one more of a socket.
fn copied(from: c_int, to: c_int) {
    if to < 0 || to == from {
        return;
    }
    forget(to);
    if let Some(entry) = table::get(from)
        && table::put(to, entry.clone())
    {
        hold(&entry).fds.push(to);
    }
}

/// dup(2).
///
/// # Safety
/// None.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dup(fd: c_int) -> c_int {
    // SAFETY: a number.
    let to = unsafe { real::dup(fd) };
    copied(fd, to);
    to
}

/// dup2(2).
///
/// # Safety
/// As of dup2(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dup2(fd: c_int, to: c_int) -> c_int {
    // SAFETY: numbers.
    let outcome = unsafe { real::dup2(fd, to) };
    copied(fd, outcome);
    outcome
}

/// dup3(2).
///
/// # Safety
/// As of dup3(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dup3(fd: c_int, to: c_int, flags: c_int) -> c_int {
    // SAFETY: numbers.
    let outcome = unsafe { real::dup3(fd, to, flags) };
    copied(fd, outcome);
    outcome
}

/// fcntl(2).
///
/// # Safety
/// As of fcntl(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fcntl(fd: c_int, order: c_int, argument: c_ulong) -> c_int {
    // SAFETY: as the program promises.
    let outcome = unsafe { real::fcntl(fd, order, argument) };
    if order == libc::F_DUPFD || order == libc::F_DUPFD_CLOEXEC {
        copied(fd, outcome);
    }
    outcome
}

/// fcntl(2), whose offsets have 64 bits.
///
/// # Safety
/// As of fcntl(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fcntl64(fd: c_int, order: c_int, argument: c_ulong) -> c_int {
    // SAFETY: as the program promises.
    unsafe { fcntl(fd, order, argument) }
}

/// epoll_ctl(2): what is said of a descriptor must be said again when it is another one.
///
/// # Safety
/// As of epoll_ctl(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn epoll_ctl(
    epoll: c_int,
    order: c_int,
    fd: c_int,
    event: *mut epoll_event,
) -> c_int {
    // SAFETY: as the program promises.
    let outcome = unsafe { real::epoll_ctl(epoll, order, fd, event) };
    if outcome == 0
        && let Some(entry) = table::get(fd)
    {
        let mut inner = hold(&entry);
        inner
            .watches
            .retain(|one| (one.epoll, one.fd) != (epoll, fd));
        if order != libc::EPOLL_CTL_DEL && !event.is_null() {
            // SAFETY: the program's structure.
            let event = unsafe { event.read_unaligned() };
            inner.watches.push(Watch { epoll, fd, event });
        }
    }
    outcome
}
