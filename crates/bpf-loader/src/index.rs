//! The index of keys: an array shared with the kernel program, in which a key takes no system call
//! to tell and one cache line to find.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU64, Ordering};

use fairlead_base::Rng;

use crate::layout::{BUCKET_ENTRIES, RawBucket, RawFlowKey};
use crate::mapping::Mapping;

/// Buckets for so many connections, of two keys each: half full when all are there. A power of two.
pub(crate) fn buckets_for(records: u32) -> u32 {
    let keys = u64::from(records) * 2;
    let buckets = keys.div_ceil(BUCKET_ENTRIES as u64 / 2);
    buckets.next_power_of_two().min(1 << 31) as u32
}

/// The key of the index's hash, from the secret behind cookies: a start that inherits the one has
/// the other, too.
pub(crate) fn hash_key((k0, k1): (u64, u64)) -> u64 {
    Rng::new(k0 ^ k1.rotate_left(32)).next_u64()
}

/// See the module's text. This side alone writes; the program compares the record with the packet
/// before it believes an entry, so that it may read one while it changes.
#[derive(Debug)]
pub(crate) struct KeyIndex {
    buckets: Mapping<RawBucket>,
    hash_key: u64,
}

impl KeyIndex {
    /// Maps the array behind `map`, of `count` buckets, which must be a power of two.
    ///
    /// # Errors
    /// What `mmap` says.
    pub(crate) fn map(map: BorrowedFd<'_>, count: usize, hash_key: u64) -> io::Result<Self> {
        let buckets = Mapping::of(map, count)?;
        Ok(Self { buckets, hash_key })
    }

    /// Bytes of all buckets.
    pub(crate) fn bytes(&self) -> u64 {
        (self.buckets.count() * size_of::<RawBucket>()) as u64
    }

    /// `fl_key_hash` of `bpf/lib/flows.h`.
    fn hash(&self, key: &RawFlowKey) -> u64 {
        key.words().into_iter().fold(self.hash_key, |hash, word| {
            let hash = (hash ^ u64::from(word)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            hash ^ (hash >> 29)
        })
    }

    fn bucket(&self, number: usize) -> [&AtomicU64; BUCKET_ENTRIES] {
        let at = self.buckets.at(number).expect("below their count");
        // SAFETY: inside the mapping for as long as `self`, and aligned: buckets lie at multiples
        // of 64 bytes, entries at multiples of 8 in them. Both sides use whole words only.
        core::array::from_fn(|entry| unsafe {
            AtomicU64::from_ptr((&raw mut (*at).entries).cast::<u64>().add(entry))
        })
    }

    /// Where a key's entry is, if it is here, and what is written there for `flow`.
    fn place(&self, key: &RawFlowKey, flow: u32) -> (usize, u64) {
        let hash = self.hash(key);
        let entry = hash >> 32 << 32 | u64::from(flow + 1);
        (hash as usize & (self.buckets.count() - 1), entry)
    }

    /// Has a key lead to a flow. False when its bucket is full.
    pub(crate) fn tell(&mut self, key: &RawFlowKey, flow: u32) -> bool {
        let (number, entry) = self.place(key, flow);
        let bucket = self.bucket(number);
        let is = |wanted: u64| {
            let mut entries = bucket.iter();
            entries.find(move |entry| entry.load(Ordering::Relaxed) == wanted)
        };
        let free = is(entry).or_else(|| is(0));
        free.inspect(|free| free.store(entry, Ordering::Release))
            .is_some()
    }

    /// Forgets a key that leads to a flow. False when it is not here.
    pub(crate) fn leave(&mut self, key: &RawFlowKey, flow: u32) -> bool {
        let (number, entry) = self.place(key, flow);
        let bucket = self.bucket(number);
        let found = bucket
            .iter()
            .find(|one| one.load(Ordering::Relaxed) == entry);
        found
            .inspect(|found| found.store(0, Ordering::Release))
            .is_some()
    }

    /// Forgets all keys but those that `is_key` gives for the flows to which they lead; tells
    /// `kept` of these.
    pub(crate) fn retain(
        &mut self,
        is_key: impl Fn(u32) -> Option<RawFlowKey>,
        mut kept: impl FnMut(u32),
    ) {
        for number in 0..self.buckets.count() {
            for entry in self.bucket(number) {
                let is = entry.load(Ordering::Relaxed);
                let Some(flow) = (is as u32).checked_sub(1) else {
                    continue;
                };
                let key = is_key(flow);
                if key.is_some_and(|key| self.place(&key, flow) == (number, is)) {
                    kept(flow);
                } else {
                    entry.store(0, Ordering::Release);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_keys_fit_half_full_buckets() {
        for (records, buckets) in [(1, 1), (2, 1), (3, 2), (64, 32), (1 << 20, 1 << 19)] {
            assert_eq!(buckets_for(records), buckets, "{records}");
        }
        assert!(buckets_for(u32::MAX).is_power_of_two());
    }
}
