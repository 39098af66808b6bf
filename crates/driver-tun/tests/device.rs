//! Packets through a real device in a namespace of the test's own.
//!
//! The far end is a mirror: every packet that comes is sent back with its addresses exchanged. A
//! connection to any address behind the device so becomes a connection between a client and a
//! listener of this kernel, each of which takes the mirror for the other. Ports, checksums (the
//! pseudo-header's sum does not change) and segment sizes stay as the kernel made them.

mod support;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use fairlead_base::{Checksum, Instant, Packet};
use fairlead_driver_tun::net::{NetworkPlan, apply, queue_dropped};
use fairlead_driver_tun::{DeviceCounters, SendError, TunDevice, TunError, wait_for_packet};
use fairlead_netio::{Batch, RxQueue, TxQueue};
use fairlead_netns::Host;

use support::{forwarding_host, in_a_world};

const DEVICE: &str = "mirror0";
const PATIENCE: Duration = Duration::from_secs(60);

/// Brings the device up with a route to `address`.
fn plan(address: &str) -> NetworkPlan {
    NetworkPlan {
        device: DEVICE.into(),
        mtu: 1_500,
        listen: vec![address.parse().unwrap()],
        local: Vec::new(),
        own: Vec::new(),
        sources: Vec::new(),
        transparent: Vec::new(),
        servers: Vec::new(),
        owner: "test".into(),
        may_be_local: false,
        resumed: false,
    }
}

fn open_for(host: &Host, address: &str) -> TunDevice {
    host.enter(|| {
        let device = TunDevice::open(DEVICE).unwrap();
        apply(&plan(address)).unwrap().remove().unwrap();
        device
    })
    .unwrap()
}

fn open(host: &Host) -> TunDevice {
    open_for(host, "10.9.0.1")
}

fn exchange_addresses(packet: &mut Packet) {
    let (source, bytes) = if packet.bytes[0] >> 4 == 4 {
        (12, 4)
    } else {
        (8, 16)
    };
    let (first, second) = packet.bytes[source..source + 2 * bytes].split_at_mut(bytes);
    first.swap_with_slice(second);
}

fn is_tcp(packet: &Packet) -> bool {
    let protocol_at = if packet.bytes[0] >> 4 == 4 { 9 } else { 6 };
    packet.bytes[protocol_at] == 6
}

/// What the mirror saw of one run.
#[derive(Default)]
struct Seen {
    counters: DeviceCounters,
    partial: u64,
    super_segment_bytes: Vec<u16>,
    first: Option<Packet>,
}

/// Mirrors until told to stop, on a thread of its own.
fn mirror(mut device: TunDevice, stop: &Arc<AtomicBool>) -> std::thread::JoinHandle<Seen> {
    let stop = Arc::clone(stop);
    std::thread::spawn(move || {
        let mut seen = Seen::default();
        let mut batch = Batch::new(32, 256 << 10);
        while !stop.load(Ordering::Relaxed) {
            wait_for_packet(&device, Some(Duration::from_millis(20))).unwrap();
            batch.clear();
            device.receive(Instant::ZERO, &mut batch).unwrap();
            for packet in batch.packets_mut() {
                seen.partial += u64::from(packet.checksum == Checksum::Partial);
                if let Some(gso) = packet.gso
                    && !seen.super_segment_bytes.contains(&gso.segment_bytes)
                {
                    seen.super_segment_bytes.push(gso.segment_bytes);
                }
                if seen.first.is_none() && is_tcp(packet) {
                    seen.first = Some(packet.clone());
                }
                exchange_addresses(packet);
                device.transmit(Instant::ZERO, packet).unwrap();
            }
            device.flush(Instant::ZERO).unwrap();
        }
        seen.counters = *device.counters();
        seen
    })
}

