//! `write`, `send`, `sendfile` and the like.

use fairlead_offload::Reason;
use libc::{c_int, c_uint, c_void, iovec, msghdr, off64_t, size_t, sockaddr, socklen_t, ssize_t};

use super::{Use, carried, counted, fail, stay};
use crate::entry::InKernel;
use crate::flow::{Unfinished, send as put, until_done, waits};
use crate::moves::must_come_back;
use crate::table::Entry;
use crate::{file, real};

/// Flags that the rings do not carry.
const FOR_THE_KERNEL: c_int = libc::MSG_OOB | libc::MSG_ZEROCOPY | libc::MSG_FASTOPEN;

/// The socket, if this call is made on the card.
fn here(fd: c_int, flags: c_int) -> Result<Entry, InKernel> {
    let entry = carried(fd, Use::Write)?;
    if flags & FOR_THE_KERNEL == 0 {
        return Ok(entry);
    }
    match must_come_back(&entry, Reason::Flags) {
        Some(call) => Err(call),
        None => Ok(entry),
    }
}

/// Sends parts of the program's memory.
///
/// # Safety
/// They can be read.
unsafe fn from(fd: c_int, entry: &Entry, parts: &[iovec], flags: c_int) -> ssize_t {
    let all: usize = parts.iter().map(|part| part.iov_len).sum();
    let mut done = 0;
    loop {
        // SAFETY: as the caller promises.
        let outcome = until_done(fd, flags, entry, true, |inner| unsafe {
            put(fd, inner, parts, done)
        });
        match outcome {
            Ok(bytes) => done += bytes,
            Err(_) if done > 0 => return done as ssize_t,
            Err(Unfinished::Moved(_call)) => {
                // SAFETY: plain numbers and pointers, for which all zeros are a value.
                let mut message: msghdr = unsafe { core::mem::zeroed() };
                message.msg_iov = parts.as_ptr().cast_mut();
                message.msg_iovlen = parts.len() as _;
                // SAFETY: as the caller promises.
                return unsafe { real::sendmsg(fd, &raw const message, flags) };
            }
            Err(Unfinished::Failed(libc::EPIPE)) if flags & libc::MSG_NOSIGNAL == 0 => {
                // SAFETY: a number.
                unsafe { libc::raise(libc::SIGPIPE) };
                return fail(libc::EPIPE) as ssize_t;
            }
            Err(Unfinished::Failed(error)) => return fail(error) as ssize_t,
        }
        // A descriptor that waits, waits for all.
        if done == all || !waits(fd, flags) {
            return done as ssize_t;
        }
    }
}

/// send(2).
///
/// # Safety
/// As of send(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn send(
    fd: c_int,
    bytes: *const c_void,
    len: size_t,
    flags: c_int,
) -> ssize_t {
    match here(fd, flags) {
        // SAFETY: as the program promises.
        Err(_call) => unsafe { real::send(fd, bytes, len, flags) },
        Ok(entry) => {
            let part = iovec {
                iov_base: bytes.cast_mut(),
                iov_len: len,
            };
            // SAFETY: as the program promises.
            unsafe { from(fd, &entry, &[part], flags) }
        }
    }
}

/// sendto(2).
///
/// # Safety
/// As of sendto(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sendto(
    fd: c_int,
    bytes: *const c_void,
    len: size_t,
    flags: c_int,
    name: *const sockaddr,
    name_len: socklen_t,
) -> ssize_t {
    match here(fd, flags) {
        // SAFETY: as the program promises.
        Err(_call) => unsafe { real::sendto(fd, bytes, len, flags, name, name_len) },
        Ok(entry) => {
            let part = iovec {
                iov_base: bytes.cast_mut(),
                iov_len: len,
            };
            // SAFETY: as the program promises.
            unsafe { from(fd, &entry, &[part], flags) }
        }
    }
}

/// write(2).
///
/// # Safety
/// As of write(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn write(fd: c_int, bytes: *const c_void, len: size_t) -> ssize_t {
    match here(fd, 0) {
        // SAFETY: as the program promises.
        Err(_call) => unsafe { real::write(fd, bytes, len) },
        Ok(entry) => {
            let part = iovec {
                iov_base: bytes.cast_mut(),
                iov_len: len,
            };
            // SAFETY: as the program promises.
            unsafe { from(fd, &entry, &[part], 0) }
        }
    }
}

