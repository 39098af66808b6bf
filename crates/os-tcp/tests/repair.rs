//! Sockets whose state is read, and sockets made of such states, between two namespaces.

use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use fairlead_netns::trial::{Needs, in_namespaces, name_of};
use fairlead_netns::{Host, World};
use fairlead_os_tcp::repair::{self, drain, own_namespace};
use fairlead_os_tcp::{Identity, PeerClock, Refused, State};

const PATIENCE: Duration = Duration::from_secs(5);

struct Hosts {
    _world: World,
    client: Host,
    server: Host,
}

fn hosts() -> Hosts {
    let mut world = World::new().unwrap();
    let (client, server) = (world.host("client").unwrap(), world.host("server").unwrap());
    world
        .link(
            (&client, &["10.0.0.1/24", "fd00::1/64"]),
            (&server, &["10.0.0.2/24", "fd00::2/64"]),
        )
        .unwrap();
    Hosts {
        _world: world,
        client,
        server,
    }
}

impl Hosts {
    /// A connection: the client's socket and the server's.
    fn connection(&self, listen: &str) -> (TcpStream, TcpStream) {
        let listener = self
            .server
            .enter(|| TcpListener::bind(listen).unwrap())
            .unwrap();
        let at: SocketAddr = listener.local_addr().unwrap();
        let at = match at.ip().is_unspecified() {
            true => SocketAddr::new("10.0.0.2".parse().unwrap(), at.port()),
            false => at,
        };
        let ours = self
            .client
            .enter(|| TcpStream::connect(at).unwrap())
            .unwrap();
        let theirs = listener.accept().unwrap().0;
        for stream in [&ours, &theirs] {
            stream.set_read_timeout(Some(PATIENCE)).unwrap();
        }
        (ours, theirs)
    }
}

fn run<F: FnOnce()>(test: F) {
    in_namespaces(name_of::<F>(), Needs::default(), |_| {}, test);
}

/// Takes a connection out of its socket, and puts it into another.
fn moved(socket: TcpStream) -> (TcpStream, State) {
    let fd = socket.as_fd();
    let identity = Identity::of(fd, own_namespace().unwrap()).unwrap();
    repair::enter(fd).unwrap();
    let state = State::export(fd, identity, PeerClock::Seen(0)).unwrap();
    assert_eq!((state.leg.unread, state.leg.unacknowledged), (0, 0));
    repair::disconnect(fd).unwrap();
    let other = state.restore().unwrap();
    repair::leave(other.as_fd(), true).unwrap();
    repair::settle(other.as_fd()).unwrap();
    drop(socket); // closed as it is, without a word
    let other = TcpStream::from(other);
    other.set_read_timeout(Some(PATIENCE)).unwrap();
    (other, state)
}

fn say(from: &mut TcpStream, to: &mut TcpStream, bytes: &[u8]) {
    from.write_all(bytes).unwrap();
    let mut got = vec![0; bytes.len()];
    to.read_exact(&mut got).unwrap();
    assert!(got == bytes);
}

fn settle_acks(socket: &TcpStream) {
    let until = std::time::Instant::now() + PATIENCE;
    while repair::queues(socket.as_fd()).unwrap() != (0, 0) {
        assert!(std::time::Instant::now() < until, "never acknowledged");
        std::thread::yield_now();
    }
}

/// One connection moves from socket to socket, a hundred times; streams, window and segments stay.
fn a_stream_goes_on(hosts: &Hosts, listen: &str) {
    let (mut ours, mut theirs) = hosts.connection(listen);
    let bytes: Vec<u8> = (0..20_000_u32).map(|at| at as u8).collect();
    let mut first = None;
    for round in 0..100 {
        say(&mut ours, &mut theirs, &bytes[..round * 100 + 1]);
        say(&mut theirs, &mut ours, &bytes[..20_000 - round]);
        settle_acks(&theirs);
        let (next, state) = hosts.server.enter(|| moved(theirs)).unwrap();
        theirs = next;
        let now = (
            state.leg.mss,
            state.leg.own_mss,
            state.leg.scales,
            state.leg.sack,
        );
        let before = *first.get_or_insert(now);
        assert_eq!(now, before, "{listen}, round {round}");
        assert!(
            state.leg.promised >= 8_192,
            "{listen}, round {round}: {state:?}"
        );
    }
    let mut end = Vec::new();
    drop(theirs);
    assert_eq!(ours.read_to_end(&mut end).unwrap(), 0, "a FIN, and no RST");
}

