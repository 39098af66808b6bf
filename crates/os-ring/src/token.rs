//! The descriptor that a program has in place of its socket: one end of a socket pair without
//! bytes of the connection. The kernel's epoll, poll and select work on it.
//!
//! | of the pair | means |
//! |---|---|
//! | a byte from the card | readable |
//! | bytes of the program fill its buffer | not writable, until the card reads them |
//! | the card has shut its sending side | the peer has ended its stream |
//! | the card has shut both | the connection has failed |
//! | the program's end hangs up | its last copy is closed |

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use crate::counted;

/// What one write of a program's stopper has: more than the smallest send buffer.
const STOPPER: [u8; 4_096] = [0; 4_096];

/// A pair: the program's end, the card's.
///
/// # Errors
/// What the system says.
pub fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    let mut both = [0; 2];
    let kind = libc::SOCK_STREAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: room for two descriptors.
    let made = unsafe { libc::socketpair(libc::AF_UNIX, kind, 0, both.as_mut_ptr()) };
    counted(made as isize)?;
    // SAFETY: descriptors that were just made and that nobody else has.
    let (program, card) = both.map(|fd| unsafe { OwnedFd::from_raw_fd(fd) }).into();
    let smallest = (1 as libc::c_int).to_ne_bytes();
    let (fd, from) = (program.as_raw_fd(), smallest.as_ptr().cast());
    // SAFETY: an open socket, and four bytes.
    unsafe { libc::setsockopt(fd, libc::SOL_SOCKET, libc::SO_SNDBUF, from, 4) };
    Ok((program, card))
}

/// Writes one byte to the program's end.
pub fn give(card: BorrowedFd<'_>) {
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    // It fails if the buffer is full, where one more says nothing, or nobody reads it.
    // SAFETY: an open socket, and one byte.
    let _ = unsafe { libc::send(card.as_raw_fd(), c"t".as_ptr().cast(), 1, flags) };
}

/// Reads of one [`drain`] at most, writes of one [`stop`]. Both ends may be at it at once, and a
/// hostile program could go on for ever.
const READS: u32 = 16;
const WRITES: u32 = 2;

/// Reads all bytes away. False: the other end has hung up.
pub fn drain(end: BorrowedFd<'_>) -> bool {
    let mut room = [0_u8; 4_096];
    for _ in 0..READS {
        let (fd, to) = (end.as_raw_fd(), room.as_mut_ptr().cast());
        // SAFETY: an open socket, and room of the length given.
        let got = unsafe { libc::recv(fd, to, room.len(), libc::MSG_DONTWAIT) };
        match counted(got) {
            Ok(0) => return false,
            Ok(bytes) if bytes < room.len() => return true,
            Ok(_) => {}
            Err(error) => return error.kind() == io::ErrorKind::WouldBlock,
        }
    }
    true
}

/// Fills the program's end, so that it is not writable.
pub fn stop(program: BorrowedFd<'_>) {
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    for _ in 0..WRITES {
        let (fd, from) = (program.as_raw_fd(), STOPPER.as_ptr().cast());
        // SAFETY: an open socket, and as many bytes.
        let sent = unsafe { libc::send(fd, from, STOPPER.len(), flags) };
        if sent <= 0 {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;

    fn ready(end: &OwnedFd) -> libc::c_short {
        let mut one = libc::pollfd {
            fd: end.as_raw_fd(),
            events: libc::POLLIN | libc::POLLOUT | libc::POLLRDHUP,
            revents: 0,
        };
        // SAFETY: one structure.
        unsafe { libc::poll(&raw mut one, 1, 0) };
        one.revents
    }

    #[test]
    fn readiness_is_that_of_a_socket() {
        let (program, card) = pair().unwrap();
        assert_eq!(ready(&program), libc::POLLOUT);
        give(card.as_fd());
        assert_eq!(ready(&program), libc::POLLOUT | libc::POLLIN);
        assert!(drain(program.as_fd()));
        stop(program.as_fd());
        assert_eq!(ready(&program), 0);
        assert!(drain(card.as_fd()));
        assert_eq!(ready(&program), libc::POLLOUT);
        crate::shared::shut(card.as_fd(), false);
        let ended = libc::POLLIN | libc::POLLOUT | libc::POLLRDHUP;
        assert_eq!(ready(&program), ended);
        drop(program);
        assert!(!drain(card.as_fd()));
    }
}
