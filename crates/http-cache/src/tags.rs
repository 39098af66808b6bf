//! Purges by tag, by generation: each purge has a number, and an object is valid if none of its
//! tags was purged after the object's own number. A purge costs the same for any number of
//! objects; an object is compared with the purges since at its next look-up.

use std::collections::BTreeMap;

use fairlead_wire::http::members;

use crate::head::ResponseHead;
use crate::key::Hashing;

/// Path prefixes of an object that are tags.
pub const PREFIXES_MAX: usize = 8;
/// Tags that a response may have in `Cache-Tag`, `Surrogate-Key` and `xkey`.
pub const TAGS_MAX: usize = 32;
/// Most purged tags that are remembered; fewer where there is room for few objects. When there are
/// more, the older half is forgotten, and objects that were not looked up since are dropped.
const PURGED_MAX: usize = 16_384;
const PURGED_MIN: usize = 64;
/// Memory of a purged tag: the map's nodes are at least half full.
const PURGED_BYTES: u64 = 64;

/// Number of a purge; 0 is before all.
pub(crate) type Generation = u64;

/// Which tags were purged, and when.
#[derive(Clone, Debug)]
pub(crate) struct Purges {
    tags_max: usize,
    now: Generation,
    /// Objects from before this are dropped, whatever their tags.
    floor: Generation,
    /// Objects from before this are stale.
    soft_floor: Generation,
    tags: BTreeMap<u64, Marks>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Marks {
    hard: Generation,
    soft: Generation,
}

/// What purges since an object's generation mean for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purged {
    No,
    Soft,
    Hard,
}

impl Purges {
    /// For a cache of this many objects at most.
    pub(crate) fn new(objects: u32) -> Self {
        Self {
            tags_max: Self::tags_max(objects),
            now: 0,
            floor: 0,
            soft_floor: 0,
            tags: BTreeMap::new(),
        }
    }

    /// Continues the numbers of an earlier process.
    pub(crate) fn begin_at(&mut self, generation: Generation) {
        self.now = generation;
    }

    /// Purged tags that a cache of this many objects remembers.
    pub(crate) fn tags_max(objects: u32) -> usize {
        (objects as usize).clamp(PURGED_MIN, PURGED_MAX)
    }

    /// Memory of this many purged tags, in bytes.
    pub(crate) fn memory(tags: usize) -> u64 {
        tags as u64 * PURGED_BYTES
    }

    pub(crate) fn now(&self) -> Generation {
        self.now
    }

    pub(crate) fn purge(&mut self, tag: u64, soft: bool) {
        self.now += 1;
        let now = self.now;
        let marks = self.tags.entry(tag).or_default();
        if soft {
            marks.soft = now;
        } else {
            marks.hard = now;
        }
        if self.tags.len() >= self.tags_max {
            self.forget_half();
        }
    }

    pub(crate) fn purge_all(&mut self, soft: bool) {
        self.now += 1;
        if soft {
            self.soft_floor = self.now;
        } else {
            self.floor = self.now;
            self.tags.clear();
        }
    }

    /// For an object that was last compared at `since`.
    pub(crate) fn compare(&self, tags: &[u64], since: Generation) -> Purged {
        if since < self.floor {
            return Purged::Hard;
        }
        let mut verdict = if since < self.soft_floor {
            Purged::Soft
        } else {
            Purged::No
        };
        for tag in tags {
            let marks = self.tags.get(tag).copied().unwrap_or_default();
            if marks.hard > since {
                return Purged::Hard;
            }
            if marks.soft > since {
                verdict = Purged::Soft;
            }
        }
        verdict
    }

    fn forget_half(&mut self) {
        let latest = |marks: &Marks| marks.hard.max(marks.soft);
        let mut numbers: Vec<Generation> = self.tags.values().map(latest).collect();
        let middle = numbers.len() / 2;
        let (_, floor, _) = numbers.select_nth_unstable(middle);
        self.floor = self.floor.max(*floor);
        self.tags.retain(|_, marks| latest(marks) > self.floor);
    }
}

/// The tag of a host.
pub(crate) fn host_tag(hashing: &Hashing, host: &str) -> u64 {
    hashing.hash(b'h', &[host.as_bytes()])
}

/// The tag of a path prefix of a host, `/` at its end.
pub(crate) fn prefix_tag(hashing: &Hashing, host: &str, prefix: &[u8]) -> u64 {
    hashing.hash(b'p', &[host.as_bytes(), prefix])
}

