//! What of a cache outlives its process: records of stored responses, removals and purges, to be
//! appended to a file. Each record has its length and a checksum; a torn end is left out.

use crate::freshness::Verdict;
use crate::object::{NONE, Object, Phase};
use crate::settings::Settings;

/// To be changed with the format.
const VERSION: u32 = 1;
/// Length and checksum in front of a record.
const FRAME_BYTES: usize = 12;

/// One record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Record {
    /// The first one: what keys and tags were hashed with, and how many purges there were.
    Start {
        fingerprint: u64,
        words: [u64; 2],
        generation: u64,
    },
    /// A stored response.
    Put(Box<Put>),
    /// It is gone.
    Remove(u64),
    /// A soft purge made it stale.
    Soft(u64),
    /// A tag was purged.
    Purge { tag: u64, soft: bool },
    /// Everything was purged.
    PurgeAll { soft: bool },
}

/// A stored response, without its body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Put {
    /// Names it in later records.
    pub(crate) serial: u64,
    pub(crate) verdict: Verdict,
    pub(crate) key: Box<[u8]>,
    pub(crate) url: u32,
    pub(crate) vary: Box<[Box<str>]>,
    pub(crate) variant: Box<[u8]>,
    pub(crate) tags: Box<[u64]>,
    pub(crate) head: Box<[u8]>,
    pub(crate) last_modified: Option<u64>,
    pub(crate) date: u64,
    pub(crate) total: u64,
    pub(crate) lines: Vec<u32>,
    /// Checksum of the body.
    pub(crate) check: u64,
}

impl Put {
    pub(crate) fn new(object: &Object) -> Self {
        debug_assert_eq!(object.phase, Phase::Complete);
        Self {
            serial: object.serial,
            verdict: object.verdict,
            key: object.key.clone(),
            url: object.url,
            vary: object.vary.clone(),
            variant: object.variant.clone(),
            tags: object.tags.clone(),
            head: object.head.clone(),
            last_modified: object.last_modified,
            date: object.date,
            total: object.received,
            lines: object.lines.clone(),
            check: object.check,
        }
    }

    /// The object, without its lines, which are reserved for it.
    pub(crate) fn into_object(self, verdict: Verdict) -> Object {
        Object {
            verdict,
            key: self.key,
            url: self.url,
            vary: self.vary,
            variant: self.variant,
            tags: self.tags,
            head: self.head,
            last_modified: self.last_modified,
            date: self.date,
            total: Some(self.total),
            received: self.total,
            base: 0,
            lines: Vec::new(),
            reserved: self.lines.len() as u32,
            phase: Phase::Complete,
            pins: 0,
            is_linked: false,
            is_resident: false,
            next: NONE,
            validation: None,
            is_offered: false,
            fill: None,
            memory: 0,
            serial: self.serial,
            check: self.check,
        }
    }
}

/// What must be the same for entries to mean the same.
pub(crate) fn fingerprint(settings: &Settings) -> u64 {
    let text = format!("{VERSION} {} {:?}", settings.block.bytes(), settings.key);
    checksum(0, text.as_bytes())
}

/// Checksum of bytes, continued from another one. Not against an adversary: it finds blocks that
/// were written for something else, and torn records.
pub(crate) fn checksum(before: u64, bytes: &[u8]) -> u64 {
    const ONE: u64 = 0x9E37_79B9_7F4A_7C15;
    const TWO: u64 = 0xD6E8_FEB8_6659_FD93;
    let mut state = before ^ (bytes.len() as u64).wrapping_mul(ONE);
    let mut word = [0; 16];
    for chunk in bytes.chunks(16) {
        word[..chunk.len()].copy_from_slice(chunk);
        word[chunk.len()..].fill(0);
        let [left, right] = halves(u128::from_le_bytes(word));
        let product = u128::from(left ^ state ^ ONE) * u128::from(right ^ TWO);
        let [low, high] = halves(product);
        state = low ^ high ^ state.rotate_left(29);
    }
    state
}

fn halves(word: u128) -> [u64; 2] {
    [word as u64, (word >> 64) as u64]
}

