//! System calls, each with the types that it takes.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use libc::{c_int, socklen_t};

/// The result of a call that returns -1 for an error.
pub(crate) fn checked(result: c_int) -> io::Result<c_int> {
    match result {
        -1 => Err(io::Error::last_os_error()),
        other => Ok(other),
    }
}

/// A new socket, closed on exec.
pub(crate) fn socket(family: c_int, kind: c_int, protocol: c_int) -> io::Result<OwnedFd> {
    // SAFETY: makes a descriptor, touches no memory of ours.
    let made = checked(unsafe { libc::socket(family, kind | libc::SOCK_CLOEXEC, protocol) })?;
    // SAFETY: a descriptor that was just made and that nobody else has.
    Ok(unsafe { OwnedFd::from_raw_fd(made) })
}

/// Sets a socket option to these bytes.
pub(crate) fn set_bytes(
    socket: BorrowedFd<'_>,
    level: c_int,
    name: c_int,
    value: &[u8],
) -> io::Result<()> {
    let (from, fd) = (value.as_ptr().cast(), socket.as_raw_fd());
    // SAFETY: an open socket, and bytes of the length given.
    checked(unsafe { libc::setsockopt(fd, level, name, from, value.len() as socklen_t) })?;
    Ok(())
}

/// Sends bytes. Fewer may be taken than there are.
pub(crate) fn send(socket: BorrowedFd<'_>, bytes: &[u8], flags: c_int) -> io::Result<usize> {
    let (fd, from) = (socket.as_raw_fd(), bytes.as_ptr().cast());
    // SAFETY: an open socket, and bytes of the length given.
    let sent = unsafe { libc::send(fd, from, bytes.len(), flags) };
    usize::try_from(sent).map_err(|_| io::Error::last_os_error())
}

/// Receives bytes; 0 at the end of the stream.
pub(crate) fn receive(socket: BorrowedFd<'_>, room: &mut [u8], flags: c_int) -> io::Result<usize> {
    let (fd, to) = (socket.as_raw_fd(), room.as_mut_ptr().cast());
    // SAFETY: an open socket, and room of the length given.
    let got = unsafe { libc::recv(fd, to, room.len(), flags) };
    usize::try_from(got).map_err(|_| io::Error::last_os_error())
}
