//! `fairlead content refer` and `resolve`: files cross a link as references to what its other end
//! has. Every body is compared, over loss, changes, ends that come and go, and strangers.

use std::fs;
use std::time::{Duration, Instant};

use fairlead_base::Rng;
use fairlead_netns::Host;
use fairlead_netns::trial::{name_of, skip};
use fairlead_testkit::stream::Digest;

use crate::harness::{
    Connection, Content, Family, Lab, Nginx, Switch, in_a_lab_of, may_load_programs, web_service,
    xdp_is_asked_for,
};
use crate::meter::{FOLDER, Replayed, day, log, number, write_back};

const PORT: u16 = 8_081;
const SECRET: &str = "of both ends of this link";

/// An end of the link.
fn end(lab: &Lab, host: &Host, interface: &str, what: &str, more: &[&str]) -> Content {
    let secret = lab.file("secret", SECRET);
    let secret = secret.to_string_lossy();
    let more = ["--secret", &secret]
        .into_iter()
        .chain(more.iter().copied());
    Content::start(host, what, interface, more)
}

/// The server's end at its interface, the other at the client's; between them is a router.
fn refer(lab: &Lab, more: &[&str]) -> Content {
    let more = [&["--port", "8081"], more].concat();
    end(lab, &lab.servers, &lab.back.b, "refer", &more)
}

