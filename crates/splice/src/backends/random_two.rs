//! The less loaded of two drawn at random.

use super::policy::{Draw, Members, Policy, Registered};
use crate::config::Balance;

pub(super) static REGISTERED: Registered = Registered {
    name: "random-two",
    chooses: "the less loaded of two servers drawn at random",
    balance: |_| Balance::RandomTwo,
    build: |_| Box::new(RandomTwo),
};

/// The power of two choices (Mitzenmacher, 2001): nearly as even as least connections, without
/// every switch running for the same least loaded server at once.
#[derive(Debug)]
struct RandomTwo;

impl Policy for RandomTwo {
    fn choose(&mut self, members: &Members<'_>, draw: &mut Draw<'_>) -> Option<usize> {
        let first = members.draw(draw.rng, None)?;
        let Some(second) = members.draw(draw.rng, Some(first)) else {
            return Some(first);
        };
        // Of two equals the first: it was drawn by weight among all.
        Some(if members.load(second) < members.load(first) {
            second
        } else {
            first
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{POOL, V4, at, config};
    use super::super::{Backends, ServerId};
    use crate::config::Balance;

    fn highest_load(balance: Balance) -> u32 {
        let config = config(&[(balance, &[1; 100])]);
        let mut backends = Backends::new(&config, 4).unwrap();
        for _ in 0..10_000 {
            let id = backends.pick(POOL, 0, V4, &[], at(0)).unwrap();
            backends.opened(id);
        }
        (0..100)
            .map(|id| backends.active(ServerId(id)))
            .max()
            .unwrap()
    }

    #[test]
    fn two_choices_are_far_more_even_than_one() {
        let (one, two) = (
            highest_load(Balance::Weighted),
            highest_load(Balance::RandomTwo),
        );
        assert!(
            one >= 115,
            "{one} on the fullest of servers with 100 on average"
        );
        assert!(
            two <= 105,
            "{two} on the fullest of servers with 100 on average"
        );
    }

    #[test]
    fn the_most_loaded_server_is_chosen_only_alone() {
        let config = config(&[(Balance::RandomTwo, &[1, 1, 1])]);
        let mut backends = Backends::new(&config, 4).unwrap();
        (0..10).for_each(|_| backends.opened(ServerId(1)));
        for _ in 0..200 {
            assert_ne!(backends.pick(POOL, 0, V4, &[], at(0)), Some(ServerId(1)));
        }
        let others = [ServerId(0), ServerId(2)];
        assert_eq!(
            backends.pick(POOL, 0, V4, &others, at(0)),
            Some(ServerId(1))
        );
    }
}