#[test]
fn a_connection_moves_from_socket_to_socket() {
    run(|| {
        let hosts = hosts();
        // The last one is a socket of IPv6 with addresses of IPv4.
        for listen in ["10.0.0.2:0", "[fd00::2]:0", "[::]:0"] {
            a_stream_goes_on(&hosts, listen);
        }
        hosts.server.sysctl("net.ipv4.tcp_timestamps", "0").unwrap();
        hosts.server.sysctl("net.ipv4.tcp_sack", "0").unwrap();
        hosts
            .server
            .sysctl("net.ipv4.tcp_window_scaling", "0")
            .unwrap();
        a_stream_goes_on(&hosts, "10.0.0.2:0");
    });
}

/// A clock that is set to any value counts what it counted: milliseconds.
#[test]
fn a_port_can_be_listened_on_again_after_a_move_that_was_given_up() {
    run(|| {
        let hosts = hosts();
        let (mut client, server) = hosts.connection("10.0.0.2:80");
        repair::enter(server.as_fd()).unwrap();
        repair::leave(server.as_fd(), false).unwrap();
        drop(server); // it closes first, so it is in TIME_WAIT
        assert_eq!(client.read(&mut [0]).unwrap(), 0);
        drop(client);
        let again = hosts.server.enter(|| TcpListener::bind("10.0.0.2:80"));
        again.unwrap().unwrap();
    });
}

#[test]
fn the_clock_of_a_moved_socket_keeps_its_pace() {
    run(|| {
        let hosts = hosts();
        for step in [0, 1] {
            let (_ours, theirs) = hosts.connection("10.0.0.2:0");
            let passed = hosts.server.enter(|| {
                let fd = theirs.as_fd();
                let identity = Identity::of(fd, own_namespace().unwrap()).unwrap();
                let export = |fd| {
                    repair::enter(fd).unwrap();
                    State::export(fd, identity, PeerClock::Seen(0)).unwrap()
                };
                let own = |state: &State| state.leg.timestamps.unwrap().own;
                let mut state = export(fd);
                state.leg.timestamps.as_mut().unwrap().own += step;
                repair::disconnect(fd).unwrap();
                let other = state.restore().unwrap();
                let begun = std::time::Instant::now();
                while begun.elapsed() < Duration::from_millis(40) {
                    std::thread::yield_now();
                }
                let passed = own(&export(other.as_fd())).wrapping_sub(own(&state));
                (passed, begun.elapsed().as_millis() as u32)
            });
            let (passed, millis) = passed.unwrap();
            assert!(
                (30..millis + 30).contains(&passed),
                "{passed} in {millis} ms"
            );
        }
    });
}

/// Bytes that wait in one socket's queue are written to the other, none twice and none lost, also
/// where the other takes them slowly.
#[test]
fn what_waits_in_queues_is_passed_on() {
    run(|| {
        let hosts = hosts();
        let (mut client, a) = hosts.connection("10.0.0.2:0");
        let (b, mut server) = hosts.connection("10.0.0.2:0");
        let bytes: Vec<u8> = (0..3_000_000_u32).map(|at| (at / 7) as u8).collect();
        let sent = bytes.clone();
        let writer = std::thread::spawn(move || {
            client.write_all(&sent).unwrap();
            client
        });
        std::thread::sleep(Duration::from_millis(20)); // until the queue is full, or not
        let reader = std::thread::spawn(move || {
            let mut got = vec![0; 3_000_000];
            server.read_exact(&mut got).unwrap();
            (server, got)
        });
        let mut to_server = 0;
        while to_server < 3_000_000 {
            let ([there, back], _) = drain(a.as_fd(), b.as_fd(), |_| None, PATIENCE).unwrap();
            assert_eq!(back, 0);
            to_server += there;
        }
        let (server, got) = reader.join().unwrap();
        assert!(got == bytes);
        let client = writer.join().unwrap();
        // An end that takes nothing: the rest stays, and the answer says so.
        let mut client = client;
        client.set_nonblocking(true).unwrap();
        let mut more = 0;
        let until = std::time::Instant::now() + PATIENCE;
        loop {
            match client.write(&[7; 65_536]) {
                Ok(count) => more += count as u64,
                Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
            }
            let (_, empty) =
                drain(a.as_fd(), b.as_fd(), |_| None, Duration::from_millis(5)).unwrap();
            if !empty && more > 1_000_000 {
                break;
            }
            assert!(std::time::Instant::now() < until);
        }
        drop(server);
    });
}

