//! What to do with a request.

use fairlead_base::Instant;

use super::{
    Answer, Body, Cache, Decision, Fetch, FetchId, Reader, ReaderId, Transfer, Waiter, WaiterId,
    conditions,
};
use crate::answer::{How, write_answer, write_not_cached, write_notes};
use crate::asked::Asked;
use crate::conditions::{Part, part};
use crate::directives::RequestControl;
use crate::freshness::{Fit, Judgement, SOFTLY_PURGED};
use crate::head::{Kept, Now, RequestHead};
use crate::key::{write_key, write_variant};
use crate::object::{NONE, Phase};
use crate::reason::Reason;
use crate::slab::Ticket;
use crate::store::Store;
use crate::tags::Purged;

/// Memory of a fetch, a waiter or a reader, without the request that is kept: entries of a slab,
/// of the queue of events and of a map.
const ENTRY_BYTES: u64 = 256;
/// Deadlines of requests that went away are forgotten when there are more than this and twice the
/// waiters.
const DEADLINES_MIN: usize = 64;

/// A request, and what is known about it.
struct Case<'a> {
    head: &'a RequestHead<'a>,
    fields: Asked,
    asked: RequestControl,
    hash: u64,
    /// The latest object of its URL.
    latest: Option<u32>,
    now: Now,
    /// Until when it may wait for another request's response.
    waits: Option<Instant>,
    /// It waited.
    collapsed: bool,
}

/// Objects that have the request's URL.
#[derive(Clone, Copy)]
pub(super) struct Found {
    /// The one that answers this request.
    pub(super) object: Option<u32>,
    /// The latest one, of whatever variant.
    latest: Option<u32>,
}

impl<S: Store> Cache<S> {
    /// Decides about a request. The head of an answer is appended to `out`.
    pub fn request(&mut self, head: &RequestHead<'_>, now: Now, out: &mut Vec<u8>) -> Decision {
        self.stats.requests += 1;
        let deadline = now.at + self.settings.collapse_wait;
        self.decide(head, now, Some(deadline), false, out)
    }

    pub(super) fn decide(
        &mut self,
        head: &RequestHead<'_>,
        now: Now,
        waits: Option<Instant>,
        collapsed: bool,
        out: &mut Vec<u8>,
    ) -> Decision {
        let fields = Asked::new(head, &self.settings);
        if let Some(reason) = fields.refused {
            return self.pass(reason);
        }
        let asked = if self.settings.obeys_requests {
            fields.control(head)
        } else {
            RequestControl::default()
        };
        let mut key = core::mem::take(&mut self.key);
        let url = write_key(&mut key, &self.settings.key, head);
        let hash = self.hashing.key(&key[..url]);
        self.key = key;
        let found = self.find(hash, head, now);
        let case = Case {
            head,
            fields,
            asked,
            hash,
            latest: found.latest,
            now,
            waits,
            collapsed,
        };
        match found.object {
            Some(object) => self.with_object(&case, object, out),
            None => self.without_object(&case, out),
        }
    }

    /// Searches the object for a request whose key is in `self.key`.
    pub(super) fn find(&mut self, hash: u64, head: &RequestHead<'_>, now: Now) -> Found {
        let mut found = Found {
            object: None,
            latest: None,
        };
        let mut at = self.chain(hash);
        while at != NONE {
            let number = at;
            at = self.object(number).next;
            if *self.object(number).key != *self.key {
                continue;
            }
            if !self.is_valid(number) {
                continue;
            }
            found.latest = found.latest.or(Some(number));
            let object = self.object(number);
            let is_shared = object.phase == Phase::Complete
                || object.verdict.judge(&RequestControl::default(), now).fit != Fit::Validate;
            // What must be validated for each request, and is not complete, is for its client
            // alone.
            if is_shared && self.is_variant(number, head) {
                found.object = Some(number);
                break;
            }
        }
        found
    }

    /// Compares an object with the purges since it was compared last.
    pub(super) fn is_valid(&mut self, number: u32) -> bool {
        let generation = self.purges.now();
        let object = self.object(number);
        if object.verdict.checked == generation {
            return true;
        }
        let purged = self.purges.compare(&object.tags, object.verdict.checked);
        if purged == Purged::Hard {
            self.stats.purged += 1;
            self.unlink(number);
            return false;
        }
        let verdict = &mut self.object_mut(number).verdict;
        verdict.checked = generation;
        if purged == Purged::Soft {
            verdict.flags |= SOFTLY_PURGED;
        }
        true
    }

