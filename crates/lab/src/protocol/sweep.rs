//! Many caches over one trace: size × ways × line, cold and warm, and machines.

use std::io::{Read, Seek};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use fairlead_cache::memory::{Family, Geometry, Replacement};
use fairlead_trace::references::{Header, Reader};
use serde::Serialize;

use super::chunk::{Chunk, Cutter};
use super::machine::Machine;
use super::report::{Report, report};
use super::tally::{
    FamilyTally, MachineTally, PacketTally, Part, PolicyTally, STATES, State, Tally,
};
use crate::control::Control;
use crate::error::LabError;
use crate::pool::threads;
use crate::size::Size;

/// What is swept.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SweepSpec {
    /// Capacities.
    pub sizes: Vec<Size>,
    /// Ways, 1 to 16.
    pub ways: Vec<u32>,
    /// Bytes of a line.
    pub lines: Vec<u32>,
    /// Replacement policy of these caches, by name: one of
    /// [`REPLACEMENTS`](fairlead_cache::memory::REPLACEMENTS). Machines have LRU.
    pub policy: String,
    /// Machines.
    pub machines: Vec<Machine>,
    /// Factors of the machines' clocks.
    pub clocks: Vec<f64>,
    /// Packets of each kind that only fill the warm caches.
    pub warm_up: u64,
}

impl Default for SweepSpec {
    fn default() -> Self {
        Self {
            sizes: (12..=18).map(|power| Size(1 << power)).collect(),
            ways: vec![1, 2, 4, 8, 16],
            lines: vec![32, 64, 128],
            policy: LRU.to_owned(),
            machines: Vec::new(),
            clocks: vec![1.0, 2.0, 4.0, 8.0, 16.0],
            warm_up: WARM_UP,
        }
    }
}

/// Packets of each kind that only fill the warm caches, unless asked otherwise.
pub const WARM_UP: u64 = 10;
/// Most caches of one trace.
const CACHES_MAX: usize = 4096;
/// Most lines of all caches that are simulated one at a time: about 400 MiB.
const LINES_MAX: u64 = 1 << 24;
/// The policy under which caches with as many sets are simulated in one pass.
pub const LRU: &str = "lru";

/// One cache of the sweep that exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cell {
    pub(crate) line: u32,
    pub(crate) ways: u32,
    pub(crate) size: Size,
    pub(crate) sets: u32,
}

impl Cell {
    pub(crate) fn geometry(&self) -> Result<Geometry, LabError> {
        let geometry = Geometry::new(self.size.0, self.ways, self.line);
        geometry.map_err(|error| LabError::Geometry(error.to_string()))
    }
}

impl SweepSpec {
    /// The caches that exist: with a power of two of sets.
    ///
    /// # Errors
    /// An impossible number, or no cache at all, or too many.
    pub(crate) fn cells(&self) -> Result<Vec<Cell>, LabError> {
        let mut cells = Vec::new();
        for &ways in &self.ways {
            if !(1..=Family::WAYS as u32).contains(&ways) {
                let problem = format!("write a number from 1 to {}", Family::WAYS);
                return Err(LabError::option("--ways", ways.to_string(), problem));
            }
        }
        for &line in &self.lines {
            Geometry::new(u64::from(line), 1, line)
                .map_err(|error| LabError::option("--line", line.to_string(), error.to_string()))?;
            for &ways in &self.ways {
                for &size in &self.sizes {
                    if let Ok(geometry) = Geometry::new(size.0, ways, line) {
                        let sets = geometry.sets();
                        cells.push(Cell {
                            line,
                            ways,
                            size,
                            sets,
                        });
                    }
                }
            }
        }
        if cells.len() > CACHES_MAX {
            let problem = format!("{} caches; write at most {CACHES_MAX}", cells.len());
            return Err(LabError::option("--size", "", problem));
        }
        if cells.is_empty() && !(self.sizes.is_empty() || self.lines.is_empty()) {
            let problem = "no cache of these has a power of two of sets";
            return Err(LabError::option(
                "--size",
                self.sizes[0].0.to_string(),
                problem,
            ));
        }
        cells.sort_by_key(|cell| (cell.line, cell.ways, cell.size));
        cells.dedup();
        Ok(cells)
    }

    fn tallies(&self) -> Result<Vec<Tally>, LabError> {
        let cells = self.cells()?;
        let mut tallies = vec![Tally::Packets(Box::new(PacketTally::new()))];
        let one_at_a_time = self.one_at_a_time(&cells)?;
        for part in [Part::Data, Part::Instruction] {
            for state in STATES {
                match one_at_a_time {
                    None => self.families(part, state, &cells, &mut tallies)?,
                    Some(replacement) => {
                        for cell in &cells {
                            let tally = PolicyTally::new(part, state, *cell, replacement)?;
                            tallies.push(Tally::Policy(Box::new(tally)));
                        }
                    }
                }
            }
        }
        for machine in &self.machines {
            for state in STATES {
                let tally = MachineTally::new(machine, state)?;
                tallies.push(Tally::Machine(Box::new(tally)));
            }
        }
        Ok(tallies)
    }

