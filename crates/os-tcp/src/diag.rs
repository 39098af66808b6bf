//! Questions and orders about sockets of this network namespace: sock_diag(7).

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use fairlead_base::Endpoint;

use crate::sys;

const NLM_F_REQUEST: u16 = 1;
const NLM_F_ACK: u16 = 4;
const NLMSG_ERROR: u16 = 2;
/// `struct nlmsghdr`, and `struct inet_diag_req_v2` behind it.
const HEADER_BYTES: usize = 16;
const REQUEST_BYTES: usize = HEADER_BYTES + 56;
/// The kernel answers within the call.
static PATIENCE: libc::timeval = libc::timeval {
    tv_sec: 2,
    tv_usec: 0,
};

/// A netlink socket for them.
#[derive(Debug)]
pub(crate) struct Diag {
    socket: OwnedFd,
    sequence: u32,
}

/// The kernel's name for a socket, which no other one gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cookie([u8; 8]);

impl Cookie {
    /// Whatever it is.
    pub(crate) const ANY: Self = Self([0xff; 8]);
}

/// `TCP_LISTEN`, as the kernel numbers states.
pub(crate) const LISTEN: u8 = 10;
/// `SOCK_DIAG_BY_FAMILY` of `linux/sock_diag.h`.
pub(crate) const BY_FAMILY: u16 = 20;

/// What the kernel answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// An order was carried out.
    Done,
    /// There is such a socket, in this state (`TCP_…` of the kernel).
    State(u8, Cookie),
    /// There is no such socket.
    Nothing,
}

impl Diag {
    /// Opens the socket, in the network namespace of this thread.
    pub(crate) fn open() -> io::Result<Self> {
        let socket = sys::socket(libc::AF_NETLINK, libc::SOCK_RAW, libc::NETLINK_SOCK_DIAG)?;
        let (seconds, micros) = (
            PATIENCE.tv_sec.to_ne_bytes(),
            PATIENCE.tv_usec.to_ne_bytes(),
        );
        let patience = [seconds, micros].concat();
        let fd = socket.as_fd();
        sys::set_bytes(fd, libc::SOL_SOCKET, libc::SO_RCVTIMEO, &patience)?;
        Ok(Self {
            socket,
            sequence: 0,
        })
    }

    /// Asks about the TCP socket between these addresses, as seen from this host, or about
    /// the one that would take a connection between them. An order needs an acknowledgement.
    pub(crate) fn ask(
        &mut self,
        kind: u16,
        (local, peer): (Endpoint, Endpoint),
        cookie: Cookie,
    ) -> io::Result<Answer> {
        self.sequence = self.sequence.wrapping_add(1);
        let flags = match kind {
            BY_FAMILY => NLM_F_REQUEST,
            _ => NLM_F_REQUEST | NLM_F_ACK,
        };
        let request = request(kind, flags, (local, peer), cookie, self.sequence);
        sys::send(self.socket.as_fd(), &request, 0)?;
        loop {
            let mut answer = [0; 512];
            let got = sys::receive(self.socket.as_fd(), &mut answer, 0)?;
            let word = |at: usize| {
                answer[at..]
                    .first_chunk()
                    .map_or(0, |w| u32::from_ne_bytes(*w))
            };
            let said = u16::from_ne_bytes([answer[4], answer[5]]);
            if got < HEADER_BYTES + 4 || word(8) != self.sequence {
                continue; // of a question whose answer came too late
            }
            if said == kind {
                // `struct inet_diag_msg`: its second byte, and the end of its `id`.
                let mut cookie = [0; 8];
                cookie.copy_from_slice(&answer[HEADER_BYTES + 44..HEADER_BYTES + 52]);
                return Ok(Answer::State(answer[HEADER_BYTES + 1], Cookie(cookie)));
            }
            if said != NLMSG_ERROR {
                continue;
            }
            return match -(word(HEADER_BYTES) as i32) {
                0 => Ok(Answer::Done),
                // ESTALE: another socket has the addresses by now.
                libc::ENOENT | libc::ESTALE => Ok(Answer::Nothing),
                errno => Err(io::Error::from_raw_os_error(errno)),
            };
        }
    }
}

fn request(
    kind: u16,
    flags: u16,
    (local, peer): (Endpoint, Endpoint),
    cookie: Cookie,
    sequence: u32,
) -> [u8; REQUEST_BYTES] {
    let mut bytes = [0; REQUEST_BYTES];
    let mut put = |at: usize, part: &[u8]| bytes[at..at + part.len()].copy_from_slice(part);
    put(0, &(REQUEST_BYTES as u32).to_ne_bytes());
    put(4, &kind.to_ne_bytes());
    put(6, &flags.to_ne_bytes());
    put(8, &sequence.to_ne_bytes());
    let family = match local.addr.is_v4() {
        true => libc::AF_INET,
        false => libc::AF_INET6,
    };
    put(16, &[family as u8, libc::IPPROTO_TCP as u8]);
    put(20, &u32::MAX.to_ne_bytes()); // in any state
    put(24, &local.port.to_be_bytes());
    put(26, &peer.port.to_be_bytes());
    for (at, addr) in [(28, local.addr), (44, peer.addr)] {
        match addr.is_v4() {
            true => put(at, &addr.v4_octets()),
            false => put(at, &addr.0),
        }
    }
    put(64, &cookie.0);
    bytes
}

#[cfg(test)]
mod tests {
    use fairlead_base::Address;

    use super::*;

    #[test]
    fn a_request_has_the_layout_of_the_header_file() {
        let at = |last, port| Endpoint {
            addr: Address::v4([10, 0, 0, last]),
            port,
        };
        let bytes = request(
            21,
            NLM_F_REQUEST,
            (at(1, 80), at(2, 40_000)),
            Cookie::ANY,
            7,
        );
        assert_eq!(bytes[..4], 72_u32.to_ne_bytes());
        assert_eq!(bytes[4..8], [21, 0, 1, 0]);
        assert_eq!(bytes[16..18], [2, 6]);
        assert_eq!(bytes[24..32], [0, 80, 0x9c, 0x40, 10, 0, 0, 1]);
        assert_eq!(bytes[44..48], [10, 0, 0, 2]);
        assert_eq!(
            bytes[60..],
            [0, 0, 0, 0, 255, 255, 255, 255, 255, 255, 255, 255]
        );
    }
}
