//! A program goes on while a card that stands still has one of its connections in the middle of a
//! handoff.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Stdio;
use std::time::{Duration, Instant};

use fairlead_card::orders::{Order, ask};
use fairlead_netns::Signal;

use crate::apart::begin;
use crate::bench::{Bench, HOST_V4, PATIENCE};
use crate::orders::eventually;

/// Echoes what it reads, by readiness of the kind in its argument.
const ECHO: &str = "
import select, socket, sys
edge, once = sys.argv[1] == 'edge', sys.argv[1] == 'once'
flags = select.EPOLLET if edge else select.EPOLLONESHOT if once else 0
listener = socket.create_server(('', 80))
listener.setblocking(False)
epoll = select.epoll()
epoll.register(listener, select.EPOLLIN)
all, waiting = {}, {}
def serve(s):
    fd = s.fileno()
    while True:
        try:
            if not waiting.get(fd):
                waiting[fd] = s.recv(100)
                if not waiting[fd]:
                    raise ConnectionError
            waiting[fd] = waiting[fd][s.send(waiting[fd]):]
        except BlockingIOError:
            want = select.EPOLLOUT if waiting.get(fd) else select.EPOLLIN
            epoll.modify(s, want | flags)
            return
        except ConnectionError:
            epoll.unregister(s)
            s.close()
            return
        if not edge and not waiting[fd]:
            epoll.modify(s, select.EPOLLIN | flags)
            return
while True:
    for fd, events in epoll.poll():
        if fd == listener.fileno():
            s, _ = listener.accept()
            s.setblocking(False)
            all[s.fileno()], waiting[s.fileno()] = s, b''
            epoll.register(s, select.EPOLLIN | flags)
        else:
            serve(all[fd])
";

/// What a caller who waits would take for far too long.
const SOON: Duration = Duration::from_secs(5);

fn send(stream: &mut TcpStream, text: &str) {
    stream.write_all(text.as_bytes()).unwrap();
}

fn receive(stream: &mut TcpStream, text: &str) {
    let mut got = vec![0; text.len()];
    stream.read_exact(&mut got).unwrap();
    assert_eq!(String::from_utf8_lossy(&got), text);
}

fn goes_on(bench: &Bench, readiness: &str, then: Signal) {
    let mut card = begin(bench, None);
    let mut command = bench.program(true, &["-c", ECHO, readiness]);
    command.stdout(Stdio::null());
    let _server = bench.host.start(&mut command).unwrap();
    Bench::until_listening(&bench.host);
    let connect = || {
        let stream = bench.client.enter(|| TcpStream::connect((HOST_V4, 80)));
        let stream = stream.unwrap().unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream
    };
    let mut moving = connect();
    let turn = |stream: &mut TcpStream, text: &str| {
        send(stream, text);
        receive(stream, text);
    };
    // Once the program does not know the card yet, and waits for its greeting.
    let mut known = (readiness != "level").then(connect);
    if let Some(known) = &mut known {
        (0..4).for_each(|round| turn(known, &format!("{round}")));
        eventually("one is on the card", || bench.on_card() == 1);
    }
    // Programs that read until nothing is there begin it then, others one request later.
    let before = if readiness == "edge" { 1 } else { 2 };
    (0..before).for_each(|_| turn(&mut moving, "one"));
    card.signal(Signal::Stop).unwrap();
    // The next read begins the handoff, which the card does not answer.
    turn(&mut moving, "two");
    send(&mut moving, "three");
    let began = Instant::now();
    for round in 0..20 {
        // Others have too few requests to be handed off.
        turn(&mut connect(), &format!("round {round}"));
        std::thread::sleep(Duration::from_millis(5));
    }
    let took = began.elapsed();
    card.signal(then).unwrap();
    assert!(took < SOON, "{readiness}: {took:?} for 20 answers");
    receive(&mut moving, "three");
    for round in 0..20 {
        turn(&mut moving, &format!("round {round}"));
    }
    if then == Signal::Continue {
        let on_card = if known.is_some() { 2 } else { 1 };
        eventually("it is on the card", || {
            turn(&mut moving, "again");
            bench.on_card() == on_card
        });
        let list = ask(&bench.orders(), Order::List).unwrap();
        assert!(!list["connections"].as_array().unwrap().is_empty());
    }
    std::fs::write(bench.folder.join("stop"), "").unwrap();
    assert!(card.wait_for(PATIENCE).unwrap().is_some());
}

#[test]
fn a_program_goes_on_while_a_connection_moves() {
    let (goes, dies) = (Signal::Continue, Signal::Kill);
    for (readiness, then) in [
        ("level", goes),
        ("edge", goes),
        ("once", goes),
        ("edge", dies),
    ] {
        let Some(bench) = Bench::new("a_program_goes_on_while_a_connection_moves") else {
            return;
        };
        goes_on(&bench, readiness, then);
    }
}
