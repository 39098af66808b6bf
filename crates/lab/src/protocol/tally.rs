//! What a sweep counts, one worker for each part: families of one line size, or one machine.

use fairlead_cache::memory::{
    Counts, Depths, FamilySet, Hierarchy, PolicyLevel, Replacement, TooScattered,
};

use super::chunk::{Chunk, KINDS, Piece, Reference};
use super::machine::Machine;
use super::spread::Values;
use super::sweep::Cell;
use crate::error::LabError;

/// Whether caches are emptied before each packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// Emptied before each packet.
    Cold,
    /// As the packets before left them.
    Warm,
}

impl State {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Cold => "cold",
            Self::Warm => "warm",
        }
    }
}

/// Both.
pub(crate) const STATES: [State; 2] = [State::Cold, State::Warm];

/// Which references.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Part {
    /// Instruction fetches.
    Instruction,
    /// Reads and writes.
    Data,
}

impl Part {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Instruction => "instruction",
            Self::Data => "data",
        }
    }

    fn references<'a>(self, chunk: &'a Chunk, piece: &Piece) -> &'a [Reference] {
        match self {
            Self::Instruction => &chunk.fetches[piece.fetches.clone()],
            Self::Data => &chunk.accesses[piece.accesses.clone()],
        }
    }
}

/// What was counted of one kind of packet by families.
#[derive(Clone, Debug)]
pub(crate) struct KindDepths {
    pub(crate) accesses: u64,
    pub(crate) depths: Vec<Depths>,
}

/// LRU caches of one line size, for one part, in one state.
#[derive(Debug)]
pub(crate) struct FamilyTally {
    pub(crate) part: Part,
    pub(crate) state: State,
    pub(crate) line: u32,
    pub(crate) sets: Vec<u32>,
    families: FamilySet,
    /// By kind; the last is for packets that warm up.
    pub(crate) kinds: Vec<Option<KindDepths>>,
}

impl FamilyTally {
    pub(crate) fn new(part: Part, state: State, line: u32, sets: &[u32]) -> Result<Self, LabError> {
        let families = FamilySet::new(line, sets);
        Ok(Self {
            part,
            state,
            line,
            sets: sets.to_vec(),
            families: families.map_err(|error| LabError::Geometry(error.to_string()))?,
            kinds: vec![None; KINDS + 1],
        })
    }

    fn add(&mut self, chunk: &Chunk) -> Result<(), TooScattered> {
        for piece in &chunk.pieces {
            if piece.begins && self.state == State::Cold {
                self.families.flush();
            }
            let feed = self.families.feed();
            for reference in self.part.references(chunk, piece) {
                feed.push(reference.address, u32::from(reference.size))?;
            }
            let counted =
                self.kinds[counted_at(piece, self.state)].get_or_insert_with(|| KindDepths {
                    accesses: 0,
                    depths: vec![Depths::default(); self.sets.len()],
                });
            counted.accesses += self.families.run(&mut counted.depths);
        }
        Ok(())
    }
}

/// Where a piece is counted: by its kind; the last is for packets that warm up.
fn counted_at(piece: &Piece, state: State) -> usize {
    match piece.warms_up && state == State::Warm {
        true => KINDS,
        false => usize::from(piece.kind),
    }
}

/// What was counted of one kind of packet by one cache.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct KindMisses {
    pub(crate) accesses: u64,
    pub(crate) misses: u64,
}

/// One cache under a policy, for one part, in one state.
#[derive(Debug)]
pub(crate) struct PolicyTally {
    pub(crate) part: Part,
    pub(crate) state: State,
    pub(crate) cell: Cell,
    level: PolicyLevel,
    /// By kind; the last is for packets that warm up.
    pub(crate) kinds: Vec<Option<KindMisses>>,
}

impl PolicyTally {
    pub(crate) fn new(
        part: Part,
        state: State,
        cell: Cell,
        replacement: &Replacement,
    ) -> Result<Self, LabError> {
        let level = PolicyLevel::new(cell.geometry()?, replacement);
        Ok(Self {
            part,
            state,
            cell,
            level: level.map_err(|error| LabError::Geometry(error.to_string()))?,
            kinds: vec![None; KINDS + 1],
        })
    }

    fn add(&mut self, chunk: &Chunk) {
        for piece in &chunk.pieces {
            if piece.begins && self.state == State::Cold {
                self.level.flush();
            }
            let references = self.part.references(chunk, piece);
            let missed = |one: &&Reference| self.level.misses(one.address, one.size.into());
            let misses = references.iter().filter(missed).count() as u64;
            let counted = self.kinds[counted_at(piece, self.state)].get_or_insert_default();
            counted.accesses += references.len() as u64;
            counted.misses += misses;
        }
    }
}

