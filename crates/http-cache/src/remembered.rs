//! Keys whose last response could not be shared. A fixed number; newer ones replace older ones.

use fairlead_base::Instant;

/// Most keys.
const KEYS_MAX: u32 = 4_096;
/// Memory of a key, in bytes.
pub(crate) const KEY_BYTES: u64 = size_of::<Entry>() as u64;

#[derive(Clone, Debug)]
pub(crate) struct Remembered(Vec<Entry>);

#[derive(Clone, Copy, Debug)]
struct Entry {
    hash: u64,
    until: Instant,
}

impl Remembered {
    pub(crate) fn new(objects: u32) -> Self {
        let empty = Entry {
            hash: 0,
            until: Instant::ZERO,
        };
        Self(vec![empty; Self::keys(objects) as usize])
    }

    pub(crate) fn keys(objects: u32) -> u32 {
        objects.clamp(1, KEYS_MAX)
    }

    fn place(&self, hash: u64) -> usize {
        (hash % self.0.len() as u64) as usize
    }

    pub(crate) fn insert(&mut self, hash: u64, until: Instant) {
        let place = self.place(hash);
        self.0[place] = Entry { hash, until };
    }

    pub(crate) fn remove(&mut self, hash: u64) {
        if self.0[self.place(hash)].hash == hash {
            self.insert(hash, Instant::ZERO);
        }
    }

    pub(crate) fn has(&self, hash: u64, now: Instant) -> bool {
        let entry = self.0[self.place(hash)];
        entry.hash == hash && entry.until > now
    }
}
