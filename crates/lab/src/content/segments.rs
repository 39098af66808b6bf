//! LRU over blocks, exact, in one step per response instead of one per block.
//!
//! A response of *n* blocks uses blocks 0 to *n* − 1 of its file, in this order. So the blocks of a
//! file that were last used by the same response, its *segment*, are neighbours, and a file's
//! segments are the more recent the lower their blocks. When the segment is used again, each of its
//! blocks has the same stack distance: the blocks behind it in its own response were used since its
//! last use, and those before it have just been used again. That distance is the weight of all more
//! recent segments plus its own less one. A segment is therefore a hit as a whole or a miss as a
//! whole, and it is a hit if the weight of all segments down to it is at most the capacity.
//!
//! A list of segments in order of use is enough; segments beyond the capacity are dropped. The sum
//! down to a segment never decreases, so a dropped one could not become a hit again.

use fairlead_content::BlockSize;

/// An LRU cache of files' beginnings.
#[derive(Clone, Debug)]
pub(super) struct Segments {
    block: BlockSize,
    capacity: u64,
    weight: u64,
    /// By file: its most recent segment.
    tops: Vec<u32>,
    segments: Vec<Segment>,
    /// Unused entries of `segments`, linked by `below`.
    free: u32,
    newest: u32,
    oldest: u32,
}

#[derive(Clone, Copy, Debug)]
struct Segment {
    /// The block behind its last.
    end: u32,
    weight: u32,
    file: u32,
    /// The file's next older segment.
    below: u32,
    newer: u32,
    older: u32,
}

const NONE: u32 = u32::MAX;

/// What a response found in the cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Hit {
    pub(super) bytes: u64,
    pub(super) blocks: u64,
}

impl Segments {
    pub(super) fn new(files: usize, capacity: u64, block: BlockSize) -> Self {
        Self {
            block,
            capacity,
            weight: 0,
            tops: vec![NONE; files],
            segments: Vec::new(),
            free: NONE,
            newest: NONE,
            oldest: NONE,
        }
    }

    /// A response of `bytes` bytes that uses the first `blocks` blocks of a file, at least one and
    /// at most the capacity.
    #[inline]
    pub(super) fn access(&mut self, file: u32, blocks: u32, bytes: u64) -> Hit {
        let mut hit = 0;
        while hit < blocks {
            let top = self.tops[file as usize];
            if top == NONE {
                break;
            }
            let segment = &mut self.segments[top as usize];
            if segment.end > blocks {
                let used = blocks - hit;
                segment.weight -= used;
                self.weight -= u64::from(used);
                hit = blocks;
            } else {
                hit = segment.end;
                self.tops[file as usize] = segment.below;
                self.remove(top);
            }
        }
        self.add(file, blocks);
        Hit {
            bytes: bytes.min(u64::from(hit) * u64::from(self.block.bytes())),
            blocks: u64::from(hit),
        }
    }

    fn add(&mut self, file: u32, blocks: u32) {
        let segment = Segment {
            end: blocks,
            weight: blocks,
            file,
            below: self.tops[file as usize],
            newer: NONE,
            older: self.newest,
        };
        let at = match self.free {
            NONE => {
                self.segments.push(segment);
                self.segments.len() as u32 - 1
            }
            free => {
                self.free = self.segments[free as usize].below;
                self.segments[free as usize] = segment;
                free
            }
        };
        self.tops[file as usize] = at;
        match self.newest {
            NONE => self.oldest = at,
            newest => self.segments[newest as usize].newer = at,
        }
        self.newest = at;
        self.weight += u64::from(blocks);
        while self.weight > self.capacity {
            self.drop_oldest();
        }
    }

    /// The oldest segment is the last of its file.
    fn drop_oldest(&mut self) {
        let oldest = self.oldest;
        let file = self.segments[oldest as usize].file as usize;
        let mut at = self.tops[file];
        if at == oldest {
            self.tops[file] = NONE;
        } else {
            while self.segments[at as usize].below != oldest {
                at = self.segments[at as usize].below;
            }
            self.segments[at as usize].below = NONE;
        }
        self.remove(oldest);
    }

    /// Takes a segment out of the list of all.
    #[inline]
    fn remove(&mut self, at: u32) {
        let Segment {
            weight,
            newer,
            older,
            ..
        } = self.segments[at as usize];
        match newer {
            NONE => self.newest = older,
            newer => self.segments[newer as usize].older = older,
        }
        match older {
            NONE => self.oldest = newer,
            older => self.segments[older as usize].newer = newer,
        }
        self.weight -= u64::from(weight);
        self.segments[at as usize].below = self.free;
        self.free = at;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use proptest::prelude::*;

    use super::*;

    /// LRU, block by block.
    struct Naive {
        capacity: usize,
        blocks: VecDeque<(u32, u32)>,
    }

    impl Naive {
        fn access(&mut self, file: u32, blocks: u32, bytes: u64) -> Hit {
            let mut hit = Hit::default();
            for index in 0..blocks {
                let here = u64::from(index) * 512;
                if let Some(at) = self.blocks.iter().position(|key| *key == (file, index)) {
                    self.blocks.remove(at);
                    hit.bytes += (bytes - here).min(512);
                    hit.blocks += 1;
                }
                self.blocks.push_back((file, index));
                if self.blocks.len() > self.capacity {
                    self.blocks.pop_front();
                }
            }
            hit
        }
    }

    proptest! {
        #[test]
        fn segments_equal_lru_block_by_block(
            capacity in 1u64..60,
            requests in prop::collection::vec((0u32..9, 1u64..20_000), 1..200),
        ) {
            let block = BlockSize::new(512).expect("a power of two");
            let mut segments = Segments::new(9, capacity, block);
            let mut naive = Naive { capacity: capacity as usize, blocks: VecDeque::new() };
            for (file, bytes) in requests {
                let bytes = bytes.min(capacity * 512);
                let blocks = block.blocks(bytes) as u32;
                let hit = segments.access(file, blocks, bytes);
                prop_assert_eq!(hit, naive.access(file, blocks, bytes));
                prop_assert!(segments.segments.len() as u64 <= capacity + 1);
            }
        }
    }
}
