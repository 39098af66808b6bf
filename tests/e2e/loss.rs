//! A line that loses, duplicates, reorders and damages packets, by seed, on either side.
//!
//! ```text
//!   far 10.9.0.2 ─── hop ─── 10.8.0.2 switch
//!                    └ TUN device, read and written by this test, with faults in between
//! ```

use std::io::Write;
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use fairlead_driver_tun::{TunDevice, wait_for_packet};
use fairlead_netio::{Batch, FaultCounts, FaultPlan, Faults, RxQueue, TxQueue};
use fairlead_netns::{Host, World};
use fairlead_testkit::stream::Digest;

use crate::harness::{
    Connection, Family, Lab, Origin, Switch, in_a_lab, request_heads, seeds, send_stream, show,
    web, web_service, with_sockets_of_cookies,
};

const PLAN: FaultPlan = FaultPlan {
    loss_per_million: 20_000,
    duplicate_per_million: 10_000,
    reorder_per_million: 20_000,
    corrupt_per_million: 5_000,
    overtaken_by_max: 5,
    hold_max: Duration::from_millis(5),
};

#[test]
fn bodies_are_the_same_at_both_ends_of_a_client_behind_a_bad_line() {
    in_a_lab(|lab| {
        let _origins = Family::BOTH.map(|family| {
            Origin::start(
                lab,
                family.server_at(1, 8080),
                web("origin", false, Arc::default()),
            )
        });
        for seed in seeds(2, 20) {
            let line = BadLine::start(lab, seed);
            for source in ["snat", "transparent"] {
                let _switch = Switch::start(
                    lab,
                    &web_service(source, "", "", |family| vec![family.server_at(1, 8080)]),
                );
                for family in Family::BOTH {
                    transfer(&line.far, family, seed);
                }
            }
            line.finish();
        }
    });
}

#[test]
fn bodies_are_the_same_at_both_ends_of_a_server_behind_a_bad_line() {
    in_a_lab(|lab| {
        for seed in seeds(2, 20) {
            let line = BadLine::start(lab, seed);
            let at = |family| match family {
                Family::V4 => "10.9.0.2:8080".parse().unwrap(),
                Family::V6 => "[fd09::2]:8080".parse().unwrap(),
            };
            let _origins = Family::BOTH.map(|family| {
                Origin::start_on(&line.far, at(family), web("origin", true, Arc::default()))
            });
            // The PROXY header is the switch's own to deliver, whatever is lost.
            for (source, version) in [("snat", "v1"), ("transparent", "v2")] {
                let pool = format!("proxy_protocol = \"{version}\"\nconnect_timeout = \"5s\"");
                let _switch = Switch::start(
                    lab,
                    &web_service(source, "", &pool, |family| vec![at(family)]),
                );
                for family in Family::BOTH {
                    transfer(&lab.client, family, seed);
                }
            }
            line.finish();
        }
    });
}

/// Answers of a cache, and of servers by the front: each is whole, and of its path.
#[test]
fn answers_of_front_and_cache_are_whole_behind_a_bad_line() {
    with_sockets_of_cookies(|lab| {
        let services = r#"
[[service]]
name = "web"
listen = "10.1.0.3:80"
protocol = "http"
[[service.route]]
path_prefix = "/bytes/"
treatment = "per-request"
pool = "one"
[[service.route]]
pool = "kept"
cache = { size = "16MiB" }

[[pool]]
name = "one"
server = [{ address = "10.2.0.1:8001" }]
[[pool]]
name = "kept"
server = [{ address = "10.2.0.1:8002" }]
"#;
        let at = |port| Family::V4.server_at(1, port);
        let _one = Origin::start(lab, at(8001), web("one", false, Arc::default()));
        let fetched = Arc::new(AtomicU64::new(0));
        let _kept = Origin::start(lab, at(8002), {
            let fetched = Arc::clone(&fetched);
            move |stream| keepable(stream, &fetched)
        });
        let sizes = [100, 20_000, 300_000];
        for seed in seeds(1, 10) {
            let line = BadLine::start(lab, seed);
            let all = [&*lab.front.b, &*lab.back.a, &*line.device];
            let switch = Switch::start_in_kernel(lab, &format!("interfaces = {all:?}"), services);
            let before = fetched.load(Ordering::SeqCst);
            std::thread::scope(|scope| {
                for first in 0..4 {
                    let to = Family::V4.virtual_at(80);
                    let mut connection = Connection::open_from(&line.far, to).unwrap();
                    scope.spawn(move || {
                        for number in first..first + 12 {
                            let bytes = sizes[number % sizes.len()] + number as u64 % 4;
                            let kind = ["kept", "bytes"][number / sizes.len() % 2];
                            let path = format!("/{kind}/{bytes}");
                            let answer = connection.ask("GET", "x", &path).unwrap();
                            assert_eq!(answer.status, 200, "{path}, seed {seed}");
                            let wanted = Digest::of_stream(bytes, bytes);
                            assert_eq!(answer.digest, wanted, "{path}, seed {seed}");
                        }
                    });
                }
            });
            let status = switch.wait_for_status("requests", |status| {
                status["front"]["front_served"].as_u64() == Some(4 * 12)
            });
            let fetches = fetched.load(Ordering::SeqCst) - before;
            assert!((1..=12).contains(&fetches), "{fetches}: {status}");
            drop(switch);
            line.finish();
        }
    });
}

