//! Bodies as clients read them.

use super::{Cache, Event, FetchId, ReaderId};
use crate::object::Phase;
use crate::store::Store;
use fairlead_content::Extent;

/// What a reader gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Read<'a> {
    /// These bytes, at least one. They stay until [`Cache::advance`].
    Bytes(&'a [u8]),
    /// Nothing yet: wait for [`Event::Readable`].
    Wait,
    /// All was read.
    End,
    /// The body ended early: close the connection, so that the client does not take what it has
    /// for a whole.
    Cut,
}

/// What a reader gets, as a part of the store's file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Piece {
    /// This part, at least one byte.
    Extent(Extent),
    /// As in [`Read`].
    Wait,
    /// As in [`Read`].
    End,
    /// As in [`Read`].
    Cut,
}

impl<S: Store> Cache<S> {
    /// The next bytes of a body, at most one block. For stores in memory of this process.
    pub fn read(&mut self, reader: ReaderId) -> Read<'_> {
        match self.piece(reader) {
            Piece::Extent(extent) => match self.store.slice(extent) {
                Some(bytes) => Read::Bytes(bytes),
                None => Read::Cut,
            },
            Piece::Wait => Read::Wait,
            Piece::End => Read::End,
            Piece::Cut => Read::Cut,
        }
    }

    /// The next bytes of a body as a part of the store, for `sendfile`.
    pub fn piece(&mut self, reader: ReaderId) -> Piece {
        let Some(one) = self.readers.named_mut(reader.0) else {
            return Piece::Cut;
        };
        let object = self.objects[one.object as usize]
            .as_ref()
            .expect("objects that are read exist");
        if let Some(extent) = object.piece(self.settings.block, one.at, one.end) {
            return Piece::Extent(extent);
        }
        match object.phase {
            _ if one.at >= one.end => Piece::End,
            Phase::Complete if one.at >= object.received => Piece::End,
            Phase::Filling => {
                one.waits = true;
                Piece::Wait
            }
            Phase::Complete | Phase::Cut => Piece::Cut,
        }
    }

    /// The next bytes of a body as one part of the store, of as many consecutive blocks as there
    /// are, for `sendfile`. What it says is as of [`Cache::piece`].
    pub fn run(&mut self, reader: ReaderId, bytes_max: u32) -> Piece {
        let first = self.piece(reader);
        let Piece::Extent(mut run) = first else {
            return first;
        };
        let Some(one) = self.readers.get(reader.0) else {
            return Piece::Cut;
        };
        let (object, block) = (self.object(one.object), self.settings.block);
        while run.len < bytes_max {
            let next = object.piece(block, one.at + u64::from(run.len), one.end);
            let Some(next) = next.filter(|next| next.at.0 == run.end()) else {
                break;
            };
            run.len += next.len;
        }
        Piece::Extent(run)
    }

    /// This many bytes were sent.
    pub fn advance(&mut self, reader: ReaderId, bytes: u64) {
        let Some(one) = self.readers.named_mut(reader.0) else {
            return;
        };
        one.at += bytes;
        self.stats.bytes_served += bytes;
        let number = one.object;
        let object = self.object(number);
        // A range may begin behind what came.
        debug_assert!(
            bytes == 0
                || self
                    .readers
                    .get(reader.0)
                    .is_some_and(|one| one.at <= object.received)
        );
        if !object.is_linked
            && let Some(fill) = object.fill
        {
            self.drop_read(fill, number);
            self.unblock(FetchId(fill));
        }
    }

    /// The body was sent, or its client went away.
    pub fn end(&mut self, reader: ReaderId) {
        let Some(one) = self.readers.get(reader.0) else {
            return;
        };
        let number = one.object;
        let fill = self.object(number).fill;
        let is_passed_on = !self.object(number).is_linked;
        self.remove_reader(reader.0);
        if let Some(fill) = fill.filter(|_| is_passed_on) {
            if self.drop_read(fill, number) {
                self.unblock(FetchId(fill));
            } else {
                self.abandon(FetchId(fill));
            }
        }
    }

    /// A fetch whose bytes were not taken may go on.
    fn unblock(&mut self, fetch: FetchId) {
        if let Some(transfer) = self.fetches.named_mut(fetch.0)
            && core::mem::take(&mut transfer.is_blocked)
        {
            self.events.push_back(Event::Continue(fetch));
        }
    }
}
