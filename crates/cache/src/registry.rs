//! The policies by name.

use thiserror::Error;

use crate::cache::{Cache, Tag};
use crate::geometry::Geometry;
use crate::policy::{self, Parameters, Policy, Setup, StateBits};

/// One line of the registry.
#[derive(Clone, Copy, Debug)]
pub struct PolicyEntry {
    /// Its name.
    pub name: &'static str,
    /// One line of explanation.
    pub help: &'static str,
    /// What it keeps in hardware, beside tags and payload.
    pub state: fn(&Geometry, &Parameters) -> StateBits,
    /// True when it looks in second sets too.
    pub moves: bool,
}

/// A name that no policy has.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("unknown policy `{name}`; available: {}", names())]
pub struct UnknownPolicy {
    /// What was asked for.
    pub name: String,
}

fn names() -> String {
    let names: Vec<_> = POLICIES.iter().map(|entry| entry.name).collect();
    names.join(" ")
}

/// The entry of a name.
pub fn entry(name: &str) -> Option<&'static PolicyEntry> {
    POLICIES.iter().find(|entry| entry.name == name)
}

/// Whoever wants a cache of a policy and a shape that are only known when it runs. Implemented by
/// the lab for simulations and by `tcbcache` for live look-ups.
pub trait Visit {
    /// The tags.
    type Tag: Tag;
    /// The result of building the cache.
    type Output;

    /// Called once, with the cache.
    fn visit<P: Policy<B, W>, const B: usize, const W: usize>(
        self,
        cache: Cache<Self::Tag, P, B, W>,
    ) -> Self::Output;
}

/// A policy for every shape that a [`crate::Geometry`] can have.
trait Shapes {
    fn visit<V: Visit>(setup: &Setup, visit: V) -> V::Output;
}

/// Each shape that is written out is compiled by itself, for every policy: those that are asked for
/// most. All others run the code for a number of ways that is known only then, with the same
/// results.
macro_rules! shapes {
    ($policy:ty, $setup:ident, $visit:ident, $($banks:literal x $ways:literal),*) => {
        match ($setup.geometry.banks(), $setup.geometry.ways()) {
            $(($banks, $ways) => $visit.visit(Cache::<_, $policy, $banks, $ways>::new($setup)),)*
            (1, _) => $visit.visit(Cache::<_, $policy, 1, 0>::new($setup)),
            (2, _) => $visit.visit(Cache::<_, $policy, 2, 0>::new($setup)),
            _ => $visit.visit(Cache::<_, $policy, 4, 0>::new($setup)),
        }
    };
}

/// The shapes that the paper's tables and the named schemes have with a policy: one bank or two,
/// two or four, two, or that of the paper's cache alone.
macro_rules! written_out {
    (one_or_two, $policy:ty, $setup:ident, $visit:ident) => {
        shapes!($policy, $setup, $visit, 1 x 4, 1 x 8, 2 x 4, 2 x 8)
    };
    (two_or_four, $policy:ty, $setup:ident, $visit:ident) => {
        shapes!($policy, $setup, $visit, 2 x 4, 2 x 8, 4 x 4)
    };
    (two, $policy:ty, $setup:ident, $visit:ident) => {
        shapes!($policy, $setup, $visit, 2 x 4, 2 x 8)
    };
    (one, $policy:ty, $setup:ident, $visit:ident) => {
        shapes!($policy, $setup, $visit, 2 x 4)
    };
}

macro_rules! policies {
    ($(
        $name:literal, $policy:ty, $shapes:ident, $moves:literal,
        $help:literal;
    )*) => {
        /// Every policy.
        pub const POLICIES: &[PolicyEntry] = &[$(PolicyEntry {
            name: $name,
            help: $help,
            state: <$policy as Policy<2, 4>>::state_bits,
            moves: $moves,
        }),*];

        $(impl Shapes for $policy {
            fn visit<V: Visit>(setup: &Setup, visit: V) -> V::Output {
                written_out!($shapes, $policy, setup, visit)
            }
        })*

        /// Hands the cache of a policy's name and a geometry to `visit`.
        ///
        /// # Errors
        /// Unknown policy; the error lists the available ones.
        pub fn with_policy<V: Visit>(
            name: &str,
            setup: &Setup,
            visit: V,
        ) -> Result<V::Output, UnknownPolicy> {
            match name {
                $($name => Ok(<$policy as Shapes>::visit(setup, visit)),)*
                _ => Err(UnknownPolicy { name: name.to_owned() }),
            }
        }
    };
}

policies! {
    "lru", policy::Lru, one_or_two, false, "least recent of all lines in both banks (exact)";
    "enru", policy::Enru, two_or_four, false,
        "not recently used: one bit a line, drawn among those without";
    "rr", policy::RoundRobin, one, false, "banks in turn, the least recent line there";
    "timestamp", policy::Timestamp, one, false,
        "the least stamp of stamp_bits bits, which begin again at 0";
    "access", policy::AccessCount, one, false, "bank whose set had fewer accesses";
    "no-migrate", policy::NoMigrate, two, false,
        "bank with fewer ON lines, its least recent line";
    "spec", policy::Spec, two, true,
        "no-migrate; a full ON set moves one of its lines elsewhere";
    "tide", policy::Tide, one, true,
        "least worth by what it has learned of ages, wherever it stands";
    "random", policy::Random, one, false, "any candidate line";
    "clock", policy::SecondChance, one, false, "first in, first out, with a second chance";
    "sieve", policy::Sieve, one, false, "SIEVE among the candidate lines";
    "s3-fifo", policy::S3Fifo, one, false,
        "small and main queue among the candidate lines, ghosts";
    "drrip", policy::Drrip, one, false,
        "2-bit re-reference prediction, two ways of entry in a duel";
}
