//! A trace in pieces: the references of each packet, apart by instruction and data.

use std::ops::Range;

use fairlead_cache::memory::Side;
use fairlead_trace::references::{Event, Header};

/// One reference.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Reference {
    pub(crate) address: u64,
    pub(crate) size: u8,
    pub(crate) side: Side,
}

/// References of one packet that are in one chunk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    /// The packet's kind.
    pub(crate) kind: u8,
    /// Its first references.
    pub(crate) begins: bool,
    /// Its last references.
    pub(crate) ends: bool,
    /// It is one of the first of its kind, which only fill the caches.
    pub(crate) warms_up: bool,
    pub(crate) all: Range<usize>,
    pub(crate) fetches: Range<usize>,
    pub(crate) accesses: Range<usize>,
}

/// Packets, or parts of packets.
#[derive(Clone, Debug, Default)]
pub(crate) struct Chunk {
    /// In the order of execution.
    pub(crate) all: Vec<Reference>,
    /// Instructions of `all`.
    pub(crate) fetches: Vec<Reference>,
    /// Reads and writes of `all`.
    pub(crate) accesses: Vec<Reference>,
    pub(crate) pieces: Vec<Piece>,
}

impl Chunk {
    fn clear(&mut self) {
        self.all.clear();
        self.fetches.clear();
        self.accesses.clear();
        self.pieces.clear();
    }

    fn ends(&self) -> [usize; 3] {
        [self.all.len(), self.fetches.len(), self.accesses.len()]
    }
}

/// Number of kinds.
pub(crate) const KINDS: usize = 1 << 8;

/// Cuts events into packets. What a program does between packets is left out; a trace without
/// packets is one packet of kind 0.
#[derive(Clone, Debug)]
pub(crate) struct Cutter {
    whole: bool,
    warm_up: u64,
    begun: Vec<u64>,
    inside: Option<u8>,
    /// The read before, which a write of the same bytes makes a modification.
    read: Option<(u64, u8)>,
    fresh: bool,
}

impl Cutter {
    pub(crate) fn new(header: &Header, warm_up: u64) -> Self {
        let whole = header.totals.packets == 0;
        Self {
            whole,
            warm_up: if whole { 0 } else { warm_up },
            begun: vec![0; KINDS],
            inside: whole.then_some(0),
            read: None,
            fresh: true,
        }
    }

    /// Replaces the contents of `chunk`.
    pub(crate) fn cut(&mut self, events: &[Event], chunk: &mut Chunk) {
        chunk.clear();
        let mut start = [0; 3];
        for event in events {
            let (address, size, side) = match *event {
                // What a processor does in one instruction.
                Event::Instruction { repeat: true, .. } => {
                    self.read = None;
                    continue;
                }
                Event::Instruction {
                    address, length, ..
                } => (address, length, Side::Instruction),
                Event::Read { address, size } => (address, size, Side::Read),
                Event::Write { address, size } => (address, size, Side::Write),
                Event::Begin { kind } => {
                    if !self.whole {
                        self.begun[usize::from(kind)] += 1;
                        self.inside = Some(kind);
                        self.fresh = true;
                        start = chunk.ends();
                    }
                    continue;
                }
                Event::End { .. } => {
                    if !self.whole {
                        self.piece(chunk, &mut start, true);
                        self.inside = None;
                    }
                    continue;
                }
            };
            let last = self.read.take();
            if self.inside.is_none() || side == Side::Write && last == Some((address, size)) {
                continue;
            }
            let reference = Reference {
                address,
                size,
                side,
            };
            chunk.all.push(reference);
            if side == Side::Instruction {
                chunk.fetches.push(reference);
            } else {
                chunk.accesses.push(reference);
                self.read = (side == Side::Read).then_some((address, size));
            }
        }
        self.piece(chunk, &mut start, false);
    }

    /// The end of the trace.
    pub(crate) fn finish(&mut self, chunk: &mut Chunk) {
        chunk.clear();
        self.piece(chunk, &mut [0; 3], true);
        self.inside = None;
    }

    fn piece(&mut self, chunk: &mut Chunk, start: &mut [usize; 3], ends: bool) {
        let Some(kind) = self.inside else { return };
        let end = chunk.ends();
        chunk.pieces.push(Piece {
            kind,
            begins: std::mem::take(&mut self.fresh),
            ends,
            warms_up: !self.whole && self.begun[usize::from(kind)] <= self.warm_up,
            all: start[0]..end[0],
            fetches: start[1]..end[1],
            accesses: start[2]..end[2],
        });
        *start = end;
    }
}

#[cfg(test)]
mod tests {
    use fairlead_trace::references::Totals;

    use super::*;

    fn instruction(address: u64, repeat: bool) -> Event {
        Event::Instruction {
            address,
            length: 4,
            branch: false,
            repeat,
        }
    }

    fn header(packets: u64) -> Header {
        let totals = Totals {
            packets,
            ..Totals::default()
        };
        Header {
            totals,
            ..Header::default()
        }
    }

    #[test]
    fn packets_are_cut_over_chunks() {
        let mut cutter = Cutter::new(&header(2), 1);
        let mut chunk = Chunk::default();
        let (address, size) = (640, 8);
        let events = [
            instruction(0, false),
            Event::Begin { kind: 3 },
            instruction(4, false),
            instruction(4, true),
            Event::Read { address, size },
            Event::Write { address, size },
            Event::Write { address, size },
            Event::End { kind: 3 },
            Event::Read { address, size },
            Event::Begin { kind: 3 },
            instruction(8, false),
        ];
        cutter.cut(&events, &mut chunk);
        assert_eq!(chunk.fetches.len(), 2);
        assert_eq!(chunk.accesses.len(), 2, "a modification is a read");
        let [first, second] = &chunk.pieces[..] else {
            panic!("{:?}", chunk.pieces);
        };
        assert!(first.begins && first.ends && first.warms_up);
        assert_eq!((first.all.clone(), first.accesses.clone()), (0..3, 0..2));
        assert!(second.begins && !second.ends && !second.warms_up);
        cutter.cut(
            &[instruction(12, false), Event::End { kind: 3 }],
            &mut chunk,
        );
        let [piece] = &chunk.pieces[..] else {
            panic!("{:?}", chunk.pieces);
        };
        assert!(!piece.begins && piece.ends);
        let again = [
            Event::Begin { kind: 3 },
            Event::Read { address, size },
            instruction(4, true),
            Event::Write { address, size },
            Event::End { kind: 3 },
        ];
        let mut other = Chunk::default();
        cutter.cut(&again, &mut other);
        assert_eq!(other.accesses.len(), 2, "two rounds of an instruction");
        assert_eq!((piece.kind, piece.fetches.clone()), (3, 0..1));
        cutter.finish(&mut chunk);
        assert!(chunk.pieces.is_empty());
    }

    #[test]
    fn a_trace_without_packets_is_one() {
        let mut cutter = Cutter::new(&header(0), 10);
        let mut chunk = Chunk::default();
        cutter.cut(&[instruction(0, false)], &mut chunk);
        assert!(chunk.pieces[0].begins && !chunk.pieces[0].ends && !chunk.pieces[0].warms_up);
        cutter.cut(&[instruction(4, false)], &mut chunk);
        assert!(!chunk.pieces[0].begins);
        cutter.finish(&mut chunk);
        assert!(chunk.pieces[0].ends && chunk.pieces[0].all.is_empty());
    }
}
