//! The connections to cards, and their command rings.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use fairlead_handoff::message::Resource;
use fairlead_handoff::{Body, Cid, Command, MESSAGE_BYTES, Message};
use fairlead_offload::layout::{COMMANDS, FILES, head};
use fairlead_os_ring::{Doorbell, Shared};
use fairlead_os_tcp::pass;
use libc::c_int;

use crate::reasons;
use crate::settings::settings;
use crate::table::lock;

/// Until the card is looked for again.
const AGAIN: Duration = Duration::from_secs(1);
/// How long a card may take to say that it is there.
const GREETING: Duration = Duration::from_secs(5);
/// How long an answer may take. A card that waits for a processor must not be taken for dead: it
/// would have the connection, and the program would not know.
const PATIENCE: Duration = Duration::from_secs(30);

/// A file that the card has, by device and inode.
pub(crate) type FileName = (u64, u64);

/// The connection to a card.
pub(crate) struct Channel {
    control: Mutex<OwnedFd>,
    control_fd: c_int,
    doorbell: Doorbell,
    pub(crate) memory: Shared,
    written: Mutex<u32>,
    is_dead: AtomicBool,
    pub(crate) files: Mutex<Vec<FileName>>,
}

/// Cards at most; more are passed over.
pub(crate) const CARDS: usize = 8;

/// A card that may be there.
struct Known {
    channel: Option<Arc<Channel>>,
    /// When it was looked for.
    tried: Option<Instant>,
    /// A thread is looking for it.
    is_sought: bool,
}

const UNKNOWN: Known = Known {
    channel: None,
    tried: None,
    is_sought: false,
};

impl Known {
    /// The connection, as long as the card lives.
    fn open(&self) -> Option<&Arc<Channel>> {
        self.channel.as_ref().filter(|channel| !channel.is_dead())
    }

    /// It is time to look for it.
    fn is_due(&self) -> bool {
        let is_early = |tried: Instant| tried.elapsed() < AGAIN;
        self.open().is_none() && !self.is_sought && !self.tried.is_some_and(is_early)
    }
}

struct Current {
    cards: [Known; CARDS],
    process: u32,
}

static CURRENT: Mutex<Current> = Mutex::new(Current {
    cards: [UNKNOWN; CARDS],
    process: 0,
});

/// The cards as this process knows them. One that was forked knows none.
fn current() -> MutexGuard<'static, Current> {
    let mut current = lock(&CURRENT);
    let process = std::process::id();
    if current.process != process {
        if current.process != 0 {
            reasons::forget();
        }
        *current = Current {
            process,
            cards: [UNKNOWN; CARDS],
        };
    }
    current
}

/// The cards that are there, of those that are set.
pub(crate) fn cards() -> Vec<Arc<Channel>> {
    let current = current();
    current
        .cards
        .iter()
        .filter_map(Known::open)
        .cloned()
        .collect()
}

/// True if a card that is not there is to be looked for.
pub(crate) fn are_due() -> bool {
    let all = settings().sockets.len().min(CARDS);
    current().cards[..all].iter().any(Known::is_due)
}

/// Looks for cards that are not there. One that stands still is waited for.
pub(crate) fn look_for_cards() {
    for (at, socket) in settings().sockets.iter().enumerate().take(CARDS) {
        let mut before = current();
        if !before.cards[at].is_due() {
            continue;
        }
        before.cards[at].is_sought = true;
        drop(before);
        let found = Channel::open(socket).ok().map(Arc::new);
        if let Some(channel) = &found {
            reasons::tell(channel);
        }
        current().cards[at] = Known {
            channel: found,
            tried: Some(Instant::now()),
            is_sought: false,
        };
    }
}

/// True for descriptors of the library's own, which a program does not close.
pub(crate) fn is_ours(fd: c_int) -> bool {
    let Ok(current) = CURRENT.try_lock() else {
        return false;
    };
    let ours = |channel: &Arc<Channel>| {
        [
            channel.control_fd,
            channel.doorbell.as_fd().as_raw_fd(),
            channel.memory.file().as_raw_fd(),
        ]
        .contains(&fd)
    };
    let mut channels = current.cards.iter().filter_map(|one| one.channel.as_ref());
    current.process == std::process::id() && channels.any(ours)
}

