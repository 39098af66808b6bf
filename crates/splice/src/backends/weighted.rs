//! At random, by weight: no state, so many switches in front of one pool need not agree.

use super::policy::{Draw, Members, Policy, Registered};
use crate::config::Balance;

pub(super) static REGISTERED: Registered = Registered {
    name: "weighted",
    chooses: "at random, by weight",
    balance: |_| Balance::Weighted,
    build: |_| Box::new(Weighted),
};

#[derive(Debug)]
struct Weighted;

impl Policy for Weighted {
    fn choose(&mut self, members: &Members<'_>, draw: &mut Draw<'_>) -> Option<usize> {
        members.draw(draw.rng, None)
    }
}
