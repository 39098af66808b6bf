//! `read`, `recv` and the like.

use fairlead_offload::Reason;
use libc::{c_int, c_void, iovec, msghdr, size_t, sockaddr, socklen_t, ssize_t};

use super::{Use, carried, counted, read_in_kernel};
use crate::entry::InKernel;
use crate::flow::{receive, until_done};
use crate::moves::must_come_back;
use crate::real;
use crate::table::Entry;

/// Flags that the rings do not carry.
const FOR_THE_KERNEL: c_int =
    libc::MSG_OOB | libc::MSG_WAITALL | libc::MSG_ERRQUEUE | libc::MSG_TRUNC;

/// The socket, if this call is made on the card.
fn here(fd: c_int, flags: c_int) -> Result<Entry, InKernel> {
    let entry = carried(fd, Use::Read)?;
    if flags & FOR_THE_KERNEL == 0 {
        return Ok(entry);
    }
    match must_come_back(&entry, Reason::Flags) {
        Some(call) => Err(call),
        None => Ok(entry),
    }
}

/// Receives into parts of the program's memory.
///
/// # Safety
/// They can be written.
unsafe fn into(fd: c_int, entry: &Entry, parts: &[iovec], flags: c_int) -> ssize_t {
    // SAFETY: as the caller promises.
    let outcome = until_done(fd, flags, entry, false, |inner| unsafe {
        receive(fd, inner, parts, flags)
    });
    counted(outcome, || {
        // SAFETY: plain numbers and pointers, for which all zeros are a value.
        let mut message: msghdr = unsafe { core::mem::zeroed() };
        message.msg_iov = parts.as_ptr().cast_mut();
        message.msg_iovlen = parts.len() as _;
        // SAFETY: as the caller promises.
        unsafe { real::recvmsg(fd, &raw mut message, flags) }
    })
}

/// recv(2).
///
/// # Safety
/// As of recv(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn recv(fd: c_int, to: *mut c_void, len: size_t, flags: c_int) -> ssize_t {
    match here(fd, flags) {
        // SAFETY: as the program promises.
        Err(call) => read_in_kernel(fd, call, || unsafe { real::recv(fd, to, len, flags) }),
        Ok(entry) => {
            let part = iovec {
                iov_base: to,
                iov_len: len,
            };
            // SAFETY: as the program promises.
            unsafe { into(fd, &entry, &[part], flags) }
        }
    }
}

/// read(2).
///
/// # Safety
/// As of read(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn read(fd: c_int, to: *mut c_void, len: size_t) -> ssize_t {
    match here(fd, 0) {
        // SAFETY: as the program promises.
        Err(call) => read_in_kernel(fd, call, || unsafe { real::read(fd, to, len) }),
        Ok(entry) => {
            let part = iovec {
                iov_base: to,
                iov_len: len,
            };
            // SAFETY: as the program promises.
            unsafe { into(fd, &entry, &[part], 0) }
        }
    }
}

/// The form that the compiler calls where it knows the buffer's size.
///
/// # Safety
/// As of recv(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __recv_chk(
    fd: c_int,
    to: *mut c_void,
    len: size_t,
    room: size_t,
    flags: c_int,
) -> ssize_t {
    // SAFETY: as the program promises, and not beyond the buffer.
    unsafe { recv(fd, to, len.min(room), flags) }
}

/// The form that the compiler calls where it knows the buffer's size.
///
/// # Safety
/// As of read(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __read_chk(
    fd: c_int,
    to: *mut c_void,
    len: size_t,
    room: size_t,
) -> ssize_t {
    // SAFETY: as the program promises, and not beyond the buffer.
    unsafe { read(fd, to, len.min(room)) }
}

/// recvfrom(2).
///
/// # Safety
/// As of recvfrom(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn recvfrom(
    fd: c_int,
    to: *mut c_void,
    len: size_t,
    flags: c_int,
    name: *mut sockaddr,
    name_len: *mut socklen_t,
) -> ssize_t {
    match here(fd, flags) {
        // SAFETY: as the program promises.
        Err(call) => read_in_kernel(fd, call, || unsafe {
            real::recvfrom(fd, to, len, flags, name, name_len)
        }),
        Ok(entry) => {
            if !name.is_null() && !name_len.is_null() {
                // TCP names nobody.
                // SAFETY: the program's place for a length.
                unsafe { *name_len = 0 };
            }
            let part = iovec {
                iov_base: to,
                iov_len: len,
            };
            // SAFETY: as the program promises.
            unsafe { into(fd, &entry, &[part], flags) }
        }
    }
}

/// readv(2).
///
/// # Safety
/// As of readv(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn readv(fd: c_int, parts: *const iovec, count: c_int) -> ssize_t {
    match here(fd, 0) {
        Ok(entry) if count > 0 => {
            // SAFETY: as many structures as the program says.
            let parts = unsafe { std::slice::from_raw_parts(parts, count as usize) };
            // SAFETY: as the program promises.
            unsafe { into(fd, &entry, parts, 0) }
        }
        // SAFETY: as the program promises.
        Err(call) => read_in_kernel(fd, call, || unsafe { real::readv(fd, parts, count) }),
        // SAFETY: as the program promises.
        Ok(_) => unsafe { real::readv(fd, parts, count) },
    }
}

/// recvmsg(2).
///
/// # Safety
/// As of recvmsg(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn recvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t {
    let entry = match here(fd, flags) {
        Err(call) => {
            // SAFETY: as the program promises.
            return read_in_kernel(fd, call, || unsafe { real::recvmsg(fd, message, flags) });
        }
        Ok(entry) => entry,
    };
    // SAFETY: the program's structure, which the call may change.
    let message = unsafe { &mut *message };
    message.msg_controllen = 0;
    message.msg_namelen = 0;
    message.msg_flags = 0;
    let parts = match message.msg_iovlen {
        0 => &[],
        // SAFETY: as many structures as the program says.
        count => unsafe { std::slice::from_raw_parts(message.msg_iov, count) },
    };
    // SAFETY: as the program promises.
    unsafe { into(fd, &entry, parts, flags) }
}
