//! `no-migrate` and `spec`: replacement by ON and OFF (paper, section 3.4).

use fairlead_base::Rng;

use super::{Choice, Policy, Setup};
use crate::lines::{Access, Lines, Spot};

/// The set with fewer ON lines, the left one on a tie.
#[inline]
fn calmest<const B: usize, const W: usize>(lines: &Lines<B, W>, access: &Access<B>) -> u32 {
    let mut set = access.first[0];
    let mut least = lines.on_count(set);
    for other in &access.first[1..] {
        let on = lines.on_count(*other);
        if on < least {
            (set, least) = (*other, on);
        }
    }
    set
}

/// `no-migrate`: the bank whose set has fewer ON lines, there the least recent line.
#[derive(Clone, Copy, Debug)]
pub struct NoMigrate;

impl<const B: usize, const W: usize> Policy<B, W> for NoMigrate {
    fn new(_: &Setup) -> Self {
        Self
    }

    #[inline]
    fn choose(&mut self, lines: &mut Lines<B, W>, access: &Access<B>) -> Choice {
        Choice::Replace(lines.oldest(calmest(lines, access)))
    }
}

/// `spec`: as `no-migrate`; but where all lines of the set are ON, one that has an OFF or empty
/// line in its second sets is drawn from the seed and moved there, over the least recent of them.
#[derive(Clone, Debug)]
pub struct Spec {
    rng: Rng,
}

impl<const B: usize, const W: usize> Policy<B, W> for Spec {
    const MOVES: bool = true;

    fn new(setup: &Setup) -> Self {
        Self {
            rng: Rng::new(setup.seed),
        }
    }

    #[inline]
    fn choose(&mut self, lines: &mut Lines<B, W>, access: &Access<B>) -> Choice {
        let oldest = lines.oldest(calmest(lines, access));
        if !lines.is_on(oldest) {
            return Choice::Replace(oldest);
        }
        let set = oldest.set;
        let mut targets = [None; W];
        let mut count = 0;
        for way in 0..W as u32 {
            let homes = lines.homes(Spot { set, way });
            let target = lines.oldest_of(&homes.second);
            if !lines.is_on(target) {
                targets[count] = Some((way, target));
                count += 1;
            }
        }
        if count == 0 {
            return Choice::Replace(oldest);
        }
        match targets[self.rng.below(count as u32) as usize] {
            Some((way, to)) => Choice::Relocate {
                from: Spot { set, way },
                to,
            },
            None => Choice::Replace(oldest),
        }
    }
}
