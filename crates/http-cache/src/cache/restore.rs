//! Stored responses outlive the process: a journal beside a store that outlives it, too.

use std::collections::BTreeMap;

use fairlead_base::Seed;

use super::Cache;
use crate::freshness::SOFTLY_PURGED;
use crate::head::Now;
use crate::journal::{Put, Record, checksum, fingerprint};
use crate::key::Hashing;
use crate::object::Object;
use crate::settings::Settings;
use crate::store::Store;
use crate::tags::Purged;
use fairlead_content::{CacheOffset, Extent};

/// What to write to the journal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Journal {
    /// Nothing.
    Nothing,
    /// Append this.
    Append(Vec<u8>),
    /// Replace the file by this, at once: write another file and rename it.
    Replace(Vec<u8>),
}

/// What was not written yet.
#[derive(Debug, Default)]
pub(crate) struct Pending {
    bytes: Vec<u8>,
    /// Bytes of the file, and of its first part, which replaced the one before.
    written: u64,
    replaced: u64,
    is_begun: bool,
    serial: u64,
}

/// Larger numbers are not believed, so that counting on never overflows.
const SERIAL_MAX: u64 = u64::MAX / 2;
/// Most bytes that wait to be written.
const PENDING_MAX: usize = 4 << 20;
/// The journal is replaced when it is longer than this and twice its first part.
const LENGTH_MIN: u64 = 1 << 20;

impl<S: Store> Cache<S> {
    /// What to write to the journal now; call it after every turn, and after purges before they
    /// are confirmed. Without [`Settings::journals`] nothing.
    pub fn poll_journal(&mut self) -> Journal {
        if !self.settings.journals {
            return Journal::Nothing;
        }
        let journal = &mut self.journal;
        let length = journal.written + journal.bytes.len() as u64;
        if !journal.is_begun || length > LENGTH_MIN.max(2 * journal.replaced) {
            let whole = self.whole_journal();
            self.journal.is_begun = true;
            self.journal.bytes.clear();
            self.journal.written = whole.len() as u64;
            self.journal.replaced = whole.len() as u64;
            return Journal::Replace(whole);
        }
        if journal.bytes.is_empty() {
            return Journal::Nothing;
        }
        journal.written = length;
        Journal::Append(core::mem::take(&mut journal.bytes))
    }

    /// All that is stored.
    fn whole_journal(&mut self) -> Vec<u8> {
        for number in 0..self.objects.len() as u32 {
            let linked = self.objects[number as usize].as_ref();
            if linked.is_some_and(|object| object.is_linked) {
                self.is_valid(number);
            }
        }
        let mut out = Vec::new();
        Record::Start {
            fingerprint: fingerprint(&self.settings),
            words: self.hashing.words(),
            generation: self.purges.now(),
        }
        .write(&mut out);
        let mut residents: Vec<&Object> = self.objects.iter().flatten().collect();
        residents.retain(|object| object.is_resident);
        // Later ones replace earlier ones.
        residents.sort_by_key(|object| object.serial);
        for object in residents {
            Record::Put(Box::new(Put::new(object))).write(&mut out);
        }
        out
    }

    /// Notes that an object is stored, or has another head.
    pub(super) fn note_stored(&mut self, number: u32) {
        if !self.settings.journals {
            return;
        }
        let before = self.object(number).serial;
        self.journal.serial += 1;
        let serial = self.journal.serial;
        self.object_mut(number).serial = serial;
        let put = Put::new(self.object(number));
        self.note(&Record::Put(Box::new(put)));
        self.note_removed(before);
    }

    pub(super) fn note_removed(&mut self, serial: u64) {
        if serial > 0 {
            self.note(&Record::Remove(serial));
        }
    }

    pub(super) fn note(&mut self, record: &Record) {
        if self.settings.journals && self.journal.is_begun {
            record.write(&mut self.journal.bytes);
            if self.journal.bytes.len() > PENDING_MAX {
                // Nobody writes it: it begins anew when somebody does.
                self.journal.bytes = Vec::new();
                self.journal.is_begun = false;
            }
        }
    }

    /// Checksum of a body; `None` if the store cannot be read here.
    fn body_check(&self, lines: &[u32], total: u64) -> Option<u64> {
        let block = self.settings.block;
        let mut left = total;
        let mut check = 0;
        for line in lines {
            let len = left.min(block.bytes().into()) as u32;
            let at = CacheOffset(block.offset_of(*line).0);
            check = checksum(check, self.store.slice(Extent { at, len })?);
            left -= u64::from(len);
        }
        Some(check)
    }

