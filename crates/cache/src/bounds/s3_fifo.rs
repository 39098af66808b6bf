//! S3-FIFO (Yang et al., SOSP 2023): a small queue, a main queue, ghosts.

use std::collections::VecDeque;

use super::{NONE, Queue, Stream, Table};

/// Accesses counted per entry.
const COUNT_MAX: u8 = 3;
/// Touches in the small queue from which on a line moves to the main queue.
const MOVES_FROM: u8 = 2;

struct S3Fifo {
    table: Table,
    small: Queue,
    main: Queue,
    counts: Vec<u8>,
    small_max: usize,
    main_max: usize,
    /// Sessions that left the small queue, oldest first, each with the number of its entry.
    ghosts: VecDeque<(u32, u32)>,
    /// By session: the number of its ghost entry, or `NONE`.
    ghost_of: Vec<u32>,
    ghosts_held: usize,
    ghosts_max: usize,
    ghost_entries: u32,
    has_evicted: bool,
}

impl S3Fifo {
    fn new(sessions: usize, lines: u32) -> Self {
        let small_max = (lines as usize / 10).max(1);
        let table = Table::new(sessions, lines);
        let count = table.lines();
        Self {
            small: Queue::new(count),
            main: Queue::new(count),
            counts: vec![0; count],
            table,
            small_max,
            main_max: lines as usize - small_max.min(lines as usize),
            ghosts: VecDeque::new(),
            ghost_of: vec![NONE; sessions],
            ghosts_held: 0,
            ghosts_max: (f64::from(lines) * 0.9) as usize,
            ghost_entries: 0,
            has_evicted: false,
        }
    }

    fn remember(&mut self, session: u32) {
        if self.ghosts_max == 0 || self.ghost_of[session as usize] != NONE {
            return;
        }
        while self.ghosts_held >= self.ghosts_max {
            self.drop_ghost();
        }
        // The number distinguishes an entry from a later one of the same session.
        self.ghost_entries = (self.ghost_entries + 1) % NONE;
        self.ghost_of[session as usize] = self.ghost_entries;
        self.ghosts.push_back((session, self.ghost_entries));
        self.ghosts_held += 1;
        // Entries of sessions that have returned meanwhile.
        while self
            .ghosts
            .front()
            .is_some_and(|(session, entry)| self.ghost_of[*session as usize] != *entry)
        {
            self.ghosts.pop_front();
        }
    }

    fn drop_ghost(&mut self) {
        while let Some((session, entry)) = self.ghosts.pop_front() {
            if self.ghost_of[session as usize] == entry {
                self.ghost_of[session as usize] = NONE;
                self.ghosts_held -= 1;
                return;
            }
        }
        self.ghosts_held = 0;
    }

    /// Evicts one line: from the small queue, or from the main one if that is too long or the small
    /// one has no victim.
    fn evict(&mut self) -> u32 {
        self.has_evicted = true;
        if self.main.len <= self.main_max
            && let Some(line) = self.evict_small()
        {
            return line;
        }
        self.evict_main()
    }

    /// All that was touched often enough moves on, whatever the main queue's length then is.
    fn evict_small(&mut self) -> Option<u32> {
        while self.small.len > 0 {
            let line = self.small.tail;
            self.small.remove(line);
            if self.counts[line as usize] < MOVES_FROM {
                self.remember(self.table.session_of[line as usize]);
                return Some(line);
            }
            self.counts[line as usize] = 0;
            self.main.push(line);
        }
        None
    }

    fn evict_main(&mut self) -> u32 {
        loop {
            let line = self.main.tail;
            self.main.remove(line);
            let count = &mut self.counts[line as usize];
            if *count == 0 {
                return line;
            }
            *count -= 1;
            self.main.push(line);
        }
    }

    fn access(&mut self, id: u32) -> bool {
        if let Some(line) = self.table.line(id) {
            let count = &mut self.counts[line as usize];
            *count = (*count + 1).min(COUNT_MAX);
            return false;
        }
        if self.table.lines() == 0 {
            return true;
        }
        let was_ghost = core::mem::replace(&mut self.ghost_of[id as usize], NONE) != NONE;
        self.ghosts_held -= usize::from(was_ghost);
        let line = match self.table.fresh() {
            Some(line) => line,
            None => self.evict(),
        };
        // While the cache fills, overflow of the small queue goes to the main one.
        let fills = !self.has_evicted && self.small.len >= self.small_max;
        self.table.give(line, id);
        self.counts[line as usize] = 0;
        if was_ghost || fills {
            self.main.push(line);
        } else {
            self.small.push(line);
        }
        true
    }
}

/// Misses of `lines` lines under S3-FIFO, fully associative: a tenth for the small queue, ghosts
/// for nine tenths, two touches to move on.
pub fn s3_fifo(stream: &Stream<'_>, lines: u32) -> u64 {
    let mut cache = S3Fifo::new(stream.sessions(), lines);
    stream.misses(|id| cache.access(id))
}