fn resolve(lab: &Lab, more: &[&str]) -> Content {
    end(lab, &lab.client, &lab.front.a, "resolve", more)
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

/// A client of the server itself.
fn client(lab: &Lab) -> Connection {
    Connection::to(lab, Family::V4.server_at(1, PORT))
}

/// Reads a file, or the range of it that a field names, and compares it.
fn same(client: &mut Connection, path: &str, range: &str, content: &[u8]) {
    let request = format!("GET {path} HTTP/1.1\r\nHost: a.example\r\n{range}\r\n");
    client.send(request).expect("sent");
    let response = client.response(false).expect("a response");
    let both = response.body.iter().zip(content);
    let first = both.into_iter().position(|(one, two)| one != two);
    assert_eq!(first, None, "{path}: the first byte that differs");
    let mut digest = Digest::new();
    digest.update(content);
    assert_eq!(response.digest, digest, "{path}");
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
        let mut client = client(lab);
        same(&mut client, "/a", "", &content);
        same(&mut client, "/b", "", &small);
        // Blocks whose answers came late.
        same(&mut client, "/a", "", &content);
        let before = link_bytes(lab);
        for family in Family::BOTH {
            let mut client = Connection::to(lab, family.server_at(1, PORT));
            for _ in 0..4 {
                same(&mut client, "/a", "", &content);
                same(&mut client, "/b", "", &small);
            }
            let range = "Range: bytes=5000-400000\r\n";
            same(&mut client, "/a", range, &content[5_000..=400_000]);
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
        let mut client = client(lab);
        // A lost block is inserted anew after a second.
        let until = Instant::now() + Duration::from_secs(3);
        let mut fetched = 0;
        while fetched < 12 || Instant::now() < until {
            same(&mut client, "/a", "", &content);
            fetched += 1;
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
        let mut client = client(lab);
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
                same(&mut client, &format!("/{at}"), "", &files[at]);
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
        let (far, near) = (resolve(lab, &[]), refer(lab, &[]));
        let mut client = client(lab);
        for _ in 0..3 {
            same(&mut client, "/a", "", &content);
        }
        // A new store: the server's end is informed of what it does not know.
        far.kill();
        let far = resolve(lab, &[]);
        for _ in 0..3 {
            same(&mut client, "/a", "", &content);
        }
        let near = near.end();
        assert!(number(&near, "unknown") > 0, "{near:#}");
        // Bytes again; then references of another run.
        same(&mut client, "/a", "", &content);
        let again = refer(lab, &[]);
        for _ in 0..3 {
            same(&mut client, "/a", "", &content);
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
        let mut client = client(lab);
        for (host, to) in [(&lab.servers, "10.1.0.10"), (&lab.client, "10.2.0.1")] {
            same(&mut client, "/a", "", &content);
            let mut command = host.command("python3");
            command.args(["-c", STRANGER, to, &PACKETS.to_string()]);
            assert!(command.status().expect("python3").success());
            same(&mut client, "/a", "", &content);
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
        let far = end(lab, &lab.switch, &lab.back.a, "resolve", &[]);
        let near = refer(lab, &[]);
        for _ in 0..2 {
            for family in Family::BOTH {
                let mut client = Connection::to(lab, family.virtual_at(80));
                for _ in 0..3 {
                    same(&mut client, "/a", "", &content);
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

/// What a replay took.
struct Took {
    link_bytes: u64,
    all: Duration,
    /// Of each response, the shortest first.
    each: Vec<Duration>,
}

impl Took {
    fn told(&self) -> String {
        let at = |percent: usize| self.each[(self.each.len() - 1) * percent / 100];
        format!(
            "{} bytes of the link in {:.2} s, a response {:.2?} (p99 {:.2?})",
            self.link_bytes,
            self.all.as_secs_f64(),
            at(50),
            at(99)
        )
    }
}

/// Replays a log's requests on one connection, and compares each body.
fn replay(lab: &Lab, requests: &[Replayed]) -> Took {
    let longest = requests.iter().map(|(_, _, bytes)| *bytes).max();
    let content = vec![b'x'; longest.expect("requests") as usize];
    let mut client = client(lab);
    let (before, begun) = (link_bytes(lab), Instant::now());
    let one = |(path, first, bytes): &Replayed| {
        let range = first.map(|bytes| format!("Range: bytes=0-{}\r\n", bytes - 1));
        let begun = Instant::now();
        let content = &content[..*bytes as usize];
        same(&mut client, path, &range.unwrap_or_default(), content);
        begun.elapsed()
    };
    let mut each: Vec<Duration> = requests.iter().map(one).collect();
    let all = begun.elapsed();
    each.sort_unstable();
    Took {
        link_bytes: link_bytes(lab) - before,
        all,
        each,
    }
}

/// Limits the link's rate, or the length of super-packets, as `FAIRLEAD_LINK_RATE` (`20mbit`) and
/// `FAIRLEAD_LINK_GSO` (bytes) say.
fn shape(lab: &Lab) {
    let device = &*lab.back.b;
    if let Ok(rate) = std::env::var("FAIRLEAD_LINK_RATE") {
        let mut command = lab.servers.command("tc");
        command.args(["qdisc", "add", "dev", device, "root", "tbf"]);
        command.args(["rate", &rate, "burst", "64k", "limit", "500k"]);
        assert!(command.status().expect("tc").success());
    }
    if let Ok(bytes) = std::env::var("FAIRLEAD_LINK_GSO") {
        let line = format!("link set {device} gso_max_size {bytes}\n");
        lab.servers.ip(&line).expect("gso_max_size");
    }
}

/// `FAIRLEAD_METER_LOG` names another log than the excerpt; then with the paper's store of 16 MiB.
/// `FAIRLEAD_REQUESTS` limits what is replayed.
#[test]
fn a_day_of_nasa_takes_less_of_the_link() {
    linked(|lab| {
        let (log, size) = log();
        let text = fs::read_to_string(&log).expect("the log");
        let (nginx, mut requests) = day(lab, &text);
        let most = std::env::var("FAIRLEAD_REQUESTS").ok();
        requests.truncate(most.map_or(usize::MAX, |most| most.parse().expect("a number")));
        shape(lab);
        let plain = replay(lab, &requests);
        let sizes = ["--size", size];
        let (far, near) = (resolve(lab, &sizes), refer(lab, &sizes));
        let with = replay(lab, &requests);
        let (near, far) = (near.end(), far.end());
        let content = number(&near, "content_bytes");
        let left = content - number(&near, "referred_bytes");
        let change = |now: u64, before: u64| (now as f64 / before as f64 - 1.0) * 100.0;
        println!(
            "{} responses, {content} bytes of content: {left} ({:+.2} %) cross the link\n\
             without: {}\nwith: {} ({:+.2} %)\n{near:#}\n{far:#}",
            requests.len(),
            change(left, content),
            plain.told(),
            with.told(),
            change(with.link_bytes, plain.link_bytes),
        );
        let most = if size == "16M" { 0.6 } else { 0.97 };
        assert!((left as f64) < content as f64 * most, "{near:#}");
        nginx.stop();
    });
}
