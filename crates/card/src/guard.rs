//! The guard: a process beside the card. A socket in repair mode says nothing to its peer, so a
//! card that dies in the middle of a move would leave the peer waiting. The guard has copies of
//! the sockets of the connection that is moving, and ends the move. On the way to the card, the
//! connection goes on in the host as long as the card has no socket, and else ends by a RST, as
//! the card's other connections end. On the way back the guard does what the card has left undone,
//! and gives the program the answer that it waits for.

use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use fairlead_base::{Address, Endpoint};
use fairlead_bpf_loader::LEASE;
use fairlead_handoff::{Cid, Message, Op};
use fairlead_os_ring::shared::{abort_on_close, scratch};
use fairlead_os_tcp::heirs::{divide, leave_terminal};
use fairlead_os_tcp::whole::{Whole, release_rest};
use fairlead_os_tcp::{Identity, pass, repair};

use crate::moves::QUEUE_MOST;

/// How long the guard is waited for, and between two attempts.
const PATIENCE: Duration = Duration::from_millis(200);
const PAUSE: Duration = Duration::from_micros(20);
/// How long the guard waits for the addresses of a socket that the card's end takes with it.
const ADDRESSES: Duration = Duration::from_secs(2);

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

/// What is to be done if the card ends now.
enum Charge {
    /// Nothing.
    Nothing,
    /// This socket of the host's goes on.
    GoesOn(OwnedFd),
    /// This socket of the card's ends by a RST.
    Ends(OwnedFd),
    /// A connection of the card's comes back.
    ComesBack(Back),
}

/// A connection that comes back, and the program that waits for it.
struct Back {
    socket: OwnedFd,
    control: OwnedFd,
    cid: Cid,
    identity: Identity,
    /// What the rings have: bytes that the program has not read, and behind them those that it has
    /// written.
    unread: Vec<u8>,
    unwritten: Vec<u8>,
    made: Option<Made>,
}

/// The host's socket, bytes that it may not have yet, and the number of the first of them.
struct Made {
    socket: OwnedFd,
    first: u32,
    unsent: Vec<u8>,
}

/// Kinds of [`Note`]s.
const SETTLED: u8 = 0;
const GOES_ON: u8 = 1;
const ENDS: u8 = 2;
const COMES_BACK: u8 = 3;
const MADE: u8 = 4;

/// What the card tells the guard, as one message: a kind, numbers, and the connection's ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Note {
    kind: u8,
    numbers: [u32; 2],
    identity: Identity,
}

const NOTE_BYTES: usize = 1 + 8 + 36;
const NOWHERE: Endpoint = Endpoint {
    addr: Address([0; 16]),
    port: 0,
};

impl Note {
    fn of(kind: u8) -> Self {
        let (local, peer) = (NOWHERE, NOWHERE);
        Self {
            kind,
            numbers: [0; 2],
            identity: Identity { local, peer },
        }
    }

    fn encode(&self) -> [u8; NOTE_BYTES] {
        let ends = [self.identity.local, self.identity.peer];
        let ends = ends.iter().flat_map(|end| {
            let port = end.port.to_le_bytes();
            end.addr.0.into_iter().chain(port)
        });
        let numbers = self.numbers.iter().flat_map(|number| number.to_le_bytes());
        let mut bytes = [0; NOTE_BYTES];
        let all = [self.kind].into_iter().chain(numbers).chain(ends);
        bytes.iter_mut().zip(all).for_each(|(to, from)| *to = from);
        bytes
    }

    fn decode(bytes: &[u8; NOTE_BYTES]) -> Self {
        fn part<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
            let part = bytes.get(at..).and_then(|rest| rest.first_chunk());
            part.copied().unwrap_or([0; N])
        }
        let end = |at: usize| Endpoint {
            addr: Address(part(bytes, at)),
            port: u16::from_le_bytes(part(bytes, at + 16)),
        };
        Self {
            kind: bytes[0],
            numbers: [1, 5].map(|at| u32::from_le_bytes(part(bytes, at))),
            identity: Identity {
                local: end(9),
                peer: end(27),
            },
        }
    }
}

