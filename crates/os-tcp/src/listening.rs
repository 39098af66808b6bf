//! Whether somebody listens at an address of this network namespace, as the kernel itself looks
//! for a new connection's socket.

use std::io;
use std::net::{Ipv4Addr, TcpListener};

use fairlead_base::{Address, Endpoint};

use crate::diag::{Answer, BY_FAMILY, Cookie, Diag, LISTEN};

/// A netlink socket for such questions. It needs no rights.
#[derive(Debug)]
pub struct Listening(Diag);

impl Listening {
    /// Opens the socket, in the network namespace of this thread, and tries whether it finds a
    /// listener that it has made itself: without the kernel's `tcp_diag` it finds none.
    ///
    /// # Errors
    /// What the kernel says, or that it has no `tcp_diag`.
    pub fn open() -> io::Result<Self> {
        let mut this = Self(Diag::open()?);
        let own = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        match this.at(own.local_addr()?.into())? {
            true => Ok(this),
            false => Err(io::Error::other("the kernel has no tcp_diag")),
        }
    }

    /// Whether somebody listens there, at the address itself or at all of them.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn at(&mut self, listener: Endpoint) -> io::Result<bool> {
        let nobody = Endpoint {
            addr: match listener.addr.is_v4() {
                true => Address::v4([0; 4]),
                false => Address([0; 16]),
            },
            port: 0,
        };
        let answer = self.0.ask(BY_FAMILY, (listener, nobody), Cookie::ANY)?;
        Ok(matches!(answer, Answer::State(LISTEN, _)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listener_is_found_at_its_address_and_at_all_addresses() {
        let Ok(mut listening) = Listening::open() else {
            eprintln!("SKIPPED: this kernel does not say who listens");
            return;
        };
        for (bound, asked) in [
            ("127.0.0.1:0", "127.0.0.1"),
            ("0.0.0.0:0", "127.0.0.1"),
            ("[::1]:0", "::1"),
            ("[::]:0", "::1"),
            ("[::]:0", "127.0.0.1"),
        ] {
            let Ok(listener) = TcpListener::bind(bound) else {
                eprintln!("SKIPPED: {bound} cannot be bound");
                continue;
            };
            let port = listener.local_addr().unwrap().port();
            let at = Endpoint {
                addr: asked.parse::<std::net::IpAddr>().unwrap().into(),
                port,
            };
            assert!(listening.at(at).unwrap(), "{bound} {asked}");
            drop(listener);
            assert!(!listening.at(at).unwrap(), "{bound} {asked}");
        }
    }
}
