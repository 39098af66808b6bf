//! Proxies that hand their connections off, and get them back.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::panic::{AssertUnwindSafe, resume_unwind};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use fairlead_netns::{Running, Signal};

use crate::harness::{
    Family, Lab, Origin, PATIENCE, Switch, binary, kernel_mode, on_the_fast_path, prefix_in,
    rounds, web_service,
};

use crate::path_mtu::{Far, as_on_wires, far_server};

/// The example proxy: the one that `FAIRLEAD_PROXY` names, or this workspace's.
fn proxy_binary() -> &'static Path {
    static BINARY: OnceLock<PathBuf> = OnceLock::new();
    BINARY.get_or_init(|| built_example("proxy"))
}

/// An example of the client: beside the one that `FAIRLEAD_PROXY` names, or this workspace's.
pub(crate) fn built_example(name: &str) -> PathBuf {
    if let Some(proxy) = std::env::var_os("FAIRLEAD_PROXY") {
        return Path::new(&proxy).with_file_name(name);
    }
    let test = std::env::current_exe().expect("the path of this test");
    let profile = test.parent().and_then(Path::parent).expect("a profile");
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut build = Command::new(cargo);
    build.args([
        "build",
        "--quiet",
        "-p",
        "fairlead-client",
        "--example",
        name,
    ]);
    build.current_dir(env!("CARGO_MANIFEST_DIR"));
    if profile.ends_with("release") {
        build.arg("--release");
    }
    let status = build.status().expect("running cargo");
    assert!(status.success(), "the example {name} does not build");
    profile.join("examples").join(name)
}

/// A running proxy, and what it says.
pub(crate) struct Proxy {
    process: Running,
    lines: Receiver<String>,
}

impl Proxy {
    /// Between the switch's own address and a server; connections are handed off after `after`
    /// bytes.
    pub(crate) fn start(lab: &Lab, family: Family, after: u64) -> Self {
        Self::start_to(lab, family, family.server_at(1, 7), after)
    }

    fn start_to(lab: &Lab, family: Family, server: SocketAddr, after: u64) -> Self {
        let mut command = lab.switch.command(&proxy_binary().to_string_lossy());
        command.args([front(family).to_string(), server.to_string()]);
        command.arg(socket(lab)).arg(after.to_string());
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        let mut process = lab.switch.start(&mut command).expect("starting the proxy");
        let output = process.child().stdout.take().expect("its output");
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            let all = BufReader::new(output).lines().map_while(Result::ok);
            all.for_each(|line| drop(sender.send(line)));
        });
        let proxy = Self { process, lines };
        proxy.says("listening");
        proxy
    }

    /// Waits until it says something that begins like this, and returns what follows.
    pub(crate) fn says(&self, begin: &str) -> String {
        self.says_one_of([begin]).1
    }

    /// The same, for several beginnings: which of them it was, too.
    pub(crate) fn says_one_of<const N: usize>(&self, begins: [&str; N]) -> (usize, String) {
        let until = Instant::now() + PATIENCE;
        let mut others = Vec::new();
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let line = self.lines.recv_timeout(left);
            let line = line.unwrap_or_else(|_| panic!("no {begins:?} but {others:?}"));
            let mut begins = begins.iter().enumerate();
            let said = begins.find_map(|(which, begin)| Some((which, line.strip_prefix(begin)?)));
            match said {
                Some((which, rest)) => return (which, rest.trim().to_owned()),
                None => others.push(line),
            }
        }
    }

    pub(crate) fn kill(mut self) {
        self.process
            .signal(Signal::Kill)
            .expect("killing the proxy");
        self.process.wait_for(PATIENCE).expect("its end");
    }
}

/// Where the proxy listens: at the switch's own address, which no service has.
pub(crate) fn front(family: Family) -> SocketAddr {
    let address = match family {
        Family::V4 => "10.1.0.2:7",
        Family::V6 => "[fd01::2]:7",
    };
    address.parse().expect("an address")
}

pub(crate) fn socket(lab: &Lab) -> PathBuf {
    lab.folder().join("e2e.adopt")
}

/// A switch that adopts connections, with the kernel's fast path. It has a service besides, which
/// nobody uses.
pub(crate) fn switch(lab: &Lab) -> Switch {
    switch_in(lab, &kernel_mode())
}

