//! `fairlead capture` beside real traffic: both legs in the file, numbers translated as they should
//! be, filters, and a reader that stalls.

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use fairlead_driver_pcap::{CaptureReader, ip_packet};
use fairlead_netns::{Running, Signal, trial::skip};
use fairlead_wire::{Classified, TcpPacket, classify};

use crate::harness::{
    Connection, Family, Lab, Nginx, PATIENCE, Switch, binary, prefix_in, web_service,
    with_and_without_the_fast_path, xdp_is_asked_for,
};

/// One TCP packet of a file.
#[derive(Clone, Debug)]
struct Seen {
    header: TcpPacket,
    payload: Vec<u8>,
}

impl Seen {
    fn is(&self, from: IpAddr, to: IpAddr) -> bool {
        self.header.key.src.addr.to_ip() == from && self.header.key.dst.addr.to_ip() == to
    }
}

fn packets(path: &Path) -> Vec<Seen> {
    let mut reader = CaptureReader::open(path).expect("the capture");
    let mut seen = Vec::new();
    let mut last_ns = None;
    while let Some(captured) = reader.next_packet().expect("a sound capture") {
        assert!(
            captured.stamp_ns >= last_ns,
            "packets in the order of their times"
        );
        last_ns = captured.stamp_ns;
        let ip = ip_packet(captured.link, captured.bytes).expect("an IP packet");
        assert_eq!(ip.missing, 0, "whole packets");
        let Ok(Classified::Tcp(header)) = classify(ip.bytes) else {
            panic!("no TCP packet: {:?}", ip.bytes);
        };
        let payload = ip.bytes[ip.bytes.len() - header.payload_len()..].to_vec();
        seen.push(Seen { header, payload });
    }
    seen
}

/// A capture at work.
struct Capture {
    process: Running,
    path: PathBuf,
}

fn command(lab: &Lab, arguments: &[&str]) -> Command {
    let mut command = lab.switch.command(&binary().to_string_lossy());
    command.arg("capture").args(arguments).stdin(Stdio::null());
    command
}

impl Capture {
    /// Starts one and waits until it has begun.
    fn start(lab: &Lab, name: &str, arguments: &[&str]) -> Self {
        let path = lab.folder().join(name);
        let _ = std::fs::remove_file(&path); // of another mode
        let mut command = command(lab, arguments);
        command.arg("-w").arg(&path).stderr(Stdio::piped());
        let process = lab.switch.start(&mut command).expect("starting a capture");
        let mut this = Self { process, path };
        let until = Instant::now() + PATIENCE;
        while std::fs::metadata(&this.path).map_or(0, |file| file.len()) == 0 {
            assert!(
                Instant::now() < until && this.process.is_alive(),
                "{}",
                this.said()
            );
            std::thread::sleep(Duration::from_millis(10));
        }
        this
    }

    fn said(&mut self) -> String {
        let mut text = String::new();
        if let Some(mut errors) = self.process.child().stderr.take() {
            let _ = self.process.signal(Signal::Terminate);
            let _ = errors.read_to_string(&mut text);
        }
        text
    }

    /// Ends it as Ctrl-C does; what it told and what it wrote.
    fn end(mut self) -> (String, Vec<Seen>) {
        // What is on its way.
        let written = || std::fs::metadata(&self.path).map_or(0, |file| file.len());
        let mut before = written();
        loop {
            std::thread::sleep(Duration::from_millis(400));
            let now = written();
            if now == before {
                break;
            }
            before = now;
        }
        self.process.signal(Signal::Interrupt).expect("Ctrl-C");
        let status = self.process.wait_for(PATIENCE).expect("its end");
        let told = self.said();
        assert!(status.is_some_and(|status| status.success()), "{told}");
        (told, packets(&self.path))
    }
}

fn run(lab: &Lab, arguments: &[&str]) -> Output {
    command(lab, arguments).output().expect("running a capture")
}

fn switch(lab: &Lab, mode: &str, services: &str) -> Switch {
    Switch::start_with(lab, &format!("{}{services}", prefix_in(mode, "")))
}

fn four(family: Family) -> Vec<SocketAddr> {
    match family {
        Family::V4 => vec![Family::V4.server_at(1, 8080)],
        Family::V6 => Vec::new(),
    }
}

fn ask(lab: &Lab, path: &str) -> Connection {
    ask_over(lab, Family::V4, path)
}

fn ask_over(lab: &Lab, family: Family, path: &str) -> Connection {
    let mut connection = Connection::to(lab, family.virtual_at(80));
    let response = connection.ask("GET", "a.example", path).expect("an answer");
    assert_eq!(response.status, 200);
    connection
}

