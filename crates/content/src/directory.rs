//! The host's list of the blocks in one device's cache (section 4.2 of the paper).
//!
//! Open addressing: buckets hold a part of the key's hash and the number of the block's line, and
//! there are twice as many buckets as lines. A bucket's home follows from that part of the hash
//! alone, so a removal closes the gap without reading keys. 40 bytes a block.

use fairlead_base::Rng;

use crate::block::{BlockKey, FileId, Revision};

/// Outcome of a look-up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// The block is in this line, in the requested revision.
    Hit(u32),
    /// The block is in this line, in another revision: it must not be used.
    Stale(u32),
    /// The block is not cached.
    Miss,
}

/// Which blocks are cached, and where.
#[derive(Clone, Debug)]
pub struct Directory {
    pub(crate) entries: Vec<Entry>,
    pub(crate) buckets: Vec<Bucket>,
    secret: u64,
    /// The first free line, or `NONE`.
    pub(crate) free: u32,
    pub(crate) used: u32,
}

/// What a line holds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry {
    /// Of a free line: the next free one.
    pub(crate) inode: u64,
    revision: u64,
    device: u32,
    /// Number of the block, or `NONE` for a free line.
    pub(crate) index: u32,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Bucket {
    pub(crate) hash: u32,
    /// A line, or `NONE`.
    pub(crate) line: u32,
}

pub(crate) const NONE: u32 = u32::MAX;
const EMPTY: Bucket = Bucket {
    hash: 0,
    line: NONE,
};
const BUCKETS_PER_LINE: usize = 2;

impl Directory {
    /// Most lines of a directory.
    pub const LINES_MAX: u32 = 1 << 28;

    /// An empty directory of `lines` lines, at most [`Self::LINES_MAX`]. Hashes depend on the
    /// seed.
    ///
    /// # Panics
    /// With more lines.
    pub fn new(lines: u32, seed: u64) -> Self {
        assert!(lines <= Self::LINES_MAX, "{lines} lines");
        let entries = (0..lines)
            .map(|line| Entry {
                inode: u64::from(if line + 1 < lines { line + 1 } else { NONE }),
                revision: 0,
                device: 0,
                index: NONE,
            })
            .collect();
        Self {
            entries,
            buckets: vec![EMPTY; (lines as usize * BUCKETS_PER_LINE).max(1)],
            secret: Rng::new(seed).next_u64(),
            free: if lines == 0 { NONE } else { 0 },
            used: 0,
        }
    }

    /// Lines.
    pub fn lines(&self) -> u32 {
        self.entries.len() as u32
    }

    /// Blocks that are cached.
    pub fn len(&self) -> u32 {
        self.used
    }

    /// True without a block.
    pub fn is_empty(&self) -> bool {
        self.used == 0
    }

    /// Memory of a directory, in bytes a line.
    pub const fn bytes_per_line() -> usize {
        size_of::<Entry>() + BUCKETS_PER_LINE * size_of::<Bucket>()
    }

    /// Searches a block. A stale one stays until it is removed or revised.
    #[inline]
    pub fn look_up(&self, key: BlockKey, revision: Revision) -> Found {
        match self.find(key) {
            None => Found::Miss,
            Some((_, line)) if self.entries[line as usize].revision == revision.0 => {
                Found::Hit(line)
            }
            Some((_, line)) => Found::Stale(line),
        }
    }

    /// Adds a block that is not there. `None` if all lines are in use, or the block's number is
    /// 2³² − 1.
    pub fn insert(&mut self, key: BlockKey, revision: Revision) -> Option<u32> {
        debug_assert!(self.find(key).is_none(), "{key:?} is there");
        if self.free == NONE || key.index == NONE {
            return None;
        }
        let line = self.free;
        let entry = &mut self.entries[line as usize];
        self.free = entry.inode as u32;
        *entry = Entry {
            inode: key.file.inode,
            revision: revision.0,
            device: key.file.device,
            index: key.index,
        };
        let hash = self.hash(key);
        let mut at = self.home(hash);
        while self.buckets[at].line != NONE {
            at = self.next(at);
        }
        self.buckets[at] = Bucket { hash, line };
        self.used += 1;
        self.checked();
        Some(line)
    }

    /// Notes that a line has another revision of its block.
    pub fn revise(&mut self, line: u32, revision: Revision) {
        self.entries[line as usize].revision = revision.0;
    }

    /// The block in a line.
    pub fn key_of(&self, line: u32) -> Option<BlockKey> {
        let entry = self.entries.get(line as usize)?;
        (entry.index != NONE).then(|| entry.key())
    }

    /// Removes the block of a line, if there is one.
    pub fn remove(&mut self, line: u32) -> bool {
        let Some(key) = self.key_of(line) else {
            return false;
        };
        let found = self.find(key);
        debug_assert!(found.is_some_and(|(_, there)| there == line));
        if let Some((at, _)) = found {
            self.close_gap(at);
        }
        self.entries[line as usize] = Entry {
            inode: u64::from(self.free),
            revision: 0,
            device: 0,
            index: NONE,
        };
        self.free = line;
        self.used -= 1;
        self.checked();
        true
    }

    /// Removes a block that left the host's own cache: what the device has is always a part of
    /// what the host has. Returns its line.
    pub fn forget(&mut self, key: BlockKey) -> Option<u32> {
        let (_, line) = self.find(key)?;
        self.remove(line);
        Some(line)
    }

