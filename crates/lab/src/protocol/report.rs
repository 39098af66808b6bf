//! What a sweep found, in rows: packets, misses, machines, clocks, the smallest cache that fits.

use std::collections::BTreeMap;

use fairlead_trace::references::Header;
use serde::Serialize;

use super::machine::{Cycles, Machine, ratio};
use super::spread::Spread;
use super::sweep::{Cell, LRU, SweepSpec};
use super::tally::{
    FamilyTally, KindCounts, MachineTally, PacketTally, Part, PolicyTally, State, Tally,
};
use crate::error::LabError;
use crate::size::Size;
use crate::table::Table;

/// Packets of one kind.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PacketRow {
    /// The kind.
    pub kind: String,
    /// How many were traced.
    pub packets: u64,
    /// Instructions of a packet.
    pub instructions: Spread,
    /// Reads and writes of a packet.
    pub accesses: Spread,
    /// Distinct lines of 32 bytes, of instructions.
    pub instruction_lines_32: Spread,
    /// Distinct lines of 64 bytes, of instructions.
    pub instruction_lines_64: Spread,
    /// Distinct lines of 32 bytes, of data.
    pub data_lines_32: Spread,
    /// Distinct lines of 64 bytes, of data.
    pub data_lines_64: Spread,
}

/// Misses in one cache of the sweep.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct MissRow {
    /// The kind of packet.
    pub kind: String,
    /// Instructions or data.
    pub part: Part,
    /// Cold or warm.
    pub state: State,
    /// Bytes of a line.
    pub line: u32,
    /// Ways.
    pub ways: u32,
    /// Capacity.
    pub size: Size,
    /// Packets that were counted.
    pub packets: u64,
    /// References.
    pub references: u64,
    /// Of which missed.
    pub misses: u64,
}

impl MissRow {
    /// Misses by references.
    pub fn miss_ratio(&self) -> f64 {
        ratio(self.misses as f64, self.references as f64)
    }

    /// Misses of a packet, the mean.
    pub fn per_packet(&self) -> f64 {
        ratio(self.misses as f64, self.packets as f64)
    }
}

/// The smallest cache in which warm packets miss less than once each.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct FitRow {
    /// The kind of packet.
    pub kind: String,
    /// Instructions or data.
    pub part: Part,
    /// Bytes of a line.
    pub line: u32,
    /// Ways.
    pub ways: u32,
    /// Its capacity; `None` if all of the sweep are too small.
    pub size: Option<Size>,
}

/// Packets of one kind on one machine.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct MachineRow {
    /// The kind of packet.
    pub kind: String,
    /// The machine.
    pub machine: String,
    /// Cold or warm.
    pub state: State,
    /// Packets that were counted.
    pub packets: u64,
    /// Misses of a packet in the first level, of instructions.
    pub i1_misses: Spread,
    /// Misses of a packet in the first level, of data.
    pub d1_misses: Spread,
    /// Misses of a packet in the second level, of instructions.
    pub l2_instruction_misses: Spread,
    /// Misses of a packet in the second level, of data.
    pub l2_data_misses: Spread,
    /// Misses by references in the instruction cache.
    pub i1_miss_ratio: f64,
    /// Misses by references in the data cache.
    pub d1_miss_ratio: f64,
    /// Memory cycles per instruction, waiting for instructions.
    pub mcpi_instructions: f64,
    /// Memory cycles per instruction, waiting for data.
    pub mcpi_data: f64,
    /// Cycles of a packet.
    pub cycles: Spread,
    /// Mean cycles of a packet if no instruction missed.
    pub cycles_ideal_instructions: f64,
    /// Mean cycles of a packet if no data missed.
    pub cycles_ideal_data: f64,
    /// Mean cycles of a packet if nothing missed.
    pub cycles_ideal: f64,
}

/// A machine with another clock, and memory as before.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ClockRow {
    /// The kind of packet.
    pub kind: String,
    /// The machine.
    pub machine: String,
    /// Cold or warm.
    pub state: State,
    /// How many times as fast the clock is.
    pub clock: f64,
    /// Mean nanoseconds of a packet.
    pub ns: f64,
    /// How many times as fast the packets are.
    pub gain: f64,
    /// Share of the time in which memory is waited for.
    pub stall_share: f64,
}

