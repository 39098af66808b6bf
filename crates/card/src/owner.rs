//! One program: its memory, its commands, its connections.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{Ordering, fence};
use std::time::Instant;

use fairlead_handoff::message::{Cause, Control};
use fairlead_handoff::{Body, Cid, Command, Message, Op};
use fairlead_offload::layout::{self, COMMANDS, FILES, LINES, head, state};
use fairlead_offload::{Fault, Line, Reason};
use fairlead_os_ring::shared::{abort_on_close, set_option};
use fairlead_os_ring::{Doorbell, Shared, token};
use fairlead_os_tcp::Identity;

use crate::counts::CardCounts;

const TCP: i32 = 6;
const SOCKET: i32 = 1;
const KEEP_ALIVE: i32 = 9;
const KEEP_IDLE: i32 = 4;
const USER_TIMEOUT: i32 = 18;

/// One connection that the card has.
pub(crate) struct Open {
    pub(crate) line: Line,
    pub(crate) socket: OwnedFd,
    pub(crate) token: OwnedFd,
    pub(crate) identity: Identity,
    pub(crate) readable: bool,
    pub(crate) writable: bool,
    /// The peer's FIN was announced, but maybe not read yet.
    pub(crate) is_ending: bool,
    /// Nothing more comes from the peer.
    pub(crate) is_finished: bool,
    /// The connection has failed.
    pub(crate) is_failed: bool,
    pub(crate) bytes: [u64; 2],
    /// Its number for the operator.
    pub(crate) number: u32,
    /// When it came, when bytes last moved, and when the program was last asked to take it back.
    pub(crate) since: Instant,
    pub(crate) active: Instant,
    pub(crate) asked: Option<Instant>,
    /// The host's socket, which keeps the port of a connection that the program has made.
    pub(crate) _parked: Option<OwnedFd>,
}

/// One program.
pub(crate) struct Owner {
    pub(crate) process: i32,
    pub(crate) control: OwnedFd,
    pub(crate) doorbell: Doorbell,
    pub(crate) memory: Shared,
    taken: u32,
    pub(crate) lines: Vec<Option<Box<Open>>>,
    pub(crate) generations: Vec<u8>,
    pub(crate) files: Vec<Option<OwnedFd>>,
    /// The program has gone; what it has written is still sent.
    pub(crate) has_left: bool,
    /// Its command ring was not empty at the end of its turn.
    pub(crate) has_more: bool,
}

/// Messages of one program in its turn, at most.
const TURN: u32 = 256;

impl Owner {
    pub(crate) fn new(control: OwnedFd, process: i32) -> io::Result<Self> {
        Ok(Self {
            process,
            control,
            doorbell: Doorbell::make()?,
            memory: Shared::make()?,
            taken: 0,
            lines: (0..LINES).map(|_| None).collect(),
            generations: vec![0; LINES as usize],
            files: (0..FILES).map(|_| None).collect(),
            has_left: false,
            has_more: false,
        })
    }

    /// A line that nobody uses.
    pub(crate) fn free_line(&self) -> Option<u32> {
        let free = self.lines.iter().skip(1).position(Option::is_none)?;
        u32::try_from(free + 1).ok()
    }

    /// Its number for the program, in the line's present generation.
    pub(crate) fn cid(&self, number: u32) -> Cid {
        Cid::new(number, self.generations[number as usize])
    }

    pub(crate) fn count(&self) -> usize {
        self.lines.iter().flatten().count()
    }

    /// The line that a program names, if it has that connection.
    pub(crate) fn find(&self, cid: Cid) -> Option<u32> {
        let number = cid.line();
        let is_here = self.lines.get(number as usize)?.is_some();
        (is_here && self.cid(number) == cid).then_some(number)
    }

    pub(crate) fn open(&mut self, number: u32) -> Option<&mut Open> {
        self.lines.get_mut(number as usize)?.as_deref_mut()
    }

    /// A connection comes to this line.
    pub(crate) fn begin(&mut self, number: u32, open: Open) {
        for word in (0..layout::LINE_BYTES).step_by(4) {
            let place = layout::word_at(number, word);
            self.memory.word(place).store(0, Ordering::Relaxed);
        }
        let wants = layout::word_at(number, layout::line::WANTS_TOKEN);
        self.memory.word(wants).store(1, Ordering::Release);
        self.lines[number as usize] = Some(Box::new(open));
    }

    /// The line is free again. Its descriptors are closed.
    pub(crate) fn end(&mut self, number: u32) -> Option<Box<Open>> {
        let ended = self.lines[number as usize].take()?;
        let generation = &mut self.generations[number as usize];
        *generation = generation.wrapping_add(1);
        Some(ended)
    }

    /// Ends a connection by a RST.
    pub(crate) fn reset(&mut self, number: u32) {
        if let Some(ended) = self.end(number) {
            let _ = abort_on_close(ended.socket.as_fd());
        }
    }

    pub(crate) fn fault(&mut self, number: u32, fault: Fault, counts: &mut CardCounts) {
        counts.fault(fault);
        self.reset(number);
    }

    /// Adds what the program has counted.
    pub(crate) fn add_reasons(&self, to: &mut [u64; Reason::COUNT]) {
        for (at, count) in to.iter_mut().enumerate() {
            let word = self.memory.word(head::REASONS + 4 * at);
            *count += u64::from(word.load(Ordering::Relaxed));
        }
    }