/// What was counted of one kind of packet on a machine.
#[derive(Clone, Debug, Default)]
pub(crate) struct KindCounts {
    /// Sums over all packets.
    pub(crate) counts: Counts,
    /// Misses per packet: instructions and data in the first level, both in the second.
    pub(crate) i1: Values,
    pub(crate) d1: Values,
    pub(crate) l2_instructions: Values,
    pub(crate) l2_data: Values,
    /// Rounded to whole ones.
    pub(crate) cycles: Values,
}

/// A machine's caches in one state.
#[derive(Debug)]
pub(crate) struct MachineTally {
    pub(crate) machine: Machine,
    pub(crate) state: State,
    caches: Hierarchy,
    packet: Counts,
    pub(crate) kinds: Vec<Option<Box<KindCounts>>>,
}

impl MachineTally {
    pub(crate) fn new(machine: &Machine, state: State) -> Result<Self, LabError> {
        Ok(Self {
            machine: machine.clone(),
            state,
            caches: machine.caches()?,
            packet: Counts::default(),
            kinds: vec![None; KINDS],
        })
    }

    fn add(&mut self, chunk: &Chunk) {
        for piece in &chunk.pieces {
            if piece.begins {
                self.packet = Counts::default();
                if self.state == State::Cold {
                    self.caches.flush();
                }
            }
            for reference in &chunk.all[piece.all.clone()] {
                let (address, size) = (reference.address, u32::from(reference.size));
                let missed = self.caches.access(reference.side, address, size);
                self.packet.add(reference.side, missed);
            }
            if piece.ends && !(piece.warms_up && self.state == State::Warm) {
                self.end(piece.kind);
            }
        }
    }

    fn end(&mut self, kind: u8) {
        let packet = self.packet;
        let kept = self.kinds[usize::from(kind)].get_or_insert_default();
        kept.i1.add(packet.i1_misses);
        kept.d1.add(packet.d1_misses());
        kept.l2_instructions.add(packet.ll_instruction_misses);
        kept.l2_data.add(packet.ll_data_misses());
        let cycles = self.machine.cycles(&packet, 1.0).total();
        kept.cycles.add(cycles.round() as u64);
        kept.counts.sum(&packet);
    }
}

/// References and lines of packets of one kind.
#[derive(Clone, Debug, Default)]
pub(crate) struct KindPackets {
    pub(crate) instructions: Values,
    pub(crate) accesses: Values,
    /// Distinct lines of 32 and of 64 bytes: of instructions, of data.
    pub(crate) lines: [[Values; 2]; 2],
}

/// Sizes of packets, counted in all of them, those that warm up included.
#[derive(Debug, Default)]
pub(crate) struct PacketTally {
    counted: [u64; 2],
    /// Lines of 32 bytes of the packet: of instructions, of data.
    lines: [Lines; 2],
    pub(crate) kinds: Vec<Option<Box<KindPackets>>>,
}

impl PacketTally {
    pub(crate) fn new() -> Self {
        Self {
            kinds: vec![None; KINDS],
            ..Self::default()
        }
    }

    fn add(&mut self, chunk: &Chunk) {
        for piece in &chunk.pieces {
            if piece.begins {
                self.counted = [0; 2];
                self.lines.iter_mut().for_each(Lines::clear);
            }
            for (at, part) in [Part::Instruction, Part::Data].into_iter().enumerate() {
                let references = part.references(chunk, piece);
                self.counted[at] += references.len() as u64;
                references.iter().for_each(|one| self.lines[at].add(one));
            }
            if piece.ends {
                self.end(piece.kind);
            }
        }
    }

    fn end(&mut self, kind: u8) {
        let kept = self.kinds[usize::from(kind)].get_or_insert_default();
        kept.instructions.add(self.counted[0]);
        kept.accesses.add(self.counted[1]);
        for (lines, values) in self.lines.iter_mut().zip(&mut kept.lines) {
            let [small, large] = lines.number();
            values[0].add(small);
            values[1].add(large);
        }
    }
}

/// Most distinct lines that are counted for a packet, and the number kept at which they are sorted.
pub(crate) const LINES_MAX: usize = 1 << 22;
const LINES_KEPT: usize = 1 << 16;

/// Distinct lines.
#[derive(Debug)]
struct Lines {
    kept: Vec<u64>,
    sort_at: usize,
    last: Option<u64>,
}

impl Default for Lines {
    fn default() -> Self {
        Self {
            kept: Vec::new(),
            sort_at: LINES_KEPT,
            last: None,
        }
    }
}

impl Lines {
    fn clear(&mut self) {
        self.kept.clear();
        self.sort_at = LINES_KEPT;
        self.last = None;
    }

