//! `fairlead content refer` and `resolve`: files cross a link as references to what its other end
//! has. Every body is compared, over loss, changes, ends that come and go, and strangers.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::Stdio;
use std::time::{Duration, Instant};

use fairlead_base::Rng;
use fairlead_netns::trial::{name_of, skip};
use fairlead_netns::{Host, Running, Signal};
use serde_json::Value;

use crate::harness::{
    Family, Lab, Nginx, PATIENCE, Switch, binary, in_a_lab_of, may_load_programs, web_service,
    xdp_is_asked_for,
};
use crate::meter::{FOLDER, Replayed, day, log, number, write_back};

const PORT: u16 = 8_081;
const SECRET: &str = "of both ends of this link";

/// One end, as a process.
struct End {
    process: Running,
    errors: BufReader<std::process::ChildStderr>,
}

impl End {
    fn start(lab: &Lab, host: &Host, interface: &str, what: &[&str]) -> Self {
        let secret = lab.file("secret", SECRET);
        let mut command = host.command(&binary().to_string_lossy());
        command
            .args(["content", what[0], "--json", "--interface", interface])
            .arg("--secret")
            .arg(secret)
            .args(&what[1..])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut process = host.start(&mut command).expect("starting an end");
        let errors = process.child().stderr.take().expect("a pipe");
        let mut errors = BufReader::new(errors);
        let mut line = String::new();
        errors.read_line(&mut line).expect("its first line");
        assert!(line.contains(" at "), "{line}");
        Self { process, errors }
    }

    /// Ends it as Ctrl-C does; its document.
    fn end(mut self) -> Value {
        self.process.signal(Signal::Interrupt).expect("Ctrl-C");
        let status = self.process.wait_for(PATIENCE).expect("its end");
        let mut said = String::new();
        let _ = self.errors.read_to_string(&mut said);
        assert!(status.is_some_and(|status| status.success()), "{said}");
        let mut out = String::new();
        let pipe = self.process.child().stdout.as_mut().expect("a pipe");
        pipe.read_to_string(&mut out).expect("text");
        serde_json::from_str(&out).expect("JSON")
    }
}

/// The server's end at its interface, the other at the client's; between them is a router.
fn refer(lab: &Lab, more: &[&str]) -> End {
    let what = [&["refer", "--port", "8081"], more].concat();
    End::start(lab, &lab.servers, &lab.back.b, &what)
}

fn resolve(lab: &Lab, more: &[&str]) -> End {
    let what = [&["resolve"], more].concat();
    End::start(lab, &lab.client, &lab.front.a, &what)
}

/// A file of random bytes, written back.
fn file(lab: &Lab, name: &str, seed: u64, bytes: usize) -> Vec<u8> {
    let folder = lab.folder().join(FOLDER).join("files");
    fs::create_dir_all(&folder).expect("a folder");
    let mut rng = Rng::new(seed);
    let content: Vec<u8> = (0..bytes).map(|_| rng.next_u64() as u8).collect();
    let new = folder.join("new");
    write_back(&new, &content);
    fs::rename(&new, folder.join(name)).expect("in its place");
    content
}

fn origin(lab: &Lab) -> Nginx {
    let addresses = Family::BOTH.map(|family| family.server_at(1, PORT));
    let listen: String = addresses.iter().map(|to| format!("listen {to};")).collect();
    let servers = format!("server {{ {listen} location / {{ root $folder/files; }} }}");
    Nginx::start(lab, FOLDER, &servers, &addresses)
}

/// A client that keeps its connection.
struct Client(BufReader<TcpStream>);

impl Client {
    fn to(lab: &Lab, to: SocketAddr) -> Self {
        let stream = lab.client.enter(|| TcpStream::connect(to));
        let stream = stream.expect("the client's host").expect("a connection");
        stream.set_read_timeout(Some(PATIENCE)).expect("a time-out");
        Self(BufReader::new(stream))
    }

    fn new(lab: &Lab) -> Self {
        Self::to(lab, Family::V4.server_at(1, PORT))
    }

