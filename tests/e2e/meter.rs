//! `fairlead content meter` beside nginx: files and headers to the byte, changes, retransmissions,
//! and a day of a web server against the laboratory.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use fairlead_netns::trial::{name_of, skip};
use serde_json::Value;

use crate::harness::{
    Content, Family, Lab, Nginx, PATIENCE, binary, in_a_lab_of, may_load_programs,
};

/// Files of nginx below this one.
pub(crate) const FOLDER: &str = "origin";

pub(crate) fn server() -> SocketAddr {
    Family::V4.server_at(1, 8_081)
}

/// nginx with files of these names and sizes, written back.
pub(crate) fn origin(lab: &Lab, files: &[(&str, usize)]) -> Nginx {
    let folder = lab.folder().join(FOLDER).join("files");
    fs::create_dir_all(&folder).expect("a folder");
    for (name, bytes) in files {
        write_back(&folder.join(name), &vec![b'x'; *bytes]);
    }
    start(lab)
}

pub(crate) fn start(lab: &Lab) -> Nginx {
    let servers = format!(
        "server {{ listen {} backlog=16384; location / {{ root $folder/files; }}\n\
         location /generated {{ return 200 \"{}\"; }} }}",
        server(),
        "g".repeat(700)
    );
    Nginx::start(lab, FOLDER, &servers, &[server()])
}

pub(crate) fn write_back(path: &Path, content: &[u8]) {
    let mut file = File::create(path).expect("a file");
    file.write_all(content).expect("written");
    file.sync_all().expect("written back");
}

/// A meter at the server's interface.
struct Meter(Content);

impl Meter {
    fn start(lab: &Lab, more: &[&str]) -> Self {
        let more = ["--port", "8081"].iter().chain(more);
        Self(Content::start(&lab.servers, "meter", &lab.back.b, more))
    }

    /// Ends it; its document.
    fn end(self) -> Value {
        let document = self.0.end();
        assert_eq!(document["lost_packets"], 0, "{document:#}");
        document
    }
}

/// A client that keeps its connection.
struct Client {
    stream: BufReader<TcpStream>,
    /// Of all responses.
    head_bytes: u64,
    body_bytes: u64,
}

impl Client {
    fn new(lab: &Lab) -> Self {
        let stream = lab.client.enter(|| TcpStream::connect(server()));
        let stream = stream.expect("the client's host").expect("a connection");
        stream.set_read_timeout(Some(PATIENCE)).expect("a time-out");
        stream.set_nodelay(true).expect("at once");
        Self {
            stream: BufReader::new(stream),
            head_bytes: 0,
            body_bytes: 0,
        }
    }

    /// Reads a file, or its first bytes, and says how many came.
    fn get(&mut self, path: &str, first: Option<u64>) -> u64 {
        let range = first.map(|bytes| format!("Range: bytes=0-{}\r\n", bytes - 1));
        let range = range.unwrap_or_default();
        let request = format!("GET {path} HTTP/1.1\r\nHost: a\r\n{range}\r\n");
        let stream = self.stream.get_mut();
        stream.write_all(request.as_bytes()).expect("sent");
        let mut length = 0;
        for number in 0.. {
            let mut line = String::new();
            let bytes = self.stream.read_line(&mut line).expect("a line");
            self.head_bytes += bytes as u64;
            if number == 0 {
                assert!(line.starts_with("HTTP/1.1 20"), "{path}: {line}");
            }
            if let Some((_, text)) = line.split_once("Content-Length: ") {
                length = text.trim().parse().expect("a length");
            }
            if line == "\r\n" || bytes == 0 {
                break;
            }
        }
        let mut body = Read::by_ref(&mut self.stream).take(length);
        let read = std::io::copy(&mut body, &mut std::io::sink()).expect("the body");
        assert_eq!(read, length, "{path}");
        self.body_bytes += read;
        read
    }
}

pub(crate) fn number(document: &Value, name: &str) -> u64 {
    let found = document[name].as_u64();
    found.unwrap_or_else(|| panic!("{name}: {document:#}"))
}

/// Segments that hosts have sent again, although no packet was dropped: on a busy machine an
/// acknowledgement may be late. Then no bytes can be compared.
fn sent_again(lab: &Lab) -> bool {
    let mut command = lab.servers.command("cat");
    let output = command.arg("/proc/net/snmp").output().expect("cat");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let mut lines = text.lines().filter_map(|line| line.strip_prefix("Tcp: "));
    let names = lines.next().expect("names").split(' ');
    let mut fields = names.zip(lines.next().expect("numbers").split(' '));
    let again = fields.find(|(name, _)| *name == "RetransSegs");
    again.expect("the counter").1 != "0"
}