/// The card's end.
pub(crate) struct Guard(OwnedFd);

impl Guard {
    /// Begins the process, in the host's network namespace. It ends with this one.
    pub(crate) fn begin() -> io::Result<Self> {
        let (ours, theirs) = pass::pair()?;
        divide(&[theirs.as_raw_fd()], || {
            leave_terminal();
            end(watch(theirs.as_fd()));
        })?;
        Ok(Self(ours))
    }

    /// This socket of the host's is silent, or about to be.
    pub(crate) fn goes_on(&self, socket: BorrowedFd<'_>) -> io::Result<()> {
        self.tell(&Note::of(GOES_ON), &[socket])
    }

    /// This socket of the card's is the one that is silent now.
    pub(crate) fn ends(&self, socket: BorrowedFd<'_>) -> io::Result<()> {
        self.tell(&Note::of(ENDS), &[socket])
    }

    /// This socket of the card's is about to be silent. `control` leads to its program, for which
    /// the connection is `cid`; `unread` and `unwritten` are in its rings.
    pub(crate) fn comes_back(
        &self,
        socket: BorrowedFd<'_>,
        (control, cid): (BorrowedFd<'_>, Cid),
        identity: Identity,
        [unread, unwritten]: [&[u8]; 2],
    ) -> io::Result<()> {
        let note = Note {
            kind: COMES_BACK,
            numbers: [cid.0, unread.len() as u32],
            identity,
        };
        self.tell_with(&note, &[socket, control], &[unread, unwritten].concat())
    }

    /// The host has this socket for it. The card's is not needed any more.
    pub(crate) fn is_made(&self, socket: BorrowedFd<'_>, whole: &Whole) -> io::Result<()> {
        let mut note = Note::of(MADE);
        note.numbers[0] = whole.first_unsent();
        self.tell_with(&note, &[socket], &whole.unsent)
    }

    /// The move is over, or cannot be undone any more.
    pub(crate) fn settled(&self) {
        // A guard that has gone has no copy.
        let _ = self.tell(&Note::of(SETTLED), &[]);
    }

    /// Bytes are seldom there; they go in a file.
    fn tell_with(&self, note: &Note, sockets: &[BorrowedFd<'_>], bytes: &[u8]) -> io::Result<()> {
        if bytes.is_empty() {
            return self.tell(note, sockets);
        }
        let mut file = File::from(scratch()?);
        file.write_all(bytes)?;
        self.tell(note, &[sockets, &[file.as_fd()]].concat())
    }

    /// The kernel queues few messages, and the guard may be waiting for a processor.
    fn tell(&self, note: &Note, sockets: &[BorrowedFd<'_>]) -> io::Result<()> {
        let until = Instant::now() + PATIENCE;
        loop {
            match pass::send(self.0.as_fd(), &note.encode(), sockets) {
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

/// The guard's life: what is left when the card ends.
fn watch(card: BorrowedFd<'_>) -> Charge {
    const LONG: Duration = Duration::from_secs(3_600);
    let mut charge = Charge::Nothing;
    loop {
        let mut bytes = [0; NOTE_BYTES];
        match pass::receive(card, &mut bytes) {
            Ok(None) if pass::wait_for(card, LONG).is_ok() => {}
            Ok(Some((NOTE_BYTES, sockets))) => {
                charge = charge.after(Note::decode(&bytes), sockets.into_iter());
            }
            _ => return charge,
        }
    }
}

fn content(file: Option<OwnedFd>) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    if let Some(mut file) = file.map(File::from) {
        file.rewind()?;
        file.read_to_end(&mut bytes)?;
    }
    Ok(bytes)
}

impl Charge {
    /// What is to be done after this note.
    fn after(self, note: Note, mut beside: impl Iterator<Item = OwnedFd>) -> Self {
        let Some(socket) = beside.next() else {
            return Self::Nothing;
        };
        match (note.kind, self) {
            (GOES_ON, _) => Self::GoesOn(socket),
            (ENDS, _) => Self::Ends(socket),
            (COMES_BACK, _) => {
                let (Some(control), Ok(mut unread)) = (beside.next(), content(beside.next()))
                else {
                    // Without its bytes the stream would have a hole.
                    return Self::Ends(socket);
                };
                let [cid, of_unread] = note.numbers;
                let unwritten = unread.split_off(unread.len().min(of_unread as usize));
                Self::ComesBack(Back {
                    socket,
                    control,
                    cid: Cid(cid),
                    identity: note.identity,
                    unread,
                    unwritten,
                    made: None,
                })
            }
            (MADE, Self::ComesBack(back)) => match content(beside.next()) {
                Ok(unsent) => Self::ComesBack(Back {
                    made: Some(Made {
                        socket,
                        first: note.numbers[0],
                        unsent,
                    }),
                    ..back
                }),
                Err(_) => Self::Ends(socket),
            },
            _ => Self::Nothing,
        }
    }
}

/// Does what is to be done.
fn end(charge: Charge) {
    match charge {
        Charge::Nothing => {}
        Charge::GoesOn(socket) => drop(repair::leave(socket.as_fd(), false)),
        Charge::Ends(socket) => reset(&socket),
        Charge::ComesBack(back) => {
            if back.finish().is_err() {
                reset(&back.socket);
                if let Some(made) = &back.made {
                    reset(&made.socket);
                }
            }
        }
    }
}

fn reset(socket: &OwnedFd) {
    let _ = abort_on_close(socket.as_fd());
    let _ = repair::leave(socket.as_fd(), false);
}

impl Back {
    /// Brings the connection to the host, as far as that is not done yet, and to its program.
    fn finish(&self) -> io::Result<()> {
        let socket = match &self.made {
            Some(made) => {
                let _ = repair::disconnect(self.socket.as_fd());
                if repair::is_silent(made.socket.as_fd()) {
                    // Nothing gets through before.
                    std::thread::sleep(LEASE);
                }
                release_rest(made.socket.as_fd(), made.first, &made.unsent)?;
                made.socket.try_clone()?
            }
            None => self.make()?,
        };
        let answer = Message::done(self.cid, Op::Restore, u64::from(self.cid.0));
        pass::send(self.control.as_fd(), &answer.encode(), &[socket.as_fd()])
    }

    /// As the card would have. It holds packets up for as long as its lease lasts.
    fn make(&self) -> io::Result<OwnedFd> {
        repair::enter(self.socket.as_fd())?;
        let until = Instant::now() + ADDRESSES;
        let (socket, whole) = loop {
            let whole = Whole::export(self.socket.as_fd(), self.identity, QUEUE_MOST);
            let mut whole = whole.map_err(|_| io::ErrorKind::Other)?;
            whole.add(&self.unread, &self.unwritten);
            match whole.restore() {
                Err(error) if error.kind() == io::ErrorKind::AddrNotAvailable => {
                    if Instant::now() > until {
                        return Err(error);
                    }
                    std::thread::sleep(PAUSE);
                }
                other => break (other?, whole),
            }
        };
        repair::disconnect(self.socket.as_fd())?;
        std::thread::sleep(LEASE);
        whole.release(socket.as_fd())?;
        Ok(socket)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notes_say_what_was_written() {
        let end = |last, port| Endpoint {
            addr: Address::v4([10, 0, 0, last]),
            port,
        };
        let note = Note {
            kind: COMES_BACK,
            numbers: [0x0102_0304, 5],
            identity: Identity {
                local: end(1, 80),
                peer: end(2, 65_535),
            },
        };
        assert_eq!(Note::decode(&note.encode()), note);
    }
}
