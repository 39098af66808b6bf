//! Pairs whose proxy, or whose switch, is killed at any moment; owners that break the rules.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::time::Duration;

use fairlead_netns::Signal;

use crate::handoff::{
    Proxy, all_over, connect, echo, order, part_from, ping, socket, switch, switch_with,
};
use crate::harness::{Family, Lab, Origin, PATIENCE, kernel_mode, on_the_fast_path, rounds};

/// What became of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    /// All bytes came, and the end.
    Whole,
    /// It ended before: by a FIN, or one RST.
    Cut,
}

/// Silence for so long is a hang.
const SILENCE: Duration = Duration::from_secs(20);
/// Bytes of each stream, and those after which it is handed off.
const TOTAL: u64 = 16 << 20;
const AFTER: u64 = 2 << 20;

/// As [`crate::handoff::exchange`], for streams that may be cut, at no wrong byte. `at` is called
/// when `mark` bytes have come back.
fn exchange_or_cut(stream: TcpStream, mark: u64, at: impl FnOnce()) -> Outcome {
    stream.set_read_timeout(Some(SILENCE)).unwrap();
    stream.set_write_timeout(Some(SILENCE)).unwrap();
    let stream = Arc::new(stream);
    let sending = Arc::clone(&stream);
    let sender = std::thread::spawn(move || {
        for at in (0..TOTAL).step_by(65_536) {
            (&*sending).write_all(&part_from(at))?;
        }
        sending.shutdown(Shutdown::Write)
    });
    let done = AtomicBool::new(false);
    let (reached, is_reached) = channel();
    let outcome = std::thread::scope(|scope| {
        // On this thread `at` would keep the stream waiting. It may start processes, which end with
        // the thread that starts them.
        let reader = scope.spawn(|| read_parts(&stream, mark, reached, &done));
        if is_reached.recv().is_ok() {
            at();
        }
        done.store(true, Ordering::SeqCst);
        reader.join().unwrap()
    });
    let mut bytes = [0];
    if outcome == Outcome::Whole {
        let end = (&*stream).read(&mut bytes).unwrap();
        assert_eq!(end, 0, "the end, and no RST");
    }
    let _ = stream.shutdown(Shutdown::Both);
    let sent = sender.join().unwrap();
    assert!(outcome == Outcome::Cut || sent.is_ok(), "{sent:?}");
    outcome
}

