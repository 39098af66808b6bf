//! The guard: a process beside the card. A socket in repair mode says nothing to its peer, so a
//! card that dies in the middle of a move would leave the peer waiting. The guard has a copy of the
//! socket that is moving, and ends the move: a connection of the host's goes on there, and one that
//! was on the card ends by a RST, as the card's other connections end.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use fairlead_handoff::message::Kind;
use fairlead_handoff::{Body, Cid, Command, MESSAGE_BYTES, Message, Op};
use fairlead_os_ring::shared::abort_on_close;
use fairlead_os_tcp::heirs::{divide, leave_terminal};
use fairlead_os_tcp::{pass, repair};

/// How long the guard is waited for, and between two attempts.
const PATIENCE: Duration = Duration::from_millis(200);
const PAUSE: Duration = Duration::from_micros(20);

/// A moment of a move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// To the card: packets are held.
    ToCardLocked,
    /// To the card: the host's socket is silent.
    ToCardSilent,
    /// To the card: the card has a socket, too.
    ToCardMade,
    /// To the card: the host has none any more.
    ToCardForgotten,
    /// To the card: the connection is there. The program does not know yet.
    ToCardReleased,
    /// Back: packets are held.
    BackLocked,
    /// Back: the card's socket is silent.
    BackSilent,
    /// Back: the host has a socket, too.
    BackMade,
    /// Back: the card has none any more.
    BackForgotten,
    /// Back: the connection is there. The program does not have it yet.
    BackReleased,
}

impl Step {
    /// All of them.
    pub const ALL: [Self; 10] = [
        Self::ToCardLocked,
        Self::ToCardSilent,
        Self::ToCardMade,
        Self::ToCardForgotten,
        Self::ToCardReleased,
        Self::BackLocked,
        Self::BackSilent,
        Self::BackMade,
        Self::BackForgotten,
        Self::BackReleased,
    ];
}

/// The card's end.
pub(crate) struct Guard(OwnedFd);

impl Guard {
    /// Begins the process. It ends with this one.
    pub(crate) fn begin() -> io::Result<Self> {
        let (ours, theirs) = pass::pair()?;
        divide(&[theirs.as_raw_fd()], || {
            leave_terminal();
            watch(theirs.as_fd());
        })?;
        Ok(Self(ours))
    }

    /// This socket is silent, or about to be, and no other. Before a handoff it goes on in the end,
    /// before a restore it is reset.
    pub(crate) fn takes(&self, op: Op, socket: BorrowedFd<'_>) -> io::Result<()> {
        let command = match op {
            Op::Restore => Command::Restore { wait_ms: 0 },
            _ => Command::Handoff {
                kind: Kind::Single,
                unwritten: [0; 2],
            },
        };
        self.tell(Message::command(Cid(0), command), &[socket])
    }

    /// The move is over, or cannot be undone any more.
    pub(crate) fn settled(&self) {
        // A guard that has gone has no copy.
        let _ = self.tell(Message::done(Cid(0), Op::Handoff, 0), &[]);
    }

    /// The kernel queues few messages, and the guard may be waiting for a processor.
    fn tell(&self, message: Message, sockets: &[BorrowedFd<'_>]) -> io::Result<()> {
        let until = Instant::now() + PATIENCE;
        loop {
            match pass::send(self.0.as_fd(), &message.encode(), sockets) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    if Instant::now() > until {
                        return Err(error);
                    }
                    std::thread::sleep(PAUSE);
                }
                other => return other,
            }
        }
    }
}

/// The guard's life.
fn watch(card: BorrowedFd<'_>) {
    const LONG: Duration = Duration::from_secs(3_600);
    let mut moving: Option<(Op, OwnedFd)> = None;
    loop {
        let mut bytes = [0; MESSAGE_BYTES];
        match pass::receive(card, &mut bytes) {
            Ok(None) if pass::wait_for(card, LONG).is_ok() => {}
            Ok(Some((MESSAGE_BYTES, mut sockets))) => {
                let message = Message::decode(&bytes);
                moving = match (message.map(|message| message.body), sockets.pop()) {
                    (Ok(Body::Command(command)), Some(socket)) => Some((command.op(), socket)),
                    _ => None,
                };
            }
            _ => break,
        }
    }
    if let Some((op, socket)) = moving {
        if op == Op::Restore {
            let _ = abort_on_close(socket.as_fd());
        }
        let _ = repair::leave(socket.as_fd(), false);
    }
}
