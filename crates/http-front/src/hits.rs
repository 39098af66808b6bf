//! Responses that the kernel sends by itself: which ones, and until when (docs/kernel-hits.md).
//!
//! The driver gives the program what [`Front::poll_hit_change`] says, and reports what the program
//! has answered. A response is offered at its third hit within [`WINDOW`], and withdrawn when it is
//! dropped, replaced, validated, stale, or not asked for any more; a purge withdraws all.

use core::time::Duration;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

use fairlead_base::{Endpoint, Instant};
use fairlead_http_cache::{Field, RequestHead};
use fairlead_splice::config::{PoolId, Service};
use fairlead_wire::Asked;
use fairlead_wire::http::{RequestHead as Head, hit_head};

use crate::caches::Caches;
use crate::event::{Event, RequestEnd};
use crate::front::Front;

/// Hits within [`WINDOW`] that make a response hot.
const HOT: u8 = 3;
const WINDOW: Duration = Duration::from_secs(10);
/// Requests whose hits are counted at a time.
const PLACES: usize = 1_024;
/// Responses that are offered at a time. The program's map has room for more, for those that were
/// offered and that clients may still be missing a part of.
const OFFERS_MAX: usize = 768;
/// A response that nobody has asked for so long is not offered any more.
const UNUSED: Duration = Duration::from_secs(30);
/// Requests of one segment.
const PLAIN_BYTES_MAX: usize = 1_504;
/// The longest response: two segments of Ethernet with timestamps.
const BYTES_MAX: usize = 2 * 1_448;
/// Longer than the engine remembers what is not for a cache.
const UNCACHED: Duration = Duration::from_secs(130);
const UNCACHED_MAX: usize = 512;
/// The value of `Age`, and that of `Connection`, which the program writes.
const FIELD_BYTES: usize = 10;

/// Names an offer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HitId(pub u64);

/// A response that the kernel may send.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Offer {
    /// Its name.
    pub id: HitId,
    /// For clients of this listening endpoint.
    pub listen: Endpoint,
    /// The head of a request that it answers: all others with the same hash are, too.
    pub head: Vec<u8>,
    /// Head and body.
    pub response: Vec<u8>,
    /// Where in it the ten bytes of `Age` are; a multiple of four.
    pub age_at: u16,
    /// The same for `Connection`: `keep-alive` or `close`.
    pub keep_at: u16,
    /// Its age.
    pub age: Duration,
    /// So long it is fresh.
    pub fresh: Duration,
}

/// A change for the program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HitChange {
    /// A response may be sent.
    Offer(Box<Offer>),
    /// It may not any more.
    Withdraw(HitId),
    /// None may.
    WithdrawAll,
}

/// Of an offer.
#[derive(Debug)]
struct Held {
    slot: usize,
    object: u32,
    service: u16,
    to: (u16, PoolId),
    listen: Endpoint,
    hash: u64,
    asked: Asked,
    status: u16,
    until: Instant,
    used: Instant,
}

#[derive(Clone, Copy, Debug)]
struct Place {
    of: (Endpoint, u64),
    hits: u8,
    since: Instant,
}

/// What is offered.
#[derive(Debug, Default)]
pub(crate) struct Hits {
    /// There is a program.
    is_on: bool,
    places: Vec<Option<Place>>,
    held: BTreeMap<HitId, Held>,
    of_request: BTreeMap<(Endpoint, u64), HitId>,
    of_object: BTreeMap<(usize, u32), BTreeSet<HitId>>,
    next: u64,
    changes: VecDeque<HitChange>,
    /// By cache: purges that were heeded.
    purges: Vec<u64>,
    /// What was not for a cache a moment ago, and in the time before.
    uncached: [UncachedUrls; 2],
    rotated: Instant,
}

/// URLs that the engine splices at once for some time: a client may repeat a first request that a
/// server is about to answer, which nobody else may answer then.
#[derive(Debug, Default)]
struct UncachedUrls {
    urls: BTreeSet<(String, Vec<u8>)>,
    /// There were more.
    is_full: bool,
}

/// A hit of a cache.
pub(crate) struct Hit<'a> {
    pub(crate) slot: usize,
    pub(crate) service: (u16, &'a Service),
    pub(crate) to: (u16, PoolId),
    pub(crate) listen: Endpoint,
    /// The request's head first.
    pub(crate) bytes: &'a [u8],
}

impl Hits {
    /// Counts a request. True when its response is hot, and not offered yet.
    fn heats(&mut self, of: (Endpoint, u64), now: Instant) -> bool {
        if self.of_request.contains_key(&of) || self.held.len() >= OFFERS_MAX {
            return false;
        }
        if self.places.is_empty() {
            self.places = vec![None; PLACES];
        }
        let place = &mut self.places[(of.1 % PLACES as u64) as usize];
        let known = place.filter(|one| one.of == of && now.since(one.since) < WINDOW);
        let mut at = known.unwrap_or(Place {
            of,
            hits: 0,
            since: now,
        });
        at.hits = at.hits.saturating_add(1);
        *place = Some(at);
        at.hits >= HOT
    }

