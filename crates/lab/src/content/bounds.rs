//! What no policy can exceed.
//!
//! For blocks, Belady's MIN with bypass is the optimum of block hits. For bytes, and for whole
//! files of unequal size, the optimum is NP-hard to compute; an upper bound follows from space and
//! time: a hit needs its item's blocks from the last use to this one, and all blocks together exist
//! for the number of uses. Taking hits by their bytes per space and time until that is used up
//! gives at least as much as any policy (PFOO-U, Berger, Beckmann and Harchol-Balter, 2018).

use fairlead_cache::bounds::{Stream, min_or_bypass};

use super::responses::Responses;
use super::simulate::first_blocks;
use super::spec::{BLOCKS_MAX, Cell, Unit};

/// Most accesses to blocks for which Belady's bound is computed: 8 bytes each.
pub const ACCESSES_MAX: u64 = 1 << 25;

/// Block hits of Belady's MIN with bypass, over the files that the paper's rule admits; `None` if
/// the log has too many blocks.
pub fn belady_block_hits(responses: &Responses, cell: &Cell) -> Option<u64> {
    let admitted = |file: &u32| responses.file_bytes[*file as usize] <= cell.size.0;
    let rows = || {
        let rows = responses.file.iter().zip(&responses.bytes).enumerate();
        rows.filter(|(_, (file, _))| admitted(file))
    };
    let accesses: u64 = rows()
        .map(|(_, (_, bytes))| cell.block.blocks(*bytes))
        .sum();
    if accesses > ACCESSES_MAX || responses.blocks(cell.block, cell.size.0) > BLOCKS_MAX {
        return None;
    }
    let (firsts, items) = first_blocks(responses, cell);
    let mut hits = 0;
    for cache in 0..cell.caches as usize {
        let mut ids: Vec<u32> = Vec::new();
        for (at, (file, bytes)) in rows() {
            if cell.split.cache(at, responses, cell.caches) == cache {
                let first = firsts[*file as usize];
                ids.extend(first..first + cell.block.blocks(*bytes) as u32);
            }
        }
        let stream = Stream::new(&ids, items as usize, 0).ok()?;
        let lines = u32::try_from(cell.blocks()).unwrap_or(u32::MAX);
        hits += ids.len() as u64 - min_or_bypass(&stream, lines);
    }
    Some(hits)
}

/// A hit that a cache could have.
#[derive(Clone, Copy, Debug)]
struct Interval {
    /// Bytes per block and use.
    density: f64,
    bytes: u64,
    /// Blocks times uses.
    cost: u64,
    file_bytes: u64,
}

/// Upper bounds of the bytes that a cache saves, at any size.
#[derive(Clone, Debug)]
pub struct Upper {
    /// By cache: its uses, and its intervals by falling density.
    caches: Vec<(u64, Vec<Interval>)>,
    block_bytes: u64,
}

impl Upper {
    /// Of a log, for the unit, block and split of a cell.
    pub fn new(responses: &Responses, cell: &Cell) -> Self {
        let caches = (0..cell.caches as usize)
            .map(|cache| intervals(responses, cell, cache))
            .collect();
        Self {
            caches,
            block_bytes: u64::from(cell.block.bytes()),
        }
    }

    /// For caches of this size: no policy that admits files up to this size saves more bytes.
    pub fn bytes(&self, size: u64) -> u64 {
        let of_one = |(uses, intervals): &(u64, Vec<Interval>)| {
            let mut left = u128::from(size / self.block_bytes) * u128::from(*uses);
            let mut sum = 0;
            for interval in intervals {
                if interval.file_bytes > size {
                    continue;
                }
                if u128::from(interval.cost) <= left {
                    left -= u128::from(interval.cost);
                    sum += interval.bytes;
                } else {
                    // A part of it, rounded up.
                    let part = interval.bytes as f64 * (left as f64 / interval.cost as f64);
                    return sum + (part.ceil() as u64).min(interval.bytes);
                }
            }
            sum
        };
        self.caches.iter().map(of_one).sum()
    }
}

fn intervals(responses: &Responses, cell: &Cell, cache: usize) -> (u64, Vec<Interval>) {
    let block = u64::from(cell.block.bytes());
    // By file: its last use here, and the use of each longer beginning before it.
    let mut last: Vec<Vec<(u64, u64)>> = vec![Vec::new(); responses.file_bytes.len()];
    let mut out = Vec::new();
    let mut uses = 0u64;
    for at in 0..responses.len() {
        if cell.split.cache(at, responses, cell.caches) != cache {
            continue;
        }
        let (file, bytes) = (responses.file[at], responses.bytes[at]);
        let file_bytes = responses.file_bytes[file as usize];
        let mut add = |since: u64, blocks: u64, bytes: u64| {
            let cost = blocks * (uses - since);
            if bytes > 0 && blocks > 0 {
                out.push(Interval {
                    density: bytes as f64 / cost as f64,
                    bytes,
                    cost,
                    file_bytes,
                });
            }
        };
        let known = &mut last[file as usize];
        match cell.unit {
            Unit::File => {
                if let Some((_, since)) = known.last() {
                    add(*since, cell.block.blocks(file_bytes), bytes);
                }
                *known = vec![(u64::MAX, uses)];
            }
            Unit::Block => {
                // Whole blocks and the last one apart: their densities differ.
                let blocks = cell.block.blocks(bytes);
                let full = bytes / block;
                let mut from = 0;
                while let Some((end, since)) = known.pop() {
                    let to = end.min(blocks);
                    let whole = to.min(full).saturating_sub(from);
                    add(since, whole, whole * block);
                    if to > full {
                        add(since, 1, bytes - full * block);
                    }
                    from = to;
                    if end > blocks {
                        known.push((end, since));
                        break;
                    }
                    if from >= blocks {
                        break;
                    }
                }
                known.push((blocks, uses));
            }
        }
        uses += 1;
    }
    out.sort_by(|left, right| right.density.total_cmp(&left.density));
    (uses, out)
}