/// Payload and number of every packet with data between two hosts, without repetitions.
fn stream(seen: &[Seen], from: IpAddr, to: IpAddr) -> BTreeSet<(u32, Vec<u8>)> {
    let with_data = seen
        .iter()
        .filter(|one| one.is(from, to) && !one.payload.is_empty());
    with_data
        .map(|one| (one.header.seq.0, one.payload.clone()))
        .collect()
}

#[test]
fn both_legs_are_in_the_file_and_their_numbers_translated() {
    with_and_without_the_fast_path(|lab, mode| {
        for family in Family::BOTH {
            both_legs(lab, mode, family);
        }
    });
}

fn both_legs(lab: &Lab, mode: &str, family: Family) {
    let server = family.server_at(1, 8080);
    let _nginx = Nginx::plain(lab, &format!("pages{family:?}"), server);
    let services = web_service("transparent", "", "", |one| {
        if one == family {
            vec![server]
        } else {
            Vec::new()
        }
    });
    let switch = switch(lab, mode, &services);
    drop(ask_over(lab, family, "/warm")); // neighbours are known from here on
    let name = format!("{mode}{family:?}");
    let capture = Capture::start(lab, &name, &["--service", "web"]);
    let mut connection = ask_over(lab, family, "/first");
    let kept = connection
        .ask("GET", "a.example", "/second")
        .expect("an answer");
    assert_eq!(kept.text(), format!("pages{family:?}\n"));
    let client = connection.local();
    drop(connection);
    let path = capture.path.clone();
    let (told, seen) = capture.end();
    assert!(told.contains("none lost"), "{mode}: {told}");
    check_both_legs(mode, family, &seen, client);
    check_with_others(lab, mode, &path, seen.len());
    drop(switch);
}

fn check_both_legs(mode: &str, family: Family, seen: &[Seen], client: SocketAddr) {
    let (service, server) = (family.virtual_at(80).ip(), family.server_at(1, 80).ip());
    let from_client = client.ip();
    // The client's numbers are the same on both legs, packet by packet.
    let arrived = stream(seen, from_client, service);
    let sent_on = stream(seen, from_client, server);
    let texts: Vec<_> = arrived
        .iter()
        .map(|one| String::from_utf8_lossy(&one.1))
        .collect();
    assert!(
        texts.iter().any(|text| text.starts_with("GET /second")),
        "{mode}: {texts:?}"
    );
    assert_eq!(arrived, sent_on, "{mode}");
    // The server's differ by one constant.
    let answered = stream(seen, server, from_client);
    let delivered = stream(seen, service, from_client);
    assert_eq!(answered.len(), delivered.len(), "{mode}");
    assert!(answered.len() >= 2, "{mode}");
    let deltas: BTreeSet<u32> = answered
        .iter()
        .map(|(seq, payload)| {
            let twin = delivered.iter().find(|one| one.1 == *payload);
            let twin = twin.unwrap_or_else(|| panic!("{mode}: an answer was not delivered"));
            twin.0.wrapping_sub(*seq)
        })
        .collect();
    // Two answers differ in nothing but their header lines, which count requests.
    assert_eq!(deltas.len(), 1, "{mode}: {deltas:?}");
    // Ports and handshakes of both legs.
    let syn = |one: &&Seen| one.header.flags.contains(fairlead_wire::TcpFlags::SYN);
    let handshakes: Vec<_> = seen.iter().filter(syn).collect();
    for (from, to) in [
        (from_client, service),
        (service, from_client),
        (from_client, server),
        (server, from_client),
    ] {
        let there = handshakes.iter().any(|one| one.is(from, to));
        assert!(there, "{mode}: no SYN or SYN-ACK from {from} to {to}");
    }
}

/// A program that, started as root, would become a user of its own: a user namespace has none.
fn as_any_user(program: &str) -> Command {
    let user = std::fs::read_to_string("/proc/self/setgroups").unwrap_or_default();
    if user.trim() != "deny" {
        return Command::new(program);
    }
    let mut command = Command::new("unshare");
    command.args(["--user", "--map-user=1", "--map-group=1", program]);
    command
}

