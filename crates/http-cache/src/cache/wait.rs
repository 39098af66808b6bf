//! Requests that wait for the response to another.

use super::{Cache, Decision, Event, WaiterId};
use crate::head::Now;
use crate::reason::Reason;
use crate::slab::Ticket;
use crate::store::Store;
use fairlead_base::Instant;

impl<S: Store> Cache<S> {
    /// Decides again about a request that waited, after [`Event::Resume`]. It may wait once more,
    /// but never longer than [`collapse_wait`](crate::Settings::collapse_wait) in all.
    pub fn resume(&mut self, waiter: WaiterId, now: Now, out: &mut Vec<u8>) -> Decision {
        let Some(waiter) = self.remove_waiter(waiter.0) else {
            return self.pass(Reason::FetchFailed);
        };
        let waits = Some(waiter.deadline);
        waiter
            .kept
            .with(|head| self.decide(head, now, waits, true, out))
    }

    /// A request that waits went away.
    pub fn cancel(&mut self, waiter: WaiterId) {
        if let Some(waiter) = self.remove_waiter(waiter.0) {
            let ticket = waiter.fetch;
            if let Some(transfer) = self.fetches.named_mut(ticket) {
                let waiters = &self.waiters;
                transfer
                    .waiters
                    .retain(|other| waiters.get(*other).is_some());
            }
        }
    }

    /// Releases waiters whose time is up.
    pub fn handle_timeout(&mut self, now: Instant) {
        while let Some((at, ticket)) = self.deadlines.front().copied() {
            let is_there = self.waiters.get(ticket).is_some();
            if is_there && at > now {
                return;
            }
            self.deadlines.pop_front();
            if !is_there {
                continue;
            }
            let fetch = self.waiters.get(ticket).map(|waiter| waiter.fetch);
            let transfer = fetch.and_then(|fetch| self.fetches.named_mut(fetch));
            let was_waiting = transfer.is_some_and(|transfer| {
                let before = transfer.waiters.len();
                transfer.waiters.retain(|other| *other != ticket);
                transfer.waiters.len() < before
            });
            // Others have an event already.
            if was_waiting {
                self.stats.count(Reason::Stalled);
                self.events.push_back(Event::Resume(WaiterId(ticket)));
            }
        }
    }

    /// All of these decide again.
    pub(super) fn release(&mut self, waiters: Vec<Ticket>) {
        for ticket in waiters {
            if self.waiters.get(ticket).is_some() {
                self.events.push_back(Event::Resume(WaiterId(ticket)));
            }
        }
    }
}