const BUSY: &str = "segments were sent again: this machine is too busy";

/// A lab in which the meter may run. A test may return why it is to be reported as skipped.
fn metered<F: FnOnce(&Lab) -> Option<&'static str>>(test: F) {
    let name = name_of::<F>();
    in_a_lab_of(name, |lab| {
        if may_load_programs(name) {
            // Past the switch: its host forwards.
            let route = lab.client.route("10.2.0.0/24", "10.1.0.2");
            route.expect("a route");
            if let Some(why) = test(lab) {
                skip(name, why);
            }
        }
    });
}

#[test]
fn files_are_content_and_heads_are_headers_to_the_byte() {
    metered(|lab| {
        let files = [("a", 16_384), ("b", 65_536), ("c", 1), ("d", 5_000)];
        let nginx = origin(lab, &files);
        let meter = Meter::start(lab, &[]);
        let mut client = Client::new(lab);
        for (name, bytes) in files.iter().chain(&files) {
            let read = client.get(&format!("/{name}"), None);
            assert_eq!(read, *bytes as u64);
        }
        let seen = meter.end();
        if sent_again(lab) {
            return Some(BUSY);
        }
        assert_eq!(number(&seen, "content_bytes"), client.body_bytes);
        let half = client.body_bytes / 2;
        assert_eq!(number(&seen, "content_bytes_cached"), half);
        assert_eq!(number(&seen, "application_header_bytes"), client.head_bytes);
        assert_eq!(number(&seen, "other_bytes"), 0);
        assert!(number(&seen, "network_header_bytes") > 0);
        nginx.stop();
        None
    });
}

#[test]
fn generated_bytes_are_other_and_two_devices_have_a_cache_each() {
    metered(|lab| {
        let nginx = origin(lab, &[("a", 8_192)]);
        let meter = Meter::start(lab, &["--devices", "2", "--size", "64K"]);
        let mut heads = 0;
        let connections = 16;
        for _ in 0..connections {
            let mut client = Client::new(lab);
            client.get("/a", None);
            assert_eq!(client.get("/generated", None), 700);
            heads += client.head_bytes;
        }
        let seen = meter.end();
        if sent_again(lab) {
            return Some(BUSY);
        }
        assert_eq!(number(&seen, "other_bytes"), connections * 700);
        assert_eq!(number(&seen, "application_header_bytes"), heads);
        assert_eq!(number(&seen, "content_bytes"), connections * 8_192);
        // On one device or on both.
        let inserted = number(&seen["blocks"], "inserts");
        assert!(inserted == 2 || inserted == 4, "{seen:#}");
        nginx.stop();
        None
    });
}

#[test]
fn what_a_server_encrypts_is_other() {
    metered(|lab| {
        const BYTES: u64 = 50_000;
        let certificates = crate::tls::certificates(lab);
        assert!(Path::new(&certificates).exists());
        let folder = lab.folder().join(FOLDER).join("files");
        fs::create_dir_all(&folder).expect("a folder");
        write_back(&folder.join("a"), &[b'x'; BYTES as usize]);
        let (at, name) = (lab.folder().display(), crate::tls::NAMES[0]);
        let servers = format!(
            "server {{ listen {} ssl; ssl_certificate {at}/{name}.pem;\n\
             ssl_certificate_key {at}/{name}.key; location / {{ root $folder/files; }} }}",
            server()
        );
        let nginx = Nginx::start(lab, FOLDER, &servers, &[server()]);
        let meter = Meter::start(lab, &[]);
        let mut command = lab.client.command("curl");
        let url = format!("https://{}/a", server());
        let output = command.args(["-sk", &url]).output().expect("curl");
        assert_eq!(output.stdout.len() as u64, BYTES);
        let seen = meter.end();
        assert_eq!(number(&seen, "content_bytes"), 0);
        assert_eq!(number(&seen, "application_header_bytes"), 0);
        assert!(number(&seen, "other_bytes") > BYTES, "{seen:#}");
        nginx.stop();
        None
    });
}