/// The tag that a response names.
pub(crate) fn named_tag(hashing: &Hashing, name: &[u8]) -> u64 {
    hashing.hash(b't', &[name])
}

/// All tags of an object; `None` if the response names more than [`TAGS_MAX`].
pub(crate) fn tags_of(
    hashing: &Hashing,
    host: &str,
    path: &[u8],
    head: &ResponseHead<'_>,
) -> Option<Box<[u64]>> {
    let mut tags = vec![host_tag(hashing, host)];
    let ends = path.iter().enumerate().filter(|(_, byte)| **byte == b'/');
    for (at, _) in ends.take(PREFIXES_MAX) {
        tags.push(prefix_tag(hashing, host, &path[..=at]));
    }
    let implied = tags.len();
    let mut names = Vec::new();
    for line in head.values("cache-tag") {
        names.extend(members(line));
    }
    for field in ["surrogate-key", "xkey"] {
        for line in head.values(field) {
            let words = line.split(|byte| matches!(byte, b' ' | b',' | b'\t'));
            names.extend(words.filter(|word| !word.is_empty()));
        }
    }
    for name in names {
        let tag = named_tag(hashing, name);
        if !tags[implied..].contains(&tag) {
            tags.push(tag);
        }
        if tags.len() - implied > TAGS_MAX {
            return None;
        }
    }
    Some(tags.into_boxed_slice())
}

#[cfg(test)]
mod tests {
    use fairlead_base::{Rng, Seed};

    use super::*;

    #[test]
    fn a_purge_concerns_what_was_there_before_it() {
        let mut purges = Purges::new(9);
        purges.purge(1, false);
        let since = purges.now();
        assert_eq!(purges.compare(&[1, 2], since), Purged::No);
        assert_eq!(purges.compare(&[1, 2], since - 1), Purged::Hard);
        purges.purge(2, true);
        assert_eq!(purges.compare(&[1, 2], since), Purged::Soft);
        assert_eq!(purges.compare(&[1], since), Purged::No);
        purges.purge(2, false);
        assert_eq!(purges.compare(&[1, 2], since), Purged::Hard);
        purges.purge_all(true);
        assert_eq!(purges.compare(&[3], since), Purged::Soft);
        purges.purge_all(false);
        assert_eq!(purges.compare(&[3], since), Purged::Hard);
        assert_eq!(purges.compare(&[3], purges.now()), Purged::No);
    }

    #[test]
    fn forgotten_purges_never_keep_an_object() {
        let mut rng = Rng::new(3);
        let mut purges = Purges::new(1_000);
        // Tag and the generation before its purge.
        let mut purged = Vec::new();
        for _ in 0..60_000 {
            let tag = rng.next_u64();
            purged.push((tag, purges.now()));
            purges.purge(tag, false);
            assert!(purges.tags.len() < 1_000);
        }
        for (tag, before) in purged {
            assert_eq!(purges.compare(&[tag], before), Purged::Hard);
        }
        assert_eq!(purges.compare(&[1], purges.now()), Purged::No);
    }

    #[test]
    fn tags_are_host_prefixes_and_names() {
        let hashing = Hashing::new(Seed::from(1));
        let tags = |path: &str, fields: &[crate::head::Field<'_>]| {
            let head = ResponseHead {
                status: 200,
                phrase: b"",
                fields,
                length: None,
            };
            tags_of(&hashing, "a", path.as_bytes(), &head)
        };
        let found = tags(
            "/x/y/z",
            &[
                ("Cache-Tag", b"one, two"),
                ("xkey", b"two three"),
                ("surrogate-key", b"four"),
            ],
        )
        .expect("few");
        assert_eq!(found.len(), 1 + 3 + 4);
        assert!(found.contains(&prefix_tag(&hashing, "a", b"/x/y/")));
        assert!(!found.contains(&prefix_tag(&hashing, "b", b"/x/y/")));
        assert!(found.contains(&named_tag(&hashing, b"three")));
        assert_eq!(
            tags(&"/x".repeat(30), &[]).expect("few").len(),
            1 + PREFIXES_MAX
        );
        let many: Vec<String> = (0..33).map(|number| number.to_string()).collect();
        assert_eq!(tags("/", &[("xkey", many.join(" ").as_bytes())]), None);
    }
}
