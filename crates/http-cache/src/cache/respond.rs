//! What to do with a server's response.

use super::{Answer, Cache, FetchId, Next, Transfer};
use crate::answer::{How, write_notes};
use crate::conditions::weak;
use crate::directives::{RequestControl, lines};
use crate::freshness::{Fit, HAS_VALIDATOR, SOFTLY_PURGED, Storable, Verdict, storable};
use crate::head::{Field, Kept, Now, RequestHead, ResponseHead};
use crate::key::{write_key, write_variant};
use crate::object::{NONE, Object, Phase, write_head};
use crate::reason::Reason;
use crate::slab::Ticket;
use crate::store::Store;
use crate::tags::{host_tag, tags_of};
use core::time::Duration;

/// Fields of a 304 that do not replace stored ones: they describe a body (RFC 9111, section 3.2).
const NOT_UPDATED: [&str; 4] = [
    "content-encoding",
    "content-length",
    "content-range",
    "transfer-encoding",
];

/// Statuses that a stale response may replace (RFC 5861, section 4).
const REPLACED: [u16; 4] = [500, 502, 503, 504];

impl<S: Store> Cache<S> {
    /// The final head of a server's response to a fetch; not for interim ones. The head of an
    /// answer is appended to `out`, or, for [`Next::Relay`], the fields that are to be added.
    pub fn response(
        &mut self,
        fetch: FetchId,
        response: &ResponseHead<'_>,
        now: Now,
        out: &mut Vec<u8>,
    ) -> Next {
        let ticket = fetch.0;
        let Some(transfer) = self.fetches.named_mut(ticket) else {
            return self.unknown(response, out);
        };
        let Some(kept) = transfer.kept.take() else {
            return self.unknown(response, out);
        };
        self.forget_request(&kept);
        if let Some(number) = self.fetches.get(ticket).and_then(|one| one.validates) {
            if response.status == 304 && can_validate(self.object(number)) {
                if !self.is_same(number, response) {
                    return self.again(ticket, number, kept);
                }
                return kept.with(|head| self.confirm(ticket, number, head, response, now, out));
            }
            let in_background = self
                .fetches
                .get(ticket)
                .is_some_and(|one| one.in_background);
            if REPLACED.contains(&response.status) && !in_background {
                let status = Some(response.status);
                let stale = kept.with(|head| self.stale(number, head, now, status, out));
                if let Some(answer) = stale {
                    let waiters = self.remove_fetch(ticket).map(|one| one.waiters);
                    self.release(waiters.unwrap_or_default());
                    return Next::Stored(Some(answer));
                }
            }
        }
        kept.with(|head| self.fill_or_relay(ticket, head, response, now, out))
    }

    fn unknown(&mut self, response: &ResponseHead<'_>, out: &mut Vec<u8>) -> Next {
        let how = How {
            forward: Some("bypass"),
            status: Some(response.status),
            ..How::default()
        };
        write_notes(out, how, &self.settings);
        Next::Relay(Reason::FetchFailed)
    }

    /// Whether a 304 is for this object (RFC 9111, section 4.3.4).
    fn is_same(&self, number: u32, response: &ResponseHead<'_>) -> bool {
        let object = self.object(number);
        if let Some(etag) = lines(response.fields, "etag").next() {
            return object.etag().is_some_and(|own| weak(own, etag));
        }
        true
    }

    /// The request is sent again, and validates nothing.
    fn again(&mut self, ticket: Ticket, number: u32, kept: Kept) -> Next {
        self.unlink(number);
        self.used.small += kept.memory();
        if let Some(transfer) = self.fetches.named_mut(ticket) {
            transfer.kept = Some(kept);
            transfer.validates = None;
        }
        self.object_mut(number).validation = None;
        self.unpin(number);
        Next::Again
    }

