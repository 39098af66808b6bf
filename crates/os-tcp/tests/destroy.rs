//! Sockets that are ended by their addresses, in a namespace of this test's own.

use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};

use fairlead_base::{Address, Endpoint};
use fairlead_netns::World;
use fairlead_netns::trial::{Needs, in_namespaces, name_of, skip};
use fairlead_os_tcp::Destroyer;

fn endpoint(at: SocketAddr) -> Endpoint {
    let addr = match at.ip() {
        IpAddr::V4(four) => Address::v4(four.octets()),
        IpAddr::V6(six) => Address::v6(six.octets()),
    };
    let port = at.port();
    Endpoint { addr, port }
}

/// Both ends of a connection over loopback.
fn pair(listen: IpAddr) -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind((listen, 0)).unwrap();
    let ours = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    (ours, listener.accept().unwrap().0)
}

fn run<F: FnOnce()>(test: F) {
    in_namespaces(name_of::<F>(), Needs::default(), |_| {}, test);
}

/// The kernel was built with the option, or the test is skipped.
fn is_supported(name: &str, outcome: &std::io::Result<bool>) -> bool {
    let unsupported = |error: &std::io::Error| error.raw_os_error() == Some(95);
    let supported = !outcome.as_ref().is_err_and(unsupported);
    if !supported {
        skip(
            name,
            "the kernel was built without CONFIG_INET_DIAG_DESTROY",
        );
    }
    supported
}

fn a_socket_ends(listen: IpAddr) {
    let (ours, mut theirs) = pair(listen);
    let (local, peer) = (
        endpoint(ours.local_addr().unwrap()),
        endpoint(ours.peer_addr().unwrap()),
    );
    let mut destroyer = Destroyer::open().unwrap();
    let outcome = destroyer.destroy(local, peer);
    if !is_supported("a_destroyed_socket_is_reset", &outcome) {
        return;
    }
    assert!(outcome.unwrap());
    let mut room = [0; 1];
    let ended = theirs.read(&mut room).unwrap_err();
    assert_eq!(ended.kind(), ErrorKind::ConnectionReset);
    let ended = (&ours).read(&mut room).unwrap_err();
    assert_eq!(ended.kind(), ErrorKind::ConnectionAborted);
    // It is gone, and a second order says so.
    assert!(!destroyer.destroy(local, peer).unwrap());
}

#[test]
fn a_destroyed_socket_is_reset() {
    run(|| {
        let host = World::new().unwrap().host("one").unwrap();
        host.enter(|| {
            a_socket_ends(Ipv4Addr::LOCALHOST.into());
            a_socket_ends(Ipv6Addr::LOCALHOST.into());
        })
        .unwrap();
    });
}

/// What sleepers need: the process has closed an idle connection, its FIN is lost or on its way,
/// and the addresses become free at once.
#[test]
fn a_socket_in_fin_wait_and_one_in_time_wait_are_removed() {
    run(|| {
        let host = World::new().unwrap().host("one").unwrap();
        host.enter(|| {
            for half_closed in [true, false] {
                let (ours, mut theirs) = pair(Ipv4Addr::LOCALHOST.into());
                theirs.write_all(b"all of it").unwrap();
                let mut room = [0; 16];
                assert_eq!((&ours).read(&mut room).unwrap(), 9);
                let (local, peer) = (
                    endpoint(ours.local_addr().unwrap()),
                    endpoint(ours.peer_addr().unwrap()),
                );
                drop(ours);
                if !half_closed {
                    assert_eq!(theirs.read(&mut room).unwrap(), 0);
                    drop(theirs);
                }
                let mut destroyer = Destroyer::open().unwrap();
                let outcome = destroyer.destroy(local, peer);
                if is_supported("a_socket_in_fin_wait", &outcome) {
                    assert!(outcome.unwrap(), "half closed: {half_closed}");
                    assert!(!destroyer.destroy(local, peer).unwrap());
                }
            }
        })
        .unwrap();
    });
}

/// The kernel finds the listener where the connection has gone.
#[test]
fn a_listener_at_the_same_address_stays() {
    run(|| {
        let host = World::new().unwrap().host("one").unwrap();
        host.enter(|| {
            for listen in [
                IpAddr::from(Ipv4Addr::LOCALHOST),
                Ipv6Addr::LOCALHOST.into(),
            ] {
                let listener = TcpListener::bind((listen, 0)).unwrap();
                let at = listener.local_addr().unwrap();
                let client = TcpStream::connect(at).unwrap();
                let (server, from) = listener.accept().unwrap();
                let (local, peer) = (endpoint(at), endpoint(from));
                let mut destroyer = Destroyer::open().unwrap();
                let outcome = destroyer.destroy(local, peer);
                if !is_supported("a_listener_at_the_same_address_stays", &outcome) {
                    return;
                }
                assert!(outcome.unwrap());
                drop((client, server));
                assert!(!destroyer.destroy(local, peer).unwrap());
                TcpStream::connect(at).expect("somebody listens");
            }
        })
        .unwrap();
    });
}

/// Without the right nothing is ended.
#[test]
fn an_ordinary_process_may_not() {
    run(|| {
        let host = World::new().unwrap().host("one").unwrap();
        host.enter(|| {
            let (ours, _theirs) = pair(Ipv4Addr::LOCALHOST.into());
            let (local, peer) = (
                endpoint(ours.local_addr().unwrap()),
                endpoint(ours.peer_addr().unwrap()),
            );
            // SAFETY: changes the user of this thread alone, which ends here.
            let dropped = unsafe { libc::syscall(libc::SYS_setresuid, -1, 65_534, -1) };
            if dropped != 0 {
                return skip("an_ordinary_process_may_not", "no other user to become");
            }
            let outcome = Destroyer::open().and_then(|mut one| one.destroy(local, peer));
            assert_eq!(outcome.unwrap_err().raw_os_error(), Some(1), "EPERM");
            assert!(ours.peer_addr().is_ok());
        })
        .unwrap();
    });
}
