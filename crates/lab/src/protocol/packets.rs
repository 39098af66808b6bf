//! What each packet costs: instructions, branches, accesses, and the cache lines that it touches.

use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasherDefault, Hasher};

use fairlead_trace::references::{Event, Header};
use serde::Serialize;

use super::spread::{Spread, Values};
use crate::error::LabError;

/// Pages of 4 KiB that one packet may touch: 16 GiB.
const PAGES_MAX: usize = 1 << 22;
const PAGE_SHIFT: u32 = 12;
/// The smaller of the two line sizes: a page has 128 lines, one bit each.
const LINE_SHIFT: u32 = 5;

/// Counts of one kind of packet.
#[derive(Clone, Debug, Serialize)]
pub struct KindCounts {
    /// The kind's number.
    pub kind: u8,
    /// Its name.
    pub name: String,
    /// Packets that have begun and ended.
    pub packets: u64,
    /// Instructions; rounds of `rep` count once.
    pub instructions: Spread,
    /// Jumps, calls and returns, taken or not; `None` for instruction sets of which they are not
    /// known.
    pub branches: Option<Spread>,
    /// Reads.
    pub reads: Spread,
    /// Writes.
    pub writes: Spread,
    /// Distinct lines of 32 bytes with instructions.
    pub instruction_lines_32: Spread,
    /// Distinct lines of 64 bytes with instructions.
    pub instruction_lines_64: Spread,
    /// Distinct lines of 32 bytes that are read or written.
    pub data_lines_32: Spread,
    /// Distinct lines of 64 bytes that are read or written.
    pub data_lines_64: Spread,
    /// Packets during which a kernel took an interrupt; they are among the others.
    pub interrupted: u64,
}

/// Whether branches of this instruction set are recognized.
pub fn knows_branches(isa: &str) -> bool {
    matches!(isa, "x86_64" | "aarch64") || isa.starts_with("mips")
}

const METRICS: usize = 8;

#[derive(Clone, Copy, Debug, Default)]
struct Current {
    instructions: u64,
    branches: u64,
    reads: u64,
    writes: u64,
    is_interrupted: bool,
}

/// Counts packets, in bounded memory.
#[derive(Debug, Default)]
pub struct Counter {
    inside: Option<u8>,
    is_whole: bool,
    current: Current,
    instructions: Lines,
    accesses: Lines,
    kinds: BTreeMap<u8, Kind>,
    /// Addresses at which a kernel takes interrupts, in order.
    interrupts: Vec<u64>,
}

#[derive(Debug, Default)]
struct Kind {
    values: [Values; METRICS],
    interrupted: u64,
}

impl Counter {
    /// For a trace of packets, or of a `whole_run`, which counts as one.
    pub fn new(whole_run: bool) -> Self {
        Self {
            inside: whole_run.then_some(0),
            is_whole: whole_run,
            ..Self::default()
        }
    }

    /// For this trace. Packets in which the kernel takes an interrupt are counted, too.
    pub fn of(header: &Header) -> Self {
        Self {
            interrupts: header.interrupts(),
            ..Self::new(header.whole_run)
        }
    }

    fn is_interrupt(&self, address: u64) -> bool {
        let (Some(first), Some(last)) = (self.interrupts.first(), self.interrupts.last()) else {
            return false;
        };
        (*first..=*last).contains(&address) && self.interrupts.binary_search(&address).is_ok()
    }

    /// Counts events.
    ///
    /// # Errors
    /// A packet touches more memory than any packet does.
    pub fn add(&mut self, events: &[Event]) -> Result<(), LabError> {
        for event in events {
            match *event {
                Event::Instruction {
                    address,
                    length,
                    branch,
                    repeat,
                } => {
                    self.current.instructions += u64::from(!repeat);
                    self.current.branches += u64::from(branch);
                    self.current.is_interrupted |= self.is_interrupt(address);
                    self.instructions.touch(address, length);
                }
                Event::Read { address, size } => {
                    self.current.reads += 1;
                    self.accesses.touch(address, size);
                }
                Event::Write { address, size } => {
                    self.current.writes += 1;
                    self.accesses.touch(address, size);
                }
                Event::Begin { .. } | Event::End { .. } if self.is_whole => {}
                Event::Begin { kind } => self.begin(kind),
                Event::End { .. } => self.end(),
            }
        }
        if self.instructions.pages() + self.accesses.pages() > PAGES_MAX {
            return Err(LabError::Protocol(
                "a packet touches more than 16 GiB of memory".to_owned(),
            ));
        }
        Ok(())
    }

