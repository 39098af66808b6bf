//! Simulations of one log.

use fairlead_content::Policy;

use super::LogNote;
use super::logs::Log;
use crate::content::bounds::{Upper, belady_block_hits};
use crate::content::{Cell, CellResult, Row, SIZES, Split, Unit, simulate};
use crate::control::Control;
use crate::error::LabError;
use crate::pool::{Meter, spread};

/// A log and the results that all figures are made of.
#[derive(Clone, Debug)]
pub(super) struct Measured {
    pub(super) log: Log,
    pub(super) results: Vec<CellResult>,
    /// For one cache, by size: Belady's share of block hits, if it was computed.
    pub(super) belady: Vec<Option<f64>>,
    /// For one cache, by size: upper bounds of the removed share, for blocks and for files.
    pub(super) upper: Vec<[f64; 2]>,
}

/// How figure 3 splits requests between two caches; the paper only says "evenly".
pub(super) const SPLITS: [Split; 3] = [Split::Alternate, Split::Client, Split::Halves];

/// All simulations.
fn cells() -> Vec<Cell> {
    let mut cells = Vec::new();
    for size in SIZES {
        for unit in [Unit::Block, Unit::File] {
            let cell = Cell {
                size,
                unit,
                ..Cell::default()
            };
            cells.extend(Policy::ALL.map(|policy| Cell { policy, ..cell }));
            let two = |split| Cell {
                caches: 2,
                split,
                ..cell
            };
            match unit {
                Unit::Block => cells.extend(SPLITS.map(two)),
                Unit::File => cells.push(two(Split::Alternate)),
            }
        }
    }
    cells
}

impl Measured {
    /// Runs all simulations of a log.
    pub(super) fn new(log: Log, threads: usize, control: &dyn Control) -> Result<Self, LabError> {
        let results = simulate(&log.responses, &cells(), threads, control)?;
        let one = |unit: Unit| Cell {
            unit,
            ..Cell::default()
        };
        let mut belady = vec![None; SIZES.len()];
        let jobs = SIZES.map(|size| Cell {
            size,
            ..one(Unit::Block)
        });
        control.begin("Belady's bound", SIZES.len() as u64);
        let work = |cell: &Cell, meter: &Meter| {
            let hits = belady_block_hits(&log.responses, cell);
            meter.step(1).then_some(hits)
        };
        let done = spread(&jobs, threads, control, &work, &mut |at, hits| {
            belady[at] = hits
        });
        control.end();
        done?;
        let blocks = results
            .first()
            .map_or(0, |result| result.count.blocks_total);
        let total = log.responses.response_bytes() as f64;
        let bounds = [Unit::Block, Unit::File].map(|unit| Upper::new(&log.responses, &one(unit)));
        let upper =
            SIZES.map(|size| [0, 1].map(|unit: usize| bounds[unit].bytes(size.0) as f64 / total));
        let share = |hits: u64| hits as f64 / blocks.max(1) as f64;
        Ok(Self {
            belady: belady.into_iter().map(|hits| hits.map(share)).collect(),
            upper: upper.to_vec(),
            results,
            log,
        })
    }

    /// The result of a cell. All cells of [`cells`] are there.
    pub(super) fn result(&self, cell: &Cell) -> Option<&CellResult> {
        self.results.iter().find(|result| result.cell == *cell)
    }

    /// The result of a cell, with shares.
    pub(super) fn row(&self, cell: &Cell) -> Option<Row> {
        let result = self.result(cell)?;
        Some(Row::new(&self.log.responses, result))
    }

    /// The share of content that a cell removes; 0 if it was not simulated.
    pub(super) fn removed(&self, cell: &Cell) -> f64 {
        self.row(cell).map_or(0.0, |row| row.removed_ratio)
    }

    pub(super) fn note(&self) -> LogNote {
        LogNote {
            log: self.log.name.clone(),
            paper_log: self.log.paper_log(),
            requests: self.log.responses.len() as u64,
            notes: self.log.responses.notes(),
        }
    }
}
