//! The record array, mapped into this process: no system call to give or take a connection.

use std::hint::spin_loop;
use std::io;
use std::os::fd::BorrowedFd;
use std::ptr::{read_volatile, write_volatile};
use std::sync::atomic::{AtomicU32, Ordering, fence};

use fairlead_base::{Endpoint, SeqNumber};
use fairlead_tcp::adoption::{ENGINE_HAS, JOINING, TICKET};
use fairlead_tcp::record::flag;
use fairlead_tcp::{Joined, Line, Record, State, Tracking};

use crate::mapping::Mapping;

/// Records shared with the kernel program. The program may read and move a record's tracking fields
/// at any moment while its state says so; every access here is therefore volatile, field by field,
/// and state and flags are one atomic word, which the program moves by compare and swap.
#[derive(Debug)]
pub(crate) struct RecordMemory(Mapping<Record>);

impl RecordMemory {
    /// Maps the array behind `map`, which has `count` entries.
    ///
    /// # Errors
    /// What `mmap` says.
    pub(crate) fn map(map: BorrowedFd<'_>, count: usize) -> io::Result<Self> {
        Mapping::of(map, count).map(Self)
    }

    fn at(&self, line: Line) -> Option<*mut Record> {
        self.0.at(line.0 as usize)
    }

    /// The word of state, flags and shifts.
    fn phase(&self, line: Line) -> Option<&AtomicU32> {
        let at = self.at(line)?;
        // SAFETY: inside the mapping for as long as `self`, and aligned: records lie at multiples
        // of their size, the word at one of 4 in them. Nobody writes it but by atomic steps.
        Some(unsafe { AtomicU32::from_ptr((&raw mut (*at).state).cast()) })
    }

    /// Writes a record; its state last, which is what lets the program use it. False: no such line.
    pub(crate) fn give(&mut self, line: Line, record: &Record) -> bool {
        self.write(line, record, 0)
    }

    /// Writes a record that the program is not to use, for a later start.
    pub(crate) fn keep(&mut self, line: Line, record: &Record) {
        self.write(line, record, HELD);
    }

    fn write(&mut self, line: Line, record: &Record, hold: u32) -> bool {
        let (Some(at), Some(phase)) = (self.at(line), self.phase(line)) else {
            return false;
        };
        let mut closed = *record;
        closed.state = State::Free;
        phase.store(word_of(&closed), Ordering::SeqCst);
        // SAFETY: `at` is inside the mapping and aligned. The program does not touch a record whose
        // state is free.
        unsafe { write_volatile(at, closed) };
        fence(Ordering::SeqCst);
        phase.store(word_of(record) | hold, Ordering::SeqCst);
        true
    }

    /// Ends the program's use of a record, keeps it for a later start, and reads what the program
    /// has seen.
    pub(crate) fn take(&mut self, line: Line) -> Option<Tracking> {
        let was = self.phase(line)?.fetch_or(HELD, Ordering::SeqCst);
        self.read(line, was)
    }

    /// Lets the program join a record that waits for its server's SYN-ACK; what else it needs is at
    /// `place` of [`crate::joins::JoinMemory`]. False: no such line.
    pub(crate) fn arm(&mut self, line: Line, record: &Record, place: u32) -> bool {
        let armed = Record {
            server_isn: place,
            state: State::SynSent,
            ..*record
        };
        self.write(line, &armed, 0)
    }

    /// Lets the program begin a connection on a record; what else it needs is at `place`. False: no
    /// such line.
    pub(crate) fn issue(&mut self, line: Line, record: &Record, place: u32) -> bool {
        let ticket = Record {
            server_isn: place,
            state: State::Free,
            flags: 0,
            client_shift: 0,
            server_shift: 0,
            ..*record
        };
        self.write(line, &ticket, TICKET_WORD)
    }

    /// What has become of a ticket that the program has taken. It is waited for while it is filled
    /// in, but not for ever: its processor may not run at the moment.
    pub(crate) fn taken(&self, line: Line) -> Taken {
        let (Some(at), Some(phase)) = (self.at(line), self.phase(line)) else {
            return Taken::Spoilt;
        };
        let mut word = TICKET_WORD;
        for _ in 0..JOINING_SPINS {
            word = phase.load(Ordering::SeqCst);
            if word != TICKET_WORD {
                break;
            }
            spin_loop();
        }
        match word {
            TICKET_WORD => return Taken::Filling,
            FREE => return Taken::Spoilt,
            _ => {}
        }
        // SAFETY: inside the mapping and aligned; plain numbers, which the program wrote before it
        // moved the phase, and does not change.
        unsafe {
            let client = Endpoint {
                addr: read_volatile(&raw const (*at).client_addr),
                port: read_volatile(&raw const (*at).client_port),
            };
            let isn = SeqNumber(read_volatile(&raw const (*at).client_isn));
            let [_, flags, ..] = word.to_ne_bytes();
            let timestamps = flags & flag::TIMESTAMPS != 0;
            Taken::By(client, isn, timestamps)
        }
    }

