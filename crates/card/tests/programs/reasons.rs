//! Why connections are not on the card: each reason is counted, once for each connection.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Stdio;

use fairlead_card::orders::{Order, ask};
use fairlead_handoff::Op;
use fairlead_offload::Reason;

use crate::bench::{Bench, HOST_V4, PATIENCE};

/// Answers bytes. A connection's first line says what else it does, before them and behind them.
const SERVER: &str = "
import os, select, socket, sys
listeners = [socket.create_server(('0.0.0.0', port)) for port in (81, 80)]
def answer(s, count=4):
    for _ in range(count):
        if not s.recv(1): return
        s.send(b'.')
while True:
    for listener in select.select(listeners, [], [])[0]:
        s, _ = listener.accept()
        what = b''
        while not what.endswith(b'\\n'): what += s.recv(1)
        what = what.decode().strip()
        if what == 'copied': copy = os.dup(s.fileno())
        answer(s)
        if what == 'flags': s.recv(1, socket.MSG_WAITALL); s.send(b'.')
        if what == 'socket_option': s.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16)
        if what == 'process':
            if os.fork() == 0: os._exit(0)
            os.wait()
        if what == 'passed':
            a, b = socket.socketpair()
            socket.send_fds(a, [b'x'], [s.fileno()])
            a.close(); b.close()
        if what == 'spliced':
            a, b = os.pipe()
            os.write(b, b'.'); os.splice(a, s.fileno(), 1)
        answer(s, 50)
        s.close()
";

struct Client(TcpStream);

impl Client {
    fn connect(bench: &Bench, port: u16, what: &str) -> Self {
        let connect = || TcpStream::connect((HOST_V4, port));
        let mut stream = bench.client.enter(connect).unwrap().unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.write_all(format!("{what}\n").as_bytes()).unwrap();
        Self(stream)
    }

    fn pings(&mut self, count: usize) {
        for _ in 0..count {
            self.0.write_all(b"x").unwrap();
            self.0.read_exact(&mut [0]).unwrap();
        }
    }
}

#[test]
fn each_reason_is_counted() {
    let Some(bench) = Bench::new("reasons::each_reason_is_counted") else {
        return;
    };
    let ((), counts) = bench.served(|_| {
        let mut command = bench.program(true, &["-c", SERVER]);
        command.env("FAIRLEAD_OFFLOAD_PORTS", "80");
        command.stdout(Stdio::null());
        let _server = bench.host.start(&mut command).unwrap();
        Bench::until_listening(&bench.host);
        let run = |port, what| {
            let mut client = Client::connect(&bench, port, what);
            client.pings(9);
        };
        for what in [
            "copied",
            "flags",
            "socket_option",
            "process",
            "passed",
            "nothing",
        ] {
            run(80, what);
        }
        let mut client = Client::connect(&bench, 80, "spliced");
        client.pings(4);
        client.0.read_exact(&mut [0]).unwrap();
        client.pings(4);
        drop(client);
        run(81, "nothing");
        run(81, "nothing");
        // Given back, it stays.
        let mut client = Client::connect(&bench, 80, "nothing");
        client.pings(5);
        ask(&bench.orders(), Order::Give(None)).unwrap();
        client.pings(9);
        let list = ask(&bench.orders(), Order::List).unwrap();
        let shown = list["counts"]["not_on_the_card"].as_array().unwrap();
        let given = shown.iter().find(|one| one["reason"] == "given").unwrap();
        assert_eq!(given["count"], 1);
    });
    let expected = [
        (Reason::Port, 2),
        (Reason::Copied, 1),
        (Reason::Flags, 1),
        (Reason::SocketOption, 1),
        (Reason::Process, 1),
        (Reason::Passed, 1),
        (Reason::Spliced, 1),
        (Reason::Wanted, 1),
        (Reason::Given, 1),
    ];
    for &why in Reason::ALL {
        let known = expected.iter().find(|one| one.0 == why);
        let count = counts.reasons[why as usize];
        assert_eq!(count, known.map_or(0, |one| one.1), "{}", why.name());
    }
    let came_back = expected
        .iter()
        .filter(|one| one.0 as usize > Reason::Uring as usize);
    let came_back: u64 = came_back.map(|one| one.1).sum();
    assert_eq!(counts.commands.given(Op::Restore), came_back);
}
