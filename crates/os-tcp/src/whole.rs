//! A connection with the bytes of its queues: out of one TCP, into another.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use fairlead_tcp::pairing::ESTABLISHED;

use crate::repair::{self, Identity, PeerClock, State};
use crate::sys;

/// How often queues are read until they are those of the state.
const READS_MAX: usize = 50;

/// A connection's state and its bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Whole {
    /// The state. Its numbers are those behind the bytes.
    pub state: State,
    /// Received and not read.
    pub received: Vec<u8>,
    /// Sent and not acknowledged.
    pub sent: Vec<u8>,
    /// Written and not sent. They follow [`Self::sent`].
    pub unsent: Vec<u8>,
}

/// Why a connection cannot be read.
#[derive(Debug)]
pub enum Unreadable {
    /// It is not established in both directions.
    State,
    /// More bytes are in its queues than may be.
    Queues,
    /// It kept changing.
    Unstable,
    /// The kernel refused a call.
    System(io::Error),
}

impl From<io::Error> for Unreadable {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::TimedOut => Self::Unstable,
            _ => Self::System(error),
        }
    }
}

impl Whole {
    /// Reads a socket in repair mode whose packets are held up. Each queue has at most `most`
    /// bytes.
    ///
    /// # Errors
    /// Why it cannot be read; it is unchanged then.
    pub fn export(
        socket: BorrowedFd<'_>,
        identity: Identity,
        most: u32,
    ) -> Result<Self, Unreadable> {
        // The peer's clock is learnt from the answer to the probe.
        let read = || State::export(socket, identity, PeerClock::Seen(0));
        for _ in 0..READS_MAX {
            let state = read()?;
            let leg = &state.leg;
            if leg.state != ESTABLISHED {
                return Err(Unreadable::State);
            }
            if leg.unread > most || leg.unacknowledged > most {
                return Err(Unreadable::Queues);
            }
            let unsent = repair::unsent(socket)?;
            let queues = (leg.unread, leg.unacknowledged);
            let [received, mut sent] = repair::contents(socket, queues)?;
            let again = read()?;
            let is_same = again.leg.rcv_nxt == leg.rcv_nxt
                && again.leg.write_seq == leg.write_seq
                && (again.leg.unread, again.leg.unacknowledged) == queues
                && received.len() == leg.unread as usize
                && sent.len() == leg.unacknowledged as usize
                && unsent <= leg.unacknowledged
                && repair::unsent(socket)? == unsent;
            if is_same {
                let unsent = sent.split_off(sent.len() - unsent as usize);
                return Ok(Self {
                    state: again,
                    received,
                    sent,
                    unsent,
                });
            }
        }
        Err(Unreadable::Unstable)
    }

    /// Adds bytes that somebody else has: read from the socket but not by the program, and written
    /// by the program but not to the socket.
    pub fn add(&mut self, unread: &[u8], unwritten: &[u8]) {
        self.received.splice(..0, unread.iter().copied());
        self.unsent.extend_from_slice(unwritten);
        let written = unwritten.len() as u32;
        self.state.leg.write_seq = self.state.leg.write_seq.wrapping_add(written);
    }

    /// A socket of this thread's network namespace with this connection, in repair mode.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn restore(&self) -> io::Result<OwnedFd> {
        let socket = sys::socket(self.state.family, libc::SOCK_STREAM, 0)?;
        let mut state = self.state;
        let unsent = self.unsent.len() as u32;
        state.leg.write_seq = state.leg.write_seq.wrapping_sub(unsent);
        let room = [&self.sent, &self.received].map(|queue| queue.len() as u32);
        for (buffer, bytes) in state.buffers.iter_mut().zip(room) {
            *buffer = (*buffer).max(bytes.saturating_mul(2));
        }
        state.restore_filled(socket.as_fd(), &self.received, &self.sent)?;
        Ok(socket)
    }

    /// Leaves repair mode, by which time packets must reach the socket, and writes what was not
    /// sent.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn release(&self, socket: BorrowedFd<'_>) -> io::Result<()> {
        release(socket, &self.unsent)
    }

    /// The number of the first byte that was not sent.
    pub fn first_unsent(&self) -> u32 {
        let written = self.state.leg.write_seq;
        written.wrapping_sub(self.unsent.len() as u32)
    }
}

/// Leaves repair mode, and writes these bytes.
fn release(socket: BorrowedFd<'_>, unsent: &[u8]) -> io::Result<()> {
    repair::leave(socket, true)?;
    repair::settle(socket)?;
    let mut left = unsent;
    while !left.is_empty() {
        let taken = sys::send(socket, left, libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL);
        let taken = match taken {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                let more = libc::SO_SNDBUFFORCE;
                let now = sys::option(socket, libc::SOL_SOCKET, libc::SO_SNDBUF)? / 2;
                let bytes = now.max(2 * left.len() as u32) * 2;
                sys::set(socket, libc::SOL_SOCKET, more, bytes)?;
                sys::send(socket, left, libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL)?
            }
            other => other?,
        };
        left = &left[taken..];
    }
    Ok(())
}

/// Does what [`Whole::release`] has left undone for a process that has ended in it, or before.
/// `unsent` are its bytes, `first` the number of the first of them.
///
/// # Errors
/// What the kernel says.
pub fn release_rest(socket: BorrowedFd<'_>, first: u32, unsent: &[u8]) -> io::Result<()> {
    if !repair::is_silent(socket) {
        repair::enter(socket)?;
    }
    let done = repair::next_to_write(socket)?.wrapping_sub(first) as usize;
    release(socket, unsent.get(done..).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::net::{TcpListener, TcpStream};

    use super::*;

    /// A process may end at any byte.
    #[test]
    fn what_is_left_undone_is_done_once() {
        let all = b"bytes that were written and not sent".as_slice();
        for done in [None, Some(0), Some(1), Some(all.len() - 1), Some(all.len())] {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let mut peer = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let socket = listener.accept().unwrap().0;
            if repair::enter(socket.as_fd()).is_err() {
                return; // it takes CAP_NET_ADMIN
            }
            let first = repair::next_to_write(socket.as_fd()).unwrap();
            if let Some(done) = done {
                release(socket.as_fd(), &all[..done]).unwrap();
            }
            release_rest(socket.as_fd(), first, all).unwrap();
            drop(socket);
            let mut got = Vec::new();
            peer.read_to_end(&mut got).unwrap();
            assert_eq!(got, all, "{done:?}");
        }
    }
}
