//! A whole response made of cached blocks: its head in host memory, its body in the cache. Ranges
//! of the body are extents of the cache.

use core::ops::Range;

use crate::block::{BlockSize, CacheOffset, Extent};

/// A body, of which block `n` is in line `lines[n]`.
#[derive(Clone, Copy, Debug)]
pub struct Object<'a> {
    block: BlockSize,
    body_bytes: u64,
    lines: &'a [u32],
}

impl<'a> Object<'a> {
    /// Of a body of this length; `None` unless there is one line for each of its blocks.
    pub fn new(block: BlockSize, body_bytes: u64, lines: &'a [u32]) -> Option<Self> {
        (block.blocks(body_bytes) == lines.len() as u64).then_some(Self {
            block,
            body_bytes,
            lines,
        })
    }

    /// Bytes of the body.
    pub fn body_bytes(&self) -> u64 {
        self.body_bytes
    }

    /// The extents of a range of the body, in order; the part behind the body's end is left out.
    pub fn extents(&self, range: Range<u64>) -> impl Iterator<Item = Extent> + 'a {
        let end = range.end.min(self.body_bytes);
        let mut offset = range.start;
        let (block, lines) = (self.block, self.lines);
        core::iter::from_fn(move || {
            if offset >= end {
                return None;
            }
            let within = block.within(offset);
            let len = u64::from(block.bytes() - within).min(end - offset) as u32;
            let line = lines[block.index_of(offset) as usize];
            offset += u64::from(len);
            Some(Extent {
                at: CacheOffset(block.offset_of(line).0 + u64::from(within)),
                len,
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_range_is_the_bytes_of_its_blocks(
            body in prop::collection::vec(any::<u8>(), 1..3_000),
            from in 0u64..3_200,
            len in 0u64..3_200,
        ) {
            let block = BlockSize::new(512).expect("a power of two");
            let count = block.blocks(body.len() as u64) as u32;
            // Blocks lie backwards in the cache.
            let lines: Vec<u32> = (0..count).rev().collect();
            let mut cache = vec![0; count as usize * 512];
            for (index, bytes) in body.chunks(512).enumerate() {
                let at = lines[index] as usize * 512;
                cache[at..at + bytes.len()].copy_from_slice(bytes);
            }
            let object = Object::new(block, body.len() as u64, &lines).expect("fits");
            let mut read = Vec::new();
            for extent in object.extents(from..from + len) {
                let at = extent.at.0 as usize;
                read.extend_from_slice(&cache[at..at + extent.len as usize]);
            }
            let end = ((from + len) as usize).min(body.len());
            let wanted = body.get(from as usize..end).unwrap_or_default();
            prop_assert_eq!(read, wanted);
        }
    }

    #[test]
    fn an_object_has_a_line_for_each_block() {
        assert!(Object::new(BlockSize::PAGE, 4_097, &[1, 2]).is_some());
        assert!(Object::new(BlockSize::PAGE, 4_097, &[1]).is_none());
    }
}
