//! Ports of connections that a program has made: the host's kernel knows nothing of those that the
//! card has, and must not choose one of them again.

use std::process::Stdio;

use fairlead_handoff::Op;

use crate::bench::Bench;

/// Answers bytes until the client has none left.
const SERVER: &str = "
import socket, threading
def answer(s):
    while s.recv(1): s.send(b'.')
listener = socket.create_server(('0.0.0.0', 80), backlog=64)
while True: threading.Thread(target=answer, args=listener.accept()[:1], daemon=True).start()
";

/// Takes all ports that there are, twice.
const CLIENT: &str = "
import errno, socket, time
def connect():
    s = socket.socket()
    s.settimeout(20)
    s.connect(('10.88.0.1', 80))
    for _ in range(4):
        s.send(b'x')
        assert s.recv(1) == b'.'
    return s
def at_last():
    'Ports of connections that have ended become free a little later.'
    until = time.monotonic() + 40
    while True:
        try: return connect()
        except OSError as error:
            if error.errno != errno.EADDRNOTAVAIL or time.monotonic() > until: raise
            time.sleep(0.05)
for _ in range(2):
    kept = [at_last() for _ in range(8)]
    ports = {s.getsockname()[1] for s in kept}
    assert len(ports) == 8, ports
    try: connect()
    except OSError as error: assert error.errno == errno.EADDRNOTAVAIL, error
    else: assert False, 'one more than there are'
    for s in kept:
        s.send(b'x')
        assert s.recv(1) == b'.'
        s.close()
";

#[test]
fn a_port_on_the_card_is_not_chosen_again() {
    let Some(bench) = Bench::new("ports::a_port_on_the_card_is_not_chosen_again") else {
        return;
    };
    bench
        .host
        .sysctl("net.ipv4.ip_local_port_range", "40000 40007")
        .unwrap();
    let mut command = bench.peer(&["-c", SERVER]);
    command.stdout(Stdio::null());
    let _server = bench.client.start(&mut command).unwrap();
    Bench::until_listening(&bench.client);
    let ((), counts) = bench.served(|_| {
        let said = bench.program(true, &["-c", CLIENT]).output().unwrap();
        let errors = String::from_utf8_lossy(&said.stderr);
        assert!(said.status.success(), "{errors}");
    });
    assert_eq!(counts.commands.given(Op::Handoff), 16);
}