impl Record {
    pub(crate) fn write(&self, out: &mut Vec<u8>) {
        let at = out.len();
        out.extend_from_slice(&[0; FRAME_BYTES]);
        let mut writer = Writer(out);
        match self {
            Self::Start {
                fingerprint,
                words,
                generation,
            } => writer
                .byte(1)
                .number(*fingerprint)
                .number(words[0])
                .number(words[1])
                .number(*generation),
            Self::Put(put) => {
                writer.byte(2).put(put);
                &mut writer
            }
            Self::Remove(serial) => writer.byte(3).number(*serial),
            Self::Soft(serial) => writer.byte(4).number(*serial),
            Self::Purge { tag, soft } => writer.byte(5).number(*tag).byte((*soft).into()),
            Self::PurgeAll { soft } => writer.byte(6).byte((*soft).into()),
        };
        let length = (out.len() - at - FRAME_BYTES) as u32;
        let check = checksum(0, &out[at + FRAME_BYTES..]);
        out[at..at + 4].copy_from_slice(&length.to_le_bytes());
        out[at + 4..at + FRAME_BYTES].copy_from_slice(&check.to_le_bytes());
    }

    /// All records up to the first that is torn or damaged.
    pub(crate) fn read_all(mut bytes: &[u8]) -> impl Iterator<Item = Self> {
        core::iter::from_fn(move || {
            let mut reader = Reader(bytes);
            let length = reader.word()? as usize;
            let check = reader.number()?;
            let body = reader.0.get(..length)?;
            if checksum(0, body) != check {
                return None;
            }
            bytes = &reader.0[length..];
            let mut reader = Reader(body);
            let record = reader.record()?;
            reader.0.is_empty().then_some(record)
        })
    }
}

struct Writer<'a>(&'a mut Vec<u8>);

