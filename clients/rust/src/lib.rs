//! For proxies: hand pairs of connections off to Fairlead, and take them back.
//!
//! A proxy that only copies between two connections hands both sockets to a [`Carrier`]. From then
//! on Fairlead forwards their packets, also when the proxy has ended. What the proxy must do before
//! is to write all that it has read, and to read no more.
//!
//! ```no_run
//! use std::io;
//! use std::net::TcpStream;
//!
//! use fairlead_client::Carrier;
//!
//! fn hand_off(client: &TcpStream, server: &TcpStream) -> io::Result<()> {
//!     let mut carrier = Carrier::connect("/run/fairlead/edge.adopt".as_ref())?;
//!     match carrier.adopt(client, server)? {
//!         Ok(cid) => println!("{cid:?} needs this process no more"),
//!         Err(reason) => println!("go on copying: {}", reason.meaning()),
//!     }
//!     Ok(())
//! }
//! ```
//!
//! `docs/handoff.md` describes the messages; `clients/c/fairlead_handoff.h` is the same for C.
#![forbid(unsafe_code)]

use std::collections::VecDeque;
use std::io;
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use fairlead_handoff::message::{Cause, Control, Happening, Kind, Resource};
use fairlead_handoff::{Body, Command, MESSAGE_BYTES, Message, Op};
pub use fairlead_handoff::{Cid, Refusal, Side};
use fairlead_os_tcp::pass;
pub use fairlead_os_tcp::pass::wait_for_any;

/// How long Fairlead may take for an answer, besides what it is asked to wait.
const PATIENCE: Duration = Duration::from_secs(5);

/// Events that nobody has fetched, at most.
const EVENTS_MAX: usize = 65_536;

/// What Fairlead reports by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A direction of a handed-off connection has ended; there are two of these for each.
    Ended {
        /// The connection.
        cid: Cid,
        /// How.
        how: Happening,
        /// The end that the direction begins at.
        from: Side,
        /// Bytes in this direction since the handoff.
        bytes: u64,
    },
    /// Fairlead has room for this number of connections more: on a change of an eighth, and when
    /// an operator asks proxies to hand connections off (`fairlead handoff take`).
    Room {
        /// Connections.
        lines: u64,
    },
    /// Take this connection back, by [`Carrier::give_back`].
    WantedBack {
        /// The connection.
        cid: Cid,
        /// Why.
        cause: Cause,
    },
}

/// A connection to Fairlead. Connections that were handed off over it go on without it.
#[derive(Debug)]
pub struct Carrier {
    link: OwnedFd,
    /// The number of the next handoff.
    next: u32,
    events: VecDeque<Event>,
}

impl Carrier {
    /// Connects to the socket that `adopt_socket` names.
    ///
    /// # Errors
    /// What the system says: EACCES without the right to use it.
    pub fn connect(path: &Path) -> io::Result<Self> {
        Ok(Self {
            link: pass::connect(path)?,
            next: 0,
            events: VecDeque::new(),
        })
    }

    /// Hands two connections off: the first is a client's, the second leads to a server. All that
    /// was read from one must have been written to the other. The sockets are of no use afterwards
    /// and can be closed; if it is refused, they are as before.
    ///
    /// # Errors
    /// Fairlead does not answer. The sockets should be closed then.
    pub fn adopt(
        &mut self,
        client: impl AsFd,
        server: impl AsFd,
    ) -> io::Result<Result<Cid, Refusal>> {
        let kind = Kind::Pair;
        let unwritten = [0; 2];
        let command = Command::Handoff { kind, unwritten };
        let own = Cid(self.next);
        self.next = self.next.wrapping_add(1);
        let sockets = [client.as_fd(), server.as_fd()];
        let answer = self.ask(own, command, &sockets, PATIENCE)?;
        Ok(answer.map(|(cid, _)| Cid(cid as u32)))
    }

