//! Web clients: each has one connection at a time, asks on it as often as the mix says, and makes
//! the next one when the server has closed it. A client has 400 kb/s, as in SPECweb99: after an
//! answer it waits as long as that takes. The benchmark's clients read slowly instead; a server
//! whose answers fit into the client's buffer does not see the difference.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use mio::net::TcpStream;
use mio::{Events, Interest, Poll, Registry, Token};

use super::mix::{Mix, Request};
use crate::handoff::message::PATIENCE;
use crate::handoff::totals::Totals;

/// Of a client, bits each second.
const SPEED: u64 = 400_000;
/// Longest head of an answer.
const HEAD_MAX: usize = 4_096;
/// How long clients ask before they say that they do: kept connections of all ages.
const WARM_UP: Duration = Duration::from_secs(4);
/// Longest wait for events.
const TICK: Duration = Duration::from_millis(100);

/// Asks until `stop` says so. `steady` is called after a while. Answers are added to `totals`.
///
/// # Errors
/// What the system says; an answer that is not as long as its file; nothing for 20 s.
pub fn run(
    address: SocketAddr,
    clients: usize,
    mut mix: Mix,
    steady: impl FnOnce(),
    totals: &Totals,
    stop: &AtomicBool,
) -> io::Result<()> {
    let mut poll = Poll::new()?;
    let mut events = Events::with_capacity(clients);
    let mut buffer = vec![0; 1 << 16];
    let begin = Instant::now();
    let mut steady = Some(steady);
    let (mut seen, mut since) = (0, begin);
    // As if they had asked for long: each waits for what is left of an answer first.
    let mut start = |at| Reverse((begin + duration(mix.remaining()), at));
    let mut due: BinaryHeap<_> = (0..clients).map(&mut start).collect();
    let mut clients: Vec<Option<Connection>> = (0..clients).map(|_| None).collect();
    while !stop.load(Ordering::Acquire) {
        let now = Instant::now();
        while let Some(&Reverse((when, at))) = due.peek()
            && when <= now
        {
            due.pop();
            match &mut clients[at] {
                Some(connection) => connection.ask(mix.request(), now)?,
                none => *none = Some(Connection::new(address, at, &mut mix, poll.registry())?),
            }
        }
        let next = due
            .peek()
            .map(|Reverse((when, _))| when.saturating_duration_since(now));
        match poll.poll(&mut events, Some(next.unwrap_or(TICK).min(TICK))) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            polled => polled?,
        }
        for event in &events {
            let at = event.token().0;
            let Some(connection) = &mut clients[at] else {
                continue; // closed by an event before this one
            };
            match connection.go_on(&mut mix, totals, &mut buffer)? {
                Next::Nothing => continue,
                Next::Ask => due.push(Reverse((connection.due, at))),
                Next::Connect => {
                    due.push(Reverse((connection.due, at)));
                    clients[at] = None;
                }
            }
        }
        let [answers, _] = totals.get();
        if answers > seen {
            (seen, since) = (answers, now);
        } else if now - since > PATIENCE {
            return Err(io::Error::new(io::ErrorKind::TimedOut, "no answers"));
        }
        if answers > 0 && now - begin > WARM_UP {
            steady.take().into_iter().for_each(|steady| steady());
        }
    }
    Ok(())
}

/// How long a client takes for this number of bytes.
fn duration(bytes: u64) -> Duration {
    Duration::from_micros(bytes * 8 * 1_000_000 / SPEED)
}

fn wrong(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

/// What a client does when it is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    /// It waits for the server.
    Nothing,
    Ask,
    Connect,
}

/// Where a connection is.
#[derive(Debug)]
enum Phase {
    Connecting,
    /// The next request is not due.
    Pausing,
    /// The head of an answer is read: this much of it.
    Head(Vec<u8>),
    /// Bytes of the answer that are missing.
    Body(u64),
    /// The server closes it.
    Ending,
}

#[derive(Debug)]
struct Connection {
    stream: TcpStream,
    phase: Phase,
    /// Requests that are not sent yet.
    left: u32,
    /// Bytes of the answer that is awaited.
    expected: u64,
    /// When the client may go on after this answer.
    due: Instant,
}

impl Connection {
    fn new(address: SocketAddr, at: usize, mix: &mut Mix, registry: &Registry) -> io::Result<Self> {
        let mut stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        let interest = Interest::READABLE | Interest::WRITABLE;
        registry.register(&mut stream, Token(at), interest)?;
        Ok(Self {
            stream,
            phase: Phase::Connecting,
            left: mix.connection(),
            expected: 0,
            due: Instant::now(),
        })
    }