impl Writer<'_> {
    fn byte(&mut self, byte: u8) -> &mut Self {
        self.0.push(byte);
        self
    }

    fn number(&mut self, number: u64) -> &mut Self {
        self.0.extend_from_slice(&number.to_le_bytes());
        self
    }

    fn word(&mut self, word: u32) -> &mut Self {
        self.0.extend_from_slice(&word.to_le_bytes());
        self
    }

    fn bytes(&mut self, bytes: &[u8]) -> &mut Self {
        self.word(bytes.len() as u32);
        self.0.extend_from_slice(bytes);
        self
    }

    fn put(&mut self, put: &Put) {
        let verdict = &put.verdict;
        self.number(put.serial)
            .number(verdict.wall_ms)
            .number(verdict.checked)
            .word(verdict.initial_age)
            .word(verdict.lifetime)
            .word(verdict.stale_while_revalidate)
            .word(verdict.stale_if_error)
            .word(u32::from(verdict.status) << 16 | u32::from(verdict.flags))
            .bytes(&put.key)
            .word(put.url)
            .word(put.vary.len() as u32);
        for name in &put.vary {
            self.bytes(name.as_bytes());
        }
        self.bytes(&put.variant).word(put.tags.len() as u32);
        for tag in &put.tags {
            self.number(*tag);
        }
        self.bytes(&put.head)
            .byte(put.last_modified.is_some().into())
            .number(put.last_modified.unwrap_or_default())
            .number(put.date)
            .number(put.total)
            .number(put.check)
            .word(put.lines.len() as u32);
        for line in &put.lines {
            self.word(*line);
        }
    }
}

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take<const COUNT: usize>(&mut self) -> Option<[u8; COUNT]> {
        let (front, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*front)
    }

    fn byte(&mut self) -> Option<u8> {
        self.take::<1>().map(|[byte]| byte)
    }

    fn word(&mut self) -> Option<u32> {
        self.take().map(u32::from_le_bytes)
    }

    fn number(&mut self) -> Option<u64> {
        self.take().map(u64::from_le_bytes)
    }

    fn bytes(&mut self) -> Option<&'a [u8]> {
        let length = self.word()? as usize;
        let (front, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(front)
    }

    /// A list of things that take at least `least` bytes each.
    fn list<T>(
        &mut self,
        least: usize,
        mut one: impl FnMut(&mut Self) -> Option<T>,
    ) -> Option<Vec<T>> {
        let count = self.word()? as usize;
        if count > self.0.len() / least {
            return None;
        }
        (0..count).map(|_| one(self)).collect()
    }

    fn record(&mut self) -> Option<Record> {
        Some(match self.byte()? {
            1 => Record::Start {
                fingerprint: self.number()?,
                words: [self.number()?, self.number()?],
                generation: self.number()?,
            },
            2 => Record::Put(Box::new(self.put()?)),
            3 => Record::Remove(self.number()?),
            4 => Record::Soft(self.number()?),
            5 => Record::Purge {
                tag: self.number()?,
                soft: self.byte()? != 0,
            },
            6 => Record::PurgeAll {
                soft: self.byte()? != 0,
            },
            _ => return None,
        })
    }

    fn put(&mut self) -> Option<Put> {
        let serial = self.number()?;
        let (wall_ms, checked) = (self.number()?, self.number()?);
        let [initial_age, lifetime] = [self.word()?, self.word()?];
        let [stale_while_revalidate, stale_if_error] = [self.word()?, self.word()?];
        let status_and_flags = self.word()?;
        let key = self.bytes()?.into();
        let url = self.word()?;
        let vary = self.list(4, |reader| {
            let name = core::str::from_utf8(reader.bytes()?).ok()?;
            Some(Box::from(name))
        })?;
        let variant = self.bytes()?.into();
        let tags = self.list(8, Self::number)?;
        let head: Box<[u8]> = self.bytes()?.into();
        let has_date = self.byte()? != 0;
        let last_modified = self.number()?;
        Some(Put {
            serial,
            verdict: Verdict {
                hash: 0,
                since_ms: 0,
                wall_ms,
                checked,
                initial_age,
                lifetime,
                stale_while_revalidate,
                stale_if_error,
                head_bytes: head.len() as u32,
                status: (status_and_flags >> 16) as u16,
                flags: status_and_flags as u16,
            },
            key,
            url,
            vary: vary.into_boxed_slice(),
            variant,
            tags: tags.into_boxed_slice(),
            head,
            last_modified: has_date.then_some(last_modified),
            date: self.number()?,
            total: self.number()?,
            check: self.number()?,
            lines: self.list(4, Self::word)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put() -> Put {
        Put {
            serial: 7,
            verdict: Verdict {
                hash: 0,
                since_ms: 0,
                wall_ms: 1,
                checked: 2,
                initial_age: 3,
                lifetime: 4,
                stale_while_revalidate: 5,
                stale_if_error: 6,
                head_bytes: 4,
                status: 200,
                flags: 9,
            },
            key: (*b"key").into(),
            url: 2,
            vary: [Box::from("accept")].into(),
            variant: (*b"variant").into(),
            tags: [1, u64::MAX].into(),
            head: (*b"head").into(),
            last_modified: Some(11),
            date: 12,
            total: 13,
            lines: vec![1, 2, 3],
            check: 14,
        }
    }

    fn all() -> Vec<Record> {
        vec![
            Record::Start {
                fingerprint: 1,
                words: [2, 3],
                generation: 4,
            },
            Record::Put(Box::new(put())),
            Record::Remove(5),
            Record::Soft(6),
            Record::Purge { tag: 7, soft: true },
            Record::PurgeAll { soft: false },
        ]
    }

    #[test]
    fn what_is_written_is_read_up_to_a_torn_end() {
        let mut bytes = Vec::new();
        let mut ends = vec![0];
        for record in all() {
            record.write(&mut bytes);
            ends.push(bytes.len());
        }
        for end in 0..=bytes.len() {
            let whole = ends.iter().filter(|at| **at <= end).count() - 1;
            let read: Vec<Record> = Record::read_all(&bytes[..end]).collect();
            assert_eq!(read, all()[..whole], "{end}");
        }
    }

    #[test]
    fn a_changed_byte_ends_the_journal() {
        let mut bytes = Vec::new();
        for record in all() {
            record.write(&mut bytes);
        }
        for at in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[at] ^= 0x10;
            let read: Vec<Record> = Record::read_all(&damaged).collect();
            assert!(read.len() < 6 && read == all()[..read.len()], "{at}");
        }
    }

    #[test]
    fn checksums_differ_by_every_byte_and_by_length() {
        let bytes = vec![0; 100];
        let whole = checksum(1, &bytes);
        assert_ne!(whole, checksum(1, &bytes[..99]));
        assert_ne!(whole, checksum(2, &bytes));
        for at in 0..100 {
            let mut other = bytes.clone();
            other[at] = 1;
            assert_ne!(checksum(1, &other), whole, "{at}");
        }
    }
}