/// Answers with as many bytes as the path says, of the stream of that number. They may be kept.
fn keepable(mut stream: TcpStream, fetched: &AtomicU64) -> std::io::Result<()> {
    for head in request_heads(&stream)? {
        let head = head?;
        fetched.fetch_add(1, Ordering::SeqCst);
        let bytes = head.split([' ', '/']).nth(3);
        let bytes = bytes.and_then(|text| text.parse().ok()).unwrap_or(0);
        let answer = "HTTP/1.1 200 OK\r\nCache-Control: max-age=600\r\nContent-Length:";
        stream.write_all(format!("{answer} {bytes}\r\n\r\n").as_bytes())?;
        send_stream(&mut stream, bytes, 0, bytes)?;
    }
    Ok(())
}

/// Bodies both ways on one connection, then short requests on connections of their own.
fn transfer(client: &Host, family: Family, seed: u64) {
    let open = || Connection::open_from(client, family.virtual_at(80)).expect("connecting");
    let mut connection = open();
    let len = 1 << 20;
    connection
        .send(format!(
            "PUT /up HTTP/1.1\r\nHost: a.example\r\nContent-Length: {len}\r\n\r\n"
        ))
        .unwrap();
    connection.send_stream(seed, 0, len).unwrap();
    let response = connection.response(false).unwrap();
    assert_eq!(
        response.text(),
        show(&Digest::of_stream(seed, len)),
        "seed {seed} {family:?}"
    );
    let response = connection
        .ask("GET", "a.example", "/bytes/1000001")
        .unwrap();
    assert_eq!(
        response.digest,
        Digest::of_stream(1_000_001, 1_000_001),
        "seed {seed} {family:?}"
    );
    for _ in 0..10 {
        let response = open().ask("GET", "a.example", "/bytes/3000").unwrap();
        assert_eq!(
            response.digest,
            Digest::of_stream(3_000, 3_000),
            "seed {seed} {family:?}"
        );
    }
}

/// A host behind a router that treats packets badly.
pub(crate) struct BadLine {
    pub(crate) far: Host,
    hop: Host,
    /// The switch's interface.
    device: String,
    end: Arc<AtomicBool>,
    thread: Option<std::thread::JoinHandle<FaultCounts>>,
}

impl BadLine {
    fn start(lab: &Lab, seed: u64) -> Self {
        Self::start_with(lab, seed, PLAN)
    }