    /// A 304: the object is what the server would send.
    fn confirm(
        &mut self,
        ticket: Ticket,
        number: u32,
        head: &RequestHead<'_>,
        response: &ResponseHead<'_>,
        now: Now,
        out: &mut Vec<u8>,
    ) -> Next {
        self.stats.validated += 1;
        self.unoffer(number);
        let (sent, generation, in_background) = match self.fetches.get(ticket) {
            Some(one) => (one.sent, one.generation, one.in_background),
            None => return Next::Relay(Reason::FetchFailed),
        };
        let may_stay = self.update(number, head, response, sent, generation, now)
            && self.object(number).is_linked
            && self.spoil(ticket, number);
        let age = self
            .object(number)
            .verdict
            .judge(&RequestControl::default(), now);
        self.note_shared(self.object(number).verdict.hash, age.fit, now);
        let how = How {
            forward: Some(self.fetches.get(ticket).map_or("stale", |one| one.forward)),
            status: Some(304),
            ttl: Some(age.ttl),
            ..How::default()
        };
        let answer = if in_background {
            None
        } else {
            self.answer(number, (head, true), now, Some(age.age), how, out)
        };
        if self.object(number).is_resident {
            self.residency.on_hit(number);
        }
        if !may_stay {
            self.unlink(number);
        }
        if let Some(transfer) = self.remove_fetch(ticket) {
            self.release(transfer.waiters);
        }
        if answer.is_none() && !in_background {
            self.stats.count(Reason::ReadersFull);
            return Next::Relay(Reason::ReadersFull);
        }
        Next::Stored(answer)
    }

    /// Merges a 304 into an object. False if it may not be stored any longer.
    fn update(
        &mut self,
        number: u32,
        head: &RequestHead<'_>,
        response: &ResponseHead<'_>,
        sent: fairlead_base::Instant,
        generation: u64,
        now: Now,
    ) -> bool {
        let object = self.object(number);
        let is_new = |name: &str| {
            let kept = NOT_UPDATED
                .iter()
                .any(|other| other.eq_ignore_ascii_case(name));
            !kept && lines(response.fields, name).next().is_some()
        };
        let mut fields: Vec<Field<'_>> = object
            .fields()
            .filter(|(name, _)| !is_new(name) && !name.eq_ignore_ascii_case("date"))
            .collect();
        let new = response.fields.iter();
        fields.extend(new.filter(|(name, _)| {
            !NOT_UPDATED
                .iter()
                .any(|other| other.eq_ignore_ascii_case(name))
        }));
        let line = object.head.split(|byte| *byte == b'\r').next();
        let merged = ResponseHead {
            status: object.verdict.status,
            phrase: line.and_then(|line| line.get(13..)).unwrap_or_default(),
            fields: &fields,
            length: object.total,
        };
        let storable = storable(head, &merged, sent, now, &self.settings);
        let stored = write_head(&merged, now.wall());
        // A new variant is at most as long as the request.
        let growth = (stored.len() as u64).saturating_sub(object.head.len() as u64);
        if !self.make_room(growth + u64::from(2 * self.settings.head_max)) {
            return false;
        }
        let Ok(storable) = storable else {
            // The client gets the fields that the server sent now.
            let object = self.object_mut(number);
            object.head = stored;
            self.account(number);
            return false;
        };
        let mut variant = Vec::new();
        write_variant(&mut variant, &storable.vary, head);
        let object = self.object_mut(number);
        // Purges during the validation still count.
        object.set(storable, stored, generation);
        object.variant = variant.into_boxed_slice();
        self.account(number);
        if self.object(number).is_resident {
            self.note_stored(number);
        }
        true
    }

    /// Answers with a stale response instead of an error, where that is permitted.
    pub(super) fn stale(
        &mut self,
        number: u32,
        head: &RequestHead<'_>,
        now: Now,
        status: Option<u16>,
        out: &mut Vec<u8>,
    ) -> Option<Answer> {
        let object = self.object(number);
        let judgement = object.verdict.judge(&RequestControl::default(), now);
        if !judgement.replaces_errors || !object.is_linked {
            return None;
        }
        let how = How {
            forward: Some("stale"),
            status,
            ttl: Some(judgement.ttl),
            ..How::default()
        };
        let answer = self.answer(number, (head, true), now, Some(judgement.age), how, out)?;
        self.stats.errors_replaced += 1;
        Some(answer)
    }

