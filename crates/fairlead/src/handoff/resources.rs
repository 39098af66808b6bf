//! Resources: proxies learn how much room there is, and take pairs back when the table is full.

use std::os::fd::AsFd;

use fairlead_handoff::message::{Cause, Resource};
use fairlead_handoff::{Cid, Command, Message, Phase};
use fairlead_os_tcp::pass;

use super::{Carrier, State, link_of};

/// Proxies learn of room in steps of this part of all lines.
const STEPS: u64 = 8;
/// Pairs that are asked back at once, at most.
const BACK_AT_ONCE: usize = 64;
/// An owner has so long until it is asked again, ms.
const WITHIN_MS: u16 = 1_000;

/// What proxies were last told.
#[derive(Debug, Default)]
pub(super) struct Told {
    step: Option<u64>,
}

impl Told {
    /// Whether this is another step than the last that was told, which this is from now on.
    fn is_news(&mut self, room: u64, most: u64) -> bool {
        let step = room.saturating_mul(STEPS).div_ceil(most.max(1));
        self.step.replace(step).is_some_and(|before| before != step)
    }
}

impl State {
    /// Tells proxies of room, should it have changed, and asks pairs back while lines are scarce:
    /// `active` says when a pair was last active. Called a few times a second.
    pub(super) fn tend_resources(
        &mut self,
        free_lines: u32,
        now_ms: u64,
        active: impl Fn(u64) -> Option<u32>,
    ) {
        let kept_free = self.ledger.limits().kept_free;
        let room = u64::from(free_lines.saturating_sub(kept_free));
        let most = u64::from(self.ledger.limits().connections);
        if self.told.is_news(room, most) {
            self.tell_room(room);
        }
        // Newcomers have begun to use what is kept for them.
        let missing = kept_free.saturating_sub(free_lines) as usize;
        if missing > 0 {
            self.ask_idle_back(missing.min(BACK_AT_ONCE), now_ms, active);
        }
    }

    /// Says to all proxies how many connections there is room for. How many proxies there are.
    fn tell_room(&mut self, lines: u64) -> usize {
        let resource = Resource::Lines;
        let level = lines;
        let command = Command::OsResource { resource, level };
        let message = Message::command(Cid(0), command);
        let mut told = 0;
        for link in self.links.iter().filter_map(|(_, link)| link.upgrade()) {
            self.ledger.counts.message(&message);
            told += usize::from(pass::send(link.as_fd(), &message.encode(), &[]).is_ok());
        }
        told
    }

    /// Asks the owners of those that have been idle longest to take them back.
    fn ask_idle_back(&mut self, count: usize, now_ms: u64, active: impl Fn(u64) -> Option<u32>) {
        let is_asked = |at: u64| at != 0 && now_ms < at + u64::from(WITHIN_MS);
        let carried = self.pairs.iter().filter(|(cid, pair)| {
            let entry = self.ledger.find(**cid);
            !pair.over && entry.is_some_and(|entry| entry.phase == Phase::Carried)
        });
        let mut idle: Vec<_> = carried
            .filter_map(|(cid, pair)| Some((active(pair.number)?, *cid, is_asked(pair.asked_ms))))
            .collect();
        idle.sort_unstable();
        let command = Command::OsRestore {
            cause: Cause::Pressure,
            within_ms: WITHIN_MS,
        };
        // Those that were asked a moment ago count, and are not asked again.
        for (_, cid, _) in idle.into_iter().take(count).filter(|one| !one.2) {
            let message = Message::command(cid, command);
            let Some(pair) = self.pairs.get_mut(&cid) else {
                continue;
            };
            pair.asked_ms = now_ms;
            let Some(link) = link_of(&self.links, pair) else {
                continue; // nobody would take it: it stays
            };
            self.ledger.counts.message(&message);
            let _ = pass::send(link.as_fd(), &message.encode(), &[]); // again in a second
        }
    }
}

impl Carrier {
    /// Asks all proxies to hand connections off, as far as there is room. How many were asked.
    pub(crate) fn ask_for_connections(&self) -> usize {
        let free_lines = self.free_lines.load(std::sync::atomic::Ordering::Acquire);
        let mut state = self.state();
        let room = free_lines.saturating_sub(state.ledger.limits().kept_free);
        state.tell_room(u64::from(room))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn room_is_told_when_it_has_changed_by_a_step() {
        let mut told = Told::default();
        assert!(!told.is_news(800, 800), "the first is where it begins");
        assert!(!told.is_news(799, 800));
        assert!(told.is_news(700, 800));
        assert!(!told.is_news(650, 800));
        assert!(told.is_news(0, 800));
        assert!(told.is_news(1, 800), "some is more than none");
        assert!(!told.is_news(100, 800));
        assert!(told.is_news(101, 800));
        assert!(!Told::default().is_news(0, 0));
    }
}