    fn get(&mut self, path: &str, range: &str) -> Vec<u8> {
        let request = format!("GET {path} HTTP/1.1\r\nHost: a.example\r\n{range}\r\n");
        let stream = self.0.get_mut();
        stream.write_all(request.as_bytes()).expect("sent");
        let mut length = 0;
        loop {
            let mut line = String::new();
            let bytes = self.0.read_line(&mut line).expect("a line");
            if let Some((_, text)) = line.split_once("Content-Length: ") {
                length = text.trim().parse().expect("a length");
            }
            if line == "\r\n" || bytes == 0 {
                break;
            }
        }
        let mut body = vec![0; length];
        self.0.read_exact(&mut body).expect("the body");
        body
    }

    fn same(&mut self, path: &str, content: &[u8]) {
        let body = self.get(path, "");
        assert_eq!(body.len(), content.len(), "{path}");
        let first = body.iter().zip(content).position(|(one, two)| one != two);
        assert_eq!(first, None, "{path}: the first byte that differs");
    }
}

/// Bytes that came in at an interface of the router.
fn link_bytes(lab: &Lab) -> u64 {
    let table = lab
        .switch
        .enter(|| fs::read_to_string("/proc/thread-self/net/dev"));
    let table = table.expect("the router").expect("its table");
    let line = table
        .lines()
        .find_map(|line| line.trim().strip_prefix(&format!("{}:", lab.back.a)));
    let first = line.and_then(|line| line.split_whitespace().next());
    first.expect("its interface").parse().expect("a number")
}

/// A lab in which both ends may run.
fn linked<F: FnOnce(&Lab)>(test: F) {
    let name = name_of::<F>();
    in_a_lab_of(name, |lab| {
        if !may_load_programs(name) {
            return;
        }
        if xdp_is_asked_for() {
            return skip(name, "references are resolved at tc");
        }
        // Past the switch: its host forwards.
        for (to, via) in [("10.2.0.0/24", "10.1.0.2"), ("fd02::/64", "fd01::2")] {
            lab.client.route(to, via).expect("a route");
        }
        test(lab);
    });
}

#[test]
fn a_file_crosses_the_link_once_by_both_families() {
    linked(|lab| {
        const BYTES: usize = 1_000_003;
        let content = file(lab, "a", 1, BYTES);
        let small = file(lab, "b", 2, 16_384);
        let nginx = origin(lab);
        let (far, near) = (resolve(lab, &[]), refer(lab, &[]));
        let mut client = Client::new(lab);
        client.same("/a", &content);
        client.same("/b", &small);
        // Blocks whose answers came late.
        client.same("/a", &content);
        let before = link_bytes(lab);
        for family in Family::BOTH {
            let mut client = Client::to(lab, family.server_at(1, PORT));
            for _ in 0..4 {
                client.same("/a", &content);
                client.same("/b", &small);
            }
            let part = client.get("/a", "Range: bytes=5000-400000\r\n");
            assert!(part == content[5_000..=400_000]);
        }
        let crossed = link_bytes(lab) - before;
        let (near, far) = (near.end(), far.end());
        let sent = 2 * (4 * (content.len() + small.len()) + 395_001) as u64;
        assert!(crossed < sent / 5, "{crossed} of {sent}: {near:#} {far:#}");
        assert!(number(&near, "referred_bytes") > sent / 10 * 8, "{near:#}");
        assert_eq!(number(&near, "held"), number(&far, "stored"));
        assert_eq!(number(&near, "references"), number(&far, "references"));
        for fault in ["strange", "invalid", "damaged", "unknown"] {
            assert_eq!(number(&far, fault), 0, "{fault}: {far:#}");
        }
        nginx.stop();
    });
}

#[test]
fn lost_packets_of_any_kind_are_made_good() {
    linked(|lab| {
        let content = file(lab, "a", 3, 700_000);
        let nginx = origin(lab);
        let (far, near) = (resolve(lab, &[]), refer(lab, &[]));
        let drops = "add table inet lossy; \
            add chain inet lossy one { type filter hook forward priority 0 ; }; \
            add rule inet lossy one numgen random mod 100 < 5 drop";
        let output = lab.switch.command("nft").arg(drops).output();
        if !output.is_ok_and(|output| output.status.success()) {
            return skip(
                "references::lost_packets_of_any_kind_are_made_good",
                "no nft that drops packets",
            );
        }
        let mut client = Client::new(lab);
        for _ in 0..12 {
            client.same("/a", &content);
        }
        let (near, far) = (near.end(), far.end());
        assert!(number(&near, "referred_bytes") > 2_000_000, "{near:#}");
        assert_eq!(number(&far, "damaged"), 0, "{far:#}");
        nginx.stop();
    });
}

