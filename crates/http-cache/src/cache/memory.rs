//! One memory limit, and room under it.

use super::Cache;
use crate::object::{NONE, Object, Phase};
use crate::remembered::{KEY_BYTES, Remembered};
use crate::sample::{REQUEST_BYTES, Requests};
use crate::settings::Settings;
use crate::store::Store;
use crate::tags::Purges;
use fairlead_content::{BlockKey, Directory, FileId, Found, Revision};

/// Memory of an entry in the policies' arrays: queues, counts, names, ghosts.
const POLICY_BYTES: u64 = 80;
/// Memory of a line in the store's own list, in the list of free lines, and what an allocator needs
/// for it.
const LINE_BYTES: u64 = 36;
/// Victims that are looked at in search of one that nobody reads.
const TRIES_MAX: u32 = 32;
/// By how many the list of a body's lines grows.
const LINES_AT_ONCE: usize = 64;

/// Memory by kind.
#[derive(Clone, Debug)]
pub(crate) struct Used {
    /// Allocated once.
    fixed: u64,
    /// Lines that bodies take.
    pub(crate) lines: u64,
    /// Lines that were promised.
    pub(crate) reserved: u64,
    /// Heads, keys, tags, requests that are kept.
    pub(crate) small: u64,
}

impl Used {
    pub(crate) fn new(objects: u32, lines: u32) -> Self {
        let object = Directory::bytes_per_line() as u64 + 4 + POLICY_BYTES;
        let remembered = u64::from(Remembered::keys(objects)) * KEY_BYTES;
        let sample = u64::from(Requests::requests(objects)) * REQUEST_BYTES;
        Self {
            fixed: u64::from(objects) * object
                + u64::from(lines) * LINE_BYTES
                + remembered
                + sample
                + Purges::memory(Purges::tags_max(objects)),
            lines: 0,
            reserved: 0,
            small: 0,
        }
    }
}

impl Settings {
    /// Blocks of a cache, if bodies took all of its memory.
    pub fn lines(&self) -> u32 {
        let lines = self.bytes / u64::from(self.block.bytes());
        u32::try_from(lines).unwrap_or(u32::MAX).min(1 << 30)
    }
}

impl<S: Store> Cache<S> {
    /// Memory of all kinds, in bytes.
    pub(crate) fn bytes_used(&self) -> u64 {
        let blocks = self.used.lines + self.used.reserved;
        self.used.fixed + blocks * u64::from(self.settings.block.bytes()) + self.used.small
    }

    /// Evicts until this many bytes fit. False if they cannot.
    pub(crate) fn make_room(&mut self, bytes: u64) -> bool {
        while self.bytes_used().saturating_add(bytes) > self.settings.bytes {
            if !self.evict_one() {
                return false;
            }
        }
        true
    }

    /// Evicts an object that nobody reads. False if none was found.
    fn evict_one(&mut self) -> bool {
        for _ in 0..TRIES_MAX {
            let Some(victim) = self.residency.victim() else {
                return false;
            };
            self.residency.on_evict(victim);
            let object = self.object(victim);
            if object.pins > 0 {
                // Its memory would not become free.
                let (name, weight) = (object.verdict.hash, weight(object));
                self.residency.on_insert(victim, name, weight);
                continue;
            }
            self.object_mut(victim).is_resident = false;
            self.stats.evicted += 1;
            self.unlink(victim);
            return true;
        }
        false
    }

    /// Adds an object that is being filled. `None` without room.
    pub(crate) fn add(&mut self, object: Object) -> Option<u32> {
        let blocks = u64::from(object.reserved) * u64::from(self.settings.block.bytes());
        let memory = object.small_memory();
        if !self.make_room(memory + blocks) {
            return None;
        }
        if self.free_objects.is_empty() && self.objects.len() >= self.objects_max as usize {
            self.evict_one();
        }
        let number = match self.free_objects.pop() {
            Some(number) => number,
            None if self.objects.len() < self.objects_max as usize => {
                self.objects.push(None);
                self.objects.len() as u32 - 1
            }
            None => return None,
        };
        self.used.reserved += u64::from(object.reserved);
        self.used.small += memory;
        self.objects[number as usize] = Some(Object { memory, ..object });
        self.link(number);
        Some(number)
    }

    /// Makes an object visible to look-ups, before others of its hash.
    fn link(&mut self, number: u32) {
        let key = directory_key(self.object(number).verdict.hash);
        let line = match self.directory.look_up(key, REVISION) {
            Found::Hit(line) | Found::Stale(line) => line,
            Found::Miss => {
                let line = self.directory.insert(key, REVISION);
                let line = line.expect("a line for each object");
                self.chains[line as usize] = NONE;
                line
            }
        };
        let first = self.chains[line as usize];
        self.chains[line as usize] = number;
        let object = self.object_mut(number);
        object.next = first;
        object.is_linked = true;
    }