    fn begin(&mut self, kind: u8) {
        self.inside = Some(kind);
        self.current = Current::default();
        self.instructions.clear();
        self.accesses.clear();
    }

    fn end(&mut self) {
        let Some(kind) = self.inside.take() else {
            return;
        };
        let (instruction_32, instruction_64) = self.instructions.count();
        let (data_32, data_64) = self.accesses.count();
        let Current {
            instructions,
            branches,
            reads,
            writes,
            is_interrupted,
        } = self.current;
        let counts = [
            instructions,
            branches,
            reads,
            writes,
            instruction_32,
            instruction_64,
            data_32,
            data_64,
        ];
        let of_kind = self.kinds.entry(kind).or_default();
        of_kind.interrupted += u64::from(is_interrupted);
        for (values, count) in of_kind.values.iter_mut().zip(counts) {
            values.add(count);
        }
    }

    /// The counts by kind; a packet without an end is left out.
    pub fn finish(mut self, header: &Header) -> Vec<KindCounts> {
        if self.is_whole {
            self.end();
        }
        let knows_branches = knows_branches(&header.isa);
        let counts = |(kind, of_kind): (u8, Kind)| {
            let [instructions, branches, reads, writes, i32, i64, d32, d64] = of_kind
                .values
                .map(|values| (values.number(), values.spread()));
            KindCounts {
                kind,
                name: if self.is_whole {
                    "whole run".to_owned()
                } else {
                    header.kind_name(kind)
                },
                packets: instructions.0,
                instructions: instructions.1,
                branches: knows_branches.then_some(branches.1),
                reads: reads.1,
                writes: writes.1,
                instruction_lines_32: i32.1,
                instruction_lines_64: i64.1,
                data_lines_32: d32.1,
                data_lines_64: d64.1,
                interrupted: of_kind.interrupted,
            }
        };
        self.kinds.into_iter().map(counts).collect()
    }
}

/// Distinct lines: one bit for each of a page.
#[derive(Debug, Default)]
struct Lines {
    pages: HashMap<u64, u128, BuildHasherDefault<PageHasher>>,
    /// The page that was touched last, and its lines, not yet among `pages`.
    last: Option<(u64, u128)>,
}

impl Lines {
    #[inline]
    fn touch(&mut self, address: u64, bytes: u8) {
        let last = address.wrapping_add(u64::from(bytes).saturating_sub(1));
        let (first_line, last_line) = (address >> LINE_SHIFT, last >> LINE_SHIFT);
        self.touch_line(first_line);
        if last_line != first_line {
            // At most 64 bytes: three lines of 32.
            self.touch_line(first_line.wrapping_add(1));
            self.touch_line(last_line);
        }
    }

    #[inline]
    fn touch_line(&mut self, line: u64) {
        let page = line >> (PAGE_SHIFT - LINE_SHIFT);
        let bit = 1 << (line & ((1 << (PAGE_SHIFT - LINE_SHIFT)) - 1));
        match &mut self.last {
            Some((last, lines)) if *last == page => *lines |= bit,
            _ => {
                self.keep();
                let lines = self.pages.get(&page).copied().unwrap_or_default();
                self.last = Some((page, lines | bit));
            }
        }
    }

    fn keep(&mut self) {
        if let Some((page, lines)) = self.last.take() {
            self.pages.insert(page, lines);
        }
    }

    fn pages(&self) -> usize {
        self.pages.len()
    }

    fn clear(&mut self) {
        self.pages.clear();
        self.last = None;
    }

    /// Lines of 32 and of 64 bytes.
    fn count(&mut self) -> (u64, u64) {
        /// The even lines of a page.
        const EVEN: u128 = u128::MAX / 3;
        self.keep();
        self.pages.values().fold((0, 0), |(small, large), lines| {
            let pairs = (lines | lines >> 1) & EVEN;
            (
                small + u64::from(lines.count_ones()),
                large + u64::from(pairs.count_ones()),
            )
        })
    }
}

/// Hashes a page's number.
#[derive(Default)]
struct PageHasher(u64);

