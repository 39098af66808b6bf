//! Purges, and invalidation by methods that change something.

use super::Cache;
use crate::freshness::SOFTLY_PURGED;
use crate::head::{Now, RequestHead, ResponseHead};
use crate::journal::Record;
use crate::key::write_key;
use crate::object::NONE;
use crate::store::Store;
use crate::tags::{PREFIXES_MAX, host_tag, named_tag, prefix_tag};

/// What to purge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purge<'a> {
    /// All variants of one URL.
    Url {
        /// Its host.
        host: &'a str,
        /// Its path and query.
        target: &'a [u8],
    },
    /// All of a host whose path begins with this; it ends at a slash, and has at most
    /// [`PREFIXES_MAX`] of them.
    Prefix {
        /// The host.
        host: &'a str,
        /// The prefix; a missing slash at its end is added.
        path: &'a [u8],
    },
    /// All of a host.
    Host(&'a str),
    /// All that has this tag in `Cache-Tag`, `Surrogate-Key` or `xkey`.
    Tag(&'a [u8]),
    /// Everything.
    All,
}

/// Why a purge was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PurgeError {
    /// The prefix does not begin with a slash.
    NoPath,
    /// The prefix has more than [`PREFIXES_MAX`] slashes.
    TooDeep,
}

impl core::fmt::Display for PurgeError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::NoPath => f.write_str("a prefix begins with a slash"),
            Self::TooDeep => write!(f, "a prefix has at most {PREFIXES_MAX} slashes"),
        }
    }
}

impl core::error::Error for PurgeError {}

impl<S: Store> Cache<S> {
    /// Purges, in constant time but for [`Purge::Url`], which is linear in the URL's variants and
    /// in the fetches under way. What is purged softly is stale from now on, and may be validated,
    /// or served while that is done.
    /// Responses to requests that are under way are purged, too.
    ///
    /// # Errors
    /// A prefix that is no tag.
    pub fn purge(&mut self, purge: Purge<'_>, soft: bool) -> Result<(), PurgeError> {
        match purge {
            Purge::Url { host, target } => self.purge_url(host, target, soft),
            Purge::Prefix { host, path } => {
                if !path.starts_with(b"/") {
                    return Err(PurgeError::NoPath);
                }
                let mut path = path.to_vec();
                if !path.ends_with(b"/") {
                    path.push(b'/');
                }
                if path.iter().filter(|byte| **byte == b'/').count() > PREFIXES_MAX {
                    return Err(PurgeError::TooDeep);
                }
                let tag = prefix_tag(&self.hashing, host, &path);
                self.purge_tag(tag, soft);
            }
            Purge::Host(host) => self.purge_tag(host_tag(&self.hashing, host), soft),
            Purge::Tag(name) => self.purge_tag(named_tag(&self.hashing, name), soft),
            Purge::All => {
                self.purges.purge_all(soft);
                self.note(&Record::PurgeAll { soft });
            }
        }
        self.stats.purges += 1;
        Ok(())
    }

    fn purge_tag(&mut self, tag: u64, soft: bool) {
        self.purges.purge(tag, soft);
        self.note(&Record::Purge { tag, soft });
    }

    fn purge_url(&mut self, host: &str, target: &[u8], soft: bool) {
        let head = RequestHead {
            method: "GET",
            host,
            target,
            fields: &[],
        };
        let mut key = Vec::new();
        let url = write_key(&mut key, &self.settings.key, &head);
        let hash = self.hashing.key(&key[..url]);
        let mut at = self.chain(hash);
        while at != NONE {
            let number = at;
            let object = self.object_mut(number);
            at = object.next;
            if object.key[..object.url as usize] != key[..url] {
                continue;
            }
            if soft {
                object.verdict.flags |= SOFTLY_PURGED;
                let serial = object.serial;
                if serial > 0 {
                    self.note(&Record::Soft(serial));
                }
            } else {
                self.stats.purged += 1;
                self.unlink(number);
            }
        }
        // Responses that are under way are from before the purge.
        for (_, transfer) in self.fetches.iter_mut() {
            if transfer.hash == hash {
                let is_hard = transfer.spoiled.unwrap_or_default() || !soft;
                transfer.spoiled = Some(is_hard);
            }
        }
    }

    /// A response to a request that was [passed](super::Decision::Pass). After a method that may
    /// change something, what is stored for the URL is dropped, and for the URLs of the same host
    /// in `Location` and `Content-Location` (RFC 9111, section 4.4).
    pub fn passed(&mut self, request: &RequestHead<'_>, response: &ResponseHead<'_>, _now: Now) {
        let is_safe = matches!(request.method, "GET" | "HEAD" | "OPTIONS" | "TRACE");
        if is_safe || !(200..400).contains(&response.status) {
            return;
        }
        self.invalidate(request.host, request.target);
        for field in ["location", "content-location"] {
            for value in response.values(field) {
                if let Some(target) = same_host(request, value) {
                    self.invalidate(request.host, &target);
                }
            }
        }
    }

    fn invalidate(&mut self, host: &str, target: &[u8]) {
        let before = self.stats.purged;
        self.purge_url(host, target, false);
        self.stats.invalidated += self.stats.purged - before;
        self.stats.purged = before;
    }
}

/// Path and query of a reference, if it is to the request's host.
fn same_host(request: &RequestHead<'_>, reference: &[u8]) -> Option<Vec<u8>> {
    let reference = reference.split(|byte| *byte == b'#').next()?;
    let rest = [&b"http://"[..], b"https://"].iter().find_map(|scheme| {
        let front = reference.get(..scheme.len())?;
        front
            .eq_ignore_ascii_case(scheme)
            .then(|| &reference[scheme.len()..])
    });
    let rest = rest.or_else(|| reference.strip_prefix(b"//"));
    if let Some(rest) = rest {
        let end = rest.iter().position(|byte| matches!(byte, b'/' | b'?'));
        let (authority, target) = rest.split_at(end.unwrap_or(rest.len()));
        let host = authority.split(|byte| *byte == b':').next()?;
        if !host.eq_ignore_ascii_case(request.host.as_bytes()) {
            return None;
        }
        let mut whole = target.to_vec();
        if !whole.starts_with(b"/") {
            whole.insert(0, b'/');
        }
        return Some(whole);
    }
    if reference.starts_with(b"/") {
        return Some(reference.to_vec());
    }
    if reference.is_empty() || reference.contains(&b':') {
        return None;
    }
    // Relative to the folder of the request's path; dot segments are not resolved.
    let (path, _) = request.parts();
    let folder = path.iter().rposition(|byte| *byte == b'/')?;
    Some([&path[..=folder], reference].concat())
}
