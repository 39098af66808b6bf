//! The card's side of one connection: what is still to be sent, where the buffers are, how the
//! connection ends. Whatever comes from the program is checked here.

use alloc::collections::VecDeque;

use crate::layout::{RANGES, RECEIVE_BYTES, SEND_BYTES};
use crate::piece::Piece;
use crate::ring::{Span, used};

/// Pieces that wait: ranges of files, and bytes before, between and behind them.
const PIECES_MAX: usize = 2 * RANGES as usize + 1;

/// What a program cannot have written if it keeps the rules. Its connection is reset.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fault {
    /// An address names nothing, or not what follows.
    Address,
    /// More bytes than the send buffer has.
    SendBuffer,
    /// The read position is outside of the receive buffer.
    ReadPosition,
    /// Too many ranges of files wait.
    Ranges,
    /// Bytes behind the end of the stream.
    AfterEnd,
}

impl Fault {
    /// All of them.
    pub const ALL: [Self; 5] = [
        Self::Address,
        Self::SendBuffer,
        Self::ReadPosition,
        Self::Ranges,
        Self::AfterEnd,
    ];

    /// Its name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Address => "address",
            Self::SendBuffer => "send_buffer",
            Self::ReadPosition => "read_position",
            Self::Ranges => "ranges",
            Self::AfterEnd => "after_end",
        }
    }
}

/// How far the program's stream has ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Ending {
    /// It has not.
    #[default]
    Open,
    /// A FIN follows the last piece.
    Asked,
    /// The FIN is sent.
    Sent,
}

/// One connection.
#[derive(Clone, Debug, Default)]
pub struct Line {
    pieces: VecDeque<Piece>,
    /// Ranges among them.
    ranges: u32,
    /// The position behind the last byte that the program has sent.
    sent: u32,
    taken: u32,
    received: u32,
    ranges_done: u32,
    ending: Ending,
    /// The program has closed its last descriptor.
    is_closed: bool,
}

impl Line {
    /// `ch_nic_send`.
    ///
    /// # Errors
    /// What the program cannot have written.
    pub fn send(&mut self, address: u64) -> Result<(), Fault> {
        let piece = Piece::from_address(address).ok_or(Fault::Address)?;
        if self.ending != Ending::Open {
            return Err(Fault::AfterEnd);
        }
        match piece {
            Piece::Bytes { from, len } => {
                if from != self.sent {
                    return Err(Fault::Address);
                }
                let end = self.sent.wrapping_add(len);
                used(end, self.taken, SEND_BYTES).ok_or(Fault::SendBuffer)?;
                self.sent = end;
                match self.pieces.back_mut() {
                    Some(Piece::Bytes { len: last, .. }) => *last += len,
                    _ => self.pieces.push_back(piece),
                }
            }
            Piece::Range { .. } => {
                if self.ranges == RANGES {
                    return Err(Fault::Ranges);
                }
                self.ranges += 1;
                self.pieces.push_back(piece);
            }
        }
        debug_assert!(self.pieces.len() <= PIECES_MAX);
        Ok(())
    }

    /// What is to be sent next, and whether more follows.
    pub fn next(&self) -> Option<(Piece, bool)> {
        Some((*self.pieces.front()?, self.pieces.len() > 1))
    }

    /// The place of bytes in the send buffer.
    pub fn span_of(from: u32, len: u32) -> Span {
        Span::of(from, len, SEND_BYTES)
    }

    /// The kernel has taken this many bytes of the first piece.
    pub fn took(&mut self, bytes: u32) {
        let Some(first) = self.pieces.front_mut() else {
            return;
        };
        let left = match first {
            Piece::Bytes { from, len } => {
                debug_assert!(bytes <= *len);
                *from = from.wrapping_add(bytes);
                self.taken = *from;
                len
            }
            Piece::Range { offset, len, .. } => {
                *offset += u64::from(bytes);
                len
            }
        };
        *left = left.saturating_sub(bytes);
        if *left == 0 {
            let is_range = matches!(first, Piece::Range { .. });
            self.ranges -= u32::from(is_range);
            self.ranges_done = self.ranges_done.wrapping_add(u32::from(is_range));
            self.pieces.pop_front();
        }
    }

    /// Nothing more can be sent: the connection has failed.
    pub fn forget_pieces(&mut self) {
        self.pieces.clear();
        self.ranges = 0;
    }

    /// The bytes that wait, if no range of a file does.
    pub fn waiting_bytes(&self) -> Option<(u32, u32)> {
        match self.pieces.front() {
            None => Some((self.taken, 0)),
            Some(&Piece::Bytes { from, len }) if self.pieces.len() == 1 => Some((from, len)),
            Some(_) => None,
        }
    }

    /// Positions for the program: bytes taken, ranges done.
    pub fn progress(&self) -> (u32, u32) {
        (self.taken, self.ranges_done)
    }

