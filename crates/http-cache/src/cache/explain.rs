//! What is known about a URL, for people.

use super::Cache;
use crate::directives::RequestControl;
use crate::freshness::{Judgement, SOFTLY_PURGED};
use crate::head::{Now, RequestHead};
use crate::key::write_key;
use crate::object::{NONE, Phase};
use crate::store::Store;
use crate::tags::Purged;

/// What is known about a URL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Explained {
    /// Its stored responses, the latest first.
    pub variants: Vec<Variant>,
    /// The last response could not be shared: requests do not wait for each other.
    pub is_uncacheable: bool,
    /// Requests to servers for it that are under way.
    pub fetches: usize,
}

/// A stored response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Variant {
    /// Its status.
    pub status: u16,
    /// Age, freshness, and what a request without directives may do with it.
    pub judgement: Judgement,
    /// Its freshness lifetime, in seconds.
    pub lifetime: u32,
    /// A purge removes it at the next look-up.
    pub is_purged: bool,
    /// A soft purge made it stale.
    pub is_softly_purged: bool,
    /// All of its body is there.
    pub is_complete: bool,
    /// Bytes of its body that are there.
    pub body_bytes: u64,
    /// Answers that are read from it, and fetches that fill or validate it.
    pub users: u32,
    /// Field names that it varies by.
    pub vary: Vec<String>,
    /// Its entity tag.
    pub etag: Option<String>,
    /// Tags, implied ones among them.
    pub tags: usize,
}

impl<S: Store> Cache<S> {
    /// What is stored for a URL, and why it is or is not served.
    pub fn explain(&self, host: &str, target: &[u8], now: Now) -> Explained {
        let head = RequestHead {
            method: "GET",
            host,
            target,
            fields: &[],
        };
        let mut key = Vec::new();
        let url = write_key(&mut key, &self.settings.key, &head);
        let hash = self.hashing.key(&key[..url]);
        let mut variants = Vec::new();
        let mut at = self.chain(hash);
        while at != NONE {
            let object = self.object(at);
            at = object.next;
            if object.key[..object.url as usize] != key[..url] {
                continue;
            }
            let verdict = &object.verdict;
            let purged = self.purges.compare(&object.tags, verdict.checked);
            variants.push(Variant {
                status: verdict.status,
                judgement: verdict.judge(&RequestControl::default(), now),
                lifetime: verdict.lifetime,
                is_purged: purged == Purged::Hard,
                is_softly_purged: purged == Purged::Soft || verdict.flags & SOFTLY_PURGED != 0,
                is_complete: object.phase == Phase::Complete,
                body_bytes: object.received,
                users: object.pins,
                vary: object.vary.iter().map(|name| name.to_string()).collect(),
                etag: object
                    .etag()
                    .map(|etag| String::from_utf8_lossy(etag).into_owned()),
                tags: object.tags.len(),
            });
        }
        let fetches = self.fetches.iter();
        Explained {
            variants,
            is_uncacheable: self.uncacheable.has(hash, now.at),
            fetches: fetches.filter(|(_, one)| one.hash == hash).count(),
        }
    }
}