    /// With what an earlier process stored, as far as its journal and its store prove it: each
    /// entry's record and body have their checksum. Everything else is dropped, and its blocks
    /// are free. The journal of another format or key is not used.
    pub fn restore(settings: Settings, store: S, seed: Seed, journal: &[u8], now: Now) -> Self {
        let mut cache = Self::with_store(settings, store, seed);
        let mut puts = BTreeMap::new();
        let mut records = Record::read_all(journal);
        if let Some(Record::Start {
            fingerprint: theirs,
            words,
            generation,
        }) = records.next()
            && theirs == fingerprint(&cache.settings)
        {
            cache.hashing = Hashing::from_words(words);
            cache.purges.begin_at(generation.min(SERIAL_MAX));
            for record in records {
                match record {
                    Record::Start { .. } => break,
                    Record::Put(put) => {
                        puts.insert(put.serial, put);
                    }
                    Record::Remove(serial) => {
                        puts.remove(&serial);
                    }
                    Record::Soft(serial) => {
                        if let Some(put) = puts.get_mut(&serial) {
                            put.verdict.flags |= SOFTLY_PURGED;
                        }
                    }
                    Record::Purge { tag, soft } => cache.purges.purge(tag, soft),
                    Record::PurgeAll { soft } => cache.purges.purge_all(soft),
                }
            }
        }
        let mut is_used = vec![false; cache.lines_max as usize];
        for (serial, put) in puts {
            cache.journal.serial = cache.journal.serial.max(serial.min(SERIAL_MAX));
            if cache.take_back(*put, &mut is_used, now) {
                cache.stats.restored += 1;
            } else {
                cache.stats.not_restored += 1;
            }
        }
        cache.free_unused();
        cache
    }

    /// Adds an entry of the journal. False if it is damaged, or does not fit.
    fn take_back(&mut self, put: Put, is_used: &mut [bool], now: Now) -> bool {
        let blocks = self.settings.block.blocks(put.total);
        let is_free = |line: &u32| is_used.get(*line as usize) == Some(&false);
        let fits = put.lines.len() as u64 == blocks
            && put.total <= self.settings.max_object
            && put.lines.iter().all(is_free)
            && put.key.len() >= put.url as usize
            && put.verdict.checked <= self.purges.now()
            && put.serial < SERIAL_MAX;
        let purged = self.purges.compare(&put.tags, put.verdict.checked);
        if !fits || purged == Purged::Hard {
            return false;
        }
        let mut lines = put.lines.clone();
        lines.sort_unstable();
        lines.dedup();
        let is_whole = self.body_check(&put.lines, put.total) == Some(put.check);
        if lines.len() != put.lines.len() || !is_whole {
            return false;
        }
        let mut verdict = put.verdict;
        verdict.hash = self.hashing.key(&put.key[..put.url as usize]);
        match now.wall_ms.checked_sub(verdict.wall_ms) {
            Some(elapsed) => {
                let seconds = u32::try_from(elapsed.div_ceil(1_000)).unwrap_or(u32::MAX);
                verdict.initial_age = verdict.initial_age.saturating_add(seconds);
            }
            // The wall's clock went back: its age is not known.
            None => verdict.flags |= SOFTLY_PURGED,
        }
        (verdict.since_ms, verdict.wall_ms) = (now.at.as_millis(), now.wall_ms);
        let used = put.lines.clone();
        let object = put.into_object(verdict);
        // Nothing of it is evicted for another one.
        if self.bytes_used()
            + object.small_memory()
            + blocks * u64::from(self.settings.block.bytes())
            > self.settings.bytes
        {
            return false;
        }
        let Some(number) = self.add(object) else {
            return false;
        };
        for line in &used {
            is_used[*line as usize] = true;
        }
        self.used.reserved -= blocks;
        self.used.lines += blocks;
        let object = self.object_mut(number);
        (object.reserved, object.lines) = (0, used);
        self.account(number);
        self.make_resident(number);
        self.replace_older(number);
        true
    }

    /// Blocks that no entry has are free.
    fn free_unused(&mut self) {
        let mut is_used = vec![false; self.lines_max as usize];
        for object in self.objects.iter().flatten() {
            for line in &object.lines {
                is_used[*line as usize] = true;
            }
        }
        let last = is_used.iter().rposition(|used| *used);
        self.fresh_line = last.map_or(0, |last| last as u32 + 1);
        let lines = 0..self.lines_max;
        let unused: Vec<u32> = lines.filter(|line| !is_used[*line as usize]).collect();
        self.store.release(&unused);
        let before = unused.into_iter().filter(|line| *line < self.fresh_line);
        self.free_lines = before.rev().collect();
    }

    /// Ends the cache, and gives its store back.
    pub fn into_store(self) -> S {
        self.store
    }
}
