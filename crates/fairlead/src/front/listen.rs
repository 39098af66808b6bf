//! Where the front listens.
//!
//! The kernel gives connections to the sockets on loopback (`serve/host.rs`). Where it cannot, the
//! switch splices them to sockets at addresses of its own device: the front is a server of its own
//! then, in a pool that only routes to the front lead to.

use std::collections::BTreeSet;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};

use fairlead_base::Endpoint;
use fairlead_driver_tun::net::own_address;
use fairlead_splice::config::{Config, Listeners, Pool, PoolId, ProxyVersion, Route, Server};
use socket2::{Domain, Protocol, Socket, Type};

/// Connections that wait to be accepted.
const BACKLOG: i32 = 4_096;

/// The pool's name in logs, which no pool of a configuration has.
const POOL: &str = "(front)";

/// The sockets, before their thread runs: the engine must know where they listen.
#[derive(Debug)]
pub(crate) struct Ready {
    given: Vec<TcpListener>,
    /// Bound, and listening once the device is there.
    spliced: Vec<Socket>,
}

/// All of them listen.
#[derive(Debug)]
pub(super) struct Listening {
    sockets: Vec<TcpListener>,
    /// To those from this one on the switch connects.
    announced: usize,
}

impl Ready {
    /// Opens the sockets, and leads the routes to them.
    ///
    /// # Errors
    /// Why no socket can listen.
    pub(crate) fn open(switch: &mut Config) -> io::Result<Self> {
        let v4 = bound(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)))?;
        // A machine may be without IPv6.
        let v6 = bound(SocketAddr::from((Ipv6Addr::LOCALHOST, 0))).ok();
        let mut given = Vec::new();
        for socket in [Some(v4), v6].into_iter().flatten() {
            socket.listen(BACKLOG)?;
            given.push(TcpListener::from(socket));
        }
        let ends: io::Result<Vec<_>> = given.iter().map(TcpListener::local_addr).collect();
        let listeners = Listeners::of(ends?.into_iter().map(endpoint));
        let routes = switch.services.iter_mut().flat_map(|one| &mut one.routes);
        for route in routes.filter(|route| route.is_to_front()) {
            route.listeners = listeners;
        }
        let spliced = splice_to(switch)?;
        Ok(Self { given, spliced })
    }

    /// Has all of them listen. Those at the device's addresses take what comes by the device alone:
    /// nobody but the switch can say who a client is.
    pub(super) fn listen(self, device: &str) -> io::Result<Listening> {
        let announced = self.given.len();
        let mut sockets = self.given;
        for socket in self.spliced {
            socket.bind_device(Some(device.as_bytes()))?;
            socket.listen(BACKLOG)?;
            sockets.push(socket.into());
        }
        Ok(Listening { sockets, announced })
    }
}

impl Listening {
    /// The same sockets once more, for a thread, and which of them the switch connects to.
    pub(super) fn shared(&self) -> io::Result<(Vec<mio::net::TcpListener>, usize)> {
        let sockets: io::Result<Vec<_>> = self.sockets.iter().map(TcpListener::try_clone).collect();
        let sockets = sockets?.into_iter().map(mio::net::TcpListener::from_std);
        Ok((sockets.collect(), self.announced))
    }
}

/// Makes the front a server of the switch, for clients of the IP versions that services with such
/// routes have.
fn splice_to(switch: &mut Config) -> io::Result<Vec<Socket>> {
    let services = switch.services.iter();
    let services = services.filter(|one| one.routes.iter().any(Route::is_to_front));
    let versions: BTreeSet<bool> = services
        .flat_map(|one| &one.listen)
        .map(|one| one.addr.is_v4())
        .collect();
    let (mut sockets, mut servers) = (Vec::new(), Vec::new());
    for v4 in versions {
        let socket = bound(SocketAddr::from((own_address(v4), 0)))?;
        let at = socket.local_addr()?.as_socket();
        let at = at.ok_or(io::ErrorKind::AddrNotAvailable)?;
        servers.push(Server::new(endpoint(at)));
        sockets.push(socket);
    }
    let number = u16::try_from(switch.pools.len()).map_err(io::Error::other)?;
    switch.pools.push(Pool {
        proxy_protocol: Some(ProxyVersion::V2),
        ..Pool::new(POOL, servers)
    });
    switch.front = Some(PoolId(number));
    Ok(sockets)
}

fn bound(at: SocketAddr) -> io::Result<Socket> {
    let domain = Domain::for_address(at);
    let kind = Type::STREAM.nonblocking().cloexec();
    let socket = Socket::new(domain, kind, Some(Protocol::TCP))?;
    // The device, and its addresses with it, comes later.
    match at.ip() {
        IpAddr::V4(_) => socket.set_freebind_v4(true)?,
        IpAddr::V6(_) => socket.set_freebind_v6(true)?,
    }
    socket.bind(&at.into())?;
    Ok(socket)
}

fn endpoint(at: SocketAddr) -> Endpoint {
    Endpoint {
        addr: at.ip().into(),
        port: at.port(),
    }
}