    pub(crate) fn start_with(lab: &Lab, seed: u64, plan: FaultPlan) -> Self {
        let mut world = World::new().unwrap();
        let (far, hop) = (world.host("far").unwrap(), world.host("hop").unwrap());
        let left = world
            .link(
                (&far, &["10.9.0.2/24", "fd09::2/64"]),
                (&hop, &["10.9.0.1/24", "fd09::1/64"]),
            )
            .unwrap();
        let right = world
            .link(
                (&hop, &["10.8.0.1/24", "fd08::1/64"]),
                (&lab.switch, &["10.8.0.2/24", "fd08::2/64"]),
            )
            .unwrap();
        // Packets as they would be on a wire: a lost one is one segment, not forty.
        for (host, device) in [(&far, &left.a), (&lab.switch, &right.b)] {
            host.ip(&format!("link set {device} gso_max_segs 1\n"))
                .unwrap();
        }
        far.route("0.0.0.0/0", "10.9.0.1").unwrap();
        far.route("::/0", "fd09::1").unwrap();
        hop.route("0.0.0.0/0", "10.8.0.2").unwrap();
        hop.route("::/0", "fd08::2").unwrap();
        lab.switch.route("10.9.0.0/24", "10.8.0.1").unwrap();
        lab.switch.route("fd09::/64", "fd08::1").unwrap();
        hop.sysctl("net.ipv4.ip_forward", "1").unwrap();
        hop.sysctl("net.ipv6.conf.all.forwarding", "1").unwrap();
        hop.sysctl("net.ipv4.conf.all.rp_filter", "0").unwrap();
        let device = hop.enter(|| TunDevice::open("faults0")).unwrap().unwrap();
        hop.sysctl("net.ipv4.conf.faults0.rp_filter", "0").unwrap();
        // What comes in by a wire goes to the device; what comes in by the device goes its way.
        let mut lines = "link set faults0 up\nroute add default dev faults0 table 100\n".to_owned();
        for wire in [&left.b, &right.a] {
            lines.push_str(&format!("rule add iif {wire} lookup 100\n"));
        }
        hop.ip(&lines).unwrap();
        for arguments in [
            vec!["route", "add", "default", "dev", "faults0", "table", "100"],
            vec!["rule", "add", "iif", &left.b, "lookup", "100"],
            vec!["rule", "add", "iif", &right.a, "lookup", "100"],
        ] {
            let status = hop
                .command("ip")
                .arg("-6")
                .args(&arguments)
                .status()
                .unwrap();
            assert!(status.success(), "{arguments:?}");
        }
        let end = Arc::new(AtomicBool::new(false));
        let ending = Arc::clone(&end);
        let thread = std::thread::spawn(move || carry(device, seed, plan, &ending));
        Self {
            far,
            hop,
            device: right.b,
            end,
            thread: Some(thread),
        }
    }

    /// Ends it and checks that it did its worst.
    fn finish(self) {
        let counts = self.end();
        assert!(
            counts.lost > 10 && counts.duplicated > 5 && counts.reordered > 10,
            "{counts:?}"
        );
    }

    /// Ends it. What it has done.
    pub(crate) fn end(mut self) -> FaultCounts {
        self.end.store(true, Ordering::SeqCst);
        let counts = self.thread.take().unwrap().join().unwrap();
        // The switch's end of the wire goes with the hop; its routes go with the wire.
        let device = self
            .hop
            .command("ip")
            .args(["link", "delete", "switch1"])
            .status()
            .unwrap();
        assert!(device.success());
        counts
    }
}

impl Drop for BadLine {
    fn drop(&mut self) {
        self.end.store(true, Ordering::SeqCst);
    }
}

/// Reads packets, treats them badly, writes them back.
fn carry(device: TunDevice, seed: u64, plan: FaultPlan, end: &AtomicBool) -> FaultCounts {
    let begun = Instant::now();
    let now = || fairlead_base::Instant::from_nanos(begun.elapsed().as_nanos() as u64);
    let mut faults = Faults::new(device, plan, seed);
    let mut batch = Batch::new(64, usize::MAX);
    while !end.load(Ordering::SeqCst) {
        let patience = match faults.poll_timeout() {
            Some(due) => due.since(now()).min(Duration::from_millis(20)),
            None => Duration::from_millis(20),
        };
        wait_for_packet(faults.inner_mut(), Some(patience)).expect("the device");
        loop {
            batch.clear();
            if faults.receive(now(), &mut batch).expect("the device") == 0 {
                break;
            }
            for packet in batch.packets() {
                // A damaged header may make a packet that cannot be described to the device; on
                // a wire such a packet would not arrive either.
                let _ = faults.inner_mut().transmit(now(), packet);
            }
        }
    }
    faults.counts()
}