    /// The first object of a hash.
    pub(crate) fn chain(&self, hash: u64) -> u32 {
        match self.directory.look_up(directory_key(hash), REVISION) {
            Found::Hit(line) | Found::Stale(line) => self.chains[line as usize],
            Found::Miss => NONE,
        }
    }

    /// Takes an object out of look-ups and out of the policy. Its memory is free when nobody reads
    /// it.
    pub(crate) fn unlink(&mut self, number: u32) {
        self.unoffer(number);
        let object = self.object_mut(number);
        let (hash, next) = (object.verdict.hash, object.next);
        let was_resident = core::mem::take(&mut object.is_resident);
        if core::mem::take(&mut object.is_linked) {
            object.next = NONE;
            let key = directory_key(hash);
            let Found::Hit(line) = self.directory.look_up(key, REVISION) else {
                unreachable!("linked objects are in the directory");
            };
            let first = self.chains[line as usize];
            if first == number {
                self.chains[line as usize] = next;
                if next == NONE {
                    self.directory.remove(line);
                }
            } else {
                let mut before = first;
                while self.object(before).next != number {
                    before = self.object(before).next;
                }
                self.object_mut(before).next = next;
            }
        }
        if was_resident {
            self.residency.on_remove(number);
        }
        let serial = core::mem::take(&mut self.object_mut(number).serial);
        self.note_removed(serial);
        self.reclaim(number);
    }

    /// Frees an object that is neither linked nor pinned.
    pub(crate) fn reclaim(&mut self, number: u32) {
        let object = self.object(number);
        if object.is_linked || object.pins > 0 {
            return;
        }
        debug_assert!(!object.is_resident);
        let Some(object) = self.objects[number as usize].take() else {
            return;
        };
        self.used.small -= object.memory;
        self.used.reserved -= u64::from(object.reserved);
        self.release_lines(&object.lines);
        self.free_objects.push(number);
    }

    pub(crate) fn pin(&mut self, number: u32) {
        self.object_mut(number).pins += 1;
    }

    pub(crate) fn unpin(&mut self, number: u32) {
        let object = self.object_mut(number);
        debug_assert!(object.pins > 0);
        object.pins = object.pins.saturating_sub(1);
        self.reclaim(number);
    }

    /// Accounts anew for an object whose parts changed.
    pub(crate) fn account(&mut self, number: u32) {
        let object = self.object_mut(number);
        let (before, after) = (object.memory, object.small_memory());
        object.memory = after;
        self.used.small = self.used.small - before + after;
    }

    /// Appends a line to an object's body. False without room.
    pub(crate) fn grow(&mut self, number: u32) -> bool {
        let object = self.object_mut(number);
        if object.reserved > 0 {
            object.reserved -= 1;
            self.used.reserved -= 1;
        } else {
            if object.lines.len() == object.lines.capacity() {
                object.lines.reserve_exact(LINES_AT_ONCE);
            }
            let room = u64::from(self.settings.block.bytes()) + LINES_AT_ONCE as u64 * 4;
            if !self.make_room(room) {
                return false;
            }
        }
        let line = match self.free_lines.pop() {
            Some(line) => line,
            None if self.fresh_line < self.lines_max => {
                self.fresh_line += 1;
                self.fresh_line - 1
            }
            None => return false,
        };
        self.used.lines += 1;
        self.object_mut(number).lines.push(line);
        self.account(number);
        true
    }

    pub(crate) fn release_lines(&mut self, lines: &[u32]) {
        self.store.release(lines);
        // The first one is taken first again, so that bodies stay in runs of lines.
        self.free_lines.extend(lines.iter().rev());
        self.used.lines -= lines.len() as u64;
    }

    /// Gives the policy an object that is complete.
    pub(crate) fn make_resident(&mut self, number: u32) {
        let object = self.object_mut(number);
        debug_assert!(object.phase == Phase::Complete && !object.is_resident);
        object.is_resident = true;
        let (name, weight) = (object.verdict.hash, weight(object));
        self.residency.on_miss(name);
        self.residency.on_insert(number, name, weight);
    }
}

fn weight(object: &Object) -> u32 {
    (object.lines.len() as u32).max(1)
}

fn directory_key(hash: u64) -> BlockKey {
    BlockKey {
        file: FileId {
            device: 0,
            inode: hash,
        },
        index: 0,
    }
}

const REVISION: Revision = Revision(0);