/// Everything.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// Of the program.
    pub version: &'static str,
    /// What was traced.
    pub command: Vec<String>,
    /// Instruction set.
    pub isa: String,
    /// Processor that was emulated.
    pub cpu: String,
    /// What was asked for.
    pub asked: SweepSpec,
    /// Packets.
    pub packets: Vec<PacketRow>,
    /// Misses, for each cache.
    pub misses: Vec<MissRow>,
    /// Smallest caches.
    pub fits: Vec<FitRow>,
    /// Machines.
    pub machines: Vec<MachineRow>,
    /// Machines with other clocks.
    pub clocks: Vec<ClockRow>,
    /// What to know before reading the numbers.
    pub notes: Vec<String>,
}

/// Valid in every table of cycles.
pub const CYCLES_NOTE: &str = "cycles are one for each instruction and the full time of each miss, \
    as if nothing overlapped: an upper bound for processors that execute out of order";

pub(super) fn report(
    spec: &SweepSpec,
    header: &Header,
    tallies: &[Tally],
) -> Result<Report, LabError> {
    let mut report = Report {
        version: crate::sweep::VERSION,
        command: header.command.clone(),
        isa: header.isa.clone(),
        cpu: header.cpu.clone(),
        asked: spec.clone(),
        packets: Vec::new(),
        misses: Vec::new(),
        fits: Vec::new(),
        machines: Vec::new(),
        clocks: Vec::new(),
        notes: vec![CYCLES_NOTE.to_owned()],
    };
    let names = |kind: usize| match header.totals.packets {
        0 => "whole run".to_owned(),
        _ => header.kind_name(kind as u8),
    };
    let mut packets = BTreeMap::new();
    for tally in tallies {
        if let Tally::Packets(tally) = tally {
            packet_rows(tally, &names, &mut report.packets, &mut packets);
        }
    }
    let cells = spec.cells()?;
    let warm_up = if header.totals.packets == 0 {
        0
    } else {
        spec.warm_up
    };
    for tally in tallies {
        match tally {
            Tally::Family(tally) => {
                miss_rows(tally, &cells, &names, &packets, warm_up, &mut report)
            }
            Tally::Policy(tally) => policy_rows(tally, &names, &packets, warm_up, &mut report),
            Tally::Machine(tally) => machine_rows(tally, &names, spec, &mut report),
            Tally::Packets(_) => {}
        }
    }
    report.misses.sort_by(|a, b| order(a).cmp(&order(b)));
    report.fits = fits(&report.misses);
    if packets.values().any(|packets| *packets <= warm_up) {
        let note = "kinds with no more packets than warm up have no warm rows";
        report.notes.push(note.to_owned());
    }
    if spec.policy != LRU && !spec.machines.is_empty() {
        let note = "the policy is that of the caches of the sweep; machines have LRU";
        report.notes.push(note.to_owned());
    }
    if report.packets.is_empty() {
        let name = header.command.join(" ");
        return Err(LabError::Trace(format!(
            "{name}: the trace has no instructions"
        )));
    }
    Ok(report)
}

fn order(row: &MissRow) -> (&str, Part, State, u32, u32, Size) {
    (&row.kind, row.part, row.state, row.line, row.ways, row.size)
}

fn packet_rows(
    tally: &PacketTally,
    names: &dyn Fn(usize) -> String,
    rows: &mut Vec<PacketRow>,
    packets: &mut BTreeMap<usize, u64>,
) {
    for (kind, kept) in tally.kinds.iter().enumerate() {
        let Some(kept) = kept else { continue };
        packets.insert(kind, kept.instructions.number());
        let lines = |part: usize, size: usize| kept.lines[part][size].spread();
        rows.push(PacketRow {
            kind: names(kind),
            packets: kept.instructions.number(),
            instructions: kept.instructions.spread(),
            accesses: kept.accesses.spread(),
            instruction_lines_32: lines(0, 0),
            instruction_lines_64: lines(0, 1),
            data_lines_32: lines(1, 0),
            data_lines_64: lines(1, 1),
        });
    }
}

