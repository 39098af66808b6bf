//! Servers of our own: they say exactly what they saw.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use fairlead_netns::Host;
use fairlead_testkit::stream::Digest;
use socket2::SockRef;

use super::PATIENCE;
use super::client::send_stream;
use super::lab::Lab;

/// A server that runs one function a connection, each on a thread of its own.
#[derive(Debug)]
pub(crate) struct Origin {
    end: Arc<AtomicBool>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Origin {
    /// Listens at `address` on the servers' host.
    pub(crate) fn start(
        lab: &Lab,
        address: SocketAddr,
        serve: impl Fn(TcpStream) -> io::Result<()> + Send + Sync + 'static,
    ) -> Self {
        Self::start_on(&lab.servers, address, serve)
    }

    /// Listens at `address` on another host.
    pub(crate) fn start_on(
        host: &Host,
        address: SocketAddr,
        serve: impl Fn(TcpStream) -> io::Result<()> + Send + Sync + 'static,
    ) -> Self {
        let listener = host
            .enter(|| listen(address))
            .expect("entering the servers' host")
            .unwrap_or_else(|error| panic!("listening at {address}: {error}"));
        listener
            .set_nonblocking(true)
            .expect("a listener that does not wait");
        let end = Arc::new(AtomicBool::new(false));
        let ending = Arc::clone(&end);
        let serve = Arc::new(serve);
        let thread = std::thread::spawn(move || {
            while !ending.load(Ordering::SeqCst) {
                let Ok((stream, _)) = listener.accept() else {
                    std::thread::sleep(Duration::from_millis(1));
                    continue;
                };
                let serve = Arc::clone(&serve);
                std::thread::spawn(move || {
                    let ready = stream
                        .set_nonblocking(false)
                        .and_then(|()| stream.set_nodelay(true))
                        .and_then(|()| stream.set_read_timeout(Some(PATIENCE)))
                        .and_then(|()| stream.set_write_timeout(Some(PATIENCE)));
                    // How a connection ends is judged where the test looks at it.
                    let _ = ready.and_then(|()| serve(stream));
                });
            }
            // A child that another test starts at this moment holds a copy of the socket, which
            // would go on listening: so it ends by its name, not by its last copy.
            let _ = SockRef::from(&listener).shutdown(Shutdown::Both);
        });
        Self {
            end,
            thread: Some(thread),
        }
    }
}

/// Binds and listens. The one that listened there before may not be gone: a child that another test
/// starts at this moment holds a copy of its socket until it becomes its own program.
fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let until = Instant::now() + PATIENCE;
    loop {
        match TcpListener::bind(address) {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse && Instant::now() < until => {
                std::thread::sleep(Duration::from_millis(5));
            }
            tried => return tried,
        }
    }
}

impl Drop for Origin {
    fn drop(&mut self) {
        self.end.store(true, Ordering::SeqCst);
        if let Some(thread) = self.thread.take() {
            // It cannot panic; and if it did, the port is closed all the same.
            let _ = thread.join();
        }
    }
}

/// What a [`web`] server saw of one request.
#[derive(Clone, Debug)]
pub(crate) struct Seen {
    /// The peer of its socket.
    pub(crate) peer: SocketAddr,
    /// The PROXY header before the connection's first byte.
    pub(crate) preamble: Option<Preamble>,
    /// The head, byte for byte.
    pub(crate) head: String,
}

/// A PROXY protocol header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Preamble {
    pub(crate) version: u8,
    pub(crate) source: SocketAddr,
    pub(crate) destination: SocketAddr,
}

/// A small HTTP/1.1 server:
/// `GET /bytes/N` answers N bytes of stream N, everything else with a body answers its length and
/// digest (`12 89abcdef…`), the rest the server's name. Every answer has `X-Server`, `X-Saw` (the
/// peer) and `X-Asked` (how many requests the connection has carried).
pub(crate) fn web(
    name: &'static str,
    with_preamble: bool,
    seen: Arc<Mutex<Vec<Seen>>>,
) -> impl Fn(TcpStream) -> io::Result<()> + Send + Sync + 'static {
    move |stream| {
        let peer = stream.peer_addr()?;
        let mut out = stream.try_clone()?;
        let mut reader = BufReader::with_capacity(256 << 10, stream);
        let preamble = if with_preamble {
            Some(read_preamble(&mut reader)?)
        } else {
            None
        };
        for number in 1.. {
            let Some(head) = read_head(&mut reader)? else {
                return Ok(());
            };
            let body = read_body(&mut reader, &head)?;
            let first = head.lines().next().unwrap_or("").to_owned();
            let close = field(&head, "connection").is_some_and(|value| value == "close");
            let record = Seen {
                peer,
                preamble: preamble.clone(),
                head,
            };
            seen.lock().expect("the record of a test").push(record);
            let words: Vec<&str> = first.split(' ').collect();
            let (method, path) = (words[0], words.get(1).copied().unwrap_or(""));
            let stream_len = path
                .strip_prefix("/bytes/")
                .and_then(|text| text.parse().ok());
            let text = if body.len_bytes() > 0 {
                show(&body)
            } else {
                name.to_owned()
            };
            let length = stream_len.unwrap_or(text.len() as u64);
            let connection = if close { "Connection: close\r\n" } else { "" };
            let answer = format!(
                "HTTP/1.1 200 OK\r\nX-Server: {name}\r\nX-Saw: {peer}\r\nX-Asked: {number}\r\n\
                 Content-Length: {length}\r\n{connection}\r\n"
            );
            out.write_all(answer.as_bytes())?;
            match stream_len {
                _ if method == "HEAD" => {}
                Some(len) => send_stream(&mut out, len, 0, len)?,
                None => out.write_all(text.as_bytes())?,
            }
            if close {
                return Ok(());
            }
        }
        Ok(())
    }
}

