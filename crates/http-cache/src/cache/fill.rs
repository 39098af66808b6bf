//! Bodies as they come from servers.

use super::{Answer, Cache, Event, FetchId, ReaderId};
use crate::head::Now;
use crate::journal::checksum;
use crate::object::{NONE, Phase};
use crate::reason::Reason;
use crate::slab::Ticket;
use crate::store::Store;
use fairlead_content::{CacheOffset, Extent};

/// Blocks that a body which is only passed on may be ahead of its slowest reader.
const WINDOW_BLOCKS: usize = 64;

impl<S: Store> Cache<S> {
    /// Bytes of a body that is being filled. Returns how many were taken; if not all were, offer
    /// the rest after [`Event::Continue`].
    ///
    /// # Errors
    /// The body is longer than announced, or there is no memory even for passing it on: the fetch
    /// is over, and its readers are [cut](super::Read::Cut).
    pub fn body(&mut self, fetch: FetchId, bytes: &[u8], now: Now) -> Result<usize, Reason> {
        let Some(number) = self.fetches.get(fetch.0).and_then(|one| one.fills) else {
            return Err(Reason::FetchFailed);
        };
        let object = self.object(number);
        if let Some(total) = object.total {
            if bytes.len() as u64 > total - object.received {
                return Err(self.fail(fetch, Reason::Length, now));
            }
        } else if object.received + bytes.len() as u64 > self.settings.max_object {
            self.only_pass_on(number, Reason::TooLarge);
            self.remember(self.object(number).verdict.hash, now);
        }
        let mut taken = 0;
        while taken < bytes.len() {
            match self.append(number, &bytes[taken..]) {
                // Readers of a range may wait for what comes behind the window.
                Ok(0) if self.catches_up(fetch.0, number) => {}
                Ok(0) => break,
                Ok(count) => taken += count,
                Err(reason) if self.object(number).is_linked => self.only_pass_on(number, reason),
                Err(reason) if self.object(number).lines.is_empty() => {
                    return Err(self.fail(fetch, reason, now));
                }
                Err(_) if self.catches_up(fetch.0, number) => {}
                // Readers make room.
                Err(_) => break,
            }
        }
        self.stats.bytes_fetched += taken as u64;
        if taken > 0 {
            self.wake_readers(fetch.0);
        }
        let has_readers = self.drop_read(fetch.0, number);
        if let Some(transfer) = self.fetches.named_mut(fetch.0) {
            transfer.is_blocked = taken < bytes.len();
        }
        if !has_readers && !self.object(number).is_linked {
            self.abandon(fetch);
        }
        Ok(taken)
    }

    /// The body is complete, by its framing.
    ///
    /// # Errors
    /// It is shorter than announced: as in [`Cache::body`].
    pub fn finish(&mut self, fetch: FetchId, now: Now) -> Result<(), Reason> {
        let Some(number) = self.fetches.get(fetch.0).and_then(|one| one.fills) else {
            return Err(Reason::FetchFailed);
        };
        let object = self.object_mut(number);
        if object.total.is_some_and(|total| total != object.received) {
            return Err(self.fail(fetch, Reason::Length, now));
        }
        object.total = Some(object.received);
        let (received, last) = (object.received, object.lines.last().copied());
        let rest = self.settings.block.within(received);
        if let Some(line) = last.filter(|_| rest > 0) {
            self.check_block(number, line, rest);
        }
        let object = self.object_mut(number);
        object.phase = Phase::Complete;
        object.fill = None;
        object.lines.shrink_to_fit();
        let is_linked = object.is_linked;
        self.account(number);
        if is_linked && self.is_valid(number) {
            self.stats.stored += 1;
            self.make_resident(number);
            self.note_stored(number);
            self.replace_older(number);
        }
        self.wake_readers(fetch.0);
        self.remove_fetch(fetch.0);
        self.unpin(number);
        Ok(())
    }

    /// The fetch failed: no connection, no head, or the body was cut or had an invalid chunk.
    /// Before the head this may be answered with a stale response, whose head is then appended to
    /// `out`; else the client gets an error. After it, readers are cut.
    pub fn abort(
        &mut self,
        fetch: FetchId,
        reason: Reason,
        now: Now,
        out: &mut Vec<u8>,
    ) -> Option<Answer> {
        let transfer = self.fetches.named_mut(fetch.0)?;
        if transfer.fills.is_some() {
            self.fail(fetch, reason, now);
            return None;
        }
        self.stats.count(reason);
        let (validates, in_background) = (transfer.validates, transfer.in_background);
        let kept = transfer.kept.take();
        if let Some(kept) = &kept {
            self.forget_request(kept);
        }
        let answer = match (validates, kept) {
            (Some(number), Some(kept)) if !in_background => {
                kept.with(|head| self.stale(number, head, now, None, out))
            }
            _ => None,
        };
        let transfer = self.remove_fetch(fetch.0)?;
        self.release(transfer.waiters);
        answer
    }

    /// Asks the driver to end a fetch.
    pub(super) fn abandon(&mut self, fetch: FetchId) {
        if let Some(transfer) = self.fetches.named_mut(fetch.0)
            && !core::mem::replace(&mut transfer.is_abandoned, true)
        {
            self.events.push_back(Event::Abandoned(fetch));
        }
    }

