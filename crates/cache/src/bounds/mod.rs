//! References for results: bounds, and fully associative caches as in other simulators.
//!
//! All take a [`Stream`] of dense session numbers and return misses from [`Stream::counted_from`]
//! on; earlier accesses are warm-up. Memory is proportional to the number of sessions and, for
//! bounds that look ahead, four bytes per access. [`Stream::watched`] reports progress and can stop
//! them.

mod clock;
mod fifo;
mod greedy;
mod lru;
mod min;
mod min_per_set;
mod placeable;
mod s3_fifo;
mod sieve;

pub use clock::clock;
pub use fifo::fifo;
pub use greedy::greedy_furthest;
pub use lru::lru;
pub use min::{min, min_or_bypass};
pub use min_per_set::min_per_set;
pub use placeable::placeable;
pub use s3_fifo::s3_fifo;
pub use sieve::sieve;

use thiserror::Error;

// NONE is also no session and no next use.
use crate::queue::{NONE, Queue};

/// Accesses between two calls of the watcher.
const LOOK_EVERY: usize = 1 << 16;

/// Told of accesses that are done; false ends the walk.
type Watch<'a> = &'a (dyn Fn(usize) -> bool + Sync);

/// Accesses, checked: every number is below the number of sessions.
#[derive(Clone, Copy)]
pub struct Stream<'a> {
    ids: &'a [u32],
    sessions: usize,
    counted_from: usize,
    watch: Option<Watch<'a>>,
}

impl core::fmt::Debug for Stream<'_> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Stream")
            .field("accesses", &self.ids.len())
            .field("sessions", &self.sessions)
            .field("counted_from", &self.counted_from)
            .finish_non_exhaustive()
    }
}

/// A stream that bounds cannot be computed for.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum StreamError {
    /// A number that is no session.
    #[error("session number {id} at access {at}, but there are {sessions} sessions")]
    NoSession {
        /// The number.
        id: u32,
        /// Which access.
        at: usize,
        /// Sessions.
        sessions: usize,
    },
    /// More than fits 32 bits.
    #[error("{accesses} accesses to {sessions} sessions; at most 2³² − 2 of each, cut the stream")]
    TooLong {
        /// Accesses.
        accesses: usize,
        /// Sessions.
        sessions: usize,
    },
}

impl<'a> Stream<'a> {
    /// Accesses to `sessions` sessions, counted from `counted_from` on.
    ///
    /// # Errors
    /// When a number is no session, or there are 2³² − 1 accesses or sessions or more.
    pub fn new(ids: &'a [u32], sessions: usize, counted_from: usize) -> Result<Self, StreamError> {
        if ids.len() >= NONE as usize || sessions >= NONE as usize {
            return Err(StreamError::TooLong {
                accesses: ids.len(),
                sessions,
            });
        }
        if let Some(at) = ids.iter().position(|id| *id as usize >= sessions) {
            return Err(StreamError::NoSession {
                id: ids[at],
                at,
                sessions,
            });
        }
        Ok(Self {
            ids,
            sessions,
            counted_from,
            watch: None,
        })
    }

    /// Calls `watch` about every ten thousand accesses with the number done since the last call. If
    /// it returns false, the walk stops, and the returned misses are meaningless.
    #[must_use]
    pub fn watched(self, watch: &'a (dyn Fn(usize) -> bool + Sync)) -> Self {
        Self {
            watch: Some(watch),
            ..self
        }
    }

    /// Reports further accesses, and returns whether to continue.
    fn goes_on(&self, done: usize) -> bool {
        self.watch.is_none_or(|watch| watch(done))
    }

    /// The accesses.
    pub fn ids(&self) -> &'a [u32] {
        self.ids
    }

    /// How many sessions there may be.
    pub fn sessions(&self) -> usize {
        self.sessions
    }

    /// The first access that is counted.
    pub fn counted_from(&self) -> usize {
        self.counted_from
    }

    /// Misses of a cache that says of each access whether it misses.
    fn misses(&self, mut misses: impl FnMut(u32) -> bool) -> u64 {
        let (warm, counted) = self.ids.split_at(self.counted_from.min(self.ids.len()));
        for part in warm.chunks(LOOK_EVERY) {
            for id in part {
                misses(*id);
            }
            if !self.goes_on(part.len()) {
                return 0;
            }
        }
        let mut count = 0;
        for part in counted.chunks(LOOK_EVERY) {
            count += part.iter().map(|id| u64::from(misses(*id))).sum::<u64>();
            if !self.goes_on(part.len()) {
                break;
            }
        }
        count
    }

    /// As `misses`, for caches that know when each session comes next: the number of that access.
    fn misses_ahead(&self, mut misses: impl FnMut(u32, u32) -> bool) -> u64 {
        let Some(next) = self.next_uses() else {
            return 0;
        };
        let mut uses = next.iter();
        self.misses(|id| misses(id, uses.next().copied().unwrap_or(NONE)))
    }

    /// For each access, the next one to the same session, or `NONE`; returns nothing if stopped.
    fn next_uses(&self) -> Option<Vec<u32>> {
        let mut next = vec![NONE; self.ids.len()];
        let mut coming = vec![NONE; self.sessions];
        let parts = self.ids.chunks(LOOK_EVERY).zip(next.chunks_mut(LOOK_EVERY));
        for (part, (ids, next)) in parts.enumerate().rev() {
            for (at, (id, next)) in ids.iter().zip(next).enumerate().rev() {
                let at = (part * LOOK_EVERY + at) as u32;
                *next = core::mem::replace(&mut coming[*id as usize], at);
            }
            // Accesses are done when they were walked forwards.
            if !self.goes_on(0) {
                return None;
            }
        }
        Some(next)
    }
}

/// Misses of a cache that never gives anything up: first accesses.
pub fn compulsory(stream: &Stream<'_>) -> u64 {
    let mut seen = vec![false; stream.sessions];
    stream.misses(|id| !core::mem::replace(&mut seen[id as usize], true))
}

/// The lines of a fully associative cache: a two-way mapping of lines and sessions.
struct Table {
    line_of: Vec<u32>,
    session_of: Vec<u32>,
    used: usize,
}

impl Table {
    fn new(sessions: usize, lines: u32) -> Self {
        // More lines than sessions are never used.
        let lines = (lines as usize).min(sessions);
        Self {
            line_of: vec![NONE; sessions],
            session_of: vec![NONE; lines],
            used: 0,
        }
    }

    fn lines(&self) -> usize {
        self.session_of.len()
    }

    #[inline]
    fn line(&self, session: u32) -> Option<u32> {
        let line = self.line_of[session as usize];
        (line != NONE).then_some(line)
    }

    /// A line that was never used.
    #[inline]
    fn fresh(&mut self) -> Option<u32> {
        (self.used < self.lines()).then(|| {
            self.used += 1;
            self.used as u32 - 1
        })
    }

    /// Assigns the line to a session, replacing any other.
    #[inline]
    fn give(&mut self, line: u32, session: u32) {
        let before = core::mem::replace(&mut self.session_of[line as usize], session);
        if before != NONE {
            self.line_of[before as usize] = NONE;
        }
        self.line_of[session as usize] = line;
    }
}