fn switch_in(lab: &Lab, mode: &str) -> Switch {
    switch_with(lab, mode, "", "")
}

/// With other tables, and other lines of `[instance]`.
pub(crate) fn switch_with(lab: &Lab, mode: &str, more: &str, instance: &str) -> Switch {
    let socket = socket(lab);
    let socket = format!(
        "[instance]\nadopt_socket = \"{}\"\n{instance}",
        socket.display()
    );
    let prefix = prefix_in(mode, "").replacen("[instance]", &socket, 1);
    let prefix = format!("{prefix}\n{more}\n");
    let services = web_service("snat", "", "", |family| vec![family.server_at(1, 8080)]);
    Switch::start_with(lab, &format!("{prefix}{services}"))
}

/// Says everything again, and closes when its client has.
pub(crate) fn echo(mut stream: TcpStream) -> std::io::Result<()> {
    let mut bytes = vec![0; 65_536];
    loop {
        let count = stream.read(&mut bytes)?;
        if count == 0 {
            return stream.shutdown(Shutdown::Write);
        }
        stream.write_all(&bytes[..count])?;
    }
}

/// The byte at this place of every stream.
pub(crate) fn byte_at(at: u64) -> u8 {
    (at.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 56) as u8
}

pub(crate) fn part_from(at: u64) -> Vec<u8> {
    (at..at + 65_536).map(byte_at).collect()
}

/// Bytes that are sent at a time, and bytes under way at most: as many as a server's receive buffer
/// takes. An echo whose own bytes are held up during a handoff reads no more, so more bytes could
/// not leave the proxy's queues, and it would be refused.
const PART: usize = 16 << 10;
const AHEAD: u64 = 64 << 10;

/// Sends bytes and reads them again: at least `each`, then on until `between` has returned, then
/// `each` more, and to the end. The reader never waits for `between`: a proxy can hand a pair off
/// only when its client takes all that the proxy has read.
pub(crate) fn exchange(stream: TcpStream, each: u64, between: impl FnOnce()) {
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.set_write_timeout(Some(PATIENCE)).unwrap();
    let (received, is_done) = (AtomicU64::new(0), AtomicBool::new(false));
    let (stream, received, is_done) = (&stream, &received, &is_done);
    let send = move || {
        let (mut at, mut end) = (0, u64::MAX);
        let until = Instant::now() + 3 * PATIENCE;
        while at < end {
            if at - received.load(Ordering::Acquire) >= AHEAD {
                assert!(Instant::now() < until, "stopped at {at}");
                std::thread::sleep(Duration::from_micros(20));
                continue;
            }
            { stream }.write_all(&part_from(at)[..PART]).unwrap();
            at += PART as u64;
            if end == u64::MAX && is_done.load(Ordering::Acquire) {
                end = at + each;
            }
        }
        stream.shutdown(Shutdown::Write).unwrap();
        at
    };
    let receive = move || {
        let (mut at, mut bytes) = (0, vec![0; PART]);
        loop {
            let count = { stream }.read(&mut bytes);
            let count = count.unwrap_or_else(|error| panic!("at {at}: {error}"));
            if count == 0 {
                return at; // the end, and no RST
            }
            assert!(
                bytes[..count] == part_from(at)[..count],
                "other bytes at {at}"
            );
            at += count as u64;
            received.store(at, Ordering::Release);
        }
    };
    std::thread::scope(|scope| {
        let (sender, receiver) = (scope.spawn(send), scope.spawn(receive));
        while received.load(Ordering::Acquire) < each && !receiver.is_finished() {
            std::thread::sleep(Duration::from_millis(1));
        }
        let said = std::panic::catch_unwind(AssertUnwindSafe(between));
        is_done.store(true, Ordering::Release);
        said.unwrap_or_else(|panic| resume_unwind(panic));
        assert_eq!(receiver.join().unwrap(), sender.join().unwrap());
    });
}

pub(crate) fn connect(lab: &Lab, family: Family) -> TcpStream {
    let connect = || TcpStream::connect(front(family));
    lab.client.enter(connect).unwrap().unwrap()
}