    /// Ends a fill early.
    fn fail(&mut self, fetch: FetchId, reason: Reason, _now: Now) -> Reason {
        self.stats.count(reason);
        if let Some(number) = self.fetches.get(fetch.0).and_then(|one| one.fills) {
            let object = self.object_mut(number);
            object.phase = Phase::Cut;
            object.fill = None;
            self.used.reserved -= u64::from(core::mem::take(&mut self.object_mut(number).reserved));
            self.account(number);
            self.unlink(number);
            self.wake_readers(fetch.0);
            self.remove_fetch(fetch.0);
            self.unpin(number);
        }
        reason
    }

    /// Appends to the last block, or to a new one; at most one block. `Ok(0)` if the readers must
    /// catch up first.
    fn append(&mut self, number: u32, bytes: &[u8]) -> Result<usize, Reason> {
        let block = self.settings.block;
        let object = self.object(number);
        let within = block.within(object.received);
        if within == 0 {
            if !object.is_linked && object.lines.len() >= WINDOW_BLOCKS {
                return Ok(0);
            }
            if !self.grow(number) {
                return Err(Reason::NoMemory);
            }
        }
        let object = self.object(number);
        let line = *object.lines.last().ok_or(Reason::NoMemory)?;
        let count = bytes.len().min((block.bytes() - within) as usize);
        let extent = Extent {
            at: CacheOffset(block.offset_of(line).0 + u64::from(within)),
            len: count as u32,
        };
        if !self.store.write(extent, &bytes[..count]) {
            if within == 0 {
                self.object_mut(number).lines.pop();
                self.release_lines(&[line]);
            }
            return Err(Reason::StoreFailed);
        }
        self.object_mut(number).received += count as u64;
        if within as usize + count == block.bytes() as usize {
            self.check_block(number, line, block.bytes());
        }
        Ok(count)
    }

    /// Counts a block into the checksum of a body that is to be kept.
    fn check_block(&mut self, number: u32, line: u32, len: u32) {
        if !self.settings.journals || !self.object(number).is_linked {
            return;
        }
        let at = CacheOffset(self.settings.block.offset_of(line).0);
        let bytes = self.store.slice(Extent { at, len }).unwrap_or_default();
        let check = checksum(self.object(number).check, bytes);
        self.object_mut(number).check = check;
    }

    /// The object will not be stored: it is passed on to those who read it now.
    fn only_pass_on(&mut self, number: u32, reason: Reason) {
        if !self.object(number).is_linked {
            return;
        }
        self.stats.count(reason);
        self.unlink(number);
    }

    /// True if blocks became free that all have read.
    fn catches_up(&mut self, fetch: Ticket, number: u32) -> bool {
        let before = self.object(number).lines.len();
        self.drop_read(fetch, number);
        self.object(number).lines.len() < before
    }

    /// Of an object that is only passed on, frees blocks that all have read. False if nobody reads
    /// it.
    pub(super) fn drop_read(&mut self, fetch: Ticket, number: u32) -> bool {
        let Some(transfer) = self.fetches.get(fetch) else {
            return false;
        };
        let readers = &self.readers;
        let places = transfer.readers.iter();
        let slowest = places
            .filter_map(|ticket| readers.get(*ticket))
            .map(|reader| reader.at)
            .min();
        let Some(slowest) = slowest else {
            return false;
        };
        if self.object(number).is_linked || self.object(number).phase != Phase::Filling {
            return true;
        }
        let block = u64::from(self.settings.block.bytes());
        let object = self.object_mut(number);
        // The last block may still be written to.
        let whole = (object.received - object.base) / block;
        let count = (slowest.saturating_sub(object.base) / block).min(whole);
        object.base += count * block;
        let lines: Vec<u32> = object.lines.drain(..count as usize).collect();
        self.release_lines(&lines);
        true
    }

    /// Readers of what a fetch fills look again.
    fn wake_readers(&mut self, fetch: Ticket) {
        let Some(transfer) = self.fetches.get(fetch) else {
            return;
        };
        for ticket in &transfer.readers {
            if let Some(reader) = self.readers.named_mut(*ticket)
                && core::mem::take(&mut reader.waits)
            {
                self.events.push_back(Event::Readable(ReaderId(*ticket)));
            }
        }
    }

    /// Drops older objects of the same key and variant, and more variants than there may be.
    pub(super) fn replace_older(&mut self, number: u32) {
        let hash = self.object(number).verdict.hash;
        let mut at = self.chain(hash);
        let (mut seen, mut older) = (0, false);
        while at != NONE {
            let other = at;
            at = self.object(other).next;
            if other == number {
                older = true;
                continue;
            }
            let (new, old) = (self.object(number), self.object(other));
            if !older || old.key != new.key {
                continue;
            }
            seen += 1;
            let same = old.variant == new.variant && old.vary == new.vary;
            // A response without `Vary` is for all requests.
            if same || new.vary.is_empty() || seen >= VARIANTS_MAX {
                self.unlink(other);
            }
        }
    }
}

/// Variants of one key.
const VARIANTS_MAX: u32 = 64;