    fn fill_or_relay(
        &mut self,
        ticket: Ticket,
        head: &RequestHead<'_>,
        response: &ResponseHead<'_>,
        now: Now,
        out: &mut Vec<u8>,
    ) -> Next {
        match self.fill(ticket, head, response, now, out) {
            Ok(next) => next,
            Err(reason) => self.relay(ticket, response, reason, now, out),
        }
    }

    /// Begins to store a response, and answers from what is stored.
    fn fill(
        &mut self,
        ticket: Ticket,
        head: &RequestHead<'_>,
        response: &ResponseHead<'_>,
        now: Now,
        out: &mut Vec<u8>,
    ) -> Result<Next, Reason> {
        let one = self.fetches.get(ticket).ok_or(Reason::FetchFailed)?;
        let (sent, generation, hash) = (one.sent, one.generation, one.hash);
        let (forward, in_background) = (one.forward, one.in_background);
        let storable = storable(head, response, sent, now, &self.settings)?;
        let object = self.new_object(head, response, storable, hash, now)?;
        let verdict = Verdict {
            checked: generation,
            ..object.verdict
        };
        let number = self
            .add(Object { verdict, ..object })
            .ok_or(Reason::NoMemory)?;
        self.object_mut(number).fill = Some(ticket);
        self.pin(number);
        // A purge since the request was sent may concern it.
        let is_valid = self.is_valid(number);
        if !self.spoil(ticket, number) || !is_valid {
            self.stats.count(Reason::Purged);
        }
        let how = How {
            forward: Some(forward),
            status: Some(response.status),
            stored: true,
            ttl: Some(verdict.judge(&RequestControl::default(), now).ttl),
            ..How::default()
        };
        let age = Some(verdict.initial_age).filter(|age| *age > 0);
        let transfer = self.fetches.named_mut(ticket);
        transfer.expect("it is being handled").fills = Some(number);
        let answer = if in_background {
            None
        } else {
            self.answer(number, (head, true), now, age, how, out)
        };
        if answer.is_none() && !in_background {
            self.object_mut(number).fill = None;
            self.unlink(number);
            self.unpin(number);
            let transfer = self.fetches.named_mut(ticket);
            transfer.expect("it is being handled").fills = None;
            return Err(Reason::ReadersFull);
        }
        self.after_head(ticket, number, now);
        Ok(Next::Fill(answer))
    }

    /// Applies purges of the URL since the fetch was sent. False if the object is purged.
    fn spoil(&mut self, ticket: Ticket, number: u32) -> bool {
        let spoiled = self.fetches.get(ticket).and_then(|one| one.spoiled);
        match spoiled {
            None => true,
            Some(false) => {
                self.object_mut(number).verdict.flags |= SOFTLY_PURGED;
                true
            }
            Some(true) => {
                self.unlink(number);
                false
            }
        }
    }

    /// Waiters decide again: the object is there. If it cannot be shared, the key is remembered.
    fn after_head(&mut self, ticket: Ticket, number: u32, now: Now) {
        let object = self.object(number);
        let fit = object.verdict.judge(&RequestControl::default(), now).fit;
        let hash = object.verdict.hash;
        self.note_shared(hash, fit, now);
        let Some(transfer) = self.fetches.named_mut(ticket) else {
            return;
        };
        let waiters = core::mem::take(&mut transfer.waiters);
        let leads = transfer.leads.take();
        if let Some(shared) = leads
            && self.leaders.get(&shared) == Some(&ticket)
        {
            self.leaders.remove(&shared);
        }
        self.release(waiters);
    }

