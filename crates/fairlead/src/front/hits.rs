//! What the front tells the kernel program that answers requests, and what it learns from there.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use fairlead_base::Instant;
use fairlead_bpf_loader::{HitMaps, HitObject};
use fairlead_http_front::{Front, HitChange, HitId, Offer};

/// Responses that are not offered any more, and that clients may be missing a part of, at most.
const FORMER_MAX: usize = 128;
/// So long they are kept.
const FORMER: Duration = Duration::from_secs(10);
/// How often hits are counted.
const COUNTED: Duration = Duration::from_millis(500);

/// The program's maps, and what is in them.
#[derive(Debug)]
pub(crate) struct KernelHits {
    maps: HitMaps,
    offers: BTreeMap<HitId, Known>,
    /// By the object's number.
    of_object: BTreeMap<u64, HitId>,
    former: VecDeque<(Instant, u64, Option<HitId>)>,
    counted: Instant,
    says: bool,
}

#[derive(Clone, Copy, Debug)]
struct Known {
    key: u64,
    object: u64,
    hits: u64,
    bytes: u64,
}

impl KernelHits {
    pub(crate) fn new(maps: HitMaps) -> Self {
        Self {
            maps,
            offers: BTreeMap::new(),
            of_object: BTreeMap::new(),
            former: VecDeque::new(),
            counted: Instant::ZERO,
            says: true,
        }
    }

    /// Has the program show each hit for the access log, or not.
    pub(crate) fn log(&mut self, logs: bool) {
        self.maps.log(logs);
    }

    /// Does what the front wants, before anything of what it has to say is sent.
    pub(super) fn follow(&mut self, front: &mut Front, now: Instant) {
        while let Some(change) = front.poll_hit_change() {
            match change {
                HitChange::Offer(offer) => {
                    if !self.offer(&offer) {
                        front.hit_refused(offer.id);
                    }
                }
                HitChange::Withdraw(id) => self.withdraw(front, id, now),
                HitChange::WithdrawAll => self.withdraw_all(now),
            }
        }
    }

    fn offer(&mut self, offer: &Offer) -> bool {
        let Some(key) = self.maps.key(offer.listen, &offer.head) else {
            return false;
        };
        let object = self.maps.add(&HitObject {
            bytes: &offer.response,
            age_at: offer.age_at,
            keep_at: offer.keep_at,
            age_ns: nanoseconds(offer.age),
        });
        let Ok(object) = object else { return false };
        if self
            .maps
            .offer(key, object, nanoseconds(offer.fresh))
            .is_err()
        {
            self.maps.remove(object);
            return false;
        }
        let known = Known {
            key,
            object,
            hits: 0,
            bytes: 0,
        };
        self.offers.insert(offer.id, known);
        self.of_object.insert(object, offer.id);
        true
    }

    fn withdraw(&mut self, front: &mut Front, id: HitId, now: Instant) {
        self.count(front, id, now);
        if let Some(known) = self.offers.remove(&id) {
            self.maps.withdraw(known.key);
            self.former.push_back((now, known.object, Some(id)));
        }
    }

    /// Makes all offers void at once.
    pub(super) fn withdraw_all(&mut self, now: Instant) {
        if let Err(error) = self.maps.purge() {
            tracing::error!("the kernel may send responses that were purged: {error}");
        }
        for (id, known) in core::mem::take(&mut self.offers) {
            self.maps.withdraw(known.key);
            self.former.push_back((now, known.object, Some(id)));
        }
    }

    fn count(&mut self, front: &mut Front, id: HitId, now: Instant) {
        let Some(known) = self.offers.get_mut(&id) else {
            return;
        };
        let Some((hits, bytes)) = self.maps.hits(known.key) else {
            return;
        };
        let (more, more_bytes) = (hits - known.hits, bytes - known.bytes);
        (known.hits, known.bytes) = (hits, bytes);
        front.note_hits(now, id, more, more_bytes);
    }

    /// To be called every 100 ms or so.
    pub(super) fn tend(&mut self, front: &mut Front, now: Instant) {
        self.maps.refresh();
        match self.maps.tend() {
            Ok(_) => {}
            Err(error) if self.says => {
                self.says = false;
                tracing::warn!("what clients miss of hits in the kernel is not repeated: {error}");
            }
            Err(_) => {}
        }
        for event in self.maps.events() {
            if let Some(&id) = self.of_object.get(&event.object) {
                front.log_hit(id, event.client.src, event.bytes_in, event.bytes_out);
            }
        }
        if now.since(self.counted) >= COUNTED {
            self.counted = now;
            let all: Vec<_> = self.offers.keys().copied().collect();
            all.into_iter().for_each(|id| self.count(front, id, now));
        }
        while let Some((since, object, _)) = self.former.front().copied()
            && (self.former.len() > FORMER_MAX || now.since(since) >= FORMER)
        {
            self.former.pop_front();
            self.maps.remove(object);
            self.of_object.remove(&object);
        }
    }
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
