//! Ends sockets of this network namespace by their addresses: `SOCK_DESTROY` of sock_diag(7), which
//! the kernel has if it was built with `CONFIG_INET_DIAG_DESTROY`.

use std::io;

use fairlead_base::Endpoint;

use crate::diag::{Answer, BY_FAMILY, Cookie, Diag, LISTEN};

/// `SOCK_DESTROY` of `linux/sock_diag.h`.
const SOCK_DESTROY: u16 = 21;

/// A netlink socket for such orders. It needs CAP_NET_ADMIN.
#[derive(Debug)]
pub struct Destroyer(Diag);

impl Destroyer {
    /// Opens the socket, in the network namespace of this thread.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn open() -> io::Result<Self> {
        Diag::open().map(Self)
    }

    /// Ends the TCP socket between these addresses, as seen from this host: a RST leaves for the
    /// peer, the process sees ECONNABORTED. One in TIME_WAIT is removed without a word. False when
    /// there is no such socket. A socket that listens at the local address stays: the kernel would
    /// take it for the one that is meant.
    ///
    /// # Errors
    /// What the kernel says: EPERM, or EOPNOTSUPP where it was built without.
    pub fn destroy(&mut self, local: Endpoint, peer: Endpoint) -> io::Result<bool> {
        let ends = (local, peer);
        let cookie = match self.0.ask(BY_FAMILY, ends, Cookie::ANY)? {
            Answer::State(LISTEN, _) | Answer::Nothing => return Ok(false),
            Answer::State(_, cookie) => cookie,
            Answer::Done => Cookie::ANY,
        };
        let answer = self.0.ask(SOCK_DESTROY, ends, cookie)?;
        Ok(answer != Answer::Nothing)
    }
}
