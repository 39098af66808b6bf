//! The functions that programs call. Each has the C library's name, arguments and meaning.

pub mod descriptors;
pub mod process;
pub mod rare;
pub mod raw;
pub mod receive;
pub mod send;
pub mod sockets;
pub mod wait;

use fairlead_offload::Reason;
use libc::{c_int, ssize_t};

use crate::entry::{InKernel, Inner, Place};
use crate::flow::{Unfinished, come_back_if_wanted, waits};
use crate::mover;
use crate::moves::{self, must_come_back};
use crate::settings::settings;
use crate::table::{self, Entry, hold, hold_moving};

/// Sets errno.
fn fail(error: c_int) -> c_int {
    // SAFETY: the place of this thread's errno.
    unsafe { *libc::__errno_location() = error };
    -1
}

/// The result of a call that counts bytes; `kernel` makes it where the connection is not on the
/// card any more.
fn counted(outcome: Result<usize, Unfinished>, kernel: impl FnOnce() -> ssize_t) -> ssize_t {
    match outcome {
        Ok(bytes) => bytes as ssize_t,
        Err(Unfinished::Failed(error)) => fail(error) as ssize_t,
        Err(Unfinished::Moved(_call)) => kernel(),
    }
}

/// What a call is about to do.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Use {
    Read,
    Write,
}

/// The socket, if the call is not to be made in the kernel. Connections move here, before calls.
fn carried(fd: c_int, what: Use) -> Result<Entry, InKernel> {
    let entry = table::get(fd).ok_or(InKernel::UNWATCHED)?;
    let mut inner = hold_moving(&entry);
    if inner.is_moving {
        drop(inner);
        return Ok(entry);
    }
    // errno is the caller's.
    // SAFETY: the place of this thread's errno.
    let errno = unsafe { *libc::__errno_location() };
    prepare(&entry, &mut inner, what);
    // SAFETY: as above.
    unsafe { *libc::__errno_location() = errno };
    if let Place::Kernel = inner.place {
        return Err(InKernel::with(&inner));
    }
    drop(inner);
    Ok(entry)
}

/// Makes a call that does not wait, on a descriptor that no thread moves meanwhile.
fn settled<T>(fd: c_int, call: impl FnOnce() -> T) -> T {
    let entry = table::get(fd);
    let _inner = entry.as_ref().map(hold);
    call()
}

/// A socket, if it is one, comes back from the card for good.
fn stay(fd: c_int, why: Reason) {
    if let Some(entry) = table::get(fd) {
        hold(&entry).stays = true;
        must_come_back(&entry, why);
    }
}

/// Makes a read in the kernel. If nothing is there, the program has dealt with all that came, and
/// the connection is handed off before more comes.
fn read_in_kernel(fd: c_int, call: InKernel, read: impl FnOnce() -> ssize_t) -> ssize_t {
    let is_watched = call.is_of_socket();
    let got = read();
    drop(call);
    // SAFETY: the place of this thread's errno.
    let errno = unsafe { *libc::__errno_location() };
    if is_watched
        && got < 0
        && errno == libc::EAGAIN
        && let Some(entry) = table::get(fd)
    {
        let mut inner = hold_moving(&entry);
        let is_here = !inner.is_moving && matches!(inner.place, Place::Kernel);
        if is_here && settings().flip == 0 && inner.turns.reached(settings().after) {
            mover::hand_off(&entry, &mut inner);
        }
        // SAFETY: as above.
        unsafe { *libc::__errno_location() = errno };
    }
    got
}

fn prepare(entry: &Entry, inner: &mut Inner, what: Use) {
    let flip = settings().flip;
    if flip > 0 {
        inner.calls += 1;
        // For tests: to the other side, after about this number of calls.
        if inner.calls >= flip {
            inner.calls = inner.fds.first().map_or(0, |fd| *fd as u32) % flip.div_ceil(2);
            match inner.place {
                Place::Card(_) => drop(moves::to_kernel(inner, Reason::Wanted)),
                Place::Kernel => mover::hand_off(entry, inner),
            }
        }
        return;
    }
    match &inner.place {
        Place::Card(_) => come_back_if_wanted(inner),
        Place::Kernel => {
            match what {
                Use::Read => inner.turns.read(),
                Use::Write => inner.turns.write(),
            }
            // Between two requests little is in flight. A descriptor that does not wait is better
            // handed off after a read that found nothing, but not every program makes such reads.
            let after = settings().after;
            let is_time = |inner: &Inner| match inner.fds.first() {
                _ if inner.turns.reached(after.saturating_add(1)) => true,
                Some(fd) => inner.turns.reached(after) && waits(*fd, 0),
                None => false,
            };
            if what == Use::Read && is_time(inner) {
                mover::hand_off(entry, inner);
            }
        }
    }
}