    fn families(
        &self,
        part: Part,
        state: State,
        cells: &[Cell],
        tallies: &mut Vec<Tally>,
    ) -> Result<(), LabError> {
        for &line in &self.lines {
            let of_line = cells.iter().filter(|cell| cell.line == line);
            let mut sets: Vec<u32> = of_line.map(|cell| cell.sets).collect();
            sets.sort_unstable();
            sets.dedup();
            if !sets.is_empty() {
                let tally = FamilyTally::new(part, state, line, &sets)?;
                tallies.push(Tally::Family(Box::new(tally)));
            }
        }
        Ok(())
    }

    /// The policy, unless it is LRU.
    fn one_at_a_time(&self, cells: &[Cell]) -> Result<Option<&'static Replacement>, LabError> {
        let Some(replacement) = Replacement::find(&self.policy) else {
            let problem = format!("unknown policy; write one of {}", Replacement::names());
            return Err(LabError::option("--policy", &self.policy, problem));
        };
        if self.policy == LRU {
            return Ok(None);
        }
        if let Some(cell) = cells.iter().find(|cell| !cell.ways.is_power_of_two()) {
            let problem = format!(
                "write powers of two with --policy {}; other numbers are for {LRU}",
                self.policy
            );
            return Err(LabError::option("--ways", cell.ways.to_string(), problem));
        }
        let of = |cell: &Cell| u64::from(cell.sets) * u64::from(cell.ways);
        let lines = 2 * STATES.len() as u64 * cells.iter().map(of).sum::<u64>();
        if lines > LINES_MAX {
            let problem = format!(
                "the caches have {lines} lines in all, by part and state; with --policy {} at \
                 most {LINES_MAX}: write fewer or smaller sizes",
                self.policy
            );
            return Err(LabError::option("--size", "", problem));
        }
        Ok(Some(replacement))
    }
}

/// Simulates all of them, in one reading of the trace.
///
/// # Errors
/// What is impossible in `spec`, a damaged trace, a stop.
pub fn sweep<R: Read + Seek>(
    reader: &mut Reader<R>,
    spec: &SweepSpec,
    count: usize,
    control: &dyn Control,
) -> Result<Report, LabError> {
    let tallies = spec.tallies()?;
    let header = reader.header().clone();
    control.begin("sweep", reader.progress_bytes().1);
    let tallies = read_all(reader, &header, spec.warm_up, tallies, count, control)?;
    control.end();
    report(spec, &header, &tallies)
}

/// Chunks that wait for a worker.
const WAITING: usize = 2;

fn read_all<R: Read + Seek>(
    reader: &mut Reader<R>,
    header: &Header,
    warm_up: u64,
    tallies: Vec<Tally>,
    count: usize,
    control: &dyn Control,
) -> Result<Vec<Tally>, LabError> {
    let count = threads(count, tallies.len());
    let mut shares: Vec<Vec<Tally>> = (0..count).map(|_| Vec::new()).collect();
    for (at, tally) in tallies.into_iter().enumerate() {
        shares[at % count].push(tally);
    }
    std::thread::scope(|scope| {
        let mut senders = Vec::new();
        let mut workers = Vec::new();
        for share in shares {
            let (sender, receiver) = sync_channel(WAITING);
            senders.push(sender);
            workers.push(scope.spawn(move || work(share, &receiver)));
        }
        let mut cutter = Cutter::new(header, warm_up);
        let fed = feed(reader, &mut cutter, &senders, control);
        drop(senders);
        let mut done = Vec::new();
        for worker in workers {
            let share = worker.join().map_err(|_| broken())??;
            done.extend(share);
        }
        fed.map(|()| done)
    })
}

fn broken() -> LabError {
    LabError::Trace("a worker of the sweep broke off".to_owned())
}

fn work(mut share: Vec<Tally>, chunks: &Receiver<Arc<Chunk>>) -> Result<Vec<Tally>, LabError> {
    while let Ok(chunk) = chunks.recv() {
        for tally in &mut share {
            tally.add(&chunk)?;
        }
    }
    Ok(share)
}

/// Gives every chunk to every worker. A worker that has failed takes none; its error is found when
/// it is joined.
fn feed<R: Read + Seek>(
    reader: &mut Reader<R>,
    cutter: &mut Cutter,
    workers: &[SyncSender<Arc<Chunk>>],
    control: &dyn Control,
) -> Result<(), LabError> {
    let mut events = Vec::new();
    let mut pool: Vec<Arc<Chunk>> = Vec::new();
    loop {
        let more = reader.next_chunk(&mut events).map_err(super::unreadable)?;
        let free = pool.iter_mut().position(|one| Arc::get_mut(one).is_some());
        let mut chunk = free.map_or_else(Arc::default, |at| pool.swap_remove(at));
        if let Some(chunk) = Arc::get_mut(&mut chunk) {
            match more {
                true => cutter.cut(&events, chunk),
                false => cutter.finish(chunk),
            }
        }
        for worker in workers {
            if worker.send(Arc::clone(&chunk)).is_err() {
                return Ok(());
            }
        }
        pool.push(chunk);
        control.reached(reader.progress_bytes().0);
        if control.stopped() {
            return Err(LabError::Stopped);
        }
        if !more {
            return Ok(());
        }
    }
}