    /// Requests do not wait for a response that each of them must validate.
    fn note_shared(&mut self, hash: u64, fit: Fit, now: Now) {
        if fit == Fit::Validate {
            self.stats.count(Reason::NotShared);
            self.remember(hash, now);
        } else {
            self.uncacheable.remove(hash);
        }
    }

    pub(super) fn remember(&mut self, hash: u64, now: Now) {
        let time = Duration::from_secs(self.settings.remembers_uncacheable.into());
        self.uncacheable.insert(hash, now.at + time);
    }

    fn new_object(
        &mut self,
        head: &RequestHead<'_>,
        response: &ResponseHead<'_>,
        storable: Storable,
        hash: u64,
        now: Now,
    ) -> Result<Object, Reason> {
        let has_body = !matches!(response.status, 204 | 205);
        let total = if has_body { response.length } else { Some(0) };
        if total.is_some_and(|total| total > self.settings.max_object) {
            return Err(Reason::TooLarge);
        }
        let mut key = Vec::new();
        let url = write_key(&mut key, &self.settings.key, head);
        debug_assert_eq!(self.hashing.key(&key[..url]), hash);
        let mut variant = Vec::new();
        write_variant(&mut variant, &storable.vary, head);
        let (path, _) = head.parts();
        let tags = tags_of(&self.hashing, head.host, path, response).ok_or(Reason::Tags)?;
        debug_assert!(tags.contains(&host_tag(&self.hashing, head.host)));
        let stored = write_head(response, now.wall());
        if stored.len() > self.settings.head_max as usize {
            return Err(Reason::HeadTooLarge);
        }
        let blocks = total.map_or(0, |total| self.settings.block.blocks(total));
        let reserved = u32::try_from(blocks).map_err(|_| Reason::TooLarge)?;
        Ok(Object {
            verdict: Verdict {
                hash,
                head_bytes: stored.len() as u32,
                ..storable.verdict
            },
            key: key.into_boxed_slice(),
            url: url as u32,
            vary: storable.vary.into_boxed_slice(),
            variant: variant.into_boxed_slice(),
            tags,
            head: stored,
            last_modified: storable.last_modified,
            date: storable.date,
            total,
            received: 0,
            base: 0,
            lines: Vec::new(),
            reserved,
            phase: Phase::Filling,
            pins: 0,
            is_linked: false,
            is_resident: false,
            next: NONE,
            validation: None,
            is_offered: false,
            fill: None,
            memory: 0,
            serial: 0,
            check: 0,
        })
    }

    /// The response is not stored.
    fn relay(
        &mut self,
        ticket: Ticket,
        response: &ResponseHead<'_>,
        reason: Reason,
        now: Now,
        out: &mut Vec<u8>,
    ) -> Next {
        self.stats.count(reason);
        let Some(transfer) = self.remove_fetch_for(ticket, response.status) else {
            return Next::Relay(reason);
        };
        let how = How {
            forward: Some(transfer.forward),
            status: Some(response.status),
            reason: Some(reason),
            ..How::default()
        };
        write_notes(out, how, &self.settings);
        // What the server cannot do now, or one request asked for, says nothing about the key.
        let is_of_request = matches!(
            reason,
            Reason::RequestNoStore | Reason::Authorization | Reason::NoMemory | Reason::ReadersFull
        );
        if response.status < 500 && !is_of_request {
            self.remember(transfer.hash, now);
        }
        self.release(transfer.waiters);
        Next::Relay(reason)
    }

    /// Removes a fetch whose response is not stored. A stored response that it would have
    /// validated is not current any more, unless the server failed.
    fn remove_fetch_for(&mut self, ticket: Ticket, status: u16) -> Option<Transfer> {
        let validated = self.fetches.get(ticket)?.validates;
        if let Some(number) = validated.filter(|_| status < 500) {
            self.unlink(number);
        }
        self.remove_fetch(ticket)
    }
}

/// Whether a stored response can be validated.
fn can_validate(object: &Object) -> bool {
    object.verdict.flags & HAS_VALIDATOR != 0
}
