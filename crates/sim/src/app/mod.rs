//! What runs on the hosts: clients that ask, servers that answer, both checking every byte.

mod client;
mod hello;
mod http;
mod proxy;
mod server;

use core::time::Duration;

use fairlead_base::{Endpoint, Instant};
use fairlead_splice::config::ProxyVersion;
use smoltcp::socket::tcp;

use crate::oracle::{Ledger, Role};

pub(crate) use client::{ClientApp, ClientEnd};
pub use hello::client_hello;
pub(crate) use hello::{hello_len, hello_token};
pub use http::http_request;
pub(crate) use http::{Reply, page_body};
pub(crate) use server::ServerApp;

/// What is spoken on a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dialect {
    /// HTTP/1.
    Http,
    /// A TLS ClientHello, then the server's name in a line, then an echo of all that is sent.
    Tls,
    /// An eight-byte token, then as TLS. With `greeting`, the server's name comes at once, before
    /// the client has said anything, and the client waits for it.
    Raw {
        /// The server speaks first.
        greeting: bool,
    },
}

/// Bytes sent at once, and the pause after them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pace {
    /// Bytes at once, at least 1.
    pub bytes: usize,
    /// The pause.
    pub pause: Duration,
}

/// A client's TCP and how it uses it.
#[derive(Clone, Debug)]
pub struct ClientPlan {
    /// When it connects.
    pub start: Instant,
    /// Only after this client (by its number in the world) is gone, from the same port.
    pub after: Option<usize>,
    /// Whom it connects to.
    pub target: Endpoint,
    /// Its own port; the next free one when `None`.
    pub port: Option<u16>,
    /// Names it in its stream; no two clients of a world share one.
    pub token: u64,
    /// What it speaks.
    pub dialect: Dialect,
    /// What it says.
    pub turns: Vec<Turn>,
    /// The first bytes are sent at another pace than the rest.
    pub first_bytes: usize,
    /// The pace of the first bytes.
    pub first_pace: Option<Pace>,
    /// The pace of the rest.
    pub pace: Option<Pace>,
    /// How fast it reads.
    pub read_pace: Option<Pace>,
    /// How it ends.
    pub finish: Finish,
    /// How long it waits for everything, from its start; then it resets the connection.
    pub patience: Duration,
    /// The expected outcome.
    pub expect: Expect,
    /// Its socket.
    pub socket: SocketPlan,
}

/// Bytes to send at once, after some replies are complete.
#[derive(Clone, Debug, Default)]
pub struct Turn {
    /// What is sent.
    pub bytes: Vec<u8>,
    /// Complete replies to wait for before.
    pub replies_before: usize,
    /// The requests in these bytes (HTTP).
    pub requests: Vec<RequestPlan>,
}

/// What the reply to a request must be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestPlan {
    /// The request's number on its connection.
    pub number: usize,
    /// Bytes of the reply's body.
    pub reply_bytes: usize,
    /// The reply has no body, whatever its length field says.
    pub head_only: bool,
}

/// How a client ends its connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finish {
    /// It closes when it has every reply.
    Close,
    /// It closes its side as soon as everything is sent, and reads on.
    HalfClose,
    /// It waits for the server to close.
    WaitForServer,
    /// It resets the connection after sending this many bytes.
    AbortAfterSent(usize),
    /// It resets the connection after receiving this many bytes.
    AbortAfterReceived(usize),
    /// It resets the connection so long after its start.
    AbortAfter(Duration),
}

/// Expected outcome of a client's connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Expect {
    /// One of these servers answers everything.
    Server(Vec<String>),
    /// The switch answers with one of these HTTP statuses.
    Status(Vec<u16>),
    /// The switch answers with a TLS alert.
    Alert,
    /// The connection is reset or refused without an answer.
    Refused,
    /// Any outcome, as long as every byte is correct.
    Anything,
}

/// A server's TCP and how it behaves.
#[derive(Clone, Debug)]
pub struct ServerPlan {
    /// Its name, which it sends.
    pub name: String,
    /// Where it listens.
    pub endpoint: Endpoint,
    /// What it speaks.
    pub dialect: Dialect,
    /// The PROXY protocol header it demands first.
    pub proxy: Option<ProxyVersion>,
    /// How it behaves.
    pub manner: Manner,
    /// Its sockets.
    pub socket: SocketPlan,
}

/// How a server behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Manner {
    /// As it should.
    Willing,
    /// Nobody listens: connections are refused.
    Refusing,
    /// No answer at all.
    Silent,
    /// It closes its side after this many bytes, complete or not.
    CloseAfter(usize),
    /// It resets the connection after this many bytes.
    AbortAfter(usize),
    /// It reads slowly.
    Slow(Pace),
}

/// A socket's settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SocketPlan {
    /// Receive buffer, bytes; smoltcp derives its window scale from it.
    pub rx_bytes: usize,
    /// Send buffer, bytes.
    pub tx_bytes: usize,
    /// Nagle's algorithm (RFC 896).
    pub nagle: bool,
    /// How long an acknowledgement may wait.
    pub ack_delay: Option<Duration>,
    /// Interval of keep-alive probes.
    pub keep_alive: Option<Duration>,
    /// How long it bears with a peer that does not answer.
    pub timeout: Duration,
}

