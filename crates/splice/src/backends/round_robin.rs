//! In turn, by weight, without bursts.

use super::policy::{Draw, Members, Policy, Registered};
use crate::config::Balance;

pub(super) static REGISTERED: Registered = Registered {
    name: "round-robin",
    chooses: "in turn, by weight",
    balance: |_| Balance::RoundRobin,
    build: |servers| {
        Box::new(RoundRobin {
            turns: Turns::new(servers.len()),
        })
    },
};

/// Smooth weighted round robin: weights 5, 1, 1 give `a a b a c a a`, not `a a a a a b c`.
#[derive(Debug)]
struct RoundRobin {
    turns: Turns,
}

impl Policy for RoundRobin {
    fn choose(&mut self, members: &Members<'_>, _draw: &mut Draw<'_>) -> Option<usize> {
        self.turns.next(members, |index| members.eligible(index))
    }

    fn give_back(&mut self, members: &Members<'_>, index: usize) {
        if members.eligible(index) {
            self.turns.undo(members, index);
        }
    }
}

/// Who is owed how much. At every choice each candidate earns its weight, the one that is owed
/// most is chosen, and pays what all have earned; so the sum stays zero, and over a whole cycle
/// everyone is chosen as often as its weight says. Those who are no candidates neither earn nor
/// pay, so that a server that comes back is not flooded with turns it has missed.
#[derive(Debug)]
pub(super) struct Turns {
    owed: Vec<i64>,
}

impl Turns {
    /// Nobody is owed anything.
    pub(super) fn new(servers: usize) -> Self {
        Self {
            owed: vec![0; servers],
        }
    }

    /// Whose turn it is among the candidates (the first of equals); `None` without candidates.
    pub(super) fn next(
        &mut self,
        members: &Members<'_>,
        candidate: impl Fn(usize) -> bool,
    ) -> Option<usize> {
        let mut earned = 0;
        let mut best: Option<(usize, i64)> = None;
        for (index, owed) in self.owed.iter_mut().enumerate() {
            if !candidate(index) {
                continue;
            }
            let weight = i64::from(members.weight(index));
            *owed += weight;
            earned += weight;
            if best.is_none_or(|(_, most)| *owed > most) {
                best = Some((index, *owed));
            }
        }
        let (index, _) = best?;
        self.owed[index] -= earned;
        Some(index)
    }

    /// Takes a turn back: as if this one of those who are eligible had not been chosen. In which
    /// order turns are taken back does not matter.
    fn undo(&mut self, members: &Members<'_>, index: usize) {
        for at in members.eligible_ones() {
            let weight = i64::from(members.weight(at));
            self.owed[at] -= weight;
            self.owed[index] += weight;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{POOL, V4, at, config};
    use super::super::{Backends, ServerId};
    use crate::config::Balance;

    fn order(backends: &mut Backends, picks: usize, tried: &[ServerId]) -> String {
        let letter = |id: ServerId| char::from(b'a' + id.0 as u8);
        (0..picks)
            .filter_map(|_| backends.pick(POOL, 0, V4, tried, at(0)))
            .map(letter)
            .collect()
    }

    #[test]
    fn a_heavy_server_does_not_get_its_turns_in_a_row() {
        let config = config(&[(Balance::RoundRobin, &[5, 1, 1])]);
        let mut backends = Backends::new(&config, 0).unwrap();
        assert_eq!(order(&mut backends, 14, &[]), "aabacaaaabacaa");
    }

    #[test]
    fn equal_servers_take_turns_in_the_order_of_the_configuration() {
        let config = config(&[(Balance::RoundRobin, &[7, 7, 0, 7])]);
        let mut backends = Backends::new(&config, 0).unwrap();
        assert_eq!(order(&mut backends, 9, &[]), "abdabdabd");
    }

    #[test]
    fn turns_that_are_given_back_in_any_order_were_never_taken() {
        let config = config(&[(Balance::RoundRobin, &[5, 1, 0, 2])]);
        let mut backends = Backends::new(&config, 0).unwrap();
        let mut undisturbed = Backends::new(&config, 0).unwrap();
        for round in 0..40 {
            assert_eq!(
                order(&mut backends, 3, &[]),
                order(&mut undisturbed, 3, &[])
            );
            let mut taken: Vec<_> = (0..round)
                .filter_map(|_| backends.pick(POOL, 0, V4, &[], at(0)))
                .collect();
            taken.rotate_left(round / 3);
            for id in taken {
                backends.give_back(id);
            }
        }
    }

    #[test]
    fn a_turn_of_a_server_that_went_down_is_not_kept_for_it() {
        let config = config(&[(Balance::RoundRobin, &[1, 1, 1])]);
        let mut backends = Backends::new(&config, 0).unwrap();
        let taken: Vec<_> = (0..30)
            .filter_map(|_| backends.pick(POOL, 0, V4, &[], at(0)))
            .collect();
        assert!(backends.failed(ServerId(2), at(0)));
        for id in taken {
            backends.give_back(id);
        }
        assert_eq!(order(&mut backends, 20, &[]).matches('b').count(), 10);
    }

    #[test]
    fn a_server_that_comes_back_is_not_flooded() {
        let config = config(&[(Balance::RoundRobin, &[1, 1, 1])]);
        let mut backends = Backends::new(&config, 0).unwrap();
        order(&mut backends, 300, &[ServerId(2)]);
        assert_eq!(order(&mut backends, 9, &[]).matches('c').count(), 3);
    }
}