/// Opens a connection by a proxy that hands it off in the middle of a transfer, and is killed.
fn outlives_its_proxy(lab: &Lab, family: Family) {
    let proxy = Proxy::start(lab, family, 8 << 20);
    let stream = connect(lab, family);
    exchange(stream, 24 << 20, || {
        let adopted = proxy.says("adopted");
        assert!(adopted.contains("bytes"), "{adopted}");
        proxy.kill();
    });
}

/// What the kernel program has counted.
fn kernel(switch: &Switch, name: &str) -> u64 {
    let status = switch.status();
    let count = status["kernel"][name].as_u64();
    count.unwrap_or_else(|| panic!("no {name}: {status}"))
}

#[test]
fn a_pair_outlives_its_proxy_in_the_middle_of_a_transfer() {
    on_the_fast_path(|lab| {
        let _servers = Family::BOTH.map(|family| Origin::start(lab, family.server_at(1, 7), echo));
        let switch = switch(lab);
        for family in Family::BOTH {
            let before = kernel(&switch, "fast_bytes");
            outlives_its_proxy(lab, family);
            // Each byte comes by twice: to the server, and back.
            let carried = kernel(&switch, "fast_bytes") - before;
            assert!(carried > 40 << 20, "{}", switch.status());
        }
        let log = switch.log();
        assert!(!log.contains("TransmitFailed"), "{log}");
        assert!(all_over(&switch), "{}", switch.status());
    });
}

#[test]
fn a_pair_outlives_its_proxy_where_the_engine_carries_it() {
    on_the_fast_path(|lab| {
        let _servers = Family::BOTH.map(|family| Origin::start(lab, family.server_at(1, 7), echo));
        let switch = switch_in(lab, "engine");
        for family in Family::BOTH {
            outlives_its_proxy(lab, family);
        }
        assert!(all_over(&switch), "{}", switch.status());
    });
}