    pub(crate) fn set_room(&self, room: u32) {
        self.memory.word(head::ROOM).store(room, Ordering::Release);
    }

    /// The card is awake: no doorbell is needed.
    pub(crate) fn wake(&self) {
        self.memory.word(head::ASLEEP).store(0, Ordering::SeqCst);
    }

    /// Sets a flag of a line's state.
    pub(crate) fn flag(&self, number: u32, flag: u32) {
        let place = layout::word_at(number, layout::line::STATE);
        self.memory.word(place).fetch_or(flag, Ordering::SeqCst);
    }

    /// Asks the program to take a connection back.
    pub(crate) fn want_back(&mut self, number: u32, cause: Cause, counts: &mut CardCounts) {
        let given = match cause {
            Cause::Order => state::GIVEN,
            _ => 0,
        };
        if self.open(number).is_none() {
            return;
        }
        // Before the token: whoever it wakes looks at once.
        self.flag(number, state::WANTED_BACK | given);
        if let Some(open) = self.open(number) {
            open.asked = Some(Instant::now());
            token::give(open.token.as_fd());
            counts.commands.command(Op::OsRestore);
        }
    }

    /// Does what the command ring says now, all of it. False: its positions are impossible.
    pub(crate) fn commands(&mut self, counts: &mut CardCounts) -> bool {
        self.some_commands(COMMANDS, counts)
    }

    /// The same for a turn among other programs: [`Self::has_more`] says whether another turn is
    /// due. A program that writes faster than the card works keeps nobody else waiting.
    pub(crate) fn turn(&mut self, counts: &mut CardCounts) -> bool {
        self.some_commands(TURN, counts)
    }

    fn some_commands(&mut self, most: u32, counts: &mut CardCounts) -> bool {
        let mut last = None;
        let mut left = most;
        self.has_more = false;
        loop {
            let written = self.memory.word(head::WRITTEN).load(Ordering::Acquire);
            if written == self.taken {
                self.pump_last(last.take(), counts);
                let asleep = self.memory.word(head::ASLEEP);
                asleep.store(1, Ordering::SeqCst);
                fence(Ordering::SeqCst);
                if self.memory.word(head::WRITTEN).load(Ordering::SeqCst) == written {
                    return true;
                }
                asleep.store(0, Ordering::SeqCst);
                continue;
            }
            if written.wrapping_sub(self.taken) > COMMANDS {
                counts.broken_rings += 1;
                return false;
            }
            if left == 0 {
                self.pump_last(last.take(), counts);
                self.has_more = true;
                return true;
            }
            left -= 1;
            let bytes = self.memory.command(self.taken);
            self.taken = self.taken.wrapping_add(1);
            let taken = self.memory.word(head::TAKEN);
            taken.store(self.taken, Ordering::Release);
            let Ok(message) = Message::decode(&bytes) else {
                counts.commands.malformed();
                continue;
            };
            let Some(number) = self.find(message.cid) else {
                continue; // it has ended meanwhile
            };
            counts.commands.message(&message);
            if last.is_some_and(|last| last != number) {
                self.pump_last(last.take(), counts);
            }
            if let Body::Command(command) = message.body
                && self.command(number, command, counts)
            {
                last = Some(number);
            }
        }
    }

    /// Several pieces of one connection are sent together.
    fn pump_last(&mut self, last: Option<u32>, counts: &mut CardCounts) {
        if let Some(number) = last {
            self.pump_out(number, counts);
        }
    }

    /// True: something is to be sent.
    fn command(&mut self, number: u32, command: Command, counts: &mut CardCounts) -> bool {
        let Some(open) = self.open(number) else {
            return false;
        };
        match command {
            Command::Send {
                len: 0, address, ..
            } => match open.line.send(address) {
                Ok(()) => return true,
                Err(fault) => self.fault(number, fault, counts),
            },
            Command::Received { .. } => {
                self.pump_in(number, counts);
                self.give_what_is_due(number, counts);
            }
            Command::Control { control, argument } => match control {
                Control::ShutdownToClient => {
                    open.line.end();
                    return true;
                }
                Control::Abort => self.reset(number),
                Control::KeepAlive => {
                    let seconds = (argument / 1_000).clamp(1, 32_767) as i32;
                    let on = i32::from(argument != 0);
                    let _ = set_option(open.socket.as_fd(), TCP, KEEP_IDLE, seconds);
                    let _ = set_option(open.socket.as_fd(), SOCKET, KEEP_ALIVE, on);
                }
                Control::UserTimeout => {
                    let millis = argument.min(i32::MAX as u64) as i32;
                    let _ = set_option(open.socket.as_fd(), TCP, USER_TIMEOUT, millis);
                }
                _ => counts.commands.malformed(),
            },
            _ => counts.commands.malformed(),
        }
        false
    }

    /// The program has ended, or its ring is broken. `reset`: what it has written is not sent.
    pub(crate) fn leave(&mut self, reset: bool, counts: &mut CardCounts) {
        (self.has_left, self.has_more) = (true, false);
        for number in 1..LINES {
            if reset {
                self.reset(number);
            } else if let Some(open) = self.open(number) {
                open.line.close();
                self.pump_out(number, counts);
            }
        }
    }
}