#[test]
fn a_changed_file_is_not_sent_from_the_cache() {
    metered(|lab| {
        const BYTES: u64 = 16_384;
        let nginx = origin(lab, &[("a", BYTES as usize)]);
        let path = lab.folder().join(FOLDER).join("files/a");
        let meter = Meter::start(lab, &[]);
        let mut client = Client::new(lab);
        let twice = |client: &mut Client| {
            let first = client.get("/a", None);
            assert_eq!(client.get("/a", None), first);
            // Before Linux 6.13 a file system's clock may stand still for 10 ms.
            std::thread::sleep(Duration::from_millis(20));
            first
        };
        assert_eq!(twice(&mut client), BYTES);
        // In place, with the same length.
        let mut file = File::options().write(true).open(&path).expect("the file");
        file.write_all(&[b'y'; BYTES as usize]).expect("written");
        file.sync_all().expect("written back");
        assert_eq!(twice(&mut client), BYTES);
        // Shorter.
        file.set_len(BYTES / 2).expect("truncated");
        file.sync_all().expect("written back");
        assert_eq!(twice(&mut client), BYTES / 2);
        // Another file in its place.
        let new = path.with_extension("new");
        write_back(&new, &[b'z'; BYTES as usize]);
        fs::rename(&new, &path).expect("renamed");
        assert_eq!(twice(&mut client), BYTES);
        let seen = meter.end();
        if sent_again(lab) {
            return Some(BUSY);
        }
        assert_eq!(number(&seen, "content_bytes"), client.body_bytes);
        // The second of each pair.
        let cached = number(&seen, "content_bytes_cached");
        assert_eq!(cached, client.body_bytes / 2, "{seen:#}");
        assert_eq!(number(&seen["blocks"], "changed"), 4 + 2);
        assert_eq!(number(&seen, "uncacheable_bytes"), 0);
        nginx.stop();
        None
    });
}

/// Maps a file, changes a byte, says so, and keeps the mapping until its input ends.
const MAPPER: &str = "import mmap, sys\n\
    with open(sys.argv[1], 'r+b') as file:\n\
    \x20   memory = mmap.mmap(file.fileno(), 0)\n\
    \x20   memory[5000] = 7\n\
    \x20   print('changed', flush=True)\n\
    \x20   sys.stdin.read()\n\
    \x20   memory.flush()\n";

#[test]
fn pages_that_a_mapping_changed_are_not_cacheable() {
    metered(|lab| {
        const BYTES: u64 = 16_384;
        let nginx = origin(lab, &[("a", BYTES as usize)]);
        let path = lab.folder().join(FOLDER).join("files/a");
        let meter = Meter::start(lab, &[]);
        let mut client = Client::new(lab);
        client.get("/a", None);
        let mut mapper = Command::new("python3")
            .args(["-c", MAPPER, &path.to_string_lossy()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("python3");
        let mut said = String::new();
        let out = mapper.stdout.take().expect("a pipe");
        BufReader::new(out).read_line(&mut said).expect("a line");
        assert_eq!(said, "changed\n");
        client.get("/a", None);
        drop(mapper.stdin.take());
        assert!(mapper.wait().expect("its end").success());
        File::open(&path)
            .and_then(|file| file.sync_all())
            .expect("written back");
        for _ in 0..2 {
            client.get("/a", None);
        }
        let seen = meter.end();
        if sent_again(lab) {
            return Some(BUSY);
        }
        let dirty = number(&seen, "uncacheable_bytes");
        assert!((4_096..=BYTES).contains(&dirty), "{seen:#}");
        // The last response is as cached as the first would have been.
        let cached = number(&seen, "content_bytes_cached");
        assert!((BYTES..2 * BYTES).contains(&cached), "{seen:#}");
        nginx.stop();
        None
    });
}

#[test]
fn retransmitted_content_crosses_again_but_from_the_cache() {
    metered(|lab| {
        const BYTES: u64 = 1 << 20;
        let nginx = origin(lab, &[("a", BYTES as usize)]);
        let drops = "add table ip lossy; \
            add chain ip lossy one { type filter hook input priority 0 ; }; \
            add rule ip lossy one tcp sport 8081 numgen inc mod 5 == 2 drop";
        let output = lab.client.command("nft").arg(drops).output();
        if !output.is_ok_and(|output| output.status.success()) {
            return Some("no nft that drops packets");
        }
        let meter = Meter::start(lab, &[]);
        let mut client = Client::new(lab);
        assert_eq!(client.get("/a", None), BYTES);
        let seen = meter.end();
        let content = number(&seen, "content_bytes");
        assert!(content > BYTES, "nothing was lost: {seen:#}");
        assert_eq!(number(&seen["with_cache"], "content_bytes"), BYTES);
        nginx.stop();
        None
    });
}

#[test]
fn what_cannot_be_measured_is_said() {
    metered(|lab| {
        let mut command = lab.servers.command(&binary().to_string_lossy());
        command.args(["content", "meter", "--for", "1s", "--interface", "absent0"]);
        let output = command.output().expect("the meter");
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1));
        assert!(
            said.contains("absent0: there is no such interface"),
            "{said}"
        );
        // A user of its own namespace has every capability there, and none that counts here.
        let mut command = lab.servers.command("unshare");
        command.args(["--user", "--map-root-user"]).arg(binary());
        command.args(["content", "meter", "--for", "1s", "--interface", "lo"]);
        let output = command.output().expect("the meter");
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(said.contains("CAP_BPF, CAP_PERFMON"), "{said}");
        None
    });
}