/// writev(2).
///
/// # Safety
/// As of writev(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn writev(fd: c_int, parts: *const iovec, count: c_int) -> ssize_t {
    match here(fd, 0) {
        Ok(entry) if count > 0 => {
            // SAFETY: as many structures as the program says.
            let parts = unsafe { std::slice::from_raw_parts(parts, count as usize) };
            // SAFETY: as the program promises.
            unsafe { from(fd, &entry, parts, 0) }
        }
        // SAFETY: as the program promises.
        _ => unsafe { real::writev(fd, parts, count) },
    }
}

/// Descriptors that a message passes to another process.
///
/// # Safety
/// The message is the program's.
unsafe fn passed(message: &msghdr) -> Vec<c_int> {
    let mut found = Vec::new();
    if message.msg_control.is_null() || message.msg_controllen == 0 {
        return found;
    }
    // SAFETY: the macros walk the program's control area within its length.
    unsafe {
        let mut entry = libc::CMSG_FIRSTHDR(message);
        while !entry.is_null() {
            let is_rights =
                (*entry).cmsg_level == libc::SOL_SOCKET && (*entry).cmsg_type == libc::SCM_RIGHTS;
            if is_rights {
                let bytes = ((*entry).cmsg_len as usize).saturating_sub(libc::CMSG_LEN(0) as usize);
                let first = libc::CMSG_DATA(entry).cast::<c_int>();
                let count = bytes / size_of::<c_int>();
                found.extend((0..count).map(|at| first.add(at).read_unaligned()));
            }
            entry = libc::CMSG_NXTHDR(message, entry);
        }
    }
    found
}

/// sendmsg(2). Sockets that it passes to others come back from the card first.
///
/// # Safety
/// As of sendmsg(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t {
    let entry = match here(fd, flags) {
        Ok(entry) => entry,
        Err(_call) => {
            if !message.is_null() {
                // SAFETY: the program's message.
                let passed = unsafe { passed(&*message) };
                passed.into_iter().for_each(|fd| stay(fd, Reason::Passed));
            }
            // SAFETY: as the program promises.
            return unsafe { real::sendmsg(fd, message, flags) };
        }
    };
    // SAFETY: the program's structure.
    let message = unsafe { &*message };
    let parts = match message.msg_iovlen {
        0 => &[],
        // SAFETY: as many structures as the program says.
        count => unsafe { std::slice::from_raw_parts(message.msg_iov, count) },
    };
    // SAFETY: as the program promises.
    unsafe { from(fd, &entry, parts, flags) }
}

/// sendfile(2), whose offsets have 64 bits.
///
/// # Safety
/// As of sendfile(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sendfile64(
    fd: c_int,
    from: c_int,
    offset: *mut off64_t,
    len: size_t,
) -> ssize_t {
    let entry = match here(fd, 0) {
        // SAFETY: as the program promises.
        Err(_call) => return unsafe { real::sendfile64(fd, from, offset, len) },
        Ok(entry) => entry,
    };
    let at = match offset.is_null() {
        // SAFETY: numbers.
        true => unsafe { libc::lseek64(from, 0, libc::SEEK_CUR) },
        // SAFETY: the program's number.
        false => unsafe { *offset },
    };
    if at < 0 {
        return fail(libc::EINVAL) as ssize_t;
    }
    let outcome = until_done(fd, 0, &entry, true, |inner| {
        file::send(fd, inner, from, at, len)
    });
    if let Ok(sent) = outcome {
        let behind = at + sent as off64_t;
        match offset.is_null() {
            // SAFETY: numbers.
            true => drop(unsafe { libc::lseek64(from, behind, libc::SEEK_SET) }),
            // SAFETY: the program's number.
            false => unsafe { *offset = behind },
        }
    }
    counted(outcome, || {
        // SAFETY: as the program promises.
        unsafe { real::sendfile64(fd, from, offset, len) }
    })
}

/// sendfile(2).
///
/// # Safety
/// As of sendfile(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sendfile(
    fd: c_int,
    from: c_int,
    offset: *mut off64_t,
    len: size_t,
) -> ssize_t {
    // SAFETY: as the program promises; offsets have 64 bits on the machines that are supported.
    unsafe { sendfile64(fd, from, offset, len) }
}

/// splice(2): connections come back from the card first.
///
/// # Safety
/// As of splice(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn splice(
    from: c_int,
    from_at: *mut off64_t,
    to: c_int,
    to_at: *mut off64_t,
    len: size_t,
    flags: c_uint,
) -> ssize_t {
    [from, to]
        .into_iter()
        .for_each(|fd| stay(fd, Reason::Spliced));
    // SAFETY: as the program promises.
    unsafe { real::splice(from, from_at, to, to_at, len, flags) }
}