/// Reads the stream, slower from `mark` until all is done that is to be done there.
fn read_parts(
    mut stream: &TcpStream,
    mark: u64,
    reached: Sender<()>,
    done: &AtomicBool,
) -> Outcome {
    let (mut reached, mut bytes) = (Some(reached), vec![0; 65_536]);
    for from in (0..TOTAL).step_by(65_536) {
        if from >= mark {
            if let Some(reached) = reached.take() {
                reached.send(()).unwrap();
            }
            if !done.load(Ordering::SeqCst) {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        match stream.read_exact(&mut bytes) {
            Ok(()) => assert!(bytes == part_from(from), "other bytes at {from}"),
            Err(error) => {
                let silent = [ErrorKind::WouldBlock, ErrorKind::TimedOut];
                assert!(!silent.contains(&error.kind()), "a hang at {from}");
                return Outcome::Cut;
            }
        }
    }
    Outcome::Whole
}

/// The switch still does its work. On a busy machine a proxy may not come to hand a connection off
/// while it carries bytes, so there are several.
fn still_adopts(lab: &Lab, family: Family) {
    for _ in 0..5 {
        let proxy = Proxy::start(lab, family, AFTER);
        let mut adopted = false;
        let outcome = exchange_or_cut(connect(lab, family), AFTER, || {
            adopted = proxy.says_one_of(["adopted", "refused", "ended"]).0 == 0;
            if adopted {
                proxy.kill();
            }
        });
        assert!(outcome == Outcome::Whole, "a stream was cut");
        if adopted {
            return;
        }
    }
    panic!("five connections were not handed off");
}

/// When to kill in a round: bytes before, and a delay behind them.
fn moment(round: usize) -> (u64, Duration) {
    let dice = (round as u64 + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    // A proxy counts both directions.
    let bytes = AFTER / 2 - (1 << 18) + (dice >> 45); // up to half a MiB
    let micros = (dice & 0xffff_ffff) % [1, 300, 1_500, 6_000][round % 4];
    (bytes, Duration::from_micros(micros))
}

/// A proxy that is killed before, while and after it hands its connection off.
#[test]
fn a_proxy_is_killed_at_any_moment() {
    on_the_fast_path(|lab| {
        let family = Family::V4;
        let _server = Origin::start(lab, family.server_at(1, 7), echo);
        let switch = switch(lab);
        let mut whole = 0;
        let rounds = rounds(16, 300);
        for round in 0..rounds {
            let mut proxy = Some(Proxy::start(lab, family, AFTER));
            let (mark, delay) = moment(round);
            let outcome = exchange_or_cut(connect(lab, family), mark, || {
                std::thread::sleep(delay);
                proxy.take().unwrap().kill();
            });
            whole += usize::from(outcome == Outcome::Whole);
            assert!(all_over(&switch), "round {round}: {}", switch.status());
        }
        println!("{whole} of {rounds} streams went on to their ends");
        still_adopts(lab, family);
        assert!(all_over(&switch), "{}", switch.status());
    });
}

/// The same, for the switch. The proxy goes on, where it has its connection.
#[test]
fn the_switch_is_killed_while_a_connection_is_handed_off() {
    on_the_fast_path(|lab| {
        let family = Family::V4;
        let _server = Origin::start(lab, family.server_at(1, 7), echo);
        let mut whole = 0;
        let rounds = rounds(6, 60);
        let mut running = Some(switch(lab));
        for round in 0..rounds {
            let proxy = Proxy::start(lab, family, AFTER);
            let (mark, delay) = moment(round);
            let outcome = exchange_or_cut(connect(lab, family), mark, || {
                std::thread::sleep(delay);
                let mut killed = running.take().unwrap();
                killed.signal(Signal::Kill);
                assert_eq!(killed.wait_for_end(), None, "by a signal");
                running = Some(switch(lab));
            });
            whole += usize::from(outcome == Outcome::Whole);
            let running = running.as_ref().unwrap();
            assert!(all_over(running), "round {round}: {}", running.status());
            proxy.kill();
        }
        println!("{whole} of {rounds} streams went on to their ends");
    });
}

/// More than a user may hand off: the rest stays the proxy's, and is carried as ever.
#[test]
fn what_is_beyond_a_budget_stays_its_proxys() {
    on_the_fast_path(|lab| {
        let family = Family::V4;
        let _server = Origin::start(lab, family.server_at(1, 7), echo);
        let switch = switch_with(lab, &kernel_mode(), "", "adopt_connections = 2");
        let proxy = Proxy::start(lab, family, 2 * 65_536);
        let tunnel = |says: &str| {
            let stream = connect(lab, family);
            stream.set_read_timeout(Some(PATIENCE)).unwrap();
            ping(&stream, 0);
            let said = proxy.says(says);
            ping(&stream, 65_536);
            (stream, said)
        };
        let kept = [tunnel("adopted").0, tunnel("adopted").0];
        let (others, said) = tunnel("refused:");
        assert_eq!(said, "budget");
        assert_eq!(switch.count("live"), 2);
        let (_, list) = order(lab, &["list", "--json"]);
        assert!(list.contains("budget"), "{list}");
        kept.iter().for_each(|stream| ping(stream, 131_072));
        ping(&others, 131_072);
        drop(kept);
        assert!(all_over(&switch), "{}", switch.status());
    });
}

/// Runs a program that breaks the rules, in Python; what it says.
fn rude(lab: &Lab, family: Family) -> Vec<String> {
    let script = lab.file("rude.py", RUDE);
    let mut python = lab.switch.command("python3");
    let server = family.server_at(1, 7).ip().to_string();
    python.arg(script).arg(socket(lab)).arg(server);
    let output = lab.switch.enter(move || python.output()).unwrap().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    said.lines().map(str::to_owned).collect()
}

#[test]
fn owners_that_break_the_rules_hurt_nobody_else() {
    on_the_fast_path(|lab| {
        let family = Family::V4;
        let _server = Origin::start(lab, family.server_at(1, 7), echo);
        let switch = switch(lab);
        let expected = [
            "elsewhere namespace",
            "once more not_tcp",
            "two links 1 of 2",
            "ten links, none hangs",
        ];
        assert_eq!(rude(lab, family), expected);
        assert!(all_over(&switch), "{}", switch.status());
        still_adopts(lab, family);
    });
}

const RUDE: &str = r#"
import array, ctypes, os, socket, struct, subprocess, sys, threading
path, server = sys.argv[1:]
def link():
    s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET); s.settimeout(20); s.connect(path)
    return s
def hand_off(s, fds, cid=7):
    m = struct.pack("<IBBHQ", cid, 1, 1, 0, 0)
    s.sendmsg([m], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))])
    _, op, flags, _, arg = struct.unpack("<IBBHQ", s.recv(64))
    return {12: "not_tcp", 4: "busy", 14: "namespace"}.get(arg, arg) if flags == 0xc0 else "done"
def connection(): return socket.create_connection((server, 7), timeout=20)
here = os.open("/proc/self/ns/net", os.O_RDONLY)
libc = ctypes.CDLL(None, use_errno=True)
assert libc.unshare(0x40000000) == 0
subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
listening = socket.socket(); listening.bind(("127.0.0.1", 0)); listening.listen()
elsewhere = socket.create_connection(listening.getsockname())
assert libc.setns(here, 0x40000000) == 0
s, a, b = link(), connection(), connection()
print("elsewhere", hand_off(s, [a.fileno(), elsewhere.fileno()]))
# Both lead to the same server, which is no pair that makes sense, but one.
assert hand_off(s, [a.fileno(), b.fileno()]) == "done"
print("once more", hand_off(s, [a.fileno(), b.fileno()]))
a, b, outcomes = connection(), connection(), []
def at_once(fds): outcomes.append(hand_off(link(), fds))
fds = [a.fileno(), b.fileno()]
threads = [threading.Thread(target=at_once, args=(fds,)) for _ in range(2)]
for t in threads: t.start()
for t in threads: t.join()
print("two links", outcomes.count("done"), "of", len(outcomes))
# Owners that write on while they hand off, and close in the middle of it.
def rush(n):
    c, d = connection(), connection()
    stop = threading.Event()
    def write():
        while not stop.is_set():
            try: c.send(b"x" * 1000); d.send(b"y" * 1000)
            except OSError: return
    w = threading.Thread(target=write); w.start()
    s = link()
    if n % 2: hand_off(s, [c.fileno(), d.fileno()])
    else:
        m = struct.pack("<IBBHQ", n, 1, 1, 0, 0)
        rights = array.array("i", [c.fileno(), d.fileno()])
        s.sendmsg([m], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
        s.close()
    stop.set(); w.join(); c.close(); d.close()
threads = [threading.Thread(target=rush, args=(n,)) for n in range(10)]
for t in threads: t.start()
for t in threads: t.join()
print("ten links, none hangs")
# Nobody knows the numbers of some: an owner may end all that are its user's.
s = link()
for cid in (generation << 24 | line for generation in range(1, 9) for line in range(200)):
    s.send(struct.pack("<IBBHQ", cid, 5, 2, 0, 0)); s.recv(64)
"#;
