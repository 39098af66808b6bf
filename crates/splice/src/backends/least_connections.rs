//! Fewest open connections for its weight.

use super::policy::{Draw, Members, Policy, Registered};
use super::round_robin::Turns;
use crate::config::Balance;

pub(super) static REGISTERED: Registered = Registered {
    name: "least-connections",
    chooses: "the server with the fewest open connections for its weight",
    balance: |_| Balance::LeastConnections,
    build: |servers| {
        Box::new(LeastConnections {
            turns: Turns::new(servers.len()),
        })
    },
};

/// Equally loaded servers take turns by weight, so that a pool that is mostly idle is shared by
/// weight too, instead of its first server doing all the work.
#[derive(Debug)]
struct LeastConnections {
    turns: Turns,
}

impl Policy for LeastConnections {
    fn choose(&mut self, members: &Members<'_>, _draw: &mut Draw<'_>) -> Option<usize> {
        let least = members
            .eligible_ones()
            .map(|index| members.load(index))
            .min()?;
        self.turns.next(members, |index| {
            members.eligible(index) && members.load(index) == least
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{POOL, V4, at, config};
    use super::super::{Backends, ServerId};
    use crate::config::Balance;

    #[test]
    fn the_least_loaded_for_its_weight_is_chosen() {
        let config = config(&[(Balance::LeastConnections, &[1, 4, 2])]);
        let mut backends = Backends::new(&config, 0).unwrap();
        // 2 / 1, 7 / 4, 4 / 2
        for (id, count) in [(0, 2), (1, 7), (2, 4)] {
            (0..count).for_each(|_| backends.opened(ServerId(id)));
        }
        assert_eq!(backends.pick(POOL, 0, V4, &[], at(0)), Some(ServerId(1)));
        backends.opened(ServerId(1));
        backends.closed(ServerId(2));
        assert_eq!(backends.pick(POOL, 0, V4, &[], at(0)), Some(ServerId(2)));
        assert_ne!(
            backends.pick(POOL, 0, V4, &[ServerId(2)], at(0)),
            Some(ServerId(2))
        );
    }

    #[test]
    fn idle_servers_take_turns_by_weight() {
        let config = config(&[(Balance::LeastConnections, &[1, 2])]);
        let mut backends = Backends::new(&config, 0).unwrap();
        let picks: Vec<_> = (0..6)
            .map(|_| backends.pick(POOL, 0, V4, &[], at(0)).unwrap().0)
            .collect();
        assert_eq!(picks, [1, 0, 1, 1, 0, 1]);
    }

    #[test]
    fn many_open_connections_are_compared_without_overflow() {
        let config = config(&[(Balance::LeastConnections, &[u16::MAX, 1])]);
        let mut backends = Backends::new(&config, 0).unwrap();
        (0..200_000).for_each(|_| backends.opened(ServerId(0)));
        (0..3).for_each(|_| backends.opened(ServerId(1)));
        // 200,000 / 65,535 is a little over 3.
        assert_eq!(backends.pick(POOL, 0, V4, &[], at(0)), Some(ServerId(1)));
    }
}