    /// At least half of the send buffer is free, and of the ranges.
    pub fn has_room(&self) -> bool {
        self.sent.wrapping_sub(self.taken) <= SEND_BYTES / 2 && self.ranges <= RANGES / 2
    }

    /// Where the receive buffer has room. `read` is the program's word.
    ///
    /// # Errors
    /// The word is impossible.
    pub fn free(&self, read: u32) -> Result<Span, Fault> {
        let unread = self.unread(read)?.len();
        Ok(Span::of(
            self.received,
            RECEIVE_BYTES - unread,
            RECEIVE_BYTES,
        ))
    }

    /// What the program has not read yet.
    ///
    /// # Errors
    /// As of [`Self::free`].
    pub fn unread(&self, read: u32) -> Result<Span, Fault> {
        let unread = used(self.received, read, RECEIVE_BYTES).ok_or(Fault::ReadPosition)?;
        Ok(Span::of(read, unread, RECEIVE_BYTES))
    }

    /// This many bytes were put there. Returns the position for the program.
    pub fn receive(&mut self, bytes: u32) -> u32 {
        self.received = self.received.wrapping_add(bytes);
        self.received
    }

    /// The program ends its stream.
    pub fn end(&mut self) {
        self.ending = self.ending.max(Ending::Asked);
    }

    /// The last descriptor is closed.
    pub fn close(&mut self) {
        self.is_closed = true;
    }

    /// See [`Self::close`].
    pub fn is_closed(&self) -> bool {
        self.is_closed
    }

    /// A FIN is due now. It is, once.
    pub fn take_fin(&mut self) -> bool {
        let is_due = self.ending == Ending::Asked && self.pieces.is_empty();
        if is_due {
            self.ending = Ending::Sent;
        }
        is_due
    }

    /// The connection can end: it is closed, and all is sent.
    pub fn is_over(&self) -> bool {
        self.is_closed && self.pieces.is_empty()
    }

    /// Neither closed nor ended, and no range of a file waits: it can be given back.
    pub fn can_leave(&self) -> bool {
        !self.is_closed && self.ending == Ending::Open && self.waiting_bytes().is_some()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn pieces_leave_in_order_and_the_fin_follows() {
        let mut line = Line::default();
        let bytes = |from, len| Piece::Bytes { from, len }.address().unwrap();
        line.send(bytes(0, 10)).unwrap();
        line.send(bytes(10, 5)).unwrap();
        let range = Piece::Range {
            file: 3,
            offset: 4_096,
            len: 7,
        };
        line.send(range.address().unwrap()).unwrap();
        line.end();
        assert_eq!(line.send(bytes(15, 1)), Err(Fault::AfterEnd));
        assert_eq!(line.next(), Some((Piece::Bytes { from: 0, len: 15 }, true)));
        line.took(11);
        assert_eq!(line.next(), Some((Piece::Bytes { from: 11, len: 4 }, true)));
        line.took(4);
        assert!(!line.can_leave() && line.waiting_bytes().is_none());
        assert_eq!(line.next(), Some((range, false)));
        assert!(!line.take_fin());
        line.took(7);
        assert_eq!(line.progress(), (15, 1));
        assert!(line.take_fin() && !line.take_fin());
        assert!(!line.is_over());
        line.close();
        assert!(line.is_over());
    }

    proptest! {
        #[test]
        fn no_program_breaks_the_bounds(
            orders in proptest::collection::vec((any::<u64>(), any::<u32>(), 0_u8..6), 0..200)
        ) {
            let mut line = Line::default();
            for (address, word, kind) in orders {
                match kind {
                    0 => { let _ = line.send(address); }
                    1 => {
                        let len = word % SEND_BYTES + 1;
                        let from = line.sent;
                        let _ = line.send(Piece::Bytes { from, len }.address().unwrap());
                    }
                    2 => if let Some((Piece::Bytes { len, .. } | Piece::Range { len, .. }, _)) =
                        line.next()
                    {
                        line.took(word % len + 1);
                    },
                    3 => if let Ok(free) = line.free(word) {
                        prop_assert!(free.len() <= RECEIVE_BYTES);
                        line.receive(free.len().min(word % 4_096));
                    },
                    4 => {
                        let piece = Piece::Range {
                            file: word as u16 % 512,
                            offset: 0,
                            len: word % 9 + 1,
                        };
                        let _ = line.send(piece.address().unwrap());
                    }
                    _ => if let Ok(unread) = line.unread(word) {
                        prop_assert!(unread.at + unread.first <= RECEIVE_BYTES);
                    },
                }
                prop_assert!(line.pieces.len() <= PIECES_MAX && line.ranges <= RANGES);
                prop_assert!(used(line.sent, line.taken, SEND_BYTES).is_some());
            }
        }
    }
}
