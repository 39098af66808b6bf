//! A web server on the card, in both families, and the way back.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::Stdio;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use fairlead_handoff::Op;
use fairlead_netns::Host;

use crate::bench::{Bench, HOST_V4, HOST_V6, PATIENCE};

pub(crate) const FILES: usize = 100;

pub(crate) const SERVER: &str = "
import http.server, socket
class Kept(http.server.SimpleHTTPRequestHandler):
    protocol_version = 'HTTP/1.1'
    def log_message(self, *_): pass
class Server(http.server.ThreadingHTTPServer):
    address_family = socket.AF_INET6
Server(('::', 80), Kept).serve_forever()
";

/// Bytes that differ by file.
pub(crate) fn content(file: usize) -> Vec<u8> {
    let len = (file * 7_919) % 200_000 + 1;
    let mut word = file as u64 + 1;
    let next = |_| {
        word = word.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
        (word >> 56) as u8
    };
    (0..len).map(next).collect()
}

pub(crate) struct Client(BufReader<TcpStream>);

impl Client {
    pub(crate) fn connect(from: &Host, to: &str) -> Self {
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
    pub(crate) fn get(&mut self, file: usize) {
        self.try_get(file).unwrap();
    }

    /// The same, if the connection lives.
    pub(crate) fn try_get(&mut self, file: usize) -> std::io::Result<()> {
        let request = format!("GET /f{file} HTTP/1.1\r\nHost: x\r\n\r\n");
        self.0.get_mut().write_all(request.as_bytes())?;
        let (mut line, mut len) = (String::new(), None);
        while line != "\r\n" {
            line.clear();
            if self.0.read_line(&mut line)? == 0 {
                return Err(std::io::ErrorKind::UnexpectedEof.into());
            }
            if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
                len = value.trim().parse().ok();
            }
        }
        let mut body = vec![0; len.expect("a length")];
        self.0.read_exact(&mut body)?;
        assert!(body == content(file), "file {file} is another");
        Ok(())
    }
}

#[test]
fn a_program_is_served_by_the_card_and_gets_its_connections_back() {
    let name = "a_program_is_served_by_the_card_and_gets_its_connections_back";
    let Some(bench) = Bench::new(name) else {
        return;
    };
    for file in 0..FILES {
        std::fs::write(bench.folder.join(format!("f{file}")), content(file)).unwrap();
    }
    let mut command = bench.program(true, &["-c", SERVER]);
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let mut server = None;
    let (mut kept, counts) = bench.served(|stop| {
        server = Some(bench.host.start(&mut command).unwrap());
        let to = [format!("{HOST_V4}:80"), format!("[{HOST_V6}]:80")];
        let mut kept = to.each_ref().map(|to| Client::connect(&bench.client, to));
        for file in 0..FILES {
            match file % 2 {
                0 => kept[file / 2 % 2].get(file),
                _ => Client::connect(&bench.client, &to[0]).get(file),
            }
        }
        assert_eq!(bench.on_card(), 2, "on the card");
        assert_eq!(bench.on_host(), 0, "in the host");
        stop.store(true, Ordering::Release);
        kept
    });
    assert_eq!(counts.faults, [0; 5]);
    assert_eq!(counts.commands.given(Op::Handoff), 2);
    assert_eq!(counts.commands.given(Op::Restore), 2);
    assert_eq!(bench.on_host(), 2, "given back");
    kept.iter_mut().for_each(|one| one.get(7));
}
