//! Calls of the C library that reach a socket by ways which the library does not follow: its
//! connection comes back from the card first.

use fairlead_offload::Reason;
use libc::{c_char, c_int, c_uint, mmsghdr, timespec};

use super::stay;
use crate::entry::InKernel;
use crate::moves::must_come_back;
use crate::real;
use crate::table;

/// fdopen(3): what a stream reads and writes nobody else sees.
///
/// # Safety
/// As of fdopen(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fdopen(fd: c_int, mode: *const c_char) -> *mut libc::FILE {
    stay(fd, Reason::Stream);
    // SAFETY: as the program promises.
    unsafe { real::fdopen(fd, mode) }
}

/// A socket, if it is one, comes back from the card and stays in the kernel for this call.
fn come_back(fd: c_int) -> Option<InKernel> {
    must_come_back(&table::get(fd)?, Reason::Call)
}

/// recvmmsg(2).
///
/// # Safety
/// As of recvmmsg(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn recvmmsg(
    fd: c_int,
    messages: *mut mmsghdr,
    count: c_uint,
    flags: c_int,
    time: *mut timespec,
) -> c_int {
    let _call = come_back(fd);
    // SAFETY: as the program promises.
    unsafe { real::recvmmsg(fd, messages, count, flags, time) }
}

/// sendmmsg(2).
///
/// # Safety
/// As of sendmmsg(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sendmmsg(
    fd: c_int,
    messages: *mut mmsghdr,
    count: c_uint,
    flags: c_int,
) -> c_int {
    let _call = come_back(fd);
    // SAFETY: as the program promises.
    unsafe { real::sendmmsg(fd, messages, count, flags) }
}
