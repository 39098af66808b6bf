//! Which entries stay in the cache. An entry is a cached block or a whole object; its weight is the
//! number of blocks that it takes.
//!
//! To add a policy: a file with a `REGISTERED` line, its variant of [`Policy`] and its line of
//! [`Policy::registered`].

mod clock;
mod fifo;
mod gdsf;
mod ghosts;
mod lru;
mod s3_fifo;
mod sieve;

use core::fmt::Debug;
use core::str::FromStr;

/// Decides which entries are evicted. Entries are numbers below the capacity that the policy was
/// made for. No method allocates.
///
/// On a miss: `on_miss`, then `victim` and `on_evict` until there is room, then `on_insert`.
pub trait Residency: Debug {
    /// An entry of this name, which is not cached, was requested and will be inserted.
    fn on_miss(&mut self, name: u64) {
        let _ = name;
    }

    /// A new entry.
    fn on_insert(&mut self, entry: u32, name: u64, weight: u32);

    /// An entry was used.
    fn on_hit(&mut self, entry: u32);

    /// The entry to evict next; `None` without entries. It stays until `on_evict`.
    fn victim(&mut self) -> Option<u32>;

    /// An entry was evicted to make room.
    fn on_evict(&mut self, entry: u32);

    /// An entry was removed for another reason: its file changed, or the host forgot it. Policies
    /// that remember evicted entries tell the two apart.
    fn on_remove(&mut self, entry: u32) {
        self.on_evict(entry);
    }
}

/// A policy by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Policy {
    /// Least recently used: the paper's.
    Lru,
    /// First in, first out.
    Fifo,
    /// FIFO with a second chance.
    Clock,
    /// One bit, one hand, no moves.
    Sieve,
    /// A small queue, a main queue, ghosts.
    S3Fifo,
    /// Greedy dual with size and frequency.
    Gdsf,
}

/// A line of the registry.
pub(crate) struct Registered {
    name: &'static str,
    about: &'static str,
    /// Makes it for this many entries and this many blocks.
    build: fn(u32, u64) -> Box<dyn Residency + Send>,
}

impl Policy {
    /// All policies.
    pub const ALL: [Self; 6] = [
        Self::Lru,
        Self::Fifo,
        Self::Clock,
        Self::Sieve,
        Self::S3Fifo,
        Self::Gdsf,
    ];

    fn registered(self) -> &'static Registered {
        match self {
            Self::Lru => &lru::REGISTERED,
            Self::Fifo => &fifo::REGISTERED,
            Self::Clock => &clock::REGISTERED,
            Self::Sieve => &sieve::REGISTERED,
            Self::S3Fifo => &s3_fifo::REGISTERED,
            Self::Gdsf => &gdsf::REGISTERED,
        }
    }

    /// Its name: `lru`, `s3-fifo`.
    pub fn name(self) -> &'static str {
        self.registered().name
    }

    /// How it chooses, in one line.
    pub fn about(self) -> &'static str {
        self.registered().about
    }

    /// Makes it for at most `entries` entries in a cache of `blocks` blocks.
    pub fn build(self, entries: u32, blocks: u64) -> Box<dyn Residency + Send> {
        (self.registered().build)(entries, blocks)
    }
}

impl core::fmt::Display for Policy {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Policy {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let plain = text.replace('_', "-");
        let found = Self::ALL.into_iter().find(|policy| policy.name() == plain);
        found.ok_or_else(|| {
            let names = Self::ALL.map(Self::name).join(", ");
            format!("no such policy; one of: {names}")
        })
    }
}

/// Which files may be cached: the paper caches no file larger than the cache (section 3.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Admission {
    /// Files with more bytes are not cached.
    pub file_bytes_max: u64,
}

impl Admission {
    /// As the paper has it.
    pub fn up_to_the_cache(cache_bytes: u64) -> Self {
        Self {
            file_bytes_max: cache_bytes,
        }
    }

    /// Whether a file of this length may be cached.
    #[inline]
    pub fn admits(self, file_bytes: u64) -> bool {
        file_bytes <= self.file_bytes_max
    }
}

#[cfg(test)]
mod tests;
