//! Runs cells, on all cores.

use super::entries::Entries;
use super::responses::Responses;
use super::segments::Segments;
use super::spec::{BLOCKS_MAX, Cell, CellResult, Count, Unit};
use crate::control::Control;
use crate::error::LabError;
use crate::pool::{Meter, spread};
use fairlead_content::Policy;

/// Responses between two looks at the progress.
const LOOK_EVERY: usize = 1 << 14;

/// Simulates cells on a log, in their order. `threads` 0 means all cores.
///
/// # Errors
/// A cell that cannot be simulated; a stop.
pub fn simulate(
    responses: &Responses,
    cells: &[Cell],
    threads: usize,
    control: &dyn Control,
) -> Result<Vec<CellResult>, LabError> {
    for cell in cells {
        cell.check()?;
        check_items(responses, cell)?;
    }
    let steps = cells.len() as u64 * responses.len() as u64;
    control.begin("simulating caches", steps);
    let mut counts = vec![Count::default(); cells.len()];
    let work = |cell: &Cell, meter: &Meter| count(responses, cell, meter);
    let done = spread(cells, threads, control, &work, &mut |at, count| {
        counts[at] = count;
    });
    control.end();
    done?;
    let results = cells.iter().zip(counts);
    Ok(results
        .map(|(cell, count)| CellResult { cell: *cell, count })
        .collect())
}

/// Policies other than LRU have a column of all blocks.
fn check_items(responses: &Responses, cell: &Cell) -> Result<(), LabError> {
    let is_short = cell.policy == Policy::Lru || cell.unit == Unit::File;
    let blocks = responses.blocks(cell.block, cell.size.0);
    if is_short || blocks <= BLOCKS_MAX {
        return Ok(());
    }
    let problem = format!("the files have {blocks} blocks; at most {BLOCKS_MAX}: use larger ones");
    let block = crate::Size(u64::from(cell.block.bytes()));
    Err(LabError::option("--block", block.to_string(), problem))
}

/// The caches of a cell.
enum Caches {
    Segments(Vec<Segments>),
    /// With the number of each file's first block.
    Blocks(Vec<Entries>, Vec<u32>),
    Files(Vec<Entries>),
}

impl Caches {
    fn new(responses: &Responses, cell: &Cell) -> Self {
        let files = responses.file_bytes.len();
        let capacity = cell.blocks();
        let each = |items: usize| {
            let one = |_| Entries::new(cell.policy, items, capacity);
            (0..cell.caches).map(one).collect()
        };
        if cell.policy == Policy::Lru {
            let one = |_| Segments::new(files, capacity, cell.block);
            return Self::Segments((0..cell.caches).map(one).collect());
        }
        if cell.unit == Unit::File {
            return Self::Files(each(files));
        }
        let (firsts, items) = first_blocks(responses, cell);
        Self::Blocks(each(items as usize), firsts)
    }
}

/// By file: the number of its first block, and the number of all blocks, of admitted files.
pub(super) fn first_blocks(responses: &Responses, cell: &Cell) -> (Vec<u32>, u32) {
    let mut next = 0u32;
    let number = |bytes: &u64| {
        let first = next;
        if *bytes <= cell.size.0 {
            next += cell.block.blocks(*bytes) as u32;
        }
        first
    };
    let firsts = responses.file_bytes.iter().map(number).collect();
    (firsts, next)
}

/// What the caches of a cell save; `None` if stopped.
fn count(responses: &Responses, cell: &Cell, meter: &Meter) -> Option<Count> {
    let mut caches = Caches::new(responses, cell);
    let mut count = Count::default();
    let mut at = 0;
    while at < responses.len() {
        let end = (at + LOOK_EVERY).min(responses.len());
        for at in at..end {
            one(responses, cell, &mut caches, at, &mut count);
        }
        if !meter.step((end - at) as u64) {
            return None;
        }
        at = end;
    }
    Some(count)
}

#[inline]
fn one(responses: &Responses, cell: &Cell, caches: &mut Caches, at: usize, count: &mut Count) {
    let (file, bytes) = (responses.file[at], responses.bytes[at]);
    let blocks = cell.block.blocks(bytes);
    count.blocks_total += blocks;
    let file_bytes = responses.file_bytes[file as usize];
    // The paper caches no file that is larger than the cache.
    if file_bytes > cell.size.0 {
        return;
    }
    let which = match cell.caches {
        1 => 0,
        caches => cell.split.cache(at, responses, caches),
    };
    let whole = cell.block.blocks(file_bytes) as u32;
    let hit = match (caches, cell.unit) {
        (Caches::Segments(caches), Unit::Block) => {
            let hit = caches[which].access(file, blocks as u32, bytes);
            count.blocks += hit.blocks;
            hit.bytes
        }
        (Caches::Segments(caches), Unit::File) => {
            let is_hit = caches[which].access(file, whole, file_bytes).blocks > 0;
            count.blocks += if is_hit { blocks } else { 0 };
            if is_hit { bytes } else { 0 }
        }
        (Caches::Files(caches), _) => {
            let is_hit = caches[which].access(file, whole);
            count.blocks += if is_hit { blocks } else { 0 };
            if is_hit { bytes } else { 0 }
        }
        (Caches::Blocks(caches, firsts), _) => {
            let first = firsts[file as usize];
            let (mut hits, mut saved) = (0, 0);
            let block = u64::from(cell.block.bytes());
            for index in 0..blocks {
                if caches[which].access(first + index as u32, 1) {
                    hits += 1;
                    saved += block.min(bytes - index * block);
                }
            }
            count.blocks += hits;
            saved
        }
    };
    count.bytes += hit;
    count.responses += u64::from(hit == bytes);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Size;
    use crate::control::Silent;

    #[test]
    fn a_file_that_comes_again_is_saved_once_it_fits() {
        let responses = Responses::from_pairs([(0, 6_000), (1, 3_000), (0, 6_000), (0, 5_000)]);
        let cell = |blocks: u64| Cell {
            size: Size(blocks * 4_096),
            ..Cell::default()
        };
        let cells = [cell(1), cell(2), cell(3)];
        let results = simulate(&responses, &cells, 1, &Silent).unwrap();
        let bytes: Vec<u64> = results.iter().map(|result| result.count.bytes).collect();
        // In two blocks, the file of 3,000 bytes takes the place of one of the others.
        assert_eq!(bytes, [0, 5_000, 11_000]);
        let last = results[2].count;
        assert_eq!((last.responses, last.blocks, last.blocks_total), (2, 4, 7));
    }
}