    /// Does what can be done now.
    fn go_on(&mut self, mix: &mut Mix, totals: &Totals, buffer: &mut [u8]) -> io::Result<Next> {
        if matches!(self.phase, Phase::Connecting) {
            if let Some(error) = self.stream.take_error()? {
                return Err(error);
            }
            match self.stream.peer_addr() {
                Err(error) if error.kind() == io::ErrorKind::NotConnected => {
                    return Ok(Next::Nothing);
                }
                connected => connected?,
            };
            self.ask(mix.request(), Instant::now())?;
        }
        let mut next = Next::Nothing;
        loop {
            let read = match self.stream.read(buffer) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(next),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                read => read?,
            };
            if read == 0 {
                return match self.phase {
                    Phase::Ending => Ok(Next::Connect),
                    _ => Err(wrong(
                        "the server closed a connection before its last answer",
                    )),
                };
            }
            if self.take(&buffer[..read])? {
                totals.add(self.expected);
                (self.phase, next) = match self.left {
                    0 => (Phase::Ending, Next::Nothing),
                    _ => (Phase::Pausing, Next::Ask),
                };
            }
        }
    }

    /// The last request of a connection says so.
    fn ask(&mut self, request: Request, now: Instant) -> io::Result<()> {
        self.left -= 1;
        self.expected = request.document.bytes();
        self.due = now + duration(self.expected);
        let path = request.path();
        let close = if self.left == 0 {
            "close"
        } else {
            "keep-alive"
        };
        let text = format!("GET {path} HTTP/1.1\r\nHost: lab\r\nConnection: {close}\r\n\r\n");
        self.phase = Phase::Head(Vec::new());
        // Nothing else waits to be sent on this connection.
        match self.stream.write(text.as_bytes())? {
            written if written == text.len() => Ok(()),
            _ => Err(wrong("a request was not sent whole")),
        }
    }

    /// Bytes that have come. True: with them the answer is whole.
    fn take(&mut self, bytes: &[u8]) -> io::Result<bool> {
        let missing = match &mut self.phase {
            Phase::Head(head) => {
                head.extend_from_slice(bytes);
                let end = head.windows(4).position(|part| part == b"\r\n\r\n");
                let Some(end) = end.map(|at| at + 4) else {
                    return match head.len() > HEAD_MAX {
                        true => Err(wrong("the head of an answer is too long")),
                        false => Ok(false),
                    };
                };
                let length = length(&head[..end]).ok_or_else(|| wrong("not an answer of 200"))?;
                if length != self.expected {
                    return Err(wrong("an answer has another length than its file"));
                }
                left(length, head.len() - end)?
            }
            Phase::Body(missing) => left(*missing, bytes.len())?,
            _ => return Err(wrong("bytes without a request")),
        };
        if missing > 0 {
            self.phase = Phase::Body(missing);
        }
        Ok(missing == 0)
    }
}

fn left(missing: u64, read: usize) -> io::Result<u64> {
    let left = missing.checked_sub(read as u64);
    left.ok_or_else(|| wrong("more bytes than the answer has"))
}

/// `Content-Length` of an answer that is a good one.
fn length(head: &[u8]) -> Option<u64> {
    let head = std::str::from_utf8(head).ok()?;
    let mut lines = head.split("\r\n");
    let is_good = lines.next()?.split(' ').nth(1)? == "200";
    let named = lines.find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("content-length").then_some(value)
    });
    named?.trim().parse().ok().filter(|_| is_good)
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader};
    use std::net::TcpListener;

    use super::super::mix::Document;
    use super::*;

    const CLIENTS: usize = 40;

    /// Serves connections until one cannot be accepted; answers are longer by `more`.
    fn serve(listener: &TcpListener, more: usize) {
        std::thread::scope(|scope| {
            while let Ok((stream, _)) = listener.accept() {
                scope.spawn(move || answer_all(stream, more));
            }
        });
    }

    fn answer_all(stream: std::net::TcpStream, more: usize) -> Option<()> {
        let mut lines = BufReader::new(stream.try_clone().ok()?).lines();
        loop {
            let first = lines.next()?.ok()?;
            let path = first.split(' ').nth(1)?.to_owned();
            let dynamic = if path.starts_with("/dynamic") {
                path
            } else {
                format!("/dynamic{path}")
            };
            let bytes = Document::of_dynamic(&dynamic)?.bytes() as usize + more;
            let mut is_last = false;
            while let Some(Ok(line)) = lines
                .next()
                .filter(|line| !matches!(line, Ok(l) if l.is_empty()))
            {
                is_last |= line == "Connection: close";
            }
            let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {bytes}\r\n\r\n");
            (&stream).write_all(head.as_bytes()).ok()?;
            (&stream).write_all(&vec![7; bytes]).ok()?;
            if is_last {
                return None;
            }
        }
    }

    fn run_against(more: usize) -> (io::Result<()>, [u64; 2]) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        std::thread::spawn(move || serve(&listener, more));
        let (totals, stop) = (Totals::default(), AtomicBool::new(false));
        let steady = || stop.store(true, Ordering::Release);
        let outcome = run(address, CLIENTS, Mix::new(1, false), steady, &totals, &stop);
        (outcome, totals.get())
    }

    #[test]
    fn clients_ask_until_they_are_stopped() {
        let (outcome, [answers, bytes]) = run_against(0);
        outcome.unwrap();
        assert!(answers > 100, "{answers}");
        // A few of these may have one of the largest answers.
        let all = WARM_UP.as_secs() * SPEED / 8 * CLIENTS as u64;
        assert!((all / 4..all * 4).contains(&bytes), "{bytes} {all}");
    }

    #[test]
    fn an_answer_of_another_length_is_an_error() {
        let (outcome, counts) = run_against(1);
        assert!(outcome.unwrap_err().to_string().contains("length"));
        assert_eq!(counts, [0, 0]);
    }

    #[test]
    fn lengths_are_those_of_good_answers() {
        assert_eq!(
            length(b"HTTP/1.1 200 OK\r\ncontent-length: 12\r\n\r\n"),
            Some(12)
        );
        for head in [
            "HTTP/1.1 404 Not Found\r\nContent-Length: 12\r\n\r\n",
            "HTTP/1.1 200 OK\r\n\r\n",
            "HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
            "nonsense",
        ] {
            assert_eq!(length(head.as_bytes()), None, "{head}");
        }
    }
}
