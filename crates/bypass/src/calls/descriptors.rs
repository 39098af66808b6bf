//! Descriptors are closed, copied and watched.

use libc::{c_int, c_uint, c_ulong, epoll_event};

use super::sockets::before_close;
use super::{fail, settled};
use crate::channel::is_ours;
use crate::entry::{Inner, Watch};
use crate::real;
use crate::table::{self, DESCRIPTORS, hold, hold_moving};

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

/// Makes a descriptor that is one more of a socket. No thread moves the socket meanwhile.
fn copied(from: c_int, copy: impl FnOnce() -> c_int) -> c_int {
    let Some(entry) = table::get(from) else {
        let to = copy();
        forget(to); // whatever had the number before
        return to;
    };
    let mut inner = hold(&entry);
    let to = copy();
    if to < 0 || inner.fds.contains(&to) {
        return to;
    }
    // From here on it has a copy, and stays where it is.
    inner.fds.push(to);
    drop(inner);
    forget(to);
    table::put(to, entry);
    to
}

/// As [`copied`], in the place of another descriptor.
fn copied_to(from: c_int, to: c_int, copy: impl FnOnce() -> c_int) -> c_int {
    // SAFETY: a number.
    if from == to || unsafe { real::fcntl(from, libc::F_GETFD, 0) } < 0 {
        return copy(); // nothing is closed
    }
    forget(to);
    copied(from, copy)
}

/// dup(2).
///
/// # Safety
/// None.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dup(fd: c_int) -> c_int {
    // SAFETY: a number.
    copied(fd, || unsafe { real::dup(fd) })
}

/// dup2(2).
///
/// # Safety
/// As of dup2(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dup2(fd: c_int, to: c_int) -> c_int {
    // SAFETY: numbers.
    copied_to(fd, to, || unsafe { real::dup2(fd, to) })
}

/// dup3(2).
///
/// # Safety
/// As of dup3(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dup3(fd: c_int, to: c_int, flags: c_int) -> c_int {
    // SAFETY: numbers.
    copied_to(fd, to, || unsafe { real::dup3(fd, to, flags) })
}

/// fcntl(2).
///
/// # Safety
/// As of fcntl(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fcntl(fd: c_int, order: c_int, argument: c_ulong) -> c_int {
    // SAFETY: as the program promises.
    let call = || unsafe { real::fcntl(fd, order, argument) };
    match order {
        libc::F_DUPFD | libc::F_DUPFD_CLOEXEC => copied(fd, call),
        _ => settled(fd, call),
    }
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
    let entry = table::get(fd);
    let mut inner = entry.as_ref().map(hold_moving);
    let is_whole = order == libc::EPOLL_CTL_DEL || !event.is_null();
    let outcome = match &inner {
        // Its watches were removed, and are added again after the move.
        Some(inner) if inner.is_moving && is_whole => noted(inner, epoll, order, fd),
        // SAFETY: as the program promises.
        _ => unsafe { real::epoll_ctl(epoll, order, fd, event) },
    };
    if outcome == 0
        && let Some(inner) = &mut inner
    {
        inner.watches.retain(|one| !one.is_of(epoll, fd));
        if order != libc::EPOLL_CTL_DEL && !event.is_null() {
            let watch = Watch {
                epoll,
                fd,
                // SAFETY: the program's structure.
                event: unsafe { event.read_unaligned() },
                has_fired: false,
            };
            inner.watches.push(watch);
        }
    }
    outcome
}

/// What the kernel would return for this order, by the watches that are recorded.
fn noted(inner: &Inner, epoll: c_int, order: c_int, fd: c_int) -> c_int {
    let is_there = inner.watches.iter().any(|one| one.is_of(epoll, fd));
    match (order, is_there) {
        (libc::EPOLL_CTL_ADD, true) => fail(libc::EEXIST),
        (libc::EPOLL_CTL_MOD | libc::EPOLL_CTL_DEL, false) => fail(libc::ENOENT),
        _ => 0,
    }
}