/// Sends 32 MiB through the mirror and checks every byte.
fn transfer(host: &Host, listen: &str, connect: &str) -> Seen {
    const TRANSFER_BYTES: usize = 32 << 20;
    let stop = Arc::new(AtomicBool::new(false));
    let mirror = mirror(open_for(host, connect.trim_matches(['[', ']'])), &stop);
    let listener = host.enter(|| TcpListener::bind(listen)).unwrap().unwrap();
    let port = listener.local_addr().unwrap().port();
    let target: SocketAddr = format!("{connect}:{port}").parse().unwrap();
    let mut client = host
        .enter(|| TcpStream::connect_timeout(&target, PATIENCE))
        .unwrap()
        .expect("the kernel's handshake through the mirror");
    let (mut server, peer) = listener.accept().unwrap();
    assert_eq!(
        peer.ip(),
        target.ip(),
        "the client is not seen through the mirror"
    );
    for stream in [&client, &server] {
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_write_timeout(Some(PATIENCE)).unwrap();
    }
    let content: Vec<u8> = (0..TRANSFER_BYTES as u32)
        .map(|at| (at ^ (at >> 9)) as u8)
        .collect();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            client.write_all(&content).unwrap();
            client.shutdown(std::net::Shutdown::Write).unwrap();
        });
        let mut received = Vec::with_capacity(TRANSFER_BYTES);
        server.read_to_end(&mut received).unwrap();
        assert!(
            received == content,
            "{} bytes arrived changed",
            received.len()
        );
    });
    server.write_all(b"and back").unwrap();
    drop(server);
    let mut answer = String::new();
    client.read_to_string(&mut answer).unwrap();
    assert_eq!(answer, "and back");
    stop.store(true, Ordering::Relaxed);
    mirror.join().unwrap()
}

fn check_transfer(seen: &Seen, header_bytes: usize) {
    let counters = &seen.counters;
    assert!(
        counters.rx.longest_bytes > 60_000,
        "no read of 60 kB: {counters:?}"
    );
    assert!(
        counters.rx.super_packets > 0 && counters.tx.super_packets > 0,
        "{counters:?}"
    );
    // The kernel's segments are what fits the MTU with the timestamp option.
    let full_segment = (1_500 - header_bytes - 12) as u16;
    assert!(
        seen.super_segment_bytes.contains(&full_segment),
        "{:?}",
        seen.super_segment_bytes
    );
    assert!(
        seen.partial > 0,
        "every checksum was computed in the kernel"
    );
    assert_eq!((counters.tx_failed(), counters.rx_bad_header), (0, 0));
    assert_eq!(counters.rx.packets, counters.tx.packets);
    assert_eq!(counters.rx.bytes, counters.tx.bytes);
    let syn = seen.first.as_ref().expect("a first TCP packet");
    assert_eq!(
        syn.bytes[header_bytes - 20 + 13],
        2,
        "the first TCP packet is a SYN"
    );
    assert_eq!((syn.checksum, syn.gso), (Checksum::Partial, None));
}

#[test]
fn tcp_over_ipv4_comes_in_super_packets_and_goes_back_whole() {
    in_a_world(|world| {
        let seen = transfer(&forwarding_host(world), "10.8.0.1:0", "10.9.0.1");
        check_transfer(&seen, 40);
    });
}

#[test]
fn tcp_over_ipv6_comes_in_super_packets_and_goes_back_whole() {
    in_a_world(|world| {
        let seen = transfer(&forwarding_host(world), "[fd08::1]:0", "[fd09::1]");
        check_transfer(&seen, 60);
    });
}

#[test]
fn udp_datagrams_of_every_size_come_back() {
    in_a_world(|world| {
        let host = forwarding_host(world);
        let stop = Arc::new(AtomicBool::new(false));
        let mirror = mirror(open(&host), &stop);
        let socket = host
            .enter(|| UdpSocket::bind("10.8.0.1:5000"))
            .unwrap()
            .unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        for bytes in [0, 1, 2, 3, 100, 1_471, 1_472] {
            let datagram: Vec<u8> = (0..bytes).map(|at| at as u8).collect();
            socket.send_to(&datagram, "10.9.0.1:5000").unwrap();
            let mut answer = [0; 2_000];
            let (len, from) = socket.recv_from(&mut answer).unwrap();
            assert_eq!(from, "10.9.0.1:5000".parse().unwrap());
            assert_eq!(answer[..len], datagram, "{bytes} bytes");
        }
        stop.store(true, Ordering::Relaxed);
        let seen = mirror.join().unwrap();
        assert_eq!(seen.counters.rx.packets, 7);
        assert_eq!(seen.counters.rx.by_size.iter().sum::<u64>(), 7);
        assert_eq!(seen.partial, 7, "the kernel computed UDP checksums itself");
    });
}

