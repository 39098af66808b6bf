//! SYNs from everywhere: what they cost those who are there, those who come, and the machine. And
//! what happens to SYNs when the engine is behind with its work.

use std::net::{SocketAddr, SocketAddrV4, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use fairlead_base::{Address, Endpoint, Packet, Rng};
use fairlead_netns::Signal;
use fairlead_testkit::segment;
use fairlead_wire::{SynOptions, TcpFlags, Timestamps};
use socket2::{Domain, Protocol, Socket, Type};

use crate::harness::{
    Connection, Family, Lab, Origin, PATIENCE, SetAtEnd, Switch, in_a_lab, on_the_fast_path, web,
    web_service,
};

/// SYNs of the flood, at most, and a second.
const SYNS: u64 = 20_000;
const SYNS_PER_SECOND: u32 = 10_000;
const BURST: u64 = 100;
/// Connections that are there all the time, and those that come while the flood lasts.
const HELD: usize = 50;
const NEW: usize = 40;
/// Floods, at most, until one has taken no memory.
const FLOODS: usize = 4;

/// A host of many faces: packets from random addresses of 172.16.0.0/12, to the service.
struct Strangers {
    socket: Socket,
    rng: Rng,
}

impl Strangers {
    fn new(lab: &Lab, seed: u64) -> Self {
        // IPPROTO_RAW: whole packets are given, headers too.
        let made = || Socket::new(Domain::IPV4, Type::RAW, Some(Protocol::from(255)));
        Self {
            socket: lab.client.enter(made).unwrap().unwrap(),
            rng: Rng::new(seed),
        }
    }

    fn someone(&mut self) -> Endpoint {
        let [a, b, c, d, e, ..] = self.rng.next_u64().to_be_bytes();
        Endpoint {
            addr: Address::v4([172, 16 | (a & 15), b, c]),
            port: u16::from_be_bytes([d, e]) | 1_024,
        }
    }

    fn syn(&mut self) -> Packet {
        let options = SynOptions {
            mss: Some(1_460),
            window_scale: Some(7),
            sack_permitted: true,
            timestamps: Some(Timestamps { value: 1, echo: 0 }),
        };
        segment(self.someone(), Family::V4.virtual_at(80).into())
            .seq(self.rng.next_u64() as u32)
            .flags(TcpFlags::SYN)
            .syn_options(&options)
            .packet()
    }

    /// Data of a connection that there is not.
    fn stray(&mut self) -> Packet {
        segment(self.someone(), Family::V4.virtual_at(80).into())
            .seq(self.rng.next_u64() as u32)
            .ack(self.rng.next_u64() as u32)
            .flags(TcpFlags::ACK)
            .payload(b"GET / HTTP/1.1\r\n\r\n")
            .packet()
    }

    fn send(&self, packet: &Packet) {
        let SocketAddr::V4(to) = Family::V4.virtual_at(80) else {
            unreachable!("the address of a family");
        };
        let to: SocketAddr = SocketAddrV4::new(*to.ip(), 0).into();
        // A full queue of the device is as good as a packet lost on a wire.
        let _ = self.socket.send_to(&packet.bytes, &to.into());
    }

    /// Sends SYNs at an even pace until `stop`, or until there were `most`.
    fn flood(&mut self, most: u64, stop: &AtomicBool) -> u64 {
        let mut begun = Instant::now();
        let mut sent = 0;
        while sent < most && !stop.load(Ordering::SeqCst) {
            let due = (begun.elapsed().as_secs_f64() * f64::from(SYNS_PER_SECOND)) as u64;
            if sent >= due {
                std::thread::sleep(Duration::from_micros(200));
                continue;
            }
            // What was not sent in time is sent later, not all at once: the device queues 500.
            if due - sent > BURST {
                let late = (due - sent) as f64 / f64::from(SYNS_PER_SECOND);
                begun += Duration::from_secs_f64(late);
            }
            let syn = self.syn();
            self.send(&syn);
            sent += 1;
        }
        sent
    }
}

fn services() -> String {
    web_service("snat", "", "", |family| match family {
        Family::V4 => vec![family.server_at(1, 8080)],
        Family::V6 => Vec::new(),
    })
}

fn origin(lab: &Lab) -> Origin {
    lab.switch
        .route("172.16.0.0/12", "10.1.0.10")
        .expect("a route back to the strangers");
    let serve = web("pages", false, std::sync::Arc::default());
    Origin::start(lab, Family::V4.server_at(1, 8080), serve)
}

fn asked(connection: &mut Connection) {
    let response = connection.ask("GET", "a.example", "/bytes/3000").unwrap();
    assert_eq!((response.status, response.body.len()), (200, 3_000));
}

/// Memory of a process that is in use, KiB.
fn resident_kib(process: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let number = line.and_then(|line| line.split_whitespace().next());
    number.unwrap().parse().unwrap()
}

#[test]
fn a_flood_of_syns_ends_no_connection_hinders_no_new_one_and_takes_no_memory() {
    in_a_lab(|lab| {
        let _origin = origin(lab);
        let switch = Switch::start(lab, &services());
        let open = || Connection::to(lab, Family::V4.virtual_at(80));
        let mut held: Vec<Connection> = (0..HELD).map(|_| open()).collect();
        held.iter_mut().for_each(asked);
        let mut strangers = Strangers::new(lab, 1);
        strangers.flood(SYNS / 10, &AtomicBool::new(false));
        let answered = switch.count("syn_acks");
        // What is touched for the first time, up to a huge page at once, may come during a flood;
        // what takes memory for a SYN would take it in every one.
        let mut grown = Vec::new();
        while grown.last().is_none_or(|&kib| kib > 512) {
            assert!(
                grown.len() < FLOODS,
                "KiB by {SYNS} SYNs, each time: {grown:?}"
            );
            let before = resident_kib(switch.id());
            let stop = AtomicBool::new(false);
            let sent = std::thread::scope(|scope| {
                let flood = scope.spawn(|| strangers.flood(SYNS, &stop));
                for _ in 0..NEW {
                    asked(&mut open());
                    held.iter_mut().step_by(10).for_each(asked);
                }
                flood.join().unwrap()
            });
            assert_eq!(sent, SYNS);
            held.iter_mut().for_each(asked);
            grown.push(resident_kib(switch.id()).saturating_sub(before));
        }
        let until = Instant::now() + PATIENCE;
        while switch.count("syn_acks") < answered + SYNS / 2 {
            assert!(Instant::now() < until, "{}", switch.status());
            std::thread::sleep(Duration::from_millis(50));
        }
        switch.wait_for_count("live", HELD as u64);
        assert_eq!(switch.count("setups"), 0, "{}", switch.status());
    });
}

/// The kernel drops SYNs while the engine has other packets waiting, and answers again afterwards.
#[test]
fn syns_are_dropped_in_the_kernel_while_the_engine_is_behind() {
    on_the_fast_path(|lab| {
        let _origin = origin(lab);
        let mut switch = Switch::start_in_kernel(lab, "", &services());
        let mut held = Connection::to(lab, Family::V4.virtual_at(80));
        asked(&mut held);
        assert_eq!(switch.drops("overloaded"), 0);
        let (mut strangers, mut others) = (Strangers::new(lab, 2), Strangers::new(lab, 3));
        // It depends on how the machine shares its time, whether SYNs come while packets wait.
        for _ in 0..10 {
            switch.signal(Signal::Stop);
            for _ in 0..6_000 {
                let stray = strangers.stray();
                strangers.send(&stray);
            }
            let stop = AtomicBool::new(false);
            std::thread::scope(|scope| {
                scope.spawn(|| others.flood(SYNS / 4, &stop));
                std::thread::sleep(Duration::from_millis(20));
                switch.signal(Signal::Continue);
                std::thread::sleep(Duration::from_millis(300));
                stop.store(true, Ordering::SeqCst);
            });
            // Counters are published a few times a second.
            std::thread::sleep(Duration::from_millis(300));
            if switch.drops("overloaded") > 0 {
                break;
            }
        }
        let dropped = switch.drops("overloaded");
        assert!(dropped > 0, "{}", switch.status());
        let metrics = switch.page("/metrics").unwrap();
        let told = metrics.lines().any(|line| {
            line.contains("reason=\"overloaded\"") && line.ends_with(&format!(" {dropped}"))
        });
        assert!(told, "{metrics}");
        // It eases within a fifth of a second: nobody is turned away any more.
        asked(&mut held);
        for _ in 0..20 {
            asked(&mut Connection::to(lab, Family::V4.virtual_at(80)));
        }
        assert_eq!(switch.drops("overloaded"), dropped);
    });
}

/// Datagrams to a service's address, which the engine would only count, are dropped in the kernel
/// while it has nothing else to read, and nobody who comes has to wait for them.
#[test]
fn strays_are_dropped_in_the_kernel_while_the_engine_is_behind() {
    on_the_fast_path(|lab| {
        let _origin = origin(lab);
        let mut switch = Switch::start_in_kernel(lab, "", &services());
        let mut held = Connection::to(lab, Family::V4.virtual_at(80));
        asked(&mut held);
        let stray = || lab.client.enter(|| UdpSocket::bind("0.0.0.0:0").unwrap());
        let stray = stray().unwrap();
        let to = Family::V4.virtual_at(443);
        for _ in 0..10 {
            switch.signal(Signal::Stop);
            for _ in 0..6_000 {
                let _ = stray.send_to(b"QUIC, perhaps", to);
            }
            let stop = AtomicBool::new(false);
            std::thread::scope(|scope| {
                let _over = SetAtEnd(&stop);
                scope.spawn(|| {
                    while !stop.load(Ordering::SeqCst) {
                        let _ = stray.send_to(b"QUIC, perhaps", to);
                        std::thread::sleep(Duration::from_micros(100));
                    }
                });
                switch.signal(Signal::Continue);
                std::thread::sleep(Duration::from_millis(300));
                asked(&mut held);
                asked(&mut Connection::to(lab, Family::V4.virtual_at(80)));
            });
            std::thread::sleep(Duration::from_millis(300));
            if switch.drops("overloaded") > 0 {
                break;
            }
        }
        assert!(switch.drops("overloaded") > 0, "{}", switch.status());
        assert!(switch.drops("not_tcp") > 0, "{}", switch.status());
        // A second later it is as ever: a port that nobody listens on says so.
        std::thread::sleep(Duration::from_millis(1_100));
        let refused = lab
            .client
            .enter(|| std::net::TcpStream::connect(to))
            .unwrap();
        let kind = refused.map(drop).map_err(|error| error.kind());
        assert_eq!(kind, Err(std::io::ErrorKind::ConnectionRefused));
        asked(&mut held);
    });
}
