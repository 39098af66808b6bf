//! What the packet loop and the front's thread leave for each other.

use std::sync::{Mutex, MutexGuard, PoisonError};

use fairlead_base::Instant;
use fairlead_datapath::Snapshot;
use fairlead_http_front::{Counts, Event, Front};
use fairlead_splice::Uncached;
use fairlead_splice::snapshot::PoolSnapshot;

use super::hits::KernelHits;

/// Events that wait for the packet loop, at most.
const EVENTS_MAX: usize = 65_536;

/// The same of what is not for a cache. What is beyond is met again.
const UNCACHED_MAX: usize = 4_096;

/// How far the end has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
enum Ending {
    #[default]
    None,
    Drain,
    Abort,
    /// The sockets go on without this thread.
    Leave,
    Over,
}

#[derive(Default)]
pub(super) struct Desk {
    orders: Mutex<Orders>,
    shown: Mutex<Shown>,
    calls: Mutex<Vec<Call>>,
    /// The kernel program that answers requests, while no front has it.
    hits: Mutex<Option<KernelHits>>,
}

/// Something that the thread is to do with the front. What it gives back is called once that has
/// been written down.
type Call = Box<dyn FnOnce(&mut Front, Instant) -> Confirm + Send>;

/// Says that something is done.
pub(super) type Confirm = Box<dyn FnOnce()>;

/// Calls that wait, at most.
const CALLS_MAX: usize = 256;

impl core::fmt::Debug for Desk {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("Desk")
    }
}

#[derive(Debug, Default)]
struct Orders {
    /// What is known of servers, where that is news.
    pools: Option<Vec<PoolSnapshot>>,
    ending: Ending,
    /// The thread has acted on this.
    done: Ending,
    /// Nothing that caches hold is to outlive the process.
    forget: bool,
}

/// What the front has done.
#[derive(Debug, Default)]
pub(crate) struct Shown {
    pub(crate) counts: Counts,
    pub(crate) events: Vec<Event>,
    /// What turned out not to be for a cache.
    pub(crate) uncached: Vec<Uncached>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Desk {
    /// Leaves what is known of servers.
    pub(super) fn tell(&self, switch: &Snapshot) {
        lock(&self.orders).pools = Some(switch.pools.clone());
    }

    pub(super) fn leave_hits(&self, hits: KernelHits) {
        *lock(&self.hits) = Some(hits);
    }

    pub(super) fn take_hits(&self) -> Option<KernelHits> {
        lock(&self.hits).take()
    }

    pub(super) fn drain(&self) {
        let mut orders = lock(&self.orders);
        orders.ending = orders.ending.max(Ending::Drain);
    }

    pub(super) fn abort(&self) {
        let mut orders = lock(&self.orders);
        orders.ending = orders.ending.max(Ending::Abort);
    }

    pub(super) fn forget(&self) {
        lock(&self.orders).forget = true;
    }

    /// Nothing that caches hold is to outlive the process.
    pub(super) fn forgets(&self) -> bool {
        lock(&self.orders).forget
    }

    pub(super) fn leave(&self) {
        let mut orders = lock(&self.orders);
        orders.ending = orders.ending.max(Ending::Leave);
    }

    pub(super) fn end(&self) {
        lock(&self.orders).ending = Ending::Over;
    }

    /// Leaves something to do. False where too much waits.
    pub(super) fn call(&self, call: Call) -> bool {
        let mut calls = lock(&self.calls);
        let room = calls.len() < CALLS_MAX;
        if room {
            calls.push(call);
        }
        room
    }

    /// Another front takes the place of one that has failed, whose counters these are.
    pub(super) fn begin_anew(&self) -> Counts {
        lock(&self.calls).clear();
        lock(&self.orders).done = Ending::None;
        lock(&self.shown).counts.clone()
    }

    /// What the front has done since the last call, and its counters.
    pub(super) fn take(&self) -> Shown {
        let mut shown = lock(&self.shown);
        Shown {
            counts: shown.counts.clone(),
            events: core::mem::take(&mut shown.events),
            uncached: core::mem::take(&mut shown.uncached),
        }
    }

    /// Clients that are connected.
    pub(super) fn clients(&self) -> u64 {
        let orders = lock(&self.orders);
        // Until the thread has heard of the end it may accept another one.
        let unheard = u64::from(orders.done != orders.ending);
        drop(orders);
        lock(&self.shown).counts.numbers.front_clients.max(unheard)
    }

    /// The thread does what was ordered. True when it is over.
    pub(super) fn heed(
        &self,
        front: &mut Front,
        now: Instant,
        mut write: impl FnMut(&mut Front),
    ) -> bool {
        let calls = core::mem::take(&mut *lock(&self.calls));
        let done: Vec<_> = calls.into_iter().map(|call| call(front, now)).collect();
        write(front);
        done.into_iter().for_each(|confirm| confirm());
        let mut orders = lock(&self.orders);
        if let Some(pools) = orders.pools.take() {
            front.follow(&pools, now);
        }
        if orders.ending == orders.done {
            return false;
        }
        match orders.ending {
            Ending::None => {}
            Ending::Drain => front.drain(now),
            Ending::Abort | Ending::Over => front.abort(now),
            Ending::Leave => front.release(now),
        }
        self.publish(front);
        orders.done = orders.ending;
        orders.ending == Ending::Over
    }

    /// The thread shows what the front has done.
    pub(super) fn publish(&self, front: &mut Front) {
        let mut shown = lock(&self.shown);
        // The front counts those that it has no room for.
        while shown.events.len() < EVENTS_MAX
            && let Some(event) = front.poll_event()
        {
            shown.events.push(event);
        }
        while shown.uncached.len() < UNCACHED_MAX
            && let Some(one) = front.poll_uncached()
        {
            shown.uncached.push(one);
        }
        shown.counts = front.counts();
    }
}
