//! Connections move there and back at random while bytes pass: none is lost, none is another.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use fairlead_card::orders::{Order, ask};
use fairlead_handoff::Op;
use fairlead_netns::trial::skip;

use crate::bench::{Bench, HOST_V4, HOST_V6, PATIENCE};

/// Echoes what it reads; one thread, and readiness by level.
const ECHO: &str = "
import selectors, socket
listener = socket.create_server(('::', 80), family=socket.AF_INET6, dualstack_ipv6=True)
listener.setblocking(False)
ready = selectors.DefaultSelector()
ready.register(listener, selectors.EVENT_READ)
waiting = {}
def serve(s):
    if s not in waiting:
        try:
            got = s.recv(20000)
        except BlockingIOError:
            return
        if not got:
            ready.unregister(s)
            s.close()
            return
        waiting[s] = got
        ready.modify(s, selectors.EVENT_READ | selectors.EVENT_WRITE)
    try:
        sent = s.send(waiting[s])
    except BlockingIOError:
        return
    waiting[s] = waiting[s][sent:]
    if not waiting[s]:
        del waiting[s]
        ready.modify(s, selectors.EVENT_READ)
while True:
    for key, _ in ready.select():
        if key.fileobj is listener:
            s, _ = listener.accept()
            s.setblocking(False)
            ready.register(s, selectors.EVENT_READ)
        else:
            serve(key.fileobj)
";

const CLIENTS: u64 = 8;
/// The same, where many moves are wanted.
const MANY_CLIENTS: u64 = 64;
/// Calls on a connection between two moves, about.
const FLIP: &str = "7";

/// Sends blocks of many lengths and compares what comes back, until `stop`: the slowest answer.
fn converse(mut stream: TcpStream, seed: u64, blocks: &AtomicU64, stop: &AtomicBool) -> Duration {
    let mut word = seed;
    let mut slowest = Duration::ZERO;
    let mut back = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        let mut next = || {
            word = word.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
            word >> 40
        };
        let len = match next() % 16 {
            0 => next() as usize % 300_000 + 1,
            _ => next() as usize % 3_000 + 1,
        };
        let block: Vec<u8> = (0..len).map(|_| next() as u8).collect();
        back.resize(len, 0);
        let began = Instant::now();
        let mut writer = stream.try_clone().unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| writer.write_all(&block).unwrap());
            stream.read_exact(&mut back).unwrap();
        });
        assert!(back == block, "other bytes came back");
        slowest = slowest.max(began.elapsed());
        blocks.fetch_add(1, Ordering::Relaxed);
    }
    slowest
}

#[test]
fn connections_move_at_random_and_lose_nothing() {
    let name = "connections_move_at_random_and_lose_nothing";
    let wanted = std::env::var("FAIRLEAD_FLIPS").ok();
    let Some(wanted) = wanted.and_then(|text| text.parse::<u64>().ok()) else {
        return skip(name, "FAIRLEAD_FLIPS says no number of moves");
    };
    let Some(bench) = Bench::new(name) else {
        return;
    };
    let (blocks, stop) = (AtomicU64::new(0), AtomicBool::new(false));
    let began = Instant::now();
    let (slowest, counts) = bench.served(|_| {
        let mut command = bench.program(true, &["-c", ECHO]);
        command.env("FAIRLEAD_OFFLOAD_FLIP", FLIP);
        command.stdout(Stdio::null());
        let _server = bench.host.start(&mut command).unwrap();
        std::thread::scope(|scope| {
            let clients = match wanted {
                ..10_000 => CLIENTS,
                _ => MANY_CLIENTS,
            };
            let clients: Vec<_> = (0..clients)
                .map(|seed| {
                    let to = [HOST_V4, HOST_V6][seed as usize % 2];
                    let until = Instant::now() + PATIENCE;
                    let connect = || TcpStream::connect((to, 80));
                    let stream = loop {
                        match bench.client.enter(connect).unwrap() {
                            Ok(stream) => break stream,
                            Err(error) => assert!(Instant::now() < until, "{error}"),
                        }
                        std::thread::sleep(Duration::from_millis(20));
                    };
                    stream.set_read_timeout(Some(PATIENCE)).unwrap();
                    let (blocks, stop) = (&blocks, &stop);
                    scope.spawn(move || converse(stream, seed, blocks, stop))
                })
                .collect();
            let moved = || {
                let list = ask(&bench.orders(), Order::List).unwrap();
                let commands = list["counts"]["commands"].as_array().unwrap().clone();
                let of = |op: Op| {
                    let found = commands.iter().find(|one| one["command"] == op.name());
                    found.and_then(|one| one["count"].as_u64()).unwrap_or(0)
                };
                of(Op::Handoff) + of(Op::Restore)
            };
            let working = || clients.iter().all(|client| !client.is_finished());
            while moved() < wanted && working() {
                std::thread::sleep(Duration::from_millis(100));
            }
            stop.store(true, Ordering::Relaxed);
            let times = clients.into_iter().map(|client| client.join().unwrap());
            times.max().unwrap()
        })
    });
    println!(
        "{} handoffs, {} restores, {} blocks in {:?}; the slowest answer took {slowest:?}; a \
         handoff took {} us, a restore {} us",
        counts.commands.given(Op::Handoff),
        counts.commands.given(Op::Restore),
        blocks.load(Ordering::Relaxed),
        began.elapsed(),
        counts.spent_us[0] / counts.commands.given(Op::Handoff).max(1),
        counts.spent_us[1] / counts.commands.given(Op::Restore).max(1),
    );
    let refused: Vec<_> = counts.commands.refused().collect();
    println!("refused: {refused:?}");
    assert_eq!((counts.faults, counts.broken_rings), ([0; 5], 0));
}
