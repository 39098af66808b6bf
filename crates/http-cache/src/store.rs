//! Where bodies lie: blocks of one size, given out by number.

use fairlead_content::{BlockSize, Extent};

/// Memory for blocks. Extents never cross a block.
pub trait Store {
    /// Writes a part of a block. False if it cannot be written; the body is then not stored.
    fn write(&mut self, at: Extent, bytes: &[u8]) -> bool;

    /// Part of a block that was written, if the store is memory of this process.
    fn slice(&self, at: Extent) -> Option<&[u8]>;

    /// These blocks are free. What is still being sent from them must not change: a memory file
    /// punches holes, so that queued packets keep the old pages.
    fn release(&mut self, lines: &[u32]);
}

/// A store of whichever kind.
pub struct AnyStore(Box<dyn Store + Send>);

impl AnyStore {
    /// This one.
    pub fn new(store: impl Store + Send + 'static) -> Self {
        Self(Box::new(store))
    }
}

impl core::fmt::Debug for AnyStore {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("AnyStore")
    }
}

impl Store for AnyStore {
    fn write(&mut self, at: Extent, bytes: &[u8]) -> bool {
        self.0.write(at, bytes)
    }

    fn slice(&self, at: Extent) -> Option<&[u8]> {
        self.0.slice(at)
    }

    fn release(&mut self, lines: &[u32]) {
        self.0.release(lines);
    }
}

/// Blocks in memory of this process, each allocated when it is used first.
#[derive(Clone, Debug)]
pub struct Memory {
    block: BlockSize,
    lines: Vec<Option<Box<[u8]>>>,
}

impl Memory {
    /// Without blocks.
    pub fn new(block: BlockSize) -> Self {
        Self {
            block,
            lines: Vec::new(),
        }
    }

    fn place(&self, at: Extent) -> (usize, core::ops::Range<usize>) {
        let line = self.block.index_of(at.at.0) as usize;
        let start = self.block.within(at.at.0) as usize;
        (line, start..start + at.len as usize)
    }
}

impl Store for Memory {
    fn write(&mut self, at: Extent, bytes: &[u8]) -> bool {
        let (line, range) = self.place(at);
        if line >= self.lines.len() {
            self.lines.resize(line + 1, None);
        }
        let size = self.block.bytes() as usize;
        let block = self.lines[line].get_or_insert_with(|| vec![0; size].into_boxed_slice());
        match block.get_mut(range) {
            Some(part) if part.len() == bytes.len() => part.copy_from_slice(bytes),
            _ => return false,
        }
        true
    }

    fn slice(&self, at: Extent) -> Option<&[u8]> {
        let (line, range) = self.place(at);
        self.lines.get(line)?.as_ref()?.get(range)
    }

    fn release(&mut self, lines: &[u32]) {
        for line in lines {
            if let Some(block) = self.lines.get_mut(*line as usize) {
                *block = None;
            }
        }
    }
}