impl Default for SocketPlan {
    fn default() -> Self {
        Self {
            rx_bytes: 65_535,
            tx_bytes: 65_535,
            nagle: true,
            ack_delay: Some(Duration::from_millis(10)),
            keep_alive: Some(Duration::from_secs(20)),
            timeout: Duration::from_secs(150),
        }
    }
}

impl SocketPlan {
    pub(crate) fn socket(&self, timestamps: Option<fn() -> u32>) -> tcp::Socket<'static> {
        let buffer = |bytes| tcp::SocketBuffer::new(vec![0; bytes]);
        let mut socket = tcp::Socket::new(buffer(self.rx_bytes), buffer(self.tx_bytes));
        socket.set_nagle_enabled(self.nagle);
        socket.set_ack_delay(self.ack_delay.map(Into::into));
        socket.set_keep_alive(self.keep_alive.map(Into::into));
        socket.set_timeout(Some(self.timeout.into()));
        socket.set_tsval_generator(timestamps);
        socket
    }
}

/// An application's handle of its connection: all data is recorded in the ledger.
pub(crate) struct Line<'a> {
    pub(crate) now: Instant,
    pub(crate) role: Role,
    pub(crate) socket: &'a mut tcp::Socket<'static>,
    pub(crate) ledger: &'a mut Ledger,
    /// The socket was used: its host must look at it again.
    pub(crate) touched: bool,
}

impl Line<'_> {
    /// Sends what fits; says how much that was.
    pub(crate) fn write(&mut self, bytes: &[u8]) -> usize {
        if bytes.is_empty() || !self.socket.can_send() {
            return 0;
        }
        let taken = self.socket.send_slice(bytes).unwrap_or(0);
        self.ledger
            .party_mut(self.role)
            .sent
            .extend_from_slice(&bytes[..taken]);
        self.touched |= taken > 0;
        taken
    }

    /// Receives up to `most` bytes; says how many.
    pub(crate) fn read(&mut self, most: usize) -> usize {
        let mut total = 0;
        while total < most && self.socket.can_recv() {
            let (role, ledger) = (self.role, &mut *self.ledger);
            let taken = self.socket.recv(|bytes| {
                let len = bytes.len().min(most - total);
                ledger.heard(role, &bytes[..len]);
                (len, len)
            });
            match taken {
                Ok(taken) if taken > 0 => total += taken,
                _ => break,
            }
        }
        self.touched |= total > 0;
        total
    }

    /// All bytes received so far.
    pub(crate) fn received(&self) -> &[u8] {
        &self.ledger.party(self.role).received
    }

    /// True when the other side has closed and everything was read.
    pub(crate) fn at_end(&self) -> bool {
        use tcp::State::{CloseWait, Closing, LastAck, TimeWait};
        self.socket.recv_queue() == 0
            && matches!(
                self.socket.state(),
                CloseWait | Closing | LastAck | TimeWait
            )
    }

    /// Notes the end of the stream, once.
    pub(crate) fn note_end(&mut self) -> bool {
        if !self.at_end() {
            return false;
        }
        if !self.ledger.party(self.role).eof {
            self.ledger.ended(self.role);
        }
        true
    }

    /// Closes the sending side.
    pub(crate) fn close(&mut self) {
        if !core::mem::replace(&mut self.ledger.party_mut(self.role).closed, true) {
            self.socket.close();
            self.touched = true;
        }
    }

    /// Resets the connection.
    pub(crate) fn abort(&mut self) {
        self.ledger.party_mut(self.role).aborted = true;
        self.socket.abort();
        self.touched = true;
    }
}

/// A pace being kept.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Gate {
    open_at: Instant,
}

impl Gate {
    /// Bytes that may pass now, of `most`.
    pub(crate) fn allows(&self, now: Instant, pace: Option<Pace>, most: usize) -> usize {
        match pace {
            None => most,
            Some(_) if now < self.open_at => 0,
            Some(pace) => most.min(pace.bytes.max(1)),
        }
    }

    /// Number of bytes passed.
    pub(crate) fn passed(&mut self, now: Instant, pace: Option<Pace>, bytes: usize) {
        if let Some(pace) = pace
            && bytes > 0
        {
            self.open_at = now + pace.pause;
        }
    }

    /// When to look again, if the gate is what keeps bytes back.
    pub(crate) fn wake(&self, now: Instant, pace: Option<Pace>) -> Option<Instant> {
        (pace.is_some() && self.open_at > now).then_some(self.open_at)
    }
}

/// Seeds of the bodies that a client and its server exchange, by token and request.
pub(crate) fn body_seed(token: u64, number: usize, reply: bool) -> u64 {
    token.wrapping_mul(0xD6E8_FEB8_6659_FD93) ^ ((number as u64) << 1 | u64::from(reply))
}

/// The earlier of two wake-ups.
pub(crate) fn sooner(one: Option<Instant>, other: Option<Instant>) -> Option<Instant> {
    match (one, other) {
        (Some(one), Some(other)) => Some(one.min(other)),
        (one, other) => one.or(other),
    }
}
