//! The functions that programs call. Each has the C library's name, arguments and meaning.

pub mod descriptors;
pub mod process;
pub mod rare;
pub mod raw;
pub mod receive;
pub mod send;
pub mod sockets;
pub mod wait;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use fairlead_offload::Reason;
use libc::{c_int, ssize_t};

use crate::entry::{Inner, Place};
use crate::flow::come_back_if_wanted;
use crate::moves::{self, must_come_back};
use crate::settings::settings;
use crate::table::{self, Entry, hold};

/// Sets errno.
fn fail(error: c_int) -> c_int {
    // SAFETY: the place of this thread's errno.
    unsafe { *libc::__errno_location() = error };
    -1
}

/// The result of a call that counts bytes.
fn counted(outcome: Result<usize, c_int>) -> ssize_t {
    match outcome {
        Ok(bytes) => bytes as ssize_t,
        Err(error) => fail(error) as ssize_t,
    }
}

/// What a call is about to do.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Use {
    Read,
    Write,
}

/// A call that is made in the kernel. As long as it lasts, no other thread hands the socket off:
/// the call may wait there.
pub(crate) struct InKernel(Option<Arc<AtomicU32>>);

impl InKernel {
    /// Nothing is known of the descriptor.
    const UNWATCHED: Self = Self(None);

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

/// The socket, if the call is to be made on the card. Connections move here, before calls.
fn carried(fd: c_int, what: Use) -> Result<Entry, InKernel> {
    let entry = table::get(fd).ok_or(InKernel::UNWATCHED)?;
    let mut inner = hold(&entry);
    // errno is the caller's.
    // SAFETY: the place of this thread's errno.
    let errno = unsafe { *libc::__errno_location() };
    prepare(&mut inner, what);
    // SAFETY: as above.
    unsafe { *libc::__errno_location() = errno };
    if let Place::Kernel = inner.place {
        return Err(InKernel::with(&inner));
    }
    drop(inner);
    Ok(entry)
}

/// A socket, if it is one, comes back from the card for good.
fn stay(fd: c_int, why: Reason) {
    if let Some(entry) = table::get(fd) {
        must_come_back(&entry, why);
        hold(&entry).stays = true;
    }
}

/// As [`carried`], for a socket that has come back.
fn returned(entry: &Entry) -> InKernel {
    InKernel::with(&hold(entry))
}

fn prepare(inner: &mut Inner, what: Use) {
    let flip = settings().flip;
    if flip > 0 {
        inner.calls += 1;
        // For tests: to the other side, after about this number of calls.
        if inner.calls >= flip {
            inner.calls = inner.fds.first().map_or(0, |fd| *fd as u32) % flip.div_ceil(2);
            match inner.place {
                Place::Card(_) => drop(moves::to_kernel(inner, Reason::Wanted)),
                Place::Kernel => moves::to_card(inner),
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
            // Between two requests little is in flight.
            if what == Use::Read && inner.turns.reached(settings().after) {
                moves::to_card(inner);
            }
        }
    }
}
