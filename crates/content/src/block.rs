//! Block sizes, identities of files and blocks, places in host memory and in the cache.

/// The size of a block: a power of two from 512 bytes to 1 MiB.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct BlockSize(u32);

impl BlockSize {
    /// The paper's blocks, which are pages (section 5.1).
    pub const PAGE: Self = Self(4_096);
    /// The smallest block.
    pub const BYTES_MIN: u64 = 512;
    /// The largest block.
    pub const BYTES_MAX: u64 = 1 << 20;

    /// Of this many bytes; `None` if it is no power of two within the bounds.
    pub fn new(bytes: u64) -> Option<Self> {
        let fits = bytes.is_power_of_two() && (Self::BYTES_MIN..=Self::BYTES_MAX).contains(&bytes);
        u32::try_from(bytes).ok().filter(|_| fits).map(Self)
    }

    /// In bytes.
    pub fn bytes(self) -> u32 {
        self.0
    }

    /// Blocks that this many bytes take.
    #[inline]
    pub fn blocks(self, bytes: u64) -> u64 {
        bytes.div_ceil(u64::from(self.0))
    }

    /// The number of the block at this offset.
    #[inline]
    pub fn index_of(self, offset: u64) -> u64 {
        offset / u64::from(self.0)
    }

    /// The offset inside its block.
    #[inline]
    pub fn within(self, offset: u64) -> u32 {
        (offset % u64::from(self.0)) as u32
    }

    /// Where a line of the cache begins.
    #[inline]
    pub fn offset_of(self, line: u32) -> CacheOffset {
        CacheOffset(u64::from(line) * u64::from(self.0))
    }
}

/// A file of the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FileId {
    /// The device of its file system.
    pub device: u32,
    /// Its number there.
    pub inode: u64,
}

/// A block of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlockKey {
    /// The file.
    pub file: FileId,
    /// The block's number, from 0; below 2³² − 1.
    pub index: u32,
}

/// Version of a file's contents: any change gives another number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Revision(pub u64);

/// A place in the cache, in bytes from its start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CacheOffset(pub u64);

/// A place in host memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HostAddress(pub u64);

/// A range of the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Extent {
    /// Where it begins.
    pub at: CacheOffset,
    /// Its length in bytes.
    pub len: u32,
}

impl Extent {
    /// The first byte behind it.
    pub fn end(self) -> u64 {
        self.at.0.saturating_add(u64::from(self.len))
    }

    /// The numbers of the blocks that it touches.
    pub fn lines(self, block: BlockSize) -> core::ops::Range<u64> {
        block.index_of(self.at.0)..block.blocks(self.end())
    }

    /// Its parts, each within one block.
    pub fn split(self, block: BlockSize) -> impl Iterator<Item = Self> {
        let end = self.end();
        let mut at = self.at.0;
        core::iter::from_fn(move || {
            if at >= end {
                return None;
            }
            let rest = u64::from(block.bytes() - block.within(at));
            let len = rest.min(end - at) as u32;
            let part = Self {
                at: CacheOffset(at),
                len,
            };
            at += u64::from(len);
            Some(part)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn block_sizes_are_powers_of_two_within_bounds() {
        assert_eq!(BlockSize::new(4_096), Some(BlockSize::PAGE));
        for wrong in [0, 256, 4_095, 3 << 12, 2 << 20, u64::MAX] {
            assert_eq!(BlockSize::new(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn an_extent_is_split_at_block_boundaries() {
        let extent = Extent {
            at: CacheOffset(4_000),
            len: 4_200,
        };
        let parts: Vec<_> = extent.split(BlockSize::PAGE).collect();
        let lengths: Vec<u32> = parts.iter().map(|part| part.len).collect();
        assert_eq!(lengths, [96, 4_096, 8]);
        assert_eq!(extent.lines(BlockSize::PAGE), 0..3);
        assert!(
            parts
                .iter()
                .all(|part| part.lines(BlockSize::PAGE).count() == 1)
        );
    }
}
