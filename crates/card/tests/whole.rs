//! An unmodified program, a client, and a card between them, in network namespaces of their own.
//! Needs root, python3 and the bypass library (`cargo build -p fairlead-bypass`); else the test
//! says what is missing, and passes.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use fairlead_card::{Settings, serve, setup};
use fairlead_handoff::Op;
use fairlead_netns::trial::skip;
use fairlead_netns::{Host, Namespace, World, allowed, program};

const PATIENCE: Duration = Duration::from_secs(60);
const FILES: usize = 100;

const SERVER: &str = "
import http.server, socket
class Kept(http.server.SimpleHTTPRequestHandler):
    protocol_version = 'HTTP/1.1'
    def log_message(self, *_): pass
class Server(http.server.ThreadingHTTPServer):
    address_family = socket.AF_INET6
Server(('::', 80), Kept).serve_forever()
";

fn library() -> Option<PathBuf> {
    let own = std::env::current_exe().ok()?;
    let folder = own.parent()?;
    let places = [folder.parent()?, folder].map(|at| at.join("libfairlead_bypass.so"));
    places.into_iter().find(|place| place.is_file())
}

/// Bytes that differ by file.
fn content(file: usize) -> Vec<u8> {
    let len = (file * 7_919) % 200_000 + 1;
    let mut word = file as u64 + 1;
    let next = |_| {
        word = word.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
        (word >> 56) as u8
    };
    (0..len).map(next).collect()
}

struct Client(BufReader<TcpStream>);

impl Client {
    fn connect(from: &Host, to: &str) -> Self {
        let until = Instant::now() + PATIENCE;
        loop {
            match from.enter(|| TcpStream::connect(to)).unwrap() {
                Ok(stream) => {
                    stream.set_read_timeout(Some(PATIENCE)).unwrap();
                    return Self(BufReader::new(stream));
                }
                Err(error) => assert!(Instant::now() < until, "{to}: {error}"),
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// One request, whose answer must be the file.
    fn get(&mut self, file: usize) {
        let request = format!("GET /f{file} HTTP/1.1\r\nHost: x\r\n\r\n");
        self.0.get_mut().write_all(request.as_bytes()).unwrap();
        let (mut line, mut len) = (String::new(), None);
        while line != "\r\n" {
            line.clear();
            let got = self.0.read_line(&mut line).unwrap();
            assert_ne!(got, 0, "the connection ended");
            if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
                len = value.trim().parse().ok();
            }
        }
        let mut body = vec![0; len.expect("a length")];
        self.0.read_exact(&mut body).unwrap();
        assert!(body == content(file), "file {file} is another");
    }
}

/// Established connections of port 80 in the namespace that this thread is in.
fn established() -> usize {
    let table = |name: &str| std::fs::read_to_string(format!("/proc/thread-self/net/{name}"));
    let tables = [table("tcp"), table("tcp6")].map(Result::unwrap_or_default);
    let lines = tables.iter().flat_map(|text| text.lines());
    lines
        .map(|line| line.split_ascii_whitespace().collect::<Vec<_>>())
        .filter(|words| words.get(1).is_some_and(|local| local.ends_with(":0050")))
        .filter(|words| words.get(3) == Some(&"01"))
        .count()
}

fn on_card(card: &str) -> usize {
    let name = card.to_owned();
    let counted = std::thread::spawn(move || {
        Namespace::named(&name).unwrap().enter().unwrap();
        established()
    });
    counted.join().unwrap()
}

/// Takes the card away, whatever happens.
struct Down<'a>(&'a Host, String);

impl Drop for Down<'_> {
    fn drop(&mut self) {
        let Self(host, card) = self;
        let _ = host.enter(|| setup::down(card));
    }
}

#[test]
fn a_program_is_served_by_the_card_and_gets_its_connections_back() {
    let name = "a_program_is_served_by_the_card_and_gets_its_connections_back";
    let Some(library) = library() else {
        return skip(name, "no bypass library: cargo build -p fairlead-bypass");
    };
    let is_root = std::fs::metadata("/proc/self").is_ok_and(|about| about.uid() == 0);
    let Some(python) = program("python3").filter(|_| is_root) else {
        return skip(name, "root and python3 are needed");
    };
    if let Err(why) = allowed() {
        return skip(name, &why.to_string());
    }
    let folder = std::env::temp_dir().join(format!("fairlead-card-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    for file in 0..FILES {
        std::fs::write(folder.join(format!("f{file}")), content(file)).unwrap();
    }
    let mut world = World::new().unwrap();
    let (client, host) = (world.host("client").unwrap(), world.host("host").unwrap());
    let ends = (
        (&client, &["10.88.0.1/24", "fd88::1/64"][..]),
        (&host, &["10.88.0.2/24", "fd88::2/64"][..]),
    );
    let wire = world.link(ends.0, ends.1).unwrap().b;
    let card = format!("fl-test-{}", std::process::id());
    host.enter(|| setup::up(&card, &wire)).unwrap().unwrap();
    let down = Down(&host, card.clone());
    let socket = folder.join("socket");
    let settings = Settings {
        card: card.clone(),
        socket: socket.clone(),
        connections: 100,
    };
    let (stop, ready) = (AtomicBool::new(false), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let served = scope.spawn(|| {
            let ready = || ready.store(true, Ordering::Release);
            let stop = || stop.load(Ordering::Acquire);
            host.enter(|| serve(&settings, ready, stop)).unwrap()
        });
        while !ready.load(Ordering::Acquire) && !served.is_finished() {
            std::thread::sleep(Duration::from_millis(5));
        }
        let mut command = host.command(&python.to_string_lossy());
        command.args(["-c", SERVER]).current_dir(&folder);
        command.env("LD_PRELOAD", &library);
        command.env("FAIRLEAD_OFFLOAD_SOCKET", &socket);
        command.stdout(Stdio::null()).stderr(Stdio::null());
        let _server = host.start(&mut command).unwrap();
        let mut kept: Vec<Client> = ["10.88.0.2:80", "[fd88::2]:80"]
            .map(|to| Client::connect(&client, to))
            .into();
        for file in 0..FILES {
            match file % 2 {
                0 => kept[file / 2 % 2].get(file),
                _ => Client::connect(&client, "10.88.0.2:80").get(file),
            }
        }
        assert_eq!(on_card(&card), 2, "on the card");
        assert_eq!(host.enter(established).unwrap(), 0, "in the host");
        stop.store(true, Ordering::Release);
        let counts = served.join().unwrap().unwrap();
        assert_eq!(counts.faults, [0; 5]);
        assert_eq!(counts.commands.given(Op::Handoff), 2);
        assert_eq!(counts.commands.given(Op::Restore), 2);
        assert_eq!(host.enter(established).unwrap(), 2, "given back");
        kept.iter_mut().for_each(|one| one.get(7));
    });
    drop(down);
    let _ = std::fs::remove_dir_all(&folder);
}