#[test]
fn a_store_too_small_and_files_that_change_never_give_other_bytes() {
    linked(|lab| {
        file(lab, "0", 0, 1);
        let nginx = origin(lab);
        // 64 blocks for some 250.
        let sizes = ["--size", "256K"];
        let (far, near) = (resolve(lab, &sizes), refer(lab, &sizes));
        let mut rng = Rng::new(7);
        let mut client = Client::new(lab);
        let random = |rng: &mut Rng| 1 + rng.below(250_000) as usize;
        let mut files: Vec<Vec<u8>> = (0..8)
            .map(|number| file(lab, &number.to_string(), number, random(&mut rng)))
            .collect();
        for round in 0..60 {
            let at = rng.below(8) as usize;
            if rng.chance(250_000) {
                files[at] = file(lab, &at.to_string(), 100 + round, random(&mut rng));
            }
            for _ in 0..3 {
                client.same(&format!("/{at}"), &files[at]);
            }
        }
        let (near, far) = (near.end(), far.end());
        assert!(number(&near, "replaced") > 100, "{near:#}");
        assert!(number(&near, "referred_bytes") > 0, "{near:#}");
        assert_eq!(number(&far, "damaged"), 0, "{far:#}");
        nginx.stop();
    });
}

#[test]
fn an_end_that_is_gone_or_new_costs_time_and_no_bytes() {
    linked(|lab| {
        let content = file(lab, "a", 5, 300_000);
        let nginx = origin(lab);
        let (mut far, near) = (resolve(lab, &[]), refer(lab, &[]));
        let mut client = Client::new(lab);
        for _ in 0..3 {
            client.same("/a", &content);
        }
        // A new store: the server's end is informed of what it does not know.
        far.process.signal(Signal::Kill).expect("SIGKILL");
        far.process.wait_for(PATIENCE).expect("its end");
        let far = resolve(lab, &[]);
        for _ in 0..3 {
            client.same("/a", &content);
        }
        let near = near.end();
        assert!(number(&near, "unknown") > 0, "{near:#}");
        // Bytes again; then references of another run.
        client.same("/a", &content);
        let again = refer(lab, &[]);
        for _ in 0..3 {
            client.same("/a", &content);
        }
        let (again, far) = (again.end(), far.end());
        assert!(number(&again, "referred_bytes") > 200_000, "{again:#}");
        assert!(number(&far, "unknown") > 0, "{far:#}");
        nginx.stop();
    });
}

/// Sends packets of protocol 253 with random content, half of them with a right begin.
const STRANGER: &str = "import random, socket, struct, sys\n\
    out = socket.socket(socket.AF_INET, socket.SOCK_RAW, 253)\n\
    random.seed(9)\n\
    for n in range(int(sys.argv[2])):\n\
    \x20   tcp = struct.pack('!HHIIBBHHH', 8081, 9, n, 0, 5 << 4, 16, 1, 0, 0)\n\
    \x20   body = random.randbytes(random.randrange(1, 1400))\n\
    \x20   if n % 2:\n\
    \x20       body = b'FLR1' + bytes([1 + n % 4, 1 + n % 30]) + body\n\
    \x20   out.sendto(tcp + body, (sys.argv[1], 0))\n";

#[test]
fn strangers_are_counted_and_change_nothing() {
    linked(|lab| {
        const PACKETS: u64 = 500;
        let content = file(lab, "a", 6, 300_000);
        let nginx = origin(lab);
        let (far, near) = (resolve(lab, &[]), refer(lab, &[]));
        let mut client = Client::new(lab);
        for (host, to) in [(&lab.servers, "10.1.0.10"), (&lab.client, "10.2.0.1")] {
            client.same("/a", &content);
            let mut command = host.command("python3");
            command.args(["-c", STRANGER, to, &PACKETS.to_string()]);
            assert!(command.status().expect("python3").success());
            client.same("/a", &content);
        }
        std::thread::sleep(Duration::from_millis(50));
        let (near, far) = (near.end(), far.end());
        assert_eq!(number(&near, "strange"), PACKETS, "{near:#}");
        assert_eq!(number(&far, "strange"), PACKETS, "{far:#}");
        nginx.stop();
    });
}

