//! Responses that somebody else sends: a program in the kernel, which knows of freshness only a
//! deadline.

use super::Cache;
use crate::answer::{How, write_answer};
use crate::conditions::Part;
use crate::directives::RequestControl;
use crate::freshness::Fit;
use crate::head::{Now, RequestHead};
use crate::key::write_key;
use crate::object::Phase;
use crate::settings::KeyPart;
use crate::store::Store;

/// A stored response, to be sent as it is to every request with this method, target and host that
/// has no field about ranges, conditions or caches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offered {
    /// Names it in [`Cache::poll_unoffered`] and [`Cache::note_offered`].
    pub object: u32,
    /// Its status.
    pub status: u16,
    /// Its age, seconds.
    pub age: u32,
    /// How long it stays fresh, seconds.
    pub ttl: u32,
}

impl<S: Store> Cache<S> {
    /// Appends a stored response with its empty line and body, but without `Age`, which its sender
    /// adds. `None` where the cache must decide about each request: responses with `Vary`, keys
    /// with a field, whatever is stale or not there yet; and for longer ones than `bytes_max`.
    /// Until [`Cache::poll_unoffered`] names it, it is what the cache would send.
    pub fn offer(
        &mut self,
        head: &RequestHead<'_>,
        now: Now,
        bytes_max: usize,
        out: &mut Vec<u8>,
    ) -> Option<Offered> {
        let has_field = |part: &KeyPart| matches!(part, KeyPart::Header(_));
        if head.method != "GET" || self.settings.key.iter().any(has_field) {
            return None;
        }
        let mut key = core::mem::take(&mut self.key);
        let url = write_key(&mut key, &self.settings.key, head);
        let hash = self.hashing.key(&key[..url]);
        self.key = key;
        let number = self.find(hash, head, now).object?;
        let object = self.object(number);
        let judgement = object.verdict.judge(&RequestControl::default(), now);
        let ttl = u32::try_from(judgement.ttl).unwrap_or(0);
        let is_whole = object.phase == Phase::Complete && object.total.is_some();
        if judgement.fit != Fit::Fresh || ttl == 0 || !is_whole || !object.vary.is_empty() {
            return None;
        }
        let from = out.len();
        let how = How {
            in_kernel: true,
            ..How::default()
        };
        let status = write_answer(out, object, &Part::Whole, None, how, &self.settings);
        out.extend_from_slice(b"\r\n");
        let body = object.total.unwrap_or(0);
        let mut at = 0;
        while at < body && out.len() - from < bytes_max {
            let piece = object.piece(self.settings.block, at, body)?;
            let bytes = self.store.slice(piece)?;
            out.extend_from_slice(bytes);
            at += bytes.len() as u64;
        }
        if at < body || out.len() - from > bytes_max {
            out.truncate(from);
            return None;
        }
        self.object_mut(number).is_offered = true;
        Some(Offered {
            object: number,
            status,
            age: judgement.age,
            ttl,
        })
    }

    /// A response that is not to be offered any more: dropped, replaced, validated or purged.
    pub fn poll_unoffered(&mut self) -> Option<u32> {
        self.unoffered.pop()
    }

    /// Requests were answered with an offered response: with this number of bytes in all.
    pub fn note_offered(&mut self, object: u32, requests: u64, bytes: u64) {
        self.stats.requests += requests;
        self.stats.hits += requests;
        self.stats.kernel_hits += requests;
        self.stats.bytes_served += bytes;
        let known = self.objects.get(object as usize).and_then(Option::as_ref);
        if requests > 0 && known.is_some_and(|one| one.is_offered && one.is_resident) {
            self.residency.on_hit(object);
        }
    }

    /// How many purges were ordered: with each, all offers end.
    pub fn purges(&self) -> u64 {
        self.stats.purges
    }

    pub(super) fn unoffer(&mut self, number: u32) {
        if core::mem::take(&mut self.object_mut(number).is_offered) {
            self.unoffered.push(number);
        }
    }
}
