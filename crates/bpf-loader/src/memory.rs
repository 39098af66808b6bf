//! The record array, mapped into this process: no system call to give or take a connection.

use std::io;
use std::os::fd::BorrowedFd;
use std::ptr::{NonNull, read_volatile, write_volatile};
use std::sync::atomic::{AtomicU32, Ordering, fence};

use fairlead_tcp::adoption::ENGINE_HAS;
use fairlead_tcp::{Line, Record, State, Tracking};

/// Records shared with the kernel program. The program may read and move a record's tracking fields
/// at any moment while its state says so; every access here is therefore volatile, field by field,
/// and state and flags are one atomic word, which the program moves by compare and swap.
#[derive(Debug)]
pub(crate) struct RecordMemory {
    start: NonNull<Record>,
    count: usize,
    bytes: usize,
}

// SAFETY: the mapping belongs to the process, not to a thread, and nothing in it is tied to one.
unsafe impl Send for RecordMemory {}

impl RecordMemory {
    /// Maps the array behind `map`, which has `count` entries.
    ///
    /// # Errors
    /// What `mmap` says.
    pub(crate) fn map(map: BorrowedFd<'_>, count: usize) -> io::Result<Self> {
        use std::os::fd::AsRawFd;
        // SAFETY: asks for a value, touches no memory of ours.
        let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) } as usize;
        let bytes = (count * size_of::<Record>()).next_multiple_of(page);
        // SAFETY: a new shared mapping of a descriptor that is open; the kernel picks the address.
        let start = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                map.as_raw_fd(),
                0,
            )
        };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let start = NonNull::new(start.cast()).ok_or_else(io::Error::last_os_error)?;
        Ok(Self {
            start,
            count,
            bytes,
        })
    }

    fn at(&self, line: Line) -> Option<*mut Record> {
        let index = line.0 as usize;
        // SAFETY: `index` is below `count`, so that the result stays inside the mapping.
        (index < self.count).then(|| unsafe { self.start.as_ptr().add(index) })
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
        self.count as u32
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

/// The phase of a record that the program leaves alone.
const FREE: u32 = 0;
/// Beside the state in a phase: the engine has the connection.
const HELD: u32 = u32::from_ne_bytes([ENGINE_HAS, 0, 0, 0]);

fn word_of(record: &Record) -> u32 {
    let shifts = [record.client_shift, record.server_shift].map(i8::to_ne_bytes);
    u32::from_ne_bytes([record.state as u8, record.flags, shifts[0][0], shifts[1][0]])
}

impl Drop for RecordMemory {
    fn drop(&mut self) {
        // SAFETY: exactly what `map` mapped, and nothing refers to it any more.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.bytes) };
    }
}