    /// Notes that a response is not for a cache.
    pub(crate) fn note_uncached(&mut self, host: &str, target: &[u8]) {
        let latest = &mut self.uncached[0];
        // A longer request is no hit in any case.
        if host.len() + target.len() > PLAIN_BYTES_MAX {
            return;
        }
        match latest.urls.len() < UNCACHED_MAX {
            true => {
                latest.urls.insert((host.to_owned(), target.to_vec()));
            }
            false => latest.is_full = true,
        }
    }

    fn was_uncached(&self, host: &str, target: &[u8]) -> bool {
        let mut all = self.uncached.iter();
        all.any(|one| {
            let known = !one.urls.is_empty();
            one.is_full || known && one.urls.contains(&(host.to_owned(), target.to_vec()))
        })
    }

    fn forget(&mut self, id: HitId) -> bool {
        let Some(held) = self.held.remove(&id) else {
            return false;
        };
        self.of_request.remove(&(held.listen, held.hash));
        let of = (held.slot, held.object);
        if let Some(all) = self.of_object.get_mut(&of) {
            all.remove(&id);
            if all.is_empty() {
                self.of_object.remove(&of);
            }
        }
        true
    }

    fn withdraw(&mut self, id: HitId) {
        if self.forget(id) {
            self.changes.push_back(HitChange::Withdraw(id));
        }
    }

    fn withdraw_all(&mut self) {
        let all: Vec<_> = self.held.keys().copied().collect();
        for id in all {
            self.forget(id);
        }
        self.changes.clear();
        self.changes.push_back(HitChange::WithdrawAll);
    }
}

impl Caches {
    /// A cache has answered a request: where its response is hot, the kernel may send it.
    pub(crate) fn note_hit(&mut self, hit: &Hit<'_>, head: &Head<'_>, now: Instant) {
        let (number, service) = hit.service;
        let route = &service.routes[usize::from(hit.to.0)];
        if !self.hits.is_on || !service.answers_in_kernel(route) {
            return;
        }
        let keys = self.slots[hit.slot].seed;
        let keys = (keys.word("hits", 0), keys.word("hits", 1));
        let bytes = &hit.bytes[..head.head_len];
        let Some(known) = hit_head(bytes, number, keys) else {
            return;
        };
        self.heed_withdrawn();
        let host = head.host.as_deref().unwrap_or_default();
        if self.hits.was_uncached(host, head.target) {
            return;
        }
        if !self.hits.heats((hit.listen, known.hash), now) {
            return;
        }
        let fields: Vec<Field<'_>> = head.headers().collect();
        let request = RequestHead {
            method: head.method,
            host,
            target: head.target,
            fields: &fields,
        };
        let at = self.now(now);
        let mut response = Vec::new();
        let cache = &mut self.slots[hit.slot].cache;
        let Some(offered) = cache.offer(&request, at, BYTES_MAX, &mut response) else {
            return;
        };
        let Some((response, age_at, keep_at)) = with_fields(&response) else {
            return;
        };
        let fresh = Duration::from_secs(offered.ttl.into());
        let id = HitId(self.hits.next);
        self.hits.next += 1;
        self.hits.of_request.insert((hit.listen, known.hash), id);
        let of = (hit.slot, offered.object);
        self.hits.of_object.entry(of).or_default().insert(id);
        self.hits.held.insert(
            id,
            Held {
                slot: hit.slot,
                object: offered.object,
                service: number,
                to: hit.to,
                listen: hit.listen,
                hash: known.hash,
                asked: head.subject(),
                status: offered.status,
                until: now + fresh,
                used: now,
            },
        );
        self.hits
            .changes
            .push_back(HitChange::Offer(Box::new(Offer {
                id,
                listen: hit.listen,
                head: bytes.to_vec(),
                response,
                age_at,
                keep_at,
                age: Duration::from_secs(offered.age.into()),
                fresh,
            })));
    }

    /// Withdraws what the caches do not hold any more.
    pub(crate) fn heed_withdrawn(&mut self) {
        let hits = &mut self.hits;
        if !hits.is_on {
            return;
        }
        hits.purges.resize(self.slots.len(), 0);
        let mut is_purged = false;
        for (slot, (of, heeded)) in self.slots.iter_mut().zip(&mut hits.purges).enumerate() {
            let purges = of.cache.purges();
            is_purged |= core::mem::replace(heeded, purges) != purges;
            while let Some(object) = of.cache.poll_unoffered() {
                for id in hits
                    .of_object
                    .get(&(slot, object))
                    .cloned()
                    .unwrap_or_default()
                {
                    hits.held.remove(&id).inspect(|held| {
                        hits.of_request.remove(&(held.listen, held.hash));
                    });
                    hits.changes.push_back(HitChange::Withdraw(id));
                }
                hits.of_object.remove(&(slot, object));
            }
        }
        if is_purged {
            hits.withdraw_all();
        }
    }
}

