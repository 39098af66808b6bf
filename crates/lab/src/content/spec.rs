//! What is simulated, and what it results in.

use fairlead_content::{BlockSize, Policy};
use serde::{Deserialize, Serialize};

use super::responses::Responses;
use crate::error::LabError;
use crate::size::Size;

/// The paper's sizes (figure 3): 64 KiB to 16 MiB.
pub const SIZES: [Size; 9] = {
    let mut sizes = [Size(0); 9];
    let mut at = 0;
    while at < 9 {
        sizes[at] = Size((64 << 10) << at);
        at += 1;
    }
    sizes
};

/// What is cached and evicted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum Unit {
    /// Blocks (the paper's)
    #[default]
    Block,
    /// Whole files
    File,
}

/// How requests are split between several caches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum Split {
    /// One after the other
    #[default]
    Alternate,
    /// By client
    Client,
    /// The log in equal parts
    Halves,
}

impl Split {
    /// The cache of a response.
    pub fn cache(self, at: usize, responses: &Responses, caches: u32) -> usize {
        let caches = caches as usize;
        match self {
            Self::Alternate => at % caches,
            Self::Client => responses.client[at] as usize % caches,
            Self::Halves => at * caches / responses.len().max(1),
        }
    }

    /// As on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Alternate => "alternate",
            Self::Client => "client",
            Self::Halves => "halves",
        }
    }
}

impl Unit {
    /// As on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Block => "block",
            Self::File => "file",
        }
    }
}

/// One simulation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cell {
    /// Bytes of each cache.
    pub size: Size,
    /// How many caches.
    pub caches: u32,
    /// How requests are split.
    pub split: Split,
    /// What is cached.
    pub unit: Unit,
    /// The size of a block.
    pub block: BlockSize,
    /// Which stay.
    pub policy: Policy,
}

/// Most caches of a cell.
pub const CACHES_MAX: u32 = 64;
/// Most blocks of a cache, and of the admitted files: columns of 4 bytes each.
pub const BLOCKS_MAX: u64 = 1 << 28;

impl Default for Cell {
    /// The paper's: one LRU cache of 16 MiB in blocks of 4 KiB.
    fn default() -> Self {
        Self {
            size: Size(16 << 20),
            caches: 1,
            split: Split::Alternate,
            unit: Unit::Block,
            block: BlockSize::PAGE,
            policy: Policy::Lru,
        }
    }
}

impl Cell {
    /// Blocks of each cache.
    pub fn blocks(&self) -> u64 {
        self.size.0 / u64::from(self.block.bytes())
    }

    /// Can it be simulated?
    ///
    /// # Errors
    /// What to write instead.
    pub fn check(&self) -> Result<(), LabError> {
        let block = u64::from(self.block.bytes());
        let size = |problem: String| LabError::option("--size", self.size.to_string(), problem);
        if self.size.0 == 0 || !self.size.0.is_multiple_of(block) {
            let block = Size(block);
            return Err(size(format!("write a multiple of the block size, {block}")));
        }
        if self.blocks() > BLOCKS_MAX {
            return Err(size(format!("a cache has at most {BLOCKS_MAX} blocks")));
        }
        if !(1..=CACHES_MAX).contains(&self.caches) {
            let problem = format!("write a number from 1 to {CACHES_MAX}");
            return Err(LabError::option(
                "--caches",
                self.caches.to_string(),
                problem,
            ));
        }
        Ok(())
    }
}

/// What the caches of a cell saved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Count {
    /// Content bytes that were in a cache.
    pub bytes: u64,
    /// Responses of which all bytes were.
    pub responses: u64,
    /// Blocks that were; with whole files: the blocks of the response.
    pub blocks: u64,
    /// Blocks of all responses.
    pub blocks_total: u64,
}

impl Count {
    /// Adds another cache's.
    pub fn add(&mut self, other: Self) {
        self.bytes += other.bytes;
        self.responses += other.responses;
        self.blocks += other.blocks;
        self.blocks_total += other.blocks_total;
    }
}

/// A cell and its result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CellResult {
    /// The simulation.
    pub cell: Cell,
    /// What the caches saved.
    pub count: Count,
}

/// A result with the log's totals, for output.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// Bytes of each cache.
    pub size: Size,
    /// How many caches.
    pub caches: u32,
    /// How requests are split between them.
    pub split: Split,
    /// What is cached.
    pub unit: Unit,
    /// Bytes of a block.
    pub block: u32,
    /// The policy.
    pub policy: &'static str,
    /// Responses with a body.
    pub requests: u64,
    /// Their bytes.
    pub response_bytes: u64,
    /// Files among them.
    pub distinct_files: u64,
    /// Bytes of these files, each as long as its longest response.
    pub data_set_bytes: u64,
    /// Content bytes that do not cross the bus.
    pub content_bytes_removed: u64,
    /// Their share of the response bytes.
    pub removed_ratio: f64,
    /// Share of the responses of which no content crosses the bus.
    pub request_hit_ratio: f64,
    /// Share of the blocks that are in a cache.
    pub block_hit_ratio: f64,
}

impl Row {
    /// Of a result.
    pub fn new(responses: &Responses, result: &CellResult) -> Self {
        let CellResult { cell, count } = result;
        let share = |part: u64, whole: u64| part as f64 / whole.max(1) as f64;
        let requests = responses.len() as u64;
        let response_bytes = responses.response_bytes();
        Self {
            size: cell.size,
            caches: cell.caches,
            split: cell.split,
            unit: cell.unit,
            block: cell.block.bytes(),
            policy: cell.policy.name(),
            requests,
            response_bytes,
            distinct_files: responses.distinct_files(),
            data_set_bytes: responses.data_set_bytes(),
            content_bytes_removed: count.bytes,
            removed_ratio: share(count.bytes, response_bytes),
            request_hit_ratio: share(count.responses, requests),
            block_hit_ratio: share(count.blocks, count.blocks_total),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_the_papers() {
        let shown: Vec<String> = SIZES.iter().map(Size::to_string).collect();
        assert_eq!(shown[0], "64 KiB");
        assert_eq!(shown[8], "16 MiB");
    }

    #[test]
    fn impossible_cells_are_refused() {
        let cell = Cell::default();
        assert!(cell.check().is_ok());
        for (wrong, word) in [
            (
                Cell {
                    size: Size(0),
                    ..cell
                },
                "multiple",
            ),
            (
                Cell {
                    size: Size(5_000),
                    ..cell
                },
                "multiple of the block size, 4 KiB",
            ),
            (
                Cell {
                    size: Size(1 << 50),
                    ..cell
                },
                "at most",
            ),
            (Cell { caches: 0, ..cell }, "from 1 to 64"),
            (Cell { caches: 65, ..cell }, "from 1 to 64"),
        ] {
            let error = wrong.check().unwrap_err();
            assert!(error.to_string().contains(word), "{error}");
            assert_eq!(error.exit_code(), 2);
        }
    }

    #[test]
    fn requests_are_split_evenly() {
        let responses = Responses::from_pairs((0..10).map(|file| (file, 1)));
        let caches = |split: Split| -> Vec<usize> {
            (0..10).map(|at| split.cache(at, &responses, 2)).collect()
        };
        assert_eq!(caches(Split::Alternate), [0, 1, 0, 1, 0, 1, 0, 1, 0, 1]);
        assert_eq!(caches(Split::Halves), [0, 0, 0, 0, 0, 1, 1, 1, 1, 1]);
        assert_eq!(caches(Split::Client), [0; 10]);
    }
}