    fn add(&mut self, reference: &Reference) {
        let (first, size) = (reference.address, u64::from(reference.size));
        let last = first.saturating_add(size.saturating_sub(1)) >> 5;
        for line in first >> 5..=last {
            if self.last == Some(line) || self.sort_at > 2 * LINES_MAX {
                continue;
            }
            self.last = Some(line);
            self.kept.push(line);
            if self.kept.len() >= self.sort_at {
                self.sort();
                self.sort_at = LINES_KEPT.max(2 * self.kept.len());
            }
        }
    }

    fn sort(&mut self) {
        self.kept.sort_unstable();
        self.kept.dedup();
    }

    /// Distinct lines of 32 and of 64 bytes.
    fn number(&mut self) -> [u64; 2] {
        self.sort();
        let small = self.kept.len() as u64;
        self.kept.iter_mut().for_each(|line| *line >>= 1);
        self.kept.dedup();
        [small, self.kept.len() as u64]
    }
}

/// One worker's part.
#[derive(Debug)]
pub(crate) enum Tally {
    Family(Box<FamilyTally>),
    Policy(Box<PolicyTally>),
    Machine(Box<MachineTally>),
    Packets(Box<PacketTally>),
}

impl Tally {
    pub(crate) fn add(&mut self, chunk: &Chunk) -> Result<(), LabError> {
        match self {
            Self::Family(tally) => tally
                .add(chunk)
                .map_err(|error| LabError::Trace(error.to_string())),
            Self::Policy(tally) => {
                tally.add(chunk);
                Ok(())
            }
            Self::Machine(tally) => {
                tally.add(chunk);
                Ok(())
            }
            Self::Packets(tally) => {
                tally.add(chunk);
                Ok(())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::chunk::Cutter;
    use fairlead_trace::references::{Event, Header, Totals};

    /// Packets of `lines` instructions, each in a line of its own, and one access.
    fn chunk(packets: u8, lines: u64) -> Chunk {
        let mut events = Vec::new();
        for _ in 0..packets {
            events.push(Event::Begin { kind: 1 });
            for line in 0..lines {
                events.push(Event::Instruction {
                    address: line * 64 + 60,
                    length: 2,
                    branch: false,
                    repeat: false,
                });
            }
            events.push(Event::Write {
                address: 1 << 40,
                size: 8,
            });
            events.push(Event::End { kind: 1 });
        }
        let header = Header {
            totals: Totals {
                packets: u64::from(packets),
                ..Totals::default()
            },
            ..Header::default()
        };
        let mut chunk = Chunk::default();
        Cutter::new(&header, 1).cut(&events, &mut chunk);
        chunk
    }

    #[test]
    fn cold_packets_miss_each_line_and_warm_ones_what_does_not_fit() {
        let chunk = chunk(5, 8);
        let misses = |part, state, ways| {
            let mut tally = FamilyTally::new(part, state, 64, &[1]).unwrap();
            tally.add(&chunk).unwrap();
            let counted = tally.kinds[1].clone().unwrap();
            (counted.accesses, counted.depths[0].misses(ways))
        };
        assert_eq!(misses(Part::Instruction, State::Cold, 8), (40, 40));
        // The first packet warms up.
        assert_eq!(misses(Part::Instruction, State::Warm, 8), (32, 0));
        assert_eq!(misses(Part::Instruction, State::Warm, 7), (32, 32));
        assert_eq!(misses(Part::Data, State::Warm, 1), (4, 0));
        assert_eq!(misses(Part::Data, State::Cold, 1), (5, 5));
    }

    #[test]
    fn machines_and_packets_are_counted_by_packet() {
        let chunk = chunk(5, 8);
        let machine = Machine::find("zen4").unwrap();
        for (state, packets, misses) in [(State::Cold, 5, 8), (State::Warm, 4, 0)] {
            let mut tally = MachineTally::new(&machine, state).unwrap();
            tally.add(&chunk);
            let kept = tally.kinds[1].take().unwrap();
            assert_eq!(kept.i1.number(), packets);
            assert_eq!(kept.i1.spread().median, misses);
            assert_eq!(kept.counts.instructions, 8 * packets);
        }
        let mut packets = PacketTally::new();
        packets.add(&chunk);
        let kept = packets.kinds[1].take().unwrap();
        assert_eq!(kept.instructions.spread().median, 8);
        assert_eq!(kept.accesses.spread().median, 1);
        let lines = |at: usize, size: usize| kept.lines[at][size].spread().median;
        assert_eq!((lines(0, 0), lines(0, 1), lines(1, 0)), (8, 8, 1));
    }
}
