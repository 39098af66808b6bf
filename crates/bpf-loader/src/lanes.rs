//! Lanes of tickets, shared with the kernel program: which records it may begin connections on, in
//! the order in which it takes them.

use std::collections::VecDeque;
use std::io;
use std::os::fd::BorrowedFd;
use std::ptr::write_volatile;
use std::sync::atomic::{AtomicU32, Ordering};

use fairlead_tcp::Line;

use crate::layout::{LANE_TICKETS, RawLane};
use crate::mapping::Mapping;

/// See the module's text.
#[derive(Debug)]
pub(crate) struct Lanes {
    memory: Mapping<RawLane>,
    /// Of each lane what was issued and has not been asked about since: by and large what the
    /// program may still take, and before it what it has taken.
    issued: Vec<VecDeque<Issued>>,
}

/// A ticket, and where it is in its lane.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Issued {
    at: u32,
    pub(crate) line: Line,
    pub(crate) place: u32,
}

impl Lanes {
    /// Maps the array behind `map`, of `count` lanes.
    ///
    /// # Errors
    /// What `mmap` says.
    pub(crate) fn map(map: BorrowedFd<'_>, count: usize) -> io::Result<Self> {
        Ok(Self {
            memory: Mapping::of(map, count)?,
            issued: vec![VecDeque::new(); count],
        })
    }

    pub(crate) fn count(&self) -> u16 {
        self.issued.len() as u16
    }

    /// Head and tail of a lane that there is.
    fn ends(&self, lane: u16) -> Option<(&AtomicU32, &AtomicU32)> {
        let at = self.memory.at(usize::from(lane))?;
        // SAFETY: inside the mapping for as long as `self`, and aligned. Both sides use whole words
        // only.
        Some(unsafe {
            (
                AtomicU32::from_ptr(&raw mut (*at).head),
                AtomicU32::from_ptr(&raw mut (*at).tail),
            )
        })
    }

    /// Puts a ticket at a lane's end. False: no such lane, or no room in it.
    pub(crate) fn issue(&mut self, lane: u16, line: Line, place: u32) -> bool {
        let Some(memory) = self.memory.at(usize::from(lane)) else {
            return false;
        };
        let full = self.issued[usize::from(lane)].len() >= LANE_TICKETS;
        let Some((_, tail)) = self.ends(lane).filter(|_| !full) else {
            return false;
        };
        let at = tail.load(Ordering::Relaxed);
        // SAFETY: inside the mapping and aligned: the place is below the array's length. What was
        // there has been taken: there are never more tickets than places.
        unsafe { write_volatile(&raw mut (*memory).lines[at as usize % LANE_TICKETS], line.0) };
        tail.store(at.wrapping_add(1), Ordering::Release);
        self.issued[usize::from(lane)].push_back(Issued { at, line, place });
        true
    }

    /// The next ticket that the program has taken, and may still be filling in.
    pub(crate) fn taken(&self, lane: u16) -> Option<Issued> {
        let head = self.ends(lane)?.0.load(Ordering::Acquire);
        let first = *self.issued[usize::from(lane)].front()?;
        // As serial numbers: the head has gone by it.
        (head.wrapping_sub(first.at) as i32 > 0).then_some(first)
    }

    /// That ticket's taker is known.
    pub(crate) fn pass_taken(&mut self, lane: u16) {
        if let Some(issued) = self.issued.get_mut(usize::from(lane)) {
            issued.pop_front();
        }
    }

    /// Takes back what the program has not taken.
    pub(crate) fn revoke(&mut self, lane: u16) -> Vec<Issued> {
        let Some((head, tail)) = self.ends(lane) else {
            return Vec::new();
        };
        let end = tail.load(Ordering::Relaxed);
        let first = head.swap(end, Ordering::AcqRel);
        let issued = &mut self.issued[usize::from(lane)];
        let taken = issued.partition_point(|one| first.wrapping_sub(one.at) as i32 > 0);
        issued.drain(taken..).collect()
    }
}