impl Hasher for PageHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(u64::from(*byte) ^ self.0);
        }
    }

    fn write_u64(&mut self, number: u64) {
        let mixed = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = mixed ^ mixed >> 32;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use fairlead_trace::references::Symbol;
    use proptest::prelude::*;

    use super::*;

    fn fetch(address: u64, branch: bool, repeat: bool) -> Event {
        Event::Instruction {
            address,
            length: 4,
            branch,
            repeat,
        }
    }

    #[test]
    fn packets_are_counted_by_kind() {
        let mut counter = Counter::new(false);
        let packet = |kind, more: u64| {
            let mut events = vec![
                Event::Begin { kind },
                fetch(0x1000, false, false),
                fetch(0x101e, true, false),
                Event::Read {
                    address: 0x2ffc,
                    size: 8,
                },
                fetch(0x101e, true, true),
                Event::Write {
                    address: 0x2000,
                    size: 64,
                },
            ];
            events.extend((0..more).map(|at| fetch(0x1000 + 64 * at, false, false)));
            events.push(Event::End { kind });
            events
        };
        // What is between packets is not counted.
        counter.add(&[fetch(0x9000, false, false)]).unwrap();
        counter.add(&packet(1, 0)).unwrap();
        counter.add(&packet(2, 3)).unwrap();
        counter.add(&packet(1, 2)).unwrap();
        counter.add(&[Event::Begin { kind: 7 }]).unwrap();
        let mut header = Header {
            isa: "x86_64".to_owned(),
            ..Header::default()
        };
        header.kinds = vec![String::new(), "ACK".to_owned()];
        let kinds = counter.finish(&header);
        let names: Vec<_> = kinds
            .iter()
            .map(|kind| (kind.name.as_str(), kind.packets))
            .collect();
        assert_eq!(names, [("ACK", 2), ("kind 2", 1)]);
        let ack = &kinds[0];
        assert_eq!((ack.instructions.least, ack.instructions.most), (2, 4));
        assert_eq!(ack.branches.unwrap().most, 2);
        assert_eq!((ack.reads.most, ack.writes.most), (1, 1));
        // 0x1000 and the straddling 0x101e: two lines of 32, one of 64.
        let of = |spread: Spread| (spread.least, spread.most);
        assert_eq!(of(ack.instruction_lines_32), (2, 3));
        assert_eq!(of(ack.instruction_lines_64), (1, 2));
        // The read crosses into the next page.
        assert_eq!(of(ack.data_lines_32), (4, 4));
        assert_eq!(of(ack.data_lines_64), (3, 3));
    }

    #[test]
    fn packets_with_an_interrupt_are_kept_and_counted() {
        let symbol = |address, name: &str| Symbol {
            address,
            size: 16,
            name: name.to_owned(),
        };
        let header = Header {
            symbols: vec![
                symbol(0x100, "tcp_ack"),
                symbol(0x200, "asm_exc_page_fault"),
                symbol(0x300, "asm_sysvec_apic_timer_interrupt"),
            ],
            ..Header::default()
        };
        let mut counter = Counter::of(&header);
        for address in [0x100, 0x200, 0x300, 0x304] {
            let (begin, end) = (Event::Begin { kind: 0 }, Event::End { kind: 0 });
            let events = [begin, fetch(address, false, false), end];
            counter.add(&events).unwrap();
        }
        let kinds = counter.finish(&header);
        assert_eq!((kinds[0].packets, kinds[0].interrupted), (4, 1));
        let name = |address| header.symbol_at(address).map(|symbol| symbol.name.as_str());
        assert_eq!(
            [name(0x10f), name(0x110), name(0xff)],
            [Some("tcp_ack"), None, None]
        );
    }

    #[test]
    fn a_whole_run_is_one_packet() {
        let mut counter = Counter::new(true);
        let mark = Event::Begin { kind: 3 };
        counter
            .add(&[fetch(0, false, false), mark, fetch(64, true, false)])
            .unwrap();
        let kinds = counter.finish(&Header::default());
        assert_eq!((kinds.len(), kinds[0].name.as_str()), (1, "whole run"));
        assert_eq!(kinds[0].instructions.median, 2);
        assert!(
            kinds[0].branches.is_none(),
            "unknown of an unknown instruction set"
        );
    }

    proptest! {
        #[test]
        fn lines_are_those_of_a_set(
            accesses in prop::collection::vec((0..40_000u64, 1..65u8), 0..80)
        ) {
            let mut lines = Lines::default();
            let (mut small, mut large) = (BTreeSet::new(), BTreeSet::new());
            for (address, bytes) in accesses {
                lines.touch(address, bytes);
                for byte in address..address + u64::from(bytes) {
                    small.insert(byte / 32);
                    large.insert(byte / 64);
                }
            }
            prop_assert_eq!(lines.count(), (small.len() as u64, large.len() as u64));
        }
    }
}