pub(crate) fn all_over(switch: &Switch) -> bool {
    let until = Instant::now() + Duration::from_secs(5);
    while switch.count("live") != 0 {
        if Instant::now() > until {
            return false;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    true
}

/// As [`echo`], until a part begins with a zero: then the connection is reset.
fn echo_or_reset(mut stream: TcpStream) -> std::io::Result<()> {
    let mut bytes = vec![0; 65_536];
    loop {
        let count = stream.read(&mut bytes)?;
        match (count, bytes[0]) {
            (0, _) => return Ok(()),
            (1, 0) => {
                socket2::SockRef::from(&stream).set_linger(Some(Duration::ZERO))?;
                return Ok(());
            }
            (1, 1) => return stream.shutdown(Shutdown::Write),
            _ => stream.write_all(&bytes[..count])?,
        }
    }
}

/// Each end closes, and each resets: the other end sees the same, and so does the kernel.
#[test]
fn ends_of_pairs_pass_the_kernel() {
    on_the_fast_path(|lab| {
        let family = Family::V4;
        let _server = Origin::start(lab, family.server_at(1, 7), echo_or_reset);
        let switch = switch(lab);
        let proxy = Proxy::start(lab, family, 2 * 65_536);
        let adopted = || {
            let stream = connect(lab, family);
            stream.set_read_timeout(Some(PATIENCE)).unwrap();
            ping(&stream, 0);
            proxy.says("adopted");
            ping(&stream, 65_536);
            stream
        };
        let (mut rest, before) = (Vec::new(), kernel(&switch, "resets"));
        let mut stream = adopted();
        stream.write_all(&[0]).unwrap();
        let ended = stream.read_to_end(&mut rest).unwrap_err();
        assert_eq!(ended.kind(), std::io::ErrorKind::ConnectionReset);
        assert_eq!(kernel(&switch, "resets"), before + 1);
        let stream = adopted();
        socket2::SockRef::from(&stream)
            .set_linger(Some(Duration::ZERO))
            .unwrap();
        drop(stream);
        assert!(all_over(&switch), "{}", switch.status());
        assert_eq!(kernel(&switch, "resets"), before + 2);
        let fins = kernel(&switch, "fins");
        let mut stream = adopted();
        stream.write_all(&[1]).unwrap();
        let ended = stream.read_to_end(&mut rest).unwrap();
        assert_eq!(ended, 0, "the server's FIN");
        drop(stream);
        assert!(all_over(&switch), "{}", switch.status());
        drop(adopted());
        assert!(all_over(&switch), "{}", switch.status());
        assert_eq!(kernel(&switch, "fins"), fins + 4);
        // The proxy hears of each end.
        while !proxy.says("over").ends_with("Client 65536") {}
    });
}

/// Idle tunnels, and one proxy after another, each killed when it has handed its own off.
#[test]
fn tunnels_outlive_proxy_after_proxy() {
    on_the_fast_path(|lab| {
        let family = Family::V4;
        let _server = Origin::start(lab, family.server_at(1, 7), echo);
        let switch = switch(lab);
        let (proxies, each) = (rounds(4, 20), rounds(25, 500));
        let (mut tunnels, mut micros) = (Vec::new(), Vec::new());
        for _ in 0..proxies {
            let proxy = Proxy::start(lab, family, 2 * 65_536);
            for _ in 0..each {
                let stream = connect(lab, family);
                stream.set_read_timeout(Some(PATIENCE)).unwrap();
                ping(&stream, 0);
                let said = proxy.says("adopted");
                let taken = said.rsplit(' ').nth(1).expect("a time");
                micros.push(taken.parse::<u64>().expect("a number"));
                tunnels.push(stream);
            }
            proxy.kill();
        }
        micros.sort_unstable();
        let (median, most) = (micros[micros.len() / 2], micros[micros.len() - 1]);
        println!(
            "{} adoptions: median {median} us, at most {most} us",
            micros.len()
        );
        for stream in &tunnels {
            ping(stream, 65_536);
        }
        assert_eq!(switch.count("live"), tunnels.len() as u64);
        drop(tunnels);
    });
}

/// `fairlead handoff` with these arguments: whether it did it, and what it wrote.
pub(crate) fn order(lab: &Lab, arguments: &[&str]) -> (bool, String) {
    let mut command = lab.switch.command(&binary().to_string_lossy());
    command
        .arg("handoff")
        .args(arguments)
        .args(["--instance", "e2e"]);
    let run = move || command.output();
    let output = lab.switch.enter(run).unwrap().expect("fairlead handoff");
    let text = [output.stdout, output.stderr].concat();
    (
        output.status.success(),
        String::from_utf8_lossy(&text).into_owned(),
    )
}

/// Sends a part and waits until it has come back.
pub(crate) fn ping(stream: &TcpStream, at: u64) {
    let (mut stream, part) = (stream, part_from(at));
    stream.write_all(&part).unwrap();
    let mut got = vec![0; part.len()];
    stream
        .read_exact(&mut got)
        .unwrap_or_else(|error| panic!("at {at}: {error}"));
    assert!(got == part, "other bytes at {at}");
}

#[test]
fn a_pair_goes_back_to_its_proxy_and_streams_go_on() {
    on_the_fast_path(|lab| {
        let _servers = Family::BOTH.map(|family| Origin::start(lab, family.server_at(1, 7), echo));
        let switch = switch(lab);
        let mut micros = Vec::new();
        for family in Family::BOTH {
            let proxy = Proxy::start(lab, family, 1 << 20);
            let stream = connect(lab, family);
            stream.set_read_timeout(Some(PATIENCE)).unwrap();
            let mut at = 0;
            let mut talk = |rounds: u64| {
                for _ in 0..rounds {
                    ping(&stream, at);
                    at += 65_536;
                }
            };
            let adopted = |proxy: &Proxy| {
                let said = proxy.says("adopted");
                said.split(' ').next().unwrap().to_owned()
            };
            talk(16);
            // There and back, several times: nothing of it makes the next time different.
            for _ in 0..rounds(4, 50) {
                let number = adopted(&proxy);
                talk(4);
                let (done, text) = order(lab, &["give", &number]);
                assert!(done, "{text}");
                let said = proxy.says("back");
                assert!(said.starts_with(&number), "{said}");
                micros.push(said.rsplit(' ').nth(1).unwrap().parse::<u64>().unwrap());
                talk(16);
            }
            let number = adopted(&proxy);
            talk(16);
            let (done, list) = order(lab, &["list"]);
            assert!(done && list.contains("carried"), "{list}");
            let (done, text) = order(lab, &["list", "--json"]);
            assert!(done && text.contains("\"ch_nic_handoff\""), "{text}");
            let page = switch.page("/metrics").unwrap();
            let has = |line: &str| assert!(page.lines().any(|one| one == line), "{line}\n{page}");
            has("fairlead_handoff_connections 1");
            has("fairlead_handoff_owners 1");
            let moved = page.lines().find_map(|line| {
                line.strip_prefix("fairlead_handoff_commands_total{command=\"ch_nic_handoff\"} ")
            });
            assert!(moved.unwrap().parse::<u64>().unwrap() > 0);
            let (done, text) = order(lab, &["give", &number]);
            assert!(done, "{text}");
            assert!(proxy.says("back").starts_with(&number));
            talk(2); // fewer bytes than it hands off after
            let (_, list) = order(lab, &["list"]);
            assert!(!list.contains("carried"), "{list}");
            assert!(
                !order(lab, &["give", &number]).0,
                "it is not there any more"
            );
            // Now its end is the proxy's.
            proxy.kill();
            let mut rest = Vec::new();
            let ended = (&stream).read_to_end(&mut rest);
            assert!(ended.is_err() || rest.is_empty());
        }
        micros.sort_unstable();
        let (median, most) = (micros[micros.len() / 2], micros[micros.len() - 1]);
        println!(
            "{} given back: median {median} us, at most {most} us",
            micros.len()
        );
        assert_eq!(switch.count("live"), 0);
    });
}

/// The switch reloads, and is killed: the kernel goes on, and the next run knows the pairs again.
#[test]
fn pairs_outlive_the_switch() {
    on_the_fast_path(|lab| {
        let _servers = Family::BOTH.map(|family| Origin::start(lab, family.server_at(1, 7), echo));
        let mut running = Some(switch(lab));
        for family in Family::BOTH {
            let proxy = Proxy::start(lab, family, 2 * 65_536);
            let stream = connect(lab, family);
            stream.set_read_timeout(Some(PATIENCE)).unwrap();
            ping(&stream, 0);
            let mut at = 65_536;
            for kills in [false, true] {
                let said = proxy.says("adopted");
                let number = said.split(' ').next().unwrap().to_owned();
                let mut talk = |rounds: u64| {
                    for _ in 0..rounds {
                        ping(&stream, at);
                        at += 65_536;
                    }
                };
                talk(2);
                if kills {
                    let mut old = running.take().unwrap();
                    old.signal(Signal::Kill);
                    assert_eq!(old.wait_for_end(), None, "by a signal");
                    talk(16);
                    running = Some(switch(lab));
                } else {
                    let mut reload = lab.switch.command(&binary().to_string_lossy());
                    let reload = move || reload.args(["reload", "--instance", "e2e"]).output();
                    let done = lab.switch.enter(reload).unwrap().unwrap();
                    assert!(done.status.success(), "{done:?}");
                }
                talk(4);
                proxy.says("connected again");
                let until = Instant::now() + PATIENCE;
                while !order(lab, &["list"]).1.contains(&number) {
                    assert!(Instant::now() < until, "{}", order(lab, &["list"]).1);
                    std::thread::sleep(Duration::from_millis(50));
                }
                talk(4);
                // Its owner may not have been heard of yet.
                let give = || order(lab, &["give", &number]);
                let mut given = give();
                while !given.0 && given.1.contains("unavailable") && Instant::now() < until {
                    std::thread::sleep(Duration::from_millis(50));
                    given = give();
                }
                assert!(given.0, "{}", given.1);
                assert!(proxy.says("back").starts_with(&number));
                talk(2);
            }
            proxy.says("adopted");
            // The next user of its proxy's port is another connection.
            drop(stream);
        }
        let left = running.unwrap();
        assert!(all_over(&left), "{}", left.status());
    });
}

/// A router behind the switch drops what is too long: the client learns of it, and sends less.
fn hears_the_router(lab: &Lab, mode: &str) {
    let far = Far::new(lab);
    if mode.starts_with("xdp") {
        as_on_wires(lab, Some(&far));
    }
    let _servers = Family::BOTH.map(|family| Origin::start(lab, far_server(family, 7), echo));
    let switch = switch_in(lab, mode);
    for family in Family::BOTH {
        let proxy = Proxy::start_to(lab, family, far_server(family, 7), 2);
        let mut stream = connect(lab, family);
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.write_all(b"1").unwrap();
        stream.read_exact(&mut [0]).unwrap();
        proxy.says("adopted");
        exchange(stream, 2 << 20, || {});
    }
    assert!(all_over(&switch), "{}", switch.status());
}

#[test]
fn routers_on_the_way_of_pairs_are_heard() {
    on_the_fast_path(|lab| hears_the_router(lab, &kernel_mode()));
}

#[test]
fn routers_on_the_way_of_pairs_are_heard_by_the_engine() {
    on_the_fast_path(|lab| hears_the_router(lab, "engine"));
}

/// Nobody is there any more, neither proxy nor switch, and the transfer goes on to its end.
#[test]
fn the_kernel_alone_carries_a_transfer_to_its_end() {
    on_the_fast_path(|lab| {
        let family = Family::V4;
        let _server = Origin::start(lab, family.server_at(1, 7), echo);
        let mut running = Some(switch(lab));
        let proxy = Proxy::start(lab, family, 8 << 20);
        exchange(connect(lab, family), 24 << 20, || {
            proxy.says("adopted");
            proxy.kill();
            let mut switch = running.take().unwrap();
            switch.signal(Signal::Kill);
            assert_eq!(switch.wait_for_end(), None, "by a signal");
        });
        assert!(all_over(&switch(lab)));
    });
}

/// A small table fills: pairs that have been idle longest go back to their proxy, which is said how
/// much room there is, and no stream loses a byte.
#[test]
fn a_table_that_fills_gives_pairs_back() {
    on_the_fast_path(|lab| {
        let family = Family::V4;
        let _server = Origin::start(lab, family.server_at(1, 7), echo);
        let _web = Origin::start(lab, family.server_at(1, 8080), echo);
        let switch = switch_with(lab, &kernel_mode(), "[limits]\nconnections = 64", "");
        let proxy = Proxy::start(lab, family, 2 * 65_536);
        let tunnel = || {
            let stream = connect(lab, family);
            stream.set_read_timeout(Some(PATIENCE)).unwrap();
            ping(&stream, 0);
            stream
        };
        let first = tunnel();
        let number = proxy.says("adopted").split(' ').next().unwrap().to_owned();
        let mut tunnels = vec![first];
        let mut heard_of_room = false;
        for _ in 0..49 {
            tunnels.push(tunnel());
            while proxy.says_one_of(["adopted", "room for"]).0 == 1 {
                heard_of_room = true;
            }
        }
        // Room has changed by eighths; how soon that is said is the machine's matter.
        if !heard_of_room {
            proxy.says("room for");
        }
        // Newcomers take more than what is free of pairs.
        let newcomers: Vec<TcpStream> = (0..12).map(|_| newcomer(lab, family)).collect();
        let said = proxy.says("back");
        assert!(
            said.starts_with(&number),
            "the one that is idle longest: {said}"
        );
        for stream in &tunnels {
            ping(stream, 65_536);
        }
        let (_, text) = order(lab, &["list", "--json"]);
        assert!(text.contains("ch_os_resource"), "{text}");
        drop((tunnels, newcomers));
        assert!(all_over(&switch), "{}", switch.status());
    });
}

/// A connection of the service, whose head has been answered.
fn newcomer(lab: &Lab, family: Family) -> TcpStream {
    let connect = || TcpStream::connect(family.virtual_at(80));
    let mut stream = lab.client.enter(connect).unwrap().unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let head = b"GET / HTTP/1.1\r\nHost: a.example\r\n\r\n";
    stream.write_all(head).unwrap();
    let mut got = vec![0; head.len()];
    stream.read_exact(&mut got).unwrap();
    assert!(got == head, "the server says it again");
    stream
}

/// The operator asks for connections, and the proxy hands off what it has.
#[test]
fn proxies_hand_connections_off_when_they_are_asked() {
    on_the_fast_path(|lab| {
        let family = Family::V4;
        let _server = Origin::start(lab, family.server_at(1, 7), echo);
        let _switch = switch(lab);
        let (done, text) = order(lab, &["take"]);
        assert!(!done && text.contains("no proxy"), "{text}");
        let proxy = Proxy::start(lab, family, u64::MAX);
        let stream = connect(lab, family);
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        ping(&stream, 0);
        let until = Instant::now() + PATIENCE;
        let (mut done, mut text) = order(lab, &["take"]);
        while !done && Instant::now() < until {
            (done, text) = order(lab, &["take"]); // it was accepted a moment ago
        }
        assert!(done && text.contains("asked 1 proxy"), "{text}");
        proxy.says("room for");
        proxy.says("adopted");
        ping(&stream, 65_536);
    });
}

/// A process that knows the socket and no rules: it is answered by reasons, or loses its
/// connection, and nothing else happens.
#[test]
fn whatever_a_process_sends_the_switch_goes_on() {
    on_the_fast_path(|lab| {
        let family = Family::V4;
        let _server = Origin::start(lab, family.server_at(1, 7), echo);
        let switch = switch(lab);
        let script = lab.file("hostile.py", HOSTILE);
        let mut python = lab.switch.command("python3");
        let server = family.server_at(1, 7);
        python
            .arg(script)
            .arg(socket(lab))
            .arg(server.ip().to_string());
        let output = lab.switch.enter(move || python.output()).unwrap().unwrap();
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{said}\n{errors}");
        let expected = [
            "udp not_tcp",
            "listening not_tcp",
            "file not_tcp",
            "none not_tcp",
            "three not_tcp",
            "twice same_socket",
            "loopback unsupported",
            "unread queue_not_empty",
            "sleeper unsupported",
            "restore gone",
            "post unsupported",
            "half closed",
            "noise closed",
            "many refused 100000",
        ];
        assert_eq!(said.lines().collect::<Vec<_>>(), expected);
        // And it still does its work.
        outlives_its_proxy(lab, family);
        assert!(all_over(&switch), "{}", switch.status());
    });
}

const HOSTILE: &str = r#"
import array, os, socket, struct, sys
REASONS = {1: "protocol_error", 2: "unsupported", 3: "gone", 9: "queue_not_empty", 12: "not_tcp",
           13: "same_socket"}
path, server = sys.argv[1:]
def link():
    s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET); s.settimeout(10); s.connect(path)
    return s
def message(op, flags=0, length=0, arg=0, cid=7):
    return struct.pack("<IBBHQ", cid, op, flags, length, arg)
def ask(s, m, fds=()):
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
    s.sendmsg([m], rights)
    a = s.recv(64)
    if not a: return "closed"
    cid, op, flags, length, arg = struct.unpack("<IBBHQ", a)
    assert cid == struct.unpack("<I", m[:4])[0] and op == m[4], a
    return REASONS.get(arg, arg) if flags == 0xc0 else "done"
s = link()
pair = message(1, 1)
udp = socket.socket(type=socket.SOCK_DGRAM); udp.connect((server, 9))
listening = socket.socket(); listening.bind(("127.0.0.1", 0)); listening.listen()
a, b = (socket.create_connection((server, 7)) for _ in range(2))
local = socket.create_connection(listening.getsockname())
print("udp", ask(s, pair, [a.fileno(), udp.fileno()]))
print("listening", ask(s, pair, [listening.fileno(), b.fileno()]))
with open("/dev/null") as null: print("file", ask(s, pair, [a.fileno(), null.fileno()]))
print("none", ask(s, pair))
print("three", ask(s, pair, [a.fileno(), b.fileno(), b.fileno()]))
print("twice", ask(s, pair, [a.fileno(), a.fileno()]))
print("loopback", ask(s, pair, [a.fileno(), local.fileno()]))
print("unread", ask(s, message(1, 1, arg=5), [a.fileno(), b.fileno()]))
print("sleeper", ask(s, message(1, 3), [a.fileno(), b.fileno()]))
print("restore", ask(s, message(2, length=10)))
print("post", ask(s, message(7)))
# Refused sockets are as before.
for c in (a, b):
    c.sendall(b"hello"); assert c.recv(5, socket.MSG_WAITALL) == b"hello"
t = link(); t.send(message(2)[:7]); print("half", t.recv(9) or "closed")
t = link(); t.send(bytes([9, 9, 9, 9, 99]) + os.urandom(11)); print("noise", t.recv(9) or "closed")
t = link(); refused = 0
for n in range(100000): refused += ask(t, message(2, cid=n)) == "gone"
print("many refused", refused)
"#;