/// An end waits 40 ms before it acknowledges what it has nothing to answer to. Asked, it does not.
#[test]
fn an_end_that_acknowledges_late_is_asked() {
    run(|| {
        let hosts = hosts();
        let (b, _server) = hosts.connection("10.0.0.2:0");
        let mut waited = Vec::new();
        let (mut client, mut a) = hosts.connection("10.0.0.2:0");
        for _ in 0..5 {
            // Once in half a second an end answers such a question.
            (client, a) = hosts.connection("10.0.0.2:0");
            say(&mut client, &mut a, &[1; 100]);
            let of_client = socket2::SockRef::from(&client);
            of_client.set_tcp_quickack(false).unwrap();
            say(&mut a, &mut client, &[2; 100]);
            let begun = std::time::Instant::now();
            let (moved, empty) = drain(a.as_fd(), b.as_fd(), |_| None, PATIENCE).unwrap();
            assert_eq!((moved, empty), ([0, 0], true));
            waited.push(begun.elapsed());
        }
        waited.sort_unstable();
        assert!(waited[2] < Duration::from_millis(20), "{waited:?}");
        // The socket is as before.
        socket2::SockRef::from(&a).set_reuse_address(true).unwrap();
        repair::ask(a.as_fd()).unwrap();
        assert!(socket2::SockRef::from(&a).reuse_address().unwrap());
        say(&mut a, &mut client, &[3; 100]);
    });
}

/// An acknowledgement that did not reach the socket counts, if it is of all that was written.
#[test]
fn what_is_heard_of_an_end_counts() {
    run(|| {
        let hosts = hosts();
        let (mut client, mut a) = hosts.connection("10.0.0.2:0");
        let (b, _server) = hosts.connection("10.0.0.2:0");
        say(&mut client, &mut a, &[1; 100]);
        // The client acknowledges nothing any more.
        hosts.client.ip("route add blackhole 10.0.0.2/32").unwrap();
        a.write_all(&[2; 100]).unwrap();
        let fd = a.as_fd();
        let there = hosts.server.enter(|| own_namespace().unwrap()).unwrap();
        let identity = Identity::of(fd, there).unwrap();
        repair::enter(fd).unwrap();
        let leg = State::export(fd, identity, PeerClock::Seen(0)).unwrap().leg;
        repair::leave(fd, false).unwrap();
        assert_eq!(leg.unacknowledged, 100);
        let (all, less) = (leg.write_seq, leg.write_seq.wrapping_sub(1));
        for (heard, is_all) in [(None, false), (Some(less), false), (Some(all), true)] {
            let of_client = |at| heard.filter(|_| at == 0);
            let patience = Duration::from_millis(20);
            let drained = drain(fd, b.as_fd(), of_client, patience).unwrap();
            assert_eq!(drained, ([0, 0], is_all));
        }
    });
}

#[test]
fn what_is_no_connection_of_ours_is_refused() {
    run(|| {
        let hosts = hosts();
        let (ours, theirs) = hosts.connection("10.0.0.2:0");
        let here = hosts.server.enter(|| own_namespace().unwrap()).unwrap();
        let refused = |fd: &dyn AsFd| Identity::of(fd.as_fd(), here).map(|_| ());
        assert_eq!(refused(&theirs), Ok(()));
        assert_eq!(refused(&ours), Err(Refused::Namespace));
        hosts
            .server
            .enter(|| {
                let listener = TcpListener::bind("10.0.0.2:0").unwrap();
                assert_eq!(refused(&listener), Err(Refused::NotTcp));
                let datagrams = UdpSocket::bind("10.0.0.2:0").unwrap();
                datagrams.connect("10.0.0.1:9").unwrap();
                assert_eq!(refused(&datagrams), Err(Refused::NotTcp));
            })
            .unwrap();
        assert_eq!(
            refused(&UnixStream::pair().unwrap().0),
            Err(Refused::NotTcp)
        );
        assert_eq!(
            refused(&File::open("/dev/null").unwrap()),
            Err(Refused::NotTcp)
        );
        // It has ended: a reset socket has no peer.
        drop(ours);
        let mut theirs = theirs;
        let _ = theirs.write_all(&[1; 4]);
        let until = std::time::Instant::now() + PATIENCE;
        while Identity::of(theirs.as_fd(), here).is_ok() {
            let _ = theirs.write_all(&[1; 4]);
            assert!(std::time::Instant::now() < until);
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(Identity::of(theirs.as_fd(), here), Err(Refused::NotTcp));
    });
}
