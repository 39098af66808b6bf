//! Which listening addresses are announced on a link, and the answers for them: a machine that
//! clients reach on their own link must answer their ARP requests and neighbour solicitations, and
//! must not do so for an address that somebody else has.
//!
//! An address is probed first (RFC 5227; duplicate address detection of RFC 4862). If nobody
//! claims it, it is announced and questions are answered. A claim by another machine is defended
//! once in ten seconds, and then yielded; a yielded address is probed again every few seconds.
//!
//! Absent by design: sockets, clocks, threads, random sources.
#![forbid(unsafe_code)]

pub mod frame;

use core::time::Duration;
use std::collections::{BTreeMap, VecDeque};

use fairlead_base::{Address, Instant, Seed};

pub use frame::Hardware;
use frame::Heard;

/// Probes before an address is announced, their distance, and the time after the last. RFC 5227
/// asks for one to two seconds between probes, which fits a host that joins an unknown link; here
/// an answer within milliseconds is expected, and clients wait.
const PROBES: u8 = 3;
const PROBE_PAUSE: Duration = Duration::from_millis(250);
const PROBE_WAIT: Duration = Duration::from_millis(500);

/// The pause between announcements.
const ANNOUNCE_PAUSE: Duration = Duration::from_secs(1);

/// A claim of another is defended at most this often (RFC 5227, section 2.4).
const DEFEND_INTERVAL: Duration = Duration::from_secs(10);

/// An address that somebody else has is probed again after this, and up to half of it more.
const RETRY: Duration = Duration::from_secs(5);

/// Answers that wait to be sent, at most: a flood of questions is answered as far as that goes.
const FRAMES_MAX: usize = 256;

/// An address on a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// The address.
    pub address: Address,
    /// Index of the interface.
    pub interface: u32,
}

/// What is done about an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Others are asked whether they have it.
    Probing,
    /// Questions for it are answered.
    Announced,
    /// Another machine has it.
    Conflict,
}

impl State {
    /// The word in status pages.
    pub fn name(self) -> &'static str {
        match self {
            Self::Probing => "probing",
            Self::Announced => "announced",
            Self::Conflict => "conflict",
        }
    }
}

/// A change of state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// Where.
    pub place: Place,
    /// The new state.
    pub state: State,
    /// The machine with which it conflicts.
    pub with: Option<Hardware>,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    own: Hardware,
    state: State,
    /// Probes or announcements still to be sent.
    left: u8,
    due: Option<Instant>,
    defended_at: Option<Instant>,
}

/// All addresses of a machine.
#[derive(Debug)]
pub struct Announcer {
    entries: BTreeMap<Place, Entry>,
    repeat: u8,
    seed: Seed,
    drawn: u64,
    frames: VecDeque<(u32, Vec<u8>)>,
    events: VecDeque<Event>,
    conflicts: u64,
}

impl Announcer {
    /// Announces `repeat` times whatever it takes over. `seed` feeds pauses by chance.
    pub fn new(repeat: u8, seed: Seed) -> Self {
        Self {
            entries: BTreeMap::new(),
            repeat,
            seed,
            drawn: 0,
            frames: VecDeque::new(),
            events: VecDeque::new(),
            conflicts: 0,
        }
    }

    /// The addresses to announce from now on, with the hardware address of each interface. New ones
    /// are probed; of the others nothing is said any more.
    pub fn set_wanted(&mut self, now: Instant, wanted: &BTreeMap<Place, Hardware>) {
        let is_wanted = |place: &Place, entry: &Entry| wanted.get(place) == Some(&entry.own);
        self.entries.retain(|place, entry| is_wanted(place, entry));
        for (place, own) in wanted {
            if self.entries.contains_key(place) {
                continue;
            }
            let due = Some(now + self.chance(PROBE_PAUSE / 2));
            let entry = Entry {
                own: *own,
                state: State::Probing,
                left: PROBES,
                due,
                defended_at: None,
            };
            self.entries.insert(*place, entry);
        }
    }

