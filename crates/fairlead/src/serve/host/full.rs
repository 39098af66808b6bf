//! Sockets that listen and accept nothing. With `net.ipv4.tcp_rfc1337` the kernel ends a connection
//! in TIME_WAIT by no RST, but by a SYN for which a socket listens. The kernel program gives it
//! such a SYN; the socket's queue is full, so the kernel drops the SYN then.

use std::collections::BTreeSet;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use fairlead_base::Endpoint;
use socket2::{Domain, SockAddr, Socket, Type};

/// A connection of this machine to itself takes no longer.
const PATIENCE: Duration = Duration::from_secs(1);

/// For as long as this is there.
#[derive(Debug)]
pub(super) struct FullListener {
    _listener: Socket,
    /// The only connection that there is room for.
    _filler: Socket,
}

impl FullListener {
    /// Listens at an address of this machine.
    fn open(at: Endpoint) -> io::Result<Self> {
        let address = SocketAddr::new(at.addr.to_ip(), at.port);
        let domain = Domain::for_address(address);
        let address = SockAddr::from(address);
        let listener = Socket::new(domain, Type::STREAM, None)?;
        if at.addr.is_v4() {
            listener.set_freebind_v4(true)?;
        } else {
            listener.set_only_v6(true)?;
            // A local route makes no address that can be bound.
            listener.set_freebind_v6(true)?;
        }
        // Of an earlier run, which has yet to end.
        listener.set_reuse_address(true)?;
        listener.set_reuse_port(true)?;
        listener.bind(&address)?;
        listener.listen(0)?;
        let filler = Socket::new(domain, Type::STREAM, None)?;
        filler.connect_timeout(&address, PATIENCE)?;
        Ok(Self {
            _listener: listener,
            _filler: filler,
        })
    }
}

/// Such sockets at these addresses. Where one cannot be made, a warning says why.
pub(super) fn open(listens: &BTreeSet<Endpoint>) -> (Vec<FullListener>, BTreeSet<Endpoint>) {
    let mut at = BTreeSet::new();
    let mut all = Vec::new();
    for &listen in listens {
        match FullListener::open(listen) {
            Ok(one) => {
                all.push(one);
                at.insert(listen);
            }
            Err(error) => tracing::warn!(
                "net.ipv4.tcp_rfc1337 is 1, and no socket can listen at {listen} ({error}): a \
                 client that comes again on the port of a connection in TIME_WAIT waits for about \
                 10 ms"
            ),
        }
    }
    (all, at)
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;

    #[test]
    fn nobody_is_accepted() {
        for host in ["127.0.0.1:0", "[::1]:0"] {
            let Ok(free) = TcpListener::bind(host) else {
                eprintln!("SKIPPED: {host} cannot be bound");
                continue;
            };
            let address = free.local_addr().unwrap();
            drop(free);
            let (all, at) = open(&BTreeSet::from([address.into()]));
            assert_eq!((all.len(), at.len()), (1, 1));
            let wait = Duration::from_millis(200);
            let error = TcpStream::connect_timeout(&address, wait).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        }
    }
}