fn miss_rows(
    tally: &FamilyTally,
    cells: &[Cell],
    names: &dyn Fn(usize) -> String,
    packets: &BTreeMap<usize, u64>,
    warm_up: u64,
    report: &mut Report,
) {
    for (kind, traced) in packets {
        let Some(counted) = tally.kinds.get(*kind).and_then(Option::as_ref) else {
            continue;
        };
        for cell in cells.iter().filter(|cell| cell.line == tally.line) {
            let Ok(at) = tally.sets.binary_search(&cell.sets) else {
                continue;
            };
            report.misses.push(MissRow {
                kind: names(*kind),
                part: tally.part,
                state: tally.state,
                line: cell.line,
                ways: cell.ways,
                size: cell.size,
                packets: counted_packets(*traced, tally.state, warm_up),
                references: counted.accesses,
                misses: counted.depths[at].misses(cell.ways as usize),
            });
        }
    }
}

fn policy_rows(
    tally: &PolicyTally,
    names: &dyn Fn(usize) -> String,
    packets: &BTreeMap<usize, u64>,
    warm_up: u64,
    report: &mut Report,
) {
    for (kind, traced) in packets {
        let Some(counted) = tally.kinds.get(*kind).and_then(Option::as_ref) else {
            continue;
        };
        report.misses.push(MissRow {
            kind: names(*kind),
            part: tally.part,
            state: tally.state,
            line: tally.cell.line,
            ways: tally.cell.ways,
            size: tally.cell.size,
            packets: counted_packets(*traced, tally.state, warm_up),
            references: counted.accesses,
            misses: counted.misses,
        });
    }
}

fn counted_packets(traced: u64, state: State, warm_up: u64) -> u64 {
    match state {
        State::Cold => traced,
        State::Warm => traced.saturating_sub(warm_up),
    }
}

/// Rows are sorted by size last, so the first that fits is the smallest.
fn fits(rows: &[MissRow]) -> Vec<FitRow> {
    let mut found: Vec<FitRow> = Vec::new();
    for row in rows.iter().filter(|row| row.state == State::Warm) {
        let fit = FitRow {
            kind: row.kind.clone(),
            part: row.part,
            line: row.line,
            ways: row.ways,
            size: (row.misses < row.packets).then_some(row.size),
        };
        let key = |row: &FitRow| (row.kind.clone(), row.part, row.line, row.ways);
        match found.last_mut().filter(|last| key(last) == key(&fit)) {
            Some(last) => last.size = last.size.or(fit.size),
            None => found.push(fit),
        }
    }
    found
}

fn machine_rows(
    tally: &MachineTally,
    names: &dyn Fn(usize) -> String,
    spec: &SweepSpec,
    report: &mut Report,
) {
    for (kind, kept) in tally.kinds.iter().enumerate() {
        let Some(kept) = kept else { continue };
        let (machine, state) = (&tally.machine, tally.state);
        report
            .machines
            .push(machine_row(names(kind), machine, state, kept));
        let per_packet = |factor: f64| {
            let cycles = machine.cycles(&kept.counts, factor);
            let ns = 1e3 / (machine.clock_mhz.value * factor);
            let packets = kept.cycles.number() as f64;
            (cycles, ratio(cycles.total() * ns, packets))
        };
        let (_, usual) = per_packet(1.0);
        for &clock in &spec.clocks {
            let (cycles, ns) = per_packet(clock);
            report.clocks.push(ClockRow {
                kind: names(kind),
                machine: machine.name.clone(),
                state,
                clock,
                ns,
                gain: ratio(usual, ns),
                stall_share: 1.0 - ratio(cycles.instructions, cycles.total()),
            });
        }
    }
}

fn machine_row(kind: String, machine: &Machine, state: State, kept: &KindCounts) -> MachineRow {
    let packets = kept.cycles.number();
    let counts = &kept.counts;
    let cycles: Cycles = machine.cycles(counts, 1.0);
    let mean = |sum: f64| ratio(sum, packets as f64);
    MachineRow {
        kind,
        machine: machine.name.clone(),
        state,
        packets,
        i1_misses: kept.i1.spread(),
        d1_misses: kept.d1.spread(),
        l2_instruction_misses: kept.l2_instructions.spread(),
        l2_data_misses: kept.l2_data.spread(),
        i1_miss_ratio: ratio(counts.i1_misses as f64, counts.instructions as f64),
        d1_miss_ratio: ratio(
            counts.d1_misses() as f64,
            (counts.reads + counts.writes) as f64,
        ),
        mcpi_instructions: cycles.instruction_mcpi(),
        mcpi_data: cycles.data_mcpi(),
        cycles: kept.cycles.spread(),
        cycles_ideal_instructions: mean(cycles.instructions + cycles.data_stalls),
        cycles_ideal_data: mean(cycles.instructions + cycles.instruction_stalls),
        cycles_ideal: mean(cycles.instructions),
    }
}