    /// Removes the first `blocks` blocks of a file, and calls `gone` with the line of each.
    pub fn forget_file(&mut self, file: FileId, blocks: u32, mut gone: impl FnMut(u32)) {
        for index in 0..blocks {
            if let Some(line) = self.forget(BlockKey { file, index }) {
                gone(line);
            }
        }
    }

    /// A 64-bit name of a block for policies that remember evicted ones.
    #[inline]
    pub fn name(&self, key: BlockKey) -> u64 {
        let first = folded(key.file.inode ^ self.secret, 0x9E37_79B9_7F4A_7C15);
        let rest = u64::from(key.file.device) << 32 | u64::from(key.index);
        folded(first ^ rest, self.secret | 1)
    }

    #[inline]
    pub(crate) fn hash(&self, key: BlockKey) -> u32 {
        (self.name(key) >> 32) as u32
    }

    /// The bucket where a search begins.
    #[inline]
    pub(crate) fn home(&self, hash: u32) -> usize {
        ((u64::from(hash) * self.buckets.len() as u64) >> 32) as usize
    }

    #[inline]
    fn next(&self, at: usize) -> usize {
        if at + 1 == self.buckets.len() {
            0
        } else {
            at + 1
        }
    }

    /// Bucket and line of a block. At least half of the buckets are empty, so the search ends.
    #[inline]
    pub(crate) fn find(&self, key: BlockKey) -> Option<(usize, u32)> {
        let hash = self.hash(key);
        let mut at = self.home(hash);
        loop {
            let Bucket { hash: there, line } = self.buckets[at];
            if line == NONE {
                return None;
            }
            if there == hash && self.entries[line as usize].key() == key {
                return Some((at, line));
            }
            at = self.next(at);
        }
    }

    /// Empties a bucket and moves later ones towards their homes.
    fn close_gap(&mut self, mut gap: usize) {
        let count = self.buckets.len();
        let mut at = self.next(gap);
        while self.buckets[at].line != NONE {
            let home = self.home(self.buckets[at].hash);
            // Distances along the search from the home of this bucket.
            let to_gap = (gap + count - home) % count;
            let to_here = (at + count - home) % count;
            if to_gap < to_here {
                self.buckets[gap] = self.buckets[at];
                gap = at;
            }
            at = self.next(at);
        }
        self.buckets[gap] = EMPTY;
    }
}

impl Entry {
    #[inline]
    fn key(&self) -> BlockKey {
        BlockKey {
            file: FileId {
                device: self.device,
                inode: self.inode,
            },
            index: self.index,
        }
    }
}

/// Both halves of a product, one over the other.
#[inline]
fn folded(left: u64, right: u64) -> u64 {
    let product = u128::from(left ^ right.rotate_left(23)) * u128::from(right);
    (product as u64) ^ (product >> 64) as u64
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn key(inode: u64, index: u32) -> BlockKey {
        BlockKey {
            file: FileId { device: 1, inode },
            index,
        }
    }

    #[test]
    fn a_directory_takes_at_most_64_bytes_a_block() {
        assert!(Directory::bytes_per_line() <= 64);
    }

    #[test]
    fn it_agrees_with_a_map_under_random_changes() {
        for seed in 0..64 {
            let mut rng = Rng::new(seed);
            let lines = 1 + rng.below(40);
            let mut directory = Directory::new(lines, seed);
            let mut model = BTreeMap::new();
            for _ in 0..400 {
                let key = key(u64::from(rng.below(12)), rng.below(8));
                let revision = Revision(u64::from(rng.below(3)));
                match rng.below(4) {
                    0 | 1 => match directory.look_up(key, revision) {
                        Found::Miss => {
                            assert_eq!(model.get(&key), None);
                            let full = model.len() == lines as usize;
                            let line = directory.insert(key, revision);
                            assert_eq!(line.is_none(), full);
                            if let Some(line) = line {
                                model.insert(key, (line, revision));
                            }
                        }
                        Found::Hit(line) => assert_eq!(model[&key], (line, revision)),
                        Found::Stale(line) => {
                            assert_eq!(model[&key].0, line);
                            assert_ne!(model[&key].1, revision);
                            directory.revise(line, revision);
                            model.insert(key, (line, revision));
                        }
                    },
                    2 => {
                        let gone = directory.forget(key);
                        assert_eq!(gone, model.remove(&key).map(|(line, _)| line));
                    }
                    _ if rng.below(8) == 0 => {
                        let mut gone = Vec::new();
                        directory.forget_file(key.file, 8, |line| gone.push(line));
                        model.retain(|other, (line, _)| {
                            let stays = other.file != key.file;
                            assert_eq!(stays, !gone.contains(line));
                            stays
                        });
                    }
                    _ => {}
                }
                assert_eq!(directory.len() as usize, model.len());
            }
        }
    }

    #[test]
    fn a_directory_without_lines_holds_nothing() {
        let mut directory = Directory::new(0, 1);
        assert_eq!(directory.insert(key(1, 1), Revision(1)), None);
        assert_eq!(directory.look_up(key(1, 1), Revision(1)), Found::Miss);
        assert!(!directory.remove(0) && directory.is_empty());
    }
}
