//! Live use: one interface to a cache with configured policy and shape.

use crate::cache::{Cache, Filled, Found, Tag};
use crate::geometry::Geometry;
use crate::place::Place;
use crate::policy::{Policy, Setup};
use crate::registry::{Visit, with_policy};
use crate::scheme::{Scheme, SchemeError};
use crate::statistics::Statistics;

/// A cache of tags `T`, whatever its policy and shape; see [`Cache`] for what each does.
pub trait Lookup<T: Tag>: Send {
    /// Looks a tag up at tick `now`; a hit touches its line.
    fn lookup(&mut self, tag: T, place: &Place, now: u32, hint: u8) -> Option<Found>;

    /// The line that a look-up would find, untouched and not counted.
    fn peek(&self, tag: T, place: &Place) -> Option<u32>;

    /// Inserts a tag; an existing tag keeps its line.
    fn fill(&mut self, tag: T, place: &Place, now: u32, hint: u8) -> Filled<T>;

    /// Empties the line of a tag, and says which it was.
    fn remove(&mut self, tag: T, place: &Place) -> Option<u32>;

    /// The tag of a line.
    fn tag(&self, line: u32) -> Option<T>;

    /// What was counted.
    fn statistics(&self) -> Statistics;

    /// The shape.
    fn geometry(&self) -> Geometry;

    /// Lines in use, by set, bank after bank.
    fn occupancy(&self) -> Vec<u32>;

    /// Lines that are ON at tick `now`, by set, bank after bank.
    fn on_lines(&self, now: u32) -> Vec<u32>;
}

impl<T: Tag, P: Policy<B, W>, const B: usize, const W: usize> Lookup<T> for Cache<T, P, B, W> {
    fn lookup(&mut self, tag: T, place: &Place, now: u32, hint: u8) -> Option<Found> {
        Self::lookup(self, tag, place, now, hint)
    }

    fn peek(&self, tag: T, place: &Place) -> Option<u32> {
        Self::peek(self, tag, place)
    }

    fn fill(&mut self, tag: T, place: &Place, now: u32, hint: u8) -> Filled<T> {
        Self::fill(self, tag, place, now, hint)
    }

    fn remove(&mut self, tag: T, place: &Place) -> Option<u32> {
        Self::remove(self, tag, place)
    }

    fn tag(&self, line: u32) -> Option<T> {
        Self::tag(self, line)
    }

    fn statistics(&self) -> Statistics {
        Self::statistics(self)
    }

    fn geometry(&self) -> Geometry {
        Self::geometry(self)
    }

    fn occupancy(&self) -> Vec<u32> {
        Self::occupancy(self)
    }

    fn on_lines(&self, now: u32) -> Vec<u32> {
        let mut clock = self.lines.clock.clone();
        clock.advance(now);
        let since = clock.on_since();
        let on = |set| {
            let stamps = self.lines.stamps(set).iter();
            stamps.map(|stamp| u32::from(*stamp >= since)).sum()
        };
        let geometry = Self::geometry(self);
        (0..geometry.banks() * geometry.sets()).map(on).collect()
    }
}

struct Live<T>(core::marker::PhantomData<T>);

impl<T: Tag> Visit for Live<T> {
    type Tag = T;
    type Output = Box<dyn Lookup<T>>;

    fn visit<P: Policy<B, W>, const B: usize, const W: usize>(
        self,
        cache: Cache<T, P, B, W>,
    ) -> Self::Output {
        Box::new(cache)
    }
}

/// The cache of a scheme for live look-ups; its places come from [`Scheme::indexer`].
///
/// # Errors
/// When the geometry has other banks than the scheme, or scheme and policy do not exist.
pub fn build_lookup<T: Tag>(
    scheme: &Scheme,
    geometry: &Geometry,
    seed: u64,
) -> Result<Box<dyn Lookup<T>>, SchemeError> {
    scheme.check()?;
    scheme.check_banks(geometry)?;
    let setup = Setup {
        geometry: *geometry,
        parameters: scheme.parameters,
        seed,
    };
    Ok(with_policy(
        &scheme.policy,
        &setup,
        Live(core::marker::PhantomData),
    )?)
}
