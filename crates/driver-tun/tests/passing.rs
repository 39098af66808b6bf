//! Copies of ICMP errors that pass by: which, and from where.

mod support;

use std::time::{Duration, Instant};

use fairlead_base::{Address, Packet};
use fairlead_driver_tun::PassingErrors;
use fairlead_netio::{Batch, RxQueue};
use fairlead_netns::Host;
use fairlead_wire::build;
use socket2::{Domain, Protocol, Socket, Type};

use support::{forwarding_host, in_a_world};

/// A packet of `protocol` (6: TCP) as a router would quote it.
fn quoted(v4: bool, protocol: u8) -> Vec<u8> {
    let mut bytes = vec![0; if v4 { 40 } else { 60 }];
    if v4 {
        bytes[..4].copy_from_slice(&[0x45, 0, 0, 40]);
        bytes[9] = protocol;
    } else {
        bytes[..8].copy_from_slice(&[0x60, 0, 0, 0, 0, 20, protocol, 64]);
    }
    bytes
}

fn too_big(from: &str, to: &str, protocol: u8) -> Packet {
    let (from, to) = (address(from), address(to));
    let mut packet = Packet::default();
    let quoted = quoted(to.is_v4(), protocol);
    build::emit_icmp_too_big(&from, &to, 1_300, &quoted, &mut packet.bytes);
    packet
}

fn echo(from: &str, to: &str) -> Packet {
    let mut packet = Packet::default();
    let (from, to) = (address(from), address(to));
    build::emit_icmp_echo_request(&from, &to, 1, 2, b"there?", &mut packet.bytes);
    packet
}

fn address(text: &str) -> Address {
    text.parse::<std::net::IpAddr>().unwrap().into()
}

/// Sends a whole packet to where its route leads, as it is.
fn send(host: &Host, packet: &Packet, to: &str) {
    let to = std::net::SocketAddr::new(to.parse().unwrap(), 0);
    let protocol = Protocol::from(255); // IPPROTO_RAW: the header is ours
    let socket = host.enter(|| Socket::new(Domain::for_address(to), Type::RAW, Some(protocol)));
    let socket = socket.unwrap().unwrap();
    let sent = socket.send_to(&packet.bytes, &to.into()).unwrap();
    assert_eq!(sent, packet.bytes.len());
}

/// Waits for `count` packets, and gives all that are there.
fn heard(passing: &mut PassingErrors, count: usize) -> Vec<Vec<u8>> {
    let mut batch = Batch::new(64, 1 << 20);
    let until = Instant::now() + Duration::from_secs(20);
    loop {
        let now = fairlead_base::Instant::ZERO;
        passing.receive(now, &mut batch).unwrap();
        if batch.len() >= count || Instant::now() > until {
            break;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    let packets = batch.packets().iter();
    packets.map(|packet| packet.bytes.clone()).collect()
}

#[test]
fn errors_about_tcp_from_outside_are_copied_and_nothing_else() {
    in_a_world(|world| {
        let switch = forwarding_host(world);
        let (router, client) = (world.host("router").unwrap(), world.host("client").unwrap());
        let back = (&switch, &["10.2.0.254/24", "fd02::fe/64"][..]);
        let back = world.link(back, (&router, &["10.2.0.1/24", "fd02::1/64"]));
        let front = (&switch, &["10.1.0.2/24", "fd01::2/64"][..]);
        let front = world.link(front, (&client, &["10.1.0.10/24", "fd01::10/64"]));
        let (back, front) = (back.unwrap(), front.unwrap());
        for (host, to, via) in [
            (&router, "10.1.0.0/24", "10.2.0.254"),
            (&router, "fd01::/64", "fd02::fe"),
            (&client, "10.2.0.0/24", "10.1.0.2"),
            (&client, "fd02::/64", "fd01::2"),
        ] {
            host.route(to, via).unwrap();
        }
        let watch = |device: &str, v4, v6| {
            let watched = switch.enter(|| PassingErrors::watch(device, v4, v6));
            watched.unwrap().unwrap()
        };
        // As if the link to the client was the switch's own device.
        let mut both = watch(&front.a, true, true);
        let mut deaf = watch(&back.a, true, true);
        let mut four = watch(&front.a, true, false);
        let mut early = switch
            .enter(|| PassingErrors::watch_early(&front.a, true, true))
            .unwrap()
            .unwrap();
        let mut client_hears = client
            .enter(|| PassingErrors::watch("lo", true, true))
            .unwrap()
            .unwrap();
        let families = [("10.2.0.1", "10.1.0.10"), ("fd02::1", "fd01::10")];
        let mut wanted = Vec::new();
        for (near, far) in families {
            send(&router, &echo(near, far), far);
            send(&router, &too_big(near, far, 17), far);
            send(&client, &too_big(far, near, 6), near);
            let error = too_big(near, far, 6);
            send(&router, &error, far);
            wanted.push(error.bytes);
        }
        // In the order of the families, each with what it came with.
        let copies = heard(&mut both, 2);
        assert_eq!(copies.len(), 2, "{copies:02x?}");
        for (copy, wanted) in copies.iter().zip(&wanted) {
            let message = if wanted[0] >> 4 == 4 { 20 } else { 40 };
            assert_eq!(copy[message..], wanted[message..]);
        }
        // Nothing was taken away: the client has got the router's, and the router the client's.
        assert_eq!(heard(&mut client_hears, 2).len(), 2);
        assert_eq!(heard(&mut four, 1).len(), 1);
        assert_eq!(heard(&mut early, 2).len(), 2);
        assert!(heard(&mut early, 0).is_empty(), "each once");
        // What came in by the switch's own device is its own.
        assert_eq!(heard(&mut deaf, 2).len(), 2);
        assert!(heard(&mut both, 0).is_empty(), "each once");
    });
}

#[test]
fn none_hears_nothing_and_a_device_that_is_not_there_is_an_error() {
    let mut batch = Batch::new(1, 1);
    let now = fairlead_base::Instant::ZERO;
    assert_eq!(PassingErrors::none().receive(now, &mut batch).unwrap(), 0);
    assert!(PassingErrors::watch("no-such-device", true, true).is_err());
}