    /// The state of each address.
    pub fn states(&self) -> impl Iterator<Item = (Place, State)> + '_ {
        self.entries.iter().map(|(place, one)| (*place, one.state))
    }

    /// Claims of other machines so far, to addresses that were probed or announced here.
    pub fn conflicts(&self) -> u64 {
        self.conflicts
    }

    /// Handles a frame that came in on an interface. Frames that this machine sent itself must not
    /// be passed.
    pub fn handle_frame(&mut self, now: Instant, interface: u32, frame: &[u8]) {
        match frame::read(frame) {
            None => {}
            Some(Heard::Claim { address, from }) => {
                self.handle_claim(now, interface, address, from)
            }
            Some(Heard::Question {
                target,
                sender,
                from,
            }) => {
                // A sender that asks from one of our addresses claims it.
                if let Some(sender) = sender {
                    self.handle_claim(now, interface, sender, from);
                }
                self.handle_question(now, interface, target, sender, from);
            }
        }
    }

    fn handle_question(
        &mut self,
        now: Instant,
        interface: u32,
        target: Address,
        sender: Option<Address>,
        from: Hardware,
    ) {
        let place = Place {
            address: target,
            interface,
        };
        let Some(entry) = self.entries.get(&place).copied() else {
            return;
        };
        if from == entry.own {
            return;
        }
        match entry.state {
            State::Announced => {
                let answer = frame::answer(target, entry.own, sender, from);
                self.send(interface, answer);
            }
            // Two probe at once: both step back, and one comes first later.
            State::Probing if sender.is_none() => self.give_up(now, place, from),
            State::Probing | State::Conflict => {}
        }
    }

    fn handle_claim(&mut self, now: Instant, interface: u32, address: Address, from: Hardware) {
        let place = Place { address, interface };
        let Some(entry) = self.entries.get_mut(&place).filter(|one| one.own != from) else {
            return;
        };
        match entry.state {
            State::Conflict => entry.due = Some(now + RETRY),
            State::Probing => self.give_up(now, place, from),
            State::Announced => {
                let recently = |at: Instant| now < at + DEFEND_INTERVAL;
                if entry.defended_at.is_some_and(recently) {
                    return self.give_up(now, place, from);
                }
                entry.defended_at = Some(now);
                let own = entry.own;
                self.conflicts += 1;
                self.send(interface, frame::announcement(address, own));
            }
        }
    }

    /// Leaves an address to the machine that has it.
    fn give_up(&mut self, now: Instant, place: Place, with: Hardware) {
        self.conflicts += 1;
        let due = Some(now + RETRY + self.chance(RETRY / 2));
        if let Some(entry) = self.entries.get_mut(&place) {
            entry.due = due;
            entry.left = 0;
            self.enter(place, State::Conflict, Some(with));
        }
    }

    fn enter(&mut self, place: Place, state: State, with: Option<Hardware>) {
        let Some(entry) = self.entries.get_mut(&place) else {
            return;
        };
        entry.state = state;
        if self.events.len() < FRAMES_MAX {
            self.events.push_back(Event { place, state, with });
        }
    }

    /// The next moment at which something is due.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.entries.values().filter_map(|one| one.due).min()
    }

    /// Does what is due.
    pub fn handle_timeout(&mut self, now: Instant) {
        let is_due = |entry: &Entry| entry.due.is_some_and(|due| due <= now);
        let due: Vec<Place> = self
            .entries
            .iter()
            .filter(|(_, entry)| is_due(entry))
            .map(|(place, _)| *place)
            .collect();
        for place in due {
            self.handle_due(now, place);
        }
    }

    fn handle_due(&mut self, now: Instant, place: Place) {
        let repeat = self.repeat;
        let Some(entry) = self.entries.get_mut(&place) else {
            return;
        };
        let own = entry.own;
        match (entry.state, entry.left) {
            (State::Conflict, _) => {
                (entry.left, entry.due) = (PROBES, Some(now));
                // Still silent: the state only says that it is looked again.
                entry.state = State::Probing;
            }
            (State::Probing, 0) => {
                (entry.left, entry.due) = (repeat, Some(now));
                self.enter(place, State::Announced, None);
            }
            (State::Probing, left) => {
                entry.left = left - 1;
                let pause = if left == 1 { PROBE_WAIT } else { PROBE_PAUSE };
                entry.due = Some(now + pause);
                self.send(place.interface, frame::probe(place.address, own));
            }
            (State::Announced, 0) => entry.due = None,
            (State::Announced, left) => {
                entry.left = left - 1;
                entry.due = Some(now + ANNOUNCE_PAUSE);
                self.send(place.interface, frame::announcement(place.address, own));
            }
        }
    }

    /// Takes the next frame to send, and its interface.
    pub fn poll_transmit(&mut self) -> Option<(u32, Vec<u8>)> {
        self.frames.pop_front()
    }

    /// Takes the next change.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    fn send(&mut self, interface: u32, frame: Vec<u8>) {
        if self.frames.len() < FRAMES_MAX {
            self.frames.push_back((interface, frame));
        }
    }

    fn chance(&mut self, most: Duration) -> Duration {
        self.drawn += 1;
        let word = self.seed.word("announce", self.drawn);
        let most_ms = u64::try_from(most.as_millis()).unwrap_or(u64::MAX);
        Duration::from_millis(word % most_ms.max(1))
    }
}

#[cfg(test)]
mod tests;
