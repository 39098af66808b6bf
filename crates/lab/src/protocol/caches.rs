//! One pair of first-level caches over a second level, on a whole trace, as cachegrind counts.

use std::io::{Read, Seek};

use fairlead_cache::memory::{Counts, Hierarchy, Side};
use fairlead_trace::references::{Event, Reader};
use serde::Serialize;

use crate::control::Control;
use crate::error::LabError;

/// References and misses by cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct CacheCounts {
    /// The instruction cache.
    pub i1: InstructionCounts,
    /// The data cache.
    pub d1: DataCounts,
    /// The second level.
    pub ll: LastCounts,
}

/// Of the instruction cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct InstructionCounts {
    /// Instructions.
    pub references: u64,
    /// Of which missed.
    pub misses: u64,
}

/// Of the data cache. A modification of memory is a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct DataCounts {
    /// Reads.
    pub reads: u64,
    /// Writes.
    pub writes: u64,
    /// Reads that missed.
    pub read_misses: u64,
    /// Writes that missed.
    pub write_misses: u64,
}

/// Of the second level.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct LastCounts {
    /// Instructions that missed.
    pub instruction_misses: u64,
    /// Reads that missed.
    pub read_misses: u64,
    /// Writes that missed.
    pub write_misses: u64,
}

impl From<Counts> for CacheCounts {
    fn from(counts: Counts) -> Self {
        Self {
            i1: InstructionCounts {
                references: counts.instructions,
                misses: counts.i1_misses,
            },
            d1: DataCounts {
                reads: counts.reads,
                writes: counts.writes,
                read_misses: counts.d1_read_misses,
                write_misses: counts.d1_write_misses,
            },
            ll: LastCounts {
                instruction_misses: counts.ll_instruction_misses,
                read_misses: counts.ll_read_misses,
                write_misses: counts.ll_write_misses,
            },
        }
    }
}

/// Counts a whole trace, what is between packets included. A round of `rep` is an instruction, as
/// for cachegrind.
///
/// # Errors
/// The trace is damaged, or the run was stopped.
pub fn count<R: Read + Seek>(
    reader: &mut Reader<R>,
    caches: &mut Hierarchy,
    control: &dyn Control,
) -> Result<CacheCounts, LabError> {
    let mut counts = Counts::default();
    let mut events = Vec::new();
    let mut read = None;
    control.begin("caches", reader.progress_bytes().1);
    while reader.next_chunk(&mut events).map_err(super::unreadable)? {
        for event in &events {
            let (side, address, size) = match *event {
                Event::Instruction {
                    address, length, ..
                } => (Side::Instruction, address, length),
                Event::Read { address, size } => (Side::Read, address, size),
                Event::Write { address, size } => (Side::Write, address, size),
                Event::Begin { .. } | Event::End { .. } => continue,
            };
            let last = read.take();
            if side == Side::Write && last == Some((address, size)) {
                continue;
            }
            read = (side == Side::Read).then_some((address, size));
            let missed = caches.access(side, address, u32::from(size));
            counts.add(side, missed);
        }
        control.reached(reader.progress_bytes().0);
        if control.stopped() {
            return Err(LabError::Stopped);
        }
    }
    control.end();
    Ok(counts.into())
}