impl Report {
    /// `packet.csv`: a row for each kind, machine and state.
    pub fn packet_table(&self) -> Table {
        let mut heads: Vec<String> = ["kind", "machine", "state", "packets"]
            .map(Into::into)
            .into();
        let spreads = [
            "instructions",
            "accesses",
            "instruction_lines_32",
            "instruction_lines_64",
            "data_lines_32",
            "data_lines_64",
            "i1_misses",
            "d1_misses",
            "l2_instruction_misses",
            "l2_data_misses",
            "cycles",
        ];
        for name in spreads {
            heads.extend(["", "_least", "_most"].map(|end| format!("{name}{end}")));
        }
        heads.extend(
            [
                "i1_miss_ratio",
                "d1_miss_ratio",
                "mcpi_instructions",
                "mcpi_data",
                "mcpi",
                "cycles_ideal_instructions",
                "cycles_ideal_data",
                "cycles_ideal",
            ]
            .map(Into::into),
        );
        let mut table = Table::new(heads);
        for row in &self.machines {
            if let Some(packet) = self.packets.iter().find(|packet| packet.kind == row.kind) {
                table.row(packet_cells(packet, row));
            }
        }
        table
    }

    /// `misses.csv`: a row for each cache.
    pub fn miss_table(&self) -> Table {
        let mut table = Table::new([
            "kind",
            "part",
            "state",
            "line",
            "ways",
            "size",
            "packets",
            "references",
            "misses",
            "miss_ratio",
            "misses_per_packet",
        ]);
        for row in &self.misses {
            table.row([
                row.kind.clone(),
                row.part.name().to_owned(),
                row.state.name().to_owned(),
                row.line.to_string(),
                row.ways.to_string(),
                row.size.0.to_string(),
                row.packets.to_string(),
                row.references.to_string(),
                row.misses.to_string(),
                format!("{:.6}", row.miss_ratio()),
                format!("{:.4}", row.per_packet()),
            ]);
        }
        table
    }

    /// `clock.csv`: a row for each machine, state and clock.
    pub fn clock_table(&self) -> Table {
        let mut table = Table::new([
            "kind",
            "machine",
            "state",
            "clock",
            "ns_per_packet",
            "gain",
            "stall_share",
        ]);
        for row in &self.clocks {
            table.row([
                row.kind.clone(),
                row.machine.clone(),
                row.state.name().to_owned(),
                row.clock.to_string(),
                format!("{:.3}", row.ns),
                format!("{:.4}", row.gain),
                format!("{:.4}", row.stall_share),
            ]);
        }
        table
    }

    /// `fits.csv`: the smallest cache for each number of ways; empty if none of the sweep is large
    /// enough.
    pub fn fit_table(&self) -> Table {
        let mut table = Table::new(["kind", "part", "line", "ways", "size"]);
        for row in &self.fits {
            table.row([
                row.kind.clone(),
                row.part.name().to_owned(),
                row.line.to_string(),
                row.ways.to_string(),
                row.size.map(|size| size.0.to_string()).unwrap_or_default(),
            ]);
        }
        table
    }
}

fn packet_cells(packet: &PacketRow, row: &MachineRow) -> Vec<String> {
    let mut cells = vec![
        row.kind.clone(),
        row.machine.clone(),
        row.state.name().to_owned(),
        row.packets.to_string(),
    ];
    let spreads = [
        packet.instructions,
        packet.accesses,
        packet.instruction_lines_32,
        packet.instruction_lines_64,
        packet.data_lines_32,
        packet.data_lines_64,
        row.i1_misses,
        row.d1_misses,
        row.l2_instruction_misses,
        row.l2_data_misses,
        row.cycles,
    ];
    for spread in spreads {
        cells.extend([spread.median, spread.least, spread.most].map(|value| value.to_string()));
    }
    let mcpi = row.mcpi_instructions + row.mcpi_data;
    cells.extend(
        [
            row.i1_miss_ratio,
            row.d1_miss_ratio,
            row.mcpi_instructions,
            row.mcpi_data,
            mcpi,
        ]
        .map(|value| format!("{value:.6}")),
    );
    cells.extend(
        [
            row.cycles_ideal_instructions,
            row.cycles_ideal_data,
            row.cycles_ideal,
        ]
        .map(|value| format!("{value:.2}")),
    );
    cells
}