/// The heads of requests without bodies, until the client closes.
pub(crate) fn request_heads(
    stream: &TcpStream,
) -> io::Result<impl Iterator<Item = io::Result<String>> + use<>> {
    let mut reader = BufReader::new(stream.try_clone()?);
    Ok(std::iter::from_fn(move || {
        read_head(&mut reader).transpose()
    }))
}

/// Length and digest as [`web`] answers them.
pub(crate) fn show(digest: &Digest) -> String {
    format!("{} {:016x}", digest.len_bytes(), digest.value())
}

fn field<'a>(head: &'a str, name: &str) -> Option<&'a str> {
    let mut lines = head.lines().filter_map(|line| line.split_once(':'));
    lines
        .find(|(key, _)| key.eq_ignore_ascii_case(name))
        .map(|(_, value)| value.trim())
}

fn read_head(reader: &mut impl BufRead) -> io::Result<Option<String>> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        if reader.read_until(b'\n', &mut head)? == 0 {
            return Ok(None);
        }
    }
    String::from_utf8(head).map(Some).map_err(io::Error::other)
}

fn read_body(reader: &mut impl BufRead, head: &str) -> io::Result<Digest> {
    let mut digest = Digest::new();
    if field(head, "transfer-encoding").is_none() {
        let length = field(head, "content-length")
            .and_then(|text| text.parse().ok())
            .unwrap_or(0);
        take(reader, length, &mut digest)?;
        return Ok(digest);
    }
    loop {
        let mut line = String::new();
        reader.read_line(&mut line)?;
        let length = u64::from_str_radix(line.trim(), 16).map_err(io::Error::other)?;
        take(reader, length, &mut digest)?;
        reader.read_line(&mut line)?;
        if length == 0 {
            return Ok(digest);
        }
    }
}

fn take(reader: &mut impl Read, mut left: u64, digest: &mut Digest) -> io::Result<()> {
    let mut buffer = vec![0; 256 << 10];
    while left > 0 {
        let want = left.min(buffer.len() as u64) as usize;
        let count = reader.read(&mut buffer[..want])?;
        if count == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        digest.update(&buffer[..count]);
        left -= count as u64;
    }
    Ok(())
}

/// Reads a PROXY header of either version (as the protocol's text describes them) from the
/// beginning of a connection.
fn read_preamble(reader: &mut impl BufRead) -> io::Result<Preamble> {
    const SIGNATURE: &[u8; 12] = b"\r\n\r\n\0\r\nQUIT\n";
    let wrong = |what: String| io::Error::new(io::ErrorKind::InvalidData, what);
    let mut first = [0; 1];
    reader.read_exact(&mut first)?;
    if first == *b"P" {
        let mut line = String::from("P");
        reader.take(106).read_line(&mut line)?;
        let words: Vec<&str> = line.trim_end_matches("\r\n").split(' ').collect();
        let ["PROXY", family, from, to, from_port, to_port] = words[..] else {
            return Err(wrong(format!("no PROXY v1 line: {line:?}")));
        };
        let socket = |ip: &str, port: &str| -> io::Result<SocketAddr> {
            let ip: std::net::IpAddr = ip.parse().map_err(io::Error::other)?;
            if ip.is_ipv4() != (family == "TCP4") {
                return Err(wrong(format!("{ip} is not of {family}")));
            }
            Ok(SocketAddr::new(ip, port.parse().map_err(io::Error::other)?))
        };
        let (source, destination) = (socket(from, from_port)?, socket(to, to_port)?);
        return Ok(Preamble {
            version: 1,
            source,
            destination,
        });
    }
    let mut rest = [0; 15];
    reader.read_exact(&mut rest)?;
    if first[0] != SIGNATURE[0] || rest[..11] != SIGNATURE[1..] || rest[11] != 0x21 {
        return Err(wrong(format!("no PROXY v2 header: {first:?} {rest:?}")));
    }
    let mut body = vec![0; usize::from(u16::from_be_bytes([rest[13], rest[14]]))];
    reader.read_exact(&mut body)?;
    let (source, destination) = match rest[12] {
        0x11 => addresses::<4>(&body),
        0x21 => addresses::<16>(&body),
        other => return Err(wrong(format!("PROXY v2 family {other:#x}"))),
    }
    .ok_or_else(|| wrong("a short PROXY v2 header".into()))?;
    Ok(Preamble {
        version: 2,
        source,
        destination,
    })
}

fn addresses<const N: usize>(body: &[u8]) -> Option<(SocketAddr, SocketAddr)>
where
    std::net::IpAddr: From<[u8; N]>,
{
    let (from, rest) = body.split_first_chunk::<N>()?;
    let (to, ports) = rest.split_first_chunk::<N>()?;
    let [a, b, c, d] = *ports.first_chunk::<4>()?;
    let source = SocketAddr::new((*from).into(), u16::from_be_bytes([a, b]));
    Some((
        source,
        SocketAddr::new((*to).into(), u16::from_be_bytes([c, d])),
    ))
}