    /// What the program has joined an armed record to; `None` while it has not.
    pub(crate) fn joined(&self, line: Line) -> Option<Joined> {
        let word = self.phase(line)?.load(Ordering::SeqCst);
        let [state, _, client_shift, server_shift] = word.to_ne_bytes();
        if state & ENGINE_HAS != 0 || !is_joined(state) {
            return None;
        }
        let at = self.at(line)?;
        // SAFETY: inside the mapping and aligned; plain numbers, valid whatever the program wrote,
        // which it did before it moved the phase, and does once.
        unsafe {
            Some(Joined {
                server_isn: read_volatile(&raw const (*at).server_isn),
                seq_delta: read_volatile(&raw const (*at).seq_delta),
                ts_delta: read_volatile(&raw const (*at).ts_delta),
                client_shift: client_shift as i8,
                server_shift: server_shift as i8,
            })
        }
    }

    /// Frees an armed record, unless the program has joined it.
    pub(crate) fn disarm(&mut self, line: Line) -> Option<Joined> {
        let phase = self.phase(line)?;
        for _ in 0..JOINING_SPINS {
            let is = phase.load(Ordering::SeqCst);
            let [state, ..] = is.to_ne_bytes();
            let order = Ordering::SeqCst;
            if is_joined(state) {
                break;
            }
            if state == JOINING {
                spin_loop();
            } else if phase.compare_exchange(is, FREE, order, order).is_ok() {
                return None;
            }
        }
        let joined = self.joined(line);
        if joined.is_none() {
            // Its processor has stopped in the middle of a packet. It will find this, and drop it.
            self.free(line);
        }
        joined
    }

    /// Frees all records that are armed: their run is over, and what it left is about to be read.
    /// A program that joined one later would have a connection of which nobody knows.
    pub(crate) fn disarm_all(&mut self) {
        for line in (0..self.lines()).map(Line) {
            let word = self.phase(line).map(|phase| phase.load(Ordering::SeqCst));
            let state = word.map(|word| word.to_ne_bytes()[0]);
            if state.is_some_and(|state| {
                state == State::SynSent as u8 || state == JOINING || state == TICKET
            }) {
                let _ = self.disarm(line);
            }
        }
    }

    /// Ends all use of a record.
    pub(crate) fn free(&mut self, line: Line) {
        if let Some(phase) = self.phase(line) {
            phase.store(FREE, Ordering::SeqCst);
        }
    }

    /// A line as it is, whatever is in it; zeros for one that there is not.
    pub(crate) fn bytes(&self, line: Line) -> [u8; 64] {
        let Some(at) = self.at(line) else {
            return [0; 64];
        };
        // SAFETY: inside the mapping and aligned; bytes of any value.
        unsafe { read_volatile(at.cast::<[u8; 64]>()) }
    }

    /// How many lines there are.
    pub(crate) fn lines(&self) -> u32 {
        self.0.count() as u32
    }

    /// Reads what the program has seen.
    pub(crate) fn peek(&self, line: Line) -> Option<Tracking> {
        let is = self.phase(line)?.load(Ordering::SeqCst);
        self.read(line, is)
    }

    /// The numbers of a record whose phase was read before them.
    fn read(&self, line: Line, phase: u32) -> Option<Tracking> {
        let at = self.at(line)?;
        let [state, flags, ..] = phase.to_ne_bytes();
        // SAFETY: inside the mapping and aligned; plain numbers, valid whatever the program wrote.
        // A number that moves while its neighbour is read is one packet newer, no more.
        unsafe {
            Some(Tracking {
                client_nxt: read_volatile(&raw const (*at).client_nxt),
                server_nxt: read_volatile(&raw const (*at).server_nxt),
                client_wraps: read_volatile(&raw const (*at).client_wraps),
                server_wraps: read_volatile(&raw const (*at).server_wraps),
                last_active: read_volatile(&raw const (*at).last_active),
                state: State::from_number(state & !ENGINE_HAS).unwrap_or_default(),
                flags,
            })
        }
    }
}

/// What has become of a ticket.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Taken {
    /// Its taker is not all written yet.
    Filling,
    /// Nobody has it.
    Spoilt,
    /// This client has it, by this initial sequence number, with timestamps or without.
    By(Endpoint, SeqNumber, bool),
}

/// How often a record is looked at that the program is joining: it takes a microsecond or two, and
/// runs to its end wherever it has begun.
const JOINING_SPINS: u32 = 100_000;

/// Both connections are, or were, joined.
fn is_joined(state: u8) -> bool {
    let state = State::from_number(state);
    state.is_some_and(|state| state.is_live() || matches!(state, State::TimeWait | State::Reset))
}

/// The phase of a ticket.
const TICKET_WORD: u32 = u32::from_ne_bytes([TICKET, 0, 0, 0]);

/// The phase of a record that the program leaves alone.
const FREE: u32 = 0;
/// Beside the state in a phase: the engine has the connection.
const HELD: u32 = u32::from_ne_bytes([ENGINE_HAS, 0, 0, 0]);

fn word_of(record: &Record) -> u32 {
    let shifts = [record.client_shift, record.server_shift].map(i8::to_ne_bytes);
    u32::from_ne_bytes([record.state as u8, record.flags, shifts[0][0], shifts[1][0]])
}
