//! How many sessions can have a line at once, whatever the policy.

use std::collections::VecDeque;

use super::NONE;
use crate::place::{Place, Places};

/// The most of these sessions that can have a line at the same time, in sets of `ways` lines: a
/// session may stand in the sets of its first functions, and with `second` also in those of its
/// second ones. Every other one of them misses at every access, whoever decides.
///
/// With more sessions than this, a cache with a hash in front cannot do what one of the same size
/// does that is fully associative. (The largest matching of sessions and lines, one augmenting path
/// a session, each found breadth first.)
pub fn placeable(places: &Places, ways: u32, second: bool) -> usize {
    let sets = (places.banks() * places.sets()) as usize;
    let mut matching = Matching {
        places,
        second,
        ways: ways as usize,
        held: vec![Vec::new(); sets],
        seen: vec![0; sets],
        round: 0,
        from: vec![None; sets],
    };
    let sessions = 0..places.len() as u32;
    sessions.filter(|session| matching.seat(*session)).count()
}

struct Matching<'a> {
    places: &'a Places,
    second: bool,
    ways: usize,
    /// By set: the sessions in it.
    held: Vec<Vec<u32>>,
    /// By set: the round in which it was reached.
    seen: Vec<u32>,
    round: u32,
    /// By set: from which one it was reached, and the session there that would move.
    from: Vec<Option<(usize, usize)>>,
}

impl Matching<'_> {
    /// The sets of a session, padded with the first one.
    fn homes(&self, session: u32) -> impl Iterator<Item = usize> + use<> {
        let place: Place = self.places.at(session as usize).unwrap_or_default();
        let (banks, sets) = (self.places.banks() as usize, self.places.sets() as usize);
        let rows = if self.second { 2 } else { 1 };
        (0..rows * banks).map(move |at| {
            let (row, bank) = (at / banks, at % banks);
            let row = if row == 0 { place.first } else { place.second };
            bank * sets + row[bank] as usize
        })
    }

    fn reach(&mut self, set: usize, from: Option<(usize, usize)>) -> bool {
        let fresh = self.seen[set] != self.round;
        if fresh {
            self.seen[set] = self.round;
            self.from[set] = from;
        }
        fresh
    }

    /// Finds a line for a session, moving others if needed. False if impossible.
    fn seat(&mut self, session: u32) -> bool {
        self.round = (self.round + 1) % NONE;
        let mut queue = VecDeque::new();
        for set in self.homes(session) {
            if self.reach(set, None) {
                queue.push_back(set);
            }
        }
        while let Some(set) = queue.pop_front() {
            if self.held[set].len() < self.ways {
                self.shift(set, session);
                return true;
            }
            for at in 0..self.held[set].len() {
                for home in self.homes(self.held[set][at]) {
                    if self.reach(home, Some((set, at))) {
                        queue.push_back(home);
                    }
                }
            }
        }
        false
    }

    /// Moves sessions along the path that ends in a set with room, and puts the newcomer at its
    /// beginning.
    fn shift(&mut self, room: usize, newcomer: u32) {
        let mut to = room;
        while let Some((set, at)) = self.from[to] {
            let moved = self.held[set].swap_remove(at);
            self.held[to].push(moved);
            to = set;
        }
        self.held[to].push(newcomer);
    }
}
