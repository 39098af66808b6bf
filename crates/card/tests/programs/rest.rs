//! A SYN on the ports of a connection that the card has in TIME_WAIT begins a new one if the
//! kernel would let it (RFC 6191). An old duplicate gets none.

use std::process::Stdio;

use fairlead_bpf_loader::card_counts;

use crate::bench::{Bench, HOST_V4, HOST_V6};

/// Ends each connection after two lines, as the first to do so.
const SERVER: &str = "
import socket
listener = socket.create_server(('::', 80), family=socket.AF_INET6, dualstack_ipv6=True)
while True:
    s, _ = listener.accept()
    for _ in range(4):
        if not s.recv(1): break
        s.send(b'.')
    s.close()
";

/// Brings a connection to the card and to its end, and sends one SYN on the same ports: its number
/// and the time in it are so far behind or before those of the connection.
const CLIENT: &str = "
import socket, struct, sys, time
address, port, ahead, clock = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
is_v6 = ':' in address
family = socket.AF_INET6 if is_v6 else socket.AF_INET
wire = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(3))
wire.settimeout(2)

def segments(seconds):
    'TCP segments of this connection: outgoing, header and what follows, until nothing comes.'
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        try:
            packet, about = wire.recvfrom(65535)
        except TimeoutError:
            return
        at = 40 if about[1] == 0x86dd else 20
        if about[1] not in (0x800, 0x86dd) or packet[6 if is_v6 else 9] != 6: continue
        tcp = packet[at:]
        if port in struct.unpack('!HH', tcp[:4]):
            yield about[2] == 4, tcp

def stamp(tcp):
    options = tcp[20:(tcp[12] >> 4) * 4]
    at = options.find(bytes([1, 1, 8, 10]))
    return struct.unpack('!I', options[at + 4:at + 8])[0]

def connect():
    s = socket.socket(family)
    s.settimeout(20)
    s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    s.bind(('', port))
    s.connect((address, 80))
    for _ in range(4):
        s.send(b'x')
        assert s.recv(1) == b'.'
    assert s.recv(1) == b''
    return s

s = connect()
own = s.getsockname()[0]
s.close()
last = [tcp for is_out, tcp in segments(3) if is_out][-1]
number = struct.unpack('!I', last[4:8])[0] + 1 + ahead  # behind the FIN
options = b''
if clock != 'none':
    options = struct.pack('!BBBBII', 1, 1, 8, 10, (stamp(last) + int(clock)) % 2**32, 0)
tcp = struct.pack('!HHIIBBHHH', port, 80, number % 2**32, 0, (5 + len(options) // 4) << 4, 2,
                  64000, 0, 0) + options
ends = socket.inet_pton(family, own) + socket.inet_pton(family, address)
total = ends + struct.pack('!II', len(tcp), 6) + tcp
total = sum(struct.unpack('!%dH' % (len(total) // 2), total))
while total >> 16: total = (total & 0xffff) + (total >> 16)
tcp = tcp[:16] + struct.pack('!H', ~total & 0xffff) + tcp[18:]
raw = socket.socket(family, socket.SOCK_RAW, socket.IPPROTO_TCP)
raw.sendto(tcp, (address, 0))
answers = [tcp[13] & 0x17 for is_out, tcp in segments(3) if not is_out]
print({0x12: 'begun', 0x10: 'old'}[answers[0]])
raw.close()
connect()
print('and again')
";

#[test]
fn an_old_syn_begins_no_connection() {
    let Some(bench) = Bench::new("rest::an_old_syn_begins_no_connection") else {
        return;
    };
    let cases = [
        // A later number, and a time that is earlier, the same, later, or not there.
        (HOST_V4, "1000", "-5000", "old"),
        (HOST_V6, "1000", "0", "begun"),
        (HOST_V4, "1000", "5000", "begun"),
        (HOST_V6, "1000", "none", "begun"),
        // An earlier number.
        (HOST_V6, "-1000", "-5000", "old"),
        (HOST_V4, "-1000", "0", "old"),
        (HOST_V6, "-1000", "5000", "begun"),
        (HOST_V4, "-1000", "none", "old"),
    ];
    bench.served(|_| {
        let mut command = bench.program(true, &["-c", SERVER]);
        command.stdout(Stdio::null()).stderr(Stdio::null());
        let _server = bench.host.start(&mut command).unwrap();
        Bench::until_listening(&bench.host);
        std::thread::scope(|scope| {
            for (at, (address, ahead, clock, expected)) in cases.into_iter().enumerate() {
                let bench = &bench;
                scope.spawn(move || {
                    let port = (4_000 + at).to_string();
                    let client = ["-c", CLIENT, address, &port, ahead, clock];
                    let said = bench.peer(&client).output().unwrap();
                    let errors = String::from_utf8_lossy(&said.stderr);
                    let text = String::from_utf8_lossy(&said.stdout);
                    let right = format!("{expected}\nand again\n");
                    assert_eq!(text, right, "{ahead} {clock}: {errors}");
                });
            }
        });
    });
    let counts = card_counts(&bench.card).unwrap();
    let of = |name| counts.iter().find(|one| one.0 == name).unwrap().1;
    assert_eq!(of("old_syn"), 4, "{counts:?}");
    assert!(of("reborn_syn") >= 4, "{counts:?}");
}
