//! Pending reads of cached blocks: a packet that is queued still reads its blocks when it is sent.

use crate::block::{BlockSize, Extent};

/// Reads that are pending, by block. 6 bytes a block.
#[derive(Clone, Debug)]
pub(crate) struct Leases {
    block: BlockSize,
    pending: Vec<u16>,
    /// Counts how often the block's memory was replaced under its readers.
    epochs: Vec<u32>,
}

/// One pending read, of one block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Lease {
    line: u32,
    epoch: u32,
}

impl Lease {
    /// How often the block's memory was replaced before.
    pub(crate) fn epoch(self) -> u32 {
        self.epoch
    }
}

impl Leases {
    /// Bytes of all blocks.
    pub(crate) fn bytes(&self) -> u64 {
        self.pending.len() as u64 * u64::from(self.block.bytes())
    }

    pub(crate) fn new(lines: u32, block: BlockSize) -> Self {
        Self {
            block,
            pending: vec![0; lines as usize],
            epochs: vec![0; lines as usize],
        }
    }

    /// Notes a read of an extent within one block. `None` when the block has 65,535 already.
    pub(crate) fn take(&mut self, extent: Extent) -> Option<Lease> {
        let line = extent.lines(self.block).start as usize;
        let pending = &mut self.pending[line];
        *pending = pending.checked_add(1)?;
        Some(Lease {
            line: line as u32,
            epoch: self.epochs[line],
        })
    }

    /// A read is over. Readers of memory that was replaced count no longer.
    pub(crate) fn give_back(&mut self, lease: Lease) {
        let line = lease.line as usize;
        if self.epochs[line] == lease.epoch {
            self.pending[line] -= 1;
        }
    }

    /// True if a block of the extent has pending reads.
    pub(crate) fn is_pending(&self, extent: Extent) -> bool {
        extent
            .lines(self.block)
            .any(|line| self.pending[line as usize] > 0)
    }

    /// The memory of these blocks was replaced; pending readers keep the old one.
    pub(crate) fn detach(&mut self, extent: Extent) {
        for line in extent.lines(self.block) {
            let line = line as usize;
            self.pending[line] = 0;
            self.epochs[line] = self.epochs[line].wrapping_add(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::block::CacheOffset;

    #[test]
    fn replaced_memory_has_no_pending_reads() {
        let extent = Extent {
            at: CacheOffset(4_096),
            len: 10,
        };
        let mut leases = Leases::new(2, BlockSize::PAGE);
        let old = leases.take(extent).expect("few");
        leases.detach(extent);
        assert!(!leases.is_pending(extent));
        let new = leases.take(extent).expect("few");
        leases.give_back(old);
        assert!(leases.is_pending(extent));
        leases.give_back(new);
        assert!(!leases.is_pending(extent));
    }

    #[test]
    fn reads_are_counted_to_a_limit() {
        let extent = Extent {
            at: CacheOffset(0),
            len: 1,
        };
        let mut leases = Leases::new(1, BlockSize::PAGE);
        let taken = (0..70_000).filter(|_| leases.take(extent).is_some());
        assert_eq!(taken.count(), 65_535);
    }
}