    /// Takes a connection back: two connected sockets, the client's first. Fairlead waits up to
    /// `wait` for a moment at which nothing is in flight.
    ///
    /// # Errors
    /// Fairlead does not answer, or sends no sockets.
    pub fn give_back(
        &mut self,
        cid: Cid,
        wait: Duration,
    ) -> io::Result<Result<(TcpStream, TcpStream), Refusal>> {
        let wait_ms = wait.as_millis().min(u128::from(u16::MAX)) as u16;
        let command = Command::Restore { wait_ms };
        let answer = self.ask(cid, command, &[], PATIENCE + wait)?;
        let sockets = match answer {
            Ok((_, sockets)) => sockets,
            Err(reason) => return Ok(Err(reason)),
        };
        let sockets = <[OwnedFd; 2]>::try_from(sockets);
        let [client, server] = sockets.map_err(|_| io::Error::other("no sockets came back"))?;
        Ok(Ok((client.into(), server.into())))
    }

    /// Ends a connection by a RST to both ends.
    ///
    /// # Errors
    /// Fairlead does not answer.
    pub fn abort(&mut self, cid: Cid) -> io::Result<Result<(), Refusal>> {
        let command = Command::Control {
            control: Control::Abort,
            argument: 0,
        };
        let answer = self.ask(cid, command, &[], PATIENCE)?;
        Ok(answer.map(|_| ()))
    }

    /// The next event, if one comes in this time.
    ///
    /// # Errors
    /// Fairlead has gone. Its connections may go on.
    pub fn event(&mut self, patience: Duration) -> io::Result<Option<Event>> {
        let until = Instant::now() + patience;
        while self.events.is_empty() {
            let left = until.saturating_duration_since(Instant::now());
            if !pass::wait_for(self.link.as_fd(), left)? {
                return Ok(None);
            }
            if let Some((message, _)) = self.read()? {
                self.note(&message)?;
            }
        }
        Ok(self.events.pop_front())
    }

    /// Gives a command, and waits for its answer.
    fn ask(
        &mut self,
        cid: Cid,
        command: Command,
        sockets: &[BorrowedFd<'_>],
        patience: Duration,
    ) -> io::Result<Result<(u64, Vec<OwnedFd>), Refusal>> {
        let bytes = Message::command(cid, command).encode();
        pass::send(self.link.as_fd(), &bytes, sockets)?;
        let until = Instant::now() + patience;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            if !pass::wait_for(self.link.as_fd(), left)? {
                return Err(io::ErrorKind::TimedOut.into());
            }
            let Some((message, descriptors)) = self.read()? else {
                continue;
            };
            let is_answer = |op: Op| op == command.op() && message.cid == cid;
            match message.body {
                Body::Done(op, value) if is_answer(op) => return Ok(Ok((value, descriptors))),
                Body::Refused(op, reason) if is_answer(op) => return Ok(Err(reason)),
                _ => self.note(&message)?,
            }
        }
    }

    fn read(&self) -> io::Result<Option<(Message, Vec<OwnedFd>)>> {
        let mut bytes = [0; MESSAGE_BYTES];
        let Some((length, descriptors)) = pass::receive(self.link.as_fd(), &mut bytes)? else {
            return Ok(None);
        };
        if length == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let message = Message::decode(&bytes).map_err(io::Error::other)?;
        Ok(Some((message, descriptors)))
    }

    /// Keeps what nobody has asked for.
    fn note(&mut self, message: &Message) -> io::Result<()> {
        let cid = message.cid;
        let event = match message.body {
            Body::Command(Command::OsControl {
                happening: how,
                from,
                bytes,
            }) => Event::Ended {
                cid,
                how,
                from,
                bytes,
            },
            Body::Command(Command::OsRestore { cause, .. }) => Event::WantedBack { cid, cause },
            Body::Command(Command::OsResource {
                resource: Resource::Lines,
                level: lines,
            }) => Event::Room { lines },
            _ => return Ok(()), // of later versions, or an answer that came too late
        };
        if self.events.len() >= EVENTS_MAX {
            return Err(io::Error::other("too many events that nobody has fetched"));
        }
        self.events.push_back(event);
        Ok(())
    }
}
