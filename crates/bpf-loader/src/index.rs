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

/// See the module's text. The program writes keys, too, of connections that it begins: so entries
/// change by compare and swap. It compares the record with the packet before it believes one, so
/// that it may read one while it changes.
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

    /// Has a key lead to a flow. False when its bucket is full. A program that writes the key, too,
    /// looks for others afterwards (`fl_tell`), and finds this one, or wrote before.
    pub(crate) fn tell(&mut self, key: &RawFlowKey, flow: u32) -> bool {
        let (number, entry) = self.place(key, flow);
        let bucket = self.bucket(number);
        let is = |entry: &AtomicU64| entry.load(Ordering::Relaxed);
        bucket.iter().any(|one| is(one) == entry) || bucket.iter().any(|one| replace(one, 0, entry))
    }

    /// Forgets a key that leads to a flow. False when it is not here.
    pub(crate) fn leave(&mut self, key: &RawFlowKey, flow: u32) -> bool {
        let (number, entry) = self.place(key, flow);
        let bucket = self.bucket(number);
        bucket.iter().any(|one| replace(one, entry, 0))
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

/// Writes `after` where `before` is; false where that is not.
fn replace(entry: &AtomicU64, before: u64, after: u64) -> bool {
    entry.load(Ordering::Relaxed) == before
        && entry
            .compare_exchange(before, after, Ordering::SeqCst, Ordering::Relaxed)
            .is_ok()
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::fd::AsFd as _;

    use super::*;

    /// An index over memory of its own: a file without a name.
    fn index(buckets: u64) -> KeyIndex {
        let path = std::env::temp_dir().join(format!(
            "fairlead-index-{}-{:?}",
            std::process::id(),
            std::thread::current().id()
        ));
        let file = File::create_new(&path).unwrap();
        drop(file);
        let file = File::options().read(true).write(true).open(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        file.set_len((buckets * size_of::<RawBucket>() as u64).next_multiple_of(65_536))
            .unwrap();
        KeyIndex::map(file.as_fd(), buckets as usize, 17).unwrap()
    }

    fn key(number: u16) -> RawFlowKey {
        let endpoint = |text: &str| text.parse::<std::net::SocketAddr>().unwrap().into();
        RawFlowKey::from(&fairlead_base::FlowKey {
            src: endpoint(&format!("10.1.0.9:{}", 1_024 + number)),
            dst: endpoint("10.1.0.3:80"),
        })
    }

    /// Entries in use.
    fn used(index: &KeyIndex) -> usize {
        let buckets = 0..index.buckets.count();
        let entries = buckets.flat_map(|number| index.bucket(number));
        entries
            .filter(|entry| entry.load(Ordering::Relaxed) != 0)
            .count()
    }

    #[test]
    fn all_keys_fit_half_full_buckets() {
        for (records, buckets) in [(1, 1), (2, 1), (3, 2), (64, 32), (1 << 20, 1 << 19)] {
            assert_eq!(buckets_for(records), buckets, "{records}");
        }
        assert!(buckets_for(u32::MAX).is_power_of_two());
    }

    #[test]
    fn a_full_bucket_takes_no_more_until_a_key_has_left() {
        let mut index = index(1);
        for number in 0..BUCKET_ENTRIES as u16 {
            assert!(index.tell(&key(number), u32::from(number)));
            assert!(index.tell(&key(number), u32::from(number)), "told again");
        }
        assert_eq!(used(&index), BUCKET_ENTRIES);
        assert!(!index.tell(&key(99), 99));
        assert!(!index.leave(&key(99), 99), "it was not taken");
        assert!(!index.leave(&key(3), 4), "that key leads elsewhere");
        assert!(index.leave(&key(3), 3));
        assert!(index.tell(&key(99), 99));
        assert!(!index.tell(&key(3), 3));
    }

    #[test]
    fn what_is_retained_leads_where_it_did_and_nothing_else_is_left() {
        let mut index = index(16);
        for number in 0..40u16 {
            assert!(index.tell(&key(number), u32::from(number)));
        }
        let mut kept = Vec::new();
        // Every third flow goes on with its key, and every fifth with another one.
        let is_key = |flow: u32| match (flow % 3, flow % 5) {
            (_, 0) => Some(key(5_000 + flow as u16)),
            (0, _) => Some(key(flow as u16)),
            _ => None,
        };
        index.retain(is_key, |flow| kept.push(flow));
        kept.sort_unstable();
        let expected: Vec<u32> = (0..40)
            .filter(|flow| flow % 3 == 0 && flow % 5 != 0)
            .collect();
        assert_eq!(kept, expected);
        assert_eq!(used(&index), expected.len());
        for flow in expected {
            assert!(index.leave(&key(flow as u16), flow), "{flow}");
        }
        assert_eq!(used(&index), 0);
    }
}