/// Responses of a log in Common Log Format: target and bytes of the body.
pub(crate) fn responses(log: &str) -> Vec<(String, u64)> {
    let response = |line: &str| {
        let (_, rest) = line.split_once('"')?;
        let (request, rest) = rest.rsplit_once('"')?;
        let target = request.split(' ').nth(1)?;
        let bytes: u64 = rest.split_whitespace().nth(1)?.parse().ok()?;
        (bytes > 0).then(|| (target.to_owned(), bytes))
    };
    log.lines().filter_map(response).collect()
}

/// The log to replay, and the size of a cache for it: the paper's for another than the excerpt.
pub(crate) fn log() -> (PathBuf, &'static str) {
    let other = std::env::var_os("FAIRLEAD_METER_LOG").map(PathBuf::from);
    let size = if other.is_some() { "16M" } else { "2M" };
    let excerpt = Path::new(env!("CARGO_MANIFEST_DIR")).join("../traces/nasa.log");
    (other.unwrap_or(excerpt), size)
}

/// A request: path, bytes of the range if it is not the whole file, bytes of the response.
pub(crate) type Replayed = (String, Option<u64>, u64);

/// nginx with files of a log's sizes, written back, and the log's requests.
pub(crate) fn day(lab: &Lab, log: &str) -> (Nginx, Vec<Replayed>) {
    let responses = responses(log);
    let mut longest: HashMap<&str, u64> = HashMap::new();
    for (target, bytes) in &responses {
        let most = longest.entry(target).or_default();
        *most = (*most).max(*bytes);
    }
    // Numbers instead of names that no file system would take.
    let names: HashMap<&str, usize> = longest.keys().copied().zip(0..).collect();
    let folder = lab.folder().join(FOLDER).join("files");
    fs::create_dir_all(&folder).expect("a folder");
    for (target, bytes) in &longest {
        let path = folder.join(names[target].to_string());
        fs::write(path, vec![b'x'; *bytes as usize]).expect("a file");
    }
    let synced = Command::new("sync").arg("-f").arg(&folder).status();
    assert!(synced.expect("sync").success());
    let nginx = start(lab);
    let replayed = responses.iter().map(|(target, bytes)| {
        let longest = longest[target.as_str()];
        let path = format!("/{}", names[target.as_str()]);
        (path, (*bytes < longest).then_some(*bytes), *bytes)
    });
    let replayed = replayed.collect();
    (nginx, replayed)
}

/// `FAIRLEAD_METER_LOG` names another log than the excerpt, for example the whole day; then with
/// the paper's cache of 16 MiB.
#[test]
fn a_day_of_nasa_has_the_content_of_the_laboratory() {
    metered(|lab| {
        let (log, size) = log();
        let text = fs::read_to_string(&log).expect("the log");
        let (nginx, requests) = day(lab, &text);
        let meter = Meter::start(lab, &["--size", size]);
        let mut client = Client::new(lab);
        for (path, first, bytes) in &requests {
            assert_eq!(client.get(path, *first), *bytes, "{path}");
        }
        let seen = meter.end();
        nginx.stop();
        let content = number(&seen, "content_bytes");
        match sent_again(lab) {
            false => assert_eq!(content, client.body_bytes),
            true if content > client.body_bytes / 100 * 101 => return Some(BUSY),
            true => {}
        }
        let output = Command::new(binary())
            .args(["lab", "content", "run", "--json", "--size", size])
            .arg(&log)
            .output()
            .expect("the laboratory");
        let rows: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        let row = &rows[0];
        // Of damaged lines the laboratory reads others than this.
        let logged = number(row, "response_bytes");
        assert!(
            client.body_bytes.abs_diff(logged) <= logged / 1_000,
            "{row:#}"
        );
        let metered = number(&seen, "content_bytes_cached") as f64 / content as f64;
        let simulated = row["removed_ratio"].as_f64().expect("a share");
        println!(
            "{} responses, {content} bytes of content: the meter removes {:.2} %, the laboratory \
             {:.2} %\n{seen:#}",
            requests.len(),
            metered * 100.0,
            simulated * 100.0
        );
        assert!(simulated > 0.05, "a log with repetitions: {simulated}");
        assert!((metered - simulated).abs() <= 0.02, "{seen:#}\n{row:#}");
        None
    });
}