/// Others' readers take the file, and its comments say what each packet is.
fn check_with_others(lab: &Lab, mode: &str, path: &Path, count: usize) {
    let file = std::fs::read(path).expect("the file");
    let text = String::from_utf8_lossy(&file);
    for words in [
        "service=web side=client",
        "service=web side=server",
        " before",
        " after",
    ] {
        assert!(text.contains(words), "{mode}: no comment {words:?}");
    }
    if mode != "engine" || xdp_is_asked_for() {
        assert!(text.contains(" kernel"), "nothing was shown by the kernel");
        assert!(text.contains(&lab.front.b), "the interface is not named");
    }
    if fairlead_netns::program("tcpdump").is_none() {
        let test = "capture::both_legs_are_in_the_file_and_their_numbers_translated";
        return skip(test, "in part: there is no tcpdump to read the file");
    }
    let output = as_any_user("tcpdump").arg("-nnr").arg(path).output();
    let output = output.expect("running tcpdump");
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let lines = String::from_utf8_lossy(&output.stdout).lines().count();
    assert_eq!(lines, count, "{mode}");
}

#[test]
fn filters_limits_and_a_second_reader() {
    with_and_without_the_fast_path(|lab, mode| {
        let _nginx = Nginx::plain(lab, "pages", Family::V4.server_at(1, 8080));
        let services = web_service("snat", "", "", four);
        let switch = switch(lab, mode, &services);
        drop(ask(lab, "/warm"));
        let nobody = Capture::start(lab, "nobody", &["--client", "10.9.0.0/16"]);
        let second = run(lab, &["-w", "-", "--seconds", "1"]);
        let said = String::from_utf8_lossy(&second.stderr).into_owned();
        assert_eq!(second.status.code(), Some(1), "{said}");
        assert!(said.contains("another capture is running"), "{said}");
        drop(ask(lab, "/unseen"));
        let (told, seen) = nobody.end();
        assert!(seen.is_empty() && told.contains("0 packets"), "{told}");

        let within = ["--client", "10.1.0.0/24", "--after"];
        let after = Capture::start(lab, "after", &within);
        drop(ask(lab, "/seen"));
        let (_, seen) = after.end();
        let service = Family::V4.virtual_at(80).ip();
        assert!(seen.iter().any(|one| one.is(service, Family::V4.client())));
        assert!(!seen.iter().any(|one| one.is(Family::V4.client(), service)));

        let mut few = Capture::start(lab, "few", &["--count", "3", "--snaplen", "60"]);
        drop(ask(lab, "/few"));
        let status = few.process.wait_for(PATIENCE).expect("its end");
        assert!(status.is_some_and(|status| status.success()));
        assert!(few.said().starts_with("3 packets"));

        let unknown = run(lab, &["-w", "-", "--service", "wev"]);
        let said = String::from_utf8_lossy(&unknown.stderr).into_owned();
        assert!(said.contains("configured services: web"), "{said}");
        drop(switch);
    });
}

#[test]
fn a_reader_that_stalls_loses_packets_and_nobody_else_does() {
    const BYTES: usize = 96 << 20;
    with_and_without_the_fast_path(|lab, mode| {
        let nginx = Nginx::plain(lab, "pages", Family::V4.server_at(1, 8080));
        let file = lab.folder().join("pages/files/large");
        std::fs::write(&file, vec![7; BYTES]).expect("a large file");
        let services = web_service("snat", "", "", four);
        let switch = switch(lab, mode, &services);
        drop(ask(lab, "/warm"));
        let admin: SocketAddr = "127.0.0.1:9090".parse().expect("an address");
        let mut stalled = lab
            .switch
            .enter(|| TcpStream::connect(admin))
            .expect("the namespace")
            .expect("the pages");
        let request = "GET /capture HTTP/1.1\r\nHost: x\r\n\r\n";
        stalled.write_all(request.as_bytes()).expect("a request");
        std::thread::sleep(Duration::from_millis(200));
        let mut connection = Connection::to(lab, Family::V4.virtual_at(80));
        let request = "GET /files/large HTTP/1.1\r\nHost: a.example\r\n\r\n";
        connection.send(request).expect("a request");
        let head = connection.response_head().expect("an answer");
        assert_eq!(head.status, 200);
        let (mut read, mut buffer) = (0, vec![0; 256 << 10]);
        while read < BYTES {
            let more = connection.read(&mut buffer).expect("more of it");
            assert!(more > 0, "{mode}: the stream ended after {read} bytes");
            read += more;
        }
        // The pages answer beside it, and the next reader has its turn when this one is gone.
        assert!(switch.page("/healthz").is_ok());
        drop(stalled);
        let until = Instant::now() + PATIENCE;
        loop {
            let output = run(lab, &["-w", "-", "--seconds", "1"]);
            if output.status.success() {
                break;
            }
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            assert!(Instant::now() < until, "{said}");
        }
        drop(switch);
        drop(nginx);
    });
}