impl Front {
    /// A program answers from now on, or no longer.
    pub fn answer_in_kernel(&mut self, is_on: bool) {
        let hits = &mut self.caches.hits;
        hits.is_on = is_on;
        hits.withdraw_all();
    }

    /// The next change for the program, to be made before anything is sent to clients.
    pub fn poll_hit_change(&mut self) -> Option<HitChange> {
        self.caches.heed_withdrawn();
        self.caches.hits.changes.pop_front()
    }

    /// The program did not take an offer.
    pub fn hit_refused(&mut self, id: HitId) {
        self.caches.hits.forget(id);
    }

    /// Requests were answered with a response since the last call, with this number of bytes.
    pub fn note_hits(&mut self, now: Instant, id: HitId, requests: u64, bytes: u64) {
        let Some(held) = self.caches.hits.held.get_mut(&id) else {
            return;
        };
        if requests == 0 {
            return;
        }
        held.used = now;
        let (slot, object) = (held.slot, held.object);
        let (service, route, status) = (held.service, held.to.0, held.status);
        self.counts.routes[usize::from(service)][usize::from(route)] += requests;
        let numbers = &mut self.counts.numbers;
        numbers.front_served += requests;
        numbers.add_statuses(status, requests);
        let cache = &mut self.caches.route_cache(slot).cache;
        cache.note_offered(object, requests, bytes);
    }

    /// A request that was answered, for the log.
    pub fn log_hit(&mut self, id: HitId, client: Endpoint, bytes_in: u64, bytes_out: u64) {
        let Some(held) = self.caches.hits.held.get(&id) else {
            self.counts.numbers.front_events_lost += 1;
            return;
        };
        let event = Event {
            client,
            listen: held.listen,
            service: held.service,
            to: Some(held.to),
            server: None,
            asked: held.asked.clone(),
            status: Some(held.status),
            bytes_in,
            bytes_out,
            duration: Duration::ZERO,
            retries: 0,
            end: RequestEnd::Served,
            reason: None,
        };
        self.emit(event);
    }

    /// Withdraws what is stale, or not asked for any more.
    pub(crate) fn tend_hits(&mut self, now: Instant) {
        let hits = &mut self.caches.hits;
        if now.since(hits.rotated) >= UNCACHED {
            hits.rotated = now;
            hits.uncached.swap(0, 1);
            hits.uncached[0] = UncachedUrls::default();
        }
        let is_over = |held: &Held| now >= held.until || now.since(held.used) >= UNUSED;
        let held = hits.held.iter();
        let over: Vec<_> = held
            .filter_map(|(id, held)| is_over(held).then_some(*id))
            .collect();
        over.into_iter().for_each(|id| hits.withdraw(id));
    }
}

/// Puts the two fields that the program writes behind the status line, each at a multiple of four;
/// blanks before a value mean nothing (RFC 9110, section 5.5).
fn with_fields(response: &[u8]) -> Option<(Vec<u8>, u16, u16)> {
    let line = response.iter().position(|byte| *byte == b'\n')? + 1;
    let mut out = response[..line].to_vec();
    let mut places = [0; 2];
    for (name, at) in ["age:", "connection:"].into_iter().zip(&mut places) {
        out.extend_from_slice(name.as_bytes());
        out.push(b' ');
        out.resize(out.len().next_multiple_of(4), b' ');
        *at = u16::try_from(out.len()).ok()?;
        out.resize(out.len() + FIELD_BYTES, 0);
        out.extend_from_slice(b"\r\n");
    }
    // A status line may be of any length; the fields lie in the first segment.
    if out.len() > 128 {
        return None;
    }
    out.extend_from_slice(&response[line..]);
    (out.len() <= BYTES_MAX).then_some((out, places[0], places[1]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_where_the_program_writes_words() {
        for phrase in ["", "O", "OK", "Okay", "Quite OK"] {
            let response = format!("HTTP/1.1 200 {phrase}\r\nx: y\r\n\r\nbody");
            let (out, age, keep) = with_fields(response.as_bytes()).unwrap();
            assert_eq!((age % 4, keep % 4), (0, 0));
            let text = String::from_utf8(out).unwrap();
            let zeros = "\0".repeat(10);
            assert_eq!(&text[usize::from(age)..usize::from(age) + 10], zeros);
            assert_eq!(&text[usize::from(keep)..usize::from(keep) + 10], zeros);
            let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
            let line = format!("HTTP/1.1 200 {phrase}");
            let line = line.trim_end();
            let expected = format!("{line} age: {zeros} connection: {zeros} x: y body");
            assert_eq!(words, expected);
        }
        let long = format!("HTTP/1.1 200 {}\r\n\r\n", "x".repeat(100));
        assert_eq!(with_fields(long.as_bytes()), None);
    }
}