#[test]
fn the_switch_splices_what_was_resolved_before_it() {
    linked(|lab| {
        let content = file(lab, "a", 8, 500_000);
        let nginx = origin(lab);
        let service = web_service("snat", "", "", |family| vec![family.server_at(1, PORT)]);
        let switch = Switch::start(lab, &service);
        let far = End::start(lab, &lab.switch, &lab.back.a, &["resolve"]);
        let near = refer(lab, &[]);
        for _ in 0..2 {
            for family in Family::BOTH {
                let mut client = Client::to(lab, family.virtual_at(80));
                for _ in 0..3 {
                    client.same("/a", &content);
                }
            }
        }
        let (near, far) = (near.end(), far.end());
        assert!(number(&near, "referred_bytes") > 2_000_000, "{near:#}");
        let faults = number(&far, "damaged") + number(&far, "invalid");
        assert_eq!(faults, 0, "{far:#}");
        drop(switch);
        nginx.stop();
    });
}

/// Replays a log's requests on one connection, compares each body, and says how many bytes crossed
/// the link and how long it took.
fn replay(lab: &Lab, requests: &[Replayed]) -> (u64, Duration) {
    let mut client = Client::new(lab);
    let (before, begun) = (link_bytes(lab), Instant::now());
    for (path, first, bytes) in requests {
        let range = first.map(|bytes| format!("Range: bytes=0-{}\r\n", bytes - 1));
        let body = client.get(path, &range.unwrap_or_default());
        assert_eq!(body.len() as u64, *bytes, "{path}");
        assert!(body.iter().all(|byte| *byte == b'x'), "{path}");
    }
    (link_bytes(lab) - before, begun.elapsed())
}

/// `FAIRLEAD_METER_LOG` names another log than the excerpt; then with the paper's store of 16 MiB.
/// `FAIRLEAD_LINK_RATE` limits the link (`20mbit`), `FAIRLEAD_REQUESTS` what is replayed.
#[test]
fn a_day_of_nasa_crosses_the_link_less_than_half() {
    linked(|lab| {
        let (log, size) = log();
        let text = fs::read_to_string(&log).expect("the log");
        let (nginx, mut requests) = day(lab, &text);
        let most = std::env::var("FAIRLEAD_REQUESTS").ok();
        requests.truncate(most.map_or(usize::MAX, |most| most.parse().expect("a number")));
        if let Ok(rate) = std::env::var("FAIRLEAD_LINK_RATE") {
            let mut command = lab.servers.command("tc");
            command.args(["qdisc", "add", "dev", &lab.back.b, "root", "tbf"]);
            command.args(["rate", &rate, "burst", "64k", "limit", "500k"]);
            assert!(command.status().expect("tc").success());
        }
        let (plain, plain_time) = replay(lab, &requests);
        let sizes = ["--size", size];
        let (far, near) = (resolve(lab, &sizes), refer(lab, &sizes));
        let (crossed, time) = replay(lab, &requests);
        let (near, far) = (near.end(), far.end());
        let content = number(&near, "content_bytes");
        let left = content - number(&near, "referred_bytes");
        let change = |now: u64, before: u64| (now as f64 / before as f64 - 1.0) * 100.0;
        println!(
            "{} responses, {content} bytes of content: {:+.2} % over the link; {plain} bytes of \
             the link in {:.2} s, {crossed} in {:.2} s: {:+.2} %\n{near:#}\n{far:#}",
            requests.len(),
            change(left, content),
            plain_time.as_secs_f64(),
            time.as_secs_f64(),
            change(crossed, plain),
        );
        let most = if size == "16M" { 0.6 } else { 0.97 };
        assert!((left as f64) < content as f64 * most, "{near:#}");
        nginx.stop();
    });
}