    fn is_variant(&mut self, number: u32, head: &RequestHead<'_>) -> bool {
        let mut variant = core::mem::take(&mut self.variant);
        let object = self.object(number);
        let same = object.vary.is_empty() || {
            write_variant(&mut variant, &object.vary, head);
            *object.variant == *variant
        };
        self.variant = variant;
        same
    }

    /// Requests that may have the same response have the same number: by URL, and once it is known
    /// which fields a response varies by, by these.
    fn shared(&mut self, case: &Case<'_>) -> u64 {
        let mut variant = core::mem::take(&mut self.variant);
        variant.clear();
        if let Some(latest) = case.latest {
            write_variant(&mut variant, &self.object(latest).vary, case.head);
        }
        let hash = case.hash;
        let shared = self
            .hashing
            .hash(b's', &[&hash.to_le_bytes(), &self.key, &variant]);
        self.variant = variant;
        shared
    }

    fn with_object(&mut self, case: &Case<'_>, number: u32, out: &mut Vec<u8>) -> Decision {
        let object = self.object(number);
        let judgement = object.verdict.judge(&case.asked, case.now);
        let fills = object.phase != Phase::Complete;
        match judgement.fit {
            Fit::Fresh => self.hit(case, number, judgement, out),
            Fit::WhileRevalidate if !fills => {
                // First: room for the answer may be made of the latest object.
                let shared = self.shared(case);
                let Decision::Hit { answer, .. } = self.hit(case, number, judgement, out) else {
                    return Decision::Pass(Reason::ReadersFull);
                };
                self.stats.stale_hits += 1;
                // Last: a fetch that nobody begins would never end.
                let revalidate = self.revalidate(case, shared, number);
                Decision::Hit { answer, revalidate }
            }
            _ if case.asked.only_if_cached => self.not_cached(case.now, out),
            _ if case.head.method == "HEAD" => self.pass(Reason::HeadMiss),
            _ if case.asked.no_store => self.pass(Reason::RequestNoStore),
            _ => {
                let own = RequestControl::default();
                let by_itself = object.verdict.judge(&own, case.now).fit == Fit::Validate;
                let forward = if by_itself { "stale" } else { "request" };
                // What a client demands for itself is not answered with an older fetch.
                let is_uncacheable = self.uncacheable.has(case.hash, case.now.at);
                let may_wait = by_itself && !fills && !is_uncacheable;
                let validates = (!fills).then_some(number);
                self.fetch_or_wait(case, validates, forward, may_wait)
            }
        }
    }

    fn without_object(&mut self, case: &Case<'_>, out: &mut Vec<u8>) -> Decision {
        if case.asked.only_if_cached {
            return self.not_cached(case.now, out);
        }
        if case.head.method == "HEAD" {
            return self.pass(Reason::HeadMiss);
        }
        if case.asked.no_store {
            return self.pass(Reason::RequestNoStore);
        }
        let is_uncacheable = self.uncacheable.has(case.hash, case.now.at);
        if is_uncacheable && case.fields.has_range {
            return self.pass(Reason::RangeOfUncacheable);
        }
        let forward = match case.latest {
            Some(_) => "vary-miss",
            None => "uri-miss",
        };
        let is_own = case.fields.has_authorization || case.asked.no_cache;
        let may_wait = !is_uncacheable && !is_own;
        self.fetch_or_wait(case, None, forward, may_wait)
    }

    /// Appends `Via` and `Cache-Status` for a response that is passed on because of this.
    pub fn note_pass(&self, reason: Reason, status: u16, out: &mut Vec<u8>) {
        let how = How {
            forward: Some(if reason == Reason::Method {
                "method"
            } else {
                "bypass"
            }),
            status: Some(status),
            reason: Some(reason),
            ..How::default()
        };
        write_notes(out, how, &self.settings);
    }

    pub(super) fn pass(&mut self, reason: Reason) -> Decision {
        self.stats.passed += 1;
        self.stats.count(reason);
        Decision::Pass(reason)
    }

    fn not_cached(&mut self, now: Now, out: &mut Vec<u8>) -> Decision {
        self.stats.count(Reason::OnlyIfCached);
        write_not_cached(out, now, &self.settings);
        Decision::Hit {
            answer: Answer {
                status: 504,
                body: None,
            },
            revalidate: None,
        }
    }