#[test]
fn an_empty_device_is_no_error_and_is_counted() {
    in_a_world(|world| {
        let mut device = open(&forwarding_host(world));
        let mut batch = Batch::new(4, usize::MAX);
        assert_eq!(device.receive(Instant::ZERO, &mut batch).unwrap(), 0);
        assert_eq!(device.counters().rx_empty_reads, 1);
        assert!(!wait_for_packet(&device, Some(Duration::from_millis(1))).unwrap());
    });
}

#[test]
fn packets_that_are_not_taken_are_counted_by_cause() {
    in_a_world(|world| {
        let host = forwarding_host(world);
        let mut device = open(&host);
        let mut refused = |packet: &Packet| device.transmit(Instant::ZERO, packet).unwrap_err();
        assert!(matches!(
            refused(&Packet::default()),
            SendError::Unsendable(_)
        ));
        assert!(matches!(
            refused(&Packet::from_bytes(&[0x15; 40])),
            SendError::Os(_)
        ));
        host.ip(&format!("link set {DEVICE} down\n")).unwrap();
        assert!(matches!(
            refused(&Packet::from_bytes(&[0x45; 40])),
            SendError::Os(_)
        ));
        let counters = device.counters();
        assert_eq!(
            (
                counters.tx_unsendable,
                counters.tx_refused,
                counters.tx_down
            ),
            (1, 1, 1)
        );
        assert_eq!((counters.tx_failed(), counters.tx.packets), (3, 0));
    });
}

#[test]
fn packets_that_find_the_queue_full_are_counted_by_the_kernel() {
    const ROOM: u64 = 8_192;
    const TOO_MANY: u64 = 500;
    in_a_world(|world| {
        let host = forwarding_host(world);
        let device = open(&host);
        let dropped = || host.enter(|| queue_dropped(DEVICE)).unwrap();
        assert_eq!(dropped(), Some(0));
        let socket = host.enter(|| UdpSocket::bind("10.8.0.1:0")).unwrap();
        let socket = socket.unwrap();
        for _ in 0..ROOM + TOO_MANY {
            let _ = socket.send_to(b"x", "10.9.0.1:9"); // nobody reads
        }
        // The kernel has a few packets of its own to send.
        let full = dropped().unwrap();
        assert!((TOO_MANY..TOO_MANY + 100).contains(&full), "{full}");
        host.ip(&format!("link delete {DEVICE}\n")).unwrap();
        assert_eq!(dropped(), None);
        drop(device);
    });
}

#[test]
fn a_device_that_is_deleted_under_us_is_an_error() {
    in_a_world(|world| {
        let host = forwarding_host(world);
        let mut device = open(&host);
        host.ip(&format!("link delete {DEVICE}\n")).unwrap();
        assert!(
            wait_for_packet(&device, Some(PATIENCE)).unwrap(),
            "polling must not wait"
        );
        assert!(
            device
                .receive(Instant::ZERO, &mut Batch::new(4, usize::MAX))
                .is_err()
        );
    });
}

#[test]
fn a_name_that_exists_is_refused_and_freed_with_its_owner() {
    in_a_world(|world| {
        let host = forwarding_host(world);
        let device = open(&host);
        let again = host.enter(|| TunDevice::open(DEVICE)).unwrap();
        assert!(matches!(again, Err(TunError::NameTaken(name)) if name == DEVICE));
        let loopback = host.enter(|| TunDevice::open("lo")).unwrap();
        assert!(
            matches!(loopback, Err(TunError::NameTaken(_))),
            "{loopback:?}"
        );
        drop(device);
        // A child that another test starts at this moment holds a copy of the descriptor until
        // it becomes its own program.
        let until = std::time::Instant::now() + PATIENCE;
        let reopened = loop {
            match host.enter(|| TunDevice::open(DEVICE)).unwrap() {
                Err(TunError::NameTaken(_)) if std::time::Instant::now() < until => {
                    std::thread::sleep(Duration::from_millis(1));
                }
                outcome => break outcome,
            }
        };
        assert_eq!(reopened.unwrap().name(), DEVICE);
    });
}