impl Channel {
    fn open(socket: &std::path::Path) -> io::Result<Self> {
        let control = pass::connect(socket)?;
        let mut bytes = [0; MESSAGE_BYTES];
        let refused = || io::Error::from(io::ErrorKind::InvalidData);
        if !pass::wait_for(control.as_fd(), GREETING)? {
            return Err(io::ErrorKind::TimedOut.into());
        }
        let (_, both) = pass::receive(control.as_fd(), &mut bytes)?.ok_or_else(refused)?;
        let message = Message::decode(&bytes).map_err(|_| refused())?;
        let Body::Command(Command::OsResource {
            resource: Resource::Lines,
            ..
        }) = message.body
        else {
            return Err(refused());
        };
        let [memory, doorbell]: [OwnedFd; 2] = both.try_into().map_err(|_| refused())?;
        Ok(Self {
            control_fd: control.as_raw_fd(),
            control: Mutex::new(control),
            doorbell: Doorbell::of(doorbell),
            memory: Shared::map(memory)?,
            written: Mutex::new(0),
            is_dead: AtomicBool::new(false),
            files: Mutex::new(Vec::with_capacity(usize::from(FILES))),
        })
    }

    /// The card has gone.
    pub(crate) fn is_dead(&self) -> bool {
        self.is_dead.load(Ordering::Acquire)
    }

    pub(crate) fn die(&self) {
        self.is_dead.store(true, Ordering::Release);
    }

    /// Asks the kernel whether the card is still there.
    pub(crate) fn look(&self) -> bool {
        let mut one = libc::pollfd {
            fd: self.control_fd,
            events: libc::POLLRDHUP,
            revents: 0,
        };
        // SAFETY: one structure.
        let ended = unsafe { libc::poll(&raw mut one, 1, 0) } != 0;
        if ended {
            self.die();
        }
        !ended
    }

    /// How many more connections the card takes.
    pub(crate) fn room(&self) -> u32 {
        self.memory.word(head::ROOM).load(Ordering::Acquire)
    }

    /// How often the operator has taken back what he gave.
    pub(crate) fn takes(&self) -> u32 {
        self.memory.word(head::TAKES).load(Ordering::Acquire)
    }

    /// Puts a command into the ring, and wakes the card if it sleeps.
    pub(crate) fn post(&self, cid: Cid, command: Command) {
        let bytes = Message::command(cid, command).encode();
        let mut written = lock(&self.written);
        let taken = self.memory.word(head::TAKEN);
        let began = Instant::now();
        while written.wrapping_sub(taken.load(Ordering::Acquire)) >= COMMANDS {
            self.doorbell.ring();
            if self.is_dead() || began.elapsed() > PATIENCE {
                self.die();
                return;
            }
            std::thread::sleep(Duration::from_micros(20));
        }
        self.memory.put_command(*written, &bytes);
        *written = written.wrapping_add(1);
        let word = self.memory.word(head::WRITTEN);
        word.store(*written, Ordering::Release);
        drop(written);
        fence(Ordering::SeqCst);
        let asleep = self.memory.word(head::ASLEEP);
        if asleep.load(Ordering::SeqCst) != 0 && asleep.swap(0, Ordering::SeqCst) != 0 {
            let rung = self.memory.word(head::RUNG);
            rung.fetch_add(1, Ordering::Relaxed);
            self.doorbell.ring();
        }
    }

    /// Sends a command with descriptors, and waits for the answer.
    pub(crate) fn ask(
        &self,
        cid: Cid,
        command: Command,
        beside: &[BorrowedFd<'_>],
    ) -> io::Result<(Body, Vec<OwnedFd>)> {
        let control = lock(&self.control);
        let outcome = (|| {
            let bytes = Message::command(cid, command).encode();
            pass::send(control.as_fd(), &bytes, beside)?;
            let gone = || io::Error::from(io::ErrorKind::ConnectionReset);
            let until = Instant::now() + PATIENCE;
            // A signal ends a wait early.
            while !pass::wait_for(control.as_fd(), PATIENCE)? {
                if Instant::now() > until {
                    return Err(io::ErrorKind::TimedOut.into());
                }
            }
            let mut bytes = [0; MESSAGE_BYTES];
            let (got, descriptors) =
                pass::receive(control.as_fd(), &mut bytes)?.ok_or_else(gone)?;
            let message = Message::decode(&bytes)
                .ok()
                .filter(|_| got == MESSAGE_BYTES);
            let message = message.ok_or_else(gone)?;
            match message.body {
                // Of a card that died in the middle of a move, its guard may say something twice.
                Body::Done(op, _) | Body::Refused(op, _)
                    if (message.cid, op) == (cid, command.op()) =>
                {
                    Ok((message.body, descriptors))
                }
                _ => Err(gone()),
            }
        })();
        if outcome.is_err() {
            self.die();
        }
        outcome
    }
}

/// True if this process, and not one that shares its memory, has a card.
pub(crate) fn is_here() -> bool {
    let current = lock(&CURRENT);
    let has_any = current.cards.iter().any(|one| one.channel.is_some());
    current.process == std::process::id() && has_any
}