    fn hit(
        &mut self,
        case: &Case<'_>,
        number: u32,
        judgement: Judgement,
        out: &mut Vec<u8>,
    ) -> Decision {
        let how = How {
            forward: case.collapsed.then_some("uri-miss"),
            collapsed: case.collapsed,
            ttl: Some(judgement.ttl),
            ..How::default()
        };
        let request = (case.head, case.fields.has_conditions);
        let answer = self.answer(number, request, case.now, Some(judgement.age), how, out);
        let Some(answer) = answer else {
            return self.pass(Reason::ReadersFull);
        };
        self.stats.hits += 1;
        if self.object(number).is_resident {
            self.residency.on_hit(number);
        }
        Decision::Hit {
            answer,
            revalidate: None,
        }
    }

    /// Writes the head of an answer from an object, and begins to read its body. `None` when there
    /// are too many readers.
    pub(super) fn answer(
        &mut self,
        number: u32,
        (head, has_conditions): (&RequestHead<'_>, bool),
        now: Now,
        age: Option<u32>,
        how: How,
        out: &mut Vec<u8>,
    ) -> Option<Answer> {
        let object = self.object(number);
        let part = if has_conditions {
            part(head, &object.validators(), now.wall())
        } else {
            Part::Whole
        };
        let (at, end, length) = match &part {
            Part::Whole => (0, object.total.unwrap_or(u64::MAX), object.total),
            Part::Range(range) => (range.start, range.end, Some(range.end - range.start)),
            Part::NotModified | Part::Unsatisfiable => (0, 0, Some(0)),
        };
        let has_body = head.method != "HEAD" && length != Some(0);
        let body = if has_body {
            let reader = self.add_reader(Reader {
                object: number,
                at,
                end,
                waits: false,
            })?;
            Some(Body { reader, length })
        } else {
            None
        };
        let object = self.object(number);
        let (hash, bytes) = (object.verdict.hash, object.total.unwrap_or(object.received));
        self.sample.note(hash, bytes, now.at);
        let object = self.object(number);
        let status = write_answer(out, object, &part, age, how, &self.settings);
        Some(Answer { status, body })
    }

    fn add_reader(&mut self, reader: Reader) -> Option<ReaderId> {
        let object = reader.object;
        if self.readers.is_full() {
            return None;
        }
        self.pin(object);
        let has_room = self.make_room(ENTRY_BYTES);
        let ticket = if has_room {
            self.readers.insert(reader)
        } else {
            None
        };
        let Some(ticket) = ticket else {
            self.unpin(object);
            return None;
        };
        self.used.small += ENTRY_BYTES;
        let fill = self.object(object).fill;
        if let Some(transfer) = fill.and_then(|fill| self.fetches.named_mut(fill)) {
            transfer.readers.push(ticket);
        }
        Some(ReaderId(ticket))
    }

    pub(super) fn remove_reader(&mut self, ticket: Ticket) -> Option<Reader> {
        let reader = self.readers.remove(ticket)?;
        self.used.small -= ENTRY_BYTES;
        let fill = self.object(reader.object).fill;
        if let Some(transfer) = fill.and_then(|fill| self.fetches.named_mut(fill)) {
            transfer.readers.retain(|other| *other != ticket);
        }
        self.unpin(reader.object);
        Some(reader)
    }

    /// A validation in the background, unless one is under way.
    fn revalidate(&mut self, case: &Case<'_>, shared: u64, number: u32) -> Option<Fetch> {
        let under_way = self.object(number).validation;
        if under_way.is_some_and(|ticket| self.fetches.get(ticket).is_some()) {
            return None;
        }
        let fetch = self.begin(case, Some(number), "stale", Some(shared))?;
        if let Some(transfer) = self.fetches.named_mut(fetch.fetch.0) {
            transfer.in_background = true;
        }
        Some(fetch)
    }

    fn fetch_or_wait(
        &mut self,
        case: &Case<'_>,
        validates: Option<u32>,
        forward: &'static str,
        may_wait: bool,
    ) -> Decision {
        let shared = may_wait.then(|| self.shared(case));
        if let Some(deadline) = case.waits
            && let Some(shared) = shared
            && let Some(leader) = self.leaders.get(&shared).copied()
            && let Some(waiter) = self.wait(case, leader, deadline)
        {
            return Decision::Wait(waiter);
        }
        match self.begin(case, validates, forward, shared) {
            Some(fetch) => Decision::Fetch(fetch),
            None => self.pass(Reason::FetchesFull),
        }
    }

    fn wait(&mut self, case: &Case<'_>, leader: Ticket, deadline: Instant) -> Option<WaiterId> {
        if case.now.at >= deadline {
            return None;
        }
        if self.waiters.is_full() {
            self.stats.count(Reason::WaitersFull);
            return None;
        }
        let kept = Kept::new(case.head);
        let memory = kept.memory() + ENTRY_BYTES;
        if !self.make_room(memory) {
            self.stats.count(Reason::NoMemory);
            return None;
        }
        self.fetches.get(leader)?;
        let ticket = self.waiters.insert(Waiter {
            kept,
            deadline,
            fetch: leader,
        })?;
        self.used.small += memory;
        self.fetches.named_mut(leader)?.waiters.push(ticket);
        if self.deadlines.len() > 2 * self.waiters.len() + DEADLINES_MIN {
            let waiters = &self.waiters;
            self.deadlines
                .retain(|(_, ticket)| waiters.get(*ticket).is_some());
        }
        // A waiter of a fetch that failed waits again, until its first deadline.
        let later = self.deadlines.partition_point(|(at, _)| *at <= deadline);
        self.deadlines.insert(later, (deadline, ticket));
        if !case.collapsed {
            self.stats.collapsed += 1;
        }
        Some(WaiterId(ticket))
    }

    pub(super) fn remove_waiter(&mut self, ticket: Ticket) -> Option<Waiter> {
        let waiter = self.waiters.remove(ticket)?;
        self.used.small -= waiter.kept.memory() + ENTRY_BYTES;
        Some(waiter)
    }

    /// Begins a fetch. `None` if there are too many, or no memory.
    fn begin(
        &mut self,
        case: &Case<'_>,
        validates: Option<u32>,
        forward: &'static str,
        shared: Option<u64>,
    ) -> Option<Fetch> {
        let kept = Kept::new(case.head);
        let memory = kept.memory() + ENTRY_BYTES;
        if let Some(number) = validates {
            self.pin(number);
        }
        let has_room = !self.fetches.is_full() && self.make_room(memory);
        let leads = shared.filter(|shared| !self.leaders.contains_key(shared));
        let transfer = Transfer {
            kept: Some(kept),
            hash: case.hash,
            leads,
            sent: case.now.at,
            generation: self.purges.now(),
            validates,
            fills: None,
            in_background: false,
            forward,
            waiters: Vec::new(),
            readers: Vec::new(),
            is_blocked: false,
            is_abandoned: false,
            spoiled: None,
        };
        let ticket = if has_room {
            self.fetches.insert(transfer)
        } else {
            None
        };
        let Some(ticket) = ticket else {
            if let Some(number) = validates {
                self.unpin(number);
            }
            return None;
        };
        self.used.small += memory;
        if let Some(shared) = leads {
            self.leaders.insert(shared, ticket);
        }
        let conditions = match validates {
            Some(number) => {
                self.stats.validations += 1;
                self.object_mut(number).validation = Some(ticket);
                conditions(self.object(number))
            }
            None => {
                self.stats.misses += 1;
                Vec::new()
            }
        };
        Some(Fetch {
            fetch: FetchId(ticket),
            conditions,
        })
    }

    /// Removes a fetch's request from memory: it is not needed any more.
    pub(super) fn forget_request(&mut self, kept: &Kept) {
        self.used.small -= kept.memory();
    }

    /// Removes a fetch, without its waiters.
    pub(super) fn remove_fetch(&mut self, ticket: Ticket) -> Option<Transfer> {
        let mut transfer = self.fetches.remove(ticket)?;
        self.used.small -= ENTRY_BYTES;
        if let Some(kept) = transfer.kept.take() {
            self.forget_request(&kept);
        }
        self.stop_leading(&mut transfer, ticket);
        if let Some(number) = transfer.validates.take() {
            let object = self.object_mut(number);
            if object.validation == Some(ticket) {
                object.validation = None;
            }
            self.unpin(number);
        }
        Some(transfer)
    }

    pub(super) fn stop_leading(&mut self, transfer: &mut Transfer, ticket: Ticket) {
        if let Some(shared) = transfer.leads.take()
            && self.leaders.get(&shared) == Some(&ticket)
        {
            self.leaders.remove(&shared);
        }
    }
}
